/* text.c: rows of JSON: one a line, or the elements of one array. The bytes of a row are found here, and
 * parsed by whoever asks for its tree. */
#include <stdlib.h>
#include <string.h>

#include "runtime/data/source/source_internal.h"

enum { KEPT_BYTES = 1 << 20 };

typedef struct text_state {
    sbp_bytes row; /* what spans more than one reading */
    int64_t line;  /* of the next byte, from 1 */
    bool begun, ended;
} text_state;

static sbp_status text_open(sbp_source *s, sbp_diag *diag) {
    (void)diag;
    text_state *t = SBP_NEW(s->arena, text_state);
    t->line = 1;
    s->state = t;
    sbp_stream *in = s->stream;
    if (in->length - in->at >= 3 && memcmp(in->data + in->at, "\xef\xbb\xbf", 3) == 0) /* byte order mark */
        in->at += 3;
    return SBP_OK;
}

static void text_close(sbp_source *s) {
    text_state *t = s->state;
    if (t)
        free(t->row.data);
}

/* ---- lines ------------------------------------------------------------------------------------------ */

static bool is_blank(const char *text, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (text[i] != ' ' && text[i] != '\t' && text[i] != '\r' && text[i] != '\n')
            return false;
    return true;
}

/* Up to the end of the line, without that; *there: there was one. */
static sbp_status take_line(sbp_source *s, sbp_diag *diag, const char **text, size_t *length, bool *there) {
    text_state *t = s->state;
    sbp_stream *in = s->stream;
    t->row.length = 0;
    *there = false;
    for (;;) {
        SBP_TRY(sbp_stream_fill(in, diag));
        size_t left = in->length - in->at;
        const char *begin = in->data + in->at, *end = left ? memchr(begin, '\n', left) : NULL;
        size_t take = end ? (size_t)(end - begin) : left;
        *there = *there || left > 0;
        in->at += take + (end != NULL);
        if (t->row.length == 0 && (end || left == 0)) { /* all of it lies in the buffer */
            *text = begin;
            *length = take;
            return SBP_OK;
        }
        SBP_TRY(sbp_source_add_text(s, diag, t->line, &t->row, begin, take));
        if (end || left == 0)
            break;
    }
    *text = t->row.data;
    *length = t->row.length;
    return SBP_OK;
}

static void put_row(const sbp_source *s, sbp_arena *arena, int64_t line, const char *text, size_t length,
                    sbp_record *out) {
    text_state *t = s->state;
    out->where = sbp_arena_printf(arena, "%s:%lld", s->path, (long long)line);
    out->text = sbp_arena_strndup(arena, text, length);
    out->length = length;
    if (t->row.capacity > KEPT_BYTES) { /* of one long row, which need not be there twice */
        free(t->row.data);
        t->row = (sbp_bytes){0};
    }
}

static sbp_status lines_next(sbp_source *s, sbp_arena *arena, sbp_diag *diag, sbp_record *out, bool *end) {
    text_state *t = s->state;
    const char *text = "";
    size_t length = 0;
    bool there;
    do {
        SBP_TRY(take_line(s, diag, &text, &length, &there));
        if (!there) {
            *end = true;
            return SBP_OK;
        }
        t->line++;
    } while (is_blank(text, length));
    while (length > 0 && text[length - 1] == '\r')
        length--;
    put_row(s, arena, t->line - 1, text, length, out);
    return SBP_OK;
}

const sbp_format sbp_format_lines = {
    .name = "JSON lines", .open = text_open, .next = lines_next, .close = text_close};

/* ---- one array -------------------------------------------------------------------------------------- */

/* The next byte without taking it; -1 at the end. */
static sbp_status peek(sbp_source *s, sbp_diag *diag, int *out) {
    SBP_TRY(sbp_stream_fill(s->stream, diag));
    *out = s->stream->at < s->stream->length ? (unsigned char)s->stream->data[s->stream->at] : -1;
    return SBP_OK;
}

static sbp_status skip_blanks(sbp_source *s, sbp_diag *diag, int *next) {
    text_state *t = s->state;
    for (;;) {
        SBP_TRY(peek(s, diag, next));
        if (*next != ' ' && *next != '\t' && *next != '\r' && *next != '\n')
            return SBP_OK;
        t->line += *next == '\n';
        s->stream->at++;
    }
}

static sbp_status fail_array(const sbp_source *s, sbp_diag *diag, const char *expected, int found) {
    const text_state *t = s->state;
    if (found < 0)
        return sbp_fail(diag, SBP_INPUT, "%s:%lld: expected %s, found the end of the file", s->path,
                        (long long)t->line, expected);
    return sbp_fail(diag, SBP_INPUT, "%s:%lld: expected %s, found '%c'", s->path, (long long)t->line,
                    expected, found >= ' ' && found < 127 ? found : '?');
}

/* Where in a value the scanner is. */
typedef struct scan {
    int64_t depth;
    bool quoted, escaped;
} scan;

/* Bytes of the buffer that belong to a list, an object or a string; *done: it ends there. Brackets are only
 * counted: whether they fit is for the parser to say. */
static size_t scan_value(scan *at, text_state *t, const char *data, size_t length, bool *done) {
    for (size_t i = 0; i < length; i++) {
        char c = data[i];
        t->line += c == '\n';
        if (at->quoted) {
            at->quoted = at->escaped || c != '"';
            at->escaped = !at->escaped && c == '\\';
        } else if (c == '"') {
            at->quoted = true;
        } else if (c == '{' || c == '[') {
            at->depth++;
        } else if (c == '}' || c == ']') {
            at->depth--;
        }
        if (!at->quoted && at->depth == 0) {
            *done = true;
            return i + 1;
        }
    }
    return length;
}

/* A value that is no list, object or string ends before what follows it. */
static size_t scan_word(const char *data, size_t length, bool *done) {
    for (size_t i = 0; i < length; i++)
        if (strchr(",]} \t\r\n", data[i])) {
            *done = true;
            return i;
        }
    return length;
}

static sbp_status take_value(sbp_source *s, sbp_diag *diag, int first) {
    text_state *t = s->state;
    sbp_stream *in = s->stream;
    scan at = {0};
    bool done = false, word = first != '{' && first != '[' && first != '"';
    t->row.length = 0;
    while (!done) {
        SBP_TRY(sbp_stream_fill(in, diag));
        size_t left = in->length - in->at;
        if (left == 0)
            return fail_array(s, diag, word ? "',' or ']'" : "the end of a row", -1);
        const char *begin = in->data + in->at;
        size_t take = word ? scan_word(begin, left, &done) : scan_value(&at, t, begin, left, &done);
        SBP_TRY(sbp_source_add_text(s, diag, t->line, &t->row, begin, take));
        in->at += take;
    }
    return SBP_OK;
}

static sbp_status array_next(sbp_source *s, sbp_arena *arena, sbp_diag *diag, sbp_record *out, bool *end) {
    text_state *t = s->state;
    int c;
    SBP_TRY(skip_blanks(s, diag, &c));
    if (!t->begun && c == '[') {
        s->stream->at++;
        SBP_TRY(skip_blanks(s, diag, &c));
    } else if (t->begun && !t->ended && c == ',') {
        s->stream->at++;
        SBP_TRY(skip_blanks(s, diag, &c));
        if (c == ']')
            return fail_array(s, diag, "a row", c);
    } else if (!t->ended && c != ']') {
        return fail_array(s, diag, "',' or ']'", c);
    }
    t->begun = true;
    if (c == ']' && !t->ended) {
        t->ended = true;
        s->stream->at++;
        SBP_TRY(skip_blanks(s, diag, &c));
    }
    if (t->ended) {
        *end = true;
        return c < 0 ? SBP_OK : fail_array(s, diag, "the end of the file behind the array", c);
    }
    if (c < 0 || c == ',')
        return fail_array(s, diag, "a row", c);
    int64_t line = t->line;
    SBP_TRY(take_value(s, diag, c));
    put_row(s, arena, line, t->row.data, t->row.length, out);
    return SBP_OK;
}

const sbp_format sbp_format_array = {
    .name = "a JSON array", .open = text_open, .next = array_next, .close = text_close};
