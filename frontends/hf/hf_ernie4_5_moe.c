/* hf_ernie4_5_moe.c: ERNIE 4.5 with experts: whole heads turn by pairs of neighbours. Formulas: transformers,
 * modeling_ernie4_5_moe.py (Ernie4_5_MoeTopKRouter); fields and their defaults:
 * configuration_ernie4_5_moe.py. */
#include "frontends/hf/hf.h"

void sbp_hf_ernie4_5_moe(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 103424,
                                                                  .hidden = 2560,
                                                                  .inner = 12288,
                                                                  .layers = 28,
                                                                  .heads = 20,
                                                                  .kv_heads = 4,
                                                                  .head_dim_rounds = true,
                                                                  .max_positions = 131072,
                                                                  .tied = true,
                                                                  .norm_eps = 1e-5});
    if (sbp_hf_bool(hf, "use_bias", false))
        sbp_hf_fail(hf, sbp_hf_field(hf, "use_bias"), "biases beside experts are not supported");
    d.rope[0] = sbp_hf_rope_read(hf, &(sbp_hf_rope_shape){.head_dim = d.head_dim,
                                                          .rotary_dim = d.head_dim,
                                                          .theta = 5e5,
                                                          .max_positions = d.max_positions});
    d.rope[0].interleaved = true;
    d.experts = sbp_hf_experts_read(hf, d.layers,
                                    &(sbp_hf_experts_defaults){.count_key = "moe_num_experts",
                                                               .other_count_key = "num_experts",
                                                               .count = 64,
                                                               .chosen_key = "moe_k",
                                                               .chosen = 6,
                                                               .inner_key = "moe_intermediate_size",
                                                               .inner = 1536,
                                                               .always_normalized = true,
                                                               .dense_key = "moe_layer_start_index",
                                                               .dense = 1,
                                                               .last_key = "moe_layer_end_index",
                                                               .step_key = "moe_layer_interval",
                                                               .balance = 0.001,
                                                               .names = &sbp_hf_projections});
    d.experts.router.wide = true;
    d.experts.router.correction = "moe_statics.e_score_correction_bias";
    d.experts.router.correction_row = true;
    d.experts.router.floor = sbp_hf_double(hf, "moe_norm_min", 1e-12);
    d.experts.shared = sbp_hf_count(hf, "moe_num_shared_experts", 2) * d.experts.inner;
    d.experts.shared_name = "shared_experts";
    d.experts.shared_gated = false;
    sbp_hf_decoder_build(hf, &d);
}
