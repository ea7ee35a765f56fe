/* dataset.c: files of rows to documents in memory. */
#include "runtime/data/dataset.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>


typedef struct dataset_loader {
    sbp_diag *diag;
    const sbp_dataset_options *options;
    sbp_row_options row_options;
    sbp_row_form form;
    sbp_document_maker maker;
    sbp_dataset *data;
    int64_t overlong_count; /* with SBP_OVERLONG_ERROR */
    char overlong_what[700];
    bool overlong_pairs;
    int64_t overlong_most;
    sbp_diag *row_diag; /* where rows may be wrong: their messages, before it is known what becomes of them */
} dataset_loader;

enum { SHOWN_BAD_ROWS = 5 };

/* One row on its way to documents. */
typedef struct line_job {
    dataset_loader *loader;
    sbp_arena *arena;
    const sbp_record *record;
    const char *where;
    sbp_documents documents;
} line_job;

/* ---- growing ---------------------------------------------------------------------------------------- */

/* Makes room for `count` elements; false when out of memory. */
static bool reserve(void *pointer, int64_t *capacity, int64_t count, size_t element_bytes) {
    if (count <= *capacity)
        return true;
    int64_t wanted = *capacity + *capacity / 2;
    wanted = wanted < count ? count : wanted;
    wanted = wanted < 64 ? 64 : wanted;
    void **array = pointer;
    void *larger = sbp_realloc(*array, (size_t)wanted * element_bytes);
    if (!larger)
        return false;
    *array = larger;
    *capacity = wanted;
    return true;
}

static sbp_status out_of_memory(const dataset_loader *l) {
    return sbp_fail(l->diag, SBP_MACHINE, "out of memory for the data, after %lld rows and %lld tokens",
                    (long long)l->data->row_count, (long long)l->data->token_count);
}

/* Place of a name among those that the data know; -1: no room for another. */
static int32_t place_of(const char **names, int32_t *count, int32_t most, const char *name) {
    for (int32_t i = 0; i < *count; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    if (*count == most)
        return -1;
    names[*count] = name;
    return (*count)++;
}

/* Room in every array of numbers for what has been added; new places are 0. */
static bool pad(double **values, int64_t *capacities, int32_t arrays, int64_t count, int64_t added) {
    for (int32_t k = 0; k < arrays; k++) {
        bool fresh = values[k] == NULL;
        if (!reserve(&values[k], &capacities[k], count + added, sizeof **values))
            return false;
        int64_t from = fresh ? 0 : count;
        memset(values[k] + from, 0, (size_t)(count + added - from) * sizeof **values);
    }
    return true;
}

/* What stands beside the tokens of a document that becomes number doc_count. */
static sbp_status add_numbers(dataset_loader *l, const sbp_document *d, sbp_doc *doc) {
    sbp_dataset *data = l->data;
    const int64_t count = d->count;
    int32_t columns[SBP_DOCUMENT_COLUMNS], numbers[SBP_DOCUMENT_NUMBERS];
    bool room = true;
    for (int32_t k = 0; k < d->column_count; k++)
        room &= (columns[k] = place_of(data->column_names, &data->column_count, SBP_DATA_COLUMNS,
                                       d->columns[k].name)) >= 0;
    for (int32_t k = 0; k < d->number_count; k++)
        room &= (numbers[k] = place_of(data->number_names, &data->number_count, SBP_DATA_NUMBERS,
                                       d->numbers[k].name)) >= 0;
    if (!room)
        return sbp_fail(l->diag, SBP_INTERNAL, "more than %d columns or %d numbers of documents",
                        SBP_DATA_COLUMNS, SBP_DATA_NUMBERS);
    if (!pad(data->columns, data->column_capacity, data->column_count, data->token_count, count) ||
        !pad(data->numbers, data->number_capacity, data->number_count, data->doc_count, 1))
        return out_of_memory(l);
    for (int32_t k = 0; k < d->column_count; k++) {
        memcpy(data->columns[columns[k]] + data->token_count, d->columns[k].values,
               (size_t)count * sizeof(double));
        doc->columns |= 1u << columns[k];
    }
    for (int32_t k = 0; k < d->number_count; k++) {
        data->numbers[numbers[k]][data->doc_count] = d->numbers[k].value;
        doc->numbers |= 1u << numbers[k];
    }
    return SBP_OK;
}

static sbp_status add_document(dataset_loader *l, const sbp_document *d) {
    sbp_dataset *data = l->data;
    const int64_t count = d->count;
    int64_t tokens = data->token_count, capacity = data->token_capacity, labels_capacity = capacity;
    if (!reserve(&data->tokens, &capacity, tokens + count, sizeof *data->tokens) ||
        !reserve(&data->labels, &labels_capacity, tokens + count, sizeof *data->labels) ||
        !reserve(&data->docs, &data->doc_capacity, data->doc_count + 1, sizeof *data->docs))
        return out_of_memory(l);
    data->token_capacity = capacity;
    memcpy(data->tokens + tokens, d->ids, (size_t)count * sizeof *d->ids);
    memcpy(data->labels + tokens, d->labels, (size_t)count * sizeof *d->labels);
    int64_t labels = 0;
    for (int64_t i = 1; i < count; i++)
        labels += d->labels[i] >= 0;
    sbp_doc doc = {
        .first = tokens, .count = count, .labels = labels, .row = data->read_count, .part = d->part};
    SBP_TRY(add_numbers(l, d, &doc));
    data->docs[data->doc_count++] = doc;
    data->token_count += count;
    data->label_count += labels;
    data->longest = count > data->longest ? count : data->longest;
    return SBP_OK;
}

/* ---- rows ------------------------------------------------------------------------------------------- */

static sbp_diag *diag_of(const dataset_loader *l) {
    return l->row_diag ? l->row_diag : l->diag;
}

static sbp_status check_ids(const line_job *job, const sbp_document *d) {
    int64_t vocab = job->loader->options->vocab_size;
    for (int64_t i = 0; vocab > 0 && i < d->count; i++)
        if (d->ids[i] >= vocab)
            return sbp_fail(
                diag_of(job->loader), SBP_INPUT,
                "%s: token %lld is id %d ('%.40s'), which is not below the model's vocabulary of %lld",
                job->where, (long long)i, d->ids[i],
                job->loader->options->tokenizer
                    ? sbp_tokenizer_token(job->loader->options->tokenizer, d->ids[i], NULL)
                    : "?",
                (long long)vocab);
    return SBP_OK;
}

static void note_overlong(dataset_loader *l, const line_job *job, int64_t tokens) {
    if (l->overlong_count++ == 0)
        snprintf(l->overlong_what, sizeof l->overlong_what, "%.500s: %.150s", job->where,
                 sbp_documents_lengths(job->arena, &job->documents));
    l->overlong_pairs |= job->documents.count > 1;
    l->overlong_most = tokens > l->overlong_most ? tokens : l->overlong_most;
}

/* What becomes of the documents of a row. */
static sbp_status place_row(void *user) {
    line_job *job = user;
    dataset_loader *l = job->loader;
    sbp_fit fit =
        sbp_documents_fit(job->arena, &job->documents, l->options->max_tokens, l->options->overlong);
    int64_t tokens = sbp_documents_tokens(&job->documents);
    if (fit == SBP_FIT_EMPTY || fit == SBP_FIT_CUT_AWAY || fit == SBP_FIT_DROPPED) {
        *(fit == SBP_FIT_EMPTY ? &l->data->empty : &l->data->dropped) += 1;
        return SBP_OK;
    }
    if (fit == SBP_FIT_OVERLONG) {
        note_overlong(l, job, tokens);
        return SBP_OK;
    }
    l->data->truncated += fit == SBP_FIT_CUT;
    l->data->split += fit == SBP_FIT_SPLIT;
    for (int32_t i = 0; i < job->documents.count; i++)
        SBP_TRY(add_document(l, &job->documents.documents[i]));
    if (fit != SBP_FIT_SPLIT)
        l->data->longest = tokens > l->data->longest ? tokens : l->data->longest;
    return SBP_OK;
}

static sbp_status make_row(void *user) {
    line_job *job = user;
    dataset_loader *l = job->loader;
    sbp_row row;
    const sbp_json *tree;
    SBP_TRY(sbp_record_parse(job->record, job->arena, diag_of(l), &tree));
    SBP_TRY(sbp_columns_rename(&l->options->columns, job->arena, diag_of(l), job->where, tree, &tree));
    SBP_TRY(sbp_row_read(job->arena, diag_of(l), job->where, tree, &l->row_options, &l->form, &row));
    l->data->texts &= row.form.type != SBP_ROW_PAIR && row.form.type != SBP_ROW_PROMPT;
    if (l->options->rows == SBP_ROWS_PAIRS && row.form.type != SBP_ROW_PAIR)
        return sbp_fail(diag_of(l), SBP_INPUT,
                        "%s: the objective compares two answers: 'chosen' and 'rejected' are expected",
                        job->where);
    SBP_TRY(sbp_documents_make(&l->maker, job->arena, &row, &job->documents));
    for (int32_t i = 0; i < job->documents.count; i++)
        SBP_TRY(check_ids(job, &job->documents.documents[i]));
    return SBP_OK;
}

/* What rows say that are not wrong goes on; of those that are, a warning for the first ones. */
static void forward(void *user, sbp_severity severity, const char *text) {
    dataset_loader *l = user;
    if (severity == SBP_NOTE)
        sbp_note(l->diag, "%s", text);
    else if (severity == SBP_WARNING || l->data->bad < SHOWN_BAD_ROWS)
        sbp_warn(l->diag, "%s%s", text, severity == SBP_ERROR ? " (row left out)" : "");
}

/* The key of the row that is added; false when out of memory. */
static bool add_group(sbp_dataset *d, uint64_t group) {
    bool first = !d->groups;
    if (first && group == 0)
        return true;
    if (!reserve(&d->groups, &d->group_capacity, d->row_count + 1, sizeof *d->groups))
        return false;
    if (first)
        memset(d->groups, 0, (size_t)d->row_count * sizeof *d->groups);
    d->groups[d->row_count] = group;
    return true;
}

/* The arena is the record's. */
static sbp_status visit_record(dataset_loader *l, sbp_arena *arena, const sbp_record *record) {
    line_job job = {.loader = l, .arena = arena, .record = record, .where = record->where};
    int64_t docs = l->data->doc_count;
    sbp_row_form form = l->form;
    sbp_status status = sbp_guard(job.arena, l->diag, make_row, &job);
    if (status == SBP_INPUT && l->row_diag) {
        l->data->bad++;
        l->form = form;
        status = SBP_OK;
        sbp_diag_clear(l->row_diag);
    } else {
        if (status == SBP_OK)
            status = sbp_guard(job.arena, l->diag, place_row, &job);
    }
    if (status == SBP_OK && l->data->doc_count > docs) {
        if (add_group(l->data, job.documents.group) &&
            reserve(&l->data->rows, &l->data->row_capacity, l->data->row_count + 2, sizeof *l->data->rows)) {
            l->data->rows[l->data->row_count++] = docs;
            l->data->rows[l->data->row_count] = l->data->doc_count;
        } else {
            status = out_of_memory(l);
        }
    }
    l->data->read_count++;
    return status;
}

static sbp_status read_file(dataset_loader *l, const char *path) {
    sbp_source *source = NULL;
    sbp_status status = sbp_source_open(l->diag, path, &source);
    for (bool end = false; status == SBP_OK && !end;) {
        sbp_record record;
        sbp_arena *arena = sbp_arena_create();
        status = arena ? sbp_source_read(source, arena, l->diag, &record, &end) : out_of_memory(l);
        if (status == SBP_OK && !end)
            status = visit_record(l, arena, &record);
        sbp_arena_destroy(arena);
    }
    sbp_source_close(source);
    return status;
}

/* ---- the whole -------------------------------------------------------------------------------------- */

static void say(const dataset_loader *l, int64_t count, const char *what) {
    if (count > 0)
        sbp_note(l->diag, "%lld of %lld rows %s", (long long)count, (long long)l->data->read_count, what);
}

static sbp_status check_all(const dataset_loader *l) {
    const sbp_dataset *d = l->data;
    const sbp_dataset_options *o = l->options;
    if (l->overlong_count > 0)
        return sbp_fail(l->diag, SBP_INPUT,
                        "%s, the plan has room for %lld; %lld such row%s, the longest of %lld tokens: "
                        "compile with --seq-len %lld, or give --overlong truncate%s or drop",
                        l->overlong_what, (long long)o->max_tokens, (long long)l->overlong_count,
                        l->overlong_count == 1 ? "" : "s", (long long)l->overlong_most,
                        (long long)l->overlong_most, l->overlong_pairs ? "" : ", split");
    say(l, d->truncated, "cut to the greatest length");
    say(l, d->split, "split at the greatest length");
    say(l, d->dropped,
        o->overlong == SBP_OVERLONG_DROP ? "left out: too long"
                                         : "left out: no label within the greatest length");
    say(l, d->empty, "left out: no tokens");
    say(l, d->bad, "left out: they are wrong");
    if (d->row_count == 0)
        return sbp_fail(l->diag, SBP_INPUT, "%s%s: no rows%s", o->file_count ? o->files[0] : "data",
                        o->file_count > 1 ? " ..." : "", d->read_count ? " are left" : "");
    if (d->label_count == 0)
        sbp_warn(l->diag, "no token of the data counts: the loss and all gradients are zero");
    return SBP_OK;
}

static void hash_all(sbp_dataset *d) {
    uint64_t hash = sbp_hash_bytes(d->tokens, (size_t)d->token_count * sizeof *d->tokens, 0);
    hash = sbp_hash_bytes(d->labels, (size_t)d->token_count * sizeof *d->labels, hash);
    for (int64_t i = 0; i < d->doc_count; i++)
        hash = sbp_hash_bytes(&d->docs[i].count, sizeof d->docs[i].count, hash);
    for (int32_t k = 0; k < d->column_count; k++)
        hash = sbp_hash_bytes(d->columns[k], (size_t)d->token_count * sizeof(double), hash);
    for (int32_t k = 0; k < d->number_count; k++)
        hash = sbp_hash_bytes(d->numbers[k], (size_t)d->doc_count * sizeof(double), hash);
    d->hash = sbp_hash_bytes(d->rows, (size_t)d->row_count * sizeof *d->rows, hash);
    if (d->groups)
        d->hash = sbp_hash_bytes(d->groups, (size_t)d->row_count * sizeof *d->groups, d->hash);
}

static sbp_status load_files(dataset_loader *l) {
    if (l->options->skip_bad_rows)
        sbp_diag_set_sink(l->row_diag, forward, l);
    for (int32_t i = 0; i < l->options->file_count; i++)
        SBP_TRY(read_file(l, l->options->files[i]));
    SBP_TRY(check_all(l));
    hash_all(l->data);
    return SBP_OK;
}

sbp_status sbp_dataset_load(sbp_diag *diag, const sbp_dataset_options *options, sbp_dataset **out) {
    dataset_loader l = {
        .diag = diag,
        .options = options,
        .row_options = {.text_field = options->text_field,
                        .vocab_size = options->vocab_size,
                        .fields = options->rows == SBP_ROWS_SCORED || options->rows == SBP_ROWS_PAIRS,
                        .no_pairs = options->rows == SBP_ROWS_TEXTS || options->rows == SBP_ROWS_SCORED
                                        ? "the objective trains on single texts"
                                        : NULL},
        .row_diag = options->skip_bad_rows ? sbp_diag_create() : NULL,
        .maker = {.tokenizer = options->tokenizer,
                  .loss_on = options->loss_on,
                  .diag = diag,
                  .eos = options->eos,
                  .chat_options = options->chat,
                  .chat_arena = sbp_arena_create()}};
    l.data = sbp_malloc(sizeof *l.data);
    sbp_status status = SBP_MACHINE;
    if (l.data)
        memset(l.data, 0, sizeof *l.data);
    if (!l.data || !l.maker.chat_arena || (options->skip_bad_rows && !l.row_diag)) {
        status = sbp_fail(diag, SBP_MACHINE, "out of memory for the data");
    } else {
        l.data->texts = true;
        l.maker.diag = diag_of(&l);
        status = load_files(&l);
    }
    sbp_arena_destroy(l.maker.chat_arena);
    sbp_diag_destroy(l.row_diag);
    if (status == SBP_OK)
        *out = l.data;
    else
        sbp_dataset_destroy(l.data);
    return status;
}

void sbp_dataset_destroy(sbp_dataset *data) {
    if (!data)
        return;
    free(data->tokens);
    free(data->labels);
    free(data->docs);
    for (int32_t k = 0; k < SBP_DATA_COLUMNS; k++)
        free(data->columns[k]);
    for (int32_t k = 0; k < SBP_DATA_NUMBERS; k++)
        free(data->numbers[k]);
    free(data->rows);
    free(data->groups);
    free(data);
}

int64_t sbp_dataset_row_tokens(const sbp_dataset *data, int64_t row) {
    int64_t tokens = 0;
    for (int64_t d = data->rows[row]; d < data->rows[row + 1]; d++)
        tokens += data->docs[d].count;
    return tokens;
}

bool sbp_dataset_begins_group(const sbp_dataset *data, int64_t row) {
    return !data->groups || row == 0 || data->groups[row] == 0 || data->groups[row] != data->groups[row - 1];
}
