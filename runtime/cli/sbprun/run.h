/* run.h: one run of sbprun: what its parts (command_run.c, run_*.c) share.
 *
 * Order: options; the output directory, where it is there already; the plan, compiled first when a model was
 * given; data, tokenized and checked as a whole; then the device, weights; evaluations, training, results.
 * Nothing is written or replaced before everything that can be checked has been.
 */
#ifndef SBP_RUNTIME_CLI_SBPRUN_RUN_H
#define SBP_RUNTIME_CLI_SBPRUN_RUN_H

#include "backends/ranks/ranks.h"
#include "runtime/cli/options/options.h"
#include "runtime/run/plan_info.h"
#include "runtime/train/checkpoint.h"
#include "runtime/train/lr.h"
#include "runtime/train/metrics.h"
#include "runtime/train/rundir.h"

/* Of a stream: enough never to be reached, and for sums. */
#define SBP_STEPS_UNKNOWN (INT64_C(1) << 60)
/* --timeout where the options cannot be read. */
#define SBP_RUN_FIRST_TIMEOUT 600

typedef struct sbp_run {
    sbp_arena *arena;
    sbp_diag *diag;
    int argc;
    char *const *argv;
    struct sbp_ranks *ranks; /* NULL: alone */
    sbp_ranks_info world;    /* --dry-run --ranks N: as if there were N */
    double *slots;           /* [2 world.count] */
    int32_t sharing;         /* processes that use the same cores */
    bool shares_out;         /* all see what rank 0 writes in --out */
    double timeout;          /* seconds; 0: none */
    sbp_status agreed;       /* why the run fails, as all ranks know; SBP_OK: it does not */
    sbp_status signal;       /* SBP_INTERRUPTED, SBP_TERMINATED when all stop; as of the last agreement */
    sbp_options *options;
    const char *model; /* the first argument, when it is no plan */
    const char *plan_path;
    char *temporary_plan; /* removed at the end */
    const sbp_plan *plan;
    uint64_t plan_checksum;
    sbp_plan_info info;
    const sbp_json *compiled;   /* with --resume: what run.json says of the plan that the run began with */
    const char *began_checksum; /* of that */
    int64_t began_steps;        /* how many it was to have, 0: unknown */
    const char *out;            /* NULL: none */
    bool out_is_default;
    bool out_moved;    /* it is no longer where it was, which was said */
    sbp_rundir dir;    /* out, from when it is there */
    sbp_dataset *data; /* NULL: none */
    sbp_dataset **evals;
    int32_t eval_count;
    bool train; /* wanted */
    sbp_sampler sampler;
    int64_t steps_per_epoch;
    int64_t total_steps;             /* SBP_STEPS_UNKNOWN: as many as come */
    sbp_reader reader;               /* of standard input, where there are several ranks */
    sbp_row_stream stream;           /* .steps: rows come step by step, and data are those of the latest */
    struct sbp_load_job *stream_job; /* how they are read; NULL: they are not */
    bool stream_is_fresh;            /* data were not used yet */
    int64_t *stream_rows;            /* [data->row_count] */
    const int64_t *rows;             /* [row_count] of the batch at hand; NULL: the next step takes another */
    int64_t row_count;
    int64_t inner_epochs;      /* steps that take the same batch, one after the other */
    struct sbp_shadow *shadow; /* weights of a reference beside those that are trained; NULL: no need */
    struct {
        sbp_rundir dir;         /* fd -1: nothing is published */
        int64_t latest, before; /* steps, -1: none */
    } published;
    sbp_lr lr;
    sbp_executor *executor;
    sbp_profile *profile; /* SBP_PROFILE; NULL: not wanted */
    sbp_trainer trainer;
    sbp_metrics metrics;
    const char *products; /* how the device computes them, chosen by measuring; NULL: as it likes */
    sbp_run_state state;
    int64_t zero_gradients;                        /* steps of this process whose gradients were all 0 */
    int64_t resumed_after;                         /* steps that a checkpoint had, 0: none */
    int64_t disk_read_before, disk_written_before; /* bytes of the disk arena before the first step */
    double eval_loss;                              /* of the last evaluation of the first file; NaN: none */
    double seconds, fastest_seconds;               /* of training; of its fastest step, 0: none */
} sbp_run;

/* ---- run_ranks.c ------------------------------------------------------------------------------------- */

/* The world that the environment describes, before anything is read. */
sbp_status sbp_run_join(sbp_run *run) SBP_CHECKED;
/* The end, before what the run has is freed: where this rank failed and the others do not know, it ends them
 * and does not return. */
void sbp_run_prepare_to_leave(sbp_run *run, sbp_status status);
void sbp_run_leave(sbp_run *run, sbp_status status);
/* Whether this rank writes and reports. */
bool sbp_run_writes(const sbp_run *run);

/* All ranks call these in the same order; alone, they do nothing. The status of the first rank that failed,
 * which says why; run->signal. Without an agreement, a failure ends all when it gets to the top. */
sbp_status sbp_run_agree(sbp_run *run, sbp_status status) SBP_CHECKED;
/* Whether collectives of all ranks end with this status alike, so that they can agree on it. */
bool sbp_run_is_common(sbp_status status);
/* What rank 0 does and the others wait for. */
sbp_status sbp_run_alone(sbp_run *run, sbp_status (*act)(sbp_run *run)) SBP_CHECKED;
/* Rank 0's text, or NULL, to all. */
sbp_status sbp_run_share_text(sbp_run *run, const char **text) SBP_CHECKED;
/* SBP_INPUT unless all have the same; what: "other data". */
sbp_status sbp_run_same(sbp_run *run, const char *what, uint64_t hash) SBP_CHECKED;
/* The largest of all. */
sbp_status sbp_run_largest(sbp_run *run, int64_t *value) SBP_CHECKED;

/* How many there are, over what, and why; alone, nothing. */
void sbp_run_say_world(const sbp_run *run);
/* *launch: how many are to be started, 0: none. */
sbp_status sbp_run_count_ranks(sbp_run *run, int32_t *launch) SBP_CHECKED;
/* SBP_USAGE when the plan is for another number. */
sbp_status sbp_run_check_count(const sbp_run *run, int32_t count) SBP_CHECKED;
/* Whether all see what rank 0 writes in --out; where they must, SBP_IO if one does not. */
sbp_status sbp_run_check_shared(sbp_run *run, bool must) SBP_CHECKED;

/* ---- run_stdin.c ------------------------------------------------------------------------------------ */

/* Standard input, which all ranks read alike. */
sbp_status sbp_run_open_stdin(sbp_run *run, sbp_source **out) SBP_CHECKED;

/* ---- run_data.c -------------------------------------------------------------------------------------- */

/* --data and --eval. The data may be there already (`sbprun MODEL`); then only ids are checked. */
sbp_status sbp_run_load_data(sbp_run *run) SBP_CHECKED;
/* --data of a model, before it is compiled: into run->data. */
sbp_status sbp_run_load_raw(sbp_run *run) SBP_CHECKED;
/* Of a stream, the rows of its next step: run->data, NULL when it has ended. */
sbp_status sbp_run_load_step(sbp_run *run) SBP_CHECKED;
/* What ends with the run. */
void sbp_run_close_stream(sbp_run *run);
/* With --share-prompt, sbp_packer.counted; SBP_USAGE where prompts cannot be shared. */
sbp_status sbp_run_shared(const sbp_run *run, const char **counted) SBP_CHECKED;
/* Sampler, steps, learning rates; checks that every step fits. */
sbp_status sbp_run_plan_steps(sbp_run *run) SBP_CHECKED;

/* ---- run_out.c --------------------------------------------------------------------------------------- */

/* run->out: --out; of a training without it, MODEL-OBJECTIVE. */
sbp_status sbp_run_choose_out(sbp_run *run) SBP_CHECKED;
/* Opens and locks it; SBP_USAGE where it holds what must stay, or what the run reads. Once it is open,
 * nothing happens. */
sbp_status sbp_run_open_out(sbp_run *run, sbp_rundir_mode mode) SBP_CHECKED;
/* SBP_USAGE when --score or --dump-gradients would replace what is read. */
sbp_status sbp_run_check_results(const sbp_run *run) SBP_CHECKED;
/* The same of rank 0, alone, which is where it is created first. */
sbp_status sbp_run_create_out(sbp_run *run) SBP_CHECKED;
/* Everything was checked: the first that is written there, run.json and plan.bin; says where it goes. */
sbp_status sbp_run_begin_out(sbp_run *run, const char *resumed) SBP_CHECKED;

/* SBP_USAGE when the model is read from a directory that an option gives, or from in it. */
sbp_status sbp_run_check_apart(const sbp_run *run, const char *option, const char *path) SBP_CHECKED;
/* SBP_IO when a directory that the run writes in is no longer where its path leads: moved, replaced or
 * removed. Says where it is, and, of --out, its last checkpoint. */
sbp_status sbp_run_check_in_place(const sbp_run *run, const sbp_rundir *dir) SBP_CHECKED;

/* Name of a model by its path. Whether path exists and is the directory, or lies in it. */
char *sbp_run_model_name(sbp_arena *arena, const char *path);
bool sbp_run_lies_in(const char *path, const char *directory);

/* ---- run_resume.c ------------------------------------------------------------------------------------ */

/* With --resume: the options of run.json for what was not given; SBP_USAGE where what was given differs. */
sbp_status sbp_run_inherit(sbp_run *run) SBP_CHECKED;
/* That a plan computes what the run's did; says so when it is another. */
sbp_status sbp_run_check_plan(const sbp_run *run) SBP_CHECKED;
/* With --resume and a model: run->plan_path is the run's own plan, or, where that is gone or another schedule
 * is asked for, options get the values it was compiled with. */
sbp_status sbp_run_reuse_plan(sbp_run *run) SBP_CHECKED;

/* ---- run_reference.c --------------------------------------------------------------------------------- */

/* --ref, beside the data. */
sbp_status sbp_run_read_reference(sbp_run *run) SBP_CHECKED;
/* What the plan reads of a reference and rows do not carry, of the data and of --eval: from --out where it
 * was kept, else by scoring with the initial weights, which are on the device unless the run goes on from a
 * checkpoint. */
sbp_status sbp_run_reference(sbp_run *run, const char *resumed) SBP_CHECKED;
/* Likewise of rows that have just come, by the initial weights that are kept beside the trained ones. */
sbp_status sbp_run_step_reference(sbp_run *run) SBP_CHECKED;

/* Puts the weights of the reference, kept beside the trained ones, in their place, and back; likewise the
 * scale of adapters. */
sbp_status sbp_run_enter_reference(sbp_run *run) SBP_CHECKED;
sbp_status sbp_run_leave_reference(sbp_run *run) SBP_CHECKED;

/* ---- run_rotated.c ------------------------------------------------------------------------------------ */

/* SBP_USAGE where steps cannot say what the plan wants to know of rotated documents. */
sbp_status sbp_run_check_rotated(const sbp_run *run) SBP_CHECKED;
/* Whether the plan wants to know of them by a reference, which rows do not say. */
bool sbp_run_rotates_reference(const sbp_run *run, const sbp_dataset *data);
/* Tells the program of those of a step, or of an evaluation (rows NULL), that comes next. */
sbp_status sbp_run_score_rotated(sbp_run *run, const sbp_dataset *data, const int64_t *rows,
                                 int64_t row_count) SBP_CHECKED;

/* ---- run_batch.c -------------------------------------------------------------------------------------- */

/* --inner-epochs */
sbp_status sbp_run_plan_inner(sbp_run *run) SBP_CHECKED;
/* run->rows of the next step, with what the plan reads of older weights; *end: there are none. */
sbp_status sbp_run_next_rows(sbp_run *run, bool *end) SBP_CHECKED;
/* Of all rows of an evaluation, by the weights at hand: its ratios are 1. What rows say themselves stays. */
sbp_status sbp_run_score_evaluation(sbp_run *run, sbp_dataset *data) SBP_CHECKED;
/* Counts a step that was taken. */
void sbp_run_end_step(sbp_run *run);
/* Puts what was computed of the batch at hand into run->state, for a checkpoint. */
sbp_status sbp_run_keep_batch(sbp_run *run) SBP_CHECKED;

/* ---- run_publish.c ------------------------------------------------------------------------------------ */

/* --publish DIR, nothing without it: opens and locks it; SBP_USAGE where what is there is not of this
 * program, or is read. Nothing there changes before the second. */
sbp_status sbp_run_open_publish(sbp_run *run) SBP_CHECKED;
sbp_status sbp_run_begin_publish(sbp_run *run) SBP_CHECKED;
sbp_status sbp_run_publish(sbp_run *run) SBP_CHECKED;
/* Says what is published once more; where nothing is yet, the weights at hand are. */
sbp_status sbp_run_publish_again(sbp_run *run) SBP_CHECKED;

/* ---- run_report.c ------------------------------------------------------------------------------------ */

/* --dry-run, to standard output. */
sbp_status sbp_run_print_dry(sbp_run *run) SBP_CHECKED;
/* run.json */
sbp_status sbp_run_write_json(sbp_run *run, const char *resumed) SBP_CHECKED;
/* The end: a line on stderr, or with --json an object on standard output. */
sbp_status sbp_run_print_summary(sbp_run *run) SBP_CHECKED;
/* The same of --dump-gradients, in whose file they are. */
sbp_status sbp_run_print_gradients(const sbp_run *run, const char *path) SBP_CHECKED;
/* --threads, at most four for each core (16 are always allowed), else the cores of this machine. */
int32_t sbp_run_threads(const sbp_run *run);
/* What the plan says, for the threads of this run. */
int64_t sbp_run_peak_planned(const sbp_run *run);
int64_t sbp_run_peak_measured(const sbp_run *run); /* 0: the driver does not report it */

/* ---- run_disk.c --------------------------------------------------------------------------------------- */

/* --offload-dir, else --out, else the current directory. */
const char *sbp_run_offload_dir(const sbp_run *run);
/* SBP_MACHINE when the checkpoints and the model to come do not fit where --out is. The file of the disk
 * arena has its space already. */
sbp_status sbp_run_check_space(const sbp_run *run) SBP_CHECKED;
/* Of the disk arena, since the run's first step. */
void sbp_run_disk_traffic(const sbp_run *run, int64_t *read_bytes, int64_t *written_bytes);
/* Says what a step reads and writes, and how long a drive lasts at that; nothing where nothing is on disk. */
void sbp_run_note_disk(const sbp_run *run);

/* ---- run_tune.c --------------------------------------------------------------------------------------- */

/* --tune, before anything is on the device. */
sbp_status sbp_run_tune(sbp_run *run) SBP_CHECKED;
/* OUT/products.txt of a run that begins; one that was there and is not of this run goes. */
sbp_status sbp_run_write_products(sbp_run *run, const char *resumed) SBP_CHECKED;

/* ---- run_weights.c ------------------------------------------------------------------------------------ */

/* Where the first weights come from: a path, or NULL and a seed. */
sbp_status sbp_run_find_weights(const sbp_run *run, const char **path, const char **adapter,
                                uint64_t *seed) SBP_CHECKED;
/* Where the directory of an adapter has its tensors. */
const char *sbp_run_adapter_file(sbp_arena *arena, const char *directory);
/* The weights that the run begins with, to the device. */
sbp_status sbp_run_load_weights(sbp_run *run) SBP_CHECKED;

/* ---- run_train.c ------------------------------------------------------------------------------------- */

/* What can be said without touching the device: whether it is there, and has the memory; whether the plan can
 * train; whether there are weights. */
sbp_status sbp_run_check_start(const sbp_run *run) SBP_CHECKED;
/* Everything that needs the device. */
sbp_status sbp_run_on_device(sbp_run *run) SBP_CHECKED;

#endif
