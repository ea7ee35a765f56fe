/* steps.c: collectives in the host's memory: their steps (ir/program/collective_steps.h), whose pieces go
 * through the transport, a round at a time. */
#include <string.h>

#include "backends/ranks/world.h"
#include "ir/program/collective_steps.h"

/* Bytes of one piece of what is only moved. */
#define PIECE_BYTES ((int64_t)64 << 20)

/* Numbers that are added at a time; sums of subtrees that stand at once. */
enum { BLOCK = 256, LEVELS = 32 };

typedef struct running {
    sbp_ranks *r;
    char *memory[SBP_STEP_WORK + 1];
    int32_t sends, receives; /* of the round at hand */
    const char *what;
    sbp_diag *diag;
} running;

static char *reach(const running *x, const sbp_step_place *p, int64_t elem) {
    return x->memory[p->memory] + p->offset + elem * sbp_dtype_bytes(p->dtype);
}

/* ---- additions -------------------------------------------------------------------------------------- */

/* To where it is added. */
static void widen(void *to, const void *from, int64_t count, sbp_dtype dtype) {
    const uint16_t *bits = from;
    float *wide = to;
    if (dtype == SBP_F32 || dtype == SBP_F64)
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

static void add_f32(float *restrict to, const float *restrict from, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        to[i] += from[i];
}

static void add_f64(double *restrict to, const double *restrict from, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        to[i] += from[i];
}

/* sums[depth - 2] += sums[depth - 1] */
static int32_t join(double sums[LEVELS][BLOCK], int32_t depth, int64_t count, bool doubles) {
    if (doubles)
        add_f64(sums[depth - 2], sums[depth - 1], count);
    else
        add_f32((float *)sums[depth - 2], (const float *)sums[depth - 1], count);
    return depth - 1;
}

/* Sums elements [first, first + count) of a row over the members into sums[0]: in the order of members,
 * each whole subtree of them added up when its last has come, as a binary counter counts; at the end
 * what is left. */
static void sum_block(const running *x, const sbp_step *s, int64_t row, int64_t first, int64_t count,
                      double sums[LEVELS][BLOCK]) {
    const sbp_dtype dtype = s->from.dtype;
    int32_t depth = 0, m = 0;
    do {
        int64_t before = m - (m > s->me);
        widen(sums[depth++],
              m == s->me ? reach(x, &s->from, row * s->from.stride + first)
                         : reach(x, &s->arrived, before * s->arrived.stride + row * s->cols + first),
              count, dtype);
        for (int32_t n = m + 1; n % 2 == 0; n /= 2)
            depth = join(sums, depth, count, dtype == SBP_F64);
    } while (++m < s->count);
    while (depth > 1)
        depth = join(sums, depth, count, dtype == SBP_F64);
}

/* To their place, of a type; or they are added there. */
static void deliver(char *out, sbp_dtype dtype, bool adds, const void *sums, int64_t count, bool doubles) {
    const float *narrow = sums;
    const double *wide = sums;
    if (adds && dtype == SBP_F32 && !doubles)
        add_f32((float *)(void *)out, narrow, count);
    else if (adds)
        for (int64_t i = 0; i < count; i++)
            sbp_element_set(out, dtype, i,
                            doubles ? sbp_element_get(out, dtype, i) + wide[i]
                                    : (double)((float)sbp_element_get(out, dtype, i) + narrow[i]));
    else if (doubles)
        for (int64_t i = 0; i < count; i++)
            sbp_element_set(out, dtype, i, wide[i]);
    else if (dtype == SBP_F64)
        for (int64_t i = 0; i < count; i++)
            sbp_element_set(out, dtype, i, (double)narrow[i]);
    else
        round_to(out, narrow, count, dtype);
}

static void add(const running *x, const sbp_step *s) {
    double sums[LEVELS][BLOCK];
    for (int64_t row = 0; row < s->rows; row++)
        for (int64_t first = 0; first < s->cols; first += BLOCK) {
            int64_t count = sbp_min_i64(s->cols - first, BLOCK);
            sum_block(x, s, row, first, count, sums);
            deliver(reach(x, &s->to, row * s->to.stride + first), s->to.dtype, s->adds, sums[0], count,
                    s->from.dtype == SBP_F64);
        }
}

/* ---- steps ------------------------------------------------------------------------------------------ */

static void copy(const running *x, const sbp_step *s) {
    bool zeros = s->from.memory == SBP_STEP_ZEROS,
         dense = s->to.stride == s->cols && (zeros || s->from.stride == s->cols);
    int64_t rows = dense ? 1 : s->rows;
    size_t bytes = (size_t)((dense ? s->rows : 1) * s->cols * sbp_dtype_bytes(s->to.dtype));
    for (int64_t row = 0; row < rows; row++) {
        char *to = reach(x, &s->to, row * s->to.stride);
        if (zeros)
            memset(to, 0, bytes);
        else
            memmove(to, reach(x, &s->from, row * s->from.stride), bytes);
    }
}

static sbp_status run_step(void *user, const sbp_step *s) {
    running *x = user;
    sbp_ranks *r = x->r;
    switch (s->kind) {
    case SBP_STEP_SEND:
        sbp_ranks_add_piece(r, r->send, &x->sends, s->peer, reach(x, &s->from, 0),
                            s->cols * sbp_dtype_bytes(s->from.dtype));
        return SBP_OK;
    case SBP_STEP_RECEIVE:
        sbp_ranks_add_piece(r, r->receive, &x->receives, s->peer, reach(x, &s->to, 0),
                            s->cols * sbp_dtype_bytes(s->to.dtype));
        return SBP_OK;
    case SBP_STEP_EXCHANGE: {
        int32_t sends = x->sends, receives = x->receives;
        x->sends = x->receives = 0;
        return r->transport ? sbp_ranks_exchange(r, sends, receives, x->what, x->diag) : SBP_OK;
    }
    case SBP_STEP_ADD:
        add(x, s);
        return SBP_OK;
    case SBP_STEP_COPY:
        copy(x, s);
        return SBP_OK;
    }
    return SBP_OK;
}

sbp_status sbp_ranks_collective(sbp_ranks *r, const sbp_collective_call *given, void *dst, const void *src,
                                sbp_diag *diag) {
    sbp_collective_call call = *given;
    running x = {.r = r, .what = sbp_collectives[call.op].name, .diag = diag};
    x.memory[SBP_STEP_DST] = dst;
    x.memory[SBP_STEP_SRC] = (char *)src;
    x.memory[SBP_STEP_WORK] = r->work;
    call.world =
        (sbp_collective_world){r->world.rank, r->world.count, r->group, r->world.count, r->world.node};
    call.work_bytes = r->work_bytes;
    call.piece_bytes = PIECE_BYTES;
    return sbp_collective_steps(&call, run_step, &x, diag);
}

/* ---- what programs ask for outside of plans ---------------------------------------------------------- */

static sbp_collective_call call_of(sbp_collective_op op, int64_t elems, sbp_dtype dtype) {
    return (sbp_collective_call){.op = op, .elems = elems, .to = dtype, .from = dtype};
}

sbp_status sbp_ranks_all_reduce(sbp_ranks *r, void *data, int64_t elems, sbp_dtype dtype, sbp_diag *diag) {
    const sbp_collective_call call = call_of(SBP_ALL_REDUCE, elems, dtype);
    return r->transport ? sbp_ranks_collective(r, &call, data, data, diag) : SBP_OK;
}

sbp_status sbp_ranks_all_gather(sbp_ranks *r, void *data, const void *share, int64_t elems, sbp_dtype dtype,
                                sbp_diag *diag) {
    const sbp_collective_call call = call_of(SBP_ALL_GATHER, elems, dtype);
    return sbp_ranks_collective(r, &call, data, share, diag);
}

sbp_status sbp_ranks_broadcast(sbp_ranks *r, void *data, int64_t elems, sbp_dtype dtype, int32_t root,
                               sbp_diag *diag) {
    sbp_collective_call call = call_of(SBP_BROADCAST, elems, dtype);
    call.root = root;
    return sbp_ranks_collective(r, &call, data, data, diag);
}
