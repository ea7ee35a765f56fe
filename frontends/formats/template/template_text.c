/* template_text.c: what values look like: str() and repr(), floats, HTML escapes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontends/formats/template/template_internal.h"

sbp_status sbp_tpl_add(tpl_eval *e, sbp_text *out, tpl_text text) {
    if ((int64_t)(out->length + text.length) > e->limits.output_bytes)
        return sbp_tpl_fail(e, "the text has more than %lld bytes", (long long)e->limits.output_bytes);
    SBP_TRY(sbp_tpl_charge_text(e, text.length));
    sbp_text_add_n(out, text.data, text.length);
    return SBP_OK;
}

static sbp_status add(tpl_eval *e, sbp_text *out, const char *text) {
    return sbp_tpl_add(e, out, (tpl_text){text, strlen(text)});
}

sbp_status sbp_tpl_text_value(tpl_eval *e, const sbp_text *text, bool safe, tpl_value *out) {
    (void)e;
    *out = sbp_tpl_string(text->length ? text->data : "", text->length);
    out->safe = safe;
    return SBP_OK;
}

/* The shortest digits that read back; from 1e16 on and below 1e-4 with an exponent. */
void sbp_tpl_format_float(char out[40], double value) {
    char digits[40];
    if (isnan(value) || isinf(value)) {
        snprintf(out, 40, "%s", isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
        return;
    }
    int precision = 0;
    do
        snprintf(digits, sizeof digits, "%.*e", precision, value);
    while (strtod(digits, NULL) != value && precision++ < 17);
    int exponent = (int)strtol(strchr(digits, 'e') + 1, NULL, 10);
    if (exponent < -4 || exponent >= 16) {
        snprintf(out, 40, "%s", digits); /* both write at least two digits of an exponent */
        return;
    }
    /* at least one digit behind the point: those are zeros where the shortest form has none */
    snprintf(out, 40, "%.*f", precision - exponent > 0 ? precision - exponent : 1, value);
}

/* ---- repr ------------------------------------------------------------------------------------------ */

static sbp_status add_char(tpl_eval *e, sbp_text *out, const char *at, int bytes, uint32_t code, char quote) {
    char text[16];
    if (code == (uint32_t)quote || code == '\\')
        snprintf(text, sizeof text, "\\%c", (int)code);
    else if (code == '\n' || code == '\r' || code == '\t')
        snprintf(text, sizeof text, "\\%c", code == '\n' ? 'n' : code == '\r' ? 'r' : 't');
    else if (sbp_tpl_is_printable(code))
        return sbp_tpl_add(e, out, (tpl_text){at, (size_t)bytes});
    else
        snprintf(text, sizeof text, code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x", code);
    return add(e, out, text);
}

static sbp_status add_string_repr(tpl_eval *e, sbp_text *out, const tpl_value *value) {
    tpl_text s = value->string;
    bool single = memchr(s.data, '\'', s.length) != NULL, twice = memchr(s.data, '"', s.length) != NULL;
    char quote = single && !twice ? '"' : '\'';
    char text[2] = {quote, '\0'};
    SBP_TRY(add(e, out, value->safe ? "Markup(" : ""));
    SBP_TRY(add(e, out, text));
    for (size_t at = 0; at < s.length;) {
        int bytes;
        uint32_t code = sbp_tpl_decode(s.data + at, &bytes);
        SBP_TRY(add_char(e, out, s.data + at, bytes, code, quote));
        at += (size_t)bytes;
    }
    SBP_TRY(add(e, out, text));
    return add(e, out, value->safe ? ")" : "");
}

static sbp_status add_items(tpl_eval *e, sbp_text *out, const tpl_value *items, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        SBP_TRY(add(e, out, i ? ", " : ""));
        SBP_TRY(sbp_tpl_add_repr(e, out, &items[i]));
    }
    return SBP_OK;
}

static sbp_status add_sequence(tpl_eval *e, sbp_text *out, const tpl_value *value) {
    const tpl_sequence *s = value->sequence;
    char text[120];
    switch (value->kind) {
    case TPL_LIST:
        SBP_TRY(add(e, out, "["));
        SBP_TRY(add_items(e, out, s->items, s->count));
        return add(e, out, "]");
    case TPL_TUPLE:
        SBP_TRY(add(e, out, "("));
        SBP_TRY(add_items(e, out, s->items, s->count));
        return add(e, out, s->count == 1 ? ",)" : ")");
    case TPL_VIEW:
        snprintf(text, sizeof text, "dict_%s([", s->view);
        SBP_TRY(add(e, out, text));
        SBP_TRY(add_items(e, out, s->items, s->count));
        return add(e, out, "])");
    default: /* a range */
        snprintf(text, sizeof text, s->step == 1 ? "range(%lld, %lld)" : "range(%lld, %lld, %lld)",
                 (long long)s->start, (long long)s->stop, (long long)s->step);
        return add(e, out, text);
    }
}

static sbp_status add_dict(tpl_eval *e, sbp_text *out, const tpl_dict *dict) {
    SBP_TRY(add(e, out, "{"));
    for (int32_t i = 0; i < dict->count; i++) {
        SBP_TRY(add(e, out, i ? ", " : ""));
        SBP_TRY(sbp_tpl_add_repr(e, out, &dict->entries[i].key));
        SBP_TRY(add(e, out, ": "));
        SBP_TRY(sbp_tpl_add_repr(e, out, &dict->entries[i].value));
    }
    return add(e, out, "}");
}

static sbp_status add_repr(tpl_eval *e, sbp_text *out, const tpl_value *value) {
    char text[40];
    switch (value->kind) {
    case TPL_MISSING:
    case TPL_UNDEFINED:
        return add(e, out, "Undefined");
    case TPL_NONE:
        return add(e, out, "None");
    case TPL_BOOL:
        return add(e, out, value->boolean ? "True" : "False");
    case TPL_INT:
        snprintf(text, sizeof text, "%lld", (long long)value->integer);
        return add(e, out, text);
    case TPL_FLOAT:
        sbp_tpl_format_float(text, value->real);
        return add(e, out, text);
    case TPL_STRING:
        return add_string_repr(e, out, value);
    case TPL_LIST:
    case TPL_TUPLE:
    case TPL_RANGE:
    case TPL_VIEW:
        return add_sequence(e, out, value);
    case TPL_DICT:
        return add_dict(e, out, value->dict);
    case TPL_NAMESPACE:
        SBP_TRY(add(e, out, "<Namespace "));
        SBP_TRY(add_dict(e, out, value->dict));
        return add(e, out, ">");
    case TPL_MACRO:
        SBP_TRY(add(e, out, "<Macro '"));
        SBP_TRY(add(e, out, value->macro->node->name ? value->macro->node->name : "caller"));
        return add(e, out, "'>");
    default: /* Python prints where it lies in memory */
        return sbp_tpl_fail(e, "%s %s has no text: is a '|list' or '()' missing?",
                            value->kind == TPL_GENERATOR ? "the result of a filter, a" : "a",
                            sbp_tpl_type(value));
    }
}

sbp_status sbp_tpl_add_repr(tpl_eval *e, sbp_text *out, const tpl_value *value) {
    SBP_TRY(sbp_tpl_deeper(e));
    SBP_TRY(add_repr(e, out, value));
    e->depth--;
    return SBP_OK;
}

/* ---- str ------------------------------------------------------------------------------------------- */

sbp_status sbp_tpl_add_str(tpl_eval *e, sbp_text *out, const tpl_value *value) {
    if (value->kind == TPL_STRING)
        return sbp_tpl_add(e, out, value->string);
    return value->kind == TPL_UNDEFINED ? SBP_OK : sbp_tpl_add_repr(e, out, value);
}

sbp_status sbp_tpl_str(tpl_eval *e, const tpl_value *value, tpl_text *out) {
    if (value->kind == TPL_STRING) {
        *out = value->string;
        return SBP_OK;
    }
    sbp_text text;
    sbp_text_init(&text, e->arena);
    SBP_TRY(sbp_tpl_add_str(e, &text, value));
    *out = (tpl_text){text.length ? text.data : "", text.length};
    return SBP_OK;
}

sbp_status sbp_tpl_soft(tpl_eval *e, const tpl_value *value, tpl_value *out) {
    tpl_text text;
    bool safe = value->kind == TPL_STRING && value->safe;
    SBP_TRY(sbp_tpl_str(e, value, &text));
    *out = sbp_tpl_string(text.data, text.length);
    out->safe = safe;
    return SBP_OK;
}

sbp_status sbp_tpl_escape(tpl_eval *e, const tpl_value *value, tpl_text *out) {
    static const char *const escapes[] = {
        ['&'] = "&amp;", ['<'] = "&lt;", ['>'] = "&gt;", ['\''] = "&#39;", ['"'] = "&#34;"};
    tpl_text text;
    sbp_text escaped;
    SBP_TRY(sbp_tpl_str(e, value, &text));
    *out = text;
    if (value->kind == TPL_STRING && value->safe)
        return SBP_OK;
    sbp_text_init(&escaped, e->arena);
    for (size_t i = 0; i < text.length; i++) {
        unsigned char c = (unsigned char)text.data[i];
        if (c < SBP_COUNT(escapes) && escapes[c])
            SBP_TRY(add(e, &escaped, escapes[c]));
        else
            SBP_TRY(sbp_tpl_add(e, &escaped, (tpl_text){text.data + i, 1}));
    }
    *out = (tpl_text){escaped.length ? escaped.data : "", escaped.length};
    return SBP_OK;
}
