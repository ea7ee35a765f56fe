/* footprint.c: what the process takes that runs the program of a schedule: the program is made to count it. */
#include <string.h>

#include "ir/base/census.h"
#include "ir/target/footprint.h"
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
        unsigned char crossed[SBP_PATH_COUNT]; /* plans that are only tried go no way */
        memcpy(crossed, sbp_census_crossed, sizeof crossed);
        sbp_status status = sbp_pipeline_run(&p);
        memcpy(sbp_census_crossed, crossed, sizeof crossed);
        SBP_TRY(status);
        process.program = p.program;
    }
    *out = sbp_target_footprint(&p.target, &process);
    return SBP_OK;
}
