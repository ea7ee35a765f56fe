/* open.c: one device of the driver with its streams. */
#include "backends/cuda/device/cuda.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

sbp_status cuda_wait_all(cuda_device *d, sbp_diag *diag) {
    SBP_TRY(cuda_enter(d, diag));
    for (int s = 0; s < CUDA_STREAMS; s++)
        if (d->streams[s])
            SBP_TRY(cuda_synchronize(d, d->streams[s], diag));
    return cuda_timeline_flush(d, diag);
}

/* ---- opening ---------------------------------------------------------------------------------------- */

static sbp_status choose_physical(cuda_device *d, int32_t index, sbp_diag *diag) {
    int32_t count;
    SBP_TRY(cuda_api_count(&d->api, diag, &count));
    if (index < 0 || index >= count)
        return sbp_fail(diag, SBP_MACHINE,
                        "cuda: there is no device %d: this machine has %d (sbprun --devices)", index, count);
    return cuda_physical_read(&d->api, index, diag, &d->physical);
}

/* The best variant of kernels that SBP_CUDA_VARIANT lets us take. */
static sbp_status wanted_variant(int32_t *out, sbp_diag *diag) {
    const char *name = getenv("SBP_CUDA_VARIANT");
    *out = SBP_CUDA_VARIANTS;
    if (!name || !*name)
        return SBP_OK;
    for (int32_t v = 0; v < SBP_CUDA_VARIANTS; v++)
        if (strcmp(name, v == SBP_CUDA_PLAIN ? "plain" : sbp_cuda_variant_names[v]) == 0) {
            *out = v;
            return SBP_OK;
        }
    return sbp_fail(diag, SBP_USAGE, "SBP_CUDA_VARIANT is '%s'; it may be plain, vector, mma or wgmma", name);
}

sbp_status cuda_device_open(cuda_device *d, const sbp_device_options *options, sbp_diag *diag) {
    size_t free_bytes, total_bytes;
    d->arena = sbp_arena_create();
    if (!d->arena)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for opening a GPU");
    SBP_TRY(cuda_api_open(&d->api, diag));
    d->index = options ? options->index : 0;
    SBP_TRY(choose_physical(d, d->index, diag));
    d->machine = (sbp_cuda_machine){.processors = d->physical.processors};
    SBP_TRY(wanted_variant(&d->machine.variant, diag));
    const char *debug = getenv("SBP_CUDA_DEBUG");
    d->waits_for_kernels = debug && strcmp(debug, "waits") == 0;
    CUDA_TRY(d, diag, cuDevicePrimaryCtxRetain(&d->context, d->physical.handle));
    SBP_TRY(cuda_enter(d, diag));
    CUDA_TRY(d, diag, cuMemGetInfo(&free_bytes, &total_bytes));
    d->free_bytes = (int64_t)free_bytes;
    for (int32_t s = CUDA_COMPUTE; s <= CUDA_OUT; s++)
        SBP_TRY(cuda_stream_create(d, s, diag));
    return cuda_timeline_create(d, diag);
}

void cuda_device_idle(cuda_device *d) {
    (void)d->api.calls.cuCtxSetCurrent(d->context);
    for (int s = 0; s < CUDA_STREAMS; s++)
        if (d->streams[s])
            (void)d->api.calls.cuStreamSynchronize(d->streams[s]);
}

void cuda_device_close(cuda_device *d) {
    const cuda_calls *calls = &d->api.calls;
    cuda_timeline_destroy(d);
    for (int s = 0; s < CUDA_STREAMS; s++) {
        if (d->events[s])
            (void)calls->cuEventDestroy(d->events[s]);
        if (d->streams[s])
            (void)calls->cuStreamDestroy(d->streams[s]);
    }
    if (d->context) {
        (void)calls->cuCtxSetCurrent(NULL);
        (void)calls->cuDevicePrimaryCtxRelease(d->physical.handle);
    }
    cuda_api_close(&d->api);
    sbp_arena_destroy(d->arena);
}
