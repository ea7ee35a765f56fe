/* rules.h: what the rule files share. */
#ifndef SBP_IR_GRAPH_OPS_RULES_H
#define SBP_IR_GRAPH_OPS_RULES_H

#include "ir/graph/op.h"

/* The common type of broadcast operands (ir.h) into *out; dtype is that of operand 0. */
sbp_status sbp_rule_broadcast(const sbp_shape *shape, int32_t count, sbp_type *out) SBP_CHECKED;

/* Dimensions of a result from the op's attributes: `dims` behind the row axis (constraints 1 and 2), and
 * `rows`, a symbol's name; SBP_ONE when it is none. */
sbp_status sbp_rule_with_dims(const sbp_shape *shape, sbp_symbol rows, sbp_type *out) SBP_CHECKED;
sbp_symbol sbp_rule_rows_attr(const sbp_op *op);

/* Rows of the batch or of a chunk, this rank's or those of all that have a micro-batch together. */
static inline bool sbp_rule_of_batch(sbp_symbol rows) {
    return rows == SBP_T || rows == SBP_W;
}
static inline bool sbp_rule_of_chunk(sbp_symbol rows) {
    return rows == SBP_C || rows == SBP_D;
}

/* The end of the shape rule of a RECUR op: its last result is its state, as the state rule has it; where that
 * is an operand it is of this type, and `rows`, of what it reads, are those of a chunk (constraint 9). */
sbp_status sbp_rule_with_state(sbp_shape *shape, sbp_symbol rows) SBP_CHECKED;

/* Flat index into `in` of element `index` (per dimension) of a result that `in` broadcasts to. */
int64_t sbp_rule_broadcast_index(const sbp_tensor *in, const sbp_tensor *out, const int64_t *index);

/* Moves to the next element in row-major order. */
void sbp_rule_next_index(const sbp_tensor *tensor, int64_t *index);

/* value as a value of this type has it, when the evaluator rounds at all; f32 is not rounded to. */
double sbp_rule_rounded(const sbp_eval *eval, sbp_dtype dtype, double value);

/* Product of the dimensions before `axis`, that dimension, and the product of those after it. */
typedef struct sbp_axis_split {
    int64_t outer, n, inner;
} sbp_axis_split;
sbp_axis_split sbp_rule_split_axis(const sbp_tensor *tensor, int32_t axis);

/* Most rules: operand rows are read at the same row. */
#define SBP_RULE_SEQ_ROW(name)                                                                               \
    sbp_seq sbp_seq_##name(const sbp_op *op, int32_t operand, int32_t result) {                              \
        (void)op;                                                                                            \
        (void)operand;                                                                                       \
        (void)result;                                                                                        \
        return sbp_seq_of(SBP_SEQ_ROW);                                                                      \
    }
#define SBP_RULE_SEQ_REDUCE(name)                                                                            \
    sbp_seq sbp_seq_##name(const sbp_op *op, int32_t operand, int32_t result) {                              \
        (void)op;                                                                                            \
        (void)operand;                                                                                       \
        (void)result;                                                                                        \
        return sbp_seq_of(SBP_SEQ_REDUCE);                                                                   \
    }

#endif
