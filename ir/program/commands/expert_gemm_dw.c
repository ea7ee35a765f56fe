/* expert_gemm_dw: d[e] = d[e] + the sum over the slots of expert e, in their order, of a^T b.
 *
 *   d       [experts, n m], f64 where a is, else f32    written; read, too, where it `adds`
 *   a       [rows, n]; with a_by_slot [rows, k n]        what a slot has of it: a row of n
 *   b       [rows, m]; with b_by_slot [rows, k m]        of a's type
 *   pairs   [rows, k], i32                               of expert_order
 *   bounds  [1, experts + 1], i32                        likewise
 *
 * Sums as in gemm. An expert without slots gets 0; where the command adds its d is left alone, as that of one
 * whose bounds or pairs are not in range. Nothing overlaps d.
 *
 * Attributes: a_by_slot, b_by_slot, adds. */
#include "ir/program/command.h"

#include "ir/program/commands/experts.h"

void sbp_rows_expert_gemm_dw(sbp_row_rules *rules) {
    int64_t experts = rules->command->views[SBP_EXPERT_GEMM_DW_BOUNDS].cols - 1;
    sbp_rows_add(rules, SBP_ROWS_EXACT, SBP_EXPERT_GEMM_DW_D, -1, experts);
    sbp_rows_add(rules, SBP_ROWS_SAME, SBP_EXPERT_GEMM_DW_A, SBP_EXPERT_GEMM_DW_PAIRS, 0);
    sbp_rows_add(rules, SBP_ROWS_SAME, SBP_EXPERT_GEMM_DW_B, SBP_EXPERT_GEMM_DW_PAIRS, 0);
    sbp_rows_add(rules, SBP_ROWS_EXACT, SBP_EXPERT_GEMM_DW_BOUNDS, -1, 1);
}

sbp_status sbp_check_expert_gemm_dw(const sbp_subject *s) {
    bool a_by_slot = s->command->u.experts.a_by_slot, b_by_slot = s->command->u.experts.b_by_slot;
    int64_t k = sbp_subject_cols(s, SBP_EXPERT_GEMM_DW_PAIRS);
    SBP_TRY(sbp_check_float(s, SBP_EXPERT_GEMM_DW_A));
    SBP_TRY(sbp_check_same_dtype(s, SBP_EXPERT_GEMM_DW_B, SBP_EXPERT_GEMM_DW_A));
    SBP_TRY(sbp_check_wide(s, SBP_EXPERT_GEMM_DW_D, SBP_EXPERT_GEMM_DW_A));
    SBP_TRY(sbp_experts_check(s, SBP_EXPERT_GEMM_DW_PAIRS, SBP_EXPERT_GEMM_DW_BOUNDS));
    SBP_TRY(sbp_experts_check_slots(s, SBP_EXPERT_GEMM_DW_A, SBP_EXPERT_GEMM_DW_PAIRS, a_by_slot));
    SBP_TRY(sbp_experts_check_slots(s, SBP_EXPERT_GEMM_DW_B, SBP_EXPERT_GEMM_DW_PAIRS, b_by_slot));
    int64_t n = sbp_subject_cols(s, SBP_EXPERT_GEMM_DW_A) / (a_by_slot ? k : 1);
    int64_t m = sbp_subject_cols(s, SBP_EXPERT_GEMM_DW_B) / (b_by_slot ? k : 1);
    return sbp_check_exact_cols(s, SBP_EXPERT_GEMM_DW_D, n * m);
}

sbp_access sbp_access_expert_gemm_dw(const sbp_command *command, int32_t operand, sbp_access stated) {
    return operand == SBP_EXPERT_GEMM_DW_D && command->u.experts.adds ? SBP_UPDATE : stated;
}

SBP_RULE_ALIAS_NONE(expert_gemm_dw)

void sbp_text_expert_gemm_dw(sbp_fields *fields) {
    sbp_field_flag(fields, "a_by_slot", &fields->command->u.experts.a_by_slot);
    sbp_field_flag(fields, "b_by_slot", &fields->command->u.experts.b_by_slot);
    sbp_field_flag(fields, "adds", &fields->command->u.experts.adds);
}

/* 2 n m of each slot. Experts that are touched are read and written: no more of them than slots. */
void sbp_work_expert_gemm_dw(const sbp_work_query *q, sbp_work *out) {
    const sbp_operand_shape *pairs = &q->operands[SBP_EXPERT_GEMM_DW_PAIRS],
                            *d = &q->operands[SBP_EXPERT_GEMM_DW_D];
    double slots = (double)pairs->rows * (double)pairs->cols, touched = (double)d->rows;
    if (touched > slots)
        touched = slots;
    double d_bytes = (double)d->cols * (double)sbp_dtype_bytes(d->dtype);
    out->bytes += d_bytes * ((q->command->u.experts.adds ? 2 : 1) * touched - (double)d->rows);
    out->kind = SBP_WORK_EXPERTS;
    out->flops = 2 * slots * (double)d->cols;
    out->rows = d->rows > 0 && pairs->rows > 0 ? slots / (double)d->rows : 0;
    out->dtype = q->operands[SBP_EXPERT_GEMM_DW_A].dtype;
}
