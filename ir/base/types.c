/* types.c: element types, tensor types, extents. */
#include "ir/base/types.h"

#include "ir/base/dynamic.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    int64_t bytes;
    char class;
} dtypes[SBP_DTYPE_COUNT] = {
#define DTYPE(id, text, bytes, class) {text, bytes, #class[0]},
#include "ir/base/dtypes.def"
#undef DTYPE
};

const char *sbp_dtype_name(sbp_dtype dtype) {
    return dtypes[dtype].name;
}

const char *sbp_dtype_spelling(sbp_dtype dtype) {
    if (sbp_dtype_is_dynamic(dtype))
        return "int8";
    if (!sbp_dtype_is_float(dtype) || dtype == SBP_BF16)
        return sbp_dtype_name(dtype);
    return dtype == SBP_F64 ? "fp64" : dtype == SBP_F32 ? "fp32" : "fp16";
}

int64_t sbp_dtype_bytes(sbp_dtype dtype) {
    return dtypes[dtype].bytes;
}

bool sbp_dtype_is_float(sbp_dtype dtype) {
    return dtypes[dtype].class == 'F';
}

bool sbp_dtype_is_dynamic(sbp_dtype dtype) {
    return dtypes[dtype].class == 'D';
}

bool sbp_dtype_from_name(const char *name, size_t length, sbp_dtype *out) {
    for (int i = 0; i < SBP_DTYPE_COUNT; i++)
        if (strlen(dtypes[i].name) == length && memcmp(dtypes[i].name, name, length) == 0) {
            *out = (sbp_dtype)i;
            return true;
        }
    return false;
}

uint16_t sbp_bf16_from_f32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (isnan(value))
        return (uint16_t)((bits >> 16) | 0x40);
    bits += 0x7fff + ((bits >> 16) & 1);
    return (uint16_t)(bits >> 16);
}

void sbp_f32_split(float value, uint16_t *high, int16_t *low) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    *high = (uint16_t)((bits + 0x8000) >> 16);
    *low = (int16_t)(uint16_t)bits;
}

float sbp_f32_join(uint16_t high, int16_t low) {
    uint32_t bits = ((uint32_t)high << 16) + (uint32_t)(int32_t)low;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

float sbp_f32_from_bf16(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

uint16_t sbp_f16_from_f32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint16_t sign = (uint16_t)((bits >> 16) & 0x8000);
    uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x477ff000) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) { /* subnormal: a multiple of 2^-24 */
        float scaled = fabsf(value) * 0x1p24f;
        return (uint16_t)(sign | (uint16_t)rintf(scaled));
    }
    uint32_t rounded = magnitude - 0x38000000;
    rounded += 0xfff + ((rounded >> 13) & 1);
    return (uint16_t)(sign | (uint16_t)(rounded >> 13));
}

float sbp_f32_from_f16(uint16_t bits) {
    uint32_t exponent = (bits >> 10) & 31, mantissa = bits & 0x3ff;
    float sign = bits & 0x8000 ? -1.0f : 1.0f;
    if (exponent == 31)
        return mantissa ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * (float)mantissa * 0x1p-24f;
    return sign * ldexpf((float)(mantissa | 0x400), (int)exponent - 25);
}

double sbp_element_get(const void *data, sbp_dtype dtype, int64_t index) {
    switch (dtype) {
    case SBP_F64:
        return ((const double *)data)[index];
    case SBP_F32:
        return (double)((const float *)data)[index];
    case SBP_BF16:
        return (double)sbp_f32_from_bf16(((const uint16_t *)data)[index]);
    case SBP_F16:
        return (double)sbp_f32_from_f16(((const uint16_t *)data)[index]);
    case SBP_I8:
        return (double)((const int8_t *)data)[index];
    case SBP_I16:
        return (double)((const int16_t *)data)[index];
    case SBP_I32:
        return (double)((const int32_t *)data)[index];
    case SBP_I64:
        return (double)((const int64_t *)data)[index];
    case SBP_BOOL:
        return ((const uint8_t *)data)[index] ? 1 : 0;
    case SBP_D8:
        return (double)sbp_d8_numbers[((const uint8_t *)data)[index]];
    case SBP_UD8:
        return (double)sbp_ud8_numbers[((const uint8_t *)data)[index]];
    case SBP_DTYPE_COUNT:
        break;
    }
    return NAN;
}

/* A double rounded to odd in fp32, so that a second rounding to 16 bits is as good as one. */
static float to_odd_f32(double value) {
    float near = (float)value;
    if (!isfinite(near) || (double)near == value)
        return near;
    float low = (double)near < value ? near : nextafterf(near, -INFINITY);
    float high = nextafterf(low, INFINITY);
    uint32_t bits;
    memcpy(&bits, &low, 4);
    return bits & 1 ? low : high;
}

static double to_integer(double value, double low, double high) {
    return isnan(value) ? 0 : value < low ? low : value > high ? high : rint(value);
}

void sbp_element_set(void *data, sbp_dtype dtype, int64_t index, double value) {
    switch (dtype) {
    case SBP_F64:
        ((double *)data)[index] = value;
        break;
    case SBP_F32:
        ((float *)data)[index] = (float)value;
        break;
    case SBP_BF16:
        ((uint16_t *)data)[index] = sbp_bf16_from_f32(to_odd_f32(value));
        break;
    case SBP_F16:
        ((uint16_t *)data)[index] = sbp_f16_from_f32(to_odd_f32(value));
        break;
    case SBP_I8:
        ((int8_t *)data)[index] = (int8_t)to_integer(value, INT8_MIN, INT8_MAX);
        break;
    case SBP_I16:
        ((int16_t *)data)[index] = (int16_t)to_integer(value, INT16_MIN, INT16_MAX);
        break;
    case SBP_I32:
        ((int32_t *)data)[index] = (int32_t)to_integer(value, INT32_MIN, INT32_MAX);
        break;
    case SBP_I64:
        ((int64_t *)data)[index] =
            value >= 0x1p63 ? INT64_MAX : (int64_t)to_integer(value, (double)INT64_MIN, 0x1p63);
        break;
    case SBP_BOOL:
        ((uint8_t *)data)[index] = value != 0;
        break;
    case SBP_D8:
        ((uint8_t *)data)[index] = sbp_d8_from_f32((float)value);
        break;
    case SBP_UD8:
        ((uint8_t *)data)[index] = sbp_ud8_from_f32((float)value);
        break;
    case SBP_DTYPE_COUNT:
        break;
    }
}

double sbp_round_to(sbp_dtype dtype, double value) {
    double box = 0;
    sbp_element_set(&box, dtype, 0, value);
    return sbp_element_get(&box, dtype, 0);
}

const char *sbp_symbol_name(sbp_symbol symbol) {
    static const char *const names[SBP_SYMBOL_COUNT] = {"1", "T", "S", "C", "H", "W", "D", "N"};
    return names[symbol];
}

sbp_dim sbp_dim_const(int64_t n) {
    return (sbp_dim){.n = n, .symbol = SBP_ONE};
}

sbp_dim sbp_dim_symbol(sbp_symbol symbol) {
    return (sbp_dim){.n = 0, .symbol = symbol};
}

bool sbp_dim_equal(sbp_dim a, sbp_dim b) {
    return a.n == b.n && a.symbol == b.symbol;
}

bool sbp_type_same_shape(const sbp_type *a, const sbp_type *b) {
    if (a->rank != b->rank)
        return false;
    for (int i = 0; i < a->rank; i++)
        if (!sbp_dim_equal(a->dim[i], b->dim[i]))
            return false;
    return true;
}

bool sbp_type_equal(const sbp_type *a, const sbp_type *b) {
    return a->dtype == b->dtype && sbp_type_same_shape(a, b);
}

sbp_symbol sbp_type_rows(const sbp_type *type) {
    return type->rank > 0 ? type->dim[0].symbol : SBP_ONE;
}

int64_t sbp_type_row_elems(const sbp_type *type) {
    int64_t n = 1;
    for (int i = 0; i < type->rank; i++)
        if (type->dim[i].symbol == SBP_ONE && !sbp_mul_i64(n, type->dim[i].n, &n))
            return INT64_MAX;
    return n;
}

bool sbp_type_is_valid(const sbp_type *type) {
    if (type->rank < 0 || type->rank > SBP_MAX_RANK)
        return false;
    for (int i = 0; i < type->rank; i++)
        if (type->dim[i].n < 0 || type->dim[i].n > INT32_MAX ||
            (type->dim[i].symbol != SBP_ONE && (i > 0 || type->dim[i].n != 0)))
            return false;
    return sbp_type_row_elems(type) <= (int64_t)1 << 56;
}

void sbp_type_print(sbp_text *out, const sbp_type *type) {
    sbp_text_add(out, "%s[", sbp_dtype_name(type->dtype));
    for (int i = 0; i < type->rank; i++) {
        if (i)
            sbp_text_add(out, ",");
        if (type->dim[i].symbol == SBP_ONE)
            sbp_text_add(out, "%lld", (long long)type->dim[i].n);
        else
            sbp_text_add(out, "%s", sbp_symbol_name(type->dim[i].symbol));
    }
    sbp_text_add(out, "]");
}

sbp_extent sbp_extent_const(int64_t n) {
    return sbp_extent_symbol(SBP_ONE, n);
}

sbp_extent sbp_extent_symbol(sbp_symbol symbol, int64_t factor) {
    sbp_extent extent = {{0}};
    extent.c[symbol] = factor;
    return extent;
}

sbp_extent sbp_extent_add(sbp_extent a, sbp_extent b) {
    for (int s = 0; s < SBP_SYMBOL_COUNT; s++)
        a.c[s] += b.c[s];
    return a;
}

bool sbp_extent_equal(sbp_extent a, sbp_extent b) {
    return memcmp(a.c, b.c, sizeof a.c) == 0;
}

int64_t sbp_extent_as_const(sbp_extent extent) {
    for (int s = 1; s < SBP_SYMBOL_COUNT; s++)
        if (extent.c[s] != 0)
            return -1;
    return extent.c[SBP_ONE];
}

bool sbp_extent_eval(sbp_extent extent, const sbp_sizes *sizes, int64_t *out) {
    int64_t sum = 0;
    for (int s = 0; s < SBP_SYMBOL_COUNT; s++) {
        int64_t term;
        if (extent.c[s] != 0 && (!sbp_mul_i64(extent.c[s], s == SBP_ONE ? 1 : sizes->v[s], &term) ||
                                 !sbp_add_i64(sum, term, &sum)))
            return false;
    }
    *out = sum;
    return true;
}

void sbp_extent_print(sbp_text *out, sbp_extent extent) {
    bool any = false;
    for (int s = 1; s <= SBP_SYMBOL_COUNT; s++) { /* symbols first, the constant last */
        int symbol = s % SBP_SYMBOL_COUNT;
        int64_t factor = extent.c[symbol];
        if (factor == 0)
            continue;
        if (any && factor > 0)
            sbp_text_add(out, "+");
        if (symbol == SBP_ONE)
            sbp_text_add(out, "%lld", (long long)factor);
        else if (factor == 1)
            sbp_text_add(out, "%s", sbp_symbol_name((sbp_symbol)symbol));
        else
            sbp_text_add(out, "%lld*%s", (long long)factor, sbp_symbol_name((sbp_symbol)symbol));
        any = true;
    }
    if (!any)
        sbp_text_add(out, "0");
}
