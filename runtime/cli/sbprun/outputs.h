/* outputs.h: what a run writes and says: the run directory, published models, metrics, reports, and the
 * figures that are in them.
 *
 * Owner: sbp_command_run; sbp_outputs_close closes the directories, which unlocks them, and the metrics.
 * Lifetime: a directory from when it is there. Only rank 0 writes in them and reports; the others have `dir`
 * to read checkpoints. One thread uses it.
 */
#ifndef SBP_RUNTIME_CLI_SBPRUN_OUTPUTS_H
#define SBP_RUNTIME_CLI_SBPRUN_OUTPUTS_H

#include "runtime/cli/sbprun/session.h"
#include "runtime/train/metrics.h"
#include "runtime/train/rundir.h"
#include "runtime/train/utilisation.h"

struct sbp_outputs {
    const char *out; /* NULL: none */
    bool out_is_default;
    bool out_moved; /* it is no longer where it was, which was said */
    bool shared;    /* all ranks see what rank 0 writes there */
    sbp_rundir dir; /* out, from when it is there */
    struct {
        sbp_rundir dir;         /* fd -1: nothing is published */
        int64_t latest, before; /* steps, -1: none */
        int64_t earlier;        /* the newest of a run before */
    } published;
    sbp_metrics metrics;
    int64_t zero_gradients;                        /* steps of this process whose gradients were all 0 */
    int64_t disk_read_before, disk_written_before; /* bytes of the disk arena before the first step */
    double eval_loss;                              /* of the last evaluation of the first file; NaN: none */
    double seconds, fastest_seconds;               /* of training; of its fastest step, 0: none */
    sbp_utilisation utilisation;
    double utilised; /* of the seconds, as far as it is known */
};

/* Nothing is open yet. */
sbp_outputs sbp_outputs_begin(void);
void sbp_outputs_close(sbp_outputs *outputs);

/* ---- run_out.c ------------------------------------------------------------------------------------- */

/* outputs->out: --out; of a training without it, MODEL-OBJECTIVE. */
sbp_status sbp_run_choose_out(const sbp_world *world, const sbp_session *session,
                              sbp_outputs *outputs) SBP_CHECKED;
/* Opens and locks it; SBP_USAGE where it holds what must stay, or what the run reads. Once it is open,
 * nothing happens. */
sbp_status sbp_run_open_out(sbp_world *world, const sbp_session *session, sbp_outputs *outputs,
                            sbp_rundir_mode mode) SBP_CHECKED;
/* SBP_USAGE when --score or --dump-gradients would replace what is read. */
sbp_status sbp_run_check_results(const sbp_world *world, const sbp_session *session) SBP_CHECKED;
/* The same of rank 0, alone, which is where it is created first. */
sbp_status sbp_run_create_out(const sbp_world *world, const sbp_session *session,
                              sbp_outputs *outputs) SBP_CHECKED;
/* Everything was checked: the first that is written there, run.json and plan.bin; says where it goes. */
sbp_status sbp_run_begin_out(sbp_world *world, const sbp_inputs *inputs, sbp_session *session,
                             sbp_outputs *outputs, const char *resumed) SBP_CHECKED;

/* SBP_USAGE when the model is read from a directory that an option gives, or from in it. */
sbp_status sbp_run_check_apart(const sbp_world *world, const sbp_session *session, const char *option,
                               const char *path) SBP_CHECKED;
/* SBP_IO when a directory that the run writes in is no longer where its path leads: moved, replaced or
 * removed. Says where it is, and, of --out, its last checkpoint. */
sbp_status sbp_run_check_in_place(const sbp_world *world, const sbp_outputs *outputs,
                                  const sbp_rundir *dir) SBP_CHECKED;

/* Name of a model by its path. Whether path exists and is the directory, or lies in it. */
char *sbp_run_model_name(sbp_arena *arena, const char *path);
bool sbp_run_lies_in(const char *path, const char *directory);

/* ---- run_publish.c --------------------------------------------------------------------------------- */

/* --publish DIR, nothing without it: opens and locks it; SBP_USAGE where what is there is not of this
 * program, or is read. Nothing there changes before the second. */
sbp_status sbp_run_open_publish(const sbp_world *world, const sbp_session *session,
                                sbp_outputs *outputs) SBP_CHECKED;
sbp_status sbp_run_begin_publish(const sbp_world *world, sbp_outputs *outputs) SBP_CHECKED;
sbp_status sbp_run_publish(const sbp_world *world, const sbp_session *session,
                           sbp_outputs *outputs) SBP_CHECKED;
/* Says what is published once more; where nothing is yet, the weights at hand are. */
sbp_status sbp_run_publish_again(const sbp_world *world, const sbp_session *session,
                                 sbp_outputs *outputs) SBP_CHECKED;

/* ---- run_report.c ---------------------------------------------------------------------------------- */

/* --dry-run, to standard output. */
sbp_status sbp_run_print_dry(const sbp_world *world, sbp_inputs *inputs,
                             const sbp_session *session) SBP_CHECKED;
/* run.json */
sbp_status sbp_run_write_json(const sbp_world *world, const sbp_inputs *inputs, const sbp_session *session,
                              const sbp_outputs *outputs, const char *resumed) SBP_CHECKED;
/* The end: a line on stderr, or with --json an object on standard output. */
sbp_status sbp_run_print_summary(sbp_world *world, const sbp_session *session,
                                 sbp_outputs *outputs) SBP_CHECKED;
/* The same of --dump-gradients, in whose file they are. */
sbp_status sbp_run_print_gradients(const sbp_world *world, const sbp_inputs *inputs,
                                   const sbp_session *session, const char *path) SBP_CHECKED;
int64_t sbp_run_peak_measured(const sbp_world *world); /* 0: the driver does not report it */

/* ---- run_curve.c ----------------------------------------------------------------------------------- */

enum { SBP_CURVE_VALUES = 6 };

typedef struct sbp_curve_point {
    double step, values[SBP_CURVE_VALUES], eval_loss; /* NaN: not known */
} sbp_curve_point;

/* In order of the steps; the last of each is the run's last. */
typedef struct sbp_curve {
    const sbp_curve_point *points, *evals; /* of training; of evaluations, with the numbers of their step */
    int32_t count, eval_count;
} sbp_curve;

/* Numbers of OUT/metrics.jsonl by their keys, at most SBP_CURVE_VALUES: of training and of evaluations at
 * most 2 * most + 1 points, the first and the last among them. */
sbp_status sbp_run_read_curve(const sbp_world *world, const sbp_outputs *outputs, const char *const *keys,
                              int32_t key_count, int32_t most, sbp_curve *out) SBP_CHECKED;

/* ---- run_account.c --------------------------------------------------------------------------------- */

/* What the plan says, for the threads of this run. */
int64_t sbp_run_peak_planned(const sbp_world *world, const sbp_session *session);

typedef struct sbp_run_part {
    const char *name;
    int64_t bytes;
} sbp_run_part;
typedef struct sbp_run_account {
    sbp_run_part *parts;
    int32_t count; /* 0: a plan of an earlier version does not say */
    int64_t bytes; /* of all */
} sbp_run_account;
/* The parts of a space as `sbpc inspect` prints them, for the threads of this run. Below a guard. */
sbp_run_account sbp_run_account_of(const sbp_world *world, const sbp_session *session, sbp_space space);

/* ---- run_card.c ------------------------------------------------------------------------------------ */

/* README.md beside the model: what it is of, how it was trained and how it is loaded. Nothing that was not
 * written by this program is written over. */
sbp_status sbp_run_write_card(const sbp_world *world, const sbp_inputs *inputs, const sbp_session *session,
                              const sbp_outputs *outputs) SBP_CHECKED;

/* Settings that may be shown to anybody, of those that were given: numbers and words of options.
 * Below a guard. */
typedef void (*sbp_setting_visitor)(void *user, const char *name, const char *value);
void sbp_run_each_setting(const sbp_world *world, const sbp_session *session, sbp_setting_visitor visit,
                          void *user);

/* ---- run_page.c ------------------------------------------------------------------------------------ */

/* OUT/report.html: curves, memory and settings of a run in one page, which loads nothing and runs nothing. */
sbp_status sbp_run_write_page(const sbp_world *world, const sbp_session *session,
                              const sbp_outputs *outputs) SBP_CHECKED;

/* ---- run_rows.c ------------------------------------------------------------------------------------ */

/* How rows are shown: trained tokens in [[ ]]; with escape sequences of a terminal; as a part of a page. */
typedef enum sbp_showing { SBP_SHOW_PLAIN, SBP_SHOW_COLOURS, SBP_SHOW_HTML } sbp_showing;

/* Colours where standard output is a terminal that has them, and NO_COLOR is not set. */
sbp_showing sbp_run_showing(void);
/* The first --show rows that steps take, with what of them is trained. The sampler is at the beginning then.
 * Below a guard. */
sbp_status sbp_run_show_rows(const sbp_world *world, sbp_inputs *inputs, const sbp_session *session,
                             sbp_showing how, sbp_text *out) SBP_CHECKED;

/* ---- run_disk.c ------------------------------------------------------------------------------------ */

/* --offload-dir, else --out, else the current directory. */
const char *sbp_run_offload_dir(const sbp_world *world, const sbp_outputs *outputs);
/* SBP_MACHINE when the checkpoints and the model to come do not fit where --out is. The file of the disk
 * arena has its space already. */
sbp_status sbp_run_check_space(const sbp_world *world, const sbp_session *session,
                               const sbp_outputs *outputs) SBP_CHECKED;
/* Bytes read from and written to the disk arena since the run's first step. */
void sbp_run_disk_traffic(const sbp_world *world, const sbp_outputs *outputs, int64_t *read_bytes,
                          int64_t *written_bytes);
/* Says what a step reads and writes, and how long a drive lasts at that; nothing where nothing is on disk. */
void sbp_run_note_disk(const sbp_world *world, const sbp_session *session, const sbp_outputs *outputs);

/* Whether a value of --report-to asks for event files, tensorboard or tensorboard:DIR. *folder: DIR; NULL:
 * OUT/runs. */
bool sbp_run_reports_events(const char *value, const char **folder);

/* ---- the Hub (run_hub.c) ---------------------------------------------------------------------------- */

/* Names of data sets in --data and --eval become the files of their splits, which are fetched if need be. */
sbp_status sbp_run_find_data(const sbp_world *world) SBP_CHECKED;
/* The name of a data set that lies in a cache of the Hub; NULL: it does not. */
const char *sbp_run_dataset_name(sbp_arena *arena, const char *path);
/* Whether --push_to_hub can do what it is to do, before hours of training. */
sbp_status sbp_run_check_push(const sbp_world *world, const sbp_session *session,
                              const sbp_outputs *outputs) SBP_CHECKED;
/* Does so, by rank 0. */
sbp_status sbp_run_push(const sbp_world *world, const sbp_outputs *outputs) SBP_CHECKED;

#endif
