/* net.c: collectives of several ranks, from device to device over NCCL: queue net.
 *
 * NCCL only moves bytes: a collective is its steps (net_steps.c), the same as in backends/ranks, over every
 * network. What arrives, and what lies on the host and has to pass through the
 * device, has a workspace of a fixed size. Everything is in the order of one stream, and nothing here waits
 * for the device; a mark before and one behind each collective tell whether it waits for others. */
#include "backends/cuda/device/net.h"
#include "backends/cuda/device/transport.h"
#include "backends/ranks/ranks.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LONGEST_POLL_SECONDS 0.5

enum { FACTS = 3 /* numbers in one */ };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- looking after it ------------------------------------------------------------------------------- */

/* Ends what is under way in all communicators, the world's first: others may be on their way from it. */
static void abort_all(cuda_net *w) {
    if (w->nccl)
        cuda_nccl_abort(w->nccl);
    for (int32_t i = 0; i < CUDA_SPLITS; i++)
        if (w->splits[i].comm)
            cuda_nccl_abort(&w->splits[i]);
}

/* Here, and for everybody who waits for this rank. */
static void give_up(cuda_device *d) {
    abort_all(d->net_state);
    sbp_ranks_fail(d->ranks);
    d->broken = CUDA_UNKNOWN;
}

static sbp_status watch(cuda_device *d, sbp_diag *diag) {
    cuda_net *w = d->net_state;
    double time = now(), passed = time - w->looked;
    sbp_status status = cuda_nccl_check(w->nccl, diag);
    for (int32_t i = 0; i < CUDA_SPLITS && status == SBP_OK; i++)
        if (w->splits[i].comm)
            status = cuda_nccl_check(&w->splits[i], diag);
    if (status != SBP_OK) {
        give_up(d);
        return status;
    }
    w->looked = time;
    for (; w->done < w->submitted; w->done++) {
        cuda_result result = d->api.calls.cuEventQuery(w->marks[w->done % CUDA_NET_MARKS].end);
        if (result == CUDA_NOT_READY)
            break;
        if (result != CUDA_OK)
            return cuda_fail(d, result, "cuEventQuery", diag);
        w->waited = 0;
    }
    const cuda_mark *first = &w->marks[w->done % CUDA_NET_MARKS];
    if (w->done == w->submitted || d->api.calls.cuEventQuery(first->begin) != CUDA_OK) {
        w->waited = 0; /* it waits for this rank's own work */
        return SBP_OK;
    }
    w->waited += passed < LONGEST_POLL_SECONDS ? passed : LONGEST_POLL_SECONDS;
    if (w->timeout <= 0 || w->waited <= w->timeout)
        return SBP_OK;
    give_up(d);
    return sbp_fail(
        diag, SBP_MACHINE,
        "rank %d: %s, collective %lld, over NCCL: other ranks did not come for %.0f s; one hangs, "
        "is gone or takes longer than --timeout",
        (int)w->rank, first->name, (long long)w->done + 1, w->timeout);
}

/* ---- rendezvous ------------------------------------------------------------------------------------- */

/* What each rank tells the others: its version of NCCL, 0 where it has none; a number for its device; 1 if
 * several communicators may be used in several streams (cuda_nccl_order). */
typedef struct fact {
    double version, device, ordered;
} fact;

/* The library, or why there is none in `why`. */
static bool open_nccl(cuda_device *d, cuda_net *w, sbp_diag *why) {
    const char *request = getenv("SBP_CUDA_NCCL");
    if (request && strcmp(request, "off") == 0) {
        (void)sbp_fail(why, SBP_MACHINE, "SBP_CUDA_NCCL=off");
        return false;
    }
    w->nccl = cuda_transport_nccl(d->index);
    if (w->nccl)
        return true;
    if (cuda_transport_device() >= 0) {
        (void)sbp_fail(why, SBP_MACHINE,
                       "ranks use other devices than --device says: this one uses device %d (without "
                       "--device, CUDA_VISIBLE_DEVICES says which there are)",
                       (int)cuda_transport_device());
        return false;
    }
    w->nccl = &w->own;
    if (cuda_nccl_open(&w->own, why) != SBP_OK)
        return false;
    if (w->context.count > 1) /* else queue net has the only stream, which is in order */
        cuda_nccl_order(&w->own);
    return true;
}

static sbp_status device_number(cuda_device *d, double *out, sbp_diag *diag) {
    unsigned char uuid[16];
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    CUDA_TRY(d, diag, cuDeviceGetUuid(uuid, d->physical.handle));
    for (size_t i = 0; i < sizeof uuid; i++)
        hash = (hash ^ uuid[i]) * UINT64_C(0x100000001b3);
    *out = (double)(hash >> 11); /* exact */
    return SBP_OK;
}

/* Facts of all ranks; to be freed. */
static sbp_status share_facts(cuda_device *d, const cuda_net *w, const fact *own, sbp_diag *diag,
                              fact **out) {
    fact *all = sbp_malloc((size_t)w->count * sizeof *all);
    *out = all;
    if (!all)
        return sbp_fail(diag, SBP_MACHINE, "out of memory for the communicators of NCCL");
    memset(all, 0, (size_t)w->count * sizeof *all);
    all[w->rank] = *own;
    return sbp_ranks_all_reduce(d->ranks, all, FACTS * (int64_t)w->count, SBP_F64, diag);
}

/* Whether several ranks may use one device. */
static bool may_share(double version) {
    const char *value = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    return version >= NCCL_SHARED_DEVICES && value && strcmp(value, "1") == 0;
}

/* Whether NCCL can do it, for all or for none; a warning says why not. */
static bool all_can(const cuda_net *w, const fact *facts, sbp_diag *why, sbp_diag *diag) {
    static const char *const slow =
        "cuda: what ranks send each other passes through the host, which is right but slow:";
    for (int32_t r = 0; r < w->count; r++) {
        if (facts[r].version == 0 && r == w->rank) {
            const char *text = sbp_diag_text(why, SBP_ERROR);
            size_t skip = strncmp(text, "error: ", 7) == 0 ? 7 : 0;
            sbp_warn(diag, "%s %.*s", slow, (int)strcspn(text + skip, "\n"), text + skip);
        } else if (facts[r].version == 0) {
            sbp_warn(diag, "%s rank %d has no NCCL", slow, (int)r);
        } else if (facts[r].version != facts[0].version) {
            sbp_warn(diag, "%s ranks 0 and %d have different versions of NCCL", slow, (int)r);
        }
        if (facts[r].version == 0 || facts[r].version != facts[0].version)
            return false;
        for (int32_t k = 0; k < r; k++)
            if (facts[k].device == facts[r].device && !may_share(facts[r].version)) {
                sbp_warn(diag,
                         "%s ranks %d and %d have one device, and NCCL wants one for each (from 2.30 on "
                         "NCCL_MULTI_RANK_GPU_ENABLE=1 lets them share)",
                         slow, (int)k, (int)r);
                return false;
            }
    }
    return true;
}

/* Tests want little, so that it takes many slices. */
static int64_t wanted_bytes(void) {
    const char *text = getenv("SBP_TEST_NET_BYTES");
    int64_t bytes = text ? strtoll(text, NULL, 10) : 0;
    return bytes > 0 ? bytes : SBP_CUDA_NET_BYTES;
}

static sbp_status create_resources(cuda_device *d, cuda_net *w, sbp_diag *diag) {
    w->memory_bytes = wanted_bytes();
    SBP_TRY(cuda_memory_alloc(d, w->memory_bytes, "what ranks send each other", &w->memory, diag));
    for (int32_t i = 0; i < CUDA_NET_MARKS; i++) {
        CUDA_TRY(d, diag, cuEventCreate(&w->marks[i].begin, CUDA_EVENT_DISABLE_TIMING));
        CUDA_TRY(d, diag, cuEventCreate(&w->marks[i].end, CUDA_EVENT_DISABLE_TIMING));
    }
    return cuda_stream_create(d, CUDA_NET, diag);
}

/* Rank 0 tells the others where they meet; a byte of it says whether it could. */
static sbp_status join_world(cuda_device *d, cuda_net *w, sbp_diag *diag) {
    struct {
        nccl_id id;
        char good;
    } told = {.good = 0};
    sbp_status status = SBP_OK;
    if (w->rank == 0) {
        status = cuda_nccl_new_id(w->nccl, &told.id, diag);
        told.good = status == SBP_OK;
    }
    SBP_TRY(sbp_ranks_broadcast(d->ranks, &told, sizeof told, SBP_I8, 0, diag));
    if (status != SBP_OK || !told.good)
        return status; /* they agree on it */
    return cuda_nccl_join(w->nccl, &told.id, w->rank, w->count, w->timeout, diag);
}

/* Ranks that have documents together exchange heads in the stream of compute, in a communicator of their own:
 * in that of the world each would wait for all that queue net was asked for before. Few blocks, so that
 * kernels of both find room. */
static sbp_status split_context(cuda_device *d, cuda_net *w, bool ordered, sbp_diag *diag) {
    int32_t blocks = d->physical.processors / 4;
    if (w->context.count == 1)
        return SBP_OK;
    if (!ordered) {
        sbp_note(diag, "cuda: all-to-alls queue behind earlier collectives: for a communicator of their own "
                       "NCCL 2.26 is needed, and not NCCL_LAUNCH_ORDER_IMPLICIT=0");
        return SBP_OK;
    }
    return cuda_nccl_split(w->nccl, w->context.first, w->context.me,
                           blocks < 1    ? 1
                           : blocks > 32 ? 32
                                         : blocks,
                           w->timeout, diag, &w->splits[CUDA_OF_CONTEXT]);
}

static sbp_status split(cuda_net *w, const sbp_process_group *pg, int32_t of, int32_t color, sbp_diag *diag) {
    if (pg->count == 1 || pg->count == w->count)
        return SBP_OK;
    return cuda_nccl_split(w->nccl, color, pg->me, 0, w->timeout, diag, &w->splits[of]);
}

/* What NCCL needs to add up among a part of the ranks: in queue net's stream, where it may be beside the
 * world's communicator, but not beside what is in another stream, of a transport or of compute. */
static sbp_status split_groups(cuda_device *d, cuda_net *w, bool ordered, sbp_diag *diag) {
    if (!d->native_sums || w->group.count == w->count)
        return SBP_OK;
    if (!ordered && (w->nccl != &w->own || w->context.count > 1)) {
        sbp_note(diag,
                 "cuda: --deterministic off: process groups sum by exchanges, as with on: for a communicator "
                 "of their own beside others NCCL 2.26 is needed, and not NCCL_LAUNCH_ORDER_IMPLICIT=0");
        return SBP_OK;
    }
    SBP_TRY(split(w, &w->group, CUDA_OF_GROUP, w->group.first, diag));
    return split(w, &w->others, CUDA_OF_OTHERS, w->others.first, diag);
}

/* The same on all ranks. */
static sbp_status split_world(cuda_device *d, cuda_net *w, const fact *facts, sbp_diag *diag) {
    bool ordered = true;
    for (int32_t r = 0; r < w->count; r++)
        ordered &= facts[r].ordered > 0;
    SBP_TRY(split_context(d, w, ordered, diag));
    return split_groups(d, w, ordered, diag);
}

/* With facts of all: what fails here alone, the caller's ranks agree on. */
static sbp_status begin(cuda_device *d, cuda_net *w, const fact *facts, bool *own, sbp_diag *diag) {
    char text[24];
    sbp_status status = create_resources(d, w, diag);
    double failed = status != SBP_OK;
    SBP_TRY(sbp_ranks_all_reduce(d->ranks, &failed, 1, SBP_F64, diag));
    if (failed > 0)
        return status;
    if (w->nccl == &w->own)
        SBP_TRY(join_world(d, w, diag));
    if (!w->nccl->comm)
        return SBP_OK;
    SBP_TRY(split_world(d, w, facts, diag));
    *own = true;
    d->watch = watch;
    cuda_nccl_version_text(w->nccl->version, text);
    sbp_note(diag, "cuda: ranks send each other from device to device, over NCCL %s (%s)", text,
             w->nccl->library.path);
    return SBP_OK;
}

static sbp_status rendezvous(cuda_device *d, cuda_net *w, sbp_diag *why, bool *own, sbp_diag *diag) {
    fact mine = {0}, *all = NULL;
    sbp_status here = cuda_enter(d, diag); /* what fails here alone must not keep the others waiting */
    if (here == SBP_OK)
        here = device_number(d, &mine.device, diag);
    mine.version = here == SBP_OK && open_nccl(d, w, why) ? w->nccl->version : 0;
    mine.ordered = mine.version > 0 && w->nccl->ordered;
    sbp_status status = share_facts(d, w, &mine, diag, &all);
    if (here == SBP_OK && status == SBP_OK && all_can(w, all, why, diag))
        status = begin(d, w, all, own, diag);
    if (here != SBP_OK)
        status = here;
    free(all);
    return status;
}

sbp_status cuda_net_rendezvous(cuda_device *d, bool *own, sbp_diag *diag) {
    sbp_ranks_info info;
    int32_t context = d->program ? (int32_t)d->program->context : 1;
    *own = false;
    sbp_ranks_info_of(d->ranks, &info);
    if (info.count < 2)
        return SBP_OK;
    cuda_net *w = sbp_malloc(sizeof *w);
    sbp_diag *why = sbp_diag_create();
    if (w)
        *w = (cuda_net){.rank = info.rank,
                        .count = info.count,
                        .node = info.node,
                        .everybody = sbp_pg_of_all(info.rank, info.count, info.node),
                        .group = sbp_pg_of_neighbours(info.rank, info.group, info.node),
                        .others = sbp_pg_across(info.rank, info.count, info.group, info.node),
                        .context = sbp_pg_of_neighbours(info.rank, context, 1),
                        .timeout = info.timeout,
                        .looked = now()};
    d->net_state = w;
    sbp_status status = w && why ? rendezvous(d, w, why, own, diag)
                                 : sbp_fail(diag, SBP_MACHINE, "out of memory for the communicators of NCCL");
    sbp_diag_destroy(why);
    if (!*own)
        cuda_net_leave(d);
    return status;
}

void cuda_net_leave(cuda_device *d) {
    cuda_net *w = d->net_state;
    const cuda_calls *calls = &d->api.calls;
    if (!w)
        return;
    (void)calls->cuCtxSetCurrent(d->context);
    bool failed = d->broken != CUDA_OK || sbp_ranks_has_failed(d->ranks);
    for (int32_t s = 0; s < CUDA_STREAMS && !failed; s++)
        if (d->streams[s])
            failed = cuda_synchronize(d, d->streams[s], NULL) != SBP_OK;
    if (failed)
        abort_all(w);
    for (int32_t i = 0; i < CUDA_SPLITS; i++)
        cuda_nccl_leave(&w->splits[i], w->timeout);
    if (w->nccl == &w->own) {
        cuda_nccl_leave(&w->own, w->timeout);
        cuda_nccl_close(&w->own);
    }
    d->net_state = NULL;
    d->watch = NULL; /* from here on streams end by themselves */
    if (d->streams[CUDA_NET])
        (void)calls->cuStreamSynchronize(d->streams[CUDA_NET]);
    for (int32_t i = 0; i < CUDA_NET_MARKS; i++) {
        if (w->marks[i].begin)
            (void)calls->cuEventDestroy(w->marks[i].begin);
        if (w->marks[i].end)
            (void)calls->cuEventDestroy(w->marks[i].end);
    }
    if (w->memory)
        (void)calls->cuMemFree(w->memory);
    free(w);
}

int64_t cuda_net_sent_bytes(const cuda_device *d, int64_t *away) {
    *away = d->net_state ? d->net_state->away_bytes : 0;
    return d->net_state ? d->net_state->sent_bytes : 0;
}

/* ---- collectives ------------------------------------------------------------------------------------ */

static int64_t elems_of(const sbp_span *span) {
    return span->rows * span->cols;
}

static const sbp_process_group *pg_of(const cuda_task *t) {
    switch (sbp_collectives[t->call.op].among) {
    case SBP_AMONG_WORLD:
        return &t->w->everybody;
    case SBP_AMONG_CONTEXT:
        return &t->w->context;
    default:
        return &t->w->group;
    }
}

/* ncclAllGather does it among all of a communicator, of equal shares on the device. */
static bool gathers_itself(const cuda_task *t, const sbp_process_group *pg) {
    return t->to->space == SBP_DEVICE && pg->count == t->ranks && elems_of(t->to) > 0 &&
           elems_of(t->to) % pg->count == 0;
}

/* Stands for the rounds of a gather. This member's share is in its place. */
static sbp_status gather_itself(const cuda_task *t, const sbp_process_group *pg) {
    cuda_address data = cuda_place_address(t, cuda_place_of(t->to, 0));
    int64_t each = elems_of(t->to) / pg->count * sbp_dtype_bytes(t->to->dtype);
    cuda_net_count(t, SBP_PHASE_GATHER);
    NCCL_TRY(t->nccl, t->diag,
             ncclAllGather(data + (uint64_t)(pg->me * each), data, (size_t)each, NCCL_BYTES, t->nccl->comm,
                           t->stream));
    return cuda_net_settle(t);
}

/* Stands for the rounds of a scatter and of a gather. From rank 0, where it is in its place. */
static sbp_status broadcast(const cuda_task *t) {
    int64_t bytes = elems_of(t->to) * sbp_dtype_bytes(t->to->dtype);
    const cuda_place to = cuda_place_of(t->to, 0);
    bool host = to.space == SBP_HOST;
    cuda_net_count(t, SBP_PHASE_SCATTER);
    cuda_net_count(t, SBP_PHASE_GATHER);
    for (int64_t at = 0, part; at < bytes; at += part) {
        cuda_address data = host ? t->work : cuda_place_address(t, to);
        part = host && bytes - at > t->work_bytes ? t->work_bytes : bytes - at;
        if (host && t->w->rank == 0)
            SBP_TRY(cuda_net_bring(t, data, cuda_place_later(to, at), part));
        NCCL_TRY(t->nccl, t->diag,
                 ncclBroadcast(data, data, (size_t)part, NCCL_BYTES, 0, t->nccl->comm, t->stream));
        SBP_TRY(cuda_net_settle(t));
        if (host && t->w->rank != 0)
            SBP_TRY(cuda_net_take(t, cuda_place_later(to, at), data, part));
    }
    return SBP_OK;
}

/* Its steps, or the call of NCCL that stands for them. */
static sbp_status run_phase(const cuda_task *t, sbp_phase phase) {
    const sbp_process_group *pg = pg_of(t);
    if (phase == SBP_PHASE_SUM && cuda_net_is_native(t, pg))
        return cuda_net_native_sum(t, pg);
    if (phase == SBP_PHASE_SCATTER)
        return broadcast(t);
    if (phase == SBP_PHASE_GATHER && sbp_collectives[t->call.op].kind == SBP_KIND_BROADCAST)
        return SBP_OK;
    if (phase == SBP_PHASE_GATHER && gathers_itself(t, pg))
        return gather_itself(t, pg);
    return cuda_net_phase(t, phase);
}

static sbp_status run(const cuda_task *t) {
    if (sbp_collectives[t->call.op].kind == SBP_KIND_ALL_REDUCE && cuda_net_is_native(t, pg_of(t)))
        return cuda_net_native_all(t, pg_of(t));
    for (const sbp_phase *p = sbp_collective_phases(t->call.op); *p != SBP_PHASE_NONE; p++)
        SBP_TRY(run_phase(t, *p));
    return SBP_OK;
}

/* Until one is free: the oldest collective is waited for when all are under way. */
static sbp_status wait_for_mark(cuda_device *d, sbp_diag *diag) {
    cuda_net *w = d->net_state;
    while (w->submitted - w->done == CUDA_NET_MARKS) {
        for (int32_t stream = CUDA_COMPUTE; stream < CUDA_STREAMS; stream++) {
            cuda_result result = d->api.calls.cuStreamQuery(d->streams[stream]);
            if (result != CUDA_OK && result != CUDA_NOT_READY)
                return cuda_fail(d, result, "cuStreamQuery", diag);
        }
        SBP_TRY(watch(d, diag));
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
    return SBP_OK;
}

/* What is on the host is apart. */
static sbp_collective_call call_of(const cuda_net *w, const sbp_command *command, const sbp_span *to,
                                   const sbp_span *from, int64_t work_bytes) {
    const sbp_operand_shape dst = {.rows = to->rows, .cols = to->cols, .dtype = to->dtype},
                            src = {.rows = from->rows, .cols = from->cols, .dtype = from->dtype};
    const sbp_collective_world world = {w->rank, w->count, w->group.count, w->context.count, w->node};
    sbp_collective_call call = sbp_collective_call_of(command, &dst, &src, &world);
    call.dst_apart = to->space == SBP_HOST;
    call.src_apart = from->space == SBP_HOST;
    call.work_bytes = work_bytes;
    return call;
}

sbp_status cuda_net_submit(cuda_device *d, const sbp_dispatch *dispatch, sbp_diag *diag) {
    const sbp_span *to = &dispatch->spans[SBP_COLLECTIVE_DST], *from = &dispatch->spans[SBP_COLLECTIVE_SRC];
    /* those of net may use their workspace while those of compute use theirs */
    bool net = dispatch->command->queue == SBP_QUEUE_NET, shared = d->net_state->context.count > 1;
    int64_t half = shared ? d->net_state->memory_bytes / 2 / 256 * 256 : d->net_state->memory_bytes;
    bool apart = !net && d->net_state->splits[CUDA_OF_CONTEXT].comm;
    cuda_task t = {.d = d,
                   .w = d->net_state,
                   .to = to,
                   .from = from,
                   .stream = d->streams[net ? CUDA_NET : CUDA_COMPUTE],
                   .nccl = apart ? &d->net_state->splits[CUDA_OF_CONTEXT] : d->net_state->nccl,
                   .first = apart ? d->net_state->context.first : 0,
                   .ranks = apart ? d->net_state->context.count : d->net_state->count,
                   .work = d->net_state->memory + (net ? 0 : (uint64_t)half),
                   .work_bytes = half,
                   .diag = diag};
    unsigned op = (unsigned)dispatch->command->u.collective.op;
    cuda_mark *m = &d->net_state->marks[d->net_state->submitted % CUDA_NET_MARKS];
    if (op >= SBP_COLLECTIVE_COUNT || dispatch->span_count != SBP_COLLECTIVE_OPERANDS ||
        !sbp_gpu_is_dense(to) || !sbp_gpu_is_dense(from) ||
        (to->dtype != from->dtype && sbp_collectives[op].into != SBP_DST_ADDS))
        return sbp_fail(diag, SBP_INTERNAL,
                        "cuda: collective %u: its operands have two types, or gaps between rows", op);
    t.call = call_of(d->net_state, dispatch->command, to, from, half);
    SBP_TRY(wait_for_mark(d, diag));
    m->name = sbp_collectives[op].name;
    CUDA_TRY(d, diag, cuEventRecord(m->begin, t.stream));
    sbp_status status = run(&t);
    if (status != SBP_OK) {
        give_up(d);
        return status;
    }
    CUDA_TRY(d, diag, cuEventRecord(m->end, t.stream));
    d->net_state->submitted++;
    return SBP_OK;
}
