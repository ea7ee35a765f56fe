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
        return sbp_fail(diag, SBP_MACHINE, "out of memory");
    *r = (sbp_ranks){.transport = parent->transport,
                     .world = parent->world,
                     .why = parent->why,
                     .timeout = parent->timeout,
                     .native = parent->native,
                     .parent = parent,
                     .channel = 1};
    r->world.node = 1; /* its exchanges are around attention, and few */
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

/* ---- teams ------------------------------------------------------------------------------------------ */

static sbp_team everybody(const sbp_ranks *r) {
    return sbp_team_of_all(r->world.rank, r->world.count, r->world.node);
}

static sbp_team own_group(const sbp_ranks *r) {
    return sbp_team_of_neighbours(r->world.rank, r->group, r->world.node);
}

/* Those with the same share. */
static sbp_team other_groups(const sbp_ranks *r) {
    return sbp_team_across(r->world.rank, r->world.count, r->group, r->world.node);
}

sbp_status sbp_ranks_divide(sbp_ranks *r, int32_t group, sbp_diag *diag) {
    if (group < 1 || r->world.count % group != 0)
        return sbp_fail(diag, SBP_INPUT, "%d ranks cannot be divided into groups of %d", (int)r->world.count,
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

/* Of a rank of all. */
static int32_t host_of(const sbp_ranks *r, int32_t rank) {
    return rank / (r->parent ? r->parent : r)->world.node;
}

sbp_status sbp_ranks_exchange(sbp_ranks *r, int32_t sends, int32_t receives, const char *what,
                              sbp_diag *diag) {
    char error[512] = "";
    int32_t late = -1, rank = r->first + r->world.rank;
    r->exchanges++;
    if (r->failed)
        return sbp_fail(diag, SBP_MACHINE, "rank %d: %s after the world failed", (int)rank, what);
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

static char *at(void *data, int64_t elem, sbp_dtype dtype) {
    return (char *)data + elem * sbp_dtype_bytes(dtype);
}

/* Of what a team has shares of: elements [from, from + most) of each share. */
typedef struct slices {
    void *data; /* [elems] */
    int64_t elems, from, most;
    sbp_dtype dtype;
} slices;

static int64_t slice_elems(const sbp_team *t, const slices *s, int32_t member) {
    return sbp_team_slice(t, s->elems, member, s->from, s->most);
}

static char *slice_at(const sbp_team *t, const slices *s, int32_t member) {
    return at(s->data, sbp_team_begin(t, s->elems, member) + s->from, s->dtype);
}

/* To a list of pieces: a member's slice, to or from one of the team. */
static void add_slice(const sbp_ranks *r, sbp_transport_piece *list, int32_t *count, const sbp_team *t,
                      int32_t with, const slices *s, int32_t member) {
    sbp_ranks_add_piece(r, list, count, sbp_team_rank(t, with), slice_at(t, s, member),
                        slice_elems(t, s, member) * sbp_dtype_bytes(s->dtype));
}

/* Its own slice from each that has this rank's place among its neighbours; then all that these have, and all
 * that its neighbours got so, are exchanged among neighbours. */
static sbp_status gather_slices(sbp_ranks *r, const sbp_team *t, const slices *s, const char *what,
                                sbp_diag *diag) {
    int32_t sends = 0, receives = 0, blocks = sbp_team_blocks(t), place = sbp_team_place(t);
    for (int32_t b = 0; b < blocks; b++) {
        add_slice(r, r->send, &sends, t, b * t->near + place, s, t->me);
        add_slice(r, r->receive, &receives, t, b * t->near + place, s, b * t->near + place);
    }
    if (blocks > 1)
        SBP_TRY(sbp_ranks_exchange(r, sends, receives, what, diag));
    sends = receives = 0;
    for (int32_t p = 0; p < t->near; p++)
        for (int32_t b = 0; b < blocks; b++) {
            int32_t neighbour = sbp_team_block(t) * t->near + p;
            add_slice(r, r->send, &sends, t, neighbour, s, b * t->near + place);
            add_slice(r, r->receive, &receives, t, neighbour, s, b * t->near + p);
        }
    return sbp_ranks_exchange(r, sends, receives, what, diag);
}

/* Its own share from each of a team to all of it. */
static sbp_status gather(sbp_ranks *r, const sbp_team *t, void *data, int64_t elems, sbp_dtype dtype,
                         const char *what, sbp_diag *diag) {
    slices s = {data, elems, 0, PIECE_BYTES / sbp_dtype_bytes(dtype), dtype};
    for (; s.from < sbp_team_share(t, elems, 0); s.from += s.most)
        SBP_TRY(gather_slices(r, t, &s, what, diag));
    return SBP_OK;
}

/* Its share to each of a team, from member `root`. */
static sbp_status scatter(sbp_ranks *r, const sbp_team *t, void *data, int64_t elems, sbp_dtype dtype,
                          int32_t root, sbp_diag *diag) {
    slices s = {data, elems, 0, PIECE_BYTES / sbp_dtype_bytes(dtype), dtype};
    for (; s.from < sbp_team_share(t, elems, 0); s.from += s.most) {
        int32_t sends = 0, receives = 0;
        for (int32_t m = 0; t->me == root && m < t->count; m++)
            add_slice(r, r->send, &sends, t, m, &s, m);
        add_slice(r, r->receive, &receives, t, root, &s, t->me);
        SBP_TRY(sbp_ranks_exchange(r, sends, receives, "broadcast", diag));
    }
    return SBP_OK;
}

/* ---- sums ------------------------------------------------------------------------------------------- */

static bool is_summed(sbp_dtype dtype) {
    return dtype == SBP_F32 || dtype == SBP_F64 || dtype == SBP_BF16 || dtype == SBP_F16;
}

/* In which it is added. */
static sbp_dtype wide_of(sbp_dtype dtype) {
    return dtype == SBP_F64 ? SBP_F64 : SBP_F32;
}

/* To where it is added; numbers that are as wide may be there. */
static void widen(void *to, const void *from, int64_t count, sbp_dtype dtype) {
    const uint16_t *bits = from;
    float *wide = to;
    if (to == from)
        return;
    if (dtype == wide_of(dtype))
        memcpy(to, from, (size_t)(count * sbp_dtype_bytes(dtype)));
    else if (dtype == SBP_BF16)
        for (int64_t i = 0; i < count; i++)
            wide[i] = sbp_f32_from_bf16(bits[i]);
    else
        for (int64_t i = 0; i < count; i++)
            wide[i] = sbp_f32_from_f16(bits[i]);
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

/* numbers [count][stride], of which `part` each are added along the tree, into the first. */
#define ADD_TREE(name, type)                                                                                 \
    static void name(type *numbers, int32_t count, int64_t stride, int64_t part) {                           \
        for (int32_t step = 1; step < count; step *= 2)                                                      \
            for (int32_t p = 0; p + step < count; p += 2 * step) {                                           \
                type *restrict to = numbers + p * stride;                                                    \
                const type *restrict from = numbers + (p + step) * stride;                                   \
                for (int64_t i = 0; i < part; i++)                                                           \
                    to[i] += from[i];                                                                        \
            }                                                                                                \
    }
ADD_TREE(add_tree_f32, float)
ADD_TREE(add_tree_f64, double)
#undef ADD_TREE

static void add_tree(void *numbers, int32_t count, int64_t stride, int64_t part, sbp_dtype wide) {
    if (wide == SBP_F64)
        add_tree_f64(numbers, count, stride, part);
    else
        add_tree_f32(numbers, count, stride, part);
}

/* What a sum goes to: this rank's share, in its type; or it is added there. */
typedef struct target {
    void *share;
    sbp_dtype dtype;
    bool adds;
} target;

/* `part` sums to their place in the share. */
static void deliver(const target *to, int64_t from, int64_t part, const void *sums, sbp_dtype wide) {
    void *out = at(to->share, from, to->dtype);
    const float *narrow = sums;
    const double *doubles = sums;
    if (to->adds && to->dtype == SBP_F32 && wide == SBP_F32)
        for (int64_t i = 0; i < part; i++)
            ((float *)out)[i] += narrow[i];
    else if (to->adds)
        for (int64_t i = 0; i < part; i++)
            sbp_element_set(out, to->dtype, i,
                            wide == SBP_F64
                                ? sbp_element_get(out, to->dtype, i) + doubles[i]
                                : (double)((float)sbp_element_get(out, to->dtype, i) + narrow[i]));
    else if (wide == SBP_F64)
        memcpy(out, sums, (size_t)part * sizeof *doubles);
    else
        round_to(out, narrow, part, to->dtype);
}

/* Of each member that has this rank's place among its neighbours, the sum of these neighbours' slices for it:
 * [blocks][stride] numbers, in *out. They arrive in r->arrived; what is not as wide as it is added goes on to
 * r->sums. */
static sbp_status sum_neighbours(sbp_ranks *r, const sbp_team *t, const slices *s, int64_t stride,
                                 const char *what, sbp_diag *diag, void **out) {
    int32_t sends = 0, receives = 0, blocks = sbp_team_blocks(t), place = sbp_team_place(t);
    const sbp_dtype wide = wide_of(s->dtype);
    char *numbers = s->dtype == wide ? r->arrived : (char *)r->sums;
    for (int32_t p = 0; p < t->near; p++)
        for (int32_t b = 0; b < blocks; b++) {
            int32_t neighbour = sbp_team_block(t) * t->near + p;
            add_slice(r, r->send, &sends, t, neighbour, s, b * t->near + p);
            sbp_ranks_add_piece(r, r->receive, &receives, sbp_team_rank(t, neighbour),
                                at(r->arrived, (p * blocks + b) * stride, s->dtype),
                                slice_elems(t, s, b * t->near + place) * sbp_dtype_bytes(s->dtype));
        }
    SBP_TRY(sbp_ranks_exchange(r, sends, receives, what, diag));
    for (int32_t b = 0; b < blocks; b++) {
        int64_t part = slice_elems(t, s, b * t->near + place);
        for (int32_t p = 0; p < t->near; p++) {
            int64_t i = (p * blocks + b) * stride;
            widen(at(numbers, i, wide),
                  p == place ? slice_at(t, s, b * t->near + place) : at(r->arrived, i, s->dtype), part,
                  s->dtype);
        }
        add_tree(at(numbers, b * stride, wide), t->near, blocks * stride, part, wide);
    }
    *out = numbers;
    return SBP_OK;
}

/* The sum of this rank's slice over a team, unrounded, in *out: in r->arrived or r->sums, which have room for
 * `count` slices each. What is as wide as it is added leaves r->sums alone, where it may be. */
static sbp_status sum_slices(sbp_ranks *r, const sbp_team *t, const slices *s, const char *what,
                             sbp_diag *diag, void **out) {
    int32_t sends = 0, receives = 0, blocks = sbp_team_blocks(t), block = sbp_team_block(t);
    const sbp_dtype wide = wide_of(s->dtype);
    int64_t stride = slice_elems(t, s, 0), mine = slice_elems(t, s, t->me), unit = sbp_dtype_bytes(wide);
    void *numbers;
    SBP_TRY(sum_neighbours(r, t, s, stride, what, diag, &numbers));
    *out = numbers;
    if (blocks == 1)
        return SBP_OK;
    void *sums = *out = at(numbers, blocks * stride, wide); /* behind those of the first neighbour */
    for (int32_t b = 0; b < blocks; b++) {
        int32_t other = b * t->near + sbp_team_place(t);
        sbp_ranks_add_piece(r, r->send, &sends, sbp_team_rank(t, other), at(numbers, b * stride, wide),
                            slice_elems(t, s, other) * unit);
        sbp_ranks_add_piece(r, r->receive, &receives, sbp_team_rank(t, other), at(sums, b * mine, wide),
                            mine * unit);
    }
    SBP_TRY(sbp_ranks_exchange(r, sends, receives, what, diag));
    memcpy(at(sums, block * mine, wide), at(numbers, block * stride, wide), (size_t)(mine * unit));
    add_tree(sums, blocks, mine, mine, wide);
    return SBP_OK;
}

/* `elems` sums of this group, in r->sums from `from` on, to those of all groups: each group adds up a part.
 */
static sbp_status sum_parts(sbp_ranks *r, const sbp_team *t, int64_t from, int64_t elems, sbp_dtype wide,
                            const char *what, sbp_diag *diag) {
    const slices s = {at(r->sums, from, wide), elems, 0, elems, wide};
    void *sums;
    if (elems == 0)
        return SBP_OK;
    SBP_TRY(sum_slices(r, t, &s, what, diag, &sums));
    memcpy(slice_at(t, &s, t->me), sums, (size_t)(slice_elems(t, &s, t->me) * sbp_dtype_bytes(wide)));
    return gather_slices(r, t, &s, what, diag);
}

/* The sums of a slice of the share, of this group, to those of all groups. The slice is no larger than all
 * that a group exchanges at once. What is no whole parts goes by itself, so that each sends as many bytes
 * however the share is cut. */
static sbp_status sum_groups(sbp_ranks *r, int64_t slice, sbp_dtype wide, const char *what, sbp_diag *diag) {
    const sbp_team t = other_groups(r);
    int64_t rest = slice % t.count;
    if (t.count == 1)
        return SBP_OK;
    SBP_TRY(sum_parts(r, &t, 0, slice - rest, wide, what, diag));
    return sum_parts(r, &t, slice - rest, rest, wide, what, diag);
}

/* To this rank's share among a team, which may be where data have it. Of a group, the sum goes across groups
 * before it goes to the share. */
static sbp_status reduce(sbp_ranks *r, const sbp_team *t, const target *to, void *data, int64_t elems,
                         sbp_dtype dtype, bool across, const char *what, sbp_diag *diag) {
    slices s = {data, elems, 0, part_elems(r, sbp_dtype_bytes(dtype) > 4 ? 8 : 4), dtype};
    const int32_t groups = across ? other_groups(r).count : 1;
    const sbp_dtype wide = wide_of(dtype);
    if (!is_summed(dtype))
        return sbp_fail(diag, SBP_INTERNAL, "no sum of %s over ranks", sbp_dtype_name(dtype));
    /* whole parts, so that those of slices are those of the share */
    s.most = s.most > groups ? s.most - s.most % groups : groups;
    for (; s.from < sbp_team_share(t, elems, 0); s.from += s.most) {
        int64_t mine = slice_elems(t, &s, t->me);
        void *sums;
        SBP_TRY(sum_slices(r, t, &s, what, diag, &sums));
        if (groups > 1) {
            memmove(r->sums, sums, (size_t)(mine * sbp_dtype_bytes(wide)));
            SBP_TRY(sum_groups(r, mine, wide, what, diag));
            sums = r->sums;
        }
        deliver(to, s.from, mine, sums, wide);
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
