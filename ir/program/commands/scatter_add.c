/* scatter_add: dst[index[r],:] += src[r,:], rows with the same index added in the order of perm.
 *
 *   dst      [some, cols], a float      read and written
 *   src      [rows, cols], a float
 *   index    [rows, 1], i32 or i64      a row input: a column
 *   perm     [rows, 1], i32 or i64      that column's order: rows of src, relative to the view, sorted by
 *                                       index
 *   segment  [rows, 1], i32 or i64      its segment: the number of rows with the same index where sorted
 *                                       position k is the first of them, else 0
 *
 * Nothing overlaps dst. perm and segment are one whole chunk of what they were sorted in; index names rows of
 * dst: the executor looks at the numbers. */
#include "ir/program/command.h"

void sbp_rows_scatter_add(sbp_row_rules *rules) {
    sbp_rows_add(rules, SBP_ROWS_SAME, SBP_SCATTER_ADD_SRC, SBP_SCATTER_ADD_INDEX, 0);
    sbp_rows_add(rules, SBP_ROWS_ALIGNED, SBP_SCATTER_ADD_PERM, SBP_SCATTER_ADD_INDEX, 0);
    sbp_rows_add(rules, SBP_ROWS_ALIGNED, SBP_SCATTER_ADD_SEGMENT, SBP_SCATTER_ADD_INDEX, 0);
    const sbp_program *program = rules->program;
    for (int32_t r = 0; r < program->row_input_count; r++)
        if (program->row_inputs[r].buffer == rules->command->views[SBP_SCATTER_ADD_PERM].ref)
            sbp_rows_add(rules, SBP_ROWS_ORDER, SBP_SCATTER_ADD_PERM, -1,
                         (int64_t)program->row_inputs[r].chunk);
    sbp_rows_add(rules, SBP_ROWS_NAMED, SBP_SCATTER_ADD_INDEX, SBP_SCATTER_ADD_DST, 0);
}

sbp_status sbp_check_scatter_add(const sbp_subject *s) {
    SBP_TRY(sbp_check_float(s, SBP_SCATTER_ADD_DST));
    SBP_TRY(sbp_check_float(s, SBP_SCATTER_ADD_SRC));
    SBP_TRY(sbp_check_same_cols(s, SBP_SCATTER_ADD_DST, SBP_SCATTER_ADD_SRC));
    SBP_TRY(sbp_check_index(s, SBP_SCATTER_ADD_INDEX));
    SBP_TRY(sbp_check_index(s, SBP_SCATTER_ADD_PERM));
    SBP_TRY(sbp_check_index(s, SBP_SCATTER_ADD_SEGMENT));
    SBP_TRY(sbp_check_input(s, SBP_SCATTER_ADD_INDEX, SBP_ROW_COLUMN, NULL));
    const char *column = sbp_subject_input(s, SBP_SCATTER_ADD_INDEX)->column;
    SBP_TRY(sbp_check_input(s, SBP_SCATTER_ADD_PERM, SBP_ROW_ORDER, column));
    SBP_TRY(sbp_check_input(s, SBP_SCATTER_ADD_SEGMENT, SBP_ROW_SEGMENT, column));
    if (sbp_subject_input(s, SBP_SCATTER_ADD_PERM)->chunk !=
        sbp_subject_input(s, SBP_SCATTER_ADD_SEGMENT)->chunk)
        return SBP_SUBJECT_FAIL(s, "c27", "perm and segment are sorted in different chunks");
    return SBP_OK;
}

SBP_RULE_ACCESS_STATED(scatter_add)
SBP_RULE_ALIAS_NONE(scatter_add)
SBP_RULE_TEXT_NONE(scatter_add)

/* No more rows of dst are touched than there are in src. */
void sbp_work_scatter_add(const sbp_work_query *q, sbp_work *out) {
    out->bytes = sbp_work_bytes(q, SBP_SCATTER_ADD_DST, SBP_SCATTER_ADD_SRC);
}
