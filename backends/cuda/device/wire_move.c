/* wire_move.c: bytes from place to place on the stream of queue net, and between ranks. */
#include "backends/cuda/device/wire.h"

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
sbp_status cuda_wire_bring(const cuda_task *t, cuda_address to, cuda_place from, int64_t bytes) {
    if (bytes == 0)
        return SBP_OK;
    if (from.space == SBP_HOST)
        CUDA_TRY(t->d, t->diag, cuMemcpyHtoDAsync(to, t->d->host + from.offset, (size_t)bytes, t->stream));
    else
        CUDA_TRY(t->d, t->diag, cuMemcpyDtoDAsync(to, cuda_place_address(t, from), (size_t)bytes, t->stream));
    return SBP_OK;
}

sbp_status cuda_wire_take(const cuda_task *t, cuda_place to, cuda_address from, int64_t bytes) {
    if (bytes == 0)
        return SBP_OK;
    if (to.space == SBP_HOST)
        CUDA_TRY(t->d, t->diag, cuMemcpyDtoHAsync(t->d->host + to.offset, from, (size_t)bytes, t->stream));
    else
        CUDA_TRY(t->d, t->diag, cuMemcpyDtoDAsync(cuda_place_address(t, to), from, (size_t)bytes, t->stream));
    return SBP_OK;
}

sbp_status cuda_wire_move(const cuda_task *t, cuda_place to, cuda_place from, int64_t bytes) {
    if (is_same(to, from))
        return SBP_OK;
    if (to.space == SBP_DEVICE)
        return cuda_wire_bring(t, cuda_place_address(t, to), from, bytes);
    if (from.space == SBP_DEVICE)
        return cuda_wire_take(t, to, cuda_place_address(t, from), bytes);
    for (int64_t at = 0; at < bytes; at += t->work_bytes) { /* a stream has no copies of the host's own */
        int64_t part = bytes - at < t->work_bytes ? bytes - at : t->work_bytes;
        SBP_TRY(cuda_wire_bring(t, t->work, cuda_place_later(from, at), part));
        SBP_TRY(cuda_wire_take(t, cuda_place_later(to, at), t->work, part));
    }
    return SBP_OK;
}

void cuda_wire_count(const cuda_task *t, int32_t rank, int64_t bytes) {
    t->w->sent_bytes += bytes;
    t->w->away_bytes += rank / t->w->node != t->w->rank / t->w->node ? bytes : 0;
}

sbp_status cuda_wire_send(const cuda_task *t, int32_t rank, cuda_address from, int64_t bytes) {
    if (bytes == 0)
        return SBP_OK;
    cuda_wire_count(t, rank, bytes);
    NCCL_TRY(t->nccl, t->diag,
             ncclSend(from, (size_t)bytes, NCCL_BYTES, rank - t->first, t->nccl->comm, t->stream));
    return SBP_OK;
}

sbp_status cuda_wire_receive(const cuda_task *t, int32_t rank, cuda_address to, int64_t bytes) {
    if (bytes == 0)
        return SBP_OK;
    NCCL_TRY(t->nccl, t->diag,
             ncclRecv(to, (size_t)bytes, NCCL_BYTES, rank - t->first, t->nccl->comm, t->stream));
    return SBP_OK;
}

/* Nothing else may be done with the stream until what was asked for is in it. */
sbp_status cuda_wire_settle(const cuda_task *t) {
    return cuda_nccl_ready(t->nccl, t->w->timeout, "a collective", t->diag);
}

sbp_status cuda_wire_begin(const cuda_task *t) {
    NCCL_TRY(t->nccl, t->diag, ncclGroupStart());
    return SBP_OK;
}

sbp_status cuda_wire_end(const cuda_task *t) {
    NCCL_TRY(t->nccl, t->diag, ncclGroupEnd());
    return cuda_wire_settle(t);
}

cuda_address cuda_slice_at(const cuda_slices *s, int32_t member) {
    return s->data + (uint64_t)(member * s->apart * s->unit);
}

int64_t cuda_slice_bytes(const cuda_slices *s, int32_t member) {
    return sbp_team_slice(s->team, s->elems, member, s->at, s->most) * s->unit;
}

/* To, and from, one of the team: what members `mine` and `theirs` have. */
static sbp_status trade(const cuda_task *t, const cuda_slices *s, int32_t with, int32_t mine,
                        int32_t theirs) {
    if (with == s->team->me)
        return SBP_OK;
    SBP_TRY(
        cuda_wire_send(t, sbp_team_rank(s->team, with), cuda_slice_at(s, mine), cuda_slice_bytes(s, mine)));
    return cuda_wire_receive(t, sbp_team_rank(s->team, with), cuda_slice_at(s, theirs),
                             cuda_slice_bytes(s, theirs));
}

sbp_status cuda_wire_gather(const cuda_task *t, const cuda_slices *s) {
    const sbp_team *team = s->team;
    int32_t blocks = sbp_team_blocks(team), place = sbp_team_place(team), near = team->near;
    if (blocks > 1) {
        SBP_TRY(cuda_wire_begin(t));
        for (int32_t b = 0; b < blocks; b++)
            SBP_TRY(trade(t, s, b * near + place, team->me, b * near + place));
        SBP_TRY(cuda_wire_end(t));
    }
    SBP_TRY(cuda_wire_begin(t));
    for (int32_t p = 0; p < near; p++)
        for (int32_t b = 0; b < blocks; b++)
            SBP_TRY(trade(t, s, sbp_team_block(team) * near + p, b * near + place, b * near + p));
    return cuda_wire_end(t);
}

/* Ranks by the ten thousands. */
sbp_status cuda_wire_too_little(const cuda_task *t) {
    return sbp_fail(t->diag, SBP_INTERNAL,
                    "cuda: %lld bytes are too little for what %d ranks send each other",
                    (long long)t->work_bytes, (int)t->w->count);
}
