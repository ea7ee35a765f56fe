/* keys.c: which modules a command needs, and what they are called in messages. */
#include "backends/vulkan/abi.h"

#include <string.h>

/* ---- variants of matmuls --------------------------------------------------------------------------- */

const char *const sbp_vulkan_gemm_names[SBP_VULKAN_ANY] = {[SBP_VULKAN_DIRECT] = "direct",
                                                           [SBP_VULKAN_TILED] = "tiled",
                                                           [SBP_VULKAN_WIDE] = "wide",
                                                           [SBP_VULKAN_MATRIX] = "matrix",
                                                           [SBP_VULKAN_MATRIX_WIDE] = "matrix_wide"};

sbp_vulkan_gemm sbp_vulkan_gemm_named(const char *name) {
    int gemm = 0;
    while (gemm < SBP_VULKAN_ANY && strcmp(sbp_vulkan_gemm_names[gemm], name) != 0)
        gemm++;
    return (sbp_vulkan_gemm)gemm;
}

int32_t sbp_vulkan_gemm_side(sbp_vulkan_gemm gemm) {
    switch (gemm) {
    case SBP_VULKAN_DIRECT:
        return SBP_VULKAN_GEMM_DIRECT;
    case SBP_VULKAN_WIDE:
    case SBP_VULKAN_MATRIX_WIDE:
        return SBP_VULKAN_GEMM_WIDE;
    default:
        return SBP_VULKAN_GEMM_TILED;
    }
}

bool sbp_vulkan_gemm_is_matrix(sbp_vulkan_gemm gemm) {
    return gemm == SBP_VULKAN_MATRIX || gemm == SBP_VULKAN_MATRIX_WIDE;
}

bool sbp_vulkan_gemm_exists(sbp_vulkan_gemm gemm, const sbp_dtype *dtypes) {
    switch (gemm) {
    case SBP_VULKAN_WIDE:
        return dtypes[SBP_GEMM_D] != SBP_F64 && dtypes[SBP_GEMM_A] != SBP_F64 &&
               dtypes[SBP_GEMM_B] != SBP_F64;
    case SBP_VULKAN_MATRIX:
    case SBP_VULKAN_MATRIX_WIDE:
        return dtypes[SBP_GEMM_D] != SBP_F64 && dtypes[SBP_GEMM_A] == dtypes[SBP_GEMM_B] &&
               (dtypes[SBP_GEMM_A] == SBP_F16 || dtypes[SBP_GEMM_A] == SBP_BF16);
    default:
        return true;
    }
}

/* ---- keys ------------------------------------------------------------------------------------------- */

int32_t sbp_vulkan_step_keys(const sbp_command *command, const sbp_dtype *dtypes, sbp_vulkan_gemm gemm,
                             sbp_gpu_key *keys) {
    const sbp_command_traits *traits = sbp_command_traits_of(command->kind);
    int32_t count = traits->items == SBP_ITEMS_NONE ? 0 : 1;
    if (traits->items == SBP_ITEMS_PARTS || (traits->items == SBP_ITEMS_QUERIES && traits->backward))
        count = 2; /* parts, end; dq, then dk and dv */
    if (traits->items == SBP_ITEMS_STATES && traits->backward)
        count = SBP_GPU_DELTA_STEPS; /* columns of states, pairs of rows, rows, what they add up to */
    if (traits->items == SBP_ITEMS_SLOTS)
        count = SBP_GPU_EXPERT_STEPS; /* ranges, product */
    for (int32_t step = 0; step < count; step++)
        keys[step] =
            sbp_gpu_key_of(command, dtypes, step, traits->items == SBP_ITEMS_TILES ? (int32_t)gemm : 0);
    return count;
}

int32_t sbp_vulkan_keys(const sbp_command *command, const sbp_dtype *dtypes, sbp_gpu_key *keys) {
    int32_t count = 0;
    if (sbp_command_traits_of(command->kind)->items != SBP_ITEMS_TILES)
        return sbp_vulkan_step_keys(command, dtypes, SBP_VULKAN_DIRECT, keys);
    for (sbp_vulkan_gemm gemm = SBP_VULKAN_DIRECT; gemm < SBP_VULKAN_ANY; gemm++)
        if (sbp_vulkan_gemm_exists(gemm, dtypes))
            count += sbp_vulkan_step_keys(command, dtypes, gemm, keys + count);
    return count;
}

bool sbp_vulkan_uses_f64(const sbp_command *command, const sbp_rowkernel *kernel) {
    sbp_items items = sbp_command_traits_of(command->kind)->items;
    bool uses = items == SBP_ITEMS_PARTS;
    if (items == SBP_ITEMS_KERNEL_ROWS) {
        uses = kernel->compute == SBP_F64;
        for (int32_t i = 0; i < kernel->operand_count; i++)
            uses |= kernel->operands[i].dtype == SBP_F64;
    }
    return uses;
}

void sbp_vulkan_key_text(const sbp_gpu_key *key, char text[SBP_GPU_NAME]) {
    bool matmul = sbp_command_traits_of((sbp_command_kind)key->kind)->items == SBP_ITEMS_TILES &&
                  key->variant < SBP_VULKAN_ANY;
    sbp_gpu_key_text(key, matmul ? sbp_vulkan_gemm_names[key->variant] : NULL, text);
}
