/* test_row.c: row kernels against the reference interpreter. */
#include "tests/common/sweep.h"
#include "tests/conformance/row_case.h"

#include <math.h>

/* ---- random kernels ------------------------------------------------------------------------------- */

/* Draws kernels with n and rows from the lists; returns how many values round to 16 bits. */
static int32_t check_random(uint64_t seed, int draws, const int64_t *rows, int row_count,
                            const int64_t *lengths, int length_count) {
    sbp_rng rng = {seed};
    int32_t rounds = 0;
    for (int i = 0; i < draws; i++) {
        char name[64];
        snprintf(name, sizeof name, "random kernel %d of %d", i, draws);
        suite_case *c = suite_begin(name, sbp_rng_next(&rng));
        sbp_random_kernel_options options = {.compute = sbp_rng_below(&rng, 3) ? SBP_F32 : SBP_F64,
                                             .heads = (int64_t[]){1, 1, 2, 3, 9}[sbp_rng_below(&rng, 5)],
                                             .n = lengths[sbp_rng_below(&rng, length_count)],
                                             .smooth = true,
                                             .rounds = true,
                                             .only_compute = sbp_rng_below(&rng, 2)};
        c->kernel = sbp_random_kernel(&rng, c->arena, &options);
        rounds += row_case_rounds(c->kernel);
        c->rows = rows[sbp_rng_below(&rng, row_count)];
        c->row0 = sbp_rng_below(&rng, 2) ? 0 : (INT64_C(1) << 32) - c->rows;
        c->scalars[0] = (double)sbp_rng_below(&rng, INT64_C(1) << 53);
        c->scalars[1] = sbp_rng_unit(&rng);
        int32_t alias[SBP_ROWKERNEL_MAX_OPERANDS];
        bool taken[SBP_ROWKERNEL_MAX_OPERANDS] = {false};
        for (int32_t out = 0; out < c->kernel->operand_count; out++) {
            alias[out] = -1;
            for (int32_t in = 0; in < out && alias[out] < 0; in++)
                if (!taken[in] && sbp_rng_below(&rng, 2) &&
                    c->kernel->operands[out].dtype == c->kernel->operands[in].dtype &&
                    sbp_rowkernel_may_alias(c->kernel, out, in)) {
                    alias[out] = in;
                    taken[in] = true;
                }
        }
        if (getenv("SBP_PRINT_KERNELS"))
            fprintf(stderr, "%s, %lld rows:\n%s", name, (long long)c->rows, row_case_text(c));
        row_case_check(c, alias);
        suite_end(c);
    }
    return rounds;
}

static void test_row_random(void **state) {
    (void)state;
    static const int64_t rows[] = {0, 1, 7, 63, 64, 65, 130}, lengths[] = {1, 2, 6, 64, 96, 256, 258, 600};
    int draws = testing_all() ? 1500 : 500;
    int32_t rounds = check_random(1, draws, rows, SBP_COUNT(rows), lengths, SBP_COUNT(lengths));
    assert_true(rounds > (testing_all() ? 500 : 150));
}

/* About the sizes at which the CPU keeps a row in one block, in whole and in pieces. */
static void test_row_random_long(void **state) {
    (void)state;
    static const int64_t rows[] = {1, 2, 17}, lengths[] = {512, 514, 1024, 1026, 1026, 1600};
    check_random(2, testing_all() ? 3000 : 150, rows, SBP_COUNT(rows), lengths, SBP_COUNT(lengths));
}

/* ---- every function ------------------------------------------------------------------------------- */

static bool is_exact(sbp_rowop op) {
    switch (op) {
    case SBP_ROWOP_neg:
    case SBP_ROWOP_abs:
    case SBP_ROWOP_floor:
    case SBP_ROWOP_max:
    case SBP_ROWOP_min:
    case SBP_ROWOP_eq:
    case SBP_ROWOP_lt:
    case SBP_ROWOP_le:
    case SBP_ROWOP_and:
    case SBP_ROWOP_or:
    case SBP_ROWOP_not:
    case SBP_ROWOP_select:
    case SBP_ROWOP_bf16_high:
    case SBP_ROWOP_bf16_low:
    case SBP_ROWOP_bf16_join:
    case SBP_ROWOP_bf16_random:
        return true;
    default:
        return false;
    }
}

/* One function over a row of special and random numbers; operand k is a scalar when bit k is set. */
static void check_function(sbp_rowop op, sbp_dtype compute, int scalars, int64_t n, double special) {
    suite_case *c = suite_begin(sbp_rowop_name(op), (uint64_t)op + (uint64_t)scalars);
    static const char *const names[] = {"a", "b", "c"};
    static const double specials[] = {0, -0.0, 1, -1, 0.5, -2.5, 1e-3, 80, -80, 1e-40, 12345.678};
    sbp_rk_instr instr = {.op = SBP_RK_MAP, .map = op, .a = -1, .b = -1, .c = -1, .index = -1};
    int32_t *values[] = {&instr.a, &instr.b, &instr.c};
    c->kernel = sbp_rowkernel_create(c->arena, "f", compute);
    c->rows = 3;
    for (int k = 0; k < sbp_rowop_arity(op); k++) {
        bool scalar = scalars >> k & 1;
        sbp_rk_operand operand = {.name = names[k],
                                  .mode = SBP_RK_IN,
                                  .dtype = compute,
                                  .vary = scalar ? SBP_VARY_ROW : SBP_VARY_ROW | SBP_VARY_ELEM,
                                  .length = scalar ? 1 : n};
        sbp_rk_instr load = {.op = SBP_RK_LOAD, .a = -1, .b = -1, .c = -1};
        load.index = sbp_rowkernel_add_operand(c->arena, c->kernel, &operand);
        *values[k] = sbp_rowkernel_add(c->arena, c->kernel, &load);
    }
    sbp_rk_operand out = {
        .name = "y", .mode = SBP_RK_OUT, .dtype = compute, .vary = SBP_VARY_ROW | SBP_VARY_ELEM, .length = n};
    sbp_rk_instr store = {.op = SBP_RK_STORE, .b = -1, .c = -1};
    store.index = sbp_rowkernel_add_operand(c->arena, c->kernel, &out);
    store.a = sbp_rowkernel_add(c->arena, c->kernel, &instr);
    sbp_rowkernel_add(c->arena, c->kernel, &store);
    c->command.kind = SBP_CMD_ROW;
    for (int32_t k = 0; k < c->kernel->operand_count; k++) {
        suite_tensor *t = suite_add(c, compute, c->rows, c->kernel->operands[k].length);
        for (int64_t i = 0; i < t->rows * t->cols && k < store.index; i++) {
            if (special != 0 && sbp_rng_below(&c->rng, 3) == 0)
                t->values[i] = special;
            else if (sbp_rng_below(&c->rng, 2))
                t->values[i] = sbp_round_to(compute, specials[sbp_rng_below(&c->rng, SBP_COUNT(specials))]);
            else
                t->values[i] = sbp_round_to(compute, 10 * t->values[i]);
        }
    }
    suite_tensor *y = &c->tensors[store.index];
    suite_expect(c, y);
    for (int64_t i = 0; i < c->rows * n; i++) {
        double x[3] = {0};
        for (int k = 0; k < sbp_rowop_arity(op); k++)
            x[k] = c->tensors[k].values[scalars >> k & 1 ? i / n : i];
        y->expected[i] = sbp_round_to(compute, sbp_rowop_eval(op, x[0], x[1], x[2]));
    }
    /* relative in the norm says little about small results: the ulp test of the functions is a unit test */
    y->tolerance = is_exact(op)         ? SBP_TOLERANCE_NONE
                   : compute == SBP_F32 ? SBP_TOLERANCE_F32
                                        : SBP_TOLERANCE_F64;
    suite_check(c);
    suite_end(c);
}

static void test_row_functions(void **state) {
    (void)state;
    for (int op = 0; op < SBP_ROWOP_COUNT; op++)
        for (int scalars = 0; scalars < 1 << sbp_rowop_arity((sbp_rowop)op); scalars++)
            for (int d = 0; d < 2; d++) {
                sbp_dtype compute = d ? SBP_F64 : SBP_F32;
                check_function((sbp_rowop)op, compute, scalars, 300, 0);
                check_function((sbp_rowop)op, compute, scalars, 17, 0);
                check_function((sbp_rowop)op, compute, scalars, 40, (double)NAN);
                if (op != SBP_ROWOP_sin && op != SBP_ROWOP_cos)
                    check_function((sbp_rowop)op, compute, scalars, 40, (double)INFINITY);
            }
}

/* ---- the kernels of a model ----------------------------------------------------------------------- */

static const char norm_text[] =
    "kernel @norm f32 heads 1 n 576 { in x : f32 [row elem] length 576 in w : f32 [elem] length 576 "
    "out y : f32 [row elem] length 576 partial dw : f32 [elem] length 576 scalar eps "
    "%0 = load x %1 = load w %2 = mul %0, %0 %3 = sum[elem] %2 %4 = const 576 %5 = div %3, %4 %6 = scalar "
    "eps "
    "%7 = add %5, %6 %8 = rsqrt %7 %9 = mul %0, %8 %10 = mul %9, %1 store y, %10 accumulate dw, %9 }";
static const char rope_text[] =
    "kernel @rope f32 heads 9 n 32 { in x : bf16 [row head elem] length 64 stride 64 in pos : i32 [row] "
    "out y : bf16 [row head elem] length 64 stride 64 scalar s %0 = load x[0:32] %1 = load x[32:64] %2 = "
    "load pos "
    "%3 = index 0:32 %4 = const -0.28782313662425574 %5 = mul %3, %4 %6 = exp %5 %7 = mul %2, %6 %8 = cos %7 "
    "%9 = sin %7 %10 = mul %0, %8 %11 = mul %1, %9 %12 = sub %10, %11 %13 = mul %0, %9 %14 = mul %1, %8 "
    "%15 = add %13, %14 store y[0:32], %12 store y[32:64], %15 }";
static const char logp_text[] =
    "kernel @logp f32 heads 1 n 5003 { in z : f32 [row elem] length 5003 in label : i32 [row] "
    "out p : f32 [row] out d : f32 [row elem] length 5003 scalar s "
    "%0 = load z %1 = load label %2 = max[elem] %0 %3 = sub %0, %2 %4 = exp %3 %5 = sum[elem] %4 %6 = log %5 "
    "%7 = index 0:5003 %8 = eq %7, %1 %9 = const 0 %10 = select %8, %3, %9 %11 = sum[elem] %10 %12 = sub "
    "%11, %6 "
    "%13 = div %4, %5 %14 = sub %8, %13 store p, %12 store d, %14 }";
static const char adamw_text[] =
    "kernel @adamw f32 heads 1 n 300 { in w : f32 [row elem] length 300 in m : f32 [row elem] length 300 "
    "in v : f32 [row elem] length 300 in g : f32 [row elem] length 300 out w1 : f32 [row elem] length 300 "
    "out m1 : f32 [row elem] length 300 out v1 : f32 [row elem] length 300 scalar lr "
    "%0 = load w %1 = load m %2 = load v %3 = load g %4 = const 0.9 %5 = const 0.1 %6 = mul %1, %4 %7 = mul "
    "%3, %5 "
    "%8 = add %6, %7 %9 = const 0.999 %10 = const 0.001 %11 = abs %2 %12 = mul %11, %9 %13 = mul %3, %3 "
    "%14 = mul %13, %10 %15 = add %12, %14 %16 = sqrt %15 %17 = const 1e-08 %18 = add %16, %17 %19 = div %8, "
    "%18 "
    "%20 = scalar lr %21 = mul %19, %20 %22 = sub %0, %21 store w1, %22 store m1, %8 store v1, %15 }";
static const char qk_norm_text[] =
    "kernel @qk_norm f32 heads 16 n 128 { in x : bf16 [row head elem] length 128 stride 128 "
    "in w : f32 [elem] length 128 out y : f32 [row head elem] length 128 stride 128 out r : f32 [row head] "
    "stride 1 "
    "partial dw : f32 [elem] length 128 scalar eps %0 = load x %1 = load w %2 = mul %0, %0 %3 = sum[elem] %2 "
    "%4 = scalar eps %5 = add %3, %4 %6 = rsqrt %5 %7 = mul %0, %6 %8 = mul %7, %1 store y, %8 store r, %6 "
    "accumulate dw, %7 }";
static const char vector_text[] =
    "kernel @vector f64 heads 1 n 1 { in a : f32 [row] in b : f64 [row] in m : bool [row] out y : f32 [row] "
    "scalar s %0 = load a %1 = load b %2 = load m %3 = mul %0, %1 %4 = scalar s %5 = select %2, %3, %4 store "
    "y, %5 }";
static const char heads_text[] = "kernel @heads f32 heads 6 n 40 { in x : f32 [row head elem] length 40 "
                                 "stride 41 out y : f32 [row elem] length 40 "
                                 "out z : f32 [row] out u : f32 [row head elem] length 40 stride 40 scalar s "
                                 "%0 = load x %1 = sum[head] %0 "
                                 "%2 = sum[head elem] %0 %3 = max[head] %0 %4 = add %1, %3 %5 = sub %0, %2 "
                                 "store y, %4 store z, %2 store u, %5 }";
static const char int8_text[] =
    "kernel @int8 f32 heads 1 n 70 { in x : f32 [row elem] length 70 out q : i8 [row elem] length 70 out e : "
    "i32 [row] "
    "scalar s %0 = load x %1 = const 300 %2 = mul %0, %1 %3 = max[elem] %2 store q, %2 store e, %3 }";

/* Numbers of a block times the largest of it, both written over: the factor is read until the last. */
static const char scaled_text[] =
    "kernel @scaled f32 heads 1 n %d { in x : f32 [row elem] length %d in s : f32 [row] "
    "out y : f32 [row elem] length %d out t : f32 [row] scalar b "
    "%%0 = load x %%1 = load s %%2 = mul %%0, %%1 %%3 = scalar b %%4 = add %%2, %%3 %%5 = abs %%4 %%6 = "
    "max[elem] %%5 "
    "%%7 = div %%4, %%6 %%8 = mul %%7, %%1 store y, %%8 store t, %%6 }";

/* A sum over heads, and a row without heads that is written over before another result of the
 * sum reads it. */
static const char summed_text[] =
    "kernel @summed f32 heads 3 n %d { in x : f32 [row head elem] length %d stride %d in u : f32 [row elem] "
    "length %d "
    "out y : f32 [row elem] length %d out z : f32 [row elem] length %d scalar b "
    "%%0 = load x %%1 = sum[head] %%0 %%2 = scalar b %%3 = mul %%1, %%2 %%4 = load u %%5 = add %%1, %%4 "
    "store y, %%3 store z, %%5 }";

/* The two products of a gated MLP's backward: the first result lies over g, which the second still reads. */
static const char gated_text[] =
    "kernel @gated f32 heads 1 n %d { in g : f32 [row elem] length %d in u : f32 [row elem] length %d "
    "in d : f32 [row elem] length %d out dg : f32 [row elem] length %d out du : f32 [row elem] length %d "
    "scalar b "
    "%%0 = load g %%1 = load u %%2 = load d %%3 = mul %%2, %%1 %%4 = mul %%2, %%0 store dg, %%3 store du, "
    "%%4 }";

static void test_row_in_place(void **state) {
    (void)state;
    static const int32_t alias[] = {-1, -1, 0, 1}, over_u[] = {-1, -1, 1, -1}, over_g[] = {-1, -1, -1, 0, -1};
    /* on the CPU several rows are a block until 512, a row is kept whole until 1,024, longer ones
     * come in pieces */
    static const int lengths[] = {2, 64, 256, 512, 513, 600, 1024, 1025, 5003};
    for (int i = 0; i < SBP_COUNT(lengths); i++) {
        char text[1024];
        snprintf(text, sizeof text, scaled_text, lengths[i], lengths[i], lengths[i]);
        row_case_run(text, 130, alias, (uint64_t)i, 0.25);
        snprintf(text, sizeof text, summed_text, lengths[i], lengths[i], lengths[i], lengths[i], lengths[i],
                 lengths[i]);
        row_case_run(text, 130, over_u, (uint64_t)i, 0.25);
        snprintf(text, sizeof text, gated_text, lengths[i], lengths[i], lengths[i], lengths[i], lengths[i],
                 lengths[i]);
        row_case_run(text, 130, over_g, (uint64_t)i, 0);
    }
}

static void test_row_model(void **state) {
    (void)state;
    static const int64_t rows[] = {0, 1, 7, 64, 150};
    static const int32_t norm_in_place[] = {-1, -1, 0, -1}, rope_in_place[] = {-1, -1, 0};
    static const int32_t logp_in_place[] = {-1, -1, -1, 0}, adamw_in_place[] = {-1, -1, -1, -1, 0, 1, 2};
    for (int r = 0; r < SBP_COUNT(rows); r++)
        for (uint64_t seed = 0; seed < 2; seed++) {
            row_case_run(norm_text, rows[r], NULL, seed, 1e-5);
            row_case_run(norm_text, rows[r], norm_in_place, seed, 1e-5);
            row_case_run(rope_text, rows[r], NULL, seed, 0);
            row_case_run(rope_text, rows[r], rope_in_place, seed, 0);
            row_case_run(logp_text, rows[r], NULL, seed, 0);
            row_case_run(logp_text, rows[r], logp_in_place, seed, 0);
            row_case_run(adamw_text, rows[r], NULL, seed, 1e-3);
            row_case_run(adamw_text, rows[r], adamw_in_place, seed, 1e-3);
            row_case_run(qk_norm_text, rows[r], NULL, seed, 1e-6);
            row_case_run(vector_text, rows[r] * 10, NULL, seed, 0.5);
            row_case_run(heads_text, rows[r], NULL, seed, 0);
            row_case_run(int8_text, rows[r], NULL, seed, 0);
        }
}

/* Rows longer than what a thread, an item or a packed group of threads takes. */
static void test_row_long(void **state) {
    (void)state;
    static const char sums[] = "kernel @sums f32 heads 1 n 600001 { in x : f32 [row elem] length 600001 "
                               "out y : f32 [row elem] length 600001 %0 = load x %1 = mul %0, %0 "
                               "%2 = sum[elem] %1 %3 = mul %0, %2 store y, %3 }",
                      flat[] =
                          "kernel @flat f32 heads 1 n 4200001 { in x : f32 [row elem] length 4200001 "
                          "out y : f32 [row elem] length 4200001 %0 = load x %1 = add %0, %0 store y, %1 }";
    static const struct {
        const char *text;
        uint32_t only_on;
    } cases[] = {{sums, SUITE_ON_CPU | SUITE_ON_VULKAN}, {flat, SUITE_ON_VULKAN}};
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        suite_case *c = suite_begin("a long row", 0);
        row_case_parse(c, cases[i].text);
        c->rows = 1;
        c->only_on = cases[i].only_on;
        row_case_check(c, NULL);
        suite_end(c);
    }
}

const struct CMUnitTest suite_row_tests[] = {
    cmocka_unit_test(test_row_random),    cmocka_unit_test(test_row_random_long),
    cmocka_unit_test(test_row_functions), cmocka_unit_test(test_row_in_place),
    cmocka_unit_test(test_row_model),     cmocka_unit_test(test_row_long)};
const int suite_row_count = SBP_COUNT(suite_row_tests);
