/* cuda_probe.h: what CUDA devices there are, without opening one. */
#ifndef SBP_BACKENDS_CUDA_PROBE_H
#define SBP_BACKENDS_CUDA_PROBE_H

#include "backends/choice.h"

/* As backends/choice.h wants it: a device that nothing can be compiled for here says so. */
sbp_probe sbp_cuda_probe;
/* The devices of the driver, whatever else is there, in the order of sbprun --devices, which is the driver's;
 * *out is freed by the caller. SBP_MACHINE says why there is none. */
sbp_status sbp_cuda_candidates(sbp_diag *diag, sbp_candidate **out, int32_t *count) SBP_CHECKED;

#endif
