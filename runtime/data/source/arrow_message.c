/* arrow_message.c: messages of an Arrow stream: schema, dictionaries, record batches, in flatbuffers. */
#include <lz4frame.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "runtime/data/source/arrow.h"

enum { MESSAGE_SCHEMA = 1, MESSAGE_DICTIONARY = 2, MESSAGE_BATCH = 3 };
enum { MOST_DEPTH = 64, MOST_FIELDS = 100000, WINDOW = 1 << 16 };

static const int64_t most_head_bytes = (int64_t)1 << 28;

/* ---- flatbuffers ------------------------------------------------------------------------------------ */

/* Reads are checked against the end; what lies beyond reads as 0. */
typedef struct flat {
    const uint8_t *data;
    size_t length;
} flat;

static uint64_t number(const flat *f, size_t at, int bytes) {
    uint64_t value = 0;
    if (at > f->length || f->length - at < (size_t)bytes)
        return 0;
    memcpy(&value, f->data + at, (size_t)bytes);
    return value;
}

/* A place that an offset at `at` points to; 0: none. */
static size_t follow(const flat *f, size_t at) {
    size_t offset = (size_t)number(f, at, 4);
    return at && offset && offset < f->length && at < f->length - offset ? at + offset : 0;
}

/* Where field `id` of the table lies; 0: it has none. */
static size_t field(const flat *f, size_t table, int id) {
    if (table == 0)
        return 0;
    int64_t back = (int32_t)number(f, table, 4);
    int64_t vtable = (int64_t)table - back;
    if (vtable < 0 || vtable >= (int64_t)f->length)
        return 0;
    size_t size = (size_t)number(f, (size_t)vtable, 2), entry = 4 + 2 * (size_t)id;
    if (entry + 2 > size)
        return 0;
    size_t offset = (size_t)number(f, (size_t)vtable + entry, 2);
    return offset ? table + offset : 0;
}

static int64_t scalar(const flat *f, size_t table, int id, int bytes, int64_t otherwise) {
    size_t at = field(f, table, id);
    if (!at)
        return otherwise;
    uint64_t value = number(f, at, bytes);
    int unused = 64 - 8 * bytes;
    return (int64_t)(value << unused) >> unused;
}

/* Items of a vector, each of `bytes`; *count: as many as are there. */
static size_t vector(const flat *f, size_t table, int id, size_t bytes, int64_t *count) {
    size_t at = follow(f, field(f, table, id));
    uint64_t items = at ? number(f, at, 4) : 0;
    *count = 0;
    if (!at || f->length - at < 4 || items > (f->length - at - 4) / bytes)
        return 0;
    *count = (int64_t)items;
    return at + 4;
}

/* ---- buffers ---------------------------------------------------------------------------------------- */

static sbp_status out_of_memory(const sbp_source *s, sbp_diag *diag) {
    return sbp_fail(diag, SBP_MACHINE, "'%s': out of memory for a batch of rows", s->path);
}

static void free_buffer(sbp_source *s, sbp_arrow_buffer *b) {
    s->held -= (b->memory ? b->length : 0) + b->window_capacity;
    free(b->memory);
    free(b->window);
    *b = (sbp_arrow_buffer){0};
}

static void free_batch(sbp_source *s, sbp_arrow_field *f) {
    for (int i = 0; i < SBP_COUNT(f->buffers); i++)
        free_buffer(s, &f->buffers[i]);
    for (int32_t i = 0; i < f->text_count; i++)
        free_buffer(s, &f->texts[i]);
    free(f->texts);
    f->texts = NULL;
    f->text_count = 0;
    for (int32_t i = 0; i < f->child_count; i++)
        free_batch(s, &f->children[i]);
}

static sbp_status widen_window(sbp_source *s, sbp_diag *diag, sbp_arrow_buffer *b, int64_t capacity) {
    int64_t more = capacity - b->window_capacity;
    SBP_TRY(sbp_source_hold(s, diag, more));
    uint8_t *larger = sbp_realloc(b->window, (size_t)capacity + 1);
    if (!larger) {
        s->held -= more;
        return out_of_memory(s, diag);
    }
    b->window = larger;
    b->window_capacity = capacity;
    return SBP_OK;
}

sbp_status sbp_arrow_bytes(sbp_source *s, sbp_diag *diag, sbp_arrow_buffer *b, int64_t at, int64_t length,
                           const uint8_t **out) {
    if (at < 0 || length < 0 || at > b->length || length > b->length - at)
        return sbp_source_damaged(s, diag, "row %lld: a value lies beyond its column",
                                  (long long)s->rows + 1);
    if (length == 0) { /* of a buffer that may have no bytes at all */
        *out = (const uint8_t *)"";
        return SBP_OK;
    }
    if (b->memory) {
        *out = b->memory + at;
        return SBP_OK;
    }
    if (at < b->window_at || at + length > b->window_at + b->window_length) {
        int64_t take = b->length - at < WINDOW ? b->length - at : WINDOW;
        take = take < length ? length : take;
        if (take > b->window_capacity || !b->window)
            SBP_TRY(widen_window(s, diag, b, take));
        b->window_length = 0;
        SBP_TRY(sbp_source_pread(s, diag, b->window, b->offset + at, take));
        b->window_at = at;
        b->window_length = take;
    }
    *out = b->window + (at - b->window_at);
    return SBP_OK;
}

static bool unlz4(const uint8_t *in, size_t length, uint8_t *out, size_t bytes) {
    LZ4F_dctx *context;
    size_t done = 0, left = 1;
    if (LZ4F_isError(LZ4F_createDecompressionContext(&context, LZ4F_VERSION)))
        return false;
    while (left != 0 && length > 0) {
        size_t room = bytes - done, taken = length;
        left = LZ4F_decompress(context, out + done, &room, in, &taken, NULL);
        if (LZ4F_isError(left) || (room == 0 && taken == 0))
            break;
        done += room;
        in += taken;
        length -= taken;
    }
    LZ4F_freeDecompressionContext(context);
    return done == bytes;
}

/* How many bytes a compressed buffer has: they stand before it. -1: it is not compressed. */
static sbp_status read_length(const sbp_source *s, sbp_diag *diag, sbp_arrow_buffer *b, int64_t *bytes) {
    if (b->length < 8)
        return sbp_source_damaged(s, diag, "a compressed buffer is too short");
    SBP_TRY(sbp_source_pread(s, diag, bytes, b->offset, 8));
    b->offset += 8;
    b->length -= 8;
    if (*bytes < -1)
        return sbp_source_damaged(s, diag, "a compressed buffer says that it has %lld bytes",
                                  (long long)*bytes);
    return SBP_OK;
}

static bool decompress(int codec, const uint8_t *raw, int64_t raw_bytes, uint8_t *out, int64_t bytes) {
    if (codec == 0)
        return bytes == 0 || unlz4(raw, (size_t)raw_bytes, out, (size_t)bytes);
    return ZSTD_decompress(out, (size_t)bytes, raw, (size_t)raw_bytes) == (size_t)bytes;
}

/* Takes a buffer into memory: where it is compressed, or belongs to a dictionary. codec -1: none. */
static sbp_status load_buffer(sbp_source *s, sbp_diag *diag, int codec, sbp_arrow_buffer *b) {
    int64_t bytes = -1, raw_bytes;
    if (b->length == 0)
        return SBP_OK;
    if (codec >= 0)
        SBP_TRY(read_length(s, diag, b, &bytes));
    raw_bytes = b->length;
    b->length = bytes == -1 ? raw_bytes : bytes;
    sbp_status status = sbp_source_hold(s, diag, b->length);
    uint8_t *memory = status == SBP_OK ? sbp_malloc((size_t)b->length + 1) : NULL;
    if (!memory) { /* the buffer has nothing that was held */
        s->held -= status == SBP_OK ? b->length : 0;
        b->length = 0;
        return status == SBP_OK ? out_of_memory(s, diag) : status;
    }
    b->memory = memory;
    if (bytes == -1)
        return sbp_source_pread(s, diag, memory, b->offset, raw_bytes);
    uint8_t *raw = sbp_malloc((size_t)raw_bytes + 1);
    if (!raw)
        return out_of_memory(s, diag);
    status = sbp_source_pread(s, diag, raw, b->offset, raw_bytes);
    bool good = status == SBP_OK && decompress(codec, raw, raw_bytes, memory, bytes);
    free(raw);
    SBP_TRY(status);
    return good ? SBP_OK : sbp_source_damaged(s, diag, "a compressed buffer is damaged");
}

/* ---- schema ----------------------------------------------------------------------------------------- */

typedef struct schema_reader {
    sbp_source *source;
    sbp_diag *diag;
    sbp_arrow_state *state;
    flat flat;
    int32_t fields, dictionary_capacity, other_count;
    const char *other;
} schema_reader;

static void set_plain(sbp_arrow_field *f, sbp_arrow_kind kind, int buffers, int bits) {
    f->kind = kind;
    f->buffer_count = buffers;
    f->has_validity = buffers > 0;
    f->bits = bits;
}

/* By the members of the union Type; false: how many buffers it has is not known. */
static bool set_type(const flat *f, int type, size_t table, sbp_arrow_field *out) {
    int64_t precision;
    switch (type) {
    case 1: /* Null */
        set_plain(out, SBP_ARROW_NULLS, 0, 0);
        return true;
    case 2: /* Int */
        set_plain(out, SBP_ARROW_INTS, 2, (int)scalar(f, table, 0, 4, 0));
        out->is_unsigned = !scalar(f, table, 1, 1, 0);
        return out->bits == 8 || out->bits == 16 || out->bits == 32 || out->bits == 64;
    case 3: /* FloatingPoint */
        precision = scalar(f, table, 0, 2, 0);
        set_plain(out, SBP_ARROW_REALS, 2, precision == 0 ? 16 : precision == 1 ? 32 : 64);
        return true;
    case 4: /* Binary */
        set_plain(out, SBP_ARROW_OTHER, 3, 32);
        return true;
    case 5: /* Utf8 */
        set_plain(out, SBP_ARROW_TEXTS, 3, 32);
        return true;
    case 6: /* Bool */
        set_plain(out, SBP_ARROW_BOOLS, 2, 1);
        return true;
    case 7:  /* Decimal */
    case 8:  /* Date */
    case 9:  /* Time */
    case 10: /* Timestamp */
    case 11: /* Interval */
    case 15: /* FixedSizeBinary */
    case 18: /* Duration */
        set_plain(out, SBP_ARROW_OTHER, 2, 0);
        return true;
    case 12: /* List */
        set_plain(out, SBP_ARROW_LIST, 2, 32);
        return true;
    case 13: /* Struct */
        set_plain(out, SBP_ARROW_STRUCT, 1, 0);
        return true;
    case 14: /* Union: types, and offsets where it is dense */
        set_plain(out, SBP_ARROW_OTHER, scalar(f, table, 0, 2, 0) == 1 ? 2 : 1, 0);
        return true;
    case 16: /* FixedSizeList */
        set_plain(out, SBP_ARROW_FIXED_LIST, 1, 0);
        out->list_size = scalar(f, table, 0, 4, 0);
        return out->list_size >= 0;
    case 17: /* Map */
        set_plain(out, SBP_ARROW_MAP, 2, 32);
        return true;
    case 19: /* LargeBinary */
        set_plain(out, SBP_ARROW_OTHER, 3, 64);
        return true;
    case 20: /* LargeUtf8 */
        set_plain(out, SBP_ARROW_TEXTS, 3, 64);
        return true;
    case 21: /* LargeList */
        set_plain(out, SBP_ARROW_LIST, 2, 64);
        return true;
    case 22: /* RunEndEncoded */
        set_plain(out, SBP_ARROW_OTHER, 0, 0);
        return true;
    case 23: /* BinaryView */
        set_plain(out, SBP_ARROW_OTHER, 2, 0);
        out->variadic = true;
        return true;
    case 24: /* Utf8View */
        set_plain(out, SBP_ARROW_VIEWS, 2, 0);
        out->variadic = true;
        return true;
    case 25: /* ListView */
        set_plain(out, SBP_ARROW_LIST_VIEW, 3, 32);
        return true;
    case 26: /* LargeListView */
        set_plain(out, SBP_ARROW_LIST_VIEW, 3, 64);
        return true;
    default:
        return false;
    }
}

static sbp_status read_field(schema_reader *r, size_t table, int depth, sbp_arrow_field *out);

static sbp_status read_children(schema_reader *r, size_t table, int depth, sbp_arrow_field *out) {
    int64_t count;
    size_t items = vector(&r->flat, table, depth == 0 ? 1 : 5, 4, &count);
    if (depth > MOST_DEPTH || count > MOST_FIELDS)
        return sbp_source_damaged(r->source, r->diag, "its schema nests too deep");
    out->children = SBP_NEW_ARRAY(r->source->arena, sbp_arrow_field, count);
    out->child_count = (int32_t)count;
    for (int64_t i = 0; i < count; i++) {
        out->children[i].parent = out;
        SBP_TRY(read_field(r, follow(&r->flat, items + 4 * (size_t)i), depth + 1, &out->children[i]));
    }
    return SBP_OK;
}

/* An encoded column: it has indexes, and the values are in batches of their own. */
static sbp_status make_dictionary(schema_reader *r, size_t encoding, sbp_arrow_field *out) {
    sbp_arrow_field *values = SBP_NEW(r->source->arena, sbp_arrow_field), *before = out->parent;
    const char *name = out->name;
    size_t index = follow(&r->flat, field(&r->flat, encoding, 1));
    *values = *out;
    *out = (sbp_arrow_field){.name = name, .parent = before, .dictionary = values};
    out->dictionary_id = scalar(&r->flat, encoding, 0, 8, 0);
    for (int32_t i = 0; i < values->child_count; i++)
        values->children[i].parent = values;
    set_plain(out, SBP_ARROW_INTS, 2, index ? (int)scalar(&r->flat, index, 0, 4, 32) : 32);
    out->is_unsigned = index && !scalar(&r->flat, index, 1, 1, 0);
    if (out->bits != 8 && out->bits != 16 && out->bits != 32 && out->bits != 64)
        return sbp_source_damaged(r->source, r->diag, "column '%s' has indexes of %d bits", name, out->bits);
    if (values->kind == SBP_ARROW_OTHER)
        out->kind = SBP_ARROW_OTHER;
    SBP_PUSH(r->source->arena, r->state->dictionaries, r->state->dictionary_count, r->dictionary_capacity,
             out);
    return SBP_OK;
}

/* Lists and maps without an item that can be read, structs without a member. */
static bool nothing_is_read(const sbp_arrow_field *f) {
    if (f->kind == SBP_ARROW_MAP)
        return f->child_count != 1 || f->children->kind != SBP_ARROW_STRUCT ||
               f->children->child_count != 2 || f->children->children[0].kind == SBP_ARROW_OTHER ||
               f->children->children[1].kind == SBP_ARROW_OTHER;
    if (f->kind != SBP_ARROW_STRUCT && f->kind != SBP_ARROW_LIST && f->kind != SBP_ARROW_FIXED_LIST &&
        f->kind != SBP_ARROW_LIST_VIEW)
        return false;
    if (f->kind != SBP_ARROW_STRUCT && f->child_count != 1)
        return true;
    for (int32_t i = 0; i < f->child_count; i++)
        if (f->children[i].kind != SBP_ARROW_OTHER)
            return false;
    return f->child_count > 0;
}

static sbp_status read_field(schema_reader *r, size_t table, int depth, sbp_arrow_field *out) {
    size_t name = follow(&r->flat, field(&r->flat, table, 0)), text = name + 4;
    uint64_t length = name ? number(&r->flat, name, 4) : 0;
    if (!table || ++r->fields > MOST_FIELDS ||
        (name && (text > r->flat.length || length > r->flat.length - text)) ||
        (name && !sbp_is_utf8((const char *)r->flat.data + text, (int64_t)length)))
        return sbp_source_damaged(r->source, r->diag, "its schema is damaged");
    SBP_TRY(sbp_source_hold(r->source, r->diag, (int64_t)length)); /* many fields may have one long name */
    out->name =
        name ? sbp_arena_strndup(r->source->arena, (const char *)r->flat.data + text, (size_t)length) : "";
    int type = (int)scalar(&r->flat, table, 2, 1, 0);
    if (!set_type(&r->flat, type, follow(&r->flat, field(&r->flat, table, 3)), out))
        return sbp_fail(r->diag, SBP_INPUT,
                        "'%s': column '%s' is of Arrow's type %d, which is not known here", r->source->path,
                        out->name, type);
    SBP_TRY(read_children(r, table, depth, out));
    if (out->kind == SBP_ARROW_OTHER || nothing_is_read(out)) {
        out->kind = SBP_ARROW_OTHER;
        r->other = r->other ? r->other : out->name;
        r->other_count++;
    }
    size_t encoding = follow(&r->flat, field(&r->flat, table, 4));
    return encoding ? make_dictionary(r, encoding, out) : SBP_OK;
}

static sbp_status read_schema(sbp_source *s, sbp_diag *diag, sbp_arrow_state *state, const flat *f,
                              size_t table) {
    schema_reader r = {.source = s, .diag = diag, .state = state, .flat = *f};
    state->root.kind = SBP_ARROW_STRUCT;
    state->root.name = "";
    if (scalar(f, table, 0, 2, 0) != 0)
        return sbp_fail(diag, SBP_INPUT, "'%s' was written by a machine with the other order of bytes",
                        s->path);
    SBP_TRY(read_children(&r, table, 0, &state->root));
    if (nothing_is_read(&state->root) || state->root.child_count == 0)
        return sbp_fail(diag, SBP_INPUT, "'%s' has no column of a supported type", s->path);
    if (r.other_count > 0)
        sbp_note(diag, "'%s': column '%s'%s of an unsupported type%s left out", s->path, r.other,
                 r.other_count > 1 ? " and others are" : " is", r.other_count > 1 ? ": they are" : ": it is");
    return SBP_OK;
}

/* ---- batches ---------------------------------------------------------------------------------------- */

typedef struct batch_reader {
    sbp_source *source;
    sbp_diag *diag;
    sbp_arrow_state *state;
    flat flat;
    int64_t body, body_bytes; /* of the file */
    size_t nodes, buffers, counts;
    int64_t node_count, buffer_count, count_count, node, buffer, count;
    int codec; /* -1: none */
    bool keep; /* in memory: of a dictionary */
} batch_reader;

static sbp_status damaged(const batch_reader *r) {
    return sbp_source_damaged(r->source, r->diag, "a batch of rows does not fit the schema");
}

static sbp_status take_buffer(batch_reader *r, bool used, sbp_arrow_buffer *out) {
    if (r->buffer >= r->buffer_count)
        return damaged(r);
    size_t at = r->buffers + 16 * (size_t)r->buffer++;
    int64_t offset = (int64_t)number(&r->flat, at, 8), length = (int64_t)number(&r->flat, at + 8, 8);
    if (offset < 0 || length < 0 || offset > r->body_bytes || length > r->body_bytes - offset)
        return damaged(r);
    if (!used)
        return SBP_OK;
    *out = (sbp_arrow_buffer){.offset = r->body + offset, .length = length};
    return r->codec >= 0 || r->keep ? load_buffer(r->source, r->diag, r->codec, out) : SBP_OK;
}

/* Empty ones, which are there until the batch is freed. */
static sbp_status make_texts(batch_reader *r, sbp_arrow_field *f, int64_t count) {
    size_t bytes = (size_t)count * sizeof *f->texts;
    f->texts = sbp_malloc(bytes);
    if (!f->texts)
        return out_of_memory(r->source, r->diag);
    memset(f->texts, 0, bytes);
    f->text_count = (int32_t)count;
    return SBP_OK;
}

static sbp_status take_field(batch_reader *r, sbp_arrow_field *f, bool used) {
    sbp_arrow_buffer unused = {0};
    used = used && f->kind != SBP_ARROW_OTHER && !f->unread;
    if (r->node >= r->node_count)
        return damaged(r);
    size_t at = r->nodes + 16 * (size_t)r->node++;
    f->length = (int64_t)number(&r->flat, at, 8);
    f->null_count = (int64_t)number(&r->flat, at + 8, 8);
    if (f->length < 0)
        return damaged(r);
    for (int i = 0; i < f->buffer_count; i++)
        SBP_TRY(take_buffer(r, used, &f->buffers[i]));
    if (f->null_count > f->length ||
        (used && f->has_validity && f->null_count > 0 && f->buffers[0].length == 0))
        return damaged(r); /* values that are null, and nothing says which */
    if (f->variadic) {
        int64_t texts =
            r->count < r->count_count ? (int64_t)number(&r->flat, r->counts + 8 * (size_t)r->count++, 8) : -1;
        if (texts < 0 || texts > r->buffer_count - r->buffer)
            return damaged(r);
        if (used)
            SBP_TRY(make_texts(r, f, texts));
        for (int64_t i = 0; i < texts; i++)
            SBP_TRY(take_buffer(r, used, used ? &f->texts[i] : &unused));
    }
    for (int32_t i = 0; i < f->child_count; i++)
        SBP_TRY(take_field(r, &f->children[i], used));
    return SBP_OK;
}

/* table: a RecordBatch. */
static void begin_batch(batch_reader *r, size_t table) {
    size_t compression = follow(&r->flat, field(&r->flat, table, 3));
    r->nodes = vector(&r->flat, table, 1, 16, &r->node_count);
    r->buffers = vector(&r->flat, table, 2, 16, &r->buffer_count);
    r->counts = vector(&r->flat, table, 4, 8, &r->count_count);
    r->codec = compression ? (int)scalar(&r->flat, compression, 0, 1, 0) : -1;
    r->node = r->buffer = r->count = 0;
}

static sbp_status read_batch(batch_reader *r, size_t table) {
    sbp_arrow_state *state = r->state;
    begin_batch(r, table);
    if (r->codec > 1)
        return damaged(r);
    state->row = 0;
    state->rows = scalar(&r->flat, table, 0, 8, 0);
    for (int32_t i = 0; i < state->root.child_count; i++) {
        SBP_TRY(take_field(r, &state->root.children[i], true));
        if (state->root.children[i].length != state->rows)
            return damaged(r);
    }
    return state->rows < 0 ? damaged(r) : SBP_OK;
}

/* A dictionary, for all fields that have it. What is added to one later is not known here. */
static sbp_status read_dictionary(batch_reader *r, size_t table) {
    size_t data = follow(&r->flat, field(&r->flat, table, 1));
    int64_t id = scalar(&r->flat, table, 0, 8, 0);
    if (scalar(&r->flat, table, 2, 1, 0))
        return sbp_fail(r->diag, SBP_INPUT,
                        "'%s': a dictionary grows between batches, which is not supported", r->source->path);
    r->keep = true;
    for (int32_t i = 0; i < r->state->dictionary_count; i++) {
        sbp_arrow_field *f = r->state->dictionaries[i];
        if (f->dictionary_id != id)
            continue;
        begin_batch(r, data);
        free_batch(r->source, f->dictionary);
        if (r->codec > 1)
            return damaged(r);
        SBP_TRY(take_field(r, f->dictionary, true));
    }
    r->keep = false;
    return SBP_OK;
}

/* ---- messages --------------------------------------------------------------------------------------- */

typedef struct message_job {
    sbp_source *source;
    sbp_diag *diag;
    sbp_arrow_state *state;
    int64_t at, head_bytes;
    int type;
} message_job;

static sbp_status message_body(void *user) {
    message_job *job = user;
    sbp_arrow_state *state = job->state;
    sbp_source *s = job->source;
    uint8_t *head = sbp_arena_alloc(state->batch_arena, (size_t)job->head_bytes);
    SBP_TRY(sbp_source_pread(s, job->diag, head, job->at, job->head_bytes));
    flat f = {head, (size_t)job->head_bytes};
    size_t root = (size_t)number(&f, 0, 4);
    if (root == 0 || root >= f.length)
        return sbp_source_damaged(s, job->diag, "a message is damaged");
    job->type = (int)scalar(&f, root, 1, 1, 0);
    size_t table = follow(&f, field(&f, root, 2));
    int64_t bytes = scalar(&f, root, 3, 8, 0), body = job->at + job->head_bytes;
    if (bytes < 0 || bytes > s->size - body)
        return sbp_source_damaged(s, job->diag, "it ends in the middle of a batch");
    state->at = body + sbp_round_up(bytes, 8);
    batch_reader r = {.source = s,
                      .diag = job->diag,
                      .state = state,
                      .flat = f,
                      .body = body,
                      .body_bytes = bytes,
                      .codec = -1};
    if (job->type == MESSAGE_SCHEMA)
        return read_schema(s, job->diag, state, &f, table);
    if (job->type == MESSAGE_DICTIONARY)
        return read_dictionary(&r, table);
    return job->type == MESSAGE_BATCH ? read_batch(&r, table) : SBP_OK;
}

/* The next message: *type, 0 at the end. */
static sbp_status next_message(sbp_source *s, sbp_diag *diag, sbp_arrow_state *state, int *type) {
    uint32_t prefix[2] = {0};
    *type = 0;
    if (state->blocks) {
        if (state->block == state->block_count)
            return SBP_OK;
        state->at = state->blocks[state->block++];
        if (state->at < 0 || state->at > s->size - 8)
            return sbp_source_damaged(s, diag, "a batch lies beyond its end");
    }
    if (s->size - state->at < 8) /* a stream may end without saying so */
        return s->size - state->at <= 4 ? SBP_OK
                                        : sbp_source_damaged(s, diag, "it ends in the middle of a message");
    SBP_TRY(sbp_source_pread(s, diag, prefix, state->at, 8));
    bool old = prefix[0] != UINT32_MAX; /* without the mark, before Arrow 0.15 */
    int64_t head = old ? prefix[0] : prefix[1];
    if (head == 0)
        return SBP_OK;
    state->at += old ? 4 : 8;
    if (head > s->size - state->at || head > most_head_bytes)
        return sbp_source_damaged(s, diag, "it ends in the middle of a message");
    message_job job = {s, diag, state, state->at, head, 0};
    SBP_TRY(sbp_guard(state->batch_arena, diag, message_body, &job));
    *type = job.type;
    return SBP_OK;
}

/* Places of the messages in field `id` of the footer. */
static void add_blocks(const flat *f, size_t footer, int id, sbp_arrow_state *state) {
    int64_t count;
    size_t at = vector(f, footer, id, 24, &count);
    for (int64_t i = 0; i < count; i++)
        state->blocks[state->block_count++] = (int64_t)number(f, at + 24 * (size_t)i, 8);
}

/* Schema and places of a file's messages; below a guard on the arena of the source. */
static sbp_status read_footer(sbp_source *s, sbp_diag *diag, sbp_arrow_state *state) {
    uint8_t tail[10];
    int64_t dictionaries, batches;
    if (s->size < 18)
        return sbp_source_damaged(s, diag, "it ends in the middle");
    SBP_TRY(sbp_source_pread(s, diag, tail, s->size - 10, 10));
    const flat end = {tail, sizeof tail};
    int64_t length = (int32_t)number(&end, 0, 4);
    if (memcmp(tail + 4, "ARROW1", 6) != 0 || length <= 4 || length > s->size - 18)
        return sbp_source_damaged(s, diag, "its end is missing: was it downloaded as a whole?");
    uint8_t *data = sbp_arena_alloc(s->arena, (size_t)length);
    SBP_TRY(sbp_source_pread(s, diag, data, s->size - 10 - length, length));
    const flat f = {data, (size_t)length};
    size_t footer = (size_t)number(&f, 0, 4);
    vector(&f, footer, 2, 24, &dictionaries);
    vector(&f, footer, 3, 24, &batches);
    state->blocks = SBP_NEW_ARRAY(s->arena, int64_t, dictionaries + batches + 1);
    add_blocks(&f, footer, 2, state);
    add_blocks(&f, footer, 3, state);
    return read_schema(s, diag, state, &f, follow(&f, field(&f, footer, 1)));
}

sbp_status sbp_arrow_open(sbp_source *s, sbp_diag *diag, sbp_arrow_state *state) {
    char magic[6];
    int type;
    state->batch_arena = sbp_arena_create();
    if (!state->batch_arena)
        return out_of_memory(s, diag);
    SBP_TRY(sbp_source_pread(s, diag, magic, 0, 6));
    if (memcmp(magic, "ARROW1", 6) == 0)
        return read_footer(s, diag, state);
    SBP_TRY(next_message(s, diag, state, &type));
    return type == MESSAGE_SCHEMA ? SBP_OK : sbp_source_damaged(s, diag, "it does not begin with a schema");
}

sbp_status sbp_arrow_next_batch(sbp_source *s, sbp_diag *diag, sbp_arrow_state *state, bool *end) {
    int type;
    do {
        free_batch(s, &state->root); /* also one of no rows, which nobody has read */
        state->rows = state->row = 0;
        sbp_arena_end(state->batch_arena, (sbp_arena_mark){0});
        SBP_TRY(next_message(s, diag, state, &type));
        if (type == MESSAGE_SCHEMA)
            return sbp_source_damaged(s, diag, "it has two schemas");
    } while (type != 0 && state->rows == 0);
    *end = type == 0;
    return SBP_OK;
}

void sbp_arrow_close(sbp_source *s, sbp_arrow_state *state) {
    free_batch(s, &state->root);
    for (int32_t i = 0; i < state->dictionary_count; i++)
        free_batch(s, state->dictionaries[i]->dictionary);
    sbp_arena_destroy(state->batch_arena);
}
