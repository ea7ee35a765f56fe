/* physical.c: the devices of this machine and what they offer. */
#include "backends/vulkan/device/vulkan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_FAMILIES = 32, MOST_EXTENSIONS = 1024 };

enum { ALWAYS, MODULES };

static const struct {
    const char *name;
    uint32_t capability;
    int use;
} features[] = {
#define FEATURE(chain, member, capability, use) {#member, capability, use},
#include "backends/vulkan/device/features.def"
#undef FEATURE
};

static void link_features(vulkan_features *f) {
    *f = (vulkan_features){.base.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                           .v11.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES,
                           .v12.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
                           .v13.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES};
    f->base.pNext = &f->v11;
    f->v11.pNext = &f->v12;
    f->v12.pNext = &f->v13;
}

void vulkan_features_wanted(const vulkan_physical *physical, vulkan_features *out) {
    link_features(out);
    vulkan_matrix_link(physical, out);
    out->matrix.cooperativeMatrix = physical->has_matrix;
    out->bfloat16.shaderBFloat16Type = out->bfloat16.shaderBFloat16CooperativeMatrix =
        physical->has_matrix && physical->has_bfloat16;
#define FEATURE(chain, member, capability, use)                                                              \
    out->chain.member = physical->features[VULKAN_FEATURE_##member];
#include "backends/vulkan/device/features.def"
#undef FEATURE
}

/* ---- listing ---------------------------------------------------------------------------------------- */

static void read_features(const vulkan_api *api, vulkan_physical *p) {
    vulkan_features f;
    link_features(&f);
    vulkan_matrix_link(p, &f);
    api->GetPhysicalDeviceFeatures2(p->handle, &f.base);
    p->has_matrix = p->has_matrix && f.matrix.cooperativeMatrix;
    p->has_bfloat16 = p->has_matrix && p->has_bfloat16 && f.bfloat16.shaderBFloat16Type &&
                      f.bfloat16.shaderBFloat16CooperativeMatrix;
#define FEATURE(chain, member, capability, use) p->features[VULKAN_FEATURE_##member] = f.chain.member;
#include "backends/vulkan/device/features.def"
#undef FEATURE
}

static void read_properties(const vulkan_api *api, vulkan_physical *p) {
    VkPhysicalDeviceVulkan13Properties v13 = {.sType =
                                                  VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES};
    VkPhysicalDeviceVulkan12Properties v12 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES, .pNext = &v13};
    VkPhysicalDeviceVulkan11Properties v11 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES, .pNext = &v12};
    VkPhysicalDeviceProperties2 all = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                       .pNext = &v11};
    api->GetPhysicalDeviceProperties2(p->handle, &all);
    p->properties = all.properties;
    p->v11 = v11;
    p->v12 = v12;
    p->v13 = v13;
    p->v11.pNext = p->v12.pNext = NULL;
}

static void find_families(const vulkan_api *api, vulkan_physical *p) {
    VkQueueFamilyProperties families[MOST_FAMILIES];
    uint32_t count = MOST_FAMILIES;
    api->GetPhysicalDeviceQueueFamilyProperties(p->handle, &count, families);
    p->compute_family = p->transfer_family = -1;
    for (uint32_t i = 0; i < count; i++) {
        VkQueueFlags flags = families[i].queueFlags;
        if (families[i].queueCount == 0)
            continue;
        if ((flags & VK_QUEUE_COMPUTE_BIT) && p->compute_family < 0)
            p->compute_family = (int32_t)i;
        bool graphics_or_compute = flags & (VK_QUEUE_COMPUTE_BIT | VK_QUEUE_GRAPHICS_BIT);
        if ((flags & VK_QUEUE_TRANSFER_BIT) && !graphics_or_compute && p->transfer_family < 0)
            p->transfer_family = (int32_t)i;
    }
}

/* The largest heap that is the device's own. */
static void find_heap(const vulkan_api *api, vulkan_physical *p) {
    VkPhysicalDeviceMemoryProperties2 memory = {.sType =
                                                    VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2};
    api->GetPhysicalDeviceMemoryProperties2(p->handle, &memory);
    p->memory = memory.memoryProperties;
    p->heap = 0;
    for (int own = 1; own >= 0; own--) {
        VkDeviceSize most = 0;
        for (uint32_t i = 0; i < p->memory.memoryHeapCount; i++) {
            const VkMemoryHeap *heap = &p->memory.memoryHeaps[i];
            if (heap->size > most && (!own || (heap->flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT))) {
                most = heap->size;
                p->heap = (int32_t)i;
            }
        }
        if (most > 0)
            return;
    }
}

static sbp_status find_extensions(const vulkan_api *api, vulkan_physical *p, sbp_diag *diag) {
    uint32_t count = MOST_EXTENSIONS;
    VkExtensionProperties *extensions = sbp_malloc(count * sizeof *extensions);
    if (!extensions)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the list of Vulkan devices");
    VkResult result = api->EnumerateDeviceExtensionProperties(p->handle, NULL, &count, extensions);
    for (uint32_t i = 0; (result == VK_SUCCESS || result == VK_INCOMPLETE) && i < count; i++) {
        const char *name = extensions[i].extensionName;
        p->memory_budget |= strcmp(name, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME) == 0;
        p->has_matrix |= strcmp(name, VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME) == 0;
        p->has_bfloat16 |= strcmp(name, VK_KHR_SHADER_BFLOAT16_EXTENSION_NAME) == 0;
    }
    free(extensions);
    return SBP_OK;
}

void vulkan_physical_usage(const vulkan_api *api, const vulkan_physical *p, int64_t *used, int64_t *budget) {
    *used = *budget = 0;
    if (!p->memory_budget)
        return;
    VkPhysicalDeviceMemoryBudgetPropertiesEXT numbers = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT};
    VkPhysicalDeviceMemoryProperties2 memory = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2, .pNext = &numbers};
    api->GetPhysicalDeviceMemoryProperties2(p->handle, &memory);
    *used = (int64_t)numbers.heapUsage[p->heap];
    *budget = (int64_t)numbers.heapBudget[p->heap];
}

bool vulkan_is_software(const vulkan_physical *p) {
    return p->properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU ||
           p->v12.driverID == VK_DRIVER_ID_MESA_LLVMPIPE ||
           p->v12.driverID == VK_DRIVER_ID_GOOGLE_SWIFTSHADER;
}

static int rank_of(const vulkan_physical *p) {
    if (vulkan_is_software(p))
        return 4;
    switch (p->properties.deviceType) {
    case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU:
        return 0;
    case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU:
        return 1;
    case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU:
        return 2;
    default:
        return 3;
    }
}

/* Stable, so that equal devices keep the driver's order. */
static void sort_by_rank(vulkan_physical *list, int32_t count) {
    for (int32_t i = 1; i < count; i++)
        for (int32_t k = i; k > 0 && rank_of(&list[k]) < rank_of(&list[k - 1]); k--) {
            vulkan_physical swap = list[k];
            list[k] = list[k - 1];
            list[k - 1] = swap;
        }
}

static sbp_status read_physical(const vulkan_api *api, VkPhysicalDevice handle, vulkan_physical *p,
                                sbp_diag *diag) {
    *p = (vulkan_physical){.handle = handle};
    SBP_TRY(find_extensions(api, p, diag));
    read_properties(api, p);
    read_features(api, p);
    find_families(api, p);
    find_heap(api, p);
    return vulkan_matrix_find(api, p, diag);
}

sbp_status vulkan_physical_list(const vulkan_api *api, sbp_diag *diag, vulkan_physical **out,
                                int32_t *count) {
    VkPhysicalDevice handles[64];
    uint32_t found = SBP_COUNT(handles);
    *out = NULL;
    *count = 0;
    VkResult result = api->EnumeratePhysicalDevices(api->instance, &found, handles);
    if (result != VK_SUCCESS && result != VK_INCOMPLETE)
        return sbp_fail(diag, SBP_MACHINE, "vulkan: devices cannot be listed: %s",
                        vulkan_result_text(result));
    if (found == 0)
        return sbp_fail(diag, SBP_MACHINE, "vulkan: there is no device (is a driver installed?)");
    vulkan_physical *list = sbp_malloc(found * sizeof *list);
    if (!list)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the list of Vulkan devices");
    sbp_status status = SBP_OK;
    for (uint32_t i = 0; i < found && status == SBP_OK; i++)
        status = read_physical(api, handles[i], &list[i], diag);
    if (status != SBP_OK) {
        free(list);
        return status;
    }
    sort_by_rank(list, (int32_t)found);
    *out = list;
    *count = (int32_t)found;
    return SBP_OK;
}

/* ---- checks ----------------------------------------------------------------------------------------- */

sbp_status vulkan_physical_check(const vulkan_physical *p, sbp_diag *diag) {
    char missing[512] = "";
    size_t length = 0;
    for (int i = 0; i < VULKAN_FEATURE_COUNT && length < sizeof missing; i++)
        if (features[i].use == ALWAYS && !p->features[i])
            length += (size_t)snprintf(missing + length, sizeof missing - length, "%s%s", length ? ", " : "",
                                       features[i].name);
    if (p->properties.apiVersion < VK_API_VERSION_1_3)
        return sbp_fail(diag, SBP_MACHINE, "vulkan: %s has Vulkan %u.%u, needed is 1.3",
                        p->properties.deviceName, VK_API_VERSION_MAJOR(p->properties.apiVersion),
                        VK_API_VERSION_MINOR(p->properties.apiVersion));
    if (p->compute_family < 0)
        return sbp_fail(diag, SBP_MACHINE, "vulkan: %s has no queue that computes", p->properties.deviceName);
    if (length > 0)
        return sbp_fail(diag, SBP_MACHINE, "vulkan: %s lacks %s, which every plan needs",
                        p->properties.deviceName, missing);
    return SBP_OK;
}

static bool is_basic(uint32_t capability) {
    switch (capability) {
    case 0: /* Matrix */
    case 1: /* Shader */
        return true;
    default:
        return false;
    }
}

static bool is_matrix(const vulkan_physical *p, uint32_t capability) {
    switch (capability) {
    case 6022: /* CooperativeMatrixKHR */
        return p->has_matrix;
    case 5116: /* BFloat16TypeKHR */
    case 5118: /* BFloat16CooperativeMatrixKHR */
        return p->has_bfloat16;
    default:
        return false;
    }
}

/* Subgroup capabilities, and the bit of supportedOperations. */
static VkSubgroupFeatureFlags subgroup_bit(uint32_t capability) {
    switch (capability) {
    case 61:
        return VK_SUBGROUP_FEATURE_BASIC_BIT;
    case 62:
        return VK_SUBGROUP_FEATURE_VOTE_BIT;
    case 63:
        return VK_SUBGROUP_FEATURE_ARITHMETIC_BIT;
    case 64:
        return VK_SUBGROUP_FEATURE_BALLOT_BIT;
    case 65:
        return VK_SUBGROUP_FEATURE_SHUFFLE_BIT;
    case 66:
        return VK_SUBGROUP_FEATURE_SHUFFLE_RELATIVE_BIT;
    case 67:
        return VK_SUBGROUP_FEATURE_CLUSTERED_BIT;
    case 68:
        return VK_SUBGROUP_FEATURE_QUAD_BIT;
    default:
        return 0;
    }
}

static sbp_status check_capability(const vulkan_physical *p, const char *name, uint32_t capability,
                                   sbp_diag *diag) {
    VkSubgroupFeatureFlags bit = subgroup_bit(capability);
    if (is_basic(capability) || is_matrix(p, capability) ||
        (bit && (p->v11.subgroupSupportedOperations & bit)))
        return SBP_OK;
    for (int i = 0; i < VULKAN_FEATURE_COUNT; i++)
        if (features[i].capability == capability) {
            if (p->features[i])
                return SBP_OK;
            return sbp_fail(diag, SBP_MACHINE, "vulkan: kernel '%s' of the plan needs %s, which %s lacks",
                            name, features[i].name, p->properties.deviceName);
        }
    return sbp_fail(
        diag, SBP_MACHINE,
        "vulkan: kernel '%s' of the plan needs SPIR-V capability %u, which %s lacks or this sbprun "
        "does not know",
        name, capability, p->properties.deviceName);
}

sbp_status vulkan_physical_check_module(const vulkan_physical *p, const char *name, const uint32_t *words,
                                        int64_t count, sbp_diag *diag) {
    enum { MAGIC = 0x07230203, HEADER = 5, OP_CAPABILITY = 17 };
    if (count < HEADER || words[0] != MAGIC)
        return sbp_fail(diag, SBP_INPUT, "vulkan: kernel '%s' of the plan is not SPIR-V", name);
    int64_t at = HEADER; /* capabilities come first */
    while (at + 1 < count && (words[at] & 0xffff) == OP_CAPABILITY) {
        SBP_TRY(check_capability(p, name, words[at + 1], diag));
        at += 2;
    }
    return SBP_OK;
}
