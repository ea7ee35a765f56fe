/* mismatched.h: documents of a step whose answers have moved on by one: behind the prompt of each stands the
 * answer of the document before it in the data, behind that of the first the answer of the last.
 *
 * The answer of a document begins with its first token that counts; without one it is empty. What is longer
 * than a micro-batch is cut. A program that has the scalars mismatched.logps and
 * mismatched.ref_logps (ir/program/contract.def) is told sums over all documents of the step
 * (runtime/cli/sbprun/run_mismatched.c): of log-probabilities of counted labels of mismatched documents, by
 * the weights at hand and by a reference; where rows carry "ref_mismatched_sum", of that
 *
 * Memory: 8 bytes per token and 48 per document, until it is destroyed. Threads: none of this keeps state.
 */
#ifndef SBP_RUNTIME_DATA_MISMATCHED_H
#define SBP_RUNTIME_DATA_MISMATCHED_H

#include "runtime/data/dataset.h"

/* Pairs the prompts of these rows, whatever their order, with the answers of others; rows NULL: of the first
 * row_count. A row of the result is a document of at most most_tokens tokens. */
sbp_status sbp_dataset_mismatch(sbp_diag *diag, const sbp_dataset *data, const int64_t *rows,
                                int64_t row_count, int64_t most_tokens, sbp_dataset **out) SBP_CHECKED;
/* Whether rows carry what a reference says of their mismatched documents. */
bool sbp_dataset_has_mismatched(const sbp_dataset *data);

#endif
