/* reduce: dst[0,0] = beta dst[0,0] + op over all elements of src, in fp64.
 *
 *   dst  [1, 1], f64              read and written
 *   src  [rows, cols], a float
 *
 * They do not overlap. Attributes: op, sum | max | sumsq (of squares); beta, 0 where it is not written. */
#include "ir/program/command.h"

#include <math.h>

void sbp_rows_reduce(sbp_row_rules *rules) {
    sbp_rows_add(rules, SBP_ROWS_EXACT, SBP_REDUCE_DST, -1, 1);
}

sbp_status sbp_check_reduce(const sbp_subject *s) {
    if (!isfinite(s->command->u.reduce.beta))
        return SBP_SUBJECT_FAIL(s, "c26", "beta is not finite");
    if ((unsigned)s->command->u.reduce.op >= SBP_REDUCE_COUNT)
        return SBP_SUBJECT_FAIL(s, "c26", "no reduction %d", (int)s->command->u.reduce.op);
    sbp_dtype dtype = sbp_subject_dtype(s, SBP_REDUCE_DST);
    if (dtype != SBP_F64)
        return SBP_SUBJECT_FAIL(s, "c20", "dst is %s, not f64", sbp_dtype_name(dtype));
    SBP_TRY(sbp_check_float(s, SBP_REDUCE_SRC));
    return sbp_check_exact_cols(s, SBP_REDUCE_DST, 1);
}

SBP_RULE_ACCESS_STATED(reduce)
SBP_RULE_ALIAS_NONE(reduce)

void sbp_text_reduce(sbp_fields *fields) {
    static const char *const ops[SBP_REDUCE_COUNT] = {"sum", "max", "sumsq"};
    sbp_command *reduce = fields->command;
    sbp_field_word(fields, "op", &reduce->u.reduce.op, ops, SBP_REDUCE_COUNT, "a reduction");
    sbp_field_double(fields, "beta", &reduce->u.reduce.beta, 0);
}

SBP_RULE_WORK_MEMORY(reduce)
