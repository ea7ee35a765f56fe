// mma_block.cuh: of the delta rule's kernels for tensor cores: what a block of threads has in shared memory,
// products of tiles, (I + A)^-1, the state of a head.
//
// Defined: V_COLUMNS (of a state, of a block of threads). Dynamic shared memory: Memory::ALL (cuda_delta.c).

constexpr int WARPS = 8, THREADS = LANES * WARPS, STRIPS = BLOCK / 16, SLICES = D_V / V_COLUMNS;
constexpr int PARTS = V_COLUMNS % 32 == 0 ? 2 : 1, PART = V_COLUMNS / PARTS; // of columns, of a warp
constexpr int A_PITCH = BLOCK + 4;
static_assert(BLOCK == 64 && D_K <= 16 * WARPS && D_V % V_COLUMNS == 0, "as the warps share them");

typedef Tile<D_K> TileK;
typedef Tile<V_COLUMNS> TileV;
typedef Tile<BLOCK> TileBlock;

#ifdef do_OPERAND
constexpr int D_TILES = 2; // diag(e^c) dO is a sum of two
#else
constexpr int D_TILES = 1;
#endif

// Tiles in shared memory: X and X_LOW are a sum, or one behind the other. S has a third part, in the place of
// T, which comes when S was multiplied with K.
struct Memory {
    static constexpr int K = 0, Q = K + BLOCK * TileK::PITCH, S = Q + BLOCK * TileK::PITCH, S_LOW = S + D_K * TileV::PITCH,
                         V = S_LOW + D_K * TileV::PITCH, R = V + BLOCK * TileV::PITCH, R_LOW = R + BLOCK * TileV::PITCH,
                         D = R_LOW + BLOCK * TileV::PITCH, T = D + D_TILES * BLOCK * TileV::PITCH,
                         T_LOW = T + BLOCK * TileBlock::PITCH, A = T_LOW + BLOCK * TileBlock::PITCH, NUMBERS = A + BLOCK * A_PITCH * 4,
                         ALL = NUMBERS + (int)sizeof(Numbers), S_LEAST = T;
};

static_assert(D_K * TileV::PITCH <= 2 * BLOCK * TileBlock::PITCH, "a part of S stands in the place of T");

// ---- pairs -----------------------------------------------------------------------------------------------

// Two neighbours of a row as a sum of two bf16 each.
struct Split {
    unsigned high, low;
    __device__ __forceinline__ Split(float x, float y) {
        high = pack(x, y);
        low = pack(x - __uint_as_float(high << 16), y - __uint_as_float(high & 0xffff0000u));
    }
    // What is left of them.
    __device__ __forceinline__ unsigned least(float x, float y) const {
        return pack(x - __uint_as_float(high << 16) - __uint_as_float(low << 16),
                    y - __uint_as_float(high & 0xffff0000u) - __uint_as_float(low & 0xffff0000u));
    }
};

template <int SIZE> DEVICE unsigned *pair_at(char *tile, int row, int column) {
    return (unsigned *)(tile + Tile<SIZE>::at(row, column / 8) + column % 8 * 2);
}

// Fills a tile with rows row0 .. end - 1 of an operand; the others of BLOCK become 0. As Tile::fill, but for
// an endless compilation: NVRTC 13.0.88 does not come back from that one within a loop over blocks.
template <int SIZE, int THREADS> DEVICE void fill(unsigned tile, const Operand &from, int row0, int column, int end) {
#pragma unroll 1
    for (int i = threadIdx.x; i < BLOCK * Tile<SIZE>::PIECES; i += THREADS) {
        int row = i / Tile<SIZE>::PIECES, piece = i % Tile<SIZE>::PIECES;
        copy_async(tile + Tile<SIZE>::at(row, piece), element_address<TYPE_Q>(from, row0 + row, column) + 16 * piece,
                   row0 + row < end);
    }
}

// ---- products of a strip of 16 rows ----------------------------------------------------------------------

template <int N> DEVICE void clear(float (&sums)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++)
        sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0;
}

// sums += rows row0 .. of tile a [16, 16 steps] times columns of tile b [16 steps, 8 columns]
// from `column` on
template <int LEFT, int RIGHT, int N>
DEVICE void add_product(float (&sums)[N][4], unsigned a, int row0, unsigned b, int column, int steps, int lane, int columns = N) {
    unsigned left_base = left_address<LEFT>(a + row0 * Tile<LEFT>::PITCH, lane), right_base[N / 2];
#pragma unroll
    for (int n = 0; n < N / 2; n++)
        right_base[n] = Tile<RIGHT>::beside(left_address<RIGHT>(b, lane), 0, column / 16 + n);
#pragma unroll
    for (int step = 0; step < LEFT / 16; step++) {
        if (step >= steps)
            break;
        unsigned left[4];
        load_matrices(left, Tile<LEFT>::beside(left_base, 0, step));
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            if (n >= columns)
                break;
            unsigned right[4];
            load_matrices_transposed(right, right_base[n / 2] + 16 * step * Tile<RIGHT>::PITCH);
            multiply(sums[n], left, right[0], right[1]);
            multiply(sums[n + 1], left, right[2], right[3]);
        }
    }
}

// sums += rows row0 .. of the transpose of tile a [16 steps, LEFT] times 8 `columns` columns of tile b from
// `column` on, of steps from `first` on
template <int LEFT, int RIGHT, int N>
DEVICE void add_transposed(float (&sums)[N][4], unsigned a, int row0, unsigned b, int column, int first, int lane, int columns = N) {
    unsigned left_base = Tile<LEFT>::beside(right_address<LEFT>(a, lane), 0, row0 / 16), right_base[N / 2];
#pragma unroll
    for (int n = 0; n < N / 2; n++)
        right_base[n] = Tile<RIGHT>::beside(left_address<RIGHT>(b, lane), 0, column / 16 + n);
#pragma unroll
    for (int step = 0; step < STRIPS; step++) {
        if (step < first)
            continue;
        unsigned left[4];
        load_matrices_transposed(left, left_base + 16 * step * Tile<LEFT>::PITCH);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            if (n >= columns)
                break;
            unsigned right[4];
            load_matrices_transposed(right, right_base[n / 2] + 16 * step * Tile<RIGHT>::PITCH);
            multiply(sums[n], left, right[0], right[1]);
            multiply(sums[n + 1], left, right[2], right[3]);
        }
    }
}

// sums = rows row0 .. of tile a times rows from `column` on of tile b: [16, D_K] x [8 N, D_K]^T
template <int N> DEVICE void scores(float (&sums)[N][4], unsigned a, int row0, unsigned b, int column, int lane) {
    clear(sums);
    unsigned left_base = left_address<D_K>(a + row0 * TileK::PITCH, lane),
             right_base = right_address<D_K>(b + column * TileK::PITCH, lane);
#pragma unroll
    for (int step = 0; step < D_K / 16; step++) {
        unsigned left[4];
        load_matrices(left, TileK::beside(left_base, 0, step));
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            unsigned right[4];
            load_matrices(right, TileK::beside(right_base, 8 * n, step));
            multiply(sums[n], left, right[0], right[1]);
            multiply(sums[n + 1], left, right[2], right[3]);
        }
    }
}

// ---- T = (I + A)^-1 --------------------------------------------------------------------------------------

// A block of A: those of 16 x 16 below the diagonal and on it are kept. T's on the diagonal take the place of
// A's; T's of rows 16 i .. and columns 16 j .., j < i, stands in the place (j, i).
DEVICE float *block_of(float *a, int i, int j) {
    return a + 16 * i * A_PITCH + 16 * j;
}

// A lane per column.
DEVICE void invert_diagonal(float *a, int lane) {
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        x[i] = i == lane ? 1.0f : 0.0f;
#pragma unroll
        for (int j = 0; j < i; j++)
            x[i] -= a[i * A_PITCH + j] * x[j];
    }
    __syncwarp();
    if (lane < 16)
#pragma unroll
        for (int i = 0; i < 16; i++)
            a[i * A_PITCH + lane] = x[i];
}

// to += left [16, 16] right [16, 16], of row `row` the columns from `column` on
DEVICE void add_block(float (&to)[4], const float *left, const float *right, int row, int column) {
#pragma unroll
    for (int k = 0; k < 16; k += 4) {
        float4 l = *(const float4 *)(left + row * A_PITCH + k);
        float ls[4] = {l.x, l.y, l.z, l.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float4 r = *(const float4 *)(right + (k + i) * A_PITCH + column);
            to[0] += ls[i] * r.x;
            to[1] += ls[i] * r.y;
            to[2] += ls[i] * r.z;
            to[3] += ls[i] * r.w;
        }
    }
}

DEVICE void store_inverse(char *memory, int row, int column, const float (&x)[4]) {
    Split first(x[0], x[1]), second(x[2], x[3]);
    *(uint2 *)pair_at<BLOCK>(memory + Memory::T, row, column) = make_uint2(first.high, second.high);
    *(uint2 *)pair_at<BLOCK>(memory + Memory::T_LOW, row, column) = make_uint2(first.low, second.low);
}

// By all threads: 64 a block, four columns of a row each. What is stored is T - I, whose factor need not be
// rounded for I.
DEVICE void invert(char *memory) {
    float *a = (float *)(memory + Memory::A);
    int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES, pair = threadIdx.x / 64;
    int row = threadIdx.x % 64 / 4, column = threadIdx.x % 4 * 4;
    if (warp < STRIPS)
        invert_diagonal(block_of(a, warp, warp), lane);
    __syncthreads();
    float4 own = *(const float4 *)(block_of(a, pair, pair) + row * A_PITCH + column);
    float diagonal[4] = {own.x, own.y, own.z, own.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
        diagonal[i] -= row == column + i ? 1.0f : 0.0f;
    store_inverse(memory, 16 * pair + row, 16 * pair + column, diagonal);
#pragma unroll 1
    for (int distance = 1; distance < STRIPS; distance++) {
        int j = pair, i = pair + distance;
        bool has = i < STRIPS;
        float *to = block_of(a, j, i) + row * A_PITCH + column;
        float x[4] = {0, 0, 0, 0};
        if (has) {
#pragma unroll 1
            for (int k = j; k < i; k++)
                add_block(x, block_of(a, i, k), block_of(a, j, k), row, column);
            *(float4 *)to = make_float4(x[0], x[1], x[2], x[3]);
        }
        __syncthreads();
        float t[4] = {0, 0, 0, 0};
        if (has)
            add_block(t, block_of(a, i, i), block_of(a, j, i), row, column);
        __syncthreads();
        if (has) {
            float minus[4] = {-t[0], -t[1], -t[2], -t[3]};
            *(float4 *)to = make_float4(minus[0], minus[1], minus[2], minus[3]);
            store_inverse(memory, 16 * i + row, 16 * j + column, minus);
        }
        __syncthreads();
    }
}

// ---- A and the state -------------------------------------------------------------------------------------

// A, of columns that lie left of the diagonal; of_columns: with the beta of columns in place of rows, so that
// (I + A)^-1 R is of R, and the result, without beta.
DEVICE void find_a(char *memory, bool of_columns, int strip, int part, int lane) {
    const Numbers &of = *(const Numbers *)(memory + Memory::NUMBERS);
    float *a = (float *)(memory + Memory::A), sums[4][4];
    int column0 = 32 * part;
    if (column0 > 16 * strip)
        return;
    unsigned k = shared_address(memory + Memory::K);
    scores(sums, k, 16 * strip, k, column0, lane);
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int i = 16 * strip + 8 * half + lane / 4, j = column0 + 8 * n + lane % 4 * 2;
            float x = j < i ? of.beta[of_columns ? j : i] * of.between(i, j) * sums[n][2 * half] : 0.0f;
            float y = j + 1 < i ? of.beta[of_columns ? j + 1 : i] * of.between(i, j + 1) * sums[n][2 * half + 1] : 0.0f;
            *(float2 *)(a + i * A_PITCH + j) = make_float2(x, y);
        }
}

struct State {
    float of[V_COLUMNS / 8][4]; // of rows 16 warp ..
};

DEVICE float2 *state_pair(u64 memory, int head, int slice, int warp, int lane, int n, int half) {
    int row = 16 * warp + 8 * half + lane / 4, column = slice * V_COLUMNS + 8 * n + lane % 4 * 2;
    return (float2 *)at_element<float>(memory + ((u64)head * STATE + (u64)row * D_V + column) * 4, 0);
}

DEVICE void load_state(State &s, u64 memory, int head, int slice, int warp, int lane) {
#pragma unroll
    for (int n = 0; n < V_COLUMNS / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float2 x = make_float2(0.0f, 0.0f);
            if (warp < D_K / 16)
                x = *state_pair(memory, head, slice, warp, lane, n, half);
            s.of[n][2 * half] = x.x;
            s.of[n][2 * half + 1] = x.y;
        }
}

DEVICE void store_state(const State &s, u64 memory, int head, int slice, int warp, int lane) {
    if (warp < D_K / 16)
#pragma unroll
        for (int n = 0; n < V_COLUMNS / 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                *state_pair(memory, head, slice, warp, lane, n, half) = make_float2(s.of[n][2 * half], s.of[n][2 * half + 1]);
}

// S <- e^(c_L) S; nothing where it is that of another document.
DEVICE void decay_state(State &s, char *memory, bool is_there) {
    const Numbers &of = *(const Numbers *)(memory + Memory::NUMBERS);
    float factor = of.begin[BLOCK - 1];
#pragma unroll
    for (int n = 0; n < V_COLUMNS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s.of[n][i] = is_there ? s.of[n][i] * factor : 0.0f;
}

// S += left^T [D_K, rows] right, of a tile [rows, D_K] and the two of a sum that lie behind one another
DEVICE void add_to_state(State &s, unsigned left_tile, unsigned right_tile, int warp, int lane) {
    unsigned k = TileK::beside(right_address<D_K>(left_tile, lane), 0, warp), d[V_COLUMNS / 16];
#pragma unroll
    for (int n = 0; n < V_COLUMNS / 16; n++)
        d[n] = TileV::beside(left_address<V_COLUMNS>(right_tile, lane), 0, n);
#pragma unroll
    for (int step = 0; step < STRIPS; step++) {
        unsigned left[4];
        load_matrices_transposed(left, k + 16 * step * TileK::PITCH);
#pragma unroll
        for (int low = 1; low >= 0; low--)
#pragma unroll
            for (int n = 0; n < V_COLUMNS / 8; n += 2) {
                unsigned right[4];
                load_matrices_transposed(right, d[n / 2] + (low * BLOCK + 16 * step) * TileV::PITCH);
                multiply(s.of[n], left, right[0], right[1]);
                multiply(s.of[n + 1], left, right[2], right[3]);
            }
    }
}

DEVICE void keep_state(const State &s, char *memory, int warp, int lane) {
#pragma unroll
    for (int n = 0; n < V_COLUMNS / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int i = 16 * warp + 8 * half + lane / 4, j = 8 * n + lane % 4 * 2;
            Split x(s.of[n][2 * half], s.of[n][2 * half + 1]);
            *pair_at<V_COLUMNS>(memory + Memory::S, i, j) = x.high;
            *pair_at<V_COLUMNS>(memory + Memory::S_LOW, i, j) = x.low;
            *pair_at<V_COLUMNS>(memory + Memory::S_LEAST, i, j) = x.least(s.of[n][2 * half], s.of[n][2 * half + 1]);
        }
}

// ---- D, or E, which D is beta times: to the same bits wherever a state is made ---------------------------

// Where a thread stands: a strip of 16 rows, of which PART columns; a lane has two rows of it, two
// columns of eight each.
struct Place {
    int head, slice, warp, lane, strip, part, column0;
    bool has_part, has_state;
    __device__ __forceinline__ Place(int block) {
        head = block / SLICES;
        slice = block % SLICES;
        warp = threadIdx.x / LANES;
        lane = threadIdx.x % LANES;
        strip = warp % STRIPS;
        part = warp / STRIPS;
        column0 = part * PART;
        has_part = part < PARTS;
        has_state = warp < D_K / 16;
    }
    __device__ __forceinline__ int row(int half) const {
        return 16 * strip + 8 * half + lane / 4;
    }
    __device__ __forceinline__ int column(int n) const {
        return column0 + 8 * n + lane % 4 * 2;
    }
    // Likewise, counted from the head's first column.
    __device__ __forceinline__ int column_of_head(int n) const {
        return slice * V_COLUMNS + column(n);
    }
};

DEVICE unsigned tile(char *memory, int at) {
    return shared_address(memory + at);
}

// Two tiles of sums, each times a number of its row.
DEVICE void keep(const float (&sums)[PART / 8][4], char *memory, int high, int low, const float (&factors)[2], const Place &p) {
#pragma unroll
    for (int n = 0; n < PART / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            Split x(factors[half] * sums[n][2 * half], factors[half] * sums[n][2 * half + 1]);
            *pair_at<V_COLUMNS>(memory + high, p.row(half), p.column(n)) = x.high;
            *pair_at<V_COLUMNS>(memory + low, p.row(half), p.column(n)) = x.low;
        }
}

// sums, which are R: (I + A)^-1 R, or of the transpose.
template <bool TRANSPOSED> DEVICE void solve(float (&sums)[PART / 8][4], char *memory, const Place &p) {
    unsigned t[3] = {tile(memory, Memory::T_LOW), tile(memory, Memory::T), tile(memory, Memory::T)},
             r[3] = {tile(memory, Memory::R), tile(memory, Memory::R_LOW), tile(memory, Memory::R)};
#pragma unroll
    for (int i = 0; i < 3; i++)
        if (TRANSPOSED)
            add_transposed<BLOCK, V_COLUMNS>(sums, t[i], 16 * p.strip, r[i], p.column0, p.strip, p.lane);
        else
            add_product<BLOCK, V_COLUMNS>(sums, t[i], 16 * p.strip, r[i], p.column0, p.strip + 1, p.lane);
}

// sums += K S, or K dS
DEVICE void add_state_rows(float (&sums)[PART / 8][4], char *memory, const Place &p) {
    unsigned k = tile(memory, Memory::K), s = tile(memory, Memory::S), s_low = tile(memory, Memory::S_LOW),
             s_least = tile(memory, Memory::S_LEAST);
    add_product<D_K, V_COLUMNS>(sums, k, 16 * p.strip, s_least, p.column0, D_K / 16, p.lane);
    add_product<D_K, V_COLUMNS>(sums, k, 16 * p.strip, s_low, p.column0, D_K / 16, p.lane);
    add_product<D_K, V_COLUMNS>(sums, k, 16 * p.strip, s, p.column0, D_K / 16, p.lane);
}

// V - diag(e^c) K S
DEVICE void find_rest(float (&sums)[PART / 8][4], char *memory, bool begins, const Place &p) {
    const Numbers &of = *(const Numbers *)(memory + Memory::NUMBERS);
    const float ones[2] = {1.0f, 1.0f};
    clear(sums);
    if (!begins) {
        add_state_rows(sums, memory, p);
    }
#pragma unroll
    for (int n = 0; n < PART / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            unsigned v = *pair_at<V_COLUMNS>(memory + Memory::V, p.row(half), p.column(n));
            float factor = of.begin[p.row(half)];
            sums[n][2 * half] = __uint_as_float(v << 16) - factor * sums[n][2 * half];
            sums[n][2 * half + 1] = __uint_as_float(v & 0xffff0000u) - factor * sums[n][2 * half + 1];
        }
    keep(sums, memory, Memory::R, Memory::R_LOW, ones, p);
}

// diag(e^(c_L - c)) D, for the state.
DEVICE void keep_for_state(const float (&e)[PART / 8][4], char *memory, const Place &p) {
    const Numbers &of = *(const Numbers *)(memory + Memory::NUMBERS);
    const float factors[2] = {of.beta[p.row(0)] * of.end[p.row(0)], of.beta[p.row(1)] * of.end[p.row(1)]};
    keep(e, memory, Memory::R, Memory::R_LOW, factors, p);
}
