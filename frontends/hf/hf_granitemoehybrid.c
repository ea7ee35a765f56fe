/* hf_granitemoehybrid.c: Granite 4: most layers mix rows by Mamba-2, some by attention, which knows no
 * positions; an MLP that all rows share, and experts beside it in some models; numbers on embedding, scores,
 * branches and logits. Formulas and names: transformers, modeling_granitemoehybrid.py; fields and their
 * defaults: configuration_granitemoehybrid.py. */
#include <string.h>

#include "frontends/hf/hf.h"

sbp_value sbp_hf_mix_halves(const sbp_hf_scope *at, sbp_value x) {
    sbp_builder *b = &at->hf->builder;
    int64_t n = at->d->inner;
    x = sbp_hf_map(at, "gate_up", x, "input_linear", 2 * n, at->d->hidden, false);
    sbp_value gate = sbp_build_slice(b, x, 0, n), up = sbp_build_slice(b, x, n, n);
    x = sbp_hf_gate(at->hf, at->d->activation, "act", gate, up);
    return sbp_hf_map(at, "shared_proj", x, "output_linear", at->d->hidden, n, false);
}

#define SHARED                                                                                               \
    { sbp_hf_mix_halves, "shared_mlp", 1, 1 }
static const sbp_hf_branch state = {.name = "ssd",
                                    .norm_in = "input_layernorm",
                                    .mixer = {{sbp_hf_mix_mamba, "mamba", 1, 1}}},
                           dense = {.name = "mlp", .norm_in = "post_attention_layernorm", .mixer = {SHARED}},
                           sparse = {.name = "mlp",
                                     .norm_in = "post_attention_layernorm",
                                     .mixer = {SHARED, {sbp_hf_mix_experts, "block_sparse_moe", 1, 1}}};

/* layer_types, or layers_block_type; without them no layer attends. */
static void read_layers(sbp_hf *hf, sbp_hf_decoder *d) {
    const sbp_json *types = sbp_hf_field(hf, "layer_types"), *old = sbp_hf_field(hf, "layers_block_type");
    types = types ? types : old;
    if (types && (types->kind != SBP_JSON_ARRAY || types->count != d->layers))
        sbp_hf_fail(hf, types, "expected an array of %lld layer types (num_hidden_layers)",
                    (long long)d->layers);
    for (int64_t i = 0; i < d->layers && hf->builder.status == SBP_OK; i++) {
        const sbp_json *type = types ? &types->items[i] : NULL;
        const char *text = !type                           ? "mamba"
                           : type->kind == SBP_JSON_STRING ? type->string
                                                           : sbp_json_kind_name(type->kind);
        bool attends = strcmp(text, "attention") == 0 || strcmp(text, "full_attention") == 0;
        if (!attends && strcmp(text, "mamba") != 0 && strcmp(text, "linear_attention") != 0)
            sbp_hf_fail(hf, type, "layer type %s is not supported; attention or mamba expected", text);
        d->layer[i].branch[0] = attends ? NULL : &state;
        d->layer[i].branch[1] = d->experts.sparse ? &sparse : &dense;
    }
}

static sbp_hf_experts read_experts(sbp_hf *hf, int64_t layers) {
    static const sbp_hf_expert_names names = {.module = "block_sparse_moe",
                                              .router = "router.layer",
                                              .experts = {[SBP_HF_EXPERT_GATE] = "gate",
                                                          [SBP_HF_EXPERT_UP] = "up",
                                                          [SBP_HF_EXPERT_DOWN] = "output_linear.weight"},
                                              .fused = "input_linear.weight",
                                              .always_fused = true};
    int64_t count = sbp_hf_count(hf, "num_local_experts", 8),
            inner = sbp_hf_size(hf, "intermediate_size", 11008);
    const sbp_hf_experts_defaults defaults = {.count_key = "num_local_experts",
                                              .count = count,
                                              .chosen = 2,
                                              .inner_key = "intermediate_size",
                                              .inner = inner,
                                              .always_normalized = true,
                                              .fused = true,
                                              .balance = 0.001,
                                              .names = &names};
    sbp_hf_experts e = {0};
    if (count > 0) {
        e = sbp_hf_experts_read(hf, layers, &defaults);
        e.router.score = SBP_HF_SCORE_LOGIT;
        return e;
    }
    (void)sbp_hf_field(hf, "num_experts_per_tok");
    (void)sbp_hf_field(hf, "output_router_logits");
    (void)sbp_hf_field(hf, "router_aux_loss_coef");
    return e;
}

/* Without positions the fields of rotation say nothing. */
static void read_turn(sbp_hf *hf, sbp_hf_decoder *d) {
    static const char *const fields[] = {"rope_parameters", "rope_scaling", "rope_theta"};
    bool turns = strcmp(sbp_hf_string(hf, "position_embedding_type", "nope"), "rope") == 0;
    if (turns)
        d->rope[0] = sbp_hf_decoder_rope(hf, d);
    for (int i = 0; i < SBP_COUNT(fields) && !turns; i++)
        (void)sbp_hf_field(hf, fields[i]);
    for (int64_t i = 0; i < d->layers && hf->builder.status == SBP_OK; i++)
        d->layer[i].no_rope = !turns;
}

void sbp_hf_granitemoehybrid(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 32000,
                                                                  .hidden = 4096,
                                                                  .inner = 11008,
                                                                  .layers = 32,
                                                                  .heads = 32,
                                                                  .head_dim_rounds = true,
                                                                  .max_positions = 2048});
    d.inner = sbp_hf_size(hf, "shared_intermediate_size", 1024);
    d.qkv_bias = d.o_bias = sbp_hf_bool(hf, "attention_bias", false);
    sbp_hf_granite_scales(hf, &d);
    d.mamba = sbp_hf_mamba_read(hf, &d, sbp_hf_size(hf, "mamba_expand", 2) * d.hidden,
                                "mamba_expand * hidden_size");
    d.experts = read_experts(hf, d.layers);
    read_layers(hf, &d);
    read_turn(hf, &d);
    sbp_hf_decoder_build(hf, &d);
}
