/* wire_sums.c: sums over ranks: slice by slice of each one's share, an exchange, and a kernel that adds what
 * came along the tree of backends/ranks (kernels/sum_ranks.cu). */
#include "backends/cuda/device/wire.h"

#include <string.h>

/* Data of `elems` elements at `from`, of which this member's share goes to `to`; and how the workspace is
 * divided for slices of `most` elements: what arrives; all slices that are sent, where they lie on the host;
 * the result, where that does; the sum of a group, before that of all groups, and of that what arrives. */
typedef struct summing {
    const sbp_team *team;
    bool adds, across;
    cuda_place to, from;
    sbp_dtype to_dtype, from_dtype, wide; /* wide: in which is added */
    int64_t elems, most;
    cuda_address arrived, staged, result, partial, others;
} summing;

static bool staged(const summing *s) {
    return s->from.space == SBP_HOST;
}

static bool takes_back(const summing *s) {
    return s->to.space == SBP_HOST;
}

static sbp_status divide(const cuda_task *t, summing *s) {
    int64_t unit = sbp_dtype_bytes(s->from_dtype), wide = sbp_dtype_bytes(s->wide),
            groups = t->w->others.count;
    int64_t arrived = (s->team->count - 1) * unit, staging = staged(s) ? s->team->count * unit : 0,
            result = takes_back(s) ? sbp_dtype_bytes(s->to_dtype) : 0, partial = s->across ? wide : 0;
    /* whole parts of all groups, so that those of slices are those of the share */
    int64_t multiple = CUDA_WIRE_SLICE * (s->across ? groups : 1);
    s->most = t->work_bytes / (arrived + staging + result + 2 * partial) / multiple * multiple;
    if (s->most == 0)
        return cuda_wire_too_little(t);
    s->arrived = t->work;
    s->staged = s->arrived + (uint64_t)(arrived * s->most);
    s->result = s->staged + (uint64_t)(staging * s->most);
    s->partial = s->result + (uint64_t)(result * s->most);
    s->others = s->partial + (uint64_t)(partial * s->most);
    return SBP_OK;
}

/* Of a slice, that member's part as this rank has it. */
static cuda_address slice_at(const cuda_task *t, const summing *s, int32_t member, int64_t at) {
    int64_t unit = sbp_dtype_bytes(s->from_dtype);
    if (staged(s))
        return s->staged + (uint64_t)(member * s->most * unit);
    return cuda_place_address(
        t, cuda_place_later(s->from, (sbp_team_begin(s->team, s->elems, member) + at) * unit));
}

/* Where what a member sends arrives, so many bytes from one to the next. */
static cuda_address arrives_at(cuda_address begin, const sbp_team *team, int32_t member, int64_t bytes) {
    return begin + (uint64_t)((member - (member > team->me)) * bytes);
}

static sbp_status exchange_slices(const cuda_task *t, const summing *s, int64_t at) {
    int64_t unit = sbp_dtype_bytes(s->from_dtype);
    for (int32_t m = 0; m < s->team->count && staged(s); m++)
        SBP_TRY(cuda_wire_bring(t, slice_at(t, s, m, at),
                                cuda_place_later(s->from, (sbp_team_begin(s->team, s->elems, m) + at) * unit),
                                sbp_team_slice(s->team, s->elems, m, at, s->most) * unit));
    SBP_TRY(cuda_wire_begin(t));
    for (int32_t m = 0; m < s->team->count; m++) {
        if (m == s->team->me)
            continue;
        SBP_TRY(cuda_wire_send(t, sbp_team_rank(s->team, m), slice_at(t, s, m, at),
                               sbp_team_slice(s->team, s->elems, m, at, s->most) * unit));
        SBP_TRY(cuda_wire_receive(t, sbp_team_rank(s->team, m),
                                  arrives_at(s->arrived, s->team, m, s->most * unit),
                                  sbp_team_slice(s->team, s->elems, s->team->me, at, s->most) * unit));
    }
    return cuda_wire_end(t);
}

sbp_status cuda_wire_add(const cuda_task *t, const sbp_cuda_sum *sum) {
    sbp_cuda_step step;
    sbp_gpu_args args;
    memset(&args, 0, sizeof args);
    sbp_cuda_sum_step(sum, &args, &step);
    return cuda_kernels_step(t->d, &step, &args, t->stream, t->diag);
}

/* The sums of a group, at s->partial, to those of all groups: each group adds up a part of them. */
static sbp_status sum_groups(const cuda_task *t, const summing *s, int64_t slice) {
    const sbp_team *team = &t->w->others;
    int64_t unit = sbp_dtype_bytes(s->wide), most = s->most / team->count,
            mine = sbp_team_slice(team, slice, team->me, 0, most);
    cuda_address own = s->partial + (uint64_t)(sbp_team_begin(team, slice, team->me) * unit);
    SBP_TRY(cuda_wire_begin(t));
    for (int32_t m = 0; m < team->count; m++) {
        if (m == team->me)
            continue;
        SBP_TRY(cuda_wire_send(t, sbp_team_rank(team, m),
                               s->partial + (uint64_t)(sbp_team_begin(team, slice, m) * unit),
                               sbp_team_slice(team, slice, m, 0, most) * unit));
        SBP_TRY(cuda_wire_receive(t, sbp_team_rank(team, m), arrives_at(s->others, team, m, most * unit),
                                  mine * unit));
    }
    SBP_TRY(cuda_wire_end(t));
    if (mine > 0)
        SBP_TRY(cuda_wire_add(t, &(sbp_cuda_sum){.to = own,
                                                 .own = own,
                                                 .arrived = s->others,
                                                 .to_dtype = s->wide,
                                                 .from_dtype = s->wide,
                                                 .elems = mine,
                                                 .stride = most,
                                                 .me = team->me,
                                                 .count = team->count}));
    SBP_TRY(cuda_wire_begin(t));
    for (int32_t m = 0; m < team->count; m++) {
        if (m == team->me)
            continue;
        SBP_TRY(cuda_wire_send(t, sbp_team_rank(team, m), own, mine * unit));
        SBP_TRY(cuda_wire_receive(t, sbp_team_rank(team, m),
                                  s->partial + (uint64_t)(sbp_team_begin(team, slice, m) * unit),
                                  sbp_team_slice(team, slice, m, 0, most) * unit));
    }
    return cuda_wire_end(t);
}

/* What arrived, and this member's own, to the result; by way of all groups where there are several. */
static sbp_status add_slices(const cuda_task *t, const summing *s, int64_t at) {
    int64_t mine = sbp_team_slice(s->team, s->elems, s->team->me, at, s->most);
    cuda_place to = cuda_place_later(s->to, at * sbp_dtype_bytes(s->to_dtype));
    sbp_cuda_sum sum = {.adds = s->adds,
                        .to = takes_back(s) ? s->result : cuda_place_address(t, to),
                        .own = slice_at(t, s, s->team->me, at),
                        .arrived = s->arrived,
                        .to_dtype = s->to_dtype,
                        .from_dtype = s->from_dtype,
                        .elems = mine,
                        .stride = s->most,
                        .me = s->team->me,
                        .count = s->team->count};
    if (mine == 0)
        return SBP_OK;
    if (s->across) {
        sbp_cuda_sum partial = sum;
        partial.adds = false;
        partial.to = s->partial;
        partial.to_dtype = s->wide;
        SBP_TRY(cuda_wire_add(t, &partial));
        SBP_TRY(sum_groups(t, s, mine));
        sum.own = s->partial; /* a sum of one, which only rounds */
        sum.from_dtype = s->wide;
        sum.me = 0;
        sum.count = 1;
    }
    if (takes_back(s) && s->adds)
        SBP_TRY(cuda_wire_bring(t, s->result, to, mine * sbp_dtype_bytes(s->to_dtype)));
    SBP_TRY(cuda_wire_add(t, &sum));
    return takes_back(s) ? cuda_wire_take(t, to, s->result, mine * sbp_dtype_bytes(s->to_dtype)) : SBP_OK;
}

sbp_status cuda_wire_sum(const cuda_task *t, const sbp_team *team, cuda_place to, const sbp_span *from,
                         bool across) {
    summing s = {.team = team,
                 .adds = t->command->u.collective == SBP_REDUCE_ADD,
                 .across = across && t->w->others.count > 1,
                 .to = to,
                 .from = cuda_place_of(from, 0),
                 .to_dtype = t->to->dtype,
                 .from_dtype = from->dtype,
                 .wide = sbp_cuda_sum_wide(from->dtype),
                 .elems = from->rows * from->cols};
    SBP_TRY(divide(t, &s));
    for (int64_t at = 0; at < sbp_team_begin(team, s.elems, 1); at += s.most) {
        SBP_TRY(exchange_slices(t, &s, at));
        SBP_TRY(add_slices(t, &s, at));
    }
    return SBP_OK;
}
