/* onnx_operands.c: operands of nodes as values of the graph IR, alone and broadcast to one shape. */
#include "frontends/onnx/onnx.h"

/* ---- operands as IR values ---------------------------------------------------------------------------- */

/* A parameter that is read for the first time has the type in which it is read: no cast stands between. */
static sbp_value parameter_of_type(sbp_onnx *o, int32_t param, sbp_dtype dtype) {
    const sbp_func *func = o->builder.func;
    bool read = false;
    for (int32_t i = 0; i < func->arg_count; i++)
        read |= func->values[func->args[i]].role == SBP_VALUE_PARAM &&
                func->values[func->args[i]].binding == param;
    if (!read)
        o->builder.module->params[param].type.dtype = dtype;
    return sbp_build_param(&o->builder, param);
}

/* v, which the graph IR has with each head once, with all its copies. */
static sbp_status repeated(sbp_onnx *o, const sbp_onnx_value *v, sbp_dtype dtype, sbp_value *out) {
    sbp_builder *b = &o->builder;
    int64_t dims[SBP_MAX_RANK + 1], full[SBP_MAX_RANK + 1], own[SBP_ONNX_MAX_RANK];
    int32_t count = 0, rows = sbp_onnx_rows_axis(v);
    sbp_onnx_own_dims(v, own);
    for (int32_t d = rows > 0 && v->dim[0] == 1 ? 1 : 0; d < v->rank; d++) {
        if (d == rows)
            continue;
        if (count + 2 >= SBP_MAX_RANK)
            return sbp_onnx_fail(o, "'%s' %s has too many axes to be repeated", v->name,
                                 sbp_onnx_shape_text(o, v));
        dims[count] = full[count] = own[d];
        count++;
        if (d == v->repeat_axis && own[d] != 1) {
            dims[count] = 1;
            full[count++] = v->repeat;
        } else if (d == v->repeat_axis) {
            full[count - 1] = v->repeat;
        }
    }
    sbp_value x = sbp_onnx_with_dims(o, sbp_build_cast(b, v->value, dtype), dims, count);
    if (b->status != SBP_OK)
        return b->status;
    sbp_type type = *sbp_build_type(b, x);
    int32_t first = sbp_type_rows(&type) != SBP_ONE ? 1 : 0;
    for (int32_t d = 0; d < count; d++)
        type.dim[first + d] = sbp_dim_const(full[d]);
    x = sbp_build_broadcast(b, x, &type);
    return sbp_onnx_as_shape(o, x, v->rank, v->dim, out);
}

/* v, which the graph IR has once for all slots of a token, for each of them. */
static sbp_status for_all_slots(sbp_onnx *o, const sbp_onnx_value *v, sbp_dtype dtype, sbp_value *out) {
    sbp_builder *b = &o->builder;
    int64_t dims[SBP_MAX_RANK];
    int32_t count;
    SBP_TRY(sbp_onnx_ir_dims(o, v->rank, v->dim, dims, &count));
    int64_t slots = dims[0];
    dims[0] = 1;
    *out = sbp_onnx_with_dims(o, sbp_build_cast(b, v->value, dtype), dims, count);
    if (b->status != SBP_OK)
        return b->status;
    sbp_type type = *sbp_build_type(b, *out);
    type.dim[1] = sbp_dim_const(slots);
    *out = sbp_build_broadcast(b, *out, &type);
    return b->status;
}

/* A number of each expert: of all experts, taken at the choice. A vector: the weights of an
 * input that is 1. */
static sbp_status of_chosen(sbp_onnx *o, const sbp_onnx_value *v, sbp_dtype dtype, sbp_value *out) {
    sbp_builder *b = &o->builder;
    const sbp_type table = b->module->params[v->param].type;
    const sbp_dim rows = sbp_build_type(b, v->value)->dim[0];
    int64_t dims[SBP_MAX_RANK];
    int32_t count;
    if (table.rank > 2)
        return sbp_onnx_fail(
            o,
            "'%s' %s, matrices of experts that tokens have chosen, are used outside of a matmul "
            "with what these tokens have",
            v->name, sbp_onnx_shape_text(o, v));
    SBP_TRY(sbp_onnx_ir_dims(o, v->rank, v->dim, dims, &count));
    sbp_value own = sbp_build_param(b, v->param);
    if (table.rank == 1) {
        const sbp_type all = {.dtype = o->wide, .rank = 2, .dim = {rows, table.dim[0]}};
        own = sbp_build_broadcast(b, sbp_build_cast(b, own, o->wide), &all);
        own = sbp_build2(b, SBP_OP_take_at, own, v->value);
    } else {
        const sbp_type column = {.dtype = o->compute, .rank = 2, .dim = {rows, sbp_dim_const(1)}};
        const int64_t matrices[] = {table.dim[0].n, 1, table.dim[1].n};
        own = sbp_build_reshape(b, sbp_build_cast(b, own, o->compute), matrices, 3);
        sbp_value ones = sbp_build_broadcast(b, sbp_build_const(b, o->compute, 1), &column);
        own = sbp_build(
            b, SBP_OP_expert_linear, NULL, (sbp_value[]){ones, v->value, own, SBP_NO_VALUE}, 4,
            (sbp_attr[]){sbp_attr_symbol("layout", "in_out"), sbp_attr_bool("wide", dtype != o->compute)}, 2,
            NULL);
    }
    *out = sbp_build_cast(b, sbp_onnx_with_dims(o, own, dims, count), dtype);
    return b->status;
}

sbp_status sbp_onnx_materialize(sbp_onnx *o, const sbp_onnx_value *v, sbp_dtype dtype, sbp_value *out) {
    sbp_dtype declared;
    int32_t param;
    if (v->kind == SBP_ONNX_PICKED)
        return of_chosen(o, v, dtype, out);
    if (v->kind == SBP_ONNX_SCORES || v->kind == SBP_ONNX_NAN)
        return sbp_onnx_fail(o, "'%s', scores of attention, are used in a way that is not supported",
                             v->name);
    if (v->kind == SBP_ONNX_LONGER)
        return sbp_onnx_fail(
            o, "'%s', a convolution that is padded on both sides, is used before its last rows are cut off",
            v->name);
    if (v->repeat > 1)
        return repeated(o, v, dtype, out);
    if (v->shared)
        return for_all_slots(o, v, dtype, out);
    if (!sbp_onnx_type_float(v->type, &declared))
        return sbp_onnx_fail(o, "'%s' is %s; arithmetic on integers is not supported", v->name,
                             sbp_onnx_type_name(v->type));
    if (v->kind == SBP_ONNX_NUMBERS) {
        sbp_onnx_value value;
        SBP_TRY(sbp_onnx_numbers_value(o, v, &value));
        *out = sbp_build_cast(&o->builder, value.value, dtype);
        return o->builder.status;
    }
    switch (v->kind) {
    case SBP_ONNX_CONSTANT:
        *out = sbp_onnx_constant_value(o, v, dtype);
        break;
    case SBP_ONNX_PARAMETER:
        if (v->transposed)
            return sbp_onnx_fail(o, "the transpose of parameter '%s' is used outside of a matmul", v->name);
        SBP_TRY(sbp_onnx_param(o, v, &param));
        *out = sbp_build_cast(&o->builder, parameter_of_type(o, param, dtype), dtype);
        break;
    case SBP_ONNX_VALUE:
        *out = sbp_build_cast(&o->builder, v->value, dtype);
        break;
    case SBP_ONNX_NUMBERS:
    case SBP_ONNX_SCORES:
    case SBP_ONNX_NAN:
    case SBP_ONNX_PICKED:
    case SBP_ONNX_LONGER:
        break;
    }
    return o->builder.status;
}

/* ---- broadcasting -------------------------------------------------------------------------------------- */

/* An operand's shape in the frame of the result: ones put before it. */
static void frame(const sbp_onnx_value *v, int32_t rank, int64_t *dim) {
    int32_t shift = rank - v->rank;
    for (int32_t d = 0; d < rank; d++)
        dim[d] = d < shift ? 1 : v->dim[d - shift];
}

static sbp_status result_shape(sbp_onnx *o, const sbp_onnx_value *const *in, int32_t count, int32_t *rank,
                               int64_t *dim) {
    *rank = 0;
    for (int32_t i = 0; i < count; i++)
        *rank = in[i]->rank > *rank ? in[i]->rank : *rank;
    for (int32_t d = 0; d < *rank; d++)
        dim[d] = 1;
    for (int32_t i = 0; i < count; i++) {
        int64_t framed[SBP_MAX_RANK];
        frame(in[i], *rank, framed);
        for (int32_t d = 0; d < *rank; d++) {
            if (framed[d] != dim[d] && framed[d] != 1 && dim[d] != 1)
                return sbp_onnx_fail(o, "shapes %s and %s do not broadcast", sbp_onnx_shape_text(o, in[0]),
                                     sbp_onnx_shape_text(o, in[i]));
            if (dim[d] == 1)
                dim[d] = framed[d];
        }
    }
    return SBP_OK;
}

/* A value without tokens beside one whose axes batch and `rows` are gone: those axes must be 1 here, and
 * leading ones are dropped, so that the rank is lower. */
static sbp_status place_static(sbp_onnx *o, const sbp_onnx_value *v, int32_t rank, int32_t rows,
                               sbp_value *value) {
    int64_t framed[SBP_MAX_RANK], dims[SBP_MAX_RANK];
    int32_t count = 0;
    frame(v, rank, framed);
    for (int32_t d = 0; d < rank; d++) {
        if (d == rows || (d == 0 && rows > 0)) {
            if (framed[d] != 1)
                return sbp_onnx_fail(o, "'%s' is %s: one number per token of fixed length", v->name,
                                     sbp_onnx_shape_text(o, v));
            continue;
        }
        if (framed[d] != 1 || count > 0)
            dims[count++] = framed[d];
    }
    *value = sbp_onnx_with_dims(o, *value, dims, count);
    return o->builder.status;
}

/* Whether a dimension of 1 that comes after others becomes larger. */
static bool widens(const int64_t *framed, int32_t rank, const int64_t *dim) {
    bool after = false, found = false;
    for (int32_t d = 0; d < rank; d++) {
        found |= after && framed[d] == 1 && dim[d] != 1;
        after |= framed[d] != 1;
    }
    return found;
}

/* A parameter of which each number stands for several of a row: first of each row, so that what its gradient
 * sums over a row is summed there. */
static sbp_status for_all_rows(sbp_onnx *o, sbp_value *value) {
    sbp_builder *b = &o->builder;
    sbp_type type = *sbp_build_type(b, *value),
             rows = {.dtype = type.dtype, .rank = 1, .dim = {sbp_dim_symbol(SBP_T)}};
    int64_t dims[SBP_MAX_RANK], own[SBP_MAX_RANK];
    int32_t count = 0;
    for (int32_t d = 0; d < type.rank; d++) {
        dims[d] = type.dim[d].n;
        if (dims[d] != 1)
            own[count++] = dims[d];
    }
    for (int32_t d = 0; d < count && rows.rank < SBP_MAX_RANK; d++)
        rows.dim[rows.rank++] = sbp_dim_const(own[d]);
    *value = sbp_build_broadcast(b, sbp_onnx_with_dims(o, *value, own, count), &rows);
    *value = sbp_onnx_with_dims(o, *value, dims, type.rank);
    return b->status;
}

sbp_status sbp_onnx_broadcast(sbp_onnx *o, const sbp_onnx_value *const *in, int32_t count, sbp_value *out,
                              int32_t *rank, int64_t *dim) {
    SBP_TRY(result_shape(o, in, count, rank, dim));
    int32_t rows = sbp_onnx_rows_axis_of(*rank, dim);
    if (rows < 0 && *rank > 0 && sbp_onnx_slots(dim[0]) > 0)
        rows = 0;
    for (int32_t i = 0; i < count; i++) {
        SBP_TRY(sbp_onnx_materialize(o, in[i], o->wide, &out[i]));
        if (rows < 0 || sbp_build_type(&o->builder, out[i])->rank == 0)
            continue;
        int64_t framed[SBP_MAX_RANK];
        frame(in[i], *rank, framed);
        if (!sbp_onnx_has_rows(in[i]) && in[i]->kind != SBP_ONNX_CONSTANT && widens(framed, *rank, dim))
            SBP_TRY(for_all_rows(o, &out[i]));
        if (!sbp_onnx_has_rows(in[i]))
            SBP_TRY(place_static(o, in[i], *rank, rows, &out[i]));
        else
            SBP_TRY(sbp_onnx_as_shape(o, out[i], *rank, framed, &out[i]));
    }
    return SBP_OK;
}

/* k, of k T that slots can be; 0: another number. */
static int64_t times_tokens(const sbp_number *a) {
    bool fits = a->kind == SBP_NUMBER_LINEAR && a->count == 1 && a->constant == 0 &&
                a->terms[0].value->kind == SBP_NUMBER_TOKENS && a->terms[0].factor > 1 &&
                a->terms[0].factor <= SBP_ONNX_MOST_SLOTS;
    int64_t k = fits ? (int64_t)a->terms[0].factor : 0;
    return fits && (double)k == a->terms[0].factor ? k : 0;
}

sbp_status sbp_onnx_ints(sbp_onnx *o, int32_t input, const char *what, const int64_t **out, int64_t *count) {
    const sbp_onnx_value *v;
    SBP_TRY(sbp_onnx_required(o, input, &v));
    if (v->type != SBP_ONNX_INT64 && v->type != SBP_ONNX_INT32)
        return sbp_onnx_fail(o, "%s '%s' is %s, INT64 expected", what, v->name, sbp_onnx_type_name(v->type));
    if ((v->kind != SBP_ONNX_CONSTANT && v->kind != SBP_ONNX_NUMBERS) || v->rank > 1 ||
        (v->rank == 1 && v->dim[0] < 0))
        return sbp_onnx_fail(o, "%s '%s' is computed from activations, or is not a list", what, v->name);
    int64_t n = sbp_onnx_elements(v), *ints = SBP_NEW_ARRAY(o->arena, int64_t, n);
    for (int64_t i = 0; i < n; i++) {
        if (v->kind == SBP_ONNX_CONSTANT) {
            ints[i] = v->data[i] >= 0x1p63   ? INT64_MAX
                      : v->data[i] < -0x1p62 ? -(INT64_C(1) << 62)
                                             : (int64_t)v->data[i];
            continue;
        }
        const sbp_number *with[1] = {sbp_number_constant(&o->numbers, (double)i)};
        const sbp_number *item = sbp_number_substitute(&o->numbers, v->numbers.element, with, v->rank);
        double c;
        if (item->kind == SBP_NUMBER_TOKENS)
            ints[i] = SBP_ONNX_TOKENS;
        else if (times_tokens(item) > 0)
            ints[i] = SBP_ONNX_TOKENS_TIMES(times_tokens(item));
        else if (sbp_number_is_constant(item, &c))
            ints[i] = (int64_t)c;
        else {
            sbp_text text;
            sbp_text_init(&text, o->arena);
            sbp_number_print(&text, item);
            return sbp_onnx_fail(o, "%s '%s' depends on the number of tokens: %s", what, v->name, text.data);
        }
    }
    *out = ints;
    *count = n;
    return SBP_OK;
}
