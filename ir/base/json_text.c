/* json_text.c: the quick way to read JSON: once to count what lists and objects have, once to make exactly
 * that. Everything that it does not take is read again by jansson: whatever is in doubt here is a "no". */
#include "ir/base/json_text.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_DEPTH = 2048, /* jansson's */
    NUMBER_BYTES = 64, /* longer ones are left to it */
    TABLE_FROM = 16    /* members from which on a hash table pays */
};

typedef struct text_reader {
    sbp_arena *arena;
    const char *at, *end;
    const int32_t *counts; /* of the lists and objects to come, in the order in which they begin */
    int64_t left;          /* of these */
    int depth;
    bool python; /* SBP_JSON_PYTHON */
} text_reader;

int sbp_utf8_bytes(const char *text, int64_t length) {
    const unsigned char *t = (const unsigned char *)text;
    if (*t < 0x80)
        return 1;
    int more = *t >= 0xc2 && *t <= 0xdf ? 1 : (*t & 0xf0) == 0xe0 ? 2 : *t >= 0xf0 && *t <= 0xf4 ? 3 : 0;
    if (more == 0 || length <= more)
        return 0;
    for (int k = 1; k <= more; k++)
        if ((t[k] & 0xc0) != 0x80)
            return 0;
    if ((*t == 0xe0 && t[1] < 0xa0) || (*t == 0xed && t[1] > 0x9f) || (*t == 0xf0 && t[1] < 0x90) ||
        (*t == 0xf4 && t[1] > 0x8f))
        return 0;
    return more + 1;
}

bool sbp_is_utf8(const char *text, int64_t length) {
    int bytes;
    for (int64_t i = 0; i < length; i += bytes)
        if ((bytes = (unsigned char)text[i] < 0x80 ? 1 : sbp_utf8_bytes(text + i, length - i)) == 0)
            return false;
    return true;
}

/* ---- counting --------------------------------------------------------------------------------------- */

typedef struct counter {
    sbp_arena *scratch;
    int32_t *counts;
    int32_t count, capacity;
    int32_t open[MOST_DEPTH]; /* those that have not ended */
    int depth;
    bool empty; /* nothing has come since the innermost one began */
} counter;

static bool count_byte(counter *c, char byte) {
    if (byte == '[' || byte == '{') {
        if (c->depth == MOST_DEPTH)
            return false;
        c->open[c->depth++] = c->count;
        SBP_PUSH(c->scratch, c->counts, c->count, c->capacity, 0);
        c->empty = true;
    } else if (byte == ']' || byte == '}') {
        if (c->depth == 0)
            return false;
        c->counts[c->open[--c->depth]] += !c->empty;
        c->empty = false;
    } else if (byte == ',') {
        if (c->depth > 0)
            c->counts[c->open[c->depth - 1]]++;
    } else if (byte != ' ' && byte != '\t' && byte != '\n' && byte != '\r') {
        c->empty = false;
    }
    return true;
}

/* How many items each list or object has, if the text is JSON. Neither fits an int32_t where the text does
 * not. */
static bool count_items(counter *c, const char *text, size_t length) {
    if (length > INT32_MAX / 2)
        return false;
    for (size_t i = 0; i < length; i++) {
        if (!count_byte(c, text[i]))
            return false;
        if (text[i] != '"')
            continue;
        for (i++; i < length && text[i] != '"'; i++)
            i += text[i] == '\\';
    }
    return true;
}

/* ---- strings ---------------------------------------------------------------------------------------- */

static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* The four digits behind "\u"; -1: they are none. */
static int32_t read_unit(const char *at, const char *end) {
    int32_t unit = 0;
    if (end - at < 6 || at[0] != '\\' || at[1] != 'u')
        return -1;
    for (int i = 2; i < 6; i++) {
        int digit = hex_digit(at[i]);
        if (digit < 0)
            return -1;
        unit = unit * 16 + digit;
    }
    return unit;
}

/* A character that is spelled "\uXXXX", or as two of these, as UTF-8; -1: it is none. */
static int read_escape(const char **at, const char *end, char *out) {
    int32_t code = read_unit(*at, end);
    *at += 6;
    if (code >= 0xd800 && code <= 0xdbff) {
        int32_t low = read_unit(*at, end);
        if (low < 0xdc00 || low > 0xdfff)
            return -1;
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        *at += 6;
    } else if (code < 0 || (code >= 0xdc00 && code <= 0xdfff)) {
        return -1;
    }
    int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const unsigned char heads[] = {0, 0xc0, 0xe0, 0xf0};
    out[0] = (char)(heads[more] | code >> 6 * more);
    for (int i = 1; i <= more; i++)
        out[i] = (char)(0x80 | (code >> 6 * (more - i) & 0x3f));
    return more + 1;
}

/* What a string of `from` .. `to` says, into out; its length, -1: it says nothing. */
static int64_t unescape(const char *from, const char *to, char *out) {
    static const char names[] = "\"\\/bfnrt", bytes[] = "\"\\/\b\f\n\r\t";
    int64_t length = 0;
    while (from < to) {
        if (*from != '\\') {
            out[length++] = *from++;
            continue;
        }
        const char *name = to - from > 1 && from[1] ? strchr(names, from[1]) : NULL;
        if (name) {
            out[length++] = bytes[name - names];
            from += 2;
            continue;
        }
        int size = read_escape(&from, to, out + length);
        if (size < 0)
            return -1;
        length += size;
    }
    return length;
}

/* A string behind its first quote. */
static bool read_string(text_reader *r, const char **out, int64_t *length) {
    const char *from = r->at;
    bool escaped = false;
    for (; r->at < r->end && *r->at != '"'; r->at++) {
        if ((unsigned char)*r->at < 0x20)
            return false;
        if (*r->at == '\\') {
            escaped = true;
            r->at++;
        }
    }
    if (r->at >= r->end || !sbp_is_utf8(from, r->at - from))
        return false;
    int64_t bytes = r->at - from;
    char *copy = sbp_arena_alloc(r->arena, (size_t)bytes + 1); /* nothing becomes longer by being unescaped */
    *length = bytes;
    if (escaped)
        *length = unescape(from, r->at, copy);
    else if (bytes > 0)
        memcpy(copy, from, (size_t)bytes);
    if (*length < 0)
        return false;
    copy[*length] = 0;
    *out = copy;
    r->at++;
    return true;
}

/* ---- values ----------------------------------------------------------------------------------------- */

static void skip_blanks(text_reader *r) {
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r'))
        r->at++;
}

static bool take(text_reader *r, char byte) {
    skip_blanks(r);
    if (r->at == r->end || *r->at != byte)
        return false;
    r->at++;
    return true;
}

static size_t digits(const char *text) {
    return strspn(text, "0123456789");
}

/* Whole numbers of at most 18 digits, and real ones. */
static bool read_number(text_reader *r, sbp_json *out) {
    char text[NUMBER_BYTES + 1] = {0};
    size_t length = (size_t)(r->end - r->at);
    length = length < NUMBER_BYTES ? length : NUMBER_BYTES;
    memcpy(text, r->at, length);
    size_t sign = text[0] == '-', whole = digits(text + sign), at = sign + whole;
    if (whole == 0 || (whole > 1 && text[sign] == '0'))
        return false;
    bool real = text[at] == '.' || text[at] == 'e' || text[at] == 'E';
    if (text[at] == '.') {
        size_t fraction = digits(text + at + 1);
        if (fraction == 0)
            return false;
        at += 1 + fraction;
    }
    if (text[at] == 'e' || text[at] == 'E') {
        at += text[at + 1] == '+' || text[at + 1] == '-' ? 2 : 1;
        size_t exponent = digits(text + at);
        if (exponent == 0)
            return false;
        at += exponent;
    }
    if (at >= NUMBER_BYTES || (!real && whole > 18))
        return false;
    out->kind = real ? SBP_JSON_REAL : SBP_JSON_INT;
    if (real)
        out->real = strtod(text, NULL);
    else
        out->integer = strtoll(text, NULL, 10);
    r->at += at;
    return !real || isfinite(out->real);
}

static bool read_word(text_reader *r, const char *word) {
    size_t length = strlen(word);
    if ((size_t)(r->end - r->at) < length || memcmp(r->at, word, length) != 0)
        return false;
    r->at += length;
    return true;
}

/* What Python's json writes of numbers that JSON does not have. */
static bool read_not_finite(text_reader *r, sbp_json *out) {
    static const struct {
        const char *word;
        double value;
    } words[] = {{"NaN", (double)NAN}, {"Infinity", (double)INFINITY}, {"-Infinity", -(double)INFINITY}};
    out->kind = SBP_JSON_REAL;
    for (int i = 0; i < SBP_COUNT(words); i++)
        if (read_word(r, words[i].word)) {
            out->real = words[i].value;
            return true;
        }
    return false;
}

static bool read_value(text_reader *r, sbp_json *out);

static bool read_key(text_reader *r, sbp_json *out) {
    int64_t length;
    return take(r, '"') && read_string(r, &out->key, &length) && !memchr(out->key, 0, (size_t)length) &&
           take(r, ':');
}

/* A list or an object behind its bracket. */
static bool read_items(text_reader *r, sbp_json *out, char end) {
    if (r->left == 0 || ++r->depth > MOST_DEPTH)
        return false;
    out->count = *r->counts++;
    r->left--;
    out->kind = end == ']' ? SBP_JSON_ARRAY : SBP_JSON_OBJECT;
    sbp_json *items = SBP_NEW_ARRAY(r->arena, sbp_json, out->count);
    for (int64_t i = 0; i < out->count; i++) {
        items[i].parent = out;
        items[i].index = (int32_t)i;
        if ((i > 0 && !take(r, ',')) || (end == '}' && !read_key(r, &items[i])) || !read_value(r, &items[i]))
            return false;
    }
    out->items = items;
    out->table = NULL;
    r->depth--;
    return take(r, end) && (end == ']' || sbp_json_index_members(r->arena, out));
}

static bool read_value(text_reader *r, sbp_json *out) {
    skip_blanks(r);
    char byte = r->at < r->end ? *r->at : 0;
    switch (byte) {
    case '"':
        r->at++;
        out->kind = SBP_JSON_STRING;
        return read_string(r, &out->string, &out->count);
    case '[':
    case '{':
        r->at++;
        return read_items(r, out, byte == '[' ? ']' : '}');
    case 'n':
        return read_word(r, "null");
    case 't':
    case 'f':
        out->kind = SBP_JSON_BOOL;
        out->boolean = byte == 't';
        return read_word(r, byte == 't' ? "true" : "false");
    default:
        return (r->python && read_not_finite(r, out)) || read_number(r, out);
    }
}

static bool is_twice(const sbp_json *object) {
    for (int64_t i = 1; i < object->count; i++)
        for (int64_t k = 0; k < i; k++)
            if (strcmp(object->items[i].key, object->items[k].key) == 0)
                return true;
    return false;
}

bool sbp_json_index_members(sbp_arena *arena, sbp_json *object) {
    if (object->count < TABLE_FROM)
        return !is_twice(object);
    uint64_t size = 16;
    while (size < (uint64_t)object->count * 2)
        size *= 2;
    int32_t *table = sbp_arena_array(arena, size + 1, sizeof *table);
    table[0] = (int32_t)size; /* the slots follow, holding index + 1 */
    for (int64_t i = 0; i < object->count; i++) {
        const char *key = object->items[i].key;
        uint64_t at = sbp_hash_bytes(key, strlen(key), 0) & (size - 1);
        for (; table[1 + at]; at = (at + 1) & (size - 1))
            if (strcmp(object->items[table[1 + at] - 1].key, key) == 0)
                return false;
        table[1 + at] = (int32_t)i + 1;
    }
    object->table = table;
    return true;
}

bool sbp_json_text_read(sbp_arena *tree, sbp_arena *scratch, const char *text, size_t length, unsigned flags,
                        sbp_json **out) {
    sbp_arena_mark before = sbp_arena_begin(tree);
    counter *c = SBP_NEW(scratch, counter);
    c->scratch = scratch;
    if (!count_items(c, text, length))
        return false;
    text_reader r = {.arena = tree,
                     .at = text,
                     .end = text + length,
                     .counts = c->counts,
                     .left = c->count,
                     .python = flags & SBP_JSON_PYTHON};
    sbp_json *root = SBP_NEW(tree, sbp_json);
    bool good = read_value(&r, root);
    skip_blanks(&r);
    if (good && r.at == r.end) {
        *out = root;
        return true;
    }
    sbp_arena_end(tree, before);
    return false;
}
