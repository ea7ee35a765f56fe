/* objective_orpo.c: odds ratio preference optimization (TRL 1.16's experimental ORPOTrainer).
 *
 * Pairs and what is read of the data: pairs.h; and predicted, 1 in all rows but the last of a document, with
 * predicted.chosen of the step. With a = the mean of logp over a completion's rows (w: chosen, l: rejected)
 * and odds(a) = a - log(1 - e^a):
 *
 *   loss = - mean of logp over all predicted tokens of prompt + chosen
 *          - beta (mean over pairs of log sigmoid(odds(a_w) - odds(a_l)))
 *
 * Rows of a rejected answer's prompt are not read. There is no reference. Where a is 0 to the last digit, 1 -
 * e^a counts as 1e-30, so that the loss is finite.
 */
#include <string.h>

#include "frontends/objectives/pairs.h"

static sbp_value odds(const sbp_pairs *p, sbp_value a) {
    sbp_value rest = sbp_pairs_negative(p, sbp_build1(p->o->builder, SBP_OP_exp, a));
    rest = sbp_pairs_plus(p, rest, 1);
    rest = sbp_pairs_op(p, SBP_OP_max, rest, sbp_pairs_number(p, 1e-30));
    return sbp_pairs_op(p, SBP_OP_sub, a, sbp_build1(p->o->builder, SBP_OP_log, rest));
}

/* In @prepare: 1 in rows of which something is read. */
static void find_rows(sbp_objective *o) {
    static const char name[] = "read_rows";
    sbp_objective *p = sbp_objective_prepare(o);
    sbp_value predicted = sbp_objective_row(p, SBP_DATA_PREDICTED),
              chosen = sbp_objective_in(p, SBP_PART_CHOSEN);
    sbp_value rows = sbp_build2(p->builder, SBP_OP_mul, predicted, chosen);
    rows = sbp_build2(p->builder, SBP_OP_max, rows, sbp_objective_row(p, SBP_DATA_WEIGHT));
    sbp_objective_prepared(p, name, rows);
    sbp_objective_prepared_row(o, name);
    o->counted = name;
}

void sbp_objective_orpo(sbp_objective *o) {
    if (o->loss_type && strcmp(o->loss_type, "orpo") != 0)
        sbp_objective_refuse(o, "orpo", "orpo");
    sbp_pairs p = sbp_pairs_of(o);
    find_rows(o);
    sbp_value w = sbp_pairs_per_token(&p, p.won, p.chosen);
    sbp_value l = sbp_pairs_per_token(&p, p.lost, p.rejected);
    sbp_value beta = sbp_pairs_setting(&p, SBP_SETTING_BETA, 0.1);
    sbp_value odds_w = odds(&p, w), odds_l = odds(&p, l);
    sbp_value z = sbp_pairs_op(&p, SBP_OP_sub, odds_w, odds_l);
    sbp_value ratio = sbp_pairs_logistic(&p, z);
    sbp_pairs_mean(&p, "loss", sbp_pairs_op(&p, SBP_OP_mul, ratio, beta));
    sbp_value predicted = sbp_objective_row(o, SBP_DATA_PREDICTED),
              chosen = sbp_objective_in(o, SBP_PART_CHOSEN);
    sbp_value nll = sbp_pairs_op(&p, SBP_OP_mul, predicted, chosen);
    nll =
        sbp_pairs_op(&p, SBP_OP_div, nll, sbp_objective_part_total(o, SBP_TOTAL_PREDICTED, SBP_PART_CHOSEN));
    nll = sbp_pairs_op(&p, SBP_OP_mul, nll, sbp_pairs_negative(&p, o->logp));
    sbp_objective_result(o, "loss", nll);
    sbp_value gain = sbp_pairs_op(&p, SBP_OP_mul, w, beta), loss = sbp_pairs_op(&p, SBP_OP_mul, l, beta);
    sbp_pairs_metrics(&p, gain, loss, w, l);
    sbp_objective_result(o, "nll_loss", nll);
    sbp_pairs_mean(&p, "log_odds_ratio", sbp_pairs_negative(&p, ratio));
    sbp_pairs_mean(&p, "log_odds_chosen", z);
}
