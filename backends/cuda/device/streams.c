/* streams.c: what a failed call means, and the order and end of what streams run. */
#include "backends/cuda/device/cuda.h"

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

sbp_status cuda_stream_create(cuda_device *d, int32_t stream, sbp_diag *diag) {
    CUDA_TRY(d, diag, cuStreamCreate(&d->streams[stream], CUDA_STREAM_NON_BLOCKING));
    CUDA_TRY(d, diag, cuEventCreate(&d->events[stream], CUDA_EVENT_DISABLE_TIMING));
    return SBP_OK;
}
