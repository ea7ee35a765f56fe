// mma_bwd.cuh: what the kernels of the backward pass share: the scratch memory that mma_prepare.cu fills, and ds.
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

// s becomes p and dp becomes ds: p = 2^(s rate - lse), ds = p (dp - delta), times softcap's slope.
__device__ __forceinline__ void differentiate(float &s, float &dp, float lse, float delta, const Scores &by) {
    float p = power_of_2(fmaf(s, by.rate, -lse));
    dp = p * (dp - delta);
    if (by.capped) { // s is softcap log2(e) tanh; -infinity where it is not seen
        float t = fmaxf(s / (by.softcap * (float)LOG2_E), -1.0f);
        dp *= 1.0f - t * t;
    }
    s = p;
}
