/* rowbuild.h: row-wise ops of a body as one row kernel. */
#ifndef SBP_PASSES_ROWS_ROWBUILD_H
#define SBP_PASSES_ROWS_ROWBUILD_H

#include "passes/lower/lowering.h"

/* What a kernel computes: values that are stored, and sums over rows (results of sum_rows) as partials. */
typedef struct sbp_row_group {
    sbp_value *roots; /* in body order */
    int32_t root_count, root_capacity;
} sbp_row_group;

typedef struct sbp_row_kernel {
    sbp_rowkernel *kernel;
    sbp_value *operands; /* per kernel operand: base of the value read or stored; of a partial: the sum_rows
                            result */
    int32_t operand_count, operand_capacity;
} sbp_row_kernel;

/* What building the kernels of one body needs; made once for all of them. */
typedef struct sbp_row_work sbp_row_work;
sbp_row_work *sbp_row_work_create(sbp_arena *arena, const sbp_func *body);

/* materialized: per value of the body, whether it is read from memory. On a combination that one kernel
 * cannot hold (heads of different counts, slices across heads, too many operands), *culprit is a value that
 * must be materialized first, and *out is untouched. */
void sbp_row_build(sbp_program_builder *p, const sbp_stage *stage, sbp_row_work *work,
                   const bool *materialized, const sbp_row_group *group, const char *name,
                   sbp_row_kernel *out, sbp_value *culprit);

/* Whether a value that a kernel computes on its way may be stored instead: not a slice of one element, which
 * is loaded as an element of a vector and would be stored as a number of the row. */
bool sbp_row_can_be_stored(const sbp_type *type);

/* Elements along heads and along the last axis of a value, without its row axis. */
void sbp_row_form(const sbp_type *type, int64_t *heads, int64_t *n);

#endif
