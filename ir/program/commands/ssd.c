/* ssd: Mamba-2: a matrix per head that decays and to which each row adds one of rank 1.
 *
 *   y       [rows, H p], x's type          written, where anybody reads it
 *   next    [1, H n p], wide               written, where it is kept: S behind the last row
 *   c       [rows, G n], b's type          there with y
 *   b       [rows, G n], a float           row j is row b.first_row + j of the sequence
 *   x       [rows, H p], b's type
 *   decay   [rows, H], wide                the logarithm of a factor, 0 or less
 *   dt      [rows, H], wide
 *   first   [rows, 1], i32 or i64          the row input of this name: where a row's document begins
 *   state   [1, H n p], wide               S before the first row
 *   work?   [ceil(rows / SBP_DELTA_BLOCK) or more, any], wide   workspace, if the target asks for it
 *
 * H heads (attribute heads), G groups (key_heads), n (d_k), p (d_v); wide: f64 where b is, else f32. Head h
 * has columns h p .. of x, and columns h / (H/G) n .. of c and b; its S is [n, p], row after row, from column
 * h n p of a state. Row by row, where S is 0 before the first row of a document, whatever it held:
 *
 *   S <- e^decay S + dt b x^T;   y = S^T c
 *
 * A device makes products of the rows of a block at a time, as of delta_rule (delta_rule.c says which
 * these are, and what this means for bits). With C, B, X of its rows, c the running sum of decay in
 * them, S before them:
 *
 *   D = diag(dt) X                                     P_ij = e^(c_i - c_j) C_i.B_j, j <= i
 *   Y = diag(e^c) C S + P D
 *   S <- e^(c_L) S + (diag(e^(c_L - c)) B)^T D
 *
 * Exponents are never above 0: they are computed as differences. In the row where a document begins decay
 * means nothing, for S is 0. Sums and all in between are wide; what would be subnormal there may be 0. Where
 * b is bf16, or f16, a device may round factors of products to that type; the CPU does not. next may be the
 * same memory as state; nothing else overlaps what is written. */
#include "ir/program/commands/delta_rule.h"

static const sbp_delta_operands operands = {.q = SBP_SSD_C,
                                            .k = SBP_SSD_B,
                                            .v = SBP_SSD_X,
                                            .decay = SBP_SSD_DECAY,
                                            .beta = SBP_SSD_DT,
                                            .first = SBP_SSD_FIRST,
                                            .state = SBP_SSD_STATE,
                                            .work = SBP_SSD_WORK};

/* Whoever has to do with both goes by these places. */
_Static_assert((int)SBP_SSD_Y == (int)SBP_DELTA_RULE_O && (int)SBP_SSD_NEXT == (int)SBP_DELTA_RULE_NEXT &&
                   (int)SBP_SSD_C == (int)SBP_DELTA_RULE_Q && (int)SBP_SSD_B == (int)SBP_DELTA_RULE_K &&
                   (int)SBP_SSD_OPERANDS == (int)SBP_DELTA_RULE_OPERANDS,
               "operands in the order of those of delta_rule");

void sbp_rows_ssd(sbp_row_rules *rules) {
    sbp_delta_rows(rules, &operands);
    sbp_rows_add(rules, SBP_ROWS_SAME, SBP_SSD_Y, SBP_SSD_B, 0);
    sbp_rows_add(rules, SBP_ROWS_EXACT, SBP_SSD_NEXT, -1, 1);
}

sbp_status sbp_check_ssd(const sbp_subject *s) {
    if (sbp_subject_has(s, SBP_SSD_Y) != sbp_subject_has(s, SBP_SSD_C))
        return SBP_SUBJECT_FAIL(s, "c26", "y and c are there together");
    if (!sbp_subject_has(s, SBP_SSD_Y) && !sbp_subject_has(s, SBP_SSD_NEXT))
        return SBP_SUBJECT_FAIL(s, "c26", "neither y nor next is there");
    SBP_TRY(sbp_delta_check(s, &operands));
    SBP_TRY(sbp_check_same_cols(s, SBP_SSD_Y, SBP_SSD_X));
    SBP_TRY(sbp_check_same_cols(s, SBP_SSD_NEXT, SBP_SSD_STATE));
    SBP_TRY(sbp_check_same_dtype(s, SBP_SSD_Y, SBP_SSD_B));
    return sbp_check_wide(s, SBP_SSD_NEXT, SBP_SSD_B);
}

SBP_RULE_ACCESS_STATED(ssd)

bool sbp_alias_ssd(const sbp_rowkernel *kernel, int32_t written, int32_t other) {
    (void)kernel;
    return written == SBP_SSD_NEXT && other == SBP_SSD_STATE;
}

void sbp_text_ssd(sbp_fields *fields) {
    sbp_delta_text(fields);
}

/* B^T D; with y also C S, C B^T and P D. */
void sbp_work_ssd(const sbp_work_query *q, sbp_work *out) {
    bool makes_y = q->operands[SBP_SSD_Y].space != SBP_SPACE_COUNT;
    sbp_delta_work(q, SBP_SSD_B, makes_y ? 2 : 1, makes_y ? 1 : 0, makes_y ? 1 : 0, out);
}
