/* sketch.h: what is kept of all gradients of a step to compare them with those of another one: of each
 * parameter norm, hash and a sketch, in memory that does not grow with the model; and of each kind of
 * parameter the pieces with the largest gradients, to move weights along them.
 *
 * Sketch: number b is the sum of elements i = b mod SBP_SKETCH_SUMS, with signs that a hash of i draws, in
 * double. The sum of squares of the difference of two sketches is in the mean that of the difference of the
 * gradients; its deviation is sqrt(2 / SBP_SKETCH_SUMS) of it at most.
 *
 * A kind is all parameters whose names are equal but for numbers between dots.
 *
 * Threads: one at a time. Errors: SBP_INPUT for a gradient that is of no trainable parameter or comes twice.
 */
#ifndef SBP_RUNTIME_TRAIN_SKETCH_H
#define SBP_RUNTIME_TRAIN_SKETCH_H

#include "runtime/run/executor.h"
#include "runtime/run/plan.h"

enum { SBP_SKETCH_SUMS = 1024 };

typedef struct sbp_sketch_tensor {
    const char *name; /* of the source */
    int32_t kind;     /* -1: not trained */
    bool seen;
    double norm; /* NaN or infinite where an element is */
    uint64_t hash;
    double *sums; /* [SBP_SKETCH_SUMS] */
} sbp_sketch_tensor;

typedef struct sbp_sketch_piece {
    int32_t tensor;
    int64_t first, count;
    double square;    /* of the gradient's norm there */
    double *gradient; /* [count] */
} sbp_sketch_piece;

typedef struct sbp_sketch_kind {
    const char *name; /* "layers.*.mlp.weight" */
    int32_t tensors;
    sbp_sketch_piece *pieces;
    int32_t count;
} sbp_sketch_kind;

typedef struct sbp_sketch {
    sbp_arena *arena;
    const sbp_plan *plan;
    sbp_dtype dtype;            /* in which gradients are read: F32 or F64 */
    sbp_sketch_tensor *tensors; /* [plan->tensors->count] */
    sbp_sketch_kind *kinds;
    int32_t kind_count, kind_capacity;
    int32_t pieces_each; /* of a tensor, at most */
    double *buffer;
} sbp_sketch;

/* Bytes that a sketch of a plan takes: a multiple of its number of trained parameters. */
int64_t sbp_sketch_bytes(const sbp_plan *plan, bool pieces);
/* pieces: keeps them. */
sbp_status sbp_sketch_create(sbp_diag *diag, const sbp_plan *plan, sbp_dtype dtype, bool pieces,
                             sbp_sketch **out) SBP_CHECKED;
void sbp_sketch_destroy(sbp_sketch *sketch);
/* An sbp_flush_hook, which lets every flush be skipped; user: the sketch. */
sbp_status sbp_sketch_take(void *sketch, const sbp_gradient *gradient, bool *skip,
                           sbp_diag *diag) SBP_CHECKED;
/* The number of the first trained parameter of which there was none; -1: there were all. */
int32_t sbp_sketch_missing(const sbp_sketch *sketch);
/* Norm of the difference of a tensor's gradients, by their sketches. */
double sbp_sketch_difference(const sbp_sketch *a, const sbp_sketch *b, int32_t tensor);

#endif
