/* weights_internal.h: between the files of weights.h. */
#ifndef SBP_RUNTIME_RUN_WEIGHTS_INTERNAL_H
#define SBP_RUNTIME_RUN_WEIGHTS_INTERNAL_H

#include "runtime/run/weights.h"

/* sbp_params_save of all that a plan has. */
sbp_status sbp_params_save_plan(sbp_executor *executor, const sbp_plan *plan, const char *path,
                                const sbp_save_options *options, sbp_diag *diag) SBP_CHECKED;
/* Elements of a parameter that may be kept in two halves: of both, or of the high one alone. */
sbp_status sbp_params_read(sbp_executor *executor, const sbp_plan *plan, int32_t tensor, bool high_half,
                           int64_t first, int64_t count, sbp_dtype dtype, void *out,
                           sbp_diag *diag) SBP_CHECKED;

/* ---- random numbers (the formula: weights.h, sbp_params_randomize) ---- */

typedef struct sbp_normal_source {
    uint64_t seed, name_hash;
    double deviation;
} sbp_normal_source;

/* In (0, 1), of an index. */
double sbp_normal_uniform(const sbp_normal_source *source, int64_t index);
/* As the formula says, in double precision. */
double sbp_normal_at(const sbp_normal_source *source, int64_t index);
/* Numbers first .. first + count that round to elements of dtype as those of sbp_normal_at do. */
void sbp_normal_sample(const sbp_normal_source *source, sbp_dtype dtype, int64_t first, int64_t count,
                       double *out);

/* ---- where numbers go: weight_target.c ---- */

/* One parameter on its way into its buffer. */
typedef struct sbp_weight_target {
    sbp_executor *x;
    sbp_diag *diag;
    int32_t buffer, master; /* master: of the low halves, -1: none */
    sbp_dtype dtype;        /* of the parameter's numbers */
    sbp_format format;      /* in which it is kept: then `parts` are its buffers */
    const int32_t *parts;
    int64_t elems;
    unsigned char
        *memory; /* its elements: mapped, or a copy that is written at the end, or NULL: written by piece */
    bool is_copy;
} sbp_weight_target;

sbp_weight_target sbp_weight_target_of(sbp_executor *executor, const sbp_plan *plan, int32_t tensor,
                                       sbp_diag *diag);
/* Numbers of any float type to elements first .. of the parameter. */
sbp_status sbp_weight_target_write(const sbp_weight_target *target, int64_t first, int64_t count,
                                   sbp_dtype dtype, const void *data) SBP_CHECKED;
/* The plan keeps the tensor in a format that nothing is encoded into. */
sbp_status sbp_weight_fail_format(const sbp_weight_target *target, const char *path, const char *name,
                                  const char *encoding) SBP_CHECKED;

enum { SBP_PACKED_ELEMS = 8192 }; /* a multiple of every block */

/* Arrays for SBP_PACKED_ELEMS elements in any format: none has a part of more bytes than elements. */
typedef struct sbp_weight_parts {
    _Alignas(8) unsigned char bytes[SBP_MAX_FORMAT_PARTS][SBP_PACKED_ELEMS];
    void *parts[SBP_MAX_FORMAT_PARTS];
} sbp_weight_parts;
void sbp_weight_parts_begin(sbp_weight_parts *arrays);
/* `count` blocks of parts, of which the arrays begin with block `from`, as blocks first .. of the parameter.
 * */
sbp_status sbp_weight_parts_write(const sbp_weight_target *target, int64_t first, int64_t count,
                                  void *const *parts, int64_t from) SBP_CHECKED;

/* ---- random weights ---- */

/* sbp_params_randomize, `piece` elements at a time where memory is not mapped: whole blocks of every format;
 * 0: as suits the device. */
sbp_status sbp_params_randomize_pieces(sbp_executor *executor, const sbp_plan *plan, uint64_t seed,
                                       int32_t threads, int64_t piece, sbp_diag *diag) SBP_CHECKED;
/* Initialises one tensor; by this thread alone. */
sbp_status sbp_weight_randomize(sbp_executor *executor, const sbp_plan *plan, int32_t tensor, uint64_t seed,
                                sbp_diag *diag) SBP_CHECKED;

#endif
