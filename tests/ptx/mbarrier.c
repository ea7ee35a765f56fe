/* mbarrier: arrivals and bytes that complete phases; who sees a phase complete knows what its arrivals
 * released. */
#include "tests/ptx/decode.h"
#include "tests/ptx/exec_mem.h"
#include "tests/ptx/machine.h"

enum { MAX_COUNT = (1 << 20) - 1 };

ptx_mbarrier *ptx_mbarrier_find(ptx_block *b, uint32_t address) {
    for (int k = 0; k < b->mbarrier_count; k++) {
        if (b->mbarriers[k].expected && b->mbarriers[k].address == address) {
            return &b->mbarriers[k];
        }
    }
    return NULL;
}

ptx_mbarrier *ptx_mbarrier_at(ptx_warp *w, const ptx_insn *i, int lane, uint32_t address) {
    ptx_shared_bounds(w, i, lane, address, 8, 8);
    ptx_mbarrier *m = ptx_mbarrier_find(w->block, address);
    if (!m) {
        ptx_fault(w, i, lane, "there is no mbarrier at shared address 0x%x", address);
    }
    ptx_shared_mbarrier(w->block, address, false);
    ptx_shared_access(w, i, lane, address, 8, 8, PTX_STRONG_READ, NULL); // its init must have happened before
    ptx_shared_mbarrier(w->block, address, true);
    return m;
}

void ptx_mbarrier_agent(ptx_block *b, ptx_mbarrier *m, int line) {
    ptx_view *v = m->collecting ? ptx_view_copy(m->collecting) : ptx_view_create(b->number, b->launch->slots);
    if (!v) {
        ptx_no_memory(b->launch);
    }
    ptx_known(v->own)[b->launch->threads + (uint32_t)m->agent] = ptx_tick(b->launch);
    ptx_view_drop(m->collecting);
    m->collecting = v;
    m->loads_phase = m->phase + 1;
    m->loads_line = line;
}

void ptx_mbarrier_update(ptx_block *b, ptx_mbarrier *m, uint32_t arrivals, int64_t tx, ptx_view *view) {
    if (view) {
        ptx_join_into(b->launch, &m->collecting, view);
    }
    m->pending -= arrivals;
    m->tx -= tx;
    if (m->pending == 0 && m->tx == 0) {
        ptx_view_drop(m->complete);
        m->complete = m->collecting;
        m->collecting = NULL;
        m->pending = m->expected;
        m->phase++;
    }
    ptx_progress(b->launch);
}

void ptx_mbarriers_check(ptx_block *b) {
    for (int k = 0; k < b->mbarrier_count; k++) {
        const ptx_mbarrier *m = &b->mbarriers[k];
        if (m->loads_phase > m->seen_phase) {
            ptx_fail(b->launch,
                     "line %d: a bulk copy is pending when its block ends: nobody waited for it at the "
                     "mbarrier 0x%x",
                     m->loads_line, m->address);
        }
    }
}

void ptx_mbarriers_free(ptx_block *b) {
    for (int k = 0; k < b->mbarrier_count; k++) {
        ptx_view_drop(b->mbarriers[k].collecting);
        ptx_view_drop(b->mbarriers[k].complete);
    }
}

// ---- instructions -----------------------------------------------------------------------------------------

static uint32_t address_of(ptx_warp *w, const ptx_insn *i, int lane, const ptx_operand *o) {
    uint64_t address = ptx_lane_address(w, o, lane);
    if (ptx_resolve(i->space, &address) != PTX_SHARED) {
        ptx_fault(w, i, lane, "0x%llx is no address of shared memory", (unsigned long long)address);
    }
    return ptx_shared_address(w, i, lane, address);
}

static void exec_init(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    ptx_block *b = w->block;
    static const uint8_t zeros[8];
    PTX_EACH_LANE(l, mask) {
        const uint32_t address = address_of(w, i, (int)l, &i->op[0]);
        const uint32_t count = (uint32_t)ptx_lane_value(w, i->src[0], 4, (int)l);
        if (count == 0 || count > MAX_COUNT) {
            ptx_fault(w, i, (int)l, "an mbarrier for %u arrivals", count);
        }
        if (ptx_mbarrier_find(b, address)) {
            ptx_fault(w, i, (int)l, "there is an mbarrier at shared address 0x%x, which was not invalidated",
                      address);
        }
        ptx_shared_access(w, i, (int)l, address, 8, 8, PTX_WRITE, zeros);
        ptx_shared_mbarrier(b, address, true);
        memset(b->shared.data + address, 0, 8);
        int k = 0; // the place of an earlier one at this address keeps its number, for its times go on
        while (k < b->mbarrier_count && b->mbarriers[k].address != address) {
            k++;
        }
        if (k == PTX_MAX_AGENTS) {
            ptx_unable(w, i, "more than %d mbarriers in a block", PTX_MAX_AGENTS);
        }
        b->mbarrier_count += k == b->mbarrier_count;
        ptx_view_drop(b->mbarriers[k].complete);
        ptx_view_drop(b->mbarriers[k].collecting);
        b->mbarriers[k] = (ptx_mbarrier){.address = address, .expected = count, .pending = count, .agent = k};
    }
    ptx_progress(w->launch);
}

static void exec_inval(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    static const uint8_t zeros[8];
    PTX_EACH_LANE(l, mask) {
        const uint32_t address = address_of(w, i, (int)l, &i->op[0]);
        ptx_mbarrier *m = ptx_mbarrier_at(w, i, (int)l, address);
        ptx_shared_mbarrier(w->block, address, false);
        ptx_shared_access(w, i, (int)l, address, 8, 8, PTX_WRITE, zeros);
        for (const ptx_copy *c = w->block->late; c; c = c->next) {
            if (c->barrier == address) {
                ptx_fault(w, i, (int)l, "the copy of line %d still reports to this mbarrier", c->insn->line);
            }
        }
        if (m->loads_phase > m->seen_phase) {
            ptx_fault(w, i, (int)l, "nobody waited here for the copy of line %d", m->loads_line);
        }
        m->expected = 0;
        memset(w->block->shared.state + address, 0, 8);
    }
}

// Lanes of the mask whose address is that of the first.
static uint32_t same_address(ptx_warp *w, const ptx_insn *i, uint32_t mask, const ptx_operand *o,
                             uint32_t *out) {
    uint32_t same = 0;
    *out = address_of(w, i, __builtin_ctz(mask), o);
    PTX_EACH_LANE(l, mask) {
        same |= (uint32_t)(address_of(w, i, (int)l, o) == *out) << l;
    }
    return same;
}

static void arrive_one(ptx_warp *w, const ptx_insn *i, int lane, ptx_mbarrier *m, ptx_view *view) {
    const int first = i->flag; // a state comes first
    const uint64_t token = (uint64_t)m->phase << 32 | m->pending;
    const uint32_t operand = i->src[0] == PTX_NO_PLACE ? 1 : (uint32_t)ptx_lane_value(w, i->src[0], 4, lane);
    const uint32_t count = i->flag2 ? 1 : operand; // flag2: .expect_tx
    if (first && i->op[0].kind == PTX_REGISTER) {
        ptx_lane_set(w, i->op[0].place, 8, lane, token);
    }
    if (count == 0 || count > m->pending) {
        ptx_fault(w, i, lane, "%u arrivals at the mbarrier 0x%x, which waits for %u", count, m->address,
                  m->pending);
    }
    if (i->form == 'd') {
        m->expected -= count;
        if (m->expected == 0) {
            ptx_unable(w, i, "an mbarrier for no arrivals at all");
        }
    }
    ptx_mbarrier_update(w->block, m, 0, i->flag2 ? -(int64_t)operand : 0, view);
    ptx_mbarrier_update(w->block, m, count, 0, NULL);
}

static void exec_arrive(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    while (mask) {
        uint32_t address;
        const uint32_t same = same_address(w, i, mask, &i->op[i->flag], &address);
        ptx_view *view = i->sem == PTX_RELAXED ? NULL : ptx_release(w, same);
        w->launch->held = view;
        PTX_EACH_LANE(l, same) {
            arrive_one(w, i, (int)l, ptx_mbarrier_at(w, i, (int)l, address), view);
        }
        w->launch->held = NULL;
        ptx_view_drop(view);
        mask &= ~same;
    }
}

// expect_tx and complete_tx without an arrival.
static void exec_tx(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    PTX_EACH_LANE(l, mask) {
        ptx_mbarrier *m = ptx_mbarrier_at(w, i, (int)l, address_of(w, i, (int)l, &i->op[0]));
        const int64_t bytes = (int64_t)ptx_lane_value(w, i->src[0], 4, (int)l);
        if (i->form == 'e') {
            m->tx += bytes; // completes nothing
        } else {
            ptx_mbarrier_update(w->block, m, 0, bytes, NULL);
        }
    }
}

static void exec_wait(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    uint32_t yes = 0, refused = 0;
    if (i->form == 't') { // try_wait may give up at any time
        const uint32_t r = (uint32_t)ptx_random(w->launch);
        refused = (r & 7) == 0 ? PTX_FULL : (r & 31) == 1 ? (uint32_t)ptx_random(w->launch) : 0;
    }
    PTX_EACH_LANE(l, mask) {
        ptx_mbarrier *m = ptx_mbarrier_at(w, i, (int)l, address_of(w, i, (int)l, &i->op[1]));
        const uint64_t what = ptx_lane_value(w, i->src[0], i->flag2 ? 4 : 8, (int)l);
        const bool complete = i->flag2 ? (m->phase & 1) != (what & 1) : m->phase > what >> 32;
        if (!complete || refused >> l & 1) {
            continue;
        }
        yes |= 1U << l;
        m->seen_phase = m->phase;
        if (m->complete && i->sem != PTX_RELAXED) {
            ptx_acquire(w, 1U << l, m->complete);
        }
    }
    uint32_t *d = ptx_at(w, i->dst);
    *d = (*d & ~mask) | yes;
    if (!yes) {
        w->yield = true;
    }
}

static void exec_pending_count(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    PTX_EACH_LANE(l, mask) {
        ptx_lane_set(w, i->dst, 4, (int)l, ptx_lane_value(w, i->src[0], 8, (int)l) & UINT32_MAX);
    }
}

// ---- decoder ----------------------------------------------------------------------------------------------

static void decode_arrive(ptx_parser *p, ptx_insn *i, ptx_mods *mods, bool drops) {
    i->form = drops ? 'd' : 'a';
    i->flag2 = ptx_take(mods, "expect_tx");
    (void)ptx_take(mods, "noComplete");
    i->flag = i->ops > 0 && i->op[0].kind != PTX_ADDRESS;
    ptx_need_ops(p, i, 1 + i->flag + i->flag2, 2 + i->flag);
    (void)ptx_address_register(p, &i->op[i->flag]);
    if (i->flag && i->op[0].kind != PTX_SINK) {
        (void)ptx_target(p, &i->op[0], 8);
    }
    i->src[0] = i->ops > 1 + i->flag ? ptx_source(p, &i->op[1 + i->flag], PTX_u32) : PTX_NO_PLACE;
    ptx_use_exec(i, exec_arrive, PTX_CLASS_BARRIER, i->flag);
}

static void decode_wait(ptx_parser *p, ptx_insn *i, ptx_mods *mods, bool tries) {
    bool negated;
    i->form = tries ? 't' : 'w';
    i->flag2 = ptx_take(mods, "parity");
    ptx_need_ops(p, i, 3, tries ? 4 : 3);
    i->dst = ptx_predicate(p, &i->op[0], &negated);
    (void)ptx_address_register(p, &i->op[1]);
    i->src[0] = ptx_source(p, &i->op[2], i->flag2 ? PTX_u32 : PTX_b64);
    ptx_use_exec(i, exec_wait, PTX_CLASS_BARRIER, 1);
}

void ptx_decode_mbarrier(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    static const char *const names[] = {"init",     "inval",     "arrive",      "arrive_drop",   "test_wait",
                                        "try_wait", "expect_tx", "complete_tx", "pending_count", NULL};
    int which = 0;
    if (mods->count > 0) {
        for (which = 1; names[which - 1] && strcmp(names[which - 1], mods->mods[0]) != 0; which++) {
        }
        (void)(names[which - 1] && ptx_take(mods, names[which - 1]));
    }
    ptx_take_sem(i, mods, PTX_ACQ_REL);
    (void)ptx_take_scope(i, mods);
    i->space = (uint8_t)ptx_take_space(mods);
    if (ptx_one_type(p, i, mods) != PTX_b64 || (i->space != PTX_SHARED && i->space != PTX_GENERIC)) {
        ptx_refuse(p, "unknown form of %s", i->name);
    }
    switch (which) {
    case 1:
        ptx_need_ops(p, i, 2, 2);
        (void)ptx_address_register(p, &i->op[0]);
        i->src[0] = ptx_source(p, &i->op[1], PTX_u32);
        ptx_use_exec(i, exec_init, PTX_CLASS_BARRIER, 0);
        return;
    case 2:
        ptx_need_ops(p, i, 1, 1);
        (void)ptx_address_register(p, &i->op[0]);
        ptx_use_exec(i, exec_inval, PTX_CLASS_BARRIER, 0);
        return;
    case 3:
    case 4:
        decode_arrive(p, i, mods, which == 4);
        return;
    case 5:
    case 6:
        decode_wait(p, i, mods, which == 6);
        return;
    case 7:
    case 8:
        ptx_need_ops(p, i, 2, 2);
        i->form = which == 7 ? 'e' : 'c';
        (void)ptx_address_register(p, &i->op[0]);
        i->src[0] = ptx_source(p, &i->op[1], PTX_u32);
        ptx_use_exec(i, exec_tx, PTX_CLASS_BARRIER, 0);
        return;
    case 9:
        ptx_need_ops(p, i, 2, 2);
        i->dst = ptx_target(p, &i->op[0], 4);
        i->src[0] = ptx_source(p, &i->op[1], PTX_b64);
        ptx_use_exec(i, exec_pending_count, PTX_CLASS_BARRIER, 1);
        return;
    default:
        ptx_refuse(p, "unknown form of %s", i->name);
    }
}
