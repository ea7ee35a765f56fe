/* tile.h: the register tile that every product is made of.
 *
 *   c[m, n] (=|+=) sum over k < depth of a[m, k] b[k, n],   m < TILE_ROWS, n < TILE_VECTORS * VL
 *
 * a is read OPERAND by OPERAND at any strides, b and c in whole vectors with their columns side by side; the
 * accumulators stay in registers. One chain of fused multiply-adds per element, in the order of k, added to c
 * at its end: the bits depend on nothing else. Pairs of bf16 are steps of the chain too: first the odd
 * product, then the even one (isa.h). Measured on Zen 4: 118 of 118 GFLOP/s (8 x 48, fp32, one core).
 *
 * A *_body.h file: see real.h. Elements of a, b and the depth are OPERANDs. */

typedef struct real_tile_operand {
    const OPERAND *data;
    int64_t row, column; /* elements to the next row (m), to the next column (k) */
    int64_t panel;       /* elements to the next TILE_ROWS rows */
} real_tile_operand;

/* Hands out parts of a thread's scratch memory. */
static inline REAL *real_take(char **scratch, int64_t elems) {
    REAL *taken = (REAL *)(void *)*scratch;
    *scratch += sbp_round_up(elems * (int64_t)sizeof(REAL), 64);
    return taken;
}

INLINE real_tile_operand real_tile_matrix(const OPERAND *data, int64_t row, int64_t column) {
    return (real_tile_operand){data, row, column, TILE_ROWS * row};
}

/* Steps of a tile along k that `depth` elements take. */
INLINE int64_t real_steps(int64_t depth) {
#if PRODUCTS_OF_BF16
    return (depth + 1) / 2 * (2 / PER_OPERAND);
#else
    return depth;
#endif
}

/* Whether a view's rows can be read as OPERANDs where they lie. */
static inline bool real_is_operand(const cpu_view *view) {
#if PRODUCTS_OF_BF16
    return CPU_HAS_DOT && view->stride % 2 == 0 && (uintptr_t)view->data % sizeof(OPERAND) == 0;
#else
    return view->dtype == REAL_DTYPE;
#endif
}

INLINE VEC real_splat(OPERAND x) {
#if PER_OPERAND > 1
    return (VEC)_mm512_set1_epi32((int32_t)x);
#elif CPU_VECTOR_BYTES == 64
#if REAL_IS_F64
    return (VEC)_mm512_set1_pd(x);
#else
    return (VEC)_mm512_set1_ps(x);
#endif
#else
    VEC v = {0};
    return v + x;
#endif
}

#if CPU_VECTOR_BYTES == 64 && !PRODUCTS_OF_BF16
/* Exchanges rows and columns of VL x VL numbers: log2 VL rounds that swap the off-diagonal halves of squares
 * of 2h, h = VL/2 .. 1. */
INLINE void real_transpose_square(VEC *rows) {
#if REAL_IS_F64
    typedef int64_t lane_number;
#else
    typedef int32_t lane_number;
#endif
#pragma GCC unroll 4
    for (int h = (int)VL / 2; h > 0; h /= 2) {
        lane_number upper[CPU_VECTOR_BYTES / sizeof(REAL)], lower[CPU_VECTOR_BYTES / sizeof(REAL)];
        for (int l = 0; l < VL; l++) { /* lanes of the second vector begin at VL */
            upper[l] = (lane_number)(l & h ? VL + l - h : l);
            lower[l] = (lane_number)(l & h ? VL + l : l + h);
        }
        __m512i pick_upper = _mm512_loadu_si512(upper), pick_lower = _mm512_loadu_si512(lower);
#pragma GCC unroll 16
        for (int i = 0; i < VL; i++) {
            if (i & h)
                continue;
            VEC a = rows[i], b = rows[i + h];
#if REAL_IS_F64
            rows[i] = (VEC)_mm512_permutex2var_pd((__m512d)a, pick_upper, (__m512d)b);
            rows[i + h] = (VEC)_mm512_permutex2var_pd((__m512d)a, pick_lower, (__m512d)b);
#else
            rows[i] = (VEC)_mm512_permutex2var_ps((__m512)a, pick_upper, (__m512)b);
            rows[i + h] = (VEC)_mm512_permutex2var_ps((__m512)a, pick_lower, (__m512)b);
#endif
        }
    }
}
#endif

/* rows <= TILE_ROWS of a exist: the last is read in place of those that do not, and c has space for all. */
INLINE void real_tile_any(const int vectors, int rows, int64_t depth, real_tile_operand a,
                          const OPERAND *restrict b, int64_t b_row, REAL *restrict c, int64_t c_row,
                          bool add) {
    VEC sum[TILE_ROWS][TILE_VECTORS];
    const OPERAND *at[TILE_ROWS];
#pragma GCC unroll 8
    for (int m = 0; m < TILE_ROWS; m++) {
        at[m] = a.data + (m < rows ? m : rows - 1) * a.row;
#pragma GCC unroll 3
        for (int v = 0; v < vectors; v++)
            sum[m][v] = (VEC){0};
    }
    int64_t offset = 0;
    for (int64_t k = 0; k < depth; k++) {
        VEC bk[TILE_VECTORS];
#pragma GCC unroll 3
        for (int v = 0; v < vectors; v++)
            bk[v] = *(const VEC_MEMORY *)(b + v * VL);
#pragma GCC unroll 8
        for (int m = 0; m < TILE_ROWS; m++) {
            VEC am = real_splat(at[m][offset]);
#pragma GCC unroll 3
            for (int v = 0; v < vectors; v++)
                sum[m][v] = VEC_DOT(am, bk[v], sum[m][v]);
        }
        offset += a.column;
        b += b_row;
    }
#pragma GCC unroll 8
    for (int m = 0; m < TILE_ROWS; m++)
#pragma GCC unroll 3
        for (int v = 0; v < vectors; v++) {
            REAL *to = c + m * c_row + v * VL;
            if (add)
                sum[m][v] += *(const VEC_MEMORY *)to;
            *(VEC_MEMORY *)to = sum[m][v];
        }
}

static __attribute__((noinline)) void real_tile3(int rows, int64_t depth, real_tile_operand a,
                                                 const OPERAND *b, int64_t b_row, REAL *c, int64_t c_row,
                                                 bool add) {
    real_tile_any(3, rows, depth, a, b, b_row, c, c_row, add);
}

static __attribute__((noinline)) void real_tile2(int rows, int64_t depth, real_tile_operand a,
                                                 const OPERAND *b, int64_t b_row, REAL *c, int64_t c_row,
                                                 bool add) {
    real_tile_any(2, rows, depth, a, b, b_row, c, c_row, add);
}

static __attribute__((noinline)) void real_tile1(int rows, int64_t depth, real_tile_operand a,
                                                 const OPERAND *b, int64_t b_row, REAL *c, int64_t c_row,
                                                 bool add) {
    real_tile_any(1, rows, depth, a, b, b_row, c, c_row, add);
}

/* The same for any number of rows and of whole vectors of columns. c has space for rows rounded up to
 * TILE_ROWS; what is written there beyond `rows` means nothing. */
static inline void real_tiles(int64_t rows, int64_t columns, int64_t depth, real_tile_operand a,
                              const OPERAND *b, int64_t b_row, REAL *c, int64_t c_row, bool add) {
    for (int64_t n = 0; n < columns;) {
        int64_t vectors = (columns - n) / VL;
        /* 3 3 .. then 2 or 1; never 3 + 1 where 2 + 2 will do */
        int64_t take = vectors == 4 || vectors == 2 ? 2 : vectors >= 3 ? 3 : 1;
        for (int64_t m = 0; m < rows; m += TILE_ROWS) {
            real_tile_operand am = a;
            am.data += m / TILE_ROWS * a.panel;
            int some = (int)(rows - m < TILE_ROWS ? rows - m : TILE_ROWS);
            REAL *cm = c + m * c_row + n;
            if (take == 3)
                real_tile3(some, depth, am, b + n, b_row, cm, c_row, add);
            else if (take == 2)
                real_tile2(some, depth, am, b + n, b_row, cm, c_row, add);
            else
                real_tile1(some, depth, am, b + n, b_row, cm, c_row, add);
        }
        n += take * VL;
    }
}
