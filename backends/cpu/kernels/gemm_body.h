/* gemm_body.h: d = alpha op(a) op(b) + beta c + bias, for one type of arithmetic. See real.h.
 *
 * For up to FEW_ROWS rows see gemm_few_body.h. For more, b is packed into panels of PANEL columns ([step of
 * k][PANEL], the last filled up with zeros) that all threads share. a is read where it lies when it is
 * row-major in OPERANDs; else it is converted, or packed into panels of TILE_ROWS rows ([step][TILE_ROWS])
 * when it is transposed (gemm_pack*_body.h). Then items of up to ITEM_ROWS x ITEM_COLUMNS of d are computed,
 * each by one thread from the register tiles of tile.h; of fewer rows where there would be too few items to
 * share out evenly.
 *
 * Sums. k runs in even blocks of at most GEMM_DEPTH; each block is one chain of multiply-adds, and blocks are
 * added in order to what is there before (c, when alpha and beta are 1). So the bits of an element of d
 * depend on k alone, not on how rows and columns are cut. Beyond GEMM_MACRO, packed memory is bounded by
 * adding into d (or, where d is narrower, into `acc`) macro block by macro block. Where items are whole tiles
 * of d in the type of the arithmetic, tiles add into d itself; else into scratch, in the same order.
 *
 * Rows of a, of b where it is not transposed, and of d may be gathered (gemm.h): a is packed then, and d
 * stored row by row. */

#ifndef GEMM_CONSTANTS
#define GEMM_CONSTANTS
enum {
    GEMM_DEPTH = 640,
    GEMM_MACRO = 2048,
    ITEM_ROWS = 96,
    LEAST_ITEM_ROWS = 32,
    ENOUGH_ITEMS = 32,
    ITEM_PANELS = 4,
    PACK_ROWS = 96,          /* rows of a per packing item; a multiple of TILE_ROWS */
    PACK_DEPTH = 16,         /* and columns, so that whole lines of the cache are written */
    PIECE = 64,              /* elements along k that are transposed at a time */
    FEW_ROWS = CPU_FEW_ROWS, /* rows that b is not packed as a whole for; a multiple of TILE_ROWS */
    FEW_STEPS = 64           /* of a piece of b then */
};
#define PANEL (TILE_VECTORS * VL)
#define ITEM_COLUMNS (ITEM_PANELS * PANEL)
/* Room for a packed a, a packed b and acc: CPU_SHARED_BYTES in all. They lie one after the other, so that
 * small ones share a page. */
#define OPERAND_ELEMS ((int64_t)(CPU_SHARED_BYTES / 16 * 7 / sizeof(REAL)))
#define ACC_ELEMS ((int64_t)(CPU_SHARED_BYTES / 16 * 2 / sizeof(REAL)))
#endif

typedef struct real_gemm {
    const cpu_view *a, *b, *c, *d, *bias;
    const cpu_gemm_rows *a_rows, *b_rows, *d_rows;
    const cpu_command *decoded;
    int64_t b_first, b_k0; /* column and k of b that the view begins with, where it is transposed */
    bool ta, tb, pack_a;
    REAL alpha, beta;
    OPERAND *a_packed, *b_packed;
    REAL *acc;
    int64_t m, n, k;    /* of the whole product */
    int64_t m0, n0, k0; /* the block at hand */
    int64_t rows, columns, depth;
    int64_t steps;    /* of depth */
    int64_t a_stride; /* of converted a */
    int64_t item_rows, item_panels;
    int64_t b_panels_to_pack;
    bool first, last, use_acc;
    bool add;      /* sums begin with what is there: c, or the macro blocks so far */
    bool in_place; /* sums may be made in d itself */
    bool c_last;   /* beta c is added at the end */
} real_gemm;

INLINE char *real_element(const cpu_view *view, int64_t row, int64_t column) {
    return view->data + (row * view->stride + column) * sbp_dtype_bytes(view->dtype);
}

/* A row that may be gathered. */
INLINE char *real_gathered(const cpu_view *view, const cpu_gemm_rows *rows, int64_t row, int64_t column) {
    if (!rows->pairs)
        return real_element(view, row, column);
    int64_t pair = cpu_pair(rows->pairs, rows->begin + row),
            at = pair / rows->slots * view->stride + pair % rows->slots * rows->step;
    return view->data + (at + column) * sbp_dtype_bytes(view->dtype);
}

/* b of column n and k, where it is transposed. */
INLINE char *real_b_at(const real_gemm *g, int64_t n, int64_t k) {
    return real_element(g->b, n - g->b_first, k - g->b_k0);
}

/* Columns of b that the panel from column `first` on has. */
INLINE int64_t real_panel_width(const real_gemm *g, int64_t first) {
    int64_t end = g->n0 + g->columns;
    return end - first < PANEL ? end - first : PANEL;
}

/* out[i][j] = in[j][i], in: PANEL rows of `count` elements `stride` apart, out: [count][PANEL]. What is in
 * place of `in` at `next`, where that is not NULL, is fetched meanwhile. */
static void real_transpose(const OPERAND *in, int64_t stride, int64_t count, OPERAND *out,
                           const OPERAND *next) {
    int64_t done = 0;
#if CPU_VECTOR_BYTES == 64
    done = count / VL * VL;
    for (int64_t j = 0; j < PANEL; j += VL)
        for (int64_t k = 0; k < done; k += VL) {
            VEC rows[CPU_VECTOR_BYTES / sizeof(REAL)];
            for (int64_t i = 0; i < VL; i++)
                rows[i] = *(const VEC_MEMORY *)(in + (j + i) * stride + k);
            if (next)
                for (int64_t i = 0; i < VL; i++)
                    __builtin_prefetch(next + (j + i) * stride + k);
            real_transpose_square(rows);
            for (int64_t i = 0; i < VL; i++)
                *(VEC_MEMORY *)(out + (k + i) * PANEL + j) = rows[i];
        }
#else
    (void)next;
#endif
    for (; done < count; done++)
        for (int64_t j = 0; j < PANEL; j++)
            out[done * PANEL + j] = in[j * stride + done];
}

#if PRODUCTS_OF_BF16
#include "backends/cpu/kernels/gemm_pack_bf16_body.h"
#else
#include "backends/cpu/kernels/gemm_pack_body.h"
#endif

static void real_gemm_pack(void *arg, int64_t item, char *scratch) {
    (void)scratch;
    const real_gemm *g = arg;
    if (item < g->b_panels_to_pack)
        real_pack_b(g, g->n0 + item * PANEL, g->k0, g->depth, g->b_packed + item * PANEL * g->steps, NULL);
    else
        real_pack_a_rows(g, item - g->b_panels_to_pack);
}

/* Elements of a row as REAL: where they lie, or converted into `line`. */
static const REAL *real_row(const cpu_view *view, int64_t row, int64_t column, int64_t count, REAL *line) {
    const char *at = real_element(view, row, column);
    if (view->dtype == REAL_DTYPE)
        return (const REAL *)(const void *)at;
    real_load_row(line, at, view->dtype, count);
    return line;
}

/* What the sums of one row of an item begin with, when they begin with anything. */
static void real_gemm_begin(const real_gemm *g, int64_t m, int64_t n, REAL *sum, int64_t count) {
    const cpu_view *before = g->first ? g->c : g->d;
    if (!g->first && g->use_acc)
        memcpy(sum, g->acc + m * g->columns + n, (size_t)count * sizeof(REAL));
    else
        real_load_row(sum, real_gathered(before, g->d_rows, g->m0 + m, g->n0 + n), before->dtype, count);
}

/* d = sum + bias, or alpha sum + beta c + bias where c is not in the sum yet, for one row of an item. */
static void real_gemm_store(const real_gemm *g, int64_t m, int64_t n, REAL *sum, int64_t count) {
    REAL line[ITEM_COLUMNS];
    const cpu_view *d = g->d;
    if (g->last) {
        if (g->alpha != R(1))
            for (int64_t j = 0; j < count; j++)
                sum[j] *= g->alpha;
        if (g->bias->data) {
            const REAL *bias = real_row(g->bias, 0, g->n0 + n, count, line);
            for (int64_t j = 0; j < count; j++)
                sum[j] += bias[j];
        }
        if (g->c_last) { /* c may be d: each element is read before it is written */
            const REAL *c = real_row(g->c, g->m0 + m, g->n0 + n, count, line);
            for (int64_t j = 0; j < count; j++)
                sum[j] += g->beta * c[j];
        }
    } else if (g->use_acc) {
        memcpy(g->acc + m * g->columns + n, sum, (size_t)count * sizeof(REAL));
        return;
    }
    real_store_row(real_gathered(d, g->d_rows, g->m0 + m, g->n0 + n), d->dtype, sum, count);
}

/* op(a) from row m of the block on. */
INLINE real_tile_operand real_item_a(const real_gemm *g, int64_t m) {
    if (!g->pack_a)
        return real_tile_matrix((const OPERAND *)(const void *)real_element(g->a, g->m0 + m, g->k0),
                                g->a->stride / PER_OPERAND, 1);
    if (!g->ta)
        return real_tile_matrix(g->a_packed + m * g->a_stride, g->a_stride, 1);
    return (real_tile_operand){g->a_packed + m * g->steps, 1, TILE_ROWS, TILE_ROWS * g->steps};
}

/* Steps of a chain. */
INLINE int64_t real_chain_steps(const real_gemm *g) {
    int64_t blocks = sbp_ceil_div(g->depth, GEMM_DEPTH);
    return blocks > 0 ? real_steps(sbp_ceil_div(g->depth, blocks)) : 0;
}

static void real_gemm_compute(void *arg, int64_t item, char *scratch) {
    const real_gemm *g = arg;
    int64_t row_items = sbp_ceil_div(g->rows, g->item_rows);
    int64_t m = item % row_items * g->item_rows, n = item / row_items * ITEM_COLUMNS;
    int64_t rows = g->rows - m < g->item_rows ? g->rows - m : g->item_rows;
    int64_t columns = g->columns - n < ITEM_COLUMNS ? g->columns - n : ITEM_COLUMNS;
    REAL *sums = (REAL *)(void *)scratch; /* [ITEM_ROWS, ITEM_COLUMNS] */
    int64_t sums_row = ITEM_COLUMNS;
    real_tile_operand a = real_item_a(g, m);
    bool in_place = g->in_place && rows % TILE_ROWS == 0 && columns % PANEL == 0 && g->depth > 0;
    REAL_CROSS_EITHER(in_place, cpu_gemm_in_place, cpu_gemm_aside);
    if (in_place) {
        sums = (REAL *)(void *)real_element(g->d, g->m0 + m, g->n0 + n);
        sums_row = g->d->stride;
    } else if (g->add) {
        for (int64_t i = 0; i < rows; i++)
            real_gemm_begin(g, m + i, n, sums + i * ITEM_COLUMNS, columns);
    } else if (g->depth == 0) {
        memset(sums, 0, ITEM_ROWS * ITEM_COLUMNS * sizeof(REAL));
    }
    int64_t most = real_chain_steps(g);
    for (int64_t k = 0; k < g->steps; k += most) {
        int64_t depth = g->steps - k < most ? g->steps - k : most;
        real_tile_operand ak = a;
        ak.data += k * a.column;
        for (int64_t j = 0; j < columns; j += PANEL) {
            if (k == 0 && in_place && g->add) /* by the time they are added to */
                for (int64_t i = 0; i < rows; i++)
                    for (int64_t ahead = 0; ahead < PANEL; ahead += 16)
                        __builtin_prefetch(sums + i * sums_row + j + ahead);
            const OPERAND *panel = g->b_packed + (n + j) * g->steps + k * PANEL;
            real_tiles(rows, PANEL, depth, ak, panel, PANEL, sums + j, sums_row, k > 0 || g->add);
        }
    }
    if (!in_place)
        for (int64_t i = 0; i < rows; i++)
            real_gemm_store(g, m + i, n, sums + i * ITEM_COLUMNS, columns);
}

#include "backends/cpu/kernels/gemm_few_body.h"

/* The largest multiple of `unit` up to `count` (rounded up) so that each takes `elems` of `space`. */
static int64_t real_fitting(int64_t count, int64_t unit, int64_t elems, int64_t space) {
    int64_t all = sbp_round_up(count, unit), most = space / (elems > 0 ? elems : 1) / unit * unit;
    return all < most ? all : most;
}

/* What packed a and b may take, in OPERANDs. bf16 that is widened, where there are no products of pairs,
 * takes no more than it would as bf16, for that is what plans count (cpu_footprint_target.c), or a huge
 * page. */
static void real_packed_space(const real_gemm *g, int64_t macro, int64_t *a, int64_t *b) {
    *a = *b = OPERAND_ELEMS;
#if PRODUCTS_OF_BF16 && !CPU_HAS_DOT
    int64_t page = CPU_HUGE_PAGE_BYTES / (int64_t)sizeof(OPERAND), least_a = PACK_ROWS * g->a_stride;
    int64_t of_a = g->ta ? g->m * macro / 2 : 0, of_b = g->n * macro / 2; /* two of bf16 in an OPERAND */
    int64_t all = (of_a < *a ? of_a : *a) + (of_b < *b ? of_b : *b);
    all = all > page ? all : page;
    *a = all / 4 > least_a ? all / 4 : least_a;
    *b = all - *a;
#else
    (void)g, (void)macro;
#endif
}

/* Rows of an item: as even as tiles allow. */
static int64_t real_item_rows(int64_t rows, int64_t column_items) {
    int64_t items = sbp_ceil_div(rows, ITEM_ROWS), enough = sbp_ceil_div(ENOUGH_ITEMS, column_items);
    REAL_CROSS_EITHER(items < enough, cpu_gemm_few_items, cpu_gemm_full_items);
    if (items < enough)
        items = enough;
    int64_t even = sbp_round_up(sbp_ceil_div(rows, items), TILE_ROWS);
    return even < LEAST_ITEM_ROWS ? LEAST_ITEM_ROWS : even;
}

/* block_m: after what packed a has room for, and after what acc has. */
static void real_gemm_cross(const real_gemm *g, bool few, int64_t block_n, int64_t packed_m,
                            int64_t block_m) {
    REAL_CROSS_EITHER(few, cpu_gemm_few_rows, cpu_gemm_many_rows);
    if (g->pack_a)
        REAL_CROSS_EITHER(g->ta, cpu_gemm_a_panels, cpu_gemm_a_copied);
    else
        REAL_CROSS(cpu_gemm_a_as_it_lies);
    if (g->k > GEMM_MACRO)
        REAL_CROSS_EITHER(g->use_acc, cpu_gemm_macro_acc, cpu_gemm_macro_d);
    else
        REAL_CROSS_EITHER(g->k > GEMM_DEPTH, cpu_gemm_chains, cpu_gemm_chain);
    REAL_CROSS_IF(block_n < g->n, cpu_gemm_columns_cut);
    REAL_CROSS_IF(packed_m < g->m, cpu_gemm_rows_cut);
    REAL_CROSS_IF(block_m < packed_m && block_m < g->m, cpu_gemm_acc_cut);
}

static void real_run_gemm(cpu_lane *lane, const cpu_gemm *gemm) {
    real_gemm g = {.d = &gemm->d,
                   .a = &gemm->a,
                   .b = &gemm->b,
                   .c = &gemm->c,
                   .bias = &gemm->bias,
                   .a_rows = &gemm->a_rows,
                   .b_rows = &gemm->b_rows,
                   .d_rows = &gemm->d_rows,
                   .decoded = gemm->decoded};
    g.ta = gemm->ta;
    g.tb = gemm->tb;
    g.alpha = (REAL)gemm->alpha;
    g.beta = (REAL)gemm->beta;
    g.m = g.d->rows;
    g.n = g.d->cols;
    g.k = g.ta ? g.a->rows : g.a->cols;
    if (g.m == 0 || g.n == 0)
        return;
    /* Rows a multiple of 4 KiB apart fall into the same sets of the cache: better copied. */
    g.pack_a = g.ta || g.a_rows->pairs || !real_is_operand(g.a) || g.k % PER_OPERAND != 0 ||
               (g.m > TILE_ROWS && g.a->stride * sbp_dtype_bytes(g.a->dtype) % 4096 == 0);
    bool one_depth = g.k <= GEMM_MACRO, with_c = g.c->data && g.beta != R(0);
    bool plain = g.alpha == R(1) && (!with_c || g.beta == R(1));
    g.c_last = with_c && !plain;
    g.in_place = plain && g.d->dtype == REAL_DTYPE && !g.bias->data && !g.d_rows->pairs &&
                 (!with_c || (g.c->data == g.d->data && g.c->stride == g.d->stride));
    int64_t macro = g.k < GEMM_MACRO ? g.k : GEMM_MACRO;
    g.use_acc = g.k > GEMM_MACRO && (g.d->dtype != REAL_DTYPE || g.c_last); /* c may be d */
    g.a_stride = real_steps(macro) + 16;
    int64_t space_a, space_b;
    real_packed_space(&g, macro, &space_a, &space_b);
    bool few = g.m <= FEW_ROWS;
    int64_t block_n = real_fitting(g.n, PANEL, real_steps(macro), space_b), block_m = g.m;
    if (few)
        block_n = g.use_acc ? real_fitting(g.n, PANEL, PACK_ROWS, ACC_ELEMS) : g.n;
    if (g.pack_a)
        block_m = real_fitting(g.m, PACK_ROWS, g.a_stride, space_a);
    int64_t packed_m = block_m;
    if (g.use_acc) {
        int64_t most = real_fitting(g.m, PACK_ROWS, block_n, ACC_ELEMS);
        block_m = block_m < most ? block_m : most;
    }
    real_gemm_cross(&g, few, block_n, packed_m, block_m);
    int64_t a_elems = g.pack_a ? sbp_round_up(block_m, PACK_ROWS) * g.a_stride : 0;
    g.a_packed = (OPERAND *)(void *)lane->shared; /* OPERANDs are as large as REALs */
    g.b_packed = g.a_packed + a_elems;
    g.acc =
        (REAL *)(void *)lane->shared + (g.b_packed - g.a_packed) + (few ? 0 : block_n * real_steps(macro));
    for (g.n0 = 0; g.n0 < g.n; g.n0 += block_n) {
        g.columns = g.n - g.n0 < block_n ? g.n - g.n0 : block_n;
        for (g.m0 = 0; g.m0 < g.m; g.m0 += block_m) {
            g.rows = g.m - g.m0 < block_m ? g.m - g.m0 : block_m;
            g.k0 = 0;
            do {
                g.depth = g.k - g.k0 < macro ? g.k - g.k0 : macro;
                g.steps = real_steps(g.depth);
                g.first = g.k0 == 0;
                g.last = g.k0 + g.depth == g.k;
                g.add = !g.first || (with_c && plain);
                if (few) {
                    real_run_few(lane, &g);
                    g.k0 += g.depth;
                    continue;
                }
                g.b_panels_to_pack = one_depth && g.m0 > 0 ? 0 : sbp_ceil_div(g.columns, PANEL);
                int64_t groups = g.pack_a ? sbp_ceil_div(g.rows, PACK_ROWS) : 0;
                cpu_pool_run(lane->pool, g.b_panels_to_pack + groups, real_gemm_pack, &g);
                int64_t column_items = sbp_ceil_div(g.columns, ITEM_COLUMNS);
                g.item_rows = real_item_rows(g.rows, column_items);
                cpu_pool_run(lane->pool, sbp_ceil_div(g.rows, g.item_rows) * column_items, real_gemm_compute,
                             &g);
                g.k0 += g.depth;
            } while (g.k0 < g.k);
        }
    }
}
