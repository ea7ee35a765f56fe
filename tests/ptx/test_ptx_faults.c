/* Each class of fault: a small kernel that has it must be reported, for what it is, with every seed; its
 * mended twin must run. The kernels are in faults.txt. */
#include "tests/ptx/ptx.h"
#include "tests/ptx/tensor/tma.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

enum { BYTES = 4096, SEEDS = 5, MAX_TEXT = 16384, LEAST_CASES = 60 };

static const char head[] =
    ".version 9.0\n.target sm_90a\n.address_size 64\n"
    ".visible .entry k(.param .u64 pa, .param .u64 pb, .param .align 64 .b8 map[128])\n.maxnreg 64\n{\n"
    ".reg .pred %p<10>;\n.reg .b32 %r<80>;\n.reg .b64 %rd<20>;\n"
    ".reg .b32 %t, %sm, %mb, %c;\n.reg .b16 %h;\n.reg .b64 %a, %b, %map;\n"
    ".shared .align 1024 .b8 memory[8192];\n.shared .align 8 .b8 bars[16];\n"
    "mov.u32 %t, %tid.x;\nmov.u32 %c, %ctaid.x;\nmov.u32 %sm, memory;\nmov.u32 %mb, bars;\n"
    "ld.param.u64 %a, [pa];\nld.param.u64 %b, [pb];\nmov.b64 %map, map;\n"
    "cvta.param.u64 %map, %map;\n";

typedef struct {
    unsigned blocks, threads;
    char what[128], group[64];
    char bad[MAX_TEXT], good[MAX_TEXT];
} fault_case;

static sbp_ptx_status run(const char *text, const fault_case *c, uint64_t seed, sbp_ptx_report *report) {
    sbp_ptx_memory *memory = sbp_ptx_memory_create(0);
    const uint64_t a = sbp_ptx_memory_alloc(memory, BYTES), b = sbp_ptx_memory_alloc(memory, BYTES);
    assert_true(sbp_ptx_memory_fill(memory, a, 0, 4, BYTES / 4));
    _Alignas(64) sbp_ptx_tensor_map map;
    const uint64_t dims[2] = {32, 32}, strides[1] = {128};
    const uint32_t box[2] = {32, 8};
    assert_null(sbp_ptx_tensor_map_encode(&map, SBP_PTX_TMA_F32, 2, a, dims, strides, box, NULL, 0));
    sbp_ptx_module *module = sbp_ptx_module_load(memory, text, MAX_TEXT, report);
    if (!module) {
        print_error("%s\n%s\n", report->text, text);
    }
    assert_non_null(module);
    void *params[] = {(void *)&a, (void *)&b, &map};
    const sbp_ptx_options options = {.seed = seed, .resident = -1};
    const uint32_t grid[3] = {c->blocks, 1, 1}, block[3] = {c->threads, 1, 1};
    const sbp_ptx_status status =
        sbp_ptx_launch(sbp_ptx_module_entry(module, "k"), grid, block, 0, params, &options, report);
    sbp_ptx_module_unload(module);
    sbp_ptx_memory_destroy(memory);
    return status;
}

static int failures;

static void check(const fault_case *c) {
    sbp_ptx_report report;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        sbp_ptx_status status = run(c->bad, c, seed, &report);
        if (status != SBP_PTX_FAULT || !strstr(report.text, c->what)) {
            print_error("%s, seed %d: expected a fault \"%s\"; status %d: %s\n%s\n", c->group, (int)seed,
                        c->what, status, report.text, c->bad + strlen(head));
            failures++;
            return;
        }
        status = run(c->good, c, seed, &report);
        if (status != SBP_PTX_OK) {
            print_error("%s, seed %d: the mended twin of \"%s\": %s\n%s\n", c->group, (int)seed, c->what,
                        report.text, c->good + strlen(head));
            failures++;
            return;
        }
    }
}

static void append(char *text, const char *line) {
    assert_true(strlen(text) + strlen(line) < MAX_TEXT);
    strcat(text, line);
}

static void finish(fault_case *c) {
    append(c->bad, "ret;\n}\n");
    append(c->good, "ret;\n}\n");
    check(c);
}

static void every_fault_is_reported_and_no_twin(void **state) {
    (void)state;
    FILE *f = fopen("tests/ptx/faults.txt", "r");
    assert_non_null(f);
    static fault_case c;
    char line[512];
    int cases = 0;
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, "== ", 3) == 0) {
            if (cases++) {
                finish(&c);
            }
            c.what[0] = 0;
            if (sscanf(line, "== %u %u | %127[^|\n] | %63s", &c.blocks, &c.threads, c.what, c.group) < 4) {
                print_error("%s", line);
                fail();
            }
            c.what[strlen(c.what) - 1] = 0; // a space
            strcpy(c.bad, head);
            strcpy(c.good, head);
        } else if (cases) {
            append(line[0] == '+' ? c.good : c.bad, line[0] == '+' || line[0] == '-' ? line + 2 : line);
            if (line[0] != '+' && line[0] != '-') {
                append(c.good, line);
            }
        }
    }
    finish(&c);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(failures, 0);
    assert_true(cases >= LEAST_CASES);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_fault_is_reported_and_no_twin)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
