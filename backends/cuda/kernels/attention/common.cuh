// common.cuh: what all attention kernels share: elements of every type, what a query row sees, warp-wide
// sums.
//
// Comes after the prelude, which declares Args and Operand (backends/gpu/gpu.h), and after these definitions,
// made by backends/cuda/cuda_attention.c:
//   D_QK, D_V                      columns of a head
//   TYPE_Q, TYPE_K, TYPE_V, TYPE_O, TYPE_LSE, TYPE_FIRST, TYPE_SHARED_END, TYPE_OWN and, backward,
//   TYPE_DQ, TYPE_DK, TYPE_DV, TYPE_DO   numbers of element types, as in ir/base/dtypes.def: one of those
//                                        below
//
// Operands, in the order of ir/program/commands.def. Attributes: ints 0..2: heads, kv_heads, window (0:
// none); floats (doubles) 0..1: scale, softcap (0: none).

enum { F64, F32, BF16, F16, I8, I16, I32, I64 };
constexpr unsigned ALL_LANES = 0xffffffffu;

#if TYPE_Q == 0
typedef double Real;
#else
typedef float Real;
#endif
#define R(x) ((Real)(x))

#define LOG2_E 1.4426950408889634
#define LOG_2 0.6931471805599453
#define NOTHING_SEEN R(-1e30) // begins below every score; finite, so that no difference of two is NaN

#ifdef TYPE_DQ
enum { DQ, DK, DV, Q, K, V, O, LSE, DO, FIRST, SHARED_END, OWN };
#else
enum { O, LSE, Q, K, V, FIRST, SHARED_END, OWN };
#endif

// ---- elements --------------------------------------------------------------------------------------------

__device__ constexpr int element_bytes(int type) {
    return type == F64 || type == I64 ? 8 : type == F32 || type == I32 ? 4 : type == I8 ? 1 : 2;
}

// Address of element (row, column).
template <int TYPE> __device__ __forceinline__ char *element_address(const Operand &o, int row, int column) {
    char *at = (char *)o.address + ((long long)row * o.stride + column) * element_bytes(TYPE);
    __builtin_assume(__isGlobal(at)); // ld.global in place of ld
    return at;
}

template <int TYPE> __device__ __forceinline__ Real load_real(const char *at) {
    if constexpr (TYPE == F64)
        return (Real) * (const double *)at;
    else if constexpr (TYPE == F32)
        return (Real) * (const float *)at;
    else if constexpr (TYPE == BF16)
        return (Real)__uint_as_float((unsigned)*(const unsigned short *)at << 16);
    else {
        float x;
        asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(*(const unsigned short *)at));
        return (Real)x;
    }
}

// Rounds to a type of 16 bits; returns its bits.
template <int TYPE> __device__ __forceinline__ unsigned short half_bits(float x) {
    unsigned short bits;
    if constexpr (TYPE == BF16)
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    else
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

template <int TYPE> __device__ __forceinline__ void store_real(char *at, Real x) {
    if constexpr (TYPE == F64)
        *(double *)at = (double)x;
    else if constexpr (TYPE == F32)
        *(float *)at = (float)x;
    else
        *(unsigned short *)at = half_bits<TYPE>((float)x);
}

template <int TYPE> __device__ __forceinline__ int load_index(const Operand &o, int row) {
    const char *at = element_address<TYPE>(o, row, 0);
    if constexpr (TYPE == I64)
        return (int)*(const long long *)at;
    else if constexpr (TYPE == I32)
        return *(const int *)at;
    else if constexpr (TYPE == I16)
        return *(const short *)at;
    else
        return *(const signed char *)at;
}

// ---- what a query row sees -------------------------------------------------------------------------------

// Keys [own, own_end) and [shared, shared_end), as rows of k; the two do not overlap, no end lies before its
// beginning. A row that is not there sees nothing.
struct Limits {
    int own, own_end, shared, shared_end;
};

__device__ __forceinline__ Limits row_limits(const Args &args, int row) {
    const Operand &q = args.operands[Q], &k = args.operands[K];
    if (row >= q.rows)
        return {0, 0, 0, 0};
    int position = q.first_row + row, window = args.ints[2];
    int first = load_index<TYPE_FIRST>(args.operands[FIRST], row);
    int end = load_index<TYPE_SHARED_END>(args.operands[SHARED_END], row);
    int own = load_index<TYPE_OWN>(args.operands[OWN], row), near = own;
    if (window > 0) {
        near = max(own, position - window + 1);
        first = max(first, end - own + position - window + 1);
    }
    Limits see;
    see.own = max(near - k.first_row, 0);
    see.own_end = max(min(position + 1 - k.first_row, k.rows), see.own);
    see.shared = max(first - k.first_row, 0);
    see.shared_end = max(min(min(end - k.first_row, see.own), k.rows), see.shared);
    return see;
}

__device__ __forceinline__ bool sees(const Limits &see, int key) {
    bool own = (unsigned)(key - see.own) < (unsigned)(see.own_end - see.own);
    return own | ((unsigned)(key - see.shared) < (unsigned)(see.shared_end - see.shared)); // no branch
}

// ---- warps -----------------------------------------------------------------------------------------------

__device__ __forceinline__ Real warp_sum(Real x) {
    for (int step = 16; step > 0; step /= 2)
        x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

__device__ __forceinline__ Real warp_max(Real x) {
    for (int step = 16; step > 0; step /= 2) {
        Real other = __shfl_xor_sync(ALL_LANES, x, step);
        x = other > x ? other : x;
    }
    return x;
}
