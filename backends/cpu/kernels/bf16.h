/* bf16.h: bf16 as operands of products, two steps of k at a time. With vec_dot_bf16 (isa.h) a step is a pair,
 * k even in its low half; without, a number of fp32, the odd one before the even one, so that multiply-adds
 * come in the order of that instruction and give its bits. A k that is not there counts as 0. */
#ifndef SBP_CPU_KERNELS_BF16_H
#define SBP_CPU_KERNELS_BF16_H

#include "backends/cpu/kernels/convert.h"

#if CPU_HAS_DOT
typedef uint32_t bf16_operand;
#define BF16_STEPS 1 /* per pair of k */
#else
typedef float bf16_operand;
#define BF16_STEPS 2
#endif

enum { BF16_MOST_COLUMNS = 512 };
static const uint16_t bf16_zeros[BF16_MOST_COLUMNS];

/* Two rows of n elements, k and k + 1: out[step][j], steps `row` operands apart. */
INLINE void bf16_pair_rows(bf16_operand *restrict out, int64_t row, const uint16_t *restrict even,
                           const uint16_t *restrict odd, int64_t n) {
#if CPU_HAS_DOT
    (void)row;
    for (int64_t j = 0; j < n; j++)
        out[j] = (uint32_t)even[j] | (uint32_t)odd[j] << 16;
#else
    for (int64_t j = 0; j < n; j++)
        out[j] = from_bf16(odd[j]);
    for (int64_t j = 0; j < n; j++)
        out[row + j] = from_bf16(even[j]);
#endif
}

/* n elements that follow each other along k: out[step]. */
INLINE void bf16_pair_elements(bf16_operand *restrict out, const uint16_t *restrict in, int64_t n) {
#if CPU_HAS_DOT
    memcpy(out, in, (size_t)(n / 2) * sizeof *out);
    if (n % 2)
        out[n / 2] = in[n - 1];
#else
    for (int64_t i = 0; i + 1 < n; i += 2) {
        out[i] = from_bf16(in[i + 1]);
        out[i + 1] = from_bf16(in[i]);
    }
    if (n % 2) {
        out[n - 1] = 0;
        out[n] = from_bf16(in[n - 1]);
    }
#endif
}

/* Numbers of fp32 are rounded to nearest, ties to even, whole vectors of them. Memory is that of floats: a
 * pair takes as much. */

#if !CPU_HAS_DOT
INLINE vec_f32 bf16_round(vec_f32 x) {
    vec_i32 u = (vec_i32)x, nan = (u & 0x7fffffff) > 0x7f800000;
    vec_i32 rounded = (u + 0x7fff + ((u >> 16) & 1)) & ~0xffff;
    return (vec_f32)((~nan & rounded) | (nan & ((u | 0x400000) & ~0xffff)));
}
#endif

/* Two rows, k and k + 1, into steps `row` floats apart, as bf16_pair_rows. out may be even. */
INLINE void bf16_round_rows(float *out, int64_t row, const float *even, const float *odd, int64_t n) {
    for (int64_t j = 0; j < n; j += CPU_VECTOR_BYTES / 4) {
        vec_f32 x = *(const vec_f32_memory *)(even + j), y = *(const vec_f32_memory *)(odd + j);
#if CPU_HAS_DOT
        const __m512i zip = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23,
                                             7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
        (void)row;
        __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)y, (__m512)x); /* x in the lower half */
        *(vec_f32_memory *)(out + j) = (vec_f32)_mm512_permutexvar_epi16(zip, both);
#else
        *(vec_f32_memory *)(out + j) = bf16_round(y);
        *(vec_f32_memory *)(out + row + j) = bf16_round(x);
#endif
    }
}

#if CPU_VECTOR_BYTES == 64
#define BF16_SWAPPED 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14
#elif CPU_VECTOR_BYTES == 32
#define BF16_SWAPPED 1, 0, 3, 2, 5, 4, 7, 6
#else
#define BF16_SWAPPED 1, 0, 3, 2
#endif

/* n numbers that follow each other along k, in place, as bf16_pair_elements. */
INLINE void bf16_round_elements(float *x, int64_t n) {
    int64_t step = CPU_VECTOR_BYTES / 4;
#if CPU_HAS_DOT
    int64_t j = 0;
    for (; j + 2 * step <= n; j += 2 * step) {
        vec_f32 a = *(const vec_f32_memory *)(x + j), b = *(const vec_f32_memory *)(x + j + step);
        *(vec_f32_memory *)(x + j / 2) = (vec_f32)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a);
    }
    if (j < n)
        _mm256_storeu_si256((__m256i *)(void *)(x + j / 2),
                            (__m256i)_mm512_cvtneps_pbh(*(const __m512_u *)(const void *)(x + j)));
#else
    for (int64_t j = 0; j < n; j += step) {
        vec_f32 rounded = bf16_round(*(const vec_f32_memory *)(x + j));
        *(vec_f32_memory *)(x + j) = __builtin_shufflevector(rounded, rounded, BF16_SWAPPED);
    }
#endif
}

#endif
