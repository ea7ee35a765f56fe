/* oracle_rows.c: row kernels by their interpreter, and commands that move numbers or add them up. */
#include <math.h>
#include <string.h>

#include "ir/program/traits.h"
#include "runtime/run/oracle_internal.h"

enum { COLUMNS = 24, WORK = 1 << 20, WIDEST = 4096, MANY = 1 << 24 };

/* ---- row kernels ------------------------------------------------------------------------------------- */

/* Operands of a kernel for a run of rows, in double; integers as they are. */
typedef struct rows_run {
    int64_t first, count;
    double *inputs[SBP_ROWKERNEL_MAX_OPERANDS]; /* floats, before the command */
    void *raw[SBP_ROWKERNEL_MAX_OPERANDS];      /* others */
    int64_t begin[SBP_ROWKERNEL_MAX_OPERANDS], rows[SBP_ROWKERNEL_MAX_OPERANDS];
} rows_run;

static bool has_partial(const sbp_rowkernel *kernel) {
    for (int32_t k = 0; k < kernel->operand_count; k++)
        if (kernel->operands[k].mode == SBP_RK_PARTIAL)
            return true;
    return false;
}

/* The kernel with floats in double, which are then not rounded by stores. */
static sbp_rowkernel widen(sbp_arena *arena, const sbp_rowkernel *kernel) {
    sbp_rowkernel out = *kernel;
    out.operands = SBP_NEW_ARRAY(arena, sbp_rk_operand, kernel->operand_count);
    for (int32_t k = 0; k < kernel->operand_count; k++) {
        out.operands[k] = kernel->operands[k];
        if (sbp_oracle_unit(kernel->operands[k].dtype) > 0)
            out.operands[k].dtype = SBP_F64;
    }
    return out;
}

/* Whether a device rounds what an instruction gives. */
static bool is_rounded(const sbp_rk_instr *instr) {
    static const sbp_rowop ops[] = {SBP_ROWOP_exp,  SBP_ROWOP_log,     SBP_ROWOP_sqrt,        SBP_ROWOP_rsqrt,
                                    SBP_ROWOP_tanh, SBP_ROWOP_erf,     SBP_ROWOP_sin,         SBP_ROWOP_cos,
                                    SBP_ROWOP_add,  SBP_ROWOP_sigmoid, SBP_ROWOP_log_sigmoid, SBP_ROWOP_sub,
                                    SBP_ROWOP_mul,  SBP_ROWOP_div};
    for (int i = 0; i < SBP_COUNT(ops) && instr->op == SBP_RK_MAP; i++)
        if (instr->map == ops[i])
            return true;
    return false;
}

static void push(sbp_arena *arena, sbp_rowkernel *kernel, sbp_rk_instr instr) {
    SBP_PUSH(arena, kernel->instrs, kernel->instr_count, kernel->instr_capacity, instr);
}

/* A kernel with floats in double that makes each number that a device rounds a little off, which shows where
 * those almost cancel. */
static sbp_rowkernel make_off(sbp_arena *arena, const sbp_rowkernel *wide, double unit) {
    sbp_rowkernel out = *wide;
    int32_t *now = SBP_NEW_ARRAY(arena, int32_t, wide->instr_count + 1);
    out.instrs = NULL;
    out.instr_count = out.instr_capacity = 0;
    for (int32_t i = 0; i < wide->instr_count; i++) {
        sbp_rk_instr instr = wide->instrs[i], factor = {.op = SBP_RK_CONST, .length = 1};
        instr.a = instr.a < 0 ? instr.a : now[instr.a];
        instr.b = instr.b < 0 ? instr.b : now[instr.b];
        instr.c = instr.c < 0 ? instr.c : now[instr.c];
        now[i] = out.instr_count;
        push(arena, &out, instr);
        if (!is_rounded(&instr))
            continue;
        factor.a = factor.b = factor.c = factor.index = -1;
        factor.dtype = instr.dtype;
        factor.imm = 1 + unit * sbp_oracle_draw((uint64_t)i + 99);
        push(arena, &out, factor);
        instr.map = SBP_ROWOP_mul;
        instr.a = now[i];
        instr.b = now[i] + 1;
        instr.c = -1;
        now[i] += 2;
        push(arena, &out, instr);
    }
    return out;
}

static sbp_status read_run(oracle_job *job, const sbp_rowkernel *kernel, rows_run *run) {
    for (int32_t k = 0; k < kernel->operand_count; k++) {
        const sbp_rk_operand *operand = &kernel->operands[k];
        const sbp_span *s = &job->dispatch->spans[k];
        bool varies = operand->vary & SBP_VARY_ROW, partial = operand->mode == SBP_RK_PARTIAL;
        run->begin[k] = partial ? run->first / SBP_PARTIAL_ROWS : varies ? run->first : 0;
        run->rows[k] = partial ? sbp_ceil_div(run->count, SBP_PARTIAL_ROWS) : varies ? run->count : 1;
        if (sbp_oracle_unit(operand->dtype) > 0) {
            SBP_TRY(sbp_oracle_fetch(job, k, run->begin[k], run->rows[k], 0, s->cols, &run->inputs[k]));
            continue;
        }
        run->raw[k] = sbp_arena_array(job->arena, (size_t)(run->rows[k] * s->cols + 1),
                                      (size_t)sbp_dtype_bytes(s->dtype));
        SBP_TRY(sbp_oracle_fetch_raw(job, k, run->begin[k], run->rows[k], 0, s->cols, run->raw[k]));
    }
    return SBP_OK;
}

/* Runs the interpreter; results into outs, by operand. unit: by how much inputs are off. */
static sbp_status interpret(oracle_job *job, const sbp_rowkernel *wide, const rows_run *run, double unit,
                            void **outs) {
    sbp_rk_view views[SBP_ROWKERNEL_MAX_OPERANDS];
    for (int32_t k = 0; k < wide->operand_count; k++) {
        const sbp_span *s = &job->dispatch->spans[k];
        int64_t count = run->rows[k] * s->cols;
        size_t bytes = (size_t)sbp_dtype_bytes(wide->operands[k].dtype);
        void *copy = sbp_arena_array(job->arena, (size_t)(count + 1), bytes);
        const void *from = run->inputs[k] ? (const void *)run->inputs[k] : run->raw[k];
        if (!from)
            return sbp_fail(job->diag, SBP_INTERNAL, "row kernel '%.80s': operand %d was not read",
                            wide->name, (int)k);
        memcpy(copy, from, (size_t)count * bytes);
        for (int64_t i = 0; run->inputs[k] && unit > 0 && wide->operands[k].mode == SBP_RK_IN && i < count;
             i++)
            ((double *)copy)[i] *= 1 + unit * sbp_oracle_draw((uint64_t)(i + k * 77777));
        views[k] = (sbp_rk_view){.data = copy, .stride = s->cols};
        outs[k] = copy;
    }
    if (sbp_rowkernel_run_reference(wide, run->count, job->dispatch->row0 + run->first, views,
                                    job->dispatch->scalars) != SBP_OK)
        return sbp_fail(job->diag, SBP_INPUT, "row kernel '%.80s': its rows do not fit", wide->name);
    return SBP_OK;
}

/* What rounding makes of numbers beside inputs that are off: long sums, and numbers that the kernel itself
 * rounds to fewer bits, where its arithmetic may be on the other side of a middle. */
static double own_rounding(const sbp_rowkernel *kernel) {
    double unit = sbp_oracle_unit(kernel->compute), sums = 1, rounds = 0;
    for (int32_t i = 0; i < kernel->instr_count; i++) {
        const sbp_rk_instr *instr = &kernel->instrs[i];
        if (instr->op == SBP_RK_SUM)
            sums = fmax(sums, sqrt((double)(kernel->n * kernel->heads)));
        if (instr->op == SBP_RK_ROUND && sbp_oracle_unit(instr->dtype) > unit)
            rounds = fmax(rounds, sbp_oracle_unit(instr->dtype) / 8);
        if (instr->op == SBP_RK_INTEGER || instr->op == SBP_RK_LOOKUP)
            rounds = fmax(rounds, 0x1p-9 / 8);
    }
    return unit * sums + rounds;
}

static sbp_status note_run(oracle_job *job, const sbp_rowkernel *kernel, const rows_run *run,
                           void *const *truth, void *const *other, oracle_sum *sums) {
    double own = own_rounding(kernel);
    for (int32_t k = 0; k < kernel->operand_count; k++) {
        const sbp_rk_operand *operand = &kernel->operands[k];
        double *got, unit = sbp_oracle_unit(operand->dtype);
        if (operand->mode == SBP_RK_IN)
            continue;
        if (!truth[k] || !other[k])
            return sbp_fail(job->diag, SBP_INTERNAL, "row kernel '%.80s': no truth of operand %d",
                            kernel->name, (int)k);
        int64_t cols = job->dispatch->spans[k].cols;
        SBP_TRY(sbp_oracle_fetch(job, k, run->begin[k], run->rows[k], 0, cols, &got));
        for (int64_t i = 0; i < run->rows[k] * cols; i++) {
            double x = unit > 0 ? ((double *)truth[k])[i] : sbp_element_get(truth[k], operand->dtype, i);
            double y = unit > 0 ? ((double *)other[k])[i] : sbp_element_get(other[k], operand->dtype, i);
            double more = unit > 0 ? own * fabs(x) : 0.5; /* codes are whole numbers: one may be the next */
            y += y >= x ? more : -more;
            sbp_oracle_note(&sums[k], x, y, got[i], operand->dtype);
        }
    }
    return SBP_OK;
}

sbp_status sbp_oracle_row(oracle_job *job) {
    const sbp_rowkernel *kernel = job->dispatch->kernel;
    sbp_rowkernel wide = widen(job->arena, kernel);
    double unit = 2 * sbp_oracle_unit(kernel->compute);
    sbp_rowkernel off = make_off(job->arena, &wide, unit);
    int64_t per_row = kernel->n * kernel->heads * (kernel->instr_count + 1), each = WORK / (per_row + 1);
    each = each < 1 ? 1 : each > SBP_PARTIAL_ROWS ? SBP_PARTIAL_ROWS : each;
    bool partial = has_partial(kernel);
    oracle_runs chosen = partial ? sbp_oracle_choose(job->dispatch->rows, SBP_PARTIAL_ROWS, SBP_PARTIAL_ROWS)
                                 : sbp_oracle_choose(job->dispatch->rows, each, 1);
    rows_run runs[3] = {0};
    oracle_sum sums[SBP_ROWKERNEL_MAX_OPERANDS] = {{0}};
    void *truth[3][SBP_ROWKERNEL_MAX_OPERANDS] = {{NULL}}, *other[3][SBP_ROWKERNEL_MAX_OPERANDS] = {{NULL}};
    for (int32_t r = 0; r < chosen.runs; r++) {
        runs[r].first = chosen.first[r];
        runs[r].count = chosen.count[r];
        SBP_TRY(read_run(job, kernel, &runs[r]));
        SBP_TRY(interpret(job, &wide, &runs[r], 0, truth[r]));
        SBP_TRY(interpret(job, &off, &runs[r], unit, other[r]));
    }
    SBP_TRY(sbp_oracle_submit(job));
    for (int32_t r = 0; r < chosen.runs; r++)
        SBP_TRY(note_run(job, kernel, &runs[r], truth[r], other[r], sums));
    for (int32_t k = 0; k < kernel->operand_count; k++)
        if (kernel->operands[k].mode != SBP_RK_IN && chosen.runs > 0)
            sbp_oracle_judge(job, &sums[k], kernel->operands[k].name ? kernel->operands[k].name : "result");
    return SBP_OK;
}

/* ---- moving and adding ------------------------------------------------------------------------------- */

static int64_t at_most(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static void note_same(oracle_sum *sum, const double *truth, const double *got, int64_t count,
                      sbp_dtype dtype) {
    for (int64_t i = 0; i < count; i++)
        sbp_oracle_note(sum, sbp_round_to(dtype, truth[i]), sbp_round_to(dtype, truth[i]), got[i], dtype);
}

/* fill and copy: rows of dst; of src before. */
static sbp_status check_copy(oracle_job *job) {
    const sbp_command *c = job->dispatch->command;
    bool fill = sbp_command_attributes(c) == SBP_ATTRIBUTES_FILL;
    int32_t dst = fill ? SBP_FILL_DST : SBP_COPY_DST;
    const sbp_span *d = &job->dispatch->spans[dst];
    oracle_runs rows = sbp_oracle_choose(d->rows, 1, 1), cols = sbp_oracle_choose(d->cols, WIDEST, 1);
    double *truth[3][3], *got;
    oracle_sum sum = {0};
    for (int32_t r = 0; r < rows.runs; r++)
        for (int32_t k = 0; k < cols.runs; k++) {
            int64_t count = rows.count[r] * cols.count[k];
            if (!fill)
                SBP_TRY(sbp_oracle_fetch(job, SBP_COPY_SRC, rows.first[r], rows.count[r], cols.first[k],
                                         cols.count[k], &truth[r][k]));
            else
                truth[r][k] = sbp_arena_array(job->arena, (size_t)count, sizeof(double));
            for (int64_t i = 0; i < count && fill; i++)
                truth[r][k][i] = c->u.fill;
        }
    SBP_TRY(sbp_oracle_submit(job));
    for (int32_t r = 0; r < rows.runs; r++)
        for (int32_t k = 0; k < cols.runs; k++) {
            SBP_TRY(
                sbp_oracle_fetch(job, dst, rows.first[r], rows.count[r], cols.first[k], cols.count[k], &got));
            note_same(&sum, truth[r][k], got, rows.count[r] * cols.count[k], d->dtype);
        }
    sbp_oracle_judge(job, &sum, "dst");
    return SBP_OK;
}

static sbp_status check_gather(oracle_job *job) {
    const sbp_span *d = &job->dispatch->spans[SBP_GATHER_DST];
    oracle_runs rows = sbp_oracle_choose(d->rows, 2, 1);
    double *truth[6], *got, *index;
    oracle_sum sum = {0};
    int32_t count = 0;
    for (int32_t r = 0; r < rows.runs; r++)
        for (int64_t j = rows.first[r]; j < rows.first[r] + rows.count[r]; j++) {
            SBP_TRY(sbp_oracle_fetch(job, SBP_GATHER_INDEX, j, 1, 0, 1, &index));
            SBP_TRY(sbp_oracle_fetch(job, SBP_GATHER_TABLE, (int64_t)*index, 1, 0, d->cols, &truth[count++]));
        }
    SBP_TRY(sbp_oracle_submit(job));
    count = 0;
    for (int32_t r = 0; r < rows.runs; r++)
        for (int64_t j = rows.first[r]; j < rows.first[r] + rows.count[r]; j++) {
            SBP_TRY(sbp_oracle_fetch(job, SBP_GATHER_DST, j, 1, 0, d->cols, &got));
            note_same(&sum, truth[count++], got, d->cols, d->dtype);
        }
    sbp_oracle_judge(job, &sum, "dst");
    return SBP_OK;
}

static sbp_status check_placing(oracle_job *job) {
    const sbp_span *s = &job->dispatch->spans[SBP_SCATTER_SRC];
    oracle_runs rows = sbp_oracle_choose(s->rows, 2, 1);
    double *truth[6], *got, *index;
    oracle_sum sum = {0};
    int32_t count = 0;
    for (int32_t r = 0; r < rows.runs; r++)
        for (int64_t j = rows.first[r]; j < rows.first[r] + rows.count[r]; j++)
            SBP_TRY(sbp_oracle_fetch(job, SBP_SCATTER_SRC, j, 1, 0, s->cols, &truth[count++]));
    SBP_TRY(sbp_oracle_submit(job));
    count = 0;
    for (int32_t r = 0; r < rows.runs; r++)
        for (int64_t j = rows.first[r]; j < rows.first[r] + rows.count[r]; j++) {
            SBP_TRY(sbp_oracle_fetch(job, SBP_SCATTER_INDEX, j, 1, 0, 1, &index));
            SBP_TRY(sbp_oracle_fetch(job, SBP_SCATTER_DST, (int64_t)*index, 1, 0, s->cols, &got));
            note_same(&sum, truth[count++], got, s->cols, s->dtype);
        }
    sbp_oracle_judge(job, &sum, "dst");
    return SBP_OK;
}

static sbp_status check_scatter(oracle_job *job) {
    const sbp_span *s = &job->dispatch->spans[SBP_SCATTER_ADD_SRC],
                   *d = &job->dispatch->spans[SBP_SCATTER_ADD_DST];
    oracle_runs rows = sbp_oracle_choose(s->rows, 1, 1);
    double *index, *truth[3], *part, *got;
    oracle_sum sum = {0};
    SBP_TRY(sbp_oracle_fetch(job, SBP_SCATTER_ADD_INDEX, 0, s->rows, 0, 1, &index));
    for (int32_t r = 0; r < rows.runs; r++) {
        int64_t to = (int64_t)index[rows.first[r]];
        SBP_TRY(sbp_oracle_fetch(job, SBP_SCATTER_ADD_DST, to, 1, 0, d->cols, &truth[r]));
        for (int64_t j = 0; j < s->rows; j++) {
            if ((int64_t)index[j] != to)
                continue;
            SBP_TRY(sbp_oracle_fetch(job, SBP_SCATTER_ADD_SRC, j, 1, 0, s->cols, &part));
            for (int64_t i = 0; i < s->cols; i++)
                truth[r][i] += part[i];
        }
    }
    SBP_TRY(sbp_oracle_submit(job));
    for (int32_t r = 0; r < rows.runs; r++) {
        SBP_TRY(
            sbp_oracle_fetch(job, SBP_SCATTER_ADD_DST, (int64_t)index[rows.first[r]], 1, 0, d->cols, &got));
        for (int64_t i = 0; i < d->cols; i++)
            sbp_oracle_note(&sum, truth[r][i], truth[r][i] * (1 + 8 * sbp_oracle_unit(d->dtype)), got[i],
                            d->dtype);
    }
    sbp_oracle_judge(job, &sum, "dst");
    return SBP_OK;
}

static sbp_status check_colsum(oracle_job *job) {
    const sbp_span *s = &job->dispatch->spans[SBP_COLSUM_SRC], *d = &job->dispatch->spans[SBP_COLSUM_DST];
    double beta = job->dispatch->command->u.reduce.beta, *truth[3], *rounded[3], *src, *got;
    oracle_runs cols = sbp_oracle_choose(s->cols, at_most(COLUMNS, MANY / (s->rows + 1) + 1), 1);
    oracle_sum sum = {0};
    for (int32_t r = 0; r < cols.runs; r++) {
        int64_t n = cols.count[r];
        SBP_TRY(sbp_oracle_fetch(job, SBP_COLSUM_DST, 0, 1, cols.first[r], n, &truth[r]));
        SBP_TRY(sbp_oracle_fetch(job, SBP_COLSUM_SRC, 0, s->rows, cols.first[r], n, &src));
        rounded[r] = sbp_arena_array(job->arena, (size_t)n, sizeof(double));
        for (int64_t i = 0; i < n; i++) {
            double exact = beta != 0 ? beta * truth[r][i] : 0;
            float simple = (float)exact;
            for (int64_t j = 0; j < s->rows; j++) {
                exact += src[j * n + i];
                simple += (float)src[j * n + i];
            }
            truth[r][i] = exact;
            rounded[r][i] = d->dtype == SBP_F64 ? exact * (1 + 0x1p-50) : (double)simple;
        }
    }
    SBP_TRY(sbp_oracle_submit(job));
    for (int32_t r = 0; r < cols.runs; r++) {
        SBP_TRY(sbp_oracle_fetch(job, SBP_COLSUM_DST, 0, 1, cols.first[r], cols.count[r], &got));
        for (int64_t i = 0; i < cols.count[r]; i++)
            sbp_oracle_note(&sum, truth[r][i], rounded[r][i], got[i], d->dtype);
    }
    sbp_oracle_judge(job, &sum, "dst");
    return SBP_OK;
}

static sbp_status check_reduce(oracle_job *job) {
    const sbp_command *c = job->dispatch->command;
    const sbp_span *s = &job->dispatch->spans[SBP_REDUCE_SRC];
    bool max = c->u.reduce.op == SBP_REDUCE_MAX;
    double *before, *src, *got, value = max ? -INFINITY : 0;
    oracle_sum sum = {0};
    job->passed_over = s->rows * s->cols > MANY;
    if (job->passed_over)
        return SBP_OK;
    SBP_TRY(sbp_oracle_fetch(job, SBP_REDUCE_DST, 0, 1, 0, 1, &before));
    SBP_TRY(sbp_oracle_fetch(job, SBP_REDUCE_SRC, 0, s->rows, 0, s->cols, &src));
    double size = 0;
    for (int64_t i = 0; i < s->rows * s->cols; i++) {
        double x = c->u.reduce.op == SBP_REDUCE_SUMSQ ? src[i] * src[i] : src[i];
        value = max ? fmax(value, x) : value + x;
        size += fabs(x);
    }
    value = max ? c->u.reduce.beta != 0 ? fmax(value, c->u.reduce.beta * before[0]) : value
            : c->u.reduce.beta != 0 ? value + c->u.reduce.beta * before[0]
                                    : value;
    SBP_TRY(sbp_oracle_submit(job));
    SBP_TRY(sbp_oracle_fetch(job, SBP_REDUCE_DST, 0, 1, 0, 1, &got));
    /* squares of fp32 may be taken in fp32; sums here and there are in an order of their own */
    double each = sbp_oracle_unit(s->dtype == SBP_F64 ? SBP_F64 : SBP_F32) +
                  sbp_oracle_unit(SBP_F64) * sqrt((double)(s->rows * s->cols));
    sbp_oracle_note(&sum, value, value + size * each, got[0], SBP_F64);
    sbp_oracle_judge(job, &sum, "dst");
    return SBP_OK;
}

/* ---- choices of experts ------------------------------------------------------------------------------ */

/* Rows of scores: the largest of the columns that are left, again and again. */
static sbp_status check_route(oracle_job *job) {
    enum { ROWS = 8 };
    const sbp_span *index = &job->dispatch->spans[SBP_ROUTE_INDEX];
    int64_t experts = job->dispatch->spans[SBP_ROUTE_SCORES].cols;
    oracle_runs rows = sbp_oracle_choose(index->rows, ROWS, 1);
    double *scores;
    for (int32_t r = 0; r < rows.runs; r++)
        for (int64_t j = rows.first[r]; j < rows.first[r] + rows.count[r]; j++) {
            oracle_expected *e = sbp_oracle_expect(job, SBP_ROUTE_INDEX, j, 1, 0, index->cols);
            bool *taken = SBP_NEW_ARRAY(job->arena, bool, experts);
            SBP_TRY(sbp_oracle_fetch(job, SBP_ROUTE_SCORES, j, 1, 0, experts, &scores));
            for (int64_t k = 0; k < index->cols; k++) {
                int64_t best = -1;
                for (int64_t i = 0; i < experts; i++) /* NaN is below all */
                    if (!taken[i] &&
                        (best < 0 || scores[i] > scores[best] || (isnan(scores[best]) && !isnan(scores[i]))))
                        best = i;
                taken[best] = true;
                e->exact[k] = e->rounded[k] = (double)best;
            }
        }
    return sbp_oracle_settle(job);
}

/* All of it: each expert's slots as they come. */
static sbp_status check_order(oracle_job *job) {
    const sbp_span *index = &job->dispatch->spans[SBP_EXPERT_ORDER_INDEX];
    int64_t experts = job->dispatch->spans[SBP_EXPERT_ORDER_BOUNDS].cols - 1,
            slots = index->rows * index->cols;
    oracle_expected *bounds = sbp_oracle_expect(job, SBP_EXPERT_ORDER_BOUNDS, 0, 1, 0, experts + 1),
                    *pairs = sbp_oracle_expect(job, SBP_EXPERT_ORDER_PAIRS, 0, index->rows, 0, index->cols);
    double *expert;
    int64_t *to = SBP_NEW_ARRAY(job->arena, int64_t, experts + 1);
    SBP_TRY(sbp_oracle_fetch(job, SBP_EXPERT_ORDER_INDEX, 0, index->rows, 0, index->cols, &expert));
    for (int64_t i = 0; i < slots; i++)
        if (expert[i] >= 0 && expert[i] < (double)experts)
            to[(int64_t)expert[i] + 1]++;
    for (int64_t e = 0; e < experts; e++)
        bounds->exact[e + 1] = (double)(to[e + 1] += to[e]);
    for (int64_t i = 0; i < slots; i++)
        pairs->exact[i] = -1;
    for (int64_t i = 0; i < slots; i++)
        if (expert[i] >= 0 && expert[i] < (double)experts)
            pairs->exact[to[(int64_t)expert[i]]++] = (double)i;
    memcpy(bounds->rounded, bounds->exact, (size_t)(experts + 1) * sizeof(double));
    memcpy(pairs->rounded, pairs->exact, (size_t)slots * sizeof(double));
    return sbp_oracle_settle(job);
}

sbp_status sbp_oracle_choices(oracle_job *job) {
    return job->dispatch->command->kind == SBP_CMD_ROUTE ? check_route(job) : check_order(job);
}

sbp_status sbp_oracle_simple(oracle_job *job) {
    switch (job->dispatch->command->kind) {
    case SBP_CMD_GATHER:
        return check_gather(job);
    case SBP_CMD_SCATTER:
        return check_placing(job);
    case SBP_CMD_SCATTER_ADD:
        return check_scatter(job);
    case SBP_CMD_COLSUM:
        return check_colsum(job);
    case SBP_CMD_REDUCE:
        return check_reduce(job);
    default:
        return check_copy(job);
    }
}
