/* cp.async, its groups, and the groups of bulk copies. */
#include "tests/ptx/decode.h"
#include "tests/ptx/exec_mem.h"
#include "tests/ptx/machine.h"

#include <stdlib.h>

ptx_copy *ptx_copy_add(ptx_warp *w, const ptx_insn *i, int lane, ptx_copy_kind kind) {
    ptx_copy *c = calloc(1, sizeof *c);
    if (!c) {
        ptx_no_memory(w->launch);
    }
    c->kind = (uint8_t)kind;
    c->insn = i;
    c->thread = (uint16_t)(w->index * PTX_LANES + lane);
    const bool late = kind == PTX_COPY_LOAD || kind == PTX_COPY_ARRIVE;
    ptx_copy **list = late ? &w->block->late : &w->copies;
    c->next = *list;
    *list = c;
    w->block->late_count += late;
    ptx_progress(w->launch);
    return c;
}

static void copies_free(ptx_copy *c) {
    while (c) {
        ptx_copy *next = c->next;
        ptx_view_drop(c->view);
        free(c);
        c = next;
    }
}

void ptx_copies_free(ptx_block *b) {
    copies_free(b->late);
    b->late = NULL;
    for (int k = 0; k < b->warp_count; k++) {
        copies_free(b->warps[k].copies);
        b->warps[k].copies = NULL;
    }
}

void ptx_check_copies(ptx_block *b) {
    if (b->late) {
        ptx_fail(b->launch, "line %d: %s is pending when its block ends", b->late->insn->line,
                 b->late->insn->name);
    }
    for (int k = 0; k < b->warp_count; k++) {
        for (const ptx_copy *c = b->warps[k].copies; c; c = c->next) {
            char name[96];
            if (c->kind == PTX_COPY_STORE) {
                ptx_fail(b->launch, "line %d: %s is pending when its block ends\n  %s", c->insn->line,
                         c->insn->name, ptx_thread_name(b->launch, b->number, c->thread, name));
            }
        }
    }
}

static void arrive_done(ptx_block *b, ptx_copy *c) {
    ptx_mbarrier *m = ptx_mbarrier_find(b, c->barrier);
    if (!m || m->pending == 0) {
        ptx_fail(b->launch, "line %d: %s: the mbarrier 0x%x waits for no arrival", c->insn->line,
                 c->insn->name, c->barrier);
    }
    ptx_mbarrier_update(b, m, 1, 0, c->view);
}

// Arrivals of one thread come in their order, and after what they wait for: that is in their view.
void ptx_complete_one(ptx_block *b) {
    if (!b->late) {
        return;
    }
    uint32_t skip = (uint32_t)(ptx_random(b->launch) % (uint32_t)b->late_count);
    ptx_copy **at = &b->late;
    while (skip-- && (*at)->next) {
        at = &(*at)->next;
    }
    ptx_copy *c = *at;
    *at = c->next;
    b->late_count--;
    c->next = NULL;
    if (c->kind == PTX_COPY_LOAD) {
        ptx_load_done(b, c);
    } else {
        arrive_done(b, c);
    }
    ptx_progress(b->launch);
    copies_free(c);
}

// ---- cp.async ---------------------------------------------------------------------------------------------

static void exec_cp(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    const uint32_t size = i->elem_bytes;
    uint64_t from[PTX_LANES];
    uint32_t to[PTX_LANES], reads = 0;
    PTX_EACH_LANE(l, mask) {
        const int lane = (int)l;
        uint32_t bytes = size;
        if (i->form == 's') {
            bytes = (uint32_t)ptx_lane_value(w, i->src[0], 4, lane);
        } else if (i->form == 'i') {
            bytes = ptx_lane_pred(w, &i->op[3], lane) ? 0 : size;
        }
        if (bytes > size) {
            ptx_fault(w, i, lane, "src-size %u above cp-size %u", bytes, size);
        }
        to[l] = ptx_shared_address(w, i, lane, ptx_lane_address(w, &i->op[0], lane));
        from[l] = ptx_lane_address(w, &i->op[1], lane);
        ptx_shared_bounds(w, i, lane, to[l], size, size);
        uint8_t data[16] = {0};
        if (bytes) {
            if (from[l] & (size - 1)) {
                ptx_fault(w, i, lane, "global address 0x%llx is no multiple of %u",
                          (unsigned long long)from[l], size);
            }
            memcpy(data, ptx_global_access(w, i, lane, from[l], bytes, 1, PTX_READ, NULL), bytes);
            reads |= 1U << l;
        }
        ptx_shared_async_write(w, i, lane, to[l], size, false);
        memcpy(w->block->shared.data + to[l], data, size);
        ptx_copy *c = ptx_copy_add(w, i, lane, PTX_COPY_CP);
        c->shared = to[l];
        c->bytes = size;
    }
    if (w->launch->line_counts) {
        ptx_count_shared(w->launch, i, to, mask, (int)size);
        if (reads) {
            ptx_count_global(w->launch, i, from, reads, (int)size);
        }
    }
}

static void commit(ptx_warp *w, uint32_t mask, ptx_copy_kind kind, uint32_t groups[PTX_LANES]) {
    for (ptx_copy *c = w->copies; c; c = c->next) {
        if (c->kind == kind && !c->committed && mask >> c->thread % PTX_LANES & 1) {
            c->committed = true;
            c->group = groups[c->thread % PTX_LANES];
        }
    }
    PTX_EACH_LANE(l, mask) {
        groups[l]++;
    }
}

static void exec_commit(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    (void)i;
    commit(w, mask, PTX_COPY_CP, w->groups);
}

static void exec_bulk_commit(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    (void)i;
    commit(w, mask, PTX_COPY_STORE, w->bulk_groups);
}

// Ends the copies of the lanes in mask but for those of the last `left` groups. all: those without a group
// too.
static void wait_cp(ptx_warp *w, uint32_t mask, uint32_t left, bool all) {
    for (ptx_copy **at = &w->copies; *at;) {
        ptx_copy *c = *at;
        const uint32_t lane = c->thread % PTX_LANES;
        const bool over = all || (c->committed && (uint64_t)c->group + left < w->groups[lane]);
        if (c->kind != PTX_COPY_CP || !(mask >> lane & 1) || !over) {
            at = &c->next;
            continue;
        }
        ptx_shared_write_done(w->block, c->shared, c->bytes, c->thread, false);
        *at = c->next;
        free(c);
    }
}

static void exec_wait(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    wait_cp(w, mask, i->extra, i->flag);
}

static void exec_bulk_wait(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    for (ptx_copy **at = &w->copies; *at;) {
        ptx_copy *c = *at;
        const uint32_t lane = c->thread % PTX_LANES;
        const bool over = c->committed && (uint64_t)c->group + i->extra < w->bulk_groups[lane];
        if (c->kind != PTX_COPY_STORE || !(mask >> lane & 1) || !over) {
            at = &c->next;
            continue;
        }
        ptx_store_move(w, c);
        if (!c->read_done) {
            ptx_shared_read_done(w, (int)lane, c->shared, c->bytes);
            c->read_done = true;
        }
        if (i->flag) { // .read
            at = &c->next;
            continue;
        }
        ptx_store_done(w, c);
        *at = c->next;
        free(c);
    }
}

/* The arrival is triggered when all copies of the thread before it are complete: they and it become one
 * event, of which only who waits at the mbarrier knows. */
static void exec_arrive(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    PTX_EACH_LANE(l, mask) {
        const uint32_t address = ptx_shared_address(w, i, (int)l, ptx_lane_address(w, &i->op[0], (int)l));
        ptx_mbarrier *m = ptx_mbarrier_at(w, i, (int)l, address);
        ptx_copy *arrival = ptx_copy_add(w, i, (int)l, PTX_COPY_ARRIVE);
        arrival->barrier = address;
        arrival->view = ptx_release(w, 1U << l);
        if (!i->flag) { // but for .noinc, the arrival is one more than was expected
            m->pending++;
        }
        const uint32_t agent = w->launch->threads + (uint32_t)m->agent;
        bool any = false;
        for (ptx_copy **at = &w->copies; *at;) {
            ptx_copy *c = *at;
            if (c->kind != PTX_COPY_CP || c->thread % PTX_LANES != l) {
                at = &c->next;
                continue;
            }
            ptx_shared_write_done(w->block, c->shared, c->bytes, agent, false);
            any = true;
            *at = c->next;
            free(c);
        }
        if (any) {
            ptx_known(arrival->view->own)[agent] = ptx_tick(w->launch);
        }
    }
}

// ---- decoders ---------------------------------------------------------------------------------------------

static void decode_cp_async(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    const bool cache_global = ptx_take(mods, "cg"), ca = ptx_take(mods, "ca");
    const bool right = cache_global != ca && (ptx_take(mods, "shared") || ptx_take(mods, "shared::cta")) &&
                       ptx_take(mods, "global");
    const bool hint = ptx_take_hints(mods);
    ptx_need_ops(p, i, 3, 4 + hint);
    const int64_t size = ptx_integer(p, &i->op[2]);
    if (!right || (size != 16 && (cache_global || (size != 4 && size != 8)))) {
        ptx_refuse(p, "unknown form of %s", i->name);
    }
    i->elem_bytes = (uint8_t)size;
    (void)ptx_address_register(p, &i->op[0]);
    (void)ptx_address_register(p, &i->op[1]);
    if (i->ops - hint == 4) {
        i->form = i->op[3].kind == PTX_PREDICATE ? 'i' : 's';
        if (i->form == 's') {
            i->src[0] = ptx_source(p, &i->op[3], PTX_u32);
        }
    }
    ptx_use_exec(i, exec_cp, PTX_CLASS_ASYNC, 0);
}

void ptx_decode_cp(ptx_parser *p, ptx_insn *i, ptx_mods *mods) {
    const bool reduce = ptx_take(mods, "reduce");
    if (!ptx_take(mods, "async")) {
        ptx_refuse(p, "unknown form of %s", i->name);
    }
    const bool bulk = ptx_take(mods, "bulk");
    if (ptx_take(mods, "commit_group")) {
        ptx_need_ops(p, i, 0, 0);
        ptx_use_exec(i, bulk ? exec_bulk_commit : exec_commit, PTX_CLASS_BARRIER, 0);
    } else if (ptx_take(mods, "wait_all")) {
        ptx_need_ops(p, i, 0, 0);
        i->flag = true;
        ptx_use_exec(i, exec_wait, PTX_CLASS_BARRIER, 0);
    } else if (ptx_take(mods, "wait_group")) {
        ptx_need_ops(p, i, 1, 1);
        const int64_t left = ptx_integer(p, &i->op[0]);
        if (left < 0 || left > INT32_MAX) {
            ptx_refuse(p, "%s of %lld groups", i->name, (long long)left);
        }
        i->extra = (uint32_t)left;
        i->flag = bulk && ptx_take(mods, "read");
        ptx_use_exec(i, bulk ? exec_bulk_wait : exec_wait, PTX_CLASS_BARRIER, 0);
    } else if (!bulk && ptx_take(mods, "mbarrier") && ptx_take(mods, "arrive")) {
        ptx_need_ops(p, i, 1, 1);
        i->flag = ptx_take(mods, "noinc");
        (void)ptx_take_space(mods);
        (void)ptx_address_register(p, &i->op[0]);
        if (ptx_one_type(p, i, mods) != PTX_b64) {
            ptx_refuse(p, "unknown form of %s", i->name);
        }
        ptx_use_exec(i, exec_arrive, PTX_CLASS_BARRIER, 0);
    } else if (bulk) {
        ptx_decode_bulk(p, i, mods, reduce);
    } else if (!reduce) {
        decode_cp_async(p, i, mods);
    } else {
        ptx_refuse(p, "unknown form of %s", i->name);
    }
}
