// attention.glsl: what the three attention shaders share. A workgroup of 128 works on tiles of TILE (32)
// query rows and TILE keys: y = lane / 8 owns two rows of a tile, x = lane % 8 four columns of scores, or the
// columns x, x + 8, .. of what is accumulated. Depth is staged through shared memory DEPTH at a time.
//
// D_QK, D_V: sizes of a head. LOAD_q, q_OPERAND, q_BYTES and so on: the operands.

#if D_QK <= 8 && D_V <= 8
const int DEPTH = 8; // small heads need not be staged with zeros behind them
#elif defined(SBP_REAL_F64) || (D_QK <= 16 && D_V <= 16)
const int DEPTH = 16; // fp64 keeps to 32 KiB
#else
const int DEPTH = 32;
#endif
const int ACROSS = DEPTH / 8;
const int NOTHING = 0, SOME = 1, ALL = 2;

#ifdef SBP_REAL_F64
#define EXP sbp_exp_f64
#define LOG sbp_log_f64
#define TANH sbp_tanh_f64
#else
#define EXP sbp_exp_f32
#define LOG sbp_log_f32
#define TANH sbp_tanh_f32
#endif

// rows of two matrices, a piece of their columns
shared REAL stage_a[TILE][DEPTH + 1], stage_b[TILE][DEPTH + 1];
shared REAL weights[TILE][TILE + 1];                            // scores, probabilities, gradients of scores
shared int row_position[TILE], row_first[TILE], row_end[TILE], row_own[TILE]; // of a tile of query rows
shared bool key_seen[TILE];                                                   // by any row of the tile

int heads, kv_heads, window;
REAL scale, softcap;

void read_attributes() {
    heads = args.ints[0];
    kv_heads = args.ints[1];
    window = args.ints[2];
    scale = ARG_NUMBER(0);
    softcap = ARG_NUMBER(1);
}

// What the rows of the query tile from row0 see. Rows that do not exist see nothing. Barriers
// are the caller's.
void read_rows(Operand q, int row0) {
    if (LANE >= TILE)
        return;
    int row = row0 + int(LANE);
    bool exists = row < q.rows;
    row_position[LANE] = exists ? q.first_row + row : -1;
    row_first[LANE] = row_end[LANE] = row_own[LANE] = 0;
    if (exists) {
        row_first[LANE] = INDEX_first(row_address(args.operands[first_OPERAND], row, first_BYTES));
        row_end[LANE] = INDEX_shared_end(row_address(args.operands[shared_end_OPERAND], row, shared_end_BYTES));
        row_own[LANE] = INDEX_own(row_address(args.operands[own_OPERAND], row, own_BYTES));
    }
}

// The first key that row r sees in each of its two parts.
int own_start(int r) {
    return window > 0 ? max(row_own[r], row_position[r] - window + 1) : row_own[r];
}
int shared_start(int r) {
    int start = row_end[r] - row_own[r] + row_position[r] - window + 1;
    return window > 0 ? max(row_first[r], start) : row_first[r];
}

bool sees(int r, int key) {
    return (key >= own_start(r) && key <= row_position[r]) || (key >= shared_start(r) && key < row_end[r]);
}

// Whether rows of the tile see the keys key0 .. key0 + TILE - 1 (sequence rows).
int tile_seen(int key0) {
    int key1 = key0 + TILE - 1;
    bool some = false, all = true;
    [[dont_unroll]] for (int r = 0; r < TILE; r++) {
        int own = own_start(r), position = row_position[r], start = shared_start(r), end = row_end[r] - 1;
        bool exists = position >= 0;
        some = some || (exists && ((own <= key1 && position >= key0) || (max(start, key0) <= min(end, key1))));
        all = all && (!exists || (own <= key0 && position >= key1) || (start <= key0 && end >= key1));
    }
    return all ? ALL : some ? SOME : NOTHING;
}

// The least and the last key that rows of the tile see.
void tile_bounds(out int least, out int last) {
    least = 0x7fffffff;
    last = -1;
    [[dont_unroll]] for (int r = 0; r < TILE; r++)
        if (row_position[r] >= 0) {
            least = min(least, row_own[r] > row_first[r] ? min(own_start(r), shared_start(r)) : own_start(r));
            last = max(last, row_position[r]);
        }
}

void find_seen_keys(int key0, bool everything) {
    if (LANE >= TILE)
        return;
    bool seen = everything;
    [[dont_unroll]] for (int r = 0; r < TILE && !seen; r++)
        seen = sees(r, key0 + int(LANE));
    key_seen[LANE] = seen;
}

// Stages columns from .. from + DEPTH of TILE rows of a matrix; what does not exist or is not wanted is 0.
#define STAGE(stage, LOADER, operand, bytes, row0, head, size, from, WANTED)                                 \
    [[dont_unroll]] for (int e = int(LANE); e < TILE * DEPTH; e += 128) {                                    \
        int r = e / DEPTH, c = (from) + e % DEPTH;                                                           \
        REAL value = REAL(0.0);                                                                              \
        if ((row0) + r < operand.rows && c < (size) && (WANTED))                                             \
            value = LOADER(row_address(operand, (row0) + r, bytes), (head) * (size) + c);                    \
        stage[r][e % DEPTH] = value;                                                                         \
    }

// s[2][4] = rows of a times rows of b over `size` columns.
#define SCORES(s, LOADER_A, a, a_bytes, a_row, a_head, LOADER_B, b, b_bytes, b_row, b_head, size)            \
    [[unroll]] for (int m = 0; m < 2; m++)                                                                   \
        [[unroll]] for (int n = 0; n < 4; n++)                                                               \
            s[m][n] = REAL(0.0);                                                                             \
    for (int from = 0; from < (size); from += DEPTH) {                                                       \
        barrier();                                                                                           \
        STAGE(stage_a, LOADER_A, a, a_bytes, a_row, a_head, size, from, true)                                \
        STAGE(stage_b, LOADER_B, b, b_bytes, b_row, b_head, size, from, true)                                \
        barrier();                                                                                           \
        [[dont_unroll]] for (int c4 = 0; c4 < DEPTH; c4 += 4)                                                \
            [[unroll]] for (int c = c4; c < c4 + 4; c++) {                                                   \
                REAL p0 = stage_a[2 * y][c], p1 = stage_a[2 * y + 1][c];                                     \
                [[unroll]] for (int n = 0; n < 4; n++) {                                                     \
                    REAL b_value = stage_b[4 * x + n][c];                                                    \
                    s[0][n] = fma(p0, b_value, s[0][n]);                                                     \
                    s[1][n] = fma(p1, b_value, s[1][n]);                                                     \
                }                                                                                            \
            }                                                                                                \
    }

// Puts a tile of scores into shared memory, so that what follows is one short loop: for_elements.
#define KEEP(s, where)                                                                                       \
    [[unroll]] for (int m = 0; m < 2; m++)                                                                   \
        [[unroll]] for (int n = 0; n < 4; n++)                                                               \
            where[2 * y + m][4 * x + n] = s[m][n];
#define for_elements [[dont_unroll]] for (int e = int(LANE); e < TILE * TILE; e += 128)

// sums[2][..] += a tile of numbers times the rows of a matrix of `size` columns; begins with a barrier, so
// that they may have just been written.
#define ACCUMULATE(sums, tile, LOADER, operand, bytes, row0, head, size, WANTED)                                   \
    [[unroll]] for (int piece = 0; piece < ((size) + DEPTH - 1) / DEPTH; piece++) {                          \
        barrier();                                                                                           \
        STAGE(stage_b, LOADER, operand, bytes, row0, head, size, piece * DEPTH, WANTED)                      \
        barrier();                                                                                           \
        [[dont_unroll]] for (int k4 = 0; k4 < TILE; k4 += 4)                                                 \
            [[unroll]] for (int k_row = k4; k_row < k4 + 4; k_row++) {                                       \
                REAL p0 = tile[2 * y][k_row], p1 = tile[2 * y + 1][k_row];                                   \
                [[unroll]] for (int n = 0; n < ACROSS; n++) {                                                \
                    REAL b_value = stage_b[k_row][x + 8 * n];                                                \
                    sums[0][ACROSS * piece + n] = fma(p0, b_value, sums[0][ACROSS * piece + n]);             \
                    sums[1][ACROSS * piece + n] = fma(p1, b_value, sums[1][ACROSS * piece + n]);             \
                }                                                                                            \
            }                                                                                                \
    }

#define PIECES(size) (ACROSS * (((size) + DEPTH - 1) / DEPTH))

// A score with scale and softcap; slope: its derivative by the plain matmul, without the scale.
REAL score(REAL dot_product, out REAL slope) {
    REAL s = dot_product * scale;
    slope = REAL(1.0);
    if (softcap > REAL(0.0)) {
        REAL t = TANH(s / softcap);
        slope = REAL(1.0) - t * t;
        s = softcap * t;
    }
    return s;
}
