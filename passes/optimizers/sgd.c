/* SGD as torch.optim.SGD without momentum: p -= lr (g + wd p). */
#include "passes/optimizers/optimizer.h"

void sbp_optimizer_sgd(sbp_optimizer_rule *r) {
    sbp_value change =
        sbp_build2(r->b, SBP_OP_mul, sbp_optimizer_scalar(r, SBP_SCALAR_LR), sbp_optimizer_regularized(r));
    sbp_optimizer_set_weight(r, sbp_build2(r->b, SBP_OP_sub, r->weight, change));
}
