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

static void emit_reduce(sbp_fuser *z, sbp_term dst, sbp_term src, double beta, int32_t position) {
    sbp_term terms[SBP_REDUCE_OPERANDS] = {[SBP_REDUCE_DST] = dst, [SBP_REDUCE_SRC] = src};
    sbp_instr *reduce = sbp_fuse_instr(z, SBP_CMD_REDUCE, position, terms, SBP_COUNT(terms));
    reduce->attrs.u.reduce.op = SBP_REDUCE_SUM;
    reduce->attrs.u.reduce.beta = beta;
}

static void emit_sum_rows(sbp_fuser *z, const sbp_op *op, int32_t position) {
    sbp_value v = op->results[0];
    if (sbp_op_int(op, "rank") > 0) {
        if (sbp_fuse_sums_memory(z, v)) /* else it is a partial of a row kernel */
            sbp_fuse_colsum(z, v, sbp_fuse_term(z, op->operands[0]), position);
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
            s->places[op->results[0]] =
                sbp_lower_rows_of(s, s->places[sbp_fuse_carry_root(z, op->operands[0])]);
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

/* While generating, rows of several texts are run as one chunk: those that were appended also go to their
 * places among the rows of their text. */
static void emit_placing(sbp_fuser *z, const sbp_op *append, int32_t position) {
    sbp_stage *s = z->stage;
    int32_t column = sbp_lower_row_buffer(z->p, sbp_data_columns[SBP_DATA_PLACE].name,
                                          sbp_data_columns[SBP_DATA_PLACE].dtype, SBP_T, (sbp_row_order){0});
    sbp_term terms[SBP_SCATTER_OPERANDS] = {
        [SBP_SCATTER_DST] = sbp_fuse_view_term(s->places[sbp_body_carry_root(z->f, append->results[0])]),
        [SBP_SCATTER_SRC] = sbp_fuse_term(z, append->operands[1]),
        [SBP_SCATTER_INDEX] =
            sbp_fuse_view_term(sbp_lower_rows_of(s, sbp_view_buffer(z->p->program, column, 0))),
    };
    sbp_fuse_instr(z, SBP_CMD_SCATTER, position, terms, SBP_COUNT(terms))->defines[0] = append->results[0];
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
                                      .of_all = sbp_fuse_of_all(z, def(z, k->operands[o])->operands[0])};
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
        sbp_fuse_colsum(z, sums[i], partials[i], z->f->values[sums[i]].op);
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
    if (sbp_fuse_lower(z, op, i))
        return SBP_OK;
    switch (op->code) {
    case SBP_OP_linear:
        emit_linear(z, op, i);
        return SBP_OK;
    case SBP_OP_linear_dw:
        emit_linear_dw(z, op, i);
        return SBP_OK;
    case SBP_OP_scatter_add:
    case SBP_OP_group_sum:
        return emit_scatter(z, op, i);
    case SBP_OP_sum_rows:
        emit_sum_rows(z, op, i);
        return SBP_OK;
    case SBP_OP_expert_linear:
        return sbp_fuse_expert_linear(z, op, i);
    case SBP_OP_expert_linear_dw:
        sbp_fuse_expert_linear_dw(z, op, i);
        return SBP_OK;
    case SBP_OP_append:
        if (z->stage->generates)
            emit_placing(z, op, i);
        return SBP_OK;
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
