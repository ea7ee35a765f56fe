/* gemm_pack_body.h: operands of products of fp32 and fp64, packed for tiles. Part of gemm_body.h. */

/* out[k][j] = b(k0 + k, first + j) for `depth` of k and the columns of one panel; the next piece, in the same
 * layout at `next`, is fetched meanwhile where that is not NULL. */
static void real_pack_b(const real_gemm *g, int64_t first, int64_t k0, int64_t depth, REAL *out,
                        const REAL *next) {
    int64_t width = real_panel_width(g, first);
    bool as_it_lies = g->b->dtype == REAL_DTYPE && width == PANEL;
    if (!g->tb) {
        for (int64_t k = 0; k < depth; k++, out += PANEL) {
            if (as_it_lies) {
                const REAL *in = (const REAL *)(const void *)real_gathered(g->b, g->b_rows, k0 + k, first);
#pragma GCC unroll 3
                for (int v = 0; v < TILE_VECTORS; v++)
                    *(VEC_MEMORY *)(out + v * VL) = *(const VEC_MEMORY *)(in + v * VL);
                continue;
            }
            real_load_row(out, real_gathered(g->b, g->b_rows, k0 + k, first), g->b->dtype, width);
            for (int64_t j = width; j < PANEL; j++)
                out[j] = 0;
        }
        return;
    }
    if (as_it_lies) {
        real_transpose((const REAL *)(const void *)real_b_at(g, first, k0), g->b->stride, depth, out, next);
        return;
    }
    REAL piece[TILE_VECTORS * CPU_VECTOR_BYTES / sizeof(REAL)][PIECE];
    for (int64_t j = width; j < PANEL; j++)
        memset(piece[j], 0, sizeof piece[j]);
    for (int64_t k = 0; k < depth; k += PIECE) {
        int64_t some = depth - k < PIECE ? depth - k : PIECE;
        for (int64_t j = 0; j < width; j++)
            real_load_row(piece[j], real_b_at(g, first + j, k0 + k), g->b->dtype, some);
        real_transpose(&piece[0][0], PIECE, some, out + k * PANEL, NULL);
    }
}

/* Rows m0 + group * PACK_ROWS .. of op(a): panels when a is transposed, else a row-major copy. */
static void real_pack_a_rows(const real_gemm *g, int64_t group) {
    int64_t first = group * PACK_ROWS, count = g->rows - first < PACK_ROWS ? g->rows - first : PACK_ROWS;
    if (!g->ta) {
        for (int64_t m = first; m < first + count; m++)
            real_load_row(g->a_packed + m * g->a_stride, real_gathered(g->a, g->a_rows, g->m0 + m, g->k0),
                          g->a->dtype, g->depth);
        return;
    }
    REAL lines[PACK_DEPTH][PACK_ROWS] = {0};
    for (int64_t k = 0; k < g->depth; k += PACK_DEPTH) {
        int64_t some = g->depth - k < PACK_DEPTH ? g->depth - k : PACK_DEPTH;
        for (int64_t i = 0; i < some; i++)
            real_load_row(lines[i], real_gathered(g->a, g->a_rows, g->k0 + k + i, g->m0 + first), g->a->dtype,
                          count);
        REAL *out = g->a_packed + first * g->depth + k * TILE_ROWS;
        for (int64_t p = 0; p < PACK_ROWS && p < count; p += TILE_ROWS, out += TILE_ROWS * g->depth)
            for (int64_t i = 0; i < some; i++)
                memcpy(out + i * TILE_ROWS, lines[i] + p, TILE_ROWS * sizeof(REAL));
    }
}
