/* objective_build.c: what losses are built with (objective.h). */
#include "frontends/objectives/objective.h"

#include <string.h>

static sbp_value row_called(sbp_objective *o, const char *name) {
    sbp_dtype dtype = o->dtype == SBP_F64 ? SBP_F64 : SBP_F32;
    return sbp_build_row(o->builder, name, dtype, SBP_T);
}

static const char *joined(const sbp_objective *o, const char *a, const char *b) {
    return sbp_arena_printf(o->builder->module->arena, "%s%s", a, b);
}

sbp_value sbp_objective_row(sbp_objective *o, sbp_column_id column) {
    return row_called(o, sbp_data_columns[column].name);
}

sbp_value sbp_objective_has(sbp_objective *o, sbp_column_id column) {
    return row_called(o, joined(o, SBP_HAS_PREFIX, sbp_data_columns[column].name));
}

sbp_value sbp_objective_in(sbp_objective *o, sbp_part_id part) {
    return row_called(o, joined(o, SBP_IN_PREFIX, sbp_part_names[part]));
}

sbp_value sbp_objective_one_of(sbp_objective *o, sbp_column_id a, sbp_column_id b) {
    return row_called(o, sbp_arena_printf(o->builder->module->arena, SBP_ONE_OF_PREFIX "%s.%s",
                                          sbp_data_columns[a].name, sbp_data_columns[b].name));
}

sbp_value sbp_objective_prepared_row(sbp_objective *o, const char *name) {
    return row_called(o, name);
}

static sbp_value scalar_called(sbp_objective *o, const char *name) {
    return sbp_build_cast(o->builder, sbp_build_scalar(o->builder, name), o->dtype);
}

/* "NAME", or of one part "NAME.PART". */
static const char *name_of_part(const sbp_objective *o, const char *name, sbp_part_id part) {
    if (part == SBP_PART_COUNT)
        return name;
    return sbp_arena_printf(o->builder->module->arena, "%s.%s", name, sbp_part_names[part]);
}

sbp_value sbp_objective_scalar(sbp_objective *o, sbp_scalar_id scalar) {
    return scalar_called(o, sbp_scalar_names[scalar]);
}

sbp_value sbp_objective_wide_total(sbp_objective *o, sbp_total_id total, sbp_part_id part) {
    return sbp_build_scalar(o->builder, name_of_part(o, sbp_totals[total].name, part));
}

sbp_value sbp_objective_part_total(sbp_objective *o, sbp_total_id total, sbp_part_id part) {
    return sbp_build_cast(o->builder, sbp_objective_wide_total(o, total, part), o->dtype);
}

sbp_value sbp_objective_total(sbp_objective *o, sbp_total_id total) {
    return sbp_objective_part_total(o, total, SBP_PART_COUNT);
}

sbp_value sbp_objective_prepared_number(sbp_objective *o, const char *name) {
    return scalar_called(o, name);
}

static sbp_dtype dtype_of(const sbp_objective *o, sbp_value like) {
    return o->builder->status == SBP_OK ? sbp_build_type(o->builder, like)->dtype : o->dtype;
}

void sbp_objective_add_setting(sbp_objective *o, const char *name, double fallback) {
    o = o->loss ? o->loss : o;
    for (int32_t i = 0; i < o->setting_count; i++)
        if (strcmp(o->settings[i].name, name) == 0)
            return;
    SBP_PUSH(o->builder->module->arena, o->settings, o->setting_count, o->setting_capacity,
             (sbp_setting){.name = name, .value = fallback});
}

/* As options are called, with underscores for dashes. */
static const char *setting_name(const sbp_objective *o, sbp_setting_id id) {
    static const char *const options[] = {
#define OPTION(id, name, ...) name,
#define KEY OPTION
#include "frontends/objectives/settings.def"
#undef KEY
#undef OPTION
    };
    char *name = sbp_arena_strdup(o->builder->module->arena, options[id]);
    for (char *at = name; (at = strchr(at, '-'));)
        *at = '_';
    return name;
}

sbp_value sbp_objective_setting(sbp_objective *o, sbp_setting_id id, double fallback, sbp_value like) {
    const char *name = setting_name(o, id);
    sbp_objective_add_setting(o, name, fallback);
    return sbp_build_cast(o->builder, sbp_build_scalar(o->builder, name), dtype_of(o, like));
}

sbp_value sbp_objective_index(sbp_objective *o, sbp_column_id column) {
    return sbp_build_row(o->builder, sbp_data_columns[column].name, SBP_I32, SBP_T);
}

sbp_value sbp_objective_group(sbp_objective *o, sbp_column_id column, sbp_part_id part) {
    return sbp_build_row(o->builder, name_of_part(o, sbp_data_columns[column].name, part), SBP_F64, SBP_S);
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
