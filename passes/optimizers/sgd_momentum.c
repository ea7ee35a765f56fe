/* SGD as torch.optim.SGD with momentum (no dampening, no nesterov): buf = momentum buf + (g + wd p);
 * p -= lr buf. torch starts with buf = g + wd p, which is the same from a buffer of zeros. */
#include "passes/optimizers/optimizer.h"

void sbp_optimizer_sgd_momentum(sbp_optimizer_rule *r) {
    sbp_builder *b = r->b;
    sbp_value buffer = sbp_optimizer_state(r, SBP_SUFFIX_MOMENTUM_BUFFER, SBP_STATE_SIGNED);
    sbp_value kept = sbp_build2(b, SBP_OP_mul, sbp_optimizer_scalar(r, SBP_SCALAR_MOMENTUM), buffer);
    sbp_value next = sbp_build2(b, SBP_OP_add, kept, sbp_optimizer_regularized(r));
    sbp_value change = sbp_build2(b, SBP_OP_mul, sbp_optimizer_scalar(r, SBP_SCALAR_LR), next);
    sbp_optimizer_set_weight(r, sbp_build2(b, SBP_OP_sub, r->weight, change));
    sbp_optimizer_set_state(r, 0, next);
}
