/* tokenizer_maps.c: normalizers that look at one character at a time, and SentencePiece's precompiled maps.
 */
#include "frontends/formats/tokenizer/tokenizer_internal.h"

#include <string.h>
#include <utf8proc.h>

/* ---- one character
 * ----------------------------------------------------------------------------------------------- */

enum { SET_CLEAN = 1, SET_MN = 2, SET_MARK = 4 };

static const struct {
    uint32_t first, last;
    int sets;
} sets[] = {
#define SET(sets, first, last) {first, last, sets},
#include "frontends/formats/tokenizer/unicode_sets.def"
#undef SET
};

static bool is_in(uint32_t code, int set) {
    int low = 0, high = SBP_COUNT(sets);
    while (low < high) {
        int middle = (low + high) / 2;
        if (sets[middle].last < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low < SBP_COUNT(sets) && sets[low].first <= code && (sets[low].sets & set);
}

/* The blocks that BERT takes for Chinese. */
static bool is_han(uint32_t code) {
    return (code >= 0x4e00 && code <= 0x9fff) || (code >= 0x3400 && code <= 0x4dbf) ||
           (code >= 0x20000 && code <= 0x2a6df) || (code >= 0x2a700 && code <= 0x2b73f) ||
           (code >= 0x2b740 && code <= 0x2b81f) || (code >= 0x2b920 && code <= 0x2ceaf) ||
           (code >= 0xf900 && code <= 0xfaff) || (code >= 0x2f800 && code <= 0x2fa1f);
}

static bool nmt_drops(uint32_t code) {
    return (code >= 1 && code <= 8) || code == 0xb || (code >= 0xe && code <= 0x1f) || code == 0x7f ||
           code == 0x8f || code == 0x9f;
}

static bool nmt_blanks(uint32_t code) {
    return code == 9 || code == 0xa || code == 0xc || code == 0xd || code == 0x1680 ||
           (code >= 0x200b && code <= 0x200f) || code == 0x2028 || code == 0x2029 || code == 0x2581 ||
           code == 0xfeff || code == 0xfffd;
}

/* Whether the character goes; *to: what it becomes. */
static bool map_one(tok_normalizer_kind kind, uint32_t code, uint32_t *to) {
    *to = code;
    switch (kind) {
    case TOK_CLEAN:
        if (sbp_is_whitespace(code))
            *to = ' ';
        return is_in(code, SET_CLEAN);
    case TOK_DROP_MN:
        return is_in(code, SET_MN);
    case TOK_DROP_MARKS:
        return is_in(code, SET_MARK);
    default:
        if (nmt_blanks(code))
            *to = ' ';
        return nmt_drops(code);
    }
}

void sbp_map_characters(tok_work *work, tok_piece *piece, tok_normalizer_kind kind) {
    tok_builder b = sbp_builder_start(work, piece, piece->length + piece->length / 8);
    for (int64_t at = 0, next; at < piece->length; at = next) {
        uint32_t code, to = 0;
        tok_span span = sbp_builder_span_at(&b, at);
        next = at + sbp_utf8_get(piece->text + at, &code);
        bool spaced = kind == TOK_SPACE_HAN && is_han(code), goes = false;
        if (kind == TOK_SPACE_HAN)
            to = code;
        else
            goes = map_one(kind, code, &to);
        if (spaced)
            sbp_builder_add(&b, " ", 1, span);
        if (!goes)
            sbp_builder_add_code(&b, to, span);
        if (spaced)
            sbp_builder_add(&b, " ", 1, span);
    }
    sbp_builder_finish(&b, piece);
}

/* ---- precompiled maps
 * -------------------------------------------------------------------------------------------- */

static uint32_t unit_at(const tok_charsmap *map, int64_t at) {
    const uint8_t *unit = map->units + 4 * at;
    return (uint32_t)unit[0] | (uint32_t)unit[1] << 8 | (uint32_t)unit[2] << 16 | (uint32_t)unit[3] << 24;
}

static uint32_t unit_offset(uint32_t unit) {
    return (unit >> 10) << ((unit & (1u << 9)) >> 6);
}

/* What the shortest beginning of the text that is in the map becomes, as Hugging Face has it; NULL: none is.
 */
static const char *look_up(const tok_charsmap *map, const char *text, int64_t length) {
    int64_t at = unit_offset(unit_at(map, 0));
    for (int64_t i = 0; i < length && text[i]; i++) {
        uint8_t byte = (uint8_t)text[i];
        at ^= byte;
        if (at >= map->unit_count)
            return NULL;
        uint32_t unit = unit_at(map, at);
        if ((unit & (1u << 31 | 0xff)) != byte)
            return NULL;
        at ^= unit_offset(unit);
        if (at >= map->unit_count)
            return NULL;
        if (unit >> 8 & 1) {
            uint32_t value = unit_at(map, at) & 0x7fffffffu;
            return value < map->length ? map->strings + value : NULL;
        }
    }
    return NULL;
}

/* The new text, one character late: what replaces something by nothing makes the one before it stand for
 * more. */
typedef struct mapping {
    tok_builder b;
    int64_t at; /* of the old text */
    uint32_t code;
    int64_t change; /* of the waiting character: 1 is put in, -n takes n more old ones with it */
    bool waits;
} mapping;

static void give(mapping *m) {
    uint32_t old;
    if (!m->waits)
        return;
    sbp_builder_add_code(&m->b, m->code,
                         m->change > 0 ? sbp_builder_span_before(&m->b, m->at)
                                       : sbp_builder_span_at(&m->b, m->at));
    for (int64_t n = m->change; n <= 0 && m->at < m->b.piece->length; n++)
        m->at += sbp_utf8_get(m->b.piece->text + m->at, &old);
    m->waits = false;
}

static void take(mapping *m, uint32_t code, int64_t change) {
    give(m);
    m->code = code;
    m->change = change;
    m->waits = true;
}

static int64_t count_characters(const char *text, int64_t length) {
    int64_t count = 0;
    for (int64_t i = 0; i < length; i++)
        count += ((uint8_t)text[i] & 0xc0) != 0x80;
    return count;
}

/* `old` characters become a text. */
static void replace(mapping *m, int64_t old, const char *text) {
    int64_t length = (int64_t)strlen(text), count = count_characters(text, length), more = count - old, i = 0;
    for (int64_t at = 0; at < length; i++) {
        uint32_t code;
        at += sbp_utf8_get(text + at, &code);
        take(m, code, i >= old ? 1 : 0);
    }
    if (more < 0 && m->waits)
        m->change += more;
}

/* Up to the end of the grapheme cluster. */
static int64_t cluster_end(const tok_piece *piece, int64_t at) {
    uint32_t code, next;
    utf8proc_int32_t state = 0;
    at += sbp_utf8_get(piece->text + at, &code);
    while (at < piece->length) {
        int size = sbp_utf8_get(piece->text + at, &next);
        if (next < 0x80 && code != '\r') /* nothing but a line feed joins what is before it */
            break;
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)code, (utf8proc_int32_t)next, &state))
            break;
        at += size;
        code = next;
    }
    return at;
}

void sbp_map_charsmap(tok_work *work, tok_piece *piece, const tok_charsmap *map) {
    mapping m = {.b = sbp_builder_start(work, piece, piece->length + piece->length / 8)};
    for (int64_t at = 0, end; at < piece->length; at = end) {
        end = cluster_end(piece, at);
        const char *found = end - at < 6 ? look_up(map, piece->text + at, end - at) : NULL;
        if (found) {
            replace(&m, count_characters(piece->text + at, end - at), found);
            continue;
        }
        for (int64_t k = at, next; k < end; k = next) {
            uint32_t code;
            next = k + sbp_utf8_get(piece->text + k, &code);
            found = look_up(map, piece->text + k, next - k);
            if (found)
                replace(&m, 1, found);
            else
                take(&m, code, 0);
        }
    }
    give(&m);
    sbp_builder_finish(&m.b, piece);
}

sbp_status sbp_charsmap_parse(sbp_diag *diag, const sbp_json *json, const uint8_t *bytes, int64_t length,
                              tok_charsmap *out) {
    int64_t size = 0;
    for (int i = 3; i >= 0 && length >= 4; i--)
        size = size << 8 | bytes[i];
    if (length < 8 || size < 4 || size % 4 != 0 || size >= length - 4)
        return sbp_json_fail(diag, json, "the charsmap has %lld bytes and a trie of %lld", (long long)length,
                             (long long)size);
    *out = (tok_charsmap){.units = bytes + 4,
                          .unit_count = size / 4,
                          .strings = (const char *)bytes + 4 + size,
                          .length = length - 4 - size};
    for (int64_t at = 0; at < out->length;) {
        int skip, step = sbp_utf8_check(out->strings + at, out->length - at, &skip);
        if (step == 0)
            return sbp_json_fail(diag, json, "byte %lld of the charsmap's strings is not UTF-8",
                                 (long long)at);
        at += step;
    }
    if (out->strings[out->length - 1] != 0)
        return sbp_json_fail(diag, json, "the charsmap's strings do not end");
    return SBP_OK;
}
