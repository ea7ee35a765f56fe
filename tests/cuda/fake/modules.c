/* modules.c: kernels of the fake driver, which the PTX machine runs. */
#include "tests/cuda/fake/driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ptx/tensor/tma.h"

enum { MOST_PARAMETERS = 16, MOST_PARAMETER_BYTES = 4096, MAP_ALIGNMENT = 64 };

struct cuda_function_handle {
    cuda_module module;
    const sbp_ptx_entry *entry;
    uint32_t shared_bytes; /* dynamic, that it may have */
};

struct cuda_module_handle {
    struct cuda_module_handle *next;
    int32_t id;
    sbp_ptx_module *ptx;
    struct cuda_function_handle function; /* the one that was asked for last */
};

static cuda_module modules;

static void unload(cuda_module *at) {
    cuda_module module = *at;
    *at = module->next;
    sbp_ptx_module_unload(module->ptx);
    free(module);
}

void fake_modules_reset(void) {
    while (modules)
        unload(&modules);
}

static cuda_module *find_module(cuda_module module) {
    cuda_module *at = &modules;
    while (*at && *at != module)
        at = &(*at)->next;
    return at;
}

/* ---- modules ---------------------------------------------------------------------------------------- */

static void write_log(uint32_t count, const int32_t *options, void **values, const char *text) {
    char *log = NULL;
    size_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (options[i] == CUDA_JIT_ERROR_LOG)
            log = values[i];
        else if (options[i] == CUDA_JIT_ERROR_LOG_BYTES)
            bytes = (size_t)(uintptr_t)values[i];
    }
    if (log && bytes > 0)
        snprintf(log, bytes, "%s", text);
}

/* Whether the device can run code for the target that a text names: "sm_90a" only on that very one. */
static bool is_for_device(const char *text) {
    int32_t capability = (int32_t)fake_number("capability", 90), number = 0;
    char suffix = 0;
    const char *target = strstr(text, "\n.target sm_");
    if (!target || sscanf(target, "\n.target sm_%d%c", &number, &suffix) < 1)
        return false;
    return suffix == 'a' || suffix == 'f' ? number == capability : number <= capability;
}

cuda_result cuModuleLoadDataEx(cuda_module *out, const void *image, uint32_t option_count, int32_t *options,
                               void **values) {
    FAKE_ENTER(true);
    const char *text = image;
    sbp_ptx_report report;
    if (memcmp(text, "\177ELF", 4) == 0)
        return fake_cuda_wrong(CUDA_NO_BINARY, "cuModuleLoadDataEx: a cubin, which nothing here can run");
    if (!is_for_device(text))
        return CUDA_NO_BINARY;
    cuda_module module = calloc(1, sizeof *module);
    if (!module)
        return CUDA_OUT_OF_MEMORY;
    module->ptx = sbp_ptx_module_load(fake.memory, text, strlen(text), &report);
    if (!module->ptx) {
        free(module);
        write_log(option_count, options, values, report.text);
        return fake_cuda_wrong(CUDA_INVALID_PTX, "cuModuleLoadDataEx: %s", report.text);
    }
    module->id = ++fake.ids;
    module->next = modules;
    modules = module;
    fake_cuda_count(1);
    fake_cuda_log("cuModuleLoadDataEx -> m%d", module->id);
    *out = module;
    return CUDA_OK;
}

/* Gives back, whatever it returns. */
cuda_result cuModuleUnload(cuda_module module) {
    FAKE_LOCKED;
    cuda_result result = fake_cuda_enter(__func__, true);
    cuda_module *at = find_module(module);
    if (!*at)
        return fake_cuda_wrong(CUDA_INVALID_HANDLE, "cuModuleUnload: no such module");
    fake_cuda_log("cuModuleUnload m%d", module->id);
    unload(at);
    fake_cuda_count(-1);
    return result;
}

cuda_result cuModuleGetFunction(cuda_function *out, cuda_module module, const char *name) {
    FAKE_ENTER(true);
    if (!*find_module(module))
        return fake_cuda_wrong(CUDA_INVALID_HANDLE, "cuModuleGetFunction: no such module");
    const sbp_ptx_entry *entry = sbp_ptx_module_entry(module->ptx, name);
    if (!entry)
        return CUDA_NOT_FOUND;
    module->function = (struct cuda_function_handle){module, entry, CUDA_SHARED_BYTES_ALWAYS};
    *out = &module->function;
    return CUDA_OK;
}

static bool is_function(cuda_function function) {
    for (cuda_module m = modules; m; m = m->next)
        if (function == &m->function && function->module)
            return true;
    return false;
}

static uint32_t most_shared(void) {
    int32_t bytes = 0;
    cuda_result cuDeviceGetAttribute(int32_t *, int32_t, int32_t);
    (void)cuDeviceGetAttribute(&bytes, CUDA_ATTRIBUTE_SHARED_BYTES_OPTIN, 0);
    return (uint32_t)bytes;
}

cuda_result cuFuncSetAttribute(cuda_function function, int32_t attribute, int32_t value) {
    FAKE_ENTER(true);
    if (!is_function(function))
        return fake_cuda_wrong(CUDA_INVALID_HANDLE, "cuFuncSetAttribute: no such function");
    if (attribute != CUDA_FUNCTION_DYNAMIC_SHARED || value < 0 ||
        (uint32_t)value + sbp_ptx_entry_shared_bytes(function->entry) > most_shared())
        return fake_cuda_wrong(CUDA_INVALID_VALUE, "cuFuncSetAttribute: attribute %d, value %d", attribute,
                               value);
    function->shared_bytes = (uint32_t)value;
    fake_cuda_log("cuFuncSetAttribute m%d, %d = %d", function->module->id, attribute, value);
    return CUDA_OK;
}

/* ---- tensor maps ------------------------------------------------------------------------------------ */

cuda_result cuTensorMapEncodeTiled(cuda_tensor_map *map, int32_t type, uint32_t rank, void *address,
                                   const uint64_t *dims, const uint64_t *strides, const uint32_t *box,
                                   const uint32_t *element_strides, int32_t interleave, int32_t swizzle,
                                   int32_t promotion, int32_t outside) {
    static const uint32_t swizzle_bytes[] = {0, 32, 64, 128};
    FAKE_ENTER(true);
    if (interleave != CUDA_INTERLEAVE_NONE || swizzle < 0 || swizzle > 3 || promotion < 0 || promotion > 3 ||
        outside != CUDA_OUTSIDE_IS_ZERO)
        return fake_cuda_wrong(CUDA_INVALID_VALUE, "cuTensorMapEncodeTiled: interleave %d, swizzle %d",
                               interleave, swizzle);
    if ((int32_t)fake_number("capability", 90) < 90)
        return fake_cuda_wrong(CUDA_NOT_SUPPORTED, "cuTensorMapEncodeTiled before sm_90");
    const char *rule = sbp_ptx_tensor_map_encode((sbp_ptx_tensor_map *)(void *)map, (sbp_ptx_tma_type)type,
                                                 rank, (uint64_t)(uintptr_t)address, dims, strides, box,
                                                 element_strides, swizzle_bytes[swizzle]);
    return rule ? fake_cuda_wrong(CUDA_INVALID_VALUE, "cuTensorMapEncodeTiled: %s", rule) : CUDA_OK;
}

/* ---- launches --------------------------------------------------------------------------------------- */

typedef struct launching {
    _Alignas(MAP_ALIGNMENT) unsigned char parameters[MOST_PARAMETER_BYTES];
    cuda_function function;
    cuda_module module;
    int32_t id;
    uint32_t grid[3], block[3], shared_bytes;
    uint64_t seed;
} launching;

static cuda_result launch_now(void *data) {
    launching *l = data;
    void *pointers[MOST_PARAMETERS];
    sbp_ptx_report report;
    if (!*find_module(l->module) || l->module->id != l->id)
        return fake_cuda_wrong(CUDA_ILLEGAL_ADDRESS, "a kernel whose module m%d was unloaded", l->id);
    const sbp_ptx_entry *entry = l->function->entry;
    for (int i = 0; i < sbp_ptx_entry_params(entry); i++)
        pointers[i] = l->parameters + sbp_ptx_entry_param(entry, i).offset;
    const sbp_ptx_options options = {.seed = l->seed};
    if (sbp_ptx_launch(entry, l->grid, l->block, l->shared_bytes, pointers, &options, &report) == SBP_PTX_OK)
        return CUDA_OK;
    return fake_cuda_wrong(CUDA_ILLEGAL_ADDRESS, "kernel m%d: %s", l->id, report.text);
}

static bool is_possible(const uint32_t grid[3], const uint32_t block[3], const sbp_ptx_entry *entry) {
    uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    return grid[0] > 0 && grid[1] > 0 && grid[2] > 0 && grid[0] <= INT32_MAX && grid[1] <= 65535 &&
           grid[2] <= 65535 && threads > 0 && block[0] <= 1024 && block[1] <= 1024 && block[2] <= 64 &&
           threads <= sbp_ptx_entry_max_threads(entry);
}

cuda_result cuLaunchKernel(cuda_function function, uint32_t grid_x, uint32_t grid_y, uint32_t grid_z,
                           uint32_t block_x, uint32_t block_y, uint32_t block_z, uint32_t shared_bytes,
                           cuda_stream stream, void **parameters, void **extra) {
    FAKE_ENTER(true);
    if (!is_function(function) || extra || !parameters)
        return fake_cuda_wrong(CUDA_INVALID_HANDLE, "cuLaunchKernel: no such function, or no parameters");
    launching l = {.function = function,
                   .module = function->module,
                   .id = function->module->id,
                   .grid = {grid_x, grid_y, grid_z},
                   .block = {block_x, block_y, block_z},
                   .shared_bytes = shared_bytes,
                   .seed = (uint64_t)fake_number("kernels", 1)};
    int count = sbp_ptx_entry_params(function->entry);
    if (count > MOST_PARAMETERS || !is_possible(l.grid, l.block, function->entry))
        return fake_cuda_wrong(CUDA_INVALID_VALUE, "cuLaunchKernel: grid %u %u %u, block %u %u %u", grid_x,
                               grid_y, grid_z, block_x, block_y, block_z);
    if (shared_bytes > function->shared_bytes)
        return fake_cuda_wrong(CUDA_INVALID_VALUE,
                               "cuLaunchKernel: %u bytes of shared memory, %u are allowed", shared_bytes,
                               function->shared_bytes);
    for (int i = 0; i < count; i++) {
        sbp_ptx_param p = sbp_ptx_entry_param(function->entry, i);
        if (!parameters[i] || p.offset + p.bytes > MOST_PARAMETER_BYTES)
            return fake_cuda_wrong(CUDA_INVALID_VALUE, "cuLaunchKernel: parameter %d is missing, or too much",
                                   i);
        memcpy(l.parameters + p.offset, parameters[i], p.bytes);
    }
    fake.report.launches++;
    fake_cuda_log("cuLaunchKernel m%d, grid %u %u %u, block %u %u %u, shared %u, s%d", l.id, grid_x, grid_y,
                  grid_z, block_x, block_y, block_z, shared_bytes, fake_cuda_stream(stream));
    return fake_cuda_enqueue(stream, launch_now, &l, sizeof l);
}
