/* prepared.h: what the program's @prepare (ir/graph/prepare.h) makes of the rows of a step, kept until the
 * next step.
 *
 * Memory: 8 bytes per row of the step for each column that @prepare reads or makes, and more while it runs.
 * Threads: one thread at a time.
 */
#ifndef SBP_RUNTIME_DATA_PREPARED_H
#define SBP_RUNTIME_DATA_PREPARED_H

#include "ir/graph/prepare.h"
#include "runtime/data/dataset.h"

typedef struct sbp_prepared {
    const sbp_prepare *prepare; /* NULL: there is nothing to do */
    double *scalars;            /* [scalar_count]; settings are kept from step to step */
    double *numbers;            /* [number_count] of the latest step */
    double **columns; /* [column_count][rows], of the latest step's documents in the order of the data */
    int64_t *docs, *places; /* [doc_count] of them, and where their rows begin */
    int64_t doc_count, rows;
    int64_t doc_capacity, row_capacity;
    double **inputs; /* [row_count][rows] */
} sbp_prepared;

/* prepare may be NULL. */
sbp_status sbp_prepared_init(sbp_prepared *prepared, sbp_diag *diag, const sbp_prepare *prepare) SBP_CHECKED;
void sbp_prepared_close(sbp_prepared *prepared);
/* A scalar, such as a setting, where @prepare has it. */
void sbp_prepared_set(sbp_prepared *prepared, const char *name, double value);
/* Runs it for the documents of these rows of the data; rows NULL: of all. The counts of pack.h are set by
 * itself. */
sbp_status sbp_prepared_run(sbp_prepared *prepared, sbp_diag *diag, const sbp_dataset *data,
                            const int64_t *rows, int64_t row_count) SBP_CHECKED;

#endif
