/* api.c: libvulkan, an instance, and its functions. */
#include "backends/vulkan/device/vulkan.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VALIDATION_LAYER "VK_LAYER_KHRONOS_validation"

const char *vulkan_result_text(VkResult result) {
    switch (result) {
    case VK_ERROR_OUT_OF_HOST_MEMORY:
        return "out of host memory";
    case VK_ERROR_OUT_OF_DEVICE_MEMORY:
        return "out of device memory";
    case VK_ERROR_DEVICE_LOST:
        return "the device was lost (a reset of the driver, or a kernel that ran too long)";
    case VK_ERROR_INCOMPATIBLE_DRIVER:
        return "no usable Vulkan driver is installed (VK_ERROR_INCOMPATIBLE_DRIVER)";
    case VK_ERROR_LAYER_NOT_PRESENT:
        return "a layer is not installed";
    case VK_ERROR_EXTENSION_NOT_PRESENT:
        return "an extension is not there";
    case VK_ERROR_FEATURE_NOT_PRESENT:
        return "a feature is not there";
    case VK_ERROR_INITIALIZATION_FAILED:
        return "initialization failed";
    case VK_ERROR_TOO_MANY_OBJECTS:
        return "too many allocations";
    case VK_ERROR_MEMORY_MAP_FAILED:
        return "memory could not be mapped";
    case VK_TIMEOUT:
        return "timeout";
    default:
        return "the driver reported an error";
    }
}

bool vulkan_test_asks(const char *word) {
    const char *text = getenv("SBP_VULKAN_TEST");
    return text && strstr(text, word);
}

/* ---- validation ------------------------------------------------------------------------------------- */

static VKAPI_ATTR VkBool32 VKAPI_CALL take_message(VkDebugUtilsMessageSeverityFlagBitsEXT severity,
                                                   VkDebugUtilsMessageTypeFlagsEXT types,
                                                   const VkDebugUtilsMessengerCallbackDataEXT *data,
                                                   void *user) {
    vulkan_api *api = user;
    (void)types;
    if (severity >= VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT && api->errors++ == 0)
        snprintf(api->first_error, sizeof api->first_error, "%s", data->pMessage);
    return VK_FALSE;
}

static sbp_status check_layer(const vulkan_api *api, sbp_diag *diag) {
    VkLayerProperties layers[64];
    uint32_t count = SBP_COUNT(layers);
    VkResult result = api->EnumerateInstanceLayerProperties(&count, layers);
    for (uint32_t i = 0; (result == VK_SUCCESS || result == VK_INCOMPLETE) && i < count; i++)
        if (strcmp(layers[i].layerName, VALIDATION_LAYER) == 0)
            return SBP_OK;
    return sbp_fail(diag, SBP_MACHINE, "vulkan: the validation layer " VALIDATION_LAYER " is not installed");
}

/* ---- opening ---------------------------------------------------------------------------------------- */

static sbp_status create_instance(vulkan_api *api, const char *validation, sbp_diag *diag) {
    const char *layer = VALIDATION_LAYER, *extension = VK_EXT_DEBUG_UTILS_EXTENSION_NAME;
    VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                     .pApplicationName = "streambp",
                                     .apiVersion = VK_API_VERSION_1_3};
    VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                 .pApplicationInfo = &application};
    VkValidationFeatureEnableEXT enables[2];
    VkValidationFeaturesEXT features = {.sType = VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT,
                                        .pEnabledValidationFeatures = enables};
    VkDebugUtilsMessengerCreateInfoEXT messenger = {
        .sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT,
        .messageSeverity = VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
        .messageType =
            VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT | VK_DEBUG_UTILS_MESSAGE_TYPE_GENERAL_BIT_EXT,
        .pfnUserCallback = take_message,
        .pUserData = api};
    if (validation && *validation) {
        SBP_TRY(check_layer(api, diag));
        if (strcmp(validation, "gpu") == 0) {
            api->waits_for_queues = true;
            enables[features.enabledValidationFeatureCount++] = VK_VALIDATION_FEATURE_ENABLE_GPU_ASSISTED_EXT;
            enables[features.enabledValidationFeatureCount++] =
                VK_VALIDATION_FEATURE_ENABLE_GPU_ASSISTED_RESERVE_BINDING_SLOT_EXT;
        } else if (strcmp(validation, "sync") == 0) {
            enables[features.enabledValidationFeatureCount++] =
                VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT;
        } else if (strcmp(validation, "on") != 0) {
            return sbp_fail(diag, SBP_USAGE, "SBP_VULKAN_VALIDATION is '%s'; it may be on, gpu or sync",
                            validation);
        }
        info.pNext = features.enabledValidationFeatureCount ? &features : NULL;
        info.enabledLayerCount = info.enabledExtensionCount = 1;
        info.ppEnabledLayerNames = &layer;
        info.ppEnabledExtensionNames = &extension;
    }
    VkResult result = api->CreateInstance(&info, NULL, &api->instance);
    if (result != VK_SUCCESS)
        return sbp_fail(diag, SBP_MACHINE, "vulkan: cannot create an instance: %s",
                        vulkan_result_text(result));
    PFN_vkGetInstanceProcAddr get = (PFN_vkGetInstanceProcAddr)dlsym(api->library, "vkGetInstanceProcAddr");
#define OPTIONAL(name) api->name = (PFN_vk##name)get(api->instance, "vk" #name);
#define INSTANCE(name)                                                                                       \
    if (!(api->name = (PFN_vk##name)get(api->instance, "vk" #name)))                                         \
        return sbp_fail(diag, SBP_MACHINE, "vulkan: libvulkan.so.1 has no vk" #name);
#include "backends/vulkan/device/symbols.def"
    if (info.enabledLayerCount && api->CreateDebugUtilsMessengerEXT)
        (void)api->CreateDebugUtilsMessengerEXT(api->instance, &messenger, NULL, &api->messenger);
    return SBP_OK;
}

sbp_status vulkan_api_open(vulkan_api *api, const char *validation, sbp_diag *diag) {
    *api = (vulkan_api){.library = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL)};
    if (!api->library)
        return sbp_fail(
            diag, SBP_MACHINE,
            "vulkan: the loader libvulkan.so.1 is not installed (Debian: libvulkan1, and a driver)");
    PFN_vkGetInstanceProcAddr get = (PFN_vkGetInstanceProcAddr)dlsym(api->library, "vkGetInstanceProcAddr");
    if (!get)
        return sbp_fail(diag, SBP_MACHINE, "vulkan: libvulkan.so.1 has no vkGetInstanceProcAddr");
#define GLOBAL(name)                                                                                         \
    if (!(api->name = (PFN_vk##name)get(NULL, "vk" #name)))                                                  \
        return sbp_fail(diag, SBP_MACHINE, "vulkan: libvulkan.so.1 is older than Vulkan 1.3");
#include "backends/vulkan/device/symbols.def"
    uint32_t version = 0;
    VkResult result = api->EnumerateInstanceVersion(&version);
    if (result != VK_SUCCESS)
        return sbp_fail(diag, SBP_MACHINE, "vulkan: the version of libvulkan.so.1: %s",
                        vulkan_result_text(result));
    if (version < VK_API_VERSION_1_3)
        return sbp_fail(diag, SBP_MACHINE, "vulkan: libvulkan.so.1 has Vulkan %u.%u, needed is 1.3",
                        VK_API_VERSION_MAJOR(version), VK_API_VERSION_MINOR(version));
    return create_instance(api, validation, diag);
}

sbp_status vulkan_api_open_device(vulkan_api *api, VkDevice device, sbp_diag *diag) {
#define DEVICE(name)                                                                                         \
    if (!(api->name = (PFN_vk##name)api->GetDeviceProcAddr(device, "vk" #name)))                             \
        return sbp_fail(diag, SBP_MACHINE, "vulkan: the driver has no vk" #name);
#include "backends/vulkan/device/symbols.def"
    return SBP_OK;
}

void vulkan_api_close(vulkan_api *api) {
    if (api->instance && api->messenger)
        api->DestroyDebugUtilsMessengerEXT(api->instance, api->messenger, NULL);
    if (api->instance)
        api->DestroyInstance(api->instance, NULL);
    if (api->library)
        dlclose(api->library);
    *api = (vulkan_api){0};
}
