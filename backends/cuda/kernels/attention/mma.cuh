// mma.cuh: what attention's kernels for tensor cores share beside tiles.cuh: scores, and which
// tiles there are.

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

// Over the four lanes that share rows of a strip.
__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}

// ---- parts of a head -------------------------------------------------------------------------------------

// Sums over more than 256 columns do not fit a thread's registers: two warps have the same rows then, each
// makes the scores anew and sums COLUMNS columns. Where that is more than half of them, both have those in
// the middle, and part 0 writes them.
template <int SIZE> struct Parts {
    static constexpr int COUNT = SIZE > 256 ? 2 : 1, STEP = SIZE % 64 == 0 ? 64 : 16;
    static constexpr int COLUMNS = COUNT == 1 ? SIZE : (SIZE / 2 + STEP - 1) / STEP * STEP;
    static __device__ __forceinline__ int part(int warp, int warps) {
        return COUNT == 1 ? 0 : warp / warps;
    }
    static __device__ __forceinline__ int column(int part) {
        return part * (SIZE - COLUMNS);
    }
    // Whether this part writes its columns 8 n to 8 n + 7.
    static __device__ __forceinline__ bool writes(int part, int n) {
        return COUNT * COLUMNS == SIZE || part == 0 || 8 * n >= 2 * COLUMNS - SIZE;
    }
};

// ---- scores ----------------------------------------------------------------------------------------------

// How products become scores times log2(e): s * rate. Where that takes more than a positive factor, prepare()
// has done it and rate is 1.
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

// ---- which tiles -----------------------------------------------------------------------------------------

// What the rows of a tile of queries see: any of them something within [own, own_end) and [shared,
// shared_end), all of them all of [full, full_end), and likewise of their shared parts.
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

// The tiles of SIZE keys in the order in which a block takes them: those of one part, then those of the other
// behind them.
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
