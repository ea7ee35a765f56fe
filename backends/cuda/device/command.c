/* command.c: a command of the program becomes calls of the driver on the stream of its queue: copies and most
 * fills are the driver's own, matmuls cuBLASLt's where it has them, all else kernels as abi.h says. */
#include "backends/cuda/device/cuda.h"
#include "ir/base/census.h"

#include <string.h>

/* The driver's 2D calls take a pitch below 2^31. */
enum { MOST_PITCH = INT32_MAX };

static sbp_status check_span(const cuda_device *d, const sbp_span *span, sbp_diag *diag) {
    int64_t bytes;
    SBP_TRY(sbp_gpu_span_bytes(span, "cuda", diag, &bytes));
    return bytes > 0 ? cuda_memory_check(d, span->space, span->offset, bytes, diag) : SBP_OK;
}

/* ---- copies ----------------------------------------------------------------------------------------- */

/* Rows that follow each other. */
static sbp_status copy_bytes(cuda_device *d, cuda_stream stream, const sbp_span *to, int64_t to_offset,
                             const sbp_span *from, int64_t from_offset, int64_t bytes, sbp_diag *diag) {
    size_t n = (size_t)bytes;
    cuda_address to_device = d->memory + (uint64_t)to_offset, from_device = d->memory + (uint64_t)from_offset;
    if (to->space == SBP_DEVICE && from->space == SBP_DEVICE)
        CUDA_TRY(d, diag, cuMemcpyDtoDAsync(to_device, from_device, n, stream));
    else if (to->space == SBP_DEVICE)
        CUDA_TRY(d, diag, cuMemcpyHtoDAsync(to_device, d->host + from_offset, n, stream));
    else
        CUDA_TRY(d, diag, cuMemcpyDtoHAsync(d->host + to_offset, from_device, n, stream));
    return SBP_OK;
}

static sbp_status copy_rows(cuda_device *d, cuda_stream stream, const sbp_span *to, const sbp_span *from,
                            sbp_diag *diag) {
    const int64_t unit = sbp_dtype_bytes(to->dtype);
    cuda_copy_2d copy = {.from_type = from->space == SBP_DEVICE ? CUDA_MEMORY_DEVICE : CUDA_MEMORY_HOST,
                         .from_host = from->space == SBP_HOST ? d->host + from->offset : NULL,
                         .from_device = from->space == SBP_DEVICE ? d->memory + (uint64_t)from->offset : 0,
                         .from_pitch = (size_t)(from->stride * unit),
                         .to_type = to->space == SBP_DEVICE ? CUDA_MEMORY_DEVICE : CUDA_MEMORY_HOST,
                         .to_host = to->space == SBP_HOST ? d->host + to->offset : NULL,
                         .to_device = to->space == SBP_DEVICE ? d->memory + (uint64_t)to->offset : 0,
                         .to_pitch = (size_t)(to->stride * unit),
                         .width_bytes = (size_t)(to->cols * unit),
                         .height = (size_t)to->rows};
    CUDA_TRY(d, diag, cuMemcpy2DAsync(&copy, stream));
    return SBP_OK;
}

/* A copy of rows on a stream; not within the host's memory. */
static sbp_status copy_span(cuda_device *d, cuda_stream stream, const sbp_span *to, const sbp_span *from,
                            sbp_diag *diag) {
    if (to->rows != from->rows || to->cols != from->cols || to->dtype != from->dtype ||
        (to->space == SBP_HOST && from->space == SBP_HOST))
        return sbp_fail(diag, SBP_INTERNAL, "cuda: copy: shapes, types or spaces");
    const int64_t unit = sbp_dtype_bytes(to->dtype);
    if (sbp_gpu_is_empty(to))
        return SBP_OK;
    bool dense = sbp_gpu_is_dense(to) && sbp_gpu_is_dense(from);
    bool pitched = to->stride * unit <= MOST_PITCH && from->stride * unit <= MOST_PITCH;
    SBP_CROSS_IF(dense, cuda_copy_whole);
    SBP_CROSS_IF(!dense && pitched, cuda_copy_pitched);
    SBP_CROSS_IF(!dense && !pitched, cuda_copy_rows);
    if (dense)
        return copy_bytes(d, stream, to, to->offset, from, from->offset, to->rows * to->cols * unit, diag);
    if (pitched)
        return copy_rows(d, stream, to, from, diag);
    for (int64_t r = 0; r < to->rows; r++)
        SBP_TRY(copy_bytes(d, stream, to, to->offset + r * to->stride * unit, from,
                           from->offset + r * from->stride * unit, to->cols * unit, diag));
    return SBP_OK;
}

/* ---- fills ------------------------------------------------------------------------------------------ */

/* Whether the driver can set these elements: up to 4 bytes, or 8 whose halves are equal. */
static bool can_fill(const sbp_span *span, double value, uint32_t *bits, int64_t *unit) {
    uint32_t words[2] = {0};
    sbp_element_set(words, span->dtype, 0, value);
    *bits = words[0];
    *unit = sbp_dtype_bytes(span->dtype);
    if (*unit == 8 && words[0] != words[1])
        return false;
    *unit = *unit == 8 ? 4 : *unit;
    return sbp_gpu_is_dense(span) || span->stride * sbp_dtype_bytes(span->dtype) <= MOST_PITCH;
}

static sbp_status fill_bytes(cuda_device *d, cuda_stream stream, cuda_address at, uint32_t bits, int64_t unit,
                             int64_t count, sbp_diag *diag) {
    if (bits == 0)
        CUDA_TRY(d, diag, cuMemsetD8Async(at, 0, (size_t)(count * unit), stream));
    else if (unit == 1)
        CUDA_TRY(d, diag, cuMemsetD8Async(at, (uint8_t)bits, (size_t)count, stream));
    else if (unit == 2)
        CUDA_TRY(d, diag, cuMemsetD16Async(at, (uint16_t)bits, (size_t)count, stream));
    else
        CUDA_TRY(d, diag, cuMemsetD32Async(at, bits, (size_t)count, stream));
    return SBP_OK;
}

static sbp_status fill(cuda_device *d, cuda_stream stream, const sbp_span *span, uint32_t bits, int64_t unit,
                       sbp_diag *diag) {
    const int64_t scale = sbp_dtype_bytes(span->dtype) / unit;
    const size_t width = (size_t)(span->cols * scale), height = (size_t)span->rows;
    const size_t pitch = (size_t)(span->stride * scale * unit);
    const cuda_address at = d->memory + (uint64_t)span->offset;
    if (sbp_gpu_is_dense(span))
        return fill_bytes(d, stream, at, bits, unit, span->rows * span->cols * scale, diag);
    if (unit == 1)
        CUDA_TRY(d, diag, cuMemsetD2D8Async(at, pitch, (uint8_t)bits, width, height, stream));
    else if (unit == 2)
        CUDA_TRY(d, diag, cuMemsetD2D16Async(at, pitch, (uint16_t)bits, width, height, stream));
    else
        CUDA_TRY(d, diag, cuMemsetD2D32Async(at, pitch, bits, width, height, stream));
    return SBP_OK;
}

/* ---- commands --------------------------------------------------------------------------------------- */

static sbp_status run_matmul(cuda_device *d, const sbp_dispatch *dispatch, sbp_diag *diag) {
    sbp_cuda_machine machine = d->machine;
    bool done = false;
    if (cuda_blas_takes(d, dispatch))
        SBP_TRY(cuda_blas_matmul(d, dispatch, &done, diag));
    machine.blas = false;
    SBP_CROSS_EITHER(done, cuda_gemm_library, cuda_gemm_kernel);
    return done ? SBP_OK : cuda_kernels_launch(d, dispatch, &machine, diag);
}

static sbp_status run(cuda_device *d, const sbp_dispatch *dispatch, sbp_diag *diag) {
    const sbp_command *command = dispatch->command;
    const sbp_span *spans = dispatch->spans;
    cuda_stream stream = d->streams[cuda_stream_of(command->queue)];
    uint32_t bits;
    int64_t unit;
    bool fills;
    switch (command->kind) {
    case SBP_CMD_COLLECTIVE:
        if (d->net_state && cuda_net_takes(command))
            return cuda_net_submit(d, dispatch, diag);
        /* of one rank, or this rank's share */
        if (spans[SBP_COLLECTIVE_DST].space == spans[SBP_COLLECTIVE_SRC].space &&
            spans[SBP_COLLECTIVE_DST].offset == spans[SBP_COLLECTIVE_SRC].offset)
            return SBP_OK;
        return copy_span(d, stream, &spans[SBP_COLLECTIVE_DST], &spans[SBP_COLLECTIVE_SRC], diag);
    case SBP_CMD_COPY:
        return copy_span(d, stream, &spans[SBP_COPY_DST], &spans[SBP_COPY_SRC], diag);
    case SBP_CMD_FILL:
        if (sbp_gpu_is_empty(&spans[SBP_FILL_DST]))
            return SBP_OK;
        fills = can_fill(&spans[SBP_FILL_DST], command->u.fill, &bits, &unit);
        SBP_CROSS_EITHER(fills, cuda_fill_driver, cuda_fill_kernel);
        if (fills)
            return fill(d, stream, &spans[SBP_FILL_DST], bits, unit, diag);
        return cuda_kernels_launch(d, dispatch, &d->machine, diag);
    case SBP_CMD_GEMM:
        return run_matmul(d, dispatch, diag);
    default:
        return cuda_kernels_launch(d, dispatch, &d->machine, diag);
    }
}

sbp_status cuda_command_check(cuda_device *d, const sbp_dispatch *dispatch, sbp_diag *diag) {
    const sbp_command *command = dispatch->command;
    SBP_TRY(cuda_enter(d, diag));
    if (command->kind == SBP_CMD_FENCE)
        return SBP_OK;
    int32_t stream = cuda_stream_of(command->queue);
    if (dispatch->span_count < 0 || dispatch->span_count > SBP_MAX_COMMAND_OPERANDS || stream < 0 ||
        !d->streams[stream])
        return sbp_fail(diag, SBP_INTERNAL, "cuda: a command of %d operands in queue %d",
                        dispatch->span_count, command->queue);
    bool net = stream == CUDA_NET, copies = command->kind == SBP_CMD_COPY || net;
    if (net != (command->kind == SBP_CMD_COLLECTIVE && command->queue == SBP_QUEUE_NET) ||
        (stream != CUDA_COMPUTE && !copies))
        return sbp_fail(diag, SBP_INTERNAL, "cuda: queues in and out only copy, net has collectives");
    for (int32_t i = 0; i < dispatch->span_count; i++) {
        if (dispatch->spans[i].space == SBP_HOST && !copies)
            return sbp_fail(diag, SBP_INTERNAL, "cuda: %s: an operand in the host's memory",
                            sbp_command_name(command->kind));
        SBP_TRY(check_span(d, &dispatch->spans[i], diag));
    }
    return SBP_OK;
}

sbp_status cuda_command_submit(sbp_device *base, const sbp_dispatch *dispatch, sbp_diag *diag) {
    cuda_device *d = (cuda_device *)base;
    const sbp_command *command = dispatch->command;
    SBP_TRY(cuda_command_check(d, dispatch, diag));
    if (command->kind == SBP_CMD_FENCE)
        return cuda_order(d, command->u.fence.from, command->u.fence.to, diag);
    SBP_TRY(cuda_timeline_begin(d, dispatch, diag));
    SBP_TRY(run(d, dispatch, diag));
    return cuda_timeline_end(d, diag);
}
