/* delta_rule: a matrix per head that decays and to which each row adds: what it lacks of the row (the gated
 * delta rule), or all of it (Mamba-2, SSD).
 *
 *   o       [rows, V dv], v's type         written, where anybody reads it
 *   next    [1, V dk dv], wide             written, where it is kept: S behind the last row
 *   q       [rows, K dk], k's type         there with o
 *   k       [rows, K dk], a float          row j is row k.first_row + j of the sequence
 *   v       [rows, V dv], k's type
 *   decay   [rows, V], wide                the logarithm of a factor, 0 or less
 *   beta    [rows, V], wide
 *   first   [rows, 1], i32 or i64          the row input of this name: where a row's document begins
 *   state   [1, V dk dv], wide             S before the first row
 *   work?   [ceil(rows / SBP_DELTA_BLOCK) or more, any], wide   workspace, if the target asks for it
 *
 * V heads (attribute heads), K key heads (key_heads), dk, dv (d_k, d_v); wide: f64 where k is, else f32. Head
 * h has columns h dv .. of v, and columns h / (V/K) dk .. of q and k; its S is [dk, dv], row after row, from
 * column h dk dv of a state. Row by row, where S is 0 before the first row of a document, whatever it held:
 *
 *   S <- e^decay S;   d = beta u;   S <- S + k d^T;   o = S^T q
 *   u = v - S^T k with the attribute `corrects`, else v
 *
 * A device makes products of L rows at a time, those of one block: block m of a document is its rows
 * SBP_DELTA_BLOCK m .. from its first; a command may begin and end inside of one. With K, V, Q of these rows,
 * c the running sum of decay in them, S before them:
 *
 *   corrects: R = diag(beta) (V - diag(e^c) K S);  (I + A) D = R,  A_ij = beta_i e^(c_i - c_j) k_i.k_j, j < i
 *   else:     D = diag(beta) V
 *   O = diag(e^c) Q S + P D                      P_ij = e^(c_i - c_j) q_i.k_j, j <= i
 *   S <- e^(c_L) S + (diag(e^(c_L - c)) K)^T D
 *
 * Exponents are never above 0: they are computed as differences. In the row where a document begins decay
 * means nothing, for S is 0. So the bits are the same however a document's rows are cut into commands at
 * multiples of SBP_DELTA_BLOCK from its first.
 *
 * Sums and all in between are wide; what would be subnormal there may be 0. Where k is bf16, or f16, a device
 * may round factors of products to that type; the CPU does not. next may be the same memory as state; nothing
 * else overlaps what is written. */
#include "ir/program/commands/delta_rule.h"

static const sbp_delta_operands operands = {.q = SBP_DELTA_RULE_Q,
                                            .k = SBP_DELTA_RULE_K,
                                            .v = SBP_DELTA_RULE_V,
                                            .decay = SBP_DELTA_RULE_DECAY,
                                            .beta = SBP_DELTA_RULE_BETA,
                                            .first = SBP_DELTA_RULE_FIRST,
                                            .state = SBP_DELTA_RULE_STATE,
                                            .work = SBP_DELTA_RULE_WORK};

void sbp_rows_delta_rule(sbp_row_rules *rules) {
    sbp_delta_rows(rules, &operands);
    sbp_rows_add(rules, SBP_ROWS_SAME, SBP_DELTA_RULE_O, SBP_DELTA_RULE_K, 0);
    sbp_rows_add(rules, SBP_ROWS_EXACT, SBP_DELTA_RULE_NEXT, -1, 1);
}

sbp_status sbp_check_delta_rule(const sbp_subject *s) {
    if (sbp_subject_has(s, SBP_DELTA_RULE_O) != sbp_subject_has(s, SBP_DELTA_RULE_Q))
        return SBP_SUBJECT_FAIL(s, "c26", "o and q are there together");
    if (!sbp_subject_has(s, SBP_DELTA_RULE_O) && !sbp_subject_has(s, SBP_DELTA_RULE_NEXT))
        return SBP_SUBJECT_FAIL(s, "c26", "neither o nor next is there");
    SBP_TRY(sbp_delta_check(s, &operands));
    SBP_TRY(sbp_check_same_cols(s, SBP_DELTA_RULE_O, SBP_DELTA_RULE_V));
    SBP_TRY(sbp_check_same_cols(s, SBP_DELTA_RULE_NEXT, SBP_DELTA_RULE_STATE));
    SBP_TRY(sbp_check_same_dtype(s, SBP_DELTA_RULE_O, SBP_DELTA_RULE_K));
    return sbp_check_wide(s, SBP_DELTA_RULE_NEXT, SBP_DELTA_RULE_K);
}

SBP_RULE_ACCESS_STATED(delta_rule)

bool sbp_alias_delta_rule(const sbp_rowkernel *kernel, int32_t written, int32_t other) {
    (void)kernel;
    return written == SBP_DELTA_RULE_NEXT && other == SBP_DELTA_RULE_STATE;
}

void sbp_text_delta_rule(sbp_fields *fields) {
    sbp_delta_text(fields);
}

/* K^T D; with o also Q S, Q K^T and P D. If it corrects, K S, K K^T and the solution. */
void sbp_work_delta_rule(const sbp_work_query *q, sbp_work *out) {
    int makes_o = q->operands[SBP_DELTA_RULE_O].space != SBP_SPACE_COUNT,
        corrects = q->command->u.delta.corrects;
    sbp_delta_work(q, SBP_DELTA_RULE_K, 1 + makes_o + corrects, makes_o + corrects, makes_o + corrects, out);
}

/* ---- shared with delta_rule_bwd --------------------------------------------------------------------- */

void sbp_delta_rows(sbp_row_rules *rules, const sbp_delta_operands *at) {
    const int32_t same[] = {at->q, at->v, at->decay, at->beta};
    for (int i = 0; i < SBP_COUNT(same); i++)
        sbp_rows_add(rules, SBP_ROWS_SAME, same[i], at->k, 0);
    sbp_rows_add(rules, SBP_ROWS_ALIGNED, at->first, at->k, 0);
    sbp_rows_add(rules, SBP_ROWS_EXACT, at->state, -1, 1);
    sbp_rows_add(rules, SBP_ROWS_PER, at->work, at->k, SBP_DELTA_BLOCK);
}

static sbp_status check_attributes(const sbp_subject *s) {
    const sbp_delta_attrs *a = &s->command->u.delta;
    if (a->heads < 1 || a->heads > SBP_MOST_HEADS || a->key_heads < 1 || a->heads % a->key_heads != 0 ||
        a->d_k < 1 || a->d_k > SBP_DELTA_MOST_DIMENSIONS || a->d_v < 1 || a->d_v > SBP_DELTA_MOST_DIMENSIONS)
        return SBP_SUBJECT_FAIL(s, "c26", "heads %lld, key_heads %lld, d_k %lld, d_v %lld",
                                (long long)a->heads, (long long)a->key_heads, (long long)a->d_k,
                                (long long)a->d_v);
    return SBP_OK;
}

sbp_status sbp_delta_check(const sbp_subject *s, const sbp_delta_operands *at) {
    const sbp_delta_attrs *a = &s->command->u.delta;
    const int32_t of_heads[] = {at->decay, at->beta};
    SBP_TRY(check_attributes(s));
    SBP_TRY(sbp_check_float(s, at->k));
    SBP_TRY(sbp_check_exact_cols(s, at->k, a->key_heads * a->d_k));
    SBP_TRY(sbp_check_same_cols(s, at->q, at->k));
    SBP_TRY(sbp_check_same_dtype(s, at->q, at->k));
    SBP_TRY(sbp_check_exact_cols(s, at->v, a->heads * a->d_v));
    SBP_TRY(sbp_check_same_dtype(s, at->v, at->k));
    for (int i = 0; i < SBP_COUNT(of_heads); i++) {
        SBP_TRY(sbp_check_exact_cols(s, of_heads[i], a->heads));
        SBP_TRY(sbp_check_wide(s, of_heads[i], at->k));
    }
    SBP_TRY(sbp_check_exact_cols(s, at->state, a->heads * a->d_k * a->d_v));
    SBP_TRY(sbp_check_wide(s, at->state, at->k));
    SBP_TRY(sbp_check_wide(s, at->work, at->k));
    SBP_TRY(sbp_check_index(s, at->first));
    return sbp_check_input(s, at->first, SBP_ROW_COLUMN, "first");
}

void sbp_delta_text(sbp_fields *fields) {
    sbp_delta_attrs *a = &fields->command->u.delta;
    sbp_field_int(fields, "heads", &a->heads)->always = true;
    sbp_field_int(fields, "key_heads", &a->key_heads)->always = true;
    sbp_field_int(fields, "d_k", &a->d_k)->always = true;
    sbp_field_int(fields, "d_v", &a->d_v)->always = true;
    sbp_field_flag(fields, "corrects", &a->corrects);
}

void sbp_delta_work(const sbp_work_query *q, int32_t k, double squares, double of_k, double of_v,
                    sbp_work *out) {
    const sbp_delta_attrs *a = &q->command->u.delta;
    double d_k = (double)a->d_k, d_v = (double)a->d_v, half = SBP_DELTA_BLOCK / 2.0;
    out->kind = SBP_WORK_ATTENTION;
    out->flops = 2 * (double)q->operands[k].rows * (double)a->heads *
                 (squares * d_k * d_v + half * (of_k * d_k + of_v * d_v));
    out->dtype = q->operands[k].dtype;
}
