/* pack.c: documents to micro-batches. */
#include "runtime/data/pack.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/data/groups.h"

/* An open micro-batch; the list of them is kept sorted by (space, number). */
typedef struct sbp_pack_bin {
    int64_t space, number;
} sbp_pack_bin;

void sbp_packer_init(sbp_packer *p, int64_t most_rows, const sbp_program *program) {
    *p = (sbp_packer){.most_rows = most_rows, .ranks = 1, .work = sbp_pack_work_of(program)};
    sbp_packer_want(p, program);
}

void sbp_packer_share(sbp_packer *p, const sbp_program *program, int32_t rank, int32_t count) {
    int32_t together = (int32_t)program->context;
    p->rank = rank / together;
    p->ranks = count > together ? count / together : 1;
}

void sbp_packer_close(sbp_packer *p) {
    free(p->parts);
    free(p->docs);
    free(p->items);
    free(p->bins);
    free(p->shared);
    free(p->numbers);
    free(p->loads);
    for (int32_t i = 0; i < p->column_count; i++)
        free(p->memory[i]);
    *p = (sbp_packer){0};
}

/* ---- packing ---------------------------------------------------------------------------------------- */

/* The order in which items are packed: rank by rank, the longest first. */
static int longest_first(const void *a, const void *b) {
    const sbp_pack_item *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    if (x->length != y->length)
        return x->length > y->length ? -1 : 1;
    return x->doc < y->doc ? -1 : x->doc > y->doc;
}

static int by_bin(const void *a, const void *b) {
    const sbp_pack_item *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    if (x->bin != y->bin)
        return x->bin < y->bin ? -1 : 1;
    return x->doc < y->doc ? -1 : x->doc > y->doc;
}

/* Place of the first bin that is not before (space, number). */
static int64_t lower_bound(const sbp_pack_bin *bins, int64_t count, int64_t space, int64_t number) {
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t mid = low + (high - low) / 2;
        if (bins[mid].space < space || (bins[mid].space == space && bins[mid].number < number))
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* Numbers the items' bins, anew for each rank. */
static void fill_bins(sbp_packer *p, int64_t items) {
    int64_t open = 0, numbers = 0;
    for (int64_t i = 0; i < items; i++) {
        sbp_pack_item *item = &p->items[i];
        if (i > 0 && item->rank != p->items[i - 1].rank)
            open = numbers = 0;
        int64_t at = lower_bound(p->bins, open, item->length, 0);
        sbp_pack_bin bin = {p->most_rows, numbers};
        if (at < open) {
            bin = p->bins[at];
            memmove(&p->bins[at], &p->bins[at + 1], (size_t)(open - at - 1) * sizeof *p->bins);
            open--;
        } else {
            numbers++;
        }
        item->bin = bin.number;
        bin.space -= item->length;
        at = lower_bound(p->bins, open, bin.space, bin.number);
        memmove(&p->bins[at + 1], &p->bins[at], (size_t)(open - at) * sizeof *p->bins);
        p->bins[at] = bin;
        open++;
    }
}

/* Numbers bins from 0 through all ranks, of items in their order; returns how many there are. */
static int64_t count_bins(sbp_packer *p, int64_t items) {
    int64_t count = 0, of_rank = 0, before = -1;
    p->own = p->own_count = p->most_own = 0;
    for (int64_t i = 0; i < items; i++) {
        sbp_pack_item *item = &p->items[i];
        bool begins_rank = i == 0 || item->rank != p->items[i - 1].rank;
        if (begins_rank)
            of_rank = 0;
        if (begins_rank || item->bin != before) {
            count++;
            of_rank++;
        }
        before = item->bin;
        item->bin = count - 1;
        if (of_rank > p->most_own)
            p->most_own = (int32_t)(of_rank < INT32_MAX ? of_rank : INT32_MAX);
        if (item->rank == p->rank) {
            p->own = (int32_t)(count - of_rank);
            p->own_count = (int32_t)of_rank;
        }
    }
    return count;
}

/* Items to ranks and bins, in their order; *bins: how many. False: out of memory. */
static bool place_items(sbp_packer *p, int64_t items, int64_t *bins) {
    if (p->ranks > 1 && !sbp_pack_share_items(p, items))
        return false;
    qsort(p->items, (size_t)items, sizeof *p->items, longest_first);
    fill_bins(p, items);
    qsort(p->items, (size_t)items, sizeof *p->items, by_bin);
    *bins = count_bins(p, items);
    if (p->ranks == 1 || p->most_parts == 0 || p->most_own <= p->most_parts)
        return true;
    for (int64_t i = 0; i < items; i++)
        p->items[i].rank = 0;
    qsort(p->items, (size_t)items, sizeof *p->items, longest_first);
    fill_bins(p, items);
    qsort(p->items, (size_t)items, sizeof *p->items, by_bin);
    *bins = count_bins(p, items);
    if (sbp_ceil_div(*bins, p->ranks) > p->most_parts) /* no way: sbp_packer_check says so */
        return true;
    if (!sbp_pack_share_bins(p, items, *bins))
        return false;
    qsort(p->items, (size_t)items, sizeof *p->items, by_bin);
    *bins = count_bins(p, items);
    return true;
}

static int64_t count_docs(const sbp_dataset *data, const int64_t *rows, int64_t row_count) {
    int64_t count = 0;
    for (int64_t r = 0; r < row_count; r++)
        count += data->rows[rows[r] + 1] - data->rows[rows[r]];
    return count;
}

/* Documents in the order of rows, as they become items. */
typedef struct listing {
    sbp_packer *p;
    sbp_diag *diag;
    const sbp_dataset *data;
    int64_t items, place;
    int64_t leader;  /* with which the next may share rows */
    int32_t *shared; /* [documents] in this order; NULL: nothing is shared */
} listing;

/* begins: it would be an item of its own. related: it is of the same group as the one before it. */
static sbp_status list_document(listing *l, int64_t d, bool begins, bool related) {
    sbp_packer *p = l->p;
    sbp_pack_item *item = l->items > 0 ? &p->items[l->items - 1] : NULL;
    int64_t count = l->data->docs[d].count;
    int32_t shared = 0;
    if (l->shared && related && item && d == item->doc + item->docs) {
        SBP_TRY(sbp_pack_shared(p, l->diag, l->data, l->leader, d, &shared));
        bool fits = item->length + count - shared <= p->most_rows;
        bool alone = !p->units && !p->rollouts; /* else it is known what is an item */
        if (begins && alone && shared > 0 && fits)
            begins = false;
        else if (begins)
            shared = 0;
    }
    if (begins || !item) {
        item = &p->items[l->items++];
        *item = (sbp_pack_item){.doc = d, .place = l->place};
    }
    if (shared == 0)
        l->leader = d;
    if (l->shared)
        l->shared[l->place] = shared;
    l->place++;
    item->docs++;
    item->length += count - shared;
    item->work += sbp_pack_rows_work(&p->work, shared, count - shared);
    p->longest = count > p->longest ? count : p->longest;
    return SBP_OK;
}

/* Documents to items, or those of a row or of a group to one. */
static sbp_status make_items(listing *l, const int64_t *rows, int64_t row_count) {
    const sbp_packer *p = l->p;
    const sbp_dataset *data = l->data;
    for (int64_t r = 0; r < row_count; r++)
        for (int64_t k = data->rows[rows[r]], first = k; k < data->rows[rows[r] + 1]; k++) {
            bool of_group = k != first || !sbp_dataset_begins_group(data, rows[r]);
            bool begins = k == first ? !p->rollouts || !of_group : !p->units && !p->rollouts;
            SBP_TRY(list_document(l, sbp_dataset_doc_at(data, k), begins, of_group));
        }
    return SBP_OK;
}

/* Items sorted by bin become parts. */
static void make_parts(sbp_packer *p, const sbp_dataset *data, int64_t items) {
    int64_t at = 0;
    for (int64_t i = 0; i < items; i++) {
        const sbp_pack_item *item = &p->items[i];
        sbp_micro_batch *part = &p->parts[item->bin];
        assert(item->length <= p->most_rows);
        if (part->count == 0) {
            part->docs = &p->docs[at];
            part->shared = p->counted ? &p->shared[at] : NULL;
        }
        part->units++;
        part->rows += item->length;
        p->run_rows += item->length;
        for (int64_t k = 0; k < item->docs; k++) {
            int64_t d = item->doc + k;
            if (p->counted)
                p->shared[at] = p->shared[p->doc_count + item->place + k];
            p->docs[at++] = d;
            part->count++;
            p->rows += data->docs[d].count;
            part->labels += data->docs[d].labels;
            p->labels += data->docs[d].labels;
        }
        part->by_unit = p->units && !p->rollouts;
        part->groups = !p->groups ? 0 : p->units || p->rollouts ? part->units : part->count;
    }
}

sbp_status sbp_packer_pack(sbp_packer *p, sbp_diag *diag, const sbp_dataset *data, const int64_t *rows,
                           int64_t row_count) {
    p->doc_count = count_docs(data, rows, row_count);
    p->rows = p->run_rows = p->labels = p->longest = 0;
    p->part_count = 0;
    if (!sbp_pack_grow(&p->items, &p->item_capacity, p->doc_count, sizeof *p->items) ||
        !sbp_pack_grow(&p->bins, &p->bin_capacity, p->doc_count + 1, sizeof *p->bins) ||
        !sbp_pack_grow(&p->docs, &p->doc_capacity, p->doc_count, sizeof *p->docs) ||
        (p->counted && !sbp_pack_grow(&p->shared, &p->shared_capacity, 2 * p->doc_count, sizeof *p->shared)))
        return sbp_fail(diag, SBP_MACHINE, "out of memory for packing %lld documents",
                        (long long)p->doc_count);
    listing l = {.p = p, .diag = diag, .data = data, .shared = p->counted ? p->shared + p->doc_count : NULL};
    SBP_TRY(make_items(&l, rows, row_count));
    int64_t items = l.items, bins, capacity = p->part_capacity;
    if (!place_items(p, items, &bins))
        return sbp_fail(diag, SBP_MACHINE, "out of memory for packing for %d ranks", p->ranks);
    if (bins > INT32_MAX || !sbp_pack_grow(&p->parts, &capacity, bins, sizeof *p->parts))
        return sbp_fail(diag, SBP_MACHINE, "out of memory for %lld micro-batches", (long long)bins);
    p->part_capacity = (int32_t)capacity;
    p->part_count = (int32_t)bins;
    if (bins > 0)
        memset(p->parts, 0, (size_t)bins * sizeof *p->parts);
    make_parts(p, data, items);
    return SBP_OK;
}

sbp_status sbp_packer_check(const sbp_packer *p, sbp_diag *diag) {
    long long most = p->most_parts;
    char ranks[40] = "";
    if (most == 0 || p->most_own <= most)
        return SBP_OK;
    if (p->ranks > 1)
        snprintf(ranks, sizeof ranks, " on each of %d ranks", p->ranks);
    return sbp_fail(
        diag, SBP_INPUT,
        "a step of %lld documents with %lld tokens needs %d micro-batches of at most %lld tokens, the "
        "plan accumulates %lld%s: give a smaller --batch-size or --batch-tokens %lld, or compile with "
        "--accumulate any or a larger --seq-len",
        (long long)p->doc_count, (long long)p->rows, p->part_count, (long long)p->most_rows, most, ranks,
        most * p->most_rows * p->ranks);
}
