/* tensor_table.c: the tensor table as JSON, and its checks. */
#include "frontends/formats/weights/tensor_table.h"

#include <math.h>
#include <string.h>

#include "ir/base/json_write.h"

enum { LEAST_TENSOR = 40 /* characters of one: {"buffer": "b", "recipes": [..]} */ };

static const char *const op_names[SBP_RECIPE_OP_COUNT] = {"slice", "transpose",    "squeeze", "split",
                                                          "front", "deinterleave", "add",     "cast"};

/* ---- printing --------------------------------------------------------------------------------------- */

static void write_step(sbp_json_writer *w, const sbp_recipe_step *step) {
    const char *name = op_names[step->op];
    sbp_json_write_object(w, NULL);
    switch (step->op) {
    case SBP_RECIPE_SLICE:
        sbp_json_write_array(w, name);
        sbp_json_write_int(w, NULL, step->axis);
        sbp_json_write_int(w, NULL, step->start);
        sbp_json_write_int(w, NULL, step->length);
        if (step->heads > 1)
            sbp_json_write_int(w, NULL, step->heads);
        sbp_json_write_end(w);
        break;
    case SBP_RECIPE_TRANSPOSE:
        sbp_json_write_bool(w, name, true);
        break;
    case SBP_RECIPE_SQUEEZE:
    case SBP_RECIPE_FRONT:
        sbp_json_write_int(w, name, step->axis);
        break;
    case SBP_RECIPE_SPLIT:
        sbp_json_write_array(w, name);
        sbp_json_write_int(w, NULL, step->axis);
        sbp_json_write_int(w, NULL, step->length);
        sbp_json_write_end(w);
        break;
    case SBP_RECIPE_DEINTERLEAVE:
        sbp_json_write_int(w, name, step->heads);
        break;
    case SBP_RECIPE_ADD:
        sbp_json_write_double(w, name, step->constant);
        break;
    case SBP_RECIPE_CAST:
        sbp_json_write_string(w, name, sbp_dtype_name(step->dtype));
        break;
    case SBP_RECIPE_OP_COUNT:
        break;
    }
    sbp_json_write_end(w);
}

static void write_recipe(sbp_json_writer *w, const sbp_recipe *recipe) {
    sbp_json_write_object(w, NULL);
    sbp_json_write_string(w, "source", recipe->source);
    sbp_json_write_string(w, "dtype", sbp_dtype_name(recipe->dtype));
    sbp_json_write_array(w, "shape");
    for (int32_t a = 0; a < recipe->rank; a++)
        sbp_json_write_int(w, NULL, recipe->dim[a]);
    sbp_json_write_end(w);
    if (recipe->stacked)
        sbp_json_write_bool(w, "stacked", true);
    if (recipe->step_count > 0) {
        sbp_json_write_array(w, "steps");
        for (int32_t k = 0; k < recipe->step_count; k++)
            write_step(w, &recipe->steps[k]);
        sbp_json_write_end(w);
    }
    sbp_json_write_end(w);
}

static void write_low_rank(sbp_json_writer *w, const sbp_low_rank *low_rank) {
    sbp_json_write_object(w, "low_rank");
    sbp_json_write_string(w, "a", low_rank->a);
    sbp_json_write_string(w, "b", low_rank->b);
    sbp_json_write_bool(w, "in_out", low_rank->in_out);
    sbp_json_write_double(w, "scale", low_rank->scale);
    sbp_json_write_end(w);
}

static void write_init(sbp_json_writer *w, const sbp_tensor_entry *tensor) {
    if (tensor->init != SBP_INIT_NORMAL && tensor->init != SBP_INIT_UNIFORM) {
        sbp_json_write_string(w, "init", tensor->init == SBP_INIT_ONES ? "ones" : "zeros");
        return;
    }
    sbp_json_write_object(w, "init");
    sbp_json_write_double(w, tensor->init == SBP_INIT_NORMAL ? "normal" : "uniform", tensor->deviation);
    sbp_json_write_end(w);
}

static void write_tensor(sbp_json_writer *w, const sbp_tensor_entry *tensor) {
    sbp_json_write_object(w, NULL);
    sbp_json_write_string(w, "buffer", tensor->buffer);
    sbp_json_write_bool(w, "trainable", tensor->trainable);
    sbp_json_write_bool(w, "decay", tensor->decay);
    if (tensor->fresh)
        sbp_json_write_bool(w, "fresh", true);
    if (tensor->format)
        sbp_json_write_string(w, "format", sbp_format_of(tensor->format)->name);
    if (tensor->of_adapter)
        sbp_json_write_bool(w, "of_adapter", true);
    if (tensor->merged)
        sbp_json_write_string(w, "merged", tensor->merged);
    if (tensor->low_rank.a)
        write_low_rank(w, &tensor->low_rank);
    write_init(w, tensor);
    if (tensor->pad_row >= 0)
        sbp_json_write_int(w, "pad_row", tensor->pad_row);
    sbp_json_write_array(w, "recipes");
    for (int32_t k = 0; k < tensor->recipe_count; k++)
        write_recipe(w, &tensor->recipes[k]);
    sbp_json_write_end(w);
    if (tensor->alias_count > 0) {
        sbp_json_write_array(w, "aliases");
        for (int32_t k = 0; k < tensor->alias_count; k++)
            sbp_json_write_string(w, NULL, tensor->aliases[k]);
        sbp_json_write_end(w);
    }
    sbp_json_write_end(w);
}

void sbp_tensor_table_print(sbp_text *out, const sbp_tensor_table *table) {
    sbp_json_writer w = sbp_json_writer_on(out);
    sbp_json_write_object(&w, NULL);
    sbp_json_write_array(&w, "tensors");
    for (int32_t t = 0; t < table->count; t++) {
        sbp_json_write_line(&w);
        write_tensor(&w, &table->tensors[t]);
    }
    sbp_json_write_line(&w);
    sbp_json_write_end(&w);
    sbp_json_write_end(&w);
    sbp_text_add(out, "\n");
}

/* ---- parsing ---------------------------------------------------------------------------------------- */

typedef struct reader {
    sbp_arena *arena;
    sbp_diag *diag;
} reader;

static sbp_status read_dtype(reader *r, const sbp_json *node, sbp_dtype *out) {
    const char *name;
    SBP_TRY(sbp_json_as_string(r->diag, node, &name));
    if (!sbp_dtype_from_name(name, strlen(name), out) || !sbp_dtype_is_float(*out))
        return sbp_json_fail(r->diag, node, "'%.40s' is not a float type", name);
    return SBP_OK;
}

/* Integers of an array, at most `most`. */
static sbp_status read_integers(reader *r, const sbp_json *array, int64_t *out, int64_t most,
                                int64_t *count) {
    SBP_TRY(sbp_json_as_array(r->diag, array, &array));
    if (array->count > most)
        return sbp_json_fail(r->diag, array, "%lld numbers; at most %lld", (long long)array->count,
                             (long long)most);
    for (int64_t k = 0; k < array->count; k++)
        SBP_TRY(sbp_json_as_i64(r->diag, &array->items[k], &out[k]));
    *count = array->count;
    return SBP_OK;
}

static sbp_status read_step(reader *r, const sbp_json *node, sbp_recipe_step *out) {
    SBP_TRY(sbp_json_as_object(r->diag, node, &node));
    if (node->count != 1)
        return sbp_json_fail(r->diag, node, "a step has one member, found %lld", (long long)node->count);
    const sbp_json *value = &node->items[0];
    int op = 0;
    while (op < SBP_RECIPE_OP_COUNT && strcmp(value->key, op_names[op]) != 0)
        op++;
    *out = (sbp_recipe_step){.op = (sbp_recipe_op)op};
    int64_t slice[4] = {0}, count = 0;
    bool flag;
    switch (out->op) {
    case SBP_RECIPE_SLICE:
        SBP_TRY(read_integers(r, value, slice, 4, &count));
        if (count < 3)
            return sbp_json_fail(r->diag, value, "expected axis, start and length, of heads their number");
        out->axis = slice[0];
        out->start = slice[1];
        out->length = slice[2];
        out->heads = slice[3];
        return SBP_OK;
    case SBP_RECIPE_TRANSPOSE:
        SBP_TRY(sbp_json_as_bool(r->diag, value, &flag));
        return flag ? SBP_OK : sbp_json_fail(r->diag, value, "expected true");
    case SBP_RECIPE_SQUEEZE:
    case SBP_RECIPE_FRONT:
        return sbp_json_as_i64(r->diag, value, &out->axis);
    case SBP_RECIPE_SPLIT:
        SBP_TRY(read_integers(r, value, slice, 2, &count));
        if (count < 2)
            return sbp_json_fail(r->diag, value, "expected axis and parts");
        out->axis = slice[0];
        out->length = slice[1];
        return SBP_OK;
    case SBP_RECIPE_DEINTERLEAVE:
        return sbp_json_as_i64(r->diag, value, &out->heads);
    case SBP_RECIPE_ADD:
        return sbp_json_as_double(r->diag, value, &out->constant);
    case SBP_RECIPE_CAST:
        return read_dtype(r, value, &out->dtype);
    case SBP_RECIPE_OP_COUNT:
        break;
    }
    return sbp_json_fail(r->diag, value, "unknown step");
}

static sbp_status read_recipe(reader *r, const sbp_json *node, sbp_recipe *out) {
    *out = (sbp_recipe){0};
    SBP_TRY(sbp_json_as_object(r->diag, node, &node));
    SBP_TRY(sbp_json_get_string(r->diag, node, "source", SBP_JSON_REQUIRED, &out->source));
    const sbp_json *dtype = sbp_json_member(node, "dtype"), *shape = NULL, *steps = NULL;
    out->dtype = SBP_F32;
    if (dtype)
        SBP_TRY(read_dtype(r, dtype, &out->dtype));
    SBP_TRY(sbp_json_get_array(r->diag, node, "shape", SBP_JSON_REQUIRED, &shape));
    int64_t rank = 0;
    SBP_TRY(read_integers(r, shape, out->dim, SBP_MAX_RANK, &rank));
    out->rank = (int32_t)rank;
    SBP_TRY(sbp_json_get_bool(r->diag, node, "stacked", SBP_JSON_OPTIONAL, &out->stacked));
    if (out->stacked && (rank < 2 || !strchr(out->source, '*')))
        return sbp_json_fail(r->diag, node, "a stack needs two axes, and a '*' in its name");
    SBP_TRY(sbp_json_get_array(r->diag, node, "steps", SBP_JSON_OPTIONAL, &steps));
    for (int64_t k = 0; steps && k < steps->count; k++) {
        sbp_recipe_step step;
        SBP_TRY(read_step(r, &steps->items[k], &step));
        SBP_PUSH(r->arena, out->steps, out->step_count, out->step_capacity, step);
    }
    return SBP_OK;
}

static sbp_status read_init(reader *r, const sbp_json *node, sbp_tensor_entry *out) {
    const sbp_json *init = sbp_json_member(node, "init");
    if (!init)
        return SBP_OK;
    if (init->kind == SBP_JSON_OBJECT) {
        bool uniform = sbp_json_member(init, "uniform") != NULL;
        out->init = uniform ? SBP_INIT_UNIFORM : SBP_INIT_NORMAL;
        SBP_TRY(sbp_json_get_double(r->diag, init, uniform ? "uniform" : "normal", SBP_JSON_REQUIRED,
                                    &out->deviation));
        if (!(out->deviation >= 0) || isinf(out->deviation))
            return sbp_json_fail(r->diag, init, "deviation %g", out->deviation);
        return SBP_OK;
    }
    const char *name;
    SBP_TRY(sbp_json_as_string(r->diag, init, &name));
    if (strcmp(name, "ones") != 0 && strcmp(name, "zeros") != 0)
        return sbp_json_fail(r->diag, init, "unknown rule '%.40s'", name);
    out->init = name[0] == 'o' ? SBP_INIT_ONES : SBP_INIT_ZEROS;
    return SBP_OK;
}

static sbp_status read_format(reader *r, const sbp_json *node, sbp_tensor_entry *out) {
    const char *name = NULL;
    SBP_TRY(sbp_json_get_string(r->diag, node, "format", SBP_JSON_OPTIONAL, &name));
    if (name && (!sbp_format_from_name(name, &out->format) || out->trainable))
        return sbp_json_fail(r->diag, sbp_json_member(node, "format"),
                             "'%.40s' is not a format of a %s tensor", name,
                             out->trainable ? "trained" : "frozen");
    return SBP_OK;
}

static sbp_status read_low_rank(reader *r, const sbp_json *node, sbp_low_rank *out) {
    const sbp_json *from = NULL;
    SBP_TRY(sbp_json_get_object(r->diag, node, "low_rank", SBP_JSON_OPTIONAL, &from));
    if (!from)
        return SBP_OK;
    SBP_TRY(sbp_json_get_string(r->diag, from, "a", SBP_JSON_REQUIRED, &out->a));
    SBP_TRY(sbp_json_get_string(r->diag, from, "b", SBP_JSON_REQUIRED, &out->b));
    SBP_TRY(sbp_json_get_bool(r->diag, from, "in_out", SBP_JSON_REQUIRED, &out->in_out));
    SBP_TRY(sbp_json_get_double(r->diag, from, "scale", SBP_JSON_REQUIRED, &out->scale));
    return isfinite(out->scale) ? SBP_OK : sbp_json_fail(r->diag, from, "scale %g", out->scale);
}

static sbp_status read_tensor(reader *r, const sbp_json *node, sbp_tensor_entry *out) {
    SBP_TRY(sbp_json_as_object(r->diag, node, &node));
    SBP_TRY(sbp_json_get_string(r->diag, node, "buffer", SBP_JSON_REQUIRED, &out->buffer));
    SBP_TRY(sbp_json_get_bool(r->diag, node, "trainable", SBP_JSON_REQUIRED, &out->trainable));
    SBP_TRY(sbp_json_get_bool(r->diag, node, "decay", SBP_JSON_REQUIRED, &out->decay));
    SBP_TRY(sbp_json_get_bool(r->diag, node, "fresh", SBP_JSON_OPTIONAL, &out->fresh));
    SBP_TRY(sbp_json_get_bool(r->diag, node, "of_adapter", SBP_JSON_OPTIONAL, &out->of_adapter));
    SBP_TRY(sbp_json_get_string(r->diag, node, "merged", SBP_JSON_OPTIONAL, &out->merged));
    SBP_TRY(read_low_rank(r, node, &out->low_rank));
    SBP_TRY(sbp_json_get_i64(r->diag, node, "pad_row", SBP_JSON_OPTIONAL, &out->pad_row));
    SBP_TRY(read_init(r, node, out));
    SBP_TRY(read_format(r, node, out));
    const sbp_json *recipes = NULL, *aliases = NULL;
    SBP_TRY(sbp_json_get_array(r->diag, node, "recipes", SBP_JSON_REQUIRED, &recipes));
    if (recipes->count == 1) { /* nearly always, and thousands of tensors */
        out->recipes = SBP_NEW(r->arena, sbp_recipe);
        out->recipe_capacity = 1;
    }
    for (int64_t k = 0; k < recipes->count; k++) {
        sbp_recipe recipe;
        SBP_TRY(read_recipe(r, &recipes->items[k], &recipe));
        SBP_PUSH(r->arena, out->recipes, out->recipe_count, out->recipe_capacity, recipe);
    }
    SBP_TRY(sbp_json_get_array(r->diag, node, "aliases", SBP_JSON_OPTIONAL, &aliases));
    for (int64_t k = 0; aliases && k < aliases->count; k++) {
        const char *alias;
        SBP_TRY(sbp_json_as_string(r->diag, &aliases->items[k], &alias));
        SBP_PUSH(r->arena, out->aliases, out->alias_count, out->alias_capacity, alias);
    }
    return SBP_OK;
}

sbp_status sbp_tensor_table_parse(sbp_arena *arena, sbp_diag *diag, const char *file, const char *text,
                                  size_t length, sbp_tensor_table **out) {
    reader r = {arena, diag};
    const sbp_json *root, *tensors = NULL;
    SBP_TRY(sbp_json_parse(arena, diag, file, text, length, 0, &root));
    SBP_TRY(sbp_json_as_object(diag, root, &root));
    SBP_TRY(sbp_json_get_array(diag, root, "tensors", SBP_JSON_REQUIRED, &tensors));
    sbp_tensor_table *table = SBP_NEW(arena, sbp_tensor_table);
    if (tensors->count <=
        (int64_t)length / LEAST_TENSOR) { /* room for all: an arena keeps what grows out of its place */
        table->tensors = SBP_NEW_ARRAY(arena, sbp_tensor_entry, tensors->count);
        table->capacity = (int32_t)tensors->count;
    }
    for (int64_t t = 0; t < tensors->count; t++) {
        sbp_tensor_entry tensor = {.init = SBP_INIT_ZEROS, .pad_row = -1};
        SBP_TRY(read_tensor(&r, &tensors->items[t], &tensor));
        SBP_PUSH(arena, table->tensors, table->count, table->capacity, tensor);
    }
    SBP_TRY(sbp_tensor_table_verify(arena, diag, table));
    *out = table;
    return SBP_OK;
}

/* ---- checks ----------------------------------------------------------------------------------------- */

static bool same_dims(int32_t rank_a, const int64_t *a, int32_t rank_b, const int64_t *b) {
    return rank_a == rank_b && memcmp(a, b, (size_t)rank_a * sizeof *a) == 0;
}

static sbp_status verify_tensor(sbp_diag *diag, sbp_tensor_entry *tensor) {
    if (tensor->recipe_count == 0)
        return sbp_fail(diag, SBP_INPUT, "tensor table: buffer '%.200s' has no recipe", tensor->buffer);
    SBP_TRY(sbp_recipe_compile(diag, &tensor->recipes[0], &tensor->map));
    int64_t rows = tensor->recipes[0].rank > 0 ? tensor->recipes[0].dim[0] : 0;
    if (tensor->pad_row < -1 || tensor->pad_row >= rows)
        return sbp_fail(diag, SBP_INPUT, "tensor table: buffer '%.200s': pad_row %lld of %lld",
                        tensor->buffer, (long long)tensor->pad_row, (long long)rows);
    for (int32_t k = 1; k < tensor->recipe_count; k++) {
        sbp_recipe_map map;
        SBP_TRY(sbp_recipe_compile(diag, &tensor->recipes[k], &map));
        if (!same_dims(map.rank, map.dim, tensor->map.rank, tensor->map.dim))
            return sbp_fail(
                diag, SBP_INPUT,
                "tensor table: buffer '%.200s': sources '%.200s' and '%.200s' give different shapes",
                tensor->buffer, tensor->recipes[0].source, tensor->recipes[k].source);
    }
    return SBP_OK;
}

/* The rectangle of the source that a tensor covers: what its slices leave of each axis, or of each of the
 * heads that an axis holds. */
static void covered(const sbp_tensor_entry *tensor, int64_t low[SBP_MAX_RANK], int64_t high[SBP_MAX_RANK],
                    int64_t heads[SBP_MAX_RANK]) {
    const sbp_recipe *recipe = &tensor->recipes[0];
    int axis_of[SBP_MAX_RANK] = {0}; /* source axis that is at this place now */
    for (int32_t a = 0; a < recipe->rank; a++) {
        low[a] = 0;
        high[a] = recipe->dim[a];
        heads[a] = 1;
        axis_of[a] = a;
    }
    for (int32_t k = 0; k < recipe->step_count; k++) {
        const sbp_recipe_step *step = &recipe->steps[k];
        if (step->op == SBP_RECIPE_TRANSPOSE) {
            int first = axis_of[0];
            axis_of[0] = axis_of[1];
            axis_of[1] = first;
        } else if (step->op == SBP_RECIPE_SQUEEZE) {
            for (int32_t a = (int32_t)step->axis; a + 1 < recipe->rank; a++)
                axis_of[a] = axis_of[a + 1];
        } else if (step->op == SBP_RECIPE_SLICE) {
            int a = axis_of[step->axis];
            low[a] += step->start;
            high[a] = low[a] + step->length;
            heads[a] = step->heads > 1 ? step->heads : 1;
        }
    }
}

static bool overlap(const sbp_tensor_entry *a, const sbp_tensor_entry *b) {
    int64_t low_a[SBP_MAX_RANK] = {0}, high_a[SBP_MAX_RANK] = {0}, low_b[SBP_MAX_RANK] = {0},
            high_b[SBP_MAX_RANK] = {0}, heads_a[SBP_MAX_RANK] = {0}, heads_b[SBP_MAX_RANK] = {0};
    covered(a, low_a, high_a, heads_a);
    covered(b, low_b, high_b, heads_b);
    for (int32_t k = 0; k < a->recipes[0].rank; k++)
        if (heads_a[k] == heads_b[k] && (low_a[k] >= high_b[k] || low_b[k] >= high_a[k]))
            return false;
    return true;
}

/* Disjoint pieces of the right total size cover everything. */
static sbp_status verify_source(sbp_diag *diag, const sbp_tensor_source *source) {
    enum { MAX_PIECES = 256 };
    int64_t covers = 0;
    if (source->count > MAX_PIECES)
        return sbp_fail(diag, SBP_INPUT, "tensor table: %d buffers share '%.200s'; at most %d", source->count,
                        source->recipe->source, MAX_PIECES);
    for (int32_t k = 0; k < source->count; k++) {
        const sbp_tensor_entry *tensor = source->tensors[k];
        const sbp_recipe *recipe = &tensor->recipes[0];
        if (!same_dims(recipe->rank, recipe->dim, source->recipe->rank, source->recipe->dim) ||
            recipe->dtype != source->recipe->dtype || recipe->stacked != source->recipe->stacked)
            return sbp_fail(diag, SBP_INPUT, "tensor table: two shapes or types for '%.200s'",
                            source->recipe->source);
        for (int32_t j = 0; j < k; j++)
            if (overlap(tensor, source->tensors[j]))
                return sbp_fail(diag, SBP_INPUT,
                                "tensor table: buffers '%.200s' and '%.200s' hold the same part of '%.200s'",
                                source->tensors[j]->buffer, tensor->buffer, recipe->source);
        covers += tensor->map.elems;
    }
    if (covers != source->elems)
        return sbp_fail(diag, SBP_INPUT,
                        "tensor table: the buffers of '%.200s' hold %lld of its %lld elements",
                        source->recipe->source, (long long)covers, (long long)source->elems);
    return SBP_OK;
}

/* Whether A, B and a weight are of as many experts, or of none. */
static bool of_as_many(const sbp_recipe_map *w, const sbp_recipe_map *a, const sbp_recipe_map *b) {
    return w->rank == a->rank && w->rank == b->rank &&
           (w->rank == 2 || (w->rank == 3 && w->dim[0] == a->dim[0] && w->dim[0] == b->dim[0]));
}

/* B A of an adapter is a matrix of the weight's shape, or its transpose; of experts each has one. */
static sbp_status verify_low_rank(sbp_diag *diag, const sbp_tensor_table *table,
                                  const sbp_tensor_entry *tensor) {
    if (!tensor->low_rank.a)
        return SBP_OK;
    const sbp_tensor_entry *a = sbp_tensor_table_find(table, tensor->low_rank.a),
                           *b = sbp_tensor_table_find(table, tensor->low_rank.b);
    if (a && b && of_as_many(&tensor->map, &a->map, &b->map)) {
        int in = tensor->low_rank.in_out ? 0 : 1, at = tensor->map.rank - 2;
        const int64_t *w = tensor->map.dim + at, *da = a->map.dim + at, *db = b->map.dim + at;
        if (da[0] == db[1] && db[0] == w[1 - in] && da[1] == w[in])
            return SBP_OK;
    }
    return sbp_fail(diag, SBP_INPUT, "tensor table: '%.200s' times '%.200s' is not an adapter of '%.200s'",
                    tensor->low_rank.b, tensor->low_rank.a, tensor->buffer);
}

sbp_status sbp_tensor_table_verify(sbp_arena *arena, sbp_diag *diag, sbp_tensor_table *table) {
    sbp_map buffers;
    sbp_map_init(&buffers, arena);
    for (int32_t t = 0; t < table->count; t++) {
        sbp_tensor_entry *tensor = &table->tensors[t];
        if (!tensor->buffer || !tensor->buffer[0] || sbp_map_get(&buffers, tensor->buffer) >= 0)
            return sbp_fail(diag, SBP_INPUT, "tensor table: buffer '%.200s' is there twice, or has no name",
                            tensor->buffer ? tensor->buffer : "");
        sbp_map_set(&buffers, tensor->buffer, t);
        SBP_TRY(verify_tensor(diag, tensor));
    }
    sbp_tensor_source *sources;
    int32_t count;
    sbp_tensor_table_sources(arena, table, false, &sources, &count);
    for (int32_t k = 0; k < count; k++)
        SBP_TRY(verify_source(diag, &sources[k]));
    for (int32_t t = 0; t < table->count; t++)
        SBP_TRY(verify_low_rank(diag, table, &table->tensors[t]));
    return SBP_OK;
}

bool sbp_tensor_table_has_adapter(const sbp_tensor_table *table) {
    bool any = false;
    for (int32_t t = 0; t < table->count; t++)
        any |= table->tensors[t].of_adapter;
    return any;
}

const sbp_tensor_entry *sbp_tensor_table_find(const sbp_tensor_table *table, const char *buffer) {
    for (int32_t t = 0; t < table->count; t++)
        if (strcmp(table->tensors[t].buffer, buffer) == 0)
            return &table->tensors[t];
    return NULL;
}

void sbp_tensor_table_sources(sbp_arena *arena, const sbp_tensor_table *table, bool trainable_only,
                              sbp_tensor_source **out, int32_t *count) {
    sbp_tensor_source *sources = SBP_NEW_ARRAY(arena, sbp_tensor_source, table->count);
    int32_t n = 0;
    sbp_map names;
    sbp_map_init(&names, arena);
    for (int32_t t = 0; t < table->count; t++) {
        const sbp_tensor_entry *tensor = &table->tensors[t];
        if (trainable_only && !tensor->trainable)
            continue;
        int32_t k = sbp_map_get(&names, tensor->recipes[0].source);
        if (k < 0) {
            k = n++;
            sources[k] =
                (sbp_tensor_source){.recipe = &tensor->recipes[0], .elems = tensor->map.source_elems};
            sbp_map_set(&names, tensor->recipes[0].source, k);
        }
        SBP_PUSH(arena, sources[k].tensors, sources[k].count, sources[k].capacity, tensor);
    }
    *out = sources;
    *count = n;
}
