/* choose.c: the fastest schedule that fits, or why there is none. */
#include "passes/planner/search.h"

static sbp_status choose(void *user) {
    sbp_search *s = user;
    SBP_TRY(sbp_search_plans(s));
    if (!s->found)
        s->best = s->smallest;
    s->best.refused = !s->found;
    if (s->found)
        return SBP_OK;
    return s->pl.diag ? sbp_search_refuse(s, &s->best) : SBP_MACHINE;
}

sbp_status sbp_planner_choose(const sbp_pipeline *pipeline, const sbp_schedule_request *request,
                              sbp_plan_estimate *out) {
    if (request->t_max == SBP_AUTO && request->memory_bytes == 0)
        return sbp_fail(pipeline->diag, SBP_USAGE, "%s needs %s: the longest sequence depends on it",
                        sbp_planner_spell(pipeline->arena, request,
                                          &(sbp_remedy){.change = SBP_CHANGE_ROWS, .number = SBP_AUTO}),
                        request->speller ? request->speller->memory : "a limit of memory");
    sbp_search s = {.pl = {.base = pipeline,
                           .arena = pipeline->arena,
                           .diag = pipeline->diag,
                           .tries_most = request->tries},
                    .request = request,
                    .longest = request->t_max == SBP_AUTO};
    int64_t tried = 0;
    s.pl.tried = &tried;
    sbp_status status = sbp_guard(pipeline->arena, pipeline->diag, choose, &s);
    sbp_evaluator_end(&s.pl);
    *out = s.best;
    out->tried = tried;
    return status;
}
