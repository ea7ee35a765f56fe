/* cuda_attention.h: which kernels attention has, what their text is made of, and how they are launched. The
 * kernels and their tiles: kernels/attention/README.md.
 *
 * A variant of attention (sbp_cuda_variant) is one to SBP_CUDA_STEPS kernels, launched one after the other:
 * key.step says which. PLAIN takes any shape, type and address. MMA and WGMMA take bf16 or fp16 with heads of
 * whole steps of 16 columns, rows of all operands at multiples of 16 bytes. Which of them runs depends on
 * addresses too, so the target compiles every variant that there is.
 *
 * Needs no driver and no compiler. Threads: no state. */
#ifndef SBP_BACKENDS_CUDA_CUDA_ATTENTION_H
#define SBP_BACKENDS_CUDA_CUDA_ATTENTION_H

#include "backends/cuda/abi.h"

/* How many kernels this variant (key->variant) has for these shapes and types on this architecture; 0: there
 * is no such variant. key->step does not matter. */
int32_t sbp_cuda_attention_steps(const sbp_gpu_key *key, sbp_cuda_arch arch);

/* The most columns of a head that tiles of MMA and WGMMA are made for: longer ones have PLAIN alone. */
enum { SBP_CUDA_ATTENTION_COLUMNS = 512 };

/* Heads of more columns than these are summed in two parts: two warps sum half of the columns each, and both
 * make the scores (Parts of mma.cuh). */
enum { SBP_CUDA_ATTENTION_PART_COLUMNS = 256 };

enum { SBP_CUDA_ATTENTION_TEXTS = 7, SBP_CUDA_ATTENTION_DEFINES = 768 };

/* The text of a kernel: the prelude, the definitions, then these files of kernels/attention/, in this order.
 */
typedef struct sbp_cuda_attention_source {
    const char *files[SBP_CUDA_ATTENTION_TEXTS]; /* "common.cuh"; NULL after the last */
    char defines[SBP_CUDA_ATTENTION_DEFINES];    /* "#define D_QK 64\n.." */
} sbp_cuda_attention_source;

/* step: below sbp_cuda_attention_steps(). */
void sbp_cuda_attention_source_of(const sbp_gpu_key *key, sbp_cuda_arch arch, sbp_cuda_attention_source *out);

/* The best variant for operands at these addresses; `most`: none better than this one. */
sbp_cuda_variant sbp_cuda_attention_choose(const sbp_gpu_key *key, sbp_cuda_arch arch,
                                           const sbp_gpu_args *args, sbp_cuda_variant most);

/* What a plan gives the backward pass as operand `work` (sbp_target_info): the scratch memory of every
 * variant fits in. WGMMA's has sums of dq in fp32 beside that (attention_partials 1). */
enum { SBP_CUDA_WORK_HEAD_ELEMS = 3, SBP_CUDA_WORK_ROW_ELEMS = 5, SBP_CUDA_WORK_MORE_ROWS = 127 };

/* Bytes of scratch memory of key->variant; args: heads (ints) and the rows of q count. */
int64_t sbp_cuda_attention_scratch(const sbp_gpu_key *key, sbp_cuda_arch arch, const sbp_gpu_args *args);

/* Says which way a command goes by a key (ir/base/census.h). */
void sbp_cuda_attention_cross(const sbp_gpu_key *key, sbp_cuda_arch arch);
/* The launches of key->variant in order; returns their number, 0 without rows or keys. */
int32_t sbp_cuda_attention_launch(const sbp_gpu_key *key, sbp_cuda_arch arch, const sbp_gpu_args *args,
                                  sbp_cuda_step *steps);

#endif
