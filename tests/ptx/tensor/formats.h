/* Number formats by bits, and rounding into them ("Data Movement and Conversion Instructions: cvt").
 *
 * Every conversion between floating formats is sbp_ptx_round(to, sbp_ptx_value(from, bits), mode, flags): a
 * double holds each value of each format exactly, so that there is one rounding. Arithmetic in formats of at
 * most 24 bits of significand goes the same way through the *_odd functions, whose results round once more
 * without harm. */
#ifndef SBP_PTX_FORMATS_H
#define SBP_PTX_FORMATS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef enum {
    SBP_PTX_BF16, // 1 + 8 + 7 bits
    SBP_PTX_F16,  // 1 + 5 + 10
    SBP_PTX_TF32, // 1 + 8 + 10 in the upper 19 bits of 32; the lower 13 are ignored when read, zero when
                  // written
    SBP_PTX_E4M3, // 1 + 4 + 3, no infinity, NaN 0x7f and 0xff, largest 448
    SBP_PTX_E5M2, // 1 + 5 + 2
    SBP_PTX_F32,
    SBP_PTX_F64,
    SBP_PTX_S8,
    SBP_PTX_U8,
    SBP_PTX_S32,
} sbp_ptx_type;

typedef enum {
    SBP_PTX_RN,  // to nearest, ties to even
    SBP_PTX_RZ,  // towards zero
    SBP_PTX_RM,  // towards -infinity
    SBP_PTX_RP,  // towards +infinity
    SBP_PTX_RNA, // to nearest, ties away from zero (.rna, only of tf32)
} sbp_ptx_rounding;

// Flags of sbp_ptx_round.
enum {
    SBP_PTX_SATFINITE = 1, // what is beyond the largest finite value becomes it, infinity too; NaN stays NaN
    SBP_PTX_RELU = 2,      // what is negative becomes +0; NaN becomes the canonical NaN
    SBP_PTX_FTZ = 4,       // a subnormal result becomes a zero of its sign
    SBP_PTX_SAT = 8,       // .sat: into [0, 1], NaN becomes +0
};

// Bits of an element of this type: 8, 16, 32 or 64.
int sbp_ptx_type_bits(sbp_ptx_type type);

// The value of an element; bits above the type's width are ignored. NaN of any payload is a NaN.
double sbp_ptx_value(sbp_ptx_type type, uint64_t bits);

/* value in this floating type, rounded once. Overflow gives infinity or, as IEEE 754 has it, the largest
 * finite value where the mode rounds towards zero there. E4M3 has no infinity: overflow without SATFINITE is
 * a NaN. NaN is canonical: all ones below the sign (bf16 and f16 0x7fff, tf32 and f32 0x7fffffff, e4m3 and
 * e5m2 0x7f), f64 0x7ff8 0...0. */
uint64_t sbp_ptx_round(sbp_ptx_type type, double value, sbp_ptx_rounding mode, unsigned flags);

// Subnormal f32 bits become a zero of the same sign (.ftz of an operand).
static inline uint32_t sbp_ptx_flush_f32(uint32_t bits) {
    return (bits & 0x7f800000) ? bits : bits & 0x80000000;
}

/* x + y, x * y + z, x / y and sqrt(x) rounded to odd into double: the exact result, or else, of the two
 * doubles around it, the one with an odd last bit (Boldo, Melquiond 2008). sbp_ptx_round of that is the
 * correctly rounded result in every mode and every format of at most 24 bits of significand. fma needs a
 * product that is exact in double: operands of at most 24 bits each. Signs of exact zeros are those of
 * rounding to nearest. */
double sbp_ptx_add_odd(double x, double y);
double sbp_ptx_fma_odd(double x, double y, double z);
double sbp_ptx_div_odd(double x, double y);
double sbp_ptx_sqrt_odd(double x);

/* A register of 32 lanes taken apart: out[j][lane] is element j (from the lowest bits) of the lane, 32 / bits
 * of them. Types of at most 32 bits. The same values as sbp_ptx_value, quicker. */
void sbp_ptx_values(sbp_ptx_type type, const uint32_t lanes[32], double out[4][32]);
// The opposite, each element rounded to nearest; floating types and S32 (of values that fit).
void sbp_ptx_rounded(sbp_ptx_type type, const double values[4][32], uint32_t lanes[32]);

// The usual conversions, short: equal to sbp_ptx_round and sbp_ptx_value with mode RN and no flag.
static inline float sbp_ptx_f32_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t sbp_ptx_bits_of_f32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline uint16_t sbp_ptx_bf16_of_f32(float value) {
    const uint32_t bits = sbp_ptx_bits_of_f32(value);
    if ((bits & 0x7fffffff) > 0x7f800000) {
        return 0x7fff;
    }
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float sbp_ptx_f32_of_bf16(uint16_t bits) {
    return sbp_ptx_f32_of_bits((uint32_t)bits << 16);
}

#endif
