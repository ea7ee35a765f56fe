// elements.cuh: elements of every type as REAL, float or double (REAL_F64), with the bits that the CPU gives
// them (ir/base/types.h), except that a number of 64 bits becomes a float in one rounding.

#ifdef REAL_F64
#define REAL double
#define REAL_FROM_BITS(low, high) __hiloint2double((int)(high), (int)(low))
#define REAL_NAN __hiloint2double(0x7ff80000, 0)
#define REAL_INFINITY __hiloint2double(0x7ff00000, 0)
#define ARG_NUMBER(i) args.doubles[i]
#else
#define REAL float
#define REAL_NAN __uint_as_float(0x7fc00000u)
#define REAL_INFINITY __uint_as_float(0x7f800000u)
#define ARG_NUMBER(i) args.floats[i]
#endif

DEVICE bool is_nan(float x) {
    return x != x;
}
DEVICE bool is_nan(double x) {
    return x != x;
}

// NaN wins, as in ir/rowkernel/rowops.def.
DEVICE REAL larger(REAL a, REAL b) {
    return a > b || is_nan(a) ? a : b;
}
DEVICE REAL smaller(REAL a, REAL b) {
    return a < b || is_nan(a) ? a : b;
}

// ---- 16-bit floats by their bits -------------------------------------------------------------------------

DEVICE float f32_from_bf16(u32 u) {
    return __uint_as_float(u << 16);
}
DEVICE u32 bf16_from(float x) {
    u32 u = __float_as_uint(x);
    u16 rounded;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(x));
    return is_nan(x) ? (u >> 16) | 0x40u : rounded;
}
DEVICE float f32_from_f16(u32 u) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((u16)u));
    u32 nan = (u & 0x8000u) << 16 | 0x7f800000u | (u & 0x3ffu) << 13;
    return (u & 0x7fffu) > 0x7c00u ? __uint_as_float(nan) : x;
}
DEVICE u32 f16_from(float x) {
    u16 rounded;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(rounded) : "f"(x));
    return is_nan(x) ? 0x7e00u | (__float_as_uint(x) >> 16 & 0x8000u) : rounded;
}

// Rounded so that rounding once more to fewer bits is the same as rounding x once ("to odd").
DEVICE float f32_for_rounding(double x) {
    float f = (float)x;
    double back = (double)f;
    u32 u = __float_as_uint(f);
    bool inexact = back != x && !is_nan(f) && (u & 0x7fffffffu) < 0x7f800000u;
    bool beyond = fabs(back) > fabs(x);
    return inexact ? __uint_as_float((beyond ? u - 1u : u) | 1u) : f;
}
DEVICE u32 bf16_from(double x) {
    return bf16_from(f32_for_rounding(x));
}
DEVICE u32 f16_from(double x) {
    return f16_from(f32_for_rounding(x));
}

// ---- elements: address of a row, number of the element in it ---------------------------------------------

template <typename T> DEVICE T *at_element(u64 at, int i) {
    return (T *)__cvta_global_to_generic(at) + i; // ld.global in place of ld
}

DEVICE REAL load_f64(u64 at, int i) {
    return (REAL)*at_element<const double>(at, i);
}
DEVICE REAL load_f32(u64 at, int i) {
    return (REAL)*at_element<const float>(at, i);
}
DEVICE REAL load_bf16(u64 at, int i) {
    return (REAL)f32_from_bf16(*at_element<const u16>(at, i));
}
DEVICE REAL load_f16(u64 at, int i) {
    return (REAL)f32_from_f16(*at_element<const u16>(at, i));
}
DEVICE REAL load_i8(u64 at, int i) {
    return (REAL)*at_element<const signed char>(at, i);
}
DEVICE REAL load_i16(u64 at, int i) {
    return (REAL)*at_element<const short>(at, i);
}
DEVICE REAL load_i32(u64 at, int i) {
    return (REAL)*at_element<const int>(at, i);
}
DEVICE REAL load_i64(u64 at, int i) {
    return (REAL)*at_element<const i64>(at, i);
}
DEVICE REAL load_bool(u64 at, int i) {
    return *at_element<const u8>(at, i) != 0 ? (REAL)1.0 : (REAL)0.0;
}

// Rounded to nearest, saturating; NaN becomes 0.
DEVICE int to_i32(float x) {
    return is_nan(x) ? 0 : __float2int_rn(x);
}
DEVICE int to_i32(double x) {
    return is_nan(x) ? 0 : __double2int_rn(x);
}
DEVICE i64 to_i64(float x) {
    return is_nan(x) ? 0 : __float2ll_rn(x);
}
DEVICE i64 to_i64(double x) {
    return is_nan(x) ? 0 : __double2ll_rn(x);
}

DEVICE void store_f64(u64 at, int i, REAL x) {
    *at_element<double>(at, i) = (double)x;
}
DEVICE void store_f32(u64 at, int i, REAL x) {
    *at_element<float>(at, i) = (float)x;
}
DEVICE void store_bf16(u64 at, int i, REAL x) {
    *at_element<u16>(at, i) = (u16)bf16_from(x);
}
DEVICE void store_f16(u64 at, int i, REAL x) {
    *at_element<u16>(at, i) = (u16)f16_from(x);
}
DEVICE void store_i8(u64 at, int i, REAL x) {
    *at_element<signed char>(at, i) = (signed char)min(max(to_i32(x), -128), 127);
}
DEVICE void store_i16(u64 at, int i, REAL x) {
    *at_element<short>(at, i) = (short)min(max(to_i32(x), -32768), 32767);
}
DEVICE void store_i32(u64 at, int i, REAL x) {
    *at_element<int>(at, i) = to_i32(x);
}
DEVICE void store_i64(u64 at, int i, REAL x) {
    *at_element<i64>(at, i) = to_i64(x);
}
DEVICE void store_bool(u64 at, int i, REAL x) {
    *at_element<u8>(at, i) = x != (REAL)0.0;
}

// The number of a row; -1 for what is none: rows are below 2^31.
DEVICE int index_i32(u64 at) {
    return *at_element<const int>(at, 0);
}
DEVICE int index_i64(u64 at) {
    i64 x = *at_element<const i64>(at, 0);
    return x < 0 || x > 0x7fffffff ? -1 : (int)x;
}
