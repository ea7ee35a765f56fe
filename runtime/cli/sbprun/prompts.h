/* prompts.h: prompts to go on from, as tokens: of `sbprun generate`, and of a run that samples. */
#ifndef SBP_RUNTIME_CLI_SBPRUN_PROMPTS_H
#define SBP_RUNTIME_CLI_SBPRUN_PROMPTS_H

#include "runtime/cli/sbprun/texts.h"

typedef struct sbp_prompt {
    const char *where; /* "FILE:LINE", "--prompt 1" */
    int32_t *ids;
    int64_t count;
    const sbp_json *row;   /* as the data have it, its columns renamed */
    const sbp_json *asked; /* of it, without its answer: a string, messages, or ids */
} sbp_prompt;

typedef struct sbp_prompts {
    sbp_prompt *items;
    int32_t count, capacity;
    int64_t longest; /* tokens */
} sbp_prompts;

/* Those of --prompt, then the rows of --data: what comes before their answer, in a conversation before the
 * last turn of the assistant, with what the template puts before an answer. SBP_USAGE: there are none.
 * SBP_INPUT: a row without a prompt, or with an empty one. In the arena; below a guard. */
sbp_status sbp_prompts_read(sbp_arena *arena, sbp_diag *diag, const sbp_options *options,
                            const sbp_texts *texts, sbp_prompts *out) SBP_CHECKED;

/* Those of the rows of the files of `files`, --data or another list, at most `most`. Else as above. */
sbp_status sbp_prompts_read_files(sbp_arena *arena, sbp_diag *diag, const sbp_options *options,
                                  const sbp_texts *texts, sbp_option_id files, int32_t most,
                                  sbp_prompts *out) SBP_CHECKED;

/* Adds the prompt of one row. Below a guard. */
sbp_status sbp_prompts_add(sbp_arena *arena, sbp_diag *diag, const sbp_texts *texts, const char *where,
                           const sbp_json *row, sbp_prompts *out) SBP_CHECKED;

#endif
