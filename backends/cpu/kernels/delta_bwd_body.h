/* delta_bwd_body.h: delta_rule_bwd, in one type of arithmetic; names as in
 * ir/program/commands/delta_rule_bwd.c. An item is a head of k with its heads of v: blocks from the last to
 * the first, and of each the heads of v, whose shares of dq and dk are added in order.
 *
 * Where nothing is corrected, what comes back to a block is known before it (real_delta_keep_item): then an
 * item has only the blocks that begin in some rows, and dstate is left to real_delta_dstate_item. */

typedef struct real_delta_backward {
    real_delta_shape s;
    real_delta_rows rows;
    /* of the head of k */
    REAL *k, *k_columns, *q, *dq, *dk;
    REAL *kk, *qk; /* K K^T if it corrects, Q K^T */
    /* of the head of v: from k_pitch, v_pitch, block_pitch */
    REAL *share;
    REAL *d_o, *values, *ks, *d, *dr;     /* dO; what D is of; diag(e^c) K S; D; dD, dR and Y */
    REAL *d_columns;                      /* D^T */
    REAL *decays, *minus_a, *p, *da, *dp; /* da: dR D^T, then B + B^T; dp: dO D^T, then C */
    REAL *state, *state_columns, *dstate, *dstate_columns;
    bool behind; /* dS of the state behind the block is not 0 */
    double dc[BLOCK];
    REAL dbeta[BLOCK];
} real_delta_backward;

static void real_delta_backward_take(const delta *d, char *scratch, real_delta_backward *x) {
    const real_delta_shape *s = &x->s;
    REAL **const of_k[] = {&x->k, &x->q, &x->dq, &x->dk, &x->share};
    REAL **const of_v[] = {&x->d_o, &x->values, &x->ks, &x->d, &x->dr};
    REAL **const of_block[] = {&x->kk, &x->qk, &x->decays, &x->minus_a, &x->p, &x->da, &x->dp};
    x->s = real_delta_shape_of(d);
    for (int i = 0; i < SBP_COUNT(of_k); i++)
        *of_k[i] = real_delta_take(&scratch, BLOCK, s->k_pitch);
    for (int i = 0; i < SBP_COUNT(of_v); i++)
        *of_v[i] = real_delta_take(&scratch, BLOCK, s->v_pitch);
    for (int i = 0; i < SBP_COUNT(of_block); i++)
        *of_block[i] = real_delta_take(&scratch, BLOCK, s->block_pitch);
    x->k_columns = real_delta_take(&scratch, s->d_k, s->block_pitch);
    x->d_columns = real_delta_take(&scratch, s->d_v, s->block_pitch);
    x->state = real_delta_take(&scratch, s->d_k, s->v_pitch);
    x->dstate = real_delta_take(&scratch, s->d_k, s->v_pitch);
    x->state_columns = real_delta_take(&scratch, s->d_v, s->k_pitch);
    x->dstate_columns = real_delta_take(&scratch, s->d_v, s->k_pitch);
}

/* dS of the state behind a block. */
static const char *real_delta_dstate_behind(const delta *d, const delta_block *b, int64_t head) {
    int64_t size = d->attrs.d_k * d->attrs.d_v;
    return b->ends || d->attrs.corrects
               ? real_delta_at(d->dstate, 0, head * size)
               : real_delta_at(d->work, (b->row + b->rows) / BLOCK, (d->attrs.heads + head) * size);
}

/* What the heads of v share. */
static void real_delta_load_key_head(const delta *d, real_delta_backward *x, const delta_block *b,
                                     int64_t head) {
    const real_delta_shape *s = &x->s;
    int64_t n = b->rows;
    real_delta_load(d->k, b, head * s->d_k, s->d_k, x->k, s->k_pitch);
    real_delta_load(d->q, b, head * s->d_k, s->d_k, x->q, s->k_pitch);
    real_delta_transpose(x->k, s->k_pitch, sbp_round_up(n, VL), s->k_columns, x->k_columns, s->block_pitch);
    if (d->attrs.corrects)
        real_delta_lower(s, n, s->d_k, x->k, s->k_pitch, x->k_columns, x->kk);
    real_delta_lower(s, n, s->d_k, x->q, s->k_pitch, x->k_columns, x->qk);
    memset(x->dq, 0, (size_t)(BLOCK * s->k_pitch) * sizeof(REAL));
    memset(x->dk, 0, (size_t)(BLOCK * s->k_pitch) * sizeof(REAL));
}

/* The block once more: what D is of, and D. */
static void real_delta_again(const delta *d, real_delta_backward *x, const delta_block *b, int64_t head) {
    const real_delta_shape *s = &x->s;
    int64_t n = b->rows;
    bool corrects = d->attrs.corrects;
    real_delta_find_rows(d, b, head, &x->rows);
    real_delta_decays(s, &x->rows, n, x->decays);
    if (corrects)
        real_delta_minus_a(s, &x->rows, n, x->decays, x->kk, x->minus_a);
    real_delta_decayed(s, n, x->decays, x->qk, x->p);
    real_delta_load(d->v, b, head * s->d_v, s->d_v, x->values, s->v_pitch);
    real_delta_load(d->d_o, b, head * s->d_v, s->d_v, x->d_o, s->v_pitch);
    if (!b->begins) {
        real_delta_load_state(s, delta_kept_state(d, b, head), x->state);
        real_delta_transpose(x->state, s->v_pitch, sbp_round_up(s->d_k, VL), s->v_columns, x->state_columns,
                             s->k_pitch);
        if (corrects)
            real_tiles(n, s->v_columns, s->d_k, real_tile_matrix(x->k, s->k_pitch, 1), x->state, s->v_pitch,
                       x->ks, s->v_pitch, false);
    }
    for (int64_t i = 0; i < n; i++) {
        REAL *value = x->values + i * s->v_pitch, *ks = x->ks + i * s->v_pitch, *to = x->d + i * s->v_pitch;
        for (int64_t j = 0; j < s->d_v && corrects && !b->begins; j++) {
            ks[j] *= x->rows.from_begin[i];
            value[j] -= ks[j];
        }
        for (int64_t j = 0; j < s->d_v; j++)
            to[j] = value[j] * x->rows.beta[i];
    }
    if (corrects)
        real_delta_solve(s, n, x->minus_a, x->d);
    real_delta_transpose(x->d, s->v_pitch, sbp_round_up(n, VL), s->v_columns, x->d_columns, s->block_pitch);
}

/* dR, from dO and from dS of the state behind; dD where nothing is corrected. */
static void real_delta_find_dr(real_delta_backward *x, const delta_block *b, bool corrects) {
    const real_delta_shape *s = &x->s;
    int64_t n = b->rows;
    if (x->behind) {
        real_tiles(n, s->v_columns, s->d_k, real_tile_matrix(x->k, s->k_pitch, 1), x->dstate, s->v_pitch,
                   x->dr, s->v_pitch, false);
        for (int64_t i = 0; i < n; i++)
            real_delta_scale(x->dr + i * s->v_pitch, s->d_v, x->rows.to_end[i]);
    }
    real_delta_by_upper(s, n, x->p, x->d_o, s->v_columns, s->v_pitch, x->dr, x->behind);
    if (corrects)
        real_delta_solve_back(s, n, x->minus_a, x->dr);
}

/* What dA adds to gradients of row i of a block: of the products to `both`, returned of beta. B in the place
 * of dA. */
static REAL real_delta_find_b(real_delta_backward *x, int64_t i, REAL *both) {
    int64_t pitch = x->s.block_pitch;
    const REAL *e = x->decays + i * pitch, *kk = x->kk + i * pitch;
    REAL *da = x->da + i * pitch, beta = x->rows.beta[i], of_beta = 0;
    for (int64_t j = 0; j < i; j++) {
        REAL a = -da[j] * e[j], product = a * kk[j];
        both[j] = beta * product;
        of_beta += product;
        da[j] = beta * a;
    }
    da[i] = 0;
    return of_beta;
}

/* dP, and dA if it corrects: what they give dbeta and dc, and C and B + B^T in their places. */
static void real_delta_find_scores(real_delta_backward *x, int64_t n, bool corrects) {
    const real_delta_shape *s = &x->s;
    int64_t pitch = s->block_pitch;
    if (corrects)
        real_delta_lower(s, n, s->d_v, x->dr, s->v_pitch, x->d_columns, x->da);
    real_delta_lower(s, n, s->d_v, x->d_o, s->v_pitch, x->d_columns, x->dp);
    for (int64_t i = 0; i < n && i < BLOCK; i++) { /* n is no more than BLOCK, which compilers cannot see */
        const REAL *e = x->decays + i * pitch, *qk = x->qk + i * pitch;
        REAL *dp = x->dp + i * pitch, *both = x->p + i * pitch; /* P is done with */
        double of_c = 0;
        if (corrects)
            x->dbeta[i] += real_delta_find_b(x, i, both);
        for (int64_t j = 0; j < i; j++) {
            dp[j] *= e[j];
            both[j] = corrects ? both[j] + dp[j] * qk[j] : dp[j] * qk[j];
        }
        for (int64_t j = 0; j < i; j++) {
            of_c += (double)both[j];
            x->dc[j] -= (double)both[j];
        }
        x->dc[i] += of_c;
        for (int64_t j = i + 1; j < real_delta_strip_end(i); j++)
            dp[j] = 0;
    }
    for (int64_t i = 0; i < n && corrects; i++)
        for (int64_t j = 0; j < i; j++)
            x->da[j * pitch + i] = x->da[i * pitch + j];
}

/* dV into `values`; dbeta. If it corrects, dc of R, and dR becomes Y. */
static void real_delta_find_dv(real_delta_backward *x, const delta_block *b, bool corrects) {
    const real_delta_shape *s = &x->s;
    for (int64_t i = 0; i < b->rows; i++) {
        REAL *dr = x->dr + i * s->v_pitch, *values = x->values + i * s->v_pitch, beta = x->rows.beta[i];
        x->dbeta[i] += real_delta_dot(dr, values, s->d_v);
        if (corrects && !b->begins)
            x->dc[i] -= (double)(beta * real_delta_dot(dr, x->ks + i * s->v_pitch, s->d_v));
        for (int64_t j = 0; j < s->d_v; j++) {
            values[j] = beta * dr[j];
            dr[j] = -x->rows.from_begin[i] * values[j];
        }
    }
}

/* dq and dk of the block; dO becomes diag(e^c) dO. */
static void real_delta_find_dk(real_delta_backward *x, const delta_block *b, bool corrects) {
    const real_delta_shape *s = &x->s;
    int64_t n = b->rows, pitch = s->k_pitch;
    const real_tile_operand both = real_tile_matrix(x->da, s->block_pitch, 1);
    real_delta_by_upper(s, n, x->dp, x->q, s->k_columns, pitch, x->dk, true);
    if (corrects)
        real_tiles(n, s->k_columns, n, both, x->k, pitch, x->dk, pitch, true);
    real_delta_by_lower(s, n, x->dp, x->k, s->k_columns, pitch, x->dq, true);
    if (x->behind) {
        real_tiles(n, s->k_columns, s->d_v, real_tile_matrix(x->d, s->v_pitch, 1), x->dstate_columns, pitch,
                   x->share, pitch, false);
        for (int64_t i = 0; i < n; i++) {
            REAL *share = x->share + i * pitch;
            real_delta_scale(share, s->d_k, x->rows.to_end[i]);
            double of_c = (double)real_delta_dot(share, x->k + i * pitch, s->d_k);
            x->dc[i] -= of_c;
            x->dc[n - 1] += of_c;
            real_delta_add(x->dk + i * pitch, share, s->d_k);
        }
    }
    if (b->begins)
        return;
    for (int64_t i = 0; i < n; i++)
        real_delta_scale(x->d_o + i * s->v_pitch, s->d_v, x->rows.from_begin[i]);
    real_tiles(n, s->k_columns, s->d_v, real_tile_matrix(x->d_o, s->v_pitch, 1), x->state_columns, pitch,
               x->share, pitch, false);
    for (int64_t i = 0; i < n; i++) {
        x->dc[i] += (double)real_delta_dot(x->share + i * pitch, x->q + i * pitch, s->d_k);
        real_delta_add(x->dq + i * pitch, x->share + i * pitch, s->d_k);
    }
    if (corrects)
        real_tiles(n, s->k_columns, s->d_v, real_tile_matrix(x->dr, s->v_pitch, 1), x->state_columns, pitch,
                   x->dk, pitch, true);
}

/* What the state before a block that does not begin a document, and the one behind it, give dc. */
static void real_delta_find_of_states(real_delta_backward *x, int64_t n) {
    const real_delta_shape *s = &x->s;
    double of_c = 0;
    for (int64_t i = 0; i < s->d_k && x->behind; i++)
        of_c += (double)real_delta_dot(x->dstate + i * s->v_pitch, x->state + i * s->v_pitch, s->d_v);
    x->dc[n - 1] += (double)x->rows.whole * of_c;
}

/* dS of that state, if it corrects. */
static void real_delta_find_dstate(real_delta_backward *x, int64_t n) {
    const real_delta_shape *s = &x->s;
    for (int64_t i = 0; i < s->d_k && x->behind; i++)
        real_delta_scale(x->dstate + i * s->v_pitch, s->d_v, x->rows.whole);
    real_tiles(s->d_k, s->v_columns, n, real_tile_matrix(x->k, 1, s->k_pitch), x->dr, s->v_pitch, x->dstate,
               s->v_pitch, x->behind);
    real_tiles(s->d_k, s->v_columns, n, real_tile_matrix(x->q, 1, s->k_pitch), x->d_o, s->v_pitch, x->dstate,
               s->v_pitch, true);
}

static void real_delta_back_block(const delta *d, real_delta_backward *x, const delta_block *b,
                                  int64_t head) {
    const real_delta_shape *s = &x->s;
    bool corrects = d->attrs.corrects;
    char *dstate = real_delta_at(d->dstate, 0, head * s->d_k * s->d_v);
    x->behind = b->ends || b->continues;
    memset(x->dc, 0, sizeof x->dc);
    memset(x->dbeta, 0, sizeof x->dbeta);
    if (x->behind) {
        real_delta_load_state(s, real_delta_dstate_behind(d, b, head), x->dstate);
        real_delta_transpose(x->dstate, s->v_pitch, sbp_round_up(s->d_k, VL), s->v_columns, x->dstate_columns,
                             s->k_pitch);
    }
    real_delta_again(d, x, b, head);
    real_delta_find_dr(x, b, corrects);
    real_delta_find_scores(x, b->rows, corrects);
    real_delta_find_dv(x, b, corrects);
    real_delta_find_dk(x, b, corrects);
    if (d->dv->data)
        real_delta_store(d->dv, b, head * s->d_v, s->d_v, x->values, s->v_pitch);
    if (!b->begins)
        real_delta_find_of_states(x, b->rows);
    if (corrects && b->begins) {
        memset(dstate, 0, (size_t)(s->d_k * s->d_v) * sizeof(REAL));
    } else if (corrects) {
        real_delta_find_dstate(x, b->rows);
        real_delta_store_state(s, dstate, x->dstate);
    }
    real_delta_store_columns(d, x->dc, x->dbeta, b, head);
}

/* item: a head of k; where nothing is corrected, of the blocks that begin in BLOCK rows. */
static void real_delta_back_item(void *arg, int64_t item, char *scratch) {
    const delta *d = arg;
    int64_t rows = d->k->rows, key_head = item % d->attrs.key_heads, first = 0, end = rows;
    if (!d->attrs.corrects) {
        first = item / d->attrs.key_heads * BLOCK;
        end = first + BLOCK < rows ? delta_next_block(d, first + BLOCK) : rows;
        first = delta_next_block(d, first);
    }
    real_delta_backward x;
    real_delta_backward_take(d, scratch, &x);
    for (delta_block b = {.row = end}; b.row > first;) {
        b = delta_block_before(d, b.row);
        real_delta_load_key_head(d, &x, &b, key_head);
        for (int64_t h = 0; h < d->group; h++)
            real_delta_back_block(d, &x, &b, key_head * d->group + h);
        if (d->dq->data)
            real_delta_store(d->dq, &b, key_head * x.s.d_k, x.s.d_k, x.dq, x.s.k_pitch);
        if (d->dk->data)
            real_delta_store(d->dk, &b, key_head * x.s.d_k, x.s.d_k, x.dk, x.s.k_pitch);
    }
}

/* dS of the state before the first row where nothing is corrected, when no block needs that of the one behind
 * the last any more. */
static void real_delta_dstate_item(void *arg, int64_t head, char *scratch) {
    const delta *d = arg;
    real_delta_forward x = real_delta_forward_take(d, scratch);
    delta_block b = delta_block_at(d, 0);
    char *dstate = real_delta_at(d->dstate, 0, head * x.s.d_k * x.s.d_v);
    if (b.begins) {
        memset(dstate, 0, (size_t)(x.s.d_k * x.s.d_v) * sizeof(REAL));
        return;
    }
    if (b.ends || b.continues)
        real_delta_load_state(&x.s, real_delta_dstate_behind(d, &b, head), x.state);
    real_delta_retreat(d, &x, &b, head);
    real_delta_store_state(&x.s, dstate, x.state);
}
