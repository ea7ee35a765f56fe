/* objective_grpo.c: group relative policy optimization and what is like it (OBJECTIVES.md, "GRPO"; TRL 1.16's
 * grpo_trainer and rloo_trainer).
 *
 * m: row input weight, 1 where the label was written by the model; A: row input advantage; per row
 *   w = logp - logp^old                  logp^old is logp itself, without gradient, where rows carry none
 *   rho = exp(w), or, with importance by sequence, exp(sum of m w over the document / |y|), the same in all
 *         its rows
 *   l = - min(min(rho, delta) A, clip(rho, 1 - epsilon, 1 + epsilon_high) A) + beta k
 *   k = rho (exp(d) - d - 1), d = logp^ref - logp
 * A row contributes f l, f without gradient:
 *   dapo       f = m / labels             (all counted tokens of the step)
 *   grpo       f = m / (|y| documents)    the mean over sequences of means over tokens
 *   dr_grpo    f = m / (documents max_completion_length)
 *   gspo       as grpo, importance by sequence
 *   luspo      f = m / documents, importance by sequence
 *   cispo      l = - sg(min(rho, epsilon_high)) A logp + beta k, f as dapo
 *   sapo       l = - (4 / T) sigmoid(T (rho - 1)) A + beta k, T: sapo_temperature_pos for A > 0, else
 *              sapo_temperature_neg; f as grpo
 *   reinforce  l = - A logp, f as dapo
 * Of the data: weight, advantage, doc.labels (|y|), doc, old_logps and ref_logps where there are some; of the
 * step labels, docs. */
#include "frontends/objectives/objective.h"

#include <string.h>

typedef enum averaging { OF_TOKENS, OF_SEQUENCES, OF_FIXED_LENGTH, OF_SUMS } averaging;
typedef enum term { CLIPPED, CAPPED, SOFT, PLAIN } term;

static const struct {
    const char *name;
    averaging mean;
    term term;
    bool by_sequence;
} types[] = {
    {"dapo", OF_TOKENS, CLIPPED, false},
    {"grpo", OF_SEQUENCES, CLIPPED, false},
    {"dr_grpo", OF_FIXED_LENGTH, CLIPPED, false},
    {"gspo", OF_SEQUENCES, CLIPPED, true},
    {"luspo", OF_SUMS, CLIPPED, true},
    {"cispo", OF_TOKENS, CAPPED, false},
    {"sapo", OF_SEQUENCES, SOFT, false},
    {"reinforce", OF_TOKENS, PLAIN, false},
};

typedef struct grpo {
    sbp_objective *o;
    int32_t type;
    sbp_value weight, advantage, rho; /* [T] */
    sbp_value log_ratio;              /* [T] w */
} grpo;

static sbp_value op(const grpo *g, sbp_opcode code, sbp_value a, sbp_value b) {
    return sbp_build2(g->o->builder, code, a, b);
}

static sbp_value one(const grpo *g, sbp_opcode code, sbp_value x) {
    return sbp_build1(g->o->builder, code, x);
}

static sbp_value number(const grpo *g, double value) {
    return sbp_objective_number(g->o, value, g->o->logp);
}

static sbp_value plus(const grpo *g, sbp_value x, double value) {
    return op(g, SBP_OP_add, x, number(g, value));
}

static sbp_value setting(const grpo *g, const char *name, double fallback) {
    return sbp_objective_setting(g->o, name, fallback, g->o->logp);
}

/* Log-probabilities of the rows, or the policy's own without gradient where there are none. */
static sbp_value given_logps(const grpo *g, const char *has, const char *name) {
    sbp_value there = sbp_objective_row(g->o, has), given = sbp_objective_row(g->o, name);
    sbp_value own = one(g, SBP_OP_stop_gradient, g->o->logp), zero = number(g, 0);
    return sbp_build3(g->o->builder, SBP_OP_select, op(g, SBP_OP_lt, zero, there), given, own);
}

/* rho, from w. */
static sbp_value ratio(const grpo *g, bool by_sequence) {
    if (!by_sequence)
        return one(g, SBP_OP_exp, g->log_ratio);
    sbp_value document = sbp_objective_index(g->o, "doc");
    sbp_value counted = op(g, SBP_OP_mul, g->weight, g->log_ratio);
    sbp_value sum = sbp_objective_group_sum(g->o, counted, document);
    sbp_value labels = sbp_objective_group_sum(g->o, g->weight, document);
    labels = op(g, SBP_OP_max, labels, sbp_objective_number(g->o, 1, labels));
    sbp_value log_mean = op(g, SBP_OP_div, sum, labels);
    return sbp_objective_of_group(g->o, one(g, SBP_OP_exp, log_mean), document);
}

/* A setting, or another value where it is negative. */
static sbp_value setting_or(const grpo *g, const char *name, sbp_value otherwise) {
    sbp_value x = setting(g, name, -1), zero = number(g, 0);
    return sbp_build3(g->o->builder, SBP_OP_select, op(g, SBP_OP_lt, x, zero), otherwise, x);
}

/* min(rho, delta) */
static sbp_value bounded(const grpo *g) {
    sbp_value most = setting_or(g, "delta", number(g, 1e30));
    return op(g, SBP_OP_min, g->rho, most);
}

/* - min(min(rho, delta) A, clip(rho) A) */
static sbp_value clipped(const grpo *g, sbp_value low, sbp_value high) {
    sbp_value inside = op(g, SBP_OP_max, g->rho, low);
    inside = op(g, SBP_OP_min, inside, high);
    sbp_value free = op(g, SBP_OP_mul, bounded(g), g->advantage);
    sbp_value bound = op(g, SBP_OP_mul, inside, g->advantage);
    return one(g, SBP_OP_neg, op(g, SBP_OP_min, free, bound));
}

/* - sg(factor) A logp */
static sbp_value weighted(const grpo *g, sbp_value factor) {
    sbp_value x = op(g, SBP_OP_mul, g->advantage, g->o->logp);
    if (factor != SBP_NO_VALUE)
        x = op(g, SBP_OP_mul, x, one(g, SBP_OP_stop_gradient, factor));
    return one(g, SBP_OP_neg, x);
}

static sbp_value soft(const grpo *g) {
    sbp_value zero = number(g, 0);
    sbp_value good = op(g, SBP_OP_lt, zero, g->advantage);
    sbp_value up = setting(g, "sapo_temperature_pos", 1), down = setting(g, "sapo_temperature_neg", 1.05);
    sbp_value t = sbp_build3(g->o->builder, SBP_OP_select, good, up, down);
    sbp_value x = op(g, SBP_OP_mul, t, plus(g, g->rho, -1));
    x = op(g, SBP_OP_mul, one(g, SBP_OP_sigmoid, x), number(g, -4));
    return op(g, SBP_OP_mul, op(g, SBP_OP_div, x, t), g->advantage);
}

/* f */
static sbp_value share(const grpo *g, averaging mean) {
    sbp_objective *o = g->o;
    if (mean == OF_TOKENS)
        return op(g, SBP_OP_div, g->weight, sbp_objective_scalar(o, "labels"));
    sbp_value f = op(g, SBP_OP_div, g->weight, sbp_objective_scalar(o, "docs"));
    if (mean == OF_SEQUENCES) {
        sbp_value labels = sbp_objective_row(o, "doc.labels");
        f = op(g, SBP_OP_div, f, op(g, SBP_OP_max, labels, number(g, 1)));
    } else if (mean == OF_FIXED_LENGTH) {
        f = op(g, SBP_OP_div, f, setting(g, "max_completion_length", 512));
    }
    return f;
}

/* k */
static sbp_value divergence(const grpo *g) {
    sbp_value ref = given_logps(g, "has.ref_logps", "ref_logps");
    sbp_value d = op(g, SBP_OP_sub, ref, g->o->logp), e = one(g, SBP_OP_exp, d);
    sbp_value k3 = plus(g, op(g, SBP_OP_sub, e, d), -1);
    return op(g, SBP_OP_mul, g->rho, k3);
}

static void clip_metrics(const grpo *g, sbp_value counted, sbp_value low, sbp_value high) {
    sbp_objective *o = g->o;
    sbp_value zero = number(g, 0), rho = bounded(g);
    sbp_value bad = sbp_objective_less(o, g->advantage, zero),
              good = sbp_objective_less(o, zero, g->advantage);
    sbp_value below = op(g, SBP_OP_mul, sbp_objective_less(o, rho, low), bad);
    sbp_value above = op(g, SBP_OP_mul, sbp_objective_less(o, high, rho), good);
    sbp_objective_result(o, "clip_ratio/low_mean", op(g, SBP_OP_mul, counted, below));
    sbp_objective_result(o, "clip_ratio/high_mean", op(g, SBP_OP_mul, counted, above));
    sbp_value region = op(g, SBP_OP_add, below, above);
    sbp_objective_result(o, "clip_ratio/region_mean", op(g, SBP_OP_mul, counted, region));
}

static int32_t find_type(sbp_objective *o) {
    const char *wanted = o->loss_type ? o->loss_type : "dapo";
    for (int32_t i = 0; i < SBP_COUNT(types); i++)
        if (strcmp(types[i].name, wanted) == 0)
            return i;
    sbp_objective_refuse(o, "grpo", "dapo, grpo, dr_grpo, gspo, luspo, cispo, sapo, reinforce");
    return 0;
}

void sbp_objective_grpo(sbp_objective *o) {
    grpo g = {.o = o,
              .type = find_type(o),
              .weight = sbp_objective_row(o, "weight"),
              .advantage = sbp_objective_row(o, "advantage")};
    sbp_value old = given_logps(&g, "has.old_logps", "old_logps");
    g.log_ratio = op(&g, SBP_OP_sub, o->logp, old);
    g.rho = ratio(&g, o->by_sequence || types[g.type].by_sequence);
    sbp_value low = setting(&g, "epsilon", 0.2), high = setting_or(&g, "epsilon_high", low);
    sbp_value l = SBP_NO_VALUE;
    low = plus(&g, one(&g, SBP_OP_neg, low), 1);
    switch (types[g.type].term) {
    case CLIPPED:
        l = clipped(&g, low, plus(&g, high, 1));
        break;
    case CAPPED:
        l = weighted(&g, op(&g, SBP_OP_min, g.rho, high));
        break;
    case SOFT:
        l = soft(&g);
        break;
    case PLAIN:
        l = weighted(&g, SBP_NO_VALUE);
        break;
    }
    sbp_value k = divergence(&g);
    l = op(&g, SBP_OP_add, l, op(&g, SBP_OP_mul, k, setting(&g, "beta", 0)));
    sbp_objective_result(o, "loss", op(&g, SBP_OP_mul, l, share(&g, types[g.type].mean)));
    sbp_value counted = share(&g, OF_TOKENS);
    sbp_objective_result(o, "entropy", op(&g, SBP_OP_mul, counted, o->entropy));
    sbp_objective_result(o, "kl", op(&g, SBP_OP_mul, counted, k));
    sbp_objective_result(o, "ratio_mean", op(&g, SBP_OP_mul, counted, g.rho));
    if (types[g.type].term == CLIPPED)
        clip_metrics(&g, counted, low, plus(&g, high, 1));
}
