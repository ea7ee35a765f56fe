/* scan.c: linear recurrences over the rows of each group.
 *
 *   c_r = y of the previous row of the same group, 0 where there is none        (carried)
 *   y_r = x_r + d_r c_r
 *
 * With `reverse` the previous row is the next one: generalised advantages, sums of what is still to come.
 * With d = 0 the result `carried` is x shifted by one row. Rows of a group need not lie side by side.
 *
 * Derivative. n(r) is the row whose previous one is r; s(v)_r = v_n(r) is a shift in the other direction:
 *   g = dy + s(dcarried) + s(d) s(g)        a scan in the other direction
 *   dx = g        dd = g c
 * Only @prepare (ir/graph/prepare.h) is computed with it; no device has a command for it. */
#include "ir/graph/rules.h"

sbp_status sbp_shape_scan(sbp_shape *shape) {
    const sbp_type *x = &shape->in[0], *decay = &shape->in[1], *index = &shape->in[2];
    SBP_SHAPE_REQUIRE(shape, 1, x->rank == 1 && sbp_type_rows(x) == SBP_T && sbp_dtype_is_float(x->dtype),
                      "x is %s, a float vector over T expected", sbp_shape_text(x));
    SBP_SHAPE_REQUIRE(shape, 2, sbp_type_equal(decay, x), "decay is %s, x is %s", sbp_shape_text(decay),
                      sbp_shape_text(x));
    SBP_SHAPE_REQUIRE(shape, 3, index->rank == 1 && sbp_type_rows(index) == SBP_T && index->dtype == SBP_I32,
                      "index is %s, i32[T] expected", sbp_shape_text(index));
    shape->out[0] = shape->out[1] = *x;
    return SBP_OK;
}

sbp_seq sbp_seq_scan(const sbp_op *op, int32_t operand, int32_t result) {
    (void)op;
    (void)operand;
    (void)result;
    return sbp_seq_of(SBP_SEQ_GROUP);
}

static void build_scan(sbp_builder *b, sbp_value x, sbp_value decay, sbp_value index, bool reverse,
                       sbp_value out[2]) {
    sbp_build(b, SBP_OP_scan, NULL, (sbp_value[]){x, decay, index}, 3,
              (sbp_attr[]){sbp_attr_bool("reverse", reverse)}, 1, out);
}

/* s(v), with the scan's direction turned round. */
static sbp_value shift(sbp_builder *b, sbp_value v, sbp_value index, bool reverse) {
    if (b->status != SBP_OK)
        return SBP_NO_VALUE;
    sbp_type type = *sbp_build_type(b, v);
    sbp_value out[2], zero = sbp_build_broadcast(b, sbp_build_const(b, type.dtype, 0), &type);
    build_scan(b, v, zero, index, !reverse, out);
    return b->status == SBP_OK ? out[1] : SBP_NO_VALUE;
}

sbp_status sbp_vjp_scan(sbp_vjp *vjp) {
    sbp_builder *b = vjp->builder;
    bool reverse = sbp_op_int(&vjp->op, "reverse") != 0;
    sbp_value index = vjp->in[2], g = vjp->dout[0], out[2];
    if (vjp->dout[1] != SBP_NO_VALUE) {
        sbp_value later = shift(b, vjp->dout[1], index, reverse);
        g = g == SBP_NO_VALUE ? later : sbp_build2(b, SBP_OP_add, g, later);
    }
    sbp_value decay = shift(b, sbp_build_cast(b, vjp->in[1], sbp_build_type(b, g)->dtype), index, reverse);
    build_scan(b, g, decay, index, !reverse, out);
    if (b->status != SBP_OK)
        return b->status;
    vjp->din[0] = out[0];
    vjp->din[1] = sbp_build2(b, SBP_OP_mul, out[0], vjp->out[1]);
    return b->status;
}

sbp_status sbp_eval_scan(const sbp_eval *eval) {
    const sbp_tensor *x = eval->in[0], *decay = eval->in[1], *index = eval->in[2];
    int64_t groups = eval->env->sizes.v[SBP_S];
    double *state = SBP_NEW_ARRAY(eval->env->arena, double, groups);
    bool reverse = sbp_op_int(eval->op, "reverse") != 0;
    for (int64_t k = 0; k < x->elems; k++) {
        int64_t r = reverse ? x->elems - 1 - k : k;
        if (!(index->data[r] >= 0 && index->data[r] < (double)groups))
            return sbp_fail(eval->env->diag, SBP_INPUT, "scan: group %.0f of %lld", index->data[r],
                            (long long)groups);
        int64_t group = (int64_t)index->data[r];
        eval->out[1]->data[r] = state[group];
        eval->out[0]->data[r] = state[group] = x->data[r] + decay->data[r] * state[group];
    }
    return SBP_OK;
}

bool sbp_examples_scan(int32_t index, sbp_example *out) {
    out->in[0] = sbp_example_float("f64[T]", -1, 1);
    out->in[1] = sbp_example_float("f64[T]", 0.5, 1.5);
    out->in[2] = sbp_example_int("i32[T]", 0, 3);
    out->in_count = 3;
    out->attrs[0] = sbp_attr_bool("reverse", index == 1);
    out->attr_count = 1;
    return index < 2;
}
