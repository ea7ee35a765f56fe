/* objective_sft.c: supervised fine-tuning.
 *
 *   nll  L = - sum_t m_t logp_t / N                      m: row input weight, N: scalar labels
 *   dft  L = - sum_t m_t sg(exp logp_t) logp_t / N       sg: no gradient
 * Metrics: entropy and mean_token_accuracy, means over the counted labels. */
#include "frontends/objectives/objective.h"

#include <string.h>

static bool is_dft(sbp_objective *o) {
    const char *type = o->loss_type ? o->loss_type : "nll";
    if (strcmp(type, "dft") == 0)
        return true;
    if (strcmp(type, "nll") != 0 && strcmp(type, "chunked_nll") != 0) /* the latter: an old name of nll */
        sbp_objective_refuse(o, "sft", "nll (or chunked_nll), dft");
    return false;
}

void sbp_objective_sft(sbp_objective *o) {
    sbp_builder *b = o->builder;
    bool dft = is_dft(o);
    o->held = dft ? "the probability of the label" : NULL;
    o->counted = sbp_data_columns[SBP_DATA_WEIGHT].name;
    sbp_value weight = sbp_objective_row(o, SBP_DATA_WEIGHT),
              labels = sbp_objective_total(o, SBP_TOTAL_LABELS);
    sbp_value share = sbp_build2(b, SBP_OP_div, weight, labels);
    sbp_build_name(b, share, "share"); /* [T]: m_t / N */
    sbp_value term = sbp_build2(b, SBP_OP_mul, share, o->logp);
    if (dft) {
        sbp_value p = sbp_build1(b, SBP_OP_exp, o->logp);
        term = sbp_build2(b, SBP_OP_mul, term, sbp_build1(b, SBP_OP_stop_gradient, p));
    }
    sbp_objective_result(o, "loss", sbp_build1(b, SBP_OP_neg, term));
    sbp_objective_result(o, "entropy", sbp_build2(b, SBP_OP_mul, share, o->entropy));
    sbp_objective_result(o, "mean_token_accuracy", sbp_build2(b, SBP_OP_mul, share, o->hit));
}
