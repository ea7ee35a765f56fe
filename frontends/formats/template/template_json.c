/* template_json.c: json.dumps, and sorting. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "frontends/formats/template/template_internal.h"

static sbp_status add(tpl_eval *e, sbp_text *out, const char *text) {
    return sbp_tpl_add(e, out, (tpl_text){text, strlen(text)});
}

static sbp_status add_code(tpl_eval *e, sbp_text *out, uint32_t code) {
    char text[16];
    if (code < 0x10000)
        snprintf(text, sizeof text, "\\u%04x", code);
    else
        snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xd800 + ((code - 0x10000) >> 10),
                 0xdc00 + ((code - 0x10000) & 0x3ff));
    return add(e, out, text);
}

static sbp_status add_string(tpl_eval *e, sbp_text *out, tpl_text s, const tpl_json_style *style) {
    static const char names[] = "\"\"\\\\\nn\rr\tt\ff\bb";
    SBP_TRY(add(e, out, "\""));
    for (size_t at = 0; at < s.length;) {
        int bytes;
        uint32_t code = sbp_tpl_decode(s.data + at, &bytes);
        const char *name = names;
        while (*name && (uint32_t)*name != code)
            name += 2;
        if (*name)
            SBP_TRY(add(e, out, (char[]){'\\', name[1], '\0'}));
        else if (code < 0x20 || (style->ascii && code > 0x7e))
            SBP_TRY(add_code(e, out, code));
        else
            SBP_TRY(sbp_tpl_add(e, out, (tpl_text){s.data + at, (size_t)bytes}));
        at += (size_t)bytes;
    }
    return add(e, out, "\"");
}

static sbp_status add_scalar(tpl_eval *e, sbp_text *out, const tpl_value *value) {
    char text[40];
    switch (value->kind) {
    case TPL_NONE:
        return add(e, out, "null");
    case TPL_BOOL:
        return add(e, out, value->boolean ? "true" : "false");
    case TPL_FLOAT:
        sbp_tpl_format_float(text, value->real);
        return add(e, out,
                   isnan(value->real)   ? "NaN"
                   : isinf(value->real) ? (value->real > 0 ? "Infinity" : "-Infinity")
                                        : text);
    case TPL_INT:
        return sbp_tpl_add_repr(e, out, value);
    case TPL_UNDEFINED:
        return sbp_tpl_fail(e, "tojson: %s", value->undefined);
    default:
        return sbp_tpl_fail(e, "tojson: a %s is not JSON", sbp_tpl_type(value));
    }
}

static sbp_status new_line(tpl_eval *e, sbp_text *out, const tpl_json_style *style, int32_t level) {
    if (!style->indented)
        return SBP_OK;
    SBP_TRY(add(e, out, "\n"));
    for (int32_t i = 0; i < level; i++)
        SBP_TRY(sbp_tpl_add(e, out, style->indent));
    return SBP_OK;
}

static sbp_status add_list(tpl_eval *e, sbp_text *out, const tpl_value *value, const tpl_json_style *style,
                           int32_t level) {
    const tpl_sequence *s = value->sequence;
    SBP_TRY(add(e, out, "["));
    for (int64_t i = 0; i < s->count; i++) {
        if (i)
            SBP_TRY(sbp_tpl_add(e, out, style->item_separator));
        SBP_TRY(new_line(e, out, style, level + 1));
        SBP_TRY(sbp_tpl_add_json(e, out, &s->items[i], style, level + 1));
    }
    if (s->count)
        SBP_TRY(new_line(e, out, style, level));
    return add(e, out, "]");
}

static sbp_status add_key(tpl_eval *e, sbp_text *out, const tpl_value *key, const tpl_json_style *style) {
    if (key->kind == TPL_STRING)
        return add_string(e, out, key->string, style);
    if (key->kind > TPL_STRING || key->kind < TPL_NONE)
        return sbp_tpl_fail(e, "tojson: %s cannot be a key", sbp_tpl_type(key));
    SBP_TRY(add(e, out, "\""));
    SBP_TRY(add_scalar(e, out, key));
    return add(e, out, "\"");
}

static sbp_status add_dict(tpl_eval *e, sbp_text *out, const tpl_dict *dict, const tpl_json_style *style,
                           int32_t level) {
    tpl_value *keys = SBP_NEW_ARRAY(e->arena, tpl_value, dict->count);
    tpl_value *values = SBP_NEW_ARRAY(e->arena, tpl_value, dict->count);
    for (int32_t i = 0; i < dict->count; i++) {
        keys[i] = dict->entries[i].key;
        values[i] = dict->entries[i].value;
    }
    if (style->sort)
        SBP_TRY(sbp_tpl_sort(e, keys, values, dict->count, false));
    SBP_TRY(add(e, out, "{"));
    for (int32_t i = 0; i < dict->count; i++) {
        if (i)
            SBP_TRY(sbp_tpl_add(e, out, style->item_separator));
        SBP_TRY(new_line(e, out, style, level + 1));
        SBP_TRY(add_key(e, out, &keys[i], style));
        SBP_TRY(sbp_tpl_add(e, out, style->key_separator));
        SBP_TRY(sbp_tpl_add_json(e, out, &values[i], style, level + 1));
    }
    if (dict->count)
        SBP_TRY(new_line(e, out, style, level));
    return add(e, out, "}");
}

sbp_status sbp_tpl_add_json(tpl_eval *e, sbp_text *out, const tpl_value *value, const tpl_json_style *style,
                            int32_t level) {
    SBP_TRY(sbp_tpl_deeper(e));
    if (value->kind == TPL_STRING)
        SBP_TRY(add_string(e, out, value->string, style));
    else if (value->kind == TPL_LIST || value->kind == TPL_TUPLE)
        SBP_TRY(add_list(e, out, value, style, level));
    else if (value->kind == TPL_DICT)
        SBP_TRY(add_dict(e, out, value->dict, style, level));
    else
        SBP_TRY(add_scalar(e, out, value));
    e->depth--;
    return SBP_OK;
}

/* ---- sorting --------------------------------------------------------------------------------------- */

typedef struct sort_job {
    tpl_eval *e;
    const tpl_value *keys;
    bool reverse;
} sort_job;

/* Merges the sorted [0, half) and [half, count) of `from` into `to`; equal ones keep their order. */
static sbp_status merge(const sort_job *job, const int64_t *from, int64_t half, int64_t count, int64_t *to) {
    int64_t i = 0, j = half;
    for (int64_t k = 0; k < count; k++) {
        bool second = i == half;
        if (!second && j < count)
            SBP_TRY(job->reverse
                        ? sbp_tpl_less(job->e, '<', &job->keys[from[i]], &job->keys[from[j]], &second)
                        : sbp_tpl_less(job->e, '<', &job->keys[from[j]], &job->keys[from[i]], &second));
        to[k] = second ? from[j++] : from[i++];
    }
    return SBP_OK;
}

sbp_status sbp_tpl_sort(tpl_eval *e, tpl_value *keys, tpl_value *items, int64_t count, bool reverse) {
    sort_job job = {e, keys, reverse};
    int64_t *from = SBP_NEW_ARRAY(e->arena, int64_t, count), *to = SBP_NEW_ARRAY(e->arena, int64_t, count);
    for (int64_t i = 0; i < count; i++)
        from[i] = i;
    for (int64_t width = 1; width < count; width *= 2) {
        SBP_TRY(sbp_tpl_charge(e, count));
        for (int64_t at = 0; at < count; at += 2 * width) {
            int64_t left = count - at;
            SBP_TRY(merge(&job, from + at, width < left ? width : left, 2 * width < left ? 2 * width : left,
                          to + at));
        }
        int64_t *swap = from;
        from = to;
        to = swap;
    }
    tpl_value *copy = SBP_NEW_ARRAY(e->arena, tpl_value, count * 2);
    for (int64_t i = 0; i < count; i++) {
        copy[i] = keys[from[i]];
        copy[count + i] = items[from[i]];
    }
    for (int64_t i = 0; i < count; i++) {
        keys[i] = copy[i];
        items[i] = copy[count + i];
    }
    return SBP_OK;
}
