/* tokenizer_unicode.c: UTF-8, and the bytes of GPT-2. */
#include "frontends/formats/tokenizer/tokenizer_internal.h"

int sbp_utf8_get(const char *text, uint32_t *code) {
    const unsigned char *c = (const unsigned char *)text;
    if (c[0] < 0x80) {
        *code = c[0];
        return 1;
    }
    if (c[0] < 0xe0) {
        *code = (c[0] & 0x1fu) << 6 | (c[1] & 0x3fu);
        return 2;
    }
    if (c[0] < 0xf0) {
        *code = (c[0] & 0x0fu) << 12 | (c[1] & 0x3fu) << 6 | (c[2] & 0x3fu);
        return 3;
    }
    *code = (c[0] & 0x07u) << 18 | (c[1] & 0x3fu) << 12 | (c[2] & 0x3fu) << 6 | (c[3] & 0x3fu);
    return 4;
}

int sbp_utf8_put(char *out, uint32_t code) {
    unsigned char *c = (unsigned char *)out;
    if (code < 0x80) {
        c[0] = (unsigned char)code;
        return 1;
    }
    if (code < 0x800) {
        c[0] = (unsigned char)(0xc0 | code >> 6);
        c[1] = (unsigned char)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        c[0] = (unsigned char)(0xe0 | code >> 12);
        c[1] = (unsigned char)(0x80 | (code >> 6 & 0x3f));
        c[2] = (unsigned char)(0x80 | (code & 0x3f));
        return 3;
    }
    c[0] = (unsigned char)(0xf0 | code >> 18);
    c[1] = (unsigned char)(0x80 | (code >> 12 & 0x3f));
    c[2] = (unsigned char)(0x80 | (code >> 6 & 0x3f));
    c[3] = (unsigned char)(0x80 | (code & 0x3f));
    return 4;
}

/* Table 3-7 of the Unicode standard; a maximal subpart of an ill-formed sequence is replaced as one. */
int sbp_utf8_check(const char *text, int64_t length, int *skip) {
    const unsigned char *c = (const unsigned char *)text;
    *skip = 1;
    if (c[0] < 0x80)
        return 1;
    int size = c[0] >= 0xc2 && c[0] <= 0xdf   ? 2
               : c[0] >= 0xe0 && c[0] <= 0xef ? 3
               : c[0] >= 0xf0 && c[0] <= 0xf4 ? 4
                                              : 0;
    if (size == 0)
        return 0;
    unsigned char low = 0x80, high = 0xbf; /* of the second byte */
    if (c[0] == 0xe0)
        low = 0xa0;
    else if (c[0] == 0xed)
        high = 0x9f;
    else if (c[0] == 0xf0)
        low = 0x90;
    else if (c[0] == 0xf4)
        high = 0x8f;
    for (int i = 1; i < size; i++) {
        if (i >= length || c[i] < low || c[i] > high)
            return 0;
        *skip = i + 1;
        low = 0x80;
        high = 0xbf;
    }
    return size;
}

int64_t sbp_utf8_start(const char *text, int64_t at) {
    while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80)
        at--;
    return at;
}

bool sbp_is_whitespace(uint32_t code) {
    return (code >= 9 && code <= 13) || code == 0x20 || code == 0x85 || code == 0xa0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 || code == 0x202f ||
           code == 0x205f || code == 0x3000;
}

/* Printable Latin-1 stands for itself; the 68 others are U+0100 on, in the order of the bytes. */
static bool is_itself(uint32_t byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

uint32_t sbp_byte_to_char(uint8_t byte) {
    if (is_itself(byte))
        return byte;
    if (byte <= 0x20)
        return 0x100u + byte;
    if (byte <= 0xa0)
        return 0x121u + (uint32_t)(byte - 0x7f);
    return 0x143;
}

int sbp_char_to_byte(uint32_t code) {
    if (code < 0x100)
        return is_itself(code) ? (int)code : -1;
    if (code <= 0x120)
        return (int)(code - 0x100);
    if (code <= 0x142)
        return (int)(code - 0x121 + 0x7f);
    return code == 0x143 ? 0xad : -1;
}
