/* nccl.h: what the files of the fake libnccl share. */
#ifndef SBP_TESTS_CUDA_FAKE_NCCL_H
#define SBP_TESTS_CUDA_FAKE_NCCL_H

#include "backends/cuda/device/nccl_api.h"
#include "tests/cuda/fake/fake.h"

enum { MOST_COMMS = 16, NAME_BYTES = 300 };

typedef enum call {
    POINT_TO_POINT = 1,
    ALL_GATHER,
    BROADCAST,
    ALL_REDUCE,
    REDUCE_SCATTER,
    ALL_REDUCE_F64,
    REDUCE_SCATTER_F64
} call;

typedef struct piece {
    bool sends, begun, done;
    call call;
    cuda_address at;
    size_t bytes;
    int32_t rank;
    int64_t number; /* of messages between the two */
    void *arrived;  /* of a sum: in the host's memory, and not at `at` */
} piece;

/* A sum of what all ranks have: of `count` numbers, or for each rank of as many. */
typedef struct reduction {
    bool set, wide, scatters;
    cuda_address from, to;
    size_t count;
} reduction;

typedef struct header {
    int64_t call, bytes;
} header;

struct nccl_comm_handle {
    int32_t id; /* 0: free */
    int32_t count, rank, device;
    char folder[NAME_BYTES];
    bool joined, finalizing, finalized;
    nccl_result state;
    int32_t patience;         /* how often it must still be asked */
    struct split *splitting;  /* NULL: it is not */
    int32_t splits;           /* that there were */
    int64_t *sent, *received; /* messages, [count] */
    int64_t groups, pending;
    struct group *launching;
    struct record *last; /* group that was launched */
};

/* A communicator that is to come of another. */
typedef struct split {
    int32_t color, key;
    nccl_comm *out;
} split;

/* What one group does, in its stream. */
typedef struct group {
    nccl_comm comm;
    int32_t id;
    cuda_stream stream;
    bool begun;
    int64_t place; /* among all groups of the process */
    reduction sum;
    int32_t count;
    piece pieces[];
} group;

#define WRONG(...) ((void)fake_cuda_wrong(CUDA_INVALID_VALUE, __VA_ARGS__), NCCL_INVALID_USAGE)

#define ENTER(context)                                                                                       \
    FAKE_LOCKED;                                                                                             \
    do {                                                                                                     \
        if (fake_cuda_enter(__func__, context) != CUDA_OK)                                                   \
            return NCCL_CUDA_ERROR;                                                                          \
    } while (0)

/* nccl_worlds.c. Files are in the folder of a world, and come and go at once. */
extern struct nccl_comm_handle fake_nccl_comms[MOST_COMMS];
extern char fake_nccl_error[NAME_BYTES];
bool fake_nccl_is_comm(nccl_comm comm);
/* Not while it is on its way to somewhere else. */
nccl_result fake_nccl_check_use(const char *name, nccl_comm comm);
void fake_nccl_write(const char *folder, const char *name, const void *data, size_t bytes, const void *more,
                     size_t more_bytes);
bool fake_nccl_is_there(const char *folder, const char *name);
/* Whether all have come; whether all have said what they want to be a part of. */
void fake_nccl_try_to_join(nccl_comm comm);
void fake_nccl_try_to_split(nccl_comm comm);
/* Its files; the folder with the last. */
void fake_nccl_remove(nccl_comm comm);

#endif
