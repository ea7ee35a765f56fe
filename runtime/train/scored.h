/* scored.h: numbers beside tokens and documents that rows lack and a scoring gives: what a plan reads under
 * these names is computed by its entry `score` and put beside the data (dataset.h).
 *
 *   ref_logps, ref_logps_sum   log-probabilities of the labels, and their sum over a document, by a
 *                              reference: the weights before the first step, or those of a file that another
 *                              run has scored (--score)
 *   old_logps                  by the weights with which a batch is first used
 *
 * A file of the reference is safetensors with these two, fp64, in the order of the data, NaN of rows that
 * were not scored, as no step took them, and keys of what they are of; one that does not fit is as one that
 * is not there.
 *
 * Memory: 8 bytes for each token, and for each document. Threads: one thread at a time.
 */
#ifndef SBP_RUNTIME_TRAIN_SCORED_H
#define SBP_RUNTIME_TRAIN_SCORED_H

#include "runtime/train/trainer.h"

/* Whether the program reads log-probabilities of a reference that the data lack; what it can do without too
 * where `optional`. */
bool sbp_reference_is_lacking(const sbp_program *program, const sbp_dataset *data, bool optional);

/* Whether the program reads any. */
bool sbp_reference_is_read(const sbp_program *program);

/* What log-probabilities of a reference are of. */
typedef struct sbp_reference_key {
    uint64_t weights, data, settings;
} sbp_reference_key;

/* A hash of all parameters as they are on the device. */
sbp_status sbp_reference_hash_weights(sbp_executor *executor, const sbp_plan *plan, sbp_diag *diag,
                                      uint64_t *out) SBP_CHECKED;

/* Rows [*count], ascending, from sbp_malloc, that are wanted (by row; NULL: all) and have no numbers yet;
 * kept: those that there are stay. */
sbp_status sbp_reference_missing(sbp_diag *diag, const sbp_dataset *data, const uint8_t *wanted, bool kept,
                                 int64_t **rows, int64_t *count) SBP_CHECKED;
/* Scores rows, ascending, with the weights that are on the device; those of other rows stay, or are NaN.
 * progress: told now and then, share 0 to 1; NULL: nobody. SBP_NOT_FINITE names the row of what is no number;
 * SBP_INTERRUPTED when asked to stop: some rows may be scored. */
sbp_status sbp_reference_score(sbp_trainer *trainer, sbp_diag *diag, sbp_dataset *data, const int64_t *rows,
                               int64_t row_count, void (*progress)(void *user, double share),
                               void *user) SBP_CHECKED;
/* The lines of a --score: there must be one of every document, in their order, with as many
 * log-probabilities as labels count; lines of others are passed over. SBP_INPUT names line and row. */
sbp_status sbp_reference_read(sbp_diag *diag, const sbp_program *program, sbp_dataset *data,
                              const char *path) SBP_CHECKED;

/* To and from a file. *found: it is there, whole and of this key; key->weights 0 takes any, and is told. */
sbp_status sbp_reference_save(sbp_diag *diag, const sbp_dataset *data, const char *path,
                              const sbp_reference_key *key) SBP_CHECKED;
sbp_status sbp_reference_load(sbp_diag *diag, const sbp_program *program, sbp_dataset *data, const char *path,
                              sbp_reference_key *key, bool *found) SBP_CHECKED;

#endif
