/* builder.c: appends checked ops to a function. */
#include "ir/graph/op.h"

#include <stdlib.h>
#include <string.h>

sbp_builder sbp_builder_on(sbp_module *module, sbp_func *func, sbp_diag *diag) {
    return (sbp_builder){.module = module, .func = func, .diag = diag};
}

static bool parse_default(const sbp_attr_schema *schema, sbp_attr *out) {
    *out = (sbp_attr){.name = schema->name, .kind = schema->kind};
    if (!schema->fallback)
        return false;
    out->i = strtoll(schema->fallback, NULL, 10);
    out->f = strtod(schema->fallback, NULL);
    out->symbol = schema->fallback;
    return true;
}

/* All attributes of the schema in its order, from those given and the defaults. */
static sbp_status complete_attrs(sbp_builder *b, sbp_opcode code, const sbp_attr *given, int32_t given_count,
                                 sbp_attr out[SBP_MAX_ATTRS]) {
    sbp_attr_schema schema[SBP_MAX_ATTRS];
    int32_t count = sbp_opcode_attrs(code, schema), used = 0;
    for (int32_t i = 0; i < count; i++) {
        bool found = parse_default(&schema[i], &out[i]);
        int32_t before = used;
        for (int32_t g = 0; g < given_count; g++) {
            if (strcmp(given[g].name, schema[i].name) != 0)
                continue;
            if (given[g].kind != schema[i].kind)
                return sbp_fail(b->diag, SBP_INPUT, "%s: attribute '%s' has the wrong kind",
                                sbp_opcode_name(code), schema[i].name);
            out[i] = given[g];
            out[i].name = schema[i].name;
            if (out[i].kind == SBP_ATTR_L) {
                int64_t *list = SBP_NEW_ARRAY(b->func->arena, int64_t, out[i].i);
                if (out[i].i > 0)
                    memcpy(list, given[g].list, (size_t)out[i].i * sizeof *list);
                out[i].list = list;
            }
            if (out[i].kind == SBP_ATTR_S)
                out[i].symbol = sbp_arena_strdup(b->func->arena, given[g].symbol);
            found = true;
            used = before + 1;
        }
        if (!found)
            return sbp_fail(b->diag, SBP_INPUT, "%s: attribute '%s' is missing", sbp_opcode_name(code),
                            schema[i].name);
    }
    if (used != given_count)
        return sbp_fail(b->diag, SBP_INPUT, "%s: an attribute is unknown or given twice",
                        sbp_opcode_name(code));
    return SBP_OK;
}

static sbp_status build(sbp_builder *b, sbp_opcode code, const char *name, const sbp_value *operands,
                        int32_t operand_count, const sbp_attr *attrs, int32_t attr_count, sbp_value *out) {
    sbp_attr all[SBP_MAX_ATTRS];
    SBP_TRY(complete_attrs(b, code, attrs, attr_count, all));
    sbp_operand_info info[SBP_MAX_OPERANDS];
    int32_t count = sbp_opcode_operands(code, info);
    sbp_value full[SBP_MAX_OPERANDS];
    sbp_op op = {.code = code, .operand_count = count, .operands = full, .attrs = all, .node = b->node};
    sbp_shape shape = {.op = &op, .func = b->func->name, .diag = b->diag};
    if (operand_count > count)
        return sbp_fail(b->diag, SBP_INPUT, "%s: %d operands, at most %d expected", sbp_opcode_name(code),
                        operand_count, count);
    for (int32_t i = 0; i < count; i++) {
        full[i] = i < operand_count ? operands[i] : SBP_NO_VALUE;
        if (full[i] == SBP_NO_VALUE && !info[i].optional)
            return sbp_fail(b->diag, SBP_INPUT, "%s: operand '%.*s' is missing", sbp_opcode_name(code),
                            info[i].length, info[i].name);
        shape.present[i] = full[i] != SBP_NO_VALUE;
        if (shape.present[i])
            shape.in[i] = b->func->values[full[i]].type;
    }
    SBP_TRY(sbp_opcode_rules(code)->shape(&shape));
    for (int32_t r = 0; r < sbp_opcode_results(code); r++)
        if (!sbp_type_is_valid(&shape.out[r]))
            return sbp_fail(b->diag, SBP_INPUT, "%s: its result %s is too large%s%s%s (in @%s)",
                            sbp_opcode_name(code), sbp_shape_text(&shape.out[r]), b->node ? " (node '" : "",
                            b->node ? b->node : "", b->node ? "')" : "", b->func->name);
    int32_t number = sbp_func_add_op(b->func, &op, shape.out, name);
    memcpy(out, b->func->ops[number].results, (size_t)sbp_opcode_results(code) * sizeof *out);
    return SBP_OK;
}

sbp_value sbp_build(sbp_builder *b, sbp_opcode code, const char *name, const sbp_value *operands,
                    int32_t operand_count, const sbp_attr *attrs, int32_t attr_count, sbp_value *out) {
    sbp_value results[SBP_MAX_RESULTS];
    for (int r = 0; r < SBP_MAX_RESULTS; r++)
        results[r] = SBP_NO_VALUE;
    if (b->status == SBP_OK)
        b->status = build(b, code, name, operands, operand_count, attrs, attr_count, results);
    if (out)
        memcpy(out, results, (size_t)sbp_opcode_results(code) * sizeof *out);
    return results[0];
}

sbp_value sbp_build1(sbp_builder *b, sbp_opcode code, sbp_value a) {
    return sbp_build(b, code, NULL, &a, 1, NULL, 0, NULL);
}

sbp_value sbp_build2(sbp_builder *b, sbp_opcode code, sbp_value x, sbp_value y) {
    return sbp_build(b, code, NULL, (sbp_value[]){x, y}, 2, NULL, 0, NULL);
}

sbp_value sbp_build3(sbp_builder *b, sbp_opcode code, sbp_value x, sbp_value y, sbp_value z) {
    return sbp_build(b, code, NULL, (sbp_value[]){x, y, z}, 3, NULL, 0, NULL);
}

sbp_value sbp_build_const(sbp_builder *b, sbp_dtype dtype, double value) {
    return sbp_build(b, SBP_OP_constant, NULL, NULL, 0,
                     (sbp_attr[]){sbp_attr_double("value", value), sbp_attr_dtype("dtype", dtype)}, 2, NULL);
}

sbp_value sbp_build_cast(sbp_builder *b, sbp_value x, sbp_dtype to) {
    if (b->status != SBP_OK || x == SBP_NO_VALUE || b->func->values[x].type.dtype == to)
        return x;
    return sbp_build(b, SBP_OP_cast, NULL, &x, 1, (sbp_attr[]){sbp_attr_dtype("to", to)}, 1, NULL);
}

sbp_value sbp_build_rounded(sbp_builder *b, sbp_value x, sbp_dtype to) {
    if (b->status != SBP_OK || x == SBP_NO_VALUE || b->func->values[x].type.dtype == to)
        return x;
    for (int32_t i = b->func->values[x].op + 1; i < b->func->op_count; i++) {
        const sbp_op *op = &b->func->ops[i];
        if (op->code == SBP_OP_cast && op->operands[0] == x && sbp_op_int(op, "to") == (int64_t)to)
            return op->results[0];
    }
    return sbp_build_cast(b, x, to);
}

sbp_value sbp_build_reshape(sbp_builder *b, sbp_value x, const int64_t *dims, int32_t count) {
    return sbp_build(b, SBP_OP_reshape, NULL, &x, 1, (sbp_attr[]){sbp_attr_list("dims", dims, count)}, 1,
                     NULL);
}

sbp_value sbp_build_broadcast(sbp_builder *b, sbp_value x, const sbp_type *like) {
    if (b->status != SBP_OK || x == SBP_NO_VALUE || sbp_type_same_shape(&b->func->values[x].type, like))
        return x;
    int64_t dims[SBP_MAX_RANK];
    int32_t count = 0;
    for (int32_t i = 0; i < like->rank; i++)
        if (like->dim[i].symbol == SBP_ONE)
            dims[count++] = like->dim[i].n;
    sbp_symbol rows = sbp_type_rows(like);
    return sbp_build(b, SBP_OP_broadcast, NULL, &x, 1,
                     (sbp_attr[]){sbp_attr_list("dims", dims, count),
                                  sbp_attr_symbol("rows", rows == SBP_ONE ? "none" : sbp_symbol_name(rows))},
                     2, NULL);
}

sbp_value sbp_build_random(sbp_builder *b, const sbp_type *like, sbp_value stream, sbp_value key) {
    return sbp_build_random_of(b, like, (sbp_value[]){stream, key}, 2);
}

sbp_value sbp_build_random_of(sbp_builder *b, const sbp_type *like, const sbp_value *operands,
                              int32_t operand_count) {
    int64_t dims[SBP_MAX_RANK];
    int32_t count = 0;
    for (int32_t i = 1; i < like->rank; i++)
        dims[count++] = like->dim[i].n;
    return sbp_build(b, SBP_OP_random, NULL, operands, operand_count,
                     (sbp_attr[]){sbp_attr_list("dims", dims, count),
                                  sbp_attr_symbol("rows", sbp_symbol_name(sbp_type_rows(like)))},
                     2, NULL);
}

sbp_value sbp_build_slice(sbp_builder *b, sbp_value x, int64_t start, int64_t length) {
    return sbp_build(b, SBP_OP_slice, NULL, &x, 1,
                     (sbp_attr[]){sbp_attr_int("start", start), sbp_attr_int("length", length)}, 2, NULL);
}

/* An argument with this role and binding that the function already has. */
static sbp_value find_arg(const sbp_func *func, sbp_value_role role, int32_t binding) {
    for (int32_t i = 0; i < func->arg_count; i++) {
        const sbp_value_info *info = &func->values[func->args[i]];
        if (info->role == role && info->binding == binding)
            return func->args[i];
    }
    return SBP_NO_VALUE;
}

sbp_value sbp_build_row(sbp_builder *b, const char *row, sbp_dtype dtype, sbp_symbol rows) {
    if (b->status != SBP_OK)
        return SBP_NO_VALUE;
    int32_t binding = sbp_module_add_row(b->module, row, dtype);
    sbp_value value = find_arg(b->func, SBP_VALUE_ROW, binding);
    if (value != SBP_NO_VALUE)
        return value;
    sbp_type type = {.dtype = b->module->rows[binding].dtype, .rank = 1, .dim = {sbp_dim_symbol(rows)}};
    return sbp_func_add_arg(b->func, SBP_VALUE_ROW, row, &type, binding);
}

sbp_value sbp_build_param(sbp_builder *b, int32_t param) {
    if (b->status != SBP_OK)
        return SBP_NO_VALUE;
    sbp_value value = find_arg(b->func, SBP_VALUE_PARAM, param);
    if (value != SBP_NO_VALUE)
        return value;
    const sbp_param *p = &b->module->params[param];
    value = sbp_func_add_arg(b->func, SBP_VALUE_PARAM, p->name, &p->type, param);
    b->func->values[value].trainable = p->trainable;
    return value;
}

sbp_value sbp_build_scalar(sbp_builder *b, const char *name) {
    if (b->status != SBP_OK)
        return SBP_NO_VALUE;
    int32_t binding = sbp_module_add_scalar(b->module, name);
    sbp_value value = find_arg(b->func, SBP_VALUE_SCALAR, binding);
    if (value != SBP_NO_VALUE)
        return value;
    sbp_type type = {.dtype = SBP_F64};
    return sbp_func_add_arg(b->func, SBP_VALUE_SCALAR, name, &type, binding);
}

sbp_value sbp_build_vector(sbp_builder *b, const char *name, sbp_dtype dtype, const double *data, int64_t n) {
    if (b->status != SBP_OK)
        return SBP_NO_VALUE;
    sbp_type type = {.dtype = dtype, .rank = 1, .dim = {sbp_dim_const(n)}};
    int32_t binding = sbp_module_add_const(b->module, name, &type, data);
    sbp_value value = find_arg(b->func, SBP_VALUE_CONST, binding);
    if (value != SBP_NO_VALUE)
        return value;
    return sbp_func_add_arg(b->func, SBP_VALUE_CONST, b->module->consts[binding].name, &type, binding);
}

const sbp_type *sbp_build_type(const sbp_builder *b, sbp_value value) {
    static const sbp_type none = {.dtype = SBP_F32};
    return b->status != SBP_OK || value == SBP_NO_VALUE ? &none : &b->func->values[value].type;
}

void sbp_build_name(sbp_builder *b, sbp_value value, const char *name) {
    if (b->status != SBP_OK || value == SBP_NO_VALUE)
        return;
    sbp_func *func = b->func;
    const char *unique = sbp_func_free_name(func, name);
    func->values[value].name = unique;
    sbp_map_set(&func->names, unique, value);
}
