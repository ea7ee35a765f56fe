/* cuda_memory.c: arenas, and how the host reaches them. */
#include "backends/cuda/device/cuda.h"
#include "ir/base/machine.h"

#include <stdlib.h>
#include <string.h>

/* ---- allocating ------------------------------------------------------------------------------------- */

/* "12.00 GiB of device memory are needed for WHAT; of the 79.10 GiB of NVIDIA H100, 3.20 GiB are free" */
static sbp_status no_memory(cuda_device *d, int64_t bytes, const char *what, sbp_diag *diag) {
    char a[32], b[32], c[32];
    size_t free_bytes = 0, total_bytes = 0;
    d->broken = CUDA_OUT_OF_MEMORY;
    bool known = d->api.calls.cuMemGetInfo(&free_bytes, &total_bytes) == CUDA_OK;
    return sbp_fail(diag, SBP_MACHINE, "cuda: %s needs %s of device memory; of the %s of %s, %s are free",
                    what, sbp_format_bytes(a, sizeof a, (double)bytes),
                    sbp_format_bytes(b, sizeof b, (double)d->physical.memory_bytes), d->physical.name,
                    known ? sbp_format_bytes(c, sizeof c, (double)free_bytes) : "an unknown part");
}

sbp_status cuda_memory_alloc(cuda_device *d, int64_t bytes, const char *what, cuda_address *out,
                             sbp_diag *diag) {
    cuda_result result = d->api.calls.cuMemAlloc(out, (size_t)bytes);
    if (result == CUDA_OK)
        return SBP_OK;
    *out = 0;
    return result == CUDA_OUT_OF_MEMORY ? no_memory(d, bytes, what, diag)
                                        : cuda_fail(d, result, "cuMemAlloc", diag);
}

sbp_status cuda_arenas_create(cuda_device *d, sbp_diag *diag) {
    const int64_t *bytes = d->program->arena_bytes;
    if (bytes[SBP_DEVICE] > 0)
        SBP_TRY(cuda_memory_alloc(d, bytes[SBP_DEVICE], "the plan", &d->memory, diag));
    if (bytes[SBP_HOST] > 0)
        SBP_TRY(cuda_pinned_create(d, bytes[SBP_HOST], diag));
    return cuda_memory_alloc(d, SBP_CUDA_WORKSPACE_BYTES, "a workspace", &d->workspace, diag);
}

void cuda_memory_destroy(cuda_device *d) {
    const cuda_calls *calls = &d->api.calls;
    if (d->memory)
        (void)calls->cuMemFree(d->memory);
    if (d->workspace)
        (void)calls->cuMemFree(d->workspace);
    cuda_pinned_destroy(d);
    d->memory = d->workspace = 0;
}

sbp_status cuda_scratch(cuda_device *d, const sbp_dispatch *dispatch, int64_t bytes, cuda_address *out,
                        sbp_diag *diag) {
    const sbp_span *planned = sbp_cuda_scratch_planned(dispatch);
    int64_t has = planned ? planned->rows * planned->cols * sbp_dtype_bytes(planned->dtype) : 0;
    char need[32], given[32], own[32];
    *out = planned && has >= bytes ? d->memory + (uint64_t)planned->offset : d->workspace;
    if (has >= bytes || bytes <= SBP_CUDA_WORKSPACE_BYTES)
        return SBP_OK;
    return sbp_fail(diag, SBP_INPUT,
                    "cuda: %s of %lld rows needs %s of workspace; the plan gives it %s, the stream has %s",
                    sbp_command_name(dispatch->command->kind), (long long)dispatch->spans->rows,
                    sbp_format_bytes(need, sizeof need, (double)bytes),
                    sbp_format_bytes(given, sizeof given, (double)has),
                    sbp_format_bytes(own, sizeof own, SBP_CUDA_WORKSPACE_BYTES));
}

/* ---- the host's side -------------------------------------------------------------------------------- */

sbp_status cuda_memory_check(const cuda_device *d, sbp_space space, int64_t offset, int64_t bytes,
                             sbp_diag *diag) {
    int64_t size =
        d->program && (space == SBP_DEVICE || space == SBP_HOST) ? d->program->arena_bytes[space] : 0;
    if (offset >= 0 && bytes >= 0 && offset <= size && bytes <= size - offset)
        return SBP_OK;
    return sbp_fail(diag, SBP_INTERNAL, "cuda: bytes %lld to %lld of arena %d, which has %lld",
                    (long long)offset, (long long)offset + bytes, (int)space, (long long)size);
}

/* Memory of the caller is not pinned: a copy may return before the device has it, so it is in the stream, and
 * the stream is waited for. */
sbp_status cuda_memory_write(sbp_device *base, sbp_space space, int64_t offset, const void *data,
                             int64_t bytes, sbp_diag *diag) {
    cuda_device *d = (cuda_device *)base;
    SBP_TRY(cuda_memory_check(d, space, offset, bytes, diag));
    SBP_TRY(cuda_wait_all(d, diag));
    if (bytes == 0)
        return SBP_OK;
    if (space == SBP_HOST) {
        memcpy(d->host + offset, data, (size_t)bytes);
        return SBP_OK;
    }
    CUDA_TRY(d, diag,
             cuMemcpyHtoDAsync(d->memory + (uint64_t)offset, data, (size_t)bytes, d->streams[CUDA_COMPUTE]));
    CUDA_TRY(d, diag, cuStreamSynchronize(d->streams[CUDA_COMPUTE]));
    return SBP_OK;
}

sbp_status cuda_memory_read(sbp_device *base, sbp_space space, int64_t offset, void *data, int64_t bytes,
                            sbp_diag *diag) {
    cuda_device *d = (cuda_device *)base;
    SBP_TRY(cuda_memory_check(d, space, offset, bytes, diag));
    SBP_TRY(cuda_wait_all(d, diag));
    if (bytes == 0)
        return SBP_OK;
    if (space == SBP_HOST) {
        memcpy(data, d->host + offset, (size_t)bytes);
        return SBP_OK;
    }
    CUDA_TRY(d, diag,
             cuMemcpyDtoHAsync(data, d->memory + (uint64_t)offset, (size_t)bytes, d->streams[CUDA_COMPUTE]));
    CUDA_TRY(d, diag, cuStreamSynchronize(d->streams[CUDA_COMPUTE]));
    return SBP_OK;
}
