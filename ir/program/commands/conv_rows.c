/* conv_rows: a short causal convolution over rows, channel by channel, and the rows that the
 * next chunk needs.
 *
 *   y      [rows, n], x's type           written, where anybody reads it
 *   next   [1, (taps-1) n], x's type     written, where it is kept: the last taps-1 rows of state and x
 *   x      [rows, n], a float            row j is row x.first_row + j of the sequence
 *   w      [n, taps], x's type           there with y; taps >= 2
 *   bias?  [1, n], x's type
 *   first  [rows, 1], i32 or i64         there with y: the row input of this name
 *   state  [1, (taps-1) n], x's type     the taps-1 rows before x, the last one nearest
 *
 *   y[j] = bias + sum over s < taps of w[taps-1-s] x[j-s]      x[-1] the last row of state
 *
 * of those s for which row j-s is not before first[j]: others are not read. Sums are in fp64 where x is, else
 * in fp32, rounded once. next may be the same memory as state; nothing else overlaps what is written. */
#include "ir/program/command.h"

#include "ir/program/commands/conv_rows.h"

void sbp_rows_conv_rows(sbp_row_rules *rules) {
    sbp_rows_add(rules, SBP_ROWS_SAME, SBP_CONV_ROWS_Y, SBP_CONV_ROWS_X, 0);
    sbp_rows_add(rules, SBP_ROWS_ALIGNED, SBP_CONV_ROWS_FIRST, SBP_CONV_ROWS_X, 0);
    sbp_rows_add(rules, SBP_ROWS_EXACT, SBP_CONV_ROWS_W, -1, rules->command->views[SBP_CONV_ROWS_X].cols);
    sbp_rows_add(rules, SBP_ROWS_EXACT, SBP_CONV_ROWS_BIAS, -1, 1);
    sbp_rows_add(rules, SBP_ROWS_EXACT, SBP_CONV_ROWS_NEXT, -1, 1);
    sbp_rows_add(rules, SBP_ROWS_EXACT, SBP_CONV_ROWS_STATE, -1, 1);
}

sbp_status sbp_check_conv_rows(const sbp_subject *s) {
    bool makes_y = sbp_subject_has(s, SBP_CONV_ROWS_Y);
    if (makes_y != sbp_subject_has(s, SBP_CONV_ROWS_W) ||
        makes_y != sbp_subject_has(s, SBP_CONV_ROWS_FIRST) ||
        (!makes_y && sbp_subject_has(s, SBP_CONV_ROWS_BIAS)))
        return SBP_SUBJECT_FAIL(s, "c26", "y, w and first are there together, bias with them alone");
    if (!makes_y && !sbp_subject_has(s, SBP_CONV_ROWS_NEXT))
        return SBP_SUBJECT_FAIL(s, "c26", "neither y nor next is there");
    SBP_TRY(sbp_conv_check(s, SBP_CONV_ROWS_X, SBP_CONV_ROWS_W, SBP_CONV_ROWS_FIRST, SBP_CONV_ROWS_STATE));
    SBP_TRY(sbp_check_same_cols(s, SBP_CONV_ROWS_Y, SBP_CONV_ROWS_X));
    SBP_TRY(sbp_check_same_cols(s, SBP_CONV_ROWS_BIAS, SBP_CONV_ROWS_X));
    SBP_TRY(sbp_check_same_cols(s, SBP_CONV_ROWS_NEXT, SBP_CONV_ROWS_STATE));
    SBP_TRY(sbp_check_same_dtype(s, SBP_CONV_ROWS_Y, SBP_CONV_ROWS_X));
    SBP_TRY(sbp_check_same_dtype(s, SBP_CONV_ROWS_BIAS, SBP_CONV_ROWS_X));
    return sbp_check_same_dtype(s, SBP_CONV_ROWS_NEXT, SBP_CONV_ROWS_X);
}

SBP_RULE_ACCESS_STATED(conv_rows)

bool sbp_alias_conv_rows(const sbp_rowkernel *kernel, int32_t written, int32_t other) {
    (void)kernel;
    return written == SBP_CONV_ROWS_NEXT && other == SBP_CONV_ROWS_STATE;
}

SBP_RULE_TEXT_NONE(conv_rows)
SBP_RULE_WORK_MEMORY(conv_rows)

/* ---- shared with conv_rows_bwd ---------------------------------------------------------------------- */

sbp_status sbp_conv_check(const sbp_subject *s, int32_t x, int32_t w, int32_t first, int32_t state) {
    int64_t n = sbp_subject_cols(s, x), kept = sbp_subject_cols(s, state);
    SBP_TRY(sbp_check_float(s, x));
    SBP_TRY(sbp_check_same_dtype(s, state, x));
    if (n < 1 || kept < n || kept % n != 0 || kept / n >= SBP_CONV_MOST_TAPS)
        return SBP_SUBJECT_FAIL(s, "c19",
                                "a state of %lld columns for %lld channels; 1 to %d rows of them fit",
                                (long long)kept, (long long)n, SBP_CONV_MOST_TAPS - 1);
    if (!sbp_subject_has(s, w))
        return SBP_OK;
    SBP_TRY(sbp_check_same_dtype(s, w, x));
    SBP_TRY(sbp_check_exact_cols(s, w, kept / n + 1));
    SBP_TRY(sbp_check_index(s, first));
    return sbp_check_input(s, first, SBP_ROW_COLUMN, "first");
}
