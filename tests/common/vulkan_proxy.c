/* vulkan_proxy.c: see vulkan_proxy.h. Functions that it does not know go through. */
#define VK_NO_PROTOTYPES
#include <vulkan/vulkan_core.h>

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/common/vulkan_proxy.h"

#define EXPORTED __attribute__((visibility("default")))

enum { MOST_WORDS = 400, MOST_ALLOCATIONS = 4096 };

static struct {
    char words[MOST_WORDS];
    int64_t calls, counted, alive;
    const char *failed;
    struct {
        VkDeviceMemory memory;
        VkDeviceSize bytes;
        uint32_t heap;
    } allocations[MOST_ALLOCATIONS];
    uint32_t heap_of_type[VK_MAX_MEMORY_TYPES];
    VkDeviceSize taken[VK_MAX_MEMORY_HEAPS];
} proxy;

static PFN_vkGetInstanceProcAddr next_instance_address;
static PFN_vkGetDeviceProcAddr next_device_address;
static VkDevice device_at_hand;
static PFN_vkGetPhysicalDeviceProperties2 next_GetPhysicalDeviceProperties2;
static PFN_vkGetPhysicalDeviceFeatures2 next_GetPhysicalDeviceFeatures2;
static PFN_vkGetPhysicalDeviceMemoryProperties2 next_GetPhysicalDeviceMemoryProperties2;
#define CALL(name, errors, parameters, arguments) static PFN_vk##name next_##name;
#define GONE(name, parameters, arguments, handle) static PFN_vk##name next_##name;
#include "tests/common/vulkan_proxy.def"

/* ---- what it shall do ------------------------------------------------------------------------------- */

/* The text behind "key=" of the n-th word of that key, up to the next comma; NULL when there is none. */
static const char *value_of(const char *key, int n) {
    size_t length = strlen(key);
    for (const char *at = proxy.words; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, key, length) == 0 && (at[length] == '=' || at[length] == ',' || !at[length]) &&
            n-- == 0)
            return at[length] == '=' ? at + length + 1 : at + length;
    return NULL;
}

/* Whether one of the words is "key=value". */
static bool is_said(const char *key, const char *value) {
    const char *word;
    size_t length = strlen(value);
    for (int n = 0; (word = value_of(key, n)); n++)
        if (strncmp(word, value, length) == 0 && (word[length] == ',' || !word[length]))
            return true;
    return false;
}

static int64_t number_of(const char *key) {
    const char *text = value_of(key, 0);
    return text ? strtoll(text, NULL, 10) : 0;
}

EXPORTED vulkan_proxy_reset_function vulkan_proxy_reset;
EXPORTED vulkan_proxy_look_function vulkan_proxy_look;
EXPORTED VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL vkGetInstanceProcAddr(VkInstance instance,
                                                                        const char *name);

void vulkan_proxy_reset(const char *words) {
    memset(&proxy, 0, sizeof proxy);
    snprintf(proxy.words, sizeof proxy.words, "%s", words ? words : "");
}

void vulkan_proxy_look(vulkan_proxy_report *out) {
    *out = (vulkan_proxy_report){.calls = proxy.calls, .alive = proxy.alive, .failed = proxy.failed};
}

__attribute__((constructor)) static void begin(void) {
    vulkan_proxy_reset(getenv("SBP_PROXY"));
}

/* ---- errors ----------------------------------------------------------------------------------------- */

static VkResult error_of(char letter) {
    switch (letter) {
    case 'L':
        return VK_ERROR_DEVICE_LOST;
    case 'I':
        return VK_ERROR_INITIALIZATION_FAILED;
    case 'P':
        return VK_ERROR_MEMORY_MAP_FAILED;
    case 'T':
        return VK_ERROR_TOO_MANY_OBJECTS;
    default:
        return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    }
}

/* VK_SUCCESS: the call shall be made. */
static VkResult shall_fail(const char *name, const char *errors) {
    int64_t once = number_of("fail"), from = number_of("from");
    proxy.calls++;
    if (value_of("call", 0) && !is_said("call", name))
        return VK_SUCCESS;
    proxy.counted++;
    if (proxy.counted != once && (from == 0 || proxy.counted < from))
        return VK_SUCCESS;
    if (is_said("error", "crash"))
        abort();
    if (!proxy.failed)
        proxy.failed = name;
    if (from > 0 && strstr(name, "Wait")) /* a device that is lost does nothing more */
        (void)next_DeviceWaitIdle(device_at_hand);
    if (is_said("error", "lost") && strchr(errors, 'L'))
        return VK_ERROR_DEVICE_LOST;
    return error_of(is_said("error", "other") ? errors[strlen(errors) - 1] : errors[0]);
}

static VkResult count_made(const char *name, VkResult result) {
    bool makes = strncmp(name, "Create", 6) == 0 || strcmp(name, "AllocateMemory") == 0;
    proxy.alive += result == VK_SUCCESS && makes;
    return result;
}

#define CALL(name, errors, parameters, arguments)                                                            \
    static VKAPI_ATTR VkResult VKAPI_CALL do_##name parameters {                                             \
        VkResult result = shall_fail(#name, errors);                                                         \
        return result == VK_SUCCESS ? count_made(#name, next_##name arguments) : result;                     \
    }
#define GONE(name, parameters, arguments, handle)                                                            \
    static VKAPI_ATTR void VKAPI_CALL do_##name parameters {                                                 \
        proxy.alive -= handle != VK_NULL_HANDLE;                                                             \
        next_##name arguments;                                                                               \
    }
#include "tests/common/vulkan_proxy.def"

/* ---- memory ----------------------------------------------------------------------------------------- */

static VKAPI_ATTR VkResult VKAPI_CALL note_AllocateMemory(VkDevice d, const VkMemoryAllocateInfo *info,
                                                          const VkAllocationCallbacks *a,
                                                          VkDeviceMemory *out) {
    VkResult result = do_AllocateMemory(d, info, a, out);
    for (int i = 0; i < MOST_ALLOCATIONS && result == VK_SUCCESS; i++)
        if (!proxy.allocations[i].memory) {
            proxy.allocations[i].memory = *out;
            proxy.allocations[i].bytes = info->allocationSize;
            proxy.allocations[i].heap = proxy.heap_of_type[info->memoryTypeIndex];
            proxy.taken[proxy.allocations[i].heap] += info->allocationSize;
            break;
        }
    return result;
}

static VKAPI_ATTR void VKAPI_CALL note_FreeMemory(VkDevice d, VkDeviceMemory m,
                                                  const VkAllocationCallbacks *a) {
    for (int i = 0; i < MOST_ALLOCATIONS; i++)
        if (m && proxy.allocations[i].memory == m) {
            proxy.taken[proxy.allocations[i].heap] -= proxy.allocations[i].bytes;
            proxy.allocations[i].memory = VK_NULL_HANDLE;
        }
    do_FreeMemory(d, m, a);
}

static void *find_in_chain(void *chain, VkStructureType type) {
    for (VkBaseOutStructure *s = chain; s; s = s->pNext)
        if (s->sType == type)
            return s;
    return NULL;
}

static VKAPI_ATTR void VKAPI_CALL
look_GetPhysicalDeviceMemoryProperties2(VkPhysicalDevice p, VkPhysicalDeviceMemoryProperties2 *out) {
    next_GetPhysicalDeviceMemoryProperties2(p, out);
    VkPhysicalDeviceMemoryProperties *memory = &out->memoryProperties;
    if (number_of("heap") > 0)
        memory->memoryHeaps[0].size = (VkDeviceSize)number_of("heap");
    for (uint32_t i = 0; i < memory->memoryTypeCount; i++)
        proxy.heap_of_type[i] = memory->memoryTypes[i].heapIndex;
    VkPhysicalDeviceMemoryBudgetPropertiesEXT *budget =
        find_in_chain(out->pNext, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT);
    for (uint32_t i = 0; budget && value_of("budget", 0) && i < memory->memoryHeapCount; i++) {
        budget->heapBudget[i] = memory->memoryHeaps[i].size / 10 * 9;
        budget->heapUsage[i] = proxy.taken[i] + (i == 0 ? (VkDeviceSize)number_of("driver") : 0);
    }
}

/* ---- what the driver looks like --------------------------------------------------------------------- */

static VKAPI_ATTR void VKAPI_CALL look_GetPhysicalDeviceProperties2(VkPhysicalDevice p,
                                                                    VkPhysicalDeviceProperties2 *out) {
    next_GetPhysicalDeviceProperties2(p, out);
    VkPhysicalDeviceVulkan12Properties *v12 =
        find_in_chain(out->pNext, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES);
    if (!value_of("gpu", 0))
        return;
    out->properties.deviceType = VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU;
    snprintf(out->properties.deviceName, sizeof out->properties.deviceName, "Pretended GPU");
    if (v12)
        v12->driverID = VK_DRIVER_ID_MESA_RADV;
}

static VKAPI_ATTR void VKAPI_CALL look_GetPhysicalDeviceFeatures2(VkPhysicalDevice p,
                                                                  VkPhysicalDeviceFeatures2 *out) {
    struct {
        VkPhysicalDeviceFeatures2 *base;
        VkPhysicalDeviceVulkan11Features *v11;
        VkPhysicalDeviceVulkan12Features *v12;
        VkPhysicalDeviceVulkan13Features *v13;
    } f = {out, find_in_chain(out, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES),
           find_in_chain(out, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES),
           find_in_chain(out, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES)};
    next_GetPhysicalDeviceFeatures2(p, out);
#define base base[0]
#define v11 v11[0]
#define v12 v12[0]
#define v13 v13[0]
#define FEATURE(chain, member, capability, use)                                                              \
    if (is_said("hide", #member))                                                                            \
        f.chain.member = VK_FALSE;
#include "backends/vulkan/device/features.def"
#undef FEATURE
#undef base
#undef v11
#undef v12
#undef v13
}

static VKAPI_ATTR VkResult VKAPI_CALL look_EnumerateDeviceExtensionProperties(VkPhysicalDevice p,
                                                                              const char *layer,
                                                                              uint32_t *count,
                                                                              VkExtensionProperties *out) {
    uint32_t room = *count;
    VkResult result = do_EnumerateDeviceExtensionProperties(p, layer, count, out);
    if (result == VK_SUCCESS && value_of("budget", 0) && out && *count < room)
        snprintf(out[(*count)++].extensionName, VK_MAX_EXTENSION_NAME_SIZE,
                 VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
    return result;
}

/* ---- opening ---------------------------------------------------------------------------------------- */

static VKAPI_ATTR VkResult VKAPI_CALL open_CreateInstance(const VkInstanceCreateInfo *info,
                                                          const VkAllocationCallbacks *a, VkInstance *out) {
    VkResult result = do_CreateInstance(info, a, out);
    if (result != VK_SUCCESS)
        return result;
#define FETCH(name) next_##name = (PFN_vk##name)next_instance_address(*out, "vk" #name);
    FETCH(GetPhysicalDeviceProperties2)
    FETCH(GetPhysicalDeviceFeatures2)
    FETCH(GetPhysicalDeviceMemoryProperties2)
    FETCH(EnumeratePhysicalDevices)
    FETCH(EnumerateDeviceExtensionProperties)
    FETCH(CreateDevice)
    FETCH(DestroyInstance)
    next_device_address = (PFN_vkGetDeviceProcAddr)next_instance_address(*out, "vkGetDeviceProcAddr");
    return VK_SUCCESS;
}

static VKAPI_ATTR VkResult VKAPI_CALL open_CreateDevice(VkPhysicalDevice p, const VkDeviceCreateInfo *info,
                                                        const VkAllocationCallbacks *a, VkDevice *out) {
    VkDeviceCreateInfo less = *info;
    if (value_of("budget", 0)) /* the driver may not know it */
        less.enabledExtensionCount = 0;
    VkResult result = do_CreateDevice(p, &less, a, out);
    if (result != VK_SUCCESS)
        return result;
    device_at_hand = *out;
    /* anew: with layers they are others; those of the instance are not found here */
#define CALL(name, errors, parameters, arguments)                                                            \
    if (next_device_address(*out, "vk" #name))                                                               \
        next_##name = (PFN_vk##name)next_device_address(*out, "vk" #name);
#define GONE(name, parameters, arguments, handle) CALL(name, , , )
#include "tests/common/vulkan_proxy.def"
    return VK_SUCCESS;
}

/* ---- addresses -------------------------------------------------------------------------------------- */

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL device_address(VkDevice device, const char *name);

static PFN_vkVoidFunction own_function(const char *name) {
    static const struct {
        const char *name;
        PFN_vkVoidFunction function;
    } own[] = {
#define OWN(prefix, name) {"vk" #name, (PFN_vkVoidFunction)prefix##_##name},
        OWN(note, AllocateMemory) OWN(note, FreeMemory) OWN(look, GetPhysicalDeviceMemoryProperties2)
            OWN(look, GetPhysicalDeviceProperties2) OWN(look, GetPhysicalDeviceFeatures2)
                OWN(look, EnumerateDeviceExtensionProperties) OWN(open, CreateInstance)
                    OWN(open, CreateDevice){"vkGetDeviceProcAddr", (PFN_vkVoidFunction)device_address},
#define CALL(name, errors, parameters, arguments) OWN(do, name)
#define GONE(name, parameters, arguments, handle) OWN(do, name)
#include "tests/common/vulkan_proxy.def"
    };
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strcmp(own[i].name, name) == 0)
            return own[i].function;
    return NULL;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL device_address(VkDevice device, const char *name) {
    PFN_vkVoidFunction own = own_function(name), next = next_device_address(device, name);
    return own && next ? own : next;
}

VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL vkGetInstanceProcAddr(VkInstance instance, const char *name) {
    if (!next_instance_address) { /* never closed: what the real one has is asked for again and again */
        void *library = dlopen(SBP_REAL_VULKAN, RTLD_NOW | RTLD_LOCAL);
        if (library)
            next_instance_address = (PFN_vkGetInstanceProcAddr)dlsym(library, "vkGetInstanceProcAddr");
        if (!next_instance_address)
            return NULL;
        next_EnumerateInstanceVersion =
            (PFN_vkEnumerateInstanceVersion)next_instance_address(NULL, "vkEnumerateInstanceVersion");
        next_CreateInstance = (PFN_vkCreateInstance)next_instance_address(NULL, "vkCreateInstance");
    }
    PFN_vkVoidFunction own = own_function(name), next = next_instance_address(instance, name);
    return own && next ? own : next;
}
