/* texts.h: the tokenizer and the chat template of a model or plan, for commands that need no device, or need
 * them before there is one. Everything lives in the arena. */
#ifndef SBP_RUNTIME_CLI_SBPRUN_TEXTS_H
#define SBP_RUNTIME_CLI_SBPRUN_TEXTS_H

#include "runtime/data/tokenize.h"
#include "runtime/data/turns.h"
#include "runtime/options/options.h"

typedef struct sbp_texts {
    const sbp_tokenizer *tokenizer;
    sbp_chat_options chat;
} sbp_texts;

/* By --chat-template, --eos-token, --date and --loss-on. path: a model's directory, its file, or a plan.
 * optional: where there is no tokenizer, texts->tokenizer is NULL. */
sbp_status sbp_texts_open(sbp_arena *arena, sbp_diag *diag, const sbp_options *options, const char *path,
                          bool optional, sbp_texts *out) SBP_CHECKED;

/* --loss-on and --loss-on-reasoning: which tokens are trained. */
sbp_loss_on sbp_texts_loss_on(const sbp_options *options);
sbp_reasoning sbp_texts_reasoning(const sbp_options *options);

#endif
