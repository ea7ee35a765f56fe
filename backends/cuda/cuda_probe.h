/* cuda_probe.h: what CUDA devices there are, without opening one. */
#ifndef SBP_BACKENDS_CUDA_PROBE_H
#define SBP_BACKENDS_CUDA_PROBE_H

#include "backends/choice.h"

/* In the order of sbprun --devices, which is the driver's; *out is freed by the caller. SBP_MACHINE says why
 * there is none. The driver tells free memory only to who has opened a device: free_bytes is all of it. */
sbp_status sbp_cuda_probe(sbp_diag *diag, sbp_candidate **out, int32_t *count) SBP_CHECKED;

#endif
