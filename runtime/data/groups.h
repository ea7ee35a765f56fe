/* groups.h: which rows are a group, and that they are neighbours.
 *
 * A group are the rows of all files (of a stream: of the step) that have the same key, wherever they stand:
 * the same "group", or where rows have none, rollouts of the same prompt. What comes behind reading (steps,
 * shuffling, micro-batches, means over groups) knows neighbours only, so the rows of a group are put side by
 * side, in their order, where its first row stands.
 *
 * A "group" is of one prompt, and may be counted anew, as in files of rollouts in which every batch of them
 * begins with 0: the same one with another prompt is another group then. So it is where each prompt of a
 * "group" whose rows stand apart has two rows or more. Where most have one (every row may have a prompt of
 * its own), "group" alone counts. What lies between, a lonely row where most are not, is SBP_INPUT and names
 * the group. Neighbours are one group whatever their prompts, unless they are of two batches.
 *
 * Memory: while rows are read 16 bytes and the name for each that has a "group"; at the end 56 bytes per run
 * of neighbours, and where rows are moved 16 per row and another time that of documents. Threads: one.
 */
#ifndef SBP_RUNTIME_DATA_GROUPS_H
#define SBP_RUNTIME_DATA_GROUPS_H

#include "runtime/data/dataset.h"

/* What rows said of their groups. */
typedef struct sbp_group_rows {
    uint64_t *prompts; /* [row_count] */
    int64_t *names;    /* [row_count] into text */
    char *text;
    int64_t count, prompt_capacity, name_capacity, text_size, text_capacity;
} sbp_group_rows;

/* The row that comes next, of a "group" called so. False: out of memory. */
bool sbp_group_rows_add(sbp_group_rows *rows, uint64_t prompt, const char *name) SBP_CHECKED;
void sbp_group_rows_close(sbp_group_rows *rows);

/* Gathers the rows of groups in data that are read: `rows` are those with a "group", or none. Groups are the
 * keys of their rows. said: what there is to say about it, "" nothing. */
sbp_status sbp_dataset_gather(sbp_diag *diag, sbp_dataset *data, const sbp_group_rows *rows, char *said,
                              size_t size) SBP_CHECKED;
/* Documents in the order of the files [doc_count], from sbp_malloc; NULL where that is their own. */
sbp_status sbp_dataset_file_order(sbp_diag *diag, const sbp_dataset *data, int64_t **out) SBP_CHECKED;
/* Whether a row is the first of its group; of rows that stand alone each is. */
bool sbp_dataset_begins_group(const sbp_dataset *data, int64_t row);

#endif
