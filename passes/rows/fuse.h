/* fuse.h: the state of the fuse pass, shared by its two files: fuse.c decides, fuse_emit.c writes
 * instructions. */
#ifndef SBP_PASSES_ROWS_FUSE_H
#define SBP_PASSES_ROWS_FUSE_H

#include "passes/rows/rowbuild.h"

/* A value in memory that is added to the gradient of a parameter argument. */
typedef struct sbp_added_gradient {
    sbp_value value, param;
} sbp_added_gradient;

/* Arrays are indexed by the values of the body. */
typedef struct sbp_fuser {
    sbp_pipeline *p;
    sbp_stage *stage;
    const sbp_func *f;
    sbp_row_work *row_work;
    bool *materialized; /* lives in memory */
    int32_t *uses;
    sbp_value *addend;      /* product results: what is added to them, SBP_NO_VALUE: nothing */
    sbp_value *product_of;  /* sums that are computed by a product: that product's result */
    sbp_value *accumulates; /* gradients of parameters that go straight into an accumulator: the parameter
                               argument */
    sbp_added_gradient *added;
    int32_t added_count, added_capacity;
    bool *alone;       /* roots that must not share a kernel */
    int32_t *group_of; /* roots: their row kernel, -1 */
    sbp_row_group *groups;
    sbp_row_kernel *kernels; /* per group */
    int64_t *group_heads;
    sbp_value **group_leaves; /* per group: values in memory that its roots read, without its roots */
    int32_t *group_leaf_count, *group_leaf_capacity;
    int32_t group_count;
} sbp_fuser;

sbp_status sbp_fuse_stage(sbp_pipeline *p, sbp_stage *stage) SBP_CHECKED;
sbp_status sbp_fuse_emit(sbp_fuser *fuser) SBP_CHECKED;

/* Whether a sum over rows (to a vector) adds up a value in memory as it stands: no row kernel is needed. */
bool sbp_fuse_sums_memory(const sbp_fuser *fuser, sbp_value sum);

#endif
