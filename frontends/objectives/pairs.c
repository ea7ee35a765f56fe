/* pairs.c: what objectives over pairs of answers share. */
#include "frontends/objectives/pairs.h"

sbp_value sbp_pairs_op(const sbp_pairs *p, sbp_opcode code, sbp_value a, sbp_value b) {
    return sbp_build2(p->o->builder, code, a, b);
}

sbp_value sbp_pairs_number(const sbp_pairs *p, double value) {
    return sbp_objective_number(p->o, value, p->won);
}

sbp_value sbp_pairs_plus(const sbp_pairs *p, sbp_value x, double value) {
    return sbp_pairs_op(p, SBP_OP_add, x, sbp_pairs_number(p, value));
}

sbp_value sbp_pairs_negative(const sbp_pairs *p, sbp_value x) {
    return sbp_build1(p->o->builder, SBP_OP_neg, x);
}

sbp_value sbp_pairs_setting(const sbp_pairs *p, sbp_setting_id id, double fallback) {
    return sbp_objective_setting(p->o, id, fallback, p->won);
}

sbp_value sbp_pairs_logistic(const sbp_pairs *p, sbp_value x) {
    return sbp_pairs_negative(p, sbp_build1(p->o->builder, SBP_OP_log_sigmoid, x));
}

sbp_value sbp_pairs_per_token(const sbp_pairs *p, sbp_value x, sbp_value counted) {
    sbp_value count = sbp_objective_group_sum(p->o, counted, p->pair);
    count = sbp_pairs_op(p, SBP_OP_max, count, sbp_pairs_number(p, 1));
    return sbp_pairs_op(p, SBP_OP_div, x, count);
}

sbp_value sbp_pairs_chosen_nll(const sbp_pairs *p) {
    sbp_value labels = sbp_objective_wide_total(p->o, SBP_TOTAL_LABELS, SBP_PART_CHOSEN);
    return sbp_pairs_op(p, SBP_OP_div, sbp_pairs_negative(p, p->won), labels);
}

void sbp_pairs_mean(const sbp_pairs *p, const char *name, sbp_value x) {
    sbp_objective_result(p->o, name, sbp_pairs_op(p, SBP_OP_div, x, p->count));
}

void sbp_pairs_metrics(const sbp_pairs *p, sbp_value reward_chosen, sbp_value reward_rejected,
                       sbp_value logps_chosen, sbp_value logps_rejected) {
    sbp_objective *o = p->o;
    sbp_pairs_mean(p, "rewards/chosen", reward_chosen);
    sbp_pairs_mean(p, "rewards/rejected", reward_rejected);
    sbp_pairs_mean(p, "rewards/margins", sbp_pairs_op(p, SBP_OP_sub, reward_chosen, reward_rejected));
    sbp_pairs_mean(p, "rewards/accuracies", sbp_objective_less(o, reward_rejected, reward_chosen));
    sbp_pairs_mean(p, "logps/chosen", logps_chosen);
    sbp_pairs_mean(p, "logps/rejected", logps_rejected);
    sbp_value share = sbp_pairs_op(p, SBP_OP_div, p->weight, sbp_objective_total(o, SBP_TOTAL_LABELS));
    sbp_objective_result(o, "entropy", sbp_pairs_op(p, SBP_OP_mul, share, o->entropy));
    sbp_value of_chosen = sbp_pairs_op(p, SBP_OP_div, p->chosen,
                                       sbp_objective_part_total(o, SBP_TOTAL_LABELS, SBP_PART_CHOSEN));
    sbp_objective_result(o, "mean_token_accuracy", sbp_pairs_op(p, SBP_OP_mul, of_chosen, o->hit));
}

sbp_pairs sbp_pairs_of(sbp_objective *o) {
    sbp_pairs p = {.o = o,
                   .pair = sbp_objective_index(o, SBP_DATA_UNIT),
                   .count = sbp_objective_wide_total(o, SBP_TOTAL_UNITS, SBP_PART_COUNT)};
    sbp_value in_chosen;
    o->counted = sbp_data_columns[SBP_DATA_WEIGHT].name;
    p.weight = sbp_objective_row(o, SBP_DATA_WEIGHT);
    in_chosen = sbp_objective_in(o, SBP_PART_CHOSEN);
    p.chosen = sbp_pairs_op(&p, SBP_OP_mul, p.weight, in_chosen);
    p.rejected = sbp_pairs_op(&p, SBP_OP_sub, p.weight, p.chosen);
    p.won = sbp_objective_group_sum(o, sbp_pairs_op(&p, SBP_OP_mul, p.chosen, o->logp), p.pair);
    p.lost = sbp_objective_group_sum(o, sbp_pairs_op(&p, SBP_OP_mul, p.rejected, o->logp), p.pair);
    return p;
}
