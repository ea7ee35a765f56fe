/* tokenizer_model.c: which model cuts a piece into its tokens. WordPiece and WordLevel are here. */
#include "frontends/formats/tokenizer/tokenizer_internal.h"

#include <string.h>

/* ---- the model object --------------------------------------------------------------------------------- */

/* Files of before the key "type" are known by what else they have, as in Hugging Face. */
static const char *untyped(const sbp_json *json) {
    const sbp_json *vocab = sbp_json_member(json, "vocab");
    if (vocab && vocab->kind == SBP_JSON_ARRAY)
        return "Unigram";
    if (sbp_json_member(json, "merges") || !vocab)
        return "BPE";
    return sbp_json_member(json, "max_input_chars_per_word") ? "WordPiece" : "WordLevel";
}

/* A token that stands for what has none; *text as the file names it, or NULL. */
static sbp_status parse_unk(sbp_arena *arena, sbp_diag *diag, const sbp_json *json, sbp_json_need need,
                            tok_model *m) {
    const char *unk = NULL;
    SBP_TRY(sbp_json_get_string(diag, json, "unk_token", need, &unk));
    m->unk = unk ? sbp_model_id(m, unk, (int64_t)strlen(unk)) : -1;
    m->lost_unk = unk && m->unk < 0 ? sbp_arena_strdup(arena, unk) : NULL;
    return SBP_OK;
}

static sbp_status parse_words(sbp_arena *arena, sbp_diag *diag, const sbp_json *json, tok_model *m) {
    SBP_TRY(parse_unk(arena, diag, json, SBP_JSON_REQUIRED, m));
    if (m->kind == TOK_WORDLEVEL)
        return SBP_OK;
    const char *prefix;
    SBP_TRY(sbp_json_get_string(diag, json, "continuing_subword_prefix", SBP_JSON_REQUIRED, &prefix));
    SBP_TRY(sbp_json_get_i64(diag, json, "max_input_chars_per_word", SBP_JSON_REQUIRED, &m->most_chars));
    m->prefix = (tok_string){sbp_arena_strdup(arena, prefix), (int32_t)strlen(prefix)};
    return SBP_OK;
}

sbp_status sbp_model_parse(sbp_arena *arena, sbp_diag *diag, const sbp_json *json, tok_model *m) {
    static const char *const kinds[] = {"BPE", "Unigram", "WordPiece", "WordLevel"};
    const char *type = untyped(json);
    int kind = 0;
    SBP_TRY(sbp_json_get_string(diag, json, "type", SBP_JSON_NULLABLE, &type));
    while (kind < SBP_COUNT(kinds) && strcmp(kinds[kind], type) != 0)
        kind++;
    if (kind == SBP_COUNT(kinds))
        return sbp_json_fail(
            diag, json, "the model type '%s' is not supported, only BPE, Unigram, WordPiece and WordLevel",
            type);
    m->kind = (tok_model_kind)kind;
    SBP_TRY(sbp_json_get_bool(diag, json, "byte_fallback", SBP_JSON_NULLABLE, &m->byte_fallback));
    if (m->kind == TOK_UNIGRAM)
        SBP_TRY(sbp_vocab_parse_scored(arena, diag, json, m));
    else
        SBP_TRY(sbp_vocab_parse(arena, diag, json, m));
    for (int byte = 0; byte < 256; byte++) {
        const char *name = sbp_arena_printf(arena, "<0x%02X>", byte);
        m->byte_ids[byte] = sbp_model_id(m, name, 6);
    }
    if (m->kind == TOK_UNIGRAM)
        return sbp_unigram_parse(arena, diag, json, m);
    if (m->kind != TOK_BPE)
        return parse_words(arena, diag, json, m);
    SBP_TRY(parse_unk(arena, diag, json, SBP_JSON_NULLABLE, m));
    return sbp_bpe_parse(arena, diag, json, m);
}

/* ---- words --------------------------------------------------------------------------------------------- */

static sbp_status add_unknown(tok_work *work, const tok_piece *piece, tok_tokens *out) {
    const tok_model *m = &work->t->model;
    if (m->unk < 0)
        return sbp_fail(work->diag, SBP_INPUT,
                        "%s: a word needs the unk_token '%s', which is not in the vocabulary", work->t->file,
                        m->lost_unk);
    return sbp_tokens_add(work, out, m->unk, sbp_tokens_span(work, piece, 0, piece->length));
}

/* The longest token first, from the left; a word that has no such cut is unknown as a whole. */
static sbp_status encode_wordpiece(tok_work *work, tok_buffers *b, const tok_piece *piece, tok_tokens *out) {
    static const tok_string none = {0};
    const tok_model *m = &work->t->model;
    int64_t characters = 0, before = out->count;
    for (int64_t at = 0; at < piece->length; at++)
        characters += ((uint8_t)piece->text[at] & 0xc0) != 0x80;
    if (characters > m->most_chars)
        return add_unknown(work, piece, out);
    for (int64_t start = 0, end; start < piece->length; start = end) {
        int32_t id = -1;
        for (end = piece->length; end > start; end = sbp_utf8_start(piece->text, end - 1)) {
            int64_t length;
            const char *text = sbp_buffers_affix(b, start > 0 ? &m->prefix : &none, piece->text + start,
                                                 end - start, &none, &length);
            if (!text)
                return sbp_out_of_tokens(work);
            id = sbp_model_id(m, text, length);
            if (id >= 0)
                break;
        }
        if (id < 0) {
            out->count = before;
            return add_unknown(work, piece, out);
        }
        SBP_TRY(sbp_tokens_add(work, out, id, sbp_tokens_span(work, piece, start, end)));
    }
    return SBP_OK;
}

static sbp_status encode_wordlevel(tok_work *work, const tok_piece *piece, tok_tokens *out) {
    int32_t id = sbp_model_id(&work->t->model, piece->text, piece->length);
    if (id < 0)
        return add_unknown(work, piece, out);
    return sbp_tokens_add(work, out, id, sbp_tokens_span(work, piece, 0, piece->length));
}

sbp_status sbp_model_encode(tok_work *work, tok_buffers *b, const tok_piece *piece, tok_tokens *out) {
    if (piece->length == 0)
        return SBP_OK;
    switch (work->t->model.kind) {
    case TOK_UNIGRAM:
        return sbp_unigram_encode(work, b, piece, out);
    case TOK_WORDPIECE:
        return encode_wordpiece(work, b, piece, out);
    case TOK_WORDLEVEL:
        return encode_wordlevel(work, piece, out);
    default:
        return sbp_bpe_encode(work, b, piece, out);
    }
}
