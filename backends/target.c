/* target.c: the list of backends that this build can compile for. */
#include "backends/target.h"

#include <string.h>

#include "backends/cpu/cpu_target.h"
#include "backends/cuda/cuda_target.h"
#include "backends/vulkan/vulkan_target.h"

static const sbp_target *const targets[] = {
    &sbp_cpu_target,
    &sbp_cuda_target,
#ifdef SBP_HAVE_VULKAN_TARGET
    &sbp_vulkan_target,
#endif
};

const sbp_target *sbp_target_at(int32_t index) {
    return index >= 0 && index < SBP_COUNT(targets) ? targets[index] : NULL;
}

const sbp_target *sbp_target_find(const char *name) {
    for (int32_t i = 0; i < SBP_COUNT(targets); i++)
        if (strcmp(targets[i]->name, name) == 0)
            return targets[i];
    return NULL;
}
