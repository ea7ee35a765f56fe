/* completions.h: answers to prompts, sampled by a generator: what `sbprun generate` writes, and what a run
 * that samples trains on.
 *
 * Threads: one. */
#ifndef SBP_RUNTIME_CLI_SBPRUN_COMPLETIONS_H
#define SBP_RUNTIME_CLI_SBPRUN_COMPLETIONS_H

#include "ir/base/json_write.h"
#include "runtime/cli/sbprun/prompts.h"
#include "runtime/cli/sbprun/session.h"
#include "runtime/cli/sbprun/world.h"
#include "runtime/generate/generator.h"
#include "runtime/generate/sampling.h"
#include "runtime/generate/stopping.h"

typedef struct sbp_completion {
    int64_t prompt, sample;  /* numbers: of the prompts at hand, of its answers */
    const int32_t *ids;      /* [count], what ends it included */
    const double *logps;     /* [count]: by the model, as `score` has them */
    const double *processed; /* [count]: of the distribution that they were drawn from */
    int64_t count;
    const char *text; /* [text_bytes]; NULL: there is no tokenizer */
    size_t text_bytes;
    sbp_finish finish;
} sbp_completion;

/* What is sampled, and how. */
typedef struct sbp_completing {
    sbp_arena *arena; /* of what is needed until all are made */
    sbp_diag *diag;
    sbp_generator *generator;
    sbp_token_sampler *sampler;
    const sbp_tokenizer *tokenizer; /* NULL: none */
    const sbp_sampling *sampling;
    const sbp_stopping *stopping;
    uint64_t seed;
    uint64_t first;                   /* number of the first prompt, for random numbers */
    const sbp_prompt *const *prompts; /* [prompt_count] */
    int64_t prompt_count, each;       /* answers to each */
    /* In the order of prompts and samples. What it is given, its arena too, is there until it returns. */
    sbp_status (*visit)(void *user, sbp_arena *arena, const sbp_completion *completion);
    void *user;
} sbp_completing;

/* Text, ids and log-probabilities as members of an object. */
void sbp_completion_write(sbp_json_writer *w, const sbp_completion *completion);

/* For a run that `option` lets sample beside training: what makes up to `answers` at a time, --max-num-seqs
 * at most, of `most_tokens` to prompts of up to `longest`. The caller destroys both, after a failure, too.
 * SBP_USAGE: the plan only trains. SBP_INPUT: it has too few rows. Below a guard. */
sbp_status sbp_completions_open(const sbp_world *world, const sbp_session *session, const char *option,
                                int64_t answers, int64_t longest, int64_t most_tokens,
                                sbp_generator **generator, sbp_token_sampler **sampler) SBP_CHECKED;

/* Writes as many at a time as the generator has texts; which are together changes none. SBP_INPUT: a prompt
 * and its answer do not fit the plan. An interruption ends it with its status. Below a guard. */
sbp_status sbp_completions_make(const sbp_completing *what) SBP_CHECKED;

#endif
