/* tokenizer_convert.c: a vocabulary with types and scores, written as tokenizer.json text.
 *
 * Merges are recovered from the vocabulary as transformers does: every way to cut a token into two tokens,
 * best score first.
 */
#include "frontends/tokenizer/tokenizer_convert.h"

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

/* ---- writing
 * ----------------------------------------------------------------------------------------------------- */

void sbp_convert_print(tok_conversion *c, const char *text) {
    sbp_text_add_n(&c->out, text, strlen(text));
}

void sbp_convert_string(tok_conversion *c, const char *text, int64_t length) {
    sbp_json_add_string(&c->out, text, (size_t)length);
}

void sbp_convert_print_token(tok_conversion *c, int64_t id) {
    sbp_convert_string(c, c->tokens[id].data, c->tokens[id].length);
}

void sbp_convert_added(tok_conversion *c) {
    bool any = false;
    sbp_convert_print(c, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[");
    for (int64_t id = 0; c->types && id < c->count; id++) {
        int32_t type = c->types[id];
        if (type != TOK_TYPE_UNKNOWN && type != TOK_TYPE_CONTROL && type != TOK_TYPE_USER)
            continue;
        sbp_text_add(&c->out, "%s{\"id\":%lld,\"content\":", any ? "," : "", (long long)id);
        sbp_convert_print_token(c, id);
        sbp_convert_print(
            c, ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":");
        sbp_convert_print(c, type == TOK_TYPE_USER ? "false}" : "true}");
        any = true;
    }
    sbp_convert_print(c, any ? "," TOK_NAMED_HEAD : TOK_NAMED_HEAD);
    any = false;
    for (int role = 0; role < 4; role++) {
        if (c->role_ids[role] < 0)
            continue;
        sbp_text_add(&c->out, "%s\"%s\":", any ? "," : "", sbp_token_role_name((sbp_token_role)role));
        sbp_convert_print_token(c, c->role_ids[role]);
        any = true;
    }
    sbp_convert_print(c, "}}]");
}

static void print_template_token(tok_conversion *c, int64_t id) {
    sbp_convert_print(c, "{\"SpecialToken\":{\"id\":");
    sbp_convert_print_token(c, id);
    sbp_convert_print(c, ",\"type_id\":0}}");
}

sbp_status sbp_convert_processor(tok_conversion *c, bool add_bos, bool add_eos) {
    int64_t bos = c->role_ids[SBP_TOKEN_BOS], eos = c->role_ids[SBP_TOKEN_EOS];
    if ((add_bos && bos < 0) || (add_eos && eos < 0))
        return sbp_fail(c->diag, SBP_INPUT, "%s: a %s token is to be added, but there is none", c->path,
                        add_bos && bos < 0 ? "bos" : "eos");
    sbp_convert_print(c, ",\"post_processor\":");
    if (!add_bos && !add_eos) {
        sbp_convert_print(c, "null");
        return SBP_OK;
    }
    sbp_convert_print(c, "{\"type\":\"TemplateProcessing\"");
    for (int pair = 0; pair < 2; pair++) {
        sbp_convert_print(c, pair ? ",\"pair\":[" : ",\"single\":[");
        for (int k = 0; k <= pair; k++) {
            sbp_convert_print(c, k ? "," : "");
            if (add_bos) {
                print_template_token(c, bos);
                sbp_convert_print(c, ",");
            }
            sbp_text_add(&c->out, "{\"Sequence\":{\"id\":\"%s\",\"type_id\":%d}}", k ? "B" : "A", k);
            if (add_eos) {
                sbp_convert_print(c, ",");
                print_template_token(c, eos);
            }
        }
        sbp_convert_print(c, "]");
    }
    sbp_convert_print(c, ",\"special_tokens\":{");
    for (int role = SBP_TOKEN_BOS, any = 0; role <= SBP_TOKEN_EOS; role++) {
        if (!(role == SBP_TOKEN_BOS ? add_bos : add_eos) || (any && bos == eos))
            continue;
        sbp_convert_print(c, any ? "," : "");
        sbp_convert_print_token(c, c->role_ids[role]);
        sbp_convert_print(c, ":{\"id\":");
        sbp_convert_print_token(c, c->role_ids[role]);
        sbp_text_add(&c->out, ",\"ids\":[%lld],\"tokens\":[", (long long)c->role_ids[role]);
        sbp_convert_print_token(c, c->role_ids[role]);
        sbp_convert_print(c, "]}");
        any = 1;
    }
    sbp_convert_print(c, "}}");
    return SBP_OK;
}

void sbp_convert_vocabulary(tok_conversion *c) {
    sbp_convert_print(c, ",\"vocab\":{");
    for (int64_t id = 0; id < c->count; id++) {
        sbp_convert_print(c, id ? "," : "");
        sbp_convert_print_token(c, id);
        sbp_text_add(&c->out, ":%lld", (long long)id);
    }
    sbp_convert_print(c, "},\"merges\":[");
}

void sbp_convert_decoder(tok_conversion *c, bool dummy_prefix) {
    sbp_convert_print(
        c, ",\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{"
           "\"String\":\"\xe2\x96\x81\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}");
    sbp_convert_print(c, dummy_prefix ? ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}"
                                      : "]}");
}

void sbp_convert_bpe(tok_conversion *c, bool byte_fallback) {
    sbp_convert_print(c, ",\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":");
    if (c->role_ids[SBP_TOKEN_UNK] >= 0)
        sbp_convert_print_token(c, c->role_ids[SBP_TOKEN_UNK]);
    else
        sbp_convert_print(c, "null");
    sbp_text_add(&c->out,
                 ",\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":true,\"byte_"
                 "fallback\":%s,\"ignore_merges\":false",
                 byte_fallback ? "true" : "false");
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

int32_t sbp_convert_type(const tok_conversion *c, int64_t id) {
    return c->types ? c->types[id] : TOK_TYPE_NORMAL;
}

sbp_status sbp_convert_merges(tok_conversion *c, const double *scores) {
    int64_t first = 0; /* the best token that is not user-defined has score 0, too */
    while (first < c->count && sbp_convert_type(c, first) != TOK_TYPE_NORMAL)
        first++;
    cuts all = {0};
    for (int64_t id = 0; id < c->count; id++) {
        double score = sbp_convert_type(c, id) == TOK_TYPE_USER ? 0 : (double)(first - id);
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
    for (int32_t i = 0; i < all.count; i++) {
        sbp_convert_print(c, i ? ",[" : "[");
        sbp_convert_print_token(c, all.list[i].left);
        sbp_convert_print(c, ",");
        sbp_convert_print_token(c, all.list[i].right);
        sbp_convert_print(c, "]");
    }
    return SBP_OK;
}

void sbp_convert_ranked_merges(tok_conversion *c, int64_t first) {
    bool any = false;
    cuts found = {0};
    for (int64_t id = first; id < c->count; id++) {
        found.count = 0;
        cut_token(c, id, 0, &found);
        for (int32_t i = 0; i < found.count; i++) {
            if (found.list[i].left < first || found.list[i].right < first)
                continue;
            sbp_convert_print(c, any ? ",[" : "[");
            sbp_convert_print_token(c, found.list[i].left);
            sbp_convert_print(c, ",");
            sbp_convert_print_token(c, found.list[i].right);
            sbp_convert_print(c, "]");
            any = true;
        }
    }
}
