/* rowkernel_random.h: random valid row kernels, for the tests of the kernel IR and of the devices. */
#ifndef SBP_TESTS_ROWKERNEL_RANDOM_H
#define SBP_TESTS_ROWKERNEL_RANDOM_H

#include "ir/rowkernel/rowkernel.h"

/* splitmix64 (Steele, Lea, Flood 2014) */
typedef struct sbp_rng {
    uint64_t state;
} sbp_rng;

static inline uint64_t sbp_rng_next(sbp_rng *rng) {
    uint64_t z = rng->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* 0 .. n-1 */
static inline int64_t sbp_rng_below(sbp_rng *rng, int64_t n) {
    return (int64_t)(sbp_rng_next(rng) % (uint64_t)n);
}

/* in [-1, 1) */
static inline double sbp_rng_unit(sbp_rng *rng) {
    return (double)(int64_t)(sbp_rng_next(rng) >> 11) * 0x1p-52 - 1;
}

typedef struct sbp_random_kernel_options {
    sbp_dtype compute;
    int64_t heads, n; /* n even, or 1 */
    bool smooth; /* only functions whose results compare within a tolerance: no comparisons, no division */
    bool rounds; /* to 16 bits too, where smooth: results that differ in their last bits may round apart */
    bool only_compute; /* all operands of the compute type */
} sbp_random_kernel_options;

/* Axes, length and stride of a random operand. */
static inline sbp_rk_operand sbp_random_operand(sbp_rng *rng, const sbp_random_kernel_options *options,
                                                sbp_rk_mode mode) {
    static const sbp_dtype types[] = {SBP_F32, SBP_F32, SBP_F64, SBP_BF16, SBP_F16,
                                      SBP_I32, SBP_I16, SBP_D8,  SBP_UD8};
    sbp_rk_operand operand = {.mode = mode, .length = 1};
    operand.dtype = types[sbp_rng_below(rng, mode == SBP_RK_IN ? SBP_COUNT(types) : 5)];
    if (options->only_compute || (mode == SBP_RK_PARTIAL && operand.dtype != SBP_F64))
        operand.dtype = options->compute;
    operand.vary = (uint8_t)sbp_rng_below(rng, 8);
    if (sbp_rng_below(rng, 2))
        operand.vary = SBP_VARY_ROW | SBP_VARY_HEAD | SBP_VARY_ELEM;
    if (mode == SBP_RK_OUT)
        operand.vary |= SBP_VARY_ROW;
    if (mode == SBP_RK_PARTIAL)
        operand.vary &= SBP_VARY_HEAD | SBP_VARY_ELEM;
    if (operand.vary & SBP_VARY_ELEM)
        operand.length = options->n;
    if (operand.vary & SBP_VARY_HEAD)
        operand.head_stride = operand.length + (sbp_rng_below(rng, 2) ? sbp_rng_below(rng, 3) : 0);
    return operand;
}

/* A value that an operand can take, near the end, or -1. */
static inline int32_t sbp_random_value(sbp_rng *rng, const sbp_rowkernel *kernel, uint8_t axes,
                                       int64_t length) {
    for (int attempt = 0; attempt < 40; attempt++) {
        int32_t k = (int32_t)sbp_rng_below(rng, kernel->instr_count);
        const sbp_rk_instr *instr = &kernel->instrs[k];
        if (instr->op == SBP_RK_STORE || instr->op == SBP_RK_PARTIAL_ADD || (instr->vary & ~axes))
            continue;
        if ((instr->vary & SBP_VARY_ELEM) && instr->length != length)
            continue;
        return k;
    }
    return -1;
}

static inline void sbp_random_loads(sbp_rng *rng, sbp_arena *arena, sbp_rowkernel *kernel, int32_t operand) {
    sbp_rk_instr load = {.op = SBP_RK_LOAD, .a = -1, .b = -1, .c = -1, .index = operand};
    const sbp_rk_operand *o = &kernel->operands[operand];
    if (o->length == 1 || sbp_rng_below(rng, 2)) {
        sbp_rowkernel_add(arena, kernel, &load);
        return;
    }
    load.vary = o->vary;
    load.length = o->length / 2;
    sbp_rowkernel_add(arena, kernel, &load);
    load.offset = load.length;
    sbp_rowkernel_add(arena, kernel, &load);
    if (sbp_rng_below(rng, 3) == 0) { /* one column, for all elements */
        load.vary = (uint8_t)(o->vary & ~SBP_VARY_ELEM);
        load.offset = sbp_rng_below(rng, o->length);
        load.length = 1;
        sbp_rowkernel_add(arena, kernel, &load);
    }
}

static inline void sbp_random_compute(sbp_rng *rng, sbp_arena *arena, sbp_rowkernel *kernel,
                                      const sbp_random_kernel_options *options) {
    static const sbp_rowop smooth[] = {SBP_ROWOP_neg, SBP_ROWOP_abs, SBP_ROWOP_tanh,    SBP_ROWOP_erf,
                                       SBP_ROWOP_sin, SBP_ROWOP_cos, SBP_ROWOP_sigmoid, SBP_ROWOP_log_sigmoid,
                                       SBP_ROWOP_add, SBP_ROWOP_sub, SBP_ROWOP_mul,     SBP_ROWOP_mul,
                                       SBP_ROWOP_max, SBP_ROWOP_min};
    sbp_rk_instr instr = {.a = -1, .b = -1, .c = -1, .index = -1};
    const uint8_t all = SBP_VARY_ROW | SBP_VARY_HEAD | SBP_VARY_ELEM;
    int64_t length = sbp_rng_below(rng, 3) && options->n > 1 ? options->n : options->n / 2;
    int32_t a = sbp_random_value(rng, kernel, all, length);
    if (a < 0)
        return;
    uint8_t reducible = kernel->instrs[a].vary & (SBP_VARY_HEAD | SBP_VARY_ELEM);
    int64_t what = sbp_rng_below(rng, 10);
    instr.a = a;
    if (what == 0) {
        static const sbp_dtype to[] = {SBP_F64, SBP_F32, SBP_BF16, SBP_F16};
        instr.op = SBP_RK_ROUND;
        instr.dtype = to[sbp_rng_below(rng, options->smooth && !options->rounds ? 1 : 4)];
    } else if (what <= 2 && reducible) {
        instr.op = what == 1 ? SBP_RK_SUM : sbp_rng_below(rng, 2) ? SBP_RK_MAX : SBP_RK_MIN;
        instr.axes = (uint8_t)(reducible & (1 + sbp_rng_below(rng, 7)));
        if (instr.axes == 0)
            instr.axes = reducible;
    } else {
        instr.op = SBP_RK_MAP;
        instr.map = options->smooth ? smooth[sbp_rng_below(rng, SBP_COUNT(smooth))]
                                    : (sbp_rowop)sbp_rng_below(rng, SBP_ROWOP_COUNT);
        if (sbp_rowop_arity(instr.map) > 1)
            instr.b = sbp_random_value(rng, kernel, all, length);
        if (sbp_rowop_arity(instr.map) > 2)
            instr.c = sbp_random_value(rng, kernel, all, length);
        if ((sbp_rowop_arity(instr.map) > 1 && instr.b < 0) ||
            (sbp_rowop_arity(instr.map) > 2 && instr.c < 0))
            return;
    }
    int32_t value = sbp_rowkernel_add(arena, kernel, &instr);
    if (instr.op == SBP_RK_SUM ||
        (instr.op == SBP_RK_MAP && instr.map == SBP_ROWOP_mul)) { /* keep it small */
        sbp_rk_instr squash = {
            .op = SBP_RK_MAP, .map = SBP_ROWOP_tanh, .a = value, .b = -1, .c = -1, .index = -1};
        sbp_rowkernel_add(arena, kernel, &squash);
    }
}

static inline void sbp_random_stores(sbp_rng *rng, sbp_arena *arena, sbp_rowkernel *kernel, int32_t operand) {
    const sbp_rk_operand *o = &kernel->operands[operand];
    bool partial = o->mode == SBP_RK_PARTIAL;
    uint8_t axes = o->vary;
    if (partial)
        axes |= SBP_VARY_ROW | SBP_VARY_HEAD;
    int64_t parts = o->length > 1 && sbp_rng_below(rng, 2) ? 2 : 1;
    for (int64_t part = 0; part < parts; part++) {
        sbp_rk_instr store = {.op = partial ? SBP_RK_PARTIAL_ADD : SBP_RK_STORE,
                              .vary = o->vary,
                              .b = -1,
                              .c = -1,
                              .index = operand,
                              .length = o->length / parts};
        store.offset = part * store.length;
        store.a = sbp_random_value(rng, kernel, axes, store.length);
        if (store.a >= 0)
            sbp_rowkernel_add(arena, kernel, &store);
    }
}

/* A kernel with 2 to 5 in operands, up to 3 outs (often shaped like an in) and maybe a partial. Scalar 0 is
 * an integer seed, scalar 1 any number. */
static inline sbp_rowkernel *sbp_random_kernel(sbp_rng *rng, sbp_arena *arena,
                                               const sbp_random_kernel_options *options) {
    static const char *const in_names[] = {"a", "b", "c", "d", "e"};
    static const char *const out_names[] = {"x", "y", "z"};
    sbp_rowkernel *kernel = sbp_rowkernel_create(arena, "random", options->compute);
    kernel->heads = options->heads;
    kernel->n = options->n;
    sbp_rowkernel_add_scalar(arena, kernel, "seed");
    sbp_rowkernel_add_scalar(arena, kernel, "s");
    int32_t ins = 2 + (int32_t)sbp_rng_below(rng, 4), outs = 1 + (int32_t)sbp_rng_below(rng, 3);
    for (int32_t i = 0; i < ins; i++) {
        sbp_rk_operand operand = sbp_random_operand(rng, options, SBP_RK_IN);
        operand.name = in_names[i];
        sbp_rowkernel_add_operand(arena, kernel, &operand);
    }
    for (int32_t i = 0; i < outs; i++) {
        sbp_rk_operand operand = sbp_random_operand(rng, options, SBP_RK_OUT);
        if (sbp_rng_below(rng, 2)) {
            sbp_rk_operand twin = kernel->operands[sbp_rng_below(rng, ins)];
            if ((twin.vary & SBP_VARY_ROW) && sbp_dtype_is_float(twin.dtype))
                operand = twin;
        }
        operand.mode = SBP_RK_OUT;
        operand.name = out_names[i];
        sbp_rowkernel_add_operand(arena, kernel, &operand);
    }
    bool partial = sbp_rng_below(rng, 2);
    if (partial) {
        sbp_rk_operand operand = sbp_random_operand(rng, options, SBP_RK_PARTIAL);
        operand.name = "p";
        sbp_rowkernel_add_operand(arena, kernel, &operand);
    }
    for (int32_t i = 0; i < ins; i++)
        sbp_random_loads(rng, arena, kernel, i);
    sbp_rk_instr instr = {.op = SBP_RK_CONST, .a = -1, .b = -1, .c = -1, .index = -1};
    instr.imm = sbp_rng_unit(rng);
    sbp_rowkernel_add(arena, kernel, &instr);
    instr.imm = (double)sbp_rng_below(rng, 3);
    int32_t stream = sbp_rowkernel_add(arena, kernel, &instr);
    instr.op = SBP_RK_SCALAR;
    instr.imm = 0;
    instr.index = 1;
    sbp_rowkernel_add(arena, kernel, &instr);
    if (sbp_rng_below(rng, 2)) {
        instr.op = SBP_RK_RANDOM;
        instr.index = 0;
        instr.vary = (uint8_t)(SBP_VARY_ROW | sbp_rng_below(rng, 8));
        instr.length = instr.vary & SBP_VARY_ELEM ? options->n : 1;
        instr.offset = sbp_rng_below(rng, 5);
        instr.a = sbp_rng_below(rng, 2) ? stream : -1;
        sbp_rowkernel_add(arena, kernel, &instr);
        instr.a = -1;
    }
    if (!options->smooth) {
        instr.op = SBP_RK_INDEX;
        instr.index = -1;
        instr.vary = SBP_VARY_ELEM;
        instr.length = options->n;
        instr.offset = sbp_rng_below(rng, 5);
        sbp_rowkernel_add(arena, kernel, &instr);
    }
    for (int64_t k = 4 + sbp_rng_below(rng, 16); k > 0; k--)
        sbp_random_compute(rng, arena, kernel, options);
    for (int32_t i = ins; i < kernel->operand_count; i++)
        sbp_random_stores(rng, arena, kernel, i);
    return kernel;
}

#endif
