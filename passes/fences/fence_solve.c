/* fence_solve.c: hazards in traces, and the fences that remove them.
 *
 * A fence from -> to makes every later command of queue `to` wait for every earlier one of queue `from`; so
 * what a command comes after is, per queue, all commands before some step. That step is its clock. When
 * command x comes after command y, it also comes after what y came after.
 */
#include "passes/fences/fence.h"

#include <string.h>

/* know: of queue q at [q n + f], n the number of queues: commands of queue f at steps below it are done
 * before the next command of queue q starts. last: likewise, what the last command of queue q knew. */
typedef struct clock_set {
    int32_t know[SBP_FENCE_QUEUES * SBP_FENCE_QUEUES], last[SBP_FENCE_QUEUES * SBP_FENCE_QUEUES];
} clock_set;

/* In a trace both halves lie one behind the other, as many numbers as are used. */
static int32_t half_of(const sbp_fence_pass *pass) {
    return pass->queue_count * pass->queue_count;
}

static int32_t *clocks_at(const sbp_fence_pass *pass, const sbp_fence_trace *trace, int32_t s) {
    return trace->clocks + (int64_t)s * 2 * half_of(pass);
}

static void keep_clocks(const sbp_fence_pass *pass, sbp_fence_trace *trace, int32_t s,
                        const clock_set *clocks) {
    size_t bytes = (size_t)half_of(pass) * sizeof(int32_t);
    memcpy(clocks_at(pass, trace, s), clocks->know, bytes);
    memcpy(clocks_at(pass, trace, s) + half_of(pass), clocks->last, bytes);
}

static void load_clocks(const sbp_fence_pass *pass, const sbp_fence_trace *trace, int32_t s,
                        clock_set *clocks) {
    size_t bytes = (size_t)half_of(pass) * sizeof(int32_t);
    memcpy(clocks->know, clocks_at(pass, trace, s), bytes);
    memcpy(clocks->last, clocks_at(pass, trace, s) + half_of(pass), bytes);
}

static bool same_clocks(const sbp_fence_pass *pass, const sbp_fence_trace *trace, int32_t s,
                        const clock_set *clocks) {
    size_t bytes = (size_t)half_of(pass) * sizeof(int32_t);
    return memcmp(clocks->know, clocks_at(pass, trace, s), bytes) == 0 &&
           memcmp(clocks->last, clocks_at(pass, trace, s) + half_of(pass), bytes) == 0;
}

static void apply(const sbp_fence_pass *pass, clock_set *clocks, uint64_t fences, int32_t now) {
    int32_t n = pass->queue_count;
    for (; fences; fences &= fences - 1) {
        int32_t bit = __builtin_ctzll(fences), from = bit / SBP_FENCE_QUEUES, to = bit % SBP_FENCE_QUEUES;
        for (int32_t q = 0; q < n; q++)
            if (clocks->know[to * n + q] < clocks->last[from * n + q])
                clocks->know[to * n + q] = clocks->last[from * n + q];
        clocks->know[to * n + from] = now;
    }
}

static void advance(const sbp_fence_pass *pass, clock_set *clocks, const sbp_fence_step *step, int32_t now) {
    int32_t n = pass->queue_count;
    if (step->kind == SBP_FENCE_COMMAND)
        memcpy(clocks->last + step->queue * n, clocks->know + step->queue * n, (size_t)n * sizeof(int32_t));
    else if (step->kind == SBP_FENCE_FIXED)
        apply(pass, clocks, step->mask, now);
    else if (pass->fences[step->gap])
        apply(pass, clocks, pass->fences[step->gap], now);
}

/* ---- conflicts --------------------------------------------------------------------------------------- */

static bool overlap(const sbp_fence_access *a, const sbp_fence_access *b) {
    if (a->ref == b->ref && a->slot == b->slot) {
        if (a->width == b->width && a->col_end <= a->width && b->col_end <= b->width)
            return a->row < b->row_end && b->row < a->row_end && a->col < b->col_end && b->col < a->col_end;
        return a->row * a->width + a->col < (b->row_end - 1) * b->width + b->col_end &&
               b->row * b->width + b->col < (a->row_end - 1) * a->width + a->col_end;
    }
    return a->ref >= 0 && b->ref >= 0 && a->space == b->space && a->low < b->high && b->low < a->high;
}

/* Accesses of a step that are compared with commands of a queue. */
static int32_t compared(const sbp_fence_step *step, int32_t queue) {
    return step->queue == queue ? step->access_count : step->far_count;
}

/* Whether x conflicts with the earlier command y. */
static bool conflict(const sbp_fence_step *x, const sbp_fence_step *y) {
    int32_t count = compared(x, y->queue);
    for (int32_t i = 0; i < count; i++)
        for (int32_t j = 0; j < y->access_count; j++)
            if ((x->accesses[i].writes || y->accesses[j].writes) && overlap(&x->accesses[i], &y->accesses[j]))
                return true;
    return false;
}

/* The latest command of queue f before step s, but not below `bound`, that conflicts with it; -1 when there
 * is none. */
static int32_t latest_conflict(sbp_fence_trace *trace, int32_t s, int32_t f, int32_t bound) {
    sbp_fence_step *step = &trace->steps[s];
    while (step->conflict[f] < 0 && step->unseen[f] >= bound) {
        int32_t other = step->unseen[f];
        if (conflict(step, &trace->steps[other]))
            step->conflict[f] = other;
        else
            step->unseen[f] =
                sbp_fence_index_before(trace->index, step->accesses, compared(step, f), f, other);
    }
    return step->conflict[f] >= bound ? step->conflict[f] : -1;
}

/* A command that starts before one it conflicts with may have ended. */
typedef struct hazard {
    int32_t step, against, from; /* queue of `against` */
} hazard;

static bool has_hazard(const sbp_fence_pass *pass, sbp_fence_trace *trace, const clock_set *clocks, int32_t s,
                       hazard *out) {
    int32_t q = trace->steps[s].queue, n = pass->queue_count;
    for (int32_t f = 0; f < n; f++) {
        int32_t against = latest_conflict(trace, s, f, clocks->know[q * n + f]);
        if (against < 0)
            continue;
        *out = (hazard){s, against, f};
        return true;
    }
    return false;
}

/* ---- placing ----------------------------------------------------------------------------------------- */

static bool is_better(const sbp_fence_pass *pass, const sbp_fence_trace *trace, int32_t step, int32_t best) {
    return best < 0 || pass->depth[trace->steps[step].gap] <= pass->depth[trace->steps[best].gap];
}

/* The gap for a fence against a hazard, as a step; -1 when there is none. Within a queue: right before the
 * command, so that it also stands after as much as possible. Between queues: before the next command of the
 * queue waited for, so that nothing is waited for in vain. If there are several, the one in fewest loops. */
static int32_t choose_gap(const sbp_fence_pass *pass, const sbp_fence_trace *trace, const hazard *h) {
    int32_t best = -1;
    if (h->from == trace->steps[h->step].queue) {
        for (int32_t s = h->step - 1; s > h->against; s--) {
            bool gap = trace->steps[s].kind == SBP_FENCE_GAP;
            if (best >= 0 && !gap)
                break;
            if (gap && (best < 0 || pass->depth[trace->steps[s].gap] < pass->depth[trace->steps[best].gap]))
                best = s;
        }
        return best;
    }
    for (int32_t s = h->against + 1; s < h->step; s++) {
        const sbp_fence_step *step = &trace->steps[s];
        if (best >= 0 && step->kind == SBP_FENCE_COMMAND && step->queue == h->from)
            break;
        if (step->kind == SBP_FENCE_GAP && is_better(pass, trace, s, best))
            best = s;
    }
    return best;
}

static bool is_gap(const sbp_fence_step *step) {
    return step->kind == SBP_FENCE_GAP || step->kind == SBP_FENCE_PASSED;
}

/* -1: the trace does not come by the gap. */
static int32_t first_step_of(const sbp_fence_trace *trace, int32_t gap) {
    int32_t number = gap - trace->gap_low;
    return number >= 0 && number < trace->gap_count ? trace->first_of_gap[number] : -1;
}

static void index_gaps(sbp_fence_pass *pass, sbp_fence_trace *trace) {
    int32_t low = INT32_MAX, high = -1;
    for (int32_t s = 0; s < trace->count; s++)
        if (is_gap(&trace->steps[s])) {
            low = trace->steps[s].gap < low ? trace->steps[s].gap : low;
            high = trace->steps[s].gap > high ? trace->steps[s].gap : high;
        }
    trace->gap_low = low;
    trace->gap_count = high < low ? 0 : high - low + 1;
    trace->first_of_gap = SBP_NEW_ARRAY(pass->arena, int32_t, trace->gap_count + 1);
    trace->next_of_gap = SBP_NEW_ARRAY(pass->arena, int32_t, trace->count + 1);
    for (int32_t g = 0; g < trace->gap_count; g++)
        trace->first_of_gap[g] = -1;
    for (int32_t s = trace->count - 1; s >= 0; s--) {
        if (!is_gap(&trace->steps[s]))
            continue;
        int32_t *first = &trace->first_of_gap[trace->steps[s].gap - low];
        trace->next_of_gap[s] = *first;
        *first = s;
    }
}

void sbp_fence_add(sbp_fence_pass *pass, sbp_fence_list *list, int32_t gap, uint64_t bit) {
    pass->fences[gap] |= bit;
    SBP_PUSH(pass->arena, list->items, list->count, list->capacity, (sbp_fence_placed){gap, bit});
}

static sbp_status place(sbp_fence_pass *pass, sbp_fence_trace *trace, sbp_fence_list *list) {
    clock_set clocks = {0};
    for (int32_t s = 0; s < trace->count; s++) {
        keep_clocks(pass, trace, s, &clocks);
        hazard h;
        while (trace->steps[s].kind == SBP_FENCE_COMMAND && has_hazard(pass, trace, &clocks, s, &h)) {
            int32_t at = choose_gap(pass, trace, &h);
            uint64_t bit = sbp_fence_bit(h.from, trace->steps[s].queue);
            if (at < 0 || (pass->fences[trace->steps[at].gap] & bit))
                return sbp_fail(pass->diag, SBP_INTERNAL, "fence: a hazard with no place for a fence");
            int32_t gap = trace->steps[at].gap;
            sbp_fence_add(pass, list, gap, bit);
            s = first_step_of(trace, gap); /* again from there, where the new fence stands first */
            load_clocks(pass, trace, s, &clocks);
        }
        advance(pass, &clocks, &trace->steps[s], s);
    }
    return SBP_OK;
}

/* ---- removing ---------------------------------------------------------------------------------------- */

/* Whether the trace has no hazard, when all that changed since `clocks` was written are the fences of a gap.
 * With keep, writes the clocks. */
static bool still_holds(sbp_fence_pass *pass, sbp_fence_trace *trace, int32_t gap, bool keep) {
    int32_t next = first_step_of(trace, gap); /* step of the gap, from s on */
    clock_set clocks;
    if (next >= 0)
        load_clocks(pass, trace, next, &clocks);
    for (int32_t s = next; s >= 0 && s < trace->count;) {
        const sbp_fence_step *step = &trace->steps[s];
        hazard h;
        if (s == next) {
            next = trace->next_of_gap[s];
        } else if (same_clocks(pass, trace, s, &clocks)) { /* until the next step of the gap they stay so */
            if (next >= 0)
                load_clocks(pass, trace, next, &clocks);
            s = next;
            continue;
        }
        if (keep)
            keep_clocks(pass, trace, s, &clocks);
        if (step->kind == SBP_FENCE_COMMAND && has_hazard(pass, trace, &clocks, s, &h))
            return false;
        advance(pass, &clocks, step, s++);
    }
    return true;
}

static void take_out(sbp_fence_pass *pass, sbp_fence_trace *traces, int32_t count, int32_t gap,
                     uint64_t bit) {
    bool holds = true;
    pass->fences[gap] &= ~bit;
    for (int32_t t = 0; t < count && holds; t++)
        holds = still_holds(pass, &traces[t], gap, false);
    if (!holds) {
        pass->fences[gap] |= bit;
        return;
    }
    for (int32_t t = 0; t < count; t++)
        (void)still_holds(pass, &traces[t], gap, true);
}

static void write_clocks(sbp_fence_pass *pass, sbp_fence_trace *trace) {
    clock_set clocks = {0};
    for (int32_t s = 0; s < trace->count; s++) {
        keep_clocks(pass, trace, s, &clocks);
        advance(pass, &clocks, &trace->steps[s], s);
    }
}

static void make_clocks(sbp_fence_pass *pass, sbp_fence_trace *trace) {
    if (!trace->index) {
        trace->index = sbp_fence_index_make(pass, trace);
        index_gaps(pass, trace);
    }
    if (!trace->clocks)
        trace->clocks = SBP_NEW_ARRAY(pass->arena, int32_t, (int64_t)(trace->count + 1) * 2 * half_of(pass));
}

sbp_status sbp_fence_place(sbp_fence_pass *pass, sbp_fence_trace *traces, int32_t count,
                           sbp_fence_list *list) {
    for (int32_t t = 0; t < count; t++) {
        make_clocks(pass, &traces[t]);
        SBP_TRY(place(pass, &traces[t], list));
    }
    return SBP_OK;
}

void sbp_fence_reduce(sbp_fence_pass *pass, sbp_fence_trace *traces, int32_t count,
                      const sbp_fence_list *list) {
    int32_t deepest = 0;
    for (int32_t t = 0; t < count; t++)
        write_clocks(pass, &traces[t]);
    for (int32_t i = 0; i < list->count; i++)
        deepest = pass->depth[list->items[i].gap] > deepest ? pass->depth[list->items[i].gap] : deepest;
    /* The last one first: one between queues was put behind what it is for, and covers what an earlier one is
     * for, too; but then that is waited for together with copies that came after it. */
    for (int32_t depth = deepest; depth >= 0; depth--)
        for (int32_t i = list->count - 1; i >= 0; i--)
            if (pass->depth[list->items[i].gap] == depth)
                take_out(pass, traces, count, list->items[i].gap, list->items[i].bit);
}
