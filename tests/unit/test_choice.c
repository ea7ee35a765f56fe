/* test_choice.c: which backend --backend auto means, from lists of devices that this machine does not have.
 */
#include "backends/choice.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define GIB ((int64_t)1 << 30)

static const sbp_candidate llvmpipe = {
    .name = "llvmpipe", .software = true, .fp64 = true, .free_bytes = 2 * GIB};
static const sbp_candidate big = {.name = "Big GPU", .fp64 = true, .free_bytes = 80 * GIB};
static const sbp_candidate small = {.name = "Small GPU", .free_bytes = 8 * GIB};
static const sbp_candidate old = {
    .name = "Old GPU", .missing = "which lacks scalarBlockLayout", .free_bytes = GIB};

typedef struct expectation {
    sbp_choice_wish wish;
    const sbp_candidate *devices[3];
    const char *none;
    bool cannot_compile;
    const char *backend;
    int64_t memory_bytes;
    const char *reason;
} expectation;

static void test_choices(void **state) {
    static const sbp_choice_wish automatic = {.backend = "auto"}, fp64 = {.backend = "auto", .fp64 = true};
    const expectation list[] = {
        {automatic, {&big}, .backend = "vulkan", .memory_bytes = 80 * GIB, .reason = "Big GPU"},
        {automatic, {&small, &llvmpipe}, .backend = "vulkan", .memory_bytes = 8 * GIB, .reason = "Small GPU"},
        {automatic, {&llvmpipe, &small}, .backend = "vulkan", .memory_bytes = 8 * GIB, .reason = "Small GPU"},
        {automatic, {&old, &small}, .backend = "vulkan", .memory_bytes = 8 * GIB, .reason = "Small GPU"},
        {automatic,
         {&llvmpipe},
         .backend = "cpu",
         .memory_bytes = 5,
         .reason = "no Vulkan GPU: only llvmpipe, which is software"},
        {automatic,
         {&old, &llvmpipe},
         .backend = "cpu",
         .memory_bytes = 5,
         .reason = "no Vulkan GPU: Old GPU, which lacks scalarBlockLayout; llvmpipe, which is software"},
        {automatic,
         {NULL},
         .none = "the loader is not installed",
         .backend = "cpu",
         .memory_bytes = 5,
         .reason = "no Vulkan GPU: the loader is not installed"},
        {automatic,
         {&big},
         .cannot_compile = true,
         .backend = "cpu",
         .memory_bytes = 5,
         .reason = "this build compiles for no GPU"},
        {fp64, {&small, &big}, .backend = "vulkan", .memory_bytes = 80 * GIB, .reason = "Big GPU"},
        {fp64,
         {&small},
         .backend = "cpu",
         .memory_bytes = 5,
         .reason = "no Vulkan GPU: only Small GPU, which does not compute in fp64"},
        {{.backend = "auto", .device = 1},
         {&big, &small},
         .backend = "vulkan",
         .memory_bytes = 8 * GIB,
         .reason = "Small GPU"},
        {{.backend = "auto", .device = 1},
         {&big, &llvmpipe},
         .backend = "cpu",
         .memory_bytes = 5,
         .reason = "no Vulkan GPU: Big GPU, which comes before --device; llvmpipe, which is software"},
        {{.backend = "vulkan"},
         {&llvmpipe},
         .backend = "vulkan",
         .memory_bytes = 2 * GIB,
         .reason = "asked for"},
        {{.backend = "vulkan", .device = 1},
         {&big, &small},
         .backend = "vulkan",
         .memory_bytes = 8 * GIB,
         .reason = "asked for"},
        {{.backend = "vulkan", .device = 7},
         {&big},
         .backend = "vulkan",
         .memory_bytes = 0,
         .reason = "asked for"},
        {{.backend = "cpu"}, {&big}, .backend = "cpu", .memory_bytes = 5, .reason = "asked for"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        const expectation *e = &list[i];
        sbp_candidate devices[3];
        sbp_choice choice;
        int32_t count = 0;
        while (count < 3 && e->devices[count]) {
            devices[count] = *e->devices[count];
            count++;
        }
        sbp_choice_make(&e->wish, devices, count, e->none, !e->cannot_compile, 5, &choice);
        if (strcmp(choice.backend, e->backend) != 0 || choice.memory_bytes != e->memory_bytes ||
            strcmp(choice.reason, e->reason) != 0)
            fail_msg("choice %zu: %s, %lld bytes, '%s'; expected %s, %lld, '%s'", i, choice.backend,
                     (long long)choice.memory_bytes, choice.reason, e->backend, (long long)e->memory_bytes,
                     e->reason);
    }
}

/* Names are as long as their drivers make them. */
static void test_long_names(void **state) {
    sbp_candidate devices[16];
    sbp_choice choice;
    (void)state;
    for (int i = 0; i < 16; i++) {
        devices[i] = llvmpipe;
        memset(devices[i].name, 'x', sizeof devices[i].name - 1);
    }
    const sbp_choice_wish wish = {.backend = "auto"};
    sbp_choice_make(&wish, devices, 16, "", true, 5, &choice);
    assert_string_equal(choice.backend, "cpu");
    assert_int_equal(strlen(choice.reason), sizeof choice.reason - 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_choices), cmocka_unit_test(test_long_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
