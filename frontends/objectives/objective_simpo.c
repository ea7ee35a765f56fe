/* objective_simpo.c: simple preference optimization (the loss type simpo of TRL 1.16's experimental
 * CPOTrainer).
 *
 * Pairs and what is read of the data: pairs.h. With a = the mean of logp over a completion's rows (w: chosen,
 * l: rejected), z = beta (a_w - a_l) - gamma, e = label_smoothing:
 *
 *   loss = mean over pairs of - (1 - e) log sigmoid(z) - e log sigmoid(-z)
 *          - cpo_alpha (mean of logp over the chosen completions' tokens of the step)
 *
 * There is no reference. gamma is TRL's simpo_gamma; cpo_alpha is 1 in TRL and 0 in the paper. */
#include <string.h>

#include "frontends/objectives/pairs.h"

void sbp_objective_simpo(sbp_objective *o) {
    if (o->loss_type && strcmp(o->loss_type, "simpo") != 0)
        sbp_objective_refuse(o, "simpo", "simpo");
    sbp_pairs p = sbp_pairs_of(o);
    sbp_value w = sbp_pairs_per_token(&p, p.won, p.chosen);
    sbp_value l = sbp_pairs_per_token(&p, p.lost, p.rejected);
    sbp_value beta = sbp_pairs_setting(&p, SBP_SETTING_BETA, 0.1),
              gamma = sbp_pairs_setting(&p, SBP_SETTING_SIMPO_GAMMA, 0.5);
    sbp_value e = sbp_pairs_setting(&p, SBP_SETTING_LABEL_SMOOTHING, 0);
    sbp_value z = sbp_pairs_op(&p, SBP_OP_mul, sbp_pairs_op(&p, SBP_OP_sub, w, l), beta);
    z = sbp_pairs_op(&p, SBP_OP_sub, z, gamma);
    sbp_value right = sbp_pairs_logistic(&p, z), wrong = sbp_pairs_logistic(&p, sbp_pairs_negative(&p, z));
    sbp_value sure = sbp_pairs_plus(&p, sbp_pairs_negative(&p, e), 1);
    right = sbp_pairs_op(&p, SBP_OP_mul, right, sure);
    wrong = sbp_pairs_op(&p, SBP_OP_mul, wrong, e);
    sbp_pairs_mean(&p, "loss", sbp_pairs_op(&p, SBP_OP_add, right, wrong));
    sbp_value nll = sbp_pairs_chosen_nll(&p);
    sbp_objective_result(o, "loss",
                         sbp_pairs_op(&p, SBP_OP_mul, nll, sbp_pairs_setting(&p, SBP_SETTING_CPO_ALPHA, 1)));
    sbp_value gain = sbp_pairs_op(&p, SBP_OP_mul, w, beta), loss = sbp_pairs_op(&p, SBP_OP_mul, l, beta);
    sbp_pairs_metrics(&p, gain, loss, w, l);
    sbp_objective_result(o, "nll_loss", nll);
}
