/* devices.c: the list of devices that this build can run plans on. */
#include "backends/devices.h"

#include <string.h>

#include "backends/cpu/cpu_device.h"
#ifdef SBP_HAS_CUDA
#include "backends/cuda/cuda_device.h"
#endif
#ifdef SBP_HAS_VULKAN
#include "backends/vulkan/vulkan_device.h"
#endif

static const sbp_device_class *const classes[] = {
#ifdef SBP_HAS_CUDA
    &sbp_cuda_device,
#endif
#ifdef SBP_HAS_VULKAN
    &sbp_vulkan_device,
#endif
    &sbp_cpu_device};

const sbp_device_class *sbp_device_at(int32_t index) {
    return index >= 0 && index < SBP_COUNT(classes) ? classes[index] : NULL;
}

const sbp_device_class *sbp_device_find(const char *backend) {
    for (int i = 0; i < SBP_COUNT(classes); i++)
        if (strcmp(classes[i]->name, backend) == 0)
            return classes[i];
    return NULL;
}

const struct sbp_transport *sbp_device_transport(void) {
    for (int i = 0; i < SBP_COUNT(classes); i++)
        if (classes[i]->transport)
            return classes[i]->transport;
    return NULL;
}
