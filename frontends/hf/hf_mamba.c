/* hf_mamba.c: Mamba-2 as a mixer of rows: a projection, a short convolution, a state per head, a gated norm.
 * Formulas: transformers, modeling_bamba.py (BambaMixer, BambaRMSNormGated) and modeling_zamba2.py;
 * parameters are those of that module. */
#include <math.h>
#include <string.h>

#include "frontends/hf/hf.h"
#include "ir/graph/op.h"

static sbp_dtype wide_type(const sbp_hf *hf) {
    return sbp_rule_wide(hf->compute);
}

static sbp_value constant(sbp_hf *hf, double x) {
    return sbp_build_const(&hf->builder, wide_type(hf), sbp_round_to(wide_type(hf), x));
}

/* A number per head, in the wide type. */
static sbp_value per_head(sbp_hf *hf, const sbp_hf_mamba *m, const char *module, const char *name,
                          sbp_init init) {
    sbp_value x = sbp_hf_row_vector(hf, sbp_hf_path(hf, "%s.%s", module, name), init, m->heads);
    if (!strstr(name, "bias"))
        sbp_hf_decays(hf, x);
    return sbp_build_cast(&hf->builder, x, wide_type(hf));
}

/* softplus(x + dt_bias) within its limits, with softplus(x) = -log_sigmoid(-x); at a limit it has its
 * gradient. */
static sbp_value build_dt(sbp_hf *hf, const sbp_hf_mamba *m, sbp_value x, const char *module) {
    sbp_builder *b = &hf->builder;
    sbp_value bias = per_head(hf, m, module, "dt_bias", SBP_INIT_ONES);
    x = sbp_build2(b, SBP_OP_add, sbp_build_cast(b, x, wide_type(hf)), bias);
    x = sbp_build1(b, SBP_OP_log_sigmoid, sbp_build1(b, SBP_OP_neg, x));
    x = sbp_build1(b, SBP_OP_neg, x);
    if (m->dt_least > 0) {
        sbp_value limit = constant(hf, m->dt_least);
        x = sbp_build3(b, SBP_OP_select, sbp_build2(b, SBP_OP_lt, x, limit), limit, x);
    }
    if (isfinite(m->dt_most)) {
        sbp_value limit = constant(hf, m->dt_most);
        x = sbp_build3(b, SBP_OP_select, sbp_build2(b, SBP_OP_lt, limit, x), limit, x);
    }
    sbp_build_name(b, x, "dt");
    return x;
}

/* y + D x of each head, in the wide type, [T, heads * head_dim]. D is a number of each row first: what its
 * gradient adds up over the columns of a head is summed there. */
static sbp_value add_skip(sbp_hf *hf, const sbp_hf_mamba *m, sbp_value y, sbp_value x, const char *module) {
    sbp_builder *b = &hf->builder;
    sbp_value d = per_head(hf, m, module, "D", SBP_INIT_ONES);
    if (b->status != SBP_OK)
        return SBP_NO_VALUE;
    const sbp_type rows = {
        .dtype = wide_type(hf), .rank = 2, .dim = {sbp_dim_symbol(SBP_T), sbp_dim_const(m->heads)}};
    d = sbp_build_reshape(b, sbp_build_broadcast(b, d, &rows), (int64_t[]){m->heads, 1}, 2);
    sbp_value skip = sbp_build2(b, SBP_OP_mul, sbp_build_cast(b, x, wide_type(hf)), d);
    y = sbp_build2(b, SBP_OP_add, sbp_build_cast(b, y, wide_type(hf)), skip);
    return sbp_hf_join_heads(hf, y);
}

/* Each group of columns of y by its root mean square, times a weight; y is in the wide type. */
static sbp_value build_norm(sbp_hf *hf, const sbp_hf_mamba *m, sbp_value y, const char *module) {
    sbp_builder *b = &hf->builder;
    int64_t n = m->heads * m->head_dim, each = n / m->groups;
    y = sbp_hf_split_heads(hf, y, m->groups, each);
    sbp_value mean = sbp_build1(b, SBP_OP_row_sum, sbp_build2(b, SBP_OP_mul, y, y));
    mean = sbp_build2(b, SBP_OP_mul, mean, constant(hf, 1 / (double)each));
    mean = sbp_build1(b, SBP_OP_rsqrt, sbp_build2(b, SBP_OP_add, mean, constant(hf, m->eps)));
    y = sbp_build2(b, SBP_OP_mul, y, mean);
    y = sbp_hf_join_heads(hf, y);
    if (!m->norm_wide)
        y = sbp_build_cast(b, y, hf->compute);
    sbp_value w = sbp_hf_row_vector(hf, sbp_hf_path(hf, "%s.norm.weight", module), SBP_INIT_ONES, n);
    return sbp_build2(b, SBP_OP_mul, sbp_build_cast(b, y, wide_type(hf)),
                      sbp_build_cast(b, w, wide_type(hf)));
}

/* The answer y of the states, in the wide type, opened by z; an operand. */
static sbp_value build_gated(sbp_hf *hf, const sbp_hf_mamba *m, sbp_value y, sbp_value z,
                             const char *module) {
    sbp_builder *b = &hf->builder;
    z = sbp_build_cast(b, z, wide_type(hf));
    if (m->gating == SBP_HF_MAMBA_NORM_THEN_GATE)
        y = build_norm(hf, m, y, module);
    y = sbp_hf_gate(hf, "silu", NULL, z, y);
    if (m->gating == SBP_HF_MAMBA_GATE_THEN_NORM)
        y = build_norm(hf, m, y, module);
    y = sbp_hf_operand(hf, y);
    sbp_build_name(b, y, m->gating == SBP_HF_MAMBA_GATE ? "ssd_gated" : "ssd_normed");
    return y;
}

/* What in_proj gives, each segment of columns times its number, which the model class keeps in its type. */
static sbp_value scale_segments(sbp_hf *hf, const sbp_hf_mamba *m, sbp_value x) {
    sbp_builder *b = &hf->builder;
    int64_t inner = m->heads * m->head_dim, shared = m->groups * m->state,
            width[SBP_HF_MAMBA_SEGMENTS] = {inner, inner, shared, shared, m->heads}, all = 0;
    double *column = SBP_NEW_ARRAY(hf->arena, double, 2 * inner + 2 * shared + m->heads);
    for (int s = 0; s < SBP_HF_MAMBA_SEGMENTS; s++)
        for (int64_t i = 0; i < width[s]; i++)
            column[all++] = sbp_round_to(hf->compute, m->multipliers[s]);
    sbp_value scale = sbp_build_vector(b, "ssd_multipliers", wide_type(hf), column, all);
    x = sbp_build2(b, SBP_OP_mul, sbp_build_cast(b, x, wide_type(hf)), scale);
    x = sbp_hf_operand(hf, x);
    sbp_build_name(b, x, "ssd_in_scaled");
    return x;
}

sbp_value sbp_hf_mix_mamba(const sbp_hf_scope *at, sbp_value x) {
    sbp_hf *hf = at->hf;
    sbp_builder *b = &hf->builder;
    const sbp_hf_mamba *m = &at->d->mamba;
    const char *module = at->module;
    int64_t inner = m->heads * m->head_dim, shared = m->groups * m->state, channels = inner + 2 * shared;
    x = sbp_hf_map(at, "ssd_in", x, "in_proj", inner + channels + m->heads, at->d->hidden, m->in_bias);
    if (m->multipliers && b->status == SBP_OK)
        x = scale_segments(hf, m, x);
    sbp_value z = sbp_build_slice(b, x, 0, inner), rows = sbp_build_slice(b, x, inner, channels);
    sbp_value dt = build_dt(hf, m, sbp_build_slice(b, x, inner + channels, m->heads), module);
    rows = sbp_hf_conv_rows(hf, "conv", rows, sbp_hf_path(hf, "%s.conv1d", module), channels, m->taps,
                            m->conv_bias);
    rows = sbp_hf_activate(hf, m->activation, "conv_act", rows);
    sbp_value values = sbp_hf_split_heads(hf, sbp_build_slice(b, rows, 0, inner), m->heads, m->head_dim);
    sbp_build_name(b, values, "ssd_x");
    sbp_value into = sbp_hf_split_heads(hf, sbp_build_slice(b, rows, inner, shared), m->groups, m->state);
    sbp_build_name(b, into, "ssd_b");
    sbp_value out =
        sbp_hf_split_heads(hf, sbp_build_slice(b, rows, inner + shared, shared), m->groups, m->state);
    sbp_build_name(b, out, "ssd_c");
    sbp_value rate = sbp_build1(b, SBP_OP_exp, per_head(hf, m, module, "A_log", SBP_INIT_NORMAL));
    rate = sbp_build1(b, SBP_OP_neg, rate);
    sbp_value decay = sbp_build2(b, SBP_OP_mul, dt, rate), first = sbp_hf_row(hf, SBP_DATA_FIRST);
    sbp_build_name(b, decay, "decay");
    const sbp_attr corrects = sbp_attr_bool("corrects", false);
    sbp_value y = sbp_build(b, SBP_OP_delta_rule, "ssd_out",
                            (sbp_value[]){out, into, values, decay, dt, first}, 6, &corrects, 1, NULL);
    y = add_skip(hf, m, y, values, module);
    y = build_gated(hf, m, y, z, module);
    return sbp_hf_map(at, "ssd_proj", y, "out_proj", at->d->hidden, inner, m->out_bias);
}

/* ---- configuration -------------------------------------------------------------------------------- */

/* One of two limits: a number, infinite ones as json of Python or of transformers has them. */
static double read_limit(sbp_hf *hf, const sbp_json *item) {
    const sbp_json *text = sbp_json_member(item, "__float__");
    if (text && text->kind == SBP_JSON_STRING && strcmp(text->string, "Infinity") == 0)
        return (double)INFINITY;
    if (item->kind == SBP_JSON_REAL)
        return item->real;
    if (item->kind == SBP_JSON_INT)
        return (double)item->integer;
    sbp_hf_fail(hf, item, "a number is expected");
    return 0;
}

static void read_limits(sbp_hf *hf, sbp_hf_mamba *m) {
    const sbp_json *field = sbp_hf_field(hf, "time_step_limit");
    m->dt_least = 0;
    m->dt_most = (double)INFINITY;
    if (!field)
        return;
    if (field->kind != SBP_JSON_ARRAY || field->count != 2) {
        sbp_hf_fail(hf, field, "an array of two numbers is expected");
        return;
    }
    m->dt_least = read_limit(hf, &field->items[0]);
    m->dt_most = read_limit(hf, &field->items[1]);
    if (!(m->dt_least <= m->dt_most))
        sbp_hf_fail(hf, field, "the lower limit, %g, is above the upper one, %g", m->dt_least, m->dt_most);
}

/* mamba_d_head: a number, or "auto". */
static int64_t read_head_dim(sbp_hf *hf, int64_t inner, int64_t heads) {
    const sbp_json *field = sbp_hf_field(hf, "mamba_d_head");
    int64_t fallback = inner / heads > 0 ? inner / heads : 1;
    if (field && field->kind == SBP_JSON_STRING && strcmp(field->string, "auto") == 0)
        return fallback;
    return sbp_hf_size(hf, "mamba_d_head", fallback);
}

sbp_hf_mamba sbp_hf_mamba_read(sbp_hf *hf, const sbp_hf_decoder *d, int64_t inner, const char *inner_text) {
    int64_t heads = sbp_hf_size(hf, "mamba_n_heads", 128);
    sbp_hf_mamba m = {.heads = heads,
                      .head_dim = read_head_dim(hf, inner, heads),
                      .groups = sbp_hf_size(hf, "mamba_n_groups", 1),
                      .state = sbp_hf_size(hf, "mamba_d_state", 256),
                      .taps = sbp_hf_size(hf, "mamba_d_conv", 4),
                      .activation = d->activation,
                      .conv_bias = sbp_hf_bool(hf, "mamba_conv_bias", true),
                      .in_bias = sbp_hf_bool(hf, "mamba_proj_bias", false),
                      .eps = d->norm.eps};
    (void)sbp_hf_field(hf, "mamba_chunk_size"); /* how many rows a program takes at a time */
    m.out_bias = m.in_bias;
    read_limits(hf, &m);
    sbp_hf_check_multiple(hf, "mamba_n_heads", heads, "mamba_n_groups", m.groups);
    if (hf->builder.status == SBP_OK && heads * m.head_dim != inner)
        sbp_hf_fail(hf, sbp_hf_field(hf, "mamba_d_head"), "%lld heads of %lld are not %s, %lld",
                    (long long)heads, (long long)m.head_dim, inner_text, (long long)inner);
    return m;
}
