/* fuse_emit.c: writes the instructions of a stage, once fuse.c has decided what lives in memory and which
 * row-wise ops share a kernel. */

#include "passes/rows/fuse.h"
#include "passes/stream/body.h"

/* ---- matmuls ---------------------------------------------------------------------------------------- */

static bool out_in(const sbp_op *op) {
    return sbp_op_symbol_is(op, "layout", "out_in");
}

static void emit_linear(sbp_fuser *z, const sbp_op *op, int32_t position) {
    sbp_value result = op->results[0];
    sbp_term addend = sbp_fuse_no_term();
    if (z->addend[result] != SBP_NO_VALUE) {
        addend = sbp_fuse_term(z, z->addend[result]);
        result = z->sum_of[result];
        position = z->f->values[result].op;
    }
    sbp_value bias = op->operands[2];
    sbp_term terms[SBP_GEMM_OPERANDS] = {
        [SBP_GEMM_D] = sbp_fuse_term(z, result),
        [SBP_GEMM_A] = sbp_fuse_term(z, op->operands[0]),
        [SBP_GEMM_B] = sbp_fuse_term(z, op->operands[1]),
        [SBP_GEMM_C] = addend,
        [SBP_GEMM_BIAS] = bias == SBP_NO_VALUE ? sbp_fuse_no_term() : sbp_fuse_term(z, bias),
    };
    sbp_instr *gemm = sbp_fuse_instr(z, SBP_CMD_GEMM, position, terms, SBP_COUNT(terms));
    gemm->attrs.u.gemm.alpha = 1;
    gemm->attrs.u.gemm.beta = addend.kind == SBP_TERM_NONE ? 0 : 1;
    gemm->attrs.u.gemm.tb = out_in(op);
}

/* dW += dy^T x; for weights [in, out], x^T dy. */
static void emit_linear_dw(sbp_fuser *z, const sbp_op *op, int32_t position) {
    sbp_value v = op->results[0];
    bool accumulates = z->accumulates[v] != SBP_NO_VALUE;
    sbp_term dw = accumulates ? sbp_fuse_view_term(z->stage->accums[z->accumulates[v]]) : sbp_fuse_term(z, v);
    sbp_term dy = sbp_fuse_term(z, op->operands[0]), x = sbp_fuse_term(z, op->operands[1]);
    sbp_term terms[SBP_GEMM_OPERANDS] = {
        [SBP_GEMM_D] = dw,
        [SBP_GEMM_A] = out_in(op) ? dy : x,
        [SBP_GEMM_B] = out_in(op) ? x : dy,
        [SBP_GEMM_C] = accumulates ? dw : sbp_fuse_no_term(),
        [SBP_GEMM_BIAS] = sbp_fuse_no_term(),
    };
    sbp_instr *gemm = sbp_fuse_instr(z, SBP_CMD_GEMM, position, terms, SBP_COUNT(terms));
    gemm->attrs.u.gemm.alpha = 1;
    gemm->attrs.u.gemm.beta = accumulates ? 1 : 0;
    gemm->attrs.u.gemm.ta = true;
}

/* ---- gather, scatter, sums --------------------------------------------------------------------------- */

static sbp_status order_terms(sbp_fuser *z, sbp_value index, sbp_term *perm, sbp_term *segment) {
    const sbp_value_info *info = &z->f->values[index];
    if (info->role != SBP_VALUE_ROW)
        return sbp_fail(z->p->diag, SBP_INTERNAL, "fuse: %s scatters by %%%s, which is not a row input",
                        z->stage->name, info->name);
    const char *column = z->p->module->rows[info->binding].name;
    sbp_program *prog = z->p->program;
    bool counted = false; /* the rows in the order that the index comes in */
    for (int32_t r = 0; r < prog->row_input_count; r++)
        if (prog->row_inputs[r].buffer == z->stage->places[index].ref)
            counted = prog->row_inputs[r].counted;
    sbp_symbol rows = sbp_type_rows(&info->type) == SBP_W ? SBP_W : z->stage->rows;
    int32_t order = sbp_lower_order_buffer(z->p, column, SBP_ROW_ORDER, rows, counted);
    int32_t lengths = sbp_lower_order_buffer(z->p, column, SBP_ROW_SEGMENT, rows, counted);
    *perm = sbp_fuse_view_term(sbp_lower_rows_of(z->stage, sbp_view_buffer(prog, order, 0)));
    *segment = sbp_fuse_view_term(sbp_lower_rows_of(z->stage, sbp_view_buffer(prog, lengths, 0)));
    return SBP_OK;
}

static sbp_status emit_scatter(sbp_fuser *z, const sbp_op *op, int32_t position) {
    sbp_value v = op->results[0];
    sbp_term perm, segment, dst;
    SBP_TRY(order_terms(z, op->operands[1], &perm, &segment));
    if (z->accumulates[v] != SBP_NO_VALUE) {
        dst = sbp_fuse_view_term(z->stage->accums[z->accumulates[v]]);
    } else {
        dst = sbp_fuse_term(z, v);
        sbp_term filled[SBP_FILL_OPERANDS] = {[SBP_FILL_DST] = dst};
        sbp_fuse_instr(z, SBP_CMD_FILL, position, filled, SBP_COUNT(filled));
    }
    sbp_term terms[SBP_SCATTER_ADD_OPERANDS] = {
        [SBP_SCATTER_ADD_DST] = dst,
        [SBP_SCATTER_ADD_SRC] = sbp_fuse_term(z, op->operands[0]),
        [SBP_SCATTER_ADD_INDEX] = sbp_fuse_term(z, op->operands[1]),
        [SBP_SCATTER_ADD_PERM] = perm,
        [SBP_SCATTER_ADD_SEGMENT] = segment,
    };
    sbp_fuse_instr(z, SBP_CMD_SCATTER_ADD, position, terms, SBP_COUNT(terms));
    return SBP_OK;
}

static void emit_gather(sbp_fuser *z, const sbp_op *op, int32_t position) {
    sbp_term terms[SBP_GATHER_OPERANDS] = {
        [SBP_GATHER_DST] = sbp_fuse_term(z, op->results[0]),
        [SBP_GATHER_TABLE] = sbp_fuse_term(z, op->operands[0]),
        [SBP_GATHER_INDEX] = sbp_fuse_term(z, op->operands[1]),
    };
    sbp_fuse_instr(z, SBP_CMD_GATHER, position, terms, SBP_COUNT(terms));
}

static void emit_reduce(sbp_fuser *z, sbp_term dst, sbp_term src, double beta, int32_t position) {
    sbp_term terms[SBP_REDUCE_OPERANDS] = {[SBP_REDUCE_DST] = dst, [SBP_REDUCE_SRC] = src};
    sbp_instr *reduce = sbp_fuse_instr(z, SBP_CMD_REDUCE, position, terms, SBP_COUNT(terms));
    reduce->attrs.u.reduce.op = SBP_REDUCE_SUM;
    reduce->attrs.u.reduce.beta = beta;
}

/* An accumulator of a matrix as one row. */
static sbp_view as_row(sbp_view whole) {
    int64_t rows = sbp_extent_as_const(whole.length.base);
    if (rows == 1)
        return whole;
    whole.width = whole.cols = rows * whole.cols;
    whole.length.base = sbp_extent_const(1);
    return whole;
}

/* Where a sum to a vector goes: its accumulator (added to), or memory of its own. */
static void emit_colsum(sbp_fuser *z, sbp_value v, sbp_term src, int32_t position) {
    bool accumulates = z->accumulates[v] != SBP_NO_VALUE;
    sbp_term dst =
        accumulates ? sbp_fuse_view_term(as_row(z->stage->accums[z->accumulates[v]])) : sbp_fuse_term(z, v);
    sbp_term terms[SBP_COLSUM_OPERANDS] = {[SBP_COLSUM_DST] = dst, [SBP_COLSUM_SRC] = src};
    sbp_instr *colsum = sbp_fuse_instr(z, SBP_CMD_COLSUM, position, terms, SBP_COUNT(terms));
    colsum->attrs.u.reduce.beta = accumulates ? 1 : 0;
}

static void emit_sum_rows(sbp_fuser *z, const sbp_op *op, int32_t position) {
    sbp_value v = op->results[0];
    if (sbp_op_int(op, "rank") > 0) {
        if (sbp_fuse_sums_memory(z, v)) /* else it is a partial of a row kernel */
            emit_colsum(z, v, sbp_fuse_term(z, op->operands[0]), position);
        return;
    }
    sbp_term src = sbp_fuse_term(z, op->operands[0]);
    int32_t stored = 0;
    for (int32_t i = 0; i < z->stage->store_count; i++)
        if (z->stage->stores[i].value == v) {
            emit_reduce(z, sbp_fuse_view_term(z->stage->stores[i].to), src, 1,
                        position); /* over micro-batches */
            stored++;
        }
    if (z->uses[v] > stored)
        emit_reduce(z, sbp_fuse_term(z, v), src, 0, position);
}

/* ---- attention and carries --------------------------------------------------------------------------- */

/* Rows of a carry that attention with this window may read: from the table's lo to the end of the chunk. */
static sbp_view visible_rows(sbp_fuser *z, sbp_view carry, int64_t window) {
    sbp_chunk_table *table = &z->p->program->tables[z->stage->table];
    int32_t w = 0;
    while (w < table->window_count && table->windows[w] != window)
        w++;
    if (w == table->window_count)
        SBP_PUSH(z->p->arena, table->windows, table->window_count, table->window_capacity, window);
    carry.start = (sbp_index){.column = SBP_COLUMN_LO + w};
    carry.length = (sbp_index){.column = carry.length.base.c[SBP_W] != 0 ? SBP_COLUMN_ALL : SBP_COLUMN_HI};
    carry.until = true;
    return carry;
}

static sbp_term carry_term(sbp_fuser *z, sbp_value state, int64_t window) {
    sbp_value root = sbp_body_carry_root(z->f, state);
    return sbp_fuse_view_term(visible_rows(z, z->stage->places[root], window));
}

/* What is appended is computed into the carry, or copied to where the carry is; after: two. */
static void wait_for_append(sbp_fuser *z, sbp_value state, sbp_value *after) {
    const sbp_op *op = def(z, state);
    bool append = op && op->code == SBP_OP_append;
    after[0] = append ? z->stage->base[op->operands[1]] : SBP_NO_VALUE;
    after[1] = append ? state : SBP_NO_VALUE;
}

static void attention_attrs(const sbp_fuser *z, const sbp_op *op, sbp_attention_attrs *out) {
    const sbp_type *q = &z->f->values[op->operands[0]].type, *v = &z->f->values[op->operands[2]].type;
    *out = (sbp_attention_attrs){.heads = q->dim[1].n,
                                 .kv_heads = v->dim[1].n,
                                 .d_qk = q->dim[2].n,
                                 .d_v = v->dim[2].n,
                                 .window = sbp_op_int(op, "window"),
                                 .scale = sbp_op_double(op, "scale"),
                                 .softcap = sbp_op_double(op, "softcap"),
                                 .by_rank = sbp_type_rows(q) == SBP_C && sbp_type_rows(v) == SBP_W};
}

static void emit_attention(sbp_fuser *z, const sbp_op *op, int32_t position) {
    int64_t window = sbp_op_int(op, "window");
    sbp_term terms[SBP_ATTN_FWD_OPERANDS] = {
        [SBP_ATTN_FWD_O] = sbp_fuse_term(z, op->results[0]),
        [SBP_ATTN_FWD_LSE] = sbp_fuse_term(z, op->results[1]),
        [SBP_ATTN_FWD_Q] = sbp_fuse_term(z, op->operands[0]),
        [SBP_ATTN_FWD_K] = carry_term(z, op->operands[1], window),
        [SBP_ATTN_FWD_V] = carry_term(z, op->operands[2], window),
        [SBP_ATTN_FWD_FIRST] = sbp_fuse_term(z, op->operands[3]),
        [SBP_ATTN_FWD_SHARED_END] = sbp_fuse_term(z, op->operands[4]),
        [SBP_ATTN_FWD_OWN] = sbp_fuse_term(z, op->operands[5]),
        [SBP_ATTN_FWD_WORK] = sbp_fuse_no_term(),
    };
    sbp_instr *attn = sbp_fuse_instr(z, SBP_CMD_ATTN_FWD, position, terms, SBP_COUNT(terms));
    attention_attrs(z, op, &attn->attrs.u.attention);
    wait_for_append(z, op->operands[1], &attn->after[0]);
    wait_for_append(z, op->operands[2], &attn->after[2]);
}

/* Operands and results of attention_vjp (ops.def). */
enum { VJP_Q, VJP_K, VJP_V, VJP_O, VJP_LSE, VJP_DO, VJP_FIRST, VJP_SHARED_END, VJP_OWN, VJP_DK, VJP_DV };
enum { VJP_DQ, VJP_DK_OUT, VJP_DV_OUT };

/* The cotangent argument behind a running dK, or behind that of a state. */
static sbp_value dcarry_root(const sbp_fuser *z, sbp_value v) {
    for (;;) {
        const sbp_op *op = def(z, v);
        if (!op)
            return v;
        int32_t result = 0;
        while (op->results[result] != v)
            result++;
        v = sbp_op_continues(op, result);
    }
}

/* Whether a value has a chunk's rows of all ranks of a context. */
static bool of_all(const sbp_fuser *z, sbp_value v) {
    return sbp_type_rows(&z->f->values[v].type) == SBP_D;
}

static void emit_attention_vjp(sbp_fuser *z, const sbp_op *op, int32_t position) {
    int64_t window = sbp_op_int(op, "window");
    sbp_attention_attrs attrs;
    attention_attrs(z, op, &attrs);
    sbp_term dk =
        sbp_fuse_view_term(visible_rows(z, z->stage->places[dcarry_root(z, op->operands[VJP_DK])], window));
    sbp_term dv =
        sbp_fuse_view_term(visible_rows(z, z->stage->places[dcarry_root(z, op->operands[VJP_DV])], window));
    sbp_temp work = {.dtype = sbp_lower_wide(z->f->values[op->operands[0]].type.dtype),
                     .cols = sbp_target_work_columns(&z->p->target, attrs.heads, attrs.d_qk),
                     .of_all = of_all(z, op->operands[0]),
                     .more_rows = z->p->target.attention_more_rows};
    sbp_term terms[SBP_ATTN_BWD_OPERANDS] = {
        [SBP_ATTN_BWD_DQ] = sbp_fuse_term(z, op->results[VJP_DQ]),
        [SBP_ATTN_BWD_DK] = dk,
        [SBP_ATTN_BWD_DV] = dv,
        [SBP_ATTN_BWD_Q] = sbp_fuse_term(z, op->operands[VJP_Q]),
        [SBP_ATTN_BWD_K] = carry_term(z, op->operands[VJP_K], window),
        [SBP_ATTN_BWD_V] = carry_term(z, op->operands[VJP_V], window),
        [SBP_ATTN_BWD_O] = sbp_fuse_term(z, op->operands[VJP_O]),
        [SBP_ATTN_BWD_LSE] = sbp_fuse_term(z, op->operands[VJP_LSE]),
        [SBP_ATTN_BWD_DO] = sbp_fuse_term(z, op->operands[VJP_DO]),
        [SBP_ATTN_BWD_FIRST] = sbp_fuse_term(z, op->operands[VJP_FIRST]),
        [SBP_ATTN_BWD_SHARED_END] = sbp_fuse_term(z, op->operands[VJP_SHARED_END]),
        [SBP_ATTN_BWD_OWN] = sbp_fuse_term(z, op->operands[VJP_OWN]),
        [SBP_ATTN_BWD_WORK] = work.cols > 0 ? sbp_fuse_temp(z, work) : sbp_fuse_no_term(),
    };
    sbp_instr *attn = sbp_fuse_instr(z, SBP_CMD_ATTN_BWD, position, terms, SBP_COUNT(terms));
    attn->attrs.u.attention = attrs;
    wait_for_append(z, op->operands[VJP_K], &attn->after[0]);
    wait_for_append(z, op->operands[VJP_V], &attn->after[2]);
    for (int i = 0; i < 2; i++) {
        attn->after[4 + i] = op->operands[VJP_DK + i]; /* an earlier attention on the same carry */
        attn->defines[i] = op->results[VJP_DK_OUT + i];
    }
}

/* ---- states ------------------------------------------------------------------------------------------ */

/* Whether anybody reads a result. */
static sbp_term term_if_read(const sbp_fuser *z, sbp_value v) {
    return z->uses[v] > 0 ? sbp_fuse_term(z, v) : sbp_fuse_no_term();
}

/* The state before the chunk. */
static sbp_term state_term(const sbp_fuser *z, const sbp_op *op) {
    return sbp_fuse_view_term(z->stage->places[op->operands[sbp_opcode_state(op->code)]]);
}

/* The state behind it, where it is kept. */
static sbp_term next_term(const sbp_fuser *z, const sbp_op *op) {
    sbp_view place = z->stage->places[op->results[op->result_count - 1]];
    return place.ref == SBP_NO_VIEW ? sbp_fuse_no_term() : sbp_fuse_view_term(place);
}

/* The cotangent of the one behind the chunk, which becomes that of the one before. */
static sbp_term dstate_term(const sbp_fuser *z, sbp_value dstate) {
    return sbp_fuse_view_term(z->stage->places[dcarry_root(z, dstate)]);
}

static void emit_conv_rows(sbp_fuser *z, const sbp_op *op, int32_t position) {
    enum { X, W, BIAS, FIRST };
    sbp_value bias = op->operands[BIAS];
    sbp_term terms[SBP_CONV_ROWS_OPERANDS] = {
        [SBP_CONV_ROWS_Y] = sbp_fuse_term(z, op->results[0]),
        [SBP_CONV_ROWS_NEXT] = next_term(z, op),
        [SBP_CONV_ROWS_X] = sbp_fuse_term(z, op->operands[X]),
        [SBP_CONV_ROWS_W] = sbp_fuse_term(z, op->operands[W]),
        [SBP_CONV_ROWS_BIAS] = bias == SBP_NO_VALUE ? sbp_fuse_no_term() : sbp_fuse_term(z, bias),
        [SBP_CONV_ROWS_FIRST] = sbp_fuse_term(z, op->operands[FIRST]),
        [SBP_CONV_ROWS_STATE] = state_term(z, op),
    };
    sbp_fuse_instr(z, SBP_CMD_CONV_ROWS, position, terms, SBP_COUNT(terms));
}

static void emit_conv_rows_state(sbp_fuser *z, const sbp_op *op, int32_t position) {
    sbp_term terms[SBP_CONV_ROWS_OPERANDS] = {
        [SBP_CONV_ROWS_Y] = sbp_fuse_no_term(),
        [SBP_CONV_ROWS_NEXT] = next_term(z, op),
        [SBP_CONV_ROWS_X] = sbp_fuse_term(z, op->operands[0]),
        [SBP_CONV_ROWS_W] = sbp_fuse_no_term(),
        [SBP_CONV_ROWS_BIAS] = sbp_fuse_no_term(),
        [SBP_CONV_ROWS_FIRST] = sbp_fuse_no_term(),
        [SBP_CONV_ROWS_STATE] = state_term(z, op),
    };
    sbp_fuse_instr(z, SBP_CMD_CONV_ROWS, position, terms, SBP_COUNT(terms));
}

static void emit_conv_rows_vjp(sbp_fuser *z, const sbp_op *op, int32_t position) {
    enum { DY, X, W, FIRST, STATE, DSTATE };
    enum { DX, DW, DSTATE_OUT };
    const sbp_type *dw = &z->f->values[op->results[DW]].type;
    const sbp_temp partial = {.dtype = dw->dtype,
                              .cols = sbp_type_row_elems(dw),
                              .blocks = true,
                              .of_all = of_all(z, op->operands[X])};
    sbp_term sums = z->uses[op->results[DW]] > 0 ? sbp_fuse_temp(z, partial) : sbp_fuse_no_term();
    sbp_term terms[SBP_CONV_ROWS_BWD_OPERANDS] = {
        [SBP_CONV_ROWS_BWD_DX] = term_if_read(z, op->results[DX]),
        [SBP_CONV_ROWS_BWD_DW] = sums,
        [SBP_CONV_ROWS_BWD_DSTATE] = dstate_term(z, op->operands[DSTATE]),
        [SBP_CONV_ROWS_BWD_DY] = sbp_fuse_term(z, op->operands[DY]),
        [SBP_CONV_ROWS_BWD_X] = sbp_fuse_term(z, op->operands[X]),
        [SBP_CONV_ROWS_BWD_W] = sbp_fuse_term(z, op->operands[W]),
        [SBP_CONV_ROWS_BWD_FIRST] = sbp_fuse_term(z, op->operands[FIRST]),
        [SBP_CONV_ROWS_BWD_STATE] = state_term(z, op),
    };
    sbp_fuse_instr(z, SBP_CMD_CONV_ROWS_BWD, position, terms, SBP_COUNT(terms));
    if (sums.kind != SBP_TERM_NONE)
        emit_colsum(z, op->results[DW], sums, position);
}

static sbp_delta_attrs delta_attrs(const sbp_fuser *z, sbp_value k, sbp_value v) {
    const sbp_type *keys = &z->f->values[k].type, *values = &z->f->values[v].type;
    return (sbp_delta_attrs){.heads = values->dim[1].n,
                             .key_heads = keys->dim[1].n,
                             .d_k = keys->dim[2].n,
                             .d_v = values->dim[2].n};
}

/* Scratch of delta_rule, ssd and their derivatives: the state, if it is not saved, and what the backward
 * keeps of each block. */
static sbp_term delta_work(sbp_fuser *z, const sbp_delta_attrs *attrs, sbp_value k, bool ssd, bool backward) {
    const sbp_target_info *target = &z->p->target;
    int64_t state = attrs->heads * attrs->d_k * attrs->d_v, states = backward ? (ssd ? 2 : 1) : 0;
    int64_t (*columns)(const sbp_delta_attrs *, bool) = ssd ? target->ssd_columns : target->delta_columns;
    const sbp_temp work = {.dtype = sbp_lower_wide(z->f->values[k].type.dtype),
                           .cols = columns ? columns(attrs, backward) : states * state,
                           .more_rows = target->delta_more_rows,
                           .of_all = of_all(z, k),
                           .per = SBP_DELTA_BLOCK};
    return work.cols > 0 ? sbp_fuse_temp(z, work) : sbp_fuse_no_term();
}

/* delta_rule, whose operands begin with q, or delta_rule_state, which has none and makes no o; ssd has its
 * operands in their places. */
static void emit_delta_rule(sbp_fuser *z, const sbp_op *op, int32_t position) {
    enum { K, V, DECAY, BETA, FIRST };
    bool ssd = op->code == SBP_OP_ssd || op->code == SBP_OP_ssd_state;
    bool makes_o = op->code == SBP_OP_delta_rule || op->code == SBP_OP_ssd;
    const sbp_value *in = op->operands + (makes_o ? 1 : 0);
    sbp_delta_attrs attrs = delta_attrs(z, in[K], in[V]);
    sbp_term next = next_term(z, op);
    sbp_term terms[SBP_DELTA_RULE_OPERANDS] = {
        [SBP_DELTA_RULE_O] = makes_o ? sbp_fuse_term(z, op->results[0]) : sbp_fuse_no_term(),
        [SBP_DELTA_RULE_NEXT] = next,
        [SBP_DELTA_RULE_Q] = makes_o ? sbp_fuse_term(z, op->operands[0]) : sbp_fuse_no_term(),
        [SBP_DELTA_RULE_K] = sbp_fuse_term(z, in[K]),
        [SBP_DELTA_RULE_V] = sbp_fuse_term(z, in[V]),
        [SBP_DELTA_RULE_DECAY] = sbp_fuse_term(z, in[DECAY]),
        [SBP_DELTA_RULE_BETA] = sbp_fuse_term(z, in[BETA]),
        [SBP_DELTA_RULE_FIRST] = sbp_fuse_term(z, in[FIRST]),
        [SBP_DELTA_RULE_STATE] = state_term(z, op),
        [SBP_DELTA_RULE_WORK] =
            next.kind == SBP_TERM_NONE ? delta_work(z, &attrs, in[K], ssd, false) : sbp_fuse_no_term(),
    };
    sbp_fuse_instr(z, ssd ? SBP_CMD_SSD : SBP_CMD_DELTA_RULE, position, terms, SBP_COUNT(terms))
        ->attrs.u.delta = attrs;
}

static void emit_delta_rule_vjp(sbp_fuser *z, const sbp_op *op, int32_t position) {
    enum { DO, Q, K, V, DECAY, BETA, FIRST, STATE, DSTATE };
    enum { DQ, DK, DV, DDECAY, DBETA, DSTATE_OUT };
    bool ssd = op->code == SBP_OP_ssd_vjp;
    sbp_delta_attrs attrs = delta_attrs(z, op->operands[K], op->operands[V]);
    sbp_term terms[SBP_DELTA_RULE_BWD_OPERANDS] = {
        [SBP_DELTA_RULE_BWD_DQ] = term_if_read(z, op->results[DQ]),
        [SBP_DELTA_RULE_BWD_DK] = term_if_read(z, op->results[DK]),
        [SBP_DELTA_RULE_BWD_DV] = term_if_read(z, op->results[DV]),
        [SBP_DELTA_RULE_BWD_DDECAY] = term_if_read(z, op->results[DDECAY]),
        [SBP_DELTA_RULE_BWD_DBETA] = term_if_read(z, op->results[DBETA]),
        [SBP_DELTA_RULE_BWD_DSTATE] = dstate_term(z, op->operands[DSTATE]),
        [SBP_DELTA_RULE_BWD_DO] = sbp_fuse_term(z, op->operands[DO]),
        [SBP_DELTA_RULE_BWD_Q] = sbp_fuse_term(z, op->operands[Q]),
        [SBP_DELTA_RULE_BWD_K] = sbp_fuse_term(z, op->operands[K]),
        [SBP_DELTA_RULE_BWD_V] = sbp_fuse_term(z, op->operands[V]),
        [SBP_DELTA_RULE_BWD_DECAY] = sbp_fuse_term(z, op->operands[DECAY]),
        [SBP_DELTA_RULE_BWD_BETA] = sbp_fuse_term(z, op->operands[BETA]),
        [SBP_DELTA_RULE_BWD_FIRST] = sbp_fuse_term(z, op->operands[FIRST]),
        [SBP_DELTA_RULE_BWD_STATE] = state_term(z, op),
        [SBP_DELTA_RULE_BWD_WORK] = delta_work(z, &attrs, op->operands[K], ssd, true),
    };
    sbp_fuse_instr(z, ssd ? SBP_CMD_SSD_BWD : SBP_CMD_DELTA_RULE_BWD, position, terms, SBP_COUNT(terms))
        ->attrs.u.delta = attrs;
}

static sbp_collective_op collective_of(const sbp_op *op) {
    if (sbp_op_symbol_is(op, "to", "heads"))
        return SBP_TO_HEADS;
    if (sbp_op_symbol_is(op, "to", "rows"))
        return SBP_TO_ROWS;
    return sbp_op_symbol_is(op, "to", "all") ? SBP_CONTEXT_GATHER : SBP_CONTEXT_REDUCE;
}

static void emit_exchange(sbp_fuser *z, const sbp_op *op, int32_t position) {
    sbp_term terms[SBP_COLLECTIVE_OPERANDS] = {
        [SBP_COLLECTIVE_DST] = sbp_fuse_term(z, op->results[0]),
        [SBP_COLLECTIVE_SRC] = sbp_fuse_term(z, op->operands[0]),
    };
    sbp_instr *exchange = sbp_fuse_instr(z, SBP_CMD_COLLECTIVE, position, terms, SBP_COUNT(terms));
    sbp_collective_op collective = collective_of(op);
    exchange->attrs.u.collective.op = collective;
    if (collective != SBP_TO_HEADS && collective != SBP_TO_ROWS)
        return;
    exchange->attrs.u.collective.heads =
        (sbp_context_heads){.heads = sbp_op_int(op, "heads"),
                            .kv_heads = sbp_op_int(op, "kv_heads"),
                            .dim = z->f->values[op->operands[0]].type.dim[2].n,
                            .keys = sbp_op_int(op, "keys") != 0};
}

/* ---- places that follow from carries and results ----------------------------------------------------- */

typedef struct extra {
    sbp_value value;
    sbp_view to;
    sbp_value state; /* of the carry that it is copied to; SBP_NO_VALUE */
} extra;

typedef struct extras {
    extra *list;
    int32_t count, capacity;
} extras;

/* Gives a value its place, or notes that it has to be stored a second time. state: the carry with its rows,
 * or SBP_NO_VALUE. */
static void place(sbp_fuser *z, sbp_value value, sbp_view to, sbp_value state, extras *more) {
    sbp_value v = z->stage->base[value];
    sbp_view *at = &z->stage->places[v];
    for (int32_t i = 0; i < more->count; i++)
        if (more->list[i].value == v &&
            sbp_view_equal(&more->list[i].to, &to)) { /* a carry that others read */
            more->list[i].state = state != SBP_NO_VALUE ? state : more->list[i].state;
            return;
        }
    if (at->ref == SBP_NO_VIEW && z->f->values[v].role == SBP_VALUE_OP)
        *at = to;
    else if (!sbp_view_equal(at, &to))
        SBP_PUSH(z->p->arena, more->list, more->count, more->capacity,
                 (extra){.value = v, .to = to, .state = state});
}

static void place_all(sbp_fuser *z, extras *more) {
    sbp_stage *s = z->stage;
    for (int32_t i = 0; i < z->f->op_count; i++) { /* rows taken from a carry are where the carry is */
        const sbp_op *op = &z->f->ops[i];
        if (op->code == SBP_OP_take)
            s->places[op->results[0]] = sbp_lower_rows_of(s, s->places[dcarry_root(z, op->operands[0])]);
    }
    for (int32_t i = 0; i < s->store_count; i++) {
        const sbp_op *op = def(z, s->stores[i].value);
        if (!op || op->code != SBP_OP_sum_rows || z->f->values[s->stores[i].value].type.rank > 0)
            place(z, s->stores[i].value, s->stores[i].to, SBP_NO_VALUE, more);
    }
    for (int32_t i = 0; i < z->f->op_count; i++) {
        const sbp_op *op = &z->f->ops[i];
        if (op->code != SBP_OP_append)
            continue;
        sbp_value root = sbp_body_carry_root(z->f, op->results[0]);
        s->places[op->results[0]] = s->places[root];
        place(z, op->operands[1], sbp_lower_rows_of(s, s->places[root]), op->results[0], more);
    }
}

/* ---- row kernels ------------------------------------------------------------------------------------- */

/* Stores a root of the kernel a second time. */
static int32_t store_again(sbp_fuser *z, sbp_row_kernel *k, sbp_value v) {
    sbp_rowkernel *kernel = k->kernel;
    for (int32_t o = 0; o < kernel->operand_count; o++) {
        if (kernel->operands[o].mode != SBP_RK_OUT || k->operands[o] != v)
            continue;
        sbp_rk_operand copy = kernel->operands[o];
        copy.name = sbp_arena_printf(z->p->arena, "out%d", kernel->operand_count);
        int32_t added = sbp_rowkernel_add_operand(z->p->arena, kernel, &copy), count = kernel->instr_count;
        for (int32_t i = 0; i < count; i++)
            if (kernel->instrs[i].op == SBP_RK_STORE && kernel->instrs[i].index == o) {
                sbp_rk_instr store = kernel->instrs[i];
                store.index = added;
                sbp_rowkernel_add(z->p->arena, kernel, &store);
            }
        return added;
    }
    return -1;
}

static void emit_group(sbp_fuser *z, int32_t group, extras *more) {
    sbp_row_kernel *k = &z->kernels[group];
    const sbp_row_group *g = &z->groups[group];
    int32_t position = z->f->values[g->roots[g->root_count - 1]].op, own = k->kernel->operand_count;
    sbp_term terms[SBP_ROWKERNEL_MAX_OPERANDS + 1] = {{0}};
    sbp_value sums[SBP_ROWKERNEL_MAX_OPERANDS];
    int32_t sum_count = 0, kept = 0;
    sbp_term partials[SBP_ROWKERNEL_MAX_OPERANDS];
    for (int32_t o = 0; o < own; o++) {
        if (k->kernel->operands[o].mode == SBP_RK_PARTIAL) {
            int64_t cols = sbp_type_row_elems(&z->f->values[k->operands[o]].type);
            const sbp_temp partial = {.dtype = k->kernel->operands[o].dtype,
                                      .cols = cols,
                                      .blocks = true,
                                      .of_all = of_all(z, def(z, k->operands[o])->operands[0])};
            partials[sum_count] = terms[o] = sbp_fuse_temp(z, partial);
            sums[sum_count++] = k->operands[o];
        } else {
            terms[o] = sbp_fuse_term(z, k->operands[o]);
        }
    }
    for (int32_t i = 0; i < more->count; i++) {
        int32_t added = k->kernel->operand_count < SBP_ROWKERNEL_MAX_OPERANDS
                            ? store_again(z, k, more->list[i].value)
                            : -1;
        if (added >= 0)
            terms[added] = sbp_fuse_view_term(more->list[i].to);
        else
            more->list[kept++] = more->list[i];
    }
    more->count = kept;
    sbp_instr *row = sbp_fuse_instr(z, SBP_CMD_ROW, position, terms, k->kernel->operand_count);
    row->kernel = k->kernel;
    for (int32_t i = 0; i < sum_count; i++)
        emit_colsum(z, sums[i], partials[i], z->f->values[sums[i]].op);
}

/* A row kernel that copies a value, or with `accumulate` adds it. */
static sbp_instr *emit_copy(sbp_fuser *z, sbp_term from, sbp_view to, const sbp_type *type,
                            sbp_dtype to_dtype, bool accumulate) {
    sbp_extent rows;
    int64_t cols;
    sbp_lower_shape(type, z->stage->rows, &rows, &cols);
    sbp_dtype compute = sbp_lower_wide(type->dtype);
    sbp_rowkernel *k = sbp_rowkernel_create(z->p->arena, accumulate ? "accumulate" : "copy", compute);
    uint8_t vary = (uint8_t)(SBP_VARY_ROW | (cols > 1 ? SBP_VARY_ELEM : 0));
    sbp_rk_operand operand = {
        .name = "from", .mode = SBP_RK_IN, .dtype = type->dtype, .vary = vary, .length = cols};
    sbp_term terms[3] = {from, sbp_fuse_view_term(to), sbp_fuse_view_term(to)};
    sbp_rowkernel_add_operand(z->p->arena, k, &operand);
    operand.dtype = to_dtype;
    operand.name = "to_in";
    if (accumulate)
        sbp_rowkernel_add_operand(z->p->arena, k, &operand);
    operand.name = "to";
    operand.mode = SBP_RK_OUT;
    int32_t out = sbp_rowkernel_add_operand(z->p->arena, k, &operand);
    sbp_rk_instr load = {.op = SBP_RK_LOAD, .index = 0, .a = -1, .b = -1, .c = -1};
    int32_t value = sbp_rowkernel_add(z->p->arena, k, &load);
    if (accumulate) {
        load.index = 1;
        int32_t old = sbp_rowkernel_add(z->p->arena, k, &load);
        value = sbp_rowkernel_add(
            z->p->arena, k,
            &(sbp_rk_instr){
                .op = SBP_RK_MAP, .map = SBP_ROWOP_add, .a = old, .b = value, .c = -1, .index = -1});
    }
    sbp_rowkernel_add(z->p->arena, k,
                      &(sbp_rk_instr){.op = SBP_RK_STORE, .index = out, .a = value, .b = -1, .c = -1});
    sbp_instr *row = sbp_fuse_instr(z, SBP_CMD_ROW, z->f->op_count, terms, k->operand_count);
    row->kernel = k;
    return row;
}

/* ---- driver ------------------------------------------------------------------------------------------ */

static sbp_status emit_op(sbp_fuser *z, int32_t i) {
    const sbp_op *op = &z->f->ops[i];
    switch (op->code) {
    case SBP_OP_linear:
        emit_linear(z, op, i);
        return SBP_OK;
    case SBP_OP_linear_dw:
        emit_linear_dw(z, op, i);
        return SBP_OK;
    case SBP_OP_gather:
    case SBP_OP_group_take:
        emit_gather(z, op, i);
        return SBP_OK;
    case SBP_OP_scatter_add:
    case SBP_OP_group_sum:
        return emit_scatter(z, op, i);
    case SBP_OP_sum_rows:
        emit_sum_rows(z, op, i);
        return SBP_OK;
    case SBP_OP_attention:
        emit_attention(z, op, i);
        return SBP_OK;
    case SBP_OP_attention_vjp:
        emit_attention_vjp(z, op, i);
        return SBP_OK;
    case SBP_OP_conv_rows:
        emit_conv_rows(z, op, i);
        return SBP_OK;
    case SBP_OP_conv_rows_state:
        emit_conv_rows_state(z, op, i);
        return SBP_OK;
    case SBP_OP_conv_rows_vjp:
        emit_conv_rows_vjp(z, op, i);
        return SBP_OK;
    case SBP_OP_delta_rule:
    case SBP_OP_delta_rule_state:
    case SBP_OP_ssd:
    case SBP_OP_ssd_state:
        emit_delta_rule(z, op, i);
        return SBP_OK;
    case SBP_OP_delta_rule_vjp:
    case SBP_OP_ssd_vjp:
        emit_delta_rule_vjp(z, op, i);
        return SBP_OK;
    case SBP_OP_exchange:
        emit_exchange(z, op, i);
        return SBP_OK;
    case SBP_OP_route:
        sbp_fuse_route(z, op, i);
        return SBP_OK;
    case SBP_OP_expert_linear:
        return sbp_fuse_expert_linear(z, op, i);
    case SBP_OP_expert_linear_dw:
        sbp_fuse_expert_linear_dw(z, op, i);
        return SBP_OK;
    case SBP_OP_append:
    case SBP_OP_take:
        return SBP_OK;
    case SBP_OP_scan:
        return sbp_fail(z->p->diag, SBP_INPUT,
                        "%s: scan%s%s is computed before a step, on the host: only @prepare may have it",
                        z->stage->name, op->node ? " of " : "", op->node ? op->node : "");
    default:
        if (sbp_opcode_class(op->code) == SBP_CLASS_ROWWISE)
            return SBP_OK;
        return sbp_fail(z->p->diag, SBP_INTERNAL, "fuse: no command for %s in %s", sbp_opcode_name(op->code),
                        z->stage->name);
    }
}

sbp_status sbp_fuse_emit(sbp_fuser *z) {
    extras more = {0};
    place_all(z, &more);
    for (int32_t i = 0; i < z->f->op_count; i++)
        SBP_TRY(emit_op(z, i));
    for (int32_t g = 0; g < z->group_count; g++)
        emit_group(z, g, &more);
    for (int32_t i = 0; i < more.count; i++) {
        const sbp_type *type = &z->f->values[more.list[i].value].type;
        sbp_term from = sbp_fuse_term(z, more.list[i].value);
        emit_copy(z, from, more.list[i].to, type, type->dtype, false)->defines[0] = more.list[i].state;
    }
    for (int32_t i = 0; i < z->added_count; i++) { /* gradients that no command adds by itself */
        const sbp_added_gradient *added = &z->added[i];
        sbp_type type = z->f->values[added->param].type; /* the value may be of another shape */
        type.dtype = z->f->values[added->value].type.dtype;
        emit_copy(z, sbp_fuse_term(z, added->value), z->stage->accums[added->param], &type,
                  sbp_lower_wide(type.dtype), true);
    }
    return SBP_OK;
}
