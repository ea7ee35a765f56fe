/* nccl.c: a libnccl.so.2 between processes of one host. A message is a file in a folder of the world, under
 * /dev/shm: FROM.TO.NUMBER, that whom it is for takes away. A group of calls is work of its stream like any
 * other: nothing is read or written before the stream comes to it, a send ends when it was taken, and where
 * it goes to holds NaN until it has come. Groups of one communicator run in the order in which they were
 * asked for, also in two streams, as NCCL has it: who asks for them in an order that the streams cannot have,
 * or that is not that of other ranks, waits for ever.
 *
 * It is strict where NCCL fails now and then, or only between some machines: communicators that do not block
 * must be asked until they are ready, before anything else is done with them or their stream; a group is on
 * one stream; sizes and kinds of calls must agree between ranks; what is received must not overlap. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "backends/cuda/device/nccl_api.h"
#include "tests/cuda/fake/fake.h"

enum { MOST_COMMS = 16, MOST_PIECES = 4096, NAME_BYTES = 300 };

typedef enum call { POINT_TO_POINT = 1, ALL_GATHER, BROADCAST } call;

typedef struct piece {
    bool sends, begun, done;
    call call;
    cuda_address at;
    size_t bytes;
    int32_t rank;
    int64_t number; /* of messages between the two */
} piece;

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
    int64_t *sent, *received; /* messages, [count] */
    int64_t groups, pending;
    struct group *launching;
    struct record *last; /* group that was launched */
};

/* What one group does, in its stream. */
typedef struct group {
    nccl_comm comm;
    int32_t id;
    cuda_stream stream;
    bool begun;
    int32_t count;
    piece pieces[];
} group;

static struct nccl_comm_handle comms[MOST_COMMS];
static int32_t ids, depth;
static char last_error[NAME_BYTES];
static piece collected[MOST_PIECES]; /* of the group that is open */
static int32_t collected_count;
static nccl_comm collected_comm;
static cuda_stream collected_stream;

#define WRONG(...) ((void)fake_cuda_wrong(CUDA_INVALID_VALUE, __VA_ARGS__), NCCL_INVALID_USAGE)

#define ENTER(context)                                                                                       \
    FAKE_LOCKED;                                                                                             \
    do {                                                                                                     \
        if (fake_cuda_enter(__func__, context) != CUDA_OK)                                                   \
            return NCCL_CUDA_ERROR;                                                                          \
    } while (0)

static bool is_comm(nccl_comm comm) {
    return comm >= comms && comm < comms + MOST_COMMS && comm->id > 0;
}

static bool may_share(void) {
    const char *value = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    return value && strcmp(value, "1") == 0 && fake_cuda_number("nccl", 22809) >= NCCL_SHARED_DEVICES;
}

/* ---- worlds ----------------------------------------------------------------------------------------- */

FAKE_EXPORTED nccl_result ncclGetVersion(int32_t *version);
nccl_result ncclGetVersion(int32_t *version) {
    *version = (int32_t)fake_cuda_number("nccl", 22809);
    return NCCL_OK;
}

FAKE_EXPORTED nccl_result ncclGetUniqueId(nccl_id *id);
nccl_result ncclGetUniqueId(nccl_id *id) {
    ENTER(false);
    const char *given = getenv("NCCL_COMM_ID");
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    memset(id, 0, sizeof *id);
    if (given && !strchr(given, ':'))
        return WRONG("NCCL_COMM_ID is '%s', not HOST:PORT", given);
    if (given)
        snprintf(id->bytes, sizeof id->bytes, "at-%s", given);
    else
        snprintf(id->bytes, sizeof id->bytes, "%ld-%lld%09ld", (long)getpid(), (long long)t.tv_sec,
                 t.tv_nsec);
    return NCCL_OK;
}

static void write_file(const char *folder, const char *name, const void *data, size_t bytes, const void *more,
                       size_t more_bytes) {
    char path[2 * NAME_BYTES], hidden[2 * NAME_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    snprintf(hidden, sizeof hidden, "%s/.%s.%ld", folder, name, (long)getpid());
    int fd = open(hidden, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool good = fd >= 0 && write(fd, data, bytes) == (ssize_t)bytes &&
                (more_bytes == 0 || write(fd, more, more_bytes) == (ssize_t)more_bytes);
    if (fd >= 0)
        close(fd);
    if (!good || rename(hidden, path) != 0)
        (void)fake_cuda_wrong(CUDA_UNKNOWN, "nccl: cannot write %s: %s", path, strerror(errno));
}

/* Bytes of a file; -1: it is not there. */
static ssize_t read_file(const char *folder, const char *name, void *data, size_t bytes) {
    char path[2 * NAME_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, data, bytes);
    if (fd >= 0)
        close(fd);
    return got;
}

static void remove_file(const char *folder, const char *name) {
    char path[2 * NAME_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    unlink(path);
}

static bool file_is_there(const char *folder, const char *name) {
    char path[2 * NAME_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return access(path, F_OK) == 0;
}

/* Rank 0 finds what a run left that was killed, where the name of the world is given. */
static void empty_folder(const char *folder) {
    DIR *dir = opendir(folder);
    for (const struct dirent *e; dir && (e = readdir(dir)) != NULL;)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            remove_file(folder, e->d_name);
    if (dir)
        closedir(dir);
}

typedef struct member {
    int32_t count, device;
    long pid;
} member;

static const char *member_name(int32_t rank, char text[32]) {
    snprintf(text, 32, "member.%d", rank);
    return text;
}

/* Whether some member of a world is alive, or all are still to come. */
static bool is_alive(const char *folder) {
    char name[32];
    member m;
    int32_t dead = 0;
    for (int32_t r = 0; r < 16; r++)
        if (read_file(folder, member_name(r, name), &m, sizeof m) == (ssize_t)sizeof m) {
            if (kill((pid_t)m.pid, 0) == 0 || errno != ESRCH)
                return true;
            dead++;
        }
    return dead == 0;
}

/* What worlds left that were killed. */
static void sweep(void) {
    DIR *dir = opendir("/dev/shm");
    for (const struct dirent *e; dir && (e = readdir(dir)) != NULL;) {
        char folder[NAME_BYTES];
        snprintf(folder, sizeof folder, "/dev/shm/%.200s", e->d_name);
        if (strncmp(e->d_name, "fake-nccl-", 10) == 0 && !is_alive(folder)) {
            empty_folder(folder);
            rmdir(folder);
        }
    }
    if (dir)
        closedir(dir);
}

static void come(nccl_comm comm) {
    char name[32];
    const member own = {comm->count, comm->device, (long)getpid()};
    write_file(comm->folder, member_name(comm->rank, name), &own, sizeof own, NULL, 0);
}

FAKE_EXPORTED nccl_result ncclCommInitRankConfig(nccl_comm *out, int32_t count, nccl_id id, int32_t rank,
                                                 nccl_config *config);
nccl_result ncclCommInitRankConfig(nccl_comm *out, int32_t count, nccl_id id, int32_t rank,
                                   nccl_config *config) {
    ENTER(true);
    if (count < 1 || rank < 0 || rank >= count || !config || config->size < sizeof *config ||
        config->magic != (uint32_t)NCCL_CONFIG_MAGIC || config->blocking != 0)
        return WRONG("ncclCommInitRankConfig: rank %d of %d, or a configuration that is none", rank, count);
    for (int i = 0; i < MOST_COMMS; i++)
        if (comms[i].id == 0) {
            comms[i] = (struct nccl_comm_handle){.id = ++ids,
                                                 .count = count,
                                                 .rank = rank,
                                                 .device = fake_cuda_device(),
                                                 .state = NCCL_IN_PROGRESS,
                                                 .patience = 2,
                                                 .sent = calloc((size_t)count, sizeof(int64_t)),
                                                 .received = calloc((size_t)count, sizeof(int64_t))};
            snprintf(comms[i].folder, NAME_BYTES, "/dev/shm/fake-nccl-%.*s", (int)sizeof id.bytes, id.bytes);
            mkdir(comms[i].folder, 0700);
            if (rank == 0) {
                sweep();
                mkdir(comms[i].folder, 0700); /* it may have been one of these */
                empty_folder(comms[i].folder);
                come(&comms[i]);
            }
            *out = &comms[i];
            fake_cuda_count(1);
            fake_cuda_log("ncclCommInitRankConfig rank %d of %d -> c%d", rank, count, comms[i].id);
            return NCCL_IN_PROGRESS;
        }
    return NCCL_SYSTEM_ERROR;
}

/* Whether all have come. */
static void try_to_join(nccl_comm comm) {
    char name[32];
    member m = {0};
    bool root =
        read_file(comm->folder, "member.0", &m, sizeof m) == (ssize_t)sizeof m && kill((pid_t)m.pid, 0) == 0;
    int32_t here = 0;
    if (!root)
        return;
    if (!file_is_there(comm->folder, member_name(comm->rank, name)))
        come(comm);
    for (int32_t r = 0; r < comm->count; r++) {
        if (read_file(comm->folder, member_name(r, name), &m, sizeof m) != (ssize_t)sizeof m)
            continue;
        here++;
        if (m.count != comm->count) {
            (void)WRONG("nccl: rank %d has %d ranks, rank %d has %d", comm->rank, comm->count, r, m.count);
            comm->state = NCCL_INVALID_USAGE;
        }
        if (r != comm->rank && m.device == comm->device && !may_share()) {
            snprintf(last_error, sizeof last_error,
                     "Duplicate GPU detected : rank %d and rank %d both on CUDA device %d", comm->rank, r,
                     comm->device);
            comm->state = NCCL_INVALID_USAGE;
        }
    }
    if (here == comm->count && comm->state == NCCL_IN_PROGRESS) {
        comm->joined = true;
        comm->state = NCCL_OK;
        fake_cuda_go_on();
    }
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
        write_file(comm->folder, name, &h, sizeof h, data, p->bytes);
        p->begun = true;
    }
    p->done = !file_is_there(comm->folder, name);
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
    void *data = fake_cuda_memory(p->at, p->bytes, "where NCCL receives");
    bool good = data && read(fd, &h, sizeof h) == (ssize_t)sizeof h;
    if (good && (h.call != (int64_t)p->call || h.bytes != (int64_t)p->bytes)) {
        (void)WRONG("nccl: rank %d sends %lld bytes by call %lld, rank %d receives %zu by call %d", p->rank,
                    (long long)h.bytes, (long long)h.call, comm->rank, p->bytes, (int)p->call);
        good = false;
    }
    good = good && read(fd, data, p->bytes) == (ssize_t)p->bytes;
    close(fd);
    if (good) {
        fake_cuda_written(p->at, p->bytes);
        unlink(path);
        p->done = true;
    }
    return good;
}

static cuda_result run_group(void *data) {
    group *g = *(group **)data;
    nccl_comm comm = g->comm;
    bool done = true, good = true;
    if (comm->id != g->id) { /* given up: what should have come is anything */
        for (int32_t i = 0; i < g->count; i++)
            if (!g->pieces[i].sends)
                fake_cuda_written(g->pieces[i].at, g->pieces[i].bytes);
        free(g);
        return CUDA_OK;
    }
    if (comm->state != NCCL_OK && comm->state != NCCL_IN_PROGRESS) /* nobody comes any more */
        return CUDA_NOT_READY;
    for (int32_t i = 0; i < g->count && !g->begun && good; i++) {
        void *to = g->pieces[i].sends
                       ? NULL
                       : fake_cuda_memory(g->pieces[i].at, g->pieces[i].bytes, "where NCCL receives");
        good = g->pieces[i].sends || to;
        if (to)
            memset(to, 0xff, g->pieces[i].bytes);
    }
    g->begun = true;
    for (int32_t i = 0; i < g->count && good; i++) {
        piece *p = &g->pieces[i];
        if (!p->done)
            good = p->sends ? send_piece(comm, p) : take_piece(comm, p);
        done &= p->done;
    }
    if (good && !done)
        return CUDA_NOT_READY;
    comm->pending--;
    free(g);
    return good ? CUDA_OK : CUDA_LAUNCH_FAILED;
}

static void launch(nccl_comm comm) {
    group *g = comm->launching;
    comm->launching = NULL;
    if (fake_cuda_enqueue_behind(&comm->last, g->stream, run_group, &g, sizeof g) != CUDA_OK)
        comm->state = NCCL_CUDA_ERROR;
}

/* ---- calls ------------------------------------------------------------------------------------------ */

/* Communicators that do not block do something when they are asked. */
FAKE_EXPORTED nccl_result ncclCommGetAsyncError(nccl_comm comm, nccl_result *result);
nccl_result ncclCommGetAsyncError(nccl_comm comm, nccl_result *result) {
    FAKE_LOCKED;
    int64_t lost = fake_cuda_number("nccl_lost", 0);
    if (!is_comm(comm))
        return WRONG("ncclCommGetAsyncError: no such communicator");
    if (comm->state == NCCL_IN_PROGRESS && comm->patience > 0)
        comm->patience--;
    else if (comm->state == NCCL_IN_PROGRESS && !comm->joined)
        try_to_join(comm);
    else if (comm->state == NCCL_IN_PROGRESS && comm->finalizing)
        comm->state = comm->pending == 0 ? NCCL_OK : NCCL_IN_PROGRESS;
    else if (comm->state == NCCL_IN_PROGRESS) {
        comm->state = NCCL_OK;
        if (comm->launching)
            launch(comm);
    }
    if (lost > 0 && comm->groups >= lost && comm->state <= NCCL_OK) {
        snprintf(last_error, sizeof last_error, "socket closed by remote peer");
        comm->state = NCCL_REMOTE_ERROR;
    }
    comm->finalized |= comm->finalizing && comm->state == NCCL_OK;
    *result = comm->state;
    return NCCL_OK;
}

static nccl_result check_use(const char *name, nccl_comm comm) {
    if (!is_comm(comm) || comm->finalizing)
        return WRONG("%s: no such communicator", name);
    if (comm->state == NCCL_IN_PROGRESS)
        return WRONG("%s: the communicator is not ready yet (ncclCommGetAsyncError)", name);
    if (comm->state != NCCL_OK)
        return comm->state;
    if (comm->device != fake_cuda_device())
        return WRONG("%s: a communicator of device %d, and device %d is current", name, comm->device,
                     fake_cuda_device());
    return NCCL_OK;
}

static bool overlap(const piece *a, const piece *b) {
    return a->at < b->at + b->bytes && b->at < a->at + a->bytes;
}

static nccl_result end_group(void) {
    nccl_comm comm = collected_comm;
    for (int32_t i = 0; i < collected_count; i++)
        for (int32_t k = 0; k < i; k++)
            if ((!collected[i].sends || !collected[k].sends) && overlap(&collected[i], &collected[k]))
                return WRONG("nccl: what is received overlaps with what is sent or received in the group");
    group *g = calloc(1, sizeof *g + (size_t)collected_count * sizeof *g->pieces);
    if (!g)
        return NCCL_SYSTEM_ERROR;
    memcpy(g->pieces, collected, (size_t)collected_count * sizeof *collected);
    g->count = collected_count;
    g->comm = comm;
    g->id = comm->id;
    g->stream = collected_stream;
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
    nccl_result result = check_use(name, comm);
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
    nccl_result result = check_use("ncclAllGather", comm);
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
    nccl_result result = check_use("ncclBroadcast", comm);
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

/* ---- the end ---------------------------------------------------------------------------------------- */

FAKE_EXPORTED nccl_result ncclCommFinalize(nccl_comm comm);
nccl_result ncclCommFinalize(nccl_comm comm) {
    ENTER(true);
    nccl_result result = check_use("ncclCommFinalize", comm);
    if (result != NCCL_OK)
        return result;
    comm->finalizing = true;
    comm->state = NCCL_IN_PROGRESS;
    comm->patience = 1;
    return NCCL_IN_PROGRESS;
}

static void forget(nccl_comm comm) {
    char name[32];
    remove_file(comm->folder, member_name(comm->rank, name));
    rmdir(comm->folder); /* by the last */
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
    if (!is_comm(comm) || !comm->finalized)
        return WRONG("ncclCommDestroy: no such communicator, or not finalized");
    fake_cuda_log("ncclCommDestroy c%d", comm->id);
    forget(comm);
    return NCCL_OK;
}

/* What runs ends, as it is. */
FAKE_EXPORTED nccl_result ncclCommAbort(nccl_comm comm);
nccl_result ncclCommAbort(nccl_comm comm) {
    FAKE_LOCKED;
    if (!is_comm(comm))
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
    return last_error;
}
