#include "tests/ptx/tensor/approx.h"

#include <math.h>

uint64_t sbp_ptx_hash(uint64_t seed, uint64_t a, uint64_t b, uint64_t c) {
    const uint64_t words[] = {seed, a, b, c};
    uint64_t state = 0;
    for (int i = 0; i < 4; i++) { // SplitMix64 (Steele, Lea, Flood 2014)
        state += UINT64_C(0x9e3779b97f4a7c15) + words[i];
        state = (state ^ state >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        state = (state ^ state >> 27) * UINT64_C(0x94d049bb133111eb);
        state ^= state >> 31;
    }
    return state;
}

static double exact_result(sbp_ptx_approximation op, double x, double y) {
    switch (op) {
    case SBP_PTX_RCP:
        return 1 / x;
    case SBP_PTX_SQRT:
        return sqrt(x);
    case SBP_PTX_RSQRT:
        return x == 0 ? copysign((double)INFINITY, x) : 1 / sqrt(x);
    case SBP_PTX_SIN:
        return sin(x);
    case SBP_PTX_COS:
        return cos(x);
    case SBP_PTX_LG2:
        return x == 0 ? -(double)INFINITY : log2(x); // of -0 too
    case SBP_PTX_EX2:
        return exp2(x);
    case SBP_PTX_TANH:
        return tanh(x);
    default:
        return x / y;
    }
}

// One unit in the last place of f32 at value: 2^-149 for what is subnormal.
static double ulp_f32(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint64_t biased = bits >> 52 & 2047, least = 1023 - 126;
    const uint64_t ulp = (biased < least ? least : biased) - 23;
    const uint64_t result = ulp << 52;
    memcpy(&value, &result, sizeof value);
    return value;
}

static double sine_bound(double x) {
    const double pi = 3.14159265358979323846;
    return fabs(x) <= 2 * pi ? exp2(-20.5) : fabs(x) <= 100 * pi ? exp2(-14.7) : ldexp(1, -8);
}

// How far from the exact result the documented error may lead.
static double bound_of(sbp_ptx_approximation op, sbp_ptx_type type, double x, double exact) {
    const double size = fabs(exact);
    switch (op) {
    case SBP_PTX_RCP:
        return ulp_f32(exact);
    case SBP_PTX_SQRT:
        return ldexp(size, -23);
    case SBP_PTX_RSQRT:
        return size * exp2(-22.9);
    case SBP_PTX_SIN:
    case SBP_PTX_COS:
        return sine_bound(x);
    case SBP_PTX_LG2:
        return x > 0.5 && x < 2 ? ldexp(1, -22) : ldexp(size, -22);
    case SBP_PTX_EX2:
        return type == SBP_PTX_F16    ? size * exp2(-9.9)
               : type == SBP_PTX_BF16 ? ldexp(size, -7)
                                      : 2 * ulp_f32(exact);
    case SBP_PTX_TANH:
        return type == SBP_PTX_F16 ? exp2(-10.987) : type == SBP_PTX_BF16 ? ldexp(1, -8) : ldexp(size, -11);
    default:
        return 2 * ulp_f32(exact);
    }
}

/* What the tables of special values give, zeros and infinities (no approximations), and what rounds to zero.
 * And 2 to whole numbers: NVIDIA's own tanh of fp64 takes them from ex2.approx.ftz.f32 for its last bits, so
 * that hardware must have them exact. */
static bool special(sbp_ptx_approximation op, double x, double exact) {
    if (!isfinite(x) || !isfinite(exact) || fabs(exact) < ldexp(1, -150)) {
        return true;
    }
    return (op == SBP_PTX_EX2 && x == floor(x)) || (op == SBP_PTX_COS && x == 0);
}

static double nearest(sbp_ptx_type type, double value) {
    return type == SBP_PTX_F32 ? (double)(float)value
                               : sbp_ptx_value(type, sbp_ptx_round(type, value, SBP_PTX_RN, 0));
}

// exact moved by `share` (-1 .. 1) of bound and rounded, then brought back inside where rounding led out of
// it.
static double moved(sbp_ptx_approximation op, sbp_ptx_type type, double exact, double bound, double share) {
    const bool within_one = op == SBP_PTX_SIN || op == SBP_PTX_COS || op == SBP_PTX_TANH;
    for (int halvings = 0; halvings < 8; halvings++, share /= 2) {
        const double rounded = nearest(type, exact + share * bound);
        const bool same_side = rounded == 0 || op == SBP_PTX_LG2 || signbit(rounded) == signbit(exact);
        if (fabs(rounded - exact) <= bound && same_side && !(within_one && fabs(rounded) > 1)) {
            return rounded;
        }
    }
    return exact;
}

static uint32_t flushed(sbp_ptx_type type, uint32_t bits) {
    const uint32_t exponent = type == SBP_PTX_F16 ? 0x7c00 : type == SBP_PTX_BF16 ? 0x7f80 : 0x7f800000;
    const uint32_t sign = type == SBP_PTX_F32 ? 0x80000000 : 0x8000;
    return bits & exponent ? bits : bits & sign;
}

// div.approx of |y| above 2^126.
static bool huge_divisor(sbp_ptx_approximation op, double y) {
    return op == SBP_PTX_DIV && isfinite(y) && fabs(y) > 0x1p126;
}

uint32_t sbp_ptx_approx(sbp_ptx_approximation op, sbp_ptx_type type, uint32_t x, uint32_t y, bool ftz,
                        uint64_t seed) {
    x = ftz ? flushed(type, x) : x;
    y = ftz ? flushed(type, y) : y;
    const double xv = sbp_ptx_value(type, x), yv = sbp_ptx_value(type, y);
    const unsigned flags = ftz ? SBP_PTX_FTZ : 0;
    if (huge_divisor(op, yv)) {
        const double huge = isinf(xv) || isnan(xv) ? (double)NAN : copysign(0, xv) * copysign(1, yv);
        return (uint32_t)sbp_ptx_round(type, huge, SBP_PTX_RN, 0);
    }
    double result = exact_result(op, xv, yv);
    if (seed != 0 && !special(op, xv, result)) {
        const uint64_t bits = sbp_ptx_hash(seed, (uint64_t)op << 8 | type, x, y);
        const double share = (double)(int64_t)bits * 0x1p-63;
        result = moved(op, type, result, bound_of(op, type, xv, result), share);
    }
    if (type == SBP_PTX_F32 && isfinite(result) && !ftz) {
        return sbp_ptx_bits_of_f32((float)result);
    }
    return (uint32_t)sbp_ptx_round(type, result, SBP_PTX_RN, flags);
}
