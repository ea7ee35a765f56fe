/* oracle_gemm.c: products, of matrices and of experts, by loops. */
#include <math.h>
#include <string.h>

#include "ir/program/traits.h"
#include "runtime/run/oracle_internal.h"

enum { ROWS = 3, COLUMNS = 24, BLOCK = 1 << 20, SLOTS = 4 };

/* A factor as the device may take it. */
static double factor(const oracle_job *job, sbp_dtype dtype, double x) {
    if (!job->tf32 || dtype != SBP_F32)
        return x;
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    bits = (bits + 0x1000) & ~UINT32_C(0x1fff);
    memcpy(&f, &bits, sizeof bits);
    return f;
}

/* The sum of products of `count` numbers that stand a step apart, exact or in the order and type of
 * a simple loop. */
typedef struct product {
    double exact, rounded;
} product;

static product multiply(const oracle_job *job, sbp_dtype dtype, bool wide, const double *a, int64_t a_step,
                        const double *b, int64_t b_step, int64_t count) {
    product p;
    if (wide) {
        long double exact = 0;
        double rounded = 0;
        for (int64_t i = 0; i < count; i++) {
            exact += (long double)a[i * a_step] * b[i * b_step];
            rounded += a[i * a_step] * b[i * b_step];
        }
        return (product){(double)exact, rounded};
    }
    double exact = 0;
    float rounded = 0;
    for (int64_t i = 0; i < count; i++) {
        double x = a[i * a_step], y = b[i * b_step];
        exact += x * y;
        rounded += (float)factor(job, dtype, x) * (float)factor(job, dtype, y);
    }
    p = (product){exact, (double)rounded};
    return p;
}

static int64_t at_most(int64_t a, int64_t b) {
    return a < b ? a : b;
}

sbp_status sbp_oracle_gemm(oracle_job *job) {
    const sbp_command *c = job->dispatch->command;
    const sbp_span *s = job->dispatch->spans, *d = &s[SBP_GEMM_D];
    bool ta = c->u.gemm.ta, tb = c->u.gemm.tb, wide = d->dtype == SBP_F64;
    bool has_c = c->u.gemm.beta != 0 && s[SBP_GEMM_C].space != SBP_SPACE_COUNT;
    bool has_bias = s[SBP_GEMM_BIAS].space != SBP_SPACE_COUNT;
    int64_t k = ta ? s[SBP_GEMM_A].rows : s[SBP_GEMM_A].cols, columns = at_most(COLUMNS, BLOCK / (k + 1) + 1);
    oracle_runs rows = sbp_oracle_choose(d->rows, ROWS, 1), cols = sbp_oracle_choose(d->cols, columns, 1);
    double *a[3], *b[3], *before[3][3] = {{0}}, *bias[3] = {0}, *got;
    oracle_sum sum = {0};
    if (rows.runs == 0 || cols.runs == 0 || k == 0)
        return SBP_OK;
    for (int32_t i = 0; i < rows.runs; i++)
        SBP_TRY(ta ? sbp_oracle_fetch(job, SBP_GEMM_A, 0, k, rows.first[i], rows.count[i], &a[i])
                   : sbp_oracle_fetch(job, SBP_GEMM_A, rows.first[i], rows.count[i], 0, k, &a[i]));
    for (int32_t j = 0; j < cols.runs; j++) {
        SBP_TRY(tb ? sbp_oracle_fetch(job, SBP_GEMM_B, cols.first[j], cols.count[j], 0, k, &b[j])
                   : sbp_oracle_fetch(job, SBP_GEMM_B, 0, k, cols.first[j], cols.count[j], &b[j]));
        if (has_bias)
            SBP_TRY(sbp_oracle_fetch(job, SBP_GEMM_BIAS, 0, 1, cols.first[j], cols.count[j], &bias[j]));
        for (int32_t i = 0; i < rows.runs && has_c; i++)
            SBP_TRY(sbp_oracle_fetch(job, SBP_GEMM_C, rows.first[i], rows.count[i], cols.first[j],
                                     cols.count[j], &before[i][j]));
    }
    SBP_TRY(sbp_oracle_submit(job));
    for (int32_t i = 0; i < rows.runs; i++)
        for (int32_t j = 0; j < cols.runs; j++) {
            SBP_TRY(sbp_oracle_fetch(job, SBP_GEMM_D, rows.first[i], rows.count[i], cols.first[j],
                                     cols.count[j], &got));
            for (int64_t x = 0; x < rows.count[i]; x++)
                for (int64_t y = 0; y < cols.count[j]; y++) {
                    product p =
                        multiply(job, s[SBP_GEMM_A].dtype, wide, a[i] + (ta ? x : x * k),
                                 ta ? rows.count[i] : 1, b[j] + (tb ? y * k : y), tb ? 1 : cols.count[j], k);
                    int64_t at = x * cols.count[j] + y;
                    double more =
                        (has_c ? c->u.gemm.beta * before[i][j][at] : 0) + (has_bias ? bias[j][y] : 0);
                    sbp_oracle_note(&sum, c->u.gemm.alpha * p.exact + more,
                                    c->u.gemm.alpha * p.rounded + more, got[at], d->dtype);
                }
        }
    sbp_oracle_judge(job, &sum, "d");
    return SBP_OK;
}

/* ---- experts ----------------------------------------------------------------------------------------- */

/* Slots by their experts. */
typedef struct slots {
    const double *pairs, *bounds;
    int64_t experts, per_row, count;
} slots;

static sbp_status read_slots(oracle_job *job, int32_t pairs, int32_t bounds, slots *out) {
    const sbp_span *s = job->dispatch->spans;
    double *p, *b;
    *out = (slots){
        .experts = s[bounds].cols - 1, .per_row = s[pairs].cols, .count = s[pairs].rows * s[pairs].cols};
    SBP_TRY(sbp_oracle_fetch(job, pairs, 0, s[pairs].rows, 0, s[pairs].cols, &p));
    SBP_TRY(sbp_oracle_fetch(job, bounds, 0, 1, 0, s[bounds].cols, &b));
    out->pairs = p;
    out->bounds = b;
    return SBP_OK;
}

static int64_t expert_of(const slots *s, int64_t place) {
    for (int64_t e = 0; e < s->experts; e++)
        if ((double)place >= s->bounds[e] && (double)place < s->bounds[e + 1])
            return e;
    return -1;
}

/* The n numbers that a slot has of an operand, from `col` on. */
static sbp_status slot_row(oracle_job *job, int32_t operand, bool by_slot, int64_t slot, int64_t per_row,
                           int64_t col, int64_t n, double **out) {
    int64_t width = by_slot ? job->dispatch->spans[operand].cols / per_row : 0;
    return sbp_oracle_fetch(job, operand, slot / per_row, 1, slot % per_row * width + col, n, out);
}

static sbp_status expert_gemm(oracle_job *job) {
    const sbp_command *c = job->dispatch->command;
    const sbp_span *s = job->dispatch->spans;
    slots all;
    SBP_TRY(read_slots(job, SBP_EXPERT_GEMM_PAIRS, SBP_EXPERT_GEMM_BOUNDS, &all));
    int64_t n = s[SBP_EXPERT_GEMM_D].cols / all.per_row, m = s[SBP_EXPERT_GEMM_B].cols / (n > 0 ? n : 1);
    bool has_bias = s[SBP_EXPERT_GEMM_BIAS].space != SBP_SPACE_COUNT,
         wide = s[SBP_EXPERT_GEMM_A].dtype == SBP_F64;
    oracle_runs places = sbp_oracle_choose(all.count, SLOTS, 1), cols = sbp_oracle_choose(n, COLUMNS / 3, 1);
    double *a[3 * SLOTS], *b[3 * SLOTS][3], *bias[3 * SLOTS][3], *got;
    int64_t slot[3 * SLOTS];
    int32_t count = 0;
    oracle_sum sum = {0};
    for (int32_t r = 0; r < places.runs; r++)
        for (int64_t p = places.first[r]; p < places.first[r] + places.count[r]; p++) {
            int64_t e = expert_of(&all, p);
            if (e < 0 || all.pairs[p] < 0)
                continue;
            slot[count] = (int64_t)all.pairs[p];
            SBP_TRY(slot_row(job, SBP_EXPERT_GEMM_A, c->u.experts.a_by_slot, slot[count], all.per_row, 0, m,
                             &a[count]));
            for (int32_t j = 0; j < cols.runs; j++) {
                int64_t w = cols.count[j];
                double *matrix = sbp_arena_array(job->arena, (size_t)(m * w + 1), sizeof(double)), *part;
                for (int64_t k = 0; k < (c->u.experts.tb ? w : m); k++) { /* [w, m], or [m, w] */
                    int64_t col = c->u.experts.tb ? (cols.first[j] + k) * m : k * n + cols.first[j];
                    int64_t some = c->u.experts.tb ? m : w;
                    SBP_TRY(sbp_oracle_fetch(job, SBP_EXPERT_GEMM_B, e, 1, col, some, &part));
                    memcpy(matrix + k * some, part, (size_t)some * sizeof *part);
                }
                b[count][j] = matrix;
                if (has_bias)
                    SBP_TRY(
                        sbp_oracle_fetch(job, SBP_EXPERT_GEMM_BIAS, e, 1, cols.first[j], w, &bias[count][j]));
            }
            count++;
        }
    SBP_TRY(sbp_oracle_submit(job));
    for (int32_t i = 0; i < count; i++)
        for (int32_t j = 0; j < cols.runs; j++) {
            int64_t w = cols.count[j];
            SBP_TRY(slot_row(job, SBP_EXPERT_GEMM_D, true, slot[i], all.per_row, cols.first[j], w, &got));
            for (int64_t y = 0; y < w; y++) {
                bool tb = c->u.experts.tb;
                product p = multiply(job, s[SBP_EXPERT_GEMM_A].dtype, wide, a[i], 1,
                                     b[i][j] + (tb ? y * m : y), tb ? 1 : w, m);
                double more = has_bias ? bias[i][j][y] : 0;
                sbp_oracle_note(&sum, p.exact + more, p.rounded + more, got[y], s[SBP_EXPERT_GEMM_D].dtype);
            }
        }
    sbp_oracle_judge(job, &sum, "d");
    return SBP_OK;
}

/* Columns [x0, x0 + nx) of the rows of `operand` that an expert's slots have, a row for each slot. */
static sbp_status slot_columns(oracle_job *job, int32_t operand, bool by_slot, const slots *all,
                               int64_t expert, int64_t x0, int64_t nx, double **out) {
    int64_t first = (int64_t)all->bounds[expert], end = (int64_t)all->bounds[expert + 1];
    double *part;
    *out = sbp_arena_array(job->arena, (size_t)((end - first) * nx + 1), sizeof(double));
    for (int64_t p = first; p < end; p++) {
        SBP_TRY(slot_row(job, operand, by_slot, (int64_t)all->pairs[p], all->per_row, x0, nx, &part));
        memcpy(*out + (p - first) * nx, part, (size_t)nx * sizeof *part);
    }
    return SBP_OK;
}

static sbp_status expert_gemm_dw(oracle_job *job) {
    enum { MOST_EXPERTS = 3 };
    const sbp_command *c = job->dispatch->command;
    const sbp_span *s = job->dispatch->spans;
    slots all;
    SBP_TRY(read_slots(job, SBP_EXPERT_GEMM_DW_PAIRS, SBP_EXPERT_GEMM_DW_BOUNDS, &all));
    int64_t n = s[SBP_EXPERT_GEMM_DW_A].cols / (c->u.experts.a_by_slot ? all.per_row : 1),
            m = s[SBP_EXPERT_GEMM_DW_B].cols / (c->u.experts.b_by_slot ? all.per_row : 1);
    int64_t nx = at_most(n, ROWS), ny = at_most(m, COLUMNS), x0 = n - nx, y0 = m - ny; /* the ends */
    bool wide = s[SBP_EXPERT_GEMM_DW_D].dtype == SBP_F64;
    double *a[MOST_EXPERTS], *b[MOST_EXPERTS], *before[MOST_EXPERTS][ROWS] = {{0}}, *got;
    int64_t expert[MOST_EXPERTS];
    int32_t count = 0;
    oracle_sum sum = {0};
    for (int64_t e = 0; e < all.experts; e++) { /* two that have slots, and the last */
        bool last = e + 1 == all.experts;
        if (!last && (count + 1 >= MOST_EXPERTS || all.bounds[e + 1] <= all.bounds[e]))
            continue;
        expert[count] = e;
        SBP_TRY(slot_columns(job, SBP_EXPERT_GEMM_DW_A, c->u.experts.a_by_slot, &all, e, x0, nx, &a[count]));
        SBP_TRY(slot_columns(job, SBP_EXPERT_GEMM_DW_B, c->u.experts.b_by_slot, &all, e, y0, ny, &b[count]));
        for (int64_t x = 0; x < nx && c->u.experts.adds; x++)
            SBP_TRY(
                sbp_oracle_fetch(job, SBP_EXPERT_GEMM_DW_D, e, 1, (x0 + x) * m + y0, ny, &before[count][x]));
        count++;
    }
    SBP_TRY(sbp_oracle_submit(job));
    for (int32_t i = 0; i < count; i++)
        for (int64_t x = 0; x < nx; x++) {
            int64_t of = (int64_t)(all.bounds[expert[i] + 1] - all.bounds[expert[i]]);
            SBP_TRY(sbp_oracle_fetch(job, SBP_EXPERT_GEMM_DW_D, expert[i], 1, (x0 + x) * m + y0, ny, &got));
            for (int64_t y = 0; y < ny; y++) {
                product p =
                    multiply(job, s[SBP_EXPERT_GEMM_DW_A].dtype, wide, a[i] + x, nx, b[i] + y, ny, of);
                double more = before[i][x] ? before[i][x][y] : 0;
                sbp_oracle_note(&sum, p.exact + more, p.rounded + more, got[y],
                                s[SBP_EXPERT_GEMM_DW_D].dtype);
            }
        }
    sbp_oracle_judge(job, &sum, "d");
    return SBP_OK;
}

sbp_status sbp_oracle_experts(oracle_job *job) {
    bool of_weights = sbp_command_traits_of(job->dispatch->command->kind)->backward;
    return of_weights ? expert_gemm_dw(job) : expert_gemm(job);
}
