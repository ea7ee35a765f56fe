/* expert_gemm: d = a op(b[e]) + bias[e] in every slot, e the expert that the slot goes to.
 *
 *   d       [rows, k n], a float            written: slot j of row r is d[r, j n .. (j+1) n - 1]
 *   a       [rows, m]                       read by all slots of a row; by_slot: [rows, k m]
 *   b       [experts, n m], a's type        a matrix each: op(b) with tb transposes [n, m], else [m, n]
 *   bias?   [experts, n], a float
 *   pairs   [rows, k], i32                  of expert_order
 *   bounds  [1, experts + 1], i32           likewise
 *
 * Sums as in gemm: an element has the bits that gemm gives it. Slots of an expert whose bounds are not within
 * pairs, or whose pairs are not within rows k, are not written. Nothing overlaps d.
 *
 * b, bias and bounds may be those of a run of neighbouring experts out of `of` in all: then slots of the
 * others are not written, and with `more` they hold what earlier commands for other runs wrote.
 *
 * Attributes: tb, a_by_slot, of, more. */
#include "ir/program/command.h"

#include "ir/program/commands/experts.h"

void sbp_rows_expert_gemm(sbp_row_rules *rules) {
    int64_t experts = rules->command->views[SBP_EXPERT_GEMM_BOUNDS].cols - 1;
    sbp_rows_add(rules, SBP_ROWS_SAME, SBP_EXPERT_GEMM_D, SBP_EXPERT_GEMM_PAIRS, 0);
    sbp_rows_add(rules, SBP_ROWS_SAME, SBP_EXPERT_GEMM_A, SBP_EXPERT_GEMM_PAIRS, 0);
    sbp_rows_add(rules, SBP_ROWS_EXACT, SBP_EXPERT_GEMM_B, -1, experts);
    sbp_rows_add(rules, SBP_ROWS_EXACT, SBP_EXPERT_GEMM_BIAS, -1, experts);
    sbp_rows_add(rules, SBP_ROWS_EXACT, SBP_EXPERT_GEMM_BOUNDS, -1, 1);
}

sbp_status sbp_check_expert_gemm(const sbp_subject *s) {
    bool by_slot = s->command->u.experts.a_by_slot;
    int64_t k = sbp_subject_cols(s, SBP_EXPERT_GEMM_PAIRS);
    SBP_TRY(sbp_check_float(s, SBP_EXPERT_GEMM_D));
    SBP_TRY(sbp_check_float(s, SBP_EXPERT_GEMM_A));
    SBP_TRY(sbp_check_float(s, SBP_EXPERT_GEMM_BIAS));
    SBP_TRY(sbp_check_same_dtype(s, SBP_EXPERT_GEMM_B, SBP_EXPERT_GEMM_A));
    SBP_TRY(sbp_experts_check(s, SBP_EXPERT_GEMM_PAIRS, SBP_EXPERT_GEMM_BOUNDS));
    SBP_TRY(sbp_experts_check_slots(s, SBP_EXPERT_GEMM_D, SBP_EXPERT_GEMM_PAIRS, true));
    SBP_TRY(sbp_experts_check_slots(s, SBP_EXPERT_GEMM_A, SBP_EXPERT_GEMM_PAIRS, by_slot));
    int64_t n = sbp_subject_cols(s, SBP_EXPERT_GEMM_D) / k;
    int64_t m = sbp_subject_cols(s, SBP_EXPERT_GEMM_A) / (by_slot ? k : 1);
    SBP_TRY(sbp_check_exact_cols(s, SBP_EXPERT_GEMM_B, n * m));
    int64_t of = s->command->u.experts.of, experts = sbp_subject_cols(s, SBP_EXPERT_GEMM_BOUNDS) - 1;
    if (of != 0 && of < experts)
        return SBP_SUBJECT_FAIL(s, "c26", "%lld experts of %lld", (long long)experts, (long long)of);
    return sbp_check_exact_cols(s, SBP_EXPERT_GEMM_BIAS, n);
}

sbp_access sbp_access_expert_gemm(const sbp_command *command, int32_t operand, sbp_access stated) {
    return operand == SBP_EXPERT_GEMM_D && command->u.experts.more ? SBP_UPDATE : stated;
}

SBP_RULE_ALIAS_NONE(expert_gemm)

void sbp_text_expert_gemm(sbp_fields *fields) {
    sbp_field_flag(fields, "tb", &fields->command->u.experts.tb);
    sbp_field_flag(fields, "a_by_slot", &fields->command->u.experts.a_by_slot);
    sbp_field_int(fields, "of", &fields->command->u.experts.of);
    sbp_field_flag(fields, "more", &fields->command->u.experts.more);
}

/* 2 n m operations for each slot, divided evenly among experts. No more experts are read than there are
 * slots. A command for a run of experts has their part of the slots. */
void sbp_work_expert_gemm(const sbp_work_query *q, sbp_work *out) {
    const sbp_operand_shape *pairs = &q->operands[SBP_EXPERT_GEMM_PAIRS],
                            *b = &q->operands[SBP_EXPERT_GEMM_B];
    double slots = (double)pairs->rows * (double)pairs->cols;
    if (q->command->u.experts.of > 0) {
        double part = (double)b->rows / (double)q->command->u.experts.of;
        double b_bytes = (double)b->rows * (double)b->cols * (double)sbp_dtype_bytes(b->dtype);
        out->bytes = b_bytes + (sbp_work_bytes(q, -1, -1) - b_bytes) * part;
        slots *= part;
    }
    if (slots < (double)b->rows)
        out->bytes -= ((double)b->rows - slots) * (double)b->cols * (double)sbp_dtype_bytes(b->dtype);
    out->kind = SBP_WORK_EXPERTS;
    out->flops = 2 * slots * (double)b->cols;
    out->rows = b->rows > 0 ? slots / (double)b->rows : 0;
    out->dtype = b->dtype;
}
