/* transport.c: bytes between ranks over NCCL, where torchrun or the like started them and there is no MPI.
 * What comes from the host and goes there passes through a small buffer on the device. */
#include "backends/cuda/device/transport.h"
#include "backends/cuda/device/cuda.h"
#include "backends/ranks/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { STAGE_BYTES = 8 << 20, ALIGNMENT = 256, HIGHEST_PORT = 65535 };
#define LONGEST_POLL_SECONDS 0.5

/* The one world of this process. */
static struct {
    cuda_api api;
    cuda_physical physical;
    cuda_context context;
    cuda_stream stream;
    cuda_address stage;
    cuda_nccl nccl;
    int32_t rank, count, device;
    bool joined;
} world;

static int fail_text(sbp_diag *why, char *error, size_t error_size) {
    const char *text = why ? sbp_diag_text(why, SBP_ERROR) : "out of memory";
    size_t skip = strncmp(text, "error: ", 7) == 0 ? 7 : 0;
    snprintf(error, error_size, "%.*s", (int)strcspn(text + skip, "\n"), text + skip);
    sbp_diag_destroy(why);
    return 1;
}

static sbp_status driver_fail(cuda_result result, const char *what, sbp_diag *diag) {
    return sbp_fail(diag, SBP_MACHINE, "cuda: %s (%d, in %.*s)", cuda_result_text(&world.api, result),
                    (int)result, (int)strcspn(what, "("), what);
}

#define DRIVER_TRY(diag, call)                                                                               \
    do {                                                                                                     \
        cuda_result driver_result_ = world.api.calls.call;                                                   \
        if (driver_result_ != CUDA_OK)                                                                       \
            return driver_fail(driver_result_, #call, diag);                                                 \
    } while (0)

/* ---- joining ---------------------------------------------------------------------------------------- */

static sbp_status number_of(const char *name, int32_t least, int32_t *out, sbp_diag *diag) {
    const char *text = getenv(name);
    char *end = NULL;
    long value = text ? strtol(text, &end, 10) : -1;
    if (!text || !*text || *end || value < least || value > INT32_MAX)
        return sbp_fail(diag, SBP_USAGE, "%s is '%s'; expected an integer of at least %d", name,
                        text ? text : "", least);
    *out = (int32_t)value;
    return SBP_OK;
}

/* torchrun's own store listens at MASTER_PORT: the next one, unless somebody says which. */
static sbp_status choose_port(sbp_diag *diag) {
    char text[300];
    int32_t port;
    const char *host = getenv("MASTER_ADDR");
    if (getenv("NCCL_COMM_ID"))
        return SBP_OK;
    if (!host)
        return sbp_fail(diag, SBP_USAGE, "MASTER_ADDR is not set");
    SBP_TRY(number_of("MASTER_PORT", 1, &port, diag));
    port = port < HIGHEST_PORT ? port + 1 : port - 1;
    snprintf(text, sizeof text, strchr(host, ':') && *host != '[' ? "[%.250s]:%d" : "%.250s:%d", host,
             (int)port);
    return setenv("NCCL_COMM_ID", text, 1) == 0
               ? SBP_OK
               : sbp_fail(diag, SBP_MACHINE, "out of memory for NCCL_COMM_ID");
}

static sbp_status open_device(sbp_diag *diag) {
    int32_t local, devices;
    SBP_TRY(number_of("LOCAL_RANK", 0, &local, diag));
    SBP_TRY(cuda_api_open(&world.api, diag));
    SBP_TRY(cuda_api_count(&world.api, diag, &devices));
    world.device = local % devices;
    SBP_TRY(cuda_physical_read(&world.api, world.device, diag, &world.physical));
    DRIVER_TRY(diag, cuDevicePrimaryCtxRetain(&world.context, world.physical.handle));
    DRIVER_TRY(diag, cuCtxSetCurrent(world.context));
    DRIVER_TRY(diag, cuStreamCreate(&world.stream, CUDA_STREAM_NON_BLOCKING));
    DRIVER_TRY(diag, cuMemAlloc(&world.stage, STAGE_BYTES));
    return SBP_OK;
}

static sbp_status join_world(sbp_diag *diag) {
    nccl_id id;
    SBP_TRY(number_of("RANK", 0, &world.rank, diag));
    SBP_TRY(number_of("WORLD_SIZE", 1, &world.count, diag));
    if (world.rank >= world.count || world.count > STAGE_BYTES / 2 / ALIGNMENT)
        return sbp_fail(diag, SBP_USAGE, "RANK is %d, and WORLD_SIZE %d", world.rank, world.count);
    SBP_TRY(cuda_nccl_open(&world.nccl, diag)); /* what is missing most likely, and says what to install */
    cuda_nccl_order(&world.nccl);               /* the device may want communicators of its own */
    SBP_TRY(open_device(diag));
    SBP_TRY(choose_port(diag));
    SBP_TRY(cuda_nccl_new_id(&world.nccl, &id, diag));
    return cuda_nccl_join(&world.nccl, &id, world.rank, world.count, 0, diag);
}

static int exchange(int channel, const sbp_transport_piece *send, int32_t send_count,
                    const sbp_transport_piece *receive, int32_t receive_count, void *memory, double seconds,
                    int32_t *late, char *error, size_t error_size);

/* Ranks of every host, where all have as many as this one and their numbers follow each other; hosts: a name
 * of each rank. */
static int32_t node_of(const char *hosts, size_t bytes, int32_t count) {
    for (int32_t p = 0; p < world.count; p++)
        for (int32_t k = 0; k < p; k++)
            if ((memcmp(hosts + (size_t)p * bytes, hosts + (size_t)k * bytes, bytes) == 0) !=
                (p / count == k / count))
                return 1;
    return world.count % count == 0 ? count : 1;
}

/* Ranks of this host, by its name and when it was started: each tells all. */
static int count_local(sbp_transport_world *out, char *error, size_t error_size) {
    typedef char host[128];
    size_t hosts_bytes = (size_t)world.count * sizeof(host);
    host *hosts = sbp_malloc(hosts_bytes);
    sbp_transport_piece *pieces = sbp_malloc(2 * (size_t)world.count * sizeof *pieces);
    int32_t sends = 0, late, failed = 1;
    if (hosts && pieces) {
        sbp_transport_piece *receives = pieces + world.count;
        FILE *boot = fopen("/proc/sys/kernel/random/boot_id", "re");
        char *own = memset(hosts, 0, hosts_bytes);
        own += (size_t)world.rank * sizeof(host);
        (void)gethostname(own, 64);
        if (boot && !fgets(own + 64, 60, boot))
            own[64] = 0;
        if (boot)
            fclose(boot);
        for (int32_t p = 0; p < world.count; p++)
            if (p != world.rank) {
                pieces[sends] = (sbp_transport_piece){p, sizeof(host), own};
                receives[sends++] = (sbp_transport_piece){p, sizeof(host), hosts[p]};
            }
        failed = exchange(0, pieces, sends, receives, sends, NULL, 0, &late, error, error_size);
        for (int32_t p = 0; p < world.count && !failed; p++)
            out->local_count += memcmp(hosts[p], own, sizeof(host)) == 0;
        out->node = failed ? 1 : node_of(hosts[0], sizeof(host), out->local_count);
    } else {
        snprintf(error, error_size, "out of memory");
    }
    free(hosts);
    free(pieces);
    return failed;
}

static int join(sbp_transport_world *out, char *error, size_t error_size) {
    char version[24];
    sbp_diag *why = sbp_diag_create();
    if (!why || join_world(why) != SBP_OK)
        return fail_text(why, error, error_size);
    int32_t local = 0;
    world.joined = true;
    (void)number_of("LOCAL_RANK", 0, &local, NULL);
    *out = (sbp_transport_world){.rank = world.rank, .count = world.count, .local_rank = local};
    cuda_nccl_version_text(world.nccl.version, version);
    snprintf(out->name, sizeof out->name, "NCCL %s at %.90s", version, getenv("NCCL_COMM_ID"));
    sbp_diag_destroy(why);
    return count_local(out, error, error_size);
}

cuda_nccl *cuda_transport_nccl(int32_t device) {
    return world.joined && world.device == device ? &world.nccl : NULL;
}

int32_t cuda_transport_device(void) {
    return world.joined ? world.device : -1;
}

/* ---- moving ----------------------------------------------------------------------------------------- */

/* Until the stream is empty, or nothing came for so long. */
static sbp_status wait_stream(double seconds, sbp_diag *diag) {
    struct timespec t;
    double last = -1, waited = 0;
    for (long pause = 0;; pause = pause < 200000 ? pause + 1000 : pause) {
        cuda_result result = world.api.calls.cuStreamQuery(world.stream);
        if (result == CUDA_OK)
            return SBP_OK;
        if (result != CUDA_NOT_READY)
            return driver_fail(result, "cuStreamQuery", diag);
        SBP_TRY(cuda_nccl_check(&world.nccl, diag));
        clock_gettime(CLOCK_MONOTONIC, &t);
        double time = (double)t.tv_sec + (double)t.tv_nsec * 1e-9, passed = last < 0 ? 0 : time - last;
        last = time;
        waited += passed < LONGEST_POLL_SECONDS ? passed : LONGEST_POLL_SECONDS;
        if (seconds > 0 && waited > seconds)
            return sbp_fail(diag, SBP_MACHINE, "no message arrived for %.0f s", seconds);
        if (pause > 0)
            nanosleep(&(struct timespec){.tv_nsec = pause}, NULL);
    }
}

/* The part of a piece that round `round` moves; every rank cuts alike. */
static int64_t part_of(const sbp_transport_piece *p, int64_t round, int64_t slot, char **data) {
    int64_t at = round * slot, left = p->bytes - at;
    *data = (char *)p->data + at;
    return left < 0 ? 0 : left < slot ? left : slot;
}

typedef struct pieces {
    const sbp_transport_piece *send, *receive;
    int32_t sends, receives;
    int64_t slot; /* bytes of each in the buffer */
} pieces;

static cuda_address slot_at(const pieces *x, int32_t i) {
    return world.stage + (uint64_t)(i * x->slot);
}

static sbp_status move_round(const pieces *x, int64_t round, double seconds, sbp_diag *diag) {
    char *data;
    for (int32_t i = 0; i < x->sends; i++) {
        int64_t bytes = part_of(&x->send[i], round, x->slot, &data);
        if (bytes > 0)
            DRIVER_TRY(diag, cuMemcpyHtoDAsync(slot_at(x, i), data, (size_t)bytes, world.stream));
    }
    NCCL_TRY(&world.nccl, diag, ncclGroupStart());
    for (int32_t i = 0; i < x->sends; i++) {
        int64_t bytes = part_of(&x->send[i], round, x->slot, &data);
        if (bytes > 0)
            NCCL_TRY(&world.nccl, diag,
                     ncclSend(slot_at(x, i), (size_t)bytes, NCCL_BYTES, x->send[i].rank, world.nccl.comm,
                              world.stream));
    }
    for (int32_t i = 0; i < x->receives; i++) {
        int64_t bytes = part_of(&x->receive[i], round, x->slot, &data);
        if (bytes > 0)
            NCCL_TRY(&world.nccl, diag,
                     ncclRecv(slot_at(x, x->sends + i), (size_t)bytes, NCCL_BYTES, x->receive[i].rank,
                              world.nccl.comm, world.stream));
    }
    NCCL_TRY(&world.nccl, diag, ncclGroupEnd());
    SBP_TRY(cuda_nccl_ready(&world.nccl, seconds, "an exchange", diag));
    SBP_TRY(wait_stream(seconds, diag));
    for (int32_t i = 0; i < x->receives; i++) {
        int64_t bytes = part_of(&x->receive[i], round, x->slot, &data);
        if (bytes > 0)
            DRIVER_TRY(diag, cuMemcpyDtoHAsync(data, slot_at(x, x->sends + i), (size_t)bytes, world.stream));
    }
    DRIVER_TRY(diag, cuStreamSynchronize(world.stream));
    return SBP_OK;
}

static sbp_status move(const pieces *x, double seconds, sbp_diag *diag) {
    int64_t most = 0;
    for (int32_t i = 0; i < x->sends; i++)
        most = x->send[i].bytes > most ? x->send[i].bytes : most;
    for (int32_t i = 0; i < x->receives; i++)
        most = x->receive[i].bytes > most ? x->receive[i].bytes : most;
    if (most == 0)
        return SBP_OK;
    if (!world.nccl.comm)
        return sbp_fail(diag, SBP_MACHINE,
                        "NCCL: an earlier failure closed the connection; see the first error");
    DRIVER_TRY(diag, cuCtxSetCurrent(world.context));
    for (int64_t round = 0; round * x->slot < most; round++)
        SBP_TRY(move_round(x, round, seconds, diag));
    return SBP_OK;
}

/* The one other rank of all pieces; -1: there are several. */
static int32_t only_other(const pieces *x) {
    int32_t rank = x->sends > 0 ? x->send[0].rank : x->receives > 0 ? x->receive[0].rank : -1;
    for (int32_t i = 0; i < x->sends; i++)
        rank = x->send[i].rank == rank ? rank : -1;
    for (int32_t i = 0; i < x->receives; i++)
        rank = x->receive[i].rank == rank ? rank : -1;
    return rank;
}

static int exchange(int channel, const sbp_transport_piece *send, int32_t send_count,
                    const sbp_transport_piece *receive, int32_t receive_count, void *memory, double seconds,
                    int32_t *late, char *error, size_t error_size) {
    const pieces x = {send, receive, send_count, receive_count,
                      STAGE_BYTES / (2 * (int64_t)world.count) / ALIGNMENT * ALIGNMENT};
    sbp_diag *why = sbp_diag_create();
    (void)channel; /* all ranks call in the same order, on one thread */
    (void)memory;
    *late = -1;
    if (why && move(&x, seconds, why) == SBP_OK) {
        sbp_diag_destroy(why);
        return 0;
    }
    if (world.nccl.comm) {
        *late = only_other(&x);
        cuda_nccl_abort(&world.nccl);
    }
    return fail_text(why, error, error_size);
}

/* ---- leaving ---------------------------------------------------------------------------------------- */

static void leave(void) {
    const cuda_calls *calls = &world.api.calls;
    if (!world.joined)
        return;
    (void)calls->cuCtxSetCurrent(world.context);
    cuda_nccl_leave(&world.nccl, 0);
    (void)calls->cuMemFree(world.stage);
    (void)calls->cuStreamDestroy(world.stream);
    (void)calls->cuCtxSetCurrent(NULL);
    (void)calls->cuDevicePrimaryCtxRelease(world.physical.handle);
    cuda_nccl_close(&world.nccl);
    cuda_api_close(&world.api);
    world.joined = false;
}

/* The others see that this rank is lost; who started them sees it end, and ends them. */
static void end_all(int status) {
    (void)status;
    cuda_nccl_abort(&world.nccl);
}

const sbp_transport cuda_transport = {SBP_TRANSPORT_VERSION, join, 1, exchange, leave, end_all};
