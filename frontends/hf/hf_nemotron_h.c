/* hf_nemotron_h.c: Nemotron-H: each block is a norm and one of Mamba-2, attention without positions, an MLP,
 * or experts, which have no gate: down(relu(up x)^2). Formulas and names: transformers,
 * modeling_nemotron_h.py; fields and their defaults: configuration_nemotron_h.py. */
#include <math.h>
#include <string.h>

#include "frontends/hf/hf.h"

enum { MAMBA, ATTENTION, MLP, EXPERTS, KINDS };

#define BRANCH(values, build)                                                                                \
    { .name = values, .norm_in = "norm", .mixer = {{build, "mixer", 1, 1}}, .alone = true }
/* How patterns and lists of layer types call a kind, and what it is. */
static const struct {
    char letter;
    const char *name, *old;
    sbp_hf_branch branch;
} kinds[KINDS] = {[MAMBA] = {'M', "linear_attention", "mamba", BRANCH("ssd", sbp_hf_mix_mamba)},
                  [ATTENTION] = {'*', "full_attention", "attention", BRANCH("attn", sbp_hf_mix_attention)},
                  [MLP] = {'-', "mlp", "mlp", BRANCH("mlp", sbp_hf_mix_mlp)},
                  [EXPERTS] = {'E', "moe", "moe", BRANCH("mlp", sbp_hf_mix_experts)}};

/* Where a file says of what kind layers are. */
typedef struct kinds_said {
    const sbp_json *field, *types; /* types: the field, where it is a list */
    const char *pattern;           /* a letter a layer */
    int64_t layers;
} kinds_said;

/* layers_block_type (layer_types), or hybrid_override_pattern. */
static kinds_said find_kinds(sbp_hf *hf) {
    const sbp_json *types = sbp_hf_field(hf, "layers_block_type"), *other = sbp_hf_field(hf, "layer_types");
    kinds_said said = {.types = types ? types : other,
                       .pattern = sbp_hf_string(hf, "hybrid_override_pattern", "")};
    said.field = said.types ? said.types : sbp_hf_field(hf, "hybrid_override_pattern");
    said.layers = said.types ? said.types->count : (int64_t)strlen(said.pattern);
    if (!said.field || (said.types && said.types->kind != SBP_JSON_ARRAY) || said.layers < 1)
        sbp_hf_fail(hf, said.field, "hybrid_override_pattern or layers_block_type is expected");
    return said;
}

static void set_kind(sbp_hf *hf, sbp_hf_layer *layer, int64_t number, const kinds_said *said) {
    const sbp_json *item = said->types ? &said->types->items[number] : NULL;
    const char *name = !item                           ? NULL
                       : item->kind == SBP_JSON_STRING ? item->string
                                                       : sbp_json_kind_name(item->kind);
    char letter = name ? 0 : said->pattern[number];
    for (int k = 0; k < KINDS && !layer->branch[0]; k++)
        if (name ? strcmp(name, kinds[k].name) == 0 || strcmp(name, kinds[k].old) == 0
                 : letter == kinds[k].letter)
            layer->branch[0] = &kinds[k].branch;
    layer->no_rope = true;
    if (!layer->branch[0] && name)
        sbp_hf_fail(hf, item, "layer type %s is not supported; mamba, attention, mlp or moe expected", name);
    else if (!layer->branch[0])
        sbp_hf_fail(hf, said->field, "layer %lld is '%c'; M, *, - or E expected", (long long)number, letter);
}

static void read_mamba(sbp_hf *hf, sbp_hf_decoder *d) {
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
    d->mamba = (sbp_hf_mamba){.heads = sbp_hf_size(hf, "mamba_num_heads", 128),
                              .head_dim = sbp_hf_size(hf, "mamba_head_dim", 64),
                              .groups = sbp_hf_size(hf, "n_groups", 8),
                              .state = sbp_hf_size(hf, "ssm_state_size", 128),
                              .taps = sbp_hf_size(hf, "conv_kernel", 4),
                              .activation = sbp_hf_string(hf, "mamba_hidden_act", "silu"),
                              .conv_bias = sbp_hf_bool(hf, "use_conv_bias", true),
                              .in_bias = sbp_hf_bool(hf, "use_bias", false),
                              .eps = d->norm.eps,
                              .dt_least = sbp_hf_double(hf, "time_step_min", 0.001),
                              .dt_most = (double)INFINITY};
    for (int i = 0; i < SBP_COUNT(unread); i++) /* the model class reads none of them */
        (void)sbp_hf_field(hf, unread[i]);
    d->mamba.out_bias = d->mamba.in_bias;
    sbp_hf_check_multiple(hf, "mamba_num_heads", d->mamba.heads, "n_groups", d->mamba.groups);
}

static void read_experts(sbp_hf *hf, sbp_hf_decoder *d) {
    static const char *const unread[] = {"moe_shared_expert_overlap", "mtp_layers_block_type",
                                         "mtp_hybrid_override_pattern", "output_router_logits"};
    static const sbp_hf_expert_names names = {.module = "mixer",
                                              .router = "gate",
                                              .experts = {[SBP_HF_EXPERT_GATE] = "gate_proj",
                                                          [SBP_HF_EXPERT_UP] = "up_proj",
                                                          [SBP_HF_EXPERT_DOWN] = "down_proj"}};
    d->experts = sbp_hf_deepseek_experts_read(
        hf, d->layers,
        &(sbp_hf_deepseek_experts){
            .count = 8, .chosen = 2, .inner = 7688, .groups = 1, .chosen_groups = 1, .scaling = 1});
    d->experts.names = &names;
    d->experts.plain = true;
    d->experts.shared = sbp_hf_size(hf, "moe_shared_expert_intermediate_size", 7688);
    d->experts.latent = sbp_hf_count(hf, "moe_latent_size", 0);
    bool any = false;
    for (int64_t i = 0; i < d->layers; i++)
        any |= d->layer[i].branch[0] == &kinds[EXPERTS].branch;
    if (any && d->mlp_bias)
        sbp_hf_fail(hf, sbp_hf_field(hf, "mlp_bias"), "experts with biases are not supported");
    for (int i = 0; i < SBP_COUNT(unread); i++)
        (void)sbp_hf_field(hf, unread[i]);
}

void sbp_hf_nemotron_h(sbp_hf *hf) {
    kinds_said said = find_kinds(hf);
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 131072,
                                                                  .hidden = 4096,
                                                                  .inner = 21504,
                                                                  .layers = said.layers,
                                                                  .heads = 32,
                                                                  .kv_heads = 8,
                                                                  .head_dim = 128,
                                                                  .max_positions = 4096,
                                                                  .norm_eps = 1e-5,
                                                                  .eps_key = "layer_norm_epsilon",
                                                                  .activation_key = "mlp_hidden_act",
                                                                  .activation = "relu2"});
    if (d.layers != said.layers)
        sbp_hf_fail(hf, said.field, "there are %lld layer types; num_hidden_layers is %lld",
                    (long long)said.layers, (long long)d.layers);
    for (int64_t i = 0; i < d.layers && hf->builder.status == SBP_OK; i++)
        set_kind(hf, &d.layer[i], i, &said);
    d.norm.style = SBP_HF_RMS_NORM_WIDE;
    d.ungated = true;
    d.mlp_bias = sbp_hf_bool(hf, "mlp_bias", false);
    if (sbp_hf_bool(hf, "attention_bias", false))
        sbp_hf_fail(hf, sbp_hf_field(hf, "attention_bias"), "the model class has no biases there");
    (void)sbp_hf_field(hf, "residual_in_fp32"); /* which the model class does not read either */
    read_mamba(hf, &d);
    read_experts(hf, &d);
    d.names.root = "backbone";
    d.names.embedding = "embeddings";
    d.names.last_norm = "norm_f";
    hf->base_prefix = hf->model->prefix[0].file = "backbone.";
    hf->model->prefix[0].in_class = "model.";
    sbp_hf_decoder_build(hf, &d);
    /* as the last norm's name has it */
    sbp_hf_decays(hf, sbp_hf_row_vector(hf, "backbone.norm_f.weight", SBP_INIT_ONES, d.hidden));
}
