/* hf_qwen_vl.c: the text models of Qwen2.5-VL and Qwen3-VL: Qwen2 and Qwen3, with other defaults; for text
 * the three axes of positions are one. Fields: transformers, configuration_qwen2_5_vl.py,
 * configuration_qwen3_vl.py, configuration_qwen3_vl_moe.py. */
#include "frontends/hf/hf.h"

static sbp_hf_rope read_rope(sbp_hf *hf, const sbp_hf_decoder *d, double theta) {
    return sbp_hf_rope_read(hf, &(sbp_hf_rope_shape){.head_dim = d->head_dim,
                                                     .rotary_dim = d->head_dim,
                                                     .theta = theta,
                                                     .max_positions = d->max_positions,
                                                     .three_axes = true});
}

void sbp_hf_qwen2_5_vl(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 152064,
                                                                  .hidden = 8192,
                                                                  .inner = 29568,
                                                                  .layers = 80,
                                                                  .heads = 64,
                                                                  .kv_heads = 8,
                                                                  .head_dim_rounds = true,
                                                                  .max_positions = 32768,
                                                                  .norm_eps = 1e-5});
    d.qkv_bias = true;
    sbp_hf_qwen_windows(hf, &d, 80);
    d.rope[0] = read_rope(hf, &d, 1e6);
    sbp_hf_decoder_build(hf, &d);
}

void sbp_hf_qwen3_vl(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 151936,
                                                                  .hidden = 4096,
                                                                  .inner = 22016,
                                                                  .layers = 32,
                                                                  .heads = 32,
                                                                  .kv_heads = 32,
                                                                  .head_dim = 128,
                                                                  .max_positions = 128000});
    d.qkv_bias = d.o_bias = sbp_hf_bool(hf, "attention_bias", false);
    d.qk_norm = SBP_HF_QK_NORM_HEAD;
    d.rope[0] = read_rope(hf, &d, 5e5);
    sbp_hf_decoder_build(hf, &d);
}

void sbp_hf_qwen3_vl_moe(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 151936,
                                                                  .hidden = 2048,
                                                                  .inner = 5632,
                                                                  .layers = 24,
                                                                  .heads = 16,
                                                                  .kv_heads = 16,
                                                                  .head_dim_rounds = true,
                                                                  .max_positions = 128000});
    d.qkv_bias = d.o_bias = sbp_hf_bool(hf, "attention_bias", false);
    d.qk_norm = SBP_HF_QK_NORM_HEAD;
    d.rope[0] = read_rope(hf, &d, 5e5);
    (void)sbp_hf_field(hf, "norm_topk_prob"); /* weights are divided by their sum whatever it says */
    d.experts = sbp_hf_experts_read(hf, d.layers,
                                    &(sbp_hf_experts_defaults){.count_key = "num_experts",
                                                               .other_count_key = "num_local_experts",
                                                               .count = 60,
                                                               .chosen = 4,
                                                               .inner_key = "moe_intermediate_size",
                                                               .inner = 1408,
                                                               .always_normalized = true,
                                                               .fused = true,
                                                               .stepped = true,
                                                               .balance = 0.001,
                                                               .names = &sbp_hf_projections});
    d.experts.turned = true;
    sbp_hf_decoder_build(hf, &d);
}
