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

enum { BF16_MOST_COLUMNS = 128 };
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

#endif
