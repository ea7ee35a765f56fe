/* delta_body.h: pieces of the delta rule in one type of arithmetic. See real.h, delta.h; names of matrices as
 * in ir/program/commands/delta_rule.c.
 *
 * Triangular matrices are products of strips of rows or of columns: what lies above the diagonal is 0 as far
 * as a strip reads it. Columns beyond those of a head, and rows beyond those of a block, mean nothing. */

#define BLOCK SBP_DELTA_BLOCK

/* Sizes of matrices, in elements. */
typedef struct real_delta_shape {
    int64_t d_k, d_v;             /* columns of a head */
    int64_t k_columns, v_columns; /* in whole vectors */
    int64_t k_pitch, v_pitch, block_pitch;
} real_delta_shape;

/* Exponentials and factors of the rows of a block. */
typedef struct real_delta_rows {
    double c[BLOCK];                                    /* the running sum of decay */
    REAL beta[BLOCK], from_begin[BLOCK], to_end[BLOCK]; /* e^c, e^(c_L - c) */
    REAL whole;                                         /* e^(c_L) */
} real_delta_rows;

static real_delta_shape real_delta_shape_of(const delta *d) {
    real_delta_shape s = {.d_k = d->attrs.d_k, .d_v = d->attrs.d_v};
    s.k_columns = sbp_round_up(s.d_k, VL);
    s.v_columns = sbp_round_up(s.d_v, VL);
    s.k_pitch = delta_pitch(s.k_columns, sizeof(REAL));
    s.v_pitch = delta_pitch(s.v_columns, sizeof(REAL));
    s.block_pitch = delta_pitch(BLOCK, sizeof(REAL));
    return s;
}

/* Takes scratch memory for a matrix of `rows` rows, rounded up to whole tiles and vectors. */
static REAL *real_delta_take(char **scratch, int64_t rows, int64_t pitch) {
    return real_take(scratch, sbp_round_up(sbp_round_up(rows, TILE_ROWS), VL) * pitch);
}

static char *real_delta_at(const cpu_view *view, int64_t row, int64_t column) {
    return view->data + (row * view->stride + column) * sbp_dtype_bytes(view->dtype);
}

static void real_delta_load(const cpu_view *view, const delta_block *b, int64_t column, int64_t count,
                            REAL *to, int64_t pitch) {
    for (int64_t i = 0; i < b->rows; i++)
        real_load_row(to + i * pitch, real_delta_at(view, b->row + i, column), view->dtype, count);
}

static void real_delta_store(const cpu_view *view, const delta_block *b, int64_t column, int64_t count,
                             const REAL *from, int64_t pitch) {
    for (int64_t i = 0; i < b->rows; i++)
        real_store_row(real_delta_at(view, b->row + i, column), view->dtype, from + i * pitch, count);
}

/* out[j][i] = in[i][j], of whole vectors of rows and columns. */
static void real_delta_transpose(const REAL *in, int64_t in_pitch, int64_t rows, int64_t columns, REAL *out,
                                 int64_t out_pitch) {
    for (int64_t i = 0; i < rows; i += VL)
        for (int64_t j = 0; j < columns; j += VL) {
#if CPU_VECTOR_BYTES == 64
            VEC square[CPU_VECTOR_BYTES / sizeof(REAL)];
            for (int64_t k = 0; k < VL; k++)
                square[k] = *(const VEC_MEMORY *)(in + (i + k) * in_pitch + j);
            real_transpose_square(square);
            for (int64_t k = 0; k < VL; k++)
                *(VEC_MEMORY *)(out + (j + k) * out_pitch + i) = square[k];
#else
            for (int64_t k = 0; k < VL; k++)
                for (int64_t l = 0; l < VL; l++)
                    out[(j + l) * out_pitch + i + k] = in[(i + k) * in_pitch + j + l];
#endif
        }
}

static void real_delta_scale(REAL *x, int64_t n, REAL factor) {
    for (int64_t j = 0; j < n; j++)
        x[j] *= factor;
}

static void real_delta_add(REAL *restrict x, const REAL *restrict y, int64_t n) {
    for (int64_t j = 0; j < n; j++)
        x[j] += y[j];
}

static REAL real_delta_dot(const REAL *x, const REAL *y, int64_t n) {
    VEC sums = {0};
    REAL sum = 0;
    int64_t j = 0;
    for (; j + VL <= n; j += VL)
        sums = VEC_FMA(*(const VEC_MEMORY *)(x + j), *(const VEC_MEMORY *)(y + j), sums);
    for (int64_t l = 0; l < VL; l++)
        sum += sums[l];
    for (; j < n; j++)
        sum += x[j] * y[j];
    return sum;
}

static REAL real_delta_number(const cpu_view *view, int64_t row, int64_t column) {
    return *(const REAL *)(const void *)real_delta_at(view, row, column);
}

static void real_delta_find_rows(const delta *d, const delta_block *b, int64_t head, real_delta_rows *rows) {
    double c = 0;
    for (int64_t i = 0; i < b->rows; i++) {
        if (i > 0 || !b->begins)
            c += (double)real_delta_number(d->decay, b->row + i, head);
        rows->c[i] = c;
        rows->beta[i] = real_delta_number(d->beta, b->row + i, head);
    }
    for (int64_t i = 0; i < b->rows; i++) {
        rows->from_begin[i] = real_exp((REAL)rows->c[i]);
        rows->to_end[i] = real_exp((REAL)(c - rows->c[i]));
    }
    rows->whole = real_exp((REAL)c);
}

/* e^(c_i - c_j), j <= i. */
static void real_delta_decays(const real_delta_shape *s, const real_delta_rows *rows, int64_t n, REAL *out) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++)
            out[i * s->block_pitch + j] = real_exp((REAL)(rows->c[i] - rows->c[j]));
}

/* c = a b of the lower triangle, and what lies beside it in strips of some rows. */
static void real_delta_lower(const real_delta_shape *s, int64_t rows, int64_t depth, const REAL *a,
                             int64_t a_pitch, const REAL *b, REAL *c) {
    for (int64_t i = 0; i < rows; i += DELTA_STRIP) {
        int64_t some = rows - i < DELTA_STRIP ? rows - i : DELTA_STRIP;
        real_tiles(some, sbp_round_up(i + some, VL), depth, real_tile_matrix(a + i * a_pitch, a_pitch, 1), b,
                   s->block_pitch, c + i * s->block_pitch, s->block_pitch, false);
    }
}

/* x += (lower triangle) y, or x = where it does not add. */
static void real_delta_by_lower(const real_delta_shape *s, int64_t rows, const REAL *lower, const REAL *y,
                                int64_t columns, int64_t pitch, REAL *x, bool add) {
    for (int64_t i = 0; i < rows; i += TILE_ROWS) {
        int64_t some = rows - i < TILE_ROWS ? rows - i : TILE_ROWS;
        real_tiles(some, columns, i + some, real_tile_matrix(lower + i * s->block_pitch, s->block_pitch, 1),
                   y, pitch, x + i * pitch, pitch, add);
    }
}

/* x += (lower triangle)^T y, or x = where it does not add. */
static void real_delta_by_upper(const real_delta_shape *s, int64_t rows, const REAL *lower, const REAL *y,
                                int64_t columns, int64_t pitch, REAL *x, bool add) {
    for (int64_t j = 0; j < rows; j += TILE_ROWS) {
        int64_t some = rows - j < TILE_ROWS ? rows - j : TILE_ROWS;
        real_tiles(some, columns, rows - j,
                   real_tile_matrix(lower + j * s->block_pitch + j, 1, s->block_pitch), y + j * pitch, pitch,
                   x + j * pitch, pitch, add);
    }
}

/* The end of the strip of a tile's rows, or columns, that holds one. */
INLINE int64_t real_delta_strip_end(int64_t i) {
    return (i | (TILE_ROWS - 1)) + 1;
}

/* -A, and 0 on the diagonal and above it. */
static void real_delta_minus_a(const real_delta_shape *s, const real_delta_rows *rows, int64_t n,
                               const REAL *decays, const REAL *products, REAL *out) {
    for (int64_t i = 0; i < n; i++, out += s->block_pitch) {
        const REAL *e = decays + i * s->block_pitch, *p = products + i * s->block_pitch;
        for (int64_t j = 0; j < i; j++)
            out[j] = -rows->beta[i] * e[j] * p[j];
        for (int64_t j = i; j < real_delta_strip_end(i); j++)
            out[j] = 0;
    }
}

/* P, or what else is a product times e^(c_i - c_j), and 0 above the diagonal. */
static void real_delta_decayed(const real_delta_shape *s, int64_t n, const REAL *decays, const REAL *products,
                               REAL *out) {
    for (int64_t i = 0; i < n; i++, out += s->block_pitch) {
        const REAL *e = decays + i * s->block_pitch, *p = products + i * s->block_pitch;
        for (int64_t j = 0; j <= i; j++)
            out[j] = e[j] * p[j];
        for (int64_t j = i + 1; j < real_delta_strip_end(i); j++)
            out[j] = 0;
    }
}

/* (I + A) x = what x holds: strips of a tile's rows, each from those before it, then within itself. */
static void real_delta_solve(const real_delta_shape *s, int64_t n, const REAL *minus_a, REAL *x) {
    int64_t pitch = s->v_pitch;
    for (int64_t i = 0; i < n; i += TILE_ROWS) {
        const REAL *a = minus_a + i * s->block_pitch;
        int64_t some = n - i < TILE_ROWS ? n - i : TILE_ROWS;
        if (i > 0)
            real_tiles(some, s->v_columns, i, real_tile_matrix(a, s->block_pitch, 1), x, pitch, x + i * pitch,
                       pitch, true);
        for (int64_t column = 0; column < s->v_columns; column += VL) {
            VEC row[TILE_ROWS];
            for (int64_t m = 0; m < some; m++) {
                row[m] = *(const VEC_MEMORY *)(x + (i + m) * pitch + column);
                for (int64_t k = 0; k < m; k++)
                    row[m] = VEC_FMA(real_splat(a[m * s->block_pitch + i + k]), row[k], row[m]);
                *(VEC_MEMORY *)(x + (i + m) * pitch + column) = row[m];
            }
        }
    }
}

/* (I + A)^T x = what x holds, from the last strip on. */
static void real_delta_solve_back(const real_delta_shape *s, int64_t n, const REAL *minus_a, REAL *x) {
    int64_t pitch = s->v_pitch;
    for (int64_t i = (n - 1) / TILE_ROWS * TILE_ROWS; i >= 0; i -= TILE_ROWS) {
        const REAL *a = minus_a + i * s->block_pitch + i;
        int64_t some = n - i < TILE_ROWS ? n - i : TILE_ROWS, behind = n - i - some;
        if (behind > 0)
            real_tiles(some, s->v_columns, behind,
                       real_tile_matrix(a + TILE_ROWS * s->block_pitch, 1, s->block_pitch),
                       x + (i + TILE_ROWS) * pitch, pitch, x + i * pitch, pitch, true);
        for (int64_t column = 0; column < s->v_columns; column += VL) {
            VEC row[TILE_ROWS];
            for (int64_t m = some - 1; m >= 0; m--) {
                row[m] = *(const VEC_MEMORY *)(x + (i + m) * pitch + column);
                for (int64_t k = m + 1; k < some; k++)
                    row[m] = VEC_FMA(real_splat(a[k * s->block_pitch + m]), row[k], row[m]);
                *(VEC_MEMORY *)(x + (i + m) * pitch + column) = row[m];
            }
        }
    }
}

/* A state of one head, in memory row after row, and with pitch. */
static void real_delta_load_state(const real_delta_shape *s, const char *from, REAL *to) {
    for (int64_t i = 0; i < s->d_k; i++)
        memcpy(to + i * s->v_pitch, from + i * s->d_v * (int64_t)sizeof(REAL), (size_t)s->d_v * sizeof(REAL));
}

static void real_delta_store_state(const real_delta_shape *s, char *to, const REAL *from) {
    for (int64_t i = 0; i < s->d_k; i++)
        memcpy(to + i * s->d_v * (int64_t)sizeof(REAL), from + i * s->v_pitch, (size_t)s->d_v * sizeof(REAL));
}

/* R: v becomes diag(beta) (V - diag(e^c) K S). products: of K and S, NULL where S is 0. */
static void real_delta_rest(const real_delta_shape *s, const real_delta_rows *rows, int64_t n,
                            const REAL *products, REAL *v) {
    for (int64_t i = 0; i < n; i++, v += s->v_pitch) {
        for (int64_t j = 0; j < s->d_v && products; j++)
            v[j] -= rows->from_begin[i] * products[i * s->v_pitch + j];
        real_delta_scale(v, s->d_v, rows->beta[i]);
    }
}

/* S behind a block, of S before it. k becomes diag(e^(c_L - c)) K. */
static void real_delta_advance(const real_delta_shape *s, const real_delta_rows *rows, const delta_block *b,
                               REAL *k, const REAL *d, REAL *state) {
    for (int64_t i = 0; i < b->rows; i++)
        real_delta_scale(k + i * s->k_pitch, s->d_k, rows->to_end[i]);
    for (int64_t i = 0; i < s->d_k && !b->begins; i++)
        real_delta_scale(state + i * s->v_pitch, s->d_v, rows->whole);
    real_tiles(s->d_k, s->v_columns, b->rows, real_tile_matrix(k, 1, s->k_pitch), d, s->v_pitch, state,
               s->v_pitch, !b->begins);
}

/* Stores ddecay and dbeta of a head in a block's rows. ddecay of a row is the sum of of_c over the rows from
 * it to the block's last; 0 where a document begins. */
static void real_delta_store_columns(const delta *d, const double *of_c, const REAL *dbeta,
                                     const delta_block *b, int64_t head) {
    double sum = 0;
    for (int64_t i = b->rows - 1; i >= 0; i--) {
        sum = i == 0 && b->begins ? 0 : sum + of_c[i];
        if (d->ddecay->data)
            *(REAL *)(void *)real_delta_at(d->ddecay, b->row + i, head) = (REAL)sum;
        if (d->dbeta->data)
            *(REAL *)(void *)real_delta_at(d->dbeta, b->row + i, head) = dbeta[i];
    }
}
