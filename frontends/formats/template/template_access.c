/* template_access.c: attributes and items, as the sandbox lets templates see them. */
#include <string.h>

#include "frontends/formats/template/template_internal.h"

static tpl_value no_attribute(tpl_eval *e, const tpl_value *of, tpl_text name) {
    return sbp_tpl_undefined(e, "'%s' has no attribute '%.*s'", sbp_tpl_type(of),
                             (int)(name.length < 60 ? name.length : 60), name.data);
}

static bool loop_attribute(tpl_eval *e, const tpl_loop *loop, tpl_text name, tpl_value *out) {
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {{"index", loop->at + 1},
                   {"index0", loop->at},
                   {"length", loop->count},
                   {"revindex", loop->count - loop->at},
                   {"revindex0", loop->count - loop->at - 1},
                   {"depth", loop->depth + 1},
                   {"depth0", loop->depth}};
    for (int i = 0; i < SBP_COUNT(numbers); i++)
        if (sbp_tpl_is(name, numbers[i].name)) {
            *out = sbp_tpl_int(numbers[i].value);
            return true;
        }
    bool first = loop->at == 0, last = loop->at == loop->count - 1;
    if (sbp_tpl_is(name, "first") || sbp_tpl_is(name, "last"))
        *out = sbp_tpl_bool(sbp_tpl_is(name, "first") ? first : last);
    else if (sbp_tpl_is(name, "previtem"))
        *out = first ? sbp_tpl_undefined(e, "there is no previous item") : loop->items[loop->at - 1];
    else if (sbp_tpl_is(name, "nextitem"))
        *out = last ? sbp_tpl_undefined(e, "there is no next item") : loop->items[loop->at + 1];
    else
        return false;
    return true;
}

/* What Python finds as an attribute: methods, and the parts of namespaces, loops and macros. False: nothing.
 */
static sbp_status python_attribute(tpl_eval *e, const tpl_value *of, tpl_text name, bool *found,
                                   tpl_value *out) {
    *found = true;
    const tpl_builtin *builtin = sbp_tpl_find_method(of->kind, name);
    if (of->kind == TPL_LOOP && loop_attribute(e, of->loop, name, out))
        return SBP_OK;
    if (of->kind == TPL_MACRO && sbp_tpl_is(name, "name")) {
        *out = sbp_tpl_literal(of->macro->node->name ? of->macro->node->name : "caller");
        return SBP_OK;
    }
    if (of->kind == TPL_NAMESPACE) {
        const tpl_value *value;
        tpl_value key = sbp_tpl_string(name.data, name.length);
        SBP_TRY(sbp_tpl_dict_get(e, of->dict, &key, &value));
        *found = value != NULL;
        if (value)
            *out = *value;
        return SBP_OK;
    }
    if (builtin && builtin->work) {
        tpl_method *method = SBP_NEW(e->arena, tpl_method);
        *method = (tpl_method){*of, builtin};
        *out = (tpl_value){.kind = TPL_METHOD, .method = method};
        return SBP_OK;
    }
    if (builtin) { /* it would change the value: the sandbox keeps it away */
        *out = sbp_tpl_undefined(e, "'%s' of a %s is not allowed: it would change it", builtin->name,
                                 sbp_tpl_type(of));
        return SBP_OK;
    }
    *found = false;
    if (sbp_tpl_python_has(of->kind, name))
        return sbp_tpl_fail(e, "'%.*s' of a %s is not supported", (int)name.length, name.data,
                            sbp_tpl_type(of));
    return SBP_OK;
}

/* What [] finds; false: nothing. */
static sbp_status python_item(tpl_eval *e, const tpl_value *of, const tpl_value *key, bool *found,
                              tpl_value *out) {
    int64_t index;
    const tpl_value *value = NULL;
    *found = false;
    if (of->kind == TPL_DICT && sbp_tpl_hashable(key)) {
        SBP_TRY(sbp_tpl_dict_get(e, of->dict, key, &value));
    } else if (sbp_tpl_integer(key, &index)) {
        bool is_text = of->kind == TPL_STRING;
        if (!is_text && of->kind != TPL_LIST && of->kind != TPL_TUPLE && of->kind != TPL_RANGE)
            return SBP_OK;
        int64_t count = is_text ? sbp_tpl_chars(of->string) : of->sequence->count;
        index += index < 0 ? count : 0;
        if (index < 0 || index >= count)
            return SBP_OK;
        if (!is_text) {
            value = &of->sequence->items[index];
        } else {
            int bytes;
            const char *at = of->string.data + sbp_tpl_offset(of->string, index);
            (void)sbp_tpl_decode(at, &bytes);
            *out = sbp_tpl_string(at, (size_t)bytes);
            out->safe = of->safe;
            *found = true;
            return sbp_tpl_charge_text(e, of->string.length);
        }
    }
    *found = value != NULL;
    if (value)
        *out = *value;
    return SBP_OK;
}

sbp_status sbp_tpl_attribute(tpl_eval *e, const tpl_value *of, tpl_text name, tpl_value *out) {
    bool found;
    if (of->kind == TPL_UNDEFINED)
        return sbp_tpl_fail(e, "%s", of->undefined);
    SBP_TRY(python_attribute(e, of, name, &found, out));
    if (!found) {
        tpl_value key = sbp_tpl_string(name.data, name.length);
        SBP_TRY(python_item(e, of, &key, &found, out));
    }
    if (!found)
        *out = no_attribute(e, of, name);
    return SBP_OK;
}

sbp_status sbp_tpl_item(tpl_eval *e, const tpl_value *of, const tpl_value *key, tpl_value *out) {
    bool found;
    if (of->kind == TPL_UNDEFINED)
        return sbp_tpl_fail(e, "%s", of->undefined);
    SBP_TRY(python_item(e, of, key, &found, out));
    if (!found && key->kind == TPL_STRING)
        SBP_TRY(python_attribute(e, of, key->string, &found, out));
    if (!found && key->kind == TPL_STRING)
        *out = no_attribute(e, of, key->string);
    else if (!found)
        *out = sbp_tpl_undefined(e, "%s has no such element", sbp_tpl_type(of));
    return SBP_OK;
}
