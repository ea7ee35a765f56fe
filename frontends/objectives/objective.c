/* objective.c: the table of objectives, and what their builders share. */
#include "frontends/objectives/objective.h"

#include <string.h>

static const struct {
    const char *name;
    sbp_objective_builder build;
    bool pairs;
    sbp_head_options head;
} objectives[] = {
#define OBJECTIVE(name, function, pairs, ...) {name, function, pairs, __VA_ARGS__},
#include "frontends/objectives/objectives.def"
#undef OBJECTIVE
};

const char *sbp_objective_name(int32_t index) {
    return index >= 0 && index < SBP_COUNT(objectives) ? objectives[index].name : NULL;
}

const char *sbp_objective_of_pairs(void) {
    int32_t i = 0;
    while (i < SBP_COUNT(objectives) && !objectives[i].pairs)
        i++;
    return sbp_objective_name(i);
}

/* Place in the table; -1: none. */
static int32_t find(const char *name) {
    for (int32_t i = 0; i < SBP_COUNT(objectives); i++)
        if (name && strcmp(objectives[i].name, name) == 0)
            return i;
    return -1;
}

sbp_objective_builder sbp_objective_find(const char *name) {
    int32_t found = find(name);
    return found >= 0 ? objectives[found].build : NULL;
}

sbp_head_options sbp_objective_head(const char *name) {
    int32_t found = find(name);
    return found >= 0 ? objectives[found].head : (sbp_head_options){0};
}

/* ---- for builders ---------------------------------------------------------------------------------- */

/* ---- building -------------------------------------------------------------------------------------- */

typedef struct adding {
    sbp_module *module;
    sbp_diag *diag;
    const sbp_objective_choice *choice;
    sbp_objective_builder build;
    sbp_objective_settings *settings;
} adding;

/* A stream argument for the result of @model of that name. */
static sbp_status add_stream(const adding *a, const sbp_func *model, sbp_func *func, const char *name,
                             sbp_value *out) {
    for (int32_t i = 0; i < model->result_count; i++) {
        const sbp_result *result = &model->results[i];
        if (!result->name || strcmp(result->name, name) != 0)
            continue;
        *out = sbp_func_add_arg(func, SBP_VALUE_STREAM, name, &model->values[result->value].type, -1);
        return SBP_OK;
    }
    return sbp_fail(a->diag, SBP_INTERNAL, "objective: @model has no result '%s' (sbp_head_finish adds it)",
                    name);
}

static sbp_status add_guarded(void *user) {
    adding *a = user;
    const sbp_func *model = sbp_module_find_func(a->module, "model");
    if (!model)
        return sbp_fail(a->diag, SBP_INTERNAL, "objective: module '%s' has no function @model",
                        a->module->name);
    sbp_func *func = sbp_module_add_func(a->module, "objective");
    sbp_builder builder = sbp_builder_on(a->module, func, a->diag);
    sbp_objective o = {.builder = &builder, .loss_type = a->choice->loss_type, .request = a->choice->request};
    SBP_TRY(add_stream(a, model, func, "logp", &o.logp));
    SBP_TRY(add_stream(a, model, func, "entropy", &o.entropy));
    SBP_TRY(add_stream(a, model, func, "hit", &o.hit));
    o.value = SBP_NO_VALUE;
    if (a->choice->name && sbp_objective_head(a->choice->name).value)
        SBP_TRY(add_stream(a, model, func, "value", &o.value));
    o.dtype = func->values[o.logp].type.dtype;
    builder.node = "objective";
    if (a->choice->name && sbp_objective_head(a->choice->name).temperature)
        sbp_objective_add_setting(&o, sbp_scalar_names[SBP_SCALAR_TEMPERATURE], 1); /* the head's divisor */
    a->build(&o);
    if (builder.status == SBP_OK)
        builder.status = sbp_objective_add_statistics(&o, model, &a->choice->request.balance);
    if (a->settings)
        *a->settings = (sbp_objective_settings){.items = o.settings,
                                                .count = o.setting_count,
                                                .passes = o.passes,
                                                .counted = o.counted,
                                                .held = o.held,
                                                .prepare = o.prepare ? o.prepare->builder->module : NULL};
    if (o.prepare && builder.status == SBP_OK)
        return o.prepare->builder->status;
    return builder.status;
}

sbp_status sbp_objective_add(sbp_module *module, sbp_diag *diag, const sbp_objective_choice *choice,
                             sbp_objective_settings *settings) {
    adding a = {.module = module,
                .diag = diag,
                .choice = choice,
                .build = choice->build ? choice->build : sbp_objective_find(choice->name),
                .settings = settings};
    if (a.build)
        return sbp_guard(module->arena, diag, add_guarded, &a);
    char known[200] = "";
    for (int32_t i = 0; i < SBP_COUNT(objectives); i++) {
        strncat(known, i ? ", " : "", sizeof known - strlen(known) - 1);
        strncat(known, objectives[i].name, sizeof known - strlen(known) - 1);
    }
    return sbp_fail(diag, SBP_USAGE, "unknown objective '%s'; there are: %s", choice->name, known);
}
