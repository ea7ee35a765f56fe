/* parquet.h: the parts of the Parquet reader: metadata (parquet_meta.c), pages of a column (parquet_page.c)
 * with their encodings (parquet_codes.c), rows (parquet.c). The format:
 * https://github.com/apache/parquet-format.
 *
 * Read are flat and nested columns of booleans, integers, floats (16, 32, 64 bits) and strings, lists,
 * structs and maps in lists of one another; plain, dictionary, delta, run-length and byte-stream-split
 * encoded; pages of both versions, uncompressed or compressed by snappy, gzip, zstd or lz4_raw. Columns of
 * other types (dates, decimals, images) are left out with a note, encrypted files and other compressions
 * refused.
 */
#ifndef SBP_RUNTIME_DATA_SOURCE_PARQUET_H
#define SBP_RUNTIME_DATA_SOURCE_PARQUET_H

#include "runtime/data/source/source_internal.h"

/* ---- metadata --------------------------------------------------------------------------------------- */

typedef enum sbp_parquet_type {
    SBP_PARQUET_BOOLEAN,
    SBP_PARQUET_INT32,
    SBP_PARQUET_INT64,
    SBP_PARQUET_INT96,
    SBP_PARQUET_FLOAT,
    SBP_PARQUET_DOUBLE,
    SBP_PARQUET_BYTES,
    SBP_PARQUET_FIXED
} sbp_parquet_type;

typedef enum sbp_parquet_kind {
    SBP_PARQUET_NULLS, /* a column of which no value is known */
    SBP_PARQUET_BOOLS,
    SBP_PARQUET_INTS,  /* signed */
    SBP_PARQUET_WORDS, /* unsigned */
    SBP_PARQUET_REALS,
    SBP_PARQUET_HALVES, /* float16 */
    SBP_PARQUET_TEXTS,
    SBP_PARQUET_BYTE_TEXTS, /* bytes that nothing is said of: texts where they are UTF-8, else null */
    SBP_PARQUET_OTHER,      /* left out, as all that has nothing else in it */
    SBP_PARQUET_STRUCT,
    SBP_PARQUET_LIST,
    SBP_PARQUET_MAP
} sbp_parquet_kind;

typedef struct sbp_parquet_node {
    const char *name;
    sbp_parquet_kind kind;
    int def;             /* definition level from which on it is there (lists: the list itself) */
    int item_def;        /* of lists: from which on it has an item */
    int rep;             /* of lists: repetition level of its items */
    int32_t first, last; /* leaves below, [first, last) */
    int32_t child_count; /* lists: 1; maps: 2 */
    struct sbp_parquet_node *children;
    bool unread; /* a column that rows do not need */
} sbp_parquet_node;

typedef struct sbp_parquet_leaf {
    sbp_parquet_type type;
    int64_t type_length; /* of FIXED */
    int max_def, max_rep;
    bool used;
    const char *path;
} sbp_parquet_leaf;

typedef struct sbp_parquet_chunk {
    int64_t offset, bytes; /* in the file */
    int64_t values;        /* with nulls */
    int64_t codec;
} sbp_parquet_chunk;

typedef struct sbp_parquet_group {
    int64_t rows;
    sbp_parquet_chunk *chunks; /* [leaf_count] */
} sbp_parquet_group;

typedef struct sbp_parquet_meta {
    sbp_parquet_node root; /* a struct */
    sbp_parquet_leaf *leaves;
    int32_t leaf_count;
    sbp_parquet_group *groups;
    int64_t group_count, rows;
} sbp_parquet_meta;

/* In the arena of the source; below a guard. */
sbp_status sbp_parquet_meta_read(const sbp_source *source, sbp_diag *diag, sbp_parquet_meta *out) SBP_CHECKED;

/* ---- encodings -------------------------------------------------------------------------------------- */

enum {
    SBP_PARQUET_PLAIN = 0,
    SBP_PARQUET_PLAIN_DICTIONARY = 2,
    SBP_PARQUET_RLE = 3,
    SBP_PARQUET_DELTA = 5,
    SBP_PARQUET_DELTA_LENGTH = 6,
    SBP_PARQUET_DELTA_BYTES = 7,
    SBP_PARQUET_RLE_DICTIONARY = 8,
    SBP_PARQUET_SPLIT = 9
};

typedef struct sbp_parquet_span {
    const uint8_t *data;
    int64_t at, length;
} sbp_parquet_span;

/* Runs and packed groups of numbers of `width` bits. */
typedef struct sbp_parquet_runs {
    sbp_parquet_span in;
    int width;
    int64_t left; /* of the run or group at hand */
    bool packed;
    uint64_t value;
    int64_t bit; /* of a packed group */
} sbp_parquet_runs;

void sbp_parquet_runs_begin(sbp_parquet_runs *runs, const uint8_t *data, int64_t length, int width);
/* false: there is no more, or what there is is none. */
bool sbp_parquet_runs_next(sbp_parquet_runs *runs, uint64_t *out);

/* DELTA_BINARY_PACKED. */
typedef struct sbp_parquet_delta {
    sbp_parquet_span in;
    int64_t block, minis, per_mini; /* values of a block, its parts, values of one */
    int64_t left;                   /* values to come */
    int64_t in_block, in_mini;      /* values left of these */
    int mini;                       /* the one at hand */
    uint8_t widths[64];
    uint64_t value, least;
    int64_t bit;
    bool first;
} sbp_parquet_delta;

bool sbp_parquet_delta_begin(sbp_parquet_delta *delta, const uint8_t *data, int64_t length);
bool sbp_parquet_delta_next(sbp_parquet_delta *delta, int64_t *out);
/* Bytes from the beginning to behind the last value; all values are taken by it. -1: damaged. */
int64_t sbp_parquet_delta_bytes(sbp_parquet_delta delta);

/* ---- columns ---------------------------------------------------------------------------------------- */

/* A value: 8 bytes of a number, or a string in the page. */
typedef struct sbp_parquet_value {
    union {
        int64_t integer;
        double real;
        const uint8_t *bytes;
    };
    int64_t length;
} sbp_parquet_value;

/* A column on its way through a row group. */
typedef struct sbp_parquet_column {
    sbp_source *source;
    const sbp_parquet_leaf *leaf;
    int codec;
    int64_t offset, end; /* of the file: the next page, the end of the chunk */
    int64_t left;        /* values of the chunk, with nulls, that are not in a page yet */
    int64_t page_left;   /* of the page at hand */
    int rep, def;        /* of the value at hand */
    bool loaded;         /* there is one */
    sbp_bytes raw, page, dictionary_page, text;
    sbp_parquet_value *dictionary;
    int64_t dictionary_capacity;
    int64_t dictionary_count;
    sbp_parquet_runs reps, defs, indexes; /* indexes: also of booleans */
    int encoding;
    sbp_parquet_span values;
    int64_t bit;        /* of plain booleans */
    int64_t split_rows; /* values of a page that is split */
    sbp_parquet_delta delta, suffixes;
} sbp_parquet_column;

void sbp_parquet_column_begin(sbp_parquet_column *column, const sbp_parquet_chunk *chunk);
void sbp_parquet_column_close(sbp_parquet_column *column);
/* Loads (rep, def) of the next value unless they are; *end: the chunk has none. */
sbp_status sbp_parquet_column_peek(sbp_parquet_column *column, sbp_diag *diag, bool *end) SBP_CHECKED;
/* Takes what peek has loaded; value: where def is the greatest. Strings stay until the next value. */
sbp_status sbp_parquet_column_take(sbp_parquet_column *column, sbp_diag *diag,
                                   sbp_parquet_value *value) SBP_CHECKED;

/* Whether libsnappy is there, which most files of the Hub are compressed with. */
bool sbp_parquet_has_snappy(void);

#endif
