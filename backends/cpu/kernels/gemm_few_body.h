/* gemm_few_body.h: products of few rows, which memory bounds. Part of gemm_body.h.
 *
 * An item is a few panels of b. It goes through k in pieces: each is packed into scratch memory that stays in
 * the first-level cache and multiplied at once, while the next piece is on its way. So b is read from memory
 * once, and nothing else is. Chains, and what they are added to, are those of products of many rows: a chain
 * is only laid down in memory between pieces, which changes no bit of it. */

INLINE void real_chain_any(const int tile_rows, int rows, int64_t depth, real_tile_operand a,
                           const OPERAND *restrict b, REAL *restrict chain, bool begins) {
    VEC sum[TILE_ROWS][TILE_VECTORS];
    const OPERAND *at[TILE_ROWS];
#pragma GCC unroll 8
    for (int m = 0; m < tile_rows; m++) {
        at[m] = a.data + (m < rows ? m : rows - 1) * a.row;
#pragma GCC unroll 3
        for (int v = 0; v < TILE_VECTORS; v++) {
            sum[m][v] = (VEC){0};
            if (!begins)
                sum[m][v] = *(const VEC_MEMORY *)(chain + m * PANEL + v * VL);
        }
    }
    int64_t offset = 0;
    for (int64_t k = 0; k < depth; k++) {
        VEC bk[TILE_VECTORS];
#pragma GCC unroll 3
        for (int v = 0; v < TILE_VECTORS; v++)
            bk[v] = *(const VEC_MEMORY *)(b + v * VL);
#pragma GCC unroll 8
        for (int m = 0; m < tile_rows; m++) {
            VEC am = real_splat(at[m][offset]);
#pragma GCC unroll 3
            for (int v = 0; v < TILE_VECTORS; v++)
                sum[m][v] = VEC_DOT(am, bk[v], sum[m][v]);
        }
        offset += a.column;
        b += PANEL;
    }
#pragma GCC unroll 8
    for (int m = 0; m < tile_rows; m++)
#pragma GCC unroll 3
        for (int v = 0; v < TILE_VECTORS; v++)
            *(VEC_MEMORY *)(chain + m * PANEL + v * VL) = sum[m][v];
}

/* chain[m][n] goes on, or begins, with `depth` steps of all rows. It has room for rows rounded up to
 * TILE_ROWS. */
static void real_chains(int64_t rows, int64_t depth, real_tile_operand a, const OPERAND *b, REAL *chain,
                        bool begins) {
    for (int64_t m = 0; m < rows; m += TILE_ROWS, a.data += a.panel, chain += TILE_ROWS * PANEL) {
        int some = (int)(rows - m < TILE_ROWS ? rows - m : TILE_ROWS);
        if (some == 1)
            real_chain_any(1, some, depth, a, b, chain, begins);
        else if (some == 2)
            real_chain_any(2, some, depth, a, b, chain, begins);
#if TILE_ROWS > 4
        else if (some <= 4)
            real_chain_any(4, some, depth, a, b, chain, begins);
#endif
        else
            real_chain_any(TILE_ROWS, some, depth, a, b, chain, begins);
    }
}

/* Where the piece of b at these columns and this k lies, if it can be fetched ahead. */
static const OPERAND *real_piece_ahead(const real_gemm *g, int64_t first, int64_t step) {
    if (g->decoded || !g->tb || !real_is_operand(g->b) || first + PANEL > g->n0 + g->columns)
        return NULL;
    return (const OPERAND *)(const void *)real_element(g->b, first, g->k0 + step * PER_OPERAND);
}

/* One panel: d of all rows and of the columns from `first` on. */
static void real_few_panel(const real_gemm *g, int64_t first, real_tile_operand a, OPERAND *piece) {
    REAL sums[FEW_ROWS * TILE_VECTORS * CPU_VECTOR_BYTES / sizeof(REAL)];
    REAL chains[FEW_ROWS * TILE_VECTORS * CPU_VECTOR_BYTES / sizeof(REAL)];
    int64_t width = real_panel_width(g, first), most = real_chain_steps(g);
    for (int64_t i = 0; i < g->rows && g->add; i++)
        real_gemm_begin(g, i, first - g->n0, sums + i * PANEL, width);
    for (int64_t i = 0; i < g->rows && !g->add && g->depth == 0; i++)
        memset(sums + i * PANEL, 0, (size_t)PANEL * sizeof *sums);
    for (int64_t k = 0; k < g->steps; k += most) {
        int64_t depth = g->steps - k < most ? g->steps - k : most;
        for (int64_t p = 0; p < depth; p += FEW_STEPS) {
            int64_t steps = depth - p < FEW_STEPS ? depth - p : FEW_STEPS;
            int64_t elem = (k + p) * PER_OPERAND, ahead = k + p + steps;
            int64_t elems = g->depth - elem < steps * PER_OPERAND ? g->depth - elem : steps * PER_OPERAND;
            real_pack_b(g, first, g->k0 + elem, elems, piece,
                        ahead < g->steps ? real_piece_ahead(g, first, ahead)
                                         : real_piece_ahead(g, first + PANEL, 0));
            real_tile_operand ak = a;
            ak.data += (k + p) * a.column;
            real_chains(g->rows, steps, ak, piece, chains, p == 0);
        }
        bool add = k > 0 || g->add;
        for (int64_t i = 0; i < g->rows * PANEL; i++)
            sums[i] = add ? chains[i] + sums[i] : chains[i];
    }
    for (int64_t i = 0; i < g->rows; i++)
        real_gemm_store(g, i, first - g->n0, sums + i * PANEL, width);
}

/* Rows first .. of b, of the depth of the block at hand, one behind the other. */
static void real_decode_panel(const real_gemm *g, int64_t first, int64_t width, char *out) {
    const cpu_view *made = &g->decoded->views[g->decoded->view_count - 1];
    int64_t bytes = sbp_dtype_bytes(made->dtype), block = made->cols;
    int64_t at = (g->b->data - made->data) / bytes + first * g->b->stride + g->k0;
    bool dense = g->depth == g->b->stride;
    int64_t rows = dense ? 1 : width, elems = dense ? width * g->depth : g->depth;
    for (int64_t r = 0; r < rows; r++)
        ISA_NAME(decode)(g->decoded, (at + r * g->b->stride) / block, elems / block, out + r * elems * bytes);
}

static void real_few_item(void *arg, int64_t item, char *scratch) {
    const real_gemm *all = arg;
    real_gemm own = *all, *g = &own;
    real_tile_operand a = real_item_a(g, 0);
    OPERAND *piece = (OPERAND *)(void *)scratch;
    char *numbers = scratch + PANEL * FEW_STEPS * (int64_t)sizeof *piece;
    int64_t end = g->n0 + sbp_min_i64((item + 1) * g->item_panels * PANEL, g->columns);
    for (int64_t n = g->n0 + item * g->item_panels * PANEL; n < end; n += PANEL) {
        cpu_view b = {.data = numbers, .dtype = all->b->dtype, .cols = g->depth, .stride = g->depth};
        if (g->decoded) {
            b.rows = real_panel_width(g, n);
            real_decode_panel(all, n, b.rows, numbers);
            g->b = &b;
            g->b_first = n;
            g->b_k0 = g->k0;
        }
        real_few_panel(g, n, a, piece);
    }
}

/* The block at hand. */
static void real_run_few(cpu_lane *lane, real_gemm *g) {
    if (g->pack_a)
        real_pack_a_rows(g, 0);
    int64_t panels = sbp_ceil_div(g->columns, PANEL);
    g->item_panels = sbp_max_i64(1, sbp_min_i64(panels / ENOUGH_ITEMS, ITEM_PANELS));
    cpu_pool_run(lane->pool, sbp_ceil_div(panels, g->item_panels), real_few_item, g);
}
