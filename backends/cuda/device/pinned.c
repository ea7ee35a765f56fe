/* pinned.c: the host's arena, pinned so that copies run beside everything else; else as it comes, which is
 * right but slower.
 *
 * A large one is mapped with huge pages, touched by several threads and registered piece by piece: one call
 * for a hundred GiB faults its pages in one by one, which takes most of a minute, and a machine whose memory
 * grows as it is used can end the process. Copies may cross pieces: what the driver refuses is a copy of
 * which a part alone is registered, so a piece that cannot be leaves none registered. */
#include "backends/cuda/device/cuda.h"
#include "ir/base/machine.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#define PIECE_BYTES (INT64_C(1) << 30)
enum { HUGE_PAGE = 1 << 21, PAGE = 4096, TOUCHING_THREADS = 8, SECONDS_TO_NAME = 2 };

/* SBP_CUDA_PIN=BYTES: smaller pieces, for tests. */
static int64_t piece_bytes(void) {
    const char *text = getenv("SBP_CUDA_PIN");
    int64_t bytes = text ? strtoll(text, NULL, 10) : 0;
    return bytes >= PAGE ? bytes / PAGE * PAGE : PIECE_BYTES;
}

/* What is no fault of the program's: the system does not let so much be pinned, or none. */
static bool is_refusal(cuda_result result) {
    return result == CUDA_OUT_OF_MEMORY || result == CUDA_NOT_PERMITTED || result == CUDA_OPERATING_SYSTEM ||
           result == CUDA_NOT_SUPPORTED;
}

typedef struct stripe {
    volatile char *memory;
    int64_t bytes;
} stripe;

static void *touch(void *data) {
    const stripe *s = data;
    for (int64_t at = 0; at < s->bytes; at += PAGE)
        s->memory[at] = 0;
    return NULL;
}

/* Has the system give memory to a piece; a thread that cannot be started is done without. */
static void touch_all(char *memory, int64_t bytes) {
    pthread_t threads[TOUCHING_THREADS];
    stripe stripes[TOUCHING_THREADS];
    bool started[TOUCHING_THREADS];
    const int64_t each = sbp_round_up((bytes + TOUCHING_THREADS - 1) / TOUCHING_THREADS, HUGE_PAGE);
    for (int i = 0; i < TOUCHING_THREADS; i++) {
        int64_t from = i * each < bytes ? i * each : bytes, to = from + each < bytes ? from + each : bytes;
        stripes[i] = (stripe){memory + from, to - from};
        started[i] = to > from && pthread_create(&threads[i], NULL, touch, &stripes[i]) == 0;
        if (!started[i])
            (void)touch(&stripes[i]);
    }
    for (int i = 0; i < TOUCHING_THREADS; i++)
        if (started[i])
            pthread_join(threads[i], NULL);
}

static void unregister(cuda_device *d, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += piece_bytes())
        (void)d->api.calls.cuMemHostUnregister(d->host + at);
}

/* Maps and registers; *done: bytes that were registered before `result` came. d->host is NULL where nothing
 * could be mapped. */
static cuda_result register_pieces(cuda_device *d, int64_t bytes, int64_t *done) {
    const int64_t piece = piece_bytes();
    void *memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *done = 0;
    if (memory == MAP_FAILED)
        return CUDA_OUT_OF_MEMORY;
    (void)madvise(memory, (size_t)bytes, MADV_HUGEPAGE);
    d->host = memory;
    d->host_mapped = bytes;
    for (; *done < bytes; *done += piece) {
        int64_t now = bytes - *done < piece ? bytes - *done : piece;
        touch_all(d->host + *done, now);
        cuda_result result =
            d->api.calls.cuMemHostRegister(d->host + *done, (size_t)now, CUDA_HOST_ALLOC_PORTABLE);
        if (result != CUDA_OK)
            return result;
    }
    d->pinned = true;
    return CUDA_OK;
}

static void unmap(cuda_device *d) {
    if (d->host_mapped > 0)
        munmap(d->host, (size_t)d->host_mapped);
    d->host_mapped = 0;
    d->host = NULL;
}

static sbp_status create_pieces(cuda_device *d, int64_t bytes, cuda_result *result, int64_t *done,
                                sbp_diag *diag) {
    char size[32];
    double began = sbp_seconds();
    *result = register_pieces(d, bytes, done);
    if (*result == CUDA_OK) {
        double seconds = sbp_seconds() - began;
        if (seconds >= SECONDS_TO_NAME)
            sbp_note(diag, "cuda: pinning the %s of the plan in the host's memory took %.1f s",
                     sbp_format_bytes(size, sizeof size, (double)bytes), seconds);
        return SBP_OK;
    }
    unregister(d, *done);
    if (!is_refusal(*result))
        return cuda_fail(d, *result, "cuMemHostRegister", diag);
    if (*done == 0) /* none at all, perhaps another way */
        unmap(d);
    return SBP_OK;
}

sbp_status cuda_pinned_create(cuda_device *d, int64_t bytes, sbp_diag *diag) {
    char need[32], limit[100], some[32];
    void *memory = NULL;
    int64_t done = 0;
    cuda_result result = CUDA_OK;
    if (bytes > piece_bytes())
        SBP_TRY(create_pieces(d, bytes, &result, &done, diag));
    if (!d->host) {
        result = d->api.calls.cuMemHostAlloc(&memory, (size_t)bytes, CUDA_HOST_ALLOC_PORTABLE);
        if (result != CUDA_OK && !is_refusal(result))
            return cuda_fail(d, result, "cuMemHostAlloc", diag);
        d->pinned = result == CUDA_OK;
        d->host = d->pinned ? memory : sbp_malloc((size_t)bytes);
    }
    if (!d->host)
        return sbp_fail(diag, SBP_MACHINE, "cuda: the plan keeps %s in the host's memory; %s",
                        sbp_format_bytes(need, sizeof need, (double)bytes),
                        sbp_machine_memory_text(limit, sizeof limit));
    if (!d->pinned)
        sbp_warn(
            diag,
            "cuda: the %s of the plan in the host's memory cannot be pinned (%s%s%s): copies will be slower",
            sbp_format_bytes(need, sizeof need, (double)bytes), cuda_result_text(&d->api, result),
            done > 0 ? ", after " : "", done > 0 ? sbp_format_bytes(some, sizeof some, (double)done) : "");
    return SBP_OK;
}

void cuda_pinned_destroy(cuda_device *d) {
    if (d->host_mapped > 0 && d->pinned)
        unregister(d, d->host_mapped);
    if (d->host_mapped > 0)
        unmap(d);
    else if (d->host && d->pinned)
        (void)d->api.calls.cuMemFreeHost(d->host);
    else
        free(d->host);
    d->host = NULL;
    d->pinned = false;
}
