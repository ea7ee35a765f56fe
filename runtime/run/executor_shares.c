/* executor_shares.c: buffers of which ranks have shares: what is here of them, and reading what is not.
 *
 * Each rank reads as if it had everything, so what writes files knows nothing of shares. A read that needs
 * others is a round of all: each says what it wants, and gets it from whoever has some of it. Who has read
 * all that it wants goes on taking part until all have (sbp_executor_finish_reading). */
#include "backends/ranks/ranks.h"
#include "ir/base/census.h"
#include "runtime/run/executor_internal.h"

#include <stdlib.h>
#include <string.h>

/* What a rank wants to read of a buffer. */
typedef struct request {
    int64_t reads;  /* 0: it has read all that it wants */
    int64_t buffer; /* -1: none now */
    int64_t first, count;
} request;

enum { REQUEST_WORDS = sizeof(request) / sizeof(int64_t), SENT_BYTES = 1 << 19, LEAST_PIECE_BYTES = 1 << 14 };

/* While ranks read, of those of a group, which have all shares. */
struct sbp_reading {
    request *requests;           /* [group] */
    sbp_ranks_piece *send, *get; /* [group] */
    unsigned char *sent;         /* [group][piece_bytes] */
    int64_t piece_bytes;         /* that a rank gets at a time */
};

/* Bytes of a bucket, of all ranks. */
typedef struct byte_range {
    int64_t begin, end;
} byte_range;

static const sbp_buffer *bucket_of(const sbp_executor *x, int32_t buffer) {
    int32_t bucket = x->program->buffers[buffer].part_of - 1;
    const sbp_buffer *b = bucket >= 0 ? &x->program->buffers[bucket] : NULL;
    return b && b->sharding != SBP_WHOLE && x->program->ranks > 1 ? b : NULL;
}

/* The bytes of a part's elements in its bucket. */
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
    sbp_executor_own_of(x, buffer, sbp_executor_rank(x), first, count);
}

void sbp_executor_own_of(const sbp_executor *x, int32_t buffer, int64_t rank, int64_t *first,
                         int64_t *count) {
    const sbp_buffer *bucket = bucket_of(x, buffer);
    int64_t unit = sbp_dtype_bytes(x->program->buffers[buffer].dtype), elems = sbp_executor_elems(x, buffer);
    *first = 0;
    *count = elems;
    if (!bucket)
        return;
    byte_range all = range_of(x, buffer, 0, elems), own = common(all, share_of(x, bucket, rank));
    *first = (own.begin - all.begin) / unit;
    *count = (own.end - own.begin) / unit;
    *first = *count > 0 ? *first : 0;
}

/* Bytes into the arena of an element that is here. */
static int64_t own_offset(const sbp_executor *x, int32_t buffer, int64_t first) {
    const sbp_buffer *bucket = bucket_of(x, buffer);
    int64_t begin = range_of(x, buffer, first, 0).begin;
    if (bucket->sharding == SBP_SHARDED)
        begin -= share_of(x, bucket, sbp_executor_rank(x)).begin;
    return bucket->offset + begin;
}

/* What this rank has of a piece that is wanted, as it is kept. */
static sbp_status get_own(sbp_executor *x, const request *r, unsigned char *out, int64_t *bytes,
                          sbp_diag *diag) {
    const sbp_buffer *b = &x->program->buffers[r->buffer];
    byte_range piece = range_of(x, (int32_t)r->buffer, r->first, r->count);
    byte_range part = common(piece, share_of(x, bucket_of(x, (int32_t)r->buffer), sbp_executor_rank(x)));
    *bytes = part.end - part.begin;
    if (*bytes == 0)
        return SBP_OK;
    int64_t at = r->first + (part.begin - piece.begin) / sbp_dtype_bytes(b->dtype);
    return sbp_executor_get(x, b->space, own_offset(x, (int32_t)r->buffer, at), out, *bytes, diag);
}

/* Each rank sends what it has of the piece. */
sbp_status sbp_executor_bring(sbp_executor *x, int32_t buffer, int64_t first, int64_t count, sbp_diag *diag) {
    const sbp_buffer *bucket = bucket_of(x, buffer);
    byte_range piece = range_of(x, buffer, first, count);
    for (int64_t rank = 0; rank < x->program->group; rank++) {
        byte_range part = common(piece, share_of(x, bucket, rank));
        int64_t bytes = part.end - part.begin;
        unsigned char *to = x->staging + (part.begin - piece.begin);
        if (bytes == 0)
            continue;
        if (rank == sbp_executor_rank(x))
            SBP_TRY(get_own(x, &(request){1, buffer, first, count}, to, &bytes, diag));
        SBP_TRY(sbp_ranks_broadcast(x->ranks, to, bytes, SBP_I8, (int32_t)rank, diag));
    }
    return SBP_OK;
}

/* ---- reading ------------------------------------------------------------------------------------------ */

static void end_reading(sbp_executor *x) {
    if (x->reading) {
        free(x->reading->requests);
        free(x->reading->send);
        free(x->reading->get);
        free(x->reading->sent);
    }
    free(x->reading);
    x->reading = NULL;
}

static sbp_status begin_reading(sbp_executor *x, sbp_diag *diag) {
    int64_t ranks = x->program->group, most = SENT_BYTES / ranks;
    if (x->reading)
        return SBP_OK;
    struct sbp_reading *r = x->reading = sbp_malloc(sizeof *r);
    if (!r)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for reading the shares of ranks");
    r->piece_bytes = most > LEAST_PIECE_BYTES ? most / 8 * 8 : LEAST_PIECE_BYTES;
    r->requests = sbp_malloc((size_t)ranks * sizeof *r->requests);
    r->send = sbp_malloc((size_t)ranks * sizeof *r->send);
    r->get = sbp_malloc((size_t)ranks * sizeof *r->get);
    r->sent = sbp_malloc((size_t)(ranks * r->piece_bytes));
    if (r->requests && r->send && r->get && r->sent)
        return SBP_OK;
    end_reading(x);
    return sbp_fail(diag, SBP_MACHINE, "out of memory for reading the shares of ranks");
}

static sbp_status check_request(const sbp_executor *x, const request *r, sbp_diag *diag) {
    if (r->buffer < x->program->buffer_count && bucket_of(x, (int32_t)r->buffer) && r->first >= 0 &&
        r->count >= 1 &&
        r->count * sbp_dtype_bytes(x->program->buffers[r->buffer].dtype) <= x->reading->piece_bytes)
        return SBP_OK;
    return sbp_fail(diag, SBP_INTERNAL, "a rank asks for elements %lld+%lld of buffer %lld",
                    (long long)r->first, (long long)r->count, (long long)r->buffer);
}

/* Each rank gets what it wants; this one in its staging. *open: some rank goes on reading. */
static sbp_status take_round(sbp_executor *x, request wanted, bool *open, sbp_diag *diag) {
    int64_t ranks = x->program->group, me = sbp_executor_rank(x) % ranks, bytes;
    int32_t first = (int32_t)(sbp_executor_rank(x) - me); /* of the group */
    int32_t sends = 0, gets = 0;
    SBP_TRY(begin_reading(x, diag));
    struct sbp_reading *r = x->reading;
    SBP_TRY(sbp_ranks_all_gather(x->ranks, r->requests, &wanted, ranks * REQUEST_WORDS, SBP_I64, diag));
    *open = false;
    for (int64_t rank = 0; rank < ranks; rank++) {
        const request *asked = &r->requests[rank];
        unsigned char *out = r->sent + rank * r->piece_bytes;
        *open |= asked->reads != 0;
        if (asked->buffer < 0 || rank == me)
            continue;
        SBP_TRY(check_request(x, asked, diag));
        SBP_TRY(get_own(x, asked, out, &bytes, diag));
        if (bytes > 0)
            r->send[sends++] = (sbp_ranks_piece){first + (int32_t)rank, out, bytes};
    }
    byte_range piece = {0};
    if (wanted.buffer >= 0)
        piece = range_of(x, (int32_t)wanted.buffer, wanted.first, wanted.count);
    for (int64_t rank = 0; rank < ranks && wanted.buffer >= 0; rank++) {
        byte_range part = common(piece, share_of(x, bucket_of(x, (int32_t)wanted.buffer), rank));
        unsigned char *to = x->staging + (part.begin - piece.begin);
        if (rank == me)
            SBP_TRY(get_own(x, &wanted, to, &bytes, diag));
        else if (part.end > part.begin)
            r->get[gets++] = (sbp_ranks_piece){first + (int32_t)rank, to, part.end - part.begin};
    }
    return sbp_ranks_swap(x->ranks, r->send, sends, r->get, gets, diag);
}

sbp_status sbp_executor_read_shared(sbp_executor *x, int32_t buffer, int64_t first, int64_t count,
                                    sbp_dtype dtype, void *out, sbp_diag *diag) {
    const sbp_buffer *b = &x->program->buffers[buffer];
    int64_t own_first, own_count;
    bool open;
    sbp_executor_own(x, buffer, &own_first, &own_count);
    if (first >= own_first && first + count <= own_first + own_count)
        return sbp_executor_convert_out(x, b->space, own_offset(x, buffer, first), b->dtype, count, dtype,
                                        out, diag);
    if (!x->ranks)
        return sbp_fail(diag, SBP_INTERNAL, "'%.200s' is in shares, and this rank is alone", b->name);
    SBP_TRY(begin_reading(x, diag));
    int64_t most = x->reading->piece_bytes / sbp_dtype_bytes(b->dtype);
    SBP_CROSS_EITHER(count > most, ranks_read_pieces, ranks_read_piece);
    for (int64_t at = 0; at < count; at += most) {
        request r = {1, buffer, first + at, count - at < most ? count - at : most};
        SBP_TRY(take_round(x, r, &open, diag));
        sbp_executor_convert(dtype, (unsigned char *)out + at * sbp_dtype_bytes(dtype), b->dtype, x->staging,
                             r.count);
    }
    return SBP_OK;
}

sbp_status sbp_executor_finish_reading(sbp_executor *x, sbp_diag *diag) {
    bool open = sbp_executor_has_shares(x) && x->ranks;
    sbp_status status = SBP_OK;
    while (open && status == SBP_OK)
        status = take_round(x, (request){.buffer = -1}, &open, diag);
    end_reading(x);
    return status;
}

/* ---- writing ------------------------------------------------------------------------------------------ */

sbp_status sbp_executor_write_shared(sbp_executor *x, int32_t buffer, int64_t first, int64_t count,
                                     sbp_dtype dtype, const void *data, sbp_diag *diag) {
    const sbp_buffer *b = &x->program->buffers[buffer];
    int64_t own_first, own_count;
    sbp_executor_own(x, buffer, &own_first, &own_count);
    int64_t begin = first > own_first ? first : own_first,
            end = first + count < own_first + own_count ? first + count : own_first + own_count;
    if (begin >= end)
        return SBP_OK;
    return sbp_executor_convert_in(x, b->space, own_offset(x, buffer, begin), b->dtype, end - begin, dtype,
                                   (const unsigned char *)data + (begin - first) * sbp_dtype_bytes(dtype),
                                   diag);
}

bool sbp_executor_has_shares(const sbp_executor *x) {
    for (int32_t b = 0; b < x->program->buffer_count && x->program->ranks > 1; b++)
        if (x->program->buffers[b].sharding != SBP_WHOLE)
            return true;
    return false;
}
