/* rule.c: commands over whole buffers from small graphs. */
#include "passes/optimizers/rule.h"

#include <string.h>

#include "passes/rows/fuse.h"
#include "passes/rows/schedule.h"

void sbp_rule_begin(sbp_program_builder *p, const char *name, sbp_rule *out) {
    const char *copy = sbp_arena_strdup(p->arena, name);
    *out = (sbp_rule){.p = p, .code = {.name = copy}};
    out->builder = sbp_builder_on(p->module, sbp_func_create(p->arena, copy), p->diag);
    out->values = SBP_NEW_ARRAY(p->arena, sbp_value, SBP_MAX_RULE_OPERANDS);
    out->results = SBP_NEW_ARRAY(p->arena, sbp_value, SBP_MAX_RULE_OPERANDS);
    out->widths = SBP_NEW_ARRAY(p->arena, int64_t, SBP_MAX_RULE_OPERANDS);
}

static int32_t add_formal(sbp_rule *r, const char *name, sbp_access access, sbp_dtype dtype, sbp_extent rows,
                          int64_t cols) {
    sbp_function *f = &r->code;
    if (f->formal_count >= SBP_MAX_RULE_OPERANDS) {
        r->builder.status = sbp_fail(r->p->diag, SBP_INTERNAL, "rule '%s' has too many operands", f->name);
        return 0;
    }
    SBP_PUSH(r->p->arena, f->formals, f->formal_count, f->formal_capacity,
             (sbp_formal){.name = name, .access = access, .dtype = dtype, .rows = rows, .cols = cols});
    return f->formal_count - 1;
}

sbp_value sbp_rule_operand(sbp_rule *r, const char *name, sbp_access access, sbp_dtype dtype, sbp_extent rows,
                           int64_t cols) {
    return sbp_rule_blocks(r, name, access, dtype, rows, cols, 0);
}

sbp_value sbp_rule_blocks(sbp_rule *r, const char *name, sbp_access access, sbp_dtype dtype, sbp_extent rows,
                          int64_t cols, int64_t width) {
    int32_t formal = add_formal(r, name, access, dtype, rows, cols);
    sbp_type type = {
        .dtype = dtype, .rank = 2, .dim = {sbp_dim_symbol(SBP_T), sbp_dim_const(width > 0 ? width : cols)}};
    r->widths[formal] = width;
    r->results[formal] = r->values[formal] = SBP_NO_VALUE;
    if (access != SBP_WRITE)
        r->values[formal] = sbp_func_add_arg(r->builder.func, SBP_VALUE_STREAM, name, &type, -1);
    return r->values[formal];
}

sbp_value sbp_rule_number(sbp_rule *r, const char *name, sbp_dtype dtype) {
    int32_t formal = add_formal(r, name, SBP_READ, dtype, sbp_extent_const(1), 1);
    sbp_type type = {.dtype = dtype, .rank = 1, .dim = {sbp_dim_const(1)}};
    r->results[formal] = SBP_NO_VALUE;
    r->values[formal] = sbp_func_add_arg(r->builder.func, SBP_VALUE_PARAM, name, &type, -1);
    return r->values[formal];
}

void sbp_rule_store(sbp_rule *r, int32_t formal, sbp_value value) {
    const sbp_formal *f = &r->code.formals[formal];
    value = r->results[formal] = sbp_build_cast(&r->builder, value, f->dtype);
    if (value != SBP_NO_VALUE && r->values[formal] == SBP_NO_VALUE)
        sbp_build_name(&r->builder, value, f->name);
}

sbp_status sbp_rule_end(sbp_rule *r) {
    SBP_TRY(r->builder.status);
    sbp_func *f = r->builder.func;
    for (int32_t i = 0; i < r->code.formal_count; i++)
        if (r->results[i] != SBP_NO_VALUE)
            sbp_func_add_result(f, r->results[i], SBP_RESULT_VALUE, -1, r->code.formals[i].name);
    sbp_stage *stage = sbp_lower_stage(r->p, r->code.name, f, -1, false, (sbp_row_order){0});
    stage->of_param = r->of_param;
    for (int32_t i = 0; i < r->code.formal_count; i++) {
        sbp_view view = sbp_view_formal(&r->code, i);
        if (r->widths[i] > 0)
            view = sbp_view_wide(NULL, &r->code, &view, r->widths[i]);
        if (r->values[i] != SBP_NO_VALUE)
            stage->places[r->values[i]] = view;
        if (r->results[i] != SBP_NO_VALUE)
            SBP_PUSH(r->p->arena, stage->stores, stage->store_count, stage->store_capacity,
                     (sbp_store){.value = r->results[i], .to = view});
    }
    SBP_TRY(sbp_fuse_stage(r->p, stage));
    SBP_TRY(sbp_schedule_stage(r->p, &r->code, -1, stage, &r->code.body));
    SBP_PUSH(r->p->arena, r->p->rule_stages, r->p->rule_stage_count, r->p->rule_stage_capacity, stage);
    return SBP_OK;
}
