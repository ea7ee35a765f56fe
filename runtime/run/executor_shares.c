/* executor_shares.c: buffers of which ranks have shares: what is here of them, and reading what is not.
 *
 * Rank 0 reads and the others answer: for each piece it says which, and whoever has some of it sends that to
 * all. So what is written out is written by one, by code that knows nothing of shares. */
#include "backends/ranks/ranks.h"
#include "runtime/run/executor_internal.h"

#include <string.h>

/* What rank 0 says before a piece of a buffer crosses the wire, and at the end. */
typedef struct request {
    int64_t asks; /* 0: that was all */
    int64_t buffer, first, count;
} request;

/* Bytes of a bucket, of all ranks. */
typedef struct byte_range {
    int64_t begin, end;
} byte_range;

static const sbp_buffer *bucket_of(const sbp_executor *x, int32_t buffer) {
    int32_t bucket = x->program->buffers[buffer].part_of - 1;
    const sbp_buffer *b = bucket >= 0 ? &x->program->buffers[bucket] : NULL;
    return b && b->sharding != SBP_WHOLE && x->program->ranks > 1 ? b : NULL;
}

/* Of a part's elements. */
static byte_range range_of(const sbp_executor *x, int32_t buffer, int64_t first, int64_t count) {
    const sbp_buffer *b = &x->program->buffers[buffer], *bucket = bucket_of(x, buffer);
    int64_t begin = b->place * sbp_dtype_bytes(bucket->dtype) + first * sbp_dtype_bytes(b->dtype);
    return (byte_range){begin, begin + count * sbp_dtype_bytes(b->dtype)};
}

/* Other groups have the same shares as the first. */
static byte_range share_of(const sbp_executor *x, const sbp_buffer *bucket, int64_t rank) {
    rank %= x->program->group;
    int64_t bytes = sbp_extent_as_const(bucket->rows) * bucket->cols * sbp_dtype_bytes(bucket->dtype);
    if (bucket->sharding == SBP_OWN)
        bytes /= x->program->group;
    return (byte_range){rank * bytes, (rank + 1) * bytes};
}

static byte_range common(byte_range a, byte_range b) {
    byte_range c = {a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
    c.end = c.end > c.begin ? c.end : c.begin;
    return c;
}

int64_t sbp_executor_rank(const sbp_executor *x) {
    sbp_ranks_info info = {0};
    if (x->ranks)
        sbp_ranks_info_of(x->ranks, &info);
    return info.rank;
}

bool sbp_executor_is_shared(const sbp_executor *x, int32_t buffer) {
    return bucket_of(x, buffer) != NULL;
}

void sbp_executor_own(const sbp_executor *x, int32_t buffer, int64_t *first, int64_t *count) {
    const sbp_buffer *bucket = bucket_of(x, buffer);
    int64_t unit = sbp_dtype_bytes(x->program->buffers[buffer].dtype), elems = sbp_executor_elems(x, buffer);
    *first = 0;
    *count = elems;
    if (!bucket)
        return;
    byte_range all = range_of(x, buffer, 0, elems),
               own = common(all, share_of(x, bucket, sbp_executor_rank(x)));
    *first = (own.begin - all.begin) / unit;
    *count = (own.end - own.begin) / unit;
    *first = *count > 0 ? *first : 0;
}

int64_t sbp_executor_own_offset(const sbp_executor *x, int32_t buffer, int64_t first) {
    const sbp_buffer *bucket = bucket_of(x, buffer);
    int64_t begin = range_of(x, buffer, first, 0).begin;
    if (bucket->sharding == SBP_SHARDED)
        begin -= share_of(x, bucket, sbp_executor_rank(x)).begin;
    return bucket->offset + begin;
}

/* Each rank sends what it has of the piece. */
sbp_status sbp_executor_bring(sbp_executor *x, int32_t buffer, int64_t first, int64_t count, sbp_diag *diag) {
    const sbp_buffer *b = &x->program->buffers[buffer], *bucket = bucket_of(x, buffer);
    byte_range piece = range_of(x, buffer, first, count);
    for (int64_t rank = 0; rank < x->program->group; rank++) {
        byte_range part = common(piece, share_of(x, bucket, rank));
        int64_t bytes = part.end - part.begin;
        unsigned char *to = x->staging + (part.begin - piece.begin);
        if (bytes == 0)
            continue;
        if (rank == sbp_executor_rank(x)) {
            int64_t at = first + (part.begin - piece.begin) / sbp_dtype_bytes(b->dtype);
            SBP_TRY(sbp_executor_get(x, b->space, sbp_executor_own_offset(x, buffer, at), to, bytes, diag));
        }
        SBP_TRY(sbp_ranks_broadcast(x->ranks, to, bytes, SBP_I8, (int32_t)rank, diag));
    }
    return SBP_OK;
}

/* What rank 0 says, to all. */
static sbp_status ask(sbp_executor *x, request *r, sbp_diag *diag) {
    return sbp_ranks_broadcast(x->ranks, r, sizeof *r / sizeof(int64_t), SBP_I64, 0, diag);
}

sbp_status sbp_executor_read_shared(sbp_executor *x, int32_t buffer, int64_t first, int64_t count,
                                    sbp_dtype dtype, void *out, sbp_diag *diag) {
    const sbp_buffer *b = &x->program->buffers[buffer];
    int64_t most = SBP_STAGING_BYTES / sbp_dtype_bytes(b->dtype), own_first, own_count;
    sbp_executor_own(x, buffer, &own_first, &own_count);
    if (first >= own_first && first + count <= own_first + own_count)
        return sbp_executor_convert_out(x, b->space, sbp_executor_own_offset(x, buffer, first), b->dtype,
                                        count, dtype, out, diag);
    if (!x->ranks || sbp_executor_rank(x) != 0)
        return sbp_fail(diag, SBP_INTERNAL,
                        "'%.200s' is read by another rank than 0, which does not have all of it", b->name);
    for (int64_t at = 0; at < count; at += most) {
        request r = {1, buffer, first + at, count - at < most ? count - at : most};
        SBP_TRY(ask(x, &r, diag));
        SBP_TRY(sbp_executor_bring(x, (int32_t)r.buffer, r.first, r.count, diag));
        sbp_executor_convert(dtype, (unsigned char *)out + at * sbp_dtype_bytes(dtype), b->dtype, x->staging,
                             r.count);
    }
    return SBP_OK;
}

sbp_status sbp_executor_write_shared(sbp_executor *x, int32_t buffer, int64_t first, int64_t count,
                                     sbp_dtype dtype, const void *data, sbp_diag *diag) {
    const sbp_buffer *b = &x->program->buffers[buffer];
    int64_t own_first, own_count;
    sbp_executor_own(x, buffer, &own_first, &own_count);
    int64_t begin = first > own_first ? first : own_first,
            end = first + count < own_first + own_count ? first + count : own_first + own_count;
    if (begin >= end)
        return SBP_OK;
    return sbp_executor_convert_in(
        x, b->space, sbp_executor_own_offset(x, buffer, begin), b->dtype, end - begin, dtype,
        (const unsigned char *)data + (begin - first) * sbp_dtype_bytes(dtype), diag);
}

bool sbp_executor_has_shares(const sbp_executor *x) {
    for (int32_t b = 0; b < x->program->buffer_count && x->program->ranks > 1; b++)
        if (x->program->buffers[b].sharding != SBP_WHOLE)
            return true;
    return false;
}

sbp_status sbp_executor_serve(sbp_executor *x, sbp_diag *diag) {
    for (request r = {0}; sbp_executor_has_shares(x) && x->ranks;) {
        SBP_TRY(ask(x, &r, diag));
        if (!r.asks)
            break;
        if (r.buffer < 0 || r.buffer >= x->program->buffer_count || !bucket_of(x, (int32_t)r.buffer) ||
            r.count < 1 || r.count > SBP_STAGING_BYTES)
            return sbp_fail(diag, SBP_INTERNAL, "rank 0 asks for elements %lld+%lld of buffer %lld",
                            (long long)r.first, (long long)r.count, (long long)r.buffer);
        SBP_TRY(sbp_executor_bring(x, (int32_t)r.buffer, r.first, r.count, diag));
    }
    return SBP_OK;
}

sbp_status sbp_executor_dismiss(sbp_executor *x, sbp_diag *diag) {
    return sbp_executor_has_shares(x) && x->ranks ? ask(x, &(request){0}, diag) : SBP_OK;
}
