/* csv.c: RFC 4180: records of fields, quoted where they have the delimiter, quotes (doubled) or ends of lines
 * in them; the first record names the columns. The delimiter is a comma, a tab or a semicolon, whichever the
 * first record has most of. All values are strings; an empty field is the empty string. */
#include <stdlib.h>
#include <string.h>

#include "runtime/data/source/source_internal.h"

enum { MOST_COLUMNS = 10000 };

typedef struct csv_state {
    sbp_bytes bytes; /* of the record at hand, its fields one after the other */
    size_t *ends;    /* [field_count]: where they end there */
    int32_t field_count, field_capacity;
    bool quoted;  /* the record at hand has a field in quotes, which may be empty */
    int64_t line; /* of the next byte */
    char delimiter;
    const char **names; /* [column_count] */
    int32_t column_count;
} csv_state;

static sbp_status next_byte(sbp_source *s, sbp_diag *diag, int *out) {
    sbp_stream *in = s->stream;
    if (in->at == in->length)
        SBP_TRY(sbp_stream_fill(in, diag));
    *out = in->at < in->length ? (unsigned char)in->data[in->at++] : -1;
    return SBP_OK;
}

static sbp_status out_of_memory(const sbp_source *s, sbp_diag *diag) {
    const csv_state *c = s->state;
    return sbp_fail(diag, SBP_MACHINE, "%s:%lld: out of memory for a row", s->path, (long long)c->line);
}

static sbp_status end_field(sbp_source *s, sbp_diag *diag) {
    csv_state *c = s->state;
    if (c->field_count >= MOST_COLUMNS)
        return sbp_fail(diag, SBP_INPUT, "%s:%lld: more than %d fields", s->path, (long long)c->line,
                        MOST_COLUMNS);
    if (c->field_count == c->field_capacity) {
        int32_t capacity = c->field_capacity ? c->field_capacity * 2 : 16;
        size_t *larger = sbp_realloc(c->ends, (size_t)capacity * sizeof *larger);
        if (!larger)
            return out_of_memory(s, diag);
        c->ends = larger;
        c->field_capacity = capacity;
    }
    c->ends[c->field_count++] = c->bytes.length;
    return SBP_OK;
}

/* As many bytes as are plain in the buffer. */
static sbp_status add_plain(sbp_source *s, sbp_diag *diag, bool quoted) {
    csv_state *c = s->state;
    sbp_stream *in = s->stream;
    size_t from = in->at, to = from;
    while (to < in->length &&
           (quoted ? in->data[to] != '"' && in->data[to] != '\n'
                   : in->data[to] != c->delimiter && in->data[to] != '\n' && in->data[to] != '\r'))
        to++;
    in->at = to;
    return sbp_source_add_text(s, diag, c->line, &c->bytes, in->data + from, to - from);
}

/* A field behind its first quote, up to what follows the last one: *next. */
static sbp_status quoted_field(sbp_source *s, sbp_diag *diag, int *next) {
    csv_state *c = s->state;
    int64_t line = c->line;
    for (;;) {
        SBP_TRY(add_plain(s, diag, true));
        SBP_TRY(next_byte(s, diag, next));
        if (*next < 0)
            return sbp_fail(diag, SBP_INPUT, "%s:%lld: a quoted field has no end", s->path, (long long)line);
        if (*next == '"') {
            SBP_TRY(next_byte(s, diag, next));
            if (*next != '"')
                return SBP_OK;
        }
        c->line += *next == '\n';
        char byte = (char)*next;
        SBP_TRY(sbp_source_add_text(s, diag, c->line, &c->bytes, &byte, 1));
    }
}

/* A field and what ends it: the delimiter, '\n', or -1. */
static sbp_status take_field(sbp_source *s, sbp_diag *diag, int *next) {
    csv_state *c = s->state;
    SBP_TRY(next_byte(s, diag, next));
    if (*next == '"') {
        c->quoted = true;
        SBP_TRY(quoted_field(s, diag, next));
    }
    while (*next >= 0 && *next != c->delimiter && *next != '\n') {
        char byte = (char)*next;
        if (byte == '\r') { /* ends a line alone, or before '\n' */
            int after;
            SBP_TRY(sbp_stream_fill(s->stream, diag));
            after = s->stream->at < s->stream->length ? s->stream->data[s->stream->at] : -1;
            s->stream->at += after == '\n';
            *next = '\n';
            break;
        }
        SBP_TRY(sbp_source_add_text(s, diag, c->line, &c->bytes, &byte, 1));
        SBP_TRY(add_plain(s, diag, false));
        SBP_TRY(next_byte(s, diag, next));
    }
    return end_field(s, diag);
}

/* A record, and the line on which it begins; *there: there was one. Lines without anything are no records. */
static sbp_status take_record(sbp_source *s, sbp_diag *diag, int64_t *line, bool *there) {
    csv_state *c = s->state;
    int next;
    do {
        c->bytes.length = 0;
        c->field_count = 0;
        c->quoted = false;
        *line = c->line;
        do
            SBP_TRY(take_field(s, diag, &next));
        while (next >= 0 && next != '\n');
        c->line += next == '\n';
        *there = c->field_count > 1 || c->bytes.length > 0 || c->quoted;
    } while (!*there && next >= 0);
    return SBP_OK;
}

/* ---- opening ---------------------------------------------------------------------------------------- */

static char find_delimiter(const char *text, size_t length) {
    static const char delimiters[] = ",\t;";
    int counts[3] = {0}, best = 0;
    bool quoted = false;
    for (size_t i = 0; i < length && (quoted || (text[i] != '\n' && text[i] != '\r')); i++) {
        quoted ^= text[i] == '"';
        for (int d = 0; d < 3 && !quoted; d++)
            counts[d] += text[i] == delimiters[d];
    }
    for (int d = 1; d < 3; d++)
        if (counts[d] > counts[best])
            best = d;
    return delimiters[best];
}

/* Field i of the record at hand, whose bytes are none where all of its fields are empty. */
static const char *field_at(const csv_state *c, int32_t i, size_t *length) {
    size_t from = i ? c->ends[i - 1] : 0;
    *length = c->ends[i] - from;
    return *length > 0 ? c->bytes.data + from : "";
}

static sbp_status csv_open(sbp_source *s, sbp_diag *diag) {
    csv_state *c = SBP_NEW(s->arena, csv_state);
    sbp_stream *in = s->stream;
    int64_t line;
    bool there;
    s->state = c;
    c->line = 1;
    if (in->length >= 3 && memcmp(in->data, "\xef\xbb\xbf", 3) == 0)
        in->at += 3;
    c->delimiter = find_delimiter(in->data + in->at, in->length - in->at);
    SBP_TRY(take_record(s, diag, &line, &there));
    c->names = SBP_NEW_ARRAY(s->arena, const char *, c->field_count);
    c->column_count = c->field_count;
    for (int32_t i = 0; i < c->field_count; i++) {
        size_t length;
        const char *name = field_at(c, i, &length);
        c->names[i] = sbp_arena_strndup(s->arena, name, length);
        if (!sbp_is_utf8(name, (int64_t)length))
            return sbp_fail(diag, SBP_INPUT, "%s:%lld: the name of column %d is not UTF-8", s->path,
                            (long long)line, i + 1);
        for (int32_t k = 0; k < i; k++)
            if (c->names[i][0] && strcmp(c->names[i], c->names[k]) == 0)
                return sbp_fail(diag, SBP_INPUT, "%s:%lld: two columns are called '%.60s'", s->path,
                                (long long)line, c->names[i]);
    }
    return SBP_OK;
}

static sbp_status csv_next(sbp_source *s, sbp_arena *arena, sbp_diag *diag, sbp_record *out, bool *end) {
    csv_state *c = s->state;
    int64_t line;
    bool there;
    SBP_TRY(take_record(s, diag, &line, &there));
    *end = !there;
    if (!there)
        return SBP_OK;
    out->where = sbp_arena_printf(arena, "%s:%lld", s->path, (long long)line);
    if (c->field_count != c->column_count) {
        out->error = sbp_arena_printf(
            arena, "%d field%s, the first line names %d column%s (the file is read as CSV)", c->field_count,
            c->field_count == 1 ? "" : "s", c->column_count, c->column_count == 1 ? "" : "s");
        return SBP_OK;
    }
    sbp_json *root = SBP_NEW(arena, sbp_json);
    sbp_growing row = {.arena = arena};
    root->key = out->where;
    for (int32_t i = 0; i < c->field_count; i++) {
        size_t length;
        const char *text = field_at(c, i, &length);
        if (c->names[i][0]) /* data frames write their index into a column without a name */
            sbp_json_set_text(arena, sbp_growing_add(&row, root, c->names[i]), text, (int64_t)length);
    }
    sbp_growing_end(&row, SBP_JSON_OBJECT, root);
    out->tree = root;
    out->strings = true;
    return SBP_OK;
}

static void csv_close(sbp_source *s) {
    csv_state *c = s->state;
    if (c) {
        free(c->bytes.data);
        free(c->ends);
    }
}

const sbp_format sbp_format_csv = {.name = "CSV", .open = csv_open, .next = csv_next, .close = csv_close};
