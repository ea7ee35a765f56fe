/* rewrite.c: copying a function op by op. */
#include "passes/graph/rewrite.h"

#include <string.h>

void sbp_rewrite_begin_bare(sbp_rewrite *rw, sbp_module *module, const sbp_func *from, sbp_diag *diag) {
    *rw = (sbp_rewrite){.from = from, .to = sbp_func_create(module->arena, from->name)};
    rw->builder = sbp_builder_on(module, rw->to, diag);
    rw->map = SBP_NEW_ARRAY(module->arena, sbp_value, from->value_count);
    for (int32_t v = 0; v < from->value_count; v++)
        rw->map[v] = SBP_NO_VALUE;
}

sbp_value sbp_rewrite_arg(sbp_rewrite *rw, sbp_value arg, const sbp_type *type) {
    const sbp_value_info *info = &rw->from->values[arg];
    int32_t binding = info->binding;
    if (info->role == SBP_VALUE_COTANGENT && binding >= 0)
        binding = rw->map[binding]; /* of an argument; others follow in sbp_rewrite_end */
    sbp_value value = sbp_func_add_arg(rw->to, info->role, info->name, type, binding);
    rw->to->values[value].trainable = info->trainable;
    rw->map[arg] = value;
    return value;
}

void sbp_rewrite_begin(sbp_rewrite *rw, sbp_module *module, const sbp_func *from, sbp_diag *diag) {
    sbp_rewrite_begin_bare(rw, module, from, diag);
    for (int32_t i = 0; i < from->arg_count; i++)
        sbp_rewrite_arg(rw, from->args[i], &from->values[from->args[i]].type);
}

void sbp_rewrite_operands(const sbp_rewrite *rw, const sbp_op *op, sbp_value *out) {
    for (int32_t k = 0; k < op->operand_count; k++)
        out[k] = op->operands[k] == SBP_NO_VALUE ? SBP_NO_VALUE : rw->map[op->operands[k]];
}

sbp_status sbp_rewrite_copy(sbp_rewrite *rw, const sbp_op *op) {
    sbp_value operands[SBP_MAX_OPERANDS], results[SBP_MAX_RESULTS];
    sbp_attr_schema schema[SBP_MAX_ATTRS];
    sbp_rewrite_operands(rw, op, operands);
    rw->builder.node = op->node;
    sbp_build(&rw->builder, op->code, NULL, operands, op->operand_count, op->attrs,
              sbp_opcode_attrs(op->code, schema), results);
    SBP_TRY(rw->builder.status);
    for (int32_t r = 0; r < op->result_count; r++)
        sbp_rewrite_replace(rw, op->results[r], results[r]);
    return SBP_OK;
}

/* Whether the value's name is a number that the function gave it. */
static bool is_numbered(const char *name) {
    return name[0] == 't' && name[1] != 0 && name[1 + strspn(name + 1, "0123456789")] == 0;
}

void sbp_rewrite_replace(sbp_rewrite *rw, sbp_value old, sbp_value value) {
    rw->map[old] = value;
    const char *name = rw->from->values[old].name;
    if (value != SBP_NO_VALUE && rw->to->values[value].role == SBP_VALUE_OP && !is_numbered(name) &&
        is_numbered(rw->to->values[value].name))
        sbp_build_name(&rw->builder, value, name);
}

sbp_type sbp_rewrite_rows_type(const sbp_type *type, sbp_symbol from, sbp_symbol to) {
    sbp_type t = *type;
    if (sbp_type_rows(type) == from && from != SBP_ONE)
        t.dim[0] = sbp_dim_symbol(to);
    return t;
}

int32_t sbp_rewrite_rows_attrs(const sbp_op *op, sbp_symbol from, sbp_symbol to,
                               sbp_attr out[SBP_MAX_ATTRS]) {
    sbp_attr_schema schema[SBP_MAX_ATTRS];
    int32_t count = sbp_opcode_attrs(op->code, schema);
    for (int32_t a = 0; a < count; a++) {
        out[a] = op->attrs[a];
        if (out[a].kind == SBP_ATTR_S && strcmp(out[a].name, "rows") == 0 &&
            strcmp(out[a].symbol, sbp_symbol_name(from)) == 0)
            out[a].symbol = sbp_symbol_name(to);
    }
    return count;
}

sbp_type sbp_rewrite_chunk_type(const sbp_type *type) {
    sbp_type own = sbp_rewrite_rows_type(type, SBP_T, SBP_C);
    return sbp_rewrite_rows_type(&own, SBP_W, SBP_D);
}

int32_t sbp_rewrite_chunk_attrs(const sbp_op *op, sbp_attr out[SBP_MAX_ATTRS]) {
    sbp_op own = *op;
    sbp_attr attrs[SBP_MAX_ATTRS];
    (void)sbp_rewrite_rows_attrs(op, SBP_T, SBP_C, attrs);
    own.attrs = attrs;
    return sbp_rewrite_rows_attrs(&own, SBP_W, SBP_D, out);
}

/* Cotangent arguments stand before the values that they are the cotangents of. */
static void bind_cotangents(sbp_rewrite *rw) {
    for (int32_t i = 0; i < rw->from->arg_count; i++) {
        sbp_value arg = rw->from->args[i], value = rw->map[arg];
        const sbp_value_info *info = &rw->from->values[arg];
        if (info->role == SBP_VALUE_COTANGENT && info->binding >= 0 && value != SBP_NO_VALUE &&
            rw->to->values[value].role == SBP_VALUE_COTANGENT)
            rw->to->values[value].binding = rw->map[info->binding];
    }
}

sbp_func *sbp_rewrite_end(sbp_rewrite *rw) {
    bind_cotangents(rw);
    for (int32_t i = 0; i < rw->from->result_count; i++) {
        const sbp_result *result = &rw->from->results[i];
        sbp_value target = result->target;
        if (result->role == SBP_RESULT_CARRY || result->role == SBP_RESULT_GRADIENT)
            target = rw->map[target];
        sbp_func_add_result(rw->to, rw->map[result->value], result->role, target, result->name);
    }
    return rw->to;
}
