/* expert_order: the slots of rows in the order of the experts that they go to.
 *
 *   pairs   [rows, k], i32           written: r k + j of slot j of row r, those of expert 0 first, each
 *                                    expert's in the order of rows and of slots
 *   bounds  [1, experts + 1], i32    written: expert e has pairs bounds[e] .. bounds[e+1] - 1, counted as if
 *                                    pairs were one row
 *   index   [rows, k], i32           an expert per slot
 *
 * A slot whose index names no expert is left out: bounds end before it, and the last elements of pairs, one
 * for each such slot, are -1. Nothing overlaps. Bounds are the one kind of size that depends on what was
 * computed: expert_gemm and expert_gemm_dw, which read them, leave an expert out whose pairs are not in
 * range. */
#include "ir/program/command.h"

#include "ir/program/commands/experts.h"

void sbp_rows_expert_order(sbp_row_rules *rules) {
    sbp_rows_add(rules, SBP_ROWS_SAME, SBP_EXPERT_ORDER_PAIRS, SBP_EXPERT_ORDER_INDEX, 0);
    sbp_rows_add(rules, SBP_ROWS_EXACT, SBP_EXPERT_ORDER_BOUNDS, -1, 1);
}

static sbp_status check_i32(const sbp_subject *s, int32_t k) {
    if (sbp_subject_dtype(s, k) == SBP_I32)
        return SBP_OK;
    return SBP_SUBJECT_FAIL(s, "c20", "%s is %s, not i32", s->operands[k].name,
                            sbp_dtype_name(sbp_subject_dtype(s, k)));
}

sbp_status sbp_check_expert_order(const sbp_subject *s) {
    SBP_TRY(check_i32(s, SBP_EXPERT_ORDER_INDEX));
    SBP_TRY(sbp_check_same_cols(s, SBP_EXPERT_ORDER_PAIRS, SBP_EXPERT_ORDER_INDEX));
    return sbp_experts_check(s, SBP_EXPERT_ORDER_PAIRS, SBP_EXPERT_ORDER_BOUNDS);
}

SBP_RULE_ACCESS_STATED(expert_order)
SBP_RULE_ALIAS_NONE(expert_order)
SBP_RULE_TEXT_NONE(expert_order)
SBP_RULE_WORK_MEMORY(expert_order)

/* ---- shared with expert_gemm, expert_gemm_dw -------------------------------------------------------- */

sbp_status sbp_experts_check(const sbp_subject *s, int32_t pairs, int32_t bounds) {
    SBP_TRY(check_i32(s, pairs));
    SBP_TRY(check_i32(s, bounds));
    if (sbp_subject_cols(s, bounds) < 2)
        return SBP_SUBJECT_FAIL(s, "c19", "%s has %lld columns; one more than experts expected",
                                s->operands[bounds].name, (long long)sbp_subject_cols(s, bounds));
    return SBP_OK;
}

sbp_status sbp_experts_check_slots(const sbp_subject *s, int32_t operand, int32_t pairs, bool by_slot) {
    int64_t cols = sbp_subject_cols(s, operand), k = sbp_subject_cols(s, pairs);
    if (cols < 1 || (by_slot && cols % k != 0))
        return SBP_SUBJECT_FAIL(s, "c19", "%s has %lld columns for %lld slots", s->operands[operand].name,
                                (long long)cols, (long long)k);
    return SBP_OK;
}
