/* objective_kto.c: unpaired preferences (TRL 1.16's kto_trainer).
 *
 * A document is an answer behind its prompt, wanted (y = 1) or not (y = 0). Per document [S]:
 *   r = sum over the completion's rows of logp - the same by the reference
 *   z = max(0, mean over the documents of the step of log-probabilities of the answer of the document before
 *       it behind the prompt of this one, less those by the reference)          a number of the step
 *   kto                 1 - sigmoid(beta (r - z)) for wanted ones, else 1 - sigmoid(beta (z - r))
 *   apo_zero_unpaired   the same with z = 0
 * and the loss is the mean over the documents of the step, weighed by desirable_weight or undesirable_weight.
 * Means over wanted documents, or over the others, are no number where there are none.
 *
 * Columns of the data: weight, doc; per document: wanted, ref_logps_sum; scalars of the step: docs, labels,
 * mismatched.logps, mismatched.ref_logps. */
#include <string.h>

#include "frontends/objectives/objective.h"

typedef struct kto {
    sbp_objective *o;
    sbp_value weight;         /* [T] */
    sbp_value logps, gain;    /* [S] the sum of logp; r */
    sbp_value wanted, others; /* [S] y, 1 - y */
    sbp_value docs;           /* documents of the step */
} kto;

static sbp_value op(const kto *k, sbp_opcode code, sbp_value a, sbp_value b) {
    return sbp_build2(k->o->builder, code, a, b);
}

static sbp_value setting(const kto *k, sbp_setting_id id, double fallback) {
    return sbp_objective_setting(k->o, id, fallback, k->logps);
}

static sbp_value number(const kto *k, double value) {
    return sbp_objective_number(k->o, value, k->logps);
}

/* How many documents of the step are wanted, and how many are not. */
static void count(sbp_objective *o) {
    sbp_objective *p = sbp_objective_prepare(o);
    sbp_value wanted = sbp_objective_row(p, SBP_DATA_WANTED), position = sbp_objective_row(p, SBP_DATA_POS);
    sbp_value one = sbp_objective_number(p, 1, wanted);
    sbp_value first = sbp_objective_less(p, position, one); /* rows that begin a document */
    wanted = sbp_build2(p->builder, SBP_OP_mul, wanted, first);
    sbp_value others = sbp_build2(p->builder, SBP_OP_sub, first, wanted);
    const sbp_attr rank = sbp_attr_int("rank", 0);
    wanted = sbp_build(p->builder, SBP_OP_sum_rows, NULL, &wanted, 1, &rank, 1, NULL);
    others = sbp_build(p->builder, SBP_OP_sum_rows, NULL, &others, 1, &rank, 1, NULL);
    sbp_objective_prepared(p, "count/chosen", wanted);
    sbp_objective_prepared(p, "count/rejected", others);
}

static kto read_documents(sbp_objective *o) {
    kto k = {.o = o, .weight = sbp_objective_row(o, SBP_DATA_WEIGHT)};
    sbp_value document = sbp_objective_index(o, SBP_DATA_DOC),
              ref = sbp_objective_group(o, SBP_DATA_REF_SUM, SBP_PART_COUNT);
    k.logps = sbp_objective_group_sum(o, op(&k, SBP_OP_mul, k.weight, o->logp), document);
    k.gain = op(&k, SBP_OP_sub, k.logps, ref);
    k.wanted = sbp_objective_group(o, SBP_DATA_WANTED, SBP_PART_COUNT);
    k.others = op(&k, SBP_OP_sub, number(&k, 1), k.wanted);
    k.docs = sbp_objective_wide_total(o, SBP_TOTAL_DOCS, SBP_PART_COUNT);
    return k;
}

/* z */
static sbp_value divergence(const kto *k) {
    sbp_value by_policy = sbp_build_scalar(k->o->builder, sbp_scalar_names[SBP_SCALAR_MISMATCHED_LOGPS]);
    sbp_value by_reference =
        sbp_build_scalar(k->o->builder, sbp_scalar_names[SBP_SCALAR_MISMATCHED_REF_LOGPS]);
    sbp_value mean = op(k, SBP_OP_div, op(k, SBP_OP_sub, by_policy, by_reference), k->docs);
    return op(k, SBP_OP_max, mean, number(k, 0));
}

/* f r for wanted documents + g r for the others, with two numbers f and g. */
static sbp_value weigh(const kto *k, sbp_value f, sbp_value g) {
    sbp_value wanted = op(k, SBP_OP_mul, k->wanted, f);
    return op(k, SBP_OP_add, wanted, op(k, SBP_OP_mul, k->others, g));
}

/* sigmoid(- beta x) for wanted documents, sigmoid(beta x) for the others: 1 less sigmoid of the other sign.
 */
static sbp_value loss_of(const kto *k, sbp_value x) {
    sbp_value minus = number(k, -1), sign = weigh(k, minus, number(k, 1));
    x = op(k, SBP_OP_mul, op(k, SBP_OP_mul, x, setting(k, SBP_SETTING_BETA, 0.1)), sign);
    sbp_value desirable = setting(k, SBP_SETTING_DESIRABLE_WEIGHT, 1);
    sbp_value weight = weigh(k, desirable, setting(k, SBP_SETTING_UNDESIRABLE_WEIGHT, 1));
    return op(k, SBP_OP_mul, weight, sbp_build1(k->o->builder, SBP_OP_sigmoid, x));
}

/* The mean over documents that are wanted, or are not; returns its term [S]. */
static sbp_value add_mean(const kto *k, const char *name, sbp_value of, const char *how_many, sbp_value x) {
    sbp_value share = op(k, SBP_OP_div, of, sbp_build_scalar(k->o->builder, how_many));
    sbp_value term = op(k, SBP_OP_mul, share, x);
    sbp_objective_result(k->o, name, term);
    return term;
}

static void add_metrics(const kto *k) {
    sbp_objective *o = k->o;
    sbp_value logps = sbp_build1(o->builder, SBP_OP_stop_gradient, k->logps); /* 0 times no number is none */
    sbp_value reward = sbp_build1(o->builder, SBP_OP_stop_gradient, k->gain);
    reward = op(k, SBP_OP_mul, reward, setting(k, SBP_SETTING_BETA, 0.1));
    sbp_value chosen = add_mean(k, "rewards/chosen", k->wanted, "count/chosen", reward);
    sbp_value rejected = add_mean(k, "rewards/rejected", k->others, "count/rejected", reward);
    sbp_objective_result(o, "rewards/margins", op(k, SBP_OP_sub, chosen, rejected));
    add_mean(k, "logps/chosen", k->wanted, "count/chosen", logps);
    add_mean(k, "logps/rejected", k->others, "count/rejected", logps);
    sbp_value share = op(k, SBP_OP_div, k->weight, sbp_objective_total(o, SBP_TOTAL_LABELS));
    sbp_objective_result(o, "entropy", op(k, SBP_OP_mul, share, o->entropy));
}

void sbp_objective_kto(sbp_objective *o) {
    bool compares = !o->loss_type || strcmp(o->loss_type, "kto") == 0;
    if (!compares && strcmp(o->loss_type, "apo_zero_unpaired") != 0)
        sbp_objective_refuse(o, "kto", "kto, apo_zero_unpaired");
    o->counted = sbp_data_columns[SBP_DATA_WEIGHT].name;
    count(o);
    kto k = read_documents(o);
    sbp_value x = k.gain, kl = SBP_NO_VALUE;
    if (compares) {
        sbp_value z = divergence(&k), share = op(&k, SBP_OP_div, z, k.docs);
        x = op(&k, SBP_OP_sub, x, z);
        kl = weigh(&k, share, share);
    }
    sbp_objective_result(o, "loss", op(&k, SBP_OP_div, loss_of(&k, x), k.docs));
    if (compares)
        sbp_objective_result(o, "kl", kl);
    add_metrics(&k);
}
