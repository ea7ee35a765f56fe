/* ssd_bwd: the gradients of ssd, given dy.
 *
 *   dc, db   [rows, G n], b's type         written, where anybody reads them; summed over a group's H/G heads
 *   dx       [rows, H p], b's type         written, where anybody reads it
 *   ddecay, ddt  [rows, H], wide           written, where anybody reads them
 *   dstate   [1, H n p], wide              of next when it comes, of state when it goes
 *   dy       [rows, H p], b's type
 *   c, b, x, decay, dt, first, state       as ssd has them
 *   work     [ceil(rows / SBP_DELTA_BLOCK) or more, 2 H n p or more], wide   workspace
 *
 * work has room for S before each block and dS behind the one before it, in the row that delta_rule_bwd.c
 * says. Both are computed from block to block, and then blocks know no more of one another. For each block,
 * with the names of ssd.c and dS the gradient of the state behind it:
 *
 *   dD = P^T dY + diag(e^(c_L - c)) B dS               dX = diag(dt) dD;  ddt_i = dD_i.X_i
 *   dP_ij = dY_i.D_j, j <= i                           E_ij = dP_ij e^(c_i - c_j)
 *   dC = diag(e^c) dY S^T + E B
 *   dB = E^T C + diag(e^(c_L - c)) D dS^T
 *   dc: from every exponential;  ddecay = its sum over the rows behind, 0 in the row where a document begins
 *   dS <- e^(c_L) dS + (diag(e^c) C)^T dY, nothing where the block begins a document
 *
 * dS is 0 behind the last row of a document that does not end the rows, whatever dstate is. Sums and
 * roundings as in ssd; there are no atomics. Nothing overlaps what is written. Attributes: those of ssd. */
#include "ir/program/commands/delta_rule.h"

static const sbp_delta_operands operands = {.q = SBP_SSD_BWD_C,
                                            .k = SBP_SSD_BWD_B,
                                            .v = SBP_SSD_BWD_X,
                                            .decay = SBP_SSD_BWD_DECAY,
                                            .beta = SBP_SSD_BWD_DT,
                                            .first = SBP_SSD_BWD_FIRST,
                                            .state = SBP_SSD_BWD_STATE,
                                            .work = SBP_SSD_BWD_WORK};

_Static_assert((int)SBP_SSD_BWD_DC == (int)SBP_DELTA_RULE_BWD_DQ &&
                   (int)SBP_SSD_BWD_DDT == (int)SBP_DELTA_RULE_BWD_DBETA &&
                   (int)SBP_SSD_BWD_B == (int)SBP_DELTA_RULE_BWD_K &&
                   (int)SBP_SSD_BWD_OPERANDS == (int)SBP_DELTA_RULE_BWD_OPERANDS,
               "operands in the order of those of delta_rule_bwd");

void sbp_rows_ssd_bwd(sbp_row_rules *rules) {
    sbp_delta_rows(rules, &operands);
    for (int32_t k = SBP_SSD_BWD_DC; k <= SBP_SSD_BWD_DDT; k++)
        sbp_rows_add(rules, SBP_ROWS_SAME, k, SBP_SSD_BWD_B, 0);
    sbp_rows_add(rules, SBP_ROWS_EXACT, SBP_SSD_BWD_DSTATE, -1, 1);
    sbp_rows_add(rules, SBP_ROWS_SAME, SBP_SSD_BWD_DY, SBP_SSD_BWD_B, 0);
}

sbp_status sbp_check_ssd_bwd(const sbp_subject *s) {
    static const struct {
        int32_t operand, like;
        bool wide;
    } pairs[] = {{SBP_SSD_BWD_DC, SBP_SSD_BWD_B, false},  {SBP_SSD_BWD_DB, SBP_SSD_BWD_B, false},
                 {SBP_SSD_BWD_DX, SBP_SSD_BWD_X, false},  {SBP_SSD_BWD_DDECAY, SBP_SSD_BWD_DECAY, true},
                 {SBP_SSD_BWD_DDT, SBP_SSD_BWD_DT, true}, {SBP_SSD_BWD_DSTATE, SBP_SSD_BWD_STATE, true},
                 {SBP_SSD_BWD_DY, SBP_SSD_BWD_X, false}};
    SBP_TRY(sbp_delta_check(s, &operands));
    for (int i = 0; i < SBP_COUNT(pairs); i++) {
        SBP_TRY(sbp_check_same_cols(s, pairs[i].operand, pairs[i].like));
        SBP_TRY(pairs[i].wide ? sbp_check_wide(s, pairs[i].operand, SBP_SSD_BWD_B)
                              : sbp_check_same_dtype(s, pairs[i].operand, SBP_SSD_BWD_B));
    }
    if (sbp_subject_cols(s, SBP_SSD_BWD_WORK) < 2 * sbp_subject_cols(s, SBP_SSD_BWD_STATE))
        return SBP_SUBJECT_FAIL(s, "c19", "two states do not fit into a row of work");
    return SBP_OK;
}

SBP_RULE_ACCESS_STATED(ssd_bwd)
SBP_RULE_ALIAS_NONE(ssd_bwd)

void sbp_text_ssd_bwd(sbp_fields *fields) {
    sbp_delta_text(fields);
}

/* From block to block B^T D and C^T dY; then B dS, dY S^T, D dS^T; C B^T, E B, E^T C; P^T dY, dP. */
void sbp_work_ssd_bwd(const sbp_work_query *q, sbp_work *out) {
    sbp_delta_work(q, SBP_SSD_BWD_B, 2 + 3, 3, 2, out);
}
