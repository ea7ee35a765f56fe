/* export_internal.h: the parts of an export: what a directory holds, how each tensor of the file is taken
 * from it, and the keys. Everything below a guard. */
#ifndef SBP_FRONTENDS_EXPORT_EXPORT_INTERNAL_H
#define SBP_FRONTENDS_EXPORT_EXPORT_INTERNAL_H

#include "frontends/formats/export/export.h"
#include "frontends/formats/export/export_keys.h"
#include "frontends/formats/weights/gguf_write.h"
#include "frontends/formats/weights/weights.h"

/* ---- how a tensor is taken ---------------------------------------------------------------------------- */

enum { EXP_MAX_AXES = 8 };

/* A tensor of a source, rearranged: element (i, j, ..) of it is source element base + i stride_i + .. */
typedef struct exp_view {
    const sbp_weight *weight;
    int64_t base;
    int32_t rank;
    int64_t extent[EXP_MAX_AXES], stride[EXP_MAX_AXES];
} exp_view;

/* What a piece says, in the order of the file's elements. False: its elements do not follow each other
 * there. */
bool sbp_exp_view_of(const sbp_gguf_piece *piece, const sbp_weight *weight, exp_view *out);
int64_t sbp_exp_view_elems(const exp_view *view);

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
    int64_t at;                 /* in the file's tensor */
    const sbp_weights *weights; /* that the view's weight is of */
    /* What is added to each number; NULL: nothing. delta: where it is in the weight as the model has it, in
     * the order of the view. */
    const exp_low_rank *adapter;
    exp_view delta;
} exp_piece;

typedef struct exp_tensor {
    sbp_gguf_tensor out;
    exp_piece *pieces;
    int32_t piece_count, piece_capacity;
    int32_t order; /* among those of a layer */
    sbp_gguf_value_rule rule;
    const float *numbers; /* in place of pieces: what is written */
} exp_tensor;

/* ---- what is exported --------------------------------------------------------------------------------- */

/* An adapter of PEFT. */
typedef struct exp_adapter exp_adapter;

typedef struct exp_job {
    const sbp_export_request *request;
    const char *source; /* a directory, or a .gguf file */
    const char *type_name;
    sbp_gguf_tensor_type type;
    exp_model model;
    const sbp_weights *weights;
    exp_adapter *adapter; /* NULL: none, or it is not merged */
    exp_tensor *tensors;
    int32_t count, capacity;
    sbp_map used; /* tensors of the directory that are taken */
    sbp_gguf_keys keys;
    double *parameters; /* of an adapter */
} exp_job;

exp_tensor *sbp_exp_add_tensor(exp_job *job, const char *name);
/* What a tensor is written as where `type` is wished for. */
sbp_gguf_tensor_type sbp_exp_type_of(sbp_gguf_tensor_type type, const char *name, int32_t rank,
                                     const int64_t *dim);
/* All tensors of the model, in the file's order; of a GGUF file those that it has. */
sbp_status sbp_exp_list_tensors(exp_job *job) SBP_CHECKED;
sbp_status sbp_exp_list_of_gguf(exp_job *job) SBP_CHECKED;

/* ---- adapters ----------------------------------------------------------------------------------------- */

bool sbp_exp_is_adapter(sbp_arena *arena, const char *directory);
/* Opens it; closed by exp_adapter_close. */
sbp_status sbp_exp_adapter_open(sbp_arena *arena, sbp_diag *diag, const char *directory,
                                exp_adapter **out) SBP_CHECKED;
void sbp_exp_adapter_close(exp_adapter *adapter);
/* Reads its matrices into the arena. */
sbp_status sbp_exp_adapter_load(exp_adapter *adapter) SBP_CHECKED;
/* The model that it is of, as adapter_config.json has it; NULL: it does not say. */
const char *sbp_exp_adapter_base(const exp_adapter *adapter);
/* What is added to the weight of that name; NULL: nothing. What stands in its place; NULL: nothing does. Both
 * count as used then. */
const exp_low_rank *sbp_exp_adapter_of(exp_adapter *adapter, const char *weight);
const sbp_weight *sbp_exp_adapter_whole(exp_adapter *adapter, const char *weight);
const sbp_weights *sbp_exp_adapter_weights(const exp_adapter *adapter);
/* SBP_INPUT: some of it was of no weight. */
sbp_status sbp_exp_adapter_check_used(const exp_adapter *adapter) SBP_CHECKED;
/* The adapter's own tensors and keys, for the model of the job. */
sbp_status sbp_exp_list_adapter(exp_job *job, exp_adapter *adapter, double *parameters) SBP_CHECKED;

/* Streams all tensors; `stop` is asked between pieces. */
sbp_status sbp_exp_write_tensors(sbp_diag *diag, const exp_tensor *tensors, int32_t count, bool (*stop)(void),
                                 sbp_gguf_writer *writer) SBP_CHECKED;

#endif
