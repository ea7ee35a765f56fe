/* nudge.h: weights of an executor changed a little, to see what that does to a loss, and put back.
 *
 * Threads: one at a time. Errors are those of the executor.
 */
#ifndef SBP_RUNTIME_TRAIN_NUDGE_H
#define SBP_RUNTIME_TRAIN_NUDGE_H

#include "runtime/train/sketch.h"

/* Trained parameters that are all 0, as parts of adapters are before the first step, get small random
 * numbers, the same for the same names: else nothing that they multiply had a gradient. *count: how many. */
sbp_status sbp_nudge_zeros(sbp_executor *executor, const sbp_plan *plan, int32_t *count,
                           sbp_diag *diag) SBP_CHECKED;

/* The last bit of about half of the weights, another half for each `draw`, of the small parameters and of as
 * many others as make SBP_NUDGE_BITS numbers, flips; as numbers of `compute` have it where they are kept in
 * more bits. What is flipped twice is as before. It is what the type's rounding does, once. */
enum { SBP_NUDGE_BITS = 1 << 26 };
sbp_status sbp_nudge_bits(sbp_executor *executor, const sbp_plan *plan, sbp_dtype compute, int draw,
                          sbp_diag *diag) SBP_CHECKED;

/* A direction in the space of one kind of parameters: their pieces' gradients, those of each tensor scaled to
 * the norm of its weights there. */
typedef struct sbp_nudge {
    sbp_executor *executor;
    const sbp_sketch *sketch;
    const sbp_sketch_kind *kind;
    double **weights; /* [kind->count] as they are */
    double *scales;   /* [kind->count] of gradients */
    double slope;     /* of the loss along it, by the gradients */
    sbp_dtype compute;
    sbp_arena *arena;
} sbp_nudge;

/* Reads the weights, which are computed with in this type, whatever they are kept in. Below a guard
 * of the arena. */
sbp_status sbp_nudge_begin(sbp_nudge *nudge, sbp_executor *executor, const sbp_sketch *sketch, int32_t kind,
                           sbp_dtype compute, sbp_arena *arena, sbp_diag *diag) SBP_CHECKED;
/* Sets them to what they were and `step` times the direction, as numbers of both types; 0: what they were.
 * *predicted: what the gradients say that this does to the loss. */
sbp_status sbp_nudge_set(const sbp_nudge *nudge, double step, double *predicted, sbp_diag *diag) SBP_CHECKED;

#endif
