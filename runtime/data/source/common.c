/* common.c: what formats share: bytes of files, bytes that grow, nodes of trees. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/data/source/source_internal.h"

bool sbp_bytes_reserve(sbp_bytes *bytes, size_t capacity) {
    if (capacity <= bytes->capacity && bytes->data)
        return true;
    size_t wanted = bytes->capacity + bytes->capacity / 2;
    wanted = wanted < capacity ? capacity : wanted;
    wanted = wanted < 256 ? 256 : wanted;
    char *larger = sbp_realloc(bytes->data, wanted);
    if (!larger)
        return false;
    bytes->data = larger;
    bytes->capacity = wanted;
    return true;
}

bool sbp_bytes_add(sbp_bytes *bytes, const char *data, size_t length) {
    if (!sbp_bytes_reserve(bytes, bytes->length + length))
        return false;
    if (length)
        memcpy(bytes->data + bytes->length, data, length);
    bytes->length += length;
    return true;
}

/* ---- bounds ------------------------------------------------------------------------------------------ */

/* A token costs a file at least some bits, where rows differ at all; compressed text becomes ten times what
 * it was, repeated text a thousand times. A million equal items in a small file are read as well. */
static const int64_t least_held = (int64_t)1 << 27, most_held = (int64_t)1 << 32;
static const size_t most_packed_row = (size_t)1 << 28;
enum { HELD_PER_BYTE = 1 << 10, MADE_PER_BYTE = 1 << 16 };

static int64_t most_held_of(const sbp_source *s) {
    int64_t room = (most_held - least_held) / HELD_PER_BYTE;
    return s->size < room ? least_held + s->size * HELD_PER_BYTE : most_held;
}

int64_t sbp_source_most_made(const sbp_source *s) {
    int64_t room = (INT64_MAX - least_held) / MADE_PER_BYTE;
    return s->size < room ? least_held + s->size * MADE_PER_BYTE : INT64_MAX;
}

static sbp_status too_large(const sbp_source *s, sbp_diag *diag, const char *what, int64_t most) {
    char is[32], may[32];
    sbp_format_bytes(is, sizeof is, (double)s->size);
    sbp_format_bytes(may, sizeof may, (double)most);
    return sbp_fail(diag, SBP_INPUT,
                    "'%s' (%s): row %lld: %s more than %s, more than %s of file may stand for; as JSON lines "
                    "it is read whatever it is",
                    s->path, s->format->name, (long long)s->rows + 1, what, may, is);
}

sbp_status sbp_source_hold(sbp_source *s, sbp_diag *diag, int64_t bytes) {
    int64_t most = most_held_of(s);
    if (bytes > 0 && bytes > most - s->held)
        return too_large(s, diag, "its pages and buffers take", most);
    s->held += bytes;
    return SBP_OK;
}

sbp_status sbp_source_add_text(sbp_source *s, sbp_diag *diag, int64_t line, sbp_bytes *row, const char *data,
                               size_t length) {
    char may[32];
    if (s->stream->compression != SBP_PLAIN && length > most_packed_row - row->length)
        return sbp_fail(
            diag, SBP_INPUT,
            "%s:%lld: a row of more than %s in a compressed file; it is read from one that is not "
            "compressed",
            s->path, (long long)line, sbp_format_bytes(may, sizeof may, (double)most_packed_row));
    if (!sbp_bytes_add(row, data, length))
        return sbp_fail(diag, SBP_MACHINE, "%s:%lld: out of memory for a row", s->path, (long long)line);
    return SBP_OK;
}

sbp_row_budget sbp_row_budget_begin(sbp_source *source, sbp_arena *arena) {
    return (sbp_row_budget){.source = source, .arena = arena, .before = sbp_arena_bytes(arena)};
}

sbp_status sbp_row_budget_take(sbp_row_budget *b, sbp_diag *diag, int64_t items, int64_t bytes) {
    int64_t row = most_held_of(b->source), file = sbp_source_most_made(b->source);
    int64_t more = items * (int64_t)sizeof(sbp_json) + bytes;
    int64_t taken = (int64_t)(sbp_arena_bytes(b->arena) - b->before);
    taken = taken < b->made ? b->made : taken;
    if (more > row - taken)
        return too_large(b->source, diag, "it takes", row);
    b->made += more;
    if (b->made > file - b->source->made)
        return too_large(b->source, diag, "the rows up to here take", file);
    return SBP_OK;
}

void sbp_row_budget_end(const sbp_row_budget *b) {
    b->source->made += b->made;
}

/* ---- trees ------------------------------------------------------------------------------------------- */

void sbp_growing_reserve(sbp_growing *g, int64_t count) {
    g->items = SBP_NEW_ARRAY(g->arena, sbp_json, count);
    g->capacity = (int32_t)count;
}

sbp_json *sbp_growing_add(sbp_growing *g, const sbp_json *parent, const char *key) {
    int32_t index = g->count;
    SBP_PUSH(g->arena, g->items, g->count, g->capacity,
             (sbp_json){.parent = parent, .key = key, .index = index});
    return &g->items[index];
}

void sbp_growing_drop(sbp_growing *g) {
    g->count--;
}

void sbp_growing_end(const sbp_growing *g, sbp_json_kind kind, sbp_json *out) {
    out->kind = kind;
    out->count = g->count;
    out->items = g->items;
    out->table = NULL;
}

void sbp_json_set_int(sbp_json *out, int64_t value) {
    out->kind = SBP_JSON_INT;
    out->integer = value;
}

void sbp_json_set_real(sbp_json *out, double value) {
    out->kind = isnan(value) ? SBP_JSON_NULL : SBP_JSON_REAL;
    out->real = value;
}

void sbp_json_set_bool(sbp_json *out, bool value) {
    out->kind = SBP_JSON_BOOL;
    out->boolean = value;
}

void sbp_json_set_text(sbp_arena *arena, sbp_json *out, const void *data, int64_t length) {
    char *copy = sbp_arena_alloc(arena, (size_t)length + 1);
    if (length)
        memcpy(copy, data, (size_t)length);
    out->kind = sbp_is_utf8(copy, length) ? SBP_JSON_STRING : SBP_JSON_BYTES;
    out->count = length;
    out->string = copy;
}

sbp_status sbp_source_pread(const sbp_source *s, sbp_diag *diag, void *out, int64_t offset, int64_t length) {
    if (offset < 0 || length < 0 || offset > s->size || length > s->size - offset)
        return sbp_source_damaged(s, diag, "it ends in the middle");
    return length > 0 ? sbp_file_pread(diag, s->fd, s->path, out, length, offset) : SBP_OK;
}

sbp_status sbp_source_damaged(const sbp_source *s, sbp_diag *diag, const char *format, ...) {
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return sbp_fail(diag, SBP_INPUT, "'%s' (%s) is damaged: %s", s->path, s->format->name, text);
}
