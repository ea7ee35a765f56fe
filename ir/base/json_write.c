/* json_write.c: JSON into a text. */
#include "ir/base/json_write.h"

#include <assert.h>
#include <math.h>
#include <string.h>

sbp_json_writer sbp_json_writer_on(sbp_text *out) {
    return (sbp_json_writer){.out = out};
}

static uint64_t bit(const sbp_json_writer *w) {
    return UINT64_C(1) << w->depth;
}

static bool in_array(const sbp_json_writer *w) {
    return w->arrays & bit(w);
}

/* Ends a line before what is at this depth, where it does not go on; whether it did. */
static bool end_line(sbp_json_writer *w, bool indented, int depth) {
    if (indented)
        sbp_text_add(w->out, "\n%*s", 2 * depth, "");
    else if (w->broken)
        sbp_text_add_n(w->out, "\n", 1);
    bool ended = indented || w->broken;
    w->broken = false;
    return ended;
}

/* What stands before a value: the separator, and its name. */
static void begin_value(sbp_json_writer *w, const char *key) {
    assert((key != NULL) == (w->depth > 0 && !in_array(w)));
    bool follows = w->depth > 0 && w->filled & bit(w);
    if (follows)
        sbp_text_add_n(w->out, ",", 1);
    w->filled |= bit(w);
    if (!end_line(w, w->depth > 0 && w->depth <= w->lines, w->depth) && follows && !w->compact)
        sbp_text_add_n(w->out, " ", 1);
    if (!key)
        return;
    sbp_json_add_string(w->out, key, strlen(key));
    sbp_text_add_n(w->out, ": ", w->compact ? 1 : 2);
}

static void open_value(sbp_json_writer *w, const char *key, bool array) {
    begin_value(w, key);
    assert(w->depth + 1 < SBP_JSON_WRITE_DEPTH);
    w->depth++;
    w->filled &= ~bit(w);
    w->arrays = array ? w->arrays | bit(w) : w->arrays & ~bit(w);
    sbp_text_add_n(w->out, array ? "[" : "{", 1);
}

void sbp_json_write_object(sbp_json_writer *w, const char *key) {
    open_value(w, key, false);
}

void sbp_json_write_array(sbp_json_writer *w, const char *key) {
    open_value(w, key, true);
}

void sbp_json_write_end(sbp_json_writer *w) {
    assert(w->depth > 0);
    (void)end_line(w, w->depth <= w->lines && w->filled & bit(w), w->depth - 1);
    sbp_text_add_n(w->out, in_array(w) ? "]" : "}", 1);
    w->depth--;
}

void sbp_json_write_line(sbp_json_writer *w) {
    w->broken = true;
}

void sbp_json_write_string(sbp_json_writer *w, const char *key, const char *value) {
    if (value)
        sbp_json_write_bytes(w, key, value, strlen(value));
    else
        sbp_json_write_null(w, key);
}

void sbp_json_write_bytes(sbp_json_writer *w, const char *key, const char *bytes, size_t length) {
    begin_value(w, key);
    sbp_json_add_string(w->out, bytes, length);
}

void sbp_json_write_int(sbp_json_writer *w, const char *key, int64_t value) {
    begin_value(w, key);
    sbp_text_add(w->out, "%lld", (long long)value);
}

void sbp_json_write_double(sbp_json_writer *w, const char *key, double value) {
    if (!isfinite(value)) {
        sbp_json_write_null(w, key);
        return;
    }
    begin_value(w, key);
    sbp_text_add_double(w->out, value);
}

void sbp_json_write_ids(sbp_json_writer *w, const char *key, const int32_t *ids, int64_t count) {
    sbp_json_write_array(w, key);
    for (int64_t i = 0; i < count; i++)
        sbp_json_write_int(w, NULL, ids[i]);
    sbp_json_write_end(w);
}

void sbp_json_write_doubles(sbp_json_writer *w, const char *key, const double *values, int64_t count) {
    sbp_json_write_array(w, key);
    for (int64_t i = 0; i < count; i++)
        sbp_json_write_double(w, NULL, values[i]);
    sbp_json_write_end(w);
}

void sbp_json_write_hash(sbp_json_writer *w, const char *key, uint64_t value) {
    begin_value(w, key);
    sbp_text_add(w->out, "\"%016llx\"", (unsigned long long)value);
}

void sbp_json_write_bool(sbp_json_writer *w, const char *key, bool value) {
    sbp_json_write_raw(w, key, value ? "true" : "false");
}

void sbp_json_write_null(sbp_json_writer *w, const char *key) {
    sbp_json_write_raw(w, key, "null");
}

void sbp_json_write_value(sbp_json_writer *w, const char *key, const sbp_json *value) {
    if (!value) {
        sbp_json_write_null(w, key);
        return;
    }
    begin_value(w, key);
    sbp_json_add_value(w->out, value);
}

void sbp_json_write_raw(sbp_json_writer *w, const char *key, const char *text) {
    begin_value(w, key);
    sbp_text_add_n(w->out, text, strlen(text));
}

void sbp_json_write_fixed(sbp_json_writer *w, const char *key, double value, int digits) {
    if (!isfinite(value)) {
        sbp_json_write_null(w, key);
        return;
    }
    begin_value(w, key);
    sbp_text_add(w->out, "%.*f", digits, value);
}
