// mma_bwd.cuh: what the kernels of the backward pass share: the scratch memory that
// mma_prepare.cu fills, and ds.
//
// Defined: QUERIES, the queries of a tile of mma_dkv.cu. Scratch, PADDED = rows rounded up to 128:
//   float delta[heads][PADDED]     sum of do o; 0 behind the last row
//   float lse[heads][PADDED]       times log2(e); 1e30 behind the last row, so that p is 0 there
//   Limits limits[PADDED]
//   Bounds bounds[PADDED / QUERIES]

constexpr int PADDING = 128;

struct Scratch {
    float *delta, *lse;
    Limits *limits;
    Bounds *bounds;
    int padded;
};

__device__ __forceinline__ Scratch scratch_of(const Args &args) {
    Scratch at;
    at.padded = (args.operands[Q].rows + PADDING - 1) / PADDING * PADDING;
    at.delta = (float *)args.scratch;
    at.lse = at.delta + (long long)args.ints[0] * at.padded;
    at.limits = (Limits *)(at.lse + (long long)args.ints[0] * at.padded);
    at.bounds = (Bounds *)(at.limits + at.padded);
    return at;
}

// softcap's slope at a prepared score, softcap log2(e) tanh; it is -infinity where it is not seen.
__device__ __forceinline__ float slope_of(float s, const Scores &by) {
    float t = fmaxf(s * by.inverse, -1.0f);
    return 1.0f - t * t;
}

// s becomes p = 2^(s rate - lse) and dp becomes ds = p (dp - delta), times softcap's slope.
template <bool CAPPED>
__device__ __forceinline__ void differentiate(float &s, float &dp, float lse, float delta, const Scores &by) {
    float p = power_of_2(fmaf(s, by.rate, -lse));
    dp = p * (dp - delta);
    if (CAPPED)
        dp *= slope_of(s, by);
    s = p;
}

// The first tile of queries from `tile` on that sees the keys; `tiles` when there is none. The
// same in all warps.
__device__ __forceinline__ int next_tile(const Bounds *bounds, int tile, int tiles, int key0, int key1, int lane) {
    for (; tile < tiles; tile += LANES) {
        unsigned some = __ballot_sync(ALL_LANES, tile + lane < tiles && sees_some(bounds[tile + lane], key0, key1));
        if (some != 0)
            return tile + __ffs((int)some) - 1;
    }
    return tiles;
}

// Where a query (column of s, limits of the first) does not see a key (row, from key0), s becomes -infinity.
template <int COLUMNS>
__device__ __forceinline__ void mask_columns(float (&s)[1][COLUMNS][4], const Limits *limits, int key0, int lane) {
#pragma unroll
    for (int n = 0; n < COLUMNS; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            Limits see = limits[8 * n + lane % 4 * 2 + i];
#pragma unroll
            for (int half = 0; half < 2; half++)
                if (!sees(see, key0 + 8 * half + lane / 4))
                    s[0][n][2 * half + i] = __int_as_float(0xff800000);
        }
}

// to[row0 ..] += scale sums, a head's columns from `column` on, of which this part has some; of
// rows that are there.
template <int SIZE, int N>
__device__ __forceinline__ void add(const Operand &to, const float (&sums)[1][N][4], float scale, int row0, int column,
                                    int part, int lane) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = row0 + 8 * half + lane / 4;
        if (row >= to.rows)
            continue;
        float2 *at = (float2 *)element_address<F32>(to, row, column + Parts<SIZE>::column(part) + lane % 4 * 2);
#pragma unroll
        for (int n = 0; n < N; n++) {
            if (!Parts<SIZE>::writes(part, n))
                continue;
            float2 x = at[4 * n];
            x.x = fmaf(sums[0][n][2 * half], scale, x.x);
            x.y = fmaf(sums[0][n][2 * half + 1], scale, x.y);
            at[4 * n] = x;
        }
    }
}
