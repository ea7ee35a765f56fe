/* atom, red, fences. */
#include "tests/ptx/decode.h"
#include "tests/ptx/exec_mem.h"
#include "tests/ptx/machine.h"
#include "tests/ptx/tensor/formats.h"

typedef enum { OP_ADD = 1, OP_MIN, OP_MAX, OP_INC, OP_DEC, OP_AND, OP_OR, OP_XOR, OP_EXCH, OP_CAS } operation;

static uint64_t float_op(ptx_type type, operation op, uint64_t old, uint64_t b) {
    if (type == PTX_f32) {
        return sbp_ptx_bits_of_f32(sbp_ptx_f32_of_bits((uint32_t)old) + sbp_ptx_f32_of_bits((uint32_t)b));
    }
    if (type == PTX_f64) {
        double x, y;
        memcpy(&x, &old, 8);
        memcpy(&y, &b, 8);
        x += y;
        memcpy(&old, &x, 8);
        return old;
    }
    const sbp_ptx_type number = type == PTX_f16 || type == PTX_f16x2 ? SBP_PTX_F16 : SBP_PTX_BF16;
    uint64_t result = 0;
    for (int k = 0; k < ptx_type_bytes(type) / 2; k++) {
        const double x = sbp_ptx_value(number, old >> 16 * k & 0xffff),
                     y = sbp_ptx_value(number, b >> 16 * k & 0xffff);
        const double r = op == OP_ADD   ? sbp_ptx_add_odd(x, y)
                         : op == OP_MIN ? (y < x ? y : x)
                                        : (y > x ? y : x);
        result |= sbp_ptx_round(number, r, SBP_PTX_RN, 0) << 16 * k;
    }
    return result;
}

static uint64_t whole_op(ptx_type type, operation op, uint64_t old, uint64_t b, uint64_t c) {
    const bool wide = ptx_type_bytes(type) == 8;
    const int64_t x = wide ? (int64_t)old : (int32_t)old, y = wide ? (int64_t)b : (int32_t)b;
    const bool less = ptx_type_kind(type) == 's' ? y < x : b < old;
    switch (op) {
    case OP_ADD:
        return old + b;
    case OP_MIN:
        return less ? b : old;
    case OP_MAX:
        return less || b == old ? old : b;
    case OP_INC:
        return old >= b ? 0 : old + 1;
    case OP_DEC:
        return old == 0 || old > b ? b : old - 1;
    case OP_AND:
        return old & b;
    case OP_OR:
        return old | b;
    case OP_XOR:
        return old ^ b;
    case OP_EXCH:
        return b;
    case OP_CAS:
        return old == b ? c : old;
    }
    return old;
}

static const ptx_operand *part(const ptx_operand *o, int k) {
    return o->kind == PTX_VECTOR ? &o->parts[k] : o;
}

static void one_lane(ptx_warp *w, const ptx_insn *i, int lane) {
    const int bytes = i->elem_bytes, first = i->flag ? 1 : 0; // flag: atom, with a result
    const uint32_t *places = i->more;
    uint64_t at = ptx_lane_address(w, &i->op[first], lane);
    const ptx_space space = ptx_resolve(i->space, &at);
    const uint32_t all = (uint32_t)(bytes * i->vector);
    uint8_t *data;
    if (space == PTX_SHARED) {
        const uint32_t address = ptx_shared_address(w, i, lane, at);
        ptx_shared_access(w, i, lane, address, all, all, PTX_ATOMIC, NULL);
        data = w->block->shared.data + address;
    } else if (space == PTX_GLOBAL) {
        const uint64_t progress = w->launch->progress_at,
                       world = w->launch->world_at; // only a change is progress
        data = ptx_global_access(w, i, lane, at, all, all, PTX_ATOMIC, NULL);
        w->launch->progress_at = progress;
        w->launch->world_at = world;
    } else {
        ptx_fault(w, i, lane, "an atomic operation on memory that is neither global nor shared");
    }
    bool changes = false;
    for (int k = 0; k < i->vector; k++) {
        uint64_t old = 0;
        memcpy(&old, data + k * bytes, (size_t)bytes);
        const uint64_t b = ptx_lane_value(w, places[k], bytes, lane);
        const uint64_t c = i->form == OP_CAS ? ptx_lane_value(w, places[i->vector], bytes, lane) : 0;
        const uint64_t value = ptx_type_kind(i->type) == 'f' && i->form <= OP_MAX
                                   ? float_op(i->type, i->form, old, b)
                                   : whole_op(i->type, i->form, old, b, c);
        memcpy(data + k * bytes, &value, (size_t)bytes);
        changes |= memcmp(&value, &old, (size_t)bytes) != 0;
        const ptx_operand *d = i->flag ? part(&i->op[0], k) : NULL;
        if (d && d->kind == PTX_REGISTER) {
            ptx_lane_set(w, d->place, bytes, lane, old);
        }
    }
    const bool failed = i->form == OP_CAS && !changes;
    ptx_strong(w, lane, space == PTX_SHARED, at, true, !failed, i->sem, i->scope);
    if (changes) {
        ptx_progress(w->launch);
        if (space == PTX_GLOBAL) {
            w->launch->world_at = w->launch->executed;
        }
    }
}

static void exec_atom(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    // Lanes in an order that nobody promised.
    const uint32_t turn = (uint32_t)ptx_random(w->launch) % PTX_LANES;
    for (uint32_t k = 0; k < PTX_LANES; k++) {
        const uint32_t lane = (k + turn) % PTX_LANES;
        if (mask >> lane & 1) {
            one_lane(w, i, (int)lane);
        }
    }
    w->yield |= i->form == OP_CAS || i->form == OP_EXCH; // perhaps it polls
}

void ptx_decode_atom(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    static const char *const ops[] = {"add", "min", "max",  "inc", "dec", "and",
                                      "or",  "xor", "exch", "cas", NULL};
    static const char *const vectors[] = {"v2", "v4", "v8", NULL};
    const ptx_type type = ptx_one_type(p, i, mods);
    i->flag = strcmp(mods->opcode, "atom") == 0;
    (void)ptx_take_scope(i, mods);
    ptx_take_sem(i, mods, PTX_RELAXED);
    i->space = (uint8_t)ptx_take_space(mods);
    (void)ptx_take(mods, "noftz");
    const bool hint = ptx_take_hints(mods);
    i->form = (uint8_t)ptx_take_one(mods, ops);
    const int vector = ptx_take_one(mods, vectors);
    i->vector = (uint8_t)(vector ? 1 << vector : 1);
    i->elem_bytes = (uint8_t)ptx_type_bytes(type);
    i->type = (uint8_t)type;
    const char kind = ptx_type_kind(type);
    const bool right =
        i->form && i->elem_bytes >= 2 && i->elem_bytes <= 8 &&
        (kind == 'f' ? i->form == OP_ADD ||
                           (i->elem_bytes < 4 || type == PTX_f16x2 || type == PTX_bf16x2 ? i->form <= OP_MAX
                                                                                         : i->form >= OP_EXCH)
                     : i->elem_bytes >= 4 || i->form == OP_CAS || i->form == OP_EXCH) &&
        (i->vector == 1 || (kind == 'f' && i->elem_bytes * i->vector <= 16));
    const int first = i->flag ? 1 : 0, sources = i->form == OP_CAS ? 2 : 1;
    if (!right) {
        ptx_refuse(p, "unknown form of %s", i->name);
    }
    ptx_need_ops(p, i, first + 1 + sources, first + 1 + sources + hint);
    (void)ptx_address_register(p, &i->op[first]);
    uint32_t *places = ptx_parser_alloc(p, sizeof *places * (size_t)(i->vector + 1));
    for (int k = 0; k < i->vector; k++) {
        const ptx_operand *s = &i->op[first + 1];
        if ((s->kind == PTX_VECTOR ? s->count : 1) != i->vector ||
            (i->flag && (i->op[0].kind == PTX_VECTOR ? i->op[0].count : 1) != i->vector)) {
            ptx_refuse(p, "%s with a vector of %d", i->name, s->count);
        }
        places[k] = ptx_source(p, part(s, k), type);
        if (i->flag && part(&i->op[0], k)->kind != PTX_SINK) {
            (void)ptx_target(p, part(&i->op[0], k), i->elem_bytes);
        }
    }
    if (sources == 2) {
        places[i->vector] = ptx_source(p, &i->op[first + 2], type);
    }
    i->more = places;
    ptx_use_exec(i, exec_atom, PTX_CLASS_ATOMIC, i->flag);
}

// ---- fences -----------------------------------------------------------------------------------------------

static void exec_fence(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    ptx_fence(w, mask, i->scope);
}

static void exec_proxy_fence(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    (void)i;
    ptx_proxy_fence(w, mask);
}

static void exec_no_fence(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    (void)w;
    (void)i;
    (void)mask;
}

void ptx_decode_fence(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    ptx_need_ops(p, i, 0, 4);
    if (ptx_take(mods, "proxy")) {
        (void)ptx_take_space(mods);
        const bool async =
            ptx_take(mods, "async") || ptx_take(mods, "async::generic") || ptx_take(mods, "async.global");
        if (!async && !ptx_take(mods, "alias")) {
            ptx_refuse(p, "unknown form of %s", i->name);
        }
        ptx_use_exec(i, async ? exec_proxy_fence : exec_no_fence, PTX_CLASS_BARRIER, 0);
        return;
    }
    if (ptx_take(mods, "mbarrier_init")) { // for clusters: within a block the barrier orders
        ptx_take_sem(i, mods, PTX_RELEASE);
        (void)ptx_take_scope(i, mods);
        ptx_use_exec(i, exec_no_fence, PTX_CLASS_BARRIER, 0);
        return;
    }
    const bool old_cta = ptx_take(mods, "cta"), old_gpu = ptx_take(mods, "gl");
    ptx_take_sem(i, mods, PTX_ACQ_REL);
    const bool scoped = old_cta || old_gpu || ptx_take_scope(i, mods);
    i->scope = old_cta ? PTX_SCOPE_CTA : old_gpu ? PTX_SCOPE_GPU : i->scope;
    if (!scoped) {
        ptx_refuse(p, "unknown form of %s", i->name);
    }
    ptx_use_exec(i, exec_fence, PTX_CLASS_BARRIER, 0);
}
