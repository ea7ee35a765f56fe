/* hf_lfm2.c: LFM2: most layers mix rows by a short convolution between two gates, some by attention. Formulas
 * and names: transformers, modeling_lfm2.py; fields and their defaults: configuration_lfm2.py. */
#include <math.h>

#include "frontends/hf/hf.h"

sbp_value sbp_hf_mix_conv(const sbp_hf_scope *at, sbp_value x) {
    const sbp_hf_conv *c = &at->d->conv;
    sbp_builder *b = &at->hf->builder;
    int64_t n = at->d->hidden;
    x = sbp_hf_map(at, "conv_in", x, "in_proj", 3 * n, n, c->bias);
    sbp_value before = sbp_build_slice(b, x, 0, n), behind = sbp_build_slice(b, x, n, n);
    sbp_value v = sbp_build_slice(b, x, 2 * n, n);
    v = sbp_build2(b, SBP_OP_mul, before, v);
    sbp_build_name(b, v, "conv_gated");
    v = sbp_hf_conv_rows(at->hf, "conv", v, sbp_hf_path(at->hf, "%s.conv", at->module), n, c->taps, c->bias);
    v = sbp_build2(b, SBP_OP_mul, behind, v);
    sbp_build_name(b, v, "conv_out");
    return sbp_hf_map(at, "conv_proj", v, "out_proj", n, n, c->bias);
}

static const sbp_hf_branch convolution = {.name = "conv",
                                          .norm_in = "operator_norm",
                                          .mixer = {{sbp_hf_mix_conv, "conv", 1, 1}}},
                           mlp = {.name = "mlp",
                                  .norm_in = "ffn_norm",
                                  .mixer = {{sbp_hf_mix_mlp, "feed_forward", 1, 1}}};

/* layer_types, or full_attn_idxs, without which all layers attend. */
static void read_layers(sbp_hf *hf, sbp_hf_decoder *d) {
    bool *attends = SBP_NEW_ARRAY(hf->arena, bool, hf->builder.status == SBP_OK ? d->layers : 1);
    bool given = hf->builder.status == SBP_OK &&
                 sbp_hf_layer_words(hf, "layer_types", d->layers, "conv", "full_attention", attends);
    const sbp_json *places = sbp_hf_field(hf, "full_attn_idxs");
    for (int64_t i = 0; !given && i < d->layers && hf->builder.status == SBP_OK; i++)
        attends[i] = !places;
    if (!given && places && places->kind != SBP_JSON_ARRAY)
        sbp_hf_fail(hf, places, "expected an array of layer numbers");
    for (int64_t i = 0; !given && places && i < places->count && hf->builder.status == SBP_OK; i++) {
        int64_t layer = 0;
        hf->builder.status = sbp_json_as_i64(hf->diag, &places->items[i], &layer);
        if (hf->builder.status == SBP_OK && (layer < 0 || layer >= d->layers))
            sbp_hf_fail(hf, &places->items[i], "there is no layer %lld", (long long)layer);
        else if (hf->builder.status == SBP_OK)
            attends[layer] = true;
    }
    for (int64_t i = 0; i < d->layers && hf->builder.status == SBP_OK; i++) {
        d->layer[i].branch[0] = attends[i] ? NULL : &convolution;
        d->layer[i].branch[1] = &mlp;
    }
}

/* Columns of the MLP: two thirds of what is given, times a factor, up to a multiple (Lfm2MLP). */
static int64_t read_inner(sbp_hf *hf, int64_t given) {
    int64_t old = sbp_hf_size(hf, "block_ff_dim", given);
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
static void check_old_name(sbp_hf *hf, const char *old, const char *name, int64_t size) {
    int64_t said = sbp_hf_size(hf, old, size);
    if (hf->builder.status == SBP_OK && said != size)
        sbp_hf_fail(hf, sbp_hf_field(hf, old), "%s is %lld; it must be %s, %lld", old, (long long)said, name,
                    (long long)size);
}

void sbp_hf_lfm2_names(sbp_hf *hf, sbp_hf_decoder *d, int64_t taps) {
    static const char *const matrices[] = {
        [SBP_HF_EXPERT_GATE] = "w1", [SBP_HF_EXPERT_UP] = "w3", [SBP_HF_EXPERT_DOWN] = "w2"};
    d->conv = (sbp_hf_conv){.taps = sbp_hf_size(hf, "conv_L_cache", taps),
                            .bias = sbp_hf_bool(hf, "conv_bias", false)};
    d->norms.attn_in = "operator_norm";
    d->qk_norm = SBP_HF_QK_NORM_HEAD;
    d->names.last_norm = "embedding_norm";
    d->names.head_norm = "layernorm";
    d->names.attn_out = "out_proj";
    d->names.mlp = matrices;
    d->names.maps = true;
}

void sbp_hf_lfm2_blocks(sbp_hf *hf, sbp_hf_decoder *d) {
    sbp_hf_lfm2_names(hf, d, 3);
    d->tied = sbp_hf_bool(hf, "tie_embedding", d->tied);
    read_layers(hf, d);
    d->rope[0] = sbp_hf_rope_read(hf, &(sbp_hf_rope_shape){.head_dim = d->head_dim,
                                                           .rotary_dim = d->head_dim,
                                                           .theta = 1e6,
                                                           .max_positions = d->max_positions});
}

void sbp_hf_lfm2(sbp_hf *hf) {
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 65536,
                                                                  .hidden = 2560,
                                                                  .inner = 12288,
                                                                  .layers = 32,
                                                                  .heads = 32,
                                                                  .kv_heads = 8,
                                                                  .head_dim_rounds = true,
                                                                  .max_positions = 128000,
                                                                  .tied = true,
                                                                  .norm_eps = 1e-5,
                                                                  .eps_key = "norm_eps",
                                                                  .activation_key = ""});
    d.inner = read_inner(hf, d.inner);
    check_old_name(hf, "block_dim", "hidden_size", d.hidden);
    check_old_name(hf, "conv_dim", "hidden_size", d.hidden);
    check_old_name(hf, "conv_dim_out", "hidden_size", d.hidden);
    check_old_name(hf, "num_heads", "num_attention_heads", d.heads);
    sbp_hf_lfm2_blocks(hf, &d);
    sbp_hf_decoder_build(hf, &d);
}
