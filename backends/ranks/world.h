/* world.h: what the files of this folder share. */
#ifndef SBP_BACKENDS_RANKS_WORLD_H
#define SBP_BACKENDS_RANKS_WORLD_H

#include "backends/ranks/ranks.h"
#include "backends/ranks/transport.h"

struct sbp_ranks {
    void *library;
    const sbp_transport *transport; /* NULL: one rank */
    sbp_transport_world world;
    const char *why;
    char why_text[96];
    double timeout;
    int64_t sent_bytes, away_bytes, received_bytes, exchanges;
    sbp_transport_piece *send, *receive; /* [count] each */
    void *requests;                      /* of both */
    char *work;                          /* what collectives work in */
    int64_t work_bytes;
    bool native; /* not over MPI */
    bool failed;
    struct sbp_ranks *parent; /* of a context, what it is a part of; NULL */
    int32_t first, channel;   /* of a context: its first rank there */
    int32_t group, member;    /* of ranks that have shares of one whole */
};

/* Lists of pieces as they grow; a rank sends itself nothing, and nobody nothing. */
void sbp_ranks_add_piece(const sbp_ranks *ranks, sbp_transport_piece *list, int32_t *count, int32_t rank,
                         void *data, int64_t bytes);
/* What the lists `send` and `receive` name; what: for messages. */
sbp_status sbp_ranks_exchange(sbp_ranks *ranks, int32_t sends, int32_t receives, const char *what,
                              sbp_diag *diag) SBP_CHECKED;

#endif
