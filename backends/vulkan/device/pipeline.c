/* pipeline.c: pipelines of the modules that the plan carries, and their cache on disk.
 *
 * The cache is a file per driver in $XDG_CACHE_HOME/streambp (or ~/.cache/streambp): 16 bytes of magic and
 * checksum, then what the driver gave. Whatever is wrong with it, it is as if it were not there. */
#include "backends/vulkan/device/vulkan.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ir/base/machine.h"

#define CACHE_MAGIC "SBPVKC1\n"

enum { CACHE_HEADER = 16, MOST_CACHE_BYTES = 256 << 20, PATH_BYTES = 4096 };

/* ---- the cache -------------------------------------------------------------------------------------- */

/* False when there is no place for it. */
static bool cache_path(const vulkan_device *d, char *path) {
    char uuid[2 * VK_UUID_SIZE + 1], name[128];
    for (size_t i = 0; i < VK_UUID_SIZE; i++)
        snprintf(uuid + 2 * i, 3, "%02x", d->physical.properties.pipelineCacheUUID[i]);
    snprintf(name, sizeof name, "vulkan-%04x-%04x-%08x-%s.bin", d->physical.properties.vendorID,
             d->physical.properties.deviceID, d->physical.properties.driverVersion, uuid);
    return sbp_cache_path(name, path, PATH_BYTES);
}

/* The driver's data, with `*bytes`; NULL when there is no good cache. Freed by the caller. */
static char *read_cache(const char *path, size_t *bytes) {
    struct stat info;
    uint64_t sum;
    FILE *file = fopen(path, "re");
    if (!file)
        return NULL;
    char *data = NULL;
    if (fstat(fileno(file), &info) == 0 && info.st_size > CACHE_HEADER && info.st_size < MOST_CACHE_BYTES)
        data = sbp_malloc((size_t)info.st_size);
    if (data && fread(data, 1, (size_t)info.st_size, file) != (size_t)info.st_size) {
        free(data);
        data = NULL;
    }
    fclose(file);
    if (!data)
        return NULL;
    *bytes = (size_t)info.st_size - CACHE_HEADER;
    memcpy(&sum, data + 8, sizeof sum);
    if (memcmp(data, CACHE_MAGIC, 8) != 0 || sum != sbp_hash_bytes(data + CACHE_HEADER, *bytes, 0)) {
        free(data);
        return NULL;
    }
    memmove(data, data + CACHE_HEADER, *bytes);
    return data;
}

/* Whole or not at all; a cache that cannot be written is not missed. */
static void write_cache(const char *path, const char *data, size_t bytes) {
    char temporary[PATH_BYTES + 32];
    uint64_t sum = sbp_hash_bytes(data, bytes, 0);
    sbp_make_directories_above(path);
    snprintf(temporary, sizeof temporary, "%s.%ld", path, (long)getpid());
    (void)unlink(temporary); /* of a process that was killed, perhaps; a link is not written through */
    FILE *file = fopen(temporary, "wxe");
    if (!file)
        return;
    bool good = fwrite(CACHE_MAGIC, 1, 8, file) == 8 && fwrite(&sum, 1, 8, file) == 8 &&
                fwrite(data, 1, bytes, file) == bytes;
    good = fclose(file) == 0 && good;
    if (!good || rename(temporary, path) != 0)
        (void)unlink(temporary);
}

static sbp_status open_cache(vulkan_device *d, const char *path, size_t *bytes, sbp_diag *diag) {
    char *data = path ? read_cache(path, bytes) : NULL;
    VkPipelineCacheCreateInfo info = {.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO,
                                      .initialDataSize = data ? *bytes : 0,
                                      .pInitialData = data};
    VkResult result = d->vk.CreatePipelineCache(d->device, &info, NULL, &d->cache);
    if (result != VK_SUCCESS && data) { /* the driver may refuse what is not its own */
        info.initialDataSize = 0;
        result = d->vk.CreatePipelineCache(d->device, &info, NULL, &d->cache);
    }
    *bytes = info.initialDataSize;
    free(data);
    return result == VK_SUCCESS ? SBP_OK : vulkan_fail(d, result, "CreatePipelineCache", diag);
}

/* loaded: bytes that it began with. */
static void save_cache(vulkan_device *d, const char *path, size_t loaded) {
    size_t bytes = 0;
    if (d->vk.GetPipelineCacheData(d->device, d->cache, &bytes, NULL) != VK_SUCCESS || bytes == 0 ||
        bytes == loaded || bytes > MOST_CACHE_BYTES - CACHE_HEADER)
        return;
    char *data = sbp_malloc(bytes);
    if (data && d->vk.GetPipelineCacheData(d->device, d->cache, &bytes, data) == VK_SUCCESS)
        write_cache(path, data, bytes);
    free(data);
}

/* ---- pipelines -------------------------------------------------------------------------------------- */

static sbp_status create_pipeline(vulkan_device *d, const sbp_vulkan_module *module, uint32_t local_size,
                                  sbp_diag *diag) {
    vulkan_pipeline *out = &d->pipelines[d->pipeline_count];
    char name[SBP_GPU_NAME];
    VkShaderModule shader;
    sbp_vulkan_key_text(&module->key, name);
    VkShaderModuleCreateInfo source = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                       .codeSize = (size_t)module->word_count * sizeof *module->words,
                                       .pCode = module->words};
    SBP_TRY(vulkan_physical_check_module(&d->physical, name, module->words, module->word_count, diag));
    VULKAN_TRY(d, diag, CreateShaderModule(d->device, &source, NULL, &shader));
    sbp_vulkan_matrix matrix = sbp_vulkan_matrix_of(&module->key, &d->machine);
    uint32_t values[] = {local_size, matrix.m, matrix.n, matrix.k, matrix.rows, matrix.cols};
    VkSpecializationMapEntry entries[SBP_COUNT(values)];
    for (uint32_t i = 0; i < SBP_COUNT(values); i++)
        entries[i] = (VkSpecializationMapEntry){
            .constantID = i, .offset = i * (uint32_t)sizeof *values, .size = sizeof *values};
    VkSpecializationInfo constants = {.mapEntryCount = matrix.m > 0 ? SBP_COUNT(values) : 1,
                                      .pMapEntries = entries,
                                      .dataSize = sizeof values,
                                      .pData = values};
    VkComputePipelineCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .flags = matrix.m > 0 ? VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT : 0,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .module = shader,
                  .pName = "main",
                  .pSpecializationInfo = &constants},
        .layout = d->layout};
    VkResult result = d->vk.CreateComputePipelines(d->device, d->cache, 1, &info, NULL, &out->pipeline);
    d->vk.DestroyShaderModule(d->device, shader, NULL);
    if (result != VK_SUCCESS && matrix.m > 0 && result != VK_ERROR_DEVICE_LOST) {
        sbp_warn(diag, "vulkan: %s: no pipeline for '%s', by cooperative matrices: %s; going on without them",
                 d->physical.properties.deviceName, name, vulkan_result_text(result));
        *(module->features & SBP_VULKAN_BFLOAT16 ? &d->machine.bf16 : &d->machine.f16) =
            (sbp_vulkan_shape){0};
        return SBP_OK;
    }
    if (result != VK_SUCCESS)
        return vulkan_fail(d, result, name, diag);
    out->key = module->key;
    d->pipeline_count++;
    return SBP_OK;
}

/* Whether the plan has two of this module, and this is not the one for the device. */
static bool is_other_variant(const vulkan_device *d, const sbp_vulkan_modules *modules,
                             const sbp_vulkan_module *module) {
    sbp_gpu_key other = module->key;
    other.no64 = true;
    if (module->key.no64)
        return !d->machine.lacks_float64;
    return d->machine.lacks_float64 && sbp_vulkan_modules_find(modules, &other);
}

static sbp_status create_all(vulkan_device *d, const sbp_vulkan_modules *modules, sbp_diag *diag) {
    d->pipelines = sbp_malloc(((size_t)modules->count + 1) * sizeof *d->pipelines);
    if (!d->pipelines)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for a pipeline of Vulkan");
    for (int32_t i = 0; i < modules->count; i++) {
        uint32_t local_size = sbp_vulkan_local_size(d->program, &modules->items[i].key, &d->machine);
        if (local_size > 0 && !is_other_variant(d, modules, &modules->items[i]))
            SBP_TRY(create_pipeline(d, &modules->items[i], local_size, diag));
    }
    return SBP_OK;
}

typedef struct reading {
    vulkan_device *d;
    const void *code;
    int64_t bytes;
    sbp_diag *diag;
    sbp_vulkan_modules modules;
} reading;

static sbp_status read_modules(void *user) {
    reading *r = user;
    return r->bytes > 0 ? sbp_vulkan_modules_read(r->d->arena, r->diag, r->code, r->bytes, &r->modules)
                        : SBP_OK;
}

sbp_status vulkan_pipelines_create(vulkan_device *d, const void *code, int64_t bytes, sbp_diag *diag) {
    char path[PATH_BYTES];
    bool kept = cache_path(d, path);
    size_t loaded = 0;
    VkPushConstantRange push = {.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT, .size = SBP_VULKAN_PUSH_BYTES};
    VkPipelineLayoutCreateInfo layout = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                         .pushConstantRangeCount = 1,
                                         .pPushConstantRanges = &push};
    reading r = {.d = d, .code = code, .bytes = bytes, .diag = diag};
    SBP_TRY(sbp_guard(d->arena, diag, read_modules, &r));
    VULKAN_TRY(d, diag, CreatePipelineLayout(d->device, &layout, NULL, &d->layout));
    SBP_TRY(open_cache(d, kept ? path : NULL, &loaded, diag));
    SBP_TRY(create_all(d, &r.modules, diag));
    if (kept)
        save_cache(d, path, loaded);
    return SBP_OK;
}

void vulkan_pipelines_destroy(vulkan_device *d) {
    for (int32_t i = 0; i < d->pipeline_count; i++)
        d->vk.DestroyPipeline(d->device, d->pipelines[i].pipeline, NULL);
    free(d->pipelines);
    d->pipelines = NULL;
    d->pipeline_count = 0;
    if (d->cache)
        d->vk.DestroyPipelineCache(d->device, d->cache, NULL);
    if (d->layout)
        d->vk.DestroyPipelineLayout(d->device, d->layout, NULL);
}

const vulkan_pipeline *vulkan_pipeline_find(const vulkan_device *d, const sbp_gpu_key *key) {
    return sbp_gpu_key_find(key, d->pipelines, d->pipeline_count, sizeof *d->pipelines);
}
