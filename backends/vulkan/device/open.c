/* open.c: one device of a driver with its queues, and what a failed call means. */
#include "backends/vulkan/device/vulkan.h"

#include <stdlib.h>
#include <string.h>

/* What the machine lacks, or what its driver does; else we are at fault. */
static bool is_machine(VkResult result) {
    switch (result) {
    case VK_ERROR_OUT_OF_HOST_MEMORY:
    case VK_ERROR_OUT_OF_DEVICE_MEMORY:
    case VK_ERROR_DEVICE_LOST:
    case VK_ERROR_INITIALIZATION_FAILED:
    case VK_ERROR_MEMORY_MAP_FAILED:
    case VK_ERROR_EXTENSION_NOT_PRESENT:
    case VK_ERROR_FEATURE_NOT_PRESENT:
    case VK_ERROR_TOO_MANY_OBJECTS:
        return true;
    default:
        return false;
    }
}

sbp_status vulkan_fail(vulkan_device *d, VkResult result, const char *what, sbp_diag *diag) {
    const char *name = d->physical.properties.deviceName;
    int length = (int)strcspn(what, "(");
    d->broken = result;
    if (result != VK_ERROR_OUT_OF_DEVICE_MEMORY && result != VK_ERROR_OUT_OF_HOST_MEMORY)
        return sbp_fail(diag, is_machine(result) ? SBP_MACHINE : SBP_INTERNAL, "vulkan: %s: %s (%d, in %.*s)",
                        name, vulkan_result_text(result), (int)result, length, what);
    char need[32] = "", have[32], taken[32];
    if (d->program)
        sbp_format_bytes(need, sizeof need, (double)d->program->arena_bytes[SBP_DEVICE]);
    return sbp_fail(
        diag, SBP_MACHINE,
        "vulkan: %s: %s (in %.*s); %s%s%sits memory has %s, of which %s are taken for this plan", name,
        vulkan_result_text(result), length, what, *need ? "the plan needs " : "", need,
        *need ? " for its buffers, " : "",
        sbp_format_bytes(have, sizeof have, (double)d->physical.memory.memoryHeaps[d->physical.heap].size),
        sbp_format_bytes(taken, sizeof taken, (double)d->allocated_bytes));
}

/* ---- opening ---------------------------------------------------------------------------------------- */

static sbp_status choose_physical(vulkan_device *d, int32_t index, sbp_diag *diag) {
    vulkan_physical *list;
    int32_t count;
    SBP_TRY(vulkan_physical_list(&d->vk, diag, &list, &count));
    bool there = index >= 0 && index < count;
    if (there)
        d->physical = list[index];
    free(list);
    if (there)
        return SBP_OK;
    return sbp_fail(diag, SBP_MACHINE,
                    "vulkan: there is no device %d: this machine has %d (sbprun --devices)", index, count);
}

/* Queue 0 of the compute family; for copies that of the transfer family, if there is one. */
static sbp_status create_device(vulkan_device *d, sbp_diag *diag) {
    const vulkan_physical *p = &d->physical;
    float priority = 1;
    d->families[0] = (uint32_t)p->compute_family;
    d->family_count = 1;
    if (p->transfer_family >= 0)
        d->families[d->family_count++] = (uint32_t)p->transfer_family;
    d->separate = d->family_count > 1 || vulkan_test_asks("streams");
    VkDeviceQueueCreateInfo queues[2];
    for (int32_t i = 0; i < d->family_count; i++)
        queues[i] = (VkDeviceQueueCreateInfo){.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                              .queueFamilyIndex = d->families[i],
                                              .queueCount = 1,
                                              .pQueuePriorities = &priority};
    vulkan_features features;
    vulkan_features_wanted(p, &features);
    const char *extensions[3];
    uint32_t extension_count = 0;
    if (p->memory_budget)
        extensions[extension_count++] = VK_EXT_MEMORY_BUDGET_EXTENSION_NAME;
    if (p->has_matrix)
        extensions[extension_count++] = VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME;
    if (p->has_bfloat16)
        extensions[extension_count++] = VK_KHR_SHADER_BFLOAT16_EXTENSION_NAME;
    VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                               .pNext = &features.base,
                               .queueCreateInfoCount = (uint32_t)d->family_count,
                               .pQueueCreateInfos = queues,
                               .enabledExtensionCount = extension_count,
                               .ppEnabledExtensionNames = extensions};
    VULKAN_TRY(d, diag, CreateDevice(p->handle, &info, NULL, &d->device));
    SBP_TRY(vulkan_api_open_device(&d->vk, d->device, diag));
    for (int i = 0; i < VULKAN_STREAMS; i++) {
        vulkan_stream *s = &d->streams[i];
        s->family = d->families[i == VULKAN_COMPUTE ? 0 : d->family_count - 1];
        s->computes = s->family == d->families[0];
        d->vk.GetDeviceQueue(d->device, s->family, 0, &s->queue);
    }
    return SBP_OK;
}

/* The variant of matmuls that SBP_VULKAN_GEMM names. */
static sbp_status wanted_gemm(sbp_vulkan_machine *machine, sbp_diag *diag) {
    const char *name = getenv("SBP_VULKAN_GEMM");
    machine->gemm = SBP_VULKAN_ANY;
    if (!name || !*name)
        return SBP_OK;
    machine->by_size = strcmp(name, "by_size") == 0;
    machine->gemm = sbp_vulkan_gemm_named(name);
    if (machine->gemm != SBP_VULKAN_ANY || machine->by_size)
        return SBP_OK;
    return sbp_fail(diag, SBP_USAGE,
                    "SBP_VULKAN_GEMM is '%s'; it may be direct, tiled, wide, matrix, matrix_wide or by_size",
                    name);
}

static void describe_machine(vulkan_device *d) {
    const VkPhysicalDeviceLimits *limits = &d->physical.properties.limits;
    d->machine = (sbp_vulkan_machine){.software = vulkan_is_software(&d->physical),
                                      .lacks_float64 = !d->physical.features[VULKAN_FEATURE_shaderFloat64],
                                      .gemm = SBP_VULKAN_ANY,
                                      .f16 = d->physical.f16,
                                      .bf16 = d->physical.bf16,
                                      .subgroup_size = d->physical.v11.subgroupSize,
                                      .max_local_size = limits->maxComputeWorkGroupInvocations <
                                                                limits->maxComputeWorkGroupSize[0]
                                                            ? limits->maxComputeWorkGroupInvocations
                                                            : limits->maxComputeWorkGroupSize[0],
                                      .shared_bytes = limits->maxComputeSharedMemorySize};
}

void vulkan_device_close(vulkan_device *d) {
    if (d->device && d->vk.DestroyDevice)
        d->vk.DestroyDevice(d->device, NULL);
    vulkan_api_close(&d->vk);
    sbp_arena_destroy(d->arena);
}

sbp_status vulkan_device_open(vulkan_device *d, const sbp_device_options *options, const char *validation,
                              sbp_diag *diag) {
    d->arena = sbp_arena_create();
    if (!d->arena)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for opening a Vulkan device");
    SBP_TRY(vulkan_api_open(&d->vk, validation, diag));
    SBP_TRY(choose_physical(d, options ? options->index : 0, diag));
    SBP_TRY(vulkan_physical_check(&d->physical, diag));
    describe_machine(d);
    SBP_TRY(wanted_gemm(&d->machine, diag));
    return create_device(d, diag);
}
