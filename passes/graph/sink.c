/* sink: moves what depends on row inputs, scalars and constants alone into its users, and what has no rows.
 *
 * requires  one function @model
 * preserves values of all results
 * breaks    sharing: a rope table is computed once per reader, inside the reader's row kernel; so it needs no
 * memory and crosses no segment boundary. Nor does a scale that is made of a parameter: what crosses has rows
 */
#include "passes/lower/passes.h"

#include "passes/graph/rewrite.h"

/* Row-wise ops whose operands are all sunk or arguments other than parameters and streams; where the result
 * has no rows, of parameters too. What rows are made of such is left where it is. */
static void find_sunk(sbp_arena *arena, const sbp_func *func, bool *sunk) {
    bool *of_params = SBP_NEW_ARRAY(arena, bool, func->value_count + 1);
    for (int32_t i = 0; i < func->arg_count; i++) {
        sbp_value_role role = func->values[func->args[i]].role;
        sunk[func->args[i]] = role == SBP_VALUE_ROW || role == SBP_VALUE_SCALAR || role == SBP_VALUE_CONST;
        of_params[func->args[i]] = role == SBP_VALUE_PARAM;
    }
    for (int32_t i = 0; i < func->op_count; i++) {
        const sbp_op *op = &func->ops[i];
        bool all = sbp_opcode_class(op->code) == SBP_CLASS_ROWWISE ||
                   sbp_opcode_class(op->code) == SBP_CLASS_COMPOSITE;
        bool rows = sbp_type_rows(&func->values[op->results[0]].type) != SBP_ONE, params = false;
        for (int32_t k = 0; k < op->operand_count; k++) {
            sbp_value v = op->operands[k];
            all &= v == SBP_NO_VALUE || (of_params[v] ? !rows : sunk[v]);
            params |= v != SBP_NO_VALUE && of_params[v];
        }
        for (int32_t r = 0; r < op->result_count; r++) {
            sunk[op->results[r]] = all;
            of_params[op->results[r]] = all && params;
        }
    }
}

/* The copies that readers get. A chain that is read all along would be copied a quadratic number of times:
 * after `left` copies the readers to come share the last. */
typedef struct sinker {
    sbp_rewrite rw;
    const bool *sunk;
    sbp_value *local;        /* per sunk value: its present copy, SBP_NO_VALUE */
    sbp_value *made, *stack; /* values that have one */
    int32_t made_count;
    int64_t left; /* copies */
} sinker;

static bool is_missing(const sinker *s, sbp_value v) {
    return v != SBP_NO_VALUE && s->local[v] == SBP_NO_VALUE && s->rw.from->values[v].role == SBP_VALUE_OP;
}

static sbp_status copy_op(sinker *s, const sbp_op *op) {
    for (int32_t k = 0; k < op->operand_count; k++)
        if (op->operands[k] != SBP_NO_VALUE && s->rw.from->values[op->operands[k]].role == SBP_VALUE_OP)
            s->rw.map[op->operands[k]] = s->local[op->operands[k]];
    SBP_TRY(sbp_rewrite_copy(&s->rw, op));
    for (int32_t r = 0; r < op->result_count; r++) {
        s->local[op->results[r]] = s->rw.map[op->results[r]];
        s->made[s->made_count++] = op->results[r];
    }
    s->left--;
    return SBP_OK;
}

/* A copy of the slice that computes a sunk value, operands before their readers. */
static sbp_status clone(sinker *s, sbp_value value) {
    int32_t count = 0;
    if (is_missing(s, value))
        s->stack[count++] = value;
    while (count > 0) {
        const sbp_op *op = &s->rw.from->ops[s->rw.from->values[s->stack[count - 1]].op];
        int32_t k = 0;
        while (k < op->operand_count && !is_missing(s, op->operands[k]))
            k++;
        if (k < op->operand_count) {
            s->stack[count++] = op->operands[k];
            continue;
        }
        SBP_TRY(copy_op(s, op));
        count--;
    }
    return SBP_OK;
}

/* The next reader gets copies of its own. */
static void forget(sinker *s) {
    for (int32_t i = 0; i < s->made_count && s->left > 0; i++)
        s->local[s->made[i]] = SBP_NO_VALUE;
    s->made_count = s->left > 0 ? 0 : s->made_count;
}

static bool reads_sunk(const sinker *s, const sbp_op *op) {
    bool any = false;
    for (int32_t k = 0; k < op->operand_count; k++)
        any |= op->operands[k] != SBP_NO_VALUE && s->sunk[op->operands[k]] &&
               s->rw.from->values[op->operands[k]].role == SBP_VALUE_OP;
    return any;
}

static sbp_status sink_func(sbp_module *module, const sbp_func *func, sbp_diag *diag, sbp_func **out) {
    bool *sunk = SBP_NEW_ARRAY(module->arena, bool, func->value_count + 1);
    sinker s = {.sunk = sunk, .left = 1000 + 8 * (int64_t)func->op_count};
    s.local = SBP_NEW_ARRAY(module->arena, sbp_value, func->value_count + 1);
    s.made = SBP_NEW_ARRAY(module->arena, sbp_value, func->value_count + 1);
    s.stack = SBP_NEW_ARRAY(module->arena, sbp_value, func->value_count + 1);
    for (int32_t v = 0; v < func->value_count; v++)
        s.local[v] = SBP_NO_VALUE;
    find_sunk(module->arena, func, sunk);
    sbp_rewrite_begin(&s.rw, module, func, diag);
    for (int32_t i = 0; i < func->op_count; i++) {
        const sbp_op *op = &func->ops[i];
        if (sunk[op->results[0]])
            continue;
        if (reads_sunk(&s, op)) {
            forget(&s);
            for (int32_t k = 0; k < op->operand_count; k++)
                if (op->operands[k] != SBP_NO_VALUE && sunk[op->operands[k]]) {
                    SBP_TRY(clone(&s, op->operands[k]));
                    if (s.local[op->operands[k]] != SBP_NO_VALUE)
                        s.rw.map[op->operands[k]] = s.local[op->operands[k]];
                }
        }
        SBP_TRY(sbp_rewrite_copy(&s.rw, op));
    }
    for (int32_t i = 0; i < func->result_count; i++)
        if (sunk[func->results[i].value]) {
            forget(&s);
            SBP_TRY(clone(&s, func->results[i].value));
        }
    *out = sbp_rewrite_end(&s.rw);
    return SBP_OK;
}

sbp_status sbp_pass_sink(const sbp_pass_input *in, sbp_module *module) {
    for (int32_t i = 0; i < module->func_count; i++)
        SBP_TRY(sink_func(module, module->funcs[i], in->diag, &module->funcs[i]));
    return SBP_OK;
}
