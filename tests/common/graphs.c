/* graphs.c: functions of the graph IR for tests. */
#include "tests/common/graphs.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/tolerance.h"

/* The step of central differences, for which SBP_TOLERANCE_DIFFERENCES is meant. */
static const double difference_step = 1e-5;

/* ---- one op ------------------------------------------------------------------------------------------ */

/* decay, beta and states of the delta rule. */
static bool wide_of_delta(sbp_opcode code, int32_t operand) {
    int32_t k = code == SBP_OP_delta_rule         ? 1
                : code == SBP_OP_delta_rule_state ? 0
                : code == SBP_OP_delta_rule_vjp   ? 2
                                                  : SBP_MAX_OPERANDS;
    return operand >= k + 2;
}

/* Operands whose type does not follow the compute type: log-sum-exps and rotary tables are wide. */
static sbp_dtype dtype_of(sbp_opcode code, int32_t operand, sbp_dtype declared, sbp_dtype dtype) {
    if (declared != SBP_F64)
        return declared;
    if (code == SBP_OP_random)
        return declared;
    if ((code == SBP_OP_attention_vjp && operand == 4) || (code == SBP_OP_rope && operand > 0) ||
        wide_of_delta(code, operand))
        return sbp_rule_wide(dtype);
    return dtype;
}

static sbp_value add_argument(testing *t, example_graph *g, int32_t operand) {
    sbp_operand_info info[SBP_MAX_OPERANDS];
    sbp_opcode_operands(g->code, info);
    const sbp_type *type = &g->example.in[operand].type;
    const char *name = sbp_arena_strndup(t->arena, info[operand].name, (size_t)info[operand].length);
    bool carry = (g->code == SBP_OP_append || g->code == SBP_OP_take) && operand == 0;
    if (carry)
        return sbp_func_add_arg(g->func, SBP_VALUE_CARRY, name, type, -1);
    if (type->dtype == SBP_I32 && type->rank == 1 && sbp_type_rows(type) != SBP_ONE)
        return sbp_func_add_arg(g->func, SBP_VALUE_ROW, name, type,
                                sbp_module_add_row(g->module, name, SBP_I32));
    if (sbp_dtype_is_float(type->dtype) && sbp_type_rows(type) == SBP_ONE) {
        sbp_value value = sbp_func_add_arg(g->func, SBP_VALUE_PARAM, name, type, -1);
        g->func->values[value].trainable = true;
        return value;
    }
    return sbp_func_add_arg(g->func, SBP_VALUE_STREAM, name, type, -1);
}

bool example_graph_build(testing *t, sbp_opcode code, int32_t index, sbp_dtype dtype, example_graph *out) {
    memset(out, 0, sizeof *out);
    out->code = code;
    if (!sbp_opcode_example(code, index, &out->example))
        return false;
    sbp_example *e = &out->example;
    for (int32_t k = 0; k < e->in_count; k++)
        e->in[k].type.dtype = dtype_of(code, k, e->in[k].type.dtype, dtype);
    for (int32_t a = 0; a < e->attr_count; a++)
        if (e->attrs[a].kind == SBP_ATTR_D && e->attrs[a].i == SBP_F64)
            e->attrs[a].i = (int64_t)dtype;
    out->module = sbp_module_create(t->arena, sbp_opcode_name(code));
    out->func = sbp_module_add_func(out->module, "f");
    sbp_value operands[SBP_MAX_OPERANDS], results[SBP_MAX_RESULTS];
    int32_t count = 0;
    for (int32_t k = 0; k < e->in_count; k++) {
        operands[k] = SBP_NO_VALUE;
        if (e->in[k].fill == SBP_FILL_ABSENT)
            continue;
        operands[k] = add_argument(t, out, k);
        out->operand[count++] = k;
    }
    sbp_builder b = sbp_builder_on(out->module, out->func, t->diag);
    b.node = "the.node";
    sbp_build(&b, code, "y", operands, e->in_count, e->attrs, e->attr_count, results);
    testing_check(t, b.status);
    for (int32_t r = 0; r < sbp_opcode_results(code); r++) {
        sbp_result_role role = code == SBP_OP_append ? SBP_RESULT_CARRY : SBP_RESULT_VALUE;
        bool state = sbp_opcode_class(code) == SBP_CLASS_RECUR && sbp_opcode_continues(code, r) >= 0;
        if ((sbp_opcode_attends(code) && r == 1) || state)
            continue; /* have no cotangents */
        sbp_func_add_result(out->func, results[r], role,
                            role == SBP_RESULT_CARRY ? operands[0] : SBP_NO_VALUE,
                            sbp_arena_printf(t->arena, "y%d", r));
    }
    testing_check(t, sbp_module_verify(out->module, t->diag));
    return true;
}

sbp_eval_env example_env(testing *t, int64_t rows) {
    sbp_eval_env env = {.arena = t->arena, .diag = t->diag};
    int64_t chunk = rows < 3 ? rows : 3;
    env.sizes.v[SBP_ONE] = 1;
    env.sizes.v[SBP_T] = rows;
    env.sizes.v[SBP_S] = 3;
    env.sizes.v[SBP_C] = chunk;
    env.sizes.v[SBP_H] = chunk;
    env.sizes.v[SBP_W] = rows;
    env.sizes.v[SBP_D] = chunk;
    env.row0 = (rows - chunk) / 2;
    return env;
}

static double row_number(const documents *d, sbp_example_fill fill, int64_t row) {
    return (double)(fill == SBP_FILL_FIRST        ? d->first[row]
                    : fill == SBP_FILL_SHARED_END ? d->shared_end[row]
                                                  : d->own[row]);
}

sbp_tensor *example_tensor(testing *t, const sbp_example_operand *in, const documents *rows,
                           const sbp_eval_env *env) {
    sbp_tensor *x = graph_tensor(t, &in->type, env, in->lo, in->hi);
    int64_t row0 = sbp_type_rows(&in->type) == SBP_C ? env->row0 : 0;
    for (int64_t j = 0; j < x->elems; j++)
        if (in->fill == SBP_FILL_INT)
            x->data[j] = in->lo + (double)sbp_rng_below(&t->rng, (int64_t)(in->hi - in->lo));
        else if (in->fill != SBP_FILL_FLOAT)
            x->data[j] = row_number(rows, in->fill, row0 + j);
    return x;
}

sbp_tensor **example_inputs(testing *t, const example_graph *g, const documents *rows,
                            const sbp_eval_env *env) {
    sbp_tensor **inputs = SBP_NEW_ARRAY(t->arena, sbp_tensor *, g->func->arg_count);
    for (int32_t i = 0; i < g->func->arg_count; i++) {
        inputs[i] = example_tensor(t, &g->example.in[g->operand[i]], rows, env);
        for (int64_t j = 0; g->code == SBP_OP_eq && j < inputs[i]->elems; j++) /* so that some are equal */
            inputs[i]->data[j] = round(inputs[i]->data[j]);
    }
    return inputs;
}

/* ---- evaluation -------------------------------------------------------------------------------------- */

sbp_tensor *graph_tensor(testing *t, const sbp_type *type, const sbp_eval_env *env, double lo, double hi) {
    sbp_tensor *tensor = sbp_tensor_create(t->arena, type, &env->sizes);
    for (int64_t j = 0; j < tensor->elems; j++)
        tensor->data[j] = testing_uniform(t, lo, hi);
    return tensor;
}

sbp_tensor **graph_evaluate(testing *t, sbp_arena *arena, const sbp_module *module, const sbp_func *func,
                            const sbp_eval_env *env, sbp_tensor *const *inputs) {
    sbp_eval_env here = *env;
    here.arena = arena;
    sbp_tensor **values = SBP_NEW_ARRAY(arena, sbp_tensor *, func->value_count + 1);
    for (int32_t i = 0; i < func->arg_count; i++)
        values[func->args[i]] = inputs[i];
    testing_check(t, sbp_evaluate(module, func, &here, values));
    return values;
}

/* ---- derivatives ------------------------------------------------------------------------------------- */

sbp_func *graph_differentiate(testing *t, sbp_module *module, const sbp_func *func) {
    sbp_func *expanded, *derived, *late;
    testing_check(t, sbp_expand_func(module, func, false, t->diag, &expanded));
    testing_check(t, sbp_autodiff_func(module, expanded, true, t->diag, &derived));
    testing_check(t, sbp_func_verify(module, derived, t->diag));
    testing_check(t, sbp_expand_func(module, derived, true, t->diag, &late));
    testing_check(t, sbp_func_verify(module, late, t->diag));
    return late;
}

sbp_func *graph_gradient_function(testing *t, sbp_module *module, const sbp_func *derivative) {
    sbp_func *f = sbp_func_create(t->arena, "gradient");
    sbp_value *map = SBP_NEW_ARRAY(t->arena, sbp_value, derivative->value_count + 1);
    for (int32_t v = 0; v < derivative->value_count; v++)
        map[v] = SBP_NO_VALUE;
    for (int32_t i = 0; i < derivative->arg_count; i++) {
        const sbp_value_info *info = &derivative->values[derivative->args[i]];
        bool cotangent = info->role == SBP_VALUE_COTANGENT;
        sbp_value v = sbp_func_add_arg(f, cotangent ? SBP_VALUE_STREAM : info->role, info->name, &info->type,
                                       cotangent ? -1 : info->binding);
        f->values[v].trainable = info->trainable;
        map[derivative->args[i]] = v;
    }
    sbp_func_copy_ops(derivative, f, map, NULL);
    for (int32_t i = 0; i < derivative->result_count; i++)
        if (derivative->results[i].role == SBP_RESULT_GRADIENT)
            sbp_func_add_result(f, map[derivative->results[i].value], SBP_RESULT_VALUE, SBP_NO_VALUE, NULL);
    sbp_func_prune(f);
    testing_check(t, sbp_func_verify(module, f, t->diag));
    return f;
}

/* sum over plain results r of weights[r] . (y_r - were_r): a large result that does not change cancels, and
 * leaves no error. */
static double weighted_sum(testing *t, const sbp_module *module, const sbp_func *func,
                           const sbp_eval_env *env, sbp_tensor *const *inputs, double *const *were,
                           sbp_tensor *const *weights) {
    sbp_arena *arena = sbp_arena_create();
    assert_non_null(arena);
    sbp_tensor **values = graph_evaluate(t, arena, module, func, env, inputs);
    double sum = 0;
    for (int32_t r = 0; r < func->result_count; r++)
        for (int64_t j = 0; weights[r] && j < weights[r]->elems; j++)
            sum += weights[r]->data[j] * (values[func->results[r].value]->data[j] - were[r][j]);
    sbp_arena_destroy(arena);
    return sum;
}

/* Copies: a result may be an argument itself. */
static double **results_of(testing *t, const sbp_module *module, const sbp_func *func,
                           const sbp_eval_env *env, sbp_tensor *const *inputs) {
    sbp_tensor **values = graph_evaluate(t, t->arena, module, func, env, inputs);
    double **out = SBP_NEW_ARRAY(t->arena, double *, func->result_count + 1);
    for (int32_t r = 0; r < func->result_count; r++) {
        const sbp_tensor *x = values[func->results[r].value];
        out[r] = SBP_NEW_ARRAY(t->arena, double, x->elems + 1);
        memcpy(out[r], x->data, (size_t)x->elems * sizeof(double));
    }
    return out;
}

/* Weights for the results that have a cotangent argument in the derivative, and the inputs of the derivative.
 * Without a cotangent the derivative says that a result does not vary smoothly with any argument: weight 0.
 */
static sbp_tensor **choose_weights(testing *t, const sbp_func *func, const sbp_func *derivative,
                                   const sbp_eval_env *env, sbp_tensor *const *inputs, sbp_tensor **weights) {
    sbp_tensor **all = SBP_NEW_ARRAY(t->arena, sbp_tensor *, derivative->arg_count + 1);
    memcpy(all, inputs, (size_t)func->arg_count * sizeof *all);
    for (int32_t i = func->arg_count; i < derivative->arg_count; i++) {
        const sbp_value_info *info = &derivative->values[derivative->args[i]];
        assert_int_equal(info->role, SBP_VALUE_COTANGENT);
        all[i] = graph_tensor(t, &info->type, env, -1, 1);
        bool found = false;
        for (int32_t r = 0; r < func->result_count && !found; r++)
            if (!weights[r] && derivative->results[r].role == SBP_RESULT_VALUE &&
                derivative->results[r].value == info->binding) {
                weights[r] = all[i];
                found = true;
            }
        assert_true(found);
    }
    return all;
}

slope_report graph_check_gradients(testing *t, sbp_module *module, const sbp_func *func,
                                   const sbp_func *value_of, const sbp_eval_env *env, sbp_tensor **inputs,
                                   const char *what) {
    slope_report report = {0};
    sbp_func *derivative = graph_differentiate(t, module, func);
    sbp_tensor **weights = SBP_NEW_ARRAY(t->arena, sbp_tensor *, func->result_count + 1);
    sbp_tensor **all = choose_weights(t, func, derivative, env, inputs, weights);
    sbp_tensor **values = graph_evaluate(t, t->arena, module, derivative, env, all);
    double **were = results_of(t, module, value_of, env, inputs);
    for (int32_t i = 0; i < func->arg_count; i++) {
        sbp_value arg = derivative->args[i];
        const sbp_value_info *info = &derivative->values[arg];
        if (!sbp_dtype_is_float(info->type.dtype) || info->role == SBP_VALUE_CARRY)
            continue;
        sbp_tensor *x = inputs[i];
        double *slope = SBP_NEW_ARRAY(t->arena, double, x->elems),
               *gradient = SBP_NEW_ARRAY(t->arena, double, x->elems);
        for (int64_t j = 0; j < x->elems; j++) {
            double at = x->data[j];
            x->data[j] = at + difference_step;
            double above = weighted_sum(t, module, value_of, env, inputs, were, weights);
            x->data[j] = at - difference_step;
            slope[j] = (above - weighted_sum(t, module, value_of, env, inputs, were, weights)) /
                       (2 * difference_step);
            x->data[j] = at;
        }
        bool any = false;
        for (int32_t r = 0; r < derivative->result_count; r++) {
            const sbp_result *result = &derivative->results[r];
            if (result->role != SBP_RESULT_GRADIENT || result->target != arg)
                continue;
            any = true;
            const sbp_type *type = &derivative->values[result->value].type;
            if (!sbp_type_same_shape(type, &info->type) || type->dtype != sbp_cotangent_dtype(&info->type))
                fail_msg("%s: the gradient of '%s' has another type", what, info->name);
            for (int64_t j = 0; j < x->elems; j++)
                gradient[j] += values[result->value]->data[j];
        }
        double norm = fmax(testing_norm(slope, x->elems), 1); /* inputs and weights are of order 1 */
        double error = testing_difference(gradient, slope, x->elems) / norm;
        if (!(error <= SBP_TOLERANCE_DIFFERENCES))
            fail_msg("%s: gradient of '%s': relative error %g against finite differences", what, info->name,
                     error);
        report.tensors += any;
        report.zeros += !any;
        report.worst = fmax(report.worst, error);
    }
    return report;
}

/* ---- dependence -------------------------------------------------------------------------------------- */

bool graph_dependence(testing *t, const sbp_func *func, sbp_value arg, sbp_value value, sbp_seq *out) {
    sbp_seq *seq = SBP_NEW_ARRAY(t->arena, sbp_seq, func->value_count + 1);
    bool *reads = SBP_NEW_ARRAY(t->arena, bool, func->value_count + 1);
    reads[arg] = true;
    seq[arg] = sbp_seq_of(sbp_type_rows(&func->values[arg].type) != SBP_ONE ? SBP_SEQ_ROW : SBP_SEQ_NONE);
    for (int32_t i = 0; i < func->op_count; i++) {
        const sbp_op *op = &func->ops[i];
        for (int32_t r = 0; r < op->result_count; r++)
            for (int32_t k = 0; k < op->operand_count; k++) {
                sbp_value v = op->operands[k], y = op->results[r];
                if (v == SBP_NO_VALUE || !reads[v])
                    continue;
                bool rows = sbp_type_rows(&func->values[y].type) != SBP_ONE;
                sbp_seq path = sbp_seq_compose(sbp_op_seq(func, op, k, r), seq[v], rows);
                seq[y] = reads[y] ? sbp_seq_join(seq[y], path) : path;
                reads[y] = true;
            }
    }
    *out = seq[value];
    return reads[value];
}
