/* test_attention_build.c: attention's kernels compile for every architecture without warnings, without
 * spilled registers and without products that the compiler had to put in a row. What they take:
 * registers.txt, which SBP_UPDATE_GOLDENS=1 writes anew. SBP_TEST_ALL=1: all sizes and architectures, of
 * which the table has a few. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/cuda/attention/golden.h"
#include "tests/cuda/attention/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TABLE "tests/cuda/attention/registers.txt"
/* How many of the first entries of archs and sizes the table has. */
enum { TABLE_ARCHS = 2, TABLE_SIZES = 4 };

static int failed;

/* lines: of the table; NULL: it does not have this one. */
static void check_kernel(const sbp_gpu_key *key, sbp_cuda_arch arch, sbp_text *lines) {
    char name[SBP_GPU_NAME], *text;
    const char *message;
    sbp_cuda_object object;
    sbp_cuda_resources resources = {0};
    kernel_name(key, arch, name);
    if (!kernel_wanted(name))
        return;
    text = kernel_text(key, arch);
    bool right = kernel_compile(text, key, arch, &object, &resources, &message);
    print_message("%s: %d registers%s%s\n", name, (int)resources.registers, right ? "" : ": ", message);
    if (lines)
        sbp_text_add(lines, "%-46s %3d registers %5d B shared %3d B stack\n", name, (int)resources.registers,
                     (int)resources.shared_bytes, (int)resources.stack_bytes);
    failed += !right || resources.stack_bytes != 0 || resources.spill_store_bytes != 0 ||
              resources.spill_load_bytes != 0 || strstr(message, "warning");
    free(object.data);
    free(text);
}

static void check_all(bool backward, sbp_cuda_variant variant, sbp_dtype dtype, int32_t d_qk, int32_t d_v,
                      sbp_cuda_arch arch, sbp_text *lines) {
    sbp_gpu_key key = kernel_key(backward, variant, d_qk, d_v);
    for (int i = 0; i < SBP_COUNT(key.dtypes); i++)
        key.dtypes[i] = key.dtypes[i] == SBP_BF16 ? (uint8_t)dtype : key.dtypes[i];
    int32_t steps = sbp_cuda_attention_steps(&key, arch);
    if (variant == SBP_CUDA_WGMMA ? arch.number != 90 : steps == 0)
        assert_int_equal(steps, 0);
    for (int32_t i = 0; i < steps; i++) {
        key.step = (uint8_t)i;
        check_kernel(&key, arch, lines);
    }
}

static const char *const archs[] = {"sm_80", "sm_90a", "sm_86", "sm_89", "sm_100", "sm_120"};
static const int32_t sizes[][2] = {{128, 128}, {64, 64},   {256, 256}, {512, 512}, {80, 80},
                                   {96, 96},   {192, 128}, {16, 32},   {128, 256}, {272, 336},
                                   {320, 192}, {512, 256}, {384, 384}, {496, 496}};

static void test_build(void **state) {
    (void)state;
    if (!kernels_open())
        skip();
    sbp_arena *arena = sbp_arena_create();
    sbp_text lines;
    assert_non_null(arena);
    sbp_text_init(&lines, arena);
    for (int a = 0; a < (golden_everything() ? SBP_COUNT(archs) : TABLE_ARCHS); a++)
        for (int s = 0; s < (golden_everything() ? SBP_COUNT(sizes) : TABLE_SIZES); s++)
            for (int backward = 0; backward < 2; backward++)
                for (int v = SBP_CUDA_PLAIN; v < SBP_CUDA_VARIANTS; v++)
                    for (int half = 0; half < (golden_everything() ? 2 : 1); half++)
                        if (v != SBP_CUDA_PLAIN || s == 0)
                            check_all(backward, (sbp_cuda_variant)v, half ? SBP_F16 : SBP_BF16, sizes[s][0],
                                      sizes[s][1], kernel_arch(archs[a]),
                                      a < TABLE_ARCHS && s < TABLE_SIZES && !half ? &lines : NULL);
    failed += golden_check(TABLE, &lines, true);
    sbp_arena_destroy(arena);
    kernels_close();
    assert_int_equal(failed, 0);
}

/* With SBP_CUDA_DEBUG=waits the kernels that wait end when they wait too long, and take no more registers
 * than there are; without, nothing of it is in them. */
static void test_bounded_waits(void **state) {
    (void)state;
    int bounded = 0;
    if (!kernels_open())
        skip();
    for (int i = 0; i < 4; i++) {
        sbp_gpu_key key = kernel_key(i & 1, SBP_CUDA_WGMMA, i & 2 ? 128 : 64, i & 2 ? 128 : 64);
        sbp_cuda_arch arch = kernel_arch("sm_90a");
        int32_t steps = sbp_cuda_attention_steps(&key, arch);
        for (int32_t step = 0; step < steps; step++) {
            sbp_cuda_resources resources;
            sbp_cuda_object object;
            const char *message;
            key.step = (uint8_t)step;
            char *usual = kernel_text(&key, arch);
            setenv("SBP_CUDA_DEBUG", "waits", 1);
            char *text = kernel_text(&key, arch);
            unsetenv("SBP_CUDA_DEBUG");
            assert_null(strstr(usual, "#define BOUNDED_WAITS"));
            if (!kernel_compile(text, &key, arch, &object, &resources, &message))
                fail_msg("%s", message);
            bounded += strstr(sbp_cuda_object_ptx(&object), "trap;") != NULL;
            free(object.data);
            free(usual);
            free(text);
        }
    }
    kernels_close();
    assert_int_equal(bounded, 4); /* forward and backward of both sizes */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_build), cmocka_unit_test(test_bounded_waits)};
    return cmocka_run_group_tests_name("attention's kernels are built", tests, NULL, NULL);
}
