/* hf_decoder.c: decoders of the Llama kind: embedding, layers of attention and gated MLP, norm, head. What a
 * family adds or leaves out stands in its sbp_hf_decoder. Parameters are named as the modules of
 * transformers' modeling_llama.py; norms on outputs as those of modeling_gemma3.py and modeling_olmo2.py. */
#include "frontends/hf/hf.h"

#include <math.h>
#include <string.h>

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

sbp_hf_decoder sbp_hf_decoder_read(sbp_hf *hf, const sbp_hf_defaults *defaults) {
    int64_t vocab = defaults->vocab > 0 ? defaults->vocab : SBP_HF_REQUIRED,
            heads = defaults->heads > 0 ? defaults->heads : SBP_HF_REQUIRED;
    const char *key = defaults->activation_key ? defaults->activation_key : "hidden_act",
               *activation = defaults->activation ? defaults->activation : "silu";
    double eps = defaults->norm_eps > 0 ? defaults->norm_eps : 1e-6;
    sbp_hf_decoder d = {.vocab = sbp_hf_size(hf, "vocab_size", vocab),
                        .hidden = sbp_hf_size(hf, "hidden_size", SBP_HF_REQUIRED),
                        .inner = sbp_hf_size(hf, "intermediate_size", SBP_HF_REQUIRED),
                        .layers = sbp_hf_size(hf, "num_hidden_layers", SBP_HF_REQUIRED),
                        .heads = sbp_hf_size(hf, "num_attention_heads", heads),
                        .activation = sbp_hf_string(hf, key, activation),
                        .norm.eps = sbp_hf_double(hf, "rms_norm_eps", eps),
                        .max_positions = sbp_hf_size(hf, "max_position_embeddings", defaults->max_positions),
                        .tied = sbp_hf_bool(hf, "tie_word_embeddings", defaults->tied),
                        .norms = {.attn_in = "input_layernorm", .mlp_in = "post_attention_layernorm"},
                        .embed_scale = 1,
                        .branch_scale = 1,
                        .logits_divisor = 1};
    d.kv_heads = read_kv_heads(hf, d.heads, defaults->kv_heads);
    d.head_dim = read_head_dim(hf, d.hidden, d.heads, defaults);
    d.score_scale = pow((double)d.head_dim, -0.5);
    sbp_hf_set_facts(hf, d.vocab, d.layers, d.max_positions);
    d.layer = SBP_NEW_ARRAY(hf->arena, sbp_hf_layer, hf->builder.status == SBP_OK ? d.layers : 1);
    return d;
}

sbp_hf_rope sbp_hf_decoder_rope(sbp_hf *hf, const sbp_hf_decoder *d) {
    return sbp_hf_rope_read(hf, &(sbp_hf_rope_shape){.head_dim = d->head_dim,
                                                     .rotary_dim = d->head_dim,
                                                     .theta = 1e4,
                                                     .max_positions = d->max_positions});
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

/* ---- graph ---------------------------------------------------------------------------------------- */

typedef struct decoder {
    sbp_hf *hf;
    sbp_builder *b;
    const sbp_hf_decoder *d;
    sbp_hf_turn turn[2]; /* as d->rope */
} decoder;

static sbp_value build_norm(const decoder *c, const char *name, sbp_value x, const char *module, int64_t n) {
    return sbp_hf_normalize(c->hf, &c->d->norm, name, x, module, n);
}

/* The linear map <module>.<part>_proj; of a fused tensor <module>.<fused>, its rows from `start` on. */
static sbp_value project(const decoder *c, const char *name, sbp_value x, const char *module,
                         const char *part, int64_t length, bool bias, const char *fused, int64_t start,
                         int64_t out) {
    if (fused)
        return sbp_hf_linear_part(c->hf, name, x, sbp_hf_path(c->hf, "%s.%s", module, fused), part, out,
                                  c->d->hidden, start, length, bias);
    return sbp_hf_linear(c->hf, name, x, sbp_hf_path(c->hf, "%s.%s_proj", module, part), length, c->d->hidden,
                         bias);
}

/* Queries, keys or values, [T, heads, head_dim]: project, norm where the family has one, split. `before`:
 * heads before these in the fused tensor. */
static sbp_value build_heads(const decoder *c, const char *part, sbp_value x, const char *module,
                             int64_t heads, int64_t before, bool normed) {
    const sbp_hf_decoder *d = c->d;
    sbp_hf *hf = c->hf;
    int64_t n = heads * d->head_dim, all = (d->heads + 2 * d->kv_heads) * d->head_dim;
    const char *norm = sbp_hf_path(hf, "%s.%s_norm", module, part);
    sbp_value y = project(c, NULL, x, module, part, n, d->qkv_bias, d->fused_qkv ? "qkv_proj" : NULL,
                          before * d->head_dim, all);
    if (normed && d->qk_norm == SBP_HF_QK_NORM_WHOLE)
        y = build_norm(c, NULL, y, norm, n);
    y = sbp_hf_split_heads(hf, y, heads, d->head_dim);
    if (normed && d->qk_norm == SBP_HF_QK_NORM_HEAD)
        y = build_norm(c, NULL, y, norm, d->head_dim);
    return y;
}

/* Queries or keys where they stand. */
static sbp_value turn(const decoder *c, const char *name, sbp_value x, const sbp_hf_layer *layer) {
    if (!layer->no_rope)
        return sbp_hf_rotate(c->hf, name, x, c->turn[layer->rope]);
    sbp_build_name(c->b, x, name);
    return x;
}

static sbp_value build_attention(const decoder *c, sbp_value x, const char *module,
                                 const sbp_hf_layer *layer) {
    const sbp_hf_decoder *d = c->d;
    sbp_hf *hf = c->hf;
    sbp_value q = SBP_NO_VALUE, k = SBP_NO_VALUE, v = SBP_NO_VALUE;
    if (d->latent.kv_rank > 0) {
        sbp_hf_latent_build(hf, d, x, module, c->turn[layer->rope], &q, &k, &v);
    } else {
        q = build_heads(c, "q", x, module, d->heads, 0, true);
        q = turn(c, "q", q, layer);
        k = build_heads(c, "k", x, module, d->kv_heads, d->heads, true);
        k = turn(c, "k", k, layer);
        v = build_heads(c, "v", x, module, d->kv_heads, d->heads + d->kv_heads, false);
        sbp_build_name(c->b, v, "v");
    }
    sbp_value o;
    if (d->sinks) {
        sbp_value sink =
            sbp_hf_row_vector(hf, sbp_hf_path(hf, "%s.sinks", module), SBP_INIT_NORMAL, d->heads);
        o = sbp_hf_attention_sink(hf, q, k, v, sink, d->score_scale, layer->window);
    } else {
        o = sbp_hf_attention(hf, q, k, v, d->score_scale, layer->window);
    }
    o = sbp_hf_join_heads(hf, o);
    int64_t value = d->latent.kv_rank > 0 ? d->latent.value : d->head_dim;
    return sbp_hf_linear(hf, "attn_proj", o, sbp_hf_path(hf, "%s.o_proj", module), d->hidden,
                         d->heads * value, d->o_bias);
}

static sbp_value build_mlp(const decoder *c, sbp_value x, const char *module) {
    const sbp_hf_decoder *d = c->d;
    const char *fused = d->fused_gate_up ? "gate_up_proj" : NULL;
    sbp_value gate = project(c, "gate", x, module, "gate", d->inner, d->mlp_bias, fused, 0, 2 * d->inner);
    sbp_value up = project(c, "up", x, module, "up", d->inner, d->mlp_bias, fused, d->inner, 2 * d->inner);
    sbp_value y = sbp_hf_gate(c->hf, d->activation, "act", gate, up);
    return sbp_hf_linear(c->hf, "mlp_proj", y, sbp_hf_path(c->hf, "%s.down_proj", module), d->hidden,
                         d->inner, d->mlp_bias);
}

static sbp_value build_experts(const decoder *c, sbp_value x, const char *module) {
    return sbp_hf_experts_build(c->hf, &c->d->experts, c->d->activation, "mlp_proj", x, module, c->d->hidden);
}

/* The ops that follow belong to this module of a layer; its name. */
static const char *enter(const decoder *c, int64_t layer, const char *module) {
    c->b->node = sbp_hf_path(c->hf, "model.layers.%lld.%s", (long long)layer, module);
    return c->b->node;
}

/* The residual stream with a branch added. */
static sbp_value add_branch(const decoder *c, const char *name, sbp_value x, sbp_value y, int64_t layer) {
    c->b->node = sbp_hf_path(c->hf, "model.layers.%lld", (long long)layer);
    y = sbp_hf_scale(c->hf, "scaled_branch", y, c->d->branch_scale);
    return sbp_hf_add(c->hf, name, x, y);
}

static sbp_value build_layer_norm(const decoder *c, const char *name, sbp_value x, int64_t layer,
                                  const char *module) {
    return module ? build_norm(c, name, x, enter(c, layer, module), c->d->hidden) : x;
}

static sbp_value build_layer(const decoder *c, sbp_value x, int64_t n) {
    const sbp_hf_decoder *d = c->d;
    sbp_value y = x;
    y = build_layer_norm(c, "attn_norm", y, n, d->norms.attn_in);
    y = build_attention(c, y, enter(c, n, "self_attn"), &d->layer[n]);
    y = build_layer_norm(c, "attn_out_norm", y, n, d->norms.attn_out);
    y = x = add_branch(c, "attn_residual", x, y, n);
    y = build_layer_norm(c, "mlp_norm", y, n, d->norms.mlp_in);
    bool sparse = d->experts.sparse && d->experts.sparse[n];
    y = sparse ? build_experts(c, y, enter(c, n, d->experts.names->module))
               : build_mlp(c, y, enter(c, n, "mlp"));
    y = build_layer_norm(c, "mlp_out_norm", y, n, d->norms.mlp_out);
    return add_branch(c, "mlp_residual", x, y, n);
}

static sbp_value build_head(const decoder *c, sbp_value x, sbp_value table) {
    const sbp_hf_decoder *d = c->d;
    c->b->node = "model.norm";
    x = build_norm(c, "final_norm", x, c->b->node, d->hidden);
    c->b->node = "lm_head";
    sbp_value w = sbp_hf_head_matrix(c->hf, "lm_head.weight", table, d->tied);
    sbp_value logits = sbp_hf_logits(c->hf, x, w);
    if (d->logits_divisor != 1 && c->b->status == SBP_OK) {
        sbp_dtype wide = sbp_build_type(c->b, logits)->dtype;
        logits = sbp_build2(c->b, SBP_OP_div, logits, sbp_build_const(c->b, wide, d->logits_divisor));
        sbp_build_name(c->b, logits, "scaled_logits");
    }
    if (d->final_softcap != 0)
        logits = sbp_build(c->b, SBP_OP_softcap, "capped_logits", &logits, 1,
                           (sbp_attr[]){sbp_attr_double("cap", d->final_softcap)}, 1, NULL);
    return logits;
}

void sbp_hf_decoder_build(sbp_hf *hf, const sbp_hf_decoder *d) {
    decoder c = {.hf = hf, .b = &hf->builder, .d = d};
    hf->base_prefix = "model.";
    c.b->node = "model.rotary_emb";
    for (int32_t r = 0; r < 2; r++)
        if (d->rope[r].inv_freq)
            c.turn[r] = sbp_hf_rope_tables(hf, &d->rope[r]);
    c.b->node = "model.embed_tokens";
    sbp_value table = sbp_hf_table(hf, "model.embed_tokens.weight", d->vocab, d->hidden);
    sbp_value x = sbp_hf_embed(hf, "embed", table, SBP_DATA_TOK);
    x = sbp_hf_scale(hf, "scaled_embed", x, d->embed_scale);
    for (int64_t i = 0; i < d->layers && c.b->status == SBP_OK; i++)
        x = build_layer(&c, x, i);
    sbp_hf_finish(hf, build_head(&c, x, table));
    c.b->node = NULL;
}
