/* onnx_json.c: ModelProto in protobuf's JSON mapping as structures. Unknown fields are errors, except inside
 * metadata; what needs more than one graph of plain operators (functions, training info) is refused by name.
 */
#include "frontends/onnx/onnx.h"

#include <string.h>

typedef struct reader {
    sbp_arena *arena;
    sbp_diag *diag;
    sbp_onnx_model *model;
} reader;

static sbp_status must_be_empty(const reader *r, const sbp_json *message, const char *field) {
    const sbp_json *node = sbp_proto_field(message, field);
    if (!node || ((node->kind == SBP_JSON_ARRAY || node->kind == SBP_JSON_OBJECT) && node->count == 0))
        return SBP_OK;
    return sbp_json_fail(r->diag, node, "models with '%s' are not supported", field);
}

/* ---- attributes and nodes --------------------------------------------------------------------------- */

static sbp_status read_ints(const reader *r, const sbp_json *node, sbp_onnx_attribute *a) {
    int64_t *out = SBP_NEW_ARRAY(r->arena, int64_t, node->count);
    for (int64_t i = 0; i < node->count; i++)
        SBP_TRY(sbp_proto_i64(r->diag, &node->items[i], &out[i]));
    a->ints = out;
    a->count = node->count;
    return SBP_OK;
}

static sbp_status read_floats(const reader *r, const sbp_json *node, sbp_onnx_attribute *a) {
    double *out = SBP_NEW_ARRAY(r->arena, double, node->count);
    for (int64_t i = 0; i < node->count; i++) {
        SBP_TRY(sbp_proto_double(r->diag, &node->items[i], &out[i]));
        out[i] = (double)(float)out[i];
    }
    a->floats = out;
    a->count = node->count;
    return SBP_OK;
}

static sbp_status read_string(const reader *r, const sbp_json *node, sbp_onnx_attribute *a) {
    const uint8_t *bytes;
    int64_t length;
    SBP_TRY(sbp_proto_bytes(r->arena, r->diag, node, &bytes, &length)); /* a field of type bytes */
    a->s = sbp_arena_strndup(r->arena, (const char *)bytes, (size_t)length);
    return SBP_OK;
}

static sbp_status read_value(const reader *r, const sbp_json *node, sbp_onnx_attribute *a) {
    const sbp_json *items = node;
    switch (a->kind) {
    case SBP_ONNX_ATTR_FLOAT:
        SBP_TRY(sbp_proto_double(r->diag, node, &a->f));
        a->f = (double)(float)a->f;
        return SBP_OK;
    case SBP_ONNX_ATTR_INT:
        return sbp_proto_i64(r->diag, node, &a->i);
    case SBP_ONNX_ATTR_STRING:
        return read_string(r, node, a);
    case SBP_ONNX_ATTR_TENSOR:
        return sbp_onnx_tensor_parse(r->arena, r->diag, node, &a->t);
    case SBP_ONNX_ATTR_FLOATS:
        SBP_TRY(sbp_json_as_array(r->diag, node, &items));
        return read_floats(r, items, a);
    case SBP_ONNX_ATTR_INTS:
        SBP_TRY(sbp_json_as_array(r->diag, node, &items));
        return read_ints(r, items, a);
    case SBP_ONNX_ATTR_OTHER:
        break;
    }
    return SBP_OK;
}

/* AttributeProto.AttributeType by number, and the field that holds such a value. */
static const char *const attribute_types[] = {
    "UNDEFINED", "FLOAT",   "INT",    "STRING",        "TENSOR",         "GRAPH",      "FLOATS",     "INTS",
    "STRINGS",   "TENSORS", "GRAPHS", "SPARSE_TENSOR", "SPARSE_TENSORS", "TYPE_PROTO", "TYPE_PROTOS"};
static const char *const attribute_fields[] = {NULL,
                                               "f",
                                               "i",
                                               "s",
                                               "t",
                                               "g",
                                               "floats",
                                               "ints",
                                               "strings",
                                               "tensors",
                                               "graphs",
                                               "sparseTensor",
                                               "sparseTensors",
                                               "tp",
                                               "typeProtos"};

static sbp_onnx_attr_kind attribute_kind(int32_t type) {
    switch (type) {
    case 1:
        return SBP_ONNX_ATTR_FLOAT;
    case 2:
        return SBP_ONNX_ATTR_INT;
    case 3:
        return SBP_ONNX_ATTR_STRING;
    case 4:
        return SBP_ONNX_ATTR_TENSOR;
    case 6:
        return SBP_ONNX_ATTR_FLOATS;
    case 7:
        return SBP_ONNX_ATTR_INTS;
    default:
        return SBP_ONNX_ATTR_OTHER;
    }
}

static sbp_status read_attribute(const reader *r, const sbp_json *node, sbp_onnx_attribute *a) {
    static const char *const fields[] = {"name",    "refAttrName", "docString",
                                         "type",    "f",           "i",
                                         "s",       "t",           "g",
                                         "floats",  "ints",        "strings",
                                         "tensors", "graphs",      "sparseTensor",
                                         "tp",      "typeProtos",  "sparseTensors",
                                         NULL};
    int32_t type = 0;
    *a = (sbp_onnx_attribute){.name = "", .kind = SBP_ONNX_ATTR_OTHER, .node = node};
    SBP_TRY(sbp_proto_check(r->diag, node, fields));
    SBP_TRY(sbp_proto_get_string(r->diag, node, "name", &a->name));
    if (sbp_proto_field(node, "refAttrName"))
        return sbp_json_fail(r->diag, node, "attribute '%s' refers to one of a function", a->name);
    const sbp_json *type_node = sbp_proto_field(node, "type"), *value = NULL;
    if (type_node)
        SBP_TRY(sbp_proto_enum(r->diag, type_node, attribute_types, SBP_COUNT(attribute_types), &type));
    for (int32_t i = 1; i < SBP_COUNT(attribute_fields); i++) {
        const sbp_json *field = sbp_proto_field(node, attribute_fields[i]);
        if (!field)
            continue;
        if (value || (type != 0 && type != i))
            return sbp_json_fail(r->diag, field, "attribute '%s' of type %s has a value here", a->name,
                                 attribute_types[type]);
        value = field;
        type = i;
    }
    a->kind = attribute_kind(type);
    if (!value) { /* zeros and empty lists are left out by writers that drop defaults */
        if (type == 4 || type == 0)
            return sbp_json_fail(r->diag, node, "attribute '%s' has no value", a->name);
        a->s = "";
        return SBP_OK;
    }
    return read_value(r, value, a);
}

static sbp_status read_names(const reader *r, const sbp_json *node, const char *field, const char ***out,
                             int32_t *count) {
    const sbp_json *items;
    int64_t n;
    SBP_TRY(sbp_proto_get_repeated(r->diag, node, field, &items, &n));
    if (n > 100000)
        return sbp_json_fail(r->diag, node, "a list of %lld names; at most 100000 are read", (long long)n);
    *out = SBP_NEW_ARRAY(r->arena, const char *, n);
    *count = (int32_t)n;
    for (int64_t i = 0; i < n; i++)
        SBP_TRY(sbp_json_as_string(r->diag, &items[i], &(*out)[i]));
    return SBP_OK;
}

static sbp_status read_node(const reader *r, const sbp_json *node, sbp_onnx_node *n) {
    static const char *const fields[] = {
        "input",    "output",    "name",      "opType",        "domain",
        "overload", "attribute", "docString", "metadataProps", "deviceConfigurations",
        NULL};
    const sbp_json *attributes;
    int64_t count;
    *n = (sbp_onnx_node){.op = "", .domain = "", .name = "", .json = node};
    SBP_TRY(sbp_proto_check(r->diag, node, fields));
    SBP_TRY(sbp_proto_get_string(r->diag, node, "opType", &n->op));
    SBP_TRY(sbp_proto_get_string(r->diag, node, "domain", &n->domain));
    SBP_TRY(sbp_proto_get_string(r->diag, node, "name", &n->name));
    SBP_TRY(read_names(r, node, "input", &n->inputs, &n->input_count));
    SBP_TRY(read_names(r, node, "output", &n->outputs, &n->output_count));
    if (n->output_count == 0 || n->op[0] == 0)
        return sbp_json_fail(r->diag, node, "node '%s' has no output or no opType", n->name);
    if (n->name[0] == 0)
        n->name = n->outputs[0];
    SBP_TRY(sbp_proto_get_repeated(r->diag, node, "attribute", &attributes, &count));
    n->attributes = SBP_NEW_ARRAY(r->arena, sbp_onnx_attribute, count);
    n->attribute_count = (int32_t)count;
    for (int64_t i = 0; i < count; i++)
        SBP_TRY(read_attribute(r, &attributes[i], &n->attributes[i]));
    return SBP_OK;
}

/* ---- inputs, outputs, types --------------------------------------------------------------------------- */

static sbp_status read_shape(const reader *r, const sbp_json *shape, sbp_onnx_info *info) {
    static const char *const shape_fields[] = {"dim", NULL}, *const dim_fields[] = {"dimValue", "dimParam",
                                                                                    "denotation", NULL};
    const sbp_json *dims;
    int64_t count;
    SBP_TRY(sbp_proto_check(r->diag, shape, shape_fields));
    SBP_TRY(sbp_proto_get_repeated(r->diag, shape, "dim", &dims, &count));
    if (count > SBP_ONNX_MAX_RANK)
        return sbp_json_fail(r->diag, shape, "rank %lld; at most %d is supported", (long long)count,
                             SBP_ONNX_MAX_RANK);
    info->has_shape = true;
    info->rank = (int32_t)count;
    for (int64_t d = 0; d < count; d++) {
        info->dim[d] = -1;
        SBP_TRY(sbp_proto_check(r->diag, &dims[d], dim_fields));
        const sbp_json *value = sbp_proto_field(&dims[d], "dimValue");
        if (value)
            SBP_TRY(sbp_proto_i64(r->diag, value, &info->dim[d]));
        if (value && info->dim[d] < 0)
            return sbp_json_fail(r->diag, value, "dimension %lld is out of range", (long long)info->dim[d]);
        SBP_TRY(sbp_proto_get_string(r->diag, &dims[d], "dimParam", &info->param[d]));
    }
    return SBP_OK;
}

static sbp_status read_type(const reader *r, const sbp_json *type, sbp_onnx_info *info) {
    static const char *const fields[] = {"tensorType",       "sequenceType", "mapType",    "optionalType",
                                         "sparseTensorType", "opaqueType",   "denotation", NULL},
                             *const tensor_fields[] = {"elemType", "shape", NULL};
    SBP_TRY(sbp_proto_check(r->diag, type, fields));
    const sbp_json *tensor = sbp_proto_field(type, "tensorType");
    if (!tensor)
        return sbp_json_fail(r->diag, type, "'%s' is not a tensor", info->name);
    SBP_TRY(sbp_proto_check(r->diag, tensor, tensor_fields));
    const sbp_json *elem = sbp_proto_field(tensor, "elemType"), *shape = sbp_proto_field(tensor, "shape");
    if (elem)
        SBP_TRY(sbp_onnx_type_parse(r->diag, elem, &info->type));
    return shape ? read_shape(r, shape, info) : SBP_OK;
}

/* The exporter's mark for what is no parameter of the torch module. */
static sbp_status read_metadata(const reader *r, const sbp_json *node, sbp_onnx_info *info) {
    const sbp_json *items;
    int64_t count;
    SBP_TRY(sbp_proto_get_repeated(r->diag, node, "metadataProps", &items, &count));
    for (int64_t i = 0; i < count; i++) {
        const sbp_json *key = sbp_proto_field(&items[i], "key"), *value = sbp_proto_field(&items[i], "value");
        if (key && value && key->kind == SBP_JSON_STRING && value->kind == SBP_JSON_STRING &&
            strcmp(key->string, "pkg.torch.export.graph_signature.InputSpec.kind") == 0)
            info->buffer = strcmp(value->string, "BUFFER") == 0;
    }
    return SBP_OK;
}

static sbp_status read_infos(const reader *r, const sbp_json *graph, const char *field, sbp_onnx_info **out,
                             int32_t *out_count) {
    static const char *const fields[] = {"name", "type", "docString", "metadataProps", NULL};
    const sbp_json *items;
    int64_t count;
    SBP_TRY(sbp_proto_get_repeated(r->diag, graph, field, &items, &count));
    *out = SBP_NEW_ARRAY(r->arena, sbp_onnx_info, count);
    *out_count = (int32_t)count;
    for (int64_t i = 0; i < count; i++) {
        sbp_onnx_info *info = &(*out)[i];
        info->name = "";
        info->json = &items[i];
        SBP_TRY(sbp_proto_check(r->diag, &items[i], fields));
        SBP_TRY(sbp_proto_get_string(r->diag, &items[i], "name", &info->name));
        SBP_TRY(read_metadata(r, &items[i], info));
        const sbp_json *type = sbp_proto_field(&items[i], "type");
        if (type)
            SBP_TRY(read_type(r, type, info));
    }
    return SBP_OK;
}

/* ---- graph and model ---------------------------------------------------------------------------------- */

static sbp_status read_graph(const reader *r, const sbp_json *graph) {
    static const char *const fields[] = {
        "node",  "name",   "initializer", "sparseInitializer",      "docString",
        "input", "output", "valueInfo",   "quantizationAnnotation", "metadataProps",
        NULL};
    sbp_onnx_model *m = r->model;
    const sbp_json *items;
    int64_t count;
    SBP_TRY(sbp_proto_check(r->diag, graph, fields));
    SBP_TRY(must_be_empty(r, graph, "sparseInitializer"));
    SBP_TRY(must_be_empty(r, graph, "quantizationAnnotation"));
    SBP_TRY(sbp_proto_get_repeated(r->diag, graph, "node", &items, &count));
    m->nodes = SBP_NEW_ARRAY(r->arena, sbp_onnx_node, count);
    m->node_count = (int32_t)count;
    for (int64_t i = 0; i < count; i++)
        SBP_TRY(read_node(r, &items[i], &m->nodes[i]));
    SBP_TRY(sbp_proto_get_repeated(r->diag, graph, "initializer", &items, &count));
    m->initializers = SBP_NEW_ARRAY(r->arena, sbp_onnx_tensor, count);
    m->initializer_count = (int32_t)count;
    for (int64_t i = 0; i < count; i++)
        SBP_TRY(sbp_onnx_tensor_parse(r->arena, r->diag, &items[i], &m->initializers[i]));
    SBP_TRY(read_infos(r, graph, "input", &m->inputs, &m->input_count));
    SBP_TRY(read_infos(r, graph, "output", &m->outputs, &m->output_count));
    return read_infos(r, graph, "valueInfo", &m->values, &m->value_count);
}

static sbp_status read_opset(const reader *r, const sbp_json *root) {
    static const char *const fields[] = {"domain", "version", NULL};
    const sbp_json *items;
    int64_t count;
    SBP_TRY(sbp_proto_get_repeated(r->diag, root, "opsetImport", &items, &count));
    for (int64_t i = 0; i < count; i++) {
        const char *domain = "";
        int64_t version = 0;
        SBP_TRY(sbp_proto_check(r->diag, &items[i], fields));
        SBP_TRY(sbp_proto_get_string(r->diag, &items[i], "domain", &domain));
        SBP_TRY(sbp_proto_get_i64(r->diag, &items[i], "version", &version));
        if (domain[0] == 0 || strcmp(domain, "ai.onnx") == 0)
            r->model->opset = version;
    }
    return SBP_OK;
}

static sbp_status read_properties(const reader *r, const sbp_json *root) {
    const sbp_json *items;
    int64_t count;
    SBP_TRY(sbp_proto_get_repeated(r->diag, root, "metadataProps", &items, &count));
    for (int64_t i = 0; i < count; i++) {
        const char *key = "", *value = "";
        SBP_TRY(sbp_proto_get_string(r->diag, &items[i], "key", &key));
        SBP_TRY(sbp_proto_get_string(r->diag, &items[i], "value", &value));
        if (strcmp(key, "streambp.tied") == 0)
            r->model->tied = value;
        else if (strcmp(key, "streambp.base_model") == 0)
            r->model->base = value;
    }
    return SBP_OK;
}

sbp_status sbp_onnx_parse(sbp_arena *arena, sbp_diag *diag, const char *path, const sbp_json *root,
                          sbp_onnx_model *out) {
    static const char *const fields[] = {
        "irVersion", "opsetImport", "producerName",  "producerVersion", "domain",    "modelVersion",
        "docString", "graph",       "metadataProps", "trainingInfo",    "functions", "configuration",
        NULL};
    *out = (sbp_onnx_model){.path = path, .root = root};
    reader r = {.arena = arena, .diag = diag, .model = out};
    SBP_TRY(sbp_proto_check(diag, root, fields));
    SBP_TRY(must_be_empty(&r, root, "trainingInfo"));
    SBP_TRY(must_be_empty(&r, root, "functions"));
    SBP_TRY(read_opset(&r, root));
    SBP_TRY(read_properties(&r, root));
    const sbp_json *graph = sbp_proto_field(root, "graph");
    if (!graph)
        return sbp_json_fail(diag, root, "the field 'graph' is missing");
    return read_graph(&r, graph);
}
