/* attention_bwd_body.h: the gradients of attention, in one type of arithmetic. See real.h, attention.h.
 *
 *   s = k q^T;  p = 2^(s - lse);  dp = v do^T;  delta = sum_d do o;  ds = p (dp - delta) [(1 - (s/cap)^2)]
 *   dv += p do;  dk += ds q;  dq^T = k^T ds                   (s and lse times log2 e, see find_scale)
 *
 * In bf16, p and ds are rounded for the products of the second line.
 *
 * An item is (kv head, key group): key tiles group, group + groups, ... . It alone adds into the dk and dv of
 * these keys, block of positions after block. Its share of dq goes to copy `group` of the workspace; a second
 * round of items adds the copies in order. Without a workspace there is one group. */

typedef struct real_backward {
    attention base;
    const cpu_view *dq, *dk, *dv, *o, *lse, *d_o;
    REAL *work; /* [groups, q.rows, heads d_qk], each block of positions as [kv head, d_qk, lanes]; NULL: none
                 */
    int64_t groups;
} real_backward;

/* What of a block an item needs. */
typedef struct real_backward_block {
    int64_t j, positions, kv;
    visible *see;
    int32_t *limits;
    OPERAND *q, *d_o;                     /* [d, lanes] */
    OPERAND *q_rows, *d_o_rows;           /* [lanes, d rounded up to whole vectors] */
    REAL *lse, *delta;                    /* [lanes] */
    REAL *dq;                             /* [d_qk, lanes] */
    REAL *s, *ds;                         /* [keys, lanes] */
    REAL *ds_keys;                        /* of bf16: ds for products over keys */
    REAL *sums;                           /* [keys, d] */
    OPERAND *k_copy, *k_columns, *v_copy; /* [keys, d] */
    real_score_scale scale;
} real_backward_block;

static void real_load_block(const real_backward *b, real_backward_block *x) {
    const attention *a = &b->base;
    int64_t d_qk = a->attrs.d_qk, d_v = a->attrs.d_v, lane = 0;
    for (int64_t p = 0; p < x->positions; p++)
        x->see[p] = attention_visible(a, x->j + p);
    real_lane_limits(a, x->see, x->positions, x->limits);
    real_load_lanes(a, a->q, x->j, x->positions, x->kv * a->group * d_qk, d_qk, x->scale.query, x->q,
                    x->q_rows, sbp_round_up(d_qk, VL));
    real_load_lanes(a, b->d_o, x->j, x->positions, x->kv * a->group * d_v, d_v, R(1), x->d_o, x->d_o_rows,
                    sbp_round_up(d_v, VL));
    for (int64_t p = 0; p < x->positions; p++)
        for (int64_t h = 0; h < a->group; h++, lane++) {
            int64_t row = x->j + p, head = x->kv * a->group + h;
            REAL line[ATTENTION_MOST_DIMENSIONS], d_o[ATTENTION_MOST_DIMENSIONS];
            const char *o = b->o->data + (row * b->o->stride + head * d_v) * sbp_dtype_bytes(b->o->dtype);
            for (int64_t ahead = 0; ahead < d_v * sbp_dtype_bytes(b->o->dtype); ahead += 64)
                __builtin_prefetch(o + 2 * b->o->stride * sbp_dtype_bytes(b->o->dtype) + ahead);
            real_load_row(line, o, b->o->dtype, d_v);
            real_load_row(d_o,
                          b->d_o->data + (row * b->d_o->stride + head * d_v) * sbp_dtype_bytes(b->d_o->dtype),
                          b->d_o->dtype, d_v);
            double delta = 0;
            for (int64_t d = 0; d < d_v; d++)
                delta += (double)line[d] * (double)d_o[d];
            x->delta[lane] = (REAL)delta;
            real_load_row(&x->lse[lane],
                          b->lse->data + (row * b->lse->stride + head) * sbp_dtype_bytes(b->lse->dtype),
                          b->lse->dtype, 1);
            x->lse[lane] *= R(LOG2_E);
        }
    for (; lane < a->lanes; lane++) { /* p = 0 in the lanes that are not there */
        x->delta[lane] = 0;
        x->lse[lane] = R(1e30);
    }
    memset(x->dq, 0, (size_t)(sbp_round_up(d_qk, TILE_ROWS) * a->lanes) * sizeof(REAL));
}

/* s becomes p, dp becomes ds. */
static void real_score_gradients(REAL *restrict s, REAL *restrict ds, int64_t keys, int64_t lanes, REAL scale,
                                 const REAL *restrict lse, const REAL *restrict delta) {
    for (int64_t i = 0; i < keys; i++, s += lanes, ds += lanes)
        for (int64_t lane = 0; lane < lanes; lane++) {
            REAL p = real_power_of_2(real_score(s[lane], scale) - lse[lane]);
            s[lane] = p;
            ds[lane] = p * (ds[lane] - delta[lane]);
        }
}

static void real_soft_score_gradients(REAL *restrict s, REAL *restrict ds, int64_t keys, int64_t lanes,
                                      const REAL *restrict lse, const REAL *restrict delta, double cap) {
    REAL inverse = (REAL)(1 / (cap * LOG2_E));
    for (int64_t i = 0; i < keys; i++, s += lanes, ds += lanes)
        for (int64_t lane = 0; lane < lanes; lane++) {
            REAL t = s[lane] * inverse, p = real_power_of_2(s[lane] - lse[lane]);
            s[lane] = p;
            ds[lane] = p * (ds[lane] - delta[lane]) * (1 - t * t);
        }
}

/* out[lo + i][column + d] += scale sums[i][d] */
static void real_add_rows(const cpu_view *view, int64_t lo, int64_t keys, int64_t column, int64_t width,
                          const REAL *sums, int64_t row, REAL scale) {
    for (int64_t i = 0; i < keys; i++) {
        REAL *out = (REAL *)(void *)view->data + (lo + i) * view->stride + column;
        for (int64_t d = 0; d < width; d++)
            out[d] += scale * sums[i * row + d];
    }
}

static void real_backward_tile(const real_backward *b, const real_backward_block *x, tile_view tile) {
    const attention *a = &b->base;
    int64_t d_qk = a->attrs.d_qk, d_v = a->attrs.d_v, lanes = a->lanes, keys = tile.hi - tile.lo;
    int64_t d_qk_row = sbp_round_up(d_qk, VL), d_v_row = sbp_round_up(d_v, VL);
    attention_keys rows = attention_key_rows(tile.lo, tile.hi);
    real_tile_operand k = real_key_rows(a->k, &rows, x->kv * d_qk, d_qk, x->k_copy);
    real_tile_operand v = real_key_rows(a->v, &rows, x->kv * d_v, d_v, x->v_copy);
    real_tiles(keys, lanes, real_steps(d_qk), k, x->q, lanes, x->s, lanes, false);
    real_tiles(keys, lanes, real_steps(d_v), v, x->d_o, lanes, x->ds, lanes, false);
    if (a->attrs.softcap > 0)
        real_soften(x->s, keys * lanes, x->scale.soft, a->attrs.softcap);
    if (!tile.whole) /* far below: p is 0 */
        real_mask(a, x->limits, tile.lo, keys, x->s, R(-1e30));
    if (a->attrs.softcap > 0)
        real_soft_score_gradients(x->s, x->ds, keys, lanes, x->lse, x->delta, a->attrs.softcap);
    else
        real_score_gradients(x->s, x->ds, keys, lanes, x->scale.score, x->lse, x->delta);
    if (a->attrs.softcap > 0 && !tile.whole) /* 0 times a square that overflowed */
        real_mask(a, x->limits, tile.lo, keys, x->ds, 0);
    const OPERAND *ds_keys = real_key_operand(x->ds, keys, lanes, x->ds_keys);
    real_tiles(keys, d_v_row, real_steps(lanes), real_lane_operand(x->s, keys, lanes), x->d_o_rows, d_v_row,
               x->sums, d_v_row, false);
    real_add_rows(b->dv, tile.lo, keys, x->kv * d_v, d_v, x->sums, d_v_row, R(1));
    real_tiles(keys, d_qk_row, real_steps(lanes), real_lane_operand(x->ds, keys, lanes), x->q_rows, d_qk_row,
               x->sums, d_qk_row, false);
    real_add_rows(b->dk, tile.lo, keys, x->kv * d_qk, d_qk, x->sums, d_qk_row, R(a->attrs.scale));
    real_tile_operand k_columns = real_key_columns(&k, a->k, &rows, x->kv * d_qk, d_qk, x->k_columns);
    real_tiles(d_qk, lanes, real_steps(keys), k_columns, ds_keys, lanes, x->dq, lanes, true);
}

static void real_store_dq(const real_backward *b, const REAL *dq, int64_t row_lanes, int64_t kv, int64_t j,
                          int64_t positions) {
    const attention *a = &b->base;
    for (int64_t lane = 0; lane < positions * a->group; lane++) {
        REAL line[ATTENTION_MOST_DIMENSIONS];
        for (int64_t d = 0; d < a->attrs.d_qk; d++)
            line[d] = dq[d * row_lanes + lane] * R(a->attrs.scale);
        int64_t row = j + lane / a->group, head = kv * a->group + lane % a->group;
        real_store_row(b->dq->data +
                           (row * b->dq->stride + head * a->attrs.d_qk) * sbp_dtype_bytes(b->dq->dtype),
                       b->dq->dtype, line, a->attrs.d_qk);
    }
}

/* [d_qk, positions group] of copy `group` for block j.. and a kv head. */
static REAL *real_work_part(const real_backward *b, int64_t group, int64_t kv, int64_t j, int64_t positions) {
    const sbp_attention_attrs *attrs = &b->base.attrs;
    return b->work + (group * b->base.q->rows + j) * attrs->heads * attrs->d_qk +
           kv * positions * b->base.group * attrs->d_qk;
}

static void real_backward_item(void *arg, int64_t item, char *scratch) {
    const real_backward *b = arg;
    const attention *a = &b->base;
    int64_t d_qk = a->attrs.d_qk, d_v = a->attrs.d_v, lanes = a->lanes, keys = a->tile_keys + TILE_ROWS;
    real_backward_block x = {.kv = item / b->groups, .scale = real_find_scale(a)};
    int64_t group = item % b->groups;
    x.see = (visible *)(void *)scratch;
    scratch += sbp_round_up(a->positions * (int64_t)sizeof *x.see, 64);
    x.limits = (int32_t *)(void *)scratch;
    scratch += sbp_round_up(4 * lanes * (int64_t)sizeof *x.limits, 64);
    x.q = real_take_operands(&scratch, real_steps(d_qk) * lanes);
    x.d_o = real_take_operands(&scratch, real_steps(d_v) * lanes);
    x.q_rows = real_take_operands(&scratch, sbp_round_up(d_qk, VL) * real_steps(lanes));
    x.d_o_rows = real_take_operands(&scratch, sbp_round_up(d_v, VL) * real_steps(lanes));
    x.lse = real_take(&scratch, lanes);
    x.delta = real_take(&scratch, lanes);
    x.dq = real_take(&scratch, sbp_round_up(d_qk, TILE_ROWS) * lanes);
    x.s = real_take(&scratch, keys * lanes);
    x.ds = real_take(&scratch, keys * lanes);
#if PRODUCTS_OF_BF16
    x.ds_keys = real_take(&scratch, real_steps(keys) * lanes);
    x.k_columns = real_take_operands(&scratch, real_steps(keys) * d_qk);
#endif
    x.k_copy = real_take_operands(&scratch, keys * real_steps(d_qk));
    x.v_copy = real_take_operands(&scratch, keys * real_steps(d_v));
    x.sums = real_take(&scratch, keys * sbp_round_up(d_qk > d_v ? d_qk : d_v, VL));
    for (x.j = 0; x.j < a->q->rows; x.j += a->positions) {
        x.positions = a->q->rows - x.j < a->positions ? a->q->rows - x.j : a->positions;
        real_load_block(b, &x);
        tile_view block = attention_block(a, x.see, x.positions);
        int64_t step = a->tile_keys * b->groups;
        for (int64_t lo = group * a->tile_keys; lo < block.hi; lo += step) {
            int64_t hi = block.hi - lo < a->tile_keys ? block.hi : lo + a->tile_keys;
            tile_view tile = attention_tile(x.see, x.positions, (int32_t)lo, (int32_t)hi);
            if (tile.lo < tile.hi)
                real_backward_tile(b, &x, tile);
        }
        if (!b->work) {
            real_store_dq(b, x.dq, lanes, x.kv, x.j, x.positions);
            continue;
        }
        REAL *out = real_work_part(b, group, x.kv, x.j, x.positions);
        int64_t width = x.positions * a->group;
        for (int64_t d = 0; d < d_qk; d++)
            memcpy(out + d * width, x.dq + d * lanes, (size_t)width * sizeof(REAL));
    }
}

/* dq of one block and kv head: the copies, added in order. */
static void real_collect_item(void *arg, int64_t item, char *scratch) {
    const real_backward *b = arg;
    const attention *a = &b->base;
    int64_t kv = item / a->blocks, j = item % a->blocks * a->positions;
    int64_t positions = a->q->rows - j < a->positions ? a->q->rows - j : a->positions;
    int64_t elems = positions * a->group * a->attrs.d_qk;
    REAL *sum = real_take(&scratch, elems);
    memcpy(sum, real_work_part(b, 0, kv, j, positions), (size_t)elems * sizeof(REAL));
    for (int64_t group = 1; group < b->groups; group++) {
        const REAL *part = real_work_part(b, group, kv, j, positions);
        for (int64_t i = 0; i < elems; i++)
            sum[i] += part[i];
    }
    real_store_dq(b, sum, positions * a->group, kv, j, positions);
}

static void real_run_backward(cpu_lane *lane, const cpu_command *command) {
    const cpu_view *v = command->views, *work = &v[SBP_ATTN_BWD_WORK];
    real_backward b = {.dq = &v[SBP_ATTN_BWD_DQ],
                       .dk = &v[SBP_ATTN_BWD_DK],
                       .dv = &v[SBP_ATTN_BWD_DV],
                       .o = &v[SBP_ATTN_BWD_O],
                       .lse = &v[SBP_ATTN_BWD_LSE],
                       .d_o = &v[SBP_ATTN_BWD_DO]};
    attention_init(&b.base, command, sizeof(REAL), VL, ATTENTION_BACKWARD_KEYS);
    b.groups = 1;
    if (work->data && work->dtype == REAL_DTYPE && work->stride == work->cols) {
        b.work = (REAL *)(void *)work->data;
        b.groups = work->cols / (b.base.attrs.heads * b.base.attrs.d_qk);
        int64_t tiles = sbp_ceil_div(b.base.k->rows, b.base.tile_keys);
        b.groups = b.groups < tiles ? b.groups : tiles;
    }
    if (b.groups <= 1) {
        b.groups = 1;
        b.work = NULL;
    }
    REAL_CROSS_EITHER(b.base.k->rows > b.base.tile_keys, cpu_attention_back_tiles, cpu_attention_back_tile);
    REAL_CROSS_IF(b.base.tile_keys < ATTENTION_BACKWARD_KEYS && b.base.k->rows > b.base.tile_keys,
                  cpu_attention_back_cut_tile);
    REAL_CROSS_IF(b.base.blocks > 1, cpu_attention_back_blocks);
    REAL_CROSS_EITHER(b.work, cpu_attention_back_groups, cpu_attention_back_alone);
    cpu_pool_run(lane->pool, b.base.attrs.kv_heads * b.groups, real_backward_item, &b);
    if (b.work)
        cpu_pool_run(lane->pool, b.base.attrs.kv_heads * b.base.blocks, real_collect_item, &b);
}
