/* split: turns rows of the batch into rows of a chunk.
 *
 * requires  no composites; row-wise and PREFIX/WINDOW dependences only
 * preserves the meaning of the function for every partition of the rows into consecutive chunks
 * breaks    nothing
 *
 * T becomes C. Each value read as PREFIX or WINDOW becomes an append-only carry: an argument of T rows, to
 * which the chunk's rows are appended where the value is defined, and which is then read in its place. Two
 * readers share a carry. Any other dependence between rows is an error that names node and operand.
 */
#include "passes/passes.h"

#include <string.h>

#include "passes/rewrite.h"

static sbp_type chunk_type(const sbp_type *type) {
    sbp_type t = *type;
    if (sbp_type_rows(type) == SBP_T)
        t.dim[0] = sbp_dim_symbol(SBP_C);
    return t;
}

static sbp_status refuse(const sbp_func *func, const sbp_op *op, int32_t operand, sbp_seq seq,
                         sbp_diag *diag) {
    sbp_operand_info info[SBP_MAX_OPERANDS];
    sbp_opcode_operands(op->code, info);
    return sbp_fail(
        diag, SBP_INPUT,
        "%s%s%sreads operand '%.*s' of %s as %s: its rows cannot be streamed (in @%s); --backward checkpoint "
        "and standard need the same",
        op->node ? "node '" : "", op->node ? op->node : "", op->node ? "' " : "", info[operand].length,
        info[operand].name, sbp_opcode_name(op->code), sbp_seq_name(seq.kind), func->name);
}

/* Which values are read as PREFIX or WINDOW. */
static sbp_status find_carries(const sbp_func *func, bool *carried, sbp_diag *diag) {
    for (int32_t i = 0; i < func->op_count; i++) {
        const sbp_op *op = &func->ops[i];
        for (int32_t k = 0; k < op->operand_count; k++)
            for (int32_t r = 0; r < op->result_count; r++) {
                sbp_seq seq = sbp_op_seq(func, op, k, r);
                if (seq.kind == SBP_SEQ_PREFIX || seq.kind == SBP_SEQ_WINDOW)
                    carried[op->operands[k]] = true;
                else if (seq.kind != SBP_SEQ_NONE && seq.kind != SBP_SEQ_ROW && seq.kind != SBP_SEQ_REDUCE)
                    return refuse(func, op, k, seq, diag);
            }
    }
    return SBP_OK;
}

static sbp_value append_rows(sbp_rewrite *rw, sbp_value value, sbp_value carry) {
    return sbp_build2(&rw->builder, SBP_OP_append, carry, rw->map[value]);
}

sbp_status sbp_split_func(sbp_module *module, const sbp_func *func, sbp_diag *diag, sbp_func **out) {
    bool *carried = SBP_NEW_ARRAY(module->arena, bool, func->value_count + 1);
    SBP_TRY(find_carries(func, carried, diag));
    sbp_rewrite rw;
    sbp_rewrite_begin_bare(&rw, module, func, diag);
    for (int32_t i = 0; i < func->arg_count; i++) {
        sbp_type type = chunk_type(&func->values[func->args[i]].type);
        sbp_rewrite_arg(&rw, func->args[i], &type);
    }
    sbp_value *carry = SBP_NEW_ARRAY(module->arena, sbp_value, func->value_count + 1);
    for (int32_t v = 0; v < func->value_count; v++) {
        carry[v] = SBP_NO_VALUE;
        if (!carried[v])
            continue;
        const char *name = sbp_arena_printf(module->arena, "carry_%s", func->values[v].name);
        carry[v] = sbp_func_add_arg(rw.to, SBP_VALUE_CARRY, name, &func->values[v].type, -1);
        if (func->values[v].role != SBP_VALUE_OP)
            carry[v] = append_rows(&rw, v, carry[v]);
    }
    for (int32_t i = 0; i < func->op_count; i++) {
        sbp_op op = func->ops[i];
        sbp_value operands[SBP_MAX_OPERANDS], results[SBP_MAX_RESULTS];
        sbp_attr attrs[SBP_MAX_ATTRS];
        sbp_attr_schema schema[SBP_MAX_ATTRS];
        int32_t attr_count = sbp_opcode_attrs(op.code, schema);
        sbp_rewrite_operands(&rw, &op, operands);
        for (int32_t k = 0; k < op.operand_count; k++) {
            sbp_seq seq = sbp_op_seq(func, &op, k, 0);
            if (seq.kind == SBP_SEQ_PREFIX || seq.kind == SBP_SEQ_WINDOW)
                operands[k] = carry[op.operands[k]];
        }
        for (int32_t a = 0; a < attr_count; a++) {
            attrs[a] = op.attrs[a];
            if (op.code == SBP_OP_broadcast && strcmp(attrs[a].name, "rows") == 0 &&
                strcmp(attrs[a].symbol, "T") == 0)
                attrs[a].symbol = "C";
        }
        rw.builder.node = op.node;
        sbp_build(&rw.builder, op.code, NULL, operands, op.operand_count, attrs, attr_count, results);
        SBP_TRY(rw.builder.status);
        for (int32_t r = 0; r < op.result_count; r++) {
            sbp_rewrite_replace(&rw, op.results[r], results[r]);
            if (carried[op.results[r]])
                carry[op.results[r]] = append_rows(&rw, op.results[r], carry[op.results[r]]);
        }
    }
    for (int32_t v = 0; v < func->value_count; v++)
        if (carried[v]) { /* the final state; the target is the argument it started from */
            sbp_value root = carry[v];
            while (rw.to->values[root].role != SBP_VALUE_CARRY)
                root = rw.to->ops[rw.to->values[root].op].operands[0];
            sbp_func_add_result(rw.to, carry[v], SBP_RESULT_CARRY, root, NULL);
        }
    *out = sbp_rewrite_end(&rw);
    return rw.builder.status;
}

sbp_status sbp_pass_split(sbp_pipeline *p) {
    const sbp_func *objective =
        sbp_module_find_func(p->module, "objective"); /* whole vectors of rows: never chunked */
    for (int32_t i = 0; i < p->module->func_count; i++)
        if (p->module->funcs[i] != objective)
            SBP_TRY(sbp_split_func(p->module, p->module->funcs[i], p->diag, &p->module->funcs[i]));
    return SBP_OK;
}
