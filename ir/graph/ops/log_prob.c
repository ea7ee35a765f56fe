/* log_prob.c: log-probability of the label, and what else the head says about a row.
 *
 *   log_prob  logits [T, V], label i32 [T] -> logp [T] = logits[label] - lse; entropy [T] of the softmax; hit
 * [T]: 1 when the label is the first arg-max; lse [T] = log sum exp(logits). In fp32 (fp64 for fp64).
 */
#include "ir/graph/rules.h"

#include <math.h>

sbp_status sbp_shape_log_prob(sbp_shape *shape) {
    const sbp_type *z = &shape->in[0], *label = &shape->in[1];
    SBP_SHAPE_REQUIRE(shape, 1,
                      z->rank == 2 && sbp_type_rows(z) != SBP_ONE && z->dim[1].n > 0 &&
                          sbp_dtype_is_float(z->dtype),
                      "logits are %s; [T, V] expected", sbp_shape_text(z));
    SBP_SHAPE_REQUIRE(shape, 2,
                      label->rank == 1 && label->dtype == SBP_I32 && sbp_dim_equal(label->dim[0], z->dim[0]),
                      "label is %s beside logits %s", sbp_shape_text(label), sbp_shape_text(z));
    for (int32_t r = 0; r < 4; r++)
        shape->out[r] = (sbp_type){.dtype = sbp_rule_wide(z->dtype), .rank = 1, .dim = {z->dim[0]}};
    return SBP_OK;
}

SBP_RULE_SEQ_ROW(log_prob)

static sbp_value column(sbp_builder *b, sbp_value x) {
    return sbp_build_reshape(b, x, (int64_t[]){1}, 1);
}

static sbp_value flat(sbp_builder *b, sbp_value x) {
    return sbp_build_reshape(b, x, NULL, 0);
}

/* bool [T, V]: whether column j is the label */
static sbp_value build_is_label(sbp_builder *b, sbp_value label, int64_t vocabulary, sbp_dtype dtype) {
    sbp_value index =
        sbp_build(b, SBP_OP_iota, NULL, NULL, 0,
                  (sbp_attr[]){sbp_attr_int("n", vocabulary), sbp_attr_dtype("dtype", dtype)}, 2, NULL);
    return sbp_build2(b, SBP_OP_eq, column(b, sbp_build_cast(b, label, dtype)), index);
}

sbp_status sbp_expand_log_prob(sbp_expand *e) {
    sbp_builder *b = e->builder;
    sbp_dtype wide = sbp_rule_wide(sbp_build_type(b, e->in[0])->dtype);
    int64_t vocabulary = sbp_build_type(b, e->in[0])->dim[1].n;
    sbp_value z = sbp_build_cast(b, e->in[0], wide), zero = sbp_build_const(b, wide, 0);
    sbp_value is_label = build_is_label(b, e->in[1], vocabulary, wide);
    sbp_value top = sbp_build1(b, SBP_OP_row_max, z);
    sbp_value shifted = sbp_build2(b, SBP_OP_sub, z, top), weight = sbp_build1(b, SBP_OP_exp, shifted);
    sbp_value sum = sbp_build1(b, SBP_OP_row_sum, weight), log_sum = sbp_build1(b, SBP_OP_log, sum);
    sbp_value own = sbp_build1(b, SBP_OP_row_sum, sbp_build3(b, SBP_OP_select, is_label, shifted, zero));
    sbp_value mean = sbp_build2(
        b, SBP_OP_div, sbp_build1(b, SBP_OP_row_sum, sbp_build2(b, SBP_OP_mul, weight, shifted)), sum);
    sbp_value index =
        sbp_build(b, SBP_OP_iota, NULL, NULL, 0,
                  (sbp_attr[]){sbp_attr_int("n", vocabulary), sbp_attr_dtype("dtype", wide)}, 2, NULL);
    sbp_value is_top = sbp_build2(b, SBP_OP_eq, z, top),
              beyond = sbp_build_const(b, wide, (double)vocabulary);
    sbp_value best = sbp_build1(b, SBP_OP_row_min, sbp_build3(b, SBP_OP_select, is_top, index, beyond));
    sbp_value right = sbp_build2(b, SBP_OP_eq, best, column(b, sbp_build_cast(b, e->in[1], wide)));
    e->out[0] = flat(b, sbp_build2(b, SBP_OP_sub, own, log_sum));
    e->out[1] = flat(b, sbp_build2(b, SBP_OP_sub, log_sum, mean));
    e->out[2] = flat(b, sbp_build3(b, SBP_OP_select, right, sbp_build_const(b, wide, 1), zero));
    e->out[3] = flat(b, sbp_build2(b, SBP_OP_add, top, log_sum));
    return b->status;
}

/* With p = exp(z - lse): d logp = [j = label] - p; d entropy = -p (z - lse + entropy); d lse = p. The label's
 * p is exp(logp): where it is nearly 1, the rounding of lse, a number as large as the logits, would be more
 * than 1 - p. */
sbp_status sbp_vjp_log_prob(sbp_vjp *vjp) {
    sbp_builder *b = vjp->builder;
    sbp_type t = *sbp_build_type(b, vjp->in[0]);
    sbp_dtype wide = sbp_rule_wide(t.dtype);
    sbp_value z = sbp_build_cast(b, vjp->in[0], wide), dz = SBP_NO_VALUE, zero = sbp_build_const(b, wide, 0);
    sbp_value log_p = sbp_build2(b, SBP_OP_sub, z, column(b, vjp->out[3])), is_label = SBP_NO_VALUE;
    if (vjp->dout[0] != SBP_NO_VALUE) {
        is_label = build_is_label(b, vjp->in[1], t.dim[1].n, wide);
        log_p = sbp_build3(b, SBP_OP_select, is_label, column(b, vjp->out[0]), log_p);
    }
    sbp_value p = sbp_build1(b, SBP_OP_exp, log_p);
    if (vjp->dout[0] != SBP_NO_VALUE) {
        sbp_value one_hot = sbp_build3(b, SBP_OP_select, is_label, sbp_build_const(b, wide, 1), zero);
        sbp_value difference = sbp_build2(b, SBP_OP_sub, one_hot, p);
        dz = sbp_build2(b, SBP_OP_mul, difference, column(b, vjp->dout[0]));
    }
    if (vjp->dout[1] != SBP_NO_VALUE) {
        sbp_value slope =
            sbp_build2(b, SBP_OP_mul, p, sbp_build2(b, SBP_OP_add, log_p, column(b, vjp->out[1])));
        sbp_value term = sbp_build1(b, SBP_OP_neg, sbp_build2(b, SBP_OP_mul, slope, column(b, vjp->dout[1])));
        dz = dz == SBP_NO_VALUE ? term : sbp_build2(b, SBP_OP_add, dz, term);
    }
    if (vjp->dout[3] != SBP_NO_VALUE) {
        sbp_value term = sbp_build2(b, SBP_OP_mul, p, column(b, vjp->dout[3]));
        dz = dz == SBP_NO_VALUE ? term : sbp_build2(b, SBP_OP_add, dz, term);
    }
    if (dz != SBP_NO_VALUE)
        vjp->din[0] = sbp_build_cast(b, dz, t.dtype);
    return b->status;
}

sbp_status sbp_eval_log_prob(const sbp_eval *eval) {
    const sbp_tensor *z = eval->in[0];
    int64_t vocabulary = z->dim[1];
    for (int64_t r = 0; r < z->dim[0]; r++) {
        const double *row = z->data + r * vocabulary;
        int64_t label = (int64_t)eval->in[1]->data[r], best = 0;
        double sum = 0, mean = 0;
        if (label < 0 || label >= vocabulary)
            return sbp_fail(eval->env->diag, SBP_INPUT, "log_prob: label %lld of %lld", (long long)label,
                            (long long)vocabulary);
        for (int64_t j = 1; j < vocabulary; j++)
            if (row[j] > row[best])
                best = j;
        for (int64_t j = 0; j < vocabulary; j++)
            sum += exp(row[j] - row[best]);
        double lse = row[best] + log(sum);
        for (int64_t j = 0; j < vocabulary; j++)
            mean += exp(row[j] - lse) * row[j];
        eval->out[0]->data[r] = row[label] - row[best] - log(sum);
        eval->out[1]->data[r] = lse - mean;
        eval->out[2]->data[r] = best == label;
        eval->out[3]->data[r] = lse;
    }
    return SBP_OK;
}

bool sbp_examples_log_prob(int32_t index, sbp_example *out) {
    out->in[0] = sbp_example_float("f64[T,7]", -2, 2);
    out->in[1] = sbp_example_int("i32[T]", 0, 7);
    out->in_count = 2;
    return index == 0;
}
