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

/* No surrogates, nothing longer than needed, nothing above U+10FFFF. */
bool sbp_is_utf8(const char *text, int64_t length) {
    const unsigned char *t = (const unsigned char *)text;
    for (int64_t i = 0; i < length;) {
        if (t[i] < 0x80) {
            i++;
            continue;
        }
        int more = t[i] >= 0xc2 && t[i] <= 0xdf   ? 1
                   : (t[i] & 0xf0) == 0xe0        ? 2
                   : t[i] >= 0xf0 && t[i] <= 0xf4 ? 3
                                                  : 0;
        if (more == 0 || length - i <= more)
            return false;
        for (int k = 1; k <= more; k++)
            if ((t[i + k] & 0xc0) != 0x80)
                return false;
        if ((t[i] == 0xe0 && t[i + 1] < 0xa0) || (t[i] == 0xed && t[i + 1] > 0x9f) ||
            (t[i] == 0xf0 && t[i + 1] < 0x90) || (t[i] == 0xf4 && t[i + 1] > 0x8f))
            return false;
        i += more + 1;
    }
    return true;
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
