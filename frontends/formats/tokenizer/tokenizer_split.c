/* tokenizer_split.c: pre-tokenizers. Every splitter hands each piece on before it cuts off the next one. */
#include "frontends/formats/tokenizer/tokenizer_internal.h"

#include <string.h>

/* One text on its way through the splitters from `level` on. */
typedef struct splitting {
    tok_work *work;
    int32_t level;
    const tok_piece *piece; /* what this level cuts */
    tok_match held;         /* a stretch that may still grow */
    bool has_held;
    tok_piece_sink sink;
    void *user;
} splitting;

static sbp_status split_level(tok_work *work, int32_t level, tok_piece *piece, tok_piece_sink sink,
                              void *user);

static const tok_splitter *splitter_of(const splitting *s) {
    return &s->work->t->splitters[s->level];
}

static sbp_status pass_on(splitting *s, tok_piece piece) {
    return piece.length == 0 ? SBP_OK : split_level(s->work, s->level + 1, &piece, s->sink, s->user);
}

static sbp_status give(splitting *s, tok_match m) {
    tok_piece slice = sbp_piece_slice(s->piece, m.begin, m.end);
    if (splitter_of(s)->kind != TOK_BYTE_LEVEL || slice.length == 0)
        return pass_on(s, slice);
    sbp_arena_mark mark = sbp_arena_begin(s->work->arena);
    sbp_piece_to_bytes(s->work, &slice);
    sbp_status status = sbp_work_check(s->work);
    if (status == SBP_OK)
        status = pass_on(s, slice);
    sbp_arena_end(s->work->arena, mark);
    return status;
}

/* Whether m becomes part of the stretch before it. */
static bool grows(tok_behavior behavior, tok_match held, tok_match m) {
    switch (behavior) {
    case TOK_CONTIGUOUS:
        return held.is_match == m.is_match;
    case TOK_MERGED_WITH_PREVIOUS:
        return m.is_match && !held.is_match;
    case TOK_MERGED_WITH_NEXT:
        return held.is_match && !m.is_match;
    default:
        return false;
    }
}

static sbp_status give_held(splitting *s) {
    bool given = s->has_held;
    s->has_held = false;
    return given ? give(s, s->held) : SBP_OK;
}

/* A stretch of the text, as the behavior has it. A held one that grew has the kind of its last part. */
static sbp_status take_match(void *user, tok_match m) {
    splitting *s = user;
    const tok_splitter *splitter = splitter_of(s);
    tok_behavior behavior = splitter->kind == TOK_SPLIT        ? splitter->behavior
                            : splitter->kind == TOK_BYTE_LEVEL ? TOK_ISOLATED
                                                               : TOK_MERGED_WITH_NEXT;
    m.is_match ^= splitter->kind == TOK_SPLIT && splitter->invert;
    if (behavior == TOK_REMOVED)
        return m.is_match ? SBP_OK : give(s, m);
    if (s->has_held && grows(behavior, s->held, m)) {
        s->held.end = m.end;
        s->held.is_match = m.is_match;
        return SBP_OK;
    }
    SBP_TRY(give_held(s));
    s->held = m;
    s->has_held = true;
    return SBP_OK;
}

static sbp_status split_by(splitting *s, const tok_pattern *pattern, const tok_piece *piece) {
    s->piece = piece;
    SBP_TRY(sbp_find_matches(s->work, pattern, piece->text, piece->length, take_match, s));
    return give_held(s);
}

static bool starts_with(const tok_piece *piece, const char *text, int64_t length) {
    return piece->length >= length && memcmp(piece->text, text, (size_t)length) == 0;
}

static sbp_status split_byte_level(splitting *s, tok_piece *piece) {
    const tok_splitter *splitter = splitter_of(s);
    if (splitter->add_prefix_space && !starts_with(piece, " ", 1))
        sbp_piece_prepend(s->work, piece, " ", 1);
    SBP_TRY(sbp_work_check(s->work));
    if (splitter->pattern.code)
        return split_by(s, &splitter->pattern, piece);
    sbp_piece_to_bytes(s->work, piece);
    SBP_TRY(sbp_work_check(s->work));
    return pass_on(s, *piece);
}

static sbp_status split_metaspace(splitting *s, tok_piece *piece) {
    static const tok_pattern space = {.literal = " ", .literal_length = 1};
    const tok_splitter *splitter = splitter_of(s);
    const char *text = splitter->pattern.literal;
    int64_t length = splitter->pattern.literal_length;
    SBP_TRY(sbp_piece_replace(s->work, piece, &space, text, length));
    bool wanted = splitter->scheme == TOK_ALWAYS || (splitter->scheme == TOK_FIRST && piece->begin == 0);
    if (wanted && !starts_with(piece, text, length))
        sbp_piece_prepend(s->work, piece, text, length);
    SBP_TRY(sbp_work_check(s->work));
    return splitter->split ? split_by(s, &splitter->pattern, piece) : pass_on(s, *piece);
}

static sbp_status split_level(tok_work *work, int32_t level, tok_piece *piece, tok_piece_sink sink,
                              void *user) {
    splitting s = {.work = work, .level = level, .sink = sink, .user = user};
    if (level == work->t->splitter_count || piece->added >= 0)
        return sink(user, piece);
    sbp_arena_mark mark = sbp_arena_begin(work->arena);
    bool outer = work->track;
    work->track = work->offsets || level < work->t->aligned_until;
    sbp_status status;
    switch (splitter_of(&s)->kind) {
    case TOK_BYTE_LEVEL:
        status = split_byte_level(&s, piece);
        break;
    case TOK_METASPACE:
        status = split_metaspace(&s, piece);
        break;
    default:
        status = split_by(&s, &splitter_of(&s)->pattern, piece);
        break;
    }
    work->track = outer;
    sbp_arena_end(work->arena, mark);
    return status;
}

sbp_status sbp_pre_tokenize(tok_work *work, tok_piece *piece, tok_piece_sink sink, void *user) {
    return split_level(work, 0, piece, sink, user);
}
