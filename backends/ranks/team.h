/* team.h: ranks that do something together, and their shares of what they have: of MPI's world (ranks.c), and
 * of a device's own wire. */
#ifndef SBP_BACKENDS_RANKS_TEAM_H
#define SBP_BACKENDS_RANKS_TEAM_H

#include "ir/program/program.h"

/* `count` of them, so far apart, from `first` on. Sums and gathers go in two steps: among `near` neighbours,
 * that are on one host, and among those that have the same place among theirs. */
typedef struct sbp_team {
    int32_t first, stride, count, me; /* me: a member, from 0 */
    int32_t near; /* divides the count; count: one step (ir/program/program.h, sbp_near_ranks) */
} sbp_team;

/* Of rank `rank` among `count`, on hosts of `node` ranks each (1: not known): all of them; the `size`
 * neighbours, which divide the count, among which it is; those that have its place among their neighbours. */
static inline sbp_team sbp_team_of_all(int32_t rank, int32_t count, int32_t node) {
    return (sbp_team){0, 1, count, rank, (int32_t)sbp_near_ranks(node, 1, count)};
}

static inline sbp_team sbp_team_of_neighbours(int32_t rank, int32_t size, int32_t node) {
    return (sbp_team){rank - rank % size, 1, size, rank % size, (int32_t)sbp_near_ranks(node, 1, size)};
}

static inline sbp_team sbp_team_across(int32_t rank, int32_t count, int32_t size, int32_t node) {
    return (sbp_team){rank % size, size, count / size, rank / size,
                      (int32_t)sbp_near_ranks(node, size, count / size)};
}

static inline int32_t sbp_team_rank(const sbp_team *team, int32_t member) {
    return team->first + member * team->stride;
}

/* Blocks of neighbours: how many, which is this rank's, and its place there. */
static inline int32_t sbp_team_blocks(const sbp_team *team) {
    return team->count / team->near;
}

static inline int32_t sbp_team_block(const sbp_team *team) {
    return team->me / team->near;
}

static inline int32_t sbp_team_place(const sbp_team *team) {
    return team->me % team->near;
}

/* First element of a member's share of `elems`; of member `count`: elems. Shares of all but the last are
 * equal. */
static inline int64_t sbp_team_begin(const sbp_team *team, int64_t elems, int32_t member) {
    int64_t begin = member * sbp_ceil_div(elems, team->count);
    return begin < elems ? begin : elems;
}

static inline int64_t sbp_team_share(const sbp_team *team, int64_t elems, int32_t member) {
    return sbp_team_begin(team, elems, member + 1) - sbp_team_begin(team, elems, member);
}

/* Elements of a member's share, from `from` on, at most `most` of them. */
static inline int64_t sbp_team_slice(const sbp_team *team, int64_t elems, int32_t member, int64_t from,
                                     int64_t most) {
    int64_t left = sbp_team_share(team, elems, member) - from;
    return left < 0 ? 0 : left < most ? left : most;
}

/* Elements that this member sends so that all have the sums of their shares: its neighbours' of all blocks to
 * these, then those of the members in its place. away: of them to other hosts, of `node` ranks each. */
static inline int64_t sbp_team_scattered(const sbp_team *team, int64_t elems, int32_t node, int64_t *away) {
    int64_t sent = 0;
    int32_t host = sbp_team_rank(team, team->me) / node, block = sbp_team_block(team);
    *away = 0;
    for (int32_t m = 0; m < team->count; m++) {
        int32_t place = m % team->near;
        bool near = place != sbp_team_place(team);
        int32_t to = near ? block * team->near + place : m;
        int64_t share = to == team->me ? 0 : sbp_team_share(team, elems, m);
        sent += share;
        *away += sbp_team_rank(team, to) / node == host ? 0 : share;
    }
    return sent;
}

/* Elements that this member sends so that all have all shares: its own to those in its place, then those of
 * all of these to its neighbours. away: of them to other hosts, of `node` ranks each. */
static inline int64_t sbp_team_gathered(const sbp_team *team, int64_t elems, int32_t node, int64_t *away) {
    int64_t mine = sbp_team_share(team, elems, team->me), sent = 0;
    int32_t host = sbp_team_rank(team, team->me) / node, block = sbp_team_block(team);
    *away = 0;
    for (int32_t b = 0; b < sbp_team_blocks(team); b++) {
        int32_t other = b * team->near + sbp_team_place(team);
        sent += b == block ? 0 : mine;
        *away += sbp_team_rank(team, other) / node == host ? 0 : mine;
        for (int32_t p = 0; p < team->near; p++) {
            int32_t neighbour = block * team->near + p;
            int64_t bytes = neighbour == team->me ? 0 : sbp_team_share(team, elems, other);
            sent += bytes;
            *away += sbp_team_rank(team, neighbour) / node == host ? 0 : bytes;
        }
    }
    return sent;
}

#endif
