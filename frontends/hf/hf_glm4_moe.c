/* hf_glm4_moe.c: GLM-4.5 and 4.6: layers as Llama's, half of each head turned, and behind the first layers
 * experts by DeepSeek's router. Formulas: transformers, modeling_glm4_moe.py (Glm4MoeTopkRouter,
 * Glm4MoeMoE). */
#include "frontends/hf/hf.h"

void sbp_hf_glm4_moe(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 151552,
                                                                  .heads = 96,
                                                                  .kv_heads = 8,
                                                                  .head_dim_rounds = true,
                                                                  .max_positions = 131072,
                                                                  .norm_eps = 1e-5});
    d.qkv_bias = sbp_hf_bool(hf, "attention_bias", false);
    if (sbp_hf_bool(hf, "use_qk_norm", false))
        d.qk_norm = SBP_HF_QK_NORM_HEAD;
    d.rope[0] = sbp_hf_rope_read(hf, &(sbp_hf_rope_shape){.head_dim = d.head_dim,
                                                          .rotary_dim = sbp_hf_rotary_dim(
                                                              hf, d.head_dim, "partial_rotary_factor", 0.5),
                                                          .theta = 1e4,
                                                          .max_positions = d.max_positions});
    d.experts = sbp_hf_deepseek_experts_read(hf, d.layers,
                                             &(sbp_hf_deepseek_experts){.count = 128,
                                                                        .chosen = 8,
                                                                        .inner = 1408,
                                                                        .groups = 1,
                                                                        .chosen_groups = 1,
                                                                        .dense = 1,
                                                                        .scaling = 1});
    sbp_hf_decoder_build(hf, &d);
}
