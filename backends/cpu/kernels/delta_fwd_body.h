/* delta_fwd_body.h: delta_rule, and the states that delta_rule_bwd keeps, in one type of arithmetic. An item
 * is a head of v: its blocks one after the other. */

typedef struct real_delta_forward {
    real_delta_shape s;
    real_delta_rows rows;
    REAL *k, *k_columns, *q, *d, *o, *state; /* K, its transpose, Q, D, O, S */
    REAL *decays, *products, *minus_a, *p;   /* [BLOCK, BLOCK] */
} real_delta_forward;

static real_delta_forward real_delta_forward_take(const delta *d, char *scratch) {
    real_delta_forward x = {.s = real_delta_shape_of(d)};
    const real_delta_shape *s = &x.s;
    x.state = real_delta_take(&scratch, s->d_k, s->v_pitch);
    x.k = real_delta_take(&scratch, BLOCK, s->k_pitch);
    x.q = real_delta_take(&scratch, BLOCK, s->k_pitch);
    x.k_columns = real_delta_take(&scratch, s->d_k, s->block_pitch);
    x.d = real_delta_take(&scratch, BLOCK, s->v_pitch);
    x.o = real_delta_take(&scratch, BLOCK, s->v_pitch);
    x.decays = real_delta_take(&scratch, BLOCK, s->block_pitch);
    x.products = real_delta_take(&scratch, BLOCK, s->block_pitch);
    x.minus_a = real_delta_take(&scratch, BLOCK, s->block_pitch);
    x.p = real_delta_take(&scratch, BLOCK, s->block_pitch);
    return x;
}

/* e^(c_i - c_j) of a block, and the transpose of K. */
static void real_delta_find_decays(real_delta_forward *x, int64_t n) {
    const real_delta_shape *s = &x->s;
    real_delta_decays(s, &x->rows, n, x->decays);
    real_delta_transpose(x->k, s->k_pitch, sbp_round_up(n, VL), s->k_columns, x->k_columns, s->block_pitch);
}

/* K and D of a block, and if it corrects, what real_delta_find_decays finds. */
static void real_delta_find_d(const delta *d, real_delta_forward *x, const delta_block *b, int64_t head) {
    const real_delta_shape *s = &x->s;
    int64_t n = b->rows;
    bool corrects = d->attrs.corrects;
    real_delta_find_rows(d, b, head, &x->rows);
    real_delta_load(d->k, b, head / d->group * s->d_k, s->d_k, x->k, s->k_pitch);
    real_delta_load(d->v, b, head * s->d_v, s->d_v, x->d, s->v_pitch);
    if (corrects) {
        real_delta_find_decays(x, n);
        real_delta_lower(s, n, s->d_k, x->k, s->k_pitch, x->k_columns, x->products);
        real_delta_minus_a(s, &x->rows, n, x->decays, x->products, x->minus_a);
        if (!b->begins)
            real_tiles(n, s->v_columns, s->d_k, real_tile_matrix(x->k, s->k_pitch, 1), x->state, s->v_pitch,
                       x->o, s->v_pitch, false);
    }
    real_delta_rest(s, &x->rows, n, corrects && !b->begins ? x->o : NULL, x->d);
    if (corrects)
        real_delta_solve(s, n, x->minus_a, x->d);
}

static void real_delta_find_o(const delta *d, real_delta_forward *x, const delta_block *b, int64_t head) {
    const real_delta_shape *s = &x->s;
    int64_t n = b->rows;
    if (!d->attrs.corrects)
        real_delta_find_decays(x, n);
    real_delta_load(d->q, b, head / d->group * s->d_k, s->d_k, x->q, s->k_pitch);
    real_delta_lower(s, n, s->d_k, x->q, s->k_pitch, x->k_columns, x->products);
    real_delta_decayed(s, n, x->decays, x->products, x->p);
    if (!b->begins) {
        for (int64_t i = 0; i < n; i++)
            real_delta_scale(x->q + i * s->k_pitch, s->d_k, x->rows.from_begin[i]);
        real_tiles(n, s->v_columns, s->d_k, real_tile_matrix(x->q, s->k_pitch, 1), x->state, s->v_pitch, x->o,
                   s->v_pitch, false);
    }
    real_delta_by_lower(s, n, x->p, x->d, s->v_columns, s->v_pitch, x->o, !b->begins);
    real_delta_store(d->o, b, head * s->d_v, s->d_v, x->o, s->v_pitch);
}

static void real_delta_item(void *arg, int64_t head, char *scratch) {
    const delta *d = arg;
    real_delta_forward x = real_delta_forward_take(d, scratch);
    int64_t at = head * x.s.d_k * x.s.d_v, end = 0;
    real_delta_load_state(&x.s, real_delta_at(d->state, 0, at), x.state);
    while (end < d->k->rows) {
        delta_block b = delta_block_at(d, end);
        bool advances = b.continues || (b.ends && d->next->data);
        if (d->o->data || advances)
            real_delta_find_d(d, &x, &b, head);
        if (d->o->data)
            real_delta_find_o(d, &x, &b, head);
        if (advances)
            real_delta_advance(&x.s, &x.rows, &b, x.k, x.d, x.state);
        end = b.row + b.rows;
    }
    if (d->next->data)
        real_delta_store_state(&x.s, real_delta_at(d->next, 0, at), x.state);
}

/* dS of the state before a block that does not begin a document, where nothing is corrected. */
static void real_delta_retreat(const delta *d, real_delta_forward *x, const delta_block *b, int64_t head) {
    const real_delta_shape *s = &x->s;
    bool behind = b->ends || b->continues; /* there is a state behind it */
    real_delta_find_rows(d, b, head, &x->rows);
    real_delta_load(d->q, b, head / d->group * s->d_k, s->d_k, x->q, s->k_pitch);
    real_delta_load(d->d_o, b, head * s->d_v, s->d_v, x->o, s->v_pitch);
    for (int64_t i = 0; i < b->rows; i++)
        real_delta_scale(x->q + i * s->k_pitch, s->d_k, x->rows.from_begin[i]);
    for (int64_t i = 0; i < s->d_k && behind; i++)
        real_delta_scale(x->state + i * s->v_pitch, s->d_v, x->rows.whole);
    real_tiles(s->d_k, s->v_columns, b->rows, real_tile_matrix(x->q, 1, s->k_pitch), x->o, s->v_pitch,
               x->state, s->v_pitch, behind);
}

/* The states before blocks, kept in work; and, where nothing is corrected, dS behind the block before. */
static void real_delta_keep_item(void *arg, int64_t head, char *scratch) {
    const delta *d = arg;
    real_delta_forward x = real_delta_forward_take(d, scratch);
    int64_t size = x.s.d_k * x.s.d_v, at = head * size, of_cotangents = (d->attrs.heads + head) * size;
    real_delta_load_state(&x.s, real_delta_at(d->state, 0, at), x.state);
    for (delta_block b = {0}; b.row < d->k->rows; b.row += b.rows) {
        b = delta_block_at(d, b.row);
        if (b.row > 0 && !b.begins)
            real_delta_store_state(&x.s, real_delta_at(d->work, b.row / BLOCK, at), x.state);
        if (!b.continues)
            continue;
        real_delta_find_d(d, &x, &b, head);
        real_delta_advance(&x.s, &x.rows, &b, x.k, x.d, x.state);
    }
    if (d->attrs.corrects)
        return;
    real_delta_load_state(&x.s, real_delta_at(d->dstate, 0, at), x.state);
    for (delta_block b = {.row = d->k->rows}; b.row > 0;) {
        b = delta_block_before(d, b.row);
        if (b.row == 0 || b.begins)
            continue;
        real_delta_retreat(d, &x, &b, head);
        real_delta_store_state(&x.s, real_delta_at(d->work, b.row / BLOCK, of_cotangents), x.state);
    }
}
