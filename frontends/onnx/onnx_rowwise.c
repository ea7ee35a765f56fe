/* onnx_rowwise.c: sums and the like inside a row, activations in one operator, comparisons. */
#include "frontends/onnx/onnx.h"

#include <math.h>
#include <string.h>

static sbp_value number(sbp_onnx *o, double value) {
    return sbp_build_const(&o->builder, o->wide, value);
}

static sbp_status most_inputs(sbp_onnx *o, int32_t most) {
    return o->node->input_count <= most ? SBP_OK
                                        : sbp_onnx_fail(o, "the node has %d inputs; at most %d are expected",
                                                        o->node->input_count, most);
}

/* ---- inside a row ---------------------------------------------------------------------------------------
 */

/* Axes of the node (input 1), which must not be the tokens'; of the whole row when none are given and `all`.
 */
static sbp_status reduced_axes(sbp_onnx *o, const sbp_onnx_value *x, bool *on) {
    const int64_t *axes;
    int64_t count;
    SBP_TRY(sbp_onnx_ints(o, 1, "axes", &axes, &count));
    for (int64_t i = 0; i < count; i++) {
        int64_t axis = axes[i] < 0 ? axes[i] + x->rank : axes[i];
        if (axis < 0 || axis >= x->rank || axis == sbp_onnx_rows_axis(x))
            return sbp_onnx_fail(o, "axis %lld of '%s' %s; those of a token are supported",
                                 (long long)axes[i], x->name, sbp_onnx_shape_text(o, x));
        on[axis] = true;
    }
    return SBP_OK;
}

/* y, the axis summed (or its largest or smallest element) and kept as size 1. */
static sbp_status reduce_axis(sbp_onnx *o, sbp_opcode code, int64_t axis_from_end, sbp_value *y) {
    if (code != SBP_OP_row_sum && axis_from_end != -1)
        return sbp_onnx_fail(o, "only the last axis is supported");
    if (code == SBP_OP_row_sum)
        *y = sbp_build(&o->builder, code, NULL, y, 1, (sbp_attr[]){sbp_attr_int("axis", axis_from_end)}, 1,
                       NULL);
    else
        *y = sbp_build1(&o->builder, code, *y);
    return o->builder.status;
}

sbp_status sbp_onnx_reduce(sbp_onnx *o) {
    static const char *const known[] = {"keepdims", "noop_with_empty_axes", NULL};
    const sbp_onnx_value *x;
    const char *op = o->node->op;
    int64_t keep = 1, dim[SBP_MAX_RANK], n = 1;
    int32_t rank;
    bool on[SBP_ONNX_MAX_RANK] = {false};
    sbp_value y;
    SBP_TRY(most_inputs(o, 2));
    SBP_TRY(sbp_onnx_attrs_known(o, known));
    SBP_TRY(sbp_onnx_attr_int(o, "keepdims", &keep));
    SBP_TRY(sbp_onnx_required(o, 0, &x));
    if (x->kind != SBP_ONNX_VALUE || sbp_onnx_rows_axis(x) < 0)
        return sbp_onnx_fail(o, "'%s' %s is not an activation", x->name, sbp_onnx_shape_text(o, x));
    SBP_TRY(reduced_axes(o, x, on));
    SBP_TRY(sbp_onnx_broadcast(o, &x, 1, &y, &rank, dim));
    bool largest = strcmp(op, "ReduceMax") == 0, smallest = strcmp(op, "ReduceMin") == 0,
         squares = strcmp(op, "ReduceL2") == 0 || strcmp(op, "ReduceSumSquare") == 0;
    if (squares)
        y = sbp_build2(&o->builder, SBP_OP_mul, y, y);
    if (strcmp(op, "ReduceL1") == 0)
        y = sbp_build1(&o->builder, SBP_OP_abs, y);
    int64_t from_end = 0;
    for (int32_t d = rank - 1; d >= 0; d--) { /* axes of the graph IR: tokens first, no batch */
        if (dim[d] == SBP_ONNX_ROWS || (d == 0 && dim[0] == 1 && sbp_onnx_rows_axis(x) > 0))
            continue;
        from_end--;
        if (!on[d] || dim[d] == 1)
            continue;
        SBP_TRY(reduce_axis(o,
                            largest    ? SBP_OP_row_max
                            : smallest ? SBP_OP_row_min
                                       : SBP_OP_row_sum,
                            from_end, &y));
        n *= dim[d];
        dim[d] = 1;
    }
    if (strcmp(op, "ReduceMean") == 0)
        y = sbp_build2(&o->builder, SBP_OP_div, y, number(o, (double)n));
    if (strcmp(op, "ReduceL2") == 0)
        y = sbp_build1(&o->builder, SBP_OP_sqrt, y);
    int32_t left = 0;
    for (int32_t d = 0; d < rank; d++)
        if (keep || !on[d])
            dim[left++] = dim[d];
    SBP_TRY(sbp_onnx_as_shape(o, y, left, dim, &y));
    sbp_onnx_define_value(o, 0, y, x->type, left, dim);
    return o->builder.status;
}

/* Over the last axis of a row; scores of attention are not here (onnx_scores.c). */
sbp_status sbp_onnx_softmax(sbp_onnx *o) {
    static const char *const known[] = {"axis", NULL};
    const sbp_onnx_value *x;
    int64_t axis = -1, dim[SBP_MAX_RANK];
    int32_t rank;
    sbp_builder *b = &o->builder;
    sbp_value v;
    SBP_TRY(most_inputs(o, 1));
    SBP_TRY(sbp_onnx_attrs_known(o, known));
    SBP_TRY(sbp_onnx_required(o, 0, &x));
    SBP_TRY(sbp_onnx_attr_int(o, "axis", &axis));
    if (x->kind != SBP_ONNX_VALUE || (axis != -1 && axis != x->rank - 1) ||
        sbp_onnx_rows_axis(x) == x->rank - 1 || sbp_onnx_slots(x->dim[x->rank - 1]) > 0)
        return sbp_onnx_fail(o, "axis %lld of '%s' %s; the last axis of an activation is supported",
                             (long long)axis, x->name, sbp_onnx_shape_text(o, x));
    SBP_TRY(sbp_onnx_broadcast(o, &x, 1, &v, &rank, dim));
    sbp_value most = sbp_build1(b, SBP_OP_stop_gradient, sbp_build1(b, SBP_OP_row_max, v));
    sbp_value shifted = sbp_build2(b, SBP_OP_sub, v, most), e = sbp_build1(b, SBP_OP_exp, shifted);
    sbp_value sum = sbp_build1(b, SBP_OP_row_sum, e);
    sbp_value y = strcmp(o->node->op, "Softmax") == 0
                      ? sbp_build2(b, SBP_OP_div, e, sum)
                      : sbp_build2(b, SBP_OP_sub, shifted, sbp_build1(b, SBP_OP_log, sum));
    sbp_onnx_define_value(o, 0, y, x->type, rank, dim);
    return b->status;
}

/* ---- activations ----------------------------------------------------------------------------------------
 */

static sbp_value positive(sbp_onnx *o, sbp_value x) {
    return sbp_build2(&o->builder, SBP_OP_lt, number(o, 0), x);
}

/* x where it is above 0, else y. */
static sbp_value above(sbp_onnx *o, sbp_value x, sbp_value y) {
    return sbp_build3(&o->builder, SBP_OP_select, positive(o, x), x, y);
}

static sbp_value times(sbp_onnx *o, sbp_value x, double factor) {
    return factor == 1 ? x : sbp_build2(&o->builder, SBP_OP_mul, x, number(o, factor));
}

static sbp_value within(sbp_onnx *o, sbp_value x, double low, double high) {
    x = sbp_build2(&o->builder, SBP_OP_max, x, number(o, low));
    return sbp_build2(&o->builder, SBP_OP_min, x, number(o, high));
}

/* log(1 + exp(x)) */
static sbp_value softplus(sbp_onnx *o, sbp_value x) {
    sbp_value y = sbp_build1(&o->builder, SBP_OP_log_sigmoid, sbp_build1(&o->builder, SBP_OP_neg, x));
    return sbp_build1(&o->builder, SBP_OP_neg, y);
}

/* exp(x) - 1 below 0; above it, where it is not used, exp does not overflow. */
static sbp_value exp_below(sbp_onnx *o, sbp_value x) {
    sbp_value e = sbp_build1(&o->builder, SBP_OP_exp, sbp_build2(&o->builder, SBP_OP_min, x, number(o, 0)));
    return sbp_build2(&o->builder, SBP_OP_sub, e, number(o, 1));
}

static sbp_value relu(sbp_onnx *o, sbp_value x, double alpha, double gamma) {
    (void)alpha, (void)gamma;
    return above(o, x, number(o, 0));
}
static sbp_value leaky_relu(sbp_onnx *o, sbp_value x, double alpha, double gamma) {
    (void)gamma;
    return above(o, x, times(o, x, alpha));
}
static sbp_value elu(sbp_onnx *o, sbp_value x, double alpha, double gamma) {
    (void)gamma;
    return above(o, x, times(o, exp_below(o, x), alpha));
}
static sbp_value celu(sbp_onnx *o, sbp_value x, double alpha, double gamma) {
    (void)gamma;
    return above(o, x, times(o, exp_below(o, times(o, x, 1 / alpha)), alpha));
}
static sbp_value selu(sbp_onnx *o, sbp_value x, double alpha, double gamma) {
    return times(o, above(o, x, times(o, exp_below(o, x), alpha)), gamma);
}
static sbp_value plus(sbp_onnx *o, sbp_value x, double alpha, double gamma) {
    (void)alpha, (void)gamma;
    return softplus(o, x);
}
static sbp_value softsign(sbp_onnx *o, sbp_value x, double alpha, double gamma) {
    (void)alpha, (void)gamma;
    sbp_builder *b = &o->builder;
    return sbp_build2(b, SBP_OP_div, x,
                      sbp_build2(b, SBP_OP_add, sbp_build1(b, SBP_OP_abs, x), number(o, 1)));
}
static sbp_value hard_sigmoid(sbp_onnx *o, sbp_value x, double alpha, double gamma) {
    return within(o, sbp_build2(&o->builder, SBP_OP_add, times(o, x, alpha), number(o, gamma)), 0, 1);
}
static sbp_value hard_swish(sbp_onnx *o, sbp_value x, double alpha, double gamma) {
    (void)alpha, (void)gamma;
    return sbp_build2(&o->builder, SBP_OP_mul, x, hard_sigmoid(o, x, 1.0 / 6, 0.5));
}
static sbp_value mish(sbp_onnx *o, sbp_value x, double alpha, double gamma) {
    (void)alpha, (void)gamma;
    return sbp_build2(&o->builder, SBP_OP_mul, x, sbp_build1(&o->builder, SBP_OP_tanh, softplus(o, x)));
}
static sbp_value thresholded(sbp_onnx *o, sbp_value x, double alpha, double gamma) {
    (void)gamma;
    return sbp_build3(&o->builder, SBP_OP_select, sbp_build2(&o->builder, SBP_OP_lt, number(o, alpha), x), x,
                      number(o, 0));
}

sbp_status sbp_onnx_activation(sbp_onnx *o) {
    static const char *const known[] = {"alpha", "beta", "gamma", NULL};
    static const struct {
        const char *op;
        sbp_value (*build)(sbp_onnx *o, sbp_value x, double alpha, double gamma);
        double alpha, gamma;
        const char *second; /* the attribute that gamma is */
    } all[] = {
        {"Relu", relu, 0, 0, "gamma"},
        {"LeakyRelu", leaky_relu, (double)0.01f, 0, "gamma"},
        {"Elu", elu, 1, 0, "gamma"},
        {"Celu", celu, 1, 0, "gamma"},
        {"Selu", selu, (double)1.67326319217681884765625f, (double)1.05070102214813232421875f, "gamma"},
        {"Softplus", plus, 0, 0, "gamma"},
        {"Softsign", softsign, 0, 0, "gamma"},
        {"HardSigmoid", hard_sigmoid, (double)0.2f, 0.5, "beta"},
        {"HardSwish", hard_swish, 0, 0, "gamma"},
        {"Mish", mish, 0, 0, "gamma"},
        {"ThresholdedRelu", thresholded, 1, 0, "gamma"}};
    const sbp_onnx_value *x;
    int64_t dim[SBP_MAX_RANK];
    int32_t rank, i = 0;
    sbp_value value;
    while (i < SBP_COUNT(all) - 1 && strcmp(all[i].op, o->node->op) != 0)
        i++;
    double alpha = all[i].alpha, gamma = all[i].gamma;
    SBP_TRY(most_inputs(o, 1));
    SBP_TRY(sbp_onnx_attrs_known(o, known));
    SBP_TRY(sbp_onnx_attr_float(o, "alpha", &alpha));
    SBP_TRY(sbp_onnx_attr_float(o, all[i].second, &gamma));
    SBP_TRY(sbp_onnx_required(o, 0, &x));
    SBP_TRY(sbp_onnx_broadcast(o, &x, 1, &value, &rank, dim));
    sbp_onnx_define_value(o, 0, all[i].build(o, value, alpha, gamma), x->type, rank, dim);
    return o->builder.status;
}

/* x, at least input 1 and at most input 2. */
sbp_status sbp_onnx_clip(sbp_onnx *o) {
    static const char *const none[] = {NULL};
    const sbp_onnx_value *in[3] = {sbp_onnx_input(o, 0), sbp_onnx_input(o, 1), sbp_onnx_input(o, 2)};
    const sbp_onnx_value *present[3];
    sbp_value value[3], y;
    int64_t dim[SBP_MAX_RANK];
    int32_t rank, count = 0;
    SBP_TRY(most_inputs(o, 3));
    SBP_TRY(sbp_onnx_attrs_known(o, none));
    SBP_TRY(sbp_onnx_required(o, 0, &in[0]));
    present[count++] = in[0];
    for (int32_t i = 1; i < 3; i++)
        if (in[i])
            present[count++] = in[i];
    SBP_TRY(sbp_onnx_broadcast(o, present, count, value, &rank, dim));
    y = value[0];
    if (in[1])
        y = sbp_build2(&o->builder, SBP_OP_max, y, value[1]);
    if (in[2])
        y = sbp_build2(&o->builder, SBP_OP_min, y, value[count - 1]);
    sbp_onnx_define_value(o, 0, y, in[0]->type, rank, dim);
    return o->builder.status;
}

/* Operators with any number of operands. */
sbp_status sbp_onnx_variadic(sbp_onnx *o) {
    static const char *const none[] = {NULL};
    const char *op = o->node->op;
    int32_t count = o->node->input_count, rank;
    int64_t dim[SBP_MAX_RANK];
    const sbp_onnx_value *in[8];
    sbp_value value[8];
    sbp_opcode code = strcmp(op, "Max") == 0   ? SBP_OP_max
                      : strcmp(op, "Min") == 0 ? SBP_OP_min
                                               : SBP_OP_add; /* Sum, Mean */
    SBP_TRY(sbp_onnx_attrs_known(o, none));
    if (count < 1 || count > SBP_COUNT(in))
        return sbp_onnx_fail(o, "the node has %d operands; up to %d are supported", count,
                             (int)SBP_COUNT(in));
    for (int32_t i = 0; i < count; i++)
        SBP_TRY(sbp_onnx_required(o, i, &in[i]));
    SBP_TRY(sbp_onnx_broadcast(o, in, count, value, &rank, dim));
    for (int32_t i = 1; i < count; i++)
        value[0] = sbp_build2(&o->builder, code, value[0], value[i]);
    if (strcmp(op, "Mean") == 0)
        value[0] = times(o, value[0], 1.0 / count);
    sbp_onnx_define_value(o, 0, value[0], in[0]->type, rank, dim);
    return o->builder.status;
}

/* ---- comparisons ----------------------------------------------------------------------------------------
 */

/* BOOL values, which comparisons give: as numbers of the wide type here, they take the same way through
 * shapes as others. */
static sbp_status truth_operand(sbp_onnx *o, const sbp_onnx_value *v, sbp_onnx_value *out) {
    *out = *v;
    if (v->type != SBP_ONNX_BOOL)
        return sbp_onnx_fail(o, "'%s' is %s, BOOL expected", v->name, sbp_onnx_type_name(v->type));
    out->type = SBP_ONNX_FLOAT;
    return SBP_OK;
}

/* Such a number as a truth value of the graph IR. */
static sbp_value truth(sbp_onnx *o, sbp_value x) {
    return sbp_build1(&o->builder, SBP_OP_not, sbp_build2(&o->builder, SBP_OP_eq, x, number(o, 0)));
}

/* Defines output 0: a truth value. */
static sbp_status define_truth(sbp_onnx *o, sbp_value y, int32_t rank, const int64_t *dim) {
    sbp_value one = number(o, 1), none = number(o, 0);
    sbp_onnx_define_value(o, 0, sbp_build3(&o->builder, SBP_OP_select, y, one, none), SBP_ONNX_BOOL, rank,
                          dim);
    return o->builder.status;
}

sbp_status sbp_onnx_compare(sbp_onnx *o) {
    static const char *const none[] = {NULL};
    static const struct {
        const char *op;
        sbp_opcode code;
        bool swapped, truth;
    } all[] = {{"Less", SBP_OP_lt, false, false},
               {"Greater", SBP_OP_lt, true, false},
               {"LessOrEqual", SBP_OP_le, false, false},
               {"GreaterOrEqual", SBP_OP_le, true, false},
               {"Equal", SBP_OP_eq, false, false},
               {"And", SBP_OP_and, false, true},
               {"Or", SBP_OP_or, false, true}};
    const sbp_onnx_value *in[2];
    sbp_onnx_value copy[2];
    sbp_value value[2];
    int64_t dim[SBP_MAX_RANK];
    int32_t rank, i = 0;
    while (i < SBP_COUNT(all) - 1 && strcmp(all[i].op, o->node->op) != 0)
        i++;
    SBP_TRY(most_inputs(o, 2));
    SBP_TRY(sbp_onnx_attrs_known(o, none));
    for (int32_t k = 0; k < 2; k++) {
        SBP_TRY(sbp_onnx_required(o, k, &in[k]));
        if (all[i].truth) {
            SBP_TRY(truth_operand(o, in[k], &copy[k]));
            in[k] = &copy[k];
        }
    }
    SBP_TRY(sbp_onnx_broadcast(o, in, 2, value, &rank, dim));
    for (int32_t k = 0; all[i].truth && k < 2; k++)
        value[k] = truth(o, value[k]);
    sbp_value y = sbp_build2(&o->builder, all[i].code, value[all[i].swapped], value[!all[i].swapped]);
    return define_truth(o, y, rank, dim);
}

/* Numbers that are not 0. */
sbp_status sbp_onnx_cast_truth(sbp_onnx *o, const sbp_onnx_value *x) {
    sbp_value value;
    int64_t dim[SBP_MAX_RANK];
    int32_t rank;
    SBP_TRY(sbp_onnx_broadcast(o, &x, 1, &value, &rank, dim));
    return define_truth(o, truth(o, value), rank, dim);
}

sbp_status sbp_onnx_not(sbp_onnx *o) {
    static const char *const none[] = {NULL};
    const sbp_onnx_value *x;
    sbp_onnx_value copy;
    sbp_value value;
    int64_t dim[SBP_MAX_RANK];
    int32_t rank;
    SBP_TRY(most_inputs(o, 1));
    SBP_TRY(sbp_onnx_attrs_known(o, none));
    SBP_TRY(sbp_onnx_required(o, 0, &x));
    SBP_TRY(truth_operand(o, x, &copy));
    x = &copy;
    SBP_TRY(sbp_onnx_broadcast(o, &x, 1, &value, &rank, dim));
    return define_truth(o, sbp_build2(&o->builder, SBP_OP_eq, value, number(o, 0)), rank, dim);
}

sbp_status sbp_onnx_where(sbp_onnx *o) {
    static const char *const none[] = {NULL};
    const sbp_onnx_value *in[3];
    sbp_onnx_value condition;
    sbp_value value[3];
    int64_t dim[SBP_MAX_RANK];
    int32_t rank;
    SBP_TRY(most_inputs(o, 3));
    SBP_TRY(sbp_onnx_attrs_known(o, none));
    for (int32_t i = 0; i < 3; i++)
        SBP_TRY(sbp_onnx_required(o, i, &in[i]));
    SBP_TRY(truth_operand(o, in[0], &condition));
    sbp_onnx_type type = in[1]->type;
    in[0] = &condition;
    SBP_TRY(sbp_onnx_broadcast(o, in, 3, value, &rank, dim));
    sbp_onnx_define_value(o, 0,
                          sbp_build3(&o->builder, SBP_OP_select, truth(o, value[0]), value[1], value[2]),
                          type, rank, dim);
    return o->builder.status;
}
