/* hf_granitemoehybrid.c: Granite 4: most layers mix rows by Mamba-2, some by attention, which knows no
 * positions; an MLP that all rows share, and experts beside it in some models; numbers on embedding, scores,
 * branches and logits. Formulas and names: transformers, modeling_granitemoehybrid.py; fields and their
 * defaults: configuration_granitemoehybrid.py. */
#include <math.h>
#include <string.h>

#include "frontends/hf/hf.h"

enum { MAX_LAYERS = 1000 };

typedef struct granite {
    sbp_hf *hf;
    sbp_builder *b;
    int64_t vocab, hidden, shared, layers, heads, kv_heads, head_dim;
    const char *activation;
    bool bias, tied, turns; /* turns: queries and keys are rotated */
    bool *attends;          /* per layer; the others have a state */
    double embed_scale, score_scale, branch_scale, logits_divisor;
    sbp_hf_experts experts;
    sbp_hf_mamba mamba;
    sbp_hf_norm norm;
    sbp_hf_turn turn;
} granite;

/* ---- configuration -------------------------------------------------------------------------------- */

/* layer_types, or layers_block_type; without them no layer attends. */
static void read_layers(granite *m) {
    sbp_hf *hf = m->hf;
    const sbp_json *types = sbp_hf_field(hf, "layer_types"), *old = sbp_hf_field(hf, "layers_block_type");
    types = types ? types : old;
    if (types && (types->kind != SBP_JSON_ARRAY || types->count != m->layers))
        sbp_hf_fail(hf, types, "expected an array of %lld layer types (num_hidden_layers)",
                    (long long)m->layers);
    for (int64_t i = 0; types && i < m->layers && hf->builder.status == SBP_OK; i++) {
        const sbp_json *type = &types->items[i];
        const char *text = type->kind == SBP_JSON_STRING ? type->string : sbp_json_kind_name(type->kind);
        m->attends[i] = strcmp(text, "attention") == 0 || strcmp(text, "full_attention") == 0;
        if (!m->attends[i] && strcmp(text, "mamba") != 0 && strcmp(text, "linear_attention") != 0)
            sbp_hf_fail(hf, type, "layer type %s is not supported; attention or mamba expected", text);
    }
}

/* mamba_d_head: a number, or "auto". */
static int64_t read_head_size(sbp_hf *hf, int64_t inner, int64_t heads) {
    const sbp_json *field = sbp_hf_field(hf, "mamba_d_head");
    int64_t fallback = inner / heads > 0 ? inner / heads : 1;
    if (field && field->kind == SBP_JSON_STRING && strcmp(field->string, "auto") == 0)
        return fallback;
    return sbp_hf_size(hf, "mamba_d_head", fallback);
}

static void read_mamba(granite *m) {
    sbp_hf *hf = m->hf;
    int64_t inner = sbp_hf_size(hf, "mamba_expand", 2) * m->hidden,
            heads = sbp_hf_size(hf, "mamba_n_heads", 128);
    m->mamba = (sbp_hf_mamba){.heads = heads,
                              .head_dim = read_head_size(hf, inner, heads),
                              .groups = sbp_hf_size(hf, "mamba_n_groups", 1),
                              .state = sbp_hf_size(hf, "mamba_d_state", 256),
                              .taps = sbp_hf_size(hf, "mamba_d_conv", 4),
                              .activation = m->activation,
                              .conv_bias = sbp_hf_bool(hf, "mamba_conv_bias", true),
                              .bias = sbp_hf_bool(hf, "mamba_proj_bias", false),
                              .eps = m->norm.eps};
    (void)sbp_hf_field(hf, "mamba_chunk_size"); /* how many rows a program takes at a time */
    sbp_hf_mamba_limits(hf, &m->mamba, "time_step_limit");
    sbp_hf_mamba_check(hf, &m->mamba, "mamba_n_heads", "mamba_n_groups");
    if (hf->builder.status == SBP_OK && m->mamba.heads * m->mamba.head_dim != inner)
        sbp_hf_fail(hf, sbp_hf_field(hf, "mamba_d_head"),
                    "%lld heads of %lld are not mamba_expand * hidden_size, %lld", (long long)heads,
                    (long long)m->mamba.head_dim, (long long)inner);
}

static void read_experts(granite *m) {
    static const sbp_hf_expert_names names = {.module = "block_sparse_moe",
                                              .router = "router.layer",
                                              .experts = {[SBP_HF_EXPERT_GATE] = "gate",
                                                          [SBP_HF_EXPERT_UP] = "up",
                                                          [SBP_HF_EXPERT_DOWN] = "output_linear.weight"},
                                              .fused = "input_linear.weight",
                                              .always_fused = true};
    sbp_hf *hf = m->hf;
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
    if (count > 0) {
        m->experts = sbp_hf_experts_read(hf, m->layers, &defaults);
        m->experts.softmax_of_chosen = true;
        return;
    }
    (void)sbp_hf_field(hf, "num_experts_per_tok");
    (void)sbp_hf_field(hf, "output_router_logits");
    (void)sbp_hf_field(hf, "router_aux_loss_coef");
}

static granite read_config(sbp_hf *hf) {
    granite m = {.hf = hf, .b = &hf->builder};
    m.vocab = sbp_hf_size(hf, "vocab_size", 32000);
    m.hidden = sbp_hf_size(hf, "hidden_size", 4096);
    m.shared = sbp_hf_size(hf, "shared_intermediate_size", 1024);
    m.layers = sbp_hf_size(hf, "num_hidden_layers", 32);
    m.heads = sbp_hf_size(hf, "num_attention_heads", 32);
    m.kv_heads = sbp_hf_size(hf, "num_key_value_heads", m.heads);
    m.head_dim = m.hidden / m.heads > 0 ? m.hidden / m.heads : 1;
    m.activation = sbp_hf_string(hf, "hidden_act", "silu");
    m.bias = sbp_hf_bool(hf, "attention_bias", false);
    m.tied = sbp_hf_bool(hf, "tie_word_embeddings", false);
    m.turns = strcmp(sbp_hf_string(hf, "position_embedding_type", "nope"), "rope") == 0;
    m.norm = (sbp_hf_norm){SBP_HF_RMS_NORM, sbp_hf_double(hf, "rms_norm_eps", 1e-6)};
    m.embed_scale = sbp_hf_double(hf, "embedding_multiplier", 1);
    m.score_scale = sbp_hf_double(hf, "attention_multiplier", 1);
    m.branch_scale = sbp_hf_double(hf, "residual_multiplier", 1);
    m.logits_divisor = sbp_hf_double(hf, "logits_scaling", 1);
    if (hf->builder.status == SBP_OK && m.heads % m.kv_heads != 0)
        sbp_hf_fail(hf, sbp_hf_field(hf, "num_key_value_heads"),
                    "num_attention_heads %lld is not a multiple of num_key_value_heads %lld",
                    (long long)m.heads, (long long)m.kv_heads);
    if (m.layers > MAX_LAYERS)
        sbp_hf_fail(hf, sbp_hf_field(hf, "num_hidden_layers"), "%lld layers; at most %d are expected",
                    (long long)m.layers, MAX_LAYERS);
    m.attends = SBP_NEW_ARRAY(hf->arena, bool, hf->builder.status == SBP_OK ? m.layers : 1);
    if (hf->builder.status == SBP_OK)
        read_layers(&m);
    read_mamba(&m);
    read_experts(&m);
    hf->model->vocab_size = m.vocab;
    hf->model->max_positions = sbp_hf_size(hf, "max_position_embeddings", 2048);
    if (hf->model->pad_id >= 0 && hf->model->pad_id < m.vocab)
        hf->pad_row = hf->model->pad_id;
    return m;
}

/* ---- graph ---------------------------------------------------------------------------------------- */

/* The ops that follow belong to this module of a layer; its name. */
static const char *enter(const granite *m, int64_t layer, const char *module) {
    m->b->node = sbp_hf_path(m->hf, "model.layers.%lld%s%s", (long long)layer, *module ? "." : "", module);
    return m->b->node;
}

static sbp_value linear(const granite *m, const char *name, sbp_value x, const char *module, const char *part,
                        int64_t out, int64_t in, bool bias) {
    return sbp_hf_linear(m->hf, name, x, sbp_hf_path(m->hf, "%s.%s", module, part), out, in, bias);
}

static sbp_value build_heads(const granite *m, const char *part, sbp_value x, const char *module,
                             int64_t heads) {
    x = linear(m, NULL, x, module, sbp_hf_path(m->hf, "%s_proj", part), heads * m->head_dim, m->hidden,
               m->bias);
    x = sbp_hf_split_heads(m->hf, x, heads, m->head_dim);
    if (m->turns && strcmp(part, "v") != 0)
        return sbp_hf_rotate(m->hf, part, x, m->turn);
    sbp_build_name(m->b, x, part);
    return x;
}

static sbp_value build_attention(const granite *m, sbp_value x, const char *module) {
    sbp_value q = build_heads(m, "q", x, module, m->heads);
    sbp_value k = build_heads(m, "k", x, module, m->kv_heads);
    sbp_value v = build_heads(m, "v", x, module, m->kv_heads);
    sbp_value o = sbp_hf_join_heads(m->hf, sbp_hf_attention(m->hf, q, k, v, m->score_scale, 0));
    return linear(m, "attn_proj", o, module, "o_proj", m->hidden, m->heads * m->head_dim, m->bias);
}

/* Gate and up are the halves of what one matrix gives. */
static sbp_value build_shared(const granite *m, sbp_value x, const char *module) {
    x = linear(m, "gate_up", x, module, "input_linear", 2 * m->shared, m->hidden, false);
    sbp_value gate = sbp_build_slice(m->b, x, 0, m->shared),
              up = sbp_build_slice(m->b, x, m->shared, m->shared);
    x = sbp_hf_gate(m->hf, m->activation, "act", gate, up);
    return linear(m, "shared_proj", x, module, "output_linear", m->hidden, m->shared, false);
}

static sbp_value add_branch(const granite *m, const char *name, sbp_value x, sbp_value y, int64_t layer) {
    (void)enter(m, layer, "");
    y = sbp_hf_scale(m->hf, "scaled_branch", y, m->branch_scale);
    return sbp_hf_add(m->hf, name, x, y);
}

static sbp_value build_layer(const granite *m, sbp_value x, int64_t n) {
    sbp_hf *hf = m->hf;
    bool attends = m->attends[n];
    sbp_value y = sbp_hf_normalize(hf, &m->norm, attends ? "attn_norm" : "ssd_norm", x,
                                   enter(m, n, "input_layernorm"), m->hidden);
    const char *module = enter(m, n, attends ? "self_attn" : "mamba");
    y = attends ? build_attention(m, y, module) : sbp_hf_mamba_build(hf, &m->mamba, y, module, m->hidden);
    x = add_branch(m, attends ? "attn_residual" : "ssd_residual", x, y, n);
    y = sbp_hf_normalize(hf, &m->norm, "mlp_norm", x, enter(m, n, "post_attention_layernorm"), m->hidden);
    sbp_value shared = build_shared(m, y, enter(m, n, "shared_mlp"));
    if (m->experts.sparse) {
        y = sbp_hf_experts_build(hf, &m->experts, m->activation, "mlp_proj", y,
                                 enter(m, n, "block_sparse_moe"), m->hidden);
        shared = sbp_build2(m->b, SBP_OP_add, y, shared);
    }
    return add_branch(m, "mlp_residual", x, shared, n);
}

/* Without positions these fields say nothing. */
static void read_turn(granite *m) {
    static const char *const fields[] = {"rope_parameters", "rope_scaling", "rope_theta"};
    if (!m->turns) {
        for (int i = 0; i < SBP_COUNT(fields); i++)
            (void)sbp_hf_field(m->hf, fields[i]);
        return;
    }
    m->b->node = "model.rotary_emb";
    sbp_hf_rope rope =
        sbp_hf_rope_read(m->hf, &(sbp_hf_rope_shape){.head_dim = m->head_dim,
                                                     .rotary_dim = m->head_dim,
                                                     .theta = 1e4,
                                                     .max_positions = m->hf->model->max_positions});
    if (rope.inv_freq)
        m->turn = sbp_hf_rope_tables(m->hf, &rope);
}

void sbp_hf_granitemoehybrid(sbp_hf *hf) {
    granite m = read_config(hf);
    hf->base_prefix = "model.";
    read_turn(&m);
    m.b->node = "model.embed_tokens";
    sbp_value table = sbp_hf_table(hf, "model.embed_tokens.weight", m.vocab, m.hidden);
    sbp_value x = sbp_hf_embed(hf, "embed", table, SBP_DATA_TOK);
    x = sbp_hf_scale(hf, "scaled_embed", x, m.embed_scale);
    for (int64_t i = 0; i < m.layers && m.b->status == SBP_OK; i++)
        x = build_layer(&m, x, i);
    m.b->node = "model.norm";
    x = sbp_hf_normalize(hf, &m.norm, "final_norm", x, m.b->node, m.hidden);
    m.b->node = "lm_head";
    sbp_value w = sbp_hf_head_matrix(hf, "lm_head.weight", table, m.tied);
    sbp_value logits = sbp_hf_logits(hf, x, w);
    if (m.logits_divisor != 1 && m.b->status == SBP_OK) {
        sbp_dtype wide = sbp_build_type(m.b, logits)->dtype;
        logits = sbp_build2(m.b, SBP_OP_div, logits, sbp_build_const(m.b, wide, m.logits_divisor));
        sbp_build_name(m.b, logits, "scaled_logits");
    }
    sbp_hf_finish(hf, logits);
    m.b->node = NULL;
}
