/* generator.h: the rows of one text at a time, by the program that scores it: logits of what may follow, and
 * log-probabilities of what does.
 *
 * A plan with the entries `generate` and `choose` (sbpc compile --for generate) keeps keys, values and states
 * of all rows that were run. Row i is token i of the text; `generate` runs the rows behind those that are
 * there, by the functions and in the chunks of `score`. A text may go back to a mark, the end of its prompt:
 * several answers share the rows before it.
 *
 * Bits. On the CPU a row has the bits that `score` gives it by a plan with the same saved set, wherever
 * chunks begin, as far as its attention is one tile of keys (512 rows) or begins with the text. Where there
 * are states, each token runs all rows of its block again (SBP_DELTA_BLOCK, counted from the first row) from
 * the states before it: so they are computed as `score` computes them, in chunks of whole blocks.
 *
 * Memory: a number for each of the vocabulary, 8 bytes per row of the plan, and the states twice more.
 * Threads: one at a time. Errors: SBP_USAGE when the plan has no such entries; SBP_NOT_FINITE for logits that
 * are NaN; whatever the executor reports.
 */
#ifndef SBP_RUNTIME_GENERATE_GENERATOR_H
#define SBP_RUNTIME_GENERATE_GENERATOR_H

#include "runtime/data/pack.h"
#include "runtime/run/executor.h"

typedef struct sbp_generator sbp_generator;

/* The executor has the weights, and outlives the generator. */
sbp_status sbp_generator_create(sbp_diag *diag, sbp_executor *executor, sbp_generator **out) SBP_CHECKED;
/* NULL is allowed. */
void sbp_generator_destroy(sbp_generator *generator);

/* Rows that a text may have, and columns of logits. */
int64_t sbp_generator_most_rows(const sbp_generator *generator);
int64_t sbp_generator_vocabulary(const sbp_generator *generator);

/* Begins a text with these tokens, 1 to the most rows, and marks its end. Rows that it has in common with the
 * text before are not run again, where there are no states. */
sbp_status sbp_generator_begin(sbp_generator *generator, sbp_diag *diag, const int32_t *tokens,
                               int64_t count) SBP_CHECKED;
/* Back to the mark: the text is what it was then. */
sbp_status sbp_generator_rewind(sbp_generator *generator, sbp_diag *diag) SBP_CHECKED;
/* Logits of the token that follows the last one. [vocabulary], until the next call. */
const double *sbp_generator_logits(const sbp_generator *generator);
/* Log-probability of this token behind the last one, as `score` would have it. */
sbp_status sbp_generator_score(sbp_generator *generator, sbp_diag *diag, int32_t token,
                               double *logp) SBP_CHECKED;
/* Appends a token, and runs its row. */
sbp_status sbp_generator_append(sbp_generator *generator, sbp_diag *diag, int32_t token) SBP_CHECKED;

#endif
