/* cuda_experts.h: which kernels expert_gemm and expert_gemm_dw have, what their text is made of, how they are
 * launched: kernels/experts. Step 0 finds the slots of each expert, step 1 multiplies, tile by tile.
 *
 * PLAIN takes any type and address. MMA takes bf16 or fp16 with sums or results in fp32 or the same, rows of
 * all operands at multiples of 16 bytes, pairs without gaps.
 *
 * Needs no driver and no compiler. Threads: no state. */
#ifndef SBP_BACKENDS_CUDA_CUDA_EXPERTS_H
#define SBP_BACKENDS_CUDA_CUDA_EXPERTS_H

#include "backends/cuda/abi.h"

/* How many kernels this variant (key->variant) has on this architecture; 0: there is no such variant. */
int32_t sbp_cuda_experts_steps(const sbp_gpu_key *key, sbp_cuda_arch arch);

void sbp_cuda_experts_source_of(const sbp_gpu_key *key, sbp_cuda_recipe *out);

/* The best variant for operands at these addresses; `most`: none better than this one. */
sbp_cuda_variant sbp_cuda_experts_choose(const sbp_gpu_key *key, sbp_cuda_arch arch, const sbp_gpu_args *args,
                                         sbp_cuda_variant most);

/* Bytes of scratch memory. */
int64_t sbp_cuda_experts_scratch(const sbp_gpu_key *key, const sbp_gpu_args *args);

/* The launches of key->variant in order; returns their number. */
int32_t sbp_cuda_experts_launch(const sbp_gpu_key *key, const sbp_cuda_machine *machine,
                                const sbp_gpu_args *args, sbp_cuda_step *steps);

#endif
