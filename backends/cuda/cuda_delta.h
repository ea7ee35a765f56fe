/* cuda_delta.h: which kernels delta_rule and delta_rule_bwd have, what their text is made of, how they are
 * launched.
 *
 * PLAIN takes any shape, type and address: a thread per column of a state, row by row, and backward what rows
 * of a block add to each other (kernels/delta/delta_rule*.cu). MMA is by tensor cores, where the command
 * corrects: all of delta_rule, and of delta_rule_bwd what goes from block to block of rows and what rows of a
 * block give each other; the last step, sums over rows, is PLAIN's (kernels/delta/delta_mma.cu,
 * delta_bwd_mma.cu, delta_rows_mma.cu). It takes bf16, d_k and d_v of whole steps of 16 columns, d_k up to
 * 128, rows that begin at multiples of 16 bytes.
 *
 * Needs no driver and no compiler. Threads: no state. */
#ifndef SBP_BACKENDS_CUDA_CUDA_DELTA_H
#define SBP_BACKENDS_CUDA_CUDA_DELTA_H

#include "backends/cuda/abi.h"

/* How many kernels this variant (key->variant) has of its own for these shapes and types on this
 * architecture; 0: there is no such variant. */
int32_t sbp_cuda_delta_steps(const sbp_gpu_key *key, sbp_cuda_arch arch);

void sbp_cuda_delta_source_of(const sbp_gpu_key *key, sbp_cuda_arch arch, sbp_cuda_recipe *out);

/* How many times as long MMA takes as attention by mma.sync does for as many operations: from the counts of
 * instructions that delta_rule and delta_rule_bwd execute (tests/bench/delta_count.c). It was not timed. */
enum { SBP_CUDA_DELTA_MMA_TIMES = 3, SBP_CUDA_DELTA_BWD_MMA_TIMES = 4 };

/* The best variant for operands at these addresses; `most`: none better than this one. */
sbp_cuda_variant sbp_cuda_delta_choose(const sbp_gpu_key *key, sbp_cuda_arch arch, const sbp_gpu_args *args,
                                       sbp_cuda_variant most);

/* Says which way a command goes by a key (ir/base/census.h). */
void sbp_cuda_delta_cross(const sbp_gpu_key *key);

/* Bytes of scratch memory of key->variant. */
int64_t sbp_cuda_delta_scratch(const sbp_gpu_key *key, const sbp_gpu_args *args);

/* The launches of key->variant in order; returns their number. */
int32_t sbp_cuda_delta_launch(const sbp_gpu_key *key, sbp_cuda_arch arch, const sbp_gpu_args *args,
                              sbp_cuda_step *steps);

#endif
