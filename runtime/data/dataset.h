/* dataset.h: all rows of some files as tokens, in memory or mapped, and the order in which steps take them.
 *
 * A row of data becomes one document (several when an overlong one is split), or those of a preference, which
 * belong together: such a row is used whole or not at all. The label of a position is the
 * next token of the same document; here labels still name their own token, as in the files, and the packer
 * shifts them. The first token of a document is never a label.
 *
 * Order. In epoch e, rows are sorted by (k0, k1, row), where k0 and k1 are the first words of Philox4x32-10
 * (ir/rowkernel/rowkernel.h) with key (seed low, seed high) and counters (row low, row high, e, 0) and (row
 * low, row high, e, 1): any position of any epoch can be reached without a state. Without shuffling: file
 * order. A step takes the next --batch-size rows, or as many as have at most --batch-tokens tokens (at least
 * one); the last step of an epoch takes what is left. Groups (rollouts of one prompt; groups.h) are never
 * parted: they are what is sorted, by their number in place of a row's, their rows in the order of the file,
 * and a step takes as many whole groups as have at most --batch-size rows, or --batch-tokens
 * tokens (at least one).
 *
 * Making it is the work of load.c (threads), cache.h (on disk) and dataset.c (what becomes of documents).
 *
 * Memory: 8 bytes per token, 32 per document, 8 per row, 8 more where there are groups, and 8 for each number
 * that rows have per token or document; in mapped files where there is a cache. A sampler: 8 bytes per
 * row, 8 more and 16 per group where there are groups. Threads: a loaded dataset is constant; a sampler
 * belongs to one thread.
 */
#ifndef SBP_RUNTIME_DATA_DATASET_H
#define SBP_RUNTIME_DATA_DATASET_H

#include "runtime/data/arrays.h"
#include "runtime/data/fit.h"
#include "runtime/data/mixture.h"
#include "runtime/data/source/source.h"

/* What rows have to be. */
typedef enum sbp_rows_wanted {
    SBP_ROWS_TEXTS,  /* single documents; numbers beside them are ignored like other keys */
    SBP_ROWS_SCORED, /* single documents with the numbers that stand beside them */
    SBP_ROWS_PAIRS,  /* two answers each, and their numbers */
    SBP_ROWS_ANY     /* it is not known yet: any, without numbers */
} sbp_rows_wanted;

/* Rows that come step by step: {"end_of_step": true} on a line of its own ends one. */
typedef struct sbp_row_stream {
    sbp_source *source;
    bool own;        /* this program writes it: a step without rows is none of the user's */
    bool steps;      /* such a line was read */
    bool ended;      /* so has the stream */
    char where[100]; /* of the line that ended the latest step, "FILE:LINE" */
} sbp_row_stream;

typedef struct sbp_dataset_options {
    const char *const *files;
    int32_t file_count;
    const sbp_mixture *mixture;     /* which rows of the files; NULL: all */
    sbp_row_stream *stream;         /* in their place: the rows up to the end of a step; NULL: files */
    sbp_columns columns;            /* names that they have otherwise */
    const sbp_tokenizer *tokenizer; /* NULL: rows must be ids */
    sbp_rows_wanted rows;
    const char *objective, *objective_of_pairs; /* for messages; NULL: unknown */
    sbp_loss_on loss_on;
    sbp_reasoning reasoning; /* which think blocks count */
    bool mask_truncated;     /* completions without an end-of-sequence token do not count */
    double eos_penalty;      /* taken from rewards of those without such a token */
    int64_t vocab_size;      /* 0: unknown */
    int64_t max_tokens;      /* of a document; 0: any */
    int64_t max_prompt;      /* of a prompt; a row with a longer one is wrong; 0: any */
    sbp_overlong overlong;
    const char *eos;              /* of texts, in place of the tokenizer's; NULL: that */
    sbp_row_ids eos_ids;          /* what ends completions where no tokenizer says it */
    const sbp_chat_options *chat; /* NULL: there is no template for conversations */
    bool quiet;                   /* columns that are not used were told of */
    bool skip_bad_rows;           /* a row that is wrong is left out, with a warning, and counted */
    int32_t threads;              /* that tokenize; 0: this one */
    const char *cache;            /* directory of caches (cache.h); NULL: the data stay in memory */
    int64_t cache_from_bytes;     /* of files, from which on there is one */
    uint64_t settings_hash;       /* of what else decides what tokens come out: the tokenizer */
    /* Told now and then, NULL: nobody: share of the files that was read, 0 to 1. */
    void (*progress)(void *user, double share);
    void *progress_user;
} sbp_dataset_options;

/* 32 bytes: there may be many millions, in files. */
typedef struct sbp_doc {
    int64_t first;         /* token */
    int64_t row;           /* of the files, all rows counted from 0 */
    int32_t count, labels; /* tokens; counted labels, positions 1 .. count - 1 */
    uint8_t part, columns; /* sbp_doc_part; which of the data's columns and numbers it has, by bit */
    uint16_t numbers;
} sbp_doc;

enum { SBP_DATA_COLUMNS = 8, SBP_DATA_NUMBERS = 16 };

typedef struct sbp_dataset {
    int32_t *tokens, *labels; /* [token_count]; labels: -100 none */
    int64_t token_count, token_capacity;
    /* Numbers beside the tokens and documents, under the names that rows give them (tokenize.h); 0 where a
     * document has none. */
    const char *column_names[SBP_DATA_COLUMNS], *number_names[SBP_DATA_NUMBERS];
    int32_t column_count, number_count;
    double *columns[SBP_DATA_COLUMNS]; /* [token_count] each; [i] is about token i */
    double *numbers[SBP_DATA_NUMBERS]; /* [doc_count] each */
    int64_t column_capacity[SBP_DATA_COLUMNS], number_capacity[SBP_DATA_NUMBERS];
    /* Experts that tokens go to, [routed_count][routed_layers][routed_chosen]; the column SBP_ROUTED says
     * which a token has, NaN none. */
    int16_t *routed;
    int64_t routed_count, routed_capacity, routed_layers, routed_chosen;
    uint32_t added_columns, added_numbers; /* by bit: not of the files, and of every document */
    sbp_doc *docs;
    int64_t doc_count, doc_capacity;
    int64_t *rows; /* [row_count + 1]: first document of each row that is used: by sbp_dataset_doc_at */
    int64_t *row_docs,
        *packed_rows; /* of data that were packed: documents in the order of rows; NULL: their own */
    int64_t row_count, row_capacity;
    uint64_t *groups; /* [row_count]: neighbours with the same key are a group, 0 alone; NULL: none has one */
    int64_t group_capacity;
    bool grouped; /* there are groups */
    bool texts;   /* every row is a single document, with what is trained on */
    int64_t label_count;
    int64_t longest;    /* tokens of the longest document, or of documents that belong together */
    int64_t read_count; /* rows in the files */
    int64_t unchosen;   /* and those of them that the mixture does not take */
    int64_t dropped, truncated, split, empty, bad;
    int64_t unwritten
        [SBP_UNWRITTEN_KINDS]; /* rows with what their chat template leaves out, by its bits (chat.h) */
    int64_t greatest_id;       /* of tokens and labels */
    uint64_t hash;             /* of tokens, labels, numbers, groups, and where rows and documents begin */
    sbp_arrays arrays;         /* where the arrays above are */
    sbp_arena *arena;          /* of names */
} sbp_dataset;

/* "text", "completion", "chosen", "rejected" or "prompt". */
const char *sbp_doc_part(const sbp_doc *doc);

/* Whether what is loaded is kept on disk, or was, where the files can be known again. */
bool sbp_dataset_is_kept(const sbp_dataset_options *options);
/* Reads, tokenizes and checks all files. Notes say what was left out or cut. SBP_INPUT names file and line of
 * what is wrong; also when there is no row. With a stream, *out NULL: it has ended, and rows behind the last
 * step's end are left out with a warning; no rows: the step had none, or all were left out, which is warned
 * of; a stream that ends no step is read as a whole. */
sbp_status sbp_dataset_load(sbp_diag *diag, const sbp_dataset_options *options,
                            sbp_dataset **out) SBP_CHECKED;
/* Makes rows of several documents that have at most `most` tokens together, as TRL's packing "bfd"
 * (packed.c); a step then takes such rows. Rows of several documents that belong together are not for this,
 * and what was known of groups is gone. */
sbp_status sbp_dataset_pack(sbp_diag *diag, sbp_dataset *data, int64_t most) SBP_CHECKED;
/* Document number `at` in the order of rows. */
static inline int64_t sbp_dataset_doc_at(const sbp_dataset *data, int64_t at) {
    return data->row_docs ? data->row_docs[at] : at;
}
/* NULL is allowed. */
void sbp_dataset_destroy(sbp_dataset *data);
/* Gives pages of files that were touched back to the system. */
void sbp_dataset_release(const sbp_dataset *data);
/* Tokens of all documents of a row. */
int64_t sbp_dataset_row_tokens(const sbp_dataset *data, int64_t row);

/* A column [token_count], or a number [doc_count], that the files do not have, of every document. values:
 * from sbp_malloc, the data's from now on, also after an error; the name must be static. Neither counts in
 * data->hash. */
sbp_status sbp_dataset_add_column(sbp_dataset *data, sbp_diag *diag, const char *name,
                                  double *values) SBP_CHECKED;
sbp_status sbp_dataset_add_number(sbp_dataset *data, sbp_diag *diag, const char *name,
                                  double *values) SBP_CHECKED;
/* Place of a column or number, of the files or added; -1: there is none. */
int32_t sbp_dataset_column(const sbp_dataset *data, const char *name);
int32_t sbp_dataset_number(const sbp_dataset *data, const char *name);

/* ---- order ------------------------------------------------------------------------------------------ */

typedef struct sbp_sampler {
    const sbp_dataset *data;
    uint64_t seed;
    bool shuffle;
    int64_t batch_rows, batch_tokens; /* batch_tokens 0: by rows */
    int64_t epoch, at;                /* the next step begins at order[at] of this epoch */
    int64_t *order;                   /* [row_count] of order_epoch */
    int64_t *firsts;                  /* [group_count + 1]: first row of each group; NULL: rows stand alone */
    int64_t group_count;
    void *keys;          /* of groups, while they are sorted */
    int64_t order_epoch; /* -1: none yet */
    int64_t taken;       /* rows since pages of the data were released */
} sbp_sampler;

sbp_status sbp_sampler_init(sbp_sampler *sampler, sbp_diag *diag, const sbp_dataset *data, uint64_t seed,
                            bool shuffle, int64_t batch_rows, int64_t batch_tokens) SBP_CHECKED;
void sbp_sampler_close(sbp_sampler *sampler);
/* The rows of the next step, valid until the next call; goes on to the next epoch by itself. */
const int64_t *sbp_sampler_next(sbp_sampler *sampler, int64_t *count);
/* Steps of an epoch. Moves the sampler to the beginning of that epoch. */
int64_t sbp_sampler_epoch_steps(sbp_sampler *sampler, int64_t epoch);
/* ceil of what `epochs` passes take; a fraction takes that share of the last pass' steps. Moves the sampler
 * to its beginning. */
int64_t sbp_sampler_total_steps(sbp_sampler *sampler, double epochs);
void sbp_sampler_seek(sbp_sampler *sampler, int64_t epoch, int64_t at);

#endif
