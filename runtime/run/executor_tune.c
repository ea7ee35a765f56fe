/* executor_tune.c: shows a device the matmuls that the program will have, so that it chooses how to compute
 * them by measuring, before anything is in the arenas. */
#include <stdlib.h>
#include <string.h>

#include "ir/program/traits.h"
#include "runtime/run/executor_internal.h"

/* Zeros for every row input: documents of which nobody sees more than row 0, tokens and labels that exist. */
static sbp_status bind_zeros(sbp_executor *x, sbp_diag *diag) {
    const sbp_program *p = x->program;
    int64_t rows = sbp_program_most_rows(p), most = rows > p->s_max ? rows : p->s_max;
    int32_t count = 0;
    sbp_column *columns = sbp_malloc(((size_t)p->row_input_count + 1) * sizeof *columns);
    void *zeros = sbp_malloc((size_t)(most + 1) * sizeof(int32_t));
    sbp_status status = SBP_OK;
    if (!columns || !zeros) {
        status = sbp_fail(diag, SBP_MACHINE, "out of memory for rows to tune with");
    } else {
        memset(zeros, 0, (size_t)(most + 1) * sizeof(int32_t));
        for (int32_t r = 0; r < p->row_input_count; r++) {
            bool of_groups = p->buffers[p->row_inputs[r].buffer].rows.c[SBP_S] != 0;
            columns[count++] =
                (sbp_column){p->row_inputs[r].column, SBP_I32, zeros, of_groups ? p->s_max : rows};
        }
        columns[count++] = (sbp_column){"first", SBP_I32, zeros, rows};
        status = sbp_executor_bind(x, rows, p->s_max, columns, count, diag);
    }
    free(columns);
    free(zeros);
    return status;
}

/* A chunk at the end may have fewer rows than the others: such come and go with the data, and take what the
 * device chooses by itself. */
static bool is_tail(const sbp_executor *x) {
    const sbp_position *at = &x->position;
    if (at->table < 0)
        return false;
    int64_t step = at->sizes.v[x->program->tables[at->table].step];
    return at->i > 0 && at->columns[SBP_COLUMN_ROWS] < step;
}

sbp_status sbp_executor_tune_command(sbp_executor *x, const sbp_dispatch *dispatch) {
    if (sbp_command_attributes(dispatch->command) != SBP_ATTRIBUTES_GEMM || is_tail(x))
        return SBP_OK;
    return x->class->tune(x->device, dispatch, x->diag);
}

bool sbp_executor_can_tune(const sbp_executor *x) {
    return x->class->tune != NULL;
}

sbp_status sbp_executor_tune(sbp_executor *x, sbp_diag *diag) {
    SBP_TRY(bind_zeros(x, diag));
    x->tuning = true;
    sbp_status status = SBP_OK;
    for (int32_t e = 0; e < x->program->entry_count && status == SBP_OK; e++)
        status = sbp_executor_run(x, x->program->entries[e].name, diag);
    x->tuning = x->bound = false;
    return status == SBP_OK ? sbp_executor_write_constants(x, diag) : status;
}
