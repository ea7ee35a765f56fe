/* Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2):
 * c = b1 m + (1-b1) g; p -= lr (sign(c) + wd p); m = b2 m + (1-b2) g. Weight decay is decoupled, as in the
 * authors' code: p (1 - lr wd) first. */
#include "passes/optimizers/optimizer.h"

static sbp_value sign(sbp_optimizer_rule *r, sbp_value x) {
    sbp_builder *b = r->b;
    sbp_value zero = sbp_build_const(b, r->compute, 0), one = sbp_build_const(b, r->compute, 1),
              minus = sbp_build_const(b, r->compute, -1);
    sbp_value below = sbp_build3(b, SBP_OP_select, sbp_build2(b, SBP_OP_lt, x, zero), minus, zero);
    return sbp_build3(b, SBP_OP_select, sbp_build2(b, SBP_OP_lt, zero, x), one, below);
}

/* beta m + (1 - beta) g */
static sbp_value mix(sbp_optimizer_rule *r, sbp_value m, sbp_scalar_id beta, sbp_scalar_id one_minus_beta) {
    sbp_value kept = sbp_build2(r->b, SBP_OP_mul, sbp_optimizer_scalar(r, beta), m);
    return sbp_build2(r->b, SBP_OP_add, kept,
                      sbp_build2(r->b, SBP_OP_mul, sbp_optimizer_scalar(r, one_minus_beta), r->grad));
}

void sbp_optimizer_lion(sbp_optimizer_rule *r) {
    sbp_value m = sbp_optimizer_state(r, SBP_SUFFIX_EXP_AVG, SBP_STATE_SIGNED);
    sbp_value direction = sign(r, mix(r, m, SBP_SCALAR_BETA1, SBP_SCALAR_ONE_MINUS_BETA1));
    sbp_value change = sbp_build2(r->b, SBP_OP_mul, sbp_optimizer_scalar(r, SBP_SCALAR_LR), direction);
    sbp_optimizer_set_weight(r, sbp_build2(r->b, SBP_OP_sub, sbp_optimizer_decayed(r), change));
    sbp_optimizer_set_state(r, 0, mix(r, m, SBP_SCALAR_BETA2, SBP_SCALAR_ONE_MINUS_BETA2));
}
