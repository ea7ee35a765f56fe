/* experts.c: how long products of experts take beside one dense product of as many rows. A
 * program, not a test:
 *
 *     bench_experts [DEVICE] [--hidden H] [--inner I] [--chosen K] [--scale N] [--dtype bf16|fp32]
 *                   [--threads N]
 *                   [--seconds S] [--repeat N] [--clock wall|cpu] [--compile only]
 *
 * prints JSON lines, each of a product (forward, gradient of the rows, gradient of the weights) and of a
 * routing: `even`, 8 experts that have 256 slots each, and `zipf`, as many slots over 16 experts of which 4
 * have none, the others by Zipf's law. `times` is beside gemm with all slots as rows of one matrix; the
 * gradient of the weights also beside one gemm for each expert that has slots, `each`: it writes a matrix for
 * each of them. The products of a line are timed in turns, `repeat` times, and the least time of each counts.
 * Rows of slots lie as a step has them: in the order of tokens, not of experts. --scale N: N times the slots,
 * where 2,048 do not fill a device. */
#include "backends/devices.h"
#include "tests/bench/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_EXPERTS = 16, SLOTS = 2048, MOST_SCALE = 64 };

typedef struct setting {
    bench b;
    int64_t hidden, inner, chosen, scale;
    sbp_dtype dtype;
    int repeat;
} setting;

typedef struct routing {
    const char *name;
    int64_t experts, slots[MOST_EXPERTS];
} routing;

static void write_numbers(bench *b, const sbp_span *span, const int32_t *numbers) {
    if (b->device)
        bench_check(b, b->class->write(b->device, SBP_DEVICE, span->offset, numbers,
                                       span->rows * span->cols * (int64_t)sizeof *numbers, b->diag));
}

static int64_t slots_of(const setting *s) {
    return SLOTS * s->scale;
}

/* The slots of an expert are spread over all of them: slot i goes where a number that is coprime puts it. */
static void make_pairs(const setting *s, const routing *r, int32_t *pairs, int32_t bounds[MOST_EXPERTS + 1]) {
    static int32_t expert_of[SLOTS * MOST_SCALE];
    const int64_t slots = slots_of(s);
    int64_t at = 0;
    for (int64_t e = 0; e < r->experts; e++)
        for (int64_t i = 0; i < r->slots[e] * s->scale; i++, at++)
            expert_of[at * 1021 % slots] = (int32_t)e;
    at = 0;
    for (int64_t e = 0; e < r->experts; e++) {
        bounds[e] = (int32_t)at;
        for (int32_t i = 0; i < slots; i++)
            if (expert_of[i] == e)
                pairs[at++] = i;
    }
    bounds[r->experts] = (int32_t)at;
}

/* As bench_layer has them. */
typedef enum product { FORWARD, OF_ROWS, OF_WEIGHTS } product;

/* A product of experts; forward: rows of hidden numbers to slots of inner ones. */
static void make_experts(setting *s, const routing *r, product p, bench_command *out) {
    bench *b = &s->b;
    int64_t rows = slots_of(s) / s->chosen, k = s->chosen, matrix = s->hidden * s->inner;
    static int32_t pairs[SLOTS * MOST_SCALE];
    int32_t bounds[MOST_EXPERTS + 1];
    make_pairs(s, r, pairs, bounds);
    sbp_span order = bench_matrix(b, SBP_I32, rows, k), ends = bench_matrix(b, SBP_I32, 1, r->experts + 1);
    write_numbers(b, &order, pairs);
    write_numbers(b, &ends, bounds);
    *out = (bench_command){.command = {.flushes = -1}, .cold = -1};
    if (p == OF_WEIGHTS) {
        const sbp_span spans[SBP_EXPERT_GEMM_DW_OPERANDS] = {
            [SBP_EXPERT_GEMM_DW_D] = bench_matrix(b, SBP_F32, r->experts, matrix),
            [SBP_EXPERT_GEMM_DW_A] = bench_matrix(b, s->dtype, rows, k * s->inner),
            [SBP_EXPERT_GEMM_DW_B] = bench_matrix(b, s->dtype, rows, s->hidden),
            [SBP_EXPERT_GEMM_DW_PAIRS] = order,
            [SBP_EXPERT_GEMM_DW_BOUNDS] = ends};
        memcpy(out->spans, spans, sizeof spans);
        out->command.kind = SBP_CMD_EXPERT_GEMM_DW;
        out->command.view_count = SBP_EXPERT_GEMM_DW_OPERANDS;
        out->command.u.experts.a_by_slot = out->command.u.experts.adds = true;
    } else {
        bool forward = p == FORWARD;
        const sbp_span spans[SBP_EXPERT_GEMM_OPERANDS] = {
            [SBP_EXPERT_GEMM_D] = bench_matrix(b, s->dtype, rows, k * (forward ? s->inner : s->hidden)),
            [SBP_EXPERT_GEMM_A] = bench_matrix(b, s->dtype, rows, forward ? s->hidden : k * s->inner),
            [SBP_EXPERT_GEMM_B] = bench_matrix(b, s->dtype, r->experts, matrix),
            [SBP_EXPERT_GEMM_BIAS] = bench_absent(),
            [SBP_EXPERT_GEMM_PAIRS] = order,
            [SBP_EXPERT_GEMM_BOUNDS] = ends};
        memcpy(out->spans, spans, sizeof spans);
        out->command.kind = SBP_CMD_EXPERT_GEMM;
        out->command.view_count = SBP_EXPERT_GEMM_OPERANDS;
        out->command.u.experts.tb = forward;
        out->command.u.experts.a_by_slot = !forward;
    }
    out->dispatch =
        (sbp_dispatch){.command = &out->command, .spans = out->spans, .span_count = out->command.view_count};
}

/* Seconds of the dense product of `rows` rows. */
static double seconds_of_dense(setting *s, product p, int64_t rows) {
    static const char *const names[3];
    bench_matmul products[3];
    bench_command command;
    bench_layer(names, rows, s->inner, s->hidden, s->dtype, products);
    bench_matmul_make(&s->b, &products[p], &command);
    return bench_time(&s->b, &command);
}

static void compare(setting *s, const routing *r, product p) {
    static const char *const names[] = {"forward", "rows", "weights"};
    double grouped = INFINITY, dense = INFINITY, each = INFINITY;
    for (int turn = 0; turn < (s->b.device ? s->repeat : 1); turn++) {
        bench_command command;
        bench_begin(&s->b);
        make_experts(s, r, p, &command);
        grouped = fmin(grouped, bench_time(&s->b, &command));
        dense = fmin(dense, seconds_of_dense(s, p, slots_of(s)));
        double sum = 0;
        for (int64_t e = 0; e < r->experts; e++)
            if (r->slots[e] > 0)
                sum += seconds_of_dense(s, p, r->slots[e] * s->scale);
        each = fmin(each, sum);
    }
    if (s->b.device)
        printf("{\"routing\": \"%s\", \"slots\": %lld, \"product\": \"%s\", \"dtype\": \"%s\", \"hidden\": "
               "%lld, \"inner\": "
               "%lld, "
               "\"ms\": %.3f, \"dense_ms\": %.3f, \"times\": %.3f, \"each\": %.3f}\n",
               r->name, (long long)slots_of(s), names[p], sbp_dtype_name(s->dtype), (long long)s->hidden,
               (long long)s->inner, grouped * 1e3, dense * 1e3, grouped / dense, grouped / each);
    fflush(stdout);
}

static void run(setting *s) {
    static const routing routings[] = {
        {"even", 8, {256, 256, 256, 256, 256, 256, 256, 256}},
        {"zipf", 16, {0, 660, 330, 220, 0, 165, 132, 110, 94, 0, 83, 73, 66, 60, 55, 0}}};
    for (int i = 0; i < SBP_COUNT(routings); i++)
        for (int p = FORWARD; p <= OF_WEIGHTS; p++)
            compare(s, &routings[i], (product)p);
}

static int usage(void) {
    fputs(
        "usage: bench_experts [cpu|vulkan|cuda] [--hidden H] [--inner I] [--chosen K] [--scale N] [--dtype "
        "bf16|fp32]\n"
        "                     [--threads N] [--seconds S] [--repeat N] [--clock wall|cpu] [--compile only]\n",
        stderr);
    return SBP_USAGE;
}

int main(int argc, char **argv) {
    static setting s = {.hidden = 1024, .inner = 512, .chosen = 8, .scale = 1, .dtype = SBP_F32, .repeat = 3};
    const char *device = "cpu";
    bool compile_only = false;
    bench_settings settings = {{.threads = 1}, 0.25, CLOCK_MONOTONIC};
    int at = 1;
    if (argc > 1 && argv[1][0] != '-')
        device = argv[at++];
    for (; at < argc; at += 2) {
        const char *value = at + 1 < argc ? argv[at + 1] : NULL;
        if (!value)
            return usage();
        if (strcmp(argv[at], "--hidden") == 0)
            s.hidden = atoll(value);
        else if (strcmp(argv[at], "--inner") == 0)
            s.inner = atoll(value);
        else if (strcmp(argv[at], "--chosen") == 0)
            s.chosen = atoll(value);
        else if (strcmp(argv[at], "--scale") == 0)
            s.scale = atoll(value);
        else if (strcmp(argv[at], "--compile") == 0)
            compile_only = strcmp(value, "only") == 0;
        else if (strcmp(argv[at], "--dtype") == 0)
            s.dtype = strcmp(value, "bf16") == 0 ? SBP_BF16 : SBP_F32;
        else if (strcmp(argv[at], "--repeat") == 0)
            s.repeat = atoi(value);
        else if (!bench_take_option(&settings, argv[at], value))
            return usage();
    }
    const sbp_device_class *class = sbp_device_find(device);
    if (!class || s.hidden < 1 || s.inner < 1 || s.chosen < 1 || s.scale < 1 || s.scale > MOST_SCALE ||
        SLOTS % s.chosen != 0 || s.repeat < 1)
        return usage();
    bench_start(&s.b, class, &settings);
    s.b.compile_only = compile_only;
    run(&s); /* takes note of memory */
    bench_open(&s.b, &settings.device);
    run(&s);
    bench_close(&s.b);
    return 0;
}
