/* probe.c: the devices as candidates for --backend auto. Each is opened for a moment: only so the driver
 * tells what is free. */
#include "backends/cuda/abi.h"
#include "backends/cuda/cuda_probe.h"
#include "backends/cuda/device/cuda.h"
#include "backends/cuda/library.h"

#include <stdio.h>
#include <stdlib.h>

enum { OLDEST_CAPABILITY = 80 }; /* that kernels are written for */

static void describe(const cuda_physical *p, sbp_candidate *out) {
    *out = (sbp_candidate){.fp64 = true, .free_bytes = p->memory_bytes};
    snprintf(out->name, sizeof out->name, "%.100s", p->name);
    snprintf(out->arch, sizeof out->arch, "sm_%d%s", (int)p->capability, p->capability == 90 ? "a" : "");
    if (p->capability < OLDEST_CAPABILITY)
        snprintf(out->missing, sizeof out->missing,
                 "whose compute capability is %d.%d; %d.%d or higher is needed", p->capability / 10,
                 p->capability % 10, OLDEST_CAPABILITY / 10, OLDEST_CAPABILITY % 10);
}

enum { STEPS = 16, STEP_PARTS = 128 };

/* Bytes that can be allocated in the current context: what is said to be free is not all to be had, so it is
 * tried, and a little less each time. 0: nothing, or not known. */
static int64_t allocatable(const cuda_calls *calls) {
    size_t free_bytes, total_bytes;
    cuda_address address;
    if (calls->cuMemGetInfo(&free_bytes, &total_bytes) != CUDA_OK)
        return 0;
    for (size_t i = 0; i < STEPS && free_bytes > 0; i++) {
        size_t bytes = free_bytes - free_bytes / STEP_PARTS * i;
        cuda_result result = calls->cuMemAlloc(&address, bytes);
        if (result == CUDA_OK)
            return calls->cuMemFree(address) == CUDA_OK ? (int64_t)bytes : 0;
        if (result != CUDA_OUT_OF_MEMORY)
            return 0;
    }
    return 0;
}

/* What a process may take of a device: the context is there then, which plans count. Where the driver does
 * not open the device, which a run will tell, all of its memory. */
static int64_t free_bytes_of(const cuda_api *api, const cuda_physical *p) {
    const cuda_calls *calls = &api->calls;
    cuda_context context;
    if (calls->cuDevicePrimaryCtxRetain(&context, p->handle) != CUDA_OK)
        return p->memory_bytes;
    int64_t bytes = calls->cuCtxSetCurrent(context) == CUDA_OK ? allocatable(calls) : 0;
    (void)calls->cuCtxSetCurrent(NULL);
    (void)calls->cuDevicePrimaryCtxRelease(p->handle);
    bytes = bytes > 0 ? bytes + SBP_CUDA_CONTEXT_BYTES : p->memory_bytes;
    return bytes < p->memory_bytes ? bytes : p->memory_bytes;
}

static sbp_status list(const cuda_api *api, sbp_diag *diag, sbp_candidate **out, int32_t *count) {
    SBP_TRY(cuda_api_count(api, diag, count));
    *out = sbp_malloc((size_t)*count * sizeof **out);
    if (!*out)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for looking for GPUs");
    for (int32_t i = 0; i < *count; i++) {
        cuda_physical physical;
        SBP_TRY(cuda_physical_read(api, i, diag, &physical));
        describe(&physical, &(*out)[i]);
        if (physical.capability >= OLDEST_CAPABILITY)
            (*out)[i].free_bytes = free_bytes_of(api, &physical);
    }
    return SBP_OK;
}

sbp_status sbp_cuda_candidates(sbp_diag *diag, sbp_candidate **out, int32_t *count) {
    cuda_api api;
    *out = NULL;
    *count = 0;
    SBP_TRY(cuda_api_open(&api, diag));
    sbp_status status = list(&api, diag, out, count);
    if (status != SBP_OK) {
        free(*out);
        *out = NULL;
        *count = 0;
    }
    cuda_api_close(&api);
    return status;
}

/* Whether a library of NVIDIA's can be opened. */
static bool has_library(sbp_cuda_library_id id) {
    sbp_cuda_library library;
    bool has = sbp_cuda_library_open(id, NULL, &library) == SBP_OK;
    if (has)
        sbp_cuda_library_keep(&library);
    sbp_cuda_library_close(&library);
    return has;
}

sbp_status sbp_cuda_probe(sbp_diag *diag, sbp_probed *out) {
    *out = (sbp_probed){.absent = !has_library(SBP_CUDA_DRIVER)};
    if (out->absent) {
        snprintf(out->none, sizeof out->none, "its driver is not installed (libcuda.so.1)");
        return SBP_OK;
    }
    SBP_TRY(sbp_cuda_candidates(diag, &out->devices, &out->count));
    bool compiles = out->count == 0 || has_library(SBP_CUDA_NVRTC);
    for (int32_t i = 0; i < out->count && !compiles; i++)
        if (!out->devices[i].missing[0])
            snprintf(out->devices[i].missing, sizeof out->devices[i].missing,
                     "for which nothing can be compiled without %s (pip install %s)",
                     sbp_cuda_library_file(SBP_CUDA_NVRTC), sbp_cuda_library_package(SBP_CUDA_NVRTC));
    return SBP_OK;
}
