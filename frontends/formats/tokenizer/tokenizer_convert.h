/* tokenizer_convert.h: what tokenizers of other formats are made of on their way to tokenizer.json text: a
 * vocabulary with types and scores as SentencePiece and GGUF have them. Everything below a guard of
 * `scratch`. */
#ifndef SBP_FRONTENDS_TOKENIZER_TOKENIZER_CONVERT_H
#define SBP_FRONTENDS_TOKENIZER_TOKENIZER_CONVERT_H

#include "frontends/formats/tokenizer/tokenizer_internal.h"

enum {
    TOK_TYPE_NORMAL = 1,
    TOK_TYPE_UNKNOWN,
    TOK_TYPE_CONTROL,
    TOK_TYPE_USER,
    TOK_TYPE_UNUSED,
    TOK_TYPE_BYTE,
    TOK_MAX_BYTES = 4096 /* of a token */
};

typedef struct tok_conversion {
    sbp_arena *scratch;
    sbp_diag *diag;
    const char *path;
    sbp_gguf_string *tokens; /* [count], respelled */
    int64_t count;
    const int32_t *types; /* [count]; NULL: all normal */
    sbp_map ids;
    int64_t role_ids[4]; /* -1: none */
    sbp_text out;
    sbp_json_writer w; /* on it */
} tok_conversion;

/* Room for `count` tokens; then each by its id, which must be UTF-8 without NUL and not be there yet.
 * spaces_to_blocks: a token of spaces is one of U+2581. */
void sbp_convert_start(tok_conversion *c, int64_t count);
sbp_status sbp_convert_token(tok_conversion *c, int64_t id, sbp_gguf_string given,
                             bool spaces_to_blocks) SBP_CHECKED;

/* Parts of the text, in this order; a name of c->w before each is what the format has there. This one writes
 * the spelling of a token. */
void sbp_convert_write_token(tok_conversion *c, const char *key, int64_t id);
/* Begins it: control, unknown and user-defined tokens, and what the roles are called. */
void sbp_convert_added(tok_conversion *c);
/* A template that puts bos before and eos behind, where they are wanted. */
sbp_status sbp_convert_processor(tok_conversion *c, bool add_bos, bool add_eos) SBP_CHECKED;
/* SentencePiece's decoder, with what takes off the space that was put before the text. */
void sbp_convert_decoder(sbp_json_writer *w, bool dummy_prefix);
/* The BPE object up to the vocabulary: what stands for what has no token. */
void sbp_convert_bpe(tok_conversion *c, bool byte_fallback);
/* The same where tokens are bytes, behind their decoder. */
void sbp_convert_byte_bpe(tok_conversion *c, bool ignore_merges);
/* What cuts texts into words where the pattern matches, a member of a list. */
void sbp_convert_split(tok_conversion *c, const char *pattern);
/* The tokens, and the list of merges, which stays open. */
void sbp_convert_vocabulary(tok_conversion *c);
/* Ends list, model and text. */
void sbp_convert_end(tok_conversion *c);
/* Every way to cut a token into two, best score first. scores: [count]; NULL: by type and id. */
sbp_status sbp_convert_merges(tok_conversion *c, const double *scores) SBP_CHECKED;
/* The same in the order of ids from `first` on, all parts among them. */
void sbp_convert_ranked_merges(tok_conversion *c, int64_t first);

/* Text of a tokenizer.json in `scratch`, of a tokenizer.model of SentencePiece, of a tekken.json or of a file
 * of tiktoken. add_bos, add_eos: -1 where nobody said. Below a guard. */
sbp_status sbp_convert_sentencepiece(sbp_arena *scratch, sbp_diag *diag, const char *path, const char *data,
                                     size_t length, int add_bos, int add_eos, sbp_text *out) SBP_CHECKED;
/* The pieces of a tokenizer.model as they are there, in `arena`. */
typedef struct tok_pieces {
    int64_t count;
    const sbp_gguf_string *tokens;
    const double *scores;
    const int32_t *types;
} tok_pieces;
sbp_status sbp_sentencepiece_pieces(sbp_arena *arena, sbp_diag *diag, const char *path, const char *data,
                                    size_t length, tok_pieces *out) SBP_CHECKED;
sbp_status sbp_convert_tekken(sbp_arena *scratch, sbp_diag *diag, const char *path, const sbp_json *root,
                              int add_bos, int add_eos, sbp_text *out) SBP_CHECKED;
sbp_status sbp_convert_tiktoken(sbp_arena *scratch, sbp_diag *diag, const char *path, const char *data,
                                size_t length, sbp_text *out) SBP_CHECKED;

#endif
