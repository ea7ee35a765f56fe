/* test_types.c: ir/base/types.h and ir/base/lex.h: rounding to bf16 and fp16 against a search for the nearest
 * number, types and extents, and the tokens they are written in. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ir/base/lex.h"

static uint64_t seed = 1;

static uint64_t draw(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return seed ^ (seed >> 29);
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ---- 16 bits ------------------------------------------------------------------------------------------- */

/* The value of a code, from the definition of the formats. */
static double decode(sbp_dtype dtype, uint16_t code) {
    int mantissa_bits = dtype == SBP_BF16 ? 7 : 10, exponent_bits = 15 - mantissa_bits;
    int bias = (1 << (exponent_bits - 1)) - 1, exponent = (code & 0x7fff) >> mantissa_bits;
    int mantissa = code & ((1 << mantissa_bits) - 1);
    double sign = code & 0x8000 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1)
        return mantissa ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0)
        return sign * ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

/* The nearest code of a number, ties to even: by bisection over the magnitudes, which are ordered as their
 * codes. Infinity counts as the number that would come next. */
static uint16_t nearest(sbp_dtype dtype, double value) {
    uint16_t infinity = dtype == SBP_BF16 ? 0x7f80 : 0x7c00, low = 0, high = infinity;
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    double x = fabs(value), step = decode(dtype, infinity - 1) - decode(dtype, infinity - 2);
    while (high - low > 1) {
        uint16_t middle = (uint16_t)((low + high) / 2);
        if (decode(dtype, middle) <= x)
            low = middle;
        else
            high = middle;
    }
    double above = high == infinity ? decode(dtype, low) + step : decode(dtype, high);
    double half = decode(dtype, low) + (above - decode(dtype, low)) / 2;
    if (x > half || (x == half && (low & 1)))
        low = high;
    return (uint16_t)(low | sign);
}

static uint16_t encode(sbp_dtype dtype, double value) {
    uint16_t code;
    sbp_element_set(&code, dtype, 0, value);
    return code;
}

static void expect_nearest(sbp_dtype dtype, double value) {
    uint16_t got = encode(dtype, value), want = nearest(dtype, value);
    if (got != want)
        fail_msg("%s of %.17g is %04x, the nearest is %04x", sbp_dtype_name(dtype), value, got, want);
}

/* All codes read back as themselves; between each and the next: the middle, and next to the middle by less
 * than fp32 can tell; the fp32 conversions on what fp32 holds. */
static void sixteen_bits_round_to_nearest(void **state) {
    (void)state;
    static const sbp_dtype types[] = {SBP_BF16, SBP_F16};
    for (int t = 0; t < SBP_COUNT(types); t++) {
        sbp_dtype dtype = types[t];
        for (uint32_t c = 0; c < 0x10000; c++) {
            uint16_t code = (uint16_t)c;
            double value = decode(dtype, code), next = decode(dtype, (uint16_t)(code + 1));
            float read = dtype == SBP_BF16 ? sbp_f32_from_bf16(code) : sbp_f32_from_f16(code);
            if (isnan(value)) {
                assert_true(isnan(read) && isnan(sbp_element_get(&code, dtype, 0)));
                continue;
            }
            assert_true((double)read == value && !signbit(read) == !signbit(value));
            assert_int_equal(encode(dtype, value), code);
            if (!isfinite(value) || !isfinite(next) || code == 0x7fff)
                continue;
            double middle = value + (next - value) / 2;
            expect_nearest(dtype, middle);
            expect_nearest(dtype, nextafter(middle, INFINITY));
            expect_nearest(dtype, nextafter(middle, -INFINITY));
            assert_true(sbp_round_to(dtype, middle) == decode(dtype, nearest(dtype, middle)));
        }
        for (int i = 0; i < 200000; i++) {
            float value = float_of((uint32_t)draw());
            uint16_t code = dtype == SBP_BF16 ? sbp_bf16_from_f32(value) : sbp_f16_from_f32(value);
            if (isnan(value))
                assert_true(isnan(decode(dtype, code)));
            else
                assert_int_equal(code, nearest(dtype, (double)value));
        }
        expect_nearest(dtype, 65519.99999);
        expect_nearest(dtype, 65520);
        expect_nearest(dtype, 1e300);
        expect_nearest(dtype, -(double)FLT_MAX);
        expect_nearest(dtype, 1e-300);
        expect_nearest(dtype, -1e-300);
    }
}

static void elements_of_every_type(void **state) {
    (void)state;
    static const struct {
        sbp_dtype dtype;
        const char *name;
        int64_t bytes;
        bool is_float;
        double value;
    } cases[] = {{SBP_F64, "f64", 8, true, 0.1},
                 {SBP_F32, "f32", 4, true, -0.25},
                 {SBP_BF16, "bf16", 2, true, 1.5},
                 {SBP_F16, "f16", 2, true, -3},
                 {SBP_I8, "i8", 1, false, -128},
                 {SBP_I16, "i16", 2, false, -32768},
                 {SBP_I32, "i32", 4, false, -2147483648.0},
                 {SBP_I64, "i64", 8, false, 0x1p60},
                 {SBP_BOOL, "bool", 1, false, 1},
                 {SBP_D8, "d8", 1, false, 1},
                 {SBP_UD8, "ud8", 1, false, 1}};
    assert_int_equal(SBP_COUNT(cases), SBP_DTYPE_COUNT);
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        unsigned char data[5 * 8];
        memset(data, 0x5a, sizeof data);
        sbp_dtype dtype = cases[i].dtype, found;
        assert_string_equal(sbp_dtype_name(dtype), cases[i].name);
        assert_int_equal(sbp_dtype_bytes(dtype), cases[i].bytes);
        assert_true(sbp_dtype_is_float(dtype) == cases[i].is_float);
        assert_true(sbp_dtype_from_name(cases[i].name, strlen(cases[i].name), &found) && found == dtype);
        sbp_element_set(data, dtype, 3, cases[i].value);
        assert_true(sbp_element_get(data, dtype, 3) == cases[i].value);
        for (int64_t k = 0; k < 5 * 8; k++) /* and nothing beside it */
            if (k < 3 * cases[i].bytes || k >= 4 * cases[i].bytes)
                assert_int_equal(data[k], 0x5a);
    }
    sbp_dtype none;
    assert_false(sbp_dtype_from_name("f3", 2, &none));
    assert_false(sbp_dtype_from_name("f322", 4, &none));
    assert_true(sbp_dtype_from_name("f322", 3, &none));
}

/* ---- types and extents --------------------------------------------------------------------------------- */

typedef struct text_fixture {
    sbp_arena *arena;
    sbp_diag *diag;
    sbp_lexer lexer;
} text_fixture;

static text_fixture open_text(void) {
    return (text_fixture){.arena = sbp_arena_create(), .diag = sbp_diag_create()};
}

static void close_text(text_fixture *f) {
    sbp_arena_destroy(f->arena);
    sbp_diag_destroy(f->diag);
}

static sbp_status begin(text_fixture *f, const char *text) {
    sbp_diag_clear(f->diag);
    return sbp_lexer_init(&f->lexer, f->arena, f->diag, "t", text, strlen(text));
}

static void expect_message(text_fixture *f, sbp_status status, const char *text, const char *message) {
    if (status != SBP_INPUT || !strstr(sbp_diag_text(f->diag, SBP_ERROR), message))
        fail_msg("'%s': expected '%s', found status %d with '%s'", text, message, (int)status,
                 sbp_diag_text(f->diag, SBP_ERROR));
}

static void types_as_text(void **state) {
    (void)state;
    text_fixture f = open_text();
    static const char *const good[] = {
        "f64[]", "bf16[T]", "f32[C,4,6]", "i32[S]", "bool[0,2147483647]", "f16[1,2,3,4,5,6]"};
    for (int i = 0; i < SBP_COUNT(good); i++) {
        sbp_type type;
        sbp_text out;
        sbp_text_init(&out, f.arena);
        assert_int_equal(begin(&f, good[i]), SBP_OK);
        assert_int_equal(sbp_lexer_type(&f.lexer, &type), SBP_OK);
        assert_int_equal(f.lexer.token, SBP_TOKEN_END);
        assert_true(sbp_type_is_valid(&type));
        sbp_type_print(&out, &type);
        assert_string_equal(out.data, good[i]);
    }
    static const struct {
        const char *text, *message;
    } bad[] = {{"f31[]", "expected an element type, found 'f31'"},
               {"f32", "expected '[', found 'the end'"},
               {"f32[4,T]", "a symbolic dimension that is not axis 0"},
               {"f32[-1]", "dimension -1 out of range"},
               {"f32[2147483648]", "out of range"},
               {"f32[1,2,3,4,5,6,7]", "more than 6 dimensions"},
               {"f32[2147483647,2147483647]", "too many elements"},
               {"f32[4 5]", "expected ',', found 'a number'"},
               {"f32[X]", "expected an integer, found 'X'"},
               {"f32[4", "expected ',', found 'the end'"}};
    for (int i = 0; i < SBP_COUNT(bad); i++) {
        sbp_type type;
        assert_int_equal(begin(&f, bad[i].text), SBP_OK);
        expect_message(&f, sbp_lexer_type(&f.lexer, &type), bad[i].text, bad[i].message);
    }
    close_text(&f);
}

static void shapes(void **state) {
    (void)state;
    sbp_type a = {
        .dtype = SBP_F32, .rank = 3, .dim = {sbp_dim_symbol(SBP_T), sbp_dim_const(4), sbp_dim_const(6)}};
    sbp_type b = a, scalar = {.dtype = SBP_F64};
    assert_int_equal(sbp_type_rows(&a), SBP_T);
    assert_int_equal(sbp_type_row_elems(&a), 24);
    assert_int_equal(sbp_type_rows(&scalar), SBP_ONE);
    assert_int_equal(sbp_type_row_elems(&scalar), 1);
    assert_true(sbp_type_equal(&a, &b));
    b.dtype = SBP_F64;
    assert_true(sbp_type_same_shape(&a, &b) && !sbp_type_equal(&a, &b));
    b.dim[0] = sbp_dim_symbol(SBP_C);
    assert_false(sbp_type_same_shape(&a, &b));
    b.rank = 2;
    assert_false(sbp_type_same_shape(&a, &b));
    b = (sbp_type){.rank = 3, .dim = {{INT32_MAX, SBP_ONE}, {INT32_MAX, SBP_ONE}, {INT32_MAX, SBP_ONE}}};
    assert_int_equal(sbp_type_row_elems(&b), INT64_MAX);
    assert_false(sbp_type_is_valid(&b));
    b = (sbp_type){.rank = 1, .dim = {{5, SBP_T}}}; /* a symbol has no number */
    assert_false(sbp_type_is_valid(&b));
    b.rank = SBP_MAX_RANK + 1;
    assert_false(sbp_type_is_valid(&b));
}

static sbp_extent parse_extent(text_fixture *f, const char *text) {
    sbp_extent extent;
    assert_int_equal(begin(f, text), SBP_OK);
    if (sbp_lexer_extent(&f->lexer, &extent) != SBP_OK || f->lexer.token != SBP_TOKEN_END)
        fail_msg("'%s': %s", text, sbp_diag_text(f->diag, SBP_ERROR));
    return extent;
}

static void extents(void **state) {
    (void)state;
    text_fixture f = open_text();
    static const struct {
        const char *in, *out;
    } cases[] = {{"0", "0"},
                 {"7", "7"},
                 {"T", "T"},
                 {"2*T+C+5", "2*T+C+5"},
                 {"5+C+T+T", "2*T+C+5"},
                 {"T-1", "T-1"},
                 {"-3*H", "-3*H"},
                 {"C+-C", NULL},
                 {"T+S+C+H-9", "T+S+C+H-9"},
                 {"3*T-3*T", "0"},
                 {"-9223372036854775808", "-9223372036854775808"}};
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        sbp_text out;
        sbp_text_init(&out, f.arena);
        if (!cases[i].out) {
            sbp_extent none;
            assert_int_equal(begin(&f, cases[i].in), SBP_OK);
            expect_message(&f, sbp_lexer_extent(&f.lexer, &none), cases[i].in, "expected an extent");
            continue;
        }
        sbp_extent_print(&out, parse_extent(&f, cases[i].in));
        assert_string_equal(out.data, cases[i].out);
        assert_true(sbp_extent_equal(parse_extent(&f, out.data), parse_extent(&f, cases[i].in)));
    }
    sbp_extent none;
    assert_int_equal(begin(&f, "9223372036854775807+1"), SBP_OK);
    expect_message(&f, sbp_lexer_extent(&f.lexer, &none), "INT64_MAX+1", "extent out of range");
    assert_int_equal(begin(&f, "2*5"), SBP_OK);
    expect_message(&f, sbp_lexer_extent(&f.lexer, &none), "2*5", "expected T, S, C or H after '*'");
    const sbp_sizes sizes = {{1, 100, 7, 30, 4}};
    sbp_extent e = sbp_extent_add(sbp_extent_symbol(SBP_T, 6),
                                  sbp_extent_add(sbp_extent_const(-5), sbp_extent_symbol(SBP_H, 1)));
    int64_t value = 0;
    assert_true(sbp_extent_eval(e, &sizes, &value));
    assert_int_equal(value, 6 * 100 - 5 + 4);
    assert_int_equal(sbp_extent_as_const(e), -1);
    assert_int_equal(sbp_extent_as_const(sbp_extent_const(12)), 12);
    assert_false(sbp_extent_eval(sbp_extent_symbol(SBP_T, INT64_MAX / 99), &sizes, &value));
    e = sbp_extent_add(sbp_extent_const(INT64_MAX), sbp_extent_symbol(SBP_S, 1));
    assert_false(sbp_extent_eval(e, &sizes, &value));
    assert_int_equal(value, 599); /* left alone */
    close_text(&f);
}

/* ---- tokens -------------------------------------------------------------------------------------------- */

static void tokens(void **state) {
    (void)state;
    text_fixture f = open_text();
    assert_int_equal(begin(&f, "# comment\n a.b$c_9 \"q\\\"\\x41\\n\"\t-12 3.5e-2 {%-inf nan 1e3 # end"),
                     SBP_OK);
    const char *name;
    int64_t integer;
    double number;
    bool accepted;
    assert_int_equal(f.lexer.line, 2);
    assert_int_equal(sbp_lexer_name(&f.lexer, &name), SBP_OK);
    assert_string_equal(name, "a.b$c_9");
    assert_int_equal(f.lexer.token, SBP_TOKEN_STRING);
    assert_int_equal(sbp_lexer_name(&f.lexer, &name), SBP_OK);
    assert_string_equal(name, "q\"A\n");
    assert_int_equal(sbp_lexer_int(&f.lexer, &integer), SBP_OK);
    assert_int_equal(integer, -12);
    assert_int_equal(sbp_lexer_double(&f.lexer, &number), SBP_OK);
    assert_true(number == 3.5e-2);
    assert_true(sbp_lexer_is(&f.lexer, "{"));
    assert_int_equal(sbp_lexer_accept(&f.lexer, "}", &accepted), SBP_OK);
    assert_false(accepted);
    assert_int_equal(sbp_lexer_accept(&f.lexer, "{", &accepted), SBP_OK);
    assert_true(accepted);
    assert_int_equal(sbp_lexer_expect(&f.lexer, "%"), SBP_OK);
    assert_int_equal(sbp_lexer_double(&f.lexer, &number), SBP_OK);
    assert_true(number == -(double)INFINITY);
    assert_int_equal(sbp_lexer_double(&f.lexer, &number), SBP_OK);
    assert_true(isnan(number));
    assert_int_equal(sbp_lexer_double(&f.lexer, &number), SBP_OK);
    assert_true(number == 1000);
    assert_int_equal(f.lexer.token, SBP_TOKEN_END);
    assert_int_equal(sbp_lexer_next(&f.lexer), SBP_OK); /* and stays there */
    assert_int_equal(f.lexer.token, SBP_TOKEN_END);
    expect_message(&f, sbp_lexer_int(&f.lexer, &integer), "the end",
                   "t:2: expected an integer, found 'the end'");
    close_text(&f);
}

static void bad_tokens(void **state) {
    (void)state;
    text_fixture f = open_text();
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"\n\n\"abc", "t:3: a string does not end"},
        {"\"a\nb\"", "t:1: a string does not end"},
        {"\"\\x00\"", "a string holds a zero byte"},
        {"\"\\q\"", "unknown escape"},
        {"\"\\x4", "unknown escape"},
        {"\"\\", "unknown escape"},
        {"12e", "malformed number"},
        {"1e+", "malformed number"},
        {"9223372036854775808", "does not fit in 64 bits"},
        {"1234567890123456789012345678901234567890123456789012345678901", "a number of 61 characters"},
        {"\x01", "unexpected byte 0x01"},
        {"\xc3\xa9", "unexpected byte 0xc3"}};
    for (int i = 0; i < SBP_COUNT(cases); i++)
        expect_message(&f, begin(&f, cases[i].text), cases[i].text, cases[i].message);
    /* Text need not be terminated: nothing is read beyond its length. */
    static const char *const cut[] = {"\"abc\"", "-12", "1.5", "1e5", "name", "\"\\x41\"", "# comment"};
    for (int i = 0; i < SBP_COUNT(cut); i++)
        for (size_t n = 0; n < strlen(cut[i]); n++) {
            char *exact = malloc(n + 1);
            memcpy(exact, cut[i], n);
            char *shrunk = realloc(exact, n ? n : 1); /* a reader of one more byte is seen by the sanitizer */
            assert_non_null(shrunk);
            sbp_diag_clear(f.diag);
            sbp_status status = sbp_lexer_init(&f.lexer, f.arena, f.diag, "t", shrunk, n);
            assert_true(status == SBP_OK || status == SBP_INPUT);
            free(shrunk);
        }
    close_text(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sixteen_bits_round_to_nearest),
        cmocka_unit_test(elements_of_every_type),
        cmocka_unit_test(types_as_text),
        cmocka_unit_test(shapes),
        cmocka_unit_test(extents),
        cmocka_unit_test(tokens),
        cmocka_unit_test(bad_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
