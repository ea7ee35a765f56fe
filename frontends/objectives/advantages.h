/* advantages.h: advantages of rollouts from rewards, in @prepare: the column "advantage" of the loss. Rows
 * that carry an advantage keep it; rows with neither have 0, and are refused where no row
 * has one of them. */
#ifndef SBP_FRONTENDS_OBJECTIVES_ADVANTAGES_H
#define SBP_FRONTENDS_OBJECTIVES_ADVANTAGES_H

#include "frontends/objectives/objective.h"

/* A = (r - mean of the group) / (standard deviation + 1e-4), the deviation by setting scale_rewards: 0 of the
 * group, 1 of all rewards of the step, 2: A = r - mean. Deviations are unbiased; that of one reward is 0.
 * Numbers of the step: reward, reward_std (of all rewards), frac_reward_zero_std, completions/mean_length. */
void sbp_objective_group_advantages(sbp_objective *objective);

/* Leave one out: A = r' - mean of r' of the others of the group, r' = r - beta sum of m (logp^old -
 * logp^ref); of one alone 0. Reads old_logps, and ref_logps where there are some. Numbers: those above, and
 * kl, the mean over tokens. */
void sbp_objective_left_out_advantages(sbp_objective *objective);

/* Loss type rloo (objective_rloo.c), of objective grpo. */
void sbp_objective_rloo(sbp_objective *objective);

#endif
