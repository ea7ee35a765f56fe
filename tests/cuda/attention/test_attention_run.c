/* test_attention_run.c: attention's kernels, executed by the PTX machine, against double precision. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/common/sweep.h"
#include "tests/cuda/attention/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A line of a table of cases; `all`: only under SBP_TEST_ALL. */
typedef struct setting {
    attention_case c;
    bool all;
    bool half; /* in fp16 too without it */
} setting;

#define HEADS(h, k, qk, v) .attrs.heads = h, .attrs.kv_heads = k, .attrs.d_qk = qk, .attrs.d_v = v

static const setting plain_settings[] = {
    {.c = {HEADS(3, 1, 20, 7), .attrs.scale = 0.2, .attrs.window = 9, .total = 90, .rows = 37,
           .documents = true, .dtype = SBP_F32}},
    {.c = {HEADS(2, 2, 16, 33), .attrs.scale = 0.25, .attrs.softcap = 3, .total = 70, .rows = 70,
           .documents = true, .dtype = SBP_F64, .layout = CASE_ODD, .index = SBP_I64}},
    {.c = {HEADS(4, 2, 40, 40), .attrs.scale = 0.2, .total = 75, .rows = 31, .documents = true,
           .dtype = SBP_BF16, .wide = true, .layout = CASE_FUSED}},
    {.c = {HEADS(2, 1, 64, 64), .attrs.scale = -0.125, .total = 50, .rows = 20, .dtype = SBP_F16,
           .all_keys = true}},
};

/* 16 bits, aligned: for both ways of tensor cores. */
static const setting tile_settings[] = {
    {.c = {HEADS(2, 1, 128, 128), .attrs.scale = 0.08, .total = 300, .rows = 150, .documents = true,
           .wide = true},
     .half = true},
    {.c = {HEADS(2, 2, 64, 64), .attrs.scale = 0.12, .attrs.window = 70, .total = 333, .rows = 333,
           .wide = true, .layout = CASE_FUSED, .work = true}},
    {.c = {HEADS(3, 1, 80, 80), .attrs.scale = 0.1, .attrs.softcap = 2, .total = 200, .rows = 77,
           .documents = true, .wide = true, .layout = CASE_FUSED, .index = SBP_I64}},
    {.c = {HEADS(2, 1, 64, 64), .attrs.scale = -0.125, .total = 150, .rows = 150, .documents = true,
           .all_keys = true},
     .half = true},
    {.c = {HEADS(4, 2, 96, 96), .attrs.scale = 0.1, .attrs.window = 100, .attrs.softcap = 5, .total = 260,
           .rows = 129, .documents = true, .wide = true, .all_keys = true}},
    {.c = {HEADS(1, 1, 128, 128), .attrs.scale = 0, .total = 65, .rows = 1, .wide = true}},
    {.c = {HEADS(2, 1, 128, 128), .attrs.scale = 0.08, .total = 700, .rows = 260, .documents = true,
           .wide = true},
     .all = true},
    {.c = {HEADS(2, 1, 64, 64), .attrs.scale = 0.3, .attrs.window = 1, .total = 100, .rows = 100,
           .wide = true},
     .all = true},
    {.c = {HEADS(6, 2, 64, 64), .attrs.scale = 0.3, .total = 520, .rows = 140, .wide = true,
           .all_keys = true},
     .all = true},
};

/* For mma alone: heads that wgmma has no kernels for. */
static const setting mma_settings[] = {
    {.c = {HEADS(1, 1, 256, 256), .attrs.scale = 0.06, .total = 150, .rows = 90, .documents = true,
           .wide = true}},
    {.c = {HEADS(2, 1, 192, 128), .attrs.scale = 0.07, .total = 130, .rows = 70, .documents = true,
           .wide = true}},
    {.c = {HEADS(2, 1, 512, 512), .attrs.scale = 0.04, .total = 90, .rows = 70, .documents = true,
           .wide = true}},
    {.c = {HEADS(4, 2, 512, 512), .attrs.scale = 0.05, .attrs.window = 40, .attrs.softcap = 4, .total = 190,
           .rows = 101, .documents = true, .wide = true, .all_keys = true},
     .all = true},
    {.c = {HEADS(2, 1, 272, 336), .attrs.scale = 0.06, .total = 120, .rows = 80, .documents = true},
     .all = true},
    {.c = {HEADS(1, 1, 320, 192), .attrs.scale = -0.05, .total = 100, .rows = 100, .wide = true,
           .layout = CASE_FUSED},
     .all = true},
    {.c = {HEADS(2, 1, 16, 32), .attrs.scale = 0.3, .total = 200, .rows = 100, .documents = true,
           .wide = true},
     .all = true},
    {.c = {HEADS(1, 1, 128, 256), .attrs.scale = 0.08, .total = 100, .rows = 100, .documents = true},
     .all = true},
    {.c = {HEADS(2, 2, 112, 48), .attrs.scale = 0.1, .total = 140, .rows = 100, .documents = true,
           .wide = true},
     .all = true},
};

static void require_nvrtc(void) {
    if (!kernels_open())
        skip();
}

static void check(const setting *s, int index, bool backward, sbp_cuda_variant variant, const char *arch,
                  uint64_t seed) {
    attention_case c = s->c;
    attention_run run = {.variant = variant, .arch = kernel_arch(arch), .options.seed = seed};
    char name[SBP_GPU_NAME];
    bool right;
    c.backward = backward;
    c.seed = seed + (uint64_t)index;
    if (c.index != SBP_I64)
        c.index = SBP_I32;
    attention_case_make(&c);
    sbp_gpu_key key = attention_case_key(&c);
    key.variant = (uint8_t)variant;
    kernel_name(&key, run.arch, name);
    if (!kernel_wanted(name)) {
        attention_case_free(&c);
        return;
    }
    right = attention_run_case(&run, &c);
    print_message("%s, case %d:", name, index);
    for (int32_t i = 0; i < c.count; i++)
        if (c.operands[i].expected)
            print_message(" %.2g", c.operands[i].difference);
    print_message("\n");
    attention_case_free(&c);
    if (!right)
        fail_msg("%s, case %d: %s", name, index, run.text);
}

static void check_settings(const setting *settings, int count, sbp_dtype dtype, sbp_cuda_variant variant,
                           const char *arch) {
    require_nvrtc();
    for (int i = 0; i < count; i++)
        for (int backward = 0; backward < 2; backward++) {
            setting s = settings[i];
            bool wanted = testing_all() || (!s.all && (dtype != SBP_F16 || s.half));
            /* what tensor cores of both kinds do: each direction of a case by one of them, of the
             * first by both */
            if (settings == tile_settings && i > 0 && !testing_all() &&
                (i % 2 == backward) == (variant == SBP_CUDA_MMA))
                continue;
            if (dtype != SBP_F32)
                s.c.dtype = dtype;
            for (uint64_t seed = 1; wanted && seed <= (testing_all() ? 4 : 1); seed++)
                check(&s, i, backward, variant, arch, seed);
        }
    attention_run_end();
}

static void test_plain(void **state) {
    (void)state;
    check_settings(plain_settings, SBP_COUNT(plain_settings), SBP_F32, SBP_CUDA_PLAIN, "sm_80");
}

static void test_mma(void **state) {
    (void)state;
    check_settings(tile_settings, SBP_COUNT(tile_settings), SBP_BF16, SBP_CUDA_MMA, "sm_80");
    check_settings(mma_settings, SBP_COUNT(mma_settings), SBP_BF16, SBP_CUDA_MMA, "sm_80");
    check_settings(tile_settings, SBP_COUNT(tile_settings), SBP_F16, SBP_CUDA_MMA, "sm_80");
    check_settings(mma_settings, SBP_COUNT(mma_settings), SBP_F16, SBP_CUDA_MMA, "sm_80");
    if (testing_all()) { /* other tiles: less shared memory */
        check_settings(tile_settings, SBP_COUNT(tile_settings), SBP_BF16, SBP_CUDA_MMA, "sm_86");
        check_settings(mma_settings, SBP_COUNT(mma_settings), SBP_BF16, SBP_CUDA_MMA, "sm_86");
        check_settings(mma_settings, SBP_COUNT(mma_settings), SBP_BF16, SBP_CUDA_MMA, "sm_90a");
    }
}

static void test_wgmma(void **state) {
    (void)state;
    check_settings(tile_settings, SBP_COUNT(tile_settings), SBP_BF16, SBP_CUDA_WGMMA, "sm_90a");
    check_settings(tile_settings, SBP_COUNT(tile_settings), SBP_F16, SBP_CUDA_WGMMA, "sm_90a");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_plain), cmocka_unit_test(test_mma),
                                       cmocka_unit_test(test_wgmma)};
    return cmocka_run_group_tests_name("attention's kernels on the PTX machine", tests, NULL, NULL);
}
