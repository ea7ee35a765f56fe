/* json_write.h: JSON into a text, member by member: the one writer of what this project writes as JSON.
 *
 *     sbp_json_writer w = sbp_json_writer_on(&text);
 *     sbp_json_write_object(&w, NULL);
 *     sbp_json_write_string(&w, "name", "llama");
 *     sbp_json_write_array(&w, "ids");
 *     sbp_json_write_int(&w, NULL, 7);
 *     sbp_json_write_end(&w);
 *     sbp_json_write_end(&w);                     gives {"name": "llama", "ids": [7]}
 *
 * key: the member's name inside an object; NULL inside an array and at the top. Numbers are in the shortest
 * form that reads back exactly; what JSON has no number for (NaN, infinity) is null. Nesting that does not
 * fit is a bug and asserts. The text grows as every sbp_text: below a guard.
 */
#ifndef SBP_IR_BASE_JSON_WRITE_H
#define SBP_IR_BASE_JSON_WRITE_H

#include "ir/base/json.h"

enum { SBP_JSON_WRITE_DEPTH = 64 };

typedef struct sbp_json_writer {
    sbp_text *out;
    uint64_t arrays; /* bit d: what is open at depth d is an array */
    uint64_t filled; /* bit d: it has a member already */
    int depth;       /* open objects and arrays */
    bool compact;    /* no blanks behind , and : */
    bool broken;     /* a line ends before what comes next */
    int lines;       /* members of the outermost `lines` levels each stand on a line of their own */
} sbp_json_writer;

sbp_json_writer sbp_json_writer_on(sbp_text *out);

void sbp_json_write_object(sbp_json_writer *w, const char *key);
void sbp_json_write_array(sbp_json_writer *w, const char *key);
/* Closes what was opened last. */
void sbp_json_write_end(sbp_json_writer *w);
/* What comes next, a value or an end, begins a line, without blanks before it. */
void sbp_json_write_line(sbp_json_writer *w);

/* NULL: null. What is not UTF-8 in a string, or in a key, becomes U+FFFD. */
void sbp_json_write_string(sbp_json_writer *w, const char *key, const char *value);
void sbp_json_write_bytes(sbp_json_writer *w, const char *key, const char *bytes, size_t length);
void sbp_json_write_int(sbp_json_writer *w, const char *key, int64_t value);
void sbp_json_write_double(sbp_json_writer *w, const char *key, double value);
/* Arrays of `count` numbers. */
void sbp_json_write_ids(sbp_json_writer *w, const char *key, const int32_t *ids, int64_t count);
void sbp_json_write_doubles(sbp_json_writer *w, const char *key, const double *values, int64_t count);
/* 64 bits as 16 hexadecimal digits, a string. */
void sbp_json_write_hash(sbp_json_writer *w, const char *key, uint64_t value);
void sbp_json_write_bool(sbp_json_writer *w, const char *key, bool value);
void sbp_json_write_null(sbp_json_writer *w, const char *key);
/* A tree, members in file order; NULL: null. */
void sbp_json_write_value(sbp_json_writer *w, const char *key, const sbp_json *value);
/* A value that somebody else has written: valid JSON. */
void sbp_json_write_raw(sbp_json_writer *w, const char *key, const char *text);
/* A number with `digits` digits behind the point, for people's eyes: "%.*f". */
void sbp_json_write_fixed(sbp_json_writer *w, const char *key, double value, int digits);

#endif
