/* random.h: many numbers of Philox4x32-10 (ir/rowkernel/rowkernel.h), a vector of counters at a time. A word
 * is kept in a lane of 64 bits, whose upper half may hold anything: the products take the lower halves only.
 */
#ifndef SBP_CPU_KERNELS_RANDOM_H
#define SBP_CPU_KERNELS_RANDOM_H

#include "backends/cpu/kernels/isa.h"

typedef uint64_t vec_u64 __attribute__((vector_size(CPU_VECTOR_BYTES)));
typedef uint64_t vec_u64_memory __attribute__((vector_size(CPU_VECTOR_BYTES), aligned(4), may_alias));
enum { RANDOM_LANES = CPU_VECTOR_BYTES / 8, RANDOM_WORDS = 4 * RANDOM_LANES };

INLINE vec_u64 vec_mul_u32(vec_u64 a, vec_u64 b) {
#if defined(__AVX512F__)
    return (vec_u64)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (vec_u64)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__x86_64__)
    return (vec_u64)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
    return (a & 0xffffffffu) * (b & 0xffffffffu);
#endif
}

/* Lanes of two vectors in turns, of their first and second halves. */
#if CPU_VECTOR_BYTES == 64
#define RANDOM_FIRST 0, 8, 1, 9, 2, 10, 3, 11
#define RANDOM_SECOND 4, 12, 5, 13, 6, 14, 7, 15
#elif CPU_VECTOR_BYTES == 32
#define RANDOM_FIRST 0, 4, 1, 5
#define RANDOM_SECOND 2, 6, 3, 7
#else
#define RANDOM_FIRST 0, 2
#define RANDOM_SECOND 1, 3
#endif

/* words[4 i + w] = word w of counter (row, stream, head, first + i), i = 0 .. RANDOM_LANES - 1. */
INLINE void random_words(uint32_t *words, uint32_t row, uint32_t stream, uint32_t head, uint32_t first,
                         uint64_t key) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    vec_u64 zero = {0}, c0 = zero + row, c1 = zero + stream, c2 = zero + head, c3;
    for (int i = 0; i < RANDOM_LANES; i++)
        c3[i] = first + (uint32_t)i;
#pragma GCC unroll 10
    for (int round = 0; round < 10; round++) {
        vec_u64 p0 = vec_mul_u32(c0, zero + 0xD2511F53u), p1 = vec_mul_u32(c2, zero + 0xCD9E8D57u);
        c0 = (p1 >> 32) ^ c1 ^ k0;
        c1 = p1;
        c2 = (p0 >> 32) ^ c3 ^ k1;
        c3 = p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    vec_u64 low = (c0 & 0xffffffffu) | c1 << 32, high = (c2 & 0xffffffffu) | c3 << 32; /* by counter */
    vec_u64_memory *out = (vec_u64_memory *)(void *)words;
    out[0] = __builtin_shufflevector(low, high, RANDOM_FIRST);
    out[1] = __builtin_shufflevector(low, high, RANDOM_SECOND);
}

#endif
