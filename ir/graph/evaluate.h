/* evaluate.h: runs graph functions in double precision, op by op: the oracle of tests, never of a run. Exact,
 * or with env.round every value of a type narrower than f32 rounded to it, as devices do: then what a device
 * computes differs by the rounding of its sums only. Arguments are taken as they are given.
 *
 * Tensors live in the arena. In a chunk function (rows C), env.sizes.v[SBP_C] rows beginning at env.row0
 * are computed; carries have T rows. */
#ifndef SBP_IR_GRAPH_EVALUATE_H
#define SBP_IR_GRAPH_EVALUATE_H

#include "ir/graph/op.h"

/* A zeroed tensor of this type with the given sizes. */
sbp_tensor *sbp_tensor_create(sbp_arena *arena, const sbp_type *type, const sbp_sizes *sizes);

/* values: one tensor per value of the function (value_count); those of arguments are set by the caller
 * (constants are filled in when NULL), all others are computed. */
sbp_status sbp_evaluate(const sbp_module *module, const sbp_func *func, const sbp_eval_env *env,
                        sbp_tensor **values) SBP_CHECKED;

#endif
