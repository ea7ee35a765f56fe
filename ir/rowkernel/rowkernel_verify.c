/* rowkernel_verify.c: what a row kernel must be (rowkernel_c1 to c17), and what is proved of its values. */
#include "ir/rowkernel/rowkernel_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Sizes beyond this are refused, so that no product of two of them overflows. */
#define SIZE_LIMIT (INT64_C(1) << 31)

/* What is proved of a value: that it is a whole number from low to high, exact in the type of the arithmetic
 * and in an int. Not proved: low > high. */
typedef struct whole {
    int64_t low, high;
} whole;

typedef struct verifier {
    const sbp_rowkernel *kernel;
    sbp_diag *diag;
    int32_t at;    /* the instruction under test */
    whole *wholes; /* of the instructions before */
} verifier;

static sbp_status SBP_PRINTF(3, 4) fail(const verifier *v, const char *constraint, const char *format, ...) {
    char message[256];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    const char *name = v->kernel->name ? v->kernel->name : "?";
    if (v->at < 0)
        return sbp_fail(v->diag, SBP_INPUT, "rowkernel_%s: kernel '%.80s': %s", constraint, name, message);
    return sbp_fail(v->diag, SBP_INPUT, "rowkernel_%s: kernel '%.80s', %%%d: %s", constraint, name, v->at,
                    message);
}

/* c1: compute is f32 or f64; heads, n, counts within the limits; every name is there. */
static sbp_status verify_kernel(const verifier *v) {
    const sbp_rowkernel *k = v->kernel;
    if (!k->name || !k->name[0])
        return fail(v, "c1", "no name");
    if (k->compute != SBP_F32 && k->compute != SBP_F64)
        return fail(v, "c1", "computes in type number %d, not f32 or f64", (int)k->compute);
    if (k->heads < 1 || k->heads > SIZE_LIMIT || k->n < 1 || k->n > SIZE_LIMIT)
        return fail(v, "c1", "heads %lld, n %lld out of range", (long long)k->heads, (long long)k->n);
    if (k->operand_count < 0 || k->operand_count > SBP_ROWKERNEL_MAX_OPERANDS || k->scalar_count < 0 ||
        k->scalar_count > SBP_ROWKERNEL_MAX_SCALARS || k->instr_count < 0 ||
        k->instr_count > SBP_ROWKERNEL_MAX_INSTRS)
        return fail(v, "c1", "%d operands, %d scalars, %d instructions: at most %d, %d, %d", k->operand_count,
                    k->scalar_count, k->instr_count, SBP_ROWKERNEL_MAX_OPERANDS, SBP_ROWKERNEL_MAX_SCALARS,
                    SBP_ROWKERNEL_MAX_INSTRS);
    if (k->table_count < 0 || k->table_count > SBP_ROWKERNEL_MAX_TABLES)
        return fail(v, "c1", "%d tables: at most %d", k->table_count, SBP_ROWKERNEL_MAX_TABLES);
    for (int32_t i = 0; i < k->scalar_count; i++) {
        if (!k->scalars[i] || !k->scalars[i][0])
            return fail(v, "c1", "scalar %d has no name", i);
        for (int32_t j = 0; j < i; j++)
            if (strcmp(k->scalars[i], k->scalars[j]) == 0)
                return fail(v, "c1", "two scalars named '%.80s'", k->scalars[i]);
    }
    return SBP_OK;
}

/* c2: operand names differ; dtype and mode exist; vary is a set of axes; length and head_stride fit it; an
 * out operand varies with the row and its heads do not overlap; a partial is f32 or f64, without row. */
static sbp_status verify_operand(const verifier *v, int32_t index) {
    const sbp_rowkernel *k = v->kernel;
    const sbp_rk_operand *o = &k->operands[index];
    if (!o->name || !o->name[0])
        return fail(v, "c2", "operand %d has no name", index);
    for (int32_t j = 0; j < index; j++)
        if (strcmp(o->name, k->operands[j].name) == 0)
            return fail(v, "c2", "two operands named '%.80s'", o->name);
    if ((unsigned)o->mode > SBP_RK_PARTIAL || (unsigned)o->dtype >= SBP_DTYPE_COUNT)
        return fail(v, "c2", "operand '%.80s' has no such mode or dtype", o->name);
    if (o->vary & ~(SBP_VARY_ROW | SBP_VARY_HEAD | SBP_VARY_ELEM))
        return fail(v, "c2", "operand '%.80s' varies with an axis that is none", o->name);
    if (o->length < 1 || o->length > SIZE_LIMIT || (!(o->vary & SBP_VARY_ELEM) && o->length != 1))
        return fail(v, "c2", "operand '%.80s' has length %lld", o->name, (long long)o->length);
    if (o->vary & SBP_VARY_HEAD ? o->head_stride < 1 || o->head_stride > SIZE_LIMIT : o->head_stride != 0)
        return fail(v, "c2", "operand '%.80s' has head stride %lld", o->name, (long long)o->head_stride);
    if (o->mode != SBP_RK_IN && (o->vary & SBP_VARY_HEAD) && k->heads > 1 && o->head_stride < o->length)
        return fail(v, "c2", "heads of '%.80s' overlap: stride %lld, length %lld", o->name,
                    (long long)o->head_stride, (long long)o->length);
    if (o->mode == SBP_RK_OUT && !(o->vary & SBP_VARY_ROW))
        return fail(v, "c2", "out operand '%.80s' does not vary with the row", o->name);
    if (o->mode == SBP_RK_PARTIAL && (o->vary & SBP_VARY_ROW))
        return fail(v, "c2", "partial '%.80s' varies with the row", o->name);
    if (o->mode == SBP_RK_PARTIAL && o->dtype != SBP_F32 && o->dtype != SBP_F64)
        return fail(v, "c2", "partial '%.80s' is neither f32 nor f64", o->name);
    return SBP_OK;
}

/* c3: the operation exists; it uses as many values as it takes, each an earlier value and no store; the
 * others are -1. */
static sbp_status verify_values(const verifier *v, const sbp_rk_instr *instr) {
    if ((unsigned)instr->op > SBP_RK_PARTIAL_ADD)
        return fail(v, "c3", "no such operation: %d", (int)instr->op);
    if (instr->op == SBP_RK_MAP && (unsigned)instr->map >= SBP_ROWOP_COUNT)
        return fail(v, "c3", "no such function: %d", (int)instr->map);
    if (instr->op == SBP_RK_INTEGER && (unsigned)instr->integer >= SBP_INTOP_COUNT)
        return fail(v, "c3", "no such function of integers: %d", (int)instr->integer);
    for (int k = 0; k < 3; k++) {
        int32_t value = instr_value(instr, k);
        if (k >= value_count(instr)) {
            if (value != -1)
                return fail(v, "c3", "takes %d values, has one more: %%%d", value_count(instr), value);
        } else if (value < 0 || value >= v->at || sbp_rk_is_store(&v->kernel->instrs[value])) {
            return fail(v, "c3", "uses %%%d, which is no earlier value", value);
        }
    }
    return SBP_OK;
}

/* c4: index names an operand (of that mode), a scalar or a table where one is needed and is -1 elsewhere. */
static sbp_status verify_index(const verifier *v, const sbp_rk_instr *instr) {
    const sbp_rowkernel *k = v->kernel;
    sbp_rk_mode mode = SBP_RK_IN;
    switch (instr->op) {
    case SBP_RK_SCALAR:
    case SBP_RK_RANDOM:
        if (instr->index < 0 || instr->index >= k->scalar_count)
            return fail(v, "c4", "no scalar %d", instr->index);
        return SBP_OK;
    case SBP_RK_LOOKUP:
        if (instr->index < 0 || instr->index >= k->table_count)
            return fail(v, "c4", "no table %d", instr->index);
        return SBP_OK;
    case SBP_RK_LOAD:
        break;
    case SBP_RK_STORE:
        mode = SBP_RK_OUT;
        break;
    case SBP_RK_PARTIAL_ADD:
        mode = SBP_RK_PARTIAL;
        break;
    default:
        if (instr->index != -1)
            return fail(v, "c4", "index %d where there is none", instr->index);
        return SBP_OK;
    }
    if (instr->index < 0 || instr->index >= k->operand_count)
        return fail(v, "c4", "no operand %d", instr->index);
    if (k->operands[instr->index].mode != mode)
        return fail(v, "c4", "operand '%.80s' is of another mode", k->operands[instr->index].name);
    return SBP_OK;
}

/* c5: vary is a set of axes; length is between 1 and n, and 1 without the element axis (stores: of the
 * operand); offset is not negative and 0 where it has no meaning. */
static sbp_status verify_shape(const verifier *v, const sbp_rk_instr *instr) {
    if (instr->vary & ~(SBP_VARY_ROW | SBP_VARY_HEAD | SBP_VARY_ELEM))
        return fail(v, "c5", "varies with an axis that is none");
    if (instr->length < 1 || instr->length > v->kernel->n ||
        (!(instr->vary & SBP_VARY_ELEM) && instr->length != 1))
        return fail(v, "c5", "length %lld (n is %lld)", (long long)instr->length, (long long)v->kernel->n);
    bool has_offset = instr->op == SBP_RK_LOAD || instr->op == SBP_RK_INDEX || instr->op == SBP_RK_RANDOM ||
                      sbp_rk_is_store(instr);
    if (instr->offset < 0 || instr->offset > SIZE_LIMIT || (!has_offset && instr->offset != 0))
        return fail(v, "c5", "offset %lld", (long long)instr->offset);
    return SBP_OK;
}

/* c6: a load has the operand's axes, or all but the element axis when it picks one column; loads, stores and
 * partials stay inside the operand's length. c7: a constant and a scalar vary with nothing, an index with the
 * elements only, a random number with the row at least and its stream with nothing, what stands for its row
 * and head with the row at most. */
static sbp_status verify_source(const verifier *v, const sbp_rk_instr *instr) {
    if (instr->op == SBP_RK_LOAD || sbp_rk_is_store(instr)) {
        const sbp_rk_operand *o = &v->kernel->operands[instr->index];
        bool column =
            instr->op == SBP_RK_LOAD && instr->length == 1 && instr->vary == (o->vary & ~SBP_VARY_ELEM);
        if (instr->vary != o->vary && !column)
            return fail(v, "c6", "its axes are not those of operand '%.80s'", o->name);
        if (instr->offset + instr->length > o->length)
            return fail(v, "c6", "elements %lld to %lld of '%.80s', which has %lld", (long long)instr->offset,
                        (long long)(instr->offset + instr->length), o->name, (long long)o->length);
    }
    if ((instr->op == SBP_RK_CONST || instr->op == SBP_RK_SCALAR) && instr->vary != 0)
        return fail(v, "c7", "a constant or scalar that varies");
    if (instr->op == SBP_RK_INDEX && instr->vary != SBP_VARY_ELEM)
        return fail(v, "c7", "an index that does not vary with the elements alone");
    if (instr->op == SBP_RK_RANDOM && !(instr->vary & SBP_VARY_ROW))
        return fail(v, "c7", "a random number that does not vary with the row");
    if (instr->op == SBP_RK_RANDOM && instr->a >= 0 && v->kernel->instrs[instr->a].vary != 0)
        return fail(v, "c7", "a random number of a stream that varies");
    if (instr->op == SBP_RK_RANDOM && instr->b >= 0 &&
        ((instr->vary & SBP_VARY_HEAD) ||
         ((v->kernel->instrs[instr->b].vary | v->kernel->instrs[instr->c].vary) & ~SBP_VARY_ROW)))
        return fail(v, "c7", "a random number whose row is not one number per row");
    return SBP_OK;
}

/* c8: values of a map that vary along n have equal lengths; axes and length of what computes follow from its
 * values. c9: a rounding is to no bool and no i64. c10: a reduction is over the head or element axis,
 * both, and only axes of its value; axes is 0 elsewhere. */
static sbp_status verify_compute(const verifier *v, const sbp_rk_instr *instr) {
    const sbp_rowkernel *kernel = v->kernel;
    if (sbp_rk_is_reduction(instr)) {
        if (instr->axes == 0 || (instr->axes & ~(SBP_VARY_HEAD | SBP_VARY_ELEM)) ||
            (instr->axes & ~kernel->instrs[instr->a].vary))
            return fail(v, "c10", "reduces over axes its value does not have");
    } else if (instr->axes != 0) {
        return fail(v, "c10", "axes on what is no reduction");
    }
    if (instr->op == SBP_RK_ROUND &&
        ((unsigned)instr->dtype >= SBP_DTYPE_COUNT || instr->dtype == SBP_BOOL || instr->dtype == SBP_I64))
        return fail(v, "c9", "rounds to type number %d", (int)instr->dtype);
    if (value_count(instr) == 0 || instr->op == SBP_RK_RANDOM || sbp_rk_is_store(instr))
        return SBP_OK;
    int64_t length = 0;
    for (int k = 0; k < value_count(instr); k++) {
        const sbp_rk_instr *value = &kernel->instrs[instr_value(instr, k)];
        if (!(value->vary & SBP_VARY_ELEM))
            continue;
        if (length != 0 && value->length != length)
            return fail(v, "c8", "lengths %lld and %lld", (long long)length, (long long)value->length);
        length = value->length;
    }
    uint8_t vary;
    sbp_rowkernel_derive(kernel, instr, &vary, &length);
    if (instr->vary != vary || instr->length != length)
        return fail(v, "c8", "axes or length (%lld) do not follow from its values (%lld)",
                    (long long)instr->length, (long long)length);
    return SBP_OK;
}

/* c11: a stored value has no axis that the operand lacks (a partial sums over rows, and over heads where it
 * lacks them), and the length that is stored, or 1. c12: no element is stored, or added to, twice. c13:
 * stores come last. */
static sbp_status verify_store(const verifier *v, const sbp_rk_instr *instr) {
    const sbp_rowkernel *kernel = v->kernel;
    if (!sbp_rk_is_store(instr)) {
        if (v->at > 0 && sbp_rk_is_store(&kernel->instrs[v->at - 1]))
            return fail(v, "c13", "a value after a store");
        return SBP_OK;
    }
    const sbp_rk_operand *o = &kernel->operands[instr->index];
    const sbp_rk_instr *value = &kernel->instrs[instr->a];
    uint8_t may = o->vary;
    if (instr->op == SBP_RK_PARTIAL_ADD)
        may |= SBP_VARY_ROW | SBP_VARY_HEAD;
    if (value->vary & ~may)
        return fail(v, "c11", "%%%d varies with an axis that operand '%.80s' lacks", instr->a, o->name);
    if ((value->vary & SBP_VARY_ELEM) && value->length != instr->length)
        return fail(v, "c11", "stores %lld elements of %lld", (long long)instr->length,
                    (long long)value->length);
    for (int32_t j = 0; j < v->at; j++) {
        const sbp_rk_instr *other = &kernel->instrs[j];
        if (sbp_rk_is_store(other) && other->index == instr->index &&
            other->offset < instr->offset + instr->length && instr->offset < other->offset + other->length)
            return fail(v, "c12", "elements of '%.80s' that %%%d stores too", o->name, j);
    }
    return SBP_OK;
}

/* c14: tables have names, which differ, and 1 to 16 finite numbers. */
static sbp_status verify_table(const verifier *v, int32_t index) {
    const sbp_rk_table *t = &v->kernel->tables[index];
    if (!t->name || !t->name[0])
        return fail(v, "c14", "table %d has no name", index);
    for (int32_t j = 0; j < index; j++)
        if (strcmp(t->name, v->kernel->tables[j].name) == 0)
            return fail(v, "c14", "two tables named '%.80s'", t->name);
    if (t->count < 1 || t->count > SBP_ROWKERNEL_TABLE_NUMBERS)
        return fail(v, "c14", "table '%.80s' has %d numbers: 1 to %d", t->name, t->count,
                    SBP_ROWKERNEL_TABLE_NUMBERS);
    for (int32_t j = 0; j < t->count; j++)
        if (!isfinite(t->numbers[j]))
            return fail(v, "c14", "number %d of table '%.80s' is not finite", j, t->name);
    return SBP_OK;
}

static const whole not_whole = {.low = 1, .high = 0};

static bool is_whole(whole w) {
    return w.low <= w.high;
}

/* low .. high, where every number of it is exact in the type of the arithmetic and in an int. */
static whole whole_within(const verifier *v, int64_t low, int64_t high) {
    int64_t most = v->kernel->compute == SBP_F32 ? INT64_C(1) << 24 : INT32_MAX;
    return low >= -most && high <= most ? (whole){low, high} : not_whole;
}

static whole whole_type(const verifier *v, sbp_dtype dtype) {
    switch (dtype) {
    case SBP_BOOL:
        return whole_within(v, 0, 1);
    case SBP_I8:
        return whole_within(v, INT8_MIN, INT8_MAX);
    case SBP_I16:
        return whole_within(v, INT16_MIN, INT16_MAX);
    default:
        return not_whole;
    }
}

static whole whole_numbers(const verifier *v, const double *numbers, int32_t count) {
    double low = numbers[0], high = numbers[0];
    for (int32_t i = 0; i < count; i++) {
        if (!(numbers[i] == floor(numbers[i]) && fabs(numbers[i]) <= INT32_MAX))
            return not_whole;
        low = fmin(low, numbers[i]);
        high = fmax(high, numbers[i]);
    }
    return whole_within(v, (int64_t)low, (int64_t)high);
}

static whole whole_map(const verifier *v, const sbp_rk_instr *instr) {
    whole a = v->wholes[instr->a], b = instr->b < 0 ? a : v->wholes[instr->b];
    switch (instr->map) {
    case SBP_ROWOP_eq:
    case SBP_ROWOP_lt:
    case SBP_ROWOP_le:
    case SBP_ROWOP_and:
    case SBP_ROWOP_or:
    case SBP_ROWOP_not:
        return whole_within(v, 0, 1);
    case SBP_ROWOP_select:
        a = v->wholes[instr->c];
        if (!is_whole(a) || !is_whole(b))
            return not_whole;
        return whole_within(v, a.low < b.low ? a.low : b.low, a.high > b.high ? a.high : b.high);
    default:
        break;
    }
    if (!is_whole(a) || !is_whole(b))
        return not_whole;
    switch (instr->map) {
    case SBP_ROWOP_add:
        return whole_within(v, a.low + b.low, a.high + b.high);
    case SBP_ROWOP_sub:
        return whole_within(v, a.low - b.high, a.high - b.low);
    case SBP_ROWOP_mul: {
        const double corners[] = {(double)a.low * (double)b.low, (double)a.low * (double)b.high,
                                  (double)a.high * (double)b.low, (double)a.high * (double)b.high};
        return whole_numbers(v, corners, SBP_COUNT(corners));
    }
    default:
        return not_whole;
    }
}

static whole whole_integer(const verifier *v, const sbp_rk_instr *instr) {
    int64_t low = v->wholes[instr->a].low, high = v->wholes[instr->a].high;
    int32_t p = instr->constants[0], q = instr->constants[1];
    switch (instr->integer) {
#define INTOP(name, arity, constants, value, least, most)                                                    \
    case SBP_INTOP_##name:                                                                                   \
        return whole_within(v, least, most);
#include "ir/rowkernel/intops.def"
#undef INTOP
    case SBP_INTOP_COUNT:
        break;
    }
    return not_whole;
}

static whole find_whole(const verifier *v, const sbp_rk_instr *instr) {
    switch (instr->op) {
    case SBP_RK_LOAD:
        return whole_type(v, v->kernel->operands[instr->index].dtype);
    case SBP_RK_CONST:
        return whole_numbers(v, &instr->imm, 1);
    case SBP_RK_INDEX:
        return whole_within(v, instr->offset, instr->offset + instr->length - 1);
    case SBP_RK_MAP:
        return whole_map(v, instr);
    case SBP_RK_INTEGER:
        return whole_integer(v, instr);
    case SBP_RK_LOOKUP:
        return whole_numbers(v, v->kernel->tables[instr->index].numbers,
                             v->kernel->tables[instr->index].count);
    case SBP_RK_ROUND:
        return whole_type(v, instr->dtype);
    default:
        return not_whole;
    }
}

/* c15: a function of integers takes a value that is proved to be whole, constants that name bits of an int,
 * and what comes out is exact; elsewhere there are no constants. c16: what is looked up is proved to be the
 * number of one of the table's. */
static sbp_status verify_whole(const verifier *v, const sbp_rk_instr *instr) {
    int32_t p = instr->constants[0], q = instr->constants[1];
    if (instr->op != SBP_RK_INTEGER && (p != 0 || q != 0))
        return fail(v, "c15", "constants on what is no function of integers");
    v->wholes[v->at] = not_whole;
    if (instr->op == SBP_RK_INTEGER) {
        int constants = sbp_intop_constants(instr->integer);
        if (p < 0 || p > (constants > 0 ? 30 : 0) || (constants > 1 ? q < 1 || q > 30 - p : q != 0))
            return fail(v, "c15", "there are no bits %d, %d of 31", p, q);
        for (int k = 0; k < value_count(instr); k++)
            if (!is_whole(v->wholes[instr_value(instr, k)]))
                return fail(v, "c15", "%%%d is not known to be a whole number", instr_value(instr, k));
        if (instr->b >= 0 && (v->wholes[instr->b].low < 0 || v->wholes[instr->b].high > 30))
            return fail(v, "c15", "%%%d is not known to be 0 to 30", instr->b);
    }
    v->wholes[v->at] = find_whole(v, instr);
    if (instr->op == SBP_RK_INTEGER && !is_whole(v->wholes[v->at]))
        return fail(v, "c15", "the result may be too large to be exact");
    if (instr->op == SBP_RK_LOOKUP) {
        const sbp_rk_table *t = &v->kernel->tables[instr->index];
        whole a = v->wholes[instr->a];
        if (!is_whole(a) || a.low < 0 || a.high >= t->count)
            return fail(v, "c16", "%%%d is not known to be 0 to %d, as table '%.80s' needs", instr->a,
                        t->count - 1, t->name);
    }
    return SBP_OK;
}

/* c17: names of values differ. */
static sbp_status verify_name(const verifier *v, const sbp_rk_instr *instr) {
    for (int32_t j = 0; j < v->at && instr->name; j++)
        if (v->kernel->instrs[j].name && strcmp(v->kernel->instrs[j].name, instr->name) == 0)
            return fail(v, "c17", "two values named '%.80s'", instr->name);
    return SBP_OK;
}

sbp_status sbp_rowkernel_verify(const sbp_rowkernel *kernel, sbp_diag *diag) {
    whole wholes[SBP_ROWKERNEL_MAX_INSTRS];
    verifier v = {.kernel = kernel, .diag = diag, .at = -1, .wholes = wholes};
    SBP_TRY(verify_kernel(&v));
    for (int32_t i = 0; i < kernel->operand_count; i++)
        SBP_TRY(verify_operand(&v, i));
    for (int32_t i = 0; i < kernel->table_count; i++)
        SBP_TRY(verify_table(&v, i));
    for (v.at = 0; v.at < kernel->instr_count; v.at++) {
        const sbp_rk_instr *instr = &kernel->instrs[v.at];
        SBP_TRY(verify_values(&v, instr));
        SBP_TRY(verify_index(&v, instr));
        SBP_TRY(verify_shape(&v, instr));
        SBP_TRY(verify_source(&v, instr));
        SBP_TRY(verify_compute(&v, instr));
        SBP_TRY(verify_whole(&v, instr));
        SBP_TRY(verify_name(&v, instr));
        SBP_TRY(verify_store(&v, instr));
    }
    return SBP_OK;
}
