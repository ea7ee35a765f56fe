/* template_lex.c: the text of a template as tokens. Blanks around tags go as with trim_blocks and
 * lstrip_blocks: a newline behind a block or comment; blanks before it where it begins its line; "-" takes
 * all blanks on its side, "+" keeps them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "frontends/formats/template/template_internal.h"

typedef struct lexer {
    sbp_arena *arena;
    sbp_diag *diag;
    const char *name;
    tpl_text text;
    size_t at;
    size_t counted; /* up to where line and column were counted */
    int32_t line, column;
    bool starts_line; /* what was read last ended with a newline, or nothing was read */
    tpl_token *tokens;
    int32_t count, capacity;
    char open[TPL_MOST_DEPTH]; /* brackets around */
    int32_t open_count;
} lexer;

/* Line and column of a place not before the last one. */
static void locate(lexer *l, size_t at) {
    for (; l->counted < at; l->counted++) {
        if (l->text.data[l->counted] == '\n') {
            l->line++;
            l->column = 1;
        } else if (((unsigned char)l->text.data[l->counted] & 0xc0) != 0x80) {
            l->column++;
        }
    }
}

static sbp_status fail_at(lexer *l, size_t at, const char *message) {
    if (at >= l->counted)
        locate(l, at);
    return sbp_fail(l->diag, SBP_INPUT, "%s:%d:%d: %s", l->name, l->line, l->column, message);
}

static tpl_token *push(lexer *l, tpl_token_kind kind, size_t begin, tpl_text text) {
    locate(l, begin);
    SBP_PUSH(l->arena, l->tokens, l->count, l->capacity,
             (tpl_token){.kind = kind, .line = l->line, .column = l->column, .text = text});
    return &l->tokens[l->count - 1];
}

static bool looking_at(const lexer *l, size_t at, const char *text) {
    size_t length = strlen(text);
    return l->text.length - at >= length && memcmp(l->text.data + at, text, length) == 0;
}

static size_t skip_blanks(const lexer *l, size_t at) {
    while (at < l->text.length) {
        int bytes;
        if (!sbp_tpl_is_space(sbp_tpl_decode(l->text.data + at, &bytes)))
            break;
        at += (size_t)bytes;
    }
    return at;
}

/* Goes on behind a tag that ends at l->at; what of the following blanks belongs to it. */
static void end_tag(lexer *l, char sign, bool trims) {
    if (sign == '-')
        l->at = skip_blanks(l, l->at);
    else if (sign != '+' && trims && l->at < l->text.length && l->text.data[l->at] == '\n')
        l->at++;
    l->starts_line = l->text.data[l->at - 1] == '\n';
}

/* Text [begin, end) before a tag with a sign. */
static void push_data(lexer *l, size_t begin, size_t end, char sign, bool is_variable) {
    tpl_text data = {l->text.data + begin, end - begin};
    if (sign == '-') {
        data = sbp_tpl_strip(data, NULL, false, true);
    } else if (sign != '+' && !is_variable) {
        size_t line = data.length;
        while (line > 0 && data.data[line - 1] != '\n')
            line--;
        tpl_text rest = {data.data + line, data.length - line};
        if ((line > 0 || l->starts_line) && sbp_tpl_strip(rest, NULL, true, false).length == 0)
            data.length = line;
    }
    if (data.length > 0)
        push(l, TPL_TOKEN_DATA, begin, data);
}

/* ---- inside of tags -------------------------------------------------------------------------------- */

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static int digit_of(char c) {
    return is_digit(c) ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'z' ? (c | 32) - 'a' + 10 : 99;
}

/* Behind digits of a base with single underscores between them; `at` where there are none. */
static size_t digits_end(const lexer *l, size_t at, int base) {
    size_t end = at;
    while (at < l->text.length && digit_of(l->text.data[at]) < base) {
        end = ++at;
        if (at < l->text.length && l->text.data[at] == '_')
            at++;
    }
    return end;
}

static char peek(const lexer *l, size_t at) {
    return at < l->text.length ? l->text.data[at] : '\0';
}

/* End of a float at l->at, 0 when there is none. */
static size_t float_end(const lexer *l) {
    size_t end = digits_end(l, l->at, 10), from = end;
    bool is_float = false;
    if (l->at > 0 && l->text.data[l->at - 1] == '.')
        return 0;
    if (peek(l, end) == '.' && is_digit(peek(l, end + 1))) {
        end = from = digits_end(l, end + 1, 10);
        is_float = true;
    }
    if ((peek(l, from) | 32) == 'e') {
        from += peek(l, from + 1) == '+' || peek(l, from + 1) == '-' ? 2 : 1;
        if (is_digit(peek(l, from)))
            return digits_end(l, from, 10);
    }
    return is_float ? end : 0;
}

static char *without_underscores(const lexer *l, size_t begin, size_t end) {
    char *out = sbp_arena_alloc(l->arena, end - begin + 1), *to = out;
    for (size_t i = begin; i < end; i++)
        if (l->text.data[i] != '_')
            *to++ = l->text.data[i];
    return out;
}

static sbp_status lex_number(lexer *l) {
    size_t begin = l->at, end = float_end(l);
    int base = 10;
    tpl_value value;
    if (end) {
        value = sbp_tpl_float(strtod(without_underscores(l, begin, end), NULL));
    } else {
        char mark = (char)(peek(l, begin + 1) | 32);
        if (peek(l, begin) == '0' && (mark == 'b' || mark == 'o' || mark == 'x')) {
            base = mark == 'b' ? 2 : mark == 'o' ? 8 : 16;
            size_t from = begin + 2 + (peek(l, begin + 2) == '_');
            end = digits_end(l, from, base);
            if (end == from)
                base = 10;
        }
        if (base == 10) /* 0 does not go on with other digits */
            end = digits_end(l, begin, peek(l, begin) == '0' ? 1 : 10);
        errno = 0;
        const char *digits = without_underscores(l, base == 10 ? begin : begin + 2, end);
        long long number = strtoll(digits, NULL, base);
        if (errno)
            return fail_at(l, begin, "a whole number has more than 64 bits");
        value = sbp_tpl_int(number);
    }
    push(l, TPL_TOKEN_NUMBER, begin, (tpl_text){l->text.data + begin, end - begin})->value = value;
    l->at = end;
    return SBP_OK;
}

static bool is_name_char(const lexer *l, size_t at, bool first, int *bytes) {
    if (at >= l->text.length)
        return false;
    uint32_t code = sbp_tpl_decode(l->text.data + at, bytes);
    if (code < 0x80)
        return code == '_' || (code | 32) - 'a' < 26 || (!first && code - '0' < 10);
    return sbp_tpl_is_letter(code);
}

static void lex_name(lexer *l) {
    size_t begin = l->at;
    for (int bytes; is_name_char(l, l->at, false, &bytes);)
        l->at += (size_t)bytes;
    push(l, TPL_TOKEN_NAME, begin, (tpl_text){l->text.data + begin, l->at - begin});
}

/* A code of `digits` hexadecimal digits at *from, which moves on. */
static bool read_hex(const lexer *l, size_t *from, size_t end, int digits, uint32_t *code) {
    *code = 0;
    for (int i = 0; i < digits; i++) {
        int digit = *from < end ? digit_of(l->text.data[*from]) : 99;
        if (digit >= 16)
            return false;
        *code = *code << 4 | (uint32_t)digit;
        ++*from;
    }
    return *code <= 0x10ffff && (*code < 0xd800 || *code > 0xdfff);
}

/* One escape; *from is behind the backslash. Bytes written, -1 when it is wrong. */
static int unescape(const lexer *l, size_t *from, size_t end, char out[8]) {
    static const char plain[] = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";
    char c = l->text.data[(*from)++];
    uint32_t code = 0;
    for (const char *p = plain; *p; p += 2)
        if (*p == c) {
            out[0] = p[1];
            return 1;
        }
    if (c == '\n')
        return 0;
    if (c >= '0' && c <= '7') {
        code = (uint32_t)(c - '0');
        for (int i = 0; i < 2 && *from < end && l->text.data[*from] >= '0' && l->text.data[*from] <= '7'; i++)
            code = code * 8 + (uint32_t)(l->text.data[(*from)++] - '0');
        return sbp_tpl_encode(out, code);
    }
    if (c == 'x' || c == 'u' || c == 'U')
        return read_hex(l, from, end,
                        c == 'x'   ? 2
                        : c == 'u' ? 4
                                   : 8,
                        &code)
                   ? sbp_tpl_encode(out, code)
                   : -1;
    if (c == 'N')
        return -1;
    out[0] = '\\'; /* of other characters it stays */
    out[1] = c;
    return 2;
}

static sbp_status lex_string(lexer *l) {
    size_t begin = l->at, end = begin + 1;
    char quote = l->text.data[begin];
    while (end < l->text.length && l->text.data[end] != quote)
        end += l->text.data[end] == '\\' ? 2 : 1;
    if (end >= l->text.length)
        return fail_at(l, begin, "the string has no end");
    char *out = sbp_arena_alloc(l->arena, end - begin + 8);
    size_t length = 0;
    for (size_t at = begin + 1; at < end;) {
        if (l->text.data[at] != '\\') {
            out[length++] = l->text.data[at++];
            continue;
        }
        at++;
        int bytes = unescape(l, &at, end, out + length);
        if (bytes < 0)
            return fail_at(l, begin,
                           "the string has an escape that stands for no character, or is not supported "
                           "(\\N{..}, halves of surrogate pairs)");
        length += (size_t)bytes;
    }
    push(l, TPL_TOKEN_STRING, begin, (tpl_text){out, length});
    l->at = end + 1;
    return SBP_OK;
}

static sbp_status lex_operator(lexer *l) {
    static const char *const twos[] = {"//", "**", "==", "!=", ">=", "<="};
    size_t begin = l->at;
    char c = l->text.data[begin];
    int length = 0;
    for (int i = 0; i < SBP_COUNT(twos); i++)
        if (looking_at(l, begin, twos[i]))
            length = 2;
    if (length == 0 && c && strchr("+-/*%~[](){}><=.:|,;", c))
        length = 1;
    if (length == 0)
        return fail_at(l, begin,
                       sbp_arena_printf(l->arena, "the character '%.*s' does not belong here",
                                        (unsigned char)c < 0x80 ? 1 : 0, l->text.data + begin));
    if (length == 1 && strchr("([{", c)) {
        if (l->open_count == TPL_MOST_DEPTH)
            return fail_at(l, begin, "brackets are nested too deep");
        l->open[l->open_count++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (length == 1 && strchr(")]}", c)) {
        if (l->open_count == 0 || l->open[--l->open_count] != c)
            return fail_at(l, begin, sbp_arena_printf(l->arena, "'%c' closes nothing", c));
    }
    push(l, TPL_TOKEN_OPERATOR, begin, (tpl_text){l->text.data + begin, (size_t)length})->op =
        length == 2 ? TPL_OP(c, l->text.data[begin + 1]) : c;
    l->at = begin + (size_t)length;
    return SBP_OK;
}

/* The end of a tag, with its sign; where brackets are open it is none. */
static bool at_end(lexer *l, bool block, char *sign) {
    const char *end = block ? "%}" : "}}";
    char c = l->text.data[l->at];
    bool has_sign = (c == '-' || (block && c == '+')) && looking_at(l, l->at + 1, end);
    *sign = has_sign ? c : '\0';
    return l->open_count == 0 && (has_sign || looking_at(l, l->at, end));
}

static sbp_status lex_tag(lexer *l, bool block) {
    size_t begin = l->at - 2;
    l->open_count = 0;
    for (;;) {
        int bytes;
        char sign;
        l->at = skip_blanks(l, l->at);
        if (l->at >= l->text.length)
            return sbp_fail(l->diag, SBP_INPUT, "%s:%d:%d: '%.2s' has no '%s'", l->name, l->line, l->column,
                            l->text.data + begin, block ? "%}" : "}}");
        if (at_end(l, block, &sign)) {
            push(l, block ? TPL_TOKEN_BLOCK_END : TPL_TOKEN_VARIABLE_END, l->at, (tpl_text){"", 0});
            l->at += sign ? 3 : 2;
            end_tag(l, sign, block);
            return SBP_OK;
        }
        char c = l->text.data[l->at];
        if (is_digit(c))
            SBP_TRY(lex_number(l));
        else if (is_name_char(l, l->at, true, &bytes))
            lex_name(l);
        else if (c == '\'' || c == '"')
            SBP_TRY(lex_string(l));
        else
            SBP_TRY(lex_operator(l));
    }
}

/* ---- outside of tags ------------------------------------------------------------------------------- */

static char sign_at(const lexer *l, size_t at) {
    char c = peek(l, at);
    return c == '-' || c == '+' ? c : '\0';
}

static sbp_status lex_comment(lexer *l, size_t begin) {
    for (size_t at = l->at; at + 1 < l->text.length; at++)
        if (looking_at(l, at, "#}")) {
            char sign = at > l->at ? sign_at(l, at - 1) : '\0';
            l->at = at + 2;
            end_tag(l, sign, true);
            return SBP_OK;
        }
    return fail_at(l, begin, "'{#' has no '#}'");
}

/* Behind `word` and the end of its tag, when that stands at `at`; else 0. *sign: of the end. */
static size_t word_tag(const lexer *l, size_t at, const char *word, char *sign) {
    at = skip_blanks(l, at);
    if (!looking_at(l, at, word))
        return 0;
    at = skip_blanks(l, at + strlen(word));
    *sign = sign_at(l, at);
    at += *sign != 0;
    return looking_at(l, at, "%}") ? at + 2 : 0;
}

/* What stands between raw and endraw; l->at is behind the former. */
static sbp_status lex_raw(lexer *l, size_t begin) {
    size_t from = l->at;
    for (size_t at = from; at + 1 < l->text.length; at++) {
        if (!looking_at(l, at, "{%"))
            continue;
        char sign = sign_at(l, at + 2), end_sign;
        size_t end = word_tag(l, at + 2 + (sign != 0), "endraw", &end_sign);
        if (!end)
            continue;
        push_data(l, from, at, sign, false);
        l->at = end;
        end_tag(l, end_sign, true);
        return SBP_OK;
    }
    return fail_at(l, begin, "'raw' has no 'endraw'");
}

static size_t find_tag(const lexer *l) {
    for (size_t at = l->at; at + 1 < l->text.length; at++)
        if (l->text.data[at] == '{' && strchr("{%#", l->text.data[at + 1]) && l->text.data[at + 1])
            return at;
    return l->text.length;
}

static sbp_status lex_one(lexer *l) {
    size_t begin = find_tag(l), from = l->at;
    if (begin == l->text.length) {
        push(l, TPL_TOKEN_DATA, from, (tpl_text){l->text.data + from, begin - from});
        l->at = begin;
        return SBP_OK;
    }
    char what = l->text.data[begin + 1], sign = sign_at(l, begin + 2), raw_sign = '\0';
    push_data(l, from, begin, sign, what == '{');
    l->at = begin + 2 + (sign != 0);
    if (what == '#')
        return lex_comment(l, begin);
    size_t raw = what == '%' ? word_tag(l, l->at, "raw", &raw_sign) : 0;
    if (raw && raw_sign != '+') {
        l->at = raw;
        end_tag(l, raw_sign, false);
        return lex_raw(l, begin);
    }
    push(l, what == '%' ? TPL_TOKEN_BLOCK_BEGIN : TPL_TOKEN_VARIABLE_BEGIN, begin, (tpl_text){"", 0});
    return lex_tag(l, what == '%');
}

/* \r\n and \r are newlines; one newline at the end goes. */
static tpl_text normalize(sbp_arena *arena, tpl_text text) {
    char *out = sbp_arena_alloc(arena, text.length + 1);
    size_t length = 0;
    for (size_t i = 0; i < text.length; i++) {
        if (text.data[i] == '\r' && i + 1 < text.length && text.data[i + 1] == '\n')
            continue;
        out[length++] = text.data[i] == '\r' ? '\n' : text.data[i];
    }
    if (length > 0 && out[length - 1] == '\n')
        length--;
    return (tpl_text){out, length};
}

sbp_status sbp_tpl_lex(sbp_arena *arena, sbp_diag *diag, const char *name, tpl_text text, tpl_token **out,
                       int32_t *count) {
    lexer l = {.arena = arena, .diag = diag, .name = name, .line = 1, .column = 1, .starts_line = true};
    if (!sbp_tpl_valid_utf8(text))
        return sbp_fail(diag, SBP_INPUT, "%s: the template is not UTF-8", name);
    l.text = normalize(arena, text);
    while (l.at < l.text.length)
        SBP_TRY(lex_one(&l));
    push(&l, TPL_TOKEN_END, l.text.length, (tpl_text){"", 0});
    *out = l.tokens;
    *count = l.count;
    return SBP_OK;
}
