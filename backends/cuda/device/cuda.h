/* cuda.h: what the files of the CUDA device share.
 *
 * Each queue of the program that is ours (compute, in, out; net where ranks met over NCCL) is a stream. A
 * fence between two of them is an event that is recorded on the one and waited for by the other; within a
 * stream everything is in order anyway, so fences there cost nothing. Arenas are one allocation each, that of
 * the host pinned where the system allows it.
 *
 * A failure of the driver may belong to something submitted long before; whichever call reports it, nothing
 * runs behind it (cuda_device.broken).
 *
 * Environment, for tests: SBP_CUDA_IMAGE=ptx loads PTX of the architecture where a cubin would do;
 * SBP_CUDA_VARIANT=plain|vector|mma|wgmma takes no better variant of kernels than this. */
#ifndef SBP_CUDA_CUDA_H
#define SBP_CUDA_CUDA_H

#include "backends/cuda/abi.h"
#include "backends/cuda/device/cuda_api.h"
#include "backends/cuda/library.h"
#include "backends/device.h"

/* ---- api.c ------------------------------------------------------------------------------------------ */

typedef struct cuda_api {
    cuda_calls calls;
    sbp_cuda_library library;
    int32_t version; /* of CUDA that the driver is made for: 13000 */
} cuda_api;

/* The driver, initialised. Zeroed when it fails. SBP_MACHINE: there is none, it is too old, it sees no
 * device.
 */
sbp_status cuda_api_open(cuda_api *api, sbp_diag *diag) SBP_CHECKED;
void cuda_api_close(cuda_api *api);
/* Devices, at least one. */
sbp_status cuda_api_count(const cuda_api *api, sbp_diag *diag, int32_t *out) SBP_CHECKED;
/* "out of memory" */
const char *cuda_result_text(const cuda_api *api, cuda_result result);
/* Whether the machine, or its driver, is at fault and not we. */
bool cuda_result_is_machine(cuda_result result);

/* A device as the driver describes it. */
typedef struct cuda_physical {
    int32_t handle;
    char name[96];
    int32_t capability; /* 10 * major + minor */
    int32_t processors, shared_bytes;
    int64_t memory_bytes;
} cuda_physical;

sbp_status cuda_physical_read(const cuda_api *api, int32_t index, sbp_diag *diag,
                              cuda_physical *out) SBP_CHECKED;

/* ---- kernels.c -------------------------------------------------------------------------------------- */

typedef struct cuda_kernel {
    sbp_gpu_key key;
    cuda_module module;
    cuda_function function;
    int32_t shared_bytes; /* dynamic, that it was allowed */
} cuda_kernel;

/* ---- blas.c ----------------------------------------------------------------------------------------- */

enum { CUDA_BLAS_CACHE = 1024 };

/* A matmul as cuBLASLt is asked for it: what its choice of an algorithm depends on. No padding. */
typedef struct cuda_blas_shape {
    int64_t m, n, k; /* of row-major d [m, n] */
    int64_t a_stride, b_stride, c_stride, d_stride;
    uint8_t ta, tb, in, out, has_c, has_bias, tf32;
    uint8_t alignment[4]; /* log2 of bytes, of a, b, c, d */
    uint8_t unused[5];
} cuda_blas_shape;

typedef struct cuda_blas_choice {
    cuda_blas_shape shape;
    cublas_algorithm algorithm;
    uint64_t workspace_bytes;
    float us, first_us; /* measured: a run of it, and of the library's first proposal */
    int32_t timed;      /* how many proposals were; 0: it is the first, unmeasured */
    bool used;          /* in the cache */
} cuda_blas_choice;

typedef struct cuda_blas {
    sbp_cuda_library library;
    cublas_calls calls;
    cublas_handle handle;    /* NULL: the program has no matmuls for it */
    cuda_blas_choice *cache; /* CUDA_BLAS_CACHE, by hash; filled again from the beginning when full */
    int32_t cached;
    cuda_blas_choice *choices; /* measured ones */
    int32_t choice_count, choice_capacity;
    bool tf32;     /* for matmuls of fp32 */
    bool declined; /* it was said that there is no algorithm for some matmul */
} cuda_blas;

/* ---- the device ------------------------------------------------------------------------------------- */

enum { CUDA_COMPUTE, CUDA_IN, CUDA_OUT, CUDA_NET, CUDA_STREAMS };
/* The stream of a queue; -1: that is not ours. */
static inline int32_t cuda_stream_of(int32_t queue) {
    return queue == SBP_QUEUE_NET ? CUDA_NET : queue >= 0 && queue <= SBP_QUEUE_OUT ? queue : -1;
}

typedef struct cuda_device cuda_device;
struct cuda_device {
    sbp_device base;
    cuda_api api;
    cuda_physical physical;
    cuda_context context;              /* the device's primary one */
    cuda_stream streams[CUDA_STREAMS]; /* that of net: when ranks met over NCCL */
    cuda_event events[CUDA_STREAMS];   /* of fences: a wait is for the last record before it */
    cuda_result broken;                /* what a call failed with; CUDA_OK: none did */
    /* SBP_CUDA_DEBUG=waits: each is waited for, so that the one that fails is named */
    bool waits_for_kernels;
    bool noted_descent; /* that a kernel runs as a slower variant than the plan has */
    int64_t free_bytes; /* of the device, before anything was allocated */
    const sbp_program *program;
    const void *code;
    int64_t code_bytes;
    sbp_arena *arena;    /* of the images */
    cuda_address memory; /* of the device's arena */
    char *host;          /* of the host's */
    int64_t host_mapped; /* its bytes where it was mapped and registered in pieces; 0: allocated */
    bool pinned;
    cuda_address workspace; /* SBP_CUDA_WORKSPACE_BYTES of the compute stream's commands */
    sbp_cuda_machine machine;
    cuda_kernel *kernels; /* sorted by key */
    int32_t kernel_count;
    cuda_blas blas;
    struct cuda_timeline *timeline; /* NULL: nobody asked */
    int32_t index;                  /* as it was asked for */
    struct sbp_ranks *ranks;        /* NULL: alone */
    struct cuda_net *net_state;     /* NULL: ranks did not meet over NCCL */
    bool native_sums;               /* NCCL adds up (net_native.c) */
    /* Looks after what is under way with other ranks; SBP_MACHINE when one is lost, or does not come in time:
     * then nothing of it runs any more. Called again and again by who waits. NULL: there are no others. */
    sbp_status (*watch)(cuda_device *d, sbp_diag *diag);
};

/* The device without queues host and disk (backends/composite). */
extern const sbp_device_class cuda_backend_class;

/* open.c. Driver, context, streams. Zeroed before; closed by cuda_device_close in any case. */
sbp_status cuda_device_open(cuda_device *d, const sbp_device_options *options, sbp_diag *diag) SBP_CHECKED;
void cuda_device_close(cuda_device *d);
/* Before memory and modules go: nothing runs any more, whatever has failed. With a context. */
void cuda_device_idle(cuda_device *d);
/* Until all streams are empty; then what was timed is written. */
sbp_status cuda_wait_all(cuda_device *d, sbp_diag *diag) SBP_CHECKED;

/* streams.c. Fails with what a call of the driver returned; from then on commands are refused. */
sbp_status cuda_fail(cuda_device *d, cuda_result result, const char *what, sbp_diag *diag);
/* The context is the calling thread's, and nothing has failed. */
sbp_status cuda_enter(cuda_device *d, sbp_diag *diag) SBP_CHECKED;
/* Leaves the calling function unless the call succeeded. */
#define CUDA_TRY(d, diag, call)                                                                              \
    do {                                                                                                     \
        cuda_result cuda_result_ = (d)->api.calls.call;                                                      \
        if (cuda_result_ != CUDA_OK)                                                                         \
            return cuda_fail(d, cuda_result_, #call, diag);                                                  \
    } while (0)
/* A stream of the program's queues and its event. */
sbp_status cuda_stream_create(cuda_device *d, int32_t stream, sbp_diag *diag) SBP_CHECKED;
/* Until a stream is empty; gives up when other ranks do not come (cuda_device.watch). */
sbp_status cuda_synchronize(cuda_device *d, cuda_stream stream, sbp_diag *diag) SBP_CHECKED;
/* Commands of `to` after this start when those of `from` before it are done. */
sbp_status cuda_order(cuda_device *d, int32_t from, int32_t to, sbp_diag *diag) SBP_CHECKED;

/* timeline.c: a line of JSON for each command in the file that SBP_CUDA_TIMELINE names; without it nothing is
 * done. */
sbp_status cuda_timeline_create(cuda_device *d, sbp_diag *diag) SBP_CHECKED;
void cuda_timeline_destroy(cuda_device *d);
sbp_status cuda_timeline_begin(cuda_device *d, const sbp_dispatch *dispatch, sbp_diag *diag) SBP_CHECKED;
sbp_status cuda_timeline_end(cuda_device *d, sbp_diag *diag) SBP_CHECKED;
/* Writes what has run; waits for it. */
sbp_status cuda_timeline_flush(cuda_device *d, sbp_diag *diag) SBP_CHECKED;

/* pinned.c: the host's arena, pinned where the system lets it be; else a warning. */
sbp_status cuda_pinned_create(cuda_device *d, int64_t bytes, sbp_diag *diag) SBP_CHECKED;
void cuda_pinned_destroy(cuda_device *d);

/* cuda_memory.c */
sbp_status cuda_arenas_create(cuda_device *d, sbp_diag *diag) SBP_CHECKED;
/* Device memory beside the arena; said to be what it is for when there is none. */
sbp_status cuda_memory_alloc(cuda_device *d, int64_t bytes, const char *what, cuda_address *out,
                             sbp_diag *diag) SBP_CHECKED;
void cuda_memory_destroy(cuda_device *d);
/* Whether bytes lie in an arena that is ours; SBP_INTERNAL when they do not. */
sbp_status cuda_memory_check(const cuda_device *d, sbp_space space, int64_t offset, int64_t bytes,
                             sbp_diag *diag) SBP_CHECKED;
sbp_status cuda_memory_write(sbp_device *base, sbp_space space, int64_t offset, const void *data,
                             int64_t bytes, sbp_diag *diag) SBP_CHECKED;
sbp_status cuda_memory_read(sbp_device *base, sbp_space space, int64_t offset, void *data, int64_t bytes,
                            sbp_diag *diag) SBP_CHECKED;
/* `bytes` bytes of scratch memory for a command: what the plan gives it, else the stream's workspace.
 * SBP_INPUT when neither has as much: nothing is allocated after the plan was loaded. */
sbp_status cuda_scratch(cuda_device *d, const sbp_dispatch *dispatch, int64_t bytes, cuda_address *out,
                        sbp_diag *diag) SBP_CHECKED;

/* kernels.c: the images of the plan that fit the device. */
sbp_status cuda_kernels_create(cuda_device *d, sbp_diag *diag) SBP_CHECKED;
void cuda_kernels_destroy(cuda_device *d);
/* machine: d->machine, or that without something. */
sbp_status cuda_kernels_launch(cuda_device *d, const sbp_dispatch *dispatch, const sbp_cuda_machine *machine,
                               sbp_diag *diag) SBP_CHECKED;

/* One kernel, with all that it is told, on a stream. */
sbp_status cuda_kernels_step(cuda_device *d, const sbp_cuda_step *step, sbp_gpu_args *args,
                             cuda_stream stream, sbp_diag *diag) SBP_CHECKED;

/* blas.c: matmuls by cuBLASLt, opened when the program has one for it. */
sbp_status cuda_blas_create(cuda_device *d, sbp_diag *diag) SBP_CHECKED;
void cuda_blas_destroy(cuda_device *d);
/* Whether a matmul is of types that it has. */
bool cuda_blas_takes(const cuda_device *d, const sbp_dispatch *dispatch);
/* *done: false when it has no way to compute this one, and nothing was submitted. */
sbp_status cuda_blas_matmul(cuda_device *d, const sbp_dispatch *dispatch, bool *done,
                            sbp_diag *diag) SBP_CHECKED;

/* net.c: collectives of several ranks over NCCL, as queue net. This one is sbp_device_class.rendezvous. */
sbp_status cuda_net_rendezvous(cuda_device *d, bool *own, sbp_diag *diag) SBP_CHECKED;
/* Leaves the others: when they are done too, or at once where something has failed. With a context. */
void cuda_net_leave(cuda_device *d);
/* Whether a collective is one of several ranks, and no copy. */
static inline bool cuda_net_takes(const sbp_command *command) {
    return command->queue == SBP_QUEUE_NET || sbp_is_exchange(command);
}
/* A checked collective, on the stream of its queue. */
sbp_status cuda_net_submit(cuda_device *d, const sbp_dispatch *dispatch, sbp_diag *diag) SBP_CHECKED;
/* away: of them to other hosts. */
int64_t cuda_net_sent_bytes(const cuda_device *d, int64_t *away);

/* tune.c: as sbp_device_class has them. */
sbp_status cuda_tune_open(cuda_device *d, const char *name, const void *text, int64_t bytes, int32_t *count,
                          sbp_diag *diag) SBP_CHECKED;
sbp_status cuda_tune(cuda_device *d, const sbp_dispatch *dispatch, sbp_diag *diag) SBP_CHECKED;
sbp_status cuda_tune_text(cuda_device *d, sbp_text *out, int32_t *count, sbp_diag *diag) SBP_CHECKED;

/* command.c. That a command is one for this device; SBP_INTERNAL when it is not. With a context. */
sbp_status cuda_command_check(cuda_device *d, const sbp_dispatch *dispatch, sbp_diag *diag) SBP_CHECKED;
sbp_status cuda_command_submit(sbp_device *base, const sbp_dispatch *dispatch, sbp_diag *diag) SBP_CHECKED;

#endif
