/* onnx_layers.c: operators with parameters, and attention. */
#include "frontends/onnx/onnx.h"
#include "ir/program/contract.h"

#include <math.h>
#include <string.h>

/* ---- operands ------------------------------------------------------------------------------------------ */

/* An activation [1, T, n], [T, n] or [T, 1, n] as a matrix of the compute type. */
static sbp_status matrix_operand(sbp_onnx *o, const sbp_onnx_value *x, sbp_value *out) {
    int32_t rows = sbp_onnx_rows_axis(x);
    bool fits = x->kind == SBP_ONNX_VALUE && rows >= 0 && rows < x->rank - 1 && x->repeat < 2;
    for (int32_t d = 0; d < x->rank - 1; d++)
        fits = fits && (d == rows || x->dim[d] == 1);
    if (!fits)
        return sbp_onnx_fail(o, "'%s' is %s; [1,T,n] is expected", x->name, sbp_onnx_shape_text(o, x));
    *out = sbp_onnx_with_dims(o, x->value, &x->dim[x->rank - 1], 1);
    *out = sbp_build_rounded(&o->builder, *out, o->compute);
    return o->builder.status;
}

/* A vector of n numbers that belongs to a parameter or constant. `init`: how it starts when weights are drawn
 * at random. */
static sbp_status vector_operand(sbp_onnx *o, const sbp_onnx_value *v, int64_t n, sbp_init init,
                                 sbp_dtype dtype, sbp_value *out) {
    if (sbp_onnx_rows_axis(v) >= 0 || v->rank != 1 || v->dim[0] != n)
        return sbp_onnx_fail(o, "'%s' is %s; [%lld] is expected", v->name, sbp_onnx_shape_text(o, v),
                             (long long)n);
    if (v->kind == SBP_ONNX_PARAMETER) {
        int32_t param;
        SBP_TRY(sbp_onnx_param(o, v, &param));
        o->builder.module->params[param].init = init;
        o->builder.module->params[param].init_std = 0;
    }
    SBP_TRY(sbp_onnx_materialize(o, v, dtype, out));
    if (sbp_build_type(&o->builder, *out)->rank == 0) /* a constant of one element */
        *out = sbp_build_reshape(&o->builder, *out, (int64_t[]){1}, 1);
    return o->builder.status;
}

/* ---- products -------------------------------------------------------------------------------------------
 */

/* y = x W + bias; W [in, out] as ONNX sees it. */
static sbp_status define_linear(sbp_onnx *o, const sbp_onnx_value *x, const sbp_onnx_value *w,
                                bool transposed, const sbp_onnx_value *bias) {
    sbp_value operands[3] = {SBP_NO_VALUE, SBP_NO_VALUE, SBP_NO_VALUE};
    if (w->kind != SBP_ONNX_PARAMETER || w->rank != 2)
        return sbp_onnx_fail(o, "'%s' is %s; a parameter that is a matrix is expected", w->name,
                             sbp_onnx_shape_text(o, w));
    int64_t in = w->dim[transposed], out = w->dim[!transposed];
    SBP_TRY(matrix_operand(o, x, &operands[0]));
    if (x->dim[x->rank - 1] != in)
        return sbp_onnx_fail(o, "inner size differs: '%s' is %s, '%s' is %s%s", x->name,
                             sbp_onnx_shape_text(o, x), w->name, sbp_onnx_shape_text(o, w),
                             transposed ? ", transposed" : "");
    int32_t param;
    SBP_TRY(sbp_onnx_param(o, w, &param));
    operands[1] = sbp_build_cast(&o->builder, sbp_build_param(&o->builder, param), o->compute);
    if (bias)
        SBP_TRY(vector_operand(o, bias, out, SBP_INIT_ZEROS, o->compute, &operands[2]));
    bool out_in = w->transposed != transposed, wide = o->wide_node[o->node - o->model->nodes];
    sbp_value y = sbp_build(
        &o->builder, SBP_OP_linear, NULL, operands, 3,
        (sbp_attr[]){sbp_attr_symbol("layout", out_in ? "out_in" : "in_out"), sbp_attr_bool("wide", wide)}, 2,
        NULL);
    int64_t dim[SBP_MAX_RANK];
    memcpy(dim, x->dim, sizeof dim);
    dim[x->rank - 1] = out;
    SBP_TRY(sbp_onnx_as_shape(o, y, x->rank, dim, &y));
    sbp_onnx_define_value(o, 0, y, x->type, x->rank, dim);
    return o->builder.status;
}

sbp_status sbp_onnx_matmul(sbp_onnx *o) {
    static const char *const known[] = {NULL};
    const sbp_onnx_value *x, *w;
    SBP_TRY(sbp_onnx_attrs_known(o, known));
    SBP_TRY(sbp_onnx_required(o, 0, &x));
    SBP_TRY(sbp_onnx_required(o, 1, &w));
    return define_linear(o, x, w, false, NULL);
}

sbp_status sbp_onnx_gemm(sbp_onnx *o) {
    static const char *const known[] = {"alpha", "beta", "transA", "transB", NULL};
    const sbp_onnx_value *x, *w, *bias = sbp_onnx_input(o, 2);
    double alpha = 1, beta = 1;
    int64_t trans_a = 0, trans_b = 0;
    SBP_TRY(sbp_onnx_attrs_known(o, known));
    SBP_TRY(sbp_onnx_required(o, 0, &x));
    SBP_TRY(sbp_onnx_required(o, 1, &w));
    SBP_TRY(sbp_onnx_attr_float(o, "alpha", &alpha));
    SBP_TRY(sbp_onnx_attr_float(o, "beta", &beta));
    SBP_TRY(sbp_onnx_attr_int(o, "transA", &trans_a));
    SBP_TRY(sbp_onnx_attr_int(o, "transB", &trans_b));
    if (alpha != 1 || (bias && beta != 1) || trans_a != 0 || x->rank != 2)
        return sbp_onnx_fail(o, "alpha %g, beta %g, transA %lld of %s; 1, 1 and 0 of a matrix are supported",
                             alpha, beta, (long long)trans_a, sbp_onnx_shape_text(o, x));
    return define_linear(o, x, w, trans_b != 0, bias);
}

/* The product that a node adds a vector of parameters to, when nobody else reads it: as exporters write a
 * layer with a bias in two nodes. */
static const sbp_op *product_of(const sbp_onnx *o, const sbp_onnx_value *y, const sbp_onnx_value *bias) {
    const sbp_func *f = o->builder.func;
    if (y->kind != SBP_ONNX_VALUE || bias->kind != SBP_ONNX_PARAMETER || bias->rank != 1 || y->repeat > 1 ||
        y->dim[y->rank - 1] != bias->dim[0] || o->wide_node[o->node - o->model->nodes])
        return NULL;
    int32_t maker = f->values[y->value].op;
    bool fits =
        maker >= 0 && f->ops[maker].code == SBP_OP_linear && f->ops[maker].operands[2] == SBP_NO_VALUE;
    return fits && sbp_map_get(&o->read, y->name) == 1 ? &f->ops[maker] : NULL;
}

sbp_status sbp_onnx_add_bias(sbp_onnx *o, const sbp_onnx_value *y, const sbp_onnx_value *bias, bool *done) {
    const sbp_op *product = product_of(o, y, bias);
    *done = product != NULL;
    if (!product)
        return SBP_OK;
    sbp_value operands[3] = {product->operands[0], product->operands[1], SBP_NO_VALUE};
    const sbp_attr attrs[] = {*sbp_op_attr(product, "layout"), *sbp_op_attr(product, "wide")};
    SBP_TRY(vector_operand(o, bias, bias->dim[0], SBP_INIT_ZEROS, o->compute, &operands[2]));
    sbp_value sum = sbp_build(&o->builder, SBP_OP_linear, NULL, operands, 3, attrs, 2, NULL);
    sbp_onnx_define_value(o, 0, sum, y->type, y->rank, y->dim);
    return o->builder.status;
}

/* Token ids, or positions, [1, T] (positions also [T]), as a row of the graph; false when it is neither. */
static bool row_input(sbp_onnx *o, const sbp_onnx_value *v, bool *positions, sbp_value *out) {
    *positions = sbp_onnx_is_positions(v) && v->rank <= 2;
    if (*positions)
        *out = sbp_build_row(&o->builder, sbp_data_columns[SBP_DATA_POS].name, SBP_I32, SBP_T);
    else if (v->kind == SBP_ONNX_VALUE && sbp_build_type(&o->builder, v->value)->dtype == SBP_I32 &&
             v->rank == 2)
        *out = v->value;
    else
        return false;
    return v->rank == 1 || v->dim[0] == 1;
}

/* Rows of a matrix by token or by position. */
sbp_status sbp_onnx_gather(sbp_onnx *o) {
    static const char *const known[] = {"axis", NULL};
    const sbp_onnx_value *table, *index;
    int64_t axis = 0;
    SBP_TRY(sbp_onnx_attrs_known(o, known));
    SBP_TRY(sbp_onnx_required(o, 0, &table));
    SBP_TRY(sbp_onnx_required(o, 1, &index));
    SBP_TRY(sbp_onnx_attr_int(o, "axis", &axis));
    sbp_onnx_value vector = *table;
    if (table->kind == SBP_ONNX_PARAMETER &&
        (index->kind == SBP_ONNX_CONSTANT || index->kind == SBP_ONNX_NUMBERS) &&
        (index->type == SBP_ONNX_INT64 || index->type == SBP_ONNX_INT32) && !sbp_onnx_is_positions(index)) {
        SBP_TRY(sbp_onnx_materialize(o, table, o->wide, &vector.value));
        vector.kind = SBP_ONNX_VALUE;
    }
    if (vector.kind == SBP_ONNX_VALUE)
        return sbp_onnx_gather_part(o, &vector, index, axis);
    if (table->kind != SBP_ONNX_PARAMETER || table->rank != 2 || table->transposed || axis != 0)
        return sbp_onnx_fail(
            o, "axis %lld of '%s' %s; rows (axis 0) of a parameter that is a matrix are supported",
            (long long)axis, table->name, sbp_onnx_shape_text(o, table));
    bool positions;
    sbp_value rows;
    if (!row_input(o, index, &positions, &rows))
        return sbp_onnx_fail(o, "the index '%s' is not input_ids or positions", index->name);
    if (positions)
        SBP_TRY(sbp_onnx_at_most(o, (double)table->dim[0]));
    int32_t param;
    SBP_TRY(sbp_onnx_param(o, table, &param));
    sbp_value w = sbp_build_param(&o->builder, param);
    sbp_value y = sbp_build2(&o->builder, SBP_OP_gather, w, rows);
    y = sbp_build_cast(&o->builder, y, o->residual);
    int64_t dim[SBP_MAX_RANK];
    memcpy(dim, index->dim, sizeof dim);
    dim[index->rank] = table->dim[1];
    sbp_onnx_define_value(o, 0, y, table->type, index->rank + 1, dim);
    return o->builder.status;
}

/* ---- norms, activations ----------------------------------------------------------------------------------
 */

/* The type of what scales and shifts a normalised x: its own, or wide beside a wide residual stream. */
static sbp_dtype norm_dtype(const sbp_onnx *o, sbp_value x) {
    sbp_dtype dtype = sbp_build_type(&o->builder, x)->dtype;
    return dtype == o->compute ? o->residual : dtype;
}

/* Whether a scale is numbers that are all 1, of whatever shape broadcasts: then n of them. */
static bool one_everywhere(sbp_onnx *o, const sbp_onnx_value *scale, int64_t n, sbp_onnx_value *out) {
    sbp_number_tensor t;
    if ((scale->kind != SBP_ONNX_CONSTANT && scale->kind != SBP_ONNX_NUMBERS) || n < 1 || n > 1 << 20)
        return false;
    sbp_onnx_tensor_of(o, scale, &t);
    if (!sbp_number_equals(t.element, 1))
        return false;
    double *data = SBP_NEW_ARRAY(o->arena, double, n);
    for (int64_t i = 0; i < n; i++)
        data[i] = 1;
    *out = (sbp_onnx_value){.name = sbp_arena_printf(o->arena, "ones.%lld", (long long)n),
                            .kind = SBP_ONNX_CONSTANT,
                            .type = SBP_ONNX_FLOAT,
                            .rank = 1,
                            .dim = {n},
                            .data = data};
    return true;
}

/* x, normalised over its last axis, and eps. */
static sbp_status norm_operands(sbp_onnx *o, const sbp_onnx_value **x, sbp_value *operands, double *eps) {
    static const char *const known[] = {"axis", "epsilon", "stash_type", NULL};
    const sbp_onnx_value *scale;
    int64_t axis = -1, stash = 1;
    *eps = (double)1e-5f;
    SBP_TRY(sbp_onnx_attrs_known(o, known));
    SBP_TRY(sbp_onnx_required(o, 0, x));
    SBP_TRY(sbp_onnx_required(o, 1, &scale));
    SBP_TRY(sbp_onnx_attr_int(o, "axis", &axis));
    SBP_TRY(sbp_onnx_attr_int(o, "stash_type", &stash));
    SBP_TRY(sbp_onnx_attr_float(o, "epsilon", eps));
    if ((*x)->kind != SBP_ONNX_VALUE || !sbp_onnx_has_rows(*x) || (*x)->shared || (*x)->repeat > 1 ||
        (*x)->dim[(*x)->rank - 1] < 1)
        return sbp_onnx_fail(o, "'%s' %s is not an activation", (*x)->name, sbp_onnx_shape_text(o, *x));
    if (axis != -1 && axis != (*x)->rank - 1)
        return sbp_onnx_fail(o, "axis %lld of %s; only the last axis is supported", (long long)axis,
                             sbp_onnx_shape_text(o, *x));
    if (stash != 1)
        return sbp_onnx_fail(o, "stash_type %lld; only 1 is supported", (long long)stash);
    operands[0] = (*x)->value;
    sbp_onnx_value ones;
    if (one_everywhere(o, scale, (*x)->dim[(*x)->rank - 1], &ones))
        scale = &ones;
    return vector_operand(o, scale, (*x)->dim[(*x)->rank - 1], SBP_INIT_ONES, norm_dtype(o, operands[0]),
                          &operands[1]);
}

static const sbp_op *maker(const sbp_func *func, sbp_value value) {
    return func->values[value].op >= 0 ? &func->ops[func->values[value].op] : NULL;
}

/* A scale that is a parameter plus a number, before it was rounded: without the number, which *offset is. */
static sbp_value without_offset(sbp_onnx *o, sbp_value scale, double *offset) {
    const sbp_func *func = o->builder.func;
    const sbp_op *op = maker(func, scale);
    if (op && op->code == SBP_OP_cast)
        op = maker(func, op->operands[0]);
    for (int k = 0; op && op->code == SBP_OP_add && k < 2; k++) {
        const sbp_op *number = maker(func, op->operands[k]);
        if (number && number->code == SBP_OP_constant) {
            *offset = sbp_op_double(number, "value");
            return op->operands[1 - k];
        }
    }
    return scale;
}

sbp_status sbp_onnx_rms_norm(sbp_onnx *o) {
    const sbp_onnx_value *x;
    double offset = 0;
    sbp_value operands[2];
    double eps;
    SBP_TRY(norm_operands(o, &x, operands, &eps));
    operands[1] = without_offset(o, operands[1], &offset);
    /* families whose scale has an offset round once, behind it */
    sbp_value y = sbp_build(&o->builder, SBP_OP_rms_norm, NULL, operands, 2,
                            (sbp_attr[]){sbp_attr_double("eps", eps), sbp_attr_double("offset", offset),
                                         sbp_attr_symbol("cast", offset != 0 ? "after" : "before")},
                            3, NULL);
    sbp_onnx_define_value(o, 0, y, x->type, x->rank, x->dim);
    return o->builder.status;
}

sbp_status sbp_onnx_layer_norm(sbp_onnx *o) {
    const sbp_onnx_value *x, *bias = sbp_onnx_input(o, 2);
    sbp_value operands[3] = {SBP_NO_VALUE, SBP_NO_VALUE, SBP_NO_VALUE};
    double eps;
    SBP_TRY(norm_operands(o, &x, operands, &eps));
    if (bias)
        SBP_TRY(vector_operand(o, bias, x->dim[x->rank - 1], SBP_INIT_ZEROS, norm_dtype(o, operands[0]),
                               &operands[2]));
    if (sbp_onnx_has_output(o, 1) || sbp_onnx_has_output(o, 2))
        return sbp_onnx_fail(o,
                             "something reads its mean or its deviation; only its first output is supported");
    sbp_value y = sbp_build(&o->builder, SBP_OP_layer_norm, NULL, operands, 3,
                            (sbp_attr[]){sbp_attr_double("eps", eps)}, 1, NULL);
    sbp_onnx_define_value(o, 0, y, x->type, x->rank, x->dim);
    return o->builder.status;
}

/* ---- attention -------------------------------------------------------------------------------------------
 */

/* x [1, T, heads d], heads given by an attribute, or [1, heads, T, d]: the IR value [T, heads, d]. */
static sbp_status heads_operand(sbp_onnx *o, const sbp_onnx_value *x, int64_t heads, sbp_value *out,
                                int64_t *out_heads, int64_t *d) {
    int32_t rows = sbp_onnx_rows_axis(x);
    bool flat = x->rank == 3 && rows == 1, split = x->rank == 4 && rows == 2;
    if (x->repeat > 1 && (!split || x->repeat_axis != 1))
        return sbp_onnx_fail(o, "'%s' %s has its heads repeated elsewhere", x->name,
                             sbp_onnx_shape_text(o, x));
    if (x->kind != SBP_ONNX_VALUE || !(flat || split) || x->dim[0] != 1)
        return sbp_onnx_fail(o, "'%s' is %s; [1,T,heads*d] or [1,heads,T,d] is expected", x->name,
                             sbp_onnx_shape_text(o, x));
    if (flat && (heads < 1 || x->dim[2] % heads != 0))
        return sbp_onnx_fail(o, "'%s' %s cannot be split into %lld heads", x->name, sbp_onnx_shape_text(o, x),
                             (long long)heads);
    *out_heads = split ? x->dim[1] : heads;
    *d = split ? x->dim[3] : x->dim[2] / heads;
    int64_t own[SBP_ONNX_MAX_RANK];
    sbp_onnx_own_dims(x, own);
    SBP_TRY(sbp_onnx_as_shape(o, x->value, x->rank, own, out));
    *out = sbp_build_rounded(&o->builder, *out, o->compute);
    if (flat)
        *out = sbp_onnx_with_dims(o, *out, (int64_t[]){*out_heads, *d}, 2);
    return o->builder.status;
}

/* A table of cos or sin: [1, T, n], or with positions [positions, n]; the IR value [T, n]. */
static sbp_status rotary_table(sbp_onnx *o, int32_t input, const sbp_onnx_value *positions, sbp_value *out,
                               int64_t *n) {
    const sbp_onnx_value *table;
    SBP_TRY(sbp_onnx_required(o, input, &table));
    if (positions) {
        bool fits = table->kind == SBP_ONNX_PARAMETER && table->rank == 2 && !table->transposed;
        bool are_positions;
        sbp_value index;
        if (!fits || !row_input(o, positions, &are_positions, &index))
            return sbp_onnx_fail(o, "'%s' %s by '%s': a table of parameters by position_ids is expected",
                                 table->name, sbp_onnx_shape_text(o, table), positions->name);
        int32_t param;
        SBP_TRY(sbp_onnx_at_most(o, (double)table->dim[0]));
        SBP_TRY(sbp_onnx_param(o, table, &param));
        sbp_value w = sbp_build_param(&o->builder, param);
        *out = sbp_build2(&o->builder, SBP_OP_gather, w, index);
        *out = sbp_build_cast(&o->builder, *out, o->wide);
        *n = table->dim[1];
        return o->builder.status;
    }
    sbp_onnx_value computed = *table;
    if (table->kind == SBP_ONNX_NUMBERS)
        SBP_TRY(sbp_onnx_numbers_value(o, table, &computed));
    if (computed.kind != SBP_ONNX_VALUE || table->rank != 3 || sbp_onnx_rows_axis(table) != 1)
        return sbp_onnx_fail(o, "'%s' is %s; [1,T,n] is expected", table->name,
                             sbp_onnx_shape_text(o, table));
    *out = sbp_build_cast(&o->builder, computed.value, o->wide);
    *n = table->dim[2];
    return o->builder.status;
}

sbp_status sbp_onnx_rotary(sbp_onnx *o) {
    static const char *const known[] = {"interleaved", "num_heads", "rotary_embedding_dim", NULL};
    const sbp_onnx_value *x, *positions = sbp_onnx_input(o, 3);
    int64_t interleaved = 0, heads = 0, part = 0, d, n, sin_n;
    sbp_value operands[3];
    SBP_TRY(sbp_onnx_attrs_known(o, known));
    SBP_TRY(sbp_onnx_required(o, 0, &x));
    SBP_TRY(sbp_onnx_attr_int(o, "interleaved", &interleaved));
    SBP_TRY(sbp_onnx_attr_int(o, "num_heads", &heads));
    SBP_TRY(sbp_onnx_attr_int(o, "rotary_embedding_dim", &part));
    if (interleaved != 0)
        return sbp_onnx_fail(o, "interleaved %lld is not supported; pairs are (i, i + d/2)",
                             (long long)interleaved);
    SBP_TRY(heads_operand(o, x, heads, &operands[0], &heads, &d));
    SBP_TRY(rotary_table(o, 1, positions, &operands[1], &n));
    SBP_TRY(rotary_table(o, 2, positions, &operands[2], &sin_n));
    if (n != sin_n || 2 * n != (part > 0 ? part : d))
        return sbp_onnx_fail(o,
                             "tables of %lld and %lld numbers for heads of %lld (rotary_embedding_dim %lld)",
                             (long long)n, (long long)sin_n, (long long)d, (long long)part);
    sbp_value y = sbp_build(&o->builder, SBP_OP_rope, NULL, operands, 3, NULL, 0, NULL);
    sbp_build_name(&o->builder, y, sbp_onnx_short_name(o));
    if (x->rank == 3)
        y = sbp_build_reshape(&o->builder, y, (int64_t[]){heads * d}, 1);
    sbp_onnx_define_value(o, 0, y, x->type, x->rank, x->dim);
    return o->builder.status;
}

static sbp_status attention_attributes(sbp_onnx *o, int64_t *q_heads, int64_t *kv_heads, double *scale,
                                       double *softcap, int64_t *window) {
    static const char *const known[] = {
        "is_causal", "kv_num_heads", "q_num_heads",       "qk_matmul_output_mode",
        "scale",     "softcap",      "softmax_precision", NULL};
    static const char *const inputs[] = {
        "Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"};
    int64_t causal = 0;
    SBP_TRY(sbp_onnx_attrs_known(o, known));
    SBP_TRY(sbp_onnx_attr_int(o, "is_causal", &causal));
    SBP_TRY(sbp_onnx_attr_int(o, "q_num_heads", q_heads));
    SBP_TRY(sbp_onnx_attr_int(o, "kv_num_heads", kv_heads));
    SBP_TRY(sbp_onnx_attr_float(o, "scale", scale));
    SBP_TRY(sbp_onnx_attr_float(o, "softcap", softcap));
    for (int32_t i = 4; i < o->node->input_count; i++)
        if (o->node->inputs[i][0])
            return sbp_onnx_fail(o, "%s is given", i < SBP_COUNT(inputs) ? inputs[i] : "a further input");
    const sbp_onnx_value *mask = sbp_onnx_input(o, 3);
    *window = 0;
    if (mask && causal != 1)
        SBP_TRY(sbp_onnx_mask_window(o, mask, window));
    else if (mask)
        SBP_TRY(sbp_onnx_causal_mask_window(o, mask, window));
    else if (causal != 1)
        return sbp_onnx_fail(o, "is_causal is %lld: without a mask every token sees every other",
                             (long long)causal);
    for (int32_t i = 1; i < o->node->output_count; i++)
        if (sbp_onnx_has_output(o, i))
            return sbp_onnx_fail(o, "output '%s' is used; only the first is supported", o->node->outputs[i]);
    return SBP_OK;
}

sbp_status sbp_onnx_attention(sbp_onnx *o) {
    const sbp_onnx_value *x[3];
    sbp_value operands[3];
    int64_t given[3] = {0, 0, 0}, heads[3], d[3], window;
    double scale = 0, softcap = 0;
    SBP_TRY(attention_attributes(o, &given[0], &given[1], &scale, &softcap, &window));
    given[2] = given[1];
    for (int32_t i = 0; i < 3; i++) {
        SBP_TRY(sbp_onnx_required(o, i, &x[i]));
        SBP_TRY(heads_operand(o, x[i], given[i], &operands[i], &heads[i], &d[i]));
    }
    if (scale == 0)
        scale = pow((double)d[0], -0.5);
    sbp_value y = sbp_onnx_build_attention(o, operands, scale, softcap, window);
    int64_t dim[SBP_MAX_RANK];
    memcpy(dim, x[0]->dim, sizeof dim);
    dim[x[0]->rank - 1] = x[0]->rank == 3 ? heads[0] * d[2] : d[2];
    if (x[0]->rank == 3)
        y = sbp_build_reshape(&o->builder, y, (int64_t[]){heads[0] * d[2]}, 1);
    sbp_onnx_define_value(o, 0, y, x[0]->type, x[0]->rank, dim);
    return o->builder.status;
}
