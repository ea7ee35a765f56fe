/* bar and barrier: the 16 barriers of a block, bar.warp.sync, barriers of a cluster of one. */
#include "tests/ptx/decode.h"
#include "tests/ptx/machine.h"

enum { FORM_SYNC, FORM_ARRIVE, FORM_RED };

static void complete(ptx_block *b, ptx_barrier *bar) {
    ptx_launch *L = b->launch;
    // Where all threads take part, whatever was done until now is known to everyone. Threads that left told
    // nobody.
    bool all = true;
    for (int k = 0; k < b->warp_count; k++) {
        ptx_warp *w = &b->warps[k];
        all &= w->live == w->exists && bar->waiting >> k & 1;
        if (!(bar->waiting >> k & 1)) {
            continue;
        }
        w->state = PTX_WARP_RUNS;
        ptx_acquire(w, w->live, bar->view);
        if (bar->op) {
            const ptx_insn *i = &w->entry->code[w->pc - 1];
            const uint32_t yes = bar->op == 2 ? (bar->all ? PTX_FULL : 0) : bar->any ? PTX_FULL : 0;
            uint32_t *d = ptx_at(w, i->dst);
            if (bar->op == 1) {
                PTX_EACH_LANE(l, w->live) {
                    d[l] = bar->popc;
                }
            } else {
                *d = (*d & ~w->live) | (yes & w->live);
            }
        }
    }
    const uint32_t now = ptx_tick(L);
    if (all) {
        b->settled = now;
        for (int k = 0; k < b->warp_count; k++) {
            b->warps[k].together = now;
        }
    }
    ptx_view_drop(bar->view);
    *bar = (ptx_barrier){0};
    ptx_progress(L);
}

static bool is_full(const ptx_block *b, const ptx_barrier *bar) {
    if (bar->expected) {
        return bar->count >= bar->expected;
    }
    uint32_t live = 0;
    for (int k = 0; k < b->warp_count; k++) {
        live |= (uint32_t)(b->warps[k].live != 0) << k;
    }
    return bar->count && !(live & ~(bar->waiting | bar->arrived));
}

void ptx_barriers_check(ptx_block *b) {
    for (int k = 0; k < PTX_BARRIERS; k++) {
        ptx_barrier *bar = &b->barriers[k];
        if (bar->count && !bar->expected && is_full(b, bar)) {
            complete(b, bar);
        }
    }
}

static uint32_t uniform(ptx_warp *w, const ptx_insn *i, uint32_t mask, uint32_t place, const char *what) {
    const uint32_t *v = ptx_at(w, place), first = v[__builtin_ctz(mask)];
    PTX_EACH_LANE(l, mask) {
        if (v[l] != first) {
            ptx_fault(w, i, (int)l, "lanes of a warp give different %s: %u and %u", what, first, v[l]);
        }
    }
    return first;
}

static void exec_bar(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    ptx_block *b = w->block;
    if (!ptx_gather(w, i, mask, PTX_FULL)) {
        return;
    }
    const uint32_t id = uniform(w, i, mask, i->src[0], "barriers");
    const uint32_t count = i->flag ? uniform(w, i, mask, i->src[1], "counts") : 0;
    if (id >= PTX_BARRIERS) {
        ptx_fault(w, i, -1, "barrier %u of %d", id, PTX_BARRIERS);
    }
    if (i->flag && (count == 0 || count % PTX_LANES || count > b->launch->threads)) {
        ptx_fault(w, i, -1, "a barrier for %u threads in a block of %u", count, b->launch->threads);
    }
    ptx_barrier *bar = &b->barriers[id];
    const uint32_t me = 1U << w->index;
    if (bar->count && (bar->expected != count || bar->op != (i->form == FORM_RED ? i->vector : 0))) {
        ptx_fault(w, i, -1, "barrier %u is used for %u threads here, and for %u at line %d, in one round", id,
                  count, bar->expected, bar->line);
    }
    if (bar->arrived & me) { // an arrival of the next round before this one is complete
        ptx_fault(w, i, -1, "the warp arrives at barrier %u twice in one round", id);
    }
    bar->line = i->line;
    bar->expected = count;
    bar->count += PTX_LANES;
    if (i->form == FORM_RED) {
        const uint32_t p = (*(uint32_t *)ptx_at(w, i->combine) ^ (i->combine_not ? PTX_FULL : 0)) & w->live;
        bar->all = bar->op ? bar->all && p == w->live : p == w->live;
        bar->any |= p != 0;
        bar->popc += (uint32_t)__builtin_popcount(p);
        bar->op = i->vector;
    }
    ptx_view *v = ptx_release(w, mask);
    ptx_join_into(b->launch, &bar->view, v);
    ptx_view_drop(v);
    ptx_progress(b->launch);
    if (i->form == FORM_ARRIVE) {
        bar->arrived |= me;
    } else {
        bar->waiting |= me;
        w->state = PTX_WARP_AT_BARRIER;
        w->barrier = (int)id;
        w->yield = true;
    }
    if (is_full(b, bar)) {
        complete(b, bar);
    }
}

static void exec_warp_sync(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    const uint32_t *members = ptx_at(w, i->src[0]);
    uint32_t needed = 0;
    PTX_EACH_LANE(l, mask) {
        needed |= members[l];
        if (!(members[l] >> l & 1)) {
            ptx_fault(w, i, (int)l, "the lane is not in its own member mask 0x%08x", members[l]);
        }
    }
    if (!ptx_gather(w, i, mask, needed)) {
        return;
    }
    uint32_t left = mask;
    while (left) { // masks that differ are groups of their own
        const uint32_t group = members[__builtin_ctz(left)] & mask;
        ptx_sync_lanes(w, group);
        left &= ~group;
    }
}

// In a cluster of one the cluster's barrier is one of the block, of its own.
static void exec_cluster_arrive(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    (void)i;
    (void)mask;
    ptx_progress(w->launch);
}

void ptx_decode_bar(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    static const char *const forms[] = {"sync", "arrive", "red", NULL};
    static const char *const ops[] = {"popc", "and", "or", NULL};
    (void)ptx_take(mods, "cta");
    (void)ptx_take(mods, "aligned");
    if (ptx_take(mods, "cluster")) {
        const bool wait = ptx_take(mods, "wait");
        (void)ptx_take(mods, "arrive");
        ptx_take_sem(i, mods, PTX_ACQ_REL);
        ptx_need_ops(p, i, 0, 0);
        if (wait) { // waiting for the whole block
            i->src[0] = ptx_constant(p, PTX_BARRIERS - 1, 4);
            i->form = FORM_SYNC;
            ptx_use_exec(i, exec_bar, PTX_CLASS_BARRIER, 0);
        } else {
            ptx_use_exec(i, exec_cluster_arrive, PTX_CLASS_BARRIER, 0);
        }
        return;
    }
    if (ptx_take(mods, "warp")) {
        ptx_need_ops(p, i, 1, 1);
        if (!ptx_take(mods, "sync")) {
            ptx_refuse(p, "unknown form of %s", i->name);
        }
        i->src[0] = ptx_source(p, &i->op[0], PTX_b32);
        ptx_use_exec(i, exec_warp_sync, PTX_CLASS_BARRIER, 0);
        return;
    }
    const int form = ptx_take_one(mods, forms);
    if (!form) {
        ptx_refuse(p, "unknown form of %s", i->name);
    }
    i->form = (uint8_t)(form - 1);
    const int first = i->form == FORM_RED ? 1 : 0;
    if (i->form == FORM_RED) {
        bool negated;
        i->vector = (uint8_t)ptx_take_one(mods, ops);
        ptx_need_ops(p, i, 3, 4);
        if (!i->vector) {
            ptx_refuse(p, "unknown form of %s", i->name);
        }
        i->dst = i->vector == 1 ? ptx_target(p, &i->op[0], 4) : ptx_predicate(p, &i->op[0], &negated);
        i->combine = ptx_predicate(p, &i->op[i->ops - 1], &negated);
        i->combine_not = negated;
        i->flag = i->ops == 4;
    } else {
        ptx_need_ops(p, i, i->form == FORM_ARRIVE ? 2 : 1, 2);
        i->flag = i->ops == 2;
    }
    i->src[0] = ptx_source(p, &i->op[first], PTX_u32);
    if (i->flag) {
        i->src[1] = ptx_source(p, &i->op[first + 1], PTX_u32);
    }
    ptx_use_exec(i, exec_bar, PTX_CLASS_BARRIER, first);
}
