/* load.h: between load.c (rows to documents, by threads) and dataset.c (documents to arrays).
 *
 * Threads: a placer is used by one at a time.
 */
#ifndef SBP_RUNTIME_DATA_LOAD_H
#define SBP_RUNTIME_DATA_LOAD_H

#include "runtime/data/groups.h"

typedef struct sbp_placer {
    sbp_diag *diag;
    const sbp_dataset_options *options;
    sbp_dataset *data;
    sbp_group_rows groups;  /* of rows with a "group" */
    int64_t overlong_count; /* with SBP_OVERLONG_ERROR */
    char overlong_what[700];
    bool overlong_whole;
    int64_t overlong_most;
} sbp_placer;

/* Places the documents of row data->read_count: cut, split, left out or as they are. The arena is for
 * messages. Needs no guard. */
sbp_status sbp_placer_row(sbp_placer *placer, sbp_arena *arena, const char *where,
                          sbp_documents *documents) SBP_CHECKED;
/* Says what was left out or cut; SBP_INPUT when nothing is left, or something was too long. */
sbp_status sbp_placer_end(const sbp_placer *placer) SBP_CHECKED;

#endif
