/* stream.c: reading, gzip and zstd. */
#include "runtime/data/source/stream.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

enum { WAIT_MS = 200 }; /* until a signal is noticed */

/* Waits for bytes; SBP_INTERRUPTED when asked to stop before there are any. */
static sbp_status wait_for_some(const sbp_stream *s) {
    struct pollfd wanted = {.fd = s->fd, .events = POLLIN};
    while (s->interrupted && poll(&wanted, 1, WAIT_MS) <= 0)
        if (s->interrupted())
            return SBP_INTERRUPTED;
    return SBP_OK;
}

static sbp_status read_some(const sbp_stream *s, sbp_diag *diag, char *out, size_t room, size_t *got) {
    ssize_t n;
    if (s->reader)
        return s->reader->read(s->reader->user, diag, out, room, got);
    SBP_TRY(wait_for_some(s));
    do
        n = read(s->fd, out, room);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return sbp_fail(diag, SBP_IO, "cannot read '%s': %s", s->name, strerror(errno));
    *got = (size_t)n;
    return SBP_OK;
}

static sbp_status fill_raw(sbp_stream *s, sbp_diag *diag) {
    if (s->raw_at < s->raw_length || s->raw_end)
        return SBP_OK;
    s->raw_at = 0;
    SBP_TRY(read_some(s, diag, s->raw, SBP_STREAM_BYTES, &s->raw_length));
    s->raw_end = s->raw_length == 0;
    s->taken += (int64_t)s->raw_length;
    return SBP_OK;
}

static sbp_status fail_end(const sbp_stream *s, sbp_diag *diag) {
    return sbp_fail(diag, SBP_INPUT, "'%s': the compressed data end in the middle", s->name);
}

/* ---- gzip ------------------------------------------------------------------------------------------- */

/* Some bytes, or none when more of the file is needed. Members may follow each other. */
static sbp_status gzip_some(sbp_stream *s, sbp_diag *diag, size_t *got) {
    z_stream *z = s->decoder;
    if (s->decoder_done) {
        if (s->raw[s->raw_at] != '\x1f') { /* what tape drives and tar leave behind the last one */
            s->raw_at = s->raw_length;
            return SBP_OK;
        }
        if (inflateReset(z) != Z_OK)
            return sbp_fail(diag, SBP_INTERNAL, "zlib cannot begin again");
        s->decoder_done = false;
    }
    z->next_in = (unsigned char *)s->raw + s->raw_at;
    z->avail_in = (unsigned)(s->raw_length - s->raw_at);
    z->next_out = (unsigned char *)s->data + s->length;
    z->avail_out = (unsigned)(s->capacity - s->length);
    int result = inflate(z, Z_NO_FLUSH);
    *got = s->capacity - s->length - z->avail_out;
    s->raw_at = s->raw_length - z->avail_in;
    s->decoder_done = result == Z_STREAM_END;
    if (result == Z_OK || result == Z_STREAM_END || result == Z_BUF_ERROR)
        return SBP_OK;
    if (result == Z_MEM_ERROR)
        return sbp_fail(diag, SBP_MACHINE, "'%s': out of memory for decompressing", s->name);
    return sbp_fail(diag, SBP_INPUT, "'%s': the compressed data (gzip) are damaged: %s", s->name,
                    z->msg ? z->msg : "no gzip");
}

/* ---- zstd ------------------------------------------------------------------------------------------- */

static sbp_status zstd_some(sbp_stream *s, sbp_diag *diag, size_t *got) {
    ZSTD_inBuffer in = {s->raw + s->raw_at, s->raw_length - s->raw_at, 0};
    ZSTD_outBuffer out = {s->data + s->length, s->capacity - s->length, 0};
    size_t result = ZSTD_decompressStream(s->decoder, &out, &in);
    if (ZSTD_isError(result))
        return sbp_fail(diag, SBP_INPUT, "'%s': the compressed data (zstd) are damaged: %s", s->name,
                        ZSTD_getErrorName(result));
    s->decoder_done = result == 0;
    s->raw_at += in.pos;
    *got = out.pos;
    return SBP_OK;
}

/* ---- all -------------------------------------------------------------------------------------------- */

/* Appends what one reading gives; sets end. */
static sbp_status append(sbp_stream *s, sbp_diag *diag) {
    size_t got = 0;
    if (s->compression == SBP_PLAIN) {
        SBP_TRY(read_some(s, diag, s->data + s->length, s->capacity - s->length, &got));
        s->end = got == 0;
    }
    while (s->compression != SBP_PLAIN && got == 0 && !s->end) {
        SBP_TRY(fill_raw(s, diag));
        if (s->raw_end) {
            if (!s->decoder_done)
                return fail_end(s, diag);
            s->end = true;
        } else {
            SBP_TRY(s->compression == SBP_GZIP ? gzip_some(s, diag, &got) : zstd_some(s, diag, &got));
        }
    }
    s->length += got;
    return SBP_OK;
}

sbp_status sbp_stream_fill(sbp_stream *s, sbp_diag *diag) {
    if (s->at < s->length || s->end)
        return SBP_OK;
    s->at = s->length = 0;
    return append(s, diag);
}

static bool begin_decoder(sbp_stream *s) {
    if (s->compression == SBP_GZIP) {
        z_stream *z = sbp_malloc(sizeof *z);
        if (!z)
            return false;
        memset(z, 0, sizeof *z);
        s->decoder = z;
        return inflateInit2(z, 15 + 16) == Z_OK;
    }
    s->decoder = ZSTD_createDStream();
    return s->decoder != NULL;
}

/* Lines of JSON are known by their first byte: who writes them may wait for an answer to a few. */
static bool begins_object(const sbp_stream *s) {
    size_t at = s->length >= 3 && memcmp(s->data, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    while (at < s->length && s->data[at] && strchr(" \t\r\n", s->data[at]))
        at++;
    return at < s->length && s->data[at] == '{';
}

static sbp_status open_body(sbp_stream *s, sbp_diag *diag) {
    s->capacity = SBP_STREAM_BYTES;
    s->data = sbp_malloc(s->capacity);
    s->raw = s->data ? sbp_malloc(SBP_STREAM_BYTES) : NULL;
    if (!s->raw)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for reading '%s'", s->name);
    while (!s->end && s->length < 16) /* as much as tells what it is */
        SBP_TRY(append(s, diag));
    if (s->length >= 2 && memcmp(s->data, "\x1f\x8b", 2) == 0)
        s->compression = SBP_GZIP;
    else if (s->length >= 4 && memcmp(s->data, "\x28\xb5\x2f\xfd", 4) == 0)
        s->compression = SBP_ZSTD;
    if (s->compression != SBP_PLAIN) {
        memcpy(s->raw, s->data, s->length);
        s->raw_length = s->length;
        s->taken = (int64_t)s->length;
        s->length = 0;
        s->end = false;
        if (!begin_decoder(s))
            return sbp_fail(diag, SBP_MACHINE, "'%s': out of memory for decompressing", s->name);
    }
    while (!s->end && s->length < s->capacity && !begins_object(s))
        SBP_TRY(append(s, diag));
    return SBP_OK;
}

static sbp_status open_stream(sbp_diag *diag, const sbp_stream *from, sbp_stream **out) {
    sbp_stream *s = sbp_malloc(sizeof *s);
    if (!s) {
        if (from->owns_fd)
            close(from->fd);
        return sbp_fail(diag, SBP_MACHINE, "out of memory for reading '%s'", from->name);
    }
    *s = *from;
    sbp_status status = open_body(s, diag);
    if (status == SBP_OK)
        *out = s;
    else
        sbp_stream_close(s);
    return status;
}

sbp_status sbp_stream_open(sbp_diag *diag, const char *name, int fd, bool owns, sbp_stream **out) {
    return open_stream(diag, &(sbp_stream){.name = name, .fd = fd, .owns_fd = owns}, out);
}

sbp_status sbp_stream_open_reader(sbp_diag *diag, const char *name, const sbp_reader *reader,
                                  sbp_stream **out) {
    return open_stream(diag, &(sbp_stream){.name = name, .fd = -1, .reader = reader}, out);
}

void sbp_stream_close(sbp_stream *s) {
    if (!s)
        return;
    if (s->compression == SBP_GZIP && s->decoder) {
        inflateEnd(s->decoder);
        free(s->decoder);
    } else if (s->compression == SBP_ZSTD) {
        ZSTD_freeDStream(s->decoder);
    }
    if (s->owns_fd)
        close(s->fd);
    free(s->raw);
    free(s->data);
    free(s);
}
