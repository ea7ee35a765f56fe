/* recipe.c: compiles recipes into loop nests and walks them from either side. */
#include "frontends/formats/weights/recipe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ELEMS_LIMIT (INT64_C(1) << 48)

/* ---- compiling -------------------------------------------------------------------------------------- */

/* One axis of the tensor as it is after some of the steps: nested loops over the source, outermost first. */
typedef struct axis {
    int64_t extent[3], stride[3];
    int32_t count;
} axis;

typedef struct shaper {
    sbp_diag *diag;
    const sbp_recipe *recipe;
    axis axes[SBP_MAX_RANK];
    int32_t rank; /* after the steps so far */
    int64_t base;
} shaper;

static int64_t axis_length(const axis *a) {
    int64_t length = 1;
    for (int32_t k = 0; k < a->count; k++)
        length *= a->extent[k];
    return length;
}

static sbp_status begin(shaper *s, int64_t *elems) {
    const sbp_recipe *r = s->recipe;
    if (!r->source || !r->source[0])
        return sbp_fail(s->diag, SBP_INPUT, "a recipe names no source tensor");
    if (r->rank < 0 || r->rank > SBP_MAX_RANK || r->step_count > SBP_RECIPE_MAX_STEPS)
        return sbp_fail(s->diag, SBP_INPUT, "tensor '%.200s': rank %d, %d steps", r->source, r->rank,
                        r->step_count);
    int64_t stride = 1;
    for (int32_t a = r->rank - 1; a >= 0; a--) {
        if (r->dim[a] < 1 || r->dim[a] > ELEMS_LIMIT / stride)
            return sbp_fail(s->diag, SBP_INPUT, "tensor '%.200s': dimension %d is %lld", r->source, a,
                            (long long)r->dim[a]);
        s->axes[a] = (axis){.extent = {r->dim[a]}, .stride = {stride}, .count = 1};
        stride *= r->dim[a];
    }
    *elems = stride;
    return SBP_OK;
}

static sbp_status apply_slice(shaper *s, const sbp_recipe_step *step) {
    axis *a = step->axis >= 0 && step->axis < s->rank ? &s->axes[step->axis] : NULL;
    int64_t heads = step->heads != 0 ? step->heads : 1,
            head = a && heads > 0 && a->extent[0] % heads == 0 ? a->extent[0] / heads : 0;
    if (!a || a->count != 1 || step->start < 0 || step->length < 1 || step->length > head ||
        step->start > head - step->length)
        return sbp_fail(s->diag, SBP_INPUT, "tensor '%.200s': cannot take %lld from %lld on of axis %lld",
                        s->recipe->source, (long long)step->length, (long long)step->start,
                        (long long)step->axis);
    int64_t stride = a->stride[0];
    s->base += step->start * stride;
    *a = heads == 1 ? (axis){.extent = {step->length}, .stride = {stride}, .count = 1}
                    : (axis){.extent = {heads, step->length}, .stride = {head * stride, stride}, .count = 2};
    return SBP_OK;
}

static sbp_status apply_squeeze(shaper *s, const sbp_recipe_step *step) {
    if (step->axis < 0 || step->axis >= s->rank || axis_length(&s->axes[step->axis]) != 1)
        return sbp_fail(s->diag, SBP_INPUT, "tensor '%.200s': axis %lld is not of length 1",
                        s->recipe->source, (long long)step->axis);
    s->rank--;
    for (int32_t a = (int32_t)step->axis; a < s->rank; a++)
        s->axes[a] = s->axes[a + 1];
    return SBP_OK;
}

static sbp_status apply_split(shaper *s, const sbp_recipe_step *step) {
    axis *a = step->axis >= 0 && step->axis < s->rank ? &s->axes[step->axis] : NULL;
    if (!a || s->rank == SBP_MAX_RANK || a->count != 1 || step->length < 1 ||
        a->extent[0] % step->length != 0)
        return sbp_fail(s->diag, SBP_INPUT, "tensor '%.200s': cannot split axis %lld into %lld parts",
                        s->recipe->source, (long long)step->axis, (long long)step->length);
    int64_t inner = a->extent[0] / step->length, stride = a->stride[0];
    for (int32_t k = s->rank++; k > step->axis; k--)
        s->axes[k] = s->axes[k - 1];
    a[0] = (axis){.extent = {step->length}, .stride = {inner * stride}, .count = 1};
    a[1] = (axis){.extent = {inner}, .stride = {stride}, .count = 1};
    return SBP_OK;
}

static sbp_status apply_front(shaper *s, const sbp_recipe_step *step) {
    if (step->axis < 0 || step->axis >= s->rank)
        return sbp_fail(s->diag, SBP_INPUT, "tensor '%.200s': there is no axis %lld", s->recipe->source,
                        (long long)step->axis);
    axis first = s->axes[step->axis];
    for (int64_t k = step->axis; k > 0; k--)
        s->axes[k] = s->axes[k - 1];
    s->axes[0] = first;
    return SBP_OK;
}

/* Target row (h, half, j) is source row (h, j, half). */
static sbp_status apply_deinterleave(shaper *s, const sbp_recipe_step *step) {
    axis *a = &s->axes[0];
    if (s->rank < 1 || a->count != 1 || step->heads < 1 || step->heads > a->extent[0] ||
        a->extent[0] % step->heads != 0 || a->extent[0] / step->heads % 2 != 0)
        return sbp_fail(s->diag, SBP_INPUT, "tensor '%.200s': cannot deinterleave %lld heads",
                        s->recipe->source, (long long)step->heads);
    int64_t head = a->extent[0] / step->heads, stride = a->stride[0];
    *a = (axis){
        .extent = {step->heads, 2, head / 2}, .stride = {head * stride, stride, 2 * stride}, .count = 3};
    return SBP_OK;
}

static sbp_status apply_step(shaper *s, const sbp_recipe_step *step) {
    switch (step->op) {
    case SBP_RECIPE_SLICE:
        return apply_slice(s, step);
    case SBP_RECIPE_TRANSPOSE: {
        if (s->rank < 2)
            return sbp_fail(s->diag, SBP_INPUT, "tensor '%.200s': cannot transpose rank %d",
                            s->recipe->source, s->rank);
        axis last = s->axes[s->rank - 1];
        s->axes[s->rank - 1] = s->axes[s->rank - 2];
        s->axes[s->rank - 2] = last;
        return SBP_OK;
    }
    case SBP_RECIPE_SQUEEZE:
        return apply_squeeze(s, step);
    case SBP_RECIPE_SPLIT:
        return apply_split(s, step);
    case SBP_RECIPE_FRONT:
        return apply_front(s, step);
    case SBP_RECIPE_DEINTERLEAVE:
        return apply_deinterleave(s, step);
    case SBP_RECIPE_ADD:
        if (isfinite(step->constant))
            return SBP_OK;
        return sbp_fail(s->diag, SBP_INPUT, "tensor '%.200s': adds %g", s->recipe->source, step->constant);
    case SBP_RECIPE_CAST:
        if ((unsigned)step->dtype < SBP_DTYPE_COUNT && sbp_dtype_is_float(step->dtype))
            return SBP_OK;
        return sbp_fail(s->diag, SBP_INPUT, "tensor '%.200s': a cast goes to a type that is not float",
                        s->recipe->source);
    case SBP_RECIPE_OP_COUNT:
        break;
    }
    return sbp_fail(s->diag, SBP_INPUT, "tensor '%.200s': unknown step %d", s->recipe->source, (int)step->op);
}

/* Adds a loop outside those that are there (in reverse order), merged where it continues them. */
static void add_outer(sbp_recipe_map *map, int64_t extent, int64_t source_stride, int64_t target_stride) {
    if (extent == 1)
        return;
    sbp_recipe_loop *inner = map->loop_count > 0 ? &map->loops[map->loop_count - 1] : NULL;
    if (inner && source_stride == inner->extent * inner->source_stride)
        inner->extent *= extent;
    else
        map->loops[map->loop_count++] = (sbp_recipe_loop){extent, source_stride, target_stride};
}

sbp_status sbp_recipe_compile(sbp_diag *diag, const sbp_recipe *recipe, sbp_recipe_map *out) {
    shaper s = {.diag = diag, .recipe = recipe, .rank = recipe->rank};
    sbp_recipe_map map = {.elems = 1};
    SBP_TRY(begin(&s, &map.source_elems));
    for (int32_t k = 0; k < recipe->step_count; k++) {
        SBP_TRY(apply_step(&s, &recipe->steps[k]));
        map.changes_values = map.changes_values || recipe->steps[k].op == SBP_RECIPE_ADD ||
                             recipe->steps[k].op == SBP_RECIPE_CAST;
    }
    map.rank = s.rank;
    for (int32_t a = s.rank - 1; a >= 0; a--) {
        map.dim[a] = axis_length(&s.axes[a]);
        for (int32_t k = s.axes[a].count - 1; k >= 0; k--) {
            add_outer(&map, s.axes[a].extent[k], s.axes[a].stride[k], map.elems);
            map.elems *= s.axes[a].extent[k];
        }
    }
    for (int32_t k = 0; k < map.loop_count / 2; k++) { /* outermost first */
        sbp_recipe_loop outer = map.loops[map.loop_count - 1 - k];
        map.loops[map.loop_count - 1 - k] = map.loops[k];
        map.loops[k] = outer;
    }
    map.source_base = s.base;
    *out = map;
    return SBP_OK;
}

int64_t sbp_recipe_source_index(const sbp_recipe_map *map, int64_t index) {
    int64_t source = map->source_base;
    for (int32_t k = 0; k < map->loop_count; k++) {
        const sbp_recipe_loop *loop = &map->loops[k];
        source += index / loop->target_stride * loop->source_stride;
        index %= loop->target_stride;
    }
    return source;
}

bool sbp_recipe_is_one_run(const sbp_recipe_map *map) {
    return map->loop_count == 0 || (map->loop_count == 1 && map->loops[0].source_stride == 1);
}

int64_t sbp_recipe_source_end(const sbp_recipe_map *map) {
    int64_t last = map->source_base;
    for (int32_t k = 0; k < map->loop_count; k++)
        last += (map->loops[k].extent - 1) * map->loops[k].source_stride;
    return last + 1;
}

bool sbp_recipe_of_blocks(const sbp_recipe *recipe, int64_t block, sbp_recipe *out) {
    int32_t last = recipe->rank - 1;
    if (last < 0 || recipe->dim[last] % block != 0)
        return false;
    for (int32_t k = 0; k < recipe->step_count; k++) {
        const sbp_recipe_step *step = &recipe->steps[k];
        if (!(step->op == SBP_RECIPE_SLICE && step->axis < last) &&
            !(step->op == SBP_RECIPE_DEINTERLEAVE && last > 0))
            return false;
    }
    *out = *recipe;
    out->dim[last] /= block;
    return true;
}

/* ---- values ----------------------------------------------------------------------------------------- */

double sbp_recipe_load_value(const sbp_recipe *recipe, double value) {
    for (int32_t k = 0; k < recipe->step_count; k++) {
        const sbp_recipe_step *step = &recipe->steps[k];
        if (step->op == SBP_RECIPE_ADD)
            value += step->constant;
        else if (step->op == SBP_RECIPE_CAST)
            value = sbp_round_to(step->dtype, value);
    }
    return value;
}

double sbp_recipe_save_value(const sbp_recipe *recipe, double value) {
    for (int32_t k = recipe->step_count - 1; k >= 0; k--)
        if (recipe->steps[k].op == SBP_RECIPE_ADD)
            value -= recipe->steps[k].constant;
    return value;
}

/* ---- walking ---------------------------------------------------------------------------------------- */

/* A loop seen from the side that is walked (near) and from the other (far). */
typedef struct side_loop {
    int64_t extent, near, far;
    int64_t span; /* near indices that one iteration reaches over */
} side_loop;

typedef struct walker {
    side_loop loops[SBP_RECIPE_MAX_LOOPS];
    int32_t count;
    int64_t first, end; /* near */
    bool near_is_source;
    sbp_status (*visit)(void *user, const sbp_recipe_run *run);
    void *user;
} walker;

static sbp_status emit(const walker *w, int64_t near, int64_t far, int64_t count) {
    sbp_recipe_run run = {near, far, count};
    if (!w->near_is_source)
        run = (sbp_recipe_run){far, near, count};
    return w->visit(w->user, &run);
}

static sbp_status walk_loops(const walker *w, int32_t level, int64_t near, int64_t far) {
    if (level == w->count)
        return near >= w->first && near < w->end ? emit(w, near, far, 1) : SBP_OK;
    const side_loop *loop = &w->loops[level];
    /* iterations whose span [near + i*step, .. + span) meets [first, end) */
    int64_t low = 0, high = loop->extent;
    if (near + loop->span <= w->first)
        low = (w->first - near - loop->span) / loop->near + 1;
    if (near + (high - 1) * loop->near >= w->end)
        high = w->end <= near ? 0 : sbp_ceil_div(w->end - near, loop->near);
    if (low >= high)
        return SBP_OK;
    if (level == w->count - 1 && loop->near == 1 && loop->far == 1)
        return emit(w, near + low, far + low, high - low);
    for (int64_t i = low; i < high; i++)
        SBP_TRY(walk_loops(w, level + 1, near + i * loop->near, far + i * loop->far));
    return SBP_OK;
}

static int by_descending_stride(const void *a, const void *b) {
    const side_loop *x = a, *y = b;
    return x->near < y->near ? 1 : x->near > y->near ? -1 : 0;
}

static sbp_status walk(walker *w, const sbp_recipe_map *map) {
    w->count = map->loop_count;
    for (int32_t k = 0; k < w->count; k++) {
        const sbp_recipe_loop *loop = &map->loops[k];
        w->loops[k] = w->near_is_source
                          ? (side_loop){loop->extent, loop->source_stride, loop->target_stride, 0}
                          : (side_loop){loop->extent, loop->target_stride, loop->source_stride, 0};
    }
    qsort(w->loops, (size_t)w->count, sizeof w->loops[0], by_descending_stride);
    int64_t span = 1;
    for (int32_t k = w->count - 1; k >= 0; k--) {
        w->loops[k].span = span;
        span += (w->loops[k].extent - 1) * w->loops[k].near;
    }
    return w->near_is_source ? walk_loops(w, 0, map->source_base, 0) : walk_loops(w, 0, 0, map->source_base);
}

sbp_status sbp_recipe_walk_source(const sbp_recipe_map *map, int64_t first, int64_t end,
                                  sbp_status (*visit)(void *user, const sbp_recipe_run *run), void *user) {
    walker w = {.first = first, .end = end, .near_is_source = true, .visit = visit, .user = user};
    return walk(&w, map);
}

sbp_status sbp_recipe_walk_target(const sbp_recipe_map *map, int64_t first, int64_t end,
                                  sbp_status (*visit)(void *user, const sbp_recipe_run *run), void *user) {
    walker w = {.first = first, .end = end, .near_is_source = false, .visit = visit, .user = user};
    return walk(&w, map);
}

int64_t sbp_recipe_tensors(const sbp_recipe *recipe) {
    return recipe->stacked ? recipe->dim[0] : 1;
}

const char *sbp_recipe_tensor_name(sbp_arena *arena, const sbp_recipe *recipe, int64_t tensor) {
    const char *star = recipe->stacked ? strrchr(recipe->source, '*') : NULL;
    if (!star)
        return recipe->source;
    return sbp_arena_printf(arena, "%.*s%lld%s", (int)(star - recipe->source), recipe->source,
                            (long long)tensor, star + 1);
}
