/* shaders.h: the parts of the Vulkan target. Private to backends/vulkan.
 *
 * A module is made in three steps: GLSL text (shader.c picks and joins what the command needs,
 * backends/gpu/emit writes row kernels), shaderc (glsl.c), and a last pass over the SPIR-V (spirv.c). */
#ifndef SBP_VULKAN_SHADERS_H
#define SBP_VULKAN_SHADERS_H

#include "backends/vulkan/abi.h"

/* Those of shaders/, and rowmath.h in GLSL's spelling. */
extern const sbp_gpu_file sbp_vulkan_files[];

/* A shader as text. */
typedef struct sbp_vulkan_shader {
    sbp_gpu_key key;
    const char *text;
    bool exact;  /* nothing may be contracted: rowmath.h and compensated sums count on it */
    bool matrix; /* uses cooperative matrices */
    bool bf16;   /* their inputs are bf16, where the text says float16_t */
} sbp_vulkan_shader;

/* The shader of a module of a command (sbp_vulkan_keys). Below a guard. SBP_MACHINE for what no
 * shader does: a head too large. */
sbp_status sbp_vulkan_shader_make(sbp_arena *arena, sbp_diag *diag, const sbp_program *program,
                                  const sbp_command *command, const sbp_dtype *dtypes, const sbp_gpu_key *key,
                                  sbp_vulkan_shader *out) SBP_CHECKED;

/* GLSL to SPIR-V, by one compiler kept for many shaders. */
typedef struct sbp_vulkan_compiler sbp_vulkan_compiler;
/* NULL when memory runs out. */
sbp_vulkan_compiler *sbp_vulkan_compiler_create(void);
void sbp_vulkan_compiler_destroy(sbp_vulkan_compiler *compiler);
/* SBP_INTERNAL with the compiler's messages when the text is wrong. The words lie in the arena. */
sbp_status sbp_vulkan_compiler_run(sbp_vulkan_compiler *compiler, sbp_arena *arena, sbp_diag *diag,
                                   const sbp_vulkan_shader *shader, sbp_vulkan_module *out) SBP_CHECKED;

/* Cooperative matrices of GL_NV_cooperative_matrix, which every glslang knows, become those of
 * SPV_KHR_cooperative_matrix, and with bf16 its 16-bit floats become bfloat16. *words is replaced by words in
 * the arena. SBP_INTERNAL when an instruction is not what the shaders of this folder lead to. */
sbp_status sbp_vulkan_spirv_matrix(sbp_arena *arena, sbp_diag *diag, const uint32_t **words, int64_t *count,
                                   bool bf16) SBP_CHECKED;
/* The instruction that begins with a word: its number, and its length in words (1 for a damaged 0, so that
 * reading goes on). SPIR-V specification, section 2.3. */
enum { SBP_SPIRV_HEADER_WORDS = 5 };
static inline uint32_t sbp_spirv_op(uint32_t word) {
    return word & 0xffffu;
}
static inline int64_t sbp_spirv_length(uint32_t word) {
    return word >> 16 > 0 ? word >> 16 : 1;
}
/* Removes names, source lines and functions that main does not reach; with `exact`, forbids contraction of
 * all arithmetic that is left. Finds the features it needs. words: valid SPIR-V. */
void sbp_vulkan_spirv_finish(sbp_arena *arena, const uint32_t *words, int64_t count, bool exact,
                             sbp_vulkan_module *out);

#endif
