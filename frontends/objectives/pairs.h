/* pairs.h: what objectives over pairs of answers share (objective_dpo.c, objective_orpo.c,
 * objective_simpo.c).
 *
 * A pair is two documents of one micro-batch, one group of rows; S counts pairs. Columns of the data: weight
 * (1 where the label counts: completions), unit (the pair), in.chosen; scalars of the step: units (pairs),
 * labels, labels.chosen. Values [S] are fp64. C leaves open which of two arguments is computed first: at most
 * one of them builds. */
#ifndef SBP_FRONTENDS_OBJECTIVES_PAIRS_H
#define SBP_FRONTENDS_OBJECTIVES_PAIRS_H

#include "frontends/objectives/objective.h"

typedef struct sbp_pairs {
    sbp_objective *o;
    sbp_value pair;             /* [T] */
    sbp_value weight;           /* [T] */
    sbp_value chosen, rejected; /* [T] 1 at the counted rows of one of them */
    sbp_value won, lost;        /* [S] sums of logp over these */
    sbp_value count;            /* scalar, fp64: pairs of the step */
} sbp_pairs;

sbp_pairs sbp_pairs_of(sbp_objective *objective);

sbp_value sbp_pairs_op(const sbp_pairs *pairs, sbp_opcode code, sbp_value a, sbp_value b);
/* For values [S]: a number, x + a number, -x, a setting. */
sbp_value sbp_pairs_number(const sbp_pairs *pairs, double value);
sbp_value sbp_pairs_plus(const sbp_pairs *pairs, sbp_value x, double value);
sbp_value sbp_pairs_negative(const sbp_pairs *pairs, sbp_value x);
sbp_value sbp_pairs_setting(const sbp_pairs *pairs, sbp_setting_id id, double fallback);
/* - log sigmoid(x) */
sbp_value sbp_pairs_logistic(const sbp_pairs *pairs, sbp_value x);
/* x [S] over how many rows `counted` [T] has of each pair; 0 for one that has none. */
sbp_value sbp_pairs_per_token(const sbp_pairs *pairs, sbp_value x, sbp_value counted);
/* - the mean of logp over the counted rows of all chosen completions of the step, as a term [S] of a sum. */
sbp_value sbp_pairs_chosen_nll(const sbp_pairs *pairs);
/* The result `name`: the mean over the pairs of the step of x [S]. */
void sbp_pairs_mean(const sbp_pairs *pairs, const char *name, sbp_value x);
/* Metrics: rewards/.. of these rewards [S], logps/.. of these log-probabilities [S], entropy of all counted
 * rows, mean_token_accuracy of chosen ones. */
void sbp_pairs_metrics(const sbp_pairs *pairs, sbp_value reward_chosen, sbp_value reward_rejected,
                       sbp_value logps_chosen, sbp_value logps_rejected);

#endif
