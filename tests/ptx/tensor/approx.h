/* Instructions of which the PTX ISA gives a bound of error and no result (sections "Floating Point
 * Instructions: rcp, sqrt, rsqrt, sin, cos, lg2, ex2, tanh, div" and "Half Precision Floating Point
 * Instructions: tanh, ex2"). Here the exact result (in double) is moved inside the bound by a pure function
 * of (seed, operation, operand bits); special values, as tabled there, are exact. Seed 0 does not move: the
 * result is correctly rounded (but for double's own error).
 *
 *   rcp            1 ulp
 *   sqrt           2^-23 relative
 *   rsqrt          2^-22.9 relative
 *   sin, cos       2^-20.5 absolute in [-2 pi, 2 pi], 2^-14.7 in [-100 pi, 100 pi]; beyond none is promised:
 *                  2^-8 here
 *   lg2            2^-22 absolute for operands in (0.5, 2), 2^-22 relative elsewhere
 *   ex2            2 ulp; f16 2^-9.9 relative, bf16 2^-7 relative
 *   tanh           2^-11 relative; f16 2^-10.987 absolute, bf16 2^-8 absolute
 *   div (.approx)  2 ulp for 2^-126 <= |y| <= 2^126; beyond 2^126: 0, NaN where x is infinite
 *   div.full       2 ulp
 *
 * A result of magnitude above 1 is never given for sin, cos, tanh; ex2 of a finite operand is never negative.
 */
#ifndef SBP_PTX_APPROX_H
#define SBP_PTX_APPROX_H

#include "tests/ptx/tensor/formats.h"

typedef enum {
    SBP_PTX_RCP,
    SBP_PTX_SQRT,
    SBP_PTX_RSQRT,
    SBP_PTX_SIN,
    SBP_PTX_COS,
    SBP_PTX_LG2,
    SBP_PTX_EX2,
    SBP_PTX_TANH,
    SBP_PTX_DIV,
    SBP_PTX_DIV_FULL,
} sbp_ptx_approximation;

/* The result's bits for operands x (and y of the divisions, else 0) in f32, or in f16 or bf16 for EX2 and
 * TANH; of f16x2 and bf16x2 one element at a time. ftz: subnormal operands and results are zeros of their
 * sign. ex2 in bf16 exists only as .ftz. */
uint32_t sbp_ptx_approx(sbp_ptx_approximation op, sbp_ptx_type type, uint32_t x, uint32_t y, bool ftz,
                        uint64_t seed);

// The pseudo-random bits behind it (SplitMix64's finish over seed and three words): a pure function.
uint64_t sbp_ptx_hash(uint64_t seed, uint64_t a, uint64_t b, uint64_t c);

#endif
