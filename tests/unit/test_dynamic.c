/* test_dynamic.c: the numbers of d8 and ud8 (ir/base/dynamic.h) against the map written out as it was
 * published, a list of means of equal parts of decades, in double; rounding against a look at all 256; what
 * has a sign keeps it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ir/base/dynamic.h"
#include "ir/base/types.h"
#include "tests/rowkernel_random.h"

enum { DECADES = 7 };

static int compare(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* The map of 8 bits, 7 of them for the decade, in ascending order. */
static void published_map(bool has_sign, double map[256]) {
    int count = 0;
    for (int decade = 0; decade < DECADES; decade++) {
        int parts = has_sign ? 1 << decade : 2 << decade;
        double border[129];
        for (int i = 0; i <= parts; i++)
            border[i] = 0.1 + i * (0.9 / parts);
        for (int i = 0; i < parts; i++) {
            double mean = pow(10, decade - (DECADES - 1)) * ((border[i] + border[i + 1]) / 2);
            map[count++] = mean;
            if (has_sign)
                map[count++] = -mean;
        }
    }
    map[count++] = 0;
    map[count++] = 1;
    assert_int_equal(count, 256);
    qsort(map, 256, sizeof *map, compare);
}

static void numbers_are_those_of_the_map(void **state) {
    (void)state;
    static const sbp_dtype dtypes[] = {SBP_D8, SBP_UD8};
    for (int d = 0; d < 2; d++) {
        double map[256], ours[256];
        published_map(d == 0, map);
        for (int code = 0; code < 256; code++) {
            uint8_t byte = (uint8_t)code, again = 0;
            ours[code] = sbp_element_get(&byte, dtypes[d], 0);
            sbp_element_set(&again, dtypes[d], 0, ours[code]);
            assert_int_equal(again, byte);
        }
        assert_true(ours[0] == 0 && !signbit(ours[0]));
        qsort(ours, 256, sizeof *ours, compare);
        for (int i = 0; i < 256; i++)
            assert_true(ours[i] == (double)(float)map[i]);
    }
}

/* The nearest number of the map; of two whose mean is x, in fp32, the one nearer to 0. */
static double nearest(sbp_dtype dtype, const double map[256], float x) {
    int best = 0;
    for (int i = 1; i < 256; i++) { /* ascending */
        float mean = 0.5f * ((float)map[i - 1] + (float)map[i]);
        if (x > mean || (x == mean && mean < 0))
            best = i;
    }
    if (dtype == SBP_D8 && x < 0 && map[best] == 0)
        best--;
    return (double)(float)map[best];
}

static void check(sbp_dtype dtype, const double map[256], float x) {
    double found = sbp_round_to(dtype, (double)x);
    if (found != nearest(dtype, map, x))
        fail_msg("%s: %a becomes %.9g, the nearest is %.9g", sbp_dtype_name(dtype), (double)x, found,
                 nearest(dtype, map, x));
    if (dtype == SBP_D8 && x != 0)
        assert_true(found == 0 ? x > 0 : (found < 0) == (x < 0));
}

static void rounding_is_to_the_nearest(void **state) {
    (void)state;
    static const sbp_dtype dtypes[] = {SBP_D8, SBP_UD8};
    for (int d = 0; d < 2; d++) {
        double map[256];
        published_map(d == 0, map);
        for (int i = 1; i < 256; i++) { /* around every border */
            float x = 0.5f * ((float)map[i - 1] + (float)map[i]);
            for (int k = 0; k < 4; k++)
                x = nextafterf(x, -INFINITY);
            for (int k = 0; k < 8; k++, x = nextafterf(x, INFINITY))
                check(dtypes[d], map, x);
        }
        const float special[] = {0, -0.0f, 1, -1, 2, -2, 1e-45f, -1e-45f, 1e-7f, -1e-7f, INFINITY, -INFINITY};
        for (int i = 0; i < SBP_COUNT(special); i++)
            check(dtypes[d], map, special[i]);
        assert_true(sbp_round_to(dtypes[d], (double)NAN) == 0);
        sbp_rng rng = {1};
        for (int i = 0; i < 100000; i++) {
            double scale = pow(10, 4 * sbp_rng_unit(&rng) - 3.5);
            check(dtypes[d], map, (float)(scale * sbp_rng_unit(&rng)));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(numbers_are_those_of_the_map),
                                       cmocka_unit_test(rounding_is_to_the_nearest)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
