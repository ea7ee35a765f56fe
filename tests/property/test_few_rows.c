/* test_few_rows.c: a row has the same bits in a product of 1 to 17 rows as in one of many, in every type,
 * layout and instruction set of the CPU. */
#include "backends/cpu/cpu.h"
#include "tests/common/testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MANY = 40, GAP = 3 };

typedef struct product {
    sbp_dtype d, operand, c;
    bool ta, tb, with_c, with_bias;
    double alpha, beta;
    int64_t n, k, gap;
} product;

/* [rows, cols] of numbers of `dtype`, with a gap behind each row. */
static cpu_view matrix(testing *t, sbp_rng *rng, sbp_dtype dtype, int64_t rows, int64_t cols, int64_t gap) {
    cpu_view v = {.dtype = dtype, .rows = rows, .cols = cols, .stride = cols + gap};
    int64_t elems = rows * v.stride;
    v.data = sbp_arena_alloc(t->arena, (size_t)((elems + 1) * sbp_dtype_bytes(dtype)));
    for (int64_t i = 0; i < elems; i++)
        sbp_element_set(v.data, dtype, i, (double)(sbp_rng_below(rng, 4001) - 2000) / 1000);
    return v;
}

static cpu_view some_rows(const cpu_view *of, int64_t first, int64_t rows) {
    cpu_view v = *of;
    v.data += first * of->stride * sbp_dtype_bytes(of->dtype);
    v.rows = rows;
    return v;
}

static cpu_view some_columns(const cpu_view *of, int64_t first, int64_t cols) {
    cpu_view v = *of;
    v.data += first * sbp_dtype_bytes(of->dtype);
    v.cols = cols;
    return v;
}

/* What beta adds is in d already where c is d. */
static void check(testing *t, cpu_core *core, const product *p) {
    sbp_rng *rng = &t->rng;
    sbp_arena_mark mark = sbp_arena_begin(t->arena);
    sbp_command command = {.kind = SBP_CMD_GEMM};
    command.u.gemm.alpha = p->alpha;
    command.u.gemm.beta = p->beta;
    command.u.gemm.ta = p->ta;
    command.u.gemm.tb = p->tb;
    cpu_command all = {.command = &command, .view_count = 5};
    cpu_view *v = all.views;
    v[SBP_GEMM_D] = matrix(t, rng, p->d, MANY, p->n, p->gap);
    v[SBP_GEMM_A] = p->ta ? matrix(t, rng, p->operand, p->k, MANY, p->gap)
                          : matrix(t, rng, p->operand, MANY, p->k, p->gap);
    v[SBP_GEMM_B] = p->tb ? matrix(t, rng, p->operand, p->n, p->k, p->gap)
                          : matrix(t, rng, p->operand, p->k, p->n, p->gap);
    if (p->with_c)
        v[SBP_GEMM_C] = matrix(t, rng, p->c, MANY, p->n, 0);
    if (p->with_bias)
        v[SBP_GEMM_BIAS] = matrix(t, rng, p->c, 1, p->n, 0);
    cpu_core_run(core, &core->lane, &all);
    cpu_view d = matrix(t, rng, p->d, MANY, p->n, p->gap + 1);
    for (int64_t first = 0, rows; first < MANY; first += rows) {
        rows = sbp_min_i64(1 + sbp_rng_below(rng, 17), MANY - first);
        cpu_command some = all;
        some.views[SBP_GEMM_D] = some_rows(&d, first, rows);
        some.views[SBP_GEMM_A] =
            p->ta ? some_columns(&v[SBP_GEMM_A], first, rows) : some_rows(&v[SBP_GEMM_A], first, rows);
        if (p->with_c)
            some.views[SBP_GEMM_C] = some_rows(&v[SBP_GEMM_C], first, rows);
        cpu_core_run(core, &core->lane, &some);
        for (int64_t i = first; i < first + rows; i++) {
            cpu_view one = some_rows(&d, i, 1), other = some_rows(&v[SBP_GEMM_D], i, 1);
            if (memcmp(one.data, other.data, (size_t)(p->n * sbp_dtype_bytes(p->d))) != 0)
                fail_msg("%s: %s <- %s, n %lld, k %lld%s%s: row %lld differs in a product of %lld rows",
                         core->kernels->name, sbp_dtype_name(p->d), sbp_dtype_name(p->operand),
                         (long long)p->n, (long long)p->k, p->ta ? " a^T" : "", p->tb ? " b^T" : "",
                         (long long)i, (long long)rows);
        }
    }
    sbp_arena_end(t->arena, mark);
}

static void check_set(const char *isa) {
    static const sbp_dtype operands[] = {SBP_F32, SBP_F64, SBP_BF16, SBP_F16};
    static const int64_t columns[] = {1, 23, 24, 25, 47, 48, 49, 96, 193};
    static const int64_t depths[] = {0, 1, 2, 63, 64, 65, 129, 576, 641, 1281, 2049, 2500};
    if (isa)
        setenv("SBP_CPU_ISA", isa, 1);
    testing t = testing_open(7);
    cpu_core core = {0};
    testing_check(&t, cpu_core_create(&core, NULL, 2, t.diag));
    sbp_rng *rng = &t.rng;
    for (int o = 0; o < SBP_COUNT(operands); o++)
        for (int k = 0; k < SBP_COUNT(depths); k++)
            for (int transposes = 0; transposes < 4; transposes++) {
                product p = {.operand = operands[o],
                             .k = depths[k],
                             .ta = transposes & 1,
                             .tb = transposes & 2,
                             .gap = sbp_rng_below(rng, GAP)};
                p.d = operands[o] == SBP_F64 ? SBP_F64 : sbp_rng_below(rng, 2) ? SBP_F32 : SBP_BF16;
                p.c = sbp_rng_below(rng, 2) ? p.d : operands[o];
                p.with_c = sbp_rng_below(rng, 2);
                p.with_bias = sbp_rng_below(rng, 2);
                p.alpha = sbp_rng_below(rng, 3) ? 1 : -0.75;
                p.beta = 0.5 * (double)sbp_rng_below(rng, 3);
                p.n = columns[sbp_rng_below(rng, SBP_COUNT(columns))];
                check(&t, &core, &p);
            }
    cpu_core_destroy(&core);
    testing_close(&t);
    unsetenv("SBP_CPU_ISA");
}

static void test_rows(void **state) {
    (void)state;
    check_set(NULL);
    check_set("v4");
    check_set("v3");
    check_set("base");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
