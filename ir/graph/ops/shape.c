/* shape.c: rearrangement inside a row, constants and casts.
 *
 *   reshape        same elements, other constant dimensions; rows stay
 *   slice          x[.., start : start + length] of the last axis
 *   concat         a and b joined along the last axis
 *   pad            zeros before and after along the last axis
 *   cast           rounded to another type: a float, an integer of at most 32 bits, d8, ud8; integers and
 *                  truth values become numbers
 *   constant       a scalar
 *   iota           0 .. n-1
 *   stop_gradient  x, with no derivative
 *   broadcast      x repeated along dimensions of size 1, missing leading dimensions and, with rows, over
 *                  rows */
#include "ir/graph/rules.h"

#include <string.h>

/* ---- reshape -------------------------------------------------------------------------------------- */

sbp_status sbp_rule_with_dims(const sbp_shape *shape, sbp_symbol rows, sbp_type *out) {
    const sbp_attr *dims = sbp_op_attr(shape->op, "dims");
    out->rank = 0;
    if (rows != SBP_ONE)
        out->dim[out->rank++] = sbp_dim_symbol(rows);
    SBP_SHAPE_REQUIRE(shape, 1, out->rank + dims->i <= SBP_MAX_RANK, "%lld dimensions", (long long)dims->i);
    for (int64_t i = 0; i < dims->i; i++) {
        SBP_SHAPE_REQUIRE(shape, 2, dims->list[i] >= 0, "dimension %lld", (long long)dims->list[i]);
        out->dim[out->rank++] = sbp_dim_const(dims->list[i]);
    }
    return SBP_OK;
}

sbp_status sbp_shape_reshape(sbp_shape *shape) {
    const sbp_type *x = &shape->in[0];
    sbp_type *y = &shape->out[0];
    y->dtype = x->dtype;
    SBP_TRY(sbp_rule_with_dims(shape, sbp_type_rows(x), y));
    SBP_SHAPE_REQUIRE(shape, 3, sbp_type_row_elems(x) == sbp_type_row_elems(y),
                      "%s has %lld elements a row, %s has %lld", sbp_shape_text(x),
                      (long long)sbp_type_row_elems(x), sbp_shape_text(y), (long long)sbp_type_row_elems(y));
    return SBP_OK;
}

SBP_RULE_SEQ_ROW(reshape)

static sbp_value reshape_like(sbp_builder *b, sbp_value x, const sbp_type *like) {
    int64_t dims[SBP_MAX_RANK];
    int32_t count = 0;
    for (int32_t d = 0; d < like->rank; d++)
        if (like->dim[d].symbol == SBP_ONE)
            dims[count++] = like->dim[d].n;
    return sbp_build_reshape(b, x, dims, count);
}

sbp_status sbp_vjp_reshape(sbp_vjp *vjp) {
    sbp_type x = *sbp_build_type(vjp->builder, vjp->in[0]);
    vjp->din[0] = reshape_like(vjp->builder, vjp->dout[0], &x);
    return vjp->builder->status;
}

static sbp_status copy_elements(const sbp_eval *eval) {
    memcpy(eval->out[0]->data, eval->in[0]->data, (size_t)eval->out[0]->elems * sizeof(double));
    return SBP_OK;
}

sbp_status sbp_eval_reshape(const sbp_eval *eval) {
    return copy_elements(eval);
}

bool sbp_examples_reshape(int32_t index, sbp_example *out) {
    static const int64_t heads[] = {3, 4}, column[] = {1}, flat[] = {12};
    static const struct {
        const char *type;
        const int64_t *dims;
        int64_t count;
    } cases[] = {
        {"f64[T,12]", heads, 2}, {"f64[T]", column, 1}, {"f64[T,3,4]", flat, 1}, {"f64[3,4]", flat, 1}};
    if (index >= SBP_COUNT(cases))
        return false;
    out->in[0] = sbp_example_float(cases[index].type, -1, 1);
    out->in_count = 1;
    out->attrs[0] = sbp_attr_list("dims", cases[index].dims, cases[index].count);
    out->attr_count = 1;
    return true;
}

/* ---- slice, concat, pad --------------------------------------------------------------------------- */

static sbp_status last_axis(const sbp_shape *shape, const sbp_type *x, int64_t *n) {
    SBP_SHAPE_REQUIRE(shape, 1, x->rank > 0 && x->dim[x->rank - 1].symbol == SBP_ONE,
                      "%s has no last axis of constant size", sbp_shape_text(x));
    *n = x->dim[x->rank - 1].n;
    return SBP_OK;
}

sbp_status sbp_shape_slice(sbp_shape *shape) {
    int64_t n = 0, start = sbp_op_int(shape->op, "start"), length = sbp_op_int(shape->op, "length");
    SBP_TRY(last_axis(shape, &shape->in[0], &n));
    SBP_SHAPE_REQUIRE(shape, 2, start >= 0 && length >= 0 && start <= n && length <= n - start,
                      "%lld elements from %lld of %s", (long long)length, (long long)start,
                      sbp_shape_text(&shape->in[0]));
    shape->out[0] = shape->in[0];
    shape->out[0].dim[shape->in[0].rank - 1].n = length;
    return SBP_OK;
}

SBP_RULE_SEQ_ROW(slice)

static sbp_value build_pad(sbp_builder *b, sbp_value x, int64_t before, int64_t after) {
    return sbp_build(b, SBP_OP_pad, NULL, &x, 1,
                     (sbp_attr[]){sbp_attr_int("before", before), sbp_attr_int("after", after)}, 2, NULL);
}

static int64_t last_dim(const sbp_builder *b, sbp_value x) {
    const sbp_type *type = sbp_build_type(b, x);
    return type->rank > 0 ? type->dim[type->rank - 1].n : 0;
}

sbp_status sbp_vjp_slice(sbp_vjp *vjp) {
    int64_t start = sbp_op_int(&vjp->op, "start"), length = sbp_op_int(&vjp->op, "length");
    vjp->din[0] =
        build_pad(vjp->builder, vjp->dout[0], start, last_dim(vjp->builder, vjp->in[0]) - start - length);
    return vjp->builder->status;
}

/* out row = [zeros(before), x[skip : skip + n], zeros], for every combination of the other axes. */
static void place(const sbp_tensor *x, int64_t skip, int64_t n, sbp_tensor *out, int64_t at) {
    int64_t nx = x->dim[x->type.rank - 1], ny = out->dim[out->type.rank - 1];
    int64_t lines = nx > 0 ? x->elems / nx : 0;
    for (int64_t r = 0; r < lines; r++)
        for (int64_t j = 0; j < n; j++)
            out->data[r * ny + at + j] = x->data[r * nx + skip + j];
}

sbp_status sbp_eval_slice(const sbp_eval *eval) {
    place(eval->in[0], sbp_op_int(eval->op, "start"), sbp_op_int(eval->op, "length"), eval->out[0], 0);
    return SBP_OK;
}

bool sbp_examples_slice(int32_t index, sbp_example *out) {
    static const struct {
        const char *x;
        int64_t start, length;
    } cases[] = {{"f64[T,8]", 3, 5}, {"f64[T,2,6]", 0, 3}, {"f64[T,3,2]", 1, 1}};
    if (index >= SBP_COUNT(cases))
        return false;
    out->in[0] = sbp_example_float(cases[index].x, -1, 1);
    out->in_count = 1;
    out->attrs[0] = sbp_attr_int("start", cases[index].start);
    out->attrs[1] = sbp_attr_int("length", cases[index].length);
    out->attr_count = 2;
    return true;
}

sbp_status sbp_shape_concat(sbp_shape *shape) {
    int64_t na = 0, nb = 0;
    const sbp_type *a = &shape->in[0], *b = &shape->in[1];
    SBP_TRY(last_axis(shape, a, &na));
    SBP_TRY(last_axis(shape, b, &nb));
    sbp_type joined = *a, other = *b;
    joined.dim[a->rank - 1].n = other.dim[b->rank - 1].n = na + nb;
    SBP_SHAPE_REQUIRE(shape, 2, sbp_type_equal(&joined, &other),
                      "%s and %s differ in more than the last axis", sbp_shape_text(a), sbp_shape_text(b));
    shape->out[0] = joined;
    return SBP_OK;
}

SBP_RULE_SEQ_ROW(concat)

sbp_status sbp_vjp_concat(sbp_vjp *vjp) {
    int64_t na = last_dim(vjp->builder, vjp->in[0]), nb = last_dim(vjp->builder, vjp->in[1]);
    if (vjp->need[0])
        vjp->din[0] = sbp_build_slice(vjp->builder, vjp->dout[0], 0, na);
    if (vjp->need[1])
        vjp->din[1] = sbp_build_slice(vjp->builder, vjp->dout[0], na, nb);
    return vjp->builder->status;
}

sbp_status sbp_eval_concat(const sbp_eval *eval) {
    const sbp_tensor *a = eval->in[0], *b = eval->in[1];
    int64_t na = a->dim[a->type.rank - 1], nb = b->dim[b->type.rank - 1];
    place(a, 0, na, eval->out[0], 0);
    place(b, 0, nb, eval->out[0], na);
    return SBP_OK;
}

bool sbp_examples_concat(int32_t index, sbp_example *out) {
    if (index >= 2)
        return false;
    out->in[0] = sbp_example_float(index == 0 ? "f64[T,3]" : "f64[T,2,4]", -1, 1);
    out->in[1] = sbp_example_float(index == 0 ? "f64[T,5]" : "f64[T,2,4]", -1, 1);
    out->in_count = 2;
    return true;
}

sbp_status sbp_shape_pad(sbp_shape *shape) {
    int64_t n = 0, before = sbp_op_int(shape->op, "before"), after = sbp_op_int(shape->op, "after");
    SBP_TRY(last_axis(shape, &shape->in[0], &n));
    SBP_SHAPE_REQUIRE(shape, 2, before >= 0 && after >= 0 && before <= INT32_MAX && after <= INT32_MAX,
                      "%lld before, %lld after", (long long)before, (long long)after);
    shape->out[0] = shape->in[0];
    shape->out[0].dim[shape->in[0].rank - 1].n = before + n + after;
    return SBP_OK;
}

SBP_RULE_SEQ_ROW(pad)

sbp_status sbp_vjp_pad(sbp_vjp *vjp) {
    vjp->din[0] = sbp_build_slice(vjp->builder, vjp->dout[0], sbp_op_int(&vjp->op, "before"),
                                  last_dim(vjp->builder, vjp->in[0]));
    return vjp->builder->status;
}

sbp_status sbp_eval_pad(const sbp_eval *eval) {
    const sbp_tensor *x = eval->in[0];
    place(x, 0, x->dim[x->type.rank - 1], eval->out[0], sbp_op_int(eval->op, "before"));
    return SBP_OK;
}

bool sbp_examples_pad(int32_t index, sbp_example *out) {
    if (index >= 2)
        return false;
    out->in[0] = sbp_example_float(index == 0 ? "f64[T,3]" : "f64[T,2,4]", -1, 1);
    out->in_count = 1;
    out->attrs[0] = sbp_attr_int("before", index == 0 ? 2 : 0);
    out->attrs[1] = sbp_attr_int("after", index == 0 ? 1 : 4);
    out->attr_count = 2;
    return true;
}

/* ---- cast, constant, iota, stop_gradient ---------------------------------------------------------- */

sbp_status sbp_shape_cast(sbp_shape *shape) {
    shape->out[0] = shape->in[0];
    shape->out[0].dtype = (sbp_dtype)sbp_op_int(shape->op, "to");
    SBP_SHAPE_REQUIRE(shape, 1, shape->out[0].dtype != SBP_BOOL && shape->out[0].dtype != SBP_I64,
                      "cast to %s", sbp_dtype_name(shape->out[0].dtype));
    return SBP_OK;
}

SBP_RULE_SEQ_ROW(cast)

sbp_status sbp_vjp_cast(sbp_vjp *vjp) {
    sbp_dtype from = sbp_build_type(vjp->builder, vjp->in[0])->dtype;
    if (sbp_dtype_is_float(from)) /* to the operand's type once it is added to the others */
        vjp->din[0] = sbp_build_cast(vjp->builder, vjp->dout[0], sbp_rule_wide(from));
    return vjp->builder->status;
}

/* The evaluator works in double; it rounds results to their types or not at all (evaluate.h). */
sbp_status sbp_eval_cast(const sbp_eval *eval) {
    return copy_elements(eval);
}

bool sbp_examples_cast(int32_t index, sbp_example *out) {
    static const struct {
        const char *from;
        sbp_dtype to;
        double limit;
    } cases[] = {{"f64[T,3]", SBP_F64, 1}, {"i32[T]", SBP_F64, 9},   {"f64[T,3]", SBP_D8, 1},
                 {"ud8[3]", SBP_F64, 1},   {"f64[T]", SBP_I16, 300}, {"i16[T,2,3]", SBP_F64, 9}};
    if (index >= SBP_COUNT(cases))
        return false;
    bool integers = cases[index].from[0] == 'i';
    out->in[0] = integers ? sbp_example_int(cases[index].from, -9, 9)
                          : sbp_example_float(cases[index].from, -cases[index].limit, cases[index].limit);
    out->in_count = 1;
    out->attrs[0] = sbp_attr_dtype("to", cases[index].to);
    out->attr_count = 1;
    return true;
}

sbp_status sbp_shape_constant(sbp_shape *shape) {
    shape->out[0] = (sbp_type){.dtype = (sbp_dtype)sbp_op_int(shape->op, "dtype")};
    return SBP_OK;
}

SBP_RULE_SEQ_ROW(constant)

sbp_status sbp_vjp_constant(sbp_vjp *vjp) {
    (void)vjp;
    return SBP_OK;
}

sbp_status sbp_eval_constant(const sbp_eval *eval) {
    eval->out[0]->data[0] = sbp_op_double(eval->op, "value");
    return SBP_OK;
}

bool sbp_examples_constant(int32_t index, sbp_example *out) {
    out->attrs[0] = sbp_attr_double("value", 0.1);
    out->attrs[1] = sbp_attr_dtype("dtype", SBP_F64);
    out->attr_count = 2;
    return index == 0;
}

sbp_status sbp_shape_iota(sbp_shape *shape) {
    int64_t n = sbp_op_int(shape->op, "n");
    SBP_SHAPE_REQUIRE(shape, 1, n > 0 && n <= 1 << 24, "%lld elements; 1 to 2^24 are exact in fp32",
                      (long long)n);
    shape->out[0] =
        (sbp_type){.dtype = (sbp_dtype)sbp_op_int(shape->op, "dtype"), .rank = 1, .dim = {sbp_dim_const(n)}};
    return SBP_OK;
}

SBP_RULE_SEQ_ROW(iota)

sbp_status sbp_vjp_iota(sbp_vjp *vjp) {
    (void)vjp;
    return SBP_OK;
}

sbp_status sbp_eval_iota(const sbp_eval *eval) {
    for (int64_t i = 0; i < eval->out[0]->elems; i++)
        eval->out[0]->data[i] = (double)i;
    return SBP_OK;
}

bool sbp_examples_iota(int32_t index, sbp_example *out) {
    out->attrs[0] = sbp_attr_int("n", 5);
    out->attrs[1] = sbp_attr_dtype("dtype", SBP_F64);
    out->attr_count = 2;
    return index == 0;
}

sbp_status sbp_shape_stop_gradient(sbp_shape *shape) {
    shape->out[0] = shape->in[0];
    return SBP_OK;
}

SBP_RULE_SEQ_ROW(stop_gradient)

sbp_status sbp_vjp_stop_gradient(sbp_vjp *vjp) {
    (void)vjp;
    return SBP_OK;
}

sbp_status sbp_eval_stop_gradient(const sbp_eval *eval) {
    return copy_elements(eval);
}

bool sbp_examples_stop_gradient(int32_t index, sbp_example *out) {
    out->in[0] = sbp_example_float("f64[T,3]", -1, 1);
    out->in_count = 1;
    return index == 0;
}

/* ---- broadcast ------------------------------------------------------------------------------------ */

sbp_symbol sbp_rule_rows_attr(const sbp_op *op) {
    for (int s = 1; s < SBP_SYMBOL_COUNT; s++)
        if (sbp_op_symbol_is(op, "rows", sbp_symbol_name((sbp_symbol)s)))
            return (sbp_symbol)s;
    return SBP_ONE;
}

sbp_status sbp_shape_broadcast(sbp_shape *shape) {
    const sbp_type *x = &shape->in[0];
    sbp_type *y = &shape->out[0];
    sbp_symbol rows = sbp_rule_rows_attr(shape->op);
    y->dtype = x->dtype;
    SBP_TRY(sbp_rule_with_dims(shape, rows, y));
    int32_t shift = y->rank - x->rank;
    SBP_SHAPE_REQUIRE(shape, 3,
                      shift >= 0 && (sbp_type_rows(x) == rows || (sbp_type_rows(x) == SBP_ONE && shift > 0)),
                      "%s to %s", sbp_shape_text(x), sbp_shape_text(y));
    for (int32_t d = 0; d < x->rank; d++)
        SBP_SHAPE_REQUIRE(shape, 4,
                          sbp_dim_equal(x->dim[d], y->dim[d + shift]) ||
                              (x->dim[d].symbol == SBP_ONE && x->dim[d].n == 1),
                          "%s to %s", sbp_shape_text(x), sbp_shape_text(y));
    return SBP_OK;
}

SBP_RULE_SEQ_ROW(broadcast)

sbp_status sbp_vjp_broadcast(sbp_vjp *vjp) {
    sbp_type x = *sbp_build_type(vjp->builder, vjp->in[0]);
    vjp->din[0] = sbp_vjp_reduce_to(vjp->builder, vjp->dout[0], &x);
    return vjp->builder->status;
}

sbp_status sbp_eval_broadcast(const sbp_eval *eval) {
    int64_t index[SBP_MAX_RANK] = {0};
    for (int64_t i = 0; i < eval->out[0]->elems; i++) {
        eval->out[0]->data[i] = eval->in[0]->data[sbp_rule_broadcast_index(eval->in[0], eval->out[0], index)];
        sbp_rule_next_index(eval->out[0], index);
    }
    return SBP_OK;
}

bool sbp_examples_broadcast(int32_t index, sbp_example *out) {
    static const int64_t dims[] = {3, 4};
    static const char *const types[] = {"f64[T,1,4]", "f64[4]", "f64[]", "f64[T,3,1]"};
    if (index >= SBP_COUNT(types))
        return false;
    out->in[0] = sbp_example_float(types[index], -1, 1);
    out->in_count = 1;
    out->attrs[0] = sbp_attr_list("dims", dims, 2);
    out->attrs[1] = sbp_attr_symbol("rows", index == 1 ? "none" : "T");
    out->attr_count = 2;
    return true;
}
