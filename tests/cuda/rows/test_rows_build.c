/* test_rows_build: every row kernel of the models of tests/data/configs, both variants, compiles for sm_80
 * and sm_90a without a warning and with all of its registers in registers; three models, each in one type and
 * for one of the two, with SBP_TEST_ALL=1 all in both for both. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "backends/gpu/row.h"
#include "tests/common/compile_model.h"
#include "tests/cuda/rows/row_case.h"

#define CONFIGS "tests/data/configs"

static bool can_compile;

static int look(void **state) {
    (void)state;
    can_compile = kernels_can_compile();
    return 0;
}

typedef struct totals {
    int kernels, vectors, most_registers, stack_bytes, busy;
    int64_t fewest; /* groups of a kernel of Qwen3-8B that has work */
} totals;

enum { CHUNK = 4096, HEAD_CHUNK = 512, PROCESSORS = 132 /* of an H100 */ };

/* A GPU has its processors busy: a kernel over a chunk of rows that has work for more than a microsecond (at
 * 4 TB/s) has a block for each. */
static void check_blocks(const char *path, const sbp_rowkernel *kernel, totals *sum) {
    int64_t rows = kernel->n > 100000 ? HEAD_CHUNK : CHUNK, bytes = 0;
    sbp_gpu_row_shape shape;
    if (!sbp_gpu_row_shape_of(kernel, true, &shape))
        (void)sbp_gpu_row_shape_of(kernel, false, &shape);
    for (int32_t i = 0; i < kernel->operand_count; i++)
        if (kernel->operands[i].vary & SBP_VARY_ROW)
            bytes += rows * (kernel->operands[i].vary & SBP_VARY_HEAD ? kernel->heads : 1) *
                     (kernel->operands[i].vary & SBP_VARY_ELEM ? kernel->operands[i].length : 1) *
                     sbp_dtype_bytes(kernel->operands[i].dtype);
    int64_t groups = sbp_gpu_row_groups(kernel, &shape, rows);
    if (bytes > 4 << 20 && groups < PROCESSORS)
        fail_msg("%s, kernel '%s': %lld groups for %lld bytes of %lld rows", path, kernel->name,
                 (long long)groups, (long long)bytes, (long long)rows);
    sum->busy += bytes > 4 << 20;
    sum->fewest = bytes > 4 << 20 && groups < sum->fewest ? groups : sum->fewest;
}

static void check_model(const char *path, sbp_dtype compute, bool compiles, totals *sum) {
    testing t = testing_open(1);
    compile_request request = compile_request_for(path, 8192, CHUNK, HEAD_CHUNK);
    sbp_program *model, *rows = sbp_program_create(t.arena, "rows");
    request.compute = compute;
    request.options.step = true;
    testing_check(&t, compile_model(t.arena, t.diag, &request, &model));
    for (int32_t k = 0; k < model->kernel_count; k++)
        (void)row_add_kernel(&t, rows, model->kernels[k]);
    for (int32_t k = 0; k < model->kernel_count && strstr(path, "Qwen3-8B"); k++)
        check_blocks(path, model->kernels[k], sum);
    if (!compiles) {
        testing_close(&t);
        return;
    }
    const char *archs = testing_sweep(0, 1) ? "sm_80,sm_90a" : compute == SBP_BF16 ? "sm_90a" : "sm_80";
    kernel_set set = kernels_compile(&t, rows, archs); /* fails where registers do not suffice */
    for (int32_t i = 0; i < set.count; i++) {
        sbp_cuda_resources r;
        testing_check(
            &t, sbp_cuda_resources_read(t.diag, &set.sources[i], sbp_cuda_object_log(&set.objects[i]), &r));
        sum->vectors += set.sources[i].key.variant == SBP_CUDA_VECTOR;
        sum->most_registers = r.registers > sum->most_registers ? r.registers : sum->most_registers;
        sum->stack_bytes += r.stack_bytes;
    }
    sum->kernels += set.count;
    assert_true(set.count >= testing_sweep(1, 2) * model->kernel_count);
    kernels_free(&set);
    testing_close(&t);
}

static void models(void **state) {
    (void)state;
    if (!can_compile)
        return;
    DIR *dir = opendir(CONFIGS);
    totals sum = {.fewest = INT64_MAX};
    int programs = 0;
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        char path[300];
        snprintf(path, sizeof path, CONFIGS "/%s", entry->d_name);
        if (!strstr(path, ".json") || (testing_sweep(0, 1) == 0 && !strstr(path, "SmolLM2") &&
                                       !strstr(path, "gemma-3-270m") && !strstr(path, "Qwen3-8B")))
            continue;
        for (int bf16 = 0; bf16 < 2; bf16++) {
            bool compiles = testing_sweep(bf16 != (strstr(path, "gemma") != NULL), 1) != 0;
            check_model(path, bf16 ? SBP_BF16 : SBP_F32, compiles, &sum);
            programs += compiles;
        }
    }
    closedir(dir);
    printf("  %d programs: %d kernels, %d by vectors, at most %d registers, %d bytes of stack\n", programs,
           sum.kernels, sum.vectors, sum.most_registers, sum.stack_bytes);
    assert_int_equal(programs, testing_sweep(3, 34));
    assert_int_equal(sum.stack_bytes, 0);
    printf("  Qwen3-8B: %d kernels have more than 4 MiB to move, in at least %lld groups\n", sum.busy,
           (long long)sum.fewest);
    assert_true(sum.busy > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(models)};
    return cmocka_run_group_tests_name("cuda row kernels", tests, look, NULL);
}
