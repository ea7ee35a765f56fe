/* glsl.c: GLSL to SPIR-V with shaderc. */
#include "backends/vulkan/target/shaders.h"

#include <shaderc/shaderc.h>
#include <stdlib.h>
#include <string.h>

struct sbp_vulkan_compiler {
    shaderc_compiler_t compiler;
    shaderc_compile_options_t options;
};

sbp_vulkan_compiler *sbp_vulkan_compiler_create(void) {
    sbp_vulkan_compiler *c = sbp_malloc(sizeof *c);
    if (!c)
        return NULL;
    c->compiler = shaderc_compiler_initialize();
    c->options = shaderc_compile_options_initialize();
    if (!c->compiler || !c->options) {
        sbp_vulkan_compiler_destroy(c);
        return NULL;
    }
    /* SPIR-V 1.5: with 1.6 a workgroup size that is specialised asks for maintenance4. No optimisation:
     * spirv-opt folds sums of constants that rowmath.h means as they stand, and drivers optimise anyway. */
    shaderc_compile_options_set_target_env(c->options, shaderc_target_env_vulkan,
                                           shaderc_env_version_vulkan_1_2);
    shaderc_compile_options_set_optimization_level(c->options, shaderc_optimization_level_zero);
    return c;
}

void sbp_vulkan_compiler_destroy(sbp_vulkan_compiler *c) {
    if (!c)
        return;
    shaderc_compile_options_release(c->options);
    shaderc_compiler_release(c->compiler);
    free(c);
}

typedef struct finishing {
    sbp_arena *arena;
    sbp_diag *diag;
    shaderc_compilation_result_t result;
    const sbp_vulkan_shader *shader;
    sbp_vulkan_module *out;
} finishing;

static sbp_status finish(void *user) {
    const finishing *job = user;
    size_t bytes = shaderc_result_get_length(job->result);
    int64_t count = (int64_t)bytes / 4;
    uint32_t *copy = sbp_arena_alloc(job->arena, bytes);
    memcpy(copy, shaderc_result_get_bytes(job->result), bytes);
    const uint32_t *words = copy;
    if (job->shader->matrix)
        SBP_TRY(sbp_vulkan_spirv_matrix(job->arena, job->diag, &words, &count, job->shader->bf16));
    sbp_vulkan_spirv_finish(job->arena, words, count, job->shader->exact, job->out);
    return SBP_OK;
}

sbp_status sbp_vulkan_compiler_run(sbp_vulkan_compiler *c, sbp_arena *arena, sbp_diag *diag,
                                   const sbp_vulkan_shader *shader, sbp_vulkan_module *out) {
    char name[SBP_GPU_NAME];
    sbp_vulkan_key_text(&shader->key, name);
    shaderc_compilation_result_t result =
        shaderc_compile_into_spv(c->compiler, shader->text, strlen(shader->text), shaderc_glsl_compute_shader,
                                 name, "main", c->options);
    if (!result)
        return sbp_fail(diag, SBP_MACHINE, "out of memory in shaderc");
    if (shaderc_result_get_compilation_status(result) != shaderc_compilation_status_success) {
        sbp_status status = sbp_fail(diag, SBP_INTERNAL, "shader '%s' does not compile: %.2000s", name,
                                     shaderc_result_get_error_message(result));
        shaderc_result_release(result);
        return status;
    }
    /* The arena may unwind, but not past what shaderc owns. */
    finishing job = {.arena = arena, .diag = diag, .result = result, .shader = shader, .out = out};
    out->key = shader->key;
    sbp_status status = sbp_guard(arena, diag, finish, &job);
    shaderc_result_release(result);
    return status;
}
