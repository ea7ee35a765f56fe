/* hf_qwen3_5.c: Qwen3.5 (3.6) and Qwen3-Next: most layers mix rows by the gated delta rule, every fourth by
 * attention whose output is gated; the larger ones have experts, one of which all rows share. Formulas and
 * names: transformers, modeling_qwen3_5.py, modeling_qwen3_5_moe.py and modeling_qwen3_next.py; fields and
 * their defaults: configuration_*.py beside them. */
#include <math.h>

#include "frontends/hf/hf.h"
#include "ir/graph/op.h"

/* What a family has otherwise, and what counts where config.json says nothing. */
typedef struct traits {
    int64_t vocab, hidden, inner, layers, heads, kv_heads, max_positions;
    bool grouped; /* in_proj_qkvz and in_proj_ba, with the rows of a key head together */
    const sbp_hf_experts_defaults *experts; /* NULL: no layer has any */
} traits;

typedef struct qwen {
    sbp_hf *hf;
    sbp_builder *b;
    const char *root; /* of names: "model", in a multimodal model "model.language_model" */
    int64_t vocab, hidden, inner, layers, heads, kv_heads, head_dim;
    int64_t key_heads, value_heads, dk, dv, taps; /* of the delta rule and the convolution before it */
    const char *activation;
    bool grouped, bias, tied;
    bool *attends; /* per layer; the others have the delta rule */
    sbp_hf_experts experts;
    sbp_hf_norm norm;
    sbp_hf_turn turn;
} qwen;

/* ---- configuration -------------------------------------------------------------------------------- */

/* layer_types, or every full_attention_interval-th layer attends. */
static void read_layers(qwen *m) {
    int64_t interval = sbp_hf_size(m->hf, "full_attention_interval", 4);
    if (!sbp_hf_layer_words(m->hf, "layer_types", m->layers, "linear_attention", "full_attention",
                            m->attends))
        for (int64_t i = 0; i < m->layers; i++)
            m->attends[i] = (i + 1) % interval == 0;
}

static qwen read_config(sbp_hf *hf, const char *root, const traits *t) {
    qwen m = {.hf = hf, .b = &hf->builder, .root = root, .grouped = t->grouped};
    m.vocab = sbp_hf_size(hf, "vocab_size", t->vocab);
    m.hidden = sbp_hf_size(hf, "hidden_size", t->hidden);
    m.inner = sbp_hf_size(hf, "intermediate_size", t->inner);
    m.layers = sbp_hf_size(hf, "num_hidden_layers", t->layers);
    m.heads = sbp_hf_size(hf, "num_attention_heads", t->heads);
    m.kv_heads = sbp_hf_size(hf, "num_key_value_heads", t->kv_heads);
    m.head_dim = sbp_hf_size(hf, "head_dim", 256);
    m.key_heads = sbp_hf_size(hf, "linear_num_key_heads", 16);
    m.value_heads = sbp_hf_size(hf, "linear_num_value_heads", 32);
    m.dk = sbp_hf_size(hf, "linear_key_head_dim", 128);
    m.dv = sbp_hf_size(hf, "linear_value_head_dim", 128);
    m.taps = sbp_hf_size(hf, "linear_conv_kernel_dim", 4);
    m.activation = sbp_hf_string(hf, "hidden_act", "silu");
    m.bias = sbp_hf_bool(hf, "attention_bias", false);
    m.norm = (sbp_hf_norm){SBP_HF_RMS_NORM_PLUS_ONE, sbp_hf_double(hf, "rms_norm_eps", 1e-6)};
    sbp_hf_check_multiple(hf, "num_attention_heads", m.heads, "num_key_value_heads", m.kv_heads);
    sbp_hf_check_multiple(hf, "linear_num_value_heads", m.value_heads, "linear_num_key_heads", m.key_heads);
    if (!sbp_hf_bool(hf, "attn_output_gate", true))
        sbp_hf_fail(hf, sbp_hf_field(hf, "attn_output_gate"), "attention without a gate is not supported");
    sbp_hf_set_facts(hf, m.vocab, m.layers, sbp_hf_size(hf, "max_position_embeddings", t->max_positions));
    m.attends = SBP_NEW_ARRAY(hf->arena, bool, hf->builder.status == SBP_OK ? m.layers : 1);
    if (hf->builder.status == SBP_OK)
        read_layers(&m);
    if (t->experts)
        m.experts = sbp_hf_experts_read(hf, m.layers, t->experts);
    return m;
}

/* ---- graph ---------------------------------------------------------------------------------------- */

/* The ops that follow belong to this module of a layer; its name. */
static const char *enter(const qwen *m, int64_t layer, const char *module) {
    m->b->node =
        sbp_hf_path(m->hf, "%s.layers.%lld%s%s", m->root, (long long)layer, *module ? "." : "", module);
    return m->b->node;
}

static sbp_value linear(const qwen *m, const char *name, sbp_value x, const char *module, const char *part,
                        int64_t out, int64_t in, bool bias) {
    return sbp_hf_linear(m->hf, name, x, sbp_hf_path(m->hf, "%s.%s", module, part), out, in, bias);
}

/* What the projections of a layer with the delta rule give: rows of the convolution, q | k | v with the heads
 * of each together, and a z per column of v, a b and an a per value head. */
typedef struct projected {
    sbp_value qkv, z, b, a;
} projected;

/* From tensors where the rows of each key head stand together: its q, k, v and z, and its b and a. */
static projected project_grouped(const qwen *m, sbp_value x, const char *module) {
    sbp_hf *hf = m->hf;
    int64_t each = m->value_heads / m->key_heads, values = each * m->dv,
            all = m->key_heads * 2 * (m->dk + values);
    const char *big = sbp_hf_path(hf, "%s.in_proj_qkvz", module),
               *small = sbp_hf_path(hf, "%s.in_proj_ba", module);
    static const char *const names[] = {"q", "k", "v", "z", "b", "a"};
    sbp_value part[6];
    for (int32_t i = 0, at = 0; i < 4; i++) {
        int64_t length = i < 2 ? m->dk : values;
        part[i] = sbp_hf_linear_heads(hf, NULL, x, big, names[i], all, m->hidden, m->key_heads, at, length);
        at += (int32_t)length;
    }
    for (int32_t i = 4; i < 6; i++)
        part[i] = sbp_hf_linear_heads(hf, NULL, x, small, names[i], 2 * m->value_heads, m->hidden,
                                      m->key_heads, (i - 4) * each, each);
    projected p = {.z = part[3], .b = part[4], .a = part[5]};
    p.qkv = sbp_build2(m->b, SBP_OP_concat, part[0], part[1]);
    p.qkv = sbp_build2(m->b, SBP_OP_concat, p.qkv, part[2]);
    sbp_build_name(m->b, p.qkv, "delta_in");
    sbp_build_name(m->b, p.z, "delta_z");
    return p;
}

static projected project(const qwen *m, sbp_value x, const char *module) {
    projected p;
    if (m->grouped)
        return project_grouped(m, x, module);
    int64_t keys = m->key_heads * m->dk, values = m->value_heads * m->dv;
    p.qkv = linear(m, "delta_in", x, module, "in_proj_qkv", 2 * keys + values, m->hidden, false);
    p.z = linear(m, "delta_z", x, module, "in_proj_z", values, m->hidden, false);
    p.b = linear(m, "delta_b", x, module, "in_proj_b", m->value_heads, m->hidden, false);
    p.a = linear(m, "delta_a", x, module, "in_proj_a", m->value_heads, m->hidden, false);
    return p;
}

/* Columns from `start` on as heads of length 1, times `scale`; an operand of the delta rule. */
static sbp_value build_unit_heads(const qwen *m, const char *name, sbp_value x, int64_t start, double scale) {
    sbp_builder *b = m->b;
    sbp_dtype wide = sbp_rule_wide(m->hf->compute);
    x = sbp_build_slice(b, x, start, m->key_heads * m->dk);
    x = sbp_build_cast(b, sbp_hf_split_heads(m->hf, x, m->key_heads, m->dk), wide);
    sbp_value square = sbp_build2(b, SBP_OP_mul, x, x);
    sbp_value sum = sbp_build1(b, SBP_OP_row_sum, square);
    sum = sbp_build2(b, SBP_OP_add, sum, sbp_build_const(b, wide, sbp_round_to(wide, 1e-6)));
    sbp_value inverse = sbp_build1(b, SBP_OP_rsqrt, sum);
    x = sbp_build2(b, SBP_OP_mul, x, inverse);
    if (scale != 1)
        x = sbp_build2(b, SBP_OP_mul, x, sbp_build_const(b, wide, sbp_round_to(wide, scale)));
    x = sbp_hf_operand(m->hf, x);
    sbp_build_name(b, x, name);
    return x;
}

/* -exp(A_log) softplus(a + dt_bias), with softplus(x) = -log_sigmoid(-x) */
static sbp_value build_decay(const qwen *m, sbp_value a, const char *module) {
    sbp_builder *b = m->b;
    sbp_dtype wide = sbp_rule_wide(m->hf->compute);
    sbp_value log =
        sbp_hf_row_vector(m->hf, sbp_hf_path(m->hf, "%s.A_log", module), SBP_INIT_NORMAL, m->value_heads);
    sbp_value bias =
        sbp_hf_row_vector(m->hf, sbp_hf_path(m->hf, "%s.dt_bias", module), SBP_INIT_ONES, m->value_heads);
    a = sbp_build_cast(b, a, wide);
    a = sbp_build2(b, SBP_OP_add, a, sbp_build_cast(b, bias, wide));
    a = sbp_build1(b, SBP_OP_log_sigmoid, sbp_build1(b, SBP_OP_neg, a));
    log = sbp_build1(b, SBP_OP_exp, sbp_build_cast(b, log, wide));
    a = sbp_build2(b, SBP_OP_mul, log, a);
    sbp_build_name(b, a, "decay");
    return a;
}

static sbp_value build_delta_rule(const qwen *m, projected p, const char *module) {
    sbp_hf *hf = m->hf;
    sbp_builder *b = m->b;
    int64_t keys = m->key_heads * m->dk, values = m->value_heads * m->dv;
    sbp_value x = sbp_hf_conv_rows(hf, "conv", p.qkv, sbp_hf_path(hf, "%s.conv1d", module), 2 * keys + values,
                                   m->taps, false);
    x = sbp_hf_activate(hf, m->activation, "conv_act", x);
    sbp_value q = build_unit_heads(m, "delta_q", x, 0, pow((double)m->dk, -0.5));
    sbp_value k = build_unit_heads(m, "delta_k", x, keys, 1);
    sbp_value v = sbp_hf_split_heads(hf, sbp_build_slice(b, x, 2 * keys, values), m->value_heads, m->dv);
    v = sbp_hf_operand(hf, v);
    sbp_build_name(b, v, "delta_v");
    sbp_value decay = build_decay(m, p.a, module);
    sbp_value beta = sbp_build_cast(b, sbp_build1(b, SBP_OP_sigmoid, p.b), sbp_rule_wide(m->hf->compute));
    sbp_build_name(b, beta, "beta");
    sbp_value first = sbp_hf_row(hf, SBP_DATA_FIRST);
    return sbp_build(b, SBP_OP_delta_rule, "delta_out", (sbp_value[]){q, k, v, decay, beta, first}, 6, NULL,
                     0, NULL);
}

/* Each head's norm, with a plain weight that all share, times silu(z) in the wide type. */
static sbp_value build_delta(const qwen *m, sbp_value x, const char *module) {
    sbp_hf *hf = m->hf;
    sbp_builder *b = m->b;
    projected p = project(m, x, module);
    sbp_value y = build_delta_rule(m, p, module);
    y = sbp_hf_normalize(hf, &(sbp_hf_norm){SBP_HF_RMS_NORM, m->norm.eps}, "delta_norm", y,
                         sbp_hf_path(hf, "%s.norm", module), m->dv);
    y = sbp_build_cast(b, sbp_hf_join_heads(hf, y), sbp_rule_wide(m->hf->compute));
    y = sbp_hf_gate(hf, "silu", NULL, sbp_build_cast(b, p.z, sbp_rule_wide(m->hf->compute)), y);
    y = sbp_hf_operand(hf, y);
    sbp_build_name(b, y, "delta_gated");
    return linear(m, "delta_proj", y, module, "out_proj", m->hidden, m->value_heads * m->dv, false);
}

static sbp_value build_heads(const qwen *m, const char *part, sbp_value x, const char *module) {
    x = sbp_hf_normalize(m->hf, &m->norm, NULL, x, sbp_hf_path(m->hf, "%s.%s_norm", module, part),
                         m->head_dim);
    return sbp_hf_rotate(m->hf, part, x, m->turn);
}

/* q_proj gives each head its query, then its gate. */
static sbp_value build_attention(const qwen *m, sbp_value x, const char *module) {
    sbp_hf *hf = m->hf;
    sbp_builder *b = m->b;
    int64_t d = m->head_dim, n = m->heads * d, kv = m->kv_heads * d;
    sbp_value q = linear(m, "q_proj", x, module, "q_proj", 2 * n, m->hidden, m->bias);
    q = sbp_hf_split_heads(hf, q, m->heads, 2 * d);
    sbp_value gate = sbp_hf_join_heads(hf, sbp_build_slice(b, q, d, d));
    q = build_heads(m, "q", sbp_build_slice(b, q, 0, d), module);
    sbp_value k = linear(m, "k_proj", x, module, "k_proj", kv, m->hidden, m->bias);
    k = build_heads(m, "k", sbp_hf_split_heads(hf, k, m->kv_heads, d), module);
    sbp_value v = linear(m, "v_proj", x, module, "v_proj", kv, m->hidden, m->bias);
    v = sbp_hf_split_heads(hf, v, m->kv_heads, d);
    sbp_build_name(b, v, "v");
    sbp_value o = sbp_hf_join_heads(hf, sbp_hf_attention(hf, q, k, v, pow((double)d, -0.5), 0));
    gate = sbp_build1(b, SBP_OP_sigmoid, gate);
    o = sbp_build2(b, SBP_OP_mul, o, gate);
    sbp_build_name(b, o, "attn_gated");
    return linear(m, "attn_proj", o, module, "o_proj", m->hidden, n, m->bias);
}

static sbp_value build_mlp(const qwen *m, sbp_value x, const char *module, bool sparse) {
    if (sparse)
        return sbp_hf_experts_build(m->hf, &m->experts, m->activation, "mlp_proj", x, module, m->hidden);
    return sbp_hf_mlp(m->hf, m->activation, x, module, sbp_hf_projections.experts, m->hidden, m->inner);
}

static sbp_value build_layer(const qwen *m, sbp_value x, int64_t n) {
    bool attends = m->attends[n];
    sbp_value y = sbp_hf_normalize(m->hf, &m->norm, attends ? "attn_norm" : "delta_in_norm", x,
                                   enter(m, n, "input_layernorm"), m->hidden);
    const char *module = enter(m, n, attends ? "self_attn" : "linear_attn");
    y = attends ? build_attention(m, y, module) : build_delta(m, y, module);
    (void)enter(m, n, "");
    x = sbp_hf_add(m->hf, attends ? "attn_residual" : "delta_residual", x, y);
    y = sbp_hf_normalize(m->hf, &m->norm, "mlp_norm", x, enter(m, n, "post_attention_layernorm"), m->hidden);
    y = build_mlp(m, y, enter(m, n, "mlp"), m->experts.sparse && m->experts.sparse[n]);
    (void)enter(m, n, "");
    return sbp_hf_add(m->hf, "mlp_residual", x, y);
}

static void build(sbp_hf *hf, const char *root, const traits *t) {
    qwen m = read_config(hf, root, t);
    int64_t turning = sbp_hf_rotary_dim(hf, m.head_dim, "partial_rotary_factor", 0.25);
    sbp_hf_rope rope = sbp_hf_rope_read(hf, &(sbp_hf_rope_shape){.head_dim = m.head_dim,
                                                                 .rotary_dim = turning,
                                                                 .theta = 1e4,
                                                                 .max_positions = hf->model->max_positions,
                                                                 .three_axes = !m.grouped});
    m.tied = sbp_hf_tied(hf, false);
    hf->base_prefix = "model.";
    m.b->node = sbp_hf_path(hf, "%s.rotary_emb", root);
    if (rope.inv_freq)
        m.turn = sbp_hf_rope_tables(hf, &rope);
    m.b->node = sbp_hf_path(hf, "%s.embed_tokens", root);
    sbp_value table = sbp_hf_table(hf, sbp_hf_path(hf, "%s.weight", m.b->node), m.vocab, m.hidden);
    sbp_value x = sbp_hf_embed(hf, "embed", table, SBP_DATA_TOK);
    for (int64_t i = 0; i < m.layers && m.b->status == SBP_OK; i++)
        x = build_layer(&m, x, i);
    m.b->node = sbp_hf_path(hf, "%s.norm", root);
    x = sbp_hf_normalize(hf, &m.norm, "final_norm", x, m.b->node, m.hidden);
    m.b->node = "lm_head";
    sbp_value w = sbp_hf_head_matrix(hf, "lm_head.weight", table, m.tied);
    sbp_hf_finish(hf, sbp_hf_logits(hf, x, w));
    m.b->node = NULL;
}

void sbp_hf_qwen3_5(sbp_hf *hf) {
    static const traits t = {.vocab = 248320,
                             .hidden = 4096,
                             .inner = 12288,
                             .layers = 32,
                             .heads = 16,
                             .kv_heads = 4,
                             .max_positions = 32768};
    (void)sbp_hf_field(hf, "mlp_only_layers"); /* none has experts */
    hf->within_multimodal = !hf->wrapper;      /* files that this text_config may stand beside */
    build(hf, hf->wrapper ? "model.language_model" : "model", &t);
}

void sbp_hf_qwen3_5_moe(sbp_hf *hf) {
    const sbp_hf_experts_defaults experts = {.count_key = "num_experts",
                                             .count = 256,
                                             .chosen = 8,
                                             .inner_key = "moe_intermediate_size",
                                             .inner = 512,
                                             .shared_key = "shared_expert_intermediate_size",
                                             .shared = 512,
                                             .always_normalized = true,
                                             .fused = hf->wrapper != NULL,
                                             .balance = 0.001,
                                             .names = &sbp_hf_projections};
    const traits t = {.vocab = 248320,
                      .hidden = 2048,
                      .inner = 1, /* no layer has an MLP */
                      .layers = 40,
                      .heads = 16,
                      .kv_heads = 2,
                      .max_positions = 32768,
                      .experts = &experts};
    (void)sbp_hf_field(hf, "mlp_only_layers");
    hf->within_multimodal = !hf->wrapper;
    build(hf, hf->wrapper ? "model.language_model" : "model", &t);
}

void sbp_hf_qwen3_next(sbp_hf *hf) {
    static const sbp_hf_experts_defaults experts = {.count_key = "num_experts",
                                                    .count = 512,
                                                    .chosen = 10,
                                                    .inner_key = "moe_intermediate_size",
                                                    .inner = 512,
                                                    .shared_key = "shared_expert_intermediate_size",
                                                    .shared = 512,
                                                    .normalized = true,
                                                    .stepped = true,
                                                    .balance = 0.001,
                                                    .names = &sbp_hf_projections};
    static const traits t = {.vocab = 151936,
                             .hidden = 2048,
                             .inner = 5632,
                             .layers = 48,
                             .heads = 16,
                             .kv_heads = 2,
                             .max_positions = 32768,
                             .grouped = true,
                             .experts = &experts};
    build(hf, "model", &t);
}
