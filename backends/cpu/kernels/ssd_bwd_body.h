/* ssd_bwd_body.h: ssd_bwd, in one type of arithmetic, when the states between blocks are kept; names as in
 * ir/program/commands/ssd_bwd.c. An item is a group of heads in the blocks that begin in some rows: of each
 * the heads, whose shares of dc and db are added in order. Then, an item each, heads: dstate. */

typedef struct real_ssd_backward {
    real_delta_shape s;
    real_delta_rows rows;
    /* of the group */
    REAL *b, *b_columns, *c, *dc, *db, *cb; /* cb: C B^T */
    /* of the head */
    REAL *share;
    REAL *dy, *x, *d, *d_columns, *dd; /* dY, X, D, D^T, dD */
    REAL *decays, *p, *dp;             /* dp: dY D^T, then E */
    REAL *state, *state_columns, *dstate, *dstate_columns;
    bool behind;        /* dS of the state behind the block is not 0 */
    double of_c[BLOCK]; /* gradients of the running sums of decay */
    REAL ddt[BLOCK];
} real_ssd_backward;

static void real_ssd_backward_take(const delta *d, char *scratch, real_ssd_backward *x) {
    const real_delta_shape *s = &x->s;
    REAL **const of_k[] = {&x->b, &x->c, &x->dc, &x->db, &x->share};
    REAL **const of_v[] = {&x->dy, &x->x, &x->d, &x->dd};
    REAL **const of_block[] = {&x->cb, &x->decays, &x->p, &x->dp};
    x->s = real_delta_shape_of(d);
    for (int i = 0; i < SBP_COUNT(of_k); i++)
        *of_k[i] = real_delta_take(&scratch, BLOCK, s->k_pitch);
    for (int i = 0; i < SBP_COUNT(of_v); i++)
        *of_v[i] = real_delta_take(&scratch, BLOCK, s->v_pitch);
    for (int i = 0; i < SBP_COUNT(of_block); i++)
        *of_block[i] = real_delta_take(&scratch, BLOCK, s->block_pitch);
    x->b_columns = real_delta_take(&scratch, s->d_k, s->block_pitch);
    x->d_columns = real_delta_take(&scratch, s->d_v, s->block_pitch);
    x->state = real_delta_take(&scratch, s->d_k, s->v_pitch);
    x->dstate = real_delta_take(&scratch, s->d_k, s->v_pitch);
    x->state_columns = real_delta_take(&scratch, s->d_v, s->k_pitch);
    x->dstate_columns = real_delta_take(&scratch, s->d_v, s->k_pitch);
}

/* dS of the state behind a block. */
static const char *real_ssd_dstate_behind(const delta *d, const delta_block *b, int64_t head) {
    int64_t size = d->attrs.d_k * d->attrs.d_v;
    return b->ends ? real_delta_at(d->dstate, 0, head * size)
                   : real_delta_at(d->work, (b->row + b->rows) / BLOCK, (d->attrs.heads + head) * size);
}

/* What the heads share. */
static void real_ssd_load_group(const delta *d, real_ssd_backward *x, const delta_block *b, int64_t group) {
    const real_delta_shape *s = &x->s;
    int64_t n = b->rows;
    real_delta_load(d->k, b, group * s->d_k, s->d_k, x->b, s->k_pitch);
    real_delta_load(d->q, b, group * s->d_k, s->d_k, x->c, s->k_pitch);
    real_delta_transpose(x->b, s->k_pitch, sbp_round_up(n, VL), s->k_columns, x->b_columns, s->block_pitch);
    real_delta_lower(s, n, s->d_k, x->c, s->k_pitch, x->b_columns, x->cb);
    memset(x->dc, 0, (size_t)(BLOCK * s->k_pitch) * sizeof(REAL));
    memset(x->db, 0, (size_t)(BLOCK * s->k_pitch) * sizeof(REAL));
}

static void real_ssd_load_head(const delta *d, real_ssd_backward *x, const delta_block *b, int64_t head) {
    const real_delta_shape *s = &x->s;
    int64_t n = b->rows;
    x->behind = b->ends || b->continues;
    memset(x->of_c, 0, sizeof x->of_c);
    real_delta_find_rows(d, b, head, &x->rows);
    real_delta_decays(s, &x->rows, n, x->decays);
    real_delta_decayed(s, n, x->decays, x->cb, x->p);
    real_delta_load(d->v, b, head * s->d_v, s->d_v, x->x, s->v_pitch);
    real_delta_load(d->d_o, b, head * s->d_v, s->d_v, x->dy, s->v_pitch);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < s->d_v; j++)
            x->d[i * s->v_pitch + j] = x->rows.beta[i] * x->x[i * s->v_pitch + j];
    real_delta_transpose(x->d, s->v_pitch, sbp_round_up(n, VL), s->v_columns, x->d_columns, s->block_pitch);
    if (x->behind) {
        real_delta_load_state(s, real_ssd_dstate_behind(d, b, head), x->dstate);
        real_delta_transpose(x->dstate, s->v_pitch, sbp_round_up(s->d_k, VL), s->v_columns, x->dstate_columns,
                             s->k_pitch);
    }
    if (!b->begins) {
        real_delta_load_state(s, delta_kept_state(d, b, head), x->state);
        real_delta_transpose(x->state, s->v_pitch, sbp_round_up(s->d_k, VL), s->v_columns, x->state_columns,
                             s->k_pitch);
    }
}

/* dD, and of it ddt and dX, in its place. */
static void real_ssd_find_dx(real_ssd_backward *x, int64_t n) {
    const real_delta_shape *s = &x->s;
    if (x->behind) {
        real_tiles(n, s->v_columns, s->d_k, real_tile_matrix(x->b, s->k_pitch, 1), x->dstate, s->v_pitch,
                   x->dd, s->v_pitch, false);
        for (int64_t i = 0; i < n; i++)
            real_delta_scale(x->dd + i * s->v_pitch, s->d_v, x->rows.to_end[i]);
    }
    real_delta_by_upper(s, n, x->p, x->dy, s->v_columns, s->v_pitch, x->dd, x->behind);
    for (int64_t i = 0; i < n; i++) {
        x->ddt[i] = real_delta_dot(x->dd + i * s->v_pitch, x->x + i * s->v_pitch, s->d_v);
        real_delta_scale(x->dd + i * s->v_pitch, s->d_v, x->rows.beta[i]);
    }
}

/* E in the place of dY D^T, and what it says of the running sums. */
static void real_ssd_find_scores(real_ssd_backward *x, int64_t n) {
    const real_delta_shape *s = &x->s;
    int64_t pitch = s->block_pitch;
    real_delta_lower(s, n, s->d_v, x->dy, s->v_pitch, x->d_columns, x->dp);
    for (int64_t i = 0; i < n; i++) {
        const REAL *e = x->decays + i * pitch, *cb = x->cb + i * pitch;
        REAL *dp = x->dp + i * pitch;
        double sum = 0;
        for (int64_t j = 0; j < i; j++) {
            dp[j] *= e[j];
            double of_exponent = (double)(dp[j] * cb[j]);
            sum += of_exponent;
            x->of_c[j] -= of_exponent;
        }
        x->of_c[i] += sum;
        for (int64_t j = i + 1; j < real_delta_strip_end(i); j++)
            dp[j] = 0;
    }
}

/* The head's shares of dc and db; dY becomes diag(e^c) dY. */
static void real_ssd_add_shares(real_ssd_backward *x, const delta_block *b) {
    const real_delta_shape *s = &x->s;
    int64_t n = b->rows, pitch = s->k_pitch;
    real_delta_by_upper(s, n, x->dp, x->c, s->k_columns, pitch, x->db, true);
    real_delta_by_lower(s, n, x->dp, x->b, s->k_columns, pitch, x->dc, true);
    if (x->behind) {
        real_tiles(n, s->k_columns, s->d_v, real_tile_matrix(x->d, s->v_pitch, 1), x->dstate_columns, pitch,
                   x->share, pitch, false);
        for (int64_t i = 0; i < n; i++) {
            REAL *share = x->share + i * pitch;
            real_delta_scale(share, s->d_k, x->rows.to_end[i]);
            double of_exponent = (double)real_delta_dot(share, x->b + i * pitch, s->d_k);
            x->of_c[i] -= of_exponent;
            x->of_c[n - 1] += of_exponent;
            real_delta_add(x->db + i * pitch, share, s->d_k);
        }
    }
    if (b->begins)
        return;
    for (int64_t i = 0; i < n; i++)
        real_delta_scale(x->dy + i * s->v_pitch, s->d_v, x->rows.from_begin[i]);
    real_tiles(n, s->k_columns, s->d_v, real_tile_matrix(x->dy, s->v_pitch, 1), x->state_columns, pitch,
               x->share, pitch, false);
    for (int64_t i = 0; i < n; i++) {
        x->of_c[i] += (double)real_delta_dot(x->share + i * pitch, x->c + i * pitch, s->d_k);
        real_delta_add(x->dc + i * pitch, x->share + i * pitch, s->d_k);
    }
    double both = 0;
    for (int64_t i = 0; i < s->d_k && x->behind; i++)
        both += (double)real_delta_dot(x->dstate + i * s->v_pitch, x->state + i * s->v_pitch, s->d_v);
    x->of_c[n - 1] += (double)x->rows.whole * both;
}

static void real_ssd_back_item(void *arg, int64_t item, char *scratch) {
    const delta *d = arg;
    int64_t group = item % d->attrs.key_heads, from = item / d->attrs.key_heads * BLOCK;
    int64_t end = from + BLOCK < d->k->rows ? from + BLOCK : d->k->rows;
    real_ssd_backward x;
    real_ssd_backward_take(d, scratch, &x);
    for (delta_block b = {.row = delta_next_block(d, from)}; b.row < end; b.row += b.rows) {
        b = delta_block_at(d, b.row);
        real_ssd_load_group(d, &x, &b, group);
        for (int64_t head = group * d->group; head < (group + 1) * d->group; head++) {
            real_ssd_load_head(d, &x, &b, head);
            real_ssd_find_dx(&x, b.rows);
            if (d->dv->data)
                real_delta_store(d->dv, &b, head * x.s.d_v, x.s.d_v, x.dd, x.s.v_pitch);
            real_ssd_find_scores(&x, b.rows);
            real_ssd_add_shares(&x, &b);
            real_delta_store_columns(d, x.of_c, x.ddt, &b, head);
        }
        if (d->dq->data)
            real_delta_store(d->dq, &b, group * x.s.d_k, x.s.d_k, x.dc, x.s.k_pitch);
        if (d->dk->data)
            real_delta_store(d->dk, &b, group * x.s.d_k, x.s.d_k, x.db, x.s.k_pitch);
    }
}

/* dS of the state before the first row, when no block needs that of the one behind the last any more. */
static void real_ssd_dstate_item(void *arg, int64_t head, char *scratch) {
    const delta *d = arg;
    real_ssd_forward x = real_ssd_forward_take(d, scratch);
    delta_block b = delta_block_at(d, 0);
    char *dstate = real_delta_at(d->dstate, 0, head * x.s.d_k * x.s.d_v);
    if (b.begins) {
        memset(dstate, 0, (size_t)(x.s.d_k * x.s.d_v) * sizeof(REAL));
        return;
    }
    if (b.ends || b.continues)
        real_delta_load_state(&x.s, real_ssd_dstate_behind(d, &b, head), x.state);
    real_ssd_retreat(d, &x, &b, head);
    real_delta_store_state(&x.s, dstate, x.state);
}
