/* template_unicode.c: code points of valid UTF-8, and what Python says of them. */
#include <string.h>
#include <utf8proc.h>

#include "frontends/formats/template/template_internal.h"

uint32_t sbp_tpl_decode(const char *text, int *bytes) {
    const unsigned char *p = (const unsigned char *)text;
    if (p[0] < 0x80) {
        *bytes = 1;
        return p[0];
    }
    *bytes = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    uint32_t code = *bytes == 2 ? p[0] & 0x1fu : *bytes == 3 ? p[0] & 0x0fu : p[0] & 0x07u;
    for (int i = 1; i < *bytes; i++)
        code = code << 6 | (p[i] & 0x3fu);
    return code;
}

int sbp_tpl_encode(char out[4], uint32_t code) {
    int bytes = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    if (bytes == 1) {
        out[0] = (char)code;
        return 1;
    }
    for (int i = bytes - 1; i > 0; i--, code >>= 6)
        out[i] = (char)(0x80 | (code & 0x3f));
    out[0] = (char)((0xf00 >> bytes & 0xff) | code);
    return bytes;
}

bool sbp_tpl_is_space(uint32_t code) {
    return (code >= 9 && code <= 13) || (code >= 0x1c && code <= 0x20) || code == 0x85 || code == 0xa0 ||
           code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 ||
           code == 0x202f || code == 0x205f || code == 0x3000;
}

bool sbp_tpl_is_letter(uint32_t code) {
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)code);
    return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT ||
           c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_LO;
}

bool sbp_tpl_is_printable(uint32_t code) {
    if (code < 0x7f)
        return code >= 0x20;
    switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
        return false;
    default:
        return true;
    }
}

bool sbp_tpl_valid_utf8(tpl_text text) {
    const utf8proc_uint8_t *p = (const utf8proc_uint8_t *)text.data;
    for (size_t at = 0; at < text.length;) {
        if (p[at] < 0x80) {
            at++;
            continue;
        }
        size_t left = text.length - at;
        utf8proc_int32_t code;
        utf8proc_ssize_t got = utf8proc_iterate(p + at, (utf8proc_ssize_t)(left < 4 ? left : 4), &code);
        if (got <= 0)
            return false;
        at += (size_t)got;
    }
    return true;
}

static bool begins_char(char c) {
    return ((unsigned char)c & 0xc0) != 0x80;
}

int64_t sbp_tpl_chars(tpl_text text) {
    int64_t count = 0;
    for (size_t i = 0; i < text.length; i++)
        count += begins_char(text.data[i]);
    return count;
}

size_t sbp_tpl_offset(tpl_text text, int64_t chars) {
    size_t at = 0;
    for (; at < text.length; at++)
        if (begins_char(text.data[at]) && chars-- == 0)
            break;
    return at;
}

static bool strips(uint32_t code, const tpl_text *chars) {
    if (!chars)
        return sbp_tpl_is_space(code);
    for (size_t at = 0; at < chars->length;) {
        int bytes;
        if (sbp_tpl_decode(chars->data + at, &bytes) == code)
            return true;
        at += (size_t)bytes;
    }
    return false;
}

tpl_text sbp_tpl_strip(tpl_text text, const tpl_text *chars, bool left, bool right) {
    int bytes;
    while (left && text.length > 0 && strips(sbp_tpl_decode(text.data, &bytes), chars)) {
        text.data += bytes;
        text.length -= (size_t)bytes;
    }
    while (right && text.length > 0) {
        size_t at = text.length - 1;
        while (!begins_char(text.data[at]))
            at--;
        if (!strips(sbp_tpl_decode(text.data + at, &bytes), chars))
            break;
        text.length = at;
    }
    return text;
}

bool sbp_tpl_same(tpl_text a, tpl_text b) {
    return a.length == b.length && (a.length == 0 || memcmp(a.data, b.data, a.length) == 0);
}

bool sbp_tpl_is(tpl_text a, const char *b) {
    return sbp_tpl_same(a, (tpl_text){b, strlen(b)});
}
