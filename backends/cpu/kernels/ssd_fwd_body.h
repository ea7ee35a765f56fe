/* ssd_fwd_body.h: ssd, and the states that ssd_bwd keeps, in one type of arithmetic: pieces are those of the
 * delta rule (delta_body.h), names of matrices as in ir/program/commands/ssd.c. An item is a head: its blocks
 * one after the other. */

typedef struct real_ssd_forward {
    real_delta_shape s;
    real_delta_rows rows;
    REAL *b, *b_columns, *c, *d, *y, *state; /* B, its transpose, C, D, Y or dY, S or dS */
    REAL *decays, *products, *p;             /* [BLOCK, BLOCK] */
} real_ssd_forward;

static real_ssd_forward real_ssd_forward_take(const delta *d, char *scratch) {
    real_ssd_forward x = {.s = real_delta_shape_of(d)};
    const real_delta_shape *s = &x.s;
    x.state = real_delta_take(&scratch, s->d_k, s->v_pitch);
    x.b = real_delta_take(&scratch, BLOCK, s->k_pitch);
    x.c = real_delta_take(&scratch, BLOCK, s->k_pitch);
    x.b_columns = real_delta_take(&scratch, s->d_k, s->block_pitch);
    x.d = real_delta_take(&scratch, BLOCK, s->v_pitch);
    x.y = real_delta_take(&scratch, BLOCK, s->v_pitch);
    x.decays = real_delta_take(&scratch, BLOCK, s->block_pitch);
    x.products = real_delta_take(&scratch, BLOCK, s->block_pitch);
    x.p = real_delta_take(&scratch, BLOCK, s->block_pitch);
    return x;
}

/* B and D of a block. */
static void real_ssd_find_d(const delta *d, real_ssd_forward *x, const delta_block *b, int64_t head) {
    const real_delta_shape *s = &x->s;
    real_delta_find_rows(d, b, head, &x->rows);
    real_delta_load(d->k, b, head / d->group * s->d_k, s->d_k, x->b, s->k_pitch);
    real_delta_load(d->v, b, head * s->d_v, s->d_v, x->d, s->v_pitch);
    for (int64_t i = 0; i < b->rows; i++)
        real_delta_scale(x->d + i * s->v_pitch, s->d_v, x->rows.beta[i]);
}

static void real_ssd_find_y(const delta *d, real_ssd_forward *x, const delta_block *b, int64_t head) {
    const real_delta_shape *s = &x->s;
    int64_t n = b->rows;
    real_delta_load(d->q, b, head / d->group * s->d_k, s->d_k, x->c, s->k_pitch);
    real_delta_decays(s, &x->rows, n, x->decays);
    real_delta_transpose(x->b, s->k_pitch, sbp_round_up(n, VL), s->k_columns, x->b_columns, s->block_pitch);
    real_delta_lower(s, n, s->d_k, x->c, s->k_pitch, x->b_columns, x->products);
    real_delta_decayed(s, n, x->decays, x->products, x->p);
    if (!b->begins) {
        for (int64_t i = 0; i < n; i++)
            real_delta_scale(x->c + i * s->k_pitch, s->d_k, x->rows.from_begin[i]);
        real_tiles(n, s->v_columns, s->d_k, real_tile_matrix(x->c, s->k_pitch, 1), x->state, s->v_pitch, x->y,
                   s->v_pitch, false);
    }
    real_delta_by_lower(s, n, x->p, x->d, s->v_columns, s->v_pitch, x->y, !b->begins);
    real_delta_store(d->o, b, head * s->d_v, s->d_v, x->y, s->v_pitch);
}

static void real_ssd_item(void *arg, int64_t head, char *scratch) {
    const delta *d = arg;
    real_ssd_forward x = real_ssd_forward_take(d, scratch);
    int64_t at = head * x.s.d_k * x.s.d_v;
    real_delta_load_state(&x.s, real_delta_at(d->state, 0, at), x.state);
    for (delta_block b = {0}; b.row < d->k->rows; b.row += b.rows) {
        b = delta_block_at(d, b.row);
        bool advances = b.continues || (b.ends && d->next->data);
        if (d->o->data || advances)
            real_ssd_find_d(d, &x, &b, head);
        if (d->o->data)
            real_ssd_find_y(d, &x, &b, head);
        if (advances)
            real_delta_advance(&x.s, &x.rows, &b, x.b, x.d, x.state);
    }
    if (d->next->data)
        real_delta_store_state(&x.s, real_delta_at(d->next, 0, at), x.state);
}

/* dS of the state before a block that does not begin a document. behind: there is one behind it. */
static void real_ssd_retreat(const delta *d, real_ssd_forward *x, const delta_block *b, int64_t head) {
    const real_delta_shape *s = &x->s;
    bool behind = b->ends || b->continues;
    real_delta_find_rows(d, b, head, &x->rows);
    real_delta_load(d->q, b, head / d->group * s->d_k, s->d_k, x->c, s->k_pitch);
    real_delta_load(d->d_o, b, head * s->d_v, s->d_v, x->y, s->v_pitch);
    for (int64_t i = 0; i < b->rows; i++)
        real_delta_scale(x->c + i * s->k_pitch, s->d_k, x->rows.from_begin[i]);
    for (int64_t i = 0; i < s->d_k && behind; i++)
        real_delta_scale(x->state + i * s->v_pitch, s->d_v, x->rows.whole);
    real_tiles(s->d_k, s->v_columns, b->rows, real_tile_matrix(x->c, 1, s->k_pitch), x->y, s->v_pitch,
               x->state, s->v_pitch, behind);
}

/* S before each block, and dS behind the one before it, into work. */
static void real_ssd_keep_item(void *arg, int64_t head, char *scratch) {
    const delta *d = arg;
    real_ssd_forward x = real_ssd_forward_take(d, scratch);
    int64_t size = x.s.d_k * x.s.d_v, at = head * size, of_cotangents = (d->attrs.heads + head) * size;
    real_delta_load_state(&x.s, real_delta_at(d->state, 0, at), x.state);
    for (delta_block b = {0}; b.row < d->k->rows; b.row += b.rows) {
        b = delta_block_at(d, b.row);
        if (b.row > 0 && !b.begins)
            real_delta_store_state(&x.s, real_delta_at(d->work, b.row / BLOCK, at), x.state);
        if (!b.continues)
            continue;
        real_ssd_find_d(d, &x, &b, head);
        real_delta_advance(&x.s, &x.rows, &b, x.b, x.d, x.state);
    }
    real_delta_load_state(&x.s, real_delta_at(d->dstate, 0, at), x.state);
    for (delta_block b = {.row = d->k->rows}; b.row > 0;) {
        b = delta_block_before(d, b.row);
        if (b.row == 0 || b.begins)
            continue;
        real_ssd_retreat(d, &x, &b, head);
        real_delta_store_state(&x.s, real_delta_at(d->work, b.row / BLOCK, of_cotangents), x.state);
    }
}
