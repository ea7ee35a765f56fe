/* norm.c: normalisation of a row (or of each head of a row) over the last axis, n elements, computed in the
 * wide type. w (and bias) have the type of x, or the wide one beside a narrower x.
 *
 *   rms_norm    y = x / sqrt(mean(x^2) + eps) * (offset + w). cast "before": x / rms is rounded to the type
 *               of x, then scaled; y has the type of w (llama, mistral, qwen). "after": rounded once, to the
 *               type of x; offset 1 (gemma)
 *   layer_norm  y = (x - mean(x)) / sqrt(var(x) + eps) * w + bias, in the type of x; var: biased
 */
#include "ir/graph/rules.h"

#include <math.h>

static sbp_status check_norm(sbp_shape *shape) {
    const sbp_type *x = &shape->in[0], *w = &shape->in[1];
    SBP_SHAPE_REQUIRE(shape, 1,
                      x->rank >= 1 && x->dim[x->rank - 1].symbol == SBP_ONE && w->rank == 1 &&
                          sbp_dim_equal(w->dim[0], x->dim[x->rank - 1]),
                      "x is %s, w is %s", sbp_shape_text(x), sbp_shape_text(w));
    SBP_SHAPE_REQUIRE(shape, 2,
                      sbp_dtype_is_float(x->dtype) &&
                          (w->dtype == x->dtype || w->dtype == sbp_rule_wide(x->dtype)),
                      "x is %s, w is %s", sbp_shape_text(x), sbp_shape_text(w));
    double eps = sbp_op_double(shape->op, "eps");
    SBP_SHAPE_REQUIRE(shape, 3, eps >= 0 && isfinite(eps), "eps is %g", eps);
    shape->out[0] = *x;
    return SBP_OK;
}

static bool scales_rounded(const sbp_op *op) {
    return sbp_op_symbol_is(op, "cast", "before");
}

sbp_status sbp_shape_rms_norm(sbp_shape *shape) {
    SBP_SHAPE_REQUIRE(shape, 4,
                      sbp_op_symbol_is(shape->op, "cast", "before") ||
                          sbp_op_symbol_is(shape->op, "cast", "after"),
                      "cast '%s'; before or after expected", sbp_op_attr(shape->op, "cast")->symbol);
    SBP_TRY(check_norm(shape));
    if (scales_rounded(shape->op))
        shape->out[0].dtype = shape->in[1].dtype;
    return SBP_OK;
}

SBP_RULE_SEQ_ROW(rms_norm)

/* mean over the last axis, kept as size 1 */
static sbp_value build_mean(sbp_builder *b, sbp_value x) {
    sbp_type t = *sbp_build_type(b, x);
    sbp_value sum = sbp_build1(b, SBP_OP_row_sum, x);
    return sbp_build2(b, SBP_OP_mul, sum,
                      sbp_build_const(b, t.dtype, 1 / (double)(t.rank > 0 ? t.dim[t.rank - 1].n : 1)));
}

/* 1 / sqrt(mean(x^2) + eps) */
static sbp_value build_inverse_rms(sbp_builder *b, sbp_value x, double eps) {
    sbp_value mean = build_mean(b, sbp_build2(b, SBP_OP_mul, x, x));
    sbp_value shifted = sbp_build2(b, SBP_OP_add, mean, sbp_build_const(b, sbp_build_type(b, x)->dtype, eps));
    return sbp_build1(b, SBP_OP_rsqrt, shifted);
}

sbp_status sbp_expand_rms_norm(sbp_expand *e) {
    sbp_builder *b = e->builder;
    sbp_dtype narrow = sbp_build_type(b, e->in[0])->dtype, wide = sbp_rule_wide(narrow), result = narrow;
    double offset = sbp_op_double(&e->op, "offset");
    sbp_value x = sbp_build_cast(b, e->in[0], wide);
    sbp_value n = sbp_build2(b, SBP_OP_mul, x, build_inverse_rms(b, x, sbp_op_double(&e->op, "eps")));
    sbp_value w = sbp_build_cast(b, e->in[1], wide);
    if (offset != 0)
        w = sbp_build2(b, SBP_OP_add, w, sbp_build_const(b, wide, offset));
    if (scales_rounded(&e->op)) {
        n = sbp_build_cast(b, sbp_build_cast(b, n, narrow), wide);
        result = sbp_build_type(b, e->in[1])->dtype;
    }
    e->out[0] = sbp_build_cast(b, sbp_build2(b, SBP_OP_mul, n, w), result);
    return b->status;
}

sbp_status sbp_eval_rms_norm(const sbp_eval *eval) {
    const sbp_tensor *x = eval->in[0], *w = eval->in[1];
    sbp_dtype scaled = scales_rounded(eval->op) ? x->type.dtype : sbp_rule_wide(x->type.dtype);
    int64_t n = w->dim[0];
    for (int64_t i = 0; i < x->elems; i += n) {
        double sum = 0;
        for (int64_t j = 0; j < n; j++)
            sum += x->data[i + j] * x->data[i + j];
        double rms = sqrt(sum / (double)n + sbp_op_double(eval->op, "eps"));
        for (int64_t j = 0; j < n; j++)
            eval->out[0]->data[i + j] = sbp_rule_rounded(eval, scaled, x->data[i + j] / rms) *
                                        (sbp_op_double(eval->op, "offset") + w->data[j]);
    }
    return SBP_OK;
}

bool sbp_examples_rms_norm(int32_t index, sbp_example *out) {
    if (index >= 3)
        return false;
    out->in[0] = sbp_example_float(index == 1 ? "f64[T,3,4]" : "f64[T,6]", -1, 1);
    out->in[1] = sbp_example_float(index == 1 ? "f64[4]" : "f64[6]", 0.5, 1.5);
    out->in_count = 2;
    out->attrs[0] = sbp_attr_double("eps", 1e-3);
    out->attrs[1] = sbp_attr_double("offset", index == 2 ? 1 : 0);
    out->attrs[2] = sbp_attr_symbol("cast", index == 2 ? "after" : "before");
    out->attr_count = 3;
    return true;
}

sbp_status sbp_shape_layer_norm(sbp_shape *shape) {
    SBP_TRY(check_norm(shape));
    if (shape->present[2])
        SBP_SHAPE_REQUIRE(shape, 4, sbp_type_equal(&shape->in[2], &shape->in[1]), "bias is %s, w is %s",
                          sbp_shape_text(&shape->in[2]), sbp_shape_text(&shape->in[1]));
    return SBP_OK;
}

SBP_RULE_SEQ_ROW(layer_norm)

sbp_status sbp_expand_layer_norm(sbp_expand *e) {
    sbp_builder *b = e->builder;
    sbp_dtype narrow = sbp_build_type(b, e->in[0])->dtype, wide = sbp_rule_wide(narrow);
    sbp_value x = sbp_build_cast(b, e->in[0], wide);
    sbp_value centred = sbp_build2(b, SBP_OP_sub, x, build_mean(b, x));
    sbp_value y =
        sbp_build2(b, SBP_OP_mul, centred, build_inverse_rms(b, centred, sbp_op_double(&e->op, "eps")));
    y = sbp_build2(b, SBP_OP_mul, y, sbp_build_cast(b, e->in[1], wide));
    if (e->in[2] != SBP_NO_VALUE)
        y = sbp_build2(b, SBP_OP_add, y, sbp_build_cast(b, e->in[2], wide));
    e->out[0] = sbp_build_cast(b, y, narrow);
    return b->status;
}

sbp_status sbp_eval_layer_norm(const sbp_eval *eval) {
    const sbp_tensor *x = eval->in[0], *w = eval->in[1], *bias = eval->in[2];
    int64_t n = w->dim[0];
    for (int64_t i = 0; i < x->elems; i += n) {
        double mean = 0, var = 0;
        for (int64_t j = 0; j < n; j++)
            mean += x->data[i + j] / (double)n;
        for (int64_t j = 0; j < n; j++)
            var += (x->data[i + j] - mean) * (x->data[i + j] - mean) / (double)n;
        double scale = 1 / sqrt(var + sbp_op_double(eval->op, "eps"));
        for (int64_t j = 0; j < n; j++)
            eval->out[0]->data[i + j] =
                (x->data[i + j] - mean) * scale * w->data[j] + (bias ? bias->data[j] : 0);
    }
    return SBP_OK;
}

bool sbp_examples_layer_norm(int32_t index, sbp_example *out) {
    if (index >= 2)
        return false;
    out->in[0] = sbp_example_float(index == 1 ? "f64[T,3,4]" : "f64[T,6]", -1, 1);
    out->in[1] = sbp_example_float(index == 1 ? "f64[4]" : "f64[6]", 0.5, 1.5);
    out->in[2] = sbp_example_float(index == 1 ? "f64[4]" : "f64[6]", -1, 1);
    out->in_count = index == 0 ? 3 : 2;
    out->attrs[0] = sbp_attr_double("eps", 1e-3);
    out->attr_count = 1;
    return true;
}
