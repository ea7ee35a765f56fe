/* onnx_testing.h: writes ONNX models as JSON, the way somebody would by hand: enough for the decoders of the
 * golden cases, so that an import can be compared with the gradients of Hugging Face transformers. */
#ifndef SBP_TESTS_UNIT_ONNX_TESTING_H
#define SBP_TESTS_UNIT_ONNX_TESTING_H

#include "frontend_testing.h"

typedef enum onnx_storage {
    STORE_RAW,      /* raw_data */
    STORE_TYPED,    /* float_data, a number each */
    STORE_EXTERNAL, /* the tensor of that name in model.safetensors */
    STORE_INPUT     /* a graph input; values come with --weights */
} onnx_storage;

typedef struct onnx_writer {
    fixture *f;
    const sbp_weights *weights;
    onnx_storage storage;
    bool snake;  /* snake_case field names, enums by name, integers as numbers */
    bool four_d; /* attention on [1, heads, T, d] */
    bool swish;  /* as one operator, of opset 24 */
    sbp_text nodes, initializers, inputs;
    int32_t count; /* of intermediate values */
} onnx_writer;

static inline const char *field(const onnx_writer *w, const char *camel, const char *snake) {
    return w->snake ? snake : camel;
}

static inline onnx_writer onnx_begin(fixture *f, const sbp_weights *weights, onnx_storage storage) {
    onnx_writer w = {.f = f, .weights = weights, .storage = storage};
    sbp_text_init(&w.nodes, f->arena);
    sbp_text_init(&w.initializers, f->arena);
    sbp_text_init(&w.inputs, f->arena);
    return w;
}

static inline const char *base64(fixture *f, const void *data, size_t length, const char *last_two) {
    const uint8_t *in = data;
    char alphabet[65] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", *out;
    memcpy(alphabet + 62, last_two, 2);
    size_t n = 0;
    out = sbp_arena_alloc(f->arena, length / 3 * 4 + 8);
    for (size_t i = 0; i < length; i += 3) {
        uint32_t bits = (uint32_t)in[i] << 16 | (i + 1 < length ? (uint32_t)in[i + 1] << 8 : 0) |
                        (i + 2 < length ? in[i + 2] : 0);
        for (int k = 0; k < 4; k++)
            out[n++] = i * 4 / 3 + (size_t)k > length * 4 / 3 ? '=' : alphabet[bits >> (18 - 6 * k) & 63];
    }
    return out;
}

static inline void separate(sbp_text *t) {
    if (t->length > 0)
        sbp_text_add(t, ",\n");
}

static inline void add_dims(onnx_writer *w, int32_t rank, const int64_t *dim) {
    for (int32_t d = 0; d < rank; d++)
        sbp_text_add(&w->initializers, w->snake ? "%s%lld" : "%s\"%lld\"", d ? "," : "", (long long)dim[d]);
}

/* An initializer with raw values. type: TensorProto.DataType. */
static inline const char *add_raw(onnx_writer *w, const char *name, int type, int32_t rank,
                                  const int64_t *dim, const void *data, size_t bytes) {
    separate(&w->initializers);
    sbp_text_add(&w->initializers, "{\"name\":\"%s\",\"%s\":%d,\"dims\":[", name,
                 field(w, "dataType", "data_type"), type);
    add_dims(w, rank, dim);
    sbp_text_add(&w->initializers, "],\"%s\":\"%s\"}", field(w, "rawData", "raw_data"),
                 base64(w->f, data, bytes, w->snake ? "-_" : "+/"));
    return name;
}

static inline const char *add_ints(onnx_writer *w, const int64_t *ints, int64_t n) {
    return add_raw(w, sbp_arena_printf(w->f->arena, "c%d", w->count++), 7, 1, &n, ints,
                   (size_t)n * sizeof *ints);
}

static inline const char *add_number(onnx_writer *w, double value) {
    float f = (float)value;
    return add_raw(w, sbp_arena_printf(w->f->arena, "c%d", w->count++), 1, 0, NULL, &f, sizeof f);
}

/* The tensor of the weights, as a parameter; written once. */
static inline const char *param(onnx_writer *w, const char *name) {
    const sbp_weight *t = sbp_weights_find(w->weights, name);
    const char *quoted = sbp_arena_printf(w->f->arena, "\"%s\"", name);
    sbp_text *out = w->storage == STORE_INPUT ? &w->inputs : &w->initializers;
    assert_non_null(t);
    if (out->length > 0 && strstr(out->data, quoted))
        return name;
    if (w->storage == STORE_INPUT) {
        separate(out);
        sbp_text_add(out,
                     "{\"name\":\"%s\",\"type\":{\"tensorType\":{\"elemType\":\"FLOAT\",\"shape\":{\"dim\":[",
                     name);
        for (int32_t d = 0; d < t->rank; d++)
            sbp_text_add(out, "%s{\"dimValue\":\"%lld\"}", d ? "," : "", (long long)t->dim[d]);
        sbp_text_add(out, "]}}}}");
        return name;
    }
    float *data = SBP_NEW_ARRAY(w->f->arena, float, t->elems);
    check(w->f, sbp_weights_read(w->weights, t, 0, t->elems, SBP_F32, data, w->f->diag));
    if (w->storage == STORE_RAW)
        return add_raw(w, name, 1, t->rank, t->dim, data, (size_t)t->elems * sizeof *data);
    separate(out);
    sbp_text_add(out, "{\"name\":\"%s\",\"%s\":%s,\"dims\":[", name, field(w, "dataType", "data_type"),
                 w->snake ? "\"FLOAT\"" : "1");
    add_dims(w, t->rank, t->dim);
    if (w->storage == STORE_EXTERNAL) {
        sbp_text_add(out,
                     "],\"%s\":\"EXTERNAL\",\"%s\":[{\"key\":\"location\",\"value\":\"model.safetensors\"}]}",
                     field(w, "dataLocation", "data_location"), field(w, "externalData", "external_data"));
        return name;
    }
    sbp_text_add(out, "],\"%s\":[", field(w, "floatData", "float_data"));
    for (int64_t i = 0; i < t->elems; i++)
        sbp_text_add(out, "%s%.9g", i ? "," : "", (double)data[i]);
    sbp_text_add(out, "]}");
    return name;
}

/* A node with up to four inputs (NULL: the end) and JSON of its attributes; returns its output. */
static inline const char *node_as(onnx_writer *w, const char *output, const char *op, const char *attributes,
                                  const char *a, const char *b, const char *c, const char *d) {
    const char *inputs[] = {a, b, c, d};
    separate(&w->nodes);
    sbp_text_add(&w->nodes, "{\"%s\":\"%s\",\"name\":\"n.%s\",\"input\":[", field(w, "opType", "op_type"), op,
                 output);
    for (int i = 0; i < 4 && inputs[i]; i++)
        sbp_text_add(&w->nodes, "%s\"%s\"", i ? "," : "", inputs[i]);
    sbp_text_add(&w->nodes, "],\"output\":[\"%s\"],\"attribute\":[%s]}", output,
                 attributes ? attributes : "");
    return output;
}

static inline const char *node(onnx_writer *w, const char *op, const char *attributes, const char *a,
                               const char *b, const char *c) {
    return node_as(w, sbp_arena_printf(w->f->arena, "v%d", w->count++), op, attributes, a, b, c, NULL);
}

static inline const char *int_attribute(onnx_writer *w, const char *name, int64_t value) {
    return sbp_arena_printf(w->f->arena,
                            w->snake ? "{\"name\":\"%s\",\"type\":\"INT\",\"i\":%lld}"
                                     : "{\"name\":\"%s\",\"i\":\"%lld\"}",
                            name, (long long)value);
}

static inline const char *float_attribute(onnx_writer *w, const char *name, double value) {
    return sbp_arena_printf(w->f->arena, "{\"name\":\"%s\",\"type\":\"FLOAT\",\"f\":%.9g}", name, value);
}

static inline const char *ints_attribute(onnx_writer *w, const char *name, const char *ints) {
    return sbp_arena_printf(w->f->arena, "{\"name\":\"%s\",\"type\":\"INTS\",\"ints\":[%s]}", name, ints);
}

static inline const char *join(onnx_writer *w, const char *a, const char *b) {
    return sbp_arena_printf(w->f->arena, "%s,%s", a, b);
}

/* The whole model, with input_ids and position_ids, into a file. */
static inline void onnx_write(onnx_writer *w, const char *path, int64_t vocab) {
    static const char *const tokens[] = {"input_ids", "position_ids"};
    sbp_text all;
    sbp_text_init(&all, w->f->arena);
    sbp_text_add(
        &all,
        "// a line that is no JSON\n{\"%s\":11,\"%s\":[{\"version\":\"%d\"}],\"graph\":{\"name\":\"g\",\n",
        field(w, "irVersion", "ir_version"), field(w, "opsetImport", "opset_import"), w->swish ? 24 : 23);
    sbp_text_add(&all, "\"node\":[%s],\n\"initializer\":[%s],\n\"input\":[", w->nodes.data,
                 w->initializers.data);
    for (int i = 0; i < 2; i++)
        sbp_text_add(&all,
                     "%s{\"name\":\"%s\",\"type\":{\"tensorType\":{\"elemType\":7,\"shape\":{\"dim\":[{"
                     "\"dimValue\":\"1\"},"
                     "{\"dimParam\":\"seq\"}]}}}}",
                     i ? "," : "", tokens[i]);
    sbp_text_add(&all,
                 "%s%s],\n\"output\":[{\"name\":\"logits\",\"type\":{\"tensorType\":{\"elemType\":1,"
                 "\"shape\":{\"dim\":["
                 "{\"dimValue\":\"1\"},{\"dimParam\":\"seq\"},{\"dimValue\":\"%lld\"}]}}}}]}}\n",
                 w->inputs.length ? "," : "", w->inputs.data ? w->inputs.data : "", (long long)vocab);
    check(w->f, sbp_file_write(w->f->diag, path, all.data, all.length));
}

#endif
