// mma.cuh: what the tensor-core kernels (sm_80 and up) are made of: tiles in shared memory, filled by cp.async and read by
// ldmatrix without bank conflicts, and products of them by mma.sync m16n8k16 with sums in fp32. Factors are bf16 or f16: the type
// of q (HALF) is that of k, v and do.
//
// A warp owns STRIPS strips of 16 rows of a product. Of a strip, lane l holds in sums[n][0..3] the elements
//   (l/4, 8n + 2(l%4)), the one right of it, and the same two of row l/4 + 8.
// The sums of one product, packed in pairs, are the left operand of the next: so p and ds never leave registers.

constexpr int LANES = 32;

#if TYPE_Q == 3
#define HALF "f16"
#else
#define HALF "bf16"
#endif

// ---- instructions -----------------------------------------------------------------------------------------------------

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

// 2^x of an integer of at most 0, exactly; 0 below -126.
__device__ __forceinline__ float whole_power_of_2(float x) {
    return __int_as_float(((int)fmaxf(x, -127.0f) + 127) << 23);
}

// To about 2^-22, absolute: tanh.approx is far worse.
__device__ __forceinline__ float soft_tanh(float x) {
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(power_of_2(x * (float)(2 * LOG2_E)) + 1.0f));
    return fmaf(-2.0f, inverse, 1.0f);
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

// Over the four lanes that share rows of a strip.
__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}

// ---- tiles in shared memory -------------------------------------------------------------------------------------------

// Rows of SIZE elements of 16 bits. The 8 rows that ldmatrix reads at once must lie in different banks: rows of whole 128 bytes have their
// 16-byte pieces permuted by the row number, others have 16 bytes behind them, which makes an odd number of pieces.
template <int SIZE> struct Tile {
    static_assert(SIZE % 16 == 0, "a head has whole steps of 16");
    static constexpr bool SWIZZLED = SIZE % 64 == 0;
    static constexpr int PIECES = SIZE / 8, PITCH = SIZE * 2 + (SWIZZLED ? 0 : 16);
    static __device__ __forceinline__ unsigned at(int row, int piece) {
        return row * PITCH + (SWIZZLED ? piece ^ (row & 7) : piece) * 16;
    }
    // Fills ROWS rows from row0 of an operand, a head's columns; rows that are not there become 0: nothing is read there.
    template <int ROWS, int THREADS>
    static __device__ __forceinline__ void fill(unsigned tile, const Operand &from, int row0, int column) {
        int thread = threadIdx.x;
        if constexpr (THREADS % PIECES == 0) { // a thread has one piece of every so many rows
            constexpr int STEP = THREADS / PIECES;
            int first = thread / PIECES, piece = thread % PIECES;
            const char *next = element_address<TYPE_Q>(from, row0 + first, column) + 16 * piece;
#pragma unroll
            for (int row = 0; row < ROWS; row += STEP) {
                if (ROWS % STEP != 0 && first + row >= ROWS)
                    break;
                copy_async(tile + at(first + row, piece), next, row0 + first + row < from.rows);
                next += (long long)from.stride * (2 * STEP);
            }
        } else { // one after the other, with the piece behind each row, which nobody fills, so that no bank is met twice
            constexpr int PLACES = PITCH / 16;
#pragma unroll
            for (int base = 0; base < ROWS * PLACES; base += THREADS) {
                int i = base + thread, row = i / PLACES, piece = i % PLACES;
                if (i < ROWS * PLACES && piece < PIECES)
                    copy_async(tile + at(row, piece), element_address<TYPE_Q>(from, row0 + row, column) + 16 * piece,
                               row0 + row < from.rows);
            }
        }
    }
    // From `base`, an address within rows 0 to 15 of a tile, `rows` rows (a multiple of 8) down and 16 `step` columns to the
    // right. Where rows are swizzled they begin at multiples of 128, and what permutes them stays the same.
    static __device__ __forceinline__ unsigned beside(unsigned base, int rows, int step) {
        return (SWIZZLED ? (base ^ step % 4 * 32) + step / 4 * 128 : base + step * 32) + rows * PITCH;
    }
};

// Where this lane reads the 16 x 16 piece at the beginning of a tile for the left operand, or, transposed, for the right one.
template <int SIZE> __device__ __forceinline__ unsigned left_address(unsigned tile, int lane) {
    return tile + Tile<SIZE>::at(lane % 16, lane / 16);
}

// The same for a right operand whose rows are the columns of the product: 16 of them, 16 deep.
template <int SIZE> __device__ __forceinline__ unsigned right_address(unsigned tile, int lane) {
    return tile + Tile<SIZE>::at(lane / 16 * 8 + lane % 8, lane / 8 % 2);
}

// ---- products ---------------------------------------------------------------------------------------------------------

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

// sums += packed [16 M, 16 STEPS] times tile b [16 STEPS, SIZE]
template <int SIZE, int M, int STEPS>
__device__ __forceinline__ void multiply_packed(float (&sums)[M][SIZE / 8][4], const unsigned (&packed)[M][STEPS][4],
                                                unsigned b, int lane) {
    unsigned base = left_address<SIZE>(b, lane);
#pragma unroll
    for (int step = 0; step < STEPS; step++)
#pragma unroll
        for (int n = 0; n < SIZE / 8; n += 2) {
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

// ---- scores -----------------------------------------------------------------------------------------------------------

// How products become scores times log2(e): s * rate. Where that takes more than a positive factor, prepare() has done it
// and rate is 1.
struct Scores {
    float rate, scale, softcap, inverse; // inverse: 1 / (softcap log2(e))
    bool capped, awkward;
};

__device__ __forceinline__ Scores scores_of(const Args &args) {
    Scores by;
    by.softcap = args.floats[1];
    by.capped = by.softcap > 0;
    by.inverse = 1.0f / (by.softcap * (float)LOG2_E);
    by.scale = by.capped ? args.floats[0] / by.softcap : args.floats[0] * (float)LOG2_E;
    by.awkward = by.capped || !(by.scale > 0);
    by.rate = by.awkward ? 1.0f : by.scale;
    return by;
}

template <int M, int COLUMNS>
__device__ __forceinline__ void prepare(float (&s)[M][COLUMNS][4], const Scores &by) {
    if (!by.awkward)
        return;
    float high = by.softcap * (float)LOG2_E;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < COLUMNS; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float x = s[m][n][i] * by.scale;
                s[m][n][i] = by.capped ? high * soft_tanh(x) : x;
            }
}

// Where a query (row of s, limits of the first) does not see a key (column, from key0), s becomes -infinity.
template <int M, int COLUMNS>
__device__ __forceinline__ void mask(float (&s)[M][COLUMNS][4], const Limits *limits, int key0, int lane) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            Limits see = limits[16 * m + 8 * half + lane / 4];
#pragma unroll
            for (int n = 0; n < COLUMNS; n++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    if (!sees(see, key0 + 8 * n + lane % 4 * 2 + i))
                        s[m][n][2 * half + i] = __int_as_float(0xff800000);
        }
}

// ---- which tiles -------------------------------------------------------------------------------------------------------

// What the rows of a tile of queries see: any of them something within [own, own_end) and [shared, shared_end), all of them
// all of [full, full_end), and likewise of their shared parts.
struct Bounds {
    int own, own_end, shared, shared_end, full, full_end, full_shared, full_shared_end;
};

__device__ __forceinline__ Bounds no_bounds() {
    return {0x7fffffff, 0, 0x7fffffff, 0, 0, 0x7fffffff, 0, 0x7fffffff};
}

__device__ __forceinline__ void add_to_bounds(Bounds &all, const Limits &see) {
    if (see.own < see.own_end) {
        all.own = min(all.own, see.own);
        all.own_end = max(all.own_end, see.own_end);
    }
    if (see.shared < see.shared_end) {
        all.shared = min(all.shared, see.shared);
        all.shared_end = max(all.shared_end, see.shared_end);
    }
    all.full = max(all.full, see.own);
    all.full_end = min(all.full_end, see.own_end);
    all.full_shared = max(all.full_shared, see.shared);
    all.full_shared_end = min(all.full_shared_end, see.shared_end);
}

// Over all lanes.
__device__ __forceinline__ void join_bounds(Bounds &all) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        all.own = min(all.own, __shfl_xor_sync(ALL_LANES, all.own, step));
        all.own_end = max(all.own_end, __shfl_xor_sync(ALL_LANES, all.own_end, step));
        all.shared = min(all.shared, __shfl_xor_sync(ALL_LANES, all.shared, step));
        all.shared_end = max(all.shared_end, __shfl_xor_sync(ALL_LANES, all.shared_end, step));
        all.full = max(all.full, __shfl_xor_sync(ALL_LANES, all.full, step));
        all.full_end = min(all.full_end, __shfl_xor_sync(ALL_LANES, all.full_end, step));
        all.full_shared = max(all.full_shared, __shfl_xor_sync(ALL_LANES, all.full_shared, step));
        all.full_shared_end = min(all.full_shared_end, __shfl_xor_sync(ALL_LANES, all.full_shared_end, step));
    }
}

__device__ __forceinline__ bool sees_some(const Bounds &all, int key0, int key1) {
    return (all.own < key1 && all.own_end > key0) || (all.shared < key1 && all.shared_end > key0);
}

__device__ __forceinline__ bool sees_all(const Bounds &all, int key0, int key1) {
    return (all.full <= key0 && all.full_end >= key1) || (all.full_shared <= key0 && all.full_shared_end >= key1);
}

// The tiles of SIZE keys in the order in which a block takes them: those of one part, then those of the other behind them.
template <int SIZE> struct KeyTiles {
    int start, here, next, count;
    __device__ __forceinline__ explicit KeyTiles(const Bounds &all) {
        int a = all.shared / SIZE, a_end = (all.shared_end + SIZE - 1) / SIZE;
        int b = all.own / SIZE, b_end = (all.own_end + SIZE - 1) / SIZE;
        bool swap = b < a;
        start = swap ? b : a;
        here = max((swap ? b_end : a_end) - start, 0);
        if (here == 0) // then start may be anything
            start = 0;
        next = max(swap ? a : b, start + here);
        count = here + max((swap ? a_end : b_end) - next, 0);
    }
    __device__ __forceinline__ int key(int i) const {
        return (i < here ? start + i : next + i - here) * SIZE;
    }
    // The other way: of a tile that is in the list.
    __device__ __forceinline__ int index(int tile) const {
        return tile < start + here ? tile - start : here + tile - next;
    }
};
