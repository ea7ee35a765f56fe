/* lora: low-rank adapters join the matmuls that they belong to: y = W x becomes y = W x + B (s A x).
 *
 * requires  the adapters of the module: weights that functions read by `linear` or `expert_linear` alone
 * preserves values of all results where the scalar `adapter` is 0
 * breaks    the list of adapters: they are ops from here on
 *
 * s is the scale of the adapter times the scalar `adapter` of the step, on the side of rank r: rows of r
 * elements are multiplied, and both matmuls stay matmuls, the second with the first as its addend. Sums are
 * wide: W x + B (s A x) is rounded once, as W x was. Nothing else knows of adapters: W is a parameter that is
 * not trained, A and B are two that are.
 *
 * With dropout p A reads x where a random number of the element is not below p, else 0, and s is divided by
 * 1 - p. The number is of the seed and step (scalar random_dropout), of the adapter, of the document and the
 * row's position in it, and of the column: so wherever the row is packed, cut and computed again, it is the
 * same. p is multiplied by the scalar `dropout`: 0 turns it off, to the bit.
 */
#include "passes/graph/rewrite.h"

#include <math.h>
#include <string.h>

#include "passes/lower/passes.h"

#include "ir/program/contract.h"

/* A x of an adapter, for weights that are parts of one tensor and share their A. */
typedef struct reduced {
    int32_t a;
    double scale, dropout;
    sbp_value x, index, value;
} reduced;

typedef struct joiner {
    sbp_rewrite rw;
    sbp_module *module;
    reduced *made;
    int32_t made_count, made_capacity;
    bool *joined; /* per adapter of the module */
} joiner;

/* The adapter of the weight that an op multiplies by; -1: none. */
static int32_t adapter_of(const joiner *j, const sbp_op *op) {
    if (op->code != SBP_OP_linear && op->code != SBP_OP_expert_linear)
        return -1;
    const sbp_value_info *w = &j->rw.from->values[op->operands[op->code == SBP_OP_linear ? 1 : 2]];
    for (int32_t i = 0; w->role == SBP_VALUE_PARAM && i < j->module->adapter_count; i++)
        if (j->module->adapters[i].weight == w->binding)
            return i;
    return -1;
}

/* index: which experts' matrices rows are multiplied by; SBP_NO_VALUE: there is one. */
static sbp_value wide_matmul(joiner *j, sbp_value x, sbp_value index, int32_t matrix) {
    sbp_builder *b = &j->rw.builder;
    sbp_value w = sbp_build_param(b, matrix);
    if (index != SBP_NO_VALUE)
        return sbp_build(b, SBP_OP_expert_linear, NULL, (sbp_value[]){x, index, w, SBP_NO_VALUE}, 4,
                         (sbp_attr[]){sbp_attr_symbol("layout", "out_in"), sbp_attr_bool("wide", true)}, 2,
                         NULL);
    return sbp_build(b, SBP_OP_linear, NULL, (sbp_value[]){x, w}, 2,
                     (sbp_attr[]){sbp_attr_bool("wide", true)}, 1, NULL);
}

/* What tells the random numbers of an adapter from those of others, below 2^24: of the name of A. */
static sbp_value stream_of(joiner *j, int32_t a) {
    sbp_module *m = j->module;
    const char *name = sbp_arena_printf(m->arena, "%s.dropout", m->params[a].name);
    int32_t param = sbp_module_find_param(m, name);
    if (param < 0) {
        const char *of = m->params[a].name;
        double *number = SBP_NEW(m->arena, double);
        *number = (double)(sbp_hash_bytes(of, strlen(of), 0) & 0xffffff);
        const sbp_param stream = {.name = name,
                                  .type = {.dtype = SBP_F32, .rank = 1, .dim = {sbp_dim_const(1)}},
                                  .storage = SBP_F32,
                                  .source = SBP_F32,
                                  .init = SBP_INIT_ZEROS,
                                  .pad_row = -1,
                                  .number = number};
        param = sbp_module_add_param(m, &stream);
    }
    return sbp_build_param(&j->rw.builder, param);
}

static sbp_value row_number(joiner *j, const char *row) {
    sbp_builder *b = &j->rw.builder;
    return sbp_build_cast(b, sbp_build_row(b, row, SBP_I32, SBP_T), SBP_F32);
}

/* A number where the step drops, else 0, f64[]. */
static sbp_value where_dropping(joiner *j, double number) {
    sbp_builder *b = &j->rw.builder;
    sbp_value on = sbp_build_scalar(b, sbp_scalar_names[SBP_SCALAR_DROPOUT]);
    return sbp_build2(b, SBP_OP_mul, on, sbp_build_const(b, SBP_F64, number));
}

/* x with zeros where it is dropped. Random numbers are multiples of 2^-24, so all types draw the line alike.
 */
static sbp_value drop(joiner *j, const sbp_adapter *adapter, sbp_value x) {
    sbp_builder *b = &j->rw.builder;
    sbp_type like = *sbp_build_type(b, x);
    sbp_value operands[4];
    like.dtype = SBP_F32;
    operands[0] = stream_of(j, adapter->a);
    operands[1] = sbp_build_scalar(b, SBP_RANDOM_PREFIX "dropout");
    operands[2] = row_number(j, "pos");
    operands[3] = row_number(j, "sample");
    sbp_value u = sbp_build_random_of(b, &like, operands, SBP_COUNT(operands)),
              p = sbp_build_cast(b, where_dropping(j, ceil(adapter->dropout * 0x1p24) * 0x1p-24), SBP_F32);
    sbp_value zero = sbp_build_const(b, sbp_build_type(b, x)->dtype, 0);
    return sbp_build3(b, SBP_OP_select, sbp_build2(b, SBP_OP_lt, u, p), zero, x);
}

/* s A x, an operand for B. */
static sbp_value reduce(joiner *j, const sbp_adapter *adapter, sbp_value x, sbp_value index) {
    sbp_builder *b = &j->rw.builder;
    for (int32_t i = 0; i < j->made_count; i++)
        if (j->made[i].a == adapter->a && j->made[i].x == x && j->made[i].index == index &&
            j->made[i].scale == adapter->scale && j->made[i].dropout == adapter->dropout)
            return j->made[i].value;
    sbp_dtype type = sbp_build_type(b, x)->dtype, wide = sbp_rule_wide(type);
    sbp_value u = wide_matmul(j, adapter->dropout > 0 ? drop(j, adapter, x) : x, index, adapter->a);
    sbp_value s = sbp_build_scalar(b, sbp_scalar_names[SBP_SCALAR_ADAPTER]);
    s = sbp_build2(b, SBP_OP_mul, s, sbp_build_const(b, SBP_F64, adapter->scale));
    if (adapter->dropout > 0) {
        sbp_value one = sbp_build_const(b, SBP_F64, 1);
        s = sbp_build2(b, SBP_OP_div, s, sbp_build2(b, SBP_OP_sub, one, where_dropping(j, adapter->dropout)));
    }
    u = sbp_build2(b, SBP_OP_mul, u, sbp_build_cast(b, s, wide));
    reduced made = {.a = adapter->a,
                    .scale = adapter->scale,
                    .dropout = adapter->dropout,
                    .x = x,
                    .index = index,
                    .value = sbp_build_rounded(b, u, type)};
    SBP_PUSH(j->module->arena, j->made, j->made_count, j->made_capacity, made);
    return made.value;
}

/* The matmul, with its sum wide until what the adapter adds is in it. */
static sbp_status join(joiner *j, const sbp_op *op, const sbp_adapter *adapter) {
    sbp_builder *b = &j->rw.builder;
    sbp_value operands[SBP_MAX_OPERANDS];
    sbp_dtype type = j->rw.from->values[op->results[0]].type.dtype;
    sbp_rewrite_operands(&j->rw, op, operands);
    b->node = op->node;
    sbp_value index = op->code == SBP_OP_linear ? SBP_NO_VALUE : operands[1];
    sbp_value y = sbp_build(b, op->code, NULL, operands, op->operand_count,
                            (sbp_attr[]){sbp_attr_symbol("layout", sbp_op_attr(op, "layout")->symbol),
                                         sbp_attr_bool("wide", true)},
                            2, NULL);
    sbp_value more = wide_matmul(j, reduce(j, adapter, operands[0], index), index, adapter->b);
    y = sbp_build_rounded(b, sbp_build2(b, SBP_OP_add, y, more), type);
    SBP_TRY(b->status);
    sbp_rewrite_replace(&j->rw, op->results[0], y);
    return SBP_OK;
}

static sbp_status join_func(const sbp_pass_input *in, sbp_module *module, const sbp_func *func, bool *joined,
                            sbp_func **out) {
    joiner j = {.module = module, .joined = joined};
    sbp_rewrite_begin(&j.rw, module, func, in->diag);
    for (int32_t i = 0; i < func->op_count; i++) {
        int32_t adapter = adapter_of(&j, &func->ops[i]);
        if (adapter < 0) {
            SBP_TRY(sbp_rewrite_copy(&j.rw, &func->ops[i]));
            continue;
        }
        joined[adapter] = true;
        SBP_TRY(join(&j, &func->ops[i], &module->adapters[adapter]));
    }
    *out = sbp_rewrite_end(&j.rw);
    return SBP_OK;
}

sbp_status sbp_pass_lora(const sbp_pass_input *in, sbp_module *m) {
    bool *joined = SBP_NEW_ARRAY(in->arena, bool, m->adapter_count + 1);
    if (m->adapter_count == 0)
        return SBP_OK;
    for (int32_t i = 0; i < m->func_count; i++)
        SBP_TRY(join_func(in, m, m->funcs[i], joined, &m->funcs[i]));
    for (int32_t i = 0; i < m->adapter_count; i++)
        if (!joined[i])
            return sbp_fail(in->diag, SBP_INTERNAL,
                            "adapter of '%s': no matmul of the model uses this weight",
                            m->params[m->adapters[i].weight].name);
    m->adapter_count = 0;
    return SBP_OK;
}
