/* run_train.c: the part of a run that needs the device: weights, evaluations, training, results. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/backends.h"
#include "backends/devices.h"
#include "ir/base/machine.h"
#include "runtime/cli/sbprun/interrupt.h"
#include "runtime/cli/sbprun/outputs.h"
#include "runtime/cli/sbprun/rl.h"
#include "runtime/cli/sbprun/run_samples.h"

/* ---- evaluations ----------------------------------------------------------------------------------- */

static double epoch_of(const sbp_inputs *inputs, const sbp_session *session) {
    if (inputs->rl)
        return (double)session->state.step / (double)(session->inner_epochs * sbp_rl_epoch(inputs->rl));
    if (!inputs->data || inputs->steps_per_epoch == 0)
        return 0;
    if (session->state.batch_tokens > 0)
        return (double)session->state.epoch + (double)session->state.at / (double)inputs->data->row_count;
    return (double)session->state.epoch + (double)sbp_ceil_div(session->state.at, session->state.batch_rows) /
                                              (double)inputs->steps_per_epoch;
}

/* *compared: the number by which models are; *written: how writing the metrics went. */
static sbp_status evaluate_files(const sbp_world *world, const sbp_inputs *inputs, sbp_session *session,
                                 sbp_outputs *outputs, double *compared, sbp_status *written) {
    *written = SBP_OK;
    for (int32_t i = 0; i < inputs->eval_count; i++) {
        SBP_TRY(sbp_run_score_evaluation(world, session, inputs->evals[i]));
        SBP_TRY(
            sbp_run_score_mismatched(world, session, inputs->evals[i], NULL, inputs->evals[i]->row_count));
        SBP_TRY(sbp_trainer_evaluate(&session->trainer, world->diag, inputs->evals[i], NULL, NULL));
        if (i == session->best.eval)
            *compared = sbp_run_compared(session);
        if (i == 0 && session->trainer.loss >= 0)
            outputs->eval_loss = session->trainer.results[session->trainer.loss];
        if (*written == SBP_OK)
            *written = sbp_metrics_evaluation(&outputs->metrics, session->state.step,
                                              epoch_of(inputs, session), sbp_run_eval_name(world, i));
    }
    return SBP_OK;
}

static sbp_status evaluate(sbp_world *world, const sbp_inputs *inputs, sbp_session *session,
                           sbp_outputs *outputs) {
    const bool again = session->state.evaluated == session->state.step;
    double compared = NAN;
    sbp_status written, status = evaluate_files(world, inputs, session, outputs, &compared, &written);
    if (!sbp_world_is_common(status))
        return status;
    SBP_TRY(sbp_world_agree(world, status == SBP_OK ? written : status));
    session->state.evaluated = session->state.step;
    return sbp_run_count_evaluation(world, session, compared, again);
}

/* A signal outside of training. */
static sbp_status say_interrupted(sbp_world *world, const sbp_session *session, const sbp_outputs *outputs,
                                  sbp_status status, const char *what) {
    if (status != SBP_INTERRUPTED)
        return status;
    SBP_TRY(sbp_world_agree(world, SBP_OK)); /* which signal */
    sbp_progress_break();
    sbp_note(world->diag, "interrupted while %s%s", what,
             session->train && outputs->out && session->state.step > 0 ? "; --resume goes on from there"
                                                                       : "");
    return world->signal;
}

/* ---- training --------------------------------------------------------------------------------------- */

static sbp_status agree(void *user, sbp_status status) {
    return sbp_world_agree(user, status);
}

/* --out was moved: what was trained since the last checkpoint is saved where it is now. */
static sbp_status save_moved(const sbp_world *world, const sbp_inputs *inputs, sbp_session *session,
                             sbp_outputs *outputs) {
    char now[4096];
    const char *path = outputs->dir.path;
    if (world->ranks || sbp_rundir_is_in_place(&outputs->dir, now, sizeof now) || !*now ||
        session->state.step <= session->resumed_after ||
        sbp_rundir_newest(&outputs->dir, INT64_MAX) >= session->state.step)
        return SBP_OK;
    SBP_TRY(sbp_run_keep_batch(world, inputs, session));
    outputs->dir.path = now;
    sbp_status status = sbp_checkpoint_save(world->diag, world->executor, session->plan, &session->info,
                                            &outputs->dir, &session->state, (sbp_keep){0}, NULL);
    outputs->dir.path = path;
    return status;
}

/* That --out is the directory in which the run began, before more of it is written there, and at the end. */
static sbp_status check_out(const sbp_world *world, const sbp_inputs *inputs, sbp_session *session,
                            sbp_outputs *outputs) {
    char now[1];
    if (!outputs->out || !sbp_world_writes(world) || outputs->out_moved ||
        (sbp_rundir_is_in_place(&outputs->dir, now, sizeof now) && sbp_rundir_has_lock(&outputs->dir)))
        return SBP_OK;
    outputs->out_moved = true;
    if (session->train)
        SBP_TRY(save_moved(world, inputs, session, outputs));
    return sbp_run_check_in_place(world, outputs, &outputs->dir);
}

static sbp_status write_checkpoint(sbp_world *world, const sbp_inputs *inputs, sbp_session *session,
                                   sbp_outputs *outputs) {
    const sbp_together together = {.ranks = world->ranks,
                                   .rank = world->place.rank,
                                   .count = world->place.count,
                                   .agree = agree,
                                   .user = world};
    sbp_status status = sbp_run_keep_batch(world, inputs, session);
    if (status == SBP_OK)
        status = check_out(world, inputs, session, outputs);
    if (outputs->shared)
        status = sbp_world_agree(world, status);
    SBP_TRY(status);
    return sbp_checkpoint_save(world->diag, world->executor, session->plan, &session->info, &outputs->dir,
                               &session->state, sbp_run_keeps(world, session),
                               outputs->shared ? &together : NULL);
}

/* By all ranks, where they see the same directory. */
static sbp_status save_checkpoint(sbp_world *world, const sbp_inputs *inputs, sbp_session *session,
                                  sbp_outputs *outputs) {
    return outputs->shared ? write_checkpoint(world, inputs, session, outputs)
                           : sbp_world_alone(world, sbp_world_writes(world)
                                                        ? write_checkpoint(world, inputs, session, outputs)
                                                        : SBP_OK);
}

/* *end: there are no more rows. */
static sbp_status one_step(sbp_world *world, sbp_inputs *inputs, sbp_session *session, sbp_outputs *outputs,
                           sbp_step_report *report, bool *end) {
    *report = (sbp_step_report){.step = session->state.step + 1};
    report->learning_rate = sbp_lr_at(&session->lr, session->state.step);
    SBP_TRY(sbp_run_next_rows(world, inputs, session, outputs, end));
    if (*end)
        return SBP_OK;
    double start = sbp_seconds();
    SBP_TRY(sbp_run_score_mismatched(world, session, inputs->data, inputs->rows, inputs->row_count));
    sbp_status status = sbp_trainer_step(&session->trainer, world->diag, inputs->data, inputs->rows,
                                         inputs->row_count, report->step, report->learning_rate);
    if (status == SBP_NOT_FINITE)
        sbp_fail(world->diag, status, "step %lld, with data from row %lld on: training ends%s",
                 (long long)report->step,
                 (long long)inputs->data
                     ->docs[sbp_dataset_doc_at(inputs->data, inputs->data->rows[inputs->rows[0]])]
                     .row,
                 outputs->out && sbp_rundir_newest(&outputs->dir, INT64_MAX) >= 0
                     ? "; the last checkpoint stays"
                     : "");
    SBP_TRY(status);
    report->seconds = sbp_seconds() - start;
    outputs->seconds += report->seconds;
    if (outputs->fastest_seconds == 0 || report->seconds < outputs->fastest_seconds)
        outputs->fastest_seconds = report->seconds;
    report->utilisation =
        sbp_utilisation_of(&outputs->utilisation, &session->trainer.packer, inputs->data, report->seconds);
    outputs->utilised += isfinite(report->utilisation) ? report->utilisation * report->seconds : 0;
    report->tokens = session->trainer.packer.rows;
    session->state.step = report->step;
    sbp_run_end_step(inputs, session);
    report->num_tokens = session->state.num_tokens += report->tokens;
    report->epoch = epoch_of(inputs, session);
    report->memory_peak_bytes = sbp_run_peak_measured(world);
    return SBP_OK;
}

/* Losses below it may have gradients that are 0 because they are learned. */
static const double LEARNED = 1e-3;

/* Says that all gradients are exactly 0 although the loss is not: it does not depend on the trained weights.
 * Mostly a step before was too large, and no step leads out of there. Where ratios to older weights
 * are clipped, that is as it should be. Said once, and counted for the end. */
static void note_zero_gradients(const sbp_world *world, sbp_session *session, sbp_outputs *outputs,
                                int64_t step) {
    const sbp_trainer *t = &session->trainer;
    bool optional;
    if (t->grad_norm < 0 || t->loss < 0 || t->results[t->grad_norm] != 0 ||
        fabs(t->results[t->loss]) < LEARNED || sbp_pack_reads(session->plan->program, "old_logps", &optional))
        return;
    outputs->zero_gradients++;
    if (outputs->zero_gradients > 1 || !sbp_world_writes(world))
        return;
    sbp_progress_break();
    sbp_warn(world->diag,
             "step %lld: all gradients are exactly 0 though the loss is %.4f: nothing is learned%s. If it "
             "was not so "
             "from the beginning, a step was too large: begin again with a smaller --lr than %g",
             (long long)step, t->results[t->loss],
             outputs->out && sbp_rundir_newest(&outputs->dir, INT64_MAX) >= 0
                 ? ", and checkpoints from here on are of no use"
                 : "",
             sbp_options_double(world->options, SBP_OPT_LR));
}

static sbp_status report_step(const sbp_world *world, const sbp_inputs *inputs, sbp_session *session,
                              sbp_outputs *outputs, const sbp_step_report *report) {
    sbp_status status = sbp_metrics_step(&outputs->metrics, report);
    note_zero_gradients(world, session, outputs, report->step);
    session->state.loss_sum = outputs->metrics.loss_sum;
    session->state.loss_count = outputs->metrics.loss_count;
    return status == SBP_OK ? check_out(world, inputs, session, outputs) : status;
}

/* Whether an evaluation follows the steps done, other than the one at the end. */
static bool is_evaluated(const sbp_inputs *inputs, const sbp_session *session) {
    int64_t every = session->eval_every, step = session->state.step;
    return inputs->eval_count > 0 &&
           (step == 0 || (every > 0 && step % every == 0 && step < session->total_steps &&
                          (double)step >= session->eval_after));
}

/* Whether models are compared, so that the last one is before its checkpoint is written. */
static bool is_compared(const sbp_session *session) {
    return session->best.saves || session->best.stops;
}

/* Whether the evaluation of the last step is done. */
static bool is_evaluated_at_end(const sbp_session *session) {
    return is_compared(session) && session->state.evaluated == session->state.step;
}

/* The last whose lines stay in metrics.jsonl: what will be evaluated (again) goes. */
static int64_t last_evaluation(const sbp_inputs *inputs, const sbp_session *session) {
    if (session->state.step == session->total_steps)
        return session->state.step - !is_evaluated_at_end(session);
    return is_evaluated(inputs, session) ? session->state.evaluated : session->state.step;
}

static sbp_status no_steps(const sbp_world *world) {
    return sbp_fail(world->diag, SBP_INPUT, "standard input: no step has rows that can be trained on");
}

/* Whether a checkpoint is written after the steps done, the newest of which is of `saved` steps. */
static bool is_saved(const sbp_session *session, int64_t saved, bool last) {
    const int64_t every = session->save_every, step = session->state.step;
    if (saved == step)
        return false;
    return (every > 0 && (last || step % every == 0)) ||
           (session->best.saves && session->state.best.step == step);
}

static void say_stopped(const sbp_world *world, const sbp_session *session) {
    char of[40] = "", by[60] = "";
    const sbp_best_rule *rule = &session->best.rule;
    if (session->total_steps < SBP_STEPS_UNKNOWN)
        snprintf(of, sizeof of, " of %lld", (long long)session->total_steps);
    if (rule->threshold > 0)
        snprintf(by, sizeof by, ", by more than %g", rule->threshold);
    sbp_note(world->diag, "stopped early after %lld%s steps: %s has not got better%s in %lld evaluation%s",
             (long long)session->state.step, of, session->best.name, by, (long long)rule->patience,
             rule->patience == 1 ? "" : "s");
}

/* SBP_INTERRUPTED or SBP_TERMINATED when a signal came; weights are then those after state.step steps. */
static sbp_status train(sbp_world *world, sbp_inputs *inputs, sbp_session *session, sbp_outputs *outputs) {
    int64_t saved = session->state.step;
    sbp_status status = SBP_OK;
    sbp_step_report report;
    bool end = false;
    SBP_TRY(sbp_world_agree(world, SBP_OK));
    while (status == SBP_OK && !end && session->state.step < session->total_steps && !world->signal &&
           !sbp_run_stops_early(session)) {
        status = one_step(world, inputs, session, outputs, &report, &end);
        if (!sbp_world_is_common(status))
            return status;
        if (status == SBP_OK && !end)
            status = report_step(world, inputs, session, outputs, &report);
        status = sbp_world_agree(world, status);
        bool last = end || session->state.step == session->total_steps;
        if (status == SBP_OK &&
            ((!end && is_evaluated(inputs, session)) ||
             (last && is_compared(session) && session->state.evaluated < session->state.step)))
            status = evaluate(world, inputs, session, outputs);
        if (status == SBP_OK && !end && !last)
            status = sbp_samples_take(inputs->samples, session, outputs, false);
        if (status == SBP_OK && outputs->out &&
            is_saved(session, saved, last || sbp_run_stops_early(session))) {
            status = save_checkpoint(world, inputs, session, outputs);
            saved = session->state.step;
        }
        if (status == SBP_OK && !end && session->state.inner == 0 &&
            sbp_options_given(world->options, SBP_OPT_PUBLISH))
            status = sbp_world_alone(world, sbp_world_writes(world) ? sbp_run_publish(world, session, outputs)
                                                                    : SBP_OK);
    }
    if (end && session->total_steps < SBP_STEPS_UNKNOWN)
        sbp_warn(world->diag, "the stream has ended after %lld of %lld steps", (long long)session->state.step,
                 (long long)session->total_steps);
    if (end && session->state.step == 0)
        return no_steps(world);
    if (end)
        session->total_steps = session->state.step;
    if (status == SBP_OK && sbp_run_stops_early(session) && !world->signal)
        say_stopped(world, session);
    if (!world->signal || (status != SBP_OK && status != SBP_INTERRUPTED))
        return status;
    sbp_progress_break();
    if (outputs->out && saved < session->state.step)
        SBP_TRY(save_checkpoint(world, inputs, session, outputs));
    char of[40] = "";
    if (session->total_steps < SBP_STEPS_UNKNOWN)
        snprintf(of, sizeof of, " of %lld", (long long)session->total_steps);
    sbp_note(world->diag, "interrupted after %lld%s steps%s", (long long)session->state.step, of,
             outputs->out && session->state.step > 0 ? "; --resume goes on from there" : "");
    return world->signal;
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
static sbp_status say_merged(const sbp_world *world, const sbp_session *session, const sbp_outputs *outputs) {
    const char *path, *adapter;
    uint64_t seed;
    SBP_TRY(sbp_run_find_weights(world, session, &path, &adapter, &seed));
    long long count = count_merged(session->plan);
    bool trained = session->train && session->state.step > 0;
    sbp_note(world->diag, "merged %lld module%s of %s into %s: %s", count, count == 1 ? "" : "s",
             trained || !adapter ? "the adapter" : adapter, path ? path : "random weights", outputs->out);
    return SBP_OK;
}

static sbp_status save_result(const sbp_world *world, const sbp_inputs *inputs, sbp_session *session,
                              sbp_outputs *outputs) {
    if (session->info.merge)
        session->info.adapter_factor = sbp_options_double(world->options, SBP_OPT_ADAPTER);
    SBP_TRY(check_out(world, inputs, session, outputs));
    SBP_TRY(sbp_output_save_model(world->diag, world->executor, session->plan, &session->info, outputs->out,
                                  NULL));
    SBP_TRY(sbp_run_write_card(world, inputs, session, outputs));
    if (session->state.step > 0)
        SBP_TRY(sbp_run_write_page(world, session, outputs));
    return session->info.merge ? say_merged(world, session, outputs) : SBP_OK;
}

static sbp_status train_and_save(sbp_world *world, sbp_inputs *inputs, sbp_session *session,
                                 sbp_outputs *outputs) {
    if (is_evaluated(inputs, session) &&
        session->state.evaluated < session->state.step) /* or a signal came between */
        SBP_TRY(say_interrupted(world, session, outputs, evaluate(world, inputs, session, outputs),
                                "evaluating"));
    if (session->state.step == 0)
        SBP_TRY(say_interrupted(world, session, outputs,
                                sbp_samples_take(inputs->samples, session, outputs, true), "sampling"));
    SBP_TRY(train(world, inputs, session, outputs));
    if (session->state.step > 0)
        SBP_TRY(say_interrupted(world, session, outputs,
                                sbp_samples_take(inputs->samples, session, outputs, true), "sampling"));
    if (is_evaluated_at_end(session) && session->best.is_loss) /* by an earlier process, perhaps */
        outputs->eval_loss = session->state.best.last;
    else if (inputs->eval_count > 0 && session->state.step > 0 && !is_evaluated_at_end(session))
        SBP_TRY(say_interrupted(world, session, outputs, evaluate(world, inputs, session, outputs),
                                "evaluating"));
    if (!outputs->out || session->state.step == 0)
        return SBP_OK;
    SBP_TRY(sbp_run_load_best(world, session, outputs));
    SBP_TRY(sbp_world_alone(world,
                            sbp_world_writes(world) ? save_result(world, inputs, session, outputs) : SBP_OK));
    if (sbp_world_writes(world))
        sbp_run_keep_best(world, session, outputs);
    return SBP_OK;
}

/* ---- the device ------------------------------------------------------------------------------------- */

/* What was given, for messages: a plan, or a model, whose plan has a passing name. */
static const char *given(const sbp_session *session) {
    return session->model ? session->model : session->plan_path;
}

static sbp_status check_device(const sbp_world *world, const sbp_session *session) {
    const sbp_device_class *class = sbp_device_find(session->info.meta.backend);
    int64_t available = sbp_machine_memory_available(), planned = sbp_run_peak_planned(world, session), all;
    int64_t device = sbp_options_int(world->options, SBP_OPT_DEVICE);
    int32_t ranks = world->place.local_count; /* they share the memory of their host */
    bool on_host = sbp_backend_is_a(session->info.meta.backend, SBP_BACKEND_HOST);
    char need[32], limit[100], of[60] = "";
    if (!class)
        return sbp_fail(world->diag, SBP_MACHINE, "'%s' is for %s, which this sbprun cannot run on",
                        given(session), session->info.meta.backend);
    if (device > 0 && !class->count)
        return sbp_fail(world->diag, SBP_MACHINE, "--device %lld: there is one %s device, number 0",
                        (long long)device, class->name);
    if (!sbp_mul_i64(planned, ranks, &all))
        all = INT64_MAX;
    if (ranks > 1)
        snprintf(of, sizeof of, " for each of the %d ranks on this host", (int)ranks);
    if (on_host && available > 0 && all > available)
        return sbp_fail(world->diag, SBP_MACHINE, "'%s' needs %s of memory%s: %s", given(session),
                        sbp_format_bytes(need, sizeof need, (double)planned), of,
                        sbp_machine_memory_text(limit, sizeof limit));
    planned = session->plan->program->arena_bytes[SBP_HOST];
    if (!sbp_mul_i64(planned, ranks, &all))
        all = INT64_MAX;
    if (!on_host && planned > 0 && available > 0 && all > available)
        return sbp_fail(world->diag, SBP_MACHINE, "'%s' needs %s of the host's memory%s: %s", given(session),
                        sbp_format_bytes(need, sizeof need, (double)planned), of,
                        sbp_machine_memory_text(limit, sizeof limit));
    return SBP_OK;
}

static sbp_status check_optimizer(const sbp_world *world, const sbp_session *session) {
    if (!session->train || sbp_trainer_can_step(session->plan->program))
        return SBP_OK;
    return sbp_fail(
        world->diag, SBP_USAGE,
        "'%s' has no optimizer (it was compiled with --optimizer none, or trains nothing): it can only "
        "evaluate, score and dump gradients",
        given(session));
}

/* Whether there is something to begin with. */
static sbp_status check_weights(const sbp_world *world, const sbp_session *session,
                                const sbp_outputs *outputs) {
    const char *path, *adapter;
    uint64_t seed;
    sbp_weights *weights;
    if (sbp_options_on(world->options, SBP_OPT_RESUME) && outputs->dir.fd >= 0 &&
        sbp_rundir_newest(&outputs->dir, INT64_MAX) >= 0)
        return SBP_OK;
    SBP_TRY(sbp_run_find_weights(world, session, &path, &adapter, &seed));
    if (!path)
        return SBP_OK;
    SBP_TRY(sbp_weights_open(world->arena, world->diag, path, &weights));
    sbp_weights_close(weights);
    if (!adapter)
        return SBP_OK;
    SBP_TRY(
        sbp_weights_open(world->arena, world->diag, sbp_run_adapter_file(world->arena, adapter), &weights));
    sbp_weights_close(weights);
    return SBP_OK;
}

sbp_status sbp_run_check_start(const sbp_world *world, const sbp_session *session,
                               const sbp_outputs *outputs) {
    SBP_TRY(check_device(world, session));
    SBP_TRY(check_optimizer(world, session));
    SBP_TRY(check_weights(world, session, outputs));
    return sbp_run_check_space(world, session, outputs);
}

static sbp_status load_first(const sbp_world *world, sbp_session *session) {
    SBP_TRY(sbp_run_load_weights(world, session));
    return sbp_params_hash_base(world->executor, session->plan, &session->state.base, world->diag);
}

/* The checkpoint to go on from, which all ranks see; NULL: none. */
static sbp_status find_checkpoint(sbp_world *world, sbp_outputs *outputs, const char **found) {
    *found = NULL;
    if (!outputs->out || !sbp_options_on(world->options, SBP_OPT_RESUME))
        return SBP_OK;
    SBP_TRY(sbp_world_check_shared(world, outputs->out, true, &outputs->shared));
    if (sbp_world_writes(world))
        *found = sbp_checkpoint_find(world->arena, &outputs->dir);
    SBP_TRY(sbp_world_share_text(world, found));
    if (!*found)
        sbp_note(world->diag, "there is no checkpoint in '%s': the run begins", outputs->out);
    return SBP_OK;
}

/* Where a checkpoint says that the next batch begins is in the data; an epoch takes a step at least. */
static sbp_status check_place(const sbp_world *world, const sbp_inputs *inputs, const sbp_session *session,
                              const char *found) {
    const sbp_run_state *s = &session->state;
    int64_t rows = inputs->data && !inputs->stream.steps ? inputs->data->row_count : INT64_MAX;
    if (s->at <= rows && s->epoch <= s->step && (s->inner == 0 || s->inner <= s->step))
        return SBP_OK;
    return sbp_fail(
        world->diag, SBP_INPUT,
        "'%s': its trainer_state.json goes on at row %lld of epoch %lld after step %lld (%lld with that "
        "batch), which no run of %lld rows does; without '%s', --resume goes on from the checkpoint before",
        found, (long long)s->at, (long long)s->epoch, (long long)s->step, (long long)s->inner,
        (long long)rows, found);
}

/* Weights from a checkpoint, or from the beginning. */
static sbp_status begin(sbp_world *world, sbp_inputs *inputs, sbp_session *session, const char *found) {
    if (!found)
        return load_first(world, session);
    if (session->info.meta.adapter ||
        sbp_params_keep_base(session->plan)) /* checkpoints do not have the base */
        SBP_TRY(load_first(world, session));
    uint64_t matmuls = session->state.matmuls;
    SBP_TRY(sbp_world_agree(
        world, sbp_checkpoint_verify(world->diag, found, world->place.rank, world->place.count)));
    SBP_TRY(sbp_checkpoint_load(world->diag, world->executor, session->plan, found, &session->state));
    SBP_TRY(check_place(world, inputs, session, found));
    if (session->state.matmuls != matmuls)
        sbp_note(world->diag,
                 "'%s' was computed with other algorithms of matmuls (hash %016llx, here %016llx): sums "
                 "round differently",
                 found, (unsigned long long)session->state.matmuls, (unsigned long long)matmuls);
    session->state.matmuls = matmuls;
    session->resumed_after = session->state.step;
    sbp_sampler_seek(&inputs->sampler, session->state.epoch, session->state.at);
    if (session->state.inner > 0 && inputs->stream.steps && !inputs->rl) {
        sbp_note(
            world->diag,
            "%lld of %lld steps were done with a batch of the stream that is gone: going on with the next",
            (long long)session->state.inner, (long long)session->inner_epochs);
        session->state.inner = 0;
    }
    sbp_note(world->diag, "going on after step %lld, from '%s'", (long long)session->state.step, found);
    if (session->began_steps > 0 && session->began_steps != session->total_steps &&
        session->total_steps < SBP_STEPS_UNKNOWN)
        sbp_note(world->diag,
                 "the run had %lld steps, now %lld: learning rates are those of %lld from here on",
                 (long long)session->began_steps, (long long)session->total_steps,
                 (long long)session->total_steps);
    return SBP_OK;
}

static sbp_status dump_gradients(sbp_world *world, sbp_inputs *inputs, sbp_session *session,
                                 sbp_outputs *outputs, const char *path) {
    bool end;
    if (!sbp_trainer_has_gradients(session->plan->program))
        return sbp_fail(world->diag, SBP_INPUT, "'%s' trains nothing: there are no gradients",
                        session->plan_path);
    SBP_TRY(sbp_run_next_rows(world, inputs, session, outputs, &end));
    if (end)
        return no_steps(world);
    SBP_TRY(sbp_run_score_mismatched(world, session, inputs->data, inputs->rows, inputs->row_count));
    SBP_TRY(sbp_trainer_dump_gradients(&session->trainer, world->diag, session->plan, inputs->data,
                                       inputs->rows, inputs->row_count, path,
                                       sbp_output_dtype(&session->info)));
    return sbp_run_print_gradients(world, inputs, session, path);
}

bool sbp_run_reports_events(const char *value, const char **folder) {
    static const char word[] = "tensorboard";
    const size_t length = strlen(word);
    *folder = strncmp(value, word, length) == 0 && value[length] == ':' && value[length + 1]
                  ? value + length + 1
                  : NULL;
    return *folder || strcmp(value, word) == 0;
}

/* --report-to. */
static sbp_status open_reports(const sbp_world *world, const sbp_session *session, sbp_outputs *outputs,
                               const char *resumed) {
    sbp_metrics *m = &outputs->metrics;
    for (int32_t i = 0; i < sbp_options_list_count(world->options, SBP_OPT_REPORT_TO); i++) {
        const char *to = sbp_options_list_at(world->options, SBP_OPT_REPORT_TO, i), *folder;
        if (strcmp(to, "jsonl") == 0)
            m->lines = sbp_world_writes(world);
        else if (sbp_run_reports_events(to, &folder) && m->file && !m->events) {
            if (folder)
                sbp_make_directories_above(folder);
            SBP_TRY(sbp_events_open(world->diag,
                                    folder ? folder : sbp_file_join(world->arena, outputs->out, "runs"),
                                    !folder, resumed ? session->state.step + 1 : 0, &m->events));
        }
    }
    return SBP_OK;
}

static sbp_status open_metrics(const sbp_world *world, const sbp_inputs *inputs, sbp_session *session,
                               sbp_outputs *outputs, const char *resumed) {
    const char *path = outputs->out && (session->train || inputs->eval_count > 0) && sbp_world_writes(world)
                           ? sbp_file_join(world->arena, outputs->out, "metrics.jsonl")
                           : NULL;
    SBP_TRY(sbp_metrics_open(&outputs->metrics, world->diag, &session->trainer, path,
                             resumed ? session->state.step : -1, last_evaluation(inputs, session),
                             session->total_steps < SBP_STEPS_UNKNOWN ? session->total_steps : 0));
    outputs->metrics.loss_sum = session->state.loss_sum;
    outputs->metrics.loss_count = session->state.loss_count;
    outputs->metrics.quiet = !sbp_world_writes(world) || sbp_options_on(world->options, SBP_OPT_QUIET);
    outputs->metrics.several = inputs->eval_count > 1;
    outputs->metrics.verbose = sbp_options_on(world->options, SBP_OPT_VERBOSE);
    sbp_device_info device = {0};
    sbp_executor_device(world->executor)->class->info(sbp_executor_device(world->executor), &device);
    outputs->utilisation =
        sbp_utilisation_read(&session->info, session->plan->meta, &device, world->place.count);
    if (session->log_every > 0)
        outputs->metrics.log_every = session->log_every;
    return open_reports(world, session, outputs, resumed);
}

/* Who writes checkpoints. */
static sbp_status find_writers(sbp_world *world, const sbp_session *session, sbp_outputs *outputs) {
    SBP_TRY(sbp_world_check_shared(world, outputs->out, session->best.load, &outputs->shared));
    if (world->ranks && outputs->out && !outputs->shared)
        sbp_note(
            world->diag,
            "not all ranks see '%s': rank 0 writes checkpoints alone, which takes longer; --resume needs a "
            "file system that their hosts share",
            outputs->out);
    return SBP_OK;
}

static sbp_status act(sbp_world *world, sbp_inputs *inputs, sbp_session *session, sbp_outputs *outputs,
                      const char *resumed) {
    const char *dump = sbp_options_text(world->options, SBP_OPT_DUMP_GRADIENTS),
               *scores = sbp_options_text(world->options, SBP_OPT_SCORE);
    if (!dump)
        SBP_TRY(sbp_run_begin_out(world, inputs, session, outputs, resumed));
    if (!dump && session->train && !resumed)
        SBP_TRY(find_writers(world, session, outputs));
    SBP_TRY(sbp_world_agree(world, sbp_run_begin_publish(world, outputs)));
    SBP_TRY(say_interrupted(world, session, outputs,
                            sbp_run_reference(world, inputs, session, outputs, resumed),
                            "scoring by the reference"));
    if (dump)
        return dump_gradients(world, inputs, session, outputs, dump);
    SBP_TRY(sbp_world_agree(world, open_metrics(world, inputs, session, outputs, resumed)));
    if (inputs->rl)
        SBP_TRY(sbp_rl_begin(inputs->rl, outputs, resumed));
    if (session->train)
        SBP_TRY(sbp_samples_begin(inputs->samples, session, outputs));
    if (session->train)
        SBP_TRY(train_and_save(world, inputs, session, outputs));
    else if (session->info.merge)
        SBP_TRY(sbp_world_alone(world, sbp_world_writes(world) ? save_result(world, inputs, session, outputs)
                                                               : SBP_OK));
    else if (inputs->eval_count > 0)
        SBP_TRY(say_interrupted(world, session, outputs, evaluate(world, inputs, session, outputs),
                                "evaluating"));
    if (scores)
        SBP_TRY(say_interrupted(world, session, outputs, sbp_run_score(world, inputs, session, scores),
                                "scoring"));
    if (scores)
        sbp_note(world->diag, "the log-probabilities of %lld documents are in %s",
                 (long long)inputs->data->doc_count, scores);
    if (session->train && session->total_steps == 0 && !session->info.merge)
        sbp_note(world->diag, "0 steps: nothing was trained, no model is written");
    SBP_TRY(sbp_world_agree(world, sbp_metrics_close(&outputs->metrics)));
    SBP_TRY(sbp_world_agree(world, check_out(world, inputs, session, outputs)));
    return sbp_world_agree(world, sbp_run_print_summary(world, session, outputs));
}

static sbp_status prepare_device(sbp_world *world, sbp_session *session, sbp_outputs *outputs) {
    SBP_TRY(sbp_run_open_device(world, session, outputs));
    return check_optimizer(world, session);
}

sbp_status sbp_run_on_device(sbp_world *world, sbp_inputs *inputs, sbp_session *session,
                             sbp_outputs *outputs) {
    const char *resumed;
    if (!session->check) /* which has nothing to save: a signal ends it at once */
        sbp_interrupt_install();
    SBP_TRY(sbp_world_agree(world, check_device(world, session))); /* before one of the ranks takes memory */
    SBP_TRY(sbp_world_agree(world, prepare_device(world, session, outputs)));
    if (world->ranks)
        SBP_TRY(sbp_world_agree(world, sbp_executor_rendezvous(world->executor, world->diag)));
    SBP_TRY(find_checkpoint(world, outputs, &resumed));
    SBP_TRY(sbp_world_agree(world, begin(world, inputs, session, resumed)));
    if (resumed)
        SBP_TRY(sbp_world_agree(world, sbp_run_resume_best(world, session, outputs)));
    if (session->check)
        return sbp_run_check(world, inputs, session, outputs);
    SBP_TRY(sbp_world_agree(world,
                            sbp_world_writes(world) ? sbp_run_check_space(world, session, outputs) : SBP_OK));
    sbp_run_disk_traffic(world, outputs, &outputs->disk_read_before, &outputs->disk_written_before);
    sbp_status status = act(world, inputs, session, outputs, resumed);
    if (status == SBP_IO) /* perhaps why */
        SBP_TRY(check_out(world, inputs, session, outputs));
    return status;
}
