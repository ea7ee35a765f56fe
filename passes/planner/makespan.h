/* makespan.h: how long a program takes when queues run beside each other.
 *
 * Commands are given in program order. Each begins when its queue is free and what it touches is ready: what
 * it reads was written, what it writes was read and written before. Buffers are told apart by element; parts
 * are their bucket. */
#ifndef SBP_PASSES_PLANNER_MAKESPAN_H
#define SBP_PASSES_PLANNER_MAKESPAN_H

#include "passes/lower/memory.h"
#include "passes/planner/cost.h"

typedef struct sbp_makespan {
    sbp_arena *arena;
    const sbp_program *program;
    double clock[SBP_QUEUE_COUNT]; /* seconds at which a queue is free */
    double busy[SBP_QUEUE_COUNT];  /* seconds in which it ran */
    int32_t *first;                /* per buffer: number of its element 0 */
    double *written, *read;        /* per element: when the last command that does so is done */
} sbp_makespan;

/* All buffers are there. */
void sbp_makespan_begin(sbp_arena *arena, const sbp_program *program, sbp_makespan *out);
/* A command that does this, or a call. */
void sbp_makespan_run(sbp_makespan *span, int32_t queue, double seconds, const sbp_spot *spots,
                      int32_t count);
/* A call of a function of this cost. What it brings itself follows what was given to queue in before it, and
 * is there when it ends. */
void sbp_makespan_call(sbp_makespan *span, const sbp_cost *function, const sbp_spot *spots, int32_t count);
/* When all queues are done. */
double sbp_makespan_end(const sbp_makespan *span);

#endif
