/* scored.c: log-probabilities of a reference: computed, read, kept. */
#include "runtime/train/scored.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "frontends/formats/weights/safetensors.h"
#include "ir/base/json.h"
#include "runtime/data/groups.h"
#include "runtime/data/jsonl.h"

static const char per_token[] = "ref_logps", sums[] = "ref_logps_sum";

bool sbp_reference_is_lacking(const sbp_program *program, const sbp_dataset *data, bool optional) {
    bool can_do_without;
    if (sbp_dataset_column(data, per_token) < 0 && sbp_pack_reads(program, per_token, &can_do_without) &&
        (optional || !can_do_without))
        return true;
    return sbp_dataset_number(data, sums) < 0 && sbp_pack_reads(program, sums, &can_do_without) &&
           (optional || !can_do_without);
}

bool sbp_reference_is_read(const sbp_program *program) {
    bool optional;
    return sbp_pack_reads(program, per_token, &optional) || sbp_pack_reads(program, sums, &optional);
}

/* Where the numbers of a data set go; NULL: not wanted, or the rows have them. */
typedef struct places {
    double *tokens, *sums;
} places;

static bool wants(const sbp_program *program, const sbp_dataset *data, const char *name) {
    bool optional;
    return sbp_pack_reads(program, name, &optional) && sbp_dataset_column(data, name) < 0 &&
           sbp_dataset_number(data, name) < 0;
}

static sbp_status open_places(const sbp_program *program, const sbp_dataset *data, sbp_diag *diag,
                              places *out) {
    size_t tokens = wants(program, data, per_token) ? (size_t)data->token_count + 1 : 0;
    size_t docs = wants(program, data, sums) ? (size_t)data->doc_count + 1 : 0;
    *out = (places){0};
    if (tokens)
        out->tokens = sbp_malloc(tokens * sizeof(double));
    if (docs)
        out->sums = sbp_malloc(docs * sizeof(double));
    if ((tokens && !out->tokens) || (docs && !out->sums)) {
        free(out->tokens);
        free(out->sums);
        return sbp_fail(diag, SBP_MACHINE, "out of memory for log-probabilities of %lld tokens",
                        (long long)data->token_count);
    }
    for (size_t i = 0; i < tokens; i++)
        out->tokens[i] = 0;
    for (size_t i = 0; i < docs; i++)
        out->sums[i] = 0;
    return SBP_OK;
}

/* On success the data have them, else they are gone. */
static sbp_status close_places(places *p, sbp_dataset *data, sbp_diag *diag, sbp_status status) {
    if (status == SBP_OK && p->tokens) {
        status = sbp_dataset_add_column(data, diag, per_token, p->tokens);
        p->tokens = NULL;
    }
    if (status == SBP_OK && p->sums) {
        status = sbp_dataset_add_number(data, diag, sums, p->sums);
        p->sums = NULL;
    }
    free(p->tokens);
    free(p->sums);
    return status;
}

/* The log-probabilities of the counted labels of document d. */
static void put_document(const places *p, const sbp_dataset *data, int64_t d, const double *logps) {
    const sbp_doc *doc = &data->docs[d];
    double sum = 0;
    for (int64_t i = 1, k = 0; i < doc->count; i++) {
        if (data->labels[doc->first + i] < 0)
            continue;
        sum += logps[k];
        if (p->tokens)
            p->tokens[doc->first + i] = logps[k];
        k++;
    }
    if (p->sums)
        p->sums[d] = sum;
}

/* ---- by scoring ------------------------------------------------------------------------------------- */

/* The numbers of the data that were computed before; NULL: none. */
static places places_of(const sbp_dataset *data) {
    int32_t column = sbp_dataset_column(data, per_token), number = sbp_dataset_number(data, sums);
    return (places){column >= 0 ? data->columns[column] : NULL, number >= 0 ? data->numbers[number] : NULL};
}

/* NaN stands for what was not scored, and the loss would be none if it was read. */
static bool is_scored(const places *p, const sbp_dataset *data, int64_t d) {
    const sbp_doc *doc = &data->docs[d];
    bool scored = !p->sums || !isnan(p->sums[d]);
    for (int64_t i = 1; p->tokens && i < doc->count; i++)
        scored &= data->labels[doc->first + i] < 0 || !isnan(p->tokens[doc->first + i]);
    return scored;
}

static void mark_missing(const places *p, const sbp_dataset *data) {
    for (int64_t d = 0; d < data->doc_count; d++) {
        const sbp_doc *doc = &data->docs[d];
        for (int64_t i = 1; p->tokens && i < doc->count; i++)
            if (data->labels[doc->first + i] >= 0)
                p->tokens[doc->first + i] = NAN;
        if (p->sums)
            p->sums[d] = NAN;
    }
}

sbp_status sbp_reference_missing(sbp_diag *diag, const sbp_dataset *data, const uint8_t *wanted, bool kept,
                                 int64_t **rows, int64_t *count) {
    const places p = places_of(data);
    *count = 0;
    *rows = sbp_malloc((size_t)(data->row_count + 1) * sizeof **rows);
    if (!*rows)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for %lld rows", (long long)data->row_count);
    for (int64_t r = 0; r < data->row_count; r++) {
        bool missing = !kept || (!p.tokens && !p.sums);
        for (int64_t d = data->rows[r]; !missing && d < data->rows[r + 1]; d++)
            missing = !is_scored(&p, data, d);
        if (missing && (!wanted || wanted[r]))
            (*rows)[(*count)++] = r;
    }
    return SBP_OK;
}

typedef struct scoring {
    sbp_diag *diag;
    const sbp_dataset *data;
    places to;
    int64_t done, docs;
    void (*progress)(void *user, double share);
    void *user;
} scoring;

static sbp_status take_score(void *user, const sbp_score *score) {
    scoring *s = user;
    int64_t d = score->doc - s->data->docs;
    for (int32_t i = 0; i < score->doc->labels; i++)
        if (!isfinite(score->logps[i]))
            return sbp_fail(s->diag, SBP_NOT_FINITE,
                            "data row %lld (from 1): log-probability %d of the reference is %g",
                            (long long)score->doc->row + 1, i, score->logps[i]);
    put_document(&s->to, s->data, d, score->logps);
    s->done++;
    if (s->progress)
        s->progress(s->user, (double)s->done / (double)s->docs);
    return SBP_OK;
}

sbp_status sbp_reference_score(sbp_trainer *t, sbp_diag *diag, sbp_dataset *data, const int64_t *rows,
                               int64_t row_count, void (*progress)(void *user, double share), void *user) {
    scoring s = {.diag = diag, .data = data, .progress = progress, .user = user};
    bool fresh = wants(t->program, data, per_token) || wants(t->program, data, sums);
    for (int64_t k = 0; k < row_count; k++)
        s.docs += data->rows[rows[k] + 1] - data->rows[rows[k]];
    if (!fresh) { /* the rest of what there is */
        s.to = places_of(data);
        return sbp_trainer_score_rows(t, diag, data, rows, row_count, take_score, &s);
    }
    SBP_TRY(open_places(t->program, data, diag, &s.to));
    mark_missing(&s.to, data);
    sbp_status status = sbp_trainer_score_rows(t, diag, data, rows, row_count, take_score, &s);
    return close_places(&s.to, data, diag, status);
}

/* ---- of another run --------------------------------------------------------------------------------- */

typedef struct reading {
    sbp_diag *diag;
    const sbp_dataset *data;
    places to;
    int64_t *order; /* of documents in files (groups.h); NULL: their own */
    int64_t at;     /* in it, of the one that comes next */
    int64_t last_row;
} reading;

/* The document that comes next; -1: none. */
static int64_t next_doc(const reading *r) {
    return r->at == r->data->doc_count ? -1 : r->order ? r->order[r->at] : r->at;
}

typedef struct line_job {
    reading *r;
    sbp_arena *arena;
    const char *where, *text;
    size_t length;
} line_job;

static sbp_status fail_missing(const reading *r, const char *where, int64_t found, const char *part) {
    const sbp_doc *doc = &r->data->docs[next_doc(r)];
    char next[80] = "the end of the file";
    if (part)
        snprintf(next, sizeof next, "row %lld, '%.40s'", (long long)found, part);
    return sbp_fail(
        r->diag, SBP_INPUT,
        "%s: expected the log-probabilities of row %lld, '%s' (rows count from 0), found %s: they are "
        "of other data",
        where, (long long)doc->row, sbp_doc_part(doc), next);
}

static sbp_status read_line(void *user) {
    line_job *job = user;
    reading *r = job->r;
    const sbp_json *root, *list;
    const char *part = "";
    int64_t row = 0;
    SBP_TRY(sbp_json_parse(job->arena, r->diag, job->where, job->text, job->length, 0, &root));
    SBP_TRY(sbp_json_as_object(r->diag, root, &root));
    SBP_TRY(sbp_json_get_i64(r->diag, root, "row", SBP_JSON_REQUIRED, &row));
    SBP_TRY(sbp_json_get_string(r->diag, root, "part", SBP_JSON_REQUIRED, &part));
    SBP_TRY(sbp_json_get_array(r->diag, root, "logps", SBP_JSON_REQUIRED, &list));
    const sbp_doc *doc = next_doc(r) >= 0 ? &r->data->docs[next_doc(r)] : NULL;
    if (row < r->last_row)
        return sbp_fail(r->diag, SBP_INPUT,
                        "%s: row %lld comes after row %lld: expected the order of the data", job->where,
                        (long long)row, (long long)r->last_row);
    r->last_row = row;
    if (!doc || row < doc->row)
        return SBP_OK; /* of a row that is left out here */
    if (row > doc->row || strcmp(part, sbp_doc_part(doc)) != 0)
        return fail_missing(r, job->where, row, part);
    if (list->count != doc->labels)
        return sbp_fail(r->diag, SBP_INPUT,
                        "%s: row %lld, '%s', has %lld log-probabilities, %d labels count in the data: it was "
                        "tokenized or cut otherwise",
                        job->where, (long long)row, part, (long long)list->count, doc->labels);
    double *logps = SBP_NEW_ARRAY(job->arena, double, list->count + 1);
    for (int64_t i = 0; i < list->count; i++)
        SBP_TRY(sbp_json_as_double(r->diag, &list->items[i], &logps[i]));
    put_document(&r->to, r->data, next_doc(r), logps);
    r->at++;
    return SBP_OK;
}

static sbp_status visit_line(void *user, const char *path, int64_t line, const char *text, size_t length) {
    reading *r = user;
    char where[600];
    snprintf(where, sizeof where, "%.500s:%lld", path, (long long)line);
    line_job job = {r, sbp_arena_create(), where, text, length};
    if (!job.arena)
        return sbp_fail(r->diag, SBP_MACHINE, "%s: out of memory for the scores that are kept", where);
    sbp_status status = sbp_guard(job.arena, r->diag, read_line, &job);
    sbp_arena_destroy(job.arena);
    return status;
}

sbp_status sbp_reference_read(sbp_diag *diag, const sbp_program *program, sbp_dataset *data,
                              const char *path) {
    reading r = {.diag = diag, .data = data};
    SBP_TRY(sbp_dataset_file_order(diag, data, &r.order));
    sbp_status status = open_places(program, data, diag, &r.to);
    if (status == SBP_OK) {
        status = sbp_lines_read(diag, path, visit_line, &r);
        if (status == SBP_OK && next_doc(&r) >= 0)
            status = fail_missing(&r, path, 0, NULL);
        status = close_places(&r.to, data, diag, status);
    }
    free(r.order);
    return status;
}

/* ---- weights ---------------------------------------------------------------------------------------- */

sbp_status sbp_reference_hash_weights(sbp_executor *executor, const sbp_plan *plan, sbp_diag *diag,
                                      uint64_t *out) {
    *out = 1;
    for (int32_t k = 0; k < plan->tensors->count; k++) {
        const sbp_tensor_entry *tensor = &plan->tensors->tensors[k];
        const char *name = tensor->recipes[0].source;
        *out = sbp_hash_bytes(name, strlen(name), *out);
        for (int32_t i = 0; tensor->format && i < sbp_format_of(tensor->format)->part_count; i++)
            SBP_TRY(sbp_executor_hash(executor, plan->parts[k][i], out, diag));
        if (!tensor->format)
            SBP_TRY(sbp_executor_hash(executor, plan->buffers[k], out, diag));
        if (plan->masters[k] >= 0)
            SBP_TRY(sbp_executor_hash(executor, plan->masters[k], out, diag));
    }
    *out = *out ? *out : 1;
    return SBP_OK;
}

/* ---- files ------------------------------------------------------------------------------------------ */

enum { KEYS = 4 };

typedef struct file_job {
    sbp_arena *arena;
    sbp_diag *diag;
    const sbp_dataset *data;
    const char *path;
    sbp_reference_key *key;
    places to;
    bool *found;
} file_job;

static uint64_t hash_values(const places *p, const sbp_dataset *data) {
    uint64_t hash = 1;
    if (p->tokens)
        hash = sbp_hash_bytes(p->tokens, (size_t)data->token_count * sizeof(double), hash);
    if (p->sums)
        hash = sbp_hash_bytes(p->sums, (size_t)data->doc_count * sizeof(double), hash);
    return hash;
}

static const char *as_text(sbp_arena *arena, uint64_t hash) {
    return sbp_arena_printf(arena, "%016" PRIx64, hash);
}

static sbp_status save_body(void *user) {
    const file_job *job = user;
    const sbp_dataset *data = job->data;
    int32_t count = 0;
    const places from = places_of(data);
    sbp_tensor_spec specs[2];
    if (from.tokens)
        specs[count++] = (sbp_tensor_spec){per_token, SBP_F64, 1, &data->token_count};
    if (from.sums)
        specs[count++] = (sbp_tensor_spec){sums, SBP_F64, 1, &data->doc_count};
    const sbp_key_value keys[KEYS] = {{"weights", as_text(job->arena, job->key->weights)},
                                      {"data", as_text(job->arena, job->key->data)},
                                      {"settings", as_text(job->arena, job->key->settings)},
                                      {"values", as_text(job->arena, hash_values(&from, data))}};
    sbp_safetensors_writer *writer;
    SBP_TRY(sbp_safetensors_writer_create(job->arena, job->diag, job->path, specs, count, keys, KEYS, 0,
                                          &writer));
    sbp_status status = SBP_OK;
    if (from.tokens)
        status = sbp_safetensors_writer_write(writer, job->diag, from.tokens, data->token_count * 8);
    if (status == SBP_OK && from.sums)
        status = sbp_safetensors_writer_write(writer, job->diag, from.sums, data->doc_count * 8);
    if (status == SBP_OK)
        return sbp_safetensors_writer_commit(writer, job->diag);
    sbp_safetensors_writer_abort(writer);
    return status;
}

static sbp_status run_file_job(file_job *job, sbp_status (*body)(void *user)) {
    job->arena = sbp_arena_create();
    if (!job->arena)
        return sbp_fail(job->diag, SBP_MACHINE, "out of memory for the scores that are kept");
    sbp_status status = sbp_guard(job->arena, job->diag, body, job);
    sbp_arena_destroy(job->arena);
    return status;
}

sbp_status sbp_reference_save(sbp_diag *diag, const sbp_dataset *data, const char *path,
                              const sbp_reference_key *key) {
    sbp_reference_key copy = *key;
    file_job job = {.diag = diag, .data = data, .path = path, .key = &copy};
    return run_file_job(&job, save_body);
}

static bool has_key(const file_job *job, const sbp_weights *file, const char *name, uint64_t wanted) {
    const char *text = sbp_weights_metadata(file, name);
    return text && strcmp(text, as_text(job->arena, wanted)) == 0;
}

/* All of a tensor of this name and length; false: it is not there. */
static bool read_values(const sbp_weights *file, const char *name, int64_t count, double *out) {
    const sbp_weight *weight = sbp_weights_find(file, name);
    return weight && weight->elems == count &&
           sbp_weights_read(file, weight, 0, count, SBP_F64, out, NULL) == SBP_OK;
}

static bool take_file(file_job *job, const sbp_weights *file) {
    const char *weights = sbp_weights_metadata(file, "weights");
    uint64_t of = weights ? strtoull(weights, NULL, 16) : 0;
    if (of == 0 || (job->key->weights != 0 && job->key->weights != of) ||
        !has_key(job, file, "data", job->key->data) || !has_key(job, file, "settings", job->key->settings))
        return false;
    if (job->to.tokens && !read_values(file, per_token, job->data->token_count, job->to.tokens))
        return false;
    if (job->to.sums && !read_values(file, sums, job->data->doc_count, job->to.sums))
        return false;
    job->key->weights = of;
    return has_key(job, file, "values", hash_values(&job->to, job->data));
}

static sbp_status load_body(void *user) {
    file_job *job = user;
    sbp_weights *file;
    if (!sbp_file_exists(job->path) || sbp_weights_open(job->arena, NULL, job->path, &file) != SBP_OK)
        return SBP_OK;
    *job->found = take_file(job, file);
    sbp_weights_close(file);
    return SBP_OK;
}

sbp_status sbp_reference_load(sbp_diag *diag, const sbp_program *program, sbp_dataset *data, const char *path,
                              sbp_reference_key *key, bool *found) {
    file_job job = {.diag = diag, .data = data, .path = path, .key = key, .found = found};
    *found = false;
    SBP_TRY(open_places(program, data, diag, &job.to));
    sbp_status status = run_file_job(&job, load_body);
    if (status == SBP_OK && *found)
        return close_places(&job.to, data, diag, SBP_OK);
    free(job.to.tokens);
    free(job.to.sums);
    return status;
}
