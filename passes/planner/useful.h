/* useful.h: the operations that a step of training cannot do without: matmuls and attention of one forward
 * and of its backward, nothing computed again. Model FLOP utilisation is these, divided by what the device
 * could do in the time (PaLM: Chowdhery et al., arXiv 2204.02311, appendix B; here with the pairs of
 * attention that are seen, not all, and without the products that frozen weights do not need). */
#ifndef SBP_PASSES_PLANNER_USEFUL_H
#define SBP_PASSES_PLANNER_USEFUL_H

#include "passes/lower/passes.h"

enum { SBP_USEFUL_WINDOWS = 16 };

typedef struct sbp_useful_work {
    double per_row;   /* of each token, */
    double per_label; /* and of those whose logits the objective reads */
    struct {
        int64_t window;  /* 0: none */
        double per_pair; /* of a token and one that it sees */
    } attention[SBP_USEFUL_WINDOWS];
    int32_t attention_count;
} sbp_useful_work;

/* pipeline: as planned; its module is that before the passes, which is not changed. */
sbp_status sbp_planner_useful_work(const sbp_pipeline *pipeline, sbp_useful_work *out) SBP_CHECKED;

#endif
