// rows.cuh: what row kernels (backends/gpu/emit) need beyond prelude.cuh, elements.cuh and rowmath.h: several
// elements at once, dynamic types, reductions over a team. A team is LANES threads side by side, a power of
// two up to a warp, or whole warps; a block has TEAMS of them.

typedef u32 uint;

DEVICE int clamp(int x, int low, int high) {
    return min(max(x, low), high);
}
DEVICE float clamp(float x, float low, float high) {
    return fminf(fmaxf(x, low), high);
}

// Number of the highest bit; -1 of 0.
DEVICE int findMSB(int x) {
    return 31 - __clz(x);
}

// ---- elements as bits ------------------------------------------------------------------------------------

DEVICE REAL from_f64(u64 bits) {
    return (REAL)__longlong_as_double((i64)bits);
}
DEVICE REAL from_f32(u32 bits) {
    return (REAL)__uint_as_float(bits);
}
DEVICE REAL from_bf16(u32 bits) {
    return (REAL)f32_from_bf16(bits);
}
DEVICE REAL from_f16(u32 bits) {
    return (REAL)f32_from_f16(bits);
}
DEVICE REAL from_i8(u32 bits) {
    return (REAL)(signed char)bits;
}
DEVICE REAL from_i16(u32 bits) {
    return (REAL)(short)bits;
}
DEVICE REAL from_i32(u32 bits) {
    return (REAL)(int)bits;
}
DEVICE REAL from_i64(u64 bits) {
    return (REAL)(i64)bits;
}
DEVICE REAL from_bool(u32 bits) {
    return bits != 0 ? (REAL)1.0 : (REAL)0.0;
}

DEVICE u64 bits_f64(double x) {
    return (u64)__double_as_longlong(x);
}
DEVICE u32 bits_f32(REAL x) {
    return __float_as_uint((float)x);
}
DEVICE u32 bits_bf16(REAL x) {
    return bf16_from(x);
}
DEVICE u32 bits_f16(REAL x) {
    return f16_from(x);
}
DEVICE u32 bits_i8(REAL x) {
    return (u32)clamp(to_i32(x), -128, 127) & 0xffu;
}
DEVICE u32 bits_i16(REAL x) {
    return (u32)clamp(to_i32(x), -32768, 32767) & 0xffffu;
}
DEVICE u32 bits_i32(REAL x) {
    return (u32)to_i32(x);
}
DEVICE u64 bits_i64(REAL x) {
    return (u64)to_i64(x);
}
DEVICE u32 bits_bool(REAL x) {
    return x != (REAL)0.0;
}

// ---- several elements ------------------------------------------------------------------------------------

template <int BYTES> struct Word {
    typedef u32 type;
};
template <> struct Word<8> {
    typedef u64 type;
};

// COUNT elements of BYTES each, side by side in memory at a multiple of all their bytes: at most 16.
template <int COUNT, int BYTES> struct Elements {
    enum { ALL = COUNT * BYTES, WORDS = (ALL + 3) / 4 };
    static_assert(ALL == 1 || ALL == 2 || ALL == 4 || ALL == 8 || ALL == 16, "one access");
    u32 words[WORDS];

    // In PTX, since compilers take a store of four words apart.
    __device__ __forceinline__ void load(u64 at, int i) {
        u64 from = at + (i64)i * BYTES;
        if (ALL == 16)
            asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(words[0]), "=r"(words[1 % WORDS]), "=r"(words[2 % WORDS]), "=r"(words[3 % WORDS])
                         : "l"(from)
                         : "memory");
        else if (ALL == 8)
            asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1 % WORDS]) : "l"(from) : "memory");
        else
            words[0] = ALL == 4   ? *at_element<const u32>(from, 0)
                       : ALL == 2 ? *at_element<const u16>(from, 0)
                                  : *at_element<const u8>(from, 0);
    }

    __device__ __forceinline__ void store(u64 at, int i) const {
        u64 to = at + (i64)i * BYTES;
        if (ALL == 16)
            asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words[0]), "r"(words[1 % WORDS]),
                         "r"(words[2 % WORDS]), "r"(words[3 % WORDS])
                         : "memory");
        else if (ALL == 8)
            asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(words[0]), "r"(words[1 % WORDS]) : "memory");
        else if (ALL == 4)
            *at_element<u32>(to, 0) = words[0];
        else if (ALL == 2)
            *at_element<u16>(to, 0) = (u16)words[0];
        else
            *at_element<u8>(to, 0) = (u8)words[0];
    }

    __device__ __forceinline__ typename Word<BYTES>::type bits(int q) const {
        if (BYTES == 8)
            return (typename Word<BYTES>::type)((u64)words[2 * q % WORDS] | (u64)words[(2 * q + 1) % WORDS] << 32);
        if (BYTES == 4)
            return words[q];
        const u32 mask = BYTES == 2 ? 0xffffu : 0xffu;
        return words[q * BYTES / 4] >> q * BYTES % 4 * 8 & mask;
    }

    // Elements are set in order.
    __device__ __forceinline__ void set(int q, u64 bits) {
        int word = q * BYTES / 4, shift = q * BYTES % 4 * 8;
        if (BYTES == 8)
            words[2 * q % WORDS] = (u32)bits, words[(2 * q + 1) % WORDS] = (u32)(bits >> 32);
        else
            words[word] = shift == 0 ? (u32)bits : words[word] | (u32)bits << shift;
    }
};

#define VECTOR_STORE(type, bytes)                                                                                            \
    template <int COUNT> DEVICE void store_##type(u64 at, int i, const REAL(&x)[COUNT]) {                                    \
        Elements<COUNT, bytes> all;                                                                                          \
        _Pragma("unroll") for (int q = 0; q < COUNT; q++) all.set(q, bits_##type(x[q]));                                     \
        all.store(at, i);                                                                                                    \
    }

VECTOR_STORE(f64, 8)
VECTOR_STORE(f32, 4)
VECTOR_STORE(bf16, 2)
VECTOR_STORE(f16, 2)
VECTOR_STORE(i8, 1)
VECTOR_STORE(i16, 2)
VECTOR_STORE(i32, 4)
VECTOR_STORE(i64, 8)
VECTOR_STORE(bool, 1)

// Types whose from_ and to_ follow later.
#define DYNAMIC_TYPE(type)                                                                                                   \
    DEVICE REAL load_##type(u64 at, int i) {                                                                                 \
        return from_##type(*at_element<const u8>(at, i));                                                                    \
    }                                                                                                                        \
    DEVICE void store_##type(u64 at, int i, REAL x) {                                                                        \
        *at_element<u8>(at, i) = (u8)to_##type(x);                                                                           \
    }                                                                                                                        \
    DEVICE u32 bits_##type(REAL x) {                                                                                         \
        return to_##type(x);                                                                                                 \
    }                                                                                                                        \
    VECTOR_STORE(type, 1)

// ---- sums of partials, in their own type -----------------------------------------------------------------

DEVICE void put_f64(u64 at, int i, double x) {
    *at_element<double>(at, i) = x;
}
DEVICE void put_f32(u64 at, int i, float x) {
    *at_element<float>(at, i) = x;
}
template <int COUNT> DEVICE void put_f64(u64 at, int i, const double *x) {
    Elements<COUNT, 8> all;
    _Pragma("unroll") for (int q = 0; q < COUNT; q++) all.set(q, bits_f64(x[q]));
    all.store(at, i);
}
template <int COUNT> DEVICE void put_f32(u64 at, int i, const float *x) {
    Elements<COUNT, 4> all;
    _Pragma("unroll") for (int q = 0; q < COUNT; q++) all.set(q, __float_as_uint(x[q]));
    all.store(at, i);
}

// Shared memory at a multiple of their bytes.
template <int COUNT> DEVICE void put_shared(float *to, const float (&x)[COUNT]) {
    _Pragma("unroll") for (int q = 0; q + 1 < COUNT; q += 4) {
        if (COUNT - q >= 4)
            *(float4 *)(to + q) = make_float4(x[q], x[q + 1], x[(q + 2) % COUNT], x[(q + 3) % COUNT]);
        else
            *(float2 *)(to + q) = make_float2(x[q], x[q + 1]);
    }
}
template <int COUNT> DEVICE void put_shared(double *to, const double (&x)[COUNT]) {
    _Pragma("unroll") for (int q = 0; q < COUNT; q += 2) *(double2 *)(to + q) = make_double2(x[q], x[q + 1]);
}

// ---- teams -----------------------------------------------------------------------------------------------

DEVICE REAL plus(REAL a, REAL b) {
    return a + b;
}

// The lanes of this thread's team in its warp.
template <int LANES> DEVICE u32 team_mask() {
    if (LANES >= 32)
        return 0xffffffffu;
    return ((1u << LANES % 32) - 1u) << (threadIdx.x % 32 & ~(LANES - 1u));
}

// Waits for the team; what its threads wrote before is there after.
template <int LANES, int TEAMS> DEVICE void meet() {
    if (LANES <= 32)
        __syncwarp(team_mask<LANES>());
    else if (TEAMS == 1)
        __syncthreads();
    else
        asm volatile("bar.sync %0, %1;" ::"r"(threadIdx.x / LANES + 1), "r"(LANES) : "memory");
}

// Within warps by shuffles, then over the warps in order: every thread gets the same bits. One barrier:
// each reduction of a kernel, by its NUMBER, has memory of its own, and another barrier stands before
// it is used again.
template <int LANES, int TEAMS, REAL combine(REAL, REAL), int NUMBER> DEVICE REAL over_team(REAL x) {
    const u32 mask = team_mask<LANES>();
    _Pragma("unroll") for (int distance = (LANES < 32 ? LANES : 32) / 2; distance > 0; distance /= 2)
        x = combine(x, __shfl_xor_sync(mask, x, distance));
    if (LANES <= 32)
        return x;
    const int WARPS = (LANES + 31) / 32;
    static __shared__ REAL values[TEAMS][WARPS];
    REAL *own = values[threadIdx.x / LANES];
    if (threadIdx.x % 32 == 0)
        own[threadIdx.x % LANES / 32] = x;
    meet<LANES, TEAMS>();
    x = own[0];
    _Pragma("unroll") for (int warp = 1; warp < WARPS; warp++) x = combine(x, own[warp]);
    return x;
}
