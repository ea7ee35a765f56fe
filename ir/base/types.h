/* types.h: element types, symbolic sizes and tensor types, shared by both IRs.
 *
 * Symbols. T is the number of packed rows of a micro-batch, S the number of groups in it, C the number
 * of rows of the current chunk, H the number of rows of the current chunk of the head, N the number of
 * chunks, T / C rounded up. Where several ranks
 * have rows of one micro-batch (ir/base/context.h), these are the rank's own; W is the number of rows of all
 * of them, D that of the current chunks of all. In the graph IR a dimension is a constant or one symbol; in
 * the program IR an extent is a linear form over them.
 */
#ifndef SBP_IR_BASE_TYPES_H
#define SBP_IR_BASE_TYPES_H

#include "ir/base/base.h"

typedef enum sbp_dtype {
#define DTYPE(id, text, bytes, class) SBP_##id,
#include "ir/base/dtypes.def"
#undef DTYPE
    SBP_DTYPE_COUNT
} sbp_dtype;

const char *sbp_dtype_name(sbp_dtype dtype);
/* As options and messages spell it: "fp32", "int8". */
const char *sbp_dtype_spelling(sbp_dtype dtype);
int64_t sbp_dtype_bytes(sbp_dtype dtype);
bool sbp_dtype_is_float(sbp_dtype dtype);
/* d8, ud8. */
bool sbp_dtype_is_dynamic(sbp_dtype dtype);
bool sbp_dtype_from_name(const char *name, size_t length, sbp_dtype *out);

/* Conversions of single values; rounding is to nearest, ties to even. NaN stays NaN. */
uint16_t sbp_bf16_from_f32(float value);
float sbp_f32_from_bf16(uint16_t bits);
uint16_t sbp_f16_from_f32(float value);
float sbp_f32_from_f16(uint16_t bits);
/* A number in two halves: value = bits(high << 16) + low, both added as integers, `high` a bf16 that is
 * nearest (halves away from 0). Each number has one such pair, and each pair is one number. */
void sbp_f32_split(float value, uint16_t *high, int16_t *low);
float sbp_f32_join(uint16_t high, int16_t low);
/* Element `index` of an array of `dtype`, as a double, and back: rounded to nearest, ties to even (d8, ud8:
 * ir/base/dynamic.h); integers saturate, NaN becomes 0 in them; a bool is whether the value is not 0. */
double sbp_element_get(const void *data, sbp_dtype dtype, int64_t index);
void sbp_element_set(void *data, sbp_dtype dtype, int64_t index, double value);
/* value as an element of that type has it. */
double sbp_round_to(sbp_dtype dtype, double value);

/* How a parameter begins when no file holds it. */
typedef enum sbp_init { SBP_INIT_NORMAL, SBP_INIT_ZEROS, SBP_INIT_ONES, SBP_INIT_UNIFORM } sbp_init;

/* Whose files hold a parameter: the model's, or those of an adapter, which lie apart from it. */
typedef enum sbp_owner { SBP_OF_MODEL, SBP_OF_ADAPTER } sbp_owner;

typedef enum sbp_symbol {
    SBP_ONE, /* no symbol: a constant */
    SBP_T,
    SBP_S,
    SBP_C,
    SBP_H,
    SBP_W,
    SBP_D,
    SBP_N,
    SBP_SYMBOL_COUNT
} sbp_symbol;

/* "T", "S", "C", "H", "W", "D", "N"; "1" for SBP_ONE. */
const char *sbp_symbol_name(sbp_symbol symbol);

/* A dimension of a graph value: `n` when symbol is SBP_ONE, else the symbol (n is 0), which is not N. */
typedef struct sbp_dim {
    int64_t n;
    sbp_symbol symbol;
} sbp_dim;

#define SBP_MAX_RANK 6

/* Shape and element type of a graph value. The row axis, when there is one, is axis 0. */
typedef struct sbp_type {
    sbp_dtype dtype;
    int32_t rank;
    sbp_dim dim[SBP_MAX_RANK];
} sbp_type;

sbp_dim sbp_dim_const(int64_t n);
sbp_dim sbp_dim_symbol(sbp_symbol symbol);
bool sbp_dim_equal(sbp_dim a, sbp_dim b);
bool sbp_type_equal(const sbp_type *a, const sbp_type *b);
bool sbp_type_same_shape(const sbp_type *a, const sbp_type *b);
/* The symbol of axis 0, or SBP_ONE when the value has no row axis. */
sbp_symbol sbp_type_rows(const sbp_type *type);
/* Elements per row: the product of the constant dimensions; INT64_MAX when that does not fit. */
int64_t sbp_type_row_elems(const sbp_type *type);
/* Whether every dimension is 0 .. 2^31-1, only the first is a symbol, and a row has at most 2^56 elements. */
bool sbp_type_is_valid(const sbp_type *type);
/* "f32[T,9,64]"; "f64[]" for a scalar. */
void sbp_type_print(sbp_text *out, const sbp_type *type);

/* A linear form over the symbols: c[SBP_ONE] + c[SBP_T] T + ... */
typedef struct sbp_extent {
    int64_t c[SBP_SYMBOL_COUNT];
} sbp_extent;

/* What the symbols stand for; v[SBP_ONE] is 1. */
typedef struct sbp_sizes {
    int64_t v[SBP_SYMBOL_COUNT];
} sbp_sizes;

sbp_extent sbp_extent_const(int64_t n);
sbp_extent sbp_extent_symbol(sbp_symbol symbol, int64_t factor);
sbp_extent sbp_extent_add(sbp_extent a, sbp_extent b);
bool sbp_extent_equal(sbp_extent a, sbp_extent b);
/* The constant when no symbol occurs, else -1. */
int64_t sbp_extent_as_const(sbp_extent extent);
/* False on overflow. */
bool sbp_extent_eval(sbp_extent extent, const sbp_sizes *sizes, int64_t *out);
/* "2*T+C+5"; "0" when empty. */
void sbp_extent_print(sbp_text *out, sbp_extent extent);

#endif
