/* search.h: the search for the fastest schedule that fits. planner.c tries candidates, refuse.c says what
 * would help when there is none, and choose.c asks both. */
#ifndef SBP_PASSES_PLANNER_SEARCH_H
#define SBP_PASSES_PLANNER_SEARCH_H

#include "passes/planner/evaluate.h"

/* The least bytes and the least seconds of a structure (g, k, placements) that saves nothing. */
typedef struct sbp_bounds {
    sbp_schedule_options structure;
    sbp_plan_estimate small, large; /* with the smallest chunks; with the largest, timed */
} sbp_bounds;

enum { SBP_SEARCH_PLACEMENTS = 6, SBP_ALL_SIZES = 0 };

/* What a round of the search has fixed before it looks at placements, segments and checkpoints. It is handed
 * on by value: a round that tries something else does not have to put anything back. */
typedef struct sbp_candidate {
    int64_t quarters;                /* chunks of quarters/4 of the target's sizes, or SBP_ALL_SIZES */
    bool slow_update;                /* updates run where they take longer: it may be where there is room */
    bool sparing;                    /* updates through as little host memory as they can */
    bool drop_states;                /* the backward makes states again */
    int32_t gathered, expert_pieces; /* as in sbp_schedule_options */
} sbp_candidate;

typedef struct sbp_search {
    sbp_evaluator pl;
    const sbp_schedule_request *request;
    bool longest; /* maximise t_max instead of speed */
    bool found;
    sbp_bounds *tried; /* those of the first round, for the second */
    int32_t tried_count, tried_capacity;
    sbp_plan_estimate best_of[SBP_SEARCH_PLACEMENTS]; /* per choice of placements; t_max 0: none fits */
    sbp_plan_estimate best;
    /* for messages: least device memory of all; least host memory of those that the device has room for */
    sbp_plan_estimate smallest, sparest;
} sbp_search;

/* What --memory limits: the arena and the process beside it; both arenas where they share memory. */
int64_t sbp_search_needed_bytes(const sbp_search *s, const sbp_plan_estimate *e);
/* All that the request allows, or as many plans as it may try; s->found, s->best. */
sbp_status sbp_search_plans(sbp_search *s) SBP_CHECKED;
/* One schedule, and what could be saved with it; the longest sequence, when that is asked for; as far as
 * there are tries for it. */
sbp_status sbp_search_try(sbp_search *s, const sbp_schedule_options *o) SBP_CHECKED;
/* expert_pieces.c: whether the model has experts; whether their matrices in pieces, as these options have
 * them, could be another plan than whole ones: they are away from the device, or in blocks. */
bool sbp_search_has_experts(const sbp_search *s);
bool sbp_search_pieces_matter(const sbp_search *s, const sbp_schedule_options *o);
/* SBP_MACHINE with how much is needed, and what would fit, which goes into *out as well, with the evaluations
 * for it. */
sbp_status sbp_search_refuse(const sbp_search *s, sbp_plan_estimate *out) SBP_CHECKED;

#endif
