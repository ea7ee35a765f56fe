/* traffic.h: bytes that a rank sends in a collective, by formulas: shares go round within hosts first, then
 * between those that have the same place on their hosts. Written for tests, from nothing of the product. */
#ifndef SBP_TESTS_COMMON_TRAFFIC_H
#define SBP_TESTS_COMMON_TRAFFIC_H

#include <stdbool.h>
#include <stdint.h>

typedef struct traffic {
    int64_t sent, away; /* bytes: all, and to other hosts */
} traffic;

/* `count` ranks of a world that are `stride` apart, of which `me` is the one that is looked at; on each host
 * `node` ranks of the world; near: how many neighbours exchange as one. */
typedef struct process_group {
    int32_t first, stride, count, me, node, near;
} process_group;

/* Whether in all process groups like this one each block of `near` neighbours, from a multiple of it on, is
 * on one host. */
static inline bool traffic_is_near(int32_t world, const process_group *g, int32_t near) {
    bool good = true;
    for (int32_t r = 0; r < world; r++) {
        int32_t member = g->stride == 1 ? r % g->count : r / g->stride;
        good &= r / g->node == (r - member % near * g->stride) / g->node;
    }
    return good;
}

/* The group of `rank` in a world of `world` ranks. The most neighbours that are near: a power of two, unless
 * it is all. */
static inline process_group traffic_group(int32_t world, int32_t node, int32_t rank, int32_t first,
                                          int32_t stride, int32_t count) {
    process_group g = {first, stride, count, (rank - first) / stride, node, 1};
    for (int32_t near = 2; near <= count && count % near == 0; near *= 2)
        g.near = traffic_is_near(world, &g, near) ? near : g.near;
    g.near = traffic_is_near(world, &g, count) || g.near == 1 ? count : g.near;
    return g;
}

/* Elements before those of a member. */
static inline int64_t traffic_begin(int64_t elems, int32_t count, int32_t member) {
    int64_t begin = (elems + count - 1) / count * member;
    return begin < elems ? begin : elems;
}

static inline int64_t traffic_share(const process_group *g, int64_t elems, int32_t member) {
    return traffic_begin(elems, g->count, member + 1) - traffic_begin(elems, g->count, member);
}

static inline void traffic_pass(traffic *sum, const process_group *g, int32_t member, int64_t bytes) {
    int32_t from = g->first + g->me * g->stride, to = g->first + member * g->stride;
    sum->sent += to != from ? bytes : 0;
    sum->away += to / g->node != from / g->node ? bytes : 0;
}

/* To each neighbour what is for those in its place; to each in its own place the sum of that.
 * unit, wide: bytes of an element, and of a partial sum. */
static inline void traffic_of_sums(traffic *sum, const process_group *g, int64_t elems, int64_t unit,
                                   int64_t wide) {
    for (int32_t m = 0; m < g->count; m++) {
        for (int32_t k = 0; k < g->count && m / g->near == g->me / g->near; k++)
            traffic_pass(sum, g, m, k % g->near == m % g->near ? traffic_share(g, elems, k) * unit : 0);
        traffic_pass(sum, g, m, m % g->near == g->me % g->near ? traffic_share(g, elems, m) * wide : 0);
    }
}

/* To each in its place its own share; to each neighbour those of all in its place. */
static inline void traffic_of_shares(traffic *sum, const process_group *g, int64_t elems, int64_t unit) {
    for (int32_t m = 0; m < g->count; m++) {
        traffic_pass(sum, g, m, m % g->near == g->me % g->near ? traffic_share(g, elems, g->me) * unit : 0);
        for (int32_t k = 0; k < g->count && m / g->near == g->me / g->near; k++)
            traffic_pass(sum, g, m, k % g->near == g->me % g->near ? traffic_share(g, elems, k) * unit : 0);
    }
}

#endif
