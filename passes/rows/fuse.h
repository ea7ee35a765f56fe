/* fuse.h: the state of the fuse pass, shared by its files: fuse.c decides what lives in memory, group.c which
 * row-wise ops share a kernel, fuse_emit.c writes instructions. */
#ifndef SBP_PASSES_ROWS_FUSE_H
#define SBP_PASSES_ROWS_FUSE_H

#include "passes/rows/rowbuild.h"

/* A value in memory that is added to the gradient of a parameter argument. */
typedef struct sbp_added_gradient {
    sbp_value value, param;
} sbp_added_gradient;

/* The slots of rows in the order of their experts: temporaries of the stage. */
typedef struct sbp_expert_slots {
    bool made;
    sbp_term pairs, bounds;
} sbp_expert_slots;

/* Arrays are indexed by the values of the body. */
typedef struct sbp_fuser {
    sbp_program_builder *p;
    sbp_stage *stage;
    const sbp_func *f;
    sbp_row_work *row_work;
    bool *materialized; /* lives in memory */
    int32_t *uses;
    sbp_value *addend;       /* matmul results: what is added to them, SBP_NO_VALUE: nothing */
    sbp_value *sum_of;       /* the inverse: matmul results */
    sbp_value *matmul_of;    /* sums that are computed by a matmul: that matmul's result */
    sbp_value *accumulates;  /* gradients of parameters that go straight into an accumulator: the parameter
                               argument; statistics: themselves */
    sbp_expert_slots *slots; /* of choices of experts */
    sbp_added_gradient *added;
    int32_t added_count, added_capacity;
    bool *alone;       /* roots that must not share a kernel */
    int32_t *group_of; /* roots: their row kernel, -1 */
    sbp_row_group *groups;
    sbp_row_kernel *kernels; /* per group */
    int32_t group_count, group_capacity;
    struct sbp_grouping *grouping; /* group.c's own */
} sbp_fuser;

/* The op that computes a value; NULL: none does. */
static inline const sbp_op *def(const sbp_fuser *z, sbp_value v) {
    const sbp_value_info *info = &z->f->values[v];
    return info->role == SBP_VALUE_OP && info->op >= 0 ? &z->f->ops[info->op] : NULL;
}

sbp_status sbp_fuse_stage(sbp_program_builder *p, sbp_stage *stage) SBP_CHECKED;
sbp_status sbp_fuse_emit(sbp_fuser *fuser) SBP_CHECKED;

/* Makes what grouping needs. */
void sbp_fuse_group_begin(sbp_fuser *fuser);
/* Groups the roots, row-wise values in memory, by kernels; cuts before what no kernel could hold. */
void sbp_fuse_group(sbp_fuser *fuser);
/* Puts values into memory that several kernels would compute. True when there were some, and groups are to be
 * found again. */
bool sbp_fuse_keep_shared(sbp_fuser *fuser);
/* A result that takes an argument's place is stored after all readers of the argument: those must not wait
 * for what the same kernel computes besides. True when roots were set alone and groups are to be found again.
 */
bool sbp_fuse_separate(sbp_fuser *fuser);

/* Whether a sum over rows (to a vector) adds up a value in memory as it stands: no row kernel is needed. */
bool sbp_fuse_sums_memory(const sbp_fuser *fuser, sbp_value sum);

#endif
