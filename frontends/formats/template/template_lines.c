/* template_lines.c: texts cut into parts, and with other cases. */
#include <string.h>
#include <utf8proc.h>

#include "frontends/formats/template/template_internal.h"

typedef struct part_list {
    tpl_value *items;
    int32_t count, capacity;
} part_list;

static sbp_status add_part(tpl_eval *e, part_list *parts, const char *from, const char *to) {
    SBP_PUSH(e->arena, parts->items, parts->count, parts->capacity,
             sbp_tpl_string(from, (size_t)(to - from)));
    return sbp_tpl_charge(e, 1);
}

static sbp_status finish(tpl_eval *e, const part_list *parts, bool backwards, tpl_value *out) {
    *out = sbp_tpl_sequence(e, TPL_LIST, parts->count);
    for (int32_t i = 0; i < parts->count; i++)
        out->sequence->items[i] = parts->items[backwards ? parts->count - 1 - i : i];
    return SBP_OK;
}

static bool ends_line(uint32_t code) {
    return (code >= 10 && code <= 13) || (code >= 0x1c && code <= 0x1e) || code == 0x85 || code == 0x2028 ||
           code == 0x2029;
}

sbp_status sbp_tpl_split_lines(tpl_eval *e, tpl_text text, bool keep_ends, tpl_value *out) {
    part_list parts = {0};
    const char *at = text.data, *end = text.data + text.length, *line = at;
    SBP_TRY(sbp_tpl_charge_text(e, text.length));
    while (at < end) {
        int bytes;
        const char *stop = at;
        uint32_t code = sbp_tpl_decode(at, &bytes);
        at += bytes;
        if (!ends_line(code))
            continue;
        at += code == '\r' && at < end && *at == '\n';
        SBP_TRY(add_part(e, &parts, line, keep_ends ? at : stop));
        line = at;
    }
    if (line < end)
        SBP_TRY(add_part(e, &parts, line, end));
    return finish(e, &parts, false, out);
}

/* ---- split ----------------------------------------------------------------------------------------- */

static sbp_status split_blanks(tpl_eval *e, tpl_text rest, int64_t most, bool right, part_list *parts) {
    for (;;) {
        rest = sbp_tpl_strip(rest, NULL, !right, right);
        if (rest.length == 0)
            return SBP_OK;
        if (most-- == 0)
            return add_part(e, parts, rest.data, rest.data + rest.length);
        size_t at = right ? rest.length : 0;
        for (int bytes; right ? at > 0 : at < rest.length;) {
            size_t from = at;
            if (right)
                do
                    from--;
                while (((unsigned char)rest.data[from] & 0xc0) == 0x80);
            if (sbp_tpl_is_space(sbp_tpl_decode(rest.data + from, &bytes)))
                break;
            at = right ? from : at + (size_t)bytes;
        }
        if (right) {
            SBP_TRY(add_part(e, parts, rest.data + at, rest.data + rest.length));
            rest.length = at;
        } else {
            SBP_TRY(add_part(e, parts, rest.data, rest.data + at));
            rest = (tpl_text){rest.data + at, rest.length - at};
        }
    }
}

/* The last place of `by` in the text, NULL: none. */
static const char *find_last(tpl_text text, tpl_text by) {
    for (size_t at = text.length; at >= by.length; at--)
        if (memcmp(text.data + at - by.length, by.data, by.length) == 0)
            return text.data + at - by.length;
    return NULL;
}

static sbp_status split_at(tpl_eval *e, tpl_text rest, tpl_text by, int64_t most, bool right,
                           part_list *parts) {
    for (; most != 0; most--) {
        const char *at = right ? find_last(rest, by) : memmem(rest.data, rest.length, by.data, by.length);
        const char *end = rest.data + rest.length;
        if (!at)
            break;
        SBP_TRY(add_part(e, parts, right ? at + by.length : rest.data, right ? end : at));
        rest = right ? (tpl_text){rest.data, (size_t)(at - rest.data)}
                     : (tpl_text){at + by.length, (size_t)(end - at) - by.length};
    }
    return add_part(e, parts, rest.data, rest.data + rest.length);
}

sbp_status sbp_tpl_split(tpl_eval *e, tpl_text text, const tpl_text *by, int64_t most, bool from_right,
                         tpl_value *out) {
    part_list parts = {0};
    SBP_TRY(sbp_tpl_charge_text(e, text.length));
    if (by && by->length == 0)
        return sbp_tpl_fail(e, "split: the separator is empty");
    if (by)
        SBP_TRY(sbp_tpl_charge(e, from_right ? (int64_t)(text.length * by->length / 64) : 0));
    SBP_TRY(by ? split_at(e, text, *by, most, from_right, &parts)
               : split_blanks(e, text, most, from_right, &parts));
    return finish(e, &parts, from_right, out);
}

sbp_status sbp_tpl_replace(tpl_eval *e, tpl_text text, tpl_text old, tpl_text by, int64_t most,
                           tpl_value *out) {
    sbp_text result;
    sbp_text_init(&result, e->arena);
    while (most-- != 0) {
        const char *at = old.length ? memmem(text.data, text.length, old.data, old.length) : text.data;
        int bytes = 0;
        if (!at)
            break;
        SBP_TRY(sbp_tpl_add(e, &result, (tpl_text){text.data, (size_t)(at - text.data)}));
        SBP_TRY(sbp_tpl_add(e, &result, by));
        text.length -= (size_t)(at - text.data) + old.length;
        text.data = at + old.length;
        if (old.length > 0)
            continue;
        if (text.length == 0) /* nothing: between all characters */
            break;
        (void)sbp_tpl_decode(text.data, &bytes);
        SBP_TRY(sbp_tpl_add(e, &result, (tpl_text){text.data, (size_t)bytes}));
        text = (tpl_text){text.data + bytes, text.length - (size_t)bytes};
    }
    SBP_TRY(sbp_tpl_add(e, &result, text));
    return sbp_tpl_text_value(e, &result, false, out);
}

/* ---- cases ----------------------------------------------------------------------------------------- */

static sbp_status add_cased(tpl_eval *e, sbp_text *out, uint32_t code, bool upper) {
    char bytes[4];
    if (code == 0xdf && upper) /* the one common letter that becomes two */
        return sbp_tpl_add(e, out, (tpl_text){"SS", 2});
    utf8proc_int32_t to =
        upper ? utf8proc_toupper((utf8proc_int32_t)code) : utf8proc_tolower((utf8proc_int32_t)code);
    return sbp_tpl_add(e, out, (tpl_text){bytes, (size_t)sbp_tpl_encode(bytes, (uint32_t)to)});
}

static bool has_case(uint32_t code) {
    return utf8proc_toupper((utf8proc_int32_t)code) != (utf8proc_int32_t)code ||
           utf8proc_tolower((utf8proc_int32_t)code) != (utf8proc_int32_t)code;
}

sbp_status sbp_tpl_change_case(tpl_eval *e, const tpl_value *value, tpl_case to, tpl_value *out) {
    tpl_text text = value->string;
    sbp_text result;
    bool first = true; /* of the text, or of a word */
    sbp_text_init(&result, e->arena);
    for (size_t at = 0; at < text.length;) {
        int bytes;
        uint32_t code = sbp_tpl_decode(text.data + at, &bytes);
        bool upper = to == TPL_UPPER || (to != TPL_LOWER && to != TPL_SWAP && first) ||
                     (to == TPL_SWAP && utf8proc_islower((utf8proc_int32_t)code));
        SBP_TRY(add_cased(e, &result, code, upper));
        first = to == TPL_TITLE_WORDS ? sbp_tpl_is_space(code) || (code < 0x80 && strchr("-({[<", (int)code))
                                      : to == TPL_TITLE && !has_case(code);
        at += (size_t)bytes;
    }
    return sbp_tpl_text_value(e, &result, value->safe, out);
}

sbp_status sbp_tpl_has_case(tpl_eval *e, const tpl_value *value, bool upper, tpl_value *out) {
    tpl_text text;
    bool some = false, all = true;
    SBP_TRY(sbp_tpl_str(e, value, &text));
    for (size_t at = 0; at < text.length;) {
        int bytes;
        utf8proc_int32_t code = (utf8proc_int32_t)sbp_tpl_decode(text.data + at, &bytes);
        some |= upper ? utf8proc_isupper(code) != 0 : utf8proc_islower(code) != 0;
        all &= upper ? utf8proc_islower(code) == 0 : utf8proc_isupper(code) == 0;
        at += (size_t)bytes;
    }
    *out = sbp_tpl_bool(some && all);
    return sbp_tpl_charge_text(e, text.length);
}
