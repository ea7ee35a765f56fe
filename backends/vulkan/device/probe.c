/* probe.c: the devices as candidates for --backend auto. */
#include "backends/vulkan/device/vulkan.h"
#include "backends/vulkan/vulkan_probe.h"
#include "ir/base/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sbp_status describe(const vulkan_api *api, const vulkan_physical *p, sbp_candidate *out) {
    sbp_diag *diag = sbp_diag_create();
    int64_t used, budget, host = sbp_machine_memory_available();
    if (!diag)
        return SBP_MACHINE;
    *out = (sbp_candidate){.software = vulkan_is_software(p),
                           .fp64 = p->features[VULKAN_FEATURE_shaderFloat64],
                           .free_bytes = (int64_t)p->memory.memoryHeaps[p->heap].size};
    snprintf(out->name, sizeof out->name, "%.100s", p->properties.deviceName);
    snprintf(out->arch, sizeof out->arch, "%s", out->software ? SBP_VULKAN_SOFTWARE : "");
    if (vulkan_physical_check(p, diag) != SBP_OK) { /* "error: vulkan: NAME lacks ..." */
        const char *text = sbp_diag_text(diag, SBP_ERROR), *name = strstr(text, p->properties.deviceName);
        text = name ? name + strlen(p->properties.deviceName) + 1 : text;
        snprintf(out->missing, sizeof out->missing, "which %.*s", (int)strcspn(text, "\n"), text);
    }
    vulkan_physical_usage(api, p, &used, &budget);
    if (budget > 0)
        out->free_bytes = budget > used ? budget - used : 0;
    bool shared = out->software || p->properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU;
    if (shared && host > 0 && host < out->free_bytes)
        out->free_bytes = host;
    sbp_diag_destroy(diag);
    return SBP_OK;
}

sbp_status sbp_vulkan_probe(sbp_diag *diag, sbp_probed *out) {
    vulkan_api api;
    vulkan_physical *list = NULL;
    int32_t count = 0;
    *out = (sbp_probed){0};
    sbp_status status = vulkan_api_open(&api, NULL, diag);
    if (status == SBP_OK)
        status = vulkan_physical_list(&api, diag, &list, &count);
    if (status == SBP_OK)
        out->devices = sbp_malloc(((size_t)count + 1) * sizeof *out->devices);
    if (status == SBP_OK && !out->devices)
        status = sbp_fail(diag, SBP_MACHINE, "out of memory for the list of Vulkan devices");
    for (int32_t i = 0; i < count && status == SBP_OK; i++)
        if (describe(&api, &list[i], &out->devices[i]) != SBP_OK)
            status = sbp_fail(diag, SBP_MACHINE, "out of memory for the list of Vulkan devices");
    if (status == SBP_OK) {
        out->count = count;
    } else {
        free(out->devices);
        out->devices = NULL;
    }
    free(list);
    vulkan_api_close(&api);
    return status;
}

bool sbp_vulkan_device_has_matrix(int32_t index, sbp_dtype dtype) {
    vulkan_api api;
    vulkan_physical *list = NULL;
    int32_t count = 0;
    bool found = false;
    if (vulkan_api_open(&api, NULL, NULL) == SBP_OK &&
        vulkan_physical_list(&api, NULL, &list, &count) == SBP_OK)
        found = index >= 0 && index < count && (dtype == SBP_F16 ? list[index].f16 : list[index].bf16).m > 0;
    free(list);
    vulkan_api_close(&api);
    return found;
}
