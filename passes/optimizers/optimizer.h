/* optimizer.h: what an optimizer's file is written with: the graph from a gradient, a weight and states to
 * the next weight and states.
 *
 * All values are in the compute type (fp32; fp64 for fp64 weights), [rows, cols] of the parameter, whatever
 * it and its states are kept in: passes/optimizers/update.c puts casts around the rule. A rule is
 * straight-line and works element by element, so that it is one command however a parameter is cut. */
#ifndef SBP_PASSES_OPTIMIZERS_OPTIMIZER_H
#define SBP_PASSES_OPTIMIZERS_OPTIMIZER_H

#include "ir/program/contract.h"
#include "passes/optimizers/rule.h"

/* What a state's numbers are, for the formats that have a choice (int8). */
typedef enum sbp_state_sign { SBP_STATE_SIGNED, SBP_STATE_UNSIGNED } sbp_state_sign;

typedef struct sbp_optimizer_rule {
    sbp_builder *b;
    sbp_dtype compute;
    sbp_value grad;   /* clipped */
    sbp_value weight; /* as it stands; with an exact master, all of it */
    bool decay;       /* weight decay applies to this parameter */
    struct sbp_update_maker *maker;
} sbp_optimizer_rule;

/* A state "<parameter>.<suffix>", zero before the first step, as it stands; each is asked for once. */
sbp_value sbp_optimizer_state(sbp_optimizer_rule *rule, sbp_suffix_id suffix, sbp_state_sign sign);
/* Its next value, in the order the states were asked for; and the next weight. */
void sbp_optimizer_set_state(sbp_optimizer_rule *rule, int32_t state, sbp_value value);
void sbp_optimizer_set_weight(sbp_optimizer_rule *rule, sbp_value value);
/* A scalar of the step, set by the runtime (runtime/train/trainer.c), in the compute type. */
sbp_value sbp_optimizer_scalar(sbp_optimizer_rule *rule, sbp_scalar_id scalar);

#define OPTIMIZER(id, name, text, states) void sbp_optimizer_##name(sbp_optimizer_rule *rule);
#include "passes/lower/optimizers.def"
#undef OPTIMIZER

static inline sbp_value sbp_optimizer_op(sbp_optimizer_rule *r, sbp_opcode code, sbp_value a, sbp_value b) {
    return sbp_build2(r->b, code, a, b);
}

/* weight, or where decay applies weight - lr weight_decay weight. */
sbp_value sbp_optimizer_decayed(sbp_optimizer_rule *rule);
/* gradient, or where decay applies gradient + weight_decay weight. */
sbp_value sbp_optimizer_regularized(sbp_optimizer_rule *rule);

#endif
