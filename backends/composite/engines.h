/* engines.h: queues that run beside each other: each a thread, in order, with a count of what it has done. A
 * fence is a count of one queue that later commands of another wait for; the thread that submits waits for
 * none, unless a queue is many commands behind. Used by one thread at a time. */
#ifndef SBP_BACKENDS_COMPOSITE_ENGINES_H
#define SBP_BACKENDS_COMPOSITE_ENGINES_H

#include "backends/device.h"

/* Runs one command to its end; called by the thread of its queue. */
typedef sbp_status (*composite_run)(void *user, const sbp_dispatch *dispatch, sbp_diag *diag);

/* A dispatch with what it points to. */
typedef struct composite_item {
    struct composite_item *next;
    sbp_dispatch dispatch;
    int64_t after[SBP_QUEUE_COUNT]; /* commands of each queue that come before it */
} composite_item;

/* Given back with free(); NULL when memory runs out. */
composite_item *composite_item_create(const sbp_dispatch *dispatch);

typedef struct composite_engines composite_engines;

/* program: whose ranks collectives are among; node: ranks of a host (backends/ranks/ranks.h). rates: bytes
 * per second that each queue moves at most, for simulations; 0: no limit. */
sbp_status composite_engines_create(composite_run run, void *user, const double rates[SBP_QUEUE_COUNT],
                                    const sbp_program *program, int64_t node, sbp_diag *diag,
                                    composite_engines **out) SBP_CHECKED;
/* Bytes that such a rate is for: a copy moves its source's, a collective what it sends; other commands touch
 * those of all operands. */
double composite_moved_bytes(const sbp_dispatch *dispatch, const sbp_program *program, int64_t node);
/* Runs what was submitted, then ends the threads. */
void composite_engines_destroy(composite_engines *engines);
/* Starts the queue's thread when it is the first command of it. Once a command has failed, what comes behind
 * it does not run, and this and wait say how it failed. */
sbp_status composite_engines_submit(composite_engines *engines, const sbp_dispatch *dispatch,
                                    sbp_diag *diag) SBP_CHECKED;
void composite_engines_fence(composite_engines *engines, int32_t from, int32_t to);
/* Until a queue, or all (SBP_QUEUE_COUNT), has done what was submitted. */
sbp_status composite_engines_wait(composite_engines *engines, int32_t queue, sbp_diag *diag) SBP_CHECKED;

#endif
