/* hf_lfm2.c: LFM2: most layers mix rows by a short convolution between two gates, some by attention. Formulas
 * and names: transformers, modeling_lfm2.py; fields and their defaults: configuration_lfm2.py. */
#include <math.h>
#include <string.h>

#include "frontends/hf/hf.h"

typedef struct lfm2 {
    sbp_hf *hf;
    sbp_builder *b;
    int64_t vocab, hidden, inner, layers, heads, kv_heads, head_dim, taps;
    bool conv_bias, tied;
    bool *attends; /* per layer; the others convolve */
    sbp_hf_norm norm;
    sbp_hf_turn turn;
} lfm2;

/* ---- configuration -------------------------------------------------------------------------------- */

/* layer_types, or full_attn_idxs, without which all layers attend. */
static void read_layers(lfm2 *m) {
    sbp_hf *hf = m->hf;
    bool given = sbp_hf_layer_words(hf, "layer_types", m->layers, "conv", "full_attention", m->attends);
    const sbp_json *places = sbp_hf_field(hf, "full_attn_idxs");
    if (given || hf->builder.status != SBP_OK)
        return;
    for (int64_t i = 0; i < m->layers; i++)
        m->attends[i] = !places;
    if (places && places->kind != SBP_JSON_ARRAY)
        sbp_hf_fail(hf, places, "expected an array of layer numbers");
    for (int64_t i = 0; places && i < places->count && hf->builder.status == SBP_OK; i++) {
        int64_t layer = 0;
        hf->builder.status = sbp_json_as_i64(hf->diag, &places->items[i], &layer);
        if (hf->builder.status == SBP_OK && (layer < 0 || layer >= m->layers))
            sbp_hf_fail(hf, &places->items[i], "there is no layer %lld", (long long)layer);
        else if (hf->builder.status == SBP_OK)
            m->attends[layer] = true;
    }
}

/* Columns of the MLP: two thirds of what is given, times a factor, up to a multiple (Lfm2MLP). */
static int64_t read_inner(sbp_hf *hf) {
    int64_t given = sbp_hf_size(hf, "intermediate_size", 12288), old = sbp_hf_size(hf, "block_ff_dim", given);
    int64_t multiple = sbp_hf_size(hf, "block_multiple_of", 256);
    double factor = sbp_hf_double(hf, "block_ffn_dim_multiplier", 1);
    if (!sbp_hf_bool(hf, "block_auto_adjust_ff_dim", true))
        return old;
    int64_t thirds = 2 * old / 3; /* rounded down */
    double wanted = floor(factor * (double)thirds);
    if (!(wanted >= 1 && wanted <= INT32_MAX))
        sbp_hf_fail(hf, sbp_hf_field(hf, "block_ffn_dim_multiplier"), "%g columns of the MLP", wanted);
    return hf->builder.status == SBP_OK ? sbp_round_up((int64_t)wanted, multiple) : 1;
}

/* Old names of fields say what the new ones say. */
static void check_old_names(const lfm2 *m) {
    static const char *const sizes[] = {"block_dim", "conv_dim", "conv_dim_out"};
    for (int i = 0; i < SBP_COUNT(sizes); i++)
        if (sbp_hf_size(m->hf, sizes[i], m->hidden) != m->hidden)
            sbp_hf_fail(m->hf, sbp_hf_field(m->hf, sizes[i]), "%s is %lld; it must be hidden_size, %lld",
                        sizes[i], (long long)sbp_hf_size(m->hf, sizes[i], m->hidden), (long long)m->hidden);
    if (sbp_hf_size(m->hf, "num_heads", m->heads) != m->heads)
        sbp_hf_fail(m->hf, sbp_hf_field(m->hf, "num_heads"),
                    "num_heads is %lld; it must be num_attention_heads, %lld",
                    (long long)sbp_hf_size(m->hf, "num_heads", m->heads), (long long)m->heads);
}

static lfm2 read_config(sbp_hf *hf) {
    lfm2 m = {.hf = hf, .b = &hf->builder};
    m.vocab = sbp_hf_size(hf, "vocab_size", 65536);
    m.hidden = sbp_hf_size(hf, "hidden_size", 2560);
    m.layers = sbp_hf_size(hf, "num_hidden_layers", 32);
    m.heads = sbp_hf_size(hf, "num_attention_heads", 32);
    m.kv_heads = sbp_hf_size(hf, "num_key_value_heads", 8);
    m.head_dim = sbp_hf_size(hf, "head_dim", m.hidden / m.heads > 0 ? m.hidden / m.heads : 1);
    m.inner = read_inner(hf);
    m.taps = sbp_hf_size(hf, "conv_L_cache", 3);
    m.conv_bias = sbp_hf_bool(hf, "conv_bias", false);
    m.tied = sbp_hf_bool(hf, "tie_embedding", sbp_hf_bool(hf, "tie_word_embeddings", true));
    m.norm.eps = sbp_hf_double(hf, "norm_eps", 1e-5);
    sbp_hf_check_multiple(hf, "num_attention_heads", m.heads, "num_key_value_heads", m.kv_heads);
    sbp_hf_set_facts(hf, m.vocab, m.layers, sbp_hf_size(hf, "max_position_embeddings", 128000));
    check_old_names(&m);
    m.attends = SBP_NEW_ARRAY(hf->arena, bool, hf->builder.status == SBP_OK ? m.layers : 1);
    if (hf->builder.status == SBP_OK)
        read_layers(&m);
    return m;
}

/* ---- graph ---------------------------------------------------------------------------------------- */

/* The ops that follow belong to this module of a layer; its name. */
static const char *enter(const lfm2 *m, int64_t layer, const char *module) {
    m->b->node = sbp_hf_path(m->hf, "model.layers.%lld%s%s", (long long)layer, *module ? "." : "", module);
    return m->b->node;
}

static sbp_value linear(const lfm2 *m, const char *name, sbp_value x, const char *module, const char *part,
                        int64_t out, int64_t in, bool bias) {
    return sbp_hf_linear(m->hf, name, x, sbp_hf_path(m->hf, "%s.%s", module, part), out, in, bias);
}

/* C conv(B v), with B, C, v of one projection. */
static sbp_value build_conv(const lfm2 *m, sbp_value x, const char *module) {
    int64_t n = m->hidden;
    x = linear(m, "conv_in", x, module, "in_proj", 3 * n, n, m->conv_bias);
    sbp_value before = sbp_build_slice(m->b, x, 0, n), behind = sbp_build_slice(m->b, x, n, n);
    sbp_value v = sbp_build_slice(m->b, x, 2 * n, n);
    v = sbp_build2(m->b, SBP_OP_mul, before, v);
    sbp_build_name(m->b, v, "conv_gated");
    v = sbp_hf_conv_rows(m->hf, "conv", v, sbp_hf_path(m->hf, "%s.conv", module), n, m->taps, m->conv_bias);
    v = sbp_build2(m->b, SBP_OP_mul, behind, v);
    sbp_build_name(m->b, v, "conv_out");
    return linear(m, "conv_proj", v, module, "out_proj", n, n, m->conv_bias);
}

static sbp_value build_heads(const lfm2 *m, const char *part, sbp_value x, const char *module,
                             int64_t heads) {
    x = linear(m, sbp_hf_path(m->hf, "%s_proj", part), x, module, sbp_hf_path(m->hf, "%s_proj", part),
               heads * m->head_dim, m->hidden, false);
    x = sbp_hf_split_heads(m->hf, x, heads, m->head_dim);
    if (strcmp(part, "v") == 0)
        return x;
    x = sbp_hf_normalize(m->hf, &m->norm, NULL, x, sbp_hf_path(m->hf, "%s.%s_layernorm", module, part),
                         m->head_dim);
    return sbp_hf_rotate(m->hf, part, x, m->turn);
}

static sbp_value build_attention(const lfm2 *m, sbp_value x, const char *module) {
    sbp_value q = build_heads(m, "q", x, module, m->heads);
    sbp_value k = build_heads(m, "k", x, module, m->kv_heads);
    sbp_value v = build_heads(m, "v", x, module, m->kv_heads);
    sbp_build_name(m->b, v, "v");
    sbp_value o = sbp_hf_attention(m->hf, q, k, v, pow((double)m->head_dim, -0.5), 0);
    o = sbp_hf_join_heads(m->hf, o);
    return linear(m, "attn_proj", o, module, "out_proj", m->hidden, m->heads * m->head_dim, false);
}

static sbp_value build_layer(const lfm2 *m, sbp_value x, int64_t n) {
    static const char *const matrices[] = {
        [SBP_HF_EXPERT_GATE] = "w1", [SBP_HF_EXPERT_UP] = "w3", [SBP_HF_EXPERT_DOWN] = "w2"};
    bool attends = m->attends[n];
    sbp_value y = sbp_hf_normalize(m->hf, &m->norm, attends ? "attn_norm" : "conv_norm", x,
                                   enter(m, n, "operator_norm"), m->hidden);
    const char *module = enter(m, n, attends ? "self_attn" : "conv");
    y = attends ? build_attention(m, y, module) : build_conv(m, y, module);
    (void)enter(m, n, "");
    x = sbp_hf_add(m->hf, attends ? "attn_residual" : "conv_residual", x, y);
    y = sbp_hf_normalize(m->hf, &m->norm, "mlp_norm", x, enter(m, n, "ffn_norm"), m->hidden);
    module = enter(m, n, "feed_forward");
    y = sbp_hf_mlp(m->hf, "silu", y, module, matrices, m->hidden, m->inner);
    (void)enter(m, n, "");
    return sbp_hf_add(m->hf, "mlp_residual", x, y);
}

void sbp_hf_lfm2(sbp_hf *hf) {
    lfm2 m = read_config(hf);
    sbp_hf_rope rope = sbp_hf_rope_read(hf, &(sbp_hf_rope_shape){.head_dim = m.head_dim,
                                                                 .rotary_dim = m.head_dim,
                                                                 .theta = 1e6,
                                                                 .max_positions = hf->model->max_positions});
    hf->base_prefix = "model.";
    m.b->node = "model.rotary_emb";
    if (rope.inv_freq)
        m.turn = sbp_hf_rope_tables(hf, &rope);
    m.b->node = "model.embed_tokens";
    sbp_value table = sbp_hf_table(hf, "model.embed_tokens.weight", m.vocab, m.hidden);
    sbp_value x = sbp_hf_embed(hf, "embed", table, SBP_DATA_TOK);
    for (int64_t i = 0; i < m.layers && m.b->status == SBP_OK; i++)
        x = build_layer(&m, x, i);
    m.b->node = "model.embedding_norm";
    x = sbp_hf_normalize(hf, &m.norm, "final_norm", x, m.b->node, m.hidden);
    m.b->node = "lm_head";
    sbp_value w = sbp_hf_head_matrix(hf, "lm_head.weight", table, m.tied);
    sbp_hf_finish(hf, sbp_hf_logits(hf, x, w));
    m.b->node = NULL;
}
