/* hf_gemma.c: what Gemma 3n and Gemma 4 have in common. */
#include "frontends/hf/hf_gemma.h"

#include <math.h>

#include "ir/graph/op.h"

/* ---- norms ---------------------------------------------------------------------------------------- */

sbp_value sbp_hf_gemma_norm(const sbp_hf_scope *at, const char *name, sbp_value x, const char *module,
                            int64_t n) {
    return sbp_hf_normalize(at->hf, &at->d->norm, name, x, module, n);
}

/* ---- attention ------------------------------------------------------------------------------------ */

void sbp_hf_gemma_share_keys(sbp_hf *hf, sbp_hf_gemma *m, int64_t shared) {
    bool found[SBP_HF_GEMMA_KINDS] = {false};
    for (int64_t i = 0; i < m->d.layers && hf->builder.status == SBP_OK; i++) {
        sbp_hf_gemma_layer *l = &m->layer[i];
        l->reads_shared = i >= m->d.layers - shared;
        if (l->reads_shared && !found[l->kind])
            sbp_hf_fail(
                hf, sbp_hf_field(hf, "num_kv_shared_layers"),
                "layer %lld reads keys and values of a layer of its type before the last %lld, and there is "
                "none",
                (long long)i, (long long)shared);
        found[l->kind] |= !l->reads_shared;
    }
}

/* Keys and values of a layer that has its own. */
static void build_keys(const sbp_hf_scope *at, sbp_value x, const sbp_hf_gemma_layer *l) {
    sbp_hf *hf = at->hf;
    sbp_hf_gemma *m = at->d->own;
    int64_t n = l->kv_heads * l->head_dim;
    bool bias = at->d->qkv_bias;
    sbp_value k = sbp_hf_map(at, NULL, x, "k_proj", n, at->d->hidden, bias), v = k;
    if (l->kind == SBP_HF_GEMMA_SLIDING || !m->keys_are_values)
        v = sbp_hf_map(at, NULL, x, "v_proj", n, at->d->hidden, bias);
    k = sbp_hf_split_heads(hf, k, l->kv_heads, l->head_dim);
    v = sbp_hf_split_heads(hf, v, l->kv_heads, l->head_dim);
    k = sbp_hf_gemma_norm(at, NULL, k, sbp_hf_path(hf, "%s.k_norm", at->module), l->head_dim);
    m->k[l->kind] = sbp_hf_rotate(hf, "k", k, at->turn[l->kind]);
    v = sbp_hf_rms(hf, NULL, v, at->d->norm.eps);
    m->v[l->kind] = sbp_hf_operand(hf, v);
    sbp_build_name(&hf->builder, m->v[l->kind], "v");
}

sbp_value sbp_hf_gemma_mix_attention(const sbp_hf_scope *at, sbp_value x) {
    sbp_hf *hf = at->hf;
    const sbp_hf_gemma *m = at->d->own;
    const sbp_hf_gemma_layer *l = &m->layer[at->number];
    int64_t heads = at->d->heads, n = heads * l->head_dim;
    sbp_value q = sbp_hf_map(at, NULL, x, "q_proj", n, at->d->hidden, at->d->qkv_bias);
    q = sbp_hf_split_heads(hf, q, heads, l->head_dim);
    q = sbp_hf_gemma_norm(at, NULL, q, sbp_hf_path(hf, "%s.q_norm", at->module), l->head_dim);
    q = sbp_hf_rotate(hf, "q", q, at->turn[l->kind]);
    if (!l->reads_shared)
        build_keys(at, x, l);
    sbp_value o = sbp_hf_attention(hf, q, m->k[l->kind], m->v[l->kind], 1,
                                   l->kind == SBP_HF_GEMMA_SLIDING ? m->window : 0);
    o = sbp_hf_join_heads(hf, o);
    return sbp_hf_map(at, "attn_proj", o, "o_proj", at->d->hidden, n, at->d->qkv_bias);
}

/* ---- inputs of layers ----------------------------------------------------------------------------- */

sbp_value sbp_hf_gemma_own_input(const sbp_hf_scope *at, sbp_value x) {
    sbp_hf *hf = at->hf;
    sbp_builder *b = &hf->builder;
    const sbp_hf_gemma *m = at->d->own;
    const char *module = sbp_hf_enter(at, "");
    int64_t p = m->per_layer, hidden = at->d->hidden;
    sbp_value gate = sbp_hf_linear(hf, "own_gate", x, sbp_hf_path(hf, "%s.per_layer_input_gate", module), p,
                                   hidden, false);
    gate = sbp_hf_activate(hf, at->d->activation, "own_act", gate);
    sbp_value input = sbp_build_slice(b, m->inputs, at->number * p, p);
    input = sbp_build_cast(b, input, hf->compute);
    sbp_value y = sbp_build2(b, SBP_OP_mul, sbp_build_cast(b, gate, hf->compute), input);
    y = sbp_hf_linear(hf, "own_proj", y, sbp_hf_path(hf, "%s.per_layer_projection", module), hidden, p,
                      false);
    return sbp_hf_gemma_norm(at, "own_norm", y, sbp_hf_enter(at, "post_per_layer_input_norm"), hidden);
}

sbp_value sbp_hf_gemma_rows(sbp_hf *hf, const char *name, sbp_value table, sbp_value index, int64_t width) {
    sbp_value x = sbp_build2(&hf->builder, SBP_OP_gather, table, index);
    x = sbp_build_cast(&hf->builder, x, hf->residual);
    return sbp_hf_scale(hf, name, x, sbp_round_to(hf->residual, sqrt((double)width)));
}

/* The rows of the table that tokens read. */
static sbp_value index_of_inputs(sbp_hf *hf, const sbp_hf_gemma *m) {
    if (!m->others_read_first || m->per_layer_vocab >= m->d.vocab)
        return sbp_hf_row(hf, SBP_DATA_TOK);
    const char *name = sbp_hf_path(hf, SBP_TOK_BELOW_PREFIX "%lld", (long long)m->per_layer_vocab);
    return sbp_build_row(&hf->builder, name, SBP_I32, SBP_T);
}

void sbp_hf_gemma_inputs(const sbp_hf_scope *at, sbp_value x) {
    sbp_hf *hf = at->hf;
    sbp_builder *b = &hf->builder;
    sbp_hf_gemma *m = at->d->own;
    const char *root = at->d->names.root;
    int64_t p = m->per_layer, layers = at->d->layers;
    b->node = sbp_hf_path(hf, "%s.embed_tokens_per_layer", root);
    sbp_value table =
        sbp_hf_matrix(hf, sbp_hf_path(hf, "%s.weight", b->node), m->per_layer_vocab, layers * p);
    sbp_value own = sbp_hf_gemma_rows(hf, "token_inputs", table, index_of_inputs(hf, m), p);
    b->node = sbp_hf_path(hf, "%s.per_layer_model_projection", root);
    sbp_value y = sbp_hf_linear(hf, NULL, x, b->node, layers * p, at->d->hidden, false);
    y = sbp_hf_scale(hf, "stream_inputs", y, pow((double)at->d->hidden, -0.5));
    y = sbp_hf_split_heads(hf, y, layers, p);
    b->node = sbp_hf_path(hf, "%s.per_layer_projection_norm", root);
    y = sbp_hf_gemma_norm(at, NULL, y, b->node, p);
    b->node = root;
    y = sbp_hf_add(hf, "summed_inputs", sbp_hf_join_heads(hf, y), own);
    m->inputs = sbp_hf_scale(hf, "layer_inputs", y, pow(2, -0.5));
}
