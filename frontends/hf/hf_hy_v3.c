/* hf_hy_v3.c: Hunyuan 3: Qwen3's attention, and experts behind the first layer, one of which all rows share.
 * Formulas: transformers, modeling_hy_v3.py (HYV3TopKRouter, HYV3MoE); fields and their defaults:
 * configuration_hy_v3.py. */
#include "frontends/hf/hf.h"

void sbp_hf_hy_v3(sbp_hf *hf) {
    static const sbp_hf_expert_names names = {.module = "mlp",
                                              .router = "router.gate",
                                              .class_router = "gate",
                                              .experts = {[SBP_HF_EXPERT_GATE] = "gate_proj",
                                                          [SBP_HF_EXPERT_UP] = "up_proj",
                                                          [SBP_HF_EXPERT_DOWN] = "down_proj"},
                                              .fused = "gate_up_proj"};
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 120832,
                                                                  .hidden = 4096,
                                                                  .inner = 13312,
                                                                  .layers = 80,
                                                                  .heads = 64,
                                                                  .kv_heads = 8,
                                                                  .head_dim = 128,
                                                                  .max_positions = 131072,
                                                                  .norm_eps = 1e-5});
    d.qkv_bias = d.o_bias = sbp_hf_bool(hf, "attention_bias", false);
    d.mlp_bias = sbp_hf_bool(hf, "mlp_bias", false);
    d.qk_norm = SBP_HF_QK_NORM_HEAD;
    d.rope[0] = sbp_hf_decoder_rope(hf, &d);
    d.experts = sbp_hf_experts_read(hf, d.layers,
                                    &(sbp_hf_experts_defaults){.count_key = "num_experts",
                                                               .other_count_key = "num_local_experts",
                                                               .count = 192,
                                                               .chosen = 8,
                                                               .inner_key = "moe_intermediate_size",
                                                               .inner = 1536,
                                                               .always_normalized = true,
                                                               .dense_key = "first_k_dense_replace",
                                                               .dense = 1,
                                                               .typed = true,
                                                               .names = &names});
    d.experts.router = (sbp_hf_router){.score = SBP_HF_SCORE_SIGMOID,
                                       .wide = true,
                                       .correction = "expert_bias",
                                       .normalized = true,
                                       .epsilon = 1e-20,
                                       .scaling = sbp_hf_double(hf, "router_scaling_factor", 2.826)};
    d.experts.shared = sbp_hf_count(hf, "num_shared_experts", 1) * d.experts.inner;
    d.experts.shared_name = "shared_mlp";
    d.experts.class_shared = "shared_experts";
    d.experts.shared_gated = false;
    d.experts.shared_bias = d.mlp_bias;
    sbp_hf_decoder_build(hf, &d);
}
