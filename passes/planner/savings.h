/* savings.h: what keeping a value of the forward buys: the order in which the planner fills spare memory.
 *
 * An estimate from the graph alone (no program is made): the forward ops that the reverse sweep needs, and
 * those that fill the carries again, cost what the target's throughput say; a value that is kept ends the
 * search upward. The planner measures what it chose from this list on real programs. */
#ifndef SBP_PASSES_PLANNER_SAVINGS_H
#define SBP_PASSES_PLANNER_SAVINGS_H

#include "passes/lower/lowering.h"

/* One step: values that are kept together, after all earlier steps. */
typedef struct sbp_recompute_saving {
    const char *names[SBP_MAX_RESULTS]; /* as --save takes them */
    int32_t name_count;
    int64_t row_bytes; /* per row, all calls together */
    /* per row, one call of each kind: two such staging buffers stay on the device when offloaded */
    int64_t call_row_bytes;
    double seconds; /* saved per micro-batch of t rows */
} sbp_recompute_saving;

/* Steps in descending order of seconds per byte; p ran at least as far as autodiff, with nothing saved. Both
 * arrays live in p->arena. */
void sbp_recompute_savings(const sbp_pipeline *p, int64_t t, sbp_recompute_saving **out, int32_t *count);

#endif
