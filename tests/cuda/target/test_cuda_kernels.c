/* test_cuda_kernels: every kernel of single commands compiles for every architecture, without spills or
 * warnings, and takes what the golden table says (tests/cuda/target/registers.txt; SBP_UPDATE_GOLDENS=1
 * writes it anew). */
#include "tests/cuda/target/kernel_testing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TABLE "tests/cuda/target/registers.txt"
#define ARCHS "sm_80,sm_90a"

static bool can_compile;

static int look(void **state) {
    (void)state;
    can_compile = kernels_can_compile();
    return 0;
}

static void single_commands(void **state) {
    (void)state;
    testing all = testing_open(1);
    sbp_text lines;
    int kernels = 0, compiled = 0;
    sbp_text_init(&lines, all.arena);
    for (int32_t i = 0; can_compile && i < kernel_case_count; i++) {
        testing t = testing_open(1);
        sbp_program *program = kernel_program(&t, &kernel_cases[i]);
        kernel_set set = kernels_compile(&t, program, ARCHS);
        if (!sbp_command_attention(kernel_cases[i].kind)) /* of those tests/cuda/attention has tables */
            kernels_describe(&t, &set, &lines);
        kernels += set.count;
        compiled += set.compiled;
        kernels_free(&set);
        testing_close(&t);
    }
    printf("  %d kernels, %d of them compiled now\n", kernels, compiled);
    if (can_compile) {
        assert_true(kernels >= 2 * kernel_case_count);
        kernels_compare(&all, lines.data, TABLE);
    }
    testing_close(&all);
}

static void all_archs(void **state) {
    (void)state;
    int kernels = 0;
    for (int32_t i = 0; can_compile && testing_sweep(0, 1) && i < kernel_case_count; i++) {
        testing t = testing_open(1);
        kernel_set set =
            kernels_compile(&t, kernel_program(&t, &kernel_cases[i]),
                            "sm_86,sm_87,sm_88,sm_89,sm_90,sm_100,sm_100a,sm_103,sm_110,sm_120,sm_121");
        kernels += set.count;
        kernels_free(&set);
        testing_close(&t);
    }
    printf("  %d kernels\n", kernels);
}

/* A text that is none: an internal error that names the kernel, with the compiler's words. */
static void broken_text(void **state) {
    (void)state;
    if (!can_compile)
        return;
    testing t = testing_open(1);
    sbp_cuda_nvrtc *nvrtc;
    sbp_cuda_object object;
    const char *text = "extern \"C\" __global__ void kernel(int *a) { *a = nothing; }";
    sbp_cuda_source source = {
        .key = {.kind = SBP_CMD_COPY, .bytes = 4}, .arch = {80, false}, .text = text, .bytes = strlen(text)};
    memset(source.key.dtypes, SBP_DTYPE_COUNT, sizeof source.key.dtypes);
    testing_check(&t, sbp_cuda_nvrtc_open(t.diag, &nvrtc));
    assert_int_equal(sbp_cuda_nvrtc_compile(nvrtc, t.diag, &source, &object), SBP_INTERNAL);
    assert_null(object.data);
    const char *message = sbp_diag_text(t.diag, SBP_ERROR);
    assert_non_null(strstr(message, "kernel copy.4 for sm_80"));
    assert_non_null(strstr(message, "\"nothing\" is undefined"));
    sbp_cuda_nvrtc_close(nvrtc);
    testing_close(&t);
}

/* What a log may say. */
static void logs(void **state) {
    (void)state;
    static const struct {
        const char *log;
        sbp_status status;
    } cases[] = {
        {"ptxas . 8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nUsed 40 registers, 1 "
         "barriers, "
         "128 bytes smem\n",
         SBP_OK},
        {"ptxas . 8 bytes stack frame, 4 bytes spill stores, 0 bytes spill loads\nUsed 40 registers\n",
         SBP_INTERNAL},
        {"ptxas . 8 bytes stack frame, 0 bytes spill stores, 12 bytes spill loads\nUsed 40 registers\n",
         SBP_INTERNAL},
        {"0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nUsed 40 registers\n(C7510) "
         "Potential "
         "Performance Loss: wgmma.mma_async instructions are serialized\n",
         SBP_INTERNAL},
        {"kernel.cu(3): warning #177-D: never used\n0 bytes stack frame, 0 bytes spill stores, 0 bytes spill "
         "loads\nUsed 40 registers\n",
         SBP_INTERNAL},
        {"", SBP_INTERNAL},
        {" registers", SBP_INTERNAL}};
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        testing t = testing_open(1);
        sbp_cuda_source source = {.key = {.kind = SBP_CMD_COPY}, .arch = {80, false}};
        sbp_cuda_resources r;
        assert_int_equal(sbp_cuda_resources_read(t.diag, &source, cases[i].log, &r), cases[i].status);
        if (cases[i].status == SBP_OK) {
            assert_int_equal(r.registers, 40);
            assert_int_equal(r.shared_bytes, 128);
            assert_int_equal(r.stack_bytes, 8);
        }
        testing_close(&t);
    }
}

static sbp_cuda_object object_with(const char *log) {
    sbp_cuda_object o = {.cubin_bytes = 1, .ptx_bytes = 1, .log_bytes = (int64_t)strlen(log) + 1};
    o.data = calloc(1, (size_t)(2 + o.log_bytes));
    assert_non_null(o.data);
    strcpy(o.data + 2, log);
    return o;
}

/* Each variant of attention's backward in turn has one step that another NVRTC makes worse: all steps of that
 * variant and architecture go, and no others, with one warning; the plain one has no other to fall back on. A
 * log of another wording says nothing against a kernel: it stays, with a warning. */
static void faulty_variants(void **state) {
    (void)state;
    static const kernel_case attention = {.kind = SBP_CMD_ATTN_BWD,
                                          .dtypes = {SBP_BF16, SBP_F32, SBP_F32, SBP_BF16, SBP_BF16, SBP_BF16,
                                                     SBP_BF16, SBP_F32, SBP_BF16, SBP_I32, SBP_I32, SBP_I32},
                                          .head = 64};
    static const char
        good[] = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nUsed 40 registers\n",
        bad[] = "0 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads\nUsed 40 registers\n",
        other[] = "40 regs, nothing spilled\n";
    sbp_cuda_arch archs[SBP_CUDA_ARCHS];
    int32_t arch_count, dropped_any = 0;
    assert_true(sbp_cuda_archs_parse(ARCHS, archs, &arch_count));
    for (int32_t k = 0, count = 1; k < 2 * count; k++) {
        const int32_t faulty = k / 2;
        const bool readable = k % 2 == 0;
        testing t = testing_open(1);
        sbp_cuda_source *sources;
        testing_check(&t, sbp_cuda_sources(t.arena, t.diag, kernel_program(&t, &attention), archs, arch_count,
                                           &sources, &count));
        sbp_cuda_object *objects = calloc((size_t)count, sizeof *objects);
        assert_non_null(objects);
        for (int32_t i = 0; i < count; i++)
            objects[i] = object_with(i != faulty ? good : readable ? bad : other);
        sbp_cuda_drop_faulty(t.diag, sources, objects, count);
        const sbp_cuda_source *f = &sources[faulty];
        for (int32_t i = 0; i < count; i++) {
            bool same = sources[i].key.variant == f->key.variant && sources[i].arch.number == f->arch.number;
            bool dropped = same && readable && f->key.variant != SBP_CUDA_PLAIN;
            assert_int_equal(objects[i].data == NULL, dropped);
            dropped_any += dropped;
            free(objects[i].data);
        }
        const char *text = sbp_diag_text(t.diag, SBP_WARNING);
        assert_non_null(
            strstr(text, readable ? "registers do not suffice" : "log does not say what it takes"));
        assert_int_equal(strstr(text, "does without it") != NULL,
                         readable && f->key.variant != SBP_CUDA_PLAIN);
        free(objects);
        testing_close(&t);
    }
    assert_true(dropped_any > 4); /* steps of mma for two architectures, of wgmma */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(logs), cmocka_unit_test(broken_text),
                                       cmocka_unit_test(faulty_variants), cmocka_unit_test(single_commands),
                                       cmocka_unit_test(all_archs)};
    return cmocka_run_group_tests_name("cuda kernels", tests, look, NULL);
}
