/* tokenizer_parse.c: normalizer, pre_tokenizer, post_processor and decoder of tokenizer.json. Nested
 * sequences become flat lists. What is not known here is refused by name. */
#include "frontends/formats/files/protojson.h"
#include "frontends/formats/tokenizer/tokenizer_internal.h"

#include <stdio.h>
#include <string.h>

/* GPT-2's pattern, which Hugging Face's ByteLevel has built in. */
static const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

typedef struct parser {
    sbp_tokenizer *t;
    sbp_diag *diag;
    bool has_template;
} parser;

static sbp_status unsupported(const parser *p, const sbp_json *node, const char *what, const char *type) {
    return sbp_json_fail(p->diag, node, "the %s '%s' is not supported", what, type);
}

static sbp_status compile(const parser *p, const sbp_json *node, const char *pattern, size_t length,
                          tok_pattern *out) {
    char where[600];
    *out = (tok_pattern){0};
    return sbp_regex_compile(p->t->arena, p->diag, sbp_json_where(node, where, sizeof where), pattern, length,
                             &out->code);
}

static sbp_status compile_text(const parser *p, const sbp_json *node, const char *pattern, tok_pattern *out) {
    return compile(p, node, pattern, strlen(pattern), out);
}

static sbp_status literal(const parser *p, const sbp_json *node, const char *text, int64_t length,
                          tok_pattern *out) {
    if (length == 0)
        return sbp_json_fail(p->diag, node, "an empty pattern is not supported");
    *out = (tok_pattern){.literal = sbp_arena_strndup(p->t->arena, text, (size_t)length),
                         .literal_length = length};
    return SBP_OK;
}

/* "pattern": {"String": "x"} or {"Regex": "x"}. */
static sbp_status parse_pattern(const parser *p, const sbp_json *json, tok_pattern *out) {
    const sbp_json *pattern;
    SBP_TRY(sbp_json_get_object(p->diag, json, "pattern", SBP_JSON_REQUIRED, &pattern));
    const sbp_json *string = sbp_json_member(pattern, "String"), *regex = sbp_json_member(pattern, "Regex");
    const sbp_json *given = string ? string : regex;
    if (!given || pattern->count != 1 || given->kind != SBP_JSON_STRING)
        return sbp_json_fail(p->diag, pattern, "expected {\"String\": text} or {\"Regex\": text}");
    if (string)
        return literal(p, pattern, given->string, given->count, out);
    return compile(p, pattern, given->string, (size_t)given->count, out);
}

static sbp_status parse_text(const parser *p, const sbp_json *json, const char *key, const char **text,
                             int64_t *length) {
    const sbp_json *node = sbp_json_member(json, key);
    if (!node || node->kind != SBP_JSON_STRING)
        return sbp_json_fail(p->diag, json, "expected a string '%s'", key);
    *text = sbp_arena_strndup(p->t->arena, node->string, (size_t)node->count);
    *length = node->count;
    return SBP_OK;
}

/* A string of one character. */
static sbp_status parse_character(const parser *p, const sbp_json *json, const char *key, uint32_t *code) {
    const char *text;
    int64_t length;
    SBP_TRY(parse_text(p, json, key, &text, &length));
    if (length == 0 || sbp_utf8_get(text, code) != length)
        return sbp_json_fail(p->diag, json, "expected '%s' to be one character, found '%s'", key, text);
    return SBP_OK;
}

static sbp_status parse_type(const parser *p, const sbp_json *json, const char **type) {
    return sbp_json_get_string(p->diag, json, "type", SBP_JSON_REQUIRED, type);
}

/* Calls one(p, item) for the members of a sequence, depth bounded by the JSON parser. */
static sbp_status each(parser *p, const sbp_json *json, const char *key,
                       sbp_status (*one)(parser *, const sbp_json *)) {
    const sbp_json *list;
    SBP_TRY(sbp_json_get_array(p->diag, json, key, SBP_JSON_REQUIRED, &list));
    for (int64_t i = 0; i < list->count; i++)
        SBP_TRY(one(p, &list->items[i]));
    return SBP_OK;
}

/* ---- normalizers ------------------------------------------------------------------------------------- */

static sbp_status check_count(parser *p, const sbp_json *json, int32_t count, int most, const char *what) {
    return count < most ? SBP_OK
                        : sbp_json_fail(p->diag, json, "at most %d %s in a row are supported", most, what);
}

static sbp_status add_normalizer(parser *p, const sbp_json *json, tok_normalizer n) {
    SBP_TRY(check_count(p, json, p->t->normalizer_count, TOK_MOST_PARTS, "normalizers"));
    SBP_PUSH(p->t->arena, p->t->normalizers, p->t->normalizer_count, p->t->normalizer_capacity, n);
    return SBP_OK;
}

static sbp_status parse_bert_normalizer(parser *p, const sbp_json *json) {
    bool clean, han, lower, strip;
    SBP_TRY(sbp_json_get_bool(p->diag, json, "clean_text", SBP_JSON_REQUIRED, &clean));
    SBP_TRY(sbp_json_get_bool(p->diag, json, "handle_chinese_chars", SBP_JSON_REQUIRED, &han));
    SBP_TRY(sbp_json_get_bool(p->diag, json, "lowercase", SBP_JSON_REQUIRED, &lower));
    strip = lower; /* strip_accents null: as lowercase */
    SBP_TRY(sbp_json_get_bool(p->diag, json, "strip_accents", SBP_JSON_NULLABLE, &strip));
    const struct {
        bool wanted;
        tok_normalizer_kind kind;
    } steps[] = {{clean, TOK_CLEAN},
                 {han, TOK_SPACE_HAN},
                 {strip, TOK_NFD},
                 {strip, TOK_DROP_MN},
                 {lower, TOK_LOWERCASE}};
    for (int i = 0; i < SBP_COUNT(steps); i++)
        if (steps[i].wanted)
            SBP_TRY(add_normalizer(p, json, (tok_normalizer){.kind = steps[i].kind}));
    return SBP_OK;
}

static sbp_status parse_normalizer(parser *p, const sbp_json *json) {
    static const struct {
        const char *type;
        tok_normalizer_kind kind;
    } plain[] = {{"NFC", TOK_NFC},
                 {"NFD", TOK_NFD},
                 {"NFKC", TOK_NFKC},
                 {"NFKD", TOK_NFKD},
                 {"Lowercase", TOK_LOWERCASE},
                 {"ByteLevel", TOK_BYTES},
                 {"StripAccents", TOK_DROP_MARKS},
                 {"Nmt", TOK_NMT}};
    const char *type;
    SBP_TRY(parse_type(p, json, &type));
    if (strcmp(type, "Sequence") == 0)
        return each(p, json, "normalizers", parse_normalizer);
    if (strcmp(type, "BertNormalizer") == 0)
        return parse_bert_normalizer(p, json);
    tok_normalizer n = {0};
    if (strcmp(type, "Prepend") == 0) {
        n.kind = TOK_PREPEND;
        SBP_TRY(parse_text(p, json, "prepend", &n.text, &n.length));
    } else if (strcmp(type, "Replace") == 0) {
        n.kind = TOK_REPLACE;
        SBP_TRY(parse_pattern(p, json, &n.pattern));
        SBP_TRY(parse_text(p, json, "content", &n.text, &n.length));
    } else if (strcmp(type, "Strip") == 0) {
        n.kind = TOK_STRIP;
        SBP_TRY(sbp_json_get_bool(p->diag, json, "strip_left", SBP_JSON_REQUIRED, &n.left));
        SBP_TRY(sbp_json_get_bool(p->diag, json, "strip_right", SBP_JSON_REQUIRED, &n.right));
    } else if (strcmp(type, "Precompiled") == 0) {
        const sbp_json *map = sbp_json_member(json, "precompiled_charsmap");
        const uint8_t *bytes;
        int64_t length;
        n.kind = TOK_CHARSMAP;
        if (!map || map->kind != SBP_JSON_STRING)
            return sbp_json_fail(p->diag, json, "expected a string 'precompiled_charsmap'");
        SBP_TRY(sbp_proto_bytes(p->t->arena, p->diag, map, &bytes, &length));
        SBP_TRY(sbp_charsmap_parse(p->diag, map, bytes, length, &n.map));
    } else {
        int at = 0;
        while (at < SBP_COUNT(plain) && strcmp(plain[at].type, type) != 0)
            at++;
        if (at == SBP_COUNT(plain))
            return unsupported(p, json, "normalizer", type);
        n.kind = plain[at].kind;
    }
    return add_normalizer(p, json, n);
}

/* ---- pre-tokenizers ---------------------------------------------------------------------------------- */

static sbp_status parse_behavior(const parser *p, const sbp_json *json, tok_behavior *out) {
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                        "Contiguous"};
    const char *name;
    SBP_TRY(sbp_json_get_string(p->diag, json, "behavior", SBP_JSON_REQUIRED, &name));
    for (int i = 0; i < SBP_COUNT(names); i++)
        if (strcmp(names[i], name) == 0) {
            *out = (tok_behavior)i;
            return SBP_OK;
        }
    return unsupported(p, json, "behavior", name);
}

/* Shared by the pre-tokenizer and the decoder. */
static sbp_status parse_metaspace(const parser *p, const sbp_json *json, tok_prepend_scheme *scheme) {
    const char *name = "always";
    bool add_prefix_space = true;
    SBP_TRY(sbp_json_get_string(p->diag, json, "prepend_scheme", SBP_JSON_OPTIONAL, &name));
    SBP_TRY(sbp_json_get_bool(p->diag, json, "add_prefix_space", SBP_JSON_NULLABLE, &add_prefix_space));
    if (strcmp(name, "always") == 0)
        *scheme = TOK_ALWAYS;
    else if (strcmp(name, "first") == 0)
        *scheme = TOK_FIRST;
    else if (strcmp(name, "never") == 0)
        *scheme = TOK_NEVER;
    else
        return unsupported(p, json, "prepend_scheme", name);
    if (!add_prefix_space && *scheme != TOK_NEVER && sbp_json_member(json, "prepend_scheme"))
        return sbp_json_fail(p->diag, json, "add_prefix_space false contradicts prepend_scheme '%s'", name);
    if (!add_prefix_space)
        *scheme = TOK_NEVER;
    return SBP_OK;
}

/* Punctuation to Oniguruma, but not to the Punctuation pre-tokenizer, whose tables are those of Unicode 8;
 * and what only the latter takes for punctuation. */
#define NEWER_PUNCTUATION                                                                                    \
    "\\x{61d}\\x{9fd}\\x{a76}\\x{c77}\\x{c84}\\x{1b4e}-\\x{1b4f}\\x{1b7d}-\\x{1b7f}"                         \
    "\\x{2e43}-\\x{2e4f}\\x{2e52}-\\x{2e5d}\\x{10d6e}\\x{10ead}\\x{10f55}-\\x{10f59}"                        \
    "\\x{10f86}-\\x{10f89}\\x{113d4}-\\x{113d5}\\x{113d7}-\\x{113d8}\\x{1144b}-\\x{1144f}"                   \
    "\\x{1145a}-\\x{1145b}\\x{1145d}\\x{11660}-\\x{1166c}\\x{116b9}\\x{1183b}"                               \
    "\\x{11944}-\\x{11946}\\x{119e2}\\x{11a3f}-\\x{11a46}\\x{11a9a}-\\x{11a9c}"                              \
    "\\x{11a9e}-\\x{11aa2}\\x{11b00}-\\x{11b09}\\x{11be1}\\x{11c41}-\\x{11c45}"                              \
    "\\x{11c70}-\\x{11c71}\\x{11ef7}-\\x{11ef8}\\x{11f43}-\\x{11f4f}\\x{11fff}"                              \
    "\\x{12ff1}-\\x{12ff2}\\x{16d6d}-\\x{16d6f}\\x{16e97}-\\x{16e9a}\\x{16fe2}\\x{1e5ff}"                    \
    "\\x{1e95e}-\\x{1e95f}"
#define OLDER_PUNCTUATION "\\x{166d}\\x{111c9}"

static sbp_status compile_punctuation(const parser *p, const sbp_json *json, tok_pattern *out) {
    return compile_text(p, json, "(?![" NEWER_PUNCTUATION "])[!-/:-@\\[-`{-~\\p{P}" OLDER_PUNCTUATION "]",
                        out);
}

static sbp_status add_splitter(parser *p, const sbp_json *json, tok_splitter s) {
    SBP_TRY(check_count(p, json, p->t->splitter_count, TOK_MAX_SPLITTERS, "pre-tokenizers"));
    SBP_PUSH(p->t->arena, p->t->splitters, p->t->splitter_count, p->t->splitter_capacity, s);
    return SBP_OK;
}

/* White space goes, then every punctuation character stands alone. */
static sbp_status parse_bert_splitter(parser *p, const sbp_json *json) {
    tok_splitter spaces = {.kind = TOK_SPLIT, .behavior = TOK_REMOVED};
    tok_splitter marks = {.kind = TOK_SPLIT, .behavior = TOK_ISOLATED};
    SBP_TRY(compile_text(p, json, "\\s", &spaces.pattern));
    SBP_TRY(compile_punctuation(p, json, &marks.pattern));
    SBP_TRY(add_splitter(p, json, spaces));
    return add_splitter(p, json, marks);
}

static sbp_status parse_splitter(parser *p, const sbp_json *json) {
    const char *type;
    SBP_TRY(parse_type(p, json, &type));
    if (strcmp(type, "Sequence") == 0)
        return each(p, json, "pretokenizers", parse_splitter);
    if (strcmp(type, "BertPreTokenizer") == 0)
        return parse_bert_splitter(p, json);
    tok_splitter s = {.kind = TOK_SPLIT};
    bool flag = false;
    if (strcmp(type, "ByteLevel") == 0) {
        s.kind = TOK_BYTE_LEVEL;
        bool use_regex = true;
        SBP_TRY(sbp_json_get_bool(p->diag, json, "add_prefix_space", SBP_JSON_REQUIRED, &s.add_prefix_space));
        SBP_TRY(sbp_json_get_bool(p->diag, json, "use_regex", SBP_JSON_OPTIONAL, &use_regex));
        if (use_regex)
            SBP_TRY(compile_text(p, json, gpt2_pattern, &s.pattern));
    } else if (strcmp(type, "Split") == 0) {
        SBP_TRY(parse_pattern(p, json, &s.pattern));
        SBP_TRY(parse_behavior(p, json, &s.behavior));
        SBP_TRY(sbp_json_get_bool(p->diag, json, "invert", SBP_JSON_REQUIRED, &s.invert));
    } else if (strcmp(type, "Digits") == 0) {
        SBP_TRY(sbp_json_get_bool(p->diag, json, "individual_digits", SBP_JSON_REQUIRED, &flag));
        s.behavior = flag ? TOK_ISOLATED : TOK_CONTIGUOUS;
        /* The Rust standard library knows more of them than Oniguruma: those of Unicode 17. */
        SBP_TRY(compile_text(p, json, "[\\p{N}\\x{11de0}-\\x{11de9}\\x{16ff4}-\\x{16ff6}]", &s.pattern));
    } else if (strcmp(type, "Metaspace") == 0) {
        s.kind = TOK_METASPACE;
        s.split = true;
        uint32_t code;
        char bytes[4];
        SBP_TRY(parse_character(p, json, "replacement", &code));
        SBP_TRY(literal(p, json, bytes, sbp_utf8_put(bytes, code), &s.pattern));
        SBP_TRY(parse_metaspace(p, json, &s.scheme));
        SBP_TRY(sbp_json_get_bool(p->diag, json, "split", SBP_JSON_NULLABLE, &s.split));
        if (s.scheme == TOK_FIRST)
            p->t->aligned_until = p->t->splitter_count;
    } else if (strcmp(type, "Whitespace") == 0) {
        /* Keeps words and runs of neither; \w is that of the Rust crate, without the Latin-1 digits. */
        s.behavior = TOK_REMOVED;
        s.invert = true;
        SBP_TRY(compile_text(p, json,
                             "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}]+|"
                             "[^\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}\\s]+",
                             &s.pattern));
    } else if (strcmp(type, "WhitespaceSplit") == 0) {
        s.behavior = TOK_REMOVED;
        SBP_TRY(compile_text(p, json, "\\s", &s.pattern));
    } else if (strcmp(type, "Punctuation") == 0) {
        s.behavior = TOK_ISOLATED;
        if (sbp_json_member(json, "behavior"))
            SBP_TRY(parse_behavior(p, json, &s.behavior));
        SBP_TRY(compile_punctuation(p, json, &s.pattern));
    } else if (strcmp(type, "CharDelimiterSplit") == 0) {
        uint32_t code;
        char bytes[4];
        s.behavior = TOK_REMOVED;
        SBP_TRY(parse_character(p, json, "delimiter", &code));
        SBP_TRY(literal(p, json, bytes, sbp_utf8_put(bytes, code), &s.pattern));
    } else if (strcmp(type, "FixedLength") == 0) {
        int64_t length = 5;
        char pattern[40];
        SBP_TRY(sbp_json_get_i64(p->diag, json, "length", SBP_JSON_OPTIONAL, &length));
        if (length < 1 || length > 65535)
            return sbp_json_fail(p->diag, json, "length %lld is not in 1 .. 65535", (long long)length);
        snprintf(pattern, sizeof pattern, "(?m:.{1,%d})", (int)length);
        s.behavior = TOK_ISOLATED;
        SBP_TRY(compile_text(p, json, pattern, &s.pattern));
    } else {
        return unsupported(p, json, "pre_tokenizer", type);
    }
    return add_splitter(p, json, s);
}

/* ---- post-processors --------------------------------------------------------------------------------- */

static sbp_status add_template_ids(parser *p, const sbp_json *tokens, const sbp_json *piece, bool after) {
    const char *name;
    const sbp_json *entry, *ids;
    SBP_TRY(sbp_json_get_string(p->diag, piece, "id", SBP_JSON_REQUIRED, &name));
    SBP_TRY(sbp_json_get_object(p->diag, tokens, name, SBP_JSON_REQUIRED, &entry));
    SBP_TRY(sbp_json_get_array(p->diag, entry, "ids", SBP_JSON_REQUIRED, &ids));
    for (int64_t i = 0; i < ids->count; i++) {
        int64_t id;
        SBP_TRY(sbp_json_as_i64(p->diag, &ids->items[i], &id));
        if (id < 0 || id > INT32_MAX)
            return sbp_json_fail(p->diag, &ids->items[i], "the id %lld is out of range", (long long)id);
        SBP_TRY(check_count(p, &ids->items[i], p->t->before_count + p->t->after_count, TOK_MOST_SPECIALS,
                            "tokens that are added to each text"));
        if (after)
            SBP_PUSH(p->t->arena, p->t->after, p->t->after_count, p->t->after_capacity, (int32_t)id);
        else
            SBP_PUSH(p->t->arena, p->t->before, p->t->before_count, p->t->before_capacity, (int32_t)id);
    }
    return SBP_OK;
}

static sbp_status parse_template(parser *p, const sbp_json *json) {
    const sbp_json *single, *tokens, *piece;
    if (p->has_template)
        return sbp_json_fail(p->diag, json, "a second TemplateProcessing is not supported");
    p->has_template = true;
    SBP_TRY(sbp_json_get_array(p->diag, json, "single", SBP_JSON_REQUIRED, &single));
    SBP_TRY(sbp_json_get_object(p->diag, json, "special_tokens", SBP_JSON_REQUIRED, &tokens));
    int sequences = 0;
    for (int64_t i = 0; i < single->count; i++) {
        const sbp_json *item = &single->items[i];
        if ((piece = sbp_json_member(item, "SpecialToken"))) {
            SBP_TRY(add_template_ids(p, tokens, piece, sequences > 0));
        } else if ((piece = sbp_json_member(item, "Sequence"))) {
            const char *id;
            SBP_TRY(sbp_json_get_string(p->diag, piece, "id", SBP_JSON_REQUIRED, &id));
            if (strcmp(id, "A") != 0 || ++sequences > 1)
                return sbp_json_fail(p->diag, piece, "a template for one text must have the sequence A once");
        } else {
            return sbp_json_fail(p->diag, item, "expected a SpecialToken or a Sequence");
        }
    }
    if (sequences != 1)
        return sbp_json_fail(p->diag, single, "a template for one text must have the sequence A once");
    return SBP_OK;
}

/* BertProcessing, RobertaProcessing: "cls" before and "sep" behind, each [token, id]. */
static sbp_status parse_pair_processor(parser *p, const sbp_json *json) {
    static const char *const keys[] = {"cls", "sep"};
    int64_t ids[2];
    if (p->has_template)
        return sbp_json_fail(p->diag, json, "a second post-processor that adds tokens is not supported");
    p->has_template = true;
    for (int i = 0; i < 2; i++) {
        const sbp_json *pair;
        SBP_TRY(sbp_json_get_array(p->diag, json, keys[i], SBP_JSON_REQUIRED, &pair));
        if (pair->count != 2)
            return sbp_json_fail(p->diag, pair, "expected a token and its id");
        SBP_TRY(sbp_json_as_i64(p->diag, &pair->items[1], &ids[i]));
        if (ids[i] < 0 || ids[i] > INT32_MAX)
            return sbp_json_fail(p->diag, pair, "the id %lld is out of range", (long long)ids[i]);
    }
    SBP_PUSH(p->t->arena, p->t->before, p->t->before_count, p->t->before_capacity, (int32_t)ids[0]);
    SBP_PUSH(p->t->arena, p->t->after, p->t->after_count, p->t->after_capacity, (int32_t)ids[1]);
    return SBP_OK;
}

static sbp_status parse_processor(parser *p, const sbp_json *json) {
    const char *type;
    SBP_TRY(parse_type(p, json, &type));
    if (strcmp(type, "Sequence") == 0)
        return each(p, json, "processors", parse_processor);
    if (strcmp(type, "TemplateProcessing") == 0)
        return parse_template(p, json);
    if (strcmp(type, "BertProcessing") == 0)
        return parse_pair_processor(p, json);
    if (strcmp(type, "RobertaProcessing") == 0)
        SBP_TRY(parse_pair_processor(p, json)); /* and trims, as the next */
    else if (strcmp(type, "ByteLevel") != 0)
        return unsupported(p, json, "post_processor", type);
    bool trims = false;
    tok_trim trim = {0};
    SBP_TRY(sbp_json_get_bool(p->diag, json, "trim_offsets", SBP_JSON_REQUIRED, &trims));
    SBP_TRY(sbp_json_get_bool(p->diag, json, "add_prefix_space", SBP_JSON_REQUIRED, &trim.add_prefix_space));
    SBP_TRY(check_count(p, json, p->t->trim_count, TOK_MOST_PARTS, "post-processors"));
    if (trims)
        SBP_PUSH(p->t->arena, p->t->trims, p->t->trim_count, p->t->trim_capacity, trim);
    return SBP_OK;
}

/* ---- decoders ---------------------------------------------------------------------------------------- */

static sbp_status parse_decoder(parser *p, const sbp_json *json) {
    const char *type;
    SBP_TRY(parse_type(p, json, &type));
    if (strcmp(type, "Sequence") == 0)
        return each(p, json, "decoders", parse_decoder);
    tok_decoder d = {0};
    if (strcmp(type, "ByteLevel") == 0) {
        d.kind = TOK_DECODE_BYTE_LEVEL;
    } else if (strcmp(type, "Replace") == 0) {
        d.kind = TOK_DECODE_REPLACE;
        SBP_TRY(parse_pattern(p, json, &d.pattern));
        SBP_TRY(parse_text(p, json, "content", &d.text, &d.length));
    } else if (strcmp(type, "ByteFallback") == 0) {
        d.kind = TOK_DECODE_BYTE_FALLBACK;
    } else if (strcmp(type, "Fuse") == 0) {
        d.kind = TOK_DECODE_FUSE;
    } else if (strcmp(type, "Strip") == 0) {
        d.kind = TOK_DECODE_STRIP;
        SBP_TRY(parse_character(p, json, "content", &d.code));
        SBP_TRY(sbp_json_get_i64(p->diag, json, "start", SBP_JSON_REQUIRED, &d.start));
        SBP_TRY(sbp_json_get_i64(p->diag, json, "stop", SBP_JSON_REQUIRED, &d.stop));
    } else if (strcmp(type, "Metaspace") == 0) {
        tok_prepend_scheme scheme;
        d.kind = TOK_DECODE_METASPACE;
        SBP_TRY(parse_character(p, json, "replacement", &d.code));
        SBP_TRY(parse_metaspace(p, json, &scheme));
        d.keep_first = scheme == TOK_NEVER;
    } else if (strcmp(type, "WordPiece") == 0) {
        d.kind = TOK_DECODE_WORDPIECE;
        SBP_TRY(parse_text(p, json, "prefix", &d.text, &d.length));
        SBP_TRY(sbp_json_get_bool(p->diag, json, "cleanup", SBP_JSON_REQUIRED, &d.cleanup));
    } else if (strcmp(type, "BPEDecoder") == 0) {
        d.kind = TOK_DECODE_SUFFIX;
        SBP_TRY(parse_text(p, json, "suffix", &d.text, &d.length));
    } else {
        return unsupported(p, json, "decoder", type);
    }
    SBP_TRY(check_count(p, json, p->t->decoder_count, TOK_MOST_PARTS, "decoders"));
    SBP_PUSH(p->t->arena, p->t->decoders, p->t->decoder_count, p->t->decoder_capacity, d);
    return SBP_OK;
}

/* ---- all of them -------------------------------------------------------------------------------------- */

sbp_status sbp_tokenizer_parse_components(sbp_tokenizer *t, sbp_diag *diag, const sbp_json *root) {
    parser p = {.t = t, .diag = diag};
    const struct {
        const char *key;
        sbp_status (*parse)(parser *, const sbp_json *);
    } parts[] = {{"normalizer", parse_normalizer},
                 {"pre_tokenizer", parse_splitter},
                 {"post_processor", parse_processor},
                 {"decoder", parse_decoder}};
    for (int i = 0; i < SBP_COUNT(parts); i++) {
        const sbp_json *json = NULL;
        SBP_TRY(sbp_json_get_object(diag, root, parts[i].key, SBP_JSON_NULLABLE, &json));
        if (json)
            SBP_TRY(parts[i].parse(&p, json));
    }
    const sbp_json *decoder = sbp_json_member(root, "decoder");
    t->has_decoder = decoder && decoder->kind != SBP_JSON_NULL;
    static const char *const unused[] = {"truncation", "padding"};
    for (int i = 0; i < SBP_COUNT(unused); i++) {
        const sbp_json *json = sbp_json_member(root, unused[i]);
        if (json && json->kind != SBP_JSON_NULL)
            sbp_note(diag, "%s: '%s' is not applied: lengths are up to the training options", t->file,
                     unused[i]);
    }
    return SBP_OK;
}
