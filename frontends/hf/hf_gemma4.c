/* hf_gemma4.c: Gemma 4, text models, alone and within the multimodal files: layers with a window and layers
 * without, whose heads are wider; keys and values that several layers read; an embedding of tokens for each
 * layer; experts beside the MLP. Formulas: transformers, modeling_gemma4.py. */
#include <math.h>
#include <string.h>

#include "frontends/hf/hf_gemma.h"
#include "ir/graph/op.h"

static const sbp_hf_expert_names names = {.experts = {[SBP_HF_EXPERT_GATE] = "gate_proj",
                                                      [SBP_HF_EXPERT_UP] = "up_proj",
                                                      [SBP_HF_EXPERT_DOWN] = "down_proj"},
                                          .fused = "gate_up_proj"};

/* ---- configuration -------------------------------------------------------------------------------- */

/* transformers 5 may write what differs in layers as {"5": {"head_dim": 512, "num_key_value_heads": 4}}. */
static void read_overrides(sbp_hf *hf, sbp_hf_gemma *m) {
    const sbp_json *all = sbp_hf_field(hf, "per_layer_config");
    for (int64_t i = 0; all && i < m->d.layers && hf->builder.status == SBP_OK; i++) {
        const sbp_json *own = sbp_json_member(all, sbp_hf_path(hf, "%lld", (long long)i));
        for (int64_t k = 0; own && k < own->count && hf->builder.status == SBP_OK; k++) {
            int64_t *to = strcmp(own->items[k].key, "head_dim") == 0              ? &m->layer[i].head_dim
                          : strcmp(own->items[k].key, "num_key_value_heads") == 0 ? &m->layer[i].kv_heads
                                                                                  : NULL;
            if (!to)
                sbp_hf_fail(hf, own, "head_dim and num_key_value_heads are expected, found '%s'",
                            own->items[k].key);
            else
                hf->builder.status = sbp_json_as_i64(hf->diag, &own->items[k], to);
            if (to && hf->builder.status == SBP_OK && *to <= 0)
                sbp_hf_fail(hf, own, "%s is %lld; a positive number is expected", own->items[k].key,
                            (long long)*to);
        }
    }
}

static void read_layers(sbp_hf *hf, sbp_hf_gemma *m) {
    sbp_hf_decoder *d = &m->d;
    int64_t wide = sbp_hf_size(hf, "global_head_dim", 512),
            shared = sbp_hf_count(hf, "num_kv_shared_layers", 0);
    int64_t global = sbp_hf_is_null(hf, "num_global_key_value_heads")
                         ? d->kv_heads
                         : sbp_hf_size(hf, "num_global_key_value_heads", d->kv_heads);
    bool double_wide = sbp_hf_bool(hf, "use_double_wide_mlp", false);
    if (hf->builder.status != SBP_OK)
        return;
    bool *sliding = SBP_NEW_ARRAY(hf->arena, bool, d->layers);
    m->layer = SBP_NEW_ARRAY(hf->arena, sbp_hf_gemma_layer, d->layers);
    if (!sbp_hf_layer_types(hf, d->layers, sliding))
        for (int64_t i = 0; i < d->layers; i++)
            sliding[i] = (i + 1) % 6 != 0;
    if (d->layers > 0)
        sliding[d->layers - 1] = false; /* whatever the file says */
    for (int64_t i = 0; i < d->layers; i++) {
        bool reads = i >= d->layers - shared;
        int kind = sliding[i] ? SBP_HF_GEMMA_SLIDING : SBP_HF_GEMMA_FULL;
        m->layer[i] =
            (sbp_hf_gemma_layer){.kind = kind,
                                 .head_dim = sliding[i] ? d->head_dim : wide,
                                 .kv_heads = sliding[i] || !m->keys_are_values ? d->kv_heads : global};
        d->layer[i].inner = reads && double_wide ? 2 * d->inner : d->inner;
    }
    sbp_hf_gemma_share_keys(hf, m, shared);
    read_overrides(hf, m);
    for (int64_t i = 0; i < d->layers && hf->builder.status == SBP_OK; i++)
        if (d->heads % m->layer[i].kv_heads != 0)
            sbp_hf_fail(hf, sbp_hf_field(hf, "num_key_value_heads"),
                        "layer %lld has %lld of them, of which num_attention_heads %lld is no multiple",
                        (long long)i, (long long)m->layer[i].kv_heads, (long long)d->heads);
}

/* A set of rotary parameters for each kind of layer, for heads of its width. */
static void read_ropes(sbp_hf *hf, sbp_hf_gemma *m) {
    const sbp_json *both = sbp_hf_field(hf, "rope_parameters");
    static const char *const kinds[] = {"full_attention", "sliding_attention"},
                             own_full[] =
                                 "{\"rope_type\": \"proportional\", \"partial_rotary_factor\": 0.25}";
    const sbp_json *own = NULL;
    if (!both && hf->builder.status == SBP_OK)
        hf->builder.status = sbp_json_parse(hf->arena, hf->diag, "defaults", own_full, sizeof own_full - 1,
                                            SBP_JSON_PYTHON, &own);
    for (int kind = 0; kind < SBP_HF_GEMMA_KINDS && m->layer && hf->builder.status == SBP_OK; kind++) {
        int64_t head_dim = 0;
        for (int64_t i = 0; i < m->d.layers; i++)
            head_dim = m->layer[i].kind == kind ? m->layer[i].head_dim : head_dim;
        for (int64_t i = 0; i < m->d.layers; i++)
            if (m->layer[i].kind == kind && m->layer[i].head_dim != head_dim)
                sbp_hf_fail(hf, NULL, "layers of %s have heads of %lld and of %lld; one width is expected",
                            kinds[kind], (long long)m->layer[i].head_dim, (long long)head_dim);
        if (head_dim == 0)
            continue;
        const sbp_json *object = sbp_json_member(both, kinds[kind]);
        if (both && !object)
            sbp_hf_fail(hf, both, "an object each for full_attention and sliding_attention is expected");
        m->d.rope[kind] =
            sbp_hf_rope_from(hf, NULL,
                             object                      ? object
                             : kind == SBP_HF_GEMMA_FULL ? own
                                                         : NULL,
                             &(sbp_hf_rope_shape){.head_dim = head_dim,
                                                  .rotary_dim = head_dim,
                                                  .theta = kind == SBP_HF_GEMMA_FULL ? 1e6 : 1e4,
                                                  .max_positions = m->d.max_positions});
    }
}

static void read_experts(sbp_hf *hf, sbp_hf_gemma *m) {
    static const char *const fields[] = {"num_experts", "top_k_experts", "moe_intermediate_size"};
    m->has_experts = sbp_hf_bool(hf, "enable_moe_block", false);
    for (int32_t i = 0; i < SBP_COUNT(fields) && !m->has_experts; i++)
        (void)sbp_hf_field(hf, fields[i]);
    if (!m->has_experts)
        return;
    m->d.experts = (sbp_hf_experts){.count = sbp_hf_size(hf, "num_experts", SBP_HF_REQUIRED),
                                    .chosen = sbp_hf_size(hf, "top_k_experts", SBP_HF_REQUIRED),
                                    .inner = sbp_hf_size(hf, "moe_intermediate_size", SBP_HF_REQUIRED),
                                    .router.normalized = true,
                                    .fused = true,
                                    .names = &names};
    if (hf->builder.status == SBP_OK && m->d.experts.chosen > m->d.experts.count)
        sbp_hf_fail(hf, sbp_hf_field(hf, "top_k_experts"), "%lld of %lld experts",
                    (long long)m->d.experts.chosen, (long long)m->d.experts.count);
}

/* Text never looks ahead; with "vision" only rows of images would. */
static void check_direction(sbp_hf *hf) {
    const char *text = sbp_hf_is_null(hf, "use_bidirectional_attention")
                           ? "vision"
                           : sbp_hf_string(hf, "use_bidirectional_attention", "vision");
    if (strcmp(text, "vision") != 0)
        sbp_hf_fail(hf, sbp_hf_field(hf, "use_bidirectional_attention"),
                    "'%s' is not supported: attention is causal", text);
}

/* ---- graph ---------------------------------------------------------------------------------------- */

/* Experts of a layer read the stream, by norms of their own. */
static sbp_value build_experts(const sbp_hf_scope *at) {
    sbp_hf *hf = at->hf;
    sbp_builder *b = &hf->builder;
    const sbp_hf_experts *e = &at->d->experts;
    int64_t hidden = at->d->hidden;
    sbp_dtype wide = sbp_rule_wide(hf->compute);
    const char *router = sbp_hf_enter(at, "router");
    sbp_value r = sbp_hf_rms(hf, NULL, at->stream, at->d->norm.eps);
    r = sbp_build2(b, SBP_OP_mul, r,
                   sbp_hf_row_vector(hf, sbp_hf_path(hf, "%s.scale", router), SBP_INIT_ONES, hidden));
    r = sbp_hf_scale(hf, "router_in", r, pow((double)hidden, -0.5));
    sbp_value logits =
        sbp_hf_linear(hf, "router", r, sbp_hf_path(hf, "%s.proj", router), e->count, hidden, false);
    sbp_hf_linear_router(hf, sbp_hf_path(hf, "%s.proj", router));
    sbp_hf_choice c = sbp_hf_choose(hf, e, logits, router);
    if (b->status != SBP_OK)
        return SBP_NO_VALUE;
    sbp_value own =
        sbp_hf_row_vector(hf, sbp_hf_path(hf, "%s.per_expert_scale", router), SBP_INIT_ONES, e->count);
    sbp_type all = *sbp_build_type(b, logits);
    all.dtype = wide;
    own = sbp_build_broadcast(b, sbp_build_cast(b, own, wide), &all);
    c.weight = sbp_build2(b, SBP_OP_mul, c.weight, sbp_build2(b, SBP_OP_take_at, own, c.index));
    c.weight = sbp_build_reshape(b, c.weight, (int64_t[]){e->chosen, 1}, 2);
    sbp_value y = sbp_hf_gemma_norm(at, "expert_norm", at->stream,
                                    sbp_hf_enter(at, "pre_feedforward_layernorm_2"), hidden);
    y = sbp_hf_experts_apply(hf, e, at->d->activation, y, c, sbp_hf_enter(at, ""), hidden);
    y = sbp_build_cast(b, y, hf->compute);
    return sbp_hf_gemma_norm(at, NULL, y, sbp_hf_enter(at, "post_feedforward_layernorm_2"), hidden);
}

static sbp_value mix_mlp_and_experts(const sbp_hf_scope *at, sbp_value x) {
    sbp_value y = sbp_hf_mix_mlp(at, x);
    y = sbp_hf_gemma_norm(at, NULL, y, sbp_hf_enter(at, "post_feedforward_layernorm_1"), at->d->hidden);
    return sbp_hf_add(at->hf, "mlp_and_experts", y, build_experts(at));
}

static const sbp_hf_branch attention = {.name = "attn",
                                        .norm_in = "input_layernorm",
                                        .norm_out = "post_attention_layernorm",
                                        .mixer = {{sbp_hf_gemma_mix_attention, "self_attn", 1, 1}}},
                           mlp_and_experts = {.name = "mlp",
                                              .norm_in = "pre_feedforward_layernorm",
                                              .norm_out = "post_feedforward_layernorm",
                                              .mixer = {{mix_mlp_and_experts, "mlp", 1, 1}}};

static sbp_value finish_layer(const sbp_hf_scope *at, sbp_value x) {
    sbp_hf *hf = at->hf;
    sbp_builder *b = &hf->builder;
    const sbp_hf_gemma *m = at->d->own;
    if (m->per_layer > 0)
        x = sbp_hf_add(hf, "own_residual", x, sbp_hf_gemma_own_input(at, x));
    const char *module = sbp_hf_enter(at, "");
    if (b->status != SBP_OK)
        return SBP_NO_VALUE;
    sbp_dtype type = sbp_build_type(b, x)->dtype, wide = sbp_rule_wide(hf->compute);
    sbp_value scalar = sbp_hf_buffer(hf, sbp_hf_path(hf, "%s.layer_scalar", module), 1, (int64_t[]){1});
    x = sbp_build_cast(b, sbp_build2(b, SBP_OP_mul, sbp_build_cast(b, x, wide), scalar), type);
    sbp_build_name(b, x, "layer");
    return x;
}

static sbp_value embed(const sbp_hf_scope *at, sbp_value table) {
    const sbp_hf_gemma *m = at->d->own;
    sbp_value x = sbp_hf_gemma_rows(at->hf, "embed", table, sbp_hf_row(at->hf, SBP_DATA_TOK), at->d->hidden);
    if (m->per_layer > 0)
        sbp_hf_gemma_inputs(at, x);
    return x;
}

/* The unified models have neither inputs of each layer nor experts. */
static void build(sbp_hf *hf, bool unified) {
    sbp_hf_gemma m = {
        .d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 262144,
                                                        .heads = 8,
                                                        .kv_heads = 4,
                                                        .head_dim = 256,
                                                        .max_positions = unified ? 262144 : 131072,
                                                        .tied = true,
                                                        .activation_key = "hidden_activation",
                                                        .activation = "gelu_pytorch_tanh"})};
    hf->within_multimodal = true;
    m.d.norm.style = SBP_HF_RMS_NORM_WIDE;
    m.d.norms =
        (sbp_hf_layer_norms){.mlp_in = "pre_feedforward_layernorm", .mlp_out = "post_feedforward_layernorm"};
    m.d.qkv_bias = sbp_hf_bool(hf, "attention_bias", false);
    m.d.final_softcap = sbp_hf_double(hf, "final_logit_softcapping", 0);
    m.d.embed = embed;
    m.d.finish_layer = finish_layer;
    m.d.own = &m;
    m.window = sbp_hf_size(hf, "sliding_window", unified ? 1024 : 512);
    m.keys_are_values = sbp_hf_bool(hf, "attention_k_eq_v", false);
    if (!unified) {
        m.per_layer = sbp_hf_count(hf, "hidden_size_per_layer_input", 256);
        m.per_layer_vocab = sbp_hf_size(hf, "vocab_size_per_layer_input", 262144);
        read_experts(hf, &m);
    }
    check_direction(hf);
    read_layers(hf, &m);
    read_ropes(hf, &m);
    for (int64_t i = 0; i < m.d.layers && hf->builder.status == SBP_OK; i++) {
        m.d.layer[i].branch[0] = &attention;
        m.d.layer[i].branch[1] = m.has_experts ? &mlp_and_experts : NULL;
    }
    sbp_hf_decoder_build(hf, &m.d);
}

void sbp_hf_gemma4(sbp_hf *hf) {
    build(hf, false);
}

void sbp_hf_gemma4_unified(sbp_hf *hf) {
    build(hf, true);
}
