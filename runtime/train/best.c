/* best.c: the rules of best.h. */
#include "runtime/train/best.h"

bool sbp_best_is_better(const sbp_best_rule *rule, double a, double b) {
    return rule->greater ? a > b : a < b;
}

bool sbp_best_evaluated(const sbp_best_rule *rule, sbp_best *best, int64_t step, double value) {
    double before = best->step > 0 ? best->value : rule->greater ? -(double)INFINITY : (double)INFINITY;
    bool better = sbp_best_is_better(rule, value, before);
    if (!best->seen || (better && fabs(value - before) > rule->threshold))
        best->worse = 0;
    else
        best->worse++;
    best->seen = true;
    if (better) {
        best->step = step;
        best->value = value;
    }
    return better;
}

bool sbp_best_stops(const sbp_best_rule *rule, const sbp_best *best) {
    return rule->patience > 0 && best->worse >= rule->patience;
}

void sbp_best_discards(const int64_t *steps, int64_t count, int64_t keep, int64_t best, bool *goes) {
    int64_t left = count;
    for (int64_t i = count - 1; i >= 0; i--) {
        goes[i] = keep > 0 && left > keep && i > 0 && steps[i] != best;
        left -= goes[i];
    }
}
