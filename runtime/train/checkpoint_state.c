/* checkpoint_state.c: trainer_state.json. */
#include "runtime/train/checkpoint_state.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/base/json_write.h"

static void make_mark(sbp_checkpoint_mark *mark, const char *text, size_t length, int64_t step) {
    *mark = (sbp_checkpoint_mark){0};
    snprintf(mark->text, sizeof mark->text, "%lld:%016llx", (long long)step,
             (unsigned long long)sbp_hash_bytes(text, length, 0));
}

/* By the names of transformers' file, as far as that has them; what is no number is null. */
static void write_best(sbp_json_writer *w, const sbp_best *b) {
    if (isfinite(b->before))
        sbp_json_write_double(w, "eval_before", b->before);
    if (!b->seen)
        return;
    sbp_json_write_double(w, "best_metric", b->value);
    sbp_json_write_int(w, "best_global_step", b->step);
    sbp_json_write_int(w, "early_stopping_patience_counter", b->worse);
    sbp_json_write_double(w, "eval_loss_sum", b->loss_sum);
    sbp_json_write_int(w, "eval_loss_count", b->loss_count);
    sbp_json_write_double(w, "best_train_loss", b->trained_best);
    sbp_json_write_double(w, "last_train_loss", b->trained);
    sbp_json_write_double(w, "eval_last", b->last);
    sbp_json_write_hash(w, "best_of", b->of);
}

/* Checkpoints of runs without evaluations have none of it. An infinite best is read as NaN: nothing is better
 * than either. */
static sbp_status read_best(sbp_diag *diag, const sbp_json *root, const sbp_run_state *s, sbp_best *b) {
    const char *of = "";
    const struct {
        const char *name;
        int64_t most, *out;
    } counts[] = {{"best_global_step", s->step, &b->step},
                  {"early_stopping_patience_counter", s->step, &b->worse},
                  {"eval_loss_count", s->loss_count, &b->loss_count}};
    *b = SBP_BEST_NONE;
    SBP_TRY(sbp_json_get_double(diag, root, "eval_before", SBP_JSON_NULLABLE, &b->before));
    b->seen = sbp_json_member(root, "best_of") != NULL;
    if (!b->seen)
        return SBP_OK;
    for (int i = 0; i < SBP_COUNT(counts); i++) {
        SBP_TRY(sbp_json_get_i64(diag, root, counts[i].name, SBP_JSON_REQUIRED, counts[i].out));
        if (*counts[i].out < 0 || *counts[i].out > counts[i].most)
            return sbp_json_fail(diag, sbp_json_member(root, counts[i].name), "%lld is not in 0 .. %lld",
                                 (long long)*counts[i].out, (long long)counts[i].most);
    }
    SBP_TRY(sbp_json_get_double(diag, root, "best_metric", SBP_JSON_NULLABLE, &b->value));
    SBP_TRY(sbp_json_get_double(diag, root, "eval_loss_sum", SBP_JSON_NULLABLE, &b->loss_sum));
    SBP_TRY(sbp_json_get_double(diag, root, "best_train_loss", SBP_JSON_NULLABLE, &b->trained_best));
    SBP_TRY(sbp_json_get_double(diag, root, "last_train_loss", SBP_JSON_NULLABLE, &b->trained));
    SBP_TRY(sbp_json_get_double(diag, root, "eval_last", SBP_JSON_NULLABLE, &b->last));
    SBP_TRY(sbp_json_get_string(diag, root, "best_of", SBP_JSON_REQUIRED, &of));
    b->of = strtoull(of, NULL, 16);
    return SBP_OK;
}

const char *sbp_checkpoint_state_text(sbp_arena *arena, const sbp_run_state *s, sbp_checkpoint_mark *mark) {
    sbp_text out;
    sbp_text_init(&out, arena);
    sbp_json_writer w = sbp_json_writer_on(&out);
    w.lines = 1;
    sbp_json_write_object(&w, NULL);
    sbp_json_write_int(&w, "step", s->step);
    sbp_json_write_int(&w, "epoch", s->epoch);
    sbp_json_write_int(&w, "at", s->at);
    sbp_json_write_int(&w, "num_tokens", s->num_tokens);
    sbp_json_write_int(&w, "evaluated", s->evaluated);
    write_best(&w, &s->best);
    sbp_json_write_int(&w, "loss_count", s->loss_count);
    sbp_json_write_double(&w, "loss_sum", s->loss_sum);
    sbp_json_write_hash(&w, "data_hash", s->data_hash);
    sbp_json_write_int(&w, "seed", s->seed);
    sbp_json_write_int(&w, "batch_rows", s->batch_rows);
    sbp_json_write_int(&w, "batch_tokens", s->batch_tokens);
    sbp_json_write_bool(&w, "shuffle", s->shuffle);
    if (s->matmuls)
        sbp_json_write_hash(&w, "matmuls", s->matmuls);
    if (s->inner)
        sbp_json_write_int(&w, "inner", s->inner);
    if (s->reference)
        sbp_json_write_hash(&w, "reference", s->reference);
    if (s->base)
        sbp_json_write_hash(&w, "base", s->base);
    sbp_json_write_bool(&w, "marked", true); /* .safetensors name this checkpoint */
    sbp_json_write_end(&w);
    sbp_text_add(&out, "\n");
    make_mark(mark, out.data, out.length, s->step);
    return out.data;
}

/* The directory's name says the step, too. */
static sbp_status check_step(sbp_diag *diag, const char *directory, int64_t step) {
    const char *slash = strrchr(directory, '/');
    int64_t named = sbp_rundir_step(slash ? slash + 1 : directory);
    return named < 0 || named == step
               ? SBP_OK
               : sbp_fail(
                     diag, SBP_INPUT,
                     "'%s': its trainer_state.json is of step %lld; without '%s', --resume goes on from the "
                     "checkpoint before",
                     directory, (long long)step, directory);
}

static sbp_status must_equal(sbp_diag *diag, const char *directory, const char *what, int64_t found,
                             int64_t expected) {
    if (found == expected)
        return SBP_OK;
    return sbp_fail(diag, SBP_INPUT, "%s: the run to be resumed had %s %lld, this one has %lld", directory,
                    what, (long long)found, (long long)expected);
}

sbp_status sbp_checkpoint_state_read(sbp_arena *arena, sbp_diag *diag, const char *directory,
                                     sbp_run_state *s, sbp_checkpoint_mark *mark) {
    const sbp_json *root;
    sbp_run_state saved = {0};
    const char *hash = "", *matmuls = "", *reference = "", *base = "";
    char expected[20];
    const struct {
        const char *name;
        int64_t *out;
    } members[] = {{"step", &saved.step},
                   {"epoch", &saved.epoch},
                   {"at", &saved.at},
                   {"num_tokens", &saved.num_tokens},
                   {"loss_count", &saved.loss_count},
                   {"seed", &saved.seed},
                   {"batch_rows", &saved.batch_rows},
                   {"batch_tokens", &saved.batch_tokens}};
    const char *path = sbp_file_join(arena, directory, SBP_RUNDIR_CHECKPOINT), *text;
    size_t length;
    bool marked = false; /* as none was before this was written */
    SBP_TRY(sbp_file_read(arena, diag, path, &text, &length));
    SBP_TRY(sbp_json_parse(arena, diag, path, text, length, 0, &root));
    SBP_TRY(sbp_json_as_object(diag, root, &root));
    for (int i = 0; i < SBP_COUNT(members); i++) {
        SBP_TRY(sbp_json_get_i64(diag, root, members[i].name, SBP_JSON_REQUIRED, members[i].out));
        /* Sums and products of them stay exact. */
        if (*members[i].out < 0 || *members[i].out > (int64_t)1 << 53)
            return sbp_json_fail(diag, sbp_json_member(root, members[i].name),
                                 "%lld is not a count: 0 .. 2^53", (long long)*members[i].out);
    }
    SBP_TRY(check_step(diag, directory, saved.step));
    SBP_TRY(sbp_json_get_bool(diag, root, "marked", SBP_JSON_OPTIONAL, &marked));
    if (marked)
        make_mark(mark, text, length, saved.step);
    SBP_TRY(sbp_json_get_i64(diag, root, "evaluated", SBP_JSON_REQUIRED, &saved.evaluated));
    SBP_TRY(read_best(diag, root, &saved, &saved.best));
    SBP_TRY(sbp_json_get_i64(diag, root, "inner", SBP_JSON_OPTIONAL, &saved.inner));
    if (saved.inner < 0 || saved.inner > (int64_t)1 << 53)
        return sbp_json_fail(diag, sbp_json_member(root, "inner"), "%lld is not a count: 0 .. 2^53",
                             (long long)saved.inner);
    SBP_TRY(sbp_json_get_double(diag, root, "loss_sum", SBP_JSON_REQUIRED, &saved.loss_sum));
    SBP_TRY(sbp_json_get_bool(diag, root, "shuffle", SBP_JSON_REQUIRED, &saved.shuffle));
    SBP_TRY(sbp_json_get_string(diag, root, "data_hash", SBP_JSON_REQUIRED, &hash));
    snprintf(expected, sizeof expected, "%016llx", (unsigned long long)s->data_hash);
    if (strcmp(hash, expected) != 0)
        return sbp_fail(diag, SBP_INPUT, "%s: the run to be resumed had other data (hash %.20s, now %s)",
                        directory, hash, expected);
    SBP_TRY(sbp_json_get_string(diag, root, "matmuls", SBP_JSON_OPTIONAL, &matmuls));
    SBP_TRY(sbp_json_get_string(diag, root, "reference", SBP_JSON_OPTIONAL, &reference));
    SBP_TRY(sbp_json_get_string(diag, root, "base", SBP_JSON_OPTIONAL, &base));
    saved.base = strtoull(base, NULL, 16);
    if (saved.base != s->base)
        return sbp_fail(diag, SBP_INPUT,
                        "%s: the run to be resumed had other frozen weights (hash %016llx, now %016llx): the "
                        "file that they come from has changed",
                        directory, (unsigned long long)saved.base, (unsigned long long)s->base);
    saved.matmuls = strtoull(matmuls, NULL, 16);
    saved.reference = strtoull(reference, NULL, 16);
    SBP_TRY(must_equal(diag, directory, "--seed", saved.seed, s->seed));
    SBP_TRY(must_equal(diag, directory, "--batch-size", saved.batch_rows, s->batch_rows));
    SBP_TRY(must_equal(diag, directory, "--batch-tokens", saved.batch_tokens, s->batch_tokens));
    SBP_TRY(must_equal(diag, directory, "--shuffle", saved.shuffle, s->shuffle));
    saved.data_hash = s->data_hash;
    *s = saved;
    return SBP_OK;
}
