/* test_experts_count: expert_gemm and expert_gemm_dw by tensor cores on the PTX machine: how many warp
 * instructions they take beside the product of as many rows by one expert, and that they are right: experts
 * of as many rows each, experts of which few have most rows and some none. */
#include "tests/cuda/target/kernel_testing.h"
#include "tests/ptx/ptx.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/common/dispatch_add.h"
#include "tests/tolerance.h"

enum { SLOTS = 4, EXPERTS = 8, ROWS_OF_EXPERT = 256, ALL = EXPERTS * ROWS_OF_EXPERT, MOST_EXPERTS = 16 };

static bool can_compile;

static int look(void **state) {
    (void)state;
    can_compile = kernels_can_compile();
    return 0;
}

/* ---- a product --------------------------------------------------------------------------------------- */

typedef struct product {
    testing t;
    sbp_command command;
    sbp_span spans[SBP_MAX_COMMAND_OPERANDS];
    int32_t rows, experts, n, m, counts[MOST_EXPERTS];
    unsigned char *bytes;
    int64_t size;
} product;

static void add_operand(product *p, sbp_dtype dtype, int64_t rows, int64_t cols) {
    p->spans[p->command.view_count++] = (sbp_span){
        .space = SBP_DEVICE, .offset = p->size, .dtype = dtype, .rows = rows, .cols = cols, .stride = cols};
    p->size = sbp_round_up(p->size + rows * cols * sbp_dtype_bytes(dtype), 256);
}

static unsigned char *at(const product *p, int32_t operand) {
    return p->bytes + p->spans[operand].offset;
}

static double number(const product *p, int32_t operand, int64_t i) {
    return sbp_element_get(at(p, operand), p->spans[operand].dtype, i);
}

/* Slots of an expert are some way apart, as rows of a batch are. */
static void order_pairs(product *p, int32_t pairs) {
    int32_t *to = (int32_t *)(void *)at(p, pairs), *bounds = (int32_t *)(void *)at(p, pairs + 1),
            all = p->rows * SLOTS;
    bounds[0] = 0;
    for (int32_t e = 0; e < p->experts; e++)
        bounds[e + 1] = bounds[e] + p->counts[e];
    assert_int_equal(bounds[p->experts], all);
    for (int32_t i = 0; i < all; i++)
        to[i] = (int32_t)((int64_t)i * 1031 % all);
}

/* Rows of slots share a; d has a row per slot. dw: of n x m. */
static product *make(bool dw, int32_t experts, const int32_t *counts) {
    testing t = testing_open(1);
    product *p = SBP_NEW(t.arena, product);
    *p = (product){.t = t, .experts = experts, .n = 128, .m = 512};
    for (int32_t e = 0; e < experts; e++) {
        p->counts[e] = counts[e];
        p->rows += counts[e] / SLOTS;
    }
    p->command = (sbp_command){.kind = dw ? SBP_CMD_EXPERT_GEMM_DW : SBP_CMD_EXPERT_GEMM, .flushes = -1};
    if (dw) {
        add_operand(p, SBP_F32, experts, (int64_t)p->n * p->m);
        add_operand(p, SBP_BF16, p->rows, (int64_t)SLOTS * p->n);
        add_operand(p, SBP_BF16, p->rows, p->m);
        p->command.u.experts.a_by_slot = true;
    } else {
        add_operand(p, SBP_BF16, p->rows, (int64_t)SLOTS * p->n);
        add_operand(p, SBP_BF16, p->rows, p->m);
        add_operand(p, SBP_BF16, experts, (int64_t)p->n * p->m);
        p->spans[p->command.view_count++] = (sbp_span){.space = SBP_SPACE_COUNT};
        p->command.u.experts.tb = true;
    }
    int32_t pairs = p->command.view_count;
    add_operand(p, SBP_I32, p->rows, SLOTS);
    add_operand(p, SBP_I32, 1, experts + 1);
    p->bytes = sbp_arena_alloc(t.arena, (size_t)p->size);
    memset(p->bytes, 0xff, (size_t)p->size);
    for (int32_t o = 1; o < pairs; o++)
        for (int64_t i = 0; p->spans[o].space == SBP_DEVICE && i < p->spans[o].rows * p->spans[o].cols; i++)
            sbp_element_set(at(p, o), SBP_BF16, i, sbp_rng_unit(&p->t.rng));
    order_pairs(p, pairs);
    return p;
}

/* Warp instructions of all its launches, by tensor cores. */
static double run(product *p) {
    static sbp_ptx_report report; /* large */
    sbp_dispatch dispatch = {.command = &p->command, .spans = p->spans, .span_count = p->command.view_count};
    sbp_program *program = sbp_program_create(p->t.arena, "experts");
    dispatch_add(p->t.arena, program, &dispatch);
    kernel_set set = kernels_compile(&p->t, program, "sm_80");
    const sbp_cuda_machine machine = {.arch = {80, false}, .processors = 108, .variant = SBP_CUDA_VARIANTS};
    uint64_t addresses[SBP_SPACE_COUNT] = {0};
    sbp_ptx_memory *memory = sbp_ptx_memory_create(0);
    addresses[SBP_DEVICE] = sbp_ptx_memory_alloc(memory, (uint64_t)p->size);
    assert_true(sbp_ptx_memory_write(memory, addresses[SBP_DEVICE], p->bytes, (uint64_t)p->size));
    uint64_t scratch = sbp_ptx_memory_alloc(memory, (uint64_t)sbp_cuda_scratch_bytes(&dispatch, &machine));
    sbp_gpu_args args;
    sbp_cuda_step steps[SBP_CUDA_STEPS];
    double instructions = 0;
    memset(&args, 0, sizeof args);
    (void)sbp_gpu_args_fill(&dispatch, addresses, scratch, &args);
    int32_t count = sbp_cuda_steps(&dispatch, &machine, &args, steps);
    assert_int_equal(count, SBP_GPU_EXPERT_STEPS);
    for (int32_t i = 0; i < count; i++) {
        const sbp_cuda_object *object = NULL;
        assert_int_equal(steps[i].key.variant, SBP_CUDA_MMA);
        for (int32_t k = 0; k < set.count; k++)
            if (sbp_gpu_key_compare(&set.sources[k].key, &steps[i].key) == 0)
                object = &set.objects[k];
        assert_non_null(object);
        const char *ptx = sbp_cuda_object_ptx(object);
        sbp_ptx_module *module = sbp_ptx_module_load(memory, ptx, strlen(ptx), &report);
        void *params[] = {&args};
        if (!module || sbp_ptx_launch(sbp_ptx_module_entry(module, "kernel"), steps[i].grid, steps[i].block,
                                      steps[i].shared_bytes, params, NULL, &report) != SBP_PTX_OK)
            fail_msg("step %d: %s", (int)i, report.text);
        instructions += (double)report.instructions;
        sbp_ptx_module_unload(module);
    }
    assert_true(sbp_ptx_memory_read(memory, addresses[SBP_DEVICE], p->bytes, (uint64_t)p->size));
    sbp_ptx_memory_destroy(memory);
    kernels_free(&set);
    return instructions;
}

/* One of some hundred elements of d, in double. */
static void check(const product *p) {
    bool dw = p->command.kind == SBP_CMD_EXPERT_GEMM_DW;
    const int32_t *pairs =
        (const int32_t *)(const void *)at(p, dw ? SBP_EXPERT_GEMM_DW_PAIRS : SBP_EXPERT_GEMM_PAIRS);
    double error = 0, norm = 0;
    int32_t first = 0, checked = 0;
    for (int32_t e = 0; e < p->experts; first += p->counts[e++])
        for (int32_t row = 0; row < (dw ? p->n : p->counts[e]); row += 3)
            for (int32_t column = row % 61; column < (dw ? p->m : p->n); column += 61, checked++) {
                double sum = 0;
                for (int32_t i = 0; i < (dw ? p->counts[e] : p->m); i++) {
                    int64_t pair = pairs[first + (dw ? i : row)];
                    sum += dw ? number(p, SBP_EXPERT_GEMM_DW_A, pair * p->n + row) *
                                    number(p, SBP_EXPERT_GEMM_DW_B, pair / SLOTS * p->m + column)
                              : number(p, SBP_EXPERT_GEMM_A, pair / SLOTS * p->m + i) *
                                    number(p, SBP_EXPERT_GEMM_B, ((int64_t)e * p->n + column) * p->m + i);
                }
                int64_t place = dw ? ((int64_t)e * p->n + row) * p->m + column
                                   : (int64_t)pairs[first + row] * p->n + column;
                double difference = number(p, 0, place) - sum;
                error += difference * difference;
                norm += sum * sum;
            }
    assert_true(checked > 300);
    if (!(sqrt(error) <= sbp_tolerance(dw ? SBP_F32 : SBP_BF16) * sqrt(norm)))
        fail_msg("error %g", sqrt(error / norm));
}

static double measure(bool dw, int32_t experts, const int32_t *counts) {
    product *p = make(dw, experts, counts);
    double instructions = run(p);
    check(p);
    testing t = p->t;
    testing_close(&t);
    return instructions;
}

/* ---- tests ------------------------------------------------------------------------------------------- */

static const int32_t one[] = {ALL}, even[EXPERTS] = {256, 256, 256, 256, 256, 256, 256, 256};
/* Zipf: 660 / r, in whole rows; a quarter of the experts has none */
static const int32_t skewed[MOST_EXPERTS] = {660, 0,  332, 220, 164, 132, 0,  112,
                                             92,  84, 0,   72,  64,  60,  56, 0};
enum { SOME = 12 }; /* which have */

static void rows_of_experts(void **state) {
    (void)state;
    if (!can_compile)
        return;
    double dense = measure(false, 1, one), balanced = measure(false, EXPERTS, even) / dense,
           zipf = measure(false, MOST_EXPERTS, skewed) / dense;
    printf("  %.0f warp instructions; by %d experts of 256 rows %.3f times, by Zipf's law %.3f times\n",
           dense, EXPERTS, balanced, zipf);
    assert_true(balanced <= 1.15);
    assert_true(zipf <= 1.5);
}

/* Beside one product, whose d is written once and not by each expert, and beside as many that
 * share the rows. */
static void sums_over_rows(void **state) {
    (void)state;
    if (!can_compile)
        return;
    static const int32_t share[] = {ROWS_OF_EXPERT}, less[] = {ALL / SOME / SLOTS * SLOTS};
    double dense = measure(true, 1, one), balanced = measure(true, EXPERTS, even),
           zipf = measure(true, MOST_EXPERTS, skewed);
    double of_even = balanced / (EXPERTS * measure(true, 1, share)),
           of_some = zipf / (SOME * measure(true, 1, less));
    printf("  %.0f warp instructions; by %d experts of 256 rows %.3f times (of as many products %.3f), by "
           "Zipf's "
           "law %.3f times (%.3f)\n",
           dense, EXPERTS, balanced / dense, of_even, zipf / dense, of_some);
    assert_true(of_even <= 1.15);
    assert_true(of_some <= 1.5);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_of_experts), cmocka_unit_test(sums_over_rows)};
    return cmocka_run_group_tests_name("experts, counted", tests, look, NULL);
}
