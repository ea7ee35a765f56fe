/* advantages.c: what rewards of the rows of a group say about each (TRL 1.16's grpo_trainer). */
#include "frontends/objectives/advantages.h"

typedef struct rewards {
    sbp_objective *p;    /* of @prepare */
    sbp_value group;     /* [T] index */
    sbp_value has;       /* [T] 1 in documents with a reward */
    sbp_value one;       /* [T] 1 in the first rows of these: a sum over rows is one over rewards */
    sbp_value given;     /* [T] the document's reward */
    sbp_value r;         /* [T] the same less what is paid for distance from the reference */
    sbp_value in_group;  /* [T] rewards of the row's group, at least 1 */
    sbp_value deviation; /* [T] r - mean of the group */
    sbp_value of_group;  /* [T] standard deviation of r in it */
    sbp_value first;     /* [T] 1 in the first rows of documents */
    sbp_value count;     /* rewards of the step */
    sbp_value of_all;    /* standard deviation of those given */
} rewards;

static sbp_value op(const rewards *a, sbp_opcode code, sbp_value x, sbp_value y) {
    return sbp_build2(a->p->builder, code, x, y);
}

static sbp_value number(const rewards *a, double value) {
    return sbp_build_const(a->p->builder, SBP_F64, value);
}

static sbp_value at_least(const rewards *a, sbp_value x, double value) {
    return op(a, SBP_OP_max, x, number(a, value));
}

static sbp_value group_sum(const rewards *a, sbp_value term) {
    return sbp_objective_of_group(a->p, sbp_objective_group_sum(a->p, term, a->group), a->group);
}

static sbp_value sum(const rewards *a, sbp_value term) {
    return sbp_build(a->p->builder, SBP_OP_sum_rows, NULL, &term, 1, (sbp_attr[]){sbp_attr_int("rank", 0)}, 1,
                     NULL);
}

/* sqrt(squares / max(count - 1, 1)) */
static sbp_value spread(const rewards *a, sbp_value squares, sbp_value count) {
    sbp_value free = at_least(a, op(a, SBP_OP_sub, count, number(a, 1)), 1);
    return sbp_build1(a->p->builder, SBP_OP_sqrt, op(a, SBP_OP_div, squares, free));
}

static sbp_value squares(const rewards *a, sbp_value deviation) {
    return op(a, SBP_OP_mul, a->one, op(a, SBP_OP_mul, deviation, deviation));
}

/* x where the value is below the bound, else y. */
static sbp_value below(const rewards *a, sbp_value value, double bound, sbp_value x, sbp_value y) {
    sbp_value less = op(a, SBP_OP_lt, value, number(a, bound));
    return sbp_build3(a->p->builder, SBP_OP_select, less, x, y);
}

static rewards read_rewards(sbp_objective *o) {
    rewards a = {.p = sbp_objective_prepare(o)};
    a.first = sbp_objective_less(a.p, sbp_objective_row(a.p, SBP_DATA_POS), number(&a, 1));
    a.has = sbp_objective_has(a.p, SBP_DATA_REWARD);
    a.group = sbp_objective_index(a.p, SBP_DATA_GROUP);
    a.r = a.given = sbp_objective_row(a.p, SBP_DATA_REWARD);
    a.one = op(&a, SBP_OP_mul, a.has, a.first);
    a.in_group = at_least(&a, group_sum(&a, a.one), 1);
    return a;
}

static void measure(rewards *a) {
    sbp_value mean = op(a, SBP_OP_div, group_sum(a, op(a, SBP_OP_mul, a->one, a->r)), a->in_group);
    a->deviation = op(a, SBP_OP_sub, a->r, mean);
    a->of_group = spread(a, group_sum(a, squares(a, a->deviation)), a->in_group);
    a->count = sum(a, a->one);
    sbp_value all = sum(a, op(a, SBP_OP_mul, a->one, a->given));
    mean = op(a, SBP_OP_div, all, at_least(a, a->count, 1)); /* of no rewards it is read, times 0 */
    a->of_all = spread(a, sum(a, squares(a, op(a, SBP_OP_sub, a->given, mean))), a->count);
    mean = op(a, SBP_OP_div, all, a->count); /* of no rewards not a number, and so is what is reported */
    sbp_objective_prepared(a->p, sbp_data_columns[SBP_DATA_REWARD].name, mean);
    sbp_value nothing = op(a, SBP_OP_mul, mean, number(a, 0));
    sbp_objective_prepared(a->p, "reward_std", op(a, SBP_OP_add, a->of_all, nothing));
}

/* By setting scale_rewards: 0, of the group; 1, of all rewards; 2: none, reported is that of the group. */
static sbp_value by_scale(const rewards *a, sbp_value scale, sbp_value of_group, sbp_value of_all) {
    sbp_value other = below(a, scale, 1.5, of_all, of_group);
    return below(a, scale, 0.5, of_group, other);
}

/* The share of rows, with or without a reward, whose rewards say nothing: their deviation is 0. (TRL: that of
 * one reward among rows without is not a number, and not 0.) Rows that carry an advantage are none of them.
 */
static sbp_value same_rewards(const rewards *a, const sbp_value *scale, sbp_value used) {
    sbp_value none = op(a, SBP_OP_sub, number(a, 1), sbp_objective_has(a->p, SBP_DATA_ADVANTAGE));
    sbp_value of = op(a, SBP_OP_max, op(a, SBP_OP_mul, a->first, none), a->one);
    sbp_value all = sum(a, of), count = a->in_group, rows = group_sum(a, of);
    if (scale) {
        count = by_scale(a, *scale, count, a->count);
        rows = by_scale(a, *scale, rows, all);
    }
    sbp_value alone = sbp_objective_less(a->p, rows, number(a, 1.5));
    sbp_value zero = op(a, SBP_OP_mul, of, sbp_objective_less(a->p, used, number(a, 1e-8)));
    zero = below(a, count, 1.5, op(a, SBP_OP_mul, zero, alone), zero);
    return op(a, SBP_OP_div, sum(a, zero), all);
}

/* The column: what rows carry, else the value, which is of rewards. used: the deviation that says whether
 * rewards say anything; scale: NULL, that of the group. */
static sbp_value finish(const rewards *a, sbp_value value, const sbp_value *scale, sbp_value used) {
    sbp_value given = sbp_objective_row(a->p, SBP_DATA_ADVANTAGE),
              carried = sbp_objective_has(a->p, SBP_DATA_ADVANTAGE);
    value = below(a, carried, 0.5, op(a, SBP_OP_mul, value, a->has), given);
    value = op(a, SBP_OP_mul, value, sbp_objective_one_of(a->p, SBP_DATA_REWARD, SBP_DATA_ADVANTAGE));
    sbp_objective_prepared(a->p, sbp_data_columns[SBP_DATA_ADVANTAGE].name, value);
    sbp_objective_prepared(a->p, "frac_reward_zero_std", same_rewards(a, scale, used));
    sbp_value length = sum(a, sbp_objective_row(a->p, SBP_DATA_WEIGHT));
    length = op(a, SBP_OP_div, length, sbp_objective_total(a->p, SBP_TOTAL_DOCS));
    sbp_objective_prepared(a->p, "completions/mean_length", length);
    return value;
}

void sbp_objective_group_advantages(sbp_objective *o) {
    rewards a = read_rewards(o);
    measure(&a);
    sbp_value scale = sbp_objective_setting(a.p, SBP_SETTING_SCALE_REWARDS, 0, a.r);
    sbp_value used = by_scale(&a, scale, a.of_group, a.of_all);
    sbp_value divisor = op(&a, SBP_OP_add, used, number(&a, 1e-4));
    divisor = below(&a, scale, 1.5, divisor, number(&a, 1));
    finish(&a, op(&a, SBP_OP_div, a.deviation, divisor), &scale, used);
}

/* Takes beta sum of m (logp^old - logp^ref) over the document from its reward. */
static void pay_for_distance(rewards *a) {
    sbp_value document = sbp_objective_index(a->p, SBP_DATA_DOC),
              m = sbp_objective_row(a->p, SBP_DATA_WEIGHT);
    sbp_value old = sbp_objective_row(a->p, SBP_DATA_OLD_LOGPS),
              ref = sbp_objective_row(a->p, SBP_DATA_REF_LOGPS);
    sbp_value kl = op(a, SBP_OP_mul, m, op(a, SBP_OP_sub, old, ref));
    kl = op(a, SBP_OP_mul, kl, sbp_objective_has(a->p, SBP_DATA_REF_LOGPS));
    sbp_objective_prepared(a->p, "kl",
                           op(a, SBP_OP_div, sum(a, kl), sbp_objective_total(a->p, SBP_TOTAL_LABELS)));
    kl = sbp_objective_of_group(a->p, sbp_objective_group_sum(a->p, kl, document), document);
    kl = op(a, SBP_OP_mul, kl, sbp_objective_setting(a->p, SBP_SETTING_BETA, 0.05, kl));
    a->r = op(a, SBP_OP_sub, a->given, kl);
}

/* [T] 1 / documents in the first rows of answers none of whose tokens counts. */
static sbp_value uncounted(sbp_objective *p) {
    sbp_builder *b = p->builder;
    sbp_value position = sbp_objective_row(p, SBP_DATA_POS),
              labels = sbp_objective_row(p, SBP_DATA_DOC_LABELS);
    sbp_value lacks = sbp_objective_less(p, labels, sbp_build_const(b, SBP_F64, 0.5));
    sbp_value first = sbp_objective_less(p, position, sbp_build_const(b, SBP_F64, 1));
    lacks = sbp_build2(b, SBP_OP_mul, lacks, first);
    return sbp_build2(b, SBP_OP_div, lacks, sbp_objective_total(p, SBP_TOTAL_DOCS));
}

/* The sum over all rows of the step, shared out to those that count. */
static sbp_value share_out(sbp_objective *o, const char *name, sbp_value term) {
    sbp_builder *b = o->prepare->builder;
    sbp_value share = sbp_objective_row(o->prepare, SBP_DATA_WEIGHT);
    share = sbp_build2(b, SBP_OP_div, share, sbp_objective_total(o->prepare, SBP_TOTAL_LABELS));
    sbp_value all =
        sbp_build(b, SBP_OP_sum_rows, NULL, &term, 1, (sbp_attr[]){sbp_attr_int("rank", 0)}, 1, NULL);
    sbp_objective_prepared(o->prepare, name, sbp_build2(b, SBP_OP_mul, share, all));
    return sbp_objective_prepared_row(o, name);
}

sbp_value sbp_objective_uncounted(sbp_objective *o) {
    return share_out(o, "uncounted", uncounted(sbp_objective_prepare(o)));
}

/* r' - (sum of the group - r') / (n - 1) = (r' - mean) n / (n - 1) */
sbp_value sbp_objective_left_out_advantages(sbp_objective *o) {
    rewards a = read_rewards(o);
    pay_for_distance(&a);
    measure(&a);
    sbp_value others = at_least(&a, op(&a, SBP_OP_sub, a.in_group, number(&a, 1)), 1);
    sbp_value value = op(&a, SBP_OP_mul, a.deviation, op(&a, SBP_OP_div, a.in_group, others));
    value = finish(&a, value, NULL, a.of_group);
    value = op(&a, SBP_OP_sub, number(&a, 0), value);
    return share_out(o, "uncounted.loss", op(&a, SBP_OP_mul, uncounted(a.p), value));
}
