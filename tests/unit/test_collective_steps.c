/* test_collective_steps.c: the steps of a collective, carried out in memory for all ranks of worlds of 1 to 9
 * and 16, on hosts of several sizes and in all groups, whole and in many slices: every element against the
 * tree written out here, bit for bit; bytes of each rank against formulas. What is exchanged is what the
 * other side waits for; nothing is used that has not come, and nothing lies outside of the workspace. */
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backends/composite/engines.h"
#include "ir/program/collective_steps.h"
#include "tests/common/traffic.h"

enum { MOST_RANKS = 16, MOST_MAIL = 1 << 12, MOST_PIECES = 512 };

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            fail_msg("%s:%d: %s (%s of %d ranks, groups %d, contexts %d, hosts %d; %lld elements, %s)",      \
                     __FILE__, __LINE__, #condition, sbp_collectives[now.op].name, (int)now.world.ranks,     \
                     (int)now.world.group, (int)now.world.context, (int)now.world.node,                      \
                     (long long)now.elems, sbp_dtype_name(now.from));                                        \
    } while (0)

static sbp_collective_call now; /* that is tried, for messages */

/* ---- a rank ----------------------------------------------------------------------------------------- */

typedef struct sent_piece {
    int64_t bytes;
    char *data;
} sent_piece;

/* From one rank to another, in order. */
typedef struct mail {
    sent_piece *pieces;
    int32_t count, taken, room;
} mail;

typedef struct rank {
    sbp_collective_call call;
    sbp_step *steps;
    int32_t count, room, at;
    bool posted;                     /* what the round at hand sends */
    char *memory[SBP_STEP_WORK + 1]; /* zeros: NULL */
    int64_t bytes[SBP_STEP_WORK + 1];
    int64_t sent, away;
} rank;

static rank ranks[MOST_RANKS];
static mail mails[MOST_RANKS][MOST_RANKS]; /* [from][to] */

static sbp_status keep(void *user, const sbp_step *step) {
    rank *r = user;
    if (r->count == r->room) {
        r->room = r->room ? 2 * r->room : 256;
        r->steps = realloc(r->steps, (size_t)r->room * sizeof *r->steps);
        assert_non_null(r->steps);
    }
    r->steps[r->count++] = *step;
    return SBP_OK;
}

/* The elements of a place, `rows` rows of `cols` each. */
static char *reach(rank *r, const sbp_step_place *p, int64_t rows, int64_t cols) {
    int64_t unit = sbp_dtype_bytes(p->dtype), elems = rows > 0 ? (rows - 1) * p->stride + cols : 0;
    CHECK(p->memory != SBP_STEP_ZEROS && p->offset >= 0 && p->offset % unit == 0);
    CHECK(p->offset + elems * unit <= r->bytes[p->memory]);
    return r->memory[p->memory] + p->offset;
}

/* By what is no copy. */
static bool may_use(const rank *r, const sbp_step_place *p) {
    return !(p->memory == SBP_STEP_SRC && r->call.src_apart) &&
           !(p->memory == SBP_STEP_DST && r->call.dst_apart);
}

static double round_wide(sbp_dtype wide, double x) {
    return wide == SBP_F64 ? x : (double)(float)x;
}

/* The sum of addends [begin, end), cut at the largest power of two below their number. */
static double addends(rank *r, const sbp_step *s, int32_t begin, int32_t end, int64_t row, int64_t col) {
    int32_t half = 1;
    const sbp_dtype wide = s->from.dtype == SBP_F64 ? SBP_F64 : SBP_F32;
    if (end - begin == 1 && begin == s->me)
        return sbp_element_get(reach(r, &s->from, s->rows, s->cols), s->from.dtype,
                               row * s->from.stride + col);
    if (end - begin == 1) {
        sbp_step_place p = s->arrived;
        p.offset += (begin - (begin > s->me)) * p.stride * sbp_dtype_bytes(p.dtype);
        p.stride = s->cols;
        CHECK(p.dtype == s->from.dtype);
        return sbp_element_get(reach(r, &p, s->rows, s->cols), p.dtype, row * s->cols + col);
    }
    while (half * 2 < end - begin)
        half *= 2;
    return round_wide(wide, addends(r, s, begin, begin + half, row, col) +
                                addends(r, s, begin + half, end, row, col));
}

static void add(rank *r, const sbp_step *s) {
    char *to = reach(r, &s->to, s->rows, s->cols);
    const sbp_dtype wide = s->from.dtype == SBP_F64 ? SBP_F64 : SBP_F32;
    CHECK(s->me >= 0 && s->me < s->count);
    for (int64_t row = 0; row < s->rows; row++)
        for (int64_t col = 0; col < s->cols; col++) {
            int64_t i = row * s->to.stride + col;
            double sum = addends(r, s, 0, s->count, row, col);
            if (s->adds)
                sum = round_wide(wide, round_wide(wide, sbp_element_get(to, s->to.dtype, i)) + sum);
            sbp_element_set(to, s->to.dtype, i, sum);
        }
}

static void copy(rank *r, const sbp_step *s) {
    int64_t unit = sbp_dtype_bytes(s->to.dtype);
    char *to = reach(r, &s->to, s->rows, s->cols);
    bool zeros = s->from.memory == SBP_STEP_ZEROS;
    const char *from = zeros ? NULL : reach(r, &s->from, s->rows, s->cols);
    CHECK(s->to.dtype == s->from.dtype);
    for (int64_t row = 0; row < s->rows; row++)
        if (zeros)
            memset(to + row * s->to.stride * unit, 0, (size_t)(s->cols * unit));
        else
            memmove(to + row * s->to.stride * unit, from + row * s->from.stride * unit,
                    (size_t)(s->cols * unit));
}

static void post(rank *r, const sbp_step *s) {
    mail *m = &mails[r->call.world.rank][s->peer];
    int64_t bytes = s->rows * s->cols * sbp_dtype_bytes(s->from.dtype);
    CHECK(s->peer != r->call.world.rank && s->rows == 1 && s->cols > 0);
    CHECK(may_use(r, &s->from));
    if (m->count == m->room) {
        m->room = m->room ? 2 * m->room : 16;
        m->pieces = realloc(m->pieces, (size_t)m->room * sizeof *m->pieces);
        assert_non_null(m->pieces);
    }
    char *data = malloc((size_t)bytes);
    assert_non_null(data);
    memcpy(data, reach(r, &s->from, 1, s->cols), (size_t)bytes);
    m->pieces[m->count++] = (sent_piece){bytes, data};
    r->sent += bytes;
    r->away += s->peer / r->call.world.node != r->call.world.rank / r->call.world.node ? bytes : 0;
}

/* Whether a round's pieces do not lie in each other's way: what is received in that of all others. */
static void check_apart(rank *r, int32_t begin, int32_t end) {
    for (int32_t i = begin; i < end; i++)
        for (int32_t k = begin; k < end; k++) {
            const sbp_step *a = &r->steps[i], *b = &r->steps[k];
            if (i == k || a->kind != SBP_STEP_RECEIVE)
                continue;
            const sbp_step_place *x = &a->to, *y = b->kind == SBP_STEP_SEND ? &b->from : &b->to;
            CHECK(x->memory != y->memory || x->offset + a->cols * sbp_dtype_bytes(x->dtype) <= y->offset ||
                  y->offset + b->cols * sbp_dtype_bytes(y->dtype) <= x->offset);
        }
}

/* The round from the step at hand to its exchange: false while something has not come. */
static bool meet(rank *r) {
    int32_t end = r->at, me = r->call.world.rank, wanted[MOST_RANKS] = {0};
    for (; r->steps[end].kind != SBP_STEP_EXCHANGE; end++) {
        const sbp_step *s = &r->steps[end];
        CHECK(s->kind == SBP_STEP_SEND || s->kind == SBP_STEP_RECEIVE); /* nothing else until it ends */
        CHECK(end + 1 < r->count);
        if (s->kind == SBP_STEP_SEND && !r->posted)
            post(r, s);
        wanted[s->peer] += s->kind == SBP_STEP_RECEIVE;
    }
    if (!r->posted && end - r->at < 100)
        check_apart(r, r->at, end);
    r->posted = true;
    for (int32_t p = 0; p < r->call.world.ranks; p++)
        if (mails[p][me].count - mails[p][me].taken < wanted[p])
            return false;
    for (; r->at < end; r->at++) {
        const sbp_step *s = &r->steps[r->at];
        if (s->kind != SBP_STEP_RECEIVE)
            continue;
        sent_piece *p = &mails[s->peer][me].pieces[mails[s->peer][me].taken++];
        CHECK(p->bytes == s->cols * sbp_dtype_bytes(s->to.dtype));
        CHECK(may_use(r, &s->to));
        memcpy(reach(r, &s->to, 1, s->cols), p->data, (size_t)p->bytes);
        free(p->data);
        p->data = NULL;
    }
    const sbp_step *e = &r->steps[r->at++];
    CHECK(e->round >= 0 && e->round < SBP_ROUNDS && e->ranks >= 1 && e->stride >= 1);
    r->posted = false;
    return true;
}

static bool advance(rank *r) {
    bool moved = false;
    for (; r->at < r->count; moved = true) {
        const sbp_step *s = &r->steps[r->at];
        if (s->kind == SBP_STEP_ADD || s->kind == SBP_STEP_COPY) {
            CHECK(s->kind != SBP_STEP_ADD || (may_use(r, &s->from) && may_use(r, &s->to)));
            s->kind == SBP_STEP_ADD ? add(r, s) : copy(r, s);
            r->at++;
        } else if (!meet(r)) {
            return moved;
        }
    }
    return moved;
}

/* All ranks, one after the other, until none waits. What each sends is what is counted. */
static void run_all(void) {
    bool moved = true;
    int32_t n = now.world.ranks;
    for (int32_t p = 0; p < n; p++) {
        sbp_sent sent = sbp_collective_sent(&ranks[p].call);
        int64_t rounds = 0;
        ranks[p].count = ranks[p].at = 0;
        ranks[p].sent = ranks[p].away = 0;
        ranks[p].posted = false;
        CHECK(sbp_collective_steps(&ranks[p].call, keep, &ranks[p], NULL) == SBP_OK);
        for (int32_t i = 0; i < ranks[p].count; i++)
            if (ranks[p].steps[i].kind == SBP_STEP_SEND)
                rounds += ranks[p].steps[i].cols * sbp_dtype_bytes(ranks[p].steps[i].from.dtype);
        CHECK(rounds == sent.bytes);
        for (int32_t k = 0; k < SBP_ROUNDS; k++)
            rounds -= sent.rounds[k].bytes;
        CHECK(rounds == 0);
    }
    while (moved) {
        moved = false;
        for (int32_t p = 0; p < n; p++)
            moved |= advance(&ranks[p]);
    }
    for (int32_t p = 0; p < n; p++) {
        sbp_sent sent = sbp_collective_sent(&ranks[p].call);
        CHECK(ranks[p].at == ranks[p].count);
        CHECK(ranks[p].sent == sent.bytes && ranks[p].away == sent.away);
        for (int32_t k = 0; k < n; k++) {
            CHECK(mails[p][k].taken == mails[p][k].count);
            mails[p][k].taken = mails[p][k].count = 0;
        }
    }
}

/* ---- worlds ----------------------------------------------------------------------------------------- */

static double number(int32_t p, int64_t i) {
    uint64_t x = (uint64_t)i * 0x9E3779B97F4A7C15u + (uint64_t)p * 0xBF58476D1CE4E5B9u + 77;
    x ^= x >> 31;
    x *= 0x94D049BB133111EBu;
    x ^= x >> 29;
    return ldexp((double)(int64_t)(x >> 20) / 0x1p43 - 1, (int)(x & 15) - 8);
}

/* Bytes of each memory, with one more that stays as it is. */
static void give(rank *r, sbp_step_memory memory, int64_t bytes) {
    if (!r->memory[memory] || r->bytes[memory] != bytes) {
        free(r->memory[memory]);
        r->memory[memory] = malloc((size_t)bytes + 1);
        assert_non_null(r->memory[memory]);
    }
    memset(r->memory[memory] + (memory == SBP_STEP_WORK ? bytes : 0), 0x5A,
           memory == SBP_STEP_WORK ? 1 : (size_t)bytes + 1);
    r->bytes[memory] = bytes;
}

static void forget(void) {
    for (int32_t p = 0; p < MOST_RANKS; p++) {
        for (int m = 0; m <= SBP_STEP_WORK; m++)
            free(ranks[p].memory[m]);
        free(ranks[p].steps);
        ranks[p] = (rank){0};
        for (int32_t k = 0; k < MOST_RANKS; k++) {
            free(mails[p][k].pieces);
            mails[p][k] = (mail){0};
        }
    }
}

/* The ranks of a process group by their numbers, [first, first + count) so far apart: their sum, along the
 * tree; of groups, each of `size`: of each first. */
static double tree(int32_t first, int32_t stride, int32_t count, int32_t size, int64_t i) {
    const sbp_dtype wide = now.from == SBP_F64 ? SBP_F64 : SBP_F32;
    int32_t half = 1;
    if (count == 1 && size == 1)
        return sbp_round_to(now.from, number(first, i));
    if (count == 1)
        return tree(first, 1, size, 1, i);
    while (half * 2 < count)
        half *= 2;
    return round_wide(wide, tree(first, stride, half, size, i) +
                                tree(first + half * stride, stride, count - half, size, i));
}

/* A share, by the rule that all but the last are equal. */
static int32_t members(void) {
    switch (sbp_collectives[now.op].among) {
    case SBP_AMONG_WORLD:
        return now.world.ranks;
    case SBP_AMONG_CONTEXT:
        return now.world.context;
    default:
        return now.world.group;
    }
}

static double sum_of(int32_t p, int64_t i) {
    int32_t count = members(), first = p - p % count;
    if (sbp_collectives[now.op].among == SBP_AMONG_GROUPS)
        return tree(0, now.world.group, now.world.ranks / now.world.group, now.world.group, i);
    return tree(first, 1, count, 1, i);
}

/* What rank p should have at dst[i], where src has number(p, ..) and dst had `was`. NAN: anything. */
static double wanted(int32_t p, int64_t i, double was) {
    int32_t count = members(), me = p % count, first = p - me, at = 0;
    int64_t begin = traffic_begin(now.elems, count, me), end = traffic_begin(now.elems, count, me + 1);
    const sbp_dtype wide = now.from == SBP_F64 ? SBP_F64 : SBP_F32;
    switch (sbp_collectives[now.op].kind) {
    case SBP_KIND_ALL_REDUCE:
        return sbp_round_to(now.to, sum_of(p, i));
    case SBP_KIND_REDUCE_SCATTER:
        if (sbp_collectives[now.op].into == SBP_DST_OWN)
            return i >= begin && i < end ? sbp_round_to(now.to, sum_of(p, i)) : NAN;
        if (sbp_collectives[now.op].into == SBP_DST_ADDS)
            return sbp_round_to(now.to, round_wide(wide, round_wide(wide, was) + sum_of(p, begin + i)));
        return sbp_round_to(now.to, sum_of(p, begin + i));
    case SBP_KIND_ALL_GATHER:
        while (i >= traffic_begin(now.elems, count, at + 1))
            at++;
        return sbp_round_to(now.to, number(first + at, i - traffic_begin(now.elems, count, at)));
    case SBP_KIND_BROADCAST:
        return sbp_round_to(now.to, number(now.root, i));
    default:
        return sbp_round_to(now.to, number(p, i));
    }
}

/* ---- bytes, by formulas ----------------------------------------------------------------------------- */

static process_group group_of(int32_t p, int32_t first, int32_t stride, int32_t count) {
    return traffic_group(now.world.ranks, now.world.node, p, first, stride, count);
}

static traffic traffic_of(int32_t p) {
    const sbp_collective_info *info = &sbp_collectives[now.op];
    int32_t count = members();
    int64_t unit = sbp_dtype_bytes(now.from), wide = now.from == SBP_F64 ? 8 : 4;
    process_group g = group_of(p, p - p % count, 1, count);
    traffic out = {0};
    if (info->among == SBP_AMONG_CONTEXT) /* in one round */
        g.near = count;
    if (info->kind == SBP_KIND_SHARE)
        return out;
    for (int32_t m = 0; m < count && info->kind == SBP_KIND_BROADCAST && p == now.root; m++)
        traffic_pass(&out, &g, m, traffic_share(&g, now.elems, m) * unit);
    if (info->kind == SBP_KIND_ALL_REDUCE || info->kind == SBP_KIND_REDUCE_SCATTER)
        traffic_of_sums(&out, &g, now.elems, unit, wide);
    if (info->kind != SBP_KIND_REDUCE_SCATTER)
        traffic_of_shares(&out, &g, now.elems, unit);
    if (info->among == SBP_AMONG_GROUPS) {
        process_group others =
            group_of(p, p % now.world.group, now.world.group, now.world.ranks / now.world.group);
        int64_t mine = traffic_share(&g, now.elems, g.me), rest = mine % others.count;
        for (int i = 0; i < 2; i++) {
            traffic_of_sums(&out, &others, i ? rest : mine - rest, wide, wide);
            traffic_of_shares(&out, &others, i ? rest : mine - rest, wide);
        }
    }
    return out;
}

/* ---- trying ----------------------------------------------------------------------------------------- */

static void fill(void *data, int64_t elems, sbp_dtype dtype, int32_t p) {
    for (int64_t i = 0; i < elems; i++)
        sbp_element_set(data, dtype, i, number(p, i));
}

/* `now`, by all ranks, with so much workspace. */
static void try_collective(int64_t work_bytes) {
    const sbp_collective_info *info = &sbp_collectives[now.op];
    int32_t n = now.world.ranks, count = members();
    int64_t to_unit = sbp_dtype_bytes(now.to), from_unit = sbp_dtype_bytes(now.from);
    bool in_place = info->into == SBP_DST_OWN;
    static int64_t dst_elems[MOST_RANKS];
    for (int32_t p = 0; p < n; p++) {
        rank *r = &ranks[p];
        int64_t share =
            traffic_begin(now.elems, count, p % count + 1) - traffic_begin(now.elems, count, p % count);
        bool share_to = (info->kind == SBP_KIND_REDUCE_SCATTER && !in_place) || info->kind == SBP_KIND_SHARE,
             share_from = info->kind == SBP_KIND_ALL_GATHER || info->kind == SBP_KIND_SHARE;
        if (info->kind == SBP_KIND_SHARE) /* src is it */
            share = now.elems;
        int64_t from_elems = share_from ? share : now.elems;
        dst_elems[p] = share_to ? share : now.elems;
        r->call = now;
        r->call.world.rank = p;
        r->call.work_bytes = work_bytes;
        give(r, SBP_STEP_SRC, from_elems * from_unit);
        give(r, SBP_STEP_DST, dst_elems[p] * to_unit);
        give(r, SBP_STEP_WORK, work_bytes);
        fill(r->memory[SBP_STEP_SRC], from_elems, now.from, p);
        fill(r->memory[SBP_STEP_DST], dst_elems[p], now.to, in_place ? p : p + 100);
        if (in_place) { /* one memory */
            free(r->memory[SBP_STEP_SRC]);
            r->memory[SBP_STEP_SRC] = r->memory[SBP_STEP_DST];
        }
    }
    run_all();
    for (int32_t p = 0; p < n; p++) {
        rank *r = &ranks[p];
        traffic want = traffic_of(p);
        CHECK(r->sent == want.sent && r->away == want.away);
        for (int64_t i = 0; i < dst_elems[p]; i++) {
            double x = wanted(p, i, sbp_round_to(now.to, number(p + 100, i)));
            CHECK(isnan(x) || sbp_element_get(r->memory[SBP_STEP_DST], now.to, i) == x);
        }
        for (int m = SBP_STEP_SRC; m <= SBP_STEP_WORK; m++)
            CHECK(r->memory[m][r->bytes[m]] == 0x5A);
        if (in_place)
            r->memory[SBP_STEP_SRC] = NULL;
    }
}

/* A workspace that takes few slices of `elems` in shares of `count`. */
static int64_t little(int64_t unit) {
    int64_t groups = now.world.ranks / now.world.group;
    return (2 * members() + 6) * unit * SBP_STEP_SLICE * (groups > 1 ? groups : 1);
}

static bool is_of_heads(sbp_collective_op op) {
    return sbp_collectives[op].kind == SBP_KIND_TO_HEADS || sbp_collectives[op].kind == SBP_KIND_TO_ROWS;
}

static void test_worlds(void **state) {
    (void)state;
    static const sbp_dtype dtypes[] = {SBP_F32, SBP_BF16, SBP_F64, SBP_F16};
    static const int32_t nodes[] = {1, 2, 3, 4, 8};
    static const int64_t sizes[] = {0, 1, 5, 64, 131};
    int draw = 0, sliced = 0;
    for (int32_t n = 1; n <= MOST_RANKS; n = n == 9 ? 16 : n + 1)
        for (int32_t size = 1; size <= n; size++)
            for (int k = 0; k < SBP_COUNT(nodes) * SBP_COLLECTIVE_COUNT; k++) {
                sbp_collective_op op = (sbp_collective_op)(k % SBP_COLLECTIVE_COUNT);
                int32_t node = nodes[k / SBP_COLLECTIVE_COUNT];
                if (n % size != 0 || n % node != 0 || is_of_heads(op) ||
                    (size > 1 && sbp_collectives[op].among == SBP_AMONG_WORLD))
                    continue;
                for (int i = 0; i <= SBP_COUNT(sizes); i++, draw++) {
                    bool many = i == SBP_COUNT(sizes);
                    sbp_dtype from = dtypes[draw % SBP_COUNT(dtypes)],
                              to = dtypes[draw / SBP_COUNT(dtypes) % SBP_COUNT(dtypes)];
                    if (sbp_collectives[op].into != SBP_DST_ADDS)
                        to = from;
                    now = (sbp_collective_call){
                        .op = op,
                        .world = {0, n, size, size, node},
                        .elems = many ? 350 * n + draw % n : sizes[i],
                        .to = to,
                        .from = from,
                        .root = sbp_collectives[op].kind == SBP_KIND_BROADCAST ? draw % n : 0,
                        .src_apart = draw % 3 == 1,
                        .dst_apart = draw % 5 == 2,
                        .piece_bytes = many ? 512 : SBP_STEP_UNBOUNDED};
                    if (sbp_collectives[op].into == SBP_DST_OWN)
                        now.dst_apart = now.src_apart;
                    try_collective(many ? little(8) : 1 << 20);
                    sliced += many;
                }
            }
    assert_true(draw > 2000 && sliced > 300);
    forget();
}

/* Workspaces that do not do, and types that are not added, are told. */
static void test_refusals(void **state) {
    (void)state;
    sbp_diag *diag = sbp_diag_create();
    now = (sbp_collective_call){.op = SBP_ALL_REDUCE,
                                .world = {0, 4, 4, 1, 1},
                                .elems = 100,
                                .to = SBP_F32,
                                .from = SBP_F32,
                                .work_bytes = 100,
                                .piece_bytes = SBP_STEP_UNBOUNDED};
    assert_int_equal(sbp_collective_steps(&now, keep, &ranks[0], diag), SBP_INTERNAL);
    assert_non_null(strstr(sbp_diag_text(diag, SBP_ERROR), "too little"));
    now.to = now.from = SBP_I32;
    now.work_bytes = 1 << 20;
    assert_int_equal(sbp_collective_steps(&now, keep, &ranks[0], diag), SBP_INTERNAL);
    assert_non_null(strstr(sbp_diag_text(diag, SBP_ERROR), "no sum of i32"));
    now = (sbp_collective_call){.op = SBP_TO_HEADS,
                                .world = {0, 2, 1, 2, 1},
                                .to = SBP_F32,
                                .from = SBP_F32,
                                .rows = 3,
                                .heads = {2, 2, 100, false},
                                .work_bytes = 500};
    assert_int_equal(sbp_collective_steps(&now, keep, &ranks[0], diag), SBP_INTERNAL);
    sbp_diag_destroy(diag);
    forget();
}

/* ---- heads ------------------------------------------------------------------------------------------ */

static void prepare_heads(int32_t p, int64_t work_bytes, bool back) {
    rank *r = &ranks[p];
    int64_t unit = sbp_dtype_bytes(now.to), d = now.heads.dim,
            own = now.rows * sbp_context_count(&now.heads) * d,
            all = now.world.context * now.rows * sbp_context_slots(&now.heads, now.world.context) * d;
    r->call = now;
    r->call.world.rank = p;
    r->call.work_bytes = work_bytes;
    give(r, SBP_STEP_SRC, (back ? all : own) * unit);
    give(r, SBP_STEP_DST, (back ? own : all) * unit);
    give(r, SBP_STEP_WORK, work_bytes);
    fill(r->memory[SBP_STEP_SRC], back ? all : own, now.from, p);
}

static void check_heads(int32_t p) {
    int64_t size = now.world.context, n = sbp_context_count(&now.heads),
            slots = sbp_context_slots(&now.heads, size), d = now.heads.dim;
    int32_t me = p % now.world.context, first = p - me;
    for (int64_t r = 0; r < size * now.rows; r++)
        for (int64_t k = 0; k < slots * d; k++) {
            int64_t head = sbp_context_head(&now.heads, size, me * slots + k / d);
            double want = head < 0 ? 0
                                   : sbp_round_to(now.to, number(first + (int32_t)(r / now.rows),
                                                                 (r % now.rows * n + head) * d + k % d));
            CHECK(sbp_element_get(ranks[p].memory[SBP_STEP_DST], now.to, r * slots * d + k) == want);
        }
}

static void check_rows(int32_t p) {
    int64_t size = now.world.context, n = sbp_context_count(&now.heads),
            slots = sbp_context_slots(&now.heads, size), d = now.heads.dim;
    int32_t me = p % now.world.context, first = p - me;
    const sbp_dtype wide = now.to == SBP_F64 ? SBP_F64 : SBP_F32;
    for (int64_t r = 0; r < now.rows; r++)
        for (int64_t k = 0; k < n * d; k++) {
            double sum = 0;
            for (int64_t slot = 0; slot < size * slots; slot++)
                if (sbp_context_head(&now.heads, size, slot) == k / d)
                    sum = round_wide(
                        wide,
                        sum + sbp_round_to(now.to,
                                           number(first + (int32_t)(slot / slots),
                                                  ((me * now.rows + r) * slots + slot % slots) * d + k % d)));
            CHECK(sbp_element_get(ranks[p].memory[SBP_STEP_DST], now.to, r * n * d + k) ==
                  sbp_round_to(now.to, sum));
        }
}

static void test_heads(void **state) {
    (void)state;
    static const sbp_dtype dtypes[] = {SBP_F32, SBP_BF16, SBP_F64};
    static const int64_t shapes[][2] = {{4, 2}, {6, 3}, {3, 1}, {8, 8}, {2, 1}, {5, 5}};
    for (int32_t size = 2; size <= 9; size++)
        for (int32_t n = size; n <= MOST_RANKS; n += size)
            for (int i = 0; i < SBP_COUNT(shapes) * 4; i++) {
                bool back = i / 2 % 2 == 1;
                now = (sbp_collective_call){
                    .op = back ? SBP_TO_ROWS : SBP_TO_HEADS,
                    .world = {0, n, 1, size, n % 4 == 0 ? 4 : 1},
                    .to = dtypes[i % SBP_COUNT(dtypes)],
                    .from = dtypes[i % SBP_COUNT(dtypes)],
                    .rows = i * 3 % 17,
                    .heads = {shapes[i / 4][0], shapes[i / 4][1], 1 + i % 7, i % 2 == 1}};
                int64_t row = sbp_context_slots(&now.heads, size) * now.heads.dim * sbp_dtype_bytes(now.to);
                for (int32_t p = 0; p < n; p++)
                    prepare_heads(p, i % 5 == 0 ? 1 << 18 : 4 * size * (row + 8 * now.heads.dim) + 64, back);
                run_all();
                for (int32_t p = 0; p < n; p++) {
                    CHECK(ranks[p].sent == (size - 1) * now.rows * row);
                    back ? check_rows(p) : check_heads(p);
                }
            }
    forget();
}

/* ---- what the planner counts ------------------------------------------------------------------------ */

/* Elements of the share of rank 0, which is the largest; and of the shares of the ranks in its place. */
static void place_shares(int64_t elems, int64_t count, int64_t near, int64_t *first, int64_t *place) {
    *first += (elems + count - 1) / count;
    for (int64_t m = 0; m < count; m += near)
        *place += traffic_begin(elems, (int32_t)count, (int32_t)m + 1) -
                  traffic_begin(elems, (int32_t)count, (int32_t)m);
}

/* Each round's bytes are those of a ring within hosts, then between them. */
static void test_rounds(void **state) {
    (void)state;
    static const int32_t worlds[][3] = {{8, 8, 4},  {8, 4, 2}, {8, 2, 4},   {6, 3, 3},  {9, 3, 1},
                                        {16, 4, 8}, {1, 1, 1}, {64, 8, 16}, {12, 4, 4}, {512, 64, 8}};
    static const int64_t sizes[] = {1, 7, 4099, 123456, 999999};
    for (int i = 0; i < SBP_COUNT(worlds) * SBP_COUNT(sizes); i++) {
        const int32_t *w = worlds[i % SBP_COUNT(worlds)];
        int64_t elems = sizes[i / SBP_COUNT(worlds)], groups = w[0] / w[1];
        int64_t near = sbp_near_ranks(w[2], 1, w[1]), far = sbp_near_ranks(w[2], w[1], groups);
        now = (sbp_collective_call){.op = SBP_REDUCE_ADD,
                                    .world = {0, w[0], w[1], 1, w[2]},
                                    .elems = elems,
                                    .to = SBP_F32,
                                    .from = SBP_BF16};
        sbp_sent sent = sbp_collective_sent(&now);
        int64_t first = 0, place = 0, part = 0, parts = 0;
        place_shares(elems, w[1], near, &first, &place);
        place_shares(first - first % groups, groups, far, &part, &parts);
        place_shares(first % groups, groups, far, &part, &parts);
        CHECK(sent.rounds[SBP_ROUND_SUM_NEAR].bytes == 2 * (elems - place));
        CHECK(sent.rounds[SBP_ROUND_SUM_FAR].bytes == 4 * (place - first));
        CHECK(sent.rounds[SBP_ROUND_GROUPS_SUM_NEAR].bytes == 4 * (first - parts));
        CHECK(sent.rounds[SBP_ROUND_GROUPS_SUM_FAR].bytes == 4 * (parts - part));
        CHECK(sent.rounds[SBP_ROUND_GROUPS_GATHER_FAR].bytes == 4 * part * (groups / far - 1));
        CHECK(sent.rounds[SBP_ROUND_GROUPS_GATHER_NEAR].bytes == 4 * parts * (far - 1));
        now.op = SBP_ALL_GATHER;
        now.to = now.from = SBP_F16;
        sent = sbp_collective_sent(&now);
        CHECK(sent.rounds[SBP_ROUND_GATHER_FAR].bytes == 2 * first * (w[1] / near - 1));
        CHECK(sent.rounds[SBP_ROUND_GATHER_NEAR].bytes == 2 * place * (near - 1));
        CHECK(sent.rounds[SBP_ROUND_GATHER_NEAR].ranks == near &&
              sent.rounds[SBP_ROUND_GATHER_NEAR].stride == 1);
        CHECK(near == w[1] || (sent.rounds[SBP_ROUND_GATHER_FAR].ranks == w[1] / near &&
                               sent.rounds[SBP_ROUND_GATHER_FAR].stride == near));
    }
}

/* What a simulated link is busy with: an exchange of a context is among its ranks, and no sum. */
static void test_moved_bytes(void **state) {
    (void)state;
    enum { ROWS = 6, COLS = 10, W = 4 };
    const sbp_program program = {.ranks = 8, .group = 8, .context = W};
    static const struct {
        sbp_collective_op op;
        int64_t dst_rows, dst_cols, src_rows, src_cols;
        double bytes;
    } cases[] = {{SBP_CONTEXT_GATHER, W * ROWS, COLS, ROWS, COLS, 2.0 * (W - 1) * ROWS * COLS},
                 {SBP_CONTEXT_REDUCE, ROWS, COLS, W * ROWS, COLS, 2.0 * (W - 1) * ROWS * COLS},
                 {SBP_CONTEXT_SHARE, ROWS, COLS, ROWS, COLS, 0},
                 {SBP_TO_HEADS, W * ROWS, 10, ROWS, 40, 2.0 * (W - 1) * ROWS * 10},
                 {SBP_TO_ROWS, ROWS, 40, W * ROWS, 10, 2.0 * (W - 1) * ROWS * 10},
                 {SBP_ALL_REDUCE, 8, COLS, 8, COLS, 2.0 * 2 * 7 * COLS},
                 {SBP_ALL_GATHER, 8, COLS, 1, COLS, 2.0 * 7 * COLS},
                 {SBP_SHARE, 1, COLS, 1, COLS, 0}};
    for (int i = 0; i < SBP_COUNT(cases); i++) {
        sbp_command command = {.kind = SBP_CMD_COLLECTIVE};
        command.u.collective.op = cases[i].op;
        command.u.collective.heads = (sbp_context_heads){4, 4, 10, false};
        const sbp_span spans[SBP_COLLECTIVE_OPERANDS] = {
            [SBP_COLLECTIVE_DST] = {.dtype = SBP_BF16, .rows = cases[i].dst_rows, .cols = cases[i].dst_cols},
            [SBP_COLLECTIVE_SRC] = {.dtype = SBP_BF16, .rows = cases[i].src_rows, .cols = cases[i].src_cols}};
        const sbp_dispatch dispatch = {
            .command = &command, .spans = spans, .span_count = SBP_COLLECTIVE_OPERANDS};
        assert_true(composite_moved_bytes(&dispatch, &program, 8) == cases[i].bytes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_worlds), cmocka_unit_test(test_heads),
                                       cmocka_unit_test(test_refusals), cmocka_unit_test(test_rounds),
                                       cmocka_unit_test(test_moved_bytes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
