/* tokenizer_builder.c: pieces of text with their alignment to the original, and making them.
 *
 * Alignment follows Hugging Face's NormalizedString: every byte of normalized text carries the range of
 * the original it comes from; a character that was put in carries that of the byte before it.
 */
#include "frontends/formats/tokenizer/tokenizer_internal.h"

#include <string.h>

tok_span sbp_piece_span(const tok_piece *piece, int64_t at) {
    if (piece->align)
        return piece->align[at];
    uint32_t code;
    int64_t start = sbp_utf8_start(piece->text, at);
    int size = sbp_utf8_get(piece->text + start, &code);
    return (tok_span){piece->base + start, piece->base + start + size};
}

tok_piece sbp_piece_slice(const tok_piece *piece, int64_t begin, int64_t end) {
    tok_piece slice = *piece;
    slice.text = piece->text + begin;
    slice.length = end - begin;
    slice.align = piece->align ? piece->align + begin : NULL;
    slice.base = piece->base + begin;
    if (end > begin) {
        slice.begin = sbp_piece_span(piece, begin).begin;
        slice.end = sbp_piece_span(piece, end - 1).end;
    }
    return slice;
}

bool sbp_work_take(tok_work *work, int64_t bytes) {
    if (work->left >= bytes) {
        work->left -= bytes;
        return true;
    }
    work->left = -1;
    return false;
}

sbp_status sbp_work_check(const tok_work *work) {
    return work->left >= 0
               ? SBP_OK
               : sbp_fail(work->diag, SBP_INPUT,
                          "%s: it makes more of a text than %d MiB and %d bytes for each of its own: that "
                          "is no tokenizer",
                          work->t->file, TOK_MOST_MADE >> 20, TOK_MOST_MADE_PER_BYTE);
}

tok_builder sbp_builder_start(tok_work *work, const tok_piece *piece, int64_t capacity) {
    tok_builder b = {
        .arena = work->arena, .work = work, .piece = piece, .capacity = capacity < 16 ? 16 : capacity};
    b.text = sbp_arena_alloc(b.arena, (size_t)b.capacity);
    if (work->track)
        b.align = SBP_NEW_ARRAY(b.arena, tok_span, b.capacity);
    return b;
}

static bool builder_reserve(tok_builder *b, int64_t more) {
    if (!sbp_work_take(b->work, more * (b->align ? 1 + (int64_t)sizeof *b->align : 1)))
        return false;
    if (b->length + more <= b->capacity)
        return true;
    int64_t capacity = (b->length + more) * 2;
    char *text = sbp_arena_alloc(b->arena, (size_t)capacity);
    memcpy(text, b->text, (size_t)b->length);
    b->text = text;
    if (b->align) {
        tok_span *align = SBP_NEW_ARRAY(b->arena, tok_span, capacity);
        memcpy(align, b->align, (size_t)b->length * sizeof *align);
        b->align = align;
    }
    b->capacity = capacity;
    return true;
}

void sbp_builder_add(tok_builder *b, const char *text, int64_t length, tok_span span) {
    if (!builder_reserve(b, length))
        return;
    memcpy(b->text + b->length, text, (size_t)length);
    if (b->align)
        for (int64_t i = 0; i < length; i++)
            b->align[b->length + i] = span;
    b->length += length;
}

void sbp_builder_add_code(tok_builder *b, uint32_t code, tok_span span) {
    char bytes[4];
    sbp_builder_add(b, bytes, sbp_utf8_put(bytes, code), span);
}

/* Bytes begin .. end - 1 of the old text as they are. */
void sbp_builder_copy(tok_builder *b, int64_t begin, int64_t end) {
    if (!builder_reserve(b, end - begin))
        return;
    memcpy(b->text + b->length, b->piece->text + begin, (size_t)(end - begin));
    if (b->align)
        for (int64_t i = begin; i < end; i++)
            b->align[b->length + i - begin] = sbp_piece_span(b->piece, i);
    b->length += end - begin;
}

/* What a character put in at byte `at` of the old text is aligned with. */
tok_span sbp_builder_span_before(const tok_builder *b, int64_t at) {
    if (!b->align)
        return (tok_span){0, 0};
    return at < 1 ? (tok_span){b->piece->begin, b->piece->begin} : sbp_piece_span(b->piece, at - 1);
}

tok_span sbp_builder_span_at(const tok_builder *b, int64_t at) {
    return b->align && at < b->piece->length ? sbp_piece_span(b->piece, at) : sbp_builder_span_before(b, at);
}

void sbp_builder_finish(tok_builder *b, tok_piece *piece) {
    piece->text = b->text;
    piece->length = b->length;
    piece->align = b->align;
}
