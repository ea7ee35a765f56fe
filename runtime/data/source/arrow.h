/* arrow.h: the parts of the Arrow reader: messages (arrow_message.c: flatbuffers, schema, record batches) and
 * rows (arrow.c). The format: https://arrow.apache.org/docs/format/Columnar.html.
 *
 * Read are IPC streams, as `datasets` saves them, and IPC files (Feather V2), from their beginning to their
 * end: booleans, integers, floats, strings and lists (with 32 and 64 bit offsets, and views), structs, maps,
 * dictionaries; buffers uncompressed or compressed by lz4 or zstd. Columns of other types are left out with a
 * note.
 */
#ifndef SBP_RUNTIME_DATA_SOURCE_ARROW_H
#define SBP_RUNTIME_DATA_SOURCE_ARROW_H

#include "runtime/data/source/source_internal.h"

typedef enum sbp_arrow_kind {
    SBP_ARROW_NULLS,
    SBP_ARROW_BOOLS,
    SBP_ARROW_INTS,
    SBP_ARROW_REALS,
    SBP_ARROW_TEXTS, /* with offsets */
    SBP_ARROW_VIEWS, /* texts that lie anywhere */
    SBP_ARROW_STRUCT,
    SBP_ARROW_LIST,
    SBP_ARROW_FIXED_LIST,
    SBP_ARROW_LIST_VIEW, /* with an offset and a size each */
    SBP_ARROW_MAP,
    SBP_ARROW_OTHER /* left out */
} sbp_arrow_kind;

/* A part of the file, or what was compressed there. */
typedef struct sbp_arrow_buffer {
    int64_t offset, length; /* of the file; length 0: it is not there */
    uint8_t *memory;        /* decompressed, or of a dictionary; NULL: in the file */
    uint8_t *window;        /* [window_at, window_at + window_length) of the buffer */
    int64_t window_at, window_length, window_capacity;
} sbp_arrow_buffer;

typedef struct sbp_arrow_field {
    const char *name;
    sbp_arrow_kind kind;
    int bits; /* of numbers; of offsets: 32 or 64 */
    bool is_unsigned;
    int64_t list_size; /* of fixed lists */
    int buffer_count;  /* in a record batch; of views: those before the texts */
    bool has_validity;
    bool variadic;
    bool unread; /* a column that rows do not need */
    struct sbp_arrow_field *children, *parent;
    int32_t child_count;
    struct sbp_arrow_field *dictionary; /* values; this field is the index. NULL: none */
    int64_t dictionary_id;
    /* of the batch at hand */
    int64_t length, null_count;
    sbp_arrow_buffer buffers[3];
    sbp_arrow_buffer *texts; /* of views; its own */
    int32_t text_count;
} sbp_arrow_field;

typedef struct sbp_arrow_state {
    sbp_arena *batch_arena; /* of the message at hand */
    int64_t at;             /* of the file: the next message */
    int64_t *blocks;        /* of a file with a footer: where its messages are; NULL: one behind the other */
    int64_t block_count, block;
    sbp_arrow_field root; /* its children are the columns */
    int32_t dictionary_count;
    sbp_arrow_field **dictionaries; /* fields that have one */
    int64_t rows, row;              /* of the batch at hand */
} sbp_arrow_state;

/* Reads the schema. Below a guard on the arena of the source. */
sbp_status sbp_arrow_open(sbp_source *source, sbp_diag *diag, sbp_arrow_state *state) SBP_CHECKED;
/* Goes to the next batch that has rows; *end: there is none. Needs no guard. */
sbp_status sbp_arrow_next_batch(sbp_source *source, sbp_diag *diag, sbp_arrow_state *state,
                                bool *end) SBP_CHECKED;
void sbp_arrow_close(sbp_source *source, sbp_arrow_state *state);
/* `length` bytes at `at` of a buffer, until the next call for this buffer. SBP_INPUT: it has no such bytes.
 */
sbp_status sbp_arrow_bytes(sbp_source *source, sbp_diag *diag, sbp_arrow_buffer *buffer, int64_t at,
                           int64_t length, const uint8_t **out) SBP_CHECKED;

#endif
