/* step_scalars.c: a function for each scalar of ir/program/contract.def that a step sets. A scalar without
 * one does not compile. */
#include "runtime/train/step_scalars.h"

#include <math.h>

static double value_PART_LABELS(const sbp_trainer *t, const sbp_moment *m) {
    (void)t;
    return m->part->labels > 1 ? (double)m->part->labels : 1;
}

static double value_PART_LAST(const sbp_trainer *t, const sbp_moment *m) {
    (void)t;
    return m->last;
}

static double value_RANK_FIRST(const sbp_trainer *t, const sbp_moment *m) {
    (void)m;
    return t->packer.rank % t->program->group == 0;
}

static double value_DROPOUT(const sbp_trainer *t, const sbp_moment *m) {
    (void)t;
    return m->drops;
}

static double value_PARTS(const sbp_trainer *t, const sbp_moment *m) {
    (void)m;
    return t->packer.part_count;
}

static double value_LR(const sbp_trainer *t, const sbp_moment *m) {
    (void)t;
    return m->lr;
}

static double value_BETA1(const sbp_trainer *t, const sbp_moment *m) {
    (void)m;
    return t->beta1;
}

static double value_ONE_MINUS_BETA1(const sbp_trainer *t, const sbp_moment *m) {
    (void)m;
    return 1 - t->beta1;
}

static double value_BETA2(const sbp_trainer *t, const sbp_moment *m) {
    (void)m;
    return t->beta2;
}

static double value_ONE_MINUS_BETA2(const sbp_trainer *t, const sbp_moment *m) {
    (void)m;
    return 1 - t->beta2;
}

static double value_EPS(const sbp_trainer *t, const sbp_moment *m) {
    (void)m;
    return t->eps;
}

static double value_MOMENTUM(const sbp_trainer *t, const sbp_moment *m) {
    (void)m;
    return t->momentum;
}

static double value_WEIGHT_DECAY(const sbp_trainer *t, const sbp_moment *m) {
    (void)m;
    return t->weight_decay;
}

static double value_BIAS1(const sbp_trainer *t, const sbp_moment *m) {
    return 1 - pow(t->beta1, (double)m->number);
}

static double value_BIAS2_SQRT(const sbp_trainer *t, const sbp_moment *m) {
    return sqrt(1 - pow(t->beta2, (double)m->number));
}

static double value_MAX_GRAD_NORM(const sbp_trainer *t, const sbp_moment *m) {
    (void)m;
    return t->max_grad_norm;
}

static const struct {
    sbp_when when;
    double (*value)(const sbp_trainer *t, const sbp_moment *m); /* NULL: the run sets it */
} scalars[SBP_SCALAR_COUNT] = {
#define PART(id)                                                                                             \
    { SBP_BEFORE_PART, value_##id }
#define PACK(id)                                                                                             \
    { SBP_BY_PACKING, value_##id }
#define STEP(id)                                                                                             \
    { SBP_BEFORE_STEP, value_##id }
#define RUN(id)                                                                                              \
    { SBP_BY_THE_RUN, NULL }
#define RULE(id) RUN(id)
#define SCALAR(id, name, when, what) when(id),
#include "ir/program/contract.def"
#undef PART
#undef PACK
#undef STEP
#undef RUN
#undef RULE
};

void sbp_trainer_set_scalars(const sbp_trainer *t, sbp_when when, const sbp_moment *m) {
    for (int s = 0; s < SBP_SCALAR_COUNT; s++)
        if (scalars[s].when == when && scalars[s].value)
            sbp_executor_set(t->executor, (sbp_scalar_id)s, scalars[s].value(t, m));
}
