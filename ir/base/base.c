/* base.c: text, the name table and checked sizes. */
#include "ir/base/base.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- growable text -------------------------------------------------------------------------------- */

void sbp_text_init(sbp_text *text, sbp_arena *arena) {
    *text = (sbp_text){.arena = arena, .data = (char[]){""}};
    text->data = sbp_arena_alloc(arena, 1);
    text->capacity = 1;
}

static void text_reserve(sbp_text *text, size_t more) {
    if (text->length + more + 1 <= text->capacity)
        return;
    size_t capacity = (text->length + more + 1) * 2;
    char *data = sbp_arena_alloc(text->arena, capacity);
    memcpy(data, text->data, text->length + 1);
    text->data = data;
    text->capacity = capacity;
}

void sbp_text_add_n(sbp_text *text, const char *bytes, size_t length) {
    text_reserve(text, length);
    memcpy(text->data + text->length, bytes, length);
    text->length += length;
    text->data[text->length] = 0;
}

void sbp_text_add(sbp_text *text, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (length > 0) {
        text_reserve(text, (size_t)length);
        vsnprintf(text->data + text->length, (size_t)length + 1, format, again);
        text->length += (size_t)length;
    }
    va_end(again);
}

/* Where a line of `room` characters may end: the last blank, else behind the last '+' or ','; NULL: nowhere.
 */
static const char *line_end(const char *p, const char *end, size_t room) {
    const char *joint = NULL;
    size_t begin = strspn(p, " ");
    for (const char *q = p + room; q > p + begin; q--)
        if (*q == ' ')
            return q;
        else if (!joint && (q[-1] == '+' || q[-1] == ',') && q < end)
            joint = q;
    return joint;
}

void sbp_text_add_escaped(sbp_text *out, const char *text) {
    static const struct {
        char character;
        const char *entity;
    } entities[] = {{'<', "&lt;"}, {'>', "&gt;"}, {'&', "&amp;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
    for (; *text; text++) {
        const char *entity = NULL;
        for (int i = 0; i < SBP_COUNT(entities); i++)
            if (entities[i].character == *text)
                entity = entities[i].entity;
        if (entity)
            sbp_text_add(out, "%s", entity);
        else
            sbp_text_add_n(out, (unsigned char)*text < ' ' ? " " : text, 1);
    }
}

void sbp_text_add_wrapped(sbp_text *out, const char *text, int width, int indent) {
    for (const char *p = text; *p;) {
        size_t length = strcspn(p, "\n"), room = (size_t)width;
        const char *end = p + length;
        while ((size_t)(end - p) > room) {
            const char *stop = line_end(p, end, room);
            if (!stop)
                break;
            sbp_text_add(out, "%.*s\n%*s", (int)(stop - p), p, indent, "");
            p = stop + (*stop == ' ');
            room = (size_t)(width - indent);
        }
        sbp_text_add_n(out, p, (size_t)(end - p));
        p = end;
        if (*p) {
            sbp_text_add_n(out, p, 1);
            p++;
        }
    }
}

void sbp_format_double(char *out, size_t out_size, double value) {
    if (isnan(value)) {
        snprintf(out, out_size, "nan");
        return;
    }
    if (isinf(value)) {
        snprintf(out, out_size, value < 0 ? "-inf" : "inf");
        return;
    }
    if (fabs(value) < 1e15 && value == (double)(int64_t)value) { /* 20, not 2e+01 */
        snprintf(out, out_size, signbit(value) && value == 0 ? "-0" : "%lld", (long long)value);
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(out, out_size, "%.*g", digits, value);
        if (strtod(out, NULL) == value)
            return;
    }
}

void sbp_text_add_double(sbp_text *text, double value) {
    char number[40];
    sbp_format_double(number, sizeof number, value);
    sbp_text_add(text, "%s", number);
}

void sbp_text_add_quoted(sbp_text *text, const char *bytes) {
    sbp_text_add_n(text, "\"", 1);
    for (const unsigned char *c = (const unsigned char *)bytes; *c; c++) {
        if (*c == '"' || *c == '\\')
            sbp_text_add(text, "\\%c", *c);
        else if (*c == '\n')
            sbp_text_add(text, "\\n");
        else if (*c == '\t')
            sbp_text_add(text, "\\t");
        else if (*c < 0x20 || *c == 0x7f)
            sbp_text_add(text, "\\x%02x", *c);
        else
            sbp_text_add_n(text, (const char *)c, 1);
    }
    sbp_text_add_n(text, "\"", 1);
}

const char *sbp_format_bytes(char *out, size_t out_size, double bytes) {
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    int u = 0;
    double value = bytes;
    while (fabs(value) >= 1024 && u < SBP_COUNT(unit) - 1) {
        value /= 1024;
        u++;
    }
    snprintf(out, out_size, u == 0 ? "%.0f %s" : "%.2f %s", value, unit[u]);
    return out;
}

const char *sbp_format_three(char *out, size_t out_size, double number) {
    char text[40];
    snprintf(text, sizeof text, "%.3g", number);
    if (strchr(text, 'e'))
        snprintf(text, sizeof text, fabs(number) < 1 ? "%.9f" : "%.0f", strtod(text, NULL));
    snprintf(out, out_size, "%s", text);
    return out;
}

typedef struct unit {
    const char *name;
    double one, from; /* its size, and the least that is written in it */
} unit;

/* units: from the smallest, which also takes what is smaller. */
static const char *format_in(char *out, size_t out_size, double value, const unit *units, int count) {
    int u = count - 1;
    char number[40];
    while (u > 0 && fabs(value) < units[u].from)
        u--;
    snprintf(out, out_size, "%s %s", sbp_format_three(number, sizeof number, value / units[u].one),
             units[u].name);
    return out;
}

const char *sbp_format_seconds(char *out, size_t out_size, double seconds) {
    static const unit units[] = {{"us", 1e-6, 0},  {"ms", 1e-3, 1e-3}, {"s", 1, 0.1},
                                 {"min", 60, 120}, {"h", 3600, 7200},  {"days", 86400, 172800}};
    return format_in(out, out_size, seconds, units, SBP_COUNT(units));
}

const char *sbp_format_flops(char *out, size_t out_size, double flops) {
    static const unit units[] = {{"FLOP", 1, 0},        {"kFLOP", 1e3, 1e3},   {"MFLOP", 1e6, 1e6},
                                 {"GFLOP", 1e9, 1e9},   {"TFLOP", 1e12, 1e12}, {"PFLOP", 1e15, 1e15},
                                 {"EFLOP", 1e18, 1e18}, {"ZFLOP", 1e21, 1e21}};
    return format_in(out, out_size, flops, units, SBP_COUNT(units));
}

/* ---- name table ----------------------------------------------------------------------------------- */

uint64_t sbp_hash_bytes(const void *data, size_t length, uint64_t seed) {
    return XXH64(data, length, seed);
}

void sbp_map_init(sbp_map *map, sbp_arena *arena) {
    *map = (sbp_map){.arena = arena};
}

void sbp_map_copy(sbp_map *map, sbp_arena *arena, const sbp_map *from) {
    *map = (sbp_map){.arena = arena, .count = from->count, .capacity = from->capacity};
    if (from->capacity == 0)
        return;
    map->keys = SBP_NEW_ARRAY(arena, const char *, from->capacity);
    map->values = SBP_NEW_ARRAY(arena, int32_t, from->capacity);
    memcpy(map->keys, from->keys, (size_t)from->capacity * sizeof *map->keys);
    memcpy(map->values, from->values, (size_t)from->capacity * sizeof *map->values);
}

/* The slot that holds key, or the empty one where it would go. capacity is a power of two. */
static int32_t map_slot(const sbp_map *map, const char *key) {
    uint32_t mask = (uint32_t)map->capacity - 1;
    uint32_t at = (uint32_t)sbp_hash_bytes(key, strlen(key), 0) & mask;
    while (map->keys[at] && strcmp(map->keys[at], key) != 0)
        at = (at + 1) & mask;
    return (int32_t)at;
}

int32_t sbp_map_get(const sbp_map *map, const char *key) {
    if (map->capacity == 0)
        return -1;
    int32_t at = map_slot(map, key);
    return map->keys[at] ? map->values[at] : -1;
}

void sbp_map_set(sbp_map *map, const char *key, int32_t value) {
    if (map->count * 2 >= map->capacity) {
        sbp_map larger = {.arena = map->arena, .capacity = map->capacity ? map->capacity * 2 : 16};
        larger.keys = SBP_NEW_ARRAY(map->arena, const char *, larger.capacity);
        larger.values = SBP_NEW_ARRAY(map->arena, int32_t, larger.capacity);
        for (int32_t i = 0; i < map->capacity; i++)
            if (map->keys[i]) {
                int32_t at = map_slot(&larger, map->keys[i]);
                larger.keys[at] = map->keys[i];
                larger.values[at] = map->values[i];
            }
        larger.count = map->count;
        *map = larger;
    }
    int32_t at = map_slot(map, key);
    if (!map->keys[at]) {
        map->keys[at] = key;
        map->count++;
    }
    map->values[at] = value;
}

/* ---- checked sizes -------------------------------------------------------------------------------- */

bool sbp_add_i64(int64_t a, int64_t b, int64_t *out) {
    int64_t sum;
    if (__builtin_add_overflow(a, b, &sum))
        return false;
    *out = sum;
    return true;
}

bool sbp_mul_i64(int64_t a, int64_t b, int64_t *out) {
    int64_t product;
    if (__builtin_mul_overflow(a, b, &product))
        return false;
    *out = product;
    return true;
}

int64_t sbp_ceil_div(int64_t a, int64_t b) {
    return a / b + (a % b != 0);
}

int64_t sbp_round_up(int64_t value, int64_t multiple) {
    return sbp_ceil_div(value, multiple) * multiple;
}

sbp_status sbp_parse_bytes(sbp_diag *diag, const char *text, int64_t *out) {
    char *end;
    double number = strtod(text, &end);
    while (*end == ' ')
        end++;
    static const struct {
        const char *unit;
        double factor;
    } units[] = {{"", 1},
                 {"b", 1},
                 {"k", 1024},
                 {"m", 1048576.0},
                 {"g", 1073741824},
                 {"t", 1024.0 * 1073741824},
                 {"kb", 1e3},
                 {"mb", 1e6},
                 {"gb", 1e9},
                 {"tb", 1e12},
                 {"kib", 1024},
                 {"mib", 1048576},
                 {"gib", 1073741824},
                 {"tib", 1024.0 * 1073741824}};
    for (int i = 0; i < SBP_COUNT(units); i++) {
        const char *a = end, *b = units[i].unit;
        while (*a && *b && tolower((unsigned char)*a) == *b) {
            a++;
            b++;
        }
        if (*a || *b)
            continue;
        double bytes = number * units[i].factor;
        if (end == text || !(bytes >= 0) || bytes > 9e18)
            break;
        *out = (int64_t)bytes;
        return SBP_OK;
    }
    return sbp_fail(diag, SBP_USAGE, "'%s' is not a size; write for example 80GiB, 24GB or 512m", text);
}
