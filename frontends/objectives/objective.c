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

sbp_value sbp_objective_row(sbp_objective *o, const char *name) {
    sbp_dtype dtype = o->dtype == SBP_F64 ? SBP_F64 : SBP_F32;
    return sbp_build_row(o->builder, name, dtype, SBP_T);
}

sbp_value sbp_objective_scalar(sbp_objective *o, const char *name) {
    return sbp_build_cast(o->builder, sbp_build_scalar(o->builder, name), o->dtype);
}

static sbp_dtype dtype_of(const sbp_objective *o, sbp_value like) {
    return o->builder->status == SBP_OK ? sbp_build_type(o->builder, like)->dtype : o->dtype;
}

static void add_setting(sbp_objective *o, const char *name, double fallback) {
    o = o->loss ? o->loss : o;
    for (int32_t i = 0; i < o->setting_count; i++)
        if (strcmp(o->settings[i].name, name) == 0)
            return;
    SBP_PUSH(o->builder->module->arena, o->settings, o->setting_count, o->setting_capacity,
             (sbp_setting){.name = name, .value = fallback});
}

sbp_value sbp_objective_setting(sbp_objective *o, const char *name, double fallback, sbp_value like) {
    add_setting(o, name, fallback);
    return sbp_build_cast(o->builder, sbp_build_scalar(o->builder, name), dtype_of(o, like));
}

sbp_value sbp_objective_index(sbp_objective *o, const char *name) {
    return sbp_build_row(o->builder, name, SBP_I32, SBP_T);
}

sbp_value sbp_objective_group(sbp_objective *o, const char *name) {
    return sbp_build_row(o->builder, name, SBP_F64, SBP_S);
}

sbp_value sbp_objective_group_sum(sbp_objective *o, sbp_value term, sbp_value index) {
    return sbp_build2(o->builder, SBP_OP_group_sum, term, index);
}

sbp_value sbp_objective_of_group(sbp_objective *o, sbp_value value, sbp_value index) {
    return sbp_build_cast(o->builder, sbp_build2(o->builder, SBP_OP_group_take, value, index), o->dtype);
}

sbp_value sbp_objective_number(sbp_objective *o, double value, sbp_value like) {
    return sbp_build_const(o->builder, dtype_of(o, like), value);
}

sbp_value sbp_objective_less(sbp_objective *o, sbp_value a, sbp_value b) {
    return sbp_build_cast(o->builder, sbp_build2(o->builder, SBP_OP_lt, a, b), dtype_of(o, a));
}

void sbp_objective_result(sbp_objective *o, const char *name, sbp_value term) {
    sbp_value sum = sbp_build(o->builder, SBP_OP_sum_rows, name, &term, 1,
                              (sbp_attr[]){sbp_attr_int("rank", 0)}, 1, NULL);
    for (int32_t r = 0; o->builder->status == SBP_OK && r < o->builder->func->result_count; r++) {
        sbp_result *earlier = &o->builder->func->results[r];
        if (strcmp(earlier->name, name) != 0)
            continue;
        earlier->value = sbp_build2(o->builder, SBP_OP_add, earlier->value, sum);
        return;
    }
    if (o->builder->status == SBP_OK)
        sbp_func_add_result(o->builder->func, sum, SBP_RESULT_VALUE, SBP_NO_VALUE, name);
}

sbp_objective *sbp_objective_prepare(sbp_objective *o) {
    if (o->prepare)
        return o->prepare;
    sbp_arena *arena = o->builder->module->arena;
    sbp_module *module = sbp_module_create(arena, "prepare");
    sbp_builder *builder = SBP_NEW(arena, sbp_builder);
    *builder = sbp_builder_on(module, sbp_module_add_func(module, "prepare"), o->builder->diag);
    builder->node = "prepare";
    o->prepare = SBP_NEW(arena, sbp_objective);
    *o->prepare = (sbp_objective){.builder = builder,
                                  .loss_type = o->loss_type,
                                  .request = o->request,
                                  .dtype = SBP_F64,
                                  .logp = SBP_NO_VALUE,
                                  .entropy = SBP_NO_VALUE,
                                  .hit = SBP_NO_VALUE,
                                  .value = SBP_NO_VALUE,
                                  .loss = o};
    return o->prepare;
}

void sbp_objective_prepared(sbp_objective *prepare, const char *name, sbp_value value) {
    sbp_builder *b = prepare->builder;
    if (b->status == SBP_OK)
        sbp_func_add_result(b->func, value, SBP_RESULT_VALUE, SBP_NO_VALUE, name);
}

void sbp_objective_refuse(sbp_objective *o, const char *name, const char *known) {
    if (o->builder->status == SBP_OK)
        o->builder->status =
            sbp_fail(o->builder->diag, SBP_USAGE, "objective %s has no loss type '%s'; there are: %s", name,
                     o->loss_type ? o->loss_type : "", known);
}

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
        add_setting(&o, "temperature", 1); /* of the head, which divides by it */
    a->build(&o);
    if (builder.status == SBP_OK)
        builder.status = sbp_objective_add_statistics(&o, model, &a->choice->request.balance);
    if (a->settings)
        *a->settings = (sbp_objective_settings){.items = o.settings,
                                                .count = o.setting_count,
                                                .passes = o.passes,
                                                .counted = o.counted,
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
