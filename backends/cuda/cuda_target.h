/* cuda_target.h: the CUDA backend's compile side. Needs no GPU and no driver; compiling a program needs
 * NVRTC, opened when it is used. */
#ifndef SBP_BACKENDS_CUDA_CUDA_TARGET_H
#define SBP_BACKENDS_CUDA_CUDA_TARGET_H

#include "backends/target.h"

extern const sbp_target sbp_cuda_target;

#endif
