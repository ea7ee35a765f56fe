/* gemm: d = alpha op(a) op(b) + beta c + bias, where op transposes when ta / tb.
 *
 *   d     [m, n]                   written
 *   a     [m, k]; with ta [k, m]
 *   b     [k, n]; with tb [n, k]   of a's type
 *   c?    [m, n]                   absent: beta counts as 0
 *   bias? [1, n]                   added to every row
 *
 * d may be the memory of c, never of a, b or bias. All are floats; d, c and bias may have types of their own.
 * Products are summed in fp32 (fp64 when d is f64), where a and b are bf16 a device may take what is below
 * 2^-126 for 0.
 *
 * Attributes: ta, tb; alpha = 1, beta = 0 where they are not written. */
#include "ir/program/command.h"

#include <math.h>

/* Columns are compared by the check rule; what is a size of rows beside columns, here. */
void sbp_rows_gemm(sbp_row_rules *rules) {
    const sbp_view *views = rules->command->views;
    bool ta = rules->command->u.gemm.ta, tb = rules->command->u.gemm.tb;
    if (ta)
        sbp_rows_add(rules, SBP_ROWS_EXACT, SBP_GEMM_D, -1, views[SBP_GEMM_A].cols);
    else
        sbp_rows_add(rules, SBP_ROWS_SAME, SBP_GEMM_D, SBP_GEMM_A, 0);
    if (ta && tb)
        sbp_rows_add(rules, SBP_ROWS_EXACT, SBP_GEMM_A, -1, views[SBP_GEMM_B].cols);
    else if (ta)
        sbp_rows_add(rules, SBP_ROWS_SAME, SBP_GEMM_A, SBP_GEMM_B, 0);
    else if (tb)
        sbp_rows_add(rules, SBP_ROWS_EXACT, SBP_GEMM_B, -1, views[SBP_GEMM_D].cols);
    else
        sbp_rows_add(rules, SBP_ROWS_EXACT, SBP_GEMM_B, -1, views[SBP_GEMM_A].cols);
    if (ta && tb)
        sbp_rows_add(rules, SBP_ROWS_EXACT, SBP_GEMM_B, -1, views[SBP_GEMM_D].cols);
    sbp_rows_add(rules, SBP_ROWS_SAME, SBP_GEMM_C, SBP_GEMM_D, 0);
    sbp_rows_add(rules, SBP_ROWS_EXACT, SBP_GEMM_BIAS, -1, 1);
}

sbp_status sbp_check_gemm(const sbp_subject *s) {
    bool ta = s->command->u.gemm.ta, tb = s->command->u.gemm.tb;
    if (!isfinite(s->command->u.gemm.alpha) || !isfinite(s->command->u.gemm.beta))
        return SBP_SUBJECT_FAIL(s, "c26", "alpha or beta is not finite");
    for (int32_t k = 0; k < SBP_GEMM_OPERANDS; k++)
        SBP_TRY(sbp_check_float(s, k));
    SBP_TRY(sbp_check_same_dtype(s, SBP_GEMM_A, SBP_GEMM_B));
    if (!ta && tb)
        SBP_TRY(sbp_check_same_cols(s, SBP_GEMM_A, SBP_GEMM_B)); /* the inner size */
    if (!tb)
        SBP_TRY(sbp_check_same_cols(s, SBP_GEMM_D, SBP_GEMM_B));
    SBP_TRY(sbp_check_same_cols(s, SBP_GEMM_C, SBP_GEMM_D));
    return sbp_check_same_cols(s, SBP_GEMM_BIAS, SBP_GEMM_D);
}

SBP_RULE_ACCESS_STATED(gemm)

bool sbp_alias_gemm(const sbp_rowkernel *kernel, int32_t written, int32_t other) {
    (void)kernel;
    return written == SBP_GEMM_D && other == SBP_GEMM_C;
}

void sbp_text_gemm(sbp_fields *fields) {
    sbp_command *gemm = fields->command;
    sbp_field_flag(fields, "ta", &gemm->u.gemm.ta);
    sbp_field_flag(fields, "tb", &gemm->u.gemm.tb);
    sbp_field_double(fields, "alpha", &gemm->u.gemm.alpha, 1);
    sbp_field_double(fields, "beta", &gemm->u.gemm.beta, 0);
}

/* 2 m n k */
void sbp_work_gemm(const sbp_work_query *q, sbp_work *out) {
    const sbp_operand_shape *d = &q->operands[SBP_GEMM_D], *b = &q->operands[SBP_GEMM_B];
    double d_elems = (double)d->rows * (double)d->cols, b_elems = (double)b->rows * (double)b->cols;
    double k = 0;
    if (d->cols > 0)
        k = q->command->u.gemm.tb ? (double)b->cols : b_elems / (double)d->cols;
    out->kind = SBP_WORK_MATMUL;
    out->flops = 2 * d_elems * k;
    out->rows = d->cols > 0 ? d_elems / (double)d->cols : 0;
    out->dtype = q->operands[SBP_GEMM_A].dtype;
}
