/* test_op_rewrite.c: canonicalize, expand and the sum of both keep the values of random functions over the
 * whole op table, their derivatives included; canonicalize finds what it promises to find, and nothing is
 * left to find the second time. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/common/random_graph.h"
#include "tests/tolerance.h"

enum { ROWS = 7 };

static const char *canonical_text(testing *t, const sbp_module *m, const sbp_func *f) {
    sbp_text out;
    sbp_text_init(&out, t->arena);
    sbp_func_print(&out, m, f, true);
    return out.data;
}

/* Elements that are equal in both, NaN and infinities included, or within the tolerance. */
static void same_results(testing *t, const sbp_module *m, const sbp_func *a, const sbp_func *b,
                         const sbp_eval_env *env, sbp_tensor *const *inputs, const char *what) {
    sbp_tensor **x = graph_evaluate(t, t->arena, m, a, env, inputs);
    sbp_tensor **y = graph_evaluate(t, t->arena, m, b, env, inputs);
    assert_int_equal(a->result_count, b->result_count);
    assert_int_equal(a->arg_count, b->arg_count);
    for (int32_t r = 0; r < a->result_count; r++) {
        const sbp_tensor *p = x[a->results[r].value], *q = y[b->results[r].value];
        assert_int_equal(a->results[r].role, b->results[r].role);
        assert_true(sbp_type_equal(&p->type, &q->type));
        for (int64_t j = 0; j < p->elems; j++) {
            double u = p->data[j], v = q->data[j];
            bool same = u == v || (isnan(u) && isnan(v)) ||
                        fabs(u - v) <= SBP_TOLERANCE_F64 * fmax(fmax(fabs(u), fabs(v)), 1);
            if (!same)
                fail_msg("%s: result %d, element %lld is %.17g, was %.17g\n%s", what, r, (long long)j, v, u,
                         canonical_text(t, m, b));
        }
    }
}

/* No two equal ops, no op without use, nothing that canonicalize promises to remove. */
static void nothing_left(testing *t, const sbp_module *m, const sbp_func *f) {
    for (int32_t i = 0; i < f->op_count; i++) {
        const sbp_op *a = &f->ops[i];
        sbp_attr_schema schema[SBP_MAX_ATTRS];
        int32_t attrs = sbp_opcode_attrs(a->code, schema);
        bool used = false;
        for (int32_t j = i + 1; j < f->op_count; j++) {
            const sbp_op *b = &f->ops[j];
            bool equal = a->code == b->code && memcmp(a->operands, b->operands,
                                                      (size_t)a->operand_count * sizeof *a->operands) == 0;
            for (int32_t k = 0; equal && k < attrs; k++) {
                const sbp_attr *p = &a->attrs[k], *q = &b->attrs[k];
                equal = p->kind == SBP_ATTR_F ? memcmp(&p->f, &q->f, sizeof p->f) == 0 : p->i == q->i;
                if (equal && p->kind == SBP_ATTR_S)
                    equal = strcmp(p->symbol, q->symbol) == 0;
                if (equal && p->kind == SBP_ATTR_L)
                    equal = memcmp(p->list, q->list, (size_t)p->i * sizeof *p->list) == 0;
            }
            if (equal)
                fail_msg("two equal ops are left:\n%s", canonical_text(t, m, f));
            for (int32_t k = 0; k < b->operand_count; k++)
                for (int32_t r = 0; r < a->result_count; r++)
                    used |= b->operands[k] == a->results[r];
        }
        for (int32_t n = 0; n < f->result_count; n++)
            for (int32_t r = 0; r < a->result_count; r++)
                used |= f->results[n].value == a->results[r];
        if (!used)
            fail_msg("an op without use is left:\n%s", canonical_text(t, m, f));
    }
}

/* A log-sum-exp of attention, or a state: it has no derivative of its own, which is refused. */
static bool is_by_product(const sbp_func *f, sbp_value v) {
    const sbp_op *op = v == SBP_NO_VALUE || f->values[v].op < 0 ? NULL : &f->ops[f->values[v].op];
    return op && (sbp_opcode_attends(op->code) || sbp_opcode_class(op->code) == SBP_CLASS_RECUR) &&
           op->results[0] != v;
}

static bool reads_by_product(const sbp_func *f) {
    for (int32_t i = 0; i < f->op_count; i++)
        for (int32_t k = 0; k < f->ops[i].operand_count; k++)
            if (is_by_product(f, f->ops[i].operands[k]))
                return true;
    return false;
}

static void random_functions(void **state) {
    (void)state;
    int used[SBP_OP_COUNT] = {0}, graphs = testing_sweep(150, 4000), removed = 0, plants = 0, derivatives = 0;
    for (int n = 0; n < graphs; n++) {
        testing t = testing_open((uint64_t)n);
        random_graph g = random_graph_build(&t, &(random_graph_options){.ops = 10 + n % 40}, used);
        sbp_module *m = g.module;
        documents rows = documents_random(ROWS, &t.rng);
        sbp_eval_env env = example_env(&t, ROWS);
        sbp_tensor **inputs = random_graph_inputs(&t, &g, &rows, &env);
        sbp_func *clean, *again, *expanded, *both, *derived, *derived_clean;
        testing_check(&t, sbp_canonicalize_func(m, g.func, t.diag, &clean));
        testing_check(&t, sbp_func_verify(m, clean, t.diag));
        same_results(&t, m, g.func, clean, &env, inputs, "canonicalize");
        nothing_left(&t, m, clean);
        testing_check(&t, sbp_canonicalize_func(m, clean, t.diag, &again));
        testing_same_text(canonical_text(&t, m, again), canonical_text(&t, m, clean), "canonicalize, twice");
        testing_check(&t, sbp_expand_func(m, g.func, true, t.diag, &expanded));
        testing_check(&t, sbp_func_verify(m, expanded, t.diag));
        same_results(&t, m, g.func, expanded, &env, inputs, "expand");
        testing_check(&t, sbp_canonicalize_func(m, expanded, t.diag, &both));
        same_results(&t, m, g.func, both, &env, inputs, "expand, canonicalize");
        removed += g.func->op_count - clean->op_count;
        plants += g.plants;
        bool smooth = !reads_by_product(g.func);
        for (int32_t r = 0; r < g.func->result_count; r++)
            smooth &= !is_by_product(g.func, g.func->results[r].value);
        if (smooth) {
            derivatives++;
            derived = graph_differentiate(&t, m, g.func);
            testing_check(&t, sbp_canonicalize_func(m, derived, t.diag, &derived_clean));
            testing_check(&t, sbp_func_verify(m, derived_clean, t.diag));
            sbp_tensor **all = SBP_NEW_ARRAY(t.arena, sbp_tensor *, derived->arg_count + 1);
            memcpy(all, inputs, (size_t)g.func->arg_count * sizeof *all);
            for (int32_t i = g.func->arg_count; i < derived->arg_count; i++)
                all[i] = graph_tensor(&t, &derived->values[derived->args[i]].type, &env, -1, 1);
            same_results(&t, m, derived, derived_clean, &env, all, "canonicalize a derivative");
        }
        testing_close(&t);
    }
    int kinds = 0;
    for (int code = 0; code < SBP_OP_COUNT; code++)
        kinds += used[code] > 0;
    printf("  %d functions, %d derivatives, %d ops removed for %d planted, %d kinds of ops\n", graphs,
           derivatives, removed, plants, kinds);
    assert_true(removed > plants / 2 && kinds >= SBP_OP_COUNT - 10 && derivatives > graphs / 4);
}

/* Gradients of random smooth functions against differences: chains of VJPs, values used several times. */
static void random_gradients(void **state) {
    (void)state;
    int graphs = testing_sweep(25, 400), tensors = 0;
    double worst = 0;
    for (int n = 0; n < graphs; n++) {
        testing t = testing_open((uint64_t)(1000 + n));
        random_graph g = random_graph_build(&t, &(random_graph_options){.ops = 16, .smooth = true}, NULL);
        documents rows = documents_random(3, &t.rng);
        sbp_eval_env env = example_env(&t, 3);
        sbp_tensor **inputs = random_graph_inputs(&t, &g, &rows, &env);
        int32_t kept = 0;
        for (int32_t r = 0; r < g.func->result_count; r++)
            if (!is_by_product(g.func, g.func->results[r].value))
                g.func->results[kept++] = g.func->results[r];
        g.func->result_count = kept;
        if (!reads_by_product(g.func)) {
            slope_report r =
                graph_check_gradients(&t, g.module, g.func, g.func, &env, inputs, "a random function");
            tensors += r.tensors;
            worst = fmax(worst, r.worst);
        }
        testing_close(&t);
    }
    printf("  %d functions, %d gradients, worst %.1e\n", graphs, tensors, worst);
    assert_true(tensors > graphs);
}

/* ---- single rules -------------------------------------------------------------------------------------- */

/* Text of the only function of a module, canonicalized; values keep their names where they have some. */
static const char *canonicalized(testing *t, const char *body) {
    sbp_module *m;
    sbp_func *out;
    const char *text = sbp_arena_printf(t->arena, "module m {\n  func f(%s\n  }\n}", body);
    testing_check(t, sbp_module_parse(t->arena, t->diag, "case", text, strlen(text), &m));
    testing_check(t, sbp_module_verify(m, t->diag));
    testing_check(t, sbp_canonicalize_func(m, m->funcs[0], t->diag, &out));
    testing_check(t, sbp_func_verify(m, out, t->diag));
    return canonical_text(t, m, out);
}

static const struct {
    const char *from, *to;
} rules[] = {
    /* a cast of a cast that loses nothing is one cast */
    {"%x: stream bf16[T]) {\n %a: f32[T] = cast %x {to f32} %b: bf16[T] = cast %a {to bf16}\n result %b "
     "value",
     "%x: stream bf16[T]) {\n result %x value"},
    {"%x: stream bf16[T]) {\n %a: f32[T] = cast %x {to f32} %b: f64[T] = cast %a {to f64}\n result %b value",
     "%x: stream bf16[T]) {\n %b: f64[T] = cast %x {to f64}\n result %b value"},
    {"%x: stream i32[T]) {\n %a: f64[T] = cast %x {to f64} %b: f32[T] = cast %a {to f32}\n result %b value",
     "%x: stream i32[T]) {\n %b: f32[T] = cast %x {to f32}\n result %b value"},
    /* one that loses something stays */
    {"%x: stream f32[T]) {\n %a: bf16[T] = cast %x {to bf16} %b: f32[T] = cast %a {to f32}\n result %b value",
     NULL},
    {"%x: stream f16[T]) {\n %a: bf16[T] = cast %x {to bf16} %b: f16[T] = cast %a {to f16}\n result %b value",
     NULL},
    {"%x: stream i32[T]) {\n %a: f32[T] = cast %x {to f32} %b: f64[T] = cast %a {to f64}\n result %b value",
     NULL},
    /* a wide product that only a rounding reads is one of the rounded type; of two readers, both stay */
    {"%x: stream bf16[T,2], %w: param bf16[3,2]) {\n %a: f32[T,3] = linear %x, %w, - {layout out_in, wide "
     "1}\n"
     " %b: bf16[T,3] = cast %a {to bf16}\n result %b value",
     "%x: stream bf16[T,2], %w: param bf16[3,2]) {\n %b: bf16[T,3] = linear %x, %w, - {layout out_in, wide "
     "0}\n result %b value"},
    {"%x: stream bf16[T,2], %w: param bf16[3,2]) {\n %a: f32[T,3] = linear %x, %w, - {layout out_in, wide "
     "1}\n"
     " %b: bf16[T,3] = cast %a {to bf16}\n result %a value result %b value",
     NULL},
    {"%x: stream bf16[T,2], %w: param bf16[3,2]) {\n %a: f32[T,3] = linear %x, %w, - {layout out_in, wide "
     "1}\n"
     " %b: f16[T,3] = cast %a {to f16}\n result %b value",
     NULL},
    /* constants: rounded to their type; comparisons are left alone */
    {") {\n %a: f32[] = constant {value 0.1, dtype f32} %b: f32[] = constant {value 0.2, dtype f32}\n"
     " %c: f32[] = add %a, %b\n result %c value",
     ") {\n %c: f32[] = constant {value 0.30000001192092896, dtype f32}\n result %c value"},
    {") {\n %a: f64[] = constant {value 0.1, dtype f64}\n %c: bf16[] = cast %a {to bf16}\n result %c value",
     ") {\n %c: bf16[] = constant {value 0.10009765625, dtype bf16}\n result %c value"},
    /* 0 and -0 are different constants */
    {") {\n %a: f64[] = constant {value 0, dtype f64} %b: f64[] = constant {value -0, dtype f64}\n"
     " result %a value result %b value",
     NULL},
    /* x + 0 that broadcasts is no identity */
    {"%x: stream f64[3]) {\n %a: f64[] = constant {value 0, dtype f64}\n"
     " %z: f64[T,3] = broadcast %a {dims [3], rows T}\n %y: f64[T,3] = add %x, %z\n result %y value",
     NULL},
};

static void single_rules(void **state) {
    (void)state;
    for (int i = 0; i < SBP_COUNT(rules); i++) {
        testing t = testing_open(1);
        sbp_module *m;
        const char *want = rules[i].to ? rules[i].to : rules[i].from;
        const char *text = sbp_arena_printf(t.arena, "module m {\n  func f(%s\n  }\n}", want);
        testing_check(&t, sbp_module_parse(t.arena, t.diag, "case", text, strlen(text), &m));
        testing_same_text(canonicalized(&t, rules[i].from), canonical_text(&t, m, m->funcs[0]),
                          rules[i].from);
        testing_close(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_functions), cmocka_unit_test(random_gradients),
                                       cmocka_unit_test(single_rules)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
