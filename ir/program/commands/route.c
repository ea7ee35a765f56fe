/* route: index[r, :] = the columns of the k largest of scores[r, :], the largest first.
 *
 *   index   [rows, k], i32              written; 1 <= k <= experts
 *   scores  [rows, experts], a float
 *
 * Where scores are equal the lower column comes first. NaN is smaller than every number, so that index has k
 * different columns whatever scores holds. They do not overlap. */
#include "ir/program/command.h"

void sbp_rows_route(sbp_row_rules *rules) {
    sbp_rows_add(rules, SBP_ROWS_SAME, SBP_ROUTE_INDEX, SBP_ROUTE_SCORES, 0);
}

sbp_status sbp_check_route(const sbp_subject *s) {
    int64_t k = sbp_subject_cols(s, SBP_ROUTE_INDEX), experts = sbp_subject_cols(s, SBP_ROUTE_SCORES);
    SBP_TRY(sbp_check_float(s, SBP_ROUTE_SCORES));
    if (sbp_subject_dtype(s, SBP_ROUTE_INDEX) != SBP_I32)
        return SBP_SUBJECT_FAIL(s, "c20", "index is %s, not i32",
                                sbp_dtype_name(sbp_subject_dtype(s, SBP_ROUTE_INDEX)));
    if (k < 1 || k > experts)
        return SBP_SUBJECT_FAIL(s, "c19", "%lld of %lld columns", (long long)k, (long long)experts);
    return SBP_OK;
}

SBP_RULE_ACCESS_STATED(route)
SBP_RULE_ALIAS_NONE(route)
SBP_RULE_TEXT_NONE(route)
SBP_RULE_WORK_MEMORY(route)
