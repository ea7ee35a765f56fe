/* tokenizer_convert.c: a vocabulary with types and scores, written as tokenizer.json text.
 *
 * Merges are recovered from the vocabulary as transformers does: every way to cut a token into two tokens,
 * best score first.
 */
#include "frontends/formats/tokenizer/tokenizer_convert.h"

#include <stdlib.h>
#include <string.h>

void sbp_convert_start(tok_conversion *c, int64_t count) {
    sbp_map_init(&c->ids, c->scratch);
    c->count = count;
    c->tokens = SBP_NEW_ARRAY(c->scratch, sbp_gguf_string, count);
    for (int role = 0; role < 4; role++)
        c->role_ids[role] = -1;
}

sbp_status sbp_convert_token(tok_conversion *c, int64_t id, sbp_gguf_string given, bool spaces_to_blocks) {
    sbp_gguf_string token = given;
    if (given.length == 0) {
        token.data =
            sbp_arena_printf(c->scratch, "[EMPTY_%lld]", (long long)id); /* llama.cpp's name for it */
        token.length = (int64_t)strlen(token.data);
    }
    if (token.length > TOK_MAX_BYTES || strlen(token.data) != (size_t)token.length)
        return sbp_fail(c->diag, SBP_INPUT,
                        "%s: token %lld has %lld bytes or contains a NUL character; at most %d are expected",
                        c->path, (long long)id, (long long)token.length, TOK_MAX_BYTES);
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

/* ---- writing ------------------------------------------------------------------------------------------ */

void sbp_convert_write_token(tok_conversion *c, const char *key, int64_t id) {
    sbp_json_write_bytes(&c->w, key, c->tokens[id].data, (size_t)c->tokens[id].length);
}

void sbp_convert_added(tok_conversion *c) {
    sbp_text_init(&c->out, c->scratch);
    c->w = sbp_json_writer_on(&c->out);
    c->w.compact = true;
    sbp_json_write_object(&c->w, NULL);
    sbp_json_write_string(&c->w, "version", "1.0");
    sbp_json_write_null(&c->w, "truncation");
    sbp_json_write_null(&c->w, "padding");
    sbp_json_write_array(&c->w, "added_tokens");
    for (int64_t id = 0; c->types && id < c->count; id++) {
        int32_t type = c->types[id];
        if (type == TOK_TYPE_UNKNOWN || type == TOK_TYPE_CONTROL || type == TOK_TYPE_USER)
            sbp_write_added(&c->w, &(tok_added){.id = (int32_t)id,
                                                .content.text = c->tokens[id].data,
                                                .special = type != TOK_TYPE_USER});
    }
    sbp_write_named(&c->w);
    for (int role = 0; role < 4; role++)
        if (c->role_ids[role] >= 0)
            sbp_convert_write_token(c, sbp_token_role_name((sbp_token_role)role), c->role_ids[role]);
    sbp_json_write_end(&c->w);
    sbp_json_write_end(&c->w);
    sbp_json_write_end(&c->w);
}

/* {"SpecialToken": {"id": "<s>", "type_id": 0}}, or without a token {"Sequence": {"id": "A",
 * "type_id": 0}} */
static void write_part(tok_conversion *c, int64_t token, int sequence) {
    sbp_json_write_object(&c->w, NULL);
    sbp_json_write_object(&c->w, token >= 0 ? "SpecialToken" : "Sequence");
    if (token >= 0)
        sbp_convert_write_token(c, "id", token);
    else
        sbp_json_write_string(&c->w, "id", sequence ? "B" : "A");
    sbp_json_write_int(&c->w, "type_id", sequence);
    sbp_json_write_end(&c->w);
    sbp_json_write_end(&c->w);
}

/* Writes the template of one text, or of a pair. */
static void write_template(tok_conversion *c, bool pair, bool add_bos, bool add_eos) {
    sbp_json_write_array(&c->w, pair ? "pair" : "single");
    for (int k = 0; k <= pair; k++) {
        if (add_bos)
            write_part(c, c->role_ids[SBP_TOKEN_BOS], 0);
        write_part(c, -1, k);
        if (add_eos)
            write_part(c, c->role_ids[SBP_TOKEN_EOS], 0);
    }
    sbp_json_write_end(&c->w);
}

/* "<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]} */
static void write_template_token(tok_conversion *c, int64_t id) {
    sbp_json_write_object(&c->w, c->tokens[id].data);
    sbp_convert_write_token(c, "id", id);
    sbp_json_write_array(&c->w, "ids");
    sbp_json_write_int(&c->w, NULL, id);
    sbp_json_write_end(&c->w);
    sbp_json_write_array(&c->w, "tokens");
    sbp_convert_write_token(c, NULL, id);
    sbp_json_write_end(&c->w);
    sbp_json_write_end(&c->w);
}

sbp_status sbp_convert_processor(tok_conversion *c, bool add_bos, bool add_eos) {
    int64_t bos = c->role_ids[SBP_TOKEN_BOS], eos = c->role_ids[SBP_TOKEN_EOS];
    if ((add_bos && bos < 0) || (add_eos && eos < 0))
        return sbp_fail(c->diag, SBP_INPUT, "%s: a %s token is to be added, but there is none", c->path,
                        add_bos && bos < 0 ? "bos" : "eos");
    if (!add_bos && !add_eos) {
        sbp_json_write_null(&c->w, "post_processor");
        return SBP_OK;
    }
    sbp_json_write_object(&c->w, "post_processor");
    sbp_json_write_string(&c->w, "type", "TemplateProcessing");
    write_template(c, false, add_bos, add_eos);
    write_template(c, true, add_bos, add_eos);
    sbp_json_write_object(&c->w, "special_tokens");
    if (add_bos)
        write_template_token(c, bos);
    if (add_eos && !(add_bos && bos == eos))
        write_template_token(c, eos);
    sbp_json_write_end(&c->w);
    sbp_json_write_end(&c->w);
    return SBP_OK;
}

void sbp_convert_vocabulary(tok_conversion *c) {
    sbp_json_write_object(&c->w, "vocab");
    for (int64_t id = 0; id < c->count; id++)
        sbp_json_write_int(&c->w, c->tokens[id].data, id);
    sbp_json_write_end(&c->w);
    sbp_json_write_array(&c->w, "merges");
}

void sbp_convert_end(tok_conversion *c) {
    for (int i = 0; i < 3; i++)
        sbp_json_write_end(&c->w);
}

void sbp_convert_decoder(sbp_json_writer *w, bool dummy_prefix) {
    sbp_json_write_object(w, "decoder");
    sbp_json_write_string(w, "type", "Sequence");
    sbp_json_write_array(w, "decoders");
    sbp_json_write_raw(w, NULL,
                       "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xe2\x96\x81\"},\"content\":\" \"}");
    sbp_json_write_raw(w, NULL, "{\"type\":\"ByteFallback\"}");
    sbp_json_write_raw(w, NULL, "{\"type\":\"Fuse\"}");
    if (dummy_prefix)
        sbp_json_write_raw(w, NULL, "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}");
    sbp_json_write_end(w);
    sbp_json_write_end(w);
}

void sbp_convert_bpe(tok_conversion *c, bool byte_fallback) {
    sbp_json_write_object(&c->w, "model");
    sbp_json_write_string(&c->w, "type", "BPE");
    sbp_json_write_null(&c->w, "dropout");
    if (c->role_ids[SBP_TOKEN_UNK] >= 0)
        sbp_convert_write_token(c, "unk_token", c->role_ids[SBP_TOKEN_UNK]);
    else
        sbp_json_write_null(&c->w, "unk_token");
    sbp_json_write_null(&c->w, "continuing_subword_prefix");
    sbp_json_write_null(&c->w, "end_of_word_suffix");
    sbp_json_write_bool(&c->w, "fuse_unk", true);
    sbp_json_write_bool(&c->w, "byte_fallback", byte_fallback);
    sbp_json_write_bool(&c->w, "ignore_merges", false);
}

void sbp_convert_byte_bpe(tok_conversion *c, bool ignore_merges) {
    sbp_json_write_raw(
        &c->w, "decoder",
        "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true}");
    sbp_json_write_object(&c->w, "model");
    sbp_json_write_string(&c->w, "type", "BPE");
    sbp_json_write_null(&c->w, "dropout");
    sbp_json_write_null(&c->w, "unk_token");
    sbp_json_write_null(&c->w, "continuing_subword_prefix");
    sbp_json_write_null(&c->w, "end_of_word_suffix");
    sbp_json_write_bool(&c->w, "fuse_unk", false);
    sbp_json_write_bool(&c->w, "byte_fallback", false);
    sbp_json_write_bool(&c->w, "ignore_merges", ignore_merges);
}

void sbp_convert_split(tok_conversion *c, const char *pattern) {
    sbp_json_write_object(&c->w, NULL);
    sbp_json_write_string(&c->w, "type", "Split");
    sbp_json_write_object(&c->w, "pattern");
    sbp_json_write_string(&c->w, "Regex", pattern);
    sbp_json_write_end(&c->w);
    sbp_json_write_string(&c->w, "behavior", "Isolated");
    sbp_json_write_bool(&c->w, "invert", false);
    sbp_json_write_end(&c->w);
}

/* ---- merges ------------------------------------------------------------------------------------------- */

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

static void write_merge(tok_conversion *c, const cut *merged) {
    sbp_json_write_array(&c->w, NULL);
    sbp_convert_write_token(c, NULL, merged->left);
    sbp_convert_write_token(c, NULL, merged->right);
    sbp_json_write_end(&c->w);
}

typedef struct cuts {
    cut *list;
    int32_t count, capacity;
} cuts;

static void cut_token(tok_conversion *c, int64_t id, double score, cuts *out) {
    sbp_gguf_string token = c->tokens[id];
    char left[TOK_MAX_BYTES + 1];
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

static int32_t type_of(const tok_conversion *c, int64_t id) {
    return c->types ? c->types[id] : TOK_TYPE_NORMAL;
}

sbp_status sbp_convert_merges(tok_conversion *c, const double *scores) {
    int64_t first = 0; /* the best token that is not user-defined has score 0, too */
    while (first < c->count && type_of(c, first) != TOK_TYPE_NORMAL)
        first++;
    cuts all = {0};
    for (int64_t id = 0; id < c->count; id++) {
        double score = type_of(c, id) == TOK_TYPE_USER ? 0 : (double)(first - id);
        if (scores)
            score = scores[id];
        if (score != score)
            return sbp_fail(c->diag, SBP_INPUT, "%s: the score of token %lld is not a number", c->path,
                            (long long)id);
        cut_token(c, id, score, &all);
    }
    for (int32_t i = 0; i < all.count; i++)
        all.list[i].order = i;
    if (all.count > 0)
        qsort(all.list, (size_t)all.count, sizeof(cut), by_score);
    for (int32_t i = 0; i < all.count; i++)
        write_merge(c, &all.list[i]);
    return SBP_OK;
}

void sbp_convert_ranked_merges(tok_conversion *c, int64_t first) {
    cuts found = {0};
    for (int64_t id = first; id < c->count; id++) {
        found.count = 0;
        cut_token(c, id, 0, &found);
        for (int32_t i = 0; i < found.count; i++)
            if (found.list[i].left >= first && found.list[i].right >= first)
                write_merge(c, &found.list[i]);
    }
}
