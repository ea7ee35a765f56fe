/* hf_nemotron_h.c: Nemotron-H: each block is a norm and one of Mamba-2, attention without positions, an MLP,
 * or experts, which have no gate: down(relu(up x)^2). Formulas and names: transformers,
 * modeling_nemotron_h.py; fields and their defaults: configuration_nemotron_h.py. */
#include <math.h>
#include <string.h>

#include "frontends/hf/hf.h"
#include "ir/graph/op.h"

enum { MAX_LAYERS = 1000 };
enum { MAMBA, ATTENTION, MLP, EXPERTS, KINDS };

/* How patterns and lists of layer types call a kind. */
static const struct {
    char letter;
    const char *name, *old;
} kinds[KINDS] = {[MAMBA] = {'M', "linear_attention", "mamba"},
                  [ATTENTION] = {'*', "full_attention", "attention"},
                  [MLP] = {'-', "mlp", "mlp"},
                  [EXPERTS] = {'E', "moe", "moe"}};

typedef struct nemotron {
    sbp_hf *hf;
    sbp_builder *b;
    int64_t vocab, hidden, inner, layers, heads, kv_heads, head_dim;
    bool mlp_bias, tied;
    const char *activation; /* of MLPs */
    int *kind;              /* per layer */
    sbp_hf_experts experts;
    sbp_hf_mamba mamba;
    sbp_hf_norm norm;
} nemotron;

/* ---- configuration -------------------------------------------------------------------------------- */

static void set_kind(nemotron *m, const sbp_json *field, int64_t layer, char letter, const char *name) {
    for (int k = 0; k < KINDS; k++)
        if (name ? strcmp(name, kinds[k].name) == 0 || strcmp(name, kinds[k].old) == 0
                 : letter == kinds[k].letter) {
            m->kind[layer] = k;
            return;
        }
    if (name)
        sbp_hf_fail(m->hf, field, "layer type %s is not supported; mamba, attention, mlp or moe expected",
                    name);
    else
        sbp_hf_fail(m->hf, field, "layer %lld is '%c'; M, *, - or E expected", (long long)layer, letter);
}

/* layers_block_type (layer_types), or hybrid_override_pattern; num_hidden_layers may say how many it has. */
static void read_layers(nemotron *m) {
    sbp_hf *hf = m->hf;
    const char *const keys[] = {"layers_block_type", "layer_types"};
    const sbp_json *types = NULL;
    for (int i = 0; i < SBP_COUNT(keys); i++) {
        const sbp_json *field = sbp_hf_field(hf, keys[i]);
        types = types ? types : field;
    }
    const char *pattern = sbp_hf_string(hf, "hybrid_override_pattern", "");
    const sbp_json *field = types ? types : sbp_hf_field(hf, "hybrid_override_pattern");
    m->layers = types ? types->count : (int64_t)strlen(pattern);
    if (!field || (types && types->kind != SBP_JSON_ARRAY) || m->layers < 1)
        sbp_hf_fail(hf, field, "hybrid_override_pattern or layers_block_type is expected");
    int64_t said = sbp_hf_size(hf, "num_hidden_layers", m->layers > 0 ? m->layers : 1);
    if (m->layers > MAX_LAYERS || said != m->layers)
        sbp_hf_fail(hf, field, "%lld layers; num_hidden_layers is %lld, and at most %d are expected",
                    (long long)m->layers, (long long)said, MAX_LAYERS);
    m->layers = hf->builder.status == SBP_OK ? m->layers : 0;
    m->kind = SBP_NEW_ARRAY(hf->arena, int, m->layers + 1);
    for (int64_t i = 0; i < m->layers && hf->builder.status == SBP_OK; i++) {
        const sbp_json *item = types ? &types->items[i] : NULL;
        const char *name = !item                           ? NULL
                           : item->kind == SBP_JSON_STRING ? item->string
                                                           : sbp_json_kind_name(item->kind);
        set_kind(m, item ? item : field, i, item ? 0 : pattern[i], name);
    }
}

static void read_mamba(nemotron *m) {
    sbp_hf *hf = m->hf;
    static const char *const unread[] = {"chunk_size",
                                         "expand",
                                         "mamba_proj_bias",
                                         "time_step_max",
                                         "time_step_floor",
                                         "time_step_limit",
                                         "mamba_ssm_cache_dtype",
                                         "use_mamba_kernels",
                                         "rescale_prenorm_residual",
                                         "num_logits_to_keep"};
    m->mamba = (sbp_hf_mamba){.heads = sbp_hf_size(hf, "mamba_num_heads", 128),
                              .head_dim = sbp_hf_size(hf, "mamba_head_dim", 64),
                              .groups = sbp_hf_size(hf, "n_groups", 8),
                              .state = sbp_hf_size(hf, "ssm_state_size", 128),
                              .taps = sbp_hf_size(hf, "conv_kernel", 4),
                              .activation = sbp_hf_string(hf, "mamba_hidden_act", "silu"),
                              .conv_bias = sbp_hf_bool(hf, "use_conv_bias", true),
                              .bias = sbp_hf_bool(hf, "use_bias", false),
                              .eps = m->norm.eps,
                              .dt_least = sbp_hf_double(hf, "time_step_min", 0.001),
                              .dt_most = (double)INFINITY};
    for (int i = 0; i < SBP_COUNT(unread); i++) /* the model class reads none of them */
        (void)sbp_hf_field(hf, unread[i]);
    sbp_hf_mamba_check(hf, &m->mamba, "mamba_num_heads", "n_groups");
}

static void read_experts(nemotron *m) {
    static const char *const unread[] = {"moe_shared_expert_overlap", "mtp_layers_block_type",
                                         "mtp_hybrid_override_pattern", "output_router_logits"};
    static const sbp_hf_expert_names names = {.module = "mixer",
                                              .router = "gate",
                                              .experts = {[SBP_HF_EXPERT_GATE] = "gate_proj",
                                                          [SBP_HF_EXPERT_UP] = "up_proj",
                                                          [SBP_HF_EXPERT_DOWN] = "down_proj"}};
    sbp_hf *hf = m->hf;
    m->experts = sbp_hf_deepseek_experts_read(
        hf, m->layers,
        &(sbp_hf_deepseek_experts){
            .count = 8, .chosen = 2, .inner = 7688, .groups = 1, .chosen_groups = 1, .scaling = 1});
    m->experts.names = &names;
    m->experts.plain = true;
    m->experts.shared = sbp_hf_size(hf, "moe_shared_expert_intermediate_size", 7688);
    m->experts.latent = sbp_hf_count(hf, "moe_latent_size", 0);
    bool any = false;
    for (int64_t i = 0; i < m->layers; i++)
        any |= m->kind[i] == EXPERTS;
    if (any && m->mlp_bias)
        sbp_hf_fail(hf, sbp_hf_field(hf, "mlp_bias"), "experts with biases are not supported");
    for (int i = 0; i < SBP_COUNT(unread); i++)
        (void)sbp_hf_field(hf, unread[i]);
}

static nemotron read_config(sbp_hf *hf) {
    nemotron m = {.hf = hf, .b = &hf->builder};
    m.vocab = sbp_hf_size(hf, "vocab_size", 131072);
    m.hidden = sbp_hf_size(hf, "hidden_size", 4096);
    m.inner = sbp_hf_size(hf, "intermediate_size", 21504);
    m.heads = sbp_hf_size(hf, "num_attention_heads", 32);
    m.kv_heads = sbp_hf_size(hf, "num_key_value_heads", 8);
    m.head_dim = sbp_hf_size(hf, "head_dim", 128);
    m.activation = sbp_hf_string(hf, "mlp_hidden_act", "relu2");
    m.mlp_bias = sbp_hf_bool(hf, "mlp_bias", false);
    m.tied = sbp_hf_bool(hf, "tie_word_embeddings", false);
    m.norm = (sbp_hf_norm){SBP_HF_RMS_NORM_WIDE, sbp_hf_double(hf, "layer_norm_epsilon", 1e-5)};
    if (sbp_hf_bool(hf, "attention_bias", false))
        sbp_hf_fail(hf, sbp_hf_field(hf, "attention_bias"), "the model class has no biases there");
    if (hf->builder.status == SBP_OK && m.heads % m.kv_heads != 0)
        sbp_hf_fail(hf, sbp_hf_field(hf, "num_key_value_heads"),
                    "num_attention_heads %lld is not a multiple of num_key_value_heads %lld",
                    (long long)m.heads, (long long)m.kv_heads);
    (void)sbp_hf_field(hf, "residual_in_fp32"); /* which the model class does not read either */
    read_layers(&m);
    read_mamba(&m);
    read_experts(&m);
    hf->model->vocab_size = m.vocab;
    hf->model->max_positions = sbp_hf_size(hf, "max_position_embeddings", 4096);
    if (hf->model->pad_id >= 0 && hf->model->pad_id < m.vocab)
        hf->pad_row = hf->model->pad_id;
    return m;
}

/* ---- graph ---------------------------------------------------------------------------------------- */

/* The ops that follow belong to this module of a layer; its name. */
static const char *enter(const nemotron *m, int64_t layer, const char *module) {
    m->b->node = sbp_hf_path(m->hf, "backbone.layers.%lld.%s", (long long)layer, module);
    return m->b->node;
}

static sbp_value linear(const nemotron *m, const char *name, sbp_value x, const char *module,
                        const char *part, int64_t out, int64_t in, bool bias) {
    return sbp_hf_linear(m->hf, name, x, sbp_hf_path(m->hf, "%s.%s", module, part), out, in, bias);
}

static sbp_value build_heads(const nemotron *m, const char *part, sbp_value x, const char *module,
                             int64_t heads) {
    x = linear(m, NULL, x, module, sbp_hf_path(m->hf, "%s_proj", part), heads * m->head_dim, m->hidden,
               false);
    x = sbp_hf_split_heads(m->hf, x, heads, m->head_dim);
    sbp_build_name(m->b, x, part);
    return x;
}

static sbp_value build_attention(const nemotron *m, sbp_value x, const char *module) {
    sbp_value q = build_heads(m, "q", x, module, m->heads);
    sbp_value k = build_heads(m, "k", x, module, m->kv_heads);
    sbp_value v = build_heads(m, "v", x, module, m->kv_heads);
    sbp_value o = sbp_hf_attention(m->hf, q, k, v, pow((double)m->head_dim, -0.5), 0);
    o = sbp_hf_join_heads(m->hf, o);
    return linear(m, "attn_proj", o, module, "o_proj", m->hidden, m->heads * m->head_dim, false);
}

static sbp_value build_mlp(const nemotron *m, sbp_value x, const char *module) {
    x = linear(m, "up", x, module, "up_proj", m->inner, m->hidden, m->mlp_bias);
    x = sbp_hf_activate(m->hf, m->activation, "act", x);
    return linear(m, "mlp_proj", x, module, "down_proj", m->hidden, m->inner, m->mlp_bias);
}

static sbp_value build_mixer(const nemotron *m, sbp_value x, const char *module, int kind) {
    switch (kind) {
    case MAMBA:
        return sbp_hf_mamba_build(m->hf, &m->mamba, x, module, m->hidden);
    case ATTENTION:
        return build_attention(m, x, module);
    case MLP:
        return build_mlp(m, x, module);
    default:
        return sbp_hf_experts_build(m->hf, &m->experts, m->activation, "mlp_proj", x, module, m->hidden);
    }
}

void sbp_hf_nemotron_h(sbp_hf *hf) {
    static const char *const branches[KINDS] = {"ssd", "attn", "mlp", "mlp"};
    nemotron m = read_config(hf);
    hf->base_prefix = hf->model->file_prefix = "backbone.";
    hf->model->class_prefix = "model.";
    m.b->node = "backbone.embeddings";
    sbp_value table = sbp_hf_table(hf, "backbone.embeddings.weight", m.vocab, m.hidden);
    sbp_value x = sbp_hf_embed(hf, "embed", table, SBP_DATA_TOK);
    for (int64_t i = 0; i < m.layers && m.b->status == SBP_OK; i++) {
        const char *branch = branches[m.kind[i]];
        sbp_value y = sbp_hf_normalize(hf, &m.norm, sbp_hf_path(hf, "%s_norm", branch), x,
                                       enter(&m, i, "norm"), m.hidden);
        y = build_mixer(&m, y, enter(&m, i, "mixer"), m.kind[i]);
        x = sbp_hf_add(hf, sbp_hf_path(hf, "%s_residual", branch), x, y);
    }
    m.b->node = "backbone.norm_f";
    x = sbp_hf_normalize(hf, &m.norm, "final_norm", x, m.b->node, m.hidden);
    sbp_hf_decays(hf, sbp_hf_row_vector(hf, "backbone.norm_f.weight", SBP_INIT_ONES,
                                        m.hidden)); /* as its name has it */
    m.b->node = "lm_head";
    sbp_value w = sbp_hf_head_matrix(hf, "lm_head.weight", table, m.tied);
    sbp_hf_finish(hf, sbp_hf_logits(hf, x, w));
    m.b->node = NULL;
}
