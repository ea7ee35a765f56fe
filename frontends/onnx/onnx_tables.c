/* onnx_tables.c: constant tensors as expressions in the index of their elements: frozen initializers, of
 * which only what is used becomes a parameter, and bands (masks kept as matrices), which become comparisons.
 */
#include "frontends/formats/weights/recipe.h"
#include "frontends/onnx/onnx.h"

#include <string.h>

enum { MOST_PIECES = 4 };
#define MOST_ELEMS (INT64_C(1) << 25) /* of a frozen tensor that is worked out here; 256 MiB as doubles */

sbp_status sbp_onnx_at_most(sbp_onnx *o, double most) {
    sbp_model *model = o->loading->model;
    if (most < 1)
        return sbp_onnx_fail(o, "at most %g tokens fit into its operands", most);
    if (most < o->numbers.most_tokens) {
        o->numbers.most_tokens = most;
        model->max_positions = (int64_t)most;
        model->learned_positions = true; /* as hard a limit as learned ones */
    }
    return SBP_OK;
}

/* ---- numbers by index ---------------------------------------------------------------------------------- */

/* A matrix [n, n] whose numbers depend on column - row alone, and change at few distances: a choice by these;
 * else NULL. */
static const sbp_number *band(sbp_onnx *o, const double *data, int64_t n, const sbp_number *row,
                              const sbp_number *column) {
    int64_t begin[MOST_PIECES]; /* distances at which pieces begin, from -(n - 1) on */
    int32_t count = 0;
    for (int64_t q = 0; q < n; q++)
        for (int64_t k = 0; k < n; k++)
            if (data[q * n + k] != (k >= q ? data[k - q] : data[(q - k) * n]))
                return NULL;
    for (int64_t d = 1 - n; d < n; d++) {
        double here = d >= 0 ? data[d] : data[-d * n],
               before = d > 0 ? data[d - 1] : data[(1 - d) * n * (d > 1 - n)];
        if (d > 1 - n && here == before)
            continue;
        if (count == MOST_PIECES)
            return NULL;
        begin[count++] = d;
    }
    sbp_numbers *numbers = &o->numbers;
    const sbp_number *distance = sbp_number_add(numbers, column, -1, row), *out = NULL;
    for (int32_t i = count - 1; i >= 0; i--) {
        const sbp_number *value =
            sbp_number_constant(numbers, begin[i] >= 0 ? data[begin[i]] : data[-begin[i] * n]);
        if (!out)
            out = value;
        else
            out = sbp_number_choose(
                numbers,
                sbp_number_less(numbers, distance, sbp_number_constant(numbers, (double)begin[i + 1])), value,
                out);
    }
    return out;
}

/* Numbers of a tensor by index, row-major: what masks and bands are becomes a comparison of indices. */
static const sbp_number *table_element(sbp_onnx *o, const double *data, const sbp_number_tensor *t,
                                       const int64_t *dim) {
    sbp_numbers *n = &o->numbers;
    const sbp_number *index[SBP_NUMBERS_RANK], *place = sbp_number_constant(n, 0);
    int64_t elems = 1;
    for (int32_t d = 0; d < t->rank; d++) {
        index[d] = dim[d] == 1 ? sbp_number_constant(n, 0) : sbp_number_axis(n, d);
        place = sbp_number_add(n, sbp_number_multiply(n, place, t->size[d]), 1, index[d]);
        elems *= dim[d];
    }
    int32_t r = t->rank;
    if (r >= 2 && dim[r - 1] == dim[r - 2] && dim[r - 1] > 1 && elems == dim[r - 1] * dim[r - 1]) {
        const sbp_number *found = band(o, data, dim[r - 1], index[r - 2], index[r - 1]);
        if (found)
            return found;
    }
    return sbp_number_table(n, data, elems, place);
}

void sbp_onnx_tensor_of(sbp_onnx *o, const sbp_onnx_value *v, sbp_number_tensor *out) {
    if (v->kind == SBP_ONNX_NUMBERS) {
        *out = v->numbers;
        return;
    }
    *out = (sbp_number_tensor){.rank = v->rank};
    for (int32_t d = 0; d < v->rank; d++)
        out->size[d] = sbp_number_constant(&o->numbers, (double)v->dim[d]);
    out->element = table_element(o, v->data, out, v->dim);
}

/* ---- frozen initializers --------------------------------------------------------------------------------
 */

const sbp_onnx_table *sbp_onnx_find_table(const sbp_onnx *o, const double *data) {
    for (int32_t i = 0; i < o->table_count; i++)
        if (o->tables[i].data == data)
            return &o->tables[i];
    return NULL;
}

sbp_status sbp_onnx_table_of(sbp_onnx *o, const sbp_onnx_value *v, sbp_number_tensor *out) {
    const double *data = NULL;
    const sbp_onnx_tensor *t = v->tensor;
    for (int32_t i = 0; i < o->table_count; i++)
        if (o->tables[i].tensor == t)
            data = o->tables[i].data;
    if (!data) {
        sbp_onnx_tensor loaded = *t;
        if (t->elems > MOST_ELEMS)
            return sbp_onnx_fail(o, "'%s' has %lld numbers that are not parameters", t->name,
                                 (long long)t->elems);
        SBP_TRY(sbp_onnx_tensor_load(o->arena, o->diag, o->model->path, &loaded));
        double *read = SBP_NEW_ARRAY(o->arena, double, t->elems);
        for (int64_t i = 0; i < t->elems; i++)
            read[i] = sbp_onnx_tensor_at(&loaded, i);
        data = read;
        SBP_PUSH(o->arena, o->tables, o->table_count, o->table_capacity, ((sbp_onnx_table){t, data}));
    }
    *out = (sbp_number_tensor){.rank = v->rank};
    for (int32_t d = 0; d < v->rank; d++)
        out->size[d] = sbp_number_constant(&o->numbers, (double)v->dim[d]);
    out->element = table_element(o, data, out, v->dim);
    return SBP_OK;
}

sbp_status sbp_onnx_param(sbp_onnx *o, const sbp_onnx_value *v, int32_t *out) {
    *out = v->param;
    if (!v->frozen)
        return SBP_OK;
    const sbp_onnx_tensor *t = v->tensor;
    *out = sbp_map_get(&o->frozen, t->name);
    if (*out >= 0)
        return SBP_OK;
    sbp_param param = {.name = t->name,
                       .type = {.dtype = o->compute, .rank = t->rank},
                       .storage = o->compute,
                       .init = SBP_INIT_NORMAL,
                       .init_std = o->loading->model->initializer_range,
                       .pad_row = -1};
    for (int32_t d = 0; d < t->rank; d++)
        param.type.dim[d] = sbp_dim_const(t->dim[d]);
    *out = sbp_module_add_param(o->builder.module, &param);
    sbp_map_set(&o->frozen, t->name, *out);
    return SBP_OK;
}

sbp_status sbp_onnx_squeeze_param(sbp_onnx *o, int32_t number) {
    sbp_param *param = &o->builder.module->params[number];
    sbp_type type = {.dtype = param->type.dtype};
    sbp_recipe *recipe = SBP_NEW(o->arena, sbp_recipe);
    sbp_recipe_step *steps = SBP_NEW_ARRAY(o->arena, sbp_recipe_step, SBP_MAX_RANK);
    *recipe = (sbp_recipe){.source = param->name, .dtype = SBP_F32, .rank = param->type.rank, .steps = steps};
    for (int32_t d = 0; d < param->type.rank; d++) {
        recipe->dim[d] = param->type.dim[d].n;
        if (recipe->dim[d] == 1 && param->type.rank - recipe->step_count > 2)
            steps[recipe->step_count++] = (sbp_recipe_step){.op = SBP_RECIPE_SQUEEZE, .axis = type.rank};
        else
            type.dim[type.rank++] = param->type.dim[d];
    }
    if (type.rank != 2)
        return sbp_onnx_fail(o, "'%s' is not a matrix", param->name);
    if (recipe->step_count > 0) {
        param->type = type;
        param->recipe = recipe;
    }
    return SBP_OK;
}
