/* tokenizer_vocab.c: the vocabulary, and which model cuts a piece into its tokens. WordPiece and WordLevel
 * are here. */
#include "frontends/formats/tokenizer/tokenizer_internal.h"

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

int32_t sbp_model_char_id(const tok_model *m, uint32_t code) {
    for (uint32_t at = hash_char(code) & m->char_mask; m->chars[at]; at = (at + 1) & m->char_mask) {
        uint32_t other;
        sbp_utf8_get(m->tokens[m->chars[at] - 1].text, &other);
        if (other == code)
            return m->chars[at] - 1;
    }
    return -1;
}

uint32_t sbp_table_size(int64_t count) {
    uint32_t size = 16;
    while (size < count * 2)
        size *= 2;
    return size;
}

static bool is_one_char(const tok_string *s) {
    uint32_t code;
    return s->length > 0 && sbp_utf8_get(s->text, &code) == s->length;
}

/* Room for tokens with ids below `size`, of which there are `count`. */
static void start_vocab(sbp_arena *arena, tok_model *m, int64_t size, int64_t count) {
    m->size = (int32_t)size;
    m->count = (int32_t)count;
    m->tokens = SBP_NEW_ARRAY(arena, tok_string, m->size);
    uint32_t slots = sbp_table_size(count);
    m->slots = SBP_NEW_ARRAY(arena, int32_t, slots);
    m->slot_mask = slots - 1;
}

/* Adds a token's text to the table. If texts are equal, which lists can have, the last one is found. */
static void add_text(sbp_arena *arena, tok_model *m, int32_t id, const char *text, int64_t length) {
    tok_string *token = &m->tokens[id];
    token->text = sbp_arena_strndup(arena, text, (size_t)length);
    token->length = (int32_t)length;
    uint32_t at = (uint32_t)sbp_hash_bytes(text, (size_t)length, 0) & m->slot_mask;
    for (; m->slots[at]; at = (at + 1) & m->slot_mask) {
        const tok_string *other = &m->tokens[m->slots[at] - 1];
        if (other->length == length && memcmp(other->text, text, (size_t)length) == 0)
            break;
    }
    m->slots[at] = id + 1;
}

static void index_characters(sbp_arena *arena, tok_model *m) {
    int32_t single = 0;
    for (int32_t id = 0; id < m->size; id++)
        single += m->tokens[id].text && is_one_char(&m->tokens[id]);
    uint32_t chars = sbp_table_size(single);
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
}

/* {"token": id, ..} */
sbp_status sbp_vocab_parse(sbp_arena *arena, sbp_diag *diag, const sbp_json *json, tok_model *m) {
    const sbp_json *vocab;
    int64_t largest = -1;
    SBP_TRY(sbp_json_get_object(diag, json, "vocab", SBP_JSON_REQUIRED, &vocab));
    for (int64_t i = 0; i < vocab->count; i++) {
        int64_t id;
        SBP_TRY(sbp_json_as_i64(diag, &vocab->items[i], &id));
        if (id < 0 || id >= MAX_ID)
            return sbp_json_fail(diag, &vocab->items[i], "the id %lld is not in 0 .. %d", (long long)id,
                                 MAX_ID - 1);
        largest = id > largest ? id : largest;
    }
    start_vocab(arena, m, largest + 1, vocab->count);
    for (int64_t i = 0; i < vocab->count; i++) {
        const sbp_json *entry = &vocab->items[i];
        const tok_string *token = &m->tokens[entry->integer];
        if (token->text)
            return sbp_json_fail(diag, entry, "the id %lld belongs to '%s' already",
                                 (long long)entry->integer, token->text);
        add_text(arena, m, (int32_t)entry->integer, entry->key, (int64_t)strlen(entry->key));
    }
    index_characters(arena, m);
    return SBP_OK;
}

/* [["token", score], ..]; ids are places. */
sbp_status sbp_vocab_parse_scored(sbp_arena *arena, sbp_diag *diag, const sbp_json *json, tok_model *m) {
    const sbp_json *vocab;
    SBP_TRY(sbp_json_get_array(diag, json, "vocab", SBP_JSON_REQUIRED, &vocab));
    if (vocab->count == 0 || vocab->count > MAX_ID)
        return sbp_json_fail(diag, vocab, "the vocabulary has %lld tokens; 1 to %d are expected",
                             (long long)vocab->count, MAX_ID);
    start_vocab(arena, m, vocab->count, vocab->count);
    m->scores = SBP_NEW_ARRAY(arena, double, vocab->count);
    for (int64_t i = 0; i < vocab->count; i++) {
        const sbp_json *entry = &vocab->items[i];
        if (entry->kind != SBP_JSON_ARRAY || entry->count != 2 || entry->items[0].kind != SBP_JSON_STRING)
            return sbp_json_fail(diag, entry, "expected a token and its score");
        SBP_TRY(sbp_json_as_double(diag, &entry->items[1], &m->scores[i]));
        add_text(arena, m, (int32_t)i, entry->items[0].string, entry->items[0].count);
    }
    index_characters(arena, m);
    return SBP_OK;
}

/* ---- what encoders share ------------------------------------------------------------------------------- */

bool sbp_has_room(void *pointer, int64_t *capacity, int64_t count, size_t element_bytes) {
    if (count < *capacity)
        return true;
    int64_t wanted = count < 64 ? 64 : count + count / 2;
    void **array = pointer;
    void *larger = sbp_realloc(*array, (size_t)wanted * element_bytes);
    if (!larger)
        return false;
    *array = larger;
    *capacity = wanted;
    return true;
}

sbp_status sbp_out_of_tokens(const tok_work *work) {
    return sbp_fail(work->diag, SBP_MACHINE, "out of memory for the tokens of a text");
}

void sbp_buffers_free(tok_buffers *b) {
    free(b->symbols);
    free(b->lengths);
    free(b->heap);
    free(b->paths);
    free(b->text);
}

sbp_status sbp_tokens_add(tok_work *work, tok_tokens *tokens, int32_t id, tok_span span) {
    int64_t capacity = tokens->capacity;
    if (work->offsets && !sbp_has_room(&tokens->spans, &capacity, tokens->count, sizeof *tokens->spans))
        return sbp_out_of_tokens(work);
    if (!sbp_has_room(&tokens->ids, &tokens->capacity, tokens->count, sizeof *tokens->ids))
        return sbp_out_of_tokens(work);
    if (work->offsets)
        tokens->spans[tokens->count] = span;
    tokens->ids[tokens->count++] = id;
    return SBP_OK;
}

tok_span sbp_tokens_span(const tok_work *work, const tok_piece *piece, int64_t begin, int64_t end) {
    if (!work->offsets)
        return (tok_span){0, 0};
    return (tok_span){sbp_piece_span(piece, begin).begin, sbp_piece_span(piece, end - 1).end};
}

const char *sbp_buffers_affix(tok_buffers *b, const tok_string *prefix, const char *text, int64_t length,
                              const tok_string *suffix, int64_t *out) {
    *out = prefix->length + length + suffix->length;
    if (!sbp_has_room(&b->text, &b->text_capacity, *out, 1))
        return NULL;
    if (prefix->length > 0)
        memcpy(b->text, prefix->text, (size_t)prefix->length);
    memcpy(b->text + prefix->length, text, (size_t)length);
    if (suffix->length > 0)
        memcpy(b->text + prefix->length + length, suffix->text, (size_t)suffix->length);
    return b->text;
}

sbp_status sbp_model_bytes(tok_work *work, const tok_piece *piece, int64_t begin, int64_t end,
                           tok_tokens *out, bool *found) {
    const tok_model *m = &work->t->model;
    *found = true;
    for (int64_t at = begin; at < end && *found; at++)
        *found = m->byte_ids[(uint8_t)piece->text[at]] >= 0;
    tok_span span = sbp_tokens_span(work, piece, begin, end);
    for (int64_t at = begin; at < end && *found; at++)
        SBP_TRY(sbp_tokens_add(work, out, m->byte_ids[(uint8_t)piece->text[at]], span));
    return SBP_OK;
}
