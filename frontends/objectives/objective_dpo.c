/* objective_dpo.c: direct preference optimization (TRL 1.16's dpo_trainer).
 *
 * A pair is two documents of one micro-batch, one group of rows. Per pair [S]:
 *   s  = sum over the completion's rows of logp      r = s - s^ref     D = r_w - r_l (w: chosen, l: rejected)
 *   D' = r_w / |y_w| - r_l / |y_l|                   f(x) = - log sigmoid(beta x)
 * and the loss is the mean over the pairs of the step of
 *   sigmoid       f(D)                               (without label smoothing, as TRL has it)
 *   hinge         max(0, 1 - beta D)
 *   ipo           (D' - 1 / (2 beta))^2
 *   sigmoid_norm  f(D')
 *   robust        ((1 - e) f(D) - e f(-D)) / (1 - 2 e)          e: label_smoothing, below 1/2
 *   cdpo          (1 - e) f(D) + e f(-D)
 *   apo_zero      1 - sigmoid(beta r_w) + sigmoid(beta r_l)
 *   apo_down      sigmoid(beta r_w) + 1 - sigmoid(beta D)
 *   sppo_hard     (r_w - 1 / (2 beta))^2 + (r_l + 1 / (2 beta))^2
 *   sft           - mean of logp over the chosen completions' tokens of the step
 * or of several, joined by '+', each with a weight behind a ':' ("sigmoid+sft:0.5").
 *
 * Columns of the data: what pairs.h says; per pair: ref_logps_sum.chosen and .rejected. */
#include <stdlib.h>
#include <string.h>

#include "frontends/objectives/pairs.h"

typedef struct dpo {
    sbp_pairs p;
    sbp_value gain, loss; /* [S] r */
    sbp_value margin;     /* [S] D */
} dpo;

static sbp_value op(const dpo *d, sbp_opcode code, sbp_value a, sbp_value b) {
    return sbp_pairs_op(&d->p, code, a, b);
}

static sbp_value number(const dpo *d, double value) {
    return sbp_pairs_number(&d->p, value);
}

static sbp_value plus(const dpo *d, sbp_value x, double value) {
    return sbp_pairs_plus(&d->p, x, value);
}

static sbp_value negative(const dpo *d, sbp_value x) {
    return sbp_pairs_negative(&d->p, x);
}

static sbp_value square(const dpo *d, sbp_value x) {
    return op(d, SBP_OP_mul, x, x);
}

static sbp_value beta(const dpo *d) {
    return sbp_pairs_setting(&d->p, SBP_SETTING_BETA, 0.1);
}

/* sigmoid(beta x) */
static sbp_value sigmoid(const dpo *d, sbp_value x) {
    return sbp_build1(d->p.o->builder, SBP_OP_sigmoid, op(d, SBP_OP_mul, x, beta(d)));
}

/* f(x) */
static sbp_value logistic(const dpo *d, sbp_value x) {
    return sbp_pairs_logistic(&d->p, op(d, SBP_OP_mul, x, beta(d)));
}

/* 1 / (2 beta) */
static sbp_value half_inverse(const dpo *d) {
    sbp_value half = number(d, 0.5);
    return op(d, SBP_OP_div, half, beta(d));
}

/* D' */
static sbp_value mean_margin(const dpo *d) {
    sbp_value w = sbp_pairs_per_token(&d->p, d->gain, d->p.chosen);
    sbp_value l = sbp_pairs_per_token(&d->p, d->loss, d->p.rejected);
    return op(d, SBP_OP_sub, w, l);
}

static sbp_value loss_sigmoid(const dpo *d) {
    return logistic(d, d->margin);
}

static sbp_value loss_hinge(const dpo *d) {
    sbp_value scaled = op(d, SBP_OP_mul, d->margin, beta(d));
    sbp_value slack = plus(d, negative(d, scaled), 1);
    return op(d, SBP_OP_max, slack, number(d, 0));
}

static sbp_value loss_ipo(const dpo *d) {
    sbp_value mean = mean_margin(d);
    return square(d, op(d, SBP_OP_sub, mean, half_inverse(d)));
}

static sbp_value loss_sigmoid_norm(const dpo *d) {
    return logistic(d, mean_margin(d));
}

/* (1 - e) f(D) + sign e f(-D) */
static sbp_value smoothed(const dpo *d, sbp_value e, double sign) {
    sbp_value right = logistic(d, d->margin), wrong = logistic(d, negative(d, d->margin));
    right = op(d, SBP_OP_mul, right, plus(d, negative(d, e), 1));
    wrong = op(d, SBP_OP_mul, wrong, e);
    return op(d, sign < 0 ? SBP_OP_sub : SBP_OP_add, right, wrong);
}

static sbp_value smoothing(const dpo *d) {
    return sbp_pairs_setting(&d->p, SBP_SETTING_LABEL_SMOOTHING, 0);
}

static sbp_value loss_robust(const dpo *d) {
    sbp_value e = smoothing(d), sum = smoothed(d, e, -1), twice = op(d, SBP_OP_add, e, e);
    return op(d, SBP_OP_div, sum, plus(d, negative(d, twice), 1));
}

static sbp_value loss_cdpo(const dpo *d) {
    return smoothed(d, smoothing(d), 1);
}

static sbp_value loss_apo_zero(const dpo *d) {
    sbp_value w = sigmoid(d, d->gain), l = sigmoid(d, d->loss);
    return plus(d, op(d, SBP_OP_sub, l, w), 1);
}

static sbp_value loss_apo_down(const dpo *d) {
    sbp_value w = sigmoid(d, d->gain), both = sigmoid(d, d->margin);
    return plus(d, op(d, SBP_OP_sub, w, both), 1);
}

static sbp_value loss_sppo_hard(const dpo *d) {
    sbp_value wanted = half_inverse(d);
    sbp_value w = square(d, op(d, SBP_OP_sub, d->gain, wanted));
    return op(d, SBP_OP_add, w, square(d, op(d, SBP_OP_add, d->loss, wanted)));
}

/* A mean over tokens where the others are means over pairs: the sum over pairs divides by their number. */
static sbp_value loss_sft(const dpo *d) {
    sbp_value nll = sbp_pairs_chosen_nll(&d->p);
    return op(d, SBP_OP_mul, nll, d->p.count);
}

static const struct {
    const char *name;
    sbp_value (*build)(const dpo *d);
} types[] = {
    {"sigmoid", loss_sigmoid},
    {"hinge", loss_hinge},
    {"ipo", loss_ipo},
    {"sigmoid_norm", loss_sigmoid_norm},
    {"robust", loss_robust},
    {"cdpo", loss_cdpo},
    {"apo_zero", loss_apo_zero},
    {"apo_down", loss_apo_down},
    {"sppo_hard", loss_sppo_hard},
    {"sft", loss_sft},
};

/* Adds the term of one type, given as "NAME" or "NAME:WEIGHT" in `length` characters of text; false: there is
 * no such type. */
static bool add_term(const dpo *d, const char *text, size_t length, sbp_value *sum) {
    size_t name = 0;
    while (name < length && text[name] != ':')
        name++;
    for (int32_t i = 0; i < SBP_COUNT(types); i++) {
        if (strlen(types[i].name) != name || memcmp(types[i].name, text, name) != 0)
            continue;
        sbp_value term = types[i].build(d);
        if (name < length) {
            char *end;
            double weight = strtod(text + name + 1, &end);
            if (end != text + length || name + 1 == length || !(weight > 0 && weight < 1e9))
                return false;
            term = op(d, SBP_OP_mul, term, number(d, weight));
        }
        *sum = *sum == SBP_NO_VALUE ? term : op(d, SBP_OP_add, *sum, term);
        return true;
    }
    return false;
}

static sbp_value loss_of(const dpo *d) {
    const char *at = d->p.o->loss_type ? d->p.o->loss_type : "sigmoid";
    sbp_value sum = SBP_NO_VALUE;
    for (bool more = true; more; at++) {
        size_t length = strcspn(at, "+");
        if (!add_term(d, at, length, &sum)) {
            sbp_objective_refuse(
                d->p.o, "dpo",
                "sigmoid, hinge, ipo, sigmoid_norm, robust, cdpo, apo_zero, apo_down, sppo_hard, "
                "sft; several joined by '+', each with ':WEIGHT' behind it if it has one");
            return sum;
        }
        at += length;
        more = *at == '+';
    }
    return sum;
}

void sbp_objective_dpo(sbp_objective *o) {
    dpo d = {.p = sbp_pairs_of(o)};
    d.gain = op(&d, SBP_OP_sub, d.p.won, sbp_objective_group(o, SBP_DATA_REF_SUM, SBP_PART_CHOSEN));
    d.loss = op(&d, SBP_OP_sub, d.p.lost, sbp_objective_group(o, SBP_DATA_REF_SUM, SBP_PART_REJECTED));
    d.margin = op(&d, SBP_OP_sub, d.gain, d.loss);
    sbp_pairs_mean(&d.p, "loss", loss_of(&d));
    sbp_value gain = op(&d, SBP_OP_mul, d.gain, beta(&d)), loss = op(&d, SBP_OP_mul, d.loss, beta(&d));
    sbp_pairs_metrics(&d.p, gain, loss, d.p.won, d.p.lost);
}
