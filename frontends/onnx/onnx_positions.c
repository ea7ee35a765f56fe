/* onnx_positions.c: numbers that follow from positions, where activations are computed with them: P pos + Q,
 * with tables P and Q over the other axes (the angles of rotary embeddings), functions of such, and rows of
 * tables. */
#include "frontends/onnx/onnx.h"
#include "ir/program/contract.h"

#include <string.h>

enum {
    MOST_NUMBERS = 1 << 16,
    MOST_TABLE = 1 << 18 /* numbers by position that are written into a plan */
};

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
        return sbp_onnx_fail(o, "'%s' has %lld numbers that are not parameters", v->name, (long long)elems);
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
    *out = sbp_onnx_constant_value(o, &constant, o->wide);
    return o->builder.status;
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
static sbp_status build_affine(sbp_onnx *o, const sbp_onnx_value *v, int32_t rows, const sbp_number *a,
                               sbp_value *out) {
    sbp_builder *b = &o->builder;
    sbp_numbers *n = &o->numbers;
    const sbp_number *with[SBP_NUMBERS_RANK] = {NULL};
    sbp_value p, q;
    with[rows] = sbp_number_constant(n, 0);
    const sbp_number *at_0 = sbp_number_substitute(n, a, with, SBP_NUMBERS_RANK);
    with[rows] = sbp_number_constant(n, 1);
    const sbp_number *slope =
        sbp_number_add(n, sbp_number_substitute(n, a, with, SBP_NUMBERS_RANK), -1, at_0);
    *out = sbp_build_cast(b, sbp_build_row(b, sbp_data_columns[SBP_DATA_POS].name, SBP_I32, SBP_T), o->wide);
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

/* ---- rows of tables -------------------------------------------------------------------------------------
 */

/* Shape of a value that depends on the axes of `a` alone, without batch and tokens; their product. */
static sbp_status own_shape(sbp_onnx *o, const sbp_onnx_value *v, int32_t rows, const sbp_number *a,
                            int64_t *dims, int32_t *count, int64_t *elems) {
    *count = 0;
    *elems = 1;
    for (int32_t d = rows > 0 && v->dim[0] == 1 ? 1 : 0; d < v->rank; d++) {
        if (d == rows)
            continue;
        if (*count == SBP_MAX_RANK - 1)
            return sbp_onnx_fail(o, "'%s' has rank %d; at most %d is supported", v->name, v->rank,
                                 SBP_MAX_RANK);
        dims[(*count)++] = a->axes >> d & 1 ? v->dim[d] : 1;
        *elems *= dims[*count - 1];
    }
    return SBP_OK;
}

/* The frozen tensor whose rows `a` takes by position, columns from *start on; NULL when it is no such thing.
 * Its axes of length 1 do not count. */
static const sbp_onnx_tensor *direct_rows(const sbp_onnx *o, const sbp_number *a, int32_t rows,
                                          int64_t columns, int64_t *start) {
    const sbp_onnx_table *table = a->kind == SBP_NUMBER_TABLE ? sbp_onnx_find_table(o, a->table) : NULL;
    const sbp_number *index = a->a;
    int64_t dims[2];
    int32_t count = 0;
    if (!table || index->kind != SBP_NUMBER_LINEAR || index->count != 2)
        return NULL;
    for (int32_t d = 0; d < table->tensor->rank; d++)
        if (table->tensor->dim[d] != 1 && count++ < 2)
            dims[count - 1] = table->tensor->dim[d];
    const sbp_number_term *row = &index->terms[0], *column = &index->terms[1];
    if (row->value->kind != SBP_NUMBER_AXIS || row->value->axis != rows) {
        row = &index->terms[1];
        column = &index->terms[0];
    }
    bool fits = count == 2 && row->value->kind == SBP_NUMBER_AXIS && row->value->axis == rows &&
                row->factor == (double)dims[1] && column->value->kind == SBP_NUMBER_AXIS &&
                column->factor == 1 && index->constant >= 0 &&
                index->constant + (double)columns <= (double)dims[1];
    *start = fits ? (int64_t)index->constant : 0;
    return fits ? table->tensor : NULL;
}

/* The frozen matrix, of the wide type, its axes of length 1 left out. */
static sbp_status wide_matrix(sbp_onnx *o, const sbp_onnx_tensor *t, sbp_value *out) {
    sbp_onnx_value v = {.name = t->name,
                        .kind = SBP_ONNX_PARAMETER,
                        .type = t->type,
                        .rank = t->rank,
                        .tensor = t,
                        .frozen = true};
    bool known = sbp_map_get(&o->frozen, t->name) >= 0;
    int32_t number;
    SBP_TRY(sbp_onnx_param(o, &v, &number));
    sbp_param *param = &o->builder.module->params[number];
    if (!known) {
        param->type.dtype = param->storage = o->wide;
        SBP_TRY(sbp_onnx_squeeze_param(o, number));
    }
    *out = sbp_build_cast(&o->builder, sbp_build_param(&o->builder, number), o->wide);
    return o->builder.status;
}

/* Numbers that no formula gives, by position: rows of a frozen parameter, or of a table that is written into
 * the plan. */
static sbp_status build_rows(sbp_onnx *o, const sbp_onnx_value *v, int32_t rows, const sbp_number *a,
                             sbp_value *out) {
    sbp_builder *b = &o->builder;
    int64_t dims[SBP_MAX_RANK], elems, start;
    int32_t count;
    sbp_value table;
    SBP_TRY(own_shape(o, v, rows, a, dims, &count, &elems));
    const sbp_onnx_tensor *t = direct_rows(o, a, rows, elems, &start);
    if (t) {
        SBP_TRY(wide_matrix(o, t, &table));
    } else {
        double most = o->numbers.most_tokens;
        int64_t n = most <= MOST_TABLE ? (int64_t)most : 0;
        if (n == 0 || elems > MOST_TABLE / n)
            return sbp_onnx_fail(o, "'%s' depends on positions in a way that is not supported", v->name);
        double *data = SBP_NEW_ARRAY(o->arena, double, n *elems);
        for (int64_t i = 0; i < n * elems; i++) {
            double at[SBP_NUMBERS_RANK] = {0};
            int64_t rest = i % elems, row = i / elems;
            for (int32_t d = v->rank - 1; d >= 0; d--)
                if (d != rows && a->axes >> d & 1) {
                    at[d] = (double)(rest % v->dim[d]);
                    rest /= v->dim[d];
                }
            at[rows] = (double)row;
            data[i] = sbp_number_value(a, at, 1);
        }
        sbp_onnx_value constant = {.name = sbp_arena_printf(o->arena, "rows.%d", a->id),
                                   .kind = SBP_ONNX_CONSTANT,
                                   .type = SBP_ONNX_FLOAT,
                                   .rank = 2,
                                   .dim = {n, elems},
                                   .data = data};
        start = 0;
        table = sbp_onnx_constant_value(o, &constant, o->wide);
        if (sbp_build_type(b, table)->rank == 0)
            table = sbp_build_reshape(b, table, (int64_t[]){1, 1}, 2);
    }
    *out = sbp_build2(b, SBP_OP_gather, table,
                      sbp_build_row(b, sbp_data_columns[SBP_DATA_POS].name, SBP_I32, SBP_T));
    if (b->status == SBP_OK && sbp_build_type(b, *out)->dim[1].n != elems)
        *out = sbp_build_slice(b, *out, start, elems);
    *out = sbp_onnx_with_dims(o, *out, dims, count);
    return b->status;
}

/* ---- everything -----------------------------------------------------------------------------------------
 */

static sbp_status build(sbp_onnx *o, const sbp_onnx_value *v, int32_t rows, const sbp_number *a,
                        sbp_value *out);

/* constant + sum of factor * term */
static sbp_status build_sum(sbp_onnx *o, const sbp_onnx_value *v, int32_t rows, const sbp_number *a,
                            sbp_value *out) {
    sbp_builder *b = &o->builder;
    *out = SBP_NO_VALUE;
    for (int32_t i = 0; i < a->count; i++) {
        sbp_value term;
        SBP_TRY(build(o, v, rows, a->terms[i].value, &term));
        if (a->terms[i].factor != 1)
            term = sbp_build2(b, SBP_OP_mul, term, sbp_build_const(b, o->wide, a->terms[i].factor));
        *out = *out == SBP_NO_VALUE ? term : sbp_build2(b, SBP_OP_add, *out, term);
    }
    if (a->constant != 0)
        *out = sbp_build2(b, SBP_OP_add, *out, sbp_build_const(b, o->wide, a->constant));
    return b->status;
}

/* Columns before and from one of the last axis on, which a condition tells apart. */
static sbp_status build_columns(sbp_onnx *o, const sbp_onnx_value *v, int32_t rows, const sbp_number *a,
                                sbp_value *out) {
    const sbp_number *condition = a->a, *with[SBP_NUMBERS_RANK] = {NULL};
    int32_t last = v->rank - 1;
    double at[SBP_NUMBERS_RANK] = {0};
    int64_t border = 0;
    bool first = false, here = true;
    if (condition->axes != UINT32_C(1) << last || condition->tokens || v->dim[last] < 2)
        return build_rows(o, v, rows, a, out);
    for (int64_t i = 0; i < v->dim[last]; i++) {
        at[last] = (double)i;
        here = sbp_number_value(condition, at, 1) != 0;
        first = i == 0 ? here : first;
        if (here != first && border == 0)
            border = i;
        if (border > 0 && here == first)
            return build_rows(o, v, rows, a, out);
    }
    sbp_value parts[2];
    for (int32_t k = 0; k < 2; k++) {
        sbp_onnx_value part = *v;
        part.dim[last] = k == 0 ? border : v->dim[last] - border;
        with[last] = sbp_number_add(&o->numbers, sbp_number_axis(&o->numbers, last), 1,
                                    sbp_number_constant(&o->numbers, k == 0 ? 0 : (double)border));
        const sbp_number *element = first == (k == 0) ? a->b : a->c;
        SBP_TRY(build(o, &part, rows, sbp_number_substitute(&o->numbers, element, with, SBP_NUMBERS_RANK),
                      &parts[k]));
        const sbp_type *type = sbp_build_type(&o->builder, parts[k]);
        if (type->rank == 0 || type->dim[type->rank - 1].n != part.dim[last] ||
            sbp_type_rows(type) == SBP_ONE)
            return build_rows(o, v, rows, a, out); /* the same in all columns, or rows */
    }
    *out = sbp_build2(&o->builder, SBP_OP_concat, parts[0], parts[1]);
    return o->builder.status;
}

static sbp_status build(sbp_onnx *o, const sbp_onnx_value *v, int32_t rows, const sbp_number *a,
                        sbp_value *out) {
    static const sbp_opcode functions[SBP_NUMBER_FUNCTION_COUNT] = {SBP_OP_cos, SBP_OP_sin, SBP_OP_exp,
                                                                    SBP_OP_log, SBP_OP_tanh};
    sbp_builder *b = &o->builder;
    sbp_value x, y;
    if (a->tokens)
        return sbp_onnx_fail(o, "'%s' depends on the number of tokens; activations may not", v->name);
    if (rows < 0 || !(a->axes >> rows & 1))
        return build_table(o, v, rows, a, out);
    if (is_affine(a, rows))
        return build_affine(o, v, rows, a, out);
    switch (a->kind) {
    case SBP_NUMBER_LINEAR:
        return build_sum(o, v, rows, a, out);
    case SBP_NUMBER_FUNCTION:
        SBP_TRY(build(o, v, rows, a->a, &x));
        *out = sbp_build1(b, functions[a->axis], x);
        return b->status;
    case SBP_NUMBER_PRODUCT:
    case SBP_NUMBER_QUOTIENT:
        SBP_TRY(build(o, v, rows, a->a, &x));
        SBP_TRY(build(o, v, rows, a->b, &y));
        *out = sbp_build2(b, a->kind == SBP_NUMBER_PRODUCT ? SBP_OP_mul : SBP_OP_div, x, y);
        return b->status;
    case SBP_NUMBER_CHOICE:
        return build_columns(o, v, rows, a, out);
    default:
        return build_rows(o, v, rows, a, out);
    }
}

sbp_status sbp_onnx_numbers_value(sbp_onnx *o, const sbp_onnx_value *v, sbp_onnx_value *out) {
    int32_t rows = sbp_onnx_rows_axis(v);
    int64_t dims[SBP_MAX_RANK];
    int32_t count;
    for (int32_t d = 0; d < v->rank; d++)
        if (v->dim[d] == SBP_ONNX_OTHER || (v->dim[d] == SBP_ONNX_ROWS && d != rows))
            return sbp_onnx_fail(o,
                                 "'%s' is %s: a mask (or a bias by distance, as of ALiBi), or a shape, is "
                                 "used as an activation",
                                 v->name, sbp_onnx_shape_text(o, v));
    *out = *v;
    out->kind = SBP_ONNX_VALUE;
    SBP_TRY(sbp_onnx_ir_dims(o, v->rank, v->dim, dims, &count));
    SBP_TRY(build(o, v, rows, v->numbers.element, &out->value));
    const sbp_type *type = sbp_build_type(&o->builder, out->value);
    bool short_of = type->rank != count + (rows >= 0) || (rows >= 0) != (sbp_type_rows(type) != SBP_ONE);
    for (int32_t d = 0; !short_of && d < count; d++)
        short_of = type->dim[d + (rows >= 0)].n != dims[d];
    if (short_of) /* repeated along axes that it does not depend on */
        return sbp_onnx_fail(o, "'%s' %s repeats numbers in a way that is not supported", v->name,
                             sbp_onnx_shape_text(o, v));
    return o->builder.status;
}
