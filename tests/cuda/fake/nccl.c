/* nccl.c: a libnccl.so.2 between processes of one host. A message is a file in a folder of the world, under
 * /dev/shm: FROM.TO.NUMBER, that whom it is for takes away. A group of calls is work of its stream like any
 * other: nothing is read or written before the stream comes to it, a send ends when it was taken, and where
 * it goes to holds NaN until it has come. Groups of one communicator run in the order in which they were
 * asked for, also in two streams, as NCCL has it: who asks for them in an order that the streams cannot have,
 * or that is not that of other ranks, waits for ever. Groups of several communicators that are under way in
 * several streams begin in the order in which they were asked for (NCCL_LAUNCH_ORDER_IMPLICIT=1; without it
 * that is a mistake), beside each other, or one behind the other where the driver is older than CUDA 12.3.
 *
 * Sums are of each share in the order of a ring that ends at its rank, turned by `ring` places: the words
 * "ring=1" stand for another topology.
 *
 * It is strict where NCCL fails now and then, or only between some machines: communicators that do not block
 * must be asked until they are ready, before anything else is done with them or their stream; a group is on
 * one stream; sizes and kinds of calls must agree between ranks; what is received must not overlap. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/cuda/fake/nccl.h"

enum { MOST_PIECES = 4096 };

static int32_t depth;
static piece collected[MOST_PIECES]; /* of the group that is open */
static int32_t collected_count;
static nccl_comm collected_comm;
static cuda_stream collected_stream;
static reduction collected_sum;
/* Groups of all communicators: launched; those before this place have begun, or ended where the driver has
 * one behind the other. */
static int64_t launched, passed;
static struct {
    nccl_comm comm;
    cuda_stream stream;
} latest; /* of the last that was launched */

/* NCCL reads it once. */
static bool is_ordered(void) {
    static int known;
    const char *value = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    if (!known)
        known = value && strcmp(value, "1") == 0 && fake_cuda_number("nccl", 22809) >= NCCL_ORDERS ? 1 : 2;
    return known == 1;
}

static bool is_serial(void) {
    return fake_cuda_number("version", 13000) < 12030;
}
/* ---- what a group does ------------------------------------------------------------------------------ */

static void message_name(char text[64], int32_t from, int32_t to, int64_t number) {
    snprintf(text, 64, "%d.%d.%lld", from, to, (long long)number);
}

/* Sends, and looks whether it was taken. */
static bool send_piece(nccl_comm comm, piece *p) {
    char name[64];
    message_name(name, comm->rank, p->rank, p->number);
    if (!p->begun) {
        const header h = {p->call, (int64_t)p->bytes};
        const void *data = fake_cuda_memory(p->at, p->bytes, "what NCCL sends");
        if (!data)
            return false;
        fake_nccl_write(comm->folder, name, &h, sizeof h, data, p->bytes);
        p->begun = true;
    }
    p->done = !fake_nccl_is_there(comm->folder, name);
    return true;
}

static bool take_piece(nccl_comm comm, piece *p) {
    char name[64], path[2 * NAME_BYTES];
    header h;
    message_name(name, p->rank, comm->rank, p->number);
    snprintf(path, sizeof path, "%s/%s", comm->folder, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return true;
    void *data = p->arrived ? p->arrived : fake_cuda_memory(p->at, p->bytes, "where NCCL receives");
    bool good = data && read(fd, &h, sizeof h) == (ssize_t)sizeof h;
    if (good && (h.call != (int64_t)p->call || h.bytes != (int64_t)p->bytes)) {
        (void)WRONG("nccl: rank %d sends %lld bytes by call %lld, rank %d receives %zu by call %d", p->rank,
                    (long long)h.bytes, (long long)h.call, comm->rank, p->bytes, (int)p->call);
        good = false;
    }
    good = good && read(fd, data, p->bytes) == (ssize_t)p->bytes;
    close(fd);
    if (good) {
        if (!p->arrived)
            fake_cuda_written(p->at, p->bytes);
        unlink(path);
        p->done = true;
    }
    return good;
}

static size_t result_bytes(const reduction *sum) {
    return sum->count * (sum->wide ? sizeof(double) : sizeof(float));
}

/* Number i of a rank, of what arrived or is its own. */
static const void *number_of(const group *g, int32_t rank, const void *own, size_t unit, size_t i) {
    for (int32_t p = 0; p < g->count; p++)
        if (g->pieces[p].arrived && g->pieces[p].rank == rank)
            return (const char *)g->pieces[p].arrived + i * unit;
    return (const char *)own + i * unit;
}

/* The sums of what all have, when it is there. */
static bool add_up(const group *g) {
    const reduction *sum = &g->sum;
    size_t unit = sum->wide ? sizeof(double) : sizeof(float), ranks = (size_t)g->comm->count;
    size_t share = (sum->count + ranks - 1) / ranks, bytes = result_bytes(sum);
    size_t first = sum->scatters ? (size_t)g->comm->rank * sum->count : 0;
    const char *own = fake_cuda_memory(sum->from, sum->scatters ? bytes * ranks : bytes, "what NCCL adds up");
    char *to = fake_cuda_memory(sum->to, bytes, "where NCCL adds up"), *result = malloc(bytes);
    for (size_t i = 0; own && to && result && i < sum->count; i++) {
        size_t last = sum->scatters ? (size_t)g->comm->rank : i / share;
        float narrow = 0;
        double wide = 0;
        for (size_t k = 0; k < ranks; k++) {
            int32_t rank = (int32_t)((last + 1 + k + (size_t)fake_cuda_number("ring", 0)) % ranks);
            const void *number = number_of(g, rank, own + first * unit, unit, i);
            float x = 0;
            double y = 0;
            memcpy(sum->wide ? (void *)&y : (void *)&x, number, unit);
            narrow = k ? narrow + x : x;
            wide = k ? wide + y : y;
        }
        memcpy(result + i * unit, sum->wide ? (void *)&wide : (void *)&narrow, unit);
    }
    bool good = own && to && result;
    if (good) {
        memcpy(to, result, bytes);
        fake_cuda_written(sum->to, bytes);
    }
    free(result);
    return good;
}

static void free_group(group *g) {
    for (int32_t i = 0; i < g->count; i++)
        free(g->pieces[i].arrived);
    free(g);
}

/* What is received holds NaN until it is there; a sum in place is not known to be one yet. */
static bool begin_group(group *g) {
    bool good = true;
    for (int32_t i = 0; i < g->count && good; i++) {
        const piece *p = &g->pieces[i];
        void *to = p->sends || p->arrived ? NULL : fake_cuda_memory(p->at, p->bytes, "where NCCL receives");
        good = p->sends || p->arrived || to;
        if (to)
            memset(to, 0xff, p->bytes);
    }
    bool inside =
        g->sum.to >= g->sum.from && g->sum.to < g->sum.from + result_bytes(&g->sum) * (size_t)g->comm->count;
    if (good && g->sum.set && !inside) {
        void *to = fake_cuda_memory(g->sum.to, result_bytes(&g->sum), "where NCCL adds up");
        good = to != NULL;
        if (to)
            memset(to, 0xff, result_bytes(&g->sum));
    }
    return good;
}

static cuda_result run_group(void *data) {
    group *g = *(group **)data;
    nccl_comm comm = g->comm;
    bool done = true, good = true;
    if (comm->id != g->id) { /* given up: what should have come is anything */
        for (int32_t i = 0; i < g->count; i++)
            if (!g->pieces[i].sends && !g->pieces[i].arrived)
                fake_cuda_written(g->pieces[i].at, g->pieces[i].bytes);
        if (g->sum.set)
            fake_cuda_written(g->sum.to, result_bytes(&g->sum));
        passed = passed > g->place ? passed : g->place + 1;
        free_group(g);
        return CUDA_OK;
    }
    if (comm->state != NCCL_OK && comm->state != NCCL_IN_PROGRESS) /* nobody comes any more */
        return CUDA_NOT_READY;
    if (is_ordered() && !g->begun && passed < g->place) {
        fake_cuda_wait_for_others();
        return CUDA_NOT_READY;
    }
    if (!g->begun)
        good = begin_group(g);
    g->begun = true;
    if (!is_serial() && passed <= g->place)
        passed = g->place + 1;
    for (int32_t i = 0; i < g->count && good; i++) {
        piece *p = &g->pieces[i];
        if (!p->done)
            good = p->sends ? send_piece(comm, p) : take_piece(comm, p);
        done &= p->done;
    }
    if (good && !done)
        return CUDA_NOT_READY;
    if (good && g->sum.set)
        good = add_up(g);
    comm->pending--;
    if (passed <= g->place)
        passed = g->place + 1;
    free_group(g);
    return good ? CUDA_OK : CUDA_LAUNCH_FAILED;
}

static void launch(nccl_comm comm) {
    group *g = comm->launching;
    comm->launching = NULL;
    g->place = launched++;
    if (fake_cuda_enqueue_behind(&comm->last, g->stream, run_group, &g, sizeof g) != CUDA_OK)
        comm->state = NCCL_CUDA_ERROR;
}

/* ---- calls ------------------------------------------------------------------------------------------ */

/* Communicators that do not block do something when they are asked. */
FAKE_EXPORTED nccl_result ncclCommGetAsyncError(nccl_comm comm, nccl_result *result);
nccl_result ncclCommGetAsyncError(nccl_comm comm, nccl_result *result) {
    FAKE_LOCKED;
    int64_t lost = fake_cuda_number("nccl_lost", 0);
    if (!fake_nccl_is_comm(comm))
        return WRONG("ncclCommGetAsyncError: no such communicator");
    if (comm->state == NCCL_IN_PROGRESS && comm->patience > 0)
        comm->patience--;
    else if (comm->state == NCCL_IN_PROGRESS && !comm->joined)
        fake_nccl_try_to_join(comm);
    else if (comm->state == NCCL_IN_PROGRESS && comm->splitting)
        fake_nccl_try_to_split(comm);
    else if (comm->state == NCCL_IN_PROGRESS && comm->finalizing)
        comm->state = comm->pending == 0 ? NCCL_OK : NCCL_IN_PROGRESS;
    else if (comm->state == NCCL_IN_PROGRESS) {
        comm->state = NCCL_OK;
        if (comm->launching)
            launch(comm);
    }
    if (lost > 0 && comm->groups >= lost && comm->state <= NCCL_OK) {
        snprintf(fake_nccl_error, sizeof fake_nccl_error, "socket closed by remote peer");
        comm->state = NCCL_REMOTE_ERROR;
    }
    comm->finalized |= comm->finalizing && comm->state == NCCL_OK;
    *result = comm->state;
    return NCCL_OK;
}

static bool overlap(const piece *a, const piece *b) {
    return a->at < b->at + b->bytes && b->at < a->at + a->bytes;
}

static nccl_result end_group(void) {
    nccl_comm comm = collected_comm;
    bool other = latest.comm && latest.comm != comm && latest.stream != collected_stream;
    for (int32_t i = 0; i < MOST_COMMS && other && !is_ordered(); i++)
        if (fake_nccl_comms[i].id > 0 && &fake_nccl_comms[i] != comm && fake_nccl_comms[i].pending > 0)
            return WRONG("nccl: two communicators in two streams, without NCCL_LAUNCH_ORDER_IMPLICIT");
    latest.comm = comm;
    latest.stream = collected_stream;
    for (int32_t i = 0; i < collected_count; i++)
        for (int32_t k = 0; k < i; k++)
            if (!collected[i].arrived && !collected[k].arrived &&
                (!collected[i].sends || !collected[k].sends) && overlap(&collected[i], &collected[k]))
                return WRONG("nccl: what is received overlaps with what is sent or received in the group");
    group *g = calloc(1, sizeof *g + (size_t)collected_count * sizeof *g->pieces);
    if (!g)
        return NCCL_SYSTEM_ERROR;
    memcpy(g->pieces, collected, (size_t)collected_count * sizeof *collected);
    g->count = collected_count;
    g->comm = comm;
    g->id = comm->id;
    g->stream = collected_stream;
    g->sum = collected_sum;
    collected_sum = (reduction){0};
    for (int32_t i = 0; i < g->count; i++) {
        piece *p = &g->pieces[i];
        p->number = p->sends ? comm->sent[p->rank]++ : comm->received[p->rank]++;
        fake_cuda_log("nccl c%d %s %s, %zu, rank %d, s%d", comm->id, p->sends ? "sends" : "receives",
                      fake_cuda_place(p->at), p->bytes, p->rank, fake_cuda_stream(g->stream));
    }
    comm->groups++;
    comm->pending++;
    comm->launching = g;
    comm->state = NCCL_IN_PROGRESS;
    comm->patience = (int32_t)(comm->groups % 3);
    collected_count = 0;
    collected_comm = NULL;
    return NCCL_IN_PROGRESS;
}

FAKE_EXPORTED nccl_result ncclGroupStart(void);
nccl_result ncclGroupStart(void) {
    ENTER(true);
    depth++;
    return NCCL_OK;
}

FAKE_EXPORTED nccl_result ncclGroupEnd(void);
nccl_result ncclGroupEnd(void) {
    ENTER(true);
    if (depth == 0)
        return WRONG("ncclGroupEnd without ncclGroupStart");
    return --depth == 0 && collected_comm ? end_group() : NCCL_OK;
}

static nccl_result add(const char *name, const piece *p, nccl_comm comm, cuda_stream stream) {
    nccl_result result = fake_nccl_check_use(name, comm);
    if (result != NCCL_OK)
        return result;
    if (p->rank < 0 || p->rank >= comm->count || p->rank == comm->rank || p->bytes == 0 ||
        fake_cuda_stream(stream) == 0 || !fake_cuda_memory(p->at, p->bytes, name))
        return WRONG("%s: rank %d of %d, %zu bytes, or no stream", name, p->rank, comm->count, p->bytes);
    if (collected_comm && (collected_comm != comm || collected_stream != stream))
        return WRONG("%s: a group of two communicators or streams", name);
    if (collected_count == MOST_PIECES)
        return NCCL_SYSTEM_ERROR;
    collected[collected_count++] = *p;
    collected_comm = comm;
    collected_stream = stream;
    return NCCL_OK;
}

static nccl_result check_type(const char *name, int32_t type) {
    return type == NCCL_BYTES ? NCCL_OK : WRONG("%s: type %d", name, type);
}

/* Calls outside of a group are one. */
#define GROUPED(first)                                                                                       \
    nccl_result result_ = (first);                                                                           \
    if (result_ == NCCL_OK && depth == 0 && collected_comm)                                                  \
        result_ = end_group();                                                                               \
    return result_

FAKE_EXPORTED nccl_result ncclSend(cuda_address from, size_t count, int32_t type, int32_t rank,
                                   nccl_comm comm, cuda_stream stream);
nccl_result ncclSend(cuda_address from, size_t count, int32_t type, int32_t rank, nccl_comm comm,
                     cuda_stream stream) {
    ENTER(true);
    if (check_type("ncclSend", type) != NCCL_OK)
        return NCCL_INVALID_ARGUMENT;
    const piece p = {.sends = true, .call = POINT_TO_POINT, .at = from, .bytes = count, .rank = rank};
    GROUPED(add("ncclSend", &p, comm, stream));
}

FAKE_EXPORTED nccl_result ncclRecv(cuda_address to, size_t count, int32_t type, int32_t rank, nccl_comm comm,
                                   cuda_stream stream);
nccl_result ncclRecv(cuda_address to, size_t count, int32_t type, int32_t rank, nccl_comm comm,
                     cuda_stream stream) {
    ENTER(true);
    if (check_type("ncclRecv", type) != NCCL_OK)
        return NCCL_INVALID_ARGUMENT;
    const piece p = {.call = POINT_TO_POINT, .at = to, .bytes = count, .rank = rank};
    GROUPED(add("ncclRecv", &p, comm, stream));
}

/* In place only, which is all that the device uses. */
static nccl_result gather(cuda_address from, cuda_address to, size_t count, nccl_comm comm,
                          cuda_stream stream) {
    nccl_result result = fake_nccl_check_use("ncclAllGather", comm);
    if (result == NCCL_OK && from != to + (uint64_t)comm->rank * count)
        return WRONG("ncclAllGather: not in place");
    for (int32_t r = 0; result == NCCL_OK && r < comm->count; r++) {
        const piece send = {.sends = true, .call = ALL_GATHER, .at = from, .bytes = count, .rank = r},
                    take = {.call = ALL_GATHER, .at = to + (uint64_t)r * count, .bytes = count, .rank = r};
        if (r != comm->rank)
            result = add("ncclAllGather", &send, comm, stream);
        if (r != comm->rank && result == NCCL_OK)
            result = add("ncclAllGather", &take, comm, stream);
    }
    return result;
}

FAKE_EXPORTED nccl_result ncclAllGather(cuda_address from, cuda_address to, size_t count, int32_t type,
                                        nccl_comm comm, cuda_stream stream);
nccl_result ncclAllGather(cuda_address from, cuda_address to, size_t count, int32_t type, nccl_comm comm,
                          cuda_stream stream) {
    ENTER(true);
    if (check_type("ncclAllGather", type) != NCCL_OK)
        return NCCL_INVALID_ARGUMENT;
    GROUPED(gather(from, to, count, comm, stream));
}

static nccl_result broadcast(cuda_address from, cuda_address to, size_t count, int32_t root, nccl_comm comm,
                             cuda_stream stream) {
    nccl_result result = fake_nccl_check_use("ncclBroadcast", comm);
    if (result == NCCL_OK && (from != to || root < 0 || root >= comm->count))
        return WRONG("ncclBroadcast: not in place, or root %d", root);
    for (int32_t r = 0; result == NCCL_OK && r < comm->count; r++) {
        const piece p = {.sends = comm->rank == root,
                         .call = BROADCAST,
                         .at = to,
                         .bytes = count,
                         .rank = comm->rank == root ? r : root};
        if (r != comm->rank && (comm->rank == root || r == root))
            result = add("ncclBroadcast", &p, comm, stream);
    }
    return result;
}

FAKE_EXPORTED nccl_result ncclBroadcast(cuda_address from, cuda_address to, size_t count, int32_t type,
                                        int32_t root, nccl_comm comm, cuda_stream stream);
nccl_result ncclBroadcast(cuda_address from, cuda_address to, size_t count, int32_t type, int32_t root,
                          nccl_comm comm, cuda_stream stream) {
    ENTER(true);
    if (check_type("ncclBroadcast", type) != NCCL_OK)
        return NCCL_INVALID_ARGUMENT;
    GROUPED(broadcast(from, to, count, root, comm, stream));
}

/* ---- sums ------------------------------------------------------------------------------------------- */

/* Each sends to each, and all is added up when it is there. */
static nccl_result reduce(const char *name, bool scatters, const reduction *sum, nccl_comm comm,
                          cuda_stream stream) {
    size_t bytes = result_bytes(sum);
    call of = scatters ? (sum->wide ? REDUCE_SCATTER_F64 : REDUCE_SCATTER)
                       : (sum->wide ? ALL_REDUCE_F64 : ALL_REDUCE);
    nccl_result result = fake_nccl_check_use(name, comm);
    if (result != NCCL_OK)
        return result;
    size_t ranks = (size_t)comm->count, all = scatters ? bytes * ranks : bytes;
    cuda_address own = scatters ? sum->from + (uint64_t)comm->rank * bytes : sum->from;
    bool apart = sum->to + bytes <= sum->from || sum->from + all <= sum->to;
    if (depth > 0 || (sum->to != own && !apart) || comm->count == 1 ||
        !fake_cuda_memory(sum->from, all, name) || !fake_cuda_memory(sum->to, bytes, name))
        return WRONG("%s: in a group, alone, or its result overlaps with what others have there", name);
    for (int32_t r = 0; r < comm->count && result == NCCL_OK; r++) {
        const piece send = {.sends = true,
                            .call = of,
                            .at = scatters ? sum->from + (uint64_t)r * bytes : sum->from,
                            .bytes = bytes,
                            .rank = r},
                    take = {.call = of, .at = sum->from, .bytes = bytes, .rank = r, .arrived = malloc(bytes)};
        if (r == comm->rank || !take.arrived) {
            free(take.arrived);
            continue;
        }
        result = add(name, &send, comm, stream);
        if (result == NCCL_OK)
            result = add(name, &take, comm, stream);
    }
    collected_sum = *sum;
    return result;
}

static nccl_result check_sum(const char *name, size_t count, int32_t type, int32_t operation) {
    return count > 0 && (type == NCCL_F32 || type == NCCL_F64) && operation == NCCL_SUM
               ? NCCL_OK
               : WRONG("%s: %zu of type %d, operation %d", name, count, type, operation);
}

FAKE_EXPORTED nccl_result ncclAllReduce(cuda_address from, cuda_address to, size_t count, int32_t type,
                                        int32_t operation, nccl_comm comm, cuda_stream stream);
nccl_result ncclAllReduce(cuda_address from, cuda_address to, size_t count, int32_t type, int32_t operation,
                          nccl_comm comm, cuda_stream stream) {
    ENTER(true);
    const reduction sum = {true, type == NCCL_F64, false, from, to, count};
    if (check_sum("ncclAllReduce", count, type, operation) != NCCL_OK)
        return NCCL_INVALID_ARGUMENT;
    GROUPED(reduce("ncclAllReduce", false, &sum, comm, stream));
}

FAKE_EXPORTED nccl_result ncclReduceScatter(cuda_address from, cuda_address to, size_t count, int32_t type,
                                            int32_t operation, nccl_comm comm, cuda_stream stream);
nccl_result ncclReduceScatter(cuda_address from, cuda_address to, size_t count, int32_t type,
                              int32_t operation, nccl_comm comm, cuda_stream stream) {
    ENTER(true);
    const reduction sum = {true, type == NCCL_F64, true, from, to, count};
    if (check_sum("ncclReduceScatter", count, type, operation) != NCCL_OK)
        return NCCL_INVALID_ARGUMENT;
    GROUPED(reduce("ncclReduceScatter", true, &sum, comm, stream));
}

/* ---- the end ---------------------------------------------------------------------------------------- */

FAKE_EXPORTED nccl_result ncclCommFinalize(nccl_comm comm);
nccl_result ncclCommFinalize(nccl_comm comm) {
    ENTER(true);
    nccl_result result = fake_nccl_check_use("ncclCommFinalize", comm);
    if (result != NCCL_OK)
        return result;
    comm->finalizing = true;
    comm->state = NCCL_IN_PROGRESS;
    comm->patience = 1;
    return NCCL_IN_PROGRESS;
}

static void forget(nccl_comm comm) {
    fake_nccl_remove(comm);
    free(comm->splitting);
    free(comm->sent);
    free(comm->received);
    free(comm->launching);
    fake_cuda_forget(&comm->last);
    *comm = (struct nccl_comm_handle){0};
    fake_cuda_count(-1);
}

FAKE_EXPORTED nccl_result ncclCommDestroy(nccl_comm comm);
nccl_result ncclCommDestroy(nccl_comm comm) {
    FAKE_LOCKED;
    if (!fake_nccl_is_comm(comm) || !comm->finalized)
        return WRONG("ncclCommDestroy: no such communicator, or not finalized");
    fake_cuda_log("ncclCommDestroy c%d", comm->id);
    forget(comm);
    return NCCL_OK;
}

/* What runs ends, as it is. */
FAKE_EXPORTED nccl_result ncclCommAbort(nccl_comm comm);
nccl_result ncclCommAbort(nccl_comm comm) {
    FAKE_LOCKED;
    if (!fake_nccl_is_comm(comm))
        return WRONG("ncclCommAbort: no such communicator");
    fake_cuda_log("ncclCommAbort c%d", comm->id);
    forget(comm);
    return NCCL_OK;
}

FAKE_EXPORTED const char *ncclGetErrorString(nccl_result result);
const char *ncclGetErrorString(nccl_result result) {
    switch (result) {
    case NCCL_OK:
        return "no error";
    case NCCL_INVALID_USAGE:
        return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case NCCL_REMOTE_ERROR:
        return "remote process exited or there was a network error";
    default:
        return "unhandled error";
    }
}

FAKE_EXPORTED const char *ncclGetLastError(nccl_comm comm);
const char *ncclGetLastError(nccl_comm comm) {
    (void)comm;
    return fake_nccl_error;
}
