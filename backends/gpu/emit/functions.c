/* functions.c: what row kernels call beyond rowmath.h: random numbers, the dynamic types, functions of
 * integers, tables. */
#include "backends/gpu/emit/emitter.h"

#include "ir/base/dynamic.h"

#include <math.h>
#include <string.h>

/* Neighbours in a vector share the rounds: e / 4 is one number for four elements, and compilers see it. */
static const char random_text[] =
    "SBP_FN uint random_word(REAL number) {\n"
    "    return number >= REAL(0.0) && number < REAL(4294967296.0) ? uint(number) : 0u;\n"
    "}\n"
    "SBP_FN REAL random(uint k0, uint k1, REAL number, uint row, uint head, int j) { // Philox4x32-10, "
    "ir/rowkernel/rowkernel.h\n"
    "    uint c0 = row, c1 = random_word(number), c2 = head, c3 = uint(j) / 4u;\n"
    "    for (int round = 0; round < 10; round++) {\n"
    "        uint high0 = sbp_high_product(c0, 0xd2511f53u), low0 = c0 * 0xd2511f53u;\n"
    "        uint high1 = sbp_high_product(c2, 0xcd9e8d57u), low1 = c2 * 0xcd9e8d57u;\n"
    "        c0 = high1 ^ c1 ^ k0;\n"
    "        c1 = low1;\n"
    "        c2 = high0 ^ c3 ^ k1;\n"
    "        c3 = low0;\n"
    "        k0 += 0x9e3779b9u;\n"
    "        k1 += 0xbb67ae85u;\n"
    "    }\n"
    "    uint k = uint(j) & 3u, word = k == 0u ? c0 : k == 1u ? c1 : k == 2u ? c2 : c3;\n"
    "    return REAL(word >> 8) * REAL(5.9604644775390625e-8);\n"
    "}\n";

/* Bits of a float. */
static unsigned bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* The top 12 bits of x. */
static double twelve_bits(double x) {
    int exponent;
    double fraction = frexp(x, &exponent);
    return ldexp(floor(fraction * 0x1p12), exponent - 12);
}

/* <type>_number(k): the number of magnitude k. A table of 256 numbers takes a software driver seconds to
 * compile, so they are computed: with m = 2^e + f a number is (2^(e+1) + 9 (2 f + 1)) 10^-i 2^-(e+1), i = 7 -
 * e or 8 - e; the integer has 12 bits, so that products with parts of 12 bits of 10^-i are exact and only
 * their sum is rounded. */
static void add_number(sbp_text *out, const char *type, bool has_sign, int32_t less) {
    sbp_text_add(out,
                 "SBP_FN float %s_number(int k) {\n    int m = k + %d, e = clamp(findMSB(m), 0, 7);\n"
                 "    float a = 0.0f, b = 0.0f, c = 0.0f;\n",
                 type, less);
    for (int32_t e = less; e <= 6 + less; e++) {
        double ten = pow(10, e - 7 - less), a = twelve_bits(ten), b = twelve_bits(ten - a);
        sbp_text_add(out,
                     "    if (e == %d) {\n        a = SBP_FROM_BITS(0x%xu);\n"
                     "        b = SBP_FROM_BITS(0x%xu);\n        c = SBP_FROM_BITS(0x%xu);\n    }\n",
                     e, bits_of((float)a), bits_of((float)b), bits_of((float)(ten - a - b)));
    }
    sbp_text_add(out,
                 "    float n = float((2 << e) + 9 * (2 * (m - (1 << e)) + 1));\n"
                 "    float y = (n * a + (n * b + n * c)) * SBP_FROM_BITS(uint(126 - e) << 23);\n"
                 "    return k == 0 ? 0.0f : k == %d ? 1.0f : y;\n}\n",
                 has_sign ? 128 : 255);
}

/* to_<type>, a byte: the magnitude is found as on the CPU (backends/cpu/kernels/convert.h): the decade, then
 * a part of it, too low by less than one, then a border. */
static void add_to(sbp_text *out, const char *type, bool has_sign, int32_t less) {
    const float *borders = has_sign ? sbp_d8_borders : sbp_ud8_borders;
    double scale = 1e6 / 0.9 * (1 << less);
    sbp_text_add(out,
                 "SBP_FN uint to_%s(REAL value) {\n"
                 "    float y = float(value), x = is_nan(y) ? 0.0f : sbp_abs_f32(y), base = %d.0f;\n"
                 "    float scale = SBP_FROM_BITS(0x%xu);\n",
                 type, 1 << less, bits_of((float)scale));
    for (int32_t e = 1 + less; e <= 6 + less; e++) {
        scale /= 5;
        sbp_text_add(out,
                     "    if (x > SBP_FROM_BITS(0x%xu)) {\n        base = %d.0f;\n"
                     "        scale = SBP_FROM_BITS(0x%xu);\n    }\n",
                     bits_of(borders[(1 << e) - 1 - less]), 1 << e, bits_of((float)scale));
    }
    sbp_text_add(out,
                 "    float at = x * scale + (base * SBP_FROM_BITS(0x%xu) - SBP_FROM_BITS(0x%xu));\n"
                 "    int k = int(clamp(at, base, 2.0f * base - 1.0f)) - %d;\n"
                 "    k += x > 0.5f * (%s_number(k) + %s_number(k + 1)) ? 1 : 0;\n"
                 "    k = x > SBP_FROM_BITS(0x%xu) ? k : 0;\n",
                 bits_of((float)(8 / 9.0)), bits_of(1e-3f), less, type, type, bits_of(borders[0]));
    sbp_text_add(out, has_sign ? "    return y < 0.0f ? uint(clamp(k, 1, 127)) | 0x80u : uint(k);\n}\n"
                               : "    return y < 0.0f ? 0u : uint(k);\n}\n");
}

/* A text with a type in place of @. */
static void add_with_type(sbp_text *out, const char *text, const char *type) {
    for (const char *p = text; *p; p++)
        if (*p == '@')
            sbp_text_add(out, "%s", type);
        else
            sbp_text_add_n(out, p, 1);
}

/* Loads, stores, from_<type> and to_<type> of d8 or ud8 (ir/base/dynamic.h). */
static void add_dynamic(sbp_text *out, sbp_dtype dtype, const sbp_gpu_dialect *dialect) {
    const char *type = sbp_dtype_name(dtype);
    bool has_sign = dtype == SBP_D8;
    int32_t less = has_sign ? 0 : 1; /* of what m has more than the magnitude */
    add_number(out, type, has_sign, less);
    add_to(out, type, has_sign, less);
    sbp_text_add(out, "SBP_FN REAL from_%s(uint bits) {\n", type);
    sbp_text_add(out, has_sign ? "    float y = d8_number(bits == 0x80u ? 128 : int(bits & 0x7fu));\n"
                                 "    return REAL(bits > 0x80u ? -y : y);\n}\n"
                               : "    return REAL(ud8_number(int(bits)));\n}\n");
    add_with_type(out, dialect->dynamic, type);
}

static bool uses_type(const sbp_rowkernel *kernel, sbp_dtype dtype) {
    bool uses = false;
    for (int32_t i = 0; i < kernel->operand_count; i++)
        uses |= kernel->operands[i].dtype == dtype;
    for (int32_t i = 0; i < kernel->instr_count; i++)
        uses |= kernel->instrs[i].op == SBP_RK_ROUND && kernel->instrs[i].dtype == dtype;
    return uses;
}

static void add_integer(sbp_text *out, const sbp_rowkernel *kernel, sbp_intop op) {
    bool uses = false;
    for (int32_t k = 0; k < kernel->instr_count; k++)
        uses |= kernel->instrs[k].op == SBP_RK_INTEGER && kernel->instrs[k].integer == op;
    if (uses)
        sbp_text_add(out, "SBP_FN int integer_%s(int x, int p, int q) {\n    return %s;\n}\n",
                     sbp_intop_name(op), sbp_intop_text(op));
}

/* Decimal digits that give the number back. */
static void add_table(sbp_text *out, const sbp_rowkernel *kernel, int32_t index,
                      const sbp_gpu_dialect *dialect) {
    const sbp_rk_table *table = &kernel->tables[index];
    sbp_text_add(out, "%s table_%d[%d] = %s", dialect->constant, index, table->count, dialect->list_begin);
    for (int32_t i = 0; i < table->count; i++) {
        sbp_text_add(out, "%s", i == 0 ? "" : ", ");
        if (kernel->compute == SBP_F64)
            sbp_text_add(out, "%.16e%s", table->numbers[i], dialect->f64_suffix);
        else
            sbp_text_add(out, "%.8ef", (double)(float)table->numbers[i]);
    }
    sbp_text_add(out, "%s;\n", dialect->list_end);
}

void emit_functions(sbp_text *out, const sbp_rowkernel *kernel, const sbp_gpu_dialect *dialect) {
    for (sbp_dtype dtype = SBP_D8; dtype <= SBP_UD8; dtype++)
        if (uses_type(kernel, dtype))
            add_dynamic(out, dtype, dialect);
    for (int32_t k = 0; k < kernel->instr_count; k++)
        if (kernel->instrs[k].op == SBP_RK_RANDOM) {
            sbp_text_add(out, "%s", random_text);
            break;
        }
    for (int op = 0; op < SBP_INTOP_COUNT; op++)
        add_integer(out, kernel, (sbp_intop)op);
    for (int32_t i = 0; i < kernel->table_count; i++)
        add_table(out, kernel, i, dialect);
}
