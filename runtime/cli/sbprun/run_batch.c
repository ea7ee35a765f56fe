/* run_batch.c: which rows a step takes: the next of the data, or of a stream; and, where a batch is used
 * several times, the log-probabilities by the weights that it was first used with. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cli/sbprun/outputs.h"

/* What is computed of a batch with the weights that it is first used with, and the vector of the program that
 * has it. */
static const struct {
    const char *column, *vector;
} scored[] = {{"old_logps", "logp"}, {"old_values", "value"}};

/* Whether the plan reads a column that rows lack: what it can do without only where steps differ. */
static bool lacks(const sbp_session *session, const sbp_dataset *data, const char *column, bool differ) {
    bool optional;
    int32_t place = sbp_dataset_column(data, column);
    if (!sbp_pack_reads(session->plan->program, column, &optional) || (optional && !differ))
        return false;
    return place < 0 || (data->added_columns >> place & 1);
}

static bool is_wanted(const sbp_inputs *inputs, const sbp_session *session, const char *column) {
    return lacks(session, inputs->data, column, session->inner_epochs > 1);
}

/* The column's values [token_count], zeros at first. */
static sbp_status open_column(const sbp_world *world, sbp_dataset *data, const char *column, double **out) {
    int32_t place = sbp_dataset_column(data, column);
    if (place < 0) {
        double *values = sbp_malloc((size_t)(data->token_count + 1) * sizeof *values);
        if (!values)
            return sbp_fail(world->diag, SBP_MACHINE, "out of memory for log-probabilities of %lld tokens",
                            (long long)data->token_count);
        memset(values, 0, (size_t)(data->token_count + 1) * sizeof *values);
        SBP_TRY(sbp_dataset_add_column(data, world->diag, column, values));
        place = sbp_dataset_column(data, column);
    }
    *out = data->columns[place];
    return SBP_OK;
}

static sbp_status score_rows(const sbp_world *world, sbp_session *session, sbp_dataset *data,
                             const int64_t *rows, int64_t row_count, bool differ) {
    sbp_score_column columns[SBP_COUNT(scored)];
    int32_t count = 0;
    for (int i = 0; i < SBP_COUNT(scored); i++) {
        if (!lacks(session, data, scored[i].column, differ))
            continue;
        columns[count].vector = scored[i].vector;
        SBP_TRY(open_column(world, data, scored[i].column, &columns[count++].values));
    }
    if (count == 0)
        return SBP_OK;
    return sbp_trainer_score_step(&session->trainer, world->diag, data, rows, row_count, columns, count);
}

static sbp_status score_all(const sbp_world *world, sbp_session *session, sbp_dataset *data, bool differ) {
    int64_t *rows = sbp_malloc((size_t)(data->row_count + 1) * sizeof *rows);
    if (!rows)
        return sbp_fail(world->diag, SBP_MACHINE, "out of memory for %lld rows", (long long)data->row_count);
    for (int64_t r = 0; r < data->row_count; r++)
        rows[r] = r;
    sbp_status status = score_rows(world, session, data, rows, data->row_count, differ);
    free(rows);
    return status;
}

sbp_status sbp_run_score_evaluation(const sbp_world *world, sbp_session *session, sbp_dataset *data) {
    return score_all(world, session, data, false);
}

sbp_status sbp_run_score_older(const sbp_world *world, sbp_session *session, sbp_dataset *data) {
    return score_all(world, session, data, true);
}

/* ---- what a checkpoint in the middle of a batch has of it ---------------------------------------------- */

/* Values of the documents of the batch, one after the other, from or to the column. */
static int64_t move_batch(const sbp_inputs *inputs, double *column, double *kept, bool load) {
    int64_t at = 0;
    for (int64_t r = 0; r < inputs->row_count; r++)
        for (int64_t k = inputs->data->rows[inputs->rows[r]]; k < inputs->data->rows[inputs->rows[r] + 1];
             k++) {
            const sbp_doc *doc = &inputs->data->docs[sbp_dataset_doc_at(inputs->data, k)];
            size_t bytes = (size_t)doc->count * sizeof *kept;
            if (kept && load)
                memcpy(column + doc->first, kept + at, bytes);
            else if (kept)
                memcpy(kept + at, column + doc->first, bytes);
            at += doc->count;
        }
    return at;
}

sbp_status sbp_run_keep_batch(const sbp_world *world, const sbp_inputs *inputs, sbp_session *session) {
    sbp_run_state *s = &session->state;
    sbp_kept_release(s);
    for (int i = 0; s->inner > 0 && i < SBP_COUNT(scored); i++) {
        double *column;
        if (!is_wanted(inputs, session, scored[i].column))
            continue;
        SBP_TRY(open_column(world, inputs->data, scored[i].column, &column));
        sbp_kept *kept = &s->kept[s->kept_count];
        *kept = (sbp_kept){.count = move_batch(inputs, NULL, NULL, false)};
        snprintf(kept->name, sizeof kept->name, "%s", scored[i].column);
        kept->values = sbp_malloc((size_t)(kept->count + 1) * sizeof(double));
        if (!kept->values)
            return sbp_fail(world->diag, SBP_MACHINE, "out of memory for a checkpoint");
        s->kept_count++;
        move_batch(inputs, column, kept->values, false);
    }
    return SBP_OK;
}

/* Takes the scored columns of the batch at hand from the checkpoint that the run goes on from. */
static sbp_status take_kept(const sbp_world *world, const sbp_inputs *inputs, sbp_session *session) {
    sbp_run_state *s = &session->state;
    for (int i = 0; i < SBP_COUNT(scored); i++) {
        const sbp_kept *found = NULL;
        double *column;
        if (!is_wanted(inputs, session, scored[i].column))
            continue;
        for (int32_t k = 0; k < s->kept_count; k++)
            if (strcmp(s->kept[k].name, scored[i].column) == 0)
                found = &s->kept[k];
        SBP_TRY(open_column(world, inputs->data, scored[i].column, &column));
        if (!found || found->count != move_batch(inputs, NULL, NULL, true))
            return sbp_fail(world->diag, SBP_INPUT, "the checkpoint has no '%s' of the batch at hand",
                            scored[i].column);
        move_batch(inputs, column, found->values, true);
    }
    return SBP_OK;
}

/* ---- rows -------------------------------------------------------------------------------------------- */

/* The next step of the stream that has rows into inputs->data; *end: there is none. Steps without are
 * answered with the weights that are there, as somebody may wait for them. */
static sbp_status next_of_stream(sbp_world *world, sbp_inputs *inputs, sbp_session *session,
                                 sbp_outputs *outputs, bool *end) {
    for (bool found = false; !found;) {
        if (!inputs->stream_is_fresh)
            SBP_TRY(sbp_run_load_step(world, inputs));
        inputs->stream_is_fresh = false;
        if (!inputs->data) {
            *end = true;
            return SBP_OK;
        }
        found = inputs->data->row_count > 0;
        if (!found && sbp_options_given(world->options, SBP_OPT_PUBLISH))
            SBP_TRY(sbp_world_alone(
                world, sbp_world_writes(world) ? sbp_run_publish_again(world, session, outputs) : SBP_OK));
    }
    free(inputs->stream_rows);
    inputs->row_count = inputs->data->row_count;
    inputs->stream_rows = sbp_malloc((size_t)(inputs->row_count + 1) * sizeof *inputs->stream_rows);
    if (!inputs->stream_rows)
        return sbp_fail(world->diag, SBP_MACHINE, "out of memory for %lld rows",
                        (long long)inputs->row_count);
    for (int64_t r = 0; r < inputs->row_count; r++)
        inputs->stream_rows[r] = r;
    inputs->rows = inputs->stream_rows;
    return sbp_run_step_reference(world, inputs, session);
}

sbp_status sbp_run_next_rows(sbp_world *world, sbp_inputs *inputs, sbp_session *session, sbp_outputs *outputs,
                             bool *end) {
    *end = false;
    if (session->state.inner > 0 && inputs->rows)
        return SBP_OK;
    if (inputs->stream.steps)
        SBP_TRY(next_of_stream(world, inputs, session, outputs, end));
    else
        inputs->rows = sbp_sampler_next(&inputs->sampler, &inputs->row_count);
    if (*end)
        return SBP_OK;
    if (session->state.inner > 0)
        return take_kept(world, inputs, session);
    return score_rows(world, session, inputs->data, inputs->rows, inputs->row_count,
                      session->inner_epochs > 1);
}

void sbp_run_end_step(sbp_inputs *inputs, sbp_session *session) {
    session->state.inner = (session->state.inner + 1) % session->inner_epochs;
    if (session->state.inner > 0)
        return;
    inputs->rows = NULL;
    session->state.epoch = inputs->sampler.epoch;
    session->state.at = inputs->sampler.at;
}

sbp_status sbp_run_plan_inner(const sbp_world *world, sbp_session *session) {
    bool optional;
    session->inner_epochs = sbp_options_int(world->options, SBP_OPT_INNER_EPOCHS);
    if (session->inner_epochs <= 1) {
        session->inner_epochs = 1;
        return SBP_OK;
    }
    for (int i = 0; i < SBP_COUNT(scored); i++)
        if (sbp_pack_reads(session->plan->program, scored[i].column, &optional))
            return SBP_OK;
    return sbp_fail(world->diag, SBP_USAGE,
                    "--inner-epochs: the plan's objective does not compare with older weights; use --epochs "
                    "to pass over the data several times");
}
