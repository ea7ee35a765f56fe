/* attn_fwd: o = softmax(scale q k^T) v, row by row and head by head.
 *
 *   o           [rows, heads d_v], q's type              written
 *   lse         [rows, heads], f64 where q is, else f32  written: natural log of the sum of exp(score)
 *   q           [rows, heads d_qk], a float              row j is row q.first_row + j of the sequence
 *   k           [keys, kv_heads d_qk], q's type          row 0 is row k.first_row of the sequence
 *   v           [keys, kv_heads d_v], q's type           the same rows as k
 *   first, shared_end, own  [rows, 1], i32 or i64        row inputs of these names, else of `first`
 *   work?       [rows or more, any]                      workspace, if the target asks for it
 *
 * Query row r sees rows [first, shared_end) and [own, r] (of the sequence, by query row), minus those further
 * back than `window` positions when window > 0 (position distance: r - c in the own part,
 * shared_end + r - own - c in the shared part; visible when below window). k holds all that is seen.
 *
 *   score = scale q.k, then softcap tanh(score / softcap) when softcap > 0
 *   lse   = log sum exp(score)
 *   o     = sum exp(score - lse) v
 *
 * Head h reads kv head h / (heads / kv_heads). Where q, k, v are all bf16, or all f16, a device may round
 * p = exp(score - lse), times any power of two, to that type before the product with v; sums of p and lse are
 * not of rounded numbers. The CPU does so of bf16.
 *
 * Nothing overlaps what is written. Attributes: heads, kv_heads, d_qk, d_v, scale, window, softcap; by_rank,
 * q has this rank's rows of a chunk, k and v those of all of its context (ir/base/context.h). */
#include "ir/program/command.h"

void sbp_rows_attn_fwd(sbp_row_rules *rules) {
    sbp_attention_rows(rules);
}

sbp_status sbp_check_attn_fwd(const sbp_subject *s) {
    SBP_TRY(sbp_attention_check(s));
    return sbp_attention_check_inputs(s);
}

SBP_RULE_ACCESS_STATED(attn_fwd)
SBP_RULE_ALIAS_NONE(attn_fwd)

void sbp_text_attn_fwd(sbp_fields *fields) {
    sbp_attention_text(fields);
}

void sbp_work_attn_fwd(const sbp_work_query *q, sbp_work *out) {
    sbp_attention_work(q, out);
}
