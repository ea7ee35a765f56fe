/* metrics.h: what a run tells while it goes on: metrics.jsonl, and one line of progress on stderr.
 *
 * A line of metrics per optimizer step: step, epoch, the outputs of the program under their names (loss,
 * grad_norm and the objective's own), learning_rate, num_tokens (so far), tokens_per_second, step_seconds,
 * mfu (model FLOP utilisation, where it is known), memory_peak_bytes. A line per evaluation: step, epoch,
 * eval_file, and the outputs with the prefix eval_; of several files with eval_FILE_, too. Numbers are
 * written in the shortest form that reads back to the same bits. With --report-to they go to standard
 * output and to event files, too, whose tags are those of transformers: train/loss, eval/loss; of a second
 * file of an evaluation, FILE.jsonl, eval/FILE_loss.
 *
 * On a terminal progress is one line that is rewritten; else a line every few seconds. With log_every, a line
 * for each step whose number it divides, and for the last, stays in either.
 */
#ifndef SBP_RUNTIME_TRAIN_METRICS_H
#define SBP_RUNTIME_TRAIN_METRICS_H

#include <stdio.h>

#include "runtime/train/events.h"
#include "runtime/train/trainer.h"

/* A number that is not the program's. */
typedef struct sbp_metric {
    const char *name;
    double value;
} sbp_metric;

typedef struct sbp_metrics {
    FILE *file; /* NULL: none */
    const char *path;
    const sbp_trainer *trainer;
    sbp_diag *diag;
    bool terminal, quiet, verbose; /* verbose: a line of each step stays, with all numbers */
    bool several;                  /* files are evaluated: their numbers have their names, too */
    bool lines;                    /* standard output has the lines of the file too */
    sbp_events *events;            /* TensorBoard's; NULL: none */
    int64_t evaluated_step;        /* of the last evaluation, -1: there was none */
    int64_t total_steps;
    int64_t log_every;          /* 0: by time */
    double started, last_shown; /* seconds */
    int64_t done;               /* steps of this process */
    const sbp_metric *more;     /* [more_count] of each step to come, behind the program's */
    int32_t more_count;
    double loss_sum; /* over all steps of the run */
    int64_t loss_count;
} sbp_metrics;

typedef struct sbp_step_report {
    int64_t step; /* done, from 1 */
    double epoch, learning_rate, seconds;
    int64_t tokens, num_tokens; /* of the step, so far */
    int64_t memory_peak_bytes;  /* 0 unknown: null */
    double utilisation;         /* of the device (utilisation.h); NaN unknown: left out */
} sbp_step_report;

/* path: of metrics.jsonl, NULL for none. keep_steps, keep_evaluations: with an existing file, lines up to
 * that step stay; keep_steps -1: begin anew. total_steps 0: unknown. The path must outlive the metrics. */
sbp_status sbp_metrics_open(sbp_metrics *metrics, sbp_diag *diag, const sbp_trainer *trainer,
                            const char *path, int64_t keep_steps, int64_t keep_evaluations,
                            int64_t total_steps) SBP_CHECKED;
/* Results are those in trainer->results. */
sbp_status sbp_metrics_step(sbp_metrics *metrics, const sbp_step_report *report) SBP_CHECKED;
sbp_status sbp_metrics_evaluation(sbp_metrics *metrics, int64_t step, double epoch,
                                  const char *file) SBP_CHECKED;
/* What a file of evaluations is called by in names of numbers: "test" of path/test.jsonl. */
void sbp_metrics_eval_name(const char *file, char *out, size_t size);
/* Closes the file; SBP_IO when what was written did not arrive. */
sbp_status sbp_metrics_close(sbp_metrics *metrics) SBP_CHECKED;
/* Mean loss of the steps. */
double sbp_metrics_train_loss(const sbp_metrics *metrics);

/* On a terminal, unless it is to be quiet: what is done before the next step, as the line of progress. */
void sbp_progress_say(const sbp_metrics *metrics, const char *text);
/* Ends a line of progress that is being rewritten, before something else is printed. */
void sbp_progress_break(void);

#endif
