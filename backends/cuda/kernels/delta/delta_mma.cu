// delta_mma.cu: delta_rule of bf16 by mma.sync, in blocks of 64 rows of a document (BLOCK). A block of threads has V_COLUMNS
// columns of the state of a head: it goes through the rows block by block. Names: ir/program/commands/delta_rule.c.
//
// Multiply-adds of matmuls for a row of a head, of L = 64 rows a block, what lies above a diagonal in tiles of 16 left out:
//   K S, Q S, K^T D   3 d_k d_v              K K^T, Q K^T   2 (3/4) L d_k, of every block of threads: d_v / V_COLUMNS of them
//   T R, P D          2 (5/8) L d_v          T = (I + A)^-1 in fp32, by scalars: 10 + 6 products of 16 x 16 x 16 a block
// S, R and D of T R and K^T D are sums of two bf16 each, T too, and what is smaller than 2^-17 of a product is left out: so
// 2 products for K S and for K^T D, 3 for T R. P, and D beside it, are rounded to bf16; so is S in Q S.
//
// Of the state a warp has 16 rows, in registers, in fp32.
//
// Defined: V_COLUMNS. Grid: heads times d_v / V_COLUMNS. Dynamic shared memory: Memory::ALL (cuda_delta.c).

constexpr int WARPS = 8, THREADS = LANES * WARPS, STRIPS = BLOCK / 16, SLICES = D_V / V_COLUMNS;
constexpr int PARTS = V_COLUMNS % 32 == 0 ? 2 : 1, PART = V_COLUMNS / PARTS; // of columns, of a warp
constexpr int A_PITCH = BLOCK + 4;
static_assert(BLOCK == 64 && D_K <= 16 * WARPS && D_V % V_COLUMNS == 0, "as the warps share them");

typedef Tile<D_K> TileK;
typedef Tile<V_COLUMNS> TileV;
typedef Tile<BLOCK> TileBlock;

struct Memory {
    static constexpr int K = 0, Q = K + BLOCK * TileK::PITCH, S = Q + BLOCK * TileK::PITCH, S_LOW = S + D_K * TileV::PITCH,
                         V = S_LOW + D_K * TileV::PITCH, R = V + BLOCK * TileV::PITCH, R_LOW = R + BLOCK * TileV::PITCH,
                         D = R_LOW + BLOCK * TileV::PITCH, T = D + BLOCK * TileV::PITCH, T_LOW = T + BLOCK * TileBlock::PITCH,
                         A = T_LOW + BLOCK * TileBlock::PITCH, NUMBERS = A + BLOCK * A_PITCH * 4,
                         ALL = NUMBERS + (int)sizeof(Numbers);
};

// ---- pairs ------------------------------------------------------------------------------------------------------------

// Two neighbours of a row as a sum of two bf16 each.
struct Split {
    unsigned high, low;
    __device__ __forceinline__ Split(float x, float y) {
        high = pack(x, y);
        low = pack(x - __uint_as_float(high << 16), y - __uint_as_float(high & 0xffff0000u));
    }
};

template <int SIZE> DEVICE unsigned *pair_at(char *tile, int row, int column) {
    return (unsigned *)(tile + Tile<SIZE>::at(row, column / 8) + column % 8 * 2);
}

// Fills a tile with rows row0 .. end - 1 of an operand; the others of BLOCK become 0. As Tile::fill, but for an endless
// compilation: NVRTC 13.0.88 does not come back from that one within a loop over blocks.
template <int SIZE, int THREADS> DEVICE void fill(unsigned tile, const Operand &from, int row0, int column, int end) {
#pragma unroll 1
    for (int i = threadIdx.x; i < BLOCK * Tile<SIZE>::PIECES; i += THREADS) {
        int row = i / Tile<SIZE>::PIECES, piece = i % Tile<SIZE>::PIECES;
        copy_async(tile + Tile<SIZE>::at(row, piece), element_address<TYPE_Q>(from, row0 + row, column) + 16 * piece,
                   row0 + row < end);
    }
}

// ---- products of a strip of 16 rows -----------------------------------------------------------------------------------

template <int N> DEVICE void clear(float (&sums)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++)
        sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0;
}

// sums += rows row0 .. of tile a [16, 16 steps] times columns of tile b [16 steps, 8 N] from `column` on
template <int LEFT, int RIGHT, int N>
DEVICE void add_product(float (&sums)[N][4], unsigned a, int row0, unsigned b, int column, int steps, int lane) {
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

// ---- T = (I + A)^-1 ---------------------------------------------------------------------------------------------------

// Of A there are the blocks of 16 x 16 below the diagonal and on it. T's on the diagonal take the place of A's; that of rows
// 16 i .. and columns 16 j .., j < i, stands in the place (j, i).
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

// By all threads: 64 a block, four columns of a row each.
DEVICE void invert(char *memory) {
    float *a = (float *)(memory + Memory::A);
    int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES, pair = threadIdx.x / 64;
    int row = threadIdx.x % 64 / 4, column = threadIdx.x % 4 * 4;
    if (warp < STRIPS)
        invert_diagonal(block_of(a, warp, warp), lane);
    __syncthreads();
    float4 own = *(const float4 *)(block_of(a, pair, pair) + row * A_PITCH + column);
    float diagonal[4] = {own.x, own.y, own.z, own.w};
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

// ---- the parts of a block ---------------------------------------------------------------------------------------------

// A, of columns that lie left of the diagonal.
DEVICE void find_a(char *memory, int strip, int part, int lane) {
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
            float x = j < i ? of.beta[i] * of.between(i, j) * sums[n][2 * half] : 0.0f;
            float y = j + 1 < i ? of.beta[i] * of.between(i, j + 1) * sums[n][2 * half + 1] : 0.0f;
            *(float2 *)(a + i * A_PITCH + j) = make_float2(x, y);
        }
}

// P, in the place of A.
DEVICE void find_p(char *memory, int strip, int part, int lane) {
    const Numbers &of = *(const Numbers *)(memory + Memory::NUMBERS);
    float sums[4][4];
    int column0 = 32 * part;
    if (column0 > 16 * strip)
        return;
    scores(sums, shared_address(memory + Memory::Q), 16 * strip, shared_address(memory + Memory::K), column0, lane);
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int i = 16 * strip + 8 * half + lane / 4, j = column0 + 8 * n + lane % 4 * 2;
            float x = j <= i ? of.between(i, j) * sums[n][2 * half] : 0.0f;
            float y = j + 1 <= i ? of.between(i, j + 1) * sums[n][2 * half + 1] : 0.0f;
            *pair_at<BLOCK>(memory + Memory::A, i, j) = pack(x, y);
        }
}

// R = diag(beta) (V - diag(e^c) K S)
DEVICE void find_r(char *memory, bool begins, int strip, int column0, int lane) {
    const Numbers &of = *(const Numbers *)(memory + Memory::NUMBERS);
    float sums[PART / 8][4];
    clear(sums);
    if (!begins) {
        unsigned k = shared_address(memory + Memory::K);
        add_product<D_K, V_COLUMNS>(sums, k, 16 * strip, shared_address(memory + Memory::S), column0, D_K / 16, lane);
        add_product<D_K, V_COLUMNS>(sums, k, 16 * strip, shared_address(memory + Memory::S_LOW), column0, D_K / 16, lane);
    }
#pragma unroll
    for (int n = 0; n < PART / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int i = 16 * strip + 8 * half + lane / 4, j = column0 + 8 * n + lane % 4 * 2;
            unsigned v = *pair_at<V_COLUMNS>(memory + Memory::V, i, j);
            float x = __uint_as_float(v << 16) - of.begin[i] * sums[n][2 * half];
            float y = __uint_as_float(v & 0xffff0000u) - of.begin[i] * sums[n][2 * half + 1];
            Split r(of.beta[i] * x, of.beta[i] * y);
            *pair_at<V_COLUMNS>(memory + Memory::R, i, j) = r.high;
            *pair_at<V_COLUMNS>(memory + Memory::R_LOW, i, j) = r.low;
        }
}

DEVICE void find_d(float (&sums)[PART / 8][4], char *memory, int strip, int column0, int lane) {
    unsigned t = shared_address(memory + Memory::T), t_low = shared_address(memory + Memory::T_LOW),
             r = shared_address(memory + Memory::R), r_low = shared_address(memory + Memory::R_LOW);
    clear(sums);
    add_product<BLOCK, V_COLUMNS>(sums, t_low, 16 * strip, r, column0, strip + 1, lane);
    add_product<BLOCK, V_COLUMNS>(sums, t, 16 * strip, r_low, column0, strip + 1, lane);
    add_product<BLOCK, V_COLUMNS>(sums, t, 16 * strip, r, column0, strip + 1, lane);
}

// D for P D, and, in the place of R, diag(e^(c_L - c)) D for the state.
DEVICE void keep_d(const float (&sums)[PART / 8][4], char *memory, int strip, int column0, int lane) {
    const Numbers &of = *(const Numbers *)(memory + Memory::NUMBERS);
#pragma unroll
    for (int n = 0; n < PART / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int i = 16 * strip + 8 * half + lane / 4, j = column0 + 8 * n + lane % 4 * 2;
            float x = sums[n][2 * half], y = sums[n][2 * half + 1];
            Split d(of.end[i] * x, of.end[i] * y);
            *pair_at<V_COLUMNS>(memory + Memory::D, i, j) = pack(x, y);
            *pair_at<V_COLUMNS>(memory + Memory::R, i, j) = d.high;
            *pair_at<V_COLUMNS>(memory + Memory::R_LOW, i, j) = d.low;
        }
}

#ifdef o_OPERAND
// O = diag(e^c) Q S + P D
DEVICE void find_o(const Args &args, char *memory, const Rows &b, int head, int strip, int slice, int column0, int lane) {
    const Numbers &of = *(const Numbers *)(memory + Memory::NUMBERS);
    float sums[PART / 8][4];
    clear(sums);
    if (!b.begins) {
        add_product<D_K, V_COLUMNS>(sums, shared_address(memory + Memory::Q), 16 * strip, shared_address(memory + Memory::S),
                                  column0, D_K / 16, lane);
#pragma unroll
        for (int n = 0; n < PART / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sums[n][i] *= of.begin[16 * strip + i / 2 * 8 + lane / 4];
    }
    add_product<BLOCK, V_COLUMNS>(sums, shared_address(memory + Memory::A), 16 * strip, shared_address(memory + Memory::D),
                                column0, strip + 1, lane);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int i = 16 * strip + 8 * half + lane / 4;
        if (i >= b.rows)
            continue;
        char *to = element_address<TYPE_Q>(args.operands[o_OPERAND], b.row0 + i,
                                           head * D_V + slice * V_COLUMNS + column0 + lane % 4 * 2);
#pragma unroll
        for (int n = 0; n < PART / 8; n++)
            *(unsigned *)(to + 16 * n) = pack(sums[n][2 * half], sums[n][2 * half + 1]);
    }
}
#endif

// ---- the state --------------------------------------------------------------------------------------------------------

struct State {
    float of[V_COLUMNS / 8][4]; // of rows 16 warp ..
};

DEVICE float2 *state_pair(u64 memory, int head, int slice, int warp, int lane, int n, int half) {
    int row = 16 * warp + 8 * half + lane / 4, column = slice * V_COLUMNS + 8 * n + lane % 4 * 2;
    return (float2 *)at_element<float>(memory + ((u64)head * STATE + (u64)row * D_V + column) * 4, 0);
}

// S <- e^(c_L) S + K^T (diag(e^(c_L - c)) D)
DEVICE void advance(State &s, char *memory, bool begins, int warp, int lane) {
    const Numbers &of = *(const Numbers *)(memory + Memory::NUMBERS);
    float factor = of.begin[BLOCK - 1];
#pragma unroll
    for (int n = 0; n < V_COLUMNS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s.of[n][i] = begins ? 0.0f : s.of[n][i] * factor;
    unsigned k = TileK::beside(right_address<D_K>(shared_address(memory + Memory::K), lane), 0, warp), d[V_COLUMNS / 16];
#pragma unroll
    for (int n = 0; n < V_COLUMNS / 16; n++)
        d[n] = TileV::beside(left_address<V_COLUMNS>(shared_address(memory + Memory::R), lane), 0, n);
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
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) kernel(const __grid_constant__ Args args) {
    extern __shared__ __align__(1024) char memory[];
    const Delta c(args);
    int head = blockIdx.x / SLICES, slice = blockIdx.x % SLICES;
    int warp = threadIdx.x / LANES, lane = threadIdx.x % LANES, strip = warp % STRIPS, part = warp / STRIPS;
    int column0 = part * PART;
    bool has_part = part < PARTS, has_state = warp < D_K / 16;
    State s;
#pragma unroll
    for (int n = 0; n < V_COLUMNS / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float2 x = make_float2(0.0f, 0.0f);
            if (has_state)
                x = *state_pair(args.operands[state_OPERAND].address, head, slice, warp, lane, n, half);
            s.of[n][2 * half] = x.x;
            s.of[n][2 * half + 1] = x.y;
        }
#pragma unroll 1
    for (int row0 = 0; row0 < c.rows;) {
        Rows b = rows_at(c, row0, lane);
        int end = b.row0 + b.rows;
        __syncthreads(); // tiles of the block before are done with
        fill<D_K, THREADS>(shared_address(memory + Memory::K), args.operands[k_OPERAND], b.row0,
                                    head / c.group * D_K, end);
#ifdef o_OPERAND
        fill<D_K, THREADS>(shared_address(memory + Memory::Q), args.operands[q_OPERAND], b.row0,
                                    head / c.group * D_K, end);
#endif
        fill<V_COLUMNS, THREADS>(shared_address(memory + Memory::V), args.operands[v_OPERAND], b.row0,
                                    head * D_V + slice * V_COLUMNS, end);
        copy_commit();
        if (warp == 0)
            find_numbers((Numbers *)(memory + Memory::NUMBERS), c, b, head, lane);
        if (has_state)
            keep_state(s, memory, warp, lane);
        copy_wait();
        __syncthreads();
        find_a(memory, strip, part, lane);
        if (has_part)
            find_r(memory, b.begins, strip, column0, lane);
        __syncthreads();
        invert(memory);
        float d[PART / 8][4];
#ifdef o_OPERAND
        find_p(memory, strip, part, lane);
#endif
        if (has_part)
            find_d(d, memory, strip, column0, lane);
        __syncthreads();
        if (has_part)
            keep_d(d, memory, strip, column0, lane);
        __syncthreads();
#ifdef o_OPERAND
        if (has_part)
            find_o(args, memory, b, head, strip, slice, column0, lane);
#endif
        if (has_state)
            advance(s, memory, b.begins, warp, lane);
        row0 = end;
    }
#ifdef next_OPERAND
    if (has_state)
#pragma unroll
        for (int n = 0; n < V_COLUMNS / 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                *state_pair(args.operands[next_OPERAND].address, head, slice, warp, lane, n, half) =
                    make_float2(s.of[n][2 * half], s.of[n][2 * half + 1]);
#endif
}
