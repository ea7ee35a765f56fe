/* hf_glm4.c: GLM-4 as of 0414, and the GLM-4 before it: gate and up in one tensor, biases on q, k and v,
 * half of each head turned, in pairs of neighbours. GLM-4 of 0414 has norms on what attention and the
 * MLP give, too. */
#include "frontends/hf/hf.h"

static void build(sbp_hf *hf, sbp_hf_decoder *d) {
    d->fused_gate_up = true;
    d->rope[0] = sbp_hf_rope_read(hf, &(sbp_hf_rope_shape){.head_dim = d->head_dim,
                                                           .rotary_dim = sbp_hf_rotary_dim(
                                                               hf, d->head_dim, "partial_rotary_factor", 0.5),
                                                           .theta = 1e4,
                                                           .max_positions = d->max_positions});
    d->rope[0].interleaved = true;
    sbp_hf_decoder_build(hf, d);
}

static sbp_hf_decoder read(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 151552,
                                                                  .heads = 32,
                                                                  .kv_heads = 2,
                                                                  .head_dim = 128,
                                                                  .max_positions = 131072,
                                                                  .norm_eps = 1.5625e-07});
    d.qkv_bias = sbp_hf_bool(hf, "attention_bias", true);
    return d;
}

void sbp_hf_glm(sbp_hf *hf) {
    sbp_hf_decoder d = read(hf);
    build(hf, &d);
}

void sbp_hf_glm4(sbp_hf *hf) {
    sbp_hf_decoder d = read(hf);
    d.norms = (sbp_hf_layer_norms){"input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm",
                                   "post_mlp_layernorm"};
    build(hf, &d);
}
