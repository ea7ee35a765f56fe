/* cuda_experts.c: kernels of the products of experts: definitions, launches, scratch memory. */
#include "backends/cuda/cuda_experts.h"

#include <stdio.h>

enum { RANGES_THREADS = 1024 };

bool sbp_cuda_experts_is(sbp_command_kind kind) {
    return kind == SBP_CMD_EXPERT_GEMM || kind == SBP_CMD_EXPERT_GEMM_DW;
}

static bool is_sum(const sbp_gpu_key *key) {
    return key->kind == SBP_CMD_EXPERT_GEMM_DW;
}

/* ---- kernels ----------------------------------------------------------------------------------------- */

int32_t sbp_cuda_experts_steps(const sbp_gpu_key *key, sbp_cuda_arch arch) {
    (void)arch;
    return key->variant == SBP_CUDA_PLAIN ? SBP_GPU_EXPERT_STEPS : 0;
}

void sbp_cuda_experts_source_of(const sbp_gpu_key *key, sbp_cuda_recipe *out) {
    static const sbp_cuda_recipe ranges = {.files = {"experts/experts.cuh", "experts/ranges.cu"}},
                                 plain[] = {{.files = {"experts/experts.cuh", "gemm_tile.cuh",
                                                       "experts/expert_gemm.cu"}},
                                            {.files = {"experts/experts.cuh", "gemm_tile.cuh",
                                                       "experts/expert_gemm_dw.cu"}}};
    *out = key->step == 0 ? ranges : plain[is_sum(key)];
    snprintf(out->defines, sizeof out->defines, "#define TILE %d\n#define TA %d\n#define TB %d\n",
             SBP_CUDA_GEMM_TILE, is_sum(key), key->tb);
}

sbp_cuda_variant sbp_cuda_experts_choose(const sbp_gpu_key *key, sbp_cuda_arch arch, const sbp_gpu_args *args,
                                         sbp_cuda_variant most) {
    (void)key, (void)arch, (void)args, (void)most;
    return SBP_CUDA_PLAIN;
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

/* At most so many tiles of `side` pairs: each expert has one that is not full, and none has less than a pair. */
static int64_t most_tiles(const sizes *s, int64_t side) {
    int64_t most = s->slots / side + s->experts;
    return most < s->slots ? most : s->slots;
}

int32_t sbp_cuda_experts_launch(const sbp_gpu_key *key, const sbp_cuda_machine *machine,
                                const sbp_gpu_args *args, sbp_cuda_step *steps) {
    (void)machine;
    const sizes s = sizes_of(key, args);
    int64_t side = SBP_CUDA_GEMM_TILE;
    int64_t down = is_sum(key) ? s.experts * sbp_ceil_div(s.rows, side) : most_tiles(&s, side);
    if (s.slots == 0 && (!is_sum(key) || args->ints[2])) /* sums of nothing are 0 */
        return 0;
    for (int32_t i = 0; i < SBP_GPU_EXPERT_STEPS; i++) {
        steps[i] = (sbp_cuda_step){.key = *key, .grid = {1, 1, 1}, .block = {RANGES_THREADS, 1, 1}};
        steps[i].key.step = (uint8_t)i;
    }
    steps[1].grid[0] = (uint32_t)(down * sbp_ceil_div(s.cols, side));
    steps[1].block[0] = SBP_CUDA_THREADS;
    return SBP_GPU_EXPERT_STEPS;
}
