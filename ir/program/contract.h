/* contract.h: contract.def as C: an enumeration of each kind of name, and the names.
 *
 * sbpc writes names into plans by these ids, sbprun answers by them; plans hold the texts. Threads: these are
 * constants. */
#ifndef SBP_IR_PROGRAM_CONTRACT_H
#define SBP_IR_PROGRAM_CONTRACT_H

#include "ir/base/base.h"
#include "ir/base/types.h"

typedef enum sbp_entry_id {
#define ENTRY(id, name, what) SBP_ENTRY_##id,
#include "ir/program/contract.def"
    SBP_ENTRIES
} sbp_entry_id;

typedef enum sbp_scalar_id {
#define SCALAR(id, name, when, what) SBP_SCALAR_##id,
#include "ir/program/contract.def"
    SBP_SCALAR_COUNT
} sbp_scalar_id;

typedef enum sbp_total_id {
#define TOTAL(id, name, parted, what) SBP_TOTAL_##id,
#include "ir/program/contract.def"
    SBP_TOTAL_COUNT
} sbp_total_id;

typedef enum sbp_column_id {
#define COLUMN(id, name, dtype, from, what) SBP_DATA_##id,
#include "ir/program/contract.def"
    SBP_DATA_COUNT
} sbp_column_id;

typedef enum sbp_suffix_id {
#define SUFFIX(id, name, kind, what) SBP_SUFFIX_##id,
#include "ir/program/contract.def"
    SBP_SUFFIX_COUNT
} sbp_suffix_id;

typedef enum sbp_part_id {
#define PART_OF_ROW(id, name) SBP_PART_##id,
#include "ir/program/contract.def"
    SBP_PART_COUNT
} sbp_part_id;

typedef enum sbp_suffix_kind {
    SBP_SUFFIX_IS_GRAD,
    SBP_SUFFIX_IS_MASTER,
    SBP_SUFFIX_IS_STATE
} sbp_suffix_kind;

typedef struct sbp_column_info {
    const char *name;
    sbp_dtype dtype;
    bool packed; /* every row has it; else rows of data may carry it */
} sbp_column_info;

typedef struct sbp_suffix_info {
    const char *name;
    sbp_suffix_kind kind;
} sbp_suffix_info;

typedef struct sbp_total_info {
    const char *name;
    bool parted; /* "<name>.<part>" counts the documents of that part */
} sbp_total_info;

extern const char *const sbp_entry_names[SBP_ENTRIES];
extern const char *const sbp_scalar_names[SBP_SCALAR_COUNT];
extern const sbp_total_info sbp_totals[SBP_TOTAL_COUNT];
extern const sbp_column_info sbp_data_columns[SBP_DATA_COUNT];
extern const sbp_suffix_info sbp_suffixes[SBP_SUFFIX_COUNT];
extern const char *const sbp_part_names[SBP_PART_COUNT];

#define SBP_RANDOM_PREFIX "random_" /* of scalars that are random numbers of a step */
#define SBP_ABSMAX_SUFFIX "_absmax" /* behind the suffix of a state in 8 bits: the largest of each block */
#define SBP_HAS_PREFIX "has."       /* of a column: 1 where the row has a number of that name */
#define SBP_IN_PREFIX "in."         /* of a column: 1 in documents of that part */
#define SBP_TOK_BELOW_PREFIX "tok.below." /* of a column: the token, 0 where it is N or more, "tok.below.N" */
#define SBP_ONE_OF_PREFIX "one.of."       /* of a column: 1 where the row has one of several, "one.of.A.B" */
#define SBP_LOGITS "logits"               /* the buffer of what `generate` leaves: [H, vocabulary] */
#define SBP_FIRST_IN_PREFIX "first.in."   /* of a column: "first.in.N", first of what is in the row's part */
#define SBP_OWN_IN_PREFIX "own.in."       /* likewise own, where a document is in parts of N positions each */

/* N of "<prefix>N", from 1 on, below 2^31; 0: another name. */
int64_t sbp_column_number(const char *column, const char *prefix);
/* Whether the numbers of a column are rows, of which none is behind the row itself. */
bool sbp_column_names_rows(const char *column);

/* Whether a buffer's name is "<stem>.<suffix>", and how long the stem is. */
bool sbp_suffix_stem(const char *buffer, sbp_suffix_id suffix, size_t *stem);
/* The total that a scalar's name asks for, and of which part: SBP_PART_COUNT stands for all. False: none. */
bool sbp_total_of(const char *scalar, sbp_total_id *total, sbp_part_id *part);
/* Whether the runtime sets a scalar of this name without being told by the plan: one of the table, a random
 * number, or a total. Settings of objectives and numbers of @prepare are named by the plan itself. */
bool sbp_contract_sets(const char *scalar);

#endif
