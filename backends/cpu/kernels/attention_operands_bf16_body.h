/* attention_operands_bf16_body.h: the operands of attention's products, of bf16. Part of attention_body.h;
 * attention_operands_body.h has the same functions for fp32. Whatever is multiplied is bf16: q, k, v, do as
 * they come, p and ds rounded to nearest. So the scale meets the scores, not q. */

static const uint16_t *real_bf16_at(const cpu_view *view, int64_t row, int64_t column) {
    return (const uint16_t *)(const void *)view->data + row * view->stride + column;
}

/* Columns [column, column + width) of these rows of k or v as rows of OPERANDs: in place where they can be
 * read so, follow each other and do not all fall into the same sets of the cache, else copied to `copy`,
 * [keys, steps]. */
static real_tile_operand real_key_rows(const cpu_view *view, const attention_keys *keys, int64_t column,
                                       int64_t width, OPERAND *copy) {
    int64_t steps = real_steps(width);
    bool as_they_lie = real_is_operand(view) && column % PER_OPERAND == 0 && width % PER_OPERAND == 0 &&
                       view->stride % 1024 != 0 && attention_keys_follow(keys);
    REAL_CROSS_EITHER(as_they_lie, cpu_attention_rows_as_they_lie, cpu_attention_rows_copied);
    if (as_they_lie)
        return real_tile_matrix((const OPERAND *)(const void *)real_bf16_at(view, keys->row, column),
                                view->stride / PER_OPERAND, 1);
    for (int64_t i = 0; i < keys->count; i++)
        bf16_pair_elements(copy + i * steps, real_bf16_at(view, attention_key_row(keys, i), column), width);
    return real_tile_matrix(copy, steps, 1);
}

static const uint16_t *real_bf16_key(const cpu_view *view, const attention_keys *keys, int64_t i,
                                     int64_t column) {
    bool there = i >= 0 && i < keys->count;
    return there ? real_bf16_at(view, attention_key_row(keys, i), column) : bf16_zeros;
}

/* The same matrix with rows and columns exchanged, in `copy`: [steps of keys, width]. */
static real_tile_operand real_key_columns(const real_tile_operand *rows, const cpu_view *view,
                                          const attention_keys *keys, int64_t column, int64_t width,
                                          OPERAND *copy) {
    OPERAND *to = copy;
    (void)rows;
    for (int64_t i = -keys->skipped; i < keys->count; i += 2, to += BF16_STEPS * width)
        bf16_pair_rows(to, width, real_bf16_key(view, keys, i, column),
                       real_bf16_key(view, keys, i + 1, column), width);
    return (real_tile_operand){copy, 1, width, TILE_ROWS};
}

/* q is negated for a negative scale and left away for one of 0: so that scores times `score` stay in order.
 */
static real_score_scale real_find_scale(const attention *a) {
    double scale = a->attrs.scale, size = scale < 0 ? -scale : scale > 0 ? scale : 1;
    bool soft = a->attrs.softcap > 0;
    return (real_score_scale){
        .query = (REAL)(scale < 0 ? -1 : scale > 0), .soft = size, .score = (REAL)(soft ? 1 : size * LOG2_E)};
}

/* Rows row.. of q or do, head columns column..: out[step of d][lane] = sign x, lanes beyond those there are
 * 0; and rows[step of lanes][row_width] = x when rows is not NULL (columns beyond width 0). */
static void real_load_lanes(const attention *a, const cpu_view *view, int64_t row, int64_t positions,
                            int64_t column, int64_t width, REAL sign, OPERAND *out, OPERAND *rows,
                            int64_t row_width) {
    OPERAND line[ATTENTION_MOST_DIMENSIONS + 1];
    uint16_t signs[ATTENTION_MOST_DIMENSIONS];
    int64_t lane = 0, steps = real_steps(width);
    const uint16_t *even = NULL;
    uint16_t flip = sign < 0 ? 0x8000 : 0, keep = sign == 0 ? 0 : 0xffff;
    if (rows)
        memset(rows, 0, (size_t)(real_steps(a->lanes) * row_width) * sizeof *rows);
    for (int64_t p = 0; p < positions; p++)
        for (int64_t h = 0; h < a->group; h++, lane++) {
            const uint16_t *from = real_bf16_at(view, row + p, column + h * width);
            for (int64_t ahead = 0; ahead < width; ahead += 32)
                __builtin_prefetch(from + 2 * view->stride + ahead);
            for (int64_t d = 0; d < width; d++)
                signs[d] = (uint16_t)((from[d] ^ flip) & keep);
            bf16_pair_elements(line, signs, width);
            for (int64_t step = 0; step < steps; step++)
                out[step * a->lanes + lane] = line[step];
            bool last = lane + 1 == positions * a->group;
            if (rows && (lane % 2 == 1 || last))
                bf16_pair_rows(rows + lane / 2 * BF16_STEPS * row_width, row_width,
                               lane % 2 == 1 ? even : from, lane % 2 == 1 ? from : bf16_zeros, width);
            even = from;
        }
    for (; lane < a->lanes; lane++)
        for (int64_t step = 0; step < steps; step++)
            out[step * a->lanes + lane] = 0;
}

/* x: [keys, lanes] rounded, as the operand that is multiplied over lanes (its rows), in place. */
static real_tile_operand real_lane_operand(REAL *x, int64_t keys, int64_t lanes) {
    for (int64_t i = 0; i < keys; i++)
        bf16_round_elements(x + i * lanes, lanes);
    return real_tile_matrix((const OPERAND *)(const void *)x, lanes, 1);
}

/* The same as the operand that is multiplied over keys, [steps of keys, lanes], in `out`, which may be x. A
 * row behind the last key is taken for a key that is not there. */
static const OPERAND *real_key_operand(REAL *x, int64_t keys, int64_t lanes, REAL *out) {
    if (keys % 2)
        memset(x + keys * lanes, 0, (size_t)lanes * sizeof *x);
    for (int64_t i = 0; i < keys; i += 2)
        bf16_round_rows(out + i / 2 * BF16_STEPS * lanes, lanes, x + i * lanes, x + (i + 1) * lanes, lanes);
    return (const OPERAND *)(const void *)out;
}
