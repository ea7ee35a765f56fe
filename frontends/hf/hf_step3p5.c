/* hf_step3p5.c: Step 3.5 and the text model of Step 3.7: heads of queries differ by kind of layer, and have a
 * gate each; experts, and one that all rows share, are bounded behind their activation in some layers.
 * Formulas, names and defaults: transformers, modeling_step3p7.py and configuration_step3p7.py. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "frontends/hf/hf.h"

/* Heads of layers with a window; per_layer_config says them again for each of these. */
static void read_heads(sbp_hf *hf, sbp_hf_decoder *d) {
    const sbp_json *own = sbp_hf_field(hf, "per_layer_config"),
                   *other =
                       sbp_json_member(sbp_hf_field(hf, "attention_other_setting"), "num_attention_heads");
    int64_t sliding = d->heads;
    if (other && hf->builder.status == SBP_OK)
        hf->builder.status = sbp_json_as_i64(hf->diag, other, &sliding);
    sliding = sbp_hf_size(hf, "num_sliding_attention_heads", sliding);
    for (int64_t i = 0; i < d->layers && hf->builder.status == SBP_OK; i++) {
        const sbp_json *layer = sbp_json_member(own, sbp_hf_path(hf, "%lld", (long long)i)),
                       *heads = sbp_json_member(layer, "num_attention_heads");
        int64_t n = d->layer[i].window > 0 ? sliding : d->heads;
        if (heads)
            hf->builder.status = sbp_json_as_i64(hf->diag, heads, &n);
        if (n < 1 || n > INT32_MAX || n % d->kv_heads != 0)
            sbp_hf_fail(hf, heads, "layer %lld has %lld heads, no multiple of its %lld of keys", (long long)i,
                        (long long)n, (long long)d->kv_heads);
        d->layer[i].heads = n;
    }
}

/* rope_parameters, or an item for each layer in rope_theta and partial_rotary_factors. */
static void read_ropes(sbp_hf *hf, sbp_hf_decoder *d) {
    const sbp_json *theta = sbp_hf_field(hf, "rope_theta"), *scaling = sbp_hf_field(hf, "rope_scaling"),
                   *parts = sbp_hf_layer_list(hf, "partial_rotary_factors", d->layers);
    if (sbp_hf_field(hf, "rope_parameters")) {
        sbp_hf_kind_ropes(hf, d, 1, "");
        return;
    }
    bool list = theta && theta->kind == SBP_JSON_ARRAY;
    double same = list ? 1e4 : sbp_hf_double(hf, "rope_theta", 1e4);
    theta = list ? sbp_hf_layer_list(hf, "rope_theta", d->layers) : NULL;
    for (int64_t i = 0; i < d->layers && hf->builder.status == SBP_OK; i++) {
        sbp_hf_rope *rope = &d->rope[d->layer[i].rope];
        double part = sbp_hf_layer_number(hf, parts, i, 1);
        sbp_hf_rope_shape shape = {.head_dim = d->head_dim,
                                   .rotary_dim = (int64_t)((double)d->head_dim * part),
                                   .theta = sbp_hf_layer_number(hf, theta, i, same),
                                   .max_positions = d->max_positions};
        if (!rope->inv_freq)
            *rope = sbp_hf_rope_from(hf, d->layer[i].window == 0 ? scaling : NULL, NULL, &shape);
    }
}

/* Which layers have experts: mlp_layer_types, or their numbers in moe_layers_enum, else the fourth and on. */
static void read_sparse(sbp_hf *hf, const sbp_hf_decoder *d, bool *sparse) {
    const char *numbers = sbp_hf_string(hf, "moe_layers_enum", NULL);
    for (int64_t i = 0; i < d->layers && hf->builder.status == SBP_OK; i++)
        sparse[i] = !numbers && i >= 3;
    for (char *end = NULL; numbers && *numbers; numbers = *end == ',' ? end + 1 : "") {
        int64_t layer = strtoll(numbers, &end, 10);
        if (layer >= 0 && layer < d->layers && end != numbers)
            sparse[layer] = true;
    }
    (void)sbp_hf_layer_words(hf, "mlp_layer_types", d->layers, "dense", "sparse", sparse);
}

/* Experts of all layers; bounds differ. */
static void read_experts(sbp_hf *hf, sbp_hf_decoder *d) {
    static const sbp_hf_expert_names names = {.module = "moe",
                                              .class_module = "mlp",
                                              .router = "gate",
                                              .experts = {[SBP_HF_EXPERT_GATE] = "gate_proj",
                                                          [SBP_HF_EXPERT_UP] = "up_proj",
                                                          [SBP_HF_EXPERT_DOWN] = "down_proj"},
                                              .stacked = true};
    static const sbp_hf_branch branch = {
        .name = "mlp",
        .norm_in = "post_attention_layernorm",
        .mixer = {{sbp_hf_mix_mlp, "share_expert", 1, 1, "mlp.shared_experts"},
                  {sbp_hf_mix_experts, "moe", 1, 1, NULL}}};
    const sbp_json *limits = sbp_hf_layer_list(hf, "swiglu_limits", d->layers),
                   *shared = sbp_hf_layer_list(hf, "swiglu_limits_shared", d->layers);
    int64_t width = sbp_hf_size(hf, "share_expert_dims", 1280);
    width = sbp_hf_size(hf, "share_expert_dim", width);
    d->experts = sbp_hf_experts_read(hf, d->layers,
                                     &(sbp_hf_experts_defaults){.count_key = "n_routed_experts",
                                                                .other_count_key = "moe_num_experts",
                                                                .count = 288,
                                                                .chosen = sbp_hf_size(hf, "moe_top_k", 8),
                                                                .inner_key = "moe_intermediate_size",
                                                                .inner = 1280,
                                                                .always_normalized = true,
                                                                .names = &names});
    d->experts.router.score = SBP_HF_SCORE_SIGMOID;
    d->experts.router.correction = "router_bias";
    d->experts.router.scaling = sbp_hf_double(hf, "moe_router_scaling_factor", 1);
    if (hf->builder.status != SBP_OK)
        return;
    read_sparse(hf, d, d->experts.sparse);
    sbp_hf_experts *e = SBP_NEW_ARRAY(hf->arena, sbp_hf_experts, d->layers);
    for (int64_t i = 0; i < d->layers; i++) {
        bool sparse = d->experts.sparse[i];
        e[i] = d->experts;
        e[i].limit = sbp_hf_layer_number(hf, limits, i, 0);
        d->layer[i].experts = &e[i];
        d->layer[i].limit = sbp_hf_layer_number(hf, shared, i, 0);
        d->layer[i].inner = sparse ? width : 0;
        d->layer[i].branch[1] = sparse ? &branch : NULL;
    }
}

void sbp_hf_step3p5(sbp_hf *hf) {
    sbp_hf_decoder d =
        sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 128815,
                                                   .hidden = 4096,
                                                   .inner = 11264,
                                                   .layers = 45,
                                                   .heads = 64,
                                                   .kv_heads = sbp_hf_size(hf, "num_attention_groups", 8),
                                                   .head_dim = 128,
                                                   .max_positions = 128000,
                                                   .norm_eps = 1e-5,
                                                   .activation_key = ""});
    bool *sliding = SBP_NEW_ARRAY(hf->arena, bool, hf->builder.status == SBP_OK ? d.layers : 1);
    int64_t window = sbp_hf_is_null(hf, "sliding_window") ? 0 : sbp_hf_count(hf, "sliding_window", 0);
    hf->within_multimodal = true; /* Step3p7ForConditionalGeneration */
    d.norm.style = SBP_HF_RMS_NORM_PLUS_ONE;
    d.qk_norm = SBP_HF_QK_NORM_HEAD;
    d.qkv_bias = d.o_bias = sbp_hf_bool(hf, "attention_bias", false);
    d.mlp_bias = sbp_hf_bool(hf, "mlp_bias", false);
    d.score_scale = pow(sbp_hf_double(hf, "query_pre_attn_scalar", (double)d.head_dim), -0.5);
    d.names.attn_gate = "g_proj";
    d.gate_by_head = true;
    (void)sbp_hf_layer_types(hf, d.layers, sliding);
    for (int64_t i = 0; i < d.layers && hf->builder.status == SBP_OK; i++) {
        sbp_hf_set_window(hf, &d, i, sliding[i], window, "sliding_window is null");
        d.layer[i].rope = sliding[i];
    }
    read_heads(hf, &d);
    read_ropes(hf, &d);
    read_experts(hf, &d);
    sbp_hf_decoder_build(hf, &d);
}
