/* tokenizer_ranks.c: byte strings with ranks, as tiktoken merges them: Mistral's tekken.json, and files of
 * lines "base64 rank"; written as tokenizer.json text as transformers does.
 *
 * tiktoken joins the neighbours whose joined bytes have the least rank; here every cut of a token in two is a
 * merge, in the order of the token's rank, of its left part's and of its right part's. */
#include "frontends/formats/files/protojson.h"
#include "frontends/formats/tokenizer/tokenizer_convert.h"

#include <stdlib.h>
#include <string.h>

/* The pattern of files that have none of their own: Llama 3's, the one family that ships such files. */
static const char lines_pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+"
    "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

static sbp_status add_bytes(tok_conversion *c, int64_t id, const uint8_t *bytes, int64_t length) {
    char text[2 * TOK_MAX_BYTES + 1];
    int64_t n = 0;
    if (length < 1 || 2 * length > TOK_MAX_BYTES)
        return sbp_fail(c->diag, SBP_INPUT, "%s: token %lld has %lld bytes; 1 to %d are expected", c->path,
                        (long long)id, (long long)length, TOK_MAX_BYTES / 2);
    for (int64_t i = 0; i < length; i++)
        n += sbp_utf8_put(text + n, sbp_byte_to_char(bytes[i]));
    return sbp_convert_token(c, id, (sbp_gguf_string){sbp_arena_strndup(c->scratch, text, (size_t)n), n},
                             false);
}

/* Tokens from id `first` on have ranks. */
static sbp_status write_ranked(tok_conversion *c, const char *pattern, int64_t first, bool add_bos,
                               bool add_eos) {
    sbp_convert_added(c);
    sbp_json_write_null(&c->w, "normalizer");
    sbp_json_write_object(&c->w, "pre_tokenizer");
    sbp_json_write_string(&c->w, "type", "Sequence");
    sbp_json_write_array(&c->w, "pretokenizers");
    sbp_convert_split(c, pattern);
    sbp_json_write_raw(
        &c->w, NULL,
        "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}");
    sbp_json_write_end(&c->w);
    sbp_json_write_end(&c->w);
    SBP_TRY(sbp_convert_processor(c, add_bos, add_eos));
    sbp_convert_byte_bpe(c, true);
    sbp_convert_vocabulary(c);
    sbp_convert_ranked_merges(c, first);
    sbp_convert_end(c);
    return SBP_OK;
}

/* ---- tekken.json -------------------------------------------------------------------------------------- */

/* The special tokens of files from before these were listed in tekken.json. */
static const char *const old_specials[] = {"<unk>",
                                           "<s>",
                                           "</s>",
                                           "[INST]",
                                           "[/INST]",
                                           "[AVAILABLE_TOOLS]",
                                           "[/AVAILABLE_TOOLS]",
                                           "[TOOL_RESULTS]",
                                           "[/TOOL_RESULTS]",
                                           "[TOOL_CALLS]",
                                           "[IMG]",
                                           "<pad>",
                                           "[IMG_BREAK]",
                                           "[IMG_END]",
                                           "[PREFIX]",
                                           "[MIDDLE]",
                                           "[SUFFIX]",
                                           "[SYSTEM_PROMPT]",
                                           "[/SYSTEM_PROMPT]",
                                           "[TOOL_CONTENT]"};

static sbp_status read_specials(tok_conversion *c, const sbp_json *list, const char **names, int64_t count) {
    int64_t given = list ? list->count : SBP_COUNT(old_specials);
    if (given > count)
        return sbp_fail(c->diag, SBP_INPUT, "%s: %lld special tokens, but default_num_special_tokens is %lld",
                        c->path, (long long)given, (long long)count);
    for (int64_t i = 0; i < given; i++) {
        const char *name = list ? NULL : old_specials[i];
        int64_t rank = i;
        if (list) {
            SBP_TRY(sbp_json_get_i64(c->diag, &list->items[i], "rank", SBP_JSON_REQUIRED, &rank));
            SBP_TRY(sbp_json_get_string(c->diag, &list->items[i], "token_str", SBP_JSON_REQUIRED, &name));
        }
        if (rank < 0 || rank >= given || names[rank])
            return sbp_fail(c->diag, SBP_INPUT,
                            "%s: the ranks of %lld special tokens must be 0 .. %lld, each once; found %lld",
                            c->path, (long long)given, (long long)given - 1, (long long)rank);
        names[rank] = name;
    }
    for (int64_t i = given; i < count; i++)
        names[i] = sbp_arena_printf(c->scratch, "<SPECIAL_%lld>", (long long)i);
    return SBP_OK;
}

static sbp_status read_tekken(tok_conversion *c, const sbp_json *root, const char **pattern,
                              int64_t *specials) {
    const sbp_json *config, *vocab, *list = NULL;
    int64_t size = -1;
    SBP_TRY(sbp_json_get_object(c->diag, root, "config", SBP_JSON_REQUIRED, &config));
    SBP_TRY(sbp_json_get_array(c->diag, root, "vocab", SBP_JSON_REQUIRED, &vocab));
    SBP_TRY(sbp_json_get_array(c->diag, root, "special_tokens", SBP_JSON_NULLABLE, &list));
    SBP_TRY(sbp_json_get_string(c->diag, config, "pattern", SBP_JSON_REQUIRED, pattern));
    *specials = list ? list->count : SBP_COUNT(old_specials);
    SBP_TRY(sbp_json_get_i64(c->diag, config, "default_num_special_tokens", SBP_JSON_NULLABLE, specials));
    SBP_TRY(sbp_json_get_i64(c->diag, config, "default_vocab_size", SBP_JSON_NULLABLE, &size));
    if (*specials < 0 || *specials > 1 << 20)
        return sbp_json_fail(c->diag, config, "default_num_special_tokens %lld is not in 0 .. %d",
                             (long long)*specials, 1 << 20);
    int64_t count = size < 0 ? vocab->count : size - *specials;
    if (count < 1 || count > vocab->count)
        return sbp_json_fail(
            c->diag, config,
            "default_vocab_size is %lld, of which %lld are special, but the file has %lld tokens",
            (long long)size, (long long)*specials, (long long)vocab->count);
    sbp_convert_start(c, *specials + count);
    const char **names = SBP_NEW_ARRAY(c->scratch, const char *, *specials + 1);
    int32_t *types = SBP_NEW_ARRAY(c->scratch, int32_t, c->count);
    SBP_TRY(read_specials(c, list, names, *specials));
    for (int64_t id = 0; id < c->count; id++)
        types[id] = id < *specials ? TOK_TYPE_CONTROL : TOK_TYPE_NORMAL;
    c->types = types;
    for (int64_t id = 0; id < *specials; id++)
        SBP_TRY(sbp_convert_token(c, id, (sbp_gguf_string){names[id], (int64_t)strlen(names[id])}, false));
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *bytes;
        int64_t length, rank = i;
        const sbp_json *text = sbp_json_member(&vocab->items[i], "token_bytes");
        SBP_TRY(sbp_json_get_i64(c->diag, &vocab->items[i], "rank", SBP_JSON_OPTIONAL, &rank));
        if (!text || text->kind != SBP_JSON_STRING || rank != i)
            return sbp_json_fail(c->diag, &vocab->items[i], "expected token_bytes and the rank %lld",
                                 (long long)i);
        SBP_TRY(sbp_proto_bytes(c->scratch, c->diag, text, &bytes, &length));
        SBP_TRY(add_bytes(c, *specials + i, bytes, length));
    }
    return SBP_OK;
}

sbp_status sbp_convert_tekken(sbp_arena *scratch, sbp_diag *diag, const char *path, const sbp_json *root,
                              int add_bos, int add_eos, sbp_text *out) {
    static const char *const names[] = {"<s>", "</s>", "<pad>", "<unk>"};
    tok_conversion c = {.scratch = scratch, .diag = diag, .path = path};
    const char *pattern;
    int64_t specials;
    SBP_TRY(read_tekken(&c, root, &pattern, &specials));
    for (int role = 0; role < 4; role++) {
        int32_t id = sbp_map_get(&c.ids, names[role]);
        c.role_ids[role] = id >= 0 && id < specials ? id : -1;
    }
    SBP_TRY(write_ranked(&c, pattern, specials, add_bos < 0 ? c.role_ids[SBP_TOKEN_BOS] >= 0 : add_bos,
                         add_eos > 0));
    *out = c.out;
    return SBP_OK;
}

/* ---- lines
 * ----------------------------------------------------------------------------------------------------------
 */

sbp_status sbp_convert_tiktoken(sbp_arena *scratch, sbp_diag *diag, const char *path, const char *data,
                                size_t length, sbp_text *out) {
    tok_conversion c = {.scratch = scratch, .diag = diag, .path = path};
    int64_t count = 0, line = 0;
    for (size_t i = 0; i < length; i++)
        count += data[i] == '\n' && i > 0 && data[i - 1] != '\n';
    count += length > 0 && data[length - 1] != '\n';
    sbp_convert_start(&c, count);
    for (const char *at = data, *end = data + length, *next; at < end; at = next + 1) {
        next = memchr(at, '\n', (size_t)(end - at));
        next = next ? next : end;
        if (next == at)
            continue;
        const char *space = memchr(at, ' ', (size_t)(next - at));
        char digits[24] = "";
        if (space && next - space - 1 < (ptrdiff_t)sizeof digits)
            memcpy(digits, space + 1, (size_t)(next - space - 1));
        char *stop;
        long long rank = strtoll(digits, &stop, 10);
        if (!*digits || (*stop && *stop != '\r') || rank != line || line == count)
            return sbp_fail(diag, SBP_INPUT,
                            "%s:%lld: expected base64 and the rank %lld; this is not a tokenizer.json, "
                            "SentencePiece model, "
                            "tekken.json or file of tiktoken",
                            path, (long long)line + 1, (long long)line);
        const sbp_json text = {.kind = SBP_JSON_STRING,
                               .key = path,
                               .count = space - at,
                               .string = sbp_arena_strndup(scratch, at, (size_t)(space - at))};
        const uint8_t *bytes;
        int64_t n;
        SBP_TRY(sbp_proto_bytes(scratch, diag, &text, &bytes, &n));
        SBP_TRY(add_bytes(&c, line++, bytes, n));
    }
    if (line == 0)
        return sbp_fail(diag, SBP_INPUT, "%s: the vocabulary has no tokens", path);
    sbp_note(diag, "%s: a file of tiktoken names no pattern: that of Llama 3 cuts texts into words", path);
    SBP_TRY(write_ranked(&c, lines_pattern, 0, false, false));
    *out = c.out;
    return SBP_OK;
}
