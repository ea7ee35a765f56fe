/* template_format.c: "%s and %d" % (a, b) and "{} and {name}".format(a, name=b), as far as templates go: no
 * alignment, attributes or items in format(), no * for widths. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontends/formats/template/template_internal.h"

typedef struct spec {
    char flags[8];
    int64_t width, precision; /* -1: none */
    char type;
} spec;

enum { MOST_WIDTH = 1000 };

static sbp_status read_number(tpl_eval *e, tpl_text in, size_t *at, int64_t *out) {
    *out = 0;
    for (; *at < in.length && in.data[*at] >= '0' && in.data[*at] <= '9'; ++*at) {
        *out = *out * 10 + (in.data[*at] - '0');
        if (*out > MOST_WIDTH)
            return sbp_tpl_fail(e, "the width of a format is above %d", MOST_WIDTH);
    }
    return SBP_OK;
}

/* flags width .precision type, from *at on. */
static sbp_status read_spec(tpl_eval *e, tpl_text in, size_t *at, spec *out) {
    size_t flags = 0;
    *out = (spec){.width = -1, .precision = -1};
    while (*at < in.length && strchr("-+ #0", in.data[*at]) && in.data[*at] && flags < 6)
        out->flags[flags++] = in.data[(*at)++];
    if (*at < in.length && in.data[*at] >= '1' && in.data[*at] <= '9')
        SBP_TRY(read_number(e, in, at, &out->width));
    if (*at < in.length && in.data[*at] == '.') {
        ++*at;
        SBP_TRY(read_number(e, in, at, &out->precision));
    }
    out->type = *at < in.length ? in.data[(*at)++] : '\0';
    return SBP_OK;
}

static sbp_status add_number(tpl_eval *e, sbp_text *out, const spec *s, const tpl_value *value) {
    char format[64], text[2 * MOST_WIDTH + 400], width[16] = "", precision[16] = "";
    double real;
    int64_t integer;
    if (s->width >= 0)
        snprintf(width, sizeof width, "%d", (int)s->width);
    if (s->precision >= 0)
        snprintf(precision, sizeof precision, ".%d", (int)s->precision);
    bool whole = strchr("diuxXo", s->type) != NULL;
    snprintf(format, sizeof format, "%%%s%s%s%s%c", s->flags, width, precision, whole ? "ll" : "",
             s->type == 'u' ? 'd' : s->type);
    if (!sbp_tpl_number(value, &real))
        return sbp_tpl_fail(e, "a %s cannot be written in a format for numbers", sbp_tpl_type(value));
    if (whole && !sbp_tpl_integer(value, &integer)) {
        if (s->type != 'd' && s->type != 'i' && s->type != 'u')
            return sbp_tpl_fail(e, "a float cannot be written in a format for whole numbers");
        if (isnan(real) || fabs(real) >= 0x1p63)
            return sbp_tpl_fail(e, "a whole number has more than 64 bits");
        integer = (int64_t)real;
    }
    int length = whole ? snprintf(text, sizeof text, format, (long long)integer)
                       : snprintf(text, sizeof text, format, real);
    if (length < 0 || length >= (int)sizeof text)
        return sbp_tpl_fail(e, "the number is too long");
    return sbp_tpl_add(e, out, (tpl_text){text, (size_t)length});
}

static sbp_status add_padded(tpl_eval *e, sbp_text *out, const spec *s, tpl_text text) {
    if (s->precision >= 0)
        text.length = sbp_tpl_offset(text, s->precision);
    int64_t more = s->width > 0 ? s->width - sbp_tpl_chars(text) : 0;
    bool left = strchr(s->flags, '-') != NULL;
    if (left)
        SBP_TRY(sbp_tpl_add(e, out, text));
    for (int64_t i = 0; i < more; i++)
        SBP_TRY(sbp_tpl_add(e, out, (tpl_text){" ", 1}));
    return left ? SBP_OK : sbp_tpl_add(e, out, text);
}

static sbp_status add_value(tpl_eval *e, sbp_text *out, const spec *s, const tpl_value *value, bool safe) {
    tpl_text text;
    sbp_text repr;
    switch (s->type) {
    case 's':
        SBP_TRY(safe ? sbp_tpl_escape(e, value, &text) : sbp_tpl_str(e, value, &text));
        return add_padded(e, out, s, text);
    case 'r':
        sbp_text_init(&repr, e->arena);
        SBP_TRY(sbp_tpl_add_repr(e, &repr, value));
        return add_padded(e, out, s, (tpl_text){repr.data, repr.length});
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
    case 'f':
    case 'F':
    case 'e':
    case 'E':
    case 'g':
    case 'G':
        return add_number(e, out, s, value);
    default:
        return sbp_tpl_fail(e, "the format '%%%c' is not supported", s->type ? s->type : ' ');
    }
}

typedef struct percent_job {
    const tpl_value *values;
    int64_t used;
} percent_job;

/* The value of the next field: by name where one is given, else the next one. */
static sbp_status next_value(tpl_eval *e, percent_job *job, tpl_text in, size_t *at, tpl_value *out) {
    const tpl_value *values = job->values;
    if (*at < in.length && in.data[*at] == '(') {
        const char *end = memchr(in.data + *at, ')', in.length - *at);
        if (!end || values->kind != TPL_DICT)
            return sbp_tpl_fail(e, "the format has a name, and there is no dict to find it in");
        tpl_value name = sbp_tpl_string(in.data + *at + 1, (size_t)(end - in.data) - *at - 1);
        const tpl_value *found;
        SBP_TRY(sbp_tpl_dict_get(e, values->dict, &name, &found));
        if (!found)
            return sbp_tpl_fail(e, "the format has a name that is not in the dict");
        *out = *found;
        *at = (size_t)(end - in.data) + 1;
        job->used = -1;
        return SBP_OK;
    }
    bool tuple = values->kind == TPL_TUPLE;
    if (job->used >= (tuple ? values->sequence->count : 1))
        return sbp_tpl_fail(e, "too few values for the format");
    *out = tuple ? values->sequence->items[job->used] : *values;
    job->used++;
    return SBP_OK;
}

sbp_status sbp_tpl_percent(tpl_eval *e, const tpl_value *format, const tpl_value *values, tpl_value *out) {
    tpl_text in = format->string;
    percent_job job = {values, 0};
    sbp_text text;
    sbp_text_init(&text, e->arena);
    for (size_t at = 0; at < in.length;) {
        const char *mark = memchr(in.data + at, '%', in.length - at);
        size_t end = mark ? (size_t)(mark - in.data) : in.length;
        SBP_TRY(sbp_tpl_add(e, &text, (tpl_text){in.data + at, end - at}));
        at = end + 1;
        if (!mark)
            break;
        if (at < in.length && in.data[at] == '%') {
            SBP_TRY(sbp_tpl_add(e, &text, (tpl_text){"%", 1}));
            at++;
            continue;
        }
        spec s;
        tpl_value value = sbp_tpl_none();
        if (at < in.length && in.data[at] == '(')
            SBP_TRY(next_value(e, &job, in, &at, &value));
        else
            SBP_TRY(next_value(e, &job, (tpl_text){"", 0}, &(size_t){0}, &value));
        SBP_TRY(read_spec(e, in, &at, &s));
        SBP_TRY(add_value(e, &text, &s, &value, format->safe));
    }
    bool all = job.used < 0 || values->kind == TPL_DICT || values->kind == TPL_LIST ||
               job.used >= (values->kind == TPL_TUPLE ? values->sequence->count : 1);
    if (!all)
        return sbp_tpl_fail(e, "not all values are used by the format");
    return sbp_tpl_text_value(e, &text, format->safe, out);
}

/* ---- format ---------------------------------------------------------------------------------------- */

/* The value of a field: "", "0", "name". */
static sbp_status field_value(tpl_eval *e, tpl_text name, tpl_args *args, int32_t *next, tpl_value *out) {
    bool digits = name.length > 0 && name.length < 9 && strspn(name.data, "0123456789") >= name.length;
    int32_t index = digits ? (int32_t)strtol(name.data, NULL, 10) : -1;
    if (name.length == 0)
        index = (*next)++;
    const tpl_value *found = index >= 0 && index < args->count ? &args->items[index] : NULL;
    for (int32_t i = 0; i < args->named_count && index < 0; i++)
        if (sbp_tpl_same(name, (tpl_text){args->named[i].name, args->named[i].length}))
            found = &args->named[i].value;
    if (!found)
        return sbp_tpl_fail(e, "format: '%.*s' has no value (attributes and items are not supported here)",
                            (int)(name.length < 60 ? name.length : 60), name.data);
    *out = *found;
    return SBP_OK;
}

static sbp_status add_field(tpl_eval *e, sbp_text *out, tpl_text field, tpl_args *args, int32_t *next) {
    const char *colon = memchr(field.data, ':', field.length);
    tpl_text name = {field.data, colon ? (size_t)(colon - field.data) : field.length};
    tpl_value value;
    spec s = {.width = -1, .precision = -1, .type = 's'};
    if (name.length >= 2 && name.data[name.length - 2] == '!') {
        s.type = name.data[name.length - 1];
        name.length -= 2;
    }
    SBP_TRY(field_value(e, name, args, next, &value));
    if (colon && colon + 1 < field.data + field.length) {
        size_t at = (size_t)(colon - field.data) + 1;
        SBP_TRY(read_spec(e, field, &at, &s));
        double number;
        if (at != field.length || !strchr("dfFeEgGxXo", s.type) || s.flags[0] == '-' ||
            !sbp_tpl_number(&value, &number))
            return sbp_tpl_fail(e, "format: '%.*s' is not supported", (int)field.length, field.data);
    }
    return add_value(e, out, &s, &value, false);
}

sbp_status sbp_tpl_str_format(tpl_eval *e, tpl_text format, tpl_args *args, tpl_value *out) {
    sbp_text text;
    int32_t next = 0;
    sbp_text_init(&text, e->arena);
    for (size_t at = 0; at < format.length;) {
        size_t from = at;
        while (at < format.length && format.data[at] != '{' && format.data[at] != '}')
            at++;
        SBP_TRY(sbp_tpl_add(e, &text, (tpl_text){format.data + from, at - from}));
        if (at == format.length)
            break;
        if (at + 1 < format.length && format.data[at + 1] == format.data[at]) {
            SBP_TRY(sbp_tpl_add(e, &text, (tpl_text){format.data + at, 1}));
            at += 2;
            continue;
        }
        const char *end = memchr(format.data + at, '}', format.length - at);
        if (format.data[at] == '}' || !end)
            return sbp_tpl_fail(e, "format: a bracket stands alone");
        tpl_text field = {format.data + at + 1, (size_t)(end - format.data) - at - 1};
        SBP_TRY(add_field(e, &text, field, args, &next));
        at = (size_t)(end - format.data) + 1;
    }
    return sbp_tpl_text_value(e, &text, false, out);
}
