/* test_rowkernel_integer.c: functions of whole numbers, tables and names of values: text, what the verifier
 * proves, values; and that blocks of formats to come are said in a few lines, with the bits of their
 * definitions. */
#include "frontends/formats/weights/weights_internal.h"
#include "tests/rowkernel_random.h"
#include "tests/unit/rowkernel_testing.h"

#include <math.h>

/* ---- text ----------------------------------------------------------------------------------------- */

static const char text[] = "kernel @codes f32 heads 2 n 16 {\n"
                           "  in codes : i8 [row head elem] length 16 stride 16\n"
                           "  in d : f16 [row]\n"
                           "  out y : f32 [row head elem] length 32 stride 32\n"
                           "  table four [-1, 0.5, 0, 1e-30]\n"
                           "  table \"a b\" [7]\n"
                           "  %byte = load codes\n"
                           "  %1 = bits %byte, 4, 2\n"
                           "  %low = signed_bits %byte, 0, 4\n"
                           "  %\"of four\" = lookup %1, four\n"
                           "  %4 = shl %low, 3\n"
                           "  %5 = shr %4, 2\n"
                           "  %6 = load d\n"
                           "  %x.0 = mul %6, %\"of four\"\n"
                           "  %x.1 = mul %6, %5\n"
                           "  store y[0:16], %x.0\n"
                           "  store y[16:32], %x.1\n"
                           "}\n";

static void text_has_names_and_tables(void **state) {
    fixture *f = *state;
    sbp_rowkernel *kernel = parse_ok(f, text);
    assert_string_equal(print(f, kernel), text);
    assert_int_equal(kernel->table_count, 2);
    assert_true(kernel->tables[0].count == 4 && kernel->tables[0].numbers[1] == 0.5);
    assert_true(kernel->instrs[8].a == 6 && kernel->instrs[8].b == 5);
}

/* What stands in place of a piece of the text, and the message. */
static void wrong_text_is_refused(void **state) {
    fixture *f = *state;
    static const struct {
        const char *from, *to, *want;
    } cases[] = {
        /* text */
        {"%1 = bits %byte", "%1 = bits %bite", "no value %bite before this one"},
        {"%1 = bits %byte", "%1 = bits %low", "no value %low before this one"},
        {"lookup %1, four", "lookup %1, five", "no table 'five'"},
        {"%byte, 4, 2", "%byte, 4, 32", "32 is no number of a bit"},
        {"%byte, 4, 2", "%byte, 4", "expected ','"},
        {"[7]", "[]", "expected a number"},
        {"[7]", "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]", "more than 16 numbers"},
        {"bits %byte", "bits %byte, %byte", "expected"},
        {"%4 = shl", "%3 = shl", "value %3 where %4 comes next"},
        /* verifier */
        {"\"a b\"", "four", "rowkernel_c14: kernel 'codes': two tables named 'four'"},
        {"[7]", "[inf]", "rowkernel_c14: kernel 'codes': number 0 of table 'a b' is not finite"},
        {"%byte, 4, 2", "%byte, 4, 0", "rowkernel_c15: kernel 'codes', %1: there are no bits 4, 0"},
        {"%byte, 4, 2", "%byte, 4, 27", "rowkernel_c15: kernel 'codes', %1: there are no bits 4, 27"},
        {"signed_bits %byte", "signed_bits %\"of four\"", "no value"},
        {"shl %low, 3", "shl %\"of four\", 3", "rowkernel_c15: kernel 'codes', %4: %3 is not known to be"},
        {"shl %low, 3", "shl %low, 22", "rowkernel_c15: kernel 'codes', %4: the result may be too large"},
        {"shl %low, 3", "shl %low, 31", "rowkernel_c15: kernel 'codes', %4: there are no bits 31, 0"},
        {"%byte, 4, 2", "%byte, 4, 3", "rowkernel_c16: kernel 'codes', %3: %1 is not known to be 0 to 3"},
        {"bits %byte, 4, 2", "shr %byte, 7", "rowkernel_c16"}, /* -1 or 0 */
        {"lookup %1, four", "lookup %byte, four", "rowkernel_c16"},
        {"lookup %1, four", "lookup %1, \"a b\"",
         "rowkernel_c16: kernel 'codes', %3: %1 is not known to be 0 to 0"},
        {"%1 = bits", "%byte = bits", "rowkernel_c17: kernel 'codes', %1: two values named 'byte'"},
        {"codes : i8", "codes : f16",
         "rowkernel_c15: kernel 'codes', %1: %0 is not known to be a whole number"},
        {"codes : i8", "codes : i32", "rowkernel_c15"}, /* fp32 does not hold all of them */
        {"codes : i8", "codes : i16", ""},
        {"codes : i8", "codes : bool", ""},
        {"shl %low, 3", "shl %low, 21", ""},
    };
    for (int k = 0; k < SBP_COUNT(cases); k++) {
        const char *at = strstr(text, cases[k].from);
        char changed[2048];
        sbp_rowkernel *kernel;
        assert_non_null(at);
        snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, cases[k].to,
                 at + strlen(cases[k].from));
        sbp_diag_clear(f->diag);
        sbp_status status = parse_verified(f, changed, &kernel);
        if (status != (cases[k].want[0] ? SBP_INPUT : SBP_OK) ||
            !strstr(sbp_diag_text(f->diag, SBP_NOTE), cases[k].want))
            fail_msg("case %d, %s: %d, %s", k, cases[k].to, status, sbp_diag_text(f->diag, SBP_NOTE));
    }
}

/* Kernels that no text gives. */
static void wrong_kernels_are_refused(void **state) {
    fixture *f = *state;
    for (int k = 0; k < 7; k++) {
        static const char *const want[] = {"c1:", "c14:", "c14:", "c3:", "c4:", "c4:", "c15:"};
        sbp_rowkernel *kernel = parse_ok(f, text);
        if (k == 0)
            kernel->table_count = SBP_ROWKERNEL_MAX_TABLES + 1;
        else if (k == 1)
            kernel->tables[0].count = 0;
        else if (k == 2)
            kernel->tables[1].name = "";
        else if (k == 3)
            kernel->instrs[1].integer = SBP_INTOP_COUNT;
        else if (k == 4)
            kernel->instrs[3].index = 2;
        else if (k == 5)
            kernel->instrs[1].index = 0;
        else
            kernel->instrs[7].constants[0] = 1;
        sbp_diag_clear(f->diag);
        assert_int_equal(sbp_rowkernel_verify(kernel, f->diag), SBP_INPUT);
        if (!strstr(sbp_diag_text(f->diag, SBP_NOTE), want[k]))
            fail_msg("case %d: %s", k, sbp_diag_text(f->diag, SBP_NOTE));
    }
}

/* ---- values --------------------------------------------------------------------------------------- */

/* Against the bits of the number, one at a time. */
static void functions_take_bits(void **state) {
    (void)state;
    for (int32_t x = -300; x <= 300; x++)
        for (int p = 0; p < 10; p++) {
            assert_int_equal(sbp_intop_eval(SBP_INTOP_shr, x, p, 0), (int32_t)floor(ldexp(x, -p)));
            assert_int_equal(sbp_intop_eval(SBP_INTOP_shl, x, p, 0), (int32_t)ldexp(x, p));
            for (int q = 1; q < 12; q++) {
                int32_t field = 0;
                for (int bit = 0; bit < q; bit++)
                    field |= (int32_t)((uint32_t)x >> (p + bit) & 1) << bit;
                assert_int_equal(sbp_intop_eval(SBP_INTOP_bits, x, p, q), field);
                int32_t with_sign = field >> (q - 1) & 1 ? field - (1 << q) : field;
                assert_int_equal(sbp_intop_eval(SBP_INTOP_signed_bits, x, p, q), with_sign);
            }
        }
}

/* ---- formats to come ------------------------------------------------------------------------------ */

enum { BLOCKS = 5, MOST = BLOCKS * 256 };

/* Runs a text over blocks of bytes, by the reference and by the host's runner: the same bits. Operands are
 * parts of a block: bytes, from `at` on, of a type. */
static void check_text(fixture *f, const char *kernel_text, const uint8_t *raw, int64_t block_bytes,
                       const int *at, const float *want, int64_t elems) {
    sbp_rowkernel *kernel = parse_ok(f, kernel_text);
    static _Alignas(8) uint8_t parts[SBP_ROWKERNEL_MAX_OPERANDS][MOST];
    static float got[2][MOST];
    sbp_rk_view views[SBP_ROWKERNEL_MAX_OPERANDS];
    int32_t ins = kernel->operand_count - 1;
    for (int32_t k = 0; k < ins; k++) {
        const sbp_rk_operand *o = &kernel->operands[k];
        int64_t count = (kernel->heads - 1) * o->head_stride + o->length, bytes = sbp_dtype_bytes(o->dtype);
        for (int64_t b = 0; b < BLOCKS; b++)
            memcpy(parts[k] + b * count * bytes, raw + b * block_bytes + at[k], (size_t)(count * bytes));
        views[k] = (sbp_rk_view){.data = parts[k], .stride = count};
    }
    views[ins] = (sbp_rk_view){.data = got[0], .stride = elems / BLOCKS};
    assert_int_equal(sbp_rowkernel_run_reference(kernel, BLOCKS, 0, views, NULL), SBP_OK);
    views[ins].data = got[1];
    const sbp_rowrunner *runner = sbp_rowrunner_create(f->arena, kernel);
    assert_non_null(runner);
    sbp_rowrunner_run(runner, BLOCKS, views);
    for (int64_t i = 0; i < elems; i++)
        for (int way = 0; way < 2; way++)
            if (!(got[way][i] == want[i] || (isnan(got[way][i]) && isnan(want[i]))))
                fail_msg("%s, element %lld: %.9g, expected %.9g", kernel->name, (long long)i,
                         (double)got[way][i], (double)want[i]);
}

/* Random bytes; f16 numbers at these places are finite. */
static void random_blocks(sbp_rng *rng, uint8_t *raw, int64_t block_bytes, const int *halves) {
    for (int64_t i = 0; i < BLOCKS * block_bytes; i++)
        raw[i] = (uint8_t)sbp_rng_next(rng);
    for (int64_t b = 0; b < BLOCKS; b++)
        for (int k = 0; k < 2; k++)
            if (halves[k] >= 0)
                raw[b * block_bytes + halves[k] + 1] &= 0xbf;
}

/* Block types that only the host decodes today (gguf_quant.c), as kernels over the bytes of the file. */
static void ggml_blocks(void **state) {
    fixture *f = *state;
    static const struct {
        int type, halves[2], at[4];
        const char *text;
    } cases[] = {
        {6,
         {0, -1},
         {0, 2, 6},
         "kernel @q5_0 f32 heads 1 n 16 { in d : f16 [row] in high : i16 [row elem] length 2"
         " in codes : i8 [row elem] length 16 out y : f32 [row elem] length 32"
         " %d = load d %word0 = load high[0] %word1 = load high[1] %byte = load codes"
         " %i = index 0:16 %zero = const 16"
         " %low0 = bits %byte, 0, 4 %fifth0 = bit %word0, %i %up0 = shl %fifth0, 4"
         " %low1 = bits %byte, 4, 4 %fifth1 = bit %word1, %i %up1 = shl %fifth1, 4"
         " %code0 = add %low0, %up0 %q0 = sub %code0, %zero %x0 = mul %d, %q0"
         " %code1 = add %low1, %up1 %q1 = sub %code1, %zero %x1 = mul %d, %q1"
         " store y[0:16], %x0 store y[16:32], %x1 }"},
        {7,
         {0, 2},
         {0, 2, 4, 8},
         "kernel @q5_1 f32 heads 1 n 16 { in d : f16 [row] in m : f16 [row] in high : i16 [row elem] length 2"
         " in codes : i8 [row elem] length 16 out y : f32 [row elem] length 32"
         " %d = load d %m = load m %word0 = load high[0] %word1 = load high[1] %byte = load codes"
         " %i = index 0:16"
         " %low0 = bits %byte, 0, 4 %fifth0 = bit %word0, %i %up0 = shl %fifth0, 4"
         " %low1 = bits %byte, 4, 4 %fifth1 = bit %word1, %i %up1 = shl %fifth1, 4"
         " %q0 = add %low0, %up0 %dq0 = mul %d, %q0 %sum0 = add %dq0, %m %x0 = round f32 %sum0"
         " %q1 = add %low1, %up1 %dq1 = mul %d, %q1 %sum1 = add %dq1, %m %x1 = round f32 %sum1"
         " store y[0:16], %x0 store y[16:32], %x1 }"},
        /* 32 values share two steps: codes of 2 bits, scales and minima of 4 */
        {10,
         {80, 82},
         {0, 16, 80},
         "kernel @q2_k f32 heads 2 n 32 { in steps : i8 [row head elem] length 8 stride 8"
         " in codes : i8 [row head elem] length 32 stride 32 in scales : f16 [row elem] length 2"
         " out y : f32 [row head elem] length 128 stride 128"
         " %d = load scales[0] %dmin = load scales[1] %byte = load codes %i = index 0:32 %half = const 16"
         " %first = lt %i, %half"
         " %a0 = load steps[0] %b0 = load steps[1] %step0 = select %first, %a0, %b0"
         " %a1 = load steps[2] %b1 = load steps[3] %step1 = select %first, %a1, %b1"
         " %a2 = load steps[4] %b2 = load steps[5] %step2 = select %first, %a2, %b2"
         " %a3 = load steps[6] %b3 = load steps[7] %step3 = select %first, %a3, %b3"
         " %s0 = bits %step0, 0, 4 %m0 = bits %step0, 4, 4 %q0 = bits %byte, 0, 2"
         " %s1 = bits %step1, 0, 4 %m1 = bits %step1, 4, 4 %q1 = bits %byte, 2, 2"
         " %s2 = bits %step2, 0, 4 %m2 = bits %step2, 4, 4 %q2 = bits %byte, 4, 2"
         " %s3 = bits %step3, 0, 4 %m3 = bits %step3, 4, 4 %q3 = bits %byte, 6, 2"
         " %d0 = mul %d, %s0 %dq0 = mul %d0, %q0 %min0 = mul %dmin, %m0 %y0 = sub %dq0, %min0"
         " %d1 = mul %d, %s1 %dq1 = mul %d1, %q1 %min1 = mul %dmin, %m1 %y1 = sub %dq1, %min1"
         " %d2 = mul %d, %s2 %dq2 = mul %d2, %q2 %min2 = mul %dmin, %m2 %y2 = sub %dq2, %min2"
         " %d3 = mul %d, %s3 %dq3 = mul %d3, %q3 %min3 = mul %dmin, %m3 %y3 = sub %dq3, %min3"
         " %x0 = round f32 %y0 %x1 = round f32 %y1 %x2 = round f32 %y2 %x3 = round f32 %y3"
         " store y[0:32], %x0 store y[32:64], %x1 store y[64:96], %x2 store y[96:128], %x3 }"},
    };
    sbp_rng rng = {7};
    for (int k = 0; k < SBP_COUNT(cases); k++)
        for (int turn = 0; turn < 20; turn++) {
            const sbp_quant *quant = sbp_quant_of(cases[k].type);
            uint8_t raw[BLOCKS * 256];
            float want[MOST];
            random_blocks(&rng, raw, quant->block_bytes, cases[k].halves);
            for (int b = 0; b < BLOCKS; b++)
                quant->decode(raw + b * quant->block_bytes, want + b * quant->block_elems);
            check_text(f, cases[k].text, raw, quant->block_bytes, cases[k].at, want,
                       (int64_t)BLOCKS * quant->block_elems);
        }
}

/* Q5_K and Q3_K take bits from bytes that other groups share: the parts of a format have them in an order of
 * heads, as Q4_K's steps in formats.def, in as many bytes. */

static void set_bit(uint8_t *bits, int at, int bit) {
    bits[at / 8] = (uint8_t)(bits[at / 8] | (bit & 1) << at % 8);
}

/* Arranges a Q5_K block: bit 64 h + i of its 32 bytes is the fifth of value 64 h + i; steps as
 * Q4_K has them. */
static void arrange_q5_k(const uint8_t *raw, uint8_t *out) {
    void *parts[3];
    uint8_t as_q4[144], codes[128], scales[4];
    memcpy(as_q4, raw, 16);
    memcpy(as_q4 + 16, raw + 48, 128);
    parts[0] = codes;
    parts[1] = out + 4;
    parts[2] = scales;
    assert_true(sbp_format_split(SBP_FORMAT_Q4_K, as_q4, 1, parts));
    memcpy(out, scales, 4);
    memcpy(out + 48, codes, 128);
    memset(out + 16, 0, 32);
    for (int i = 0; i < 256; i++)
        set_bit(out + 16, i, raw[16 + i % 32] >> (i / 32));
}

/* Arranges a Q3_K block: bit 128 h + i of its first 32 bytes is the third of value 128 h + i; then come, for
 * each head's eight steps, four bytes of low halves and two of what is above them. */
static void arrange_q3_k(const uint8_t *raw, uint8_t *out) {
    const uint8_t *packed = raw + 96;
    memset(out, 0, 110);
    for (int i = 0; i < 256; i++)
        set_bit(out, i, raw[i % 32] >> (i / 32));
    memcpy(out + 32, raw + 32, 64);
    for (int g = 0; g < 16; g++) {
        int low = g < 8 ? packed[g] & 15 : packed[g - 8] >> 4, high = packed[8 + g % 4] >> (g / 4 * 2) & 3;
        uint8_t *steps = out + 96 + g / 8 * 6;
        steps[g % 8 / 2] = (uint8_t)(steps[g % 8 / 2] | low << g % 2 * 4);
        steps[4 + g % 8 / 4] = (uint8_t)(steps[4 + g % 8 / 4] | high << g % 4 * 2);
    }
    memcpy(out + 108, raw + 108, 2);
}

static const char *q5_k_text(fixture *f) {
    sbp_text out;
    sbp_text_init(&out, f->arena);
    sbp_text_add(
        &out, "kernel @q5_k f32 heads 4 n 16 { in d : f16 [row elem] length 2"
              " in steps : i8 [row head elem] length 3 stride 3"
              " in high : i16 [row head elem] length 4 stride 4"
              " in codes : i8 [row head elem] length 32 stride 32"
              " out y : f32 [row head elem] length 64 stride 64"
              " %%d = load d[0] %%dmin = load d[1] %%i = index 0:16"
              " %%a = load steps[0] %%b = load steps[1] %%c = load steps[2]"
              " %%s0 = bits %%a, 0, 6 %%s1 = bits %%b, 0, 6 %%m0 = bits %%c, 0, 6"
              " %%a6 = bits %%a, 6, 2 %%b6 = bits %%b, 6, 2 %%c6 = bits %%c, 6, 2"
              " %%b8 = shl %%b6, 2 %%c10 = shl %%c6, 4 %%ab = add %%a6, %%b8 %%m1 = add %%ab, %%c10"
              " %%d0 = mul %%d, %%s0 %%d1 = mul %%d, %%s1 %%min0 = mul %%dmin, %%m0 %%min1 = mul %%dmin, %%m1"
              " %%byte0 = load codes[0:16] %%byte1 = load codes[16:32]");
    for (int g = 0; g < 4; g++) /* 16 values */
        sbp_text_add(&out,
                     " %%low%1$d = bits %%byte%2$d, %3$d, 4 %%word%1$d = load high[%1$d] %%top%1$d = bit "
                     "%%word%1$d, %%i"
                     " %%up%1$d = shl %%top%1$d, 4 %%q%1$d = add %%low%1$d, %%up%1$d"
                     " %%dq%1$d = mul %%d%4$d, %%q%1$d %%sum%1$d = sub %%dq%1$d, %%min%4$d %%x%1$d = round "
                     "f32 %%sum%1$d",
                     g, g % 2, g / 2 * 4, g / 2);
    for (int g = 0; g < 4; g++)
        sbp_text_add(&out, " store y[%d:%d], %%x%d", 16 * g, 16 * g + 16, g);
    sbp_text_add(&out, " }");
    return out.data;
}

static const char *q3_k_text(fixture *f) {
    sbp_text out;
    sbp_text_init(&out, f->arena);
    sbp_text_add(&out, "kernel @q3_k f32 heads 2 n 16 { in mask : i16 [row head elem] length 8 stride 8"
                       " in codes : i8 [row head elem] length 32 stride 32"
                       " in steps : i8 [row head elem] length 6 stride 6 in d : f16 [row]"
                       " out y : f32 [row head elem] length 128 stride 128"
                       " %%d = load d %%i = index 0:16 %%middle = const 32 %%four = const 4"
                       " %%byte0 = load codes[0:16] %%byte1 = load codes[16:32]");
    for (int g = 0; g < 8; g++)
        sbp_text_add(
            &out,
            " %%low%1$d = load steps[%2$d] %%l%1$d = bits %%low%1$d, %3$d, 4"
            " %%top%1$d = load steps[%4$d] %%t%1$d = bits %%top%1$d, %5$d, 2 %%u%1$d = shl %%t%1$d, 4"
            " %%step%1$d = add %%l%1$d, %%u%1$d %%s%1$d = sub %%step%1$d, %%middle %%d%1$d = mul %%d, %%s%1$d"
            " %%word%1$d = load mask[%1$d] %%third%1$d = bit %%word%1$d, %%i %%v%1$d = shl %%third%1$d, 2"
            " %%code%1$d = bits %%byte%6$d, %7$d, 2 %%n%1$d = add %%code%1$d, %%v%1$d"
            " %%q%1$d = sub %%n%1$d, %%four %%x%1$d = mul %%d%1$d, %%q%1$d",
            g, g / 2, g % 2 * 4, 4 + g / 4, g % 4 * 2, g % 2, g / 2 * 2);
    for (int g = 0; g < 8; g++)
        sbp_text_add(&out, " store y[%d:%d], %%x%d", 16 * g, 16 * g + 16, g);
    sbp_text_add(&out, " }");
    return out.data;
}

static void blocks_in_an_order_of_heads(void **state) {
    fixture *f = *state;
    const struct {
        int type, halves[2], at[4];
        void (*arrange)(const uint8_t *raw, uint8_t *out);
        const char *text;
    } cases[] = {{13, {0, 2}, {0, 4, 16, 48}, arrange_q5_k, q5_k_text(f)},
                 {11, {108, -1}, {0, 32, 96, 108}, arrange_q3_k, q3_k_text(f)}};
    sbp_rng rng = {12};
    for (int k = 0; k < SBP_COUNT(cases); k++)
        for (int turn = 0; turn < 20; turn++) {
            const sbp_quant *quant = sbp_quant_of(cases[k].type);
            int64_t bytes = quant->block_bytes;
            uint8_t raw[BLOCKS * 256], arranged[BLOCKS * 256];
            float want[MOST];
            random_blocks(&rng, raw, bytes, cases[k].halves);
            for (int b = 0; b < BLOCKS; b++) {
                quant->decode(raw + b * bytes, want + b * 256);
                cases[k].arrange(raw + b * bytes, arranged + b * bytes);
            }
            check_text(f, cases[k].text, arranged, bytes, cases[k].at, want, MOST);
        }
}

/* A table in text: numbers that read back exactly. */
static const char *table_text(fixture *f, const char *name, const float *numbers) {
    sbp_text out;
    sbp_text_init(&out, f->arena);
    for (int k = 0; k < 16; k++)
        sbp_text_add(&out, "%s %.17g", k == 0 ? "" : ",", (double)numbers[k]);
    return sbp_arena_printf(f->arena, " table %s [%s]", name, out.data);
}

/* IQ4_NL: 16 numbers that are not even apart, times a number in f16. */
static void iq4_nl_blocks(void **state) {
    fixture *f = *state;
    static const float levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1,    13,   25,  38,  53,  69,  89,  113};
    const char *kernel = sbp_arena_printf(
        f->arena,
        "kernel @iq4_nl f32 heads 1 n 16 { in d : f16 [row] in codes : i8 [row elem] length 16"
        " out y : f32 [row elem] length 32 %s %%d = load d %%byte = load codes"
        " %%low = bits %%byte, 0, 4 %%n0 = lookup %%low, levels %%x0 = mul %%d, %%n0"
        " %%high = bits %%byte, 4, 4 %%n1 = lookup %%high, levels %%x1 = mul %%d, %%n1"
        " store y[0:16], %%x0 store y[16:32], %%x1 }",
        table_text(f, "levels", levels));
    uint8_t raw[BLOCKS * 18];
    float want[BLOCKS * 32];
    sbp_rng rng = {8};
    random_blocks(&rng, raw, 18, (const int[]){0, -1});
    for (int i = 0; i < BLOCKS * 32; i++) {
        const uint8_t *block = raw + i / 32 * 18;
        float d = sbp_f32_from_f16((uint16_t)(block[0] | block[1] << 8));
        want[i] = d * levels[block[2 + i % 16] >> (i % 32 / 16 * 4) & 15];
    }
    check_text(f, kernel, raw, 18, (const int[]){0, 2}, want, BLOCKS * 32);
}

/* MXFP4 (OCP microscaling): a sign, two bits of exponent and one of mantissa, times a power of 2 in a byte,
 * which is a power of 2^16 and one of 2. */
static void mxfp4_blocks(void **state) {
    fixture *f = *state;
    static const float e2m1[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    float high[16], low[16], want[BLOCKS * 32];
    for (int k = 0; k < 16; k++) {
        high[k] = ldexpf(1, 16 * k - 120);
        low[k] = ldexpf(1, k - 7);
    }
    const char *kernel =
        sbp_arena_printf(f->arena,
                         "kernel @mxfp4 f32 heads 1 n 16 { in e : i8 [row] in codes : i8 [row elem] length 16"
                         " out y : f32 [row elem] length 32 %s %s %s"
                         " %%e = load e %%e4 = bits %%e, 4, 4 %%e0 = bits %%e, 0, 4"
                         " %%large = lookup %%e4, high %%small = lookup %%e0, low %%byte = load codes"
                         " %%code0 = bits %%byte, 0, 4 %%n0 = lookup %%code0, e2m1 %%y0 = mul %%n0, %%large "
                         "%%x0 = mul %%y0, %%small"
                         " %%code1 = bits %%byte, 4, 4 %%n1 = lookup %%code1, e2m1 %%y1 = mul %%n1, %%large "
                         "%%x1 = mul %%y1, %%small"
                         " store y[0:16], %%x0 store y[16:32], %%x1 }",
                         table_text(f, "e2m1", e2m1), table_text(f, "high", high), table_text(f, "low", low));
    uint8_t raw[BLOCKS * 17];
    sbp_rng rng = {9};
    for (int turn = 0; turn < 255; turn++) {
        random_blocks(&rng, raw, 17, (const int[]){-1, -1});
        for (int b = 0; b < BLOCKS; b++)
            raw[b * 17] = (uint8_t)((turn + b) % 255);
        for (int i = 0; i < BLOCKS * 32; i++) {
            const uint8_t *block = raw + i / 32 * 17;
            want[i] = ldexpf(e2m1[block[1 + i % 16] >> (i % 32 / 16 * 4) & 15], block[0] - 127);
        }
        check_text(f, kernel, raw, 17, (const int[]){0, 1}, want, BLOCKS * 32);
    }
}

/* FP8 (e4m3fn) with a scale in fp32 for 128 numbers: all codes but NaN. */
static void fp8_blocks(void **state) {
    fixture *f = *state;
    float power[16], hidden[16], want[BLOCKS * 128];
    for (int k = 0; k < 16; k++) {
        power[k] = ldexpf(1, (k > 0 ? k : 1) - 10);
        hidden[k] = k > 0 ? 8 : 0;
    }
    const char *kernel = sbp_arena_printf(
        f->arena,
        "kernel @e4m3 f32 heads 1 n 128 { in scale : f32 [row] in codes : i8 [row elem] length 128"
        " out y : f32 [row elem] length 128 %s %s"
        " %%scale = load scale %%byte = load codes %%negative = bits %%byte, 7, 1"
        " %%e = bits %%byte, 3, 4 %%m = bits %%byte, 0, 3 %%one = lookup %%e, hidden %%unit = lookup %%e, "
        "power"
        " %%sum = add %%m, %%one %%n = mul %%sum, %%unit %%less = neg %%n %%value = select %%negative, "
        "%%less, %%n"
        " %%x = mul %%scale, %%value %%y = round f32 %%x store y, %%y }",
        table_text(f, "power", power), table_text(f, "hidden", hidden));
    uint8_t raw[BLOCKS * 132];
    sbp_rng rng = {10};
    for (int b = 0; b < BLOCKS; b++) {
        float scale = (float)sbp_rng_unit(&rng);
        memcpy(raw + b * 132, &scale, 4);
        for (int i = 0; i < 128; i++) {
            int code = (b % 2 ? 128 : 0) + (i == 127 ? 0 : i), e = code >> 3 & 15, m = code & 7;
            raw[b * 132 + 4 + i] = (uint8_t)code;
            float n = e > 0 ? ldexpf((float)(8 + m) / 8, e - 7) : ldexpf((float)m, -9);
            want[b * 128 + i] = scale * (code & 128 ? -n : n);
        }
    }
    check_text(f, kernel, raw, 132, (const int[]){0, 4}, want, BLOCKS * 128);
}

/* What the host's runner refuses. */
static void host_runs_elements_only(void **state) {
    fixture *f = *state;
    static const char *const bodies[] = {
        "%0 = load x %1 = sum[elem] %0 store y, %1",
        "%0 = load x %1 = round i8 %0 store y, %1",
        "%0 = scalar s store y, %0",
        "%0 = random s [row elem] 0:8 store y, %0",
    };
    for (int k = 0; k <= SBP_COUNT(bodies); k++) {
        bool wide = k == SBP_COUNT(bodies);
        sbp_rowkernel *kernel = parse_ok(
            f, sbp_arena_printf(
                   f->arena,
                   "kernel @k %s heads 1 n 8 { in x : f32 [row elem] length 8 out y : f32 [row elem] "
                   "length 8 scalar s %s }",
                   wide ? "f64" : "f32", wide ? "%0 = load x store y, %0" : bodies[k]));
        assert_null(sbp_rowrunner_create(f->arena, kernel));
    }
}

/* Values that are stored and read again, stored twice, stored rounded, and of fewer axes than the operand. */
static void host_stores_what_others_read(void **state) {
    fixture *f = *state;
    static const char *const bodies[] = {
        "%2 = add %0, %1 %3 = mul %2, %0 store y, %2 store z, %3",
        "%2 = add %0, %1 store y, %2 store z, %2",
        "%2 = add %0, %1 %3 = round f32 %2 %4 = sub %0, %3 store y, %3 store z, %4",
        "%2 = add %0, %1 %3 = round f32 %2 store y, %2 store z, %3",
        "%2 = mul %1, %0 %3 = round bf16 %2 %4 = round f16 %0 %5 = sub %2, %3 store y, %5 store z, %4",
        "%2 = mul %1, %0 %3 = round bf16 %2 store y, %3 store z, %2",
        "%2 = mul %1, %1 %3 = select %0, %2, %1 store y, %2 store z, %3",
        "%2 = div %0, %1 %3 = lt %0, %2 store y, %0 store z, %3",
    };
    for (int k = 0; k < SBP_COUNT(bodies); k++) {
        enum { ROWS = 131, N = 24 };
        sbp_rowkernel *kernel = parse_ok(
            f,
            sbp_arena_printf(f->arena,
                             "kernel @k f32 heads 1 n %d { in x : f32 [row elem] length %d in w : f32 [row] "
                             "out y : f32 [row elem] length %d out z : f32 [row elem] length %d "
                             "%%0 = load x %%1 = load w %s }",
                             N, N, N, N, bodies[k]));
        static float x[ROWS * N], w[ROWS], y[2][ROWS * N], z[2][ROWS * N];
        for (int i = 0; i < ROWS * N; i++) /* sums and products are exact */
            x[i] = (float)(i % 5 - 2);
        for (int i = 0; i < ROWS; i++)
            w[i] = (float)(1 << i % 3);
        for (int way = 0; way < 2; way++) {
            const sbp_rk_view views[] = {{x, N}, {w, 1}, {y[way], N}, {z[way], N}};
            if (way == 0)
                assert_int_equal(sbp_rowkernel_run_reference(kernel, ROWS, 0, views, NULL), SBP_OK);
            else
                sbp_rowrunner_run(sbp_rowrunner_create(f->arena, kernel), ROWS, views);
        }
        assert_memory_equal(y[0], y[1], sizeof y[0]);
        assert_memory_equal(z[0], z[1], sizeof z[0]);
    }
}

/* Kernels of elements at random: the host's runner gives what fp32 arithmetic gives, within its rounding. */
static void host_runs_random_kernels(void **state) {
    fixture *f = *state;
    sbp_rng rng = {11};
    int ran = 0;
    for (int turn = 0; turn < 20000 && ran < 150; turn++) {
        enum { ROWS = 70 };
        static const int64_t lengths[] = {1, 2, 6, 16, 32, 64};
        sbp_arena *arena = sbp_arena_create();
        sbp_random_kernel_options options = {.compute = SBP_F32,
                                             .heads = 1 + sbp_rng_below(&rng, 3),
                                             .n = lengths[sbp_rng_below(&rng, SBP_COUNT(lengths))],
                                             .smooth = true};
        sbp_rowkernel *kernel = sbp_random_kernel(&rng, arena, &options);
        for (int32_t i = 0; i < kernel->instr_count; i++) { /* what the host has not */
            sbp_rk_instr *instr = &kernel->instrs[i];
            if (instr->op == SBP_RK_SCALAR)
                *instr = (sbp_rk_instr){
                    .op = SBP_RK_CONST, .length = 1, .a = -1, .b = -1, .c = -1, .index = -1, .imm = 0.75};
            if (instr->op == SBP_RK_ROUND)
                instr->dtype = SBP_F32;
        }
        const sbp_rowrunner *runner = sbp_rowrunner_create(arena, kernel);
        sbp_rk_view views[2][SBP_ROWKERNEL_MAX_OPERANDS];
        for (int32_t i = 0; i < kernel->operand_count && runner; i++) {
            const sbp_rk_operand *o = &kernel->operands[i];
            int64_t stride = (kernel->heads - 1) * o->head_stride + o->length;
            for (int way = 0; way < 2; way++) {
                views[way][i] = (sbp_rk_view){.data = sbp_arena_alloc(arena, (size_t)(stride * ROWS * 8)),
                                              .stride = stride};
                sbp_rng same = {(uint64_t)i};
                for (int64_t j = 0; j < stride * ROWS; j++)
                    sbp_element_set(views[way][i].data, o->dtype, j, sbp_rng_unit(&same));
            }
        }
        if (runner) {
            ran++;
            assert_int_equal(sbp_rowkernel_run_reference(kernel, ROWS, 0, views[0], NULL), SBP_OK);
            sbp_rowrunner_run(runner, ROWS, views[1]);
        }
        for (int32_t i = 0; i < kernel->operand_count && runner; i++)
            for (int64_t j = 0; j < views[0][i].stride * ROWS; j++) {
                double a = sbp_element_get(views[0][i].data, kernel->operands[i].dtype, j);
                double b = sbp_element_get(views[1][i].data, kernel->operands[i].dtype, j);
                double unit = kernel->operands[i].dtype == SBP_BF16 ? 0x1p-7 : 0x1p-10;
                if (!(fabs(a - b) <= unit * (1 + fabs(a))))
                    fail_msg("operand %d, element %lld: %.9g, expected %.9g in\n%s", i, (long long)j, b, a,
                             print(f, kernel));
            }
        sbp_arena_destroy(arena);
    }
    assert_true(ran >= 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(text_has_names_and_tables, set_up, tear_down),
        cmocka_unit_test_setup_teardown(wrong_text_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(wrong_kernels_are_refused, set_up, tear_down),
        cmocka_unit_test(functions_take_bits),
        cmocka_unit_test_setup_teardown(ggml_blocks, set_up, tear_down),
        cmocka_unit_test_setup_teardown(blocks_in_an_order_of_heads, set_up, tear_down),
        cmocka_unit_test_setup_teardown(iq4_nl_blocks, set_up, tear_down),
        cmocka_unit_test_setup_teardown(mxfp4_blocks, set_up, tear_down),
        cmocka_unit_test_setup_teardown(fp8_blocks, set_up, tear_down),
        cmocka_unit_test_setup_teardown(host_runs_elements_only, set_up, tear_down),
        cmocka_unit_test_setup_teardown(host_stores_what_others_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(host_runs_random_kernels, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
