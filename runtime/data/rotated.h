/* rotated.h: documents of a step whose answers have moved on by one: behind the prompt of each stands the
 * answer of the document before it in the data, behind that of the first the answer of the last.
 *
 * The answer of a document begins with its first token that counts; without one it is empty. What is longer
 * than a micro-batch is cut. A program that has these scalars is told sums over all documents of the step
 * (runtime/cli/sbprun/run_rotated.c):
 *   rotated.logps      of log-probabilities of counted labels of rotated documents, by the weights at hand
 *   rotated.ref_logps  the same by a reference; where rows carry "ref_rotated_sum", of that
 *
 * Memory: 8 bytes per token and 48 per document, until it is destroyed. Threads: none of this keeps state.
 */
#ifndef SBP_RUNTIME_DATA_ROTATED_H
#define SBP_RUNTIME_DATA_ROTATED_H

#include "runtime/data/dataset.h"

#define SBP_ROTATED_LOGPS "rotated.logps"
#define SBP_ROTATED_REF_LOGPS "rotated.ref_logps"
#define SBP_ROTATED_REF_SUM "ref_rotated_sum"

/* Of these rows of the data, whatever their order; rows NULL: the first row_count. A row of the result is a
 * document of at most most_tokens tokens. */
sbp_status sbp_dataset_rotate(sbp_diag *diag, const sbp_dataset *data, const int64_t *rows, int64_t row_count,
                              int64_t most_tokens, sbp_dataset **out) SBP_CHECKED;

#endif
