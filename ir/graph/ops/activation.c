/* activation.c: functions of one element, or of two; computed in the wide type, the result rounded to the
 * type of x.
 *
 *   silu     x sigmoid(x)
 *   gelu     approximate "none": x/2 (1 + erf(x/sqrt 2))
 *            "tanh": x/2 (1 + tanh(c (x + 0.044715 x^3))), c = sqrt(2/pi)
 *            "fast": the same with c = 0.7978845608, ten digits of it (transformers' gelu_fast)
 *   swiglu   silu(gate) up
 *   geglu    gelu(gate) up
 *   softcap  cap tanh(x / cap)
 */
#include "ir/graph/rules.h"

#include <math.h>

static const double sqrt_2_over_pi = 0.79788456080286536, inverse_sqrt_2 = 0.70710678118654752;

static sbp_status same_as_x(sbp_shape *shape, int32_t operands) {
    for (int32_t i = 1; i < operands; i++)
        SBP_SHAPE_REQUIRE(shape, 1, sbp_type_equal(&shape->in[i], &shape->in[0]), "operands are %s and %s",
                          sbp_shape_text(&shape->in[0]), sbp_shape_text(&shape->in[i]));
    SBP_SHAPE_REQUIRE(shape, 2, sbp_dtype_is_float(shape->in[0].dtype), "operand is %s",
                      sbp_shape_text(&shape->in[0]));
    shape->out[0] = shape->in[0];
    return SBP_OK;
}

static sbp_status check_approximate(const sbp_shape *shape) {
    SBP_SHAPE_REQUIRE(shape, 3,
                      sbp_op_symbol_is(shape->op, "approximate", "none") ||
                          sbp_op_symbol_is(shape->op, "approximate", "tanh") ||
                          sbp_op_symbol_is(shape->op, "approximate", "fast"),
                      "approximate '%s'; none, tanh or fast expected",
                      sbp_op_attr(shape->op, "approximate")->symbol);
    return SBP_OK;
}

static sbp_value times(sbp_builder *b, sbp_value x, double factor) {
    return sbp_build2(b, SBP_OP_mul, x, sbp_build_const(b, sbp_build_type(b, x)->dtype, factor));
}

static sbp_value plus(sbp_builder *b, sbp_value x, double term) {
    return sbp_build2(b, SBP_OP_add, x, sbp_build_const(b, sbp_build_type(b, x)->dtype, term));
}

static sbp_value build_silu(sbp_builder *b, sbp_value x) {
    return sbp_build2(b, SBP_OP_mul, x, sbp_build1(b, SBP_OP_sigmoid, x));
}

/* The factor inside tanh of an approximation; 0: the exact function. */
static double tanh_factor(const sbp_op *op) {
    if (sbp_op_symbol_is(op, "approximate", "none"))
        return 0;
    return sbp_op_symbol_is(op, "approximate", "fast") ? 0.7978845608 : sqrt_2_over_pi;
}

static sbp_value build_gelu(sbp_builder *b, const sbp_op *op, sbp_value x) {
    sbp_value inner;
    double factor = tanh_factor(op);
    if (factor != 0) {
        sbp_value cube = sbp_build2(b, SBP_OP_mul, x, sbp_build2(b, SBP_OP_mul, x, x));
        sbp_value sum = sbp_build2(b, SBP_OP_add, x, times(b, cube, 0.044715));
        inner = sbp_build1(b, SBP_OP_tanh, times(b, sum, factor));
    } else {
        inner = sbp_build1(b, SBP_OP_erf, times(b, x, inverse_sqrt_2));
    }
    sbp_value half = times(b, x, 0.5), weight = plus(b, inner, 1);
    return sbp_build2(b, SBP_OP_mul, half, weight);
}

/* Operand i in the wide type. */
static sbp_value wide_operand(const sbp_expand *e, int32_t i) {
    return sbp_build_cast(e->builder, e->in[i], sbp_rule_wide(sbp_build_type(e->builder, e->in[i])->dtype));
}

static sbp_status finish(sbp_expand *e, sbp_value y) {
    e->out[0] = sbp_build_cast(e->builder, y, sbp_build_type(e->builder, e->in[0])->dtype);
    return e->builder->status;
}

static double silu(double x) {
    return x * sbp_rowop_eval(SBP_ROWOP_sigmoid, x, 0, 0);
}

static double gelu(const sbp_op *op, double x) {
    double factor = tanh_factor(op);
    if (factor != 0)
        return 0.5 * x * (1 + tanh(factor * (x + 0.044715 * x * x * x)));
    return 0.5 * x * (1 + erf(x * inverse_sqrt_2));
}

static bool examples(int32_t index, sbp_example *out, int32_t operands, const char *attr) {
    static const char *const kinds[] = {"none", "tanh", "fast"};
    if (index >= (attr ? SBP_COUNT(kinds) : 2))
        return false;
    for (int32_t i = 0; i < operands; i++)
        out->in[i] = sbp_example_float("f64[T,5]", -3, 3);
    out->in_count = operands;
    if (attr) {
        out->attrs[0] = sbp_attr_symbol(attr, kinds[index]);
        out->attr_count = 1;
    }
    return true;
}

sbp_status sbp_shape_silu(sbp_shape *shape) {
    return same_as_x(shape, 1);
}
SBP_RULE_SEQ_ROW(silu)
sbp_status sbp_expand_silu(sbp_expand *e) {
    return finish(e, build_silu(e->builder, wide_operand(e, 0)));
}
sbp_status sbp_eval_silu(const sbp_eval *eval) {
    for (int64_t i = 0; i < eval->out[0]->elems; i++)
        eval->out[0]->data[i] = silu(eval->in[0]->data[i]);
    return SBP_OK;
}
bool sbp_examples_silu(int32_t index, sbp_example *out) {
    return examples(index, out, 1, NULL);
}

sbp_status sbp_shape_gelu(sbp_shape *shape) {
    SBP_TRY(check_approximate(shape));
    return same_as_x(shape, 1);
}
SBP_RULE_SEQ_ROW(gelu)
sbp_status sbp_expand_gelu(sbp_expand *e) {
    return finish(e, build_gelu(e->builder, &e->op, wide_operand(e, 0)));
}
sbp_status sbp_eval_gelu(const sbp_eval *eval) {
    for (int64_t i = 0; i < eval->out[0]->elems; i++)
        eval->out[0]->data[i] = gelu(eval->op, eval->in[0]->data[i]);
    return SBP_OK;
}
bool sbp_examples_gelu(int32_t index, sbp_example *out) {
    return examples(index, out, 1, "approximate");
}

sbp_status sbp_shape_swiglu(sbp_shape *shape) {
    return same_as_x(shape, 2);
}
SBP_RULE_SEQ_ROW(swiglu)
sbp_status sbp_expand_swiglu(sbp_expand *e) {
    sbp_value gate = build_silu(e->builder, wide_operand(e, 0));
    return finish(e, sbp_build2(e->builder, SBP_OP_mul, gate, wide_operand(e, 1)));
}
sbp_status sbp_eval_swiglu(const sbp_eval *eval) {
    for (int64_t i = 0; i < eval->out[0]->elems; i++)
        eval->out[0]->data[i] = silu(eval->in[0]->data[i]) * eval->in[1]->data[i];
    return SBP_OK;
}
bool sbp_examples_swiglu(int32_t index, sbp_example *out) {
    return examples(index, out, 2, NULL);
}

sbp_status sbp_shape_geglu(sbp_shape *shape) {
    SBP_TRY(check_approximate(shape));
    return same_as_x(shape, 2);
}
SBP_RULE_SEQ_ROW(geglu)
sbp_status sbp_expand_geglu(sbp_expand *e) {
    sbp_value gate = build_gelu(e->builder, &e->op, wide_operand(e, 0));
    return finish(e, sbp_build2(e->builder, SBP_OP_mul, gate, wide_operand(e, 1)));
}
sbp_status sbp_eval_geglu(const sbp_eval *eval) {
    for (int64_t i = 0; i < eval->out[0]->elems; i++)
        eval->out[0]->data[i] = gelu(eval->op, eval->in[0]->data[i]) * eval->in[1]->data[i];
    return SBP_OK;
}
bool sbp_examples_geglu(int32_t index, sbp_example *out) {
    return examples(index, out, 2, "approximate");
}

sbp_status sbp_shape_softcap(sbp_shape *shape) {
    double cap = sbp_op_double(shape->op, "cap");
    SBP_SHAPE_REQUIRE(shape, 3, cap > 0 && isfinite(cap), "cap is %g", cap);
    return same_as_x(shape, 1);
}
SBP_RULE_SEQ_ROW(softcap)
sbp_status sbp_expand_softcap(sbp_expand *e) {
    sbp_builder *b = e->builder;
    double cap = sbp_op_double(&e->op, "cap");
    return finish(e, times(b, sbp_build1(b, SBP_OP_tanh, times(b, wide_operand(e, 0), 1 / cap)), cap));
}
sbp_status sbp_eval_softcap(const sbp_eval *eval) {
    double cap = sbp_op_double(eval->op, "cap");
    for (int64_t i = 0; i < eval->out[0]->elems; i++)
        eval->out[0]->data[i] = cap * tanh(eval->in[0]->data[i] / cap);
    return SBP_OK;
}
bool sbp_examples_softcap(int32_t index, sbp_example *out) {
    examples(index, out, 1, NULL);
    out->attrs[0] = sbp_attr_double("cap", 1.5);
    out->attr_count = 1;
    return index == 0;
}
