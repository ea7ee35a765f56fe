/* onnx_node.c: what operators are imported with: errors, operands and attributes of the node at hand, and the
 * values that its outputs become. */
#include "frontends/onnx/onnx.h"

#include <stdio.h>
#include <string.h>

/* ---- errors, operands, attributes --------------------------------------------------------------------- */

sbp_status(sbp_onnx_fail)(sbp_onnx *o, const char *format, ...) {
    if (o->builder.status != SBP_OK)
        return o->builder.status;
    va_list args;
    va_start(args, format);
    char message[600];
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    if (o->node)
        o->builder.status = sbp_fail(o->diag, SBP_INPUT, "%s: node '%s' (%s): %s", o->model->path,
                                     o->node->name, o->node->op, message);
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
