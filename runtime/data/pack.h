/* pack.h: the documents of a step into micro-batches, and the columns of a micro-batch.
 *
 * Best fit, longest first: documents by descending length (equal ones in order), each into the micro-batch
 * with the least space that suffices (of equal ones the oldest), a new one when there is none. None is split.
 * Inside a micro-batch documents keep the order of the data. Nothing here depends on anything but the
 * lengths.
 *
 * Columns, by row: tok; pos, counted from 0 in every document; first, the row where the document begins;
 * shared_end and own, the same (no prompt is shared); label, the next token of the document (0 in its last
 * row), and weight, 1 where that label counts, else 0; doc, the document's number in the micro-batch; sample,
 * its number in the data.
 *
 * Memory: that of the columns which the program asks for, 4 bytes per row each, for the longest micro-batch
 * so far. Threads: one thread at a time.
 */
#ifndef SBP_RUNTIME_DATA_PACK_H
#define SBP_RUNTIME_DATA_PACK_H

#include "runtime/data/dataset.h"
#include "runtime/run/executor.h"

typedef struct sbp_micro_batch {
    const int64_t *docs; /* of the dataset, ascending */
    int64_t count;
    int64_t rows, labels;
} sbp_micro_batch;

enum { SBP_PACK_COLUMNS = 9 };

typedef struct sbp_packer {
    int64_t most_rows;
    /* of the latest step */
    sbp_micro_batch *parts;
    int32_t part_count, part_capacity;
    int64_t rows, labels, doc_count;
    int64_t longest; /* tokens of the longest document */
    /* memory */
    int64_t *docs, doc_capacity; /* what parts point into, and the order of packing */
    struct sbp_pack_item *items;
    int64_t item_capacity;
    struct sbp_pack_bin *bins;
    int64_t bin_capacity;
    sbp_column columns[SBP_PACK_COLUMNS];
    int32_t column_count;
    int64_t row_capacity[SBP_PACK_COLUMNS];
    void *memory[SBP_PACK_COLUMNS];
} sbp_packer;

/* most_rows: T_max of the plan. program: whose row inputs are wanted; NULL: all columns. */
void sbp_packer_init(sbp_packer *packer, int64_t most_rows, const sbp_program *program);
void sbp_packer_close(sbp_packer *packer);
/* Packs the documents of some rows of the data, none of which is longer than most_rows. */
sbp_status sbp_packer_pack(sbp_packer *packer, sbp_diag *diag, const sbp_dataset *data, const int64_t *rows,
                           int64_t row_count) SBP_CHECKED;
/* SBP_INPUT, with the remedies, when the packed step has more micro-batches than `most` (0: any). */
sbp_status sbp_packer_check(const sbp_packer *packer, sbp_diag *diag, int64_t most) SBP_CHECKED;
/* Fills packer->columns for one micro-batch, for sbp_executor_bind. */
sbp_status sbp_packer_columns(sbp_packer *packer, sbp_diag *diag, const sbp_dataset *data,
                              const sbp_micro_batch *part) SBP_CHECKED;

#endif
