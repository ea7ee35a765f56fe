/* Formats and rounding: small formats against their definition (the list of all their values), f32 against
 * the processor in its four rounding modes. */
#include <fenv.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/common/sweep.h"
#include "tests/ptx/tensor/approx.h"
#include "tests/ptx/tensor/formats.h"

typedef struct {
    double value;
    uint32_t bits;
} entry;

static const struct {
    sbp_ptx_type type;
    uint32_t step, nan; // between codes of values; canonical NaN
    double largest, smallest;
    bool infinity;
} small[] = {
    {SBP_PTX_BF16, 1, 0x7fff, 0x1.fep127, 0x1p-133, true},
    {SBP_PTX_F16, 1, 0x7fff, 65504, 0x1p-24, true},
    {SBP_PTX_E4M3, 1, 0x7f, 448, 0x1p-9, false},
    {SBP_PTX_E5M2, 1, 0x7f, 57344, 0x1p-16, true},
    {SBP_PTX_TF32, 0x2000, 0x7fffffff, 0x1.ffcp127, 0x1p-136, true},
};
enum { SMALL = sizeof small / sizeof small[0] };

// The values >= 0 of a format in the order of their codes, infinity left out.
static int values_of(int s, entry *out) {
    int count = 0;
    const int width = sbp_ptx_type_bits(small[s].type);
    for (uint64_t bits = 0; bits < UINT64_C(1) << (width - 1); bits += small[s].step) {
        const double value = sbp_ptx_value(small[s].type, bits);
        if (isfinite(value)) {
            out[count++] = (entry){value, (uint32_t)bits};
        }
    }
    return count;
}

static void formats_have_the_values_they_should(void **state) {
    (void)state;
    entry *list = calloc(1 << 18, sizeof *list);
    for (int s = 0; s < SMALL; s++) {
        const int count = values_of(s, list);
        assert_true(list[0].value == 0 && list[1].value == small[s].smallest);
        assert_true(list[count - 1].value == small[s].largest);
        for (int i = 1; i < count; i++) {
            assert_true(list[i].value > list[i - 1].value);
            const uint32_t sign = UINT32_C(1) << (sbp_ptx_type_bits(small[s].type) - 1);
            assert_true(sbp_ptx_value(small[s].type, list[i].bits | sign) == -list[i].value);
        }
        const double one = sbp_ptx_value(small[s].type, sbp_ptx_round(small[s].type, 1, SBP_PTX_RN, 0));
        assert_true(one == 1);
        assert_true(isnan(sbp_ptx_value(small[s].type, small[s].nan)));
        assert_int_equal(sbp_ptx_round(small[s].type, (double)NAN, SBP_PTX_RN, 0), small[s].nan);
        assert_int_equal(sbp_ptx_round(small[s].type, (double)NAN, SBP_PTX_RN, SBP_PTX_SATFINITE),
                         small[s].nan);
    }
    free(list);
}

// By definition: x lies between two neighbours (or on one); which of them does the mode take? x >= 0 and in
// range.
static uint32_t expected(const entry *below, const entry *above, double x, bool negative,
                         sbp_ptx_rounding mode, uint32_t step) {
    if (below->value == x) {
        return below->bits;
    }
    const double down = x - below->value, up = above->value - x; // exact: of few bits each
    switch (mode) {
    case SBP_PTX_RN:
        return down < up || (down == up && below->bits / step % 2 == 0) ? below->bits : above->bits;
    case SBP_PTX_RNA:
        return down < up ? below->bits : above->bits;
    case SBP_PTX_RZ:
        return below->bits;
    case SBP_PTX_RM:
        return negative ? above->bits : below->bits;
    default:
        return negative ? below->bits : above->bits;
    }
}

static void small_formats_round_by_definition(void **state) {
    (void)state;
    entry *list = calloc(1 << 18, sizeof *list);
    int checked = 0;
    for (int s = 0; s < SMALL; s++) {
        const int count = values_of(s, list), stride = small[s].type == SBP_PTX_TF32 ? 7 : 1;
        const uint32_t sign = UINT32_C(1) << (sbp_ptx_type_bits(small[s].type) - 1);
        for (int i = 0; i + 1 < count; i += stride) {
            const double middle = (list[i].value + list[i + 1].value) / 2,
                         gap = list[i + 1].value - list[i].value;
            const double points[] = {list[i].value, middle, middle - gap / 16, middle + gap / 1024,
                                     list[i].value + gap / 64};
            for (int p = 0; p < 5; p++) {
                for (int mode = SBP_PTX_RN; mode <= SBP_PTX_RNA; mode++) {
                    const uint32_t plus = expected(&list[i], &list[i + 1], points[p], false,
                                                   (sbp_ptx_rounding)mode, small[s].step);
                    const uint32_t minus = expected(&list[i], &list[i + 1], points[p], true,
                                                    (sbp_ptx_rounding)mode, small[s].step);
                    assert_int_equal(sbp_ptx_round(small[s].type, points[p], (sbp_ptx_rounding)mode, 0),
                                     plus);
                    assert_int_equal(sbp_ptx_round(small[s].type, -points[p], (sbp_ptx_rounding)mode, 0),
                                     sign | minus);
                    checked++;
                }
            }
        }
    }
    free(list);
    assert_true(checked > 1000000);
}

static void what_is_too_large_overflows_or_saturates(void **state) {
    (void)state;
    for (int s = 0; s < SMALL; s++) {
        const sbp_ptx_type type = small[s].type;
        const double largest = small[s].largest, beyond = largest * 4;
        const uint64_t top = sbp_ptx_round(type, largest, SBP_PTX_RN, 0);
        const uint64_t sign = UINT64_C(1) << (sbp_ptx_type_bits(type) - 1);
        const uint64_t over = small[s].infinity ? top + small[s].step : small[s].nan;
        const uint64_t minus = small[s].infinity ? over | sign : over;
        assert_int_equal(sbp_ptx_round(type, beyond, SBP_PTX_RN, 0), over);
        assert_int_equal(sbp_ptx_round(type, -beyond, SBP_PTX_RN, 0), minus);
        assert_int_equal(sbp_ptx_round(type, beyond, SBP_PTX_RZ, 0), top);
        assert_int_equal(sbp_ptx_round(type, beyond, SBP_PTX_RM, 0), top);
        assert_int_equal(sbp_ptx_round(type, -beyond, SBP_PTX_RP, 0), top | sign);
        assert_int_equal(sbp_ptx_round(type, beyond, SBP_PTX_RP, 0), over);
        assert_int_equal(sbp_ptx_round(type, (double)INFINITY, SBP_PTX_RZ, 0), over);
        assert_int_equal(sbp_ptx_round(type, (double)INFINITY, SBP_PTX_RN, SBP_PTX_SATFINITE), top);
        assert_int_equal(sbp_ptx_round(type, -beyond, SBP_PTX_RN, SBP_PTX_SATFINITE), top | sign);
        assert_int_equal(sbp_ptx_round(type, -1, SBP_PTX_RN, SBP_PTX_RELU), 0);
        assert_int_equal(sbp_ptx_round(type, -0.0, SBP_PTX_RN, SBP_PTX_RELU), 0);
        assert_int_equal(sbp_ptx_round(type, -small[s].smallest, SBP_PTX_RN, SBP_PTX_FTZ), sign);
        assert_int_equal(sbp_ptx_round(type, -0.0, SBP_PTX_RN, 0), sign);
    }
    // 65519.99 is the last that goes to 65504 and 65520 the first that overflows.
    assert_int_equal(sbp_ptx_round(SBP_PTX_F16, 65519.99, SBP_PTX_RN, 0), 0x7bff);
    assert_int_equal(sbp_ptx_round(SBP_PTX_F16, 65520, SBP_PTX_RN, 0), 0x7c00);
    assert_int_equal(sbp_ptx_round(SBP_PTX_F32, 3, SBP_PTX_RN, SBP_PTX_SAT), 0x3f800000);
    assert_int_equal(sbp_ptx_round(SBP_PTX_F32, (double)NAN, SBP_PTX_RN, SBP_PTX_SAT), 0);
    assert_int_equal(sbp_ptx_round(SBP_PTX_F32, (double)NAN, SBP_PTX_RN, 0), 0x7fffffff);
}

// A double or float of any bits, NaN left out; half of them near each other, so that sums cancel.
static double any_double(uint64_t draw) {
    uint64_t bits = sbp_ptx_hash(1, draw, 0, 0);
    if (draw % 4) { // within the range of f32, its subnormals too
        bits = (bits & UINT64_C(0x800fffffffffffff)) | (1023 - 152 + bits % 285) << 52;
    }
    double value;
    memcpy(&value, &bits, sizeof value);
    return isnan(value) ? 1 : value;
}

static float any_float(uint64_t draw, uint64_t which) {
    uint32_t bits = (uint32_t)sbp_ptx_hash(2, draw, which, 0);
    if (draw % 2) {
        bits = (bits & 0x807fffff) | (120 + bits % 13) << 23;
    }
    const float value = sbp_ptx_f32_of_bits(bits);
    return isnan(value) ? 1 : value;
}

static const struct {
    sbp_ptx_rounding mode;
    int processor;
} modes[] = {{SBP_PTX_RN, FE_TONEAREST},
             {SBP_PTX_RZ, FE_TOWARDZERO},
             {SBP_PTX_RM, FE_DOWNWARD},
             {SBP_PTX_RP, FE_UPWARD}};

static bool same_f32(uint64_t bits, float wanted) {
    return isnan(wanted) ? bits == 0x7fffffff : bits == sbp_ptx_bits_of_f32(wanted);
}

static uint64_t to_f32(double value, sbp_ptx_rounding mode) {
    return sbp_ptx_round(SBP_PTX_F32, value, mode, 0);
}

static void f32_is_rounded_as_the_processor_rounds(void **state) {
    (void)state;
    for (uint64_t draw = 0; draw < 100000; draw++) {
        const volatile double wide = any_double(draw);
        const volatile float x = any_float(draw, 0), y = any_float(draw, 1), z = any_float(draw, 2);
        const double sum = sbp_ptx_add_odd(x, y), quotient = sbp_ptx_div_odd(x, y),
                     root = sbp_ptx_sqrt_odd(fabsf(x));
        const double chain = sbp_ptx_fma_odd(x, y, z);
        for (int m = 0; m < 4; m++) {
            fesetround(modes[m].processor);
            const volatile float cast = (float)wide, added = x + y, divided = x / y, rooted = sqrtf(fabsf(x));
            const volatile float multiplied = x * y, fused = fmaf(x, y, z);
            fesetround(FE_TONEAREST);
            assert_true(same_f32(to_f32(wide, modes[m].mode), cast));
            assert_true(same_f32(to_f32((double)x * y, modes[m].mode), multiplied));
            // An exact zero from a sum has the sign of the mode; the machine that adds says so, not rounding.
            assert_true(same_f32(to_f32(sum, modes[m].mode), added) || (added == 0 && sum == 0));
            assert_true(same_f32(to_f32(chain, modes[m].mode), fused) || (fused == 0 && chain == 0));
            assert_true(same_f32(to_f32(quotient, modes[m].mode), divided));
            assert_true(same_f32(to_f32(root, modes[m].mode), rooted));
        }
    }
}

static void the_short_conversions_are_the_long_ones(void **state) {
    (void)state;
    const uint64_t step = testing_all() ? 61 : 4099;
    for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += step) {
        const float value = sbp_ptx_f32_of_bits((uint32_t)bits);
        assert_int_equal(sbp_ptx_bf16_of_f32(value), sbp_ptx_round(SBP_PTX_BF16, value, SBP_PTX_RN, 0));
    }
    for (uint32_t bits = 0; bits < 65536; bits++) {
        const double value = sbp_ptx_value(SBP_PTX_BF16, bits);
        assert_true(isnan(value) || sbp_ptx_f32_of_bf16((uint16_t)bits) == value);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formats_have_the_values_they_should),
        cmocka_unit_test(small_formats_round_by_definition),
        cmocka_unit_test(what_is_too_large_overflows_or_saturates),
        cmocka_unit_test(f32_is_rounded_as_the_processor_rounds),
        cmocka_unit_test(the_short_conversions_are_the_long_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
