/* rowbuild_ranges.c: where the last axis of a value is to be cut, so that each range comes from one
 * source. */
#include "passes/rows/rowbuild_internal.h"

#include <stdlib.h>

void sbp_row_form(const sbp_type *type, int64_t *heads, int64_t *n) {
    int32_t first = sbp_type_rows(type) != SBP_ONE ? 1 : 0;
    *heads = 1;
    *n = type->rank > first ? type->dim[type->rank - 1].n : 1;
    for (int32_t d = first; d + 1 < type->rank; d++)
        *heads *= type->dim[d].n;
}

bool sbp_row_can_be_stored(const sbp_type *type) {
    return type->dtype != SBP_BOOL && sbp_type_rows(type) != SBP_ONE &&
           (type->rank == 1 || sbp_type_row_elems(type) > 1);
}

typedef struct cuts {
    int64_t *at;
    int32_t count, capacity;
} cuts;

static void add_cut(sbp_row_emitter *e, cuts *c, int64_t at, int64_t a, int64_t b) {
    if (at > a && at < b)
        SBP_PUSH(e->p->arena, c->at, c->count, c->capacity, at);
}

/* The range of operand `o` that [a, b) of a row-wise result reads: its own single element, or the same. */
static bool reads_range(const sbp_row_emitter *e, sbp_value o) {
    int64_t heads, n;
    sbp_row_form(&e->f->values[o].type, &heads, &n);
    return n > 1 || heads > 1;
}

/* Asks for the places inside a range of a value, once. */
static void look_at(sbp_row_emitter *e, sbp_value v, int64_t a, int64_t b, int64_t shift) {
    sbp_row_work *w = e->work;
    const sbp_op *op = sbp_row_def(e, v);
    if (sbp_row_is_leaf(e, v) || !op || sbp_opcode_class(op->code) != SBP_CLASS_ROWWISE)
        return;
    for (int32_t i = w->piece_of[v]; i >= 0; i = w->pieces[i].next)
        if (w->pieces[i].a == a && w->pieces[i].b == b && w->pieces[i].shift == shift)
            return;
    if (w->piece_count >= SBP_ROW_MAX_RANGES) {
        (void)sbp_row_give_up(e, SBP_ROW_TOO_LARGE);
        return;
    }
    sbp_row_piece p = {.value = v, .a = a, .b = b, .shift = shift, .next = w->piece_of[v]};
    w->piece_of[v] = w->piece_count;
    SBP_PUSH(e->p->arena, w->pieces, w->piece_count, w->piece_capacity, p);
}

/* One step of find_cuts: the places that the op of a value brings, and ranges of its operands. */
static void cut_piece(sbp_row_emitter *e, sbp_row_piece p, cuts *c) {
    const sbp_op *op = sbp_row_def(e, p.value);
    int64_t heads, n, a = p.a, b = p.b;
    cuts local = {0};
    switch (op->code) {
    case SBP_OP_slice: {
        int64_t start = sbp_op_int(op, "start");
        look_at(e, op->operands[0], a + start, b + start, p.shift - start);
        break;
    }
    case SBP_OP_concat:
        sbp_row_form(&e->f->values[op->operands[0]].type, &heads, &n);
        add_cut(e, &local, n, a, b);
        if (a < n)
            look_at(e, op->operands[0], a, b < n ? b : n, p.shift);
        if (b > n)
            look_at(e, op->operands[1], a > n ? a - n : 0, b - n, p.shift + n);
        break;
    case SBP_OP_pad: {
        int64_t before = sbp_op_int(op, "before");
        sbp_row_form(&e->f->values[op->operands[0]].type, &heads, &n);
        add_cut(e, &local, before, a, b);
        add_cut(e, &local, before + n, a, b);
        int64_t lo = a > before ? a - before : 0, hi = b - before < n ? b - before : n;
        if (lo < hi)
            look_at(e, op->operands[0], lo, hi, p.shift + before);
        break;
    }
    case SBP_OP_row_sum:
    case SBP_OP_row_max:
    case SBP_OP_row_min:
        break;
    default:
        for (int32_t k = 0; k < op->operand_count; k++)
            if (op->operands[k] != SBP_NO_VALUE && reads_range(e, op->operands[k]))
                look_at(e, op->operands[k], a, b, p.shift);
        break;
    }
    for (int32_t i = 0; i < local.count; i++)
        SBP_PUSH(e->p->arena, c->at, c->count, c->capacity, local.at[i] + p.shift);
}

/* Places inside [a, b) of v where concat or pad change from one source to another. */
static void find_cuts(sbp_row_emitter *e, sbp_value v, int64_t a, int64_t b, cuts *c) {
    sbp_row_work *w = e->work;
    look_at(e, v, a, b, 0);
    for (int32_t i = 0; i < w->piece_count; i++)
        cut_piece(e, w->pieces[i], c);
    for (int32_t i = 0; i < w->piece_count; i++)
        w->piece_of[w->pieces[i].value] = -1;
    w->piece_count = 0;
}

static int compare_i64(const void *x, const void *y) {
    int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;
    return (a > b) - (a < b);
}

/* [a, b) cut at every place found, as bounds a = bound[0] < ... < bound[count] = b. */
int32_t sbp_row_ranges(sbp_row_emitter *e, sbp_value v, int64_t a, int64_t b, int64_t **bounds) {
    cuts c = {0};
    SBP_PUSH(e->p->arena, c.at, c.count, c.capacity, a);
    find_cuts(e, v, a, b, &c);
    SBP_PUSH(e->p->arena, c.at, c.count, c.capacity, b);
    qsort(c.at, (size_t)c.count, sizeof *c.at, compare_i64);
    int32_t kept = 0;
    for (int32_t i = 0; i < c.count; i++)
        if (kept == 0 || c.at[i] != c.at[kept - 1])
            c.at[kept++] = c.at[i];
    *bounds = c.at;
    return kept - 1;
}
