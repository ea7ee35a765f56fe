/* dataset.c: files of rows to documents in memory. */
#include "runtime/data/dataset.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/data/jsonl.h"

typedef struct dataset_loader {
    sbp_diag *diag;
    const sbp_dataset_options *options;
    sbp_row_options row_options;
    sbp_row_form form;
    sbp_document_maker maker;
    sbp_dataset *data;
    int64_t overlong_count; /* with SBP_OVERLONG_ERROR */
    char overlong_where[512];
    int64_t overlong_first, overlong_most;
    sbp_diag *row_diag; /* where rows may be wrong: their messages, before it is known what becomes of them */
} dataset_loader;

enum { SHOWN_BAD_ROWS = 5 };

/* One line on its way to a document. */
typedef struct line_job {
    dataset_loader *loader;
    sbp_arena *arena;
    const char *path, *text;
    int64_t line;
    size_t length;
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

static sbp_status add_document(dataset_loader *l, const sbp_document *d, int64_t first, int64_t count) {
    sbp_dataset *data = l->data;
    int64_t tokens = data->token_count, capacity = data->token_capacity, labels_capacity = capacity;
    if (!reserve(&data->tokens, &capacity, tokens + count, sizeof *data->tokens) ||
        !reserve(&data->labels, &labels_capacity, tokens + count, sizeof *data->labels) ||
        !reserve(&data->docs, &data->doc_capacity, data->doc_count + 1, sizeof *data->docs))
        return out_of_memory(l);
    data->token_capacity = capacity;
    memcpy(data->tokens + tokens, d->ids + first, (size_t)count * sizeof *d->ids);
    memcpy(data->labels + tokens, d->labels + first, (size_t)count * sizeof *d->labels);
    int64_t labels = 0;
    for (int64_t i = 1; i < count; i++)
        labels += d->labels[first + i] >= 0;
    data->docs[data->doc_count++] = (sbp_doc){
        .first = tokens, .count = count, .labels = labels, .row = data->read_count, .part = d->part};
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

static bool has_label(const sbp_document *d) {
    for (int64_t i = 0; i < d->count; i++)
        if (d->labels[i] >= 0)
            return true;
    return false;
}

/* What becomes of a document, as documents of one row. */
static sbp_status place_document(dataset_loader *l, const line_job *job, sbp_document d) {
    int64_t most = l->options->max_tokens;
    if (d.count == 0) {
        l->data->empty++;
        return SBP_OK;
    }
    if (most == 0 || d.count <= most) {
        if (l->options->overlong == SBP_OVERLONG_TRUNCATE && most > 0 && !has_label(&d)) {
            l->data->dropped++;
            return SBP_OK;
        }
        return add_document(l, &d, 0, d.count);
    }
    switch (l->options->overlong) {
    case SBP_OVERLONG_TRUNCATE:
        l->data->truncated++;
        d.count = most;
        if (!has_label(&d)) {
            l->data->dropped++;
            return SBP_OK;
        }
        return add_document(l, &d, 0, most);
    case SBP_OVERLONG_SPLIT:
        l->data->split++;
        for (int64_t at = 0; at < d.count; at += most)
            SBP_TRY(add_document(l, &d, at, d.count - at < most ? d.count - at : most));
        return SBP_OK;
    case SBP_OVERLONG_DROP:
        l->data->dropped++;
        return SBP_OK;
    default:
        if (l->overlong_count++ == 0) {
            size_t length = strlen(job->where);
            length = length < sizeof l->overlong_where ? length : sizeof l->overlong_where - 1;
            memcpy(l->overlong_where, job->where, length);
            l->overlong_first = d.count;
        }
        l->overlong_most = d.count > l->overlong_most ? d.count : l->overlong_most;
        return SBP_OK;
    }
}

static sbp_status make_row(void *user) {
    line_job *job = user;
    dataset_loader *l = job->loader;
    sbp_row row;
    job->where = sbp_arena_printf(job->arena, "%s:%lld", job->path, (long long)job->line);
    SBP_TRY(sbp_row_parse(job->arena, diag_of(l), job->where, job->text, job->length, &l->row_options,
                          &l->form, &row));
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

static sbp_status visit_line(void *user, const char *path, int64_t line, const char *text, size_t length) {
    dataset_loader *l = user;
    line_job job = {.loader = l, .path = path, .text = text, .line = line, .length = length};
    job.arena = sbp_arena_create();
    if (!job.arena)
        return out_of_memory(l);
    int64_t docs = l->data->doc_count;
    sbp_row_form form = l->form;
    sbp_status status = sbp_guard(job.arena, l->diag, make_row, &job);
    if (status == SBP_INPUT && l->row_diag) {
        l->data->bad++;
        l->form = form;
        status = SBP_OK;
        sbp_diag_clear(l->row_diag);
    } else {
        for (int32_t i = 0; status == SBP_OK && i < job.documents.count; i++)
            status = place_document(l, &job, job.documents.documents[i]);
    }
    if (status == SBP_OK && l->data->doc_count > docs) {
        if (reserve(&l->data->rows, &l->data->row_capacity, l->data->row_count + 2, sizeof *l->data->rows)) {
            l->data->rows[l->data->row_count++] = docs;
            l->data->rows[l->data->row_count] = l->data->doc_count;
        } else {
            status = out_of_memory(l);
        }
    }
    l->data->read_count++;
    sbp_arena_destroy(job.arena);
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
        return sbp_fail(
            l->diag, SBP_INPUT,
            "%s: a document of %lld tokens, the plan has room for %lld; %lld such row%s, the longest "
            "of %lld tokens: compile with --seq-len %lld, or give --overlong truncate, split or drop",
            l->overlong_where, (long long)l->overlong_first, (long long)o->max_tokens,
            (long long)l->overlong_count, l->overlong_count == 1 ? "" : "s", (long long)l->overlong_most,
            (long long)l->overlong_most);
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
    d->hash = sbp_hash_bytes(d->rows, (size_t)d->row_count * sizeof *d->rows, hash);
}

static sbp_status load_files(dataset_loader *l) {
    if (l->options->skip_bad_rows)
        sbp_diag_set_sink(l->row_diag, forward, l);
    for (int32_t i = 0; i < l->options->file_count; i++)
        SBP_TRY(sbp_lines_read(l->diag, l->options->files[i], visit_line, l));
    SBP_TRY(check_all(l));
    hash_all(l->data);
    return SBP_OK;
}

sbp_status sbp_dataset_load(sbp_diag *diag, const sbp_dataset_options *options, sbp_dataset **out) {
    dataset_loader l = {.diag = diag,
                        .options = options,
                        .row_options = {.text_field = options->text_field,
                                        .vocab_size = options->vocab_size,
                                        .no_pairs = "the objective trains on single texts"},
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
    free(data->rows);
    free(data);
}

int64_t sbp_dataset_row_tokens(const sbp_dataset *data, int64_t row) {
    int64_t tokens = 0;
    for (int64_t d = data->rows[row]; d < data->rows[row + 1]; d++)
        tokens += data->docs[d].count;
    return tokens;
}
