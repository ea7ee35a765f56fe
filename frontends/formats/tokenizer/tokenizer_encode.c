/* tokenizer_encode.c: text to ids. */
#include "frontends/formats/tokenizer/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_TEXT_BYTES = 1 << 30 };

typedef struct encoding_call {
    const sbp_tokenizer *t;
    sbp_arena *scratch, *kept, *arena;
    sbp_diag *diag;
    const char *text;
    size_t length;
    unsigned flags;
    const int64_t *origin; /* [length + 1] when invalid bytes were replaced: offset in the given text */
    tok_work work;
    tok_tokens tokens;
    tok_buffers buffers;
    sbp_encoding out;
} encoding_call;

/* Replaces what is no UTF-8 by U+FFFD. */
static void make_valid(encoding_call *c) {
    const char *text = c->text;
    int64_t length = (int64_t)c->length, at = 0;
    int skip = 0, size = 1;
    while (at < length && (size = sbp_utf8_check(text + at, length - at, &skip)) > 0)
        at += size;
    if (at == length)
        return;
    int64_t most = at;
    for (int64_t i = at; i<length; most += size> 0 ? size : 3) {
        size = sbp_utf8_check(text + i, length - i, &skip);
        i += size > 0 ? size : skip;
    }
    char *valid = sbp_arena_alloc(c->kept, (size_t)most + 1);
    int64_t *origin = c->flags & SBP_WITH_OFFSETS ? SBP_NEW_ARRAY(c->kept, int64_t, most + 1) : NULL;
    int64_t n = 0;
    for (at = 0; at < length;) {
        size = sbp_utf8_check(text + at, length - at, &skip);
        const char *from = size > 0 ? text + at : "\xef\xbf\xbd";
        int bytes = size > 0 ? size : 3;
        for (int i = 0; i < bytes; i++) {
            valid[n + i] = from[i];
            if (origin)
                origin[n + i] = at;
        }
        n += bytes;
        at += size > 0 ? size : skip;
    }
    if (origin)
        origin[n] = length;
    c->text = valid;
    c->length = (size_t)n;
    c->origin = origin;
}

/* Hugging Face counts the spaces of the token's text, and moves the offsets by as many characters. */
static void trim_span(const encoding_call *c, const tok_trim *trim, int64_t index, const char *token,
                      int64_t length, tok_span *span) {
    int64_t leading = 0, trailing = 0, at = 0, end = length;
    uint32_t code;
    while (at < length) {
        int size = sbp_utf8_get(token + at, &code);
        if (code != sbp_byte_to_char(' ') && !sbp_is_whitespace(code))
            break;
        at += size;
        leading++;
    }
    while (end > 0) {
        int64_t start = sbp_utf8_start(token, end - 1);
        sbp_utf8_get(token + start, &code);
        if (code != sbp_byte_to_char(' ') && !sbp_is_whitespace(code))
            break;
        end = start;
        trailing++;
    }
    /* A single space at the front of the text may be one that was put in. */
    if (leading == 1 && trim->add_prefix_space && (index == 0 || span->begin == 0))
        leading = 0;
    for (; leading > 0 && span->begin < span->end; leading--)
        span->begin += sbp_utf8_get(c->text + span->begin, &code);
    for (; trailing > 0 && span->end > span->begin; trailing--)
        span->end = sbp_utf8_start(c->text, span->end - 1);
}

/* Trims the tokens from `from` on, which are those of one piece. An added token has the text that it
 * matched, with the white space that it swallowed. */
static void trim_tokens(encoding_call *c, const tok_piece *piece, int64_t from) {
    for (int32_t k = 0; k < c->t->trim_count; k++)
        for (int64_t i = from; i < c->tokens.count; i++) {
            size_t length = (size_t)piece->length;
            const char *token = piece->text;
            if (piece->added < 0)
                token = sbp_tokenizer_token(c->t, c->tokens.ids[i], &length);
            trim_span(c, &c->t->trims[k], i, token, (int64_t)length, &c->tokens.spans[i]);
        }
}

/* A piece behind the splitters. */
static sbp_status encode_piece(void *user, tok_piece *piece) {
    encoding_call *c = user;
    int64_t from = c->tokens.count;
    if (piece->added < 0) {
        SBP_TRY(sbp_model_encode(&c->work, &c->buffers, piece, &c->tokens));
    } else {
        tok_span span = {sbp_piece_span(piece, 0).begin, sbp_piece_span(piece, piece->length - 1).end};
        SBP_TRY(sbp_tokens_add(&c->work, &c->tokens, c->t->added[piece->added].id, span));
    }
    if (c->flags & SBP_WITH_OFFSETS)
        trim_tokens(c, piece, from);
    return SBP_OK;
}

static sbp_status split_piece(void *user, tok_piece *piece) {
    encoding_call *c = user;
    return sbp_pre_tokenize(&c->work, piece, encode_piece, c);
}

/* A piece between added tokens of the raw text, or such a token. */
static sbp_status normalize_piece(void *user, tok_piece *piece) {
    encoding_call *c = user;
    sbp_arena_mark mark = sbp_arena_begin(c->scratch);
    sbp_status status = piece->added < 0 ? sbp_normalize(&c->work, piece) : SBP_OK;
    if (status == SBP_OK)
        status = sbp_cut_added(&c->work, &c->t->normalized_trie, piece, split_piece, c);
    sbp_arena_end(c->scratch, mark);
    return status;
}

static sbp_status encode_scratch(void *user) {
    encoding_call *c = user;
    make_valid(c);
    if (c->length == 0)
        return SBP_OK;
    sbp_work_init(&c->work, c->t, c->scratch, c->kept, c->diag, c->flags & SBP_WITH_OFFSETS);
    c->work.track |= c->t->aligned_until >= 0;
    c->work.left += TOK_MOST_MADE_PER_BYTE * (int64_t)c->length;
    tok_piece whole = {.text = c->text, .length = (int64_t)c->length, .end = (int64_t)c->length, .added = -1};
    return sbp_cut_added(&c->work, &c->t->raw_trie, &whole, normalize_piece, c);
}

/* What stays, as the memory of regular expressions, while scratch memory is given back. */
static sbp_status encode_guarded(void *user) {
    encoding_call *c = user;
    return sbp_guard(c->kept, c->diag, encode_scratch, c);
}

static sbp_status encode_result(void *user) {
    encoding_call *c = user;
    bool special = c->flags & SBP_ADD_SPECIAL_TOKENS;
    int64_t before = special ? c->t->before_count : 0, after = special ? c->t->after_count : 0;
    sbp_encoding *out = &c->out;
    out->count = before + c->tokens.count + after;
    out->ids = SBP_NEW_ARRAY(c->arena, int32_t, out->count);
    for (int64_t i = 0; i < before; i++)
        out->ids[i] = c->t->before[i];
    if (c->tokens.count > 0)
        memcpy(out->ids + before, c->tokens.ids, (size_t)c->tokens.count * sizeof *out->ids);
    for (int64_t i = 0; i < after; i++)
        out->ids[before + c->tokens.count + i] = c->t->after[i];
    if (!(c->flags & SBP_WITH_OFFSETS))
        return SBP_OK;
    out->offsets = sbp_arena_array(c->arena, (size_t)out->count, sizeof *out->offsets);
    for (int64_t i = 0; i < c->tokens.count; i++) {
        tok_span span = c->tokens.spans[i];
        out->offsets[before + i][0] = c->origin ? c->origin[span.begin] : span.begin;
        out->offsets[before + i][1] = c->origin ? c->origin[span.end] : span.end;
    }
    return SBP_OK;
}

sbp_status sbp_tokenizer_encode(const sbp_tokenizer *t, sbp_arena *arena, sbp_diag *diag, const char *text,
                                size_t length, unsigned flags, sbp_encoding *out) {
    if (length > MAX_TEXT_BYTES)
        return sbp_fail(diag, SBP_INPUT, "the text has %zu bytes; at most %d can be tokenized at once",
                        length, MAX_TEXT_BYTES);
    encoding_call c = {.t = t,
                       .scratch = sbp_arena_create(),
                       .kept = sbp_arena_create(),
                       .arena = arena,
                       .diag = diag,
                       .text = text,
                       .length = length,
                       .flags = flags};
    sbp_status status = SBP_MACHINE;
    if (c.scratch && c.kept)
        status = sbp_guard(c.scratch, diag, encode_guarded, &c);
    else
        sbp_fail(diag, status, "out of memory tokenizing %zu bytes", length);
    sbp_arena_destroy(c.scratch);
    sbp_buffers_free(&c.buffers);
    if (status == SBP_OK)
        status = sbp_guard(arena, diag, encode_result, &c);
    sbp_arena_destroy(c.kept);
    free(c.tokens.ids);
    free(c.tokens.spans);
    if (status == SBP_OK)
        *out = c.out;
    return status;
}
