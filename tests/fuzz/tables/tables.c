/* tables.c: schemas, values, and the formats of text. */
#include "tests/fuzz/tables/tables.h"

#include <lz4.h>
#include <lz4frame.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

/* ---- choices ---------------------------------------------------------------------------------------- */

drawing drawing_begin(sbp_arena *arena, const uint8_t *data, size_t size) {
    return (drawing){.arena = arena, .data = data, .size = size, .state = sbp_hash_bytes(data, size, 0)};
}

uint64_t draw_bits(drawing *d) {
    uint64_t z = d->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint32_t draw(drawing *d, uint32_t below) {
    if (d->at == d->size)
        return (uint32_t)(draw_bits(d) % below);
    uint32_t value = d->data[d->at++];
    if (below > 256 && d->at < d->size)
        value = value << 8 | d->data[d->at++];
    return value % below;
}

/* ---- schemas ---------------------------------------------------------------------------------------- */

enum { MOST_COLUMNS = 5, MOST_DEPTH = 4, MOST_ITEMS = 6, MOST_ROWS = 40 };

static void draw_column(drawing *d, table_format format, int depth, column *c);

static void draw_children(drawing *d, table_format format, int depth, column *c, int count) {
    c->children = SBP_NEW_ARRAY(d->arena, column, count);
    c->child_count = count;
    for (int i = 0; i < count; i++) {
        draw_column(d, format, depth + 1, &c->children[i]);
        c->children[i].name = sbp_arena_printf(d->arena, "m%d", i);
    }
}

static void draw_numbers(drawing *d, table_format format, column *c) {
    static const int bits[] = {8, 16, 32, 64};
    c->bits = bits[draw(d, 4)];
    c->is_unsigned = draw(d, 3) == 0;
    if (format == TABLE_PARQUET && c->bits < 32)
        c->bits = 32;
    if (c->kind == COLUMN_REAL && c->bits == 8)
        c->bits = 64;
    if (format != TABLE_PARQUET && format != TABLE_ARROW)
        c->bits = 64;
}

static void draw_list(drawing *d, table_format format, int depth, column *c) {
    draw_children(d, format, depth, c, 1);
    c->shape = (int)draw(d, format == TABLE_ARROW ? 4 : 3);
    c->fixed_count = (int)draw(d, 4);
    if (format != TABLE_PARQUET || c->shape == PARQUET_LIST)
        return;
    c->optional &= c->shape == PARQUET_TWO_LEVELS;
    c->children->optional = false;
    if (c->children->kind == COLUMN_NULLS)
        *c->children = (column){.kind = COLUMN_INT, .bits = 32, .name = "m0"};
    if (c->children->kind == COLUMN_LIST || c->children->kind == COLUMN_MAP) /* which is repeated itself */
        c->shape = PARQUET_LIST;
}

static void draw_column(drawing *d, table_format format, int depth, column *c) {
    static const uint8_t kinds[] = {COLUMN_TEXT, COLUMN_INT,  COLUMN_REAL,   COLUMN_BOOL, COLUMN_NULLS,
                                    COLUMN_LIST, COLUMN_LIST, COLUMN_STRUCT, COLUMN_MAP};
    *c = (column){.name = "", .kind = kinds[draw(d, depth < MOST_DEPTH ? 9 : 5)], .optional = draw(d, 3) > 0};
    switch (c->kind) {
    case COLUMN_INT:
    case COLUMN_REAL:
        draw_numbers(d, format, c);
        break;
    case COLUMN_TEXT:
        c->shape = (int)draw(d, 3);
        break;
    case COLUMN_NULLS:
        c->optional = true;
        break;
    case COLUMN_LIST:
        draw_list(d, format, depth, c);
        break;
    case COLUMN_STRUCT:
        draw_children(d, format, depth, c, 1 + (int)draw(d, 3));
        break;
    case COLUMN_MAP:
        draw_children(d, format, depth, c, 2);
        c->children[0] = (column){.kind = COLUMN_TEXT, .name = "key"};
        c->children[1].name = "value";
        break;
    default:
        break;
    }
    c->dictionary = format == TABLE_ARROW && depth == 1 && draw(d, 4) == 0;
}

/* ---- values ----------------------------------------------------------------------------------------- */

static void draw_text(drawing *d, sbp_json *out) {
    static const char *const pieces[] = {"a",        "word ",           ",",  "\"", "\n", "\r\n",
                                         "\xc3\xa9", "\xe6\x97\xa5",    "\t", "{",  "\\", "\x01",
                                         "0",        "\xf0\x9f\x98\x80"};
    sbp_text text;
    sbp_text_init(&text, d->arena);
    uint32_t count = draw(d, 8), repeat = draw(d, 24) == 0 ? 1 + draw(d, 3000) : 1;
    for (uint32_t i = 0; i < count; i++) {
        const char *piece = pieces[draw(d, SBP_COUNT(pieces))];
        for (uint32_t k = 0; k < repeat; k++)
            sbp_text_add(&text, "%s", piece);
    }
    out->kind = SBP_JSON_STRING;
    out->string = text.data;
    out->count = (int64_t)text.length;
}

static int64_t draw_int(drawing *d, const column *c) {
    int unused = 64 - c->bits;
    uint64_t value = draw(d, 3) ? draw(d, 8) : draw_bits(d) >> draw(d, 64);
    if (c->is_unsigned) /* beyond int64 a number is read as a real one */
        return (int64_t)(value << unused >> unused & INT64_MAX);
    return (int64_t)((draw(d, 2) ? value : 0 - value) << unused) >> unused;
}

/* A number that its type has, and whose double is the same. */
static double draw_real(drawing *d, const column *c) {
    static const double odd[] = {0, 65504, -0.5, 1.0 / 1024, 0x1p-14, 0x1p-24};
    if (draw(d, 3) == 0)
        return odd[draw(d, SBP_COUNT(odd))];
    int64_t whole = (int64_t)(draw_bits(d) >> (c->bits == 16 ? 54 : c->bits == 32 ? 40 : 12));
    return (draw(d, 2) ? 1 : -1) * (double)whole / 8;
}

static void draw_value(drawing *d, const column *c, sbp_json *out);

static void draw_items(drawing *d, const column *c, int count, sbp_json *out) {
    sbp_json *items = SBP_NEW_ARRAY(d->arena, sbp_json, count);
    out->kind = SBP_JSON_ARRAY;
    out->count = count;
    out->items = items;
    for (int i = 0; i < count; i++)
        draw_value(d, c->children, &items[i]);
}

static void draw_members(drawing *d, const column *c, sbp_json *out) {
    int count = c->kind == COLUMN_MAP ? (int)draw(d, MOST_ITEMS) : c->child_count;
    sbp_json *items = SBP_NEW_ARRAY(d->arena, sbp_json, count);
    out->kind = SBP_JSON_OBJECT;
    out->count = count;
    out->items = items;
    for (int i = 0; i < count; i++) {
        draw_value(d, c->kind == COLUMN_MAP ? &c->children[1] : &c->children[i], &items[i]);
        items[i].key = c->kind == COLUMN_MAP ? sbp_arena_printf(d->arena, "k%u\xc3\xa9%d", draw(d, 3), i)
                                             : c->children[i].name;
    }
}

static void draw_value(drawing *d, const column *c, sbp_json *out) {
    *out = (sbp_json){0};
    if (c->kind == COLUMN_NULLS || (c->optional && draw(d, 4) == 0))
        return;
    switch (c->kind) {
    case COLUMN_BOOL:
        out->kind = SBP_JSON_BOOL;
        out->boolean = draw(d, 2);
        break;
    case COLUMN_INT:
        out->kind = SBP_JSON_INT;
        out->integer = draw_int(d, c);
        break;
    case COLUMN_REAL:
        out->kind = SBP_JSON_REAL;
        out->real = draw_real(d, c);
        break;
    case COLUMN_TEXT:
        draw_text(d, out);
        break;
    case COLUMN_LIST:
        draw_items(d, c, c->shape == ARROW_FIXED ? c->fixed_count : (int)draw(d, MOST_ITEMS), out);
        break;
    default:
        draw_members(d, c, out);
    }
}

/* Where few texts are drawn often, columns have dictionaries and long runs. */
static void repeat_rows(drawing *d, table *t) {
    for (int i = 1; i < t->row_count; i++)
        if (draw(d, 3) == 0)
            t->rows[i] = t->rows[i - 1];
}

static void draw_flat(drawing *d, column *root, int count) {
    root->children = SBP_NEW_ARRAY(d->arena, column, count);
    root->child_count = count;
    for (int i = 0; i < count; i++)
        root->children[i] = (column){.kind = COLUMN_TEXT, .name = sbp_arena_printf(d->arena, "m%d", i)};
}

void table_draw(drawing *d, table_format format, table *out) {
    *out = (table){.format = format, .root = {.kind = COLUMN_STRUCT, .name = ""}};
    int columns = 1 + (int)draw(d, MOST_COLUMNS);
    if (format == TABLE_CSV)
        draw_flat(d, &out->root, columns);
    else
        draw_children(d, format, 0, &out->root, columns);
    out->row_count = (int)draw(d, MOST_ROWS);
    out->rows = SBP_NEW_ARRAY(d->arena, const sbp_json *, out->row_count);
    for (int i = 0; i < out->row_count; i++) {
        sbp_json *row = SBP_NEW(d->arena, sbp_json);
        draw_value(d, &out->root, row);
        out->rows[i] = row;
    }
    repeat_rows(d, out);
}

/* ---- what is read ----------------------------------------------------------------------------------- */

static void add_expected(sbp_text *out, const sbp_json *value) {
    if (value->kind != SBP_JSON_ARRAY && value->kind != SBP_JSON_OBJECT) {
        sbp_json_add_value(out, value);
        return;
    }
    bool object = value->kind == SBP_JSON_OBJECT, any = false;
    sbp_text_add(out, object ? "{" : "[");
    for (int64_t i = 0; i < value->count; i++) {
        const sbp_json *item = &value->items[i];
        if (object && item->kind == SBP_JSON_NULL)
            continue;
        sbp_text_add(out, any ? "," : "");
        any = true;
        if (object) {
            sbp_json_add_string(out, item->key, strlen(item->key));
            sbp_text_add(out, ":");
        }
        add_expected(out, item);
    }
    sbp_text_add(out, object ? "}" : "]");
}

void table_expected(const table *t, sbp_text *out, bool (*wanted)(void *user, const char *name)) {
    for (int i = 0; i < t->row_count; i++) {
        const char *between = "";
        sbp_text_add(out, "{");
        for (int64_t k = 0; k < t->rows[i]->count; k++) {
            const sbp_json *item = &t->rows[i]->items[k];
            bool unread = wanted && !wanted(NULL, item->key);
            if (item->kind == SBP_JSON_NULL && !unread)
                continue;
            sbp_text_add(out, "%s\"%s\":", between, item->key);
            if (unread)
                sbp_text_add(out, "null");
            else
                add_expected(out, item);
            between = ",";
        }
        sbp_text_add(out, "}\n");
    }
}

/* ---- bytes ------------------------------------------------------------------------------------------ */

void put_number(sbp_text *out, uint64_t value, int bytes) {
    sbp_text_add_n(out, (const char *)&value, (size_t)bytes);
}

uint32_t half_bits(double value) {
    uint32_t sign = value < 0 || (value == 0 && 1 / value < 0) ? 0x8000 : 0;
    value = value < 0 ? -value : value;
    if (value * 16384 < 1) /* subnormal */
        return sign | (uint32_t)(value * 16777216);
    int exponent = 15;
    for (; value >= 2; value /= 2)
        exponent++;
    for (; value < 1; value *= 2)
        exponent--;
    return sign | (uint32_t)exponent << 10 | (uint32_t)((value - 1) * 1024);
}

/* Snappy's format without any copies: the length, then pieces as they are. */
static void put_snappy(const char *data, size_t length, sbp_text *out) {
    for (size_t n = length; n > 0x7f; n >>= 7)
        put_number(out, (n & 0x7f) | 0x80, 1);
    size_t last = length;
    while (last > 0x7f)
        last >>= 7;
    put_number(out, last, 1);
    for (size_t at = 0; at < length;) {
        size_t take = length - at < 60 ? length - at : 60;
        put_number(out, (take - 1) << 2, 1);
        sbp_text_add_n(out, data + at, take);
        at += take;
    }
}

static size_t deflate_all(const char *data, size_t length, char *out, size_t room) {
    z_stream z = {.next_in = (unsigned char *)(uintptr_t)data,
                  .avail_in = (unsigned)length,
                  .next_out = (unsigned char *)out,
                  .avail_out = (unsigned)room};
    if (deflateInit2(&z, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK)
        return 0;
    int result = deflate(&z, Z_FINISH);
    deflateEnd(&z);
    return result == Z_STREAM_END ? room - z.avail_out : 0;
}

void put_compressed(drawing *d, int codec, const char *data, size_t length, sbp_text *out) {
    size_t room = ZSTD_compressBound(length) + LZ4F_compressFrameBound(length, NULL) + 1024, size = 0;
    char *packed = sbp_arena_alloc(d->arena, room);
    switch (codec) {
    case 0:
        sbp_text_add_n(out, data, length);
        return;
    case 1:
        put_snappy(data, length, out);
        return;
    case 2:
        size = deflate_all(data, length, packed, room);
        break;
    case 6:
        size = ZSTD_compress(packed, room, data, length, 1);
        break;
    case 7:
        size = (size_t)LZ4_compress_default(data, packed, (int)length, (int)room);
        break;
    default:
        size = LZ4F_compressFrame(packed, room, data, length, NULL);
    }
    sbp_text_add_n(out, packed, size);
}

/* ---- text ------------------------------------------------------------------------------------------- */

static void add_blanks(drawing *d, sbp_text *out) {
    static const char *const blanks[] = {"", "", "", " ", "\t", "  "};
    sbp_text_add(out, "%s", blanks[draw(d, SBP_COUNT(blanks))]);
}

/* A string with some of its characters spelled in another way. */
static void add_spelled(drawing *d, sbp_text *out, const char *text, size_t length) {
    sbp_text_add(out, "\"");
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c < 0x20 || (c < 0x80 && draw(d, 16) == 0))
            sbp_text_add(out, draw(d, 2) ? "\\u%04x" : "\\u%04X", c);
        else if (c == '"' || c == '\\')
            sbp_text_add(out, "\\%c", c);
        else if (c == 0xf0 && length - i > 3 && memcmp(text + i, "\xf0\x9f\x98\x80", 4) == 0 && draw(d, 2)) {
            sbp_text_add(out, "\\ud83d\\uDE00");
            i += 3;
        } else
            sbp_text_add_n(out, text + i, 1);
    }
    sbp_text_add(out, "\"");
}

static void add_json(drawing *d, sbp_text *out, const sbp_json *value) {
    bool object = value->kind == SBP_JSON_OBJECT, any = false;
    if (value->kind == SBP_JSON_STRING)
        add_spelled(d, out, value->string, (size_t)value->count);
    else if (!object && value->kind != SBP_JSON_ARRAY)
        sbp_json_add_value(out, value);
    if (!object && value->kind != SBP_JSON_ARRAY)
        return;
    sbp_text_add(out, object ? "{" : "[");
    for (int64_t i = 0; i < value->count; i++) {
        const sbp_json *item = &value->items[i];
        if (object && item->kind == SBP_JSON_NULL)
            continue;
        sbp_text_add(out, any ? "," : "");
        any = true;
        add_blanks(d, out);
        if (object) {
            add_spelled(d, out, item->key, strlen(item->key));
            add_blanks(d, out);
            sbp_text_add(out, ":");
            add_blanks(d, out);
        }
        add_json(d, out, item);
        add_blanks(d, out);
    }
    sbp_text_add(out, object ? "}" : "]");
}

static void write_json(drawing *d, const table *t, sbp_text *out) {
    bool array = t->format == TABLE_ARRAY;
    sbp_text_add(out, array ? "[" : "");
    for (int i = 0; i < t->row_count; i++) {
        sbp_text_add(out, array && i ? "," : "");
        add_json(d, out, t->rows[i]);
        sbp_text_add(out, "%s", !array && draw(d, 4) == 0 ? "\r\n\n" : "\n");
    }
    sbp_text_add(out, array ? "]" : "");
}

static void add_field(drawing *d, sbp_text *out, const sbp_json *value) {
    bool quoted = draw(d, 2) || value->count == 0 || strpbrk(value->string, ",;\t\"\n\r");
    sbp_text_add(out, quoted ? "\"" : "");
    for (int64_t i = 0; i < value->count; i++)
        sbp_text_add(out, value->string[i] == '"' ? "\"\"" : "%c", value->string[i]);
    sbp_text_add(out, quoted ? "\"" : "");
}

static void write_csv(drawing *d, const table *t, sbp_text *out) {
    static const char *const ends[] = {"\n", "\r\n", "\r"};
    const char *end = ends[draw(d, 2)];
    char between = ",\t;"[draw(d, 3)];
    for (int k = 0; k < t->root.child_count; k++) {
        sbp_text_add_n(out, &between, k > 0);
        sbp_text_add(out, "%s", t->root.children[k].name);
    }
    sbp_text_add(out, "%s", end);
    for (int i = 0; i < t->row_count; i++) {
        for (int k = 0; k < t->root.child_count; k++) {
            sbp_text_add_n(out, &between, k > 0);
            add_field(d, out, &t->rows[i]->items[k]);
        }
        sbp_text_add(out, "%s", end);
    }
}

void table_write(drawing *d, const table *t, sbp_text *out) {
    switch (t->format) {
    case TABLE_ARROW:
        table_write_arrow(d, t, out);
        break;
    case TABLE_PARQUET:
        table_write_parquet(d, t, out);
        break;
    case TABLE_CSV:
        write_csv(d, t, out);
        break;
    default:
        write_json(d, t, out);
    }
}
