/* abi.h: what the CUDA target (compile) and device (run) agree on, beyond backends/gpu/gpu.h: for which
 * architectures a plan carries which code, and how the kernels of a command are launched.
 *
 * Every kernel is `extern "C" __global__ void kernel(const __grid_constant__ Args args, ..)`, Args being
 * sbp_gpu_args (kernels/prelude.cuh), by value, its operands' addresses absolute; those with tensor maps have
 * them as further parameters of the same kind, in the order of sbp_cuda_step. An image is what NVRTC made of
 * one kernel for one architecture: a cubin, and the PTX of the same compilation. Launch with kernelParams,
 * never with a packed buffer: tensor maps are aligned to 64 bytes (the cubin says where they lie).
 *
 * Products are cuBLASLt's where the device opened it and it has them (sbp_cuda_blas_has), else a kernel of
 * ours, which every plan has: slow, but any type and shape. No unordered atomics: equal inputs give equal
 * bits on the same device, with the same libraries.
 *
 * Nothing here needs a driver, a compiler or a library of NVIDIA's. Threads: no state. */
#ifndef SBP_CUDA_ABI_H
#define SBP_CUDA_ABI_H

#include "backends/gpu/gpu.h"
#include "ir/base/census.h"

/* ---- architectures ---------------------------------------------------------------------------------- */

/* As NVRTC names them: sm_80, sm_90a. A number is 10 * major + minor (120 for 12.0). */
typedef struct sbp_cuda_arch {
    int32_t number;
    bool specific; /* with the features of exactly this one ("a") */
} sbp_cuda_arch;

enum { SBP_CUDA_ARCHS = 16 };

/* "sm_90a", or a list "sm_80,sm_90a", sorted and without doubles; false when it is none or too long. */
bool sbp_cuda_archs_parse(const char *text, sbp_cuda_arch archs[SBP_CUDA_ARCHS], int32_t *count);
/* "sm_90a" */
void sbp_cuda_arch_text(sbp_cuda_arch arch, char text[16]);
/* The best of a list for a device of compute capability `number`: the same number with "a" before the one
 * without, else the highest below it of the same major that is not specific (cubins run on later minors);
 * -1 when there is none. */
int32_t sbp_cuda_arch_choose(const sbp_cuda_arch *archs, int32_t count, int32_t number);

/* Dynamic shared memory that a block may have. */
int32_t sbp_cuda_shared_limit(sbp_cuda_arch arch);

/* ---- images ----------------------------------------------------------------------------------------- */

/* The format of the container, and the tag of an image: the architecture, and whether it is PTX. */
extern const sbp_gpu_format sbp_cuda_format;
uint32_t sbp_cuda_tag(sbp_cuda_arch arch, bool ptx);
void sbp_cuda_tag_read(uint32_t tag, sbp_cuda_arch *arch, bool *ptx);

/* ---- memory beside the arena ------------------------------------------------------------------------ */

enum {
    /* With several ranks: what of the others' shares arrives at a time, and staging of what lies on the host;
     * what NCCL itself takes for its connections and kernels, of which that is a guess. */
    SBP_CUDA_NET_BYTES = 64 << 20,
    SBP_CUDA_NCCL_BYTES = 512 << 20,
    /* What a driver takes for a context and its kernels: nvidia-smi shows 400 to 550 MiB for an idle process
     * on A100 and H100. */
    SBP_CUDA_CONTEXT_BYTES = 500 << 20,
    /* The workspace of the compute stream, for what cuBLASLt and commands want beside their operands: as much
     * as NVIDIA advises for Hopper (cublasSetWorkspace); the same every run, for equal bits. */
    SBP_CUDA_WORKSPACE_BYTES = 32 << 20
};

/* ---- steps ------------------------------------------------------------------------------------------ */

enum {
    SBP_CUDA_STEPS = 4,      /* most kernels of one command */
    SBP_CUDA_TENSOR_MAPS = 8 /* most of one kernel */
};

/* Ways to compute the same: sbp_gpu_key.variant. */
typedef enum sbp_cuda_variant {
    SBP_CUDA_PLAIN,  /* any shape and type: attention and products one thread per number or tile of threads */
    SBP_CUDA_VECTOR, /* row kernels: 16 bytes at once; rows must begin at multiples of them */
    SBP_CUDA_MMA,    /* attention and the delta rule by mma.sync, sm_80 and up */
    SBP_CUDA_WGMMA,  /* attention by wgmma and TMA, sm_90a */
    SBP_CUDA_VARIANTS
} sbp_cuda_variant;
extern const char *const sbp_cuda_variant_names[SBP_CUDA_VARIANTS]; /* "", "vector", "mma", "wgmma" */

/* Shared with the kernels. */
enum {
    SBP_CUDA_GEMM_TILE = 64,        /* rows and columns of d that a block computes */
    SBP_CUDA_COLSUM_COLUMNS = 16,   /* of a block */
    SBP_CUDA_REDUCE_BLOCKS = 512,   /* most, each leaving one f64 in the scratch memory */
    SBP_CUDA_REDUCE_ELEMS = 1 << 14 /* elements for which another block is worth it */
};

/* Behind the prelude, elements.cuh and the operands of a kernel come its definitions, then these files of
 * kernels/, in this order. */
typedef struct sbp_cuda_recipe {
    const char *files[8]; /* NULL after the last */
    char defines[256];
} sbp_cuda_recipe;

/* A box of a matrix in global memory, as cuTensorMapEncodeTiled wants it; dimensions innermost first, strides
 * in bytes from dimension 1 on. Zeros are read outside. */
typedef struct sbp_cuda_tensor_map {
    uint64_t address;
    sbp_dtype dtype;
    int32_t rank, swizzle; /* of 0, 32, 64, 128 bytes */
    uint64_t dims[5], strides[4];
    uint32_t box[5];
} sbp_cuda_tensor_map;

typedef struct sbp_cuda_step {
    sbp_gpu_key key;
    uint32_t grid[3], block[3];
    uint32_t shared_bytes; /* dynamic */
    /* Bytes from `clear_from` of the scratch memory on that are zeros before the kernel runs; 0: none. */
    int64_t clear_from, clear_bytes;
    int32_t map_count;
    sbp_cuda_tensor_map maps[SBP_CUDA_TENSOR_MAPS];
} sbp_cuda_step;

enum {
    SBP_CUDA_THREADS = 256, /* of a block, but for row kernels and attention */
    SBP_CUDA_MOST_BLOCKS_Y = 65535
};

/* A thread per element: threads side by side along columns first; kernels go on in strides of
 * the whole grid. */
static inline void sbp_cuda_step_spread(sbp_cuda_step *step, int64_t rows, int64_t cols) {
    uint32_t wide = 1;
    while (wide < SBP_CUDA_THREADS && wide < cols)
        wide *= 2;
    int64_t down = sbp_ceil_div(rows, SBP_CUDA_THREADS / wide);
    step->block[0] = wide;
    step->block[1] = SBP_CUDA_THREADS / wide;
    step->grid[0] = (uint32_t)sbp_ceil_div(cols, wide);
    SBP_CROSS_EITHER(down > SBP_CUDA_MOST_BLOCKS_Y, cuda_grid_in_strides, cuda_grid_whole);
    step->grid[1] = (uint32_t)(down < 1 ? 1 : down < SBP_CUDA_MOST_BLOCKS_Y ? down : SBP_CUDA_MOST_BLOCKS_Y);
}

/* Bytes of a row of a tile of 16-bit elements in shared memory: Tile::PITCH of
 * kernels/attention/tiles.cuh. */
static inline int32_t sbp_cuda_tile_pitch(int32_t columns) {
    return columns * 2 + (columns % 64 == 0 ? 0 : 16);
}

/* What launches depend on beside the command. */
typedef struct sbp_cuda_machine {
    sbp_cuda_arch arch;   /* that of the images in use */
    int32_t processors;   /* SMs */
    int32_t shared_bytes; /* that a block may have, dynamic; 0: not known */
    bool blas;            /* there is cuBLASLt: its products have no launches */
    int32_t variant;      /* attention: no better one than this; tests. SBP_CUDA_VARIANTS: any */
    /* Whether there is an image of a kernel: plans may lack variants (target/target.h). NULL: of all. */
    bool (*has)(const void *owner, const sbp_gpu_key *key);
    const void *owner;
} sbp_cuda_machine;

/* A sum over ranks, or over groups of them: to = or, with adds, += this rank's own addends and those of the
 * others, which are one behind the other in the order of their numbers, `stride` elements from one to the
 * next. In fp32, fp64 where they are f64; rounded once. With one rank it only rounds. */
typedef struct sbp_cuda_sum {
    bool adds;
    uint64_t to, own, arrived; /* addresses */
    sbp_dtype to_dtype, from_dtype;
    int64_t elems, stride; /* below 2^31 */
    int32_t me, count;     /* this one's place among them, and how many there are */
    int64_t rows;          /* of which elems are, so far apart at `to` and `own`; 0: they are one row */
    int64_t to_stride, own_stride;
} sbp_cuda_sum;

/* Its kernel. */
sbp_gpu_key sbp_cuda_sum_key(bool adds, sbp_dtype to, sbp_dtype from);
/* Its launch. args: zeros, is filled. */
void sbp_cuda_sum_step(const sbp_cuda_sum *sum, sbp_gpu_args *args, sbp_cuda_step *step);

/* Whether a command has kernels of its own in several variants: cuda_attention.h, cuda_delta.h,
 * cuda_experts.h. */
static inline bool sbp_cuda_has_variants(const sbp_command_traits *traits) {
    return traits->attributes == SBP_ATTRIBUTES_ATTENTION || traits->attributes == SBP_ATTRIBUTES_DELTA ||
           traits->attributes == SBP_ATTRIBUTES_EXPERTS;
}
/* How many launches each other command has. */
static inline int32_t sbp_cuda_plain_steps(const sbp_command_traits *traits) {
    return traits->items == SBP_ITEMS_PARTS ? 2 : 1;
}

/* Whether cuBLASLt has a product of these types (d, a, b, c, bias; SBP_DTYPE_COUNT: absent). */
bool sbp_cuda_blas_has(const sbp_dtype *dtypes);

/* The keys that a command may need on some machine of this architecture, for the target: every variant that
 * its shapes and types allow. kernel: of a row command. At most SBP_CUDA_STEPS * SBP_CUDA_VARIANTS; returns
 * their number, 0 for fences. */
int32_t sbp_cuda_keys(const sbp_command *command, const sbp_dtype *dtypes, const sbp_rowkernel *kernel,
                      sbp_cuda_arch arch, sbp_gpu_key *keys);

/* The launches of a command whose spans were checked, in order, one after the other on one stream; returns
 * their number: 0 when there is nothing to do, for fences, and for products that cuBLASLt has. args is filled
 * (sbp_gpu_args_fill) and gets what only the launch knows (ints[8], ints[9]). */
int32_t sbp_cuda_steps(const sbp_dispatch *dispatch, const sbp_cuda_machine *machine, sbp_gpu_args *args,
                       sbp_cuda_step *steps);
/* Bytes of scratch memory that its steps need, from a multiple of 16 on. */
int64_t sbp_cuda_scratch_bytes(const sbp_dispatch *dispatch, const sbp_cuda_machine *machine);
/* Where the program has planned it: an operand of the command. NULL: nowhere, then it is the workspace of the
 * stream. */
const sbp_span *sbp_cuda_scratch_planned(const sbp_dispatch *dispatch);

#endif
