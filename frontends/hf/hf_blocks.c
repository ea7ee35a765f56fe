/* hf_blocks.c: the pieces of graph that the layers of several families are made of: projections, norms,
 * activations, attention. Rotation: hf_rope.c. */
#include "frontends/hf/hf.h"

#include <string.h>

#include "ir/graph/op.h"
#include "ir/program/program.h"

/* ---- projections ---------------------------------------------------------------------------------- */

static sbp_value build_linear(sbp_hf *hf, const char *name, sbp_value x, sbp_value w, sbp_value bias) {
    sbp_value operands[] = {sbp_hf_operand(hf, x), w, bias};
    return sbp_build(&hf->builder, SBP_OP_linear, name, operands, 3, NULL, 0, NULL);
}

sbp_value sbp_hf_linear(sbp_hf *hf, const char *name, sbp_value x, const char *module, int64_t out,
                        int64_t in, bool bias) {
    sbp_value w = sbp_hf_matrix(hf, sbp_hf_path(hf, "%s.weight", module), out, in), c = SBP_NO_VALUE;
    if (bias)
        c = sbp_hf_vector(hf, sbp_hf_path(hf, "%s.bias", module), SBP_INIT_ZEROS, out);
    return build_linear(hf, name, x, w, c);
}

sbp_value sbp_hf_linear_part(sbp_hf *hf, const char *name, sbp_value x, const char *module, const char *part,
                             int64_t out, int64_t in, int64_t start, int64_t length, bool bias) {
    int64_t dims[] = {out, in};
    sbp_value w = sbp_hf_part(hf, sbp_hf_path(hf, "%s.%s.weight", module, part),
                              sbp_hf_path(hf, "%s.weight", module), SBP_INIT_NORMAL, 2, dims, 0, start,
                              length),
              c = SBP_NO_VALUE;
    if (bias)
        c = sbp_hf_part(hf, sbp_hf_path(hf, "%s.%s.bias", module, part), sbp_hf_path(hf, "%s.bias", module),
                        SBP_INIT_ZEROS, 1, dims, 0, start, length);
    return build_linear(hf, name, x, w, c);
}

sbp_value sbp_hf_linear_heads(sbp_hf *hf, const char *name, sbp_value x, const char *module, const char *part,
                              int64_t out, int64_t in, int64_t heads, int64_t start, int64_t length) {
    sbp_value w = sbp_hf_part_of_heads(hf, sbp_hf_path(hf, "%s.%s.weight", module, part),
                                       sbp_hf_path(hf, "%s.weight", module), out, in, heads, start, length);
    return build_linear(hf, name, x, w, SBP_NO_VALUE);
}

/* ---- inside a row ---------------------------------------------------------------------------------- */

sbp_value sbp_hf_normalize(sbp_hf *hf, const sbp_hf_norm *norm, const char *name, sbp_value x,
                           const char *module, int64_t n) {
    bool plus_one = norm->style == SBP_HF_RMS_NORM_PLUS_ONE;
    sbp_value w = sbp_hf_row_vector(hf, sbp_hf_path(hf, "%s.weight", module),
                                    plus_one ? SBP_INIT_ZEROS : SBP_INIT_ONES, n);
    if (norm->style == SBP_HF_LAYER_NORM || norm->style == SBP_HF_LAYER_NORM_NO_BIAS) {
        sbp_value bias = SBP_NO_VALUE;
        if (norm->style == SBP_HF_LAYER_NORM)
            bias = sbp_hf_row_vector(hf, sbp_hf_path(hf, "%s.bias", module), SBP_INIT_ZEROS, n);
        return sbp_build(&hf->builder, SBP_OP_layer_norm, name, (sbp_value[]){x, w, bias}, 3,
                         (sbp_attr[]){sbp_attr_double("eps", norm->eps)}, 1, NULL);
    }
    const char *cast = norm->style == SBP_HF_RMS_NORM ? "before" : "after";
    return sbp_build(&hf->builder, SBP_OP_rms_norm, name, (sbp_value[]){x, w}, 2,
                     (sbp_attr[]){sbp_attr_double("eps", norm->eps),
                                  sbp_attr_double("offset", plus_one ? 1 : 0), sbp_attr_symbol("cast", cast)},
                     3, NULL);
}

sbp_value sbp_hf_mean_square(sbp_hf *hf, sbp_value x) {
    sbp_builder *b = &hf->builder;
    if (b->status != SBP_OK)
        return SBP_NO_VALUE;
    const sbp_type *type = sbp_build_type(b, x);
    sbp_dtype wide = sbp_rule_wide(hf->compute);
    double part = 1 / (double)type->dim[type->rank - 1].n;
    x = sbp_build_cast(b, x, wide);
    sbp_value sum = sbp_build1(b, SBP_OP_row_sum, sbp_build2(b, SBP_OP_mul, x, x));
    return sbp_build2(b, SBP_OP_mul, sum, sbp_build_const(b, wide, sbp_round_to(wide, part)));
}

sbp_value sbp_hf_rms(sbp_hf *hf, const char *name, sbp_value x, double eps) {
    sbp_builder *b = &hf->builder;
    if (b->status != SBP_OK)
        return SBP_NO_VALUE;
    sbp_dtype narrow = sbp_build_type(b, x)->dtype, wide = sbp_rule_wide(hf->compute);
    x = sbp_build_cast(b, x, wide);
    sbp_value mean = sbp_hf_mean_square(hf, x);
    mean = sbp_build2(b, SBP_OP_add, mean, sbp_build_const(b, wide, sbp_round_to(wide, eps)));
    x = sbp_build_cast(b, sbp_build2(b, SBP_OP_mul, x, sbp_build1(b, SBP_OP_rsqrt, mean)), narrow);
    if (name)
        sbp_build_name(b, x, name);
    return x;
}

/* The op, and its kind of gelu. */
typedef struct activation {
    const char *name;
    sbp_opcode alone, gated;
    const char *approximate; /* NULL: no gelu */
} activation;

static const activation *find_activation(sbp_hf *hf, const char *name) {
    static const activation known[] = {
        {"silu", SBP_OP_silu, SBP_OP_swiglu, NULL},
        {"swish", SBP_OP_silu, SBP_OP_swiglu, NULL},
        {"gelu", SBP_OP_gelu, SBP_OP_geglu, "none"},
        {"gelu_pytorch_tanh", SBP_OP_gelu, SBP_OP_geglu, "tanh"},
        {"gelu_new", SBP_OP_gelu, SBP_OP_geglu, "tanh"},
        {"gelu_fast", SBP_OP_gelu, SBP_OP_geglu, "fast"},
    };
    for (int32_t i = 0; i < SBP_COUNT(known); i++)
        if (strcmp(name, known[i].name) == 0)
            return &known[i];
    sbp_hf_fail(hf, NULL,
                "the activation '%s' is not supported%s; supported: silu, gelu, gelu_pytorch_tanh, gelu_new, "
                "gelu_fast",
                name, strcmp(name, "relu2") == 0 ? " between a gate and what it opens" : "");
    return NULL;
}

static sbp_value build_activation(sbp_hf *hf, const activation *a, sbp_opcode code, const char *name,
                                  const sbp_value *operands, int32_t count) {
    return sbp_build(&hf->builder, code, name, operands, count,
                     (sbp_attr[]){sbp_attr_symbol("approximate", a->approximate ? a->approximate : "")},
                     a->approximate ? 1 : 0, NULL);
}

/* The square of what is above 0, in the type of x. */
static sbp_value build_relu2(sbp_hf *hf, const char *name, sbp_value x) {
    sbp_builder *b = &hf->builder;
    if (b->status != SBP_OK)
        return SBP_NO_VALUE;
    sbp_value zero = sbp_build_const(b, sbp_build_type(b, x)->dtype, 0);
    x = sbp_build3(b, SBP_OP_select, sbp_build2(b, SBP_OP_lt, zero, x), x, zero);
    x = sbp_build2(b, SBP_OP_mul, x, x);
    sbp_build_name(b, x, name);
    return x;
}

sbp_value sbp_hf_activate(sbp_hf *hf, const char *kind, const char *name, sbp_value x) {
    if (strcmp(kind, "relu2") == 0)
        return build_relu2(hf, name, x);
    const activation *a = find_activation(hf, kind);
    return a ? build_activation(hf, a, a->alone, name, &x, 1) : SBP_NO_VALUE;
}

sbp_value sbp_hf_gate(sbp_hf *hf, const char *kind, const char *name, sbp_value gate, sbp_value up) {
    const activation *a = find_activation(hf, kind);
    return a ? build_activation(hf, a, a->gated, name, (sbp_value[]){gate, up}, 2) : SBP_NO_VALUE;
}

sbp_value sbp_hf_scale(sbp_hf *hf, const char *name, sbp_value x, double scale) {
    sbp_builder *b = &hf->builder;
    sbp_dtype wide = hf->compute == SBP_F64 ? SBP_F64 : SBP_F32, type = sbp_build_type(b, x)->dtype;
    if (scale == 1 || b->status != SBP_OK)
        return x;
    sbp_value y = sbp_build_cast(b, x, wide);
    y = sbp_build2(b, SBP_OP_mul, y, sbp_build_const(b, wide, sbp_round_to(wide, scale)));
    y = sbp_build_cast(b, y, type);
    sbp_build_name(b, y, name);
    return y;
}

/* ---- the residual stream ---------------------------------------------------------------------------- */

sbp_value sbp_hf_embed(sbp_hf *hf, const char *name, sbp_value table, sbp_column_id column) {
    sbp_value index = sbp_hf_row(hf, column);
    sbp_value x = sbp_build2(&hf->builder, SBP_OP_gather, table, index);
    x = sbp_build_cast(&hf->builder, x, hf->residual);
    if (name)
        sbp_build_name(&hf->builder, x, name);
    return x;
}

sbp_value sbp_hf_add(sbp_hf *hf, const char *name, sbp_value x, sbp_value y) {
    x = sbp_build_cast(&hf->builder, x, hf->residual);
    y = sbp_build_cast(&hf->builder, y, hf->residual);
    sbp_value sum = sbp_build2(&hf->builder, SBP_OP_add, x, y);
    sbp_build_name(&hf->builder, sum, name);
    return sum;
}

/* ---- heads ------------------------------------------------------------------------------------------ */

sbp_value sbp_hf_split_heads(sbp_hf *hf, sbp_value x, int64_t heads, int64_t d) {
    return sbp_build_reshape(&hf->builder, x, (int64_t[]){heads, d}, 2);
}

sbp_value sbp_hf_join_heads(sbp_hf *hf, sbp_value x) {
    if (hf->builder.status != SBP_OK)
        return SBP_NO_VALUE;
    return sbp_build_reshape(&hf->builder, x,
                             (int64_t[]){sbp_type_row_elems(sbp_build_type(&hf->builder, x))}, 1);
}

sbp_value sbp_hf_every_other(sbp_builder *b, sbp_value x, int64_t heads, int64_t n, int64_t start) {
    x = sbp_build_reshape(b, x, (int64_t[]){heads, n, 2}, 3);
    return sbp_build_reshape(b, sbp_build_slice(b, x, start, 1), (int64_t[]){heads, n}, 2);
}

/* Rows seen: first, shared_end, own; where documents are in parts, those of the row's part. */
static void build_seen(sbp_hf *hf, int64_t part, sbp_value *seen) {
    sbp_builder *b = &hf->builder;
    seen[0] = part == 0 ? sbp_hf_row(hf, SBP_DATA_FIRST)
                        : sbp_build_row(b, sbp_hf_path(hf, SBP_FIRST_IN_PREFIX "%lld", (long long)part),
                                        SBP_I32, SBP_T);
    seen[1] = sbp_hf_row(hf, SBP_DATA_SHARED_END);
    seen[2] = part == 0 ? sbp_hf_row(hf, SBP_DATA_OWN)
                        : sbp_build_row(b, sbp_hf_path(hf, SBP_OWN_IN_PREFIX "%lld", (long long)part),
                                        SBP_I32, SBP_T);
}

static sbp_value build_attention(sbp_hf *hf, const sbp_value qkv[3], sbp_value sink, double scale,
                                 int64_t window, int64_t part) {
    sbp_value seen[3], operands[7], out[2];
    build_seen(hf, part, seen);
    for (int32_t i = 0; i < 3; i++)
        operands[i] = sbp_hf_operand(hf, qkv[i]);
    operands[3] = seen[0];
    operands[4] = seen[1];
    operands[5] = seen[2];
    operands[6] = sink;
    bool has_sink = sink != SBP_NO_VALUE;
    sbp_build(&hf->builder, has_sink ? SBP_OP_attention_sink : SBP_OP_attention, "attn_out", operands,
              has_sink ? 7 : 6, (sbp_attr[]){sbp_attr_double("scale", scale), sbp_attr_int("window", window)},
              2, out);
    sbp_build_name(&hf->builder, out[1], "lse");
    return out[0];
}

sbp_value sbp_hf_attention(sbp_hf *hf, sbp_value q, sbp_value k, sbp_value v, double scale, int64_t window) {
    return build_attention(hf, (sbp_value[]){q, k, v}, SBP_NO_VALUE, scale, window, 0);
}

sbp_value sbp_hf_attention_parts(sbp_hf *hf, sbp_value q, sbp_value k, sbp_value v, double scale,
                                 int64_t part) {
    return build_attention(hf, (sbp_value[]){q, k, v}, SBP_NO_VALUE, scale, 0, part);
}

sbp_value sbp_hf_attention_sink(sbp_hf *hf, sbp_value q, sbp_value k, sbp_value v, sbp_value sink,
                                double scale, int64_t window) {
    return build_attention(hf, (sbp_value[]){q, k, v}, sink, scale, window, 0);
}

/* ---- convolution ------------------------------------------------------------------------------------ */

sbp_value sbp_hf_conv_rows(sbp_hf *hf, const char *name, sbp_value x, const char *module, int64_t channels,
                           int64_t taps, bool bias) {
    if (taps < 2 || taps > SBP_CONV_MOST_TAPS)
        sbp_hf_fail(hf, NULL, "%s is a convolution over %lld rows; 2 to %d are supported", module,
                    (long long)taps, SBP_CONV_MOST_TAPS);
    sbp_value w = sbp_hf_param(hf, sbp_hf_path(hf, "%s.weight", module), SBP_INIT_NORMAL, 3,
                               (int64_t[]){channels, 1, taps}),
              c = SBP_NO_VALUE, first = sbp_hf_row(hf, SBP_DATA_FIRST);
    if (bias)
        c = sbp_hf_vector(hf, sbp_hf_path(hf, "%s.bias", module), SBP_INIT_ZEROS, channels);
    sbp_value operands[] = {sbp_hf_operand(hf, x), w, c, first};
    return sbp_build(&hf->builder, SBP_OP_conv_rows, name, operands, SBP_COUNT(operands), NULL, 0, NULL);
}
