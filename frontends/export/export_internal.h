/* export_internal.h: the parts of an export: what a directory holds, how each tensor of the file is taken from
 * it, and the keys. Everything below a guard. */
#ifndef SBP_FRONTENDS_EXPORT_EXPORT_INTERNAL_H
#define SBP_FRONTENDS_EXPORT_EXPORT_INTERNAL_H

#include "frontends/export/export.h"
#include "frontends/export/export_keys.h"
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

/* What a piece says, in the order of the file's elements. False: its elements do not follow each other there. */
bool exp_view_of(const sbp_gguf_piece *piece, const sbp_weight *weight, exp_view *out);
int64_t exp_view_elems(const exp_view *view);

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
    int64_t at;                  /* in the file's tensor */
    const exp_low_rank *adapter; /* of the view's weight; NULL: none */
} exp_piece;

typedef struct exp_tensor {
    sbp_gguf_tensor out;
    exp_piece *pieces;
    int32_t piece_count, piece_capacity;
    int32_t order; /* among those of a layer */
    sbp_gguf_value_rule rule;
    const float *numbers;       /* in place of pieces: what is written */
    const sbp_weights *weights; /* that the pieces are of */
} exp_tensor;

/* ---- what is exported ----------------------------------------------------------------------------------- */

/* An adapter of a directory: the matrices of each weight, by its name in the model. */
typedef struct exp_adapter exp_adapter;

typedef struct exp_job {
    const sbp_export_request *request;
    const char *source; /* a directory, or a .gguf file */
    sbp_gguf_tensor_type type;
    exp_model model;
    const sbp_weights *weights;
    const exp_adapter *adapter; /* NULL: none */
    exp_tensor *tensors;
    int32_t count, capacity;
    sbp_map used; /* tensors of the directory that are taken */
    sbp_gguf_keys keys;
} exp_job;

/* What is added to the weight of that name; NULL: nothing. */
const exp_low_rank *exp_adapter_of(const exp_job *job, const char *weight);
exp_tensor *exp_add_tensor(exp_job *job, const char *name);
/* What a tensor is written as where `type` is wished for. */
sbp_gguf_tensor_type exp_type_of(sbp_gguf_tensor_type type, const char *name, int32_t rank, const int64_t *dim);
/* All tensors of the model, in the file's order. */
sbp_status exp_list_tensors(exp_job *job) SBP_CHECKED;

/* Streams all tensors; `stop` is asked between pieces. */
sbp_status exp_write_tensors(sbp_diag *diag, const exp_tensor *tensors, int32_t count, bool (*stop)(void),
                             sbp_gguf_writer *writer) SBP_CHECKED;

#endif
