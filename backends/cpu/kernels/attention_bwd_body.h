/* attention_bwd_body.h: the gradients of attention, in one type of arithmetic. See real.h, attention.h.
 *
 *   s = k q^T;  p = exp(s - lse);  dp = v do^T;  delta = sum_d do o;  ds = p (dp - delta) [(1 - (s/cap)^2)]
 *   dv += p do;  dk += ds q;  dq^T = k^T ds                                      (q with the scale applied)
 *
 * An item is (kv head, key group): key tiles group, group + groups, ... . It alone adds into the dk and dv of
 * these keys, block of positions after block. Its share of dq goes to copy `group` of the workspace; a second
 * round of items adds the copies in order. Without a workspace there is one group. */

typedef struct NAME(backward) {
    attention base;
    const cpu_view *dq, *dk, *dv, *o, *lse, *d_o;
    REAL *work; /* [groups, q.rows, heads d_qk], each block of positions as [kv head, d_qk, lanes]; NULL: none
                 */
    int64_t groups;
} NAME(backward);

/* What of a block an item needs. */
typedef struct NAME(backward_block) {
    int64_t j, positions, kv;
    visible *see;
    int32_t *limits;
    REAL *q, *d_o;                /* [d, lanes] */
    REAL *q_rows, *d_o_rows;      /* [lanes, d rounded up to whole vectors] */
    REAL *lse, *delta;            /* [lanes] */
    REAL *dq;                     /* [d_qk, lanes] */
    REAL *s, *ds;                 /* [keys, lanes] */
    REAL *k_copy, *v_copy, *sums; /* [keys, d] */
} NAME(backward_block);

static void NAME(load_block)(const NAME(backward) * b, NAME(backward_block) * x) {
    const attention *a = &b->base;
    int64_t d_qk = a->attrs.d_qk, d_v = a->attrs.d_v, lane = 0;
    for (int64_t p = 0; p < x->positions; p++)
        x->see[p] = attention_visible(a, x->j + p);
    NAME(lane_limits)(a, x->see, x->positions, x->limits);
    NAME(load_lanes)
    (a, a->q, x->j, x->positions, x->kv * a->group * d_qk, d_qk, R(a->attrs.scale), x->q, x->q_rows,
     sbp_round_up(d_qk, VL));
    NAME(load_lanes)
    (a, b->d_o, x->j, x->positions, x->kv * a->group * d_v, d_v, R(1), x->d_o, x->d_o_rows,
     sbp_round_up(d_v, VL));
    for (int64_t p = 0; p < x->positions; p++)
        for (int64_t h = 0; h < a->group; h++, lane++) {
            int64_t row = x->j + p, head = x->kv * a->group + h;
            REAL line[ATTENTION_MOST_DIMENSIONS];
            NAME(load_row)
            (line, b->o->data + (row * b->o->stride + head * d_v) * sbp_dtype_bytes(b->o->dtype), b->o->dtype,
             d_v);
            const REAL *d_o = x->d_o_rows + lane * sbp_round_up(d_v, VL);
            double delta = 0;
            for (int64_t d = 0; d < d_v; d++)
                delta += (double)line[d] * (double)d_o[d];
            x->delta[lane] = (REAL)delta;
            NAME(load_row)
            (&x->lse[lane], b->lse->data + (row * b->lse->stride + head) * sbp_dtype_bytes(b->lse->dtype),
             b->lse->dtype, 1);
        }
    for (; lane < a->lanes; lane++) { /* p = 0 in the lanes that are not there */
        x->delta[lane] = 0;
        x->lse[lane] = R(1e30);
    }
    memset(x->dq, 0, (size_t)(sbp_round_up(d_qk, TILE_ROWS) * a->lanes) * sizeof(REAL));
}

/* s becomes p, dp becomes ds. */
static void NAME(score_gradients)(REAL *restrict s, REAL *restrict ds, int64_t keys, int64_t lanes,
                                  const REAL *restrict lse, const REAL *restrict delta) {
    for (int64_t i = 0; i < keys; i++, s += lanes, ds += lanes)
        for (int64_t lane = 0; lane < lanes; lane++) {
            REAL p = NAME(sbp_exp)(s[lane] - lse[lane]);
            s[lane] = p;
            ds[lane] = p * (ds[lane] - delta[lane]);
        }
}

static void NAME(soft_score_gradients)(REAL *restrict s, REAL *restrict ds, int64_t keys, int64_t lanes,
                                       const REAL *restrict lse, const REAL *restrict delta, REAL cap) {
    for (int64_t i = 0; i < keys; i++, s += lanes, ds += lanes)
        for (int64_t lane = 0; lane < lanes; lane++) {
            REAL t = s[lane] / cap, p = NAME(sbp_exp)(s[lane] - lse[lane]);
            s[lane] = p;
            ds[lane] = p * (ds[lane] - delta[lane]) * (1 - t * t);
        }
}

/* out[lo + i][column + d] += sums[i][d] */
static void NAME(add_rows)(const cpu_view *view, int64_t lo, int64_t keys, int64_t column, int64_t width,
                           const REAL *sums, int64_t row) {
    for (int64_t i = 0; i < keys; i++) {
        REAL *out = (REAL *)(void *)view->data + (lo + i) * view->stride + column;
        for (int64_t d = 0; d < width; d++)
            out[d] += sums[i * row + d];
    }
}

static void NAME(backward_tile)(const NAME(backward) * b, const NAME(backward_block) * x, tile_view tile) {
    const attention *a = &b->base;
    int64_t d_qk = a->attrs.d_qk, d_v = a->attrs.d_v, lanes = a->lanes, keys = tile.hi - tile.lo;
    int64_t d_qk_row = sbp_round_up(d_qk, VL), d_v_row = sbp_round_up(d_v, VL);
    NAME(tile_operand) k = NAME(key_rows)(a->k, tile.lo, tile.hi, x->kv * d_qk, d_qk, x->k_copy);
    NAME(tile_operand) v = NAME(key_rows)(a->v, tile.lo, tile.hi, x->kv * d_v, d_v, x->v_copy);
    NAME(tiles)(keys, lanes, d_qk, k, x->q, lanes, x->s, lanes, false);
    NAME(tiles)(keys, lanes, d_v, v, x->d_o, lanes, x->ds, lanes, false);
    if (a->attrs.softcap > 0)
        NAME(soften)(x->s, keys * lanes, R(a->attrs.softcap));
    if (!tile.whole) /* far below: p is 0 */
        NAME(mask)(a, x->limits, tile.lo, keys, x->s, R(-1e30));
    if (a->attrs.softcap > 0)
        NAME(soft_score_gradients)(x->s, x->ds, keys, lanes, x->lse, x->delta, R(a->attrs.softcap));
    else
        NAME(score_gradients)(x->s, x->ds, keys, lanes, x->lse, x->delta);
    if (a->attrs.softcap > 0 && !tile.whole) /* 0 times a square that overflowed */
        NAME(mask)(a, x->limits, tile.lo, keys, x->ds, 0);
    NAME(tiles)
    (keys, d_v_row, lanes, NAME(tile_matrix)(x->s, lanes, 1), x->d_o_rows, d_v_row, x->sums, d_v_row, false);
    NAME(add_rows)(b->dv, tile.lo, keys, x->kv * d_v, d_v, x->sums, d_v_row);
    NAME(tiles)
    (keys, d_qk_row, lanes, NAME(tile_matrix)(x->ds, lanes, 1), x->q_rows, d_qk_row, x->sums, d_qk_row,
     false);
    NAME(add_rows)(b->dk, tile.lo, keys, x->kv * d_qk, d_qk, x->sums, d_qk_row);
    NAME(tiles)(d_qk, lanes, keys, NAME(transposed)(k), x->ds, lanes, x->dq, lanes, true);
}

static void NAME(store_dq)(const NAME(backward) * b, const REAL *dq, int64_t row_lanes, int64_t kv, int64_t j,
                           int64_t positions) {
    const attention *a = &b->base;
    for (int64_t lane = 0; lane < positions * a->group; lane++) {
        REAL line[ATTENTION_MOST_DIMENSIONS];
        for (int64_t d = 0; d < a->attrs.d_qk; d++)
            line[d] = dq[d * row_lanes + lane] * R(a->attrs.scale);
        int64_t row = j + lane / a->group, head = kv * a->group + lane % a->group;
        NAME(store_row)
        (b->dq->data + (row * b->dq->stride + head * a->attrs.d_qk) * sbp_dtype_bytes(b->dq->dtype),
         b->dq->dtype, line, a->attrs.d_qk);
    }
}

/* [d_qk, positions group] of copy `group` for block j.. and a kv head. */
static REAL *NAME(work_part)(const NAME(backward) * b, int64_t group, int64_t kv, int64_t j,
                             int64_t positions) {
    const sbp_attention_attrs *attrs = &b->base.attrs;
    return b->work + (group * b->base.q->rows + j) * attrs->heads * attrs->d_qk +
           kv * positions * b->base.group * attrs->d_qk;
}

static void NAME(backward_item)(void *arg, int64_t item, char *scratch) {
    const NAME(backward) *b = arg;
    const attention *a = &b->base;
    int64_t d_qk = a->attrs.d_qk, d_v = a->attrs.d_v, lanes = a->lanes, keys = a->tile_keys + TILE_ROWS;
    NAME(backward_block) x = {.kv = item / b->groups};
    int64_t group = item % b->groups;
    x.see = (visible *)(void *)scratch;
    scratch += sbp_round_up(a->positions * (int64_t)sizeof *x.see, 64);
    x.limits = (int32_t *)(void *)scratch;
    scratch += sbp_round_up(4 * lanes * (int64_t)sizeof *x.limits, 64);
    x.q = NAME(take)(&scratch, d_qk * lanes);
    x.d_o = NAME(take)(&scratch, d_v * lanes);
    x.q_rows = NAME(take)(&scratch, sbp_round_up(d_qk, VL) * lanes);
    x.d_o_rows = NAME(take)(&scratch, sbp_round_up(d_v, VL) * lanes);
    x.lse = NAME(take)(&scratch, lanes);
    x.delta = NAME(take)(&scratch, lanes);
    x.dq = NAME(take)(&scratch, sbp_round_up(d_qk, TILE_ROWS) * lanes);
    x.s = NAME(take)(&scratch, keys * lanes);
    x.ds = NAME(take)(&scratch, keys * lanes);
    x.k_copy = NAME(take)(&scratch, keys * d_qk);
    x.v_copy = NAME(take)(&scratch, keys * d_v);
    x.sums = NAME(take)(&scratch, keys * sbp_round_up(d_qk > d_v ? d_qk : d_v, VL));
    for (x.j = 0; x.j < a->q->rows; x.j += a->positions) {
        x.positions = a->q->rows - x.j < a->positions ? a->q->rows - x.j : a->positions;
        NAME(load_block)(b, &x);
        tile_view block = attention_block(a, x.see, x.positions);
        int64_t step = a->tile_keys * b->groups;
        for (int64_t lo = group * a->tile_keys; lo < block.hi; lo += step) {
            int64_t hi = block.hi - lo < a->tile_keys ? block.hi : lo + a->tile_keys;
            tile_view tile = attention_tile(x.see, x.positions, (int32_t)lo, (int32_t)hi);
            if (tile.lo < tile.hi)
                NAME(backward_tile)(b, &x, tile);
        }
        if (!b->work) {
            NAME(store_dq)(b, x.dq, lanes, x.kv, x.j, x.positions);
            continue;
        }
        REAL *out = NAME(work_part)(b, group, x.kv, x.j, x.positions);
        int64_t width = x.positions * a->group;
        for (int64_t d = 0; d < d_qk; d++)
            memcpy(out + d * width, x.dq + d * lanes, (size_t)width * sizeof(REAL));
    }
}

/* dq of one block and kv head: the copies, added in order. */
static void NAME(collect_item)(void *arg, int64_t item, char *scratch) {
    const NAME(backward) *b = arg;
    const attention *a = &b->base;
    int64_t kv = item / a->blocks, j = item % a->blocks * a->positions;
    int64_t positions = a->q->rows - j < a->positions ? a->q->rows - j : a->positions;
    int64_t elems = positions * a->group * a->attrs.d_qk;
    REAL *sum = NAME(take)(&scratch, elems);
    memcpy(sum, NAME(work_part)(b, 0, kv, j, positions), (size_t)elems * sizeof(REAL));
    for (int64_t group = 1; group < b->groups; group++) {
        const REAL *part = NAME(work_part)(b, group, kv, j, positions);
        for (int64_t i = 0; i < elems; i++)
            sum[i] += part[i];
    }
    NAME(store_dq)(b, sum, positions * a->group, kv, j, positions);
}

static void NAME(run_backward)(cpu_lane *lane, const cpu_command *command) {
    const cpu_view *v = command->views; /* dq dk dv q k v o lse do first shared_end own work? */
    NAME(backward) b = {.dq = &v[0], .dk = &v[1], .dv = &v[2], .o = &v[6], .lse = &v[7], .d_o = &v[8]};
    attention_init(&b.base, command, &v[3], &v[9], sizeof(REAL), VL, ATTENTION_BACKWARD_KEYS);
    b.groups = 1;
    if (v[12].data && v[12].dtype == REAL_DTYPE && v[12].stride == v[12].cols) {
        b.work = (REAL *)(void *)v[12].data;
        b.groups = v[12].cols / (b.base.attrs.heads * b.base.attrs.d_qk);
        int64_t tiles = sbp_ceil_div(b.base.k->rows, b.base.tile_keys);
        b.groups = b.groups < tiles ? b.groups : tiles;
    }
    if (b.groups <= 1) {
        b.groups = 1;
        b.work = NULL;
    }
    cpu_pool_run(lane->pool, b.base.attrs.kv_heads * b.groups, NAME(backward_item), &b);
    if (b.work)
        cpu_pool_run(lane->pool, b.base.attrs.kv_heads * b.base.blocks, NAME(collect_item), &b);
}
