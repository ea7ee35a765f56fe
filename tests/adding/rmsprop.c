/* RMSprop as torch.optim.RMSprop (not centered, no momentum), with the second of --betas as its alpha:
 * v = a v + (1-a) g^2; p -= lr g / (sqrt(v) + eps). */
#include "passes/optimizers/optimizer.h"

void sbp_optimizer_rmsprop(sbp_optimizer_rule *r) {
    sbp_builder *b = r->b;
    sbp_value g = sbp_optimizer_regularized(r);
    sbp_value v = sbp_optimizer_state(r, SBP_SUFFIX_EXP_AVG_SQ, SBP_STATE_UNSIGNED);
    sbp_value square = sbp_build2(b, SBP_OP_mul, g, g);
    square = sbp_build2(b, SBP_OP_mul, sbp_optimizer_scalar(r, SBP_SCALAR_ONE_MINUS_BETA2), square);
    sbp_value kept = sbp_build2(b, SBP_OP_mul, sbp_optimizer_scalar(r, SBP_SCALAR_BETA2), v);
    sbp_value next = sbp_build2(b, SBP_OP_add, kept, square);
    sbp_value below =
        sbp_build2(b, SBP_OP_add, sbp_build1(b, SBP_OP_sqrt, next), sbp_optimizer_scalar(r, SBP_SCALAR_EPS));
    sbp_value change = sbp_build2(b, SBP_OP_div, g, below);
    change = sbp_build2(b, SBP_OP_mul, sbp_optimizer_scalar(r, SBP_SCALAR_LR), change);
    sbp_optimizer_set_weight(r, sbp_build2(b, SBP_OP_sub, r->weight, change));
    sbp_optimizer_set_state(r, 0, next);
}
