/* attention_body.h: pieces of attention in one type of arithmetic. See real.h, attention.h. */

static OPERAND *real_take_operands(char **scratch, int64_t count) {
    return (OPERAND *)(void *)real_take(scratch, count); /* as large */
}

#define LOG2_E 1.4426950408889634
#define LOG_2 0.6931471805599453

/* Where the scale of scores goes: into q, into the softcap, into the scores as they are read. */
typedef struct real_score_scale {
    REAL query;
    double soft;
    REAL score;
} real_score_scale;

#if PRODUCTS_OF_BF16
#include "backends/cpu/kernels/attention_operands_bf16_body.h"
#else
#include "backends/cpu/kernels/attention_operands_body.h"
#endif

/* What each lane sees, for the masks. Lanes that are not there see nothing. */
static void real_lane_limits(const attention *a, const visible *see, int64_t positions, int32_t *limits) {
    int32_t *lo1 = limits, *hi1 = lo1 + a->lanes, *lo2 = hi1 + a->lanes, *hi2 = lo2 + a->lanes;
    memset(limits, 0, (size_t)(4 * a->lanes) * sizeof *limits);
    for (int64_t p = 0, lane = 0; p < positions; p++)
        for (int64_t h = 0; h < a->group; h++, lane++) {
            lo1[lane] = see[p].lo1;
            hi1[lane] = see[p].hi1;
            lo2[lane] = see[p].lo2;
            hi2[lane] = see[p].hi2;
        }
}

/* x[key][lane] = `other` where the lane does not see the key. Keys are lo .. lo + keys - 1. */
static void real_mask(const attention *a, const int32_t *limits, int32_t lo, int64_t keys, REAL *x,
                      REAL other) {
    const int32_t *lo1 = limits, *hi1 = lo1 + a->lanes, *lo2 = hi1 + a->lanes, *hi2 = lo2 + a->lanes;
    for (int64_t i = 0; i < keys; i++, x += a->lanes) {
        int32_t key = lo + (int32_t)i;
        for (int64_t lane = 0; lane < a->lanes; lane++) {
            int seen = ((key >= lo1[lane]) & (key < hi1[lane])) | ((key >= lo2[lane]) & (key < hi2[lane]));
            x[lane] = seen ? x[lane] : other;
        }
    }
}

/* s = k q becomes cap log2 e tanh(scale s / cap). */
static void real_soften(REAL *x, int64_t n, double scale, double cap) {
    REAL inverse = (REAL)(scale / cap), high = (REAL)(cap * LOG2_E);
    for (int64_t i = 0; i < n; i++)
        x[i] = high * real_tanh(x[i] * inverse);
}

/* A score times log2 e, from what products and softcap left. */
INLINE REAL real_score(REAL x, REAL scale) {
#if PRODUCTS_OF_BF16
    return x * scale;
#else
    (void)scale;
    return x;
#endif
}

#if !REAL_IS_F64
/* 2^f for f in [-1/2, 1/2]. Polynomial: rowmath_fit.py. */
INLINE float real_power_of_fraction(float f) {
    float q = SBP_FMA(f, 0.000154702648f, 0.00133909006f);
    q = SBP_FMA(q, f, 0.009618029f);
    q = SBP_FMA(q, f, 0.0555035695f);
    q = SBP_FMA(q, f, 0.240226507f);
    q = SBP_FMA(q, f, 0.693147182f);
    return SBP_FMA(q, f, 1.0f);
}

#define NEAREST 12582912.0f /* 1.5 * 2^23: added to x, rounds it to an integer, left in the low bits */
#endif

/* 2^x for x that are hardly above 0; exactly 0 where fp32 would be subnormal. Half the work of sbp_exp_f32.
 */
INLINE REAL real_power_of_2(REAL x) {
#if REAL_IS_F64
    return sbp_exp_f64(x * LOG_2);
#else
    float shifted = x + NEAREST;
    float q = real_power_of_fraction(x - (shifted - NEAREST));
    float y = float_of(bits_of(q) + (bits_of(shifted) << 23));
    return x < -126.0f ? 0.0f : y;
#endif
}

#if PRODUCTS_OF_BF16
INLINE float real_nearest(float x) {
    return x + NEAREST - NEAREST;
}

/* 2^(x - m) for a nearest integer m, hardly below x. All but the exponent comes from x alone: so rounded to
 * bf16 it is the same number times a power of two whatever m is, and rounding does not depend on tiles. */
INLINE REAL real_power_below(REAL x, REAL m) {
    float whole = real_nearest(x), power = whole - m;
    float y = real_power_of_fraction(x - whole);
    y = float_of(bits_of(y) + (bits_of(power + NEAREST) << 23));
    return power < -125.0f ? 0.0f : y;
}
#else
INLINE REAL real_power_below(REAL x, REAL m) {
    return real_power_of_2(x - m);
}
#endif
