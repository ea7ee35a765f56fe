/* json.h: JSON documents (as jansson parses them; json_text.h does it in less memory) as read-only trees in
 * an arena.
 *
 * jansson's own values are reference counted on the heap; a tree in the arena makes early returns safe
 * and lets every node name its file and path in messages: "config.json: rope_scaling.factor: expected a
 * number, found a string". Duplicate keys, NaN, Infinity, lone surrogates and invalid UTF-8 are errors
 * (SBP_INPUT, "FILE:LINE:COL: ..."). Integers beyond 64 bits are read as real numbers.
 *
 * Ownership. Trees belong to their arena. Threads: a tree may be read by many threads.
 */
#ifndef SBP_IR_BASE_JSON_H
#define SBP_IR_BASE_JSON_H

#include "ir/base/file.h"

typedef enum sbp_json_kind {
    SBP_JSON_NULL,
    SBP_JSON_BOOL,
    SBP_JSON_INT,
    SBP_JSON_REAL,
    SBP_JSON_STRING,
    SBP_JSON_ARRAY,
    SBP_JSON_OBJECT,
    SBP_JSON_BYTES, /* of no JSON text: what a binary file has where JSON has base64 (protowire.h) */
    SBP_JSON_UNREAD /* of no JSON text: a column that is there and that nobody wanted (runtime/data/source) */
} sbp_json_kind;

typedef struct sbp_json {
    sbp_json_kind kind;
    int32_t index;                 /* among its siblings */
    const char *key;               /* in an object; the file name in the root; else NULL */
    const struct sbp_json *parent; /* NULL in the root */
    int64_t count;                 /* bytes of a string, items of an array, members of an object */
    union {
        bool boolean;
        int64_t integer;
        double real;
        const char *string; /* UTF-8, NUL after count bytes; may contain NUL. BYTES: just count bytes */
        struct {
            const struct sbp_json *items; /* of an array, or the members of an object in file order */
            const int32_t *table;         /* finds members of large objects; NULL in small ones */
        };
    };
} sbp_json;

enum {
    SBP_JSON_COMMENTS = 1, /* skip lines whose first characters other than blanks are "//" */
    SBP_JSON_ROW = 2, /* the text is one line of a file; `file` names both, messages add the column only */
    SBP_JSON_JANSSON = 4, /* for tests: by jansson alone, which else reads what json_text.h does not */
    SBP_JSON_PYTHON = 8   /* NaN, Infinity and -Infinity are numbers, as Python's json writes them */
};

/* `file` is only for messages. Neither needs a guard by the caller. */
sbp_status sbp_json_parse(sbp_arena *arena, sbp_diag *diag, const char *file, const char *text, size_t length,
                          unsigned flags, const sbp_json **out) SBP_CHECKED;
sbp_status sbp_json_read(sbp_arena *arena, sbp_diag *diag, const char *path, unsigned flags,
                         const sbp_json **out) SBP_CHECKED;

/* No surrogates, nothing longer than needed, nothing above U+10FFFF. */
bool sbp_is_utf8(const char *text, int64_t length);
/* Bytes of the character that the text begins with; 0: it is none of UTF-8. length at least 1. */
int sbp_utf8_bytes(const char *text, int64_t length);
/* "a string", "null" and so on, for messages. */
const char *sbp_json_kind_name(sbp_json_kind kind);
/* "FILE: path.to[3].node" into out (at most size bytes, cut at the front), which is returned. */
const char *sbp_json_where(const sbp_json *node, char *out, size_t size);
/* Records "FILE: path: <message>" and returns SBP_INPUT. */
sbp_status sbp_json_fail(sbp_diag *diag, const sbp_json *node, const char *format, ...) SBP_PRINTF(3, 4);
#ifdef __clang_analyzer__ /* as for sbp_fail */
#define sbp_json_fail(...) ((void)sbp_json_fail(__VA_ARGS__), SBP_INPUT)
#endif

/* The member `key` of an object, or NULL; also NULL when `object` is none. */
const sbp_json *sbp_json_member(const sbp_json *object, const char *key);

/* Checked conversions of one node; SBP_INPUT with what was found and expected. A string with a NUL
 * inside is refused here (read node->string and node->count for those). as_double takes integers too;
 * as_i64 takes integers only. */
sbp_status sbp_json_as_string(sbp_diag *diag, const sbp_json *node, const char **out) SBP_CHECKED;
sbp_status sbp_json_as_i64(sbp_diag *diag, const sbp_json *node, int64_t *out) SBP_CHECKED;
sbp_status sbp_json_as_double(sbp_diag *diag, const sbp_json *node, double *out) SBP_CHECKED;
sbp_status sbp_json_as_bool(sbp_diag *diag, const sbp_json *node, bool *out) SBP_CHECKED;
sbp_status sbp_json_as_array(sbp_diag *diag, const sbp_json *node, const sbp_json **out) SBP_CHECKED;
sbp_status sbp_json_as_object(sbp_diag *diag, const sbp_json *node, const sbp_json **out) SBP_CHECKED;

typedef enum sbp_json_need {
    SBP_JSON_REQUIRED, /* absent is an error */
    SBP_JSON_OPTIONAL, /* absent: *out keeps what the caller put there, the default */
    SBP_JSON_NULLABLE  /* as optional, and null counts as absent */
} sbp_json_need;

/* Members of an object, converted as above. */
sbp_status sbp_json_get_string(sbp_diag *diag, const sbp_json *object, const char *key, sbp_json_need need,
                               const char **out) SBP_CHECKED;
sbp_status sbp_json_get_i64(sbp_diag *diag, const sbp_json *object, const char *key, sbp_json_need need,
                            int64_t *out) SBP_CHECKED;
sbp_status sbp_json_get_double(sbp_diag *diag, const sbp_json *object, const char *key, sbp_json_need need,
                               double *out) SBP_CHECKED;
sbp_status sbp_json_get_bool(sbp_diag *diag, const sbp_json *object, const char *key, sbp_json_need need,
                             bool *out) SBP_CHECKED;
sbp_status sbp_json_get_array(sbp_diag *diag, const sbp_json *object, const char *key, sbp_json_need need,
                              const sbp_json **out) SBP_CHECKED;
sbp_status sbp_json_get_object(sbp_diag *diag, const sbp_json *object, const char *key, sbp_json_need need,
                               const sbp_json **out) SBP_CHECKED;

/* Appends a quoted JSON string; other than ASCII stays as it is, but what is not UTF-8 becomes U+FFFD, a byte
 * at a time. */
void sbp_json_add_string(sbp_text *out, const char *bytes, size_t length);
/* Appends the value, compact, members in file order. */
void sbp_json_add_value(sbp_text *out, const sbp_json *node);

#endif
