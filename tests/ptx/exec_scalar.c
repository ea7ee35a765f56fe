/* Moves, bit fields, addresses of spaces, control, hints. */
#include "tests/ptx/decode.h"
#include "tests/ptx/lanes.h"
#include "tests/ptx/machine.h"

#include <math.h>

// ---- mov --------------------------------------------------------------------------------------------------

// d = {a, b, ..}: the parts side by side, the first lowest.
static void exec_pack(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    const ptx_operand *v = &i->op[1];
    const int bytes = i->op[0].bytes / v->count;
    PTX_EACH_LANE(l, mask) {
        uint64_t value = 0;
        for (int k = 0; k < v->count; k++) {
            const uint64_t part = ptx_lane_value(w, i->src[k], bytes == 1 ? 2 : bytes, (int)l);
            value |= (bytes == 4   ? part & UINT32_MAX
                      : bytes == 2 ? part & 0xffff
                                   : part & 0xff)
                     << 8 * bytes * k;
        }
        ptx_lane_set(w, i->dst, i->op[0].bytes, (int)l, value);
    }
}

static void exec_unpack(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    const ptx_operand *v = &i->op[0];
    const int bytes = i->elem_bytes;
    PTX_EACH_LANE(l, mask) {
        const uint64_t value = ptx_lane_value(w, i->src[0], bytes * v->count, (int)l);
        for (int k = 0; k < v->count; k++) {
            if (v->parts[k].kind == PTX_REGISTER) {
                const uint64_t part = value >> 8 * bytes * k;
                ptx_lane_set(w, v->parts[k].place, v->parts[k].bytes, (int)l,
                             bytes == 1 ? part & 0xff : part);
            }
        }
    }
}

static void exec_clock(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    const uint64_t time = w->launch->executed;
    const bool high = i->form == PTX_SPECIAL_CLOCK_HI || i->form == PTX_SPECIAL_GLOBALTIMER_HI;
    PTX_EACH_LANE(l, mask) {
        ptx_lane_set(w, i->dst, i->op[0].bytes, (int)l, high ? time >> 32 : time);
    }
}

static void exec_mov_pred(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    const ptx_operand *s = &i->op[1];
    const uint32_t v = s->kind == PTX_PREDICATE
                           ? *(uint32_t *)ptx_at(w, s->place) ^ (s->negated ? PTX_FULL : 0)
                       : s->value ? PTX_FULL
                                  : 0;
    uint32_t *d = ptx_at(w, i->dst);
    *d = (*d & ~mask) | (v & mask);
}

static void decode_pack(ptx_parser *p, ptx_insn *i, ptx_type type) {
    const ptx_operand *v = &i->op[1];
    const int bytes = ptx_type_bytes(type) / v->count;
    (void)ptx_target(p, &i->op[0], ptx_type_bytes(type));
    i->dst = i->op[0].place;
    if ((v->count != 2 && v->count != 4) || bytes < 1) {
        ptx_refuse(p, "%s with a vector of %d", i->name, v->count);
    }
    for (int k = 0; k < v->count; k++) {
        i->src[k] = ptx_source(p, &v->parts[k], bytes == 4 ? PTX_b32 : PTX_b16);
    }
    ptx_use_exec(i, exec_pack, PTX_CLASS_INTEGER, 1);
}

static void decode_unpack(ptx_parser *p, ptx_insn *i, ptx_type type) {
    const ptx_operand *v = &i->op[0];
    const int bytes = ptx_type_bytes(type) / v->count;
    if ((v->count != 2 && v->count != 4) || bytes < 1) {
        ptx_refuse(p, "%s with a vector of %d", i->name, v->count);
    }
    for (int k = 0; k < v->count; k++) {
        if (v->parts[k].kind != PTX_SINK) {
            (void)ptx_target(p, &v->parts[k], bytes == 1 ? 2 : bytes);
        }
    }
    i->src[0] = ptx_source(p, &i->op[1], type);
    i->elem_bytes = (uint8_t)bytes;
    ptx_use_exec(i, exec_unpack, PTX_CLASS_INTEGER, 1);
}

void ptx_decode_mov(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    const ptx_type type = ptx_one_type(p, i, mods);
    ptx_need_ops(p, i, 2, 2);
    if (type == PTX_pred) {
        bool negated;
        i->dst = ptx_predicate(p, &i->op[0], &negated);
        if (i->op[1].kind != PTX_PREDICATE) {
            (void)ptx_integer(p, &i->op[1]);
        }
        ptx_use_exec(i, exec_mov_pred, PTX_CLASS_INTEGER, 1);
        return;
    }
    if (i->op[1].kind == PTX_VECTOR && i->op[0].kind != PTX_VECTOR) {
        decode_pack(p, i, type);
        return;
    }
    if (i->op[0].kind == PTX_VECTOR) {
        decode_unpack(p, i, type);
        return;
    }
    const int bytes = ptx_type_bytes(type);
    if (bytes != 2 && bytes != 4 && bytes != 8) {
        ptx_refuse(p, "unknown instruction %s", i->name);
    }
    i->dst = ptx_target(p, &i->op[0], bytes);
    if (i->op[1].special >= PTX_SPECIAL_CLOCK) {
        i->form = i->op[1].special;
        ptx_use_exec(i, exec_clock, PTX_CLASS_INTEGER, 1);
        return;
    }
    i->src[0] = ptx_source(p, &i->op[1], type);
    const ptx_lanes_op *op = ptx_lanes_find(bytes == 8 ? "copy.8" : bytes == 4 ? "copy.4" : "copy.2");
    i->run = PTX_RUN_LANES;
    i->copies = true;
    i->lanes = op->fn;
    i->sources = 1;
    i->writes = 1;
    i->class = PTX_CLASS_INTEGER;
}

// ---- set, bfi, testp --------------------------------------------------------------------------------------

static void exec_set(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    uint32_t holds = ((ptx_compare_fn *)i->more)(ptx_at(w, i->src[0]), ptx_at(w, i->src[1]));
    const uint64_t one = i->type == PTX_f32 ? 0x3f800000 : i->type == PTX_f16x2 ? 0x3c003c00 : UINT64_MAX;
    PTX_EACH_LANE(l, mask) {
        ptx_lane_set(w, i->dst, i->elem_bytes, (int)l, holds >> l & 1 ? one : 0);
    }
}

void ptx_decode_set(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    ptx_need_ops(p, i, 3, 3);
    const bool right = mods->type_count == 2 &&
                       (mods->types[0] == PTX_f32 || mods->types[0] == PTX_u32 || mods->types[0] == PTX_s32);
    if (!right) {
        ptx_refuse(p, "unknown instruction %s", i->name);
    }
    i->type = (uint8_t)mods->types[0];
    i->more = (const void *)ptx_comparison(p, i, ptx_take_comparison(mods), mods->types[1]);
    i->elem_bytes = 4;
    i->dst = ptx_target(p, &i->op[0], 4);
    i->src[0] = ptx_source(p, &i->op[1], mods->types[1]);
    i->src[1] = ptx_source(p, &i->op[2], mods->types[1]);
    ptx_use_exec(i, exec_set, PTX_CLASS_INTEGER, 1);
}

static void exec_bfi(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    const int bytes = i->elem_bytes;
    PTX_EACH_LANE(l, mask) {
        const uint64_t a = ptx_lane_value(w, i->src[0], bytes, (int)l),
                       b = ptx_lane_value(w, i->src[1], bytes, (int)l);
        const uint64_t at = ptx_lane_value(w, i->src[2], 4, (int)l) & 255;
        const uint64_t length = ptx_lane_value(w, i->src[3], 4, (int)l) & 255;
        const uint64_t field = (length > 63 ? UINT64_MAX : (UINT64_C(1) << length) - 1);
        const uint64_t in_place = at > 63 ? 0 : field << at;
        ptx_lane_set(w, i->dst, bytes, (int)l, (b & ~in_place) | (at > 63 ? 0 : (a & field) << at));
    }
}

void ptx_decode_bfi(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    const ptx_type type = ptx_one_type(p, i, mods);
    ptx_need_ops(p, i, 5, 5);
    if (type != PTX_b32 && type != PTX_b64) {
        ptx_refuse(p, "unknown instruction %s", i->name);
    }
    i->elem_bytes = (uint8_t)ptx_type_bytes(type);
    i->dst = ptx_target(p, &i->op[0], i->elem_bytes);
    i->src[0] = ptx_source(p, &i->op[1], type);
    i->src[1] = ptx_source(p, &i->op[2], type);
    i->src[2] = ptx_source(p, &i->op[3], PTX_u32);
    i->src[3] = ptx_source(p, &i->op[4], PTX_u32);
    ptx_use_exec(i, exec_bfi, PTX_CLASS_INTEGER, 1);
}

static const char *const tests[] = {"finite", "infinite",  "number", "notanumber",
                                    "normal", "subnormal", NULL};

static void exec_testp(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    uint32_t holds = 0;
    PTX_EACH_LANE(l, mask) {
        const uint64_t bits = ptx_lane_value(w, i->src[0], i->elem_bytes, (int)l);
        const int exponent_bits = i->elem_bytes == 4 ? 8 : 11, fraction_bits = i->elem_bytes == 4 ? 23 : 52;
        const uint64_t fraction = bits & ((UINT64_C(1) << fraction_bits) - 1);
        const uint64_t most = (UINT64_C(1) << exponent_bits) - 1, exponent = bits >> fraction_bits & most;
        const bool result[] = {exponent < most,
                               exponent == most && !fraction,
                               exponent < most || !fraction,
                               exponent == most && fraction,
                               exponent > 0 && exponent < most,
                               exponent == 0 && fraction};
        holds |= (uint32_t)result[i->form - 1] << l;
    }
    uint32_t *d = ptx_at(w, i->dst);
    *d = (*d & ~mask) | holds;
}

void ptx_decode_testp(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    const ptx_type type = ptx_one_type(p, i, mods);
    bool negated;
    ptx_need_ops(p, i, 2, 2);
    i->form = (uint8_t)ptx_take_one(mods, tests);
    if (!i->form || (type != PTX_f32 && type != PTX_f64)) {
        ptx_refuse(p, "unknown instruction %s", i->name);
    }
    i->elem_bytes = (uint8_t)ptx_type_bytes(type);
    i->dst = ptx_predicate(p, &i->op[0], &negated);
    i->src[0] = ptx_source(p, &i->op[1], type);
    ptx_use_exec(i, exec_testp, PTX_CLASS_FLOAT, 1);
}

// ---- spaces -----------------------------------------------------------------------------------------------

static uint64_t window_of(ptx_space space) {
    return space == PTX_SHARED  ? PTX_SHARED_WINDOW
           : space == PTX_LOCAL ? PTX_LOCAL_WINDOW
           : space == PTX_PARAM ? PTX_PARAM_WINDOW
                                : 0;
}

static void exec_cvta(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    const uint64_t window = window_of(i->space);
    PTX_EACH_LANE(l, mask) {
        const uint64_t a = ptx_lane_value(w, i->src[0], i->elem_bytes, (int)l);
        ptx_lane_set(w, i->dst, i->elem_bytes, (int)l, i->flag ? a - window : a + window);
    }
}

static ptx_space take_space(ptx_mods *mods) {
    static const char *const names[] = {"global",          "shared", "shared::cta",
                                        "shared::cluster", "local",  "param",
                                        "param::entry",    "const",  NULL};
    static const ptx_space spaces[] = {PTX_GENERIC, PTX_GLOBAL, PTX_SHARED, PTX_SHARED, PTX_SHARED,
                                       PTX_LOCAL,   PTX_PARAM,  PTX_PARAM,  PTX_CONST};
    return spaces[ptx_take_one(mods, names)];
}

void ptx_decode_cvta(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    const ptx_type type = ptx_one_type(p, i, mods);
    ptx_need_ops(p, i, 2, 2);
    i->flag = ptx_take(mods, "to");
    i->space = (uint8_t)take_space(mods);
    if (i->space == PTX_GENERIC || type != PTX_u64) {
        ptx_refuse(p, "unknown instruction %s", i->name);
    }
    i->elem_bytes = 8;
    i->dst = ptx_target(p, &i->op[0], 8);
    i->src[0] = ptx_source(p, &i->op[1], type);
    ptx_use_exec(i, exec_cvta, PTX_CLASS_INTEGER, 1);
}

static void exec_isspacep(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    const uint64_t window = window_of(i->space);
    const uint64_t *a = ptx_at(w, i->src[0]);
    uint32_t holds = 0;
    PTX_EACH_LANE(l, mask) {
        const bool in = i->space == PTX_GLOBAL || i->space == PTX_CONST ? a[l] < PTX_PARAM_WINDOW
                                                                        : a[l] - window < PTX_WINDOW_BYTES;
        holds |= (uint32_t)in << l;
    }
    uint32_t *d = ptx_at(w, i->dst);
    *d = (*d & ~mask) | holds;
}

void ptx_decode_isspacep(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    bool negated;
    ptx_need_ops(p, i, 2, 2);
    i->space = (uint8_t)take_space(mods);
    if (i->space == PTX_GENERIC) {
        ptx_refuse(p, "unknown instruction %s", i->name);
    }
    i->dst = ptx_predicate(p, &i->op[0], &negated);
    i->src[0] = ptx_source(p, &i->op[1], PTX_u64);
    ptx_use_exec(i, exec_isspacep, PTX_CLASS_INTEGER, 1);
}

// In a cluster of one, rank 0 is the block itself.
static void exec_mapa(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    PTX_EACH_LANE(l, mask) {
        uint64_t value = 0;
        if (!i->flag) {
            value = ptx_lane_value(w, i->src[0], i->elem_bytes, (int)l);
            const uint64_t rank = ptx_lane_value(w, i->src[1], 4, (int)l);
            if (rank != 0) {
                ptx_fault(w, i, (int)l, "block %llu of a cluster of one", (unsigned long long)rank);
            }
        }
        ptx_lane_set(w, i->dst, i->flag ? 4 : i->elem_bytes, (int)l, value);
    }
}

void ptx_decode_mapa(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    const ptx_type type = ptx_one_type(p, i, mods);
    i->flag = strcmp(mods->opcode, "getctarank") == 0;
    (void)ptx_take(mods, "shared::cluster");
    ptx_need_ops(p, i, i->flag ? 2 : 3, i->flag ? 2 : 3);
    i->elem_bytes = (uint8_t)ptx_type_bytes(type);
    i->dst = ptx_target(p, &i->op[0], i->flag ? 4 : i->elem_bytes);
    i->src[0] = ptx_source(p, &i->op[1], type);
    if (!i->flag) {
        i->src[1] = ptx_source(p, &i->op[2], PTX_u32);
    }
    ptx_use_exec(i, exec_mapa, PTX_CLASS_INTEGER, 1);
}

// ---- control and hints ------------------------------------------------------------------------------------

static void exec_brx(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    const uint32_t *index = ptx_at(w, i->src[0]);
    const uint32_t *targets = i->more;
    PTX_EACH_LANE(l, w->active) {
        if (mask >> l & 1 && index[l] >= i->extra) {
            ptx_fault(w, i, (int)l, "branch target %u of %u", index[l], i->extra);
        }
        w->lane_pc[l] = mask >> l & 1 ? targets[index[l]] : w->pc;
    }
    w->active = 0;
    w->other_pc = 0; // the next step chooses anew
}

void ptx_decode_brx(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    (void)ptx_take(mods, "uni");
    if (!ptx_take(mods, "idx")) {
        ptx_refuse(p, "unknown instruction %s", i->name);
    }
    ptx_need_ops(p, i, 2, 2);
    i->src[0] = ptx_source(p, &i->op[0], PTX_u32);
    ptx_use_exec(i, exec_brx, PTX_CLASS_BRANCH, 0);
    i->flag2 = true; // parse.c: the last operand names targets
}

static void exec_leave(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    (void)i;
    ptx_exit_lanes(w, mask);
}

void ptx_decode_leave(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    (void)ptx_take(mods, "uni");
    ptx_need_ops(p, i, 0, 0);
    ptx_use_exec(i, exec_leave, PTX_CLASS_BRANCH, 0);
}

static void exec_trap(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    ptx_fault(w, i, __builtin_ctz(mask), "trap");
}

void ptx_decode_trap(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    (void)mods;
    ptx_need_ops(p, i, 0, 0);
    ptx_use_exec(i, exec_trap, PTX_CLASS_BRANCH, 0);
}

static void exec_call(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    if (strcmp(i->more, "__assertfail") == 0) {
        ptx_fault(w, i, __builtin_ctz(mask), "an assertion failed");
    }
    ptx_unable(w, i, "calls of functions are not executed here: %s", (const char *)i->more);
}

void ptx_decode_call(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    (void)p;
    mods->count = 0;
    ptx_use_exec(i, exec_call, PTX_CLASS_BRANCH, 0);
}

static void exec_sleep(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    (void)i;
    (void)mask;
    w->yield = true;
}

void ptx_decode_sleep(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    ptx_need_ops(p, i, 1, 1);
    (void)ptx_source(p, &i->op[0], ptx_one_type(p, i, mods));
    ptx_use_exec(i, exec_sleep, PTX_CLASS_BARRIER, 0);
}

static void exec_nothing(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    (void)w;
    (void)i;
    (void)mask;
}

void ptx_decode_hint(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    static const char *const known[] = {"global",
                                        "L1",
                                        "L2",
                                        "local",
                                        "tensormap",
                                        "launch_dependents",
                                        "wait",
                                        "L2::evict_last",
                                        "L2::evict_normal",
                                        "param",
                                        "const",
                                        NULL};
    (void)p;
    while (ptx_take_one(mods, known)) {
    }
    ptx_use_exec(i, exec_nothing, PTX_CLASS_INTEGER, 0);
}

/* Registers that a warp gives back (dec) are its block's, for others to take (inc), who wait until there are
 * enough. */
static void exec_setmaxnreg(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    if (!ptx_gather(w, i, mask, PTX_FULL) || w->max_registers == 0) {
        return;
    }
    const uint32_t have = w->max_registers, want = i->extra;
    if (i->flag ? want < have : want > have) {
        ptx_fault(w, i, -1, "%s registers of a thread from %u to %u", i->flag ? "increases" : "decreases",
                  have, want);
    }
    if (i->flag && (want - have) * PTX_LANES > w->block->spare_registers) {
        w->pc--;
        w->yield = true;
        return;
    }
    w->block->spare_registers += (have - want) * PTX_LANES; // or less of them
    w->max_registers = want;
    ptx_progress(w->launch);
}

void ptx_decode_setmaxnreg(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    static const char *const which[] = {"inc", "dec", NULL};
    const int way = ptx_take_one(mods, which);
    const bool right = way && ptx_take(mods, "sync") && ptx_take(mods, "aligned");
    ptx_need_ops(p, i, 1, 1);
    const int64_t count = ptx_integer(p, &i->op[0]);
    if (!right || ptx_one_type(p, i, mods) != PTX_u32 || count < 24 || count > 256 || count % 8) {
        ptx_refuse(p, "unknown form of %s", i->name);
    }
    i->flag = way == 1;
    i->extra = (uint32_t)count;
    ptx_use_exec(i, exec_setmaxnreg, PTX_CLASS_BARRIER, 0);
}

static void exec_createpolicy(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    PTX_EACH_LANE(l, mask) {
        ptx_lane_set(w, i->dst, 8, (int)l, 0);
    }
}

void ptx_decode_createpolicy(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    mods->count = 0;
    ptx_need_ops(p, i, 1, 4);
    i->dst = ptx_target(p, &i->op[0], 8);
    ptx_use_exec(i, exec_createpolicy, PTX_CLASS_INTEGER, 1);
}
