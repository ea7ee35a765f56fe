/* test_rowmath.c: the scalar functions of backends/rowmath.h against the C library in the next wider type.
 * The fp32 ones run over every 251st float (all of them when SBP_EXHAUSTIVE is set: some minutes), the fp64
 * ones over random numbers of every magnitude and dense grids. */
#include "backends/rowmath.h"
#include "tests/rowkernel_random.h"
#include "tests/tolerance.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct function32 {
    const char *name;
    float (*ours)(float x);
    double (*theirs)(double x);
} function32;

typedef struct function64 {
    const char *name;
    double (*ours)(double x);
    long double (*theirs)(long double x);
    double low, high; /* where a dense grid is worth it */
} function64;

#define OURS(name)                                                                                           \
    static float name##32(float x) {                                                                         \
        return sbp_##name##_f32(x);                                                                          \
    }                                                                                                        \
    static double name##64(double x) {                                                                       \
        return sbp_##name##_f64(x);                                                                          \
    }
OURS(floor)
OURS(exp)
OURS(log)
OURS(sqrt)
OURS(rsqrt)
OURS(tanh)
OURS(erf)
OURS(sin)
OURS(cos)
OURS(sigmoid)
OURS(log_sigmoid)

static double rsqrt_d(double x) {
    return 1 / sqrt(x);
}
static double sigmoid_d(double x) {
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}
static double log_sigmoid_d(double x) {
    return x >= 0 ? -log1p(exp(-x)) : x - log1p(exp(x));
}
static long double rsqrt_l(long double x) {
    return 1 / sqrtl(x);
}
static long double sigmoid_l(long double x) {
    return x >= 0 ? 1 / (1 + expl(-x)) : expl(x) / (1 + expl(x));
}
static long double log_sigmoid_l(long double x) {
    return x >= 0 ? -log1pl(expl(-x)) : x - log1pl(expl(x));
}

static const function32 functions32[] = {{"floor", floor32, floor},
                                         {"exp", exp32, exp},
                                         {"log", log32, log},
                                         {"sqrt", sqrt32, sqrt},
                                         {"rsqrt", rsqrt32, rsqrt_d},
                                         {"tanh", tanh32, tanh},
                                         {"erf", erf32, erf},
                                         {"sin", sin32, sin},
                                         {"cos", cos32, cos},
                                         {"sigmoid", sigmoid32, sigmoid_d},
                                         {"log_sigmoid", log_sigmoid32, log_sigmoid_d}};
static const function64 functions64[] = {{"floor", floor64, floorl, -3, 3},
                                         {"exp", exp64, expl, -30, 30},
                                         {"log", log64, logl, 0.4, 2.5},
                                         {"sqrt", sqrt64, sqrtl, 0.5, 4},
                                         {"rsqrt", rsqrt64, rsqrt_l, 0.5, 4},
                                         {"tanh", tanh64, tanhl, -20, 20},
                                         {"erf", erf64, erfl, -6.5, 6.5},
                                         {"sin", sin64, sinl, -10, 10},
                                         {"cos", cos64, cosl, -10, 10},
                                         {"sigmoid", sigmoid64, sigmoid_l, -40, 40},
                                         {"log_sigmoid", log_sigmoid64, log_sigmoid_l, -40, 40}};

/* Distance of y from the exact value in units in the last place of the latter. */
static double ulps(float y, double exact) {
    if (isnan(exact))
        return isnan(y) ? 0 : 1e9;
    float nearest = (float)exact;
    if (isinf(nearest) || isinf(y)) /* next to overflow either answer may be the nearest */
        return nearest == y || fabs(exact) > (double)FLT_MAX * (1 - 1e-7) ? 0 : 1e9;
    int exponent;
    frexp(exact, &exponent);
    double unit = ldexp(1, exponent - 24 < -149 ? -149 : exponent - 24);
    return fabs((double)y - exact) / unit;
}

static void test_f32(void **state) {
    (void)state;
    uint32_t step = getenv("SBP_EXHAUSTIVE") ? 1 : 251;
    for (int f = 0; f < SBP_COUNT(functions32); f++) {
        double worst = 0;
        float at = 0;
        for (uint64_t bits = 0; bits <= UINT32_MAX; bits += step) {
            uint32_t word = (uint32_t)bits;
            float x;
            memcpy(&x, &word, sizeof x);
            double error = ulps(functions32[f].ours(x), functions32[f].theirs((double)x));
            if (error > worst) {
                worst = error;
                at = x;
            }
        }
        print_message("%-12s %.3f ulp at %.9g\n", functions32[f].name, worst, (double)at);
        if (!(worst <= SBP_TOLERANCE_ULP_F32))
            fail_msg("%s: %.3f ulp at %.9g", functions32[f].name, worst, (double)at);
    }
}

static double relative(double y, long double exact) {
    if (isnan(exact))
        return isnan(y) ? 0 : 1e9;
    if (isinf((double)exact) || isinf(y))
        return (double)exact == y ? 0 : 1e9;
    long double scale = fabsl(exact);
    if (scale < (long double)DBL_MIN) /* gradual underflow: units in the last place of the smallest */
        return (double)(fabsl((long double)y - exact) / 0x1p-1074L) * 1e-16;
    return (double)(fabsl((long double)y - exact) / scale);
}

static void check64(const function64 *function, double x, double *worst, double *at) {
    if (fabs(x) > 1e7 && (function->theirs == sinl || function->theirs == cosl))
        return;
    double error = relative(function->ours(x), function->theirs((long double)x));
    if (error > *worst) {
        *worst = error;
        *at = x;
    }
}

static void test_f64(void **state) {
    (void)state;
    sbp_rng rng = {4};
    for (int f = 0; f < SBP_COUNT(functions64); f++) {
        const function64 *function = &functions64[f];
        double worst = 0, at = 0;
        for (int i = 0; i <= 1000000; i++)
            check64(function, function->low + (function->high - function->low) * i / 1000000, &worst, &at);
        for (int i = 0; i < 1000000; i++) {
            uint64_t bits = sbp_rng_next(&rng);
            double x;
            memcpy(&x, &bits, sizeof x);
            check64(function, x, &worst, &at);
            check64(function, ldexp(sbp_rng_unit(&rng), (int)sbp_rng_below(&rng, 36) - 12), &worst, &at);
        }
        /* next to multiples of pi/2, where the reduction cancels */
        for (int i = 1; i < 6000000; i = i * 5 / 4 + 1)
            for (int away = -3; away <= 3; away++)
                check64(function, nextafter(i * 1.5707963267948966, away < 0 ? -1e300 : 1e300), &worst, &at);
        static const double special[] = {0,       -0.0,   INFINITY, -INFINITY, NAN,    DBL_MIN, 1e-310,
                                         -1e-310, 5e-324, 709.78,   709.79,    -745.1, -745.2,  -708.5,
                                         1,       -1,     2.5,      6,         0.55};
        for (int i = 0; i < SBP_COUNT(special); i++)
            check64(function, special[i], &worst, &at);
        print_message("%-12s %.3g relative at %.17g\n", function->name, worst, at);
        if (!(worst <= SBP_TOLERANCE_RELATIVE_F64))
            fail_msg("%s: %.3g at %.17g", function->name, worst, at);
    }
}

static void test_specials(void **state) {
    (void)state;
    assert_true(exp32(-INFINITY) == 0 && isinf(exp32(INFINITY)) && isnan(exp32(NAN)));
    assert_true(log32(0) == -INFINITY && log32(-0.0f) == -INFINITY && isnan(log32(-1)) &&
                isinf(log32(INFINITY)));
    assert_true(isnan(sin32(INFINITY)) && isnan(cos32(NAN)));
    assert_true(tanh32(INFINITY) == 1 && tanh32(-INFINITY) == -1 && erf32(-INFINITY) == -1);
    assert_true(floor32(-0.0f) == 0 && floor32(-1e-40f) == -1 && floor32(-8388607.5f) == -8388608);
    assert_true(floor32(8388607.5f) == 8388607 && floor64(-INFINITY) == -(double)INFINITY);
    assert_true(signbit(tanh32(-0.0f)) && signbit(erf32(-0.0f)));
    assert_true(log_sigmoid32(-INFINITY) == -INFINITY && log_sigmoid32(INFINITY) == 0);
    assert_true(sigmoid32(-INFINITY) == 0 && sigmoid32(INFINITY) == 1 && isnan(sigmoid32(NAN)));
    assert_true(log64(0) == -(double)INFINITY && isnan(log64(-1)) && isnan(sin64(INFINITY)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32),
        cmocka_unit_test(test_f64),
        cmocka_unit_test(test_specials),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
