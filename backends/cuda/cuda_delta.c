/* cuda_delta.c: kernels of the delta rule: definitions, launches, scratch memory. */
#include "backends/cuda/cuda_delta.h"

#include <stdio.h>
#include <string.h>

enum { ROW_THREADS = 128 /* of blocks that add up a row of gradients */ };

bool sbp_cuda_delta_is(sbp_command_kind kind) {
    return kind == SBP_CMD_DELTA_RULE || kind == SBP_CMD_DELTA_RULE_BWD;
}

static bool is_backward(const sbp_gpu_key *key) {
    return key->kind == SBP_CMD_DELTA_RULE_BWD;
}

static int32_t k_of(const sbp_gpu_key *key) {
    return is_backward(key) ? SBP_DELTA_RULE_BWD_K : SBP_DELTA_RULE_K;
}

/* ---- kernels ----------------------------------------------------------------------------------------- */

int32_t sbp_cuda_delta_steps(const sbp_gpu_key *key, sbp_cuda_arch arch) {
    if (!sbp_cuda_delta_is((sbp_command_kind)key->kind))
        return 0;
    if (key->variant == SBP_CUDA_PLAIN)
        return is_backward(key) ? SBP_GPU_DELTA_STEPS : 1;
    (void)arch;
    return 0;
}

void sbp_cuda_delta_source_of(const sbp_gpu_key *key, sbp_cuda_arch arch, sbp_cuda_recipe *out) {
    static const sbp_cuda_recipe plain[] = {
        {.files = {"own.cuh", "rowmath.h", "delta/delta.cuh", "delta/delta_rule.cu"}},
        {.files = {"own.cuh", "group.cuh", "rowmath.h", "delta/delta.cuh", "delta/delta_rule_bwd.cu"}}};
    (void)arch;
    *out = plain[is_backward(key)];
    snprintf(out->defines, sizeof out->defines,
             "#define D_K %d\n#define D_V %d\n#define BLOCK %d\n#define STEP %d\n", (int)key->d_qk,
             (int)key->d_v, SBP_DELTA_BLOCK, key->step);
}

sbp_cuda_variant sbp_cuda_delta_choose(const sbp_gpu_key *key, sbp_cuda_arch arch, const sbp_gpu_args *args,
                                       sbp_cuda_variant most) {
    (void)key, (void)arch, (void)args, (void)most;
    return SBP_CUDA_PLAIN;
}

int64_t sbp_cuda_delta_scratch(const sbp_gpu_key *key, const sbp_gpu_args *args) {
    int64_t rows = args->operands[k_of(key)].rows, heads = args->ints[0];
    if (!is_backward(key) && key->dtypes[SBP_DELTA_RULE_NEXT] != SBP_DTYPE_COUNT)
        return 0;
    const sbp_delta_attrs attrs = {.heads = heads, .d_k = key->d_qk, .d_v = key->d_v};
    return sbp_gpu_delta_rows(rows, is_backward(key)) * sbp_gpu_delta_columns(&attrs, is_backward(key)) *
           (key->dtypes[k_of(key)] == SBP_F64 ? 8 : 4);
}

/* ---- launches ---------------------------------------------------------------------------------------- */

static void plain_launch(const sbp_gpu_key *key, const sbp_gpu_args *args, sbp_cuda_step *step) {
    int64_t rows = args->operands[k_of(key)].rows, heads = args->ints[0];
    switch (key->step) {
    case 0:
        sbp_cuda_step_spread(step, heads, key->d_v);
        break;
    case 1:
        sbp_cuda_step_spread(step, rows, heads * SBP_DELTA_BLOCK);
        break;
    case 2:
        step->grid[0] = (uint32_t)(rows * args->ints[1]);
        step->block[0] = ROW_THREADS;
        break;
    default:
        sbp_cuda_step_spread(step, rows, heads);
        break;
    }
}

int32_t sbp_cuda_delta_launch(const sbp_gpu_key *key, sbp_cuda_arch arch, const sbp_gpu_args *args,
                              sbp_cuda_step *steps) {
    int32_t count = sbp_cuda_delta_steps(key, arch);
    if (is_backward(key) && args->operands[SBP_DELTA_RULE_BWD_K].rows == 0) /* dstate stays */
        return 0;
    for (int32_t i = 0; i < count; i++) {
        steps[i] = (sbp_cuda_step){.key = *key, .grid = {1, 1, 1}, .block = {1, 1, 1}};
        steps[i].key.step = (uint8_t)i;
        plain_launch(&steps[i].key, args, &steps[i]);
    }
    return count;
}
