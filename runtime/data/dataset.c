/* dataset.c: what becomes of the documents of rows: arrays, lengths, numbers beside them. */
#include "runtime/data/dataset.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ir/program/routed.h"
#include "runtime/data/load.h"

/* A row on its way into the data. */
typedef struct place_job {
    sbp_placer *placer;
    sbp_arena *arena;
    const char *where;
    sbp_documents *documents;
} place_job;

/* ---- growing ---------------------------------------------------------------------------------------- */

const char *sbp_doc_part(const sbp_doc *doc) {
    return sbp_part_names[doc->part];
}

static uint8_t part_of(const char *name) {
    uint8_t part = 0;
    while (part + 1 < SBP_PART_COUNT && strcmp(sbp_part_names[part], name) != 0)
        part++;
    assert(strcmp(sbp_part_names[part], name) == 0);
    return part;
}

static sbp_status out_of_memory(const sbp_placer *l) {
    if (l->data->arrays.error)
        return sbp_fail(l->diag, SBP_IO,
                        "cannot keep tokens on disk, after %lld rows and %lld tokens: %s (--data-cache "
                        "DIR for another place, none to hold them in memory)",
                        (long long)l->data->row_count, (long long)l->data->token_count,
                        strerror(l->data->arrays.error));
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
static bool pad(sbp_arrays *arrays, const char *what, double **values, int64_t *capacities,
                int32_t count_of_arrays, int64_t count, int64_t added) {
    for (int32_t k = 0; k < count_of_arrays; k++) {
        char name[SBP_ARRAY_NAME];
        bool fresh = values[k] == NULL;
        snprintf(name, sizeof name, "%s.%d", what, k);
        if (!sbp_arrays_reserve(arrays, name, &values[k], &capacities[k], count + added, sizeof **values))
            return false;
        int64_t from = fresh ? 0 : count;
        memset(values[k] + from, 0, (size_t)(count + added - from) * sizeof **values);
    }
    return true;
}

/* What stands beside the tokens of a document that becomes number doc_count. */
static sbp_status add_numbers(sbp_placer *l, const sbp_document *d, sbp_doc *doc) {
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
        return sbp_fail(l->diag, SBP_INTERNAL,
                        "the data have more than %d columns, or %d numbers of documents", SBP_DATA_COLUMNS,
                        SBP_DATA_NUMBERS);
    if (!pad(&data->arrays, "column", data->columns, data->column_capacity, data->column_count,
             data->token_count, count) ||
        !pad(&data->arrays, "number", data->numbers, data->number_capacity, data->number_count,
             data->doc_count, 1))
        return out_of_memory(l);
    for (int32_t k = 0; k < d->column_count; k++) {
        memcpy(data->columns[columns[k]] + data->token_count, d->columns[k].values,
               (size_t)count * sizeof(double));
        doc->columns = (uint8_t)(doc->columns | 1u << columns[k]);
    }
    for (int32_t k = 0; k < d->number_count; k++) {
        if (isnan(d->numbers[k].value))
            continue;
        data->numbers[numbers[k]][data->doc_count] = d->numbers[k].value;
        doc->numbers = (uint16_t)(doc->numbers | 1u << numbers[k]);
    }
    return SBP_OK;
}

/* The experts of a document's tokens, and where they are in the data. */
static sbp_status add_routed(sbp_placer *l, const sbp_document *d, const sbp_doc *doc) {
    sbp_dataset *data = l->data;
    const sbp_row_routed *r = d->routed;
    if (!r)
        return SBP_OK;
    if (data->routed_count > 0 && (r->layers != data->routed_layers || r->chosen != data->routed_chosen))
        return sbp_fail(l->diag, SBP_INPUT,
                        "data row %lld (from 1): '" SBP_ROUTED
                        "' has %lld layers of %lld experts; those before have %lld of %lld",
                        (long long)doc->row + 1, (long long)r->layers, (long long)r->chosen,
                        (long long)data->routed_layers, (long long)data->routed_chosen);
    int64_t width = r->layers * r->chosen;
    if (!sbp_arrays_reserve(&data->arrays, "routed", &data->routed, &data->routed_capacity,
                            (data->routed_count + r->count) * width, sizeof *data->routed))
        return out_of_memory(l);
    memcpy(data->routed + data->routed_count * width, r->ids,
           (size_t)(r->count * width) * sizeof *data->routed);
    double *places = data->columns[sbp_dataset_column(data, SBP_ROUTED)];
    for (int64_t i = 0; i < d->count; i++)
        places[doc->first + i] += (double)data->routed_count;
    data->routed_layers = r->layers;
    data->routed_chosen = r->chosen;
    data->routed_count += r->count;
    return SBP_OK;
}

static uint64_t hash_document(const sbp_document *d, const sbp_doc *doc, uint64_t hash) {
    const int64_t shape[] = {doc->count, doc->part, doc->columns, doc->numbers};
    size_t n = (size_t)d->count;
    hash = sbp_hash_bytes(d->ids, n * sizeof *d->ids, hash);
    hash = sbp_hash_bytes(d->labels, n * sizeof *d->labels, hash);
    for (int32_t k = 0; k < d->column_count; k++)
        hash = sbp_hash_bytes(d->columns[k].values, n * sizeof(double), hash);
    for (int32_t k = 0; k < d->number_count; k++)
        hash = sbp_hash_bytes(&d->numbers[k].value, sizeof(double), hash);
    if (d->routed)
        hash = sbp_hash_bytes(d->routed->ids,
                              (size_t)(d->routed->count * d->routed->layers * d->routed->chosen) *
                                  sizeof *d->routed->ids,
                              hash);
    return sbp_hash_bytes(shape, sizeof shape, hash);
}

static sbp_status add_document(sbp_placer *l, const sbp_document *d) {
    sbp_dataset *data = l->data;
    const int64_t count = d->count;
    int64_t tokens = data->token_count, capacity = data->token_capacity, labels_capacity = capacity;
    if (count > INT32_MAX)
        return sbp_fail(l->diag, SBP_INPUT, "a document has %lld tokens, too many", (long long)count);
    if (!sbp_arrays_reserve(&data->arrays, "tokens", &data->tokens, &capacity, tokens + count,
                            sizeof *data->tokens) ||
        !sbp_arrays_reserve(&data->arrays, "labels", &data->labels, &labels_capacity, tokens + count,
                            sizeof *data->labels) ||
        !sbp_arrays_reserve(&data->arrays, "docs", &data->docs, &data->doc_capacity, data->doc_count + 1,
                            sizeof *data->docs))
        return out_of_memory(l);
    data->token_capacity = capacity < labels_capacity ? capacity : labels_capacity;
    memcpy(data->tokens + tokens, d->ids, (size_t)count * sizeof *d->ids);
    memcpy(data->labels + tokens, d->labels, (size_t)count * sizeof *d->labels);
    int32_t labels = 0, greatest = 0;
    for (int64_t i = 0; i < count; i++) {
        int32_t id = d->ids[i], label = d->labels[i];
        labels += i > 0 && label >= 0;
        greatest = id > greatest ? id : greatest;
        greatest = label > greatest ? label : greatest;
    }
    sbp_doc doc = {.first = tokens,
                   .row = data->read_count,
                   .count = (int32_t)count,
                   .labels = labels,
                   .part = part_of(d->part)};
    SBP_TRY(add_numbers(l, d, &doc));
    SBP_TRY(add_routed(l, d, &doc));
    data->docs[data->doc_count++] = doc;
    data->hash = hash_document(d, &doc, data->hash);
    data->token_count += count;
    data->label_count += labels;
    data->longest = count > data->longest ? count : data->longest;
    data->greatest_id = greatest > data->greatest_id ? greatest : data->greatest_id;
    return SBP_OK;
}

/* ---- rows ------------------------------------------------------------------------------------------- */

static void note_overlong(sbp_placer *l, const place_job *job, int64_t tokens) {
    if (l->overlong_count++ == 0)
        snprintf(l->overlong_what, sizeof l->overlong_what, "%.500s: %.150s", job->where,
                 sbp_documents_lengths(job->arena, job->documents));
    l->overlong_whole |= !sbp_documents_can_split(job->documents);
    l->overlong_most = tokens > l->overlong_most ? tokens : l->overlong_most;
}

/* What becomes of the documents of a row. */
static sbp_status place_row(void *user) {
    place_job *job = user;
    sbp_placer *l = job->placer;
    sbp_documents *all = job->documents;
    sbp_fit fit = sbp_documents_fit(job->arena, all, l->options->max_tokens, l->options->overlong);
    int64_t tokens = sbp_documents_tokens(all);
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
    for (int k = 0; k < SBP_UNWRITTEN_KINDS; k++)
        l->data->unwritten[k] += all->unwritten >> k & 1;
    for (int32_t i = 0; i < all->count; i++)
        SBP_TRY(add_document(l, &all->documents[i]));
    if (fit != SBP_FIT_SPLIT)
        l->data->longest = tokens > l->data->longest ? tokens : l->data->longest;
    return SBP_OK;
}

/* The key of the row that is added; false when there is no room. */
static bool add_group(sbp_dataset *d, uint64_t group) {
    if (!d->grouped && group == 0)
        return true;
    if (!sbp_arrays_reserve(&d->arrays, "groups", &d->groups, &d->group_capacity, d->row_count + 1,
                            sizeof *d->groups))
        return false;
    if (!d->grouped)
        memset(d->groups, 0, (size_t)d->row_count * sizeof *d->groups);
    d->grouped = true;
    d->groups[d->row_count] = group;
    return true;
}

sbp_status sbp_placer_row(sbp_placer *l, sbp_arena *arena, const char *where, sbp_documents *documents) {
    place_job job = {l, arena, where, documents};
    sbp_dataset *data = l->data;
    int64_t docs = data->doc_count;
    SBP_TRY(sbp_guard(arena, l->diag, place_row, &job));
    if (data->doc_count == docs)
        return SBP_OK;
    if (!add_group(data, documents->group) ||
        (documents->group_name &&
         !sbp_group_rows_add(&l->groups, documents->group_prompt, documents->group_name)) ||
        !sbp_arrays_reserve(&data->arrays, "rows", &data->rows, &data->row_capacity, data->row_count + 2,
                            sizeof *data->rows))
        return out_of_memory(l);
    data->rows[data->row_count++] = docs;
    data->rows[data->row_count] = data->doc_count;
    data->hash = sbp_hash_bytes(&docs, sizeof docs, data->hash);
    data->hash = sbp_hash_bytes(&documents->group, sizeof documents->group, data->hash);
    return SBP_OK;
}

/* ---- the whole -------------------------------------------------------------------------------------- */

static void say(const sbp_placer *l, int64_t count, const char *what) {
    if (count > 0)
        sbp_note(l->diag, "%lld of %lld rows %s", (long long)count,
                 (long long)(l->data->read_count - l->data->unchosen), what);
}

sbp_status sbp_placer_end(const sbp_placer *l) {
    const sbp_dataset *d = l->data;
    const sbp_dataset_options *o = l->options;
    if (l->overlong_count > 0)
        return sbp_fail(l->diag, SBP_INPUT,
                        "%s, the plan has room for %lld; %lld such row%s, the longest of %lld tokens: "
                        "compile with --seq-len %lld, or give --overlong truncate%s or drop",
                        l->overlong_what, (long long)o->max_tokens, (long long)l->overlong_count,
                        l->overlong_count == 1 ? "" : "s", (long long)l->overlong_most,
                        (long long)l->overlong_most, l->overlong_whole ? "" : ", split");
    say(l, d->truncated, "cut to the greatest length");
    say(l, d->split, "split at the greatest length");
    say(l, d->dropped,
        o->overlong == SBP_OVERLONG_DROP ? "left out: too long"
                                         : "left out: no label within the greatest length");
    say(l, d->empty, "left out: no tokens");
    say(l, d->bad, "left out: they are wrong");
    for (int k = 0; k < SBP_UNWRITTEN_KINDS && !o->quiet && !o->stream; k++)
        if (d->unwritten[k] > 0)
            sbp_warn(l->diag,
                     "%s of %lld row%s are not in what the chat template writes: the model does not see them "
                     "(--chat-template FILE gives another)",
                     sbp_chat_unwritten_names[k], (long long)d->unwritten[k],
                     d->unwritten[k] == 1 ? "" : "s");
    if (d->row_count == 0 && o->stream && o->stream->steps) {
        if (!o->stream->own)
            sbp_warn(l->diag, "%s: the end of a step %s: nothing is trained on", o->stream->where,
                     d->read_count ? "whose rows are all left out" : "that has no rows");
        return SBP_OK;
    }
    if (d->row_count == 0 && d->unchosen > 0 && d->unchosen == d->read_count)
        return sbp_fail(l->diag, SBP_INPUT,
                        "%s%s: the weights of the mixture (--mixture-weights) take none of %lld rows",
                        o->files[0], o->file_count > 1 ? " ..." : "", (long long)d->read_count);
    if (d->row_count == 0)
        return sbp_fail(l->diag, SBP_INPUT, "%s%s: no rows%s", o->file_count ? o->files[0] : "data",
                        o->file_count > 1 ? " ..." : "", d->read_count ? " are left" : "");
    if (d->label_count == 0)
        sbp_warn(l->diag, "no token of the data would be trained: the loss and all gradients are zero");
    return SBP_OK;
}

/* ---- what is added later --------------------------------------------------------------------------- */

static int32_t find_name(const char *const *names, int32_t count, const char *name) {
    for (int32_t i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return -1;
}

int32_t sbp_dataset_column(const sbp_dataset *data, const char *name) {
    return find_name(data->column_names, data->column_count, name);
}

int32_t sbp_dataset_number(const sbp_dataset *data, const char *name) {
    return find_name(data->number_names, data->number_count, name);
}

static sbp_status no_room(sbp_diag *diag, const char *name, double *values) {
    free(values);
    return sbp_fail(diag, SBP_INTERNAL, "no room for '%s' beside other numbers of documents", name);
}

sbp_status sbp_dataset_add_column(sbp_dataset *d, sbp_diag *diag, const char *name, double *values) {
    if (d->column_count == SBP_DATA_COLUMNS)
        return no_room(diag, name, values);
    d->added_columns |= 1u << d->column_count;
    d->columns[d->column_count] = values;
    d->column_names[d->column_count++] = name;
    return SBP_OK;
}

sbp_status sbp_dataset_add_number(sbp_dataset *d, sbp_diag *diag, const char *name, double *values) {
    if (d->number_count == SBP_DATA_NUMBERS)
        return no_room(diag, name, values);
    d->added_numbers |= 1u << d->number_count;
    d->numbers[d->number_count] = values;
    d->number_names[d->number_count++] = name;
    return SBP_OK;
}

void sbp_dataset_destroy(sbp_dataset *data) {
    if (!data)
        return;
    for (int32_t k = 0; k < SBP_DATA_COLUMNS; k++)
        if (data->added_columns >> k & 1)
            free(data->columns[k]);
    for (int32_t k = 0; k < SBP_DATA_NUMBERS; k++)
        if (data->added_numbers >> k & 1)
            free(data->numbers[k]);
    sbp_arrays_close(&data->arrays);
    free(data->row_docs);
    free(data->packed_rows);
    sbp_arena_destroy(data->arena);
    free(data);
}

void sbp_dataset_release(const sbp_dataset *data) {
    sbp_arrays_release(&data->arrays);
}

int64_t sbp_dataset_row_tokens(const sbp_dataset *data, int64_t row) {
    int64_t tokens = 0;
    for (int64_t d = data->rows[row]; d < data->rows[row + 1]; d++)
        tokens += data->docs[sbp_dataset_doc_at(data, d)].count;
    return tokens;
}
