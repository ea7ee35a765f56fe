/* pack.h: the documents of a step into micro-batches, and what a program wants to know of them.
 *
 * Best fit, longest first: units by descending length (equal ones in order), each into the micro-batch with
 * the least space that suffices (of equal ones the oldest), a new one when there is none. None is split. A
 * unit is a document; where the program asks for "unit", all documents of one row of data (a preference's two
 * answers); where it asks for "group", those of all rows of a group (dataset.h). Inside a micro-batch
 * documents keep the order of the data. Nothing here depends on anything but the lengths.
 *
 * Prompts may be shared (share.c): rows with which a document begins as another of its group or row of data
 * does, and of which the program reads nothing, are those of the other, and stand there once. Such documents
 * are a unit, as many of a group as fit.
 *
 * With several ranks each packs what is its own, and every one of them knows what all have: units by
 * descending work (pack_ranks.c; equal ones in order), each to the rank with the least so far (of equal ones
 * the first). Where some rank then needs more micro-batches than the plan has, units are packed first, and
 * whole micro-batches go to ranks.
 *
 * The program declares what it wants by the names of its row inputs and scalars; nothing else is known here
 * of objectives.
 *   per row    tok; pos, counted from 0 in every document; first, the row where the document begins, own,
 *              where those rows begin that are its own, and shared_end, where those end that another document
 *              has for it: all the same where nothing is shared; label, the next token of the document (0
 *              in its last row), and weight, what that label counts: 1, or the weight of its message, 0
 *              where it does not; predicted, 1 where there is a
 *              next token, in all rows of a document but the last; doc, unit and group, the number of the
 *              document, row of data and group in the micro-batch; sample, the document's number in the data;
 *              doc.labels, how many labels of the document count; in.PART, 1 in documents of that part
 *              ("in.chosen"); NAME, what rows give under that name for the token that is the row's label, or
 *              for the document as a whole ("old_logps", "advantage"; tokenize.h), 0 where there is none;
 *              has.NAME, 1 in documents that have it, but where the number is missing (null); old_values,
 *              about rows in place of labels, also the last of a document (its number stands at token 0);
 *              one.of.NAME.NAME, 1 in documents that have one of them (in all the data there has to be one)
 *   per group  NAME.PART, the number NAME of the unit's document of that part ("ref_logps_sum.chosen"); NAME
 *              where documents are the groups. S is the number of groups of the micro-batch where the program
 *              asks for group (which then have no such numbers), of rows of data where it asks for unit, of
 *              documents where it asks for doc, else 0
 *   scalars    of the whole step, at least 1: labels, those that count; predicted, all rows of documents but
 *              the last; labels.PART, predicted.PART, those of documents of that part; docs; units, rows of
 *              data; groups; longest, tokens of the longest document; of the micro-batches (trainer.c):
 *              part.labels, labels that count in the one at hand; part.last, 1 in the last of this
 *              rank; parts, how many all ranks have
 *
 * mismatched.logps and mismatched.ref_logps are told by a scoring (mismatched.h).
 *
 * What the program's @prepare (ir/graph/prepare.h) makes of the step (prepared.h) stands before data of the
 * same name.
 *
 * Memory: 4 bytes per row for each column, 8 for numbers beside documents, for the longest micro-batch so
 * far. Threads: one thread at a time.
 */
#ifndef SBP_RUNTIME_DATA_PACK_H
#define SBP_RUNTIME_DATA_PACK_H

#include "runtime/data/dataset.h"
#include "runtime/run/executor.h"

/* A micro-batch. Without documents (count 0) it is a row in which nothing counts, for a rank
 * that has none. */
typedef struct sbp_micro_batch {
    const int64_t *docs; /* of the dataset, ascending */
    int64_t count;
    int64_t units;  /* how many items that are packed whole */
    int64_t groups; /* S */
    bool by_unit;   /* groups are units */
    int64_t rows, labels;
    /* [count] How many rows a document has in common with the latest one before it that has 0 here: they are
     * that one's, its own come behind them. NULL: all 0. */
    const int32_t *shared;
} sbp_micro_batch;

/* Operations of a program on a document, as far as matmuls and attention go. */
typedef struct sbp_pack_work {
    double per_row;
    struct {
        int64_t window; /* 0: none */
        double per_pair;
    } attention[SBP_MAX_WINDOWS];
    int32_t attention_count;
} sbp_pack_work;

enum { SBP_PACK_COLUMNS = 1024 };

typedef struct sbp_packer {
    int64_t most_rows;
    int64_t most_parts;                  /* of a rank; 0: any */
    int32_t rank, ranks;                 /* 0 of 1 at first */
    const struct sbp_prepared *prepared; /* columns of the step; NULL: none */
    const char *counted; /* the column that is 0 in rows of which nothing is read: prompts are shared; NULL:
                            they are not */
    sbp_pack_work work;
    /* of the latest step */
    sbp_micro_batch *parts; /* of all ranks, in turn */
    int32_t part_count, part_capacity;
    int32_t own, own_count;          /* those of this rank: the first, and how many */
    int32_t most_own;                /* that a rank has */
    int64_t rows, labels, doc_count; /* rows: tokens */
    int64_t run_rows;                /* of all micro-batches: less where prompts are shared */
    int64_t longest;                 /* tokens of the longest document */
    bool units;                      /* documents of a row stay together */
    bool rollouts;                   /* rows of a group too, and S counts groups */
    bool groups;                     /* the program has groups of rows: units, else documents */
    bool too_many;                   /* the program wants more columns than there is room for */
    /* memory */
    int64_t *docs, doc_capacity; /* what parts point into, and the order of packing */
    int32_t *shared;             /* [2][doc_capacity] likewise; in the order of rows behind them */
    int64_t shared_capacity;
    double *numbers; /* of a document */
    int64_t number_capacity;
    struct sbp_pack_item *items;
    int64_t item_capacity;
    struct sbp_pack_bin *bins;
    int64_t bin_capacity;
    struct sbp_pack_load *loads; /* of ranks, and of micro-batches that go to them */
    int64_t load_capacity;
    sbp_column columns[SBP_PACK_COLUMNS];
    bool by_group[SBP_PACK_COLUMNS]; /* a number per group, not per row */
    int32_t column_count;
    int64_t row_capacity[SBP_PACK_COLUMNS];
    void *memory[SBP_PACK_COLUMNS];
} sbp_packer;

/* most_rows: of a micro-batch (sbp_program_most_rows). program: whose row inputs are wanted; NULL: all
 * columns. */
void sbp_packer_init(sbp_packer *packer, int64_t most_rows, const sbp_program *program);
/* This process among those of the run; without it, it is alone. To the packer, ranks that have micro-batches
 * together (ir/base/context.h) are one. */
void sbp_packer_share(sbp_packer *packer, const sbp_program *program, int32_t rank, int32_t count);
void sbp_packer_close(sbp_packer *packer);
/* Packs the documents of some rows of the data, none of which is longer than most_rows. Where prompts are
 * shared, @prepare has run for the step, if it makes `counted`. */
sbp_status sbp_packer_pack(sbp_packer *packer, sbp_diag *diag, const sbp_dataset *data, const int64_t *rows,
                           int64_t row_count) SBP_CHECKED;
/* SBP_INPUT, with the remedies, when a rank of the packed step has more micro-batches than most_parts. */
sbp_status sbp_packer_check(const sbp_packer *packer, sbp_diag *diag) SBP_CHECKED;
/* Fills packer->columns for one micro-batch, for sbp_executor_bind. */
sbp_status sbp_packer_columns(sbp_packer *packer, sbp_diag *diag, const sbp_dataset *data,
                              const sbp_micro_batch *part) SBP_CHECKED;

/* Where a document stands: its first `shared` rows from row `first` on, the others from row `own` on. */
typedef struct sbp_pack_place {
    int64_t first, shared, own;
} sbp_pack_place;

/* The same of rows `begin` .. of the data's one document but for its last token: that is the label of the
 * last row. For sbp_executor_bind_behind. */
sbp_status sbp_packer_columns_behind(sbp_packer *packer, sbp_diag *diag, const sbp_dataset *data,
                                     int64_t begin, const sbp_pack_place *place) SBP_CHECKED;

/* The column `name` of these documents, ascending, that hold `rows` rows: any of those of a program, as
 * doubles. */
sbp_status sbp_pack_column(sbp_diag *diag, const sbp_dataset *data, const int64_t *docs, int64_t doc_count,
                           int64_t rows, const char *name, double *out) SBP_CHECKED;

/* A number of a whole step, one of these rows, by its name as a scalar; rows NULL: the first row_count of the
 * data. False: there is no such number. */
bool sbp_pack_total(const sbp_dataset *data, const int64_t *rows, int64_t row_count, const char *name,
                    double *out);

/* Whether a program wants the documents of a row, or the rows of a group, in one micro-batch: such rows are
 * not for sbp_dataset_pack. */
bool sbp_pack_keeps_rows(const sbp_program *program);
/* Why prompts cannot be shared for this program, whose objective reads nothing of rows where `counted` is 0;
 * NULL: they can. */
const char *sbp_pack_cannot_share(const sbp_program *program, const char *counted);
/* What rows a program wants, by what it asks for. */
sbp_rows_wanted sbp_pack_rows_wanted(const sbp_program *program);
/* Whether a program reads a number of tokens or documents, NAME or NAME.PART; *optional: it asks with "has."
 * whether it is there. */
bool sbp_pack_reads(const sbp_program *program, const char *name, bool *optional);
/* SBP_INPUT when a document lacks a number that the program reads, does not ask about with "has.", and that
 * is not computed from weights (runtime/train/scored.h). */
sbp_status sbp_pack_check_data(const sbp_program *program, sbp_diag *diag,
                               const sbp_dataset *data) SBP_CHECKED;

/* The work of a row, by the entry that takes micro-batches; program NULL: all rows are alike. */
sbp_pack_work sbp_pack_work_of(const sbp_program *program);

/* ---- between the parts of the packer --------------------------------------------------------- */

/* What is packed whole: a document, or those of a row, or some that share a prompt; and where it went. */
typedef struct sbp_pack_item {
    int64_t doc, docs, length;
    double work;
    int32_t rank;
    int64_t bin;
    int64_t place; /* of its first document in the order of rows */
} sbp_pack_item;

void sbp_packer_want(sbp_packer *packer, const sbp_program *program);
/* A column of one document, with what @prepare made of the step. */
sbp_status sbp_pack_document(const sbp_packer *packer, sbp_diag *diag, const sbp_dataset *data, int64_t doc,
                             const char *name, double *out) SBP_CHECKED;
/* share.c: how many rows `doc` has in common with `leader`, which need not be run for it. */
sbp_status sbp_pack_shared(sbp_packer *packer, sbp_diag *diag, const sbp_dataset *data, int64_t leader,
                           int64_t doc, int32_t *out) SBP_CHECKED;
/* Room for `count` elements in an array of malloc; false when there is none. Here, so that files do not call
 * in a circle. */
static inline bool sbp_pack_grow(void *pointer, int64_t *capacity, int64_t count, size_t element_bytes) {
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
/* The work of rows `first` .. first + rows - 1 of a document. */
double sbp_pack_rows_work(const sbp_pack_work *work, int64_t first, int64_t rows);
/* Sets the rank of each item; their order changes. False: out of memory. */
bool sbp_pack_share_items(sbp_packer *packer, int64_t items) SBP_CHECKED;
/* The same of items with a bin, below `bins`: those of a bin stay together, and a rank has at most most_parts
 * bins, of which there are enough. */
bool sbp_pack_share_bins(sbp_packer *packer, int64_t items, int64_t bins) SBP_CHECKED;

#endif
