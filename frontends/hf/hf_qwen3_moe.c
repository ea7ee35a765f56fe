/* hf_qwen3_moe.c: Qwen3 with experts in place of most MLPs. Fields and their defaults: transformers,
 * configuration_qwen3_moe.py. */
#include "frontends/hf/hf.h"

void sbp_hf_qwen3_moe(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(
        hf,
        &(sbp_hf_defaults){
            .vocab = 151936, .heads = 32, .kv_heads = 4, .head_dim_rounds = true, .max_positions = 32768});
    d.qkv_bias = d.o_bias = sbp_hf_bool(hf, "attention_bias", false);
    d.qk_norm = SBP_HF_QK_NORM_HEAD;
    (void)sbp_hf_field(hf, "sliding_window"); /* nothing slides: use_sliding_window is off */
    (void)sbp_hf_field(hf, "max_window_layers");
    d.rope[0] = sbp_hf_decoder_rope(hf, &d);
    d.experts = sbp_hf_experts_read(hf, d.layers,
                                    &(sbp_hf_experts_defaults){.count_key = "num_experts",
                                                               .other_count_key = "num_local_experts",
                                                               .count = 128,
                                                               .chosen = 8,
                                                               .inner_key = "moe_intermediate_size",
                                                               .inner = 768,
                                                               .stepped = true,
                                                               .balance = 0.001,
                                                               .names = &sbp_hf_projections});
    sbp_hf_decoder_build(hf, &d);
}
