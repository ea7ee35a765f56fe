/* Runs a warp: the loop over instructions, divergence by lowest pc first, and faults as text. */
#include "tests/ptx/machine.h"

#include <stdarg.h>

// ---- faults -----------------------------------------------------------------------------------------------

const char *ptx_thread_name(const ptx_launch *L, uint32_t block, uint32_t thread, char text[96]) {
    const uint32_t x = L->dim[0], y = L->dim[1];
    if (thread >= L->threads) {
        (void)snprintf(text, 96, "an asynchronous copy of block (%u,%u,%u)", block % L->grid[0],
                       block / L->grid[0] % L->grid[1], block / L->grid[0] / L->grid[1]);
    } else {
        (void)snprintf(text, 96, "thread (%u,%u,%u) of block (%u,%u,%u)", thread % x, thread / x % y,
                       thread / x / y, block % L->grid[0], block / L->grid[0] % L->grid[1],
                       block / L->grid[0] / L->grid[1]);
    }
    return text;
}

_Noreturn static void report(const ptx_warp *w, const ptx_insn *i, int lane, sbp_ptx_status status,
                             const char *format, va_list args) {
    ptx_launch *L = w->launch;
    char name[96];
    sbp_ptx_report *r = L->report;
    r->status = status;
    r->line = i->line;
    int used = snprintf(r->text, sizeof r->text, "%s: line %d: %s: ", L->entry->name, i->line, i->name);
    if (used > 0 && (size_t)used < sizeof r->text) {
        used += vsnprintf(r->text + used, sizeof r->text - (size_t)used, format, args);
    }
    const uint32_t thread = (uint32_t)(w->index * PTX_LANES + (lane < 0 ? 0 : lane));
    if (used > 0 && (size_t)used < sizeof r->text) {
        (void)snprintf(r->text + used, sizeof r->text - (size_t)used, "\n  %s%s",
                       lane < 0 ? "warp that begins with " : "",
                       ptx_thread_name(L, w->block->number, thread, name));
    }
    longjmp(L->fail, 1);
}

void ptx_fault(const ptx_warp *w, const ptx_insn *i, int lane, const char *format, ...) {
    va_list args;
    va_start(args, format);
    report(w, i, lane, SBP_PTX_FAULT, format, args);
}

void ptx_unable(const ptx_warp *w, const ptx_insn *i, const char *format, ...) {
    va_list args;
    va_start(args, format);
    report(w, i, -1, SBP_PTX_REFUSED, format, args);
}

void ptx_no_memory(ptx_launch *L) {
    L->report->status = SBP_PTX_REFUSED;
    (void)snprintf(L->report->text, sizeof L->report->text, "%s: out of memory", L->entry->name);
    longjmp(L->fail, 1);
}

void ptx_fail(ptx_launch *L, const char *format, ...) {
    sbp_ptx_report *r = L->report;
    r->status = SBP_PTX_FAULT;
    const int used = snprintf(r->text, sizeof r->text, "%s: ", L->entry->name);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(r->text + used, sizeof r->text - (size_t)used, format, args);
    va_end(args);
    longjmp(L->fail, 1);
}

// ---- divergence -------------------------------------------------------------------------------------------

// No lane can run: each waits at a .sync instruction for lanes that wait elsewhere.
_Noreturn static void torn(ptx_warp *w) {
    char text[1024];
    size_t used = 0;
    uint32_t left = w->live;
    const ptx_insn *first = NULL;
    while (left && used < sizeof text) {
        const uint32_t pc = w->lane_pc[__builtin_ctz(left)];
        uint32_t here = 0;
        PTX_EACH_LANE(l, left) {
            here |= (uint32_t)(w->lane_pc[l] == pc) << l;
        }
        const ptx_insn *i = &w->entry->code[pc];
        first = first ? first : i;
        used += (size_t)snprintf(text + used, sizeof text - used, "\n  lanes 0x%08x wait at line %d: %s",
                                 here, i->line, i->name);
        left &= ~here;
    }
    ptx_fault(w, first, -1, "executed without all the lanes that it needs%s", text);
}

// Which lanes run next: those at the lowest pc.
static void choose(ptx_warp *w) {
    PTX_EACH_LANE(l, w->active) {
        w->lane_pc[l] = w->pc;
    }
    const uint32_t can = w->live & ~w->stuck;
    w->active = 0;
    w->other_pc = UINT32_MAX;
    if (!can) {
        if (w->live) {
            torn(w);
        }
        return;
    }
    uint32_t least = UINT32_MAX, group = 0;
    PTX_EACH_LANE(l, can) {
        least = w->lane_pc[l] < least ? w->lane_pc[l] : least;
    }
    PTX_EACH_LANE(m, w->live) {
        group |= (uint32_t)(w->lane_pc[m] == least) << m;
    }
    w->stuck &= ~group;
    w->active = group;
    w->pc = least;
    PTX_EACH_LANE(n, can & ~group) {
        w->other_pc = w->lane_pc[n] < w->other_pc ? w->lane_pc[n] : w->other_pc;
    }
}

/* Lanes that loop at the lowest pc may wait for others of their warp: those get a turn, until the warp's turn
 * ends. */
static void let_others(ptx_warp *w) {
    const uint32_t others = w->live & ~w->stuck & ~w->active;
    PTX_EACH_LANE(l, w->active) {
        w->lane_pc[l] = w->pc;
    }
    w->spins = 0;
    if (others) {
        const uint32_t pc = w->lane_pc[__builtin_ctz(others)];
        uint32_t group = 0;
        PTX_EACH_LANE(m, others) {
            group |= (uint32_t)(w->lane_pc[m] == pc) << m;
        }
        w->active = group;
        w->pc = pc;
        w->other_pc = UINT32_MAX;
    }
}

bool ptx_gather(ptx_warp *w, const ptx_insn *i, uint32_t mask, uint32_t members) {
    const uint32_t needed = members & w->live, here = w->pc - 1;
    (void)i;
    if (!(needed & ~mask)) {
        return true;
    }
    uint32_t same = 0;
    PTX_EACH_LANE(l, w->stuck) {
        same |= (uint32_t)(w->lane_pc[l] == here) << l;
    }
    if (same) { // together this time
        w->stuck &= ~same;
        w->active |= same;
        w->pc = here;
        if (w->active & ~mask & ~same) { // lanes whose guard is false go on
            PTX_EACH_LANE(m, w->active) {
                w->lane_pc[m] = mask & 1U << m || same & 1U << m ? here : here + 1;
            }
            w->active = 0;
            choose(w);
        }
        return false;
    }
    PTX_EACH_LANE(n, w->active) {
        w->lane_pc[n] = mask >> n & 1 ? here : w->pc;
    }
    w->stuck |= mask;
    w->active = 0;
    choose(w);
    return false;
}

void ptx_exit_lanes(ptx_warp *w, uint32_t mask) {
    w->live &= ~mask;
    w->active &= ~mask;
    w->stuck = 0; // what they wait for may be less now
    w->block->live_threads -= (uint32_t)__builtin_popcount(mask);
    ptx_progress(w->launch);
    choose(w);
    if (!w->live) {
        w->state = PTX_WARP_DONE;
        w->block->warps_done++;
        w->yield = true;
    }
    ptx_barriers_check(w->block);
}

// ---- the loop ---------------------------------------------------------------------------------------------

static void branch(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    const bool back = i->target < w->pc;
    if (mask == w->active) {
        w->pc = i->target;
    } else {
        PTX_EACH_LANE(l, w->active) {
            w->lane_pc[l] = mask >> l & 1 ? i->target : w->pc;
        }
        w->active = 0;
        choose(w);
    }
    if (back && w->other_pc != UINT32_MAX && ++w->spins > 100) {
        let_others(w);
    }
}

static void flush_lanes(const ptx_launch *L, void *out, const void *in) {
    const void *s[3] = {in, NULL, NULL};
    L->flush(out, s, PTX_FULL, 0);
}

// .ftz and .sat of f32.
static void run_flushed(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    const ptx_launch *L = w->launch;
    float in[3][PTX_LANES], out[PTX_LANES];
    const void *s[3] = {NULL, NULL, NULL}, *result[3] = {out, NULL, NULL};
    for (int k = 0; k < i->sources; k++) {
        s[k] = ptx_at(w, i->src[k]);
        if (i->flush) {
            flush_lanes(L, in[k], s[k]);
            s[k] = in[k];
        }
    }
    i->lanes(out, s, PTX_FULL, i->extra);
    if (i->flush && i->saturate) {
        flush_lanes(L, out, out);
    }
    (i->saturate ? L->saturate : L->flush)(ptx_at(w, i->dst), result, mask, 0);
}

static void run_lanes(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    if (i->flush | i->saturate) {
        run_flushed(w, i, mask);
        return;
    }
    const void *s[3] = {ptx_at(w, i->src[0]), NULL, NULL};
    uint32_t extra = i->extra;
    if (i->sources > 1) {
        s[1] = ptx_at(w, i->src[1]);
        if (i->sources > 2) {
            s[2] = ptx_at(w, i->src[2]);
        }
        if (i->select != PTX_NO_PLACE) {
            extra = *(const uint32_t *)ptx_at(w, i->select) ^ (i->select_not ? PTX_FULL : 0);
        }
    }
    i->lanes(ptx_at(w, i->dst), s, mask, extra);
}

static void run_compare(ptx_warp *w, const ptx_insn *i, uint32_t mask) {
    float in[2][PTX_LANES];
    const void *a = ptx_at(w, i->src[0]), *b = ptx_at(w, i->src[1]);
    if (i->flush) {
        flush_lanes(w->launch, in[0], a);
        flush_lanes(w->launch, in[1], b);
        a = in[0];
        b = in[1];
    }
    uint32_t yes = i->compare(a, b), no = ~yes;
    if (i->combine_op) {
        const uint32_t c = *(const uint32_t *)ptx_at(w, i->combine) ^ (i->combine_not ? PTX_FULL : 0);
        yes = i->combine_op == 1 ? yes & c : i->combine_op == 2 ? yes | c : yes ^ c;
        no = i->combine_op == 1 ? no & c : i->combine_op == 2 ? no | c : no ^ c;
    }
    uint32_t *d = ptx_at(w, i->dst);
    *d = (*d & ~mask) | (yes & mask);
    if (i->dst2 != PTX_NO_PLACE) {
        d = ptx_at(w, i->dst2);
        *d = (*d & ~mask) | (no & mask);
    }
}

void ptx_run_warp(ptx_warp *w, uint32_t budget) {
    const ptx_insn *code = w->entry->code;
    ptx_launch *L = w->launch;
    const bool tracks = w->entry->has_wgmma;
    w->yield = false;
    if (w->active != w->live) {
        choose(w);
    }
    uint32_t done = 0;
    while (done < budget && !w->yield) {
        if (w->pc >= w->other_pc) {
            choose(w);
        }
        const ptx_insn *i = &code[w->pc];
        uint32_t mask = w->active;
        done++;
        if (L->line_counts) {
            L->line_counts[w->pc]++;
        }
        w->pc++;
        if (i->guard != PTX_NO_PLACE) {
            const uint32_t p = *(const uint32_t *)(w->bank[0] + i->guard);
            mask &= i->guard_not ? ~p : p;
            if (!mask) {
                continue;
            }
        }
        if (tracks) {
            ptx_wgmma_registers(w, i, mask);
        }
        switch (i->run) {
        case PTX_RUN_LANES:
            run_lanes(w, i, mask);
            break;
        case PTX_RUN_COMPARE:
            run_compare(w, i, mask);
            break;
        case PTX_RUN_BRANCH:
            branch(w, i, mask);
            break;
        default:
            i->exec(w, i, mask);
            break;
        }
    }
    L->executed += done;
}
