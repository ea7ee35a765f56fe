/* run_score.c: --score FILE: a line for each document, with its log-probabilities, in the order
 * of the files. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ir/base/json_write.h"
#include "runtime/cli/sbprun/session.h"
#include "runtime/data/groups.h"

typedef struct score_writer {
    const sbp_world *world;
    const sbp_dataset *data;
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
            return sbp_fail(w->world->diag, SBP_NOT_FINITE, "row %lld: log-probability %lld is %g",
                            (long long)doc->row, (long long)i, w->score->logps[i]);
    }
    sbp_json_write_end(&j);
    sbp_json_write_double(&j, "sum", sum);
    sbp_json_write_int(&j, "tokens", doc->labels);
    sbp_json_write_end(&j);
    sbp_text_add(&line, "\n");
    return sbp_file_out_write(w->out, w->world->diag, line.data, (int64_t)line.length);
}

static sbp_status write_line(score_writer *w, const sbp_score *score) {
    w->arena = sbp_arena_create();
    if (!w->arena)
        return sbp_fail(w->world->diag, SBP_MACHINE, "out of memory for a line of scores");
    w->score = score;
    w->status = sbp_guard(w->arena, w->world->diag, write_score_body, w);
    sbp_arena_destroy(w->arena);
    w->score = NULL;
    return w->status;
}

static sbp_status write_score(void *user, const sbp_score *score) {
    score_writer *w = user;
    if (!sbp_world_writes(w->world) || w->status != SBP_OK)
        return SBP_OK;
    if (w->order)
        memcpy(w->kept + w->kept_at[score->doc - w->data->docs], score->logps,
               (size_t)score->doc->labels * sizeof *w->kept);
    else
        w->status = write_line(w, score);
    return w->world->ranks ? SBP_OK : w->status;
}

/* Lines stand in the order of the files: where groups were put together, they wait. */
static sbp_status begin_score(score_writer *w, const char *path) {
    const sbp_dataset *data = w->data;
    SBP_TRY(sbp_file_out_open(w->world->diag, path, &w->out));
    SBP_TRY(sbp_dataset_file_order(w->world->diag, data, &w->order));
    if (!w->order)
        return SBP_OK;
    w->kept = sbp_malloc((size_t)(data->label_count + 1) * sizeof *w->kept);
    w->kept_at = sbp_malloc((size_t)(data->doc_count + 1) * sizeof *w->kept_at);
    if (!w->kept || !w->kept_at)
        return sbp_fail(w->world->diag, SBP_MACHINE, "out of memory for the scores of %lld documents",
                        (long long)data->doc_count);
    w->kept_at[0] = 0;
    for (int64_t d = 0; d < data->doc_count; d++)
        w->kept_at[d + 1] = w->kept_at[d] + data->docs[d].labels;
    return SBP_OK;
}

static sbp_status write_kept(score_writer *w) {
    const sbp_dataset *data = w->data;
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
        return sbp_file_out_commit(w->out, w->world->diag);
    sbp_file_out_abort(w->out);
    return status;
}

sbp_status sbp_run_score(sbp_world *world, const sbp_inputs *inputs, sbp_session *session, const char *path) {
    score_writer w = {.world = world, .data = inputs->data};
    sbp_status status = sbp_world_agree(world, sbp_world_writes(world) ? begin_score(&w, path) : SBP_OK);
    if (status != SBP_OK)
        return finish_score(&w, status);
    status = sbp_trainer_evaluate(&session->trainer, world->diag, inputs->data, write_score, &w);
    bool common = sbp_world_is_common(status) || !world->ranks;
    status = finish_score(&w, status == SBP_OK ? w.status : status);
    return common ? sbp_world_agree(world, status) : status;
}
