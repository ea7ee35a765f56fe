/* attention_body.h: pieces of attention in one type of arithmetic. See real.h, attention.h. */

/* Hands out parts of a thread's scratch memory. */
static REAL *real_take(char **scratch, int64_t elems) {
    REAL *taken = (REAL *)(void *)*scratch;
    *scratch += sbp_round_up(elems * (int64_t)sizeof(REAL), 64);
    return taken;
}

/* Columns [column, column + width) of rows lo..hi of k or v as REAL: in place where the type allows and rows
 * do not all fall into the same sets of the cache, else copied to `copy`, [keys, width]. */
static real_tile_operand real_key_rows(const cpu_view *view, int64_t lo, int64_t hi, int64_t column,
                                       int64_t width, REAL *copy) {
    int64_t bytes = sbp_dtype_bytes(view->dtype);
    const char *at = view->data + (lo * view->stride + column) * bytes;
    if (view->dtype == REAL_DTYPE && view->stride * bytes % 2048 != 0)
        return real_tile_matrix((const REAL *)(const void *)at, view->stride, 1);
    for (int64_t i = 0; i < hi - lo; i++)
        real_load_row(copy + i * width, at + i * view->stride * bytes, view->dtype, width);
    return real_tile_matrix(copy, width, 1);
}

/* The same matrix with rows and columns exchanged. */
INLINE real_tile_operand real_transposed(real_tile_operand a) {
    return (real_tile_operand){a.data, a.column, a.row, TILE_ROWS * a.column};
}

/* Rows row.. of q or do, head columns column..: out[d][lane] = scale x, lanes beyond those there are 0; and
 * rows[lane][row_width] = x when rows is not NULL (columns beyond width 0). */
static void real_load_lanes(const attention *a, const cpu_view *view, int64_t row, int64_t positions,
                            int64_t column, int64_t width, REAL scale, REAL *out, REAL *rows,
                            int64_t row_width) {
    REAL line[ATTENTION_MOST_DIMENSIONS];
    int64_t lane = 0;
    for (int64_t p = 0; p < positions; p++)
        for (int64_t h = 0; h < a->group; h++, lane++) {
            const char *from =
                view->data + ((row + p) * view->stride + column + h * width) * sbp_dtype_bytes(view->dtype);
            for (int64_t ahead = 0; ahead < width * sbp_dtype_bytes(view->dtype); ahead += 64)
                __builtin_prefetch(from + 2 * view->stride * sbp_dtype_bytes(view->dtype) + ahead);
            real_load_row(line, from, view->dtype, width);
            for (int64_t d = 0; d < width; d++)
                out[d * a->lanes + lane] = scale * line[d];
            if (rows) {
                memcpy(rows + lane * row_width, line, (size_t)width * sizeof(REAL));
                for (int64_t d = width; d < row_width; d++)
                    rows[lane * row_width + d] = 0;
            }
        }
    for (; lane < a->lanes; lane++)
        for (int64_t d = 0; d < width; d++)
            out[d * a->lanes + lane] = 0;
}

/* What each lane sees, for the masks. Lanes that are not there see nothing. */
static void real_lane_limits(const attention *a, const visible *see, int64_t positions, int32_t *limits) {
    int32_t *lo1 = limits, *hi1 = lo1 + a->lanes, *lo2 = hi1 + a->lanes, *hi2 = lo2 + a->lanes;
    memset(limits, 0, (size_t)(4 * a->lanes) * sizeof *limits);
    for (int64_t p = 0, lane = 0; p < positions; p++)
        for (int64_t h = 0; h < a->group; h++, lane++) {
            lo1[lane] = see[p].lo1;
            hi1[lane] = see[p].hi1;
            lo2[lane] = see[p].lo2;
            hi2[lane] = see[p].hi2;
        }
}

/* x[key][lane] = `other` where the lane does not see the key. Keys are lo .. lo + keys - 1. */
static void real_mask(const attention *a, const int32_t *limits, int32_t lo, int64_t keys, REAL *x,
                      REAL other) {
    const int32_t *lo1 = limits, *hi1 = lo1 + a->lanes, *lo2 = hi1 + a->lanes, *hi2 = lo2 + a->lanes;
    for (int64_t i = 0; i < keys; i++, x += a->lanes) {
        int32_t key = lo + (int32_t)i;
        for (int64_t lane = 0; lane < a->lanes; lane++) {
            int seen = ((key >= lo1[lane]) & (key < hi1[lane])) | ((key >= lo2[lane]) & (key < hi2[lane]));
            x[lane] = seen ? x[lane] : other;
        }
    }
}

/* Scores are kept times log2 e: then p = 2^(s - m). q comes with scale log2 e applied, or with a softcap,
 * scale alone: s = cap log2 e tanh(q k / cap). */
#define LOG2_E 1.4426950408889634
#define LOG_2 0.6931471805599453

static REAL real_query_scale(const attention *a) {
    return (REAL)(a->attrs.softcap > 0 ? a->attrs.scale : a->attrs.scale * LOG2_E);
}

static void real_soften(REAL *x, int64_t n, double cap) {
    REAL inverse = (REAL)(1 / cap), high = (REAL)(cap * LOG2_E);
    for (int64_t i = 0; i < n; i++)
        x[i] = high * real_tanh(x[i] * inverse);
}

/* 2^x for x that are hardly above 0; exactly 0 where fp32 would be subnormal. Half the work of sbp_exp_f32.
 * Adding 1.5 * 2^23 rounds x to an integer and leaves it in the low bits. Polynomial: rowmath_fit.py. */
INLINE REAL real_power_of_2(REAL x) {
#if REAL_IS_F64
    return sbp_exp_f64(x * LOG_2);
#else
    float shifted = x + 12582912.0f;
    float f = x - (shifted - 12582912.0f);
    float q = SBP_FMA(f, 0.000154702648f, 0.00133909006f);
    q = SBP_FMA(q, f, 0.009618029f);
    q = SBP_FMA(q, f, 0.0555035695f);
    q = SBP_FMA(q, f, 0.240226507f);
    q = SBP_FMA(q, f, 0.693147182f);
    q = SBP_FMA(q, f, 1.0f);
    float y = float_of(bits_of(q) + (bits_of(shifted) << 23));
    return x < -126.0f ? 0.0f : y;
#endif
}
