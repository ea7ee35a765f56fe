/* export_internal.h: the parts of an export: what a directory holds, how each tensor of the file is taken from
 * it, and the keys. Everything below a guard. */
#ifndef SBP_FRONTENDS_EXPORT_EXPORT_INTERNAL_H
#define SBP_FRONTENDS_EXPORT_EXPORT_INTERNAL_H

#include "frontends/export/export.h"
#include "frontends/weights/gguf_write.h"
#include "frontends/weights/weights.h"

/* ---- how a tensor is taken ---------------------------------------------------------------------------- */

enum { EXP_MAX_AXES = 8 };

/* A tensor of a source, rearranged: element (i, j, ..) of it is source element base + i stride_i + .. */
typedef struct exp_view {
    const sbp_weight *weight;
    int64_t base;
    int32_t rank;
    int64_t extent[EXP_MAX_AXES], stride[EXP_MAX_AXES];
} exp_view;

exp_view exp_view_of(const sbp_weight *weight);
/* An axis becomes two, the first of so many; two axes change places; of an axis `length` from `start` on. False:
 * there is no such axis, or it does not come out even. */
bool exp_view_split(exp_view *view, int32_t axis, int64_t parts);
bool exp_view_swap(exp_view *view, int32_t a, int32_t b);
bool exp_view_cut(exp_view *view, int32_t axis, int64_t start, int64_t length);
int64_t exp_view_elems(const exp_view *view);

/* What is done to each number. */
typedef enum exp_value { EXP_AS_IS, EXP_PLUS_ONE, EXP_MINUS_EXP } exp_value;

/* scale x B A, which is added to a source: element (i, k) of it is that of row i, column k of the weight as a
 * matrix, or (k, i) of one that is kept [in, out]. */
typedef struct exp_low_rank {
    const float *a, *b; /* [rank, in], [out, rank] */
    int64_t rank, in, out;
    double scale;
    bool in_out;
} exp_low_rank;

/* A part of a tensor, one behind the other along its first axis. */
typedef struct exp_piece {
    exp_view view;
    const exp_low_rank *adapter; /* of the view's weight; NULL: none */
} exp_piece;

typedef struct exp_tensor {
    sbp_gguf_tensor out;
    exp_piece *pieces;
    int32_t piece_count, piece_capacity;
    exp_value value;
    const float *numbers; /* in place of pieces: what is written */
    const sbp_weights *weights; /* that the pieces are of */
} exp_tensor;

/* Streams all tensors; `stop` is asked between pieces. */
sbp_status exp_write_tensors(sbp_diag *diag, const exp_tensor *tensors, int32_t count, bool (*stop)(void),
                             sbp_gguf_writer *writer) SBP_CHECKED;

#endif
