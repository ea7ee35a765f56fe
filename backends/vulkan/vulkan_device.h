/* vulkan_device.h: the Vulkan device. See backends/vulkan/README.md. */
#ifndef SBP_BACKENDS_VULKAN_DEVICE_H
#define SBP_BACKENDS_VULKAN_DEVICE_H

#include "backends/device.h"

extern const sbp_device_class sbp_vulkan_device;

/* Whether device `index` can compute matmuls of this type, f16 or bf16, by cooperative matrices; false also
 * where there is no such device. */
bool sbp_vulkan_device_has_matrix(int32_t index, sbp_dtype dtype);

/* For tests: runs nothing, but fails a wait when fences do not order what conflicts (shadow.c). Reads give 0.
 * SBP_MACHINE on create where the validation layer is not installed. */
extern const sbp_device_class sbp_vulkan_shadow_device;
/* Records a shadow without one of the fences of its program; NULL: with all. */
void sbp_vulkan_shadow_skip(sbp_device *device, const sbp_command *fence);

#endif
