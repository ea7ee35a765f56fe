/* plan.c: the way from what was asked for to a program.
 *
 * Requires: a verified module; a target; a request.
 * Gives: a program within the limits, the settings that it was made with, and its process.
 *
 * The process that runs a program takes memory beside the arenas, the more the longer the program is, and the
 * limit is one for both: so the program depends on its process, and the process on the program. It begins
 * with the least that the process may come to. Where the program's process then turns out too large for the
 * limit, everything is chosen again with that, then with the most that it may come to. Chunks of whole
 * sequences of unknown length have no such bound: then again with what the last program's process takes, the
 * sequence being shorter each time:
 *
 *     process of no program -> choose -> lower -> process of the program -> fits?  no: choose ..
 */
#include "passes/planner/plan.h"

#include "ir/base/census.h"
#include "passes/planner/evaluate.h"

/* A way through. Only the functions below change it, each what its name says. */
typedef struct planning {
    sbp_arena *arena;
    sbp_diag *diag;
    sbp_module *module;
    const sbp_target_info *target;
    const sbp_plan_request *plan_request;
    sbp_pass_options options;
    sbp_schedule_request request;
    sbp_plan_estimate estimate; /* of the last choice */
    sbp_skeletons *skeletons;
} planning;

/* ---- one step each ----------------------------------------------------------------------------------- */

/* What the planner may choose. */
static sbp_schedule_options largest_schedule(const planning *p) {
    sbp_schedule_options largest = {.chunk = p->request.chunk, .head_chunk = p->request.head_chunk};
    int64_t all = p->request.whole && p->request.t_max > 0 ? p->request.t_max : 0;
    if (largest.chunk == SBP_AUTO)
        largest.chunk = all > p->target->chunk_most ? all : p->target->chunk_most;
    if (largest.head_chunk == SBP_AUTO)
        largest.head_chunk = all > p->target->chunk ? all : p->target->chunk;
    return largest;
}

/* The memory of a process: for `program` under this schedule; program NULL: for any schedule that the
 * request allows. */
static sbp_footprint process_of(const planning *p, const sbp_program *program,
                                const sbp_schedule_options *schedule, bool most) {
    const sbp_schedule_request *w = &p->request;
    sbp_process process = p->plan_request->process;
    process.module = p->module;
    process.program = program;
    process.most = most;
    process.chunk = schedule->chunk;
    process.head_chunk = schedule->head_chunk;
    bool given = w->offload == SBP_OFFLOAD_GIVEN;
    process.farthest = most && !given && w->offload != SBP_OFFLOAD_OFF ? SBP_HOST : SBP_DEVICE;
    process.on_disk = false;
    for (int class = 0; given && class < SBP_TENSOR_CLASS_COUNT; class ++) {
        process.on_disk |= w->placement[class] == SBP_DISK;
        if (class >= SBP_TENSOR_STATE && (int)w->placement[class] > process.farthest)
            process.farthest = (int)w->placement[class];
    }
    return sbp_target_footprint(p->target, &process);
}

/* Before there is a program: the least, or the most, that the process may come to. */
static int64_t process_of_any(const planning *p, bool most) {
    const sbp_schedule_options largest = largest_schedule(p);
    return process_of(p, NULL, &largest, most).bytes;
}

static sbp_pipeline pipeline_of(const planning *p, sbp_diag *diag) {
    return (sbp_pipeline){.arena = p->arena,
                          .diag = diag,
                          .module = p->module,
                          .target = *p->target,
                          .options = p->options,
                          .skeletons = p->skeletons};
}

/* A schedule, or none; without diagnostics, without a word and without looking for remedies. */
static sbp_status choose_with(planning *p, sbp_diag *diag) {
    const sbp_pipeline base = pipeline_of(p, diag);
    return sbp_planner_choose(&base, &p->request, &p->estimate);
}

/* The choice, as a pipeline before its first pass. */
static sbp_pipeline chosen(const planning *p) {
    sbp_pipeline out = pipeline_of(p, p->diag);
    out.options.t_max = p->estimate.t_max;
    out.options.schedule = p->estimate.schedule;
    out.options.list_keepable = p->request.save_mode == SBP_SAVE_GIVEN;
    out.module = sbp_module_copy(p->arena, p->module);
    return out;
}

/* The choice, lowered; what passes print replaces what an earlier choice printed. */
static sbp_status lower(const planning *p, sbp_pipeline *out) {
    const sbp_plan_request *r = p->plan_request;
    *out = chosen(p);
    out->stop_after = r->stop_after;
    out->print_after = r->print_after;
    out->printed = r->printed;
    if (r->printed)
        sbp_text_init(r->printed, p->arena);
    return sbp_pipeline_run(out);
}

/* ---- the choice -------------------------------------------------------------------------------------- */

/* When nothing fits, what needs the least is made into a program: its process is known, and it is that which
 * fits or is refused. Remedies are tried with as much as a process may come to, so that they fit for certain.
 */
static sbp_status choose(planning *p) {
    if (process_of_any(p, true) == p->request.process_bytes) /* as of every program: one search says all */
        return choose_with(p, p->diag);
    if (choose_with(p, NULL) == SBP_OK)
        return SBP_OK;
    if (p->estimate.refused) { /* not for lack of memory to plan in */
        const sbp_pipeline base = pipeline_of(p, p->diag);
        sbp_footprint least;
        SBP_TRY(sbp_planner_footprint(&base, &p->plan_request->process, p->estimate.t_max,
                                      &p->estimate.schedule, &least));
        p->request.process_bytes = least.bytes;
        if (choose_with(p, NULL) == SBP_OK)
            return SBP_OK;
        p->request.process_bytes = process_of_any(p, true);
        p->request.refused_process_bytes = least.bytes;
    }
    return choose_with(p, p->diag);
}

/* Lets `ranks` ranks share each micro-batch. */
static void set_context(planning *p, int64_t ranks) {
    p->options.context = ranks;
    if (p->request.t_max > 0) /* of a rank */
        p->request.t_max = sbp_ceil_div(p->plan_request->request.t_max, ranks);
}

/* Context 0: each micro-batch on as few ranks as it fits; for the longest documents, on all. */
static void choose_context(planning *p) {
    int64_t all = p->options.ranks;
    if (p->options.context > 0) {
        set_context(p, p->options.context);
        return;
    }
    for (int64_t ranks = p->request.t_max > 0 ? 1 : all; ranks <= all; ranks++) {
        if (all % ranks != 0)
            continue;
        set_context(p, ranks);
        p->request.process_bytes = process_of_any(p, false);
        if (choose_with(p, NULL) == SBP_OK) {
            const sbp_remedy shared = {.change = SBP_CHANGE_CONTEXT, .number = ranks};
            sbp_note(p->diag, "%s: %s", sbp_planner_spell(p->arena, &p->request, &shared),
                     ranks == 1             ? "documents fit one rank"
                     : p->request.t_max > 0 ? "documents do not fit fewer ranks"
                                            : "for the longest documents");
            return;
        }
    }
    set_context(p, 1); /* it is refused, with what would fit */
}

/* The rows of all ranks that have a micro-batch together, in equal parts, are counted in 32 bits. */
static sbp_status check_rows(const planning *p) {
    int64_t ranks = p->options.context, most = SBP_MOST_ROWS / ranks;
    if (p->request.t_max <= most)
        return SBP_OK;
    const sbp_remedy asked = {.change = SBP_CHANGE_ROWS, .number = p->plan_request->request.t_max};
    return sbp_fail(p->diag, SBP_USAGE, "%s: at most %lld rows are possible, divided among %lld ranks",
                    sbp_planner_spell(p->arena, &p->request, &asked), (long long)(most * ranks),
                    (long long)ranks);
}

/* The longest documents, of data whose steps are no longer than this: where that fits, it is all that there
 * is to gain. */
static void bound_length(planning *p) {
    int64_t most = p->plan_request->length_most;
    if (p->request.t_max != SBP_AUTO || most < 1)
        return;
    p->request.t_max = sbp_ceil_div(most, p->options.context > 1 ? p->options.context : 1);
    if (choose_with(p, NULL) != SBP_OK)
        p->request.t_max = SBP_AUTO;
}

/* ---- all of it --------------------------------------------------------------------------------------- */

static bool fits(const planning *p, const sbp_footprint *process) {
    const sbp_plan_estimate *e = &p->estimate;
    int64_t needed = e->device_bytes + process->bytes + (p->target->shared_memory ? e->host_bytes : 0);
    return p->request.memory_bytes == 0 || needed <= p->request.memory_bytes;
}

/* How long the chunks are that were chosen. */
static void cross_chunk(const planning *p) {
    int64_t chunk = p->estimate.schedule.chunk, liked = p->target->chunk;
    if (p->request.chunk != SBP_AUTO || p->request.whole)
        return;
    SBP_CROSS_IF(chunk >= p->estimate.t_max, plan_chunk_of_all);
    if (chunk >= p->estimate.t_max)
        return;
    SBP_CROSS_IF(chunk < liked, plan_chunk_shorter);
    SBP_CROSS_IF(chunk == liked, plan_chunk_liked);
    SBP_CROSS_IF(chunk > liked, plan_chunk_longer);
}

sbp_status sbp_plan_make(sbp_arena *arena, sbp_diag *diag, sbp_module *module, const sbp_target_info *target,
                         const sbp_plan_request *plan_request, sbp_planned *out) {
    enum { TRY_WITH_MOST = 3, MOST_TRIES = 12 };
    planning p = {.arena = arena,
                  .diag = diag,
                  .module = module,
                  .target = target,
                  .plan_request = plan_request,
                  .options = plan_request->options,
                  .request = plan_request->request,
                  .skeletons = SBP_NEW(arena, sbp_skeletons)};
    p.request.process = &plan_request->process;
    choose_context(&p);
    SBP_TRY(check_rows(&p));
    p.request.process_bytes = process_of_any(&p, false);
    bound_length(&p);
    for (int tries = 1;; tries++) {
        const sbp_census_mark before = sbp_census_now();
        sbp_status status = choose(&p);
        sbp_census_return(&before);
        out->estimate = p.estimate; /* of a refusal, too */
        SBP_TRY(status);
        SBP_TRY(lower(&p, &out->pipeline));
        out->process = process_of(&p, out->pipeline.program, &out->pipeline.options.schedule, false);
        if (out->pipeline.stopped || fits(&p, &out->process))
            break;
        if (tries == MOST_TRIES)
            return sbp_fail(diag, SBP_INTERNAL,
                            "no plan was found that fits with its process: please report this command");
        int64_t most = process_of_any(&p, true);
        p.request.process_bytes =
            tries + 1 == TRY_WITH_MOST && most > out->process.bytes ? most : out->process.bytes;
    }
    out->request = p.request;
    cross_chunk(&p);
    out->request.process_bytes = out->process.bytes;
    return SBP_OK;
}
