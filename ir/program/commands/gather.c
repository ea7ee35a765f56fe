/* gather: dst[r,:] = table[index[r],:], rounded to dst's type.
 *
 *   dst    [rows, cols], a float        written
 *   table  [some, cols], a float
 *   index  [rows, 1], i32 or i64        a row input: a column, or the pick or rank of counted rows
 *
 * Nothing overlaps dst. index names rows of table: the executor looks at the numbers. */
#include "ir/program/command.h"

void sbp_rows_gather(sbp_row_rules *rules) {
    sbp_rows_add(rules, SBP_ROWS_SAME, SBP_GATHER_DST, SBP_GATHER_INDEX, 0);
    sbp_rows_add(rules, SBP_ROWS_NAMED, SBP_GATHER_INDEX, SBP_GATHER_TABLE, 0);
}

sbp_status sbp_check_gather(const sbp_subject *s) {
    SBP_TRY(sbp_check_float(s, SBP_GATHER_DST));
    SBP_TRY(sbp_check_float(s, SBP_GATHER_TABLE));
    SBP_TRY(sbp_check_same_cols(s, SBP_GATHER_DST, SBP_GATHER_TABLE));
    SBP_TRY(sbp_check_index(s, SBP_GATHER_INDEX));
    const sbp_row_input *index = sbp_subject_input(s, SBP_GATHER_INDEX);
    if (index && (index->kind == SBP_ROW_PICK || index->kind == SBP_ROW_RANK))
        return SBP_OK;
    return sbp_check_input(s, SBP_GATHER_INDEX, SBP_ROW_COLUMN, NULL);
}

SBP_RULE_ACCESS_STATED(gather)
SBP_RULE_ALIAS_NONE(gather)
SBP_RULE_TEXT_NONE(gather)

/* At most dst's number of rows of the table is read. */
void sbp_work_gather(const sbp_work_query *q, sbp_work *out) {
    out->bytes = sbp_work_bytes(q, SBP_GATHER_TABLE, SBP_GATHER_DST);
}
