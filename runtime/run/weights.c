/* weights.c: loads parameters from files. */
#include "ir/base/census.h"
#include "runtime/run/weights_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { PIECE_ELEMS = 1 << 17 };

typedef sbp_weight_target target;

static sbp_status open_target(target *t, bool needs_all) {
    t->memory = t->master >= 0 || t->format ? NULL : sbp_executor_map(t->x, t->buffer, 0);
    t->is_copy = false;
    if (t->memory)
        return sbp_executor_wait(t->x, t->diag);
    if (!needs_all)
        return SBP_OK;
    t->memory = sbp_malloc((size_t)(t->elems * sbp_dtype_bytes(t->dtype)));
    t->is_copy = true;
    return t->memory ? SBP_OK : sbp_fail(t->diag, SBP_MACHINE, "out of memory while loading weights");
}

/* Writes the copy, if there is one, unless loading failed. */
static sbp_status close_target(target *t, sbp_status status) {
    if (t->is_copy) {
        if (status == SBP_OK)
            status = sbp_weight_target_write(t, 0, t->elems, t->dtype, t->memory);
        free(t->memory);
    }
    return status;
}

/* ---- loading ---------------------------------------------------------------------------------------- */

typedef struct load {
    target to;
    const sbp_weights *weights;
    const sbp_weight *weight;
    const sbp_recipe *recipe;
    sbp_recipe_map map;
    sbp_dtype staged; /* F64 or F32 */
    void *staging;    /* [PIECE_ELEMS] */
    int64_t first;    /* source index of staging[0] */
} load;

/* The first element that is NaN or infinite, -1 if there is none. */
static int64_t first_not_finite(const void *data, sbp_dtype dtype, int64_t count) {
    if (dtype == SBP_F32) { /* all of almost every model: let it vectorise */
        const uint32_t *bits = data;
        uint32_t any = 0;
        for (int64_t k = 0; k < count; k++)
            any |= (uint32_t)((bits[k] & 0x7f800000u) == 0x7f800000u);
        if (!any)
            return -1;
    }
    for (int64_t k = 0; k < count; k++)
        if (!isfinite(sbp_element_get(data, dtype, k)))
            return k;
    return -1;
}

/* The first element whose high half is not finite. */
static int64_t first_too_large(const void *data, sbp_dtype dtype, int64_t count) {
    for (int64_t k = 0; k < count; k++)
        if (!(fabs(sbp_element_get(data, dtype, k)) < 0x1.ffp127))
            return k;
    return -1;
}

static sbp_status check_finite(const load *l, const void *data, sbp_dtype dtype, int64_t first,
                               int64_t count) {
    int64_t bad = first_not_finite(data, dtype, count);
    bool large = bad < 0 && l->to.master >= 0 && (bad = first_too_large(data, dtype, count)) >= 0;
    if (bad < 0)
        return SBP_OK;
    double value = sbp_element_get(data, dtype, bad);
    return sbp_fail(l->to.diag, SBP_INPUT,
                    "%s: tensor '%.200s': element %lld is %g as %s, expected a finite number",
                    l->weight->path, l->weight->name, (long long)(first + bad),
                    large ? copysign(INFINITY, value) : value, sbp_dtype_name(large ? SBP_BF16 : dtype));
}

static bool is_here(const target *t, int32_t buffer, int64_t first, int64_t count) {
    int64_t own, elems;
    if (buffer < 0)
        return false;
    sbp_executor_own(t->x, buffer, &own, &elems);
    return first < own + elems && own < first + count;
}

/* Source elements first .. first + count - 1 become the same number of target elements from `to` on. What
 * only other ranks have is not read. */
static sbp_status load_run(load *l, int64_t first, int64_t to, int64_t count) {
    if (!l->to.format && !is_here(&l->to, l->to.buffer, to, count) &&
        !is_here(&l->to, l->to.master, to, count))
        return SBP_OK;
    int64_t unit = sbp_dtype_bytes(l->to.dtype);
    void *out = l->to.memory ? l->to.memory + to * unit : l->staging;
    SBP_TRY(sbp_weights_read(l->weights, l->weight, first, count, l->to.dtype, out, l->to.diag));
    SBP_TRY(check_finite(l, out, l->to.dtype, first, count));
    if (l->to.memory)
        return SBP_OK;
    return sbp_weight_target_write(&l->to, to, count, l->to.dtype, out);
}

static sbp_status scatter(void *user, const sbp_recipe_run *run) {
    load *l = user;
    for (int64_t k = 0; k < run->count; k++) {
        double value = sbp_element_get(l->staging, l->staged, run->source - l->first + k);
        if (l->map.changes_values)
            value = sbp_recipe_load_value(l->recipe, value);
        sbp_element_set(l->to.memory, l->to.dtype, run->target + k, value);
    }
    return SBP_OK;
}

static sbp_status load_pieces(load *l) {
    int64_t first = l->map.source_base, end = sbp_recipe_source_end(&l->map);
    bool direct = sbp_recipe_is_one_run(&l->map) && !l->map.changes_values;
    if (direct)
        SBP_CROSS_EITHER(end - first > PIECE_ELEMS, run_load_pieces, run_load_piece);
    else
        SBP_CROSS_EITHER(end - first > PIECE_ELEMS, run_load_scattered_pieces, run_load_scattered_piece);
    for (int64_t at = first; at < end; at += PIECE_ELEMS) {
        int64_t count = end - at < PIECE_ELEMS ? end - at : PIECE_ELEMS;
        if (direct) {
            SBP_TRY(load_run(l, at, at - first, count));
            continue;
        }
        SBP_TRY(sbp_weights_read(l->weights, l->weight, at, count, l->staged, l->staging, l->to.diag));
        SBP_TRY(check_finite(l, l->staging, l->staged, at, count));
        l->first = at;
        SBP_TRY(sbp_recipe_walk_source(&l->map, at, at + count, scatter, l));
    }
    return SBP_OK;
}

static sbp_status check_shape(const load *l) {
    char found[160] = "", expected[160] = "";
    size_t f = 0, e = 0;
    bool same = l->weight->rank == l->recipe->rank;
    for (int32_t a = 0; a < l->weight->rank && f < sizeof found - 24; a++)
        f += (size_t)snprintf(found + f, sizeof found - f, "%s%lld", a ? ", " : "",
                              (long long)l->weight->dim[a]);
    for (int32_t a = 0; a < l->recipe->rank; a++) {
        same = same && l->weight->dim[a] == l->recipe->dim[a];
        e += (size_t)snprintf(expected + e, sizeof expected - e, "%s%lld", a ? ", " : "",
                              (long long)l->recipe->dim[a]);
    }
    if (same)
        return SBP_OK;
    return sbp_fail(l->to.diag, SBP_INPUT, "%s: tensor '%.200s': shape [%s], expected [%s]", l->weight->path,
                    l->weight->name, found, expected);
}

/* The tensor of the file and the recipe for it; NULL when the file has none. */
static const sbp_weight *find_source(const sbp_weights *weights, const sbp_tensor_entry *tensor,
                                     const sbp_recipe **recipe) {
    for (int32_t k = 0; k < tensor->recipe_count; k++) {
        *recipe = &tensor->recipes[k];
        const sbp_weight *found = sbp_weights_find(weights, tensor->recipes[k].source);
        if (found)
            return found;
    }
    *recipe = &tensor->recipes[0];
    for (int32_t k = 0; k < tensor->alias_count; k++) {
        const sbp_weight *found = sbp_weights_find(weights, tensor->aliases[k]);
        if (found)
            return found;
    }
    return NULL;
}

/* What the blocks stand for must be finite. */
static sbp_status check_scales(const load *l, const sbp_weight_parts *arrays, int64_t first, int64_t count) {
    const sbp_format_info *f = sbp_format_of(l->to.format);
    for (int32_t k = 0; k < f->part_count; k++) {
        int64_t bad = sbp_dtype_is_float(f->parts[k].dtype)
                          ? first_not_finite(arrays->parts[k], f->parts[k].dtype, count * f->parts[k].count)
                          : -1;
        if (bad >= 0)
            return sbp_fail(l->to.diag, SBP_INPUT,
                            "%s: tensor '%.200s': block %lld of its %s is %g, expected a finite number",
                            l->weight->path, l->weight->name, (long long)(first + bad / f->parts[k].count),
                            f->parts[k].name, sbp_element_get(arrays->parts[k], f->parts[k].dtype, bad));
    }
    int64_t bad = sbp_format_find_bad(l->to.format, (const void *const *)arrays->parts, count);
    if (bad >= 0)
        return sbp_fail(l->to.diag, SBP_INPUT,
                        "%s: tensor '%.200s': block %lld stands for what is no finite number",
                        l->weight->path, l->weight->name, (long long)(first + bad));
    return SBP_OK;
}

/* Blocks of the file on their way to those of the parameter. */
typedef struct block_load {
    const load *l;
    sbp_weight_parts arrays;
    int64_t first; /* of the arrays, in the file */
} block_load;

static sbp_status move_blocks(void *user, const sbp_recipe_run *run) {
    const block_load *b = user;
    return sbp_weight_parts_write(&b->l->to, run->target, run->count, b->arrays.parts,
                                  run->source - b->first);
}

/* A tensor that the file keeps as the plan does: not a number is computed. */
static sbp_status load_blocks(const load *l, const sbp_recipe *recipe) {
    block_load b = {.l = l};
    sbp_recipe_map map;
    int64_t piece = SBP_PACKED_ELEMS / sbp_format_of(l->to.format)->block;
    sbp_weight_parts_begin(&b.arrays);
    SBP_TRY(sbp_recipe_compile(l->to.diag, recipe, &map));
    int64_t end = sbp_recipe_source_end(&map);
    SBP_CROSS_EITHER(end - map.source_base > piece, run_load_blocks_pieces, run_load_blocks_piece);
    for (b.first = map.source_base; b.first < end; b.first += piece) {
        int64_t count = end - b.first < piece ? end - b.first : piece;
        SBP_TRY(sbp_weights_read_blocks(l->weights, l->weight, b.first, count, b.arrays.parts, l->to.diag));
        SBP_TRY(check_scales(l, &b.arrays, b.first, count));
        SBP_TRY(sbp_recipe_walk_source(&map, b.first, b.first + count, move_blocks, &b));
    }
    return SBP_OK;
}

static sbp_status load_tensor(load *l) {
    sbp_recipe blocks;
    SBP_TRY(sbp_weight_check(l->weight, l->to.dtype, l->to.diag));
    SBP_TRY(check_shape(l));
    if (l->to.format && l->weight->format == l->to.format &&
        sbp_recipe_of_blocks(l->recipe, sbp_format_of(l->to.format)->block, &blocks))
        return load_blocks(l, &blocks);
    if (l->to.format && !sbp_format_can_encode(l->to.format))
        return sbp_weight_fail_format(&l->to, l->weight->path, l->weight->name, l->weight->encoding);
    SBP_TRY(sbp_recipe_compile(l->to.diag, l->recipe, &l->map));
    if (l->map.elems != l->to.elems)
        return sbp_fail(l->to.diag, SBP_INTERNAL, "tensor '%.200s' does not fill its buffer",
                        l->recipe->source);
    l->staged = l->weight->dtype == SBP_F64 ? SBP_F64 : SBP_F32;
    SBP_TRY(open_target(&l->to, !sbp_recipe_is_one_run(&l->map) || l->map.changes_values));
    return close_target(&l->to, load_pieces(l));
}

/* ---- all of them ------------------------------------------------------------------------------------ */

static sbp_status fail_missing(sbp_diag *diag, const sbp_weights *weights, const sbp_tensor_entry *tensor) {
    bool other = tensor->recipe_count > 1 || tensor->alias_count > 0;
    const char *also = tensor->recipe_count > 1 ? tensor->recipes[1].source : other ? tensor->aliases[0] : "";
    return sbp_fail(diag, SBP_INPUT, "%s: no tensor '%.200s'%s%.200s%s; the file has %d tensors",
                    sbp_weights_path(weights), tensor->recipes[0].source, other ? " (nor '" : "", also,
                    other ? "')" : "", sbp_weights_count(weights));
}

sbp_status sbp_params_load_adapter(sbp_executor *x, const sbp_plan *plan, const sbp_weights *weights,
                                   sbp_diag *diag) {
    double *staging = sbp_malloc(PIECE_ELEMS * sizeof *staging);
    if (!staging)
        return sbp_fail(diag, SBP_MACHINE, "out of memory while loading an adapter");
    sbp_status status = SBP_OK;
    for (int32_t t = 0; t < plan->tensors->count && status == SBP_OK; t++) {
        const sbp_tensor_entry *tensor = &plan->tensors->tensors[t];
        load l = {.weights = weights, .staging = staging, .recipe = &tensor->recipes[0]};
        l.weight = sbp_weights_find(weights, l.recipe->source);
        if (!tensor->of_adapter || (!l.weight && tensor->fresh && tensor->merged))
            continue; /* a value head begins now */
        l.to = sbp_weight_target_of(x, plan, t, diag);
        status = l.weight ? load_tensor(&l)
                          : sbp_fail(diag, SBP_INPUT, "%s: no tensor '%.200s'", sbp_weights_path(weights),
                                     l.recipe->source);
    }
    free(staging);
    return status;
}

static sbp_status load_params(sbp_executor *x, const sbp_plan *plan, const sbp_weights *weights,
                              uint64_t seed, bool base_is_there, sbp_diag *diag) {
    double *staging = sbp_malloc(PIECE_ELEMS * sizeof *staging);
    if (!staging)
        return sbp_fail(diag, SBP_MACHINE, "out of memory while loading weights");
    sbp_status status = SBP_OK;
    for (int32_t t = 0; t < plan->tensors->count && status == SBP_OK; t++) {
        const sbp_tensor_entry *tensor = &plan->tensors->tensors[t];
        load l = {.weights = weights, .staging = staging};
        l.to = sbp_weight_target_of(x, plan, t, diag);
        if (base_is_there && tensor->format)
            continue;
        l.weight = find_source(weights, tensor, &l.recipe);
        if (l.weight)
            status = load_tensor(&l);
        else if (tensor->fresh)
            status = sbp_weight_randomize(x, plan, t, seed, diag);
        else
            status = fail_missing(diag, weights, tensor);
    }
    free(staging);
    return status;
}

sbp_status sbp_params_load(sbp_executor *x, const sbp_plan *plan, const sbp_weights *weights, uint64_t seed,
                           sbp_diag *diag) {
    return load_params(x, plan, weights, seed, false, diag);
}

sbp_status sbp_params_load_trained(sbp_executor *x, const sbp_plan *plan, const sbp_weights *weights,
                                   sbp_diag *diag) {
    return load_params(x, plan, weights, 0, true, diag);
}

bool sbp_params_keep_base(const sbp_plan *plan) {
    for (int32_t t = 0; t < plan->tensors->count; t++)
        if (plan->tensors->tensors[t].format)
            return true;
    return false;
}

bool sbp_params_merge_base(const sbp_plan *plan) {
    for (int32_t t = 0; t < plan->tensors->count; t++)
        if (plan->tensors->tensors[t].format && plan->tensors->tensors[t].low_rank.a)
            return true;
    return false;
}

sbp_status sbp_params_hash_base(sbp_executor *x, const sbp_plan *plan, uint64_t *out, sbp_diag *diag) {
    *out = 0;
    for (int32_t t = 0; t < plan->tensors->count; t++) {
        sbp_format format = plan->tensors->tensors[t].format;
        for (int32_t k = 0; format && k < sbp_format_of(format)->part_count; k++)
            SBP_TRY(sbp_executor_hash(x, plan->parts[t][k], out, diag));
    }
    return SBP_OK;
}
