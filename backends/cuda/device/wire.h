/* wire.h: what the files of queue net share: its state, and how a collective moves bytes. Everything is put
 * into one stream; nothing waits for the device. Errors: SBP_MACHINE when another rank is lost or does not
 * come. */
#ifndef SBP_CUDA_WIRE_H
#define SBP_CUDA_WIRE_H

#include "backends/cuda/device/cuda.h"
#include "backends/cuda/device/nccl.h"
#include "backends/ranks/team.h"

/* MARKS: collectives that may be under way, so that who waits is not far behind. SLICE: what elements of a
 * slice of a share are a multiple of. */
enum { CUDA_WIRE_MARKS = 128, CUDA_WIRE_SLICE = 64 };

/* Communicators of parts of the world. */
enum { CUDA_OF_GROUP, CUDA_OF_OTHERS, CUDA_OF_CONTEXT, CUDA_SPLITS };

typedef struct cuda_mark {
    cuda_event begin, end;
    const char *name;
} cuda_mark;

typedef struct cuda_wire {
    cuda_nccl own, *nccl;              /* its own world, or that of the transport */
    cuda_nccl splits[CUDA_SPLITS];     /* without a communicator where there is none */
    int32_t rank, count, node;         /* node: ranks of a host (backends/ranks/ranks.h) */
    sbp_team everybody, group, others; /* others: of the other groups, that have the same share */
    sbp_team context;                  /* that have a micro-batch together */
    double timeout;
    cuda_address memory; /* that operands pass through, of the streams of net and of compute */
    int64_t memory_bytes;
    cuda_mark marks[CUDA_WIRE_MARKS]; /* of collectives [done, submitted) */
    int64_t done, submitted, sent_bytes, away_bytes;
    double looked, waited; /* when it was looked after, and for how long others did not come */
} cuda_wire;

/* Bytes from here on, in an arena. */
typedef struct cuda_place {
    sbp_space space;
    int64_t offset;
} cuda_place;

/* Slices [at, at + most) of the shares that a team has of `elems` elements, on the device. */
typedef struct cuda_slices {
    const sbp_team *team;
    cuda_address data; /* the first member's slice */
    int64_t apart;     /* elements from each to the next */
    int64_t elems, at, most, unit;
} cuda_slices;

/* A collective, as it is given. */
typedef struct cuda_task {
    cuda_device *d;
    cuda_wire *w;
    const sbp_command *command;
    const sbp_span *to, *from;
    cuda_stream stream;
    cuda_nccl *nccl;      /* of the stream */
    int32_t first, ranks; /* its first rank, and how many it has */
    cuda_address work;    /* the stream's workspace */
    int64_t work_bytes;
    sbp_diag *diag;
} cuda_task;

/* ---- wire_move.c ------------------------------------------------------------------------------------ */

/* Of an operand, from an element on. */
cuda_place cuda_place_of(const sbp_span *span, int64_t elems);
cuda_place cuda_place_later(cuda_place p, int64_t bytes);
cuda_address cuda_place_address(const cuda_task *t, cuda_place p);

/* To, and from, an address of the device. */
sbp_status cuda_wire_bring(const cuda_task *t, cuda_address to, cuda_place from, int64_t bytes) SBP_CHECKED;
sbp_status cuda_wire_take(const cuda_task *t, cuda_place to, cuda_address from, int64_t bytes) SBP_CHECKED;
sbp_status cuda_wire_move(const cuda_task *t, cuda_place to, cuda_place from, int64_t bytes) SBP_CHECKED;

/* Counts what goes to a rank; cuda_wire_send does. */
void cuda_wire_count(const cuda_task *t, int32_t rank, int64_t bytes);
/* Between begin and end: sending and receiving, all at once. Of no bytes: nothing. */
sbp_status cuda_wire_begin(const cuda_task *t) SBP_CHECKED;
sbp_status cuda_wire_send(const cuda_task *t, int32_t rank, cuda_address from, int64_t bytes) SBP_CHECKED;
sbp_status cuda_wire_receive(const cuda_task *t, int32_t rank, cuda_address to, int64_t bytes) SBP_CHECKED;
sbp_status cuda_wire_end(const cuda_task *t) SBP_CHECKED;
/* A member's slice, and its bytes. */
cuda_address cuda_slice_at(const cuda_slices *s, int32_t member);
int64_t cuda_slice_bytes(const cuda_slices *s, int32_t member);
/* All slices, to each of the team; this member's is there. As backends/ranks does it. */
sbp_status cuda_wire_gather(const cuda_task *t, const cuda_slices *s) SBP_CHECKED;
/* After any call of NCCL: nothing else may be done with the stream until it has put its work there. */
sbp_status cuda_wire_settle(const cuda_task *t) SBP_CHECKED;
/* The workspace does not do for so many ranks. */
sbp_status cuda_wire_too_little(const cuda_task *t) SBP_CHECKED;

/* ---- wire_sums.c ------------------------------------------------------------------------------------ */

/* `to`, of the type of the command's first operand, becomes the sum over a team of what each has at `from`, a
 * share of it for each member; or has that added (reduce_add). across: the team is a group, and the sum goes
 * across groups before it is rounded. */
sbp_status cuda_wire_sum(const cuda_task *t, const sbp_team *team, cuda_place to, const sbp_span *from,
                         bool across) SBP_CHECKED;
/* The kernel alone. */
sbp_status cuda_wire_add(const cuda_task *t, const sbp_cuda_sum *sum) SBP_CHECKED;

/* ---- wire_native.c ---------------------------------------------------------------------------------- */

/* The communicator of a team of the wire; NULL: it has none. */
cuda_nccl *cuda_wire_nccl_of(cuda_wire *w, const sbp_team *team);
/* Whether NCCL itself adds up what a team has in this type, and sums of it across groups. */
bool cuda_wire_is_native(const cuda_task *t, const sbp_team *team, sbp_dtype dtype, bool across);
/* The operand `to` becomes the sum over a team of `from`. */
sbp_status cuda_wire_native_all(const cuda_task *t, const sbp_team *team) SBP_CHECKED;
/* What cuda_wire_sum does. */
sbp_status cuda_wire_native_sum(const cuda_task *t, const sbp_team *team, cuda_place to, const sbp_span *from,
                                bool across) SBP_CHECKED;

/* ---- wire_heads.c ----------------------------------------------------------------------------------- */

/* Collectives to_heads and to_rows. */
sbp_status cuda_wire_to_heads(const cuda_task *t) SBP_CHECKED;
sbp_status cuda_wire_to_rows(const cuda_task *t) SBP_CHECKED;

#endif
