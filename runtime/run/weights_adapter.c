/* weights_adapter.c: what of a plan with an adapter is written: the adapter alone, or the model with it
 * merged in. Both are the plan with fewer tensors, some under other names, and merged weights are computed as
 * they are read. */
#include <stdlib.h>
#include <string.h>

#include "runtime/run/weights_internal.h"

typedef struct merger {
    sbp_arena *arena;
    sbp_executor *x;
    const sbp_plan *whole; /* of which .. */
    sbp_plan part;         /* .. this is what is written */
    int32_t *tensor;       /* per tensor of the part: in the whole */
    const sbp_save_options *options;
    const char *path;
    sbp_diag *diag;
    int32_t loaded;        /* tensor of the part whose A is here; -1: none */
    double *a, *row;       /* [r, in] of it; [max(r, in)] */
    int64_t rank, in, out; /* of experts each has its own A and B, one behind the other */
    int32_t b;             /* tensor of its B, in the whole */
} merger;

/* ---- the part ----------------------------------------------------------------------------------------- */

static bool is_written(const merger *m, const sbp_tensor_entry *tensor) {
    return m->options->part == SBP_SAVE_ADAPTER ? tensor->of_adapter : !tensor->of_adapter || tensor->merged;
}

static void choose_part(merger *m) {
    const sbp_tensor_table *all = m->whole->tensors;
    sbp_tensor_table *table = SBP_NEW(m->arena, sbp_tensor_table);
    int32_t *buffers = SBP_NEW_ARRAY(m->arena, int32_t, all->count),
            *masters = SBP_NEW_ARRAY(m->arena, int32_t, all->count);
    int32_t(*parts)[SBP_MAX_FORMAT_PARTS] = sbp_arena_array(m->arena, (size_t)all->count, sizeof *parts);
    m->tensor = SBP_NEW_ARRAY(m->arena, int32_t, all->count);
    for (int32_t t = 0; t < all->count; t++) {
        sbp_tensor_entry tensor = all->tensors[t];
        if (!is_written(m, &tensor))
            continue;
        if (m->options->part == SBP_SAVE_MERGED && tensor.merged) {
            sbp_recipe *recipe = SBP_NEW(m->arena, sbp_recipe);
            *recipe = tensor.recipes[0];
            recipe->source = tensor.merged;
            tensor.recipes = recipe;
            tensor.recipe_count = 1;
        }
        m->tensor[table->count] = t;
        buffers[table->count] = m->whole->buffers[t];
        masters[table->count] = m->whole->masters[t];
        memcpy(parts[table->count], m->whole->parts[t], sizeof *parts);
        SBP_PUSH(m->arena, table->tensors, table->count, table->capacity, tensor);
    }
    m->part = *m->whole;
    m->part.tensors = table;
    m->part.buffers = buffers;
    m->part.masters = masters;
    m->part.parts = parts;
    m->loaded = -1;
}

/* ---- merging ------------------------------------------------------------------------------------------ */

static int32_t tensor_of(const merger *m, const char *buffer) {
    return (int32_t)(sbp_tensor_table_find(m->whole->tensors, buffer) - m->whole->tensors->tensors);
}

static sbp_status load_a(merger *m, int32_t tensor) {
    const sbp_low_rank *low_rank = &m->part.tensors->tensors[tensor].low_rank;
    int32_t a = tensor_of(m, low_rank->a);
    const sbp_recipe_map *map = &m->whole->tensors->tensors[a].map;
    m->loaded = -1;
    m->b = tensor_of(m, low_rank->b);
    m->rank = map->dim[map->rank - 2];
    m->in = map->dim[map->rank - 1];
    m->out = m->whole->tensors->tensors[m->b].map.dim[map->rank - 2];
    free(m->a);
    free(m->row);
    m->a = sbp_malloc((size_t)map->elems * sizeof *m->a);
    m->row = sbp_malloc((size_t)(m->rank + m->in) * sizeof *m->row);
    if (!m->a || !m->row)
        return sbp_fail(m->diag, SBP_MACHINE, "out of memory while merging an adapter");
    SBP_TRY(sbp_params_read(m->x, m->whole, a, false, 0, map->elems, SBP_F64, m->a, m->diag));
    m->loaded = tensor;
    return SBP_OK;
}

/* Row `o` of scale B A into m->row + rank. */
static sbp_status product_row(merger *m, double scale, int64_t o) {
    double *b = m->row, *out = m->row + m->rank;
    const double *a = m->a + o / m->out * m->rank * m->in;
    SBP_TRY(sbp_params_read(m->x, m->whole, m->b, false, o * m->rank, m->rank, SBP_F64, b, m->diag));
    memset(out, 0, (size_t)m->in * sizeof *out);
    for (int64_t k = 0; k < m->rank; k++)
        for (int64_t i = 0; i < m->in; i++)
            out[i] += scale * b[k] * a[k * m->in + i];
    return SBP_OK;
}

/* One element of B A, of a weight that is its transpose. */
static sbp_status product_column(merger *m, double scale, int64_t i, int64_t first, int64_t count,
                                 double *out) {
    int64_t expert = i / m->in, column = i % m->in;
    const double *a = m->a + expert * m->rank * m->in;
    for (int64_t o = 0; o < count; o++) {
        double *b = m->row;
        SBP_TRY(sbp_params_read(m->x, m->whole, m->b, false, (expert * m->out + first + o) * m->rank, m->rank,
                                SBP_F64, b, m->diag));
        out[o] = 0;
        for (int64_t k = 0; k < m->rank; k++)
            out[o] += scale * b[k] * a[k * m->in + column];
    }
    return SBP_OK;
}

static void add(void *out, sbp_dtype dtype, int64_t at, double value) {
    sbp_element_set(out, dtype, at, sbp_element_get(out, dtype, at) + value);
}

/* Elements [first, first + count) of W + scale B A, row by row of W. */
static sbp_status add_product(merger *m, const sbp_low_rank *low_rank, int64_t first, int64_t count,
                              sbp_dtype dtype, void *out) {
    double scale = low_rank->scale * m->options->factor;
    int64_t columns = low_rank->in_out ? m->out : m->in;
    double *part = low_rank->in_out ? sbp_malloc((size_t)columns * sizeof *part) : NULL;
    if (low_rank->in_out && !part)
        return sbp_fail(m->diag, SBP_MACHINE, "out of memory while merging an adapter");
    sbp_status status = SBP_OK;
    for (int64_t at = first; at < first + count && status == SBP_OK;) {
        int64_t row = at / columns, column = at % columns,
                n = columns - column < first + count - at ? columns - column : first + count - at;
        status =
            low_rank->in_out ? product_column(m, scale, row, column, n, part) : product_row(m, scale, row);
        for (int64_t k = 0; k < n && status == SBP_OK; k++)
            add(out, dtype, at - first + k, low_rank->in_out ? part[k] : m->row[m->rank + column + k]);
        at += n;
    }
    free(part);
    return status;
}

static sbp_status read_merged(void *user, int32_t tensor, int64_t first, int64_t count, sbp_dtype dtype,
                              void *out, sbp_diag *diag) {
    merger *m = user;
    const sbp_low_rank *low_rank = &m->part.tensors->tensors[tensor].low_rank;
    SBP_TRY(sbp_params_read(m->x, m->whole, m->tensor[tensor], false, first, count, dtype, out, diag));
    if (!low_rank->a)
        return SBP_OK;
    if (m->loaded != tensor)
        SBP_TRY(load_a(m, tensor));
    return add_product(m, low_rank, first, count, dtype, out);
}

/* ---- the whole ---------------------------------------------------------------------------------------- */

static sbp_status save_part(void *user) {
    merger *m = user;
    sbp_save_options options = *m->options;
    choose_part(m);
    if (options.part == SBP_SAVE_MERGED) {
        options.read = read_merged;
        options.read_user = m;
    }
    return sbp_params_save_plan(m->x, &m->part, m->path, &options, m->diag);
}

sbp_status sbp_params_save(sbp_executor *x, const sbp_plan *plan, const char *path,
                           const sbp_save_options *options, sbp_diag *diag) {
    if (options->part == SBP_SAVE_ALL)
        return sbp_params_save_plan(x, plan, path, options, diag);
    merger m = {
        .arena = sbp_arena_create(), .x = x, .whole = plan, .options = options, .path = path, .diag = diag};
    if (!m.arena)
        return sbp_fail(diag, SBP_MACHINE, "out of memory while saving an adapter");
    sbp_status status = sbp_guard(m.arena, diag, save_part, &m);
    free(m.a);
    free(m.row);
    sbp_arena_destroy(m.arena);
    return status;
}
