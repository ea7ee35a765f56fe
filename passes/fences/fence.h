/* fence.h: the parts of the fence pass. fence.c has the contract and decides, fence_trace.c writes down what
 * a body executes, fence_solve.c finds hazards in that and puts fences in the gaps.
 *
 * A gap is a place where a fence may stand: before a node of a body, or at its end. `fences` holds a set of
 * fences per gap: bit sbp_fence_bit(from, to). Queues are numbered here from 0 on, without those that the
 * program does not use, so that it costs what it uses; compute is 0. */
#ifndef SBP_PASSES_FENCES_FENCE_H
#define SBP_PASSES_FENCES_FENCE_H

#include "passes/lower/passes.h"

enum { SBP_FENCE_QUEUES = SBP_QUEUE_COUNT };

_Static_assert(SBP_FENCE_QUEUES *SBP_FENCE_QUEUES <= 64, "a set of fences is a word");

static inline uint64_t sbp_fence_bit(int32_t from, int32_t to) {
    return UINT64_C(1) << (from * SBP_FENCE_QUEUES + to);
}

/* ---- bodies ------------------------------------------------------------------------------------------ */

/* What one operand of a command touches. Rows and columns are those of the buffer element (of the formal, for
 * ref < 0), or with `wide` of the matrix of `width` columns that the view sees, where columns may begin in
 * one row and end in the next; `most` are the rows it may touch at any size and in any iteration. low, high:
 * the bytes of that in the arena of the space, for ref >= 0. */
typedef struct sbp_fence_access {
    int32_t ref, slot;
    int64_t width; /* elements from row to row */
    bool wide;
    int64_t row, row_end, col, col_end;
    int64_t most, most_end;
    int64_t low, high;
    sbp_space space;
    bool writes;
} sbp_fence_access;

/* A body with its gaps: gap first_gap + k stands before node k, the last one at the end. */
typedef struct sbp_fence_region {
    sbp_body *body;
    int32_t first_gap;
    struct sbp_fence_region **loops; /* per node: the body of the loop, else NULL */
    sbp_fence_access **most;         /* per node: of a command, what may be touched at any size; else NULL */
} sbp_fence_region;

/* ---- traces ------------------------------------------------------------------------------------------ */

typedef enum sbp_fence_step_kind {
    SBP_FENCE_COMMAND,
    SBP_FENCE_GAP,    /* the fences of `gap` apply; more may be put there */
    SBP_FENCE_PASSED, /* the fences of `gap` apply; none are put there on account of this trace */
    SBP_FENCE_FIXED   /* the fences of `mask` apply: inside a call */
} sbp_fence_step_kind;

typedef struct sbp_fence_step {
    uint8_t kind;  /* sbp_fence_step_kind */
    uint8_t queue; /* of a command */
    uint64_t mask;
    int32_t gap;
    /* Compared with commands of its own queue: the first access_count; of others: the first far_count, all of
     * the call for the first command of one, so that a call waits once. */
    int32_t access_count, far_count;
    const sbp_fence_access *accesses;
    /* Per queue: the command before this one; the next one to compare with (those between do not conflict);
     * the latest one that conflicts, -1 when none is known. */
    int32_t before[SBP_FENCE_QUEUES], unseen[SBP_FENCE_QUEUES], conflict[SBP_FENCE_QUEUES];
} sbp_fence_step;

typedef struct sbp_fence_index sbp_fence_index;

/* Commands in the order in which they are given to the device, at one size T. */
typedef struct sbp_fence_trace {
    sbp_fence_step *steps;
    int32_t count, capacity;
    int32_t latest[SBP_FENCE_QUEUES]; /* the last command so far */
    int32_t *clocks;                  /* per step, before it: what the solver found last */
    sbp_fence_index *index;           /* of what the steps touch, once the trace is complete */
    /* Likewise: where gaps are, from number gap_low on: the first step of each, and per step the next of the
     * same gap; -1: none. */
    int32_t gap_low, gap_count, *first_of_gap, *next_of_gap;
} sbp_fence_trace;

/* What a call looks like from outside, at one size: the function's first gap, then commands, joined where no
 * fence parts them. */
typedef struct sbp_fence_summary {
    sbp_fence_step *steps;
    int32_t count, capacity;
} sbp_fence_summary;

typedef struct sbp_fence_pass {
    sbp_diag *diag;
    sbp_arena *arena; /* of the pipeline for regions and gaps, then one of the pass's own */
    sbp_program *program;
    sbp_fence_region **functions, **entries;
    bool *called;                                  /* per function */
    int32_t queues[SBP_FENCE_QUEUES], queue_count; /* those that are used, as sbp_queue */
    int32_t number_of[SBP_FENCE_QUEUES];           /* the other way round; -1: not used */
    int32_t gaps;                                  /* of all bodies */
    int32_t *depth;                                /* per gap: loops around it */
    uint64_t *fences;
    int32_t gap_capacity;
    /* Scalars that count the trips of loops, and how often these loops run in the trace at hand. */
    int32_t *trip_scalars, *trips;
    int32_t trip_scalar_count, trip_scalar_capacity;
    sbp_fence_summary *summaries; /* per function, of the size at hand */
} sbp_fence_pass;

/* Numbers the gaps of a body and of the loops in it. */
sbp_status sbp_fence_region_make(sbp_fence_pass *pass, sbp_body *body, const sbp_function *function,
                                 sbp_fence_region **out) SBP_CHECKED;

/* What the body does when there are T rows; trace: empty. Calls appear as their summaries say. */
sbp_status sbp_fence_trace_body(sbp_fence_pass *pass, const sbp_fence_region *region,
                                const sbp_function *function, int64_t t, sbp_fence_trace *trace) SBP_CHECKED;
void sbp_fence_trace_append(sbp_fence_pass *pass, sbp_fence_trace *trace, const sbp_fence_trace *more);

/* The summary of a function with the fences it has now. */
sbp_status sbp_fence_summarize(sbp_fence_pass *pass, int32_t function, int64_t t) SBP_CHECKED;

/* ---- what touches the same memory -------------------------------------------------------------------- */

sbp_fence_index *sbp_fence_index_make(sbp_fence_pass *pass, const sbp_fence_trace *trace);
/* The last command of a queue at a step below `bound` that may touch what one of the accesses may; -1: none.
 */
int32_t sbp_fence_index_before(const sbp_fence_index *index, const sbp_fence_access *accesses, int32_t count,
                               int32_t queue, int32_t bound);

/* ---- solving ----------------------------------------------------------------------------------------- */

typedef struct sbp_fence_placed {
    int32_t gap;
    uint64_t bit;
} sbp_fence_placed;

/* Fences in the order in which they were put into gaps. */
typedef struct sbp_fence_list {
    sbp_fence_placed *items;
    int32_t count, capacity;
} sbp_fence_list;

void sbp_fence_add(sbp_fence_pass *pass, sbp_fence_list *list, int32_t gap, uint64_t bit);

/* Puts fences into open gaps until no trace has a hazard. */
sbp_status sbp_fence_place(sbp_fence_pass *pass, sbp_fence_trace *traces, int32_t count,
                           sbp_fence_list *list) SBP_CHECKED;

/* Takes those fences of the list out again that the others make redundant; those in loops first, of these the
 * last. */
void sbp_fence_reduce(sbp_fence_pass *pass, sbp_fence_trace *traces, int32_t count,
                      const sbp_fence_list *list);

#endif
