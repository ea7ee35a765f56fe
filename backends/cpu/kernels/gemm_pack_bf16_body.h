/* gemm_pack_bf16_body.h: operands of products of bf16, packed for tiles: gemm_pack_body.h in pairs of k. Part
 * of gemm_body.h. */

/* Row k of b (or of a transposed), from `column` on; zeros behind the last. */
INLINE const uint16_t *real_bf16_row(const cpu_view *view, const cpu_gemm_rows *rows, int64_t k, int64_t end,
                                     int64_t column) {
    return k < end ? (const uint16_t *)(const void *)real_gathered(view, rows, k, column) : bf16_zeros;
}

/* [step][j] = b(k0 + k, first + j) for `depth` of k and the columns of one panel; the next piece, in the same
 * layout at `next`, is fetched meanwhile where that is not NULL. */
static void real_pack_b(const real_gemm *g, int64_t first, int64_t k0, int64_t depth, OPERAND *out,
                        const OPERAND *next) {
    int64_t width = real_panel_width(g, first), steps = real_steps(depth);
    if (!g->tb) {
        for (int64_t k = k0; k < k0 + depth; k += 2, out += PANEL * BF16_STEPS) {
            const uint16_t *even = real_bf16_row(g->b, g->b_rows, k, k0 + depth, first);
            const uint16_t *odd = real_bf16_row(g->b, g->b_rows, k + 1, k0 + depth, first);
            if (width == PANEL) {
                bf16_pair_rows(out, PANEL, even, odd, PANEL);
                continue;
            }
            memset(out, 0, (size_t)(PANEL * BF16_STEPS) * sizeof *out);
            bf16_pair_rows(out, PANEL, even, odd, width);
        }
        return;
    }
    int64_t in_place = real_is_operand(g->b) && width == PANEL ? depth / 2 * BF16_STEPS : 0;
    if (in_place > 0)
        real_transpose((const OPERAND *)(const void *)real_b_at(g, first, k0), g->b->stride / PER_OPERAND,
                       in_place, out, next);
    if (in_place == steps)
        return;
    OPERAND piece[TILE_VECTORS * CPU_VECTOR_BYTES / sizeof(REAL)][PIECE];
    memset(piece, 0, sizeof piece);
    for (int64_t step = in_place; step < steps; step += PIECE) {
        int64_t some = steps - step < PIECE ? steps - step : PIECE, k = step * PER_OPERAND;
        int64_t elems = depth - k < some * PER_OPERAND ? depth - k : some * PER_OPERAND;
        for (int64_t j = 0; j < width; j++)
            bf16_pair_elements(piece[j], (const uint16_t *)(const void *)real_b_at(g, first + j, k0 + k),
                               elems);
        real_transpose(&piece[0][0], PIECE, some, out + step * PANEL, NULL);
    }
}

/* Rows m0 + group * PACK_ROWS .. of op(a): panels when a is transposed, else a row-major copy. */
static void real_pack_a_rows(const real_gemm *g, int64_t group) {
    int64_t first = group * PACK_ROWS, count = g->rows - first < PACK_ROWS ? g->rows - first : PACK_ROWS;
    if (!g->ta) {
        for (int64_t m = first; m < first + count; m++)
            bf16_pair_elements(
                g->a_packed + m * g->a_stride,
                (const uint16_t *)(const void *)real_gathered(g->a, g->a_rows, g->m0 + m, g->k0), g->depth);
        return;
    }
    OPERAND lines[PACK_DEPTH][PACK_ROWS] = {0};
    int64_t end = g->k0 + g->depth;
    for (int64_t step = 0; step < g->steps; step += PACK_DEPTH) {
        int64_t some = g->steps - step < PACK_DEPTH ? g->steps - step : PACK_DEPTH;
        for (int64_t i = 0; i < some; i += BF16_STEPS) {
            int64_t k = (step + i) * PER_OPERAND;
            bf16_pair_rows(lines[i], PACK_ROWS, real_bf16_row(g->a, g->a_rows, g->k0 + k, end, g->m0 + first),
                           real_bf16_row(g->a, g->a_rows, g->k0 + k + 1, end, g->m0 + first), count);
        }
        OPERAND *out = g->a_packed + first * g->steps + step * TILE_ROWS;
        for (int64_t p = 0; p < PACK_ROWS && p < count; p += TILE_ROWS, out += TILE_ROWS * g->steps)
            for (int64_t i = 0; i < some; i++)
                memcpy(out + i * TILE_ROWS, lines[i] + p, TILE_ROWS * sizeof(OPERAND));
    }
}
