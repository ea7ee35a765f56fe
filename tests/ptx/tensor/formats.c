#include "tests/ptx/tensor/formats.h"

#include <math.h>

// Shape of a floating format: bits of exponent and significand, the latter without the hidden one.
typedef struct {
    int exponent, mantissa;
    bool infinity;
    int spare; // bits below the mantissa
} format;

static const format formats[] = {
    [SBP_PTX_BF16] = {8, 7, true, 0},  [SBP_PTX_F16] = {5, 10, true, 0}, [SBP_PTX_TF32] = {8, 10, true, 13},
    [SBP_PTX_E4M3] = {4, 3, false, 0}, [SBP_PTX_E5M2] = {5, 2, true, 0}, [SBP_PTX_F32] = {8, 23, true, 0},
    [SBP_PTX_F64] = {11, 52, true, 0},
};

int sbp_ptx_type_bits(sbp_ptx_type type) {
    static const uint8_t bits[] = {
        [SBP_PTX_BF16] = 16, [SBP_PTX_F16] = 16, [SBP_PTX_TF32] = 32, [SBP_PTX_E4M3] = 8, [SBP_PTX_E5M2] = 8,
        [SBP_PTX_F32] = 32,  [SBP_PTX_F64] = 64, [SBP_PTX_S8] = 8,    [SBP_PTX_U8] = 8,   [SBP_PTX_S32] = 32};
    return bits[type];
}

static double double_of_bits(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint64_t bits_of_double(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

double sbp_ptx_value(sbp_ptx_type type, uint64_t bits) {
    switch (type) {
    case SBP_PTX_S8:
        return (int8_t)bits;
    case SBP_PTX_U8:
        return (uint8_t)bits;
    case SBP_PTX_S32:
        return (int32_t)bits;
    case SBP_PTX_F32:
        return sbp_ptx_f32_of_bits((uint32_t)bits);
    case SBP_PTX_BF16:
        return sbp_ptx_f32_of_bf16((uint16_t)bits);
    case SBP_PTX_TF32:
        return sbp_ptx_f32_of_bits((uint32_t)bits & 0xffffe000);
    case SBP_PTX_F64:
        return double_of_bits(bits);
    default:
        break;
    }
    const format f = formats[type];
    const int sign = (int)(bits >> (f.exponent + f.mantissa) & 1);
    const int biased = (int)(bits >> f.mantissa) & ((1 << f.exponent) - 1);
    const int fraction = (int)bits & ((1 << f.mantissa) - 1), bias = (1 << (f.exponent - 1)) - 1;
    const int highest = (1 << f.exponent) - 1;
    double value = 0;
    if (biased == highest && f.infinity) {
        value = fraction ? (double)NAN : (double)INFINITY;
    } else if (biased == highest && fraction == (1 << f.mantissa) - 1) {
        value = (double)NAN;
    } else if (biased == 0) {
        value = ldexp(fraction, 1 - bias - f.mantissa);
    } else {
        value = ldexp(fraction + (1 << f.mantissa), biased - bias - f.mantissa);
    }
    return sign ? -value : value;
}

static uint64_t sign_bit(format f, bool negative) {
    return (uint64_t)negative << (f.exponent + f.mantissa + f.spare);
}

// The largest finite magnitude; infinity's is one above, where there is one.
static uint64_t largest(format f) {
    const uint64_t all = ((UINT64_C(1) << (f.exponent + f.mantissa)) - 1);
    return f.infinity ? all - (UINT64_C(1) << f.mantissa) : all - 1;
}

static uint64_t canonical_nan(sbp_ptx_type type, format f) {
    if (type == SBP_PTX_F64) {
        return UINT64_C(0x7ff8000000000000);
    }
    return type == SBP_PTX_TF32 ? 0x7fffffff : (UINT64_C(1) << (f.exponent + f.mantissa)) - 1;
}

static uint64_t overflowed(sbp_ptx_type type, format f, bool negative, sbp_ptx_rounding mode,
                           unsigned flags) {
    const bool inward =
        mode == SBP_PTX_RZ || (mode == SBP_PTX_RM && !negative) || (mode == SBP_PTX_RP && negative);
    if (inward || flags & SBP_PTX_SATFINITE) {
        return sign_bit(f, negative) | largest(f) << f.spare;
    }
    return f.infinity ? sign_bit(f, negative) | (largest(f) + 1) << f.spare : canonical_nan(type, f);
}

// Whether the magnitude kept (its last bit odd or not) goes up by one, for a rest against half of that bit
// (-1, 0, 1).
static bool goes_up(sbp_ptx_rounding mode, bool negative, bool odd, bool inexact, int rest_against_half) {
    switch (mode) {
    case SBP_PTX_RN:
        return rest_against_half > 0 || (rest_against_half == 0 && odd);
    case SBP_PTX_RNA:
        return rest_against_half >= 0;
    case SBP_PTX_RM:
        return inexact && negative;
    case SBP_PTX_RP:
        return inexact && !negative;
    default:
        return false;
    }
}

uint64_t sbp_ptx_round(sbp_ptx_type type, double value, sbp_ptx_rounding mode, unsigned flags) {
    const format f = formats[type];
    if (isnan(value)) {
        return flags & SBP_PTX_SAT ? 0 : canonical_nan(type, f);
    }
    if ((flags & SBP_PTX_RELU && value < 0) || (flags & SBP_PTX_SAT && value < 0)) {
        return 0;
    }
    if (flags & SBP_PTX_SAT && value > 1) {
        value = 1;
    }
    const uint64_t bits = bits_of_double(value), magnitude = bits << 1 >> 1;
    const bool negative = bits >> 63;
    if (negative && magnitude == 0 && flags & (SBP_PTX_RELU | SBP_PTX_SAT)) {
        return 0;
    }
    if (type == SBP_PTX_F64) {
        return isinf(value) && flags & SBP_PTX_SATFINITE ? bits - 1 : bits;
    }
    if (isinf(value)) {
        const sbp_ptx_rounding outward = negative ? SBP_PTX_RM : SBP_PTX_RP;
        return overflowed(type, f, negative, outward, flags);
    }
    // significand * 2^(exponent - 52), normal but for what is below every format here
    const int bias = (1 << (f.exponent - 1)) - 1, exponent = (int)(magnitude >> 52) - 1023;
    const uint64_t significand = (magnitude << 12 >> 12) | (magnitude >> 52 ? UINT64_C(1) << 52 : 0);
    const bool subnormal = exponent < 1 - bias;
    int drop = 52 - f.mantissa + (subnormal ? 1 - bias - exponent : 0);
    drop = drop > 63 ? 63 : drop; // beyond 53 bits everything is the rest, and below half
    const uint64_t rest = significand & ((UINT64_C(1) << drop) - 1), half = UINT64_C(1) << (drop - 1);
    uint64_t kept = significand >> drop; // with the hidden bit where normal
    const int against_half = rest > half ? 1 : rest == half ? 0 : -1;
    kept += goes_up(mode, negative, kept & 1, rest != 0, against_half);
    // A carry out of the significand walks into the exponent, out of a subnormal too.
    const uint64_t encoded = subnormal ? kept : kept + ((uint64_t)(exponent + bias - 1) << f.mantissa);
    if (encoded > largest(f)) {
        return overflowed(type, f, negative, mode, flags);
    }
    if (flags & SBP_PTX_FTZ && encoded >> f.mantissa == 0) {
        return sign_bit(f, negative);
    }
    return sign_bit(f, negative) | encoded << f.spare;
}

// nearest is x's rounding to nearest, and `rest` has the sign of x - nearest: x rounded to odd.
static double to_odd(double nearest, double rest) {
    if (rest == 0 || !isfinite(nearest) || isnan(rest) || bits_of_double(nearest) & 1) {
        return nearest;
    }
    return nextafter(nearest, rest > 0 ? (double)INFINITY : -(double)INFINITY);
}

double sbp_ptx_add_odd(double x, double y) {
    const double sum = x + y, part = sum - x; // Knuth's two-sum
    return to_odd(sum, (x - (sum - part)) + (y - part));
}

double sbp_ptx_fma_odd(double x, double y, double z) {
    return sbp_ptx_add_odd(x * y, z);
}

double sbp_ptx_div_odd(double x, double y) {
    const double quotient = x / y, rest = fma(-quotient, y, x);
    return to_odd(quotient, y < 0 ? -rest : rest);
}

double sbp_ptx_sqrt_odd(double x) {
    const double root = sqrt(x);
    return to_odd(root, fma(-root, root, x));
}

// f16 as bits to float without branches: the exponent is moved by a product, which subnormals survive.
static float f32_of_f16(uint32_t bits) {
    const uint32_t magnitude = (bits & 0x7fff) << 13;
    const float scaled = sbp_ptx_f32_of_bits(magnitude) * 0x1p112f;
    const uint32_t finite = sbp_ptx_bits_of_f32(scaled), special = magnitude | 0x7f800000;
    return sbp_ptx_f32_of_bits((magnitude >= 0x0f800000 ? special : finite) | (bits & 0x8000) << 16);
}

void sbp_ptx_values(sbp_ptx_type type, const uint32_t lanes[32], double out[4][32]) {
    if (type == SBP_PTX_BF16) {
        for (int lane = 0; lane < 32; lane++) {
            out[0][lane] = sbp_ptx_f32_of_bits(lanes[lane] << 16);
            out[1][lane] = sbp_ptx_f32_of_bits(lanes[lane] & 0xffff0000);
        }
    } else if (type == SBP_PTX_F16) {
        for (int lane = 0; lane < 32; lane++) {
            out[0][lane] = f32_of_f16(lanes[lane] & 0xffff);
            out[1][lane] = f32_of_f16(lanes[lane] >> 16);
        }
    } else if (type == SBP_PTX_F32 || type == SBP_PTX_TF32) {
        const uint32_t mask = type == SBP_PTX_F32 ? 0xffffffff : 0xffffe000;
        for (int lane = 0; lane < 32; lane++) {
            out[0][lane] = sbp_ptx_f32_of_bits(lanes[lane] & mask);
        }
    } else {
        const int bits = sbp_ptx_type_bits(type);
        for (int j = 0; j < 32 / bits; j++) {
            for (int lane = 0; lane < 32; lane++) {
                out[j][lane] = sbp_ptx_value(type, lanes[lane] >> (j * bits));
            }
        }
    }
}

static uint32_t element_of(sbp_ptx_type type, double value) {
    if (type == SBP_PTX_S32) {
        return (uint32_t)(int32_t)value;
    }
    return (uint32_t)sbp_ptx_round(type, value, SBP_PTX_RN, 0);
}

void sbp_ptx_rounded(sbp_ptx_type type, const double values[4][32], uint32_t lanes[32]) {
    if (type == SBP_PTX_F32) {
        for (int lane = 0; lane < 32; lane++) {
            const uint32_t bits = sbp_ptx_bits_of_f32((float)values[0][lane]);
            lanes[lane] = (bits & 0x7fffffff) > 0x7f800000 ? 0x7fffffff : bits;
        }
        return;
    }
    const int bits = sbp_ptx_type_bits(type);
    for (int lane = 0; lane < 32; lane++) {
        uint32_t word = 0;
        for (int j = 0; j < 32 / bits; j++) {
            word |= element_of(type, values[j][lane]) << (j * bits);
        }
        lanes[lane] = word;
    }
}
