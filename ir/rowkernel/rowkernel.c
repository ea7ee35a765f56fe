/* rowkernel.c: functions by name, building, levels and aliasing of row kernels. */
#include "ir/rowkernel/rowkernel_internal.h"

#include <math.h>
#include <string.h>

/* ---- scalar functions ----------------------------------------------------------------------------- */

static const struct {
    const char *name, *vjp;
    int arity, cost;
} rowops[SBP_ROWOP_COUNT] = {
#define ROWOP(name, arity, cost, vjp, value) {#name, vjp, arity, cost},
#include "ir/rowkernel/rowops.def"
#undef ROWOP
};

/* Bits of (float)a. */
static uint32_t bits_of(double a) {
    float narrow = (float)a;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    return bits;
}

static double from_bits(uint32_t bits) {
    float narrow;
    memcpy(&narrow, &bits, sizeof narrow);
    return (double)narrow;
}

double sbp_bf16_high(double a) {
    uint16_t high;
    int16_t low;
    sbp_f32_split((float)a, &high, &low);
    return isnan(a) ? a : (double)sbp_f32_from_bf16(high);
}

double sbp_bf16_low(double a) {
    uint16_t high;
    int16_t low;
    sbp_f32_split((float)a, &high, &low);
    return isnan(a) ? 0 : low;
}

double sbp_bf16_join(double high, double low) {
    int32_t offset = (int32_t)sbp_round_to(SBP_I16, (double)(float)low);
    return isnan(high) ? high : from_bits(bits_of(high) + (uint32_t)offset);
}

double sbp_bf16_random(double a, double u) {
    double units = floor((double)(float)u * 65536);
    uint32_t added = units >= 65535 ? 65535 : units > 0 ? (uint32_t)units : 0;
    return isnan(a) ? a : from_bits((bits_of(a) + added) & 0xffff0000);
}

const char *sbp_rowop_name(sbp_rowop op) {
    return rowops[op].name;
}

int sbp_rowop_arity(sbp_rowop op) {
    return rowops[op].arity;
}

const char *sbp_rowop_vjp(sbp_rowop op) {
    return rowops[op].vjp;
}

int sbp_rowop_cost(sbp_rowop op) {
    return rowops[op].cost;
}

double sbp_rowop_eval(sbp_rowop op, double a, double b, double c) {
    switch (op) {
#define ROWOP(name, arity, cost, vjp, value)                                                                 \
    case SBP_ROWOP_##name:                                                                                   \
        return value;
#include "ir/rowkernel/rowops.def"
#undef ROWOP
    case SBP_ROWOP_COUNT:
        break;
    }
    return (double)NAN;
}

sbp_rowop sbp_rowop_from_name(const char *name) {
    for (int op = 0; op < SBP_ROWOP_COUNT; op++)
        if (strcmp(rowops[op].name, name) == 0)
            return (sbp_rowop)op;
    return SBP_ROWOP_COUNT;
}

static const struct {
    const char *name, *text;
    int arity, constants;
} intops[SBP_INTOP_COUNT] = {
#define INTOP(name, arity, constants, value, low, high) {#name, #value, arity, constants},
#include "ir/rowkernel/intops.def"
#undef INTOP
};

const char *sbp_intop_name(sbp_intop op) {
    return intops[op].name;
}

int sbp_intop_arity(sbp_intop op) {
    return intops[op].arity;
}

int sbp_intop_constants(sbp_intop op) {
    return intops[op].constants;
}

const char *sbp_intop_text(sbp_intop op) {
    return intops[op].text;
}

int32_t sbp_intop_eval(sbp_intop op, int32_t x, int32_t p, int32_t q) {
    switch (op) {
#define INTOP(name, arity, constants, value, low, high)                                                      \
    case SBP_INTOP_##name:                                                                                   \
        return value;
#include "ir/rowkernel/intops.def"
#undef INTOP
    case SBP_INTOP_COUNT:
        break;
    }
    return 0;
}

sbp_intop sbp_intop_from_name(const char *name) {
    for (int op = 0; op < SBP_INTOP_COUNT; op++)
        if (strcmp(intops[op].name, name) == 0)
            return (sbp_intop)op;
    return SBP_INTOP_COUNT;
}

/* ---- building ------------------------------------------------------------------------------------- */

sbp_rowkernel *sbp_rowkernel_create(sbp_arena *arena, const char *name, sbp_dtype compute) {
    sbp_rowkernel *kernel = SBP_NEW(arena, sbp_rowkernel);
    kernel->name = name;
    kernel->compute = compute;
    kernel->heads = 1;
    kernel->n = 1;
    return kernel;
}

int32_t sbp_rowkernel_add_operand(sbp_arena *arena, sbp_rowkernel *kernel, const sbp_rk_operand *operand) {
    SBP_PUSH(arena, kernel->operands, kernel->operand_count, kernel->operand_capacity, *operand);
    return kernel->operand_count - 1;
}

int32_t sbp_rowkernel_add_scalar(sbp_arena *arena, sbp_rowkernel *kernel, const char *name) {
    SBP_PUSH(arena, kernel->scalars, kernel->scalar_count, kernel->scalar_capacity, name);
    return kernel->scalar_count - 1;
}

int32_t sbp_rowkernel_add_table(sbp_arena *arena, sbp_rowkernel *kernel, const sbp_rk_table *table) {
    SBP_PUSH(arena, kernel->tables, kernel->table_count, kernel->table_capacity, *table);
    return kernel->table_count - 1;
}

void sbp_rowkernel_derive(const sbp_rowkernel *kernel, const sbp_rk_instr *instr, uint8_t *vary,
                          int64_t *length) {
    *vary = 0;
    *length = 1;
    for (int k = 0; k < value_count(instr); k++) {
        const sbp_rk_instr *value = &kernel->instrs[instr_value(instr, k)];
        *vary |= value->vary;
        if (value->vary & SBP_VARY_ELEM)
            *length = value->length;
    }
    if (sbp_rk_is_reduction(instr)) {
        *vary = (uint8_t)(*vary & ~instr->axes);
        if (instr->axes & SBP_VARY_ELEM)
            *length = 1;
    }
}

int32_t sbp_rowkernel_add(sbp_arena *arena, sbp_rowkernel *kernel, const sbp_rk_instr *instr) {
    sbp_rk_instr add = *instr;
    if (add.length == 0) {
        switch (add.op) {
        case SBP_RK_CONST:
        case SBP_RK_SCALAR:
        case SBP_RK_INDEX:
        case SBP_RK_RANDOM:
            add.length = 1;
            break;
        case SBP_RK_LOAD:
        case SBP_RK_STORE:
        case SBP_RK_PARTIAL_ADD:
            add.vary = kernel->operands[add.index].vary;
            add.length = kernel->operands[add.index].length;
            break;
        default:
            sbp_rowkernel_derive(kernel, &add, &add.vary, &add.length);
        }
    }
    if (kernel->n < add.length)
        kernel->n = add.length;
    SBP_PUSH(arena, kernel->instrs, kernel->instr_count, kernel->instr_capacity, add);
    return kernel->instr_count - 1;
}

/* ---- levels and aliasing -------------------------------------------------------------------------- */

static double instr_ops(const sbp_rk_instr *instr) {
    switch (instr->op) {
    case SBP_RK_CONST:
    case SBP_RK_SCALAR:
    case SBP_RK_INDEX:
        return 0;
    case SBP_RK_RANDOM:
        return 3 * rowops[SBP_ROWOP_exp].cost;
    case SBP_RK_MAP:
        return rowops[instr->map].cost;
    default:
        return 1;
    }
}

double sbp_rowkernel_ops(const sbp_rowkernel *kernel) {
    double ops = 0;
    for (int32_t i = 0; i < kernel->instr_count; i++) {
        const sbp_rk_instr *instr = &kernel->instrs[i];
        bool reduction = sbp_rk_is_reduction(instr); /* as many as it takes in */
        const sbp_rk_instr *shape = reduction ? &kernel->instrs[instr->a] : instr;
        ops += instr_ops(instr) * (double)(shape->vary & SBP_VARY_HEAD ? kernel->heads : 1) *
               (double)(shape->vary & SBP_VARY_ELEM ? shape->length : 1);
    }
    return ops;
}

void sbp_rowkernel_levels(const sbp_rowkernel *kernel, int32_t *levels) {
    for (int32_t i = 0; i < kernel->instr_count; i++) {
        const sbp_rk_instr *instr = &kernel->instrs[i];
        int32_t level = 0;
        for (int k = 0; k < value_count(instr); k++)
            if (levels[instr_value(instr, k)] > level)
                level = levels[instr_value(instr, k)];
        levels[i] = level + sbp_rk_is_reduction(instr);
    }
}

/* The store of `out` that covers exactly what `load` reads, or -1. */
static int32_t store_over(const sbp_rowkernel *kernel, int32_t out, const sbp_rk_instr *load) {
    for (int32_t i = 0; i < kernel->instr_count; i++) {
        const sbp_rk_instr *instr = &kernel->instrs[i];
        if (instr->op == SBP_RK_STORE && instr->index == out && instr->offset == load->offset &&
            instr->length == load->length)
            return i;
    }
    return -1;
}

/* Whether everything that reads the memory of `load` has read it when `store` overwrites it. A pass reads the
 * element again wherever it needs it: elementwise, up to the reductions and stores that are the pass's
 * purpose. */
static bool read_in_time(const sbp_rowkernel *kernel, const int32_t *levels, int32_t load, int32_t store) {
    bool reads[SBP_ROWKERNEL_MAX_INSTRS] = {false}; /* elementwise, from the load */
    uint8_t own = kernel->instrs[load].vary;
    bool apart = own != kernel->instrs[store].vary; /* the store runs in another loop than the load */
    reads[load] = true;
    for (int32_t i = load + 1; i < kernel->instr_count; i++) {
        const sbp_rk_instr *instr = &kernel->instrs[i];
        bool any = false;
        for (int k = 0; k < value_count(instr); k++)
            any |= reads[instr_value(instr, k)];
        if (!any)
            continue;
        if (!sbp_rk_is_reduction(instr) && !sbp_rk_is_store(instr)) {
            reads[i] = true;
            continue;
        }
        /* The end of a chain. One that runs along an axis the load does not have reads the same memory
         * again at every step: its pass must be over before the store's begins. */
        uint8_t chain = kernel->instrs[instr->a].vary;
        if (sbp_rk_is_store(instr))
            chain |= instr->vary;
        unsigned more = chain & (SBP_VARY_HEAD | SBP_VARY_ELEM) & ~own;
        bool again = apart || more != 0;
        int32_t level = levels[instr->a];
        /* In a kernel of several passes a store that does not vary with the element comes last in its pass.
         */
        if (!apart && more == SBP_VARY_ELEM && levels[store] > 0)
            again = false;
        if (again ? level >= levels[store] : level > levels[store])
            return false;
    }
    return true;
}

bool sbp_rowkernel_may_alias(const sbp_rowkernel *kernel, int32_t out, int32_t in) {
    const sbp_rk_operand *o = &kernel->operands[out], *i = &kernel->operands[in];
    if (o->mode != SBP_RK_OUT || i->mode != SBP_RK_IN ||
        sbp_dtype_bytes(o->dtype) != sbp_dtype_bytes(i->dtype) || o->vary != i->vary ||
        o->length != i->length || o->head_stride != i->head_stride)
        return false;
    int32_t levels[SBP_ROWKERNEL_MAX_INSTRS];
    sbp_rowkernel_levels(kernel, levels);
    for (int32_t k = 0; k < kernel->instr_count; k++) {
        const sbp_rk_instr *instr = &kernel->instrs[k];
        if (instr->op != SBP_RK_LOAD || instr->index != in)
            continue;
        int32_t store = store_over(kernel, out, instr);
        if (store < 0 || !read_in_time(kernel, levels, k, store))
            return false;
    }
    return true;
}
