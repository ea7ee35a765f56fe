/* vulkan_probe.h: what Vulkan devices there are, without opening one. */
#ifndef SBP_BACKENDS_VULKAN_PROBE_H
#define SBP_BACKENDS_VULKAN_PROBE_H

#include "backends/choice.h"

/* As backends/choice.h wants it. */
sbp_probe sbp_vulkan_probe;

#endif
