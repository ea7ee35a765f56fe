/* stream.h: the bytes of a file or of standard input, one after the other, decompressed where they are
 * compressed.
 *
 * Errors: SBP_IO; SBP_INPUT where compressed data are damaged or end too early. One thread at a time.
 */
#ifndef SBP_RUNTIME_DATA_SOURCE_STREAM_H
#define SBP_RUNTIME_DATA_SOURCE_STREAM_H

#include "runtime/data/source/source.h"

typedef enum sbp_compression { SBP_PLAIN, SBP_GZIP, SBP_ZSTD } sbp_compression;

typedef struct sbp_stream {
    const char *name; /* for messages */
    int fd;           /* -1: what `reader` brings */
    bool owns_fd;
    const sbp_reader *reader;
    sbp_compression compression;
    void *decoder;
    bool decoder_done; /* at the end of a member or frame */
    char *raw;         /* compressed bytes */
    size_t raw_at, raw_length;
    bool raw_end;
    int64_t taken; /* compressed bytes that were read */
    char *data;    /* [at, length) is there to be taken */
    size_t at, length, capacity;
    bool end;                  /* no more than that */
    bool (*interrupted)(void); /* asked while there are no bytes; NULL: never */
} sbp_stream;

enum { SBP_STREAM_BYTES = 1 << 18 };

/* fd: read on from where it is; `owns`: close closes it. Afterwards the first SBP_STREAM_BYTES are there, or
 * all, if there are fewer; if it begins as an object of JSON, some. Closes fd when it fails and owns it. */
sbp_status sbp_stream_open(sbp_diag *diag, const char *name, int fd, bool owns, sbp_stream **out) SBP_CHECKED;
/* The same of what a reader brings, which outlives the stream. */
sbp_status sbp_stream_open_reader(sbp_diag *diag, const char *name, const sbp_reader *reader,
                                  sbp_stream **out) SBP_CHECKED;
/* NULL is allowed. */
void sbp_stream_close(sbp_stream *stream);
/* When all was taken: more, or the end. */
sbp_status sbp_stream_fill(sbp_stream *stream, sbp_diag *diag) SBP_CHECKED;

#endif
