/* prepared.c: @prepare on the rows of a step. */
#include "runtime/data/prepared.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/data/pack.h"

static void *zeros(int64_t count, size_t bytes) {
    void *memory = sbp_malloc((size_t)(count + 1) * bytes);
    return memory ? memset(memory, 0, (size_t)(count + 1) * bytes) : NULL;
}

sbp_status sbp_prepared_init(sbp_prepared *p, sbp_diag *diag, const sbp_prepare *prepare) {
    *p = (sbp_prepared){.prepare = prepare};
    if (!prepare)
        return SBP_OK;
    p->scalars = zeros(prepare->scalar_count, sizeof *p->scalars);
    p->numbers = zeros(prepare->number_count, sizeof *p->numbers);
    p->columns = zeros(prepare->column_count, sizeof *p->columns);
    p->inputs = zeros(prepare->row_count, sizeof *p->inputs);
    if (p->scalars && p->numbers && p->columns && p->inputs)
        return SBP_OK;
    sbp_prepared_close(p);
    return sbp_fail(diag, SBP_MACHINE, "out of memory for what a loss needs of a step's data");
}

static void free_rows(sbp_prepared *p) {
    for (int32_t i = 0; p->columns && i < p->prepare->column_count; i++) {
        free(p->columns[i]);
        p->columns[i] = NULL;
    }
    for (int32_t i = 0; p->inputs && i < p->prepare->row_count; i++) {
        free(p->inputs[i]);
        p->inputs[i] = NULL;
    }
    p->row_capacity = 0;
}

void sbp_prepared_close(sbp_prepared *p) {
    free_rows(p);
    free(p->scalars);
    free(p->numbers);
    free(p->columns);
    free(p->inputs);
    free(p->docs);
    free(p->places);
    *p = (sbp_prepared){0};
}

void sbp_prepared_set(sbp_prepared *p, const char *name, double value) {
    for (int32_t i = 0; p->prepare && i < p->prepare->scalar_count; i++)
        if (strcmp(p->prepare->scalars[i], name) == 0)
            p->scalars[i] = value;
}

/* ---- a step ------------------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* Documents of the rows, sorted, and where each begins. */
static bool list_docs(sbp_prepared *p, const sbp_dataset *data, const int64_t *rows, int64_t row_count) {
    int64_t count = 0, capacity = p->doc_capacity;
    for (int64_t r = 0; r < row_count; r++) {
        int64_t row = rows ? rows[r] : r;
        count += data->rows[row + 1] - data->rows[row];
    }
    if (!sbp_pack_grow(&p->docs, &capacity, count, sizeof *p->docs) ||
        !sbp_pack_grow(&p->places, &p->doc_capacity, count, sizeof *p->places))
        return false;
    p->doc_count = p->rows = 0;
    for (int64_t r = 0; r < row_count; r++) {
        int64_t row = rows ? rows[r] : r;
        for (int64_t k = data->rows[row]; k < data->rows[row + 1]; k++)
            p->docs[p->doc_count++] = sbp_dataset_doc_at(data, k);
    }
    if (count > 0)
        qsort(p->docs, (size_t)count, sizeof *p->docs, ascending);
    for (int64_t k = 0; k < count; k++) {
        p->places[k] = p->rows;
        p->rows += data->docs[p->docs[k]].count;
    }
    return true;
}

static bool make_room(sbp_prepared *p) {
    if (p->rows <= p->row_capacity)
        return true;
    free_rows(p);
    for (int32_t i = 0; i < p->prepare->column_count; i++)
        if (!(p->columns[i] = sbp_malloc((size_t)p->rows * sizeof(double))))
            return false;
    for (int32_t i = 0; i < p->prepare->row_count; i++)
        if (!(p->inputs[i] = sbp_malloc((size_t)p->rows * sizeof(double))))
            return false;
    p->row_capacity = p->rows;
    return true;
}

sbp_status sbp_prepared_run(sbp_prepared *p, sbp_diag *diag, const sbp_dataset *data, const int64_t *rows,
                            int64_t row_count) {
    const sbp_prepare *prepare = p->prepare;
    double total;
    if (!prepare)
        return SBP_OK;
    if (!list_docs(p, data, rows, row_count) || !make_room(p))
        return sbp_fail(diag, SBP_MACHINE, "out of memory for what is computed of %lld rows of data",
                        (long long)row_count);
    if (p->rows == 0)
        return SBP_OK;
    for (int32_t i = 0; i < prepare->scalar_count; i++)
        if (sbp_pack_total(data, rows, row_count, prepare->scalars[i], &total))
            p->scalars[i] = total;
    for (int32_t i = 0; i < prepare->row_count; i++)
        SBP_TRY(sbp_pack_column(diag, data, p->docs, p->doc_count, p->rows, prepare->rows[i], p->inputs[i]));
    return sbp_prepare_run(prepare, diag, p->rows, p->doc_count, p->inputs, p->scalars, p->columns,
                           p->numbers);
}
