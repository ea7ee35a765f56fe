// mma.cuh: what the delta rule's kernels for tensor cores share: what attention/tiles.cuh asks for, the
// numbers of a block's rows, pairs of fp32 as two bf16 each.

#define TYPE_Q 2 // bf16, in ir/base/dtypes.def
constexpr int F32 = 1;
constexpr unsigned ALL_LANES = 0xffffffffu;
#define LOG2_E 1.4426950408889634

template <int TYPE> DEVICE char *element_address(const Operand &o, int row, int column) {
    static_assert(TYPE == TYPE_Q, "matrices of rows are bf16");
    return (char *)at_element<u16>(o.address, 0) + ((i64)row * o.stride + column) * 2;
}

// Rows row0 .. row0 + rows - 1: one block's of a document, as far as they are there.
struct Rows {
    int row0, rows;
    bool begins;
};

// Every warp finds them by itself.
DEVICE Rows rows_at(const Delta &c, int row0, int lane) {
    int place = c.place(row0), end = min(c.rows - row0, BLOCK - place % BLOCK);
#pragma unroll 1
    for (int i = lane; i < end; i += 32)
        if (i > 0 && c.place(row0 + i) == 0)
            end = i;
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        end = min(end, __shfl_xor_sync(ALL_LANES, end, step));
    return {row0, end, place == 0};
}

// What a block's rows have: the running sum of decay, times log2(e), as a sum of two; beta; e^c, and e^(c_L -
// c). Rows that are not there have beta 0 and the last sum.
struct Numbers {
    float high[BLOCK], low[BLOCK], beta[BLOCK], begin[BLOCK], end[BLOCK];
    // e^(c_i - c_j)
    __device__ __forceinline__ float between(int i, int j) const;
};

DEVICE float exp_of_2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float Numbers::between(int i, int j) const {
    return exp_of_2((high[i] - high[j]) + (low[i] - low[j]));
}

// By one warp, two rows a lane. In the row where a document begins decay means nothing.
DEVICE void find_numbers(Numbers *to, const Delta &c, const Rows &b, int head, int lane) {
    double decays[2], sum = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = 2 * lane + i;
        bool there = row < b.rows;
        decays[i] = there && !(b.begins && row == 0) ? (double)c.decay(b.row0 + row, head) * LOG2_E : 0.0;
        to->beta[row] = there ? c.beta(b.row0 + row, head) : 0.0f;
        sum += decays[i];
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        double before = __shfl_up_sync(ALL_LANES, sum, step);
        sum += lane >= step ? before : 0.0;
    }
    double last = __shfl_sync(ALL_LANES, sum, 31);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int row = 2 * lane + i;
        double x = i == 0 ? sum - decays[1] : sum;
        float high = (float)x;
        to->high[row] = high;
        to->low[row] = (float)(x - (double)high);
        to->begin[row] = exp_of_2(high);
        to->end[row] = exp_of_2((float)(last - x));
    }
}
