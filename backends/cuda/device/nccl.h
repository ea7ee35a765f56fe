/* nccl.h: NCCL, opened when ranks meet, and a communicator of it. Communicators do not block: each call is
 * followed by asking until it is ready, so that a rank that does not come is given up. Errors: SBP_MACHINE.
 * With the context of the communicator's device; threads: one at a time. */
#ifndef SBP_CUDA_NCCL_H
#define SBP_CUDA_NCCL_H

#include "backends/cuda/device/nccl_api.h"
#include "backends/cuda/library.h"

/* All zeros: not open. */
typedef struct cuda_nccl {
    sbp_cuda_library library;
    nccl_calls calls;
    int32_t version; /* 22809 of 2.28.9 */
    bool ordered;    /* cuda_nccl_order() was asked, and could */
    nccl_comm comm;  /* NULL: none, or given up */
} cuda_nccl;

/* The library, of a version that has what is needed. */
sbp_status cuda_nccl_open(cuda_nccl *n, sbp_diag *diag) SBP_CHECKED;
/* Once the communicator is gone. The library stays loaded. */
void cuda_nccl_close(cuda_nccl *n);
/* "2.28.9" */
void cuda_nccl_version_text(int32_t version, char text[24]);
/* The id of a world, on the one rank that tells the others. */
sbp_status cuda_nccl_new_id(cuda_nccl *n, nccl_id *out, sbp_diag *diag) SBP_CHECKED;
/* Before the process's first communicator: what several of them do on one device, in streams of its own each,
 * begins in the order in which it was asked for (NCCL_LAUNCH_ORDER_IMPLICIT, which stays as it is where it is
 * set). Without that two kernels may wait for each other; with it they cannot, if all ranks ask in the same
 * order. NCCL before 2.26 does not have it: then `ordered` stays false. */
void cuda_nccl_order(cuda_nccl *n);
/* Joins a world of that id. seconds that others may take; 0: for ever. */
sbp_status cuda_nccl_join(cuda_nccl *n, const nccl_id *id, int32_t rank, int32_t count, double seconds,
                          sbp_diag *diag) SBP_CHECKED;
/* Makes a communicator of those ranks of `of` that give the same `color`, which is not negative; in it they
 * are in the order of `key`. Nothing of `of` may be under way. All ranks of `of` call it. Its library is that
 * of `of`, which stays open longer. most_blocks: of a kernel, at most 32; 0: as many as NCCL likes. */
sbp_status cuda_nccl_split(cuda_nccl *of, int32_t color, int32_t key, int32_t most_blocks, double seconds,
                           sbp_diag *diag, cuda_nccl *out) SBP_CHECKED;
/* Until the last call has taken effect. */
sbp_status cuda_nccl_ready(cuda_nccl *n, double seconds, const char *what, sbp_diag *diag) SBP_CHECKED;
/* Whether no other rank was lost so far. */
sbp_status cuda_nccl_check(cuda_nccl *n, sbp_diag *diag) SBP_CHECKED;
/* Together with the others, when everything is done. */
void cuda_nccl_leave(cuda_nccl *n, double seconds);
/* At once, and what is under way with it ends as it is. */
void cuda_nccl_abort(cuda_nccl *n);
/* What a call that failed returned, in words. */
sbp_status cuda_nccl_fail(cuda_nccl *n, nccl_result result, const char *what, sbp_diag *diag);

/* Leaves the calling function unless the call succeeded, or goes on by itself. */
#define NCCL_TRY(n, diag, call)                                                                              \
    do {                                                                                                     \
        nccl_result nccl_result_ = (n)->calls.call;                                                          \
        if (nccl_result_ != NCCL_OK && nccl_result_ != NCCL_IN_PROGRESS)                                     \
            return cuda_nccl_fail(n, nccl_result_, #call, diag);                                             \
    } while (0)

#endif
