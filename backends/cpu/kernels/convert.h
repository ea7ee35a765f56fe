/* convert.h: element types to and from the two types that are computed in, a row at a time. Loops over what
 * is stored often vectorise; rounding is as in ir/base/types.h. */
#ifndef SBP_CPU_KERNELS_CONVERT_H
#define SBP_CPU_KERNELS_CONVERT_H

#include "backends/cpu/kernels/isa.h"
#include "ir/base/dynamic.h"
#include "ir/base/types.h"

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

/* Integers of few bits: adding 1.5 2^23 leaves no fraction. */
INLINE int32_t to_short(float x, float low, float high) {
    x = x != x ? 0 : x;
    x = x < low ? low : x;
    x = x > high ? high : x;
    return (int32_t)(x + 0x1.8p23f - 0x1.8p23f);
}

/* 2^e + f of ir/base/dynamic.h (`zero` where the magnitude is 0). border: of k, which is 2^e + f - less. The
 * decade is found by comparing, the part in it by a line that is too low by less than a part; then a border
 * decides. */
#define DECADE(x, border, e, less, scale, base)                                                              \
    {                                                                                                        \
        bool above = (x) > (border)[(1 << (e)) - 1 - (less)];                                                \
        base = above ? (float)(1 << (e)) : base;                                                             \
        scale = above ? PARTS_PER_ONE(e, less) : scale;                                                      \
    }
#define PARTS_PER_ONE(e, less) ((float)(1e6 / 0.9 * (1 << (less)) / POWER_OF_5((e) - (less))))
#define POWER_OF_5(e)                                                                                        \
    ((e) == 0 ? 1 : (e) == 1 ? 5 : (e) == 2 ? 25 : (e) == 3 ? 125 : (e) == 4 ? 625 : (e) == 5 ? 3125 : 15625)
#define DYNAMIC_MAGNITUDE(name, border, less)                                                                \
    INLINE int32_t name(float x) {                                                                           \
        float base = 1 << (less), scale = PARTS_PER_ONE(less, less);                                         \
        DECADE(x, border, 1 + (less), less, scale, base)                                                     \
        DECADE(x, border, 2 + (less), less, scale, base)                                                     \
        DECADE(x, border, 3 + (less), less, scale, base)                                                     \
        DECADE(x, border, 4 + (less), less, scale, base)                                                     \
        DECADE(x, border, 5 + (less), less, scale, base)                                                     \
        DECADE(x, border, 6 + (less), less, scale, base)                                                     \
        float at = x * scale + (base * (float)(8 / 9.0) - 1e-3f), last = 2 * base - 1;                       \
        at = at > base ? at : base;                                                                          \
        int32_t k = (int32_t)(at < last ? at : last) - (less);                                               \
        k += x > (border)[k];                                                                                \
        return x > (border)[0] ? k : 0;                                                                      \
    }
DYNAMIC_MAGNITUDE(d8_magnitude, sbp_d8_borders, 0)
DYNAMIC_MAGNITUDE(ud8_magnitude, sbp_ud8_borders, 1)
#undef DECADE
#undef PARTS_PER_ONE
#undef POWER_OF_5
#undef DYNAMIC_MAGNITUDE

INLINE uint8_t to_d8(float x) {
    int32_t k = d8_magnitude(x < 0 ? -x : x), below = k < 1 ? 1 : k > 127 ? 127 : k;
    return (uint8_t)(x < 0 ? below | 0x80 : k);
}

INLINE uint8_t to_ud8(float x) {
    return (uint8_t)ud8_magnitude(x);
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
    case SBP_I16:
        CONVERT_LOOP(int16_t, (float)s[i])
    case SBP_I32:
        CONVERT_LOOP(int32_t, (float)s[i])
    case SBP_I64:
        CONVERT_LOOP(int64_t, (float)s[i])
    case SBP_BOOL:
        CONVERT_LOOP(uint8_t, (float)(s[i] != 0))
    case SBP_D8:
        CONVERT_LOOP(uint8_t, sbp_d8_numbers[s[i]])
    case SBP_UD8:
        CONVERT_LOOP(uint8_t, sbp_ud8_numbers[s[i]])
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
    case SBP_I16:
        CONVERT_LOOP(int16_t, (double)s[i])
    case SBP_I32:
        CONVERT_LOOP(int32_t, (double)s[i])
    case SBP_I64:
        CONVERT_LOOP(int64_t, (double)s[i])
    case SBP_BOOL:
        CONVERT_LOOP(uint8_t, (double)(s[i] != 0))
    case SBP_D8:
        CONVERT_LOOP(uint8_t, (double)sbp_d8_numbers[s[i]])
    case SBP_UD8:
        CONVERT_LOOP(uint8_t, (double)sbp_ud8_numbers[s[i]])
    case SBP_DTYPE_COUNT: /* no type */
        memset(out, 0, (size_t)n * sizeof *out);
        break;
    }
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
    case SBP_I8:
        STORE_LOOP(int8_t, (int8_t)to_short(s[i], INT8_MIN, INT8_MAX))
    case SBP_I16:
        STORE_LOOP(int16_t, (int16_t)to_short(s[i], INT16_MIN, INT16_MAX))
    case SBP_D8:
        STORE_LOOP(uint8_t, to_d8(s[i]))
    case SBP_UD8:
        STORE_LOOP(uint8_t, to_ud8(s[i]))
    default:
        for (int64_t i = 0; i < n; i++)
            sbp_element_set(out, dtype, i, (double)s[i]);
    }
}

static inline void store_row_f64(char *out, sbp_dtype dtype, const double *restrict s, int64_t n) {
    switch (dtype) {
    case SBP_F32:
        STORE_LOOP(float, (float)s[i])
    case SBP_F64:
        memcpy(out, s, (size_t)n * sizeof *s);
        break;
    default: /* bf16 and f16 too: rounded once, not by way of fp32 */
        for (int64_t i = 0; i < n; i++)
            sbp_element_set(out, dtype, i, s[i]);
    }
}

#endif
