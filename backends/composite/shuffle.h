/* shuffle.h: runs commands in a random order allowed by the fences, all queues mixed, to show which fences
 * are missing. A command may run when all commands of queue f are done that stand before a fence f -> (its
 * queue) that stands before it. Nothing else orders commands, also not within a queue. */
#ifndef SBP_BACKENDS_COMPOSITE_SHUFFLE_H
#define SBP_BACKENDS_COMPOSITE_SHUFFLE_H

#include "backends/composite/engines.h"

typedef struct composite_shuffle composite_shuffle;

composite_shuffle *composite_shuffle_create(uint64_t seed, composite_run run,
                                            void *user); /* NULL: no memory */
void composite_shuffle_destroy(composite_shuffle *shuffle);
/* Holds the command back until the next wait. */
sbp_status composite_shuffle_submit(composite_shuffle *shuffle, const sbp_dispatch *dispatch,
                                    sbp_diag *diag) SBP_CHECKED;
void composite_shuffle_fence(composite_shuffle *shuffle, int32_t from, int32_t to);
/* Runs all that is held back. */
sbp_status composite_shuffle_wait(composite_shuffle *shuffle, sbp_diag *diag) SBP_CHECKED;

#endif
