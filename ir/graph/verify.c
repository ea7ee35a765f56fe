/* verify.c: structure of modules and functions, and the shape rule of every op.
 *
 *   module_c1  names of parameters, rows, scalars, constants and functions are unique
 *   module_c2  types of parameters and constants are well formed, with constant dimensions only
 *   module_c3  calls name functions, parameters and model values that exist, of the right type
 *   module_c5  adapters are made of matrices that fit together
 *   module_c6  a parameter that is a number of the program is one f32, not trained
 *   func_c1    operands are defined before they are used
 *   func_c2    operand, result and attribute counts follow the op's schema
 *   func_c3    results have the types that the shape rule gives, and those are well formed (types.h)
 *   func_c4    arguments have well-formed types and are bound to things of the module, or for cotangents to
 *              values, that exist and have their type
 *   func_c5    results name values that are defined; targets are arguments; statistics are vectors without
 *              rows
 *   func_c6    value names are unique
 *   func_c7    a carry and the cotangent of a carry have one reader that changes them at a time (linear use);
 *              a state has one later state; append, and a RECUR op, continue a carry
 */
#include "ir/graph/op.h"

#include <math.h>
#include <string.h>

static sbp_status fail(sbp_diag *diag, const sbp_func *func, int constraint, const char *what) {
    return sbp_fail(diag, SBP_INTERNAL, "func_c%d: %s (in @%s)", constraint, what, func->name);
}

static sbp_status verify_arg(const sbp_module *module, const sbp_func *func, const sbp_value_info *info,
                             sbp_diag *diag) {
    const sbp_type *expected = NULL;
    sbp_type scalar = {.dtype = SBP_F64};
    int32_t limit = 0;
    if (!sbp_type_is_valid(&info->type))
        return fail(diag, func, 4, "an argument's type is malformed");
    switch (info->role) {
    case SBP_VALUE_COTANGENT:
        if (info->binding < -1 || info->binding >= func->value_count)
            return fail(diag, func, 4, "a cotangent belongs to nothing");
        return SBP_OK;
    case SBP_VALUE_ROW:
        limit = module->row_count;
        if (info->binding >= 0 && info->binding < limit &&
            (info->type.rank != 1 || sbp_type_rows(&info->type) == SBP_ONE ||
             info->type.dtype != module->rows[info->binding].dtype))
            return fail(diag, func, 4, "a row input has the wrong type");
        break;
    case SBP_VALUE_SCALAR:
        limit = module->scalar_count;
        expected = &scalar;
        break;
    case SBP_VALUE_CONST:
        limit = module->const_count;
        if (info->binding >= 0 && info->binding < limit)
            expected = &module->consts[info->binding].type;
        break;
    case SBP_VALUE_PARAM:
        if (info->binding == -1)
            return SBP_OK;
        limit = module->param_count;
        if (info->binding >= 0 && info->binding < limit)
            expected = &module->params[info->binding].type;
        break;
    default:
        return SBP_OK;
    }
    if (info->binding < 0 || info->binding >= limit)
        return fail(diag, func, 4, "an argument is bound to nothing");
    if (expected && !sbp_type_equal(expected, &info->type))
        return fail(diag, func, 4, "an argument's type differs from what it is bound to");
    return SBP_OK;
}

static sbp_status verify_op(const sbp_func *func, const sbp_op *op, const bool *defined, sbp_diag *diag) {
    sbp_operand_info info[SBP_MAX_OPERANDS];
    sbp_attr_schema schema[SBP_MAX_ATTRS];
    int32_t attrs = sbp_opcode_attrs(op->code, schema);
    if (op->operand_count != sbp_opcode_operands(op->code, info) ||
        op->result_count != sbp_opcode_results(op->code))
        return fail(diag, func, 2, "an op has the wrong number of operands or results");
    for (int32_t i = 0; i < attrs; i++)
        if (strcmp(op->attrs[i].name, schema[i].name) != 0 || op->attrs[i].kind != schema[i].kind)
            return fail(diag, func, 2, "an op has the wrong attributes");
    sbp_shape shape = {.op = op, .func = func->name, .diag = diag};
    for (int32_t k = 0; k < op->operand_count; k++) {
        sbp_value v = op->operands[k];
        shape.present[k] = v != SBP_NO_VALUE;
        if (!shape.present[k]) {
            if (!info[k].optional)
                return fail(diag, func, 2, "an operand is missing");
            continue;
        }
        if (v < 0 || v >= func->value_count || !defined[v])
            return fail(diag, func, 1, "an operand is used before it is defined");
        shape.in[k] = func->values[v].type;
    }
    SBP_TRY(sbp_opcode_rules(op->code)->shape(&shape));
    for (int32_t r = 0; r < op->result_count; r++)
        if (!sbp_type_is_valid(&shape.out[r]) ||
            !sbp_type_equal(&shape.out[r], &func->values[op->results[r]].type))
            return sbp_fail(diag, SBP_INTERNAL,
                            "func_c3: result %d of %s is %s, its shape rule says %s (in @%s)", r,
                            sbp_opcode_name(op->code), sbp_shape_text(&func->values[op->results[r]].type),
                            sbp_shape_text(&shape.out[r]), func->name);
    return SBP_OK;
}

/* What is said of the values of a function, for c7. */
typedef struct carries {
    bool *state_of;  /* of carry arguments, and those themselves */
    bool *changed;   /* must not be read any more */
    bool *continued; /* has a later state */
} carries;

/* Rows of a carry, and its cotangent, are added to where they are: nobody reads them as they were. A state
 * stays: the later one is another value. */
static sbp_status verify_continuation(const sbp_func *func, const sbp_op *op, carries *c, sbp_diag *diag) {
    for (int32_t k = 0; k < op->operand_count; k++)
        if (op->operands[k] != SBP_NO_VALUE && c->changed[op->operands[k]])
            return fail(diag, func, 7, "a carry is read after it was changed");
    for (int32_t r = 0; r < op->result_count; r++) {
        sbp_value from = sbp_op_continues(op, r);
        if (from == SBP_NO_VALUE)
            continue;
        bool carried = op->code == SBP_OP_append || sbp_opcode_class(op->code) == SBP_CLASS_RECUR;
        if (carried && !c->state_of[from])
            return fail(diag, func, 7,
                        op->code == SBP_OP_append ? "append to a value that is no carry"
                                                  : "the state of an op is no carry");
        if (c->continued[from])
            return fail(diag, func, 7, "a state has two later ones");
        c->continued[from] = true;
        c->changed[from] = sbp_type_rows(&func->values[from].type) != SBP_ONE;
        c->state_of[op->results[r]] = c->state_of[from];
    }
    return SBP_OK;
}

sbp_status sbp_func_verify(const sbp_module *module, const sbp_func *func, sbp_diag *diag) {
    bool *defined = SBP_NEW_ARRAY(func->arena, bool, func->value_count + 1);
    carries c = {.state_of = SBP_NEW_ARRAY(func->arena, bool, func->value_count + 1),
                 .changed = SBP_NEW_ARRAY(func->arena, bool, func->value_count + 1),
                 .continued = SBP_NEW_ARRAY(func->arena, bool, func->value_count + 1)};
    sbp_map names;
    sbp_map_init(&names, func->arena);
    for (int32_t i = 0; i < func->arg_count; i++) {
        sbp_value arg = func->args[i];
        if (arg < 0 || arg >= func->value_count || func->values[arg].role == SBP_VALUE_OP)
            return fail(diag, func, 4, "an argument is no argument value");
        defined[arg] = true;
        c.state_of[arg] = func->values[arg].role == SBP_VALUE_CARRY;
        SBP_TRY(verify_arg(module, func, &func->values[arg], diag));
    }
    for (int32_t i = 0; i < func->op_count; i++) {
        const sbp_op *op = &func->ops[i];
        SBP_TRY(verify_op(func, op, defined, diag));
        SBP_TRY(verify_continuation(func, op, &c, diag));
        for (int32_t r = 0; r < op->result_count; r++)
            defined[op->results[r]] = true;
    }
    for (int32_t i = 0; i < func->result_count; i++) {
        const sbp_result *result = &func->results[i];
        if (result->value < 0 || result->value >= func->value_count || !defined[result->value])
            return fail(diag, func, 5, "a result is not defined");
        if ((result->role == SBP_RESULT_CARRY || result->role == SBP_RESULT_GRADIENT) &&
            (result->target < 0 || result->target >= func->value_count ||
             func->values[result->target].role == SBP_VALUE_OP))
            return fail(diag, func, 5, "a result names no argument");
        const sbp_type *type = &func->values[result->value].type;
        if (result->role == SBP_RESULT_STATISTIC &&
            (!result->name || type->rank != 1 || sbp_type_rows(type) != SBP_ONE))
            return fail(diag, func, 5, "a statistic is no vector with a name");
        if (c.changed[result->value])
            return fail(diag, func, 7, "a carry is read after it was changed");
    }
    for (int32_t v = 0; v < func->value_count; v++) {
        if (!defined[v])
            continue;
        if (sbp_map_get(&names, func->values[v].name) >= 0)
            return fail(diag, func, 6, "two values have the same name");
        sbp_map_set(&names, func->values[v].name, v);
    }
    return SBP_OK;
}

static bool is_static(const sbp_type *type) {
    return sbp_type_is_valid(type) && sbp_type_rows(type) == SBP_ONE;
}

static sbp_status add_name(sbp_map *names, const char *what, const char *name, sbp_diag *diag) {
    if (sbp_map_get(names, name) >= 0)
        return sbp_fail(diag, SBP_INTERNAL, "module_c1: two %ss are called '%s'", what, name);
    sbp_map_set(names, name, 0);
    return SBP_OK;
}

static sbp_status verify_names(const sbp_module *module, sbp_diag *diag) {
    sbp_map params, rows, scalars, consts;
    sbp_map_init(&params, module->arena);
    sbp_map_init(&rows, module->arena);
    sbp_map_init(&scalars, module->arena);
    sbp_map_init(&consts, module->arena);
    for (int32_t i = 0; i < module->param_count; i++)
        SBP_TRY(add_name(&params, "parameter", module->params[i].name, diag));
    for (int32_t i = 0; i < module->row_count; i++)
        SBP_TRY(add_name(&rows, "row input", module->rows[i].name, diag));
    for (int32_t i = 0; i < module->scalar_count; i++)
        SBP_TRY(add_name(&scalars, "scalar", module->scalars[i], diag));
    for (int32_t i = 0; i < module->const_count; i++)
        SBP_TRY(add_name(&consts, "constant", module->consts[i].name, diag));
    return SBP_OK;
}

static sbp_status verify_call(const sbp_module *module, const sbp_invocation *call, sbp_diag *diag) {
    bool ok = call->func >= 0 && call->func < module->func_count;
    int32_t params = 0, streams = 0, outputs = 0;
    const sbp_func *func = ok ? module->funcs[call->func] : NULL;
    for (int32_t i = 0; ok && i < func->arg_count; i++) {
        const sbp_value_info *info = &func->values[func->args[i]];
        if (info->role == SBP_VALUE_PARAM) {
            ok = params < call->param_count && call->params[params] >= 0 &&
                 call->params[params] < module->param_count &&
                 sbp_type_equal(&info->type, &module->params[call->params[params]].type);
            params++;
        } else if (info->role == SBP_VALUE_STREAM) {
            ok = streams < call->stream_count && call->streams[streams] >= 0 &&
                 call->streams[streams] < module->model_value_count;
            streams++;
        }
    }
    for (int32_t i = 0; ok && i < func->result_count; i++)
        outputs += func->results[i].role == SBP_RESULT_VALUE;
    ok = ok && params == call->param_count && streams == call->stream_count && outputs == call->output_count;
    for (int32_t i = 0; ok && i < call->output_count; i++)
        ok = call->outputs[i] >= 0 && call->outputs[i] < module->model_value_count;
    return ok ? SBP_OK : sbp_fail(diag, SBP_INTERNAL, "module_c3: a call does not fit its function");
}

static sbp_status verify_number(const sbp_param *param, sbp_diag *diag) {
    if (!param->number || (param->type.dtype == SBP_F32 && param->storage == SBP_F32 && !param->trainable &&
                           param->format == SBP_FORMAT_NONE && sbp_type_row_elems(&param->type) == 1))
        return SBP_OK;
    return sbp_fail(diag, SBP_INTERNAL, "module_c6: '%s' is no number but %s", param->name,
                    sbp_shape_text(&param->type));
}

static sbp_status verify_format(const sbp_param *param, sbp_diag *diag) {
    int64_t elems = sbp_type_row_elems(&param->type),
            cols = param->type.rank > 1 ? param->type.dim[param->type.rank - 1].n : elems;
    if (param->format == SBP_FORMAT_NONE ||
        (!param->trainable && cols > 0 && sbp_format_fits(param->format, elems / cols, cols)))
        return SBP_OK;
    return sbp_fail(diag, SBP_INTERNAL, "module_c4: parameter '%s' cannot be kept as %s", param->name,
                    sbp_format_of(param->format)->name);
}

/* Matrices, or as many as the experts that another is of. */
static bool is_like(const sbp_type *type, const sbp_type *weight) {
    return type->rank == weight->rank &&
           (type->rank == 2 || (type->rank == 3 && type->dim[0].n == weight->dim[0].n));
}

/* What the products with a weight say of its sides, `lora` sees to. */
static sbp_status verify_adapter(const sbp_module *module, const sbp_adapter *adapter, sbp_diag *diag) {
    const int32_t params[] = {adapter->weight, adapter->a, adapter->b};
    for (int i = 0; i < SBP_COUNT(params); i++)
        if (params[i] < 0 || params[i] >= module->param_count ||
            !is_like(&module->params[params[i]].type, &module->params[params[0]].type))
            return sbp_fail(diag, SBP_INTERNAL, "module_c5: an adapter is made of no three matrices");
    const sbp_type *a = &module->params[adapter->a].type, *b = &module->params[adapter->b].type,
                   *w = &module->params[adapter->weight].type;
    int32_t rows = w->rank - 2, columns = rows + 1, out = adapter->in_out ? columns : rows;
    if (a->dim[rows].n != b->dim[columns].n || w->dim[out].n != b->dim[rows].n ||
        w->dim[rows + columns - out].n != a->dim[columns].n || !isfinite(adapter->scale) ||
        !(adapter->dropout >= 0 && adapter->dropout < 1))
        return sbp_fail(diag, SBP_INTERNAL,
                        "module_c5: the adapter of '%s' is %s times %s, by %g, without %g",
                        module->params[adapter->weight].name, sbp_shape_text(b), sbp_shape_text(a),
                        adapter->scale, adapter->dropout);
    return SBP_OK;
}

sbp_status sbp_module_verify(const sbp_module *module, sbp_diag *diag) {
    SBP_TRY(verify_names(module, diag));
    for (int32_t i = 0; i < module->param_count; i++)
        if (!is_static(&module->params[i].type))
            return sbp_fail(diag, SBP_INTERNAL, "module_c2: parameter '%s' is %s", module->params[i].name,
                            sbp_shape_text(&module->params[i].type));
    for (int32_t i = 0; i < module->param_count; i++) {
        SBP_TRY(verify_format(&module->params[i], diag));
        SBP_TRY(verify_number(&module->params[i], diag));
    }
    for (int32_t i = 0; i < module->adapter_count; i++)
        SBP_TRY(verify_adapter(module, &module->adapters[i], diag));
    for (int32_t i = 0; i < module->const_count; i++)
        if (!is_static(&module->consts[i].type))
            return sbp_fail(diag, SBP_INTERNAL, "module_c2: constant '%s' is %s", module->consts[i].name,
                            sbp_shape_text(&module->consts[i].type));
    for (int32_t i = 0; i < module->func_count; i++) {
        for (int32_t j = 0; j < i; j++)
            if (strcmp(module->funcs[i]->name, module->funcs[j]->name) == 0)
                return sbp_fail(diag, SBP_INTERNAL, "module_c1: two functions are called @%s",
                                module->funcs[i]->name);
        SBP_TRY(sbp_func_verify(module, module->funcs[i], diag));
    }
    for (int32_t i = 0; i < module->call_count; i++)
        SBP_TRY(verify_call(module, &module->calls[i], diag));
    return SBP_OK;
}
