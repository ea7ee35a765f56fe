/* kernels.h: the text of attention's kernels, put together as the target does it. */
#ifndef SBP_TESTS_CUDA_KERNELS_H
#define SBP_TESTS_CUDA_KERNELS_H

#include "backends/cuda/attention.h"
#include "tests/cuda/attention/nvrtc.h"

/* bf16 in and out, sums and lse in fp32, indices of 32 bits. */
sbp_gpu_key kernel_key(bool backward, sbp_cuda_variant variant, int32_t d_qk, int32_t d_v);
sbp_cuda_arch kernel_arch(const char *name); /* "sm_90a" */
/* The caller frees it. Fails the test when a file is missing. */
char *kernel_text(const sbp_gpu_key *key, sbp_cuda_arch arch);
nvrtc_result kernel_compile(const char *text, sbp_cuda_arch arch);
/* "attn_bwd mma step 1, 128/128, sm_80" */
void kernel_name(const sbp_gpu_key *key, sbp_cuda_arch arch, char name[SBP_GPU_NAME]);

#endif
