/* recipe.h: how a parameter comes out of a tensor of a weights file, and goes back.
 *
 * A recipe names the source tensor and its shape and lists steps that are applied in order on load:
 *   slice axis start length   rows of one axis (several parameters may share a fused source); with `heads`:
 *                             the axis holds that many heads, and these are rows of each
 *   transpose                 of the last two axes
 *   squeeze axis              an axis of length 1 goes
 *   split axis parts          one axis becomes two, the first of them of `parts`
 *   front axis                an axis becomes the first
 *   deinterleave heads        axis 0 holds heads of D rows each: rows 0 2 4 .. of a head first, then 1 3 5 ..
 *                             (GGUF keeps rotary halves interleaved; this restores the order of Hugging Face)
 *   add c                     c + every element (a file may hold w where the model has 1 + w, or the reverse)
 *   cast dtype                every element rounded to that type
 * The steps that move elements have an exact inverse, which is how gradients and trained weights get back
 * under the source's name and layout; `add` is inverted by subtraction; `cast` loses what it rounded.
 *
 * Compiled, a recipe is a nest of loops in which both the source index and the parameter index are affine,
 * so that either side can be walked in pieces of bounded size.
 *
 * Threads: none of this keeps state. Errors: SBP_INPUT, naming the source tensor.
 */
#ifndef SBP_FRONTENDS_WEIGHTS_RECIPE_H
#define SBP_FRONTENDS_WEIGHTS_RECIPE_H

#include "ir/rowkernel/format.h"

typedef enum sbp_recipe_op {
    SBP_RECIPE_SLICE,
    SBP_RECIPE_TRANSPOSE,
    SBP_RECIPE_SQUEEZE,
    SBP_RECIPE_SPLIT,
    SBP_RECIPE_FRONT,
    SBP_RECIPE_DEINTERLEAVE,
    SBP_RECIPE_ADD,
    SBP_RECIPE_CAST,
    SBP_RECIPE_OP_COUNT
} sbp_recipe_op;

typedef struct sbp_recipe_step {
    sbp_recipe_op op;
    int64_t axis, start, length; /* slice; squeeze, split, front: axis; split: length, the parts */
    int64_t heads;               /* deinterleave; slice: 0 and 1 are one head */
    double constant;             /* add */
    sbp_dtype dtype;             /* cast */
} sbp_recipe_step;

typedef struct sbp_recipe {
    const char *source;
    sbp_dtype dtype; /* of the source when it is written; what a file holds may be another float type */
    int32_t rank;
    int64_t dim[SBP_MAX_RANK]; /* of the source */
    sbp_recipe_step *steps;
    int32_t step_count, step_capacity;
    bool stacked; /* the source is a tensor per number along axis 0, which stands for "*" in their names */
} sbp_recipe;

/* Loops at most: three for the axis where heads are deinterleaved, two for each other axis. */
enum { SBP_RECIPE_MAX_LOOPS = 2 * SBP_MAX_RANK + 1, SBP_RECIPE_MAX_STEPS = 16 };

typedef struct sbp_recipe_loop {
    int64_t extent, source_stride, target_stride; /* elements */
} sbp_recipe_loop;

/* A compiled recipe. Outermost loop of the target (the parameter) first; loops of extent 1 are dropped, and
 * neighbours that are one run on both sides are merged. */
typedef struct sbp_recipe_map {
    sbp_recipe_loop loops[SBP_RECIPE_MAX_LOOPS];
    int32_t loop_count;
    int64_t source_base;  /* source index of the first element of the nest */
    int64_t source_elems; /* of the whole source */
    int64_t elems;        /* of the parameter */
    int32_t rank;         /* of the parameter, after the steps */
    int64_t dim[SBP_MAX_RANK];
    bool changes_values; /* has add or cast */
} sbp_recipe_map;

/* Checks a recipe and compiles it. */
sbp_status sbp_recipe_compile(sbp_diag *diag, const sbp_recipe *recipe, sbp_recipe_map *out) SBP_CHECKED;
/* Source index of element `index` of the parameter. */
int64_t sbp_recipe_source_index(const sbp_recipe_map *map, int64_t index);

/* Whether the elements stay in order and together: source index = target index + source_base. */
bool sbp_recipe_is_one_run(const sbp_recipe_map *map);
/* One beyond the last source index that is used; the first is source_base. */
int64_t sbp_recipe_source_end(const sbp_recipe_map *map);

/* Tensors of files that the source is, and the name of one of them. */
int64_t sbp_recipe_tensors(const sbp_recipe *recipe);
const char *sbp_recipe_tensor_name(sbp_arena *arena, const sbp_recipe *recipe, int64_t tensor);

/* The recipe that does to blocks what `recipe` does to elements, a block of `block` neighbours in the last
 * axis being one element; false where blocks do not stay whole, or values change. */
bool sbp_recipe_of_blocks(const sbp_recipe *recipe, int64_t block, sbp_recipe *out);

/* What add and cast do to a value on load, and back. */
double sbp_recipe_load_value(const sbp_recipe *recipe, double value);
double sbp_recipe_save_value(const sbp_recipe *recipe, double value);

/* A run that is contiguous on both sides. */
typedef struct sbp_recipe_run {
    int64_t source, target, count;
} sbp_recipe_run;

/* Walks the nest in the order of ascending source index, restricted to source indices in [first, end):
 * calls `visit` for every maximal run. Stops at the first status that is not SBP_OK and returns it. */
sbp_status sbp_recipe_walk_source(const sbp_recipe_map *map, int64_t first, int64_t end,
                                  sbp_status (*visit)(void *user, const sbp_recipe_run *run),
                                  void *user) SBP_CHECKED;
/* Likewise in the order of ascending target index, for target indices in [first, end). */
sbp_status sbp_recipe_walk_target(const sbp_recipe_map *map, int64_t first, int64_t end,
                                  sbp_status (*visit)(void *user, const sbp_recipe_run *run),
                                  void *user) SBP_CHECKED;

#endif
