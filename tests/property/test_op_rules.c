/* test_op_rules.c: rules as optimizers are made of, drawn: casts to every type that states are kept in and
 * back, parts of numbers, random numbers and slices of them. What fuse makes of a rule, run by the reference
 * interpreter, gives to the bit what the evaluator says with the same roundings. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ir/graph/evaluate.h"
#include "passes/optimizers/rule.h"
#include "tests/common/graphs.h"

enum { MOST_VALUES = 64, KEYS = 2 };

static const sbp_dtype kept[] = {SBP_F32, SBP_BF16, SBP_F16, SBP_I8, SBP_I16, SBP_I32, SBP_D8, SBP_UD8};

typedef struct drawn {
    testing *t;
    sbp_program_builder p;
    sbp_rule rule;
    int64_t rows, cols;
    sbp_value pool[MOST_VALUES]; /* f32 [T, cols] */
    int32_t pool_count;
    sbp_value stream, keys[KEYS];
    double *memory[SBP_MAX_RULE_OPERANDS]; /* elements of any type */
} drawn;

typedef struct counts {
    int kernels, random, shifted, rounds[SBP_DTYPE_COUNT];
} counts;

static int64_t below(drawn *d, int64_t n) {
    return sbp_rng_below(&d->t->rng, n);
}

static sbp_value any(drawn *d) {
    return d->pool[below(d, d->pool_count)];
}

static void add(drawn *d, sbp_value v) {
    if (d->pool_count < MOST_VALUES)
        d->pool[d->pool_count++] = v;
}

static sbp_value random_numbers(drawn *d, int64_t cols) {
    sbp_type like = {.rank = 2, .dim = {sbp_dim_symbol(SBP_T), sbp_dim_const(cols)}};
    return sbp_build_random(&d->rule.builder, &like, d->stream, d->keys[below(d, KEYS)]);
}

/* The end of a value of twice as many columns before its beginning. */
static sbp_value halves_swapped(drawn *d, sbp_value v, int64_t cols) {
    sbp_builder *b = &d->rule.builder;
    int64_t cut = 1 + below(d, cols - 1);
    return sbp_build2(b, SBP_OP_concat, sbp_build_slice(b, v, cut, cols - cut),
                      sbp_build_slice(b, v, 0, cut));
}

static void draw_op(drawn *d) {
    sbp_builder *b = &d->rule.builder;
    sbp_value x = any(d), y = any(d);
    sbp_dtype dtype = kept[below(d, SBP_COUNT(kept))];
    switch (below(d, 9)) {
    case 0:
        return add(d, sbp_build2(b, SBP_OP_add, x, y));
    case 1:
        return add(d, sbp_build2(b, SBP_OP_mul, x, y));
    case 2:
        return add(d, sbp_build1(b, SBP_OP_bf16_high, x));
    case 3:
        return add(d, sbp_build1(b, SBP_OP_bf16_low, x));
    case 4:
        return add(d, sbp_build2(b, SBP_OP_bf16_join, sbp_build1(b, SBP_OP_bf16_high, x),
                                 sbp_build1(b, SBP_OP_bf16_low, x)));
    case 5:
        return add(d, sbp_build2(b, SBP_OP_bf16_random, x, random_numbers(d, d->cols)));
    case 6:
        return add(d, random_numbers(d, d->cols));
    case 7:
        return add(d, halves_swapped(d, random_numbers(d, d->cols), d->cols));
    default:
        return add(d, sbp_build_cast(b, sbp_build_cast(b, x, dtype), SBP_F32));
    }
}

/* Operands of drawn types, the second changed in its place, the others read or written, and what they become.
 */
static void draw_rule(drawn *d) {
    sbp_builder *b = &d->rule.builder;
    sbp_extent rows = sbp_extent_const(d->rows);
    int32_t operands = 3 + (int32_t)below(d, 5);
    sbp_rule_begin(&d->p, "drawn", &d->rule);
    d->stream = sbp_rule_number(&d->rule, "stream", SBP_F32);
    for (int k = 0; k < KEYS; k++)
        d->keys[k] = sbp_build_scalar(b, sbp_arena_printf(d->t->arena, "key%d", k));
    sbp_access access[SBP_MAX_RULE_OPERANDS];
    for (int32_t i = 1; i <= operands; i++) {
        sbp_dtype dtype = kept[below(d, SBP_COUNT(kept))];
        access[i] = i == 1 || (i > 2 && below(d, 2)) ? SBP_READ : SBP_WRITE;
        sbp_value v = sbp_rule_operand(&d->rule, sbp_arena_printf(d->t->arena, "o%d", i), access[i], dtype,
                                       rows, d->cols);
        if (v != SBP_NO_VALUE)
            add(d, sbp_build_cast(b, v, SBP_F32));
    }
    for (int64_t k = 2 + below(d, 8); k > 0; k--)
        draw_op(d);
    for (int32_t i = 1; i <= operands; i++)
        if (access[i] != SBP_READ)
            sbp_rule_store(&d->rule, i, /* a value of its own: a place holds one */
                           sbp_build2(b, SBP_OP_mul, any(d), sbp_build_const(b, SBP_F32, 1 + i * 0.125)));
    testing_check(d->t, sbp_rule_end(&d->rule));
}

static void fill_memory(drawn *d) {
    const sbp_function *code = &d->rule.code;
    for (int32_t i = 0; i < code->formal_count; i++) {
        int64_t elems = i == 0 ? 1 : d->rows * d->cols;
        d->memory[i] = SBP_NEW_ARRAY(d->t->arena, double, elems);
        for (int64_t j = 0; j < elems; j++) {
            double x = sbp_rng_unit(&d->t->rng) * pow(10, (double)below(d, 9) - 6);
            sbp_element_set(d->memory[i], code->formals[i].dtype, j, i == 0 ? (double)below(d, 1 << 24) : x);
        }
    }
}

/* Values of the graph, by the evaluator. */
static sbp_tensor **expected_values(drawn *d, const double *scalars) {
    const sbp_func *f = d->rule.builder.func;
    sbp_eval_env env = {.arena = d->t->arena, .diag = d->t->diag, .round = true};
    env.sizes.v[SBP_ONE] = 1;
    env.sizes.v[SBP_T] = env.sizes.v[SBP_W] = d->rows;
    sbp_tensor **values = SBP_NEW_ARRAY(d->t->arena, sbp_tensor *, f->value_count);
    for (int32_t i = 0; i < f->arg_count; i++) {
        const sbp_value_info *info = &f->values[f->args[i]];
        sbp_tensor *x = values[f->args[i]] = sbp_tensor_create(d->t->arena, &info->type, &env.sizes);
        if (info->role == SBP_VALUE_SCALAR)
            x->data[0] = scalars[info->binding];
        for (int32_t k = 0; k < d->rule.code.formal_count; k++)
            for (int64_t j = 0; j < x->elems && d->rule.values[k] == f->args[i]; j++)
                x->data[j] = sbp_element_get(d->memory[k], info->type.dtype, j);
    }
    testing_check(d->t, sbp_evaluate(d->p.module, f, &env, values));
    return values;
}

static void run_commands(drawn *d, const double *scalars, counts *sum) {
    const sbp_function *code = &d->rule.code;
    for (int32_t n = 0; n < code->body.count; n++) {
        const sbp_command *command = code->body.nodes[n].u.command;
        assert_int_equal(command->kind, SBP_CMD_ROW);
        const sbp_rowkernel *k = d->p.program->kernels[command->kernel];
        testing_check(d->t, sbp_rowkernel_verify(k, d->t->diag));
        sbp_rk_view views[SBP_ROWKERNEL_MAX_OPERANDS];
        double numbers[SBP_ROWKERNEL_MAX_SCALARS];
        for (int32_t i = 0; i < k->operand_count; i++) {
            assert_true(command->views[i].ref < 0 &&
                        command->views[i].col == 0); /* all in one kernel: no memory between */
            views[i] =
                (sbp_rk_view){.data = d->memory[~command->views[i].ref], .stride = command->views[i].cols};
        }
        for (int32_t i = 0; i < k->scalar_count; i++)
            numbers[i] = scalars[k->scalars[i][3] - '0']; /* "key0", "key1" */
        assert_int_equal(sbp_rowkernel_run_reference(k, d->rows, 0, views, numbers), SBP_OK);
        sum->kernels++;
        for (int32_t i = 0; i < k->instr_count; i++) {
            sum->random += k->instrs[i].op == SBP_RK_RANDOM;
            sum->shifted += k->instrs[i].op == SBP_RK_RANDOM && k->instrs[i].offset > 0;
            if (k->instrs[i].op == SBP_RK_ROUND)
                sum->rounds[k->instrs[i].dtype]++;
        }
    }
}

static void drawn_rules(void **state) {
    (void)state;
    counts sum = {0};
    for (uint64_t seed = 1; seed <= 1000; seed++) {
        testing t = testing_open(seed);
        drawn d = {.t = &t};
        d.rows = 1 + below(&d, 5);
        d.cols = 2 + below(&d, 40);
        d.p = (sbp_program_builder){.arena = t.arena,
                                    .diag = t.diag,
                                    .module = sbp_module_create(t.arena, "rules"),
                                    .program = sbp_program_create(t.arena, "rules")};
        draw_rule(&d);
        fill_memory(&d);
        double scalars[KEYS] = {(double)below(&d, INT64_C(1) << 53), (double)below(&d, 99)};
        sbp_tensor **values = expected_values(&d, scalars);
        run_commands(&d, scalars, &sum);
        for (int32_t i = 0; i < d.rule.code.formal_count; i++) {
            sbp_dtype dtype = d.rule.code.formals[i].dtype;
            for (int64_t j = 0; j < d.rows * d.cols && d.rule.results[i] != SBP_NO_VALUE; j++) {
                double found = sbp_element_get(d.memory[i], dtype, j);
                double expected = sbp_round_to(dtype, values[d.rule.results[i]]->data[j]);
                if (found != expected && !(isnan(found) && isnan(expected)))
                    fail_msg("rule %d: operand %d (%s), element %lld is %.9g, expected %.9g", (int)seed, i,
                             sbp_dtype_name(dtype), (long long)j, found, expected);
            }
        }
        testing_close(&t);
    }
    printf("  %d kernels, %d random numbers, %d of them from another column on; rounded to i16 %d, d8 %d, "
           "ud8 %d\n",
           sum.kernels, sum.random, sum.shifted, sum.rounds[SBP_I16], sum.rounds[SBP_D8],
           sum.rounds[SBP_UD8]);
    assert_true(sum.random > 200 && sum.shifted > 50);
    for (int i = 1; i < SBP_COUNT(kept); i++)
        assert_true(sum.rounds[kept[i]] > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(drawn_rules)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
