/* ld and st in all spaces. */
#include "tests/ptx/decode.h"
#include "tests/ptx/machine.h"

#include "tests/ptx/exec_mem.h"

uint64_t ptx_lane_address(const ptx_warp *w, const ptx_operand *o, int lane) {
    uint64_t base = 0;
    if (o->place != PTX_NO_PLACE) {
        base = ptx_lane_value(w, o->place, o->bytes, lane);
    }
    return base + (uint64_t)o->value;
}

ptx_space ptx_resolve(ptx_space space, uint64_t *inout_address) {
    if (space != PTX_GENERIC) {
        return space;
    }
    const uint64_t a = *inout_address;
    if (a < PTX_PARAM_WINDOW) {
        return PTX_GLOBAL;
    }
    if (a - PTX_SHARED_WINDOW < PTX_WINDOW_BYTES) {
        *inout_address = a - PTX_SHARED_WINDOW;
        return PTX_SHARED;
    }
    if (a - PTX_LOCAL_WINDOW < PTX_WINDOW_BYTES) {
        *inout_address = a - PTX_LOCAL_WINDOW;
        return PTX_LOCAL;
    }
    if (a - PTX_PARAM_WINDOW < PTX_WINDOW_BYTES) {
        *inout_address = a - PTX_PARAM_WINDOW;
        return PTX_PARAM;
    }
    return PTX_GLOBAL;
}

uint32_t ptx_shared_address(ptx_warp *w, const ptx_insn *i, int lane, uint64_t address) {
    if (address - PTX_SHARED_WINDOW < PTX_WINDOW_BYTES) { // where an instruction takes generic addresses
        address -= PTX_SHARED_WINDOW;
    }
    if (address > UINT32_MAX) {
        ptx_fault(w, i, lane, "0x%llx is no address of shared memory", (unsigned long long)address);
    }
    return (uint32_t)address;
}

// Local memory and parameters: nobody else's.
static uint8_t *private_at(ptx_warp *w, const ptx_insn *i, int lane, ptx_space space, uint64_t address,
                           uint32_t bytes) {
    const bool local = space == PTX_LOCAL;
    const uint64_t size = local ? w->entry->local_bytes : w->entry->param_bytes;
    if (!local && address >= PTX_CALL_PARAM) {
        ptx_unable(w, i, "calls are not executed here");
    }
    if (address & (bytes - 1)) {
        ptx_fault(w, i, lane, "%s address 0x%llx is no multiple of %u", local ? "local" : "parameter",
                  (unsigned long long)address, bytes);
    }
    if (address > size || bytes > size - address) {
        ptx_fault(w, i, lane, "%s address 0x%llx, %u bytes: out of bounds, there are %llu bytes",
                  local ? "local" : "parameter", (unsigned long long)address, bytes,
                  (unsigned long long)size);
    }
    return local ? w->local + (uint64_t)lane * w->entry->local_bytes + address : w->launch->params + address;
}

static const ptx_operand *part(const ptx_operand *o, int k) {
    return o->kind == PTX_VECTOR ? &o->parts[k] : o;
}

// ---- loads ------------------------------------------------------------------------------------------------

static void to_registers(const ptx_warp *w, const ptx_insn *i, int lane, const uint8_t *data) {
    const int bytes = i->elem_bytes;
    for (int k = 0; k < i->vector; k++) {
        const ptx_operand *d = part(&i->op[0], k);
        uint64_t value = 0;
        memcpy(&value, data + k * bytes, (size_t)bytes);
        if (i->flag) { // signed
            const int shift = 64 - 8 * bytes;
            value = (uint64_t)((int64_t)(value << shift) >> shift);
        }
        if (d->kind == PTX_REGISTER) {
            ptx_lane_set(w, d->place, d->bytes, lane, value);
        }
    }
}

#define MOVE_LANES(REGISTER, ELEMENT)                                                                        \
    PTX_EACH_LANE(l, mask) {                                                                                 \
        ELEMENT x;                                                                                           \
        memcpy(&x, from[l] + at, sizeof x);                                                                  \
        ((REGISTER *)d)[l] = (REGISTER)x;                                                                    \
    }                                                                                                        \
    break

// The same for many lanes: from[lane] is where its data begin.
static void lanes_to_registers(const ptx_warp *w, const ptx_insn *i, uint32_t mask,
                               uint8_t *const from[PTX_LANES]) {
    const bool single = i->vector == 1;
    for (int k = 0; k < i->vector; k++) {
        const ptx_operand *o = part(&i->op[0], k);
        if (o->kind != PTX_REGISTER) {
            continue;
        }
        void *d = ptx_lanes_of(w, o);
        const size_t at = (size_t)k * i->elem_bytes;
        switch (o->bytes * 100 + i->elem_bytes * 10 + i->flag) {
        case 440:
        case 441:
            MOVE_LANES(uint32_t, uint32_t);
        case 880:
        case 881:
            MOVE_LANES(uint64_t, uint64_t);
        case 220:
        case 221:
            MOVE_LANES(uint16_t, uint16_t);
        case 210:
            MOVE_LANES(uint16_t, uint8_t);
        case 420:
            MOVE_LANES(uint32_t, uint16_t);
        case 410:
            MOVE_LANES(uint32_t, uint8_t);
        default:
            PTX_EACH_LANE(l, single ? mask : 0) {
                to_registers(w, i, (int)l, from[l]);
            }
            PTX_EACH_LANE(m, single ? 0 : mask) {
                uint64_t value = 0;
                memcpy(&value, from[m] + at, i->elem_bytes);
                const int shift = 64 - 8 * i->elem_bytes;
                value = i->flag ? (uint64_t)((int64_t)(value << shift) >> shift) : value;
                ptx_lane_set(w, o->place, o->bytes, (int)m, value);
            }
            break;
        }
    }
}

// What an address operand gives in all lanes.
static void lane_addresses(const ptx_warp *w, const ptx_operand *o, uint64_t at[PTX_LANES]) {
    const uint64_t by = (uint64_t)o->value;
    if (o->place == PTX_NO_PLACE) {
        for (int l = 0; l < PTX_LANES; l++) {
            at[l] = by;
        }
    } else if (o->bytes == 8) {
        const uint64_t *base = ptx_at(w, o->place);
        for (int l = 0; l < PTX_LANES; l++) {
            at[l] = base[l] + by;
        }
    } else if (o->bytes == 4) {
        const uint32_t *base = ptx_at(w, o->place);
        for (int l = 0; l < PTX_LANES; l++) {
            at[l] = base[l] + by;
        }
    } else {
        for (int l = 0; l < PTX_LANES; l++) {
            at[l] = ptx_lane_address(w, o, l);
        }
    }
}

// Whether all lanes' addresses are in global memory, whatever space is written.
static bool all_global(const ptx_insn *i, const uint64_t at[PTX_LANES], uint32_t mask) {
    bool all = i->space == PTX_GLOBAL;
    if (i->space == PTX_GENERIC) {
        all = true;
        PTX_EACH_LANE(l, mask) {
            all &= at[l] < PTX_PARAM_WINDOW;
        }
    }
    return all;
}

// No two lanes have one address, as far as a short look can tell.
static bool all_apart(const uint32_t at[PTX_LANES], uint32_t mask, uint32_t bytes) {
    const int shift = __builtin_ctz(bytes);
    uint64_t seen[4] = {0};
    bool twice = false;
    PTX_EACH_LANE(l, mask) {
        const uint32_t slot = at[l] >> shift & 255;
        twice |= seen[slot / 64] >> slot % 64 & 1;
        seen[slot / 64] |= UINT64_C(1) << slot % 64;
    }
    return !twice;
}

static void load_shared(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    const uint32_t bytes = (uint32_t)i->elem_bytes * i->vector;
    uint64_t wide[PTX_LANES];
    uint32_t at[PTX_LANES], left = mask;
    uint8_t *from[PTX_LANES];
    lane_addresses(w, &i->op[1], wide);
    PTX_EACH_LANE(l, mask) {
        at[l] = wide[l] > UINT32_MAX ? ptx_shared_address(w, i, (int)l, wide[l]) : (uint32_t)wide[l];
    }
    if (all_apart(at, mask, bytes)) {
        left = ptx_shared_warp(w, i, at, mask, bytes, false);
    }
    while (left) { // lanes that read the same bytes, together
        const uint32_t address = at[__builtin_ctz(left)];
        uint32_t same = 0;
        PTX_EACH_LANE(m, left) {
            same |= (uint32_t)(at[m] == address) << m;
        }
        ptx_shared_read(w, i, same, address, bytes, bytes);
        left &= ~same;
    }
    PTX_EACH_LANE(n, mask) {
        from[n] = w->block->shared.data + at[n];
    }
    lanes_to_registers(w, i, mask, from);
    if (w->launch->line_counts) {
        ptx_count_shared(w->launch, i, at, mask, (int)bytes);
    }
}

static void exec_ld(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    const uint32_t bytes = (uint32_t)i->elem_bytes * i->vector;
    if (i->space == PTX_SHARED && i->sem == PTX_WEAK) {
        load_shared(w, i, mask);
        return;
    }
    uint64_t at[PTX_LANES];
    uint32_t global = 0, left = mask;
    lane_addresses(w, &i->op[1], at);
    if (i->sem == PTX_WEAK && all_global(i, at, mask)) {
        uint8_t *from[PTX_LANES];
        bool same = true;
        PTX_EACH_LANE(l, mask) {
            same &= at[l] == at[__builtin_ctz(mask)];
        }
        // Where all lanes read the same bytes, the last lane is remembered.
        const uint32_t asked = same ? 1U << (31 - __builtin_clz(mask)) : mask;
        left = ptx_global_warp(w, at, asked, bytes, false, from);
        if (same && !left) {
            PTX_EACH_LANE(m, mask) {
                from[m] = from[31 - __builtin_clz(mask)];
            }
        } else if (same) {
            left = mask;
        }
        lanes_to_registers(w, i, mask & ~left, from);
        global = mask & ~left;
    }
    PTX_EACH_LANE(l, left) {
        const ptx_space space = ptx_resolve(i->space, &at[l]);
        const ptx_access access = i->sem == PTX_WEAK ? PTX_READ : PTX_STRONG_READ;
        const uint8_t *data;
        if (space == PTX_SHARED) {
            const uint32_t address = ptx_shared_address(w, i, (int)l, at[l]);
            ptx_shared_access(w, i, (int)l, address, bytes, bytes, access, NULL);
            data = w->block->shared.data + address;
        } else if (space == PTX_GLOBAL || space == PTX_CONST) {
            data = ptx_global_access(w, i, (int)l, at[l], bytes, bytes, access, NULL);
            if (i->flag2) { // .nc
                ptx_global_unwritten(w, i, (int)l, at[l], bytes);
            }
            global |= 1U << l;
        } else {
            data = private_at(w, i, (int)l, space, at[l], bytes);
        }
        if (access == PTX_STRONG_READ) {
            w->yield = true; // perhaps it polls
            ptx_strong(w, (int)l, space == PTX_SHARED, at[l], true, false, i->sem, i->scope);
        }
        to_registers(w, i, (int)l, data);
    }
    if (w->launch->line_counts && global) {
        ptx_count_global(w->launch, i, at, global, (int)bytes);
    }
}

// ---- stores -----------------------------------------------------------------------------------------------

static void from_registers(const ptx_warp *w, const ptx_insn *i, int lane, uint8_t *data) {
    const int bytes = i->elem_bytes;
    for (int k = 0; k < i->vector; k++) {
        const int from = i->form ? (bytes == 1 ? 2 : bytes) : part(&i->op[1], k)->bytes;
        const ptx_operand *s = part(&i->op[1], k);
        const uint32_t *places = i->more;
        const uint64_t value = ptx_lane_value(w, places[k], s->kind == PTX_REGISTER ? s->bytes : from, lane);
        memcpy(data + k * bytes, &value, (size_t)bytes);
    }
}

#define STORE_LANES(REGISTER, ELEMENT)                                                                       \
    PTX_EACH_LANE(l, mask) {                                                                                 \
        const ELEMENT x = (ELEMENT)((const REGISTER *)s)[l];                                                 \
        memcpy(to[l] + at, &x, sizeof x);                                                                    \
    }                                                                                                        \
    break

// The same for many lanes, to where to[lane] says.
static void lanes_from_registers(const ptx_warp *w, const ptx_insn *i, uint32_t mask,
                                 uint8_t *const to[PTX_LANES]) {
    const uint32_t *places = i->more;
    for (int k = 0; k < i->vector; k++) {
        const ptx_operand *o = part(&i->op[1], k);
        const int bytes = o->kind == PTX_REGISTER ? o->bytes : i->elem_bytes == 1 ? 2 : i->elem_bytes;
        const void *s = ptx_at(w, places[k]);
        const size_t at = (size_t)k * i->elem_bytes;
        switch (bytes * 10 + i->elem_bytes) {
        case 44:
            STORE_LANES(uint32_t, uint32_t);
        case 88:
            STORE_LANES(uint64_t, uint64_t);
        case 22:
            STORE_LANES(uint16_t, uint16_t);
        case 21:
            STORE_LANES(uint16_t, uint8_t);
        case 41:
            STORE_LANES(uint32_t, uint8_t);
        default:
            PTX_EACH_LANE(m, mask) {
                const uint64_t value = ptx_lane_value(w, places[k], bytes, (int)m);
                memcpy(to[m] + at, &value, i->elem_bytes);
            }
            break;
        }
    }
}

/* Where lanes store to one address, the last one wins; the others leave no trace. So warps that all do the
 * same agree to the bit, also where the lanes of each differ by the rounding of fused sums. */
static uint32_t winners(const uint64_t at[PTX_LANES], uint32_t mask) {
    uint32_t kept = mask, before = (uint32_t)__builtin_ctz(mask);
    bool rising = true;
    PTX_EACH_LANE(l, mask & (mask - 1)) {
        rising = rising && at[l] > at[before];
        before = l;
    }
    if (rising) {
        return mask;
    }
    PTX_EACH_LANE(a, mask) {
        PTX_EACH_LANE(b, mask) {
            kept &= ~((uint32_t)(a < b && at[a] == at[b]) << a);
        }
    }
    return kept;
}

// Weak stores, no two of them to one address: those that raise no question. The lanes that are left.
static uint32_t store_plain(ptx_warp *w, const ptx_insn *i, const uint64_t at[PTX_LANES], uint32_t mask) {
    const uint32_t bytes = (uint32_t)i->elem_bytes * i->vector;
    uint8_t *to[PTX_LANES];
    uint32_t left = mask;
    if (i->space == PTX_SHARED) {
        uint32_t low[PTX_LANES];
        uint64_t high = 0;
        PTX_EACH_LANE(l, mask) {
            low[l] = (uint32_t)at[l];
            high |= at[l] >> 32;
            to[l] = w->block->shared.data + low[l];
        }
        left = high ? mask : ptx_shared_warp(w, i, low, mask, bytes, true);
    } else if (all_global(i, at, mask)) {
        left = ptx_global_warp(w, at, mask, bytes, true, to);
    }
    lanes_from_registers(w, i, mask & ~left, to);
    return left;
}

static void exec_st(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    const uint32_t bytes = (uint32_t)i->elem_bytes * i->vector;
    uint64_t at[PTX_LANES];
    uint32_t shared_at[PTX_LANES], global = 0, shared = 0;
    lane_addresses(w, &i->op[0], at);
    // A space of its own for each lane has no common address.
    const bool common = i->sem == PTX_WEAK && (i->space == PTX_SHARED || i->space == PTX_GLOBAL);
    uint32_t left = common ? winners(at, mask) : mask;
    if (common) {
        left = store_plain(w, i, at, left);
    }
    PTX_EACH_LANE(l, mask) {
        const ptx_space space = ptx_resolve(i->space, &at[l]);
        if (space == PTX_SHARED) {
            shared_at[l] = ptx_shared_address(w, i, (int)l, at[l]);
        }
        shared |= (uint32_t)(space == PTX_SHARED) << l;
        global |= (uint32_t)(space == PTX_GLOBAL) << l;
        if (!(left >> l & 1)) {
            continue;
        }
        uint8_t data[32];
        from_registers(w, i, (int)l, data);
        const ptx_access access = i->sem == PTX_WEAK ? PTX_WRITE : PTX_ATOMIC;
        uint8_t *to;
        if (space == PTX_SHARED) {
            ptx_shared_access(w, i, (int)l, shared_at[l], bytes, bytes, access, data);
            to = w->block->shared.data + shared_at[l];
        } else if (space == PTX_GLOBAL) {
            to = ptx_global_access(w, i, (int)l, at[l], bytes, bytes, access, data);
        } else if (space == PTX_LOCAL) {
            to = private_at(w, i, (int)l, space, at[l], bytes);
        } else {
            if (at[l] >= PTX_CALL_PARAM && space == PTX_PARAM) {
                continue; // the call itself will say that it is not executed
            }
            ptx_fault(w, i, (int)l, "writes to parameters or constants");
        }
        if (access == PTX_ATOMIC) {
            ptx_strong(w, (int)l, space == PTX_SHARED, at[l], false, true, i->sem, i->scope);
        }
        memcpy(to, data, bytes);
    }
    if (shared) {
        ptx_progress(w->launch);
    }
    if (w->launch->line_counts && global) {
        ptx_count_global(w->launch, i, at, global, (int)bytes);
    }
    if (w->launch->line_counts && shared) {
        ptx_count_shared(w->launch, i, shared_at, shared, (int)bytes);
    }
}

// ---- decoders ---------------------------------------------------------------------------------------------

ptx_space ptx_take_space(ptx_mods *mods) {
    static const char *const names[] = {"global", "shared",       "shared::cta", "shared::cluster", "local",
                                        "param",  "param::entry", "param::func", "const",           NULL};
    static const ptx_space spaces[] = {PTX_GENERIC, PTX_GLOBAL, PTX_SHARED, PTX_SHARED, PTX_SHARED,
                                       PTX_LOCAL,   PTX_PARAM,  PTX_PARAM,  PTX_PARAM,  PTX_CONST};
    return spaces[ptx_take_one(mods, names)];
}

bool ptx_take_hints(ptx_mods *mods) {
    static const char *const hints[] = {"ca",
                                        "cg",
                                        "cs",
                                        "lu",
                                        "cv",
                                        "wb",
                                        "wt",
                                        "nc",
                                        "unified",
                                        "L1::evict_normal",
                                        "L1::evict_unchanged",
                                        "L1::evict_first",
                                        "L1::evict_last",
                                        "L1::no_allocate",
                                        "L2::64B",
                                        "L2::128B",
                                        "L2::256B",
                                        "L2::evict_first",
                                        "L2::evict_last",
                                        "L2::evict_normal",
                                        NULL};
    while (ptx_take_one(mods, hints)) {
    }
    return ptx_take(mods, "L2::cache_hint");
}

static void take_common(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    static const char *const vectors[] = {"v2", "v4", "v8", NULL};
    const ptx_type type = ptx_one_type(p, i, mods);
    const bool is_volatile = ptx_take(mods, "volatile");
    const bool scoped = ptx_take_scope(i, mods);
    ptx_take_sem(i, mods, is_volatile ? PTX_RELAXED : PTX_WEAK);
    i->scope = is_volatile || !scoped ? PTX_SCOPE_GPU : i->scope;
    i->space = (uint8_t)ptx_take_space(mods);
    i->flag2 = ptx_take(mods, "nc");
    const bool hint = ptx_take_hints(mods);
    const int vector = ptx_take_one(mods, vectors);
    i->vector = (uint8_t)(vector ? 1 << vector : 1);
    i->elem_bytes = (uint8_t)ptx_type_bytes(type);
    i->type = (uint8_t)type;
    i->flag = ptx_type_kind(type) == 's';
    ptx_need_ops(p, i, 2, 2 + hint);
    if (i->elem_bytes == 0 || i->elem_bytes > 8 || i->elem_bytes * i->vector > 32 ||
        (i->sem != PTX_WEAK && i->space == PTX_CONST)) {
        ptx_refuse(p, "unknown form of %s", i->name);
    }
}

static ptx_class class_of(int space) {
    return space == PTX_SHARED                        ? PTX_CLASS_SHARED
           : space == PTX_LOCAL                       ? PTX_CLASS_LOCAL
           : space == PTX_PARAM || space == PTX_CONST ? PTX_CLASS_PARAM
                                                      : PTX_CLASS_GLOBAL;
}

static void check_vector(ptx_parser *p, const ptx_insn *i, const ptx_operand *o) {
    if ((o->kind == PTX_VECTOR ? o->count : 1) != i->vector) {
        ptx_refuse(p, "%s with a vector of %d", i->name, o->count);
    }
}

void ptx_decode_ld(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    take_common(p, i, mods);
    check_vector(p, i, &i->op[0]);
    (void)ptx_address_register(p, &i->op[1]);
    for (int k = 0; k < i->vector; k++) {
        const ptx_operand *d = part(&i->op[0], k);
        if (d->kind != PTX_SINK && (d->kind != PTX_REGISTER || d->special || d->bytes < i->elem_bytes)) {
            ptx_refuse(p, "%s: the result needs a register that is large enough", i->name);
        }
    }
    ptx_use_exec(i, exec_ld, class_of(i->space), 1);
}

void ptx_decode_st(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    take_common(p, i, mods);
    check_vector(p, i, &i->op[1]);
    (void)ptx_address_register(p, &i->op[0]);
    uint32_t *places = ptx_parser_alloc(p, sizeof *places * i->vector);
    for (int k = 0; k < i->vector; k++) {
        const ptx_operand *s = part(&i->op[1], k);
        if (s->kind == PTX_REGISTER && s->bytes < i->elem_bytes) {
            ptx_refuse(p, "%s: a register is too small", i->name);
        }
        places[k] = s->kind == PTX_REGISTER ? s->place : ptx_source(p, s, (ptx_type)i->type);
    }
    i->more = places;
    i->form = 1;
    ptx_use_exec(i, exec_st, class_of(i->space), 0);
}

static void exec_discard(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    PTX_EACH_LANE(l, mask) {
        const uint64_t at = ptx_lane_address(w, &i->op[0], (int)l);
        (void)ptx_global_access(w, i, (int)l, at, 128, 128, PTX_WRITE, NULL);
        (void)sbp_ptx_memory_mark(w->launch->memory, at, 128, false);
    }
}

void ptx_decode_discard(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    (void)ptx_take(mods, "global");
    ptx_need_ops(p, i, 2, 2);
    if (!ptx_take(mods, "L2") || ptx_integer(p, &i->op[1]) != 128) {
        ptx_refuse(p, "unknown form of %s", i->name);
    }
    (void)ptx_address_register(p, &i->op[0]);
    ptx_use_exec(i, exec_discard, PTX_CLASS_GLOBAL, 0);
}
