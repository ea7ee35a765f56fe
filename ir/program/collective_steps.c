/* collective_steps.c: collectives as steps. A walk emits one step after the other; what it needs to know of a
 * process group, a slice and the workspace is worked out anew for each slice. */
#include "ir/program/collective_steps.h"

#include "ir/base/census.h"

/* ---- process groups ------------------------------------------------------------------------------------ */

int64_t sbp_near_ranks(int64_t node, int64_t stride, int64_t count) {
    int64_t here = stride < node && node % stride == 0 ? node / stride : 1; /* on one host */
    int64_t near = 1;
    while (here % (2 * near) == 0 && count % (2 * near) == 0)
        near *= 2;
    return near == 1 || here % count == 0 ? count : near;
}

sbp_process_group sbp_pg_of_all(int32_t rank, int32_t count, int32_t node) {
    return (sbp_process_group){0, 1, count, rank, (int32_t)sbp_near_ranks(node, 1, count)};
}

sbp_process_group sbp_pg_of_neighbours(int32_t rank, int32_t size, int32_t node) {
    return (sbp_process_group){rank - rank % size, 1, size, rank % size,
                               (int32_t)sbp_near_ranks(node, 1, size)};
}

sbp_process_group sbp_pg_across(int32_t rank, int32_t count, int32_t size, int32_t node) {
    return (sbp_process_group){rank % size, size, count / size, rank / size,
                               (int32_t)sbp_near_ranks(node, size, count / size)};
}

/* The rank that a member is. */
static int32_t rank_at(const sbp_process_group *pg, int32_t member) {
    return pg->first + member * pg->stride;
}

int64_t sbp_pg_begin(const sbp_process_group *pg, int64_t elems, int32_t member) {
    int64_t begin = member * sbp_ceil_div(elems, pg->count);
    return begin < elems ? begin : elems;
}

static int64_t share_of(const sbp_process_group *pg, int64_t elems, int32_t member) {
    return sbp_pg_begin(pg, elems, member + 1) - sbp_pg_begin(pg, elems, member);
}

int64_t sbp_pg_slice(const sbp_process_group *pg, int64_t elems, int32_t member, int64_t from, int64_t most) {
    int64_t left = share_of(pg, elems, member) - from;
    return left < 0 ? 0 : left < most ? left : most;
}

/* Blocks of neighbours: how many, which is this rank's, and its place there. */
static int32_t blocks_of(const sbp_process_group *pg) {
    return pg->count / pg->near;
}

static int32_t block_of(const sbp_process_group *pg) {
    return pg->me / pg->near;
}

static int32_t place_of(const sbp_process_group *pg) {
    return pg->me % pg->near;
}

/* ---- steps ------------------------------------------------------------------------------------------ */

typedef struct walk {
    const sbp_collective_call *call;
    sbp_step_run run;
    void *user;
    sbp_diag *diag;
} walk;

static sbp_step_place at(sbp_step_memory memory, sbp_dtype dtype, int64_t offset) {
    return (sbp_step_place){.memory = memory, .dtype = dtype, .offset = offset};
}

static sbp_step_place later(sbp_step_place p, int64_t elems) {
    p.offset += elems * sbp_dtype_bytes(p.dtype);
    return p;
}

static sbp_step_place in_rows(sbp_step_place p, int64_t stride) {
    p.stride = stride;
    return p;
}

static sbp_status send(const walk *w, int32_t peer, sbp_step_place from, int64_t elems) {
    const sbp_step step = {
        .kind = SBP_STEP_SEND, .rows = 1, .cols = elems, .from = in_rows(from, elems), .peer = peer};
    return elems > 0 ? w->run(w->user, &step) : SBP_OK;
}

static sbp_status receive(const walk *w, int32_t peer, sbp_step_place to, int64_t elems) {
    const sbp_step step = {
        .kind = SBP_STEP_RECEIVE, .rows = 1, .cols = elems, .to = in_rows(to, elems), .peer = peer};
    return elems > 0 ? w->run(w->user, &step) : SBP_OK;
}

static sbp_status exchange(const walk *w, sbp_round round, int32_t ranks, int32_t stride) {
    const sbp_step step = {.kind = SBP_STEP_EXCHANGE, .round = round, .ranks = ranks, .stride = stride};
    return w->run(w->user, &step);
}

static sbp_status copy_rows(const walk *w, sbp_step_place to, sbp_step_place from, int64_t rows,
                            int64_t cols) {
    const sbp_step step = {.kind = SBP_STEP_COPY, .rows = rows, .cols = cols, .to = to, .from = from};
    return rows > 0 && cols > 0 ? w->run(w->user, &step) : SBP_OK;
}

static sbp_status copy(const walk *w, sbp_step_place to, sbp_step_place from, int64_t elems) {
    return copy_rows(w, in_rows(to, elems), in_rows(from, elems), 1, elems);
}

/* ---- slices of shares ------------------------------------------------------------------------------- */

/* Slices [at, at + most) of the shares that a process group has of `elems` elements, and where they lie. */
typedef struct slices {
    const sbp_process_group *pg;
    sbp_step_place data; /* the first member's slice */
    int64_t apart;       /* elements from each to the next */
    int64_t elems, at, most;
} slices;

static sbp_step_place slice_at(const slices *s, int32_t member) {
    return later(s->data, member * s->apart);
}

static int64_t slice_elems(const slices *s, int32_t member) {
    return sbp_pg_slice(s->pg, s->elems, member, s->at, s->most);
}

/* To, and from, one of the process group: what members `mine` and `theirs` have. */
static sbp_status trade(const walk *w, const slices *s, int32_t with, int32_t mine, int32_t theirs) {
    int32_t rank = rank_at(s->pg, with);
    if (with == s->pg->me)
        return SBP_OK;
    SBP_TRY(send(w, rank, slice_at(s, mine), slice_elems(s, mine)));
    return receive(w, rank, slice_at(s, theirs), slice_elems(s, theirs));
}

/* All slices, to each of the process group; this member's is there. Its own to, and theirs from, those in its
 * place; then all of these, and of what its neighbours got so, among neighbours. */
static sbp_status gather_slices(const walk *w, const slices *s, sbp_round far, sbp_round near_by) {
    const sbp_process_group *t = s->pg;
    int32_t blocks = blocks_of(t), place = place_of(t), near = t->near;
    if (blocks > 1) {
        for (int32_t b = 0; b < blocks; b++)
            SBP_TRY(trade(w, s, b * near + place, t->me, b * near + place));
        SBP_TRY(exchange(w, far, blocks, t->stride * near));
    }
    for (int32_t p = 0; p < near; p++)
        for (int32_t b = 0; b < blocks; b++)
            SBP_TRY(trade(w, s, block_of(t) * near + p, b * near + place, b * near + p));
    return exchange(w, near_by, near, t->stride);
}

/* ---- sums ------------------------------------------------------------------------------------------- */

static bool is_summed(sbp_dtype dtype) {
    return dtype == SBP_F32 || dtype == SBP_F64 || dtype == SBP_BF16 || dtype == SBP_F16;
}

static sbp_dtype wide_of(sbp_dtype dtype) {
    return dtype == SBP_F64 ? SBP_F64 : SBP_F32;
}

/* Where a process group's data stand in the workspace, in bytes from its beginning: what arrives, from
 * neighbours and then from the members in the same place of other blocks; and the sums over the
 * neighbours. */
typedef struct room {
    int64_t arrived, sums;
} room;

/* A sum of shares: data of `elems` elements at src, of which this member's share goes to `to`; and how the
 * workspace is divided for slices of `most` elements: room for what is exchanged; all slices that are sent,
 * where they lie apart; the result, where that does; the sum of a group, before that of all groups, and room
 * for that. */
typedef struct summing {
    sbp_process_group pg,
        others; /* others: of all groups, that have the same share; of one: it does not go across */
    sbp_step_place to;
    sbp_dtype dtype, wide;
    int64_t elems, most;
    room own, groups;
    int64_t staged, result, partial;
    bool adds;
} summing;

/* Bytes of a process group's room, for each element of a slice. */
static int64_t arriving_bytes(const sbp_process_group *pg, int64_t unit, int64_t wide) {
    int64_t blocks = blocks_of(pg), near = (pg->near - 1) * blocks * unit;
    return near > (blocks - 1) * wide ? near : (blocks - 1) * wide;
}

static int64_t sums_bytes(const sbp_process_group *pg, int64_t wide) {
    return pg->near < pg->count ? blocks_of(pg) * wide : 0;
}

/* Ranks by the ten thousands. */
static sbp_status too_little(const walk *w) {
    return sbp_fail(w->diag, SBP_INTERNAL, "%lld bytes are too little for what %d ranks send each other",
                    (long long)w->call->work_bytes, (int)w->call->world.ranks);
}

static sbp_status divide(const walk *w, summing *s) {
    const sbp_collective_call *c = w->call;
    bool across = s->others.count > 1;
    int64_t unit = sbp_dtype_bytes(s->dtype), wide = sbp_dtype_bytes(s->wide),
            arrived = arriving_bytes(&s->pg, unit, wide), sums = sums_bytes(&s->pg, wide),
            staging = c->src_apart ? s->pg.count * unit : 0,
            result = c->dst_apart ? sbp_dtype_bytes(s->to.dtype) : 0, partial = across ? wide : 0;
    /* of all parts of a slice together */
    int64_t groups = across ? sbp_ceil_div(arriving_bytes(&s->others, wide, wide), s->others.count) : 0,
            groups_sums = across ? sbp_ceil_div(sums_bytes(&s->others, wide), s->others.count) : 0;
    /* whole parts of all groups, so that those of slices are those of the share */
    int64_t multiple = SBP_STEP_SLICE * s->others.count,
            all = sbp_round_up(sbp_pg_begin(&s->pg, s->elems, 1), multiple);
    int64_t each = arrived + sums + staging + result + partial + groups + groups_sums;
    s->most = c->work_bytes / (each > 0 ? each : 1) / multiple * multiple; /* 0: of one rank, in place */
    if (each == 0 || s->most > all)
        s->most = all;
    if (s->most == 0)
        return too_little(w);
    SBP_CROSS_EITHER(s->most < all, ranks_sum_slices, ranks_sum_slice);
    SBP_CROSS_EITHER(blocks_of(&s->pg) > 1, ranks_sum_near_first, ranks_sum_together);
    SBP_CROSS_IF(across, ranks_sum_of_groups);
    s->own.arrived = 0;
    s->own.sums = s->own.arrived + arrived * s->most;
    s->staged = s->own.sums + sums * s->most;
    s->result = s->staged + staging * s->most;
    s->partial = s->result + result * s->most;
    s->groups.arrived = s->partial + partial * s->most;
    s->groups.sums = s->groups.arrived + groups * s->most;
    return SBP_OK;
}

/* What the process group has of slices `begin`; brought into the workspace where it is apart. */
static sbp_status slices_at(const walk *w, const summing *s, int64_t begin, slices *out) {
    const sbp_step_place src = later(at(SBP_STEP_SRC, s->dtype, 0), begin);
    int64_t share = sbp_pg_begin(&s->pg, s->elems, 1);
    *out = (slices){&s->pg, src, share, s->elems, begin, s->most};
    if (!w->call->src_apart)
        return SBP_OK;
    out->data = at(SBP_STEP_WORK, s->dtype, s->staged);
    out->apart = s->most;
    for (int32_t m = 0; m < s->pg.count; m++)
        SBP_TRY(copy(w, slice_at(out, m), later(src, m * share), slice_elems(out, m)));
    return SBP_OK;
}

/* Every neighbour gets the slices of the members that have its place in their blocks, and this member gets
 * its own place's from each. row: elements of the first slice. */
static sbp_status exchange_near(const walk *w, const slices *s, const room *r, int64_t row, sbp_round round) {
    const sbp_process_group *t = s->pg;
    int32_t blocks = blocks_of(t), place = place_of(t), near = t->near;
    const sbp_step_place arrived = at(SBP_STEP_WORK, s->data.dtype, r->arrived);
    for (int32_t p = 0; p < near; p++)
        for (int32_t b = 0; b < blocks && p != place; b++) {
            int32_t rank = rank_at(t, block_of(t) * near + p);
            SBP_TRY(send(w, rank, slice_at(s, b * near + p), slice_elems(s, b * near + p)));
            SBP_TRY(receive(w, rank, later(arrived, ((p - (p > place)) * blocks + b) * row),
                            slice_elems(s, b * near + place)));
        }
    return exchange(w, round, near, t->stride);
}

/* The sum of what arrived of neighbours with this member's own, for `rows` members in its place from block
 * `block` on, who have `cols` each. The caller says to where. */
static sbp_step near_sum(const slices *s, const room *r, int64_t row, int32_t block, int64_t rows,
                         int64_t cols) {
    const sbp_process_group *t = s->pg;
    const sbp_step_place arrived = at(SBP_STEP_WORK, s->data.dtype, r->arrived);
    return (sbp_step){.kind = SBP_STEP_ADD,
                      .rows = rows,
                      .cols = cols,
                      .from = in_rows(slice_at(s, block * t->near + place_of(t)), t->near * s->apart),
                      .arrived = in_rows(later(arrived, block * row), blocks_of(t) * row),
                      .me = place_of(t),
                      .count = t->near};
}

/* For each member in this one's place, to r->sums. Those with as much as the first at once. */
static sbp_status add_near(const walk *w, const slices *s, const room *r, int64_t row) {
    const sbp_process_group *t = s->pg;
    int32_t blocks = blocks_of(t);
    for (int32_t b = 0, rows; b < blocks; b += rows) {
        int64_t cols = slice_elems(s, b * t->near + place_of(t));
        for (rows = 1; cols == row && b + rows < blocks; rows++)
            if (slice_elems(s, (b + rows) * t->near + place_of(t)) != cols)
                break;
        sbp_step sum = near_sum(s, r, row, b, rows, cols);
        sum.to = in_rows(later(at(SBP_STEP_WORK, wide_of(s->data.dtype), r->sums), b * row), row);
        if (cols > 0)
            SBP_TRY(w->run(w->user, &sum));
    }
    return SBP_OK;
}

/* This member's slice of the sum over a process group, but for its last addition: the caller says to where
 * that goes. A slice without elements sends nothing. near_by, far: the rounds. */
static sbp_status sum_slices(const walk *w, const slices *s, const room *r, sbp_round near_by, sbp_round far,
                             sbp_step *last) {
    const sbp_process_group *t = s->pg;
    const sbp_dtype wide = wide_of(s->data.dtype);
    int32_t blocks = blocks_of(t), block = block_of(t), place = place_of(t);
    int64_t row = slice_elems(s, place), mine = slice_elems(s, t->me);
    const sbp_step_place sums = at(SBP_STEP_WORK, wide, r->sums),
                         arrived = at(SBP_STEP_WORK, wide, r->arrived);
    SBP_TRY(exchange_near(w, s, r, row, near_by));
    *last = near_sum(s, r, row, 0, 1, mine);
    if (blocks == 1)
        return SBP_OK;
    SBP_TRY(add_near(w, s, r, row));
    for (int32_t b = 0; b < blocks; b++) {
        int32_t other = b * t->near + place;
        if (b == block)
            continue;
        SBP_TRY(send(w, rank_at(t, other), later(sums, b * row), slice_elems(s, other)));
        SBP_TRY(receive(w, rank_at(t, other), later(arrived, (b - (b > block)) * mine), mine));
    }
    SBP_TRY(exchange(w, far, blocks, t->stride * t->near));
    *last = (sbp_step){.kind = SBP_STEP_ADD,
                       .rows = 1,
                       .cols = mine,
                       .from = in_rows(later(sums, block * row), mine),
                       .arrived = in_rows(arrived, mine),
                       .me = block,
                       .count = blocks};
    return SBP_OK;
}

static sbp_status add(const walk *w, sbp_step *sum, sbp_step_place to) {
    sum->to = in_rows(to, sum->cols);
    return sum->cols > 0 ? w->run(w->user, sum) : SBP_OK;
}

/* `elems` sums of this group, at `data`, to those of all groups: each group adds up a part of them. */
static sbp_status sum_part(const walk *w, const summing *s, sbp_step_place data, int64_t elems) {
    int64_t part = sbp_ceil_div(elems, s->others.count);
    const slices parts = {&s->others, data, part, elems, 0, part};
    sbp_step sum;
    if (elems == 0)
        return SBP_OK;
    SBP_TRY(sum_slices(w, &parts, &s->groups, SBP_ROUND_GROUPS_SUM_NEAR, SBP_ROUND_GROUPS_SUM_FAR, &sum));
    SBP_TRY(add(w, &sum, slice_at(&parts, s->others.me)));
    return gather_slices(w, &parts, SBP_ROUND_GROUPS_GATHER_FAR, SBP_ROUND_GROUPS_GATHER_NEAR);
}

/* The sums of a group, at `data`, to those of all groups. What is no whole parts goes by itself, so that each
 * sends as many bytes however the share is cut. */
static sbp_status sum_groups(const walk *w, const summing *s, sbp_step_place data, int64_t slice) {
    int64_t rest = slice % s->others.count;
    SBP_TRY(sum_part(w, s, data, slice - rest));
    return sum_part(w, s, later(data, slice - rest), rest);
}

/* This member's slice of the sum to the result; by way of all groups where there are several. */
static sbp_status sum_slice(const walk *w, const summing *s, int64_t begin) {
    const sbp_step_place partial = at(SBP_STEP_WORK, s->wide, s->partial),
                         result = at(SBP_STEP_WORK, s->to.dtype, s->result), to = later(s->to, begin);
    slices own;
    sbp_step sum;
    SBP_TRY(slices_at(w, s, begin, &own));
    SBP_TRY(sum_slices(w, &own, &s->own, SBP_ROUND_SUM_NEAR, SBP_ROUND_SUM_FAR, &sum));
    int64_t mine = sum.cols;
    if (s->others.count > 1 && mine > 0) {
        SBP_TRY(add(w, &sum, partial));
        SBP_TRY(sum_groups(w, s, partial, mine));
        sum = (sbp_step){.kind = SBP_STEP_ADD,
                         .rows = 1,
                         .cols = mine,
                         .from = in_rows(partial, mine),
                         .count = 1}; /* rounds */
    }
    sum.adds = s->adds;
    if (!w->call->dst_apart)
        return add(w, &sum, to);
    if (s->adds)
        SBP_TRY(copy(w, result, to, mine));
    SBP_TRY(add(w, &sum, result));
    return copy(w, to, result, mine);
}

/* Where this rank's share is, in the result as a whole or by itself. */
static sbp_step_place own_share(const sbp_collective_call *c, const sbp_process_group *pg) {
    const sbp_collective_info *info = &sbp_collectives[c->op];
    bool alone = info->kind == SBP_KIND_REDUCE_SCATTER && info->into != SBP_DST_OWN;
    return later(at(SBP_STEP_DST, c->to, 0), alone ? 0 : sbp_pg_begin(pg, c->elems, pg->me));
}

/* The process group that it is among; of GROUPS: the group. */
static sbp_process_group group_of(const sbp_collective_call *call) {
    const sbp_collective_world *w = &call->world;
    switch (sbp_collectives[call->op].among) {
    case SBP_AMONG_WORLD:
        return sbp_pg_of_all(w->rank, w->ranks, w->node);
    case SBP_AMONG_CONTEXT: /* its exchanges are around what reads other rows, and few: in one round */
        return sbp_pg_of_neighbours(w->rank, w->context, 1);
    default:
        return sbp_pg_of_neighbours(w->rank, w->group, w->node);
    }
}

static sbp_status sum(const walk *w) {
    const sbp_collective_call *c = w->call;
    const sbp_collective_info *info = &sbp_collectives[c->op];
    summing s = {.pg = group_of(c),
                 .others = {.count = 1, .near = 1},
                 .dtype = c->from,
                 .wide = wide_of(c->from),
                 .elems = c->elems,
                 .adds = info->into == SBP_DST_ADDS};
    s.to = own_share(c, &s.pg);
    if (info->among == SBP_AMONG_GROUPS)
        s.others = sbp_pg_across(c->world.rank, c->world.ranks, c->world.group, c->world.node);
    if (!is_summed(c->from))
        return sbp_fail(w->diag, SBP_INTERNAL, "no sum of %s over ranks", sbp_dtype_name(c->from));
    if (c->elems == 0)
        return SBP_OK;
    SBP_TRY(divide(w, &s));
    for (int64_t begin = 0; begin < sbp_pg_begin(&s.pg, s.elems, 1); begin += s.most)
        SBP_TRY(sum_slice(w, &s, begin));
    return SBP_OK;
}

/* ---- moves ------------------------------------------------------------------------------------------ */

/* Where this rank's part of what is gathered comes from. */
static sbp_step_place own_part(const sbp_collective_call *c, const sbp_process_group *pg) {
    return sbp_collectives[c->op].kind == SBP_KIND_ALL_GATHER ? at(SBP_STEP_SRC, c->from, 0)
                                                              : own_share(c, pg);
}

static sbp_status place(const walk *w) {
    const sbp_collective_call *c = w->call;
    const sbp_process_group pg = group_of(c);
    const sbp_step_place dst = at(SBP_STEP_DST, c->to, 0), src = at(SBP_STEP_SRC, c->from, 0);
    switch (sbp_collectives[c->op].kind) {
    case SBP_KIND_ALL_GATHER: /* what is apart is gathered from where it is */
        return c->dst_apart ? SBP_OK : copy(w, own_share(c, &pg), src, share_of(&pg, c->elems, pg.me));
    case SBP_KIND_BROADCAST:
        return pg.me == c->root ? copy(w, dst, src, c->elems) : SBP_OK;
    default: /* a share of what src is cut down to (backends/composite) */
        return copy(w, dst, src, c->elems);
    }
}

/* Pieces of what lies apart go through the workspace, which has room for one of each member. */
static sbp_status pieces_of(const walk *w, const sbp_process_group *pg, slices *out) {
    const sbp_collective_call *c = w->call;
    int64_t unit = sbp_dtype_bytes(c->to), share = sbp_pg_begin(pg, c->elems, 1);
    *out = (slices){
        pg, at(SBP_STEP_DST, c->to, 0), share, c->elems, 0, sbp_min_i64(share, c->piece_bytes / unit)};
    if (c->dst_apart) {
        int64_t fits = c->work_bytes / (pg->count * unit) / SBP_STEP_SLICE * SBP_STEP_SLICE;
        out->most = out->apart = sbp_min_i64(out->most, fits);
        out->data = at(SBP_STEP_WORK, c->to, 0);
    }
    SBP_CROSS_EITHER(out->most < share, ranks_move_pieces, ranks_move_piece);
    return out->most > 0 || c->elems == 0 ? SBP_OK : too_little(w);
}

static sbp_status gather(const walk *w) {
    const sbp_collective_call *c = w->call;
    const sbp_process_group pg = group_of(c);
    const sbp_step_place own = own_part(c, &pg), dst = at(SBP_STEP_DST, c->to, 0);
    slices s;
    SBP_TRY(pieces_of(w, &pg, &s));
    for (; s.at < sbp_pg_begin(&pg, c->elems, 1); s.at += s.most) {
        slices now = s;
        if (!c->dst_apart)
            now.data = later(dst, s.at);
        else
            SBP_TRY(copy(w, slice_at(&now, pg.me), later(own, s.at), slice_elems(&now, pg.me)));
        SBP_TRY(gather_slices(w, &now, SBP_ROUND_GATHER_FAR, SBP_ROUND_GATHER_NEAR));
        for (int32_t m = 0; m < pg.count && c->dst_apart; m++)
            SBP_TRY(copy(w, later(dst, sbp_pg_begin(&pg, c->elems, m) + s.at), slice_at(&now, m),
                         slice_elems(&now, m)));
    }
    return SBP_OK;
}

/* From the root, to each its share. */
static sbp_status scatter(const walk *w) {
    const sbp_collective_call *c = w->call;
    const sbp_process_group pg = group_of(c);
    const sbp_step_place dst = at(SBP_STEP_DST, c->to, 0);
    int32_t root = c->root;
    slices s;
    SBP_TRY(pieces_of(w, &pg, &s));
    for (; s.at < sbp_pg_begin(&pg, c->elems, 1); s.at += s.most) {
        slices now = s;
        if (!c->dst_apart)
            now.data = later(dst, s.at);
        for (int32_t m = 0; m < pg.count && pg.me == root; m++) {
            sbp_step_place there = later(dst, sbp_pg_begin(&pg, c->elems, m) + s.at);
            if (m != root && c->dst_apart)
                SBP_TRY(copy(w, slice_at(&now, m), there, slice_elems(&now, m)));
        }
        for (int32_t m = 0; m < pg.count && pg.me == root; m++)
            if (m != root)
                SBP_TRY(send(w, rank_at(&pg, m), slice_at(&now, m), slice_elems(&now, m)));
        if (pg.me != root)
            SBP_TRY(receive(w, rank_at(&pg, root), slice_at(&now, pg.me), slice_elems(&now, pg.me)));
        SBP_TRY(exchange(w, SBP_ROUND_SCATTER, pg.count, pg.stride));
        if (pg.me != root && c->dst_apart)
            SBP_TRY(copy(w, later(own_share(c, &pg), s.at), slice_at(&now, pg.me), slice_elems(&now, pg.me)));
    }
    return SBP_OK;
}

/* ---- heads ------------------------------------------------------------------------------------------ */

/* Heads of attention in place of rows, and back, among the ranks of a context (ir/base/context.h). `own` has
 * rows of all heads, `all` rows of all ranks, of this rank's slots. Rows go in blocks, of which what is
 * packed for all ranks goes into the workspace, in front of sums of heads that several ranks have. */
typedef struct turning {
    const sbp_context_heads *heads;
    sbp_process_group pg;
    int64_t rows, block;         /* of each rank; how many of them go at once */
    int64_t own_cols, slot_cols; /* of a row, of all heads and of a rank's slots */
    int64_t slots, same;         /* of a rank; how many of all have one head */
    sbp_step_place own, all, packed, sums;
} turning;

static sbp_status turn(const walk *w, sbp_step_memory own, sbp_step_memory all, turning *x) {
    const sbp_collective_call *c = w->call;
    int64_t ranks = c->world.context, unit = sbp_dtype_bytes(c->to), sums;
    const sbp_dtype wide = wide_of(c->to);
    *x = (turning){.heads = &c->heads, .pg = group_of(c), .rows = c->rows};
    x->slots = sbp_context_slots(x->heads, ranks);
    x->same = sbp_context_same(x->heads, ranks);
    x->own_cols = sbp_context_count(x->heads) * x->heads->dim;
    x->slot_cols = x->slots * x->heads->dim;
    sums = x->same > 1 && own == SBP_STEP_DST && c->to != wide ? x->heads->dim * sbp_dtype_bytes(wide) : 0;
    x->block = sbp_min_i64(x->rows, (c->work_bytes - SBP_STEP_SLICE) / (ranks * x->slot_cols * unit + sums));
    x->own = in_rows(at(own, c->to, 0), x->own_cols);
    x->all = in_rows(at(all, c->to, 0), x->slot_cols);
    x->packed = in_rows(at(SBP_STEP_WORK, c->to, 0), x->slot_cols);
    x->sums =
        in_rows(at(SBP_STEP_WORK, wide, sbp_round_up(x->block * ranks * x->slot_cols * unit, SBP_STEP_SLICE)),
                x->heads->dim);
    if (c->src_apart || c->dst_apart)
        return sbp_fail(w->diag, SBP_INTERNAL, "%s: an operand has gaps between its rows",
                        sbp_collectives[c->op].name);
    SBP_CROSS_EITHER(x->block < x->rows, ranks_heads_blocks, ranks_heads_block);
    return x->block > 0 || x->rows == 0 ? SBP_OK : too_little(w);
}

static int64_t head_of(const turning *x, int64_t slot) {
    return sbp_context_head(x->heads, x->pg.count, slot);
}

/* Slots of one rank, from one on, whose heads are neighbours too, or that have none. */
static int64_t run_of(const turning *x, int64_t slot) {
    int64_t head = head_of(x, slot), end = (slot / x->slots + 1) * x->slots, count = 1;
    while (slot + count < end && head_of(x, slot + count) == (head < 0 ? -1 : head + count))
        count++;
    return count;
}

/* Rows `first` on of a rank, of this rank's slots. */
static sbp_step_place rows_of(const turning *x, int32_t member, int64_t first) {
    return later(x->all, (member * x->rows + first) * x->slot_cols);
}

/* Where the `rows` packed rows of a member stand. */
static sbp_step_place packed_of(const turning *x, int32_t member, int64_t rows) {
    return later(x->packed, member * rows * x->slot_cols);
}

/* The heads of a member, of rows `first` on; zeros where it has none. */
static sbp_status pack(const walk *w, const turning *x, sbp_step_place to, int64_t first, int64_t rows,
                       int32_t member) {
    for (int64_t slot = 0, run; slot < x->slots; slot += run) {
        int64_t head = head_of(x, member * x->slots + slot);
        sbp_step_place from = later(x->own, first * x->own_cols + head * x->heads->dim);
        run = run_of(x, member * x->slots + slot);
        if (head < 0)
            from = at(SBP_STEP_ZEROS, to.dtype, 0);
        SBP_TRY(copy_rows(w, later(to, slot * x->heads->dim), from, rows, run * x->heads->dim));
    }
    return SBP_OK;
}

static sbp_status to_heads(const walk *w) {
    turning x;
    SBP_TRY(turn(w, SBP_STEP_SRC, SBP_STEP_DST, &x));
    for (int64_t first = 0; first < x.rows; first += x.block) {
        int64_t rows = sbp_min_i64(x.rows - first, x.block), elems = rows * x.slot_cols;
        int32_t me = x.pg.me;
        for (int32_t m = 0; m < x.pg.count; m++)
            SBP_TRY(pack(w, &x, m == me ? rows_of(&x, m, first) : packed_of(&x, m, rows), first, rows, m));
        for (int32_t m = 0; m < x.pg.count; m++) {
            if (m == me)
                continue;
            SBP_TRY(send(w, rank_at(&x.pg, m), packed_of(&x, m, rows), elems));
            SBP_TRY(receive(w, rank_at(&x.pg, m), rows_of(&x, m, first), elems));
        }
        SBP_TRY(exchange(w, SBP_ROUND_HEADS, x.pg.count, x.pg.stride));
    }
    return SBP_OK;
}

/* Where the numbers of a slot are, of a block of rows. */
static sbp_step_place slot_at(const turning *x, int64_t first, int64_t rows, int64_t slot) {
    int32_t m = (int32_t)(slot / x->slots);
    return later(m == x->pg.me ? rows_of(x, m, first) : packed_of(x, m, rows),
                 slot % x->slots * x->heads->dim);
}

/* The sum of the slots that share the head of `slot`, which are neighbours: one after the other, in the wide
 * type, rounded once. */
static sbp_status add_slots(const walk *w, const turning *x, sbp_step_place to, int64_t first, int64_t rows,
                            int64_t slot) {
    sbp_step sum = {.kind = SBP_STEP_ADD, .rows = rows, .cols = x->heads->dim, .count = 1, .adds = true};
    sum.to = to.dtype == x->sums.dtype ? to : x->sums;
    SBP_TRY(copy_rows(w, sum.to, at(SBP_STEP_ZEROS, sum.to.dtype, 0), rows, sum.cols));
    for (int64_t c = 0; c < x->same; c++) {
        sum.from = slot_at(x, first, rows, slot + c);
        SBP_TRY(w->run(w->user, &sum));
    }
    if (to.dtype == x->sums.dtype)
        return SBP_OK;
    sum = (sbp_step){
        .kind = SBP_STEP_ADD, .rows = rows, .cols = sum.cols, .from = x->sums, .to = to, .count = 1};
    return w->run(w->user, &sum);
}

/* What has come of some rows, to their heads. A head's copies are neighbours, as many of each head: without
 * them heads that are neighbours go at once. */
static sbp_status unpack(const walk *w, const turning *x, int64_t first, int64_t rows) {
    for (int64_t slot = 0, run; slot < x->pg.count * x->slots; slot += run) {
        int64_t head = head_of(x, slot);
        sbp_step_place to = later(x->own, first * x->own_cols + head * x->heads->dim);
        run = x->same > 1 && head >= 0 ? x->same : run_of(x, slot);
        if (head >= 0)
            SBP_TRY(x->same > 1 ? add_slots(w, x, to, first, rows, slot)
                                : copy_rows(w, to, slot_at(x, first, rows, slot), rows, run * x->heads->dim));
    }
    return SBP_OK;
}

static sbp_status to_rows(const walk *w) {
    turning x;
    SBP_TRY(turn(w, SBP_STEP_DST, SBP_STEP_SRC, &x));
    for (int64_t first = 0; first < x.rows; first += x.block) {
        int64_t rows = sbp_min_i64(x.rows - first, x.block), elems = rows * x.slot_cols;
        for (int32_t m = 0; m < x.pg.count; m++) {
            if (m == x.pg.me)
                continue;
            SBP_TRY(send(w, rank_at(&x.pg, m), rows_of(&x, m, first), elems));
            SBP_TRY(receive(w, rank_at(&x.pg, m), packed_of(&x, m, rows), elems));
        }
        SBP_TRY(exchange(w, SBP_ROUND_HEADS, x.pg.count, x.pg.stride));
        SBP_TRY(unpack(w, &x, first, rows));
    }
    return SBP_OK;
}

/* ---- collectives ------------------------------------------------------------------------------------ */

sbp_collective_call sbp_collective_call_of(const sbp_command *command, const sbp_operand_shape *dst,
                                           const sbp_operand_shape *src, const sbp_collective_world *world) {
    const sbp_collective_info *info = &sbp_collectives[command->u.collective.op];
    int64_t to = dst->rows * dst->cols, from = src->rows * src->cols;
    sbp_collective_call call = {.op = command->u.collective.op,
                                .world = *world,
                                .elems = to > from ? to : from,
                                .to = dst->dtype,
                                .from = src->dtype,
                                .rows = info->kind == SBP_KIND_TO_HEADS ? src->rows : dst->rows,
                                .work_bytes = SBP_STEP_UNBOUNDED,
                                .piece_bytes = SBP_STEP_UNBOUNDED};
    if (info->kind == SBP_KIND_SHARE)
        call.elems = to;
    if (info->kind == SBP_KIND_TO_HEADS || info->kind == SBP_KIND_TO_ROWS)
        call.heads = command->u.collective.heads;
    return call;
}

const sbp_phase *sbp_collective_phases(sbp_collective_op op) {
    static const sbp_phase phases[SBP_COLLECTIVE_KINDS][SBP_MOST_PHASES + 1] = {
        [SBP_KIND_ALL_REDUCE] = {SBP_PHASE_SUM, SBP_PHASE_GATHER},
        [SBP_KIND_REDUCE_SCATTER] = {SBP_PHASE_SUM},
        [SBP_KIND_ALL_GATHER] = {SBP_PHASE_PLACE, SBP_PHASE_GATHER},
        [SBP_KIND_BROADCAST] = {SBP_PHASE_PLACE, SBP_PHASE_SCATTER, SBP_PHASE_GATHER},
        [SBP_KIND_SHARE] = {SBP_PHASE_PLACE},
        [SBP_KIND_TO_HEADS] = {SBP_PHASE_HEADS},
        [SBP_KIND_TO_ROWS] = {SBP_PHASE_ROWS}};
    return phases[sbp_collectives[op].kind];
}

sbp_status sbp_phase_steps(const sbp_collective_call *call, sbp_phase phase, sbp_step_run run, void *user,
                           sbp_diag *diag) {
    static sbp_status (*const phases[])(const walk *w) = {
        [SBP_PHASE_PLACE] = place,   [SBP_PHASE_SCATTER] = scatter, [SBP_PHASE_SUM] = sum,
        [SBP_PHASE_GATHER] = gather, [SBP_PHASE_HEADS] = to_heads,  [SBP_PHASE_ROWS] = to_rows};
    return phases[phase](&(walk){call, run, user, diag});
}

sbp_status sbp_collective_steps(const sbp_collective_call *call, sbp_step_run run, void *user,
                                sbp_diag *diag) {
    for (const sbp_phase *p = sbp_collective_phases(call->op); *p != SBP_PHASE_NONE; p++)
        SBP_TRY(sbp_phase_steps(call, *p, run, user, diag));
    return SBP_OK;
}

/* ---- bytes ------------------------------------------------------------------------------------------ */

static sbp_sent nothing(void) {
    sbp_sent out = {0};
    for (int32_t i = 0; i < SBP_ROUNDS; i++)
        out.rounds[i] = (sbp_sent_round){0, 1, 1};
    return out;
}

typedef struct counter {
    sbp_sent *out;
    const sbp_collective_world *world;
    int64_t bytes; /* of this round */
} counter;

static sbp_status count_step(void *user, const sbp_step *step) {
    counter *c = user;
    int64_t bytes = step->rows * step->cols;
    if (step->kind == SBP_STEP_SEND) {
        bytes *= sbp_dtype_bytes(step->from.dtype);
        c->bytes += bytes;
        c->out->away += step->peer / c->world->node != c->world->rank / c->world->node ? bytes : 0;
    } else if (step->kind == SBP_STEP_EXCHANGE) {
        sbp_sent_round *round = &c->out->rounds[step->round];
        *round = (sbp_sent_round){round->bytes + c->bytes, step->ranks, step->stride};
        c->out->bytes += c->bytes;
        c->bytes = 0;
    }
    return SBP_OK;
}

static void count_phase(const sbp_collective_call *call, sbp_phase phase, sbp_sent *out) {
    sbp_collective_call all = *call;
    all.work_bytes = all.piece_bytes = SBP_STEP_UNBOUNDED;
    all.src_apart = all.dst_apart = false;
    counter c = {.out = out, .world = &call->world};
    if (sbp_phase_steps(&all, phase, count_step, &c, NULL) != SBP_OK)
        *out = nothing(); /* a type without a sum */
}

sbp_sent sbp_phase_sent(const sbp_collective_call *call, sbp_phase phase) {
    sbp_sent out = nothing();
    count_phase(call, phase, &out);
    return out;
}

sbp_sent sbp_collective_sent(const sbp_collective_call *call) {
    sbp_sent out = nothing();
    for (const sbp_phase *p = sbp_collective_phases(call->op); *p != SBP_PHASE_NONE; p++)
        count_phase(call, *p, &out);
    return out;
}
