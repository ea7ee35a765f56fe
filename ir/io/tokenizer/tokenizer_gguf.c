/* tokenizer_gguf.c: the tokenizer of a GGUF file, written as tokenizer.json text.
 *
 * "gpt2": vocabulary and merges as they are; the pattern is the one that tokenizer.ggml.pre names, as the
 * models' own tokenizer.json files have it (llama.cpp's are adapted to its regex engine).
 * "llama": SentencePiece BPE. The merges are recovered from the vocabulary as transformers does: every way
 * to cut a token into two tokens, best score first. Gemma files have lost the scores of some tokens;
 * there the scores of the original are made again: 0 for user-defined tokens, then falling with the id.
 */
#include "ir/io/tokenizer/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_TOKEN_BYTES = 4096, TYPE_NORMAL = 1, TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_USER = 4 };

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
    {"lfm2", llama3_pattern, IGNORE_MERGES | ADD_BOS},
    {"dbrx", llama3_pattern, 0},
    {"smaug-bpe", llama3_pattern, 0},
    {"glm4", llama3_pattern, 0},
    {"chatglm-bpe", llama3_pattern, 0},
    {"qwen2", qwen2_pattern, NFC},
    {"deepseek-r1-qwen", qwen2_pattern, NFC},
    {"megrez", qwen2_pattern, NFC},
    {"stablelm2", qwen2_pattern, 0},
    {"qwen35", qwen35_pattern, NFC},
    {"tekken", tekken_pattern, IGNORE_MERGES | ADD_BOS},
    {"gpt-4o", gpt4o_pattern, 0},
    {"llama4", gpt4o_pattern, 0},
};

typedef struct conversion {
    sbp_arena *arena, *scratch;
    sbp_diag *diag;
    const sbp_gguf *gguf;
    const char *path;
    sbp_gguf_string *tokens; /* respelled */
    int64_t count;
    const sbp_gguf_value *types; /* NULL: all normal */
    sbp_map ids;
    int64_t role_ids[4]; /* -1: none */
    sbp_text out;
    const char *text;
} conversion;

/* ---- reading ------------------------------------------------------------------------------------------ */

static sbp_status read_token(conversion *c, int64_t id, sbp_gguf_string given, bool spaces_to_blocks) {
    sbp_gguf_string token = given;
    if (given.length == 0) {
        token.data =
            sbp_arena_printf(c->scratch, "[EMPTY_%lld]", (long long)id); /* llama.cpp's name for it */
        token.length = (int64_t)strlen(token.data);
    }
    if (token.length > MAX_TOKEN_BYTES || strlen(token.data) != (size_t)token.length)
        return sbp_fail(c->diag, SBP_INPUT,
                        "%s: token %lld has %lld bytes or contains a NUL character; at most %d are expected",
                        c->path, (long long)id, (long long)token.length, MAX_TOKEN_BYTES);
    for (int64_t at = 0; at < token.length;) {
        int skip, size = sbp_utf8_check(token.data + at, token.length - at, &skip);
        if (size == 0)
            return sbp_fail(c->diag, SBP_INPUT, "%s: token %lld is not UTF-8", c->path, (long long)id);
        at += size;
    }
    if (spaces_to_blocks && token.length > 0 && strspn(token.data, " ") == (size_t)token.length) {
        sbp_text blocks;
        sbp_text_init(&blocks, c->scratch);
        for (int64_t i = 0; i < token.length; i++)
            sbp_text_add(&blocks, "\xe2\x96\x81");
        token = (sbp_gguf_string){blocks.data, (int64_t)blocks.length};
    }
    int32_t before = sbp_map_get(&c->ids, token.data);
    if (before >= 0)
        return sbp_fail(c->diag, SBP_INPUT, "%s: the ids %d and %lld have the same token '%s'", c->path,
                        before, (long long)id, token.data);
    sbp_map_set(&c->ids, token.data, (int32_t)id);
    c->tokens[id] = token;
    return SBP_OK;
}

static sbp_status read_vocabulary(conversion *c, bool spaces_to_blocks) {
    const sbp_gguf_value *tokens;
    SBP_TRY(sbp_gguf_get_array(c->diag, c->gguf, "tokenizer.ggml.tokens", SBP_GGUF_STRING, SBP_JSON_REQUIRED,
                               &tokens));
    SBP_TRY(sbp_gguf_get_array(c->diag, c->gguf, "tokenizer.ggml.token_type", SBP_GGUF_I64, SBP_JSON_OPTIONAL,
                               &c->types));
    if (tokens->count > INT32_MAX / 2)
        return sbp_fail(c->diag, SBP_INPUT, "%s: %lld tokens are too many", c->path,
                        (long long)tokens->count);
    if (c->types && c->types->count != tokens->count)
        return sbp_fail(c->diag, SBP_INPUT,
                        "%s: tokenizer.ggml.token_type has %lld items, expected %lld, one a token", c->path,
                        (long long)c->types->count, (long long)tokens->count);
    c->count = tokens->count;
    c->tokens = SBP_NEW_ARRAY(c->scratch, sbp_gguf_string, c->count);
    for (int64_t id = 0; id < c->count; id++)
        SBP_TRY(read_token(c, id, tokens->strings[id], spaces_to_blocks));
    static const char *const keys[] = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                                       "tokenizer.ggml.padding_token_id", "tokenizer.ggml.unknown_token_id"};
    for (int role = 0; role < 4; role++) {
        c->role_ids[role] = -1;
        SBP_TRY(sbp_gguf_get_i64(c->diag, c->gguf, keys[role], SBP_JSON_OPTIONAL, &c->role_ids[role]));
        if (c->role_ids[role] >= c->count || c->role_ids[role] < 0)
            c->role_ids[role] = -1; /* files write 2^32 - 1 for none */
    }
    return SBP_OK;
}

/* ---- writing ------------------------------------------------------------------------------------------ */

static void print(conversion *c, const char *text) {
    sbp_text_add_n(&c->out, text, strlen(text));
}

static void print_string(conversion *c, const char *text, int64_t length) {
    sbp_json_add_string(&c->out, text, (size_t)length);
}

static void print_token(conversion *c, int64_t id) {
    print_string(c, c->tokens[id].data, c->tokens[id].length);
}

static void print_added(conversion *c) {
    bool any = false;
    print(c, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[");
    for (int64_t id = 0; c->types && id < c->count; id++) {
        int64_t type = sbp_gguf_i64_at(c->types, id);
        if (type != TYPE_UNKNOWN && type != TYPE_CONTROL && type != TYPE_USER)
            continue;
        sbp_text_add(&c->out, "%s{\"id\":%lld,\"content\":", any ? "," : "", (long long)id);
        print_token(c, id);
        print(c,
              ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":");
        print(c, type == TYPE_USER ? "false}" : "true}");
        any = true;
    }
    print(c, any ? "," TOK_NAMED_HEAD : TOK_NAMED_HEAD);
    any = false;
    for (int role = 0; role < 4; role++) {
        if (c->role_ids[role] < 0)
            continue;
        sbp_text_add(&c->out, "%s\"%s\":", any ? "," : "", sbp_token_role_name((sbp_token_role)role));
        print_token(c, c->role_ids[role]);
        any = true;
    }
    print(c, "}}]");
}

static void print_template_token(conversion *c, int64_t id) {
    print(c, "{\"SpecialToken\":{\"id\":");
    print_token(c, id);
    print(c, ",\"type_id\":0}}");
}

/* A template that puts bos before and eos behind, as the file wants it. */
static sbp_status print_processor(conversion *c, bool add_bos) {
    bool add_eos = false;
    SBP_TRY(sbp_gguf_get_bool(c->diag, c->gguf, "tokenizer.ggml.add_bos_token", SBP_JSON_OPTIONAL, &add_bos));
    SBP_TRY(sbp_gguf_get_bool(c->diag, c->gguf, "tokenizer.ggml.add_eos_token", SBP_JSON_OPTIONAL, &add_eos));
    int64_t bos = c->role_ids[SBP_TOKEN_BOS], eos = c->role_ids[SBP_TOKEN_EOS];
    if ((add_bos && bos < 0) || (add_eos && eos < 0))
        return sbp_fail(c->diag, SBP_INPUT,
                        "%s: a %s token is to be added, but tokenizer.ggml.%s_token_id names none", c->path,
                        add_bos && bos < 0 ? "bos" : "eos", add_bos && bos < 0 ? "bos" : "eos");
    print(c, ",\"post_processor\":");
    if (!add_bos && !add_eos) {
        print(c, "null");
        return SBP_OK;
    }
    print(c, "{\"type\":\"TemplateProcessing\"");
    for (int pair = 0; pair < 2; pair++) {
        print(c, pair ? ",\"pair\":[" : ",\"single\":[");
        for (int k = 0; k <= pair; k++) {
            print(c, k ? "," : "");
            if (add_bos) {
                print_template_token(c, bos);
                print(c, ",");
            }
            sbp_text_add(&c->out, "{\"Sequence\":{\"id\":\"%s\",\"type_id\":%d}}", k ? "B" : "A", k);
            if (add_eos) {
                print(c, ",");
                print_template_token(c, eos);
            }
        }
        print(c, "]");
    }
    print(c, ",\"special_tokens\":{");
    for (int role = SBP_TOKEN_BOS, any = 0; role <= SBP_TOKEN_EOS; role++) {
        if (!(role == SBP_TOKEN_BOS ? add_bos : add_eos) || (any && bos == eos))
            continue;
        print(c, any ? "," : "");
        print_token(c, c->role_ids[role]);
        print(c, ":{\"id\":");
        print_token(c, c->role_ids[role]);
        sbp_text_add(&c->out, ",\"ids\":[%lld],\"tokens\":[", (long long)c->role_ids[role]);
        print_token(c, c->role_ids[role]);
        print(c, "]}");
        any = 1;
    }
    print(c, "}}");
    return SBP_OK;
}

static void print_vocabulary(conversion *c) {
    print(c, ",\"vocab\":{");
    for (int64_t id = 0; id < c->count; id++) {
        print(c, id ? "," : "");
        print_token(c, id);
        sbp_text_add(&c->out, ":%lld", (long long)id);
    }
    print(c, "},\"merges\":[");
}

/* Merges as the file lists them: "left right", where left may begin with a space. */
static sbp_status print_listed_merges(conversion *c, const sbp_gguf_value *merges) {
    for (int64_t i = 0; i < merges->count; i++) {
        sbp_gguf_string m = merges->strings[i];
        const char *space = m.length > 1 ? memchr(m.data + 1, ' ', (size_t)m.length - 1) : NULL;
        if (!space)
            return sbp_fail(c->diag, SBP_INPUT,
                            "%s: merge %lld is '%s', expected two tokens with a space between them", c->path,
                            (long long)i, m.data);
        print(c, i ? ",[" : "[");
        print_string(c, m.data, space - m.data);
        print(c, ",");
        print_string(c, space + 1, m.length - (space + 1 - m.data));
        print(c, "]");
    }
    return SBP_OK;
}

/* ---- byte-level --------------------------------------------------------------------------------------- */

static sbp_status convert_byte_level(conversion *c) {
    const char *pre = NULL;
    SBP_TRY(sbp_gguf_get_string(c->diag, c->gguf, "tokenizer.ggml.pre", SBP_JSON_OPTIONAL, &pre));
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
    SBP_TRY(read_vocabulary(c, false));
    SBP_TRY(sbp_gguf_get_array(c->diag, c->gguf, "tokenizer.ggml.merges", SBP_GGUF_STRING, SBP_JSON_REQUIRED,
                               &merges));

    print_added(c);
    print(c, flags & NFC ? ",\"normalizer\":{\"type\":\"NFC\"}" : ",\"normalizer\":null");
    print(c, ",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[");
    if (flags & DIGITS)
        print(c, "{\"type\":\"Digits\",\"individual_digits\":true},");
    if (pattern) {
        print(c, "{\"type\":\"Split\",\"pattern\":{\"Regex\":");
        print_string(c, pattern, (int64_t)strlen(pattern));
        print(c, "},\"behavior\":\"Isolated\",\"invert\":false},");
    }
    sbp_text_add(
        &c->out,
        "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":%s}]}",
        pattern ? "false" : "true");
    SBP_TRY(print_processor(c, (flags & ADD_BOS) && c->role_ids[SBP_TOKEN_BOS] >= 0));
    print(c, ",\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_"
             "regex\":true}");
    sbp_text_add(
        &c->out,
        ",\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,"
        "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":%s",
        flags & IGNORE_MERGES ? "true" : "false");
    print_vocabulary(c);
    SBP_TRY(print_listed_merges(c, merges));
    print(c, "]}}");
    return SBP_OK;
}

/* ---- SentencePiece ------------------------------------------------------------------------------------- */

typedef struct cut {
    double score;
    int32_t left, right;
    int32_t left_chars, right_chars;
    int32_t order;
} cut;

static int by_ids(const void *a, const void *b) {
    const cut *x = a, *y = b;
    return x->left != y->left ? (x->left > y->left) - (x->left < y->left)
                              : (x->right > y->right) - (x->right < y->right);
}

/* Best score first; of equal ones the longer left part, then the longer right part, then as found. */
static int by_score(const void *a, const void *b) {
    const cut *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    if (x->left_chars != y->left_chars)
        return x->left_chars > y->left_chars ? -1 : 1;
    if (x->right_chars != y->right_chars)
        return x->right_chars > y->right_chars ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

typedef struct cuts {
    cut *list;
    int32_t count, capacity;
} cuts;

static void cut_token(conversion *c, int64_t id, double score, cuts *out) {
    sbp_gguf_string token = c->tokens[id];
    char left[MAX_TOKEN_BYTES + 1];
    int32_t first = out->count, chars = 0, seen = 0;
    uint32_t code;
    for (int64_t at = 0; at < token.length; chars++)
        at += sbp_utf8_get(token.data + at, &code);
    for (int64_t at = 0; at < token.length;) {
        int size = sbp_utf8_get(token.data + at, &code);
        memcpy(left + at, token.data + at, (size_t)size);
        at += size;
        left[at] = 0;
        seen++;
        if (at == token.length)
            break;
        int32_t a = sbp_map_get(&c->ids, left), b = a < 0 ? -1 : sbp_map_get(&c->ids, token.data + at);
        if (b >= 0) {
            cut found = {
                .score = score, .left = a, .right = b, .left_chars = seen, .right_chars = chars - seen};
            SBP_PUSH(c->scratch, out->list, out->count, out->capacity, found);
        }
    }
    if (out->count > first)
        qsort(out->list + first, (size_t)(out->count - first), sizeof(cut), by_ids);
}

static int64_t type_of(const conversion *c, int64_t id) {
    return c->types ? sbp_gguf_i64_at(c->types, id) : TYPE_NORMAL;
}

static sbp_status print_recovered_merges(conversion *c, bool by_position) {
    const sbp_gguf_value *scores = NULL;
    if (!by_position)
        SBP_TRY(sbp_gguf_get_array(c->diag, c->gguf, "tokenizer.ggml.scores", SBP_GGUF_F64, SBP_JSON_REQUIRED,
                                   &scores));
    if (scores && scores->count != c->count)
        return sbp_fail(c->diag, SBP_INPUT,
                        "%s: tokenizer.ggml.scores has %lld items, expected %lld, one a token", c->path,
                        (long long)scores->count, (long long)c->count);
    int64_t first = 0; /* the best token that is not user-defined has score 0, too */
    while (first < c->count && type_of(c, first) != TYPE_NORMAL)
        first++;
    cuts all = {0};
    for (int64_t id = 0; id < c->count; id++) {
        double score = type_of(c, id) == TYPE_USER ? 0 : (double)(first - id);
        if (scores)
            score = sbp_gguf_double_at(scores, id);
        if (score != score)
            return sbp_fail(c->diag, SBP_INPUT, "%s: the score of token %lld is not a number", c->path,
                            (long long)id);
        cut_token(c, id, score, &all);
    }
    for (int32_t i = 0; i < all.count; i++)
        all.list[i].order = i;
    if (all.count > 0)
        qsort(all.list, (size_t)all.count, sizeof(cut), by_score);
    for (int32_t i = 0; i < all.count; i++) {
        print(c, i ? ",[" : "[");
        print_token(c, all.list[i].left);
        print(c, ",");
        print_token(c, all.list[i].right);
        print(c, "]");
    }
    return SBP_OK;
}

static sbp_status convert_sentencepiece(conversion *c) {
    const char *architecture = "";
    bool space_prefix = true;
    const sbp_gguf_value *merges = NULL;
    SBP_TRY(sbp_gguf_get_string(c->diag, c->gguf, "general.architecture", SBP_JSON_OPTIONAL, &architecture));
    bool gemma = strncmp(architecture, "gemma", 5) == 0;
    SBP_TRY(sbp_gguf_get_bool(c->diag, c->gguf, "tokenizer.ggml.add_space_prefix", SBP_JSON_OPTIONAL,
                              &space_prefix));
    SBP_TRY(sbp_gguf_get_array(c->diag, c->gguf, "tokenizer.ggml.merges", SBP_GGUF_STRING, SBP_JSON_OPTIONAL,
                               &merges));
    SBP_TRY(read_vocabulary(c, gemma));

    print_added(c);
    static const char replace[] =
        "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"}";
    if (space_prefix)
        sbp_text_add(
            &c->out,
            ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":"
            "\"\xe2\x96\x81\"},%s]}",
            replace);
    else
        sbp_text_add(&c->out, ",\"normalizer\":%s", replace);
    print(c, ",\"pre_tokenizer\":null");
    SBP_TRY(print_processor(c, c->role_ids[SBP_TOKEN_BOS] >= 0));
    print(c,
          ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":"
          "\"\xe2\x96\x81\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}");
    print(c, space_prefix ? ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}" : "]}");
    print(c, ",\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":");
    if (c->role_ids[SBP_TOKEN_UNK] >= 0)
        print_token(c, c->role_ids[SBP_TOKEN_UNK]);
    else
        print(c, "null");
    print(c, ",\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":true,\"byte_"
             "fallback\":true,"
             "\"ignore_merges\":false");
    print_vocabulary(c);
    if (merges)
        SBP_TRY(print_listed_merges(c, merges));
    else
        SBP_TRY(print_recovered_merges(c, gemma));
    print(c, "]}}");
    return SBP_OK;
}

static sbp_status convert(void *user) {
    conversion *c = user;
    const char *model;
    sbp_map_init(&c->ids, c->scratch);
    sbp_text_init(&c->out, c->scratch);
    SBP_TRY(sbp_gguf_get_string(c->diag, c->gguf, "tokenizer.ggml.model", SBP_JSON_REQUIRED, &model));
    if (strcmp(model, "gpt2") == 0)
        return convert_byte_level(c);
    if (strcmp(model, "llama") == 0)
        return convert_sentencepiece(c);
    return sbp_fail(
        c->diag, SBP_INPUT,
        "%s: the tokenizer model '%s' (tokenizer.ggml.model) is not supported, only gpt2 and llama", c->path,
        model);
}

static sbp_status keep_text(void *user) {
    conversion *c = user;
    c->text = sbp_arena_strndup(c->arena, c->out.data, c->out.length);
    return SBP_OK;
}

sbp_status sbp_tokenizer_from_gguf(sbp_arena *arena, sbp_diag *diag, const sbp_gguf *gguf,
                                   const sbp_tokenizer **out) {
    conversion c = {.arena = arena,
                    .scratch = sbp_arena_create(),
                    .diag = diag,
                    .gguf = gguf,
                    .path = sbp_gguf_path(gguf)};
    if (!c.scratch)
        return sbp_fail(diag, SBP_MACHINE, "out of memory reading '%s'", c.path);
    sbp_status status = sbp_guard(c.scratch, diag, convert, &c);
    if (status == SBP_OK)
        status = sbp_guard(arena, diag, keep_text, &c);
    size_t length = c.out.length;
    sbp_arena_destroy(c.scratch);
    return status == SBP_OK ? sbp_tokenizer_build(arena, diag, c.path, c.text, length, NULL, out) : status;
}
