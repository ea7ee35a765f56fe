/* test_op_vjp.c: for every op and every example of it, in double: the VJP against central differences, for
 * every float operand; the derivative of the derivative; expansion of composites against their own rule; late
 * ops both ways; backward ops against the forward they belong to. Gradients have the type of their operand
 * for every compute type (the evaluator computes in double whatever the type, so values agree for all). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/common/graphs.h"
#include "tests/tolerance.h"

enum { ROWS = 7 };

static const char *label_of(testing *t, const example_graph *g, int32_t index, const char *what) {
    return sbp_arena_printf(t->arena, "%s example %d, %s", sbp_opcode_name(g->code), index, what);
}

/* Whether the derivative of the function needs ops that have no derivative themselves. */
static bool ends_here(const sbp_func *f) {
    for (int32_t i = 0; i < f->op_count; i++)
        if (sbp_opcode_class(f->ops[i].code) == SBP_CLASS_BACKWARD)
            return true;
    return false;
}

static bool has_gradient(const sbp_func *f) {
    for (int32_t r = 0; r < f->result_count; r++)
        if (f->results[r].role == SBP_RESULT_GRADIENT)
            return true;
    return false;
}

/* Ops whose derivative is checked elsewhere in this file, or that have none by definition. */
static bool special(sbp_opcode code) {
    static const sbp_opcode none[] = {SBP_OP_stop_gradient, SBP_OP_bf16_high,   SBP_OP_bf16_low,
                                      SBP_OP_bf16_join,     SBP_OP_bf16_random, SBP_OP_random};
    for (int i = 0; i < SBP_COUNT(none); i++)
        if (none[i] == code)
            return true;
    return sbp_opcode_class(code) == SBP_CLASS_BACKWARD || code == SBP_OP_append;
}

typedef struct totals {
    int ops, examples, tensors, zeros, second, without;
    double worst;
} totals;

static void add_report(totals *sum, slope_report r) {
    sum->tensors += r.tensors;
    sum->zeros += r.zeros;
    sum->worst = fmax(sum->worst, r.worst);
}

static void check_example(testing *t, example_graph *g, int32_t index, totals *sum) {
    documents rows = documents_layout(ROWS);
    sbp_eval_env env = example_env(t, ROWS);
    sbp_tensor **inputs = example_inputs(t, g, &rows, &env);
    slope_report first = graph_check_gradients(t, g->module, g->func, g->func, &env, inputs,
                                               label_of(t, g, index, "first derivative"));
    add_report(sum, first);
    sum->examples++;
    sum->without += first.tensors == 0;
    sbp_func *derivative = graph_differentiate(t, g->module, g->func);
    if (!has_gradient(derivative) || ends_here(derivative))
        return;
    sbp_func *gradient = graph_gradient_function(t, g->module, derivative);
    sbp_tensor **all = SBP_NEW_ARRAY(t->arena, sbp_tensor *, gradient->arg_count + 1);
    memcpy(all, inputs, (size_t)g->func->arg_count * sizeof *all);
    for (int32_t i = g->func->arg_count; i < gradient->arg_count; i++)
        all[i] = graph_tensor(t, &gradient->values[gradient->args[i]].type, &env, -1, 1);
    slope_report second = graph_check_gradients(t, g->module, gradient, gradient, &env, all,
                                                label_of(t, g, index, "second derivative"));
    sum->second += second.tensors;
    sum->worst = fmax(sum->worst, second.worst);
}

/* ---- every op ---------------------------------------------------------------------------------------- */

static void every_vjp(void **state) {
    (void)state;
    totals sum = {0};
    for (int code = 0; code < SBP_OP_COUNT; code++) {
        if (special((sbp_opcode)code))
            continue;
        example_graph g;
        int32_t index = 0;
        for (;; index++) {
            testing t = testing_open((uint64_t)(code * 100 + index));
            bool more = example_graph_build(&t, (sbp_opcode)code, index, SBP_F64, &g);
            if (more)
                check_example(&t, &g, index, &sum);
            testing_close(&t);
            if (!more)
                break;
        }
        assert_true(index > 0);
        sum.ops++;
    }
    printf(
        "  %d ops, %d examples: %d gradients, %d zero slopes, %d second derivatives, worst %.1e; %d examples "
        "have no gradient\n",
        sum.ops, sum.examples, sum.tensors, sum.zeros, sum.second, sum.worst, sum.without);
    assert_true(sum.ops >= SBP_OP_COUNT - 16);
    assert_true(sum.tensors > 150 && sum.second > 150);
}

/* Comparisons and truth values are flat, and so are steps: exactly these ops have no gradient in any example.
 */
static void ops_without_gradient(void **state) {
    (void)state;
    static const sbp_opcode flat[] = {
        SBP_OP_eq,       SBP_OP_lt,        SBP_OP_le,          SBP_OP_and,           SBP_OP_or,
        SBP_OP_not,      SBP_OP_constant,  SBP_OP_iota,        SBP_OP_stop_gradient, SBP_OP_bf16_high,
        SBP_OP_bf16_low, SBP_OP_bf16_join, SBP_OP_bf16_random, SBP_OP_random,        SBP_OP_route,
        SBP_OP_floor};
    int found = 0;
    for (int code = 0; code < SBP_OP_COUNT; code++) {
        if (sbp_opcode_class((sbp_opcode)code) == SBP_CLASS_BACKWARD || code == SBP_OP_append)
            continue;
        testing t = testing_open(1);
        example_graph g;
        bool any = false, listed = false;
        for (int32_t i = 0; example_graph_build(&t, (sbp_opcode)code, i, SBP_F64, &g); i++)
            any |= has_gradient(graph_differentiate(&t, g.module, g.func));
        for (int i = 0; i < SBP_COUNT(flat); i++)
            listed |= flat[i] == (sbp_opcode)code;
        if (any == listed)
            fail_msg("%s: %s", sbp_opcode_name((sbp_opcode)code),
                     any ? "has a gradient, none expected" : "has no gradient");
        found += listed;
        testing_close(&t);
    }
    assert_int_equal(found, SBP_COUNT(flat));
}

/* Narrow compute types: casts, fp32 sums; the gradient of every operand has the operand's type. */
static void every_compute_type(void **state) {
    (void)state;
    static const sbp_dtype dtypes[] = {SBP_F32, SBP_BF16};
    int tensors = 0;
    for (int d = 0; d < SBP_COUNT(dtypes); d++)
        for (int code = 0; code < SBP_OP_COUNT; code++) {
            if (special((sbp_opcode)code))
                continue;
            example_graph g;
            bool more = true;
            for (int32_t i = 0; more; i++) {
                testing t = testing_open((uint64_t)(code * 100 + i));
                more = example_graph_build(&t, (sbp_opcode)code, i, dtypes[d], &g);
                if (more) {
                    documents rows = documents_layout(3);
                    sbp_eval_env env = example_env(&t, 3);
                    sbp_tensor **inputs = example_inputs(&t, &g, &rows, &env);
                    tensors += graph_check_gradients(&t, g.module, g.func, g.func, &env, inputs,
                                                     label_of(&t, &g, i, sbp_dtype_name(dtypes[d])))
                                   .tensors;
                }
                testing_close(&t);
            }
        }
    assert_true(tensors > 300);
}

/* ---- composites and late ops ------------------------------------------------------------------------- */

/* The expansion computes what the eval rule says, and has no composite left; gradients through the expansion
 * are slopes of the eval rule. For late ops too, which keep a derivative of their own beside it: where it is
 * the only one, for attention's log-sum-exp has none, gradients are those of every_vjp. */
static void expansions(void **state) {
    (void)state;
    int compared = 0, ops = 0;
    for (int code = 0; code < SBP_OP_COUNT; code++) {
        sbp_op_class class = sbp_opcode_class((sbp_opcode)code);
        if (class != SBP_CLASS_COMPOSITE && class != SBP_CLASS_LATE)
            continue;
        ops++;
        example_graph g;
        testing t = testing_open((uint64_t)code);
        for (int32_t i = 0; example_graph_build(&t, (sbp_opcode)code, i, SBP_F64, &g); i++) {
            sbp_func *expanded;
            testing_check(&t, sbp_expand_func(g.module, g.func, true, t.diag, &expanded));
            testing_check(&t, sbp_func_verify(g.module, expanded, t.diag));
            for (int32_t k = 0; k < expanded->op_count; k++)
                assert_true(sbp_opcode_class(expanded->ops[k].code) == SBP_CLASS_ROWWISE ||
                            expanded->ops[k].code == SBP_OP_attention);
            documents rows = documents_layout(ROWS);
            sbp_eval_env env = example_env(&t, ROWS);
            sbp_tensor **inputs = example_inputs(&t, &g, &rows, &env);
            sbp_tensor **whole = graph_evaluate(&t, t.arena, g.module, g.func, &env, inputs);
            sbp_tensor **parts = graph_evaluate(&t, t.arena, g.module, expanded, &env, inputs);
            for (int32_t r = 0; r < g.func->result_count; r++, compared++) {
                const sbp_tensor *a = whole[g.func->results[r].value], *b = parts[expanded->results[r].value];
                assert_true(sbp_type_equal(&a->type, &b->type));
                double error = testing_relative_error(b->data, a->data, a->elems);
                if (!(error <= SBP_TOLERANCE_F64))
                    fail_msg("%s: result %d of the expansion differs by %g",
                             sbp_opcode_name((sbp_opcode)code), r, error);
            }
            if (!sbp_opcode_attends((sbp_opcode)code))
                graph_check_gradients(&t, g.module, expanded, g.func, &env, inputs,
                                      label_of(&t, &g, i, "through its expansion"));
        }
        testing_close(&t);
    }
    printf("  %d ops, %d results\n", ops, compared);
    assert_true(ops >= 9 && compared >= ops);
}

/* A tie of logits: the hit counts the first of equal ones; expansion and eval agree. */
static void log_prob_ties(void **state) {
    (void)state;
    testing t = testing_open(5);
    example_graph g;
    assert_true(example_graph_build(&t, SBP_OP_log_prob, 0, SBP_F64, &g));
    sbp_func *expanded;
    testing_check(&t, sbp_expand_func(g.module, g.func, true, t.diag, &expanded));
    sbp_eval_env env = example_env(&t, 3);
    documents rows = documents_layout(3);
    sbp_tensor **inputs = example_inputs(&t, &g, &rows, &env);
    for (int64_t r = 0; r < 3; r++)
        for (int64_t j = 0; j < 7; j++)
            inputs[0]->data[r * 7 + j] = j == 2 || j == 4 ? 1.5 : -0.5;
    inputs[1]->data[0] = 2;
    inputs[1]->data[1] = 4;
    inputs[1]->data[2] = 0;
    for (int pass = 0; pass < 2; pass++) {
        const sbp_func *f = pass ? expanded : g.func;
        sbp_tensor **values = graph_evaluate(&t, t.arena, g.module, f, &env, inputs);
        const double *hit = values[f->results[2].value]->data;
        assert_true(hit[0] == 1 && hit[1] == 0 && hit[2] == 0);
    }
    testing_close(&t);
}

/* A label that is all but certain, among logits whose log-sum-exp is rounded by more than 1 - p: the gradient
 * is that of the same logits near 0. */
static void log_prob_of_a_sure_label(void **state) {
    (void)state;
    testing t = testing_open(7);
    example_graph g;
    assert_true(example_graph_build(&t, SBP_OP_log_prob, 0, SBP_F64, &g));
    sbp_func *expanded, *late;
    testing_check(&t, sbp_expand_func(g.module, g.func, true, t.diag, &expanded));
    const sbp_func *forms[] = {g.func, expanded};
    for (int form = 0; form < SBP_COUNT(forms); form++) {
        late = graph_differentiate(&t, g.module, forms[form]);
        sbp_eval_env env = example_env(&t, 2);
        documents rows = documents_layout(2);
        sbp_tensor **inputs = example_inputs(&t, &g, &rows, &env);
        for (int64_t r = 0; r < 2; r++)
            for (int64_t j = 0; j < 7; j++)
                inputs[0]->data[r * 7 + j] = (r ? 0x1p20 : 0) + (j == 3 ? 16 : (double)j / 8);
        inputs[1]->data[0] = inputs[1]->data[1] = 3;
        sbp_tensor **all = SBP_NEW_ARRAY(t.arena, sbp_tensor *, late->arg_count);
        memcpy(all, inputs, 2 * sizeof *all);
        for (int32_t i = 2; i < late->arg_count; i++) {
            all[i] = graph_tensor(&t, &late->values[late->args[i]].type, &env, -1, 1);
            for (int64_t r = 0; r < all[i]->elems; r++)
                all[i]->data[r] = i == 2; /* of logp */
        }
        sbp_tensor **values = graph_evaluate(&t, t.arena, g.module, late, &env, all);
        for (int32_t r = 0; r < late->result_count; r++)
            if (late->results[r].role == SBP_RESULT_GRADIENT) {
                const double *d = values[late->results[r].value]->data;
                assert_true(d[3] > 0 && d[3] < exp(-12)); /* about 8 exp(-16) */
                for (int64_t j = 0; j < 7; j++)
                    assert_true(fabs(d[7 + j] - d[j]) <= SBP_TOLERANCE_SURE_LABEL * fabs(d[j]));
            }
    }
    testing_close(&t);
}

/* Large logits must not overflow, in value nor in gradient. */
static void log_prob_of_large_logits(void **state) {
    (void)state;
    testing t = testing_open(6);
    example_graph g;
    assert_true(example_graph_build(&t, SBP_OP_log_prob, 0, SBP_F64, &g));
    sbp_func *late = graph_differentiate(&t, g.module, g.func);
    sbp_eval_env env = example_env(&t, 2);
    documents rows = documents_layout(2);
    sbp_tensor **inputs = example_inputs(&t, &g, &rows, &env);
    for (int64_t j = 0; j < 14; j++)
        inputs[0]->data[j] = 1000 * sbp_rng_unit(&t.rng);
    sbp_tensor **all = SBP_NEW_ARRAY(t.arena, sbp_tensor *, late->arg_count);
    memcpy(all, inputs, 2 * sizeof *all);
    for (int32_t i = 2; i < late->arg_count; i++)
        all[i] = graph_tensor(&t, &late->values[late->args[i]].type, &env, -1, 1);
    sbp_tensor **values = graph_evaluate(&t, t.arena, g.module, late, &env, all);
    for (int32_t r = 0; r < late->result_count; r++)
        for (int64_t j = 0; j < values[late->results[r].value]->elems; j++)
            assert_true(isfinite(values[late->results[r].value]->data[j]));
    testing_close(&t);
}

/* ---- what has no derivative -------------------------------------------------------------------------- */

static void stop_gradient_stops(void **state) {
    (void)state;
    testing t = testing_open(7);
    example_graph g;
    assert_true(example_graph_build(&t, SBP_OP_stop_gradient, 0, SBP_F64, &g));
    sbp_builder b = sbp_builder_on(g.module, g.func, t.diag);
    sbp_value x = g.func->args[0], y = g.func->results[0].value;
    g.func->result_count = 0;
    sbp_func_add_result(g.func, sbp_build2(&b, SBP_OP_mul, x, y), SBP_RESULT_VALUE, SBP_NO_VALUE, "y");
    testing_check(&t, b.status);
    sbp_func *late = graph_differentiate(&t, g.module, g.func);
    sbp_eval_env env = example_env(&t, 3);
    sbp_tensor *all[] = {graph_tensor(&t, &late->values[late->args[0]].type, &env, -1, 1),
                         graph_tensor(&t, &late->values[late->args[1]].type, &env, -1, 1)};
    sbp_tensor **values = graph_evaluate(&t, t.arena, g.module, late, &env, all);
    assert_int_equal(late->result_count, 2);
    const sbp_tensor *dx = values[late->results[1].value];
    for (int64_t j = 0; j < dx->elems; j++) /* x sg(x): the slope is sg(x), not 2x */
        assert_true(dx->data[j] == all[0]->data[j] * all[1]->data[j]);
    testing_close(&t);
}

static void log_sum_exp_of_attention(void **state) {
    (void)state;
    testing t = testing_open(8);
    example_graph g;
    sbp_func *out;
    assert_true(example_graph_build(&t, SBP_OP_attention, 0, SBP_F64, &g));
    sbp_func_add_result(g.func, g.func->ops[0].results[1], SBP_RESULT_VALUE, SBP_NO_VALUE, "lse");
    testing_check_fails(&t, sbp_autodiff_func(g.module, g.func, true, t.diag, &out), SBP_INPUT,
                        "log-sum-exp has no derivative");
    testing_close(&t);
}

static void backward_ops_cannot_be_differentiated(void **state) {
    (void)state;
    testing t = testing_open(9);
    example_graph g;
    sbp_func *out;
    assert_true(example_graph_build(&t, SBP_OP_attention_vjp, 0, SBP_F64, &g));
    testing_check_fails(&t, sbp_autodiff_func(g.module, g.func, true, t.diag, &out), SBP_INTERNAL,
                        "attention_vjp has no derivative");
    testing_close(&t);
}

/* ---- backward ops ------------------------------------------------------------------------------------ */

/* attention_vjp with running dk, dv: adds to them what it writes without. */
static void attention_vjp_adds(void **state) {
    (void)state;
    testing t = testing_open(10);
    example_graph g;
    int32_t index = 0;
    for (; example_graph_build(&t, SBP_OP_attention_vjp, index, SBP_F64, &g); index++) {
        sbp_func *f = g.func;
        sbp_value more[11];
        memcpy(more, f->ops[0].operands, 9 * sizeof *more);
        for (int k = 0; k < 2; k++)
            more[9 + k] = sbp_func_add_arg(f, SBP_VALUE_STREAM, k ? "dv" : "dk",
                                           &f->values[f->ops[0].results[1 + k]].type, -1);
        sbp_builder b = sbp_builder_on(g.module, f, t.diag);
        sbp_value out[3];
        sbp_build(&b, SBP_OP_attention_vjp, NULL, more, 11, g.example.attrs, g.example.attr_count, out);
        testing_check(&t, b.status);
        sbp_eval_env env = example_env(&t, 11);
        documents rows = documents_layout(11);
        sbp_tensor **inputs = SBP_NEW_ARRAY(t.arena, sbp_tensor *, f->arg_count);
        f->arg_count -= 2;
        memcpy(inputs, example_inputs(&t, &g, &rows, &env), (size_t)f->arg_count * sizeof *inputs);
        f->arg_count += 2;
        for (int k = 0; k < 2; k++)
            inputs[f->arg_count - 2 + k] = graph_tensor(&t, &f->values[more[9 + k]].type, &env, -1, 1);
        sbp_tensor **values = graph_evaluate(&t, t.arena, g.module, f, &env, inputs);
        for (int r = 0; r < 3; r++) {
            const sbp_tensor *alone = values[f->ops[0].results[r]], *added = values[out[r]];
            assert_int_equal(alone->elems, added->elems);
            double *want = SBP_NEW_ARRAY(t.arena, double, alone->elems);
            for (int64_t j = 0; j < alone->elems; j++)
                want[j] = alone->data[j] + (r > 0 ? values[more[8 + r]]->data[j] : 0);
            assert_true(testing_norm(alone->data, alone->elems) > 0);
            assert_true(testing_relative_error(added->data, want, alone->elems) <= SBP_TOLERANCE_F64);
        }
    }
    assert_true(index >= 4);
    testing_close(&t);
}

/* The VJP of append takes the chunk's rows of the running cotangent, and hands the carry's on. With
 * L = <W, carry after append>: dL/drows = rows of W, whatever the carry held. */
static void append_takes(void **state) {
    (void)state;
    testing t = testing_open(11);
    example_graph g;
    assert_true(example_graph_build(&t, SBP_OP_append, 0, SBP_F64, &g));
    sbp_func *derived = graph_differentiate(&t, g.module, g.func);
    sbp_eval_env env = example_env(&t, ROWS);
    documents rows = documents_layout(ROWS);
    assert_int_equal(derived->arg_count, 3);
    sbp_tensor **inputs = SBP_NEW_ARRAY(t.arena, sbp_tensor *, 3);
    memcpy(inputs, example_inputs(&t, &g, &rows, &env), 2 * sizeof *inputs);
    inputs[2] = graph_tensor(&t, &derived->values[derived->args[2]].type, &env, -1, 1);
    sbp_tensor **values = graph_evaluate(&t, t.arena, g.module, derived, &env, inputs);
    int gradients = 0, carries = 0;
    for (int32_t r = 0; r < derived->result_count; r++) {
        const sbp_result *result = &derived->results[r];
        const sbp_tensor *y = values[result->value];
        if (result->role == SBP_RESULT_GRADIENT) {
            gradients++;
            assert_int_equal(y->dim[0], env.sizes.v[SBP_C]);
            for (int64_t j = 0; j < y->elems; j++)
                assert_true(y->data[j] == inputs[2]->data[env.row0 * 6 + j]);
        } else if (result->target == derived->args[2]) {
            carries++;
            for (int64_t j = 0; j < y->elems; j++)
                assert_true(y->data[j] == inputs[2]->data[j]);
        } else { /* the forward: rows outside the chunk stay */
            assert_int_equal(result->target, derived->args[0]);
            for (int64_t j = 0; j < y->elems; j++) {
                int64_t row = j / 6, k = row - env.row0;
                bool inside = k >= 0 && k < env.sizes.v[SBP_C];
                assert_true(y->data[j] == (inside ? inputs[1]->data[k * 6 + j % 6] : inputs[0]->data[j]));
            }
        }
    }
    assert_int_equal(gradients, 1);
    assert_int_equal(carries, 1);
    testing_close(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_vjp),
                                       cmocka_unit_test(ops_without_gradient),
                                       cmocka_unit_test(every_compute_type),
                                       cmocka_unit_test(expansions),
                                       cmocka_unit_test(log_prob_ties),
                                       cmocka_unit_test(log_prob_of_a_sure_label),
                                       cmocka_unit_test(log_prob_of_large_logits),
                                       cmocka_unit_test(stop_gradient_stops),
                                       cmocka_unit_test(log_sum_exp_of_attention),
                                       cmocka_unit_test(backward_ops_cannot_be_differentiated),
                                       cmocka_unit_test(attention_vjp_adds),
                                       cmocka_unit_test(append_takes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
