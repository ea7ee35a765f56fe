/* hf_gpt_neox.c: GPT-NeoX, Pythia: layer norms, q, k and v of each head side by side in one tensor, a part of
 * each head turned, an MLP without gate, attention and MLP side by side or one after the other. */
#include "frontends/hf/hf.h"

#include <math.h>

typedef struct neox {
    sbp_hf *hf;
    int64_t hidden, inner, heads, head_dim;
    const char *activation;
    sbp_hf_norm norm;
    bool attention_bias, parallel;
    sbp_hf_turn turn;
} neox;

static sbp_value build_attention(const neox *g, sbp_value x, const char *module) {
    sbp_hf *hf = g->hf;
    sbp_builder *b = &hf->builder;
    int64_t d = g->head_dim, hidden = g->hidden;
    sbp_value qkv = sbp_hf_linear(hf, "qkv", x, sbp_hf_path(hf, "%s.query_key_value", module), 3 * hidden,
                                  hidden, g->attention_bias);
    qkv = sbp_hf_split_heads(hf, qkv, g->heads, 3 * d); /* [T, heads, q k v] */
    sbp_value q = sbp_hf_rotate(hf, "q", sbp_build_slice(b, qkv, 0, d), g->turn);
    sbp_value k = sbp_hf_rotate(hf, "k", sbp_build_slice(b, qkv, d, d), g->turn);
    sbp_value v = sbp_build_slice(b, qkv, 2 * d, d);
    sbp_build_name(b, v, "v");
    sbp_value o = sbp_hf_attention(hf, q, k, v, pow((double)d, -0.5), 0);
    return sbp_hf_linear(hf, "attn_proj", sbp_hf_join_heads(hf, o), sbp_hf_path(hf, "%s.dense", module),
                         hidden, hidden, g->attention_bias);
}

static sbp_value build_mlp(const neox *g, sbp_value x, const char *module) {
    sbp_hf *hf = g->hf;
    sbp_value y =
        sbp_hf_linear(hf, "up", x, sbp_hf_path(hf, "%s.dense_h_to_4h", module), g->inner, g->hidden, true);
    y = sbp_hf_activate(hf, g->activation, "act", y);
    return sbp_hf_linear(hf, "mlp_proj", y, sbp_hf_path(hf, "%s.dense_4h_to_h", module), g->hidden, g->inner,
                         true);
}

static sbp_value build_layer(const neox *g, sbp_value x, int64_t number) {
    sbp_hf *hf = g->hf;
    const char *layer = sbp_hf_path(hf, "gpt_neox.layers.%lld", (long long)number);
    hf->builder.node = sbp_hf_path(hf, "%s.attention", layer);
    sbp_value y = sbp_hf_normalize(hf, &g->norm, "attn_norm", x, sbp_hf_path(hf, "%s.input_layernorm", layer),
                                   g->hidden);
    y = build_attention(g, y, hf->builder.node);
    if (!g->parallel)
        x = sbp_hf_add(hf, "attn_residual", x, y);
    hf->builder.node = sbp_hf_path(hf, "%s.mlp", layer);
    sbp_value z = sbp_hf_normalize(hf, &g->norm, "mlp_norm", x,
                                   sbp_hf_path(hf, "%s.post_attention_layernorm", layer), g->hidden);
    z = build_mlp(g, z, hf->builder.node);
    if (g->parallel)
        z = sbp_build2(&hf->builder, SBP_OP_add, z, y); /* transformers adds the branches first */
    return sbp_hf_add(hf, "mlp_residual", z, x);
}

static neox read_neox(sbp_hf *hf) {
    neox g = {.hf = hf,
              .hidden = sbp_hf_size(hf, "hidden_size", SBP_HF_REQUIRED),
              .inner = sbp_hf_size(hf, "intermediate_size", SBP_HF_REQUIRED),
              .heads = sbp_hf_size(hf, "num_attention_heads", SBP_HF_REQUIRED),
              .activation = sbp_hf_string(hf, "hidden_act", "gelu"),
              .norm = {SBP_HF_LAYER_NORM, sbp_hf_double(hf, "layer_norm_eps", 1e-5)},
              .attention_bias = sbp_hf_bool(hf, "attention_bias", true),
              .parallel = sbp_hf_bool(hf, "use_parallel_residual", true)};
    if (g.hidden % g.heads != 0)
        sbp_hf_fail(hf, sbp_hf_field(hf, "hidden_size"), "%lld is not a multiple of num_attention_heads %lld",
                    (long long)g.hidden, (long long)g.heads);
    g.head_dim = g.hidden / g.heads;
    return g;
}

void sbp_hf_gpt_neox(sbp_hf *hf) {
    sbp_builder *b = &hf->builder;
    neox g = read_neox(hf);
    int64_t vocab = sbp_hf_size(hf, "vocab_size", SBP_HF_REQUIRED),
            layers = sbp_hf_size(hf, "num_hidden_layers", SBP_HF_REQUIRED),
            positions = sbp_hf_size(hf, "max_position_embeddings", 2048);
    bool tied = sbp_hf_bool(hf, "tie_word_embeddings", false);
    hf->base_prefix = "gpt_neox.";
    hf->model->vocab_size = vocab;
    hf->model->max_positions = positions;
    sbp_hf_rope rope = sbp_hf_rope_read(
        hf, &(sbp_hf_rope_shape){.head_dim = g.head_dim,
                                 .rotary_dim = sbp_hf_rotary_dim(hf, g.head_dim, "rotary_pct", 0.25),
                                 .theta = 1e4,
                                 .theta_key = "rotary_emb_base",
                                 .max_positions = positions});
    g.turn = sbp_hf_rope_tables(hf, &rope);
    b->node = "gpt_neox.embed_in";
    sbp_value table = sbp_hf_table(hf, "gpt_neox.embed_in.weight", vocab, g.hidden);
    sbp_value x = sbp_hf_embed(hf, "embed", table, SBP_DATA_TOK);
    for (int64_t i = 0; i < layers && b->status == SBP_OK; i++)
        x = build_layer(&g, x, i);
    b->node = "lm_head";
    x = sbp_hf_normalize(hf, &g.norm, "final_norm", x, "gpt_neox.final_layer_norm", g.hidden);
    sbp_value head = sbp_hf_head_matrix(hf, "embed_out.weight", table, tied); /* what files call it */
    sbp_hf_alias(hf, head, "lm_head.weight");
    sbp_hf_finish(hf, sbp_hf_logits(hf, x, head));
}
