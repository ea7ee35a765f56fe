/* plan.h: from a module, a target and what was asked for to a program: the planner chooses, the passes lower,
 * and what the process takes beside the program is found on the way. A pure function of its arguments: what
 * was asked for is not changed, and nothing is kept between calls. */
#ifndef SBP_PASSES_PLANNER_PLAN_H
#define SBP_PASSES_PLANNER_PLAN_H

#include "ir/target/footprint.h"
#include "passes/planner/planner.h"

typedef struct sbp_plan_request {
    /* t_max: rows of a document, with --context-parallel of all ranks that share it; process_bytes
     * is found */
    sbp_schedule_request request;
    int64_t length_most;      /* t_max SBP_AUTO: no document has more rows; 0: nothing is known of that */
    sbp_pass_options options; /* without t_max and schedule; context 0: as few ranks as a micro-batch fits */
    sbp_process process;      /* dtype, threads, ranks, prepare and bytes of texts; the rest is found */
    const char *stop_after, *print_after; /* names of passes; NULL */
    sbp_text *printed;                    /* is made anew; NULL: nothing is printed */
} sbp_plan_request;

typedef struct sbp_planned {
    sbp_schedule_request request; /* as it was met: t_max of a rank, or SBP_AUTO */
    sbp_plan_estimate estimate;
    /* finished, or stopped: its program, with module and options that it was made of */
    sbp_pipeline pipeline;
    sbp_footprint process;
} sbp_planned;

/* What was refused is in out->estimate; all else is only there with SBP_OK.
 * Errors: SBP_USAGE for rows that cannot be counted, SBP_MACHINE as sbp_planner_choose; what passes say. */
sbp_status sbp_plan_make(sbp_arena *arena, sbp_diag *diag, sbp_module *module, const sbp_target_info *target,
                         const sbp_plan_request *plan_request, sbp_planned *out) SBP_CHECKED;

#endif
