/* hf_qwen2.c: Qwen2 and Qwen2.5: Llama with biases on q, k and v; Seed-OSS, which says where. */
#include "frontends/hf/hf.h"

/* With use_sliding_window false, sliding_window counts as null whatever the file says. */
void sbp_hf_qwen_windows(sbp_hf *hf, sbp_hf_decoder *d, int64_t default_first) {
    bool use = sbp_hf_bool(hf, "use_sliding_window", false) && !sbp_hf_is_null(hf, "sliding_window");
    int64_t window = sbp_hf_size(hf, "sliding_window", 4096),
            first = sbp_hf_count(hf, "max_window_layers", default_first);
    if (hf->builder.status != SBP_OK)
        return;
    bool *sliding = SBP_NEW_ARRAY(hf->arena, bool, d->layers);
    if (!sbp_hf_layer_types(hf, d->layers, sliding))
        for (int64_t i = 0; i < d->layers; i++)
            sliding[i] = use && i >= first;
    for (int64_t i = 0; i < d->layers; i++)
        sbp_hf_set_window(hf, d, i, sliding[i], use ? window : 0, SBP_HF_NO_WINDOW);
}

void sbp_hf_qwen2(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(
        hf, &(sbp_hf_defaults){.kv_heads = 32, .head_dim_rounds = true, .max_positions = 32768});
    d.qkv_bias = true;
    sbp_hf_qwen_windows(hf, &d, 28);
    d.rope[0] = sbp_hf_decoder_rope(hf, &d);
    sbp_hf_decoder_build(hf, &d);
}

/* Fields and their defaults: transformers, configuration_seed_oss.py. */
void sbp_hf_seed_oss(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 155136,
                                                                  .hidden = 4096,
                                                                  .inner = 27648,
                                                                  .layers = 64,
                                                                  .heads = 80,
                                                                  .kv_heads = 8,
                                                                  .head_dim = 128,
                                                                  .max_positions = 524288});
    d.qkv_bias = sbp_hf_bool(hf, "attention_bias", true);
    d.o_bias = sbp_hf_bool(hf, "attention_out_bias", false);
    d.mlp_bias = sbp_hf_bool(hf, "mlp_bias", false);
    d.rope[0] = sbp_hf_decoder_rope(hf, &d);
    sbp_hf_decoder_build(hf, &d);
}
