/* attention_fwd_body.h: o and lse by online softmax, in one type of arithmetic. See real.h, attention.h.
 *
 * An item is a block of positions of one kv head: it runs over the tiles of keys that the block sees,
 *   s = k q^T;  m' = max(m, max s);  p = exp(s - m');  l = l exp(m - m') + sum p;
 *   o^T = o^T exp(m - m') + v^T p
 * and ends with o = o^T / l, lse = m log 2 + log l. In bf16 m is an integer, and p is rounded for the second
 * product, not in its sum. */

typedef struct real_forward {
    attention base;
    const cpu_view *o, *lse;
} real_forward;

/* largest[lane] = max over keys of s[key][lane] and largest[lane]; of bf16 the nearest integer. */
static void real_column_max(const REAL *restrict s, int64_t keys, int64_t lanes, REAL scale,
                            REAL *restrict largest) {
    for (int64_t i = 0; i < keys; i++, s += lanes)
        for (int64_t lane = 0; lane < lanes; lane++) {
            REAL x = real_score(s[lane], scale);
            largest[lane] = x > largest[lane] ? x : largest[lane];
        }
#if PRODUCTS_OF_BF16
    for (int64_t lane = 0; lane < lanes; lane++)
        largest[lane] = real_nearest(largest[lane]);
#endif
}

/* s = 2^(s - m), sum[lane] = sum over keys of it */
static void real_column_exp(REAL *restrict s, int64_t keys, int64_t lanes, REAL scale, const REAL *restrict m,
                            REAL *restrict sum) {
    for (int64_t lane = 0; lane < lanes; lane++)
        sum[lane] = 0;
    for (int64_t i = 0; i < keys; i++, s += lanes)
        for (int64_t lane = 0; lane < lanes; lane++) {
            REAL p = real_power_below(real_score(s[lane], scale), m[lane]);
            s[lane] = p;
            sum[lane] += p;
        }
}

static void real_forward_item(void *arg, int64_t item, char *scratch) {
    const real_forward *f = arg;
    const attention *a = &f->base;
    int64_t kv = item / a->blocks, j = (a->blocks - 1 - item % a->blocks) * a->positions; /* longest first */
    int64_t positions = a->q->rows - j < a->positions ? a->q->rows - j : a->positions;
    int64_t d_qk = a->attrs.d_qk, d_v = a->attrs.d_v, lanes = a->lanes;
    visible *see = (visible *)(void *)scratch;
    scratch += sbp_round_up(a->positions * (int64_t)sizeof *see, 64);
    int32_t *limits = (int32_t *)(void *)scratch;
    scratch += sbp_round_up(4 * lanes * (int64_t)sizeof *limits, 64);
    OPERAND *q = real_take_operands(&scratch, real_steps(d_qk) * lanes); /* [d_qk, lanes] */
    REAL *o = real_take(&scratch, sbp_round_up(d_v, TILE_ROWS) * lanes); /* [d_v, lanes] */
    REAL *m = real_take(&scratch, lanes), *l = real_take(&scratch, lanes);
    REAL *old = real_take(&scratch, lanes), *sum = real_take(&scratch, lanes);
    REAL *s = real_take(&scratch, (a->tile_keys + TILE_ROWS) * lanes); /* [keys, lanes] */
    OPERAND *k_copy = real_take_operands(&scratch, a->tile_keys * real_steps(d_qk));
    OPERAND *v_copy = real_take_operands(&scratch, real_steps(a->tile_keys) * d_v);
    real_score_scale scale = real_find_scale(a);
    for (int64_t p = 0; p < positions; p++)
        see[p] = attention_visible(a, j + p);
    real_lane_limits(a, see, positions, limits);
    real_load_lanes(a, a->q, j, positions, kv * a->group * d_qk, d_qk, scale.query, q, NULL, 0);
    memset(o, 0, (size_t)(sbp_round_up(d_v, TILE_ROWS) * lanes) * sizeof *o);
    for (int64_t lane = 0; lane < lanes; lane++) {
        m[lane] = NOTHING_SEEN;
        l[lane] = 0;
    }
    tile_view block = attention_block(a, see, positions);
    for (int32_t lo = block.lo; lo < block.hi; lo += (int32_t)a->tile_keys) {
        int32_t hi = block.hi - lo < a->tile_keys ? block.hi : lo + (int32_t)a->tile_keys;
        tile_view tile = attention_tile(see, positions, lo, hi);
        int64_t keys = tile.hi - tile.lo;
        if (keys <= 0)
            continue;
        real_tile_operand k = real_key_rows(a->k, tile.lo, tile.hi, kv * d_qk, d_qk, k_copy);
        real_tile_operand v = real_key_columns(NULL, a->v, tile.lo, tile.hi, kv * d_v, d_v, v_copy);
        real_tiles(keys, lanes, real_steps(d_qk), k, q, lanes, s, lanes, false);
        if (a->attrs.softcap > 0)
            real_soften(s, keys * lanes, scale.soft, a->attrs.softcap);
        if (!tile.whole)
            real_mask(a, limits, tile.lo, keys, s, NOTHING_SEEN);
        memcpy(old, m, (size_t)lanes * sizeof *m);
        real_column_max(s, keys, lanes, scale.score, m);
        real_column_exp(s, keys, lanes, scale.score, m, sum);
        bool moved = false;
        for (int64_t lane = 0; lane < lanes; lane++) {
            moved |= m[lane] != old[lane];
            old[lane] = real_power_of_2(old[lane] - m[lane]);
            l[lane] = l[lane] * old[lane] + sum[lane];
        }
        for (int64_t d = 0; moved && d < d_v; d++)
            for (int64_t lane = 0; lane < lanes; lane++)
                o[d * lanes + lane] *= old[lane];
        const OPERAND *p = real_key_operand(s, keys, lanes, s);
        real_tiles(d_v, lanes, real_steps(keys), v, p, lanes, o, lanes, true);
    }
    for (int64_t lane = 0; lane < positions * a->group; lane++) {
        int64_t row = j + lane / a->group, head = kv * a->group + lane % a->group;
        REAL line[ATTENTION_MOST_DIMENSIONS], lse = m[lane] * R(LOG_2) + real_log(l[lane]);
        for (int64_t d = 0; d < d_v; d++)
            line[d] = o[d * lanes + lane] / l[lane];
        const cpu_view *out = f->o, *out_lse = f->lse;
        real_store_row(out->data + (row * out->stride + head * d_v) * sbp_dtype_bytes(out->dtype), out->dtype,
                       line, d_v);
        real_store_row(out_lse->data + (row * out_lse->stride + head) * sbp_dtype_bytes(out_lse->dtype),
                       out_lse->dtype, &lse, 1);
    }
}

static void real_run_forward(cpu_lane *lane, const cpu_command *command) {
    const cpu_view *v = command->views;
    real_forward f = {.o = &v[SBP_ATTN_FWD_O], .lse = &v[SBP_ATTN_FWD_LSE]};
    attention_init(&f.base, command, sizeof(REAL), VL, ATTENTION_FORWARD_KEYS);
    REAL_CROSS_EITHER(f.base.k->rows > f.base.tile_keys, cpu_attention_tiles, cpu_attention_tile);
    REAL_CROSS_IF(f.base.tile_keys < ATTENTION_FORWARD_KEYS && f.base.k->rows > f.base.tile_keys,
                  cpu_attention_cut_tile);
    REAL_CROSS_IF(f.base.blocks > 1, cpu_attention_blocks);
    SBP_CROSS_IF(f.base.positions == 1 && f.base.q->rows > 1, cpu_attention_one_position);
    REAL_CROSS_IF(f.base.lanes > f.base.positions * f.base.group, cpu_attention_lanes_padded);
    cpu_pool_run(lane->pool, f.base.blocks * f.base.attrs.kv_heads, real_forward_item, &f);
}
