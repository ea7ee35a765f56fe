/* onnx_positions.c: numbers that follow from positions, where activations are computed with them: P pos + Q,
 * with tables P and Q over the other axes (the angles of rotary embeddings). */
#include "frontends/onnx/onnx.h"

#include <string.h>

enum { MOST_NUMBERS = 1 << 16 };

bool sbp_onnx_is_positions(const sbp_onnx_value *v) {
    const sbp_number *e = v->numbers.element;
    return v->kind == SBP_ONNX_NUMBERS && v->rank >= 1 && v->dim[v->rank - 1] == SBP_ONNX_ROWS &&
           e->kind == SBP_NUMBER_AXIS && e->axis == v->rank - 1;
}

/* A number per place of the other axes. */
static sbp_status build_table(sbp_onnx *o, const sbp_onnx_value *v, int32_t rows, const sbp_number *a,
                              sbp_value *out) {
    int64_t dims[SBP_MAX_RANK + 1], elems = 1;
    int32_t axes[SBP_MAX_RANK + 1], count = 0;
    double c;
    if (sbp_number_is_constant(a, &c)) {
        *out = sbp_build_const(&o->builder, o->wide, c);
        return o->builder.status;
    }
    for (int32_t d = rows > 0 && v->dim[0] == 1 ? 1 : 0; d < v->rank; d++) {
        if (d == rows || (count == 0 && !(a->axes >> d & 1)))
            continue;
        axes[count] = d;
        dims[count++] = a->axes >> d & 1 ? v->dim[d] : 1;
        elems *= dims[count - 1];
    }
    if (elems > MOST_NUMBERS)
        return sbp_onnx_fail(o, "'%s' has %lld numbers that are no parameters", v->name, (long long)elems);
    double *data = SBP_NEW_ARRAY(o->arena, double, elems);
    for (int64_t i = 0; i < elems; i++) {
        double at[SBP_NUMBERS_RANK] = {0};
        int64_t rest = i;
        for (int32_t k = count - 1; k >= 0; k--) {
            at[axes[k]] = (double)(rest % dims[k]);
            rest /= dims[k];
        }
        data[i] = sbp_number_value(a, at, 1);
    }
    sbp_onnx_value constant = {.name = sbp_arena_printf(o->arena, "%s.%d", v->name, a->id),
                               .kind = SBP_ONNX_CONSTANT,
                               .type = SBP_ONNX_FLOAT,
                               .rank = count,
                               .data = data};
    memcpy(constant.dim, dims, (size_t)count * sizeof *dims);
    return sbp_onnx_materialize(o, &constant, o->wide, out);
}

/* Whether a is P row + Q with P and Q that do not depend on the row. */
static bool is_affine(const sbp_number *a, int32_t rows) {
    bool affine = true;
    if (!(a->axes >> rows & 1))
        return true;
    switch (a->kind) {
    case SBP_NUMBER_AXIS:
        return true;
    case SBP_NUMBER_LINEAR:
        for (int32_t i = 0; affine && i < a->count; i++)
            affine = is_affine(a->terms[i].value, rows);
        return affine;
    case SBP_NUMBER_PRODUCT:
        return (a->a->axes & a->b->axes & UINT32_C(1) << rows) == 0 && is_affine(a->a, rows) &&
               is_affine(a->b, rows);
    case SBP_NUMBER_QUOTIENT:
        return !(a->b->axes >> rows & 1) && is_affine(a->a, rows);
    case SBP_NUMBER_CHOICE:
        return !(a->a->axes >> rows & 1) && is_affine(a->b, rows) && is_affine(a->c, rows);
    default:
        return false;
    }
}

/* pos P + Q */
static sbp_status build(sbp_onnx *o, const sbp_onnx_value *v, int32_t rows, sbp_value *out) {
    sbp_builder *b = &o->builder;
    sbp_numbers *n = &o->numbers;
    const sbp_number *a = v->numbers.element, *with[SBP_NUMBERS_RANK] = {NULL};
    sbp_value p, q;
    if (a->tokens)
        return sbp_onnx_fail(o, "'%s' depends on the number of tokens; activations may not", v->name);
    if (rows < 0 || !(a->axes >> rows & 1))
        return build_table(o, v, rows, a, out);
    if (!is_affine(a, rows))
        return sbp_onnx_fail(o, "'%s' depends on positions in a way that is not built", v->name);
    with[rows] = sbp_number_constant(n, 0);
    const sbp_number *at_0 = sbp_number_substitute(n, a, with, SBP_NUMBERS_RANK);
    with[rows] = sbp_number_constant(n, 1);
    const sbp_number *slope =
        sbp_number_add(n, sbp_number_substitute(n, a, with, SBP_NUMBERS_RANK), -1, at_0);
    *out = sbp_build_cast(b, sbp_build_row(b, "pos", SBP_I32, SBP_T), o->wide);
    int64_t dims[SBP_MAX_RANK];
    int32_t count;
    SBP_TRY(sbp_onnx_ir_dims(o, v->rank, v->dim, dims, &count));
    for (int32_t d = 0; d < count; d++)
        dims[d] = 1;
    *out = sbp_onnx_with_dims(o, *out, dims, count);
    if (!sbp_number_equals(slope, 1)) {
        SBP_TRY(build_table(o, v, rows, slope, &p));
        *out = sbp_build2(b, SBP_OP_mul, *out, p);
    }
    if (!sbp_number_equals(at_0, 0)) {
        SBP_TRY(build_table(o, v, rows, at_0, &q));
        *out = sbp_build2(b, SBP_OP_add, *out, q);
    }
    return b->status;
}

sbp_status sbp_onnx_numbers_value(sbp_onnx *o, const sbp_onnx_value *v, sbp_onnx_value *out) {
    int32_t rows = sbp_onnx_rows_axis(v);
    int64_t dims[SBP_MAX_RANK];
    int32_t count;
    for (int32_t d = 0; d < v->rank; d++)
        if (v->dim[d] == SBP_ONNX_OTHER || (v->dim[d] == SBP_ONNX_ROWS && d != rows))
            return sbp_onnx_fail(o, "'%s' is %s: a mask, or a shape, is used as an activation", v->name,
                                 sbp_onnx_shape_text(o, v));
    *out = *v;
    out->kind = SBP_ONNX_VALUE;
    SBP_TRY(sbp_onnx_ir_dims(o, v->rank, v->dim, dims, &count));
    SBP_TRY(build(o, v, rows, &out->value));
    const sbp_type *type = sbp_build_type(&o->builder, out->value);
    bool short_of = type->rank != count + (rows >= 0) || (rows >= 0) != (sbp_type_rows(type) != SBP_ONE);
    for (int32_t d = 0; !short_of && d < count; d++)
        short_of = type->dim[d + (rows >= 0)].n != dims[d];
    if (short_of) /* repeated along axes that it does not depend on */
        return sbp_onnx_fail(o, "'%s' %s repeats numbers in a way that is not built", v->name,
                             sbp_onnx_shape_text(o, v));
    return o->builder.status;
}
