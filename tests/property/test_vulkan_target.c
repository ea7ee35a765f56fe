/* test_vulkan_target.c: the compile side of the Vulkan backend, without a device: every module of every model
 * of tests/data/configs is valid SPIR-V for Vulkan 1.2 and uses no feature that it does not list, and every
 * row kernel keeps to the loops that llvmpipe runs; compiling twice gives the same bytes; a container that is
 * damaged anywhere is refused or read within its bounds. */
#include <dirent.h>
#include <spirv-tools/libspirv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/target.h"
#include "backends/vulkan/abi.h"
#include "backends/vulkan/target/software.h"
#include "tests/common/compile_model.h"
#include "tests/common/dispatch_add.h"
#include "tests/common/testing.h"
#include "tests/unit/objective_test_group.h"

#define CONFIGS "tests/data/configs"

static const sbp_target *target(void) {
    const sbp_target *found = sbp_target_find("vulkan");
    assert_non_null(found);
    return found;
}

/* ---- modules --------------------------------------------------------------------------------------- */

enum { OP_CAPABILITY = 17 };

/* Capabilities that a device has with what abi.h asks of all (numbers of the SPIR-V specification). */
static bool is_allowed(uint32_t capability, uint32_t features) {
    switch (capability) {
    case 0:    /* Matrix */
    case 1:    /* Shader */
    case 11:   /* Int64 */
    case 61:   /* GroupNonUniform */
    case 62:   /* GroupNonUniformVote */
    case 63:   /* GroupNonUniformArithmetic */
    case 4433: /* StorageBuffer16BitAccess */
    case 4448: /* StorageBuffer8BitAccess */
    case 5345: /* VulkanMemoryModel */
    case 5347: /* PhysicalStorageBufferAddresses */
        return true;
    case 9: /* Float16 */
        return features & SBP_VULKAN_FLOAT16;
    case 10: /* Float64 */
        return features & SBP_VULKAN_FLOAT64;
    case 6022: /* CooperativeMatrixKHR */
        return features & SBP_VULKAN_COOPMAT;
    case 5116: /* BFloat16TypeKHR */
    case 5118: /* BFloat16CooperativeMatrixKHR */
        return features & SBP_VULKAN_BFLOAT16;
    default:
        return false;
    }
}

/* Whether this version of SPIRV-Tools has heard of a capability: cooperative matrices are from 2023.4, bf16
 * is from 2025.2. */
static bool is_known(uint32_t capability, const char *extension) {
    const uint32_t capabilities[] = {1, 5, 5345, capability}; /* Shader, Linkage, VulkanMemoryModel */
    uint32_t words[32] = {0x07230203u, 0x00010500u, 0, 1, 0};
    size_t count = 5, length = strlen(extension) / 4 + 1;
    for (int i = 0; i < SBP_COUNT(capabilities); i++) {
        words[count++] = 2u << 16 | OP_CAPABILITY;
        words[count++] = capabilities[i];
    }
    words[count++] = (uint32_t)(length + 1) << 16 | 10; /* OpExtension */
    memcpy(words + count, extension, strlen(extension));
    count += length;
    words[count++] = 3u << 16 | 14; /* OpMemoryModel Logical Vulkan */
    words[count++] = 0;
    words[count++] = 3;
    spv_context context = spvContextCreate(SPV_ENV_UNIVERSAL_1_5);
    spv_const_binary_t binary = {words, count};
    bool known = spvValidate(context, &binary, NULL) == SPV_SUCCESS;
    spvContextDestroy(context);
    return known;
}

static int not_validated, validated_matrix;

static bool can_validate(const sbp_vulkan_module *module) {
    if ((module->features & SBP_VULKAN_COOPMAT) && !is_known(6022, "SPV_KHR_cooperative_matrix"))
        return false;
    return !(module->features & SBP_VULKAN_BFLOAT16) || is_known(5116, "SPV_KHR_bfloat16");
}

static const char *text_of(const sbp_vulkan_module *module) {
    static char text[SBP_GPU_NAME];
    sbp_vulkan_key_text(&module->key, text);
    return text;
}

static void check_module(const char *model, const sbp_vulkan_module *module) {
    for (int64_t at = 5; at < module->word_count; at += module->words[at] >> 16)
        if ((module->words[at] & 0xffff) == OP_CAPABILITY &&
            !is_allowed(module->words[at + 1], module->features))
            fail_msg("%s: module '%s' uses capability %u", model, text_of(module),
                     (unsigned)module->words[at + 1]);
    if (!can_validate(module)) {
        not_validated++;
        return;
    }
    validated_matrix += (module->features & SBP_VULKAN_COOPMAT) != 0;
    spv_context context = spvContextCreate(SPV_ENV_VULKAN_1_2);
    spv_validator_options options = spvValidatorOptionsCreate();
    spvValidatorOptionsSetScalarBlockLayout(options, true);
    spv_const_binary_t binary = {module->words, (size_t)module->word_count};
    spv_diagnostic message = NULL;
    if (spvValidateWithOptions(context, options, &binary, &message) != SPV_SUCCESS)
        fail_msg("%s: module '%s': %s", model, text_of(module), message ? message->error : "invalid");
    spvDiagnosticDestroy(message);
    spvValidatorOptionsDestroy(options);
    spvContextDestroy(context);
}

/* Number of modules. */
static int check_program(const char *model, const compile_request *request) {
    testing t = testing_open(1);
    sbp_program *program;
    const void *data;
    int64_t bytes;
    sbp_vulkan_modules modules;
    testing_check(&t, compile_model(t.arena, t.diag, request, &program));
    testing_check(&t, target()->compile(t.arena, t.diag, program, &data, &bytes));
    testing_check(&t, sbp_vulkan_modules_read(t.arena, t.diag, data, bytes, &modules));
    assert_true(modules.count > program->kernel_count);
    for (int32_t i = 0; i < modules.count; i++)
        check_module(model, &modules.items[i]);
    for (int32_t i = 0; i < program->kernel_count; i++) {
        sbp_gpu_key key;
        const sbp_command row = {.kind = SBP_CMD_ROW, .kernel = i};
        assert_int_equal(sbp_vulkan_keys(&row, NULL, &key), 1);
        assert_non_null(sbp_vulkan_modules_find(&modules, &key));
        const sbp_vulkan_machine lavapipe = {
            .software = true, .max_local_size = 1024, .shared_bytes = 1 << 15};
        const sbp_command command = {.kind = SBP_CMD_ROW, .kernel = i};
        const sbp_dispatch dispatch = {.command = &command, .kernel = program->kernels[i], .rows = 1};
        /* a block of rows of many heads is too much for it, and refused */
        if (program->kernels[i]->heads <= 32 && sbp_vulkan_too_long(&dispatch, &lavapipe))
            fail_msg("%s: kernel '%s' loops up to %lld times on lavapipe", model, program->kernels[i]->name,
                     (long long)sbp_vulkan_iterations(&dispatch, &lavapipe));
    }
    int count = modules.count;
    testing_close(&t);
    return count;
}

/* llvmpipe leaves all loops after 65535 iterations: a product that would take more is refused, not wrong. */
static void long_products(void **state) {
    static const struct {
        int64_t rows, cols, depth;
        bool refused;
    } cases[] = {{8, 8, 70000, false},   {9, 8, 70000, false}, {7, 8, 70000, true}, {8, 5, 70000, true},
                 {16, 16, 262144, true}, {7, 3, 65000, false}, {7, 3, 65535, true}};
    const sbp_vulkan_machine lavapipe = {.software = true, .max_local_size = 1024, .shared_bytes = 1 << 15};
    const sbp_vulkan_machine gpu = {.max_local_size = 1024, .shared_bytes = 1 << 15};
    (void)state;
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        const sbp_command command = {.kind = SBP_CMD_GEMM};
        const sbp_span spans[] = {
            {.dtype = SBP_F32, .rows = cases[i].rows, .cols = cases[i].cols, .stride = cases[i].cols},
            {.dtype = SBP_F32, .rows = cases[i].rows, .cols = cases[i].depth, .stride = cases[i].depth},
            {.dtype = SBP_F32, .rows = cases[i].depth, .cols = cases[i].cols, .stride = cases[i].cols}};
        const sbp_dispatch dispatch = {.command = &command, .spans = spans, .span_count = 3};
        assert_int_equal(sbp_vulkan_too_long(&dispatch, &lavapipe), cases[i].refused);
        assert_false(sbp_vulkan_too_long(&dispatch, &gpu));
    }
}

/* The same of whole plans (--arch software), where each command has most rows; the advice is as
 * much as fits. */
static void long_plans(void **state) {
    static const struct {
        const char *model, *set;
        int64_t rows, chunk;
        const char *message; /* NULL: it is not refused */
    } cases[] = {
        {"tests/golden/llama_plain/model", NULL, 10560, 64, NULL}, /* keys of the last chunk */
        {"tests/golden/llama_plain/model", NULL, 10561, 64,
         "--arch software: attn_bwd would run up to 65538 loop iterations in one invocation, and software "
         "drivers silently stop after 65535: set --seq-len 10560, or use --backend cpu"},
        {"tests/golden/llama_plain/model", NULL, 20000, 20000, "set --seq-len 10560 --chunk 5280, or use"},
        {"tests/golden/mistral_window/model", NULL, 60000, 5280, NULL}, /* which sees few keys */
        {"tests/golden/mistral_window/model", NULL, 60000, 5281, "65535: set --chunk 5280, or use"},
        {CONFIGS "/Qwen3-0.6B.json", "num_attention_heads=2048", 64, 64, "65535: use --backend cpu"},
    };
    (void)state;
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        testing t = testing_open(1);
        compile_request request = compile_request_for(cases[i].model, cases[i].rows, cases[i].chunk, 64);
        sbp_program *program;
        const void *data;
        int64_t bytes;
        request.set = cases[i].set;
        testing_check(&t, compile_model(t.arena, t.diag, &request, &program));
        program->target = "vulkan:" SBP_VULKAN_SOFTWARE;
        if (cases[i].message)
            testing_check_fails(&t, target()->compile(t.arena, t.diag, program, &data, &bytes), SBP_INPUT,
                                cases[i].message);
        else /* without its modules */
            testing_check(&t, sbp_vulkan_check_software(program, t.diag));
        testing_close(&t);
    }
}

static void real_models(void **state) {
    (void)state;
    DIR *dir = opendir(CONFIGS);
    assert_non_null(dir);
    int programs = 0, modules = 0;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        size_t length = strlen(entry->d_name);
        if (length < 5 || strcmp(entry->d_name + length - 5, ".json") != 0)
            continue;
        char path[300];
        snprintf(path, sizeof path, CONFIGS "/%s", entry->d_name);
        if (testing_sweep(0, 1) == 0 && !strstr(path, "SmolLM2") && !strstr(path, "gemma-3-270m") &&
            !strstr(path, "Qwen3-0.6B"))
            continue;
        for (int bf16 = 0; bf16 < 2; bf16++, programs++) {
            compile_request request = compile_request_for(path, 4096, 512, 256);
            request.compute = bf16 ? SBP_BF16 : SBP_F32;
            modules += check_program(path, &request);
        }
    }
    closedir(dir);
    printf("  %d programs, %d modules\n", programs, modules);
    assert_true(programs >= testing_sweep(6, 34));
}

/* fp64, objectives over groups, chunks of one segment and several, everything saved: other kernels. */
static void small_models(void **state) {
    (void)state;
    compile_request request = compile_request_for("tests/golden/gemma3_softcap/model", 64, 16, 8);
    request.compute = SBP_F64;
    request.options.grad_dtype = request.options.state_dtype = SBP_F64;
    int modules = check_program("gemma3_softcap fp64", &request);
    request = compile_request_for("tests/golden/qwen2_sliding/model", 64, 16, 8);
    request.objective = objective_test_group;
    request.options.schedule.segment = 2;
    modules += check_program("qwen2_sliding two passes", &request);
    request = compile_request_for("tests/golden/llama_bias/model", 64, 64, 64);
    request.options.schedule.save_all = true;
    request.options.step = true;
    modules += check_program("llama_bias step", &request);
    printf("  %d modules\n", modules);
}

static void same_bytes(void **state) {
    (void)state;
    testing t = testing_open(1);
    compile_request request = compile_request_for("tests/golden/llama_plain/model", 64, 16, 8);
    sbp_program *program;
    const void *one, *two;
    int64_t one_bytes, two_bytes;
    testing_check(&t, compile_model(t.arena, t.diag, &request, &program));
    testing_check(&t, target()->compile(t.arena, t.diag, program, &one, &one_bytes));
    testing_check(&t, target()->compile(t.arena, t.diag, program, &two, &two_bytes));
    assert_int_equal(one_bytes, two_bytes);
    assert_memory_equal(one, two, (size_t)one_bytes);
    testing_close(&t);
}

/* ---- the container --------------------------------------------------------------------------------- */

static sbp_status read_modules(void *user) {
    void **job = user;
    testing *t = job[0];
    return sbp_vulkan_modules_read(t->arena, t->diag, job[1], *(int64_t *)job[2], job[3]);
}

static sbp_gpu_key row_key(int32_t kernel) {
    return (sbp_gpu_key){.kind = SBP_CMD_ROW, .kernel = kernel};
}

static void container(void **state) {
    (void)state;
    testing t = testing_open(1);
    uint32_t words[3][7] = {{0x07230203u, 1}, {0x07230203u, 2}, {0x07230203u, 3}};
    const sbp_vulkan_module in[] = {{.key = row_key(10), .words = words[0], .word_count = 7},
                                    {.key = row_key(0), .words = words[1], .word_count = 5, .features = 1},
                                    {.key = row_key(2), .words = words[2], .word_count = 6}};
    const void *data;
    int64_t bytes;
    sbp_vulkan_modules out;
    sbp_vulkan_modules_write(t.arena, in, SBP_COUNT(in), &data, &bytes);
    testing_check(&t, sbp_vulkan_modules_read(t.arena, t.diag, data, bytes, &out));
    assert_int_equal(out.count, SBP_COUNT(in));
    for (int i = 0; i < SBP_COUNT(in); i++) {
        const sbp_vulkan_module *found = sbp_vulkan_modules_find(&out, &in[i].key);
        assert_non_null(found);
        assert_int_equal(found->word_count, in[i].word_count);
        assert_int_equal(found->features, in[i].features);
        assert_memory_equal(found->words, in[i].words, (size_t)in[i].word_count * 4);
    }
    assert_null(sbp_vulkan_modules_find(&out, &(sbp_gpu_key){.kind = SBP_CMD_ROW, .kernel = 1}));
    /* cut anywhere, in memory of exactly that size, so that reading on is seen */
    for (int64_t length = 0; length < bytes; length++) {
        void *cut = malloc(length > 0 ? (size_t)length : 1);
        memcpy(cut, data, (size_t)length);
        void *job[] = {&t, cut, &length, &out};
        assert_int_equal(sbp_guard(t.arena, NULL, read_modules, job), SBP_INPUT);
        free(cut);
    }
    /* every bit of the directory */
    unsigned char *bent = malloc((size_t)bytes);
    for (int64_t bit = 0; bit < (16 + 3 * ((int64_t)sizeof(sbp_gpu_key) + 20)) * 8; bit++) {
        memcpy(bent, data, (size_t)bytes);
        bent[bit / 8] ^= (unsigned char)(1 << bit % 8);
        void *job[] = {&t, bent, &bytes, &out};
        sbp_status status = sbp_guard(t.arena, NULL, read_modules, job);
        assert_true(status == SBP_OK || status == SBP_INPUT);
        for (int32_t i = 0; status == SBP_OK && i < out.count; i++)
            assert_true(out.items[i].word_count <= bytes / 4);
    }
    free(bent);
    testing_close(&t);
}

/* Products of 16-bit operands in every variant, type and transpose. */
static void half_products(void **state) {
    (void)state;
    static const sbp_dtype results[] = {SBP_F32, SBP_BF16, SBP_F16};
    int matrix = 0;
    for (int i = 0; i < 24; i++) {
        testing t = testing_open(1);
        sbp_dtype type = i % 2 ? SBP_BF16 : SBP_F16, d = results[i / 2 % 3];
        bool ta = i / 6 % 2, tb = i / 12;
        sbp_command command = {.kind = SBP_CMD_GEMM, .flushes = -1, .view_count = 3};
        command.u.gemm.ta = ta;
        command.u.gemm.tb = tb;
        command.u.gemm.alpha = 1;
        sbp_span spans[3] = {{.dtype = d, .rows = 8, .cols = 24, .stride = 24},
                             {.dtype = type, .rows = ta ? 16 : 8, .cols = ta ? 8 : 16, .stride = 16},
                             {.dtype = type, .rows = tb ? 24 : 16, .cols = tb ? 16 : 24, .stride = 24}};
        const sbp_dispatch dispatch = {.command = &command, .spans = spans, .span_count = 3};
        sbp_program *program = sbp_program_create(t.arena, "product");
        dispatch_add(t.arena, program, &dispatch);
        const void *data;
        int64_t bytes;
        sbp_vulkan_modules modules;
        testing_check(&t, target()->compile(t.arena, t.diag, program, &data, &bytes));
        testing_check(&t, sbp_vulkan_modules_read(t.arena, t.diag, data, bytes, &modules));
        assert_int_equal(modules.count, SBP_VULKAN_ANY);
        for (int32_t m = 0; m < modules.count; m++) {
            bool has = modules.items[m].features & SBP_VULKAN_COOPMAT;
            assert_int_equal(has, sbp_vulkan_gemm_is_matrix((sbp_vulkan_gemm)modules.items[m].key.variant));
            assert_int_equal(has && type == SBP_BF16, (modules.items[m].features & SBP_VULKAN_BFLOAT16) != 0);
            matrix += has;
            check_module("product", &modules.items[m]);
        }
        testing_close(&t);
    }
    printf("  %d modules with cooperative matrices\n", matrix);
    assert_int_equal(matrix, 48);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(container),     cmocka_unit_test(same_bytes),
                                       cmocka_unit_test(half_products), cmocka_unit_test(small_models),
                                       cmocka_unit_test(long_products), cmocka_unit_test(long_plans),
                                       cmocka_unit_test(real_models)};
    int failed = cmocka_run_group_tests_name("vulkan target", tests, NULL, NULL);
    if (not_validated > 0)
        printf("skipped: validation of %d modules with cooperative matrices: libspirv-tools is too old for "
               "them\n",
               not_validated);
    printf("  %d modules with cooperative matrices validated\n", validated_matrix);
    return failed;
}
