/* test_cuda_abi: what the two halves of the CUDA backend agree on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "backends/cuda/abi.h"

static void archs(void **state) {
    (void)state;
    static const struct {
        const char *text, *sorted; /* NULL: refused */
    } cases[] = {
        {"sm_80", "sm_80"},
        {"sm_90a,sm_80", "sm_80 sm_90a"},
        {"sm_120,sm_90a,sm_90,sm_90a", "sm_90 sm_90a sm_120"},
        {"sm_121a", "sm_121a"},
        {"", NULL},
        {"sm_80,", NULL},
        {",sm_80", NULL},
        {"sm_8", NULL},
        {"sm_1200", NULL},
        {"sm_080", NULL},
        {"sm_90b", NULL},
        {"sm_90aa", NULL},
        {"sm_a", NULL},
        {"compute_80", NULL},
        {"SM_80", NULL},
        {"sm_80 sm_90", NULL},
        {"sm_-80", NULL},
        {"sm_80,sm_81,sm_82,sm_83,sm_84,sm_85,sm_86,sm_87,sm_88,sm_89,sm_90,sm_91,sm_92,sm_93,sm_94,sm_95,"
         "sm_96",
         NULL}};
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        sbp_cuda_arch list[SBP_CUDA_ARCHS];
        int32_t count;
        char text[256] = "", one[16];
        bool good = sbp_cuda_archs_parse(cases[i].text, list, &count);
        if (good != (cases[i].sorted != NULL))
            fail_msg("'%s' is %staken", cases[i].text, good ? "" : "not ");
        for (int32_t k = 0; good && k < count; k++) {
            sbp_cuda_arch_text(list[k], one);
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", k > 0 ? " " : "", one);
        }
        if (good)
            assert_string_equal(text, cases[i].sorted);
    }
}

static void choose(void **state) {
    (void)state;
    static const struct {
        const char *list;
        int32_t device;
        const char *best; /* NULL: none */
    } cases[] = {{"sm_80,sm_86,sm_90a", 80, "sm_80"},
                 {"sm_80,sm_86,sm_90a", 89, "sm_86"},
                 {"sm_80,sm_86,sm_90a", 90, "sm_90a"},
                 {"sm_80,sm_90", 90, "sm_90"},
                 {"sm_90,sm_90a", 90, "sm_90a"},
                 {"sm_80,sm_90a", 100, NULL},
                 {"sm_100", 103, "sm_100"},
                 {"sm_100a", 103, NULL},
                 {"sm_80", 75, NULL},
                 {"sm_120", 121, "sm_120"},
                 {"sm_100,sm_120", 110, NULL},
                 {"sm_86", 80, NULL}};
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        sbp_cuda_arch list[SBP_CUDA_ARCHS];
        int32_t count;
        char text[16] = "none";
        assert_true(sbp_cuda_archs_parse(cases[i].list, list, &count));
        int32_t best = sbp_cuda_arch_choose(list, count, cases[i].device);
        if (best >= 0)
            sbp_cuda_arch_text(list[best], text);
        assert_string_equal(text, cases[i].best ? cases[i].best : "none");
    }
}

static void tags(void **state) {
    (void)state;
    for (int32_t number = 80; number < 130; number++)
        for (int bits = 0; bits < 4; bits++) {
            sbp_cuda_arch in = {.number = number, .specific = bits & 1}, out;
            bool ptx;
            sbp_cuda_tag_read(sbp_cuda_tag(in, bits & 2), &out, &ptx);
            assert_int_equal(out.number, number);
            assert_int_equal(out.specific, in.specific);
            assert_int_equal(ptx, (bits & 2) != 0);
        }
}

/* Every launch covers every element, whatever kernels do with strides; blocks and grids are allowed ones. */
static void launches(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {
        {1, 1, 1},       {1, 3, 3},       {300, 1, 1},           {300, 1, 7},
        {5, 4096, 4096}, {5, 4095, 4095}, {5, 4096, 5000},       {70000, 17, 17},
        {70000, 17, 32}, {0, 5, 5},       {1000000, 4096, 4096}, {3, 0, 0}};
    int pieces = 0, units = 0;
    for (int i = 0; i < SBP_COUNT(sizes); i++)
        for (int shift = 0; shift < 2; shift++) {
            const sbp_command command = {.kind = SBP_CMD_COPY};
            sbp_span spans[2] = {{.space = SBP_DEVICE, .dtype = SBP_BF16, .offset = 2 * shift}};
            spans[0].rows = sizes[i][0];
            spans[0].cols = sizes[i][1];
            spans[0].stride = sizes[i][2];
            spans[1] = spans[0];
            spans[1].offset += 256;
            const sbp_dispatch dispatch = {.command = &command, .spans = spans, .span_count = 2};
            const uint64_t addresses[SBP_SPACE_COUNT] = {1 << 20};
            const sbp_cuda_machine machine = {.arch = {80, false}, .processors = 108};
            sbp_gpu_args args;
            sbp_cuda_step steps[SBP_CUDA_STEPS];
            sbp_gpu_args_fill(&dispatch, addresses, 0, &args);
            int32_t count = sbp_cuda_steps(&dispatch, &machine, &args, steps);
            assert_int_equal(count, sizes[i][0] > 0 && sizes[i][1] > 0 ? 1 : 0);
            if (count == 0)
                continue;
            uint32_t threads = steps[0].block[0] * steps[0].block[1] * steps[0].block[2];
            assert_true(threads >= 32 && threads <= 1024);
            assert_true(steps[0].grid[0] >= 1 && steps[0].grid[1] >= 1 && steps[0].grid[1] <= 65535);
            for (int k = 0; k < 2; k++) {
                const sbp_gpu_operand *o = &args.operands[k];
                assert_int_equal((int64_t)o->rows * o->cols, sizes[i][0] * sizes[i][1]);
                assert_int_equal(o->address, addresses[0] + (uint64_t)spans[k].offset);
                bool aligned = o->address % 16 == 0 && (o->rows == 1 || o->stride % 8 == 0);
                assert_true(aligned || args.ints[8] == 0);
            }
            pieces += args.operands[0].rows != sizes[i][0];
            units += args.ints[8];
        }
    assert_true(pieces >= 4 && units >= 4);
}

static bool has_up_to(const void *owner, const sbp_gpu_key *key) {
    return key->variant <= *(const uint8_t *)owner;
}

/* A plan that lacks a variant runs the next best; one without any but the plain that. */
static void missing_variants(void **state) {
    (void)state;
    static const uint8_t most[] = {SBP_CUDA_WGMMA, SBP_CUDA_MMA, SBP_CUDA_VECTOR, SBP_CUDA_PLAIN};
    static const uint8_t taken[] = {SBP_CUDA_WGMMA, SBP_CUDA_MMA, SBP_CUDA_PLAIN, SBP_CUDA_PLAIN};
    const sbp_command command = {
        .kind = SBP_CMD_ATTN_FWD,
        .u.attention = {.heads = 2, .kv_heads = 1, .d_qk = 64, .d_v = 64, .scale = 1}};
    sbp_span spans[12];
    for (int i = 0; i < SBP_COUNT(spans); i++)
        spans[i] = (sbp_span){.space = SBP_SPACE_COUNT, .dtype = SBP_BF16};
    static const int64_t columns[] = {128, 2, 128, 64, 64, 1, 1, 1}; /* o lse q k v first shared own */
    static const sbp_dtype dtypes[] = {SBP_BF16, SBP_F32, SBP_BF16, SBP_BF16,
                                       SBP_BF16, SBP_I32, SBP_I32,  SBP_I32};
    for (int i = 0; i < SBP_COUNT(columns); i++)
        spans[i] = (sbp_span){.space = SBP_DEVICE,
                              .dtype = dtypes[i],
                              .offset = i << 20,
                              .rows = 256,
                              .cols = columns[i],
                              .stride = columns[i]};
    const sbp_dispatch dispatch = {.command = &command, .spans = spans, .span_count = 8};
    const uint64_t addresses[SBP_SPACE_COUNT] = {1 << 20};
    for (int i = 0; i < SBP_COUNT(most); i++) {
        const sbp_cuda_machine machine = {.arch = {90, true},
                                          .processors = 132,
                                          .variant = SBP_CUDA_VARIANTS,
                                          .has = has_up_to,
                                          .owner = &most[i]};
        sbp_gpu_args args;
        sbp_cuda_step steps[SBP_CUDA_STEPS];
        sbp_gpu_args_fill(&dispatch, addresses, 0, &args);
        int32_t count = sbp_cuda_steps(&dispatch, &machine, &args, steps);
        assert_true(count > 0);
        assert_int_equal(steps[0].key.variant, taken[i]);
    }
}

static void products(void **state) {
    (void)state;
    const sbp_dtype none = SBP_DTYPE_COUNT;
    const sbp_dtype has[][5] = {{SBP_BF16, SBP_BF16, SBP_BF16, none, none},
                                {SBP_F32, SBP_BF16, SBP_BF16, SBP_F32, none},
                                {SBP_F32, SBP_F32, SBP_F32, SBP_F32, SBP_F32},
                                {SBP_F64, SBP_F64, SBP_F64, SBP_F64, none},
                                {SBP_BF16, SBP_BF16, SBP_BF16, none, SBP_BF16}};
    const sbp_dtype lacks[][5] = {
        {SBP_F32, SBP_BF16, SBP_F32, none, none},      {SBP_BF16, SBP_F32, SBP_F32, none, none},
        {SBP_F32, SBP_BF16, SBP_BF16, SBP_BF16, none}, {SBP_BF16, SBP_BF16, SBP_BF16, none, SBP_F32},
        {SBP_F64, SBP_F32, SBP_F32, none, none},       {SBP_F64, SBP_F64, SBP_F64, none, SBP_F64},
        {SBP_F32, SBP_I8, SBP_I8, none, none}};
    for (int i = 0; i < SBP_COUNT(has); i++)
        assert_true(sbp_cuda_blas_has(has[i]));
    for (int i = 0; i < SBP_COUNT(lacks); i++)
        assert_false(sbp_cuda_blas_has(lacks[i]));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(archs),    cmocka_unit_test(choose),           cmocka_unit_test(tags),
        cmocka_unit_test(launches), cmocka_unit_test(missing_variants), cmocka_unit_test(products)};
    return cmocka_run_group_tests_name("cuda abi", tests, NULL, NULL);
}
