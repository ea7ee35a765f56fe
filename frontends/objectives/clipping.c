/* clipping.c: importance ratios within bounds. */
#include "frontends/objectives/clipping.h"

static sbp_value op(const sbp_objective *o, sbp_opcode code, sbp_value a, sbp_value b) {
    return sbp_build2(o->builder, code, a, b);
}

sbp_value sbp_clipping_setting_or(sbp_objective *o, sbp_setting_id id, sbp_value otherwise) {
    sbp_value x = sbp_objective_setting(o, id, -1, otherwise), zero = sbp_objective_number(o, 0, x);
    return sbp_build3(o->builder, SBP_OP_select, op(o, SBP_OP_lt, x, zero), otherwise, x);
}

sbp_value sbp_clipping_reach(sbp_objective *o) {
    sbp_value epsilon = sbp_objective_setting(o, SBP_SETTING_EPSILON, 0.2, o->logp);
    return sbp_clipping_setting_or(o, SBP_SETTING_EPSILON_HIGH, epsilon);
}

sbp_clipping sbp_clipping_of(sbp_objective *o) {
    sbp_value unit = sbp_objective_number(o, 1, o->logp);
    sbp_value epsilon = sbp_objective_setting(o, SBP_SETTING_EPSILON, 0.2, o->logp);
    sbp_value low = op(o, SBP_OP_sub, unit, epsilon);
    return (sbp_clipping){.o = o, .low = low, .high = op(o, SBP_OP_add, unit, sbp_clipping_reach(o))};
}

sbp_value sbp_clipping_loss(const sbp_clipping *c, sbp_value free, sbp_value ratio, sbp_value advantage) {
    sbp_value inside = op(c->o, SBP_OP_max, ratio, c->low);
    inside = op(c->o, SBP_OP_min, inside, c->high);
    free = op(c->o, SBP_OP_mul, free, advantage);
    inside = op(c->o, SBP_OP_mul, inside, advantage);
    return sbp_build1(c->o->builder, SBP_OP_neg, op(c->o, SBP_OP_min, free, inside));
}

void sbp_clipping_metrics(const sbp_clipping *c, sbp_value share, sbp_value ratio, sbp_value advantage) {
    sbp_objective *o = c->o;
    sbp_value zero = sbp_objective_number(o, 0, o->logp);
    sbp_value bad = sbp_objective_less(o, advantage, zero), good = sbp_objective_less(o, zero, advantage);
    sbp_value below = op(o, SBP_OP_mul, sbp_objective_less(o, ratio, c->low), bad);
    sbp_value above = op(o, SBP_OP_mul, sbp_objective_less(o, c->high, ratio), good);
    sbp_objective_result(o, "clip_ratio/low_mean", op(o, SBP_OP_mul, share, below));
    sbp_objective_result(o, "clip_ratio/high_mean", op(o, SBP_OP_mul, share, above));
    sbp_value region = op(o, SBP_OP_add, below, above);
    sbp_objective_result(o, "clip_ratio/region_mean", op(o, SBP_OP_mul, share, region));
}
