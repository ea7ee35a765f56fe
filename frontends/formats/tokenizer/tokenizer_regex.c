/* tokenizer_regex.c: regular expressions of Oniguruma (Ruby syntax, UTF-8) translated for PCRE2.
 *
 * The two agree on most of what tokenizers use. What differs is rewritten, what cannot be is refused:
 *  - \s \d \w \h \v and their complements mean other sets; \p{Han} is the script, not its extensions;
 *  - Unicode data are newer in Oniguruma: the ranges of unicode_delta.def are added;
 *  - ^ and $ match at lines (PCRE2_MULTILINE); (?m) is PCRE2's (?s); {,n} is an interval;
 *  - [a&&b] and nested classes mean something else in PCRE2, silently: refused.
 */
#include "frontends/formats/tokenizer/tokenizer_internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

typedef struct translation {
    sbp_diag *diag;
    const char *where;
    const char *pattern;
    size_t length, at;
    sbp_text *out;
} translation;

static const struct {
    const char *category;
    uint32_t first, last;
} delta[] = {
#define DELTA(category, first, last) {#category, first, last},
#include "frontends/formats/tokenizer/unicode_delta.def"
#undef DELTA
};

/* Items of a class, without brackets. The property comes last: a '-' after it is a literal for PCRE2. */
#define SPACE_ITEMS "\\x09-\\x0d\\x85\\p{Z}"
#define HEX_ITEMS "0-9A-Fa-f"

static sbp_status refuse(const translation *t, const char *what) {
    return sbp_fail(t->diag, SBP_INPUT,
                    "%s: the regular expression '%.*s' uses %s, which is not supported (at byte %zu)",
                    t->where, (int)(t->length > 300 ? 300 : t->length), t->pattern, what, t->at);
}

static char peek(const translation *t, size_t ahead) {
    return t->at + ahead < t->length ? t->pattern[t->at + ahead] : 0;
}

static bool looking_at(const translation *t, const char *text) {
    size_t n = strlen(text);
    return t->length - t->at >= n && memcmp(t->pattern + t->at, text, n) == 0;
}

/* Characters of a category ("L" takes all of "Lu", "Ll" ...) that PCRE2's data may lack. */
static void add_delta(sbp_text *out, const char *category, size_t length) {
    for (int i = 0; i < SBP_COUNT(delta); i++) {
        if (strncmp(delta[i].category, category, length) != 0 ||
            (length == 1 && strlen(delta[i].category) != 2))
            continue;
        sbp_text_add(out, "\\x{%x}-\\x{%x}", delta[i].first, delta[i].last);
    }
}

static void add_word_items(sbp_text *out, bool in_class) {
    if (!in_class) /* outside of classes Oniguruma asks its Latin-1 table, which takes these for word
                      characters */
        sbp_text_add(out, "\\xb2\\xb3\\xb9\\xbc-\\xbe");
    add_delta(out, "L", 1);
    add_delta(out, "M", 1);
    add_delta(out, "Nd", 2);
    sbp_text_add(out, "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}");
}

static bool is_category(const char *name, size_t length) {
    static const char *const names[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc",
                                        "Me", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps",
                                        "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So",
                                        "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Co", "Cs"};
    for (int i = 0; i < SBP_COUNT(names); i++)
        if (strlen(names[i]) == length && memcmp(names[i], name, length) == 0)
            return true;
    return false;
}

/* \p{name} or \P{name}; `at` is behind the p. */
static sbp_status translate_property(translation *t, bool negative, bool in_class) {
    const char *open = t->pattern + t->at;
    const char *close = peek(t, 0) == '{' ? memchr(open, '}', t->length - t->at) : NULL;
    if (!close)
        return refuse(t, "\\p without {name}");
    const char *name = open + 1;
    if (*name == '^') {
        negative = !negative;
        name++;
    }
    size_t length = (size_t)(close - name);
    for (size_t i = 0; i < length; i++)
        if (!isalpha((unsigned char)name[i]) && name[i] != '_')
            return refuse(t, "a Unicode property of that name");
    sbp_text items;
    sbp_text_init(&items, t->out->arena);
    bool alphabetic = length == 10 && memcmp(name, "Alphabetic", 10) == 0;
    bool category = is_category(name, length);
    if (category || (length == 3 && memcmp(name, "Han", 3) == 0))
        add_delta(&items, name, length);
    else if (alphabetic)
        add_delta(&items, "L", 1);
    /* A name that is no category is taken for a script; PCRE2 refuses what it does not know. */
    const char *kind = category || alphabetic ? "" : "sc:";
    bool alone = items.length == 0; /* no ranges to add */
    sbp_text_add(&items, "\\p{%s%.*s}", kind, (int)length, name);
    if (!negative) {
        if (in_class)
            sbp_text_add(t->out, "%s", items.data);
        else
            sbp_text_add(t->out, alone ? "%s" : "[%s]", items.data);
    } else if (in_class) {
        /* A complement with additions cannot be spelled inside a class; the additions are left out. */
        sbp_text_add(t->out, "\\P{%s%.*s}", kind, (int)length, name);
    } else {
        sbp_text_add(t->out, "[^%s]", items.data);
    }
    t->at = (size_t)(close - t->pattern) + 1;
    return SBP_OK;
}

/* A set given by class items, in or outside a class. */
static sbp_status translate_set(translation *t, bool negative, bool in_class, char letter) {
    sbp_text items;
    sbp_text_init(&items, t->out->arena);
    switch (letter) {
    case 's':
        sbp_text_add(&items, SPACE_ITEMS);
        break;
    case 'h':
        sbp_text_add(&items, HEX_ITEMS);
        break;
    case 'd':
        add_delta(&items, "Nd", 2);
        sbp_text_add(&items, "\\p{Nd}");
        break;
    default:
        add_word_items(&items, in_class);
    }
    if (!in_class)
        sbp_text_add(t->out, negative ? "[^%s]" : "[%s]", items.data);
    else if (!negative)
        sbp_text_add(t->out, "%s", items.data);
    else if (letter == 's') /* everything else, spelled out: the controls around the five and NEL, and all but
                               Z and Cc */
        sbp_text_add(t->out, "\\x00-\\x08\\x0e-\\x1f\\x7f-\\x84\\x86-\\x9f\\p{L}\\p{M}\\p{N}\\p{P}\\p{S}\\p{"
                             "Cf}\\p{Co}\\p{Cn}");
    else if (letter == 'd')
        sbp_text_add(t->out, "\\P{Nd}");
    else
        return refuse(t, "\\W or \\H in a class");
    return SBP_OK;
}

/* \xHH, \x{H...}, \uHHHH; `at` is behind the x or u. */
static sbp_status translate_code(translation *t, char letter) {
    size_t digits = 0, most = letter == 'u' ? 4 : 2, skip = 0;
    if (letter == 'x' && peek(t, 0) == '{') {
        skip = 1;
        most = 8;
    }
    uint32_t code = 0;
    while (digits < most && isxdigit((unsigned char)peek(t, skip + digits))) {
        char c = (char)tolower((unsigned char)peek(t, skip + digits));
        code = code * 16 + (uint32_t)(c <= '9' ? c - '0' : c - 'a' + 10);
        digits++;
    }
    if (digits == 0 || (skip && peek(t, 1 + digits) != '}') || (letter == 'u' && digits != 4) ||
        code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff) || (letter == 'x' && !skip && code >= 0x80))
        return refuse(t, "an escape for a code point that is malformed, or a raw byte");
    t->at += digits + 2 * skip;
    sbp_text_add(t->out, "\\x{%x}", code);
    return SBP_OK;
}

/* `at` is behind the backslash. */
static sbp_status translate_escape(translation *t, bool in_class) {
    char c = peek(t, 0);
    if (t->at >= t->length)
        return refuse(t, "a backslash at its end");
    t->at++;
    switch (c) {
    case 's':
    case 'd':
    case 'w':
    case 'h':
        return translate_set(t, false, in_class, c);
    case 'S':
    case 'D':
    case 'W':
    case 'H':
        return translate_set(t, true, in_class, (char)tolower((unsigned char)c));
    case 'p':
    case 'P':
        return translate_property(t, c == 'P', in_class);
    case 'x':
    case 'u':
        return translate_code(t, c);
    case 'v':
        sbp_text_add(t->out, "\\x0b");
        return SBP_OK;
    case 'n':
    case 'r':
    case 't':
    case 'f':
    case 'a':
    case 'e':
        sbp_text_add(t->out, "\\%c", c);
        return SBP_OK;
    case 'b':
    case 'B':
        if (in_class && c == 'b') {
            sbp_text_add(t->out, "\\x08");
            return SBP_OK;
        }
        if (in_class)
            break;
        {
            sbp_text word;
            sbp_text_init(&word, t->out->arena);
            add_word_items(&word, false);
            const char *w = word.data;
            sbp_text_add(t->out,
                         c == 'b' ? "(?:(?<=[%s])(?![%s])|(?<![%s])(?=[%s]))"
                                  : "(?:(?<=[%s])(?=[%s])|(?<![%s])(?![%s]))",
                         w, w, w, w);
        }
        return SBP_OK;
    case 'A':
    case 'z':
    case 'Z':
    case 'G':
    case 'R':
    case 'X':
    case 'N':
        if (in_class)
            break;
        sbp_text_add(t->out, "\\%c", c);
        return SBP_OK;
    default:
        if (isdigit((unsigned char)c) && c != '0' && !in_class && !isdigit((unsigned char)peek(t, 0))) {
            sbp_text_add(t->out, "\\%c", c); /* a back reference */
            return SBP_OK;
        }
        if (isalnum((unsigned char)c))
            break;
        if ((unsigned char)c < 0x80)
            sbp_text_add(t->out, "\\%c", c);
        else
            sbp_text_add_n(t->out, &c, 1); /* the first byte of a character that needs no escape */
        return SBP_OK;
    }
    t->at--;
    return refuse(t, "an escape of that letter");
}

/* [...]; `at` is behind the bracket. */
static sbp_status translate_class(translation *t) {
    sbp_text_add(t->out, "[");
    if (peek(t, 0) == '^') {
        sbp_text_add(t->out, "^");
        t->at++;
    }
    if (peek(t, 0) == ']')
        return refuse(t, "an empty class");
    while (t->at < t->length) {
        char c = t->pattern[t->at];
        if (c == ']') {
            t->at++;
            sbp_text_add(t->out, "]");
            return SBP_OK;
        }
        if (looking_at(t, "&&"))
            return refuse(t, "an intersection of classes (&&)");
        if (c == '[') {
            static const char *const posix[][2] = {{"[:space:]", SPACE_ITEMS},
                                                   {"[:xdigit:]", HEX_ITEMS},
                                                   {"[:cntrl:]", "\\x00-\\x1f\\x7f-\\x9f"},
                                                   {"[:ascii:]", "\\x00-\\x7f"}};
            int found = -1;
            for (int i = 0; i < SBP_COUNT(posix); i++)
                if (looking_at(t, posix[i][0]))
                    found = i;
            if (found < 0)
                return refuse(t, "a class inside a class");
            sbp_text_add(t->out, "%s", posix[found][1]);
            t->at += strlen(posix[found][0]);
            continue;
        }
        t->at++;
        if (c == '\\')
            SBP_TRY(translate_escape(t, true));
        else
            sbp_text_add_n(t->out, &c, 1);
    }
    return refuse(t, "a class without end");
}

/* (; `at` is behind it. */
static sbp_status translate_group(translation *t) {
    if (peek(t, 0) == '*')
        return refuse(t, "a verb (*...)");
    sbp_text_add(t->out, "(");
    if (peek(t, 0) != '?')
        return SBP_OK;
    static const char *const same[] = {"?:", "?=", "?!", "?>", "?<=", "?<!"};
    for (int i = 0; i < SBP_COUNT(same); i++)
        if (looking_at(t, same[i])) {
            sbp_text_add(t->out, "%s", same[i]);
            t->at += strlen(same[i]);
            return SBP_OK;
        }
    /* (?flags) binds otherwise before an alternative than in PCRE2, unless nothing precedes it. */
    bool first = t->at == 1;
    sbp_text_add(t->out, "?");
    t->at++;
    while (peek(t, 0) == 'i' || peek(t, 0) == 'm' || peek(t, 0) == 'x' || peek(t, 0) == '-') {
        sbp_text_add(t->out, "%c", peek(t, 0) == 'm' ? 's' : peek(t, 0));
        t->at++;
    }
    if (peek(t, 0) != ':' && !(peek(t, 0) == ')' && first))
        return refuse(t, "a group of that kind");
    sbp_text_add(t->out, "%c", peek(t, 0));
    t->at++;
    return SBP_OK;
}

/* { ; `at` is on it. */
static sbp_status translate_interval(translation *t) {
    size_t n = 1;
    bool low = false, comma = false, high = false;
    while (isdigit((unsigned char)peek(t, n))) {
        n++;
        low = true;
    }
    if (peek(t, n) == ',') {
        comma = true;
        n++;
        while (isdigit((unsigned char)peek(t, n))) {
            n++;
            high = true;
        }
    }
    if (peek(t, n) != '}' || (!low && !high)) { /* no interval: a literal */
        t->at++;
        sbp_text_add(t->out, "\\{");
        return SBP_OK;
    }
    n++;
    /* Behind an interval + is no possessive, but repeats it: {1,3}+ takes any number from 1 on. */
    int64_t least = low ? strtoll(t->pattern + t->at + 1, NULL, 10) : 0;
    if (peek(t, n) == '+' && comma && (least <= 1 || !high) &&
        (peek(t, n + 1) == 0 || !strchr("+?*{", peek(t, n + 1)))) {
        if (least <= 1)
            sbp_text_add(t->out, "%c", least == 1 ? '+' : '*');
        else
            sbp_text_add_n(t->out, t->pattern + t->at, n);
        t->at += n + 1;
        return SBP_OK;
    }
    if (peek(t, n) == '+' || (peek(t, n) == '?' && !comma))
        return refuse(t, "an interval followed by + or, without a comma, by ?");
    sbp_text_add(t->out, low ? "{" : "{0");
    sbp_text_add_n(t->out, t->pattern + t->at + 1, n - 1);
    t->at += n;
    return SBP_OK;
}

static sbp_status translate(translation *t) {
    while (t->at < t->length) {
        char c = t->pattern[t->at];
        if (c == '{') {
            SBP_TRY(translate_interval(t));
            continue;
        }
        t->at++;
        switch (c) {
        case '\\':
            SBP_TRY(translate_escape(t, false));
            break;
        case '[':
            SBP_TRY(translate_class(t));
            break;
        case '(':
            SBP_TRY(translate_group(t));
            break;
        default:
            sbp_text_add_n(t->out, &c, 1);
        }
    }
    return SBP_OK;
}

/* ---- compiling -------------------------------------------------------------------------------------- */

static void *take(size_t bytes, void *arena) {
    return sbp_arena_alloc(arena, bytes);
}

static void give(void *memory, void *arena) {
    (void)memory; /* the arena frees it */
    (void)arena;
}

sbp_status sbp_regex_compile(sbp_arena *arena, sbp_diag *diag, const char *where, const char *pattern,
                             size_t length, const pcre2_code **out) {
    sbp_text text;
    sbp_text_init(&text, arena);
    translation t = {.diag = diag, .where = where, .pattern = pattern, .length = length, .out = &text};
    SBP_TRY(translate(&t));
    pcre2_general_context *general = pcre2_general_context_create(take, give, arena);
    pcre2_compile_context *context = pcre2_compile_context_create(general);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    int error;
    PCRE2_SIZE at;
    *out = pcre2_compile((PCRE2_SPTR)text.data, text.length, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error,
                         &at, context);
    if (*out)
        return SBP_OK;
    PCRE2_UCHAR message[200];
    pcre2_get_error_message(error, message, sizeof message);
    return sbp_fail(diag, SBP_INPUT, "%s: the regular expression '%.*s' is not supported: %s", where,
                    (int)(length > 300 ? 300 : length), pattern, (const char *)message);
}

void sbp_work_init(tok_work *work, const sbp_tokenizer *t, sbp_arena *scratch, sbp_arena *matching,
                   sbp_diag *diag, bool offsets) {
    *work = (tok_work){
        .t = t, .arena = scratch, .diag = diag, .offsets = offsets, .track = offsets, .left = TOK_MOST_MADE};
    pcre2_general_context *general = pcre2_general_context_create(take, give, matching);
    work->match_data = pcre2_match_data_create(1, general);
    work->match_context = pcre2_match_context_create(general);
    pcre2_set_depth_limit(work->match_context, UINT32_MAX);
    pcre2_set_heap_limit(work->match_context, UINT32_MAX);
}

static sbp_status find_literal(const tok_pattern *p, const char *text, int64_t length, tok_match_sink sink,
                               void *user) {
    int64_t previous = 0;
    while (previous < length) {
        const char *hit =
            memmem(text + previous, (size_t)(length - previous), p->literal, (size_t)p->literal_length);
        if (!hit)
            break;
        int64_t begin = hit - text;
        if (begin != previous)
            SBP_TRY(sink(user, (tok_match){previous, begin, false}));
        previous = begin + p->literal_length;
        SBP_TRY(sink(user, (tok_match){begin, previous, true}));
    }
    return previous == length ? SBP_OK : sink(user, (tok_match){previous, length, false});
}

sbp_status sbp_find_matches(tok_work *work, const tok_pattern *p, const char *text, int64_t length,
                            tok_match_sink sink, void *user) {
    if (length == 0)
        return SBP_OK;
    if (!p->code)
        return find_literal(p, text, length, sink, user);
    /* Enough for any pattern that is linear in what is left of the text, while one that is exponential stops.
     */
    int64_t most = 1000000 + 100 * length;
    pcre2_set_match_limit(work->match_context, most > UINT32_MAX ? UINT32_MAX : (uint32_t)most);
    /* As rust-onig's find_iter: an empty match right behind the last match does not count. */
    int64_t previous = 0, from = 0, last_end = -1;
    while (from <= length) {
        int rc = pcre2_match(p->code, (PCRE2_SPTR)text, (PCRE2_SIZE)length, (PCRE2_SIZE)from,
                             PCRE2_NO_UTF_CHECK, work->match_data, work->match_context);
        if (rc == PCRE2_ERROR_NOMATCH)
            break;
        if (rc < 0) {
            PCRE2_UCHAR message[200];
            pcre2_get_error_message(rc, message, sizeof message);
            return sbp_fail(work->diag, SBP_INPUT,
                            "a regular expression of the tokenizer failed on a text of %lld bytes: %s",
                            (long long)length, (const char *)message);
        }
        const PCRE2_SIZE *found = pcre2_get_ovector_pointer(work->match_data);
        int64_t begin = (int64_t)found[0], end = (int64_t)found[1];
        if (begin == end && end == last_end) {
            uint32_t code;
            from += from < length ? sbp_utf8_get(text + from, &code) : 1;
            continue;
        }
        from = last_end = end;
        if (previous != begin)
            SBP_TRY(sink(user, (tok_match){previous, begin, false}));
        SBP_TRY(sink(user, (tok_match){begin, end, true}));
        previous = end;
    }
    return previous == length ? SBP_OK : sink(user, (tok_match){previous, length, false});
}
