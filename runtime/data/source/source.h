/* source.h: files of rows, one row after the other, in whatever format they are: JSON lines, a JSON array,
 * CSV, Parquet, Arrow; the first three as they are or compressed by gzip or zstd. What a file is is told by
 * its content, never by its name.
 *
 * A row is read in two parts, so that the second can be done by other threads: sbp_source_read takes the next
 * record from the file (text formats: its bytes; Parquet and Arrow: its tree), sbp_record_parse makes the
 * tree of it. Trees are as ir/base/json.h has them, with "FILE:LINE" or "FILE: row N" as the name of their
 * file. Numbers are exact: integers of 64 bits, floats as the double that they are. Members without a value
 * are left out.
 *
 * Bounds: a few bytes of Parquet or Arrow can stand for any number of rows and items. Values of a row, and
 * pages and buffers that are held at a time, may take 128 MiB and 1 KiB for each byte of the file, at most 4
 * GiB; all rows together 128 MiB and 64 KiB for each byte. What becomes larger is SBP_INPUT. A row of text
 * that is compressed may have 256 MiB, whatever else is compressed 64 MiB and 4 KiB for each byte.
 *
 * Memory: a file is never held as a whole: of text the record at hand and a buffer, of Parquet a page of each
 * column, of Arrow windows of 64 KiB (compressed buffers of one batch, and dictionaries, as a whole).
 * Standard input and compressed files that hold Parquet or Arrow are first copied to a file without a name in
 * TMPDIR.
 *
 * Errors: SBP_INPUT names file and place, or what the file is and one line that converts it. A record that is
 * wrong in itself is an error of sbp_record_parse; the file can be read on. Threads: a source is used by one
 * at a time.
 */
#ifndef SBP_RUNTIME_DATA_SOURCE_SOURCE_H
#define SBP_RUNTIME_DATA_SOURCE_SOURCE_H

#include "ir/base/json.h"

typedef struct sbp_source sbp_source;

typedef struct sbp_record {
    const char *where; /* "FILE:LINE" or "FILE: row N" */
    const char *text;  /* JSON; NULL: tree is there already */
    size_t length;
    const sbp_json *tree;
    bool strings;      /* the members of the tree are strings, as CSV has them */
    const char *error; /* what is wrong with it; NULL: nothing */
} sbp_record;

/* Opens a file ("-": standard input) and finds out what it is. The caller closes it. */
sbp_status sbp_source_open(sbp_diag *diag, const char *path, sbp_source **out) SBP_CHECKED;
/* What stands for standard input: brings at most `room` bytes, 0 at the end. */
typedef struct sbp_reader {
    sbp_status (*read)(void *user, sbp_diag *diag, char *out, size_t room, size_t *got);
    void *user;
} sbp_reader;
/* Opens what a reader brings, which outlives the source. */
sbp_status sbp_source_open_reader(sbp_diag *diag, const sbp_reader *reader, sbp_source **out) SBP_CHECKED;
/* NULL is allowed. */
void sbp_source_close(sbp_source *source);
/* What is asked now and then while a reading waits for bytes: true ends it with SBP_INTERRUPTED. */
void sbp_source_set_interrupt(sbp_source *source, bool (*interrupted)(void));
/* Columns of Parquet and Arrow of which `wanted` says no are not read: their members are SBP_JSON_UNREAD. To
 * be called before the first row is read, if at all. */
void sbp_source_select(sbp_source *source, bool (*wanted)(void *user, const char *name), void *user);
/* Whether trees stay when the source is closed: those of CSV, Parquet and Arrow have names from it. */
bool sbp_source_names_stay(const sbp_source *source);
/* Share of the file that was read, 0 to 1; 0 where it is not known. */
double sbp_source_share(const sbp_source *source);
/* The next record, in the arena; *end: there is none. Needs no guard. */
sbp_status sbp_source_read(sbp_source *source, sbp_arena *arena, sbp_diag *diag, sbp_record *out,
                           bool *end) SBP_CHECKED;
/* Its tree: an object, or whatever a line has. Below a guard. */
sbp_status sbp_record_parse(const sbp_record *record, sbp_arena *arena, sbp_diag *diag,
                            const sbp_json **out) SBP_CHECKED;

/* The files that an argument of --data stands for, in the arena: a glob's in order of their names, a
 * directory's (what `datasets` saved, or the shards that lie in it), else itself. Below a guard. */
sbp_status sbp_source_expand(sbp_arena *arena, sbp_diag *diag, const char *argument, const char *const **out,
                             int32_t *count) SBP_CHECKED;

/* ---- columns ---------------------------------------------------------------------------------------- */

/* Other names for columns: "prompt=question,completion=answer" (to=from). "prompt=instruction+input" takes
 * several texts as one, with an empty line between them; what is empty is left out. "text=body?" holds for
 * rows that have such a column, and leaves others as they are. */
typedef struct sbp_renaming {
    const char *to, *from;
    bool where_there; /* "?" */
} sbp_renaming;

typedef struct sbp_columns {
    const sbp_renaming *items;
    int32_t count;
} sbp_columns;

/* SBP_USAGE when text is nothing of that kind. NULL: no columns. Below a guard. */
sbp_status sbp_columns_parse(sbp_arena *arena, sbp_diag *diag, const char *text,
                             sbp_columns *out) SBP_CHECKED;
/* Columns that are not there leave a row as it is, as if all were written with "?". Below a guard. */
void sbp_columns_allow_missing(sbp_arena *arena, sbp_columns *columns);
/* Whether a column of this name is taken, alone or as one of several. */
bool sbp_columns_take(const sbp_columns *columns, const char *name);
/* The tree with its members renamed; what had such a name before is left out. SBP_INPUT names a column that
 * is not there, and those that are; of several that are joined only the first has to be, unless `all`. Below
 * a guard. */
sbp_status sbp_columns_rename(const sbp_columns *columns, sbp_arena *arena, sbp_diag *diag, const char *where,
                              const sbp_json *row, bool all, const sbp_json **out) SBP_CHECKED;

#endif
