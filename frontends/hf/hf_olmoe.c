/* hf_olmoe.c: OLMoE: experts in all layers, norms over all heads of q and k together. Fields and their
 * defaults: transformers, configuration_olmoe.py. */
#include "frontends/hf/hf.h"

void sbp_hf_olmoe(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(
        hf, &(sbp_hf_defaults){
                .vocab = 50304, .heads = 16, .kv_heads = 0, .max_positions = 4096, .norm_eps = 1e-5});
    d.qkv_bias = d.o_bias = sbp_hf_bool(hf, "attention_bias", false);
    d.qk_norm = SBP_HF_QK_NORM_WHOLE;
    if (sbp_hf_field(hf, "clip_qkv"))
        sbp_hf_fail(hf, sbp_hf_field(hf, "clip_qkv"), "q, k and v that are clipped are not supported");
    d.rope[0] = sbp_hf_decoder_rope(hf, &d);
    d.experts = sbp_hf_experts_read(hf, d.layers,
                                    &(sbp_hf_experts_defaults){.count_key = "num_experts",
                                                               .other_count_key = "num_local_experts",
                                                               .count = 64,
                                                               .chosen = 8,
                                                               .inner_key = "intermediate_size",
                                                               .inner = d.inner,
                                                               .balance = 0.01,
                                                               .names = &sbp_hf_projections});
    sbp_hf_decoder_build(hf, &d);
}
