/* packed.c: rows of documents that fill the greatest length, as TRL's packing "bfd" makes them: of each 1000
 * rows of the files, longest document first, each into the row with the least space that suffices, of equal
 * ones the one that has had that space for the longest time; a new row when there is none. */
#include <stdlib.h>
#include <string.h>

#include "runtime/data/dataset.h"

enum { BLOCK_ROWS = 1000 };

typedef struct item {
    int64_t doc;
    int32_t length, bin;
} item;

/* An open row; the list of them is kept sorted by (space, since). */
typedef struct open_bin {
    int64_t space, since; /* since: number of the item that left this space */
    int32_t bin;
} open_bin;

typedef struct packing {
    sbp_dataset *data;
    int64_t most;
    item *items; /* of a block */
    open_bin *open;
    int64_t capacity;
    int64_t *rows, *docs; /* the result */
    int64_t row_count, doc_count;
} packing;

static int longest_first(const void *a, const void *b) {
    const item *x = a, *y = b;
    if (x->length != y->length)
        return x->length > y->length ? -1 : 1;
    return x->doc < y->doc ? -1 : x->doc > y->doc;
}

/* Documents of a row stand in the order in which they came there. */
static int by_bin(const void *a, const void *b) {
    const item *x = a, *y = b;
    return x->bin != y->bin ? (x->bin < y->bin ? -1 : 1) : longest_first(a, b);
}

/* Place of the first open row that is not before (space, since). */
static int64_t lower_bound(const open_bin *open, int64_t count, int64_t space, int64_t since) {
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t mid = low + (high - low) / 2;
        if (open[mid].space < space || (open[mid].space == space && open[mid].since < since))
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static int32_t fill_bins(packing *p, int64_t count) {
    int64_t open = 0;
    int32_t bins = 0;
    for (int64_t i = 0; i < count; i++) {
        item *x = &p->items[i];
        int64_t at = lower_bound(p->open, open, x->length, 0);
        open_bin bin = {.space = p->most, .bin = bins};
        if (at < open) {
            bin = p->open[at];
            memmove(&p->open[at], &p->open[at + 1], (size_t)(open - at - 1) * sizeof *p->open);
            open--;
        } else {
            bins++;
        }
        x->bin = bin.bin;
        bin.space -= x->length;
        bin.since = i;
        if (bin.space == 0)
            continue;
        at = lower_bound(p->open, open, bin.space, bin.since);
        memmove(&p->open[at + 1], &p->open[at], (size_t)(open - at) * sizeof *p->open);
        p->open[at] = bin;
        open++;
    }
    return bins;
}

/* Documents [first, end), which are of one block. */
static bool pack_block(packing *p, int64_t first, int64_t end) {
    int64_t count = end - first;
    if (count > p->capacity) {
        item *items = sbp_realloc(p->items, (size_t)count * sizeof *items);
        p->items = items ? items : p->items;
        open_bin *open = items ? sbp_realloc(p->open, (size_t)(count + 1) * sizeof *open) : NULL;
        p->open = open ? open : p->open;
        if (!open)
            return false;
        p->capacity = count;
    }
    for (int64_t i = 0; i < count; i++)
        p->items[i] = (item){.doc = first + i, .length = p->data->docs[first + i].count};
    qsort(p->items, (size_t)count, sizeof *p->items, longest_first);
    fill_bins(p, count);
    qsort(p->items, (size_t)count, sizeof *p->items, by_bin);
    for (int64_t i = 0; i < count; i++) {
        if (i == 0 || p->items[i].bin != p->items[i - 1].bin)
            p->rows[p->row_count++] = p->doc_count;
        p->docs[p->doc_count++] = p->items[i].doc;
    }
    return true;
}

sbp_status sbp_dataset_pack(sbp_diag *diag, sbp_dataset *data, int64_t most) {
    packing p = {.data = data, .most = most};
    p.rows = sbp_malloc((size_t)(data->doc_count + 1) * sizeof *p.rows);
    p.docs = p.rows ? sbp_malloc((size_t)(data->doc_count + 1) * sizeof *p.docs) : NULL;
    bool good = p.docs != NULL;
    for (int64_t first = 0, end; good && first < data->doc_count; first = end) {
        int64_t block = data->docs[first].row / BLOCK_ROWS;
        for (end = first; end < data->doc_count && data->docs[end].row / BLOCK_ROWS == block;)
            end++;
        good = pack_block(&p, first, end);
    }
    free(p.items);
    free(p.open);
    if (!good) {
        free(p.rows);
        free(p.docs);
        return sbp_fail(diag, SBP_MACHINE, "out of memory for packing %lld documents",
                        (long long)data->doc_count);
    }
    p.rows[p.row_count] = p.doc_count;
    sbp_note(diag, "packed: %lld rows in %lld items of the batch, of at most %lld tokens, %.1f %% full",
             (long long)data->doc_count, (long long)p.row_count, (long long)most,
             100 * (double)data->token_count / ((double)p.row_count * (double)most));
    data->rows = data->packed_rows = p.rows;
    data->row_docs = p.docs;
    data->row_count = p.row_count;
    data->groups = NULL;
    data->grouped = false;
    data->hash =
        sbp_hash_bytes(p.docs, (size_t)p.doc_count * sizeof *p.docs,
                       sbp_hash_bytes(p.rows, (size_t)(p.row_count + 1) * sizeof *p.rows, data->hash));
    sbp_dataset_release(data);
    return SBP_OK;
}
