/* run_resume.c: a run that goes on is the run that began: its options come from run.json in --out, its plan
 * is the one there; what was given with other values is refused by name, unless it may change.
 */
#include <stdio.h>
#include <string.h>

#include "ir/program/plan_file.h"
#include "runtime/cli/sbprun/outputs.h"

/* Options of one program, not of both: those of the run belong to the run. */
static bool is_of(const sbp_option *option, unsigned phase) {
    bool run = option->phases & SBP_PHASE_RUN;
    return (option->phases & phase) && sbp_option_is_kept(option) && (phase == SBP_PHASE_RUN || !run);
}

static const char *as_typed(sbp_arena *arena, const sbp_json *value) {
    sbp_text out;
    sbp_text_init(&out, arena);
    if (!value || value->kind == SBP_JSON_NULL)
        return "none";
    if (value->kind == SBP_JSON_STRING)
        return value->string;
    sbp_json_add_value(&out, value);
    return out.data;
}

static sbp_status fail_different(const sbp_world *world, const sbp_outputs *outputs, const char *what) {
    return sbp_fail(world->diag, SBP_USAGE,
                    "'%s': --resume cannot change %s; to go on differently, begin another: --weights "
                    "%s/checkpoint-N --out OTHER",
                    outputs->out, what, outputs->out);
}

/* ---- options of the run ----------------------------------------------------------------------------- */

/* Refuses given values that differ from the run's; `began`: its options, or of sbpc what the plan says. */
static sbp_status check_given(const sbp_world *world, const sbp_outputs *outputs, const sbp_json *began,
                              unsigned phase) {
    sbp_text different;
    sbp_text_init(&different, world->arena);
    for (int32_t i = 0; i < sbp_option_count(); i++) {
        const sbp_option *option = sbp_option_at(i);
        const sbp_json *value = phase == SBP_PHASE_RUN ? sbp_options_member(world->arena, began, option)
                                                       : sbp_plan_value(began, option, world->arena);
        if (!is_of(option, phase) || !value || !sbp_options_given(world->options, option->id) ||
            option->resume != SBP_RESUME_SAME || sbp_options_same(world->options, option, value))
            continue;
        sbp_text_add(&different, "%s%s (it was %.100s)", different.length ? ", " : "",
                     sbp_option_typed(world->arena, option), as_typed(world->arena, value));
    }
    return different.length ? fail_different(world, outputs, different.data) : SBP_OK;
}

/* Takes the run's values for what was not given. */
static sbp_status take_others(const sbp_world *world, const char *path, const sbp_json *began,
                              unsigned phase) {
    bool length =
        sbp_options_given(world->options, SBP_OPT_STEPS) || sbp_options_given(world->options, SBP_OPT_EPOCHS);
    for (int32_t i = 0; i < sbp_option_count(); i++) {
        const sbp_option *option = sbp_option_at(i);
        const sbp_json *value = sbp_options_member(world->arena, began, option);
        bool is_length = option->id == SBP_OPT_STEPS || option->id == SBP_OPT_EPOCHS;
        if (is_of(option, phase) && value && !sbp_options_given(world->options, option->id) &&
            option->resume != SBP_RESUME_OF_A_START && !(is_length && length))
            SBP_TRY(sbp_options_inherit(world->options, world->diag, path, value));
    }
    return SBP_OK;
}

sbp_status sbp_run_inherit(const sbp_world *world, sbp_session *session, const sbp_outputs *outputs) {
    const sbp_json *root, *options;
    const char *path = outputs->out ? sbp_file_join(world->arena, outputs->out, "run.json") : NULL;
    if (!path || !sbp_options_on(world->options, SBP_OPT_RESUME) || !sbp_file_exists(path))
        return SBP_OK;
    SBP_TRY(sbp_json_read(world->arena, world->diag, path, 0, &root));
    SBP_TRY(sbp_json_as_object(world->diag, root, &root));
    SBP_TRY(sbp_json_get_object(world->diag, root, "options", SBP_JSON_REQUIRED, &options));
    SBP_TRY(sbp_json_get_object(world->diag, root, "compiled", SBP_JSON_REQUIRED, &session->compiled));
    SBP_TRY(
        sbp_json_get_string(world->diag, root, "plan_checksum", SBP_JSON_REQUIRED, &session->began_checksum));
    SBP_TRY(sbp_json_get_i64(world->diag, root, "steps", SBP_JSON_REQUIRED, &session->began_steps));
    const sbp_json *evals = sbp_json_member(root, "eval");
    if (!sbp_options_given(world->options, SBP_OPT_EVAL_STRATEGY)) /* what it said, its default says too */
        session->evaluates_nothing = evals && evals->count == 0;
    SBP_TRY(sbp_options_forget_usual(world->options, world->diag));
    SBP_TRY(check_given(world, outputs, options, SBP_PHASE_RUN));
    return take_others(world, path, options, SBP_PHASE_RUN);
}

/* ---- the plan --------------------------------------------------------------------------------------- */

static bool same_text(const sbp_world *world, const sbp_json *a, const sbp_json *b) {
    sbp_text x, y;
    sbp_text_init(&x, world->arena);
    sbp_text_init(&y, world->arena);
    if (a)
        sbp_json_add_value(&x, a);
    if (b)
        sbp_json_add_value(&y, b);
    return strcmp(x.data, y.data) == 0;
}

sbp_status sbp_run_check_plan(const sbp_world *world, const sbp_session *session,
                              const sbp_outputs *outputs) {
    char checksum[20];
    sbp_text different, schedule;
    snprintf(checksum, sizeof checksum, "%016llx", (unsigned long long)session->plan_checksum);
    if (!session->compiled || strcmp(checksum, session->began_checksum) == 0)
        return SBP_OK;
    sbp_text_init(&different, world->arena);
    sbp_text_init(&schedule, world->arena);
    for (int32_t i = 0; i < sbp_option_count(); i++) {
        const sbp_option *option = sbp_option_at(i);
        const sbp_json *value = sbp_plan_value(session->compiled, option, world->arena);
        if (!is_of(option, SBP_PHASE_COMPILE) || option->resume == SBP_RESUME_OF_A_START ||
            same_text(world, value, sbp_plan_value(session->plan->meta, option, world->arena)))
            continue;
        bool moves = option->resume == SBP_RESUME_OF_THE_SCHEDULE;
        sbp_text *out = moves ? &schedule : &different;
        sbp_text_add(out, moves ? "%s%s %.100s" : "%s%s (it was %.100s)", out->length ? ", " : "",
                     sbp_option_typed(world->arena, option), as_typed(world->arena, value));
    }
    if (different.length)
        return fail_different(world, outputs, different.data);
    if (!same_text(world, sbp_json_member(sbp_json_member(session->compiled, "model"), "config"),
                   sbp_json_member(sbp_json_member(session->plan->meta, "model"), "config")))
        return fail_different(world, outputs, "config.json");
    sbp_note(world->diag, "this is not the plan that the run in '%s' began with%s%s: sums round differently",
             outputs->out, schedule.length ? "; that had " : "", schedule.data);
    return SBP_OK;
}

/* Whether what is given is the model that the run trains: where its weights are, or were. */
static bool same_model(const sbp_world *world, const sbp_session *session) {
    const sbp_json *model = sbp_json_member(session->compiled, "model"),
                   *weights = sbp_json_member(model, "weights"), *name = sbp_json_member(model, "name");
    if (weights && weights->kind == SBP_JSON_STRING && sbp_run_lies_in(weights->string, session->model))
        return true;
    return name && name->kind == SBP_JSON_STRING &&
           strcmp(name->string, sbp_run_model_name(world->arena, session->model)) == 0;
}

sbp_status sbp_run_reuse_plan(const sbp_world *world, sbp_session *session, const sbp_outputs *outputs) {
    const char *plan = outputs->out ? sbp_file_join(world->arena, outputs->out, "plan.bin") : NULL;
    const sbp_json *before = sbp_json_member(session->compiled, "options");
    char checksum[20];
    int32_t at = 0;
    const sbp_option *option;
    bool same = true;
    if (!before)
        return SBP_OK;
    if (!same_model(world, session))
        return fail_different(
            world, outputs,
            sbp_arena_printf(world->arena, "the model (it was '%s')",
                             as_typed(world->arena,
                                      sbp_json_member(sbp_json_member(session->compiled, "model"), "name"))));
    SBP_TRY(check_given(world, outputs, session->compiled, SBP_PHASE_COMPILE));
    while ((option = sbp_options_next_given(world->options, SBP_PHASE_COMPILE, SBP_PHASE_RUN, &at)))
        same &=
            sbp_options_is(world->options, option->id, "auto") || option->resume == SBP_RESUME_OF_A_START ||
            sbp_options_same(world->options, option, sbp_plan_value(session->compiled, option, world->arena));
    snprintf(checksum, sizeof checksum, "%016llx", (unsigned long long)sbp_plan_file_checksum(plan));
    if (same && strcmp(checksum, session->began_checksum) == 0) {
        session->plan_path = plan;
        return SBP_OK;
    }
    return take_others(world, sbp_file_join(world->arena, outputs->out, "run.json"), before,
                       SBP_PHASE_COMPILE);
}
