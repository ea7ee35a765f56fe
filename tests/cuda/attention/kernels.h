/* kernels.h: the text of attention's kernels as the target makes it, and the PTX that NVRTC makes of it. */
#ifndef SBP_TESTS_CUDA_KERNELS_H
#define SBP_TESTS_CUDA_KERNELS_H

#include "backends/cuda/cuda_attention.h"
#include "backends/cuda/target/target.h"

/* False, and "skipped: .." is printed, where there is no NVRTC. */
bool kernels_open(void);
void kernels_close(void);
/* "NVRTC 13.0" */
const char *kernels_version(void);

/* bf16 in and out, sums and lse in fp32, indices of 32 bits. */
sbp_gpu_key kernel_key(bool backward, sbp_cuda_variant variant, int32_t d_qk, int32_t d_v);
sbp_cuda_arch kernel_arch(const char *name); /* "sm_90a" */
/* SBP_KERNEL=TEXT: only kernels with this in their names, for those who change some. */
bool kernel_wanted(const char *name);
/* The caller frees it. */
char *kernel_text(const sbp_gpu_key *key, sbp_cuda_arch arch);
/* out->data is the caller's to free. False: *message says why; it lasts until the next call. */
bool kernel_compile(const char *text, const sbp_gpu_key *key, sbp_cuda_arch arch, sbp_cuda_object *out,
                    sbp_cuda_resources *resources, const char **message);
/* "attn_bwd mma step 1, 128/128, sm_80" */
void kernel_name(const sbp_gpu_key *key, sbp_cuda_arch arch, char name[SBP_GPU_NAME]);

#endif
