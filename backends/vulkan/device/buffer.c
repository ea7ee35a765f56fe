/* buffer.c: a buffer with memory of its own, of the type that suits its use. */
#include "backends/vulkan/device/vulkan.h"

#include <string.h>

/* The first memory type with all of `need` that has most of `like`, and least of `unlike`. -1: none. */
static int32_t choose_type(const vulkan_physical *p, uint32_t allowed, VkMemoryPropertyFlags need,
                           VkMemoryPropertyFlags like, VkMemoryPropertyFlags unlike) {
    int32_t best = -1;
    int best_score = -1;
    for (uint32_t i = 0; i < p->memory.memoryTypeCount; i++) {
        VkMemoryPropertyFlags flags = p->memory.memoryTypes[i].propertyFlags;
        VkMemoryPropertyFlags never =
            VK_MEMORY_PROPERTY_PROTECTED_BIT | VK_MEMORY_PROPERTY_LAZILY_ALLOCATED_BIT;
        int score = 2 * __builtin_popcount(flags & like) + 4 - __builtin_popcount(flags & unlike);
        if ((allowed & (1u << i)) && (flags & need) == need && !(flags & never) && score > best_score) {
            best = (int32_t)i;
            best_score = score;
        }
    }
    return best;
}

static int32_t type_for(const vulkan_device *d, vulkan_usage usage, uint32_t allowed) {
    const VkMemoryPropertyFlags own = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT,
                                visible = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
                                          VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
                                cached = VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
    bool shared = d->physical.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU ||
                  d->physical.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
    switch (usage) {
    case VULKAN_DEVICE_ARENA: {
        int32_t type = choose_type(&d->physical, allowed, own, shared ? visible | cached : 0,
                                   shared ? 0 : VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT);
        return type >= 0 ? type : choose_type(&d->physical, allowed, 0, own, 0);
    }
    case VULKAN_UPLOAD:
        return choose_type(&d->physical, allowed, visible, 0, cached);
    default:
        return choose_type(&d->physical, allowed, visible, cached, shared ? 0 : own);
    }
}

/* Whether the host may read and write memory of this type in place. */
static bool is_mapped(const vulkan_device *d, vulkan_usage usage, int32_t type) {
    const VkMemoryPropertyFlags all = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
                                      VK_MEMORY_PROPERTY_HOST_COHERENT_BIT |
                                      VK_MEMORY_PROPERTY_HOST_CACHED_BIT;
    VkMemoryPropertyFlags flags = d->physical.memory.memoryTypes[type].propertyFlags;
    if (usage == VULKAN_DEVICE_ARENA)
        return (flags & all) == all && !vulkan_test_asks("staging");
    return flags & VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT;
}

static sbp_status allocate(vulkan_device *d, vulkan_usage usage, vulkan_buffer *b, sbp_diag *diag) {
    VkMemoryRequirements needs;
    d->vk.GetBufferMemoryRequirements(d->device, b->buffer, &needs);
    int32_t type = type_for(d, usage, needs.memoryTypeBits);
    if (type < 0)
        return sbp_fail(diag, SBP_MACHINE, "vulkan: %s has no memory that a buffer could use",
                        d->physical.properties.deviceName);
    VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                       .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
    VkMemoryAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                 .pNext = &flags,
                                 .allocationSize = needs.size,
                                 .memoryTypeIndex = (uint32_t)type};
    VkResult result = d->vk.AllocateMemory(d->device, &info, NULL, &b->memory);
    if (result != VK_SUCCESS) {
        char need[32], have[32], ours[32];
        b->memory = VK_NULL_HANDLE;
        d->broken = result;
        uint32_t heap = d->physical.memory.memoryTypes[type].heapIndex;
        return sbp_fail(
            diag, SBP_MACHINE,
            "vulkan: %s: allocating %s: %s; its memory has %s, of which this plan has taken %s",
            d->physical.properties.deviceName, sbp_format_bytes(need, sizeof need, (double)needs.size),
            vulkan_result_text(result),
            sbp_format_bytes(have, sizeof have, (double)d->physical.memory.memoryHeaps[heap].size),
            sbp_format_bytes(ours, sizeof ours, (double)d->allocated_bytes));
    }
    if ((int32_t)d->physical.memory.memoryTypes[type].heapIndex == d->physical.heap)
        d->allocated_bytes += needs.size;
    VULKAN_TRY(d, diag, BindBufferMemory(d->device, b->buffer, b->memory, 0));
    if (is_mapped(d, usage, type))
        VULKAN_TRY(d, diag, MapMemory(d->device, b->memory, 0, VK_WHOLE_SIZE, 0, (void **)&b->mapped));
    return SBP_OK;
}

sbp_status vulkan_buffer_create(vulkan_device *d, vulkan_usage usage, int64_t bytes, vulkan_buffer *out,
                                sbp_diag *diag) {
    *out = (vulkan_buffer){.bytes = bytes};
    VkBufferCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
        .size = (VkDeviceSize)bytes,
        .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT |
                 VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT,
        .sharingMode = d->family_count > 1 ? VK_SHARING_MODE_CONCURRENT : VK_SHARING_MODE_EXCLUSIVE,
        .queueFamilyIndexCount = d->family_count > 1 ? (uint32_t)d->family_count : 0,
        .pQueueFamilyIndices = d->families};
    VULKAN_TRY(d, diag, CreateBuffer(d->device, &info, NULL, &out->buffer));
    SBP_TRY(allocate(d, usage, out, diag));
    VkBufferDeviceAddressInfo address = {.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO,
                                         .buffer = out->buffer};
    out->address = d->vk.GetBufferDeviceAddress(d->device, &address);
    return SBP_OK;
}

void vulkan_buffer_destroy(vulkan_device *d, vulkan_buffer *b) {
    if (b->buffer)
        d->vk.DestroyBuffer(d->device, b->buffer, NULL);
    if (b->memory)
        d->vk.FreeMemory(d->device, b->memory, NULL);
    *b = (vulkan_buffer){0};
}
