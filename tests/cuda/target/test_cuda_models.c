/* test_cuda_models: every kernel of real models compiles, without spills and warnings; those of a small one
 * take what a golden table says (tests/cuda/target/llama.txt). SBP_TEST_ALL=1: all models, types and
 * architectures. */
#include "tests/cuda/target/kernel_testing.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/common/compile_model.h"
#include "tests/unit/objective_test_group.h"

#define CONFIGS "tests/data/configs"
#define TABLE "tests/cuda/target/llama.txt"
#define EVERY_ARCH "sm_80,sm_86,sm_89,sm_90a,sm_100,sm_120"

static bool can_compile;

static int look(void **state) {
    (void)state;
    can_compile = kernels_can_compile();
    return 0;
}

/* Number of kernels. */
static int compile(testing *t, const compile_wish *wish, const char *archs, sbp_text *lines) {
    sbp_program *program;
    testing_check(t, compile_model(t->arena, t->diag, wish, &program));
    kernel_set set = kernels_compile(t, program, archs);
    int count = set.count;
    assert_true(count > program->kernel_count);
    for (int32_t k = 0; lines && k < set.count; k++) {
        const sbp_gpu_key *key = &set.sources[k].key;
        if (key->kind == SBP_CMD_ROW) {
            kernel_set one = {&set.sources[k], &set.objects[k], 1, 0};
            sbp_text_add(lines, "%-40s ", program->kernels[key->kernel]->name);
            kernels_describe(t, &one, lines);
        }
    }
    kernels_free(&set);
    return count;
}

static void table(void **state) {
    (void)state;
    if (!can_compile)
        return;
    testing t = testing_open(1);
    compile_wish wish = compile_wish_for("tests/golden/llama_plain/model", 64, 16, 8);
    sbp_text lines;
    sbp_text_init(&lines, t.arena);
    wish.compute = SBP_BF16;
    int kernels = compile(&t, &wish, "sm_80,sm_90a", &lines);
    printf("  %d kernels\n", kernels);
    kernels_compare(&t, lines.data, TABLE);
    testing_close(&t);
}

/* fp64, objectives over groups, chunks of one segment and several, everything saved: other kernels. */
static void small_models(void **state) {
    (void)state;
    const char *archs = testing_sweep(0, 1) ? EVERY_ARCH : "sm_80";
    int kernels = 0;
    if (!can_compile)
        return;
    for (int i = 0; i < 3; i++) {
        static const char *const models[] = {"tests/golden/gemma3_softcap/model",
                                             "tests/golden/qwen2_sliding/model",
                                             "tests/golden/llama_bias/model"};
        testing t = testing_open(1);
        compile_wish wish = compile_wish_for(models[i], 64, 16, 8);
        if (i == 0) {
            wish.compute = SBP_F64;
            wish.options.grad_dtype = wish.options.state_dtype = SBP_F64;
        } else if (i == 1) {
            wish.objective = objective_test_group;
            wish.options.schedule.segment = 2;
        } else {
            wish.options.schedule.save_all = true;
            wish.options.step = true;
        }
        kernels += compile(&t, &wish, archs, NULL);
        testing_close(&t);
    }
    printf("  %d kernels\n", kernels);
}

static void real_models(void **state) {
    (void)state;
    int programs = 0, kernels = 0;
    DIR *dir = opendir(CONFIGS);
    assert_non_null(dir);
    for (struct dirent *entry; can_compile && testing_sweep(0, 1) && (entry = readdir(dir)) != NULL;) {
        size_t length = strlen(entry->d_name);
        if (length < 5 || strcmp(entry->d_name + length - 5, ".json") != 0)
            continue;
        char path[300];
        snprintf(path, sizeof path, CONFIGS "/%s", entry->d_name);
        for (int bf16 = 0; bf16 < 2; bf16++, programs++) {
            testing t = testing_open(1);
            compile_wish wish = compile_wish_for(path, 4096, 512, 256);
            wish.compute = bf16 ? SBP_BF16 : SBP_F32;
            kernels += compile(&t, &wish, EVERY_ARCH, NULL);
            testing_close(&t);
        }
        printf("  %s: %d kernels so far\n", entry->d_name, kernels);
    }
    closedir(dir);
    printf("  %d programs, %d kernels\n", programs, kernels);
    if (can_compile)
        assert_true(programs >= testing_sweep(0, 30));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(table), cmocka_unit_test(small_models),
                                       cmocka_unit_test(real_models)};
    return cmocka_run_group_tests_name("cuda models", tests, look, NULL);
}
