/* test_hosts.c: what the planner knows of ranks that share hosts: rates of what is one on a host, ways within
 * hosts and between them, and queues beside each other. Bytes are counted again here, rank by rank. */
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "passes/planner/cost.h"
#include "passes/planner/makespan.h"
#include "tests/tolerance.h"

static sbp_target_info machine(bool shared_memory) {
    sbp_target_info t = {.shared_memory = shared_memory};
    t.rates = (sbp_rates){.memory = 1e12,
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
            t.rates.host_ranks = ranks;
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

typedef struct bytes {
    double within, between; /* hosts */
} bytes;

static void send(bytes *b, int64_t to, int64_t node, double count) {
    if (to < node)
        b->within += count;
    else if (to > 0)
        b->between += count;
}

/* What rank 0 sends of a sum that goes to shares: first to its group, then among those with its share. */
static void count_sum(int64_t ranks, int64_t group, int64_t node, int64_t elems, bytes *first,
                      bytes *second) {
    for (int64_t r = 1; r < group; r++)
        send(first, r, node, 4.0 * (double)share(elems, group, r));
    int64_t own = share(elems, group, 0), others = ranks / group;
    for (int64_t g = 1; g < others; g++)
        send(second, g * group, node,
             4.0 * (double)share(own, others, g) + 4.0 * (double)share(own, others, 0));
}

static double slower(const bytes *b, const sbp_rates *r) {
    double within = b->within / r->net, between = b->between / r->between;
    return within > between ? within : between;
}

static void test_ways_between_hosts(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{8, 8, 8}, {8, 8, 4}, {8, 2, 4}, {8, 4, 4},  {8, 8, 1}, {64, 8, 8},
                                       {6, 3, 3}, {6, 2, 4}, {1, 1, 1}, {16, 4, 8}, {4, 1, 2}};
    for (int i = 0; i < (int)(sizeof sizes / sizeof sizes[0]); i++) {
        int64_t ranks = sizes[i][0], group = sizes[i][1], node = sizes[i][2], elems = group * 4096 * ranks;
        sbp_target_info t = machine(false);
        sbp_program program = {.ranks = ranks, .group = group};
        t.rates.host_ranks = (double)node;
        t.rates.between = 10e9;
        bytes first = {0}, second = {0}, gather = {0};
        count_sum(ranks, group, node, elems, &first, &second);
        sbp_sent sent = sbp_collective_sent(SBP_REDUCE_ADD, ranks, group, elems, SBP_F32);
        near((double)(sent.within + sent.across) + 1,
             first.within + first.between + second.within + second.between + 1);
        near(sbp_cost_collective(&t, SBP_REDUCE_ADD, &program, elems, SBP_F32) + 1,
             slower(&first, &t.rates) + slower(&second, &t.rates) + 1);
        for (int64_t r = 1; r < group; r++)
            send(&gather, r, node, 2.0 * (double)share(elems, group, 0));
        near(sbp_cost_collective(&t, SBP_ALL_GATHER, &program, elems, SBP_BF16) + 1,
             slower(&gather, &t.rates) + 1);
        t.rates.between = 0; /* all are as on one host */
        near(sbp_cost_collective(&t, SBP_ALL_GATHER, &program, elems, SBP_BF16) + 1,
             (gather.within + gather.between) / t.rates.net + 1);
    }
}

/* Two slots are gathered into in turn while a call reads the other: the wire is hidden but for the first. */
static void test_queues(void **state) {
    (void)state;
    sbp_arena *arena = sbp_arena_create();
    sbp_program *program = sbp_program_create(arena, "p");
    sbp_buffer slots = {.name = "s", .count = 2, .function = -1},
               all = {.name = "x", .count = 1, .function = -1};
    SBP_PUSH(arena, program->buffers, program->buffer_count, program->buffer_capacity, slots);
    SBP_PUSH(arena, program->buffers, program->buffer_count, program->buffer_capacity, all);
    for (int slow = 0; slow < 2; slow++) {
        double wire = slow ? 3 : 1, call = 2;
        sbp_makespan span;
        sbp_makespan_begin(arena, program, &span);
        for (int layer = 0; layer < 5; layer++) {
            sbp_spot slot = {0, layer % 2, SBP_WRITE};
            sbp_makespan_run(&span, SBP_QUEUE_NET, wire, &slot, 1);
            sbp_spot reads[] = {{0, layer % 2, SBP_READ}, {1, 0, SBP_UPDATE}};
            sbp_makespan_run(&span, SBP_QUEUE_COMPUTE, call, reads, 2);
        }
        near(sbp_makespan_end(&span), slow ? 5 * wire + call : wire + 5 * call);
        near(span.busy[SBP_QUEUE_NET], 5 * wire);
    }
    sbp_arena_destroy(arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_a_host_has_once),
                                       cmocka_unit_test(test_ways_between_hosts),
                                       cmocka_unit_test(test_queues)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
