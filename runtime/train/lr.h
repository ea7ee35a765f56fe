/* lr.h: learning rate schedules, by the formulas of transformers.optimization 5.23 (get_scheduler).
 *
 * The factor on the learning rate is a function of k, the number of steps done before (0 for the first), W
 * steps of warmup and S steps in all. Threads: a schedule is constant.
 */
#ifndef SBP_RUNTIME_TRAIN_LR_H
#define SBP_RUNTIME_TRAIN_LR_H

#include "ir/base/base.h"

/* What does not apply is NaN, or -1 for counts. */
typedef struct sbp_lr_options {
    const char *schedule; /* a name of the option --schedule */
    double lr;
    double warmup; /* steps; below 1 a share of all steps */
    double num_cycles, min_lr, min_lr_rate, lr_end, power, timescale, min_lr_ratio;
    int64_t num_decay_steps, num_stable_steps;
    const char *decay_type, *warmup_type;
} sbp_lr_options;

typedef struct sbp_lr {
    sbp_lr_options options;
    int64_t total, warmup; /* S, W */
    double (*factor)(const struct sbp_lr *lr, double k);
} sbp_lr;

/* SBP_USAGE when options are missing or contradict each other. */
sbp_status sbp_lr_init(sbp_lr *out, sbp_diag *diag, const sbp_lr_options *options, int64_t total) SBP_CHECKED;
/* Whether a schedule, or with NULL any of them, reads an option beyond lr and warmup. */
bool sbp_lr_reads(const char *schedule, const char *option);
/* Learning rate of the step after k steps. */
double sbp_lr_at(const sbp_lr *lr, int64_t k);

#endif
