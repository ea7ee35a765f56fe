/* api.c: the driver's library, its functions, and its devices as it describes them. */
#include "backends/cuda/device/cuda.h"

#include <stdio.h>
#include <string.h>

enum { OLDEST_DRIVER = 12000 };

/* Functions by their plain names, and where in the table they belong. */
static const sbp_cuda_symbol symbols[] = {
#define SYMBOL(name, suffix, ...) {#name, offsetof(cuda_calls, name)},
#include "backends/cuda/device/cuda.def"
#undef SYMBOL
};

const char *cuda_result_text(const cuda_api *api, cuda_result result) {
    const char *text = NULL;
    switch (result) {
    case CUDA_OUT_OF_MEMORY:
        return "out of memory";
    case CUDA_STUB_LIBRARY:
        return "libcuda.so.1 is the toolkit's stub, which has no driver behind it";
    case CUDA_NO_DEVICE:
        return "the driver sees no device (CUDA_VISIBLE_DEVICES may hide them)";
    case CUDA_LAUNCH_TIMEOUT:
        return "a kernel ran longer than the driver lets it";
    case CUDA_SYSTEM_NOT_READY:
        return "the machine is not ready (with NVSwitches, its fabric manager must run)";
    case CUDA_DRIVER_MISMATCH:
        return "libcuda.so.1 and the kernel's driver are of different versions";
    default:
        if (!api->calls.cuGetErrorString || api->calls.cuGetErrorString(result, &text) != CUDA_OK || !text)
            return "the driver reported an error";
        return text;
    }
}

bool cuda_result_is_machine(cuda_result result) {
    switch (result) {
    case CUDA_INVALID_VALUE:
    case CUDA_INVALID_CONTEXT:
    case CUDA_INVALID_HANDLE:
    case CUDA_NOT_FOUND:
    case CUDA_ILLEGAL_ADDRESS:
    case CUDA_MISALIGNED_ADDRESS:
    case CUDA_LAUNCH_FAILED:
        return false;
    default:
        return true;
    }
}

/* ---- opening ---------------------------------------------------------------------------------------- */

static sbp_status too_old(const cuda_api *api, sbp_diag *diag) {
    if (api->version == 0)
        return sbp_fail(diag, SBP_MACHINE,
                        "cuda: the driver (%s) is older than CUDA 12.0, the oldest that is supported: "
                        "install version 580 or newer",
                        api->library.path);
    return sbp_fail(diag, SBP_MACHINE,
                    "cuda: the driver is for CUDA %d.%d; 12.0 or newer is needed, 13.0 (version 580) for "
                    "plans that were compiled here",
                    api->version / 1000, api->version % 1000 / 10);
}

static sbp_status find_functions(cuda_api *api, sbp_diag *diag) {
    cuda_get_address *get;
    void *symbol = sbp_cuda_library_symbol(&api->library, "cuGetProcAddress_v2");
    if (!symbol)
        return too_old(api, diag);
    memcpy(&get, &symbol, sizeof get);
    for (int32_t i = 0; i < SBP_COUNT(symbols); i++) {
        int32_t found = 0;
        void *function = NULL;
        cuda_result result = get(symbols[i].name, &function, CUDA_ABI, 0, &found);
        if (result != CUDA_OK || !function)
            return sbp_fail(diag, SBP_MACHINE, "cuda: %s has no %s of CUDA 12.0%s%s", api->library.path,
                            symbols[i].name, result == CUDA_STUB_LIBRARY ? ": " : "",
                            result == CUDA_STUB_LIBRARY ? cuda_result_text(api, result) : "");
        memcpy((char *)&api->calls + symbols[i].offset, &function, sizeof function);
    }
    return SBP_OK;
}

static sbp_status start(cuda_api *api, sbp_diag *diag) {
    SBP_TRY(find_functions(api, diag));
    cuda_result result = api->calls.cuInit(0);
    if (result != CUDA_OK)
        return sbp_fail(diag, SBP_MACHINE, "cuda: the driver does not start: %s (%d, in cuInit)",
                        cuda_result_text(api, result), (int)result);
    result = api->calls.cuDriverGetVersion(&api->version);
    if (result != CUDA_OK)
        return sbp_fail(diag, SBP_MACHINE, "cuda: the driver's version: %s (%d)",
                        cuda_result_text(api, result), (int)result);
    return api->version < OLDEST_DRIVER ? too_old(api, diag) : SBP_OK;
}

sbp_status cuda_api_open(cuda_api *api, sbp_diag *diag) {
    *api = (cuda_api){0};
    SBP_TRY(sbp_cuda_library_open(SBP_CUDA_DRIVER, diag, &api->library));
    sbp_status status = start(api, diag);
    if (status == SBP_OK)
        sbp_cuda_library_keep(&api->library); /* its threads may live longer than a device */
    else
        cuda_api_close(api);
    return status;
}

void cuda_api_close(cuda_api *api) {
    sbp_cuda_library_close(&api->library);
    *api = (cuda_api){0};
}

/* ---- devices ---------------------------------------------------------------------------------------- */

sbp_status cuda_api_count(const cuda_api *api, sbp_diag *diag, int32_t *out) {
    int32_t count = 0;
    cuda_result result = api->calls.cuDeviceGetCount(&count);
    *out = 0;
    if (result == CUDA_OK && count < 1)
        result = CUDA_NO_DEVICE;
    if (result != CUDA_OK)
        return sbp_fail(diag, SBP_MACHINE, "cuda: devices cannot be listed: %s (%d)",
                        cuda_result_text(api, result), (int)result);
    *out = count;
    return SBP_OK;
}

static cuda_result read_physical(const cuda_calls *calls, int32_t index, cuda_physical *out) {
    int32_t major = 0, minor = 0;
    size_t bytes = 0;
    cuda_result r = calls->cuDeviceGet(&out->handle, index);
    r = r ? r : calls->cuDeviceGetName(out->name, (int32_t)sizeof out->name, out->handle);
    r = r ? r : calls->cuDeviceGetAttribute(&major, CUDA_ATTRIBUTE_CAPABILITY_MAJOR, out->handle);
    r = r ? r : calls->cuDeviceGetAttribute(&minor, CUDA_ATTRIBUTE_CAPABILITY_MINOR, out->handle);
    r = r ? r : calls->cuDeviceGetAttribute(&out->processors, CUDA_ATTRIBUTE_MULTIPROCESSORS, out->handle);
    r = r ? r
          : calls->cuDeviceGetAttribute(&out->shared_bytes, CUDA_ATTRIBUTE_SHARED_BYTES_OPTIN, out->handle);
    r = r ? r : calls->cuDeviceTotalMem(&bytes, out->handle);
    out->name[sizeof out->name - 1] = 0;
    out->capability = 10 * major + minor;
    out->memory_bytes = (int64_t)bytes;
    return r;
}

sbp_status cuda_physical_read(const cuda_api *api, int32_t index, sbp_diag *diag, cuda_physical *out) {
    *out = (cuda_physical){0};
    cuda_result result = read_physical(&api->calls, index, out);
    if (result == CUDA_OK)
        return SBP_OK;
    return sbp_fail(diag, SBP_MACHINE, "cuda: device %d cannot be asked: %s (%d)", index,
                    cuda_result_text(api, result), (int)result);
}
