/* test_cuda_net.c: collectives over NCCL, on fake devices of 1 to 9 processes, against the same collectives
 * of backends/ranks over MPI in the host's memory: bit for bit, of all types, on the device and on the host,
 * with a workspace that takes many slices, one behind the other without waiting; as on one host and on
 * several. What is beside the operands stays; bytes are as many, to other hosts too. Where NCCL adds up
 * itself
 * (--deterministic off), in an order of its own, sums of fp32 and fp64 are within a tolerance of these, and
 * the same on all ranks that have them; everything else is as before.
 *
 * Heads of a context are exchanged while queue net waits for a rank.
 *
 * The program is its own worker: `test_cuda_net worker BATCHES GROUPS on|off|off-world` is one rank;
 * off-world: only sums of all ranks are NCCL's. `test_cuda_net waits apart|behind`: one that waits. */
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "backends/composite/composite.h"
#include "backends/cuda/cuda_device.h"
#include "backends/cuda/cuda_target.h"
#include "backends/cuda/device/cuda.h"
#include "backends/ranks/ranks.h"
#include "ir/program/collective_steps.h"
#include "tests/common/dispatch_add.h"
#include "tests/common/sweep.h"
#include "tests/rowkernel_random.h"
#include "tests/tolerance.h"

enum { ARENA = 1 << 20, HALF = ARENA / 2, SLOT = 80 << 10, MOST_ELEMS = 9000, BATCHES = 15, BATCH = 6 };

static sbp_ranks *ranks;
static sbp_ranks_info info;
static sbp_diag *diag;
static sbp_device *device;
static int32_t group, together; /* ranks that have shares of one whole; a micro-batch */
static sbp_ranks *context;
static const char *deterministic;
static int64_t other_bits[2]; /* elements that NCCL has rounded otherwise: of sums of all, of shares */
static int64_t compared_bytes, compared_away; /* that the context sent to compare such sums */

/* The first element of a member's share, in the groups that there are now. */
static int64_t share_begins(int64_t elems, int32_t member) {
    sbp_ranks_info now;
    sbp_ranks_info_of(ranks, &now);
    const sbp_process_group pg = sbp_pg_of_neighbours(now.rank, now.group, now.node);
    return sbp_pg_begin(&pg, elems, member);
}

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "rank %d: %s:%d: %s\n%s", (int)info.rank, __FILE__, __LINE__, #condition,        \
                    diag ? sbp_diag_text(diag, SBP_ERROR) : "");                                             \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

const char *__asan_default_options(void);
const char *__asan_default_options(void) { /* MPI leaves memory behind */
    return "detect_leaks=0";
}

/* ---- a collective ----------------------------------------------------------------------------------- */

typedef struct kind {
    sbp_collective_op op;
    sbp_dtype to, from;
} kind;

static const kind kinds[] = {{SBP_ALL_REDUCE, SBP_F32, SBP_F32},     {SBP_ALL_REDUCE, SBP_F64, SBP_F64},
                             {SBP_ALL_REDUCE, SBP_BF16, SBP_BF16},   {SBP_REDUCE_SCATTER, SBP_F32, SBP_F32},
                             {SBP_REDUCE_SCATTER, SBP_F16, SBP_F16}, {SBP_REDUCE_ADD, SBP_F32, SBP_F32},
                             {SBP_REDUCE_ADD, SBP_F32, SBP_BF16},    {SBP_REDUCE_ADD, SBP_BF16, SBP_F32},
                             {SBP_REDUCE_ADD, SBP_F64, SBP_F64},     {SBP_REDUCE_ADD, SBP_F32, SBP_F64},
                             {SBP_REDUCE_OWN, SBP_F32, SBP_F32},     {SBP_ALL_GATHER, SBP_F32, SBP_F32},
                             {SBP_ALL_GATHER, SBP_I8, SBP_I8},       {SBP_BROADCAST, SBP_BF16, SBP_BF16},
                             {SBP_SHARE, SBP_F32, SBP_F32},          {SBP_GROUP_REDUCE, SBP_F64, SBP_F64},
                             {SBP_GROUP_REDUCE, SBP_BF16, SBP_BF16}, {SBP_REDUCE_OWN, SBP_BF16, SBP_BF16},
                             {SBP_TO_HEADS, SBP_F32, SBP_F32},       {SBP_TO_ROWS, SBP_F32, SBP_F32},
                             {SBP_TO_HEADS, SBP_BF16, SBP_BF16},     {SBP_TO_ROWS, SBP_BF16, SBP_BF16},
                             {SBP_CONTEXT_GATHER, SBP_I32, SBP_I32}, {SBP_CONTEXT_GATHER, SBP_BF16, SBP_BF16},
                             {SBP_CONTEXT_REDUCE, SBP_F32, SBP_F32}, {SBP_CONTEXT_REDUCE, SBP_BF16, SBP_BF16},
                             {SBP_CONTEXT_SUM, SBP_F32, SBP_F32},    {SBP_CONTEXT_SUM, SBP_F64, SBP_F64}};

static bool is_of_heads(sbp_collective_op op) {
    return op == SBP_TO_HEADS || op == SBP_TO_ROWS;
}

static int32_t queue_of(sbp_collective_op op) {
    return op >= SBP_TO_HEADS ? SBP_QUEUE_COMPUTE : SBP_QUEUE_NET;
}

/* Which operands have all there is, and not a share. */
static bool is_whole(sbp_collective_op op, int operand) {
    switch (op) {
    case SBP_ALL_REDUCE:
    case SBP_GROUP_REDUCE:
    case SBP_BROADCAST:
    case SBP_REDUCE_OWN:
    case SBP_CONTEXT_SUM:
        return true;
    case SBP_ALL_GATHER:
    case SBP_CONTEXT_GATHER:
        return operand == 0;
    default:
        return operand == 1;
    }
}

static double number(int32_t p, int64_t i, uint64_t seed) {
    uint64_t x = (uint64_t)i * 0x9E3779B97F4A7C15u + (uint64_t)p * 0xBF58476D1CE4E5B9u + seed;
    x ^= x >> 31;
    x *= 0x94D049BB133111EBu;
    x ^= x >> 29;
    return ldexp((double)(int64_t)(x >> 20) / 0x1p43 - 1, (int)(x & 15) - 8);
}

/* What the arenas should hold. */
static unsigned char memory[2][ARENA], found[ARENA];

static int64_t bytes_of(const sbp_span *s) {
    return s->rows * s->cols * sbp_dtype_bytes(s->dtype);
}

/* The same over MPI. */
static void simulate(const kind *k, const sbp_span *to, const sbp_span *from,
                     const sbp_context_heads *heads) {
    unsigned char *dst = memory[to->space] + to->offset, *src = memory[from->space] + from->offset;
    const sbp_operand_shape shapes[2] = {{.rows = to->rows, .cols = to->cols, .dtype = to->dtype},
                                         {.rows = from->rows, .cols = from->cols, .dtype = from->dtype}};
    const sbp_collective_world world = {0};
    sbp_command command = {.kind = SBP_CMD_COLLECTIVE};
    command.u.collective.op = k->op;
    if (is_of_heads(k->op))
        command.u.collective.heads = *heads;
    const sbp_collective_call call = sbp_collective_call_of(&command, &shapes[0], &shapes[1], &world);
    if (k->op == SBP_SHARE)
        src += info.member * bytes_of(to);
    CHECK(sbp_ranks_collective(k->op >= SBP_TO_HEADS ? context : ranks, &call, dst, src, diag) == SBP_OK);
}

/* Heads in few ranks and in many; more ranks than key heads, too. */
static void draw_heads(sbp_rng *rng, sbp_collective_op op, sbp_context_heads *heads, sbp_span spans[2]) {
    sbp_span *own = &spans[op == SBP_TO_HEADS], *all = &spans[op != SBP_TO_HEADS];
    heads->kv_heads = 1 + sbp_rng_below(rng, 4);
    heads->heads = heads->kv_heads * (1 + sbp_rng_below(rng, 3));
    heads->dim = 1 + sbp_rng_below(rng, 9);
    heads->keys = sbp_rng_below(rng, 2);
    own->rows = 1 + sbp_rng_below(rng, 25);
    own->cols = own->stride = sbp_context_count(heads) * heads->dim;
    all->rows = own->rows * together;
    all->cols = all->stride = sbp_context_slots(heads, together) * heads->dim;
    own->space = all->space = SBP_DEVICE;
}

/* Drawn alike by all ranks: where, how much. Bytes of the first half of an arena are results, of the second
 * what is sent; where both are one place it is in the first. */
static void draw_spans(sbp_rng *rng, const kind *k, int64_t slot, sbp_context_heads *heads,
                       sbp_span spans[2]) {
    int64_t share = 1 + sbp_rng_below(rng, MOST_ELEMS / group);
    bool odd = is_whole(k->op, 0) && is_whole(k->op, 1) && sbp_rng_below(rng, 2);
    int64_t whole = odd ? 1 + sbp_rng_below(rng, MOST_ELEMS) : share * group;
    for (int i = 0; i < 2; i++) {
        sbp_dtype dtype = i ? k->from : k->to;
        int64_t elems = is_whole(k->op, i) ? whole : share;
        spans[i] = (sbp_span){.space = sbp_rng_below(rng, 3) ? SBP_DEVICE : SBP_HOST,
                              .dtype = dtype,
                              .offset = i * HALF + slot * SLOT + 8 * sbp_rng_below(rng, 60),
                              .rows = is_whole(k->op, i) && !odd ? group : 1,
                              .stride = is_whole(k->op, i) && !odd ? share : elems};
        spans[i].cols = elems / spans[i].rows;
    }
    if (is_of_heads(k->op))
        draw_heads(rng, k->op, heads, spans);
    if (k->op >= SBP_TO_HEADS)
        spans[0].space = spans[1].space = SBP_DEVICE;
    if (k->op == SBP_REDUCE_OWN || k->op == SBP_CONTEXT_SUM ||
        ((k->op == SBP_ALL_REDUCE || k->op == SBP_GROUP_REDUCE) && sbp_rng_below(rng, 2)))
        spans[1] = spans[0];
}

static void fill(const sbp_span *s, uint64_t seed) {
    unsigned char *at = memory[s->space] + s->offset;
    for (int64_t i = 0; i < s->rows * s->cols; i++)
        sbp_element_set(at, s->dtype, i,
                        s->dtype == SBP_I8 ? (double)((i + info.rank * 31) % 120)
                                           : number(info.rank, i, seed));
}

/* ---- a rank ----------------------------------------------------------------------------------------- */

static void make_device(sbp_arena *arena, sbp_program *program) {
    sbp_device_options options = {
        .threads = 1, .ranks = ranks, .native_sums = strcmp(deterministic, "on") != 0};
    const void *code;
    bool own;
    for (int i = 0; i < SBP_COUNT(kinds); i++) {
        sbp_command command = {.kind = SBP_CMD_COLLECTIVE, .queue = queue_of(kinds[i].op), .flushes = -1};
        command.u.collective.op = kinds[i].op;
        const sbp_span spans[2] = {
            {.space = SBP_DEVICE, .dtype = kinds[i].to, .rows = 1, .cols = 1, .stride = 1},
            {.space = SBP_DEVICE, .dtype = kinds[i].from, .rows = 1, .cols = 1, .stride = 1}};
        dispatch_add(arena, program, &(sbp_dispatch){.command = &command, .spans = spans, .span_count = 2});
    }
    program->ranks = info.count;
    program->group = group;
    program->context = together;
    CHECK(sbp_cuda_target.compile(arena, diag, program, &code, &options.code_bytes) == SBP_OK);
    options.code = code;
    options.index = info.rank % 8;
    program->arena_bytes[SBP_DEVICE] = program->arena_bytes[SBP_HOST] = ARENA;
    CHECK(sbp_cuda_device.create(&options, diag, &device) == SBP_OK);
    CHECK(sbp_cuda_device.load(device, program, diag) == SBP_OK);
    sbp_ranks_info_of(ranks, &info);
    CHECK(info.group == group && info.member == info.rank % group);
    CHECK(sbp_cuda_device.rendezvous(device, &own, diag) == SBP_OK && own);
}

/* Whether NCCL adds up what this collective sums. */
static bool is_native(const kind *k) {
    bool sums = k->op == SBP_ALL_REDUCE || k->op == SBP_GROUP_REDUCE || k->op == SBP_REDUCE_SCATTER ||
                k->op == SBP_REDUCE_ADD || k->op == SBP_REDUCE_OWN;
    bool parts = k->op != SBP_ALL_REDUCE && group < info.count;
    return sums && (k->from == SBP_F32 || k->from == SBP_F64) && strcmp(deterministic, "on") != 0 &&
           !(parts && strcmp(deterministic, "off-world") == 0);
}

/* Near enough to what was expected, and the same for all that have it; from here on it is what is expected.
 */
static void accept_sum(const kind *k, const sbp_span *to) {
    static unsigned char theirs[ARENA];
    unsigned char *want = memory[to->space] + to->offset, *got = found + to->offset;
    int64_t elems = to->rows * to->cols, unit = sbp_dtype_bytes(to->dtype), first = 0, count = elems;
    double error = 0, norm = 0,
           tolerance = to->dtype == SBP_BF16                      ? SBP_TOLERANCE_BF16
                       : to->dtype == SBP_F32 || k->to == SBP_F32 ? SBP_TOLERANCE_F32
                                                                  : SBP_TOLERANCE_F64;
    if (k->op == SBP_REDUCE_OWN) { /* the rest stays */
        first = share_begins(elems, info.member);
        count = share_begins(elems, info.member + 1) - first;
    }
    for (int64_t i = first; i < first + count; i++) {
        double x = sbp_element_get(got, to->dtype, i), y = sbp_element_get(want, to->dtype, i);
        error += (x - y) * (x - y);
        norm += y * y;
    }
    CHECK(sqrt(error) <= tolerance * sqrt(norm));
    for (int64_t i = first; i < first + count; i++)
        other_bits[k->op != SBP_ALL_REDUCE] += memcmp(got + i * unit, want + i * unit, (size_t)unit) != 0;
    memcpy(want + first * unit, got + first * unit, (size_t)(count * unit));
    if (k->op != SBP_ALL_REDUCE && k->op != SBP_GROUP_REDUCE)
        return;
    sbp_ranks_info before, after;
    memcpy(theirs, got, (size_t)(elems * unit));
    sbp_ranks_info_of(context, &before);
    CHECK(sbp_ranks_broadcast(k->op == SBP_ALL_REDUCE ? ranks : context, theirs, elems, to->dtype, 0, diag) ==
          SBP_OK);
    sbp_ranks_info_of(context, &after);
    compared_bytes += after.sent_bytes - before.sent_bytes;
    compared_away += after.away_bytes - before.away_bytes;
    CHECK(memcmp(theirs, got, (size_t)(elems * unit)) == 0);
}

static void compare(int batch, sbp_span spans[BATCH][2]) {
    for (int s = 0; s < 2; s++) {
        CHECK(sbp_cuda_device.read(device, (sbp_space)s, 0, found, ARENA, diag) == SBP_OK);
        for (int i = 0; i < BATCH; i++) {
            const kind *k = &kinds[(batch * BATCH + i) % SBP_COUNT(kinds)];
            if (spans[i][0].space == (sbp_space)s && is_native(k))
                accept_sum(k, &spans[i][0]);
        }
        for (int64_t i = 0; i < ARENA; i++)
            if (found[i] != memory[s][i]) {
                fprintf(stderr, "rank %d, batch %d: byte %lld of space %d is %02x, expected %02x\n",
                        (int)info.rank, batch, (long long)i, s, found[i], memory[s][i]);
                exit(1);
            }
    }
}

/* Some collectives one after the other, in slots of their own; then all bytes are compared. What reduce_own
 * leaves of the others' shares is as it was. */
static void run_batch(sbp_rng *rng, int batch, int64_t *sent, int64_t *away) {
    sbp_dispatch dispatches[BATCH];
    sbp_command commands[BATCH];
    sbp_span spans[BATCH][2];
    sbp_context_heads heads[BATCH];
    sbp_ranks_info before, after;
    for (int s = 0; s < 2; s++)
        for (int64_t i = 0; i < ARENA; i++)
            memory[s][i] = (unsigned char)(i * 7 + s * 5 + info.rank * 11);
    for (int i = 0; i < BATCH; i++) {
        const kind *k = &kinds[(batch * BATCH + i) % SBP_COUNT(kinds)];
        draw_spans(rng, k, i, &heads[i], spans[i]);
        fill(&spans[i][0], (uint64_t)(batch * BATCH + i) + 99);
        fill(&spans[i][1], (uint64_t)(batch * BATCH + i));
        commands[i] = (sbp_command){.kind = SBP_CMD_COLLECTIVE, .queue = queue_of(k->op), .flushes = -1};
        commands[i].u.collective.op = k->op;
        if (is_of_heads(k->op))
            commands[i].u.collective.heads = heads[i];
        dispatches[i] = (sbp_dispatch){.command = &commands[i], .spans = spans[i], .span_count = 2};
    }
    for (int s = 0; s < 2; s++)
        CHECK(sbp_cuda_device.write(device, (sbp_space)s, 0, memory[s], ARENA, diag) == SBP_OK);
    for (int i = 0; i < BATCH; i++)
        CHECK(sbp_cuda_device.submit(device, &dispatches[i], diag) == SBP_OK);
    sbp_ranks_info_of(ranks, &before);
    for (int i = 0; i < BATCH; i++)
        simulate(&kinds[(batch * BATCH + i) % SBP_COUNT(kinds)], &spans[i][0], &spans[i][1], &heads[i]);
    sbp_ranks_info_of(ranks, &after);
    *sent += after.sent_bytes - before.sent_bytes;
    *away += after.away_bytes - before.away_bytes;
    compare(batch, spans);
}

static sbp_arena *begin_rank(int groups, int contexts) {
    sbp_arena *arena = sbp_arena_create();
    diag = sbp_diag_create();
    CHECK(arena && diag && sbp_ranks_join(60, NULL, diag, &ranks) == SBP_OK);
    sbp_ranks_info_of(ranks, &info);
    group = info.count / groups;
    together = info.count / contexts;
    CHECK(sbp_ranks_context(ranks, together, diag, &context) == SBP_OK);
    make_device(arena, sbp_program_create(arena, "test"));
    return arena;
}

static void end_rank(sbp_arena *arena) {
    if (info.rank == 0)
        fputs(sbp_diag_text(diag, SBP_NOTE), stderr);
    sbp_cuda_device.destroy(device);
    sbp_ranks_leave(context);
    sbp_ranks_leave(ranks);
    sbp_diag_destroy(diag);
    sbp_arena_destroy(arena);
}

static int work(int batches, int groups) {
    sbp_rng rng = {.state = 4};
    sbp_device_info device_info;
    int64_t sent = 0, away = 0;
    sbp_ranks_info of_context;
    sbp_arena *arena = begin_rank(groups, groups);
    for (int b = 0; b < batches; b++)
        run_batch(&rng, b, &sent, &away);
    sbp_cuda_device.info(device, &device_info);
    sbp_ranks_info_of(context, &of_context);
    CHECK(device_info.net_sent_bytes == sent + of_context.sent_bytes - compared_bytes && sent > 0);
    CHECK(device_info.net_away_bytes == away + of_context.away_bytes - compared_away);
    CHECK((away > 0) == (info.node < info.count));
    /* two numbers have one sum; of more a ring's is another than the tree's now and then */
    CHECK(!is_native(&kinds[0]) || info.count < 3 || other_bits[0] > 0);
    CHECK(!is_native(&kinds[3]) || (group < 3 && info.count / group < 3) || other_bits[1] > 0);
    end_rank(arena);
    return 0;
}

/* The second of two contexts of two ranks comes later to where all ranks gather: the first exchanges heads
 * meanwhile, if it has a communicator for that, although it was asked to gather before. */
static int wait_for_others(bool apart) {
    enum { ROWS = 5, DIM = 3 };
    const sbp_context_heads heads = {.heads = 2, .kv_heads = 2, .dim = DIM};
    const kind of[2] = {{SBP_ALL_GATHER, SBP_F32, SBP_F32}, {SBP_TO_HEADS, SBP_F32, SBP_F32}};
    sbp_span spans[BATCH][2] = {
        {{SBP_DEVICE, SBP_F32, 0, 4, 25, 25, 0}, {SBP_DEVICE, SBP_F32, HALF, 1, 25, 25, 0}},
        {{SBP_DEVICE, SBP_F32, SLOT, 2 * ROWS, DIM, DIM, 0},
         {SBP_DEVICE, SBP_F32, HALF + SLOT, ROWS, 2 * DIM, 2 * DIM, 0}}};
    sbp_arena *arena = begin_rank(1, 2);
    cuda_device *d = (cuda_device *)composite_backend(device);
    const cuda_calls *calls = &d->api.calls;
    double all = 1;
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++)
            fill(&spans[i][k], (uint64_t)(2 * i + k));
    for (int s = 0; s < 2; s++)
        CHECK(sbp_cuda_device.write(device, (sbp_space)s, 0, memory[s], ARENA, diag) == SBP_OK);
    if (info.rank >= together)
        CHECK(sbp_ranks_all_reduce(ranks, &all, 1, SBP_F64, diag) == SBP_OK);
    for (int i = 0; i < 2; i++) {
        sbp_command command = {.kind = SBP_CMD_COLLECTIVE, .queue = queue_of(of[i].op), .flushes = -1};
        command.u.collective.op = of[i].op;
        if (is_of_heads(of[i].op))
            command.u.collective.heads = heads;
        CHECK(sbp_cuda_device.submit(device,
                                     &(sbp_dispatch){.command = &command, .spans = spans[i], .span_count = 2},
                                     diag) == SBP_OK);
    }
    if (info.rank < together) {
        bool done = false;
        for (int i = 0; i < (apart ? 12000 : 50) && !done; i++) { /* hundredths of a second */
            nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
            done = calls->cuStreamQuery(d->streams[CUDA_COMPUTE]) == CUDA_OK;
        }
        CHECK(done == apart);
        CHECK(calls->cuStreamQuery(d->streams[CUDA_NET]) == CUDA_NOT_READY);
        CHECK(sbp_ranks_all_reduce(ranks, &all, 1, SBP_F64, diag) == SBP_OK);
    }
    for (int i = 0; i < 2; i++)
        simulate(&of[i], &spans[i][0], &spans[i][1], &heads);
    compare(0, spans);
    end_rank(arena);
    return 0;
}

/* ---- the worlds ------------------------------------------------------------------------------------- */

static bool can_compile(void) {
    sbp_arena *arena = sbp_arena_create();
    sbp_diag *why = sbp_diag_create();
    sbp_program *program = sbp_program_create(arena, "test");
    const void *code;
    int64_t bytes;
    bool good = sbp_cuda_target.compile(arena, why, program, &code, &bytes) == SBP_OK;
    sbp_diag_destroy(why);
    sbp_arena_destroy(arena);
    return good;
}

#ifdef SBP_MPIRUN
static char output[1 << 16];

static void run_ranks(int count, const char *arguments, const char *environment) {
    char command[6000], self[4000];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(length > 0);
    self[length] = '\0';
    snprintf(
        command, sizeof command,
        "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 SBP_FAKE_CUDA=devices=8,report,seed=%d %s "
        "timeout 300 '%s' --oversubscribe -n %d '%s' %s 2>&1",
        count, environment, SBP_MPIRUN, count, self, arguments);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    output[fread(output, 1, sizeof output - 1, pipe)] = '\0';
    int status = pclose(pipe);
    if (status != 0 || strstr(output, "fake cuda: nccl"))
        fail_msg("%d ranks: status %d: %s", count, status, output);
    int clean = 0;
    for (const char *at = output; (at = strstr(at, "at the end 0 objects")) != NULL; at++)
        clean++;
    assert_int_equal(clean, count);
}

static void run_world(int count, int groups, int batches, const char *of, const char *environment) {
    char arguments[80];
    snprintf(arguments, sizeof arguments, "worker %d %d %s", batches, groups, of);
    run_ranks(count, arguments, environment);
}
#endif

static void test_worlds(void **state) {
    (void)state;
    if (!can_compile()) {
        print_message("skipped: collectives over NCCL: there is no NVRTC (tests/cuda_tools.sh)\n");
        skip();
    }
#ifdef SBP_MPIRUN
    int batches = testing_all() ? 20 * BATCHES : BATCHES;
    run_world(2, 1, batches, "on", "SBP_TEST_NET_BYTES=40000");
    run_world(3, 1, batches, "on", "SBP_TEST_NET_BYTES=60000");
    run_world(4, 2, batches, "on", "SBP_TEST_NET_BYTES=60000");
    run_world(5, 1, batches / 3, "on", "SBP_TEST_NET_BYTES=100000");
    run_world(6, 3, batches / 3, "on", "SBP_TEST_NET_BYTES=100000");
    run_world(
        9, 1, batches / 3, "on",
        "SBP_TEST_NET_BYTES=90000 NCCL_MULTI_RANK_GPU_ENABLE=1 SBP_FAKE_CUDA=devices=8,report,nccl=23000");
    run_world(2, 1, batches / 3, "on", ""); /* in one piece */
    /* as on several hosts: sums of each first; of groups across them, too */
    static const int hosts[][3] = {{4, 1, 2}, {8, 4, 4}, {4, 4, 2}, {6, 1, 2}, {8, 1, 4},
                                   {8, 1, 2}, {6, 1, 3}, {8, 2, 2}, {8, 8, 4}};
    for (int i = 0; i < (testing_all() ? SBP_COUNT(hosts) : 3); i++) {
        char environment[80];
        snprintf(environment, sizeof environment, "SBP_TEST_NET_BYTES=40000 SBP_TEST_NODE=%d", hosts[i][2]);
        run_world(hosts[i][0], hosts[i][1], batches / 3, "on", environment);
    }
#else
    print_message("skipped: collectives over NCCL: MPI is not installed\n");
    skip();
#endif
}

/* Groups need communicators of their own, which heads are exchanged beside: where NCCL cannot have these,
 * groups have the sums of --deterministic on. */
static void test_native_sums(void **state) {
    (void)state;
#ifdef SBP_MPIRUN
    if (!can_compile())
        skip();
    int batches = testing_all() ? 20 * BATCHES : BATCHES;
    static const char said[] = "--deterministic off: process groups sum by exchanges, as with on";
    run_world(3, 1, batches, "off", "SBP_TEST_NET_BYTES=40000");
    run_world(6, 3, batches / 5, "off", "SBP_TEST_NET_BYTES=100000 SBP_TEST_NODE=2");
    assert_null(strstr(output, said));
    run_world(4, 2, batches / 5, "off-world",
              "SBP_TEST_NET_BYTES=60000 SBP_FAKE_CUDA=devices=8,report,nccl=22500");
    assert_non_null(strstr(output, said));
    if (!testing_all())
        return;
    run_world(2, 1, batches, "off", "");
    run_world(8, 2, batches, "off", "SBP_TEST_NET_BYTES=40000 SBP_TEST_NODE=2");
    run_world(4, 2, batches, "off", "SBP_TEST_NET_BYTES=60000");
    run_world(3, 3, batches, "off", "");
    run_world(8, 4, batches, "off", "SBP_TEST_NET_BYTES=90000 NCCL_LAUNCH_ORDER_IMPLICIT=1");
    run_world(4, 2, batches, "off-world", "SBP_TEST_NET_BYTES=60000 NCCL_LAUNCH_ORDER_IMPLICIT=0");
#endif
}

/* Beside each other where NCCL puts them in order as they begin; with a driver that has them one behind the
 * other nothing hangs either, so all ranks ask for the same in the same order. */
static void test_two_communicators(void **state) {
    (void)state;
#ifdef SBP_MPIRUN
    if (!can_compile())
        skip();
    static const char said[] = "all-to-alls queue behind earlier collectives";
    run_ranks(4, "waits apart", "");
    assert_null(strstr(output, said));
    run_ranks(4, "waits behind", "SBP_FAKE_CUDA=devices=8,report,nccl=22500");
    assert_non_null(strstr(output, said));
    run_world(4, 2, BATCHES / 5, "on",
              "SBP_TEST_NET_BYTES=60000 SBP_FAKE_CUDA=devices=8,report,version=12020");
    if (testing_all())
        run_ranks(4, "waits behind", "NCCL_LAUNCH_ORDER_IMPLICIT=0");
#endif
}

int main(int argc, char **argv) {
    if (argc == 5 && strcmp(argv[1], "worker") == 0) {
        deterministic = argv[4];
        return work(atoi(argv[2]), atoi(argv[3]));
    }
    if (argc == 3 && strcmp(argv[1], "waits") == 0) {
        deterministic = "on";
        return wait_for_others(strcmp(argv[2], "apart") == 0);
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_two_communicators),
                                       cmocka_unit_test(test_worlds), cmocka_unit_test(test_native_sums)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
