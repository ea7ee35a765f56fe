/* cuda_device.h: the CUDA device. See backends/cuda/README.md. */
#ifndef SBP_BACKENDS_CUDA_DEVICE_H
#define SBP_BACKENDS_CUDA_DEVICE_H

#include "backends/device.h"

extern const sbp_device_class sbp_cuda_device;

#endif
