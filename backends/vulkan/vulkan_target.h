/* vulkan_target.h: the Vulkan backend's compile side. Only in builds that found shaderc. */
#ifndef SBP_BACKENDS_VULKAN_TARGET_H
#define SBP_BACKENDS_VULKAN_TARGET_H

#include "backends/target.h"

extern const sbp_target sbp_vulkan_target;

#endif
