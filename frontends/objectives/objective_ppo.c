/* objective_ppo.c: proximal policy optimization with a value head (experimental/ppo of TRL 1.12). A document
 * is an answer behind its prompt, with a reward.
 *
 * m: weight, 1 in rows whose label the model wrote; m': these and the document's last row, which is the state
 * behind the last token: its value ends the sequence, and the reward is paid there. In @prepare, per row of
 * the documents:
 *   k = logp^old - logp^ref, or, with kl_estimator 1, exp(logp^ref - logp^old) - 1 - (logp^ref - logp^old);
 *       0 without m
 *   r = - kl_coef k, in the last row + reward; with whiten_rewards (r - mean) / sqrt(variance + 1e-8) + mean,
 *       over m' of the step
 *   d = r + gamma V' - V         V: old_values, V' that of the next row of m'
 *   A = d + gamma lam A'         over m', backwards
 *   R = A + V
 *   advantage: A whitened over m of the step: (A - mean) / sqrt(variance + 1e-8), unbiased.
 * Then
 *   L = mean over m of max(- A rho, - A clip(rho, 1 - cliprange, 1 + cliprange)), rho = exp(logp - logp^old)
 *     + vf_coef 1/2 mean over m' of max((v - R)^2, (clip(v, V - cliprange_value, V + cliprange_value) - R)^2)
 *
 * Columns of the data: weight, predicted, doc, doc.labels, reward, old_logps, old_values, ref_logps where
 * there are some; scalars of the step: labels, docs. */
#include "frontends/objectives/objective.h"

static sbp_value op(const sbp_objective *o, sbp_opcode code, sbp_value a, sbp_value b) {
    return sbp_build2(o->builder, code, a, b);
}

static sbp_value one(const sbp_objective *o, sbp_opcode code, sbp_value a) {
    return sbp_build1(o->builder, code, a);
}

/* ---- @prepare ------------------------------------------------------------------------------------------ */

typedef struct ppo_data {
    sbp_objective *p;
    sbp_value m, last, counted; /* [T] m, 1 in last rows of documents with a label, m' */
    sbp_value document;         /* [T] index */
    sbp_value reward, values;   /* [T] r, V */
    sbp_value advantage;        /* [T] A */
} ppo_data;

static sbp_value number(const ppo_data *d, double value) {
    return sbp_build_const(d->p->builder, SBP_F64, value);
}

static sbp_value setting(const ppo_data *d, sbp_setting_id id, double fallback) {
    return sbp_objective_setting(d->p, id, fallback, d->m);
}

static sbp_value times(const ppo_data *d, sbp_value a, sbp_value b) {
    return op(d->p, SBP_OP_mul, a, b);
}

static sbp_value plus(const ppo_data *d, sbp_value a, sbp_value b) {
    return op(d->p, SBP_OP_add, a, b);
}

static sbp_value minus(const ppo_data *d, sbp_value a, sbp_value b) {
    return op(d->p, SBP_OP_sub, a, b);
}

static sbp_value complement(const ppo_data *d, sbp_value x) {
    sbp_value all = number(d, 1);
    return minus(d, all, x);
}

static sbp_value sum(const ppo_data *d, sbp_value term) {
    return sbp_build(d->p->builder, SBP_OP_sum_rows, NULL, &term, 1, (sbp_attr[]){sbp_attr_int("rank", 0)}, 1,
                     NULL);
}

static sbp_value at_least_one(const ppo_data *d, sbp_value x) {
    return op(d->p, SBP_OP_max, x, number(d, 1));
}

/* y_r = x_r + decay_r y_r+1 over each document; *next: y_r+1. */
static sbp_value scan_back(const ppo_data *d, sbp_value x, sbp_value decay, sbp_value *next) {
    sbp_value out[2] = {SBP_NO_VALUE, SBP_NO_VALUE};
    sbp_build(d->p->builder, SBP_OP_scan, NULL, (sbp_value[]){x, decay, d->document}, 3,
              (sbp_attr[]){sbp_attr_bool("reverse", true)}, 1, out);
    *next = out[1];
    return out[0];
}

static void find_rows(ppo_data *d) {
    d->m = sbp_objective_row(d->p, SBP_DATA_WEIGHT);
    d->document = sbp_objective_index(d->p, SBP_DATA_DOC);
    sbp_value labels = sbp_objective_row(d->p, SBP_DATA_DOC_LABELS), zero = number(d, 0);
    d->last = complement(d, sbp_objective_row(d->p, SBP_DATA_PREDICTED));
    d->last = times(d, d->last, sbp_objective_less(d->p, zero, labels));
    d->counted = plus(d, d->m, d->last);
}

/* k */
static sbp_value divergence(const ppo_data *d) {
    sbp_value old = sbp_objective_row(d->p, SBP_DATA_OLD_LOGPS),
              ref = sbp_objective_row(d->p, SBP_DATA_REF_LOGPS);
    sbp_value k1 = minus(d, old, ref), up = minus(d, ref, old);
    sbp_value k3 = one(d->p, SBP_OP_exp, up), kind = setting(d, SBP_SETTING_KL_ESTIMATOR, 0);
    k3 = minus(d, k3, number(d, 1));
    k3 = minus(d, k3, up);
    sbp_value first = op(d->p, SBP_OP_lt, kind, number(d, 0.5));
    sbp_value k = sbp_build3(d->p->builder, SBP_OP_select, first, k1, k3);
    k = times(d, k, sbp_objective_has(d->p, SBP_DATA_REF_LOGPS));
    return times(d, k, d->m);
}

/* r, and what becomes of rewards in the step. */
static void pay(ppo_data *d) {
    sbp_value k = divergence(d), docs = sbp_objective_total(d->p, SBP_TOTAL_DOCS);
    sbp_value paid = one(d->p, SBP_OP_neg, k);
    paid = times(d, paid, setting(d, SBP_SETTING_KL_COEF, 0.05));
    sbp_value score = times(d, sbp_objective_row(d->p, SBP_DATA_REWARD), d->last);
    d->reward = plus(d, paid, score);
    sbp_objective_prepared(d->p, "objective/kl", op(d->p, SBP_OP_div, sum(d, k), docs));
    sbp_objective_prepared(d->p, "objective/non_score_reward", op(d->p, SBP_OP_div, sum(d, paid), docs));
    sbp_objective_prepared(d->p, "objective/scores", op(d->p, SBP_OP_div, sum(d, score), docs));
    sbp_objective_prepared(d->p, "objective/rlhf_reward", op(d->p, SBP_OP_div, sum(d, d->reward), docs));
}

/* (x - mean) / sqrt(variance + 1e-8) over the rows of a mask, unbiased, 0 elsewhere; *mean. */
static sbp_value whitened(const ppo_data *d, sbp_value mask, sbp_value x, sbp_value *mean) {
    sbp_value n = at_least_one(d, sum(d, mask));
    *mean = op(d->p, SBP_OP_div, sum(d, times(d, mask, x)), n);
    sbp_value off = minus(d, x, *mean);
    sbp_value squares = sum(d, times(d, mask, times(d, off, off)));
    sbp_value variance = op(d->p, SBP_OP_div, squares, at_least_one(d, minus(d, n, number(d, 1))));
    sbp_value scale = one(d->p, SBP_OP_rsqrt, plus(d, variance, number(d, 1e-8)));
    return times(d, mask, times(d, off, scale));
}

/* r with its mean, but the variance of m' is 1. */
static void whiten_rewards(ppo_data *d) {
    sbp_value mean, even = whitened(d, d->counted, d->reward, &mean);
    even = plus(d, even, times(d, d->counted, mean));
    sbp_value half = number(d, 0.5),
              off = op(d->p, SBP_OP_lt, setting(d, SBP_SETTING_WHITEN_REWARDS, 0), half);
    d->reward = sbp_build3(d->p->builder, SBP_OP_select, off, d->reward, even);
}

/* Rows without m' hand on what comes behind them. */
static void estimate_advantages(ppo_data *d) {
    sbp_value skipped = complement(d, d->counted), next, unused;
    sbp_value gamma = setting(d, SBP_SETTING_GAMMA, 1), lambda = setting(d, SBP_SETTING_LAM, 0.95);
    d->values = times(d, d->counted, sbp_objective_row(d->p, SBP_DATA_OLD_VALUES));
    scan_back(d, d->values, skipped, &next);
    sbp_value delta = plus(d, d->reward, times(d, gamma, next));
    delta = times(d, d->counted, minus(d, delta, d->values));
    sbp_value decay = times(d, d->counted, times(d, gamma, lambda));
    sbp_value all = scan_back(d, delta, plus(d, decay, skipped), &unused);
    d->advantage = times(d, d->counted, all);
}

static void prepare(sbp_objective *o) {
    ppo_data d = {.p = sbp_objective_prepare(o)};
    sbp_value mean;
    find_rows(&d);
    pay(&d);
    whiten_rewards(&d);
    estimate_advantages(&d);
    sbp_objective_prepared(d.p, sbp_data_columns[SBP_DATA_ADVANTAGE].name,
                           whitened(&d, d.m, d.advantage, &mean));
    sbp_objective_prepared(d.p, "return", plus(&d, d.advantage, d.values));
    sbp_objective_prepared(d.p, "value_weight", d.counted);
    sbp_objective_prepared(d.p, "value_rows", at_least_one(&d, sum(&d, d.counted)));
}

/* ---- the loss ------------------------------------------------------------------------------------------ */

/* The value between two bounds. */
static sbp_value between(const sbp_objective *o, sbp_value x, sbp_value low, sbp_value high) {
    return op(o, SBP_OP_min, op(o, SBP_OP_max, x, low), high);
}

static void add_policy(sbp_objective *o) {
    sbp_value share = sbp_objective_row(o, SBP_DATA_WEIGHT),
              advantage = sbp_objective_row(o, SBP_DATA_ADVANTAGE);
    share = op(o, SBP_OP_div, share, sbp_objective_total(o, SBP_TOTAL_LABELS));
    sbp_value distance = op(o, SBP_OP_sub, o->logp, sbp_objective_row(o, SBP_DATA_OLD_LOGPS));
    sbp_value rho = one(o, SBP_OP_exp, distance),
              range = sbp_objective_setting(o, SBP_SETTING_CLIPRANGE, 0.2, rho);
    sbp_value unit = sbp_objective_number(o, 1, rho);
    sbp_value low = op(o, SBP_OP_sub, unit, range), high = op(o, SBP_OP_add, unit, range);
    sbp_value loss = one(o, SBP_OP_neg, op(o, SBP_OP_mul, advantage, rho));
    sbp_value bounded = op(o, SBP_OP_mul, advantage, between(o, rho, low, high));
    bounded = one(o, SBP_OP_neg, bounded);
    sbp_value clipped = sbp_objective_less(o, loss, bounded);
    loss = op(o, SBP_OP_mul, share, op(o, SBP_OP_max, loss, bounded));
    sbp_objective_result(o, "loss", loss);
    sbp_objective_result(o, "loss/policy_avg", loss);
    sbp_objective_result(o, "policy/clipfrac_avg", op(o, SBP_OP_mul, share, clipped));
    sbp_objective_result(o, "policy/entropy_avg", op(o, SBP_OP_mul, share, o->entropy));
    sbp_value squares = op(o, SBP_OP_mul, distance, distance), half = sbp_objective_number(o, 0.5, rho);
    sbp_value near = op(o, SBP_OP_mul, share, op(o, SBP_OP_mul, half, squares));
    sbp_objective_result(o, "policy/approxkl_avg", near);
    sbp_objective_result(o, "val/ratio", op(o, SBP_OP_mul, share, rho));
}

static void add_value(sbp_objective *o) {
    sbp_value share = sbp_objective_prepared_row(o, "value_weight"),
              old = sbp_objective_row(o, SBP_DATA_OLD_VALUES);
    share = op(o, SBP_OP_div, share, sbp_objective_prepared_number(o, "value_rows"));
    sbp_value wanted = sbp_objective_prepared_row(o, "return"), v = o->value;
    sbp_value range = sbp_objective_setting(o, SBP_SETTING_CLIPRANGE_VALUE, 0.2, v);
    sbp_value low = op(o, SBP_OP_sub, old, range), high = op(o, SBP_OP_add, old, range);
    sbp_value off = op(o, SBP_OP_sub, v, wanted), held = between(o, v, low, high);
    held = op(o, SBP_OP_sub, held, wanted);
    sbp_value free = op(o, SBP_OP_mul, off, off), bounded = op(o, SBP_OP_mul, held, held);
    sbp_value clipped = sbp_objective_less(o, free, bounded), half = sbp_objective_number(o, 0.5, v);
    sbp_value loss = op(o, SBP_OP_mul, half, op(o, SBP_OP_max, free, bounded));
    loss = op(o, SBP_OP_mul, share, loss);
    sbp_value weighed = op(o, SBP_OP_mul, loss, sbp_objective_setting(o, SBP_SETTING_VF_COEF, 0.1, v));
    sbp_objective_result(o, "loss", weighed); /* added */
    sbp_objective_result(o, "loss/value_avg", loss);
    sbp_objective_result(o, "val/clipfrac_avg", op(o, SBP_OP_mul, share, clipped));
}

void sbp_objective_ppo(sbp_objective *o) {
    if (o->loss_type)
        sbp_objective_refuse(o, "ppo", "none to choose from");
    o->passes = 4;
    o->counted = "value_weight";
    prepare(o);
    add_policy(o);
    add_value(o);
}
