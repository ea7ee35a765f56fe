/* hf_decoder.c: decoders: embedding, layers of attention and gated MLP or of what a family lists in their
 * place, norm, head. What a family adds or leaves out stands in its sbp_hf_decoder. Parameters are named as
 * the modules of transformers' modeling_llama.py; norms on outputs as those of modeling_gemma3.py and
 * modeling_olmo2.py. */
#include "frontends/hf/hf.h"

#include <math.h>
#include <string.h>

#include "ir/graph/op.h"

/* ---- configuration -------------------------------------------------------------------------------- */

/* num_key_value_heads: null means as many as heads, absent the default of the family. */
static int64_t read_kv_heads(sbp_hf *hf, int64_t heads, int64_t default_kv_heads) {
    bool same = sbp_hf_is_null(hf, "num_key_value_heads") || default_kv_heads == 0;
    int64_t kv_heads = sbp_hf_size(hf, "num_key_value_heads", same ? heads : default_kv_heads);
    sbp_hf_check_multiple(hf, "num_attention_heads", heads, "num_key_value_heads", kv_heads);
    return kv_heads;
}

/* When it is not given, hidden / heads; families for which transformers checks nothing round down. */
static int64_t read_head_dim(sbp_hf *hf, int64_t hidden, int64_t heads, const sbp_hf_defaults *defaults) {
    int64_t fallback = defaults->head_dim > 0 ? defaults->head_dim : hidden / heads;
    int64_t head_dim = sbp_hf_size(hf, "head_dim", fallback > 0 ? fallback : 1);
    if (defaults->head_dim == 0 && !sbp_hf_field(hf, "head_dim") &&
        (fallback == 0 || (hidden % heads != 0 && !defaults->head_dim_rounds)))
        sbp_hf_fail(
            hf, sbp_hf_field(hf, "hidden_size"),
            "hidden_size %lld is not a multiple of num_attention_heads %lld, and head_dim is not given",
            (long long)hidden, (long long)heads);
    return head_dim;
}

static int64_t or_required(int64_t fallback) {
    return fallback > 0 ? fallback : SBP_HF_REQUIRED;
}

static const char *read_activation(sbp_hf *hf, const sbp_hf_defaults *defaults) {
    const char *key = defaults->activation_key ? defaults->activation_key : "hidden_act",
               *activation = defaults->activation ? defaults->activation : "silu";
    return *key ? sbp_hf_string(hf, key, activation) : activation;
}

/* The width of each layer's MLP. */
static void read_inner(sbp_hf *hf, sbp_hf_decoder *d, const sbp_json *list) {
    if (hf->builder.status == SBP_OK && list->count != d->layers)
        sbp_hf_fail(hf, list, "%lld widths for %lld layers", (long long)list->count, (long long)d->layers);
    for (int64_t i = 0; i < d->layers && hf->builder.status == SBP_OK; i++) {
        hf->builder.status = sbp_json_as_i64(hf->diag, &list->items[i], &d->layer[i].inner);
        if (hf->builder.status == SBP_OK && (d->layer[i].inner <= 0 || d->layer[i].inner > INT32_MAX))
            sbp_hf_fail(hf, &list->items[i], "%lld; a positive number is expected",
                        (long long)d->layer[i].inner);
    }
}

sbp_hf_decoder sbp_hf_decoder_read(sbp_hf *hf, const sbp_hf_defaults *defaults) {
    const char *eps_key = defaults->eps_key ? defaults->eps_key : "rms_norm_eps";
    double eps = defaults->norm_eps > 0 ? defaults->norm_eps : 1e-6;
    const sbp_json *inner = defaults->inner_listed ? sbp_hf_field(hf, "intermediate_size") : NULL;
    const bool listed = inner && inner->kind == SBP_JSON_ARRAY;
    sbp_hf_decoder d = {.vocab = sbp_hf_size(hf, "vocab_size", or_required(defaults->vocab)),
                        .hidden = sbp_hf_size(hf, "hidden_size", or_required(defaults->hidden)),
                        .inner =
                            listed ? 0 : sbp_hf_size(hf, "intermediate_size", or_required(defaults->inner)),
                        .layers = sbp_hf_size(hf, "num_hidden_layers", or_required(defaults->layers)),
                        .heads = sbp_hf_size(hf, "num_attention_heads", or_required(defaults->heads)),
                        .activation = read_activation(hf, defaults),
                        .norm.eps = sbp_hf_double(hf, eps_key, eps),
                        .max_positions = sbp_hf_size(hf, "max_position_embeddings", defaults->max_positions),
                        .tied = sbp_hf_tied(hf, defaults->tied),
                        .norms = {.attn_in = "input_layernorm", .mlp_in = "post_attention_layernorm"},
                        .names = {.root = hf->root,
                                  .embedding = "embed_tokens",
                                  .last_norm = "norm",
                                  .head_norm = "norm",
                                  .q = "q",
                                  .k = "k",
                                  .attn_out = "o_proj",
                                  .sinks = "sinks",
                                  .mlp = sbp_hf_projections.experts},
                        .embed_scale = 1,
                        .branch_scale = 1,
                        .key_scale = 1,
                        .value_scale = 1,
                        .gate_scale = 1,
                        .logits_scale = 1,
                        .logits_divisor = 1};
    d.kv_heads = read_kv_heads(hf, d.heads, defaults->kv_heads);
    d.head_dim = read_head_dim(hf, d.hidden, d.heads, defaults);
    d.score_scale = pow((double)d.head_dim, -0.5);
    sbp_hf_set_facts(hf, d.vocab, d.layers, d.max_positions);
    d.layer = SBP_NEW_ARRAY(hf->arena, sbp_hf_layer, hf->builder.status == SBP_OK ? d.layers : 1);
    if (listed)
        read_inner(hf, &d, inner);
    return d;
}

sbp_hf_rope sbp_hf_decoder_rope(sbp_hf *hf, const sbp_hf_decoder *d) {
    return sbp_hf_rope_read(hf, &(sbp_hf_rope_shape){.head_dim = d->head_dim,
                                                     .rotary_dim = d->head_dim,
                                                     .theta = 1e4,
                                                     .max_positions = d->max_positions,
                                                     .three_axes = hf->wrapper != NULL});
}

bool sbp_hf_one_window(sbp_hf *hf, sbp_hf_decoder *d, int64_t fallback) {
    bool given = sbp_hf_field(hf, "sliding_window") != NULL,
         none = sbp_hf_is_null(hf, "sliding_window") || (!given && fallback == 0);
    int64_t window = none ? 0 : sbp_hf_size(hf, "sliding_window", fallback);
    for (int64_t i = 0; i < d->layers && hf->builder.status == SBP_OK; i++)
        d->layer[i].window = window;
    return !none;
}

bool sbp_hf_layer_types(sbp_hf *hf, int64_t layers, bool *sliding) {
    return sbp_hf_layer_words(hf, "layer_types", layers, "full_attention", "sliding_attention", sliding);
}

void sbp_hf_set_window(sbp_hf *hf, sbp_hf_decoder *d, int64_t layer, bool slides, int64_t window,
                       const char *why) {
    if (slides && window == 0)
        sbp_hf_fail(hf, sbp_hf_field(hf, "layer_types"), "layer %lld is sliding_attention, but %s",
                    (long long)layer, why);
    d->layer[layer].window = slides ? window : 0;
}

void sbp_hf_uniform_layers(sbp_hf *hf, int64_t layers, bool sliding) {
    bool *types = SBP_NEW_ARRAY(hf->arena, bool, hf->builder.status == SBP_OK ? layers : 1);
    if (!sbp_hf_layer_types(hf, layers, types))
        return;
    for (int64_t i = 0; i < layers; i++)
        if (types[i] != sliding)
            sbp_hf_fail(hf, sbp_hf_field(hf, "layer_types"),
                        "layer %lld is %s, but all layers of model_type %s are %s here", (long long)i,
                        types[i] ? "sliding_attention" : "full_attention", hf->model->model_type,
                        sliding ? "sliding_attention" : "full_attention");
}

/* ---- layers with a window and layers without ------------------------------------------------------- */

enum { FULL, SLIDING }; /* of rope[] */

void sbp_hf_two_kinds(sbp_hf *hf, sbp_hf_decoder *d, int64_t every) {
    int64_t window = sbp_hf_is_null(hf, "sliding_window") ? 0 : sbp_hf_size(hf, "sliding_window", 4096);
    if (hf->builder.status != SBP_OK)
        return;
    bool *sliding = SBP_NEW_ARRAY(hf->arena, bool, d->layers);
    if (!sbp_hf_layer_types(hf, d->layers, sliding))
        for (int64_t i = 0; i < d->layers; i++)
            sliding[i] = (i + 1) % every != 0;
    for (int64_t i = 0; i < d->layers; i++) {
        sbp_hf_set_window(hf, d, i, sliding[i], window, "sliding_window is null");
        d->layer[i].rope = sliding[i] ? SLIDING : FULL;
    }
}

void sbp_hf_two_ropes(sbp_hf *hf, sbp_hf_decoder *d, double full_theta, double sliding_theta) {
    const sbp_json *both = sbp_hf_field(hf, "rope_parameters"), *scaling = sbp_hf_field(hf, "rope_scaling");
    const sbp_json *full = sbp_json_member(both, "full_attention"),
                   *sliding = sbp_json_member(both, "sliding_attention");
    if (both && !full && !sliding && both->count > 0)
        sbp_hf_fail(hf, both, "an object each for full_attention and sliding_attention is expected");
    if (both && sbp_json_member(both, "truncate"))
        sbp_hf_fail(hf, sbp_json_member(both, "truncate"), "not supported here, for all layer types");
    sbp_hf_rope_shape shape = {.head_dim = d->head_dim,
                               .rotary_dim = d->head_dim,
                               .theta = full_theta,
                               .max_positions = d->max_positions};
    d->rope[FULL] = sbp_hf_rope_from(hf, scaling, full, &shape);
    shape.theta = sliding_theta;
    d->rope[SLIDING] = sbp_hf_rope_from(hf, NULL, sliding, &shape);
}

void sbp_hf_kind_ropes(sbp_hf *hf, sbp_hf_decoder *d, double part, const char *own) {
    static const char *const kinds[] = {[FULL] = "full_attention", [SLIDING] = "sliding_attention"};
    const sbp_json *both = sbp_hf_field(hf, "rope_parameters");
    if (!both && hf->builder.status == SBP_OK)
        hf->builder.status = sbp_json_parse(hf->arena, hf->diag, "defaults", own, strlen(own), 0, &both);
    for (int32_t kind = 0; kind < SBP_COUNT(kinds) && hf->builder.status == SBP_OK; kind++) {
        const sbp_json *object = sbp_json_member(both, kinds[kind]),
                       *field = sbp_json_member(object, "partial_rotary_factor");
        double turning = part;
        for (int64_t i = 0; i < d->layers && !object; i++)
            if (d->layer[i].rope == kind)
                sbp_hf_fail(hf, both, "an object for %s is expected", kinds[kind]);
        if (!object)
            continue;
        if (field)
            hf->builder.status = sbp_json_as_double(hf->diag, field, &turning);
        d->rope[kind] =
            sbp_hf_rope_from(hf, NULL, object,
                             &(sbp_hf_rope_shape){.head_dim = d->head_dim,
                                                  .rotary_dim = (int64_t)((double)d->head_dim * turning),
                                                  .theta = 1e4,
                                                  .max_positions = d->max_positions});
    }
}

void sbp_hf_layer_thetas(sbp_hf *hf, sbp_hf_decoder *d, double theta) {
    const sbp_json *list = sbp_hf_field(hf, "layer_rope_theta");
    sbp_hf_rope_shape shape = {.head_dim = d->head_dim,
                               .rotary_dim = d->head_dim,
                               .theta = theta,
                               .max_positions = d->max_positions};
    double known[SBP_HF_ROPES];
    int32_t count = 0;
    if (!list)
        d->rope[0] = sbp_hf_rope_read(hf, &shape);
    else if (list->kind != SBP_JSON_ARRAY || list->count != d->layers)
        sbp_hf_fail(hf, list, "expected an array of %lld numbers (num_hidden_layers)", (long long)d->layers);
    for (int64_t i = 0; list && i < d->layers && hf->builder.status == SBP_OK; i++) {
        int32_t r = 0;
        hf->builder.status = sbp_json_as_double(hf->diag, &list->items[i], &shape.always);
        d->layer[i].no_rope = shape.always == 0;
        while (r < count && known[r] != shape.always)
            r++;
        if (d->layer[i].no_rope)
            continue;
        if (r == SBP_HF_ROPES) {
            sbp_hf_fail(hf, &list->items[i], "more than %d different numbers are not supported",
                        SBP_HF_ROPES);
        } else if (r == count) {
            known[count++] = shape.always;
            d->rope[r] = sbp_hf_rope_read(hf, &shape);
        }
        d->layer[i].rope = r;
    }
}

/* ---- mixers ----------------------------------------------------------------------------------------- */

const char *sbp_hf_enter(const sbp_hf_scope *at, const char *module) {
    at->hf->builder.node = sbp_hf_path(at->hf, "%s.%s.%lld%s%s", at->d->names.root, at->hf->layers,
                                       (long long)at->number, *module ? "." : "", module);
    return at->hf->builder.node;
}

sbp_value sbp_hf_map(const sbp_hf_scope *at, const char *value, sbp_value x, const char *name, int64_t out,
                     int64_t in, bool bias) {
    const char *module = sbp_hf_path(at->hf, "%s.%s", at->module, name);
    x = sbp_hf_linear(at->hf, value, x, module, out, in, bias);
    if (at->class_module)
        sbp_hf_class_name(at->hf, module, sbp_hf_path(at->hf, "%s.%s", at->class_module, name));
    return x;
}

static sbp_value build_norm(const sbp_hf_scope *at, const char *name, sbp_value x, const char *module,
                            int64_t n) {
    return sbp_hf_normalize(at->hf, &at->d->norm, name, x, module, n);
}

/* Rows from `start` on of a tensor of `all` rows, <module>.<name>, which hold the map `part`. */
typedef struct fused {
    const char *name; /* NULL: the map has a tensor of its own */
    int64_t start, all;
} fused;

static sbp_value project(const sbp_hf_scope *at, const char *value, sbp_value x, const char *name,
                         const char *part, int64_t length, bool bias, fused f) {
    if (!f.name)
        return sbp_hf_map(at, value, x, name, length, at->d->hidden, bias);
    return sbp_hf_linear_part(at->hf, value, x, sbp_hf_path(at->hf, "%s.%s", at->module, f.name), part, f.all,
                              at->d->hidden, f.start, length, bias);
}

/* Queries or keys by their norm, of n elements. norm: names.q or names.k; NULL: values, which have none. */
static sbp_value norm_heads(const sbp_hf_scope *at, sbp_value x, const char *norm, int64_t n) {
    const sbp_hf_decoder *d = at->d;
    if (!norm || d->qk_norm == SBP_HF_QK_NORM_NONE)
        return x;
    if (d->qk_norm == SBP_HF_QK_NORM_BARE)
        return sbp_hf_rms(at->hf, NULL, x, d->norm.eps);
    return build_norm(at, NULL, x, sbp_hf_path(at->hf, "%s.%s_%s", at->module, norm, d->names.head_norm), n);
}

static int64_t heads_of(const sbp_hf_scope *at) {
    return at->layer->heads > 0 ? at->layer->heads : at->d->heads;
}

static int64_t kv_heads_of(const sbp_hf_scope *at) {
    return at->layer->kv_heads > 0 ? at->layer->kv_heads : at->d->kv_heads;
}

/* Elements of a head of values. */
static int64_t value_dim_of(const sbp_hf_decoder *d) {
    int64_t own = d->value_dim > 0 ? d->value_dim : d->head_dim;
    return d->latent.kv_rank > 0 ? d->latent.value : own;
}

/* Queries, keys or values, [T, heads, width]: project, split, norm where the family has one. `before`:
 * heads before these in the fused tensor. gate: if not NULL, each head has as many elements behind those,
 * [T, heads head_dim]. */
static sbp_value build_heads(const sbp_hf_scope *at, const char *part, sbp_value x, int64_t heads,
                             int64_t width, int64_t before, const char *norm, sbp_value *gate) {
    const sbp_hf_decoder *d = at->d;
    sbp_hf *hf = at->hf;
    int64_t each = gate ? 2 * width : width;
    const char *map = sbp_hf_path(hf, "%s_proj", part);
    sbp_value y = project(
        at, d->names.maps ? map : NULL, x, map, part, heads * each, d->qkv_bias,
        (fused){d->fused_qkv ? "qkv_proj" : NULL, before * width, (d->heads + 2 * d->kv_heads) * width});
    if (d->qk_norm == SBP_HF_QK_NORM_WHOLE)
        y = norm_heads(at, y, norm, heads * width);
    y = sbp_hf_split_heads(hf, y, heads, each);
    if (gate) {
        *gate = sbp_hf_join_heads(hf, sbp_build_slice(&hf->builder, y, width, width));
        y = sbp_build_slice(&hf->builder, y, 0, width);
    }
    return d->qk_norm == SBP_HF_QK_NORM_WHOLE || d->qk_norm_turned ? y : norm_heads(at, y, norm, width);
}

/* Queries or keys where they stand. */
static sbp_value turn(const sbp_hf_scope *at, const char *name, sbp_value x, const char *norm) {
    sbp_hf_turn t = at->turn[at->layer->rope];
    bool turns = !at->layer->no_rope && t.cos != SBP_NO_VALUE, normed = turns && at->d->qk_norm_turned;
    if (turns)
        x = sbp_hf_rotate(at->hf, normed ? sbp_hf_path(at->hf, "%s_turned", norm) : name, x, t);
    if (normed)
        x = norm_heads(at, x, norm, at->d->head_dim);
    if (normed || !turns)
        sbp_build_name(&at->hf->builder, x, name);
    return x;
}

static sbp_value turn_queries(const sbp_hf_scope *at, sbp_value q) {
    sbp_hf_turn t = at->turn[at->layer->rope];
    if (t.temper == SBP_NO_VALUE)
        return turn(at, "q", q, at->d->names.q);
    q = turn(at, "q_turned", q, at->d->names.q);
    return sbp_hf_temper(at->hf, "q", q, t);
}

/* The answer of attention, opened by a gate for each element, both [T, heads width], or for each head,
 * [T, heads], where the answer is [T, heads, width]. */
static sbp_value open_heads(const sbp_hf_scope *at, sbp_value o, sbp_value gate) {
    sbp_hf *hf = at->hf;
    sbp_builder *b = &hf->builder;
    if (at->d->gate_softplus) { /* softplus(x) = -log_sigmoid(-x), not rounded before it is done */
        gate = sbp_build_cast(b, gate, sbp_rule_wide(hf->compute));
        gate = sbp_build1(b, SBP_OP_log_sigmoid, sbp_build1(b, SBP_OP_neg, gate));
        gate = sbp_hf_operand(hf, sbp_build1(b, SBP_OP_neg, gate));
    } else {
        gate = sbp_build1(b, SBP_OP_sigmoid, gate);
    }
    if (at->d->gate_by_head)
        gate = sbp_build_reshape(b, gate, (int64_t[]){heads_of(at), 1}, 2);
    o = sbp_build2(b, SBP_OP_mul, o, gate);
    sbp_build_name(b, o, "attn_gated");
    return o;
}

/* What queries find, [T, heads, width]. */
static sbp_value attend(const sbp_hf_scope *at, sbp_value q, sbp_value k, sbp_value v) {
    const sbp_hf_decoder *d = at->d;
    sbp_hf *hf = at->hf;
    if (at->layer->part > 0)
        return sbp_hf_attention_parts(hf, q, k, v, d->score_scale, at->layer->part);
    if (!d->sinks && !at->layer->sinks)
        return sbp_hf_attention(hf, q, k, v, d->score_scale, at->layer->window);
    sbp_value sink = sbp_hf_row_vector(hf, sbp_hf_path(hf, "%s.%s", at->module, d->names.sinks),
                                       SBP_INIT_NORMAL, heads_of(at));
    return sbp_hf_attention_sink(hf, q, k, v, sink, d->score_scale, at->layer->window);
}

sbp_value sbp_hf_mix_attention(const sbp_hf_scope *at, sbp_value x) {
    const sbp_hf_decoder *d = at->d;
    sbp_hf *hf = at->hf;
    int64_t heads = heads_of(at), kv_heads = kv_heads_of(at), width = value_dim_of(d);
    sbp_value q = SBP_NO_VALUE, k = SBP_NO_VALUE, v = SBP_NO_VALUE, gate = SBP_NO_VALUE, o;
    if (d->latent.kv_rank > 0) {
        sbp_hf_latent_build(hf, d, x, at->module, at->turn[at->layer->rope], &q, &k, &v);
    } else {
        q = build_heads(at, "q", x, heads, d->head_dim, 0, d->names.q, d->output_gate ? &gate : NULL);
        q = turn_queries(at, q);
        k = build_heads(at, "k", x, kv_heads, d->head_dim, heads, d->names.k, NULL);
        k = turn(at, "k", sbp_hf_scale(hf, "scaled_k", k, d->key_scale), d->names.k);
        v = build_heads(at, "v", x, kv_heads, width, heads + kv_heads, NULL, NULL);
        v = sbp_hf_scale(hf, "scaled_v", v, d->value_scale);
        sbp_build_name(&hf->builder, v, "v");
    }
    o = attend(at, q, k, v);
    if (!d->gate_by_head)
        o = sbp_hf_join_heads(hf, o);
    if (d->names.attn_gate)
        gate = sbp_hf_map(at, "attn_gate", x, d->names.attn_gate, heads * (d->gate_by_head ? 1 : width),
                          d->hidden, false);
    if (d->names.class_gate)
        sbp_hf_class_name(hf, sbp_hf_path(hf, "%s.%s", at->module, d->names.attn_gate),
                          sbp_hf_path(hf, "%s.%s", at->module, d->names.class_gate));
    if (d->names.attn_gate || d->output_gate)
        o = open_heads(at, o, gate);
    if (d->gate_by_head)
        o = sbp_hf_join_heads(hf, o);
    return sbp_hf_map(at, "attn_proj", o, d->names.attn_out, d->hidden, heads * width, d->o_bias);
}

sbp_value sbp_hf_mix_mlp(const sbp_hf_scope *at, sbp_value x) {
    const sbp_hf_decoder *d = at->d;
    const char *const *names = d->names.mlp, *one = d->fused_gate_up ? "gate_up_proj" : NULL;
    int64_t inner = at->layer->inner > 0 ? at->layer->inner : d->inner;
    sbp_value gate = SBP_NO_VALUE, up, y;
    if (!d->ungated)
        gate = project(at, "gate", x, names[SBP_HF_EXPERT_GATE], "gate", inner, d->mlp_bias,
                       (fused){one, 0, 2 * inner});
    up = project(at, "up", x, names[SBP_HF_EXPERT_UP], "up", inner, d->mlp_bias,
                 (fused){one, inner, 2 * inner});
    if (d->ungated) {
        y = sbp_hf_activate(at->hf, d->activation, "act", up);
    } else {
        gate = sbp_hf_scale(at->hf, "scaled_gate", gate, d->gate_scale);
        y = sbp_hf_gate_within(at->hf, d->activation, "act", gate, up, at->layer->limit);
    }
    return sbp_hf_map(at, "mlp_proj", y, names[SBP_HF_EXPERT_DOWN], d->hidden, inner, d->mlp_bias);
}

sbp_value sbp_hf_mix_experts(const sbp_hf_scope *at, sbp_value x) {
    const sbp_hf_experts *e = at->layer->experts ? at->layer->experts : &at->d->experts;
    return sbp_hf_experts_build(at->hf, e, at->d->activation, "mlp_proj", x, at->module, at->d->hidden);
}

/* ---- layers ------------------------------------------------------------------------------------------ */

/* kind: NULL: the decoder's. */
static sbp_value build_layer_norm(const sbp_hf_scope *at, const sbp_hf_norm *kind, const char *name,
                                  sbp_value x, const char *module) {
    if (!module)
        return x;
    return sbp_hf_normalize(at->hf, kind ? kind : &at->d->norm, name, x, sbp_hf_enter(at, module),
                            at->d->hidden);
}

/* The stream with a branch added. */
static sbp_value build_branch(sbp_hf_scope *at, const sbp_hf_branch *branch, sbp_value x) {
    sbp_hf *hf = at->hf;
    const char *in = branch->in_name ? branch->in_name : sbp_hf_path(hf, "%s_norm", branch->name);
    sbp_value read = build_layer_norm(at, NULL, in, x, branch->norm_in), sum = SBP_NO_VALUE;
    at->stream = x;
    for (int32_t p = 0; p < SBP_COUNT(branch->mixer) && branch->mixer[p].mix; p++) {
        const sbp_hf_mixer *m = &branch->mixer[p];
        at->class_module = m->class_module ? sbp_hf_enter(at, m->class_module) : NULL;
        at->module = sbp_hf_enter(at, m->module);
        sbp_value y = sbp_hf_scale(hf, "scaled_in", read, m->scale_in);
        y = m->mix(at, y);
        y = sbp_hf_scale(hf, "scaled_out", y, m->scale_out);
        sum = p == 0 ? y : sbp_build2(&hf->builder, SBP_OP_add, y, sum);
    }
    sum = build_layer_norm(at, at->d->out_norm, sbp_hf_path(hf, "%s_out_norm", branch->name), sum,
                           branch->norm_out);
    (void)sbp_hf_enter(at, "");
    sum = sbp_hf_scale(hf, "scaled_branch", sum, at->d->branch_scale);
    x = sbp_hf_add(hf, sbp_hf_path(hf, "%s_residual", branch->name), x, sum);
    return branch->scale == 0 ? x : sbp_hf_scale(hf, "scaled_stream", x, branch->scale);
}

static sbp_value build_layer(sbp_hf_scope *at, sbp_value x) {
    const sbp_hf_decoder *d = at->d;
    bool sparse = d->experts.sparse && d->experts.sparse[at->number];
    const sbp_hf_branch attention = {.name = "attn",
                                     .norm_in = d->norms.attn_in,
                                     .norm_out = d->norms.attn_out,
                                     .mixer = {{sbp_hf_mix_attention, "self_attn", 1, 1}}},
                        mlp = {.name = "mlp",
                               .norm_in = d->norms.mlp_in,
                               .norm_out = d->norms.mlp_out,
                               .mixer = {{sparse ? sbp_hf_mix_experts : sbp_hf_mix_mlp,
                                          sparse ? d->experts.names->module : "mlp", 1, 1}}};
    const sbp_hf_branch *const *own = at->layer->branch, *first = own[0] ? own[0] : &attention;
    x = d->open_layer ? d->open_layer(at, x) : x;
    x = build_branch(at, first, x);
    if (!first->alone)
        x = build_branch(at, own[1] ? own[1] : &mlp, x);
    return d->finish_layer ? d->finish_layer(at, x) : x;
}

/* ---- the whole --------------------------------------------------------------------------------------- */

static sbp_value build_head(const sbp_hf_scope *at, sbp_value x, sbp_value table) {
    const sbp_hf_decoder *d = at->d;
    sbp_builder *b = &at->hf->builder;
    b->node = sbp_hf_path(at->hf, "%s.%s", d->names.root, d->names.last_norm);
    x = sbp_hf_normalize(at->hf, d->last_norm ? d->last_norm : &d->norm, "final_norm", x, b->node, d->hidden);
    b->node = at->hf->head_module;
    sbp_value w = sbp_hf_head_matrix(at->hf, sbp_hf_path(at->hf, "%s.weight", b->node), table, d->tied);
    sbp_value logits = sbp_hf_logits(at->hf, x, w);
    logits = sbp_hf_scale(at->hf, "scaled_logits", logits, d->logits_scale);
    if (d->logits_divisor != 1 && b->status == SBP_OK) {
        sbp_dtype wide = sbp_build_type(b, logits)->dtype;
        logits = sbp_build2(b, SBP_OP_div, logits, sbp_build_const(b, wide, d->logits_divisor));
        sbp_build_name(b, logits, "scaled_logits");
    }
    if (d->final_softcap != 0)
        logits = sbp_build(b, SBP_OP_softcap, "capped_logits", &logits, 1,
                           (sbp_attr[]){sbp_attr_double("cap", d->final_softcap)}, 1, NULL);
    return logits;
}

static sbp_value build_embedding(const sbp_hf_scope *at, sbp_value table) {
    sbp_value x = sbp_hf_embed(at->hf, "embed", table, SBP_DATA_TOK);
    return sbp_hf_scale(at->hf, "scaled_embed", x, at->d->embed_scale);
}

void sbp_hf_decoder_build(sbp_hf *hf, const sbp_hf_decoder *d) {
    sbp_hf_scope at = {.hf = hf, .d = d};
    sbp_builder *b = &hf->builder;
    hf->base_prefix = hf->base_prefix ? hf->base_prefix : "model.";
    b->node = sbp_hf_path(hf, "%s.rotary_emb", d->names.root);
    for (int32_t r = 0; r < SBP_COUNT(at.turn); r++)
        at.turn[r] = sbp_hf_rope_tables(hf, &d->rope[r]);
    b->node = sbp_hf_path(hf, "%s.%s", d->names.root, d->names.embedding);
    sbp_value table = sbp_hf_table(hf, sbp_hf_path(hf, "%s.weight", b->node), d->vocab, d->hidden);
    sbp_value x = d->embed ? d->embed(&at, table) : build_embedding(&at, table);
    for (; at.number < d->layers && b->status == SBP_OK; at.number++) {
        at.layer = &d->layer[at.number];
        x = build_layer(&at, x);
    }
    b->node = d->names.root;
    x = d->close ? d->close(&at, x) : x;
    sbp_hf_finish(hf, build_head(&at, x, table));
    b->node = NULL;
}
