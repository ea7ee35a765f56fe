/* tokenizer_sentencepiece.c: a tokenizer.model of SentencePiece, written as tokenizer.json text.
 *
 * The text goes through the file's charsmap, its white space is collapsed and the dummy prefix put before it
 * as the file says; then its BPE or unigram model cuts it as a whole. Control and user-defined tokens become
 * added ones: a text that spells a control token is that token, as everywhere in Hugging Face, which
 * SentencePiece itself would not take for one. A charsmap is applied as Hugging Face does (tokenizer_maps.c),
 * which looks at grapheme clusters.
 *
 * https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto */
#include "frontends/formats/files/protojson.h"
#include "frontends/formats/files/protowire.h"
#include "frontends/formats/tokenizer/tokenizer_convert.h"

#include <string.h>

enum { MODEL, PIECE, TRAINER, NORMALIZER, SELF_TEST };
enum { UNIGRAM = 1, BPE = 2, WORD = 3, CHAR = 4 };

static const char *const messages[] = {"ModelProto", "SentencePiece", "TrainerSpec", "NormalizerSpec",
                                       "SelfTestData"};

static const sbp_wire_field fields[] = {
    {MODEL, 1, "pieces", SBP_WIRE_MESSAGE, true, PIECE},
    {MODEL, 2, "trainerSpec", SBP_WIRE_MESSAGE, false, TRAINER},
    {MODEL, 3, "normalizerSpec", SBP_WIRE_MESSAGE, false, NORMALIZER},
    {MODEL, 4, "selfTestData", SBP_WIRE_OPAQUE, false, 0},
    {MODEL, 5, "denormalizerSpec", SBP_WIRE_MESSAGE, false, NORMALIZER},
    {PIECE, 1, "piece", SBP_WIRE_STRING, false, 0},
    {PIECE, 2, "score", SBP_WIRE_FLOAT, false, 0},
    {PIECE, 3, "type", SBP_WIRE_INT, false, 0},
    {TRAINER, 1, "input", SBP_WIRE_STRING, true, 0},
    {TRAINER, 2, "modelPrefix", SBP_WIRE_STRING, false, 0},
    {TRAINER, 3, "modelType", SBP_WIRE_INT, false, 0},
    {TRAINER, 4, "vocabSize", SBP_WIRE_INT, false, 0},
    {TRAINER, 5, "acceptLanguage", SBP_WIRE_STRING, true, 0},
    {TRAINER, 6, "selfTestSampleSize", SBP_WIRE_INT, false, 0},
    {TRAINER, 7, "inputFormat", SBP_WIRE_STRING, false, 0},
    {TRAINER, 10, "characterCoverage", SBP_WIRE_FLOAT, false, 0},
    {TRAINER, 11, "inputSentenceSize", SBP_WIRE_UINT, false, 0},
    {TRAINER, 12, "miningSentenceSize", SBP_WIRE_INT, false, 0},
    {TRAINER, 13, "trainingSentenceSize", SBP_WIRE_INT, false, 0},
    {TRAINER, 14, "seedSentencepieceSize", SBP_WIRE_INT, false, 0},
    {TRAINER, 15, "shrinkingFactor", SBP_WIRE_FLOAT, false, 0},
    {TRAINER, 16, "numThreads", SBP_WIRE_INT, false, 0},
    {TRAINER, 17, "numSubIterations", SBP_WIRE_INT, false, 0},
    {TRAINER, 18, "maxSentenceLength", SBP_WIRE_INT, false, 0},
    {TRAINER, 19, "shuffleInputSentence", SBP_WIRE_INT, false, 0},
    {TRAINER, 20, "maxSentencepieceLength", SBP_WIRE_INT, false, 0},
    {TRAINER, 21, "splitByUnicodeScript", SBP_WIRE_INT, false, 0},
    {TRAINER, 22, "splitByWhitespace", SBP_WIRE_INT, false, 0},
    {TRAINER, 23, "splitByNumber", SBP_WIRE_INT, false, 0},
    {TRAINER, 24, "treatWhitespaceAsSuffix", SBP_WIRE_INT, false, 0},
    {TRAINER, 25, "splitDigits", SBP_WIRE_INT, false, 0},
    {TRAINER, 26, "allowWhitespaceOnlyPieces", SBP_WIRE_INT, false, 0},
    {TRAINER, 30, "controlSymbols", SBP_WIRE_STRING, true, 0},
    {TRAINER, 31, "userDefinedSymbols", SBP_WIRE_STRING, true, 0},
    {TRAINER, 32, "vocabularyOutputPieceScore", SBP_WIRE_INT, false, 0},
    {TRAINER, 33, "hardVocabLimit", SBP_WIRE_INT, false, 0},
    {TRAINER, 34, "useAllVocab", SBP_WIRE_INT, false, 0},
    {TRAINER, 35, "byteFallback", SBP_WIRE_INT, false, 0},
    {TRAINER, 36, "requiredChars", SBP_WIRE_STRING, false, 0},
    {TRAINER, 40, "unkId", SBP_WIRE_INT, false, 0},
    {TRAINER, 41, "bosId", SBP_WIRE_INT, false, 0},
    {TRAINER, 42, "eosId", SBP_WIRE_INT, false, 0},
    {TRAINER, 43, "padId", SBP_WIRE_INT, false, 0},
    {TRAINER, 44, "unkSurface", SBP_WIRE_STRING, false, 0},
    {TRAINER, 45, "unkPiece", SBP_WIRE_STRING, false, 0},
    {TRAINER, 46, "bosPiece", SBP_WIRE_STRING, false, 0},
    {TRAINER, 47, "eosPiece", SBP_WIRE_STRING, false, 0},
    {TRAINER, 48, "padPiece", SBP_WIRE_STRING, false, 0},
    {TRAINER, 49, "trainExtremelyLargeCorpus", SBP_WIRE_INT, false, 0},
    {TRAINER, 50, "enableDifferentialPrivacy", SBP_WIRE_INT, false, 0},
    {TRAINER, 51, "differentialPrivacyNoiseLevel", SBP_WIRE_FLOAT, false, 0},
    {TRAINER, 52, "differentialPrivacyClippingThreshold", SBP_WIRE_UINT, false, 0},
    {TRAINER, 53, "pretokenizationDelimiter", SBP_WIRE_STRING, false, 0},
    {TRAINER, 54, "seedSentencepiecesFile", SBP_WIRE_STRING, false, 0},
    {TRAINER, 55, "autoCharacterCoverage", SBP_WIRE_INT, false, 0},
    {NORMALIZER, 1, "name", SBP_WIRE_STRING, false, 0},
    {NORMALIZER, 2, "precompiledCharsmap", SBP_WIRE_BYTES, false, 0},
    {NORMALIZER, 3, "addDummyPrefix", SBP_WIRE_INT, false, 0},
    {NORMALIZER, 4, "removeExtraWhitespaces", SBP_WIRE_INT, false, 0},
    {NORMALIZER, 5, "escapeWhitespaces", SBP_WIRE_INT, false, 0},
    {NORMALIZER, 6, "normalizationRuleTsv", SBP_WIRE_STRING, false, 0},
};

typedef struct reading {
    tok_conversion c;
    const sbp_json *trainer, *normalizer; /* NULL: all defaults */
    double *scores;
    int64_t kind;
} reading;

static sbp_status refuse(const reading *r, const char *what) {
    return sbp_fail(r->c.diag, SBP_INPUT, "%s: %s is not supported", r->c.path, what);
}

/* ---- reading
 * ----------------------------------------------------------------------------------------------------- */

static sbp_status read_pieces(reading *r, const sbp_json *root) {
    tok_conversion *c = &r->c;
    const sbp_json *pieces;
    int64_t count;
    SBP_TRY(sbp_proto_get_repeated(c->diag, root, "pieces", &pieces, &count));
    if (count == 0)
        return sbp_fail(c->diag, SBP_INPUT, "%s: the SentencePiece model has no pieces", c->path);
    sbp_convert_start(c, count);
    int32_t *types = SBP_NEW_ARRAY(c->scratch, int32_t, count);
    r->scores = SBP_NEW_ARRAY(c->scratch, double, count);
    c->types = types;
    for (int64_t id = 0; id < count; id++) {
        int64_t type = TOK_TYPE_NORMAL;
        const sbp_json *text = sbp_proto_field(&pieces[id], "piece"),
                       *score = sbp_proto_field(&pieces[id], "score");
        SBP_TRY(sbp_proto_get_i64(c->diag, &pieces[id], "type", &type));
        if (type < TOK_TYPE_NORMAL || type > TOK_TYPE_BYTE)
            return sbp_json_fail(c->diag, &pieces[id], "the type %lld of a piece is not known",
                                 (long long)type);
        if (type == TOK_TYPE_UNUSED)
            return sbp_json_fail(c->diag, &pieces[id],
                                 "a piece that is not to be used (type 5) is not supported");
        types[id] = (int32_t)type;
        if (score)
            SBP_TRY(sbp_proto_double(c->diag, score, &r->scores[id]));
        sbp_gguf_string token = {text ? text->string : "", text ? text->count : 0};
        if (token.length == 0)
            return sbp_json_fail(c->diag, &pieces[id], "a piece is empty");
        SBP_TRY(sbp_convert_token(c, id, token, false));
    }
    return SBP_OK;
}

/* Ids of the trainer, where the piece is of such a type. */
static sbp_status read_roles(reading *r) {
    static const char *const names[] = {"bosId", "eosId", "padId", "unkId"};
    static const int64_t defaults[] = {1, 2, -1, 0};
    for (int role = 0; role < 4; role++) {
        int64_t id = defaults[role];
        SBP_TRY(sbp_proto_get_i64(r->c.diag, r->trainer, names[role], &id));
        int32_t type = role == SBP_TOKEN_UNK ? TOK_TYPE_UNKNOWN : TOK_TYPE_CONTROL;
        if (id >= 0 && id < r->c.count && r->c.types[id] == type)
            r->c.role_ids[role] = id;
    }
    return SBP_OK;
}

static sbp_status read_flag(const reading *r, const sbp_json *message, const char *name, bool *out) {
    int64_t value = *out;
    SBP_TRY(sbp_proto_get_i64(r->c.diag, message, name, &value));
    *out = value != 0;
    return SBP_OK;
}

/* ---- writing
 * ----------------------------------------------------------------------------------------------------- */

static void print_base64(sbp_text *out, const uint8_t *bytes, int64_t length) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (int64_t i = 0; i < length; i += 3) {
        int64_t left = length - i;
        uint32_t bits = (uint32_t)bytes[i] << 16 | (left > 1 ? (uint32_t)bytes[i + 1] << 8 : 0) |
                        (left > 2 ? (uint32_t)bytes[i + 2] : 0);
        char four[4] = {digits[bits >> 18], digits[bits >> 12 & 63], left > 1 ? digits[bits >> 6 & 63] : '=',
                        left > 2 ? digits[bits & 63] : '='};
        sbp_text_add_n(out, four, 4);
    }
}

static sbp_status write_normalizer(reading *r, bool dummy) {
    tok_conversion *c = &r->c;
    bool collapse = true, escape = true;
    const sbp_json *map = sbp_proto_field(r->normalizer, "precompiledCharsmap");
    SBP_TRY(read_flag(r, r->normalizer, "removeExtraWhitespaces", &collapse));
    SBP_TRY(read_flag(r, r->normalizer, "escapeWhitespaces", &escape));
    if (!escape)
        return refuse(r, "escape_whitespaces false");
    sbp_json_write_object(&c->w, "normalizer");
    sbp_json_write_string(&c->w, "type", "Sequence");
    sbp_json_write_array(&c->w, "normalizers");
    if (map && map->count > 0) {
        sbp_text text;
        sbp_text_init(&text, c->scratch);
        print_base64(&text, (const uint8_t *)map->string, map->count);
        sbp_json_write_object(&c->w, NULL);
        sbp_json_write_string(&c->w, "type", "Precompiled");
        sbp_json_write_bytes(&c->w, "precompiled_charsmap", text.data, text.length);
        sbp_json_write_end(&c->w);
    }
    if (collapse) { /* at the end it is the escaped text that is looked at */
        sbp_json_write_raw(&c->w, NULL,
                           "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(?<![ \xe2\x96\x81])[ "
                           "\xe2\x96\x81]+\\\\z|\\\\A +\"},\"content\":\"\"}");
        sbp_json_write_raw(&c->w, NULL,
                           "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\" \"}");
    }
    if (dummy)
        sbp_json_write_raw(&c->w, NULL, "{\"type\":\"Prepend\",\"prepend\":\"\xe2\x96\x81\"}");
    sbp_json_write_raw(&c->w, NULL,
                       "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"}");
    sbp_json_write_end(&c->w);
    sbp_json_write_end(&c->w);
    return SBP_OK;
}

static void write_unigram(reading *r, bool byte_fallback) {
    tok_conversion *c = &r->c;
    sbp_json_write_object(&c->w, "model");
    sbp_json_write_string(&c->w, "type", "Unigram");
    if (c->role_ids[SBP_TOKEN_UNK] >= 0)
        sbp_json_write_int(&c->w, "unk_id", c->role_ids[SBP_TOKEN_UNK]);
    else
        sbp_json_write_null(&c->w, "unk_id");
    sbp_json_write_array(&c->w, "vocab");
    for (int64_t id = 0; id < c->count; id++) {
        sbp_json_write_array(&c->w, NULL);
        sbp_convert_write_token(c, NULL, id);
        sbp_json_write_value(&c->w, NULL, &(sbp_json){.kind = SBP_JSON_REAL, .real = r->scores[id]});
        sbp_json_write_end(&c->w);
    }
    sbp_json_write_end(&c->w);
    sbp_json_write_bool(&c->w, "byte_fallback", byte_fallback);
    sbp_json_write_end(&c->w);
    sbp_json_write_end(&c->w);
}

/* What the file has that would change tokens in ways that are not here. */
static sbp_status check_specs(const reading *r, const sbp_json *root) {
    bool suffix = false;
    const sbp_json *map = sbp_proto_field(sbp_proto_field(root, "denormalizerSpec"), "precompiledCharsmap");
    SBP_TRY(read_flag(r, r->trainer, "treatWhitespaceAsSuffix", &suffix));
    if (suffix)
        return refuse(r, "treat_whitespace_as_suffix");
    if (map && map->count > 0)
        return refuse(r, "a denormalizer");
    if (r->kind == WORD)
        return refuse(r, "the model type 'word'");
    if (r->kind != UNIGRAM && r->kind != BPE && r->kind != CHAR)
        return sbp_fail(r->c.diag, SBP_INPUT, "%s: the model type %lld is not known", r->c.path,
                        (long long)r->kind);
    return SBP_OK;
}

static const sbp_wire_schema schema = {fields, SBP_COUNT(fields), messages};

sbp_status sbp_sentencepiece_pieces(sbp_arena *arena, sbp_diag *diag, const char *path, const char *data,
                                    size_t length, tok_pieces *out) {
    reading r = {.c = {.scratch = arena, .diag = diag, .path = path}};
    const sbp_json *root;
    SBP_TRY(sbp_wire_parse(arena, diag, path, data, length, &schema, MODEL, &root));
    SBP_TRY(read_pieces(&r, root));
    *out = (tok_pieces){r.c.count, r.c.tokens, r.scores, r.c.types};
    return SBP_OK;
}

sbp_status sbp_convert_sentencepiece(sbp_arena *scratch, sbp_diag *diag, const char *path, const char *data,
                                     size_t length, int add_bos, int add_eos, sbp_text *out) {
    reading r = {.c = {.scratch = scratch, .diag = diag, .path = path}, .kind = UNIGRAM};
    tok_conversion *c = &r.c;
    const sbp_json *root;
    bool dummy = true, byte_fallback = false;
    SBP_TRY(sbp_wire_parse(scratch, diag, path, data, length, &schema, MODEL, &root));
    r.trainer = sbp_proto_field(root, "trainerSpec");
    r.normalizer = sbp_proto_field(root, "normalizerSpec");
    SBP_TRY(sbp_proto_get_i64(diag, r.trainer, "modelType", &r.kind));
    SBP_TRY(read_flag(&r, r.trainer, "byteFallback", &byte_fallback));
    SBP_TRY(read_flag(&r, r.normalizer, "addDummyPrefix", &dummy));
    SBP_TRY(check_specs(&r, root));
    SBP_TRY(read_pieces(&r, root));
    SBP_TRY(read_roles(&r));
    sbp_convert_added(c);
    SBP_TRY(write_normalizer(&r, dummy));
    sbp_json_write_null(&c->w, "pre_tokenizer");
    SBP_TRY(sbp_convert_processor(c, add_bos < 0 ? c->role_ids[SBP_TOKEN_BOS] >= 0 : add_bos, add_eos > 0));
    sbp_convert_decoder(&c->w, dummy);
    if (r.kind == UNIGRAM) {
        write_unigram(&r, byte_fallback);
    } else {
        sbp_convert_bpe(c, byte_fallback);
        sbp_convert_vocabulary(c);
        if (r.kind == BPE)
            SBP_TRY(sbp_convert_merges(c, r.scores));
        sbp_convert_end(c);
    }
    *out = c->out;
    return SBP_OK;
}
