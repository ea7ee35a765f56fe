#include "tests/ptx/tensor/mma.h"

#include <math.h>

#include "tests/ptx/tensor/approx.h"

// ---- forms and maps ---------------------------------------------------------------------------------------

static bool floating8(sbp_ptx_type type) {
    return type == SBP_PTX_E4M3 || type == SBP_PTX_E5M2;
}

static bool integer8(sbp_ptx_type type) {
    return type == SBP_PTX_S8 || type == SBP_PTX_U8;
}

static bool form_exists(int m, int n, int k, sbp_ptx_type a, sbp_ptx_type b, sbp_ptx_type cd) {
    if (n != 8 || (m != 16 && !(m == 8 && k == 4 && cd == SBP_PTX_F64))) {
        return false;
    }
    if (floating8(a) && floating8(b)) {
        return k == 32 && (cd == SBP_PTX_F32 || cd == SBP_PTX_F16);
    }
    if (integer8(a) && integer8(b)) {
        return (k == 16 || k == 32) && cd == SBP_PTX_S32;
    }
    if (a != b) {
        return false;
    }
    switch (a) {
    case SBP_PTX_BF16:
        return (k == 8 || k == 16) && cd == SBP_PTX_F32;
    case SBP_PTX_F16:
        return (k == 8 || k == 16) && (cd == SBP_PTX_F32 || cd == SBP_PTX_F16);
    case SBP_PTX_TF32:
        return (k == 4 || k == 8) && cd == SBP_PTX_F32;
    case SBP_PTX_F64:
        return (k == 4 || k == 8 || k == 16) && cd == SBP_PTX_F64;
    default:
        return false;
    }
}

// Elements of a type in one register.
static int width_of(sbp_ptx_type type) {
    return type == SBP_PTX_F64 ? 1 : 32 / sbp_ptx_type_bits(type);
}

bool sbp_ptx_mma_make(int m, int n, int k, sbp_ptx_type a, sbp_ptx_type b, sbp_ptx_type cd,
                      sbp_ptx_mma *out) {
    if (!form_exists(m, n, k, a, b, cd)) {
        return false;
    }
    *out = (sbp_ptx_mma){
        .m = m,
        .n = n,
        .k = k,
        .a = a,
        .b = b,
        .cd = cd,
        .a_regs = m * k / 32 / width_of(a),
        .b_regs = k * n / 32 / width_of(b),
        .cd_regs = m * n / 32 / width_of(cd),
    };
    return true;
}

sbp_ptx_place sbp_ptx_mma_a(const sbp_ptx_mma *op, int lane, int element) {
    const int w = width_of(op->a), r = element / w, j = element % w, h = op->m / 8;
    return (sbp_ptx_place){lane / 4 + 8 * (r % h), lane % 4 * w + j + 4 * w * (r / h)};
}

sbp_ptx_place sbp_ptx_mma_b(const sbp_ptx_mma *op, int lane, int element) {
    const int w = width_of(op->b), r = element / w, j = element % w;
    return (sbp_ptx_place){lane % 4 * w + j + 4 * w * r, lane / 4};
}

sbp_ptx_place sbp_ptx_mma_c(const sbp_ptx_mma *op, int lane, int element) {
    (void)op;
    return (sbp_ptx_place){lane / 4 + 8 * (element / 2), lane % 4 * 2 + element % 2};
}

// ---- sums of products -------------------------------------------------------------------------------------

sbp_ptx_accumulation sbp_ptx_accumulation_of(uint64_t seed) {
    static const sbp_ptx_accumulation ways[SBP_PTX_ACCUMULATIONS] = {{0, 0}, {4, 0}, {8, 1}, {16, 2}};
    return ways[seed > 1 ? sbp_ptx_hash(seed, 'm', 'm', 'a') % SBP_PTX_ACCUMULATIONS : 0];
}

// The sum of count terms, each cut off `guard` bits below the 24 of the largest, and then cut off to 24 bits.
static double cut_sum(const double *terms, int count, int guard) {
    double most = 0, plain = 0;
    for (int i = 0; i < count; i++) {
        most = fabs(terms[i]) > most ? fabs(terms[i]) : most;
        plain += terms[i];
    }
    if (most == 0 || !isfinite(plain)) {
        return plain;
    }
    const int unit = ilogb(most) - 23 - guard;
    const double scale = ldexp(1, -unit);
    int64_t sum = 0;
    for (int i = 0; i < count; i++) {
        sum += (int64_t)(terms[i] * scale);
    }
    const double exact = ldexp((double)sum, unit);
    if (fabs(exact) >= 0x1p128) {
        return copysign((double)INFINITY, exact);
    }
    return sbp_ptx_value(SBP_PTX_F32, sbp_ptx_round(SBP_PTX_F32, exact, SBP_PTX_RZ, 0));
}

// c + a . b, `chunk` products at a time; b's elements lie n apart.
static double cut_dot(int n, int k, const double *a, const double *b, double c, sbp_ptx_accumulation way) {
    double terms[1 + 16];
    for (int first = 0; first < k; first += way.chunk) {
        int count = 0;
        terms[count++] = c;
        for (int kk = first; kk < k && kk < first + way.chunk; kk++) {
            terms[count++] = a[kk] * b[kk * n];
        }
        c = cut_sum(terms, count, way.guard);
    }
    return c;
}

static double result_of(double sum, sbp_ptx_type cd) {
    return cd == SBP_PTX_S32   ? sum // exact; whoever keeps it wraps or clamps
           : cd == SBP_PTX_F32 ? (double)(float)sum
                               : sbp_ptx_value(cd, sbp_ptx_round(cd, sum, SBP_PTX_RN, 0));
}

/* One row of sums: sums[j] = a[0] * b[0][j] + a[1] * b[1][j] + ..., one after another; n: a multiple of 8.
 * Compiled for several instruction sets: what is done side by side are different sums, so the bits are the
 * same. */
#define SUM_STRIP(width)                                                                                     \
    for (; first + (width) <= n; first += (width)) {                                                         \
        double strip[width] = {0};                                                                           \
        for (int kk = 0; kk < k; kk++) {                                                                     \
            for (int j = 0; j < (width); j++) {                                                              \
                strip[j] += a[kk] * b[kk * n + first + j];                                                   \
            }                                                                                                \
        }                                                                                                    \
        memcpy(sums + first, strip, sizeof strip);                                                           \
    }
#define SUM_ROW                                                                                              \
    int first = 0;                                                                                           \
    SUM_STRIP(32)                                                                                            \
    SUM_STRIP(8)

typedef void sum_row_fn(int n, int k, const double *a, const double *b, double *sums);

static void sum_row_plain(int n, int k, const double *a, const double *b, double *sums) {
    SUM_ROW
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static void sum_row_avx2(int n, int k, const double *a, const double *b,
                                                         double *sums) {
    SUM_ROW
}

static sum_row_fn *best_sum_row(void) {
    return __builtin_cpu_supports("avx2") ? sum_row_avx2 : sum_row_plain;
}
#else
static sum_row_fn *best_sum_row(void) {
    return sum_row_plain;
}
#endif

void sbp_ptx_multiply(int m, int n, int k, const double *a, const double *b, const double *c, double *d,
                      sbp_ptx_type cd, sbp_ptx_accumulation way) {
    sum_row_fn *const sum_row = best_sum_row();
    for (int i = 0; i < m; i++) {
        double sums[256];
        if (way.chunk == 0) {
            sum_row(n, k, a + i * k, b, sums);
        }
        for (int j = 0; j < n; j++) {
            if (way.chunk != 0) {
                sums[j] = cut_dot(n, k, a + i * k, b + j, c[i * n + j], way);
            } else {
                sums[j] += c[i * n + j];
            }
        }
        for (int j = 0; j < n; j++) {
            d[i * n + j] = result_of(sums[j], cd);
        }
    }
}

// ---- a warp -----------------------------------------------------------------------------------------------

typedef sbp_ptx_place place_fn(const sbp_ptx_mma *op, int lane, int element);

// Registers to a row-major matrix of `cols` columns.
static void gather(const sbp_ptx_mma *op, place_fn *place, sbp_ptx_type type, int regs, int cols,
                   const uint32_t *const *registers, double *out) {
    const int w = width_of(type);
    for (int r = 0; r < regs; r++) {
        double values[4][32];
        sbp_ptx_values(type, registers[r], values);
        for (int j = 0; j < w; j++) {
            // What lane 0 holds, and how far the elements of lanes 1 and 4 are from it, say where all are.
            const sbp_ptx_place at = place(op, 0, r * w + j), next = place(op, 1, r * w + j),
                                down = place(op, 4, r * w + j);
            const int start = at.row * cols + at.col, step = next.row * cols + next.col - start;
            const int group = down.row * cols + down.col - start;
            for (int lane = 0; lane < 32; lane++) {
                out[start + lane % 4 * step + lane / 4 * group] = values[j][lane];
            }
        }
    }
}

static void scatter_d(const sbp_ptx_mma *op, const double *values, uint32_t *const *d) {
    const int w = width_of(op->cd);
    for (int r = 0; r < op->cd_regs; r++) {
        double parts[4][32];
        for (int j = 0; j < w; j++) {
            const sbp_ptx_place at = sbp_ptx_mma_c(op, 0, r * w + j);
            const double *start = values + at.row * op->n + at.col;
            for (int lane = 0; lane < 32; lane++) {
                parts[j][lane] = start[lane / 4 * op->n + lane % 4 * 2];
            }
        }
        sbp_ptx_rounded(op->cd, parts, d[r]);
    }
}

static double clamp_s32(double value) {
    return fmin(fmax(value, INT32_MIN), INT32_MAX);
}

static void multiply_integers(const sbp_ptx_mma *op, const double *a, const double *b, const double *c,
                              bool saturate, uint32_t *const *d) {
    for (int r = 0; r < op->cd_regs; r++) {
        for (int lane = 0; lane < 32; lane++) {
            const sbp_ptx_place at = sbp_ptx_mma_c(op, lane, r);
            double sum = c[at.row * op->n + at.col]; // of integers below 2^53
            for (int kk = 0; kk < op->k; kk++) {
                sum += a[at.row * op->k + kk] * b[kk * op->n + at.col];
            }
            d[r][lane] = (uint32_t)(int64_t)(saturate ? clamp_s32(sum) : sum);
        }
    }
}

void sbp_ptx_mma_warp(const sbp_ptx_mma *op, const uint32_t *const *a, const uint32_t *const *b,
                      const uint32_t *const *c, uint32_t *const *d, bool saturate, uint64_t seed) {
    double am[16 * 32], bm[32 * 8], cm[16 * 8]; // the largest forms
    gather(op, sbp_ptx_mma_a, op->a, op->a_regs, op->k, a, am);
    gather(op, sbp_ptx_mma_b, op->b, op->b_regs, op->n, b, bm);
    gather(op, sbp_ptx_mma_c, op->cd, op->cd_regs, op->n, c, cm);
    if (op->cd == SBP_PTX_S32) {
        multiply_integers(op, am, bm, cm, saturate, d);
        return;
    }
    sbp_ptx_multiply(op->m, op->n, op->k, am, bm, cm, cm, op->cd, sbp_ptx_accumulation_of(seed));
    scatter_d(op, cm, d);
}

void sbp_ptx_mma_warp_f64(const sbp_ptx_mma *op, const uint64_t *const *a, const uint64_t *const *b,
                          const uint64_t *const *c, uint64_t *const *d) {
    double am[16 * 16], bm[16 * 8], dm[16 * 8];
    for (int lane = 0; lane < 32; lane++) {
        for (int e = 0; e < op->a_regs; e++) {
            const sbp_ptx_place at = sbp_ptx_mma_a(op, lane, e);
            am[at.row * op->k + at.col] = sbp_ptx_value(SBP_PTX_F64, a[e][lane]);
        }
        for (int e = 0; e < op->b_regs; e++) {
            const sbp_ptx_place at = sbp_ptx_mma_b(op, lane, e);
            bm[at.row * op->n + at.col] = sbp_ptx_value(SBP_PTX_F64, b[e][lane]);
        }
        for (int e = 0; e < op->cd_regs; e++) {
            const sbp_ptx_place at = sbp_ptx_mma_c(op, lane, e);
            dm[at.row * op->n + at.col] = sbp_ptx_value(SBP_PTX_F64, c[e][lane]);
        }
    }
    for (int lane = 0; lane < 32; lane++) {
        for (int e = 0; e < op->cd_regs; e++) {
            const sbp_ptx_place at = sbp_ptx_mma_c(op, lane, e);
            double sum = dm[at.row * op->n + at.col];
            for (int kk = 0; kk < op->k; kk++) {
                sum = fma(am[at.row * op->k + kk], bm[kk * op->n + at.col], sum);
            }
            d[e][lane] = sbp_ptx_round(SBP_PTX_F64, sum, SBP_PTX_RN, 0);
        }
    }
}
