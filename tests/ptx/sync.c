/* What threads know of each other's accesses: releases and acquires, fences, signals through memory. */
#include "tests/ptx/machine.h"

#include <stdlib.h>

uint32_t ptx_tick(ptx_launch *L) {
    return L->memory->clock++;
}

static uint32_t thread_of(const ptx_warp *w, int lane) {
    return (uint32_t)(w->index * PTX_LANES + lane);
}

bool ptx_knows(const ptx_warp *w, int lane, uint32_t block, uint32_t thread, uint32_t time) {
    if (time <= w->launch->begin) {
        return true;
    }
    const ptx_slice *s = w->view[lane]->own;
    if (block == w->block->number) {
        if ((time <= w->block->settled && thread < w->launch->threads) || thread == thread_of(w, lane) ||
            (thread / PTX_LANES == (uint32_t)w->index && time <= w->together)) {
            return true;
        }
    } else {
        s = ptx_view_slice(w->view[lane], block);
    }
    return s && ptx_known((ptx_slice *)s)[thread] >= time;
}

bool ptx_knows_proxy(const ptx_warp *w, int lane, uint32_t block, uint32_t thread, uint32_t time) {
    if (time <= w->launch->begin) {
        return true;
    }
    if (block == w->block->number &&
        ((thread == thread_of(w, lane) && time <= w->fenced[lane]) ||
         (thread / PTX_LANES == (uint32_t)w->index && time <= w->mates_fenced))) {
        return true;
    }
    const ptx_slice *s = ptx_view_slice(w->view[lane], block);
    return s && ptx_proxy((ptx_slice *)s)[thread] >= time;
}

void ptx_join_into(ptx_launch *L, ptx_view **into, ptx_view *view) {
    ptx_view *joined = *into ? ptx_view_join(*into, view) : ptx_view_keep(view);
    if (!joined) {
        ptx_no_memory(L);
    }
    ptx_view_drop(*into);
    *into = joined;
}

static void raise_to(uint32_t *time, uint32_t least) {
    *time = *time > least ? *time : least;
}

// Puts into a new view what its warp's lanes know of each other without having it in their views.
static void add_mates(const ptx_warp *w, ptx_view *v, uint32_t together, uint32_t fenced) {
    uint32_t *known = ptx_known(v->own) + w->index * PTX_LANES,
             *proxy = ptx_proxy(v->own) + w->index * PTX_LANES;
    for (int l = 0; l < PTX_LANES; l++) {
        raise_to(&known[l], together);
        raise_to(&proxy[l], fenced);
    }
}

static ptx_view *copied(const ptx_warp *w, const ptx_view *from) {
    ptx_view *v = ptx_view_copy(from);
    if (!v) {
        ptx_no_memory(w->launch);
    }
    return v;
}

ptx_view *ptx_release(ptx_warp *w, uint32_t mask) {
    ptx_launch *L = w->launch;
    ptx_view *all = ptx_view_keep(w->view[__builtin_ctz(mask)]);
    PTX_EACH_LANE(l, mask) {
        if (w->view[l] != all) {
            ptx_join_into(L, &all, w->view[l]);
        }
    }
    ptx_view *v = copied(w, all);
    ptx_view_drop(all);
    add_mates(w, v, w->together, w->mates_fenced);
    const uint32_t now = ptx_tick(L);
    uint32_t *known = ptx_known(v->own) + w->index * PTX_LANES,
             *proxy = ptx_proxy(v->own) + w->index * PTX_LANES;
    PTX_EACH_LANE(m, mask) {
        known[m] = now;
        raise_to(&proxy[m], w->fenced[m]);
    }
    w->released = now;
    return v;
}

void ptx_acquire(ptx_warp *w, uint32_t mask, ptx_view *view) {
    ptx_view *from = NULL, *to = NULL; // lanes mostly share a view
    PTX_EACH_LANE(l, mask) {
        if (w->view[l] != from || !to) {
            ptx_view_drop(from);
            ptx_view_drop(to);
            from = ptx_view_keep(w->view[l]);
            to = ptx_view_join(from, view);
            if (!to) {
                ptx_no_memory(w->launch);
            }
        }
        ptx_view_drop(w->view[l]);
        w->view[l] = ptx_view_keep(to);
    }
    ptx_view_drop(from);
    ptx_view_drop(to);
}

void ptx_sync_lanes(ptx_warp *w, uint32_t mask) {
    bool same = true;
    PTX_EACH_LANE(l, mask) {
        same &= w->view[l] == w->view[__builtin_ctz(mask)];
    }
    if (!same || mask != w->live) {
        ptx_view *v = ptx_release(w, mask);
        ptx_acquire(w, mask, v);
        ptx_view_drop(v);
    }
    if (mask == w->live) {
        uint32_t fenced = UINT32_MAX;
        PTX_EACH_LANE(m, mask) {
            fenced = w->fenced[m] < fenced ? w->fenced[m] : fenced;
        }
        raise_to(&w->mates_fenced, fenced);
        w->together = ptx_tick(w->launch);
    }
}

void ptx_proxy_fence(ptx_warp *w, uint32_t mask) {
    ptx_view *from = NULL, *to = NULL;
    PTX_EACH_LANE(l, mask) {
        if (w->view[l] != from || !to) {
            ptx_view_drop(from);
            ptx_view_drop(to);
            from = ptx_view_keep(w->view[l]);
            ptx_view *v = copied(w, from);
            add_mates(w, v, w->together, w->mates_fenced);
            to = ptx_view_fenced(v);
            ptx_view_drop(v);
            if (!to) {
                ptx_no_memory(w->launch);
            }
        }
        ptx_view_drop(w->view[l]);
        w->view[l] = ptx_view_keep(to);
    }
    ptx_view_drop(from);
    ptx_view_drop(to);
    const uint32_t now = ptx_tick(w->launch);
    PTX_EACH_LANE(m, mask) {
        w->fenced[m] = now;
    }
}

void ptx_fence(ptx_warp *w, uint32_t mask, ptx_scope_id scope) {
    PTX_EACH_LANE(l, mask) {
        if (w->heard[l]) {
            ptx_acquire(w, 1U << l, w->heard[l]);
            ptx_view_drop(w->heard[l]);
            w->heard[l] = NULL;
        }
        ptx_view_drop(w->fence_view[l]);
        w->fence_view[l] = ptx_view_keep(w->view[l]);
        w->fence_scope[l] = (uint8_t)scope;
        w->fence_together[l] = w->together;
        w->fence_fenced[l] = w->fenced[l];
    }
    const uint32_t now = ptx_tick(w->launch);
    PTX_EACH_LANE(m, mask) {
        w->fence_time[m] = now;
    }
    w->released = now;
}

// ---- signals ----------------------------------------------------------------------------------------------

static uint32_t slot_of(const ptx_signals *s, uint64_t address) {
    return (uint32_t)(address * UINT64_C(0x9e3779b97f4a7c15) >> 40) & (s->slot_count - 1);
}

static ptx_signal *signal_at(ptx_launch *L, ptx_signals *s, uint64_t address, bool make) {
    if (s->slot_count) {
        for (ptx_signal *g = s->slots[slot_of(s, address)]; g; g = g->next) {
            if (g->address == address) {
                return g;
            }
        }
    }
    if (!make) {
        return NULL;
    }
    if (s->count >= s->slot_count) {
        ptx_signals grown = {.slot_count = s->slot_count ? 4 * s->slot_count : 64, .count = s->count};
        grown.slots = calloc(grown.slot_count, sizeof *grown.slots);
        if (!grown.slots) {
            ptx_no_memory(L);
        }
        for (uint32_t i = 0; i < s->slot_count; i++) {
            for (ptx_signal *g = s->slots[i], *next; g; g = next) {
                next = g->next;
                ptx_signal **slot = &grown.slots[slot_of(&grown, g->address)];
                g->next = *slot;
                *slot = g;
            }
        }
        free(s->slots);
        *s = grown;
    }
    ptx_signal *g = calloc(1, sizeof *g);
    if (!g) {
        ptx_no_memory(L);
    }
    ptx_signal **slot = &s->slots[slot_of(s, address)];
    *g = (ptx_signal){.address = address, .next = *slot};
    *slot = g;
    s->count++;
    return g;
}

void ptx_signals_free(ptx_signals *s) {
    for (uint32_t i = 0; i < s->slot_count; i++) {
        for (ptx_signal *g = s->slots[i], *next; g; g = next) {
            next = g->next;
            ptx_view_drop(g->gpu);
            ptx_view_drop(g->cta);
            free(g);
        }
    }
    free(s->slots);
    *s = (ptx_signals){0};
}

static void hear(ptx_warp *w, int lane, const ptx_signal *g, ptx_sem sem, ptx_scope_id scope) {
    ptx_view *const views[] = {scope == PTX_SCOPE_GPU ? g->gpu : NULL,
                               g->block == w->block->number ? g->cta : NULL};
    for (int n = 0; n < 2; n++) {
        if (!views[n]) {
            continue;
        }
        if (sem == PTX_ACQUIRE || sem == PTX_ACQ_REL) {
            ptx_acquire(w, 1U << lane, views[n]);
        } else if (!w->heard[lane]) { // the lane's own view first: it stays a view of its block
            w->heard[lane] = ptx_view_join(w->view[lane], views[n]);
            if (!w->heard[lane]) {
                ptx_no_memory(w->launch);
            }
        } else {
            ptx_join_into(w->launch, &w->heard[lane], views[n]);
        }
    }
}

void ptx_strong(ptx_warp *w, int lane, bool shared, uint64_t address, bool reads, bool writes, ptx_sem sem,
                ptx_scope_id scope) {
    ptx_launch *L = w->launch;
    ptx_signals *signals = shared ? &w->block->signals : &L->signals;
    ptx_signal *g = signal_at(L, signals, address, false);
    if (reads && g) {
        hear(w, lane, g, sem, scope);
    }
    if (!writes) {
        return;
    }
    ptx_view *v = NULL;
    if (sem == PTX_RELEASE || sem == PTX_ACQ_REL) {
        v = ptx_release(w, 1U << lane);
    } else if (w->fence_view[lane]) {
        v = copied(w, w->fence_view[lane]);
        add_mates(w, v, w->fence_together[lane], 0);
        ptx_known(v->own)[thread_of(w, lane)] = w->fence_time[lane];
        raise_to(&ptx_proxy(v->own)[thread_of(w, lane)], w->fence_fenced[lane]);
        scope = w->fence_scope[lane] == PTX_SCOPE_CTA ? PTX_SCOPE_CTA : scope;
    }
    if (g && !reads) { // what was released here before is not read any more
        ptx_view_drop(g->gpu);
        g->gpu = NULL;
    }
    if (g && (!reads || g->block != w->block->number)) {
        ptx_view_drop(g->cta);
        g->cta = NULL;
    }
    if (v) {
        g = signal_at(L, signals, address, true);
        g->block = w->block->number;
        ptx_join_into(L, &g->cta, v);
        if (scope == PTX_SCOPE_GPU) {
            ptx_join_into(L, &g->gpu, v);
        }
        ptx_view_drop(v);
    }
}
