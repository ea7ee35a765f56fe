/* colsum: dst[0,:] = beta dst[0,:] + sum over rows of src.
 *
 *   dst  [1, cols], a float       read and written
 *   src  [rows, cols], a float
 *
 * They do not overlap. Attribute: beta, 0 where it is not written. */
#include "ir/program/command.h"

#include <math.h>

void sbp_rows_colsum(sbp_row_rules *rules) {
    sbp_rows_add(rules, SBP_ROWS_EXACT, SBP_COLSUM_DST, -1, 1);
}

sbp_status sbp_check_colsum(const sbp_subject *s) {
    if (!isfinite(s->command->u.reduce.beta))
        return SBP_SUBJECT_FAIL(s, "c26", "beta is not finite");
    SBP_TRY(sbp_check_float(s, SBP_COLSUM_DST));
    SBP_TRY(sbp_check_float(s, SBP_COLSUM_SRC));
    return sbp_check_same_cols(s, SBP_COLSUM_DST, SBP_COLSUM_SRC);
}

SBP_RULE_ACCESS_STATED(colsum)
SBP_RULE_ALIAS_NONE(colsum)

void sbp_text_colsum(sbp_fields *fields) {
    sbp_field_double(fields, "beta", &fields->command->u.reduce.beta, 0);
}

SBP_RULE_WORK_MEMORY(colsum)
