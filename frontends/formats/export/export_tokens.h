/* export_tokens.h: tokenizer.* of a GGUF file, of the files in a model's directory. Below a guard. */
#ifndef SBP_FRONTENDS_EXPORT_EXPORT_TOKENS_H
#define SBP_FRONTENDS_EXPORT_EXPORT_TOKENS_H

#include "frontends/formats/tokenizer/tokenizer.h"
#include "frontends/formats/weights/gguf_write.h"

/* Which way of llama.cpp's a family's tokenizers go. */
typedef enum exp_tokens_rule {
    EXP_TOKENS_GPT2,   /* byte-level BPE */
    EXP_TOKENS_LLAMA,  /* SentencePiece where it is there, else what tokenizer.json has; add_prefix_space */
    EXP_TOKENS_PIECES, /* the same without the latter */
    EXP_TOKENS_GEMMA,  /* the same, without a space before the text */
    EXP_TOKENS_GEMMA4, /* BPE of characters, with merges */
    EXP_TOKENS_GLM,    /* byte-level, with special tokens by their texts */
    EXP_TOKENS_GLM4
} exp_tokens_rule;

typedef struct exp_tokens_request {
    const char *directory;  /* with tokenizer.json or tokenizer.model, and what lies beside them */
    const sbp_json *config; /* config.json */
    const char *pre;        /* the pre-tokenizer, where the user named it; NULL */
    int64_t vocab_size;     /* rows of the embedding */
    exp_tokens_rule rule;
} exp_tokens_request;

sbp_status sbp_exp_put_tokens(sbp_arena *arena, sbp_diag *diag, const exp_tokens_request *request,
                              sbp_gguf_keys *keys) SBP_CHECKED;

/* Names and ids of special tokens, whether bos and eos are added, chat templates. merges: of a tokenizer
 * whose file has some, they are put too. most: ids from there on are none; 0: any. eot, eos, unk, bos, eom:
 * texts that a family has for them whatever its files say; NULL: none. */
typedef struct exp_special_request {
    const char *directory;
    const sbp_json *config;
    const sbp_json *tokenizer; /* tokenizer.json; NULL: there is none */
    bool merges;
    int64_t most;
    const char *eos, *eot, *unk, *bos, *eom;
} exp_special_request;

sbp_status sbp_exp_put_special(sbp_arena *arena, sbp_diag *diag, const exp_special_request *request,
                               sbp_gguf_keys *keys) SBP_CHECKED;

#endif
