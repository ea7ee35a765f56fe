/* scatter: dst[index[r],:] = src[r,:].
 *
 *   dst    [some, cols], a float        read and written: rows that index does not name stay
 *   src    [rows, cols], of dst's type
 *   index  [rows, 1], i32 or i64        a row input: a column
 *
 * src may be rows of dst, none of which index names but for its own place; no other two rows go to the same.
 * index names rows of dst: the executor looks at the numbers. */
#include "ir/program/command.h"

void sbp_rows_scatter(sbp_row_rules *rules) {
    sbp_rows_add(rules, SBP_ROWS_SAME, SBP_SCATTER_SRC, SBP_SCATTER_INDEX, 0);
    sbp_rows_add(rules, SBP_ROWS_NAMED, SBP_SCATTER_INDEX, SBP_SCATTER_DST, 0);
}

sbp_status sbp_check_scatter(const sbp_subject *s) {
    SBP_TRY(sbp_check_float(s, SBP_SCATTER_DST));
    SBP_TRY(sbp_check_same_dtype(s, SBP_SCATTER_DST, SBP_SCATTER_SRC));
    SBP_TRY(sbp_check_same_cols(s, SBP_SCATTER_DST, SBP_SCATTER_SRC));
    SBP_TRY(sbp_check_index(s, SBP_SCATTER_INDEX));
    return sbp_check_input(s, SBP_SCATTER_INDEX, SBP_ROW_COLUMN, NULL);
}

bool sbp_alias_scatter(const sbp_rowkernel *kernel, int32_t written, int32_t other) {
    (void)kernel;
    return written == SBP_SCATTER_DST && other == SBP_SCATTER_SRC;
}

SBP_RULE_ACCESS_STATED(scatter)
SBP_RULE_TEXT_NONE(scatter)

/* No more rows of dst are touched than there are in src. */
void sbp_work_scatter(const sbp_work_query *q, sbp_work *out) {
    out->bytes = sbp_work_bytes(q, SBP_SCATTER_DST, SBP_SCATTER_SRC);
}
