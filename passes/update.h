/* update.h: the row kernels that consume gradients (optimizer.c), for the passes that place them. */
#ifndef SBP_PASSES_UPDATE_H
#define SBP_PASSES_UPDATE_H

#include "passes/lowering.h"

/* grad += accum, rounded once. */
void sbp_lower_flush(sbp_pipeline *p, sbp_body *body, int32_t param, sbp_view grad, sbp_dtype grad_dtype,
                     sbp_view accum, sbp_dtype accum_dtype);
/* to = from in another float type. */
void sbp_lower_convert(sbp_pipeline *p, sbp_body *body, sbp_view to, sbp_dtype to_dtype, sbp_view from,
                       sbp_dtype from_dtype);
/* The optimizer on one parameter buffer; clip: buffer of the factor on the gradient, -1: none. Marked as what
 * flushes the parameter. */
void sbp_lower_update(sbp_pipeline *p, sbp_body *body, int32_t param, bool decay, sbp_view grad,
                      sbp_dtype grad_dtype, int32_t clip);
/* The sum of squares of the gradient of parameter number `param` of the module, into its place in `norms`. */
void sbp_lower_sumsq(sbp_pipeline *p, sbp_body *body, int32_t param, sbp_view grad);
/* The norm of all of them; with clip >= 0, the factor on the gradients. */
void sbp_lower_norm(sbp_pipeline *p, sbp_body *body, int32_t clip);
/* The gradient buffer of a parameter buffer. */
int32_t sbp_lower_grad_buffer(sbp_pipeline *p, int32_t param);

#endif
