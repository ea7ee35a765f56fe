// scalar.cuh: attention row by row: any size, type and alignment. The reference of the kernels beside it, and
// what runs where those cannot. A warp has one row; no shared memory, no atomics.
//
// Scores are kept times log2(e), and the largest of a row is rounded to an integer: so p is exp(score) times
// a power of two. Where q, k, v (and do) are of one type of 16 bits, the factors p and ds are rounded to it
// for the products that they go into, as in mma.cuh, so that which of the kernels runs decides nothing beyond
// the order of sums.

constexpr int WARPS = 4; // of a block; each has a row of its own
enum { PIECES_QK = (D_QK + 31) / 32, PIECES_V = (D_V + 31) / 32 }; // a lane has columns lane, lane + 32, ..

#ifdef TYPE_DQ
constexpr bool SAME = TYPE_Q == TYPE_K && TYPE_Q == TYPE_V && TYPE_Q == TYPE_DO;
#else
constexpr bool SAME = TYPE_Q == TYPE_K && TYPE_Q == TYPE_V;
#endif

// A factor of a product of 16 bits.
__device__ __forceinline__ Real factor_of(Real x) {
    if constexpr (SAME && (TYPE_Q == BF16 || TYPE_Q == F16)) {
        unsigned short bits = half_bits<TYPE_Q>((float)x);
        return load_real<TYPE_Q>((const char *)&bits);
    }
    return x;
}

struct Scaling {
    Real scale, softcap;
};

__device__ __forceinline__ Scaling scaling(const Args &args) {
#if TYPE_Q == 0
    return {args.doubles[0], args.doubles[1]};
#else
    return {args.floats[0], args.floats[1]};
#endif
}

// A score times log2(e); slope: the derivative of the score by scale q.k.
__device__ __forceinline__ Real score_of(const Scaling &by, Real product, Real &slope) {
    Real s = product * by.scale;
    slope = 1;
    if (by.softcap > 0) {
        Real e = exp2(R(-2 * LOG2_E) * fabs(s / by.softcap)), t = copysign((1 - e) / (1 + e), s); // tanh
        slope = 1 - t * t;
        s = by.softcap * t;
    }
    return s * R(LOG2_E);
}

// Sum over d of two rows.
template <int TYPE_A, int TYPE_B, int SIZE> __device__ __forceinline__ Real dot(const char *a, const char *b) {
    Real sum = 0;
    for (int d = 0; d < SIZE; d++)
        sum = fma(load_real<TYPE_A>(a + d * element_bytes(TYPE_A)), load_real<TYPE_B>(b + d * element_bytes(TYPE_B)), sum);
    return sum;
}

// sums[..] += x times a row
template <int TYPE, int SIZE> __device__ __forceinline__ void add_row(Real *sums, Real x, const char *row, int lane) {
#pragma unroll
    for (int i = 0; i < (SIZE + 31) / 32; i++)
        if (32 * i + lane < SIZE)
            sums[i] = fma(x, load_real<TYPE>(row + (32 * i + lane) * element_bytes(TYPE)), sums[i]);
}
