/* cvt between all pairs of types. What is frequent and needs no care is in lanes.def. */
#include "tests/ptx/decode.h"
#include "tests/ptx/lanes.h"
#include "tests/ptx/machine.h"
#include "tests/ptx/tensor/formats.h"

#include <fenv.h>
#include <math.h>

static sbp_ptx_type number_of(ptx_type type) {
    switch (type) {
    case PTX_f16:
    case PTX_f16x2:
        return SBP_PTX_F16;
    case PTX_bf16:
    case PTX_bf16x2:
        return SBP_PTX_BF16;
    case PTX_tf32:
        return SBP_PTX_TF32;
    case PTX_e4m3x2:
        return SBP_PTX_E4M3;
    case PTX_e5m2x2:
        return SBP_PTX_E5M2;
    case PTX_f64:
        return SBP_PTX_F64;
    default:
        return SBP_PTX_F32;
    }
}

static int64_t extend(uint64_t bits, int bytes, bool is_signed) {
    const int shift = 64 - 8 * bytes;
    return is_signed ? (int64_t)(bits << shift) >> shift : (int64_t)(bits << shift >> shift);
}

static uint64_t int_from_int(const ptx_insn *i, uint64_t bits) {
    const int to = ptx_type_bytes(i->type), from = ptx_type_bytes(i->type2);
    const bool from_signed = ptx_type_kind(i->type2) == 's', to_signed = ptx_type_kind(i->type) == 's';
    __int128 value = extend(bits, from, from_signed);
    if (!from_signed && from == 8) {
        value = bits;
    }
    if (i->saturate) {
        const __int128 most = ((__int128)1 << (8 * to - to_signed)) - 1, least = to_signed ? -most - 1 : 0;
        value = value > most ? most : value < least ? least : value;
    }
    return (uint64_t)extend((uint64_t)value, to, to_signed);
}

static double round_whole(double x, int mode) {
    switch (mode) {
    case SBP_PTX_RZ:
        return trunc(x);
    case SBP_PTX_RM:
        return floor(x);
    case SBP_PTX_RP:
        return ceil(x);
    default:
        return nearbyint(x);
    }
}

// Always clamped into the range; NaN is 0, but the sign bit alone in 64 bits.
static uint64_t int_from_float(const ptx_insn *i, double x) {
    const int bits = 8 * ptx_type_bytes(i->type);
    const bool is_signed = ptx_type_kind(i->type) == 's';
    if (isnan(x)) {
        return bits == 64 ? UINT64_C(1) << 63 : 0;
    }
    x = round_whole(x, i->sem);
    const double end = ldexp(1, bits - is_signed), begin = is_signed ? -end : 0;
    if (x >= end) {
        return is_signed    ? (UINT64_C(1) << (bits - 1)) - 1
               : bits == 64 ? UINT64_MAX
                            : (UINT64_C(1) << bits) - 1;
    }
    x = x < begin ? begin : x;
    return is_signed ? (uint64_t)extend((uint64_t)(int64_t)x, bits / 8, true) : (uint64_t)x;
}

// Rounded to odd into 53 bits, so that it may be rounded once more to fewer than 52 without harm.
static double odd_double(int64_t value, bool is_signed) {
    const bool minus = is_signed && value < 0;
    uint64_t size = minus ? 0 - (uint64_t)value : (uint64_t)value;
    if (size >> 53) {
        size = (size & ~UINT64_C(0x7ff)) | (size & 0x7ff ? 0x800 : 0);
    }
    return minus ? -(double)size : (double)size;
}

static uint64_t float_from_int(const ptx_insn *i, uint64_t bits) {
    static const int modes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD, FE_TONEAREST};
    const bool is_signed = ptx_type_kind(i->type2) == 's';
    const int64_t value = extend(bits, ptx_type_bytes(i->type2), is_signed);
    if (i->type != PTX_f64) {
        return sbp_ptx_round(number_of(i->type), odd_double(value, is_signed), i->sem, 0);
    }
    const int before = fegetround();
    (void)fesetround(modes[i->sem]);
    volatile int64_t v = value;
    volatile double d = is_signed ? (double)v : (double)(uint64_t)v;
    (void)fesetround(before);
    const double copy = d;
    uint64_t result;
    memcpy(&result, &copy, sizeof result);
    return result;
}

static uint64_t convert_one(const ptx_insn *i, uint64_t bits) {
    const char from = ptx_type_kind(i->type2), to = ptx_type_kind(i->type);
    if (from != 'f' && to != 'f') {
        return int_from_int(i, bits);
    }
    if (from != 'f') {
        return float_from_int(i, bits);
    }
    if (i->flush && i->type2 == PTX_f32) {
        bits = sbp_ptx_flush_f32((uint32_t)bits);
    }
    const double x = sbp_ptx_value(number_of(i->type2), bits);
    if (to != 'f') {
        return int_from_float(i, x);
    }
    const unsigned flags = (i->flag ? SBP_PTX_RELU : 0) | (i->flag2 ? SBP_PTX_SATFINITE : 0) |
                           (i->saturate ? SBP_PTX_SAT : 0) |
                           (i->flush && i->type == PTX_f32 ? SBP_PTX_FTZ : 0);
    const double whole = i->vector ? round_whole(x, i->sem) : x;
    return sbp_ptx_round(number_of(i->type), whole, i->sem, flags);
}

static void exec_cvt(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    const int from = i->op[1].kind == PTX_REGISTER ? i->op[1].bytes : i->elem_bytes;
    const int narrow = ptx_type_bytes(i->type2);
    PTX_EACH_LANE(l, mask) {
        uint64_t bits = ptx_lane_value(w, i->src[0], from, (int)l);
        bits = narrow == 8 ? bits : bits & ((UINT64_C(1) << 8 * narrow) - 1);
        ptx_lane_set(w, i->dst, i->op[0].bytes, (int)l, convert_one(i, bits));
    }
}

// Two of f32 into a pair; a pair of 8 bits from or into one of 16.
static void exec_cvt_pair(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    const sbp_ptx_type to = number_of(i->type), from = number_of(i->type2);
    const int bits_to = sbp_ptx_type_bits(to), bits_from = sbp_ptx_type_bits(from);
    const unsigned flags = (i->flag ? SBP_PTX_RELU : 0) | (i->flag2 ? SBP_PTX_SATFINITE : 0);
    PTX_EACH_LANE(l, mask) {
        uint64_t high, low;
        if (i->sources == 2) {
            high = ptx_lane_value(w, i->src[0], 4, (int)l);
            low = ptx_lane_value(w, i->src[1], 4, (int)l);
        } else {
            const uint64_t both = ptx_lane_value(w, i->src[0], bits_from / 4, (int)l);
            low = both & ((1U << bits_from) - 1);
            high = both >> bits_from;
        }
        high = sbp_ptx_round(to, sbp_ptx_value(from, high), i->sem, flags);
        low = sbp_ptx_round(to, sbp_ptx_value(from, low), i->sem, flags);
        ptx_lane_set(w, i->dst, bits_to / 4, (int)l, high << bits_to | low);
    }
}

static bool is_pair(ptx_type type) {
    return type == PTX_f16x2 || type == PTX_bf16x2 || type == PTX_e4m3x2 || type == PTX_e5m2x2;
}

static void decode_pair(ptx_parser *p, ptx_insn *i, ptx_type to, ptx_type from) {
    const bool eight_to = to == PTX_e4m3x2 || to == PTX_e5m2x2,
               eight_from = from == PTX_e4m3x2 || from == PTX_e5m2x2;
    const bool right = (is_pair(to) && from == PTX_f32) ||
                       (eight_to && (from == PTX_f16x2 || from == PTX_bf16x2)) ||
                       (to == PTX_f16x2 && eight_from);
    if (!right || i->saturate || (eight_to && !i->flag2)) {
        ptx_refuse(p, "unknown instruction %s", i->name);
    }
    i->sources = from == PTX_f32 ? 2 : 1;
    ptx_need_ops(p, i, 1 + i->sources, 1 + i->sources);
    i->dst = ptx_target(p, &i->op[0], ptx_type_bytes(to));
    for (int k = 0; k < i->sources; k++) {
        i->src[k] = ptx_source(p, &i->op[1 + k], from == PTX_f32 ? PTX_f32 : eight_from ? PTX_b16 : PTX_b32);
    }
    ptx_use_exec(i, exec_cvt_pair, PTX_CLASS_CONVERT, 1);
}

// The fast form of a conversion, if there is one.
static const ptx_lanes_op *plain(const ptx_insn *i, const ptx_mods *mods, bool rounds_nearest) {
    char key[48];
    const char to = ptx_type_kind(mods->types[0]), from = ptx_type_kind(mods->types[1]);
    if (i->flush || i->saturate || i->flag || i->flag2 || (to == 'f' && !rounds_nearest) ||
        (from == 'f' && to != 'f')) {
        return NULL;
    }
    (void)snprintf(key, sizeof key, "cvt.%s.%s", ptx_type_name(mods->types[0]),
                   ptx_type_name(mods->types[1]));
    return ptx_lanes_find(key);
}

void ptx_decode_cvt(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    static const char *const modes[] = {"rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi", NULL};
    if (mods->type_count != 2) {
        ptx_refuse(p, "%s with %d types", i->name, mods->type_count);
    }
    const int mode = ptx_take_one(mods, modes);
    const ptx_type to = mods->types[0], from = mods->types[1];
    i->type = (uint8_t)to;
    i->type2 = (uint8_t)from;
    i->sem = (uint8_t)(mode == 0 ? SBP_PTX_RN : mode > 5 ? mode - 6 : mode - 1);
    i->vector = mode > 5; // rounds to a whole number
    i->flush = ptx_take(mods, "ftz");
    i->saturate = ptx_take(mods, "sat");
    i->flag = ptx_take(mods, "relu");
    i->flag2 = ptx_take(mods, "satfinite");
    const char kinds[2] = {ptx_type_kind(to), ptx_type_kind(from)};
    const bool whole_needed = kinds[0] != 'f' && kinds[1] == 'f';
    if (kinds[0] == 'b' || kinds[1] == 'b' || kinds[0] == 'p' || kinds[1] == 'p' ||
        (whole_needed && mode < 6) || (i->vector && kinds[1] != 'f') || (to == PTX_tf32 && from != PTX_f32) ||
        from == PTX_tf32) {
        ptx_refuse(p, "unknown instruction %s", i->name);
    }
    if (is_pair(to) || is_pair(from)) {
        if (to == PTX_bf16x2 && from == PTX_f32 && plain(i, mods, mode == 1) && i->ops == 3) {
            const ptx_lanes_op *op = plain(i, mods, true);
            i->run = PTX_RUN_LANES;
            i->lanes = op->fn;
            i->class = op->class;
            i->sources = i->writes = 1;
            i->sources = 2;
            i->dst = ptx_target(p, &i->op[0], 4);
            i->src[0] = ptx_source(p, &i->op[1], PTX_f32);
            i->src[1] = ptx_source(p, &i->op[2], PTX_f32);
            return;
        }
        decode_pair(p, i, to, from);
        return;
    }
    ptx_need_ops(p, i, 2, 2);
    if (i->op[0].kind != PTX_REGISTER || i->op[0].special || i->op[0].bytes < ptx_type_bytes(to) ||
        (i->op[1].kind == PTX_REGISTER && i->op[1].bytes < ptx_type_bytes(from))) {
        ptx_refuse(p, "%s: a register is too small", i->name);
    }
    if (i->op[0].bytes > ptx_type_bytes(to) && kinds[0] == 'f') {
        ptx_refuse(p, "%s: a register of %d bits for the result", i->name, 8 * i->op[0].bytes);
    }
    i->dst = i->op[0].place;
    i->elem_bytes = (uint8_t)(ptx_type_bytes(from) == 1 ? 2 : ptx_type_bytes(from));
    i->src[0] = i->op[1].kind == PTX_REGISTER ? i->op[1].place : ptx_source(p, &i->op[1], from);
    const ptx_lanes_op *op = plain(
        i, mods, mode == 1 || (to == PTX_f32 && from == PTX_bf16) || (to == PTX_f64 && kinds[1] == 'f'));
    if (op && op->dst == i->op[0].bytes && (i->op[1].kind != PTX_REGISTER || op->src[0] == i->op[1].bytes)) {
        i->run = PTX_RUN_LANES;
        i->lanes = op->fn;
        i->class = op->class;
        i->sources = i->writes = 1;
        return;
    }
    ptx_use_exec(i, exec_cvt, PTX_CLASS_CONVERT, 1);
}
