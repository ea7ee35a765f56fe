/* convert.h: element types to and from the two types that are computed in, a row at a time. Loops vectorise;
 * rounding is to nearest, ties to even, as in ir/types.h. */
#ifndef SBP_CPU_KERNELS_CONVERT_H
#define SBP_CPU_KERNELS_CONVERT_H

#include "backends/cpu/kernels/isa.h"
#include "ir/types.h"

#include <math.h>
#include <string.h>

INLINE uint32_t bits_of(float x) {
    return (union {
               float f;
               uint32_t u;
           }){.f = x}
        .u;
}

INLINE float float_of(uint32_t x) {
    return (union {
               uint32_t u;
               float f;
           }){.u = x}
        .f;
}

INLINE float from_bf16(uint16_t h) {
    return float_of((uint32_t)h << 16);
}

INLINE uint16_t to_bf16(float x) {
    uint32_t u = bits_of(x);
    uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    return (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? (u >> 16) | 0x40 : rounded);
}

/* The exponent is moved by a multiplication, which handles subnormal numbers too. */
INLINE float from_f16(uint16_t h) {
    uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13;
    uint32_t u = bits_of(float_of(magnitude) * 0x1p112f);
    u = magnitude >= 0x0f800000 ? magnitude | 0x7f800000 : u; /* inf and NaN */
    return float_of(u | (uint32_t)(h & 0x8000) << 16);
}

INLINE uint16_t to_f16(float x) {
    uint32_t u = bits_of(x), magnitude = u & 0x7fffffff;
    uint32_t normal = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    uint32_t small = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000; /* units of 2^-24 */
    uint32_t h = magnitude < 0x38800000 ? small : normal;
    h = magnitude >= 0x477ff000 ? 0x7c00 : h;
    h = magnitude > 0x7f800000 ? 0x7e00 : h;
    return (uint16_t)(h | (u >> 16 & 0x8000));
}

#define CONVERT_LOOP(type, expression)                                                                       \
    {                                                                                                        \
        const type *restrict s = (const type *)(const void *)source;                                         \
        for (int64_t i = 0; i < n; i++)                                                                      \
            out[i] = (expression);                                                                           \
        break;                                                                                               \
    }

/* out[i] = element i of source, n of them. */
static inline void load_row_f32(float *restrict out, const char *source, sbp_dtype dtype, int64_t n) {
    switch (dtype) {
    case SBP_F32:
        memcpy(out, source, (size_t)n * sizeof *out);
        break;
    case SBP_F64:
        CONVERT_LOOP(double, (float)s[i])
    case SBP_BF16:
        CONVERT_LOOP(uint16_t, from_bf16(s[i]))
    case SBP_F16:
        CONVERT_LOOP(uint16_t, from_f16(s[i]))
    case SBP_I8:
        CONVERT_LOOP(int8_t, (float)s[i])
    case SBP_I32:
        CONVERT_LOOP(int32_t, (float)s[i])
    case SBP_I64:
        CONVERT_LOOP(int64_t, (float)s[i])
    case SBP_BOOL:
        CONVERT_LOOP(uint8_t, (float)(s[i] != 0))
    case SBP_DTYPE_COUNT:
        break;
    }
}

static inline void load_row_f64(double *restrict out, const char *source, sbp_dtype dtype, int64_t n) {
    switch (dtype) {
    case SBP_F32:
        CONVERT_LOOP(float, (double)s[i])
    case SBP_F64:
        memcpy(out, source, (size_t)n * sizeof *out);
        break;
    case SBP_BF16:
        CONVERT_LOOP(uint16_t, (double)from_bf16(s[i]))
    case SBP_F16:
        CONVERT_LOOP(uint16_t, (double)from_f16(s[i]))
    case SBP_I8:
        CONVERT_LOOP(int8_t, (double)s[i])
    case SBP_I32:
        CONVERT_LOOP(int32_t, (double)s[i])
    case SBP_I64:
        CONVERT_LOOP(int64_t, (double)s[i])
    case SBP_BOOL:
        CONVERT_LOOP(uint8_t, (double)(s[i] != 0))
    case SBP_DTYPE_COUNT:
        break;
    }
}

/* Integers saturate; NaN becomes 0. */
static inline void store_integer(char *out, sbp_dtype dtype, int64_t i, double value) {
    double low = dtype == SBP_I8 ? INT8_MIN : dtype == SBP_I32 ? INT32_MIN : (double)INT64_MIN;
    double high = dtype == SBP_I8 ? INT8_MAX : dtype == SBP_I32 ? INT32_MAX : 0x1.fffffffffffffp62;
    if (dtype != SBP_BOOL)
        value = value != value ? 0 : value < low ? low : value > high ? high : rint(value);
    sbp_element_set(out, dtype, i, value);
}

#define STORE_LOOP(type, expression)                                                                         \
    {                                                                                                        \
        type *restrict o = (type *)(void *)out;                                                              \
        for (int64_t i = 0; i < n; i++)                                                                      \
            o[i] = (expression);                                                                             \
        break;                                                                                               \
    }

static inline void store_row_f32(char *out, sbp_dtype dtype, const float *restrict s, int64_t n) {
    switch (dtype) {
    case SBP_F32:
        memcpy(out, s, (size_t)n * sizeof *s);
        break;
    case SBP_F64:
        STORE_LOOP(double, (double)s[i])
    case SBP_BF16:
        STORE_LOOP(uint16_t, to_bf16(s[i]))
    case SBP_F16:
        STORE_LOOP(uint16_t, to_f16(s[i]))
    default:
        for (int64_t i = 0; i < n; i++)
            store_integer(out, dtype, i, (double)s[i]);
    }
}

static inline void store_row_f64(char *out, sbp_dtype dtype, const double *restrict s, int64_t n) {
    switch (dtype) {
    case SBP_F32:
        STORE_LOOP(float, (float)s[i])
    case SBP_F64:
        memcpy(out, s, (size_t)n * sizeof *s);
        break;
    case SBP_BF16:
    case SBP_F16: /* rounded once, not by way of fp32 */
        for (int64_t i = 0; i < n; i++)
            sbp_element_set(out, dtype, i, s[i]);
        break;
    default:
        for (int64_t i = 0; i < n; i++)
            store_integer(out, dtype, i, s[i]);
    }
}

#endif
