/* lex.c: the tokens of the text forms. */
#include "ir/base/lex.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

sbp_status sbp_lexer_fail(sbp_lexer *lexer, const char *format, ...) {
    va_list args;
    va_start(args, format);
    char message[512];
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return sbp_fail(lexer->diag, SBP_INPUT, "%s:%d: %s", lexer->name, lexer->line, message);
}

/* ---- words ------------------------------------------------------------------------------------------ */

/* Names and marks, each kept once however often it stands there: a program of many layers has some thousand
 * of them, a hundred times each. By hash. */
struct sbp_lexer_words {
    const char **texts;
    uint32_t count, capacity;
};

/* Where a word is, or where it would go. */
static const char **find_word(const struct sbp_lexer_words *words, const char *text, size_t length) {
    uint32_t mask = words->capacity - 1, at = (uint32_t)sbp_hash_bytes(text, length, 0) & mask;
    while (words->texts[at] && (strncmp(words->texts[at], text, length) != 0 || words->texts[at][length]))
        at = (at + 1) & mask;
    return &words->texts[at];
}

static void make_room(struct sbp_lexer_words *words, sbp_arena *arena) {
    enum { LEAST = 64 };
    const struct sbp_lexer_words old = *words;
    if (4 * old.count < 3 * old.capacity)
        return;
    words->capacity = old.capacity > 0 ? 2 * old.capacity : LEAST;
    words->texts = SBP_NEW_ARRAY(arena, const char *, words->capacity);
    for (uint32_t k = 0; k < old.capacity; k++)
        if (old.texts[k])
            *find_word(words, old.texts[k], strlen(old.texts[k])) = old.texts[k];
}

static const char *keep_word(sbp_lexer *lexer, const char *text, size_t length) {
    make_room(lexer->words, lexer->arena);
    const char **word = find_word(lexer->words, text, length);
    if (!*word) {
        *word = sbp_arena_strndup(lexer->arena, text, length);
        lexer->words->count++;
    }
    return *word;
}

/* ---- tokens ----------------------------------------------------------------------------------------- */

sbp_status sbp_lexer_init(sbp_lexer *lexer, sbp_arena *arena, sbp_diag *diag, const char *name,
                          const char *text, size_t length) {
    *lexer =
        (sbp_lexer){.arena = arena, .diag = diag, .name = name, .at = text, .end = text + length, .line = 1};
    lexer->words = SBP_NEW(arena, struct sbp_lexer_words);
    return sbp_lexer_next(lexer);
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_name_start(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_name(char c) {
    return is_name_start(c) || is_digit(c) || c == '.' || c == '$';
}

static int hex_value(char c) {
    if (is_digit(c))
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return -1;
}

static sbp_status lex_string(sbp_lexer *lexer) {
    sbp_text text;
    sbp_text_init(&text, lexer->arena);
    const char *at = lexer->at + 1;
    for (;;) {
        if (at >= lexer->end || *at == '\n' || *at == 0)
            return sbp_lexer_fail(lexer, "a string does not end");
        if (*at == '"')
            break;
        char c = *at++;
        if (c == '\\') {
            char e = at < lexer->end ? *at++ : 0;
            if (e == 'n')
                c = '\n';
            else if (e == 't')
                c = '\t';
            else if (e == '"' || e == '\\')
                c = e;
            else if (e == 'x' && lexer->end - at >= 2 && hex_value(at[0]) >= 0 && hex_value(at[1]) >= 0) {
                int byte = hex_value(at[0]) * 16 + hex_value(at[1]);
                if (byte == 0)
                    return sbp_lexer_fail(lexer, "a string holds a zero byte");
                c = (char)byte;
                at += 2;
            } else
                return sbp_lexer_fail(lexer, "unknown escape in a string");
        }
        sbp_text_add_n(&text, &c, 1);
    }
    lexer->at = at + 1;
    lexer->token = SBP_TOKEN_STRING;
    lexer->text = text.data;
    return SBP_OK;
}

/* [-]digits[.digits][e[+-]digits] */
static sbp_status lex_number(sbp_lexer *lexer) {
    const char *at = lexer->at;
    bool is_float = false;
    if (*at == '-')
        at++;
    while (at < lexer->end && is_digit(*at))
        at++;
    if (at < lexer->end && *at == '.') {
        is_float = true;
        at++;
        while (at < lexer->end && is_digit(*at))
            at++;
    }
    if (at < lexer->end && (*at == 'e' || *at == 'E')) {
        is_float = true;
        at++;
        if (at < lexer->end && (*at == '+' || *at == '-'))
            at++;
        if (at >= lexer->end || !is_digit(*at))
            return sbp_lexer_fail(lexer, "malformed number");
        while (at < lexer->end && is_digit(*at))
            at++;
    }
    size_t length = (size_t)(at - lexer->at);
    if (length > 60)
        return sbp_lexer_fail(lexer, "a number of %zu characters", length);
    char digits[64];
    memcpy(digits, lexer->at, length);
    digits[length] = 0;
    lexer->number = strtod(digits, NULL);
    if (!is_float) {
        errno = 0;
        lexer->integer = strtoll(digits, NULL, 10);
        if (errno != 0)
            return sbp_lexer_fail(lexer, "%s does not fit in 64 bits", digits);
    }
    lexer->token = is_float ? SBP_TOKEN_FLOAT : SBP_TOKEN_INT;
    lexer->text = "";
    lexer->at = at;
    return SBP_OK;
}

sbp_status sbp_lexer_next(sbp_lexer *lexer) {
    const char *at = lexer->at, *end = lexer->end;
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r' || *at == '#')) {
        if (*at == '#')
            while (at < end && *at != '\n')
                at++;
        else if (*at++ == '\n')
            lexer->line++;
    }
    lexer->at = at;
    if (at >= end) {
        lexer->token = SBP_TOKEN_END;
        lexer->text = "";
        return SBP_OK;
    }
    if (*at == '"')
        return lex_string(lexer);
    if (is_digit(*at) || (*at == '-' && at + 1 < end && is_digit(at[1])))
        return lex_number(lexer);
    if (is_name_start(*at)) {
        while (at < end && is_name(*at))
            at++;
        lexer->token = SBP_TOKEN_NAME;
    } else {
        if ((unsigned char)*at < 0x20 || (unsigned char)*at >= 0x7f)
            return sbp_lexer_fail(lexer, "unexpected byte 0x%02x", (unsigned char)*at);
        at++;
        lexer->token = SBP_TOKEN_PUNCT;
    }
    lexer->text = keep_word(lexer, lexer->at, (size_t)(at - lexer->at));
    lexer->at = at;
    return SBP_OK;
}

bool sbp_lexer_is(const sbp_lexer *lexer, const char *text) {
    return (lexer->token == SBP_TOKEN_NAME || lexer->token == SBP_TOKEN_PUNCT) &&
           strcmp(lexer->text, text) == 0;
}

sbp_status sbp_lexer_accept(sbp_lexer *lexer, const char *text, bool *accepted) {
    *accepted = sbp_lexer_is(lexer, text);
    return *accepted ? sbp_lexer_next(lexer) : SBP_OK;
}

static const char *token_text(const sbp_lexer *lexer) {
    switch (lexer->token) {
    case SBP_TOKEN_END:
        return "the end";
    case SBP_TOKEN_INT:
    case SBP_TOKEN_FLOAT:
        return "a number";
    default:
        return lexer->text;
    }
}

sbp_status sbp_lexer_expect(sbp_lexer *lexer, const char *text) {
    if (!sbp_lexer_is(lexer, text))
        return sbp_lexer_fail(lexer, "expected '%s', found '%.60s'", text, token_text(lexer));
    return sbp_lexer_next(lexer);
}

sbp_status sbp_lexer_name(sbp_lexer *lexer, const char **out) {
    if (lexer->token != SBP_TOKEN_NAME && lexer->token != SBP_TOKEN_STRING)
        return sbp_lexer_fail(lexer, "expected a name, found '%.60s'", token_text(lexer));
    *out = lexer->text;
    return sbp_lexer_next(lexer);
}

sbp_status sbp_lexer_int(sbp_lexer *lexer, int64_t *out) {
    if (lexer->token != SBP_TOKEN_INT)
        return sbp_lexer_fail(lexer, "expected an integer, found '%.60s'", token_text(lexer));
    *out = lexer->integer;
    return sbp_lexer_next(lexer);
}

sbp_status sbp_lexer_double(sbp_lexer *lexer, double *out) {
    bool negative = false;
    if (sbp_lexer_is(lexer, "-")) {
        negative = true;
        SBP_TRY(sbp_lexer_next(lexer));
        if (!sbp_lexer_is(lexer, "inf"))
            return sbp_lexer_fail(lexer, "expected a number after '-'");
    }
    if (sbp_lexer_is(lexer, "inf"))
        *out = negative ? -(double)INFINITY : (double)INFINITY;
    else if (sbp_lexer_is(lexer, "nan"))
        *out = (double)NAN;
    else if (lexer->token == SBP_TOKEN_INT || lexer->token == SBP_TOKEN_FLOAT)
        *out = lexer->number;
    else
        return sbp_lexer_fail(lexer, "expected a number, found '%.60s'", token_text(lexer));
    return sbp_lexer_next(lexer);
}

sbp_status sbp_lexer_dtype(sbp_lexer *lexer, sbp_dtype *out) {
    if (lexer->token != SBP_TOKEN_NAME || !sbp_dtype_from_name(lexer->text, strlen(lexer->text), out))
        return sbp_lexer_fail(lexer, "expected an element type, found '%.60s'", token_text(lexer));
    return sbp_lexer_next(lexer);
}

static bool symbol_from_name(const char *name, sbp_symbol *out) {
    for (int s = 1; s < SBP_SYMBOL_COUNT; s++)
        if (strcmp(name, sbp_symbol_name((sbp_symbol)s)) == 0) {
            *out = (sbp_symbol)s;
            return true;
        }
    return false;
}

sbp_status sbp_lexer_type(sbp_lexer *lexer, sbp_type *out) {
    memset(out, 0, sizeof *out);
    SBP_TRY(sbp_lexer_dtype(lexer, &out->dtype));
    SBP_TRY(sbp_lexer_expect(lexer, "["));
    while (!sbp_lexer_is(lexer, "]")) {
        if (out->rank > 0)
            SBP_TRY(sbp_lexer_expect(lexer, ","));
        if (out->rank == SBP_MAX_RANK)
            return sbp_lexer_fail(lexer, "more than %d dimensions", SBP_MAX_RANK);
        sbp_dim dim = {0};
        if (lexer->token == SBP_TOKEN_NAME && symbol_from_name(lexer->text, &dim.symbol)) {
            if (out->rank > 0)
                return sbp_lexer_fail(lexer, "a symbolic dimension that is not axis 0");
            SBP_TRY(sbp_lexer_next(lexer));
        } else {
            SBP_TRY(sbp_lexer_int(lexer, &dim.n));
            if (dim.n < 0 || dim.n > INT32_MAX)
                return sbp_lexer_fail(lexer, "dimension %lld out of range", (long long)dim.n);
        }
        out->dim[out->rank++] = dim;
    }
    if (!sbp_type_is_valid(out))
        return sbp_lexer_fail(lexer, "a type with too many elements");
    return sbp_lexer_next(lexer);
}

/* [factor*]symbol or a constant, joined by + ; a negative number joins by itself. */
sbp_status sbp_lexer_extent(sbp_lexer *lexer, sbp_extent *out) {
    memset(out, 0, sizeof *out);
    for (bool first = true;; first = false) {
        bool plus = false;
        if (!first) {
            SBP_TRY(sbp_lexer_accept(lexer, "+", &plus));
            if (!plus && !(lexer->token == SBP_TOKEN_INT && lexer->integer < 0))
                return SBP_OK;
        }
        int64_t factor = 1;
        sbp_symbol symbol = SBP_ONE;
        if (lexer->token == SBP_TOKEN_INT) {
            factor = lexer->integer;
            SBP_TRY(sbp_lexer_next(lexer));
            bool star = false;
            SBP_TRY(sbp_lexer_accept(lexer, "*", &star));
            if (star && (lexer->token != SBP_TOKEN_NAME || !symbol_from_name(lexer->text, &symbol)))
                return sbp_lexer_fail(lexer, "expected T, S, C or H after '*'");
            if (star)
                SBP_TRY(sbp_lexer_next(lexer));
        } else if (lexer->token == SBP_TOKEN_NAME && symbol_from_name(lexer->text, &symbol)) {
            SBP_TRY(sbp_lexer_next(lexer));
        } else {
            return sbp_lexer_fail(lexer, "expected an extent, found '%.60s'", token_text(lexer));
        }
        if (!sbp_add_i64(out->c[symbol], factor, &out->c[symbol]))
            return sbp_lexer_fail(lexer, "extent out of range");
    }
}
