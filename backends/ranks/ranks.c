/* ranks.c: joining a world, and sums over it. */
#include "backends/ranks/ranks.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/ranks/team.h"
#include "backends/ranks/world.h"

#define PLUGIN "libsbp_mpi.so"
/* Where this is what speaks, there is no MPI: torchrun's. */
#define NATIVE_SIZE "WORLD_SIZE"
/* Of what a sum works in: numbers of all ranks as they come, and as they are added. */
#define WORKSPACE_BYTES ((int64_t)4 << 20)
/* Of one piece of what is only moved. */
#define PIECE_BYTES ((int64_t)64 << 20)

/* ---- joining ---------------------------------------------------------------------------------------- */

/* Variables by which launchers tell a process of how many it is one. */
static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", NATIVE_SIZE};

/* A step of Slurm that is no world of MPI leaves processes alone: each runs by itself. Some set what torchrun
 * sets for the hosts, not for processes: these have no LOCAL_RANK. */
static bool speaks(const char *size) {
    if (strcmp(size, NATIVE_SIZE) == 0)
        return getenv("RANK") && getenv("LOCAL_RANK") && getenv("MASTER_ADDR") && getenv("MASTER_PORT");
    return strcmp(size, "SLURM_NTASKS") != 0 || getenv("PMIX_RANK") || getenv("PMI_RANK");
}

/* 0: it does not say. */
static int32_t announced_by(const char *variable) {
    const char *value = getenv(variable);
    char *end;
    long count = value ? strtol(value, &end, 10) : 0;
    return value && !*end && count >= 1 && count <= INT32_MAX && speaks(variable) ? (int32_t)count : 0;
}

/* The first of the variables that speaks, and what it says; 0: none does. Where torchrun itself was started
 * by one of the others, on every host once, it is torchrun that counts processes. */
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
    r->arrived_bytes = numbers * (int64_t)sizeof(double);
    r->arrived = sbp_malloc((size_t)r->arrived_bytes);
    r->sums = sbp_malloc((size_t)numbers * sizeof(double));
    if (r->send && r->receive && r->requests && r->arrived && r->sums)
        return SBP_OK;
    return sbp_fail(diag, SBP_MACHINE, "out of memory");
}

static sbp_status join(sbp_ranks *r, const sbp_transport *native, int32_t expected, sbp_diag *diag) {
    char error[512] = "";
    if (!r->native)
        SBP_TRY(open_plugin(r, diag));
    else if (!native)
        return sbp_fail(
            diag, SBP_MACHINE,
            "%s, but without MPI ranks meet over NCCL, which this build has not: mpirun starts them", r->why);
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
        return sbp_fail(diag, SBP_MACHINE, "out of memory");
    *r = (sbp_ranks){.transport = parent->transport,
                     .world = parent->world,
                     .why = parent->why,
                     .timeout = parent->timeout,
                     .native = parent->native,
                     .parent = parent,
                     .channel = 1};
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
        return sbp_fail(diag, SBP_MACHINE, "out of memory");
    *r = (sbp_ranks){
        .world = {.count = 1, .local_count = 1, .name = "none"}, .why = "started alone", .timeout = timeout};
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
    free(r->arrived);
    free(r->sums);
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
                            .member = r->member,
                            .group = r->group,
                            .transport = r->world.name,
                            .why = r->why,
                            .sent_bytes = r->sent_bytes,
                            .received_bytes = r->received_bytes,
                            .timeout = r->timeout,
                            .native = r->native};
}

/* ---- teams ------------------------------------------------------------------------------------------ */

static sbp_team everybody(const sbp_ranks *r) {
    return sbp_team_of_all(r->world.rank, r->world.count);
}

static sbp_team own_group(const sbp_ranks *r) {
    return sbp_team_of_neighbours(r->world.rank, r->group);
}

/* Those with the same share. */
static sbp_team other_groups(const sbp_ranks *r) {
    return sbp_team_across(r->world.rank, r->world.count, r->group);
}

sbp_status sbp_ranks_divide(sbp_ranks *r, int32_t group, sbp_diag *diag) {
    if (group < 1 || r->world.count % group != 0)
        return sbp_fail(diag, SBP_INPUT, "%d ranks are no whole groups of %d", (int)r->world.count,
                        (int)group);
    r->group = group;
    r->member = r->world.rank % group;
    return SBP_OK;
}

int64_t sbp_ranks_share(const sbp_ranks *r, int64_t elems, int32_t member) {
    sbp_team t = own_group(r);
    return sbp_team_begin(&t, elems, member);
}

/* ---- moving ----------------------------------------------------------------------------------------- */

void sbp_ranks_add_piece(const sbp_ranks *r, sbp_transport_piece *list, int32_t *count, int32_t rank,
                         void *data, int64_t bytes) {
    if (rank != r->world.rank && bytes > 0)
        list[(*count)++] = (sbp_transport_piece){r->first + rank, bytes, data};
}

sbp_status sbp_ranks_exchange(sbp_ranks *r, int32_t sends, int32_t receives, const char *what,
                              sbp_diag *diag) {
    char error[512] = "";
    int32_t late = -1;
    r->exchanges++;
    if (r->failed)
        return sbp_fail(diag, SBP_MACHINE, "rank %d: %s after the world failed",
                        (int)(r->first + r->world.rank), what);
    if (r->transport->exchange(r->channel, r->send, sends, r->receive, receives, r->requests, r->timeout,
                               &late, error, sizeof error) != 0) {
        r->failed = true;
        if (r->parent)
            r->parent->failed = true;
        if (late >= 0)
            return sbp_fail(diag, SBP_MACHINE,
                            "rank %d: rank %d does not answer (%s, exchange %lld): %s; it hangs, is gone or "
                            "takes longer than --timeout",
                            (int)(r->first + r->world.rank), (int)late, what, (long long)r->exchanges, error);
        return sbp_fail(diag, SBP_MACHINE, "rank %d: %s, exchange %lld: %s", (int)(r->first + r->world.rank),
                        what, (long long)r->exchanges, error);
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

/* Its own share from each of a team to all of it. */
static sbp_status gather(sbp_ranks *r, const sbp_team *t, void *data, int64_t elems, sbp_dtype dtype,
                         const char *what, sbp_diag *diag) {
    int64_t most = PIECE_BYTES / sbp_dtype_bytes(dtype), largest = sbp_team_share(t, elems, 0);
    for (int64_t from = 0; from < largest; from += most) {
        int32_t sends = 0, receives = 0;
        int64_t mine = sbp_team_slice(t, elems, t->me, from, most);
        for (int32_t m = 0; m < t->count; m++) {
            int64_t theirs = sbp_team_slice(t, elems, m, from, most);
            sbp_ranks_add_piece(r, r->send, &sends, sbp_team_rank(t, m),
                                at(data, sbp_team_begin(t, elems, t->me) + from, dtype),
                                mine * sbp_dtype_bytes(dtype));
            sbp_ranks_add_piece(r, r->receive, &receives, sbp_team_rank(t, m),
                                at(data, sbp_team_begin(t, elems, m) + from, dtype),
                                theirs * sbp_dtype_bytes(dtype));
        }
        SBP_TRY(sbp_ranks_exchange(r, sends, receives, what, diag));
    }
    return SBP_OK;
}

/* Its share to each of a team, from member `root`. */
static sbp_status scatter(sbp_ranks *r, const sbp_team *t, void *data, int64_t elems, sbp_dtype dtype,
                          int32_t root, sbp_diag *diag) {
    int64_t most = PIECE_BYTES / sbp_dtype_bytes(dtype), largest = sbp_team_share(t, elems, 0);
    for (int64_t from = 0; from < largest; from += most) {
        int32_t sends = 0, receives = 0;
        for (int32_t m = 0; t->me == root && m < t->count; m++)
            sbp_ranks_add_piece(r, r->send, &sends, sbp_team_rank(t, m),
                                at(data, sbp_team_begin(t, elems, m) + from, dtype),
                                sbp_team_slice(t, elems, m, from, most) * sbp_dtype_bytes(dtype));
        sbp_ranks_add_piece(r, r->receive, &receives, sbp_team_rank(t, root),
                            at(data, sbp_team_begin(t, elems, t->me) + from, dtype),
                            sbp_team_slice(t, elems, t->me, from, most) * sbp_dtype_bytes(dtype));
        SBP_TRY(sbp_ranks_exchange(r, sends, receives, "broadcast", diag));
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

/* What arrived of a team, beside this rank's own at `mine`: `part` numbers of each, to their sum in r->sums.
 */
static void add_up(sbp_ranks *r, const sbp_team *t, const void *mine, int64_t part, sbp_dtype dtype) {
    bool wide = dtype == SBP_F64;
    for (int32_t m = 0; m < t->count; m++) {
        const void *numbers = m == t->me ? mine : at(r->arrived, m * part, dtype);
        if (wide)
            memcpy(r->sums + m * part, numbers, (size_t)part * sizeof *r->sums);
        else
            widen((float *)r->sums + m * part, numbers, part, dtype);
    }
    if (wide)
        add_tree_f64(r->sums, t->count, part);
    else
        add_tree_f32((float *)r->sums, t->count, part);
}

/* `part` sums to their place in the share. */
static void deliver(const sbp_ranks *r, const target *to, int64_t from, int64_t part, bool wide) {
    void *out = at(to->share, from, to->dtype);
    const float *sums = (const float *)r->sums;
    if (to->adds && to->dtype == SBP_F32 && !wide)
        for (int64_t i = 0; i < part; i++)
            ((float *)out)[i] += sums[i];
    else if (to->adds)
        for (int64_t i = 0; i < part; i++)
            sbp_element_set(out, to->dtype, i,
                            wide ? sbp_element_get(out, to->dtype, i) + r->sums[i]
                                 : (double)((float)sbp_element_get(out, to->dtype, i) + sums[i]));
    else if (wide)
        memcpy(out, r->sums, (size_t)part * sizeof *r->sums);
    else
        round_to(out, sums, part, to->dtype);
}

/* `part` numbers of each of a team, in r->arrived, to their sum; dtype: fp32 or fp64. */
static void add_arrived(sbp_ranks *r, const sbp_team *t, int64_t part, sbp_dtype dtype) {
    if (dtype == SBP_F64)
        add_tree_f64((double *)(void *)r->arrived, t->count, part);
    else
        add_tree_f32((float *)(void *)r->arrived, t->count, part);
}

/* The sums of a slice of the share, of this group, to those of all groups: each group adds up a part of them.
 * The slice is no larger than all that a group exchanges at once, and so fits twice. */
static sbp_status sum_groups(sbp_ranks *r, int64_t slice, sbp_dtype dtype, const char *what, sbp_diag *diag) {
    const sbp_team t = other_groups(r);
    int64_t mine = sbp_team_share(&t, slice, t.me), unit = sbp_dtype_bytes(dtype);
    int32_t sends = 0, receives = 0;
    void *own = at(r->sums, sbp_team_begin(&t, slice, t.me), dtype);
    if (t.count == 1)
        return SBP_OK;
    for (int32_t m = 0; m < t.count; m++) {
        sbp_ranks_add_piece(r, r->send, &sends, sbp_team_rank(&t, m),
                            at(r->sums, sbp_team_begin(&t, slice, m), dtype),
                            sbp_team_share(&t, slice, m) * unit);
        sbp_ranks_add_piece(r, r->receive, &receives, sbp_team_rank(&t, m), at(r->arrived, m * mine, dtype),
                            mine * unit);
    }
    SBP_TRY(sbp_ranks_exchange(r, sends, receives, what, diag));
    memcpy(at(r->arrived, t.me * mine, dtype), own, (size_t)(mine * unit));
    add_arrived(r, &t, mine, dtype);
    memcpy(own, r->arrived, (size_t)(mine * unit));
    return gather(r, &t, r->sums, slice, dtype, what, diag);
}

/* To this rank's share among a team, which may be where data have it. Of a group, the sum goes across groups
 * before it goes to the share. */
static sbp_status reduce(sbp_ranks *r, const sbp_team *t, const target *to, void *data, int64_t elems,
                         sbp_dtype dtype, bool across, const char *what, sbp_diag *diag) {
    int64_t most = part_elems(r, sbp_dtype_bytes(dtype) > 4 ? 8 : 4), largest = sbp_team_share(t, elems, 0);
    const sbp_team others = other_groups(r);
    const sbp_dtype wide = dtype == SBP_F64 ? SBP_F64 : SBP_F32;
    if (!is_summed(dtype))
        return sbp_fail(diag, SBP_INTERNAL, "no sum of %s over ranks", sbp_dtype_name(dtype));
    if (across) /* whole parts, so that those of slices are those of the share */
        most = most > others.count ? most - most % others.count : others.count;
    for (int64_t from = 0; from < largest; from += most) {
        int32_t sends = 0, receives = 0;
        int64_t mine = sbp_team_slice(t, elems, t->me, from, most);
        for (int32_t m = 0; m < t->count; m++) {
            sbp_ranks_add_piece(r, r->send, &sends, sbp_team_rank(t, m),
                                at(data, sbp_team_begin(t, elems, m) + from, dtype),
                                sbp_team_slice(t, elems, m, from, most) * sbp_dtype_bytes(dtype));
            sbp_ranks_add_piece(r, r->receive, &receives, sbp_team_rank(t, m),
                                at(r->arrived, m * mine, dtype), mine * sbp_dtype_bytes(dtype));
        }
        SBP_TRY(sbp_ranks_exchange(r, sends, receives, what, diag));
        add_up(r, t, at(data, sbp_team_begin(t, elems, t->me) + from, dtype), mine, dtype);
        if (across)
            SBP_TRY(sum_groups(r, mine, wide, what, diag));
        deliver(r, to, from, mine, dtype == SBP_F64);
    }
    return SBP_OK;
}

/* ---- collectives ------------------------------------------------------------------------------------ */

static size_t share_bytes(const sbp_team *t, int64_t elems, sbp_dtype dtype) {
    return (size_t)(sbp_team_share(t, elems, t->me) * sbp_dtype_bytes(dtype));
}

sbp_status sbp_ranks_reduce_scatter(sbp_ranks *r, void *share, void *data, int64_t elems, sbp_dtype dtype,
                                    sbp_diag *diag) {
    const sbp_team t = own_group(r);
    const target to = {share, dtype, false};
    if (r->transport)
        return reduce(r, &t, &to, data, elems, dtype, true, "reduce_scatter", diag);
    memmove(share, data, share_bytes(&t, elems, dtype));
    return SBP_OK;
}

sbp_status sbp_ranks_reduce_add(sbp_ranks *r, void *share, sbp_dtype share_dtype, void *data, int64_t elems,
                                sbp_dtype dtype, sbp_diag *diag) {
    const sbp_team t = own_group(r);
    const target to = {share, share_dtype, true};
    if (r->transport)
        return reduce(r, &t, &to, data, elems, dtype, true, "reduce_add", diag);
    for (int64_t i = 0; i < elems; i++)
        sbp_element_set(share, share_dtype, i,
                        sbp_element_get(share, share_dtype, i) + sbp_element_get(data, dtype, i));
    return SBP_OK;
}

static sbp_status all_reduce(sbp_ranks *r, const sbp_team *t, void *data, int64_t elems, sbp_dtype dtype,
                             const char *what, sbp_diag *diag) {
    const target to = {at(data, sbp_team_begin(t, elems, t->me), dtype), dtype, false};
    if (!r->transport)
        return SBP_OK;
    SBP_TRY(reduce(r, t, &to, data, elems, dtype, false, what, diag));
    return gather(r, t, data, elems, dtype, what, diag);
}

sbp_status sbp_ranks_all_reduce(sbp_ranks *r, void *data, int64_t elems, sbp_dtype dtype, sbp_diag *diag) {
    const sbp_team t = everybody(r);
    return all_reduce(r, &t, data, elems, dtype, "all_reduce", diag);
}

sbp_status sbp_ranks_group_reduce(sbp_ranks *r, void *data, int64_t elems, sbp_dtype dtype, sbp_diag *diag) {
    const sbp_team t = own_group(r);
    return all_reduce(r, &t, data, elems, dtype, "group_reduce", diag);
}

sbp_status sbp_ranks_all_gather(sbp_ranks *r, void *data, const void *share, int64_t elems, sbp_dtype dtype,
                                sbp_diag *diag) {
    const sbp_team t = own_group(r);
    memmove(at(data, sbp_team_begin(&t, elems, t.me), dtype), share, share_bytes(&t, elems, dtype));
    return r->transport ? gather(r, &t, data, elems, dtype, "all_gather", diag) : SBP_OK;
}

sbp_status sbp_ranks_broadcast(sbp_ranks *r, void *data, int64_t elems, sbp_dtype dtype, int32_t root,
                               sbp_diag *diag) {
    const sbp_team t = everybody(r);
    if (!r->transport)
        return SBP_OK;
    SBP_TRY(scatter(r, &t, data, elems, dtype, root, diag));
    return gather(r, &t, data, elems, dtype, "broadcast", diag);
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
