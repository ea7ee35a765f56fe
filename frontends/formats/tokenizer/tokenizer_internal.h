/* tokenizer_internal.h: the parts of a tokenizer, and the text on its way through them.
 *
 * Encoding: added tokens that match the raw text are cut out; the rest is normalized; added tokens that
 * match normalized text are cut out; the pre-tokenizers cut the rest into pieces; BPE turns each piece
 * into tokens; post-processors add special tokens and trim offsets.
 */
#ifndef SBP_FRONTENDS_TOKENIZER_TOKENIZER_INTERNAL_H
#define SBP_FRONTENDS_TOKENIZER_TOKENIZER_INTERNAL_H

#include "frontends/formats/tokenizer/tokenizer.h"
#include "ir/base/json_write.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* ---- Unicode --------------------------------------------------------------------------------------- */

/* The code point at `text`, which must be valid UTF-8; returns its number of bytes. */
int sbp_utf8_get(const char *text, uint32_t *code);
/* Writes 1 to 4 bytes. */
int sbp_utf8_put(char *out, uint32_t code);
/* Bytes of the valid sequence at text, or 0 with *skip set to the bytes that one U+FFFD replaces. */
int sbp_utf8_check(const char *text, int64_t length, int *skip);
/* Where the character begins that has byte `at` of valid UTF-8. */
int64_t sbp_utf8_start(const char *text, int64_t at);
bool sbp_is_whitespace(uint32_t code); /* Unicode White_Space */
/* The characters that GPT-2 writes for bytes. */
uint32_t sbp_byte_to_char(uint8_t byte);
int sbp_char_to_byte(uint32_t code); /* -1 when it stands for none */

/* ---- patterns -------------------------------------------------------------------------------------- */

/* A literal or a regular expression; exactly one is set. */
typedef struct tok_pattern {
    const char *literal;
    int64_t literal_length;
    const pcre2_code *code;
} tok_pattern;

/* Compiles an Oniguruma (Ruby syntax) pattern; below a guard. `where` names the component. */
sbp_status sbp_regex_compile(sbp_arena *arena, sbp_diag *diag, const char *where, const char *pattern,
                             size_t length, const pcre2_code **out) SBP_CHECKED;

/* ---- components ------------------------------------------------------------------------------------ */

typedef enum tok_normalizer_kind {
    TOK_PREPEND,
    TOK_REPLACE,
    TOK_NFC,
    TOK_NFD,
    TOK_NFKC,
    TOK_NFKD,
    TOK_LOWERCASE,
    TOK_STRIP,
    TOK_BYTES,
    TOK_CLEAN,      /* BERT: no control characters, all white space is ' ' */
    TOK_SPACE_HAN,  /* BERT: a space around every ideograph */
    TOK_DROP_MN,    /* BERT: behind NFD */
    TOK_DROP_MARKS, /* StripAccents */
    TOK_NMT,
    TOK_CHARSMAP /* Precompiled */
} tok_normalizer_kind;

/* A precompiled map of SentencePiece: a double array whose leaves are where in `strings` the replacement
 * begins, which goes to a NUL. */
typedef struct tok_charsmap {
    const uint8_t *units; /* [unit_count] of 32 bits, little endian */
    int64_t unit_count;
    const char *strings; /* UTF-8, NUL behind `length` bytes */
    int64_t length;
} tok_charsmap;

typedef struct tok_normalizer {
    tok_normalizer_kind kind;
    tok_pattern pattern; /* replace */
    const char *text;    /* prepend, replace */
    int64_t length;
    bool left, right; /* strip */
    tok_charsmap map; /* charsmap */
} tok_normalizer;

typedef enum tok_behavior {
    TOK_REMOVED,
    TOK_ISOLATED,
    TOK_MERGED_WITH_PREVIOUS,
    TOK_MERGED_WITH_NEXT,
    TOK_CONTIGUOUS
} tok_behavior;

typedef enum tok_prepend_scheme { TOK_ALWAYS, TOK_FIRST, TOK_NEVER } tok_prepend_scheme;

enum {
    TOK_MAX_SPLITTERS = 64,   /* they call each other */
    TOK_MOST_PARTS = 128,     /* normalizers, decoders, what trims offsets: each goes over the whole text */
    TOK_MOST_SPECIALS = 1024, /* that a post-processor adds to each text */
    TOK_MOST_ADDED_BYTES = 1024,  /* of an added token, which may begin at every byte of a text */
    TOK_MOST_MADE = 1 << 26,      /* bytes that normalizers, splitters, decoders may make of a text .. */
    TOK_MOST_MADE_PER_BYTE = 1024 /* .. and of each of its bytes, with what they come from */
};

typedef enum tok_splitter_kind { TOK_BYTE_LEVEL, TOK_SPLIT, TOK_METASPACE } tok_splitter_kind;

/* A pre-tokenizer. Digits, Punctuation and Whitespace are splits by a pattern. */
typedef struct tok_splitter {
    tok_splitter_kind kind;
    tok_pattern pattern;   /* split; byte-level: GPT-2's, or none; metaspace: the replacement */
    tok_behavior behavior; /* split */
    bool invert;           /* split */
    bool add_prefix_space; /* byte-level */
    bool split;            /* metaspace */
    tok_prepend_scheme scheme;
} tok_splitter;

typedef enum tok_decoder_kind {
    TOK_DECODE_BYTE_LEVEL,
    TOK_DECODE_REPLACE,
    TOK_DECODE_BYTE_FALLBACK,
    TOK_DECODE_FUSE,
    TOK_DECODE_STRIP,
    TOK_DECODE_METASPACE,
    TOK_DECODE_WORDPIECE,
    TOK_DECODE_SUFFIX /* BPEDecoder */
} tok_decoder_kind;

typedef struct tok_decoder {
    tok_decoder_kind kind;
    tok_pattern pattern; /* replace */
    const char *text;    /* replace; wordpiece: the prefix; suffix: that */
    int64_t length;
    uint32_t code;       /* strip, metaspace */
    bool cleanup;        /* wordpiece */
    int64_t start, stop; /* strip */
    bool keep_first;     /* metaspace: the first token keeps its spaces */
} tok_decoder;

/* Post-processors boil down to these: what to trim off offsets, and what to put around the tokens. */
typedef struct tok_trim {
    bool add_prefix_space;
} tok_trim;

/* ---- vocabulary ------------------------------------------------------------------------------------ */

typedef struct tok_string {
    const char *text; /* NULL: the id has no token */
    int32_t length;
} tok_string;

typedef struct tok_merge {
    uint64_t pair; /* left id << 32 | right id */
    int32_t rank;  /* -1: empty slot */
    int32_t id;
} tok_merge;

/* A set of pairs of characters: left << 32 | right, plus 1 (0: an empty slot). */
typedef struct tok_pairs {
    uint64_t *slots;
    uint64_t mask;
    int64_t count;
} tok_pairs;

/* A node of the trie of a unigram model; its children lie together, by byte. */
typedef struct tok_node {
    int32_t first_child, id; /* id: of the token that ends here, or -1 */
    uint16_t child_count;
    uint8_t byte;
} tok_node;

typedef enum tok_model_kind { TOK_BPE, TOK_UNIGRAM, TOK_WORDPIECE, TOK_WORDLEVEL } tok_model_kind;

typedef struct tok_model {
    tok_model_kind kind;
    tok_string *tokens; /* [size], by id */
    int32_t size;       /* one more than the largest id of the model */
    int32_t count;      /* tokens in it */
    int32_t *slots;     /* hash of the text -> id + 1 */
    uint32_t slot_mask;
    int32_t *chars; /* hash of the code point -> id + 1, for tokens of one character */
    uint32_t char_mask;
    tok_merge *merges;
    uint64_t merge_mask;
    int32_t merge_count;
    int32_t *merge_ids; /* [merge_count], by rank */
    /* The last character of the left and the first of the right part of every merge: a word can be cut
     * between two characters that are not among them, since no token will ever hold both. */
    tok_pairs touching;
    uint32_t unk_first, unk_last; /* characters of the unk token; 0: it has none, words are not cut */
    int32_t byte_ids[256];        /* <0xHH>, or -1 */
    int32_t unk;                  /* -1: none */
    const char *lost_unk;         /* an unk_token that the vocabulary lacks: only text that needs it fails */
    bool fuse_unk, byte_fallback, ignore_merges;
    tok_string prefix, suffix; /* bpe: of characters that begin no word, or end one; wordpiece: prefix */
    int64_t most_chars;        /* wordpiece: longer words are unknown */
    double *scores;            /* unigram: [size] */
    double unk_score;
    tok_node *nodes; /* unigram; node 0 is the root */
} tok_model;

int32_t sbp_model_id(const tok_model *model, const char *text, int64_t length);
/* The token of one character, or -1. */
int32_t sbp_model_char_id(const tok_model *model, uint32_t code);
/* A power of two of at least twice `count`. */
uint32_t sbp_table_size(int64_t count);
/* The "model" object of tokenizer.json; below a guard. */
sbp_status sbp_model_parse(sbp_arena *arena, sbp_diag *diag, const sbp_json *json,
                           tok_model *out) SBP_CHECKED;
/* {"token": id, ..}, or [["token", score], ..] whose ids are places, of the model object. */
sbp_status sbp_vocab_parse(sbp_arena *arena, sbp_diag *diag, const sbp_json *json, tok_model *m) SBP_CHECKED;
sbp_status sbp_vocab_parse_scored(sbp_arena *arena, sbp_diag *diag, const sbp_json *json,
                                  tok_model *m) SBP_CHECKED;
/* What only that kind has, behind the vocabulary. */
sbp_status sbp_bpe_parse(sbp_arena *arena, sbp_diag *diag, const sbp_json *json, tok_model *m) SBP_CHECKED;
sbp_status sbp_unigram_parse(sbp_arena *arena, sbp_diag *diag, const sbp_json *json,
                             tok_model *m) SBP_CHECKED;

/* ---- added tokens ---------------------------------------------------------------------------------- */

typedef struct tok_added {
    tok_string content;
    tok_string normalized_content; /* equal to content unless normalization changes it */
    int32_t id;
    bool single_word, left_strip, right_strip, normalized, special;
} tok_added;

typedef struct tok_trie_node {
    int32_t first_child, next_sibling; /* 0: none */
    int32_t token;                     /* index of the added token that ends here, or -1 */
    uint8_t byte;
} tok_trie_node;

typedef struct tok_trie {
    tok_trie_node *nodes; /* node 0 is the root */
    int32_t count, capacity;
    int32_t roots[256]; /* children of the root by byte; 0: none */
} tok_trie;

/* Cuts the tokens of a trie out of a piece: gives `sink` them and what lies between. */
struct tok_work;
struct tok_piece;
typedef sbp_status (*tok_piece_sink)(void *user, struct tok_piece *piece);
sbp_status sbp_cut_added(struct tok_work *work, const tok_trie *trie, const struct tok_piece *piece,
                         tok_piece_sink sink, void *user) SBP_CHECKED;
void sbp_trie_init(tok_trie *trie, sbp_arena *arena);
/* The last one added under a text wins. */
void sbp_trie_add(tok_trie *trie, sbp_arena *arena, const char *text, int64_t length, int32_t token);

/* ---- the tokenizer --------------------------------------------------------------------------------- */

typedef struct tok_named {
    const char *name, *value;
} tok_named;

struct sbp_tokenizer {
    sbp_arena *arena;
    const char *file;
    const char *json; /* the text it was made from */
    size_t json_length;
    tok_model model;
    tok_added *added;
    int32_t added_count, added_capacity;
    int32_t *added_of_id; /* [size]: index into added, or -1 */
    int32_t size;         /* one more than the largest id */
    tok_trie raw_trie, normalized_trie;
    tok_normalizer *normalizers;
    int32_t normalizer_count, normalizer_capacity;
    tok_splitter *splitters;
    int32_t splitter_count, splitter_capacity;
    tok_decoder *decoders;
    int32_t decoder_count, decoder_capacity;
    bool has_decoder;
    tok_trim *trims;
    int32_t trim_count, trim_capacity;
    int32_t *before, *after; /* ids of the template */
    int32_t before_count, before_capacity, after_count, after_capacity;
    int32_t aligned_until;       /* the last splitter that asks where in the text a piece begins; -1: none */
    const pcre2_code *word_char; /* one \w, for single_word tokens; NULL when there are none */
    tok_named *named;
    int32_t named_count, named_capacity;
    int32_t roles[4];
};

/* What the files beside tokenizer.json add to it. Strings may go away after the call they are given to. */
typedef struct tok_extra_token {
    const char *content;
    int64_t id; /* -1: whatever the tokenizer has */
    bool single_word, left_strip, right_strip, normalized, special;
} tok_extra_token;

typedef struct tok_extras {
    tok_extra_token *tokens;
    int32_t token_count, token_capacity;
    tok_named *named;
    int32_t named_count, named_capacity;
    int64_t role_ids[4]; /* for roles without a name: an id, or -1 */
} tok_extras;

/* Makes a tokenizer of JSON text that stays valid as long as it. extras may be NULL. */
sbp_status sbp_tokenizer_build(sbp_arena *arena, sbp_diag *diag, const char *file, const char *text,
                               size_t length, const tok_extras *extras,
                               const sbp_tokenizer **out) SBP_CHECKED;
/* "bos_token", ... by role. */
const char *sbp_token_role_name(sbp_token_role role);
/* Among added_tokens, what holds the named special tokens ("bos_token": "<s>", ...), up to the first one. */
#define TOK_NAMED_KEY "sbp_special_tokens"
#define TOK_NAMED_HEAD                                                                                       \
    "{\"id\":0,\"content\":\"\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":"     \
    "false,"                                                                                                 \
    "\"special\":false,\"" TOK_NAMED_KEY "\":{"

/* Members of added_tokens: a token; and the above, two objects of which stay open. */
void sbp_write_added(sbp_json_writer *w, const tok_added *token);
void sbp_write_named(sbp_json_writer *w);

/* Components of tokenizer.json into the lists above; below a guard. */
sbp_status sbp_tokenizer_parse_components(sbp_tokenizer *t, sbp_diag *diag, const sbp_json *root) SBP_CHECKED;

/* ---- text on its way -------------------------------------------------------------------------------
 *
 * A piece goes through all stages before the next one is cut off, so that a long text takes memory for its
 * normalized form and its tokens, not for lists of pieces. Whoever is given a piece reads it before it
 * returns.
 */

typedef struct tok_span {
    int64_t begin, end;
} tok_span;

/* A stretch of text. Without alignment its bytes are those of the original from `base` on. */
typedef struct tok_piece {
    const char *text;
    int64_t length;
    const tok_span *align; /* [length]: the bytes of the original that a byte comes from; NULL: see above */
    int64_t base;
    int64_t begin, end; /* the part of the original that it stands for, with what was stripped */
    int32_t added;      /* index of the added token that it is, or -1 */
} tok_piece;

typedef struct tok_work {
    const sbp_tokenizer *t;
    sbp_arena *arena; /* scratch; new text of pieces, which is freed behind them */
    sbp_diag *diag;
    bool offsets; /* of tokens are wanted */
    bool track;   /* keep alignments: those of the tokens, or of pieces whose beginning a splitter asks for */
    int64_t
        left; /* bytes that may still be made; below 0: more were wanted, and the text is not what it says */
    pcre2_match_data *match_data;
    pcre2_match_context *match_context;
} tok_work;

/* Matches of a pattern in text, in order, covering it: is_match false between them. */
typedef struct tok_match {
    int64_t begin, end;
    bool is_match;
} tok_match;

typedef sbp_status (*tok_match_sink)(void *user, tok_match match);
sbp_status sbp_find_matches(tok_work *work, const tok_pattern *pattern, const char *text, int64_t length,
                            tok_match_sink sink, void *user) SBP_CHECKED;
/* For regular expressions; sets up work->match_data, whose memory is in `matching`. */
void sbp_work_init(tok_work *work, const sbp_tokenizer *t, sbp_arena *scratch, sbp_arena *matching,
                   sbp_diag *diag, bool offsets);

/* SBP_INPUT where more was wanted than may be made: asked behind each step that makes text. */
sbp_status sbp_work_check(const tok_work *work) SBP_CHECKED;
/* Takes `bytes` bytes of what may be made; false: they are not left. */
bool sbp_work_take(tok_work *work, int64_t bytes);

tok_span sbp_piece_span(const tok_piece *piece, int64_t at);
tok_piece sbp_piece_slice(const tok_piece *piece, int64_t begin, int64_t end);
/* New text of a piece. Prepend: before a piece that is not empty; it is aligned with the first
 * character. To bytes: every byte as GPT-2's character for it. */
void sbp_piece_prepend(tok_work *work, tok_piece *piece, const char *text, int64_t length);
void sbp_piece_to_bytes(tok_work *work, tok_piece *piece);
sbp_status sbp_piece_replace(tok_work *work, tok_piece *piece, const tok_pattern *pattern, const char *text,
                             int64_t length) SBP_CHECKED;
sbp_status sbp_normalize(tok_work *work, tok_piece *piece) SBP_CHECKED;

/* A new text of a piece under construction, with its alignment where that is kept. */
typedef struct tok_builder {
    sbp_arena *arena;
    tok_work *work; /* what may be made is counted there; what is not left is not added */
    const tok_piece *piece;
    char *text;
    tok_span *align;
    int64_t length, capacity;
} tok_builder;

tok_builder sbp_builder_start(tok_work *work, const tok_piece *piece, int64_t capacity);
void sbp_builder_add(tok_builder *b, const char *text, int64_t length, tok_span span);
void sbp_builder_add_code(tok_builder *b, uint32_t code, tok_span span);
/* Bytes begin .. end - 1 of the old text as they are. */
void sbp_builder_copy(tok_builder *b, int64_t begin, int64_t end);
/* What a character at byte `at` of the old text is aligned with, and one that is put in before it. */
tok_span sbp_builder_span_at(const tok_builder *b, int64_t at);
tok_span sbp_builder_span_before(const tok_builder *b, int64_t at);
void sbp_builder_finish(tok_builder *b, tok_piece *piece);

/* Character by character: TOK_CLEAN to TOK_NMT; TOK_CHARSMAP. */
void sbp_map_characters(tok_work *work, tok_piece *piece, tok_normalizer_kind kind);
void sbp_map_charsmap(tok_work *work, tok_piece *piece, const tok_charsmap *map);
/* From what is stored: a 32-bit size, the double array, the strings. Below a guard. */
sbp_status sbp_charsmap_parse(sbp_diag *diag, const sbp_json *json, const uint8_t *bytes, int64_t length,
                              tok_charsmap *out) SBP_CHECKED;
/* Cuts a piece by the splitters. */
sbp_status sbp_pre_tokenize(tok_work *work, tok_piece *piece, tok_piece_sink sink, void *user) SBP_CHECKED;

/* Lists that grow by realloc: a long text would fill an arena with their outgrown copies. */
typedef struct tok_tokens {
    int32_t *ids;
    tok_span *spans; /* in the original; NULL when not wanted */
    int64_t count, capacity;
} tok_tokens;

sbp_status sbp_tokens_add(tok_work *work, tok_tokens *tokens, int32_t id, tok_span span) SBP_CHECKED;

/* Buffers that one encode call reuses for all its words; zeroed at first, freed by sbp_bpe_free. A symbol
 * covers `span` characters, of which the first has its id (others -1) and the first and the last have the
 * span. */
typedef struct tok_symbol {
    int32_t id, span;
} tok_symbol;

typedef struct tok_candidate {
    int32_t rank, position;
} tok_candidate;

/* The best path of a unigram model that ends at a byte. */
typedef struct tok_path {
    double score;
    int32_t from, next,
        id; /* from: where its last token begins, -1: there is no path; next: set on the way back */
} tok_path;

typedef struct tok_buffers {
    tok_symbol *symbols;
    int32_t *lengths; /* bytes of a character; only where offsets are wanted */
    int64_t symbol_count, symbol_capacity;
    tok_candidate *heap;
    int64_t heap_count, heap_capacity;
    tok_path *paths;
    int64_t path_capacity;
    char *text; /* with a prefix or a suffix */
    int64_t text_capacity;
} tok_buffers;

void sbp_buffers_free(tok_buffers *buffers);
/* Makes room for one more element; false when out of memory. */
bool sbp_has_room(void *pointer, int64_t *capacity, int64_t count, size_t element_bytes);
sbp_status sbp_out_of_tokens(const tok_work *work);
/* Where bytes begin .. end - 1 of the piece come from, when that is wanted. */
tok_span sbp_tokens_span(const tok_work *work, const tok_piece *piece, int64_t begin, int64_t end);
/* prefix + text + suffix in buffers->text; NULL: out of memory. */
const char *sbp_buffers_affix(tok_buffers *buffers, const tok_string *prefix, const char *text,
                              int64_t length, const tok_string *suffix, int64_t *out);
/* The tokens of the piece's bytes begin .. end - 1, all with that span; *found false when one of them is
 * none. */
sbp_status sbp_model_bytes(tok_work *work, const tok_piece *piece, int64_t begin, int64_t end,
                           tok_tokens *out, bool *found) SBP_CHECKED;
/* Tokens of one piece, which is not empty; sbp_model_encode asks the model's kind. */
sbp_status sbp_model_encode(tok_work *work, tok_buffers *b, const tok_piece *piece,
                            tok_tokens *out) SBP_CHECKED;
sbp_status sbp_bpe_encode(tok_work *work, tok_buffers *b, const tok_piece *piece,
                          tok_tokens *out) SBP_CHECKED;
sbp_status sbp_unigram_encode(tok_work *work, tok_buffers *b, const tok_piece *piece,
                              tok_tokens *out) SBP_CHECKED;

/* ---- decoding --------------------------------------------------------------------------------------- */

/* Decoders turn a list of strings into another one, each after the one before. The list may be a part of the
 * whole one, but for those that join it (BYTE_LEVEL, FUSE) and BYTE_FALLBACK. */
typedef struct tok_decoding {
    sbp_arena *scratch; /* what they make */
    tok_work work;
    sbp_gguf_string *list; /* [n]; those of BYTE_FALLBACK and of joins do not become more */
    int64_t n;
    int64_t before; /* strings of the whole list before these */
    bool more;      /* strings come behind these */
} tok_decoding;

/* The string that decoders see of an id; its data is NULL where that is none, or is skipped. */
sbp_gguf_string sbp_decode_spelling(const sbp_tokenizer *t, int32_t id, bool skip_special);
sbp_status sbp_decode_stage(tok_decoding *d, const tok_decoder *decoder) SBP_CHECKED;
/* Adds what BYTE_LEVEL makes of a string; all of them together are UTF-8 where they are. */
void sbp_decode_bytes(sbp_text *bytes, sbp_gguf_string token);
/* The byte that a string "<0xHH>" names for BYTE_FALLBACK, or -1. */
int sbp_decode_named_byte(sbp_gguf_string token);

#endif
