/* fuse_experts.c: instructions of the ops of experts.
 *
 * Matrices that come in pieces (passes/lower/pieces.c) are never there as a whole. The experts of a piece
 * follow each other, and so do their slots: a product reads their bounds alone, and writes their slots alone.
 *
 *   copy     work  := matrices of experts e0 .. e1 - 1   queue in, of those that are on the host
 *   row      work' := numbers of work                    of blocks, or of another type
 *   expert_gemm  d's slots of experts e0 .. e1 - 1 := .. work'
 *
 * What is brought next is brought while a product runs: the copy for use n + 1 is given before use n,
 * and after use n - 1. So two pieces are there at a time as they are stored, and one as numbers; over
 * all ops of a stage. */
#include "passes/rows/fuse.h"

/* The slots of an index in the order of their experts, made where they are first asked for: once per
 * chunk. */
static const sbp_expert_slots *slots_of(sbp_fuser *z, sbp_value index, int64_t experts, int32_t position) {
    sbp_expert_slots *slots = &z->slots[z->stage->base[index]];
    if (slots->made)
        return slots;
    int64_t k = z->f->values[index].type.dim[1].n;
    *slots = (sbp_expert_slots){
        .made = true,
        .pairs = sbp_fuse_temp(z, (sbp_temp){.dtype = SBP_I32, .cols = k}),
        .bounds = sbp_fuse_temp(z, (sbp_temp){.dtype = SBP_I32, .cols = experts + 1, .single = true})};
    sbp_term terms[SBP_EXPERT_ORDER_OPERANDS] = {
        [SBP_EXPERT_ORDER_PAIRS] = slots->pairs,
        [SBP_EXPERT_ORDER_BOUNDS] = slots->bounds,
        [SBP_EXPERT_ORDER_INDEX] = sbp_fuse_term(z, index),
    };
    sbp_fuse_instr(z, SBP_CMD_EXPERT_ORDER, position, terms, SBP_COUNT(terms));
    return slots;
}

static bool out_in(const sbp_op *op) {
    return sbp_op_symbol_is(op, "layout", "out_in");
}

static bool by_slot(const sbp_fuser *z, sbp_value x) {
    return z->f->values[x].type.rank == 3;
}

/* ---- pieces ------------------------------------------------------------------------------------------ */

/* Experts e0 .. e1 - 1 of those of `of`, and their part of one matrix. */
typedef struct piece {
    const sbp_expert_pieces *of;
    sbp_value w;
    int64_t e0, e1, elems;
    int32_t position;
} piece;

static int32_t last_instr(const sbp_fuser *z) {
    return z->stage->instr_count - 1;
}

static void order(sbp_fuser *z, int32_t before, int32_t after) {
    sbp_stage *s = z->stage;
    SBP_PUSH(z->p->arena, s->orders, s->order_count, s->order_capacity, (sbp_instr_order){before, after});
}

static sbp_term rows_of(sbp_term term, int64_t row, int64_t rows) {
    term.range.row = row;
    term.range.rows = rows;
    return term;
}

/* Part k of the parameter, as it is stored: the rows of the piece; cols: of a row. */
static sbp_term stored_part(const sbp_fuser *z, const piece *x, int32_t k, int64_t *row_count, int64_t *cols,
                            sbp_dtype *dtype) {
    sbp_view view = z->stage->places[x->w];
    const sbp_format_info *format = x->of->format ? sbp_format_of(x->of->format) : NULL;
    int64_t each = format ? x->elems / format->block : 1; /* rows of an expert */
    if (format) {                                         /* the formals of the parts follow each other */
        view.ref -= k;
        view.length.base = sbp_extent_const(z->f->values[x->w].type.dim[0].n * each);
        view.cols = format->parts[k].count;
    }
    *row_count = (x->e1 - x->e0) * each;
    *cols = view.cols;
    *dtype = format ? format->parts[k].dtype : x->of->stored;
    return rows_of(sbp_fuse_view_term(view), x->e0 * each, *row_count);
}

/* The copy for this use, between the two uses before it: in the place of the first of these. */
static sbp_term bring(sbp_fuser *z, const piece *x, int32_t k) {
    sbp_temp temp = {0};
    sbp_piece_uses *uses = &z->pieces;
    sbp_term from = stored_part(z, x, k, &temp.rows, &temp.cols, &temp.dtype);
    if (!x->of->away)
        return from;
    sbp_term terms[SBP_COPY_OPERANDS] = {[SBP_COPY_DST] = sbp_fuse_temp(z, temp), [SBP_COPY_SRC] = from};
    int32_t position = uses->count > 0 ? z->stage->instrs[uses->product].position : x->position;
    sbp_fuse_instr(z, SBP_CMD_COPY, position, terms, SBP_COUNT(terms))->attrs.queue = SBP_QUEUE_IN;
    if (uses->count > 1)
        order(z, uses->first[1], last_instr(z));
    if (uses->count > 0)
        order(z, last_instr(z), uses->first[0]);
    return terms[SBP_COPY_DST];
}

/* to = from, in another type. */
static sbp_rowkernel *converter(sbp_fuser *z, sbp_dtype to, sbp_dtype from, int64_t cols) {
    sbp_rowkernel *k = sbp_rowkernel_create(z->p->arena, "convert", sbp_lower_wide(to));
    sbp_rk_operand operand = {.name = "from",
                              .mode = SBP_RK_IN,
                              .dtype = from,
                              .vary = SBP_VARY_ROW | SBP_VARY_ELEM,
                              .length = cols};
    (void)sbp_rowkernel_add_operand(z->p->arena, k, &operand);
    operand.name = "to";
    operand.mode = SBP_RK_OUT;
    operand.dtype = to;
    int32_t out = sbp_rowkernel_add_operand(z->p->arena, k, &operand);
    sbp_rk_instr load = {.op = SBP_RK_LOAD, .index = 0, .a = -1, .b = -1, .c = -1};
    int32_t value = sbp_rowkernel_add(z->p->arena, k, &load);
    sbp_rowkernel_add(z->p->arena, k,
                      &(sbp_rk_instr){.op = SBP_RK_STORE, .index = out, .a = value, .b = -1, .c = -1});
    return k;
}

/* The matrices of a piece as numbers of the type that is computed with. */
static sbp_status piece_term(sbp_fuser *z, const piece *x, sbp_term *out) {
    const sbp_format_info *format = x->of->format ? sbp_format_of(x->of->format) : NULL;
    sbp_piece_uses *uses = &z->pieces;
    sbp_dtype computed = z->f->values[x->w].type.dtype;
    sbp_term terms[SBP_MAX_FORMAT_PARTS + 1] = {{0}};
    int32_t parts = format ? format->part_count : 1;
    for (int32_t k = 0; k < parts; k++)
        terms[k] = bring(z, x, k);
    *out = terms[0];
    if (!format && x->of->stored == computed)
        return SBP_OK;
    const sbp_temp temp = {.dtype = computed, .rows = x->e1 - x->e0, .cols = x->elems};
    *out = terms[parts] = sbp_fuse_temp(z, temp);
    if (format)
        terms[parts].range.width = format->block;
    sbp_instr *row = sbp_fuse_instr(z, SBP_CMD_ROW, x->position, terms, parts + 1);
    if (format && !sbp_dequantize_kernel(z->p, x->of->format, computed))
        return z->p->status;
    row->kernel =
        format ? z->p->dequantize[x->of->format][computed] : converter(z, computed, x->of->stored, x->elems);
    if (uses->count > 0)
        order(z, uses->product, last_instr(z));
    return SBP_OK;
}

/* ---- products ---------------------------------------------------------------------------------------- */

enum { X, INDEX, W, BIAS }; /* operands of expert_linear */

/* The product of all experts, or with x of the experts of a piece; w: their matrices. */
static sbp_instr *emit_product(sbp_fuser *z, const sbp_op *op, const piece *x, sbp_term w) {
    int64_t experts = z->f->values[op->operands[W]].type.dim[0].n, count = x->e1 - x->e0;
    const sbp_expert_slots *slots = slots_of(z, op->operands[INDEX], experts, x->position);
    sbp_value bias = op->operands[BIAS];
    sbp_term terms[SBP_EXPERT_GEMM_OPERANDS] = {
        [SBP_EXPERT_GEMM_D] = sbp_fuse_term(z, op->results[0]),
        [SBP_EXPERT_GEMM_A] = sbp_fuse_term(z, op->operands[X]),
        [SBP_EXPERT_GEMM_B] = w,
        [SBP_EXPERT_GEMM_BIAS] = bias == SBP_NO_VALUE ? sbp_fuse_no_term() : sbp_fuse_term(z, bias),
        [SBP_EXPERT_GEMM_PAIRS] = slots->pairs,
        [SBP_EXPERT_GEMM_BOUNDS] = slots->bounds,
    };
    if (count < experts && bias != SBP_NO_VALUE)
        terms[SBP_EXPERT_GEMM_BIAS] = rows_of(terms[SBP_EXPERT_GEMM_BIAS], x->e0, count);
    if (count < experts) {
        terms[SBP_EXPERT_GEMM_BOUNDS].range.col = x->e0;
        terms[SBP_EXPERT_GEMM_BOUNDS].range.cols = count + 1;
    }
    sbp_instr *gemm = sbp_fuse_instr(z, SBP_CMD_EXPERT_GEMM, x->position, terms, SBP_COUNT(terms));
    gemm->attrs.u.experts.tb = out_in(op);
    gemm->attrs.u.experts.a_by_slot = by_slot(z, op->operands[X]);
    gemm->attrs.u.experts.of = count < experts ? experts : 0;
    gemm->attrs.u.experts.more = x->e0 > 0;
    return gemm;
}

sbp_status sbp_fuse_expert_linear(sbp_fuser *z, const sbp_op *op, int32_t position) {
    sbp_value w = op->operands[W];
    int64_t experts = z->f->values[w].type.dim[0].n;
    const sbp_expert_pieces *pieces = &z->stage->pieces[w];
    sbp_piece_uses *uses = &z->pieces;
    piece x = {.of = pieces,
               .w = w,
               .e1 = experts,
               .elems = sbp_type_row_elems(&z->f->values[w].type) / experts,
               .position = position};
    if (pieces->count == 0) {
        emit_product(z, op, &x, sbp_fuse_term(z, w));
        return SBP_OK;
    }
    for (int32_t i = 0; i < pieces->count; i++) {
        sbp_term numbers;
        x.e0 = experts * i / pieces->count;
        x.e1 = experts * (i + 1) / pieces->count;
        int32_t before = z->stage->instr_count;
        SBP_TRY(piece_term(z, &x, &numbers));
        bool made = numbers.kind == SBP_TERM_TEMP && last_instr(z) >= before &&
                    z->stage->instrs[last_instr(z)].kind == SBP_CMD_ROW;
        int32_t maker = last_instr(z);
        emit_product(z, op, &x, numbers);
        uses->first[1] = uses->first[0];
        uses->product = last_instr(z);
        uses->first[0] = made ? maker : uses->product;
        uses->count++;
    }
    return SBP_OK;
}

/* dW += dy^T x of each expert; for weights [in, out], x^T dy. */
void sbp_fuse_expert_linear_dw(sbp_fuser *z, const sbp_op *op, int32_t position) {
    enum { DW_DY, DW_X, DW_INDEX };
    sbp_value v = op->results[0], dy = op->operands[DW_DY], x = op->operands[DW_X];
    bool accumulates = z->accumulates[v] != SBP_NO_VALUE, straight = out_in(op);
    const sbp_expert_slots *slots = slots_of(z, op->operands[DW_INDEX], sbp_op_int(op, "experts"), position);
    sbp_term terms[SBP_EXPERT_GEMM_DW_OPERANDS] = {
        [SBP_EXPERT_GEMM_DW_D] =
            accumulates ? sbp_fuse_view_term(z->stage->accums[z->accumulates[v]]) : sbp_fuse_term(z, v),
        [SBP_EXPERT_GEMM_DW_A] = sbp_fuse_term(z, straight ? dy : x),
        [SBP_EXPERT_GEMM_DW_B] = sbp_fuse_term(z, straight ? x : dy),
        [SBP_EXPERT_GEMM_DW_PAIRS] = slots->pairs,
        [SBP_EXPERT_GEMM_DW_BOUNDS] = slots->bounds,
    };
    sbp_instr *gemm = sbp_fuse_instr(z, SBP_CMD_EXPERT_GEMM_DW, position, terms, SBP_COUNT(terms));
    gemm->attrs.u.experts.a_by_slot = by_slot(z, straight ? dy : x);
    gemm->attrs.u.experts.b_by_slot = by_slot(z, straight ? x : dy);
    gemm->attrs.u.experts.adds = accumulates;
}
