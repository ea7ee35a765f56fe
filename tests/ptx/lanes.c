/* The functions of lanes.def, compiled once for each instruction set (PTX_ISA: base, v3, v4). Lanes that are
 * not in the mask are computed as well and keep what they had: that is what vectorises. */
#include "tests/ptx/lanes.h"

#include <string.h>

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)

static inline float quiet32(float x) { // NaN has one form on this machine, as on GPUs
    const uint32_t bits = 0x7fffffff;
    float nan;
    memcpy(&nan, &bits, sizeof nan);
    return x == x ? x : nan;
}

static inline double quiet64(double x) {
    const uint64_t bits = UINT64_C(0x7ff8000000000000);
    double nan;
    memcpy(&nan, &bits, sizeof nan);
    return x == x ? x : nan;
}

// min: a NaN gives way, -0 is less than +0.
static inline float lesser32(float a, float b) {
    const float tie = __builtin_signbit(a) ? a : b;
    const float less = a < b ? a : b < a ? b : tie;
    return a != a ? b : b != b ? a : less;
}

static inline double lesser64(double a, double b) {
    const double tie = __builtin_signbit(a) ? a : b;
    const double less = a < b ? a : b < a ? b : tie;
    return a != a ? b : b != b ? a : less;
}

// x, with the sign that a * b would have.
static inline float signed_as(float x, float a, float b) {
    return !__builtin_signbit(a) == !__builtin_signbit(b) ? __builtin_fabsf(x) : -__builtin_fabsf(x);
}

static inline uint64_t reverse(uint64_t x) {
    x = (x >> 1 & 0x5555555555555555u) | (x & 0x5555555555555555u) << 1;
    x = (x >> 2 & 0x3333333333333333u) | (x & 0x3333333333333333u) << 2;
    x = (x >> 4 & 0x0f0f0f0f0f0f0f0fu) | (x & 0x0f0f0f0f0f0f0f0fu) << 4;
    return __builtin_bswap64(x);
}

static inline uint32_t highest(uint64_t x) {
    return x ? 63 - (uint32_t)__builtin_clzll(x) : UINT32_MAX;
}

static inline uint64_t high_u64(uint64_t a, uint64_t b) {
    return (uint64_t)((unsigned __int128)a * b >> 64);
}

static inline int64_t high_s64(int64_t a, int64_t b) {
    return (int64_t)((__int128)a * b >> 64);
}

static inline int32_t signed24(uint32_t x) {
    return (int32_t)(x << 8) >> 8;
}

static inline uint64_t funnel(uint32_t low, uint32_t high) {
    return (uint64_t)high << 32 | low;
}

static inline uint64_t field_u(uint64_t a, uint32_t at, uint32_t length) {
    at &= 255;
    length &= 255;
    const uint64_t shifted = at > 63 ? 0 : a >> (at & 63);
    return length > 63 ? shifted : shifted & ((UINT64_C(1) << (length & 63)) - 1);
}

// Beyond the field the sign is repeated: of the field, or of the number where the field ends above it.
static inline int64_t field_s(int64_t a, uint32_t at, uint32_t length, uint32_t most) {
    at &= 255;
    length &= 255;
    if (length == 0) {
        return 0;
    }
    const uint32_t last = at + length - 1 < most ? at + length - 1 : most;
    const int64_t filled = a >> (at > 63 ? 63 : at);
    if (at > last) {
        return a >> 63;
    }
    const uint32_t kept = last - at + 1;
    return kept > 63 ? filled : (int64_t)((uint64_t)filled << (64 - kept)) >> (64 - kept);
}

static inline uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t bytes = funnel(a, b);
    uint32_t d = 0;
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t pick = selector >> 4 * i & 15;
        const uint32_t byte = (uint32_t)(bytes >> 8 * (pick & 7)) & 255;
        const uint32_t sign = byte & 128 ? 255 : 0;
        d |= (pick & 8 ? sign : byte) << 8 * i;
    }
    return d;
}

static inline uint32_t table3(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
    uint32_t d = 0;
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t match = (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
        d |= match & (0 - (table >> i & 1));
    }
    return d;
}

static inline uint32_t dot4(uint32_t a, uint32_t b, bool a_signed, bool b_signed) {
    uint32_t sum = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t x = a >> 8 * i & 255, y = b >> 8 * i & 255;
        sum += (a_signed && x & 128 ? x - 256 : x) * (b_signed && y & 128 ? y - 256 : y);
    }
    return sum;
}

static inline uint32_t bf16_of(uint32_t bits) {
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fff : rounded;
}

#define LANES(id, key, class, D, A, B, C, sources, expression)                                               \
    static void run_##id(void *d_, const void *const *s, uint32_t mask, uint32_t extra) {                    \
        D *d = d_;                                                                                           \
        const A *a_ = s[0];                                                                                  \
        const B *b_ = s[1];                                                                                  \
        const C *c_ = s[2];                                                                                  \
        (void)extra;                                                                                         \
        if (mask == PTX_FULL) {                                                                              \
            _Pragma("GCC ivdep") for (int l = 0; l < PTX_LANES; l++) {                                       \
                const A a = a_[l];                                                                           \
                const B b = (sources) > 1 ? b_[l] : (B)0;                                                    \
                const C c = (sources) > 2 ? c_[l] : (C)0;                                                    \
                (void)b, (void)c;                                                                            \
                d[l] = (D)(expression);                                                                      \
            }                                                                                                \
        } else {                                                                                             \
            _Pragma("GCC ivdep") for (int l = 0; l < PTX_LANES; l++) {                                       \
                const A a = a_[l];                                                                           \
                const B b = (sources) > 1 ? b_[l] : (B)0;                                                    \
                const C c = (sources) > 2 ? c_[l] : (C)0;                                                    \
                (void)b, (void)c;                                                                            \
                const D r = (D)(expression);                                                                 \
                d[l] = mask >> l & 1 ? r : d[l];                                                             \
            }                                                                                                \
        }                                                                                                    \
    }
#define COMPARE(id, key, T, condition)                                                                       \
    static uint32_t compare_##id(const void *a_, const void *b_) {                                           \
        const T *x = a_, *y = b_;                                                                            \
        uint32_t holds = 0;                                                                                  \
        for (int l = 0; l < PTX_LANES; l++) {                                                                \
            const T a = x[l], b = y[l];                                                                      \
            holds |= (uint32_t)(condition) << l;                                                             \
        }                                                                                                    \
        return holds;                                                                                        \
    }
#include "tests/ptx/lanes.def"
#undef LANES
#undef COMPARE

#define LANES(id, key, class, D, A, B, C, sources, expression)                                               \
    {key, run_##id, PTX_CLASS_##class, sources, sizeof(D), {sizeof(A), sizeof(B), sizeof(C)}},
#define COMPARE(id, key, T, condition)
const ptx_lanes_op JOIN(ptx_lanes_, PTX_ISA)[] = {
#include "tests/ptx/lanes.def"
    {NULL, NULL, 0, 0, 0, {0}}};
#undef LANES
#undef COMPARE

#define LANES(id, key, class, D, A, B, C, sources, expression)
#define COMPARE(id, key, T, condition) {key, compare_##id, sizeof(T)},
const ptx_compare_op JOIN(ptx_compare_, PTX_ISA)[] = {
#include "tests/ptx/lanes.def"
    {NULL, NULL, 0}};
