/* stopping.c: generated ids to text, up to where it ends. */
#include "runtime/generate/stopping.h"

#include <stdlib.h>
#include <string.h>

#include "ir/base/json.h"

/* Bytes that grow. */
typedef struct buffer {
    char *data;
    size_t length, capacity;
} buffer;

struct sbp_text_stream {
    sbp_decode_stream *decode;
    sbp_stopping stopping;
    int64_t tokens; /* that came */
    bool ended;     /* the rest was given */
    buffer held;    /* what is decoded and not given: it may begin a stop string */
    buffer piece;   /* what the call gives */
};

const char *sbp_finish_name(sbp_finish finish) {
    return finish == SBP_FINISH_STOP ? "stop" : finish == SBP_FINISH_LENGTH ? "length" : NULL;
}

static sbp_status check(sbp_diag *diag, const sbp_stopping *stopping) {
    for (int32_t i = 0; i < stopping->string_count; i++) {
        const char *string = stopping->strings[i];
        if (!*string)
            return sbp_fail(diag, SBP_USAGE, "stop string %d is empty: it would stop every text", i + 1);
        if (!sbp_is_utf8(string, (int64_t)strlen(string)))
            return sbp_fail(diag, SBP_USAGE, "stop string %d is no UTF-8, so no text has it", i + 1);
    }
    if (stopping->most_tokens < 0)
        return sbp_fail(diag, SBP_USAGE, "a limit of %lld new tokens: expected 0 (none) or more",
                        (long long)stopping->most_tokens);
    return SBP_OK;
}

sbp_status sbp_text_stream_create(const sbp_tokenizer *tokenizer, sbp_diag *diag,
                                  const sbp_stopping *stopping, sbp_text_stream **out) {
    *out = NULL;
    SBP_TRY(check(diag, stopping));
    sbp_text_stream *s = sbp_malloc(sizeof *s);
    if (!s)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for generated text");
    *s = (sbp_text_stream){.stopping = *stopping};
    sbp_status status = sbp_decode_stream_create(tokenizer, diag, true, &s->decode);
    if (status == SBP_OK)
        *out = s;
    else
        free(s);
    return status;
}

void sbp_text_stream_destroy(sbp_text_stream *s) {
    if (!s)
        return;
    sbp_decode_stream_destroy(s->decode);
    free(s->held.data);
    free(s->piece.data);
    free(s);
}

static sbp_status append(buffer *b, sbp_diag *diag, const char *text, size_t length) {
    if (b->length + length + 1 > b->capacity) {
        size_t capacity = 2 * (b->length + length) + 64;
        char *data = sbp_realloc(b->data, capacity);
        if (!data)
            return sbp_fail(diag, SBP_MACHINE, "out of memory for %zu bytes of generated text", length);
        b->data = data;
        b->capacity = capacity;
    }
    memcpy(b->data + b->length, text, length);
    b->length += length;
    b->data[b->length] = 0;
    return SBP_OK;
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Cuts the text before the stop string that is complete first; none is in the first `old` bytes. */
static bool cut(const sbp_stopping *stopping, buffer *text, size_t old) {
    for (size_t end = old + 1; end <= text->length; end++) {
        size_t begin = end;
        for (int32_t i = 0; i < stopping->string_count; i++) {
            size_t length = strlen(stopping->strings[i]);
            if (length <= end && memcmp(text->data + end - length, stopping->strings[i], length) == 0)
                begin = least(begin, end - length);
        }
        if (begin < end) {
            text->length = begin;
            return true;
        }
    }
    return false;
}

/* Where what may be the beginning of a stop string begins at the end of the text. */
static size_t begun(const sbp_stopping *stopping, const buffer *text) {
    size_t from = text->length;
    for (int32_t i = 0; i < stopping->string_count; i++) {
        size_t most = strlen(stopping->strings[i]) - 1;
        for (size_t at = text->length - least(text->length, most); at < from; at++)
            if (memcmp(text->data + at, stopping->strings[i], text->length - at) == 0)
                from = at;
    }
    return from;
}

/* Takes what was decoded; last: nothing comes behind it. */
static sbp_status take(sbp_text_stream *s, sbp_diag *diag, const char *text, size_t length, bool last,
                       sbp_text_piece *out) {
    buffer *held = &s->held;
    size_t old = held->length;
    SBP_TRY(append(held, diag, text, length));
    if (cut(&s->stopping, held, old)) {
        out->finish = SBP_FINISH_STOP;
        last = true;
    }
    size_t final = last ? held->length : begun(&s->stopping, held);
    SBP_TRY(append(&s->piece, diag, held->data, final));
    memmove(held->data, held->data + final, held->length - final);
    held->length -= final;
    s->ended = last;
    return SBP_OK;
}

static sbp_status finish(sbp_text_stream *s, sbp_diag *diag, sbp_text_piece *out) {
    const char *text;
    size_t length;
    SBP_TRY(sbp_decode_stream_finish(s->decode, diag, &text, &length));
    return take(s, diag, text, length, true, out);
}

static void give(sbp_text_stream *s, sbp_text_piece *out) {
    out->text = s->piece.length > 0 ? s->piece.data : "";
    out->length = s->piece.length;
}

sbp_status sbp_text_stream_push(sbp_text_stream *s, sbp_diag *diag, int32_t id, sbp_text_piece *out) {
    const sbp_stopping *stopping = &s->stopping;
    const char *text;
    size_t length;
    bool ends = false;
    *out = (sbp_text_piece){.text = ""};
    if (s->ended)
        return sbp_fail(diag, SBP_INTERNAL, "the id %d comes behind the end of a text", id);
    s->piece.length = 0;
    s->tokens++;
    for (int32_t i = 0; i < stopping->end_id_count; i++)
        ends = ends || stopping->end_ids[i] == id;
    if (ends) {
        out->finish = SBP_FINISH_STOP;
    } else {
        SBP_TRY(sbp_decode_stream_push(s->decode, diag, id, &text, &length));
        SBP_TRY(take(s, diag, text, length, false, out));
        if (!s->ended && s->tokens == stopping->most_tokens)
            out->finish = SBP_FINISH_LENGTH;
    }
    if (!s->ended && out->finish != SBP_FINISH_NOT)
        SBP_TRY(finish(s, diag, out));
    give(s, out);
    return SBP_OK;
}

sbp_status sbp_text_stream_flush(sbp_text_stream *s, sbp_diag *diag, sbp_text_piece *out) {
    *out = (sbp_text_piece){.text = ""};
    s->piece.length = 0;
    if (!s->ended)
        SBP_TRY(finish(s, diag, out));
    give(s, out);
    return SBP_OK;
}
