/* net_steps.c: the steps of collectives (ir/program/collective_steps.h) on a stream: copies by the driver,
 * pieces between ranks by NCCL, additions by a kernel (kernels/collective.cu). */
#include "backends/cuda/device/net.h"

#include <string.h>

/* ---- places ----------------------------------------------------------------------------------------- */

cuda_place cuda_place_of(const sbp_span *span, int64_t elems) {
    return (cuda_place){span->space, span->offset + elems * sbp_dtype_bytes(span->dtype)};
}

cuda_place cuda_place_later(cuda_place p, int64_t bytes) {
    return (cuda_place){p.space, p.offset + bytes};
}

cuda_address cuda_place_address(const cuda_task *t, cuda_place p) {
    return t->d->memory + (uint64_t)p.offset;
}

static bool is_same(cuda_place a, cuda_place b) {
    return a.space == b.space && a.offset == b.offset;
}

/* To an address of the device, wherever it comes from. */
sbp_status cuda_net_bring(const cuda_task *t, cuda_address to, cuda_place from, int64_t bytes) {
    if (bytes == 0)
        return SBP_OK;
    if (from.space == SBP_HOST)
        CUDA_TRY(t->d, t->diag, cuMemcpyHtoDAsync(to, t->d->host + from.offset, (size_t)bytes, t->stream));
    else
        CUDA_TRY(t->d, t->diag, cuMemcpyDtoDAsync(to, cuda_place_address(t, from), (size_t)bytes, t->stream));
    return SBP_OK;
}

sbp_status cuda_net_take(const cuda_task *t, cuda_place to, cuda_address from, int64_t bytes) {
    if (bytes == 0)
        return SBP_OK;
    if (to.space == SBP_HOST)
        CUDA_TRY(t->d, t->diag, cuMemcpyDtoHAsync(t->d->host + to.offset, from, (size_t)bytes, t->stream));
    else
        CUDA_TRY(t->d, t->diag, cuMemcpyDtoDAsync(cuda_place_address(t, to), from, (size_t)bytes, t->stream));
    return SBP_OK;
}

static sbp_status move(const cuda_task *t, cuda_place to, cuda_place from, int64_t bytes) {
    if (is_same(to, from))
        return SBP_OK;
    if (to.space == SBP_DEVICE)
        return cuda_net_bring(t, cuda_place_address(t, to), from, bytes);
    if (from.space == SBP_DEVICE)
        return cuda_net_take(t, to, cuda_place_address(t, from), bytes);
    for (int64_t at = 0; at < bytes; at += t->work_bytes) { /* a stream has no copies of the host's own */
        int64_t part = sbp_min_i64(bytes - at, t->work_bytes);
        SBP_TRY(cuda_net_bring(t, t->work, cuda_place_later(from, at), part));
        SBP_TRY(cuda_net_take(t, cuda_place_later(to, at), t->work, part));
    }
    return SBP_OK;
}

/* The address of a step's place. The workspace lies on the device, outside of its arena. */
static cuda_place place_of(const cuda_task *t, const sbp_step_place *p) {
    switch (p->memory) {
    case SBP_STEP_DST:
        return cuda_place_later(cuda_place_of(t->to, 0), p->offset);
    case SBP_STEP_SRC:
        return cuda_place_later(cuda_place_of(t->from, 0), p->offset);
    default:
        return (cuda_place){SBP_DEVICE, (int64_t)(t->work - t->d->memory) + p->offset};
    }
}

static cuda_address address_of(const cuda_task *t, const sbp_step_place *p) {
    return cuda_place_address(t, place_of(t, p));
}

/* ---- steps ------------------------------------------------------------------------------------------ */

/* After any call of NCCL nothing else may be done with the stream until what was asked for is in it. */
sbp_status cuda_net_settle(const cuda_task *t) {
    return cuda_nccl_ready(t->nccl, t->w->timeout, "a collective", t->diag);
}

void cuda_net_count(const cuda_task *t, sbp_phase phase) {
    sbp_sent sent = sbp_phase_sent(&t->call, phase);
    t->w->sent_bytes += sent.bytes;
    t->w->away_bytes += sent.away;
}

static sbp_status begin_round(cuda_task *t) {
    if (!t->in_round)
        NCCL_TRY(t->nccl, t->diag, ncclGroupStart());
    t->in_round = true;
    return SBP_OK;
}

static sbp_status end_round(cuda_task *t) {
    if (!t->in_round)
        return SBP_OK;
    t->in_round = false;
    NCCL_TRY(t->nccl, t->diag, ncclGroupEnd());
    return cuda_net_settle(t);
}

sbp_status cuda_net_add(const cuda_task *t, const sbp_cuda_sum *sum) {
    sbp_cuda_step step;
    sbp_gpu_args args;
    memset(&args, 0, sizeof args);
    sbp_cuda_sum_step(sum, &args, &step);
    return cuda_kernels_step(t->d, &step, &args, t->stream, t->diag);
}

/* Rows that are further apart than a kernel takes go one by one. */
static sbp_status add(const cuda_task *t, const sbp_step *s) {
    int64_t from_unit = sbp_dtype_bytes(s->from.dtype), to_unit = sbp_dtype_bytes(s->to.dtype),
            rows = s->from.stride > INT32_MAX ? 1 : s->rows;
    for (int64_t row = 0; row < s->rows; row += rows)
        SBP_TRY(cuda_net_add(
            t, &(sbp_cuda_sum){.adds = s->adds,
                               .to = address_of(t, &s->to) + (uint64_t)(row * s->to.stride * to_unit),
                               .own = address_of(t, &s->from) + (uint64_t)(row * s->from.stride * from_unit),
                               .arrived = s->count > 1 ? address_of(t, &s->arrived) +
                                                             (uint64_t)(row * s->cols * from_unit)
                                                       : 0,
                               .to_dtype = s->to.dtype,
                               .from_dtype = s->from.dtype,
                               .elems = rows * s->cols,
                               .stride = s->arrived.stride,
                               .me = s->me,
                               .count = s->count,
                               .rows = rows,
                               .to_stride = rows > 1 ? s->to.stride : 0,
                               .own_stride = rows > 1 ? s->from.stride : 0}));
    return SBP_OK;
}

/* Columns of the device's memory; zeros where they come from none. */
static sbp_status copy_columns(const cuda_task *t, const sbp_step *s, int64_t unit) {
    if (s->from.memory == SBP_STEP_ZEROS) {
        CUDA_TRY(t->d, t->diag,
                 cuMemsetD2D8Async(address_of(t, &s->to), (size_t)(s->to.stride * unit), 0,
                                   (size_t)(s->cols * unit), (size_t)s->rows, t->stream));
        return SBP_OK;
    }
    const cuda_copy_2d copy = {.from_type = CUDA_MEMORY_DEVICE,
                               .from_device = address_of(t, &s->from),
                               .from_pitch = (size_t)(s->from.stride * unit),
                               .to_type = CUDA_MEMORY_DEVICE,
                               .to_device = address_of(t, &s->to),
                               .to_pitch = (size_t)(s->to.stride * unit),
                               .width_bytes = (size_t)(s->cols * unit),
                               .height = (size_t)s->rows};
    CUDA_TRY(t->d, t->diag, cuMemcpy2DAsync(&copy, t->stream));
    return SBP_OK;
}

static sbp_status run_step(void *user, const sbp_step *s) {
    cuda_task *t = user;
    int64_t unit = sbp_dtype_bytes(s->kind == SBP_STEP_SEND ? s->from.dtype : s->to.dtype);
    switch (s->kind) {
    case SBP_STEP_SEND:
        t->w->sent_bytes += s->cols * unit;
        t->w->away_bytes += s->peer / t->w->node != t->w->rank / t->w->node ? s->cols * unit : 0;
        SBP_TRY(begin_round(t));
        NCCL_TRY(t->nccl, t->diag,
                 ncclSend(address_of(t, &s->from), (size_t)(s->cols * unit), NCCL_BYTES, s->peer - t->first,
                          t->nccl->comm, t->stream));
        return SBP_OK;
    case SBP_STEP_RECEIVE:
        SBP_TRY(begin_round(t));
        NCCL_TRY(t->nccl, t->diag,
                 ncclRecv(address_of(t, &s->to), (size_t)(s->cols * unit), NCCL_BYTES, s->peer - t->first,
                          t->nccl->comm, t->stream));
        return SBP_OK;
    case SBP_STEP_EXCHANGE:
        return end_round(t);
    case SBP_STEP_ADD:
        return add(t, s);
    case SBP_STEP_COPY:
        return s->rows > 1 || s->from.memory == SBP_STEP_ZEROS
                   ? copy_columns(t, s, unit)
                   : move(t, place_of(t, &s->to), place_of(t, &s->from), s->cols * unit);
    }
    return SBP_OK;
}

sbp_status cuda_net_phase(const cuda_task *given, sbp_phase phase) {
    cuda_task t = *given;
    return sbp_phase_steps(&t.call, phase, run_step, &t, t.diag);
}
