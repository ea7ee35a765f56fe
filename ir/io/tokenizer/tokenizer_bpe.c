/* tokenizer_bpe.c: the vocabulary, and merging by rank. */
#include "ir/io/tokenizer/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_ID = 1 << 22 }; /* a bound on what an untrusted id makes us allocate */

/* ---- vocabulary -------------------------------------------------------------------------------------- */

int32_t sbp_model_id(const tok_model *m, const char *text, int64_t length) {
    if (!m->slots)
        return -1;
    uint32_t at = (uint32_t)sbp_hash_bytes(text, (size_t)length, 0) & m->slot_mask;
    for (; m->slots[at]; at = (at + 1) & m->slot_mask) {
        const tok_string *s = &m->tokens[m->slots[at] - 1];
        if (s->length == length && memcmp(s->text, text, (size_t)length) == 0)
            return m->slots[at] - 1;
    }
    return -1;
}

static uint32_t hash_char(uint32_t code) {
    return (code * 2654435761u) >> 7;
}

static int32_t char_id(const tok_model *m, uint32_t code) {
    for (uint32_t at = hash_char(code) & m->char_mask; m->chars[at]; at = (at + 1) & m->char_mask) {
        uint32_t other;
        sbp_utf8_get(m->tokens[m->chars[at] - 1].text, &other);
        if (other == code)
            return m->chars[at] - 1;
    }
    return -1;
}

/* A power of two of at least twice `count`. */
static uint32_t table_size(int64_t count) {
    uint32_t size = 16;
    while (size < count * 2)
        size *= 2;
    return size;
}

static bool is_one_char(const tok_string *s) {
    uint32_t code;
    return s->length > 0 && sbp_utf8_get(s->text, &code) == s->length;
}

static sbp_status parse_vocab(sbp_arena *arena, sbp_diag *diag, const sbp_json *vocab, tok_model *m) {
    int64_t largest = -1;
    for (int64_t i = 0; i < vocab->count; i++) {
        int64_t id;
        SBP_TRY(sbp_json_as_i64(diag, &vocab->items[i], &id));
        if (id < 0 || id >= MAX_ID)
            return sbp_json_fail(diag, &vocab->items[i], "the id %lld is not in 0 .. %d", (long long)id,
                                 MAX_ID - 1);
        largest = id > largest ? id : largest;
    }
    m->size = (int32_t)(largest + 1);
    m->count = (int32_t)vocab->count;
    m->tokens = SBP_NEW_ARRAY(arena, tok_string, m->size);
    uint32_t slots = table_size(vocab->count);
    m->slots = SBP_NEW_ARRAY(arena, int32_t, slots);
    m->slot_mask = slots - 1;
    int32_t single = 0;
    for (int64_t i = 0; i < vocab->count; i++) {
        const sbp_json *entry = &vocab->items[i];
        tok_string *token = &m->tokens[entry->integer];
        if (token->text)
            return sbp_json_fail(diag, entry, "the id %lld belongs to '%s' already",
                                 (long long)entry->integer, token->text);
        token->text = sbp_arena_strdup(arena, entry->key);
        token->length = (int32_t)strlen(entry->key);
        single += is_one_char(token);
        uint32_t at = (uint32_t)sbp_hash_bytes(token->text, (size_t)token->length, 0) & m->slot_mask;
        while (m->slots[at])
            at = (at + 1) & m->slot_mask;
        m->slots[at] = (int32_t)entry->integer + 1;
    }
    uint32_t chars = table_size(single);
    m->chars = SBP_NEW_ARRAY(arena, int32_t, chars);
    m->char_mask = chars - 1;
    for (int32_t id = 0; id < m->size; id++) {
        if (!m->tokens[id].text || !is_one_char(&m->tokens[id]))
            continue;
        uint32_t code;
        sbp_utf8_get(m->tokens[id].text, &code);
        uint32_t at = hash_char(code) & m->char_mask;
        while (m->chars[at])
            at = (at + 1) & m->char_mask;
        m->chars[at] = id + 1;
    }
    return SBP_OK;
}

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
    joined->length = 0;
    sbp_text_add_n(joined, left, (size_t)left_length);
    sbp_text_add_n(joined, right, (size_t)right_length);
    SBP_TRY(part_id(diag, m, entry, joined->data, (int64_t)joined->length, &out->id));
    out->pair = (uint64_t)(uint32_t)a << 32 | (uint32_t)b;
    add_pair(arena, &m->touching, pair_key(last_char(left, left_length), first_char(right, right_length)));
    return SBP_OK;
}

static sbp_status parse_merges(sbp_arena *arena, sbp_diag *diag, const sbp_json *merges, tok_model *m) {
    uint64_t size = table_size(merges->count);
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

static sbp_status parse_unsupported(sbp_diag *diag, const sbp_json *json) {
    const char *type = "BPE";
    SBP_TRY(sbp_json_get_string(diag, json, "type", SBP_JSON_NULLABLE, &type));
    if (strcmp(type, "BPE") != 0)
        return sbp_json_fail(diag, json, "the model type '%s' is not supported, only BPE", type);
    double dropout = 0;
    SBP_TRY(sbp_json_get_double(diag, json, "dropout", SBP_JSON_NULLABLE, &dropout));
    if (dropout != 0)
        return sbp_json_fail(diag, json, "dropout %g is not supported", dropout);
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (int i = 0; i < SBP_COUNT(affixes); i++) {
        const char *affix = "";
        SBP_TRY(sbp_json_get_string(diag, json, affixes[i], SBP_JSON_NULLABLE, &affix));
        if (*affix)
            return sbp_json_fail(diag, json, "%s '%s' is not supported", affixes[i], affix);
    }
    return SBP_OK;
}

sbp_status sbp_model_parse(sbp_arena *arena, sbp_diag *diag, const sbp_json *json, tok_model *m) {
    const sbp_json *vocab, *merges;
    const char *unk = NULL;
    SBP_TRY(parse_unsupported(diag, json));
    SBP_TRY(sbp_json_get_object(diag, json, "vocab", SBP_JSON_REQUIRED, &vocab));
    SBP_TRY(sbp_json_get_array(diag, json, "merges", SBP_JSON_REQUIRED, &merges));
    SBP_TRY(sbp_json_get_string(diag, json, "unk_token", SBP_JSON_NULLABLE, &unk));
    SBP_TRY(sbp_json_get_bool(diag, json, "fuse_unk", SBP_JSON_NULLABLE, &m->fuse_unk));
    SBP_TRY(sbp_json_get_bool(diag, json, "byte_fallback", SBP_JSON_NULLABLE, &m->byte_fallback));
    SBP_TRY(sbp_json_get_bool(diag, json, "ignore_merges", SBP_JSON_NULLABLE, &m->ignore_merges));
    SBP_TRY(parse_vocab(arena, diag, vocab, m));
    SBP_TRY(parse_merges(arena, diag, merges, m));
    m->unk = -1;
    if (unk) {
        m->unk = sbp_model_id(m, unk, (int64_t)strlen(unk));
        m->lost_unk = m->unk < 0 ? sbp_arena_strdup(arena, unk) : NULL;
        m->unk_first = first_char(unk, (int64_t)strlen(unk));
        m->unk_last = last_char(unk, (int64_t)strlen(unk));
    }
    for (int byte = 0; byte < 256; byte++) {
        const char *name = sbp_arena_printf(arena, "<0x%02X>", byte);
        m->byte_ids[byte] = sbp_model_id(m, name, 6);
    }
    return SBP_OK;
}

/* ---- encoding ----------------------------------------------------------------------------------------- */

/* Makes room for one more element; false when out of memory. */
static bool has_room(void *pointer, int64_t *capacity, int64_t count, size_t element_bytes) {
    if (count < *capacity)
        return true;
    int64_t wanted = *capacity < 64 ? 64 : *capacity + *capacity / 2;
    void **array = pointer;
    void *larger = sbp_realloc(*array, (size_t)wanted * element_bytes);
    if (!larger)
        return false;
    *array = larger;
    *capacity = wanted;
    return true;
}

static sbp_status out_of_memory(const tok_work *work) {
    return sbp_fail(work->diag, SBP_MACHINE, "out of memory for the tokens of a text");
}

void sbp_bpe_free(tok_bpe *b) {
    free(b->symbols);
    free(b->lengths);
    free(b->heap);
}

sbp_status sbp_tokens_add(tok_work *work, tok_tokens *tokens, int32_t id, tok_span span) {
    int64_t capacity = tokens->capacity;
    if (work->offsets && !has_room(&tokens->spans, &capacity, tokens->count, sizeof *tokens->spans))
        return out_of_memory(work);
    if (!has_room(&tokens->ids, &tokens->capacity, tokens->count, sizeof *tokens->ids))
        return out_of_memory(work);
    if (work->offsets)
        tokens->spans[tokens->count] = span;
    tokens->ids[tokens->count++] = id;
    return SBP_OK;
}

/* ---- merging a word ----------------------------------------------------------------------------------- */

static bool before(const tok_candidate *a, const tok_candidate *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->position < b->position;
}

static sbp_status heap_push(tok_work *work, tok_bpe *b, tok_candidate c) {
    if (!has_room(&b->heap, &b->heap_capacity, b->heap_count, sizeof *b->heap))
        return out_of_memory(work);
    int64_t at = b->heap_count++;
    while (at > 0 && before(&c, &b->heap[(at - 1) / 2])) {
        b->heap[at] = b->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    b->heap[at] = c;
    return SBP_OK;
}

static tok_candidate heap_pop(tok_bpe *b) {
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
static int32_t next_of(const tok_bpe *b, int32_t at) {
    int32_t next = at + b->symbols[at].span;
    return next < b->symbol_count ? next : -1;
}

/* Puts the pair that begins at symbol `at` into the heap when it can be merged. */
static sbp_status consider(tok_work *work, tok_bpe *b, int32_t at) {
    int32_t next = next_of(b, at);
    const tok_merge *merge =
        next < 0 ? NULL : find_merge(&work->t->model, b->symbols[at].id, b->symbols[next].id);
    return merge ? heap_push(work, b, (tok_candidate){merge->rank, at}) : SBP_OK;
}

static sbp_status merge_all(tok_work *work, tok_bpe *b) {
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
    tok_bpe *b;
    const tok_piece *piece;
    tok_tokens *out;
    int64_t at;    /* bytes of the piece that have tokens */
    uint32_t last; /* character of the last symbol */
} encoding;

/* Where normalized bytes begin .. end - 1 of the piece come from. */
static tok_span span_of(const encoding *e, int64_t begin, int64_t end) {
    if (!e->work->offsets)
        return (tok_span){0, 0};
    return (tok_span){sbp_piece_span(e->piece, begin).begin, sbp_piece_span(e->piece, end - 1).end};
}

/* Merges the symbols that there are and puts down their tokens. */
static sbp_status finish_symbols(encoding *e) {
    tok_bpe *b = e->b;
    SBP_TRY(merge_all(e->work, b));
    /* Dropped characters (no unk) shift what follows, as they do in Hugging Face. */
    for (int32_t i = 0; i < b->symbol_count; i += b->symbols[i].span) {
        int64_t begin = e->at;
        for (int32_t k = 0; e->work->offsets && k < b->symbols[i].span; k++)
            e->at += b->lengths[i + k];
        SBP_TRY(sbp_tokens_add(e->work, e->out, b->symbols[i].id, span_of(e, begin, e->at)));
    }
    b->symbol_count = 0;
    return SBP_OK;
}

/* A symbol whose token's text goes from `first` to `last`. Where no merge joins it with what is before it,
 * that is a word of its own: long texts without a pre-tokenizer become short ones. */
static sbp_status add_symbol(encoding *e, int32_t id, int32_t length, uint32_t first, uint32_t last) {
    const tok_model *m = &e->work->t->model;
    tok_bpe *b = e->b;
    uint64_t key = pair_key(e->last, first);
    if (b->symbol_count > 0 && (m->unk < 0 || m->unk_first) &&
        (!m->touching.slots || m->touching.slots[pair_slot(&m->touching, key)] != key))
        SBP_TRY(finish_symbols(e));
    int64_t capacity = b->symbol_capacity;
    if ((e->work->offsets && !has_room(&b->lengths, &capacity, b->symbol_count, sizeof *b->lengths)) ||
        !has_room(&b->symbols, &b->symbol_capacity, b->symbol_count, sizeof *b->symbols))
        return out_of_memory(e->work);
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

/* Characters to symbols: the token of the character, else the tokens of its bytes, else unk, else nothing.
 * As in Hugging Face, a run of unknown characters is put down only when a known one (or the end) follows. */
static sbp_status add_characters(encoding *e) {
    const tok_model *m = &e->work->t->model;
    const char *text = e->piece->text;
    int32_t unknown = 0; /* bytes waiting to become one unk */
    for (int64_t at = 0; at < e->piece->length;) {
        uint32_t code;
        int size = sbp_utf8_get(text + at, &code);
        const unsigned char *bytes = (const unsigned char *)text + at;
        int32_t id = char_id(m, code);
        at += size;
        if (id >= 0) {
            SBP_TRY(add_unknown(e, unknown));
            unknown = 0;
            SBP_TRY(add_symbol(e, id, size, code, code));
            continue;
        }
        bool all = m->byte_fallback;
        for (int i = 0; i < size && all; i++)
            all = m->byte_ids[bytes[i]] >= 0;
        if (all) {
            for (int i = 0; i < size; i++)
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

sbp_status sbp_model_encode(tok_work *work, tok_bpe *b, const tok_piece *piece, tok_tokens *out) {
    const tok_model *m = &work->t->model;
    encoding e = {.work = work, .b = b, .piece = piece, .out = out};
    if (piece->length == 0)
        return SBP_OK;
    if (m->ignore_merges) {
        int32_t id = sbp_model_id(m, piece->text, piece->length);
        if (id >= 0)
            return sbp_tokens_add(work, out, id, span_of(&e, 0, piece->length));
    }
    b->symbol_count = 0;
    SBP_TRY(add_characters(&e));
    return finish_symbols(&e);
}
