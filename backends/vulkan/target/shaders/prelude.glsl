// prelude.glsl: begins every module, after the #version line and these definitions: SBP_MATRIX when there are
// cooperative matrices, SBP_USE_F64 when a double occurs anywhere, SBP_REAL_F64 when values are computed in
// double, and, before it, rowmath.h.

#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_8bit_storage : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_vote : require
#extension GL_KHR_shader_subgroup_arithmetic : require

#ifdef SBP_MATRIX
#extension GL_NV_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#endif

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL = 1u;
#define LANE gl_LocalInvocationIndex
#define DEVICE // of files that are CUDA C as well
#define INOUT(type) inout type

// The argument record (backends/vulkan/abi.h, sbp_vulkan_args).
struct Operand {
    uint64_t address;
    int rows, cols, stride, first_row;
};
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Args {
    uint64_t scratch;
    int64_t row0;
    int rows, count;
    int ints[10];
    float floats[16];
    uvec2 doubles[16];
    uint keys[32];
    Operand operands[24];
};
layout(push_constant, scalar) uniform Push {
    Args args;
};

// Memory by element type.
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer M_f32 { float v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer M_f32x4 { vec4 v; };
layout(buffer_reference, scalar, buffer_reference_align = 1) buffer M_u8 { uint8_t v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 1) buffer M_i8 { int8_t v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 2) buffer M_u16 { uint16_t v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 2) buffer M_i16 { int16_t v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer M_u32 { uint v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer M_i32 { int v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer M_u64 { uint64_t v[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer M_i64 { int64_t v[]; };
#ifdef SBP_USE_F64
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer M_f64 { double v[]; };
#endif

#ifdef SBP_REAL_F64
#define REAL double
#define REAL_FROM_BITS(low, high) packDouble2x32(uvec2(low, high))
#define ARG_NUMBER(i) packDouble2x32(args.doubles[i])
#else
#define REAL float
#define ARG_NUMBER(i) args.floats[i]
#endif

#ifdef SBP_REAL_F64
#define REAL_NAN packDouble2x32(uvec2(0u, 0x7ff80000u))
#else
#define REAL_NAN uintBitsToFloat(0x7fc00000u)
#endif

bool is_nan(float x) {
    return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u;
}
#ifdef SBP_USE_F64
bool is_nan(double x) {
    uvec2 u = unpackDouble2x32(x);
    uint high = u.y & 0x7fffffffu;
    return high > 0x7ff00000u || (high == 0x7ff00000u && u.x != 0u);
}
#endif

// NaN wins, as in ir/rowkernel/rowops.def.
REAL larger(REAL a, REAL b) {
    return a > b || is_nan(a) ? a : b;
}
REAL smaller(REAL a, REAL b) {
    return a < b || is_nan(a) ? a : b;
}

// ---- 16-bit floats by their bits ------------------------------------------------------------------------

float f32_from_bf16(uint u) {
    return uintBitsToFloat(u << 16);
}
uint bf16_from_f32(float x) {
    uint u = floatBitsToUint(x);
    uint rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return is_nan(x) ? (u >> 16) | 0x40u : rounded;
}
float f32_from_f16(uint u) {
    uint rest = u & 0x7fffu, sign = (u & 0x8000u) << 16;
    float normal = uintBitsToFloat((rest << 13) + 0x38000000u);
    float special = uintBitsToFloat(0x7f800000u | (rest << 13));
    float tiny = float(rest) * 5.9604644775390625e-8; // 2^-24
    float x = rest >= 0x7c00u ? special : rest < 0x400u ? tiny : normal;
    return uintBitsToFloat(floatBitsToUint(x) | sign);
}
uint f16_from_f32(float x) {
    uint u = floatBitsToUint(x), rest = u & 0x7fffffffu, sign = (u >> 16) & 0x8000u;
    uint normal = (rest + 0xfffu + ((rest >> 13) & 1u) - 0x38000000u) >> 13;
    // adding 1/2 rounds to a multiple of 2^-24
    uint tiny = floatBitsToUint(uintBitsToFloat(rest) + 0.5) - 0x3f000000u;
    uint y = rest < 0x38800000u ? tiny : normal;
    y = rest >= 0x477ff000u ? 0x7c00u : y;
    y = rest > 0x7f800000u ? 0x7e00u : y;
    return y | sign;
}
#ifdef SBP_USE_F64
// Rounded so that rounding once more to fewer bits is the same as rounding x once ("to odd").
float f32_for_rounding(double x) {
    float f = float(x);
    double back = double(f);
    uint u = floatBitsToUint(f);
    bool inexact = back != x && !is_nan(f) && (u & 0x7fffffffu) < 0x7f800000u;
    bool beyond = abs(back) > abs(x);
    uint truncated = beyond ? u - 1u : u;
    return inexact ? uintBitsToFloat(truncated | 1u) : f;
}
uint bf16_from(double x) {
    return bf16_from_f32(f32_for_rounding(x));
}
uint f16_from(double x) {
    return f16_from_f32(f32_for_rounding(x));
}
#endif
uint bf16_from(float x) {
    return bf16_from_f32(x);
}
uint f16_from(float x) {
    return f16_from_f32(x);
}

// ---- elements: address of a row, number of the element in it --------------------------------------------

REAL load_f32(uint64_t at, int i) {
    return REAL(M_f32(at).v[i]);
}
REAL load_bf16(uint64_t at, int i) {
    return REAL(f32_from_bf16(uint(M_u16(at).v[i])));
}
REAL load_f16(uint64_t at, int i) {
    return REAL(f32_from_f16(uint(M_u16(at).v[i])));
}
REAL load_i8(uint64_t at, int i) {
    return REAL(int(M_i8(at).v[i]));
}
REAL load_i16(uint64_t at, int i) {
    return REAL(int(M_i16(at).v[i]));
}
REAL load_bool(uint64_t at, int i) {
    return uint(M_u8(at).v[i]) != 0u ? REAL(1.0) : REAL(0.0);
}
REAL load_i32(uint64_t at, int i) {
    return REAL(M_i32(at).v[i]);
}
REAL load_i64(uint64_t at, int i) {
    return REAL(M_i64(at).v[i]);
}
void store_f32(uint64_t at, int i, REAL x) {
    M_f32(at).v[i] = float(x);
}
void store_bf16(uint64_t at, int i, REAL x) {
    M_u16(at).v[i] = uint16_t(bf16_from(x));
}
void store_f16(uint64_t at, int i, REAL x) {
    M_u16(at).v[i] = uint16_t(f16_from(x));
}
void store_bool(uint64_t at, int i, REAL x) {
    M_u8(at).v[i] = uint8_t(x != REAL(0.0) ? 1u : 0u);
}
// The nearest integer, of two that are as near the even one. By floor, as roundEven depends on the driver:
// lavapipe (Mesa 22.3) rounds 127.5 to 127 where the CPU has AVX2 and no AVX-512.
REAL nearest(REAL x) {
    REAL below = floor(x), rest = x - below;
    bool odd = floor(below * REAL(0.5)) * REAL(2.0) != below;
    return rest > REAL(0.5) || (rest == REAL(0.5) && odd) ? below + REAL(1.0) : below;
}
// Rounded to nearest, saturating; NaN becomes 0.
int to_i32(REAL x) {
    REAL r = nearest(x);
    int y = r >= REAL(2147483648.0) ? 0x7fffffff : r <= REAL(-2147483648.0) ? int(0x80000000u) : int(r);
    return is_nan(x) ? 0 : y;
}
void store_i8(uint64_t at, int i, REAL x) {
    M_i8(at).v[i] = int8_t(clamp(to_i32(x), -128, 127));
}
void store_i16(uint64_t at, int i, REAL x) {
    M_i16(at).v[i] = int16_t(clamp(to_i32(x), -32768, 32767));
}
void store_i32(uint64_t at, int i, REAL x) {
    M_i32(at).v[i] = to_i32(x);
}
void store_i64(uint64_t at, int i, REAL x) {
    REAL r = nearest(x);
    int64_t y = r >= REAL(9223372036854775808.0)    ? int64_t(0x7fffffffffffffffUL)
                : r <= REAL(-9223372036854775808.0) ? int64_t(0x8000000000000000UL)
                                                    : int64_t(r);
    M_i64(at).v[i] = is_nan(x) ? int64_t(0) : y;
}
#ifdef SBP_USE_F64
REAL load_f64(uint64_t at, int i) {
    return REAL(M_f64(at).v[i]);
}
void store_f64(uint64_t at, int i, REAL x) {
    M_f64(at).v[i] = double(x);
}
#endif
int index_i32(uint64_t at) {
    return M_i32(at).v[0];
}
int index_i64(uint64_t at) { // rows are below 2^31; what is not becomes -1
    int64_t x = M_i64(at).v[0];
    return x < 0 || x > int64_t(0x7fffffff) ? -1 : int(x);
}

uint64_t row_address(Operand o, int row, int bytes) {
    return o.address + uint64_t(row) * uint64_t(o.stride) * uint64_t(bytes);
}

// ---- where this invocation stands -----------------------------------------------------------------------

// Number of this workgroup (backends/vulkan/args.c, set_groups).
uint group_number() {
    return gl_WorkGroupID.y * 65535u + gl_WorkGroupID.x;
}
// Row and column of this invocation among rows of `width` elements.
void flat_position(uint width, out uint row, out uint column) {
    uint64_t start = uint64_t(group_number()) * LOCAL;
    uint rest = uint(start % width) + LANE;
    row = uint(start / width) + rest / width;
    column = rest % width;
}
