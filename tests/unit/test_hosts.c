/* test_hosts.c: what the planner knows of ranks that share hosts: throughput of what is one on a host, ways
 * within hosts and between them, and queues beside each other. Bytes are counted again here, rank by rank. */
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "ir/program/collective_steps.h"
#include "passes/planner/cost.h"
#include "passes/planner/makespan.h"
#include "tests/tolerance.h"

static sbp_target_info machine(bool shared_memory) {
    sbp_target_info t = {.shared_memory = shared_memory};
    t.throughput = (sbp_throughput){.memory = 1e12,
                                    .row_ops = 1e12,
                                    .in = 40e9,
                                    .out = 50e9,
                                    .host = 160e9,
                                    .host_ops = 80e9,
                                    .disk_read = 8e9,
                                    .disk_write = 4e9,
                                    .net = 100e9};
    return t;
}

static void near(double got, double want) {
    if (fabs(got - want) > SBP_TOLERANCE_F64 * fabs(want))
        fail_msg("%g, expected %g", got, want);
}

static void test_what_a_host_has_once(void **state) {
    (void)state;
    for (int shared = 0; shared < 2; shared++)
        for (double ranks = 0; ranks <= 8; ranks = ranks > 0 ? 2 * ranks : 1) {
            sbp_target_info t = machine(shared == 1);
            t.throughput.host_ranks = ranks;
            double n = ranks > 1 ? ranks : 1, hosts = shared ? 1 : n;
            near(sbp_cost_copy(&t, SBP_HOST, SBP_DISK, 8e9), n);
            near(sbp_cost_copy(&t, SBP_DISK, SBP_HOST, 8e9), 2 * n);
            near(sbp_cost_copy(&t, SBP_HOST, SBP_HOST, 80e9), hosts);
            near(sbp_cost_rows(&t, true, 160e9, 1), hosts);
            near(sbp_cost_rows(&t, true, 1, 80e9), hosts);
            near(sbp_cost_rows(&t, false, 1e12, 1), 1); /* each has its device */
            /* links of their own, up to what the host's memory gives: 160 GB/s of four are 40, of eight 20 */
            near(sbp_cost_copy(&t, SBP_DEVICE, SBP_HOST, 40e9), hosts > 4 ? 2 : 1);
            near(sbp_cost_copy(&t, SBP_HOST, SBP_DEVICE, 50e9), hosts > 4 ? 2.5 : hosts > 3 ? 1.25 : 1);
        }
}

/* Shares of all but the last are equal. */
static int64_t share(int64_t elems, int64_t ranks, int64_t rank) {
    int64_t each = (elems + ranks - 1) / ranks, begin = rank * each < elems ? rank * each : elems,
            end = begin + each < elems ? begin + each : elems;
    return end - begin;
}

/* Bytes of rank 0 to ranks of its host and to others, and how long each step of them takes, one after the
 * other: what goes within and between goes at once. */
typedef struct sending {
    double within, between;      /* hosts, of this step */
    double bytes, away, seconds; /* of all */
} sending;

static void send(sending *b, int64_t to, int64_t node, double count) {
    if (to < node)
        b->within += count;
    else
        b->between += count;
}

static void end_step(sending *b, const sbp_throughput *r) {
    double within = b->within / r->net, between = b->between / r->between;
    b->seconds += within > between ? within : between;
    b->bytes += b->within + b->between;
    b->away += b->between;
    b->within = b->between = 0;
}

/* Ranks `stride` apart from rank 0 on, the first `near` of which are its neighbours. */
typedef struct ring {
    int64_t stride, count, near, node;
} ring;

/* The least of both: the largest power of two that goes into `here`, of which all are on rank 0's host. */
static ring ring_of(int64_t stride, int64_t count, int64_t node) {
    int64_t here = stride < node && node % stride == 0 ? node / stride : 1, near = 1;
    while (count % (2 * near) == 0 && here % (2 * near) == 0)
        near *= 2;
    return (ring){stride, count, near == 1 || count <= here ? count : near, node};
}

static void send_sums(sending *b, const ring *g, const sbp_throughput *r, int64_t elems, double unit) {
    for (int64_t m = 1; m < g->near; m++)
        for (int64_t k = m; k < g->count; k += g->near)
            send(b, m * g->stride, g->node, unit * (double)share(elems, g->count, k));
    end_step(b, r);
    for (int64_t k = g->near; k < g->count; k += g->near)
        send(b, k * g->stride, g->node, 4.0 * (double)share(elems, g->count, k));
    end_step(b, r);
}

static void send_shares(sending *b, const ring *g, const sbp_throughput *r, int64_t elems, double unit) {
    for (int64_t k = g->near; k < g->count; k += g->near)
        send(b, k * g->stride, g->node, unit * (double)share(elems, g->count, 0));
    end_step(b, r);
    for (int64_t m = 1; m < g->near; m++)
        for (int64_t k = 0; k < g->count; k += g->near)
            send(b, m * g->stride, g->node, unit * (double)share(elems, g->count, k));
    end_step(b, r);
}

/* Sums within hosts first, then between them, where hosts have ranks in powers of two or several of these. */
static void test_ways_between_hosts(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{8, 8, 8},  {8, 8, 4},   {8, 2, 4},   {8, 4, 4},   {8, 8, 1},
                                       {6, 3, 3},  {6, 2, 2},   {1, 1, 1},   {16, 4, 8},  {4, 1, 2},
                                       {64, 8, 8}, {64, 64, 8}, {12, 12, 6}, {24, 12, 4}, {32, 2, 8}};
    for (int i = 0; i < (int)(sizeof sizes / sizeof sizes[0]); i++) {
        int64_t ranks = sizes[i][0], group = sizes[i][1], node = sizes[i][2], elems = group * 4096 * ranks;
        const ring own = ring_of(1, group, node), others = ring_of(group, ranks / group, node),
                   all = ring_of(1, ranks, node);
        sbp_target_info t = machine(false);
        sbp_program program = {.ranks = ranks, .group = group};
        t.throughput.host_ranks = (double)node;
        t.throughput.between = 10e9;
        sending sum = {0}, gather = {0}, whole = {0};
        send_sums(&sum, &own, &t.throughput, elems, 2);
        send_sums(&sum, &others, &t.throughput, share(elems, group, 0), 4);
        send_shares(&sum, &others, &t.throughput, share(elems, group, 0), 4);
        const sbp_collective_call call = {.op = SBP_REDUCE_ADD,
                                          .world = {0, (int32_t)ranks, (int32_t)group, 1, (int32_t)node},
                                          .elems = elems,
                                          .to = SBP_BF16,
                                          .from = SBP_BF16};
        sbp_sent sent = sbp_collective_sent(&call);
        near((double)sent.bytes + 1, sum.bytes + 1);
        near(sbp_cost_collective(&t, SBP_REDUCE_ADD, &program, elems, SBP_BF16) + 1, sum.seconds + 1);
        send_shares(&gather, &own, &t.throughput, elems, 2);
        near(sbp_cost_collective(&t, SBP_ALL_GATHER, &program, elems, SBP_BF16) + 1, gather.seconds + 1);
        send_sums(&whole, &all, &t.throughput, elems, 4);
        send_shares(&whole, &all, &t.throughput, elems, 4);
        near(sbp_cost_collective(&t, SBP_ALL_REDUCE, &program, elems, SBP_F32) + 1, whole.seconds + 1);
        if ((node & (node - 1)) == 0) /* no more than a ring of hosts sends, each rank its part */
            near(whole.away + 1, 8.0 * (double)(elems / ranks * (ranks / node - 1)) + 1);
        t.throughput.between = 0; /* all are as on one host */
        near(sbp_cost_collective(&t, SBP_ALL_GATHER, &program, elems, SBP_BF16) + 1,
             gather.bytes / t.throughput.net + 1);
    }
}

/* Two slots are gathered into in turn while a call reads the other: the interconnect is hidden but for the
 * first. */
static void test_queues(void **state) {
    (void)state;
    sbp_arena *arena = sbp_arena_create();
    sbp_program *program = sbp_program_create(arena, "p");
    sbp_buffer slots = {.name = "s", .count = 2, .function = -1},
               all = {.name = "x", .count = 1, .function = -1};
    SBP_PUSH(arena, program->buffers, program->buffer_count, program->buffer_capacity, slots);
    SBP_PUSH(arena, program->buffers, program->buffer_count, program->buffer_capacity, all);
    for (int slow = 0; slow < 2; slow++) {
        double transfer = slow ? 3 : 1, call = 2;
        sbp_makespan span;
        sbp_makespan_begin(arena, program, &span);
        for (int layer = 0; layer < 5; layer++) {
            sbp_spot slot = {0, layer % 2, SBP_WRITE};
            sbp_makespan_run(&span, SBP_QUEUE_NET, transfer, &slot, 1);
            sbp_spot reads[] = {{0, layer % 2, SBP_READ}, {1, 0, SBP_UPDATE}};
            sbp_makespan_run(&span, SBP_QUEUE_COMPUTE, call, reads, 2);
        }
        near(sbp_makespan_end(&span), slow ? 5 * transfer + call : transfer + 5 * call);
        near(span.busy[SBP_QUEUE_NET], 5 * transfer);
    }
    sbp_arena_destroy(arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_a_host_has_once),
                                       cmocka_unit_test(test_ways_between_hosts),
                                       cmocka_unit_test(test_queues)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
