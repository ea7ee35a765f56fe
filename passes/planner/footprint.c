/* footprint.c: what the process takes that runs the program of a schedule: the program is made to count
 * it. */
#include "ir/target/footprint.h"
#include "ir/base/census.h"
#include "passes/planner/planner.h"

sbp_status sbp_planner_footprint(const sbp_pipeline *pipeline, const sbp_process *about, int64_t t_max,
                                 const sbp_schedule_options *schedule, sbp_footprint *out) {
    sbp_process process = *about;
    sbp_pipeline p = {.arena = pipeline->arena,
                      .diag = pipeline->diag,
                      .target = pipeline->target,
                      .options = pipeline->options};
    process.module = pipeline->module;
    process.chunk = schedule->chunk;
    process.head_chunk = schedule->head_chunk;
    if (p.target.footprint) { /* else it is the same of all */
        p.options.t_max = t_max;
        p.options.schedule = *schedule;
        p.module = sbp_module_copy(p.arena, pipeline->module);
        const sbp_census_mark before = sbp_census_now();
        sbp_status status = sbp_pipeline_run(&p);
        sbp_census_return(&before);
        SBP_TRY(status);
        process.program = p.program;
    }
    *out = sbp_target_footprint(&p.target, &process);
    return SBP_OK;
}
