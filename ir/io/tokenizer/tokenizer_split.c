/* tokenizer_split.c: pre-tokenizers. */
#include "ir/io/tokenizer/tokenizer_internal.h"

#include <string.h>

/* Turns matches into the stretches that are kept: those with is_match false are, the others are dropped. */
static void apply_behavior(tok_matches *m, tok_behavior behavior) {
    int32_t kept = 0;
    bool previous = false;
    switch (behavior) {
    case TOK_REMOVED:
        return;
    case TOK_ISOLATED:
        kept = m->count;
        break;
    case TOK_CONTIGUOUS:
        for (int32_t i = 0; i < m->count; i++) {
            if (m->list[i].is_match == previous && kept > 0)
                m->list[kept - 1].end = m->list[i].end;
            else
                m->list[kept++] = (tok_match){m->list[i].begin, m->list[i].end, m->list[i].is_match};
            previous = m->list[kept - 1].is_match;
        }
        break;
    case TOK_MERGED_WITH_PREVIOUS:
        for (int32_t i = 0; i < m->count; i++) {
            bool is_match = m->list[i].is_match;
            if (is_match && !previous && kept > 0)
                m->list[kept - 1].end = m->list[i].end;
            else
                m->list[kept++] = m->list[i];
            previous = is_match;
        }
        break;
    case TOK_MERGED_WITH_NEXT:
        /* From the end; the kept ones collect at the end of the list. */
        kept = m->count;
        for (int32_t i = m->count - 1; i >= 0; i--) {
            bool is_match = m->list[i].is_match;
            if (is_match && !previous && kept < m->count)
                m->list[kept].begin = m->list[i].begin;
            else
                m->list[--kept] = m->list[i];
            previous = is_match;
        }
        memmove(m->list, m->list + kept, (size_t)(m->count - kept) * sizeof *m->list);
        kept = m->count - kept;
        break;
    }
    m->count = kept;
    for (int32_t i = 0; i < kept; i++)
        m->list[i].is_match = false;
}

typedef struct pieces {
    tok_work *work;
    tok_piece *list;
    int32_t count, capacity;
} pieces;

static void add_piece(pieces *out, tok_piece piece) {
    if (piece.length > 0)
        SBP_PUSH(out->work->arena, out->list, out->count, out->capacity, piece);
}

static sbp_status split_piece(pieces *out, tok_matches *matches, const tok_piece *piece,
                              const tok_pattern *pattern, tok_behavior behavior, bool invert) {
    SBP_TRY(sbp_find_matches(out->work, pattern, piece->text, piece->length, matches));
    if (invert)
        for (int32_t i = 0; i < matches->count; i++)
            matches->list[i].is_match = !matches->list[i].is_match;
    apply_behavior(matches, behavior);
    for (int32_t i = 0; i < matches->count; i++)
        if (!matches->list[i].is_match)
            add_piece(out, sbp_piece_slice(piece, matches->list[i].begin, matches->list[i].end));
    return SBP_OK;
}

static bool starts_with(const tok_piece *piece, const char *text, int64_t length) {
    return piece->length >= length && memcmp(piece->text, text, (size_t)length) == 0;
}

static sbp_status split_byte_level(pieces *out, tok_matches *matches, const tok_splitter *s,
                                   tok_piece piece) {
    if (s->add_prefix_space && !starts_with(&piece, " ", 1))
        sbp_piece_prepend(out->work, &piece, " ", 1);
    int32_t from = out->count;
    if (s->pattern.code)
        SBP_TRY(split_piece(out, matches, &piece, &s->pattern, TOK_ISOLATED, false));
    else
        add_piece(out, piece);
    for (int32_t i = from; i < out->count; i++)
        sbp_piece_to_bytes(out->work, &out->list[i]);
    return SBP_OK;
}

static sbp_status split_metaspace(pieces *out, tok_matches *matches, const tok_splitter *s, tok_piece piece) {
    static const tok_pattern space = {.literal = " ", .literal_length = 1};
    const char *text = s->pattern.literal;
    int64_t length = s->pattern.literal_length;
    SBP_TRY(sbp_piece_replace(out->work, &piece, &space, text, length));
    bool wanted = s->scheme == TOK_ALWAYS || (s->scheme == TOK_FIRST && piece.begin == 0);
    if (wanted && !starts_with(&piece, text, length))
        sbp_piece_prepend(out->work, &piece, text, length);
    if (s->split)
        return split_piece(out, matches, &piece, &s->pattern, TOK_MERGED_WITH_NEXT, false);
    add_piece(out, piece);
    return SBP_OK;
}

sbp_status sbp_pre_tokenize(tok_work *work) {
    tok_matches matches = {0};
    for (int32_t k = 0; k < work->t->splitter_count; k++) {
        const tok_splitter *s = &work->t->splitters[k];
        pieces out = {.work = work};
        for (int32_t i = 0; i < work->piece_count; i++) {
            const tok_piece *piece = &work->pieces[i];
            if (piece->added >= 0) {
                SBP_PUSH(work->arena, out.list, out.count, out.capacity, *piece);
                continue;
            }
            switch (s->kind) {
            case TOK_BYTE_LEVEL:
                SBP_TRY(split_byte_level(&out, &matches, s, *piece));
                break;
            case TOK_METASPACE:
                SBP_TRY(split_metaspace(&out, &matches, s, *piece));
                break;
            case TOK_SPLIT:
                SBP_TRY(split_piece(&out, &matches, piece, &s->pattern, s->behavior, s->invert));
                break;
            }
        }
        work->pieces = out.list;
        work->piece_count = out.count;
        work->piece_capacity = out.capacity;
    }
    return SBP_OK;
}
