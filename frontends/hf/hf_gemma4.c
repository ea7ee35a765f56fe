/* hf_gemma4.c: Gemma 4, text models, alone and within the multimodal files: layers with a window and layers
 * without, whose heads are wider; keys and values that several layers read; an embedding of tokens for each
 * layer; experts beside the MLP. Formulas: transformers, modeling_gemma4.py. */
#include <math.h>
#include <string.h>

#include "frontends/hf/hf.h"
#include "ir/graph/op.h"

enum { FULL, SLIDING, KINDS };

typedef struct layer {
    int kind;
    int64_t head_dim, kv_heads, inner;
    bool reads_shared; /* keys and values of the last layer of its kind that has its own */
} layer;

typedef struct gemma {
    sbp_hf *hf;
    sbp_builder *b;
    const char *root;
    sbp_hf_decoder d;
    layer *layer;
    int64_t window, per_layer, per_layer_vocab;
    bool keys_are_values, has_experts;
    sbp_hf_turn turn[KINDS];
    sbp_value k[KINDS], v[KINDS];
    sbp_value inputs; /* of all layers, [T, layers per_layer] */
} gemma;

static const sbp_hf_expert_names names = {.experts = {[SBP_HF_EXPERT_GATE] = "gate_proj",
                                                      [SBP_HF_EXPERT_UP] = "up_proj",
                                                      [SBP_HF_EXPERT_DOWN] = "down_proj"},
                                          .fused = "gate_up_proj"};

/* ---- configuration -------------------------------------------------------------------------------- */

/* transformers 5 may write what differs in layers as {"5": {"head_dim": 512, "num_key_value_heads": 4}}. */
static void read_overrides(sbp_hf *hf, gemma *m) {
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

static void read_layers(sbp_hf *hf, gemma *m) {
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
    m->layer = SBP_NEW_ARRAY(hf->arena, layer, d->layers);
    if (!sbp_hf_layer_types(hf, d->layers, sliding))
        for (int64_t i = 0; i < d->layers; i++)
            sliding[i] = (i + 1) % 6 != 0;
    if (d->layers > 0)
        sliding[d->layers - 1] = false; /* whatever the file says */
    bool found[KINDS] = {false};
    for (int64_t i = 0; i < d->layers; i++) {
        bool reads = i >= d->layers - shared;
        int kind = sliding[i] ? SLIDING : FULL;
        m->layer[i] = (layer){.kind = kind,
                              .head_dim = sliding[i] ? d->head_dim : wide,
                              .kv_heads = sliding[i] || !m->keys_are_values ? d->kv_heads : global,
                              .inner = reads && double_wide ? 2 * d->inner : d->inner,
                              .reads_shared = reads};
        if (reads && !found[kind])
            sbp_hf_fail(
                hf, sbp_hf_field(hf, "num_kv_shared_layers"),
                "layer %lld reads keys and values of a layer of its type before the last %lld, and there is "
                "none",
                (long long)i, (long long)shared);
        found[kind] |= !reads;
    }
    read_overrides(hf, m);
    for (int64_t i = 0; i < d->layers && hf->builder.status == SBP_OK; i++)
        if (d->heads % m->layer[i].kv_heads != 0)
            sbp_hf_fail(hf, sbp_hf_field(hf, "num_key_value_heads"),
                        "layer %lld has %lld of them, of which num_attention_heads %lld is no multiple",
                        (long long)i, (long long)m->layer[i].kv_heads, (long long)d->heads);
}

/* A set of rotary parameters for each kind of layer, for heads of its width. */
static void read_ropes(sbp_hf *hf, gemma *m) {
    const sbp_json *both = sbp_hf_field(hf, "rope_parameters");
    static const char *const kinds[] = {"full_attention", "sliding_attention"},
                             own_full[] =
                                 "{\"rope_type\": \"proportional\", \"partial_rotary_factor\": 0.25}";
    const sbp_json *own = NULL;
    if (!both && hf->builder.status == SBP_OK)
        hf->builder.status = sbp_json_parse(hf->arena, hf->diag, "defaults", own_full, sizeof own_full - 1,
                                            SBP_JSON_PYTHON, &own);
    for (int kind = 0; kind < KINDS && m->layer && hf->builder.status == SBP_OK; kind++) {
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
        m->d.rope[kind] = sbp_hf_rope_from(hf, NULL,
                                           object         ? object
                                           : kind == FULL ? own
                                                          : NULL,
                                           &(sbp_hf_rope_shape){.head_dim = head_dim,
                                                                .rotary_dim = head_dim,
                                                                .theta = kind == FULL ? 1e6 : 1e4,
                                                                .max_positions = m->d.max_positions});
    }
}

static void read_experts(sbp_hf *hf, gemma *m) {
    static const char *const fields[] = {"num_experts", "top_k_experts", "moe_intermediate_size"};
    m->has_experts = sbp_hf_bool(hf, "enable_moe_block", false);
    for (int32_t i = 0; i < SBP_COUNT(fields) && !m->has_experts; i++)
        (void)sbp_hf_field(hf, fields[i]);
    if (!m->has_experts)
        return;
    m->d.experts = (sbp_hf_experts){.count = sbp_hf_size(hf, "num_experts", SBP_HF_REQUIRED),
                                    .chosen = sbp_hf_size(hf, "top_k_experts", SBP_HF_REQUIRED),
                                    .inner = sbp_hf_size(hf, "moe_intermediate_size", SBP_HF_REQUIRED),
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

static const char *enter(const gemma *m, int64_t n, const char *module) {
    m->b->node =
        sbp_hf_path(m->hf, *module ? "%s.layers.%lld.%s" : "%s.layers.%lld%s", m->root, (long long)n, module);
    return m->b->node;
}

static sbp_value norm(const gemma *m, const char *name, sbp_value x, const char *module, int64_t n) {
    return sbp_hf_normalize(m->hf, &m->d.norm, name, x, module, n);
}

/* x / sqrt(mean of its squares + eps) over the last axis of n. */
static sbp_value norm_plain(const gemma *m, sbp_value x, int64_t n) {
    sbp_builder *b = m->b;
    if (b->status != SBP_OK)
        return SBP_NO_VALUE;
    sbp_dtype type = sbp_build_type(b, x)->dtype, wide = sbp_rule_wide(m->hf->compute);
    x = sbp_build_cast(b, x, wide);
    sbp_value mean = sbp_build1(b, SBP_OP_row_sum, sbp_build2(b, SBP_OP_mul, x, x));
    mean = sbp_build2(b, SBP_OP_mul, mean, sbp_build_const(b, wide, sbp_round_to(wide, 1 / (double)n)));
    mean = sbp_build2(b, SBP_OP_add, mean, sbp_build_const(b, wide, sbp_round_to(wide, m->d.norm.eps)));
    return sbp_build_cast(b, sbp_build2(b, SBP_OP_mul, x, sbp_build1(b, SBP_OP_rsqrt, mean)), type);
}

static sbp_value linear(const gemma *m, const char *name, sbp_value x, const char *module, const char *part,
                        int64_t out, int64_t in, bool bias) {
    return sbp_hf_linear(m->hf, name, x, sbp_hf_path(m->hf, "%s.%s", module, part), out, in, bias);
}

/* Keys and values of a layer that has its own. */
static void build_keys(gemma *m, sbp_value x, const char *module, const layer *l) {
    int64_t n = l->kv_heads * l->head_dim;
    bool bias = m->d.qkv_bias;
    sbp_value k = linear(m, NULL, x, module, "k_proj", n, m->d.hidden, bias), v = k;
    if (l->kind == SLIDING || !m->keys_are_values)
        v = linear(m, NULL, x, module, "v_proj", n, m->d.hidden, bias);
    k = sbp_hf_split_heads(m->hf, k, l->kv_heads, l->head_dim);
    v = sbp_hf_split_heads(m->hf, v, l->kv_heads, l->head_dim);
    k = norm(m, NULL, k, sbp_hf_path(m->hf, "%s.k_norm", module), l->head_dim);
    m->k[l->kind] = sbp_hf_rotate(m->hf, "k", k, m->turn[l->kind]);
    v = norm_plain(m, v, l->head_dim);
    m->v[l->kind] = sbp_hf_operand(m->hf, v);
    sbp_build_name(m->b, m->v[l->kind], "v");
}

static sbp_value build_attention(gemma *m, sbp_value x, const char *module, const layer *l) {
    int64_t n = m->d.heads * l->head_dim;
    sbp_value q = linear(m, NULL, x, module, "q_proj", n, m->d.hidden, m->d.qkv_bias);
    q = sbp_hf_split_heads(m->hf, q, m->d.heads, l->head_dim);
    q = norm(m, NULL, q, sbp_hf_path(m->hf, "%s.q_norm", module), l->head_dim);
    q = sbp_hf_rotate(m->hf, "q", q, m->turn[l->kind]);
    if (!l->reads_shared)
        build_keys(m, x, module, l);
    sbp_value o =
        sbp_hf_attention(m->hf, q, m->k[l->kind], m->v[l->kind], 1, l->kind == SLIDING ? m->window : 0);
    o = sbp_hf_join_heads(m->hf, o);
    return linear(m, "attn_proj", o, module, "o_proj", m->d.hidden, n, m->d.qkv_bias);
}

/* Experts of a layer read the stream x, by norms of their own. */
static sbp_value build_experts(const gemma *m, sbp_value x, int64_t n) {
    sbp_hf *hf = m->hf;
    sbp_builder *b = m->b;
    const sbp_hf_experts *e = &m->d.experts;
    sbp_dtype wide = sbp_rule_wide(hf->compute);
    const char *router = enter(m, n, "router");
    sbp_value r = norm_plain(m, x, m->d.hidden);
    r = sbp_build2(b, SBP_OP_mul, r,
                   sbp_hf_row_vector(hf, sbp_hf_path(hf, "%s.scale", router), SBP_INIT_ONES, m->d.hidden));
    r = sbp_hf_scale(hf, "router_in", r, pow((double)m->d.hidden, -0.5));
    sbp_value scores = linear(m, "router", r, router, "proj", e->count, m->d.hidden, false);
    scores = sbp_hf_softmax(b, sbp_build_cast(b, scores, wide));
    if (b->status != SBP_OK)
        return SBP_NO_VALUE;
    sbp_hf_choice c;
    c.index =
        sbp_build(b, SBP_OP_route, "chosen", &scores, 1, (sbp_attr[]){sbp_attr_int("k", e->chosen)}, 1, NULL);
    c.weight = sbp_build2(b, SBP_OP_take_at, scores, c.index);
    sbp_hf_experts_add_statistics(hf, e, scores, c.index);
    c.weight = sbp_build2(b, SBP_OP_div, c.weight, sbp_build1(b, SBP_OP_row_sum, c.weight));
    sbp_value own =
        sbp_hf_row_vector(hf, sbp_hf_path(hf, "%s.per_expert_scale", router), SBP_INIT_ONES, e->count);
    own = sbp_build_broadcast(b, sbp_build_cast(b, own, wide), sbp_build_type(b, scores));
    c.weight = sbp_build2(b, SBP_OP_mul, c.weight, sbp_build2(b, SBP_OP_take_at, own, c.index));
    c.weight = sbp_build_reshape(b, c.weight, (int64_t[]){e->chosen, 1}, 2);
    sbp_value y = norm(m, "expert_norm", x, enter(m, n, "pre_feedforward_layernorm_2"), m->d.hidden);
    y = sbp_hf_experts_apply(hf, e, m->d.activation, y, c, enter(m, n, ""), m->d.hidden);
    y = sbp_build_cast(b, y, hf->compute);
    return norm(m, NULL, y, enter(m, n, "post_feedforward_layernorm_2"), m->d.hidden);
}

/* What the layer's own embedding of the token adds. */
static sbp_value build_own_input(const gemma *m, sbp_value x, int64_t n) {
    sbp_builder *b = m->b;
    const char *module = enter(m, n, "");
    sbp_value gate =
        linear(m, "own_gate", x, module, "per_layer_input_gate", m->per_layer, m->d.hidden, false);
    gate = sbp_hf_activate(m->hf, m->d.activation, "own_act", gate);
    sbp_value input = sbp_build_slice(b, m->inputs, n * m->per_layer, m->per_layer);
    input = sbp_build_cast(b, input, m->hf->compute);
    sbp_value y = sbp_build2(b, SBP_OP_mul, sbp_build_cast(b, gate, m->hf->compute), input);
    y = linear(m, "own_proj", y, module, "per_layer_projection", m->d.hidden, m->per_layer, false);
    return norm(m, "own_norm", y, enter(m, n, "post_per_layer_input_norm"), m->d.hidden);
}

static sbp_value build_layer(gemma *m, sbp_value x, int64_t n) {
    sbp_builder *b = m->b;
    const layer *l = &m->layer[n];
    int64_t hidden = m->d.hidden;
    sbp_value y = norm(m, "attn_norm", x, enter(m, n, "input_layernorm"), hidden);
    y = build_attention(m, y, enter(m, n, "self_attn"), l);
    y = norm(m, "attn_out_norm", y, enter(m, n, "post_attention_layernorm"), hidden);
    (void)enter(m, n, "");
    x = sbp_hf_add(m->hf, "attn_residual", x, y);
    y = norm(m, "mlp_norm", x, enter(m, n, "pre_feedforward_layernorm"), hidden);
    y = sbp_hf_mlp(m->hf, m->d.activation, y, enter(m, n, "mlp"), names.experts, hidden, l->inner);
    if (m->has_experts) {
        y = norm(m, NULL, y, enter(m, n, "post_feedforward_layernorm_1"), hidden);
        y = sbp_hf_add(m->hf, "mlp_and_experts", y, build_experts(m, x, n));
    }
    y = norm(m, "mlp_out_norm", y, enter(m, n, "post_feedforward_layernorm"), hidden);
    (void)enter(m, n, "");
    x = sbp_hf_add(m->hf, "mlp_residual", x, y);
    if (m->per_layer > 0)
        x = sbp_hf_add(m->hf, "own_residual", x, build_own_input(m, x, n));
    (void)enter(m, n, "");
    if (b->status != SBP_OK)
        return SBP_NO_VALUE;
    sbp_dtype type = sbp_build_type(b, x)->dtype, wide = sbp_rule_wide(m->hf->compute);
    sbp_value scalar = sbp_hf_buffer(m->hf, sbp_hf_path(m->hf, "%s.layer_scalar", b->node), 1);
    x = sbp_build_cast(b, sbp_build2(b, SBP_OP_mul, sbp_build_cast(b, x, wide), scalar), type);
    sbp_build_name(b, x, "layer");
    return x;
}

/* Rows of a table by their tokens, scaled. */
static sbp_value build_embedding(const gemma *m, const char *name, sbp_value table, int64_t width) {
    sbp_value x = sbp_hf_embed(m->hf, NULL, table, SBP_DATA_TOK);
    return sbp_hf_scale(m->hf, name, x, sbp_round_to(m->hf->residual, sqrt((double)width)));
}

/* What each layer adds of a token, from a table of its own and from the embedding x. */
static void build_inputs(gemma *m, sbp_value x) {
    sbp_hf *hf = m->hf;
    sbp_builder *b = m->b;
    int64_t p = m->per_layer, layers = m->d.layers;
    b->node = sbp_hf_path(hf, "%s.embed_tokens_per_layer", m->root);
    sbp_value table =
        sbp_hf_matrix(hf, sbp_hf_path(hf, "%s.weight", b->node), m->per_layer_vocab, layers * p);
    sbp_value own = build_embedding(m, "token_inputs", table, p);
    b->node = sbp_hf_path(hf, "%s.per_layer_model_projection", m->root);
    sbp_value y = sbp_hf_linear(hf, NULL, x, b->node, layers * p, m->d.hidden, false);
    y = sbp_hf_scale(hf, "stream_inputs", y, pow((double)m->d.hidden, -0.5));
    y = sbp_hf_split_heads(hf, y, layers, p);
    b->node = sbp_hf_path(hf, "%s.per_layer_projection_norm", m->root);
    y = norm(m, NULL, y, b->node, p);
    b->node = m->root;
    y = sbp_hf_add(hf, "summed_inputs", sbp_hf_join_heads(hf, y), own);
    m->inputs = sbp_hf_scale(hf, "layer_inputs", y, pow(2, -0.5));
}

static sbp_value build_head(const gemma *m, sbp_value x, sbp_value table) {
    sbp_hf *hf = m->hf;
    m->b->node = sbp_hf_path(hf, "%s.norm", m->root);
    x = norm(m, "final_norm", x, m->b->node, m->d.hidden);
    m->b->node = "lm_head";
    sbp_value w = sbp_hf_head_matrix(hf, "lm_head.weight", table, m->d.tied);
    sbp_value logits = sbp_hf_logits(hf, x, w);
    if (m->d.final_softcap != 0)
        logits = sbp_build(m->b, SBP_OP_softcap, "capped_logits", &logits, 1,
                           (sbp_attr[]){sbp_attr_double("cap", m->d.final_softcap)}, 1, NULL);
    return logits;
}

void sbp_hf_gemma4(sbp_hf *hf) {
    gemma m = {.hf = hf, .b = &hf->builder, .root = hf->wrapper ? "model.language_model" : "model"};
    m.d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 262144,
                                                     .heads = 8,
                                                     .kv_heads = 4,
                                                     .head_dim = 256,
                                                     .max_positions = 131072,
                                                     .tied = true,
                                                     .activation_key = "hidden_activation",
                                                     .activation = "gelu_pytorch_tanh"});
    hf->within_multimodal = !hf->wrapper;
    hf->base_prefix = "model.";
    m.d.tied = sbp_hf_tied(hf, m.d.tied);
    m.d.norm.style = SBP_HF_RMS_NORM_WIDE;
    m.d.qkv_bias = sbp_hf_bool(hf, "attention_bias", false);
    m.d.final_softcap = sbp_hf_double(hf, "final_logit_softcapping", 0);
    m.window = sbp_hf_size(hf, "sliding_window", 512);
    m.keys_are_values = sbp_hf_bool(hf, "attention_k_eq_v", false);
    m.per_layer = sbp_hf_count(hf, "hidden_size_per_layer_input", 256);
    m.per_layer_vocab = sbp_hf_size(hf, "vocab_size_per_layer_input", 262144);
    check_direction(hf);
    read_experts(hf, &m);
    read_layers(hf, &m);
    read_ropes(hf, &m);
    m.b->node = sbp_hf_path(hf, "%s.rotary_emb", m.root);
    for (int kind = 0; kind < KINDS; kind++)
        if (m.d.rope[kind].inv_freq)
            m.turn[kind] = sbp_hf_rope_tables(hf, &m.d.rope[kind]);
    m.b->node = sbp_hf_path(hf, "%s.embed_tokens", m.root);
    sbp_value table = sbp_hf_table(hf, sbp_hf_path(hf, "%s.weight", m.b->node), m.d.vocab, m.d.hidden);
    sbp_value x = build_embedding(&m, "embed", table, m.d.hidden);
    if (m.per_layer > 0)
        build_inputs(&m, x);
    for (int64_t i = 0; m.layer && i < m.d.layers && m.b->status == SBP_OK; i++)
        x = build_layer(&m, x, i);
    sbp_hf_finish(hf, build_head(&m, x, table));
    m.b->node = NULL;
}
