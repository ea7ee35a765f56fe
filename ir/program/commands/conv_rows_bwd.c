/* conv_rows_bwd: the gradients of conv_rows, given dy.
 *
 *   dx      [rows, n], x's type                 written, where anybody reads it
 *   dw      [ceil(rows / SBP_PARTIAL_ROWS), n taps], f64 where x is, else f32
 *                                               written, where w is trained: row b of the rows b*16 .. of x
 *   dstate  [1, (taps-1) n], dw's type          of next when it comes, of state when it goes
 *   dy      [rows, n], x's type
 *   x, w, first, state                          as conv_rows has them
 *
 *   dx[j]          = sum over s of w[taps-1-s] dy[j+s], of rows j+s that see row j; and dstate of the row of
 *                    next that is row j
 *   dw[taps-1-s]   = sum over j of dy[j] x[j-s], of rows j that see row j-s
 *   dstate         = the same as dx, of the rows of state
 *
 * A row of dy that sees no row of state leaves its part of dstate untouched by 0: what nobody sees is 0. Sums
 * as in conv_rows. Nothing overlaps what is written. */
#include "ir/program/command.h"

#include "ir/program/commands/conv_rows.h"

void sbp_rows_conv_rows_bwd(sbp_row_rules *rules) {
    sbp_rows_add(rules, SBP_ROWS_SAME, SBP_CONV_ROWS_BWD_DX, SBP_CONV_ROWS_BWD_X, 0);
    sbp_rows_add(rules, SBP_ROWS_BLOCKS, SBP_CONV_ROWS_BWD_DW, SBP_CONV_ROWS_BWD_X, 0);
    sbp_rows_add(rules, SBP_ROWS_EXACT, SBP_CONV_ROWS_BWD_DSTATE, -1, 1);
    sbp_rows_add(rules, SBP_ROWS_SAME, SBP_CONV_ROWS_BWD_DY, SBP_CONV_ROWS_BWD_X, 0);
    sbp_rows_add(rules, SBP_ROWS_EXACT, SBP_CONV_ROWS_BWD_W, -1,
                 rules->command->views[SBP_CONV_ROWS_BWD_X].cols);
    sbp_rows_add(rules, SBP_ROWS_ALIGNED, SBP_CONV_ROWS_BWD_FIRST, SBP_CONV_ROWS_BWD_X, 0);
    sbp_rows_add(rules, SBP_ROWS_EXACT, SBP_CONV_ROWS_BWD_STATE, -1, 1);
}

sbp_status sbp_check_conv_rows_bwd(const sbp_subject *s) {
    SBP_TRY(sbp_conv_check(s, SBP_CONV_ROWS_BWD_X, SBP_CONV_ROWS_BWD_W, SBP_CONV_ROWS_BWD_FIRST,
                           SBP_CONV_ROWS_BWD_STATE));
    int64_t n = sbp_subject_cols(s, SBP_CONV_ROWS_BWD_X), taps = sbp_subject_cols(s, SBP_CONV_ROWS_BWD_W);
    SBP_TRY(sbp_check_same_cols(s, SBP_CONV_ROWS_BWD_DX, SBP_CONV_ROWS_BWD_X));
    SBP_TRY(sbp_check_same_cols(s, SBP_CONV_ROWS_BWD_DY, SBP_CONV_ROWS_BWD_X));
    SBP_TRY(sbp_check_same_cols(s, SBP_CONV_ROWS_BWD_DSTATE, SBP_CONV_ROWS_BWD_STATE));
    SBP_TRY(sbp_check_exact_cols(s, SBP_CONV_ROWS_BWD_DW, n * taps));
    SBP_TRY(sbp_check_same_dtype(s, SBP_CONV_ROWS_BWD_DX, SBP_CONV_ROWS_BWD_X));
    SBP_TRY(sbp_check_same_dtype(s, SBP_CONV_ROWS_BWD_DY, SBP_CONV_ROWS_BWD_X));
    SBP_TRY(sbp_check_wide(s, SBP_CONV_ROWS_BWD_DSTATE, SBP_CONV_ROWS_BWD_X));
    return sbp_check_wide(s, SBP_CONV_ROWS_BWD_DW, SBP_CONV_ROWS_BWD_X);
}

SBP_RULE_ACCESS_STATED(conv_rows_bwd)
SBP_RULE_ALIAS_NONE(conv_rows_bwd)
SBP_RULE_TEXT_NONE(conv_rows_bwd)
SBP_RULE_WORK_MEMORY(conv_rows_bwd)
