/* inputs.h: the data of a run: where rows come from, the rows, and which of them a step takes.
 *
 * Owner: sbp_command_run; data sets, sampler and stream are freed by sbp_inputs_close. Lifetime: data are
 * read before the plan is there (`sbprun MODEL`) or after, and stay until the end; those of a stream until
 * its next step is read. One thread uses it; the source of a stream is read on this one, too.
 */
#ifndef SBP_RUNTIME_CLI_SBPRUN_INPUTS_H
#define SBP_RUNTIME_CLI_SBPRUN_INPUTS_H

#include "runtime/cli/sbprun/world.h"
#include "runtime/data/dataset.h"
#include "runtime/data/pack.h"
#include "runtime/data/source/source.h"

typedef struct sbp_session sbp_session; /* session.h */
typedef struct sbp_outputs sbp_outputs; /* outputs.h */

typedef struct sbp_inputs {
    sbp_dataset *data; /* NULL: none */
    sbp_dataset **evals;
    int32_t eval_count;
    sbp_sampler sampler;
    int64_t steps_per_epoch;
    sbp_reader reader;               /* of standard input, where there are several ranks */
    sbp_row_stream stream;           /* .steps: rows come step by step, and data are those of the latest */
    struct sbp_load_job *stream_job; /* how they are read; NULL: they are not */
    struct sbp_rl *rl;               /* what makes them (rl.h); NULL: they are read */
    struct sbp_samples *samples;     /* what shows what is learned (run_samples.h); NULL: nothing does */
    bool stream_is_fresh;            /* data were not used yet */
    int64_t *stream_rows;            /* [data->row_count] */
    const int64_t *rows;             /* [row_count] of the batch at hand; NULL: the next step takes another */
    int64_t row_count;
} sbp_inputs;

/* ---- run_stdin.c ----------------------------------------------------------------------------------- */

/* Standard input, which all ranks read alike. */
sbp_status sbp_run_open_stdin(sbp_world *world, sbp_inputs *inputs, sbp_source **out) SBP_CHECKED;

/* ---- run_mixture.c --------------------------------------------------------------------------------- */

/* Finds which rows of --data are taken, in the arena; files of the parts are not known yet. SBP_USAGE:
 * weights that do not fit the data. Below a guard. */
sbp_status sbp_run_find_mixture(const sbp_world *world, sbp_arena *arena, sbp_mixture *out) SBP_CHECKED;
/* Whether rows of --test-split-size are evaluated: there are no others, and it was not said that none are. */
bool sbp_run_evaluates_held_out(const sbp_world *world, const sbp_session *session);
/* What is evaluated, by its number: an argument of --eval, or rows that are held out. */
const char *sbp_run_eval_name(const sbp_world *world, int32_t index);

/* ---- run_data.c ------------------------------------------------------------------------------------ */

/* --data and --eval. The data may be there already (`sbprun MODEL`); then only ids are checked. */
sbp_status sbp_run_load_data(sbp_world *world, sbp_inputs *inputs, sbp_session *session) SBP_CHECKED;
/* --data of a model, before it is compiled: into inputs->data. */
sbp_status sbp_run_load_raw(sbp_world *world, sbp_inputs *inputs, sbp_session *session) SBP_CHECKED;
/* The rows of a stream's next step, into inputs->data; NULL when the stream has ended. */
sbp_status sbp_run_load_step(const sbp_world *world, sbp_inputs *inputs) SBP_CHECKED;
void sbp_inputs_close(sbp_inputs *inputs);
/* With --share-prompt, sbp_packer.counted; SBP_USAGE where prompts cannot be shared. */
sbp_status sbp_run_shared(const sbp_world *world, const sbp_session *session,
                          const char **counted) SBP_CHECKED;
/* Sampler, steps, learning rates; checks that every step fits. */
sbp_status sbp_run_plan_steps(const sbp_world *world, sbp_inputs *inputs, sbp_session *session) SBP_CHECKED;

/* ---- run_batch.c ----------------------------------------------------------------------------------- */

/* --inner-epochs */
sbp_status sbp_run_plan_inner(const sbp_world *world, sbp_session *session) SBP_CHECKED;
/* inputs->rows of the next step, with what the plan reads of older weights; *end: there are none. */
sbp_status sbp_run_next_rows(sbp_world *world, sbp_inputs *inputs, sbp_session *session, sbp_outputs *outputs,
                             bool *end) SBP_CHECKED;
/* Scores all rows of an evaluation by the weights at hand, so that its ratios are 1. What rows say
 * themselves stays. */
sbp_status sbp_run_score_evaluation(const sbp_world *world, sbp_session *session,
                                    sbp_dataset *data) SBP_CHECKED;
/* Likewise of all rows, also what the plan can do without: then ratios say what weights that change do. */
sbp_status sbp_run_score_older(const sbp_world *world, sbp_session *session, sbp_dataset *data) SBP_CHECKED;
/* Counts a step that was taken. */
void sbp_run_end_step(sbp_inputs *inputs, sbp_session *session);
/* Puts what was computed of the batch at hand into session->state, for a checkpoint. */
sbp_status sbp_run_keep_batch(const sbp_world *world, const sbp_inputs *inputs,
                              sbp_session *session) SBP_CHECKED;

#endif
