/* graph.c: modules, functions and their ops. */
#include "ir/graph/graph.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

sbp_module *sbp_module_create(sbp_arena *arena, const char *name) {
    sbp_module *module = SBP_NEW(arena, sbp_module);
    module->arena = arena;
    module->name = sbp_arena_strdup(arena, name);
    sbp_map_init(&module->param_names, arena);
    return module;
}

sbp_module *sbp_module_copy(sbp_arena *arena, const sbp_module *from) {
    sbp_module *m = SBP_NEW(arena, sbp_module);
    *m = *from;
    m->funcs = SBP_NEW_ARRAY(arena, sbp_func *, from->func_count);
    if (from->func_count > 0)
        memcpy(m->funcs, from->funcs, (size_t)from->func_count * sizeof *m->funcs);
    m->func_capacity = m->func_count; /* full lists move when they grow */
    m->row_capacity = m->row_count;
    m->scalar_capacity = m->scalar_count;
    m->const_capacity = m->const_count;
    m->param_capacity = m->param_count;
    m->adapter_capacity = m->adapter_count;
    m->call_capacity = m->call_count;
    sbp_map_copy(&m->param_names, arena, &from->param_names);
    return m;
}

int32_t sbp_module_add_row(sbp_module *module, const char *name, sbp_dtype dtype) {
    for (int32_t i = 0; i < module->row_count; i++)
        if (strcmp(module->rows[i].name, name) == 0)
            return i;
    SBP_PUSH(module->arena, module->rows, module->row_count, module->row_capacity,
             (sbp_row){.name = sbp_arena_strdup(module->arena, name), .dtype = dtype});
    return module->row_count - 1;
}

int32_t sbp_module_add_scalar(sbp_module *module, const char *name) {
    for (int32_t i = 0; i < module->scalar_count; i++)
        if (strcmp(module->scalars[i], name) == 0)
            return i;
    SBP_PUSH(module->arena, module->scalars, module->scalar_count, module->scalar_capacity,
             sbp_arena_strdup(module->arena, name));
    return module->scalar_count - 1;
}

int32_t sbp_module_add_const(sbp_module *module, const char *name, const sbp_type *type, const double *data) {
    int64_t elems = sbp_type_row_elems(type);
    double *copy = SBP_NEW_ARRAY(module->arena, double, elems);
    memcpy(copy, data, (size_t)elems * sizeof *copy);
    for (int32_t i = 0; i < module->const_count; i++)
        if (sbp_type_equal(&module->consts[i].type, type) &&
            memcmp(module->consts[i].data, data, (size_t)elems * sizeof *data) == 0)
            return i;
    const char *unique = sbp_arena_strdup(module->arena, name);
    for (int32_t i = 0; i < module->const_count; i++)
        if (strcmp(module->consts[i].name, unique) == 0)
            unique = sbp_arena_printf(module->arena, "%s.%d", name, module->const_count);
    SBP_PUSH(module->arena, module->consts, module->const_count, module->const_capacity,
             (sbp_const){.name = unique, .type = *type, .data = copy});
    return module->const_count - 1;
}

int32_t sbp_module_add_param(sbp_module *module, const sbp_param *param) {
    SBP_PUSH(module->arena, module->params, module->param_count, module->param_capacity, *param);
    sbp_param *added = &module->params[module->param_count - 1];
    added->name = sbp_arena_strdup(module->arena, param->name);
    sbp_map_set(&module->param_names, added->name, module->param_count - 1);
    return module->param_count - 1;
}

int32_t sbp_module_find_param(const sbp_module *module, const char *name) {
    return sbp_map_get(&module->param_names, name);
}

sbp_func *sbp_module_add_func(sbp_module *module, const char *name) {
    sbp_func *func = sbp_func_create(module->arena, name);
    SBP_PUSH(module->arena, module->funcs, module->func_count, module->func_capacity, func);
    return func;
}

sbp_func *sbp_module_find_func(const sbp_module *module, const char *name) {
    for (int32_t i = 0; i < module->func_count; i++)
        if (strcmp(module->funcs[i]->name, name) == 0)
            return module->funcs[i];
    return NULL;
}

/* ---- functions ------------------------------------------------------------------------------------ */

sbp_func *sbp_func_create(sbp_arena *arena, const char *name) {
    sbp_func *func = SBP_NEW(arena, sbp_func);
    func->arena = arena;
    func->name = sbp_arena_strdup(arena, name);
    sbp_map_init(&func->names, arena);
    sbp_map_init(&func->numbers, arena);
    return func;
}

const char *sbp_func_free_name(sbp_func *func, const char *name) {
    if (sbp_map_get(&func->names, name) < 0)
        return sbp_arena_strdup(func->arena, name);
    int32_t last = sbp_map_get(&func->numbers, name);
    const char *key = last < 0 ? sbp_arena_strdup(func->arena, name) : name;
    for (int32_t n = last < 2 ? 2 : last + 1;; n++) {
        const char *candidate = sbp_arena_printf(func->arena, "%s.%d", name, n);
        sbp_map_set(&func->numbers, key, n);
        if (sbp_map_get(&func->names, candidate) < 0)
            return candidate;
    }
}

static sbp_value add_value(sbp_func *func, const sbp_value_info *info) {
    SBP_PUSH(func->arena, func->values, func->value_count, func->value_capacity, *info);
    sbp_value value = func->value_count - 1;
    const char *name = info->name ? sbp_func_free_name(func, info->name)
                                  : sbp_arena_printf(func->arena, "t%d", func->value_count);
    while (sbp_map_get(&func->names, name) >= 0) /* a number that someone gave as a name */
        name = sbp_arena_printf(func->arena, "%s.t", name);
    func->values[value].name = name;
    sbp_map_set(&func->names, name, value);
    return value;
}

sbp_value sbp_func_add_arg(sbp_func *func, sbp_value_role role, const char *name, const sbp_type *type,
                           int32_t binding) {
    sbp_value value = add_value(
        func, &(sbp_value_info){.type = *type, .name = name, .role = role, .op = -1, .binding = binding});
    SBP_PUSH(func->arena, func->args, func->arg_count, func->arg_capacity, value);
    return value;
}

void sbp_func_add_result(sbp_func *func, sbp_value value, sbp_result_role role, sbp_value target,
                         const char *name) {
    SBP_PUSH(func->arena, func->results, func->result_count, func->result_capacity,
             (sbp_result){.value = value,
                          .role = role,
                          .target = target,
                          .name = name ? sbp_arena_strdup(func->arena, name) : NULL});
}

int32_t sbp_func_add_op(sbp_func *func, const sbp_op *op, const sbp_type *result_types, const char *name) {
    sbp_op copy = *op;
    int32_t number = func->op_count;
    sbp_attr_schema schema[SBP_MAX_ATTRS];
    int32_t attr_count = sbp_opcode_attrs(op->code, schema);
    copy.result_count = sbp_opcode_results(op->code);
    copy.operands = SBP_NEW_ARRAY(func->arena, sbp_value, op->operand_count);
    if (op->operand_count > 0)
        memcpy(copy.operands, op->operands, (size_t)op->operand_count * sizeof *copy.operands);
    copy.attrs = SBP_NEW_ARRAY(func->arena, sbp_attr, attr_count);
    if (attr_count > 0)
        memcpy(copy.attrs, op->attrs, (size_t)attr_count * sizeof *copy.attrs);
    copy.results = SBP_NEW_ARRAY(func->arena, sbp_value, copy.result_count);
    for (int32_t r = 0; r < copy.result_count; r++) {
        const char *result_name = name;
        if (name && r > 0)
            result_name = sbp_arena_printf(func->arena, "%s.r%d", name, r);
        copy.results[r] = add_value(func, &(sbp_value_info){.type = result_types[r],
                                                            .name = result_name,
                                                            .role = SBP_VALUE_OP,
                                                            .op = number,
                                                            .binding = -1});
    }
    SBP_PUSH(func->arena, func->ops, func->op_count, func->op_capacity, copy);
    return number;
}

void sbp_func_copy_ops(const sbp_func *from, sbp_func *to, sbp_value *map, const bool *keep) {
    for (int32_t i = 0; i < from->op_count; i++) {
        if (keep && !keep[i])
            continue;
        const sbp_op *op = &from->ops[i];
        sbp_value operands[SBP_MAX_OPERANDS];
        sbp_type types[SBP_MAX_RESULTS];
        for (int32_t k = 0; k < op->operand_count; k++) {
            operands[k] = op->operands[k] == SBP_NO_VALUE ? SBP_NO_VALUE : map[op->operands[k]];
            assert(op->operands[k] == SBP_NO_VALUE || operands[k] != SBP_NO_VALUE);
        }
        for (int32_t r = 0; r < op->result_count; r++)
            types[r] = from->values[op->results[r]].type;
        sbp_op copy = *op;
        copy.operands = operands;
        int32_t number = sbp_func_add_op(to, &copy, types, NULL);
        for (int32_t r = 0; r < op->result_count; r++) {
            sbp_value value = to->ops[number].results[r];
            map[op->results[r]] = value;
            const char *name = from->values[op->results[r]].name;
            if (sbp_map_get(&to->names, name) < 0) { /* keep names that --save may speak of */
                to->values[value].name = name;
                sbp_map_set(&to->names, name, value);
            }
        }
    }
}

void sbp_func_prune(sbp_func *func) {
    bool *needed = SBP_NEW_ARRAY(func->arena, bool, func->value_count + 1);
    for (int32_t i = 0; i < func->result_count; i++)
        needed[func->results[i].value] = true;
    bool *keep = SBP_NEW_ARRAY(func->arena, bool, func->op_count + 1);
    for (int32_t i = func->op_count - 1; i >= 0; i--) {
        const sbp_op *op = &func->ops[i];
        for (int32_t r = 0; r < op->result_count; r++)
            keep[i] |= needed[op->results[r]];
        for (int32_t k = 0; keep[i] && k < op->operand_count; k++)
            if (op->operands[k] != SBP_NO_VALUE)
                needed[op->operands[k]] = true;
    }
    int32_t count = 0;
    for (int32_t i = 0; i < func->op_count; i++) {
        if (!keep[i]) {
            for (int32_t r = 0; r < func->ops[i].result_count; r++)
                func->values[func->ops[i].results[r]].op = -1;
            continue;
        }
        func->ops[count] = func->ops[i];
        for (int32_t r = 0; r < func->ops[count].result_count; r++)
            func->values[func->ops[count].results[r]].op = count;
        count++;
    }
    func->op_count = count;
}
