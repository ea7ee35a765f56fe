/* fuse.h: the state of the fuse pass, shared by its files: fuse.c decides what lives in memory, group.c which
 * row-wise ops share a kernel, fuse_emit.c writes instructions (fuse_lower.c those that a
 * table gives). */
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

/* The uses of pieces of experts' matrices in a stage, one behind the other: instructions of the latest. */
typedef struct sbp_piece_uses {
    int32_t count;
    int32_t first[2]; /* reads what was brought: of the latest use, and of the one before it */
    int32_t product;  /* of the latest use */
} sbp_piece_uses;

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
    sbp_piece_uses pieces;
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

/* fuse_terms.c: terms and instructions. A value as an operand: arguments other than streams are where the
 * caller put them. */
sbp_term sbp_fuse_term(const sbp_fuser *fuser, sbp_value value);
sbp_term sbp_fuse_view_term(sbp_view view);
sbp_term sbp_fuse_no_term(void);
sbp_term sbp_fuse_temp(sbp_fuser *fuser, sbp_temp temp);
sbp_instr *sbp_fuse_instr(sbp_fuser *fuser, sbp_command_kind kind, int32_t position, const sbp_term *terms,
                          int32_t count);
/* The sum of the rows of src into a vector's accumulator, or into memory of its own. */
void sbp_fuse_colsum(sbp_fuser *fuser, sbp_value vector, sbp_term src, int32_t position);
/* fuse_lower.c: whether the op is in the table; if it is, its command is written. */
bool sbp_fuse_lower(sbp_fuser *fuser, const sbp_op *op, int32_t position);
/* The argument behind a carry or a state, or behind a cotangent of one, that ops go on from. */
sbp_value sbp_fuse_carry_root(const sbp_fuser *fuser, sbp_value value);
/* Whether a value has a chunk's rows of all ranks of a context. */
bool sbp_fuse_of_all(const sbp_fuser *fuser, sbp_value value);
/* fuse_experts.c: of these ops. */
sbp_status sbp_fuse_expert_linear(sbp_fuser *fuser, const sbp_op *op, int32_t position) SBP_CHECKED;
void sbp_fuse_expert_linear_dw(sbp_fuser *fuser, const sbp_op *op, int32_t position);

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
