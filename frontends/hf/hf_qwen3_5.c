/* hf_qwen3_5.c: Qwen3.5 (3.6) and Qwen3-Next: most layers mix rows by the gated delta rule, every fourth by
 * attention whose output is gated; the larger ones have experts, one of which all rows share. Formulas and
 * names: transformers, modeling_qwen3_5.py, modeling_qwen3_5_moe.py and modeling_qwen3_next.py; fields and
 * their defaults: configuration_*.py beside them. */
#include <math.h>

#include "frontends/hf/hf.h"
#include "ir/graph/op.h"

typedef struct qwen {
    sbp_hf_delta delta;
    int64_t taps; /* of the convolution before it */
    bool grouped; /* in_proj_qkvz and in_proj_ba, with the rows of a key head together */
} qwen;

/* ---- the delta rule --------------------------------------------------------------------------------- */

/* What the projections of a layer with the delta rule give: rows of the convolution, q | k | v with the heads
 * of each together, and a z per column of v, a b and an a per value head. */
typedef struct projected {
    sbp_value qkv, z, b, a;
} projected;

/* From tensors where the rows of each key head stand together: its q, k, v and z, and its b and a. */
static projected project_grouped(const sbp_hf_scope *at, sbp_value x) {
    sbp_hf *hf = at->hf;
    sbp_builder *b = &hf->builder;
    const qwen *m = at->d->own;
    int64_t each = m->delta.value_heads / m->delta.key_heads, values = each * m->delta.dv,
            all = m->delta.key_heads * 2 * (m->delta.dk + values);
    const char *big = sbp_hf_path(hf, "%s.in_proj_qkvz", at->module),
               *small = sbp_hf_path(hf, "%s.in_proj_ba", at->module);
    static const char *const names[] = {"q", "k", "v", "z", "b", "a"};
    sbp_value part[6];
    for (int32_t i = 0, start = 0; i < 4; i++) {
        int64_t length = i < 2 ? m->delta.dk : values;
        part[i] = sbp_hf_linear_heads(hf, NULL, x, big, names[i], all, at->d->hidden, m->delta.key_heads,
                                      start, length);
        start += (int32_t)length;
    }
    for (int32_t i = 4; i < 6; i++)
        part[i] = sbp_hf_linear_heads(hf, NULL, x, small, names[i], 2 * m->delta.value_heads, at->d->hidden,
                                      m->delta.key_heads, (i - 4) * each, each);
    projected p = {.z = part[3], .b = part[4], .a = part[5]};
    p.qkv = sbp_build2(b, SBP_OP_concat, part[0], part[1]);
    p.qkv = sbp_build2(b, SBP_OP_concat, p.qkv, part[2]);
    sbp_build_name(b, p.qkv, "delta_in");
    sbp_build_name(b, p.z, "delta_z");
    return p;
}

static projected project(const sbp_hf_scope *at, sbp_value x) {
    const qwen *m = at->d->own;
    projected p;
    if (m->grouped)
        return project_grouped(at, x);
    int64_t keys = m->delta.key_heads * m->delta.dk, values = m->delta.value_heads * m->delta.dv;
    p.qkv = sbp_hf_map(at, "delta_in", x, "in_proj_qkv", 2 * keys + values, at->d->hidden, false);
    p.z = sbp_hf_map(at, "delta_z", x, "in_proj_z", values, at->d->hidden, false);
    p.b = sbp_hf_map(at, "delta_b", x, "in_proj_b", m->delta.value_heads, at->d->hidden, false);
    p.a = sbp_hf_map(at, "delta_a", x, "in_proj_a", m->delta.value_heads, at->d->hidden, false);
    return p;
}

static sbp_value mix_delta(const sbp_hf_scope *at, sbp_value x) {
    const qwen *m = at->d->own;
    sbp_builder *b = &at->hf->builder;
    int64_t keys = m->delta.key_heads * m->delta.dk, values = m->delta.value_heads * m->delta.dv;
    projected p = project(at, x);
    x = sbp_hf_conv_rows(at->hf, "conv", p.qkv, sbp_hf_path(at->hf, "%s.conv1d", at->module),
                         2 * keys + values, m->taps, false);
    x = sbp_hf_activate(at->hf, at->d->activation, "conv_act", x);
    sbp_hf_delta_rows rows = {.z = p.z, .b = p.b, .a = p.a};
    rows.q = sbp_build_slice(b, x, 0, keys);
    rows.k = sbp_build_slice(b, x, keys, keys);
    rows.v = sbp_build_slice(b, x, 2 * keys, values);
    x = sbp_hf_delta_build(at, &m->delta, &rows, "norm");
    return sbp_hf_map(at, "delta_proj", x, "out_proj", at->d->hidden, values, false);
}

/* ---- configuration -------------------------------------------------------------------------------- */

static const sbp_hf_branch delta = {.name = "delta",
                                    .in_name = "delta_in_norm",
                                    .norm_in = "input_layernorm",
                                    .mixer = {{mix_delta, "linear_attn", 1, 1}}};

/* layer_types, or every full_attention_interval-th layer attends. */
static void read_layers(sbp_hf *hf, sbp_hf_decoder *d) {
    int64_t interval = sbp_hf_size(hf, "full_attention_interval", 4);
    if (hf->builder.status != SBP_OK)
        return;
    bool *attends = SBP_NEW_ARRAY(hf->arena, bool, d->layers);
    if (!sbp_hf_layer_words(hf, "layer_types", d->layers, "linear_attention", "full_attention", attends))
        for (int64_t i = 0; i < d->layers; i++)
            attends[i] = (i + 1) % interval == 0;
    for (int64_t i = 0; i < d->layers; i++)
        d->layer[i].branch[0] = attends[i] ? NULL : &delta;
}

/* spread: experts where layers have them; NULL: no layer has any. */
static void build(sbp_hf *hf, bool grouped, const sbp_hf_defaults *defaults,
                  const sbp_hf_experts_defaults *spread) {
    sbp_hf_decoder d = sbp_hf_decoder_read(hf, defaults);
    qwen m = {.delta = {.key_heads = sbp_hf_size(hf, "linear_num_key_heads", 16),
                        .value_heads = sbp_hf_size(hf, "linear_num_value_heads", 32),
                        .dk = sbp_hf_size(hf, "linear_key_head_dim", 128),
                        .dv = sbp_hf_size(hf, "linear_value_head_dim", 128),
                        .beta_scale = 1,
                        .eps = d.norm.eps},
              .taps = sbp_hf_size(hf, "linear_conv_kernel_dim", 4),
              .grouped = grouped};
    sbp_hf_check_multiple(hf, "linear_num_value_heads", m.delta.value_heads, "linear_num_key_heads",
                          m.delta.key_heads);
    if (!sbp_hf_bool(hf, "attn_output_gate", true))
        sbp_hf_fail(hf, sbp_hf_field(hf, "attn_output_gate"), "attention without a gate is not supported");
    d.own = &m;
    d.norm.style = SBP_HF_RMS_NORM_PLUS_ONE;
    d.qk_norm = SBP_HF_QK_NORM_HEAD;
    d.output_gate = true;
    d.qkv_bias = d.o_bias = sbp_hf_bool(hf, "attention_bias", false);
    d.names.maps = true;
    if (spread)
        d.experts = sbp_hf_experts_read(hf, d.layers, spread);
    read_layers(hf, &d);
    int64_t turning = sbp_hf_rotary_dim(hf, d.head_dim, "partial_rotary_factor", 0.25);
    d.rope[0] = sbp_hf_rope_read(hf, &(sbp_hf_rope_shape){.head_dim = d.head_dim,
                                                          .rotary_dim = turning,
                                                          .theta = 1e4,
                                                          .max_positions = d.max_positions,
                                                          .three_axes = !grouped});
    sbp_hf_decoder_build(hf, &d);
}

void sbp_hf_qwen3_5(sbp_hf *hf) {
    static const sbp_hf_defaults t = {.vocab = 248320,
                                      .hidden = 4096,
                                      .inner = 12288,
                                      .layers = 32,
                                      .heads = 16,
                                      .kv_heads = 4,
                                      .max_positions = 32768,
                                      .head_dim = 256};
    (void)sbp_hf_field(hf, "mlp_only_layers"); /* none has experts */
    hf->within_multimodal = true;              /* files that this text_config may stand beside */
    build(hf, false, &t, NULL);
}

void sbp_hf_qwen3_5_moe(sbp_hf *hf) {
    const sbp_hf_experts_defaults spread = {.count_key = "num_experts",
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
    const sbp_hf_defaults t = {.vocab = 248320,
                               .hidden = 2048,
                               .inner = 1, /* no layer has an MLP */
                               .layers = 40,
                               .heads = 16,
                               .kv_heads = 2,
                               .max_positions = 32768,
                               .head_dim = 256};
    (void)sbp_hf_field(hf, "mlp_only_layers");
    hf->within_multimodal = true;
    build(hf, false, &t, &spread);
}

void sbp_hf_qwen3_next(sbp_hf *hf) {
    static const sbp_hf_experts_defaults spread = {.count_key = "num_experts",
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
    static const sbp_hf_defaults t = {.vocab = 151936,
                                      .hidden = 2048,
                                      .inner = 5632,
                                      .layers = 48,
                                      .heads = 16,
                                      .kv_heads = 2,
                                      .max_positions = 32768,
                                      .head_dim = 256};
    build(hf, true, &t, &spread);
}
