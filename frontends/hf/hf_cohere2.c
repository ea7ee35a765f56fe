/* hf_cohere2.c: Cohere 2 (Command R7B, Command A): attention beside the MLP, on one norm that has no bias;
 * layers with a window turn, by pairs of neighbours, and the others have no positions. Fields and their
 * defaults: transformers, configuration_cohere2.py. */
#include "frontends/hf/hf.h"

static const sbp_hf_branch both = {
    .name = "layer",
    .norm_in = "input_layernorm",
    .mixer = {{sbp_hf_mix_attention, "self_attn", 1, 1}, {sbp_hf_mix_mlp, "mlp", 1, 1}},
    .in_name = "attn_norm",
    .alone = true};

void sbp_hf_cohere2(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 256000,
                                                                  .hidden = 8192,
                                                                  .inner = 22528,
                                                                  .layers = 40,
                                                                  .heads = 64,
                                                                  .head_dim_rounds = true,
                                                                  .max_positions = 8192,
                                                                  .tied = true,
                                                                  .norm_eps = 1e-5,
                                                                  .eps_key = "layer_norm_eps"});
    d.norm.style = SBP_HF_LAYER_NORM_NO_BIAS;
    d.qkv_bias = d.o_bias = sbp_hf_bool(hf, "attention_bias", false);
    d.logits_scale = sbp_hf_double(hf, "logit_scale", 0.0625);
    sbp_hf_two_kinds(hf, &d, sbp_hf_size(hf, "sliding_window_pattern", 4));
    for (int64_t i = 0; i < d.layers && hf->builder.status == SBP_OK; i++) {
        d.layer[i].branch[0] = &both;
        d.layer[i].no_rope = d.layer[i].window == 0;
        d.layer[i].rope = 0;
    }
    d.rope[0] = sbp_hf_decoder_rope(hf, &d);
    d.rope[0].interleaved = true;
    sbp_hf_decoder_build(hf, &d);
}
