/* Approximations: inside their bounds (against long double), pure, moved by seeds, exact where the manual's
 * tables are. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/ptx/tensor/approx.h"

static long double reference(sbp_ptx_approximation op, long double x, long double y) {
    switch (op) {
    case SBP_PTX_RCP:
        return 1 / x;
    case SBP_PTX_SQRT:
        return sqrtl(x);
    case SBP_PTX_RSQRT:
        return 1 / sqrtl(x);
    case SBP_PTX_SIN:
        return sinl(x);
    case SBP_PTX_COS:
        return cosl(x);
    case SBP_PTX_LG2:
        return log2l(x);
    case SBP_PTX_EX2:
        return exp2l(x);
    case SBP_PTX_TANH:
        return tanhl(x);
    default:
        return x / y;
    }
}

// Bounds as the manual states them: `relative`, `absolute`, or in units of f32's last place.
static long double allowed(sbp_ptx_approximation op, sbp_ptx_type type, long double x, long double exact) {
    const long double size = fabsl(exact), least = ldexpl(1, -126);
    const long double ulp = ldexpl(1, (int)floorl(log2l(size < least ? least : size)) - 23);
    switch (op) {
    case SBP_PTX_RCP:
        return ulp;
    case SBP_PTX_SQRT:
        return size * exp2l(-23);
    case SBP_PTX_RSQRT:
        return size * exp2l(-22.9L);
    case SBP_PTX_SIN:
    case SBP_PTX_COS:
        return fabsl(x) <= 2 * 3.14159265L ? exp2l(-20.5L) : fabsl(x) <= 314.159L ? exp2l(-14.7L) : exp2l(-8);
    case SBP_PTX_LG2:
        return x > 0.5L && x < 2 ? exp2l(-22) : size * exp2l(-22);
    case SBP_PTX_EX2:
        return type == SBP_PTX_F16 ? size * exp2l(-9.9L) : type == SBP_PTX_BF16 ? size * exp2l(-7) : 2 * ulp;
    case SBP_PTX_TANH:
        return type == SBP_PTX_F16 ? exp2l(-10.987L) : type == SBP_PTX_BF16 ? exp2l(-8) : size * exp2l(-11);
    default:
        return 2 * ulp;
    }
}

static const struct {
    sbp_ptx_approximation op;
    sbp_ptx_type type;
    double low, high; // of x
} ranges[] = {
    {SBP_PTX_RCP, SBP_PTX_F32, -1e30, 1e30}, {SBP_PTX_SQRT, SBP_PTX_F32, 0, 1e30},
    {SBP_PTX_RSQRT, SBP_PTX_F32, 0, 1e30},   {SBP_PTX_SIN, SBP_PTX_F32, -400, 400},
    {SBP_PTX_COS, SBP_PTX_F32, -400, 400},   {SBP_PTX_SIN, SBP_PTX_F32, -6, 6},
    {SBP_PTX_LG2, SBP_PTX_F32, 0, 3},        {SBP_PTX_LG2, SBP_PTX_F32, 0, 1e20},
    {SBP_PTX_EX2, SBP_PTX_F32, -120, 120},   {SBP_PTX_EX2, SBP_PTX_F16, -13, 15},
    {SBP_PTX_EX2, SBP_PTX_BF16, -120, 120},  {SBP_PTX_TANH, SBP_PTX_F32, -5, 5},
    {SBP_PTX_TANH, SBP_PTX_F16, -5, 5},      {SBP_PTX_TANH, SBP_PTX_BF16, -5, 5},
    {SBP_PTX_DIV, SBP_PTX_F32, -1e10, 1e10}, {SBP_PTX_DIV_FULL, SBP_PTX_F32, -1e10, 1e10},
};
enum { RANGES = sizeof ranges / sizeof ranges[0] };

static uint32_t draw_operand(sbp_ptx_type type, double low, double high, uint64_t draw, uint64_t which) {
    const uint64_t bits = sbp_ptx_hash(draw, which, 0, 0);
    const double share = (double)(bits >> 11) * 0x1p-53; // of [0, 1); small ones as often as large
    const double scale = which == 0 && bits % 2 ? exp2(-(double)(bits >> 1 & 15)) : 1;
    return (uint32_t)sbp_ptx_round(type, (low + share * (high - low)) * scale, SBP_PTX_RN, 0);
}

static void results_stay_inside_their_bounds_and_move(void **state) {
    (void)state;
    for (int r = 0; r < RANGES; r++) {
        int moved = 0, far = 0;
        for (uint64_t draw = 0; draw < 5000; draw++) {
            const sbp_ptx_type type = ranges[r].type;
            const uint32_t x = draw_operand(type, ranges[r].low, ranges[r].high, draw, 0);
            const uint32_t y = ranges[r].op >= SBP_PTX_DIV ? draw_operand(type, 0.001, 1e5, draw, 1) : 0;
            const double xv = sbp_ptx_value(type, x);
            if (xv == 0) {
                continue;
            }
            const long double exact = reference(ranges[r].op, xv, sbp_ptx_value(type, y));
            const long double bound = allowed(ranges[r].op, type, xv, exact);
            const uint32_t nearest = sbp_ptx_approx(ranges[r].op, type, x, y, type == SBP_PTX_BF16, 0);
            const uint32_t got = sbp_ptx_approx(ranges[r].op, type, x, y, type == SBP_PTX_BF16, 17);
            assert_int_equal(nearest, sbp_ptx_round(type, (double)exact, SBP_PTX_RN, 0));
            assert_int_equal(got, sbp_ptx_approx(ranges[r].op, type, x, y, type == SBP_PTX_BF16, 17));
            const long double error = fabsl(sbp_ptx_value(type, got) - exact);
            assert_true(error <= bound * (1 + exp2l(-30)));
            moved += got != nearest;
            far += error > bound / 2;
        }
        // A bound of 2^-23 relative leaves few neighbours; the others move often.
        assert_true(moved > 100 && far > 100);
    }
}

static uint32_t f32_of(sbp_ptx_approximation op, float x, float y, bool ftz) {
    return sbp_ptx_approx(op, SBP_PTX_F32, sbp_ptx_bits_of_f32(x), sbp_ptx_bits_of_f32(y), ftz, 99);
}

static void special_values_are_exact(void **state) {
    (void)state;
    const float inf = INFINITY, tiny = 0x1p-130f;
    const uint32_t plus_inf = 0x7f800000, minus_inf = 0xff800000, zero = 0, minus_zero = 0x80000000,
                   one = 0x3f800000, nan = 0x7fffffff;
    const struct {
        sbp_ptx_approximation op;
        float x, y;
        bool ftz;
        uint32_t wanted;
    } cases[] = {
        {SBP_PTX_RCP, 0, 0, false, plus_inf},
        {SBP_PTX_RCP, -0.0f, 0, false, minus_inf},
        {SBP_PTX_RCP, inf, 0, false, zero},
        {SBP_PTX_RCP, -inf, 0, false, minus_zero},
        {SBP_PTX_RCP, tiny, 0, true, plus_inf},
        {SBP_PTX_RCP, NAN, 0, false, nan},
        {SBP_PTX_SQRT, -0.0f, 0, false, minus_zero},
        {SBP_PTX_SQRT, -1, 0, false, nan},
        {SBP_PTX_SQRT, inf, 0, false, plus_inf},
        {SBP_PTX_SQRT, -tiny, 0, true, minus_zero},
        {SBP_PTX_RSQRT, 0, 0, false, plus_inf},
        {SBP_PTX_RSQRT, -0.0f, 0, false, minus_inf},
        {SBP_PTX_RSQRT, -2, 0, false, nan},
        {SBP_PTX_RSQRT, inf, 0, false, zero},
        {SBP_PTX_SIN, -0.0f, 0, false, minus_zero},
        {SBP_PTX_SIN, inf, 0, false, nan},
        {SBP_PTX_COS, 0, 0, false, one},
        {SBP_PTX_COS, -inf, 0, false, nan},
        {SBP_PTX_LG2, 0, 0, false, minus_inf},
        {SBP_PTX_LG2, -0.0f, 0, false, minus_inf},
        {SBP_PTX_LG2, -1, 0, false, nan},
        {SBP_PTX_LG2, inf, 0, false, plus_inf},
        {SBP_PTX_LG2, tiny, 0, true, minus_inf},
        {SBP_PTX_EX2, 0, 0, false, one},
        {SBP_PTX_EX2, -0.0f, 0, false, one},
        {SBP_PTX_EX2, -inf, 0, false, zero},
        {SBP_PTX_EX2, inf, 0, false, plus_inf},
        {SBP_PTX_EX2, -1000, 0, false, zero},
        {SBP_PTX_EX2, -127.5f, 0, true, zero},
        {SBP_PTX_EX2, NAN, 0, false, nan},
        {SBP_PTX_EX2, tiny, 0, true, one},
        {SBP_PTX_TANH, inf, 0, false, one},
        {SBP_PTX_TANH, -0.0f, 0, false, minus_zero},
        {SBP_PTX_TANH, -inf, 0, false, 0xbf800000},
        {SBP_PTX_DIV, 1, 0x1p127f, false, zero},
        {SBP_PTX_DIV, -1, 0x1p127f, false, minus_zero},
        {SBP_PTX_DIV, inf, 0x1p127f, false, nan},
        {SBP_PTX_DIV, 1, 0, false, plus_inf},
        {SBP_PTX_DIV, 0, 0, false, nan},
        {SBP_PTX_DIV_FULL, 0, 3, false, zero},
        {SBP_PTX_DIV_FULL, inf, inf, false, nan},
        {SBP_PTX_DIV_FULL, -1, inf, false, minus_zero},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(f32_of(cases[i].op, cases[i].x, cases[i].y, cases[i].ftz), cases[i].wanted);
    }
    assert_int_equal(sbp_ptx_approx(SBP_PTX_EX2, SBP_PTX_F16, 0xfc00, 0, false, 5), 0);
    assert_int_equal(sbp_ptx_approx(SBP_PTX_EX2, SBP_PTX_BF16, 0x8000, 0, true, 5), 0x3f80);
    assert_int_equal(sbp_ptx_approx(SBP_PTX_TANH, SBP_PTX_F16, 0x7e00, 0, false, 5), 0x7fff);
}

static void no_sine_is_above_one(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed < 2000; seed++) {
        const float half_pi = 1.57079632f;
        const uint32_t bits =
            sbp_ptx_approx(SBP_PTX_SIN, SBP_PTX_F32, sbp_ptx_bits_of_f32(half_pi), 0, false, seed);
        assert_true(fabsf(sbp_ptx_f32_of_bits(bits)) <= 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_stay_inside_their_bounds_and_move),
        cmocka_unit_test(special_values_are_exact),
        cmocka_unit_test(no_sine_is_above_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
