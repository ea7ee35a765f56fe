/* Launches: blocks in any order, several at a time, warps in random order, and the end of all that waits. */
#include "tests/ptx/lanes.h"
#include "tests/ptx/shadow.h"

#include <stdlib.h>

enum { DEFAULT_RESIDENT = 4, SLICE = 192, SM_REGISTERS = 65536 };
// Instructions without anything moving, and turns of nothing but waiting, after which nothing will.
#define STILL_INSTRUCTIONS UINT64_C(100000000)
#define STILL_TURNS UINT64_C(40000)
// Without a write to global memory, a block's beginning or its end: blocks only turn, as around a lock that
// nobody frees.
#define TURNING_INSTRUCTIONS UINT64_C(20000000)

// ---- blocks -----------------------------------------------------------------------------------------------

static void special_fill(const ptx_warp *w, const ptx_special_use *use) {
    const ptx_launch *L = w->launch;
    const ptx_block *b = w->block;
    for (uint32_t l = 0; l < PTX_LANES; l++) {
        const uint32_t t = (uint32_t)w->index * PTX_LANES + l, x = L->dim[0], y = L->dim[1];
        const uint32_t values[] = {0,
                                   t % x,
                                   t / x % y,
                                   t / x / y,
                                   L->dim[0],
                                   L->dim[1],
                                   L->dim[2],
                                   b->id[0],
                                   b->id[1],
                                   b->id[2],
                                   L->grid[0],
                                   L->grid[1],
                                   L->grid[2],
                                   b->id[0],
                                   b->id[1],
                                   b->id[2],
                                   L->grid[0],
                                   L->grid[1],
                                   L->grid[2],
                                   0,
                                   0,
                                   0,
                                   0,
                                   1,
                                   1,
                                   1,
                                   1,
                                   l,
                                   (uint32_t)w->index,
                                   L->threads / PTX_LANES,
                                   b->number % 132,
                                   132,
                                   1,
                                   1U << l,
                                   UINT32_MAX >> (31 - l),
                                   (1U << l) - 1,
                                   UINT32_MAX << l,
                                   l == 31 ? 0 : UINT32_MAX << (l + 1),
                                   L->dynamic_bytes,
                                   L->entry->dynamic_at + L->dynamic_bytes};
        const uint32_t value = use->special < PTX_SPECIAL_CLOCK ? values[use->special] : 0;
        ptx_lane_set(w, use->place, use->bytes, (int)l, value);
    }
}

/* Registers of a thread when setmaxnreg is executed: as many as the bounds let a compiler take. 0: there are
 * none, and compilers ignore setmaxnreg. */
static uint32_t begin_registers(const sbp_ptx_entry *e) {
    if (e->max_registers || !e->bounded) {
        return e->max_registers;
    }
    const uint32_t warps = (e->max_threads + PTX_LANES - 1) / PTX_LANES;
    const uint32_t share = SM_REGISTERS / (warps * PTX_LANES * (e->min_blocks ? e->min_blocks : 1)) / 8 * 8;
    return share > 248 ? 248 : share;
}

static void warp_begin(ptx_block *b, int index, ptx_view *nothing) {
    ptx_launch *L = b->launch;
    const sbp_ptx_entry *e = L->entry;
    ptx_warp *w = &b->warps[index];
    const uint32_t count = L->dim[0] * L->dim[1] * L->dim[2], first = (uint32_t)index * PTX_LANES;
    w->launch = L;
    w->block = b;
    w->entry = e;
    w->index = index;
    w->exists = count - first >= PTX_LANES ? PTX_FULL : (1U << (count - first)) - 1;
    w->live = w->active = w->exists;
    w->other_pc = UINT32_MAX;
    w->together = L->begin;
    w->max_registers = begin_registers(e);
    for (int l = 0; l < PTX_LANES; l++) {
        w->view[l] = ptx_view_keep(nothing);
    }
    w->bank[0] = aligned_alloc(64, e->register_bytes + 64);
    w->bank[1] = e->module->constants;
    w->local = e->local_bytes ? malloc((size_t)e->local_bytes * PTX_LANES) : NULL;
    if (e->has_wgmma) {
        w->dirty = calloc(e->registers + 1, 1);
        w->flying = calloc(e->registers + 1, sizeof *w->flying);
    }
    if (!w->bank[0] || (e->local_bytes && !w->local) || (e->has_wgmma && (!w->dirty || !w->flying))) {
        ptx_no_memory(L);
    }
    uint64_t x = ptx_random(L); // registers begin with anything
    for (uint32_t k = 0; k + 8 <= e->register_bytes; k += 8) {
        x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        memcpy(w->bank[0] + k, &x, 8);
    }
    if (w->local) {
        memset(w->local, 0xa5, (size_t)e->local_bytes * PTX_LANES);
    }
    for (int k = 0; k < e->special_count; k++) {
        special_fill(w, &e->specials[k]);
    }
}

static void block_begin(ptx_launch *L, int slot, uint32_t number) {
    ptx_block *b = calloc(1, sizeof *b);
    if (!b) {
        ptx_no_memory(L);
    }
    L->resident[slot] = b;
    b->launch = L;
    b->number = number;
    b->id[0] = number % L->grid[0];
    b->id[1] = number / L->grid[0] % L->grid[1];
    b->id[2] = number / L->grid[0] / L->grid[1];
    b->settled = L->begin;
    b->live_threads = L->dim[0] * L->dim[1] * L->dim[2];
    ptx_shared_create(b, L->dynamic_bytes ? L->entry->dynamic_at + L->dynamic_bytes : L->entry->shared_bytes);
    b->warps = calloc(L->threads / PTX_LANES, sizeof *b->warps);
    ptx_view *nothing = ptx_view_create(number, L->slots);
    if (!b->warps || !nothing) {
        ptx_view_drop(nothing);
        ptx_no_memory(L);
    }
    for (b->warp_count = 0; b->warp_count < (int)(L->threads / PTX_LANES); b->warp_count++) {
        warp_begin(b, b->warp_count, nothing);
    }
    ptx_view_drop(nothing);
}

static void warp_free(ptx_warp *w) {
    for (int l = 0; l < PTX_LANES; l++) {
        ptx_view_drop(w->view[l]);
        ptx_view_drop(w->fence_view[l]);
        ptx_view_drop(w->heard[l]);
    }
    ptx_wgmma_free(w);
    free(w->bank[0]);
    free(w->local);
    free(w->dirty);
    free(w->flying);
}

static void block_free(ptx_launch *L, int slot) {
    ptx_block *b = L->resident[slot];
    L->resident[slot] = NULL;
    if (!b) {
        return;
    }
    for (int k = 0; b->warps && k < (int)(L->threads / PTX_LANES); k++) {
        warp_free(&b->warps[k]);
    }
    for (int k = 0; k < PTX_BARRIERS; k++) {
        ptx_view_drop(b->barriers[k].view);
    }
    ptx_copies_free(b);
    ptx_mbarriers_free(b);
    ptx_signals_free(&b->signals);
    ptx_shared_destroy(&b->shared);
    free(b->warps);
    free(b);
}

// ---- scheduling -------------------------------------------------------------------------------------------

static ptx_warp *pick_warp(ptx_block *b) {
    const int start = (int)(ptx_random(b->launch) % (uint64_t)b->warp_count);
    for (int k = 0; k < b->warp_count; k++) {
        ptx_warp *w = &b->warps[(start + k) % b->warp_count];
        if (w->state == PTX_WARP_RUNS) {
            return w;
        }
    }
    return NULL;
}

_Noreturn static void deadlock(ptx_launch *L) {
    char text[1600];
    size_t used = 0;
    text[0] = 0;
    for (int s = 0; s < L->resident_count; s++) {
        const ptx_block *b = L->resident[s];
        for (int k = 0; b && k < b->warp_count && used + 160 < sizeof text; k++) {
            const ptx_warp *w = &b->warps[k];
            if (w->state == PTX_WARP_DONE) {
                continue;
            }
            const uint32_t pc = w->active || !w->live ? w->pc : w->lane_pc[__builtin_ctz(w->live)];
            const ptx_insn *i = &L->entry->code[w->state == PTX_WARP_AT_BARRIER && pc ? pc - 1 : pc];
            used += (size_t)snprintf(text + used, sizeof text - used,
                                     "\n  block (%u,%u,%u) warp %d: line %d: %s%s", b->id[0], b->id[1],
                                     b->id[2], k, i->line, i->name,
                                     w->state == PTX_WARP_AT_BARRIER ? " (waits)" : " (loops)");
            L->report->line = L->report->line ? L->report->line : i->line;
        }
    }
    ptx_fail(L, "deadlock: nothing moves any more%s", text);
}

static void block_end(ptx_launch *L, int slot) {
    ptx_block *b = L->resident[slot];
    for (int k = 0; k < PTX_BARRIERS; k++) {
        if (b->barriers[k].waiting) {
            ptx_fail(L, "deadlock: all other threads left, warps wait at barrier %d of line %d", k,
                     b->barriers[k].line);
        }
    }
    ptx_check_copies(b);
    ptx_mbarriers_check(b);
    block_free(L, slot);
    if (L->next_block < L->block_count) {
        block_begin(L, slot, L->order[L->next_block++]);
    }
}

static void run(ptx_launch *L) {
    uint64_t idle = 0, seen = 0;
    int left = L->resident_count;
    for (int s = 0; s < L->resident_count; s++) {
        block_begin(L, s, L->order[L->next_block++]);
    }
    while (left > 0) {
        const int start = (int)(ptx_random(L) % (uint64_t)L->resident_count);
        int slot = start;
        while (!L->resident[slot]) {
            slot = (slot + 1) % L->resident_count;
        }
        ptx_block *b = L->resident[slot];
        if (b->late && (ptx_random(L) & 3) == 0) {
            ptx_complete_one(b);
        }
        ptx_warp *w = pick_warp(b);
        if (w) {
            ptx_run_warp(w, 1 + (uint32_t)(ptx_random(L) % SLICE));
        } else if (b->late) {
            ptx_complete_one(b);
        }
        if (b->warps_done == b->warp_count) {
            block_end(L, slot);
            left -= L->resident[slot] == NULL;
            idle = 0;
            L->world_at = L->executed;
            continue;
        }
        if (L->options.instruction_limit && L->executed > L->options.instruction_limit) {
            L->report->status = SBP_PTX_REFUSED;
            (void)snprintf(L->report->text, sizeof L->report->text, "%s: more than %llu warp instructions",
                           L->entry->name, (unsigned long long)L->options.instruction_limit);
            longjmp(L->fail, 1);
        }
        const bool waits = !w || w->yield;
        idle = L->progress_at == seen ? idle + waits : 0;
        const bool still = L->executed - L->progress_at > STILL_INSTRUCTIONS || idle > STILL_TURNS;
        seen = L->progress_at;
        if (still && !b->late) {
            deadlock(L);
        }
        if (L->executed - L->world_at > TURNING_INSTRUCTIONS && !b->late) {
            ptx_fail(L,
                     "livelock: %llu warp instructions in which nothing was written to global memory and no "
                     "block ended",
                     (unsigned long long)TURNING_INSTRUCTIONS);
        }
    }
}

// ---- launching --------------------------------------------------------------------------------------------

static sbp_ptx_status refuse(sbp_ptx_report *report, const sbp_ptx_entry *entry, const char *why) {
    report->status = SBP_PTX_REFUSED;
    (void)snprintf(report->text, sizeof report->text, "%s: %s", entry->name, why);
    return SBP_PTX_REFUSED;
}

static const char *wrong(const sbp_ptx_entry *e, const uint32_t grid[3], const uint32_t block[3],
                         uint32_t dynamic) {
    const uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    if (!grid[0] || !grid[1] || !grid[2] || grid[0] > INT32_MAX || grid[1] > 65535 || grid[2] > 65535 ||
        (uint64_t)grid[0] * grid[1] * grid[2] > UINT32_C(1) << 26) {
        return "a grid of no or of too many blocks";
    }
    if (!threads || block[0] > 1024 || block[1] > 1024 || block[2] > 64 || threads > 1024 ||
        threads > e->max_threads) {
        return "a block of no or of too many threads";
    }
    if (e->required[0] && memcmp(e->required, block, sizeof e->required) != 0) {
        return "a block of another shape than .reqntid";
    }
    if ((uint64_t)e->dynamic_at + dynamic > PTX_MAX_SHARED &&
        (uint64_t)e->shared_bytes + dynamic > PTX_MAX_SHARED) {
        return "more shared memory than a block can have";
    }
    return NULL;
}

static bool prepare(ptx_launch *L, void *const *params) {
    const sbp_ptx_entry *e = L->entry;
    L->params = aligned_alloc(64, (e->param_bytes + 64) / 64 * 64);
    L->order = malloc(L->block_count * sizeof *L->order);
    L->resident = calloc((size_t)L->resident_count, sizeof(ptx_block *));
    L->line_counts = L->options.counts ? calloc((size_t)e->length, sizeof *L->line_counts) : NULL;
    if (!L->params || !L->order || !L->resident || (L->options.counts && !L->line_counts)) {
        return false;
    }
    memset(L->params, 0xa5, (e->param_bytes + 64) / 64 * 64);
    for (int k = 0; k < e->param_count; k++) {
        memcpy(L->params + e->params[k].offset, params[k], e->params[k].bytes);
    }
    for (uint32_t k = 0; k < L->block_count; k++) {
        L->order[k] = k;
    }
    for (uint32_t k = L->block_count; k > 1; k--) {
        const uint32_t other = (uint32_t)(ptx_random(L) % k), kept = L->order[k - 1];
        L->order[k - 1] = L->order[other];
        L->order[other] = kept;
    }
    return true;
}

static void launch_free(ptx_launch *L) {
    for (int s = 0; L->resident && s < L->resident_count; s++) {
        block_free(L, s);
    }
    ptx_signals_free(&L->signals);
    ptx_view_drop(L->held);
    free(L->params);
    free(L->order);
    free(L->resident);
    free(L->line_counts);
    free(L);
}

sbp_ptx_status sbp_ptx_launch(const sbp_ptx_entry *entry, const uint32_t grid[3], const uint32_t block[3],
                              uint32_t dynamic_shared_bytes, void *const *params,
                              const sbp_ptx_options *options, sbp_ptx_report *report) {
    *report = (sbp_ptx_report){0};
    const char *fault = wrong(entry, grid, block, dynamic_shared_bytes);
    if (fault) {
        return refuse(report, entry, fault);
    }
    ptx_launch *L = calloc(1, sizeof *L);
    if (!L) {
        return refuse(report, entry, "out of memory");
    }
    L->report = report;
    L->entry = entry;
    L->memory = entry->module->memory;
    L->options = options ? *options : (sbp_ptx_options){.seed = 1};
    L->random = (L->options.seed + 1) * UINT64_C(0x9e3779b97f4a7c15) | 1;
    (void)ptx_random(L);
    memcpy(L->grid, grid, sizeof L->grid);
    memcpy(L->dim, block, sizeof L->dim);
    L->dynamic_bytes = dynamic_shared_bytes;
    L->threads = (block[0] * block[1] * block[2] + PTX_LANES - 1) / PTX_LANES * PTX_LANES;
    L->slots = L->threads + PTX_MAX_AGENTS;
    L->block_count = grid[0] * grid[1] * grid[2];
    const uint32_t wanted = L->options.resident < 0 ? L->block_count
                            : L->options.resident   ? (uint32_t)L->options.resident
                                                    : DEFAULT_RESIDENT;
    L->resident_count = (int)(wanted < L->block_count ? wanted : L->block_count);
    L->races = !L->options.no_races && (uint64_t)L->block_count * L->threads < UINT64_C(1) << 29;
    if (L->memory->clock > UINT32_C(0xc0000000)) {
        ptx_memory_forget(L->memory);
    }
    L->shadow = ptx_shadow_best();
    L->flush = ptx_lanes_find("flush.f32")->fn;
    L->saturate = ptx_lanes_find("saturate.f32")->fn;
    L->begin = ptx_tick(L);
    if (!prepare(L, params)) {
        launch_free(L);
        return refuse(report, entry, "out of memory");
    }
    if (setjmp(L->fail) == 0) {
        run(L);
    }
    if (L->options.counts) {
        ptx_count_launch(L);
    }
    report->instructions = L->executed;
    const sbp_ptx_status status = report->status;
    launch_free(L);
    return status;
}
