/* test_simple.c: fill, copy, collective, gather, scatter, scatter_add, colsum, reduce. */
#include "tests/common/sweep.h"
#include "tests/conformance/conformance.h"

#include <math.h>

static const int64_t row_counts[] = {0, 1, 7, 127, 128};
static const sbp_dtype floats[] = {SBP_F32, SBP_BF16, SBP_F16, SBP_F64};

static void test_fill(void **state) {
    (void)state;
    static const sbp_dtype types[] = {SBP_F64, SBP_F32, SBP_BF16, SBP_F16, SBP_I8, SBP_I16,
                                      SBP_I32, SBP_I64, SBP_BOOL, SBP_D8,  SBP_UD8};
    for (int d = 0; d < SBP_COUNT(types); d++)
        for (int r = 0; r < SBP_COUNT(row_counts); r++)
            for (uint64_t seed = 0; seed < 2; seed++) {
                suite_case *c = suite_begin("fill", seed);
                suite_tensor *t = suite_add(c, types[d], row_counts[r], d == 1 ? 700 : 13);
                c->command.kind = SBP_CMD_FILL;
                c->command.u.fill = types[d] == SBP_BOOL || types[d] == SBP_UD8 ? 1 : -3;
                if (sbp_dtype_is_dynamic(types[d]))
                    c->command.u.fill *= (double)seed;
                suite_expect(c, t);
                for (int64_t i = 0; i < t->rows * t->cols; i++)
                    t->expected[i] = sbp_round_to(types[d], c->command.u.fill);
                suite_check(c);
                suite_end(c);
            }
}

static void test_copy(void **state) {
    (void)state;
    static const sbp_dtype types[] = {SBP_F64, SBP_F32, SBP_BF16, SBP_I8, SBP_I32, SBP_I16, SBP_D8};
    for (int d = 0; d < SBP_COUNT(types); d++)
        for (int r = 0; r < SBP_COUNT(row_counts); r++)
            for (uint64_t seed = 0; seed < 4; seed++) {
                suite_case *c = suite_begin("copy", seed);
                suite_tensor *to = suite_add(c, types[d], row_counts[r], d == 1 ? 1000 : 9);
                suite_tensor *from = suite_add(c, types[d], to->rows, to->cols);
                c->command.kind = seed < 2 ? SBP_CMD_COPY : SBP_CMD_COLLECTIVE;
                suite_expect(c, to);
                memcpy(to->expected, from->values, (size_t)(to->rows * to->cols) * sizeof(double));
                suite_check(c);
                suite_end(c);
            }
}

/* A column of row numbers below `below`. */
static suite_tensor *add_index(suite_case *c, sbp_dtype dtype, int64_t rows, int64_t below) {
    suite_tensor *t = suite_add(c, dtype, rows, 1);
    for (int64_t i = 0; i < rows; i++)
        t->values[i] = (double)sbp_rng_below(&c->rng, below);
    return t;
}

static void test_gather(void **state) {
    (void)state;
    for (int d = 0; d < 4; d++)
        for (int s = 0; s < 4; s++)
            for (int r = 0; r < SBP_COUNT(row_counts); r++) {
                suite_case *c = suite_begin("gather", (uint64_t)(d + s + r));
                suite_tensor *to = suite_add(c, floats[d], row_counts[r], 150);
                suite_tensor *table = suite_add(c, floats[s], 40, 150);
                suite_tensor *index = add_index(c, r % 2 ? SBP_I32 : SBP_I64, to->rows, table->rows);
                c->command.kind = SBP_CMD_GATHER;
                suite_expect(c, to);
                for (int64_t i = 0; i < to->rows * to->cols; i++)
                    to->expected[i] = table->values[(int64_t)index->values[i / 150] * 150 + i % 150];
                suite_check(c);
                suite_end(c);
            }
}

/* perm and segment as the host makes them: rows sorted by index, stable. repeat: each index
 * comes so often. */
static void scatter_case(uint64_t seed, sbp_dtype sums, sbp_dtype type, int64_t rows, int64_t cols,
                         int64_t targets, int64_t repeat, uint32_t only_on) {
    suite_case *c = suite_begin("scatter_add", seed);
    suite_tensor *to = suite_add(c, sums, targets, cols);
    suite_tensor *from = suite_add(c, type, rows, cols);
    suite_tensor *index = add_index(c, seed % 2 ? SBP_I32 : SBP_I64, rows, targets);
    suite_tensor *perm = add_index(c, SBP_I32, rows, 1), *segment = add_index(c, SBP_I32, rows, 1);
    c->only_on = only_on;
    c->command.kind = SBP_CMD_SCATTER_ADD;
    for (int64_t i = 0; i < rows && repeat > 0; i++)
        index->values[i] = (double)(i / repeat % targets);
    int64_t at = 0;
    for (int64_t t = 0; t < targets; t++) {
        int64_t first = at;
        for (int64_t i = 0; i < rows; i++)
            if ((int64_t)index->values[i] == t)
                perm->values[at++] = (double)i;
        if (at > first)
            segment->values[first] = (double)(at - first);
    }
    suite_expect(c, to);
    to->written = suite_alloc(c, targets * cols, sizeof(bool));
    for (int64_t i = 0; i < rows * cols; i++) {
        int64_t target = (int64_t)index->values[i / cols] * cols + i % cols;
        to->expected[target] += from->values[i];
        to->written[target] = true;
    }
    suite_check(c);
    suite_end(c);
}

/* Rows of their own to distinct places; others stay. */
static void place_case(uint64_t seed, sbp_dtype type, int64_t rows, int64_t cols) {
    suite_case *c = suite_begin("scatter", seed);
    const int64_t targets = 3 * rows + 5;
    suite_tensor *to = suite_add(c, type, targets, cols), *from = suite_add(c, type, rows, cols);
    suite_tensor *index = add_index(c, seed % 2 ? SBP_I32 : SBP_I64, rows, 1);
    c->command.kind = SBP_CMD_SCATTER;
    for (int64_t i = 0; i < rows; i++) /* down from the last row, in steps of 1 to 3 */
        index->values[i] =
            (i ? index->values[i - 1] : (double)targets) - 1 - (double)sbp_rng_below(&c->rng, 3);
    suite_expect(c, to);
    to->written = suite_alloc(c, targets * cols, sizeof(bool));
    for (int64_t i = 0; i < rows * cols; i++) {
        int64_t at = (int64_t)index->values[i / cols] * cols + i % cols;
        to->expected[at] = from->values[i];
        to->written[at] = true;
    }
    suite_check(c);
    suite_end(c);
}

static void test_scatter(void **state) {
    (void)state;
    for (int d = 0; d < 4; d++)
        for (int r = 0; r < SBP_COUNT(row_counts); r++)
            place_case((uint64_t)(d + r), floats[d], row_counts[r], r % 2 ? 150 : 9);
}

static void test_scatter_add(void **state) {
    (void)state;
    for (int d = 0; d < 2; d++)
        for (int s = 0; s < 4; s++)
            for (int r = 0; r < SBP_COUNT(row_counts); r++)
                for (int64_t cols = 1; cols < 400; cols += 199)
                    scatter_case((uint64_t)(d + s + r), d ? SBP_F64 : SBP_F32, floats[s], row_counts[r], cols,
                                 r == 3 ? 3 : 50, 0, 0);
}

static void test_colsum(void **state) {
    (void)state;
    for (int d = 0; d < 4; d++)
        for (int s = 0; s < 4; s++)
            for (int r = 0; r < SBP_COUNT(row_counts); r++)
                for (int b = 0; b < 2; b++) {
                    suite_case *c = suite_begin("colsum", (uint64_t)(d + s + r));
                    suite_tensor *to = suite_add(c, floats[d], 1, r == 3 ? 1 : 301);
                    suite_tensor *from = suite_add(c, floats[s], row_counts[r], to->cols);
                    c->command.kind = SBP_CMD_COLSUM;
                    c->command.u.reduce.beta = b;
                    suite_expect(c, to);
                    for (int64_t j = 0; j < to->cols; j++) {
                        to->expected[j] *= b;
                        for (int64_t i = 0; i < from->rows; i++)
                            to->expected[j] += from->values[i * to->cols + j];
                    }
                    suite_check(c);
                    suite_end(c);
                }
}

/* The truth is summed in long double: a sum of 4 million random doubles, added one after the other in double,
 * is 2.8e-12 off where terms cancel to a hundredth of a part, and what devices add in groups 8e-15. */
static void check_reduce(sbp_reduce_op op, sbp_dtype dtype, int64_t rows, int64_t cols, double beta,
                         uint64_t seed, uint32_t only_on) {
    suite_case *c = suite_begin("reduce", seed);
    suite_tensor *to = suite_add(c, SBP_F64, 1, 1), *from = suite_add(c, dtype, rows, cols);
    c->command.kind = SBP_CMD_REDUCE;
    c->command.u.reduce.op = op;
    c->command.u.reduce.beta = beta;
    c->only_on = only_on;
    suite_expect(c, to);
    long double result = op == SBP_REDUCE_MAX ? -(long double)INFINITY : 0;
    for (int64_t i = 0; i < rows * cols; i++) {
        long double x = from->values[i];
        result = op == SBP_REDUCE_MAX ? fmaxl(result, x) : op == SBP_REDUCE_SUM ? result + x : result + x * x;
    }
    if (beta != 0)
        result = op == SBP_REDUCE_MAX ? fmaxl(result, to->values[0]) : result + to->values[0];
    to->expected[0] = (double)result;
    suite_check(c);
    suite_end(c);
}

static void test_reduce(void **state) {
    (void)state;
    for (int op = 0; op < SBP_REDUCE_COUNT; op++)
        for (int s = 0; s < 4; s++)
            for (int r = 0; r < SBP_COUNT(row_counts); r++)
                for (int b = 0; b < 2; b++)
                    check_reduce((sbp_reduce_op)op, floats[s], row_counts[r],
                                 r == 1   ? 100000
                                 : r == 4 ? 2000
                                          : 31,
                                 b, (uint64_t)(op + s + r), 0);
}

/* More than all groups take at a time: 256 of 16,384 elements on Vulkan, 512 on CUDA, where the machine that
 * runs PTX has fewer but with --all. */
static void test_reduce_huge(void **state) {
    (void)state;
    bool cuda = strcmp(suite_device()->name, "cuda") == 0;
    int64_t cols = !cuda ? 1400001 : testing_all() ? 2900001 : 100001;
    for (int op = 0; op < testing_sweep(1, SBP_REDUCE_COUNT); op++)
        check_reduce((sbp_reduce_op)op, SBP_F64, 3, cols, 1, (uint64_t)op,
                     SUITE_ON_CPU | SUITE_ON_CUDA | SUITE_ON_VULKAN);
}

/* ---- sizes at which a device takes another way --------------------------------------------------------- */

static void move_case(sbp_command_kind kind, sbp_dtype type, int64_t rows, int64_t cols, uint64_t seed,
                      uint32_t only_on) {
    suite_case *c = suite_begin(kind == SBP_CMD_FILL ? "fill, large" : "copy, large", seed);
    suite_tensor *to = suite_add(c, type, rows, cols), *from = NULL;
    if (kind == SBP_CMD_FILL)
        c->command.u.fill = -3;
    else
        from = suite_add(c, type, rows, cols);
    c->command.kind = kind;
    c->only_on = only_on;
    suite_expect(c, to);
    for (int64_t i = 0; i < rows * cols; i++)
        to->expected[i] = from ? from->values[i] : -3;
    suite_check(c);
    suite_end(c);
}

/* Blocks of many rows, pieces of one. */
static void test_large_moves(void **state) {
    (void)state;
    static const sbp_command_kind kinds[] = {SBP_CMD_FILL, SBP_CMD_COPY};
    for (int k = 0; k < SBP_COUNT(kinds); k++)
        for (uint64_t seed = 0; seed < 2; seed++) {
            move_case(kinds[k], SBP_F32, 3, 70001, seed, SUITE_ON_CPU);
            move_case(kinds[k], SBP_BF16, 400, 301, seed, SUITE_ON_CPU | SUITE_ON_CUDA | SUITE_ON_VULKAN);
            move_case(kinds[k], SBP_F64, 9, 33, seed, SUITE_ON_CUDA | SUITE_ON_VULKAN);
        }
}

static void gather_case(sbp_dtype type, sbp_dtype table_type, int64_t rows, int64_t cols, uint64_t seed,
                        uint32_t only_on) {
    suite_case *c = suite_begin("gather, long", seed);
    suite_tensor *to = suite_add(c, type, rows, cols), *table = suite_add(c, table_type, 40, cols);
    suite_tensor *index = add_index(c, SBP_I32, rows, table->rows);
    c->command.kind = SBP_CMD_GATHER;
    c->only_on = only_on;
    suite_expect(c, to);
    for (int64_t i = 0; i < rows * cols; i++)
        to->expected[i] = table->values[(int64_t)index->values[i / cols] * cols + i % cols];
    suite_check(c);
    suite_end(c);
}

static void colsum_case(sbp_dtype type, int64_t rows, int64_t cols, uint32_t only_on) {
    suite_case *c = suite_begin("colsum, long", 1);
    suite_tensor *to = suite_add(c, type == SBP_F64 ? SBP_F64 : SBP_F32, 1, cols);
    suite_tensor *from = suite_add(c, type, rows, cols);
    c->command.kind = SBP_CMD_COLSUM;
    c->command.u.reduce.beta = 1;
    c->only_on = only_on;
    suite_expect(c, to);
    for (int64_t i = 0; i < rows * cols; i++)
        to->expected[i % cols] += from->values[i];
    suite_check(c);
    suite_end(c);
}

/* More workgroups than a line of them has; the longest loops that a software driver runs. */
static void test_many_groups(void **state) {
    (void)state;
    gather_case(SBP_F32, SBP_BF16, 2048, 2060, 1, SUITE_ON_VULKAN);
    colsum_case(SBP_F32, 65471, 3, SUITE_ON_VULKAN);
    scatter_case(2, SBP_F32, SBP_BF16, 65471, 2, 1, 65471, SUITE_ON_VULKAN);
}

/* Few columns of many rows; a target that most rows go to, across the items of the sorted ones. */
static void test_long_columns(void **state) {
    (void)state;
    gather_case(SBP_F32, SBP_BF16, 2000, 9, 1, SUITE_ON_CPU);
    gather_case(SBP_F64, SBP_F32, 300, 128, 2, SUITE_ON_CPU);
    gather_case(SBP_BF16, SBP_BF16, 7, 1100, 3, SUITE_ON_CPU);
    scatter_case(4, SBP_F32, SBP_BF16, 2200, 130, 3, 900, SUITE_ON_CPU);
    scatter_case(5, SBP_F64, SBP_F64, 1000, 3, 7, 0, SUITE_ON_CPU);
    scatter_case(6, SBP_F32, SBP_F32, 500, 1100, 40, 70, SUITE_ON_CPU);
    for (int s = 0; s < 4; s++)
        colsum_case(floats[s], 3000, 130, SUITE_ON_CPU);
}

const struct CMUnitTest suite_simple_tests[] = {
    cmocka_unit_test(test_fill),        cmocka_unit_test(test_copy),
    cmocka_unit_test(test_gather),      cmocka_unit_test(test_scatter),
    cmocka_unit_test(test_scatter_add), cmocka_unit_test(test_colsum),
    cmocka_unit_test(test_reduce),      cmocka_unit_test(test_reduce_huge),
    cmocka_unit_test(test_large_moves), cmocka_unit_test(test_long_columns),
    cmocka_unit_test(test_many_groups)};
const int suite_simple_count = SBP_COUNT(suite_simple_tests);
