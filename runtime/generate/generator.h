/* generator.h: the rows of texts, by the program that scores them: logits of what may follow, and
 * log-probabilities of what does; of several texts at a time.
 *
 * A plan with the entries `generate` and `choose` (sbpc compile --for generate) keeps keys, values and states
 * of all rows that were run. Each text, number 0 .. texts - 1, has a range of these rows to itself, from its
 * beginning until it is released. `generate` runs the rows behind those that are there, by the functions and
 * in the chunks of `score`: of a text that begins, all of them at their places; of texts that go on, one row
 * each, together, in the last rows of the plan, from where keys and values go to their places. A text may go
 * back to a mark, the end of its prompt, and another may begin there: answers share the rows before it.
 *
 * Bits. On the CPU a row has the bits that `score` gives it by a plan with the same saved set, whatever
 * other texts there are, wherever chunks begin and, without states, wherever in its batch the text stands
 * there, a shared prompt included. Where there are states, each token runs all rows of its block again
 * (SBP_DELTA_BLOCK, counted from the first row) from the states before it: so they are computed as `score`
 * computes them, in chunks of whole blocks; such a plan has one text at a time.
 *
 * Memory: of each text two numbers for each of the vocabulary, 4 bytes per row; and the states twice more.
 * Threads: one at a time. Errors: SBP_USAGE when the plan has no such entries; SBP_INPUT for what the rows do
 * not take; SBP_NOT_FINITE for logits that are NaN; whatever the executor reports.
 */
#ifndef SBP_RUNTIME_GENERATE_GENERATOR_H
#define SBP_RUNTIME_GENERATE_GENERATOR_H

#include "runtime/data/pack.h"
#include "runtime/run/executor.h"

typedef struct sbp_generator sbp_generator;

/* The executor has the weights, and outlives the generator. texts: how many at a time, at least 1; fewer
 * where the plan has states (1), or logits for fewer. */
sbp_status sbp_generator_create(sbp_diag *diag, sbp_executor *executor, int32_t texts,
                                sbp_generator **out) SBP_CHECKED;
/* To be called before the first text, and again after anything else was run on the executor, whose other
 * entries have the memory of keys, values and states to themselves: all texts are forgotten. */
sbp_status sbp_generator_start(sbp_generator *generator, sbp_diag *diag) SBP_CHECKED;
/* NULL is allowed. */
void sbp_generator_destroy(sbp_generator *generator);

/* How many texts a generator of the program can have at a time, `most` at most, so that each alone may have
 * `rows` rows; at least 1, which may have fewer. */
int32_t sbp_generator_texts_of(const sbp_program *program, int64_t rows, int32_t most);
/* Rows of a plan in which `texts` of them have room together. */
int64_t sbp_generator_rows_of(int64_t rows, int32_t texts);

/* Texts at a time, rows that they may have together, and columns of logits. */
int32_t sbp_generator_texts(const sbp_generator *generator);
int64_t sbp_generator_most_rows(const sbp_generator *generator);
int64_t sbp_generator_vocabulary(const sbp_generator *generator);

/* Tokens of the longest text to come, by which some models scale positions (as `longest` of a batch): to be
 * said before texts begin, which then do not depend on each other. */
void sbp_generator_set_longest(sbp_generator *generator, int64_t tokens);
/* Whether text number `text` can begin with a range of `rows` rows, while those of others stay. */
bool sbp_generator_fits(const sbp_generator *generator, int32_t text, int64_t rows);
/* Begins a text with these tokens, at least 1, and marks its end. most_rows: as many as it will have, at
 * least `count`. Where it was begun before with as much room and not released, rows that it has in common
 * with what it was are not run again, where there are no states. */
sbp_status sbp_generator_begin(sbp_generator *generator, sbp_diag *diag, int32_t text, const int32_t *tokens,
                               int64_t count, int64_t most_rows) SBP_CHECKED;
/* The same with the tokens of another text up to its mark, whose rows are copied. */
sbp_status sbp_generator_fork(sbp_generator *generator, sbp_diag *diag, int32_t text, int32_t from,
                              int64_t most_rows) SBP_CHECKED;
/* Back to the mark: the text is what it was then. */
sbp_status sbp_generator_rewind(sbp_generator *generator, sbp_diag *diag, int32_t text) SBP_CHECKED;
/* Gives the rows of a text back; of one that was not begun, nothing happens. */
void sbp_generator_release(sbp_generator *generator, int32_t text);

/* Logits of the token that follows the last one. [vocabulary], until the text changes. */
const double *sbp_generator_logits(const sbp_generator *generator, int32_t text);
/* Log-probabilities of tokens behind the last ones of `count` texts, each named once, as `score` would have
 * them. [count] */
sbp_status sbp_generator_score(sbp_generator *generator, sbp_diag *diag, const int32_t *texts,
                               const int32_t *tokens, int32_t count, double *logps) SBP_CHECKED;
/* Appends a token to each of these texts, and runs their rows together. */
sbp_status sbp_generator_append(sbp_generator *generator, sbp_diag *diag, const int32_t *texts,
                                const int32_t *tokens, int32_t count) SBP_CHECKED;

#endif
