/* onnx_node.c: what operators are imported with: errors, operands and attributes of the node at hand, and the
 * values that its outputs become. */
#include "frontends/onnx/onnx.h"

#include <stdio.h>
#include <string.h>

/* ---- errors, operands, attributes --------------------------------------------------------------------- */

/* What a torch module seems to be by a word in its class, or a node by its operator; NULL: nothing known. */
static const char *seems_to_be(const char *text, bool class) {
    static const struct {
        const char *word, *what;
        bool class;
    } known[] = {{"Mamba", "a state-space layer", true},          {"Ssm", "a state-space layer", true},
                 {"DeltaNet", "a layer with a state", true},      {"Rwkv", "a layer with a state", true},
                 {"Recurrent", "a layer with a state", true},     {"Experts", "a mixture of experts", true},
                 {"Moe", "a mixture of experts", true},           {"MoE", "a mixture of experts", true},
                 {"Router", "a mixture of experts", true},        {"NonZero", "a mixture of experts", false},
                 {"TopK", "a mixture of experts", false},         {"OneHot", "a mixture of experts", false},
                 {"CumSum", "a layer with a state", false},       {"Scan", "a layer with a state", false},
                 {"ScatterND", "a layer with a state", false},    {"Pad", "a layer with a state", false},
                 {"Loop", "a loop over tokens or experts", false}};
    for (int32_t i = 0; i < SBP_COUNT(known); i++)
        if (class == known[i].class &&
            (class ? strstr(text, known[i].word) != NULL : strcmp(text, known[i].word) == 0))
            return known[i].what;
    return NULL;
}

/* The node, the torch module that it comes from ("model.layers.0.mamba: a.b.Class" in the exporter's notes)
 * and what that seems to be; *what NULL: nothing known. */
static const char *where(sbp_onnx *o, const char **what) {
    const sbp_json *items = NULL;
    int64_t count = 0;
    const char *scope = NULL;
    sbp_diag *none = sbp_diag_create();
    if (none && o->node->json &&
        sbp_proto_get_repeated(none, o->node->json, "metadataProps", &items, &count) != SBP_OK)
        count = 0;
    sbp_diag_destroy(none);
    for (int64_t i = 0; i < count; i++) {
        const sbp_json *key = sbp_proto_field(&items[i], "key"), *value = sbp_proto_field(&items[i], "value");
        if (key && value && key->kind == SBP_JSON_STRING && value->kind == SBP_JSON_STRING &&
            strcmp(key->string, "namespace") == 0)
            scope = value->string;
    }
    const char *node = sbp_arena_printf(o->arena, "node '%s' (%s)", o->node->name, o->node->op);
    const char *end = scope ? strrchr(scope, '/') : NULL, *start = end;
    while (start && start > scope && start[-1] != '/')
        start--;
    const char *colon = start ? memchr(start, ':', (size_t)(end - start)) : NULL, *class = end;
    *what = seems_to_be(o->node->op, false);
    if (!colon)
        return node;
    while (class > colon + 1 && class[-1] != '.' && class[-1] != ' ')
        class --;
    const char *name = sbp_arena_printf(o->arena, "%.*s", (int)(end - class), class);
    for (const char *at = scope; at < end && !seems_to_be(name, true); at++) /* or a module around it */
        if (*at == '.' && at + 1 < end) {
            size_t n = strcspn(at + 1, "./: ");
            const char *other = sbp_arena_printf(o->arena, "%.*s", (int)n, at + 1);
            if (other[0] >= 'A' && other[0] <= 'Z' && seems_to_be(other, true) && !strstr(other, "For"))
                *what = seems_to_be(other, true);
        }
    if (seems_to_be(name, true))
        *what = seems_to_be(name, true);
    return sbp_arena_printf(o->arena, "%s of module '%.*s' (%s)", node, (int)(colon - start), start, name);
}

sbp_status(sbp_onnx_fail)(sbp_onnx *o, const char *format, ...) {
    if (o->builder.status != SBP_OK)
        return o->builder.status;
    va_list args;
    va_start(args, format);
    char message[600];
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    const char *what = NULL, *node = o->node && !o->looks ? where(o, &what) : NULL;
    if (node && what)
        o->builder.status =
            sbp_fail(o->diag, SBP_INPUT,
                     "%s: %s, which seems to be part of %s: %s; give the model's Hugging Face directory, if "
                     "its family "
                     "is among those that are built from it, or an export of examples/export_model_json.py",
                     o->model->path, node, what, message);
    else if (o->node)
        o->builder.status =
            sbp_fail(o->diag, SBP_INPUT, "%s: %s: %s", o->model->path, node ? node : o->node->name, message);
    else
        o->builder.status = sbp_fail(o->diag, SBP_INPUT, "%s: %s", o->model->path, message);
    return o->builder.status;
}

const sbp_onnx_value *sbp_onnx_input(sbp_onnx *o, int32_t index) {
    if (index >= o->node->input_count || o->node->inputs[index][0] == 0)
        return NULL;
    int32_t value = sbp_map_get(&o->names, o->node->inputs[index]);
    if (value < 0)
        sbp_onnx_fail(o, "input '%s' is not defined before this node", o->node->inputs[index]);
    return value < 0 ? NULL : &o->values[value];
}

sbp_status sbp_onnx_required(sbp_onnx *o, int32_t index, const sbp_onnx_value **out) {
    *out = sbp_onnx_input(o, index);
    return *out ? SBP_OK : sbp_onnx_fail(o, "input %d is missing", index);
}

bool sbp_onnx_is_read(const sbp_onnx *o, const char *name) {
    return sbp_map_get(&o->read, name) >= 0;
}

bool sbp_onnx_has_output(const sbp_onnx *o, int32_t index) {
    return index < o->node->output_count && o->node->outputs[index][0] != 0 &&
           sbp_onnx_is_read(o, o->node->outputs[index]);
}

const sbp_onnx_attribute *sbp_onnx_attr(const sbp_onnx *o, const char *name) {
    for (int32_t i = 0; i < o->node->attribute_count; i++)
        if (strcmp(o->node->attributes[i].name, name) == 0)
            return &o->node->attributes[i];
    return NULL;
}

static sbp_status typed_attr(sbp_onnx *o, const char *name, sbp_onnx_attr_kind kind, const char *expected,
                             const sbp_onnx_attribute **out) {
    *out = sbp_onnx_attr(o, name);
    if (*out && (*out)->kind != kind)
        return sbp_onnx_fail(o, "attribute '%s' is not %s", name, expected);
    return SBP_OK;
}

sbp_status sbp_onnx_attr_int(sbp_onnx *o, const char *name, int64_t *out) {
    const sbp_onnx_attribute *a;
    SBP_TRY(typed_attr(o, name, SBP_ONNX_ATTR_INT, "an integer", &a));
    if (a)
        *out = a->i;
    return SBP_OK;
}

sbp_status sbp_onnx_attr_float(sbp_onnx *o, const char *name, double *out) {
    const sbp_onnx_attribute *a;
    SBP_TRY(typed_attr(o, name, SBP_ONNX_ATTR_FLOAT, "a float", &a));
    if (a)
        *out = a->f;
    return SBP_OK;
}

sbp_status sbp_onnx_attr_string(sbp_onnx *o, const char *name, const char **out) {
    const sbp_onnx_attribute *a;
    SBP_TRY(typed_attr(o, name, SBP_ONNX_ATTR_STRING, "a string", &a));
    if (a)
        *out = a->s;
    return SBP_OK;
}

sbp_status sbp_onnx_attrs_known(sbp_onnx *o, const char *const *names) {
    for (int32_t i = 0; i < o->node->attribute_count; i++) {
        int k = 0;
        while (names[k] && strcmp(names[k], o->node->attributes[i].name) != 0)
            k++;
        if (!names[k])
            return sbp_onnx_fail(o, "unknown attribute '%s'", o->node->attributes[i].name);
    }
    return SBP_OK;
}

/* ---- values ---------------------------------------------------------------------------------------------
 */

void sbp_onnx_add_value(sbp_onnx *o, const sbp_onnx_value *value) {
    sbp_map_set(&o->names, value->name, o->value_count);
    SBP_PUSH(o->arena, o->values, o->value_count, o->value_capacity, *value);
}

void sbp_onnx_define(sbp_onnx *o, int32_t index, const sbp_onnx_value *value) {
    sbp_onnx_value copy = *value;
    copy.name = o->node->outputs[index];
    if (o->builder.status == SBP_OK)
        sbp_onnx_add_value(o, &copy);
}

const char *sbp_onnx_short_name(sbp_onnx *o) {
    const char *name = o->node->outputs[0], *at = name + strlen(name);
    while (at > name && !strchr("./:", at[-1]))
        at--;
    bool number = at[strspn(at, "0123456789")] == 0;
    return *at && !number ? at : o->node->op;
}

/* Whether the value has only the number that it got when it was made. */
static bool is_nameless(const sbp_onnx *o, sbp_value value) {
    const char *name = o->builder.func->values[value].name;
    return name[0] == 't' && name[1] != 0 && name[1 + strspn(name + 1, "0123456789")] == 0;
}

void sbp_onnx_define_value(sbp_onnx *o, int32_t index, sbp_value value, sbp_onnx_type type, int32_t rank,
                           const int64_t *dim) {
    if (o->builder.status != SBP_OK)
        return;
    if (index == 0 && is_nameless(o, value))
        sbp_build_name(&o->builder, value, sbp_onnx_short_name(o));
    sbp_onnx_value v = {.kind = SBP_ONNX_VALUE, .type = type, .rank = rank, .value = value};
    memcpy(v.dim, dim, (size_t)rank * sizeof *dim);
    sbp_onnx_define(o, index, &v);
}
