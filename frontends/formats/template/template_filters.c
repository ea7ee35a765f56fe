/* template_filters.c: filters on one value. Those on sequences are in template_sequences.c. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontends/formats/template/template_filters.h"

/* ---- texts ----------------------------------------------------------------------------------------- */

static sbp_status cased(tpl_eval *e, const tpl_value *self, tpl_case to, tpl_value *out) {
    tpl_value text;
    SBP_TRY(sbp_tpl_soft(e, self, &text));
    return sbp_tpl_change_case(e, &text, to, out);
}

TPL_WORK(filter_upper) {
    TPL_UNUSED;
    return cased(e, self, TPL_UPPER, out);
}

TPL_WORK(filter_lower) {
    TPL_UNUSED;
    return cased(e, self, TPL_LOWER, out);
}

TPL_WORK(filter_capitalize) {
    TPL_UNUSED;
    return cased(e, self, TPL_CAPITALIZE, out);
}

TPL_WORK(filter_title) {
    TPL_UNUSED;
    return cased(e, self, TPL_TITLE_WORDS, out);
}

TPL_WORK(filter_string) {
    TPL_UNUSED;
    return sbp_tpl_soft(e, self, out);
}

TPL_WORK(filter_safe) {
    tpl_text text;
    TPL_UNUSED;
    SBP_TRY(sbp_tpl_str(e, self, &text));
    *out = sbp_tpl_string(text.data, text.length);
    out->safe = true;
    return SBP_OK;
}

TPL_WORK(filter_escape) {
    tpl_text text;
    TPL_UNUSED;
    SBP_TRY(sbp_tpl_escape(e, self, &text));
    *out = sbp_tpl_string(text.data, text.length);
    out->safe = true;
    return SBP_OK;
}

TPL_WORK(filter_trim) {
    TPL_UNUSED;
    SBP_TRY(sbp_tpl_soft(e, self, out));
    if (values[0].kind != TPL_MISSING && values[0].kind != TPL_NONE && values[0].kind != TPL_STRING)
        return sbp_tpl_fail(e, "trim: expected characters, found %s", sbp_tpl_type(&values[0]));
    out->string =
        sbp_tpl_strip(out->string, values[0].kind == TPL_STRING ? &values[0].string : NULL, true, true);
    return sbp_tpl_charge_text(e, out->string.length);
}

TPL_WORK(filter_replace) {
    tpl_text text, old, by;
    int64_t most = -1;
    TPL_UNUSED;
    SBP_TRY(sbp_tpl_str(e, self, &text));
    SBP_TRY(sbp_tpl_str(e, &values[0], &old));
    SBP_TRY(sbp_tpl_str(e, &values[1], &by));
    (void)sbp_tpl_integer(&values[2], &most);
    return sbp_tpl_replace(e, text, old, by, most, out);
}

TPL_WORK(filter_format) {
    TPL_UNUSED;
    tpl_value text, given = sbp_tpl_sequence(e, TPL_TUPLE, rest->count);
    SBP_TRY(sbp_tpl_soft(e, self, &text));
    if (rest->count && rest->named_count)
        return sbp_tpl_fail(e, "format: arguments with and without names are mixed");
    for (int32_t i = 0; i < rest->count; i++)
        given.sequence->items[i] = rest->items[i];
    if (rest->named_count)
        given = sbp_tpl_dict(e);
    for (int32_t i = 0; i < rest->named_count; i++)
        SBP_TRY(sbp_tpl_dict_set(e, given.dict, sbp_tpl_string(rest->named[i].name, rest->named[i].length),
                                 rest->named[i].value));
    return sbp_tpl_percent(e, &text, &given, out);
}

static sbp_status indentation(tpl_eval *e, const tpl_value *width, tpl_text *out) {
    int64_t count = 4;
    if (width->kind == TPL_STRING) {
        *out = width->string;
        return SBP_OK;
    }
    if (width->kind != TPL_MISSING && !sbp_tpl_integer(width, &count))
        return sbp_tpl_fail(e, "indent: expected a width, found %s", sbp_tpl_type(width));
    tpl_value blank = sbp_tpl_literal(" "), times = sbp_tpl_int(count), all;
    SBP_TRY(sbp_tpl_binary(e, '*', &blank, &times, &all));
    *out = all.string;
    return SBP_OK;
}

TPL_WORK(filter_indent) {
    tpl_text before, text;
    tpl_value lines;
    sbp_text result;
    TPL_UNUSED;
    if (self->kind != TPL_STRING)
        return sbp_tpl_fail(e, "indent: expected a string, found %s", sbp_tpl_type(self));
    SBP_TRY(indentation(e, &values[0], &before));
    text = self->string;
    SBP_TRY(sbp_tpl_split_lines(e, text, false, &lines));
    int64_t count = lines.sequence->count;
    bool ends = text.length > 0 && text.data[text.length - 1] == '\n'; /* an empty last line counts */
    sbp_text_init(&result, e->arena);
    for (int64_t i = 0; i < count + (ends || count == 0); i++) {
        tpl_text line = i < count ? lines.sequence->items[i].string : (tpl_text){"", 0};
        SBP_TRY(sbp_tpl_add(e, &result, (tpl_text){"\n", i > 0}));
        if (i == 0 ? sbp_tpl_truth(&values[1]) : line.length > 0 || sbp_tpl_truth(&values[2]))
            SBP_TRY(sbp_tpl_add(e, &result, before));
        SBP_TRY(sbp_tpl_add(e, &result, line));
    }
    return sbp_tpl_text_value(e, &result, self->safe, out);
}

TPL_WORK(filter_truncate) {
    int64_t length = 255, leeway = 5, count;
    TPL_UNUSED;
    (void)sbp_tpl_integer(&values[0], &length);
    (void)sbp_tpl_integer(&values[3], &leeway);
    tpl_value end = values[2].kind == TPL_STRING ? values[2] : sbp_tpl_literal("...");
    int64_t end_chars = sbp_tpl_chars(end.string);
    if (self->kind != TPL_STRING || length < end_chars || leeway < 0)
        return sbp_tpl_fail(e, "truncate: expected a string, and a length from %lld on",
                            (long long)end_chars);
    SBP_TRY(sbp_tpl_length(e, self, &count));
    *out = *self;
    if (count <= length + leeway)
        return SBP_OK;
    tpl_text kept = {self->string.data, sbp_tpl_offset(self->string, length - end_chars)};
    const char *blank = memrchr(kept.data, ' ', kept.length);
    if (!sbp_tpl_truth(&values[1]) && blank)
        kept.length = (size_t)(blank - kept.data);
    tpl_value left = sbp_tpl_string(kept.data, kept.length);
    return sbp_tpl_binary(e, '+', &left, &end, out);
}

/* ---- numbers --------------------------------------------------------------------------------------- */

/* Text of a number without blanks around it and single underscores inside; NULL: too long, or none. */
static const char *number_text(tpl_text text, char out[80]) {
    size_t length = 0;
    text = sbp_tpl_strip(text, NULL, true, true);
    for (size_t i = 0; i < text.length; i++) {
        char c = text.data[i];
        bool between = i > 0 && i + 1 < text.length && text.data[i - 1] != '_' && text.data[i + 1] != '_';
        if (length == 79 || (c == '_' && !between) || c == '\0')
            return NULL;
        if (c != '_')
            out[length++] = c;
    }
    out[length] = '\0';
    return length ? out : NULL;
}

static bool parse_float(tpl_text text, double *out) {
    char copy[80], *end;
    const char *number = number_text(text, copy);
    if (!number || strpbrk(number, "xXpP(")) /* strtod reads more than float() */
        return false;
    *out = strtod(number, &end);
    return *end == '\0';
}

TPL_WORK(filter_float) {
    double number;
    TPL_UNUSED;
    if (self->kind == TPL_UNDEFINED)
        return sbp_tpl_fail(e, "%s", self->undefined);
    bool good = self->kind == TPL_STRING ? parse_float(self->string, &number) : sbp_tpl_number(self, &number);
    *out = good ? sbp_tpl_float(number) : values[0].kind != TPL_MISSING ? values[0] : sbp_tpl_float(0);
    return SBP_OK;
}

static bool parse_int(tpl_text text, int64_t base, int64_t *out, bool *too_large) {
    char copy[80], *end;
    const char *number = number_text(text, copy);
    if (!number || base < 2 || base > 36 || strchr("+-", number[0]) == number + strlen(number))
        return false;
    const char *digits = number + (*number == '-' || *number == '+');
    if (base == 16 && digits[0] == '0' && (digits[1] | 32) == 'x')
        digits += 2;
    if (!*digits || *digits == '-' || *digits == '+' || *digits == ' ')
        return false;
    errno = 0;
    *out = strtoll(number, &end, (int)base);
    *too_large = errno == ERANGE;
    return *end == '\0';
}

TPL_WORK(filter_int) {
    int64_t base = 10, integer;
    double number;
    bool too_large = false;
    TPL_UNUSED;
    (void)sbp_tpl_integer(&values[1], &base);
    if (self->kind == TPL_UNDEFINED)
        return sbp_tpl_fail(e, "%s", self->undefined);
    if (sbp_tpl_integer(self, &integer) ||
        (self->kind == TPL_STRING && parse_int(self->string, base, &integer, &too_large))) {
        *out = sbp_tpl_int(integer);
        return too_large ? sbp_tpl_fail(e, "int: the number has more than 64 bits") : SBP_OK;
    }
    bool good = self->kind == TPL_STRING ? parse_float(self->string, &number) : sbp_tpl_number(self, &number);
    if (good && !isnan(number) && !isinf(number)) {
        if (fabs(number) >= 0x1p63)
            return sbp_tpl_fail(e, "int: the number has more than 64 bits");
        *out = sbp_tpl_int((int64_t)number);
    } else {
        *out = values[0].kind != TPL_MISSING ? values[0] : sbp_tpl_int(0);
    }
    return SBP_OK;
}

TPL_WORK(filter_abs) {
    int64_t integer;
    TPL_UNUSED;
    if (self->kind == TPL_FLOAT)
        *out = sbp_tpl_float(fabs(self->real));
    else if (sbp_tpl_integer(self, &integer) && integer != INT64_MIN)
        *out = sbp_tpl_int(integer < 0 ? -integer : integer);
    else
        return sbp_tpl_fail(e, "abs: expected a number, found %s", sbp_tpl_type(self));
    return SBP_OK;
}

static sbp_status round_directed(tpl_eval *e, double number, int64_t precision, tpl_text method,
                                 tpl_value *out) {
    double scale = pow(10, (double)precision);
    bool up = sbp_tpl_is(method, "ceil");
    if (!up && !sbp_tpl_is(method, "floor"))
        return sbp_tpl_fail(e, "round: expected common, ceil or floor");
    *out = sbp_tpl_float((up ? ceil(number * scale) : floor(number * scale)) / scale);
    return SBP_OK;
}

TPL_WORK(filter_round) {
    int64_t precision = 0;
    double number;
    char text[400];
    TPL_UNUSED;
    if (!sbp_tpl_number(self, &number))
        return sbp_tpl_fail(e, "round: expected a number, found %s", sbp_tpl_type(self));
    (void)sbp_tpl_integer(&values[0], &precision);
    if (precision < 0 || precision > 22)
        return sbp_tpl_fail(e, "round: expected 0 to 22 digits, found %lld", (long long)precision);
    if (values[1].kind == TPL_STRING && !sbp_tpl_is(values[1].string, "common"))
        return round_directed(e, number, precision, values[1].string, out);
    *out = *self;
    if (self->kind == TPL_BOOL)
        *out = sbp_tpl_int(self->boolean);
    if (self->kind == TPL_FLOAT && !isnan(number) && !isinf(number)) {
        snprintf(text, sizeof text, "%.*f", (int)precision, number); /* to the nearest, ties to even */
        *out = sbp_tpl_float(strtod(text, NULL));
    }
    return SBP_OK;
}

/* ---- others ---------------------------------------------------------------------------------------- */

TPL_WORK(filter_default) {
    TPL_UNUSED;
    bool replaced = self->kind == TPL_UNDEFINED || (sbp_tpl_truth(&values[1]) && !sbp_tpl_truth(self));
    *out = !replaced ? *self : values[0].kind == TPL_MISSING ? sbp_tpl_literal("") : values[0];
    return SBP_OK;
}

TPL_WORK(filter_attr) {
    TPL_UNUSED;
    tpl_text name;
    SBP_TRY(sbp_tpl_str(e, &values[0], &name));
    if (self->kind == TPL_DICT && !sbp_tpl_find_method(TPL_DICT, name)) { /* attributes only, no keys */
        *out = sbp_tpl_undefined(e, "'dict' has no attribute '%.*s'",
                                 (int)(name.length < 60 ? name.length : 60), name.data);
        return SBP_OK;
    }
    return sbp_tpl_attribute(e, self, name, out);
}

static sbp_status read_separators(tpl_eval *e, const tpl_value *value, tpl_json_style *style) {
    if (value->kind == TPL_MISSING || value->kind == TPL_NONE)
        return SBP_OK;
    bool pair = (value->kind == TPL_TUPLE || value->kind == TPL_LIST) && value->sequence->count == 2;
    if (!pair || value->sequence->items[0].kind != TPL_STRING || value->sequence->items[1].kind != TPL_STRING)
        return sbp_tpl_fail(e, "tojson: expected two strings as separators");
    style->item_separator = value->sequence->items[0].string;
    style->key_separator = value->sequence->items[1].string;
    return SBP_OK;
}

TPL_WORK(filter_tojson) {
    tpl_json_style style = {.ascii = sbp_tpl_truth(&values[0]),
                            .sort = sbp_tpl_truth(&values[3]),
                            .item_separator = {", ", 2},
                            .key_separator = {": ", 2}};
    sbp_text text;
    TPL_UNUSED;
    if (values[1].kind != TPL_MISSING && values[1].kind != TPL_NONE) {
        style.indented = true;
        style.item_separator.length = 1;
        SBP_TRY(indentation(e, &values[1], &style.indent));
    }
    SBP_TRY(read_separators(e, &values[2], &style));
    sbp_text_init(&text, e->arena);
    SBP_TRY(sbp_tpl_add_json(e, &text, self, &style, 0));
    return sbp_tpl_text_value(e, &text, false, out);
}

/* ---- all of them ----------------------------------------------------------------------------------- */

static const tpl_builtin filters[] = {
    {"abs", "", filter_abs, 0},
    {"attr", "name", filter_attr, 0},
    {"batch", "linecount fill_with?", sbp_tpl_filter_batch, 0},
    {"capitalize", "", filter_capitalize, 0},
    {"count", "", sbp_tpl_filter_length, 0},
    {"d", "default_value? boolean?", filter_default, 0},
    {"default", "default_value? boolean?", filter_default, 0},
    {"dictsort", "case_sensitive? by? reverse?", sbp_tpl_filter_dictsort, 0},
    {"e", "", filter_escape, 0},
    {"escape", "", filter_escape, 0},
    {"first", "", sbp_tpl_filter_first, 0},
    {"float", "default?", filter_float, 0},
    {"format", "*", filter_format, 0},
    {"indent", "width? first? blank?", filter_indent, 0},
    {"int", "default? base?", filter_int, 0},
    {"items", "", sbp_tpl_filter_items, 0},
    {"join", "d? attribute?", sbp_tpl_filter_join, 0},
    {"last", "", sbp_tpl_filter_last, 0},
    {"length", "", sbp_tpl_filter_length, 0},
    {"list", "", sbp_tpl_filter_list, 0},
    {"lower", "", filter_lower, 0},
    {"map", "*", sbp_tpl_filter_map, 0},
    {"max", "case_sensitive? attribute?", sbp_tpl_filter_max, 0},
    {"min", "case_sensitive? attribute?", sbp_tpl_filter_min, 0},
    {"reject", "*", sbp_tpl_filter_reject, 0},
    {"rejectattr", "*", sbp_tpl_filter_rejectattr, 0},
    {"replace", "old new count?", filter_replace, 0},
    {"reverse", "", sbp_tpl_filter_reverse, 0},
    {"round", "precision? method?", filter_round, 0},
    {"safe", "", filter_safe, 0},
    {"select", "*", sbp_tpl_filter_select, 0},
    {"selectattr", "*", sbp_tpl_filter_selectattr, 0},
    {"slice", "slices fill_with?", sbp_tpl_filter_slice, 0},
    {"sort", "reverse? case_sensitive? attribute?", sbp_tpl_filter_sort, 0},
    {"string", "", filter_string, 0},
    {"sum", "attribute? start?", sbp_tpl_filter_sum, 0},
    {"title", "", filter_title, 0},
    {"tojson", "ensure_ascii? indent? separators? sort_keys?", filter_tojson, 0},
    {"trim", "chars?", filter_trim, 0},
    {"truncate", "length? killwords? end? leeway?", filter_truncate, 0},
    {"unique", "case_sensitive? attribute?", sbp_tpl_filter_unique, 0},
    {"upper", "", filter_upper, 0},
};

const tpl_builtin *sbp_tpl_find_filter(tpl_text name) {
    for (int i = 0; i < SBP_COUNT(filters); i++)
        if (sbp_tpl_is(name, filters[i].name))
            return &filters[i];
    return NULL;
}

bool sbp_tpl_jinja_has(tpl_text name) {
    static const char *const names[] = {"center", "filesizeformat", "forceescape", "groupby",
                                        "pprint", "random",         "striptags",   "urlencode",
                                        "urlize", "wordcount",      "wordwrap",    "xmlattr"};
    for (int i = 0; i < SBP_COUNT(names); i++)
        if (sbp_tpl_is(name, names[i]))
            return true;
    return false;
}
