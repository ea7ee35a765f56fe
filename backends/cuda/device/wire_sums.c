/* wire_sums.c: sums over ranks: slice by slice of each one's share, an exchange, and a kernel that adds what
 * came along the tree of backends/ranks (kernels/sum_ranks.cu); of neighbours on a host first, where there
 * are several hosts. */
#include "backends/cuda/device/wire.h"

#include <string.h>

/* Of a team: what arrives, of its neighbours and then of those in its place; the sums of the neighbours. */
typedef struct room {
    cuda_address arrived, sums;
} room;

/* Data of `elems` elements at `from`, of which this member's share goes to `to`; and how the workspace is
 * divided for slices of `most` elements: room for what is exchanged; all slices that are sent, where they lie
 * on the host; the result, where that does; the sum of a group, before that of all groups, and room for that.
 */
typedef struct summing {
    const sbp_team *team;
    bool adds, across;
    cuda_place to, from;
    sbp_dtype to_dtype, from_dtype, wide; /* wide: in which is added */
    int64_t elems, most;
    room own, groups;
    cuda_address staged, result, partial;
} summing;

static bool staged(const summing *s) {
    return s->from.space == SBP_HOST;
}

static bool takes_back(const summing *s) {
    return s->to.space == SBP_HOST;
}

/* Bytes of a team's room, for each element of a slice. */
static int64_t arriving_bytes(const sbp_team *team, int64_t unit, int64_t wide) {
    int64_t blocks = sbp_team_blocks(team), near = (team->near - 1) * blocks * unit;
    return near > (blocks - 1) * wide ? near : (blocks - 1) * wide;
}

static int64_t sums_bytes(const sbp_team *team, int64_t wide) {
    return team->near < team->count ? sbp_team_blocks(team) * wide : 0;
}

static sbp_status divide(const cuda_task *t, summing *s) {
    const sbp_team *others = &t->w->others;
    int64_t unit = sbp_dtype_bytes(s->from_dtype), wide = sbp_dtype_bytes(s->wide),
            arrived = arriving_bytes(s->team, unit, wide), sums = sums_bytes(s->team, wide),
            staging = staged(s) ? s->team->count * unit : 0,
            result = takes_back(s) ? sbp_dtype_bytes(s->to_dtype) : 0, partial = s->across ? wide : 0;
    /* of all parts of a slice together */
    int64_t groups = s->across ? sbp_ceil_div(arriving_bytes(others, wide, wide), others->count) : 0,
            groups_sums = s->across ? sbp_ceil_div(sums_bytes(others, wide), others->count) : 0;
    /* whole parts of all groups, so that those of slices are those of the share */
    int64_t multiple = CUDA_WIRE_SLICE * (s->across ? others->count : 1);
    int64_t each = arrived + sums + staging + result + partial + groups + groups_sums;
    s->most = t->work_bytes / (each > 0 ? each : 1) / multiple * multiple; /* 0: of one rank, in place */
    if (s->most == 0)
        return cuda_wire_too_little(t);
    s->own.arrived = t->work;
    s->own.sums = s->own.arrived + (uint64_t)(arrived * s->most);
    s->staged = s->own.sums + (uint64_t)(sums * s->most);
    s->result = s->staged + (uint64_t)(staging * s->most);
    s->partial = s->result + (uint64_t)(result * s->most);
    s->groups.arrived = s->partial + (uint64_t)(partial * s->most);
    s->groups.sums = s->groups.arrived + (uint64_t)(groups * s->most);
    return SBP_OK;
}

/* What the team has of slices `at` on the device; brought there where it is on the host. */
static sbp_status slices_at(const cuda_task *t, const summing *s, int64_t at, cuda_slices *out) {
    int64_t unit = sbp_dtype_bytes(s->from_dtype);
    *out = (cuda_slices){s->team, s->staged, s->most, s->elems, at, s->most, unit};
    if (!staged(s)) {
        out->data = cuda_place_address(t, cuda_place_later(s->from, at * unit));
        out->apart = sbp_team_begin(s->team, s->elems, 1);
    }
    for (int32_t m = 0; m < s->team->count && staged(s); m++)
        SBP_TRY(cuda_wire_bring(t, cuda_slice_at(out, m),
                                cuda_place_later(s->from, (sbp_team_begin(s->team, s->elems, m) + at) * unit),
                                cuda_slice_bytes(out, m)));
    return SBP_OK;
}

sbp_status cuda_wire_add(const cuda_task *t, const sbp_cuda_sum *sum) {
    sbp_cuda_step step;
    sbp_gpu_args args;
    memset(&args, 0, sizeof args);
    sbp_cuda_sum_step(sum, &args, &step);
    return cuda_kernels_step(t->d, &step, &args, t->stream, t->diag);
}

/* Where what a member sends arrives, so many bytes from one to the next. */
static cuda_address arrives_at(cuda_address begin, int32_t me, int32_t member, int64_t bytes) {
    return begin + (uint64_t)((member - (member > me)) * bytes);
}

/* Of each member in this one's place, its slice from all neighbours. */
static sbp_status exchange_near(const cuda_task *t, const cuda_slices *s, const room *r, int64_t row) {
    const sbp_team *team = s->team;
    int32_t blocks = sbp_team_blocks(team), place = sbp_team_place(team), near = team->near;
    SBP_TRY(cuda_wire_begin(t));
    for (int32_t p = 0; p < near; p++)
        for (int32_t b = 0; b < blocks && p != place; b++) {
            int32_t rank = sbp_team_rank(team, sbp_team_block(team) * near + p);
            cuda_address to = arrives_at(r->arrived, place, p, blocks * row * s->unit);
            SBP_TRY(
                cuda_wire_send(t, rank, cuda_slice_at(s, b * near + p), cuda_slice_bytes(s, b * near + p)));
            SBP_TRY(cuda_wire_receive(t, rank, to + (uint64_t)(b * row * s->unit),
                                      cuda_slice_bytes(s, b * near + place)));
        }
    return cuda_wire_end(t);
}

/* The sum of what arrived of neighbours with this member's own, for `rows` members in its place from block
 * `block` on, who have `cols` each; `row`: of the first. The caller says to where. */
static sbp_cuda_sum near_sum(const cuda_slices *s, const room *r, sbp_dtype dtype, int64_t row, int32_t block,
                             int64_t rows, int64_t cols) {
    const sbp_team *team = s->team;
    return (sbp_cuda_sum){.own = cuda_slice_at(s, block * team->near + sbp_team_place(team)),
                          .arrived = r->arrived + (uint64_t)(block * row * s->unit),
                          .from_dtype = dtype,
                          .elems = rows * cols,
                          .stride = sbp_team_blocks(team) * row,
                          .me = sbp_team_place(team),
                          .count = team->near,
                          .rows = rows,
                          .to_stride = row,
                          .own_stride = team->near * s->apart};
}

/* For each member in this one's place, to r->sums. Those with as much as the first at once. */
static sbp_status add_near(const cuda_task *t, const cuda_slices *s, const room *r, sbp_dtype dtype,
                           int64_t row) {
    const sbp_team *team = s->team;
    const sbp_dtype wide = sbp_cuda_sum_wide(dtype);
    int32_t blocks = sbp_team_blocks(team);
    for (int32_t b = 0, rows; b < blocks; b += rows) {
        int64_t bytes = cuda_slice_bytes(s, b * team->near + sbp_team_place(team));
        bool many = team->near * s->apart <= INT32_MAX; /* what a kernel takes */
        for (rows = 1; many && b + rows < blocks; rows++)
            if (cuda_slice_bytes(s, (b + rows) * team->near + sbp_team_place(team)) != bytes)
                break;
        sbp_cuda_sum sum = near_sum(s, r, dtype, row, b, rows, bytes / s->unit);
        sum.to = r->sums + (uint64_t)(b * row * sbp_dtype_bytes(wide));
        sum.to_dtype = wide;
        if (bytes > 0)
            SBP_TRY(cuda_wire_add(t, &sum));
    }
    return SBP_OK;
}

/* This member's slice of the sum over a team, but for its last addition: the caller says to where that goes.
 * Of no elements: nothing. */
static sbp_status sum_slices(const cuda_task *t, const cuda_slices *s, const room *r, sbp_dtype dtype,
                             sbp_cuda_sum *last) {
    const sbp_team *team = s->team;
    const sbp_dtype wide = sbp_cuda_sum_wide(dtype);
    int32_t blocks = sbp_team_blocks(team), block = sbp_team_block(team), place = sbp_team_place(team);
    int64_t unit = sbp_dtype_bytes(wide), row = cuda_slice_bytes(s, place) / s->unit,
            mine = cuda_slice_bytes(s, team->me) / s->unit;
    SBP_TRY(exchange_near(t, s, r, row));
    *last = near_sum(s, r, dtype, row, 0, 1, mine);
    if (blocks == 1)
        return SBP_OK;
    SBP_TRY(add_near(t, s, r, dtype, row));
    SBP_TRY(cuda_wire_begin(t));
    for (int32_t b = 0; b < blocks; b++) {
        int32_t other = b * team->near + place;
        if (b == block)
            continue;
        SBP_TRY(cuda_wire_send(t, sbp_team_rank(team, other), r->sums + (uint64_t)(b * row * unit),
                               cuda_slice_bytes(s, other) / s->unit * unit));
        SBP_TRY(cuda_wire_receive(t, sbp_team_rank(team, other),
                                  arrives_at(r->arrived, block, b, mine * unit), mine * unit));
    }
    SBP_TRY(cuda_wire_end(t));
    *last = (sbp_cuda_sum){.own = r->sums + (uint64_t)(block * row * unit),
                           .arrived = r->arrived,
                           .from_dtype = wide,
                           .elems = mine,
                           .stride = mine,
                           .me = block,
                           .count = blocks};
    return SBP_OK;
}

/* `elems` sums of this group, at `data`, to those of all groups: each group adds up a part of them. */
static sbp_status sum_part(const cuda_task *t, const summing *s, cuda_address data, int64_t elems) {
    const sbp_team *team = &t->w->others;
    int64_t part = sbp_ceil_div(elems, team->count);
    const cuda_slices parts = {team, data, part, elems, 0, part, sbp_dtype_bytes(s->wide)};
    sbp_cuda_sum sum;
    SBP_TRY(sum_slices(t, &parts, &s->groups, s->wide, &sum));
    sum.to = cuda_slice_at(&parts, team->me);
    sum.to_dtype = s->wide;
    if (sum.elems > 0)
        SBP_TRY(cuda_wire_add(t, &sum));
    return cuda_wire_gather(t, &parts);
}

/* The sums of a group, at s->partial, to those of all groups. As backends/ranks does it: what is no whole
 * parts goes by itself. */
static sbp_status sum_groups(const cuda_task *t, const summing *s, int64_t slice) {
    const sbp_team *team = &t->w->others;
    int64_t rest = slice % team->count, whole = slice - rest;
    if (whole > 0)
        SBP_TRY(sum_part(t, s, s->partial, whole));
    if (rest > 0)
        SBP_TRY(sum_part(t, s, s->partial + (uint64_t)(whole * sbp_dtype_bytes(s->wide)), rest));
    return SBP_OK;
}

/* This member's slice of the sum to the result; by way of all groups where there are several. */
static sbp_status sum_slice(const cuda_task *t, const summing *s, int64_t at) {
    cuda_place to = cuda_place_later(s->to, at * sbp_dtype_bytes(s->to_dtype));
    cuda_slices slices;
    sbp_cuda_sum sum;
    SBP_TRY(slices_at(t, s, at, &slices));
    SBP_TRY(sum_slices(t, &slices, &s->own, s->from_dtype, &sum));
    int64_t mine = sum.elems, bytes = mine * sbp_dtype_bytes(s->to_dtype);
    if (mine == 0)
        return SBP_OK;
    if (s->across) {
        sum.to = s->partial;
        sum.to_dtype = s->wide;
        SBP_TRY(cuda_wire_add(t, &sum));
        SBP_TRY(sum_groups(t, s, mine));
        sum =
            (sbp_cuda_sum){.own = s->partial, .from_dtype = s->wide, .elems = mine, .count = 1}; /* rounds */
    }
    sum.adds = s->adds;
    sum.to = takes_back(s) ? s->result : cuda_place_address(t, to);
    sum.to_dtype = s->to_dtype;
    if (takes_back(s) && s->adds)
        SBP_TRY(cuda_wire_bring(t, s->result, to, bytes));
    SBP_TRY(cuda_wire_add(t, &sum));
    return takes_back(s) ? cuda_wire_take(t, to, s->result, bytes) : SBP_OK;
}

sbp_status cuda_wire_sum(const cuda_task *t, const sbp_team *team, cuda_place to, const sbp_span *from,
                         bool across) {
    summing s = {.team = team,
                 .adds = t->command->u.collective.op == SBP_REDUCE_ADD,
                 .across = across && t->w->others.count > 1,
                 .to = to,
                 .from = cuda_place_of(from, 0),
                 .to_dtype = t->to->dtype,
                 .from_dtype = from->dtype,
                 .wide = sbp_cuda_sum_wide(from->dtype),
                 .elems = from->rows * from->cols};
    SBP_TRY(divide(t, &s));
    for (int64_t at = 0; at < sbp_team_begin(team, s.elems, 1); at += s.most)
        SBP_TRY(sum_slice(t, &s, at));
    return SBP_OK;
}
