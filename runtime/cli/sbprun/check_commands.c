/* check_commands.c: commands of a step by loops in double precision, for each function of the plan. */
#include <math.h>
#include <stdio.h>

#include "runtime/cli/sbprun/check.h"

static sbp_status forget(void *user, const sbp_gradient *gradient, bool *skip, sbp_diag *diag) {
    (void)user;
    (void)gradient;
    (void)diag;
    *skip = true;
    return SBP_OK;
}

/* One step, or where the plan has no optimizer its gradients. */
static sbp_status run_step(const sbp_check *check) {
    sbp_trainer *t = &check->session->trainer;
    sbp_diag *diag = check->world->diag;
    const sbp_dataset *data = check->inputs->data;
    if (!sbp_trainer_can_step(check->session->plan->program))
        return sbp_trainer_gradients(t, diag, check->session->plan, data, check->rows, data->row_count,
                                     forget, NULL);
    SBP_TRY(sbp_trainer_reset(t, diag));
    return sbp_trainer_step(t, diag, data, check->rows, data->row_count, 1,
                            sbp_options_double(check->world->options, SBP_OPT_LR));
}

static void judge(sbp_check *check, const sbp_oracle_group *g) {
    sbp_arena *arena = check->world->arena;
    const char *what = sbp_arena_strdup(arena, g->name);
    if (g->unknown > 0)
        sbp_check_add(check, &(sbp_finding){.part = "commands",
                                            .what = what,
                                            .text = sbp_arena_printf(
                                                arena,
                                                "%d command%s without loops to compare with, "
                                                "as %s: see the lines above",
                                                g->unknown, g->unknown == 1 ? "" : "s", g->unknown_kind),
                                            .found = NAN,
                                            .allowed = NAN,
                                            .verdict = SBP_VERDICT_UNSEEN});
    if (g->compared == 0)
        return;
    bool right = g->over <= SBP_CHECK_ROUNDING;
    sbp_check_add(check, &(sbp_finding){
                             .part = "commands",
                             .what = what,
                             .text = sbp_arena_printf(
                                 arena, "%d commands, %d runs; worst %s: %.2g, rounding makes %.2g",
                                 g->commands, g->compared, g->what ? g->what : "none", g->found, g->rounding),
                             .found = g->found,
                             .allowed = g->rounding * SBP_CHECK_ROUNDING,
                             .verdict = right ? SBP_VERDICT_RIGHT : SBP_VERDICT_WRONG});
}

sbp_status sbp_check_commands(sbp_check *check) {
    sbp_oracle *oracle;
    const sbp_oracle_group *group;
    sbp_world *world = check->world;
    SBP_TRY(
        sbp_oracle_create(world->diag, check->session->plan->program, check->session->info.tf32, &oracle));
    sbp_executor_set_oracle(world->executor, oracle);
    sbp_status status = run_step(check);
    sbp_executor_set_oracle(world->executor, NULL);
    if (status == SBP_NOT_FINITE)
        status = SBP_OK; /* which is found, too */
    for (int32_t i = 0; (group = sbp_oracle_group_at(oracle, i)); i++)
        judge(check, group);
    sbp_oracle_destroy(oracle);
    return status;
}
