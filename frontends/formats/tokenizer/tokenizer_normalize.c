/* tokenizer_normalize.c: the normalizers. */
#include "frontends/formats/tokenizer/tokenizer_internal.h"

#include <string.h>
#include <utf8proc.h>

/* ---- in pieces ---------------------------------------------------------------------------------------- */

void sbp_piece_prepend(tok_work *work, tok_piece *piece, const char *text, int64_t length) {
    if (piece->length == 0)
        return;
    tok_builder b = sbp_builder_start(work, piece, piece->length + length);
    sbp_builder_add(&b, text, length, sbp_builder_span_at(&b, 0));
    sbp_builder_copy(&b, 0, piece->length);
    sbp_builder_finish(&b, piece);
}

void sbp_piece_to_bytes(tok_work *work, tok_piece *piece) {
    tok_builder b = sbp_builder_start(work, piece, piece->length * 2);
    for (int64_t i = 0; i < piece->length; i++)
        sbp_builder_add_code(&b, sbp_byte_to_char((uint8_t)piece->text[i]), sbp_builder_span_at(&b, i));
    sbp_builder_finish(&b, piece);
}

typedef struct replacing {
    tok_builder b;
    const char *text;
    int64_t length;
    tok_work *work;
} replacing;

static sbp_status replace_match(void *user, tok_match m) {
    replacing *r = user;
    if (!r->b.text) { /* nothing was found so far */
        if (!m.is_match && m.begin == 0 && m.end == r->b.piece->length)
            return SBP_OK;
        r->b = sbp_builder_start(r->work, r->b.piece, r->b.piece->length + r->b.piece->length / 2);
    }
    if (m.is_match)
        sbp_builder_add(&r->b, r->text, r->length, sbp_builder_span_before(&r->b, m.end));
    else
        sbp_builder_copy(&r->b, m.begin, m.end);
    return sbp_work_check(r->work);
}

sbp_status sbp_piece_replace(tok_work *work, tok_piece *piece, const tok_pattern *pattern, const char *text,
                             int64_t length) {
    replacing r = {.b = {.piece = piece}, .text = text, .length = length, .work = work};
    SBP_TRY(sbp_find_matches(work, pattern, piece->text, piece->length, replace_match, &r));
    if (r.b.text)
        sbp_builder_finish(&r.b, piece);
    return SBP_OK;
}

/* ---- normal forms ------------------------------------------------------------------------------------ */

/* A character of new text. change: 0 replaces the next old character, 1 is put in, -n replaces the next
 * one and removes n behind it. */
typedef struct changed {
    uint32_t code;
    int32_t change;
} changed;

typedef struct changes {
    sbp_arena *arena;
    changed *list;
    int32_t count, capacity;
} changes;

static void add_change(changes *c, uint32_t code, int32_t change) {
    SBP_PUSH(c->arena, c->list, c->count, c->capacity, (changed){code, change});
}

/* The characters of the old text from `at` on. */
static void apply(tok_builder *b, int64_t at, const changes *c) {
    uint32_t old;
    for (int32_t i = 0; i < c->count; i++) {
        changed ch = c->list[i];
        sbp_builder_add_code(b, ch.code,
                             ch.change > 0 ? sbp_builder_span_before(b, at) : sbp_builder_span_at(b, at));
        for (int32_t n = ch.change; n <= 0 && at < b->piece->length; n++)
            at += sbp_utf8_get(b->piece->text + at, &old);
    }
}

static const struct {
    uint32_t first, last;
} inert[] = {
#define INERT(first, last) {first, last},
#include "frontends/formats/tokenizer/unicode_inert.def"
#undef INERT
};

/* Characters too new for the tables of Hugging Face's normal forms. */
static bool is_inert(uint32_t code) {
    int low = 0, high = SBP_COUNT(inert);
    while (low < high) {
        int middle = (low + high) / 2;
        if (inert[middle].last < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low < SBP_COUNT(inert) && inert[low].first <= code;
}

static uint8_t combining_class(uint32_t code) {
    if (code < 0x300 || is_inert(code))
        return 0;
    return (uint8_t)utf8proc_get_property((utf8proc_int32_t)code)->combining_class;
}

/* As sort_marks, in linear time: text may hold any number of marks in a row. */
static void sort_many_marks(sbp_arena *arena, changed *list, int32_t from, int32_t to) {
    int32_t first[257] = {0};
    changed *copy = SBP_NEW_ARRAY(arena, changed, to - from);
    memcpy(copy, list + from, (size_t)(to - from) * sizeof *copy);
    for (int32_t i = from; i < to; i++)
        first[combining_class(list[i].code) + 1]++;
    for (int c = 0; c < 256; c++)
        first[c + 1] += first[c];
    for (int32_t i = 0; i < to - from; i++)
        list[from + first[combining_class(copy[i].code)]++] = copy[i];
}

/* Sorts the characters behind the last starter by combining class; stable. */
static void sort_marks(sbp_arena *arena, changed *list, int32_t from, int32_t to) {
    if (to - from > 32) {
        sort_many_marks(arena, list, from, to);
        return;
    }
    for (int32_t i = from + 1; i < to; i++) {
        changed c = list[i];
        uint8_t class = combining_class(c.code);
        int32_t at = i;
        while (at > from && combining_class(list[at - 1].code) > class) {
            list[at] = list[at - 1];
            at--;
        }
        list[at] = c;
    }
}

static void decompose(const tok_piece *piece, int64_t begin, int64_t end, bool compatible, changes *out) {
    utf8proc_option_t options = UTF8PROC_DECOMPOSE | UTF8PROC_STABLE | (compatible ? UTF8PROC_COMPAT : 0);
    int32_t pending = 0; /* first character not yet in canonical order */
    for (int64_t at = begin; at < end;) {
        uint32_t code;
        at += sbp_utf8_get(piece->text + at, &code);
        utf8proc_int32_t parts[64] = {(utf8proc_int32_t)code};
        int boundary = 0;
        utf8proc_ssize_t n =
            code < 0x80 || is_inert(code)
                ? 1
                : utf8proc_decompose_char((utf8proc_int32_t)code, parts, 64, options, &boundary);
        if (n < 1 || n > 64) {
            parts[0] = (utf8proc_int32_t)code;
            n = 1;
        }
        for (utf8proc_ssize_t i = 0; i < n; i++) {
            if (combining_class((uint32_t)parts[i]) == 0) {
                sort_marks(out->arena, out->list, pending, out->count);
                pending = out->count + 1; /* behind the starter */
            }
            add_change(out, (uint32_t)parts[i], i == 0 ? 0 : 1);
        }
    }
    sort_marks(out->arena, out->list, pending, out->count);
}

/* The character that a and b compose to, or 0. */
static uint32_t compose_pair(uint32_t a, uint32_t b) {
    if (b < 0x300 || is_inert(a) || is_inert(b)) /* nothing below U+0300 is the second of a pair */
        return 0;
    utf8proc_int32_t pair[2] = {(utf8proc_int32_t)a, (utf8proc_int32_t)b};
    utf8proc_ssize_t n = utf8proc_normalize_utf32(pair, 2, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    return n == 1 && !is_inert((uint32_t)pair[0]) ? (uint32_t)pair[0] : 0;
}

/* Canonical composition, keeping count of how many old characters each new one stands for. */
static void compose(const changes *in, changes *out) {
    changes held = {.arena = out->arena}; /* marks between the starter and the current character */
    changed starter = {0, 0};
    bool has_starter = false;
    int last_class = -1; /* of the last held mark */
    for (int32_t i = 0; i < in->count; i++) {
        changed c = in->list[i];
        int class = combining_class(c.code);
        if (!has_starter) {
            if (class != 0) {
                add_change(out, c.code, c.change);
            } else {
                starter = c;
                has_starter = true;
            }
            continue;
        }
        uint32_t composed = last_class < class ? compose_pair(starter.code, c.code) : 0;
        if (composed) {
            starter = (changed){composed, starter.change + c.change - 1};
        } else if (class == 0) {
            add_change(out, starter.code, starter.change);
            for (int32_t k = 0; k < held.count; k++)
                add_change(out, held.list[k].code, held.list[k].change);
            held.count = 0;
            starter = c;
            last_class = -1;
        } else {
            add_change(&held, c.code, c.change);
            last_class = class;
        }
    }
    if (has_starter)
        add_change(out, starter.code, starter.change);
    for (int32_t k = 0; k < held.count; k++)
        add_change(out, held.list[k].code, held.list[k].change);
}

/* True when no character can change: below U+0300 everything is in NFC, in ASCII in every form. */
static bool is_normal(const char *text, int64_t length, tok_normalizer_kind kind) {
    unsigned char limit = kind == TOK_NFC ? 0xcc : 0x80;
    for (int64_t i = 0; i < length; i++)
        if ((unsigned char)text[i] >= limit)
            return false;
    return true;
}

/* Whether text can be cut before this character: in no form does it join what is before it, or change places
 * with it. Not all that are so: those of ranges in which only characters with a combining class are not. */
static bool can_cut_before(uint32_t code) {
    return code < 0x300 || (((code >= 0x370 && code < 0x900) || (code >= 0x1e00 && code < 0x3130) ||
                             (code >= 0x3190 && code < 0xa490) || (code >= 0xac00 && code < 0xd7a4) ||
                             (code >= 0x1f000 && code < 0x1fb00) || (code >= 0x20000 && code < 0x30000)) &&
                            combining_class(code) == 0);
}

/* The end of a stretch of some thousand bytes that has its normal form by itself. */
static int64_t stretch_end(const tok_piece *piece, int64_t begin) {
    enum { STRETCH_BYTES = 4096 };
    if (piece->length - begin <= STRETCH_BYTES)
        return piece->length;
    for (int64_t at = sbp_utf8_start(piece->text, begin + STRETCH_BYTES);;) {
        uint32_t code;
        if (at == piece->length)
            return at;
        int size = sbp_utf8_get(piece->text + at, &code);
        if (can_cut_before(code))
            return at;
        at += size;
    }
}

static void to_normal_form(tok_work *work, tok_piece *piece, tok_normalizer_kind kind) {
    if (is_normal(piece->text, piece->length, kind))
        return;
    tok_builder b = sbp_builder_start(work, piece, piece->length + piece->length / 8);
    changes parts = {.arena = work->arena}, whole = {.arena = work->arena};
    for (int64_t at = 0, end; at < piece->length; at = end) {
        end = stretch_end(piece, at);
        if (is_normal(piece->text + at, end - at, kind)) {
            sbp_builder_copy(&b, at, end);
            continue;
        }
        parts.count = whole.count = 0;
        decompose(piece, at, end, kind == TOK_NFKC || kind == TOK_NFKD, &parts);
        if (kind == TOK_NFC || kind == TOK_NFKC)
            compose(&parts, &whole);
        apply(&b, at, kind == TOK_NFC || kind == TOK_NFKC ? &whole : &parts);
    }
    sbp_builder_finish(&b, piece);
}

/* ---- the others -------------------------------------------------------------------------------------- */

static void to_lower(tok_work *work, tok_piece *piece) {
    tok_builder b = sbp_builder_start(work, piece, piece->length + piece->length / 8);
    for (int64_t at = 0; at < piece->length;) {
        uint32_t code;
        tok_span span = sbp_builder_span_at(&b, at);
        at += sbp_utf8_get(piece->text + at, &code);
        if (code == 0x130) { /* the one character whose lower case is two */
            sbp_builder_add_code(&b, 'i', span);
            sbp_builder_add_code(&b, 0x307, sbp_builder_span_before(&b, at));
        } else {
            sbp_builder_add_code(&b, (uint32_t)utf8proc_tolower((utf8proc_int32_t)code), span);
        }
    }
    sbp_builder_finish(&b, piece);
}

static void strip(tok_piece *piece, bool left, bool right) {
    int64_t begin = 0, end = piece->length;
    uint32_t code;
    while (left && begin < end) {
        int size = sbp_utf8_get(piece->text + begin, &code);
        if (!sbp_is_whitespace(code))
            break;
        begin += size;
    }
    while (right && end > begin) {
        int64_t start = sbp_utf8_start(piece->text, end - 1);
        sbp_utf8_get(piece->text + start, &code);
        if (!sbp_is_whitespace(code))
            break;
        end = start;
    }
    piece->text += begin;
    piece->length = end - begin;
    piece->base += begin;
    if (piece->align)
        piece->align += begin;
}

sbp_status sbp_normalize(tok_work *work, tok_piece *piece) {
    for (int32_t i = 0; i < work->t->normalizer_count; i++) {
        const tok_normalizer *n = &work->t->normalizers[i];
        switch (n->kind) {
        case TOK_PREPEND:
            sbp_piece_prepend(work, piece, n->text, n->length);
            break;
        case TOK_REPLACE:
            SBP_TRY(sbp_piece_replace(work, piece, &n->pattern, n->text, n->length));
            break;
        case TOK_NFC:
        case TOK_NFD:
        case TOK_NFKC:
        case TOK_NFKD:
            to_normal_form(work, piece, n->kind);
            break;
        case TOK_LOWERCASE:
            to_lower(work, piece);
            break;
        case TOK_STRIP:
            strip(piece, n->left, n->right);
            break;
        case TOK_BYTES:
            sbp_piece_to_bytes(work, piece);
            break;
        case TOK_CHARSMAP:
            sbp_map_charsmap(work, piece, &n->map);
            break;
        default:
            sbp_map_characters(work, piece, n->kind);
            break;
        }
        SBP_TRY(sbp_work_check(work));
    }
    return SBP_OK;
}
