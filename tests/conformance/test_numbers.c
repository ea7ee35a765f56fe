/* test_numbers.c: what row kernels do with the bits of numbers, exactly: loads, stores and roundings of every
 * type, on every instruction set of the CPU device, against the reference interpreter. */
#include "tests/conformance/conformance.h"

#include "ir/base/dynamic.h"
#include "ir/base/lex.h"
#include "ir/rowkernel/format.h"

#include <math.h>

/* A kernel of operands in1 .. (f32 unless a line says otherwise), from its text. */
static void begin(suite_case **out, const char *text, uint64_t seed) {
    suite_case *c = *out = suite_begin("", seed);
    sbp_diag *diag = sbp_diag_create();
    sbp_lexer lexer;
    CHECK_OK(sbp_lexer_init(&lexer, c->arena, diag, "kernel", text, strlen(text)), diag);
    CHECK_OK(sbp_rowkernel_parse(&lexer, c->arena, &c->kernel), diag);
    CHECK_OK(sbp_rowkernel_verify(c->kernel, diag), diag);
    sbp_diag_destroy(diag);
    c->name = c->kernel->name;
    c->command.kind = SBP_CMD_ROW;
    c->same_bits = true;
}

/* Expects the reference's bits of what the tensors hold; the last tensors are outputs. */
static void expect_reference(suite_case *c) {
    const sbp_rowkernel *k = c->kernel;
    sbp_rk_view views[SBP_ROWKERNEL_MAX_OPERANDS];
    for (int32_t i = 0; i < k->operand_count; i++) {
        const suite_tensor *t = &c->tensors[i];
        views[i] = (sbp_rk_view){.data = suite_alloc(c, t->rows * t->cols + 1, 8), .stride = t->cols};
        for (int64_t j = 0; j < t->rows * t->cols; j++)
            sbp_element_set(views[i].data, t->dtype, j, t->values[j]);
    }
    assert_int_equal(sbp_rowkernel_run_reference(k, c->rows, c->row0, views, c->scalars), SBP_OK);
    for (int32_t i = 0; i < k->operand_count; i++) {
        suite_tensor *t = &c->tensors[i];
        if (k->operands[i].mode == SBP_RK_IN)
            continue;
        suite_expect(c, t);
        t->tolerance = SBP_TOLERANCE_NONE;
        for (int64_t j = 0; j < t->rows * t->cols; j++)
            t->expected[j] = sbp_element_get(views[i].data, t->dtype, j);
    }
}

/* Numbers of all sizes, and those where roundings change. */
static double any_number(suite_case *c) {
    static const double special[] = {
        0,           -0.0, 1,      -1,      127.5,    -128.5,           32767.5,
        2.5,         3e38, 0x1p31, -0x1p40, 1e-40,    (double)INFINITY, -(double)INFINITY,
        (double)NAN, 0.5,  -1.5,   3.5,     8388607.5};
    float x;
    uint32_t bits = (uint32_t)sbp_rng_next(&c->rng);
    switch (sbp_rng_below(&c->rng, 5)) {
    case 0:
        return (double)(float)special[sbp_rng_below(&c->rng, SBP_COUNT(special))];
    case 1: /* a border of a dynamic map, or beside it */
        x = sbp_rng_below(&c->rng, 2) ? sbp_d8_borders[bits % 128] : sbp_ud8_borders[bits % 255];
        x = sbp_rng_below(&c->rng, 2) ? -x : x;
        return (double)(sbp_rng_below(&c->rng, 3) ? nextafterf(x, sbp_rng_below(&c->rng, 2) ? 2 : -2) : x);
    case 2: /* any bits */
        memcpy(&x, &bits, sizeof x);
        return (double)x;
    default:
        return (double)(float)(pow(10, 6 * sbp_rng_unit(&c->rng) - 2) * sbp_rng_unit(&c->rng));
    }
}

static const sbp_dtype formats[] = {SBP_F64, SBP_F32, SBP_BF16, SBP_F16, SBP_I8,
                                    SBP_I16, SBP_I32, SBP_D8,   SBP_UD8};

/* x as it is stored; and rounded there and then. */
static void test_number_stores(void **state) {
    (void)state;
    for (int d = 0; d < SBP_COUNT(formats); d++)
        for (int wide = 0; wide < 2; wide++)
            for (int64_t n = 1; n < 2000; n = n * 40 + 3) {
                suite_case *c;
                char text[512];
                const char *type = sbp_dtype_name(formats[d]), *compute = wide ? "f64" : "f32";
                snprintf(text, sizeof text,
                         "kernel @store_%1$s %2$s heads 1 n %3$d { in x : f32 [row elem] length %3$d "
                         "out y : %1$s [row elem] length %3$d out z : %2$s [row elem] length %3$d "
                         "%%0 = load x %%1 = round %1$s %%0 store y, %%0 store z, %%1 }",
                         type, compute, (int)n);
                begin(&c, text, (uint64_t)(d + n));
                c->rows = n == 1 ? 70 : 5;
                suite_add(c, SBP_F32, c->rows, n);
                suite_add(c, formats[d], c->rows, n);
                suite_add(c, wide ? SBP_F64 : SBP_F32, c->rows, n);
                for (int64_t i = 0; i < c->rows * n; i++)
                    c->tensors[0].values[i] = any_number(c);
                expect_reference(c);
                suite_check(c);
                suite_end(c);
            }
}

/* Every byte of the dynamic maps as it is read, and half of it stored in its place. */
static void test_number_dynamic(void **state) {
    (void)state;
    for (int d = 0; d < 2; d++) {
        suite_case *c;
        char text[512];
        sbp_dtype dtype = d ? SBP_UD8 : SBP_D8;
        snprintf(text, sizeof text,
                 "kernel @load_%1$s f32 heads 1 n 64 { in x : %1$s [row elem] length 64 "
                 "out y : f32 [row elem] length 64 out z : %1$s [row elem] length 64 "
                 "%%0 = load x %%1 = const 0.5 %%2 = mul %%0, %%1 store y, %%0 store z, %%2 }",
                 sbp_dtype_name(dtype));
        begin(&c, text, 0);
        c->rows = 4;
        suite_add(c, dtype, c->rows, 64);
        suite_add(c, SBP_F32, c->rows, 64);
        suite_add(c, dtype, c->rows, 64)->same_as = 0;
        for (int byte = 0; byte < 256; byte++)
            c->tensors[0].values[byte] = d ? (double)sbp_ud8_numbers[byte] : (double)sbp_d8_numbers[byte];
        c->tensors[2].values = c->tensors[0].values;
        expect_reference(c);
        suite_check(c);
        suite_end(c);
    }
}

/* Taken apart and joined again: the number itself, to the bit. */
static void test_number_halves(void **state) {
    (void)state;
    static const char halves_text[] =
        "kernel @halves %1$s heads 1 n 300 { in x : f32 [row elem] length 300 "
        "out high : bf16 [row elem] length 300 out low : i16 [row elem] length 300 "
        "%%0 = load x %%1 = bf16_high %%0 %%2 = bf16_low %%0 store high, %%1 store low, %%2 }";
    static const char join_text[] = "kernel @join %1$s heads 1 n 300 { in high : bf16 [row elem] length 300 "
                                    "in low : i16 [row elem] length 300 out x : f32 [row elem] length 300 "
                                    "%%0 = load high %%1 = load low %%2 = bf16_join %%0, %%1 store x, %%2 }";
    for (int wide = 0; wide < 2; wide++) {
        suite_case *parts, *whole;
        char text[512];
        snprintf(text, sizeof text, halves_text, wide ? "f64" : "f32");
        begin(&parts, text, 3);
        snprintf(text, sizeof text, join_text, wide ? "f64" : "f32");
        begin(&whole, text, 3);
        parts->rows = whole->rows = 7;
        suite_tensor *x = suite_add(parts, SBP_F32, 7, 300);
        for (int64_t i = 0; i < 7 * 300; i++)
            x->values[i] = any_number(parts);
        suite_add(parts, SBP_BF16, 7, 300);
        suite_add(parts, SBP_I16, 7, 300);
        expect_reference(parts);
        suite_check(parts);
        suite_tensor *high = suite_add(whole, SBP_BF16, 7, 300), *low = suite_add(whole, SBP_I16, 7, 300);
        suite_tensor *joined = suite_add(whole, SBP_F32, 7, 300);
        memcpy(high->values, parts->tensors[1].expected, 7 * 300 * sizeof(double));
        memcpy(low->values, parts->tensors[2].expected, 7 * 300 * sizeof(double));
        suite_expect(whole, joined);
        joined->tolerance = SBP_TOLERANCE_NONE;
        memcpy(joined->expected, x->values, 7 * 300 * sizeof(double));
        suite_check(whole);
        suite_end(whole);
        suite_end(parts);
    }
}

/* Random bytes, and scales of all sizes, as the blocks of a format: the numbers that the host makes of them.
 */
static void check_format(sbp_format format, sbp_dtype dtype, int64_t blocks) {
    const sbp_format_info *f = sbp_format_of(format);
    suite_case *c = suite_begin(f->name, (uint64_t)format * 10 + dtype);
    sbp_diag *diag = sbp_diag_create();
    const void *parts[SBP_MAX_FORMAT_PARTS];
    float *numbers = suite_alloc(c, blocks * f->block, sizeof *numbers);
    c->kernel = sbp_format_kernel(c->arena, diag, format, dtype);
    const sbp_format_decoder *decoder = sbp_format_decoder_create(c->arena, diag, format);
    assert_non_null(c->kernel);
    assert_non_null(decoder);
    sbp_diag_destroy(diag);
    c->command.kind = SBP_CMD_ROW;
    c->same_bits = true;
    c->rows = blocks;
    for (int32_t k = 0; k < f->part_count; k++) {
        suite_tensor *t = suite_add(c, f->parts[k].dtype, blocks, f->parts[k].count);
        void *part = suite_alloc(c, blocks * f->parts[k].count, 8);
        for (int64_t i = 0; i < t->rows * t->cols; i++) {
            if (t->dtype == SBP_I8)
                t->values[i] = (double)sbp_rng_below(&c->rng, 256) - 128;
            else
                t->values[i] = sbp_round_to(
                    t->dtype, ldexp(sbp_rng_unit(&c->rng), (int)sbp_rng_below(&c->rng, 30) - 20));
            sbp_element_set(part, t->dtype, i, t->values[i]);
        }
        parts[k] = part;
    }
    suite_tensor *to = suite_add(c, dtype, blocks, f->block);
    sbp_format_decode(decoder, parts, blocks, numbers);
    suite_expect(c, to);
    to->tolerance = SBP_TOLERANCE_NONE;
    for (int64_t i = 0; i < blocks * f->block; i++)
        to->expected[i] = sbp_round_to(dtype, (double)numbers[i]);
    suite_check(c);
    suite_end(c);
}

static void test_number_formats(void **state) {
    (void)state;
    static const sbp_dtype types[] = {SBP_F32, SBP_BF16, SBP_F64};
    for (int format = SBP_FORMAT_NONE + 1; format < SBP_FORMAT_COUNT; format++)
        for (int d = 0; d < SBP_COUNT(types); d++)
            check_format((sbp_format)format, types[d], d == 0 ? 37 : 3);
}

/* Functions of whole numbers and tables: of elements, of a number per row and of both, in rows that are kept
 * whole and in pieces. */
static void test_number_integers(void **state) {
    (void)state;
    static const int lengths[] = {1, 3, 16, 70, 1500};
    for (int l = 0; l < SBP_COUNT(lengths); l++)
        for (int wide = 0; wide < 2; wide++)
            for (int heads = 1; heads < 4; heads += 2) {
                suite_case *c;
                char text[1600], stride[32] = "";
                int n = lengths[l];
                if (heads > 1)
                    snprintf(stride, sizeof stride, "stride %d", n);
                snprintf(
                    text, sizeof text,
                    "kernel @integers %1$s heads %3$d n %2$d { in byte : i8 [row %4$s elem] length %2$d %5$s "
                    "in word : i16 [row] in at : i8 [elem] length %2$d "
                    "out y : %1$s [row %4$s elem] length %2$d %5$s out z : %1$s [row elem] length %2$d "
                    "out u : %1$s [row] out v : %1$s [row] "
                    "table numbers [0.5, -1, 2.5, 0.0625, 3, 4096, -7, 0, 8, 9, 10.75, 11, 12, -13, 14, 15] "
                    "table few [5, 0.1, 7] "
                    "%%byte = load byte %%word = load word %%at = load at "
                    "%%low = bits %%byte, 0, 4 %%high = signed_bits %%byte, 4, 4 %%top = shr %%byte, 3 "
                    "%%found = lookup %%low, numbers %%sum = add %%found, %%high %%all = add %%sum, %%top "
                    "%%place = bits %%at, 0, 4 %%bit = bit %%word, %%place %%up = shl %%bit, 5 "
                    "%%other = lookup %%bit, few %%both = mul %%up, %%other "
                    "%%fixed = const 3 %%third = bit %%word, %%fixed %%part = signed_bits %%word, 5, 9 "
                    "%%alone = lookup %%third, few %%last = add %%third, %%part "
                    "store y, %%all store z, %%both store u, %%alone store v, %%last }",
                    wide ? "f64" : "f32", n, heads, heads > 1 ? "head" : "", stride);
                begin(&c, text, (uint64_t)(l * 7 + heads));
                c->rows = 37;
                suite_add(c, SBP_I8, c->rows, heads * n);
                suite_add(c, SBP_I16, c->rows, 1);
                suite_add(c, SBP_I8, 1, n);
                for (int k = 0; k < 3; k++)
                    for (int64_t i = 0; i < c->tensors[k].rows * c->tensors[k].cols; i++)
                        c->tensors[k].values[i] =
                            (double)sbp_rng_below(&c->rng, k == 1 ? 65536 : 256) - (k == 1 ? 32768 : 128);
                suite_add(c, wide ? SBP_F64 : SBP_F32, c->rows, heads * n);
                suite_add(c, wide ? SBP_F64 : SBP_F32, c->rows, n);
                suite_add(c, wide ? SBP_F64 : SBP_F32, c->rows, 1);
                suite_add(c, wide ? SBP_F64 : SBP_F32, c->rows, 1);
                expect_reference(c);
                suite_check(c);
                suite_end(c);
            }
}

/* Random numbers of a stream that memory holds, from an element on that is no multiple of 4, with heads and
 * without, up to the last row there can be. */
static void test_number_random(void **state) {
    (void)state;
    static const int lengths[] = {1, 3, 64, 70, 1500};
    static const double streams[] = {0, 5, 16777215, -3, (double)NAN};
    for (int l = 0; l < SBP_COUNT(lengths); l++)
        for (int wide = 0; wide < 2; wide++)
            for (int heads = 1; heads < 4; heads += 2) {
                suite_case *c;
                char text[600], stride[32] = "";
                int n = lengths[l];
                if (heads > 1)
                    snprintf(stride, sizeof stride, "stride %d", n);
                snprintf(
                    text, sizeof text,
                    "kernel @random %1$s heads %4$d n %2$d { in stream : f32 [] "
                    "out y : %1$s [row %5$s elem] length %2$d %6$s out z : f32 [row] scalar key scalar other "
                    "%%0 = load stream %%1 = random key [row %5$s elem] %3$d:%7$d, %%0 "
                    "%%2 = random other [row] 2:3 store y, %%1 store z, %%2 }",
                    wide ? "f64" : "f32", n, l, heads, heads > 1 ? "head" : "", stride, n + l);
                begin(&c, text, (uint64_t)l);
                c->rows = l % 2 ? 3 : 70;
                c->row0 = wide ? (INT64_C(1) << 32) - c->rows : 17;
                c->scalars[0] = 0x1.fffffp52;
                c->scalars[1] = 1;
                suite_add(c, SBP_F32, 1, 1)->values[0] = streams[l];
                suite_add(c, wide ? SBP_F64 : SBP_F32, c->rows, heads * n);
                suite_add(c, SBP_F32, c->rows, 1);
                expect_reference(c);
                const suite_tensor *y = &c->tensors[1];
                for (int64_t i = 0; i < y->rows * y->cols; i++)
                    assert_true(y->expected[i] == sbp_random_at(c->scalars[0], streams[l],
                                                                c->row0 + i / y->cols, i % y->cols / n,
                                                                l + i % n));
                suite_check(c);
                suite_end(c);
            }
}

/* Random numbers of rows and heads that memory holds, wherever the rows stand. */
static void test_number_random_of(void **state) {
    (void)state;
    static const int lengths[] = {1, 3, 70, 1500};
    static const double odd[] = {0, 16777215, -1, (double)NAN, 4294967296.0};
    for (int l = 0; l < SBP_COUNT(lengths); l++)
        for (int wide = 0; wide < 2; wide++) {
            suite_case *c;
            char text[600];
            int n = lengths[l];
            snprintf(text, sizeof text,
                     "kernel @random %1$s heads 1 n %2$d { in stream : f32 [] in at : f32 [row] "
                     "in of : f32 [row] out y : %1$s [row elem] length %2$d scalar key "
                     "%%0 = load stream %%1 = load at %%2 = load of "
                     "%%3 = random key [row elem] %3$d:%4$d, %%0, %%1, %%2 store y, %%3 }",
                     wide ? "f64" : "f32", n, l, n + l);
            begin(&c, text, (uint64_t)l);
            c->rows = 70;
            c->row0 = 17;
            c->scalars[0] = 0x1.fffffp52;
            suite_add(c, SBP_F32, 1, 1)->values[0] = 5;
            suite_tensor *at = suite_add(c, SBP_F32, c->rows, 1);
            for (int64_t i = 0; i < c->rows; i++)
                at->values[i] = i < SBP_COUNT(odd) ? odd[i] : (double)(i * 7919 % 1000);
            suite_tensor *of = suite_add(c, SBP_F32, c->rows, 1);
            for (int64_t i = 0; i < c->rows; i++)
                of->values[i] = i > 60 ? odd[i % SBP_COUNT(odd)] : (double)(i / 9);
            suite_add(c, wide ? SBP_F64 : SBP_F32, c->rows, n);
            expect_reference(c);
            for (int64_t i = 0; i < c->rows * n; i++) {
                double row = c->tensors[1].values[i / n], head = c->tensors[2].values[i / n];
                row = row >= 0 && row < 0x1p32 ? row : 0;
                head = head >= 0 && head < 0x1p32 ? head : 0;
                assert_true(c->tensors[3].expected[i] ==
                            sbp_random_at(c->scalars[0], 5, (int64_t)row, (int64_t)head, l + i % n));
            }
            suite_check(c);
            suite_end(c);
        }
}

/* A device refuses rows beyond 2^32, which would have the numbers of others. */
static void test_number_rows(void **state) {
    (void)state;
    suite_case *c;
    if (suite_lacks(SBP_CMD_ROW))
        skip();
    begin(
        &c,
        "kernel @rows f32 heads 1 n 1 { out y : f32 [row] scalar key %0 = random key [row] 0:1 store y, %0 }",
        0);
    sbp_diag *diag = sbp_diag_create();
    const sbp_device_options options = {.threads = 1};
    sbp_program *program = sbp_program_create(c->arena, "rows");
    program->arena_bytes[SBP_DEVICE] = 4096;
    c->command.kernel = sbp_program_add_kernel(c->arena, program, c->kernel);
    c->command.view_count = 1;
    sbp_span span = {.space = SBP_DEVICE, .dtype = SBP_F32, .rows = 2, .cols = 1, .stride = 1};
    sbp_dispatch dispatch = {.command = &c->command,
                             .kernel = c->kernel,
                             .rows = 2,
                             .spans = &span,
                             .span_count = 1,
                             .scalars = c->scalars};
    sbp_device *device = suite_open(suite_device(), &options, c->arena, program, &dispatch, 1, diag);
    for (int64_t over = 0; over < 2; over++) {
        dispatch.row0 = (INT64_C(1) << 32) - 2 + over;
        bool runs = suite_device()->submit(device, &dispatch, diag) == SBP_OK &&
                    suite_device()->wait(device, diag) ==
                        SBP_OK; /* which of the two refuses is the device's affair */
        assert_true(runs == (over == 0));
    }
    suite_device()->destroy(device);
    sbp_diag_destroy(diag);
    suite_end(c);
}

const struct CMUnitTest suite_number_tests[] = {
    cmocka_unit_test(test_number_stores),    cmocka_unit_test(test_number_dynamic),
    cmocka_unit_test(test_number_halves),    cmocka_unit_test(test_number_formats),
    cmocka_unit_test(test_number_integers),  cmocka_unit_test(test_number_random),
    cmocka_unit_test(test_number_random_of), cmocka_unit_test(test_number_rows)};
const int suite_number_count = SBP_COUNT(suite_number_tests);
