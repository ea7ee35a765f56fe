/* answering.h: what `sbprun generate` and `sbprun chat` share: the plan that generates on a device, how
 * tokens are chosen, what ends an answer.
 *
 * Owner: the command, which makes it first and closes it last; all of it is in the world's arena, or freed by
 * sbp_answering_close. Lifetime: options from sbp_answering_parse on, texts from sbp_answering_find, the
 * generator from sbp_answering_open. One thread uses it. */
#ifndef SBP_RUNTIME_CLI_SBPRUN_ANSWERING_H
#define SBP_RUNTIME_CLI_SBPRUN_ANSWERING_H

#include "runtime/cli/sbprun/outputs.h"
#include "runtime/cli/sbprun/texts.h"
#include "runtime/generate/generator.h"
#include "runtime/generate/sampling.h"
#include "runtime/generate/stopping.h"

typedef struct sbp_answering {
    sbp_world world;
    sbp_session session;
    sbp_outputs outputs;
    sbp_texts texts;
    sbp_sampling sampling;
    sbp_stopping stopping;
    sbp_generator *generator;
    sbp_token_sampler *sampler;
} sbp_answering;

/* Runs `body` with it, as a command of sbprun: argc and argv are what stands behind its name. */
sbp_status sbp_answering_run(sbp_answering *answering, sbp_diag *diag, int argc, char *const *argv,
                             sbp_status (*body)(void *), void *user) SBP_CHECKED;

/* Reads the options. *done: the help was asked for, `usage` and the options. program: for messages. */
sbp_status sbp_answering_parse(sbp_answering *answering, const char *program, const char *usage,
                               bool *done) SBP_CHECKED;
/* The model or plan, its tokenizer (NULL: it has none) and its chat template. */
sbp_status sbp_answering_find(sbp_answering *answering) SBP_CHECKED;
/* Compiles a model for `texts` texts of `rows` tokens at a time, or as many as memory has room for, unless
 * --seq-len says how many tokens, and brings it to the device. */
sbp_status sbp_answering_open(sbp_answering *answering, int64_t rows, int32_t texts) SBP_CHECKED;

/* Chooses the token behind a text of the generator: number `position` of answer `sample` to a prompt. */
sbp_status sbp_answering_choose(sbp_answering *answering, int32_t text, uint64_t prompt, uint64_t sample,
                                uint64_t position, sbp_sampled *out) SBP_CHECKED;

#endif
