/* simple.c: the commands that move and sum: fill, copy, gather, scatter, scatter_add, colsum, reduce,
 * collective; and fence. */
#include "backends/cpu/cpu.h"
#include "backends/cpu/kernels/convert.h"
#include "backends/cpu/kernels/kernels.h"
#include "ir/base/census.h"

enum {
    BLOCK_ELEMS = 1 << 16, /* of an item of fill, copy, reduce */
    STRIP = 128,           /* columns that colsum and scatter_add sum at a time, in fp64 */
    SEGMENT_ITEM = 64      /* rows per item of scatter, sorted positions of scatter_add */
};

static int64_t element_bytes(const cpu_view *view) {
    return sbp_dtype_bytes(view->dtype);
}

static char *row_at(const cpu_view *view, int64_t row, int64_t column) {
    return view->data + (row * view->stride + column) * element_bytes(view);
}

/* A matrix cut into blocks of about BLOCK_ELEMS elements: whole rows, or pieces of one. */
typedef struct blocks {
    int64_t rows, columns; /* of a block */
    int64_t across, count;
} blocks;

static blocks cut(const cpu_view *view) {
    blocks b = {0};
    if (view->rows == 0 || view->cols == 0)
        return b;
    b.columns = view->cols < BLOCK_ELEMS ? view->cols : BLOCK_ELEMS;
    b.rows = BLOCK_ELEMS / b.columns;
    b.across = sbp_ceil_div(view->cols, b.columns);
    b.count = b.across * sbp_ceil_div(view->rows, b.rows);
    return b;
}

/* Rows and columns of a block of a view. */
typedef struct part {
    int64_t row, rows, column, columns;
} part;

static part block_part(const cpu_view *view, blocks b, int64_t item) {
    part p = {.row = item / b.across * b.rows, .column = item % b.across * b.columns};
    p.rows = view->rows - p.row < b.rows ? view->rows - p.row : b.rows;
    p.columns = view->cols - p.column < b.columns ? view->cols - p.column : b.columns;
    return p;
}

/* ---- fill, copy, collective ----------------------------------------------------------------------- */

typedef struct moving {
    const cpu_view *dst, *src;
    blocks blocks;
    double value;
} moving;

static void fill_item(void *arg, int64_t item, char *scratch) {
    (void)scratch;
    const moving *m = arg;
    part p = block_part(m->dst, m->blocks, item);
    char *first = row_at(m->dst, p.row, p.column);
    int64_t bytes = element_bytes(m->dst);
    sbp_element_set(first, m->dst->dtype, 0, m->value);
    for (int64_t j = 1; j < p.columns;) { /* by doubling */
        int64_t more = j < p.columns - j ? j : p.columns - j;
        memcpy(first + j * bytes, first, (size_t)(more * bytes));
        j += more;
    }
    for (int64_t r = 1; r < p.rows; r++)
        memcpy(row_at(m->dst, p.row + r, p.column), first, (size_t)(p.columns * bytes));
}

void ISA_NAME(fill)(cpu_lane *lane, const cpu_command *command) {
    moving m = {.dst = &command->views[SBP_FILL_DST], .value = command->command->u.fill};
    m.blocks = cut(m.dst);
    SBP_CROSS_EITHER(m.blocks.count > 1, cpu_fill_items, cpu_fill_item);
    SBP_CROSS_IF(m.blocks.across > 1, cpu_fill_row_cut);
    cpu_pool_run(lane->pool, m.blocks.count, fill_item, &m);
}

static void copy_item(void *arg, int64_t item, char *scratch) {
    (void)scratch;
    const moving *m = arg;
    part p = block_part(m->dst, m->blocks, item);
    for (int64_t r = p.row; r < p.row + p.rows; r++)
        memcpy(row_at(m->dst, r, p.column), row_at(m->src, r, p.column),
               (size_t)(p.columns * element_bytes(m->dst)));
}

static void move(cpu_lane *lane, const cpu_view *dst, const cpu_view *src) {
    moving m = {.dst = dst, .src = src};
    m.blocks = cut(m.dst);
    SBP_CROSS_EITHER(m.blocks.count > 1, cpu_copy_items, cpu_copy_item);
    SBP_CROSS_IF(m.blocks.across > 1, cpu_copy_row_cut);
    cpu_pool_run(lane->pool, m.blocks.count, copy_item, &m);
}

void ISA_NAME(copy)(cpu_lane *lane, const cpu_command *command) {
    move(lane, &command->views[SBP_COPY_DST], &command->views[SBP_COPY_SRC]);
}

/* One rank: the result is what it gave. */
void ISA_NAME(collective)(cpu_lane *lane, const cpu_command *command) {
    const cpu_view *dst = &command->views[SBP_COLLECTIVE_DST], *src = &command->views[SBP_COLLECTIVE_SRC];
    if (dst->data != src->data)
        move(lane, dst, src);
}

/* ---- gather, scatter, scatter_add-------------------------------------------------------------------- */

typedef struct gathering {
    const cpu_view *dst, *table, *index;
    int64_t rows; /* per item */
} gathering;

static int64_t integer_at(const cpu_view *view, int64_t row) {
    const char *at = row_at(view, row, 0);
    int32_t narrow;
    int64_t wide;
    if (view->dtype == SBP_I64) {
        memcpy(&wide, at, sizeof wide);
        return wide;
    }
    memcpy(&narrow, at, sizeof narrow);
    return narrow;
}

static void gather_item(void *arg, int64_t item, char *scratch) {
    const gathering *g = arg;
    float *line = (float *)(void *)scratch;
    double *wide = (double *)(void *)scratch;
    bool same = g->dst->dtype == g->table->dtype;
    bool use_f64 = g->dst->dtype == SBP_F64 || g->table->dtype == SBP_F64;
    int64_t end = (item + 1) * g->rows < g->dst->rows ? (item + 1) * g->rows : g->dst->rows;
    for (int64_t r = item * g->rows; r < end; r++) {
        int64_t from = integer_at(g->index, r);
        if (from < 0 || from >= g->table->rows) { /* nothing to read there */
            memset(row_at(g->dst, r, 0), 0, (size_t)(g->dst->cols * element_bytes(g->dst)));
            continue;
        }
        for (int64_t j = 0; j < g->dst->cols; j += STRIP) {
            int64_t n = g->dst->cols - j < STRIP ? g->dst->cols - j : STRIP;
            char *to = row_at(g->dst, r, j), *source = row_at(g->table, from, j);
            if (same) {
                memcpy(to, source, (size_t)(n * element_bytes(g->dst)));
            } else if (use_f64) {
                load_row_f64(wide, source, g->table->dtype, n);
                store_row_f64(to, g->dst->dtype, wide, n);
            } else {
                load_row_f32(line, source, g->table->dtype, n);
                store_row_f32(to, g->dst->dtype, line, n);
            }
        }
    }
}

void ISA_NAME(gather)(cpu_lane *lane, const cpu_command *command) {
    const cpu_view *v = command->views;
    gathering g = {.dst = &v[SBP_GATHER_DST], .table = &v[SBP_GATHER_TABLE], .index = &v[SBP_GATHER_INDEX]};
    g.rows = 1 + 16384 / (g.dst->cols + 1);
    SBP_CROSS_EITHER(g.dst->rows > g.rows, cpu_gather_items, cpu_gather_item);
    SBP_CROSS_EITHER(g.dst->cols > STRIP, cpu_gather_strips, cpu_gather_strip);
    cpu_pool_run(lane->pool, sbp_ceil_div(g.dst->rows, g.rows), gather_item, &g);
}

/* Rows to their places: of SEGMENT_ITEM rows of src an item. */
static void place_item(void *arg, int64_t item, char *scratch) {
    (void)scratch;
    const gathering *g = arg;
    const cpu_view *src = g->table;
    int64_t end = sbp_min_i64((item + 1) * g->rows, src->rows);
    for (int64_t r = item * g->rows; r < end; r++) {
        int64_t to = integer_at(g->index, r);
        if (to < 0 || to >= g->dst->rows || row_at(g->dst, to, 0) == row_at(src, r, 0))
            continue;
        memcpy(row_at(g->dst, to, 0), row_at(src, r, 0), (size_t)(src->cols * element_bytes(src)));
    }
}

void ISA_NAME(scatter)(cpu_lane *lane, const cpu_command *command) {
    const cpu_view *v = command->views;
    gathering g = {.dst = &v[SBP_SCATTER_DST],
                   .table = &v[SBP_SCATTER_SRC],
                   .index = &v[SBP_SCATTER_INDEX],
                   .rows = SEGMENT_ITEM};
    SBP_CROSS_EITHER(g.table->rows > g.rows, cpu_place_items, cpu_place_item);
    cpu_pool_run(lane->pool, sbp_ceil_div(g.table->rows, g.rows), place_item, &g);
}

typedef struct scattering {
    const cpu_view *dst, *src, *index, *perm, *segment;
} scattering;

/* dst[to, :] += the sum of the `count` rows of src that perm lists from `position` on. */
static void add_segment(const scattering *s, int64_t position, int64_t count, int64_t to) {
    double sum[STRIP], line[STRIP];
    for (int64_t j = 0; j < s->dst->cols; j += STRIP) {
        int64_t n = s->dst->cols - j < STRIP ? s->dst->cols - j : STRIP;
        memset(sum, 0, sizeof sum);
        for (int64_t k = position; k < position + count; k++) {
            int64_t row = integer_at(s->perm, k);
            if (row < 0 || row >= s->src->rows)
                continue;
            load_row_f64(line, row_at(s->src, row, j), s->src->dtype, n);
            for (int64_t i = 0; i < n; i++)
                sum[i] += line[i];
        }
        char *out = row_at(s->dst, to, j);
        load_row_f64(line, out, s->dst->dtype, n);
        for (int64_t i = 0; i < n; i++)
            sum[i] += line[i];
        store_row_f64(out, s->dst->dtype, sum, n);
    }
}

/* The segments that begin among the sorted positions of this item. */
static void scatter_item(void *arg, int64_t item, char *scratch) {
    (void)scratch;
    const scattering *s = arg;
    int64_t rows = s->src->rows;
    int64_t end = (item + 1) * SEGMENT_ITEM < rows ? (item + 1) * SEGMENT_ITEM : rows;
    for (int64_t k = item * SEGMENT_ITEM; k < end; k++) {
        int64_t count = integer_at(s->segment, k), first = integer_at(s->perm, k);
        if (count <= 0 || first < 0 || first >= rows)
            continue;
        int64_t to = integer_at(s->index, first);
        SBP_CROSS_IF(k + count > end && k + count <= rows, cpu_scatter_over_items);
        if (to >= 0 && to < s->dst->rows)
            add_segment(s, k, count < rows - k ? count : rows - k, to);
    }
}

void ISA_NAME(scatter_add)(cpu_lane *lane, const cpu_command *command) {
    const cpu_view *v = command->views;
    scattering s = {.dst = &v[SBP_SCATTER_ADD_DST],
                    .src = &v[SBP_SCATTER_ADD_SRC],
                    .index = &v[SBP_SCATTER_ADD_INDEX],
                    .perm = &v[SBP_SCATTER_ADD_PERM],
                    .segment = &v[SBP_SCATTER_ADD_SEGMENT]};
    SBP_CROSS_EITHER(s.src->rows > SEGMENT_ITEM, cpu_scatter_items, cpu_scatter_item);
    SBP_CROSS_EITHER(s.src->cols > STRIP, cpu_scatter_strips, cpu_scatter_strip);
    cpu_pool_run(lane->pool, sbp_ceil_div(s.src->rows, SEGMENT_ITEM), scatter_item, &s);
}

/* ---- colsum, reduce ------------------------------------------------------------------------------- */

typedef struct summing {
    const cpu_view *dst, *src;
    double beta;
    sbp_reduce_op op;
    blocks blocks;
    double *partial; /* reduce: one per block */
} summing;

/* A strip of columns: rows added in order, in fp64. */
static void colsum_item(void *arg, int64_t item, char *scratch) {
    (void)scratch;
    const summing *s = arg;
    double sum[STRIP] = {0}, line[STRIP];
    int64_t j = item * STRIP, n = s->src->cols - j < STRIP ? s->src->cols - j : STRIP;
    for (int64_t r = 0; r < s->src->rows; r++) {
        load_row_f64(line, row_at(s->src, r, j), s->src->dtype, n);
        for (int64_t i = 0; i < n; i++)
            sum[i] += line[i];
    }
    char *out = row_at(s->dst, 0, j);
    if (s->beta != 0) {
        load_row_f64(line, out, s->dst->dtype, n);
        for (int64_t i = 0; i < n; i++)
            sum[i] += s->beta * line[i];
    }
    store_row_f64(out, s->dst->dtype, sum, n);
}

void ISA_NAME(colsum)(cpu_lane *lane, const cpu_command *command) {
    summing s = {.dst = &command->views[SBP_COLSUM_DST],
                 .src = &command->views[SBP_COLSUM_SRC],
                 .beta = command->command->u.reduce.beta};
    SBP_CROSS_EITHER(s.src->cols > STRIP, cpu_colsum_strips, cpu_colsum_strip);
    if (s.dst->rows > 0)
        cpu_pool_run(lane->pool, sbp_ceil_div(s.src->cols, STRIP), colsum_item, &s);
}

enum { LANES = 16 };

static double larger(double a, double b) {
    return a > b || a != a ? a : b;
}

/* Sum, sum of squares or maximum of n numbers in LANES chains. */
static double reduce_row(const double *line, int64_t n, sbp_reduce_op op) {
    double lanes[LANES];
    for (int i = 0; i < LANES; i++)
        lanes[i] = op == SBP_REDUCE_MAX ? -(double)INFINITY : 0;
    int64_t j = 0;
    if (op == SBP_REDUCE_MAX) {
        for (; j + LANES <= n; j += LANES)
            for (int i = 0; i < LANES; i++)
                lanes[i] = larger(line[j + i], lanes[i]);
        for (; j < n; j++)
            lanes[0] = larger(line[j], lanes[0]);
    } else if (op == SBP_REDUCE_SUM) {
        for (; j + LANES <= n; j += LANES)
            for (int i = 0; i < LANES; i++)
                lanes[i] += line[j + i];
        for (; j < n; j++)
            lanes[0] += line[j];
    } else {
        for (; j + LANES <= n; j += LANES)
            for (int i = 0; i < LANES; i++)
                lanes[i] += line[j + i] * line[j + i];
        for (; j < n; j++)
            lanes[0] += line[j] * line[j];
    }
    for (int i = 1; i < LANES; i++)
        lanes[0] = op == SBP_REDUCE_MAX ? larger(lanes[0], lanes[i]) : lanes[0] + lanes[i];
    return lanes[0];
}

static void reduce_item(void *arg, int64_t item, char *scratch) {
    (void)scratch;
    const summing *s = arg;
    part p = block_part(s->src, s->blocks, item);
    double result = s->op == SBP_REDUCE_MAX ? -(double)INFINITY : 0, line[1024];
    for (int64_t r = p.row; r < p.row + p.rows; r++)
        for (int64_t j = 0; j < p.columns; j += SBP_COUNT(line)) {
            int64_t n = p.columns - j < SBP_COUNT(line) ? p.columns - j : SBP_COUNT(line);
            load_row_f64(line, row_at(s->src, r, p.column + j), s->src->dtype, n);
            double value = reduce_row(line, n, s->op);
            result = s->op == SBP_REDUCE_MAX ? larger(result, value) : result + value;
        }
    s->partial[item] = result;
}

void ISA_NAME(reduce)(cpu_lane *lane, const cpu_command *command) {
    summing s = {.dst = &command->views[SBP_REDUCE_DST],
                 .src = &command->views[SBP_REDUCE_SRC],
                 .beta = command->command->u.reduce.beta,
                 .op = command->command->u.reduce.op,
                 .partial = (double *)(void *)lane->shared};
    double *out = (double *)(void *)s.dst->data;
    if (s.dst->rows == 0 || s.dst->cols == 0)
        return;
    double result = s.op == SBP_REDUCE_MAX ? -(double)INFINITY : 0;
    s.blocks = cut(s.src);
    SBP_CROSS_EITHER(s.blocks.count > 1, cpu_reduce_items, cpu_reduce_item);
    SBP_CROSS_IF(s.blocks.across > 1, cpu_reduce_row_cut);
    cpu_pool_run(lane->pool, s.blocks.count, reduce_item, &s);
    for (int64_t i = 0; i < s.blocks.count; i++)
        result = s.op == SBP_REDUCE_MAX ? larger(result, s.partial[i]) : result + s.partial[i];
    if (s.op == SBP_REDUCE_MAX)
        *out = s.beta != 0 ? larger(s.beta * *out, result) : result;
    else
        *out = s.beta != 0 ? s.beta * *out + result : result;
}

/* Commands run one after the other, so that there is nothing to wait for. */
void ISA_NAME(fence)(cpu_lane *lane, const cpu_command *command) {
    (void)lane, (void)command;
}
