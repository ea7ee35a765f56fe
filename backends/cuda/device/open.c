/* open.c: one device of the driver with its streams, and what a failed call means. */
#include "backends/cuda/device/cuda.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

sbp_status cuda_fail(cuda_device *d, cuda_result result, const char *what, sbp_diag *diag) {
    int length = (int)strcspn(what, "(");
    d->broken = result;
    if (result != CUDA_OUT_OF_MEMORY)
        return sbp_fail(diag, cuda_result_is_machine(result) ? SBP_MACHINE : SBP_INTERNAL,
                        "cuda: %s: %s (%d, in %.*s)", d->physical.name, cuda_result_text(&d->api, result),
                        (int)result, length, what);
    char need[32] = "", have[32];
    if (d->program)
        sbp_format_bytes(need, sizeof need, (double)d->program->arena_bytes[SBP_DEVICE]);
    return sbp_fail(diag, SBP_MACHINE, "cuda: %s: out of memory (in %.*s); %s%s%sit has %s", d->physical.name,
                    length, what, *need ? "the plan needs " : "", need, *need ? " for its buffers, " : "",
                    sbp_format_bytes(have, sizeof have, (double)d->physical.memory_bytes));
}

sbp_status cuda_enter(cuda_device *d, sbp_diag *diag) {
    if (d->broken != CUDA_OK)
        return cuda_fail(d, d->broken, "an earlier call", diag);
    CUDA_TRY(d, diag, cuCtxSetCurrent(d->context));
    return SBP_OK;
}

sbp_status cuda_wait_all(cuda_device *d, sbp_diag *diag) {
    SBP_TRY(cuda_enter(d, diag));
    for (int s = 0; s < CUDA_STREAMS; s++)
        if (d->streams[s])
            SBP_TRY(cuda_synchronize(d, d->streams[s], diag));
    return cuda_timeline_flush(d, diag);
}

/* Polls, with longer and longer pauses, where the stream may wait for another rank. */
sbp_status cuda_synchronize(cuda_device *d, cuda_stream stream, sbp_diag *diag) {
    if (!d->watch) {
        CUDA_TRY(d, diag, cuStreamSynchronize(stream));
        return SBP_OK;
    }
    for (long pause = 0;; pause = pause < 200000 ? pause + 1000 : pause) {
        cuda_result result = d->api.calls.cuStreamQuery(stream);
        if (result == CUDA_OK)
            return SBP_OK;
        if (result != CUDA_NOT_READY)
            return cuda_fail(d, result, "cuStreamQuery", diag);
        SBP_TRY(d->watch(d, diag));
        if (pause > 0)
            nanosleep(&(struct timespec){.tv_nsec = pause}, NULL);
    }
}

sbp_status cuda_order(cuda_device *d, int32_t from, int32_t to, sbp_diag *diag) {
    if (from == to) /* a stream is in order */
        return SBP_OK;
    int32_t a = cuda_stream_of(from), b = cuda_stream_of(to);
    if (a < 0 || b < 0 || !d->streams[a] || !d->streams[b])
        return sbp_fail(diag, SBP_INTERNAL, "cuda: a fence from queue %d to %d", from, to);
    CUDA_TRY(d, diag, cuEventRecord(d->events[a], d->streams[a]));
    CUDA_TRY(d, diag, cuStreamWaitEvent(d->streams[b], d->events[a], 0));
    return SBP_OK;
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

sbp_status cuda_stream_create(cuda_device *d, int32_t stream, sbp_diag *diag) {
    CUDA_TRY(d, diag, cuStreamCreate(&d->streams[stream], CUDA_STREAM_NON_BLOCKING));
    CUDA_TRY(d, diag, cuEventCreate(&d->events[stream], CUDA_EVENT_DISABLE_TIMING));
    return SBP_OK;
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
