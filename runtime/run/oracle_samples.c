/* oracle_samples.c: what the loops of all commands share: reading operands, which elements are compared, and
 * what is kept of it. */
#include "ir/base/census.h"
#include "ir/program/traits.h"
#include "runtime/run/oracle_internal.h"

#include <math.h>
#include <string.h>

enum { PIECE_BYTES = 4 << 20, MANY_ROWS = 4096 };

/* ---- operands ---------------------------------------------------------------------------------------- */

sbp_status sbp_oracle_fetch_raw(oracle_job *job, int32_t operand, int64_t row, int64_t rows, int64_t col,
                                int64_t cols, void *out) {
    const sbp_span *s = &job->dispatch->spans[operand];
    int64_t unit = sbp_dtype_bytes(s->dtype), offset = s->offset + (row * s->stride + col) * unit;
    unsigned char *to = out, *piece = NULL;
    bool mapped = job->class->map && job->class->map(job->device, s->space, s->offset);
    if (rows <= 1 || cols == s->stride)
        return job->class->read(job->device, s->space, offset, out, rows * cols * unit, job->diag);
    int64_t each = mapped || rows <= MANY_ROWS ? 1 : PIECE_BYTES / (s->stride * unit);
    if (each > 1 && job->piece_bytes < each * s->stride * unit) {
        job->piece_bytes = each * s->stride * unit;
        job->piece = sbp_arena_array(job->arena, (size_t)each, (size_t)(s->stride * unit));
    }
    if (each > 1)
        piece = job->piece;
    for (int64_t r = 0; r<rows; r += each> 1 ? each : 1) {
        int64_t n = each > 1 ? (rows - r < each ? rows - r : each) : 1;
        int64_t at = offset + r * s->stride * unit;
        if (!piece) {
            SBP_TRY(job->class->read(job->device, s->space, at, to, cols * unit, job->diag));
            to += cols * unit;
            continue;
        }
        SBP_TRY(job->class->read(job->device, s->space, at, piece, ((n - 1) * s->stride + cols) * unit,
                                 job->diag));
        for (int64_t k = 0; k < n; k++, to += cols * unit)
            memcpy(to, piece + k * s->stride * unit, (size_t)(cols * unit));
    }
    return SBP_OK;
}

sbp_status sbp_oracle_fetch(oracle_job *job, int32_t operand, int64_t row, int64_t rows, int64_t col,
                            int64_t cols, double **out) {
    sbp_dtype dtype = job->dispatch->spans[operand].dtype;
    int64_t count = rows * cols;
    void *raw = sbp_arena_array(job->arena, (size_t)(count + 1), (size_t)sbp_dtype_bytes(dtype));
    *out = sbp_arena_array(job->arena, (size_t)(count + 1), sizeof(double));
    if (count > 0)
        SBP_TRY(sbp_oracle_fetch_raw(job, operand, row, rows, col, cols, raw));
    for (int64_t i = 0; i < count; i++)
        (*out)[i] = sbp_element_get(raw, dtype, i);
    return SBP_OK;
}

sbp_status sbp_oracle_submit(oracle_job *job) {
    job->ran = true;
    SBP_TRY(job->class->submit(job->device, job->dispatch, job->diag));
    return job->class->wait(job->device, job->diag);
}

/* ---- samples, sums ----------------------------------------------------------------------------------- */

oracle_runs sbp_oracle_choose(int64_t count, int64_t each, int64_t align) {
    oracle_runs runs = {0};
    SBP_CROSS_EITHER(count > 3 * each, run_sample_some, run_sample_all);
    if (count <= 3 * each) {
        runs.count[0] = count;
        runs.runs = count > 0;
        return runs;
    }
    const int64_t firsts[] = {0, count / 2, count - each};
    for (int32_t i = 0; i < 3; i++) {
        runs.first[i] = i == 2 ? sbp_ceil_div(count - each, align) * align : firsts[i] / align * align;
        runs.count[i] = count - runs.first[i] < each ? count - runs.first[i] : each;
        runs.runs++;
    }
    return runs;
}

double sbp_oracle_unit(sbp_dtype dtype) {
    return dtype == SBP_F64    ? 0x1p-53
           : dtype == SBP_F32  ? 0x1p-24
           : dtype == SBP_F16  ? 0x1p-11
           : dtype == SBP_BF16 ? 0x1p-9
                               : 0;
}

double sbp_oracle_draw(uint64_t x) {
    x = x * 0x9e3779b97f4a7c15u + 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (double)((x ^ (x >> 31)) >> 11) * 0x1p-52 - 1;
}

void sbp_oracle_note(oracle_sum *sum, double truth, double rounded, double got, sbp_dtype dtype) {
    if (!isfinite(truth) && (truth == got || (isnan(truth) && isnan(got))))
        return;
    double off = got - truth, rounding = rounded - truth, own = sbp_round_to(dtype, truth) - truth;
    double unit = sbp_oracle_unit(dtype) * truth; /* the result's own, at least */
    sum->found += isfinite(got) && isfinite(truth) ? off * off : INFINITY;
    sum->rounding += rounding * rounding + own * own + unit * unit / 3;
    sum->size += truth * truth;
}

void sbp_oracle_judge(const oracle_job *job, const oracle_sum *sum, const char *operand) {
    sbp_oracle_group *g = job->group;
    const sbp_command *c = job->dispatch->command;
    /* numbers below the least normal one are 0 on some devices */
    double found = sqrt(sum->found), rounding = sqrt(sum->rounding) + 0x1p-120, size = sqrt(sum->size);
    double over = found / rounding;
    if (isnan(over))
        over = INFINITY;
    if (g->what && over <= g->over)
        return;
    g->over = over;
    g->found = size > 0 ? found / size : found;
    g->rounding = size > 0 ? rounding / size : rounding;
    const sbp_rowkernel *kernel = sbp_command_kernel(job->program, c);
    g->what = sbp_arena_printf(job->names, "%s of %s%s%s", operand, sbp_command_name(c->kind),
                               kernel ? " " : "", kernel ? kernel->name : "");
}

oracle_expected *sbp_oracle_expect(oracle_job *job, int32_t operand, int64_t row, int64_t rows, int64_t col,
                                   int64_t cols) {
    if (job->dispatch->spans[operand].space == SBP_SPACE_COUNT)
        return NULL;
    oracle_expected *e = SBP_NEW(job->arena, oracle_expected);
    *e = (oracle_expected){.operand = operand, .row = row, .rows = rows, .col = col, .cols = cols};
    e->exact = SBP_NEW_ARRAY(job->arena, double, rows *cols + 1);
    e->rounded = SBP_NEW_ARRAY(job->arena, double, rows *cols + 1);
    SBP_PUSH(job->arena, job->expected, job->expected_count, job->expected_capacity, e);
    return e;
}

sbp_status sbp_oracle_settle(oracle_job *job) {
    sbp_command_operand operands[SBP_MAX_COMMAND_OPERANDS];
    oracle_sum sums[SBP_MAX_COMMAND_OPERANDS] = {{0}};
    bool noted[SBP_MAX_COMMAND_OPERANDS] = {false};
    int32_t count = sbp_command_operands(job->program, job->dispatch->command, operands);
    SBP_TRY(sbp_oracle_submit(job));
    for (int32_t i = 0; i < job->expected_count; i++) {
        const oracle_expected *e = job->expected[i];
        sbp_dtype dtype = job->dispatch->spans[e->operand].dtype;
        double *got;
        SBP_TRY(sbp_oracle_fetch(job, e->operand, e->row, e->rows, e->col, e->cols, &got));
        for (int64_t k = 0; k < e->rows * e->cols; k++)
            sbp_oracle_note(&sums[e->operand], e->exact[k], e->rounded[k], got[k], dtype);
        noted[e->operand] = true;
    }
    for (int32_t k = 0; k < count; k++)
        if (noted[k])
            sbp_oracle_judge(job, &sums[k], operands[k].name);
    return SBP_OK;
}
