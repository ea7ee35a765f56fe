/* run_resume.c: a run that goes on is the run that began: its options come from run.json in --out, its plan
 * is the one there; what was given with other values is refused by name, unless it may change.
 */
#include <stdio.h>
#include <string.h>

#include "ir/program/plan_file.h"
#include "runtime/cli/sbprun/run.h"

/* Options of one program, not of both: those of the run belong to the run. */
static bool is_of(const sbp_option *option, unsigned phase) {
    bool run = option->phases & SBP_PHASE_RUN;
    return (option->phases & phase) && option->state == SBP_OPTION_BUILT && (phase == SBP_PHASE_RUN || !run);
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

static sbp_status fail_different(const sbp_run *run, const char *what) {
    return sbp_fail(run->diag, SBP_USAGE,
                    "'%s': --resume cannot change %s; to go on differently, begin another: --weights "
                    "%s/checkpoint-N --out OTHER",
                    run->out, what, run->out);
}

/* ---- options of the run ----------------------------------------------------------------------------- */

/* Refuses given values that differ from the run's; `began`: its options, or of sbpc what the plan says. */
static sbp_status check_given(const sbp_run *run, const sbp_json *began, unsigned phase) {
    sbp_text different;
    sbp_text_init(&different, run->arena);
    for (int32_t i = 0; i < sbp_option_count(); i++) {
        const sbp_option *option = sbp_option_at(i);
        const sbp_json *value = phase == SBP_PHASE_RUN ? sbp_json_member(began, option->name)
                                                       : sbp_plan_value(began, option, run->arena);
        if (!is_of(option, phase) || !value || !sbp_options_given(run->options, option->id) ||
            option->resume != SBP_RESUME_SAME || sbp_options_same(run->options, option, value))
            continue;
        sbp_text_add(&different, "%s--%s (it was %.100s)", different.length ? ", " : "", option->name,
                     as_typed(run->arena, value));
    }
    return different.length ? fail_different(run, different.data) : SBP_OK;
}

/* Takes the run's values for what was not given. */
static sbp_status take_others(sbp_run *run, const char *path, const sbp_json *began, unsigned phase) {
    bool length =
        sbp_options_given(run->options, SBP_OPT_STEPS) || sbp_options_given(run->options, SBP_OPT_EPOCHS);
    for (int32_t i = 0; i < sbp_option_count(); i++) {
        const sbp_option *option = sbp_option_at(i);
        const sbp_json *value = sbp_json_member(began, option->name);
        bool is_length = option->id == SBP_OPT_STEPS || option->id == SBP_OPT_EPOCHS;
        if (is_of(option, phase) && value && !sbp_options_given(run->options, option->id) &&
            option->resume != SBP_RESUME_OF_A_START && !(is_length && length))
            SBP_TRY(sbp_options_inherit(run->options, run->diag, path, value));
    }
    return SBP_OK;
}

sbp_status sbp_run_inherit(sbp_run *run) {
    const sbp_json *root, *options;
    const char *path = run->out ? sbp_file_join(run->arena, run->out, "run.json") : NULL;
    if (!path || !sbp_options_on(run->options, SBP_OPT_RESUME) || !sbp_file_exists(path))
        return SBP_OK;
    SBP_TRY(sbp_json_read(run->arena, run->diag, path, 0, &root));
    SBP_TRY(sbp_json_as_object(run->diag, root, &root));
    SBP_TRY(sbp_json_get_object(run->diag, root, "options", SBP_JSON_REQUIRED, &options));
    SBP_TRY(sbp_json_get_object(run->diag, root, "compiled", SBP_JSON_REQUIRED, &run->compiled));
    SBP_TRY(sbp_json_get_string(run->diag, root, "plan_checksum", SBP_JSON_REQUIRED, &run->began_checksum));
    SBP_TRY(sbp_json_get_i64(run->diag, root, "steps", SBP_JSON_REQUIRED, &run->began_steps));
    SBP_TRY(check_given(run, options, SBP_PHASE_RUN));
    return take_others(run, path, options, SBP_PHASE_RUN);
}

/* ---- the plan --------------------------------------------------------------------------------------- */

static bool same_text(const sbp_run *run, const sbp_json *a, const sbp_json *b) {
    sbp_text x, y;
    sbp_text_init(&x, run->arena);
    sbp_text_init(&y, run->arena);
    if (a)
        sbp_json_add_value(&x, a);
    if (b)
        sbp_json_add_value(&y, b);
    return strcmp(x.data, y.data) == 0;
}

sbp_status sbp_run_check_plan(const sbp_run *run) {
    char checksum[20];
    sbp_text different, schedule;
    snprintf(checksum, sizeof checksum, "%016llx", (unsigned long long)run->plan_checksum);
    if (!run->compiled || strcmp(checksum, run->began_checksum) == 0)
        return SBP_OK;
    sbp_text_init(&different, run->arena);
    sbp_text_init(&schedule, run->arena);
    for (int32_t i = 0; i < sbp_option_count(); i++) {
        const sbp_option *option = sbp_option_at(i);
        const sbp_json *value = sbp_plan_value(run->compiled, option, run->arena);
        if (!is_of(option, SBP_PHASE_COMPILE) || option->resume == SBP_RESUME_OF_A_START ||
            same_text(run, value, sbp_plan_value(run->plan->meta, option, run->arena)))
            continue;
        bool moves = option->resume == SBP_RESUME_OF_THE_SCHEDULE;
        sbp_text *out = moves ? &schedule : &different;
        sbp_text_add(out, moves ? "%s--%s %.100s" : "%s--%s (it was %.100s)", out->length ? ", " : "",
                     option->name, as_typed(run->arena, value));
    }
    if (different.length)
        return fail_different(run, different.data);
    if (!same_text(run, sbp_json_member(sbp_json_member(run->compiled, "model"), "config"),
                   sbp_json_member(sbp_json_member(run->plan->meta, "model"), "config")))
        return fail_different(run, "config.json");
    sbp_note(run->diag, "this is not the plan that the run in '%s' began with%s%s: sums round differently",
             run->out, schedule.length ? "; that had " : "", schedule.data);
    return SBP_OK;
}

/* Whether what is given is the model that the run trains: where its weights are, or were. */
static bool same_model(const sbp_run *run) {
    const sbp_json *model = sbp_json_member(run->compiled, "model"),
                   *weights = sbp_json_member(model, "weights"), *name = sbp_json_member(model, "name");
    if (weights && weights->kind == SBP_JSON_STRING && sbp_run_lies_in(weights->string, run->model))
        return true;
    return name && name->kind == SBP_JSON_STRING &&
           strcmp(name->string, sbp_run_model_name(run->arena, run->model)) == 0;
}

sbp_status sbp_run_reuse_plan(sbp_run *run) {
    const char *plan = run->out ? sbp_file_join(run->arena, run->out, "plan.bin") : NULL;
    const sbp_json *before = sbp_json_member(run->compiled, "options");
    char checksum[20];
    int32_t at = 0;
    const sbp_option *option;
    bool same = true;
    if (!before)
        return SBP_OK;
    if (!same_model(run))
        return fail_different(
            run, sbp_arena_printf(
                     run->arena, "the model (it was '%s')",
                     as_typed(run->arena, sbp_json_member(sbp_json_member(run->compiled, "model"), "name"))));
    SBP_TRY(check_given(run, run->compiled, SBP_PHASE_COMPILE));
    while ((option = sbp_options_next_given(run->options, SBP_PHASE_COMPILE, SBP_PHASE_RUN, &at)))
        same &= sbp_options_is(run->options, option->id, "auto") || option->resume == SBP_RESUME_OF_A_START ||
                sbp_options_same(run->options, option, sbp_plan_value(run->compiled, option, run->arena));
    snprintf(checksum, sizeof checksum, "%016llx", (unsigned long long)sbp_plan_file_checksum(plan));
    if (same && strcmp(checksum, run->began_checksum) == 0) {
        run->plan_path = plan;
        return SBP_OK;
    }
    return take_others(run, sbp_file_join(run->arena, run->out, "run.json"), before, SBP_PHASE_COMPILE);
}
