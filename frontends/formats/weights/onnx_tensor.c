/* onnx_tensor.c: TensorProto in JSON, and model.json as a file of weights. */
#include "frontends/formats/weights/onnx_tensor.h"
#include "frontends/formats/weights/onnx_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "frontends/formats/files/named_path.h"
#include "frontends/formats/files/protojson.h"
#include "frontends/formats/weights/weights_internal.h"

/* ---- types ----------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    int32_t bytes;
    int32_t dtype;     /* -1: none of ours */
    const char *field; /* the typed list that holds values of this type */
} types[SBP_ONNX_TYPE_COUNT] = {
    [SBP_ONNX_UNDEFINED] = {"UNDEFINED", 0, -1, NULL},
    [SBP_ONNX_FLOAT] = {"FLOAT", 4, SBP_F32, "floatData"},
    [SBP_ONNX_UINT8] = {"UINT8", 1, -1, "int32Data"},
    [SBP_ONNX_INT8] = {"INT8", 1, SBP_I8, "int32Data"},
    [SBP_ONNX_UINT16] = {"UINT16", 2, -1, "int32Data"},
    [SBP_ONNX_INT16] = {"INT16", 2, -1, "int32Data"},
    [SBP_ONNX_INT32] = {"INT32", 4, SBP_I32, "int32Data"},
    [SBP_ONNX_INT64] = {"INT64", 8, SBP_I64, "int64Data"},
    [SBP_ONNX_STRING] = {"STRING", 0, -1, NULL},
    [SBP_ONNX_BOOL] = {"BOOL", 1, SBP_BOOL, "int32Data"},
    [SBP_ONNX_FLOAT16] = {"FLOAT16", 2, SBP_F16, "int32Data"},
    [SBP_ONNX_DOUBLE] = {"DOUBLE", 8, SBP_F64, "doubleData"},
    [SBP_ONNX_UINT32] = {"UINT32", 4, -1, "uint64Data"},
    [SBP_ONNX_UINT64] = {"UINT64", 8, -1, "uint64Data"},
    [SBP_ONNX_COMPLEX64] = {"COMPLEX64", 0, -1, NULL},
    [SBP_ONNX_COMPLEX128] = {"COMPLEX128", 0, -1, NULL},
    [SBP_ONNX_BFLOAT16] = {"BFLOAT16", 2, SBP_BF16, "int32Data"},
};

const char *sbp_onnx_type_name(sbp_onnx_type type) {
    return types[type].name;
}

sbp_status sbp_onnx_type_parse(sbp_diag *diag, const sbp_json *node, sbp_onnx_type *out) {
    const char *names[SBP_ONNX_TYPE_COUNT];
    int32_t number = 0;
    for (int32_t i = 0; i < SBP_ONNX_TYPE_COUNT; i++)
        names[i] = types[i].name;
    SBP_TRY(sbp_proto_enum(diag, node, names, SBP_ONNX_TYPE_COUNT, &number));
    *out = (sbp_onnx_type)number;
    return SBP_OK;
}

bool sbp_onnx_type_float(sbp_onnx_type type, sbp_dtype *out) {
    int32_t dtype = types[type].dtype;
    if (dtype < 0 || !sbp_dtype_is_float((sbp_dtype)dtype))
        return false;
    *out = (sbp_dtype)dtype;
    return true;
}

/* ---- typed lists ----------------------------------------------------------------------------------- */

static sbp_status out_of_range(sbp_diag *diag, const sbp_json *node, int64_t value, sbp_onnx_type type) {
    return sbp_json_fail(diag, node, "%lld is out of range for %s", (long long)value, types[type].name);
}

static sbp_status put_integer(sbp_diag *diag, const sbp_json *node, sbp_onnx_type type, uint8_t *out) {
    int64_t value;
    bool is_unsigned = type == SBP_ONNX_UINT64 || type == SBP_ONNX_UINT32;
    SBP_TRY(is_unsigned ? sbp_proto_u64(diag, node, &value) : sbp_proto_i64(diag, node, &value));
    int32_t bytes = types[type].bytes;
    bool is_signed = type == SBP_ONNX_INT8 || type == SBP_ONNX_INT16 || type == SBP_ONNX_INT32;
    if (bytes < 8) {
        int64_t span = (int64_t)1 << (8 * bytes), low = is_signed ? -span / 2 : 0, high = low + span;
        if (type == SBP_ONNX_BOOL)
            high = 2;
        if (value < low || value >= high)
            return out_of_range(diag, node, value, type);
    }
    memcpy(out, &value, (size_t)bytes); /* little-endian */
    return SBP_OK;
}

static sbp_status put_float(sbp_diag *diag, const sbp_json *node, sbp_onnx_type type, uint8_t *out) {
    double value;
    SBP_TRY(sbp_proto_double(diag, node, &value));
    float rounded = (float)value;
    memcpy(out, type == SBP_ONNX_DOUBLE ? (const void *)&value : (const void *)&rounded,
           (size_t)types[type].bytes);
    return SBP_OK;
}

static sbp_status parse_list(sbp_arena *arena, sbp_diag *diag, const sbp_json *list, sbp_onnx_tensor *t) {
    SBP_TRY(sbp_json_as_array(diag, list, &list));
    if (list->count != t->elems)
        return sbp_json_fail(diag, list, "%lld values, the dimensions make %lld", (long long)list->count,
                             (long long)t->elems);
    uint8_t *data = sbp_arena_array(arena, (size_t)t->elems, (size_t)types[t->type].bytes);
    bool is_float = t->type == SBP_ONNX_FLOAT || t->type == SBP_ONNX_DOUBLE;
    for (int64_t i = 0; i < t->elems; i++) {
        uint8_t *out = data + i * types[t->type].bytes;
        SBP_TRY(is_float ? put_float(diag, &list->items[i], t->type, out)
                         : put_integer(diag, &list->items[i], t->type, out));
    }
    t->data = data;
    return SBP_OK;
}

/* ---- TensorProto ------------------------------------------------------------------------------------ */

static sbp_status parse_dims(sbp_diag *diag, const sbp_json *node, sbp_onnx_tensor *t) {
    const sbp_json *items;
    int64_t count;
    SBP_TRY(sbp_proto_get_repeated(diag, node, "dims", &items, &count));
    if (count > SBP_ONNX_MAX_RANK)
        return sbp_json_fail(diag, node, "the tensor has rank %lld; at most %d is supported",
                             (long long)count, SBP_ONNX_MAX_RANK);
    t->rank = (int32_t)count;
    t->elems = 1;
    for (int64_t d = 0; d < count; d++) {
        SBP_TRY(sbp_proto_i64(diag, &items[d], &t->dim[d]));
        if (t->dim[d] < 0 || !sbp_mul_i64(t->elems, t->dim[d], &t->elems))
            return sbp_json_fail(diag, &items[d], "dimension %lld is out of range", (long long)t->dim[d]);
    }
    if (!sbp_mul_i64(t->elems, types[t->type].bytes, &t->bytes))
        return sbp_json_fail(diag, node, "a tensor of %lld elements", (long long)t->elems);
    return SBP_OK;
}

/* An offset or a length: below 2^63, though the format's integers go to 2^64. */
static sbp_status parse_extent(sbp_diag *diag, const sbp_json *node, const char *key, int64_t *out) {
    SBP_TRY(sbp_proto_u64(diag, node, out));
    return *out >= 0 ? SBP_OK : sbp_json_fail(diag, node, "external data with %s of 2^63 or more", key);
}

static sbp_status parse_external(sbp_diag *diag, const sbp_json *node, sbp_onnx_tensor *t) {
    static const char *const fields[] = {"key", "value", NULL};
    const sbp_json *items;
    int64_t count;
    SBP_TRY(sbp_proto_get_repeated(diag, node, "externalData", &items, &count));
    for (int64_t i = 0; i < count; i++) {
        const char *key = "";
        SBP_TRY(sbp_proto_check(diag, &items[i], fields));
        SBP_TRY(sbp_proto_get_string(diag, &items[i], "key", &key));
        const sbp_json *value = sbp_proto_field(&items[i], "value");
        if (!value)
            return sbp_json_fail(diag, &items[i], "'%s' has no value", key);
        if (strcmp(key, "location") == 0)
            SBP_TRY(sbp_json_as_string(diag, value, &t->location));
        else if (strcmp(key, "offset") == 0)
            SBP_TRY(parse_extent(diag, value, "an offset", &t->offset));
        else if (strcmp(key, "length") == 0)
            SBP_TRY(parse_extent(diag, value, "a length", &t->length));
        else if (strcmp(key, "checksum") != 0)
            return sbp_json_fail(diag, &items[i], "external data has no '%s'", key);
    }
    if (!t->location)
        return sbp_json_fail(diag, node, "tensor '%s' is external, but has no location", t->name);
    if (!sbp_named_path_stays(t->location))
        return sbp_json_fail(diag, node, "location '%s' is not a file below the model's directory",
                             t->location);
    if (t->length >= 0 && t->length != t->bytes)
        return sbp_json_fail(diag, node, "tensor '%s' has %lld bytes, its dimensions and type make %lld",
                             t->name, (long long)t->length, (long long)t->bytes);
    return SBP_OK;
}

/* Exactly one of the ways to hold values must be used, and the right one for the type. */
static sbp_status parse_values(sbp_arena *arena, sbp_diag *diag, const sbp_json *node, sbp_onnx_tensor *t) {
    static const char *const lists[] = {"floatData",  "int32Data",  "int64Data",
                                        "doubleData", "uint64Data", "stringData"};
    static const char *const places[] = {"DEFAULT", "EXTERNAL"};
    const sbp_json *raw = sbp_proto_field(node, "rawData"), *place = sbp_proto_field(node, "dataLocation"),
                   *list = NULL;
    int32_t external = 0;
    if (place)
        SBP_TRY(sbp_proto_enum(diag, place, places, SBP_COUNT(places), &external));
    for (int32_t i = 0; i < SBP_COUNT(lists); i++) {
        const sbp_json *field = sbp_proto_field(node, lists[i]);
        if (!field || (field->kind == SBP_JSON_ARRAY && field->count == 0))
            continue;
        if (list || raw || external || strcmp(lists[i], types[t->type].field) != 0)
            return sbp_json_fail(diag, field, "not the place for values of this %s tensor",
                                 types[t->type].name);
        list = field;
    }
    if (external) {
        if (raw)
            return sbp_json_fail(diag, raw, "an external tensor also has raw data");
        return parse_external(diag, node, t);
    }
    if (list)
        return parse_list(arena, diag, list, t);
    if (!raw && t->elems > 0)
        return sbp_json_fail(diag, node, "tensor '%s' has no values", t->name);
    int64_t length = 0;
    t->data = (const uint8_t *)"";
    if (raw)
        SBP_TRY(sbp_proto_bytes(arena, diag, raw, &t->data, &length));
    if (length != t->bytes)
        return sbp_json_fail(diag, node, "tensor '%s': %lld bytes of raw data, dimensions and type make %lld",
                             t->name, (long long)length, (long long)t->bytes);
    return SBP_OK;
}

sbp_status sbp_onnx_tensor_parse(sbp_arena *arena, sbp_diag *diag, const sbp_json *node,
                                 sbp_onnx_tensor *out) {
    static const char *const fields[] = {"dims",       "dataType",      "segment",      "floatData",
                                         "int32Data",  "stringData",    "int64Data",    "name",
                                         "rawData",    "externalData",  "dataLocation", "doubleData",
                                         "uint64Data", "metadataProps", "docString",    NULL};
    *out = (sbp_onnx_tensor){.name = "", .node = node, .offset = -1, .length = -1};
    SBP_TRY(sbp_proto_check(diag, node, fields));
    SBP_TRY(sbp_proto_get_string(diag, node, "name", &out->name));
    const sbp_json *type = sbp_proto_field(node, "dataType");
    if (!type)
        return sbp_json_fail(diag, node, "tensor '%s' has no data type", out->name);
    SBP_TRY(sbp_onnx_type_parse(diag, type, &out->type));
    if (types[out->type].bytes == 0)
        return sbp_json_fail(diag, type, "tensors of type %s are not supported", types[out->type].name);
    if (sbp_proto_field(node, "segment"))
        return sbp_json_fail(diag, node, "tensor '%s' comes in segments", out->name);
    SBP_TRY(parse_dims(diag, node, out));
    return parse_values(arena, diag, node, out);
}

double sbp_onnx_tensor_at(const sbp_onnx_tensor *t, int64_t i) {
    uint64_t bits = 0;
    memcpy(&bits, t->data + i * types[t->type].bytes, (size_t)types[t->type].bytes);
    switch (t->type) {
    case SBP_ONNX_INT16:
        return (double)(int16_t)bits;
    case SBP_ONNX_UINT8:
    case SBP_ONNX_UINT16:
    case SBP_ONNX_UINT32:
    case SBP_ONNX_UINT64:
        return (double)bits;
    default:
        return sbp_element_get(&bits, (sbp_dtype)types[t->type].dtype, 0);
    }
}

/* ---- files ----------------------------------------------------------------------------------------- */

static sbp_status beside(sbp_arena *arena, sbp_diag *diag, const char *model, const char *location,
                         const char **out) {
    const char *slash = strrchr(model, '/');
    const char *folder = !slash           ? "."
                         : slash == model ? "/"
                                          : sbp_arena_strndup(arena, model, (size_t)(slash - model));
    return sbp_named_path(arena, diag, model, folder, location, out);
}

static bool is_safetensors(const char *path) {
    size_t n = strlen(path);
    return n >= 12 && strcmp(path + n - 12, ".safetensors") == 0;
}

/* Where the bytes of an external tensor begin in its file. */
static sbp_status locate(sbp_arena *arena, sbp_diag *diag, const char *path, const sbp_onnx_tensor *t,
                         int64_t *offset) {
    *offset = t->offset >= 0 ? t->offset : 0;
    if (t->offset >= 0 || !is_safetensors(path))
        return SBP_OK;
    sbp_weights *file;
    SBP_TRY(sbp_weights_open_as(arena, diag, path, sbp_safetensors_add, &file));
    sbp_weights_close(file); /* the entries stay */
    const sbp_weight *w = sbp_weights_find(file, t->name);
    if (!w)
        return sbp_json_fail(diag, t->node, "%s has no tensor '%s'", path, t->name);
    bool same = w->rank == t->rank && memcmp(w->dim, t->dim, (size_t)t->rank * sizeof *t->dim) == 0 &&
                w->readable && (int32_t)w->dtype == types[t->type].dtype;
    if (!same)
        return sbp_json_fail(diag, t->node,
                             "tensor '%s' is %s in %s, and differs from the %s tensor declared here", t->name,
                             w->encoding, path, types[t->type].name);
    *offset = w->offset;
    return SBP_OK;
}

/* Leaves the first `rows` of axis 0. */
static void cut(sbp_onnx_tensor *t, int64_t rows) {
    if (t->rank == 0 || rows >= t->dim[0])
        return;
    t->elems = t->elems / t->dim[0] * rows;
    t->bytes = t->bytes / t->dim[0] * rows;
    t->dim[0] = rows;
}

sbp_status sbp_onnx_tensor_load(sbp_arena *arena, sbp_diag *diag, const char *model, sbp_onnx_tensor *t) {
    return sbp_onnx_tensor_load_rows(arena, diag, model, INT64_MAX, t);
}

sbp_status sbp_onnx_tensor_load_rows(sbp_arena *arena, sbp_diag *diag, const char *model, int64_t rows,
                                     sbp_onnx_tensor *t) {
    if (t->data) {
        cut(t, rows);
        return SBP_OK;
    }
    const char *path;
    int64_t offset;
    SBP_TRY(beside(arena, diag, model, t->location, &path));
    SBP_TRY(locate(arena, diag, path, t, &offset));
    cut(t, rows);
    uint8_t *data = sbp_arena_alloc(arena, (size_t)t->bytes); /* before the file is open: it may not return */
    int fd;
    SBP_TRY(sbp_file_open_regular(diag, path, &fd));
    sbp_status status = sbp_file_pread(diag, fd, path, data, t->bytes, offset);
    close(fd);
    t->data = data;
    return status;
}

/* ---- as weights ------------------------------------------------------------------------------------ */

/* The file of the list with this path, opened when it is not there yet. */
static sbp_status file_of(sbp_weights *w, sbp_diag *diag, const char *path, int32_t *index) {
    for (int32_t i = 0; i < w->file_count; i++)
        if (!w->files[i].memory && strcmp(w->files[i].path, path) == 0) {
            *index = i;
            return SBP_OK;
        }
    return sbp_weights_add_file(w, diag, path, index);
}

static sbp_status add_tensor(sbp_weights *w, sbp_diag *diag, const char *model, const sbp_onnx_tensor *t) {
    int64_t *dim = SBP_NEW_ARRAY(w->arena, int64_t, t->rank);
    memcpy(dim, t->dim, (size_t)t->rank * sizeof *dim);
    sbp_weight weight = {.name = t->name,
                         .encoding = types[t->type].name,
                         .readable = true,
                         .dtype = (sbp_dtype)types[t->type].dtype,
                         .rank = t->rank,
                         .dim = dim,
                         .elems = t->elems,
                         .path = model,
                         .codec = types[t->type].dtype,
                         .bytes = t->bytes};
    if (t->data) {
        weight.file = w->file_count;
        SBP_PUSH(w->arena, w->files, w->file_count, w->file_capacity,
                 (weights_file){.path = model, .fd = -1, .bytes = t->bytes, .memory = t->data});
    } else {
        SBP_TRY(beside(w->arena, diag, model, t->location, &weight.path));
        SBP_TRY(locate(w->arena, diag, weight.path, t, &weight.offset));
        SBP_TRY(file_of(w, diag, weight.path, &weight.file));
    }
    int64_t size = w->files[weight.file].bytes;
    if (weight.offset > size || weight.bytes > size - weight.offset)
        return sbp_json_fail(diag, t->node, "tensor '%s' has %lld bytes from byte %lld of %s, which has %lld",
                             t->name, (long long)weight.bytes, (long long)weight.offset, weight.path,
                             (long long)size);
    return sbp_weights_add(w, diag, &weight);
}

sbp_status sbp_onnx_add(sbp_weights *w, sbp_diag *diag, const char *path) {
    const sbp_json *root, *items;
    int64_t count;
    SBP_TRY(sbp_onnx_file_read(w->arena, diag, path, &root));
    const sbp_json *graph = sbp_proto_field(root, "graph");
    if (!graph)
        return sbp_json_fail(diag, root, "this is not an ONNX model: the field 'graph' is missing");
    SBP_TRY(sbp_proto_get_repeated(diag, graph, "initializer", &items, &count));
    for (int64_t i = 0; i < count; i++) {
        sbp_onnx_tensor t;
        sbp_dtype dtype;
        SBP_TRY(sbp_onnx_tensor_parse(w->arena, diag, &items[i], &t));
        if (sbp_onnx_type_float(t.type, &dtype))
            SBP_TRY(add_tensor(w, diag, path, &t));
    }
    return SBP_OK;
}
