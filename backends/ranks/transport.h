/* transport.h: what carries bytes between ranks. MPI's is a plugin that is opened when a world is joined, so
 * that the programs are built, and run alone, without it; a backend may bring one along. It knows bytes only:
 * sums are ranks.c's.
 *
 * Memory given to a call stays the caller's. Errors are any number but 0, with a text in `error`, which has
 * room for error_size bytes. One thread at a time, but for exchanges on channels of their own, which may run
 * beside each other. */
#ifndef SBP_BACKENDS_RANKS_TRANSPORT_H
#define SBP_BACKENDS_RANKS_TRANSPORT_H

#include <stddef.h>
#include <stdint.h>

/* Changes with anything in this header. */
#define SBP_TRANSPORT_VERSION 3

enum { SBP_TRANSPORT_CHANNELS = 2 };

/* Bytes for, or from, one rank. */
typedef struct sbp_transport_piece {
    int32_t rank;
    int64_t bytes; /* at most 1 GiB */
    void *data;
} sbp_transport_piece;

typedef struct sbp_transport_world {
    int32_t rank, count;             /* of all */
    int32_t local_rank, local_count; /* of those that share this host's memory */
    int32_t node;   /* ranks of every host, one after the other; 1: hosts differ, or their ranks alternate */
    char name[128]; /* "MPI (Open MPI v4.1.4)" */
} sbp_transport_world;

typedef struct sbp_transport {
    uint32_t version;
    /* The world that the environment describes. Once in a process. */
    int (*join)(sbp_transport_world *out, char *error, size_t error_size);
    size_t request_bytes; /* that exchange needs for each piece */
    /* Sends and receives all pieces, at once and in no order; returns when they are there. Between two ranks
     * pieces of a channel (0 .. SBP_TRANSPORT_CHANNELS - 1) arrive in the order of their lists. requests:
     * request_bytes for each of all pieces. `late` gets a rank that has sent, or taken, nothing for `seconds`
     * (0: waits for ever), else -1. */
    int (*exchange)(int channel, const sbp_transport_piece *send, int32_t send_count,
                    const sbp_transport_piece *receive, int32_t receive_count, void *requests, double seconds,
                    int32_t *late, char *error, size_t error_size);
    /* All ranks leave together. */
    void (*leave)(void);
    /* Ends all processes of the world, this one too; or returns, where others see that this one ends, and who
     * started them ends them. */
    void (*end_all)(int status);
} sbp_transport;

/* The plugin's one symbol. */
#define SBP_TRANSPORT_SYMBOL "sbp_transport_table"

#endif
