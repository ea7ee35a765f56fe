/* canonicalize: folds constants, removes duplicates and what no result needs.
 *
 * requires  functions that verify
 * preserves values of all results
 * breaks    nothing
 *
 * Rules: an op equal to an earlier one (same operands and attributes) is that one; x + 0, x - 0, x * 1, x /
 * 1, casts, reshapes and broadcasts to the own type are x; an op on constants is a constant; a cast of a cast
 * that loses nothing is one cast; a wide matmul that only a cast back to its operands' type reads has that
 * type itself (matmuls are summed wide and rounded once either way); ops without users disappear. A cast
 * that rounds is never removed.
 */
#include "passes/lower/passes.h"

#include <string.h>

#include "passes/graph/rewrite.h"

static bool constant_value(const sbp_func *func, sbp_value v, double *out) {
    if (v == SBP_NO_VALUE || func->values[v].role != SBP_VALUE_OP || func->values[v].op < 0)
        return false;
    const sbp_op *op = &func->ops[func->values[v].op];
    if (op->code != SBP_OP_constant)
        return false;
    *out = sbp_op_double(op, "value");
    return true;
}

/* x of an op that changes nothing; SBP_NO_VALUE otherwise. */
static sbp_value identity_of(const sbp_func *func, const sbp_op *op) {
    double c;
    sbp_value a = op->operand_count > 0 ? op->operands[0] : SBP_NO_VALUE;
    sbp_value b = op->operand_count > 1 ? op->operands[1] : SBP_NO_VALUE;
    const sbp_type *y = &func->values[op->results[0]].type;
    sbp_value same = SBP_NO_VALUE;
    switch (op->code) {
    case SBP_OP_add:
        same = constant_value(func, b, &c) && c == 0   ? a
               : constant_value(func, a, &c) && c == 0 ? b
                                                       : SBP_NO_VALUE;
        break;
    case SBP_OP_sub:
        same = constant_value(func, b, &c) && c == 0 ? a : SBP_NO_VALUE;
        break;
    case SBP_OP_mul:
        same = constant_value(func, b, &c) && c == 1   ? a
               : constant_value(func, a, &c) && c == 1 ? b
                                                       : SBP_NO_VALUE;
        break;
    case SBP_OP_div:
        same = constant_value(func, b, &c) && c == 1 ? a : SBP_NO_VALUE;
        break;
    case SBP_OP_cast:
    case SBP_OP_reshape:
    case SBP_OP_broadcast:
    case SBP_OP_slice:
    case SBP_OP_pad:
        same = a;
        break;
    default:
        break;
    }
    return same != SBP_NO_VALUE && sbp_type_equal(&func->values[same].type, y) ? same : SBP_NO_VALUE;
}

/* Whether every number of type `from` is one of type `to`. */
static bool holds_all(sbp_dtype to, sbp_dtype from) {
    if (to == from)
        return true;
    switch (from) {
    case SBP_BF16:
    case SBP_F16:
        return to == SBP_F32 || to == SBP_F64;
    case SBP_F32:
    case SBP_I32:
        return to == SBP_F64;
    case SBP_I16:
    case SBP_D8:
    case SBP_UD8:
        return to == SBP_F32 || to == SBP_F64;
    case SBP_I8:
    case SBP_BOOL:
        return sbp_dtype_is_float(to);
    default:
        return false;
    }
}

/* Lets a cast read what a cast before it read, when that one lost nothing. */
static void skip_cast(sbp_func *func, sbp_op *op) {
    while (op->code == SBP_OP_cast && func->values[op->operands[0]].op >= 0) {
        const sbp_op *before = &func->ops[func->values[op->operands[0]].op];
        if (before->code != SBP_OP_cast ||
            !holds_all((sbp_dtype)sbp_op_int(before, "to"), func->values[before->operands[0]].type.dtype))
            return;
        op->operands[0] = before->operands[0];
    }
}

static bool fold(const sbp_func *func, const sbp_op *op, double *out) {
    sbp_rowop rowop = sbp_opcode_rowop(op->code);
    double v[3] = {0};
    if (op->code == SBP_OP_cast) {
        if (!constant_value(func, op->operands[0], &v[0]))
            return false;
        *out = sbp_round_to((sbp_dtype)sbp_op_int(op, "to"), v[0]);
        return true;
    }
    if (rowop == SBP_ROWOP_COUNT || func->values[op->results[0]].type.dtype == SBP_BOOL)
        return false;
    for (int k = 0; k < sbp_rowop_arity(rowop); k++)
        if (!constant_value(func, op->operands[k], &v[k]))
            return false;
    *out = sbp_round_to(func->values[op->results[0]].type.dtype, sbp_rowop_eval(rowop, v[0], v[1], v[2]));
    return true;
}

/* The wide matmul that `cast` alone reads and rounds to the type of the matmul's operands, to be computed in
 * this type; NULL: there is none. uses: per value of func. */
static const sbp_op *rounded_matmul(const sbp_func *func, const sbp_op *cast, const int32_t *uses) {
    sbp_value v = cast->code == SBP_OP_cast ? cast->operands[0] : SBP_NO_VALUE;
    if (v == SBP_NO_VALUE || func->values[v].op < 0 || uses[v] != 1)
        return NULL;
    const sbp_op *op = &func->ops[func->values[v].op];
    sbp_dtype to = (sbp_dtype)sbp_op_int(cast, "to");
    return op->code == SBP_OP_linear && to != func->values[v].type.dtype &&
                   to == func->values[op->operands[0]].type.dtype
               ? op
               : NULL;
}

/* Copies the matmul as one whose result is not wide, in place of the cast. */
static sbp_status copy_rounded(sbp_rewrite *rw, const sbp_op *matmul, const sbp_op *cast) {
    sbp_attr attrs[] = {*sbp_op_attr(matmul, "layout"), sbp_attr_bool("wide", false)};
    sbp_op op = *matmul;
    op.attrs = attrs;
    op.results = cast->results;
    return sbp_rewrite_copy(rw, &op);
}

/* Everything that makes two ops equal, as text. */
static const char *op_key(const sbp_func *func, const sbp_op *op) {
    sbp_text text;
    sbp_text_init(&text, func->arena);
    sbp_attr_schema schema[SBP_MAX_ATTRS];
    int32_t attrs = sbp_opcode_attrs(op->code, schema);
    sbp_text_add(&text, "%d", (int)op->code);
    for (int32_t k = 0; k < op->operand_count; k++)
        sbp_text_add(&text, " %d", op->operands[k]);
    for (int32_t i = 0; i < attrs; i++) {
        const sbp_attr *a = &op->attrs[i];
        sbp_text_add(&text, "|%lld %a %s", (long long)a->i, a->f, a->symbol ? a->symbol : "");
        for (int64_t j = 0; a->kind == SBP_ATTR_L && j < a->i; j++)
            sbp_text_add(&text, ",%lld", (long long)a->list[j]);
    }
    return text.data;
}

static int32_t *count_uses(const sbp_func *func) {
    int32_t *uses = SBP_NEW_ARRAY(func->arena, int32_t, func->value_count + 1);
    for (int32_t i = 0; i < func->op_count; i++)
        for (int32_t k = 0; k < func->ops[i].operand_count; k++)
            if (func->ops[i].operands[k] != SBP_NO_VALUE)
                uses[func->ops[i].operands[k]]++;
    for (int32_t i = 0; i < func->result_count; i++)
        uses[func->results[i].value]++;
    return uses;
}

sbp_status sbp_canonicalize_func(sbp_module *module, const sbp_func *func, sbp_diag *diag, sbp_func **out) {
    sbp_rewrite rw;
    sbp_map seen;
    sbp_rewrite_begin(&rw, module, func, diag);
    sbp_map_init(&seen, module->arena);
    int32_t *uses = count_uses(func);
    for (int32_t i = 0; i < func->op_count; i++) {
        const sbp_op *op = &func->ops[i], *matmul = rounded_matmul(func, op, uses);
        SBP_TRY(matmul ? copy_rounded(&rw, matmul, op) : sbp_rewrite_copy(&rw, op));
        int32_t number = rw.to->op_count - 1; /* look at the copy: its operands are already simplified */
        skip_cast(rw.to, &rw.to->ops[number]);
        const sbp_op *copy = &rw.to->ops[number];
        sbp_value same = identity_of(rw.to, copy);
        double folded;
        if (same != SBP_NO_VALUE) {
            rw.map[op->results[0]] = same;
            continue;
        }
        if (fold(rw.to, copy, &folded) && rw.to->values[copy->results[0]].type.rank == 0) {
            sbp_dtype dtype = rw.to->values[copy->results[0]].type.dtype;
            rw.map[op->results[0]] = sbp_build_const(&rw.builder, dtype, folded);
            number = rw.to->op_count - 1;
            copy = &rw.to->ops[number];
        }
        const char *key = op_key(rw.to, copy);
        int32_t twin = sbp_map_get(&seen, key);
        if (twin >= 0 && copy->code != SBP_OP_append) {
            for (int32_t r = 0; r < op->result_count; r++)
                rw.map[op->results[r]] = rw.to->ops[twin].results[r];
        } else {
            sbp_map_set(&seen, key, number);
        }
    }
    sbp_func_prune(sbp_rewrite_end(&rw));
    /* copy once more, so that values which were dropped do not occupy names */
    sbp_rewrite clean;
    sbp_rewrite_begin(&clean, module, rw.to, diag);
    for (int32_t i = 0; i < rw.to->op_count; i++)
        SBP_TRY(sbp_rewrite_copy(&clean, &rw.to->ops[i]));
    *out = sbp_rewrite_end(&clean);
    return rw.builder.status;
}

sbp_status sbp_pass_canonicalize(const sbp_pass_input *in, sbp_module *module) {
    for (int32_t i = 0; i < module->func_count; i++)
        SBP_TRY(sbp_canonicalize_func(module, module->funcs[i], in->diag, &module->funcs[i]));
    return SBP_OK;
}
