/* pack.c: documents to micro-batches, micro-batches to columns. */
#include "runtime/data/pack.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* A document, and where it went. */
typedef struct sbp_pack_item {
    int64_t doc, length;
    int64_t bin;
} sbp_pack_item;

/* An open micro-batch; the list of them is kept sorted by (space, number). */
typedef struct sbp_pack_bin {
    int64_t space, number;
} sbp_pack_bin;

typedef enum column_kind {
    COLUMN_TOK,
    COLUMN_POS,
    COLUMN_FIRST,
    COLUMN_SHARED_END,
    COLUMN_OWN,
    COLUMN_LABEL,
    COLUMN_WEIGHT,
    COLUMN_DOC,
    COLUMN_SAMPLE
} column_kind;

static const char *const column_names[SBP_PACK_COLUMNS] = {"tok",   "pos",    "first", "shared_end", "own",
                                                           "label", "weight", "doc",   "sample"};

/* shared_end and own are the memory of first. */
static column_kind memory_of(column_kind kind) {
    return kind == COLUMN_SHARED_END || kind == COLUMN_OWN ? COLUMN_FIRST : kind;
}

static bool wants(const sbp_program *program, const char *column) {
    if (!program || strcmp(column, "first") == 0) /* chunk tables always need it */
        return true;
    for (int32_t i = 0; i < program->row_input_count; i++)
        if (strcmp(program->row_inputs[i].column, column) == 0)
            return true;
    return false;
}

void sbp_packer_init(sbp_packer *p, int64_t most_rows, const sbp_program *program) {
    *p = (sbp_packer){.most_rows = most_rows};
    for (int kind = 0; kind < SBP_PACK_COLUMNS; kind++)
        if (wants(program, column_names[kind]))
            p->columns[p->column_count++] =
                (sbp_column){.name = column_names[kind], .dtype = kind == COLUMN_WEIGHT ? SBP_F32 : SBP_I32};
}

void sbp_packer_close(sbp_packer *p) {
    free(p->parts);
    free(p->docs);
    free(p->items);
    free(p->bins);
    for (int i = 0; i < SBP_PACK_COLUMNS; i++)
        free(p->memory[i]);
    *p = (sbp_packer){0};
}

/* ---- packing ---------------------------------------------------------------------------------------- */

static int longest_first(const void *a, const void *b) {
    const sbp_pack_item *x = a, *y = b;
    if (x->length != y->length)
        return x->length > y->length ? -1 : 1;
    return x->doc < y->doc ? -1 : x->doc > y->doc;
}

static int by_bin(const void *a, const void *b) {
    const sbp_pack_item *x = a, *y = b;
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

/* Numbers the items' bins; returns how many there are. */
static int64_t fill_bins(sbp_packer *p, int64_t items) {
    int64_t open = 0, numbers = 0;
    for (int64_t i = 0; i < items; i++) {
        sbp_pack_item *item = &p->items[i];
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
    return numbers;
}

static bool grow(void *pointer, int64_t *capacity, int64_t count, size_t element_bytes) {
    void **array = pointer;
    if (count <= *capacity)
        return true;
    void *larger = sbp_realloc(*array, (size_t)count * element_bytes);
    if (!larger)
        return false;
    *array = larger;
    *capacity = count;
    return true;
}

static int64_t count_docs(const sbp_dataset *data, const int64_t *rows, int64_t row_count) {
    int64_t count = 0;
    for (int64_t r = 0; r < row_count; r++)
        count += data->rows[rows[r] + 1] - data->rows[rows[r]];
    return count;
}

/* Items sorted by bin become parts. */
static void make_parts(sbp_packer *p, const sbp_dataset *data, int64_t items) {
    for (int64_t i = 0; i < items; i++) {
        sbp_micro_batch *part = &p->parts[p->items[i].bin];
        if (part->count == 0)
            part->docs = &p->docs[i];
        p->docs[i] = p->items[i].doc;
        part->count++;
        part->rows += p->items[i].length;
        part->labels += data->docs[p->items[i].doc].labels;
        p->rows += p->items[i].length;
        p->longest = p->items[i].length > p->longest ? p->items[i].length : p->longest;
        p->labels += data->docs[p->items[i].doc].labels;
    }
}

sbp_status sbp_packer_pack(sbp_packer *p, sbp_diag *diag, const sbp_dataset *data, const int64_t *rows,
                           int64_t row_count) {
    int64_t items = count_docs(data, rows, row_count), at = 0;
    p->rows = p->labels = p->longest = 0;
    p->doc_count = items;
    p->part_count = 0;
    if (!grow(&p->items, &p->item_capacity, items, sizeof *p->items) ||
        !grow(&p->bins, &p->bin_capacity, items + 1, sizeof *p->bins) ||
        !grow(&p->docs, &p->doc_capacity, items, sizeof *p->docs))
        return sbp_fail(diag, SBP_MACHINE, "out of memory for packing %lld documents", (long long)items);
    for (int64_t r = 0; r < row_count; r++)
        for (int64_t d = data->rows[rows[r]]; d < data->rows[rows[r] + 1]; d++) {
            assert(data->docs[d].count <= p->most_rows);
            p->items[at++] = (sbp_pack_item){.doc = d, .length = data->docs[d].count};
        }
    qsort(p->items, (size_t)items, sizeof *p->items, longest_first);
    int64_t bins = fill_bins(p, items), capacity = p->part_capacity;
    qsort(p->items, (size_t)items, sizeof *p->items, by_bin);
    if (bins > INT32_MAX || !grow(&p->parts, &capacity, bins, sizeof *p->parts))
        return sbp_fail(diag, SBP_MACHINE, "out of memory for %lld micro-batches", (long long)bins);
    p->part_capacity = (int32_t)capacity;
    p->part_count = (int32_t)bins;
    if (bins > 0)
        memset(p->parts, 0, (size_t)bins * sizeof *p->parts);
    make_parts(p, data, items);
    return SBP_OK;
}

sbp_status sbp_packer_check(const sbp_packer *p, sbp_diag *diag, int64_t most) {
    if (most == 0 || p->part_count <= most)
        return SBP_OK;
    return sbp_fail(
        diag, SBP_INPUT,
        "a step of %lld documents with %lld tokens needs %d micro-batches of at most %lld tokens, the "
        "plan accumulates %lld: give a smaller --batch-size or --batch-tokens %lld, or compile with "
        "--accumulate any or a larger --seq-len",
        (long long)p->doc_count, (long long)p->rows, p->part_count, (long long)p->most_rows, (long long)most,
        (long long)(most * p->most_rows));
}

/* ---- columns ---------------------------------------------------------------------------------------- */

static void fill_column(const sbp_dataset *data, const sbp_micro_batch *part, column_kind kind,
                        void *memory) {
    int32_t *out = memory;
    float *weights = memory;
    int64_t row = 0;
    for (int64_t k = 0; k < part->count; k++) {
        const sbp_doc *doc = &data->docs[part->docs[k]];
        const int32_t *tokens = data->tokens + doc->first, *labels = data->labels + doc->first;
        for (int64_t i = 0; i < doc->count; i++) {
            bool last = i + 1 == doc->count;
            switch (kind) {
            case COLUMN_TOK:
                out[row + i] = tokens[i];
                break;
            case COLUMN_POS:
                out[row + i] = (int32_t)i;
                break;
            case COLUMN_LABEL: /* of a position that does not count: the token that follows */
                out[row + i] = last ? 0 : labels[i + 1] >= 0 ? labels[i + 1] : tokens[i + 1];
                break;
            case COLUMN_WEIGHT:
                weights[row + i] = !last && labels[i + 1] >= 0 ? 1.0f : 0.0f;
                break;
            case COLUMN_DOC:
                out[row + i] = (int32_t)k;
                break;
            case COLUMN_SAMPLE:
                out[row + i] = (int32_t)part->docs[k];
                break;
            default: /* first, shared_end, own */
                out[row + i] = (int32_t)row;
            }
        }
        row += doc->count;
    }
}

static column_kind kind_of(const char *name) {
    int kind = 0;
    while (strcmp(column_names[kind], name) != 0)
        kind++;
    return (column_kind)kind;
}

sbp_status sbp_packer_columns(sbp_packer *p, sbp_diag *diag, const sbp_dataset *data,
                              const sbp_micro_batch *part) {
    for (int32_t c = 0; c < p->column_count; c++) {
        column_kind kind = kind_of(p->columns[c].name), memory = memory_of(kind);
        if (!grow(&p->memory[memory], &p->row_capacity[memory], part->rows, sizeof(int32_t)))
            return sbp_fail(diag, SBP_MACHINE, "out of memory for the columns of %lld rows",
                            (long long)part->rows);
        if (kind == memory)
            fill_column(data, part, kind, p->memory[kind]);
    }
    for (int32_t c = 0; c < p->column_count; c++) {
        p->columns[c].data = p->memory[memory_of(kind_of(p->columns[c].name))];
        p->columns[c].count = part->rows;
    }
    return SBP_OK;
}
