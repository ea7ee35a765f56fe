/* tokenizer_bpe.c: merging by rank. */
#include "frontends/formats/tokenizer/tokenizer_internal.h"

#include <string.h>

/* ---- merges ------------------------------------------------------------------------------------------ */

static uint64_t hash_pair(uint64_t pair) {
    pair *= 0x9e3779b97f4a7c15u;
    return pair ^ pair >> 32;
}

static const tok_merge *find_merge(const tok_model *m, int32_t left, int32_t right) {
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    for (uint64_t at = hash_pair(pair) & m->merge_mask; m->merges[at].rank >= 0;
         at = (at + 1) & m->merge_mask)
        if (m->merges[at].pair == pair)
            return &m->merges[at];
    return NULL;
}

/* ---- pairs of characters ------------------------------------------------------------------------------ */

static uint64_t pair_key(uint32_t left, uint32_t right) {
    return ((uint64_t)left << 32 | right) + 1;
}

static uint64_t pair_slot(const tok_pairs *p, uint64_t key) {
    uint64_t at = hash_pair(key) & p->mask;
    while (p->slots[at] && p->slots[at] != key)
        at = (at + 1) & p->mask;
    return at;
}

static void add_pair(sbp_arena *arena, tok_pairs *p, uint64_t key) {
    if (p->count * 2 >= (int64_t)p->mask) {
        tok_pairs larger = {.mask = p->mask ? p->mask * 2 + 1 : 255, .count = p->count};
        larger.slots = SBP_NEW_ARRAY(arena, uint64_t, larger.mask + 1);
        for (uint64_t i = 0; p->slots && i <= p->mask; i++)
            if (p->slots[i])
                larger.slots[pair_slot(&larger, p->slots[i])] = p->slots[i];
        *p = larger;
    }
    uint64_t at = pair_slot(p, key);
    p->count += !p->slots[at];
    p->slots[at] = key;
}

static uint32_t first_char(const char *text, int64_t length) {
    uint32_t code = 0;
    if (length > 0)
        sbp_utf8_get(text, &code);
    return code;
}

static uint32_t last_char(const char *text, int64_t length) {
    return length > 0 ? first_char(text + sbp_utf8_start(text, length - 1), 1) : 0;
}

/* ---- reading merges ----------------------------------------------------------------------------------- */

static sbp_status part_id(sbp_diag *diag, const tok_model *m, const sbp_json *entry, const char *text,
                          int64_t length, int32_t *id) {
    *id = sbp_model_id(m, text, length);
    if (*id < 0)
        return sbp_json_fail(diag, entry, "the token '%.*s' is not in the vocabulary",
                             (int)(length > 200 ? 200 : length), text);
    return SBP_OK;
}

static sbp_status parse_merge(sbp_arena *arena, sbp_diag *diag, tok_model *m, const sbp_json *entry,
                              sbp_text *joined, tok_merge *out) {
    const char *left, *right;
    int64_t left_length, right_length;
    if (entry->kind == SBP_JSON_STRING) {
        left = entry->string;
        const char *space = memchr(left, ' ', (size_t)entry->count);
        right = space ? space + 1 : NULL;
        if (!space || memchr(right, ' ', (size_t)(entry->string + entry->count - right)))
            return sbp_json_fail(diag, entry, "expected two tokens with a space between them, found '%s'",
                                 entry->string);
        left_length = space - left;
        right_length = entry->string + entry->count - right;
    } else {
        SBP_TRY(sbp_json_as_array(diag, entry, &entry));
        if (entry->count != 2 || entry->items[0].kind != SBP_JSON_STRING ||
            entry->items[1].kind != SBP_JSON_STRING)
            return sbp_json_fail(diag, entry, "expected a pair of tokens");
        left = entry->items[0].string;
        left_length = entry->items[0].count;
        right = entry->items[1].string;
        right_length = entry->items[1].count;
    }
    int32_t a, b;
    SBP_TRY(part_id(diag, m, entry, left, left_length, &a));
    SBP_TRY(part_id(diag, m, entry, right, right_length, &b));
    if (right_length < m->prefix.length ||
        (m->prefix.length > 0 && memcmp(right, m->prefix.text, (size_t)m->prefix.length) != 0))
        return sbp_json_fail(diag, entry, "the token '%s' does not begin with the prefix '%s'", right,
                             m->prefix.text);
    right += m->prefix.length; /* of the pair the left one keeps it */
    right_length -= m->prefix.length;
    joined->length = 0;
    sbp_text_add_n(joined, left, (size_t)left_length);
    sbp_text_add_n(joined, right, (size_t)right_length);
    SBP_TRY(part_id(diag, m, entry, joined->data, (int64_t)joined->length, &out->id));
    out->pair = (uint64_t)(uint32_t)a << 32 | (uint32_t)b;
    add_pair(arena, &m->touching, pair_key(last_char(left, left_length), first_char(right, right_length)));
    return SBP_OK;
}

static sbp_status parse_merges(sbp_arena *arena, sbp_diag *diag, const sbp_json *merges, tok_model *m) {
    uint64_t size = sbp_table_size(merges->count);
    m->merges = SBP_NEW_ARRAY(arena, tok_merge, size);
    m->merge_mask = size - 1;
    for (uint64_t i = 0; i < size; i++)
        m->merges[i].rank = -1;
    m->merge_ids = SBP_NEW_ARRAY(arena, int32_t, merges->count);
    sbp_text joined;
    sbp_text_init(&joined, arena);
    int32_t rank = 0;
    for (int64_t i = 0; i < merges->count; i++) {
        const sbp_json *entry = &merges->items[i];
        if (entry->kind == SBP_JSON_STRING && strncmp(entry->string, "#version", 8) == 0)
            continue;
        tok_merge merge = {.rank = rank++};
        SBP_TRY(parse_merge(arena, diag, m, entry, &joined, &merge));
        m->merge_ids[merge.rank] = merge.id;
        uint64_t at = hash_pair(merge.pair) & m->merge_mask;
        while (m->merges[at].rank >= 0 && m->merges[at].pair != merge.pair)
            at = (at + 1) & m->merge_mask;
        m->merges[at] = merge; /* of equal pairs the last one counts, as in Hugging Face */
    }
    m->merge_count = rank;
    return SBP_OK;
}

/* ---- the model object --------------------------------------------------------------------------------- */

sbp_status sbp_bpe_parse(sbp_arena *arena, sbp_diag *diag, const sbp_json *json, tok_model *m) {
    const sbp_json *merges;
    const char *prefix = "", *suffix = "", *unk = m->lost_unk;
    double dropout = 0;
    SBP_TRY(sbp_json_get_double(diag, json, "dropout", SBP_JSON_NULLABLE, &dropout));
    if (dropout != 0)
        return sbp_json_fail(diag, json, "dropout %g is not supported", dropout);
    SBP_TRY(sbp_json_get_string(diag, json, "continuing_subword_prefix", SBP_JSON_NULLABLE, &prefix));
    SBP_TRY(sbp_json_get_string(diag, json, "end_of_word_suffix", SBP_JSON_NULLABLE, &suffix));
    m->prefix = (tok_string){sbp_arena_strdup(arena, prefix), (int32_t)strlen(prefix)};
    m->suffix = (tok_string){sbp_arena_strdup(arena, suffix), (int32_t)strlen(suffix)};
    SBP_TRY(sbp_json_get_array(diag, json, "merges", SBP_JSON_REQUIRED, &merges));
    SBP_TRY(sbp_json_get_bool(diag, json, "fuse_unk", SBP_JSON_NULLABLE, &m->fuse_unk));
    SBP_TRY(sbp_json_get_bool(diag, json, "ignore_merges", SBP_JSON_NULLABLE, &m->ignore_merges));
    if (m->unk >= 0)
        unk = m->tokens[m->unk].text;
    if (unk) {
        m->unk_first = first_char(unk, (int64_t)strlen(unk));
        m->unk_last = last_char(unk, (int64_t)strlen(unk));
    }
    return parse_merges(arena, diag, merges, m);
}

/* ---- merging a word ----------------------------------------------------------------------------------- */

static bool before(const tok_candidate *a, const tok_candidate *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->position < b->position;
}

static sbp_status heap_push(tok_work *work, tok_buffers *b, tok_candidate c) {
    if (!sbp_has_room(&b->heap, &b->heap_capacity, b->heap_count, sizeof *b->heap))
        return sbp_out_of_tokens(work);
    int64_t at = b->heap_count++;
    while (at > 0 && before(&c, &b->heap[(at - 1) / 2])) {
        b->heap[at] = b->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    b->heap[at] = c;
    return SBP_OK;
}

static tok_candidate heap_pop(tok_buffers *b) {
    tok_candidate top = b->heap[0], last = b->heap[--b->heap_count];
    int64_t at = 0;
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= b->heap_count)
            break;
        if (child + 1 < b->heap_count && before(&b->heap[child + 1], &b->heap[child]))
            child++;
        if (!before(&b->heap[child], &last))
            break;
        b->heap[at] = b->heap[child];
        at = child;
    }
    if (b->heap_count > 0)
        b->heap[at] = last;
    return top;
}

/* The symbol behind the one at `at`; -1: there is none. */
static int32_t next_of(const tok_buffers *b, int32_t at) {
    int32_t next = at + b->symbols[at].span;
    return next < b->symbol_count ? next : -1;
}

/* Puts the pair that begins at symbol `at` into the heap when it can be merged. */
static sbp_status consider(tok_work *work, tok_buffers *b, int32_t at) {
    int32_t next = next_of(b, at);
    const tok_merge *merge =
        next < 0 ? NULL : find_merge(&work->t->model, b->symbols[at].id, b->symbols[next].id);
    return merge ? heap_push(work, b, (tok_candidate){merge->rank, at}) : SBP_OK;
}

static sbp_status merge_all(tok_work *work, tok_buffers *b) {
    const tok_model *m = &work->t->model;
    b->heap_count = 0;
    for (int32_t i = 0; i + 1 < b->symbol_count; i++)
        SBP_TRY(consider(work, b, i));
    while (b->heap_count > 0) {
        tok_candidate top = heap_pop(b);
        int32_t at = top.position, next = b->symbols[at].id < 0 ? -1 : next_of(b, at);
        if (next < 0)
            continue;
        /* The pair may have changed since it was put in. */
        const tok_merge *merge = find_merge(m, b->symbols[at].id, b->symbols[next].id);
        if (!merge || merge->id != m->merge_ids[top.rank])
            continue;
        int32_t span = b->symbols[at].span + b->symbols[next].span;
        b->symbols[next].id = -1;
        b->symbols[at] = (tok_symbol){merge->id, span};
        b->symbols[at + span - 1].span = span;
        if (at > 0)
            SBP_TRY(consider(work, b, at - b->symbols[at - 1].span));
        SBP_TRY(consider(work, b, at));
    }
    return SBP_OK;
}

/* ---- encoding a piece --------------------------------------------------------------------------------- */

typedef struct encoding {
    tok_work *work;
    tok_buffers *b;
    const tok_piece *piece;
    tok_tokens *out;
    int64_t at;    /* bytes of the piece that have tokens */
    uint32_t last; /* character of the last symbol */
} encoding;

/* Merges the symbols that there are and puts down their tokens. */
static sbp_status finish_symbols(encoding *e) {
    tok_buffers *b = e->b;
    SBP_TRY(merge_all(e->work, b));
    /* Dropped characters (no unk) shift what follows, as they do in Hugging Face. */
    for (int32_t i = 0; i < b->symbol_count; i += b->symbols[i].span) {
        int64_t begin = e->at;
        for (int32_t k = 0; e->work->offsets && k < b->symbols[i].span; k++)
            e->at += b->lengths[i + k];
        SBP_TRY(sbp_tokens_add(e->work, e->out, b->symbols[i].id,
                               sbp_tokens_span(e->work, e->piece, begin, e->at)));
    }
    b->symbol_count = 0;
    return SBP_OK;
}

/* A symbol whose token's text goes from `first` to `last`. Where no merge joins it with what is before it,
 * that is a word of its own: long texts without a pre-tokenizer become short ones. */
static sbp_status add_symbol(encoding *e, int32_t id, int32_t length, uint32_t first, uint32_t last) {
    const tok_model *m = &e->work->t->model;
    tok_buffers *b = e->b;
    uint64_t key = pair_key(e->last, first);
    if (b->symbol_count > 0 && (m->unk < 0 || m->unk_first) && m->prefix.length + m->suffix.length == 0 &&
        (!m->touching.slots || m->touching.slots[pair_slot(&m->touching, key)] != key))
        SBP_TRY(finish_symbols(e));
    int64_t capacity = b->symbol_capacity;
    if ((e->work->offsets && !sbp_has_room(&b->lengths, &capacity, b->symbol_count, sizeof *b->lengths)) ||
        !sbp_has_room(&b->symbols, &b->symbol_capacity, b->symbol_count, sizeof *b->symbols))
        return sbp_out_of_tokens(e->work);
    if (e->work->offsets)
        b->lengths[b->symbol_count] = length;
    b->symbols[b->symbol_count++] = (tok_symbol){id, 1};
    e->last = last;
    return SBP_OK;
}

static sbp_status add_unknown(encoding *e, int32_t length) {
    const tok_model *m = &e->work->t->model;
    return length == 0 ? SBP_OK : add_symbol(e, m->unk, length, m->unk_first, m->unk_last);
}

/* The token of a character with what the model puts before or behind it by its place in the word; *bytes and
 * *length: its text. False when out of memory. */
static bool find_affixed(encoding *e, int64_t begin, int64_t end, const unsigned char **bytes,
                         int64_t *length, int32_t *id) {
    static const tok_string none = {0};
    const tok_model *m = &e->work->t->model;
    const char *text = sbp_buffers_affix(e->b, begin > 0 ? &m->prefix : &none, e->piece->text + begin,
                                         end - begin, end == e->piece->length ? &m->suffix : &none, length);
    *bytes = (const unsigned char *)text;
    *id = text ? sbp_model_id(m, text, *length) : -1;
    return text != NULL;
}

/* Characters to symbols: the token of the character, else the tokens of its bytes, else unk, else nothing.
 * As in Hugging Face, a run of unknown characters is put down only when a known one (or the end) follows. */
static sbp_status add_characters(encoding *e) {
    const tok_model *m = &e->work->t->model;
    const char *text = e->piece->text;
    bool affixed = m->prefix.length + m->suffix.length > 0;
    int32_t unknown = 0; /* bytes waiting to become one unk */
    for (int64_t at = 0; at < e->piece->length;) {
        uint32_t code;
        int size = sbp_utf8_get(text + at, &code);
        const unsigned char *bytes = (const unsigned char *)text + at;
        int32_t id = affixed ? -1 : sbp_model_char_id(m, code);
        int64_t length = size;
        if (affixed && !find_affixed(e, at, at + size, &bytes, &length, &id))
            return sbp_out_of_tokens(e->work);
        at += size;
        if (id >= 0) {
            SBP_TRY(add_unknown(e, unknown));
            unknown = 0;
            SBP_TRY(add_symbol(e, id, size, code, code));
            continue;
        }
        bool all = m->byte_fallback;
        for (int64_t i = 0; i < length && all; i++)
            all = m->byte_ids[bytes[i]] >= 0;
        if (all) {
            for (int64_t i = 0; i < length; i++)
                SBP_TRY(add_symbol(e, m->byte_ids[bytes[i]], 1, '<', '>'));
        } else if (m->unk >= 0) {
            if (!m->fuse_unk) {
                SBP_TRY(add_unknown(e, unknown));
                unknown = 0;
            }
            unknown += size;
        } else if (m->lost_unk) {
            return sbp_fail(e->work->diag, SBP_INPUT,
                            "%s: '%.*s' needs the unk_token '%s', which is not in the vocabulary",
                            e->work->t->file, size, text + at - size, m->lost_unk);
        }
    }
    return add_unknown(e, unknown);
}

sbp_status sbp_bpe_encode(tok_work *work, tok_buffers *b, const tok_piece *piece, tok_tokens *out) {
    const tok_model *m = &work->t->model;
    encoding e = {.work = work, .b = b, .piece = piece, .out = out};
    if (m->ignore_merges) {
        int32_t id = sbp_model_id(m, piece->text, piece->length);
        if (id >= 0)
            return sbp_tokens_add(work, out, id, sbp_tokens_span(work, piece, 0, piece->length));
    }
    b->symbol_count = 0;
    SBP_TRY(add_characters(&e));
    return finish_symbols(&e);
}
