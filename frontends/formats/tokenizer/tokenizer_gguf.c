/* tokenizer_gguf.c: the tokenizer of a GGUF file, written as tokenizer.json text.
 *
 * "gpt2": vocabulary and merges as they are; the pattern is the one that tokenizer.ggml.pre names, as the
 * models' own tokenizer.json files have it (llama.cpp's are adapted to its regex engine).
 * "llama": SentencePiece BPE, whose merges are recovered from the vocabulary. Gemma files have lost the
 * scores of some tokens; there the scores of the original are made again: 0 for user-defined tokens, then
  * falling with the id. "gemma4": the same with merges as they are.
 */
#include "frontends/formats/tokenizer/tokenizer_convert.h"

#include <string.h>

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TAIL "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CASED(suffix)                                                                                        \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+" suffix       \
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*" suffix
#define CASED_TAIL "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const char llama3_pattern[] = CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}" TAIL;
static const char qwen2_pattern[] = CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" TAIL;
static const char qwen35_pattern[] =
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "
                 "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char tekken_pattern[] = CASED("") "|\\p{N}" CASED_TAIL;
static const char gpt4o_pattern[] = CASED(CONTRACTIONS "?") "|\\p{N}{1,3}" CASED_TAIL;

/* Several, one after the other, each of what the ones before it left: with a line feed between them. */
static const char deepseek3_patterns[] =
    "\\p{N}{1,3}\n[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+\n"
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

enum { DIGITS = 1, IGNORE_MERGES = 2, ADD_BOS = 4, NFC = 8 };

/* tokenizer.ggml.pre. pattern NULL: GPT-2's, which ByteLevel has built in. */
static const struct {
    const char *name;
    const char *pattern;
    unsigned flags;
} pre_tokenizers[] = {
    {"gpt-2", NULL, 0},
    {"phi-2", NULL, 0},
    {"mpt", NULL, 0},
    {"olmo", NULL, 0},
    {"exaone4", NULL, 0},
    {"smollm", NULL, DIGITS},
    {"starcoder", NULL, DIGITS},
    {"refact", NULL, DIGITS},
    {"codeshell", NULL, DIGITS},
    {"exaone", NULL, DIGITS},
    {"minerva-7b", NULL, DIGITS},
    {"command-r", NULL, DIGITS | NFC},
    {"llama3", llama3_pattern, IGNORE_MERGES | ADD_BOS},
    {"llama-v3", llama3_pattern, IGNORE_MERGES | ADD_BOS},
    {"llama-bpe", llama3_pattern, IGNORE_MERGES | ADD_BOS},
    {"falcon3", llama3_pattern, IGNORE_MERGES | ADD_BOS},
    {"falcon-h1", llama3_pattern, IGNORE_MERGES | ADD_BOS},
    {"pixtral", llama3_pattern, IGNORE_MERGES | ADD_BOS},
    {"midm-2.0", llama3_pattern, IGNORE_MERGES | ADD_BOS},
    {"lfm2", llama3_pattern, IGNORE_MERGES | ADD_BOS},
    {"dbrx", llama3_pattern, 0},
    {"smaug-bpe", llama3_pattern, 0},
    {"glm4", llama3_pattern, 0},
    {"chatglm-bpe", llama3_pattern, 0},
    {"qwen2", qwen2_pattern, NFC},
    {"deepseek-r1-qwen", qwen2_pattern, NFC},
    {"megrez", qwen2_pattern, NFC},
    {"kormo", qwen2_pattern, NFC},
    {"f2llmv2", qwen2_pattern, NFC},
    {"stablelm2", qwen2_pattern, 0},
    {"qwen35", qwen35_pattern, NFC},
    {"tekken", tekken_pattern, IGNORE_MERGES | ADD_BOS},
    {"gpt-4o", gpt4o_pattern, 0},
    {"llama4", gpt4o_pattern, 0},
    {"kanana2", gpt4o_pattern, 0},
    {"deepseek-v3", deepseek3_patterns, 0},
    {"joyai-llm", deepseek3_patterns, 0},
};

typedef struct conversion {
    tok_conversion c;
    sbp_arena *arena;
    const sbp_gguf *gguf;
    const char *text;
} conversion;

/* ---- reading ------------------------------------------------------------------------------------------ */

static sbp_status read_types(conversion *g, int64_t count) {
    const sbp_gguf_value *given = NULL;
    tok_conversion *c = &g->c;
    SBP_TRY(sbp_gguf_get_array(c->diag, g->gguf, "tokenizer.ggml.token_type", SBP_GGUF_I64, SBP_JSON_OPTIONAL,
                               &given));
    if (given && given->count != count)
        return sbp_fail(c->diag, SBP_INPUT,
                        "%s: tokenizer.ggml.token_type has %lld items, expected %lld, one a token", c->path,
                        (long long)given->count, (long long)count);
    if (!given)
        return SBP_OK;
    int32_t *types = SBP_NEW_ARRAY(c->scratch, int32_t, count);
    for (int64_t id = 0; id < count; id++)
        types[id] = (int32_t)sbp_gguf_i64_at(given, id);
    c->types = types;
    return SBP_OK;
}

static sbp_status read_vocabulary(conversion *g, bool spaces_to_blocks) {
    const sbp_gguf_value *tokens;
    tok_conversion *c = &g->c;
    SBP_TRY(sbp_gguf_get_array(c->diag, g->gguf, "tokenizer.ggml.tokens", SBP_GGUF_STRING, SBP_JSON_REQUIRED,
                               &tokens));
    if (tokens->count > INT32_MAX / 2)
        return sbp_fail(c->diag, SBP_INPUT, "%s: %lld tokens are too many", c->path,
                        (long long)tokens->count);
    SBP_TRY(read_types(g, tokens->count));
    sbp_convert_start(c, tokens->count);
    for (int64_t id = 0; id < c->count; id++)
        SBP_TRY(sbp_convert_token(c, id, tokens->strings[id], spaces_to_blocks));
    static const char *const keys[] = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                                       "tokenizer.ggml.padding_token_id", "tokenizer.ggml.unknown_token_id"};
    for (int role = 0; role < 4; role++) {
        SBP_TRY(sbp_gguf_get_i64(c->diag, g->gguf, keys[role], SBP_JSON_OPTIONAL, &c->role_ids[role]));
        if (c->role_ids[role] >= c->count || c->role_ids[role] < 0)
            c->role_ids[role] = -1; /* files write 2^32 - 1 for none */
    }
    return SBP_OK;
}

/* What the file wants around a text. */
static sbp_status write_processor(conversion *g, bool add_bos) {
    bool add_eos = false;
    SBP_TRY(
        sbp_gguf_get_bool(g->c.diag, g->gguf, "tokenizer.ggml.add_bos_token", SBP_JSON_OPTIONAL, &add_bos));
    SBP_TRY(
        sbp_gguf_get_bool(g->c.diag, g->gguf, "tokenizer.ggml.add_eos_token", SBP_JSON_OPTIONAL, &add_eos));
    return sbp_convert_processor(&g->c, add_bos, add_eos);
}

/* Merges as the file lists them: "left right", where left may begin with a space. */
static sbp_status write_listed_merges(tok_conversion *c, const sbp_gguf_value *merges) {
    for (int64_t i = 0; i < merges->count; i++) {
        sbp_gguf_string m = merges->strings[i];
        const char *space = m.length > 1 ? memchr(m.data + 1, ' ', (size_t)m.length - 1) : NULL;
        if (!space)
            return sbp_fail(c->diag, SBP_INPUT,
                            "%s: merge %lld is '%s', expected two tokens with a space between them", c->path,
                            (long long)i, m.data);
        sbp_json_write_array(&c->w, NULL);
        sbp_json_write_bytes(&c->w, NULL, m.data, (size_t)(space - m.data));
        sbp_json_write_bytes(&c->w, NULL, space + 1, (size_t)(m.length - (space + 1 - m.data)));
        sbp_json_write_end(&c->w);
    }
    return SBP_OK;
}

/* ---- byte-level --------------------------------------------------------------------------------------- */

static sbp_status convert_byte_level(conversion *g) {
    tok_conversion *c = &g->c;
    const char *pre = NULL;
    SBP_TRY(sbp_gguf_get_string(c->diag, g->gguf, "tokenizer.ggml.pre", SBP_JSON_OPTIONAL, &pre));
    if (!pre || strcmp(pre, "default") == 0) {
        sbp_warn(c->diag,
                 "%s: tokenizer.ggml.pre is %s: GPT-2's pattern is used, which may not be the model's",
                 c->path, pre ? "'default'" : "missing");
        pre = "gpt-2";
    }
    int at = 0;
    while (at < SBP_COUNT(pre_tokenizers) && strcmp(pre_tokenizers[at].name, pre) != 0)
        at++;
    if (at == SBP_COUNT(pre_tokenizers))
        return sbp_fail(c->diag, SBP_INPUT,
                        "%s: the pre-tokenizer '%s' (tokenizer.ggml.pre) is not supported", c->path, pre);
    const char *pattern = pre_tokenizers[at].pattern;
    unsigned flags = pre_tokenizers[at].flags;
    const sbp_gguf_value *merges;
    SBP_TRY(read_vocabulary(g, false));
    SBP_TRY(sbp_gguf_get_array(c->diag, g->gguf, "tokenizer.ggml.merges", SBP_GGUF_STRING, SBP_JSON_REQUIRED,
                               &merges));

    sbp_convert_added(c);
    if (flags & NFC)
        sbp_json_write_raw(&c->w, "normalizer", "{\"type\":\"NFC\"}");
    else
        sbp_json_write_null(&c->w, "normalizer");
    sbp_json_write_object(&c->w, "pre_tokenizer");
    sbp_json_write_string(&c->w, "type", "Sequence");
    sbp_json_write_array(&c->w, "pretokenizers");
    if (flags & DIGITS)
        sbp_json_write_raw(&c->w, NULL, "{\"type\":\"Digits\",\"individual_digits\":true}");
    for (const char *at_pattern = pattern; at_pattern && *at_pattern;) {
        size_t length = strcspn(at_pattern, "\n");
        sbp_convert_split(c, sbp_arena_strndup(c->scratch, at_pattern, length));
        at_pattern += length + (at_pattern[length] == '\n');
    }
    sbp_json_write_object(&c->w, NULL);
    sbp_json_write_string(&c->w, "type", "ByteLevel");
    sbp_json_write_bool(&c->w, "add_prefix_space", false);
    sbp_json_write_bool(&c->w, "trim_offsets", true);
    sbp_json_write_bool(&c->w, "use_regex", !pattern);
    sbp_json_write_end(&c->w);
    sbp_json_write_end(&c->w);
    sbp_json_write_end(&c->w);
    SBP_TRY(write_processor(g, (flags & ADD_BOS) && c->role_ids[SBP_TOKEN_BOS] >= 0));
    sbp_convert_byte_bpe(c, flags & IGNORE_MERGES);
    sbp_convert_vocabulary(c);
    SBP_TRY(write_listed_merges(c, merges));
    sbp_convert_end(c);
    return SBP_OK;
}

/* ---- SentencePiece ------------------------------------------------------------------------------------- */

static sbp_status write_recovered_merges(conversion *g, bool by_position) {
    const sbp_gguf_value *given;
    tok_conversion *c = &g->c;
    if (by_position)
        return sbp_convert_merges(c, NULL);
    SBP_TRY(sbp_gguf_get_array(c->diag, g->gguf, "tokenizer.ggml.scores", SBP_GGUF_F64, SBP_JSON_REQUIRED,
                               &given));
    if (given->count != c->count)
        return sbp_fail(c->diag, SBP_INPUT,
                        "%s: tokenizer.ggml.scores has %lld items, expected %lld, one a token", c->path,
                        (long long)given->count, (long long)c->count);
    double *scores = SBP_NEW_ARRAY(c->scratch, double, c->count);
    for (int64_t id = 0; id < c->count; id++)
        scores[id] = sbp_gguf_double_at(given, id);
    return sbp_convert_merges(c, scores);
}

static sbp_status convert_sentencepiece(conversion *g) {
    tok_conversion *c = &g->c;
    const char *architecture = "";
    bool space_prefix = true;
    const sbp_gguf_value *merges = NULL;
    SBP_TRY(sbp_gguf_get_string(c->diag, g->gguf, "general.architecture", SBP_JSON_OPTIONAL, &architecture));
    bool gemma = strncmp(architecture, "gemma", 5) == 0;
    SBP_TRY(sbp_gguf_get_bool(c->diag, g->gguf, "tokenizer.ggml.add_space_prefix", SBP_JSON_OPTIONAL,
                              &space_prefix));
    SBP_TRY(sbp_gguf_get_array(c->diag, g->gguf, "tokenizer.ggml.merges", SBP_GGUF_STRING, SBP_JSON_OPTIONAL,
                               &merges));
    SBP_TRY(read_vocabulary(g, gemma));

    sbp_convert_added(c);
    static const char replace[] =
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"}";
    if (space_prefix) {
        sbp_json_write_object(&c->w, "normalizer");
        sbp_json_write_string(&c->w, "type", "Sequence");
        sbp_json_write_array(&c->w, "normalizers");
        sbp_json_write_raw(&c->w, NULL, "{\"type\":\"Prepend\",\"prepend\":\"\xe2\x96\x81\"}");
        sbp_json_write_raw(&c->w, NULL, replace);
        sbp_json_write_end(&c->w);
        sbp_json_write_end(&c->w);
    } else {
        sbp_json_write_raw(&c->w, "normalizer", replace);
    }
    sbp_json_write_null(&c->w, "pre_tokenizer");
    SBP_TRY(write_processor(g, c->role_ids[SBP_TOKEN_BOS] >= 0));
    sbp_convert_decoder(&c->w, space_prefix);
    sbp_convert_bpe(c, true);
    sbp_convert_vocabulary(c);
    if (merges)
        SBP_TRY(write_listed_merges(c, merges));
    else
        SBP_TRY(write_recovered_merges(g, gemma));
    sbp_convert_end(c);
    return SBP_OK;
}

static sbp_status convert(void *user) {
    conversion *g = user;
    const char *model;
    SBP_TRY(sbp_gguf_get_string(g->c.diag, g->gguf, "tokenizer.ggml.model", SBP_JSON_REQUIRED, &model));
    if (strcmp(model, "gpt2") == 0)
        return convert_byte_level(g);
    if (strcmp(model, "llama") == 0 || strcmp(model, "gemma4") == 0)
        return convert_sentencepiece(g);
    return sbp_fail(
        g->c.diag, SBP_INPUT,
        "%s: the tokenizer model '%s' (tokenizer.ggml.model) is not supported, only gpt2, llama and gemma4",
        g->c.path, model);
}

static sbp_status keep_text(void *user) {
    conversion *g = user;
    g->text = sbp_arena_strndup(g->arena, g->c.out.data, g->c.out.length);
    return SBP_OK;
}

sbp_status sbp_tokenizer_from_gguf(sbp_arena *arena, sbp_diag *diag, const sbp_gguf *gguf,
                                   const sbp_tokenizer **out) {
    conversion g = {.arena = arena,
                    .gguf = gguf,
                    .c = {.scratch = sbp_arena_create(), .diag = diag, .path = sbp_gguf_path(gguf)}};
    const char *path = g.c.path;
    if (!g.c.scratch)
        return sbp_fail(diag, SBP_MACHINE, "out of memory reading '%s'", path);
    sbp_status status = sbp_guard(g.c.scratch, diag, convert, &g);
    if (status == SBP_OK)
        status = sbp_guard(arena, diag, keep_text, &g);
    size_t length = g.c.out.length;
    sbp_arena_destroy(g.c.scratch);
    return status == SBP_OK ? sbp_tokenizer_build(arena, diag, path, g.text, length, NULL, out) : status;
}
