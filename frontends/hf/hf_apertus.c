/* hf_apertus.c: Apertus: Llama with norms on the heads of queries and keys, and an MLP without a gate by
 * xIELU, an activation with two trained numbers. Formulas, names and defaults: transformers,
 * modeling_apertus.py, activations.py (XIELUActivation) and configuration_apertus.py; Huang and Schlag, arXiv
 * 2411.13010. */
#include <string.h>

#include "frontends/hf/hf.h"
#include "ir/graph/op.h"

/* -log_sigmoid(-alpha) */
static sbp_value build_softplus(const sbp_hf_scope *at, const char *name) {
    sbp_builder *b = &at->hf->builder;
    sbp_value alpha =
        sbp_hf_row_vector(at->hf, sbp_hf_path(at->hf, "%s.act_fn.%s", at->module, name), SBP_INIT_NORMAL, 1);
    alpha = sbp_build_cast(b, alpha, sbp_rule_wide(at->hf->compute));
    alpha = sbp_build1(b, SBP_OP_log_sigmoid, sbp_build1(b, SBP_OP_neg, alpha));
    return sbp_build1(b, SBP_OP_neg, alpha);
}

static sbp_value build_stored(const sbp_hf_scope *at, const char *name) {
    return sbp_hf_buffer(at->hf, sbp_hf_path(at->hf, "%s.act_fn.%s", at->module, name), 0, NULL);
}

/* e^x - 1 = tanh(x/2) (e^x + 1), which is exact to the last places next to 0, too */
static sbp_value build_expm1(sbp_builder *b, sbp_value x, sbp_dtype wide) {
    sbp_value half = sbp_build2(b, SBP_OP_mul, x, sbp_build_const(b, wide, 0.5));
    sbp_value sum = sbp_build2(b, SBP_OP_add, sbp_build1(b, SBP_OP_exp, x), sbp_build_const(b, wide, 1));
    half = sbp_build1(b, SBP_OP_tanh, half);
    return sbp_build2(b, SBP_OP_mul, half, sum);
}

/* beta x + p x^2 above 0, else beta x + (beta + n) (expm1(min(x, eps)) - x), where p and n are softplus of
 * alpha_p and alpha_n */
static sbp_value build_xielu(const sbp_hf_scope *at, sbp_value x) {
    sbp_builder *b = &at->hf->builder;
    sbp_dtype wide = sbp_rule_wide(at->hf->compute);
    sbp_value above = build_softplus(at, "alpha_p"), below = build_softplus(at, "alpha_n");
    sbp_value beta = build_stored(at, "beta"), eps = build_stored(at, "eps");
    x = sbp_build_cast(b, x, wide);
    sbp_value square = sbp_build2(b, SBP_OP_mul, x, x);
    above = sbp_build2(b, SBP_OP_mul, above, square);
    below = sbp_build2(b, SBP_OP_add, beta, below);
    sbp_value bend = build_expm1(b, sbp_build2(b, SBP_OP_min, x, eps), wide);
    below = sbp_build2(b, SBP_OP_mul, below, sbp_build2(b, SBP_OP_sub, bend, x));
    sbp_value positive = sbp_build2(b, SBP_OP_lt, sbp_build_const(b, wide, 0), x);
    sbp_value y = sbp_build3(b, SBP_OP_select, positive, above, below);
    y = sbp_build2(b, SBP_OP_add, y, sbp_build2(b, SBP_OP_mul, beta, x));
    y = sbp_hf_operand(at->hf, y);
    sbp_build_name(b, y, "act");
    return y;
}

static sbp_value mix_xielu(const sbp_hf_scope *at, sbp_value x) {
    x = sbp_hf_map(at, "up", x, "up_proj", at->d->inner, at->d->hidden, false);
    x = build_xielu(at, x);
    return sbp_hf_map(at, "mlp_proj", x, "down_proj", at->d->hidden, at->d->inner, false);
}

static const sbp_hf_branch mlp = {
    .name = "mlp", .norm_in = "feedforward_layernorm", .mixer = {{mix_xielu, "mlp", 1, 1}}};

void sbp_hf_apertus(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 131072,
                                                                  .hidden = 4096,
                                                                  .inner = 14336,
                                                                  .layers = 32,
                                                                  .heads = 32,
                                                                  .head_dim_rounds = true,
                                                                  .max_positions = 65536,
                                                                  .norm_eps = 1e-5,
                                                                  .activation = "xielu"});
    d.norms = (sbp_hf_layer_norms){.attn_in = "attention_layernorm", .mlp_in = "feedforward_layernorm"};
    d.qk_norm = SBP_HF_QK_NORM_HEAD;
    d.qkv_bias = d.o_bias = sbp_hf_bool(hf, "attention_bias", false);
    d.ungated = true;
    for (int64_t i = 0; i < d.layers && hf->builder.status == SBP_OK && strcmp(d.activation, "xielu") == 0;
         i++)
        d.layer[i].branch[1] = &mlp;
    d.rope[0] = sbp_hf_rope_read(
        hf, &(sbp_hf_rope_shape){
                .head_dim = d.head_dim,
                .rotary_dim = d.head_dim,
                .theta = 1.2e7,
                .max_positions = d.max_positions,
                .own = "{\"rope_type\": \"llama3\", \"rope_theta\": 12000000.0, \"factor\": 8.0, "
                       "\"original_max_position_embeddings\": 8192, \"low_freq_factor\": 1.0, "
                       "\"high_freq_factor\": 4.0}"});
    sbp_hf_decoder_build(hf, &d);
}
