/* sink: moves what depends on row inputs, scalars and constants alone into its users.
 *
 * requires  one function @model
 * preserves values of all results
 * breaks    sharing: a rope table is computed once per reader, inside the reader's row kernel; so it needs no
 * memory and crosses no segment boundary
 */
#include "passes/passes.h"

#include "passes/rewrite.h"

/* Row-wise ops whose operands are all sunk or arguments other than parameters and streams. */
static void find_sunk(const sbp_func *func, bool *sunk) {
    for (int32_t i = 0; i < func->arg_count; i++) {
        sbp_value_role role = func->values[func->args[i]].role;
        sunk[func->args[i]] = role == SBP_VALUE_ROW || role == SBP_VALUE_SCALAR || role == SBP_VALUE_CONST;
    }
    for (int32_t i = 0; i < func->op_count; i++) {
        const sbp_op *op = &func->ops[i];
        bool all = sbp_opcode_class(op->code) == SBP_CLASS_ROWWISE ||
                   sbp_opcode_class(op->code) == SBP_CLASS_COMPOSITE;
        for (int32_t k = 0; k < op->operand_count; k++)
            all &= op->operands[k] == SBP_NO_VALUE || sunk[op->operands[k]];
        for (int32_t r = 0; r < op->result_count; r++)
            sunk[op->results[r]] = all;
    }
}

/* A fresh copy of the slice that computes a sunk value. */
static sbp_status clone(sbp_rewrite *rw, sbp_value value, sbp_value *local) {
    const sbp_func *from = rw->from;
    if (local[value] != SBP_NO_VALUE || from->values[value].role != SBP_VALUE_OP)
        return SBP_OK;
    const sbp_op *op = &from->ops[from->values[value].op];
    for (int32_t k = 0; k < op->operand_count; k++)
        if (op->operands[k] != SBP_NO_VALUE)
            SBP_TRY(clone(rw, op->operands[k], local));
    for (int32_t k = 0; k < op->operand_count; k++)
        if (op->operands[k] != SBP_NO_VALUE && from->values[op->operands[k]].role == SBP_VALUE_OP)
            rw->map[op->operands[k]] = local[op->operands[k]];
    SBP_TRY(sbp_rewrite_copy(rw, op));
    for (int32_t r = 0; r < op->result_count; r++)
        local[op->results[r]] = rw->map[op->results[r]];
    return SBP_OK;
}

static sbp_status sink_func(sbp_module *module, const sbp_func *func, sbp_diag *diag, sbp_func **out) {
    bool *sunk = SBP_NEW_ARRAY(module->arena, bool, func->value_count + 1);
    sbp_value *local = SBP_NEW_ARRAY(module->arena, sbp_value, func->value_count + 1);
    find_sunk(func, sunk);
    sbp_rewrite rw;
    sbp_rewrite_begin(&rw, module, func, diag);
    for (int32_t i = 0; i < func->op_count; i++) {
        const sbp_op *op = &func->ops[i];
        if (sunk[op->results[0]])
            continue;
        bool any = false;
        for (int32_t k = 0; k < op->operand_count; k++)
            any |= op->operands[k] != SBP_NO_VALUE && sunk[op->operands[k]] &&
                   func->values[op->operands[k]].role == SBP_VALUE_OP;
        if (any) {
            for (int32_t v = 0; v < func->value_count; v++)
                local[v] = SBP_NO_VALUE;
            for (int32_t k = 0; k < op->operand_count; k++)
                if (op->operands[k] != SBP_NO_VALUE && sunk[op->operands[k]])
                    SBP_TRY(clone(&rw, op->operands[k], local));
            for (int32_t v = 0; v < func->value_count; v++)
                if (local[v] != SBP_NO_VALUE)
                    rw.map[v] = local[v];
        }
        SBP_TRY(sbp_rewrite_copy(&rw, op));
    }
    for (int32_t i = 0; i < func->result_count; i++)
        if (sunk[func->results[i].value]) {
            for (int32_t v = 0; v < func->value_count; v++)
                local[v] = SBP_NO_VALUE;
            SBP_TRY(clone(&rw, func->results[i].value, local));
        }
    *out = sbp_rewrite_end(&rw);
    return SBP_OK;
}

sbp_status sbp_pass_sink(sbp_pipeline *p) {
    for (int32_t i = 0; i < p->module->func_count; i++)
        SBP_TRY(sink_func(p->module, p->module->funcs[i], p->diag, &p->module->funcs[i]));
    return SBP_OK;
}
