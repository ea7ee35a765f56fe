/* test_vulkan_shadow.c: the fences of the programs of all golden cases, as barriers, under the
 * synchronization validation of VK_LAYER_KHRONOS_validation (backends/vulkan/device/shadow.c): it must be
 * silent, and object when any one fence is left out, also those between the two queues of programs that
 * offload. A second opinion on what test_fence.c shows on paper, on the barriers that are really recorded. */
#include "backends/vulkan/vulkan_device.h"
#include "runtime/run/executor.h"
#include "tests/common/compile_model.h"
#include "tests/common/fence_simulator.h"
#include "tests/common/sweep.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define GOLDEN "tests/golden/"

enum { T_MAX = 14, CHUNK = 4, HEAD_CHUNK = 3 };

typedef struct bench {
    sbp_arena *arena;
    sbp_diag *diag;
    const char *name;
    sbp_program *program;
    sbp_executor *executor;
    int32_t *pairs, pair_count; /* entries, each right before each */
} bench;

static struct { int programs, fences, between, noticed; } totals;

static void check(bench *b, sbp_status status) {
    if (status != SBP_OK)
        fail_msg("%s: %s", b->name, sbp_diag_text(b->diag, SBP_ERROR));
}

/* Documents of 5 rows, or one. */
static void bind(bench *b, int64_t t, bool documents) {
    int32_t numbers[T_MAX], zero[T_MAX] = {0};
    double weight[T_MAX];
    for (int32_t r = 0; r < t; r++) {
        numbers[r] = documents ? r - r % 5 : 0;
        weight[r] = 1;
    }
    const sbp_column columns[] = {
        {"tok", SBP_I32, zero, t},           {"pos", SBP_I32, zero, t},    {"first", SBP_I32, numbers, t},
        {"shared_end", SBP_I32, numbers, t}, {"own", SBP_I32, numbers, t}, {"label", SBP_I32, zero, t},
        {"weight", SBP_F64, weight, t},      {"doc", SBP_I32, zero, t},
    };
    check(b, sbp_executor_bind(b->executor, t, 1, columns, SBP_COUNT(columns), b->diag));
    for (int32_t k = 2; k < b->program->scalar_count; k++) /* all but T and S */
        sbp_executor_set_scalar(b->executor, b->program->scalars[k], 1);
}

/* Whether the layer objects to the first `count` of the pairs. Nothing waits between the entries. */
static bool objects(bench *b, int64_t t, bool documents, int32_t count) {
    bind(b, t, documents);
    for (int32_t k = 0; k < count; k++)
        check(b, sbp_executor_run(b->executor, b->program->entries[b->pairs[k]].name, b->diag));
    sbp_status status = sbp_executor_wait(b->executor, b->diag);
    if (status != SBP_OK && !strstr(sbp_diag_text(b->diag, SBP_ERROR), "SYNC-HAZARD"))
        fail_msg("%s: %s", b->name, sbp_diag_text(b->diag, SBP_ERROR));
    return status != SBP_OK;
}

/* Most are missed in the first few entries already. */
static bool noticed(bench *b, const sbp_command *fence) {
    static const int64_t sizes[] = {T_MAX, CHUNK + 1, CHUNK, 1};
    bool seen = false;
    sbp_vulkan_shadow_skip(sbp_executor_device(b->executor), fence);
    for (int32_t count = 1; count < b->pair_count && !seen; count++) {
        seen = objects(b, T_MAX, false, count);
        sbp_diag_clear(b->diag);
    }
    for (int k = 0; k < 2 * SBP_COUNT(sizes) && !seen; k++) {
        seen = objects(b, sizes[k / 2], k % 2, b->pair_count);
        sbp_diag_clear(b->diag);
    }
    sbp_vulkan_shadow_skip(sbp_executor_device(b->executor), NULL);
    return seen;
}

/* A program; with `offload` of seven layers, whose checkpoints go to the host and back by queue 1. */
static void examine(const char *name, bool offload, bool save_all) {
    char path[512];
    bench b = {.arena = sbp_arena_create(), .diag = sbp_diag_create(), .name = name};
    snprintf(path, sizeof path, GOLDEN "%s/model", name);
    compile_request request = compile_request_for(path, T_MAX, CHUNK, HEAD_CHUNK);
    compile_offload(&request, offload);
    request.options.schedule.save_all = save_all;
    request.set = offload ? "num_hidden_layers=7" : NULL;
    check(&b, compile_model(b.arena, b.diag, &request, &b.program));
    check(&b, sbp_program_verify(b.program, b.diag));
    b.pair_count = fence_sequence_of_pairs(b.arena, b.program, &b.pairs);
    check(&b, sbp_executor_create(b.diag, &sbp_vulkan_shadow_device, NULL, b.program, &b.executor));
    const int64_t sizes[] = {1, CHUNK, CHUNK + 1, 2 * CHUNK, T_MAX};
    for (int k = 0; k < SBP_COUNT(sizes); k++)
        for (int documents = 0; documents < 2; documents++)
            if (objects(&b, sizes[k], documents, b.pair_count))
                fail_msg("%s, T %d: %s", name, (int)sizes[k], sbp_diag_text(b.diag, SBP_ERROR));
    fence_list fences = fence_list_make(b.arena, b.program);
    for (int32_t f = 0; f < fences.count; f++) {
        bool seen = noticed(&b, fences.items[f]);
        totals.noticed += seen;
        if (!seen)
            print_message("%s%s: nobody misses fence %d of %d, from queue %s to %s\n", name,
                          offload ? ", offload" : "", f, fences.count,
                          sbp_queue_names[fences.items[f]->u.fence.from],
                          sbp_queue_names[fences.items[f]->u.fence.to]);
        totals.between += fences.items[f]->u.fence.from != fences.items[f]->u.fence.to;
    }
    totals.fences += fences.count;
    totals.programs++;
    sbp_executor_destroy(b.executor);
    sbp_diag_destroy(b.diag);
    sbp_arena_destroy(b.arena);
}

static bool can_run(void) {
    sbp_diag *diag = sbp_diag_create();
    sbp_device *device;
    sbp_status status = sbp_vulkan_shadow_device.create(NULL, diag, &device);
    if (status == SBP_OK)
        sbp_vulkan_shadow_device.destroy(device);
    else
        print_message("skipped: the transfer shadow: %s", sbp_diag_text(diag, SBP_ERROR));
    sbp_diag_destroy(diag);
    return status == SBP_OK;
}

/* One of each structure: others differ by numbers, not by what reads and writes what. */
static bool is_usual(const char *name) {
    static const char *const usual[] = {"gemma3_softcap", "gpt_neox_plain", "llama_plain",
                                        "olmo2_plain",    "phi3_plain",     "qwen2_sliding"};
    for (int i = 0; i < SBP_COUNT(usual); i++)
        if (strcmp(name, usual[i]) == 0)
            return true;
    return false;
}

static void fences_of_goldens(void **state) {
    static const char *const not_built[] = {"gpt2"}; /* an example of how an architecture is added */
    (void)state;
    if (!can_run())
        skip();
    bool every = testing_all();
    DIR *dir = opendir(GOLDEN);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[512];
        bool skipped = entry->d_name[0] == '.' || (!every && !is_usual(entry->d_name));
        for (int k = 0; k < SBP_COUNT(not_built); k++)
            skipped |= strcmp(entry->d_name, not_built[k]) == 0;
        snprintf(path, sizeof path, GOLDEN "%s/model/config.json", entry->d_name);
        if (!skipped && access(path, R_OK) == 0)
            examine(entry->d_name, false, false);
    }
    closedir(dir);
    examine("llama_plain", true, false);

    if (every) {
        examine("qwen2_sliding", true, false);
        examine("llama_plain", true, true);
        examine("qwen3_plain", true, false);
    }
    print_message("%d programs, %d fences left out, %d of them between queues, %d times a hazard\n",
                  totals.programs, totals.fences, totals.between, totals.noticed);
    assert_true(totals.programs >= (every ? 47 : 7) && totals.fences > 0 && totals.between > 0);
    assert_int_equal(totals.noticed, totals.fences);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(fences_of_goldens)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
