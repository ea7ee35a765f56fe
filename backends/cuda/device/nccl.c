/* nccl.c: NCCL's library and a communicator that does not block. */
#include "backends/cuda/device/nccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LONGEST_POLL_SECONDS 0.5

static const sbp_cuda_symbol symbols[] = {
#define SYMBOL(name, ...) {#name, offsetof(nccl_calls, name)},
#include "backends/cuda/device/nccl.def"
#undef SYMBOL
    {"ncclGetErrorString", offsetof(nccl_calls, ncclGetErrorString)},
    {"ncclGetLastError", offsetof(nccl_calls, ncclGetLastError)}};

/* ---- the library ------------------------------------------------------------------------------------ */

void cuda_nccl_version_text(int32_t version, char text[24]) {
    snprintf(text, 24, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

static sbp_status open_library(cuda_nccl *n, sbp_diag *diag) {
    char text[24];
    SBP_TRY(sbp_cuda_library_open(SBP_CUDA_NCCL, diag, &n->library));
    SBP_TRY(sbp_cuda_library_symbols(&n->library, symbols, SBP_COUNT(symbols), &n->calls, diag));
    NCCL_TRY(n, diag, ncclGetVersion(&n->version));
    cuda_nccl_version_text(n->version, text);
    if (n->version < NCCL_OLDEST || n->version >= 30000)
        return sbp_fail(diag, SBP_MACHINE, "%s is NCCL %s; NCCL 2.18 or newer (below 3) is needed",
                        n->library.path, text);
    sbp_cuda_library_keep(&n->library); /* it has threads */
    return SBP_OK;
}

sbp_status cuda_nccl_open(cuda_nccl *n, sbp_diag *diag) {
    *n = (cuda_nccl){0};
    sbp_status status = open_library(n, diag);
    if (status != SBP_OK)
        cuda_nccl_close(n);
    return status;
}

void cuda_nccl_close(cuda_nccl *n) {
    sbp_cuda_library_close(&n->library);
    *n = (cuda_nccl){0};
}

sbp_status cuda_nccl_fail(cuda_nccl *n, nccl_result result, const char *what, sbp_diag *diag) {
    const char *text = n->calls.ncclGetErrorString ? n->calls.ncclGetErrorString(result) : "error",
               *last = n->calls.ncclGetLastError ? n->calls.ncclGetLastError(n->comm) : NULL;
    size_t length = last ? strcspn(last, "\n") : 0;
    return sbp_fail(diag, SBP_MACHINE, "NCCL: %s (%d, in %.*s)%s%.*s", text ? text : "error", (int)result,
                    (int)strcspn(what, "("), what, length > 0 ? ": " : "", (int)length, last ? last : "");
}

/* ---- a communicator --------------------------------------------------------------------------------- */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

sbp_status cuda_nccl_ready(cuda_nccl *n, double seconds, const char *what, sbp_diag *diag) {
    double last = now(), waited = 0;
    for (long pause = 0;; pause = pause < 200000 ? pause + 1000 : pause) {
        nccl_result result = NCCL_OK;
        if (!n->comm)
            return sbp_fail(
                diag, SBP_MACHINE,
                "NCCL: %s is not possible: an earlier failure closed the connection; see the first error",
                what);
        NCCL_TRY(n, diag, ncclCommGetAsyncError(n->comm, &result));
        if (result == NCCL_OK)
            return SBP_OK;
        if (result != NCCL_IN_PROGRESS)
            return cuda_nccl_fail(n, result, what, diag);
        double passed = now() - last; /* who was stopped for a while has waited for nobody */
        last += passed;
        waited += passed < LONGEST_POLL_SECONDS ? passed : LONGEST_POLL_SECONDS;
        if (seconds > 0 && waited > seconds)
            return sbp_fail(diag, SBP_MACHINE, "NCCL: %s: others did not come for %.0f s", what, seconds);
        if (pause > 0)
            nanosleep(&(struct timespec){.tv_nsec = pause}, NULL);
    }
}

sbp_status cuda_nccl_check(cuda_nccl *n, sbp_diag *diag) {
    nccl_result result = NCCL_OK;
    if (!n->comm)
        return sbp_fail(diag, SBP_MACHINE,
                        "NCCL: an earlier failure closed the connection; see the first error");
    NCCL_TRY(n, diag, ncclCommGetAsyncError(n->comm, &result));
    return result == NCCL_OK || result == NCCL_IN_PROGRESS
               ? SBP_OK
               : cuda_nccl_fail(n, result, "what other ranks do", diag);
}

sbp_status cuda_nccl_new_id(cuda_nccl *n, nccl_id *out, sbp_diag *diag) {
    NCCL_TRY(n, diag, ncclGetUniqueId(out));
    return SBP_OK;
}

void cuda_nccl_order(cuda_nccl *n) {
    static const char name[] = "NCCL_LAUNCH_ORDER_IMPLICIT"; /* NCCL reads it once in a process */
    const char *value;
    n->ordered = n->version >= NCCL_ORDERS && setenv(name, "1", 0) == 0 && (value = getenv(name)) != NULL &&
                 strcmp(value, "1") == 0;
}

sbp_status cuda_nccl_split(cuda_nccl *of, int32_t color, int32_t key, int32_t most_blocks, double seconds,
                           sbp_diag *diag, cuda_nccl *out) {
    nccl_config config = NCCL_CONFIG;
    if (most_blocks > 0)
        config.max_ctas = most_blocks;
    *out = (cuda_nccl){.calls = of->calls, .version = of->version, .ordered = of->ordered};
    NCCL_TRY(of, diag, ncclCommSplit(of->comm, color, key, &out->comm, &config));
    SBP_TRY(cuda_nccl_ready(of, seconds, "ncclCommSplit", diag)); /* before that there is none */
    return cuda_nccl_ready(out, seconds, "ncclCommSplit", diag);
}

sbp_status cuda_nccl_join(cuda_nccl *n, const nccl_id *id, int32_t rank, int32_t count, double seconds,
                          sbp_diag *diag) {
    nccl_config config = NCCL_CONFIG;
    nccl_result result = n->calls.ncclCommInitRankConfig(&n->comm, count, *id, rank, &config);
    sbp_status status = result == NCCL_OK || result == NCCL_IN_PROGRESS
                            ? cuda_nccl_ready(n, seconds, "ncclCommInitRankConfig", diag)
                            : cuda_nccl_fail(n, result, "ncclCommInitRankConfig", diag);
    if (status != SBP_OK)
        cuda_nccl_abort(n);
    return status;
}

void cuda_nccl_leave(cuda_nccl *n, double seconds) {
    if (!n->comm)
        return;
    nccl_result result = n->calls.ncclCommFinalize(n->comm);
    if ((result == NCCL_OK || result == NCCL_IN_PROGRESS) &&
        cuda_nccl_ready(n, seconds, "ncclCommFinalize", NULL) == SBP_OK)
        (void)n->calls.ncclCommDestroy(n->comm);
    else
        (void)n->calls.ncclCommAbort(n->comm);
    n->comm = NULL;
}

void cuda_nccl_abort(cuda_nccl *n) {
    if (n->comm)
        (void)n->calls.ncclCommAbort(n->comm);
    n->comm = NULL;
}
