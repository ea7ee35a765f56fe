/* vulkan_probe.h: what Vulkan devices there are, without opening one. */
#ifndef SBP_BACKENDS_VULKAN_PROBE_H
#define SBP_BACKENDS_VULKAN_PROBE_H

#include "backends/choice.h"

/* In the order of sbprun --devices; *out is freed by the caller. SBP_MACHINE says why there is none. */
sbp_status sbp_vulkan_probe(sbp_diag *diag, sbp_candidate **out, int32_t *count) SBP_CHECKED;

#endif
