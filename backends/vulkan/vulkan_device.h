/* vulkan_device.h: the Vulkan device. See backends/vulkan/README.md. */
#ifndef SBP_BACKENDS_VULKAN_DEVICE_H
#define SBP_BACKENDS_VULKAN_DEVICE_H

#include "backends/device.h"

extern const sbp_device_class sbp_vulkan_device;

#endif
