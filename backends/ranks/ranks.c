/* ranks.c: joining a world, and exchanging pieces in it. */
#include "backends/ranks/ranks.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/ranks/world.h"
#include "ir/program/collective_steps.h"

#define PLUGIN "libsbp_mpi.so"
/* Where this is what speaks, there is no MPI: torchrun's. */
#define NATIVE_SIZE "WORLD_SIZE"
/* The memory that collectives work in; with very many ranks RANK_BYTES for each. */
#define WORKSPACE_BYTES ((int64_t)4 << 20)
#define RANK_BYTES 4096

/* ---- joining ---------------------------------------------------------------------------------------- */

/* Variables by which launchers tell a process of how many it is one. */
static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", NATIVE_SIZE};

/* A step of Slurm that is no world of MPI leaves processes alone: each runs by itself. Some set what torchrun
 * sets for the hosts, not for processes: these have no LOCAL_RANK. */
static bool is_a_world(const char *size) {
    if (strcmp(size, NATIVE_SIZE) == 0)
        return getenv("RANK") && getenv("LOCAL_RANK") && getenv("MASTER_ADDR") && getenv("MASTER_PORT");
    return strcmp(size, "SLURM_NTASKS") != 0 || getenv("PMIX_RANK") || getenv("PMI_RANK");
}

/* 0: it does not say. */
static int32_t announced_by(const char *variable) {
    const char *value = getenv(variable);
    char *end;
    long count = value ? strtol(value, &end, 10) : 0;
    return value && !*end && count >= 1 && count <= INT32_MAX && is_a_world(variable) ? (int32_t)count : 0;
}

/* The first of the variables that names a world, and its size; 0: none does. Where torchrun itself was
 * started by one of the others, on every host once, it is torchrun that counts processes. */
static int32_t announced(const char **variable) {
    int32_t count = 0;
    if (getenv("TORCHELASTIC_RUN_ID") && (count = announced_by(*variable = NATIVE_SIZE)) > 0)
        return count;
    for (int i = 0; i < SBP_COUNT(sizes) && count == 0; i++)
        count = announced_by(*variable = sizes[i]);
    return count;
}

static int32_t expected_count(sbp_ranks *r) {
    const char *variable;
    int32_t count = announced(&variable);
    if (count == 0)
        return 1;
    r->native = strcmp(variable, NATIVE_SIZE) == 0;
    snprintf(r->why_text, sizeof r->why_text, "%s%s is %d", variable, r->native ? " (of torchrun)" : "",
             (int)count);
    r->why = r->why_text;
    return count;
}

int32_t sbp_ranks_announced(void) {
    const char *variable;
    return announced(&variable);
}

static int32_t rank_by(const char *variable) {
    const char *value = getenv(variable);
    char *end;
    long rank = value ? strtol(value, &end, 10) : -1;
    return value && !*end && rank >= 0 && rank <= INT32_MAX ? (int32_t)rank : -1;
}

int32_t sbp_ranks_announced_rank(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"};
    const char *variable;
    int32_t rank = -1;
    if (announced(&variable) > 0 && strcmp(variable, NATIVE_SIZE) == 0)
        rank = rank_by("RANK");
    for (int i = 0; i < SBP_COUNT(names) && rank < 0; i++)
        rank = rank_by(names[i]);
    return rank < 0 ? 0 : rank;
}

/* Where the plugin lies, from the program: as it is built, and as it is installed. */
static const char *const places[] = {PLUGIN, "../lib/streambp/" PLUGIN};

/* Its path, in what holds `size` letters; false: it is at none of its places. */
static bool find_plugin(char *path, size_t size) {
    ssize_t length = readlink("/proc/self/exe", path, size - 1);
    path[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    for (int i = 0; i < SBP_COUNT(places); i++)
        if (snprintf(name, size - (size_t)(name - path), "%s", places[i]) <
                (int)(size - (size_t)(name - path)) &&
            access(path, F_OK) == 0)
            return true;
    return false;
}

static sbp_status open_plugin(sbp_ranks *r, sbp_diag *diag) {
    char path[4096];
    bool found = find_plugin(path, sizeof path);
    /* parts of MPI look for its symbols by name */
    r->library = dlopen(found ? path : PLUGIN, RTLD_NOW | RTLD_GLOBAL);
    if (!r->library && found) {
        const char *text = dlerror();
        return sbp_fail(diag, SBP_MACHINE,
                        "%s, but '%s' cannot be opened: %s; install the MPI that it was built with (Debian: "
                        "openmpi-bin)",
                        r->why, path, text ? text : "unknown");
    }
    if (!r->library)
        return sbp_fail(diag, SBP_MACHINE,
                        "%s, but this sbprun was built without MPI (" PLUGIN " is neither beside it, nor in "
                        "../lib/streambp, nor where the loader looks): install MPI (Debian: libopenmpi-dev, "
                        "openmpi-bin) and build it again",
                        r->why);
    r->transport = dlsym(r->library, SBP_TRANSPORT_SYMBOL);
    if (!r->transport || r->transport->version != SBP_TRANSPORT_VERSION) {
        r->transport = NULL;
        return sbp_fail(diag, SBP_MACHINE, PLUGIN " is of another version of this program");
    }
    return SBP_OK;
}

static sbp_status allocate(sbp_ranks *r, sbp_diag *diag) {
    size_t pieces = (size_t)r->world.count * sizeof *r->send;
    int64_t least = r->world.count * (int64_t)RANK_BYTES;
    r->send = sbp_malloc(pieces);
    r->receive = sbp_malloc(pieces);
    r->requests = sbp_malloc(2 * (size_t)r->world.count * r->transport->request_bytes);
    r->work_bytes = least > WORKSPACE_BYTES ? least : WORKSPACE_BYTES;
    r->work = sbp_malloc((size_t)r->work_bytes);
    if (r->send && r->receive && r->requests && r->work)
        return SBP_OK;
    return sbp_fail(diag, SBP_MACHINE, "out of memory for joining the ranks");
}

/* Tests want several hosts on one. */
static int32_t wanted_node(const sbp_transport_world *world) {
    const char *text = getenv("SBP_TEST_NODE");
    long node = text ? strtol(text, NULL, 10) : 0;
    return node > 0 && world->count % node == 0 ? (int32_t)node : world->node;
}

static sbp_status join(sbp_ranks *r, const sbp_transport *native, int32_t expected, sbp_diag *diag) {
    char error[512] = "";
    if (!r->native)
        SBP_TRY(open_plugin(r, diag));
    else if (!native)
        return sbp_fail(
            diag, SBP_MACHINE,
            "%s, but ranks without MPI need NCCL, which this build does not have: start them by mpirun",
            r->why);
    else
        r->transport = native;
    if (r->transport->join(&r->world, error, sizeof error) != 0)
        return sbp_fail(diag, SBP_MACHINE, "%s, but %s does not begin: %s", r->why,
                        r->native ? "NCCL" : "MPI", error);
    if (r->world.count != expected)
        return sbp_fail(diag, SBP_MACHINE,
                        "%s, but %s sees %d: the launcher and " PLUGIN " are of different MPIs (with srun: "
                        "--mpi=pmix)",
                        r->why, r->world.name, (int)r->world.count);
    r->world.node = wanted_node(&r->world);
    return allocate(r, diag);
}

sbp_status sbp_ranks_find_transport(const char *why, sbp_diag *diag) {
    sbp_ranks probe = {.why = why};
    sbp_status status = open_plugin(&probe, diag);
    if (probe.library)
        dlclose(probe.library); /* it has not begun */
    return status;
}

sbp_status sbp_ranks_context(sbp_ranks *parent, int32_t size, sbp_diag *diag, sbp_ranks **out) {
    sbp_ranks *r = sbp_malloc(sizeof *r);
    *out = NULL;
    if (!r)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for joining the ranks");
    *r = (sbp_ranks){.transport = parent->transport,
                     .world = parent->world,
                     .why = parent->why,
                     .timeout = parent->timeout,
                     .native = parent->native,
                     .parent = parent,
                     .channel = 1};
    r->world.node = 1; /* its exchanges are around what reads other rows, and few */
    r->world.count = r->group = size;
    r->world.rank = r->member = parent->world.rank % size;
    r->first = parent->world.rank - r->world.rank;
    sbp_status status = r->transport ? allocate(r, diag) : SBP_OK;
    if (status != SBP_OK) {
        sbp_ranks_leave(r);
        return status;
    }
    *out = r;
    return SBP_OK;
}

bool sbp_ranks_has_failed(const sbp_ranks *r) {
    return r->failed;
}

void sbp_ranks_fail(sbp_ranks *r) {
    r->failed = true;
}

sbp_status sbp_ranks_join(double timeout, const sbp_transport *native, sbp_diag *diag, sbp_ranks **out) {
    sbp_ranks *r = sbp_malloc(sizeof *r);
    *out = NULL;
    if (!r)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for joining the ranks");
    *r = (sbp_ranks){.world = {.count = 1, .local_count = 1, .node = 1, .name = "none"},
                     .why = "started alone",
                     .timeout = timeout};
    int32_t expected = expected_count(r);
    sbp_status status = expected > 1 ? join(r, native, expected, diag) : SBP_OK;
    if (status != SBP_OK) {
        r->failed = true;
        sbp_ranks_leave(r);
        return status;
    }
    r->group = r->world.count;
    r->member = r->world.rank;
    *out = r;
    return SBP_OK;
}

void sbp_ranks_leave(sbp_ranks *r) {
    if (!r)
        return;
    if (r->transport && !r->failed && !r->parent)
        r->transport->leave();
    free(r->send);
    free(r->receive);
    free(r->requests);
    free(r->work);
    free(r); /* the library stays: MPI cannot be unloaded */
}

void sbp_ranks_end_all(sbp_ranks *r, int status) {
    if (r && r->transport)
        r->transport->end_all(status);
}

void sbp_ranks_info_of(const sbp_ranks *r, sbp_ranks_info *out) {
    *out = (sbp_ranks_info){.rank = r->world.rank,
                            .count = r->world.count,
                            .local_rank = r->world.local_rank,
                            .local_count = r->world.local_count,
                            .node = r->world.node,
                            .member = r->member,
                            .group = r->group,
                            .transport = r->world.name,
                            .why = r->why,
                            .sent_bytes = r->sent_bytes,
                            .received_bytes = r->received_bytes,
                            .away_bytes = r->away_bytes,
                            .timeout = r->timeout,
                            .native = r->native};
}

/* ---- shares ----------------------------------------------------------------------------------------- */

sbp_status sbp_ranks_divide(sbp_ranks *r, int32_t group, sbp_diag *diag) {
    if (group < 1 || r->world.count % group != 0)
        return sbp_fail(diag, SBP_INPUT, "%d ranks cannot be divided into groups of %d", (int)r->world.count,
                        (int)group);
    r->group = group;
    r->member = r->world.rank % group;
    return SBP_OK;
}

/* ---- moving ----------------------------------------------------------------------------------------- */

void sbp_ranks_add_piece(const sbp_ranks *r, sbp_transport_piece *list, int32_t *count, int32_t rank,
                         void *data, int64_t bytes) {
    if (rank != r->world.rank && bytes > 0)
        list[(*count)++] = (sbp_transport_piece){r->first + rank, bytes, data};
}

/* The host of a rank, which is counted among all ranks. */
static int32_t host_of(const sbp_ranks *r, int32_t rank) {
    return rank / (r->parent ? r->parent : r)->world.node;
}

sbp_status sbp_ranks_exchange(sbp_ranks *r, int32_t sends, int32_t receives, const char *what,
                              sbp_diag *diag) {
    char error[512] = "";
    int32_t late = -1, rank = r->first + r->world.rank;
    r->exchanges++;
    if (r->failed)
        return sbp_fail(diag, SBP_MACHINE,
                        "rank %d: %s is not possible: an earlier exchange failed; see the first error",
                        (int)rank, what);
    if (r->transport->exchange(r->channel, r->send, sends, r->receive, receives, r->requests, r->timeout,
                               &late, error, sizeof error) != 0) {
        r->failed = true;
        if (r->parent)
            r->parent->failed = true;
        if (late >= 0)
            return sbp_fail(diag, SBP_MACHINE,
                            "rank %d: rank %d does not answer (%s, exchange %lld): %s; it hangs, is gone or "
                            "takes longer than --timeout",
                            (int)rank, (int)late, what, (long long)r->exchanges, error);
        return sbp_fail(diag, SBP_MACHINE, "rank %d: %s, exchange %lld: %s", (int)rank, what,
                        (long long)r->exchanges, error);
    }
    for (int32_t i = 0; i < sends; i++) {
        r->sent_bytes += r->send[i].bytes;
        r->away_bytes += host_of(r, r->send[i].rank) != host_of(r, rank) ? r->send[i].bytes : 0;
    }
    for (int32_t i = 0; i < receives; i++)
        r->received_bytes += r->receive[i].bytes;
    return SBP_OK;
}

/* ---- pieces ----------------------------------------------------------------------------------------- */

sbp_status sbp_ranks_swap(sbp_ranks *r, const sbp_ranks_piece *send, int32_t send_count,
                          const sbp_ranks_piece *receive, int32_t receive_count, sbp_diag *diag) {
    int32_t sends = 0, receives = 0;
    if (!r->transport)
        return SBP_OK;
    for (int32_t i = 0; i < send_count && sends < r->world.count; i++)
        sbp_ranks_add_piece(r, r->send, &sends, send[i].rank, send[i].data, send[i].bytes);
    for (int32_t i = 0; i < receive_count && receives < r->world.count; i++)
        sbp_ranks_add_piece(r, r->receive, &receives, receive[i].rank, receive[i].data, receive[i].bytes);
    return sbp_ranks_exchange(r, sends, receives, "swap", diag);
}
