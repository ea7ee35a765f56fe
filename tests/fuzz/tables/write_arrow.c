/* write_arrow.c: Arrow IPC streams and files: batches of any number of rows, also none. */
#include <string.h>

#include "tests/fuzz/tables/tables.h"

typedef const sbp_json *item; /* NULL: below something that is null */

typedef struct arrow_writer {
    drawing *d;
    const table *table;
    sbp_text *out;
    sbp_text body, nodes, buffers, counts; /* of the batch at hand */
    sbp_text blocks[2];                    /* of the footer: dictionaries, batches */
    int codec;                             /* -1: none */
} arrow_writer;

/* ---- flatbuffers ------------------------------------------------------------------------------------ */

static void patch(sbp_text *f, size_t at, uint64_t value, int bytes) {
    memcpy(f->data + at, &value, (size_t)bytes);
}

static void align(sbp_text *f, size_t to) {
    while (f->length % to)
        put_number(f, 0, 1);
}

/* A table with fields of these sizes (0: it is not there) behind its own list of places; at[i]: field i. */
static void add_table(sbp_text *f, int count, const int *sizes, size_t *at) {
    size_t places = f->length, offset = 4;
    put_number(f, (uint64_t)(4 + 2 * count), 2);
    put_number(f, 0, 2);
    for (int i = 0; i < count; i++) {
        put_number(f, sizes[i] ? offset : 0, 2);
        offset += (size_t)sizes[i];
    }
    align(f, 4);
    put_number(f, f->length - places, 4);
    for (int i = 0; i < count; i++) {
        at[i] = f->length;
        put_number(f, 0, sizes[i]);
    }
    patch(f, places + 2, offset, 2);
}

/* What comes next is what the field at `at` points to. */
static void refer(sbp_text *f, size_t at) {
    align(f, 4);
    patch(f, at, f->length - at, 4);
}

/* Refers to a table: its first field stands 4 bytes behind where it begins. */
static void refer_table(sbp_text *f, size_t at, const size_t *slot) {
    patch(f, at, slot[0] - 4 - at, 4);
}

static void add_items(sbp_text *f, size_t at, const sbp_text *items, size_t size) {
    refer(f, at);
    put_number(f, items->length / size, 4);
    sbp_text_add_n(f, items->data, items->length);
}

static void add_name(sbp_text *f, size_t at, const char *name) {
    refer(f, at);
    put_number(f, strlen(name), 4);
    sbp_text_add_n(f, name, strlen(name) + 1);
}

/* ---- schema ----------------------------------------------------------------------------------------- */

static int type_of(const column *c) {
    static const int texts[] = {5, 20, 24}, lists[] = {12, 21, 25, 16};
    switch (c->kind) {
    case COLUMN_BOOL:
        return 6;
    case COLUMN_INT:
        return 2;
    case COLUMN_REAL:
        return 3;
    case COLUMN_TEXT:
        return texts[c->shape];
    case COLUMN_NULLS:
        return 1;
    case COLUMN_LIST:
        return lists[c->shape];
    case COLUMN_STRUCT:
        return 13;
    default:
        return 17;
    }
}

static void add_type(sbp_text *f, size_t at, const column *c) {
    size_t slot[2];
    if (c->kind == COLUMN_INT)
        add_table(f, 2, (int[]){4, 1}, slot);
    else if (c->kind == COLUMN_REAL)
        add_table(f, 1, (int[]){2}, slot);
    else
        add_table(f, 1, (int[]){c->kind == COLUMN_LIST && c->shape == ARROW_FIXED ? 4 : 0}, slot);
    refer_table(f, at, slot);
    if (c->kind == COLUMN_INT) {
        patch(f, slot[0], (uint64_t)c->bits, 4);
        patch(f, slot[1], !c->is_unsigned, 1);
    } else if (c->kind == COLUMN_REAL) {
        patch(f, slot[0], c->bits == 16 ? 0 : c->bits == 32 ? 1 : 2, 2);
    } else if (c->kind == COLUMN_LIST && c->shape == ARROW_FIXED) {
        patch(f, slot[0], (uint64_t)c->fixed_count, 4);
    }
}

static void add_fields(sbp_text *f, size_t at, const column *children, int count, int64_t id);

static void add_field(sbp_text *f, size_t at, const column *c, int64_t id) {
    size_t slot[6], encoding[2];
    add_table(f, 6, (int[]){4, 1, 1, 4, c->dictionary ? 4 : 0, 4}, slot);
    refer_table(f, at, slot);
    patch(f, slot[1], c->optional, 1);
    patch(f, slot[2], (uint64_t)type_of(c), 1);
    add_name(f, slot[0], c->name);
    add_type(f, slot[3], c);
    if (c->dictionary) { /* indexes of 32 bits, as nothing says otherwise */
        add_table(f, 2, (int[]){8, 0}, encoding);
        refer_table(f, slot[4], encoding);
        patch(f, encoding[0], (uint64_t)id, 8);
    }
    if (c->kind != COLUMN_MAP) {
        add_fields(f, slot[5], c->children, c->child_count, -1);
        return;
    }
    column entries = {.name = "entries", .kind = COLUMN_STRUCT, .children = c->children, .child_count = 2};
    add_fields(f, slot[5], &entries, 1, -1);
}

/* Top-level columns have their number as the id of their dictionary. */
static void add_fields(sbp_text *f, size_t at, const column *children, int count, int64_t id) {
    refer(f, at);
    put_number(f, (uint64_t)count, 4);
    size_t first = f->length;
    for (int i = 0; i < count; i++)
        put_number(f, 0, 4);
    for (int i = 0; i < count; i++)
        add_field(f, first + 4 * (size_t)i, &children[i], id < 0 ? 0 : id + i);
}

/* A schema, whose table the field at `at` points to. */
static void add_schema(const arrow_writer *w, sbp_text *f, size_t at) {
    size_t slot[2];
    add_table(f, 2, (int[]){2, 4}, slot);
    refer_table(f, at, slot);
    add_fields(f, slot[1], w->table->root.children, w->table->root.child_count, 0);
}

/* ---- buffers ---------------------------------------------------------------------------------------- */

static sbp_text *new_bytes(const arrow_writer *w) {
    sbp_text *bytes = SBP_NEW(w->d->arena, sbp_text);
    sbp_text_init(bytes, w->d->arena);
    return bytes;
}

static void add_buffer(arrow_writer *w, const sbp_text *bytes) {
    size_t from = w->body.length;
    if (w->codec >= 0 && bytes->length > 0) {
        bool packed = draw(w->d, 4) > 0;
        put_number(&w->body, packed ? bytes->length : UINT64_MAX, 8);
        put_compressed(w->d,
                       !packed         ? 0
                       : w->codec == 0 ? CODEC_LZ4_FRAME
                                       : 6,
                       bytes->data, bytes->length, &w->body);
    } else {
        sbp_text_add_n(&w->body, bytes->data, bytes->length);
    }
    put_number(&w->buffers, from, 8);
    put_number(&w->buffers, w->body.length - from, 8);
    align(&w->body, 8);
}

static bool is_null(item value) {
    return !value || value->kind == SBP_JSON_NULL;
}

static void add_bits(arrow_writer *w, const item *values, int64_t count, bool validity) {
    sbp_text *bytes = new_bytes(w);
    for (int64_t i = 0; i < count; i++) {
        if (i % 8 == 0)
            put_number(bytes, 0, 1);
        bool bit = validity ? !is_null(values[i]) : !is_null(values[i]) && values[i]->boolean;
        bytes->data[i / 8] = (char)(bytes->data[i / 8] | bit << (i % 8));
    }
    add_buffer(w, bytes);
}

static void add_numbers(arrow_writer *w, const column *c, const item *values, int64_t count) {
    sbp_text *bytes = new_bytes(w);
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = 0;
        float single = is_null(values[i]) ? 0 : (float)values[i]->real;
        if (!is_null(values[i]) && (c->kind == COLUMN_INT || c->bits == 64))
            memcpy(&bits, &values[i]->integer, 8);
        else if (!is_null(values[i]) && c->bits == 32)
            memcpy(&bits, &single, 4);
        else if (!is_null(values[i]))
            bits = half_bits(values[i]->real);
        put_number(bytes, bits, c->bits / 8);
    }
    add_buffer(w, bytes);
}

static void add_texts(arrow_writer *w, const column *c, const item *values, int64_t count) {
    sbp_text *offsets = new_bytes(w), *texts = new_bytes(w);
    int bytes = c->shape == ARROW_64 ? 8 : 4;
    put_number(offsets, 0, count > 0 || draw(w->d, 2) ? bytes : 0); /* older writers have none for no rows */
    for (int64_t i = 0; i < count; i++) {
        if (!is_null(values[i]))
            sbp_text_add_n(texts, values[i]->string, (size_t)values[i]->count);
        put_number(offsets, texts->length, bytes);
    }
    add_buffer(w, offsets);
    add_buffer(w, texts);
}

/* Long texts lie in one of some buffers. */
static void add_views(arrow_writer *w, const item *values, int64_t count) {
    sbp_text *views = new_bytes(w), *texts[3];
    uint32_t some = 1 + draw(w->d, 3);
    for (uint32_t i = 0; i < some; i++)
        texts[i] = new_bytes(w);
    for (int64_t i = 0; i < count; i++) {
        char view[16] = {0};
        int32_t length = is_null(values[i]) ? 0 : (int32_t)values[i]->count;
        uint32_t which = draw(w->d, some);
        int32_t place[2] = {(int32_t)which, (int32_t)texts[which]->length};
        memcpy(view, &length, 4);
        if (length > 12) {
            memcpy(view + 4, values[i]->string, 4);
            memcpy(view + 8, place, 8);
            sbp_text_add_n(texts[which], values[i]->string, (size_t)length);
        } else if (length > 0) {
            memcpy(view + 4, values[i]->string, (size_t)length);
        }
        sbp_text_add_n(views, view, 16);
    }
    add_buffer(w, views);
    for (uint32_t i = 0; i < some; i++)
        add_buffer(w, texts[i]);
    put_number(&w->counts, some, 8);
}

static void add_array(arrow_writer *w, const column *c, const item *values, int64_t count);

static void add_list(arrow_writer *w, const column *c, const item *values, int64_t count) {
    int bytes = c->shape == ARROW_64 ? 8 : 4;
    sbp_text *offsets = new_bytes(w), *sizes = new_bytes(w);
    int64_t total = 0, at = 0;
    for (int64_t i = 0; i < count; i++)
        total += c->shape == ARROW_FIXED ? c->fixed_count : is_null(values[i]) ? 0 : values[i]->count;
    item *items = SBP_NEW_ARRAY(w->d->arena, item, total);
    if (c->shape != ARROW_VIEW)
        put_number(offsets, 0, bytes);
    for (int64_t i = 0; i < count; i++) {
        int64_t some = c->shape == ARROW_FIXED ? c->fixed_count : is_null(values[i]) ? 0 : values[i]->count;
        for (int64_t k = 0; k < some; k++)
            items[at + k] = is_null(values[i]) ? NULL : &values[i]->items[k];
        if (c->shape == ARROW_VIEW)
            put_number(offsets, (uint64_t)at, bytes);
        put_number(sizes, (uint64_t)some, bytes);
        at += some;
        if (c->shape != ARROW_VIEW)
            put_number(offsets, (uint64_t)at, bytes);
    }
    if (c->shape != ARROW_FIXED)
        add_buffer(w, offsets);
    if (c->shape == ARROW_VIEW)
        add_buffer(w, sizes);
    add_array(w, c->children, items, total);
}

static void add_struct(arrow_writer *w, const column *c, const item *values, int64_t count) {
    for (int k = 0; k < c->child_count; k++) {
        item *members = SBP_NEW_ARRAY(w->d->arena, item, count);
        for (int64_t i = 0; i < count; i++)
            members[i] = is_null(values[i]) ? NULL : &values[i]->items[k];
        add_array(w, &c->children[k], members, count);
    }
}

static void add_node(arrow_writer *w, const column *c, const item *values, int64_t count) {
    int64_t nulls = 0;
    for (int64_t i = 0; i < count; i++)
        nulls += is_null(values[i]);
    put_number(&w->nodes, (uint64_t)count, 8);
    put_number(&w->nodes, (uint64_t)nulls, 8);
    if (c->kind == COLUMN_NULLS)
        return;
    if (nulls > 0 || draw(w->d, 2))
        add_bits(w, values, count, true);
    else
        add_buffer(w, new_bytes(w));
}

static void add_map(arrow_writer *w, const column *c, const item *values, int64_t count) {
    sbp_text *offsets = new_bytes(w);
    int64_t total = 0, at = 0;
    for (int64_t i = 0; i < count; i++)
        total += is_null(values[i]) ? 0 : values[i]->count;
    item *keys = SBP_NEW_ARRAY(w->d->arena, item, total), *members = SBP_NEW_ARRAY(w->d->arena, item, total);
    put_number(offsets, 0, 4);
    for (int64_t i = 0; i < count; i++) {
        for (int64_t k = 0; !is_null(values[i]) && k < values[i]->count; k++, at++) {
            sbp_json *key = SBP_NEW(w->d->arena, sbp_json);
            members[at] = &values[i]->items[k];
            *key = (sbp_json){.kind = SBP_JSON_STRING,
                              .string = members[at]->key,
                              .count = (int64_t)strlen(members[at]->key)};
            keys[at] = key;
        }
        put_number(offsets, (uint64_t)at, 4);
    }
    add_buffer(w, offsets);
    add_node(w, &(column){.kind = COLUMN_STRUCT}, keys, total);
    add_array(w, &c->children[0], keys, total);
    add_array(w, &c->children[1], members, total);
}

static void add_array(arrow_writer *w, const column *c, const item *values, int64_t count) {
    add_node(w, c, values, count);
    switch (c->kind) {
    case COLUMN_BOOL:
        add_bits(w, values, count, false);
        break;
    case COLUMN_INT:
    case COLUMN_REAL:
        add_numbers(w, c, values, count);
        break;
    case COLUMN_TEXT:
        if (c->shape == ARROW_VIEW)
            add_views(w, values, count);
        else
            add_texts(w, c, values, count);
        break;
    case COLUMN_LIST:
        add_list(w, c, values, count);
        break;
    case COLUMN_STRUCT:
        add_struct(w, c, values, count);
        break;
    case COLUMN_MAP:
        add_map(w, c, values, count);
        break;
    default:
        break;
    }
}

/* ---- messages --------------------------------------------------------------------------------------- */

static void begin_batch(arrow_writer *w) {
    sbp_text *all[] = {&w->body, &w->nodes, &w->buffers, &w->counts};
    for (int i = 0; i < SBP_COUNT(all); i++)
        sbp_text_init(all[i], w->d->arena);
    w->codec = (int)draw(w->d, 3) - 1;
}

/* A record batch, whose table the field at `at` points to. */
static void add_batch(arrow_writer *w, sbp_text *f, size_t at, int64_t rows) {
    size_t slot[5], codec[1];
    add_table(f, 5, (int[]){8, 4, 4, w->codec >= 0 ? 4 : 0, 4}, slot);
    refer_table(f, at, slot);
    patch(f, slot[0], (uint64_t)rows, 8);
    add_items(f, slot[1], &w->nodes, 16);
    add_items(f, slot[2], &w->buffers, 16);
    if (w->codec >= 0) {
        add_table(f, 1, (int[]){1}, codec);
        refer_table(f, slot[3], codec);
        patch(f, codec[0], (uint64_t)w->codec, 1);
    }
    add_items(f, slot[4], &w->counts, 8);
}

/* A message: head, then body. type: 1 schema, 2 dictionary `id`, 3 batch. */
static void put_message(arrow_writer *w, int type, int64_t id, int64_t rows) {
    sbp_text f;
    size_t slot[4], dictionary[2];
    sbp_text_init(&f, w->d->arena);
    put_number(&f, 0, 4);
    add_table(&f, 4, (int[]){2, 1, 4, 8}, slot);
    patch(&f, 0, slot[0] - 4, 4);
    patch(&f, slot[0], 4, 2);
    patch(&f, slot[1], (uint64_t)type, 1);
    patch(&f, slot[3], type == 1 ? 0 : w->body.length, 8);
    if (type == 1) {
        add_schema(w, &f, slot[2]);
    } else if (type == 2) {
        add_table(&f, 2, (int[]){8, 4}, dictionary);
        refer_table(&f, slot[2], dictionary);
        patch(&f, dictionary[0], (uint64_t)id, 8);
        add_batch(w, &f, dictionary[1], rows);
    } else {
        add_batch(w, &f, slot[2], rows);
    }
    align(&f, 8);
    if (type != 1) {
        sbp_text *blocks = &w->blocks[type - 2];
        put_number(blocks, w->out->length, 8);
        put_number(blocks, f.length + 8, 8);
        put_number(blocks, w->body.length, 8);
    }
    put_number(w->out, UINT32_MAX, 4);
    put_number(w->out, f.length, 4);
    sbp_text_add_n(w->out, f.data, f.length);
    if (type != 1)
        sbp_text_add_n(w->out, w->body.data, w->body.length);
}

/* All values of the column, so that row i has index i, with some that nobody names. */
static void put_dictionary(arrow_writer *w, int k) {
    column values = w->table->root.children[k];
    item *items = SBP_NEW_ARRAY(w->d->arena, item, w->table->row_count);
    for (int i = 0; i < w->table->row_count; i++)
        items[i] = &w->table->rows[i]->items[k];
    begin_batch(w);
    add_array(w, &values, items, w->table->row_count);
    put_message(w, 2, k, w->table->row_count);
}

/* Indexes of rows [first, first + count). */
static void add_indexes(arrow_writer *w, const item *values, int first, int count) {
    item *indexes = SBP_NEW_ARRAY(w->d->arena, item, count);
    for (int i = 0; i < count; i++) {
        sbp_json *index = SBP_NEW(w->d->arena, sbp_json);
        *index = (sbp_json){.kind = SBP_JSON_INT, .integer = first + i};
        indexes[i] = is_null(values[i]) && draw(w->d, 2) ? NULL : index;
    }
    add_array(w, &(column){.kind = COLUMN_INT, .bits = 32}, indexes, count);
}

static void put_batch(arrow_writer *w, int first, int count) {
    const column *root = &w->table->root;
    begin_batch(w);
    for (int k = 0; k < root->child_count; k++) {
        item *items = SBP_NEW_ARRAY(w->d->arena, item, count);
        for (int i = 0; i < count; i++)
            items[i] = &w->table->rows[first + i]->items[k];
        if (root->children[k].dictionary)
            add_indexes(w, items, first, count);
        else
            add_array(w, &root->children[k], items, count);
    }
    put_message(w, 3, 0, count);
}

static void put_dictionaries(arrow_writer *w) {
    for (int k = 0; k < w->table->root.child_count; k++)
        if (w->table->root.children[k].dictionary)
            put_dictionary(w, k);
}

static void put_footer(arrow_writer *w) {
    sbp_text f;
    size_t slot[4];
    sbp_text_init(&f, w->d->arena);
    put_number(&f, 0, 4);
    add_table(&f, 4, (int[]){2, 4, 4, 4}, slot);
    patch(&f, 0, slot[0] - 4, 4);
    patch(&f, slot[0], 4, 2);
    add_schema(w, &f, slot[1]);
    add_items(&f, slot[2], &w->blocks[0], 24);
    add_items(&f, slot[3], &w->blocks[1], 24);
    sbp_text_add_n(w->out, f.data, f.length);
    put_number(w->out, f.length, 4);
    sbp_text_add_n(w->out, "ARROW1", 6);
}

void table_write_arrow(drawing *d, const table *t, sbp_text *out) {
    arrow_writer w = {.d = d, .table = t, .out = out, .codec = -1};
    bool file = draw(d, 3) == 0;
    for (int i = 0; i < 2; i++)
        sbp_text_init(&w.blocks[i], d->arena);
    if (file)
        sbp_text_add_n(out, "ARROW1\0\0", 8);
    put_message(&w, 1, 0, 0);
    put_dictionaries(&w);
    for (int at = 0, left = 3; at < t->row_count || left > 0;) {
        int count = draw(d, 4) == 0 ? 0 : 1 + (int)draw(d, 9);
        count = count < t->row_count - at ? count : t->row_count - at;
        left -= count == 0;
        if (count == 0 && left < 0 && at < t->row_count)
            count = t->row_count - at;
        put_batch(&w, at, count);
        at += count;
        if (!file && draw(d, 6) == 0)
            put_dictionaries(&w); /* in place of those before */
    }
    if (file || draw(d, 2))
        sbp_text_add_n(out, "\xff\xff\xff\xff\0\0\0\0", 8);
    if (file)
        put_footer(&w);
}
