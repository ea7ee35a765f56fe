/* best.h: which evaluation of a run was the best, when training stops for want of a better one, and which
 * checkpoints stay. Nothing here reads or writes a file.
 *
 * The rules are those of transformers 5: Trainer._determine_best_metric, EarlyStoppingCallback,
 * rotate_checkpoints. Better is strictly less, or strictly greater: an equal value is no improvement, nor is
 * what is no number. Patience counts evaluations one after the other that were not better, by more than the
 * threshold, than the best before them; the threshold is an absolute difference. The best itself moves by
 * any improvement. The first evaluation never counts against a run.
 *
 * Threads: pure functions. Errors: none.
 */
#ifndef SBP_RUNTIME_TRAIN_BEST_H
#define SBP_RUNTIME_TRAIN_BEST_H

#include <math.h>

#include "ir/base/base.h"

typedef struct sbp_best_rule {
    bool greater;
    int64_t patience; /* evaluations; 0: training never stops early */
    double threshold;
} sbp_best_rule;

typedef struct sbp_best {
    bool seen;     /* an evaluation has counted */
    int64_t step;  /* of the best, 0: none was a number */
    double value;  /* of the best */
    int64_t worse; /* evaluations, up to now, that were no improvement */
    /* not of the rule: what the end of a run says */
    double before, last; /* of the evaluation before the first step, and of the latest; NaN: none */
    double loss_sum;     /* of training, up to the latest */
    int64_t loss_count;
    /* mean loss of training since the evaluation before the best, and before the latest */
    double trained_best, trained;
    uint64_t of; /* hash of what is compared: metric, direction and rows */
} sbp_best;

#define SBP_BEST_NONE                                                                                        \
    ((sbp_best){.value = NAN, .before = NAN, .last = NAN, .trained_best = NAN, .trained = NAN})

/* Whether a is better than b. */
bool sbp_best_is_better(const sbp_best_rule *rule, double a, double b);
/* Counts an evaluation after `step` steps, from 1; true: it is the best so far. */
bool sbp_best_evaluated(const sbp_best_rule *rule, sbp_best *best, int64_t step, double value);
/* Whether training stops. */
bool sbp_best_stops(const sbp_best_rule *rule, const sbp_best *best);
/* Marks those of `count` checkpoints that go so that `keep` stay (0: all do), at least the newest and that
 * of step `best` (0: none). steps: the newest first. */
void sbp_best_discards(const int64_t *steps, int64_t count, int64_t keep, int64_t best, bool *goes);

#endif
