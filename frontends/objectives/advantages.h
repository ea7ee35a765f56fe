/* advantages.h: advantages of rollouts from rewards, in @prepare: the column "advantage" of the loss. Rows
 * that carry an advantage keep it; rows with neither, or where it is null, have 0 and are not in means and
 * deviations. */
#ifndef SBP_FRONTENDS_OBJECTIVES_ADVANTAGES_H
#define SBP_FRONTENDS_OBJECTIVES_ADVANTAGES_H

#include "frontends/objectives/objective.h"

/* A = (r - mean of the group) / (standard deviation + 1e-4), the deviation by setting scale_rewards: 0 of the
 * group, 1 of all rewards of the step, 2: A = r - mean. Deviations are unbiased; that of one reward is 0.
 * Numbers of the step: reward, reward_std (of all rewards), frac_reward_zero_std, completions/mean_length. */
void sbp_objective_group_advantages(sbp_objective *objective);

/* Leave one out: A = r' - mean of r' of the others of the group, r' = r - beta sum of m (logp^old -
 * logp^ref); of one alone 0. Reads old_logps, and ref_logps where there are some. Numbers: those above, and
 * kl, the mean over tokens. Returns a term of the loss [T], of answers without a token that counts: the sum
 * of
 * - A / documents. */
sbp_value sbp_objective_left_out_advantages(sbp_objective *objective);

/* Answers none of whose tokens counts have no row that the loss computes, and ratios of 1: a term [T] of a
 * mean over documents of such ratios, their share of the documents. Terms of them are shared out to the rows
 * that count; where none does in a step, they are 0. */
sbp_value sbp_objective_uncounted(sbp_objective *objective);

/* Loss type rloo (objective_rloo.c), of objective grpo. */
void sbp_objective_rloo(sbp_objective *objective);

#endif
