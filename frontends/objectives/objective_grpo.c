/* objective_grpo.c: group relative policy optimization and what is like it (TRL 1.16's grpo_trainer and
 * rloo_trainer).
 *
 * m: row input weight, 1 where the label was written by the model; A: row input advantage; per row
 *   w = logp - logp^old    logp^old is that of the sampler where rows carry none, and logp itself,
 *                          without gradient, where they have neither
 *   rho = exp(w), or, with importance by sequence, exp(sum of m w over the document / |y|), the same in all
 *                          its rows
 *   l = - min(min(rho, delta) A, clip(rho, 1 - epsilon, 1 + epsilon_high) A) c + beta k
 *   k = rho (exp(d) - d - 1), d = logp^ref - logp; with use_bias_correction_kl off, without rho
 *   c = 1; where rows have both logp^old and the sampler's logp^s: r = exp(logp^old - logp^s), or the
 *       product of these over the document (sequence_..): .._truncate r between two bounds,
 *       .._mask 0 outside
 * A row contributes f l, f without gradient:
 *   dapo       f = m / labels             (all counted tokens of the step)
 *   bnpo       f = m / (labels of the micro-batch x micro-batches): depends on the split, as in TRL
 *   grpo       f = m / (|y| documents)    the mean over sequences of means over tokens
 *   dr_grpo    f = m / (documents max_completion_length)
 *   gspo       as grpo, importance by sequence
 *   luspo      f = m / documents, importance by sequence
 *   cispo      l = - sg(min(rho, epsilon_high)) A logp + beta k, f as dapo
 *   sapo       l = - (4 / T) sigmoid(T (rho - 1)) A + beta k, T: sapo_temperature_pos for A > 0, else
 *              sapo_temperature_neg; f as grpo
 *   vespo      l = - sg(phi) A logp + beta k, f as dapo; phi = exp(b + a log u - b u), with a, b =
 *              vespo_k, vespo_lambda of the sign of A, log u = sum of m clip(w, +-20) over the document,
 *              and of m log c, between log 1e-8 and 20; c only by tokens
 *   reinforce  l = - A logp, f as dapo
 * With an entropy_coef: - entropy_coef (mean entropy of the counted tokens of the step) for all of them.
 *
 * Columns of the data: weight, advantage, doc.labels (|y|), doc, old_logps, sampling_logps and ref_logps
 * where there are some; scalars of the step: labels, docs; of a micro-batch: part.labels, parts. */
#include "frontends/objectives/advantages.h"
#include "frontends/objectives/clipping.h"

#include <math.h>
#include <string.h>

typedef enum averaging { OF_TOKENS, OF_PARTS, OF_SEQUENCES, OF_FIXED_LENGTH, OF_SUMS } averaging;
typedef enum term { CLIPPED, CAPPED, SOFT, GAMMA, PLAIN } term;

static const struct {
    const char *name;
    averaging mean;
    term term;
    bool by_sequence;
} types[] = {
    {"dapo", OF_TOKENS, CLIPPED, false},   {"grpo", OF_SEQUENCES, CLIPPED, false},
    {"bnpo", OF_PARTS, CLIPPED, false},    {"dr_grpo", OF_FIXED_LENGTH, CLIPPED, false},
    {"gspo", OF_SEQUENCES, CLIPPED, true}, {"luspo", OF_SUMS, CLIPPED, true},
    {"cispo", OF_TOKENS, CAPPED, false},   {"sapo", OF_SEQUENCES, SOFT, false},
    {"vespo", OF_TOKENS, GAMMA, false},    {"reinforce", OF_TOKENS, PLAIN, false},
};

typedef struct grpo {
    sbp_objective *o;
    int32_t type;
    sbp_value weight, advantage, rho; /* [T] */
    sbp_value log_ratio;              /* [T] w */
    sbp_value correction;             /* [T] c; SBP_NO_VALUE: 1 */
    sbp_clipping clip;                /* what the term was made of */
    sbp_value cap, phi;
} grpo;

/* How the sampler's log-probabilities are made up for (vllm_importance_sampling_mode). */
static const struct {
    const char *name;
    bool by_sequence, masks;
} corrections[] = {
    {"sequence_mask", true, true}, /* what TRL takes */
    {"sequence_truncate", true, false},
    {"token_mask", false, true},
    {"token_truncate", false, false},
};

static sbp_value op(const grpo *g, sbp_opcode code, sbp_value a, sbp_value b) {
    return sbp_build2(g->o->builder, code, a, b);
}

static sbp_value one(const grpo *g, sbp_opcode code, sbp_value x) {
    return sbp_build1(g->o->builder, code, x);
}

static sbp_value number(const grpo *g, double value) {
    return sbp_objective_number(g->o, value, g->weight);
}

static sbp_value plus(const grpo *g, sbp_value x, double value) {
    return op(g, SBP_OP_add, x, number(g, value));
}

static sbp_value setting(const grpo *g, sbp_setting_id id, double fallback) {
    return sbp_objective_setting(g->o, id, fallback, g->weight);
}

/* Log-probabilities of the rows, or others where there are none. */
static sbp_value given_or(const grpo *g, sbp_column_id column, sbp_value otherwise) {
    sbp_value there = sbp_objective_has(g->o, column), given = sbp_objective_row(g->o, column);
    sbp_value zero = number(g, 0);
    return sbp_build3(g->o->builder, SBP_OP_select, op(g, SBP_OP_lt, zero, there), given, otherwise);
}

static sbp_value own_logps(const grpo *g) {
    return one(g, SBP_OP_stop_gradient, g->o->logp);
}

static sbp_value old_logps(const grpo *g) {
    sbp_value sampled = given_or(g, SBP_DATA_SAMPLING_LOGPS, own_logps(g));
    return given_or(g, SBP_DATA_OLD_LOGPS, sampled);
}

/* Sums of m x over documents, [S]; what documents have, in all their rows. */
static sbp_value over_documents(const grpo *g, sbp_value x) {
    sbp_value document = sbp_objective_index(g->o, SBP_DATA_DOC);
    return sbp_objective_group_sum(g->o, op(g, SBP_OP_mul, g->weight, x), document);
}

static sbp_value of_document(const grpo *g, sbp_value x) {
    return sbp_objective_of_group(g->o, x, sbp_objective_index(g->o, SBP_DATA_DOC));
}

/* rho, from w. */
static sbp_value ratio(const grpo *g, bool by_sequence) {
    if (!by_sequence)
        return one(g, SBP_OP_exp, g->log_ratio);
    sbp_value document = sbp_objective_index(g->o, SBP_DATA_DOC);
    sbp_value sum = over_documents(g, g->log_ratio);
    sbp_value labels = sbp_objective_group_sum(g->o, g->weight, document);
    labels = op(g, SBP_OP_max, labels, sbp_objective_number(g->o, 1, labels));
    return of_document(g, one(g, SBP_OP_exp, op(g, SBP_OP_div, sum, labels)));
}

/* min(rho, delta) */
static sbp_value bounded(const grpo *g) {
    sbp_value most = sbp_clipping_setting_or(g->o, SBP_SETTING_DELTA, number(g, 1e30));
    return op(g, SBP_OP_min, g->rho, most);
}

/* logp^old - logp^s, 0 where one of them is missing */
static sbp_value from_sampler(const grpo *g) {
    sbp_objective *o = g->o;
    sbp_value has_old = sbp_objective_has(o, SBP_DATA_OLD_LOGPS);
    sbp_value has_sampling = sbp_objective_has(o, SBP_DATA_SAMPLING_LOGPS);
    sbp_value old = sbp_objective_row(o, SBP_DATA_OLD_LOGPS),
              sampling = sbp_objective_row(o, SBP_DATA_SAMPLING_LOGPS);
    sbp_value both = op(g, SBP_OP_mul, has_old, has_sampling);
    return op(g, SBP_OP_mul, both, op(g, SBP_OP_sub, old, sampling));
}

static int32_t find_correction(const grpo *g) {
    const char *wanted = g->o->request.sampling_mode;
    bool by_tokens = types[g->type].term == GAMMA;
    for (int32_t i = 0; wanted && i < SBP_COUNT(corrections); i++)
        if (strcmp(corrections[i].name, wanted) == 0 && !(by_tokens && corrections[i].by_sequence))
            return i;
    if (wanted && g->o->builder->status == SBP_OK)
        g->o->builder->status = sbp_fail(g->o->builder->diag, SBP_USAGE,
                                         "--loss vllm_importance_sampling_mode=%s: there are%s token_mask, "
                                         "token_truncate%s",
                                         wanted, by_tokens ? "" : " sequence_mask, sequence_truncate,",
                                         by_tokens ? " with --loss-type vespo" : "");
    return by_tokens ? SBP_COUNT(corrections) - 1 : 0;
}

/* c */
static sbp_value correction(const grpo *g) {
    if (g->o->request.sampling_ignored)
        return SBP_NO_VALUE;
    int32_t mode = find_correction(g);
    sbp_value zero = number(g, 0), log_ratio = from_sampler(g);
    sbp_value r;
    if (corrections[mode].by_sequence)
        r = of_document(g, one(g, SBP_OP_exp, over_documents(g, log_ratio)));
    else
        r = one(g, SBP_OP_exp, op(g, SBP_OP_mul, g->weight, log_ratio));
    sbp_value least = setting(g, SBP_SETTING_VLLM_IMPORTANCE_SAMPLING_CLIP_MIN, -1);
    sbp_value most = setting(g, SBP_SETTING_VLLM_IMPORTANCE_SAMPLING_CLIP_MAX, 3);
    most = sbp_build3(g->o->builder, SBP_OP_select, op(g, SBP_OP_lt, most, zero), number(g, 1e30), most);
    if (!corrections[mode].masks)
        return op(g, SBP_OP_min, op(g, SBP_OP_max, r, least), most);
    sbp_value below = op(g, SBP_OP_lt, r, least), above = op(g, SBP_OP_lt, most, r);
    sbp_value outside = op(g, SBP_OP_or, below, above);
    return sbp_build3(g->o->builder, SBP_OP_select, outside, zero, r);
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
    sbp_value up = setting(g, SBP_SETTING_SAPO_TEMPERATURE_POS, 1),
              down = setting(g, SBP_SETTING_SAPO_TEMPERATURE_NEG, 1.05);
    sbp_value t = sbp_build3(g->o->builder, SBP_OP_select, good, up, down);
    sbp_value x = op(g, SBP_OP_mul, t, plus(g, g->rho, -1));
    x = op(g, SBP_OP_mul, one(g, SBP_OP_sigmoid, x), number(g, -4));
    return op(g, SBP_OP_mul, op(g, SBP_OP_div, x, t), g->advantage);
}

static sbp_value by_sign(const grpo *g, sbp_setting_id good, double g_value, sbp_setting_id bad,
                         double b_value) {
    sbp_value zero = number(g, 0), below = op(g, SBP_OP_lt, g->advantage, zero);
    sbp_value a = setting(g, good, g_value), b = setting(g, bad, b_value);
    return sbp_build3(g->o->builder, SBP_OP_select, below, b, a);
}

static sbp_value between(const grpo *g, sbp_value x, double least, double most) {
    x = op(g, SBP_OP_max, x, sbp_objective_number(g->o, least, x));
    return op(g, SBP_OP_min, x, sbp_objective_number(g->o, most, x));
}

/* phi */
static sbp_value gamma_weight(const grpo *g) {
    static const double least = 1e-8;
    sbp_value log_u = between(g, g->log_ratio, -20, 20);
    if (g->correction != SBP_NO_VALUE) {
        sbp_value c = op(g, SBP_OP_max, g->correction, number(g, least));
        c = op(g, SBP_OP_min, one(g, SBP_OP_log, c), number(g, 20));
        log_u = op(g, SBP_OP_add, log_u, c);
    }
    log_u = of_document(g, between(g, over_documents(g, log_u), log(least), 20));
    sbp_value a = by_sign(g, SBP_SETTING_VESPO_K_POS, 2, SBP_SETTING_VESPO_K_NEG, 3);
    sbp_value b = by_sign(g, SBP_SETTING_VESPO_LAMBDA_POS, 3, SBP_SETTING_VESPO_LAMBDA_NEG, 2);
    b = op(g, SBP_OP_max, b, number(g, 1e-4));
    sbp_value up = op(g, SBP_OP_mul, a, log_u), down = op(g, SBP_OP_mul, b, one(g, SBP_OP_exp, log_u));
    up = op(g, SBP_OP_sub, op(g, SBP_OP_add, b, up), down);
    return one(g, SBP_OP_exp, up);
}

/* f */
static sbp_value share(const grpo *g, averaging mean) {
    sbp_objective *o = g->o;
    if (mean == OF_TOKENS)
        return op(g, SBP_OP_div, g->weight, sbp_objective_total(o, SBP_TOTAL_LABELS));
    if (mean == OF_PARTS) {
        sbp_value f = op(g, SBP_OP_div, g->weight, sbp_objective_scalar(o, SBP_SCALAR_PART_LABELS));
        return op(g, SBP_OP_div, f, sbp_objective_scalar(o, SBP_SCALAR_PARTS));
    }
    sbp_value f = op(g, SBP_OP_div, g->weight, sbp_objective_total(o, SBP_TOTAL_DOCS));
    if (mean == OF_SEQUENCES) {
        sbp_value labels = sbp_objective_row(o, SBP_DATA_DOC_LABELS);
        f = op(g, SBP_OP_div, f, op(g, SBP_OP_max, labels, number(g, 1)));
    } else if (mean == OF_FIXED_LENGTH) {
        f = op(g, SBP_OP_div, f, setting(g, SBP_SETTING_MAX_COMPLETION_LENGTH, 512));
    }
    return f;
}

/* k */
static sbp_value divergence(const grpo *g) {
    sbp_value ref = given_or(g, SBP_DATA_REF_LOGPS, own_logps(g));
    sbp_value d = op(g, SBP_OP_sub, ref, g->o->logp), e = one(g, SBP_OP_exp, d);
    sbp_value k3 = plus(g, op(g, SBP_OP_sub, e, d), -1), zero = number(g, 0);
    sbp_value corrected = setting(g, SBP_SETTING_USE_BIAS_CORRECTION_KL, 1);
    corrected = op(g, SBP_OP_lt, zero, corrected);
    return sbp_build3(g->o->builder, SBP_OP_select, corrected, op(g, SBP_OP_mul, g->rho, k3), k3);
}

static sbp_value sum(const grpo *g, sbp_value x) {
    return sbp_build(g->o->builder, SBP_OP_sum_rows, NULL, &x, 1, (sbp_attr[]){sbp_attr_int("rank", 0)}, 1,
                     NULL);
}

/* x where the mask is 1, no number where it is 0. */
static sbp_value only(const grpo *g, sbp_value x, sbp_value mask) {
    return op(g, SBP_OP_div, op(g, SBP_OP_mul, x, mask), mask);
}

/* How far the sampler's log-probabilities are off, of tokens that have them, and what is made up for it: in
 * @prepare, as greatest and least are not sums. */
static void prepare_sampling(const sbp_objective *loss, int32_t type) {
    sbp_objective *p = loss->prepare;
    grpo g = {.o = p, .type = type, .weight = sbp_objective_row(p, SBP_DATA_WEIGHT)};
    sbp_value has_old = sbp_objective_has(p, SBP_DATA_OLD_LOGPS);
    sbp_value known = op(&g, SBP_OP_mul, has_old, sbp_objective_has(p, SBP_DATA_SAMPLING_LOGPS));
    known = op(&g, SBP_OP_mul, known, g.weight);
    sbp_value apart = op(&g, SBP_OP_mul, one(&g, SBP_OP_abs, from_sampler(&g)), known);
    sbp_value total = sum(&g, apart), count = sum(&g, known);
    count = op(&g, SBP_OP_max, count, number(&g, 1));
    sbp_objective_prepared(p, "sampling/sampling_logp_difference/mean", op(&g, SBP_OP_div, total, count));
    sbp_objective_prepared(p, "sampling/sampling_logp_difference/max", apart);
    sbp_value r = correction(&g);
    r = only(&g, r, g.weight);
    sbp_objective_prepared(p, "sampling/importance_sampling_ratio/min", r);
    sbp_objective_prepared(p, "sampling/importance_sampling_ratio/max", r);
}

static void sampling_metrics(const grpo *g, sbp_value counted) {
    if (g->correction == SBP_NO_VALUE)
        return;
    prepare_sampling(g->o, g->type);
    sbp_value over =
        corrections[find_correction(g)].by_sequence ? share(g, OF_SEQUENCES) : counted; /* once each */
    sbp_objective_result(g->o, "sampling/importance_sampling_ratio/mean",
                         op(g, SBP_OP_mul, over, g->correction));
    if (corrections[find_correction(g)].by_sequence)
        sbp_objective_result(g->o, "sampling/importance_sampling_ratio/mean", sbp_objective_uncounted(g->o));
}

static int32_t find_type(sbp_objective *o) {
    const char *wanted = o->loss_type ? o->loss_type : "dapo";
    for (int32_t i = 0; i < SBP_COUNT(types); i++)
        if (strcmp(types[i].name, wanted) == 0)
            return i;
    sbp_objective_refuse(o, "grpo",
                         "dapo, grpo, bnpo, dr_grpo, gspo, luspo, cispo, sapo, vespo, reinforce, rloo");
    return 0;
}

/* What a row contributes before f, without c and k. */
static sbp_value policy_term(grpo *g) {
    switch (types[g->type].term) {
    case CLIPPED:
        g->clip = sbp_clipping_of(g->o);
        return sbp_clipping_loss(&g->clip, bounded(g), g->rho, g->advantage);
    case CAPPED:
        g->cap = sbp_clipping_reach(g->o);
        return weighted(g, op(g, SBP_OP_min, g->rho, g->cap));
    case SOFT:
        return soft(g);
    case GAMMA:
        g->phi = one(g, SBP_OP_stop_gradient, gamma_weight(g));
        return weighted(g, g->phi);
    default:
        return weighted(g, SBP_NO_VALUE);
    }
}

static void term_metrics(const grpo *g, sbp_value counted) {
    sbp_objective *o = g->o;
    if (types[g->type].term == CLIPPED)
        sbp_clipping_metrics(&g->clip, counted, bounded(g), g->advantage);
    if (types[g->type].term == CAPPED) {
        sbp_value zero = number(g, 0), above = sbp_objective_less(o, g->cap, g->rho);
        above = op(g, SBP_OP_mul, above, sbp_objective_less(o, zero, g->advantage));
        sbp_objective_result(o, "cispo_clip_ratio", op(g, SBP_OP_mul, counted, above));
    }
    if (types[g->type].term == GAMMA) {
        sbp_objective_result(o, "vespo/phi_seq_mean", op(g, SBP_OP_mul, share(g, OF_SEQUENCES), g->phi));
        sbp_objective_result(o, "vespo/phi_seq_mean", sbp_objective_uncounted(o));
    }
}

/* The entropy bonus, part of the loss; and the loss without it. */
static void add_entropy(const grpo *g, sbp_value counted, sbp_value policy_loss) {
    sbp_objective *o = g->o;
    if (!o->request.entropy_bonus)
        return;
    sbp_value share_of_bonus = op(g, SBP_OP_mul, counted, setting(g, SBP_SETTING_ENTROPY_COEF, 0));
    sbp_value bonus = op(g, SBP_OP_mul, share_of_bonus, o->entropy);
    sbp_objective_result(o, "loss", one(g, SBP_OP_neg, bonus));
    sbp_objective_result(o, "policy_loss", policy_loss);
    sbp_objective_result(o, "entropy_coef", share_of_bonus);
}

void sbp_objective_grpo(sbp_objective *o) {
    if (o->loss_type && strcmp(o->loss_type, "rloo") == 0) {
        sbp_objective_rloo(o);
        return;
    }
    grpo g = {.o = o,
              .type = find_type(o),
              .weight = sbp_objective_row(o, SBP_DATA_WEIGHT),
              .advantage = sbp_objective_row(o, SBP_DATA_ADVANTAGE)};
    sbp_objective_group_advantages(o);
    averaging mean = types[g.type].mean;
    if (types[g.type].term == CAPPED || types[g.type].term == GAMMA)
        o->held = "the importance weight";
    o->counted = sbp_data_columns[SBP_DATA_WEIGHT].name;
    if (mean == OF_PARTS)
        sbp_note(o->builder->diag, "loss type bnpo: loss and gradients depend on how a step is packed into "
                                   "micro-batches; dapo is the same without that");
    g.log_ratio = op(&g, SBP_OP_sub, o->logp, old_logps(&g));
    g.rho = ratio(&g, o->request.by_sequence || types[g.type].by_sequence);
    g.correction = correction(&g);
    sbp_value l = policy_term(&g);
    if (g.correction != SBP_NO_VALUE && types[g.type].term != GAMMA)
        l = op(&g, SBP_OP_mul, l, g.correction);
    sbp_value k = divergence(&g);
    l = op(&g, SBP_OP_add, l, op(&g, SBP_OP_mul, k, setting(&g, SBP_SETTING_BETA, 0)));
    l = op(&g, SBP_OP_mul, l, share(&g, mean));
    sbp_value counted = share(&g, OF_TOKENS);
    sbp_objective_result(o, "loss", l);
    add_entropy(&g, counted, l);
    sbp_objective_result(o, "entropy", op(&g, SBP_OP_mul, counted, o->entropy));
    sbp_objective_result(o, "kl", op(&g, SBP_OP_mul, counted, k));
    sbp_objective_result(o, "ratio_mean", op(&g, SBP_OP_mul, counted, g.rho));
    bool by_sequence = o->request.by_sequence || types[g.type].by_sequence;
    term_metrics(&g, by_sequence ? share(&g, OF_SEQUENCES) : counted); /* each ratio once, as TRL */
    sampling_metrics(&g, counted);
}
