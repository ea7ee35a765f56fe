/* mismatched.c: prompts with the answers of the documents before them. */
#include "runtime/data/mismatched.h"

#include <stdlib.h>
#include <string.h>

/* A document, and where its answer begins. */
typedef struct answered {
    const sbp_doc *doc;
    int64_t prompt;
} answered;

static int in_order(const void *a, const void *b) {
    const answered *x = a, *y = b;
    if (x->doc->row != y->doc->row)
        return x->doc->row < y->doc->row ? -1 : 1;
    return x->doc < y->doc ? -1 : x->doc > y->doc;
}

/* Documents of the rows in the order of the files; returns how many. */
static int64_t list_documents(const sbp_dataset *data, const int64_t *rows, int64_t row_count,
                              answered *out) {
    int64_t count = 0;
    for (int64_t r = 0; r < row_count; r++) {
        int64_t row = rows ? rows[r] : r;
        for (int64_t k = data->rows[row]; k < data->rows[row + 1]; k++) {
            const sbp_doc *doc = &data->docs[sbp_dataset_doc_at(data, k)];
            int64_t prompt = 0;
            while (prompt < doc->count && data->labels[doc->first + prompt] < 0)
                prompt++;
            out[count++] = (answered){doc, prompt};
        }
    }
    if (count > 0)
        qsort(out, (size_t)count, sizeof *out, in_order);
    return count;
}

static int64_t mismatched_length(const answered *of, const answered *before, int64_t most) {
    int64_t length = of->prompt + before->doc->count - before->prompt;
    return length < most ? length : most;
}

/* Room for all of them, and for one more each: nothing is asked for 0 bytes. */
static bool make_room(sbp_dataset *d, int64_t docs, int64_t tokens) {
    int64_t labels_capacity = 0;
    sbp_arrays *a = &d->arrays;
    return sbp_arrays_reserve(a, "tokens", &d->tokens, &d->token_capacity, tokens + 1, sizeof *d->tokens) &&
           sbp_arrays_reserve(a, "labels", &d->labels, &labels_capacity, tokens + 1, sizeof *d->labels) &&
           sbp_arrays_reserve(a, "docs", &d->docs, &d->doc_capacity, docs + 1, sizeof *d->docs) &&
           sbp_arrays_reserve(a, "rows", &d->rows, &d->row_capacity, docs + 1, sizeof *d->rows);
}

static void add_mismatched(sbp_dataset *to, const sbp_dataset *from, const answered *of,
                           const answered *before, int64_t most) {
    int64_t count = mismatched_length(of, before, most), prompt = of->prompt < count ? of->prompt : count;
    size_t answer = (size_t)(count - prompt) * sizeof *to->tokens;
    int32_t *tokens = to->tokens + to->token_count, *labels = to->labels + to->token_count;
    sbp_doc doc = {
        .first = to->token_count, .row = of->doc->row, .count = (int32_t)count, .part = of->doc->part};
    if (count == 0)
        return;
    memcpy(tokens, from->tokens + of->doc->first, (size_t)prompt * sizeof *tokens);
    memcpy(tokens + prompt, from->tokens + before->doc->first + before->prompt, answer);
    memcpy(labels + prompt, from->labels + before->doc->first + before->prompt, answer);
    for (int64_t i = 0; i < prompt; i++)
        labels[i] = -100;
    for (int64_t i = 1; i < count; i++)
        doc.labels += labels[i] >= 0;
    to->docs[to->doc_count++] = doc;
    to->rows[++to->row_count] = to->doc_count;
    to->token_count += count;
    to->label_count += doc.labels;
    to->longest = count > to->longest ? count : to->longest;
}

sbp_status sbp_dataset_mismatch(sbp_diag *diag, const sbp_dataset *data, const int64_t *rows,
                                int64_t row_count, int64_t most_tokens, sbp_dataset **out) {
    int64_t docs = 0, tokens = 0;
    for (int64_t r = 0; r < row_count; r++)
        docs += data->rows[(rows ? rows[r] : r) + 1] - data->rows[rows ? rows[r] : r];
    answered *list = sbp_malloc((size_t)(docs + 1) * sizeof *list);
    sbp_dataset *to = list ? sbp_malloc(sizeof *to) : NULL;
    *out = NULL;
    if (to) {
        *to = (sbp_dataset){.texts = true};
        sbp_arrays_init(&to->arrays, -1);
        list_documents(data, rows, row_count, list);
        for (int64_t k = 0; k < docs; k++)
            tokens += mismatched_length(&list[k], &list[(k + docs - 1) % docs], most_tokens);
    }
    if (!to || !make_room(to, docs, tokens)) {
        free(list);
        sbp_dataset_destroy(to);
        return sbp_fail(diag, SBP_MACHINE, "out of memory for %lld mismatched documents", (long long)docs);
    }
    to->rows[0] = 0;
    for (int64_t k = 0; k < docs; k++)
        add_mismatched(to, data, &list[k], &list[(k + docs - 1) % docs], most_tokens);
    free(list);
    *out = to;
    return SBP_OK;
}

bool sbp_dataset_has_mismatched(const sbp_dataset *data) {
    return sbp_dataset_number(data, sbp_data_columns[SBP_DATA_REF_MISMATCHED].name) >= 0;
}
