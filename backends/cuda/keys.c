/* keys.c: which kernels a command may need. */
#include "backends/cuda/abi.h"

#include "backends/cuda/cuda_attention.h"
#include "backends/cuda/cuda_delta.h"
#include "backends/cuda/cuda_experts.h"
#include "backends/gpu/row.h"

#include <string.h>

const char *const sbp_cuda_variant_names[SBP_CUDA_VARIANTS] = {
    [SBP_CUDA_PLAIN] = "", [SBP_CUDA_VECTOR] = "vector", [SBP_CUDA_MMA] = "mma", [SBP_CUDA_WGMMA] = "wgmma"};

/* cuBLASLt multiplies operands of one type, adds in fp32 (fp64 for f64), and writes their type or fp32; what
 * is added and a bias have the type of the result. In fp64 it has no bias (cublasLtMatmul, tables of types).
 */
bool sbp_cuda_blas_has(const sbp_dtype *dtypes) {
    sbp_dtype d = dtypes[SBP_GEMM_D], a = dtypes[SBP_GEMM_A], c = dtypes[SBP_GEMM_C],
              bias = dtypes[SBP_GEMM_BIAS];
    if (dtypes[SBP_GEMM_B] != a || (c != SBP_DTYPE_COUNT && c != d) || (bias != SBP_DTYPE_COUNT && bias != d))
        return false;
    switch (a) {
    case SBP_F64:
        return d == SBP_F64 && bias == SBP_DTYPE_COUNT;
    case SBP_F32:
        return d == SBP_F32;
    case SBP_BF16:
    case SBP_F16:
        return d == a || d == SBP_F32;
    default:
        return false;
    }
}

/* The keys of commands that have several kernels in some variant. */
static int32_t variant_keys(const sbp_command *command, const sbp_dtype *dtypes, sbp_cuda_arch arch,
                            sbp_gpu_key *keys) {
    int32_t count = 0;
    for (int32_t variant = 0; variant < SBP_CUDA_VARIANTS; variant++) {
        sbp_gpu_key key = sbp_gpu_key_of(command, dtypes, 0, variant);
        sbp_attributes attributes = sbp_command_attributes(command);
        int32_t steps = attributes == SBP_ATTRIBUTES_ATTENTION ? sbp_cuda_attention_steps(&key, arch)
                        : attributes == SBP_ATTRIBUTES_DELTA   ? sbp_cuda_delta_steps(&key, arch)
                                                               : sbp_cuda_experts_steps(&key, arch);
        for (int32_t step = 0; step < steps; step++)
            keys[count++] = sbp_gpu_key_of(command, dtypes, step, variant);
    }
    return count;
}

/* In which sums of that type are added up. */
static sbp_dtype sum_wide(sbp_dtype dtype) {
    return dtype == SBP_F64 ? SBP_F64 : SBP_F32;
}

sbp_gpu_key sbp_cuda_sum_key(bool adds, sbp_dtype to, sbp_dtype from) {
    sbp_gpu_key key = {.kind = SBP_CMD_COLLECTIVE, .reduce = adds};
    memset(key.dtypes, SBP_DTYPE_COUNT, sizeof key.dtypes);
    key.dtypes[SBP_COLLECTIVE_DST] = (uint8_t)to;
    key.dtypes[SBP_COLLECTIVE_SRC] = (uint8_t)from;
    return key;
}

/* Among all ranks, or those of a group, at once; sums that each has a share of may be of groups first, then
 * of all groups, and rounded at last. */
static int32_t sum_keys(sbp_collective_op op, const sbp_dtype *dtypes, sbp_gpu_key *keys) {
    sbp_dtype to = dtypes[SBP_COLLECTIVE_DST], from = dtypes[SBP_COLLECTIVE_SRC], wide = sum_wide(from);
    const sbp_collective_info *info = &sbp_collectives[op];
    bool adds = info->into == SBP_DST_ADDS;
    switch (info->kind) {
    case SBP_KIND_ALL_REDUCE:
    case SBP_KIND_REDUCE_SCATTER:
        keys[0] = sbp_cuda_sum_key(adds, to, from);
        if (info->among != SBP_AMONG_GROUPS)
            return 1;
        keys[1] = sbp_cuda_sum_key(false, wide, from);
        keys[2] = sbp_cuda_sum_key(false, wide, wide);
        keys[3] = sbp_cuda_sum_key(adds, to, wide);
        return 4;
    case SBP_KIND_TO_ROWS: /* of a head that several ranks have */
        keys[0] = sbp_cuda_sum_key(true, wide, from);
        keys[1] = sbp_cuda_sum_key(false, to, wide);
        return to == wide ? 1 : 2;
    default: /* only moves */
        return 0;
    }
}

int32_t sbp_cuda_keys(const sbp_command *command, const sbp_dtype *dtypes, const sbp_rowkernel *kernel,
                      sbp_cuda_arch arch, sbp_gpu_key *keys) {
    const sbp_command_traits *traits = sbp_command_traits_of(command->kind);
    int32_t steps = sbp_cuda_plain_steps(traits);
    sbp_gpu_row_shape shape;
    if (traits->keyed == SBP_KEYED_NOTHING)
        return 0;
    if (sbp_cuda_has_variants(traits))
        return variant_keys(command, dtypes, arch, keys);
    if (traits->attributes == SBP_ATTRIBUTES_COLLECTIVE &&
        (command->queue == SBP_QUEUE_NET || sbp_is_exchange(command)))
        return sum_keys(command->u.collective.op, dtypes, keys);
    for (int32_t step = 0; step < steps; step++)
        keys[step] = sbp_gpu_key_of(command, dtypes, step, SBP_CUDA_PLAIN);
    if (traits->keyed == SBP_KEYED_KERNEL && sbp_gpu_row_shape_of(kernel, true, &shape))
        keys[steps++] = sbp_gpu_key_of(command, dtypes, 0, SBP_CUDA_VECTOR);
    return steps;
}
