/* safetensors.c: the header of a .safetensors file, checked value by value. */
#include "frontends/formats/weights/safetensors.h"
#include "frontends/formats/weights/weights_internal.h"

#include <string.h>

/* The library refuses larger headers too: a wrong size must not make us read all of a file as JSON. */
enum { MAX_HEADER_BYTES = 100000000 };

/* The spellings, those of dtypes.def first and in its order; bits is 0 for what no check is made of. Bytes of
 * dynamic maps are U8, which is read as bytes of either (sbp_weights_read). */
static const struct {
    const char *name;
    int32_t bits;
    int32_t dtype;
} encodings[] = {
    {"F64", 64, SBP_F64},  {"F32", 32, SBP_F32},   {"BF16", 16, SBP_BF16}, {"F16", 16, SBP_F16},
    {"I8", 8, SBP_I8},     {"I16", 16, SBP_I16},   {"I32", 32, SBP_I32},   {"I64", 64, SBP_I64},
    {"BOOL", 8, SBP_BOOL}, {"U8", 8, SBP_D8},      {"U8", 8, SBP_UD8},     {"U16", 16, -1},
    {"U32", 32, -1},       {"U64", 64, -1},        {"F8_E5M2", 8, -1},     {"F8_E4M3", 8, -1},
    {"F8_E8M0", 8, -1},    {"F8_E4M3FNUZ", 8, -1}, {"F8_E5M2FNUZ", 8, -1}, {"C64", 64, -1},
    {"F6_E2M3", 6, -1},    {"F6_E3M2", 6, -1},     {"F4", 4, -1},
};

const char *sbp_safetensors_dtype(sbp_dtype dtype) {
    return encodings[dtype].name;
}

/* One entry of the header: {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}. */
static sbp_status add_tensor(sbp_weights *w, sbp_diag *diag, int32_t file, int64_t data_begin,
                             const sbp_json *entry) {
    const sbp_json *shape, *offsets;
    const char *encoding;
    SBP_TRY(sbp_json_get_string(diag, entry, "dtype", SBP_JSON_REQUIRED, &encoding));
    SBP_TRY(sbp_json_get_array(diag, entry, "shape", SBP_JSON_REQUIRED, &shape));
    SBP_TRY(sbp_json_get_array(diag, entry, "data_offsets", SBP_JSON_REQUIRED, &offsets));

    sbp_weight t = {.name = entry->key,
                    .encoding = encoding,
                    .path = w->files[file].path,
                    .file = file,
                    .codec = CODEC_NONE,
                    .elems = 1};
    int32_t bits = 0;
    for (int i = 0; i < SBP_COUNT(encodings); i++)
        if (strcmp(encodings[i].name, encoding) == 0) {
            bits = encodings[i].bits;
            t.codec = encodings[i].dtype;
        }
    if (bits == 0)
        return sbp_json_fail(diag, entry, "unknown dtype '%s'", encoding);
    t.readable = t.codec != CODEC_NONE;
    t.dtype = t.readable ? (sbp_dtype)t.codec : SBP_F32;

    if (shape->count > 64)
        return sbp_json_fail(diag, shape, "%lld dimensions; at most 64 are possible",
                             (long long)shape->count);
    t.rank = (int32_t)shape->count;
    int64_t *dim = SBP_NEW_ARRAY(w->arena, int64_t, t.rank);
    for (int32_t i = 0; i < t.rank; i++) {
        SBP_TRY(sbp_json_as_i64(diag, &shape->items[i], &dim[i]));
        if (dim[i] < 0)
            return sbp_json_fail(diag, &shape->items[i], "a dimension is %lld", (long long)dim[i]);
        if (!sbp_mul_i64(t.elems, dim[i], &t.elems))
            return sbp_json_fail(diag, shape, "the number of elements does not fit 64 bits");
    }
    t.dim = dim;

    int64_t begin, end, total_bits;
    if (offsets->count != 2)
        return sbp_json_fail(diag, offsets, "expected 2 numbers, found %lld", (long long)offsets->count);
    SBP_TRY(sbp_json_as_i64(diag, &offsets->items[0], &begin));
    SBP_TRY(sbp_json_as_i64(diag, &offsets->items[1], &end));
    int64_t available = w->files[file].bytes - data_begin;
    if (begin < 0 || end < begin || end > available)
        return sbp_json_fail(diag, offsets, "the range %lld .. %lld is not within the %lld bytes of data",
                             (long long)begin, (long long)end, (long long)available);
    if (!sbp_mul_i64(t.elems, bits, &total_bits))
        return sbp_json_fail(diag, shape, "the size does not fit 64 bits");
    if (total_bits % 8 != 0 || total_bits / 8 != end - begin)
        return sbp_json_fail(diag, offsets,
                             "%lld elements of %s need %lld bytes, but the range %lld .. %lld has %lld",
                             (long long)t.elems, encoding, (long long)sbp_ceil_div(total_bits, 8),
                             (long long)begin, (long long)end, (long long)(end - begin));
    t.offset = data_begin + begin;
    t.bytes = end - begin;
    return sbp_weights_add(w, diag, &t);
}

sbp_status sbp_safetensors_add(sbp_weights *w, sbp_diag *diag, const char *path) {
    int32_t file;
    SBP_TRY(sbp_weights_add_file(w, diag, path, &file));
    const weights_file f = w->files[file];
    unsigned char prefix[8];
    if (f.bytes < 8)
        return sbp_fail(diag, SBP_INPUT,
                        "%s: not a safetensors file: it has %lld bytes, the header size alone takes 8", path,
                        (long long)f.bytes);
    SBP_TRY(sbp_file_pread(diag, f.fd, path, prefix, 8, 0));
    if (memcmp(prefix, "version ", 8) == 0)
        return sbp_fail(diag, SBP_INPUT,
                        "%s: a pointer of Git LFS stands here in place of the file: 'git lfs pull' gets it",
                        path);
    uint64_t header_bytes = 0;
    for (int i = 7; i >= 0; i--)
        header_bytes = header_bytes << 8 | prefix[i];
    if (header_bytes > MAX_HEADER_BYTES)
        return sbp_fail(
            diag, SBP_INPUT,
            "%s: not a safetensors file: its header would have %llu bytes, at most %d are allowed", path,
            (unsigned long long)header_bytes, MAX_HEADER_BYTES);
    if ((int64_t)header_bytes > f.bytes - 8)
        return sbp_fail(diag, SBP_INPUT,
                        "%s: the header has %llu bytes, but only %lld follow: the file is cut off", path,
                        (unsigned long long)header_bytes, (long long)(f.bytes - 8));

    char *text = sbp_arena_alloc(w->arena, (size_t)header_bytes + 1);
    SBP_TRY(sbp_file_pread(diag, f.fd, path, text, (int64_t)header_bytes, 8));
    const sbp_json *header;
    SBP_TRY(sbp_json_parse(w->arena, diag, f.path, text, (size_t)header_bytes, 0, &header));
    SBP_TRY(sbp_json_as_object(diag, header, &header));
    int64_t data_begin = 8 + (int64_t)header_bytes;
    for (int64_t i = 0; i < header->count; i++) {
        const sbp_json *entry = &header->items[i];
        if (strcmp(entry->key, "__metadata__") == 0) {
            SBP_TRY(sbp_json_as_object(diag, entry, &entry));
            if (file == 0)
                w->metadata = entry;
            continue;
        }
        SBP_TRY(add_tensor(w, diag, file, data_begin, entry));
    }
    return sbp_weights_check_layout(w, diag, file, data_begin, true);
}
