/* nccl_worlds.c: who is in a communicator of the fake libnccl: a folder under /dev/shm in which each member
 * says that it has come, and of which part it wants to be. */
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

#include "tests/cuda/fake/nccl.h"

struct nccl_comm_handle fake_nccl_comms[MOST_COMMS];
char fake_nccl_error[NAME_BYTES];
static int32_t ids;

bool fake_nccl_is_comm(nccl_comm comm) {
    return comm >= fake_nccl_comms && comm < fake_nccl_comms + MOST_COMMS && comm->id > 0;
}

nccl_result fake_nccl_check_use(const char *name, nccl_comm comm) {
    if (!fake_nccl_is_comm(comm) || comm->finalizing)
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

void fake_nccl_write(const char *folder, const char *name, const void *data, size_t bytes, const void *more,
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

bool fake_nccl_is_there(const char *folder, const char *name) {
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
    fake_nccl_write(comm->folder, member_name(comm->rank, name), &own, sizeof own, NULL, 0);
}

static bool is_config(const nccl_config *config) {
    return config && config->size >= sizeof *config && config->magic == (uint32_t)NCCL_CONFIG_MAGIC &&
           config->blocking == 0 &&
           (config->max_ctas == NCCL_UNDEFINED || (config->max_ctas >= 1 && config->max_ctas <= 32));
}

/* NULL: there are too many. */
static nccl_comm create(int32_t count, int32_t rank, const char *folder) {
    for (int i = 0; i < MOST_COMMS; i++)
        if (fake_nccl_comms[i].id == 0) {
            fake_nccl_comms[i] =
                (struct nccl_comm_handle){.id = ++ids,
                                          .count = count,
                                          .rank = rank,
                                          .device = fake_cuda_device(),
                                          .state = NCCL_IN_PROGRESS,
                                          .patience = 2,
                                          .sent = calloc((size_t)count, sizeof(int64_t)),
                                          .received = calloc((size_t)count, sizeof(int64_t))};
            snprintf(fake_nccl_comms[i].folder, NAME_BYTES, "%s", folder);
            mkdir(folder, 0700);
            fake_cuda_count(1);
            return &fake_nccl_comms[i];
        }
    return NULL;
}

FAKE_EXPORTED nccl_result ncclCommInitRankConfig(nccl_comm *out, int32_t count, nccl_id id, int32_t rank,
                                                 nccl_config *config);
nccl_result ncclCommInitRankConfig(nccl_comm *out, int32_t count, nccl_id id, int32_t rank,
                                   nccl_config *config) {
    char folder[NAME_BYTES];
    ENTER(true);
    if (count < 1 || rank < 0 || rank >= count || !is_config(config))
        return WRONG("ncclCommInitRankConfig: rank %d of %d, or a configuration that is none", rank, count);
    snprintf(folder, sizeof folder, "/dev/shm/fake-nccl-%.*s", (int)sizeof id.bytes, id.bytes);
    nccl_comm comm = create(count, rank, folder);
    if (!comm)
        return NCCL_SYSTEM_ERROR;
    if (rank == 0) {
        sweep();
        mkdir(folder, 0700); /* it may have been one of these */
        empty_folder(folder);
        come(comm);
    }
    *out = comm;
    fake_cuda_log("ncclCommInitRankConfig rank %d of %d -> c%d", rank, count, comm->id);
    return NCCL_IN_PROGRESS;
}

/* Whether all have come. */
void fake_nccl_try_to_join(nccl_comm comm) {
    char name[32];
    member m = {0};
    bool root =
        read_file(comm->folder, "member.0", &m, sizeof m) == (ssize_t)sizeof m && kill((pid_t)m.pid, 0) == 0;
    int32_t here = 0;
    if (!root)
        return;
    if (!fake_nccl_is_there(comm->folder, member_name(comm->rank, name)))
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
            snprintf(fake_nccl_error, sizeof fake_nccl_error,
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

/* ---- parts of worlds -------------------------------------------------------------------------------- */

static const char *split_name(int32_t number, int32_t rank, char text[64]) {
    snprintf(text, 64, "split.%d.%d", number, rank);
    return text;
}

/* Once all have said of which color they are: those of the own one, in the order of their keys. */
void fake_nccl_try_to_split(nccl_comm comm) {
    char name[64], folder[NAME_BYTES];
    const split *own = comm->splitting;
    int32_t count = 0, rank = 0, theirs[2];
    for (int32_t r = 0; r < comm->count; r++) {
        if (read_file(comm->folder, split_name(comm->splits, r, name), theirs, sizeof theirs) !=
            (ssize_t)sizeof theirs)
            return;
        count += theirs[0] == own->color;
        rank +=
            theirs[0] == own->color && (theirs[1] < own->key || (theirs[1] == own->key && r < comm->rank));
    }
    snprintf(folder, sizeof folder, "%.200s-%d-%d", comm->folder, comm->splits, own->color);
    nccl_comm part = create(count, rank, folder);
    comm->state = part ? NCCL_OK : NCCL_SYSTEM_ERROR;
    if (part) {
        come(part);
        *own->out = part;
        fake_cuda_log("ncclCommSplit c%d: rank %d of %d -> c%d", comm->id, rank, count, part->id);
    }
    free(comm->splitting);
    comm->splitting = NULL;
}

FAKE_EXPORTED nccl_result ncclCommSplit(nccl_comm comm, int32_t color, int32_t key, nccl_comm *out,
                                        nccl_config *config);
nccl_result ncclCommSplit(nccl_comm comm, int32_t color, int32_t key, nccl_comm *out, nccl_config *config) {
    char name[64];
    const int32_t own[2] = {color, key};
    ENTER(true);
    nccl_result result = fake_nccl_check_use("ncclCommSplit", comm);
    if (result != NCCL_OK)
        return result;
    if (color < 0 || !out || !is_config(config) || comm->pending > 0)
        return WRONG("ncclCommSplit: color %d, no configuration, or something is under way", color);
    comm->splitting = malloc(sizeof *comm->splitting);
    if (!comm->splitting)
        return NCCL_SYSTEM_ERROR;
    *comm->splitting = (split){color, key, out};
    *out = NULL;
    fake_nccl_write(comm->folder, split_name(++comm->splits, comm->rank, name), own, sizeof own, NULL, 0);
    comm->state = NCCL_IN_PROGRESS;
    comm->patience = 1;
    return NCCL_IN_PROGRESS;
}

void fake_nccl_remove(nccl_comm comm) {
    char name[32], text[64];
    bool others = false;
    remove_file(comm->folder, member_name(comm->rank, name));
    for (int32_t s = 1; s <= comm->splits; s++)
        remove_file(comm->folder, split_name(s, comm->rank, text));
    for (int32_t r = 0; r < comm->count; r++)
        others |= fake_nccl_is_there(comm->folder, member_name(r, name));
    if (!others) /* messages that nobody took */
        empty_folder(comm->folder);
    rmdir(comm->folder);
}
