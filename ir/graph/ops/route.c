/* route.c: which experts a row goes to, and values at what was chosen.
 *
 *   route    scores [T, E] -> index i32 [T, k]: the columns of the k largest scores of each row, the largest
 *            first; of equal ones the lower column. What is no number is larger than nothing. 1 <= k <= E
 *   take_at  x [T, E], index i32 [T, k] -> y [T, k], in x's type:  y[t, j] = x[t, index[t, j]]
 *
 * No gradient goes through a choice: scores get theirs through the values that are taken at it. */
#include "ir/graph/rules.h"

/* ---- route ------------------------------------------------------------------------------------------ */

sbp_status sbp_shape_route(sbp_shape *shape) {
    const sbp_type *scores = &shape->in[0];
    int64_t k = sbp_op_int(shape->op, "k");
    SBP_SHAPE_REQUIRE(
        shape, 1, scores->rank == 2 && sbp_type_rows(scores) != SBP_ONE && sbp_dtype_is_float(scores->dtype),
        "scores are %s; [rows, experts] of a float expected", sbp_shape_text(scores));
    SBP_SHAPE_REQUIRE(shape, 2, k >= 1 && k <= scores->dim[1].n, "%lld of %lld experts", (long long)k,
                      (long long)scores->dim[1].n);
    shape->out[0] = (sbp_type){.dtype = SBP_I32, .rank = 2, .dim = {scores->dim[0], sbp_dim_const(k)}};
    return SBP_OK;
}

SBP_RULE_SEQ_ROW(route)

sbp_status sbp_eval_route(const sbp_eval *eval) {
    const sbp_tensor *scores = eval->in[0];
    int64_t experts = scores->dim[1], k = eval->out[0]->dim[1];
    bool *taken = SBP_NEW_ARRAY(eval->env->arena, bool, experts);
    for (int64_t t = 0; t < scores->dim[0]; t++) {
        const double *row = scores->data + t * experts;
        for (int64_t e = 0; e < experts; e++)
            taken[e] = false;
        for (int64_t j = 0; j < k; j++) {
            int64_t best = -1;
            for (int64_t e = 0; e < experts; e++)
                if (!taken[e] &&
                    (best < 0 || row[e] > row[best] || (row[best] != row[best] && row[e] == row[e])))
                    best = e;
            taken[best] = true;
            eval->out[0]->data[t * k + j] = (double)best;
        }
    }
    return SBP_OK;
}

bool sbp_examples_route(int32_t index, sbp_example *out) {
    out->in[0] = sbp_example_float("f64[T,5]", -1, 1);
    out->in_count = 1;
    out->attrs[0] = sbp_attr_int("k", index == 0 ? 2 : 5);
    out->attr_count = 1;
    return index < 2;
}

/* ---- take_at ---------------------------------------------------------------------------------------- */

sbp_status sbp_shape_take_at(sbp_shape *shape) {
    const sbp_type *x = &shape->in[0], *index = &shape->in[1];
    SBP_SHAPE_REQUIRE(shape, 1, x->rank == 2 && sbp_type_rows(x) != SBP_ONE && sbp_dtype_is_float(x->dtype),
                      "x is %s; [rows, columns] of a float expected", sbp_shape_text(x));
    SBP_SHAPE_REQUIRE(
        shape, 2, index->rank == 2 && index->dtype == SBP_I32 && sbp_dim_equal(index->dim[0], x->dim[0]),
        "index is %s beside x %s; i32 of the same rows expected", sbp_shape_text(index), sbp_shape_text(x));
    shape->out[0] = *x;
    shape->out[0].dim[1] = index->dim[1];
    return SBP_OK;
}

SBP_RULE_SEQ_ROW(take_at)

/* As a sum over all columns of which the others are 0. */
sbp_status sbp_expand_take_at(sbp_expand *e) {
    sbp_builder *b = e->builder;
    const sbp_type x = *sbp_build_type(b, e->in[0]);
    sbp_dtype wide = sbp_rule_wide(x.dtype);
    int64_t n = x.dim[1].n, k = sbp_build_type(b, e->in[1])->dim[1].n;
    sbp_value column = sbp_build(b, SBP_OP_iota, NULL, NULL, 0,
                                 (sbp_attr[]){sbp_attr_int("n", n), sbp_attr_dtype("dtype", wide)}, 2, NULL);
    sbp_value index = sbp_build_reshape(b, sbp_build_cast(b, e->in[1], wide), (int64_t[]){k, 1}, 2);
    sbp_value is_chosen = sbp_build2(b, SBP_OP_eq, index, column);
    sbp_value all = sbp_build_reshape(b, sbp_build_cast(b, e->in[0], wide), (int64_t[]){1, n}, 2);
    sbp_value chosen = sbp_build3(b, SBP_OP_select, is_chosen, all, sbp_build_const(b, wide, 0));
    chosen = sbp_build_reshape(b, sbp_build1(b, SBP_OP_row_sum, chosen), (int64_t[]){k}, 1);
    e->out[0] = sbp_build_cast(b, chosen, x.dtype);
    return b->status;
}

sbp_status sbp_eval_take_at(const sbp_eval *eval) {
    const sbp_tensor *x = eval->in[0], *index = eval->in[1];
    int64_t n = x->dim[1], k = index->dim[1];
    for (int64_t i = 0; i < index->elems; i++) {
        int64_t at = (int64_t)index->data[i];
        if (at < 0 || at >= n)
            return sbp_fail(eval->env->diag, SBP_INPUT, "take_at: column %lld of %lld", (long long)at,
                            (long long)n);
        eval->out[0]->data[i] = x->data[i / k * n + at];
    }
    return SBP_OK;
}

bool sbp_examples_take_at(int32_t index, sbp_example *out) {
    out->in[0] = sbp_example_float("f64[T,5]", -1, 1);
    out->in[1] = sbp_example_int(index == 0 ? "i32[T,3]" : "i32[T,1]", 0, 5);
    out->in_count = 2;
    return index < 2;
}
