/* team.h: ranks that do something together, and their shares of what they have: of MPI's world (ranks.c), and
 * of a device's own wire. */
#ifndef SBP_BACKENDS_RANKS_TEAM_H
#define SBP_BACKENDS_RANKS_TEAM_H

#include "ir/base.h"

/* `count` of them, so far apart, from `first` on. */
typedef struct sbp_team {
    int32_t first, stride, count, me; /* me: a member, from 0 */
} sbp_team;

/* Of rank `rank` among `count`: all of them; the `size` neighbours, which divide the count, among which it
 * is; those that have its place among their neighbours. */
static inline sbp_team sbp_team_of_all(int32_t rank, int32_t count) {
    return (sbp_team){0, 1, count, rank};
}

static inline sbp_team sbp_team_of_neighbours(int32_t rank, int32_t size) {
    return (sbp_team){rank - rank % size, 1, size, rank % size};
}

static inline sbp_team sbp_team_across(int32_t rank, int32_t count, int32_t size) {
    return (sbp_team){rank % size, size, count / size, rank / size};
}

static inline int32_t sbp_team_rank(const sbp_team *team, int32_t member) {
    return team->first + member * team->stride;
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

#endif
