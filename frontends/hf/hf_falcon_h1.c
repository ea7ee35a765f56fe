/* hf_falcon_h1.c: Falcon-H1: attention and Mamba-2 side by side on one norm, then an MLP; fixed
 * numbers on what they read and give, and inside of them. Formulas and names: transformers,
 * modeling_falcon_h1.py; fields and their defaults: configuration_falcon_h1.py. */
#include "frontends/hf/hf.h"

/* A list of `count` numbers; 1 each where there is none. */
static const double *read_numbers(sbp_hf *hf, const char *key, int64_t count) {
    const sbp_json *list = sbp_hf_field(hf, key);
    double *numbers = SBP_NEW_ARRAY(hf->arena, double, count);
    if (list && (list->kind != SBP_JSON_ARRAY || list->count != count))
        sbp_hf_fail(hf, list, "an array of %lld numbers is expected", (long long)count);
    for (int64_t i = 0; i < count; i++) {
        numbers[i] = 1;
        if (list && hf->builder.status == SBP_OK)
            hf->builder.status = sbp_json_as_double(hf->diag, &list->items[i], &numbers[i]);
    }
    return numbers;
}

static void read_mamba(sbp_hf *hf, sbp_hf_decoder *d) {
    int64_t expand = sbp_hf_size(hf, "mamba_expand", 2);
    bool given = !sbp_hf_is_null(hf, "mamba_d_ssm");
    d->mamba = sbp_hf_mamba_read(hf, d, given ? sbp_hf_size(hf, "mamba_d_ssm", 1024) : expand * d->hidden,
                                 given ? "mamba_d_ssm" : "mamba_expand * hidden_size");
    d->mamba.out_bias = sbp_hf_bool(hf, "projectors_bias", false);
    if (sbp_hf_field(hf, "ssm_multipliers"))
        d->mamba.multipliers = read_numbers(hf, "ssm_multipliers", SBP_HF_MAMBA_SEGMENTS);
    bool norms = sbp_hf_bool(hf, "mamba_rms_norm", false),
         first = sbp_hf_bool(hf, "mamba_norm_before_gate", true);
    d->mamba.gating = !norms  ? SBP_HF_MAMBA_GATE
                      : first ? SBP_HF_MAMBA_NORM_THEN_GATE
                              : SBP_HF_MAMBA_GATE_THEN_NORM;
    d->mamba.norm_wide = true;
}

void sbp_hf_falcon_h1(sbp_hf *hf) {
    static const char *const unread[] = {"mlp_expansion_factor", "num_logits_to_keep", "time_step_min",
                                         "time_step_max", "time_step_floor"};
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 128000,
                                                                  .hidden = 4096,
                                                                  .inner = 14336,
                                                                  .layers = 32,
                                                                  .heads = 32,
                                                                  .kv_heads = 8,
                                                                  .head_dim_rounds = true,
                                                                  .max_positions = 8192,
                                                                  .norm_eps = 1e-5});
    const double *mlp = read_numbers(hf, "mlp_multipliers", 2);
    const sbp_hf_branch rows = {.name = "mixer",
                                .norm_in = "input_layernorm",
                                .mixer = {{sbp_hf_mix_mamba, "mamba",
                                           sbp_hf_double(hf, "ssm_in_multiplier", 1),
                                           sbp_hf_double(hf, "ssm_out_multiplier", 1)},
                                          {sbp_hf_mix_attention, "self_attn",
                                           sbp_hf_double(hf, "attention_in_multiplier", 1),
                                           sbp_hf_double(hf, "attention_out_multiplier", 1)}}},
                        columns = {.name = "mlp",
                                   .norm_in = "pre_ff_layernorm",
                                   .mixer = {{sbp_hf_mix_mlp, "feed_forward", 1, mlp[1]}}};
    for (int64_t i = 0; i < d.layers && hf->builder.status == SBP_OK; i++) {
        d.layer[i].branch[0] = &rows;
        d.layer[i].branch[1] = &columns;
    }
    d.gate_scale = mlp[0];
    d.key_scale = sbp_hf_double(hf, "key_multiplier", 1);
    d.embed_scale = sbp_hf_double(hf, "embedding_multiplier", 1);
    d.logits_scale = sbp_hf_double(hf, "lm_head_multiplier", 1);
    d.qkv_bias = d.o_bias = sbp_hf_bool(hf, "attention_bias", false);
    d.mlp_bias = sbp_hf_bool(hf, "mlp_bias", false);
    hf->model->unadapted = "out_proj";
    d.names.last_norm = "final_layernorm";
    d.rope[0] = sbp_hf_decoder_rope(hf, &d);
    read_mamba(hf, &d);
    if (!sbp_hf_bool(hf, "mamba_use_mlp", true))
        sbp_hf_fail(hf, sbp_hf_field(hf, "mamba_use_mlp"), "layers without an MLP are not supported");
    for (int i = 0; i < SBP_COUNT(unread); i++) /* by the model class */
        (void)sbp_hf_field(hf, unread[i]);
    sbp_hf_decoder_build(hf, &d);
}
