/* Counts: what a kernel written for it executes, to the number: classes, wavefronts with and without
 * conflicts of banks, sectors of accesses that are neighbours and that are not. */
#include "tests/ptx/ptx.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

static const char kernel[] =
    ".version 9.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 p)\n{\n"
    ".reg .b32 %r<12>;\n.reg .b64 %rd<8>;\n.reg .f32 %f<4>;\n.shared .align 16 .b8 s[8192];\n"
    "ld.param.u64 %rd1, [p];\n" // line 10
    "mov.u32 %r1, %tid.x;\n"
    "mov.u32 %r2, s;\n"
    "mad.lo.u32 %r3, %r1, 4, %r2;\n"
    "st.shared.u32 [%r3], %r1;\n" // 14: no conflict
    "mad.lo.u32 %r4, %r1, 128, %r2; bar.warp.sync -1;\n"
    "st.shared.u32 [%r4], %r1;\n" // 16: all in one bank
    "mad.lo.u32 %r5, %r1, 8, %r2; bar.warp.sync -1;\n"
    "st.shared.u32 [%r5], %r1;\n" // 18: two in a bank
    "mul.wide.u32 %rd2, %r1, 4;\n"
    "add.u64 %rd3, %rd1, %rd2;\n"
    "ld.global.u32 %r6, [%rd3];\n"   // 21: 4 sectors
    "ld.global.u32 %r6, [%rd3+4];\n" // 22: 5 sectors
    "mul.wide.u32 %rd2, %r1, 128;\n"
    "add.u64 %rd4, %rd1, %rd2;\n"
    "ld.global.u32 %r6, [%rd4];\n" // 25: 32 sectors
    "ld.global.u32 %r6, [%rd1];\n" // 26: 1 sector
    "cvt.rn.f32.u32 %f1, %r1;\n"
    "fma.rn.f32 %f2, %f1, %f1, %f1;\n"
    "ex2.approx.f32 %f3, %f2;\n"
    "bar.sync 0;\n"
    "ret;\n}\n";

static const char expected[] = "launches 2\nwarp instructions 48\n"
                               "  integer, logic, moves                  18\n"
                               "  float arithmetic                        2\n"
                               "  approximations (MUFU)                   2\n"
                               "  conversions                             2\n"
                               "  branches                                2\n"
                               "  global loads and stores                 8\n"
                               "  shared loads and stores                 6\n"
                               "  parameter and constant loads            2\n"
                               "  barriers, fences, waits                 6\n"
                               "k line 14 st.shared.u32: shared 2 requests, 2 wavefronts (least 2)\n"
                               "k line 16 st.shared.u32: shared 2 requests, 64 wavefronts (least 2)\n"
                               "k line 18 st.shared.u32: shared 2 requests, 4 wavefronts (least 2)\n"
                               "k line 21 ld.global.u32: global 2 requests, 8 sectors (least 8)\n"
                               "k line 22 ld.global.u32: global 2 requests, 10 sectors (least 8)\n"
                               "k line 25 ld.global.u32: global 2 requests, 64 sectors (least 8)\n"
                               "k line 26 ld.global.u32: global 2 requests, 2 sectors (least 2)\n";

static void counts_are_exact(void **state) {
    (void)state;
    sbp_ptx_report report;
    sbp_ptx_memory *memory = sbp_ptx_memory_create(0);
    const uint64_t buffer = sbp_ptx_memory_alloc(memory, 8192);
    assert_true(sbp_ptx_memory_fill(memory, buffer, 0, 4, 2048));
    sbp_ptx_module *module = sbp_ptx_module_load(memory, kernel, sizeof kernel, &report);
    assert_non_null(module);
    sbp_ptx_counts *counts = sbp_ptx_counts_create();
    assert_non_null(counts);
    void *params[] = {(void *)&buffer};
    for (uint64_t seed = 1; seed <= 2; seed++) {
        const sbp_ptx_options options = {.seed = seed, .counts = counts};
        const sbp_ptx_status status = sbp_ptx_launch(sbp_ptx_module_entry(module, "k"), (uint32_t[]){1, 1, 1},
                                                     (uint32_t[]){32, 1, 1}, 0, params, &options, &report);
        assert_int_equal(status, SBP_PTX_OK);
        assert_int_equal(report.instructions, 24);
    }
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    sbp_ptx_counts_print(counts, out);
    assert_int_equal(fclose(out), 0);
    assert_string_equal(text, expected);
    free(text);
    sbp_ptx_counts_destroy(counts);
    sbp_ptx_module_unload(module);
    sbp_ptx_memory_destroy(memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(counts_are_exact)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
