/* body.c: cutting the body of one stage out of a function and its reverse sweep. */
#include "passes/stream/body.h"

#include "passes/lower/passes.h"

sbp_value sbp_body_carry_root(const sbp_func *func, sbp_value value) {
    while (value != SBP_NO_VALUE && func->values[value].role == SBP_VALUE_OP) {
        if (func->values[value].op < 0)
            return SBP_NO_VALUE;
        const sbp_op *op = &func->ops[func->values[value].op];
        int32_t result = 0;
        while (op->results[result] != value)
            result++;
        value = sbp_op_continues(op, result);
    }
    return value != SBP_NO_VALUE && func->values[value].role == SBP_VALUE_CARRY ? value : SBP_NO_VALUE;
}

bool sbp_body_is_state(const sbp_func *func, sbp_value carry) {
    return sbp_type_rows(&func->values[carry].type) == SBP_ONE;
}

void sbp_body_drop_arguments(sbp_func *func) {
    bool *read = SBP_NEW_ARRAY(func->arena, bool, func->value_count + 1);
    for (int32_t i = 0; i < func->op_count; i++)
        for (int32_t k = 0; k < func->ops[i].operand_count; k++)
            if (func->ops[i].operands[k] != SBP_NO_VALUE)
                read[func->ops[i].operands[k]] = true;
    for (int32_t i = 0; i < func->result_count; i++) {
        read[func->results[i].value] = true;
        if (func->results[i].role == SBP_RESULT_GRADIENT || func->results[i].role == SBP_RESULT_CARRY)
            read[func->results[i].target] = true;
    }
    int32_t count = 0;
    for (int32_t i = 0; i < func->arg_count; i++)
        if (read[func->args[i]])
            func->args[count++] = func->args[i];
    func->arg_count = count;
}

/* Copies the function with given values as arguments; everything else follows from what the results need. */
static sbp_status copy_with_given(sbp_rewrite *rw, const sbp_body_spec *spec) {
    const sbp_func *from = spec->from;
    for (int32_t i = 0; i < from->arg_count; i++) {
        sbp_value arg = from->args[i];
        if (from->values[arg].role == SBP_VALUE_COTANGENT &&
            from->values[from->values[arg].binding].role != SBP_VALUE_CARRY) {
            sbp_value value =
                sbp_func_add_arg(rw->to, SBP_VALUE_STREAM, from->values[arg].name, &from->values[arg].type,
                                 -1); /* of no carry: a plain argument */
            rw->map[arg] = value;
        } else {
            sbp_rewrite_arg(rw, arg, &from->values[arg].type);
        }
    }
    for (int32_t v = 0; v < from->value_count; v++)
        if (spec->given[v] && from->values[v].role == SBP_VALUE_OP)
            rw->map[v] =
                sbp_func_add_arg(rw->to, SBP_VALUE_STREAM, from->values[v].name, &from->values[v].type, -1);
    for (int32_t i = 0; i < from->op_count; i++) {
        const sbp_op *op = &from->ops[i];
        sbp_value kept[SBP_MAX_RESULTS];
        bool all = true;
        for (int32_t r = 0; r < op->result_count; r++) {
            kept[r] = rw->map[op->results[r]];
            all &= kept[r] != SBP_NO_VALUE;
        }
        if (all)
            continue;
        sbp_value root = op->code == SBP_OP_append ? sbp_body_carry_root(from, op->results[0]) : SBP_NO_VALUE;
        if (root != SBP_NO_VALUE && spec->filled[root]) {
            rw->map[op->results[0]] = rw->map[op->operands[0]];
            continue;
        }
        SBP_TRY(sbp_rewrite_copy(rw, op));
        for (int32_t r = 0; r < op->result_count; r++)
            if (kept[r] != SBP_NO_VALUE)
                rw->map[op->results[r]] = kept[r];
    }
    return SBP_OK;
}

/* RECUR ops of which nothing but the state is read: what that takes is all that is left of them. Whether
 * there was one: what it read before may now be read by nobody. */
static bool leave_states(sbp_func *f) {
    bool found = false;
    bool *read = SBP_NEW_ARRAY(f->arena, bool, f->value_count + 1);
    for (int32_t i = 0; i < f->op_count; i++)
        for (int32_t k = 0; k < f->ops[i].operand_count; k++)
            if (f->ops[i].operands[k] != SBP_NO_VALUE)
                read[f->ops[i].operands[k]] = true;
    for (int32_t i = 0; i < f->result_count; i++)
        read[f->results[i].value] = true;
    for (int32_t i = 0; i < f->op_count; i++) {
        sbp_op *op = &f->ops[i];
        int32_t from[SBP_MAX_OPERANDS];
        bool state_alone = sbp_opcode_class(op->code) == SBP_CLASS_RECUR;
        for (int32_t r = 0; r + 1 < op->result_count; r++)
            state_alone &= !read[op->results[r]];
        sbp_opcode form = state_alone ? sbp_opcode_state_form(op->code, from) : SBP_OP_COUNT;
        if (form == SBP_OP_COUNT)
            continue;
        sbp_operand_info info[SBP_MAX_OPERANDS];
        int32_t count = sbp_opcode_operands(form, info);
        sbp_value *operands = SBP_NEW_ARRAY(f->arena, sbp_value, count);
        for (int32_t k = 0; k < count; k++)
            operands[k] = op->operands[from[k]];
        op->results += op->result_count - 1;
        *op = (sbp_op){.code = form,
                       .operand_count = count,
                       .result_count = 1,
                       .operands = operands,
                       .results = op->results,
                       .attrs = op->attrs,
                       .node = op->node};
        found = true;
    }
    return found;
}

/* Follows values of `old` by name into `fresh`: both are copies of the same ops. */
static void follow(const sbp_func *old, const sbp_func *fresh, sbp_value *map, int32_t count) {
    for (int32_t v = 0; v < count; v++)
        if (map[v] != SBP_NO_VALUE)
            map[v] = sbp_map_get(&fresh->names, old->values[map[v]].name);
}

sbp_status sbp_body_make(sbp_module *module, const sbp_body_spec *spec, const char *name, sbp_diag *diag,
                         sbp_body_cut *out) {
    sbp_rewrite rw;
    sbp_rewrite_begin_bare(&rw, module, spec->from, diag);
    rw.to->name = name;
    SBP_TRY(copy_with_given(&rw, spec));
    for (int32_t i = 0; i < spec->from->result_count; i++) {
        const sbp_result *result = &spec->from->results[i];
        if (!spec->keeps(spec->user, result))
            continue;
        bool targets = result->role == SBP_RESULT_CARRY || result->role == SBP_RESULT_GRADIENT;
        sbp_func_add_result(rw.to, rw.map[result->value], result->role,
                            targets ? rw.map[result->target] : result->target, result->name);
    }
    do
        sbp_func_prune(rw.to);
    while (leave_states(rw.to));
    sbp_func *expanded, *clean;
    SBP_TRY(sbp_expand_func(module, rw.to, true, diag, &expanded));
    SBP_TRY(sbp_canonicalize_func(module, expanded, diag, &clean));
    sbp_body_drop_arguments(clean);
    /* Only arguments need to be followed; their names survive every copy. */
    for (int32_t v = 0; v < spec->from->value_count; v++)
        if (rw.map[v] != SBP_NO_VALUE && rw.to->values[rw.map[v]].role == SBP_VALUE_OP)
            rw.map[v] = SBP_NO_VALUE;
    follow(rw.to, clean, rw.map, spec->from->value_count);
    out->func = clean;
    out->map = rw.map;
    out->origin = SBP_NEW_ARRAY(module->arena, sbp_value, clean->value_count + 1);
    for (int32_t v = 0; v < clean->value_count; v++)
        out->origin[v] = SBP_NO_VALUE;
    for (int32_t v = 0; v < spec->from->value_count; v++)
        if (rw.map[v] != SBP_NO_VALUE && out->origin[rw.map[v]] == SBP_NO_VALUE) /* arguments come first */
            out->origin[rw.map[v]] = v;
    return SBP_OK;
}

bool sbp_body_keeps_gradients(const void *user, const sbp_result *result) {
    (void)user;
    return result->role == SBP_RESULT_GRADIENT;
}
