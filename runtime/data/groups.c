/* groups.c: rows of a group side by side. */
#include "runtime/data/groups.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what rows say --------------------------------------------------------------------------------- */

static bool grow(void *pointer, int64_t *capacity, int64_t count, size_t bytes) {
    void **array = pointer;
    if (count <= *capacity)
        return true;
    int64_t more = 2 * count + 64;
    void *larger = sbp_realloc(*array, (size_t)more * bytes);
    if (!larger)
        return false;
    *array = larger;
    *capacity = more;
    return true;
}

bool sbp_group_rows_add(sbp_group_rows *r, uint64_t prompt, const char *name) {
    int64_t length = (int64_t)strlen(name) + 1;
    bool again = r->count > 0 && strcmp(r->text + r->names[r->count - 1], name) == 0;
    if (!grow(&r->prompts, &r->prompt_capacity, r->count + 1, sizeof *r->prompts) ||
        !grow(&r->names, &r->name_capacity, r->count + 1, sizeof *r->names) ||
        !grow(&r->text, &r->text_capacity, r->text_size + length, 1))
        return false;
    r->prompts[r->count] = prompt;
    r->names[r->count] = again ? r->names[r->count - 1] : r->text_size;
    if (!again) {
        memcpy(r->text + r->text_size, name, (size_t)length);
        r->text_size += length;
    }
    r->count++;
    return true;
}

void sbp_group_rows_close(sbp_group_rows *r) {
    free(r->prompts);
    free(r->names);
    free(r->text);
    *r = (sbp_group_rows){0};
}

/* ---- runs of neighbours ------------------------------------------------------------------------------ */

/* Neighbours with the same key and prompt. */
typedef struct run {
    uint64_t key, prompt;
    int64_t first, end;        /* rows */
    int64_t class, class_rows; /* all runs with both the same: the first of their rows, and how many */
    int64_t leader;            /* the first row of its group */
} run;

typedef struct gathering {
    sbp_diag *diag;
    sbp_dataset *data;
    const sbp_group_rows *rows;
    run *runs;
    int64_t run_count;
    int64_t classes, single; /* of keys whose rows stand apart and have several; how many are one row */
    int64_t lonely;          /* a row that is all of its class; -1: none */
    int64_t lonely_other;    /* one of its key that is not */
    int64_t apart, parted, groups;
} gathering;

static int by_class(const void *a, const void *b) {
    const run *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    if (x->prompt != y->prompt)
        return x->prompt < y->prompt ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

static int by_key(const void *a, const void *b) {
    const run *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

static uint64_t prompt_of(const gathering *g, int64_t row) {
    return g->rows->count > 0 ? g->rows->prompts[row] : 0; /* without names the key says it */
}

static bool begins_run(const gathering *g, int64_t row) {
    return sbp_dataset_begins_group(g->data, row) || prompt_of(g, row) != prompt_of(g, row - 1);
}

static bool find_runs(gathering *g) {
    const sbp_dataset *d = g->data;
    for (int64_t r = 0; r < d->row_count; r++)
        g->run_count += begins_run(g, r);
    g->runs = sbp_malloc((size_t)(g->run_count + 1) * sizeof *g->runs);
    if (!g->runs)
        return false;
    for (int64_t r = 0, k = -1; r < d->row_count; r++) {
        if (begins_run(g, r))
            g->runs[++k] = (run){.key = d->groups[r], .prompt = prompt_of(g, r), .first = r};
        g->runs[k].end = r + 1;
    }
    return true;
}

/* Whether two runs are of a key that makes groups. */
static bool same_key(const run *a, const run *b) {
    return a->key != 0 && a->key == b->key;
}

/* Sorts runs by key, with what is known of their classes. */
static void find_classes(gathering *g) {
    run *runs = g->runs;
    qsort(runs, (size_t)g->run_count, sizeof *runs, by_class);
    for (int64_t k = 0, end; k < g->run_count; k = end) {
        int64_t rows = 0;
        for (end = k; end == k || (end < g->run_count && same_key(&runs[end], &runs[k]) &&
                                   runs[end].prompt == runs[k].prompt);
             end++)
            rows += runs[end].end - runs[end].first;
        for (int64_t i = k; i < end; i++) {
            runs[i].class = runs[k].first;
            runs[i].class_rows = rows;
        }
    }
    qsort(runs, (size_t)g->run_count, sizeof *runs, by_key);
}

/* Runs from `first` on with its key. */
static int64_t runs_of_key(const gathering *g, int64_t first) {
    int64_t end = first + 1;
    while (end < g->run_count && same_key(&g->runs[first], &g->runs[end]))
        end++;
    return end;
}

/* Whether the rows of runs [first, end) are no neighbours. */
static bool are_apart(const gathering *g, int64_t first, int64_t end) {
    bool apart = false;
    for (int64_t k = first + 1; k < end; k++)
        apart |= g->runs[k].first != g->runs[k - 1].end;
    return apart;
}

static bool have_single(const gathering *g, int64_t first, int64_t end) {
    bool single = false;
    for (int64_t k = first; k < end; k++)
        single |= g->runs[k].class_rows == 1;
    return single;
}

/* What classes of the runs [first, end), of a key, say of whether keys are counted anew. */
static void look_at_classes(gathering *g, int64_t first, int64_t end) {
    const run *runs = g->runs;
    bool several = false;
    for (int64_t k = first; k < end; k++)
        several |= runs[k].class != runs[first].class;
    if (!several || !are_apart(g, first, end))
        return;
    for (int64_t k = first; k < end; k++) {
        if (runs[k].class != runs[k].first)
            continue;
        g->classes++;
        if (runs[k].class_rows > 1)
            continue;
        g->single++;
        if (g->lonely < 0) {
            g->lonely = runs[k].first;
            g->lonely_other = runs[k == first ? end - 1 : first].first;
        }
    }
}

static sbp_status not_clear(const gathering *g) {
    const sbp_dataset *d = g->data;
    long long a = (long long)d->docs[d->rows[g->lonely]].row + 1;
    long long b = (long long)d->docs[d->rows[g->lonely_other]].row + 1;
    return sbp_fail(
        g->diag, SBP_INPUT,
        "group '%.80s': data rows %lld and %lld (from 1) are both of it, apart from each other and with "
        "different prompts, and the first of them is the only one of its prompt: they may be one group, or "
        "the numbers of groups are used again for other prompts, as in %lld other places of the data. Give "
        "every group its own 'group', or leave 'group' out: then rows of the same prompt are one",
        g->rows->text + g->rows->names[g->lonely], a < b ? a : b, a < b ? b : a,
        (long long)(g->classes - g->single));
}

/* The group of every run. */
static sbp_status find_groups(gathering *g) {
    for (int64_t k = 0, end; k < g->run_count; k = end) {
        end = runs_of_key(g, k);
        look_at_classes(g, k, end);
    }
    if (g->single > 0 && 2 * g->single < g->classes)
        return not_clear(g);
    bool anew = g->classes > 0 && g->single == 0;
    for (int64_t k = 0, end; k < g->run_count; k = end) {
        end = runs_of_key(g, k);
        bool by_prompt = anew && !have_single(g, k, end);
        for (int64_t i = k; i < end; i++) {
            run *of = &g->runs[i];
            bool neighbour = i > k && of->first == of[-1].end;
            of->leader = by_prompt ? of->class : g->runs[k].first;
            g->groups += of->leader == of->first;
            g->apart += of->leader != of->first && !(neighbour && !by_prompt);
            g->parted += of->leader == of->first && neighbour;
        }
    }
    return SBP_OK;
}

/* ---- rows side by side ------------------------------------------------------------------------------- */

/* Keys of groups are their own. */
static void set_keys(gathering *g) {
    uint64_t *keys = g->data->groups;
    for (int64_t k = 0, end; k < g->run_count; k = end) {
        end = runs_of_key(g, k);
        for (int64_t i = k; i < end; i++) {
            const run *of = &g->runs[i];
            uint64_t key = of->key;
            if (of->leader != g->runs[k].first)
                key = sbp_hash_bytes(&of->leader, sizeof of->leader, key) | 1;
            for (int64_t r = of->first; r < of->end; r++)
                keys[r] = key;
        }
    }
}

/* Rows in the order of the first of their groups: into order[row_count]. places: [row_count + 1]. */
static void order_rows(const gathering *g, int64_t *order, int64_t *places) {
    int64_t count = g->data->row_count;
    for (int64_t r = 0; r <= count; r++)
        places[r] = 0;
    for (int64_t k = 0; k < g->run_count; k++)
        places[g->runs[k].leader + 1] += g->runs[k].end - g->runs[k].first;
    for (int64_t r = 0; r < count; r++)
        places[r + 1] += places[r];
    for (int64_t k = 0; k < g->run_count; k++) /* runs of a key are in the order of rows */
        for (int64_t r = g->runs[k].first; r < g->runs[k].end; r++)
            order[places[g->runs[k].leader]++] = r;
}

/* values[doc_count] of documents, to the order of rows. */
static void move(const sbp_dataset *d, const int64_t *order, void *values, void *copy, size_t bytes) {
    char *from = values, *to = copy;
    memcpy(to, from, (size_t)d->doc_count * bytes);
    for (int64_t k = 0; k < d->row_count; k++) {
        int64_t first = d->rows[order[k]], docs = d->rows[order[k] + 1] - first;
        memcpy(from, to + (size_t)first * bytes, (size_t)docs * bytes);
        from += (size_t)docs * bytes;
    }
}

static void move_rows(sbp_dataset *d, const int64_t *order, int64_t *scratch, void *copy) {
    move(d, order, d->docs, copy, sizeof *d->docs);
    for (int32_t k = 0; k < d->number_count; k++)
        move(d, order, d->numbers[k], copy, sizeof **d->numbers);
    for (int64_t r = 0; r < d->row_count; r++)
        scratch[r] = (int64_t)d->groups[order[r]];
    for (int64_t r = 0; r < d->row_count; r++)
        d->groups[r] = (uint64_t)scratch[r];
    for (int64_t r = 0; r < d->row_count; r++)
        scratch[r] = d->rows[order[r] + 1] - d->rows[order[r]];
    for (int64_t r = 0; r < d->row_count; r++)
        d->rows[r + 1] = d->rows[r] + scratch[r];
}

static sbp_status gather(gathering *g, char *said, size_t size) {
    sbp_dataset *d = g->data;
    static const char none[] = "out of memory for the groups of the data";
    if (!find_runs(g))
        return sbp_fail(g->diag, SBP_MACHINE, none);
    find_classes(g);
    SBP_TRY(find_groups(g));
    if (g->apart == 0 && g->parted == 0)
        return SBP_OK;
    int64_t *order = sbp_malloc((size_t)d->row_count * sizeof *order);
    int64_t *places = sbp_malloc((size_t)(d->row_count + 1) * sizeof *places);
    void *copy = sbp_malloc((size_t)d->doc_count * sizeof *d->docs);
    bool room = order && places && copy;
    if (room) {
        set_keys(g);
        order_rows(g, order, places);
        move_rows(d, order, places, copy);
        d->hash = sbp_hash_bytes(d->groups, (size_t)d->row_count * sizeof *d->groups, d->hash);
    }
    free(order);
    free(places);
    free(copy);
    if (!room)
        return sbp_fail(g->diag, SBP_MACHINE, none);
    bool anew = g->classes > 0 && g->single == 0;
    snprintf(said, size,
             "rows of groups stand apart in the data, in %lld places: each of the %lld groups is taken "
             "whole, where "
             "its first row stands%s",
             (long long)g->apart, (long long)g->groups,
             anew ? " (the same 'group' with another prompt is another group)" : "");
    return SBP_OK;
}

sbp_status sbp_dataset_gather(sbp_diag *diag, sbp_dataset *data, const sbp_group_rows *rows, char *said,
                              size_t size) {
    gathering g = {.diag = diag, .data = data, .rows = rows, .lonely = -1};
    said[0] = 0;
    if (!data->grouped || data->row_count == 0)
        return SBP_OK;
    sbp_status status = gather(&g, said, size);
    free(g.runs);
    return status;
}

/* ---- the order of the files -------------------------------------------------------------------------- */

typedef struct doc_place {
    int64_t row, doc;
} doc_place;

static int by_row(const void *a, const void *b) {
    const doc_place *x = a, *y = b;
    if (x->row != y->row)
        return x->row < y->row ? -1 : 1;
    return x->doc < y->doc ? -1 : x->doc > y->doc;
}

sbp_status sbp_dataset_file_order(sbp_diag *diag, const sbp_dataset *data, int64_t **out) {
    bool same = true;
    *out = NULL;
    for (int64_t d = 1; d < data->doc_count; d++)
        same &= data->docs[d - 1].row <= data->docs[d].row;
    if (same)
        return SBP_OK;
    doc_place *places = sbp_malloc((size_t)data->doc_count * sizeof *places);
    *out = sbp_malloc((size_t)data->doc_count * sizeof **out);
    for (int64_t d = 0; places && *out && d < data->doc_count; d++)
        places[d] = (doc_place){data->docs[d].row, d};
    if (places && *out)
        qsort(places, (size_t)data->doc_count, sizeof *places, by_row);
    for (int64_t d = 0; places && *out && d < data->doc_count; d++)
        (*out)[d] = places[d].doc;
    bool room = places && *out;
    free(places);
    if (room)
        return SBP_OK;
    free(*out);
    *out = NULL;
    return sbp_fail(diag, SBP_MACHINE, "out of memory for the order of %lld documents",
                    (long long)data->doc_count);
}

bool sbp_dataset_begins_group(const sbp_dataset *data, int64_t row) {
    return !data->groups || row == 0 || data->groups[row] == 0 || data->groups[row] != data->groups[row - 1];
}
