/* conv_body.h: items of conv_rows and conv_rows_bwd, in one arithmetic (real.h): some rows of a strip of
 * channels. Sums go over taps, the nearest row first; of dw over rows. */

/* Columns of an item, and their weights as lines of a tap each. */
typedef struct real_conv_strip {
    int64_t column, n;
    REAL *weights; /* [taps][CONV_STRIP] */
    REAL *lines;   /* [CONV_LINES][CONV_STRIP]: rows, where the item puts them */
    REAL *sums;    /* [taps][CONV_STRIP] */
} real_conv_strip;

static real_conv_strip real_conv_begin(const conv *c, int64_t strip, char *scratch) {
    real_conv_strip s = {.column = strip * CONV_STRIP, .weights = (REAL *)(void *)scratch};
    s.n = c->channels - s.column < CONV_STRIP ? c->channels - s.column : CONV_STRIP;
    s.lines = s.weights + CONV_LINES * CONV_STRIP;
    s.sums = s.lines + CONV_LINES * CONV_STRIP;
    for (int64_t k = 0; k < s.n; k++) {
        REAL taps[CONV_LINES];
        real_load_row(taps, conv_row(c->w, s.column + k, 0), c->w->dtype, c->taps);
        for (int64_t tap = 0; tap < c->taps; tap++)
            s.weights[tap * CONV_STRIP + k] = taps[tap];
    }
    return s;
}

/* The weights that a row gives the one s before it. */
static const REAL *real_conv_weights(const conv *c, const real_conv_strip *s, int64_t before) {
    return s->weights + (c->taps - 1 - before) * CONV_STRIP;
}

/* The line that holds row t, which is more than -CONV_LINES. */
static REAL *real_conv_line(const real_conv_strip *s, int64_t t) {
    return s->lines + (t + CONV_LINES) % CONV_LINES * CONV_STRIP;
}

static void real_conv_add(REAL *restrict sum, const REAL *restrict a, const REAL *restrict b, int64_t n) {
    for (int64_t k = 0; k < n; k++)
        sum[k] += a[k] * b[k];
}

static void real_conv_item(void *arg, int64_t item, char *scratch) {
    const conv *c = arg;
    real_conv_strip s = real_conv_begin(c, item % c->strips, scratch);
    int64_t begin = item / c->strips * CONV_ITEM_ROWS, end = begin + CONV_ITEM_ROWS;
    end = end < c->x->rows ? end : c->x->rows;
    for (int64_t t = begin - c->taps + 1; t < begin; t++)
        real_load_row(real_conv_line(&s, t), conv_source(c, t, s.column), c->x->dtype, s.n);
    for (int64_t j = begin; j < end; j++) {
        REAL sum[CONV_STRIP] = {0};
        real_load_row(real_conv_line(&s, j), conv_source(c, j, s.column), c->x->dtype, s.n);
        if (c->bias->data)
            real_load_row(sum, conv_row(c->bias, 0, s.column), c->bias->dtype, s.n);
        int64_t seen = conv_seen(c, j);
        for (int64_t before = 0; before < seen; before++)
            real_conv_add(sum, real_conv_weights(c, &s, before), real_conv_line(&s, j - before), s.n);
        real_store_row(conv_row(c->y, j, s.column), c->y->dtype, sum, s.n);
    }
}

/* What rows behind row t give it: those of the chunk from row max(t, 0) on. dy in lines. */
static void real_conv_gather(const conv *c, const real_conv_strip *s, int64_t t, REAL *sum) {
    for (int64_t before = t < 0 ? -t : 0; before < c->taps && t + before < c->x->rows; before++)
        if (conv_seen(c, t + before) > before)
            real_conv_add(sum, real_conv_weights(c, s, before), real_conv_line(s, t + before), s->n);
}

static void real_conv_load_dy(const conv *c, const real_conv_strip *s, int64_t j) {
    if (j < c->x->rows)
        real_load_row(real_conv_line(s, j), conv_row(c->dy, j, s->column), c->dy->dtype, s->n);
}

/* dw of the rows of an item. */
static void real_conv_weight_gradients(const conv *c, const real_conv_strip *s, int64_t begin, int64_t end) {
    memset(s->sums, 0, (size_t)(c->taps * CONV_STRIP) * sizeof *s->sums);
    for (int64_t t = begin - c->taps + 1; t < begin; t++)
        real_load_row(real_conv_line(s, t), conv_source(c, t, s->column), c->x->dtype, s->n);
    for (int64_t j = begin; j < end; j++) {
        REAL dy[CONV_STRIP];
        real_load_row(dy, conv_row(c->dy, j, s->column), c->dy->dtype, s->n);
        real_load_row(real_conv_line(s, j), conv_source(c, j, s->column), c->x->dtype, s->n);
        int64_t seen = conv_seen(c, j);
        for (int64_t before = 0; before < seen; before++)
            real_conv_add(s->sums + (c->taps - 1 - before) * CONV_STRIP, dy, real_conv_line(s, j - before),
                          s->n);
    }
    REAL *to = (REAL *)(void *)conv_row(c->dw, begin / SBP_PARTIAL_ROWS, s->column * c->taps);
    for (int64_t k = 0; k < s->n; k++)
        for (int64_t tap = 0; tap < c->taps; tap++)
            to[k * c->taps + tap] = s->sums[tap * CONV_STRIP + k];
}

static void real_conv_back_item(void *arg, int64_t item, char *scratch) {
    const conv *c = arg;
    real_conv_strip s = real_conv_begin(c, item % c->strips, scratch);
    int64_t begin = item / c->strips * SBP_PARTIAL_ROWS, end = begin + SBP_PARTIAL_ROWS;
    int64_t rows = c->x->rows, kept = c->taps - 1;
    end = end < rows ? end : rows;
    if (c->dw->data)
        real_conv_weight_gradients(c, &s, begin, end);
    if (!c->dx->data)
        return;
    for (int64_t j = begin; j < begin + kept; j++)
        real_conv_load_dy(c, &s, j);
    for (int64_t t = begin; t < end; t++) {
        REAL sum[CONV_STRIP] = {0};
        real_conv_load_dy(c, &s, t + kept);
        if (t >= rows - kept) /* later chunks read it in their state */
            real_load_row(sum, conv_row(c->dstate, 0, (t - rows + kept) * c->channels + s.column),
                          c->dstate->dtype, s.n);
        real_conv_gather(c, &s, t, sum);
        real_store_row(conv_row(c->dx, t, s.column), c->dx->dtype, sum, s.n);
    }
}

/* dstate in its place, the last row first: what it reads was not written yet. */
static void real_conv_state_item(void *arg, int64_t item, char *scratch) {
    const conv *c = arg;
    real_conv_strip s = real_conv_begin(c, item, scratch);
    int64_t rows = c->x->rows, kept = c->taps - 1;
    for (int64_t j = 0; j < kept; j++)
        real_conv_load_dy(c, &s, j);
    for (int64_t k = kept - 1; k >= 0; k--) {
        REAL sum[CONV_STRIP] = {0};
        if (k >= rows) /* row k of the state before is row k - rows of the one behind */
            real_load_row(sum, conv_row(c->dstate, 0, (k - rows) * c->channels + s.column), c->dstate->dtype,
                          s.n);
        real_conv_gather(c, &s, k - kept, sum);
        real_store_row(conv_row(c->dstate, 0, k * c->channels + s.column), c->dstate->dtype, sum, s.n);
    }
}
