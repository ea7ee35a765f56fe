/* onnx_fold.h: what onnx_fold.c and onnx_fold_nodes.c share (onnx_fold_values.c): a node whose operands are
 * all numbers. */
#ifndef SBP_FRONTENDS_ONNX_ONNX_FOLD_H
#define SBP_FRONTENDS_ONNX_ONNX_FOLD_H

#include "frontends/onnx/onnx.h"

/* Operands of the node at hand as tensors. */
typedef struct sbp_fold {
    sbp_onnx *o;
    sbp_numbers *n;
    const sbp_onnx_value *v[8]; /* NULL: absent */
    sbp_number_tensor in[8];
    int32_t count;
} sbp_fold;

const sbp_number *sbp_fold_number(sbp_fold *f, double value);
const sbp_number *sbp_fold_axis(sbp_fold *f, int32_t d);
/* Output `index` of the node, in its simplest form. */
sbp_status sbp_fold_define(sbp_fold *f, int32_t index, sbp_onnx_type type, sbp_number_tensor *t) SBP_CHECKED;
/* Elements of the first `count` operands, broadcast into *out, whose sizes are set. */
sbp_status sbp_fold_broadcast(sbp_fold *f, int32_t count, sbp_number_tensor *out,
                              const sbp_number **elements) SBP_CHECKED;
/* The smaller of two numbers, which for any T may be known though neither is less for all; the larger. */
const sbp_number *sbp_fold_smaller(sbp_fold *f, const sbp_number *a, const sbp_number *b);
const sbp_number *sbp_fold_larger(sbp_fold *f, const sbp_number *a, const sbp_number *b);

typedef sbp_status sbp_fold_rule(sbp_fold *f);

/* The rule of an operator that rearranges numbers or makes them; NULL when there is none. SBP_USAGE from a
 * rule: the node is for the graph after all. */
sbp_fold_rule *sbp_fold_find_rule(const char *op);

/* onnx_fold_scatter.c */
sbp_status sbp_fold_scatter_nd(sbp_fold *f) SBP_CHECKED;
sbp_status sbp_fold_scatter_elements(sbp_fold *f) SBP_CHECKED;

#endif
