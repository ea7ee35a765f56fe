/* session.h: what is trained, and how far it is: the plan, its trainer, steps and learning rates, the run
 * that goes on, checkpoints' state.
 *
 * Owner: sbp_command_run; sbp_session_close frees trainer, shadow and what a checkpoint keeps, and removes a
 * plan that has no place yet; plan and texts are in the world's arena. Lifetime: the plan from when it is
 * opened, `state`, `total_steps` and `lr` from sbp_run_plan_steps on, the trainer with the device. One thread
 * uses it. A signal (interrupt.h) ends a step early and is agreed upon by world->signal.
 */
#ifndef SBP_RUNTIME_CLI_SBPRUN_SESSION_H
#define SBP_RUNTIME_CLI_SBPRUN_SESSION_H

#include "runtime/cli/sbprun/inputs.h"
#include "runtime/run/plan_info.h"
#include "runtime/train/checkpoint.h"
#include "runtime/train/lr.h"
#include "runtime/train/trainer.h"

/* The number of steps of a stream, which is unknown: enough never to be reached, and for sums. */
#define SBP_STEPS_UNKNOWN (INT64_C(1) << 60)

/* How evaluations of the run are compared (runtime/train/best.h). */
typedef struct sbp_comparison {
    bool load, saves, stops; /* --best: the model at the end, checkpoints at each new best, patience */
    const char *name;        /* "eval_loss"; NULL: they are not */
    bool is_loss;            /* of the first file: what is said to be the evaluation loss */
    int32_t eval, number;    /* of the files; of the program's outputs and then the numbers of its @prepare */
    sbp_best_rule rule;
    uint64_t of;    /* hash of all that */
    int64_t loaded; /* step whose model is at hand, 0: the last */
} sbp_comparison;

struct sbp_session {
    const char *model; /* the first argument, when it is no plan */
    const char *plan_path;
    char *temporary_plan; /* removed at the end */
    char *random_rows;    /* likewise, of a check without data, once they are read */
    const sbp_plan *plan;
    uint64_t plan_checksum;
    sbp_plan_info info;
    const sbp_json *compiled;   /* with --resume: what run.json says of the plan that the run began with */
    const char *began_checksum; /* of that */
    int64_t began_steps;        /* how many it was to have, 0: unknown */
    bool train;                 /* wanted */
    bool evaluates_nothing;     /* --eval-strategy no was said */
    bool check;                 /* `sbprun check`: nothing is trained or written */
    int64_t total_steps;        /* SBP_STEPS_UNKNOWN: as many as come */
    int64_t eval_every, save_every, log_every; /* steps; 0: never */
    double eval_after;                         /* steps before the first evaluation on the way */
    int64_t inner_epochs;                      /* steps that take the same batch, one after the other */
    sbp_lr lr;
    sbp_trainer trainer;
    sbp_run_state state;
    sbp_comparison best;
    struct sbp_shadow *shadow; /* weights of a reference beside those that are trained; NULL: no need */
    const char *matmuls;       /* how the device computes them, chosen by measuring; NULL: as it likes */
    int64_t resumed_after;     /* steps that a checkpoint had, 0: none */
    const char *rows;          /* the first ones, for the page; NULL: they are not shown */
};

void sbp_session_close(sbp_session *session);

/* ---- run_resume.c ---------------------------------------------------------------------------------- */

/* With --resume: the options of run.json for what was not given; SBP_USAGE where what was given differs. */
sbp_status sbp_run_inherit(const sbp_world *world, sbp_session *session,
                           const sbp_outputs *outputs) SBP_CHECKED;
/* That a plan computes what the run's did; says so when it is another. */
sbp_status sbp_run_check_plan(const sbp_world *world, const sbp_session *session,
                              const sbp_outputs *outputs) SBP_CHECKED;
/* With --resume and a model: session->plan_path is the run's own plan, or, where that is gone or another
 * schedule is asked for, options get the values it was compiled with. */
sbp_status sbp_run_reuse_plan(const sbp_world *world, sbp_session *session,
                              const sbp_outputs *outputs) SBP_CHECKED;

/* ---- run_peek.c ------------------------------------------------------------------------------------ */

/* That every file of --data and --eval is there, and its first row is what is to be trained. */
sbp_status sbp_run_peek(const sbp_world *world, const sbp_session *session) SBP_CHECKED;

/* ---- run_weights.c --------------------------------------------------------------------------------- */

/* Where the first weights come from: a path, or NULL and a seed. */
sbp_status sbp_run_find_weights(const sbp_world *world, const sbp_session *session, const char **path,
                                const char **adapter, uint64_t *seed) SBP_CHECKED;
/* Sets info.carried, which is there, where the run writes to --out. */
sbp_status sbp_run_find_carried(const sbp_world *world, sbp_session *session,
                                const sbp_outputs *outputs) SBP_CHECKED;
/* Where the directory of an adapter has its tensors. */
const char *sbp_run_adapter_file(sbp_arena *arena, const char *directory);
/* The weights that the run begins with, to the device. */
sbp_status sbp_run_load_weights(const sbp_world *world, const sbp_session *session) SBP_CHECKED;

/* ---- run_reference.c ------------------------------------------------------------------------------- */

/* --ref, beside the data. */
sbp_status sbp_run_read_reference(const sbp_world *world, const sbp_inputs *inputs,
                                  const sbp_session *session) SBP_CHECKED;
/* What the plan reads of a reference and rows do not carry, of the data and of --eval: from --out where it
 * was kept, else by scoring with the initial weights, which are on the device unless the run goes on from a
 * checkpoint. */
sbp_status sbp_run_reference(sbp_world *world, sbp_inputs *inputs, sbp_session *session,
                             const sbp_outputs *outputs, const char *resumed) SBP_CHECKED;
/* Likewise of rows that have just come, by the initial weights that are kept beside the trained ones. */
sbp_status sbp_run_step_reference(const sbp_world *world, const sbp_inputs *inputs,
                                  sbp_session *session) SBP_CHECKED;

/* Puts the weights of the reference, kept beside the trained ones, in their place, and back; likewise the
 * scale of adapters. */
sbp_status sbp_run_enter_reference(const sbp_world *world, const sbp_session *session) SBP_CHECKED;
sbp_status sbp_run_leave_reference(const sbp_world *world, const sbp_session *session) SBP_CHECKED;

/* ---- run_mismatched.c --------------------------------------------------------------------------------- */

/* SBP_USAGE where steps cannot say what the plan wants to know of mismatched documents. */
sbp_status sbp_run_check_mismatched(const sbp_world *world, const sbp_inputs *inputs,
                                    const sbp_session *session) SBP_CHECKED;
/* Tells the program of those of a step, or of an evaluation (rows NULL), that comes next. */
sbp_status sbp_run_score_mismatched(const sbp_world *world, sbp_session *session, const sbp_dataset *data,
                                    const int64_t *rows, int64_t row_count) SBP_CHECKED;

/* ---- run_score.c ------------------------------------------------------------------------------------- */

/* Scores all documents of the data by the weights at hand, into a file that rank 0 writes. */
sbp_status sbp_run_score(sbp_world *world, const sbp_inputs *inputs, sbp_session *session,
                         const char *path) SBP_CHECKED;

/* ---- run_tune.c ------------------------------------------------------------------------------------ */

/* --tune, before anything is on the device. */
sbp_status sbp_run_tune(sbp_world *world, sbp_session *session, sbp_outputs *outputs) SBP_CHECKED;
/* OUT/matmuls.txt of a run that begins; one that was there and is not of this run goes. */
sbp_status sbp_run_write_matmuls(const sbp_world *world, const sbp_session *session, sbp_outputs *outputs,
                                 const char *resumed) SBP_CHECKED;

/* ---- run_device.c ---------------------------------------------------------------------------------- */

/* The device with the plan's program, and session->trainer on it. */
sbp_status sbp_run_open_device(sbp_world *world, sbp_session *session, sbp_outputs *outputs) SBP_CHECKED;

/* ---- run_check.c ----------------------------------------------------------------------------------- */

/* With the plan on the device and its weights: `sbprun check`. Another plan is there afterwards. */
sbp_status sbp_run_check(sbp_world *world, sbp_inputs *inputs, sbp_session *session,
                         sbp_outputs *outputs) SBP_CHECKED;

/* ---- check_before.c -------------------------------------------------------------------------------- */

/* --check: `sbprun check` of the plan, by a process of its own. SBP_INPUT where something is wrong. */
sbp_status sbp_run_check_before(const sbp_world *world, const sbp_session *session) SBP_CHECKED;

/* ---- run_best.c ------------------------------------------------------------------------------------ */

/* --best: session->best; SBP_USAGE where there is nothing to compare. */
sbp_status sbp_run_plan_best(const sbp_world *world, const sbp_inputs *inputs, sbp_session *session,
                             const sbp_outputs *outputs) SBP_CHECKED;
/* With the state of a checkpoint: what it knows of a best that cannot be compared, or is gone, is
 * forgotten. */
sbp_status sbp_run_resume_best(sbp_world *world, sbp_session *session,
                               const sbp_outputs *outputs) SBP_CHECKED;
/* The number that is compared, of the evaluation that the trainer has just done. */
double sbp_run_compared(const sbp_session *session);
/* Counts an evaluation by that number of rank 0; again: the same as before. */
sbp_status sbp_run_count_evaluation(const sbp_world *world, sbp_session *session, double value,
                                    bool again) SBP_CHECKED;
/* Whether training is over before its last step. */
bool sbp_run_stops_early(const sbp_session *session);
/* Checkpoints that stay. */
sbp_keep sbp_run_keeps(const sbp_world *world, const sbp_session *session);
/* The end of the training: loads the best model where --best asks for it. */
sbp_status sbp_run_load_best(sbp_world *world, sbp_session *session, const sbp_outputs *outputs) SBP_CHECKED;
/* With --keep 1, once the model is written: removes the last checkpoint where it is not the best. */
void sbp_run_keep_best(const sbp_world *world, const sbp_session *session, const sbp_outputs *outputs);
/* What evaluations say of the run, in a sentence; NULL: there was none. Below a guard. */
const char *sbp_run_verdict(sbp_arena *arena, const sbp_session *session);
/* best_step, best_metric .. of an open object. */
struct sbp_json_writer;
void sbp_run_write_best(struct sbp_json_writer *w, const sbp_session *session);

/* ---- run_train.c ----------------------------------------------------------------------------------- */

/* What can be said without touching the device: whether it is there, and has the memory; whether the plan can
 * train; whether there are weights. */
sbp_status sbp_run_check_start(const sbp_world *world, const sbp_session *session,
                               const sbp_outputs *outputs) SBP_CHECKED;
/* Everything that needs the device. */
sbp_status sbp_run_on_device(sbp_world *world, sbp_inputs *inputs, sbp_session *session,
                             sbp_outputs *outputs) SBP_CHECKED;

#endif
