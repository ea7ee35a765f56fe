/* ranks.c: joining a world, and sums over it. */
#include "backends/ranks/ranks.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/ranks/transport.h"

#define PLUGIN "libsbp_mpi.so"
/* Of what a sum works in: numbers of all ranks as they come, and as they are added. */
#define WORKSPACE_BYTES ((int64_t)4 << 20)
/* Of one piece of what is only moved. */
#define PIECE_BYTES ((int64_t)64 << 20)

struct sbp_ranks {
    void *library;
    const sbp_transport *transport; /* NULL: one rank */
    sbp_transport_world world;
    const char *why;
    char why_text[96];
    double timeout;
    int64_t sent_bytes, received_bytes, exchanges;
    sbp_transport_piece *send, *receive; /* [count] each */
    void *requests;                      /* of both */
    char *arrived;                       /* [count][part] numbers of the type they are sent in */
    double *sums;                        /* [count][part] fp32 or fp64 */
    bool failed;
};

/* ---- joining ---------------------------------------------------------------------------------------- */

/* Variables by which launchers tell a process of how many it is one. */
static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"};

/* A step of Slurm that is no world of MPI leaves processes alone: each runs by itself. */
static bool speaks(const char *size) {
    return strcmp(size, "SLURM_NTASKS") != 0 || getenv("PMIX_RANK") || getenv("PMI_RANK");
}

/* The first of the variables that speaks, and what it says; 0: none does. */
static int32_t announced(const char **variable) {
    for (int i = 0; i < SBP_COUNT(sizes); i++) {
        const char *value = getenv(sizes[i]);
        char *end;
        long count = value ? strtol(value, &end, 10) : 0;
        if (!value || *end || count < 1 || count > INT32_MAX || !speaks(sizes[i]))
            continue;
        *variable = sizes[i];
        return (int32_t)count;
    }
    return 0;
}

static int32_t expected_count(sbp_ranks *r) {
    const char *variable;
    int32_t count = announced(&variable);
    if (count == 0)
        return 1;
    snprintf(r->why_text, sizeof r->why_text, "%s is %d", variable, (int)count);
    r->why = r->why_text;
    return count;
}

int32_t sbp_ranks_announced(void) {
    const char *variable;
    return announced(&variable);
}

int32_t sbp_ranks_announced_rank(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"};
    for (int i = 0; i < SBP_COUNT(names); i++) {
        const char *value = getenv(names[i]);
        char *end;
        long rank = value ? strtol(value, &end, 10) : -1;
        if (value && !*end && rank >= 0 && rank <= INT32_MAX)
            return (int32_t)rank;
    }
    return 0;
}

/* Beside the program, else where the loader looks. */
static sbp_status open_plugin(sbp_ranks *r, sbp_diag *diag) {
    char path[4096], *slash;
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - sizeof PLUGIN - 1);
    path[length > 0 ? length : 0] = '\0';
    slash = strrchr(path, '/');
    memcpy(slash ? slash + 1 : path, PLUGIN, sizeof PLUGIN);
    if (access(path, F_OK) == 0)
        r->library = dlopen(path, RTLD_NOW | RTLD_GLOBAL); /* parts of MPI look for its symbols by name */
    else
        r->library = dlopen(PLUGIN, RTLD_NOW | RTLD_GLOBAL);
    if (!r->library) {
        const char *text = dlerror();
        return sbp_fail(diag, SBP_MACHINE,
                        "%s, but " PLUGIN
                        " cannot be opened, neither '%s' nor where the loader looks (%s). It "
                        "is built where MPI is installed (Debian: libopenmpi-dev, openmpi-bin)",
                        r->why, path, text ? text : "unknown");
    }
    r->transport = dlsym(r->library, SBP_TRANSPORT_SYMBOL);
    if (!r->transport || r->transport->version != SBP_TRANSPORT_VERSION) {
        r->transport = NULL;
        return sbp_fail(diag, SBP_MACHINE, PLUGIN " is of another version of this program");
    }
    return SBP_OK;
}

static int64_t part_elems(const sbp_ranks *r, int64_t bytes) {
    int64_t part = WORKSPACE_BYTES / (r->world.count * 2 * bytes);
    return part > 1024 ? part : 1024;
}

static sbp_status allocate(sbp_ranks *r, sbp_diag *diag) {
    int64_t numbers = r->world.count * part_elems(r, sizeof(double)); /* fewer bytes each: more of them */
    size_t pieces = (size_t)r->world.count * sizeof *r->send;
    r->send = sbp_malloc(pieces);
    r->receive = sbp_malloc(pieces);
    r->requests = sbp_malloc(2 * (size_t)r->world.count * r->transport->request_bytes);
    r->arrived = sbp_malloc((size_t)numbers * sizeof(double));
    r->sums = sbp_malloc((size_t)numbers * sizeof(double));
    if (r->send && r->receive && r->requests && r->arrived && r->sums)
        return SBP_OK;
    return sbp_fail(diag, SBP_MACHINE, "out of memory");
}

static sbp_status join(sbp_ranks *r, int32_t expected, sbp_diag *diag) {
    char error[512] = "";
    SBP_TRY(open_plugin(r, diag));
    if (r->transport->join(&r->world, error, sizeof error) != 0)
        return sbp_fail(diag, SBP_MACHINE, "%s, but MPI does not begin: %s", r->why, error);
    if (r->world.count != expected)
        return sbp_fail(diag, SBP_MACHINE,
                        "%s, but %s sees %d: the launcher and " PLUGIN " are of different MPIs (with srun: "
                        "--mpi=pmix)",
                        r->why, r->world.name, (int)r->world.count);
    return allocate(r, diag);
}

sbp_status sbp_ranks_find_transport(const char *why, sbp_diag *diag) {
    sbp_ranks probe = {.why = why};
    sbp_status status = open_plugin(&probe, diag);
    if (probe.library)
        dlclose(probe.library); /* it has not begun */
    return status;
}

bool sbp_ranks_has_failed(const sbp_ranks *r) {
    return r->failed;
}

sbp_status sbp_ranks_join(double timeout, sbp_diag *diag, sbp_ranks **out) {
    sbp_ranks *r = sbp_malloc(sizeof *r);
    *out = NULL;
    if (!r)
        return sbp_fail(diag, SBP_MACHINE, "out of memory");
    *r = (sbp_ranks){
        .world = {.count = 1, .local_count = 1, .name = "none"}, .why = "started alone", .timeout = timeout};
    int32_t expected = expected_count(r);
    sbp_status status = expected > 1 ? join(r, expected, diag) : SBP_OK;
    if (status != SBP_OK) {
        r->failed = true;
        sbp_ranks_leave(r);
        return status;
    }
    *out = r;
    return SBP_OK;
}

void sbp_ranks_leave(sbp_ranks *r) {
    if (!r)
        return;
    if (r->transport && !r->failed)
        r->transport->leave();
    free(r->send);
    free(r->receive);
    free(r->requests);
    free(r->arrived);
    free(r->sums);
    free(r); /* the library stays: MPI cannot be unloaded */
}

void sbp_ranks_end_all(sbp_ranks *r, int status) {
    if (r && r->transport)
        r->transport->end_all(status);
}

void sbp_ranks_info_of(const sbp_ranks *r, sbp_ranks_info *out) {
    *out = (sbp_ranks_info){r->world.rank, r->world.count, r->world.local_rank, r->world.local_count,
                            r->world.name, r->why,         r->sent_bytes,       r->received_bytes};
}

/* ---- moving ----------------------------------------------------------------------------------------- */

int64_t sbp_ranks_share(const sbp_ranks *r, int64_t elems, int32_t rank) {
    int64_t begin = rank * sbp_ceil_div(elems, r->world.count);
    return begin < elems ? begin : elems;
}

static int64_t share_elems(const sbp_ranks *r, int64_t elems, int32_t rank) {
    return sbp_ranks_share(r, elems, rank + 1) - sbp_ranks_share(r, elems, rank);
}

/* Of a share, the elements from `from` on, at most `most` of them. */
static int64_t slice_of(const sbp_ranks *r, int64_t elems, int32_t rank, int64_t from, int64_t most) {
    int64_t left = share_elems(r, elems, rank) - from;
    return left < 0 ? 0 : left < most ? left : most;
}

/* Lists of pieces as they grow; a rank sends itself nothing, and nobody nothing. */
static void add_piece(const sbp_ranks *r, sbp_transport_piece *list, int32_t *count, int32_t rank, void *data,
                      int64_t bytes) {
    if (rank != r->world.rank && bytes > 0)
        list[(*count)++] = (sbp_transport_piece){rank, bytes, data};
}

static sbp_status exchange(sbp_ranks *r, int32_t sends, int32_t receives, const char *what, sbp_diag *diag) {
    char error[512] = "";
    int32_t late = -1;
    r->exchanges++;
    if (r->failed)
        return sbp_fail(diag, SBP_MACHINE, "rank %d: %s after the world failed", (int)r->world.rank, what);
    if (r->transport->exchange(r->send, sends, r->receive, receives, r->requests, r->timeout, &late, error,
                               sizeof error) != 0) {
        r->failed = true;
        if (late >= 0)
            return sbp_fail(diag, SBP_MACHINE,
                            "rank %d: rank %d does not answer (%s, exchange %lld): %s; it hangs, is gone or "
                            "takes longer than --timeout",
                            (int)r->world.rank, (int)late, what, (long long)r->exchanges, error);
        return sbp_fail(diag, SBP_MACHINE, "rank %d: %s, exchange %lld: %s", (int)r->world.rank, what,
                        (long long)r->exchanges, error);
    }
    for (int32_t i = 0; i < sends; i++)
        r->sent_bytes += r->send[i].bytes;
    for (int32_t i = 0; i < receives; i++)
        r->received_bytes += r->receive[i].bytes;
    return SBP_OK;
}

static char *at(void *data, int64_t elem, sbp_dtype dtype) {
    return (char *)data + elem * sbp_dtype_bytes(dtype);
}

/* Its own share from each rank to all. */
static sbp_status gather(sbp_ranks *r, void *data, int64_t elems, sbp_dtype dtype, const char *what,
                         sbp_diag *diag) {
    int64_t most = PIECE_BYTES / sbp_dtype_bytes(dtype), largest = share_elems(r, elems, 0);
    int32_t me = r->world.rank;
    for (int64_t from = 0; from < largest; from += most) {
        int32_t sends = 0, receives = 0;
        int64_t mine = slice_of(r, elems, me, from, most);
        for (int32_t p = 0; p < r->world.count; p++) {
            int64_t theirs = slice_of(r, elems, p, from, most);
            add_piece(r, r->send, &sends, p, at(data, sbp_ranks_share(r, elems, me) + from, dtype),
                      mine * sbp_dtype_bytes(dtype));
            add_piece(r, r->receive, &receives, p, at(data, sbp_ranks_share(r, elems, p) + from, dtype),
                      theirs * sbp_dtype_bytes(dtype));
        }
        SBP_TRY(exchange(r, sends, receives, what, diag));
    }
    return SBP_OK;
}

/* Its share to each rank, from `root`. */
static sbp_status scatter(sbp_ranks *r, void *data, int64_t elems, sbp_dtype dtype, int32_t root,
                          sbp_diag *diag) {
    int64_t most = PIECE_BYTES / sbp_dtype_bytes(dtype), largest = share_elems(r, elems, 0);
    int32_t me = r->world.rank;
    for (int64_t from = 0; from < largest; from += most) {
        int32_t sends = 0, receives = 0;
        for (int32_t p = 0; me == root && p < r->world.count; p++)
            add_piece(r, r->send, &sends, p, at(data, sbp_ranks_share(r, elems, p) + from, dtype),
                      slice_of(r, elems, p, from, most) * sbp_dtype_bytes(dtype));
        add_piece(r, r->receive, &receives, root, at(data, sbp_ranks_share(r, elems, me) + from, dtype),
                  slice_of(r, elems, me, from, most) * sbp_dtype_bytes(dtype));
        SBP_TRY(exchange(r, sends, receives, "broadcast", diag));
    }
    return SBP_OK;
}

/* ---- sums ------------------------------------------------------------------------------------------- */

static bool is_summed(sbp_dtype dtype) {
    return dtype == SBP_F32 || dtype == SBP_F64 || dtype == SBP_BF16 || dtype == SBP_F16;
}

static void widen(float *to, const void *from, int64_t count, sbp_dtype dtype) {
    const uint16_t *bits = from;
    if (dtype == SBP_F32)
        memcpy(to, from, (size_t)count * sizeof *to);
    else if (dtype == SBP_BF16)
        for (int64_t i = 0; i < count; i++)
            to[i] = sbp_f32_from_bf16(bits[i]);
    else
        for (int64_t i = 0; i < count; i++)
            to[i] = sbp_f32_from_f16(bits[i]);
}

static void round_to(void *to, const float *from, int64_t count, sbp_dtype dtype) {
    uint16_t *bits = to;
    if (dtype == SBP_F32)
        memcpy(to, from, (size_t)count * sizeof *from);
    else if (dtype == SBP_BF16)
        for (int64_t i = 0; i < count; i++)
            bits[i] = sbp_bf16_from_f32(from[i]);
    else
        for (int64_t i = 0; i < count; i++)
            bits[i] = sbp_f16_from_f32(from[i]);
}

/* numbers [count][part]: along the tree, into the first part. */
#define ADD_TREE(name, type)                                                                                 \
    static void name(type *numbers, int32_t count, int64_t part) {                                           \
        for (int32_t step = 1; step < count; step *= 2)                                                      \
            for (int32_t p = 0; p + step < count; p += 2 * step) {                                           \
                type *restrict to = numbers + p * part;                                                      \
                const type *restrict from = numbers + (p + step) * part;                                     \
                for (int64_t i = 0; i < part; i++)                                                           \
                    to[i] += from[i];                                                                        \
            }                                                                                                \
    }
ADD_TREE(add_tree_f32, float)
ADD_TREE(add_tree_f64, double)
#undef ADD_TREE

/* What a sum goes to: this rank's share, in its type; or it is added there. */
typedef struct target {
    void *share;
    sbp_dtype dtype;
    bool adds;
} target;

/* What arrived, beside this rank's own at `mine`: `part` numbers of each rank, to their sum in the share. */
static void add_up(sbp_ranks *r, const target *to, int64_t from, const void *mine, int64_t part,
                   sbp_dtype dtype) {
    void *out = at(to->share, from, to->dtype);
    bool wide = dtype == SBP_F64;
    for (int32_t p = 0; p < r->world.count; p++) {
        const void *numbers = p == r->world.rank ? mine : at(r->arrived, p * part, dtype);
        if (wide)
            memcpy(r->sums + p * part, numbers, (size_t)part * sizeof *r->sums);
        else
            widen((float *)r->sums + p * part, numbers, part, dtype);
    }
    if (wide)
        add_tree_f64(r->sums, r->world.count, part);
    else
        add_tree_f32((float *)r->sums, r->world.count, part);
    const float *sums = (const float *)r->sums;
    if (to->adds)
        for (int64_t i = 0; i < part; i++)
            sbp_element_set(out, to->dtype, i,
                            wide ? sbp_element_get(out, to->dtype, i) + r->sums[i]
                                 : (double)((float)sbp_element_get(out, to->dtype, i) + sums[i]));
    else if (wide)
        memcpy(out, r->sums, (size_t)part * sizeof *r->sums);
    else
        round_to(out, sums, part, dtype);
}

/* The share may be where data have it. */
static sbp_status reduce(sbp_ranks *r, const target *to, void *data, int64_t elems, sbp_dtype dtype,
                         const char *what, sbp_diag *diag) {
    int64_t most = part_elems(r, sbp_dtype_bytes(dtype) > 4 ? 8 : 4), largest = share_elems(r, elems, 0);
    int32_t me = r->world.rank;
    if (!is_summed(dtype))
        return sbp_fail(diag, SBP_INTERNAL, "no sum of %s over ranks", sbp_dtype_name(dtype));
    for (int64_t from = 0; from < largest; from += most) {
        int32_t sends = 0, receives = 0;
        int64_t mine = slice_of(r, elems, me, from, most);
        for (int32_t p = 0; p < r->world.count; p++) {
            add_piece(r, r->send, &sends, p, at(data, sbp_ranks_share(r, elems, p) + from, dtype),
                      slice_of(r, elems, p, from, most) * sbp_dtype_bytes(dtype));
            add_piece(r, r->receive, &receives, p, at(r->arrived, p * mine, dtype),
                      mine * sbp_dtype_bytes(dtype));
        }
        SBP_TRY(exchange(r, sends, receives, what, diag));
        add_up(r, to, from, at(data, sbp_ranks_share(r, elems, me) + from, dtype), mine, dtype);
    }
    return SBP_OK;
}

/* ---- collectives ------------------------------------------------------------------------------------ */

static size_t share_bytes(const sbp_ranks *r, int64_t elems, sbp_dtype dtype) {
    return (size_t)(share_elems(r, elems, r->world.rank) * sbp_dtype_bytes(dtype));
}

sbp_status sbp_ranks_reduce_scatter(sbp_ranks *r, void *share, void *data, int64_t elems, sbp_dtype dtype,
                                    sbp_diag *diag) {
    if (r->transport)
        return reduce(r, &(target){share, dtype, false}, data, elems, dtype, "reduce_scatter", diag);
    memmove(share, data, share_bytes(r, elems, dtype));
    return SBP_OK;
}

sbp_status sbp_ranks_reduce_add(sbp_ranks *r, void *share, sbp_dtype share_dtype, void *data, int64_t elems,
                                sbp_dtype dtype, sbp_diag *diag) {
    const target to = {share, share_dtype, true};
    if (r->transport)
        return reduce(r, &to, data, elems, dtype, "reduce_add", diag);
    for (int64_t i = 0; i < elems; i++)
        sbp_element_set(share, share_dtype, i,
                        sbp_element_get(share, share_dtype, i) + sbp_element_get(data, dtype, i));
    return SBP_OK;
}

sbp_status sbp_ranks_all_reduce(sbp_ranks *r, void *data, int64_t elems, sbp_dtype dtype, sbp_diag *diag) {
    if (!r->transport)
        return SBP_OK;
    void *share = at(data, sbp_ranks_share(r, elems, r->world.rank), dtype);
    SBP_TRY(reduce(r, &(target){share, dtype, false}, data, elems, dtype, "all_reduce", diag));
    return gather(r, data, elems, dtype, "all_reduce", diag);
}

sbp_status sbp_ranks_all_gather(sbp_ranks *r, void *data, const void *share, int64_t elems, sbp_dtype dtype,
                                sbp_diag *diag) {
    memmove(at(data, sbp_ranks_share(r, elems, r->world.rank), dtype), share, share_bytes(r, elems, dtype));
    return r->transport ? gather(r, data, elems, dtype, "all_gather", diag) : SBP_OK;
}

sbp_status sbp_ranks_broadcast(sbp_ranks *r, void *data, int64_t elems, sbp_dtype dtype, int32_t root,
                               sbp_diag *diag) {
    if (!r->transport)
        return SBP_OK;
    SBP_TRY(scatter(r, data, elems, dtype, root, diag));
    return gather(r, data, elems, dtype, "broadcast", diag);
}
