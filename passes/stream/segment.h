/* segment.h: a segment on its way to its functions: what streambp.c and saved_set.c share. */
#ifndef SBP_PASSES_STREAM_SEGMENT_H
#define SBP_PASSES_STREAM_SEGMENT_H

#include "passes/lower/lowering.h"
#include "passes/stream/body.h"

typedef struct sbp_segment_builder {
    sbp_program_builder *p;
    const sbp_derivative *of;
    sbp_stages *stages;
    int32_t chunk_table;
    sbp_segment_kind *kind;  /* what becomes of it */
    int32_t number;          /* of it, in the module */
    const sbp_func *d;       /* the derivative, or the function itself */
    int32_t forward_ops;     /* ops of d that belong to the forward */
    bool *saved;             /* per value of d */
    bool *carry_saved;       /* per carry argument of d */
    int32_t *saved_number;   /* per value of d: index in kind->saved, -1 */
    int32_t *cached_number;  /* per carry argument of d: index in kind->cached, -1 */
    sbp_value input, output; /* x and y in d */
    int32_t output_result;   /* y among the results of d */
    sbp_side *sides; /* per value of d: the side value that it is, or whose rows are in it; number 0: none */
    const char *name;
} sbp_segment_builder;

static inline bool sbp_segment_is_side(const sbp_segment_builder *b, sbp_value v) {
    return b->sides[v].number > 0;
}

/* Whether the forward runs once more beside the backward, which reads the choices that it does not. */
static inline bool sbp_segment_runs_again(const sbp_segment_builder *b) {
    return b->p->options.schedule.checkpoint_every > 1;
}

/* The rows in which a value is kept for the backward: those of the micro-batch; or, for a state, one per
 * chunk and one more. */
static inline sbp_extent sbp_segment_rows_to_keep(const sbp_segment_builder *b, sbp_value v) {
    const sbp_func *d = b->d;
    const sbp_value_info *info = &d->values[v];
    if (info->role == SBP_VALUE_CARRY && sbp_body_is_state(d, v))
        return sbp_extent_add(sbp_extent_symbol(SBP_N, 1), sbp_extent_const(1));
    return sbp_extent_symbol(sbp_lower_kept_rows(&info->type), 1);
}

/* saved_set.c: chooses the saved set, and leaves out what the backward would not read. */
sbp_status sbp_segment_choose_saved(sbp_segment_builder *b) SBP_CHECKED;
/* Results of the derivative that the backward computes: gradients, and cotangents of carries. */
bool sbp_segment_keeps_backward(const void *builder, const sbp_result *result);

#endif
