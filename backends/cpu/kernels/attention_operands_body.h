/* attention_operands_body.h: the operands of attention's products, in fp32 and fp64. Part of
 * attention_body.h; attention_operands_bf16_body.h has the same functions for bf16. */

/* Columns [column, column + width) of these rows of k or v as rows of OPERANDs: in place where the type
 * allows, rows follow each other and do not all fall into the same sets of the cache, else copied to `copy`,
 * [keys, width]. */
static real_tile_operand real_key_rows(const cpu_view *view, const attention_keys *keys, int64_t column,
                                       int64_t width, REAL *copy) {
    int64_t bytes = sbp_dtype_bytes(view->dtype);
    const char *at = view->data + column * bytes;
    bool as_they_lie =
        view->dtype == REAL_DTYPE && view->stride * bytes % 2048 != 0 && attention_keys_follow(keys);
    REAL_CROSS_EITHER(as_they_lie, cpu_attention_rows_as_they_lie, cpu_attention_rows_copied);
    if (as_they_lie)
        return real_tile_matrix((const REAL *)(const void *)at + keys->row * view->stride, view->stride, 1);
    for (int64_t i = 0; i < keys->count; i++)
        real_load_row(copy + i * width, at + attention_key_row(keys, i) * view->stride * bytes, view->dtype,
                      width);
    return real_tile_matrix(copy, width, 1);
}

/* The same matrix with rows and columns exchanged. rows: what real_key_rows gave, or NULL. */
static real_tile_operand real_key_columns(const real_tile_operand *rows, const cpu_view *view,
                                          const attention_keys *keys, int64_t column, int64_t width,
                                          REAL *copy) {
    real_tile_operand x = rows ? *rows : real_key_rows(view, keys, column, width, copy);
    return (real_tile_operand){x.data, x.column, x.row, TILE_ROWS * x.column};
}

/* Scores are kept times log2 e: then p = 2^(s - m). q comes with scale log2 e applied, or with a softcap,
 * scale alone: s = cap log2 e tanh(q k / cap). */
static real_score_scale real_find_scale(const attention *a) {
    double scale = a->attrs.softcap > 0 ? a->attrs.scale : a->attrs.scale * LOG2_E;
    return (real_score_scale){.query = (REAL)scale, .soft = 1, .score = 1};
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
    if (rows) /* they are multiplied by 0, which is 0 of numbers only */
        memset(rows + lane * row_width, 0, (size_t)((a->lanes - lane) * row_width) * sizeof *rows);
    for (; lane < a->lanes; lane++)
        for (int64_t d = 0; d < width; d++)
            out[d * a->lanes + lane] = 0;
}

/* x: [keys, lanes] as the operand that is multiplied over lanes (its rows), in place. */
static real_tile_operand real_lane_operand(REAL *x, int64_t keys, int64_t lanes) {
    (void)keys;
    return real_tile_matrix(x, lanes, 1);
}

/* The same as the operand that is multiplied over keys, [steps of keys, lanes], in `out`, which may be x. */
static const REAL *real_key_operand(const REAL *x, int64_t keys, int64_t lanes, REAL *out) {
    (void)keys, (void)lanes, (void)out;
    return x;
}
