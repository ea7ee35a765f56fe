/* vulkan_device.c: the Vulkan device as backends/device.h wants it. */
#include "backends/vulkan/vulkan_device.h"
#include "backends/composite/composite.h"
#include "backends/cpu/cpu_cores.h"
#include "backends/vulkan/device/vulkan.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void vulkan_destroy(sbp_device *base) {
    vulkan_device *d = (vulkan_device *)base;
    if (d->device && d->vk.GetPipelineCacheData) {
        VkResult idle = d->vk.DeviceWaitIdle(d->device);
        if (idle != VK_SUCCESS && idle != VK_ERROR_DEVICE_LOST) /* what runs must not lose its memory */
            (void)d->vk.DeviceWaitIdle(d->device);
        vulkan_streams_destroy(d);
        vulkan_pipelines_destroy(d);
        for (int s = 0; s < SBP_SPACE_COUNT; s++)
            vulkan_arena_destroy(d, &d->arenas[s]);
    }
    vulkan_device_close(d);
    free(d);
}

static sbp_status vulkan_create(const sbp_device_options *options, sbp_diag *diag, sbp_device **out) {
    *out = NULL;
    vulkan_device *d = sbp_malloc(sizeof *d);
    if (!d)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the Vulkan device");
    memset(d, 0, sizeof *d);
    d->base.class = &vulkan_backend_class;
    if (options) {
        d->code = options->code;
        d->code_bytes = options->code_bytes;
    }
    sbp_status status = vulkan_device_open(d, options, getenv("SBP_VULKAN_VALIDATION"), diag);
    if (status == SBP_OK)
        status = vulkan_streams_create(d, diag);
    if (status != SBP_OK)
        vulkan_destroy(&d->base);
    else
        *out = &d->base;
    return status;
}

static sbp_status vulkan_count(sbp_diag *diag, int32_t *out) {
    vulkan_api api;
    vulkan_physical *list = NULL;
    *out = 0;
    sbp_status status = vulkan_api_open(&api, NULL, diag);
    if (status == SBP_OK)
        status = vulkan_physical_list(&api, diag, &list, out);
    free(list);
    vulkan_api_close(&api);
    return status;
}

static void vulkan_info(sbp_device *base, sbp_device_info *out) {
    const vulkan_device *d = (const vulkan_device *)base;
    const vulkan_physical *p = &d->physical;
    int64_t budget;
    *out = (sbp_device_info){.software = d->machine.software};
    snprintf(out->name, sizeof out->name, "%.80s (%.40s)", p->properties.deviceName, p->v12.driverInfo);
    out->memory_bytes = (int64_t)p->memory.memoryHeaps[p->heap].size;
    out->allocation_bytes =
        p->v11.maxMemoryAllocationSize > INT64_MAX ? INT64_MAX : (int64_t)p->v11.maxMemoryAllocationSize;
    vulkan_physical_usage(&d->vk, p, &out->used_bytes, &budget);
    out->available_bytes = budget > out->used_bytes ? budget - out->used_bytes : 0;
    if (d->machine.software) /* lavapipe counts the whole machine's memory as used */
        out->used_bytes = 0;
}

/* ---- running ---------------------------------------------------------------------------------------- */

static sbp_status vulkan_load(sbp_device *base, const sbp_program *program, sbp_diag *diag) {
    vulkan_device *d = (vulkan_device *)base;
    if (d->program)
        return sbp_fail(diag, SBP_INTERNAL, "vulkan: a second program on the same device");
    d->program = program;
    SBP_TRY(vulkan_arenas_create(d, diag));
    SBP_TRY(vulkan_pipelines_create(d, d->code, d->code_bytes, diag));
    return vulkan_matrix_check(d, diag);
}

static sbp_status vulkan_wait(sbp_device *base, sbp_diag *diag) {
    return vulkan_wait_all((vulkan_device *)base, diag);
}

static void *vulkan_map(sbp_device *base, sbp_space space, int64_t offset) {
    vulkan_device *d = (vulkan_device *)base;
    const vulkan_block *block;
    if (vulkan_arena_find(d, space, offset, 1, &block, NULL) != SBP_OK || !block->buffer.mapped ||
        vulkan_wait_all(d, NULL) != SBP_OK)
        return NULL;
    return block->buffer.mapped + (offset - block->start);
}

static void vulkan_libraries(void (*visit)(void *user, const sbp_device_library *library), void *user) {
    sbp_device_library seen = {.name = "libvulkan.so.1",
                               .what = "the loader of Vulkan",
                               .brings =
                                   "Debian: libvulkan1, and a driver (mesa-vulkan-drivers, or NVIDIA's)"};
    void *library = dlopen(seen.name, RTLD_NOW | RTLD_LOCAL);
    if (library)
        dlclose(library);
    seen.path = library ? seen.name : NULL;
    visit(user, &seen);
}

const sbp_device_class vulkan_backend_class = {.name = "vulkan",
                                               .count = vulkan_count,
                                               .create = vulkan_create,
                                               .destroy = vulkan_destroy,
                                               .info = vulkan_info,
                                               .load = vulkan_load,
                                               .write = vulkan_arena_write,
                                               .read = vulkan_arena_read,
                                               .submit = vulkan_command_record,
                                               .wait = vulkan_wait,
                                               .map = vulkan_map};

static sbp_status create_composite(const sbp_device_options *options, sbp_diag *diag, sbp_device **out) {
    const composite_parts parts = {.name = "vulkan", .backend = &vulkan_backend_class, .cores = &cpu_cores};
    return composite_create(&parts, &sbp_vulkan_device, options, diag, out);
}

const sbp_device_class sbp_vulkan_device = {.name = "vulkan",
                                            .count = vulkan_count,
                                            .create = create_composite,
                                            .libraries = vulkan_libraries,
                                            COMPOSITE_CLASS};
