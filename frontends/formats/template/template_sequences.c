/* template_sequences.c: filters on sequences. What is lazy in Jinja is done at once here, and then read once.
 */
#include <string.h>

#include "frontends/formats/template/template_filters.h"

/* ---- attributes of items --------------------------------------------------------------------------- */

/* item.a.0.b by "a.0.b", or item[3] by 3; attribute MISSING or NONE: the item. fallback may be NULL. */
static sbp_status get_path(tpl_eval *e, const tpl_value *item, const tpl_value *attribute,
                           const tpl_value *fallback, tpl_value *out) {
    *out = *item;
    if (attribute->kind == TPL_MISSING || attribute->kind == TPL_NONE)
        return SBP_OK;
    if (attribute->kind != TPL_STRING)
        return sbp_tpl_item(e, item, attribute, out);
    tpl_text rest = attribute->string;
    for (bool more = true; more;) {
        const char *dot = memchr(rest.data, '.', rest.length);
        tpl_text part = {rest.data, dot ? (size_t)(dot - rest.data) : rest.length};
        tpl_value key = sbp_tpl_string(part.data, part.length), of = *out;
        int64_t index = 0;
        bool digits = part.length > 0 && part.length < 10;
        for (size_t i = 0; i < part.length && digits; i++) {
            digits = part.data[i] >= '0' && part.data[i] <= '9';
            index = index * 10 + (part.data[i] - '0');
        }
        if (digits)
            key = sbp_tpl_int(index);
        SBP_TRY(sbp_tpl_item(e, &of, &key, out));
        if (fallback && fallback->kind != TPL_MISSING && fallback->kind != TPL_NONE &&
            out->kind == TPL_UNDEFINED)
            *out = *fallback;
        more = dot != NULL;
        if (dot)
            rest = (tpl_text){dot + 1, rest.length - part.length - 1};
    }
    return SBP_OK;
}

static sbp_status folded(tpl_eval *e, tpl_value *value, bool case_sensitive) {
    if (case_sensitive || value->kind != TPL_STRING)
        return SBP_OK;
    tpl_value text = *value;
    return sbp_tpl_change_case(e, &text, TPL_LOWER, value);
}

static tpl_value generator(tpl_value list) {
    list.kind = TPL_GENERATOR;
    return list;
}

/* ---- ends and lengths ------------------------------------------------------------------------------ */

sbp_status sbp_tpl_filter_length(TPL_PARAMETERS) {
    int64_t length;
    TPL_UNUSED;
    SBP_TRY(sbp_tpl_length(e, self, &length));
    *out = sbp_tpl_int(length);
    return SBP_OK;
}

sbp_status sbp_tpl_filter_first(TPL_PARAMETERS) {
    tpl_value *items;
    int64_t count;
    TPL_UNUSED;
    SBP_TRY(sbp_tpl_iterate(e, self, &items, &count));
    *out = count ? items[0] : sbp_tpl_undefined(e, "no first item: the sequence is empty");
    if (self->kind == TPL_GENERATOR && count) /* the others can still be read */
        self->sequence->next = self->sequence->count - count + 1;
    return SBP_OK;
}

sbp_status sbp_tpl_filter_last(TPL_PARAMETERS) {
    tpl_value *items;
    int64_t count;
    TPL_UNUSED;
    if (self->kind == TPL_GENERATOR)
        return sbp_tpl_fail(e, "last: the result of a filter has no end: is a '|list' missing?");
    SBP_TRY(sbp_tpl_iterate(e, self, &items, &count));
    *out = count ? items[count - 1] : sbp_tpl_undefined(e, "an empty sequence has no last item");
    return SBP_OK;
}

sbp_status sbp_tpl_filter_list(TPL_PARAMETERS) {
    TPL_UNUSED;
    return sbp_tpl_copy_items(e, self, out);
}

sbp_status sbp_tpl_filter_reverse(TPL_PARAMETERS) {
    TPL_UNUSED;
    if (self->kind == TPL_STRING) {
        tpl_value bounds[3] = {{.kind = TPL_MISSING}, {.kind = TPL_MISSING}, sbp_tpl_int(-1)};
        return sbp_tpl_slice(e, self, bounds, out);
    }
    SBP_TRY(sbp_tpl_copy_items(e, self, out));
    tpl_sequence *s = out->sequence;
    for (int64_t i = 0; i < s->count / 2; i++) {
        tpl_value swap = s->items[i];
        s->items[i] = s->items[s->count - 1 - i];
        s->items[s->count - 1 - i] = swap;
    }
    if (self->kind != TPL_GENERATOR)
        *out = generator(*out);
    return SBP_OK;
}

sbp_status sbp_tpl_filter_items(TPL_PARAMETERS) {
    tpl_args none = {0};
    TPL_UNUSED;
    if (self->kind == TPL_UNDEFINED) {
        *out = generator(sbp_tpl_sequence(e, TPL_LIST, 0));
        return SBP_OK;
    }
    if (self->kind != TPL_DICT)
        return sbp_tpl_fail(e, "items: expected a mapping, found %s", sbp_tpl_type(self));
    SBP_TRY(sbp_tpl_call_builtin(e, sbp_tpl_find_method(TPL_DICT, (tpl_text){"items", 5}), "method", self,
                                 &none, out));
    *out = generator(*out);
    return SBP_OK;
}

/* ---- choosing -------------------------------------------------------------------------------------- */

/* items for which a test holds; with an attribute, of that. */
static sbp_status choose(tpl_eval *e, const tpl_value *self, tpl_args *args, bool with_attribute, bool wanted,
                         tpl_value *out) {
    tpl_value *items, attribute = {.kind = TPL_MISSING};
    int64_t count, kept = 0;
    const tpl_builtin *test = NULL;
    int32_t at = 0;
    SBP_TRY(sbp_tpl_iterate(e, self, &items, &count));
    *out = generator(sbp_tpl_sequence(e, TPL_LIST, count));
    if (with_attribute && args->count == 0)
        return sbp_tpl_fail(e, "the name of an attribute is missing");
    if (with_attribute)
        attribute = args->items[at++];
    if (at < args->count) {
        if (args->items[at].kind == TPL_STRING)
            test = sbp_tpl_find_test(args->items[at].string);
        if (!test)
            return sbp_tpl_fail(e, "there is no such test");
        at++;
    }
    for (int64_t i = 0; i < count; i++) {
        tpl_value of, holds;
        tpl_args rest = {.items = args->count > at ? args->items + at : NULL,
                         .count = args->count - at,
                         .named = args->named,
                         .named_count = args->named_count};
        SBP_TRY(get_path(e, &items[i], &attribute, NULL, &of));
        if (test)
            SBP_TRY(sbp_tpl_call_builtin(e, test, "test", &of, &rest, &holds));
        else
            holds = of;
        if (sbp_tpl_truth(&holds) == wanted)
            out->sequence->items[kept++] = items[i];
    }
    out->sequence->count = kept;
    return sbp_tpl_charge(e, count);
}

sbp_status sbp_tpl_filter_select(TPL_PARAMETERS) {
    TPL_UNUSED;
    return choose(e, self, rest, false, true, out);
}

sbp_status sbp_tpl_filter_reject(TPL_PARAMETERS) {
    TPL_UNUSED;
    return choose(e, self, rest, false, false, out);
}

sbp_status sbp_tpl_filter_selectattr(TPL_PARAMETERS) {
    TPL_UNUSED;
    return choose(e, self, rest, true, true, out);
}

sbp_status sbp_tpl_filter_rejectattr(TPL_PARAMETERS) {
    TPL_UNUSED;
    return choose(e, self, rest, true, false, out);
}

static sbp_status map_attribute(tpl_eval *e, const tpl_args *args, tpl_value *items, int64_t count) {
    tpl_value attribute = {.kind = TPL_MISSING}, fallback = {.kind = TPL_MISSING};
    for (int32_t i = 0; i < args->named_count; i++) {
        tpl_text name = {args->named[i].name, args->named[i].length};
        if (sbp_tpl_is(name, "attribute"))
            attribute = args->named[i].value;
        else if (sbp_tpl_is(name, "default"))
            fallback = args->named[i].value;
        else
            return sbp_tpl_fail(e, "map: there is no parameter '%.*s'", (int)name.length, name.data);
    }
    if (attribute.kind == TPL_MISSING)
        return sbp_tpl_fail(e, "map: expected the name of a filter, or attribute=");
    for (int64_t i = 0; i < count; i++) {
        tpl_value item = items[i];
        SBP_TRY(get_path(e, &item, &attribute, &fallback, &items[i]));
    }
    return SBP_OK;
}

sbp_status sbp_tpl_filter_map(TPL_PARAMETERS) {
    TPL_UNUSED;
    SBP_TRY(sbp_tpl_copy_items(e, self, out));
    *out = generator(*out);
    tpl_value *items = out->sequence->items;
    if (rest->count == 0)
        return map_attribute(e, rest, items, out->sequence->count);
    const tpl_builtin *filter =
        rest->items[0].kind == TPL_STRING ? sbp_tpl_find_filter(rest->items[0].string) : NULL;
    if (!filter)
        return sbp_tpl_fail(e, "map: there is no such filter");
    for (int64_t i = 0; i < out->sequence->count; i++) {
        tpl_args args = *rest;
        tpl_value item = items[i];
        args.items++;
        args.count--;
        SBP_TRY(sbp_tpl_call_builtin(e, filter, "filter", &item, &args, &items[i]));
    }
    return SBP_OK;
}

sbp_status sbp_tpl_filter_unique(TPL_PARAMETERS) {
    tpl_value *items, seen = sbp_tpl_dict(e);
    int64_t count, kept = 0;
    TPL_UNUSED;
    SBP_TRY(sbp_tpl_iterate(e, self, &items, &count));
    *out = generator(sbp_tpl_sequence(e, TPL_LIST, count));
    for (int64_t i = 0; i < count; i++) {
        tpl_value key;
        int32_t before = seen.dict->count;
        SBP_TRY(get_path(e, &items[i], &values[1], NULL, &key));
        SBP_TRY(folded(e, &key, sbp_tpl_truth(&values[0])));
        SBP_TRY(sbp_tpl_dict_set(e, seen.dict, key, sbp_tpl_none()));
        if (seen.dict->count > before)
            out->sequence->items[kept++] = items[i];
    }
    out->sequence->count = kept;
    return SBP_OK;
}

/* ---- orders ---------------------------------------------------------------------------------------- */

/* One key, or with "a,b" a list of them. */
static sbp_status sort_key(tpl_eval *e, const tpl_value *item, const tpl_value *attribute, bool sensitive,
                           tpl_value *out) {
    if (attribute->kind != TPL_STRING || !memchr(attribute->string.data, ',', attribute->string.length)) {
        SBP_TRY(get_path(e, item, attribute, NULL, out));
        return folded(e, out, sensitive);
    }
    tpl_value names;
    tpl_text comma = {",", 1};
    SBP_TRY(sbp_tpl_split(e, attribute->string, &comma, -1, false, &names));
    *out = sbp_tpl_sequence(e, TPL_LIST, names.sequence->count);
    for (int64_t i = 0; i < names.sequence->count; i++) {
        SBP_TRY(get_path(e, item, &names.sequence->items[i], NULL, &out->sequence->items[i]));
        SBP_TRY(folded(e, &out->sequence->items[i], sensitive));
    }
    return SBP_OK;
}

sbp_status sbp_tpl_filter_sort(TPL_PARAMETERS) {
    TPL_UNUSED;
    SBP_TRY(sbp_tpl_copy_items(e, self, out));
    int64_t count = out->sequence->count;
    tpl_value *keys = SBP_NEW_ARRAY(e->arena, tpl_value, count);
    for (int64_t i = 0; i < count; i++)
        SBP_TRY(sort_key(e, &out->sequence->items[i], &values[2], sbp_tpl_truth(&values[1]), &keys[i]));
    return sbp_tpl_sort(e, keys, out->sequence->items, count, sbp_tpl_truth(&values[0]));
}

sbp_status sbp_tpl_filter_dictsort(TPL_PARAMETERS) {
    tpl_value pairs;
    TPL_UNUSED;
    if (self->kind != TPL_DICT)
        return sbp_tpl_fail(e, "dictsort: expected a mapping, found %s", sbp_tpl_type(self));
    SBP_TRY(sbp_tpl_filter_items(e, self, values, rest, &pairs));
    bool by_value = values[1].kind == TPL_STRING && sbp_tpl_is(values[1].string, "value");
    if (!by_value && values[1].kind != TPL_MISSING &&
        !(values[1].kind == TPL_STRING && sbp_tpl_is(values[1].string, "key")))
        return sbp_tpl_fail(e, "dictsort: expected 'key' or 'value'");
    SBP_TRY(sbp_tpl_copy_items(e, &pairs, out));
    int64_t count = out->sequence->count;
    tpl_value *keys = SBP_NEW_ARRAY(e->arena, tpl_value, count);
    for (int64_t i = 0; i < count; i++) {
        keys[i] = out->sequence->items[i].sequence->items[by_value];
        SBP_TRY(folded(e, &keys[i], sbp_tpl_truth(&values[0])));
    }
    return sbp_tpl_sort(e, keys, out->sequence->items, count, sbp_tpl_truth(&values[2]));
}

static sbp_status extreme(tpl_eval *e, const tpl_value *self, const tpl_value *values, int op,
                          tpl_value *out) {
    tpl_value *items, best, key;
    int64_t count;
    SBP_TRY(sbp_tpl_iterate(e, self, &items, &count));
    *out = sbp_tpl_undefined(e, "no item: the sequence is empty");
    for (int64_t i = 0; i < count; i++) {
        bool better = i == 0;
        SBP_TRY(get_path(e, &items[i], &values[1], NULL, &key));
        SBP_TRY(folded(e, &key, sbp_tpl_truth(&values[0])));
        if (i > 0)
            SBP_TRY(sbp_tpl_less(e, op, &key, &best, &better));
        if (better) {
            best = key;
            *out = items[i];
        }
    }
    return SBP_OK;
}

sbp_status sbp_tpl_filter_min(TPL_PARAMETERS) {
    TPL_UNUSED;
    return extreme(e, self, values, '<', out);
}

sbp_status sbp_tpl_filter_max(TPL_PARAMETERS) {
    TPL_UNUSED;
    return extreme(e, self, values, '>', out);
}

/* ---- together -------------------------------------------------------------------------------------- */

sbp_status sbp_tpl_filter_join(TPL_PARAMETERS) {
    tpl_value *items;
    int64_t count;
    tpl_text between = {"", 0};
    sbp_text text;
    TPL_UNUSED;
    SBP_TRY(sbp_tpl_iterate(e, self, &items, &count));
    if (values[0].kind != TPL_MISSING)
        SBP_TRY(sbp_tpl_str(e, &values[0], &between));
    sbp_text_init(&text, e->arena);
    for (int64_t i = 0; i < count; i++) {
        tpl_value item;
        SBP_TRY(get_path(e, &items[i], &values[1], NULL, &item));
        if (i)
            SBP_TRY(sbp_tpl_add(e, &text, between));
        SBP_TRY(sbp_tpl_add_str(e, &text, &item));
    }
    return sbp_tpl_text_value(e, &text, false, out);
}

sbp_status sbp_tpl_filter_sum(TPL_PARAMETERS) {
    tpl_value *items;
    int64_t count;
    TPL_UNUSED;
    SBP_TRY(sbp_tpl_iterate(e, self, &items, &count));
    *out = values[1].kind == TPL_MISSING ? sbp_tpl_int(0) : values[1];
    if (out->kind == TPL_STRING)
        return sbp_tpl_fail(e, "sum: strings are not added up; use join");
    for (int64_t i = 0; i < count; i++) {
        tpl_value item, so_far = *out;
        SBP_TRY(get_path(e, &items[i], &values[0], NULL, &item));
        SBP_TRY(sbp_tpl_binary(e, '+', &so_far, &item, out));
    }
    return SBP_OK;
}

/* `count` lists one after the other; list i has sizes(i) items of the sequence, and one `fill` where short.
 */
static sbp_status cut(tpl_eval *e, const tpl_value *self, int64_t parts, int64_t size, int64_t longer,
                      int64_t full, const tpl_value *fill, tpl_value *out) {
    tpl_value *items;
    int64_t count;
    bool fills = fill->kind != TPL_MISSING && fill->kind != TPL_NONE;
    SBP_TRY(sbp_tpl_iterate(e, self, &items, &count));
    SBP_TRY(sbp_tpl_charge(e, count + parts));
    *out = generator(sbp_tpl_sequence(e, TPL_LIST, parts));
    for (int64_t p = 0, at = 0; p < parts; p++) {
        int64_t own = size + (p < longer);
        own = own < count - at ? own : count - at;
        int64_t all = fills && own < full ? full : own;
        SBP_TRY(sbp_tpl_charge(e, all));
        tpl_value list = sbp_tpl_sequence(e, TPL_LIST, all);
        for (int64_t i = 0; i < all; i++)
            list.sequence->items[i] = i < own ? items[at + i] : *fill;
        at += own;
        out->sequence->items[p] = list;
    }
    return SBP_OK;
}

static sbp_status read_count(tpl_eval *e, const tpl_value *self, const tpl_value *value, tpl_value *list,
                             int64_t *out) {
    SBP_TRY(sbp_tpl_copy_items(e, self, list));
    if (!sbp_tpl_integer(value, out) || *out < 1 || *out > 100000)
        return sbp_tpl_fail(e, "expected a number from 1 to 100000");
    return SBP_OK;
}

sbp_status sbp_tpl_filter_batch(TPL_PARAMETERS) {
    tpl_value list;
    int64_t size;
    TPL_UNUSED;
    SBP_TRY(read_count(e, self, &values[0], &list, &size));
    return cut(e, &list, sbp_ceil_div(list.sequence->count, size), size, 0, size, &values[1], out);
}

sbp_status sbp_tpl_filter_slice(TPL_PARAMETERS) {
    tpl_value list;
    int64_t parts;
    TPL_UNUSED;
    SBP_TRY(read_count(e, self, &values[0], &list, &parts));
    int64_t size = list.sequence->count / parts, longer = list.sequence->count % parts;
    return cut(e, &list, parts, size, longer, size + 1, &values[1], out);
}
