/* world.h: this process of a run: what it was asked, where it says things, its place among the ranks, and the
 * device that it computes on, with the plan's program loaded.
 *
 * Owner: sbp_command_run (command_run.c), which makes it first and ends it last: what inputs, session and
 * outputs have is in its arena, or is freed before. Lifetime: `options` from when they are read, `executor`
 * and `profile` from when the device is opened, all else from sbp_world_join on. One thread uses it.
 */
#ifndef SBP_RUNTIME_CLI_SBPRUN_WORLD_H
#define SBP_RUNTIME_CLI_SBPRUN_WORLD_H

#include "backends/ranks/ranks.h"
#include "runtime/options/options.h"
#include "runtime/run/executor.h"
#include "runtime/run/profile.h"

/* --timeout where the options cannot be read. */
#define SBP_WORLD_FIRST_TIMEOUT 600

typedef struct sbp_world {
    sbp_arena *arena;
    sbp_diag *diag;
    int argc;
    char *const *argv;
    sbp_options *options;
    struct sbp_ranks *ranks; /* NULL: alone */
    sbp_ranks_info place;    /* --dry-run --ranks N: as if there were N */
    double *slots;           /* [2 place.count] */
    int32_t sharing;         /* processes that use the same cores */
    double timeout;          /* seconds; 0: none */
    sbp_status agreed;       /* why the run fails, as all ranks know; SBP_OK: it does not */
    sbp_status signal;       /* SBP_INTERRUPTED, SBP_TERMINATED when all stop; as of the last agreement */
    sbp_executor *executor;
    sbp_profile *profile; /* SBP_PROFILE; NULL: not wanted */
} sbp_world;

/* The world that the environment describes, before anything is read. */
sbp_status sbp_world_join(sbp_world *world) SBP_CHECKED;
/* The end, before what the run has is freed: where this rank failed and the others do not know, it removes a
 * file that is left over (NULL: none), ends them and does not return. */
void sbp_world_prepare_to_leave(const sbp_world *world, sbp_status status, const char *leftover);
void sbp_world_leave(const sbp_world *world, sbp_status status);
/* Whether this rank writes and reports. */
bool sbp_world_writes(const sbp_world *world);

/* All ranks call these in the same order; alone, they do nothing. The status of the first rank that failed,
 * which says why; world->signal. Without an agreement, a failure ends all when it gets to the top. */
sbp_status sbp_world_agree(sbp_world *world, sbp_status status) SBP_CHECKED;
/* Whether collectives of all ranks end with this status alike, so that they can agree on it. */
bool sbp_world_is_common(sbp_status status);
/* Behind what rank 0 alone has done, while the others waited: status is how it went, SBP_OK for them. */
sbp_status sbp_world_alone(sbp_world *world, sbp_status status) SBP_CHECKED;
/* Rank 0's text, or NULL, to all. */
sbp_status sbp_world_share_text(const sbp_world *world, const char **text) SBP_CHECKED;
/* SBP_INPUT unless all have the same; what: "other data". */
sbp_status sbp_world_same(sbp_world *world, const char *what, uint64_t hash) SBP_CHECKED;
/* The largest of all. */
sbp_status sbp_world_largest(sbp_world *world, int64_t *value) SBP_CHECKED;

/* How many there are, over what, and why; alone, nothing. */
void sbp_world_say(const sbp_world *world);
/* *launch: how many are to be started, 0: none. out: where a run that goes on says how many it
 * has, or NULL. */
sbp_status sbp_world_count_ranks(sbp_world *world, const char *out, int32_t *launch) SBP_CHECKED;
/* Whether all see what rank 0 writes in a directory; where they must, SBP_IO if one does not. Alone, or with
 * NULL, false. */
sbp_status sbp_world_check_shared(sbp_world *world, const char *out, bool must, bool *shared) SBP_CHECKED;

/* --threads, at most four for each core (16 are always allowed), else the cores of this machine. */
int32_t sbp_world_threads(const sbp_world *world);
/* Closes the device, and prints the profile where rank 0 has one. */
void sbp_world_close_device(sbp_world *world);

#endif
