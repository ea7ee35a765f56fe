/* check_before.c: --check: a check before the first step, by a process of its own, whose memory
 * is gone then. */
#include <string.h>

#include "runtime/cli/sbprun/child.h"
#include "runtime/cli/sbprun/session.h"

/* Options that the check has no use for, or that are this run's own: where it goes, what it writes. */
static const sbp_option_id left_out[] = {
    SBP_OPT_CHECK,          SBP_OPT_CONFIG,      SBP_OPT_OUT,          SBP_OPT_OVERWRITE,
    SBP_OPT_RESUME,         SBP_OPT_PUBLISH,     SBP_OPT_SCORE,        SBP_OPT_DUMP_GRADIENTS,
    SBP_OPT_MERGE,          SBP_OPT_MERGE_DTYPE, SBP_OPT_EVAL,         SBP_OPT_EVAL_EVERY,
    SBP_OPT_EVAL_STRATEGY,  SBP_OPT_PUSH_TO_HUB, SBP_OPT_REPORT_TO,    SBP_OPT_JSON,
    SBP_OPT_BEST,           SBP_OPT_BEST_METRIC, SBP_OPT_BEST_GREATER, SBP_OPT_BEST_PATIENCE,
    SBP_OPT_BEST_THRESHOLD, SBP_OPT_EVAL_DELAY,  SBP_OPT_DRY_RUN,      SBP_OPT_STEPS,
    SBP_OPT_EPOCHS,         SBP_OPT_SAVE_EVERY};

static bool is_left_out(sbp_arena *arena, const char *argument) {
    if (strcmp(argument, "--data=-") == 0) /* rows that come once: random ones are checked */
        return true;
    for (int i = 0; i < SBP_COUNT(left_out); i++) {
        const char *name = sbp_arena_printf(arena, "--%s", sbp_option_name(left_out[i]));
        size_t length = strlen(name);
        if (strncmp(argument, name, length) == 0 && (argument[length] == '=' || argument[length] == '\0'))
            return true;
    }
    return false;
}

static const char **arguments(const sbp_world *world, const sbp_session *session, const char *sbprun) {
    sbp_arena *arena = world->arena;
    const char **args = NULL, **given;
    int32_t count = 0, capacity = 0, given_count;
    const char *const first[] = {sbprun, "check", session->plan_path};
    for (int i = 0; i < SBP_COUNT(first); i++)
        SBP_PUSH(arena, args, count, capacity, first[i]);
    sbp_options_to_args(world->options, SBP_PHASE_RUN, 0, arena, &given, &given_count);
    for (int32_t i = 0; i < given_count; i++)
        if (!is_left_out(arena, given[i]))
            SBP_PUSH(arena, args, count, capacity, given[i]);
    sbp_options_spell(arena, args, &count);
    SBP_PUSH(arena, args, count, capacity, NULL);
    return args;
}

sbp_status sbp_run_check_before(const sbp_world *world, const sbp_session *session) {
    const char *sbprun;
    long pid;
    if (!sbp_options_on(world->options, SBP_OPT_CHECK))
        return SBP_OK;
    if (world->place.count > 1) {
        sbp_note(world->diag, "--check: what several ranks do together is not checked");
        return SBP_OK;
    }
    SBP_TRY(sbp_child_find(world->arena, world->diag, "sbprun", &sbprun));
    sbp_status status = sbp_child_run(world->diag, arguments(world, session, sbprun), -1, &pid);
    if (status == SBP_INPUT)
        return sbp_fail(world->diag, SBP_INPUT,
                        "--check: the plan is wrong on this machine, as said above: "
                        "nothing is trained");
    if (status == SBP_MACHINE)
        sbp_note(world->diag, "--check: not all of the plan could be checked, as said above");
    return status == SBP_MACHINE ? SBP_OK : status;
}
