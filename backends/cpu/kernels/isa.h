/* isa.h: the instruction set that a file of this folder is being compiled for. Each file is compiled four
 * times, with -march=x86-64 (or whatever the compiler's default is), x86-64-v3, x86-64-v4, and the last with
 * AVX512_BF16, and CPU_ISA set to base, v3, v4, v4_bf16; names that leave a file go through ISA_NAME. Vectors
 * are as wide as the machine's.
 *
 * CPU_VECTOR_BYTES  bytes of a vector
 * CPU_HAS_DOT  whether there is vec_dot_bf16
 * TILE_ROWS, TILE_VECTORS  the register tile of kernels/tile.h */
#ifndef SBP_CPU_KERNELS_ISA_H
#define SBP_CPU_KERNELS_ISA_H

#define ISA_PASTE2(name, isa) cpu_##name##_##isa
#define ISA_PASTE(name, isa) ISA_PASTE2(name, isa)
#define ISA_NAME(name) ISA_PASTE(name, CPU_ISA)

#if defined(__AVX512F__)
#define CPU_VECTOR_BYTES 64
#define TILE_ROWS 8
#elif defined(__AVX2__)
#define CPU_VECTOR_BYTES 32
#define TILE_ROWS 4
#else
#define CPU_VECTOR_BYTES 16
#define TILE_ROWS 4
#endif
#define TILE_VECTORS 3
#if defined(__AVX512BF16__)
#define CPU_HAS_DOT 1
#else
#define CPU_HAS_DOT 0
#endif

#include <stdint.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef float vec_f32 __attribute__((vector_size(CPU_VECTOR_BYTES)));
typedef float vec_f32_memory __attribute__((vector_size(CPU_VECTOR_BYTES), aligned(4), may_alias));
typedef double vec_f64 __attribute__((vector_size(CPU_VECTOR_BYTES)));
typedef double vec_f64_memory __attribute__((vector_size(CPU_VECTOR_BYTES), aligned(8), may_alias));

typedef int32_t vec_i32 __attribute__((vector_size(CPU_VECTOR_BYTES)));
typedef int64_t vec_i64 __attribute__((vector_size(CPU_VECTOR_BYTES)));

#define INLINE static inline __attribute__((always_inline))

/* a b + c with one rounding; without the instruction, two. */
INLINE vec_f32 vec_fma_f32(vec_f32 a, vec_f32 b, vec_f32 c) {
#if defined(__AVX512F__)
    return (vec_f32)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (vec_f32)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

INLINE vec_f64 vec_fma_f64(vec_f64 a, vec_f64 b, vec_f64 c) {
#if defined(__AVX512F__)
    return (vec_f64)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__FMA__)
    return (vec_f64)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
    return a * b + c;
#endif
}

#if CPU_HAS_DOT
/* Lanes of a and b are pairs of bf16, the even one in the low half:
 *   fma(a_even, b_even, fma(a_odd, b_odd, c)), each rounded to nearest.
 * Products of bf16 are exact in fp32, so that the same numbers come out of multiply-adds of fp32, odd before
 * even, with or without fma - but for those below 2^-126, which this instruction takes for 0 wherever they
 * occur. The order is Intel's description of VDPBF16PS; on Zen 5 it was compared in 4.8e7 random cases. */
INLINE vec_f32 vec_dot_bf16(vec_f32 a, vec_f32 b, vec_f32 c) {
    return (vec_f32)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
}
#endif

#endif
