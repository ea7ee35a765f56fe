/* batch.h: records of files to documents, a batch at a time, by threads. Who reads and places them is one
 * thread (load.c): it makes the first batches itself, until a row has told what rows are.
 *
 * Threads: a worker is used by one at a time, a pool by the one that opened it.
 */
#ifndef SBP_RUNTIME_DATA_BATCH_H
#define SBP_RUNTIME_DATA_BATCH_H

#include "runtime/data/dataset.h"

enum { SBP_BATCH_RECORDS = 256, SBP_BATCH_BYTES = 1 << 19 };

/* Not in an arena: a message may come of one that has run out of memory. */
typedef struct sbp_said {
    struct sbp_said *next;
    sbp_severity severity;
    unsigned once; /* the oddities that are told once and that it is about, by bit */
    char text[];
} sbp_said;

/* What became of a record. */
typedef struct sbp_outcome {
    sbp_documents documents;
    bool bad;
    sbp_arena *arena;        /* of the documents of a large row; NULL: that of the batch */
    sbp_said *first, **last; /* what was said about it */
} sbp_outcome;

/* Records that are one job of a thread. */
typedef struct sbp_batch {
    sbp_arena *arena;
    sbp_record records[SBP_BATCH_RECORDS];
    int64_t rows[SBP_BATCH_RECORDS]; /* their numbers in the data */
    sbp_outcome outcomes[SBP_BATCH_RECORDS];
    int32_t count, made; /* records; those with an outcome */
    sbp_status status;   /* SBP_OK, or of record made - 1 */
    unsigned warned;     /* before it */
    bool done;
} sbp_batch;

/* What a thread makes documents with. */
typedef struct sbp_row_worker {
    const sbp_dataset_options *options;
    sbp_row_options row_options;
    sbp_row_form form; /* of the first row */
    sbp_document_maker maker;
    sbp_chat chat; /* a copy of the first worker's, with its own memory of what was said */
    sbp_chat_options chat_options;
    sbp_diag *diag;
    unsigned told;        /* before the message at hand */
    sbp_outcome *outcome; /* of the record at hand */
} sbp_row_worker;

/* NULL: there is no memory. */
sbp_batch *sbp_batch_create(void);
/* NULL is allowed. */
void sbp_batch_destroy(sbp_batch *batch);
/* Documents of its records, up to the first that ends the reading: batch->status. */
void sbp_batch_make(sbp_row_worker *worker, sbp_batch *batch);

/* first: a worker that knows the form of rows and has opened the template; NULL: this is it. false: there is
 * no memory. The caller closes it in any case. */
bool sbp_row_worker_open(sbp_row_worker *worker, const sbp_dataset_options *options,
                         const sbp_row_worker *first);
void sbp_row_worker_close(sbp_row_worker *worker);
/* The oddities that it has told of, by bit. */
unsigned sbp_row_worker_told(const sbp_row_worker *worker);

typedef struct sbp_row_pool sbp_row_pool;

/* As many threads as can be had, at most options->threads; NULL: none. */
sbp_row_pool *sbp_row_pool_open(const sbp_dataset_options *options, const sbp_row_worker *first);
/* NULL is allowed. */
void sbp_row_pool_close(sbp_row_pool *pool);
/* Whether a batch must be taken before another is put; whether there is none to take. */
bool sbp_row_pool_is_full(const sbp_row_pool *pool);
bool sbp_row_pool_is_empty(const sbp_row_pool *pool);
/* The pool has it, until it is taken. */
void sbp_row_pool_put(sbp_row_pool *pool, sbp_batch *batch);
/* Waits for the oldest; the caller destroys it. */
sbp_batch *sbp_row_pool_take(sbp_row_pool *pool);

#endif
