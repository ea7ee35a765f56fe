/* hf_granite.c: Granite 3: Llama with numbers on embedding, scores, branches and logits; and what goes on
 * from it with windows and sinks. */
#include "frontends/hf/hf.h"

void sbp_hf_granite_scales(sbp_hf *hf, sbp_hf_decoder *d) {
    d->embed_scale = sbp_hf_double(hf, "embedding_multiplier", 1);
    d->score_scale = sbp_hf_double(hf, "attention_multiplier", 1);
    d->branch_scale = sbp_hf_double(hf, "residual_multiplier", 1);
    d->logits_divisor = sbp_hf_double(hf, "logits_scaling", 1);
}

static sbp_hf_decoder read(sbp_hf *hf, const sbp_hf_defaults *defaults) {
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, defaults);
    d.qkv_bias = d.o_bias = sbp_hf_bool(hf, "attention_bias", false);
    d.mlp_bias = sbp_hf_bool(hf, "mlp_bias", false);
    sbp_hf_granite_scales(hf, &d);
    return d;
}

void sbp_hf_granite(sbp_hf *hf) {
    sbp_hf_decoder d = read(hf, &(sbp_hf_defaults){.head_dim_rounds = true, .max_positions = 2048});
    d.rope[0] = sbp_hf_decoder_rope(hf, &d);
    sbp_hf_decoder_build(hf, &d);
}

/* layer_types, or every fourth layer from the first on has no window. */
static void read_layers(sbp_hf *hf, sbp_hf_decoder *d) {
    int64_t window = sbp_hf_is_null(hf, "sliding_window") ? 0 : sbp_hf_size(hf, "sliding_window", 128);
    if (hf->builder.status != SBP_OK)
        return;
    bool *sliding = SBP_NEW_ARRAY(hf->arena, bool, d->layers);
    if (!sbp_hf_layer_types(hf, d->layers, sliding))
        for (int64_t i = 0; i < d->layers; i++)
            sliding[i] = i % 4 != 0;
    for (int64_t i = 0; i < d->layers; i++)
        sbp_hf_set_window(hf, d, i, sliding[i], window, "sliding_window is null");
}

void sbp_hf_granite_swa(sbp_hf *hf) {
    sbp_hf_decoder d = read(hf, &(sbp_hf_defaults){.vocab = 100352,
                                                   .hidden = 2560,
                                                   .inner = 8192,
                                                   .layers = 24,
                                                   .heads = 20,
                                                   .kv_heads = 4,
                                                   .head_dim_rounds = true,
                                                   .max_positions = 8192,
                                                   .tied = true,
                                                   .norm_eps = 1e-5});
    d.sinks = true;
    read_layers(hf, &d);
    sbp_hf_layer_thetas(hf, &d, 1e4);
    sbp_hf_decoder_build(hf, &d);
}

static const sbp_hf_branch experts = {.name = "mlp",
                                      .norm_in = "post_attention_layernorm",
                                      .mixer = {{sbp_hf_mix_experts, "block_sparse_moe", 1, 1}}},
                           experts_and_mlp = {.name = "mlp",
                                              .norm_in = "post_attention_layernorm",
                                              .mixer = {{sbp_hf_mix_halves, "shared_mlp", 1, 1},
                                                        {sbp_hf_mix_experts, "block_sparse_moe", 1, 1}}};

void sbp_hf_granitemoe_swa(sbp_hf *hf) {
    static const sbp_hf_expert_names names = {.module = "block_sparse_moe",
                                              .router = "router",
                                              .experts = {[SBP_HF_EXPERT_GATE] = "gate_proj",
                                                          [SBP_HF_EXPERT_UP] = "up_proj",
                                                          [SBP_HF_EXPERT_DOWN] = "down_proj"},
                                              .fused = "gate_up_proj"};
    sbp_hf_decoder d = read(hf, &(sbp_hf_defaults){.vocab = 32000,
                                                   .hidden = 4096,
                                                   .inner = 11008,
                                                   .layers = 32,
                                                   .heads = 32,
                                                   .head_dim_rounds = true,
                                                   .max_positions = 2048});
    d.sinks = true;
    read_layers(hf, &d);
    sbp_hf_layer_thetas(hf, &d, 1e4);
    d.experts = sbp_hf_experts_read(hf, d.layers,
                                    &(sbp_hf_experts_defaults){.count_key = "num_local_experts",
                                                               .count = 8,
                                                               .chosen = 2,
                                                               .inner_key = "intermediate_size",
                                                               .inner = d.inner,
                                                               .always_normalized = true,
                                                               .fused = true,
                                                               .balance = 0.001,
                                                               .names = &names});
    d.experts.router.score = SBP_HF_SCORE_LOGIT;
    d.inner = sbp_hf_count(hf, "shared_intermediate_size", 0);
    for (int64_t i = 0; i < d.layers && hf->builder.status == SBP_OK; i++)
        d.layer[i].branch[1] = d.inner > 0 ? &experts_and_mlp : &experts;
    sbp_hf_decoder_build(hf, &d);
}
