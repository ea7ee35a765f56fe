/* run_batch.c: which rows a step takes: the next of the data, or of a stream; and, where a batch is used
 * several times, the log-probabilities by the weights that it was first used with. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cli/sbprun/run.h"

/* What is computed of a batch with the weights that it is first used with, and the vector of the program that
 * has it. */
static const struct {
    const char *column, *vector;
} scored[] = {{"old_logps", "logp"}, {"old_values", "value"}};

/* Whether the plan reads a column that rows lack: what it can do without only where steps differ. */
static bool lacks(const sbp_run *run, const sbp_dataset *data, const char *column, bool differ) {
    bool optional;
    int32_t place = sbp_dataset_column(data, column);
    if (!sbp_pack_reads(run->plan->program, column, &optional) || (optional && !differ))
        return false;
    return place < 0 || (data->added_columns >> place & 1);
}

static bool is_wanted(const sbp_run *run, const char *column) {
    return lacks(run, run->data, column, run->inner_epochs > 1);
}

/* The column's values [token_count], zeros at first. */
static sbp_status open_column(const sbp_run *run, sbp_dataset *data, const char *column, double **out) {
    int32_t place = sbp_dataset_column(data, column);
    if (place < 0) {
        double *values = sbp_malloc((size_t)(data->token_count + 1) * sizeof *values);
        if (!values)
            return sbp_fail(run->diag, SBP_MACHINE, "out of memory for log-probabilities of %lld tokens",
                            (long long)data->token_count);
        memset(values, 0, (size_t)(data->token_count + 1) * sizeof *values);
        SBP_TRY(sbp_dataset_add_column(data, run->diag, column, values));
        place = sbp_dataset_column(data, column);
    }
    *out = data->columns[place];
    return SBP_OK;
}

static sbp_status score_rows(sbp_run *run, sbp_dataset *data, const int64_t *rows, int64_t row_count,
                             bool differ) {
    sbp_score_column columns[SBP_COUNT(scored)];
    int32_t count = 0;
    for (int i = 0; i < SBP_COUNT(scored); i++) {
        if (!lacks(run, data, scored[i].column, differ))
            continue;
        columns[count].vector = scored[i].vector;
        SBP_TRY(open_column(run, data, scored[i].column, &columns[count++].values));
    }
    if (count == 0)
        return SBP_OK;
    return sbp_trainer_score_step(&run->trainer, run->diag, data, rows, row_count, columns, count);
}

sbp_status sbp_run_score_evaluation(sbp_run *run, sbp_dataset *data) {
    int64_t *rows = sbp_malloc((size_t)(data->row_count + 1) * sizeof *rows);
    if (!rows)
        return sbp_fail(run->diag, SBP_MACHINE, "out of memory for %lld rows", (long long)data->row_count);
    for (int64_t r = 0; r < data->row_count; r++)
        rows[r] = r;
    sbp_status status = score_rows(run, data, rows, data->row_count, false);
    free(rows);
    return status;
}

/* ---- what a checkpoint in the middle of a batch has of it ---------------------------------------------- */

/* Values of the documents of the batch, one after the other, from or to the column. */
static int64_t move_batch(const sbp_run *run, double *column, double *kept, bool load) {
    int64_t at = 0;
    for (int64_t r = 0; r < run->row_count; r++)
        for (int64_t k = run->data->rows[run->rows[r]]; k < run->data->rows[run->rows[r] + 1]; k++) {
            const sbp_doc *doc = &run->data->docs[sbp_dataset_doc_at(run->data, k)];
            size_t bytes = (size_t)doc->count * sizeof *kept;
            if (kept && load)
                memcpy(column + doc->first, kept + at, bytes);
            else if (kept)
                memcpy(kept + at, column + doc->first, bytes);
            at += doc->count;
        }
    return at;
}

sbp_status sbp_run_keep_batch(sbp_run *run) {
    sbp_run_state *s = &run->state;
    sbp_kept_release(s);
    for (int i = 0; s->inner > 0 && i < SBP_COUNT(scored); i++) {
        double *column;
        if (!is_wanted(run, scored[i].column))
            continue;
        SBP_TRY(open_column(run, run->data, scored[i].column, &column));
        sbp_kept *kept = &s->kept[s->kept_count];
        *kept = (sbp_kept){.count = move_batch(run, NULL, NULL, false)};
        snprintf(kept->name, sizeof kept->name, "%s", scored[i].column);
        kept->values = sbp_malloc((size_t)(kept->count + 1) * sizeof(double));
        if (!kept->values)
            return sbp_fail(run->diag, SBP_MACHINE, "out of memory for a checkpoint");
        s->kept_count++;
        move_batch(run, column, kept->values, false);
    }
    return SBP_OK;
}

/* Of the checkpoint that the run goes on from. */
static sbp_status take_kept(sbp_run *run) {
    sbp_run_state *s = &run->state;
    for (int i = 0; i < SBP_COUNT(scored); i++) {
        const sbp_kept *found = NULL;
        double *column;
        if (!is_wanted(run, scored[i].column))
            continue;
        for (int32_t k = 0; k < s->kept_count; k++)
            if (strcmp(s->kept[k].name, scored[i].column) == 0)
                found = &s->kept[k];
        SBP_TRY(open_column(run, run->data, scored[i].column, &column));
        if (!found || found->count != move_batch(run, NULL, NULL, true))
            return sbp_fail(run->diag, SBP_INPUT, "the checkpoint has no '%s' of the batch at hand",
                            scored[i].column);
        move_batch(run, column, found->values, true);
    }
    return SBP_OK;
}

/* ---- rows -------------------------------------------------------------------------------------------- */

/* The next step of the stream that has rows into run->data; *end: there is none. Steps without are answered
 * with the weights that are there, as somebody may wait for them. */
static sbp_status next_of_stream(sbp_run *run, bool *end) {
    for (bool found = false; !found;) {
        if (!run->stream_is_fresh)
            SBP_TRY(sbp_run_load_step(run));
        run->stream_is_fresh = false;
        if (!run->data) {
            *end = true;
            return SBP_OK;
        }
        found = run->data->row_count > 0;
        if (!found && sbp_options_given(run->options, SBP_OPT_PUBLISH))
            SBP_TRY(sbp_run_alone(run, sbp_run_publish_again));
    }
    free(run->stream_rows);
    run->row_count = run->data->row_count;
    run->stream_rows = sbp_malloc((size_t)(run->row_count + 1) * sizeof *run->stream_rows);
    if (!run->stream_rows)
        return sbp_fail(run->diag, SBP_MACHINE, "out of memory for %lld rows", (long long)run->row_count);
    for (int64_t r = 0; r < run->row_count; r++)
        run->stream_rows[r] = r;
    run->rows = run->stream_rows;
    return sbp_run_step_reference(run);
}

sbp_status sbp_run_next_rows(sbp_run *run, bool *end) {
    *end = false;
    if (run->state.inner > 0 && run->rows)
        return SBP_OK;
    if (run->stream.steps)
        SBP_TRY(next_of_stream(run, end));
    else
        run->rows = sbp_sampler_next(&run->sampler, &run->row_count);
    if (*end)
        return SBP_OK;
    if (run->state.inner > 0)
        return take_kept(run);
    return score_rows(run, run->data, run->rows, run->row_count, run->inner_epochs > 1);
}

void sbp_run_end_step(sbp_run *run) {
    run->state.inner = (run->state.inner + 1) % run->inner_epochs;
    if (run->state.inner > 0)
        return;
    run->rows = NULL;
    run->state.epoch = run->sampler.epoch;
    run->state.at = run->sampler.at;
}

sbp_status sbp_run_plan_inner(sbp_run *run) {
    bool optional;
    run->inner_epochs = sbp_options_int(run->options, SBP_OPT_INNER_EPOCHS);
    if (run->inner_epochs <= 1) {
        run->inner_epochs = 1;
        return SBP_OK;
    }
    for (int i = 0; i < SBP_COUNT(scored); i++)
        if (sbp_pack_reads(run->plan->program, scored[i].column, &optional))
            return SBP_OK;
    return sbp_fail(run->diag, SBP_USAGE,
                    "--inner-epochs: the plan's objective does not compare with older weights; use --epochs "
                    "to pass over the data several times");
}
