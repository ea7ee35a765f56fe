/* hf_olmo_hybrid.c: OLMo Hybrid: most layers mix rows by the gated delta rule, with norms on inputs and a
 * convolution each for queries, keys and values; the others are OLMo 2's, with norms on outputs. Formulas
 * and defaults: transformers, modeling_olmo_hybrid.py and configuration_olmo_hybrid.py; names: of the
 * released files, which conversion_mapping.py has. */
#include "frontends/hf/hf.h"

typedef struct hybrid {
    sbp_hf_delta delta;
    int64_t taps; /* of the convolutions */
} hybrid;

/* act(conv(map x)) */
static sbp_value build_rows(const sbp_hf_scope *at, const char *part, sbp_value x, int64_t columns) {
    const hybrid *m = at->d->own;
    sbp_hf *hf = at->hf;
    x = sbp_hf_map(at, sbp_hf_path(hf, "%s_delta_in", part), x, sbp_hf_path(hf, "%s_proj", part), columns,
                   at->d->hidden, false);
    x = sbp_hf_conv_rows(hf, sbp_hf_path(hf, "%s_conv", part), x,
                         sbp_hf_path(hf, "%s.%s_conv1d", at->module, part), columns, m->taps, false);
    return sbp_hf_activate(hf, at->d->activation, sbp_hf_path(hf, "%s_conv_act", part), x);
}

static sbp_value mix_delta(const sbp_hf_scope *at, sbp_value x) {
    const hybrid *m = at->d->own;
    int64_t keys = m->delta.key_heads * m->delta.dk, values = m->delta.value_heads * m->delta.dv;
    sbp_hf_delta_rows rows;
    rows.q = build_rows(at, "q", x, keys);
    rows.k = build_rows(at, "k", x, keys);
    rows.v = build_rows(at, "v", x, values);
    rows.z = sbp_hf_map(at, "delta_z", x, "g_proj", values, at->d->hidden, false);
    rows.b = sbp_hf_map(at, "delta_b", x, "b_proj", m->delta.value_heads, at->d->hidden, false);
    rows.a = sbp_hf_map(at, "delta_a", x, "a_proj", m->delta.value_heads, at->d->hidden, false);
    x = sbp_hf_delta_build(at, &m->delta, &rows, "o_norm");
    return sbp_hf_map(at, "delta_proj", x, "o_proj", at->d->hidden, values, false);
}

static const sbp_hf_branch delta = {.name = "delta",
                                    .in_name = "delta_in_norm",
                                    .norm_in = "attention_layer_norm",
                                    .mixer = {{mix_delta, "linear_attn", 1, 1}}},
                           mlp = {.name = "mlp",
                                  .norm_in = "feedforward_layer_norm",
                                  .mixer = {{sbp_hf_mix_mlp, "mlp", 1, 1}}};

/* layer_types, or every fourth layer attends, and the last one where there are fewer. */
static void read_layers(sbp_hf *hf, sbp_hf_decoder *d) {
    if (hf->builder.status != SBP_OK)
        return;
    bool *attends = SBP_NEW_ARRAY(hf->arena, bool, d->layers);
    if (!sbp_hf_layer_words(hf, "layer_types", d->layers, "linear_attention", "full_attention", attends))
        for (int64_t i = 0; i < d->layers; i++)
            attends[i] = i % 4 == 3 || (d->layers < 4 && i == d->layers - 1);
    for (int64_t i = 0; i < d->layers; i++) {
        d->layer[i].branch[0] = attends[i] ? NULL : &delta;
        d->layer[i].branch[1] = attends[i] ? NULL : &mlp;
    }
}

/* A rope_theta that is null in rope_parameters: no positions. */
static bool turns(sbp_hf *hf) {
    const sbp_json *scaling = sbp_hf_field(hf, "rope_scaling"), *all = sbp_hf_field(hf, "rope_parameters"),
                   *theta = sbp_json_member(scaling ? scaling : all, "rope_theta");
    return !theta || theta->kind != SBP_JSON_NULL;
}

void sbp_hf_olmo_hybrid(sbp_hf *hf) {
    static const char *const begin[] = {"linear_a_log_min", "linear_a_log_max", "linear_dt_min",
                                        "linear_dt_max", "linear_dt_init_floor"};
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 100352,
                                                                  .hidden = 3840,
                                                                  .inner = 11008,
                                                                  .layers = 32,
                                                                  .heads = 30,
                                                                  .head_dim_rounds = true,
                                                                  .max_positions = 65536});
    int64_t keys = sbp_hf_size(hf, "linear_num_key_heads", d.heads),
            dk = sbp_hf_size(hf, "linear_key_head_dim", d.hidden * 3 / (4 * keys));
    hybrid m = {.delta = {.key_heads = keys,
                          .value_heads = sbp_hf_size(hf, "linear_num_value_heads", d.heads),
                          .dk = dk,
                          .dv = sbp_hf_size(hf, "linear_value_head_dim", 2 * dk),
                          .beta_scale = sbp_hf_bool(hf, "linear_allow_neg_eigval", true) ? 2 : 1,
                          .eps = 1e-5}, /* whatever rms_norm_eps says */
                .taps = sbp_hf_size(hf, "linear_conv_kernel_dim", 4)};
    sbp_hf_check_multiple(hf, "linear_num_value_heads", m.delta.value_heads, "linear_num_key_heads", keys);
    for (int i = 0; i < SBP_COUNT(begin); i++) /* how weights begin */
        (void)sbp_hf_field(hf, begin[i]);
    d.own = &m;
    d.norm.style = SBP_HF_RMS_NORM_WIDE;
    d.norms =
        (sbp_hf_layer_norms){.attn_out = "post_attention_layernorm", .mlp_out = "post_feedforward_layernorm"};
    d.qk_norm = SBP_HF_QK_NORM_WHOLE;
    d.qkv_bias = d.o_bias = sbp_hf_bool(hf, "attention_bias", false);
    d.names.maps = true;
    read_layers(hf, &d);
    if (turns(hf))
        d.rope[0] = sbp_hf_decoder_rope(hf, &d);
    sbp_hf_decoder_build(hf, &d);
}
