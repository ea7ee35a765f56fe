/* tables.h: drawn tables of rows, what must be read of them, and files of all formats that have them: valid
 * structure, of which the writer knows the rows. Everything lives in the arena of the drawing. */
#ifndef SBP_TESTS_FUZZ_TABLES_TABLES_H
#define SBP_TESTS_FUZZ_TABLES_TABLES_H

#include "ir/base/json.h"

/* Choices: from bytes as long as there are some, then from a generator that they have seeded. */
typedef struct drawing {
    sbp_arena *arena;
    const uint8_t *data;
    size_t size, at;
    uint64_t state;
} drawing;

drawing drawing_begin(sbp_arena *arena, const uint8_t *data, size_t size);
/* Below `below`, which is at least 1 and at most 65536. */
uint32_t draw(drawing *d, uint32_t below);
uint64_t draw_bits(drawing *d);

typedef enum column_kind {
    COLUMN_BOOL,
    COLUMN_INT,
    COLUMN_REAL,
    COLUMN_TEXT,
    COLUMN_NULLS,
    COLUMN_LIST,
    COLUMN_STRUCT,
    COLUMN_MAP /* children: key (a text that is there) and value */
} column_kind;

typedef enum table_format {
    TABLE_ARROW,
    TABLE_PARQUET,
    TABLE_LINES,
    TABLE_ARRAY,
    TABLE_CSV,
    TABLE_FORMATS
} table_format;

typedef struct column {
    const char *name;
    column_kind kind;
    int bits; /* of numbers */
    bool is_unsigned;
    bool optional;   /* may be null */
    int shape;       /* texts and lists: how the format lays them out, by its writer */
    int fixed_count; /* items of fixed lists */
    bool dictionary; /* Arrow: by indexes */
    struct column *children;
    int child_count;
} column;

typedef struct table {
    table_format format;
    column root;           /* a struct that is there */
    const sbp_json **rows; /* [row_count]; members of structs are all there, null ones too */
    int row_count;
} table;

/* Shapes. */
enum { ARROW_32, ARROW_64, ARROW_VIEW, ARROW_FIXED };        /* of texts (but the last) and lists */
enum { PARQUET_LIST, PARQUET_TWO_LEVELS, PARQUET_REPEATED }; /* of lists */

void table_draw(drawing *d, table_format format, table *out);
/* What is read of it, a line each; a column of which `wanted` says no is null. NULL: all. */
void table_expected(const table *t, sbp_text *out, bool (*wanted)(void *user, const char *name));
/* Bytes of a file. */
void table_write(drawing *d, const table *t, sbp_text *out);
void table_write_arrow(drawing *d, const table *t, sbp_text *out);
void table_write_parquet(drawing *d, const table *t, sbp_text *out);

/* `bytes` of a number, least first. */
void put_number(sbp_text *out, uint64_t value, int bytes);
/* IEEE binary16 of a number that it has. */
uint32_t half_bits(double value);
/* Codecs as Parquet numbers them (0, 1, 2, 6, 7), and lz4's frames (100). */
enum { CODEC_LZ4_FRAME = 100 };
void put_compressed(drawing *d, int codec, const char *data, size_t length, sbp_text *out);

#endif
