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
        const sbp_choice_backend vulkan = {.name = "vulkan",
                                           .title = "Vulkan",
                                           .compiles = !e->cannot_compile,
                                           .devices = devices,
                                           .count = count,
                                           .none = e->none};
        sbp_choice_make(&e->wish, &vulkan, 1, 5, &choice);
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
    const sbp_choice_backend vulkan = {
        .name = "vulkan", .title = "Vulkan", .compiles = true, .devices = devices, .count = 16};
    sbp_choice_make(&wish, &vulkan, 1, 5, &choice);
    assert_string_equal(choice.backend, "cpu");
    assert_int_equal(strlen(choice.reason), sizeof choice.reason - 1);
}

/* Two backends: the better one first, and what is said when neither has a device. */
static void test_two_backends(void **state) {
    static const sbp_candidate hopper = {.name = "H", .arch = "sm_90a", .fp64 = true, .free_bytes = 80 * GIB};
    static const sbp_candidate bare = {
        .name = "H", .arch = "sm_90a", .fp64 = true, .missing = "without a compiler"};
    const sbp_choice_backend vulkan = {
        .name = "vulkan", .title = "Vulkan", .compiles = true, .devices = &big, .count = 1};
    const sbp_choice_backend software = {
        .name = "vulkan", .title = "Vulkan", .compiles = true, .devices = &llvmpipe, .count = 1};
    const sbp_choice_backend cuda = {
        .name = "cuda", .title = "CUDA", .compiles = true, .devices = &hopper, .count = 1};
    const sbp_choice_backend lacks = {
        .name = "cuda", .title = "CUDA", .compiles = true, .devices = &bare, .count = 1};
    const sbp_choice_backend absent = {
        .name = "cuda", .title = "CUDA", .compiles = true, .absent = true, .none = "no driver"};
    const sbp_choice_backend silent = {.name = "vulkan", .title = "Vulkan", .none = "nothing"};
    const struct {
        sbp_choice_wish wish;
        sbp_choice_backend backends[2];
        const char *backend, *arch, *reason;
        int64_t memory_bytes;
    } list[] = {
        {{.backend = "auto"}, {cuda, vulkan}, "cuda", "sm_90a", "H", 80 * GIB},
        {{.backend = "auto"}, {absent, vulkan}, "vulkan", "", "Big GPU", 80 * GIB},
        {{.backend = "auto"}, {lacks, vulkan}, "vulkan", "", "Big GPU", 80 * GIB},
        {{.backend = "auto"},
         {lacks, software},
         "cpu",
         "",
         "no CUDA GPU: only H, without a compiler; no Vulkan GPU: only llvmpipe, which is software",
         5},
        {{.backend = "auto"},
         {absent, software},
         "cpu",
         "",
         "no Vulkan GPU: only llvmpipe, which is software",
         5},
        {{.backend = "auto"}, {absent, silent}, "cpu", "", "no CUDA GPU: no driver", 5},
        {{.backend = "vulkan"}, {cuda, vulkan}, "vulkan", "", "asked for", 80 * GIB},
        {{.backend = "cuda"}, {cuda, vulkan}, "cuda", "sm_90a", "asked for", 80 * GIB},
        {{.backend = "cuda"}, {absent, vulkan}, "cuda", "", "asked for", 0},
        {{.backend = "cpu"}, {cuda, vulkan}, "cpu", "", "asked for", 5},
    };
    (void)state;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        sbp_choice choice;
        sbp_choice_make(&list[i].wish, list[i].backends, 2, 5, &choice);
        assert_string_equal(choice.backend, list[i].backend);
        assert_string_equal(choice.arch, list[i].arch);
        assert_string_equal(choice.reason, list[i].reason);
        assert_int_equal(choice.memory_bytes, list[i].memory_bytes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_choices), cmocka_unit_test(test_two_backends),
                                       cmocka_unit_test(test_long_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
