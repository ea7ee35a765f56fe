/* Arithmetic in 16 bits and in f32 and f64 with directed rounding: lane by lane, through tensor/formats.h.
 * Also the search of all tables. */
#include "tests/ptx/lanes.h"
#include "tests/ptx/shadow.h"
#include "tests/ptx/tensor/formats.h"

#include <fenv.h>
#include <math.h>
#include <string.h>

// ---- 16 bits ----------------------------------------------------------------------------------------------

typedef enum { ADD, SUB, MUL, FMA, FMA_RELU, MIN, MAX, MIN_NAN, MAX_NAN, ABS, NEG } operation;

static double lesser(double a, double b, bool nan_wins) {
    if (isnan(a) || isnan(b)) {
        return nan_wins || (isnan(a) && isnan(b)) ? NAN : isnan(a) ? b : a;
    }
    return a < b || (a == b && signbit(a)) ? a : b;
}

static double compute(operation op, double x, double y, double z) {
    switch (op) {
    case ADD:
        return sbp_ptx_add_odd(x, y);
    case SUB:
        return sbp_ptx_add_odd(x, -y);
    case MUL:
        return x * y; // exact in double
    case FMA:
    case FMA_RELU:
        return sbp_ptx_fma_odd(x, y, z);
    case MIN:
    case MIN_NAN:
        return lesser(x, y, op == MIN_NAN);
    case MAX:
    case MAX_NAN:
        return -lesser(-x, -y, op == MAX_NAN);
    case ABS:
        return fabs(x);
    case NEG:
        return -x;
    }
    return NAN;
}

static inline void half_lanes(operation op, sbp_ptx_type type, int elements, void *d, const void *const *s,
                              uint32_t mask) {
    const unsigned flags = op == FMA_RELU ? SBP_PTX_RELU : 0;
    for (int l = 0; l < PTX_LANES * elements; l++) {
        if (mask >> l / elements & 1) {
            double v[3] = {0, 0, 0};
            for (int i = 0; i < 3 && s[i]; i++) {
                v[i] = sbp_ptx_value(type, ((const uint16_t *)s[i])[l]);
            }
            ((uint16_t *)d)[l] =
                (uint16_t)sbp_ptx_round(type, compute(op, v[0], v[1], v[2]), SBP_PTX_RN, flags);
        }
    }
}

#define HALVES(X)                                                                                            \
    X(f16, SBP_PTX_F16, 1) X(bf16, SBP_PTX_BF16, 1) X(f16x2, SBP_PTX_F16, 2) X(bf16x2, SBP_PTX_BF16, 2)
#define OPERATIONS(X, type)                                                                                  \
    X(type, ADD, "add", 2)                                                                                   \
    X(type, SUB, "sub", 2)                                                                                   \
    X(type, MUL, "mul", 2)                                                                                   \
    X(type, FMA, "fma", 3)                                                                                   \
    X(type, FMA_RELU, "fma.relu", 3)                                                                         \
    X(type, MIN, "min", 2)                                                                                   \
    X(type, MAX, "max", 2)                                                                                   \
    X(type, MIN_NAN, "min.NaN", 2)                                                                           \
    X(type, MAX_NAN, "max.NaN", 2) X(type, ABS, "abs", 1) X(type, NEG, "neg", 1)

#define FUNCTION(type, op, key, n)                                                                           \
    static void run_##op##_##type(void *d, const void *const *s, uint32_t mask, uint32_t extra) {            \
        const void *const sources[3] = {s[0], (n) > 1 ? s[1] : NULL, (n) > 2 ? s[2] : NULL};                 \
        (void)extra;                                                                                         \
        half_lanes(op, (sbp_ptx_type)number_##type, elements_##type, d, sources, mask);                      \
    }
#define NUMBERS(type, number, elements) enum { number_##type = number, elements_##type = elements };
HALVES(NUMBERS)
OPERATIONS(FUNCTION, f16)
OPERATIONS(FUNCTION, bf16)
OPERATIONS(FUNCTION, f16x2)
OPERATIONS(FUNCTION, bf16x2)

// ---- directed rounding ------------------------------------------------------------------------------------

typedef enum { R_ADD, R_SUB, R_MUL, R_FMA, R_DIV, R_RCP, R_SQRT } rounded;

static inline void f32_lanes(rounded op, sbp_ptx_rounding mode, void *d_, const void *const *s,
                             uint32_t mask) {
    uint32_t *d = d_;
    for (int l = 0; l < PTX_LANES; l++) {
        if (!(mask >> l & 1)) {
            continue;
        }
        const int n = op == R_FMA ? 3 : op == R_RCP || op == R_SQRT ? 1 : 2;
        const double x = ((const float *)s[0])[l], y = n > 1 ? ((const float *)s[1])[l] : 0;
        const double z = n > 2 ? ((const float *)s[2])[l] : 0;
        const double exact = op == R_ADD   ? sbp_ptx_add_odd(x, y)
                             : op == R_SUB ? sbp_ptx_add_odd(x, -y)
                             : op == R_MUL ? x * y
                             : op == R_FMA ? sbp_ptx_fma_odd(x, y, z)
                             : op == R_DIV ? sbp_ptx_div_odd(x, y)
                             : op == R_RCP ? sbp_ptx_div_odd(1, x)
                                           : sbp_ptx_sqrt_odd(x);
        // A sum that cancels is -0 when rounded down, +0 otherwise.
        const double first = op == R_FMA ? x * y : x, second = op == R_FMA ? z : op == R_SUB ? -y : y;
        const bool sum = op == R_ADD || op == R_SUB || op == R_FMA;
        const bool minus = sum && mode == SBP_PTX_RM && exact == 0 && (signbit(first) || signbit(second));
        d[l] = (uint32_t)sbp_ptx_round(SBP_PTX_F32, minus ? -0.0 : exact, mode, 0);
    }
}

static inline void f64_lanes(rounded op, int mode, void *d_, const void *const *s, uint32_t mask) {
    double *d = d_;
    const int before = fegetround();
    (void)fesetround(mode);
    for (int l = 0; l < PTX_LANES; l++) {
        if (mask >> l & 1) {
            const int n = op == R_FMA ? 3 : op == R_RCP || op == R_SQRT ? 1 : 2;
            volatile double x = ((const double *)s[0])[l], y = n > 1 ? ((const double *)s[1])[l] : 0;
            volatile double z = n > 2 ? ((const double *)s[2])[l] : 0;
            volatile double r = op == R_ADD   ? x + y
                                : op == R_SUB ? x - y
                                : op == R_MUL ? x * y
                                : op == R_FMA ? fma(x, y, z)
                                : op == R_DIV ? x / y
                                : op == R_RCP ? 1 / x
                                              : sqrt(x);
            d[l] = r;
        }
    }
    (void)fesetround(before);
}

#define MODES(X, op, key, n)                                                                                 \
    X(op, key, n, rz, SBP_PTX_RZ, FE_TOWARDZERO)                                                             \
    X(op, key, n, rm, SBP_PTX_RM, FE_DOWNWARD) X(op, key, n, rp, SBP_PTX_RP, FE_UPWARD)
#define ROUNDED(X)                                                                                           \
    MODES(X, R_ADD, "add", 2)                                                                                \
    MODES(X, R_SUB, "sub", 2)                                                                                \
    MODES(X, R_MUL, "mul", 2)                                                                                \
    MODES(X, R_FMA, "fma", 3) MODES(X, R_DIV, "div", 2) MODES(X, R_RCP, "rcp", 1) MODES(X, R_SQRT, "sqrt", 1)
#define ROUNDED_FUNCTION(op, key, n, mode, mode32, mode64)                                                   \
    static void run_##op##_##mode##_f32(void *d, const void *const *s, uint32_t mask, uint32_t extra) {      \
        (void)extra;                                                                                         \
        f32_lanes(op, mode32, d, s, mask);                                                                   \
    }                                                                                                        \
    static void run_##op##_##mode##_f64(void *d, const void *const *s, uint32_t mask, uint32_t extra) {      \
        (void)extra;                                                                                         \
        f64_lanes(op, mode64, d, s, mask);                                                                   \
    }
ROUNDED(ROUNDED_FUNCTION)

// ---- comparisons in 16 bits -------------------------------------------------------------------------------

#define COMPARISONS(X, type)                                                                                 \
    X(type, lt, a < b)                                                                                       \
    X(type, le, a <= b)                                                                                      \
    X(type, gt, a > b)                                                                                       \
    X(type, ge, a >= b)                                                                                      \
    X(type, eq, a == b)                                                                                      \
    X(type, ne, a<b || a> b)                                                                                 \
    X(type, ltu, !(a >= b))                                                                                  \
    X(type, leu, !(a > b))                                                                                   \
    X(type, gtu, !(a <= b))                                                                                  \
    X(type, geu, !(a < b))                                                                                   \
    X(type, equ, !(a < b || a > b))                                                                          \
    X(type, neu, a != b) X(type, num, a == a && b == b) X(type, nan, a != a || b != b)
#define COMPARISON(type, name, condition)                                                                    \
    static uint32_t compare_##name##_##type(const void *a_, const void *b_) {                                \
        uint32_t holds = 0;                                                                                  \
        for (int l = 0; l < PTX_LANES; l++) {                                                                \
            const double a = sbp_ptx_value((sbp_ptx_type)number_##type, ((const uint16_t *)a_)[l]);          \
            const double b = sbp_ptx_value((sbp_ptx_type)number_##type, ((const uint16_t *)b_)[l]);          \
            holds |= (uint32_t)(condition) << l;                                                             \
        }                                                                                                    \
        return holds;                                                                                        \
    }
COMPARISONS(COMPARISON, f16)
COMPARISONS(COMPARISON, bf16)

// ---- tables -----------------------------------------------------------------------------------------------

#define ROW(type, op, key, n)                                                                                \
    {key "." #type,       run_##op##_##type,                                                                 \
     PTX_CLASS_FLOAT,     n,                                                                                 \
     2 * elements_##type, {2 * elements_##type, 2 * elements_##type, 2 * elements_##type}},
#define ROUNDED_ROW(op, key, n, mode, mode32, mode64)                                                        \
    {key "." #mode ".f32", run_##op##_##mode##_f32, PTX_CLASS_FLOAT, n, 4, {4, 4, 4}},                       \
        {key "." #mode ".f64", run_##op##_##mode##_f64, PTX_CLASS_FLOAT, n, 8, {8, 8, 8}},
#define COMPARISON_ROW(type, name, condition) {#name "." #type, compare_##name##_##type, 2},

const ptx_lanes_op ptx_lanes_slow[] = {OPERATIONS(ROW, f16) OPERATIONS(ROW, bf16) OPERATIONS(
    ROW, f16x2) OPERATIONS(ROW, bf16x2) ROUNDED(ROUNDED_ROW){NULL, NULL, 0, 0, 0, {0}}};
const ptx_compare_op ptx_compare_slow[] = {COMPARISONS(COMPARISON_ROW, f16)
                                               COMPARISONS(COMPARISON_ROW, bf16){NULL, NULL, 0}};

static int isa(void) {
#ifdef PTX_HAS_ISAS
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512cd")) {
        return 2;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
        __builtin_cpu_supports("f16c")) {
        return 1;
    }
#endif
    return 0;
}

const ptx_shadow_ops *ptx_shadow_best(void) {
#ifdef PTX_HAS_ISAS
    static const ptx_shadow_ops *const fast[] = {&ptx_shadow_base, &ptx_shadow_v3, &ptx_shadow_v4};
    return fast[isa()];
#else
    return &ptx_shadow_base;
#endif
}

const ptx_lanes_op *ptx_lanes_find(const char *key) {
#ifdef PTX_HAS_ISAS
    static const ptx_lanes_op *const fast[] = {ptx_lanes_base, ptx_lanes_v3, ptx_lanes_v4};
#else
    static const ptx_lanes_op *const fast[] = {ptx_lanes_base};
#endif
    const ptx_lanes_op *const tables[] = {fast[isa()], ptx_lanes_slow};
    for (int t = 0; t < 2; t++) {
        for (const ptx_lanes_op *op = tables[t]; op->key; op++) {
            if (strcmp(op->key, key) == 0) {
                return op;
            }
        }
    }
    return NULL;
}

const ptx_compare_op *ptx_compare_find(const char *key) {
#ifdef PTX_HAS_ISAS
    static const ptx_compare_op *const fast[] = {ptx_compare_base, ptx_compare_v3, ptx_compare_v4};
#else
    static const ptx_compare_op *const fast[] = {ptx_compare_base};
#endif
    const ptx_compare_op *const tables[] = {fast[isa()], ptx_compare_slow};
    for (int t = 0; t < 2; t++) {
        for (const ptx_compare_op *op = tables[t]; op->key; op++) {
            if (strcmp(op->key, key) == 0) {
                return op;
            }
        }
    }
    return NULL;
}
