/* template_methods.c: methods of strings, lists, dicts and loops. */
#include <string.h>
#include <utf8proc.h>

#include "frontends/formats/template/template_filters.h"

static sbp_status want_text(tpl_eval *e, const tpl_value *value, tpl_text *out) {
    *out = (tpl_text){"", 0};
    if (value->kind != TPL_STRING)
        return sbp_tpl_fail(e, "expected a string as argument, found %s", sbp_tpl_type(value));
    *out = value->string;
    return SBP_OK;
}

static bool is_absent(const tpl_value *value) {
    return value->kind == TPL_MISSING || value->kind == TPL_NONE;
}

static sbp_status want_integer(tpl_eval *e, const tpl_value *value, int64_t otherwise, int64_t *out) {
    *out = otherwise;
    if (value->kind != TPL_MISSING && !sbp_tpl_integer(value, out))
        return sbp_tpl_fail(e, "expected a whole number as argument, found %s", sbp_tpl_type(value));
    return SBP_OK;
}

/* ---- strings: ends --------------------------------------------------------------------------------- */

static sbp_status strip(tpl_eval *e, const tpl_value *self, const tpl_value *chars, bool left, bool right,
                        tpl_value *out) {
    tpl_text set;
    *out = *self;
    SBP_TRY(sbp_tpl_charge_text(e, self->string.length));
    if (!is_absent(chars))
        SBP_TRY(want_text(e, chars, &set));
    out->string = sbp_tpl_strip(self->string, is_absent(chars) ? NULL : &set, left, right);
    return SBP_OK;
}

TPL_WORK(method_strip) {
    TPL_UNUSED;
    return strip(e, self, &values[0], true, true, out);
}

TPL_WORK(method_lstrip) {
    TPL_UNUSED;
    return strip(e, self, &values[0], true, false, out);
}

TPL_WORK(method_rstrip) {
    TPL_UNUSED;
    return strip(e, self, &values[0], false, true, out);
}

static bool begins(tpl_text text, tpl_text with) {
    return text.length >= with.length && memcmp(text.data, with.data, with.length) == 0;
}

static bool ends(tpl_text text, tpl_text with) {
    return text.length >= with.length &&
           memcmp(text.data + text.length - with.length, with.data, with.length) == 0;
}

/* self[start:end] */
static sbp_status part(tpl_eval *e, const tpl_value *self, const tpl_value *from, tpl_value *out) {
    tpl_value bounds[3] = {from[0], from[1], {.kind = TPL_MISSING}};
    if (from[0].kind == TPL_MISSING && from[1].kind == TPL_MISSING) {
        *out = *self;
        return SBP_OK;
    }
    for (int i = 0; i < 2; i++) {
        int64_t ignored;
        if (!is_absent(&from[i]) && !sbp_tpl_integer(&from[i], &ignored))
            return sbp_tpl_fail(e, "expected a whole number as argument, found %s", sbp_tpl_type(&from[i]));
    }
    return sbp_tpl_slice(e, self, bounds, out);
}

static sbp_status has_end(tpl_eval *e, const tpl_value *self, const tpl_value *values, bool at_end,
                          tpl_value *out) {
    tpl_value of, single = values[0];
    const tpl_value *items = &single;
    int64_t count = 1;
    bool found = false;
    SBP_TRY(part(e, self, values + 1, &of));
    if (single.kind == TPL_TUPLE) {
        items = single.sequence->items;
        count = single.sequence->count;
    }
    for (int64_t i = 0; i < count; i++) {
        tpl_text with;
        SBP_TRY(want_text(e, &items[i], &with));
        found |= at_end ? ends(of.string, with) : begins(of.string, with);
    }
    *out = sbp_tpl_bool(found);
    return sbp_tpl_charge(e, count);
}

TPL_WORK(method_startswith) {
    TPL_UNUSED;
    return has_end(e, self, values, false, out);
}

TPL_WORK(method_endswith) {
    TPL_UNUSED;
    return has_end(e, self, values, true, out);
}

TPL_WORK(method_removeprefix) {
    tpl_text with;
    TPL_UNUSED;
    SBP_TRY(want_text(e, &values[0], &with));
    *out = *self;
    if (begins(self->string, with))
        out->string = (tpl_text){self->string.data + with.length, self->string.length - with.length};
    return SBP_OK;
}

TPL_WORK(method_removesuffix) {
    tpl_text with;
    TPL_UNUSED;
    SBP_TRY(want_text(e, &values[0], &with));
    *out = *self;
    if (ends(self->string, with))
        out->string.length -= with.length;
    return SBP_OK;
}

/* ---- strings: parts -------------------------------------------------------------------------------- */

static sbp_status split(tpl_eval *e, const tpl_value *self, const tpl_value *values, bool right,
                        tpl_value *out) {
    tpl_text by;
    int64_t most;
    SBP_TRY(want_integer(e, &values[1], -1, &most));
    if (!is_absent(&values[0]))
        SBP_TRY(want_text(e, &values[0], &by));
    SBP_TRY(sbp_tpl_split(e, self->string, is_absent(&values[0]) ? NULL : &by, most, right, out));
    for (int64_t i = 0; i < out->sequence->count; i++)
        out->sequence->items[i].safe = self->safe;
    return SBP_OK;
}

TPL_WORK(method_split) {
    TPL_UNUSED;
    return split(e, self, values, false, out);
}

TPL_WORK(method_rsplit) {
    TPL_UNUSED;
    return split(e, self, values, true, out);
}

TPL_WORK(method_splitlines) {
    TPL_UNUSED;
    return sbp_tpl_split_lines(e, self->string, sbp_tpl_truth(&values[0]), out);
}

static sbp_status partition(tpl_eval *e, const tpl_value *self, const tpl_value *by_value, bool right,
                            tpl_value *out) {
    tpl_text by;
    tpl_value parts;
    SBP_TRY(want_text(e, by_value, &by));
    SBP_TRY(sbp_tpl_split(e, self->string, &by, 1, right, &parts));
    const tpl_value *items = parts.sequence->items;
    bool found = parts.sequence->count == 2;
    tpl_value empty = sbp_tpl_literal("");
    *out = sbp_tpl_sequence(e, TPL_TUPLE, 3);
    out->sequence->items[0] = found || !right ? items[0] : empty;
    out->sequence->items[1] = found ? *by_value : empty;
    out->sequence->items[2] = found ? items[1] : right ? items[0] : empty;
    return SBP_OK;
}

TPL_WORK(method_partition) {
    TPL_UNUSED;
    return partition(e, self, &values[0], false, out);
}

TPL_WORK(method_rpartition) {
    TPL_UNUSED;
    return partition(e, self, &values[0], true, out);
}

/* Code points before the first or last place of values[0] in self[values[1]:values[2]]; -1: none. */
static sbp_status find(tpl_eval *e, const tpl_value *self, const tpl_value *values, bool last, int64_t *out) {
    tpl_text what;
    tpl_value of;
    SBP_TRY(want_text(e, &values[0], &what));
    SBP_TRY(part(e, self, values + 1, &of));
    tpl_text in = of.string;
    const char *at = what.length ? NULL : in.data + (last ? in.length : 0);
    for (const char *from = in.data; what.length && from; from = last && from ? from + 1 : NULL) {
        from = memmem(from, in.length - (size_t)(from - in.data), what.data, what.length);
        at = from ? from : at;
        SBP_TRY(sbp_tpl_charge_text(e, from ? 0 : in.length));
        if (!from)
            break;
    }
    size_t before = (size_t)(in.data - self->string.data);
    *out = at ? sbp_tpl_chars((tpl_text){self->string.data, before + (size_t)(at - in.data)}) : -1;
    return SBP_OK;
}

TPL_WORK(method_find) {
    int64_t at;
    TPL_UNUSED;
    SBP_TRY(find(e, self, values, false, &at));
    *out = sbp_tpl_int(at);
    return SBP_OK;
}

TPL_WORK(method_rfind) {
    int64_t at;
    TPL_UNUSED;
    SBP_TRY(find(e, self, values, true, &at));
    *out = sbp_tpl_int(at);
    return SBP_OK;
}

TPL_WORK(method_index) {
    SBP_TRY(method_find(e, self, values, rest, out));
    return out->integer < 0 ? sbp_tpl_fail(e, "index: the text was not found") : SBP_OK;
}

TPL_WORK(method_rindex) {
    SBP_TRY(method_rfind(e, self, values, rest, out));
    return out->integer < 0 ? sbp_tpl_fail(e, "rindex: the text was not found") : SBP_OK;
}

TPL_WORK(method_count) {
    tpl_text what;
    tpl_value of, parts;
    int64_t chars;
    TPL_UNUSED;
    SBP_TRY(want_text(e, &values[0], &what));
    SBP_TRY(part(e, self, values + 1, &of));
    if (what.length == 0) {
        SBP_TRY(sbp_tpl_length(e, &of, &chars));
        *out = sbp_tpl_int(chars + 1);
        return SBP_OK;
    }
    SBP_TRY(sbp_tpl_split(e, of.string, &what, -1, false, &parts));
    *out = sbp_tpl_int(parts.sequence->count - 1);
    return SBP_OK;
}

/* ---- strings: other texts -------------------------------------------------------------------------- */

#define CASE(name, to)                                                                                       \
    TPL_WORK(name) {                                                                                         \
        TPL_UNUSED;                                                                                          \
        return sbp_tpl_change_case(e, self, to, out);                                                        \
    }

CASE(method_upper, TPL_UPPER)
CASE(method_lower, TPL_LOWER)
CASE(method_title, TPL_TITLE)
CASE(method_capitalize, TPL_CAPITALIZE)
CASE(method_swapcase, TPL_SWAP)

TPL_WORK(method_replace) {
    tpl_text old, by;
    int64_t most;
    TPL_UNUSED;
    SBP_TRY(want_text(e, &values[0], &old));
    SBP_TRY(want_text(e, &values[1], &by));
    SBP_TRY(want_integer(e, &values[2], -1, &most));
    if (self->safe)
        SBP_TRY(sbp_tpl_escape(e, &values[1], &by));
    SBP_TRY(sbp_tpl_replace(e, self->string, old, by, most, out));
    out->safe = self->safe;
    return SBP_OK;
}

TPL_WORK(method_join) {
    tpl_value *items;
    int64_t count;
    sbp_text text;
    TPL_UNUSED;
    SBP_TRY(sbp_tpl_iterate(e, &values[0], &items, &count));
    sbp_text_init(&text, e->arena);
    for (int64_t i = 0; i < count; i++) {
        tpl_text item;
        if (i)
            SBP_TRY(sbp_tpl_add(e, &text, self->string));
        if (!self->safe)
            SBP_TRY(want_text(e, &items[i], &item));
        else
            SBP_TRY(sbp_tpl_escape(e, &items[i], &item));
        SBP_TRY(sbp_tpl_add(e, &text, item));
    }
    return sbp_tpl_text_value(e, &text, self->safe, out);
}

/* Filled up to a width; share: of the filling that goes to the left, in halves. */
static sbp_status pad(tpl_eval *e, const tpl_value *self, const tpl_value *values, int side, tpl_value *out) {
    int64_t width, chars;
    tpl_text fill = {" ", 1};
    sbp_text text;
    SBP_TRY(want_integer(e, &values[0], 0, &width));
    if (values[1].kind != TPL_MISSING)
        SBP_TRY(want_text(e, &values[1], &fill));
    if (sbp_tpl_chars(fill) != 1)
        return sbp_tpl_fail(e, "expected one character to fill with");
    SBP_TRY(sbp_tpl_length(e, self, &chars));
    int64_t more = width > chars ? width - chars : 0;
    if (more > e->limits.output_bytes / 4)
        return sbp_tpl_fail(e, "the text has more than %lld bytes", (long long)e->limits.output_bytes);
    int64_t left = side == 2 ? more : side == 0 ? 0 : more / 2 + (more & width & 1);
    sbp_text_init(&text, e->arena);
    for (int64_t i = 0; i < left; i++)
        SBP_TRY(sbp_tpl_add(e, &text, fill));
    SBP_TRY(sbp_tpl_add(e, &text, self->string));
    for (int64_t i = left; i < more; i++)
        SBP_TRY(sbp_tpl_add(e, &text, fill));
    return sbp_tpl_text_value(e, &text, self->safe, out);
}

TPL_WORK(method_ljust) {
    TPL_UNUSED;
    return pad(e, self, values, 0, out);
}

TPL_WORK(method_center) {
    TPL_UNUSED;
    return pad(e, self, values, 1, out);
}

TPL_WORK(method_rjust) {
    TPL_UNUSED;
    return pad(e, self, values, 2, out);
}

TPL_WORK(method_zfill) {
    tpl_value of = *self, with[2] = {values[0], sbp_tpl_literal("0")};
    TPL_UNUSED;
    bool has_sign = self->string.length > 0 && strchr("+-", self->string.data[0]);
    if (!has_sign || with[0].kind != TPL_INT)
        return pad(e, self, with, 2, out);
    of.string = (tpl_text){self->string.data + 1, self->string.length - 1};
    with[0].integer--;
    tpl_value filled, sign = sbp_tpl_string(self->string.data, 1);
    SBP_TRY(pad(e, &of, with, 2, &filled));
    return sbp_tpl_binary(e, '+', &sign, &filled, out);
}

TPL_WORK(method_format) {
    TPL_UNUSED;
    return sbp_tpl_str_format(e, self->string, rest, out);
}

/* ---- strings: what they are ------------------------------------------------------------------------ */

static bool is_decimal(uint32_t c) {
    return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_ND;
}

static bool is_alphanumeric(uint32_t c) {
    utf8proc_category_t of = utf8proc_category((utf8proc_int32_t)c);
    return sbp_tpl_is_letter(c) || of == UTF8PROC_CATEGORY_ND || of == UTF8PROC_CATEGORY_NL ||
           of == UTF8PROC_CATEGORY_NO;
}

static bool is_ascii(uint32_t c) {
    return c < 0x80;
}

static sbp_status all_chars(tpl_eval *e, tpl_text text, bool (*is)(uint32_t), bool empty, tpl_value *out) {
    bool all = text.length > 0 || empty;
    for (size_t at = 0; at < text.length && all;) {
        int bytes;
        all = is(sbp_tpl_decode(text.data + at, &bytes));
        at += (size_t)bytes;
    }
    *out = sbp_tpl_bool(all);
    return sbp_tpl_charge_text(e, text.length);
}

#define ALL(name, is, empty)                                                                                 \
    TPL_WORK(name) {                                                                                         \
        TPL_UNUSED;                                                                                          \
        return all_chars(e, self->string, is, empty, out);                                                   \
    }

ALL(method_isspace, sbp_tpl_is_space, false)
ALL(method_isalpha, sbp_tpl_is_letter, false)
ALL(method_isdigit, is_decimal, false)
ALL(method_isalnum, is_alphanumeric, false)
ALL(method_isascii, is_ascii, true)

TPL_WORK(method_islower) {
    TPL_UNUSED;
    return sbp_tpl_has_case(e, self, false, out);
}

TPL_WORK(method_isupper) {
    TPL_UNUSED;
    return sbp_tpl_has_case(e, self, true, out);
}

/* ---- lists and dicts ------------------------------------------------------------------------------- */

TPL_WORK(list_index) {
    TPL_UNUSED;
    for (int64_t i = 0; i < self->sequence->count; i++) {
        bool equal;
        SBP_TRY(sbp_tpl_equal(e, &self->sequence->items[i], &values[0], &equal));
        if (equal) {
            *out = sbp_tpl_int(i);
            return SBP_OK;
        }
    }
    return sbp_tpl_fail(e, "index: the value is not in the %s", sbp_tpl_type(self));
}

TPL_WORK(list_count) {
    int64_t count = 0;
    TPL_UNUSED;
    for (int64_t i = 0; i < self->sequence->count; i++) {
        bool equal;
        SBP_TRY(sbp_tpl_equal(e, &self->sequence->items[i], &values[0], &equal));
        count += equal;
    }
    *out = sbp_tpl_int(count);
    return SBP_OK;
}

TPL_WORK(list_copy) {
    TPL_UNUSED;
    return sbp_tpl_copy_items(e, self, out);
}

static sbp_status view(tpl_eval *e, const tpl_value *self, const char *what, tpl_value *out) {
    const tpl_dict *dict = self->dict;
    SBP_TRY(sbp_tpl_charge(e, dict->count));
    *out = sbp_tpl_sequence(e, TPL_VIEW, dict->count);
    out->sequence->view = what;
    for (int32_t i = 0; i < dict->count; i++) {
        tpl_value *item = &out->sequence->items[i];
        *item = what[0] == 'k' ? dict->entries[i].key : dict->entries[i].value;
        if (what[0] != 'i')
            continue;
        *item = sbp_tpl_sequence(e, TPL_TUPLE, 2);
        item->sequence->items[0] = dict->entries[i].key;
        item->sequence->items[1] = dict->entries[i].value;
    }
    return SBP_OK;
}

TPL_WORK(dict_keys) {
    TPL_UNUSED;
    return view(e, self, "keys", out);
}

TPL_WORK(dict_values) {
    TPL_UNUSED;
    return view(e, self, "values", out);
}

TPL_WORK(dict_items) {
    TPL_UNUSED;
    return view(e, self, "items", out);
}

TPL_WORK(dict_get) {
    const tpl_value *found;
    TPL_UNUSED;
    SBP_TRY(sbp_tpl_dict_get(e, self->dict, &values[0], &found));
    *out = found ? *found : values[1].kind == TPL_MISSING ? sbp_tpl_none() : values[1];
    return SBP_OK;
}

TPL_WORK(dict_copy) {
    TPL_UNUSED;
    *out = sbp_tpl_dict(e);
    for (int32_t i = 0; i < self->dict->count; i++)
        SBP_TRY(sbp_tpl_dict_set(e, out->dict, self->dict->entries[i].key, self->dict->entries[i].value));
    return SBP_OK;
}

/* ---- loops ----------------------------------------------------------------------------------------- */

TPL_WORK(loop_cycle) {
    TPL_UNUSED;
    if (rest->count == 0 || rest->named_count > 0)
        return sbp_tpl_fail(e, "loop.cycle: expected values to go through");
    *out = rest->items[self->loop->at % rest->count];
    return SBP_OK;
}

TPL_WORK(loop_changed) {
    const tpl_args *before = self->loop->changed;
    bool same = before && before->count == rest->count;
    TPL_UNUSED;
    for (int32_t i = 0; same && i < rest->count; i++)
        SBP_TRY(sbp_tpl_equal(e, &before->items[i], &rest->items[i], &same));
    if (!same) {
        self->loop->changed = SBP_NEW(e->arena, tpl_args);
        *self->loop->changed = *rest;
    }
    *out = sbp_tpl_bool(!same);
    return SBP_OK;
}

/* ---- all of them ----------------------------------------------------------------------------------- */

/* Without work: it would change the value, which the sandbox does not allow. */
static const tpl_builtin methods[] = {
    {"strip", "chars?", method_strip, TPL_STRING},
    {"lstrip", "chars?", method_lstrip, TPL_STRING},
    {"rstrip", "chars?", method_rstrip, TPL_STRING},
    {"split", "sep? maxsplit?", method_split, TPL_STRING},
    {"rsplit", "sep? maxsplit?", method_rsplit, TPL_STRING},
    {"splitlines", "keepends?", method_splitlines, TPL_STRING},
    {"partition", "sep", method_partition, TPL_STRING},
    {"rpartition", "sep", method_rpartition, TPL_STRING},
    {"startswith", "prefix start? end?", method_startswith, TPL_STRING},
    {"endswith", "suffix start? end?", method_endswith, TPL_STRING},
    {"removeprefix", "prefix", method_removeprefix, TPL_STRING},
    {"removesuffix", "suffix", method_removesuffix, TPL_STRING},
    {"replace", "old new count?", method_replace, TPL_STRING},
    {"join", "iterable", method_join, TPL_STRING},
    {"find", "sub start? end?", method_find, TPL_STRING},
    {"rfind", "sub start? end?", method_rfind, TPL_STRING},
    {"index", "sub start? end?", method_index, TPL_STRING},
    {"rindex", "sub start? end?", method_rindex, TPL_STRING},
    {"count", "sub start? end?", method_count, TPL_STRING},
    {"upper", "", method_upper, TPL_STRING},
    {"lower", "", method_lower, TPL_STRING},
    {"title", "", method_title, TPL_STRING},
    {"capitalize", "", method_capitalize, TPL_STRING},
    {"swapcase", "", method_swapcase, TPL_STRING},
    {"ljust", "width fillchar?", method_ljust, TPL_STRING},
    {"center", "width fillchar?", method_center, TPL_STRING},
    {"rjust", "width fillchar?", method_rjust, TPL_STRING},
    {"zfill", "width", method_zfill, TPL_STRING},
    {"format", "*", method_format, TPL_STRING},
    {"isspace", "", method_isspace, TPL_STRING},
    {"isalpha", "", method_isalpha, TPL_STRING},
    {"isdigit", "", method_isdigit, TPL_STRING},
    {"isdecimal", "", method_isdigit, TPL_STRING},
    {"isalnum", "", method_isalnum, TPL_STRING},
    {"isascii", "", method_isascii, TPL_STRING},
    {"islower", "", method_islower, TPL_STRING},
    {"isupper", "", method_isupper, TPL_STRING},
    {"index", "value", list_index, TPL_LIST},
    {"count", "value", list_count, TPL_LIST},
    {"copy", "", list_copy, TPL_LIST},
    {"append", "", NULL, TPL_LIST},
    {"clear", "", NULL, TPL_LIST},
    {"extend", "", NULL, TPL_LIST},
    {"insert", "", NULL, TPL_LIST},
    {"pop", "", NULL, TPL_LIST},
    {"remove", "", NULL, TPL_LIST},
    {"reverse", "", NULL, TPL_LIST},
    {"sort", "", NULL, TPL_LIST},
    {"index", "value", list_index, TPL_TUPLE},
    {"count", "value", list_count, TPL_TUPLE},
    {"get", "key default?", dict_get, TPL_DICT},
    {"items", "", dict_items, TPL_DICT},
    {"keys", "", dict_keys, TPL_DICT},
    {"values", "", dict_values, TPL_DICT},
    {"copy", "", dict_copy, TPL_DICT},
    {"clear", "", NULL, TPL_DICT},
    {"pop", "", NULL, TPL_DICT},
    {"popitem", "", NULL, TPL_DICT},
    {"setdefault", "", NULL, TPL_DICT},
    {"update", "", NULL, TPL_DICT},
    {"cycle", "*", loop_cycle, TPL_LOOP},
    {"changed", "*", loop_changed, TPL_LOOP},
};

const tpl_builtin *sbp_tpl_find_method(tpl_kind kind, tpl_text name) {
    for (int i = 0; i < SBP_COUNT(methods); i++)
        if (methods[i].kind == kind && sbp_tpl_is(name, methods[i].name))
            return &methods[i];
    return NULL;
}

bool sbp_tpl_python_has(tpl_kind kind, tpl_text name) {
    static const struct {
        tpl_kind kind;
        const char *names; /* each between blanks */
    } others[] = {
        {TPL_STRING,
         " casefold encode expandtabs format_map isidentifier isnumeric isprintable istitle maketrans "
         "translate "},
        {TPL_DICT, " fromkeys "},
        {TPL_RANGE, " count index start step stop "},
        {TPL_VIEW, " isdisjoint mapping "},
        {TPL_INT,
         " as_integer_ratio bit_count bit_length conjugate denominator from_bytes imag numerator real "
         "to_bytes "},
        {TPL_FLOAT, " as_integer_ratio conjugate fromhex hex imag is_integer real "},
        {TPL_MACRO, " arguments caller catch_kwargs catch_varargs "},
        {TPL_GENERATOR, " close send throw "},
    };
    char word[40];
    if (name.length > 30)
        return false;
    word[0] = ' ';
    memcpy(word + 1, name.data, name.length);
    memcpy(word + 1 + name.length, " ", 2);
    for (int i = 0; i < SBP_COUNT(others); i++)
        if (others[i].kind == kind && strstr(others[i].names, word))
            return true;
    return false;
}
