/* rope.c: rotary position embedding. x [T, heads, d], cos and sin [T, n], n <= d/2: element i < n pairs with
 * element i + n: (x_i, x_{i+n}) -> (x_i cos_i - x_{i+n} sin_i, x_{i+n} cos_i + x_i sin_i); elements from 2n
 * on stay (partial rotary). cos and sin are wide; the result is rounded once, to the type of x. */
#include "ir/graph/rules.h"

sbp_status sbp_shape_rope(sbp_shape *shape) {
    const sbp_type *x = &shape->in[0], *c = &shape->in[1], *s = &shape->in[2];
    SBP_SHAPE_REQUIRE(shape, 1, x->rank == 3 && sbp_type_rows(x) != SBP_ONE,
                      "x is %s; [T, heads, d] expected", sbp_shape_text(x));
    SBP_SHAPE_REQUIRE(shape, 2,
                      c->rank == 2 && sbp_type_equal(c, s) && sbp_dim_equal(c->dim[0], x->dim[0]) &&
                          2 * c->dim[1].n <= x->dim[2].n && c->dtype == sbp_rule_wide(x->dtype),
                      "x is %s, cos is %s, sin is %s", sbp_shape_text(x), sbp_shape_text(c),
                      sbp_shape_text(s));
    shape->out[0] = *x;
    return SBP_OK;
}

SBP_RULE_SEQ_ROW(rope)

sbp_status sbp_expand_rope(sbp_expand *e) {
    sbp_builder *b = e->builder;
    sbp_dtype narrow = sbp_build_type(b, e->in[0])->dtype;
    sbp_value x = sbp_build_cast(b, e->in[0], sbp_rule_wide(narrow));
    int64_t n = sbp_build_type(b, e->in[1])->dim[1].n, d = sbp_build_type(b, x)->dim[2].n;
    sbp_value c = sbp_build_reshape(b, e->in[1], (int64_t[]){1, n}, 2);
    sbp_value s = sbp_build_reshape(b, e->in[2], (int64_t[]){1, n}, 2);
    sbp_value x1 = sbp_build_slice(b, x, 0, n), x2 = sbp_build_slice(b, x, n, n);
    sbp_value x1_cos = sbp_build2(b, SBP_OP_mul, x1, c), x2_sin = sbp_build2(b, SBP_OP_mul, x2, s);
    sbp_value y1 = sbp_build2(b, SBP_OP_sub, x1_cos, x2_sin);
    sbp_value x2_cos = sbp_build2(b, SBP_OP_mul, x2, c), x1_sin = sbp_build2(b, SBP_OP_mul, x1, s);
    sbp_value y2 = sbp_build2(b, SBP_OP_add, x2_cos, x1_sin);
    e->out[0] = sbp_build2(b, SBP_OP_concat, y1, y2);
    if (2 * n < d)
        e->out[0] = sbp_build2(b, SBP_OP_concat, e->out[0], sbp_build_slice(b, x, 2 * n, d - 2 * n));
    e->out[0] = sbp_build_cast(b, e->out[0], narrow);
    return b->status;
}

sbp_status sbp_eval_rope(const sbp_eval *eval) {
    const sbp_tensor *x = eval->in[0], *c = eval->in[1], *s = eval->in[2];
    int64_t heads = x->dim[1], d = x->dim[2], n = c->dim[1];
    for (int64_t r = 0; r < x->dim[0]; r++)
        for (int64_t h = 0; h < heads; h++) {
            const double *in = x->data + (r * heads + h) * d;
            double *out = eval->out[0]->data + (r * heads + h) * d;
            for (int64_t i = 0; i < n; i++) {
                double cos_i = c->data[r * n + i], sin_i = s->data[r * n + i];
                out[i] = in[i] * cos_i - in[i + n] * sin_i;
                out[i + n] = in[i + n] * cos_i + in[i] * sin_i;
            }
            for (int64_t i = 2 * n; i < d; i++)
                out[i] = in[i];
        }
    return SBP_OK;
}

bool sbp_examples_rope(int32_t index, sbp_example *out) {
    if (index >= 2)
        return false;
    out->in[0] = sbp_example_float(index == 0 ? "f64[T,3,4]" : "f64[T,2,6]", -1, 1);
    out->in[1] = sbp_example_float("f64[T,2]", -1, 1);
    out->in[2] = sbp_example_float("f64[T,2]", -1, 1);
    out->in_count = 3;
    return true;
}
