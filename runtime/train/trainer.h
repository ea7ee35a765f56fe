/* trainer.h: what happens to the device in one optimizer step, in an evaluation and in a scoring.
 *
 * A step packs the documents of its rows into micro-batches, runs entry `accumulate` for each and then
 * `update`; or `step`, where the program has that. Numbers that the program leaves in result buffers are sums
 * over the micro-batches of terms that were divided by step-wide denominators before, so nothing is rescaled
 * here. The names of outputs are the program's. Where the program has @prepare (ir/graph/prepare.h), that
 * runs first, on all the data of the step or evaluation: its numbers are scalars of that name. A scoring does
 * without, and results that read of it say nothing then.
 *
 * With several ranks, which all call the same functions with the same data and settings, each runs the
 * micro-batches that the packer gives it; in the last, of which scalar part.last says 1, the program brings
 * the gradients together; one that has none runs one without documents. What is said of a step, an evaluation
 * or a scoring is of all ranks and the same on each, failures for numbers that are not finite too. They stop
 * together: in a step never, in an evaluation between two windows of rows.
 *
 * Scalars that are set where the program has them: the numbers of the whole step that pack.h knows (in an
 * evaluation or a scoring, of all its data), lr,
 * beta1, one_minus_beta1, beta2, one_minus_beta2, eps, momentum, weight_decay, bias1 = 1 - beta1^t,
 * bias2_sqrt = sqrt(1 - beta2^t), max_grad_norm.
 *
 * Threads: one thread at a time. Errors: SBP_NOT_FINITE when the loss (before weights change) or the gradient
 * norm is not finite; SBP_INPUT when a step needs more micro-batches than the plan allows, or a plan that
 * trains is for another number of ranks.
 */
#ifndef SBP_RUNTIME_TRAIN_TRAINER_H
#define SBP_RUNTIME_TRAIN_TRAINER_H

#include "runtime/data/pack.h"
#include "runtime/data/prepared.h"
#include "runtime/run/plan.h"

typedef struct sbp_trainer {
    sbp_executor *executor;
    const sbp_program *program;
    sbp_packer packer;
    sbp_prepared prepared;   /* of the latest step, evaluation or scoring: all of its data */
    struct sbp_ranks *ranks; /* NULL: alone */
    int32_t rank, rank_count;
    bool steady;     /* nothing is dropped at random, in steps neither */
    bool same_parts; /* all ranks run equally many micro-batches, some of them without documents */
    double beta1, beta2, eps, momentum, weight_decay,
        max_grad_norm;         /* max_grad_norm: infinity without clipping */
    uint64_t seed;             /* of random numbers in steps */
    bool (*interrupted)(void); /* asked between micro-batches, of this rank; NULL: never */
    bool evaluates;            /* what it counts is of an evaluation: nothing drops */
    double *results;           /* [output_count] of the latest step, evaluation or scoring */
    int32_t loss, grad_norm;   /* outputs, -1: none */
    double *row;               /* of scores */
    int64_t row_capacity;
} sbp_trainer;

/* What is not in the signature is set by the caller afterwards; the AdamW numbers begin as 0.9, 0.999, 1e-8,
 * 0, infinity, the seed as 0. */
sbp_status sbp_trainer_init(sbp_trainer *trainer, sbp_diag *diag, sbp_executor *executor) SBP_CHECKED;
void sbp_trainer_close(sbp_trainer *trainer);

/* Whether a program can take optimizer steps, and whether it has gradients at all. */
bool sbp_trainer_can_step(const sbp_program *program);
bool sbp_trainer_has_gradients(const sbp_program *program);

/* A number that stays: a setting of the objective, where the program or its @prepare has it. */
void sbp_trainer_set(sbp_trainer *trainer, const char *name, double value);

/* Zeros gradients and optimizer states: before the first step. */
sbp_status sbp_trainer_reset(sbp_trainer *trainer, sbp_diag *diag) SBP_CHECKED;

/* What step number t sets a scalar of the program to whose name begins with "random_": an integer below 2^53,
 * a hash of seed, t and name, so that a run that goes on has the numbers of one that was not interrupted. */
double sbp_trainer_random(uint64_t seed, int64_t t, const char *name);

/* Packs the rows of a step into trainer->packer, and checks how many micro-batches that takes. */
sbp_status sbp_trainer_pack(sbp_trainer *trainer, sbp_diag *diag, const sbp_dataset *data,
                            const int64_t *rows, int64_t row_count) SBP_CHECKED;
/* Step number t, from 1. SBP_INTERRUPTED when it was abandoned between micro-batches: weights and states are
 * then those after the step before. */
sbp_status sbp_trainer_step(sbp_trainer *trainer, sbp_diag *diag, const sbp_dataset *data,
                            const int64_t *rows, int64_t row_count, int64_t t, double lr) SBP_CHECKED;
/* A vector of the program, one number per row, and where its numbers go: values [token_count] of the data,
 * what it says of each label to that of its token; others stay. */
typedef struct sbp_score_column {
    const char *vector;
    double *values;
} sbp_score_column;

/* Runs entry `score` over the rows of a step as it would pack them. */
sbp_status sbp_trainer_score_step(sbp_trainer *trainer, sbp_diag *diag, const sbp_dataset *data,
                                  const int64_t *rows, int64_t row_count, const sbp_score_column *columns,
                                  int32_t column_count) SBP_CHECKED;
/* The step's gradients after all micro-batches go to a file, which the first rank writes, under the names of
 * the sources; weights stay. The norm among the results is NaN where only an update would compute it. */
sbp_status sbp_trainer_dump_gradients(sbp_trainer *trainer, sbp_diag *diag, const sbp_plan *plan,
                                      const sbp_dataset *data, const int64_t *rows, int64_t row_count,
                                      const char *path, sbp_dtype dtype) SBP_CHECKED;

/* Likewise gives each gradient to `take`, which says that it is left out of the update. For one rank;
 * gradients begin at 0. */
sbp_status sbp_trainer_gradients(sbp_trainer *trainer, sbp_diag *diag, const sbp_plan *plan,
                                 const sbp_dataset *data, const int64_t *rows, int64_t row_count,
                                 sbp_flush_hook take, void *user) SBP_CHECKED;

/* One document of a scoring: the log-probabilities of its counted labels, in order. */
typedef struct sbp_score {
    const sbp_doc *doc;
    const double *logps; /* [doc->labels] */
} sbp_score;

typedef sbp_status (*sbp_score_visitor)(void *user, const sbp_score *score);

/* Runs entry `score` over all documents, as one step: results are those of the whole. visit, in the order of
 * the data, may be NULL. SBP_INTERRUPTED when asked to stop. */
sbp_status sbp_trainer_evaluate(sbp_trainer *trainer, sbp_diag *diag, const sbp_dataset *data,
                                sbp_score_visitor visit, void *user) SBP_CHECKED;
/* The same of the documents of some rows, ascending; groups are whole. */
sbp_status sbp_trainer_score_rows(sbp_trainer *trainer, sbp_diag *diag, const sbp_dataset *data,
                                  const int64_t *rows, int64_t row_count, sbp_score_visitor visit,
                                  void *user) SBP_CHECKED;

#endif
