/* net.h: what the files of queue net share: its state, and how a collective moves bytes. Everything is put
 * into one stream; nothing waits for the device. Errors: SBP_MACHINE when another rank is lost or does not
 * come. */
#ifndef SBP_CUDA_NET_H
#define SBP_CUDA_NET_H

#include "backends/cuda/device/cuda.h"
#include "backends/cuda/device/nccl.h"
#include "ir/program/collective_steps.h"

/* Collectives that may be under way, so that who waits is not far behind. */
enum { CUDA_NET_MARKS = 128 };

/* Communicators of parts of the world. */
enum { CUDA_OF_GROUP, CUDA_OF_OTHERS, CUDA_OF_CONTEXT, CUDA_SPLITS };

typedef struct cuda_mark {
    cuda_event begin, end;
    const char *name;
} cuda_mark;

typedef struct cuda_net {
    cuda_nccl own, *nccl;                       /* its own world, or that of the transport */
    cuda_nccl splits[CUDA_SPLITS];              /* without a communicator where there is none */
    int32_t rank, count, node;                  /* node: ranks of a host (backends/ranks/ranks.h) */
    sbp_process_group everybody, group, others; /* others: of the other groups, that have the same share */
    sbp_process_group context;                  /* that have a micro-batch together */
    double timeout;
    cuda_address memory; /* that operands pass through, of the streams of net and of compute */
    int64_t memory_bytes;
    cuda_mark marks[CUDA_NET_MARKS]; /* of collectives [done, submitted) */
    int64_t done, submitted, sent_bytes, away_bytes;
    double looked, waited; /* when it was looked after, and for how long others did not come */
} cuda_net;

/* Bytes from here on, in an arena. */
typedef struct cuda_place {
    sbp_space space;
    int64_t offset;
} cuda_place;

/* A collective, as it is given. */
typedef struct cuda_task {
    cuda_device *d;
    cuda_net *w;
    sbp_collective_call call;
    const sbp_span *to, *from;
    cuda_stream stream;
    cuda_nccl *nccl;      /* of the stream */
    int32_t first, ranks; /* its first rank, and how many it has */
    cuda_address work;    /* the stream's workspace */
    int64_t work_bytes;
    bool in_round; /* NCCL is being told what it should send and receive at once */
    sbp_diag *diag;
} cuda_task;

/* ---- net_steps.c ----------------------------------------------------------------------------------- */

/* The place of an operand's elements from number `elems` on. */
cuda_place cuda_place_of(const sbp_span *span, int64_t elems);
cuda_place cuda_place_later(cuda_place p, int64_t bytes);
cuda_address cuda_place_address(const cuda_task *t, cuda_place p);

/* To, and from, an address of the device. */
sbp_status cuda_net_bring(const cuda_task *t, cuda_address to, cuda_place from, int64_t bytes) SBP_CHECKED;
sbp_status cuda_net_take(const cuda_task *t, cuda_place to, cuda_address from, int64_t bytes) SBP_CHECKED;

/* The steps of a phase; what they send is counted. */
sbp_status cuda_net_phase(const cuda_task *t, sbp_phase phase) SBP_CHECKED;
/* Counts what they would send, where NCCL stands for them. */
void cuda_net_count(const cuda_task *t, sbp_phase phase);
/* After any call of NCCL: nothing else may be done with the stream until it has put its work there. */
sbp_status cuda_net_settle(const cuda_task *t) SBP_CHECKED;
/* The kernel that adds. */
sbp_status cuda_net_add(const cuda_task *t, const sbp_cuda_sum *sum) SBP_CHECKED;

/* ---- net_native.c ---------------------------------------------------------------------------------- */

/* Whether NCCL itself adds up what the collective sums: it stands for the rounds of the sum. */
bool cuda_net_is_native(const cuda_task *t, const sbp_process_group *pg);
/* An all-reduce: for those of the gather, too. */
sbp_status cuda_net_native_all(const cuda_task *t, const sbp_process_group *pg) SBP_CHECKED;
/* SBP_PHASE_SUM. */
sbp_status cuda_net_native_sum(const cuda_task *t, const sbp_process_group *pg) SBP_CHECKED;

#endif
