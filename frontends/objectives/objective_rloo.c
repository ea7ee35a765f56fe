/* objective_rloo.c: --objective grpo --loss-type rloo: REINFORCE, each answer against the others of its group
 * (TRL 1.16's rloo_trainer).
 *
 *   R = exp(sum of m (logp - logp^old) over the document)
 *   L = mean over documents of - min(R A, clip(R, 1 - epsilon, 1 + epsilon_high) A)
 * A: advantage, of the row or, from rewards less what distance from the reference costs, leaving one out
 * (advantages.h): there is no other term for the reference. An answer without a token that counts has R = 1:
 * no gradient, but - A in the mean. Metrics as TRL: clip_ratio/.. count documents.
 *
 * Columns of the data: weight, advantage, old_logps, doc, doc.labels; scalars of the step: labels, docs. */
#include "frontends/objectives/advantages.h"
#include "frontends/objectives/clipping.h"

typedef struct rloo {
    sbp_objective *o;
    sbp_value share;            /* [T] m / (|y| documents) */
    sbp_value advantage, ratio; /* [T] the same in all rows of a document */
    sbp_clipping clip;
} rloo;

static sbp_value op(const rloo *x, sbp_opcode code, sbp_value a, sbp_value b) {
    return sbp_build2(x->o->builder, code, a, b);
}

static sbp_value number(const rloo *x, double value) {
    return sbp_objective_number(x->o, value, x->o->logp);
}

static void add_metrics(const rloo *x, sbp_value weight) {
    sbp_objective *o = x->o;
    sbp_value counted = op(x, SBP_OP_div, weight, sbp_objective_total(o, SBP_TOTAL_LABELS));
    sbp_objective_result(o, "entropy", op(x, SBP_OP_mul, counted, o->entropy));
    sbp_objective_result(o, "ratio_mean", op(x, SBP_OP_mul, x->share, x->ratio));
    sbp_objective_result(o, "ratio_mean", sbp_objective_uncounted(o));
    sbp_clipping_metrics(&x->clip, x->share, x->ratio, x->advantage);
}

void sbp_objective_rloo(sbp_objective *o) {
    rloo x = {.o = o};
    sbp_value uncounted = sbp_objective_left_out_advantages(o);
    o->counted = sbp_data_columns[SBP_DATA_WEIGHT].name;
    sbp_value weight = sbp_objective_row(o, SBP_DATA_WEIGHT),
              labels = sbp_objective_row(o, SBP_DATA_DOC_LABELS);
    sbp_value old = sbp_objective_row(o, SBP_DATA_OLD_LOGPS), document = sbp_objective_index(o, SBP_DATA_DOC);
    x.advantage = sbp_objective_row(o, SBP_DATA_ADVANTAGE);
    x.share = op(&x, SBP_OP_div, weight, sbp_objective_total(o, SBP_TOTAL_DOCS));
    x.share = op(&x, SBP_OP_div, x.share, op(&x, SBP_OP_max, labels, number(&x, 1)));
    sbp_value sum = op(&x, SBP_OP_mul, weight, op(&x, SBP_OP_sub, o->logp, old));
    sum = sbp_objective_group_sum(o, sum, document);
    x.ratio = sbp_objective_of_group(o, sbp_build1(o->builder, SBP_OP_exp, sum), document);
    x.clip = sbp_clipping_of(o);
    sbp_value l = sbp_clipping_loss(&x.clip, x.ratio, x.ratio, x.advantage);
    sbp_objective_result(o, "loss", op(&x, SBP_OP_mul, l, x.share));
    sbp_objective_result(o, "loss", uncounted);
    add_metrics(&x, weight);
}
