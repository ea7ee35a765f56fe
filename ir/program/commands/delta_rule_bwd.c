/* delta_rule_bwd: the gradients of delta_rule, given do.
 *
 *   dq, dk   [rows, K dk], k's type        written, where anybody reads them; added over V/K heads
 *   dv       [rows, V dv], k's type        written, where anybody reads it
 *   ddecay, dbeta  [rows, V], wide         written, where anybody reads them
 *   dstate   [1, V dk dv], wide            of next when it comes, of state when it goes
 *   do       [rows, V dv], k's type
 *   q, k, v, decay, beta, first, state     as delta_rule has them
 *   work     [ceil(rows / SBP_DELTA_BLOCK) or more, V dk dv or more], wide   workspace; twice as many
 *            columns where it does not correct
 *
 * Two beginnings of blocks inside of documents are SBP_DELTA_BLOCK rows or more apart. So `work` has room for
 * S before each of them: of the block whose first row is row j of k in row j / SBP_DELTA_BLOCK. S is computed
 * forward from `state`, kept there, and then blocks are gone through from the last to the first. Where
 * nothing is corrected, dS behind the block before it is kept there, too, and then blocks know no more of one
 * another. For each block, with the names of delta_rule.c and dS the gradient of the state behind it:
 *
 *   dD = P^T dO + diag(e^(c_L - c)) K dS               (I + A)^T dR = dD
 *   dA_ij = -dR_i.D_j, j < i;  dP_ij = dO_i.D_j, j <= i;   Y = -diag(beta e^c) dR
 *   B_ij = dA_ij beta_i e^(c_i - c_j)                  C_ij = dP_ij e^(c_i - c_j)
 *   dV = diag(beta) dR;  dQ = diag(e^c) dO S^T + C K
 *   dK = Y S^T + C^T Q + diag(e^(c_L - c)) D dS^T + B K + B^T K
 *   dbeta_i = dR_i.(V - diag(e^c) K S)_i + sum over j of dA_ij e^(c_i - c_j) k_i.k_j
 *   dc: from every exponential;  ddecay = its sum over the rows behind, 0 in the row where a document begins
 *   dS <- e^(c_L) dS + K^T Y + (diag(e^c) Q)^T dO, nothing where the block begins a document
 *
 * Without corrections A, dA and B are 0, so dR is dD, Y S^T and K^T Y are left out, and dbeta_i = dR_i.V_i.
 *
 * dS is 0 behind the last row of a document that does not end the rows, whatever dstate is. Sums and
 * roundings as in delta_rule; there are no atomics. Nothing overlaps what is written. Attributes: those of
 * delta_rule. */
#include "ir/program/commands/delta_rule.h"

static const sbp_delta_operands operands = {.q = SBP_DELTA_RULE_BWD_Q,
                                            .k = SBP_DELTA_RULE_BWD_K,
                                            .v = SBP_DELTA_RULE_BWD_V,
                                            .decay = SBP_DELTA_RULE_BWD_DECAY,
                                            .beta = SBP_DELTA_RULE_BWD_BETA,
                                            .first = SBP_DELTA_RULE_BWD_FIRST,
                                            .state = SBP_DELTA_RULE_BWD_STATE,
                                            .work = SBP_DELTA_RULE_BWD_WORK};

void sbp_rows_delta_rule_bwd(sbp_row_rules *rules) {
    sbp_delta_rows(rules, &operands);
    for (int32_t k = SBP_DELTA_RULE_BWD_DQ; k <= SBP_DELTA_RULE_BWD_DBETA; k++)
        sbp_rows_add(rules, SBP_ROWS_SAME, k, SBP_DELTA_RULE_BWD_K, 0);
    sbp_rows_add(rules, SBP_ROWS_EXACT, SBP_DELTA_RULE_BWD_DSTATE, -1, 1);
    sbp_rows_add(rules, SBP_ROWS_SAME, SBP_DELTA_RULE_BWD_DO, SBP_DELTA_RULE_BWD_K, 0);
}

sbp_status sbp_check_delta_rule_bwd(const sbp_subject *s) {
    static const struct {
        int32_t operand, like;
        bool wide;
    } pairs[] = {{SBP_DELTA_RULE_BWD_DQ, SBP_DELTA_RULE_BWD_K, false},
                 {SBP_DELTA_RULE_BWD_DK, SBP_DELTA_RULE_BWD_K, false},
                 {SBP_DELTA_RULE_BWD_DV, SBP_DELTA_RULE_BWD_V, false},
                 {SBP_DELTA_RULE_BWD_DDECAY, SBP_DELTA_RULE_BWD_DECAY, true},
                 {SBP_DELTA_RULE_BWD_DBETA, SBP_DELTA_RULE_BWD_BETA, true},
                 {SBP_DELTA_RULE_BWD_DSTATE, SBP_DELTA_RULE_BWD_STATE, true},
                 {SBP_DELTA_RULE_BWD_DO, SBP_DELTA_RULE_BWD_V, false}};
    SBP_TRY(sbp_delta_check(s, &operands));
    for (int i = 0; i < SBP_COUNT(pairs); i++) {
        SBP_TRY(sbp_check_same_cols(s, pairs[i].operand, pairs[i].like));
        SBP_TRY(pairs[i].wide ? sbp_check_wide(s, pairs[i].operand, SBP_DELTA_RULE_BWD_K)
                              : sbp_check_same_dtype(s, pairs[i].operand, SBP_DELTA_RULE_BWD_K));
    }
    bool corrects = s->command->u.delta.corrects;
    if (sbp_subject_cols(s, SBP_DELTA_RULE_BWD_WORK) <
        (corrects ? 1 : 2) * sbp_subject_cols(s, SBP_DELTA_RULE_BWD_STATE))
        return SBP_SUBJECT_FAIL(s, "c19", "%s into a row of work",
                                corrects ? "a state does not fit" : "two states do not fit");
    return SBP_OK;
}

SBP_RULE_ACCESS_STATED(delta_rule_bwd)
SBP_RULE_ALIAS_NONE(delta_rule_bwd)

void sbp_text_delta_rule_bwd(sbp_fields *fields) {
    sbp_delta_text(fields);
}

/* The states once more: K^T D. Then K dS, dO S^T, Q^T dO, D dS^T; Q K^T, C K, C^T Q; P^T dO, dP. If it
 * corrects, twice K S, K K^T and the solution; Y S^T, K^T Y, B K, B^T K, the other solution and dA. */
void sbp_work_delta_rule_bwd(const sbp_work_query *q, sbp_work *out) {
    int corrects = q->command->u.delta.corrects;
    sbp_delta_work(q, SBP_DELTA_RULE_BWD_K, 1 + 4 + 4 * corrects, 3 + 4 * corrects, 2 + 4 * corrects, out);
}
