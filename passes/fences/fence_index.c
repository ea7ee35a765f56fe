/* fence_index.c: which commands of a trace touch the same memory.
 *
 * The bytes that accesses reach in a memory space are cut at the ends of all of them into pieces; each piece
 * has, per queue, the steps that touch it, in order. Accesses of formals have a piece for each formal and
 * slot. */
#include <stdlib.h>

#include "passes/fences/fence.h"

/* An end of an access: of bytes of a space; of formals `place` is ref and slot. */
typedef struct edge {
    int32_t space; /* -1: formals */
    int64_t place;
} edge;

struct sbp_fence_index {
    edge *edges; /* sorted, each once: piece k lies from edge k to the next */
    int32_t edge_count;
    int32_t **steps; /* per list (list_of), ascending */
    int32_t *counts;
};

static int compare_edges(const void *x, const void *y) {
    const edge *a = x, *b = y;
    if (a->space != b->space)
        return a->space < b->space ? -1 : 1;
    return (a->place > b->place) - (a->place < b->place);
}

static edge begin_of(const sbp_fence_access *a) {
    if (a->ref < 0)
        return (edge){-1, (int64_t)a->ref * INT32_MAX + a->slot};
    return (edge){(int32_t)a->space, a->low};
}

static edge end_of(const sbp_fence_access *a) {
    edge e = begin_of(a);
    e.place = a->ref < 0 ? e.place + 1 : a->high;
    return e;
}

/* The piece that begins at an edge. */
static int32_t piece_at(const sbp_fence_index *index, const edge *at) {
    int32_t low = 0, high = index->edge_count;
    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;
        *(compare_edges(&index->edges[middle], at) <= 0 ? &low : &high) = middle;
    }
    return low;
}

static void pieces_of(const sbp_fence_index *index, const sbp_fence_access *a, int32_t *begin, int32_t *end) {
    edge first = begin_of(a), last = end_of(a);
    *begin = piece_at(index, &first);
    *end = compare_edges(&first, &last) < 0 ? piece_at(index, &last)
                                            : *begin + 1; /* nothing at all: one piece */
}

static void find_edges(sbp_fence_pass *pass, const sbp_fence_trace *trace, sbp_fence_index *index) {
    int32_t count = 0, capacity = 0, kept = 0;
    edge *edges = NULL;
    for (int32_t s = 0; s < trace->count; s++) {
        const sbp_fence_step *step = &trace->steps[s];
        int32_t accesses = step->access_count > step->far_count ? step->access_count : step->far_count;
        for (int32_t k = 0; step->kind == SBP_FENCE_COMMAND && k < accesses; k++)
            if (step->accesses[k].ref != SBP_NO_VIEW) {
                SBP_PUSH(pass->arena, edges, count, capacity, begin_of(&step->accesses[k]));
                SBP_PUSH(pass->arena, edges, count, capacity, end_of(&step->accesses[k]));
            }
    }
    if (count > 0)
        qsort(edges, (size_t)count, sizeof *edges, compare_edges);
    for (int32_t i = 0; i < count; i++)
        if (kept == 0 || compare_edges(&edges[i], &edges[kept - 1]) != 0)
            edges[kept++] = edges[i];
    index->edges = edges;
    index->edge_count = kept;
}

/* Per piece and queue a list of all steps that touch it, and one of those that write. */
static int32_t list_of(int32_t piece, int32_t queue, bool writers) {
    return (piece * SBP_FENCE_QUEUES + queue) * 2 + writers;
}

static void list_step(sbp_fence_index *index, int32_t at, int32_t s, int32_t *latest) {
    if (latest[at] == s + 1)
        return;
    latest[at] = s + 1;
    if (index->steps)
        index->steps[at][index->counts[at]] = s;
    index->counts[at]++;
}

/* Counts the steps of each piece and queue, or with lists lists them; a step that comes again counts once. */
static void list_steps(const sbp_fence_trace *trace, sbp_fence_index *index, int32_t *latest) {
    for (int32_t s = 0; s < trace->count; s++) {
        const sbp_fence_step *step = &trace->steps[s];
        for (int32_t k = 0; step->kind == SBP_FENCE_COMMAND && k < step->access_count; k++) {
            int32_t begin, end;
            if (step->accesses[k].ref == SBP_NO_VIEW)
                continue;
            pieces_of(index, &step->accesses[k], &begin, &end);
            for (int32_t piece = begin; piece < end; piece++) {
                list_step(index, list_of(piece, step->queue, false), s, latest);
                if (step->accesses[k].writes)
                    list_step(index, list_of(piece, step->queue, true), s, latest);
            }
        }
    }
}

sbp_fence_index *sbp_fence_index_make(sbp_fence_pass *pass, const sbp_fence_trace *trace) {
    sbp_fence_index *index = SBP_NEW(pass->arena, sbp_fence_index);
    find_edges(pass, trace, index);
    int32_t lists = list_of(index->edge_count, 0, false);
    index->counts = SBP_NEW_ARRAY(pass->arena, int32_t, lists + 1);
    int32_t *latest = SBP_NEW_ARRAY(pass->arena, int32_t, lists + 1);
    list_steps(trace, index, latest);
    int32_t **steps = SBP_NEW_ARRAY(pass->arena, int32_t *, lists + 1);
    for (int32_t i = 0; i < lists; i++) {
        steps[i] = SBP_NEW_ARRAY(pass->arena, int32_t, index->counts[i]);
        index->counts[i] = latest[i] = 0;
    }
    index->steps = steps;
    list_steps(trace, index, latest);
    return index;
}

/* The last number of a list below `bound`; -1. */
static int32_t last_below(const int32_t *list, int32_t count, int32_t bound) {
    int32_t low = 0, high = count; /* list[low - 1] < bound <= list[high] */
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (list[middle] < bound)
            low = middle + 1;
        else
            high = middle;
    }
    return low > 0 ? list[low - 1] : -1;
}

int32_t sbp_fence_index_before(const sbp_fence_index *index, const sbp_fence_access *accesses, int32_t count,
                               int32_t queue, int32_t bound) {
    int32_t best = -1;
    for (int32_t k = 0; k < count; k++) {
        int32_t begin, end;
        if (accesses[k].ref == SBP_NO_VIEW)
            continue;
        pieces_of(index, &accesses[k], &begin, &end);
        for (int32_t piece = begin; piece < end; piece++) {
            int32_t at = list_of(piece, queue, !accesses[k].writes), /* reads do not conflict */
                step = last_below(index->steps[at], index->counts[at], bound);
            best = step > best ? step : best;
        }
    }
    return best;
}
