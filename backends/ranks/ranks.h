/* ranks.h: this process among others that run the same program, and what they compute together.
 *
 * Every rank calls the same functions with the same sizes in the same order; each returns when its result is
 * there. What a rank does in a collective is steps (ir/program/collective_steps.h): the same numbers give the
 * same bits in every run and over every network, however ranks lie on hosts.
 *
 * A world of one rank needs no transport; its share is all.
 *
 * Errors: SBP_MACHINE when the transport is missing, a rank does not answer or is gone; SBP_INTERNAL for a
 * type that has no sum. After an error a world can only be left. One thread at a time. */
#ifndef SBP_BACKENDS_RANKS_RANKS_H
#define SBP_BACKENDS_RANKS_RANKS_H

#include "ir/base/context.h"
#include "ir/base/types.h"

typedef struct sbp_ranks sbp_ranks;
struct sbp_transport;       /* transport.h */
struct sbp_collective_call; /* ir/program/collective_steps.h */

typedef struct sbp_ranks_info {
    int32_t rank, count;             /* of all */
    int32_t local_rank, local_count; /* of those on this host */
    int32_t node; /* ranks of every host, one after the other; 1: hosts differ, or their ranks alternate */
    int32_t member, group; /* of the ranks that have shares of one whole: all, until they are divided */
    const char *transport; /* "none" of one rank */
    const char *why;       /* what says that there are others: "OMPI_COMM_WORLD_SIZE is 4" */
    int64_t sent_bytes, received_bytes;
    int64_t away_bytes; /* of what was sent: to other hosts, each of `node` ranks */
    double timeout;     /* as it was joined with */
    bool native;        /* ranks met over what a backend brings along, one call at a time */
} sbp_ranks_info;

/* How many ranks the environment says there are, and which this is (0: it does not say); 0: it says nothing.
 * No world is joined. Launchers of MPI first, then torchrun and what sets the same variables (RANK,
 * WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT). */
int32_t sbp_ranks_announced(void);
int32_t sbp_ranks_announced_rank(void);
/* SBP_MACHINE where the transport cannot be opened, for which there is a reason: "--ranks 4". */
sbp_status sbp_ranks_find_transport(const char *why, sbp_diag *diag) SBP_CHECKED;

/* The world that the environment describes (mpirun, srun with PMI or PMIx: over MPI; torchrun: over `native`,
 * what a backend brings along, NULL where none does); a process that was started alone is one rank.
 * `timeout`: seconds for which a rank may send nothing that another waits for; 0: for ever. */
sbp_status sbp_ranks_join(double timeout, const struct sbp_transport *native, sbp_diag *diag,
                          sbp_ranks **out) SBP_CHECKED;
/* Whether a collective has failed: most likely some rank did not come. */
bool sbp_ranks_has_failed(const sbp_ranks *ranks);
/* Ranks that meet by other means than these functions have: one that waited for others in vain. */
void sbp_ranks_fail(sbp_ranks *ranks);
/* Waits for the others, unless something failed; NULL is allowed. */
void sbp_ranks_leave(sbp_ranks *ranks);
/* Ends every process of the world with this exit status; returns where there is only one, or whoever started
 * them does it when this one ends. */
void sbp_ranks_end_all(sbp_ranks *ranks, int status);
void sbp_ranks_info_of(const sbp_ranks *ranks, sbp_ranks_info *out);

/* From now on groups of `group` neighbours have shares, each group the same. Sums of shares are of all ranks:
 * of a group first, then across groups along the same tree over their numbers, so that groups of a power of
 * two change no bit. SBP_INPUT: the ranks are no whole groups. */
sbp_status sbp_ranks_divide(sbp_ranks *ranks, int32_t group, sbp_diag *diag) SBP_CHECKED;
/* The ranks of a context (ir/base/context.h), `size` of them, which divides the count: a world of its own, in
 * which they are counted from 0. Its calls may run beside those of `ranks`, on another thread. Left before
 * `ranks` is. */
sbp_status sbp_ranks_context(sbp_ranks *ranks, int32_t size, sbp_diag *diag, sbp_ranks **out) SBP_CHECKED;

/* A collective of a program, with the operands that its command has; world and bounds of `call` are filled
 * in. A context's collectives are in its own world. */
sbp_status sbp_ranks_collective(sbp_ranks *ranks, const struct sbp_collective_call *call, void *dst,
                                const void *src, sbp_diag *diag) SBP_CHECKED;

/* data: elems numbers; afterwards the sum over all ranks, the same bits on each. */
sbp_status sbp_ranks_all_reduce(sbp_ranks *ranks, void *data, int64_t elems, sbp_dtype dtype,
                                sbp_diag *diag) SBP_CHECKED;
/* data: the shares of all of the group. Any type; `share` may be where data have it. */
sbp_status sbp_ranks_all_gather(sbp_ranks *ranks, void *data, const void *share, int64_t elems,
                                sbp_dtype dtype, sbp_diag *diag) SBP_CHECKED;
/* What rank `root` has; any type. */
sbp_status sbp_ranks_broadcast(sbp_ranks *ranks, void *data, int64_t elems, sbp_dtype dtype, int32_t root,
                               sbp_diag *diag) SBP_CHECKED;

/* Bytes for, or from, one rank. */
typedef struct sbp_ranks_piece {
    int32_t rank;
    void *data;
    int64_t bytes; /* at most 1 GiB */
} sbp_ranks_piece;

/* All ranks call it, each with its own pieces: at most one for every other rank, and one from it; what one
 * sends the other receives. */
sbp_status sbp_ranks_swap(sbp_ranks *ranks, const sbp_ranks_piece *send, int32_t send_count,
                          const sbp_ranks_piece *receive, int32_t receive_count, sbp_diag *diag) SBP_CHECKED;

#endif
