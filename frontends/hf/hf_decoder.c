/* hf_decoder.c: decoders of the Llama kind: embedding, layers of attention and gated MLP, norm, head. What a
 * family adds or leaves out stands in its sbp_hf_decoder. Parameter names: COMPAT, section 3. */
#include "frontends/hf/hf.h"

#include <math.h>
#include <string.h>

enum { MAX_LAYERS = 1000 }; /* several times more than any model has; a bound for time and memory */

/* ---- configuration -------------------------------------------------------------------------------- */

/* num_key_value_heads: null means as many as heads, absent the default of the family. */
static int64_t read_kv_heads(sbp_hf *hf, int64_t heads, int64_t default_kv_heads) {
    bool same = sbp_hf_is_null(hf, "num_key_value_heads") || default_kv_heads == 0;
    int64_t kv_heads = sbp_hf_size(hf, "num_key_value_heads", same ? heads : default_kv_heads);
    if (kv_heads > 0 && heads % kv_heads != 0)
        sbp_hf_fail(hf, sbp_hf_field(hf, "num_key_value_heads"),
                    "num_attention_heads %lld is no multiple of num_key_value_heads %lld", (long long)heads,
                    (long long)kv_heads);
    return kv_heads;
}

/* When it is not given, hidden / heads; families for which transformers checks nothing round down. */
static int64_t read_head_dim(sbp_hf *hf, int64_t hidden, int64_t heads, const sbp_hf_defaults *defaults) {
    int64_t fallback = defaults->head_dim > 0 ? defaults->head_dim : hidden / heads;
    int64_t head_dim = sbp_hf_size(hf, "head_dim", fallback > 0 ? fallback : 1);
    if (defaults->head_dim == 0 && !sbp_hf_field(hf, "head_dim") &&
        (fallback == 0 || (hidden % heads != 0 && !defaults->head_dim_rounds)))
        sbp_hf_fail(hf, sbp_hf_field(hf, "hidden_size"),
                    "hidden_size %lld is no multiple of num_attention_heads %lld, and head_dim is not given",
                    (long long)hidden, (long long)heads);
    return head_dim;
}

sbp_hf_decoder sbp_hf_decoder_read(sbp_hf *hf, const sbp_hf_defaults *defaults) {
    int64_t vocab = defaults->vocab > 0 ? defaults->vocab : SBP_HF_REQUIRED,
            heads = defaults->heads > 0 ? defaults->heads : SBP_HF_REQUIRED;
    sbp_hf_decoder d = {.vocab = sbp_hf_size(hf, "vocab_size", vocab),
                        .hidden = sbp_hf_size(hf, "hidden_size", SBP_HF_REQUIRED),
                        .inner = sbp_hf_size(hf, "intermediate_size", SBP_HF_REQUIRED),
                        .layers = sbp_hf_size(hf, "num_hidden_layers", SBP_HF_REQUIRED),
                        .heads = sbp_hf_size(hf, "num_attention_heads", heads),
                        .activation = sbp_hf_string(hf, defaults->activation_key, defaults->activation),
                        .norm_eps = sbp_hf_double(hf, "rms_norm_eps", 1e-6),
                        .max_positions = sbp_hf_size(hf, "max_position_embeddings", defaults->max_positions),
                        .tied = sbp_hf_bool(hf, "tie_word_embeddings", defaults->tied),
                        .embed_scale = 1};
    d.kv_heads = read_kv_heads(hf, d.heads, defaults->kv_heads);
    d.head_dim = read_head_dim(hf, d.hidden, d.heads, defaults);
    d.score_scale = pow((double)d.head_dim, -0.5);
    if (d.layers > MAX_LAYERS)
        sbp_hf_fail(hf, sbp_hf_field(hf, "num_hidden_layers"), "%lld layers; at most %d are expected",
                    (long long)d.layers, MAX_LAYERS);
    d.layer = SBP_NEW_ARRAY(hf->arena, sbp_hf_layer, hf->builder.status == SBP_OK ? d.layers : 1);
    hf->model->vocab_size = d.vocab;
    hf->model->max_positions = d.max_positions;
    if (hf->model->pad_id >= 0 && hf->model->pad_id < d.vocab)
        hf->pad_row = hf->model->pad_id;
    return d;
}

bool sbp_hf_layer_types(sbp_hf *hf, int64_t layers, bool *sliding) {
    const sbp_json *field = sbp_hf_field(hf, "layer_types");
    if (!field)
        return false;
    if (field->kind != SBP_JSON_ARRAY || field->count != layers) {
        sbp_hf_fail(hf, field, "expected an array of %lld layer types (num_hidden_layers), found %s of %lld",
                    (long long)layers, sbp_json_kind_name(field->kind), (long long)field->count);
        return false;
    }
    for (int64_t i = 0; i < layers; i++) {
        const sbp_json *type = &field->items[i];
        sliding[i] = type->kind == SBP_JSON_STRING && strcmp(type->string, "sliding_attention") == 0;
        if (!sliding[i] && !(type->kind == SBP_JSON_STRING && strcmp(type->string, "full_attention") == 0))
            sbp_hf_fail(hf, type,
                        "layer type %s is not supported; full_attention or sliding_attention expected",
                        type->kind == SBP_JSON_STRING ? type->string : sbp_json_kind_name(type->kind));
    }
    return true;
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

/* ---- graph ---------------------------------------------------------------------------------------- */

typedef struct decoder {
    sbp_hf *hf;
    sbp_builder *b;
    const sbp_hf_decoder *d;
    sbp_value cos[2], sin[2];
} decoder;

static sbp_value build_norm(const decoder *c, const char *name, sbp_value x, const char *module, int64_t n) {
    bool plus_one = c->d->norm_plus_one;
    sbp_value w = sbp_hf_vector(c->hf, sbp_hf_path(c->hf, "%s.weight", module),
                                plus_one ? SBP_INIT_ZEROS : SBP_INIT_ONES, n);
    return sbp_build(c->b, SBP_OP_rms_norm, name, (sbp_value[]){x, w}, 2,
                     (sbp_attr[]){sbp_attr_double("eps", c->d->norm_eps),
                                  sbp_attr_double("offset", plus_one ? 1 : 0),
                                  sbp_attr_symbol("cast", plus_one ? "after" : "before")},
                     3, NULL);
}

/* Queries or keys: project, split, norm where the family has one, turn. */
static sbp_value build_turned(const decoder *c, const char *name, sbp_value x, const char *module,
                              int64_t heads, int32_t rope) {
    const sbp_hf_decoder *d = c->d;
    sbp_hf *hf = c->hf;
    sbp_value y = sbp_hf_linear(hf, NULL, x, sbp_hf_path(hf, "%s.%s_proj", module, name), heads * d->head_dim,
                                d->hidden, d->qkv_bias);
    y = sbp_hf_split_heads(hf, y, heads, d->head_dim); /* [T, heads, head_dim] */
    if (d->qk_norm)
        y = build_norm(c, NULL, y, sbp_hf_path(hf, "%s.%s_norm", module, name), d->head_dim);
    return sbp_build(c->b, SBP_OP_rope, name, (sbp_value[]){y, c->cos[rope], c->sin[rope]}, 3, NULL, 0, NULL);
}

static sbp_value build_attention(const decoder *c, sbp_value x, const char *module,
                                 const sbp_hf_layer *layer) {
    const sbp_hf_decoder *d = c->d;
    sbp_hf *hf = c->hf;
    sbp_value q = build_turned(c, "q", x, module, d->heads, layer->rope);
    sbp_value k = build_turned(c, "k", x, module, d->kv_heads, layer->rope);
    sbp_value v = sbp_hf_linear(hf, NULL, x, sbp_hf_path(hf, "%s.v_proj", module), d->kv_heads * d->head_dim,
                                d->hidden, d->qkv_bias);
    v = sbp_hf_split_heads(hf, v, d->kv_heads, d->head_dim);
    sbp_build_name(c->b, v, "v");
    sbp_value o = sbp_hf_join_heads(hf, sbp_hf_attention(hf, q, k, v, d->score_scale, layer->window));
    return sbp_hf_linear(hf, "attn_proj", o, sbp_hf_path(hf, "%s.o_proj", module), d->hidden,
                         d->heads * d->head_dim, d->o_bias);
}

/* activation(gate) * up */
static sbp_value build_gated(const decoder *c, sbp_value gate, sbp_value up) {
    static const struct {
        const char *name;
        sbp_opcode code;
        const char *approximate;
    } known[] = {{"silu", SBP_OP_swiglu, NULL},
                 {"swish", SBP_OP_swiglu, NULL},
                 {"gelu", SBP_OP_geglu, "none"},
                 {"gelu_pytorch_tanh", SBP_OP_geglu, "tanh"},
                 {"gelu_new", SBP_OP_geglu, "tanh"}};
    for (int32_t i = 0; i < SBP_COUNT(known); i++)
        if (strcmp(c->d->activation, known[i].name) == 0)
            return sbp_build(c->b, known[i].code, "act", (sbp_value[]){gate, up}, 2,
                             (sbp_attr[]){sbp_attr_symbol("approximate",
                                                          known[i].approximate ? known[i].approximate : "")},
                             known[i].approximate ? 1 : 0, NULL);
    sbp_hf_fail(c->hf, NULL,
                "the activation '%s' is not built; supported: silu, gelu, gelu_pytorch_tanh, gelu_new",
                c->d->activation);
    return SBP_NO_VALUE;
}

static sbp_value build_mlp(const decoder *c, sbp_value x, const char *module) {
    const sbp_hf_decoder *d = c->d;
    sbp_hf *hf = c->hf;
    sbp_value gate = sbp_hf_linear(hf, "gate", x, sbp_hf_path(hf, "%s.gate_proj", module), d->inner,
                                   d->hidden, d->mlp_bias);
    sbp_value up =
        sbp_hf_linear(hf, "up", x, sbp_hf_path(hf, "%s.up_proj", module), d->inner, d->hidden, d->mlp_bias);
    return sbp_hf_linear(hf, "mlp_proj", build_gated(c, gate, up), sbp_hf_path(hf, "%s.down_proj", module),
                         d->hidden, d->inner, d->mlp_bias);
}

/* The ops that follow belong to this module of a layer; its name. */
static const char *enter(const decoder *c, int64_t layer, const char *module) {
    c->b->node = sbp_hf_path(c->hf, "model.layers.%lld.%s", (long long)layer, module);
    return c->b->node;
}

/* The residual stream with a branch added. */
static sbp_value add_branch(const decoder *c, const char *name, sbp_value x, sbp_value y, int64_t layer) {
    c->b->node = sbp_hf_path(c->hf, "model.layers.%lld", (long long)layer);
    x = sbp_build2(c->b, SBP_OP_add, x, y);
    sbp_build_name(c->b, x, name);
    return x;
}

static sbp_value build_layer(const decoder *c, sbp_value x, int64_t n) {
    const sbp_hf_decoder *d = c->d;
    sbp_value y = build_norm(c, "attn_norm", x, enter(c, n, "input_layernorm"), d->hidden);
    y = build_attention(c, y, enter(c, n, "self_attn"), &d->layer[n]);
    if (d->output_norms)
        y = build_norm(c, "attn_out_norm", y, enter(c, n, "post_attention_layernorm"), d->hidden);
    x = add_branch(c, "attn_residual", x, y, n);
    const char *before = d->output_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm";
    y = build_norm(c, "mlp_norm", x, enter(c, n, before), d->hidden);
    y = build_mlp(c, y, enter(c, n, "mlp"));
    if (d->output_norms)
        y = build_norm(c, "mlp_out_norm", y, enter(c, n, "post_feedforward_layernorm"), d->hidden);
    return add_branch(c, "mlp_residual", x, y, n);
}

static void build_tables(decoder *c) {
    for (int32_t r = 0; r < 2; r++)
        if (c->d->rope[r].inv_freq)
            sbp_hf_rope_tables(c->hf, &c->d->rope[r], &c->cos[r], &c->sin[r]);
}

static sbp_value build_head(const decoder *c, sbp_value x, sbp_value table) {
    const sbp_hf_decoder *d = c->d;
    c->b->node = "model.norm";
    x = build_norm(c, "final_norm", x, c->b->node, d->hidden);
    c->b->node = "lm_head";
    sbp_value w = sbp_hf_head_matrix(c->hf, "lm_head.weight", table, d->tied);
    sbp_value logits = sbp_build(c->b, SBP_OP_linear, "logits", (sbp_value[]){x, w}, 2,
                                 (sbp_attr[]){sbp_attr_bool("wide", true)}, 1, NULL); /* [T, vocab], fp32 */
    if (d->final_softcap != 0)
        logits = sbp_build(c->b, SBP_OP_softcap, "capped_logits", &logits, 1,
                           (sbp_attr[]){sbp_attr_double("cap", d->final_softcap)}, 1, NULL);
    return logits;
}

void sbp_hf_decoder_build(sbp_hf *hf, const sbp_hf_decoder *d) {
    decoder c = {.hf = hf, .b = &hf->builder, .d = d};
    hf->base_prefix = "model.";
    c.b->node = "model.rotary_emb";
    build_tables(&c);
    c.b->node = "model.embed_tokens";
    sbp_value table = sbp_hf_table(hf, "model.embed_tokens.weight", d->vocab, d->hidden);
    sbp_value tok = sbp_hf_row(hf, "tok");
    sbp_value x = sbp_build(c.b, SBP_OP_gather, "embed", (sbp_value[]){table, tok}, 2, NULL, 0, NULL);
    if (d->embed_scale != 1) {
        x = sbp_build2(c.b, SBP_OP_mul, x,
                       sbp_build_const(c.b, hf->compute, sbp_round_to(hf->compute, d->embed_scale)));
        sbp_build_name(c.b, x, "scaled_embed");
    }
    for (int64_t i = 0; i < d->layers && c.b->status == SBP_OK; i++)
        x = build_layer(&c, x, i);
    sbp_hf_finish(hf, build_head(&c, x, table));
    c.b->node = NULL;
}
