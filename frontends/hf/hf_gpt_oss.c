/* hf_gpt_oss.c: GPT-OSS: attention with sinks, every other layer over a window; experts in all layers, with
 * biases and a clamped gate. Fields and their defaults: transformers, configuration_gpt_oss.py. */
#include <string.h>

#include "frontends/hf/hf.h"

static const sbp_hf_expert_names names = {.module = "mlp",
                                          .router = "router",
                                          .experts = {[SBP_HF_EXPERT_DOWN] = "down_proj"},
                                          .fused = "gate_up_proj"};

/* layer_types, or every other layer from the first on has the window. */
static void read_layers(sbp_hf *hf, sbp_hf_decoder *d) {
    int64_t window = sbp_hf_is_null(hf, "sliding_window") ? 0 : sbp_hf_size(hf, "sliding_window", 128);
    bool *sliding = SBP_NEW_ARRAY(hf->arena, bool, hf->builder.status == SBP_OK ? d->layers : 1);
    if (hf->builder.status == SBP_OK && !sbp_hf_layer_types(hf, d->layers, sliding))
        for (int64_t i = 0; i < d->layers; i++)
            sliding[i] = i % 2 == 0;
    for (int64_t i = 0; i < d->layers && hf->builder.status == SBP_OK; i++)
        sbp_hf_set_window(hf, d, i, sliding[i], window, "sliding_window is null");
}

/* An old name, which transformers does not read: what it says has to be the same. */
static void check_old_name(sbp_hf *hf, const sbp_hf_experts *e) {
    const sbp_json *old = sbp_hf_field(hf, "experts_per_token");
    int64_t chosen = sbp_hf_size(hf, "experts_per_token", e->chosen);
    (void)sbp_hf_field(hf, "initial_context_length");
    if (hf->builder.status == SBP_OK && chosen != e->chosen)
        sbp_hf_fail(hf, old, "%lld, but num_experts_per_tok is %lld", (long long)chosen,
                    (long long)e->chosen);
}

/* Released files have the experts in blocks of 4 bits, which are read as they are and stay frozen. Without
 * the field they are numbers like any others. */
static void read_blocks(sbp_hf *hf, sbp_hf_experts *e) {
    const sbp_json *field = sbp_hf_field(hf, "quantization_config");
    const char *method = NULL;
    if (hf->builder.status != SBP_OK)
        return;
    bool here = sbp_hf_has_tensor(
        hf, sbp_weights_pair_name(hf->arena, "model.layers.0.mlp.experts.gate_up_proj_blocks"));
    e->blocks = field ? here || !hf->weights : here;
    e->frozen_blocks = field != NULL;
    if (!field)
        return;
    hf->builder.status = sbp_json_get_string(hf->diag, field, "quant_method", SBP_JSON_REQUIRED, &method);
    if (hf->builder.status == SBP_OK && strcmp(method, "mxfp4") != 0)
        sbp_hf_fail(hf, field, "quant_method '%.40s': of this model mxfp4 is read", method);
    else if (hf->builder.status == SBP_OK && !e->blocks)
        sbp_hf_fail(
            hf, field,
            "the weights have no model.layers.0.mlp.experts.gate_up_proj_blocks and _scales of one shape; "
            "--set quantization_config=null reads weights that are not in blocks");
    hf->model->carries |= hf->builder.status == SBP_OK;
}

/* Blocks go along the rows of both products, so these are whole blocks. */
static void check_blocks(sbp_hf *hf, const char *key, int64_t size) {
    int64_t block = sbp_format_of(SBP_FORMAT_MXFP4)->block;
    if (hf->builder.status == SBP_OK && size % block != 0)
        sbp_hf_fail(hf, sbp_hf_field(hf, key),
                    "%lld; where experts are in mxfp4, whose blocks are of %lld numbers, a multiple of that "
                    "is expected",
                    (long long)size, (long long)block);
}

void sbp_hf_gpt_oss(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 201088,
                                                                  .heads = 64,
                                                                  .kv_heads = 8,
                                                                  .head_dim = 64,
                                                                  .max_positions = 131072,
                                                                  .norm_eps = 1e-5});
    d.norm.style = SBP_HF_RMS_NORM_WIDE;
    d.qkv_bias = d.o_bias = sbp_hf_bool(hf, "attention_bias", true);
    d.sinks = true;
    d.rope[0] = sbp_hf_rope_read(
        hf, &(sbp_hf_rope_shape){
                .head_dim = d.head_dim,
                .rotary_dim = d.head_dim,
                .theta = 150000,
                .max_positions = d.max_positions,
                .own = "{\"rope_type\": \"yarn\", \"factor\": 32.0, \"beta_fast\": 32.0, \"beta_slow\": 1.0, "
                       "\"truncate\": false, \"original_max_position_embeddings\": 4096}"});
    read_layers(hf, &d);
    d.experts = sbp_hf_experts_read(hf, d.layers,
                                    &(sbp_hf_experts_defaults){.count_key = "num_local_experts",
                                                               .other_count_key = "num_experts",
                                                               .count = 128,
                                                               .chosen = 4,
                                                               .inner_key = "intermediate_size",
                                                               .inner = d.inner,
                                                               .balance = 0.001,
                                                               .names = &names});
    check_old_name(hf, &d.experts);
    read_blocks(hf, &d.experts);
    if (d.experts.blocks) {
        check_blocks(hf, "hidden_size", d.hidden);
        check_blocks(hf, "intermediate_size", d.experts.inner);
    }
    d.experts.router = (sbp_hf_router){.score = SBP_HF_SCORE_LOGIT, .bias = true};
    d.experts.clamped = true;
    d.experts.limit = sbp_hf_double(hf, "swiglu_limit", 7);
    d.experts.alpha = sbp_hf_double(hf, "swiglu_alpha", 1.702);
    sbp_hf_decoder_build(hf, &d);
}
