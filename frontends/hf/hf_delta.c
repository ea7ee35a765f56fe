/* hf_delta.c: the gated delta rule, of Qwen3.5, OLMo Hybrid and others: keys and queries of length 1, decays,
 * and the norm of its answer, opened by a gate. Formulas: transformers, modeling_qwen3_next.py
 * (torch_recurrent_gated_delta_rule, Qwen3NextGatedDeltaNet). */
#include <math.h>

#include "frontends/hf/hf.h"
#include "ir/graph/op.h"

/* Heads of length 1, times `scale`; an operand of the delta rule. */
static sbp_value build_unit_heads(const sbp_hf_scope *at, const sbp_hf_delta *m, const char *name,
                                  sbp_value x, double scale) {
    sbp_builder *b = &at->hf->builder;
    sbp_dtype wide = sbp_rule_wide(at->hf->compute);
    x = sbp_build_cast(b, sbp_hf_split_heads(at->hf, x, m->key_heads, m->dk), wide);
    sbp_value square = sbp_build2(b, SBP_OP_mul, x, x);
    sbp_value sum = sbp_build1(b, SBP_OP_row_sum, square);
    sum = sbp_build2(b, SBP_OP_add, sum, sbp_build_const(b, wide, sbp_round_to(wide, 1e-6)));
    sbp_value inverse = sbp_build1(b, SBP_OP_rsqrt, sum);
    x = sbp_build2(b, SBP_OP_mul, x, inverse);
    if (scale != 1)
        x = sbp_build2(b, SBP_OP_mul, x, sbp_build_const(b, wide, sbp_round_to(wide, scale)));
    x = sbp_hf_operand(at->hf, x);
    sbp_build_name(b, x, name);
    return x;
}

/* -exp(A_log) softplus(a + dt_bias), with softplus(x) = -log_sigmoid(-x) */
static sbp_value build_decay(const sbp_hf_scope *at, const sbp_hf_delta *m, sbp_value a) {
    sbp_builder *b = &at->hf->builder;
    sbp_dtype wide = sbp_rule_wide(at->hf->compute);
    sbp_value log = sbp_hf_row_vector(at->hf, sbp_hf_path(at->hf, "%s.A_log", at->module), SBP_INIT_NORMAL,
                                      m->value_heads);
    sbp_value bias = sbp_hf_row_vector(at->hf, sbp_hf_path(at->hf, "%s.dt_bias", at->module), SBP_INIT_ONES,
                                       m->value_heads);
    a = sbp_build_cast(b, a, wide);
    a = sbp_build2(b, SBP_OP_add, a, sbp_build_cast(b, bias, wide));
    a = sbp_build1(b, SBP_OP_log_sigmoid, sbp_build1(b, SBP_OP_neg, a));
    log = sbp_build1(b, SBP_OP_exp, sbp_build_cast(b, log, wide));
    a = sbp_build2(b, SBP_OP_mul, log, a);
    sbp_build_name(b, a, "decay");
    return a;
}

static sbp_value build_rule(const sbp_hf_scope *at, const sbp_hf_delta *m, const sbp_hf_delta_rows *rows) {
    sbp_hf *hf = at->hf;
    sbp_builder *b = &hf->builder;
    sbp_value q = build_unit_heads(at, m, "delta_q", rows->q, pow((double)m->dk, -0.5));
    sbp_value k = build_unit_heads(at, m, "delta_k", rows->k, 1);
    sbp_value v = sbp_hf_operand(hf, sbp_hf_split_heads(hf, rows->v, m->value_heads, m->dv));
    sbp_build_name(b, v, "delta_v");
    sbp_value decay = build_decay(at, m, rows->a);
    sbp_value beta = sbp_hf_scale(hf, "scaled_beta", sbp_build1(b, SBP_OP_sigmoid, rows->b), m->beta_scale);
    beta = sbp_build_cast(b, beta, sbp_rule_wide(hf->compute));
    sbp_build_name(b, beta, "beta");
    sbp_value first = sbp_hf_row(hf, SBP_DATA_FIRST);
    return sbp_build(b, SBP_OP_delta_rule, "delta_out", (sbp_value[]){q, k, v, decay, beta, first}, 6, NULL,
                     0, NULL);
}

/* Each head's norm, with a plain weight that all share, times silu(z) in the wide type. */
sbp_value sbp_hf_delta_build(const sbp_hf_scope *at, const sbp_hf_delta *m, const sbp_hf_delta_rows *rows,
                             const char *norm) {
    sbp_hf *hf = at->hf;
    sbp_builder *b = &hf->builder;
    sbp_dtype wide = sbp_rule_wide(hf->compute);
    sbp_value y = build_rule(at, m, rows);
    y = sbp_hf_normalize(hf, &(sbp_hf_norm){SBP_HF_RMS_NORM, m->eps}, "delta_norm", y,
                         sbp_hf_path(hf, "%s.%s", at->module, norm), m->dv);
    y = sbp_build_cast(b, sbp_hf_join_heads(hf, y), wide);
    y = sbp_hf_gate(hf, "silu", NULL, sbp_build_cast(b, rows->z, wide), y);
    y = sbp_hf_operand(hf, y);
    sbp_build_name(b, y, "delta_gated");
    return y;
}
