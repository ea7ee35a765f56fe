/* objective.c: the table of objectives, and what their builders share. */
#include "frontends/objectives/objective.h"

#include <string.h>

static const struct {
    const char *name;
    sbp_objective_builder build;
} objectives[] = {
#define OBJECTIVE(name, function) {name, function},
#include "frontends/objectives/objectives.def"
#undef OBJECTIVE
};

const char *sbp_objective_name(int32_t index) {
    return index >= 0 && index < SBP_COUNT(objectives) ? objectives[index].name : NULL;
}

sbp_objective_builder sbp_objective_find(const char *name) {
    for (int32_t i = 0; i < SBP_COUNT(objectives); i++)
        if (strcmp(objectives[i].name, name) == 0)
            return objectives[i].build;
    return NULL;
}

/* ---- for builders ---------------------------------------------------------------------------------- */

sbp_value sbp_objective_row(sbp_objective *o, const char *name) {
    return sbp_build_cast(o->builder, sbp_build_row(o->builder, name, SBP_F32, SBP_T), o->dtype);
}

sbp_value sbp_objective_scalar(sbp_objective *o, const char *name) {
    return sbp_build_cast(o->builder, sbp_build_scalar(o->builder, name), o->dtype);
}

void sbp_objective_result(sbp_objective *o, const char *name, sbp_value term) {
    sbp_value sum = sbp_build(o->builder, SBP_OP_sum_rows, name, &term, 1,
                              (sbp_attr[]){sbp_attr_int("rank", 0)}, 1, NULL);
    if (o->builder->status == SBP_OK)
        sbp_func_add_result(o->builder->func, sum, SBP_RESULT_VALUE, SBP_NO_VALUE, name);
}

/* ---- building -------------------------------------------------------------------------------------- */

typedef struct adding {
    sbp_module *module;
    sbp_diag *diag;
    sbp_objective_builder build;
    const char *loss_type;
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
    return sbp_fail(a->diag, SBP_INTERNAL, "objective: @model has no result '%s' (sbp_hf_finish adds it)",
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
    sbp_objective o = {.builder = &builder, .loss_type = a->loss_type};
    SBP_TRY(add_stream(a, model, func, "logp", &o.logp));
    SBP_TRY(add_stream(a, model, func, "entropy", &o.entropy));
    SBP_TRY(add_stream(a, model, func, "hit", &o.hit));
    o.dtype = func->values[o.logp].type.dtype;
    builder.node = "objective";
    a->build(&o);
    return builder.status;
}

sbp_status sbp_objective_add_with(sbp_module *module, sbp_diag *diag, sbp_objective_builder build,
                                  const char *loss_type) {
    adding a = {.module = module, .diag = diag, .build = build, .loss_type = loss_type};
    return sbp_guard(module->arena, diag, add_guarded, &a);
}

sbp_status sbp_objective_add(sbp_module *module, sbp_diag *diag, const char *name, const char *loss_type) {
    sbp_objective_builder build = sbp_objective_find(name);
    if (build)
        return sbp_objective_add_with(module, diag, build, loss_type);
    char known[200] = "";
    for (int32_t i = 0; i < SBP_COUNT(objectives); i++) {
        strncat(known, i ? ", " : "", sizeof known - strlen(known) - 1);
        strncat(known, objectives[i].name, sizeof known - strlen(known) - 1);
    }
    return sbp_fail(diag, SBP_USAGE, "no objective '%s' is built; there are: %s", name, known);
}
