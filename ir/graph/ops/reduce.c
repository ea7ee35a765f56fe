/* reduce.c: sums inside a row, over rows and over groups of rows.
 *
 *   row_sum     sum along one axis (not the row axis), kept as size 1
 *   row_max     maximum along the last axis, kept as size 1; row_min likewise
 *   sum_rows    sum over all rows and over leading dimensions, so that `rank` dimensions stay, in the wide
 *               type. A sum to a single number (rank 0) is fp64, as are sums of groups: a running fp32 sum of
 *               50,000 log-probabilities is off by 1
 *   group_sum   y[g] = sum of x[r] over rows with index[r] = g; x [T] -> f64 [S]
 *   group_take  y[r] = x[index[r]]; x [S] -> [T]
 */
#include "ir/graph/rules.h"

#include <math.h>

/* ---- row_sum, row_max, row_min -------------------------------------------------------------------- */

static sbp_status keep_as_one(sbp_shape *shape, int64_t axis) {
    const sbp_type *x = &shape->in[0];
    int64_t d = axis + x->rank;
    SBP_SHAPE_REQUIRE(shape, 1, axis < 0 && d >= 0 && x->dim[d].symbol == SBP_ONE, "axis %lld of %s",
                      (long long)axis, sbp_shape_text(x));
    SBP_SHAPE_REQUIRE(shape, 2, sbp_dtype_is_float(x->dtype), "%s is not a float type", sbp_shape_text(x));
    shape->out[0] = *x;
    shape->out[0].dim[d].n = 1;
    return SBP_OK;
}

sbp_status sbp_shape_row_sum(sbp_shape *shape) {
    return keep_as_one(shape, sbp_op_int(shape->op, "axis"));
}

SBP_RULE_SEQ_ROW(row_sum)

sbp_status sbp_vjp_row_sum(sbp_vjp *vjp) {
    sbp_type x = *sbp_build_type(vjp->builder, vjp->in[0]);
    vjp->din[0] = sbp_build_broadcast(vjp->builder, vjp->dout[0], &x);
    return vjp->builder->status;
}

static double combine(sbp_opcode code, double a, double b) {
    if (code == SBP_OP_row_sum)
        return a + b;
    if (isnan(a) || isnan(b))
        return (double)NAN;
    return code == SBP_OP_row_max ? fmax(a, b) : fmin(a, b);
}

static sbp_status eval_along(const sbp_eval *eval, int64_t axis) {
    const sbp_tensor *x = eval->in[0];
    sbp_axis_split split = sbp_rule_split_axis(x, (int32_t)(axis + x->type.rank));
    for (int64_t o = 0; o < split.outer; o++)
        for (int64_t i = 0; i < split.inner; i++) {
            double acc = eval->op->code == SBP_OP_row_sum   ? 0
                         : eval->op->code == SBP_OP_row_max ? -(double)INFINITY
                                                            : (double)INFINITY;
            for (int64_t j = 0; j < split.n; j++)
                acc = combine(eval->op->code, acc, x->data[(o * split.n + j) * split.inner + i]);
            eval->out[0]->data[o * split.inner + i] = acc;
        }
    return SBP_OK;
}

sbp_status sbp_eval_row_sum(const sbp_eval *eval) {
    return eval_along(eval, sbp_op_int(eval->op, "axis"));
}

bool sbp_examples_row_sum(int32_t index, sbp_example *out) {
    static const struct {
        const char *type;
        int64_t axis;
    } cases[] = {{"f64[T,7]", -1}, {"f64[T,3,4]", -1}, {"f64[T,3,4]", -2}, {"f64[3,4]", -2}};
    if (index >= SBP_COUNT(cases))
        return false;
    out->in[0] = sbp_example_float(cases[index].type, -1, 1);
    out->in_count = 1;
    out->attrs[0] = sbp_attr_int("axis", cases[index].axis);
    out->attr_count = 1;
    return true;
}

sbp_status sbp_shape_row_max(sbp_shape *shape) {
    return keep_as_one(shape, -1);
}

sbp_status sbp_shape_row_min(sbp_shape *shape) {
    return keep_as_one(shape, -1);
}

SBP_RULE_SEQ_ROW(row_max)
SBP_RULE_SEQ_ROW(row_min)

/* The whole cotangent to the element that is the extremum (to each of several equal ones). */
static sbp_status vjp_extremum(sbp_vjp *vjp) {
    sbp_builder *b = vjp->builder;
    sbp_type x = *sbp_build_type(b, vjp->in[0]);
    sbp_value hit = sbp_build2(b, SBP_OP_eq, vjp->in[0], vjp->out[0]);
    sbp_value dy = sbp_build_broadcast(b, vjp->dout[0], &x);
    sbp_value zero = sbp_build_const(b, sbp_build_type(b, dy)->dtype, 0);
    vjp->din[0] = sbp_build3(b, SBP_OP_select, hit, dy, zero);
    return b->status;
}

sbp_status sbp_vjp_row_max(sbp_vjp *vjp) {
    return vjp_extremum(vjp);
}

sbp_status sbp_vjp_row_min(sbp_vjp *vjp) {
    return vjp_extremum(vjp);
}

sbp_status sbp_eval_row_max(const sbp_eval *eval) {
    return eval_along(eval, -1);
}

sbp_status sbp_eval_row_min(const sbp_eval *eval) {
    return eval_along(eval, -1);
}

static bool examples_extremum(int32_t index, sbp_example *out) {
    out->in[0] = sbp_example_float(index == 0 ? "f64[T,7]" : "f64[T,2,5]", -1, 1);
    out->in_count = 1;
    return index < 2;
}

bool sbp_examples_row_max(int32_t index, sbp_example *out) {
    return examples_extremum(index, out);
}

bool sbp_examples_row_min(int32_t index, sbp_example *out) {
    return examples_extremum(index, out);
}

/* ---- sum_rows ------------------------------------------------------------------------------------- */

sbp_status sbp_shape_sum_rows(sbp_shape *shape) {
    const sbp_type *x = &shape->in[0];
    int64_t rank = sbp_op_int(shape->op, "rank");
    SBP_SHAPE_REQUIRE(shape, 1, sbp_type_rows(x) != SBP_ONE, "%s has no rows", sbp_shape_text(x));
    SBP_SHAPE_REQUIRE(shape, 2, rank >= 0 && rank < x->rank, "rank %lld of %s", (long long)rank,
                      sbp_shape_text(x));
    SBP_SHAPE_REQUIRE(shape, 3, sbp_dtype_is_float(x->dtype), "%s is not a float type", sbp_shape_text(x));
    shape->out[0] = (sbp_type){.dtype = rank == 0 ? SBP_F64 : sbp_rule_wide(x->dtype), .rank = (int32_t)rank};
    for (int64_t d = 0; d < rank; d++)
        shape->out[0].dim[d] = x->dim[x->rank - rank + d];
    return SBP_OK;
}

SBP_RULE_SEQ_REDUCE(sum_rows)

sbp_status sbp_vjp_sum_rows(sbp_vjp *vjp) {
    sbp_type x = *sbp_build_type(vjp->builder, vjp->in[0]);
    vjp->din[0] = sbp_build_broadcast(vjp->builder, sbp_build_cast(vjp->builder, vjp->dout[0], x.dtype), &x);
    return vjp->builder->status;
}

sbp_status sbp_eval_sum_rows(const sbp_eval *eval) {
    sbp_tensor *y = eval->out[0];
    for (int64_t i = 0; i < eval->in[0]->elems; i++)
        y->data[i % y->elems] += eval->in[0]->data[i];
    return SBP_OK;
}

bool sbp_examples_sum_rows(int32_t index, sbp_example *out) {
    static const struct {
        const char *type;
        int64_t rank;
    } cases[] = {{"f64[T,5]", 1}, {"f64[T,3,4]", 1}, {"f64[T,3,4]", 2}, {"f64[T]", 0}, {"f64[T,1]", 0}};
    if (index >= SBP_COUNT(cases))
        return false;
    out->in[0] = sbp_example_float(cases[index].type, -1, 1);
    out->in_count = 1;
    out->attrs[0] = sbp_attr_int("rank", cases[index].rank);
    out->attr_count = 1;
    return true;
}

/* ---- groups --------------------------------------------------------------------------------------- */

static sbp_seq seq_group(void) {
    return sbp_seq_of(SBP_SEQ_GROUP);
}

/* index: of T rows, or of W. */
static sbp_status group_operands(sbp_shape *shape, sbp_symbol x_rows) {
    const sbp_type *x = &shape->in[0], *index = &shape->in[1];
    sbp_symbol rows = sbp_type_rows(index);
    if (x_rows == SBP_T && rows == SBP_W)
        x_rows = rows;
    SBP_SHAPE_REQUIRE(shape, 1, x->rank == 1 && sbp_type_rows(x) == x_rows && sbp_dtype_is_float(x->dtype),
                      "x is %s, a float vector over %s expected", sbp_shape_text(x), sbp_symbol_name(x_rows));
    SBP_SHAPE_REQUIRE(shape, 2,
                      index->rank == 1 && (rows == SBP_T || rows == SBP_W) && index->dtype == SBP_I32,
                      "index is %s, i32[T] expected", sbp_shape_text(index));
    return SBP_OK;
}

sbp_status sbp_shape_group_sum(sbp_shape *shape) {
    shape->out[0] = (sbp_type){.dtype = SBP_F64, .rank = 1, .dim = {sbp_dim_symbol(SBP_S)}};
    return group_operands(shape, SBP_T);
}

sbp_seq sbp_seq_group_sum(const sbp_op *op, int32_t operand, int32_t result) {
    (void)op;
    (void)operand;
    (void)result;
    return seq_group();
}

sbp_status sbp_vjp_group_sum(sbp_vjp *vjp) {
    sbp_builder *b = vjp->builder;
    sbp_dtype dtype = sbp_build_type(b, vjp->in[0])->dtype;
    vjp->din[0] = sbp_build_cast(b, sbp_build2(b, SBP_OP_group_take, vjp->dout[0], vjp->in[1]), dtype);
    return b->status;
}

static sbp_status check_group(const sbp_eval *eval, int64_t row, int64_t groups, int64_t *group) {
    double at = eval->in[1]->data[row]; /* of data: anything, also what no integer holds */
    if (!(at >= 0 && at < (double)groups))
        return sbp_fail(eval->env->diag, SBP_INPUT, "%s: group %.0f of %lld", sbp_opcode_name(eval->op->code),
                        at, (long long)groups);
    *group = (int64_t)at;
    return SBP_OK;
}

sbp_status sbp_eval_group_sum(const sbp_eval *eval) {
    for (int64_t r = 0; r < eval->in[0]->elems; r++) {
        int64_t group = 0;
        SBP_TRY(check_group(eval, r, eval->out[0]->elems, &group));
        eval->out[0]->data[group] += eval->in[0]->data[r];
    }
    return SBP_OK;
}

bool sbp_examples_group_sum(int32_t index, sbp_example *out) {
    out->in[0] = sbp_example_float("f64[T]", -1, 1);
    out->in[1] = sbp_example_int("i32[T]", 0, 3);
    out->in_count = 2;
    return index == 0;
}

sbp_status sbp_shape_group_take(sbp_shape *shape) {
    shape->out[0] = (sbp_type){.dtype = shape->in[0].dtype, .rank = 1, .dim = {shape->in[1].dim[0]}};
    return group_operands(shape, SBP_S);
}

sbp_seq sbp_seq_group_take(const sbp_op *op, int32_t operand, int32_t result) {
    (void)result;
    (void)op;
    return operand == 0 ? seq_group() : sbp_seq_of(SBP_SEQ_ROW);
}

sbp_status sbp_vjp_group_take(sbp_vjp *vjp) {
    sbp_builder *b = vjp->builder;
    sbp_dtype dtype = sbp_build_type(b, vjp->in[0])->dtype;
    vjp->din[0] = sbp_build_cast(b, sbp_build2(b, SBP_OP_group_sum, vjp->dout[0], vjp->in[1]), dtype);
    return b->status;
}

sbp_status sbp_eval_group_take(const sbp_eval *eval) {
    for (int64_t r = 0; r < eval->out[0]->elems; r++) {
        int64_t group = 0;
        SBP_TRY(check_group(eval, r, eval->in[0]->elems, &group));
        eval->out[0]->data[r] = eval->in[0]->data[group];
    }
    return SBP_OK;
}

bool sbp_examples_group_take(int32_t index, sbp_example *out) {
    out->in[0] = sbp_example_float("f64[S]", -1, 1);
    out->in[1] = sbp_example_int("i32[T]", 0, 3);
    out->in_count = 2;
    return index == 0;
}
