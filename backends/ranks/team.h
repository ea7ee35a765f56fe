/* team.h: ranks that do something together, and their shares of what they have: of MPI's world (ranks.c), and
 * of a device's own wire. */
#ifndef SBP_BACKENDS_RANKS_TEAM_H
#define SBP_BACKENDS_RANKS_TEAM_H

#include "ir/program/collective_steps.h"

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
