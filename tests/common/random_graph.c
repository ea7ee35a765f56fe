/* random_graph.c: random functions over the whole op table. */
#include "tests/common/random_graph.h"

#include <string.h>

typedef struct maker {
    testing *t;
    random_graph *g;
    const random_graph_options *options;
    sbp_builder b;
    int *used;
} maker;

static bool same_fill(const sbp_example_operand *a, const sbp_example_operand *b) {
    return a->fill == b->fill && (a->fill != SBP_FILL_INT || (a->lo >= b->lo && a->hi <= b->hi));
}

/* A value of the type: made before (often), else a new argument. Domains matter only for new arguments and
 * integers: results may leave the domain of log or sqrt, which gives NaN on both sides of a comparison. */
static sbp_value pick(maker *m, const sbp_example_operand *want, bool fresh) {
    sbp_func *f = m->g->func;
    sbp_value found[64];
    int count = 0;
    for (sbp_value v = 0; v < f->value_count && !fresh; v++) {
        if (!sbp_type_equal(&f->values[v].type, &want->type))
            continue;
        bool argument = f->values[v].role != SBP_VALUE_OP;
        if (want->fill != SBP_FILL_FLOAT && want->type.dtype != SBP_BOOL &&
            !(argument && same_fill(&m->g->fills[v], want)))
            continue;
        if (argument && want->fill == SBP_FILL_FLOAT && m->g->fills[v].fill != SBP_FILL_FLOAT)
            continue;
        found[count++ % SBP_COUNT(found)] = v;
    }
    count = count < SBP_COUNT(found) ? count : SBP_COUNT(found);
    if (count > 0 && sbp_rng_below(&m->t->rng, 8) > 0)
        return found[sbp_rng_below(&m->t->rng, count)];
    sbp_value_role role = SBP_VALUE_STREAM;
    int32_t binding = -1;
    if (sbp_dtype_is_float(want->type.dtype) && sbp_type_rows(&want->type) == SBP_ONE) {
        role = SBP_VALUE_PARAM;
    } else if (want->type.dtype == SBP_I32 && want->type.rank == 1 && sbp_type_rows(&want->type) != SBP_ONE) {
        role = SBP_VALUE_ROW;
        binding =
            sbp_module_add_row(m->g->module, sbp_arena_printf(m->t->arena, "row%d", f->arg_count), SBP_I32);
    }
    sbp_value v = sbp_func_add_arg(f, role, NULL, &want->type, binding);
    f->values[v].trainable = role == SBP_VALUE_PARAM;
    /* numbered like the value, so that fills can be found by either: arguments may follow ops */
    while (m->g->fill_count <= v)
        SBP_PUSH(m->t->arena, m->g->fills, m->g->fill_count, m->g->fill_capacity, *want);
    return v;
}

static bool streams(sbp_opcode code) {
    return code != SBP_OP_group_sum && code != SBP_OP_group_take && code != SBP_OP_scan &&
           sbp_opcode_class(code) != SBP_CLASS_RECUR && code != SBP_OP_sum_rows &&
           code != SBP_OP_scatter_add && code != SBP_OP_linear_dw;
}

static bool is_smooth(sbp_opcode code) {
    static const sbp_opcode rough[] = {
        SBP_OP_eq,       SBP_OP_lt,        SBP_OP_le,          SBP_OP_and,
        SBP_OP_or,       SBP_OP_not,       SBP_OP_abs,         SBP_OP_max,
        SBP_OP_min,      SBP_OP_select,    SBP_OP_exp,         SBP_OP_log,
        SBP_OP_div,      SBP_OP_row_max,   SBP_OP_row_min,     SBP_OP_stop_gradient,
        SBP_OP_sqrt,     SBP_OP_rsqrt,     SBP_OP_log_prob,    SBP_OP_bf16_high,
        SBP_OP_bf16_low, SBP_OP_bf16_join, SBP_OP_bf16_random, SBP_OP_random,
        SBP_OP_route,    SBP_OP_floor};
    for (int i = 0; i < SBP_COUNT(rough); i++)
        if (rough[i] == code)
            return false;
    return true;
}

static void add_op(maker *m) {
    sbp_opcode code;
    do
        code = (sbp_opcode)sbp_rng_below(&m->t->rng, SBP_OP_COUNT);
    while (sbp_opcode_class(code) == SBP_CLASS_BACKWARD || code == SBP_OP_append ||
           (m->options->streamable && !streams(code)) || (m->options->smooth && !is_smooth(code)));
    sbp_example e;
    int32_t examples = 0;
    while (sbp_opcode_example(code, examples, &e))
        examples++;
    sbp_opcode_example(code, (int32_t)sbp_rng_below(&m->t->rng, examples), &e);
    bool positive = code == SBP_OP_log || code == SBP_OP_sqrt || code == SBP_OP_rsqrt || code == SBP_OP_div;
    sbp_value operands[SBP_MAX_OPERANDS];
    for (int32_t k = 0; k < e.in_count; k++)
        operands[k] = e.in[k].fill == SBP_FILL_ABSENT ? SBP_NO_VALUE : pick(m, &e.in[k], positive);
    m->b.node = sbp_rng_below(&m->t->rng, 2) ? "a.node" : NULL;
    sbp_build(&m->b, code, NULL, operands, e.in_count, e.attrs, e.attr_count, NULL);
    if (m->used)
        m->used[code]++;
}

static sbp_value any_float(maker *m) {
    sbp_example_operand want = sbp_example_float("f64[T,6]", -1, 1);
    sbp_func *f = m->g->func;
    for (int attempt = 0; attempt < 20 && f->value_count > 0; attempt++) {
        sbp_value v = (sbp_value)sbp_rng_below(&m->t->rng, f->value_count);
        if (f->values[v].type.dtype == SBP_F64)
            return v;
    }
    return pick(m, &want, false);
}

/* x + 0, 1 x, ... and what reshapes, pads or slices nothing. */
static void add_identity(maker *m) {
    sbp_value x = any_float(m), zero = sbp_build_const(&m->b, SBP_F64, 0),
              one = sbp_build_const(&m->b, SBP_F64, 1);
    const sbp_type type = *sbp_build_type(&m->b, x);
    int64_t dims[SBP_MAX_RANK], last = type.rank > 0 ? type.dim[type.rank - 1].n : 0;
    int32_t count = 0;
    for (int32_t d = 0; d < type.rank; d++)
        if (type.dim[d].symbol == SBP_ONE)
            dims[count++] = type.dim[d].n;
    bool axis = count > 0;
    switch (sbp_rng_below(&m->t->rng, axis ? 10 : 8)) {
    case 0:
        sbp_build2(&m->b, SBP_OP_add, x, zero);
        break;
    case 1:
        sbp_build2(&m->b, SBP_OP_add, zero, x);
        break;
    case 2:
        sbp_build2(&m->b, SBP_OP_sub, x, zero);
        break;
    case 3:
        sbp_build2(&m->b, SBP_OP_mul, one, x);
        break;
    case 4:
        sbp_build2(&m->b, SBP_OP_div, x, one);
        break;
    case 5:
        sbp_build(&m->b, SBP_OP_cast, NULL, &x, 1, (sbp_attr[]){sbp_attr_dtype("to", SBP_F64)}, 1, NULL);
        break;
    case 6:
        sbp_build_reshape(&m->b, x, dims, count);
        break;
    case 7: { /* not the identity: a constant on the wrong side */
        sbp_build2(&m->b, SBP_OP_sub, zero, x);
        break;
    }
    case 8:
        sbp_build_slice(&m->b, x, 0, last);
        break;
    default:
        sbp_build(&m->b, SBP_OP_pad, NULL, &x, 1,
                  (sbp_attr[]){sbp_attr_int("before", 0), sbp_attr_int("after", 0)}, 2, NULL);
    }
}

/* A row-wise op of constants, used by something. */
static void add_constants(maker *m) {
    sbp_rowop op;
    do
        op = (sbp_rowop)sbp_rng_below(&m->t->rng, SBP_ROWOP_COUNT);
    while (sbp_opcode_class(sbp_opcode_of_rowop(op)) != SBP_CLASS_ROWWISE || op == SBP_ROWOP_select ||
           op == SBP_ROWOP_and || op == SBP_ROWOP_or || op == SBP_ROWOP_not);
    sbp_value c[2];
    for (int k = 0; k < 2; k++)
        c[k] = sbp_build_const(&m->b, SBP_F64, testing_uniform(m->t, 0.5, 2));
    sbp_value y = sbp_build(&m->b, sbp_opcode_of_rowop(op), NULL, c, sbp_rowop_arity(op), NULL, 0, NULL);
    if (sbp_build_type(&m->b, y)->dtype == SBP_F64)
        sbp_build2(&m->b, SBP_OP_mul, any_float(m), y);
}

static void add_repetition(maker *m) {
    sbp_func *f = m->g->func;
    if (f->op_count == 0)
        return;
    sbp_op op = f->ops[sbp_rng_below(&m->t->rng, f->op_count)];
    sbp_attr_schema schema[SBP_MAX_ATTRS];
    m->b.node = "again";
    sbp_build(&m->b, op.code, NULL, op.operands, op.operand_count, op.attrs,
              sbp_opcode_attrs(op.code, schema), NULL);
}

random_graph random_graph_build(testing *t, const random_graph_options *options, int *used) {
    random_graph g = {.module = sbp_module_create(t->arena, "random")};
    g.func = sbp_module_add_func(g.module, "f");
    maker m = {
        .t = t, .g = &g, .options = options, .b = sbp_builder_on(g.module, g.func, t->diag), .used = used};
    while (g.func->op_count < options->ops) {
        int64_t kind = sbp_rng_below(&t->rng, 10);
        g.plants += kind < 4;
        if (kind < 2)
            add_identity(&m);
        else if (kind == 2)
            add_constants(&m);
        else if (kind == 3)
            add_repetition(&m);
        else
            add_op(&m);
        testing_check(t, m.b.status);
    }
    for (sbp_value v = 0; v < g.func->value_count; v++)
        if (g.func->values[v].role == SBP_VALUE_OP && sbp_rng_below(&t->rng, 4) == 0)
            sbp_func_add_result(g.func, v, SBP_RESULT_VALUE, SBP_NO_VALUE, NULL);
    testing_check(t, sbp_module_verify(g.module, t->diag));
    return g;
}

sbp_tensor **random_graph_inputs(testing *t, const random_graph *g, const documents *rows,
                                 const sbp_eval_env *env) {
    sbp_tensor **inputs = SBP_NEW_ARRAY(t->arena, sbp_tensor *, g->func->arg_count + 1);
    for (int32_t i = 0; i < g->func->arg_count; i++)
        inputs[i] = example_tensor(t, &g->fills[g->func->args[i]], rows, env);
    return inputs;
}
