/* cuda_experts.c: kernels of the products of experts: definitions, launches, scratch memory. */
#include "backends/cuda/cuda_experts.h"

#include "ir/base/census.h"

#include <stdio.h>

enum {
    RANGES_THREADS = 1024,
    MMA_TILE = 128,
    MMA_SHARED_BYTES =
        3 * 2 * MMA_TILE * 64 * 2, /* stages, sides, terms at a time: kernels/experts/mma_block.cuh */
    MMA_BLOCKS = 2                 /* of a processor */
};

/* Whether the product is a gradient of the experts' matrices, a sum over slots. */
static bool is_sum(const sbp_gpu_key *key) {
    return sbp_command_traits_of((sbp_command_kind)key->kind)->backward;
}

/* ---- kernels ----------------------------------------------------------------------------------------- */

int32_t sbp_cuda_experts_steps(const sbp_gpu_key *key, sbp_cuda_arch arch) {
    int32_t a = is_sum(key) ? SBP_EXPERT_GEMM_DW_A : SBP_EXPERT_GEMM_A;
    sbp_dtype factor = (sbp_dtype)key->dtypes[a], d = (sbp_dtype)key->dtypes[0];
    switch (key->variant) {
    case SBP_CUDA_PLAIN:
        return SBP_GPU_EXPERT_STEPS;
    case SBP_CUDA_MMA:
        return arch.number >= 80 && (factor == SBP_BF16 || factor == SBP_F16) && (d == SBP_F32 || d == factor)
                   ? SBP_GPU_EXPERT_STEPS
                   : 0;
    default:
        return 0;
    }
}

/* Rows and columns of d that a block computes. */
static int32_t side_of(const sbp_gpu_key *key) {
    return key->variant == SBP_CUDA_MMA ? MMA_TILE : SBP_CUDA_GEMM_TILE;
}

void sbp_cuda_experts_source_of(const sbp_gpu_key *key, sbp_cuda_recipe *out) {
    static const sbp_cuda_recipe
        ranges = {.files = {"experts/experts.cuh", "experts/ranges.cu"}},
        plain[] = {{.files = {"experts/experts.cuh", "gemm_tile.cuh", "experts/expert_gemm.cu"}},
                   {.files = {"experts/experts.cuh", "gemm_tile.cuh", "experts/expert_gemm_dw.cu"}}},
        mma[] = {{.files = {"experts/experts.cuh", "experts/mma.cuh", "attention/tiles.cuh",
                            "experts/mma_block.cuh", "experts/expert_gemm_mma.cu"}},
                 {.files = {"experts/experts.cuh", "experts/mma.cuh", "attention/tiles.cuh",
                            "experts/mma_block.cuh", "experts/expert_gemm_dw_mma.cu"}}};
    *out = key->step == 0 ? ranges : key->variant == SBP_CUDA_MMA ? mma[is_sum(key)] : plain[is_sum(key)];
    int32_t a = is_sum(key) ? SBP_EXPERT_GEMM_DW_A : SBP_EXPERT_GEMM_A;
    snprintf(out->defines, sizeof out->defines,
             "#define TILE %d\n#define TA %d\n#define TB %d\n#define TYPE_Q %d\n#define TYPE_D %d\n",
             side_of(key), is_sum(key), key->tb, key->dtypes[a], key->dtypes[0]);
}

/* ---- launches ---------------------------------------------------------------------------------------- */

/* A product as kernels cut it: pairs, experts, rows and columns of an expert's matrix in d. */
typedef struct sizes {
    int64_t slots, experts, rows, cols;
} sizes;

static int64_t width(const sbp_gpu_operand *o, const sbp_gpu_operand *pairs, bool by_slot) {
    return by_slot ? o->cols / pairs->cols : o->cols;
}

static sizes sizes_of(const sbp_gpu_key *key, const sbp_gpu_args *args) {
    const sbp_gpu_operand *o = args->operands,
                          *pairs = &o[is_sum(key) ? SBP_EXPERT_GEMM_DW_PAIRS : SBP_EXPERT_GEMM_PAIRS];
    sizes s = {.slots = (int64_t)pairs->rows * pairs->cols};
    if (is_sum(key)) {
        s.experts = o[SBP_EXPERT_GEMM_DW_BOUNDS].cols - 1;
        s.rows = width(&o[SBP_EXPERT_GEMM_DW_A], pairs, args->ints[0]);
        s.cols = width(&o[SBP_EXPERT_GEMM_DW_B], pairs, args->ints[1]);
    } else {
        s.experts = o[SBP_EXPERT_GEMM_BOUNDS].cols - 1;
        s.cols = width(&o[SBP_EXPERT_GEMM_D], pairs, true);
    }
    return s;
}

int64_t sbp_cuda_experts_scratch(const sbp_gpu_key *key, const sbp_gpu_args *args) {
    return sbp_gpu_expert_scratch(sizes_of(key, args).experts);
}

/* Whether copies of 16 bytes suit an operand of which slots have `cols` columns each. */
static bool is_aligned(const sbp_gpu_operand *o, int64_t bytes, int64_t cols) {
    return o->address % 16 == 0 && cols * bytes % 16 == 0 && (o->rows <= 1 || o->stride * bytes % 16 == 0);
}

sbp_cuda_variant sbp_cuda_experts_choose(const sbp_gpu_key *key, sbp_cuda_arch arch, const sbp_gpu_args *args,
                                         sbp_cuda_variant most) {
    const sbp_gpu_operand *o = args->operands;
    const sbp_gpu_operand *pairs = &o[is_sum(key) ? SBP_EXPERT_GEMM_DW_PAIRS : SBP_EXPERT_GEMM_PAIRS];
    sbp_gpu_key tried = *key;
    tried.variant = SBP_CUDA_MMA;
    if (most < SBP_CUDA_MMA || sbp_cuda_experts_steps(&tried, arch) == 0 || pairs->stride != pairs->cols)
        return SBP_CUDA_PLAIN;
    const sizes s = sizes_of(key, args);
    bool too_many = s.slots * pairs->cols > UINT32_MAX; /* RowOf of kernels/experts/mma.cuh */
    SBP_CROSS_IF(too_many, cuda_experts_too_many);
    if (too_many)
        return SBP_CUDA_PLAIN;
    int64_t a = is_sum(key) ? s.rows : width(&o[SBP_EXPERT_GEMM_A], pairs, args->ints[0]);
    bool aligned =
        is_sum(key)
            ? is_aligned(&o[SBP_EXPERT_GEMM_DW_A], 2, a) && is_aligned(&o[SBP_EXPERT_GEMM_DW_B], 2, s.cols)
            : is_aligned(&o[SBP_EXPERT_GEMM_A], 2, a) && is_aligned(&o[SBP_EXPERT_GEMM_B], 2, s.cols);
    return aligned && is_aligned(&o[0], sbp_dtype_bytes((sbp_dtype)key->dtypes[0]), s.cols) ? SBP_CUDA_MMA
                                                                                            : SBP_CUDA_PLAIN;
}

/* The most tiles of `side` pairs: each expert has one that is not full, and none has less than a pair. */
static int64_t most_tiles(const sizes *s, int64_t side) {
    int64_t most = s->slots / side + s->experts;
    return most < s->slots ? most : s->slots;
}

int32_t sbp_cuda_experts_launch(const sbp_gpu_key *key, const sbp_cuda_machine *machine,
                                const sbp_gpu_args *args, sbp_cuda_step *steps) {
    const sizes s = sizes_of(key, args);
    bool mma = key->variant == SBP_CUDA_MMA;
    int64_t side = side_of(key);
    int64_t down = is_sum(key) ? s.experts * sbp_ceil_div(s.rows, side) : most_tiles(&s, side);
    int64_t blocks = down * sbp_ceil_div(s.cols, side), at_once = (int64_t)machine->processors * MMA_BLOCKS;
    if (s.slots == 0 && (!is_sum(key) || args->ints[2])) /* sums of nothing are 0 */
        return 0;
    if (mma && !is_sum(key) && machine->processors > 0 && blocks > at_once)
        blocks = at_once;
    for (int32_t i = 0; i < SBP_GPU_EXPERT_STEPS; i++) {
        steps[i] = (sbp_cuda_step){.key = *key, .grid = {1, 1, 1}, .block = {RANGES_THREADS, 1, 1}};
        steps[i].key.step = (uint8_t)i;
    }
    steps[1].grid[0] = (uint32_t)blocks;
    steps[1].block[0] = SBP_CUDA_THREADS;
    steps[1].shared_bytes = mma ? MMA_SHARED_BYTES : 0;
    return SBP_GPU_EXPERT_STEPS;
}
