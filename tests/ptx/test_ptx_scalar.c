/* Scalar instructions against what C says of them: random and awkward operands, 32 lanes at a time, all lanes
 * and a part of them. Expectations are written out here, from the PTX ISA, not shared with the machine. */
#include "tests/ptx/ptx.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <string.h>

enum { LANES = 32, ROUNDS = 24 };

typedef struct {
    uint64_t a, b, c;
} operands;

typedef uint64_t expect_fn(operands o);

// An instruction d, a, b, c: widths in bytes of d and of the sources (0: none).
typedef struct {
    const char *text;
    int d, a, b, c;
    expect_fn *expect;
} instruction;

static uint64_t state = 0x853c49e6748fea9bu;

static uint64_t draw(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static float f32_of(uint64_t bits) {
    const uint32_t low = (uint32_t)bits;
    float f;
    memcpy(&f, &low, 4);
    return f;
}

static uint64_t of_f32(float f) {
    uint32_t bits = 0x7fffffff;
    if (f == f) {
        memcpy(&bits, &f, 4);
    }
    return bits;
}

static double f64_of(uint64_t bits) {
    double f;
    memcpy(&f, &bits, 8);
    return f;
}

static uint64_t of_f64(double f) {
    uint64_t bits = 0x7ff8000000000000u;
    if (f == f) {
        memcpy(&bits, &f, 8);
    }
    return bits;
}

// Mostly numbers around which something changes.
static uint64_t awkward(void) {
    static const uint64_t some[] = {0,
                                    1,
                                    2,
                                    31,
                                    32,
                                    33,
                                    63,
                                    64,
                                    0x7f,
                                    0x80,
                                    0xff,
                                    0x7fff,
                                    0x8000,
                                    0xffff,
                                    0x7fffffff,
                                    0x80000000,
                                    0xffffffff,
                                    0x3f800000,
                                    0xbf800000,
                                    0x7f800000,
                                    0xff800000,
                                    0x7fc00000,
                                    0x00800000,
                                    0x00000001,
                                    0x4f000000,
                                    0xcf000000,
                                    0x5f000000,
                                    0x3f000000,
                                    0x3fc00000,
                                    0x40200000,
                                    0x7fffffffffffffff,
                                    0x8000000000000000,
                                    UINT64_MAX};
    const uint64_t r = draw();
    switch (r % 4) {
    case 0:
        return some[draw() % (sizeof some / sizeof some[0])];
    case 1:
        return draw() % 70;
    case 2: { // a float of moderate size
        const float f = (float)((double)(int64_t)draw() / 9.2e18 * 1000);
        return of_f32(f);
    }
    default:
        return draw();
    }
}

#define EXPECT(name, expression)                                                                             \
    static uint64_t name(operands o) {                                                                       \
        const uint64_t a = o.a, b = o.b, c = o.c;                                                            \
        (void)a, (void)b, (void)c;                                                                           \
        return (uint64_t)(expression);                                                                       \
    }
#define S32(x) ((int64_t)(int32_t)(x))
#define S16(x) ((int64_t)(int16_t)(x))
#define F(x) f32_of(x)
#define D(x) f64_of(x)

EXPECT(add, a + b)
EXPECT(sub, a - b)
EXPECT(mul, a *b)
EXPECT(mad, a *b + c)
EXPECT(mul_hi_u32, a *b >> 32)
EXPECT(mul_hi_s32, (S32(a) * S32(b)) >> 32)
EXPECT(mul_wide_s32, S32(a) * S32(b))
EXPECT(mul_wide_s16, S16(a) * S16(b))
EXPECT(mad_wide_s32, (uint64_t)(S32(a) * S32(b)) + c)
EXPECT(mad_wide_u32, a *b + c)
EXPECT(div_u32, b ? a / b : UINT64_MAX)
EXPECT(div_s32, (uint32_t)b ? S32(a) / S32(b) : -1)
EXPECT(rem_s32, (uint32_t)b ? S32(a) % S32(b) : S32(a))
EXPECT(rem_u64, b ? a % b : a)
EXPECT(min_s32, S32(a) < S32(b) ? a : b)
EXPECT(max_u64, a > b ? a : b)
EXPECT(abs_s32, S32(a) < 0 ? -S32(a) : S32(a))
EXPECT(neg_s64, 0 - a)
EXPECT(and_, a &b)
EXPECT(or_, a | b)
EXPECT(xor_, a ^ b)
EXPECT(not_, ~a)
EXPECT(shl32, (uint32_t)b > 31 ? 0 : a << b)
EXPECT(shl64, (uint32_t)b > 63 ? 0 : a << (uint32_t)b)
EXPECT(shr_u32, (uint32_t)b > 31 ? 0 : a >> b)
EXPECT(shr_s32, S32(a) >> ((uint32_t)b > 31 ? 31 : b))
EXPECT(shr_s64, (int64_t)a >> ((uint32_t)b > 63 ? 63 : (uint32_t)b))
EXPECT(shr_s16, S16(a) >> ((uint32_t)b > 15 ? 15 : b))
EXPECT(shf_l, (b << 32 | a) << (c & 31) >> 32)
EXPECT(shf_r, (b << 32 | a) >> (c & 31))
EXPECT(shf_r_clamp, (uint32_t)c > 31 ? b : (b << 32 | a) >> c)
EXPECT(popc64, __builtin_popcountll(a))
EXPECT(clz32, (uint32_t)a ? __builtin_clz((uint32_t)a) : 32)

static uint64_t brev32(operands o) {
    uint64_t r = 0;
    for (int k = 0; k < 32; k++) {
        r |= (o.a >> k & 1) << (31 - k);
    }
    return r;
}

static uint64_t bfind_s32(operands o) {
    const uint32_t x = (uint32_t)(S32(o.a) < 0 ? ~o.a : o.a);
    for (int k = 31; k >= 0; k--) {
        if (x >> k & 1) {
            return (uint64_t)k;
        }
    }
    return UINT32_MAX;
}

static uint64_t bfe_u32(operands o) {
    uint64_t r = 0;
    const unsigned at = o.b & 255, length = o.c & 255;
    for (unsigned k = 0; k < length && k < 32; k++) {
        r |= (at + k < 32 ? o.a >> (at + k) & 1 : 0) << k;
    }
    return r;
}

// The pseudo code of the ISA, bit by bit.
static uint64_t bfe_signed(operands o, unsigned most) {
    const unsigned at = o.b & 255, length = o.c & 255;
    const uint64_t sign = length == 0 ? 0 : o.a >> (at + length - 1 < most ? at + length - 1 : most) & 1;
    uint64_t r = 0;
    for (unsigned k = 0; k <= most; k++) {
        r |= (k < length && at + k <= most ? o.a >> (at + k) & 1 : sign) << k;
    }
    return r;
}

static uint64_t bfe_s32(operands o) {
    return bfe_signed(o, 31);
}

static uint64_t bfe_s64(operands o) {
    return bfe_signed(o, 63);
}

static uint64_t prmt(operands o) {
    uint64_t r = 0;
    for (int k = 0; k < 4; k++) {
        const unsigned pick = o.c >> 4 * k & 15, from = pick & 7;
        const uint64_t byte = (from < 4 ? o.a >> 8 * from : o.b >> 8 * (from - 4)) & 255;
        r |= (pick & 8 ? (byte >> 7 ? 255 : 0) : byte) << 8 * k;
    }
    return r;
}

EXPECT(lop3_96, a ^ b ^ c)
EXPECT(lop3_e8, (a & b) | (a & c) | (b & c))
EXPECT(lop3_ca, (a & b) | (~a & c))

static uint64_t min_f(operands o) {
    const float x = F(o.a), y = F(o.b);
    return of_f32(isnan(x) ? y : isnan(y) ? x : x == y ? (signbit(x) ? x : y) : x < y ? x : y);
}

static uint64_t max_nan_f(operands o) {
    const float x = F(o.a), y = F(o.b);
    return of_f32(isnan(x) || isnan(y) ? NAN : x == y ? (signbit(x) ? y : x) : x > y ? x : y);
}

static float flush(float x) {
    return fabsf(x) < FLT_MIN ? copysignf(0, x) : x;
}

EXPECT(add_f, of_f32(F(a) + F(b)))
EXPECT(mul_f, of_f32(F(a) * F(b)))
EXPECT(mul_ftz_f, of_f32(flush(flush(F(a)) * flush(F(b)))))
EXPECT(div_f, of_f32(F(a) / F(b)))
EXPECT(fma_f, of_f32(fmaf(F(a), F(b), F(c))))
EXPECT(sqrt_f, of_f32(sqrtf(F(a))))
EXPECT(rcp_f, of_f32(1 / F(a)))
EXPECT(fma_d, of_f64(fma(D(a), D(b), D(c))))
EXPECT(sub_d, of_f64(D(a) - D(b)))
EXPECT(min_xorsign_f, of_f32(copysignf(fminf(fabsf(F(a)), fabsf(F(b))), F(a ^ b))))
EXPECT(max_xorsign_f, of_f32(copysignf(fmaxf(fabsf(F(a)), fabsf(F(b))), F(a ^ b))))
EXPECT(copysign_f, (a & 0x80000000) | (b & 0x7fffffff))

static uint64_t add_sat_f(operands o) {
    const float x = F(o.a) + F(o.b);
    return of_f32(!(x > 0) ? 0 : x > 1 ? 1 : x);
}

static int64_t clamp(double x, double least, double most) {
    return isnan(x) ? 0 : x <= least ? (int64_t)least : x >= most ? (int64_t)most : (int64_t)x;
}

EXPECT(s32_rzi_f32, clamp(truncf(F(a)), -2147483648.0, 2147483647.0))
EXPECT(u32_rni_f32, clamp(rintf(F(a)), 0, 4294967295.0))
EXPECT(u8_rzi_f32, clamp(truncf(F(a)), 0, 255))
EXPECT(f32_rn_s32, of_f32((float)S32(a)))
EXPECT(f32_rn_u64, of_f32((float)a))
EXPECT(f64_rn_s64, of_f64((double)(int64_t)a))
EXPECT(f32_rn_f64, of_f32((float)D(a)))
EXPECT(f64_f32, of_f64(F(a)))
EXPECT(s64_s32, S32(a))
EXPECT(s16_s32, a)
EXPECT(sat_s8_s32, S32(a) < -128 ? -128 : S32(a) > 127 ? 127 : S32(a))
EXPECT(u32_u8, a & 255)
EXPECT(s32_s8, (int64_t)(int8_t)a)
EXPECT(floor_f, of_f32(floorf(F(a))))
EXPECT(rint_f, of_f32(rintf(F(a))))

static uint64_t bf16_f32(operands o) {
    const float x = F(o.a);
    if (isnan(x)) {
        return 0x7fff;
    }
    const uint64_t low = o.a & 0xffff, up = (o.a & 0xffffffff) >> 16;
    return up + (low > 0x8000 || (low == 0x8000 && up & 1));
}

static uint64_t bf16x2_f32(operands o) {
    return bf16_f32(o) << 16 | bf16_f32((operands){.a = o.b});
}

EXPECT(f32_bf16, isnan(F(a << 16)) ? a << 16 : a << 16)
EXPECT(set_lt, F(a) < F(b) ? UINT32_MAX : 0)
EXPECT(slct, S32(c) >= 0 ? a : b)

static uint64_t bfi(operands o) { // at bit 5, 9 bits
    return (o.b & ~UINT64_C(0x3fe0)) | (o.a & 0x1ff) << 5;
}

static const instruction instructions[] = {
    {"add.u16 D, A, B", 2, 2, 2, 0, add},
    {"add.s32 D, A, B", 4, 4, 4, 0, add},
    {"add.u64 D, A, B", 8, 8, 8, 0, add},
    {"sub.s64 D, A, B", 8, 8, 8, 0, sub},
    {"mul.lo.s32 D, A, B", 4, 4, 4, 0, mul},
    {"mul.lo.u64 D, A, B", 8, 8, 8, 0, mul},
    {"mul.hi.u32 D, A, B", 4, 4, 4, 0, mul_hi_u32},
    {"mul.hi.s32 D, A, B", 4, 4, 4, 0, mul_hi_s32},
    {"mul.wide.s32 D, A, B", 8, 4, 4, 0, mul_wide_s32},
    {"mul.wide.u32 D, A, B", 8, 4, 4, 0, mul},
    {"mul.wide.s16 D, A, B", 4, 2, 2, 0, mul_wide_s16},
    {"mad.lo.s32 D, A, B, C", 4, 4, 4, 4, mad},
    {"mad.wide.s32 D, A, B, C", 8, 4, 4, 8, mad_wide_s32},
    {"mad.wide.u32 D, A, B, C", 8, 4, 4, 8, mad_wide_u32},
    {"div.u32 D, A, B", 4, 4, 4, 0, div_u32},
    {"div.s32 D, A, B", 4, 4, 4, 0, div_s32},
    {"rem.s32 D, A, B", 4, 4, 4, 0, rem_s32},
    {"rem.u64 D, A, B", 8, 8, 8, 0, rem_u64},
    {"min.s32 D, A, B", 4, 4, 4, 0, min_s32},
    {"max.u64 D, A, B", 8, 8, 8, 0, max_u64},
    {"abs.s32 D, A", 4, 4, 0, 0, abs_s32},
    {"neg.s64 D, A", 8, 8, 0, 0, neg_s64},
    {"and.b32 D, A, B", 4, 4, 4, 0, and_},
    {"or.b64 D, A, B", 8, 8, 8, 0, or_},
    {"xor.b16 D, A, B", 2, 2, 2, 0, xor_},
    {"not.b32 D, A", 4, 4, 0, 0, not_},
    {"shl.b32 D, A, B", 4, 4, 4, 0, shl32},
    {"shl.b64 D, A, B", 8, 8, 4, 0, shl64},
    {"shr.u32 D, A, B", 4, 4, 4, 0, shr_u32},
    {"shr.b32 D, A, B", 4, 4, 4, 0, shr_u32},
    {"shr.s32 D, A, B", 4, 4, 4, 0, shr_s32},
    {"shr.s64 D, A, B", 8, 8, 4, 0, shr_s64},
    {"shr.s16 D, A, B", 2, 2, 4, 0, shr_s16},
    {"shf.l.wrap.b32 D, A, B, C", 4, 4, 4, 4, shf_l},
    {"shf.r.wrap.b32 D, A, B, C", 4, 4, 4, 4, shf_r},
    {"shf.r.clamp.b32 D, A, B, C", 4, 4, 4, 4, shf_r_clamp},
    {"popc.b64 D, A", 4, 8, 0, 0, popc64},
    {"clz.b32 D, A", 4, 4, 0, 0, clz32},
    {"brev.b32 D, A", 4, 4, 0, 0, brev32},
    {"bfind.s32 D, A", 4, 4, 0, 0, bfind_s32},
    {"bfe.u32 D, A, B, C", 4, 4, 4, 4, bfe_u32},
    {"bfe.s32 D, A, B, C", 4, 4, 4, 4, bfe_s32},
    {"bfe.s64 D, A, B, C", 8, 8, 4, 4, bfe_s64},
    {"bfi.b32 D, A, B, 5, 9", 4, 4, 4, 0, bfi},
    {"bfi.b64 D, A, B, 5, 9", 8, 8, 8, 0, bfi},
    {"prmt.b32 D, A, B, C", 4, 4, 4, 4, prmt},
    {"lop3.b32 D, A, B, C, 0x96", 4, 4, 4, 4, lop3_96},
    {"lop3.b32 D, A, B, C, 0xe8", 4, 4, 4, 4, lop3_e8},
    {"lop3.b32 D, A, B, C, 0xca", 4, 4, 4, 4, lop3_ca},
    {"min.f32 D, A, B", 4, 4, 4, 0, min_f},
    {"max.NaN.f32 D, A, B", 4, 4, 4, 0, max_nan_f},
    {"add.f32 D, A, B", 4, 4, 4, 0, add_f},
    {"add.rn.sat.f32 D, A, B", 4, 4, 4, 0, add_sat_f},
    {"mul.f32 D, A, B", 4, 4, 4, 0, mul_f},
    {"mul.ftz.f32 D, A, B", 4, 4, 4, 0, mul_ftz_f},
    {"div.rn.f32 D, A, B", 4, 4, 4, 0, div_f},
    {"fma.rn.f32 D, A, B, C", 4, 4, 4, 4, fma_f},
    {"fma.rn.f64 D, A, B, C", 8, 8, 8, 8, fma_d},
    {"sub.f64 D, A, B", 8, 8, 8, 0, sub_d},
    {"sqrt.rn.f32 D, A", 4, 4, 0, 0, sqrt_f},
    {"rcp.rn.f32 D, A", 4, 4, 0, 0, rcp_f},
    {"min.xorsign.abs.f32 D, A, B", 4, 4, 4, 0, min_xorsign_f},
    {"max.xorsign.abs.f32 D, A, B", 4, 4, 4, 0, max_xorsign_f},
    {"copysign.f32 D, A, B", 4, 4, 4, 0, copysign_f},
    {"cvt.rzi.s32.f32 D, A", 4, 4, 0, 0, s32_rzi_f32},
    {"cvt.rni.u32.f32 D, A", 4, 4, 0, 0, u32_rni_f32},
    {"cvt.rzi.u8.f32 D, A", 4, 4, 0, 0, u8_rzi_f32},
    {"cvt.rn.f32.s32 D, A", 4, 4, 0, 0, f32_rn_s32},
    {"cvt.rn.f32.u64 D, A", 4, 8, 0, 0, f32_rn_u64},
    {"cvt.rn.f64.s64 D, A", 8, 8, 0, 0, f64_rn_s64},
    {"cvt.rn.f32.f64 D, A", 4, 8, 0, 0, f32_rn_f64},
    {"cvt.f64.f32 D, A", 8, 4, 0, 0, f64_f32},
    {"cvt.s64.s32 D, A", 8, 4, 0, 0, s64_s32},
    {"cvt.u16.u32 D, A", 2, 4, 0, 0, s16_s32},
    {"cvt.sat.s8.s32 D, A", 4, 4, 0, 0, sat_s8_s32},
    {"cvt.u32.u8 D, A", 4, 4, 0, 0, u32_u8},
    {"cvt.s32.s8 D, A", 4, 4, 0, 0, s32_s8},
    {"cvt.rmi.f32.f32 D, A", 4, 4, 0, 0, floor_f},
    {"cvt.rni.f32.f32 D, A", 4, 4, 0, 0, rint_f},
    {"cvt.rn.bf16.f32 D, A", 2, 4, 0, 0, bf16_f32},
    {"cvt.rn.bf16x2.f32 D, A, B", 4, 4, 4, 0, bf16x2_f32},
    {"cvt.f32.bf16 D, A", 4, 2, 0, 0, f32_bf16},
    {"set.lt.u32.f32 D, A, B", 4, 4, 4, 0, set_lt},
    {"slct.u32.s32 D, A, B, C", 4, 4, 4, 4, slct},
    {"mov.b32 D, A", 4, 4, 0, 0, or_},
};

static const char *register_of(int bytes) {
    return bytes == 8 ? "b64" : bytes == 4 ? "b32" : "b16";
}

/* Reads a, b, c of 8 bytes each and the old d of its lane, executes where the lane's bit of `lanes` is set,
 * and writes d. */
static void program(const instruction *i, char *text, size_t size) {
    const int widths[3] = {i->a, i->b, i->c};
    char loads[512] = "";
    for (int k = 0; k < 3; k++) {
        const int bytes = widths[k] ? widths[k] : 4;
        const size_t used = strlen(loads);
        (void)snprintf(loads + used, sizeof loads - used, ".reg .%s %c;\nld.global.%s %c, [%%p+%d];\n",
                       register_of(bytes), 'A' + k, register_of(bytes), 'A' + k, 8 * k);
    }
    (void)snprintf(
        text, size,
        ".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 data, .param .u32 "
        "lanes)\n{\n"
        ".reg .b64 %%p, %%q;\n.reg .b32 %%t, %%m;\n.reg .pred %%on;\n.reg .%s D;\nld.param.u64 %%p, [data];\n"
        "ld.param.u32 %%m, [lanes];\nmov.u32 %%t, %%tid.x;\nmul.wide.u32 %%q, %%t, 32;\nadd.s64 %%p, %%p, "
        "%%q;\n"
        "shr.u32 %%m, %%m, %%t;\nand.b32 %%m, %%m, 1;\nsetp.ne.u32 %%on, %%m, 0;\n%sld.global.%s D, "
        "[%%p+24];\n"
        "@%%on %s;\nst.global.%s [%%p+24], D;\nret;\n}\n",
        register_of(i->d), loads, register_of(i->d), i->text, register_of(i->d));
}

static uint64_t cut(uint64_t value, int bytes) {
    return bytes == 8 ? value : value & ((UINT64_C(1) << 8 * bytes) - 1);
}

static int compared;

static void check_round(const instruction *i, const sbp_ptx_entry *entry, sbp_ptx_memory *memory,
                        uint64_t address) {
    uint64_t data[LANES][4], out[LANES][4];
    const uint32_t lanes = draw() & 1 ? UINT32_MAX : (uint32_t)draw();
    for (int l = 0; l < LANES; l++) {
        for (int k = 0; k < 4; k++) {
            data[l][k] = awkward();
            if (k < 3 && (k == 0 ? i->a : k == 1 ? i->b : i->c) == 8 && draw() & 1) {
                data[l][k] = of_f64((double)f32_of(data[l][k])); // a double of moderate size
            }
        }
    }
    assert_true(sbp_ptx_memory_write(memory, address, data, sizeof data));
    sbp_ptx_report report;
    void *params[] = {(void *)&address, (void *)&lanes};
    const sbp_ptx_status status =
        sbp_ptx_launch(entry, (uint32_t[]){1, 1, 1}, (uint32_t[]){LANES, 1, 1}, 0, params, NULL, &report);
    if (status != SBP_PTX_OK) {
        print_error("%s: %s\n", i->text, report.text);
    }
    assert_int_equal(status, SBP_PTX_OK);
    assert_true(sbp_ptx_memory_read(memory, address, out, sizeof out));
    for (int l = 0; l < LANES; l++) {
        const operands o = {cut(data[l][0], i->a ? i->a : 8), i->b ? cut(data[l][1], i->b) : 0,
                            i->c ? cut(data[l][2], i->c) : 0};
        const uint64_t expected = lanes >> l & 1 ? cut(i->expect(o), i->d) : cut(data[l][3], i->d);
        if (cut(out[l][3], i->d) != expected) {
            print_error("%s: a %llx b %llx c %llx: %llx, not %llx\n", i->text, (unsigned long long)o.a,
                        (unsigned long long)o.b, (unsigned long long)o.c,
                        (unsigned long long)cut(out[l][3], i->d), (unsigned long long)expected);
        }
        assert_true(cut(out[l][3], i->d) == expected);
        compared++;
    }
}

static void instructions_do_what_the_isa_says(void **unused) {
    (void)unused;
    for (size_t k = 0; k < sizeof instructions / sizeof instructions[0]; k++) {
        char text[2048];
        program(&instructions[k], text, sizeof text);
        sbp_ptx_report report;
        sbp_ptx_memory *memory = sbp_ptx_memory_create(0);
        const uint64_t address = sbp_ptx_memory_alloc(memory, LANES * 32);
        sbp_ptx_module *module = sbp_ptx_module_load(memory, text, strlen(text), &report);
        if (!module) {
            print_error("%s: %s\n", instructions[k].text, report.text);
        }
        assert_non_null(module);
        for (int r = 0; r < ROUNDS; r++) {
            check_round(&instructions[k], sbp_ptx_module_entry(module, "k"), memory, address);
        }
        sbp_ptx_module_unload(module);
        sbp_ptx_memory_destroy(memory);
    }
    assert_int_equal(compared, ROUNDS * LANES * (int)(sizeof instructions / sizeof instructions[0]));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(instructions_do_what_the_isa_says)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
