/* cuda_delta.c: kernels of delta_rule and its gradient: definitions, launches, scratch memory. */
#include "backends/cuda/cuda_delta.h"

#include "ir/base/census.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum {
    ROW_THREADS = 128,  /* of blocks that add up a row of gradients */
    MMA_THREADS = 256,  /* THREADS of delta_mma.cu */
    MMA_COLUMNS = 64,   /* most of a state that a block has */
    MMA_MOST_D_K = 128, /* a warp has 16 rows of a state */
    STEP_COLUMNS = 16,  /* of matrices of mma.sync */
    BACKWARD_MMA_STEPS = 2
};

static bool is_backward(const sbp_gpu_key *key) {
    return sbp_command_traits_of((sbp_command_kind)key->kind)->backward;
}

static int32_t k_of(const sbp_gpu_key *key) {
    return sbp_command_traits_of((sbp_command_kind)key->kind)->item_operand;
}

/* ---- kernels ----------------------------------------------------------------------------------------- */

/* Whether a step is the part of the backward in which rows of a block affect each other. */
static bool is_of_rows(const sbp_gpu_key *key) {
    return is_backward(key) && key->step == 1;
}

/* Places::ALL of delta_rows_mma.cu: k and q; dO, D twice, dR twice; S twice or C and B twice; nine numbers of
 * each row, one of each warp. */
static int32_t rows_shared_bytes(const sbp_gpu_key *key, int32_t columns) {
    int32_t of_v = sbp_cuda_tile_pitch(columns), states = 2 * key->d_qk * of_v,
            scores = 4 * SBP_DELTA_BLOCK * sbp_cuda_tile_pitch(SBP_DELTA_BLOCK);
    return SBP_DELTA_BLOCK * (2 * sbp_cuda_tile_pitch(key->d_qk) + 5 * of_v + 9 * 4) +
           (states > scores ? states : scores) + MMA_THREADS / 32 * 4;
}

/* Memory::ALL of mma_block.cuh: k and q; S twice; v, R twice, D, backward twice; T twice, A; five numbers of
 * each row. */
static int32_t mma_shared_bytes(const sbp_gpu_key *key, int32_t columns) {
    int32_t of_v = sbp_cuda_tile_pitch(columns), tiles = is_backward(key) ? 5 : 4;
    if (is_of_rows(key))
        return rows_shared_bytes(key, columns);
    return SBP_DELTA_BLOCK * (2 * sbp_cuda_tile_pitch(key->d_qk) + tiles * of_v +
                              2 * sbp_cuda_tile_pitch(SBP_DELTA_BLOCK) + (SBP_DELTA_BLOCK + 4) * 4 + 5 * 4) +
           2 * key->d_qk * of_v;
}

/* Columns of v of a block of threads: the most that fit; 0: none do. */
static int32_t mma_columns(const sbp_gpu_key *key, sbp_cuda_arch arch) {
    int32_t columns = key->d_v < MMA_COLUMNS ? key->d_v : MMA_COLUMNS;
    while (columns > 0 && (key->d_v % columns != 0 || columns % STEP_COLUMNS != 0 ||
                           mma_shared_bytes(key, columns) > sbp_cuda_shared_limit(arch)))
        columns--;
    return columns;
}

/* It corrects, matrices of rows are bf16, and each step fits. */
static bool mma_has(const sbp_gpu_key *key, sbp_cuda_arch arch) {
    sbp_gpu_key of = *key;
    bool fits = true;
    for (of.step = 0; of.step < (is_backward(key) ? BACKWARD_MMA_STEPS : 1); of.step++)
        fits &= mma_columns(&of, arch) > 0;
    return fits && key->reduce && arch.number >= 80 && key->dtypes[k_of(key)] == SBP_BF16 &&
           key->d_qk % STEP_COLUMNS == 0 && key->d_qk <= MMA_MOST_D_K;
}

int32_t sbp_cuda_delta_steps(const sbp_gpu_key *key, sbp_cuda_arch arch) {
    if (key->variant == SBP_CUDA_PLAIN)
        return is_backward(key) ? SBP_GPU_DELTA_STEPS : 1;
    return key->variant != SBP_CUDA_MMA || !mma_has(key, arch) ? 0
           : is_backward(key)                                  ? BACKWARD_MMA_STEPS
                                                               : 1;
}

void sbp_cuda_delta_source_of(const sbp_gpu_key *key, sbp_cuda_arch arch, sbp_cuda_recipe *out) {
    static const sbp_cuda_recipe
        plain[] = {{.files = {"own.cuh", "rowmath.h", "delta/states.cuh", "delta/delta.cuh",
                              "delta/delta_rule.cu"}},
                   {.files = {"own.cuh", "group.cuh", "rowmath.h", "delta/states.cuh", "delta/delta.cuh",
                              "delta/scratch.cuh", "delta/delta_rule_bwd.cu"}}},
        mma[] = {{.files = {"rowmath.h", "delta/states.cuh", "delta/delta.cuh", "delta/mma.cuh",
                            "attention/tiles.cuh", "delta/mma_block.cuh", "delta/delta_mma.cu"}},
                 {.files = {"rowmath.h", "delta/states.cuh", "delta/delta.cuh", "delta/scratch.cuh",
                            "delta/mma.cuh", "attention/tiles.cuh", "delta/mma_block.cuh",
                            "delta/delta_bwd_mma.cu"}},
                 {.files = {"rowmath.h", "delta/states.cuh", "delta/delta.cuh", "delta/scratch.cuh",
                            "delta/mma.cuh", "attention/tiles.cuh", "delta/mma_block.cuh",
                            "delta/delta_rows_mma.cu"}}};
    bool by_mma = key->variant == SBP_CUDA_MMA;
    *out = by_mma ? mma[is_backward(key) + is_of_rows(key)] : plain[is_backward(key)];
    int at = snprintf(out->defines, sizeof out->defines,
                      "#define D_K %d\n#define D_V %d\n#define BLOCK %d\n#define CORRECTS %d\n",
                      (int)key->d_qk, (int)key->d_v, SBP_DELTA_BLOCK, key->reduce);
    snprintf(out->defines + at, sizeof out->defines - (size_t)at,
             by_mma ? "#define V_COLUMNS %d\n" : "#define STEP %d\n",
             by_mma ? (int)mma_columns(key, arch) : key->step);
}

/* Whether every row of what tiles are filled from, and of what is written in pairs, and every state begins at
 * a multiple of 16 bytes. */
static bool is_aligned(const sbp_gpu_key *key, const sbp_gpu_args *args) {
    static const int32_t forward[] = {SBP_DELTA_RULE_O, SBP_DELTA_RULE_Q,     SBP_DELTA_RULE_K,
                                      SBP_DELTA_RULE_V, SBP_DELTA_RULE_STATE, SBP_DELTA_RULE_NEXT},
                         backward[] = {
                             SBP_DELTA_RULE_BWD_DQ, SBP_DELTA_RULE_BWD_DK,    SBP_DELTA_RULE_BWD_DV,
                             SBP_DELTA_RULE_BWD_DO, SBP_DELTA_RULE_BWD_Q,     SBP_DELTA_RULE_BWD_K,
                             SBP_DELTA_RULE_BWD_V,  SBP_DELTA_RULE_BWD_STATE, SBP_DELTA_RULE_BWD_DSTATE};
    const int32_t *places = is_backward(key) ? backward : forward;
    int count = is_backward(key) ? SBP_COUNT(backward) : SBP_COUNT(forward);
    for (int i = 0; i < count; i++) {
        const sbp_gpu_operand *o = &args->operands[places[i]];
        if (o->address % 16 != 0 || (i + 2 < count && o->stride % 8 != 0))
            return false;
    }
    return true;
}

sbp_cuda_variant sbp_cuda_delta_choose(const sbp_gpu_key *key, sbp_cuda_arch arch, const sbp_gpu_args *args,
                                       sbp_cuda_variant most) {
    return most >= SBP_CUDA_MMA && mma_has(key, arch) && is_aligned(key, args) ? SBP_CUDA_MMA
                                                                               : SBP_CUDA_PLAIN;
}

int64_t sbp_cuda_delta_scratch(const sbp_gpu_key *key, const sbp_gpu_args *args) {
    int64_t rows = args->operands[k_of(key)].rows, heads = args->ints[0];
    if (!is_backward(key) &&
        (key->variant == SBP_CUDA_MMA || key->dtypes[SBP_DELTA_RULE_NEXT] != SBP_DTYPE_COUNT))
        return 0;
    const sbp_delta_attrs attrs = {
        .heads = heads, .d_k = key->d_qk, .d_v = key->d_v, .corrects = key->reduce != 0};
    int64_t columns = sbp_gpu_delta_columns(&attrs, is_backward(key));
    return sbp_gpu_delta_rows(rows, is_backward(key)) * columns * (key->dtypes[k_of(key)] == SBP_F64 ? 8 : 4);
}

void sbp_cuda_delta_cross(const sbp_gpu_key *key) {
    bool plain = key->variant == SBP_CUDA_PLAIN;
    if (!key->reduce)
        SBP_CROSS(cuda_delta_adds);
    else if (is_backward(key))
        SBP_CROSS_EITHER(plain, cuda_delta_back_plain, cuda_delta_back_mma);
    else
        SBP_CROSS_EITHER(plain, cuda_delta_plain, cuda_delta_mma);
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

static void mma_launch(const sbp_gpu_key *key, sbp_cuda_arch arch, const sbp_gpu_args *args,
                       sbp_cuda_step *step) {
    int32_t columns = mma_columns(key, arch);
    assert(columns > 0); /* mma_has */
    int64_t windows = sbp_ceil_div(args->operands[k_of(key)].rows, SBP_DELTA_BLOCK);
    step->grid[0] =
        (uint32_t)(is_of_rows(key) ? windows * args->ints[1] : args->ints[0] * (key->d_v / columns));
    step->block[0] = MMA_THREADS;
    step->shared_bytes = (uint32_t)mma_shared_bytes(key, columns);
}

/* With variant MMA the last step alone is PLAIN's: it adds up gradients of decay and hands on dstate. */
int32_t sbp_cuda_delta_launch(const sbp_gpu_key *key, sbp_cuda_arch arch, const sbp_gpu_args *args,
                              sbp_cuda_step *steps) {
    bool by_mma = key->variant == SBP_CUDA_MMA;
    int32_t count = !is_backward(key) ? 1 : by_mma ? BACKWARD_MMA_STEPS + 1 : SBP_GPU_DELTA_STEPS;
    if (is_backward(key) && args->operands[SBP_DELTA_RULE_BWD_K].rows == 0) /* dstate stays */
        return 0;
    for (int32_t i = 0; i < count; i++) {
        bool is_last = is_backward(key) && i == count - 1;
        steps[i] = (sbp_cuda_step){.key = *key, .grid = {1, 1, 1}, .block = {1, 1, 1}};
        steps[i].key.step = (uint8_t)(is_last ? SBP_GPU_DELTA_STEPS - 1 : i);
        if (is_last)
            steps[i].key.variant = SBP_CUDA_PLAIN;
        if (steps[i].key.variant == SBP_CUDA_MMA)
            mma_launch(&steps[i].key, arch, args, &steps[i]);
        else
            plain_launch(&steps[i].key, args, &steps[i]);
    }
    return count;
}
