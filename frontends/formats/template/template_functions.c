/* template_functions.c: functions that every template may call. */
#include <stdio.h>
#include <string.h>

#include "frontends/formats/template/template_internal.h"

#define FUNCTION(name)                                                                                       \
    static sbp_status name(tpl_eval *e, const tpl_value *self, const tpl_value *values, tpl_args *rest,      \
                           tpl_value *out)
#define UNUSED(...) (void)e, (void)self, (void)values, (void)rest

enum { MOST_RANGE = 100000 }; /* as in Jinja's sandbox */

FUNCTION(make_range) {
    int64_t bounds[3] = {0, 0, 1}, given = 0;
    UNUSED();
    for (; given < 3 && values[given].kind != TPL_MISSING; given++)
        if (!sbp_tpl_integer(&values[given], &bounds[given]))
            return sbp_tpl_fail(e, "range: expected whole numbers, found %s", sbp_tpl_type(&values[given]));
    if (given == 1) {
        bounds[1] = bounds[0];
        bounds[0] = 0;
    }
    int64_t start = bounds[0], stop = bounds[1], step = bounds[2], most = INT64_MAX / 4;
    if (step == 0 || step > most || step < -most || start > most || start < -most || stop > most ||
        stop < -most)
        return sbp_tpl_fail(e, step ? "range: the numbers are too large" : "range: the step must not be 0");
    int64_t distance = step > 0 ? stop - start : start - stop, stride = step > 0 ? step : -step;
    int64_t count = distance > 0 ? (distance - 1) / stride + 1 : 0;
    if (count > MOST_RANGE)
        return sbp_tpl_fail(e, "range: there would be more than %d numbers", MOST_RANGE);
    SBP_TRY(sbp_tpl_charge(e, count));
    *out = sbp_tpl_sequence(e, TPL_RANGE, count);
    *out->sequence = (tpl_sequence){
        .items = out->sequence->items, .count = count, .start = start, .stop = stop, .step = step};
    for (int64_t i = 0; i < count; i++)
        out->sequence->items[i] = sbp_tpl_int(start + i * step);
    return SBP_OK;
}

/* Keys and values of one argument: a dict, or pairs. */
static sbp_status add_pairs(tpl_eval *e, tpl_dict *dict, const tpl_value *from) {
    if (from->kind == TPL_DICT) {
        for (int32_t i = 0; i < from->dict->count; i++)
            SBP_TRY(sbp_tpl_dict_set(e, dict, from->dict->entries[i].key, from->dict->entries[i].value));
        return SBP_OK;
    }
    tpl_value *items, *pair;
    int64_t count, pair_count;
    SBP_TRY(sbp_tpl_iterate(e, from, &items, &count));
    for (int64_t i = 0; i < count; i++) {
        SBP_TRY(sbp_tpl_iterate(e, &items[i], &pair, &pair_count));
        if (pair_count != 2)
            return sbp_tpl_fail(e, "dict: expected pairs, found %lld items", (long long)pair_count);
        SBP_TRY(sbp_tpl_dict_set(e, dict, pair[0], pair[1]));
    }
    return SBP_OK;
}

FUNCTION(make_dict) {
    UNUSED();
    *out = sbp_tpl_dict(e);
    if (rest->count > 1)
        return sbp_tpl_fail(e, "expected at most one argument without a name, found %d", rest->count);
    if (rest->count == 1)
        SBP_TRY(add_pairs(e, out->dict, &rest->items[0]));
    for (int32_t i = 0; i < rest->named_count; i++)
        SBP_TRY(sbp_tpl_dict_set(e, out->dict, sbp_tpl_string(rest->named[i].name, rest->named[i].length),
                                 rest->named[i].value));
    return SBP_OK;
}

FUNCTION(make_namespace) {
    SBP_TRY(make_dict(e, self, values, rest, out));
    out->kind = TPL_NAMESPACE;
    for (int32_t i = 0; i < out->dict->count; i++) {
        const tpl_value *key = &out->dict->entries[i].key;
        if (key->kind == TPL_STRING && key->string.length > 0 && key->string.data[0] == '_')
            return sbp_tpl_fail(e, "attributes of namespaces do not begin with '_'");
    }
    return SBP_OK;
}

FUNCTION(raise_exception) {
    tpl_text text;
    UNUSED();
    *out = sbp_tpl_none();
    SBP_TRY(sbp_tpl_str(e, &values[0], &text));
    return sbp_tpl_fail(e, "the template refuses the conversation: %.*s",
                        (int)(text.length < 500 ? text.length : 500), text.data);
}

/* %f, %z and %Z are Python's own: no microseconds, no time zone. `to` has room for three times the length. */
static void own_directives(const char *format, size_t length, char *to) {
    for (size_t i = 0; i < length; i++) {
        char next = format[i] == '%' && i + 1 < length ? format[i + 1] : '\0';
        if (next == 'f') {
            memset(to, '0', 6);
            to += 6;
        } else if (!next || !strchr("zZs", next)) {
            *to++ = format[i];
            if (next)
                *to++ = next;
        }
        i += next != '\0';
    }
    memcpy(to, "|", 2); /* so that the result is never empty */
}

FUNCTION(strftime_now) {
    char format[800], text[2048];
    UNUSED();
    if (values[0].kind != TPL_STRING)
        return sbp_tpl_fail(e, "strftime_now: expected a format, found %s", sbp_tpl_type(&values[0]));
    tpl_text given = values[0].string;
    if (given.length > 200 || memchr(given.data, '\0', given.length))
        return sbp_tpl_fail(e, "strftime_now: the format has %zu bytes, which are too many, or holds a NUL",
                            given.length);
    own_directives(given.data, given.length, format);
    size_t length = strftime(text, sizeof text, format, &e->now);
    if (length == 0)
        return sbp_tpl_fail(e, "strftime_now: the result of the format is too long");
    tpl_text copy = {sbp_arena_strndup(e->arena, text, length - 1), length - 1};
    if (!sbp_tpl_valid_utf8(copy))
        return sbp_tpl_fail(e, "strftime_now: the format breaks a character apart");
    *out = sbp_tpl_string(copy.data, copy.length);
    return SBP_OK;
}

FUNCTION(not_supported) {
    UNUSED();
    *out = sbp_tpl_none();
    return sbp_tpl_fail(e, "the function '%s' is not supported", self->function->builtin.name);
}

static const tpl_function functions[] = {
    {{"range", "start stop? step?", make_range, 0}},
    {{"dict", "*", make_dict, 0}},
    {{"namespace", "*", make_namespace, 0}},
    {{"raise_exception", "message", raise_exception, 0}},
    {{"strftime_now", "format", strftime_now, 0}},
    {{"cycler", "*", not_supported, 0}},
    {{"joiner", "*", not_supported, 0}},
    {{"lipsum", "*", not_supported, 0}},
};

const tpl_function *sbp_tpl_find_function(tpl_text name) {
    for (int i = 0; i < SBP_COUNT(functions); i++)
        if (sbp_tpl_is(name, functions[i].builtin.name))
            return &functions[i];
    return NULL;
}
