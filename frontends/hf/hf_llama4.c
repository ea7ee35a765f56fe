/* hf_llama4.c: Llama 4, the text model: most layers turn, by pairs of neighbours, and attend inside parts of
 * a document; the others have no positions, see everything, and scale queries by their position. Experts
 * read rows times what the router gives them. Formulas and defaults: transformers, modeling_llama4.py and
 * configuration_llama4.py. */
#include "frontends/hf/hf.h"

enum { TURNED, UNTURNED }; /* of rope[] */

static const sbp_hf_expert_names names = {.module = "feed_forward",
                                          .router = "router",
                                          .linear_router = true,
                                          .experts = {"gate_proj", "up_proj", "down_proj"},
                                          .fused = "gate_up_proj"};
static const sbp_hf_branch attention = {.name = "attn",
                                        .norm_in = "input_layernorm",
                                        .mixer = {{sbp_hf_mix_attention, "self_attn", 1, 1}}},
                           mlp = {.name = "mlp",
                                  .norm_in = "post_attention_layernorm",
                                  .mixer = {{sbp_hf_mix_mlp, "feed_forward", 1, 1}}};

/* no_rope_layers: 1 where a layer turns; empty: every no_rope_layer_interval-th does not. */
static void read_turns(sbp_hf *hf, const sbp_hf_decoder *d, bool *turns) {
    const sbp_json *list = sbp_hf_field(hf, "no_rope_layers");
    int64_t every = sbp_hf_size(hf, "no_rope_layer_interval", 4), yes = 0;
    bool given = list && !(list->kind == SBP_JSON_ARRAY && list->count == 0);
    if (given && (list->kind != SBP_JSON_ARRAY || list->count < d->layers))
        sbp_hf_fail(hf, list, "expected an array of %lld numbers (num_hidden_layers), 1 where a layer turns",
                    (long long)d->layers);
    for (int64_t i = 0; i < d->layers && hf->builder.status == SBP_OK; i++) {
        turns[i] = (i + 1) % every != 0;
        if (given)
            hf->builder.status = sbp_json_as_i64(hf->diag, &list->items[i], &yes);
        turns[i] = given ? yes != 0 : turns[i];
    }
}

static void read_layers(sbp_hf *hf, sbp_hf_decoder *d) {
    bool whole = sbp_hf_is_null(hf, "attention_chunk_size");
    int64_t part = whole ? 0 : sbp_hf_size(hf, "attention_chunk_size", 8192);
    if (hf->builder.status != SBP_OK)
        return;
    bool *turns = SBP_NEW_ARRAY(hf->arena, bool, 2 * d->layers), *parts = turns + d->layers;
    read_turns(hf, d, turns);
    bool given =
        sbp_hf_layer_words(hf, "layer_types", d->layers, "full_attention", "chunked_attention", parts);
    for (int64_t i = 0; i < d->layers && hf->builder.status == SBP_OK; i++) {
        d->layer[i].rope = turns[i] ? TURNED : UNTURNED;
        d->layer[i].part = (given ? parts[i] : turns[i]) ? part : 0;
        if (given && parts[i] && whole)
            sbp_hf_fail(hf, sbp_hf_field(hf, "layer_types"),
                        "layer %lld is chunked_attention, but attention_chunk_size is null", (long long)i);
        if (d->experts.sparse && d->experts.sparse[i])
            continue;
        d->layer[i].branch[0] = &attention;
        d->layer[i].branch[1] = &mlp;
    }
}

/* moe_layers: the numbers of those with experts, in place of a step between them. */
static void read_sparse(sbp_hf *hf, sbp_hf_decoder *d) {
    const sbp_json *list = sbp_hf_field(hf, "moe_layers");
    if (list && list->kind != SBP_JSON_ARRAY)
        sbp_hf_fail(hf, list, "expected an array of layer numbers");
    if (!list || hf->builder.status != SBP_OK)
        return;
    bool *sparse = SBP_NEW_ARRAY(hf->arena, bool, d->layers);
    for (int64_t i = 0; i < list->count && hf->builder.status == SBP_OK; i++) {
        int64_t layer = -1;
        hf->builder.status = sbp_json_as_i64(hf->diag, &list->items[i], &layer);
        if (layer >= 0 && layer < d->layers)
            sparse[layer] = true;
    }
    d->experts.sparse = sparse;
}

static void read_experts(sbp_hf *hf, sbp_hf_decoder *d) {
    d->experts = sbp_hf_experts_read(hf, d->layers,
                                     &(sbp_hf_experts_defaults){.count_key = "num_local_experts",
                                                                .count = 16,
                                                                .chosen = 1,
                                                                .inner_key = "intermediate_size",
                                                                .inner = 8192,
                                                                .shared_key = "intermediate_size",
                                                                .shared = 8192,
                                                                .step_key = "interleave_moe_layer_step",
                                                                .fused = true,
                                                                .names = &names});
    hf->model->balance.coefficient = 0; /* whatever router_aux_loss_coef says: the class has no such loss */
    d->experts.router.score = SBP_HF_SCORE_LOGIT_SIGMOID;
    d->experts.turned = d->experts.weighs_rows = true;
    d->experts.shared_gated = false;
    read_sparse(hf, d);
}

void sbp_hf_llama4(sbp_hf *hf) {
    sbp_hf_decoder d =
        sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 202048,
                                                   .hidden = 5120,
                                                   .inner = 8192,
                                                   .layers = 48,
                                                   .heads = 40,
                                                   .kv_heads = 8,
                                                   .head_dim = sbp_hf_is_null(hf, "head_dim") ? 0 : 128,
                                                   .max_positions = 131072,
                                                   .norm_eps = 1e-5});
    hf->within_multimodal = true; /* Llama4ForConditionalGeneration */
    d.qkv_bias = d.o_bias = sbp_hf_bool(hf, "attention_bias", false);
    d.qk_norm = sbp_hf_bool(hf, "use_qk_norm", true) ? SBP_HF_QK_NORM_BARE : SBP_HF_QK_NORM_NONE;
    d.qk_norm_turned = true;
    read_experts(hf, &d);
    d.inner = sbp_hf_size(hf, "intermediate_size_mlp", 16384);
    read_layers(hf, &d);
    d.rope[TURNED] = sbp_hf_rope_read(hf, &(sbp_hf_rope_shape){.head_dim = d.head_dim,
                                                               .rotary_dim = d.head_dim,
                                                               .theta = 5e5,
                                                               .max_positions = d.max_positions});
    d.rope[TURNED].interleaved = true;
    double scale = sbp_hf_double(hf, "attn_scale", 0.1);
    d.rope[UNTURNED] =
        (sbp_hf_rope){.temper_length = sbp_hf_size(hf, "floor_scale", 8192), .temper_shift = 1};
    if (sbp_hf_bool(hf, "attn_temperature_tuning", true))
        d.rope[UNTURNED].temper = scale;
    sbp_hf_decoder_build(hf, &d);
}
