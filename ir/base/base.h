/* base.h: what every other file of the project may use: status codes, diagnostics, arenas, checked
 * 64-bit sizes, growable text, growable arrays and a name table.
 *
 * Errors. Functions that can fail on account of their input return sbp_status; the message lives in an
 * sbp_diag. Nothing in this project exits, aborts or asserts because of its input: an assert means a
 * bug of ours.
 *
 * Memory. Compiler data lives in arenas and is freed all at once, so an early return leaks nothing. An
 * arena that cannot grow unwinds to the innermost sbp_guard() on that arena, which returns
 * SBP_MACHINE; so sbp_arena_alloc never returns NULL and must only be called below a guard. Between
 * the guard and the allocation nothing but arena memory may be owned.
 *
 * Threads. Nothing here is thread safe unless it says so; different objects may be used by different
 * threads at the same time.
 */
#ifndef SBP_IR_BASE_BASE_H
#define SBP_IR_BASE_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Statuses are the exit statuses of the two programs. */
typedef enum sbp_status {
    SBP_OK = 0,
    SBP_INPUT = 1,      /* the input is at fault */
    SBP_USAGE = 2,      /* wrong command line */
    SBP_MACHINE = 3,    /* the machine lacks something: memory, a driver, a device */
    SBP_IO = 4,         /* a file could not be read or written */
    SBP_NOT_FINITE = 5, /* loss or gradient is not finite */
    SBP_INTERNAL = 70,  /* a bug of ours */
    SBP_INTERRUPTED = 130,
    SBP_TERMINATED = 143
} sbp_status;

#define SBP_CHECKED __attribute__((warn_unused_result))
#define SBP_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define SBP_COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

/* Leaves the calling function with the status of e unless that is SBP_OK. */
#define SBP_TRY(e)                                                                                           \
    do {                                                                                                     \
        sbp_status sbp_try_status = (e);                                                                     \
        if (sbp_try_status != SBP_OK)                                                                        \
            return sbp_try_status;                                                                           \
    } while (0)

/* ---- diagnostics -------------------------------------------------------------------------------- */

typedef enum sbp_severity { SBP_NOTE, SBP_WARNING, SBP_ERROR } sbp_severity;

/* Collects messages. Owns its text; freed by sbp_diag_destroy. When memory for a message is lacking, the
 * sink still gets the beginning of it, and the status is never lost. */
typedef struct sbp_diag sbp_diag;

/* NULL when out of memory. */
sbp_diag *sbp_diag_create(void);
void sbp_diag_destroy(sbp_diag *diag);

/* Called for each message as it is recorded; text has no newline at its end. */
typedef void (*sbp_diag_sink)(void *user, sbp_severity severity, const char *text);
void sbp_diag_set_sink(sbp_diag *diag, sbp_diag_sink sink, void *user);
/* Notes are recorded, but not passed on to the sink. */
void sbp_diag_set_quiet(sbp_diag *diag);

/* Records an error and returns `status`, so that a caller can write `return sbp_fail(...)`. diag may be
 * NULL: then only the status is kept. */
sbp_status sbp_fail(sbp_diag *diag, sbp_status status, const char *format, ...) SBP_PRINTF(3, 4);
#ifdef __clang_analyzer__ /* it sees one file at a time, and would not know what sbp_fail returns */
#define sbp_fail(diag, status, ...) ((void)sbp_fail((diag), (status), __VA_ARGS__), (status))
#endif
void sbp_warn(sbp_diag *diag, const char *format, ...) SBP_PRINTF(2, 3);
void sbp_note(sbp_diag *diag, const char *format, ...) SBP_PRINTF(2, 3);

/* All messages so far of at least this severity, a line each ("error: ..."). Owned by diag, valid until
 * the next message. */
const char *sbp_diag_text(sbp_diag *diag, sbp_severity least);
int sbp_diag_count(const sbp_diag *diag, sbp_severity severity);
void sbp_diag_clear(sbp_diag *diag);

/* ---- arenas -------------------------------------------------------------------------------------- */

typedef struct sbp_arena sbp_arena;

/* NULL when out of memory. */
sbp_arena *sbp_arena_create(void);
void sbp_arena_destroy(sbp_arena *arena);

/* For memory that is needed for a while only: end frees all that the arena gave out since begin. They nest.
 */
typedef struct sbp_arena_mark {
    void *block, *next;
    size_t used, bytes;
} sbp_arena_mark;

sbp_arena_mark sbp_arena_begin(const sbp_arena *arena);
void sbp_arena_end(sbp_arena *arena, sbp_arena_mark mark);

/* Runs body(user) with `arena` able to report that memory ran out: then SBP_MACHINE is returned, with a
 * message in diag. Guards nest. */
sbp_status sbp_guard(sbp_arena *arena, sbp_diag *diag, sbp_status (*body)(void *user),
                     void *user) SBP_CHECKED;

/* Zeroed memory aligned to 16 bytes, valid until the arena is destroyed. Never NULL; bytes may be 0. */
void *sbp_arena_alloc(sbp_arena *arena, size_t bytes);
/* As alloc, for count elements of size bytes each; overflow counts as out of memory. */
void *sbp_arena_array(sbp_arena *arena, size_t count, size_t size);
char *sbp_arena_strdup(sbp_arena *arena, const char *text);
char *sbp_arena_strndup(sbp_arena *arena, const char *text, size_t length);
char *sbp_arena_printf(sbp_arena *arena, const char *format, ...) SBP_PRINTF(2, 3);
size_t sbp_arena_bytes(const sbp_arena *arena);

#define SBP_NEW(arena, type) ((type *)sbp_arena_alloc((arena), sizeof(type)))
#define SBP_NEW_ARRAY(arena, type, count) ((type *)sbp_arena_array((arena), (size_t)(count), sizeof(type)))

/* For tests: makes the n-th allocation from now on fail (1 is the next), process-wide; 0 switches off.
 * Counts arena blocks, sbp_malloc and sbp_realloc. Returns what was left of the count before, so that a huge
 * n measures how many allocations there are. */
int64_t sbp_test_fail_allocation(int64_t n);
/* For tests: bytes that were allocated so far in the ways that fail_allocation counts, freed ones included.
 */
int64_t sbp_test_allocated_bytes(void);
/* For tests: whether every piece that an arena hands out counts as well, as if it needed a block. */
void sbp_test_count_pieces(bool on);
/* Whether a piece of an arena that comes next is the one to fail. */
bool sbp_test_piece_fails(void);

/* malloc, realloc with the above test hook; NULL when out of memory. Free with free(). */
void *sbp_malloc(size_t bytes);
void *sbp_realloc(void *old, size_t bytes);

/* ---- growable array in an arena ------------------------------------------------------------------- */

/* Appends to (array, count, capacity) fields that live in the arena. */
#define SBP_PUSH(arena, array, count, capacity, ...)                                                         \
    do {                                                                                                     \
        if ((count) >= (capacity))                                                                           \
            (array) = sbp_array_grow((arena), (array), &(capacity), sizeof(*(array)), (count));              \
        (array)[(count)++] = (__VA_ARGS__);                                                                  \
    } while (0)

void *sbp_array_grow(sbp_arena *arena, void *array, int32_t *capacity, size_t element_bytes, int32_t count);

/* ---- growable text -------------------------------------------------------------------------------- */

typedef struct sbp_text {
    sbp_arena *arena;
    char *data; /* always NUL-terminated once something was added; "" before */
    size_t length;
    size_t capacity;
} sbp_text;

void sbp_text_init(sbp_text *text, sbp_arena *arena);
void sbp_text_add(sbp_text *text, const char *format, ...) SBP_PRINTF(2, 3);
void sbp_text_add_n(sbp_text *text, const char *bytes, size_t length);
/* Lines; those longer than `width` are broken at blanks, else behind '+' or ',', and go on after `indent`
 * blanks. */
void sbp_text_add_wrapped(sbp_text *out, const char *text, int width, int indent);
/* Text in which nothing is markup of HTML, in attributes too; control characters become blanks. */
void sbp_text_add_escaped(sbp_text *out, const char *text);
/* A double in the shortest form that reads back to the same bits ("0.1", "1e-05", "inf", "nan"). */
void sbp_text_add_double(sbp_text *text, double value);
/* A quoted string with \" \\ \n \t \xHH escapes, as the parsers of the IR read it. */
void sbp_text_add_quoted(sbp_text *text, const char *bytes);

/* Writes the shortest round-trip form of value into out (at least 32 bytes). */
void sbp_format_double(char *out, size_t out_size, double value);
/* "1.50 GiB" and the like; writes into out and returns it. */
const char *sbp_format_bytes(char *out, size_t out_size, double bytes);
/* Three digits as people write them, never with an exponent, into out, which is returned: "41.1 h" (us, ms,
 * s, min, h, days), "28.2 PFLOP", "12600". */
const char *sbp_format_seconds(char *out, size_t out_size, double seconds);
const char *sbp_format_flops(char *out, size_t out_size, double flops);
const char *sbp_format_three(char *out, size_t out_size, double number);

/* ---- name table ----------------------------------------------------------------------------------- */

/* Maps strings to int32 values >= 0. Keys are not copied and must outlive the map. */
typedef struct sbp_map {
    sbp_arena *arena;
    const char **keys;
    int32_t *values;
    int32_t count, capacity;
} sbp_map;

void sbp_map_init(sbp_map *map, sbp_arena *arena);
/* The same keys and values; what is set in one of both is not in the other. */
void sbp_map_copy(sbp_map *map, sbp_arena *arena, const sbp_map *from);
/* -1 when absent. */
int32_t sbp_map_get(const sbp_map *map, const char *key);
/* Replaces an existing value. */
void sbp_map_set(sbp_map *map, const char *key, int32_t value);
uint64_t sbp_hash_bytes(const void *data, size_t length, uint64_t seed); /* xxh64 */

/* ---- checked sizes -------------------------------------------------------------------------------- */

/* All sizes are int64. These return false on overflow and leave *out alone. */
bool sbp_add_i64(int64_t a, int64_t b, int64_t *out);
bool sbp_mul_i64(int64_t a, int64_t b, int64_t *out);
int64_t sbp_round_up(int64_t value, int64_t multiple);
int64_t sbp_ceil_div(int64_t a, int64_t b); /* a >= 0, b > 0 */

static inline int64_t sbp_min_i64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t sbp_max_i64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* Reads a size such as "80GiB", "24 GB", "512m" (binary for one letter), "1e9": bytes into *out. */
sbp_status sbp_parse_bytes(sbp_diag *diag, const char *text, int64_t *out) SBP_CHECKED;

#endif
