/* test_attention_build.c: attention's kernels compile for every architecture without warnings, without
 * spilled registers and without products that the compiler had to put in a row. Prints registers and the time
 * that compilation took. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/cuda/attention/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool everything(void) {
    const char *all = getenv("SBP_TEST_ALL");
    return all && *all && strcmp(all, "0") != 0;
}

static int failed;

static void check_kernel(const sbp_gpu_key *key, sbp_cuda_arch arch) {
    char name[SBP_GPU_NAME], *text = kernel_text(key, arch);
    const char *message;
    sbp_cuda_object object;
    sbp_cuda_resources resources = {0};
    kernel_name(key, arch, name);
    bool right = kernel_compile(text, key, arch, &object, &resources, &message);
    print_message("%s: %d registers%s%s\n", name, (int)resources.registers, right ? "" : ": ", message);
    failed += !right || resources.spill_store_bytes != 0 || resources.spill_load_bytes != 0 ||
              strstr(message, "warning");
    free(object.data);
    free(text);
}

static void check_all(bool backward, sbp_cuda_variant variant, sbp_dtype dtype, int32_t d_qk, int32_t d_v,
                      sbp_cuda_arch arch) {
    sbp_gpu_key key = kernel_key(backward, variant, d_qk, d_v);
    for (int i = 0; i < SBP_COUNT(key.dtypes); i++)
        key.dtypes[i] = key.dtypes[i] == SBP_BF16 ? (uint8_t)dtype : key.dtypes[i];
    int32_t steps = sbp_cuda_attention_steps(&key, arch);
    if (variant == SBP_CUDA_WGMMA ? arch.number != 90 : steps == 0)
        assert_int_equal(steps, 0);
    for (int32_t i = 0; i < steps; i++) {
        key.step = (uint8_t)i;
        check_kernel(&key, arch);
    }
}

static const char *const archs[] = {"sm_80", "sm_90a", "sm_86", "sm_89", "sm_100", "sm_120"};
static const int32_t sizes[][2] = {{128, 128}, {64, 64},   {256, 256}, {80, 80},
                                   {96, 96},   {192, 128}, {16, 32},   {128, 256}};

static void test_build(void **state) {
    (void)state;
    if (!kernels_open())
        skip();
    int arch_count = everything() ? SBP_COUNT(archs) : 2, size_count = everything() ? SBP_COUNT(sizes) : 3;
    for (int a = 0; a < arch_count; a++)
        for (int s = 0; s < size_count; s++)
            for (int backward = 0; backward < 2; backward++)
                for (int v = SBP_CUDA_PLAIN; v < SBP_CUDA_VARIANTS; v++)
                    for (int half = 0; half < (everything() ? 2 : 1); half++)
                        if (v != SBP_CUDA_PLAIN || s == 0)
                            check_all(backward, (sbp_cuda_variant)v, half ? SBP_F16 : SBP_BF16, sizes[s][0],
                                      sizes[s][1], kernel_arch(archs[a]));
    kernels_close();
    assert_int_equal(failed, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_build)};
    return cmocka_run_group_tests_name("attention's kernels are built", tests, NULL, NULL);
}
