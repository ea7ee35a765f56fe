/* run_train.c: the part of a run that needs the device: weights, evaluations, training, results. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/backends.h"
#include "backends/devices.h"
#include "ir/base/json_write.h"
#include "ir/base/machine.h"
#include "runtime/cli/sbprun/interrupt.h"
#include "runtime/cli/sbprun/run.h"
#include "runtime/data/groups.h"

/* ---- evaluations and scores ------------------------------------------------------------------------- */

static double epoch_of(const sbp_run *run) {
    if (!run->data || run->steps_per_epoch == 0)
        return 0;
    if (run->state.batch_tokens > 0)
        return (double)run->state.epoch + (double)run->state.at / (double)run->data->row_count;
    return (double)run->state.epoch +
           (double)sbp_ceil_div(run->state.at, run->state.batch_rows) / (double)run->steps_per_epoch;
}

/* *written: how writing the metrics went. */
static sbp_status evaluate_files(sbp_run *run, sbp_status *written) {
    *written = SBP_OK;
    for (int32_t i = 0; i < run->eval_count; i++) {
        SBP_TRY(sbp_run_score_evaluation(run, run->evals[i]));
        SBP_TRY(sbp_run_score_rotated(run, run->evals[i], NULL, run->evals[i]->row_count));
        SBP_TRY(sbp_trainer_evaluate(&run->trainer, run->diag, run->evals[i], NULL, NULL));
        if (i == 0 && run->trainer.loss >= 0)
            run->eval_loss = run->trainer.results[run->trainer.loss];
        if (*written == SBP_OK)
            *written = sbp_metrics_evaluation(&run->metrics, run->state.step, epoch_of(run),
                                              sbp_options_list_at(run->options, SBP_OPT_EVAL, i));
    }
    run->state.evaluated = run->state.step;
    return SBP_OK;
}

static sbp_status evaluate(sbp_run *run) {
    sbp_status written, status = evaluate_files(run, &written);
    if (!sbp_run_is_common(status))
        return status;
    return sbp_run_agree(run, status == SBP_OK ? written : status);
}

/* A signal outside of training. */
static sbp_status say_interrupted(sbp_run *run, sbp_status status, const char *what) {
    if (status != SBP_INTERRUPTED)
        return status;
    SBP_TRY(sbp_run_agree(run, SBP_OK)); /* which signal */
    sbp_progress_break();
    sbp_note(run->diag, "interrupted while %s%s", what,
             run->train && run->out && run->state.step > 0 ? "; --resume goes on from there" : "");
    return run->signal;
}

typedef struct score_writer {
    sbp_run *run;
    sbp_file_out *out;
    sbp_arena *arena;
    const sbp_score *score;
    sbp_status status; /* of several ranks, which go on together: how writing went so far */
    int64_t *order;    /* in which lines stand, of documents (runtime/data/groups.h); NULL: as they come */
    double *kept;      /* log-probabilities until all have come, and where those of a document are */
    int64_t *kept_at;
} score_writer;

static sbp_status write_score_body(void *user) {
    const score_writer *w = user;
    const sbp_doc *doc = w->score->doc;
    double sum = 0;
    sbp_text line;
    sbp_text_init(&line, w->arena);
    sbp_json_writer j = sbp_json_writer_on(&line);
    sbp_json_write_object(&j, NULL);
    sbp_json_write_int(&j, "row", doc->row);
    sbp_json_write_string(&j, "part", sbp_doc_part(doc));
    sbp_json_write_array(&j, "logps");
    for (int64_t i = 0; i < doc->labels; i++) {
        sbp_json_write_double(&j, NULL, w->score->logps[i]);
        sum += w->score->logps[i];
        if (!isfinite(w->score->logps[i]))
            return sbp_fail(w->run->diag, SBP_NOT_FINITE, "row %lld: log-probability %lld is %g",
                            (long long)doc->row, (long long)i, w->score->logps[i]);
    }
    sbp_json_write_end(&j);
    sbp_json_write_double(&j, "sum", sum);
    sbp_json_write_int(&j, "tokens", doc->labels);
    sbp_json_write_end(&j);
    sbp_text_add(&line, "\n");
    return sbp_file_out_write(w->out, w->run->diag, line.data, (int64_t)line.length);
}

static sbp_status write_line(score_writer *w, const sbp_score *score) {
    w->score = score;
    w->arena = sbp_arena_create();
    if (!w->arena)
        return sbp_fail(w->run->diag, SBP_MACHINE, "out of memory");
    w->status = sbp_guard(w->arena, w->run->diag, write_score_body, w);
    sbp_arena_destroy(w->arena);
    return w->status;
}

static sbp_status write_score(void *user, const sbp_score *score) {
    score_writer *w = user;
    if (!sbp_run_writes(w->run) || w->status != SBP_OK)
        return SBP_OK;
    if (w->order)
        memcpy(w->kept + w->kept_at[score->doc - w->run->data->docs], score->logps,
               (size_t)score->doc->labels * sizeof *w->kept);
    else
        w->status = write_line(w, score);
    return w->run->ranks ? SBP_OK : w->status;
}

/* Lines stand in the order of the files: where groups were put together, they wait. */
static sbp_status begin_score(score_writer *w, const char *path) {
    const sbp_dataset *data = w->run->data;
    SBP_TRY(sbp_file_out_open(w->run->diag, path, &w->out));
    SBP_TRY(sbp_dataset_file_order(w->run->diag, data, &w->order));
    if (!w->order)
        return SBP_OK;
    w->kept = sbp_malloc((size_t)(data->label_count + 1) * sizeof *w->kept);
    w->kept_at = sbp_malloc((size_t)(data->doc_count + 1) * sizeof *w->kept_at);
    if (!w->kept || !w->kept_at)
        return sbp_fail(w->run->diag, SBP_MACHINE, "out of memory for the scores of %lld documents",
                        (long long)data->doc_count);
    w->kept_at[0] = 0;
    for (int64_t d = 0; d < data->doc_count; d++)
        w->kept_at[d + 1] = w->kept_at[d] + data->docs[d].labels;
    return SBP_OK;
}

static sbp_status write_kept(score_writer *w) {
    const sbp_dataset *data = w->run->data;
    for (int64_t k = 0; w->order && k < data->doc_count; k++) {
        const int64_t d = w->order[k];
        const sbp_score score = {.doc = &data->docs[d], .logps = w->kept + w->kept_at[d]};
        SBP_TRY(write_line(w, &score));
    }
    return SBP_OK;
}

static sbp_status finish_score(score_writer *w, sbp_status status) {
    if (w->out && status == SBP_OK)
        status = write_kept(w);
    free(w->order);
    free(w->kept);
    free(w->kept_at);
    if (!w->out)
        return status;
    if (status == SBP_OK)
        return sbp_file_out_commit(w->out, w->run->diag);
    sbp_file_out_abort(w->out);
    return status;
}

static sbp_status score(sbp_run *run, const char *path) {
    score_writer w = {.run = run};
    sbp_status status = sbp_run_agree(run, sbp_run_writes(run) ? begin_score(&w, path) : SBP_OK);
    if (status != SBP_OK)
        return finish_score(&w, status);
    status = sbp_trainer_evaluate(&run->trainer, run->diag, run->data, write_score, &w);
    bool common = sbp_run_is_common(status) || !run->ranks;
    status = finish_score(&w, status == SBP_OK ? w.status : status);
    return common ? sbp_run_agree(run, status) : status;
}

/* ---- training --------------------------------------------------------------------------------------- */

static sbp_status agree(void *user, sbp_status status) {
    return sbp_run_agree(user, status);
}

/* --out was moved: what was trained since the last checkpoint is saved where it is now. */
static sbp_status save_moved(sbp_run *run) {
    char now[4096];
    const char *path = run->dir.path;
    if (run->ranks || sbp_rundir_is_in_place(&run->dir, now, sizeof now) || !*now ||
        run->state.step <= run->resumed_after || sbp_rundir_newest(&run->dir, INT64_MAX) >= run->state.step)
        return SBP_OK;
    SBP_TRY(sbp_run_keep_batch(run));
    run->dir.path = now;
    sbp_status status =
        sbp_checkpoint_save(run->diag, run->executor, run->plan, &run->info, &run->dir, &run->state, 0, NULL);
    run->dir.path = path;
    return status;
}

/* That --out is the directory in which the run began, before more of it is written there, and at the end. */
static sbp_status check_out(sbp_run *run) {
    char now[1];
    if (!run->out || !sbp_run_writes(run) || run->out_moved ||
        sbp_rundir_is_in_place(&run->dir, now, sizeof now))
        return SBP_OK;
    run->out_moved = true;
    if (run->train)
        SBP_TRY(save_moved(run));
    return sbp_run_check_in_place(run, &run->dir);
}

static sbp_status write_checkpoint(sbp_run *run) {
    int64_t keep = sbp_options_int(run->options, SBP_OPT_KEEP);
    const sbp_together together = {
        .ranks = run->ranks, .rank = run->world.rank, .count = run->world.count, .agree = agree, .user = run};
    sbp_status status = sbp_run_keep_batch(run);
    if (status == SBP_OK)
        status = check_out(run);
    if (run->shares_out)
        status = sbp_run_agree(run, status);
    SBP_TRY(status);
    return sbp_checkpoint_save(run->diag, run->executor, run->plan, &run->info, &run->dir, &run->state,
                               keep > 0 ? keep : 0, run->shares_out ? &together : NULL);
}

/* By all ranks, where they see the same directory. */
static sbp_status save_checkpoint(sbp_run *run) {
    return run->shares_out ? write_checkpoint(run) : sbp_run_alone(run, write_checkpoint);
}

/* *end: there are no more rows. */
static sbp_status one_step(sbp_run *run, sbp_step_report *report, bool *end) {
    *report = (sbp_step_report){.step = run->state.step + 1};
    report->learning_rate = sbp_lr_at(&run->lr, run->state.step);
    SBP_TRY(sbp_run_next_rows(run, end));
    if (*end)
        return SBP_OK;
    double start = sbp_seconds();
    SBP_TRY(sbp_run_score_rotated(run, run->data, run->rows, run->row_count));
    sbp_status status = sbp_trainer_step(&run->trainer, run->diag, run->data, run->rows, run->row_count,
                                         report->step, report->learning_rate);
    if (status == SBP_NOT_FINITE)
        sbp_fail(run->diag, status, "step %lld, with data from row %lld on: training ends%s",
                 (long long)report->step,
                 (long long)run->data->docs[sbp_dataset_doc_at(run->data, run->data->rows[run->rows[0]])].row,
                 run->out && sbp_rundir_newest(&run->dir, INT64_MAX) >= 0 ? "; the last checkpoint stays"
                                                                          : "");
    SBP_TRY(status);
    report->seconds = sbp_seconds() - start;
    run->seconds += report->seconds;
    if (run->fastest_seconds == 0 || report->seconds < run->fastest_seconds)
        run->fastest_seconds = report->seconds;
    report->tokens = run->trainer.packer.rows;
    run->state.step = report->step;
    sbp_run_end_step(run);
    report->num_tokens = run->state.num_tokens += report->tokens;
    report->epoch = epoch_of(run);
    report->memory_peak_bytes = sbp_run_peak_measured(run);
    return SBP_OK;
}

/* Losses below it may have gradients that are 0 because they are learned. */
static const double LEARNED = 1e-3;

/* Gradients that are all exactly 0 though there is a loss, which then is what it is whatever the weights are:
 * mostly those of a step that was too large, and no step leads out of there. Where ratios to older weights
 * are clipped, that is as it should be. Said once, and counted for the end. */
static void note_zero_gradients(sbp_run *run, int64_t step) {
    const sbp_trainer *t = &run->trainer;
    bool optional;
    if (t->grad_norm < 0 || t->loss < 0 || t->results[t->grad_norm] != 0 ||
        fabs(t->results[t->loss]) < LEARNED || sbp_pack_reads(run->plan->program, "old_logps", &optional))
        return;
    run->zero_gradients++;
    if (run->zero_gradients > 1 || !sbp_run_writes(run))
        return;
    sbp_progress_break();
    sbp_warn(run->diag,
             "step %lld: all gradients are exactly 0 though the loss is %.4f: nothing is learned%s. If it "
             "was not so "
             "from the beginning, a step was too large: begin again with a smaller --lr than %g",
             (long long)step, t->results[t->loss],
             run->out && sbp_rundir_newest(&run->dir, INT64_MAX) >= 0
                 ? ", and checkpoints from here on are of no use"
                 : "",
             sbp_options_double(run->options, SBP_OPT_LR));
}

static sbp_status report_step(sbp_run *run, const sbp_step_report *report) {
    sbp_status status = sbp_metrics_step(&run->metrics, report);
    note_zero_gradients(run, report->step);
    run->state.loss_sum = run->metrics.loss_sum;
    run->state.loss_count = run->metrics.loss_count;
    return status == SBP_OK ? check_out(run) : status;
}

/* Whether an evaluation follows the steps done, other than the one at the end. */
static bool is_evaluated(const sbp_run *run) {
    int64_t every = sbp_options_int(run->options, SBP_OPT_EVAL_EVERY), step = run->state.step;
    return run->eval_count > 0 && (step == 0 || (every > 0 && step % every == 0 && step < run->total_steps));
}

/* The last whose lines stay in metrics.jsonl: what will be evaluated (again) goes. */
static int64_t last_evaluation(const sbp_run *run) {
    if (run->state.step == run->total_steps)
        return run->state.step - 1;
    return is_evaluated(run) ? run->state.evaluated : run->state.step;
}

static sbp_status no_steps(const sbp_run *run) {
    return sbp_fail(run->diag, SBP_INPUT, "standard input: no step has rows that can be trained on");
}

/* SBP_INTERRUPTED or SBP_TERMINATED when a signal came; weights are then those after state.step steps. */
static sbp_status train(sbp_run *run) {
    int64_t save_every = sbp_options_int(run->options, SBP_OPT_SAVE_EVERY);
    int64_t saved = run->state.step;
    sbp_status status = SBP_OK;
    sbp_step_report report;
    bool end = false;
    SBP_TRY(sbp_run_agree(run, SBP_OK));
    while (status == SBP_OK && !end && run->state.step < run->total_steps && !run->signal) {
        status = one_step(run, &report, &end);
        if (!sbp_run_is_common(status))
            return status;
        if (status == SBP_OK && !end)
            status = report_step(run, &report);
        status = sbp_run_agree(run, status);
        bool last = end || run->state.step == run->total_steps;
        if (status == SBP_OK && !end && is_evaluated(run))
            status = evaluate(run);
        if (status == SBP_OK && run->out && save_every > 0 && saved < run->state.step &&
            (last || run->state.step % save_every == 0)) {
            status = save_checkpoint(run);
            saved = run->state.step;
        }
        if (status == SBP_OK && !end && run->state.inner == 0 &&
            sbp_options_given(run->options, SBP_OPT_PUBLISH))
            status = sbp_run_alone(run, sbp_run_publish);
    }
    if (end && run->total_steps < SBP_STEPS_UNKNOWN)
        sbp_warn(run->diag, "the stream has ended after %lld of %lld steps", (long long)run->state.step,
                 (long long)run->total_steps);
    if (end && run->state.step == 0)
        return no_steps(run);
    if (end)
        run->total_steps = run->state.step;
    if (!run->signal || (status != SBP_OK && status != SBP_INTERRUPTED))
        return status;
    sbp_progress_break();
    if (run->out && saved < run->state.step)
        SBP_TRY(save_checkpoint(run));
    char of[40] = "";
    if (run->total_steps < SBP_STEPS_UNKNOWN)
        snprintf(of, sizeof of, " of %lld", (long long)run->total_steps);
    sbp_note(run->diag, "interrupted after %lld%s steps%s", (long long)run->state.step, of,
             run->out && run->state.step > 0 ? "; --resume goes on from there" : "");
    return run->signal;
}

/* Weights to which adapters were added, as the files have them: one may be several of the plan. */
static int64_t count_merged(const sbp_plan *plan) {
    const sbp_tensor_table *table = plan->tensors;
    int64_t count = 0;
    for (int32_t t = 0; t < table->count; t++) {
        bool first = table->tensors[t].low_rank.a != NULL;
        for (int32_t k = 0; k < t && first; k++)
            first = !table->tensors[k].low_rank.a ||
                    strcmp(table->tensors[k].recipes[0].source, table->tensors[t].recipes[0].source) != 0;
        count += first;
    }
    return count;
}

/* "merged 32 modules of ADAPTER into MODEL: OUT" */
static sbp_status say_merged(const sbp_run *run) {
    const char *path, *adapter;
    uint64_t seed;
    SBP_TRY(sbp_run_find_weights(run, &path, &adapter, &seed));
    long long count = count_merged(run->plan);
    bool trained = run->train && run->state.step > 0;
    sbp_note(run->diag, "merged %lld module%s of %s into %s: %s", count, count == 1 ? "" : "s",
             trained || !adapter ? "the adapter" : adapter, path ? path : "random weights", run->out);
    return SBP_OK;
}

static sbp_status save_result(sbp_run *run) {
    if (run->info.merge)
        run->info.adapter_factor = sbp_options_double(run->options, SBP_OPT_ADAPTER);
    SBP_TRY(check_out(run));
    SBP_TRY(sbp_output_save_model(run->diag, run->executor, run->plan, &run->info, run->out, false));
    return run->info.merge ? say_merged(run) : SBP_OK;
}

static sbp_status train_and_save(sbp_run *run) {
    if (is_evaluated(run) && run->state.evaluated < run->state.step) /* or a signal came between */
        SBP_TRY(say_interrupted(run, evaluate(run), "evaluating"));
    SBP_TRY(train(run));
    if (run->eval_count > 0 && run->state.step > 0)
        SBP_TRY(say_interrupted(run, evaluate(run), "evaluating"));
    if (!run->out || run->state.step == 0)
        return SBP_OK;
    return sbp_run_alone(run, save_result);
}

/* ---- the device ------------------------------------------------------------------------------------- */

/* What was given, for messages: a plan, or a model, whose plan has a passing name. */
static const char *given(const sbp_run *run) {
    return run->model ? run->model : run->plan_path;
}

static sbp_status check_device(const sbp_run *run) {
    const sbp_device_class *class = sbp_device_find(run->info.meta.backend);
    int64_t available = sbp_machine_memory_available(), planned = sbp_run_peak_planned(run), all;
    int64_t device = sbp_options_int(run->options, SBP_OPT_DEVICE);
    int32_t ranks = run->world.local_count; /* they share the memory of their host */
    char need[32], limit[100], of[60] = "";
    if (!class)
        return sbp_fail(run->diag, SBP_MACHINE, "'%s' is for %s, which this sbprun cannot run on", given(run),
                        run->info.meta.backend);
    if (device > 0 && !class->count)
        return sbp_fail(run->diag, SBP_MACHINE, "--device %lld: there is one %s device, number 0",
                        (long long)device, class->name);
    if (!sbp_mul_i64(planned, ranks, &all))
        all = INT64_MAX;
    if (ranks > 1)
        snprintf(of, sizeof of, " for each of the %d ranks on this host", (int)ranks);
    if (sbp_backend_is_a(run->info.meta.backend, SBP_BACKEND_HOST) && available > 0 && all > available)
        return sbp_fail(run->diag, SBP_MACHINE, "'%s' needs %s of memory%s: %s", given(run),
                        sbp_format_bytes(need, sizeof need, (double)planned), of,
                        sbp_machine_memory_text(limit, sizeof limit));
    planned = run->plan->program->arena_bytes[SBP_HOST];
    if (!sbp_mul_i64(planned, ranks, &all))
        all = INT64_MAX;
    if (!sbp_backend_is_a(run->info.meta.backend, SBP_BACKEND_HOST) && planned > 0 && available > 0 &&
        all > available)
        return sbp_fail(run->diag, SBP_MACHINE, "'%s' needs %s of the host's memory%s: %s", given(run),
                        sbp_format_bytes(need, sizeof need, (double)planned), of,
                        sbp_machine_memory_text(limit, sizeof limit));
    return SBP_OK;
}

static sbp_status check_optimizer(const sbp_run *run) {
    if (!run->train || sbp_trainer_can_step(run->plan->program))
        return SBP_OK;
    return sbp_fail(
        run->diag, SBP_USAGE,
        "'%s' has no optimizer (it was compiled with --optimizer none, or trains nothing): it can only "
        "evaluate, score and dump gradients",
        given(run));
}

/* Whether there is something to begin with. */
static sbp_status check_weights(const sbp_run *run) {
    const char *path, *adapter;
    uint64_t seed;
    sbp_weights *weights;
    if (sbp_options_on(run->options, SBP_OPT_RESUME) && run->dir.fd >= 0 &&
        sbp_rundir_newest(&run->dir, INT64_MAX) >= 0)
        return SBP_OK;
    SBP_TRY(sbp_run_find_weights(run, &path, &adapter, &seed));
    if (!path)
        return SBP_OK;
    SBP_TRY(sbp_weights_open(run->arena, run->diag, path, &weights));
    sbp_weights_close(weights);
    if (!adapter)
        return SBP_OK;
    SBP_TRY(sbp_weights_open(run->arena, run->diag, sbp_run_adapter_file(run->arena, adapter), &weights));
    sbp_weights_close(weights);
    return SBP_OK;
}

sbp_status sbp_run_check_start(const sbp_run *run) {
    SBP_TRY(check_device(run));
    SBP_TRY(check_optimizer(run));
    SBP_TRY(check_weights(run));
    return sbp_run_check_space(run);
}

/* --device; else ranks take turns among the devices of their host. */
static int32_t device_index(const sbp_run *run, const sbp_device_class *class) {
    int32_t count = 1;
    if (sbp_options_given(run->options, SBP_OPT_DEVICE) || !run->ranks || !class->count ||
        class->count(NULL, &count) != SBP_OK || count < 1)
        return (int32_t)sbp_options_int(run->options, SBP_OPT_DEVICE);
    return run->world.local_rank % count;
}

static sbp_status open_device(sbp_run *run) {
    const sbp_device_class *class = sbp_device_find(run->info.meta.backend);
    int64_t planned = sbp_run_peak_planned(run);
    sbp_device_options options = {.threads = sbp_run_threads(run),
                                  .index = device_index(run, class),
                                  .code = run->plan->kernels,
                                  .code_bytes = run->plan->kernels_bytes,
                                  .offload_dir = sbp_run_offload_dir(run),
                                  .ranks = run->ranks,
                                  .tf32 = run->info.tf32,
                                  .native_sums = !run->info.deterministic};
    char need[32], have[32];
    if (sbp_options_int(run->options, SBP_OPT_THREADS) > options.threads)
        sbp_note(run->diag, "--threads %lld: %d are used, more would only wait for the %d core%s",
                 (long long)sbp_options_int(run->options, SBP_OPT_THREADS), options.threads,
                 sbp_machine_cores(), sbp_machine_cores() == 1 ? "" : "s");
    if (run->info.memory_bytes > 0 && planned > run->info.memory_bytes &&
        options.threads > run->info.meta.threads && run->info.meta.thread_bytes > 0)
        sbp_note(run->diag,
                 "with %d threads this takes %s; '%s' was made for --memory %s and %lld threads "
                 "(sbpc compile --threads %d plans for more)",
                 options.threads, sbp_format_bytes(need, sizeof need, (double)planned), run->plan_path,
                 sbp_format_bytes(have, sizeof have, (double)run->info.memory_bytes),
                 (long long)run->info.meta.threads, options.threads);
    SBP_TRY(sbp_executor_create(run->diag, class, &options, run->plan->program, &run->executor));
    const char *profile = getenv("SBP_PROFILE");
    if (!profile || !*profile || strcmp(profile, "0") == 0)
        return SBP_OK;
    run->profile = sbp_profile_create();
    if (!run->profile)
        return sbp_fail(run->diag, SBP_MACHINE, "out of memory");
    sbp_executor_set_profile(run->executor, run->profile);
    return SBP_OK;
}

/* Settings of the objective are scalars of the program, or of its @prepare, that are called as options. */
static void set_setting(sbp_run *run, const char *scalar) {
    const sbp_option *option = sbp_option_setting(scalar);
    if (option)
        sbp_trainer_set(&run->trainer, scalar, sbp_options_double(run->options, option->id));
}

static void set_settings(sbp_run *run) {
    const sbp_program *program = run->plan->program;
    for (int32_t s = 0; s < program->scalar_count; s++)
        set_setting(run, program->scalars[s]);
    for (int32_t s = 0; program->prepare && s < program->prepare->scalar_count; s++)
        set_setting(run, program->prepare->scalars[s]);
}

static sbp_status prepare_trainer(sbp_run *run) {
    sbp_trainer *t = &run->trainer;
    double betas[2];
    SBP_TRY(sbp_trainer_init(t, run->diag, run->executor));
    SBP_TRY(sbp_run_shared(run, &t->packer.counted));
    set_settings(run);
    sbp_options_pair(run->options, SBP_OPT_BETAS, betas);
    t->beta1 = betas[0];
    t->beta2 = betas[1];
    t->eps = sbp_options_double(run->options, SBP_OPT_EPS);
    t->momentum = sbp_options_double(run->options, SBP_OPT_MOMENTUM);
    t->weight_decay = sbp_options_double(run->options, SBP_OPT_WEIGHT_DECAY);
    t->max_grad_norm = run->info.max_grad_norm;
    t->packer.most_parts = run->info.most_parts;
    t->seed = (uint64_t)sbp_options_int(run->options, SBP_OPT_SEED);
    t->interrupted = sbp_interrupted;
    t->ranks = run->ranks;
    return sbp_trainer_reset(t, run->diag);
}

static sbp_status load_first(sbp_run *run) {
    SBP_TRY(sbp_run_load_weights(run));
    return sbp_params_hash_base(run->executor, run->plan, &run->state.base, run->diag);
}

/* The checkpoint to go on from, which all ranks see; NULL: none. */
static sbp_status find_checkpoint(sbp_run *run, const char **found) {
    *found = NULL;
    if (!run->out || !sbp_options_on(run->options, SBP_OPT_RESUME))
        return SBP_OK;
    SBP_TRY(sbp_run_check_shared(run, true));
    if (sbp_run_writes(run))
        *found = sbp_checkpoint_find(run->arena, &run->dir);
    SBP_TRY(sbp_run_share_text(run, found));
    if (!*found)
        sbp_note(run->diag, "there is no checkpoint in '%s': the run begins", run->out);
    return SBP_OK;
}

/* Weights from a checkpoint, or from the beginning. */
static sbp_status begin(sbp_run *run, const char *found) {
    if (!found)
        return load_first(run);
    if (run->info.meta.adapter || sbp_params_keep_base(run->plan)) /* checkpoints do not have the base */
        SBP_TRY(load_first(run));
    uint64_t products = run->state.products;
    SBP_TRY(sbp_run_agree(run, sbp_checkpoint_verify(run->diag, found, run->world.rank, run->world.count)));
    SBP_TRY(sbp_checkpoint_load(run->diag, run->executor, run->plan, found, &run->state));
    if (run->state.products != products)
        sbp_note(run->diag,
                 "'%s' was computed with other algorithms of matmuls (hash %016llx, here %016llx): sums "
                 "round differently",
                 found, (unsigned long long)run->state.products, (unsigned long long)products);
    run->state.products = products;
    run->resumed_after = run->state.step;
    sbp_sampler_seek(&run->sampler, run->state.epoch, run->state.at);
    if (run->state.inner > 0 && run->stream.steps) {
        sbp_note(
            run->diag,
            "%lld of %lld steps were done with a batch of the stream that is gone: going on with the next",
            (long long)run->state.inner, (long long)run->inner_epochs);
        run->state.inner = 0;
    }
    sbp_note(run->diag, "going on after step %lld, from '%s'", (long long)run->state.step, found);
    if (run->began_steps > 0 && run->began_steps != run->total_steps && run->total_steps < SBP_STEPS_UNKNOWN)
        sbp_note(run->diag, "the run had %lld steps, now %lld: learning rates are those of %lld from here on",
                 (long long)run->began_steps, (long long)run->total_steps, (long long)run->total_steps);
    return SBP_OK;
}

static sbp_status dump_gradients(sbp_run *run, const char *path) {
    bool end;
    if (!sbp_trainer_has_gradients(run->plan->program))
        return sbp_fail(run->diag, SBP_INPUT, "'%s' trains nothing: there are no gradients", run->plan_path);
    SBP_TRY(sbp_run_next_rows(run, &end));
    if (end)
        return no_steps(run);
    SBP_TRY(sbp_run_score_rotated(run, run->data, run->rows, run->row_count));
    SBP_TRY(sbp_trainer_dump_gradients(&run->trainer, run->diag, run->plan, run->data, run->rows,
                                       run->row_count, path, sbp_output_dtype(&run->info)));
    return sbp_run_print_gradients(run, path);
}

static sbp_status open_metrics(sbp_run *run, const char *resumed) {
    const char *path = run->out && (run->train || run->eval_count > 0) && sbp_run_writes(run)
                           ? sbp_file_join(run->arena, run->out, "metrics.jsonl")
                           : NULL;
    SBP_TRY(sbp_metrics_open(&run->metrics, run->diag, &run->trainer, path, resumed ? run->state.step : -1,
                             last_evaluation(run),
                             run->total_steps < SBP_STEPS_UNKNOWN ? run->total_steps : 0));
    run->metrics.loss_sum = run->state.loss_sum;
    run->metrics.loss_count = run->state.loss_count;
    run->metrics.quiet = !sbp_run_writes(run) || sbp_options_on(run->options, SBP_OPT_QUIET);
    if (sbp_options_given(run->options, SBP_OPT_LOG_EVERY))
        run->metrics.log_every = sbp_options_int(run->options, SBP_OPT_LOG_EVERY);
    return SBP_OK;
}

/* Who writes checkpoints. */
static sbp_status find_writers(sbp_run *run) {
    SBP_TRY(sbp_run_check_shared(run, false));
    if (run->ranks && run->out && !run->shares_out)
        sbp_note(
            run->diag,
            "not all ranks see '%s': rank 0 writes checkpoints alone, which takes longer; --resume needs a "
            "file system that their hosts share",
            run->out);
    return SBP_OK;
}

static sbp_status act(sbp_run *run, const char *resumed) {
    const char *dump = sbp_options_text(run->options, SBP_OPT_DUMP_GRADIENTS),
               *scores = sbp_options_text(run->options, SBP_OPT_SCORE);
    if (!dump)
        SBP_TRY(sbp_run_begin_out(run, resumed));
    if (!dump && run->train && !resumed)
        SBP_TRY(find_writers(run));
    SBP_TRY(sbp_run_agree(run, sbp_run_begin_publish(run)));
    SBP_TRY(say_interrupted(run, sbp_run_reference(run, resumed), "scoring by the reference"));
    if (dump)
        return dump_gradients(run, dump);
    SBP_TRY(sbp_run_agree(run, open_metrics(run, resumed)));
    if (run->train)
        SBP_TRY(train_and_save(run));
    else if (run->info.merge)
        SBP_TRY(sbp_run_alone(run, save_result));
    else if (run->eval_count > 0)
        SBP_TRY(say_interrupted(run, evaluate(run), "evaluating"));
    if (scores)
        SBP_TRY(say_interrupted(run, score(run, scores), "scoring"));
    if (scores)
        sbp_note(run->diag, "the log-probabilities of %lld documents are in %s",
                 (long long)run->data->doc_count, scores);
    if (run->train && run->total_steps == 0 && !run->info.merge)
        sbp_note(run->diag, "0 steps: nothing was trained, no model is written");
    SBP_TRY(sbp_run_agree(run, sbp_metrics_close(&run->metrics)));
    SBP_TRY(sbp_run_agree(run, check_out(run)));
    return sbp_run_agree(run, sbp_run_print_summary(run));
}

static sbp_status prepare_device(sbp_run *run) {
    SBP_TRY(open_device(run));
    SBP_TRY(sbp_run_tune(run));
    SBP_TRY(prepare_trainer(run));
    return check_optimizer(run);
}

sbp_status sbp_run_on_device(sbp_run *run) {
    const char *resumed;
    sbp_interrupt_install();
    SBP_TRY(sbp_run_agree(run, check_device(run))); /* before one of the ranks takes memory */
    SBP_TRY(sbp_run_agree(run, prepare_device(run)));
    if (run->ranks)
        SBP_TRY(sbp_run_agree(run, sbp_executor_meet(run->executor, run->diag)));
    SBP_TRY(find_checkpoint(run, &resumed));
    SBP_TRY(sbp_run_agree(run, begin(run, resumed)));
    SBP_TRY(sbp_run_agree(run, sbp_run_writes(run) ? sbp_run_check_space(run) : SBP_OK));
    sbp_run_disk_traffic(run, &run->disk_read_before, &run->disk_written_before);
    sbp_status status = act(run, resumed);
    if (status == SBP_IO) /* perhaps why */
        SBP_TRY(check_out(run));
    return status;
}
