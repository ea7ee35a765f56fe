/* clipping.h: importance ratios within bounds, what objective_grpo.c and objective_rloo.c share. Values [T]
 * in the type of logp. */
#ifndef SBP_FRONTENDS_OBJECTIVES_CLIPPING_H
#define SBP_FRONTENDS_OBJECTIVES_CLIPPING_H

#include "frontends/objectives/objective.h"

typedef struct sbp_clipping {
    sbp_objective *o;
    sbp_value low, high; /* 1 - epsilon, 1 + epsilon_high */
} sbp_clipping;

sbp_clipping sbp_clipping_of(sbp_objective *objective);
/* The setting `name`, or `otherwise` where it is negative. */
sbp_value sbp_clipping_setting_or(sbp_objective *objective, sbp_setting_id id, sbp_value otherwise);
/* epsilon_high, as far as it is chosen, else epsilon. */
sbp_value sbp_clipping_reach(sbp_objective *objective);
/* - min(free A, clip(ratio, low, high) A) */
sbp_value sbp_clipping_loss(const sbp_clipping *clipping, sbp_value free, sbp_value ratio,
                            sbp_value advantage);
/* clip_ratio/..: how many ratios are beyond a bound to the side that the advantage asks for; share: what a
 * row counts. */
void sbp_clipping_metrics(const sbp_clipping *clipping, sbp_value share, sbp_value ratio,
                          sbp_value advantage);

#endif
