/* net_native.c: sums over ranks that NCCL adds up itself, on its way (--deterministic off): in an order that
 * is its own and changes with versions, channels and the network, and in fp32 and fp64 alone, as it would
 * round what is in 16 bits at each rank. All ranks have the same bits even so. Each call stands
 * for rounds of the collective's steps, whose bytes are counted: a ring's. */
#include "backends/cuda/device/net.h"

/* The communicator of a process group of the interconnect; NULL: it has none. */
static cuda_nccl *nccl_of(cuda_net *w, const sbp_process_group *pg) {
    const sbp_process_group *const pgs[CUDA_SPLITS] = {
        [CUDA_OF_GROUP] = &w->group, [CUDA_OF_OTHERS] = &w->others, [CUDA_OF_CONTEXT] = &w->context};
    if (pg->count == w->count)
        return w->nccl;
    for (int32_t i = 0; i < CUDA_SPLITS; i++)
        if (pg == pgs[i] && w->splits[i].comm)
            return &w->splits[i];
    return NULL;
}

/* Alone there is nothing to send. */
static bool has(cuda_net *w, const sbp_process_group *pg) {
    return pg->count == 1 || nccl_of(w, pg);
}

static bool goes_across(const cuda_task *t) {
    return sbp_collectives[t->call.op].among == SBP_AMONG_GROUPS;
}

bool cuda_net_is_native(const cuda_task *t, const sbp_process_group *pg) {
    const sbp_dtype dtype = t->from->dtype;
    return t->d->native_sums && sbp_collectives[t->call.op].among != SBP_AMONG_CONTEXT &&
           (dtype == SBP_F32 || dtype == SBP_F64) && has(t->w, pg) &&
           (!goes_across(t) || has(t->w, &t->w->others));
}

static int32_t type_of(sbp_dtype dtype) {
    return dtype == SBP_F64 ? NCCL_F64 : NCCL_F32;
}

static sbp_status copy(const cuda_task *t, cuda_address to, cuda_address from, int64_t bytes) {
    if (to != from)
        CUDA_TRY(t->d, t->diag, cuMemcpyDtoDAsync(to, from, (size_t)bytes, t->stream));
    return SBP_OK;
}

/* `elems` numbers of each at `from`, to their sum at `to`, which may be the same. */
static sbp_status reduce_all(const cuda_task *t, const sbp_process_group *pg, cuda_address to,
                             cuda_address from, int64_t elems, sbp_dtype dtype) {
    cuda_nccl *n = nccl_of(t->w, pg);
    if (elems == 0)
        return SBP_OK;
    if (pg->count == 1)
        return copy(t, to, from, elems * sbp_dtype_bytes(dtype));
    NCCL_TRY(n, t->diag,
             ncclAllReduce(from, to, (size_t)elems, type_of(dtype), NCCL_SUM, n->comm, t->stream));
    return cuda_nccl_ready(n, t->w->timeout, "a collective", t->diag);
}

/* `elems` numbers for each member at `from`, one's behind the other's, to this one's sum at `to`: elsewhere,
 * or where it has them itself. */
static sbp_status scatter(const cuda_task *t, const sbp_process_group *pg, cuda_address to, cuda_address from,
                          int64_t elems, sbp_dtype dtype) {
    cuda_nccl *n = nccl_of(t->w, pg);
    if (pg->count == 1)
        return copy(t, to, from, elems * sbp_dtype_bytes(dtype));
    NCCL_TRY(n, t->diag,
             ncclReduceScatter(from, to, (size_t)elems, type_of(dtype), NCCL_SUM, n->comm, t->stream));
    return cuda_nccl_ready(n, t->w->timeout, "a collective", t->diag);
}

sbp_status cuda_net_native_all(const cuda_task *t, const sbp_process_group *pg) {
    int64_t unit = sbp_dtype_bytes(t->to->dtype), elems = t->to->rows * t->to->cols;
    cuda_place to = cuda_place_of(t->to, 0), from = cuda_place_of(t->from, 0);
    cuda_net_count(t, SBP_PHASE_SUM);
    cuda_net_count(t, SBP_PHASE_GATHER);
    if (to.space == SBP_DEVICE) {
        cuda_address data = cuda_place_address(t, to);
        if (from.space == SBP_DEVICE)
            return reduce_all(t, pg, data, cuda_place_address(t, from), elems, t->to->dtype);
        SBP_TRY(cuda_net_bring(t, data, from, elems * unit));
        return reduce_all(t, pg, data, data, elems, t->to->dtype);
    }
    int64_t most = t->work_bytes / unit;
    for (int64_t at = 0; at < elems; at += most) {
        int64_t part = sbp_min_i64(elems - at, most);
        SBP_TRY(cuda_net_bring(t, t->work, cuda_place_later(from, at * unit), part * unit));
        SBP_TRY(reduce_all(t, pg, t->work, t->work, part, t->to->dtype));
        SBP_TRY(cuda_net_take(t, cuda_place_later(to, at * unit), t->work, part * unit));
    }
    return SBP_OK;
}

/* A sum of shares. `most`: elements of each that go at once, all of them or as many as the workspace has room
 * for; there they are packed, and what is behind those of a member that has fewer is added up too, as NCCL
 * wants as many of each. */
typedef struct summing {
    const sbp_process_group *pg;
    bool adds, across, packs, lands; /* lands: the sum is at `to` at once */
    cuda_place to, from;
    sbp_dtype to_dtype, dtype;
    int64_t elems, share, most; /* share: the largest */
    cuda_address packed, result;
} summing;

/* Ranks by the ten thousands. */
static sbp_status too_little(const cuda_task *t) {
    return sbp_fail(t->diag, SBP_INTERNAL,
                    "cuda: %lld bytes are too little for what %d ranks send each other",
                    (long long)t->work_bytes, (int)t->w->count);
}

static sbp_status divide(const cuda_task *t, summing *s) {
    int64_t unit = sbp_dtype_bytes(s->dtype), room = t->work_bytes,
            result = s->to.space == SBP_HOST ? sbp_dtype_bytes(s->to_dtype) : 0;
    bool even = s->from.space == SBP_DEVICE && s->elems == s->share * s->pg->count;
    s->lands = even && s->to.space == SBP_DEVICE && !s->adds;
    s->packs = !s->lands && !(even && s->share * (unit + result) <= room);
    s->most = s->share;
    if (s->packs) {
        int64_t most = room / (s->pg->count * unit + result) / SBP_STEP_SLICE * SBP_STEP_SLICE;
        s->most = most < s->share ? most : s->share;
    }
    if (s->most == 0)
        return too_little(t);
    s->packed = t->work;
    s->result = t->work + (uint64_t)((s->packs ? s->pg->count : 1) * s->most * unit);
    return SBP_OK;
}

/* Packs `each` numbers of each member's share, from number `at` on, one member's behind another's. */
static sbp_status pack(const cuda_task *t, const summing *s, int64_t at, int64_t each) {
    int64_t unit = sbp_dtype_bytes(s->dtype);
    for (int32_t m = 0; m < s->pg->count; m++)
        SBP_TRY(cuda_net_bring(t, s->packed + (uint64_t)(m * each * unit),
                               cuda_place_later(s->from, (sbp_pg_begin(s->pg, s->elems, m) + at) * unit),
                               sbp_pg_slice(s->pg, s->elems, m, at, each) * unit));
    return SBP_OK;
}

/* The sum at `sum` to where it belongs. */
static sbp_status deliver(const cuda_task *t, const summing *s, cuda_address sum, int64_t at, int64_t mine) {
    int64_t bytes = mine * sbp_dtype_bytes(s->to_dtype);
    cuda_place to = cuda_place_later(s->to, at * sbp_dtype_bytes(s->to_dtype));
    bool host = to.space == SBP_HOST;
    if (!s->adds)
        return cuda_net_take(t, to, sum, bytes);
    if (mine == 0)
        return SBP_OK;
    if (host)
        SBP_TRY(cuda_net_bring(t, s->result, to, bytes));
    SBP_TRY(cuda_net_add(t, &(sbp_cuda_sum){.adds = true,
                                            .to = host ? s->result : cuda_place_address(t, to),
                                            .own = sum,
                                            .to_dtype = s->to_dtype,
                                            .from_dtype = s->dtype,
                                            .elems = mine,
                                            .count = 1}));
    return host ? cuda_net_take(t, to, s->result, bytes) : SBP_OK;
}

sbp_status cuda_net_native_sum(const cuda_task *t, const sbp_process_group *pg) {
    const sbp_accumulate into = sbp_collectives[t->call.op].into;
    int64_t elems = t->from->rows * t->from->cols,
            own = into == SBP_DST_OWN ? sbp_pg_begin(pg, elems, pg->me) : 0;
    summing s = {.pg = pg,
                 .adds = into == SBP_DST_ADDS,
                 .across = goes_across(t) && t->w->others.count > 1,
                 .to = cuda_place_of(t->to, own),
                 .from = cuda_place_of(t->from, 0),
                 .to_dtype = t->to->dtype,
                 .dtype = t->from->dtype,
                 .elems = elems,
                 .share = sbp_pg_begin(pg, elems, 1)};
    if (elems == 0)
        return SBP_OK;
    SBP_TRY(divide(t, &s));
    cuda_net_count(t, SBP_PHASE_SUM);
    for (int64_t at = 0; at < s.share; at += s.most) {
        int64_t part = s.share - at < s.most ? s.share - at : s.most,
                mine = sbp_pg_slice(pg, elems, pg->me, at, part);
        cuda_address data = s.packs ? s.packed : cuda_place_address(t, s.from),
                     sum = s.lands   ? cuda_place_address(t, s.to)
                           : s.packs ? s.packed + (uint64_t)(pg->me * part * sbp_dtype_bytes(s.dtype))
                                     : s.packed;
        if (s.packs)
            SBP_TRY(pack(t, &s, at, part));
        SBP_TRY(scatter(t, pg, sum, data, part, s.dtype));
        if (s.across)
            SBP_TRY(reduce_all(t, &t->w->others, sum, sum, mine, s.dtype));
        if (!s.lands)
            SBP_TRY(deliver(t, &s, sum, at, mine));
    }
    return SBP_OK;
}
