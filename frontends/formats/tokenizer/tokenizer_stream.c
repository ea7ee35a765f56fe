/* tokenizer_stream.c: ids to text, one id at a time.
 *
 * Strings go through the decoders one by one (feed). Those that work on a string alone, or know whether it is
 * the first, are run as they are (sbp_decode_stage). Others keep what they have to wait for: the bytes of a
 * run (BYTE_FALLBACK), the last string (SUFFIX), the beginning of a character (BYTE_LEVEL). From the first
 * that joins strings on, what is fed are pieces of one string, and only what is known to work on pieces may
 * follow; else the ids are kept and decoded at the end. */
#include "frontends/formats/tokenizer/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

/* Bytes that grow. */
typedef struct buffer {
    char *data;
    int64_t length, capacity;
} buffer;

typedef struct stage {
    buffer held;     /* bytes of a run; the last string; the beginning of a character */
    bool holds;      /* SUFFIX: there is a last string */
    bool joined;     /* strings are pieces of one */
    int64_t before;  /* strings that came */
    int64_t to_drop; /* STRIP, joined: characters that may still be taken off the beginning */
} stage;

struct sbp_decode_stream {
    const sbp_tokenizer *t;
    bool skip_special;
    bool whole; /* ids are decoded at the end */
    sbp_arena *scratch;
    tok_work work; /* of the call, as the next two are */
    sbp_diag *diag;
    int32_t id;    /* -1: it is the end */
    int64_t count; /* ids that came */
    buffer ids;    /* whole: int32_t each */
    stage *stages; /* [decoder_count] */
    buffer text;   /* what the call gives */
    bool spaced;   /* without a decoder: a string came, so a space is before the next */
};

static sbp_status add(sbp_decode_stream *s, buffer *b, const void *bytes, int64_t length) {
    if (b->length + length + 1 > b->capacity) {
        int64_t capacity = sbp_max_i64(64, 2 * (b->length + length + 1));
        char *data = sbp_realloc(b->data, (size_t)capacity);
        if (!data)
            return sbp_fail(s->diag, SBP_MACHINE, "out of memory decoding the id at position %lld",
                            (long long)s->count);
        b->data = data;
        b->capacity = capacity;
    }
    if (length > 0)
        memcpy(b->data + b->length, bytes, (size_t)length);
    b->length += length;
    b->data[b->length] = 0;
    return SBP_OK;
}

/* ---- stages ------------------------------------------------------------------------------------------- */

static sbp_status feed(sbp_decode_stream *s, int32_t k, sbp_gguf_string piece);

/* Runs a decoder on one string, and feeds what comes of it. */
static sbp_status run_stage(sbp_decode_stream *s, int32_t k, sbp_gguf_string piece, bool more) {
    tok_decoding d = {.scratch = s->scratch,
                      .work = s->work,
                      .list = &piece,
                      .n = 1,
                      .before = s->stages[k].before++,
                      .more = more};
    d.work.left = TOK_MOST_MADE + TOK_MOST_MADE_PER_BYTE * piece.length;
    SBP_TRY(sbp_decode_stage(&d, &s->t->decoders[k]));
    return feed(s, k + 1, piece);
}

/* The run is over. */
static sbp_status end_run(sbp_decode_stream *s, int32_t k) {
    buffer *run = &s->stages[k].held;
    int64_t length = run->length;
    run->length = 0;
    if (length > 0 && sbp_is_utf8(run->data, length))
        return feed(s, k + 1, (sbp_gguf_string){run->data, length});
    for (int64_t i = 0; i < length; i++)
        SBP_TRY(feed(s, k + 1, (sbp_gguf_string){"\xef\xbf\xbd", 3}));
    return SBP_OK;
}

static sbp_status feed_byte_fallback(sbp_decode_stream *s, int32_t k, sbp_gguf_string piece) {
    int byte = sbp_decode_named_byte(piece);
    char c = (char)byte;
    if (byte >= 0)
        return add(s, &s->stages[k].held, &c, 1);
    SBP_TRY(end_run(s, k));
    return feed(s, k + 1, piece);
}

/* Whether bytes that are no character may become one by more behind them. */
static bool may_become_one(const char *bytes, int64_t length, int skip) {
    unsigned char first = (unsigned char)bytes[0];
    return skip == length && first >= 0xc2 && first <= 0xf4;
}

static sbp_status feed_bytes(sbp_decode_stream *s, int32_t k, sbp_gguf_string piece, bool more) {
    buffer *held = &s->stages[k].held;
    sbp_text bytes, out;
    int64_t at = 0;
    sbp_text_init(&bytes, s->scratch);
    sbp_text_init(&out, s->scratch);
    if (held->length > 0)
        sbp_text_add_n(&bytes, held->data, (size_t)held->length);
    sbp_decode_bytes(&bytes, piece);
    held->length = 0;
    for (int64_t length = (int64_t)bytes.length; at < length;) {
        int skip, size = sbp_utf8_check(bytes.data + at, length - at, &skip);
        if (size == 0 && more && may_become_one(bytes.data + at, length - at, skip))
            break;
        sbp_text_add_n(&out, size > 0 ? bytes.data + at : "\xef\xbf\xbd", size > 0 ? (size_t)size : 3);
        at += size > 0 ? size : skip;
    }
    SBP_TRY(add(s, held, bytes.data + at, (int64_t)bytes.length - at));
    return feed(s, k + 1, (sbp_gguf_string){out.data, (int64_t)out.length});
}

/* The string before goes on as one that is not the last. */
static sbp_status feed_suffix(sbp_decode_stream *s, int32_t k, sbp_gguf_string piece, bool more) {
    stage *at = &s->stages[k];
    if (at->holds) {
        char *copy = sbp_arena_strndup(s->scratch, at->held.data, (size_t)at->held.length);
        SBP_TRY(run_stage(s, k, (sbp_gguf_string){copy, at->held.length}, more));
    }
    at->held.length = 0;
    at->holds = more;
    return more ? add(s, &at->held, piece.data, piece.length) : SBP_OK;
}

static sbp_status feed_joined_strip(sbp_decode_stream *s, int32_t k, sbp_gguf_string piece) {
    char character[4];
    int64_t size = sbp_utf8_put(character, s->t->decoders[k].code), *left = &s->stages[k].to_drop;
    for (; *left > 0 && piece.length > 0; --*left) {
        if (piece.length < size || memcmp(piece.data, character, (size_t)size) != 0) {
            *left = 0;
            break;
        }
        piece.data += size;
        piece.length -= size;
    }
    return feed(s, k + 1, piece);
}

/* Gives a string to decoder k; behind the last it is text. */
static sbp_status feed(sbp_decode_stream *s, int32_t k, sbp_gguf_string piece) {
    if (k == s->t->decoder_count) {
        if (!s->t->has_decoder && s->spaced)
            SBP_TRY(add(s, &s->text, " ", 1));
        s->spaced = true;
        return add(s, &s->text, piece.data, piece.length);
    }
    switch (s->t->decoders[k].kind) {
    case TOK_DECODE_BYTE_LEVEL:
        return feed_bytes(s, k, piece, true);
    case TOK_DECODE_BYTE_FALLBACK:
        return feed_byte_fallback(s, k, piece);
    case TOK_DECODE_SUFFIX:
        return feed_suffix(s, k, piece, true);
    case TOK_DECODE_FUSE:
        return feed(s, k + 1, piece);
    case TOK_DECODE_STRIP:
        return s->stages[k].joined ? feed_joined_strip(s, k, piece) : run_stage(s, k, piece, true);
    case TOK_DECODE_REPLACE:
    case TOK_DECODE_METASPACE:
    case TOK_DECODE_WORDPIECE:
        break;
    }
    return run_stage(s, k, piece, true);
}

/* What the decoders hold back, in their order. */
static sbp_status finish_stages(sbp_decode_stream *s) {
    static const sbp_gguf_string none = {"", 0};
    for (int32_t k = 0; k < s->t->decoder_count; k++)
        switch (s->t->decoders[k].kind) {
        case TOK_DECODE_BYTE_LEVEL:
            SBP_TRY(feed_bytes(s, k, none, false));
            break;
        case TOK_DECODE_BYTE_FALLBACK:
            SBP_TRY(end_run(s, k));
            break;
        case TOK_DECODE_SUFFIX:
            SBP_TRY(feed_suffix(s, k, none, false));
            break;
        default:
            break;
        }
    return SBP_OK;
}

/* ---- the stream --------------------------------------------------------------------------------------- */

/* Which decoders work on pieces of one string, and whether all work piece by piece. */
static void prepare(sbp_decode_stream *s) {
    bool joined = false;
    for (int32_t k = 0; k < s->t->decoder_count; k++) {
        const tok_decoder *d = &s->t->decoders[k];
        if (joined && d->kind != TOK_DECODE_FUSE && (d->kind != TOK_DECODE_STRIP || d->stop > 0))
            s->whole = true;
        s->stages[k] = (stage){.joined = joined, .to_drop = d->start};
        joined = joined || d->kind == TOK_DECODE_BYTE_LEVEL || d->kind == TOK_DECODE_FUSE;
    }
}

sbp_status sbp_decode_stream_create(const sbp_tokenizer *t, sbp_diag *diag, bool skip_special,
                                    sbp_decode_stream **out) {
    sbp_decode_stream *s = sbp_malloc(sizeof *s);
    *out = s;
    if (s) {
        *s = (sbp_decode_stream){.t = t,
                                 .skip_special = skip_special,
                                 .scratch = sbp_arena_create(),
                                 .stages = sbp_malloc((size_t)(t->decoder_count + 1) * sizeof *s->stages)};
        if (s->stages)
            prepare(s);
        if (s->stages && s->scratch)
            return SBP_OK;
        sbp_decode_stream_destroy(s);
        *out = NULL;
    }
    return sbp_fail(diag, SBP_MACHINE, "out of memory to decode ids");
}

void sbp_decode_stream_destroy(sbp_decode_stream *s) {
    if (!s)
        return;
    for (int32_t k = 0; s->stages && k < s->t->decoder_count; k++)
        free(s->stages[k].held.data);
    free(s->stages);
    free(s->ids.data);
    free(s->text.data);
    sbp_arena_destroy(s->scratch);
    free(s);
}

static sbp_status push_body(void *user) {
    sbp_decode_stream *s = user;
    sbp_work_init(&s->work, s->t, s->scratch, s->scratch, s->diag, false);
    if (s->id < 0)
        return finish_stages(s);
    sbp_gguf_string piece = sbp_decode_spelling(s->t, s->id, s->skip_special);
    return piece.data ? feed(s, 0, piece) : SBP_OK;
}

static sbp_status whole_body(void *user) {
    sbp_decode_stream *s = user;
    const char *text;
    size_t length;
    SBP_TRY(sbp_tokenizer_decode(s->t, s->scratch, s->diag, (const int32_t *)(const void *)s->ids.data,
                                 s->ids.length / (int64_t)sizeof(int32_t), s->skip_special, &text, &length));
    s->ids.length = 0;
    return add(s, &s->text, text, (int64_t)length);
}

static sbp_status run(sbp_decode_stream *s, sbp_diag *diag, int32_t id, const char **text, size_t *length) {
    sbp_status status;
    sbp_arena_mark mark = sbp_arena_begin(s->scratch);
    s->diag = diag;
    s->id = id;
    s->text.length = 0;
    if (s->whole && id >= 0)
        status = add(s, &s->ids, &id, sizeof id);
    else
        status = sbp_guard(s->scratch, diag, s->whole ? whole_body : push_body, s);
    sbp_arena_end(s->scratch, mark);
    s->count++;
    *text = s->text.length > 0 ? s->text.data : "";
    *length = (size_t)s->text.length;
    return status;
}

sbp_status sbp_decode_stream_push(sbp_decode_stream *s, sbp_diag *diag, int32_t id, const char **text,
                                  size_t *length) {
    if (id < 0)
        return sbp_fail(diag, SBP_INPUT, "cannot decode the id %d at position %lld", id, (long long)s->count);
    return run(s, diag, id, text, length);
}

sbp_status sbp_decode_stream_finish(sbp_decode_stream *s, sbp_diag *diag, const char **text, size_t *length) {
    return run(s, diag, -1, text, length);
}
