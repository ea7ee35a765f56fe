/* attn_bwd: the gradients of attn_fwd, given do.
 *
 *   dq          [rows, heads d_qk], q's type               written
 *   dk          [keys, kv_heads d_qk], lse's type          added to
 *   dv          [keys, kv_heads d_v], lse's type           added to
 *   q, k, v, o, lse, first, shared_end, own                as attn_fwd has them
 *   do          [rows, heads d_v], q's type
 *   work?       [rows or more, any]                        workspace, if the target asks for it
 *
 * dk and dv are the same rows of the sequence as k. With the score of attn_fwd:
 *
 *   p    = exp(score - lse)              as in o = sum p v
 *   ds   = p (v.do - do.o)               times the slope of softcap
 *   dv  += p^T do
 *   dk  += scale ds^T q
 *   dq   = scale ds k
 *
 * There are no atomics: sums have an order of their own. Where q, k, v and do are all bf16, or all f16, a
 * device may round p and ds to that type before these products; sums of p, do.o and lse are not of rounded
 * numbers. The CPU does so of bf16.
 *
 * Nothing overlaps what is written. Attributes: those of attn_fwd. */
#include "ir/program/command.h"

void sbp_rows_attn_bwd(sbp_row_rules *rules) {
    sbp_attention_rows(rules);
    sbp_rows_add(rules, SBP_ROWS_SAME, SBP_ATTN_BWD_DQ, SBP_ATTN_BWD_Q, 0);
    sbp_rows_add(rules, SBP_ROWS_SAME, SBP_ATTN_BWD_DO, SBP_ATTN_BWD_Q, 0);
    sbp_rows_add(rules, SBP_ROWS_ALIGNED, SBP_ATTN_BWD_DK, SBP_ATTN_BWD_K, 0);
    sbp_rows_add(rules, SBP_ROWS_ALIGNED, SBP_ATTN_BWD_DV, SBP_ATTN_BWD_K, 0);
}

sbp_status sbp_check_attn_bwd(const sbp_subject *s) {
    SBP_TRY(sbp_attention_check(s));
    SBP_TRY(sbp_check_same_cols(s, SBP_ATTN_BWD_DQ, SBP_ATTN_BWD_Q));
    SBP_TRY(sbp_check_same_cols(s, SBP_ATTN_BWD_DK, SBP_ATTN_BWD_K));
    SBP_TRY(sbp_check_same_cols(s, SBP_ATTN_BWD_DV, SBP_ATTN_BWD_V));
    SBP_TRY(sbp_check_same_cols(s, SBP_ATTN_BWD_DO, SBP_ATTN_BWD_O));
    SBP_TRY(sbp_check_same_dtype(s, SBP_ATTN_BWD_DQ, SBP_ATTN_BWD_Q));
    SBP_TRY(sbp_check_same_dtype(s, SBP_ATTN_BWD_DO, SBP_ATTN_BWD_Q));
    SBP_TRY(sbp_check_wide(s, SBP_ATTN_BWD_DK, SBP_ATTN_BWD_Q));
    SBP_TRY(sbp_check_wide(s, SBP_ATTN_BWD_DV, SBP_ATTN_BWD_Q));
    return sbp_attention_check_inputs(s);
}

SBP_RULE_ACCESS_STATED(attn_bwd)
SBP_RULE_ALIAS_NONE(attn_bwd)

void sbp_text_attn_bwd(sbp_fields *fields) {
    sbp_attention_text(fields);
}

void sbp_work_attn_bwd(const sbp_work_query *q, sbp_work *out) {
    sbp_attention_work(q, out);
}
