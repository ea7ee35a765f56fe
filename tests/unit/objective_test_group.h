/* objective_test_group.h: an objective that exists for tests only: it depends on whole documents, as DPO
 * does, so that a head must make two passes. With a_t = m_t logp_t / N and s_d = sum of a_t over the rows of
 * document d,
 *
 *   loss = sum_d s_d^2 = sum_t a_t s_d(t)            d loss / d logp_t = 2 m_t / N s_d(t)
 *
 * Row input doc (i32): the document of a row, 0 .. S-1. Documents lie in one micro-batch, so results add up.
 */
#ifndef SBP_TESTS_UNIT_OBJECTIVE_TEST_GROUP_H
#define SBP_TESTS_UNIT_OBJECTIVE_TEST_GROUP_H

#include "frontends/objectives/objective.h"

static inline void objective_test_group(sbp_objective *o) {
    sbp_builder *b = o->builder;
    sbp_value doc = sbp_build_row(b, "doc", SBP_I32, SBP_T);
    sbp_value weight = sbp_objective_row(o, SBP_DATA_WEIGHT),
              labels = sbp_objective_total(o, SBP_TOTAL_LABELS);
    sbp_value share = sbp_build2(b, SBP_OP_div, weight, labels);
    sbp_value term = sbp_build2(b, SBP_OP_mul, share, o->logp); /* a [T] */
    sbp_value sum = sbp_build2(b, SBP_OP_group_sum, term, doc); /* s [S], fp64 */
    sbp_value own = sbp_build2(b, SBP_OP_group_take, sum, doc); /* s_d(t) [T] */
    own = sbp_build_cast(b, own, o->dtype);
    sbp_objective_result(o, "loss", sbp_build2(b, SBP_OP_mul, term, own));
    sbp_objective_result(o, "entropy", sbp_build2(b, SBP_OP_mul, share, o->entropy));
    sbp_objective_result(o, "mean_token_accuracy", sbp_build2(b, SBP_OP_mul, share, o->hit));
}

#endif
