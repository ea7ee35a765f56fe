/* delta.c: how fast delta_rule and its gradients are, beside as many operations in products alone. A
 * program, not a test:
 *
 *     bench_delta [DEVICE] [--rows N] [--heads V] [--key-heads K] [--head-dim D] [--dtype bf16|fp32]
 *                 [--threads N]
 *                 [--seconds S] [--clock wall|cpu] [--decay X] [--compile only]
 *
 * prints JSON lines: milliseconds of a chunk of one document that goes on behind it, 1e9 operations per
 * second (as the planner counts them), and how many times as long that is as the same operations take as
 * products with the state of a head: [rows V, D] by [D, D], in the same type. Each figure is the best of
 * several. --decay: about so much in each row (-0.1); with -2 numbers within a block become as small as there
 * are, which must not take longer.
 */
#include "backends/devices.h"
#include "tests/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct setting {
    bench b;
    int64_t rows;
    sbp_delta_attrs attrs;
    sbp_dtype dtype;
    double decay; /* about so much in each row */
} setting;

/* Numbers around `middle`. */
static sbp_span numbers(bench *b, sbp_dtype dtype, int64_t rows, int64_t cols, double middle, double width) {
    sbp_span span = bench_matrix(b, dtype, rows, cols);
    int64_t bytes = rows * cols * sbp_dtype_bytes(dtype);
    if (!b->device)
        return span;
    char *data = malloc((size_t)bytes);
    if (!data)
        exit(SBP_MACHINE);
    for (int64_t i = 0; i < rows * cols; i++)
        sbp_element_set(data, dtype, i, middle + width * ((double)(i * 37 % 101) / 101 - 0.5));
    bench_check(b, b->class->write(b->device, SBP_DEVICE, span.offset, data, bytes, b->diag));
    free(data);
    return span;
}

static void make(setting *s, bool backward, bench_command *out) {
    bench *b = &s->b;
    const sbp_delta_attrs *a = &s->attrs;
    sbp_dtype wide = s->dtype == SBP_F64 ? SBP_F64 : SBP_F32;
    int64_t of_k = a->key_heads * a->d_k, of_v = a->heads * a->d_v, states = of_v * a->d_k;
    *out = (bench_command){.command = {.flushes = -1, .u.delta = *a}, .cold = -1};
    bench_begin(b);
    sbp_span q = numbers(b, s->dtype, s->rows, of_k, 0, 0.3), k = numbers(b, s->dtype, s->rows, of_k, 0, 0.3);
    sbp_span v = numbers(b, s->dtype, s->rows, of_v, 0, 1),
             beta = numbers(b, wide, s->rows, a->heads, 0.5, 0.5);
    sbp_span decay = numbers(b, wide, s->rows, a->heads, s->decay, 0.2),
             state = numbers(b, wide, 1, states, 0, 1);
    sbp_span first = bench_matrix(b, SBP_I32, s->rows, 1);
    k.first_row = first.first_row = 1; /* a row of the document came before */
    if (!backward) {
        const sbp_span spans[SBP_DELTA_RULE_OPERANDS] = {
            [SBP_DELTA_RULE_O] = bench_matrix(b, s->dtype, s->rows, of_v),
            [SBP_DELTA_RULE_NEXT] = bench_matrix(b, wide, 1, states),
            [SBP_DELTA_RULE_Q] = q,
            [SBP_DELTA_RULE_K] = k,
            [SBP_DELTA_RULE_V] = v,
            [SBP_DELTA_RULE_DECAY] = decay,
            [SBP_DELTA_RULE_BETA] = beta,
            [SBP_DELTA_RULE_FIRST] = first,
            [SBP_DELTA_RULE_STATE] = state,
            [SBP_DELTA_RULE_WORK] = bench_absent()};
        memcpy(out->spans, spans, sizeof spans);
        out->command.kind = SBP_CMD_DELTA_RULE;
        out->command.view_count = SBP_DELTA_RULE_OPERANDS;
    } else {
        const sbp_span spans[SBP_DELTA_RULE_BWD_OPERANDS] = {
            [SBP_DELTA_RULE_BWD_DQ] = bench_matrix(b, s->dtype, s->rows, of_k),
            [SBP_DELTA_RULE_BWD_DK] = bench_matrix(b, s->dtype, s->rows, of_k),
            [SBP_DELTA_RULE_BWD_DV] = bench_matrix(b, s->dtype, s->rows, of_v),
            [SBP_DELTA_RULE_BWD_DDECAY] = bench_matrix(b, wide, s->rows, a->heads),
            [SBP_DELTA_RULE_BWD_DBETA] = bench_matrix(b, wide, s->rows, a->heads),
            [SBP_DELTA_RULE_BWD_DSTATE] = bench_matrix(b, wide, 1, states),
            [SBP_DELTA_RULE_BWD_DO] = bench_matrix(b, s->dtype, s->rows, of_v),
            [SBP_DELTA_RULE_BWD_Q] = q,
            [SBP_DELTA_RULE_BWD_K] = k,
            [SBP_DELTA_RULE_BWD_V] = v,
            [SBP_DELTA_RULE_BWD_DECAY] = decay,
            [SBP_DELTA_RULE_BWD_BETA] = beta,
            [SBP_DELTA_RULE_BWD_FIRST] = first,
            [SBP_DELTA_RULE_BWD_STATE] = state,
            [SBP_DELTA_RULE_BWD_WORK] =
                bench_matrix(b, wide, sbp_ceil_div(s->rows, SBP_DELTA_BLOCK), states)};
        memcpy(out->spans, spans, sizeof spans);
        out->command.kind = SBP_CMD_DELTA_RULE_BWD;
        out->command.view_count = SBP_DELTA_RULE_BWD_OPERANDS;
    }
    out->dispatch =
        (sbp_dispatch){.command = &out->command, .spans = out->spans, .span_count = out->command.view_count};
}

static double flops_of(const setting *s, const bench_command *c) {
    sbp_operand_shape shapes[SBP_MAX_COMMAND_OPERANDS];
    sbp_work work;
    for (int32_t i = 0; i < c->command.view_count; i++)
        shapes[i] = (sbp_operand_shape){.rows = c->spans[i].rows,
                                        .cols = c->spans[i].cols,
                                        .dtype = c->spans[i].dtype,
                                        .space = c->spans[i].space};
    sbp_command_work(
        &(sbp_work_query){
            .program = s->b.program, .command = &c->command, .operands = shapes, .chunks = 1, .ranks = 1},
        &work);
    return work.flops;
}

static void run(setting *s) {
    static const char *const names[] = {"delta_rule", "delta_rule_bwd"};
    const bench_matmul product = {
        .m = s->rows * s->attrs.heads, .n = s->attrs.d_v, .k = s->attrs.d_k, .dtype = s->dtype};
    bench_command command;
    bench_matmul_make(&s->b, &product, &command);
    double alone = bench_matmul_gflops(&product, bench_time(&s->b, &command));
    for (int backward = 0; backward < 2; backward++) {
        make(s, backward, &command);
        double seconds = bench_time(&s->b, &command), gflops = flops_of(s, &command) * 1e-9 / seconds;
        if (s->b.device)
            printf("{\"command\": \"%s\", \"rows\": %lld, \"heads\": %lld, \"key_heads\": %lld, "
                   "\"head_dim\": %lld, "
                   "\"dtype\": \"%s\", \"ms\": %.3f, \"gflops\": %.1f, \"gemm_gflops\": %.1f, \"times\": "
                   "%.2f}\n",
                   names[backward], (long long)s->rows, (long long)s->attrs.heads,
                   (long long)s->attrs.key_heads, (long long)s->attrs.d_k, sbp_dtype_name(s->dtype),
                   seconds * 1e3, gflops, alone, alone / gflops);
    }
    fflush(stdout);
}

static int usage(void) {
    fputs(
        "usage: bench_delta [cpu|vulkan|cuda] [--rows N] [--heads V] [--key-heads K] [--head-dim D]\n"
        "                   [--dtype bf16|fp32] [--decay X] [--threads N] [--seconds S] [--clock wall|cpu]\n"
        "                   [--compile only]\n",
        stderr);
    return SBP_USAGE;
}

int main(int argc, char **argv) {
    static setting s = {.rows = 1024,
                        .attrs = {.heads = 32, .key_heads = 16, .d_k = 128, .corrects = true},
                        .dtype = SBP_F32,
                        .decay = -0.1};
    const char *device = "cpu";
    bool compile_only = false;
    bench_settings settings = {{.threads = 2}, 1, CLOCK_MONOTONIC};
    int at = 1;
    if (argc > 1 && argv[1][0] != '-')
        device = argv[at++];
    for (; at < argc; at += 2) {
        const char *value = at + 1 < argc ? argv[at + 1] : NULL;
        if (!value)
            return usage();
        if (strcmp(argv[at], "--rows") == 0)
            s.rows = atoll(value);
        else if (strcmp(argv[at], "--heads") == 0)
            s.attrs.heads = atoll(value);
        else if (strcmp(argv[at], "--key-heads") == 0)
            s.attrs.key_heads = atoll(value);
        else if (strcmp(argv[at], "--head-dim") == 0)
            s.attrs.d_k = atoll(value);
        else if (strcmp(argv[at], "--dtype") == 0)
            s.dtype = strcmp(value, "bf16") == 0 ? SBP_BF16 : SBP_F32;
        else if (strcmp(argv[at], "--compile") == 0)
            compile_only = strcmp(value, "only") == 0;
        else if (strcmp(argv[at], "--decay") == 0)
            s.decay = atof(value);
        else if (!bench_take_option(&settings, argv[at], value))
            return usage();
    }
    const sbp_device_class *class = sbp_device_find(device);
    s.attrs.d_v = s.attrs.d_k;
    if (!class || s.rows < 1 || s.attrs.key_heads < 1 || s.attrs.heads % s.attrs.key_heads != 0)
        return usage();
    bench_start(&s.b, class, &settings);
    s.b.compile_only = compile_only;
    run(&s); /* takes note of memory */
    bench_open(&s.b, &settings.device);
    run(&s);
    bench_close(&s.b);
    return 0;
}
