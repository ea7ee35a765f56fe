/* plan_info.c: the section "meta" and the options of a run. */
#include "runtime/run/plan_info.h"
#include "backends/backends.h"
#include "ir/graph/prepare.h"

#include <math.h>
#include <string.h>

/* A number, or null or a word, which leave *out alone. */
static sbp_status get_number(sbp_diag *diag, const sbp_json *object, const char *key, double *out) {
    const sbp_json *member = sbp_json_member(object, key);
    if (!member || member->kind == SBP_JSON_NULL || member->kind == SBP_JSON_STRING)
        return SBP_OK;
    return sbp_json_as_double(diag, member, out);
}

/* Whether @prepare gives a scalar of that name. */
static bool is_prepared(const sbp_prepare *prepare, const char *name) {
    for (int32_t i = 0; prepare && i < prepare->number_count; i++)
        if (strcmp(prepare->numbers[i], name) == 0)
            return true;
    return false;
}

/* A scalar that nobody sets would be read as whatever it was: a plan of another sbpc. */
static sbp_status check_scalars(sbp_diag *diag, const sbp_plan *plan) {
    const sbp_program *p = plan->program;
    for (int32_t s = 2; s < p->scalar_count; s++) /* behind the sizes T and S */
        if (!sbp_contract_sets(p->scalars[s]) && !sbp_option_setting(p->scalars[s]) &&
            !is_prepared(p->prepare, p->scalars[s]))
            return sbp_fail(diag, SBP_INPUT,
                            "%s: the plan needs a number '%s', which this sbprun does not know: another "
                            "version of sbpc made it; compile the model again with the sbpc of this sbprun",
                            plan->path, p->scalars[s]);
    return SBP_OK;
}

sbp_status sbp_plan_info_read(sbp_diag *diag, const sbp_plan *plan, sbp_plan_info *out) {
    double clip = INFINITY, accumulate = 0, memory = 0;
    *out = (sbp_plan_info){.deterministic = true};
    SBP_TRY(check_scalars(diag, plan));
    SBP_TRY(sbp_plan_meta_read(diag, plan->meta, &out->meta));
    const sbp_json *options = out->meta.options;
    if (options) {
        SBP_TRY(
            sbp_json_get_bool(diag, options, sbp_option_name(SBP_OPT_TF32), SBP_JSON_NULLABLE, &out->tf32));
        SBP_TRY(sbp_json_get_bool(diag, options, sbp_option_name(SBP_OPT_DETERMINISTIC), SBP_JSON_NULLABLE,
                                  &out->deterministic));
        SBP_TRY(get_number(diag, options, sbp_option_name(SBP_OPT_CLIP), &clip));
        SBP_TRY(get_number(diag, options, sbp_option_name(SBP_OPT_ACCUMULATE), &accumulate));
        SBP_TRY(get_number(diag, options, sbp_option_name(SBP_OPT_MEMORY), &memory));
    }
    out->memory_bytes = out->meta.memory_bytes;
    if (out->memory_bytes == 0 && memory >= 1 && memory < 9e18)
        out->memory_bytes = (int64_t)memory;
    out->max_grad_norm = clip;
    out->most_parts = accumulate >= 1 && accumulate < 1e15 ? (int64_t)accumulate : 0;
    out->ranks = plan->program->ranks;
    if (!out->meta.backend)
        out->meta.backend = sbp_backend_of_host()->name;
    if (!out->meta.dtype)
        out->meta.dtype = sbp_dtype_spelling(SBP_F32);
    return SBP_OK;
}

/* ---- options ---------------------------------------------------------------------------------------- */

const sbp_json *sbp_plan_value(const sbp_json *meta, const sbp_option *option, sbp_arena *arena) {
    char *name = sbp_arena_strdup(arena, option->name);
    for (char *at = strchr(name, '-'); at; at = strchr(at, '-'))
        *at = '_';
    const sbp_json *resolved = sbp_json_member(sbp_json_member(meta, "schedule"), name);
    if (resolved && resolved->kind == SBP_JSON_INT)
        return resolved;
    const sbp_json *given = sbp_json_member(sbp_json_member(meta, "options"), option->name);
    bool open = !given || given->kind == SBP_JSON_NULL ||
                (given->kind == SBP_JSON_STRING && strcmp(given->string, "auto") == 0);
    const sbp_json *became = open ? sbp_json_member(meta, name) : NULL;
    return became && became->kind != SBP_JSON_OBJECT ? became : given; /* "memory" is what the plan takes */
}

sbp_status sbp_plan_check_options(sbp_diag *diag, const sbp_plan *plan, const sbp_options *options,
                                  sbp_arena *arena) {
    const sbp_option *option;
    int32_t at = 0;
    while ((option = sbp_options_next_given(options, SBP_PHASE_COMPILE, SBP_PHASE_RUN, &at))) {
        const sbp_json *value = sbp_plan_value(plan->meta, option, arena);
        const char *config = sbp_options_from_config(options, option->id);
        bool asks =
            option->kind == SBP_OPTION_LIST || strcmp(sbp_options_text(options, option->id), "auto") != 0;
        if ((config || sbp_options_from_bundle(options, option->id)) &&
            (!asks || sbp_options_same(options, option, value)))
            continue;
        sbp_text plans;
        sbp_text_init(&plans, arena);
        if (value && value->kind == SBP_JSON_STRING)
            sbp_text_add_n(&plans, value->string, (size_t)value->count);
        else if (value)
            sbp_json_add_value(&plans, value);
        return sbp_fail(diag, SBP_USAGE,
                        "%s%s%s was decided when '%s' was compiled%s%s; compile again to change it",
                        config ? config : "", config ? ": " : "", sbp_option_typed(arena, option), plan->path,
                        value ? ", as " : "", plans.data);
    }
    return SBP_OK;
}

/* Settings that the plan's objective does not have: files and commands for TRL may have those of all
 * losses. */
static void note_idle_settings(sbp_diag *diag, const sbp_plan_info *info, const sbp_options *options,
                               sbp_arena *arena) {
    sbp_text idle;
    sbp_text_init(&idle, arena);
    for (int32_t i = 0; sbp_option_setting_at(i); i++) {
        const sbp_option *option = sbp_option_setting_at(i);
        const char *name = option->name;
        bool has = info->meta.defaults && sbp_json_member(info->meta.defaults, name);
        if (!sbp_options_chosen(options, option->id) || has ||
            (option->phases & sbp_options_phases(options) & SBP_PHASE_GENERATE))
            continue;
        sbp_text_add(&idle, "%s%s", idle.length > 0 ? ", " : "", name);
    }
    if (idle.length > 0)
        sbp_note(diag, "these settings have no effect with this objective: %s", idle.data);
}

sbp_status sbp_plan_set_defaults(sbp_diag *diag, const sbp_plan_info *info, sbp_options *options,
                                 sbp_arena *arena) {
    note_idle_settings(diag, info, options, arena);
    for (int64_t i = 0; info->meta.defaults && i < info->meta.defaults->count; i++) {
        const sbp_json *value = &info->meta.defaults->items[i];
        sbp_text text;
        sbp_text_init(&text, arena);
        if (value->kind == SBP_JSON_STRING)
            sbp_text_add_n(&text, value->string, (size_t)value->count);
        else
            sbp_json_add_value(&text, value);
        const sbp_option *option = sbp_option_find(value->key);
        if (option && (option->phases & SBP_PHASE_RUN) && option->kind != SBP_OPTION_LIST &&
            value->kind != SBP_JSON_NULL)
            SBP_TRY(sbp_options_set_default(options, diag, option->id, text.data));
    }
    return SBP_OK;
}
