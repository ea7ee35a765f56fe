/* attention_fwd_body.h: o and lse by online softmax, in one type of arithmetic. See real.h, attention.h.
 *
 * An item is a block of positions of one kv head. For the rows of each document in it, it runs over the tiles
 * of keys that they see,
 *   s = k q^T;  m' = max(m, max s);  p = exp(s - m');  l = l exp(m - m') + sum p;
 *   o^T = o^T exp(m - m') + v^T p
 * and ends with o = o^T / l, lse = m log 2 + log l. In bf16 m is an integer, and p is rounded for the second
 * product, not in its sum.
 *
 * Bits: a lane's tiles are cut by numbers of its own document. Of a tile it takes the keys that it sees, in
 * their order; for all others p is exactly 0, which leaves sums as they are. m comes from the lane's own
 * scores alone. So o and lse depend on the row, its keys and values, and on nothing else in the batch. */

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

/* What a thread computes in, for as many lanes as a block may have. */
typedef struct real_forward_space {
    int32_t *limits;          /* [2, lanes]: lane `l` sees the keys limits[0][l] .. limits[1][l] - 1 */
    OPERAND *q;               /* [d_qk, lanes] */
    REAL *o;                  /* [d_v, lanes] */
    REAL *m, *l, *old, *sum;  /* [lanes] */
    REAL *s;                  /* [keys, lanes] */
    OPERAND *k_copy, *v_copy; /* [keys, d] */
} real_forward_space;

static real_forward_space real_take_forward_space(const attention *a, char *scratch) {
    int64_t d_qk = a->attrs.d_qk, d_v = a->attrs.d_v, lanes = a->lanes;
    real_forward_space x = {.limits = (int32_t *)(void *)scratch};
    scratch += sbp_round_up(2 * lanes * (int64_t)sizeof *x.limits, 64);
    x.q = real_take_operands(&scratch, real_steps(d_qk) * lanes);
    x.o = real_take(&scratch, sbp_round_up(d_v, TILE_ROWS) * lanes);
    x.m = real_take(&scratch, lanes);
    x.l = real_take(&scratch, lanes);
    x.old = real_take(&scratch, lanes);
    x.sum = real_take(&scratch, lanes);
    x.s = real_take(&scratch, (a->tile_keys + TILE_ROWS) * lanes);
    x.k_copy = real_take_operands(&scratch, a->tile_keys * real_steps(d_qk));
    x.v_copy = real_take_operands(&scratch, real_steps(a->tile_keys) * d_v);
    return x;
}

/* Lanes that are not there see nothing. */
static void real_run_limits(const attention *a, const attention_run *run, int32_t *limits) {
    int64_t lane = 0;
    for (int64_t p = 0; p < run->positions; p++)
        for (int64_t h = 0; h < a->group; h++, lane++) {
            limits[lane] = (int32_t)attention_run_from(a, run, p);
            limits[a->lanes + lane] = (int32_t)(run->number + p + 1);
        }
    for (; lane < a->lanes; lane++)
        limits[lane] = limits[a->lanes + lane] = 0;
}

/* s[key][lane] is hidden where the lane does not see the key: p = 0, whatever m is. Keys lo, lo + 1, .. */
static void real_hide(const attention *a, const int32_t *restrict limits, int64_t lo, int64_t keys,
                      REAL *restrict s, REAL hidden) {
    for (int64_t i = 0; i < keys; i++, s += a->lanes) {
        int32_t key = (int32_t)(lo + i);
        for (int64_t lane = 0; lane < a->lanes; lane++)
            s[lane] = (key >= limits[lane]) & (key < limits[a->lanes + lane]) ? s[lane] : hidden;
    }
}

/* The keys from .. to - 1 of one tile. */
static void real_forward_tile(const attention *a, const attention_run *run, const real_forward_space *x,
                              const real_score_scale *scale, int64_t kv, int64_t from, int64_t to) {
    int64_t d_qk = a->attrs.d_qk, d_v = a->attrs.d_v, lanes = a->lanes;
    attention_keys rows = attention_run_keys(run, from, to);
    rows.skipped = PRODUCTS_OF_BF16 ? from % 2 : 0; /* pairs of keys are those of all rows of the document */
    int64_t keys = rows.skipped + rows.count;
    REAL *s = x->s;
    REAL_CROSS_IF(!attention_keys_follow(&rows), cpu_attention_joined);
    real_tile_operand k = real_key_rows(a->k, &rows, kv * d_qk, d_qk, x->k_copy);
    real_tile_operand v = real_key_columns(NULL, a->v, &rows, kv * d_v, d_v, x->v_copy);
    if (rows.skipped)
        memset(s, 0, (size_t)lanes * sizeof *s);
    real_tiles(rows.count, lanes, real_steps(d_qk), k, x->q, lanes, s + rows.skipped * lanes, lanes, false);
    if (a->attrs.softcap > 0)
        real_soften(s, keys * lanes, scale->soft, a->attrs.softcap);
    bool all_see =
        attention_run_from(a, run, run->positions - 1) <= from - rows.skipped && to <= run->number + 1;
    if (!all_see)
        real_hide(a, x->limits, from - rows.skipped, keys, s, 2 * NOTHING_SEEN / scale->score);
    memcpy(x->old, x->m, (size_t)lanes * sizeof *x->m);
    real_column_max(s, keys, lanes, scale->score, x->m);
    real_column_exp(s, keys, lanes, scale->score, x->m, x->sum);
    bool moved = false;
    for (int64_t lane = 0; lane < lanes; lane++) {
        moved |= x->m[lane] != x->old[lane];
        x->old[lane] = real_power_of_2(x->old[lane] - x->m[lane]);
        x->l[lane] = x->l[lane] * x->old[lane] + x->sum[lane];
    }
    for (int64_t d = 0; moved && d < d_v; d++)
        for (int64_t lane = 0; lane < lanes; lane++)
            x->o[d * lanes + lane] *= x->old[lane];
    const OPERAND *p = real_key_operand(s, keys, lanes, s);
    real_tiles(d_v, lanes, real_steps(keys), v, p, lanes, x->o, lanes, true);
}

static void real_store_forward(const real_forward *f, const attention_run *run, const real_forward_space *x,
                               int64_t kv) {
    const attention *a = &f->base;
    int64_t d_v = a->attrs.d_v, lanes = sbp_round_up(run->positions * a->group, VL);
    for (int64_t lane = 0; lane < run->positions * a->group; lane++) {
        int64_t row = run->j + lane / a->group, head = kv * a->group + lane % a->group;
        REAL line[ATTENTION_MOST_DIMENSIONS], lse = x->m[lane] * R(LOG_2) + real_log(x->l[lane]);
        for (int64_t d = 0; d < d_v; d++) /* -0 becomes 0: what underflowed has the sign of keys not seen */
            line[d] = x->o[d * lanes + lane] / x->l[lane] + R(0);
        const cpu_view *out = f->o, *out_lse = f->lse;
        real_store_row(out->data + (row * out->stride + head * d_v) * sbp_dtype_bytes(out->dtype), out->dtype,
                       line, d_v);
        real_store_row(out_lse->data + (row * out_lse->stride + head) * sbp_dtype_bytes(out_lse->dtype),
                       out_lse->dtype, &lse, 1);
    }
}

static void real_forward_document(const real_forward *f, const attention_run *run,
                                  const real_forward_space *x, int64_t kv) {
    attention a = f->base;
    int64_t d_qk = a.attrs.d_qk, tile_keys = a.tile_keys;
    a.lanes = sbp_round_up(run->positions * a.group, VL);
    real_score_scale scale = real_find_scale(&a);
    bool several = run->hi > 0 && run->lo / tile_keys < (run->hi - 1) / tile_keys;
    REAL_CROSS_EITHER(several, cpu_attention_tiles, cpu_attention_tile);
    REAL_CROSS_IF(several && tile_keys < ATTENTION_FORWARD_KEYS, cpu_attention_cut_tile);
    REAL_CROSS_IF(a.lanes > run->positions * a.group, cpu_attention_lanes_padded);
    real_run_limits(&a, run, x->limits);
    real_load_lanes(&a, a.q, run->j, run->positions, kv * a.group * d_qk, d_qk, scale.query, x->q, NULL, 0);
    memset(x->o, 0, (size_t)(sbp_round_up(a.attrs.d_v, TILE_ROWS) * a.lanes) * sizeof *x->o);
    for (int64_t lane = 0; lane < a.lanes; lane++) {
        x->m[lane] = NOTHING_SEEN;
        x->l[lane] = 0;
    }
    for (int64_t from = run->lo, to; from < run->hi; from = to) {
        to = sbp_min_i64((from / tile_keys + 1) * tile_keys, run->hi);
        real_forward_tile(&a, run, x, &scale, kv, from, to);
    }
    real_store_forward(f, run, x, kv);
}

static void real_forward_item(void *arg, int64_t item, char *scratch) {
    const real_forward *f = arg;
    const attention *a = &f->base;
    int64_t kv = item / a->blocks, j = (a->blocks - 1 - item % a->blocks) * a->positions; /* longest first */
    int64_t end = sbp_min_i64(j + a->positions, a->q->rows);
    real_forward_space x = real_take_forward_space(a, scratch);
    while (j < end) {
        attention_run run = attention_run_at(a, j, end);
        REAL_CROSS_IF(j + run.positions < end, cpu_attention_documents);
        real_forward_document(f, &run, &x, kv);
        j += run.positions;
    }
}

static void real_run_forward(cpu_lane *lane, const cpu_command *command) {
    const cpu_view *v = command->views;
    real_forward f = {.o = &v[SBP_ATTN_FWD_O], .lse = &v[SBP_ATTN_FWD_LSE]};
    attention_init(&f.base, command, sizeof(REAL), VL, ATTENTION_FORWARD_KEYS);
    REAL_CROSS_IF(f.base.blocks > 1, cpu_attention_blocks);
    SBP_CROSS_IF(f.base.positions == 1 && f.base.q->rows > 1, cpu_attention_one_position);
    cpu_pool_run(lane->pool, f.base.blocks * f.base.attrs.kv_heads, real_forward_item, &f);
}
