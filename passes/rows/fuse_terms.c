/* fuse_terms.c: operands of instructions, instructions and sums over rows, for what writes a stage. */
#include <string.h>

#include "passes/rows/fuse.h"

sbp_term sbp_fuse_view_term(sbp_view view) {
    return (sbp_term){.kind = SBP_TERM_VIEW, .value = SBP_NO_VALUE, .view = view};
}

sbp_term sbp_fuse_no_term(void) {
    return (sbp_term){.kind = SBP_TERM_NONE, .value = SBP_NO_VALUE, .view = sbp_view_none()};
}

sbp_term sbp_fuse_term(const sbp_fuser *z, sbp_value v) {
    sbp_value base = z->stage->base[v];
    sbp_value_role role = z->f->values[base].role;
    if (role == SBP_VALUE_PARAM || role == SBP_VALUE_ROW || role == SBP_VALUE_CONST)
        return sbp_fuse_view_term(z->stage->places[base]);
    return (sbp_term){.kind = SBP_TERM_VALUE, .value = base, .view = sbp_view_none()};
}

sbp_term sbp_fuse_temp(sbp_fuser *z, sbp_temp temp) {
    SBP_PUSH(z->p->arena, z->stage->temps, z->stage->temp_count, z->stage->temp_capacity, temp);
    return (sbp_term){.kind = SBP_TERM_TEMP, .value = z->stage->temp_count - 1, .view = sbp_view_none()};
}

sbp_instr *sbp_fuse_instr(sbp_fuser *z, sbp_command_kind kind, int32_t position, const sbp_term *terms,
                          int32_t count) {
    sbp_stage *s = z->stage;
    sbp_instr instr = {.kind = kind, .attrs.kind = kind, .term_count = count, .position = position};
    instr.terms = SBP_NEW_ARRAY(z->p->arena, sbp_term, count);
    memcpy(instr.terms, terms, (size_t)count * sizeof *terms);
    for (int i = 0; i < SBP_COUNT(instr.after); i++)
        instr.after[i] = SBP_NO_VALUE;
    for (int i = 0; i < SBP_COUNT(instr.defines); i++)
        instr.defines[i] = SBP_NO_VALUE;
    if (position >= 0 && position < z->f->op_count)
        instr.node = z->f->ops[position].node;
    SBP_PUSH(z->p->arena, s->instrs, s->instr_count, s->instr_capacity, instr);
    return &s->instrs[s->instr_count - 1];
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

void sbp_fuse_colsum(sbp_fuser *z, sbp_value v, sbp_term src, int32_t position) {
    bool accumulates = z->accumulates[v] != SBP_NO_VALUE;
    sbp_term dst =
        accumulates ? sbp_fuse_view_term(as_row(z->stage->accums[z->accumulates[v]])) : sbp_fuse_term(z, v);
    sbp_term terms[SBP_COLSUM_OPERANDS] = {[SBP_COLSUM_DST] = dst, [SBP_COLSUM_SRC] = src};
    sbp_instr *colsum = sbp_fuse_instr(z, SBP_CMD_COLSUM, position, terms, SBP_COUNT(terms));
    colsum->attrs.u.reduce.beta = accumulates ? 1 : 0;
}
