/* linear.c: matmuls with a weight matrix. Operands of one matmul have one type; matmuls of 16-bit numbers
 * are summed in fp32.
 *
 *   linear     y = x W^T + bias. x [T, in]; W [out, in] (layout out_in) or [in, out] (in_out); bias [out]; y
 *              [T, out] in the type of x. wide: y is fp32 even when x is narrower (logits, sums of matmuls)
 *   linear_dw  dW = sum over rows of dy^T x, in the layout of W, in the wide type
 */
#include "ir/graph/rules.h"

static bool out_in(const sbp_op *op) {
    return sbp_op_symbol_is(op, "layout", "out_in");
}

static bool is_narrow(sbp_dtype dtype) {
    return sbp_rule_wide(dtype) != dtype;
}

static sbp_status check_layout(const sbp_shape *shape) {
    SBP_SHAPE_REQUIRE(shape, 1, out_in(shape->op) || sbp_op_symbol_is(shape->op, "layout", "in_out"),
                      "layout '%s'; out_in or in_out expected", sbp_op_attr(shape->op, "layout")->symbol);
    return SBP_OK;
}

sbp_status sbp_shape_linear(sbp_shape *shape) {
    const sbp_type *x = &shape->in[0], *w = &shape->in[1], *bias = &shape->in[2];
    SBP_TRY(check_layout(shape));
    SBP_SHAPE_REQUIRE(
        shape, 2, x->rank == 2 && x->dim[1].symbol == SBP_ONE && w->rank == 2 && sbp_type_rows(w) == SBP_ONE,
        "x is %s and w is %s; matrices expected", sbp_shape_text(x), sbp_shape_text(w));
    int64_t in = out_in(shape->op) ? w->dim[1].n : w->dim[0].n,
            out = out_in(shape->op) ? w->dim[0].n : w->dim[1].n;
    SBP_SHAPE_REQUIRE(shape, 3, x->dim[1].n == in, "inner size differs: x is %s, w is %s (%s)",
                      sbp_shape_text(x), sbp_shape_text(w), sbp_op_attr(shape->op, "layout")->symbol);
    SBP_SHAPE_REQUIRE(shape, 4, x->dtype == w->dtype && sbp_dtype_is_float(x->dtype), "x is %s, w is %s",
                      sbp_shape_text(x), sbp_shape_text(w));
    if (shape->present[2])
        SBP_SHAPE_REQUIRE(
            shape, 5,
            bias->rank == 1 && sbp_dim_equal(bias->dim[0], sbp_dim_const(out)) && bias->dtype == x->dtype,
            "bias is %s, %s[%lld] expected", sbp_shape_text(bias), sbp_dtype_name(x->dtype), (long long)out);
    shape->out[0] = *x;
    shape->out[0].dim[1].n = out;
    if (sbp_op_int(shape->op, "wide"))
        shape->out[0].dtype = sbp_rule_wide(x->dtype);
    return SBP_OK;
}

SBP_RULE_SEQ_ROW(linear)

sbp_status sbp_vjp_linear(sbp_vjp *vjp) {
    sbp_builder *b = vjp->builder;
    const char *layout = sbp_op_attr(&vjp->op, "layout")->symbol;
    sbp_value dy = sbp_build_cast(b, vjp->dout[0], sbp_build_type(b, vjp->in[0])->dtype);
    if (vjp->need[0]) /* wide: x may be read by several matmuls, and the sum is what is rounded */
        vjp->din[0] =
            sbp_build(b, SBP_OP_linear, NULL, (sbp_value[]){dy, vjp->in[1]}, 2,
                      (sbp_attr[]){sbp_attr_symbol("layout", out_in(&vjp->op) ? "in_out" : "out_in"),
                                   sbp_attr_bool("wide", is_narrow(sbp_build_type(b, dy)->dtype))},
                      2, NULL);
    if (vjp->need[1])
        vjp->din[1] = sbp_build(b, SBP_OP_linear_dw, NULL, (sbp_value[]){dy, vjp->in[0]}, 2,
                                (sbp_attr[]){sbp_attr_symbol("layout", layout)}, 1, NULL);
    if (vjp->in[2] != SBP_NO_VALUE && vjp->need[2]) {
        sbp_type bias = *sbp_build_type(b, vjp->in[2]);
        vjp->din[2] = sbp_vjp_reduce_to(b, dy, &bias);
    }
    return b->status;
}

sbp_status sbp_eval_linear(const sbp_eval *eval) {
    const sbp_tensor *x = eval->in[0], *w = eval->in[1], *bias = eval->in[2];
    int64_t in = x->dim[1], out = eval->out[0]->dim[1];
    for (int64_t r = 0; r < x->dim[0]; r++)
        for (int64_t o = 0; o < out; o++) {
            double sum = bias ? bias->data[o] : 0;
            for (int64_t i = 0; i < in; i++)
                sum += x->data[r * in + i] * w->data[out_in(eval->op) ? o * in + i : i * out + o];
            eval->out[0]->data[r * out + o] = sum;
        }
    return SBP_OK;
}

bool sbp_examples_linear(int32_t index, sbp_example *out) {
    if (index >= 3)
        return false;
    out->in[0] = sbp_example_float("f64[T,4]", -1, 1);
    out->in[1] = sbp_example_float(index == 1 ? "f64[4,3]" : "f64[3,4]", -1, 1);
    out->in[2] = sbp_example_float("f64[3]", -1, 1);
    out->in_count = index == 0 ? 2 : 3;
    out->attrs[0] = sbp_attr_symbol("layout", index == 1 ? "in_out" : "out_in");
    out->attrs[1] = sbp_attr_bool("wide", index == 2);
    out->attr_count = 2;
    return true;
}

sbp_status sbp_shape_linear_dw(sbp_shape *shape) {
    const sbp_type *dy = &shape->in[0], *x = &shape->in[1];
    SBP_TRY(check_layout(shape));
    SBP_SHAPE_REQUIRE(
        shape, 2,
        dy->rank == 2 && x->rank == 2 && dy->dtype == x->dtype && sbp_dtype_is_float(x->dtype) &&
            sbp_dim_equal(dy->dim[0], x->dim[0]) && sbp_type_rows(x) != SBP_ONE,
        "dy is %s, x is %s; matrices with the same rows expected", sbp_shape_text(dy), sbp_shape_text(x));
    shape->out[0] = (sbp_type){.dtype = sbp_rule_wide(x->dtype), .rank = 2, .dim = {dy->dim[1], x->dim[1]}};
    if (!out_in(shape->op)) {
        shape->out[0].dim[0] = x->dim[1];
        shape->out[0].dim[1] = dy->dim[1];
    }
    return SBP_OK;
}

SBP_RULE_SEQ_REDUCE(linear_dw)

/* With cotangent D in the layout of W: d(dy) = x D^T, dx = dy D (as out_in). */
sbp_status sbp_vjp_linear_dw(sbp_vjp *vjp) {
    sbp_builder *b = vjp->builder;
    const char *same = sbp_op_attr(&vjp->op, "layout")->symbol,
               *other = out_in(&vjp->op) ? "in_out" : "out_in";
    sbp_value d = sbp_build_cast(b, vjp->dout[0], sbp_build_type(b, vjp->in[0])->dtype);
    if (vjp->need[0])
        vjp->din[0] = sbp_build(b, SBP_OP_linear, NULL, (sbp_value[]){vjp->in[1], d}, 2,
                                (sbp_attr[]){sbp_attr_symbol("layout", same)}, 1, NULL);
    if (vjp->need[1])
        vjp->din[1] = sbp_build(b, SBP_OP_linear, NULL, (sbp_value[]){vjp->in[0], d}, 2,
                                (sbp_attr[]){sbp_attr_symbol("layout", other)}, 1, NULL);
    return b->status;
}

sbp_status sbp_eval_linear_dw(const sbp_eval *eval) {
    const sbp_tensor *dy = eval->in[0], *x = eval->in[1];
    int64_t out = dy->dim[1], in = x->dim[1];
    for (int64_t r = 0; r < x->dim[0]; r++)
        for (int64_t o = 0; o < out; o++)
            for (int64_t i = 0; i < in; i++)
                eval->out[0]->data[out_in(eval->op) ? o * in + i : i * out + o] +=
                    dy->data[r * out + o] * x->data[r * in + i];
    return SBP_OK;
}

bool sbp_examples_linear_dw(int32_t index, sbp_example *out) {
    if (index >= 2)
        return false;
    out->in[0] = sbp_example_float("f64[T,3]", -1, 1);
    out->in[1] = sbp_example_float("f64[T,4]", -1, 1);
    out->in_count = 2;
    out->attrs[0] = sbp_attr_symbol("layout", index == 1 ? "in_out" : "out_in");
    out->attr_count = 1;
    return true;
}
