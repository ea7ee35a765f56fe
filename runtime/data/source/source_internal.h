/* source_internal.h: what the formats of this room share. */
#ifndef SBP_RUNTIME_DATA_SOURCE_SOURCE_INTERNAL_H
#define SBP_RUNTIME_DATA_SOURCE_SOURCE_INTERNAL_H

#include "runtime/data/source/source.h"
#include "runtime/data/source/stream.h"

/* A format: how its files are opened (the source knows what they are), read on and closed. */
typedef struct sbp_format {
    const char *name;
    bool by_position; /* reads anywhere in a file, not one byte after the other */
    sbp_status (*open)(sbp_source *source, sbp_diag *diag);
    sbp_status (*next)(sbp_source *source, sbp_arena *arena, sbp_diag *diag, sbp_record *out, bool *end);
    void (*close)(sbp_source *source);
    double (*share)(const sbp_source *source); /* NULL: by the position in the file */
    /* Columns of which `wanted` says no are not read; NULL: all are, or bytes of a row tell nothing of that.
     */
    void (*select)(sbp_source *source, bool (*wanted)(void *user, const char *name), void *user);
} sbp_format;

extern const sbp_format sbp_format_lines, sbp_format_array, sbp_format_csv, sbp_format_parquet,
    sbp_format_arrow;

struct sbp_source {
    const sbp_format *format;
    sbp_arena *arena;         /* of what stays as long as the source */
    const char *path;         /* as it is shown */
    const sbp_reader *reader; /* NULL: of a file or standard input */
    sbp_stream *stream;       /* of formats of text */
    int fd;                   /* of the others; else -1 */
    int64_t size;             /* bytes of that file */
    int64_t rows;             /* read so far */
    int64_t made;             /* bytes of their values, of formats by position */
    int64_t held;             /* bytes of pages and buffers that are in memory */
    void *state;              /* of the format */
};

/* Bytes that grow, with a name for each growth that fails. */
typedef struct sbp_bytes {
    char *data;
    size_t length, capacity;
} sbp_bytes;

bool sbp_bytes_add(sbp_bytes *bytes, const char *data, size_t length);
bool sbp_bytes_reserve(sbp_bytes *bytes, size_t capacity);

/* `length` bytes at `offset` of the file; SBP_INPUT where it is too short for that. */
sbp_status sbp_source_pread(const sbp_source *source, sbp_diag *diag, void *out, int64_t offset,
                            int64_t length) SBP_CHECKED;
sbp_status sbp_source_damaged(const sbp_source *source, sbp_diag *diag, const char *format, ...)
    SBP_PRINTF(3, 4);

/* ---- bounds ------------------------------------------------------------------------------------------ */

/* What a file may become, so that few bytes cannot stand for all the memory there is: a row, or all pages and
 * buffers that are held at a time; all rows together. */
int64_t sbp_source_most_made(const sbp_source *source);
/* Notes that `bytes` more (or fewer) are held. SBP_INPUT: they are more than a file of this size may need. */
sbp_status sbp_source_hold(sbp_source *source, sbp_diag *diag, int64_t bytes) SBP_CHECKED;

/* More of a row of text, which may not be too long where it comes out of a compressed file. */
sbp_status sbp_source_add_text(sbp_source *source, sbp_diag *diag, int64_t line, sbp_bytes *row,
                               const char *data, size_t length) SBP_CHECKED;

/* What a row may still become: its trees are below the guard of an arena that others use as well. */
typedef struct sbp_row_budget {
    sbp_source *source;
    sbp_arena *arena;
    size_t before; /* bytes of the arena */
    int64_t made;  /* bytes of values so far, with those that were left out again */
} sbp_row_budget;

sbp_row_budget sbp_row_budget_begin(sbp_source *source, sbp_arena *arena);
/* Before a value is made: `items` nodes at once and `bytes` of text. SBP_INPUT: the row, or the file, becomes
 * too large. */
sbp_status sbp_row_budget_take(sbp_row_budget *budget, sbp_diag *diag, int64_t items,
                               int64_t bytes) SBP_CHECKED;
void sbp_row_budget_end(const sbp_row_budget *budget);

/* ---- trees ------------------------------------------------------------------------------------------ */

/* The most items of a list in a row of Parquet or Arrow, where few bytes can stand for many items. */
enum { SBP_MOST_ITEMS = 1 << 23 };

/* Lists and objects that grow while they are read. Nodes move when they do; what names them in messages does
 * not need to move along. */
typedef struct sbp_growing {
    sbp_arena *arena;
    sbp_json *items;
    int32_t count, capacity;
} sbp_growing;

/* Room for `count` items, where it is known how many they will be. */
void sbp_growing_reserve(sbp_growing *growing, int64_t count);
/* A new item at the end, a null; key: NULL in lists. */
sbp_json *sbp_growing_add(sbp_growing *growing, const sbp_json *parent, const char *key);
/* Takes the last one back. */
void sbp_growing_drop(sbp_growing *growing);
void sbp_growing_end(const sbp_growing *growing, sbp_json_kind kind, sbp_json *out);

void sbp_json_set_int(sbp_json *out, int64_t value);
void sbp_json_set_real(sbp_json *out, double value); /* NaN: null, as data frames mean it */
void sbp_json_set_bool(sbp_json *out, bool value);
/* A copy in the arena; bytes that are no UTF-8 become SBP_JSON_BYTES. */
void sbp_json_set_text(sbp_arena *arena, sbp_json *out, const void *data, int64_t length);

#endif
