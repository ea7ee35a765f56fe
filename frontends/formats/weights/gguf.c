/* gguf.c: reading GGUF. */
#include "frontends/formats/weights/gguf.h"
#include "frontends/formats/weights/weights_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF numbers are used as they lie in the file");

struct sbp_gguf {
    const char *path;
    sbp_gguf_value *values;
    int32_t count, capacity;
    sbp_map by_key;
};

/* Sequential reading of the head through a buffer. */
typedef struct reader {
    sbp_arena *arena;
    sbp_diag *diag;
    weights_file file;
    int64_t position; /* of the next byte to be handed out */
    int64_t buffered; /* file offset of buffer[0] */
    int64_t filled;
    unsigned char buffer[1 << 15];
} reader;

static sbp_status cut_off(reader *r, const char *what, uint64_t needed) {
    return sbp_fail(r->diag, SBP_INPUT, "%s: %s at byte %lld needs %llu bytes, but only %lld follow",
                    r->file.path, what, (long long)r->position, (unsigned long long)needed,
                    (long long)(r->file.bytes - r->position));
}

static sbp_status take(reader *r, const char *what, void *out, uint64_t bytes) {
    if (bytes > (uint64_t)(r->file.bytes - r->position))
        return cut_off(r, what, bytes);
    if (bytes > sizeof r->buffer) { /* large arrays go straight to their place */
        SBP_TRY(sbp_file_pread(r->diag, r->file.fd, r->file.path, out, (int64_t)bytes, r->position));
        r->position += (int64_t)bytes;
        return SBP_OK;
    }
    if (r->position < r->buffered || r->position + (int64_t)bytes > r->buffered + r->filled) {
        int64_t left = r->file.bytes - r->position;
        r->buffered = r->position;
        r->filled = left < (int64_t)sizeof r->buffer ? left : (int64_t)sizeof r->buffer;
        SBP_TRY(sbp_file_pread(r->diag, r->file.fd, r->file.path, r->buffer, r->filled, r->buffered));
    }
    if (bytes > 0)
        memcpy(out, r->buffer + (r->position - r->buffered), bytes);
    r->position += (int64_t)bytes;
    return SBP_OK;
}

static sbp_status take_u32(reader *r, const char *what, uint32_t *out) {
    return take(r, what, out, 4);
}

static sbp_status take_u64(reader *r, const char *what, uint64_t *out) {
    return take(r, what, out, 8);
}

static sbp_status take_string(reader *r, const char *what, sbp_gguf_string *out) {
    uint64_t length = 0; /* gcc 14 does not see that take() sets it */
    SBP_TRY(take_u64(r, what, &length));
    if (length > (uint64_t)(r->file.bytes - r->position))
        return cut_off(r, what, length);
    char *data = sbp_arena_alloc(r->arena, length + 1);
    SBP_TRY(take(r, what, data, length));
    *out = (sbp_gguf_string){data, (int64_t)length};
    return SBP_OK;
}

/* Names must be usable as C strings. */
static sbp_status take_name(reader *r, const char *what, const char **out) {
    sbp_gguf_string name;
    SBP_TRY(take_string(r, what, &name));
    if (strlen(name.data) != (size_t)name.length)
        return sbp_fail(r->diag, SBP_INPUT, "%s: %s before byte %lld contains a NUL character", r->file.path,
                        what, (long long)r->position);
    *out = name.data;
    return SBP_OK;
}

static const int8_t type_bytes[SBP_GGUF_TYPE_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

static sbp_status take_value(reader *r, sbp_gguf_value *v) {
    uint32_t type;
    uint64_t count = 1;
    SBP_TRY(take_u32(r, "a value type", &type));
    v->is_array = type == SBP_GGUF_ARRAY;
    if (v->is_array) {
        SBP_TRY(take_u32(r, "an array type", &type));
        SBP_TRY(take_u64(r, "an array length", &count));
    }
    if (type >= SBP_GGUF_TYPE_COUNT || type == SBP_GGUF_ARRAY)
        return sbp_fail(r->diag, SBP_INPUT, "%s: key '%s' has a value of type %u, which is %s", r->file.path,
                        v->key, type,
                        type == SBP_GGUF_ARRAY ? "an array of arrays and not supported" : "unknown");
    v->type = (sbp_gguf_type)type;
    uint64_t left = (uint64_t)(r->file.bytes - r->position);
    uint64_t least = type == SBP_GGUF_STRING ? 8 : (uint64_t)type_bytes[type]; /* in the file, per item */
    if (count > left / least)
        return sbp_fail(r->diag, SBP_INPUT,
                        "%s: key '%s' has %llu items, more than the %llu bytes that follow can hold",
                        r->file.path, v->key, (unsigned long long)count, (unsigned long long)left);
    v->count = (int64_t)count;
    if (type != SBP_GGUF_STRING) {
        void *raw = sbp_arena_alloc(r->arena, count * least);
        v->raw = raw;
        return take(r, v->key, raw, count * least);
    }
    sbp_gguf_string *strings = SBP_NEW_ARRAY(r->arena, sbp_gguf_string, count);
    for (uint64_t i = 0; i < count; i++)
        SBP_TRY(take_string(r, v->key, &strings[i]));
    v->strings = strings;
    return SBP_OK;
}

static sbp_status take_keys(reader *r, sbp_gguf *g, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        sbp_gguf_value v = {0};
        SBP_TRY(take_name(r, "a key", &v.key));
        SBP_TRY(take_value(r, &v));
        if (sbp_map_get(&g->by_key, v.key) >= 0)
            return sbp_fail(r->diag, SBP_INPUT, "%s: key '%s' occurs twice", r->file.path, v.key);
        sbp_map_set(&g->by_key, v.key, g->count);
        SBP_PUSH(r->arena, g->values, g->count, g->capacity, v);
    }
    return SBP_OK;
}

/* One tensor entry; t->offset stays relative to the data, which begin after the last entry. */
static sbp_status take_tensor(reader *r, sbp_weight *t) {
    uint32_t rank, type;
    uint64_t offset;
    SBP_TRY(take_name(r, "a tensor name", &t->name));
    SBP_TRY(take_u32(r, t->name, &rank));
    if (rank > 8)
        return sbp_fail(r->diag, SBP_INPUT, "%s: tensor '%s' has %u dimensions; at most 8 are possible",
                        r->file.path, t->name, rank);
    t->rank = (int32_t)rank;
    t->elems = 1;
    int64_t *dim = SBP_NEW_ARRAY(r->arena, int64_t, rank);
    for (uint32_t d = 0; d < rank; d++) {
        uint64_t extent;
        SBP_TRY(take_u64(r, t->name, &extent));
        if (extent > INT64_MAX || !sbp_mul_i64(t->elems, (int64_t)extent, &t->elems))
            return sbp_fail(r->diag, SBP_INPUT,
                            "%s: the number of elements of tensor '%s' does not fit 64 bits", r->file.path,
                            t->name);
        dim[rank - 1 - d] = (int64_t)extent; /* ggml counts from the innermost */
    }
    t->dim = dim;
    SBP_TRY(take_u32(r, t->name, &type));
    SBP_TRY(take_u64(r, t->name, &offset));

    const sbp_quant *quant = type <= INT32_MAX ? sbp_quant_of((int32_t)type) : NULL;
    if (!quant)
        return sbp_fail(r->diag, SBP_INPUT, "%s: tensor '%s' has the unknown ggml type %u", r->file.path,
                        t->name, type);
    t->encoding = quant->name;
    for (int f = SBP_FORMAT_NONE + 1; quant->dtype < 0 && f < SBP_FORMAT_COUNT; f++)
        if (strcasecmp(sbp_format_of((sbp_format)f)->name, quant->name) == 0)
            t->format = (sbp_format)f;
    t->readable = quant->dtype >= 0 || t->format || quant->decode;
    t->quantized = quant->dtype < 0;
    t->dtype = quant->dtype >= 0 ? (sbp_dtype)quant->dtype : SBP_F32;
    t->codec = quant->dtype >= 0 ? quant->dtype : t->readable ? CODEC_QUANTIZED + (int32_t)type : CODEC_NONE;
    int64_t inner = rank > 0 ? dim[rank - 1] : 1;
    if (inner % quant->block_elems != 0)
        return sbp_fail(r->diag, SBP_INPUT,
                        "%s: tensor '%s' has rows of %lld elements, which is not a multiple of the %d of %s",
                        r->file.path, t->name, (long long)inner, quant->block_elems, quant->name);
    if (!sbp_mul_i64(t->elems / quant->block_elems, quant->block_bytes, &t->bytes) ||
        offset > (uint64_t)r->file.bytes || t->bytes > r->file.bytes)
        return sbp_fail(r->diag, SBP_INPUT,
                        "%s: tensor '%s' (%lld elements of %s at offset %llu) is larger than the file",
                        r->file.path, t->name, (long long)t->elems, quant->name, (unsigned long long)offset);
    t->offset = (int64_t)offset;
    t->path = r->file.path;
    return SBP_OK;
}

/* Parts of a model, and which of them this is. */
static sbp_status read_split(sbp_diag *diag, const sbp_gguf *g, int64_t *parts, int64_t *number) {
    *parts = 1;
    *number = 0;
    SBP_TRY(sbp_gguf_get_i64(diag, g, "split.count", SBP_JSON_OPTIONAL, parts));
    SBP_TRY(sbp_gguf_get_i64(diag, g, "split.no", SBP_JSON_OPTIONAL, number));
    if (*parts < 0 || *parts > 99999 || *number < 0 || *number >= (*parts > 0 ? *parts : 1))
        return sbp_fail(diag, SBP_INPUT, "%s: part %lld (split.no, from 0) of %lld (split.count)", g->path,
                        (long long)*number, (long long)*parts);
    return SBP_OK;
}

static sbp_status read_head(sbp_weights *w, reader *r, int32_t file, const sbp_gguf **out) {
    const char *path = r->file.path;
    unsigned char magic[4];
    uint32_t version;
    uint64_t tensor_count, key_count;
    SBP_TRY(take(r, "the magic number", magic, 4));
    if (memcmp(magic, "GGUF", 4) != 0)
        return sbp_fail(r->diag, SBP_INPUT,
                        "%s: not a GGUF file: it begins with %02x %02x %02x %02x, not \"GGUF\"", path,
                        magic[0], magic[1], magic[2], magic[3]);
    SBP_TRY(take_u32(r, "the version", &version));
    if (version != 2 && version != 3)
        return sbp_fail(r->diag, SBP_INPUT, "%s: GGUF version %u%s is not supported, only 2 and 3", path,
                        version, version & 0xffff ? "" : " (big-endian)");
    SBP_TRY(take_u64(r, "the tensor count", &tensor_count));
    SBP_TRY(take_u64(r, "the key count", &key_count));
    uint64_t left = (uint64_t)(r->file.bytes - r->position); /* an entry takes 24 bytes or more, a key 13 */
    if (tensor_count > left / 24 || key_count > left / 13)
        return sbp_fail(r->diag, SBP_INPUT,
                        "%s: %llu tensors and %llu keys are more than the %llu bytes that follow can hold",
                        path, (unsigned long long)tensor_count, (unsigned long long)key_count,
                        (unsigned long long)left);
    sbp_gguf *g = SBP_NEW(r->arena, sbp_gguf);
    g->path = path;
    sbp_map_init(&g->by_key, r->arena);
    SBP_TRY(take_keys(r, g, key_count));

    int64_t alignment = 32;
    SBP_TRY(sbp_gguf_get_i64(r->diag, g, "general.alignment", SBP_JSON_OPTIONAL, &alignment));
    if (alignment < 1 || alignment > 1 << 20 || (alignment & (alignment - 1)) != 0)
        return sbp_fail(r->diag, SBP_INPUT,
                        "%s: general.alignment is %lld, expected a power of two up to 2^20", path,
                        (long long)alignment);
    int32_t first = w->count;
    for (uint64_t i = 0; i < tensor_count; i++) {
        sbp_weight t = {.file = file};
        SBP_TRY(take_tensor(r, &t));
        if (t.offset % alignment != 0)
            return sbp_fail(
                r->diag, SBP_INPUT,
                "%s: tensor '%s' is at offset %lld, which is not a multiple of the alignment %lld", path,
                t.name, (long long)t.offset, (long long)alignment);
        SBP_TRY(sbp_weights_add(w, r->diag, &t));
        if (t.format && !w->decoders[t.format]) {
            w->decoders[t.format] = sbp_format_decoder_create(r->arena, r->diag, t.format);
            if (!w->decoders[t.format])
                return SBP_INTERNAL;
        }
    }
    int64_t begin = sbp_round_up(r->position, alignment);
    for (int32_t i = first; i < w->count; i++)
        w->weights[i].offset += begin; /* both are at most the file's size */
    SBP_TRY(sbp_weights_check_layout(w, r->diag, file, begin, false));
    *out = g;
    return SBP_OK;
}

static sbp_status add_file(sbp_weights *w, sbp_diag *diag, const char *path, const sbp_gguf **out) {
    int32_t file;
    SBP_TRY(sbp_weights_add_file(w, diag, path, &file));
    reader *r = SBP_NEW(w->arena, reader);
    r->arena = w->arena;
    r->diag = diag;
    r->file = w->files[file];
    return read_head(w, r, file, out);
}

/* The other parts of a model stand beside the first, which has the keys:
 * STEM-00001-of-00003.gguf and so on. */
static sbp_status add_parts(sbp_weights *w, sbp_diag *diag, const char *path, int64_t parts) {
    char end[40];
    int n = snprintf(end, sizeof end, "-00001-of-%05lld.gguf", (long long)parts);
    size_t length = strlen(path), stem = length > (size_t)n ? length - (size_t)n : 0;
    int64_t said = -1;
    if (stem == 0 || strcmp(path + stem, end) != 0)
        return sbp_fail(
            diag, SBP_INPUT,
            "%s: the first of %lld parts (split.count), whose name must end in '%s', so that the others are "
            "found beside it",
            path, (long long)parts, end);
    for (int64_t i = 1; i < parts; i++) {
        const char *name = sbp_arena_printf(w->arena, "%.*s-%05lld-of-%05lld.gguf", (int)stem, path,
                                            (long long)(i + 1), (long long)parts);
        const sbp_gguf *g;
        int64_t count, number;
        SBP_TRY(add_file(w, diag, name, &g));
        SBP_TRY(read_split(diag, g, &count, &number));
        if (count != parts || number != i)
            return sbp_fail(diag, SBP_INPUT,
                            "%s: part %lld of %lld (split.no, from 0, split.count), expected %lld of %lld",
                            name, (long long)number, (long long)count, (long long)i, (long long)parts);
    }
    SBP_TRY(sbp_gguf_get_i64(diag, w->gguf, "split.tensors.count", SBP_JSON_OPTIONAL, &said));
    if (said >= 0 && said != w->count)
        return sbp_fail(diag, SBP_INPUT,
                        "%s: %lld parts have %d tensors together, split.tensors.count is %lld", path,
                        (long long)parts, (int)w->count, (long long)said);
    return SBP_OK;
}

sbp_status sbp_gguf_add(sbp_weights *w, sbp_diag *diag, const char *path) {
    int64_t parts, number;
    SBP_TRY(add_file(w, diag, path, &w->gguf));
    SBP_TRY(read_split(diag, w->gguf, &parts, &number));
    if (number != 0)
        return sbp_fail(
            diag, SBP_INPUT,
            "%s: part %lld of %lld of a model (split.no, split.count): give the first, which has its keys",
            path, (long long)number + 1, (long long)parts);
    return parts > 1 ? add_parts(w, diag, path, parts) : SBP_OK;
}

sbp_status sbp_gguf_open(sbp_arena *arena, sbp_diag *diag, const char *path, const sbp_gguf **out) {
    sbp_weights *w;
    /* The tensor entries are checked as well; they are part of the head. */
    SBP_TRY(sbp_weights_open_as(arena, diag, path, sbp_gguf_add, &w));
    sbp_weights_close(w);
    *out = w->gguf;
    return SBP_OK;
}

/* ---- access --------------------------------------------------------------------------------------- */

const char *sbp_gguf_path(const sbp_gguf *g) {
    return g->path;
}

int32_t sbp_gguf_count(const sbp_gguf *g) {
    return g->count;
}

const sbp_gguf_value *sbp_gguf_at(const sbp_gguf *g, int32_t index) {
    return &g->values[index];
}

const sbp_gguf_value *sbp_gguf_find(const sbp_gguf *g, const char *key) {
    int32_t at = sbp_map_get(&g->by_key, key);
    return at < 0 ? NULL : &g->values[at];
}

const char *sbp_gguf_type_name(sbp_gguf_type type) {
    static const char *const names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                        "bool", "string", "array", "u64", "i64", "f64"};
    return names[type];
}

bool sbp_gguf_is_integer(sbp_gguf_type type) {
    return type != SBP_GGUF_F32 && type != SBP_GGUF_F64 && type != SBP_GGUF_BOOL && type != SBP_GGUF_STRING &&
           type != SBP_GGUF_ARRAY;
}

int64_t sbp_gguf_i64_at(const sbp_gguf_value *v, int64_t i) {
    switch (v->type) {
    case SBP_GGUF_U8:
    case SBP_GGUF_BOOL:
        return ((const uint8_t *)v->raw)[i];
    case SBP_GGUF_I8:
        return ((const int8_t *)v->raw)[i];
    case SBP_GGUF_U16:
        return ((const uint16_t *)v->raw)[i];
    case SBP_GGUF_I16:
        return ((const int16_t *)v->raw)[i];
    case SBP_GGUF_U32:
        return ((const uint32_t *)v->raw)[i];
    case SBP_GGUF_I32:
        return ((const int32_t *)v->raw)[i];
    case SBP_GGUF_I64:
        return ((const int64_t *)v->raw)[i];
    case SBP_GGUF_U64: {
        uint64_t value = ((const uint64_t *)v->raw)[i];
        return value > INT64_MAX ? INT64_MAX : (int64_t)value;
    }
    default:
        return 0;
    }
}

double sbp_gguf_double_at(const sbp_gguf_value *v, int64_t i) {
    if (v->type == SBP_GGUF_F32)
        return (double)((const float *)v->raw)[i];
    if (v->type == SBP_GGUF_F64)
        return ((const double *)v->raw)[i];
    return (double)sbp_gguf_i64_at(v, i);
}

static sbp_status wrong_type(sbp_diag *diag, const sbp_gguf *g, const sbp_gguf_value *v,
                             const char *expected) {
    return sbp_fail(diag, SBP_INPUT, "%s: key '%s': expected %s, found %s%s", g->path, v->key, expected,
                    v->is_array ? "an array of " : "", sbp_gguf_type_name(v->type));
}

static sbp_status find(sbp_diag *diag, const sbp_gguf *g, const char *key, sbp_json_need need,
                       const sbp_gguf_value **out) {
    *out = sbp_gguf_find(g, key);
    if (!*out && need == SBP_JSON_REQUIRED)
        return sbp_fail(diag, SBP_INPUT, "%s: the key '%s' is missing", g->path, key);
    return SBP_OK;
}

sbp_status sbp_gguf_get_i64(sbp_diag *diag, const sbp_gguf *g, const char *key, sbp_json_need need,
                            int64_t *out) {
    const sbp_gguf_value *v;
    SBP_TRY(find(diag, g, key, need, &v));
    if (!v)
        return SBP_OK;
    if (v->is_array || !sbp_gguf_is_integer(v->type))
        return wrong_type(diag, g, v, "an integer");
    if (v->type == SBP_GGUF_U64 && *(const uint64_t *)v->raw > INT64_MAX)
        return sbp_fail(diag, SBP_INPUT, "%s: key '%s' is %llu, which is out of range", g->path, key,
                        (unsigned long long)*(const uint64_t *)v->raw);
    *out = sbp_gguf_i64_at(v, 0);
    return SBP_OK;
}

sbp_status sbp_gguf_get_double(sbp_diag *diag, const sbp_gguf *g, const char *key, sbp_json_need need,
                               double *out) {
    const sbp_gguf_value *v;
    SBP_TRY(find(diag, g, key, need, &v));
    if (!v)
        return SBP_OK;
    if (v->is_array || v->type == SBP_GGUF_STRING || v->type == SBP_GGUF_BOOL)
        return wrong_type(diag, g, v, "a number");
    *out = sbp_gguf_double_at(v, 0);
    return SBP_OK;
}

sbp_status sbp_gguf_get_bool(sbp_diag *diag, const sbp_gguf *g, const char *key, sbp_json_need need,
                             bool *out) {
    const sbp_gguf_value *v;
    SBP_TRY(find(diag, g, key, need, &v));
    if (!v)
        return SBP_OK;
    if (v->is_array || v->type != SBP_GGUF_BOOL)
        return wrong_type(diag, g, v, "a bool");
    *out = sbp_gguf_i64_at(v, 0) != 0;
    return SBP_OK;
}

sbp_status sbp_gguf_get_string(sbp_diag *diag, const sbp_gguf *g, const char *key, sbp_json_need need,
                               const char **out) {
    const sbp_gguf_value *v;
    SBP_TRY(find(diag, g, key, need, &v));
    if (!v)
        return SBP_OK;
    if (v->is_array || v->type != SBP_GGUF_STRING)
        return wrong_type(diag, g, v, "a string");
    if (strlen(v->strings[0].data) != (size_t)v->strings[0].length)
        return sbp_fail(diag, SBP_INPUT, "%s: key '%s': the string contains a NUL character", g->path, key);
    *out = v->strings[0].data;
    return SBP_OK;
}

sbp_status sbp_gguf_get_array(sbp_diag *diag, const sbp_gguf *g, const char *key, sbp_gguf_type items,
                              sbp_json_need need, const sbp_gguf_value **out) {
    const sbp_gguf_value *v;
    SBP_TRY(find(diag, g, key, need, &v));
    if (!v)
        return SBP_OK;
    bool fits = items == SBP_GGUF_STRING ? v->type == SBP_GGUF_STRING
                : items == SBP_GGUF_I64  ? sbp_gguf_is_integer(v->type)
                : items == SBP_GGUF_F64
                    ? sbp_gguf_is_integer(v->type) || v->type == SBP_GGUF_F32 || v->type == SBP_GGUF_F64
                    : v->type == items;
    if (!v->is_array || !fits)
        return wrong_type(diag, g, v,
                          items == SBP_GGUF_STRING ? "an array of strings"
                          : items == SBP_GGUF_I64  ? "an array of integers"
                                                   : "an array of numbers");
    *out = v;
    return SBP_OK;
}
