/* write_parquet.c: Parquet files: any number of row groups and pages, also without rows, every encoding that
 * a type may have, every compression. */
#include <string.h>

#include "tests/fuzz/tables/tables.h"

enum { BOOLEAN = 0, INT32 = 1, INT64 = 2, FLOAT = 4, DOUBLE = 5, BYTES = 6, FIXED = 7 };
enum {
    PLAIN = 0,
    PLAIN_DICTIONARY = 2,
    RLE = 3,
    DELTA = 5,
    DELTA_LENGTH = 6,
    DELTA_BYTES = 7,
    RLE_DICTIONARY = 8,
    SPLIT = 9
};

typedef struct entry {
    int rep, def;
    const sbp_json *value; /* NULL: none at this level */
} entry;

typedef struct leaf {
    const column *column;
    int type, width, max_def, max_rep;
    entry *entries;
    int32_t count, capacity;
    size_t offset, end, dictionary; /* of the file; dictionary 0: none */
    int codec;
    int32_t total;
} leaf;

typedef struct parquet_writer {
    drawing *d;
    const table *table;
    sbp_text *out;
    sbp_text schema, groups;
    int32_t elements, group_count;
    leaf *leaves;
    int32_t leaf_count, leaf_capacity, next;
} parquet_writer;

/* ---- thrift ----------------------------------------------------------------------------------------- */

static void varint(sbp_text *out, uint64_t value) {
    for (; value > 0x7f; value >>= 7)
        put_number(out, (value & 0x7f) | 0x80, 1);
    put_number(out, value, 1);
}

static void zigzag(sbp_text *out, int64_t value) {
    varint(out, (uint64_t)value << 1 ^ (uint64_t)(value >> 63));
}

/* The head of field `id` behind field *last. */
static void field(sbp_text *out, int *last, int id, int type) {
    put_number(out, (uint64_t)((id - *last) << 4 | type), 1);
    *last = id;
}

/* Numbers of 32 and of 64 bits, as parquet.thrift has each field: readers skip a field of another type. */
static void field_i32(sbp_text *out, int *last, int id, int64_t value) {
    field(out, last, id, 5);
    zigzag(out, value);
}

static void field_i64(sbp_text *out, int *last, int id, int64_t value) {
    field(out, last, id, 6);
    zigzag(out, value);
}

static void field_text(sbp_text *out, int *last, int id, const char *text) {
    field(out, last, id, 8);
    varint(out, strlen(text));
    sbp_text_add_n(out, text, strlen(text));
}

static void list_head(sbp_text *out, uint32_t count, int type) {
    put_number(out, count < 15 ? count << 4 | (uint32_t)type : 0xf0 | (uint32_t)type, 1);
    if (count >= 15)
        varint(out, count);
}

/* ---- schema ----------------------------------------------------------------------------------------- */

/* repetition: 0 required, 1 optional, 2 repeated; type -1: a group; converted, logical -1: none. */
static void element(parquet_writer *w, const char *name, int type, int width, int repetition, int children,
                    int converted, int logical, const column *number) {
    sbp_text *o = &w->schema;
    int last = 0;
    if (type >= 0)
        field_i32(o, &last, 1, type);
    if (width > 0)
        field_i32(o, &last, 2, width);
    field_i32(o, &last, 3, repetition);
    field_text(o, &last, 4, name);
    if (children > 0)
        field_i32(o, &last, 5, children);
    if (converted >= 0)
        field_i32(o, &last, 6, converted);
    if (logical >= 0) {
        int inner = 0, integer = 0;
        field(o, &last, 10, 12);
        field(o, &inner, logical, 12);
        if (logical == 10) {
            field(o, &integer, 1, 3);
            put_number(o, (uint64_t)number->bits, 1);
            field(o, &integer, 2, number->is_unsigned ? 2 : 1);
        }
        put_number(o, 0, 2);
    }
    put_number(o, 0, 1);
    w->elements++;
}

static void add_leaf(parquet_writer *w, const column *c, int repetition, int def, int rep) {
    leaf l = {.column = c, .max_def = def, .max_rep = rep};
    int logical = -1, converted = -1;
    switch (c->kind) {
    case COLUMN_BOOL:
        l.type = BOOLEAN;
        break;
    case COLUMN_INT:
        l.type = c->bits == 64 ? INT64 : INT32;
        l.width = c->bits / 8;
        logical = c->is_unsigned || draw(w->d, 2) ? 10 : -1;
        break;
    case COLUMN_REAL:
        l.type = c->bits == 64 ? DOUBLE : c->bits == 32 ? FLOAT : FIXED;
        l.width = c->bits / 8;
        logical = c->bits == 16 ? 15 : -1;
        break;
    case COLUMN_TEXT:
        l.type = BYTES;
        converted = draw(w->d, 2) ? 0 : -1;
        logical = converted < 0 || draw(w->d, 2) ? 1 : -1;
        break;
    default:
        l.type = INT32;
        l.width = 4;
        logical = 11;
    }
    element(w, c->name, l.type, l.type == FIXED ? l.width : 0, repetition, 0, converted, logical, c);
    SBP_PUSH(w->d->arena, w->leaves, w->leaf_count, w->leaf_capacity, l);
}

/* def, rep: levels of what it lies in. */
static void add_node(parquet_writer *w, const column *c, int def, int rep) {
    int optional = c->optional;
    def += optional;
    if (c->kind == COLUMN_STRUCT) {
        element(w, c->name, -1, 0, optional, c->child_count, -1, -1, NULL);
        for (int i = 0; i < c->child_count; i++)
            add_node(w, &c->children[i], def, rep);
    } else if (c->kind == COLUMN_MAP) {
        element(w, c->name, -1, 0, optional, 1, 1, -1, NULL);
        element(w, "key_value", -1, 0, 2, 2, -1, -1, NULL);
        add_node(w, &c->children[0], def + 1, rep + 1);
        add_node(w, &c->children[1], def + 1, rep + 1);
    } else if (c->kind == COLUMN_LIST && c->shape == PARQUET_LIST) {
        element(w, c->name, -1, 0, optional, 1, 3, draw(w->d, 2) ? 3 : -1, NULL);
        element(w, "list", -1, 0, 2, 1, -1, -1, NULL);
        add_node(w, c->children, def + 1, rep + 1);
    } else if (c->kind == COLUMN_LIST) { /* the item is repeated itself */
        column *item = SBP_NEW(w->d->arena, column);
        *item = *c->children;
        item->name = c->shape == PARQUET_TWO_LEVELS ? "array" : c->name;
        if (c->shape == PARQUET_TWO_LEVELS)
            element(w, c->name, -1, 0, optional, 1, 3, -1, NULL);
        if (item->kind != COLUMN_STRUCT) {
            add_leaf(w, item, 2, def + 1, rep + 1);
            return;
        }
        element(w, item->name, -1, 0, 2, item->child_count, -1, -1, NULL);
        for (int i = 0; i < item->child_count; i++)
            add_node(w, &item->children[i], def + 1, rep + 1);
    } else {
        add_leaf(w, c, optional, def, rep);
    }
}

/* ---- levels ----------------------------------------------------------------------------------------- */

static int leaves_of(const column *c) {
    if (c->child_count == 0)
        return 1;
    int count = 0;
    for (int i = 0; i < c->child_count; i++)
        count += leaves_of(&c->children[i]);
    return count;
}

static void put_entry(parquet_writer *w, leaf *l, int rep, int def, const sbp_json *value) {
    SBP_PUSH(w->d->arena, l->entries, l->count, l->capacity, (entry){rep, def, value});
}

static void put_value(parquet_writer *w, leaf *l, const column *c, const sbp_json *v, int rep, int def,
                      int depth);

/* Members or items, each of one column. */
static void put_items(parquet_writer *w, leaf *l, const column *c, const sbp_json *v, int rep, int def,
                      int depth) {
    for (int64_t i = 0; i < v->count; i++) {
        int at = i == 0 ? rep : depth + 1;
        if (c->kind == COLUMN_LIST) {
            put_value(w, l, c->children, &v->items[i], at, def + 1, depth + 1);
            continue;
        }
        sbp_json *key = SBP_NEW(w->d->arena, sbp_json);
        *key = (sbp_json){
            .kind = SBP_JSON_STRING, .string = v->items[i].key, .count = (int64_t)strlen(v->items[i].key)};
        put_value(w, l, &c->children[0], key, at, def + 1, depth + 1);
        put_value(w, l + 1, &c->children[1], &v->items[i], at, def + 1, depth + 1);
    }
}

/* rep, def: where it begins; depth: how many lists it lies in. */
static void put_value(parquet_writer *w, leaf *l, const column *c, const sbp_json *v, int rep, int def,
                      int depth) {
    bool list = c->kind == COLUMN_LIST || c->kind == COLUMN_MAP;
    bool null = v->kind == SBP_JSON_NULL;
    def += c->optional && !null;
    if (null || (list && v->count == 0)) {
        for (int i = 0, count = leaves_of(c); i < count; i++)
            put_entry(w, &l[i], rep, def, NULL);
        return;
    }
    if (list) {
        put_items(w, l, c, v, rep, def, depth);
    } else if (c->kind == COLUMN_STRUCT) {
        for (int i = 0; i < c->child_count; i++) {
            put_value(w, l, &c->children[i], &v->items[i], rep, def, depth);
            l += leaves_of(&c->children[i]);
        }
    } else {
        put_entry(w, l, rep, def, v);
    }
}

static int bits_for(uint64_t most) {
    int width = 0;
    while (width < 64 && most >> width)
        width++;
    return width;
}

static void pack(sbp_text *out, const uint64_t *values, int64_t count, int width) {
    size_t first = out->length;
    for (int64_t i = 0; i < (count * width + 7) / 8; i++)
        put_number(out, 0, 1);
    for (int64_t i = 0; i < count; i++)
        for (int b = 0; b < width; b++) {
            int64_t at = i * width + b;
            out->data[first + (size_t)at / 8] =
                (char)((unsigned char)out->data[first + (size_t)at / 8] | (values[i] >> b & 1) << (at % 8));
        }
}

/* Runs and packed groups of 8, as they are drawn. */
static void put_runs(drawing *d, sbp_text *out, const uint64_t *values, int64_t count, int width) {
    for (int64_t at = 0; at < count;) {
        int64_t run = 1, groups = 1 + draw(d, 4);
        while (at + run < count && values[at + run] == values[at])
            run++;
        if (run >= 8 || draw(d, 3) == 0) {
            run = draw(d, 5) == 0 ? 1 + draw(d, (uint32_t)(run < 1000 ? run : 1000)) : run;
            varint(out, (uint64_t)run << 1);
            put_number(out, values[at], (width + 7) / 8);
            at += run;
            continue;
        }
        uint64_t group[32] = {0}; /* a last one is filled with zeros */
        groups = groups < (count - at + 7) / 8 ? groups : (count - at + 7) / 8;
        int64_t take = groups * 8 < count - at ? groups * 8 : count - at;
        memcpy(group, values + at, (size_t)take * sizeof *group);
        varint(out, (uint64_t)groups << 1 | 1);
        pack(out, group, groups * 8, width);
        at += take;
    }
}

/* ---- values ----------------------------------------------------------------------------------------- */

/* The bytes of a value other than a boolean, without the length of a text. */
static const char *bytes_of(drawing *d, const leaf *l, const sbp_json *v, size_t *length) {
    uint64_t bits = 0;
    float single = (float)v->real;
    *length = (size_t)l->width;
    if (l->type == BYTES) {
        *length = (size_t)v->count;
        return v->string;
    }
    if (l->type == FLOAT)
        memcpy(&bits, &single, 4);
    else if (l->type == FIXED)
        bits = half_bits(v->real);
    else
        memcpy(&bits, &v->integer, 8);
    char *copy = sbp_arena_alloc(d->arena, 8);
    memcpy(copy, &bits, 8);
    return copy;
}

static void put_plain(drawing *d, const leaf *l, const sbp_json *const *values, int64_t count,
                      sbp_text *out) {
    uint64_t *bits = SBP_NEW_ARRAY(d->arena, uint64_t, count);
    for (int64_t i = 0; i < count; i++) {
        size_t length;
        if (l->type == BOOLEAN) {
            bits[i] = values[i]->boolean;
            continue;
        }
        const char *bytes = bytes_of(d, l, values[i], &length);
        put_number(out, length, l->type == BYTES ? 4 : 0);
        sbp_text_add_n(out, bytes, length);
    }
    if (l->type == BOOLEAN)
        pack(out, bits, count, 1);
}

/* DELTA_BINARY_PACKED; differences of 32 bits go around there. */
static void put_delta(sbp_text *out, const int64_t *values, int64_t count, bool narrow) {
    enum { BLOCK = 128, MINI = 32 };
    varint(out, BLOCK);
    varint(out, BLOCK / MINI);
    varint(out, (uint64_t)count);
    zigzag(out, count > 0 ? values[0] : 0);
    for (int64_t at = 1; at < count; at += BLOCK) {
        uint64_t deltas[BLOCK] = {0};
        int64_t some = count - at < BLOCK ? count - at : BLOCK, least = INT64_MAX;
        for (int64_t i = 0; i < some; i++) {
            uint64_t delta = (uint64_t)values[at + i] - (uint64_t)values[at + i - 1];
            deltas[i] = narrow ? (uint64_t)(int64_t)(int32_t)(uint32_t)delta : delta;
            least = (int64_t)deltas[i] < least ? (int64_t)deltas[i] : least;
        }
        zigzag(out, least);
        int widths[BLOCK / MINI] = {0};
        for (int64_t i = 0; i < some; i++) {
            deltas[i] -= (uint64_t)least;
            int width = bits_for(deltas[i]);
            widths[i / MINI] = width > widths[i / MINI] ? width : widths[i / MINI];
        }
        for (int m = 0; m < BLOCK / MINI; m++)
            put_number(out, (uint64_t)widths[m], 1);
        for (int m = 0; m * MINI < some; m++)
            pack(out, deltas + m * MINI, MINI, widths[m]);
    }
}

static void put_delta_texts(drawing *d, const leaf *l, const sbp_json *const *values, int64_t count,
                            bool prefixes, sbp_text *out) {
    int64_t *heads = SBP_NEW_ARRAY(d->arena, int64_t, count),
            *tails = SBP_NEW_ARRAY(d->arena, int64_t, count);
    sbp_text texts;
    const char *before = "";
    size_t before_length = 0;
    sbp_text_init(&texts, d->arena);
    for (int64_t i = 0; i < count; i++) {
        size_t length, same = 0;
        const char *bytes = bytes_of(d, l, values[i], &length);
        while (prefixes && same < length && same < before_length && bytes[same] == before[same])
            same++;
        same = same && draw(d, 4) == 0 ? same - 1 : same; /* as long as a writer likes */
        heads[i] = (int64_t)same;
        tails[i] = (int64_t)(length - same);
        sbp_text_add_n(&texts, bytes + same, length - same);
        before = bytes;
        before_length = length;
    }
    if (prefixes)
        put_delta(out, heads, count, true);
    put_delta(out, tails, count, true);
    sbp_text_add_n(out, texts.data, texts.length);
}

static void put_split(drawing *d, const leaf *l, const sbp_json *const *values, int64_t count,
                      sbp_text *out) {
    for (int b = 0; b < l->width; b++)
        for (int64_t i = 0; i < count; i++) {
            size_t length;
            sbp_text_add_n(out, bytes_of(d, l, values[i], &length) + b, 1);
        }
}

static void put_integers(drawing *d, const sbp_json *const *values, int64_t count, bool narrow,
                         sbp_text *out) {
    int64_t *all = SBP_NEW_ARRAY(d->arena, int64_t, count);
    for (int64_t i = 0; i < count; i++)
        all[i] = narrow ? (int32_t)(uint32_t)values[i]->integer : values[i]->integer;
    put_delta(out, all, count, narrow);
}

static void put_booleans(drawing *d, const sbp_json *const *values, int64_t count, sbp_text *out) {
    uint64_t *bits = SBP_NEW_ARRAY(d->arena, uint64_t, count);
    sbp_text runs;
    sbp_text_init(&runs, d->arena);
    for (int64_t i = 0; i < count; i++)
        bits[i] = values[i]->boolean;
    put_runs(d, &runs, bits, count, 1);
    put_number(out, runs.length, 4);
    sbp_text_add_n(out, runs.data, runs.length);
}

static int draw_encoding(drawing *d, const leaf *l) {
    static const int wholes[] = {PLAIN, DELTA, SPLIT}, reals[] = {PLAIN, SPLIT, PLAIN},
                     halves[] = {PLAIN, SPLIT, DELTA_BYTES}, texts[] = {PLAIN, DELTA_LENGTH, DELTA_BYTES},
                     booleans[] = {PLAIN, RLE, PLAIN};
    uint32_t i = draw(d, 3);
    return l->type == BOOLEAN                      ? booleans[i]
           : l->type == BYTES                      ? texts[i]
           : l->type == FIXED                      ? halves[i]
           : l->type == FLOAT || l->type == DOUBLE ? reals[i]
                                                   : wholes[i];
}

static void put_encoded(drawing *d, const leaf *l, int encoding, const sbp_json *const *values, int64_t count,
                        sbp_text *out) {
    switch (encoding) {
    case RLE:
        put_booleans(d, values, count, out);
        break;
    case DELTA:
        put_integers(d, values, count, l->type == INT32, out);
        break;
    case DELTA_LENGTH:
    case DELTA_BYTES:
        put_delta_texts(d, l, values, count, encoding == DELTA_BYTES, out);
        break;
    case SPLIT:
        put_split(d, l, values, count, out);
        break;
    default:
        put_plain(d, l, values, count, out);
    }
}

/* ---- pages ------------------------------------------------------------------------------------------ */

typedef struct dictionary {
    const sbp_json **values;
    int64_t count;
} dictionary;

static bool same_value(const leaf *l, const sbp_json *a, const sbp_json *b) {
    return l->type == BYTES ? a->count == b->count && memcmp(a->string, b->string, (size_t)a->count) == 0
                            : a->integer == b->integer;
}

static int64_t index_of(const leaf *l, const dictionary *all, const sbp_json *value) {
    int64_t i = 0;
    while (i < all->count && !same_value(l, all->values[i], value))
        i++;
    return i;
}

static dictionary make_dictionary(drawing *d, const leaf *l) {
    dictionary all = {SBP_NEW_ARRAY(d->arena, const sbp_json *, l->count + 1), 0};
    for (int32_t i = 0; i < l->count; i++)
        if (l->entries[i].value && index_of(l, &all, l->entries[i].value) == all.count)
            all.values[all.count++] = l->entries[i].value;
    return all;
}

static void put_indexes(drawing *d, const leaf *l, const dictionary *all, const sbp_json *const *values,
                        int64_t count, sbp_text *out) {
    uint64_t *indexes = SBP_NEW_ARRAY(d->arena, uint64_t, count);
    int width = bits_for(all->count > 0 ? (uint64_t)all->count - 1 : 0);
    width += draw(d, 4) == 0;
    for (int64_t i = 0; i < count; i++)
        indexes[i] = (uint64_t)index_of(l, all, values[i]);
    put_number(out, (uint64_t)width, 1);
    put_runs(d, out, indexes, count, width);
}

/* The head of a page: 0 data, 2 dictionary, 3 data of version 2. */
static void put_head(sbp_text *out, int type, size_t bytes, size_t packed, int64_t values, int encoding,
                     int64_t nulls, int64_t rows, size_t defs, size_t reps, bool compressed) {
    int last = 0, inner = 0;
    field_i32(out, &last, 1, type);
    field_i32(out, &last, 2, (int64_t)bytes);
    field_i32(out, &last, 3, (int64_t)packed);
    field(out, &last, type == 0 ? 5 : type == 2 ? 7 : 8, 12);
    field_i32(out, &inner, 1, values);
    if (type == 3) {
        field_i32(out, &inner, 2, nulls);
        field_i32(out, &inner, 3, rows);
        field_i32(out, &inner, 4, encoding);
        field_i32(out, &inner, 5, (int64_t)defs);
        field_i32(out, &inner, 6, (int64_t)reps);
        field(out, &inner, 7, compressed ? 1 : 2);
    } else {
        field_i32(out, &inner, 2, encoding);
        if (type == 0) {
            field_i32(out, &inner, 3, RLE);
            field_i32(out, &inner, 4, RLE);
        }
    }
    put_number(out, 0, 2);
}

static void put_levels(drawing *d, const leaf *l, int32_t from, int32_t to, bool rep, bool sized,
                       sbp_text *out) {
    int most = rep ? l->max_rep : l->max_def;
    uint64_t *levels = SBP_NEW_ARRAY(d->arena, uint64_t, to - from);
    sbp_text runs;
    if (most == 0)
        return;
    sbp_text_init(&runs, d->arena);
    for (int32_t i = from; i < to; i++)
        levels[i - from] = (uint64_t)(rep ? l->entries[i].rep : l->entries[i].def);
    put_runs(d, &runs, levels, to - from, bits_for((uint64_t)most));
    put_number(out, runs.length, sized ? 4 : 0);
    sbp_text_add_n(out, runs.data, runs.length);
}

/* Entries [from, to), which begin and end with rows. */
static void put_page(drawing *d, const leaf *l, const dictionary *all, int32_t from, int32_t to,
                     sbp_text *out) {
    const sbp_json **values = SBP_NEW_ARRAY(d->arena, const sbp_json *, to - from);
    bool second = draw(d, 2), compressed = l->codec != 0 && (!second || draw(d, 4) > 0);
    bool by_index = all->count > 0 && draw(d, 4) > 0;
    int encoding = by_index ? (draw(d, 4) ? RLE_DICTIONARY : PLAIN_DICTIONARY) : draw_encoding(d, l);
    int64_t count = 0, rows = 0;
    sbp_text levels, body, packed;
    sbp_text_init(&levels, d->arena);
    sbp_text_init(&body, d->arena);
    sbp_text_init(&packed, d->arena);
    for (int32_t i = from; i < to; i++) {
        rows += l->entries[i].rep == 0;
        if (l->entries[i].value)
            values[count++] = l->entries[i].value;
    }
    put_levels(d, l, from, to, true, !second, &levels);
    size_t reps = levels.length;
    put_levels(d, l, from, to, false, !second, &levels);
    size_t defs = levels.length - reps;
    if (by_index)
        put_indexes(d, l, all, values, count, &body);
    else if (count > 0 || draw(d, 2))
        put_encoded(d, l, encoding, values, count, &body);
    if (second) {
        if (body.length > 0)
            put_compressed(d, compressed ? l->codec : 0, body.data, body.length, &packed);
        put_head(out, 3, levels.length + body.length, levels.length + packed.length, to - from, encoding,
                 to - from - count, rows, defs, reps, compressed);
        sbp_text_add_n(out, levels.data, levels.length);
    } else {
        sbp_text_add_n(&levels, body.data, body.length);
        put_compressed(d, l->codec, levels.data, levels.length, &packed);
        put_head(out, 0, levels.length, packed.length, to - from, encoding, 0, 0, 0, 0, true);
    }
    sbp_text_add_n(out, packed.data, packed.length);
}

static void put_dictionary_page(drawing *d, leaf *l, const dictionary *all, sbp_text *out) {
    sbp_text body, packed;
    sbp_text_init(&body, d->arena);
    sbp_text_init(&packed, d->arena);
    put_plain(d, l, all->values, all->count, &body);
    put_compressed(d, l->codec, body.data, body.length, &packed);
    l->dictionary = out->length;
    put_head(out, 2, body.length, packed.length, all->count, PLAIN, 0, 0, 0, 0, true);
    sbp_text_add_n(out, packed.data, packed.length);
}

/* The column of a row group. */
static void put_chunk(drawing *d, leaf *l, sbp_text *out) {
    static const int codecs[] = {0, 1, 2, 6, 7};
    dictionary all = {0};
    l->codec = codecs[draw(d, 5)];
    l->dictionary = 0;
    l->total = l->count;
    if (l->type != BOOLEAN && l->column->kind != COLUMN_NULLS && draw(d, 2))
        all = make_dictionary(d, l);
    size_t begin = out->length;
    if (all.count > 0)
        put_dictionary_page(d, l, &all, out);
    l->offset = out->length;
    int32_t at = 0;
    do {
        int32_t to = at + 1 + (int32_t)draw(d, 40);
        to = draw(d, 8) == 0 ? at : to < l->count ? to : l->count; /* a page may have nothing */
        while (to > at && to < l->count && l->entries[to].rep > 0)
            to++;
        put_page(d, l, &all, at, to, out);
        at = to;
    } while (at < l->count);
    l->end = out->length;
    l->offset = l->dictionary ? l->offset : begin;
}

/* ---- the file --------------------------------------------------------------------------------------- */

static void put_group_meta(parquet_writer *w, int rows) {
    sbp_text *o = &w->groups;
    int last = 0;
    field(o, &last, 1, 9);
    list_head(o, (uint32_t)w->leaf_count, 12);
    for (int32_t i = 0; i < w->leaf_count; i++) {
        const leaf *l = &w->leaves[i];
        int chunk = 0, meta = 0;
        field_i64(o, &chunk, 2, 0);
        field(o, &chunk, 3, 12);
        field_i32(o, &meta, 1, l->type);
        field_i32(o, &meta, 4, l->codec);
        field_i64(o, &meta, 5, l->total);
        field_i64(o, &meta, 7, (int64_t)(l->end - (l->dictionary ? l->dictionary : l->offset)));
        field_i64(o, &meta, 9, (int64_t)l->offset);
        if (l->dictionary)
            field_i64(o, &meta, 11, (int64_t)l->dictionary);
        put_number(o, 0, 2);
    }
    field_i64(o, &last, 3, rows);
    put_number(o, 0, 1);
    w->group_count++;
}

static void put_group(parquet_writer *w, int first, int count) {
    const column *root = &w->table->root;
    for (int32_t i = 0; i < w->leaf_count; i++)
        w->leaves[i].count = 0;
    for (int r = first; r < first + count; r++)
        put_value(w, w->leaves, root, w->table->rows[r], 0, 0, 0);
    for (int32_t i = 0; i < w->leaf_count; i++)
        put_chunk(w->d, &w->leaves[i], w->out);
    put_group_meta(w, count);
}

void table_write_parquet(drawing *d, const table *t, sbp_text *out) {
    parquet_writer w = {.d = d, .table = t, .out = out};
    int last = 0;
    sbp_text_init(&w.schema, d->arena);
    sbp_text_init(&w.groups, d->arena);
    sbp_text_add(out, "PAR1");
    add_node(&w, &t->root, 0, 0);
    for (int at = 0, empty = 2; at < t->row_count;) {
        int count = empty > 0 && draw(d, 4) == 0 ? 0 : 1 + (int)draw(d, 25);
        count = count < t->row_count - at ? count : t->row_count - at;
        empty -= count == 0;
        put_group(&w, at, count);
        at += count;
    }
    size_t footer = out->length;
    field_i32(out, &last, 1, 2);
    field(out, &last, 2, 9);
    list_head(out, (uint32_t)w.elements, 12);
    sbp_text_add_n(out, w.schema.data, w.schema.length);
    field_i64(out, &last, 3, t->row_count);
    field(out, &last, 4, 9);
    list_head(out, (uint32_t)w.group_count, 12);
    sbp_text_add_n(out, w.groups.data, w.groups.length);
    put_number(out, 0, 1);
    put_number(out, out->length - footer, 4);
    sbp_text_add(out, "PAR1");
}
