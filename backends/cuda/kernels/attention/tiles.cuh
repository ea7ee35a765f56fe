// tiles.cuh: what kernels for tensor cores (sm_80 and up) are made of: tiles in shared memory, filled by
// cp.async and read by ldmatrix without bank conflicts, and products of them by mma.sync m16n8k16 with sums
// in fp32. Factors are bf16 or f16 (HALF): the type of q is that of all. element_address, F32, TYPE_Q:
// common.cuh, or delta/mma.cuh.
//
// A warp owns STRIPS strips of 16 rows of a product. In a strip, lane l holds in sums[n][0..3] the elements
//   (l/4, 8n + 2(l%4)), the one right of it, and the same two of row l/4 + 8.
// The sums of one product, packed in pairs, are the left operand of the next: so p and ds never
// leave registers.

constexpr int LANES = 32;

#if TYPE_Q == 3
#define HALF "f16"
#else
#define HALF "bf16"
#endif

// ---- instructions ----------------------------------------------------------------------------------------

__device__ __forceinline__ unsigned shared_address(const void *at) {
    return (unsigned)__cvta_generic_to_shared(at);
}

// 16 bytes, or zeros when `there` is false (then nothing is read).
__device__ __forceinline__ void copy_async(unsigned to, const void *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(__cvta_generic_to_global(from)),
                 "r"(there ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void copy_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

__device__ __forceinline__ void copy_wait() { // for all that this thread issued
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

__device__ __forceinline__ void load_matrices(unsigned (&to)[4], unsigned at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(unsigned (&to)[4], unsigned at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}

// sums[16 x 8] += a[16 x 16] b[16 x 8]
__device__ __forceinline__ void multiply(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." HALF "." HALF ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ float power_of_2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ unsigned pack(float low, float high) {
    unsigned both;
    asm("cvt.rn." HALF "x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// Two neighbours of a row, in fp32 or HALF.
template <int TYPE> __device__ __forceinline__ void store_pair(char *to, float low, float high) {
    if constexpr (TYPE == F32)
        *(float2 *)to = make_float2(low, high);
    else
        *(unsigned *)to = pack(low, high);
}

// ---- tiles in shared memory ------------------------------------------------------------------------------

// Rows of SIZE elements of 16 bits. The 8 rows that ldmatrix reads at once must lie in different banks: rows
// of whole 128 bytes have their 16-byte pieces permuted by the row number, others have 16 bytes behind them,
// which makes an odd number of pieces.
template <int SIZE> struct Tile {
    static_assert(SIZE % 16 == 0, "a head has whole steps of 16");
    static constexpr bool SWIZZLED = SIZE % 64 == 0;
    static constexpr int PIECES = SIZE / 8, PITCH = SIZE * 2 + (SWIZZLED ? 0 : 16);
    static __device__ __forceinline__ unsigned at(int row, int piece) {
        return row * PITCH + (SWIZZLED ? piece ^ (row & 7) : piece) * 16;
    }
    // Fills ROWS rows from row0 of an operand, a head's columns; rows that are not there become 0:
    // nothing is read there.
    template <int ROWS, int THREADS>
    static __device__ __forceinline__ void fill(unsigned tile, const Operand &from, int row0, int column) {
        fill<ROWS, THREADS>(tile, from, row0, column, from.rows);
    }
    // The same of rows before `end`.
    template <int ROWS, int THREADS>
    static __device__ __forceinline__ void fill(unsigned tile, const Operand &from, int row0, int column, int end) {
        int thread = threadIdx.x;
        if constexpr (THREADS % PIECES == 0) { // a thread has the same piece of every STEP-th row
            constexpr int STEP = THREADS / PIECES;
            int first = thread / PIECES, piece = thread % PIECES;
            const char *next = element_address<TYPE_Q>(from, row0 + first, column) + 16 * piece;
#pragma unroll
            for (int row = 0; row < ROWS; row += STEP) {
                if (ROWS % STEP != 0 && first + row >= ROWS)
                    break;
                copy_async(tile + at(first + row, piece), next, row0 + first + row < end);
                next += (long long)from.stride * (2 * STEP);
            }
        } else {
            // one after the other, with the piece behind each row, which nobody fills, so that no bank is met
            // twice
            constexpr int PLACES = PITCH / 16;
#pragma unroll
            for (int base = 0; base < ROWS * PLACES; base += THREADS) {
                int i = base + thread, row = i / PLACES, piece = i % PLACES;
                if (i < ROWS * PLACES && piece < PIECES)
                    copy_async(tile + at(row, piece), element_address<TYPE_Q>(from, row0 + row, column) + 16 * piece,
                               row0 + row < end);
            }
        }
    }
    // From `base`, an address within rows 0 to 15 of a tile, `rows` rows (a multiple of 8) down and 16 `step`
    // columns to the right. Where rows are swizzled they begin at multiples of 128, and what permutes them
    // stays the same.
    static __device__ __forceinline__ unsigned beside(unsigned base, int rows, int step) {
        return (SWIZZLED ? (base ^ step % 4 * 32) + step / 4 * 128 : base + step * 32) + rows * PITCH;
    }
};

// Where this lane reads the 16 x 16 piece at the beginning of a tile for the left operand, or, transposed,
// for the right one.
template <int SIZE> __device__ __forceinline__ unsigned left_address(unsigned tile, int lane) {
    return tile + Tile<SIZE>::at(lane % 16, lane / 16);
}

// The same for a right operand whose rows are the columns of the product: 16 of them, 16 deep.
template <int SIZE> __device__ __forceinline__ unsigned right_address(unsigned tile, int lane) {
    return tile + Tile<SIZE>::at(lane / 16 * 8 + lane % 8, lane / 8 % 2);
}

// ---- products --------------------------------------------------------------------------------------------

// sums = rows row0.. of tile a times the rows of tile b: [16 M, SIZE] x [8 COLUMNS, SIZE]^T
template <int SIZE, int M, int COLUMNS>
__device__ __forceinline__ void multiply_rows(float (&sums)[M][COLUMNS][4], unsigned a, int row0, unsigned b, int lane) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < COLUMNS; n++)
            sums[m][n][0] = sums[m][n][1] = sums[m][n][2] = sums[m][n][3] = 0;
    unsigned left_base = left_address<SIZE>(a + row0 * Tile<SIZE>::PITCH, lane), right_base = right_address<SIZE>(b, lane);
#pragma unroll
    for (int step = 0; step < SIZE / 16; step++) {
        unsigned left[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
            load_matrices(left[m], Tile<SIZE>::beside(left_base, 16 * m, step));
#pragma unroll
        for (int n = 0; n < COLUMNS; n += 2) {
            unsigned right[4];
            load_matrices(right, Tile<SIZE>::beside(right_base, 8 * n, step));
#pragma unroll
            for (int m = 0; m < M; m++) {
                multiply(sums[m][n], left[m], right[0], right[1]);
                multiply(sums[m][n + 1], left[m], right[2], right[3]);
            }
        }
    }
}

// sums += packed [16 M, 16 STEPS] times 8 N columns from `column` on of tile b [16 STEPS, SIZE]; column: a
// multiple of 16, of 64 where rows are swizzled.
template <int SIZE, int M, int STEPS, int N>
__device__ __forceinline__ void multiply_packed(float (&sums)[M][N][4], const unsigned (&packed)[M][STEPS][4], unsigned b,
                                                int lane, int column = 0) {
    unsigned base = left_address<SIZE>(b, lane) + column * 2;
#pragma unroll
    for (int step = 0; step < STEPS; step++)
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            unsigned right[4];
            load_matrices_transposed(right, Tile<SIZE>::beside(base, 16 * step, n / 2));
#pragma unroll
            for (int m = 0; m < M; m++) {
                multiply(sums[m][n], packed[m][step], right[0], right[1]);
                multiply(sums[m][n + 1], packed[m][step], right[2], right[3]);
            }
        }
}

// Sums of a product as the left operand of the next, rounded to HALF.
template <int M, int STEPS>
__device__ __forceinline__ void pack_sums(unsigned (&packed)[M][STEPS][4], const float (&sums)[M][2 * STEPS][4]) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int step = 0; step < STEPS; step++)
#pragma unroll
            for (int a = 0; a < 4; a++)
                packed[m][step][a] = pack(sums[m][2 * step + a / 2][a % 2 * 2], sums[m][2 * step + a / 2][a % 2 * 2 + 1]);
}
