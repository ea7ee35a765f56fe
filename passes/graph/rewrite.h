/* rewrite.h: copying a function op by op while changing some of it: the frame of most graph passes. */
#ifndef SBP_PASSES_GRAPH_REWRITE_H
#define SBP_PASSES_GRAPH_REWRITE_H

#include "ir/graph/op.h"

typedef struct sbp_rewrite {
    const sbp_func *from;
    sbp_func *to;
    sbp_value *map;      /* value of `to` per value of `from`; SBP_NO_VALUE where there is none yet */
    sbp_builder builder; /* on `to` */
} sbp_rewrite;

/* Starts a copy with the same name and arguments. */
void sbp_rewrite_begin(sbp_rewrite *rewrite, sbp_module *module, const sbp_func *from, sbp_diag *diag);
/* As begin, but arguments are left to the caller. */
void sbp_rewrite_begin_bare(sbp_rewrite *rewrite, sbp_module *module, const sbp_func *from, sbp_diag *diag);
/* Copies one argument; its type may differ. */
sbp_value sbp_rewrite_arg(sbp_rewrite *rewrite, sbp_value arg, const sbp_type *type);
void sbp_rewrite_operands(const sbp_rewrite *rewrite, const sbp_op *op, sbp_value *out);
/* Copies one op through the builder, so that result types follow the new operand types. */
sbp_status sbp_rewrite_copy(sbp_rewrite *rewrite, const sbp_op *op) SBP_CHECKED;
/* Later uses of `old` become uses of `value`, which takes its name when it has none of its own. */
void sbp_rewrite_replace(sbp_rewrite *rewrite, sbp_value old, sbp_value value);
/* Rows of the batch as rows of a chunk, T as C and W as D: a type; the attributes of an op, of which there
 * are as many as are returned. */
sbp_type sbp_rewrite_chunk_type(const sbp_type *type);
int32_t sbp_rewrite_chunk_attrs(const sbp_op *op, sbp_attr out[SBP_MAX_ATTRS]);
/* The same with any symbol for any other. */
sbp_type sbp_rewrite_rows_type(const sbp_type *type, sbp_symbol from, sbp_symbol to);
int32_t sbp_rewrite_rows_attrs(const sbp_op *op, sbp_symbol from, sbp_symbol to, sbp_attr out[SBP_MAX_ATTRS]);
/* Copies the results and returns the new function. */
sbp_func *sbp_rewrite_end(sbp_rewrite *rewrite);

#endif
