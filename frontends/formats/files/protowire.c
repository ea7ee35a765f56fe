/* protowire.c: protobuf's wire format as a tree. */
#include "frontends/formats/files/protowire.h"

#include <string.h>

enum { MOST_DEPTH = 32 };

typedef struct reader {
    sbp_arena *arena;
    sbp_diag *diag;
    const char *file;
    const uint8_t *begin, *at, *end; /* the piece at hand */
    const sbp_wire_schema *schema;
    int32_t depth;
} reader;

/* Values of a field, as they come. */
typedef struct values {
    const sbp_wire_field *field;
    sbp_json *items;
    int32_t count, capacity;
} values;

static sbp_status fail(const reader *r, const char *what) {
    return sbp_fail(r->diag, SBP_INPUT, "%s: byte %lld: %s", r->file, (long long)(r->at - r->begin), what);
}

static sbp_status varint(reader *r, uint64_t *out) {
    *out = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        if (r->at == r->end)
            return fail(r, "the file ends within a number");
        uint8_t byte = *r->at++;
        if (shift < 64)
            *out |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80))
            return SBP_OK;
    }
    return fail(r, "a number of more than ten bytes");
}

static sbp_status fixed(reader *r, size_t bytes, void *out) {
    if ((size_t)(r->end - r->at) < bytes)
        return fail(r, "the file ends within a number");
    memcpy(out, r->at, bytes);
    r->at += bytes;
    return SBP_OK;
}

static sbp_status piece(reader *r, const uint8_t **data, size_t *bytes) {
    uint64_t length;
    SBP_TRY(varint(r, &length));
    if (length > (uint64_t)(r->end - r->at))
        return fail(r, "a piece is longer than what is left of the file");
    *data = r->at;
    *bytes = (size_t)length;
    r->at += length;
    return SBP_OK;
}

static sbp_json *add(const reader *r, values *v) {
    SBP_PUSH(r->arena, v->items, v->count, v->capacity, (sbp_json){0});
    return &v->items[v->count - 1];
}

/* ---- values of a field -------------------------------------------------------------------------------- */

enum { WIRE_VARINT, WIRE_64, WIRE_LENGTH, WIRE_GROUP, WIRE_GROUP_END, WIRE_32 };

static int wire_type(sbp_wire_kind kind) {
    switch (kind) {
    case SBP_WIRE_INT:
    case SBP_WIRE_UINT:
        return WIRE_VARINT;
    case SBP_WIRE_FLOAT:
        return WIRE_32;
    case SBP_WIRE_DOUBLE:
        return WIRE_64;
    default:
        return WIRE_LENGTH;
    }
}

static sbp_status number(reader *r, sbp_wire_kind kind, sbp_json *out) {
    uint64_t integer;
    float narrow;
    if (kind == SBP_WIRE_INT || kind == SBP_WIRE_UINT) {
        SBP_TRY(varint(r, &integer));
        out->kind = SBP_JSON_INT;
        memcpy(&out->integer, &integer, sizeof integer);
        return SBP_OK;
    }
    out->kind = SBP_JSON_REAL;
    if (kind == SBP_WIRE_DOUBLE)
        return fixed(r, sizeof out->real, &out->real);
    SBP_TRY(fixed(r, sizeof narrow, &narrow));
    out->real = (double)narrow;
    return SBP_OK;
}

static sbp_status message(reader *r, int32_t type, const uint8_t *data, size_t bytes, sbp_json *out);

static sbp_status text_of(reader *r, const uint8_t *data, size_t bytes, sbp_json *out) {
    out->kind = SBP_JSON_STRING;
    out->string = sbp_arena_strndup(r->arena, (const char *)data, bytes);
    out->count = (int64_t)bytes;
    if (memchr(data, 0, bytes))
        return fail(r, "a string with a zero byte");
    return SBP_OK;
}

static sbp_status value(reader *r, values *v, int type) {
    const sbp_wire_field *f = v->field;
    const uint8_t *data = NULL;
    size_t bytes = 0;
    int own = wire_type(f->kind);
    if (type == WIRE_LENGTH && own != WIRE_LENGTH && f->repeated) { /* packed */
        SBP_TRY(piece(r, &data, &bytes));
        const uint8_t *end = r->end;
        r->at = data;
        r->end = data + bytes;
        while (r->at < r->end)
            SBP_TRY(number(r, f->kind, add(r, v)));
        r->end = end;
        return SBP_OK;
    }
    if (type != own)
        return fail(r, "a field of another wire type than its schema says");
    sbp_json *out = add(r, v);
    if (own != WIRE_LENGTH)
        return number(r, f->kind, out);
    SBP_TRY(piece(r, &data, &bytes));
    switch (f->kind) {
    case SBP_WIRE_STRING:
        return text_of(r, data, bytes, out);
    case SBP_WIRE_MESSAGE: {
        sbp_json made = {0};
        SBP_TRY(message(r, f->type, data, bytes, &made));
        v->items[v->count - 1] = made;
        return SBP_OK;
    }
    case SBP_WIRE_OPAQUE:
        out->kind = SBP_JSON_OBJECT;
        return SBP_OK;
    default:
        out->kind = SBP_JSON_BYTES;
        out->string = (const char *)data;
        out->count = (int64_t)bytes;
        return SBP_OK;
    }
}

/* ---- messages ----------------------------------------------------------------------------------------- */

static const sbp_wire_field *find_field(const reader *r, int32_t type, uint64_t number_of) {
    for (int32_t i = 0; i < r->schema->count; i++)
        if (r->schema->fields[i].message == type && (uint64_t)r->schema->fields[i].number == number_of)
            return &r->schema->fields[i];
    return NULL;
}

static values *values_of(values *all, int32_t count, const sbp_wire_field *field) {
    for (int64_t i = 0; i < count; i++)
        if (all[i].field == field)
            return &all[i];
    return NULL;
}

/* Children know their parent, which lies in place now. */
static void adopt(sbp_json *parent) {
    sbp_json *items = (sbp_json *)parent->items;
    for (int64_t i = 0;
         (parent->kind == SBP_JSON_ARRAY || parent->kind == SBP_JSON_OBJECT) && i < parent->count; i++) {
        items[i].parent = parent;
        items[i].index = (int32_t)i;
        adopt(&items[i]);
    }
}

static sbp_status message(reader *r, int32_t type, const uint8_t *data, size_t bytes, sbp_json *out) {
    const uint8_t *at = r->at, *end = r->end;
    values *all = NULL;
    int32_t count = 0, capacity = 0;
    if (++r->depth > MOST_DEPTH)
        return fail(r, "messages within messages, too deep");
    r->at = data;
    r->end = data + bytes;
    while (r->at < r->end) {
        uint64_t tag;
        SBP_TRY(varint(r, &tag));
        const sbp_wire_field *field = find_field(r, type, tag >> 3);
        if (!field)
            return sbp_fail(r->diag, SBP_INPUT, "%s: byte %lld: %s has no field %llu", r->file,
                            (long long)(r->at - r->begin), r->schema->messages[type],
                            (unsigned long long)(tag >> 3));
        values *v = values_of(all, count, field);
        if (!v) {
            SBP_PUSH(r->arena, all, count, capacity, (values){.field = field});
            v = &all[count - 1];
        }
        if (!field->repeated)
            v->count = 0;
        SBP_TRY(value(r, v, (int)(tag & 7)));
    }
    sbp_json *members = SBP_NEW_ARRAY(r->arena, sbp_json, count);
    for (int64_t i = 0; i < count; i++) {
        members[i] = all[i].field->repeated ? (sbp_json){.kind = SBP_JSON_ARRAY, .count = all[i].count}
                                            : all[i].items[0];
        if (all[i].field->repeated)
            members[i].items = all[i].items;
        members[i].key = all[i].field->name;
    }
    *out = (sbp_json){.kind = SBP_JSON_OBJECT, .count = count};
    out->items = members;
    r->at = at;
    r->end = end;
    r->depth--;
    return SBP_OK;
}

typedef struct job {
    reader r;
    size_t bytes;
    int32_t message;
    const sbp_json **out;
} job;

static sbp_status parse(void *user) {
    job *j = user;
    sbp_json *root = SBP_NEW(j->r.arena, sbp_json);
    SBP_TRY(message(&j->r, j->message, j->r.begin, j->bytes, root));
    root->key = j->r.file;
    adopt(root);
    *j->out = root;
    return SBP_OK;
}

sbp_status sbp_wire_parse(sbp_arena *arena, sbp_diag *diag, const char *file, const void *data, size_t bytes,
                          const sbp_wire_schema *schema, int32_t number_of, const sbp_json **out) {
    job j = {.r = {.arena = arena,
                   .diag = diag,
                   .file = file,
                   .begin = data,
                   .at = data,
                   .end = (const uint8_t *)data + bytes,
                   .schema = schema},
             .bytes = bytes,
             .message = number_of,
             .out = out};
    return sbp_guard(arena, diag, parse, &j);
}
