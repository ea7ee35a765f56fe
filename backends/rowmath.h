/* rowmath.h: the scalar functions of ir/rowkernel/rowops.def in fp32 (2 ulp) and fp64 (1e-15 relative), one
 * text for all backends: C, CUDA C and GLSL. No library function is called and no branch is taken, so loops
 * over them vectorise: every choice is a `?:` between two computed values.
 *
 * C and CUDA C include this header. GLSL takes the same text: the emitter of a shader writes
 * `#define SBP_ROWMATH_GLSL` (and SBP_ROWMATH_NO_F64 where shaderFloat64 is missing) behind the #version
 * line, then this file with every `SBP_D(number)` turned into `numberlf` (its preprocessor cannot paste a
 * suffix to a number, and without one the number would be rounded to fp32). The first part below maps the
 * other spellings that differ: casts, reinterpretation, high products. So the rest uses only float, double,
 * int, sbp_uint and bool, no pointers, no hex floats, casts through SBP_INT() and the like.
 *
 * SBP_FMA rounds once (in C without the instruction, through double); nothing else may be contracted (C:
 * -ffp-contract=off, CUDA: --fmad=false, GLSL: `precise` on the results). Division and square root are the
 * language's; GLSL's are good to 2.5 ulp only, so a Vulkan device either has correctly rounded ones or allows
 * itself more in what divides (tanh, sigmoid, log).
 *
 * Numbers beyond the range give inf or 0; NaN gives NaN. Polynomials: rowmath_fit.py. */
#ifndef SBP_BACKENDS_ROWMATH_H
#define SBP_BACKENDS_ROWMATH_H

/* ---- the languages -------------------------------------------------------------------------------- */

#ifdef SBP_ROWMATH_GLSL
#define SBP_FN
#define sbp_uint uint
#define SBP_INT(x) int(x)
#define SBP_UINT(x) uint(x)
#define SBP_FLOAT(x) float(x)
#define SBP_DOUBLE(x) double(x)
#define SBP_BITS(x) floatBitsToUint(x)
#define SBP_FROM_BITS(u) uintBitsToFloat(u)
#define SBP_HIGH(d) unpackDouble2x32(d).y
#define SBP_LOW(d) unpackDouble2x32(d).x
#define SBP_FROM_HIGH(u) packDouble2x32(uvec2(0u, u))
#define SBP_FROM_HIGH_LOW(u, v) packDouble2x32(uvec2(v, u))
#define SBP_FMA(a, b, c) fma(a, b, c)
#define SBP_SQRT(x) sqrt(x)
#define SBP_SQRT64(x) sqrt(x)
sbp_uint sbp_high_product(sbp_uint a, sbp_uint b) {
    uint high, low;
    umulExtended(a, b, high, low);
    return high;
}
#else
#ifdef __CUDACC__
#define SBP_FN static __device__ __forceinline__
#define SBP_FMA(a, b, c) fmaf(a, b, c)
#define SBP_SQRT(x) __fsqrt_rn(x)
#define SBP_SQRT64(x) __dsqrt_rn(x)
#define SBP_BITS(x) __float_as_uint(x)
#define SBP_FROM_BITS(u) __uint_as_float(u)
#define SBP_HIGH(x) ((sbp_uint)__double2hiint(x))
#define SBP_LOW(x) ((sbp_uint)__double2loint(x))
#define SBP_FROM_HIGH(u) __hiloint2double((int)(u), 0)
#define SBP_FROM_HIGH_LOW(u, v) __hiloint2double((int)(u), (int)(v))
#else
#include <stdbool.h>
#define SBP_FN static inline __attribute__((always_inline))
#ifdef __FMA__
#define SBP_FMA(a, b, c) __builtin_fmaf(a, b, c)
#else
#define SBP_FMA(a, b, c) ((float)((double)(a) * (double)(b) + (double)(c)))
#endif
#define SBP_SQRT(x) __builtin_sqrtf(x)
#define SBP_SQRT64(x) __builtin_sqrt(x)
#define SBP_BITS(x)                                                                                          \
    ((union {                                                                                                \
         float f;                                                                                            \
         sbp_uint u;                                                                                         \
     }){.f = (x)}                                                                                            \
         .u)
#define SBP_FROM_BITS(x)                                                                                     \
    ((union {                                                                                                \
         sbp_uint u;                                                                                         \
         float f;                                                                                            \
     }){.u = (x)}                                                                                            \
         .f)
#define SBP_BITS64(x)                                                                                        \
    ((union {                                                                                                \
         double f;                                                                                           \
         unsigned long long u;                                                                               \
     }){.f = (x)}                                                                                            \
         .u)
#define SBP_FROM_BITS64(x)                                                                                   \
    ((union {                                                                                                \
         unsigned long long u;                                                                               \
         double f;                                                                                           \
     }){.u = (x)}                                                                                            \
         .f)
#define SBP_HIGH(x) ((sbp_uint)(SBP_BITS64(x) >> 32))
#define SBP_LOW(x) ((sbp_uint)SBP_BITS64(x))
#define SBP_FROM_HIGH(x) SBP_FROM_BITS64((unsigned long long)(x) << 32)
#define SBP_FROM_HIGH_LOW(x, y) SBP_FROM_BITS64((unsigned long long)(x) << 32 | (y))
#endif
typedef unsigned int sbp_uint;
#define SBP_INT(x) ((int)(x))
#define SBP_UINT(x) ((sbp_uint)(x))
#define SBP_FLOAT(x) ((float)(x))
#define SBP_DOUBLE(x) ((double)(x))
#define SBP_D(x) x
SBP_FN sbp_uint sbp_high_product(sbp_uint a, sbp_uint b) {
    return SBP_UINT(((unsigned long long)a * b) >> 32);
}
#endif

#define SBP_INF SBP_FROM_BITS(0x7f800000u)
#define SBP_NAN SBP_FROM_BITS(0x7fc00000u)

/* ---- fp32 ----------------------------------------------------------------------------------------- */

/* e^x = 2^n (1 + r + r^2 q(r)), x = n log 2 + r. The factor 2^n is applied in two steps, so that results
 * below 2^-126 are right too. Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits. */
SBP_FN float sbp_exp_f32(float x) {
    x = x > 89.0f ? 89.0f : x;
    x = x < -105.0f ? -105.0f : x;
    float shifted = SBP_FMA(x, 1.44269504f, 12582912.0f);
    float n = shifted - 12582912.0f;
    sbp_uint k = SBP_BITS(shifted) - 0x4b400000u;
    float high = SBP_FMA(n, -0.693359375f, x); /* the product is exact */
    float r = SBP_FMA(n, 2.12194442e-4f, high);
    float lost = SBP_FMA(n, 2.12194442e-4f, high - r);
    float q = SBP_FMA(r, 0.00139124924f, 0.00836375076f);
    q = SBP_FMA(q, r, 0.0416666418f);
    q = SBP_FMA(q, r, 0.166665733f);
    q = SBP_FMA(q, r, 0.5f);
    float one = 1.0f + r; /* what it loses of r is added with the rest, so that one rounding is left */
    float p = one + ((r - (one - 1.0f)) + SBP_FMA(q * r, r, lost));
    sbp_uint half_k = SBP_UINT(SBP_INT(k) >> 1);
    return p * SBP_FROM_BITS((half_k + 127u) << 23) * SBP_FROM_BITS((k - half_k + 127u) << 23);
}

/* log(1 + f) - f for f in [sqrt(1/2) - 1, sqrt(2) - 1]: with s = f / (2 + f),
 * log(1 + f) = 2s + s^3 L(s^2) = f - f^2/2 + s (f^2/2 + s^2 L(s^2))   (fdlibm) */
SBP_FN float sbp_log1p_rest_f32(float f, float half_square) {
    float s = f / (2.0f + f);
    float z = s * s;
    float l = SBP_FMA(z, 0.208476394f, 0.286615193f);
    l = SBP_FMA(l, z, 0.3999888f);
    l = SBP_FMA(l, z, 0.666666687f);
    return s * SBP_FMA(z, l, half_square);
}

SBP_FN float sbp_log_f32(float x) {
    bool small = x < 1.17549435e-38f;
    float scaled = small ? x * 8388608.0f : x;
    /* scaled = 2^k (1 + f), 1 + f in [sqrt(1/2), sqrt(2)) */
    sbp_uint u = SBP_BITS(scaled) - 0x3f3504f3u;
    float f = SBP_FROM_BITS((u & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
    float k = SBP_FLOAT((SBP_INT(u) >> 23) - (small ? 23 : 0));
    float half_square = 0.5f * f * f;
    float y = SBP_FMA(k, 9.05800061e-6f, sbp_log1p_rest_f32(f, half_square)) - half_square + f;
    y = SBP_FMA(k, 0.693138123f, y); /* log 2 in two parts; the product is exact */
    y = x < 3.40282347e+38f ? y : x; /* inf, NaN */
    y = x == 0.0f ? -SBP_INF : y;
    return x < 0.0f ? SBP_NAN : y;
}

/* log(1 + x) for x in [0, 1] */
SBP_FN float sbp_log1p_unit_f32(float x) {
    bool low = x < 0.41421356f;
    float u = 1.0f + x;
    float f = low ? x : 0.5f * u - 1.0f;
    float lost = low ? 0.0f : (x - (u - 1.0f)) / u; /* what u lost of x */
    float half_square = 0.5f * f * f;
    float y = lost + (low ? 0.0f : 9.05800061e-6f) + sbp_log1p_rest_f32(f, half_square) - half_square + f;
    return low ? y : y + 0.693138123f;
}

SBP_FN float sbp_sqrt_f32(float x) {
    return SBP_SQRT(x);
}

SBP_FN float sbp_rsqrt_f32(float x) {
    return 1.0f / SBP_SQRT(x);
}

SBP_FN float sbp_abs_f32(float x) {
    return SBP_FROM_BITS(SBP_BITS(x) & 0x7fffffffu);
}

/* Adding 2^23 with the sign of x rounds to an integer; from there on there are no others. */
SBP_FN float sbp_floor_f32(float x) {
    float all = x < 0.0f ? -8388608.0f : 8388608.0f;
    float near = (x + all) - all;
    near = near > x ? near - 1.0f : near;
    return sbp_abs_f32(x) < 8388608.0f ? near : x;
}

/* y with the sign of x; y is not negative */
SBP_FN float sbp_sign_of_f32(float x, float y) {
    return SBP_FROM_BITS(SBP_BITS(y) | (SBP_BITS(x) & 0x80000000u));
}

SBP_FN float sbp_sigmoid_f32(float x) {
    float e = sbp_exp_f32(-sbp_abs_f32(x));
    float d = 1.0f + e;
    float lost = e - (d - 1.0f);
    float top = x < 0.0f ? e : 1.0f;
    float y = top / d;
    /* one Newton step, for what d lost and for the division */
    return y + (SBP_FMA(-y, d, top) - y * lost) * (x < 0.0f ? 1.0f - y : y);
}

SBP_FN float sbp_log_sigmoid_f32(float x) {
    return (x < 0.0f ? x : 0.0f) - sbp_log1p_unit_f32(sbp_exp_f32(-sbp_abs_f32(x)));
}

SBP_FN float sbp_tanh_f32(float x) {
    float a = sbp_abs_f32(x);
    float z = x * x;
    float p = SBP_FMA(z, -0.00644690869f, 0.0212131105f);
    p = SBP_FMA(p, z, -0.0538931824f);
    p = SBP_FMA(p, z, 0.133330286f);
    p = SBP_FMA(p, z, -0.333333313f);
    float near = SBP_FMA(p * z, a, a);
    float far = 1.0f - 2.0f / (sbp_exp_f32(2.0f * a) + 1.0f);
    return sbp_sign_of_f32(x, a < 0.55f ? near : far);
}

/* Below 1: x + x p(x^2); from 1 on: 1 - exp(-g(x - 2.5)), g = -log erfc; from 4 on: 1. */
SBP_FN float sbp_erf_f32(float x) {
    float a = sbp_abs_f32(x);
    float z = x * x;
    float p = SBP_FMA(z, 7.80689661e-5f, -0.000799785252f);
    p = SBP_FMA(p, z, 0.0051871622f);
    p = SBP_FMA(p, z, -0.0268533472f);
    p = SBP_FMA(p, z, 0.112835787f);
    p = SBP_FMA(p, z, -0.37612626f);
    p = SBP_FMA(p, z, 0.128379166f);
    float near = SBP_FMA(p, a, a);
    float t = (a > 4.0f ? 4.0f : a) - 2.5f;
    float g = SBP_FMA(t, 1.50170754e-5f, 0.000110955669f);
    g = SBP_FMA(g, t, 0.000143619371f);
    g = SBP_FMA(g, t, 0.000649217283f);
    g = SBP_FMA(g, t, -0.00208418327f);
    g = SBP_FMA(g, t, 0.0108212363f);
    g = SBP_FMA(g, t, 0.943856478f);
    g = SBP_FMA(g, t, 5.35267258f);
    g = SBP_FMA(g, t, 7.80681515f);
    float far = 1.0f - sbp_exp_f32(-g);
    return sbp_sign_of_f32(x, a < 1.0f ? near : far);
}

/* Word i - 1 of the bits of 2/pi, most significant first; word -1 is the (zero) integer part. */
SBP_FN sbp_uint sbp_two_over_pi(int i) {
    sbp_uint w = 0u;
    w = i == 1 ? 0xa2f9836eu : w;
    w = i == 2 ? 0x4e441529u : w;
    w = i == 3 ? 0xfc2757d1u : w;
    w = i == 4 ? 0xf534ddc0u : w;
    w = i == 5 ? 0xdb629599u : w;
    w = i == 6 ? 0x3c439041u : w;
    w = i == 7 ? 0xfe5163abu : w;
    return w;
}

SBP_FN sbp_uint sbp_shifted_word(sbp_uint high, sbp_uint low, int shift) {
    return (high << shift) | ((low >> 1) >> (31 - shift));
}

/* The quadrants in |x|: |x| 2/pi modulo 4 as a number of 2^-62, whose upper word is returned. |x| = m
 * 2^(e-150) with a 24-bit m, so that the product of m and 96 bits of 2/pi, from the right place on, is enough
 * for every finite x (Payne and Hanek). */
SBP_FN sbp_uint sbp_quadrants_f32(sbp_uint bits, bool want_low) {
    int e = SBP_INT(bits >> 23);
    sbp_uint m = (bits & 0x7fffffu) | 0x800000u;
    int at = e - 56 - 96 + 32; /* first of the 96 bits, counted from the start of word -1 */
    at = at < 0 ? 0 : at;      /* |x| < 2^-7 is not reduced */
    int i = at >> 5, shift = at & 31;
    sbp_uint t0 = sbp_two_over_pi(i), t1 = sbp_two_over_pi(i + 1), t2 = sbp_two_over_pi(i + 2);
    sbp_uint t3 = sbp_two_over_pi(i + 3);
    sbp_uint w0 = sbp_shifted_word(t0, t1, shift), w1 = sbp_shifted_word(t1, t2, shift);
    sbp_uint w2 = sbp_shifted_word(t2, t3, shift);
    sbp_uint low = m * w1 + sbp_high_product(m, w2);
    sbp_uint carry = low < sbp_high_product(m, w2) ? 1u : 0u;
    return want_low ? low : m * w0 + sbp_high_product(m, w1) + carry;
}

/* sin(x + quadrant pi/2) */
SBP_FN float sbp_sin_quadrant_f32(float x, sbp_uint quadrant) {
    sbp_uint bits = SBP_BITS(x) & 0x7fffffffu;
    bool reduce = bits >= 0x3f490fdbu; /* |x| >= pi/4 */
    sbp_uint high = sbp_quadrants_f32(bits, false), low = sbp_quadrants_f32(bits, true);
    /* nearest quadrant and the rest, in [-1/2, 1/2) quadrants, as sign and magnitude */
    sbp_uint nearest = (high + 0x20000000u) >> 30;
    high -= nearest << 30;
    bool negative = high >= 0x80000000u;
    high = negative ? ~high : high;
    low = negative ? ~low : low;
    /* magnitude (in 2^-30 quadrants) = a + b, a exact in fp32; times pi/2 in two parts */
    float a = SBP_FLOAT(SBP_INT(high & 0xffffffc0u));
    float b = SBP_FLOAT(SBP_INT(((high & 63u) << 25) | (low >> 7))) * 2.98023224e-8f;
    float r = SBP_FMA(a, 1.46291812e-9f, SBP_FMA(a, -4.07094027e-17f, b * 1.46291812e-9f));
    r = negative ? -r : r;
    /* sin(-x) = -sin x, but cos(-x) = cos x */
    bool flip = x < 0.0f;
    r = reduce ? (flip ? -r : r) : x;
    nearest = reduce ? (flip ? 0u - nearest : nearest) : 0u;
    quadrant += nearest;
    float z = r * r;
    float s = SBP_FMA(z, -0.000195689528f, 0.00833265763f);
    s = SBP_FMA(s, z, -0.166666642f);
    s = SBP_FMA(s * z, r, r);
    float c = SBP_FMA(z, 2.45290958e-5f, -0.00138882129f);
    c = SBP_FMA(c, z, 0.0416666642f);
    float one = 1.0f - 0.5f * z;
    c = one + (((1.0f - one) - 0.5f * z) + c * z * z);
    float y = (quadrant & 1u) != 0u ? c : s;
    y = (quadrant & 2u) != 0u ? -y : y;
    return bits < 0x7f800000u ? y : SBP_NAN;
}

SBP_FN float sbp_sin_f32(float x) {
    return sbp_sin_quadrant_f32(x, 0u);
}

SBP_FN float sbp_cos_f32(float x) {
    return sbp_sin_quadrant_f32(x, 1u);
}

/* ---- fp64 ----------------------------------------------------------------------------------------- */

/* ---- bf16 by its bits (ir/rowkernel/rowkernel.h)
 * ---------------------------------------------------------------- */

SBP_FN bool sbp_bits_are_nan(sbp_uint u) {
    return (u & 0x7fffffffu) > 0x7f800000u;
}

SBP_FN float sbp_bf16_high_f32(float a) {
    sbp_uint u = SBP_BITS(a), high = (u + 0x8000u) & 0xffff0000u;
    return SBP_FROM_BITS(sbp_bits_are_nan(u) ? u : high);
}

SBP_FN float sbp_bf16_low_f32(float a) {
    sbp_uint u = SBP_BITS(a), low = u & 0xffffu;
    low = sbp_bits_are_nan(u) ? 0u : low;
    return SBP_FLOAT(SBP_INT(low) - SBP_INT((low & 0x8000u) << 1));
}

/* Adding 1.5 * 2^23 rounds to an integer. */
SBP_FN float sbp_bf16_join_f32(float high, float low) {
    sbp_uint u = SBP_BITS(high);
    low = sbp_bits_are_nan(SBP_BITS(low)) ? 0.0f : low;
    low = low < -32768.0f ? -32768.0f : low;
    low = low > 32767.0f ? 32767.0f : low;
    sbp_uint joined = u + (SBP_BITS(low + 12582912.0f) - 0x4b400000u);
    return SBP_FROM_BITS(sbp_bits_are_nan(u) ? u : joined);
}

SBP_FN float sbp_bf16_random_f32(float a, float u) {
    float units = u * 65536.0f;
    units = units > 0.0f ? units : 0.0f;
    units = units < 65535.0f ? units : 65535.0f;
    sbp_uint v = SBP_BITS(a), rounded = (v + SBP_UINT(SBP_INT(units))) & 0xffff0000u;
    return SBP_FROM_BITS(sbp_bits_are_nan(v) ? v : rounded);
}

#ifndef SBP_ROWMATH_NO_F64

SBP_FN double sbp_bf16_high_f64(double a) {
    return SBP_DOUBLE(sbp_bf16_high_f32(SBP_FLOAT(a)));
}

SBP_FN double sbp_bf16_low_f64(double a) {
    return SBP_DOUBLE(sbp_bf16_low_f32(SBP_FLOAT(a)));
}

SBP_FN double sbp_bf16_join_f64(double high, double low) {
    return SBP_DOUBLE(sbp_bf16_join_f32(SBP_FLOAT(high), SBP_FLOAT(low)));
}

SBP_FN double sbp_bf16_random_f64(double a, double u) {
    return SBP_DOUBLE(sbp_bf16_random_f32(SBP_FLOAT(a), SBP_FLOAT(u)));
}

#define SBP_INF64 SBP_FROM_HIGH(0x7ff00000u)
#define SBP_NAN64 SBP_FROM_HIGH(0x7ff80000u)

SBP_FN double sbp_exp_f64(double x) {
    x = x > SBP_D(710.0) ? SBP_D(710.0) : x;
    x = x < -SBP_D(746.0) ? -SBP_D(746.0) : x;
    double shifted = x * SBP_D(1.4426950408889634) + SBP_D(6755399441055744.0);
    double n = shifted - SBP_D(6755399441055744.0);
    sbp_uint k = SBP_LOW(shifted);
    double r = x - n * SBP_D(6.93147180369123816490e-01); /* the product is exact */
    r = r - n * SBP_D(1.90821492927058770002e-10);
    double q = r * SBP_D(2.0921569434129592e-9) + SBP_D(2.5105216137467281e-8);
    q = q * r + SBP_D(2.7557252964936101e-7);
    q = q * r + SBP_D(2.7557255402374484e-6);
    q = q * r + SBP_D(2.4801587347293101e-5);
    q = q * r + SBP_D(0.00019841269874818924);
    q = q * r + SBP_D(0.0013888888888874415);
    q = q * r + SBP_D(0.0083333333333261358);
    q = q * r + SBP_D(0.041666666666666685);
    q = q * r + SBP_D(0.16666666666666671);
    q = q * r + SBP_D(0.5);
    double p = (q * r * r + r) + SBP_D(1.0);
    sbp_uint half_k = SBP_UINT(SBP_INT(k) >> 1);
    return p * SBP_FROM_HIGH((half_k + 1023u) << 20) * SBP_FROM_HIGH((k - half_k + 1023u) << 20);
}

SBP_FN double sbp_log1p_rest_f64(double f, double half_square) {
    double s = f / (SBP_D(2.0) + f);
    double z = s * s;
    double l = z * SBP_D(0.14618005713160087) + SBP_D(0.15331586175176995);
    l = l * z + SBP_D(0.18182893544023435);
    l = l * z + SBP_D(0.22222211068364023);
    l = l * z + SBP_D(0.28571428626426704);
    l = l * z + SBP_D(0.39999999999898384);
    l = l * z + SBP_D(0.66666666666666696);
    return s * (half_square + z * l);
}

SBP_FN double sbp_log_f64(double x) {
    bool small = x < SBP_D(2.2250738585072014e-308);
    double scaled = small ? x * SBP_D(18014398509481984.0) : x; /* 2^54 */
    sbp_uint u = SBP_HIGH(scaled) - 0x3fe6a09eu;
    double f = SBP_FROM_HIGH_LOW((u & 0xfffffu) + 0x3fe6a09eu, SBP_LOW(scaled)) - SBP_D(1.0);
    double k = SBP_DOUBLE((SBP_INT(u) >> 20) - (small ? 54 : 0));
    double half_square = SBP_D(0.5) * f * f;
    double y = k * SBP_D(1.90821492927058770002e-10) + sbp_log1p_rest_f64(f, half_square) - half_square + f;
    y = k * SBP_D(6.93147180369123816490e-01) + y;
    y = x < SBP_INF64 ? y : x;
    y = x == SBP_D(0.0) ? -SBP_INF64 : y;
    return x < SBP_D(0.0) ? SBP_NAN64 : y;
}

SBP_FN double sbp_log1p_unit_f64(double x) {
    bool low = x < SBP_D(0.41421356237309503);
    double u = SBP_D(1.0) + x;
    double f = low ? x : SBP_D(0.5) * u - SBP_D(1.0);
    double lost = low ? SBP_D(0.0) : (x - (u - SBP_D(1.0))) / u;
    double half_square = SBP_D(0.5) * f * f;
    double y = lost + (low ? SBP_D(0.0) : SBP_D(1.90821492927058770002e-10)) +
               sbp_log1p_rest_f64(f, half_square) - half_square + f;
    return low ? y : y + SBP_D(6.93147180369123816490e-01);
}

SBP_FN double sbp_sqrt_f64(double x) {
    return SBP_SQRT64(x);
}

SBP_FN double sbp_rsqrt_f64(double x) {
    return SBP_D(1.0) / SBP_SQRT64(x);
}

SBP_FN double sbp_abs_f64(double x) {
    return SBP_FROM_HIGH_LOW(SBP_HIGH(x) & 0x7fffffffu, SBP_LOW(x));
}

SBP_FN double sbp_floor_f64(double x) {
    double all = x < SBP_D(0.0) ? SBP_D(-4503599627370496.0) : SBP_D(4503599627370496.0);
    double near = (x + all) - all;
    near = near > x ? near - SBP_D(1.0) : near;
    return sbp_abs_f64(x) < SBP_D(4503599627370496.0) ? near : x;
}

SBP_FN double sbp_sign_of_f64(double x, double y) {
    return SBP_FROM_HIGH_LOW(SBP_HIGH(y) | (SBP_HIGH(x) & 0x80000000u), SBP_LOW(y));
}

SBP_FN double sbp_sigmoid_f64(double x) {
    double e = sbp_exp_f64(-sbp_abs_f64(x));
    return (x < SBP_D(0.0) ? e : SBP_D(1.0)) / (SBP_D(1.0) + e);
}

SBP_FN double sbp_log_sigmoid_f64(double x) {
    return (x < SBP_D(0.0) ? x : SBP_D(0.0)) - sbp_log1p_unit_f64(sbp_exp_f64(-sbp_abs_f64(x)));
}

SBP_FN double sbp_tanh_f64(double x) {
    double a = sbp_abs_f64(x);
    double z = x * x;
    double p = z * SBP_D(7.885733935240934e-6) + -SBP_D(3.3740013739354698e-5);
    p = p * z + SBP_D(9.4565240081187556e-5);
    p = p * z + -SBP_D(0.00023847841564322804);
    p = p * z + SBP_D(0.000589906742698222);
    p = p * z + -SBP_D(0.0014558193330973677);
    p = p * z + SBP_D(0.0035921267946926075);
    p = p * z + -SBP_D(0.0088632354647627982);
    p = p * z + SBP_D(0.021869488534135516);
    p = p * z + -SBP_D(0.05396825396822158);
    p = p * z + SBP_D(0.13333333333333314);
    p = p * z + -SBP_D(0.33333333333333331);
    double near = p * z * a + a;
    double far = SBP_D(1.0) - SBP_D(2.0) / (sbp_exp_f64(SBP_D(2.0) * a) + SBP_D(1.0));
    return sbp_sign_of_f64(x, a < SBP_D(0.55) ? near : far);
}

/* As in fp32, with -log erfc in two pieces: around 1.75 up to 2.5, around 4.25 up to 6. */
SBP_FN double sbp_erf_f64(double x) {
    double a = sbp_abs_f64(x);
    double z = x * x;
    double p = z * -SBP_D(4.2226780140091971e-12) + SBP_D(8.7036516281070346e-11);
    p = p * z + -SBP_D(1.2163003187331336e-9);
    p = p * z + SBP_D(1.4792139432375979e-8);
    p = p * z + -SBP_D(1.6364613755934911e-7);
    p = p * z + SBP_D(1.6462043360447668e-6);
    p = p * z + -SBP_D(1.4925647462802346e-5);
    p = p * z + SBP_D(0.00012055332899280244);
    p = p * z + -SBP_D(0.00085483270218514459);
    p = p * z + SBP_D(0.0052239776254220599);
    p = p * z + -SBP_D(0.026866170645129733);
    p = p * z + SBP_D(0.11283791670955119);
    p = p * z + -SBP_D(0.37612638903183754);
    p = p * z + SBP_D(0.12837916709551259);
    double near = p * a + a;
    bool low = a < SBP_D(2.5);
    double t = (a > SBP_D(6.0) ? SBP_D(6.0) : a) - (low ? SBP_D(1.75) : SBP_D(4.25));
    double g = low ? -SBP_D(9.6769853341709133e-10) : SBP_D(0.0);
    g = g * t + (low ? -SBP_D(2.4455704477217366e-9) : SBP_D(0.0));
    g = g * t + (low ? SBP_D(2.4112025961637771e-8) : SBP_D(2.4155930137901863e-10));
    g = g * t + (low ? -SBP_D(1.1319970450917213e-7) : SBP_D(3.1244352425764615e-9));
    g = g * t + (low ? SBP_D(4.0130662585631566e-7) : SBP_D(6.9273742653703831e-9));
    g = g * t + (low ? -SBP_D(8.9092706872429264e-7) : SBP_D(5.7838072590978191e-8));
    g = g * t + (low ? -SBP_D(8.2733824155136405e-7) : -SBP_D(1.9095475299353641e-7));
    g = g * t + (low ? SBP_D(2.3741500721781335e-5) : SBP_D(1.642813878636437e-6));
    g = g * t + (low ? -SBP_D(0.00017452308971142256) : -SBP_D(1.0861703112082994e-5));
    g = g * t + (low ? SBP_D(0.00096409864241961624) : SBP_D(7.2380093213439823e-5));
    g = g * t + (low ? -SBP_D(0.00462493049744425) : -SBP_D(0.00048053374732002493));
    g = g * t + (low ? SBP_D(0.020538840382054509) : SBP_D(0.0032637414885307099));
    g = g * t + (low ? SBP_D(0.90994016649671561) : SBP_D(0.97608457580175378));
    g = g * t + (low ? SBP_D(3.9596109008134088) : SBP_D(8.7237757155012439));
    g = g * t + (low ? SBP_D(4.3178635254332223) : SBP_D(20.107769901475471));
    double far = SBP_D(1.0) - sbp_exp_f64(-g);
    return sbp_sign_of_f64(x, a < SBP_D(1.0) ? near : far);
}

/* pi/2 in four parts (30, 30, 30 bits and the rest): n times each of the first three is exact for
 * |x| < 1e7; beyond 1e9 nothing is right. */
SBP_FN double sbp_sin_quadrant_f64(double x, sbp_uint quadrant) {
    double shifted = x * SBP_D(0.63661977236758134) + SBP_D(6755399441055744.0);
    double n = shifted - SBP_D(6755399441055744.0);
    double r = x - n * SBP_D(1.570796325802803);
    r = r - n * SBP_D(9.920935791635221e-10);
    r = r - n * SBP_D(5.17018297889025e-19);
    r = r - n * SBP_D(2.9038559739793605e-28);
    quadrant += SBP_LOW(shifted);
    double z = r * r;
    double s = z * -SBP_D(7.5866889511426378e-13) + SBP_D(1.6058531486465989e-10);
    s = s * z + -SBP_D(2.5052106231657134e-8);
    s = s * z + SBP_D(2.7557319219337054e-6);
    s = s * z + -SBP_D(0.00019841269841265063);
    s = s * z + SBP_D(0.0083333333333333315);
    s = s * z + -SBP_D(0.16666666666666666);
    s = s * z * r + r;
    double c = z * SBP_D(4.7458671454801264e-14) + -SBP_D(1.1470460809931529e-11);
    c = c * z + SBP_D(2.0876755790613193e-9);
    c = c * z + -SBP_D(2.7557319221401559e-7);
    c = c * z + SBP_D(2.4801587301584645e-5);
    c = c * z + -SBP_D(0.0013888888888888887);
    c = c * z + SBP_D(0.041666666666666664);
    double one = SBP_D(1.0) - SBP_D(0.5) * z;
    c = one + (((SBP_D(1.0) - one) - SBP_D(0.5) * z) + c * z * z);
    double y = (quadrant & 1u) != 0u ? c : s;
    y = (quadrant & 2u) != 0u ? -y : y;
    return sbp_abs_f64(x) < SBP_INF64 ? y : SBP_NAN64;
}

SBP_FN double sbp_sin_f64(double x) {
    return sbp_sin_quadrant_f64(x, 0u);
}

SBP_FN double sbp_cos_f64(double x) {
    return sbp_sin_quadrant_f64(x, 1u);
}

#endif /* SBP_ROWMATH_NO_F64 */

#endif
