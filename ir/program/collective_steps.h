/* collective_steps.h: what one rank does in a collective: a sequence of steps, each of which sends to a rank,
 * receives from one, adds or copies. Whoever carries them out knows how bytes move and how numbers are added,
 * no collective: backends/ranks on the host, backends/cuda/device in a stream. Bytes that are counted, for
 * the planner too, are those of these steps.
 *
 * Sums. Numbers of ranks are added along a tree over the numbers of ranks that is always the same: neighbours
 * first, then pairs of these, so that eight ranks that begin at a multiple of eight are a subtree. They are
 * added in fp32 (f64: in f64) and rounded to their type once. Where hosts have several ranks each, neighbours
 * on a host add up first, for all ranks that have the same place on their hosts; then these exchange sums, as
 * wide as they were added. Gathers go the other way round. A ring's bytes go between hosts, and no bit
 * depends on how ranks lie on them. (Two-level as hierarchical all-reduce: Jia et al. 2018,
 * arXiv:1807.11205.)
 *
 * Data go in slices of the shares, as large as the workspace allows; neither sums nor the bytes sent depend
 * on how large they are. Nothing is allocated. */
#ifndef SBP_IR_PROGRAM_COLLECTIVE_STEPS_H
#define SBP_IR_PROGRAM_COLLECTIVE_STEPS_H

#include "ir/program/program.h"

/* ---- process groups ------------------------------------------------------------------------------------ */

/* `count` ranks that do something together, so far apart, from `first` on. Sums and gathers go in two rounds:
 * among `near` neighbours, that are on one host, and among those that have the same place among theirs. */
typedef struct sbp_process_group {
    int32_t first, stride, count, me; /* me: a member, from 0 */
    int32_t near;                     /* divides the count; count: one round (sbp_near_ranks) */
} sbp_process_group;

/* How many neighbours on one host exchange and add among themselves first, before the members in the same
 * place of other blocks do. `count` ranks, `stride` apart, on hosts of `node` ranks each, one host after the
 * other. A power of two that divides `count`, so that neighbours from a multiple of it on are a subtree of
 * every sum. `count`: one round only, since all are on one host, or no two are; or because a host has an odd
 * number of them. */
int64_t sbp_near_ranks(int64_t node, int64_t stride, int64_t count);

/* Groups that rank `rank` of `count` ranks is in, on hosts of `node` ranks each (1: not known): all ranks;
 * the block of `size` neighbours (size divides count); the ranks that have its place in their blocks. */
sbp_process_group sbp_pg_of_all(int32_t rank, int32_t count, int32_t node);
sbp_process_group sbp_pg_of_neighbours(int32_t rank, int32_t size, int32_t node);
sbp_process_group sbp_pg_across(int32_t rank, int32_t count, int32_t size, int32_t node);
/* First element of a member's share of `elems`; of member `count`: elems. Shares of all but the last are
 * equal. */
int64_t sbp_pg_begin(const sbp_process_group *pg, int64_t elems, int32_t member);
/* Elements of a member's share, from `from` on, at most `most` of them. */
int64_t sbp_pg_slice(const sbp_process_group *pg, int64_t elems, int32_t member, int64_t from, int64_t most);

/* ---- steps ------------------------------------------------------------------------------------------ */

/* Slices begin at multiples of this many elements. */
enum { SBP_STEP_SLICE = 64 };

typedef enum sbp_step_memory {
    SBP_STEP_ZEROS, /* no memory: zeros are copied from there */
    SBP_STEP_SRC,   /* the operands */
    SBP_STEP_DST,
    SBP_STEP_WORK /* the workspace */
} sbp_step_memory;

/* Where numbers of a type are. */
typedef struct sbp_step_place {
    sbp_step_memory memory;
    sbp_dtype dtype;
    int64_t offset; /* bytes */
    int64_t stride; /* elements from one row to the next */
} sbp_step_place;

typedef enum sbp_step_kind {
    SBP_STEP_SEND,     /* `from`, one row, to rank `peer` */
    SBP_STEP_RECEIVE,  /* `to`, one row, from rank `peer`; between two ranks what one sends in a round arrives
                          in that order */
    SBP_STEP_EXCHANGE, /* ends a round: what was sent and received since the last one goes at once */
    SBP_STEP_ADD, /* `to` becomes, or with `adds` has added, the sum along the tree of `count` addends: `from`
                          is that of member `me`, the others' are at `arrived` one behind the other, rows
                          dense, each arrived.stride elements from the one before. In the wide type of
                          from.dtype, which arrived's is, too; rounded once. `to` may be `from` */
    SBP_STEP_COPY /* `to` becomes `from`, of one type; they may be the same place */
} sbp_step_kind;

/* One after the other in time; each is among `ranks` ranks that are `stride` apart. */
typedef enum sbp_round {
    SBP_ROUND_SCATTER,
    SBP_ROUND_SUM_NEAR,
    SBP_ROUND_SUM_FAR,
    SBP_ROUND_GROUPS_SUM_NEAR,
    SBP_ROUND_GROUPS_SUM_FAR,
    SBP_ROUND_GROUPS_GATHER_FAR,
    SBP_ROUND_GROUPS_GATHER_NEAR,
    SBP_ROUND_GATHER_FAR,
    SBP_ROUND_GATHER_NEAR,
    SBP_ROUND_HEADS,
    SBP_ROUNDS
} sbp_round;

typedef struct sbp_step {
    sbp_step_kind kind;
    int64_t rows, cols;      /* elements of it; not of an exchange */
    sbp_step_place from, to; /* as far as the kind has them */
    int32_t peer;            /* send, receive: a rank of the world */
    sbp_step_place arrived;  /* add */
    int32_t me, count;       /* add */
    bool adds;               /* add */
    sbp_round round;         /* exchange */
    int32_t ranks, stride;   /* exchange */
} sbp_step;

/* Carries out a step; the sequence ends at the first that fails. */
typedef sbp_status (*sbp_step_run)(void *user, const sbp_step *step);

/* The ranks of a program, and which this is. */
typedef struct sbp_collective_world {
    int32_t rank, ranks, group, context;
    int32_t node; /* ranks of each host, one after the other; 1: hosts differ, or are unknown */
} sbp_collective_world;

/* A collective, as one rank takes part in it. */
typedef struct sbp_collective_call {
    sbp_collective_op op;
    sbp_collective_world world;
    int64_t elems; /* all that there is; of share: of the share, which is all of src; of heads: not read */
    sbp_dtype to, from;
    int32_t root;              /* of broadcast */
    int64_t rows;              /* of heads: of each rank */
    sbp_context_heads heads;   /* to_heads, to_rows */
    bool src_apart, dst_apart; /* not where steps may send from, receive or add: only copies reach it */
    int64_t work_bytes;
    int64_t piece_bytes; /* at most of what is gathered or scattered at once, of each rank */
} sbp_collective_call;

/* Workspace and pieces without bounds: to count. */
#define SBP_STEP_UNBOUNDED INT64_MAX

/* A call of `command`: workspace and pieces without bounds, operands where the device reaches them. */
sbp_collective_call sbp_collective_call_of(const sbp_command *command, const sbp_operand_shape *dst,
                                           const sbp_operand_shape *src, const sbp_collective_world *world);

/* A collective is some of these, one after the other; a library that does one by itself stands for its
 * steps. */
typedef enum sbp_phase {
    SBP_PHASE_NONE,
    SBP_PHASE_PLACE,   /* what this rank has of the result is copied to where that is */
    SBP_PHASE_SCATTER, /* each gets its share of what the root has */
    SBP_PHASE_SUM,     /* of this rank's share; of GROUPS also over all groups */
    SBP_PHASE_GATHER,  /* of shares, which are in their places */
    SBP_PHASE_HEADS,
    SBP_PHASE_ROWS
} sbp_phase;

enum { SBP_MOST_PHASES = 3 };

/* The phases of a collective; SBP_PHASE_NONE behind the last. */
const sbp_phase *sbp_collective_phases(sbp_collective_op op);
/* All steps of a phase, and of all phases. SBP_INTERNAL: the type has no sum, or the workspace is too
 * small. */
sbp_status sbp_phase_steps(const sbp_collective_call *call, sbp_phase phase, sbp_step_run run, void *user,
                           sbp_diag *diag) SBP_CHECKED;
sbp_status sbp_collective_steps(const sbp_collective_call *call, sbp_step_run run, void *user,
                                sbp_diag *diag) SBP_CHECKED;

/* ---- bytes ------------------------------------------------------------------------------------------ */

/* Bytes that a rank sends: in each round to `ranks - 1` others, `stride` apart; 1, 1 where there is none. */
typedef struct sbp_sent_round {
    int64_t bytes, ranks, stride;
} sbp_sent_round;

typedef struct sbp_sent {
    int64_t bytes, away; /* of all rounds; away: of them to other hosts */
    sbp_sent_round rounds[SBP_ROUNDS];
} sbp_sent;

/* Bytes that a phase, or a whole collective, sends: the same for any bounds and places. A type without a sum
 * sends nothing. */
sbp_sent sbp_phase_sent(const sbp_collective_call *call, sbp_phase phase);
sbp_sent sbp_collective_sent(const sbp_collective_call *call);

#endif
