/* evaluate.h: exact bytes and modelled time of settings, thousands of them in a second.
 *
 * Functions depend on segment and saved set alone: the passes up to the one before `calls` run once for
 * each (skeleton). What is called and where it lives depends on k and placements: calls and offload walk,
 * without making commands (structure). Sizes are filled in last: packing, and the makespan of the walks. */
#ifndef SBP_PASSES_PLANNER_EVALUATE_H
#define SBP_PASSES_PLANNER_EVALUATE_H

#include "passes/lower/memory.h"
#include "passes/offload/offload.h"
#include "passes/planner/planner.h"
#include "passes/planner/savings.h"

/* The model cut into segments of `segment` layers: what all saved sets begin with. */
typedef struct sbp_cut {
    int64_t segment;
    sbp_pipeline pipeline; /* up to split: what it holds is its module */
    struct sbp_cut *next;
} sbp_cut;

/* The functions of one (segment, saved set), to be evaluated at any size and with any calls. */
typedef struct sbp_skeleton {
    sbp_pipeline pipeline; /* up to the pass before calls */
    sbp_schedule_options schedule;
    int32_t layers;                /* L, in segments */
    sbp_recompute_saving *savings; /* what could be kept, at saving_rows */
    int32_t saving_count;
    int64_t saving_rows;
    struct sbp_skeleton *next;
} sbp_skeleton;

/* All that were made of one module with the same options, but for the schedule. */
typedef struct sbp_skeletons {
    const sbp_module *module; /* NULL: none yet */
    sbp_target_info target;
    sbp_pass_options options; /* without lengths and schedule */
    sbp_cut *cuts;
    sbp_skeleton *list;
} sbp_skeletons;

/* What is called and where everything lives, for one skeleton, k and placements: at any size. */
typedef struct sbp_structure {
    sbp_arena *arena; /* its own */
    const sbp_skeleton *skeleton;
    sbp_schedule_options schedule;
    sbp_program_builder builder; /* the skeleton's, with buffers of its own */
    sbp_call_schedule call_schedule;
    sbp_walk *walks;
    sbp_liveness live;
    int64_t age;
} sbp_structure;

enum { SBP_STRUCTURES = 16 }; /* that are kept: a search tries the chunks of one before it goes on */

typedef struct sbp_evaluator {
    const sbp_pipeline *base;
    sbp_arena *arena;
    sbp_diag *diag;
    sbp_skeletons own; /* where the pipeline keeps none */
    sbp_structure structures[SBP_STRUCTURES];
    int64_t clock;
    int64_t *tried;            /* counts evaluations; or NULL */
    int64_t tries, tries_most; /* its own evaluations, and how many there may be; 0: any number */
    bool ended;                /* one more was asked for: a search ends with what it has */
} sbp_evaluator;

/* Whether everything lives in the same place, and updates run there. */
bool sbp_same_placement(const sbp_schedule_options *a, const sbp_schedule_options *b);
/* Frees what was built along the way; skeletons live in the arena. */
void sbp_evaluator_end(sbp_evaluator *pl);
sbp_status sbp_evaluator_skeleton(sbp_evaluator *pl, const sbp_schedule_options *o, int64_t t,
                                  sbp_skeleton **out) SBP_CHECKED;
/* One setting, for micro-batches of t rows; timed: with seconds and flops. SBP_MACHINE without a message when
 * there were as many as there may be. */
sbp_status sbp_evaluator_run(sbp_evaluator *pl, int64_t t, const sbp_schedule_options *o, bool timed,
                             sbp_plan_estimate *out) SBP_CHECKED;

#endif
