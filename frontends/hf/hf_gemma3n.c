/* hf_gemma3n.c: Gemma 3n, text models: several streams (hf_altup.c); a branch of low rank beside attention
 * (LAuReL); MLPs whose gates open only where they are far above the others of their row. Formulas:
 * transformers, modeling_gemma3n.py. */
#include <math.h>

#include "frontends/hf/hf_gemma.h"
#include "ir/graph/op.h"

typedef struct gemma3n {
    sbp_hf_gemma m;
    int64_t rank;             /* of laurel */
    const double *deviations; /* [layers] above the mean, where gates begin to open; below 0: all are open */
} gemma3n;

/* ---- configuration -------------------------------------------------------------------------------- */

/* x of which a normal variable is below with this probability. */
static double quantile(double probability) {
    double low = -40, high = 40;
    for (int i = 0; i < 100; i++) {
        double middle = (low + high) / 2;
        *(0.5 * erfc(-middle / sqrt(2)) < probability ? &low : &high) = middle;
    }
    return high;
}

static void read_sparsity(sbp_hf *hf, gemma3n *n) {
    const sbp_json *list = sbp_hf_field(hf, "activation_sparsity_pattern");
    int64_t layers = n->m.d.layers;
    if (hf->builder.status != SBP_OK)
        return;
    double *deviations = SBP_NEW_ARRAY(hf->arena, double, layers);
    if (list && (list->kind != SBP_JSON_ARRAY || list->count != layers))
        sbp_hf_fail(hf, list, "a list of %lld shares is expected, one for each layer", (long long)layers);
    for (int64_t i = 0; i < layers && hf->builder.status == SBP_OK; i++) {
        double share = layers > 10 && i < 10 ? 0.95 : 0;
        if (list)
            hf->builder.status = sbp_json_as_double(hf->diag, &list->items[i], &share);
        if (hf->builder.status == SBP_OK && !(share >= 0 && share < 1))
            sbp_hf_fail(hf, &list->items[i], "%g; a number from 0 on and below 1 is expected", share);
        deviations[i] = share > 0 ? quantile(share) : -HUGE_VAL;
    }
    n->deviations = deviations;
}

static void read_layers(sbp_hf *hf, gemma3n *n) {
    sbp_hf_decoder *d = &n->m.d;
    if (hf->builder.status != SBP_OK)
        return;
    bool *sliding = SBP_NEW_ARRAY(hf->arena, bool, d->layers);
    n->m.layer = SBP_NEW_ARRAY(hf->arena, sbp_hf_gemma_layer, d->layers);
    if (!sbp_hf_layer_types(hf, d->layers, sliding))
        for (int64_t i = 0; i < d->layers; i++)
            sliding[i] = (i + 1) % 5 != 0;
    for (int64_t i = 0; i < d->layers; i++)
        n->m.layer[i] = (sbp_hf_gemma_layer){.kind = sliding[i] ? SBP_HF_GEMMA_SLIDING : SBP_HF_GEMMA_FULL,
                                             .head_dim = d->head_dim,
                                             .kv_heads = d->kv_heads};
    sbp_hf_gemma_share_keys(hf, &n->m, sbp_hf_count(hf, "num_kv_shared_layers", 15));
}

/* ---- mixers --------------------------------------------------------------------------------------- */

static sbp_value mix_attention(const sbp_hf_scope *at, sbp_value x) {
    sbp_value y = sbp_hf_gemma_mix_attention(at, x);
    return sbp_hf_gemma_norm(at, "attn_out_norm", y, sbp_hf_enter(at, "post_attention_layernorm"),
                             at->d->hidden);
}

static sbp_value mix_laurel(const sbp_hf_scope *at, sbp_value x) {
    sbp_hf *hf = at->hf;
    const gemma3n *n = at->d->own;
    sbp_value y = sbp_hf_map(at, NULL, x, "linear_left", n->rank, at->d->hidden, false);
    y = sbp_hf_map(at, NULL, y, "linear_right", at->d->hidden, n->rank, false);
    y = sbp_hf_gemma_norm(at, NULL, y, sbp_hf_path(hf, "%s.post_laurel_norm", at->module), at->d->hidden);
    return sbp_hf_add(hf, "laurel", x, y);
}

/* What a gate is above the mean of its row by more than some deviations; 0 below. */
static sbp_value open_gates(const sbp_hf_scope *at, sbp_value gate, int64_t inner, double deviations) {
    sbp_builder *b = &at->hf->builder;
    sbp_dtype wide = sbp_rule_wide(at->hf->compute);
    sbp_value zero = sbp_build_const(b, wide, 0),
              share = sbp_build_const(b, wide, sbp_round_to(wide, 1 / (double)inner));
    gate = sbp_build_cast(b, gate, wide);
    sbp_value mean = sbp_build2(b, SBP_OP_mul, sbp_build1(b, SBP_OP_row_sum, gate), share);
    sbp_value away = sbp_build2(b, SBP_OP_sub, gate, mean);
    sbp_value square = sbp_hf_mean_square(at->hf, away);
    sbp_value edge = sbp_build2(b, SBP_OP_mul, sbp_build1(b, SBP_OP_sqrt, square),
                                sbp_build_const(b, wide, sbp_round_to(wide, deviations)));
    away = sbp_build2(b, SBP_OP_sub, away, edge);
    away = sbp_build3(b, SBP_OP_select, sbp_build2(b, SBP_OP_lt, zero, away), away, zero);
    return sbp_build_cast(b, away, at->hf->compute);
}

static sbp_value mix_mlp(const sbp_hf_scope *at, sbp_value x) {
    const gemma3n *n = at->d->own;
    double deviations = n->deviations[at->number];
    int64_t inner = at->layer->inner > 0 ? at->layer->inner : at->d->inner;
    if (deviations == -HUGE_VAL)
        return sbp_hf_mix_mlp(at, x);
    sbp_value gate = sbp_hf_map(at, "gate", x, "gate_proj", inner, at->d->hidden, false);
    gate = open_gates(at, gate, inner, deviations);
    sbp_value up = sbp_hf_map(at, "up", x, "up_proj", inner, at->d->hidden, false);
    sbp_value y = sbp_hf_gate(at->hf, at->d->activation, "act", gate, up);
    return sbp_hf_map(at, "mlp_proj", y, "down_proj", at->d->hidden, inner, false);
}

void sbp_hf_gemma3n(sbp_hf *hf) {
    gemma3n n = {.m.d = sbp_hf_decoder_read(hf, &(sbp_hf_defaults){.vocab = 262400,
                                                                   .hidden = 2048,
                                                                   .inner = 16384,
                                                                   .inner_listed = true,
                                                                   .layers = 35,
                                                                   .heads = 8,
                                                                   .kv_heads = 2,
                                                                   .head_dim = 256,
                                                                   .max_positions = 32768,
                                                                   .tied = true,
                                                                   .activation_key = "hidden_activation",
                                                                   .activation = "gelu_pytorch_tanh"})};
    sbp_hf_gemma *m = &n.m;
    const sbp_hf_branch attention = {.name = "attn",
                                     .norm_in = "input_layernorm",
                                     .scale = pow(2, -0.5),
                                     .mixer = {{mix_attention, "self_attn", 1, 1},
                                               {mix_laurel, "laurel", 1, 1}}},
                        mlp = {.name = "mlp",
                               .norm_in = "pre_feedforward_layernorm",
                               .norm_out = "post_feedforward_layernorm",
                               .mixer = {{mix_mlp, "mlp", 1, 1}}};
    hf->within_multimodal = true; /* Gemma3nForConditionalGeneration */
    m->d.norm.style = SBP_HF_RMS_NORM_WIDE;
    m->d.qkv_bias = sbp_hf_bool(hf, "attention_bias", false);
    m->d.final_softcap = sbp_hf_double(hf, "final_logit_softcapping", 30);
    m->d.embed = sbp_hf_altup_embed;
    m->d.open_layer = sbp_hf_altup_predict;
    m->d.finish_layer = sbp_hf_altup_correct;
    m->d.close = sbp_hf_altup_close;
    m->d.own = &n;
    m->window = sbp_hf_size(hf, "sliding_window", 512);
    m->per_layer = sbp_hf_size(hf, "hidden_size_per_layer_input", 256);
    m->per_layer_vocab = sbp_hf_size(hf, "vocab_size_per_layer_input", 262144);
    m->others_read_first = true;
    m->altup.streams = sbp_hf_size(hf, "altup_num_inputs", 4);
    n.rank = sbp_hf_size(hf, "laurel_rank", 64);
    m->altup.scaled = sbp_hf_bool(hf, "altup_correct_scale", true);
    sbp_hf_field(hf, "altup_coef_clip"); /* of weights in training, which never are that large */
    if (sbp_hf_count(hf, "altup_active_idx", 0) != 0)
        sbp_hf_fail(hf, sbp_hf_field(hf, "altup_active_idx"), "0 is expected: layers read the first stream");
    read_sparsity(hf, &n);
    read_layers(hf, &n);
    sbp_hf_two_ropes(hf, &m->d, sbp_hf_double(hf, "rope_theta", 1e6),
                     sbp_hf_double(hf, "rope_local_base_freq", 1e4));
    for (int64_t i = 0; i < m->d.layers && hf->builder.status == SBP_OK; i++) {
        m->d.layer[i].branch[0] = &attention;
        m->d.layer[i].branch[1] = &mlp;
    }
    sbp_hf_decoder_build(hf, &m->d);
}
