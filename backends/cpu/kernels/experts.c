/* experts.c: route, expert_order, and the products of experts, each made of one product per expert. */
#include <string.h>

#include "backends/cpu/kernels/convert.h"
#include "backends/cpu/kernels/gemm.h"
#include "ir/base/census.h"

enum {
    ROUTE_ROWS = 16, /* of an item */
    ROUTE_LINE = 128 /* scores that are read at a time */
};

static int32_t *i32_row(const cpu_view *view, int64_t row) {
    return (int32_t *)(void *)(view->data + row * view->stride * (int64_t)sizeof(int32_t));
}

/* ---- route ------------------------------------------------------------------------------------------ */

static bool is_nan(double x) {
    return x != x;
}

/* The best first, of equal ones the lowest: a score joins behind those that are not below it. */
static void choose(const cpu_view *scores, int64_t row, int32_t *chosen, int64_t k) {
    int64_t bytes = sbp_dtype_bytes(scores->dtype), count = 0;
    double best[SBP_CPU_MOST_CHOSEN], line[ROUTE_LINE];
    for (int64_t e = 0; e < scores->cols; e++) {
        if (e % SBP_COUNT(line) == 0) {
            int64_t left = scores->cols - e;
            load_row_f64(line, scores->data + (row * scores->stride + e) * bytes, scores->dtype,
                         left < SBP_COUNT(line) ? left : SBP_COUNT(line));
        }
        double score = line[e % SBP_COUNT(line)];
        int64_t at = count;
        while (at > 0 && (is_nan(best[at - 1]) ? !is_nan(score) : score > best[at - 1]))
            at--;
        if (at == k)
            continue;
        count += count < k;
        for (int64_t i = count - 1; i > at; i--) {
            best[i] = best[i - 1];
            chosen[i] = chosen[i - 1];
        }
        best[at] = score;
        chosen[at] = (int32_t)e;
    }
}

static void route_item(void *arg, int64_t item, char *scratch) {
    (void)scratch;
    const cpu_view *index = arg, *scores = index + (SBP_ROUTE_SCORES - SBP_ROUTE_INDEX);
    int64_t end = (item + 1) * ROUTE_ROWS < index->rows ? (item + 1) * ROUTE_ROWS : index->rows;
    for (int64_t r = item * ROUTE_ROWS; r < end; r++)
        choose(scores, r, i32_row(index, r), index->cols);
}

void ISA_NAME(route)(cpu_lane *lane, const cpu_command *command) {
    cpu_view views[SBP_ROUTE_OPERANDS];
    memcpy(views, command->views, sizeof views);
    SBP_CROSS_EITHER(views[SBP_ROUTE_INDEX].rows > ROUTE_ROWS, cpu_route_items, cpu_route_item);
    SBP_CROSS_EITHER(views[SBP_ROUTE_SCORES].cols > ROUTE_LINE, cpu_route_lines, cpu_route_line);
    cpu_pool_run(lane->pool, sbp_ceil_div(views[SBP_ROUTE_INDEX].rows, ROUTE_ROWS), route_item,
                 &views[SBP_ROUTE_INDEX]);
}

/* ---- expert_order ----------------------------------------------------------------------------------- */

/* Counted, added up, placed: bounds[e + 1] is where the next pair of expert e goes, until all are there. */
void ISA_NAME(expert_order)(cpu_lane *lane, const cpu_command *command) {
    const cpu_view *v = command->views, *index = &v[SBP_EXPERT_ORDER_INDEX];
    const cpu_view *pairs = &v[SBP_EXPERT_ORDER_PAIRS];
    int32_t *bounds = i32_row(&v[SBP_EXPERT_ORDER_BOUNDS], 0);
    int64_t experts = v[SBP_EXPERT_ORDER_BOUNDS].cols - 1, k = index->cols;
    (void)lane;
    memset(bounds, 0, (size_t)(experts + 1) * sizeof *bounds);
    for (int64_t r = 0; r < index->rows; r++)
        for (int64_t j = 0; j < k; j++) {
            int32_t e = i32_row(index, r)[j];
            if (e >= 0 && e + 1 < experts)
                bounds[e + 2]++;
        }
    for (int64_t e = 2; e <= experts; e++)
        bounds[e] += bounds[e - 1];
    for (int64_t r = 0; r < index->rows; r++)
        for (int64_t j = 0; j < k; j++) {
            int32_t e = i32_row(index, r)[j];
            if (e < 0 || e >= experts)
                continue;
            int64_t at = bounds[e + 1]++;
            i32_row(pairs, at / k)[at % k] = (int32_t)(r * k + j);
        }
    for (int64_t at = bounds[experts]; at < index->rows * k; at++)
        i32_row(pairs, at / k)[at % k] = -1;
}

/* ---- products --------------------------------------------------------------------------------------- */

/* Pairs of an expert from *begin on; 0, or less, where there are none or where they are out of range. */
static int64_t pairs_of(const cpu_view *pairs, const cpu_view *bounds, int64_t expert, int64_t *begin) {
    const int32_t *bound = i32_row(bounds, 0) + expert;
    int64_t most = pairs->rows * pairs->cols;
    if (bound[0] < 0 || bound[1] > most)
        return 0;
    for (int64_t i = bound[0]; i < bound[1]; i++)
        if (cpu_pair(pairs, i) < 0 || cpu_pair(pairs, i) >= most)
            return 0;
    *begin = bound[0];
    return bound[1] - bound[0];
}

/* The rows of an operand that are in an expert's slots, as the rows of a matrix. */
static cpu_gemm_rows gather(cpu_view *view, const cpu_view *pairs, int64_t begin, int64_t count,
                            bool by_slot) {
    view->rows = count;
    view->cols = by_slot ? view->cols / pairs->cols : view->cols;
    return (cpu_gemm_rows){
        .pairs = pairs, .begin = begin, .slots = pairs->cols, .step = by_slot ? view->cols : 0};
}

/* One row of an operand with a row per expert, as a matrix. */
static cpu_view expert_matrix(const cpu_view *view, int64_t expert, int64_t rows, int64_t cols) {
    cpu_view one = *view;
    one.data += expert * view->stride * sbp_dtype_bytes(view->dtype);
    one.rows = rows;
    one.cols = one.stride = cols;
    return one;
}

void ISA_NAME(expert_gemm)(cpu_lane *lane, const cpu_command *command) {
    const cpu_view *v = command->views, *pairs = &v[SBP_EXPERT_GEMM_PAIRS];
    int64_t experts = v[SBP_EXPERT_GEMM_BOUNDS].cols - 1;
    for (int64_t e = 0; e < experts; e++) {
        int64_t begin = 0;
        int64_t count = pairs_of(pairs, &v[SBP_EXPERT_GEMM_BOUNDS], e, &begin);
        if (count <= 0)
            continue;
        cpu_gemm g = {.d = v[SBP_EXPERT_GEMM_D], .a = v[SBP_EXPERT_GEMM_A], .alpha = 1};
        g.decoded = command->decoded;
        g.tb = command->command->u.experts.tb;
        g.d_rows = gather(&g.d, pairs, begin, count, true);
        g.a_rows = gather(&g.a, pairs, begin, count, command->command->u.experts.a_by_slot);
        g.b = expert_matrix(&v[SBP_EXPERT_GEMM_B], e, g.tb ? g.d.cols : g.a.cols, g.tb ? g.a.cols : g.d.cols);
        if (v[SBP_EXPERT_GEMM_BIAS].data)
            g.bias = expert_matrix(&v[SBP_EXPERT_GEMM_BIAS], e, 1, g.d.cols);
        ISA_NAME(run_gemm)(lane, &g);
    }
}

void ISA_NAME(expert_gemm_dw)(cpu_lane *lane, const cpu_command *command) {
    const cpu_view *v = command->views, *pairs = &v[SBP_EXPERT_GEMM_DW_PAIRS], *d = &v[SBP_EXPERT_GEMM_DW_D];
    int64_t experts = v[SBP_EXPERT_GEMM_DW_BOUNDS].cols - 1;
    bool adds = command->command->u.experts.adds;
    for (int64_t e = 0; e < experts; e++) {
        int64_t begin = 0;
        int64_t count = pairs_of(pairs, &v[SBP_EXPERT_GEMM_DW_BOUNDS], e, &begin);
        if (count <= 0 && !adds)
            memset(expert_matrix(d, e, 1, d->cols).data, 0, (size_t)(d->cols * sbp_dtype_bytes(d->dtype)));
        if (count <= 0)
            continue;
        cpu_gemm g = {.a = v[SBP_EXPERT_GEMM_DW_A], .b = v[SBP_EXPERT_GEMM_DW_B], .ta = true, .alpha = 1};
        g.a_rows = gather(&g.a, pairs, begin, count, command->command->u.experts.a_by_slot);
        g.b_rows = gather(&g.b, pairs, begin, count, command->command->u.experts.b_by_slot);
        g.d = expert_matrix(d, e, g.a.cols, g.b.cols);
        if (adds) {
            g.c = g.d;
            g.beta = 1;
        }
        ISA_NAME(run_gemm)(lane, &g);
    }
}
