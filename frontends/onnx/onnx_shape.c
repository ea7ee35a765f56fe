/* onnx_shape.c: ONNX shapes and those of the graph IR. In ONNX an activation is [1, .., T, ..]; in the graph
 * IR it is [T, ..]: axis 0, the batch, is dropped, and the tokens come first. Axes of constant size keep
 * their order. */
#include "frontends/onnx/onnx.h"

#include <string.h>

#define MAX_ROW_ELEMS (INT64_C(1) << 40)

const char *sbp_onnx_shape_text(sbp_onnx *o, const sbp_onnx_value *v) {
    sbp_text text;
    sbp_text_init(&text, o->arena);
    sbp_text_add(&text, "[");
    for (int32_t d = 0; d < v->rank; d++) {
        sbp_text_add(&text, d ? "," : "");
        if (v->dim[d] == SBP_ONNX_ROWS)
            sbp_text_add(&text, "T");
        else if (sbp_onnx_slots(v->dim[d]) > 0)
            sbp_text_add(&text, "%lld*T", (long long)sbp_onnx_slots(v->dim[d]));
        else if (v->dim[d] == SBP_ONNX_OTHER)
            sbp_number_print(&text, v->numbers.size[d]);
        else
            sbp_text_add(&text, "%lld", (long long)v->dim[d]);
    }
    sbp_text_add(&text, "]");
    return text.data;
}

int32_t sbp_onnx_rows_axis_of(int32_t rank, const int64_t *dim) {
    for (int32_t d = 0; d < rank; d++)
        if (dim[d] == SBP_ONNX_ROWS)
            return d;
    return -1;
}

int32_t sbp_onnx_rows_axis(const sbp_onnx_value *v) {
    return sbp_onnx_rows_axis_of(v->rank, v->dim);
}

bool sbp_onnx_has_rows(const sbp_onnx_value *v) {
    return sbp_onnx_rows_axis(v) >= 0 || (v->rank > 0 && sbp_onnx_slots(v->dim[0]) > 0);
}

int64_t sbp_onnx_dim_of(int64_t size) {
    if (size == SBP_ONNX_TOKENS)
        return SBP_ONNX_ROWS;
    bool slots = size > SBP_ONNX_TOKENS && size <= SBP_ONNX_TOKENS_TIMES(SBP_ONNX_MOST_SLOTS);
    return slots ? SBP_ONNX_SLOTS(size - INT64_MIN) : size;
}

sbp_status sbp_onnx_ir_dims(sbp_onnx *o, int32_t rank, const int64_t *dim, int64_t *out, int32_t *count) {
    int32_t rows = sbp_onnx_rows_axis_of(rank, dim);
    int64_t elems = 1;
    *count = 0;
    /* without a batch, as where heads were merged with it */
    for (int32_t d = rows > 0 && dim[0] == 1 ? 1 : 0; d < rank; d++) {
        if (d == rows)
            continue;
        if (dim[d] == SBP_ONNX_ROWS)
            return sbp_onnx_fail(o, "two axes of a result are the tokens (attention spelled out?)");
        if (*count == SBP_MAX_RANK - 1)
            return sbp_onnx_fail(o, "a result has rank %d; at most %d is supported", rank, SBP_MAX_RANK);
        int64_t n = d == 0 && rows < 0 && sbp_onnx_slots(dim[0]) > 0 ? sbp_onnx_slots(dim[0]) : dim[d];
        out[(*count)++] = n;
        if (n < 0 || !sbp_mul_i64(elems, n, &elems) || elems > MAX_ROW_ELEMS)
            return sbp_onnx_fail(o, "a result has more than %lld elements per token",
                                 (long long)MAX_ROW_ELEMS);
    }
    return SBP_OK;
}

static bool has_dims(const sbp_type *type, const int64_t *dims, int32_t count) {
    int32_t first = sbp_type_rows(type) != SBP_ONE ? 1 : 0;
    bool same = type->rank - first == count;
    for (int32_t d = 0; same && d < count; d++)
        same = type->dim[first + d].n == dims[d];
    return same;
}

sbp_value sbp_onnx_with_dims(sbp_onnx *o, sbp_value value, const int64_t *dims, int32_t count) {
    const sbp_func *func = o->builder.func;
    if (o->builder.status != SBP_OK || has_dims(&func->values[value].type, dims, count))
        return value;
    int32_t op = func->values[value].op;
    if (op >= 0 && func->ops[op].code == SBP_OP_reshape &&
        has_dims(&func->values[func->ops[op].operands[0]].type, dims, count))
        return func->ops[op].operands[0];
    return sbp_build_reshape(&o->builder, value, dims, count);
}

sbp_status sbp_onnx_as_shape(sbp_onnx *o, sbp_value value, int32_t rank, const int64_t *dim, sbp_value *out) {
    int64_t dims[SBP_MAX_RANK];
    int32_t count;
    SBP_TRY(sbp_onnx_ir_dims(o, rank, dim, dims, &count));
    *out = sbp_onnx_with_dims(o, value, dims, count);
    return o->builder.status;
}

void sbp_onnx_own_dims(const sbp_onnx_value *v, int64_t *dim) {
    memcpy(dim, v->dim, (size_t)v->rank * sizeof *dim);
    if (v->repeat > 1)
        dim[v->repeat_axis] /= v->repeat;
}

static sbp_value constant_argument(sbp_onnx *o, const sbp_onnx_value *v, sbp_dtype dtype) {
    sbp_func *func = o->builder.func;
    sbp_type type = {.dtype = dtype, .rank = v->rank};
    for (int32_t d = 0; d < v->rank; d++)
        type.dim[d] = sbp_dim_const(v->dim[d]);
    int32_t binding = sbp_module_add_const(o->builder.module, v->name, &type, v->data);
    for (int32_t i = 0; i < func->arg_count; i++)
        if (func->values[func->args[i]].role == SBP_VALUE_CONST &&
            func->values[func->args[i]].binding == binding)
            return func->args[i];
    return sbp_func_add_arg(func, SBP_VALUE_CONST, o->builder.module->consts[binding].name, &type, binding);
}

int64_t sbp_onnx_elements(const sbp_onnx_value *v) {
    int64_t n = 1;
    for (int32_t d = 0; d < v->rank; d++)
        n *= v->dim[d];
    return n;
}

sbp_value sbp_onnx_constant_value(sbp_onnx *o, const sbp_onnx_value *v, sbp_dtype dtype) {
    return sbp_onnx_elements(v) == 1 ? sbp_build_const(&o->builder, dtype, v->data[0])
                                     : constant_argument(o, v, dtype);
}
