/* split: turns rows of the batch into rows of a chunk.
 *
 * requires  no composites; row-wise, PREFIX, WINDOW and RECUR dependences only
 * preserves the meaning of the function for every partition of the rows into consecutive chunks; results that
 *           are sums over rows add up over the chunks
 * breaks    nothing
 *
 * T becomes C. Each value read as PREFIX or WINDOW becomes an append-only carry: an argument of T rows, to
 * which the chunk's rows are appended where the value is defined, and which is then read in its place. Two
 * readers share a carry; one that reads a value twice (keys that are values too) has two. An op that reads
 * rows as RECUR has a carry of another kind: its state, an argument without rows, of which it makes that
 * behind the chunk. Any other dependence between rows is an error that names node and operand; so is reading
 * a sum over rows, which is not known before the last chunk.
 */
#include "passes/lower/passes.h"

#include "passes/graph/rewrite.h"

static sbp_status refuse(const sbp_func *func, const sbp_op *op, int32_t operand, sbp_seq seq,
                         sbp_diag *diag) {
    sbp_operand_info info[SBP_MAX_OPERANDS];
    sbp_opcode_operands(op->code, info);
    return sbp_fail(
        diag, SBP_INPUT,
        "%s%s%sreads operand '%.*s' of %s as %s: its rows cannot be streamed (in @%s); the checkpoint and "
        "standard backward passes need the same",
        op->node ? "node '" : "", op->node ? op->node : "", op->node ? "' " : "", info[operand].length,
        info[operand].name, sbp_opcode_name(op->code), sbp_seq_name(seq.kind), func->name);
}

static bool reads_carry(const sbp_func *func, const sbp_op *op, int32_t operand) {
    sbp_seq_kind kind = sbp_op_seq(func, op, operand, 0).kind;
    return kind == SBP_SEQ_PREFIX || kind == SBP_SEQ_WINDOW;
}

static bool has_state(const sbp_op *op) {
    return sbp_opcode_class(op->code) == SBP_CLASS_RECUR;
}

/* How often operands before `operand` of the op read the same value as a carry. */
static int32_t earlier_reads(const sbp_func *func, const sbp_op *op, int32_t operand) {
    int32_t count = 0;
    for (int32_t k = 0; k < operand; k++)
        count += op->operands[k] == op->operands[operand] && reads_carry(func, op, k);
    return count;
}

/* How many carries each value needs: 1 when it is read as PREFIX or WINDOW, more when one op does so with
 * several operands, whose cotangents are then added to side by side. */
static sbp_status count_carries(const sbp_func *func, int32_t *carries, sbp_diag *diag) {
    bool *reduced = SBP_NEW_ARRAY(func->arena, bool, func->value_count + 1); /* sums over all rows */
    for (int32_t i = 0; i < func->op_count; i++) {
        const sbp_op *op = &func->ops[i];
        for (int32_t k = 0; k < op->operand_count; k++) {
            if (op->operands[k] != SBP_NO_VALUE && reduced[op->operands[k]])
                return refuse(func, op, k, sbp_seq_of(SBP_SEQ_ALL), diag);
            for (int32_t r = 0; r < op->result_count; r++) {
                sbp_seq seq = sbp_op_seq(func, op, k, r);
                if (seq.kind == SBP_SEQ_PREFIX || seq.kind == SBP_SEQ_WINDOW) {
                    int32_t needs = 1 + earlier_reads(func, op, k), *has = &carries[op->operands[k]];
                    *has = *has > needs ? *has : needs;
                } else if (seq.kind != SBP_SEQ_NONE && seq.kind != SBP_SEQ_ROW &&
                           seq.kind != SBP_SEQ_REDUCE && (seq.kind != SBP_SEQ_RECUR || !has_state(op))) {
                    return refuse(func, op, k, seq, diag);
                }
                reduced[op->results[r]] |= seq.kind == SBP_SEQ_REDUCE;
            }
        }
    }
    return SBP_OK;
}

/* The carries of one value: argument, and the state that the next reader reads. */
typedef struct carry {
    sbp_value argument, state;
} carry;

static void append_rows(sbp_rewrite *rw, sbp_value value, carry *list, int32_t count) {
    for (int32_t c = 0; c < count; c++)
        list[c].state = sbp_build2(&rw->builder, SBP_OP_append, list[c].state, rw->map[value]);
}

/* The state of an op before the chunk: its type is that behind it. */
static sbp_value add_state(sbp_rewrite *rw, const sbp_op *op) {
    const sbp_value_info *values = rw->from->values;
    const char *name = sbp_arena_printf(rw->to->arena, "state_%s", values[op->results[0]].name);
    return sbp_func_add_arg(rw->to, SBP_VALUE_CARRY, name, &values[op->results[op->result_count - 1]].type,
                            -1);
}

sbp_status sbp_split_func(sbp_module *module, const sbp_func *func, sbp_diag *diag, sbp_func **out) {
    int32_t *count = SBP_NEW_ARRAY(module->arena, int32_t, func->value_count + 1);
    SBP_TRY(count_carries(func, count, diag));
    sbp_rewrite rw;
    sbp_rewrite_begin_bare(&rw, module, func, diag);
    for (int32_t i = 0; i < func->arg_count; i++) {
        sbp_type type = sbp_rewrite_chunk_type(&func->values[func->args[i]].type);
        sbp_rewrite_arg(&rw, func->args[i], &type);
    }
    carry **carries = SBP_NEW_ARRAY(module->arena, carry *, func->value_count + 1);
    for (int32_t v = 0; v < func->value_count; v++) {
        carries[v] = SBP_NEW_ARRAY(module->arena, carry, count[v]);
        for (int32_t c = 0; c < count[v]; c++) {
            const char *name = sbp_arena_printf(module->arena, "carry_%s", func->values[v].name);
            carries[v][c].argument = carries[v][c].state =
                sbp_func_add_arg(rw.to, SBP_VALUE_CARRY, name, &func->values[v].type, -1);
        }
        if (func->values[v].role != SBP_VALUE_OP)
            append_rows(&rw, v, carries[v], count[v]);
    }
    sbp_value *states = SBP_NEW_ARRAY(module->arena, sbp_value, func->op_count + 1);
    for (int32_t i = 0; i < func->op_count; i++)
        states[i] = has_state(&func->ops[i]) ? add_state(&rw, &func->ops[i]) : SBP_NO_VALUE;
    for (int32_t i = 0; i < func->op_count; i++) {
        sbp_op op = func->ops[i];
        sbp_value operands[SBP_MAX_OPERANDS], results[SBP_MAX_RESULTS];
        sbp_attr attrs[SBP_MAX_ATTRS];
        int32_t attr_count = sbp_rewrite_chunk_attrs(&op, attrs);
        sbp_rewrite_operands(&rw, &op, operands);
        for (int32_t k = 0; k < op.operand_count; k++)
            if (reads_carry(func, &op, k))
                operands[k] = carries[op.operands[k]][earlier_reads(func, &op, k)].state;
        if (states[i] != SBP_NO_VALUE)
            operands[sbp_opcode_state(op.code)] = states[i];
        rw.builder.node = op.node;
        sbp_build(&rw.builder, op.code, NULL, operands, op.operand_count, attrs, attr_count, results);
        SBP_TRY(rw.builder.status);
        for (int32_t r = 0; r < op.result_count; r++) {
            sbp_rewrite_replace(&rw, op.results[r], results[r]);
            append_rows(&rw, op.results[r], carries[op.results[r]], count[op.results[r]]);
        }
        if (states[i] != SBP_NO_VALUE)
            sbp_func_add_result(rw.to, results[op.result_count - 1], SBP_RESULT_CARRY, states[i], NULL);
    }
    for (int32_t v = 0; v < func->value_count; v++)
        for (int32_t c = 0; c < count[v]; c++)
            sbp_func_add_result(rw.to, carries[v][c].state, SBP_RESULT_CARRY, carries[v][c].argument, NULL);
    *out = sbp_rewrite_end(&rw);
    return rw.builder.status;
}

sbp_status sbp_pass_split(const sbp_pass_input *in, sbp_module *module) {
    const sbp_func *objective =
        sbp_module_find_func(module, "objective"); /* whole vectors of rows: never chunked */
    for (int32_t i = 0; i < module->func_count; i++)
        if (module->funcs[i] != objective)
            SBP_TRY(sbp_split_func(module, module->funcs[i], in->diag, &module->funcs[i]));
    return SBP_OK;
}
