/* mma.sync ("Warp Level Matrix Instructions: Matrix multiply-accumulate operation using mma instruction"):
 * which element of A, B, C and D each lane's registers hold, and the product of a whole warp.
 *
 * A is [m, k] row-major (.row), B is [k, n] column-major (.col), C and D are [m, n]. The maps of all shapes
 * below are one rule (sections "Matrix Fragments for mma.m8n8k4 with .f64", "... mma.m16n8k4", "...
 * mma.m16n8k8", "... mma.m16n8k16 with floating point type", "... .m16n8k16 with integer type", "...
 * mma.m16n8k32"). With group = lane / 4, t = lane % 4, and w elements in a register (w = 32 / bits, 1 of
 * f64), element j of register r is
 *   A: row group + 8 * (r % h), column t * w + j + 4 * w * (r / h)      h = m / 8
 *   B: row t * w + j + 4 * w * r, column group
 *   C: element i: row group + 8 * (i / 2), column 2 * t + i % 2; two f16 share a register, the even one
 *   below.
 */
#ifndef SBP_PTX_MMA_H
#define SBP_PTX_MMA_H

#include "tests/ptx/tensor/formats.h"

// One form of the instruction. Made by sbp_ptx_mma_make.
typedef struct {
    int m, n, k;
    sbp_ptx_type a, b;           // types of A and B: equal, but for e4m3 with e5m2 and s8 with u8
    sbp_ptx_type cd;             // F32, F16, F64 or S32: of C and of D
    int a_regs, b_regs, cd_regs; // registers per lane: of 64 bits where cd is F64, else of 32
} sbp_ptx_mma;

/* Whether there is such a form, and then *out. Supported:
 *   m16n8k16 bf16, f16 -> f32; f16 -> f16          m16n8k8 bf16, f16, tf32 -> f32; f16 -> f16
 *   m16n8k4 tf32 -> f32                            m8n8k4, m16n8k4, m16n8k8, m16n8k16 f64 -> f64
 *   m16n8k32 e4m3, e5m2 -> f32, f16                m16n8k16, m16n8k32 s8, u8 -> s32 */
bool sbp_ptx_mma_make(int m, int n, int k, sbp_ptx_type a, sbp_ptx_type b, sbp_ptx_type cd, sbp_ptx_mma *out);

typedef struct {
    int row, col;
} sbp_ptx_place;

/* Where element `element` of a lane's fragment is: elements are counted through the registers in order, from
 * the lowest bits up (a0, a1, ... of the PTX ISA). Element e of A is in register e / w at bit (e % w) * bits.
 */
sbp_ptx_place sbp_ptx_mma_a(const sbp_ptx_mma *op, int lane, int element);
sbp_ptx_place sbp_ptx_mma_b(const sbp_ptx_mma *op, int lane, int element);
sbp_ptx_place sbp_ptx_mma_c(const sbp_ptx_mma *op, int lane, int element);

/* D = A * B + C of a warp. a[r], b[r], c[r], d[r] point at the 32 lanes of register r; d may be the same
 * registers as any of the others (everything is read before anything is written). For cd other than F64.
 *
 * The PTX ISA promises for floating types products and sums "with at least single precision" and nothing of
 * order, rounding or subnormals. Seeds 0 and 1: products are exact, added in double in the order of k, C
 * last; rounded once to nearest: within 2^-24 (f16: 2^-11) of the exact result, but for 2^-49 of the sum of
 * magnitudes. Other seeds pick one of SBP_PTX_ACCUMULATIONS ways, the first of which is that one; the others
 * model what was measured of tensor cores (Fasi, Higham, Mikaitis, Pranesh 2021, "Numerical behavior of
 * NVIDIA tensor cores"): the accumulator and `chunk` exact products at a time are aligned to the largest, cut
 * off `guard` bits below its 24, added exactly, and the sum is cut off to 24 bits (RZ). Such a result differs
 * from the exact one by at most (k + 3 * k / chunk) * 2^-23 * (|c| + sum |a * b|) and not at all where
 * nothing needs to be cut off (small integers). Way: sbp_ptx_accumulation_of(seed). Integer types add modulo
 * 2^32, or saturate where `saturate` (.satfinite) is set. */
void sbp_ptx_mma_warp(const sbp_ptx_mma *op, const uint32_t *const *a, const uint32_t *const *b,
                      const uint32_t *const *c, uint32_t *const *d, bool saturate, uint64_t seed);

// The same for f64: one fma after another in the order of k, rounded to nearest.
void sbp_ptx_mma_warp_f64(const sbp_ptx_mma *op, const uint64_t *const *a, const uint64_t *const *b,
                          const uint64_t *const *c, uint64_t *const *d);

// How sums of products are formed: chunk 0 is "exact, rounded once".
typedef struct {
    int chunk; // products added at a time: 4, 8, 16
    int guard; // bits kept below the 24 of the largest term
} sbp_ptx_accumulation;

enum { SBP_PTX_ACCUMULATIONS = 4 };
sbp_ptx_accumulation sbp_ptx_accumulation_of(uint64_t seed);

/* d[m, n] = a[m, k] * b[k, n] + c[m, n] as told above, row-major, for whoever has the elements as doubles:
 * values of A and B of at most 11 bits of significand (so that products are exact), of C and D in F32 or F16.
 * d may be c. */
void sbp_ptx_multiply(int m, int n, int k, const double *a, const double *b, const double *c, double *d,
                      sbp_ptx_type cd, sbp_ptx_accumulation way);

#endif
