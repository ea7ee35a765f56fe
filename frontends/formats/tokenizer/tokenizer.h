/* tokenizer.h: tokenizers (BPE, unigram, WordPiece, WordLevel), with the results of Hugging Face `tokenizers`
 * 0.23.
 *
 * Every tokenizer is described by the JSON of a tokenizer.json file. Other sources (the further files of
 * a Hugging Face directory, GGUF metadata, SentencePiece's tokenizer.model, tekken.json, tiktoken's files)
 * are first turned into that form; the names of special tokens
 * ("bos_token": "<s>") travel in an added token without content, which Hugging Face skips. What
 * sbp_tokenizer_to_json gives is self-contained, and Hugging Face loads it too. What is not supported is
 * an error naming the component, at load time.
 *
 * Regular expressions are written for Oniguruma and translated for PCRE2; normal forms come from utf8proc.
 * The Unicode versions behind them differ, which unicode_delta.def and unicode_inert.def even out.
 *
 * Ownership. A tokenizer and all that its accessors return live in the arena given when it was made; there
 * is nothing to destroy. Threads: a tokenizer is constant; any number of threads may encode and decode
 * with it at the same time, each with its own arena and diag. No function here needs a guard.
 */
#ifndef SBP_FRONTENDS_TOKENIZER_TOKENIZER_H
#define SBP_FRONTENDS_TOKENIZER_TOKENIZER_H

#include "frontends/formats/weights/gguf.h"

typedef struct sbp_tokenizer sbp_tokenizer;

/* A Hugging Face directory, a .gguf file, or a file of a tokenizer: tokenizer JSON, tekken.json, a model of
 * SentencePiece, lines "base64 rank" of tiktoken; told apart by what they begin with. In a directory it is
 * the first of tokenizer.json, tekken.json and tokenizer.model. Further files are read where present:
 *  - tokenizer_config.json: added_tokens_decoder, *_token, extra_special_tokens, tokenizer_class, legacy,
 *    add_prefix_space;
 *  - special_tokens_map.json: *_token that the former does not have;
 *  - config.json: eos_token_id (the first of a list) when neither names an end-of-sequence token, and
 *    bos_token_id, pad_token_id when neither file exists.
 * add_bos_token and add_eos_token are ignored beside a tokenizer.json, as transformers does: whether
 * encode adds tokens is up to its post_processor. Where there is none they count; a file of SentencePiece or
 * tekken has its bos added unless they say otherwise. A tokenizer_class counts only if it is LlamaTokenizer,
 * where it does for AutoTokenizer of transformers 5 (not with model_type mistral or qwen2, nor where the file
 * is byte-level): it brings a pipeline of its own, which puts a space before the first text only, unless
 * `legacy` says otherwise.
 */
sbp_status sbp_tokenizer_load(sbp_arena *arena, sbp_diag *diag, const char *path,
                              const sbp_tokenizer **out) SBP_CHECKED;
/* Whether the path is a directory that has one; below a guard. */
bool sbp_tokenizer_is_in(sbp_arena *arena, const char *path);
/* Where the tokenizer of a model is: a directory or .gguf itself, of another file (model.json, model.onnx,
 * config.json) the directory that it lies in; of an adapter without one that of its base (NULL: as
 * adapter_config.json names it). Below a guard. */
const char *sbp_tokenizer_place(sbp_arena *arena, const char *model, const char *base);
/* The same for a model that may do without: what is wrong or not supported (SBP_INPUT) becomes a warning, and
 * *out NULL. Rows of ids need no tokenizer. */
sbp_status sbp_tokenizer_load_optional(sbp_arena *arena, sbp_diag *diag, const char *path,
                                       const sbp_tokenizer **out) SBP_CHECKED;
/* Text of a tokenizer.json, or what sbp_tokenizer_to_json gave; `file` is for messages. The text is not
 * copied and must stay valid as long as the tokenizer. */
sbp_status sbp_tokenizer_from_json(sbp_arena *arena, sbp_diag *diag, const char *file, const char *text,
                                   size_t length, const sbp_tokenizer **out) SBP_CHECKED;
/* tokenizer.ggml.*: models "gpt2" (byte-level) and "llama" (SentencePiece BPE). */
sbp_status sbp_tokenizer_from_gguf(sbp_arena *arena, sbp_diag *diag, const sbp_gguf *gguf,
                                   const sbp_tokenizer **out) SBP_CHECKED;
/* The self-contained text, in the arena. Deterministic. */
sbp_status sbp_tokenizer_to_json(const sbp_tokenizer *tokenizer, sbp_arena *arena, sbp_diag *diag,
                                 const char **text, size_t *length) SBP_CHECKED;

typedef struct sbp_encoding {
    int64_t count;
    int32_t *ids;
    /* [count] when asked for, else NULL: the bytes offsets[i][0] .. offsets[i][1] - 1 of the text that
     * token i stands for, always whole characters (so two tokens that share a character both name it);
     * 0, 0 for tokens that the post-processor added. As Hugging Face's offsets, in bytes. */
    int64_t (*offsets)[2];
} sbp_encoding;

enum {
    SBP_ADD_SPECIAL_TOKENS = 1, /* apply the post-processor's template (a BOS, for example) */
    SBP_WITH_OFFSETS = 2
};

/* At most 2^30 bytes of text. Invalid UTF-8 is read as Python's errors="replace" does: U+FFFD for every
 * maximal invalid piece. Time is O(n log n) in the length, also for one long word; memory that of the tokens
 * and some bytes per byte of text. The encoding is put into `arena`. */
sbp_status sbp_tokenizer_encode(const sbp_tokenizer *tokenizer, sbp_arena *arena, sbp_diag *diag,
                                const char *text, size_t length, unsigned flags,
                                sbp_encoding *out) SBP_CHECKED;

/* Text of the ids, UTF-8, with a NUL after it that *length does not count. Ids without a token (a padded
 * embedding has some) stand for nothing; negative ones are SBP_INPUT. */
sbp_status sbp_tokenizer_decode(const sbp_tokenizer *tokenizer, sbp_arena *arena, sbp_diag *diag,
                                const int32_t *ids, int64_t count, bool skip_special, const char **text,
                                size_t *length) SBP_CHECKED;

/* The same id by id: what the calls give, one behind the other, is what decoding all ids gives. Each call of
 * push gives the text that is final, whatever ids follow, so it holds back the beginning of a character, a
 * run of tokens <0xHH> (which are text only if all of it is UTF-8), and where decoders are not known to work
 * piece by piece (one that replaces in the joined text, say), everything until the end. An id costs what its
 * own text does, and all ids that are held back cost once what theirs do.
 *
 * A stream has memory of its own and keeps the tokenizer. Text is valid until the next call; it has a NUL
 * after it. After a failure it can only be destroyed. Threads: one at a time. */
typedef struct sbp_decode_stream sbp_decode_stream;
sbp_status sbp_decode_stream_create(const sbp_tokenizer *tokenizer, sbp_diag *diag, bool skip_special,
                                    sbp_decode_stream **out) SBP_CHECKED;
void sbp_decode_stream_destroy(sbp_decode_stream *stream); /* NULL: nothing */
sbp_status sbp_decode_stream_push(sbp_decode_stream *stream, sbp_diag *diag, int32_t id, const char **text,
                                  size_t *length) SBP_CHECKED;
/* The rest; no id comes behind. */
sbp_status sbp_decode_stream_finish(sbp_decode_stream *stream, sbp_diag *diag, const char **text,
                                    size_t *length) SBP_CHECKED;

/* -1 when there is no such token. */
int32_t sbp_tokenizer_id(const sbp_tokenizer *tokenizer, const char *token, size_t length);
/* The token as the vocabulary spells it (byte-level: "Ġthe"), with a NUL after it; NULL when there is none.
 * length may be NULL. */
const char *sbp_tokenizer_token(const sbp_tokenizer *tokenizer, int32_t id, size_t *length);
/* Whether decoding can skip it. */
bool sbp_tokenizer_is_special(const sbp_tokenizer *tokenizer, int32_t id);

typedef enum sbp_token_role { SBP_TOKEN_BOS, SBP_TOKEN_EOS, SBP_TOKEN_PAD, SBP_TOKEN_UNK } sbp_token_role;

/* -1 when the tokenizer has none. */
int32_t sbp_tokenizer_role(const sbp_tokenizer *tokenizer, sbp_token_role role);
/* All named special tokens, for chat templates: name "bos_token", value "<s>". */
int32_t sbp_tokenizer_named_count(const sbp_tokenizer *tokenizer);
void sbp_tokenizer_named_at(const sbp_tokenizer *tokenizer, int32_t index, const char **name,
                            const char **value);
/* Where text of ours (sbp_tokenizer_to_json) carries the named special tokens: bytes [*begin, *end), without
 * which it is tokenizer.json as Hugging Face writes it, beside a tokenizer_config.json that names them. False
 * when it carries none. */
bool sbp_tokenizer_carrier(const char *text, size_t length, size_t *begin, size_t *end);

#endif
