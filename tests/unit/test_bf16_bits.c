/* test_bf16_bits.c: the functions of rowops.def that take numbers apart into bf16 and the rest: a weight and
 * its low bits are the master again, whatever the bits; random rounding goes up exactly as often as it
 * should. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "ir/rowkernel/rowkernel.h"
#include "tests/rowkernel_random.h"

static double number_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return (double)x;
}

static uint32_t bits_of(double x) {
    float narrow = (float)x;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    assert_true((double)narrow == x || isnan(x));
    return bits;
}

static bool is_nan(uint32_t bits) {
    return (bits & 0x7fffffff) > 0x7f800000;
}

static void join_is_the_inverse(void **state) {
    (void)state;
    static const uint32_t lows[] = {0, 1, 2, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0xfffe, 0xffff};
    sbp_rng rng = {1};
    for (uint32_t pattern = 0; pattern < 1 << 16; pattern++)
        for (int i = 0; i < 2 * SBP_COUNT(lows); i++) {
            uint32_t low = i < SBP_COUNT(lows) ? lows[i] : (uint32_t)sbp_rng_below(&rng, 1 << 16);
            uint32_t bits = pattern << 16 | low;
            double a = number_of(bits), high = sbp_bf16_high(a), rest = sbp_bf16_low(a);
            double joined = sbp_bf16_join(high, rest);
            if (is_nan(bits)) {
                assert_true(isnan(high) && rest == 0 && isnan(joined));
                continue;
            }
            assert_int_equal(bits_of(joined), bits);
            assert_int_equal(bits_of(high) & 0xffff, 0);
            assert_true(rest == (double)(low < 0x8000 ? (int32_t)low : (int32_t)low - 65536));
            double nearest = sbp_round_to(SBP_BF16, a); /* another for halves only */
            assert_true(high == nearest || (low == 0x8000 && fabs(high) >= fabs(nearest)));
        }
    assert_true(isnan(sbp_bf16_join((double)NAN, 5)) && sbp_bf16_join(1, (double)NAN) == 1);
    assert_int_equal(bits_of(sbp_bf16_join(1, 1e9)), 0x3f800000 + 32767);
    assert_int_equal(bits_of(sbp_bf16_join(1, -1e9)), 0x3f800000 - 32768);
}

/* All 65536 different random numbers: the larger neighbour as often as the bits that are lost say, so that
 * the mean of the results is the number itself. */
static void random_rounding_is_unbiased(void **state) {
    (void)state;
    sbp_rng rng = {2};
    static const uint32_t some[] = {0,          0x80000000, 0x3f800001, 0xbf80ffff, 0x00000001,
                                    0x007fffff, 0x7f7f8000, 0xff7fffff, 0x7f800000, 0xff800000};
    for (int i = 0; i < 40; i++) {
        uint32_t bits = i < SBP_COUNT(some) ? some[i] : (uint32_t)sbp_rng_next(&rng);
        if (is_nan(bits))
            continue;
        double a = number_of(bits), below = number_of(bits & 0xffff0000);
        double above = number_of((bits & 0xffff0000) + 0x10000);
        int up = 0;
        for (int k = 0; k < 1 << 16; k++) {
            double y = sbp_bf16_random(a, (k + (k % 3) * 0.33) * 0x1p-16);
            uint32_t expected = (bits + (uint32_t)k) & 0xffff0000;
            assert_int_equal(bits_of(y), expected);
            up += (bits & 0xffff) != 0 && y == above;
        }
        assert_int_equal(up, bits & 0xffff);
        if (isfinite(above) && (bits & 0xffff) != 0)
            assert_true(below + (above - below) * up / 65536 == a);
    }
    assert_true(isnan(sbp_bf16_random((double)NAN, 0.5)) &&
                isnan(sbp_bf16_random(number_of(0x7fffffff), 0.99)));
    assert_int_equal(bits_of(sbp_bf16_random(number_of(0x3f800001), 7)), 0x3f810000);
    assert_int_equal(bits_of(sbp_bf16_random(number_of(0x3f80ffff), -7)), 0x3f800000);
    assert_int_equal(bits_of(sbp_bf16_random(number_of(0x3f80ffff), (double)NAN)), 0x3f800000);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(join_is_the_inverse),
                                       cmocka_unit_test(random_rounding_is_unbiased)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
