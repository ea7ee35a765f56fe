/* test_cuda_models: every kernel of real models compiles, without spills and warnings; those of a small one
 * take what a golden table says (tests/cuda/target/llama.txt). SBP_TEST_ALL=1: all models, types and
 * architectures. */
#include "tests/cuda/target/kernel_testing.h"

#include "backends/cuda/cuda_target.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/common/compile_model.h"
#include "tests/unit/objective_test_group.h"

#define CONFIGS "tests/data/configs"
#define MORE_CONFIGS "../shared/configs" /* where it is: larger models */
#define TABLE "tests/cuda/target/llama.txt"
#define EVERY_ARCH "sm_80,sm_86,sm_89,sm_90a,sm_100,sm_120"

/* Parts of the sweep, to try again what failed: SBP_CUDA_ARCHS=LIST, SBP_CASE=CONFIG. */
static const char *every_arch(void) {
    const char *some = getenv("SBP_CUDA_ARCHS");
    return some && *some ? some : EVERY_ARCH;
}

static bool can_compile;

static int look(void **state) {
    (void)state;
    can_compile = kernels_can_compile();
    return 0;
}

/* Number of kernels. */
static int compile(testing *t, const compile_request *request, const char *archs, sbp_text *lines) {
    sbp_program *program;
    testing_check(t, compile_model(t->arena, t->diag, request, &program));
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
    compile_request request = compile_request_for("tests/golden/llama_plain/model", 64, 16, 8);
    sbp_text lines;
    sbp_text_init(&lines, t.arena);
    request.compute = SBP_BF16;
    int kernels = compile(&t, &request, "sm_80,sm_90a", &lines);
    printf("  %d kernels\n", kernels);
    kernels_compare(&t, lines.data, TABLE);
    testing_close(&t);
}

/* fp64, objectives over groups, chunks of one segment and several, everything saved: other kernels. */
static void small_models(void **state) {
    (void)state;
    const char *archs = testing_sweep(0, 1) ? every_arch() : "sm_80";
    int kernels = 0;
    if (!can_compile)
        return;
    for (int i = 0; i < 4; i++) {
        static const char *const models[] = {
            "tests/golden/gemma3_softcap/model", "tests/golden/qwen2_sliding/model",
            "tests/golden/llama_bias/model", "tests/golden/qwen3_5_dense_v/model"};
        testing t = testing_open(1);
        compile_request request = compile_request_for(models[i], 64, 16, 8);
        if (i == 0) {
            request.compute = SBP_F64;
            request.options.grad_dtype = request.options.state_dtype = SBP_F64;
        } else if (i == 1) {
            request.objective = objective_test_group;
            request.options.schedule.segment = 2;
        } else if (i == 2) {
            request.options.schedule.save_all = true;
            request.options.step = true;
        } else { /* states of the delta rule and its convolution, made again */
            request.compute = SBP_BF16;
            request.options.schedule.drop_states = true;
        }
        kernels += compile(&t, &request, archs, NULL);
        testing_close(&t);
    }
    printf("  %d kernels\n", kernels);
}

/* Types that the passes compute in, as the target says. */
static const sbp_dtype types[] = {SBP_BF16, SBP_F16, SBP_F32, SBP_F64};

/* Every kernel of one model in one type; what is wrong is printed. standard: everything saved, one chunk. */
static bool sweep_model(const char *path, sbp_dtype dtype, bool standard, int *kernels) {
    testing t = testing_open(1);
    compile_request request =
        standard ? compile_request_for(path, 4096, 4096, 4096) : compile_request_for(path, 4096, 512, 256);
    sbp_program *program;
    request.compute = dtype;
    request.options.schedule.save_all = standard;
    if (dtype == SBP_F64)
        request.options.grad_dtype = request.options.state_dtype = SBP_F64;
    testing_check(&t, compile_model(t.arena, t.diag, &request, &program));
    kernel_set set = {0};
    bool right = kernels_try(&t, program, every_arch(), &set);
    for (int32_t k = 0; right && k < set.count; k++) {
        char name[SBP_GPU_NAME + 16];
        sbp_cuda_resources r;
        testing_check(
            &t, sbp_cuda_resources_read(t.diag, &set.sources[k], sbp_cuda_object_log(&set.objects[k]), &r));
        if (r.stack_bytes == 0) /* else it has LDL and STL, spilled or not */
            continue;
        kernel_name(&set.sources[k], name);
        printf("  %s: %s: %d bytes of stack\n", path, name, (int)r.stack_bytes);
        right = false;
    }
    if (!right)
        printf("  %s in %s: %s\n", path, sbp_dtype_name(dtype), sbp_diag_text(t.diag, SBP_NOTE));
    *kernels += set.count;
    kernels_free(&set);
    testing_close(&t);
    return right;
}

/* False, and a line about it, for a model of a family that is not built. */
static bool is_built(const char *path) {
    testing t = testing_open(1);
    compile_request request = compile_request_for(path, 64, 64, 64);
    sbp_program *program;
    request.stop_after = "infer";
    bool known = compile_model(t.arena, t.diag, &request, &program) == SBP_OK ||
                 !strstr(sbp_diag_text(t.diag, SBP_ERROR), " is not supported");
    if (!known)
        printf("skipped: %s", sbp_diag_text(t.diag, SBP_ERROR));
    testing_close(&t);
    return known;
}

/* The models of a folder; `known`: those of another folder, which are left out. */
static void sweep_folder(const char *folder, const char *known, int *programs, int *kernels, int *wrong) {
    sbp_target_info info;
    sbp_diag *diag = sbp_diag_create();
    DIR *dir = opendir(folder);
    assert_non_null(diag);
    assert_int_equal(sbp_cuda_target.describe(EVERY_ARCH, diag, &info), SBP_OK);
    for (struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
        size_t length = strlen(entry->d_name);
        const char *only = getenv("SBP_CASE");
        char path[300];
        if (only && strcmp(only, entry->d_name) != 0)
            continue;
        if (length < 5 || strcmp(entry->d_name + length - 5, ".json") != 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", known ? known : folder, entry->d_name);
        if (known && access(path, R_OK) == 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (!is_built(path))
            continue;
        for (int d = 0; d < SBP_COUNT(types); d++)
            if (info.supports[types[d]]) {
                *wrong += !sweep_model(path, types[d], false, kernels);
                *wrong += !sweep_model(path, types[d], true, kernels);
                *programs += 2;
            }
        printf("  %s: %d kernels so far\n", entry->d_name, *kernels);
        fflush(stdout);
    }
    if (dir)
        closedir(dir);
    sbp_diag_destroy(diag);
}

static void real_models(void **state) {
    (void)state;
    int programs = 0, kernels = 0, wrong = 0;
    if (can_compile && testing_sweep(0, 1)) {
        sweep_folder(CONFIGS, NULL, &programs, &kernels, &wrong);
        sweep_folder(MORE_CONFIGS, CONFIGS, &programs, &kernels, &wrong);
    }
    printf("  %d programs, %d kernels\n", programs, kernels);
    assert_int_equal(wrong, 0);
    if (can_compile && !getenv("SBP_CASE"))
        assert_true(programs >= testing_sweep(0, 96));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(table), cmocka_unit_test(small_models),
                                       cmocka_unit_test(real_models)};
    return cmocka_run_group_tests_name("cuda models", tests, look, NULL);
}
