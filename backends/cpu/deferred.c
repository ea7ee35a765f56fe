/* deferred.c: which commands are put off, and until when. */
#include "backends/cpu/deferred.h"
#include "backends/cpu/rows.h"
#include "ir/base/census.h"

#include <string.h>

static const char *end_of(const cpu_view *v) {
    int64_t elems = v->rows > 0 ? (v->rows - 1) * v->stride + v->cols : 0;
    return v->data + elems * sbp_dtype_bytes(v->dtype);
}

static bool overlaps(const cpu_view *v, const char *begin, const char *end) {
    return v->data && v->data < end && begin < end_of(v);
}

static const sbp_format_info *format_of(const cpu_command *command) {
    return sbp_format_of(command->plan->decodes);
}

static const cpu_view *result_of(const cpu_command *command) {
    return &command->views[format_of(command)->part_count];
}

/* Results one behind the other, so that they are the numbers of a matrix in row-major order. */
static bool decodes(const cpu_command *command) {
    if (!command->plan || command->plan->decodes == SBP_FORMAT_NONE || command->rows == 0)
        return false;
    const cpu_view *to = result_of(command);
    return to->rows == command->rows && to->cols == format_of(command)->block && to->stride == to->cols;
}

static void drop(cpu_deferred *deferred, int32_t i) {
    deferred->count--;
    memmove(&deferred->commands[i], &deferred->commands[i + 1],
            (size_t)(deferred->count - i) * sizeof *deferred->commands);
}

static void run_now(const cpu_core *core, cpu_lane *lane, cpu_deferred *deferred, int32_t i) {
    cpu_command command = deferred->commands[i];
    drop(deferred, i);
    cpu_core_run(core, lane, &command);
}

/* Whether bytes are part of what a command reads or writes. */
static bool touches(const cpu_command *command, const char *begin, const char *end) {
    for (int32_t k = 0; k < command->view_count; k++)
        if (overlaps(&command->views[k], begin, end))
            return true;
    return false;
}

void cpu_settle_bytes(cpu_core *core, cpu_deferred *deferred, const char *begin, const char *end) {
    for (int32_t i = deferred->count - 1; i >= 0; i--)
        if (touches(&deferred->commands[i], begin, end))
            run_now(core, &core->lane, deferred, i);
}

bool cpu_defer(cpu_core *core, cpu_deferred *deferred, const cpu_command *command) {
    if (!decodes(command))
        return false;
    const cpu_view *to = result_of(command);
    for (int32_t i = deferred->count - 1; i >= 0; i--) { /* written over before it was needed */
        const cpu_view *other = result_of(&deferred->commands[i]);
        if (to->data <= other->data && end_of(other) <= end_of(to))
            drop(deferred, i);
    }
    for (int32_t k = 0; k < command->view_count; k++)
        if (command->views[k].data)
            cpu_settle_bytes(core, deferred, command->views[k].data, end_of(&command->views[k]));
    if (deferred->count == CPU_MOST_DEFERRED)
        run_now(core, &core->lane, deferred, 0);
    deferred->commands[deferred->count++] = *command;
    return true;
}

/* ---- commands that decode for themselves -------------------------------------------------------------- */

/* Whether rows of this matrix, each of whole blocks, are among the results. */
static bool has_rows(const cpu_command *maker, const cpu_view *matrix, int64_t cols) {
    const cpu_view *to = result_of(maker);
    int64_t block = to->cols, bytes = block * sbp_dtype_bytes(to->dtype);
    return matrix->dtype == to->dtype && cols > 0 && cols % block == 0 && matrix->data >= to->data &&
           (matrix->data - to->data) % bytes == 0 && matrix->stride % block == 0 &&
           end_of(matrix) <= end_of(to);
}

/* Rows of a product that reads b by its rows; 0 where it does not. */
static int64_t rows_of_product(const cpu_command *command, int32_t *b, int64_t *depth) {
    const cpu_view *v = command->views;
    if (command->command->kind == SBP_CMD_GEMM && command->command->u.gemm.tb) {
        *b = SBP_GEMM_B;
        *depth = v[SBP_GEMM_B].stride == v[SBP_GEMM_B].cols ? v[SBP_GEMM_B].cols : 0;
        return v[SBP_GEMM_D].rows;
    }
    if (command->command->kind == SBP_CMD_EXPERT_GEMM && command->command->u.experts.tb) {
        const cpu_view *pairs = &v[SBP_EXPERT_GEMM_PAIRS];
        *b = SBP_EXPERT_GEMM_B;
        *depth = v[SBP_EXPERT_GEMM_A].cols / (command->command->u.experts.a_by_slot ? pairs->cols : 1);
        return pairs->rows * pairs->cols;
    }
    return 0;
}

static bool multiplies(const cpu_command *command, const cpu_command *maker) {
    int32_t b = 0;
    int64_t depth = 0, rows = rows_of_product(command, &b, &depth);
    if (rows < 1 || rows > CPU_FEW_ROWS || !has_rows(maker, &command->views[b], depth))
        return false;
    for (int32_t k = 0; k < command->view_count; k++) /* b alone */
        if (k != b && touches(maker, command->views[k].data, end_of(&command->views[k])))
            return false;
    return true;
}

/* The rows of the table that a gather of few reads are made where they belong; the others stay put off. */
static bool gathers(const cpu_core *core, const cpu_command *command, const cpu_command *maker) {
    const cpu_view *v = command->views, *table = &v[SBP_GATHER_TABLE], *index = &v[SBP_GATHER_INDEX];
    if (command->command->kind != SBP_CMD_GATHER || index->rows > CPU_FEW_ROWS ||
        touches(maker, v[SBP_GATHER_DST].data, end_of(&v[SBP_GATHER_DST])) || table->stride != table->cols ||
        !has_rows(maker, table, table->cols))
        return false;
    const cpu_view *to = result_of(maker);
    int64_t bytes = sbp_dtype_bytes(to->dtype), first = (table->data - to->data) / bytes / to->cols;
    for (int64_t r = 0; r < index->rows; r++) {
        int64_t row = (int64_t)sbp_element_get(index->data, index->dtype, r * index->stride);
        if (row < 0 || row >= table->rows)
            return false;
        core->kernels->decode(maker, first + row * (table->cols / to->cols), table->cols / to->cols,
                              table->data + row * table->stride * bytes);
    }
    return true;
}

void cpu_settle(cpu_core *core, cpu_deferred *deferred, cpu_command *command) {
    int32_t decoded = -1;
    for (int32_t i = deferred->count - 1; i >= 0; i--) {
        const cpu_command *maker = &deferred->commands[i];
        bool needs = false;
        for (int32_t k = 0; k < command->view_count && !needs; k++)
            needs =
                command->views[k].data && touches(maker, command->views[k].data, end_of(&command->views[k]));
        if (!needs)
            continue;
        if (decoded < 0 && multiplies(command, maker)) {
            SBP_CROSS(cpu_deferred_product);
            decoded = i;
            continue;
        }
        if (gathers(core, command, maker)) {
            SBP_CROSS(cpu_deferred_gather);
            continue;
        }
        SBP_CROSS(cpu_deferred_runs);
        run_now(core, &core->lane, deferred, i);
        decoded -= decoded >= 0;
    }
    command->decoded = decoded >= 0 ? &deferred->commands[decoded] : NULL;
}
