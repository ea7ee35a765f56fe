/* hf_qwen3_moe.c: Qwen3 with experts in place of most MLPs. Fields and their defaults: transformers,
 * configuration_qwen3_moe.py. */
#include "frontends/hf/hf.h"

/* Layers that keep an MLP: those of mlp_only_layers, and all but every decoder_sparse_step-th. */
static void read_layers(sbp_hf *hf, sbp_hf_decoder *d) {
    const sbp_json *dense = sbp_hf_field(hf, "mlp_only_layers");
    int64_t step = sbp_hf_size(hf, "decoder_sparse_step", 1);
    if (dense && dense->kind != SBP_JSON_ARRAY)
        sbp_hf_fail(hf, dense, "expected an array of layer numbers");
    for (int64_t i = 0; i < d->layers && hf->builder.status == SBP_OK; i++)
        d->layer[i].sparse = (i + 1) % step == 0;
    for (int64_t i = 0; dense && i < dense->count && hf->builder.status == SBP_OK; i++) {
        int64_t layer = 0;
        hf->builder.status = sbp_json_as_i64(hf->diag, &dense->items[i], &layer);
        if (hf->builder.status == SBP_OK && layer >= 0 && layer < d->layers)
            d->layer[layer].sparse = false;
    }
}

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
    d.experts = sbp_hf_experts_read(hf, &(sbp_hf_experts_defaults){.count_key = "num_experts",
                                                                   .other_count_key = "num_local_experts",
                                                                   .count = 128,
                                                                   .chosen = 8,
                                                                   .inner_key = "moe_intermediate_size",
                                                                   .inner = 768,
                                                                   .balance = 0.001,
                                                                   .names = &sbp_hf_projections});
    read_layers(hf, &d);
    sbp_hf_decoder_build(hf, &d);
}
