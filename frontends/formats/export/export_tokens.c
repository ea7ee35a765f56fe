/* export_tokens.c: the vocabulary of a GGUF file, as llama.cpp's converter makes it of a directory. */
#include "frontends/formats/export/export_tokens.h"

#include <string.h>

#include "frontends/formats/files/sha256.h"
#include "frontends/formats/tokenizer/tokenizer_convert.h"

/* ---- the pre-tokenizer -------------------------------------------------------------------------------- */

#define CHECK_TEXT(text) static const char check_text[] = text;
#define PRE(hash, name)
#include "frontends/formats/export/pre_tokenizers.def"

static const struct {
    const char *hash, *name;
} pre_tokenizers[] = {
#define CHECK_TEXT(text)
#define PRE(hash, name) {hash, name},
#include "frontends/formats/export/pre_tokenizers.def"
};

/* The name that llama.cpp has for what cuts texts into words: by the ids of its check text. NULL: it knows
 * none; hash: 65 bytes, of the ids. */
static sbp_status find_pre(sbp_arena *arena, sbp_diag *diag, const sbp_tokenizer *tokenizer, char hash[65],
                           const char **out) {
    sbp_encoding ids;
    SBP_TRY(sbp_tokenizer_encode(tokenizer, arena, diag, check_text, sizeof check_text - 1,
                                 SBP_ADD_SPECIAL_TOKENS, &ids));
    sbp_text text; /* as Python prints a list */
    sbp_text_init(&text, arena);
    for (int64_t i = 0; i < ids.count; i++)
        sbp_text_add(&text, "%s%d", i ? ", " : "[", ids.ids[i]);
    sbp_text_add(&text, "%s", ids.count ? "]" : "[]");
    sbp_sha256 sum = sbp_sha256_begin();
    sbp_sha256_add(&sum, text.data, text.length);
    sbp_sha256_end(&sum, hash);
    *out = NULL;
    for (int i = 0; i < SBP_COUNT(pre_tokenizers) && !*out; i++)
        if (strcmp(pre_tokenizers[i].hash, hash) == 0)
            *out = pre_tokenizers[i].name;
    return SBP_OK;
}

typedef struct maker {
    sbp_arena *arena;
    sbp_diag *diag;
    const exp_tokens_request *request;
    sbp_gguf_keys *keys;
    const sbp_tokenizer *tokenizer; /* NULL: of a tokenizer.model that need not be read so */
    const sbp_json *json, *config;  /* tokenizer.json, tokenizer_config.json; NULL: there is none */
    int64_t count;
    sbp_gguf_string *tokens;
    float *scores; /* NULL: none are written */
    int32_t *types;
} maker;

static const char *file_of(const maker *m, const char *name) {
    return sbp_file_join(m->arena, m->request->directory, name);
}

static sbp_status put_pre(const maker *m) {
    const char *name = m->request->pre;
    char hash[65];
    if (!name)
        SBP_TRY(find_pre(m->arena, m->diag, m->tokenizer, hash, &name));
    if (!name)
        return sbp_fail(
            m->diag, SBP_INPUT,
            "%s: llama.cpp's converter does not know how this tokenizer cuts texts into words (the "
            "ids of its check text have the hash %.16s..); where one of its names fits, say "
            "--pre NAME, such as llama-bpe, qwen2, gpt-2",
            m->request->directory, hash);
    sbp_gguf_put_string(m->keys, "tokenizer.ggml.pre", name);
    return SBP_OK;
}

/* ---- vocabularies ------------------------------------------------------------------------------------- */

static void make_room(maker *m, int64_t count, bool scores) {
    m->count = count;
    m->tokens = SBP_NEW_ARRAY(m->arena, sbp_gguf_string, count);
    m->types = SBP_NEW_ARRAY(m->arena, int32_t, count);
    m->scores = scores ? SBP_NEW_ARRAY(m->arena, float, count) : NULL;
    for (int64_t id = 0; id < count; id++) {
        char *text = sbp_arena_printf(m->arena, "[PAD%lld]", (long long)id);
        m->tokens[id] = (sbp_gguf_string){text, (int64_t)strlen(text)};
        m->types[id] = TOK_TYPE_UNUSED;
        if (scores)
            m->scores[id] = -10000;
    }
}

static bool is(sbp_gguf_string text, const char *other) {
    return text.length == (int64_t)strlen(other) && memcmp(text.data, other, (size_t)text.length) == 0;
}

static bool has_ends(sbp_gguf_string text, const char *begin, const char *end) {
    int64_t a = (int64_t)strlen(begin), b = (int64_t)strlen(end);
    return text.length >= (a > b ? a : b) && memcmp(text.data, begin, (size_t)a) == 0 &&
           memcmp(text.data + text.length - b, end, (size_t)b) == 0;
}

/* Models forget to say so of some. */
static bool looks_special(sbp_gguf_string text) {
    return is(text, "<pad>") || is(text, "<mask>") || is(text, "<2mass>") || is(text, "[@BOS@]") ||
           has_ends(text, "<|", "|>") || has_ends(text, "<\xef\xbd\x9c", "\xef\xbd\x9c>") ||
           has_ends(text, "<unused", ">");
}

/* SentencePiece's blocks as spaces. */
static sbp_gguf_string with_spaces(const maker *m, sbp_gguf_string text) {
    char *out = sbp_arena_alloc(m->arena, (size_t)text.length + 1);
    int64_t n = 0;
    for (int64_t i = 0; i < text.length;) {
        bool block = text.length - i >= 3 && memcmp(text.data + i, "\xe2\x96\x81", 3) == 0;
        out[n++] = block ? ' ' : text.data[i];
        i += block ? 3 : 1;
    }
    out[n] = 0;
    return (sbp_gguf_string){out, n};
}

/* What an added token that is matched before normalizing is when it went through the tokenizer. */
static sbp_status respell(const maker *m, sbp_gguf_string *text) {
    sbp_encoding ids;
    const char *out;
    size_t length;
    SBP_TRY(sbp_tokenizer_encode(m->tokenizer, m->arena, m->diag, text->data, (size_t)text->length, 0, &ids));
    SBP_TRY(sbp_tokenizer_decode(m->tokenizer, m->arena, m->diag, ids.ids, ids.count, false, &out, &length));
    *text = (sbp_gguf_string){out, (int64_t)length};
    return SBP_OK;
}

static sbp_status check_size(const maker *m, int64_t size) {
    if (size <= m->request->vocab_size)
        return SBP_OK;
    return sbp_fail(m->diag, SBP_INPUT,
                    "%s: the tokenizer has the id %lld, but the embedding only %lld rows; give the model the "
                    "tokenizer that it was trained with",
                    m->request->directory, (long long)size - 1, (long long)m->request->vocab_size);
}

static sbp_status make_base_vocabulary(maker *m) {
    const sbp_tokenizer *t = m->tokenizer;
    SBP_TRY(check_size(m, t->size));
    make_room(m, m->request->vocab_size, false);
    for (int32_t id = 0; id < t->size; id++) {
        size_t length;
        const char *text = sbp_tokenizer_token(t, id, &length);
        if (!text)
            continue;
        sbp_gguf_string token = {text, (int64_t)length};
        const tok_added *added = t->added_of_id[id] >= 0 ? &t->added[t->added_of_id[id]] : NULL;
        if (added && !added->normalized)
            SBP_TRY(respell(m, &token));
        m->types[id] = !added                                   ? TOK_TYPE_NORMAL
                       : added->special || looks_special(token) ? TOK_TYPE_CONTROL
                                                                : TOK_TYPE_USER;
        m->tokens[id] = m->types[id] == TOK_TYPE_USER ? with_spaces(m, token) : token;
    }
    return SBP_OK;
}

static bool is_byte_token(sbp_gguf_string t) {
    return t.length == 6 && memcmp(t.data, "<0x", 3) == 0 && t.data[5] == '>' &&
           strchr("0123456789abcdefABCDEF", t.data[3]) && strchr("0123456789abcdefABCDEF", t.data[4]);
}

/* SentencePiece's scores where its file is missing: what is merged earlier is better. The converter writes
 * -1000 for all, by which llama.cpp finds other tokens. */
static void make_scores(maker *m) {
    const tok_model *model = &m->tokenizer->model;
    for (int64_t id = 0; id < m->count; id++)
        m->scores[id] = m->types[id] == TOK_TYPE_NORMAL ? -(float)model->merge_count : 0;
    float next = 0;
    for (int32_t rank = 0; rank < model->merge_count; rank++) {
        int32_t id = model->merge_ids[rank];
        if (id < m->count && m->types[id] == TOK_TYPE_NORMAL && m->scores[id] == -(float)model->merge_count)
            m->scores[id] = -(next++);
    }
    for (int64_t id = 0; id < m->count; id++)
        if (m->types[id] == TOK_TYPE_USER || m->types[id] == TOK_TYPE_CONTROL ||
            m->types[id] == TOK_TYPE_UNUSED)
            m->scores[id] = -1000;
}

/* A BPE of characters with tokens for bytes, whose tokenizer.json is all there is. */
static sbp_status make_character_vocabulary(maker *m) {
    const sbp_tokenizer *t = m->tokenizer;
    SBP_TRY(check_size(m, t->size));
    make_room(m, m->request->vocab_size, true);
    for (int32_t id = 0; id < t->size; id++) {
        size_t length;
        const char *text = sbp_tokenizer_token(t, id, &length);
        if (!text)
            continue;
        const tok_added *added = t->added_of_id[id] >= 0 ? &t->added[t->added_of_id[id]] : NULL;
        sbp_gguf_string token = {text, (int64_t)length};
        bool special = added && (added->special || looks_special(token));
        m->tokens[id] = added && !special ? with_spaces(m, token) : token;
        m->types[id] = is_byte_token(token) ? TOK_TYPE_BYTE
                       : t->model.unk == id ? TOK_TYPE_UNKNOWN
                       : special            ? TOK_TYPE_CONTROL
                       : added              ? TOK_TYPE_USER
                                            : TOK_TYPE_NORMAL;
    }
    make_scores(m);
    return SBP_OK;
}

/* ---- SentencePiece ------------------------------------------------------------------------------------ */

static void set_token(maker *m, int64_t id, const char *text, int64_t length, float score, int32_t type) {
    m->tokens[id] = (sbp_gguf_string){text, length};
    m->scores[id] = score;
    m->types[id] = type;
}

static sbp_status add_of_file(maker *m) {
    const char *path = file_of(m, "added_tokens.json");
    const sbp_json *root;
    if (!sbp_file_exists(path))
        return SBP_OK;
    SBP_TRY(sbp_json_read(m->arena, m->diag, path, 0, &root));
    SBP_TRY(sbp_json_as_object(m->diag, root, &root));
    for (int64_t i = 0; i < root->count; i++) {
        int64_t id;
        SBP_TRY(sbp_json_as_i64(m->diag, &root->items[i], &id));
        if (id >= 0 && id < m->count)
            set_token(m, id, root->items[i].key, (int64_t)strlen(root->items[i].key), -1000, TOK_TYPE_USER);
    }
    return SBP_OK;
}

/* Takes in a token of tokenizer_config.json's added_tokens_decoder, or of tokenizer.json's added_tokens. */
static void add_described(maker *m, int64_t id, const sbp_json *node) {
    const sbp_json *content = sbp_json_member(node, "content"), *special = sbp_json_member(node, "special");
    if (!content || content->kind != SBP_JSON_STRING || id < 0 || id >= m->count)
        return;
    sbp_gguf_string text = {content->string, content->count};
    bool control = (special && special->kind == SBP_JSON_BOOL && special->boolean) || looks_special(text);
    if (!control)
        text = with_spaces(m, text);
    set_token(m, id, text.data, text.length, -1000, control ? TOK_TYPE_CONTROL : TOK_TYPE_USER);
}

static sbp_status make_sentencepiece_vocabulary(maker *m) {
    const char *path = file_of(m, "tokenizer.model"), *data;
    size_t length;
    tok_pieces pieces;
    SBP_TRY(sbp_file_read(m->arena, m->diag, path, &data, &length));
    SBP_TRY(sbp_sentencepiece_pieces(m->arena, m->diag, path, data, length, &pieces));
    make_room(m, m->request->vocab_size, true);
    for (int64_t id = 0; id < pieces.count && id < m->count; id++) {
        bool user = pieces.types[id] == TOK_TYPE_USER; /* which the converter takes for a usual one */
        sbp_gguf_string text = user ? with_spaces(m, pieces.tokens[id]) : pieces.tokens[id];
        set_token(m, id, text.data, text.length, (float)pieces.scores[id], pieces.types[id]);
    }
    SBP_TRY(add_of_file(m));
    const sbp_json *map = sbp_json_member(m->config, "added_tokens_decoder");
    for (int64_t i = 0; map && map->kind == SBP_JSON_OBJECT && i < map->count; i++)
        add_described(m, strtoll(map->items[i].key, NULL, 10), &map->items[i]);
    return SBP_OK;
}

/* ---- which it is -------------------------------------------------------------------------------------- */

static void put_vocabulary(const maker *m) {
    sbp_text *tokens = sbp_gguf_put_array(m->keys, "tokenizer.ggml.tokens", SBP_GGUF_STRING, m->count);
    for (int64_t id = 0; id < m->count; id++)
        sbp_gguf_add_string(tokens, m->tokens[id].data, m->tokens[id].length);
    if (m->scores) {
        sbp_text *scores = sbp_gguf_put_array(m->keys, "tokenizer.ggml.scores", SBP_GGUF_F32, m->count);
        for (int64_t id = 0; id < m->count; id++)
            sbp_gguf_add_f32(scores, m->scores[id]);
    }
    sbp_text *types = sbp_gguf_put_array(m->keys, "tokenizer.ggml.token_type", SBP_GGUF_I32, m->count);
    for (int64_t id = 0; id < m->count; id++)
        sbp_gguf_add_i32(types, m->types[id]);
}

static const sbp_json *model_of(const maker *m) {
    return sbp_json_member(m->json, "model");
}

static bool has_word(const sbp_json *object, const char *key, const char *value) {
    const sbp_json *node = sbp_json_member(object, key);
    return node && node->kind == SBP_JSON_STRING && strcmp(node->string, value) == 0;
}

static bool is_on(const sbp_json *object, const char *key) {
    const sbp_json *node = sbp_json_member(object, key);
    return node && node->kind == SBP_JSON_BOOL && node->boolean;
}

/* A BPE of characters that falls back to bytes, as SentencePiece's are when they are converted. */
static bool is_of_characters(const maker *m) {
    return has_word(model_of(m), "type", "BPE") && is_on(model_of(m), "byte_fallback");
}

static exp_special_request special_request(const maker *m, bool merges) {
    return (exp_special_request){.directory = m->request->directory,
                                 .config = m->request->config,
                                 .tokenizer = m->json,
                                 .merges = merges,
                                 .most = merges ? 0 : m->count};
}

static sbp_status put_byte_level(maker *m) {
    exp_special_request special = special_request(m, true);
    if (m->request->rule == EXP_TOKENS_GLM)
        special = (exp_special_request){.directory = special.directory,
                                        .config = special.config,
                                        .tokenizer = special.tokenizer,
                                        .merges = true,
                                        .bos = "[gMASK]",
                                        .eot = "<|user|>",
                                        .unk = "<|endoftext|>",
                                        .eom = "<|observation|>"};
    if (m->request->rule == EXP_TOKENS_GLM4) {
        special.eos = special.unk = special.bos = "<|endoftext|>";
        special.eot = "<|user|>";
    }
    if (!has_word(model_of(m), "type", "BPE"))
        return sbp_fail(m->diag, SBP_INPUT,
                        "%s: a tokenizer that is no BPE is not known to llama.cpp for this family",
                        m->request->directory);
    SBP_TRY(make_base_vocabulary(m));
    sbp_gguf_put_string(m->keys, "tokenizer.ggml.model", "gpt2");
    SBP_TRY(put_pre(m));
    put_vocabulary(m);
    return sbp_exp_put_special(m->arena, m->diag, &special, m->keys);
}

/* SentencePiece, with its scores or those that merges say. */
static sbp_status put_sentencepiece(maker *m, bool file) {
    SBP_TRY(file ? make_sentencepiece_vocabulary(m) : make_character_vocabulary(m));
    sbp_gguf_put_string(m->keys, "tokenizer.ggml.model", "llama");
    sbp_gguf_put_string(m->keys, "tokenizer.ggml.pre", "default");
    put_vocabulary(m);
    exp_special_request special = special_request(m, false);
    return sbp_exp_put_special(m->arena, m->diag, &special, m->keys);
}

/* Tokens that are shown always, so that what parses answers sees them. */
static bool is_visible(sbp_gguf_string text) {
    static const char *const visible[] = {"<|channel>",   "<channel|>",       "<|tool_call>",
                                          "<tool_call|>", "<|tool_response>", "<tool_response|>",
                                          "<|\"|>"};
    for (int i = 0; i < SBP_COUNT(visible); i++)
        if (is(text, visible[i]))
            return true;
    return false;
}

static sbp_status put_gemma4(maker *m) {
    SBP_TRY(make_character_vocabulary(m));
    for (int64_t id = 0; id < m->count; id++) {
        m->scores[id] = -1000; /* merges count */
        m->types[id] = is_visible(m->tokens[id])          ? TOK_TYPE_USER
                       : m->types[id] == TOK_TYPE_UNKNOWN ? TOK_TYPE_CONTROL
                                                          : m->types[id];
    }
    sbp_gguf_put_string(m->keys, "tokenizer.ggml.model", "gemma4");
    put_vocabulary(m);
    exp_special_request special = special_request(m, true);
    SBP_TRY(sbp_exp_put_special(m->arena, m->diag, &special, m->keys));
    sbp_gguf_put_bool(m->keys, "tokenizer.ggml.add_space_prefix", false);
    sbp_gguf_put_bool(m->keys, "tokenizer.ggml.add_bos_token", true);
    return SBP_OK;
}

static sbp_status read_optional(const maker *m, const char *name, const sbp_json **out) {
    const char *path = file_of(m, name);
    *out = NULL;
    return sbp_file_exists(path) ? sbp_json_read(m->arena, m->diag, path, 0, out) : SBP_OK;
}

/* Whether a space is put before the text, where the files say so. */
static void put_prefix(const maker *m) {
    const sbp_json *prefix = sbp_json_member(m->config, "add_prefix_space");
    if (prefix && prefix->kind == SBP_JSON_BOOL)
        sbp_gguf_put_bool(m->keys, "tokenizer.ggml.add_space_prefix", prefix->boolean);
}

sbp_status sbp_exp_put_tokens(sbp_arena *arena, sbp_diag *diag, const exp_tokens_request *request,
                              sbp_gguf_keys *keys) {
    maker m = {.arena = arena, .diag = diag, .request = request, .keys = keys};
    bool file = sbp_file_exists(file_of(&m, "tokenizer.model"));
    bool pieces = request->rule == EXP_TOKENS_LLAMA || request->rule == EXP_TOKENS_PIECES ||
                  request->rule == EXP_TOKENS_GEMMA;
    if (!sbp_tokenizer_is_in(arena, request->directory))
        return sbp_fail(
            diag, SBP_INPUT,
            "'%s' has no tokenizer.json and no tokenizer.model, and llama.cpp runs no model without "
            "its tokenizer; copy them from the model that this was made of",
            request->directory);
    SBP_TRY(read_optional(&m, "tokenizer.json", &m.json));
    SBP_TRY(read_optional(&m, "tokenizer_config.json", &m.config));
    if (request->rule == EXP_TOKENS_LLAMA)
        put_prefix(&m);
    if (pieces && file) {
        SBP_TRY(put_sentencepiece(&m, true));
    } else {
        SBP_TRY(sbp_tokenizer_load(arena, diag, request->directory, &m.tokenizer));
        if (!m.json)
            return sbp_fail(diag, SBP_INPUT,
                            "'%s' has no tokenizer.json, which this family's vocabulary is read from",
                            request->directory);
        if (request->rule == EXP_TOKENS_GEMMA4)
            return put_gemma4(&m);
        if (!is_of_characters(&m))
            return put_byte_level(&m);
        SBP_TRY(put_sentencepiece(&m, false));
    }
    if (request->rule == EXP_TOKENS_GEMMA)
        sbp_gguf_put_bool(keys, "tokenizer.ggml.add_space_prefix", false);
    return SBP_OK;
}
