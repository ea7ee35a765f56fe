/* AdamW as torch.optim.AdamW (decoupled weight decay, no amsgrad):
 * p -= lr wd p; m += (1-b1)(g - m); v = b2 v + (1-b2) g^2;
 * p -= lr/(1-b1^t) m / (sqrt(v)/sqrt(1-b2^t) + eps).
 * 1-b1, 1-b2 and the corrections come from the host, where they are computed in double: 1 - 0.999f is off by
 * 2e-5. */
#include "passes/optimizers/optimizer.h"

void sbp_optimizer_adamw(sbp_optimizer_rule *r) {
    sbp_builder *b = r->b;
    sbp_value g = r->grad, lr = sbp_optimizer_scalar(r, SBP_SCALAR_LR);
    sbp_value m = sbp_optimizer_state(r, SBP_SUFFIX_EXP_AVG, SBP_STATE_SIGNED);
    sbp_value v = sbp_optimizer_state(r, SBP_SUFFIX_EXP_AVG_SQ, SBP_STATE_UNSIGNED);
    sbp_value difference = sbp_build2(b, SBP_OP_sub, g, m);
    sbp_value next_m = sbp_build2(
        b, SBP_OP_add, m,
        sbp_build2(b, SBP_OP_mul, sbp_optimizer_scalar(r, SBP_SCALAR_ONE_MINUS_BETA1), difference));
    sbp_value kept = sbp_build2(b, SBP_OP_mul, sbp_optimizer_scalar(r, SBP_SCALAR_BETA2), v);
    sbp_value square = sbp_build2(b, SBP_OP_mul, g, g);
    sbp_value next_v =
        sbp_build2(b, SBP_OP_add, kept,
                   sbp_build2(b, SBP_OP_mul, sbp_optimizer_scalar(r, SBP_SCALAR_ONE_MINUS_BETA2), square));
    sbp_value root = sbp_build2(b, SBP_OP_div, sbp_build1(b, SBP_OP_sqrt, next_v),
                                sbp_optimizer_scalar(r, SBP_SCALAR_BIAS2_SQRT));
    sbp_value below = sbp_build2(b, SBP_OP_add, root, sbp_optimizer_scalar(r, SBP_SCALAR_EPS));
    sbp_value rate = sbp_build2(b, SBP_OP_div, lr, sbp_optimizer_scalar(r, SBP_SCALAR_BIAS1));
    sbp_value change = sbp_build2(b, SBP_OP_div, sbp_build2(b, SBP_OP_mul, rate, next_m), below);
    sbp_optimizer_set_weight(r, sbp_build2(b, SBP_OP_sub, sbp_optimizer_decayed(r), change));
    sbp_optimizer_set_state(r, 0, next_m);
    sbp_optimizer_set_state(r, 1, next_v);
}
