/* test_attention_accesses.c: how attention's kernels meet memory, counted by the PTX machine: rows of banks
 * of shared memory that an access takes, and sectors of global memory, of each kind of instruction, as
 * multiples of the least that its bytes need. No access to shared memory takes more, and none that brings
 * tiles.
 *
 * Golden: accesses.txt (SBP_UPDATE_GOLDENS=1 with SBP_TEST_ALL=1). SBP_TEST_ALL=1: all sizes of heads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/cuda/attention/golden.h"
#include "tests/cuda/attention/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EDGES 1.03 /* heads of 96: a warp's part of a row may end within a sector */
#define TABLE "tests/cuda/attention/accesses.txt"

/* Accesses of all lines of one kind: what they took and the least. */
typedef struct accesses {
    unsigned long long took, least;
} accesses;

static accesses count(const char *counts, const char *instruction, const char *memory, const char *format) {
    char *copy = strdup(counts), *rest = NULL;
    accesses all = {0, 0};
    assert_non_null(copy);
    for (char *line = strtok_r(copy, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        unsigned long long requests, took, least;
        const char *at = strstr(line, memory), *name = strstr(line, instruction);
        if (at && name && sscanf(at, format, &requests, &took, &least) == 3) {
            all.took += took;
            all.least += least;
        }
    }
    free(copy);
    return all;
}

/* most: the largest factor that is right; 0: any. */
static int add(sbp_text *out, const char *counts, const char *instruction, bool shared, double most) {
    accesses a =
        shared ? count(counts, instruction, " shared ", " shared %llu requests, %llu wavefronts (least %llu)")
               : count(counts, instruction, " global ", " global %llu requests, %llu sectors (least %llu)");
    if (a.least == 0)
        return 0;
    sbp_text_add(out, " %s %.2f", instruction, (double)a.took / (double)a.least);
    return most > 0 && (double)a.took > most * (double)a.least;
}

/* A line for each step; returns how many of its numbers should be 1 and are not. */
static int describe(sbp_cuda_variant variant, const char *arch, bool backward, int32_t d, sbp_text *out) {
    static const char *const shared[] = {"ldmatrix", "cp.async.cg", "ld.shared", "st.shared"},
                             *const global[] = {"cp.async.cg", "ld.global", "st.global"};
    attention_case c = {.attrs = {.heads = 2, .kv_heads = 1, .d_qk = d, .d_v = d, .scale = 0.1},
                        .total = 200,
                        .rows = 150,
                        .wide = true,
                        .dtype = SBP_BF16,
                        .index = SBP_I32,
                        .backward = backward,
                        .seed = 1};
    attention_run run = {.variant = variant, .arch = kernel_arch(arch), .options.seed = 1, .counts = true};
    int wrong = 0;
    attention_case_make(&c);
    sbp_gpu_key key = attention_case_key(&c);
    key.variant = (uint8_t)variant;
    if (!attention_run_case(&run, &c))
        fail_msg("%s", run.text);
    for (int32_t i = 0; i < sbp_cuda_attention_steps(&key, run.arch); i++) {
        char name[SBP_GPU_NAME];
        key.step = (uint8_t)i;
        kernel_name(&key, run.arch, name);
        sbp_text_add(out, "%s: shared", name);
        for (int k = 0; k < SBP_COUNT(shared); k++)
            wrong += add(out, run.step_counts[i], shared[k], true, 1);
        sbp_text_add(out, "; global");
        for (int k = 0; k < SBP_COUNT(global); k++)
            wrong += add(out, run.step_counts[i], global[k], false, k == 0 ? EDGES : 0);
        sbp_text_add(out, "\n");
        free(run.step_counts[i]);
    }
    attention_case_free(&c);
    return wrong;
}

static void test_accesses(void **state) {
    (void)state;
    static const int32_t sizes[] = {128, 80, 64, 96, 256, 512};
    if (!kernels_open())
        skip();
    sbp_arena *arena = sbp_arena_create();
    sbp_text lines;
    int wrong = 0;
    assert_non_null(arena);
    sbp_text_init(&lines, arena);
    for (int i = 0; i < (golden_everything() ? SBP_COUNT(sizes) : 2); i++)
        for (int backward = 0; backward < 2; backward++) {
            wrong += describe(SBP_CUDA_MMA, "sm_80", backward, sizes[i], &lines);
            if (sizes[i] <= 128)
                wrong += describe(SBP_CUDA_WGMMA, "sm_90a", backward, sizes[i], &lines);
        }
    attention_run_end();
    print_message("%s", lines.data);
    wrong += golden_check(TABLE, &lines, golden_everything());
    sbp_arena_destroy(arena);
    kernels_close();
    assert_int_equal(wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_accesses)};
    return cmocka_run_group_tests_name("how attention's kernels meet memory", tests, NULL, NULL);
}
