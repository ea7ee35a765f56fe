/* cpu_kernels.c: rates of the CPU device's commands at the shapes of SmolLM2-135M. A program, not a test:
 *
 *     cpu_kernels [--threads N] [--only gemm|attention|row|head] [--clock wall|cpu]      JSON lines on stdout
 *
 * --clock cpu with --threads 1 counts processor time, which other programs on the machine disturb less.
 *
 * Each figure is the best of several runs; weights change from run to run, so that they are cold as in a
 * step. Useful operations count: attention without what the causal mask hides. */
#include "backends/cpu/cpu_device.h"
#include "ir/lex.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct bench {
    sbp_arena *arena;
    sbp_diag *diag;
    sbp_device *device;
    sbp_program *program;
    int64_t used; /* of the device arena */
    int threads;
    const char *only;
} bench;

static const int64_t arena_bytes = INT64_C(1) << 30;

static clockid_t the_clock = CLOCK_MONOTONIC;

static double now(void) {
    struct timespec t;
    clock_gettime(the_clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void check(bench *b, sbp_status status) {
    if (status != SBP_OK) {
        fprintf(stderr, "%s", sbp_diag_text(b->diag, SBP_NOTE));
        exit((int)status);
    }
}

static void open_device(bench *b) {
    sbp_device_options options = {.threads = b->threads};
    b->program->arena_bytes[SBP_DEVICE] = arena_bytes;
    check(b, sbp_cpu_device.create(&options, b->diag, &b->device));
    check(b, sbp_cpu_device.load(b->device, b->program, b->diag));
    b->used = 0;
}

/* A matrix of small numbers. */
static sbp_span matrix(bench *b, sbp_dtype dtype, int64_t rows, int64_t cols) {
    sbp_span span = {
        .space = SBP_DEVICE, .dtype = dtype, .offset = b->used, .rows = rows, .cols = cols, .stride = cols};
    int64_t bytes = rows * cols * sbp_dtype_bytes(dtype);
    b->used = sbp_round_up(b->used + bytes, 4096);
    if (b->used > arena_bytes) {
        fprintf(stderr, "the arena is too small\n");
        exit(3);
    }
    char *data = sbp_cpu_device.map(b->device, SBP_DEVICE, span.offset);
    int64_t pattern = rows * cols < 997 ? rows * cols : 997;
    for (int64_t i = 0; i < pattern; i++)
        sbp_element_set(data, dtype, i, sbp_dtype_is_float(dtype) ? (double)(i * 37 % 101) / 101 - 0.5 : 0);
    for (int64_t done = pattern * sbp_dtype_bytes(dtype); done < bytes;) {
        int64_t more = done < bytes - done ? done : bytes - done;
        memcpy(data + done, data, (size_t)more);
        done += more;
    }
    return span;
}

static const sbp_span absent = {.space = SBP_SPACE_COUNT};

/* Seconds of the fastest run; operand `cold` (-1: none) moves through `copies` matrices. */
static double run(bench *b, sbp_dispatch *d, sbp_span *spans, int cold, int64_t copies, double about) {
    double best = 1e9, begun = now();
    int64_t offset = cold >= 0 ? spans[cold].offset : 0;
    for (int64_t i = 0; i < 5 || (now() - begun < about && i < 1000); i++) {
        if (cold >= 0)
            spans[cold].offset = offset + i % copies * spans[cold].rows * spans[cold].stride *
                                              sbp_dtype_bytes(spans[cold].dtype);
        double t = now();
        check(b, sbp_cpu_device.submit(b->device, d, b->diag));
        t = now() - t;
        best = t < best ? t : best;
    }
    return best;
}

static void bench_product(bench *b, const char *name, int64_t m, int64_t n, int64_t k, bool ta, bool tb,
                          bool add, sbp_dtype dtype) {
    b->used = 0;
    int64_t copies = 1 + (INT64_C(64) << 20) / (n * k * sbp_dtype_bytes(dtype));
    copies = copies > 40 ? 40 : copies;
    sbp_command command = {.kind = SBP_CMD_GEMM, .flushes = -1};
    command.u.gemm.alpha = 1;
    command.u.gemm.beta = add;
    command.u.gemm.ta = ta;
    command.u.gemm.tb = tb;
    sbp_span spans[5] = {matrix(b, add ? SBP_F32 : dtype, m, n), matrix(b, dtype, ta ? k : m, ta ? m : k),
                         matrix(b, dtype, (tb ? n : k) * copies, tb ? k : n), absent, absent};
    spans[2].rows /= copies;
    if (add)
        spans[3] = spans[0];
    sbp_dispatch d = {.command = &command, .spans = spans, .span_count = 5};
    double seconds = run(b, &d, spans, 2, copies, 0.25);
    printf("{\"command\": \"gemm\", \"product\": \"%s\", \"dtype\": \"%s\", \"m\": %lld, \"n\": %lld, \"k\": "
           "%lld, "
           "\"threads\": %d, \"ms\": %.3f, \"gflops\": %.1f}\n",
           name, sbp_dtype_name(dtype), (long long)m, (long long)n, (long long)k, b->threads, seconds * 1e3,
           2e-9 * (double)m * (double)n * (double)k / seconds);
    fflush(stdout);
}

static void bench_gemm(bench *b, sbp_dtype dtype) {
    static const int64_t chunks[] = {128, 512, 2048},
                         shapes[][2] = {{576, 576}, {192, 576}, {1536, 576}, {576, 1536}};
    for (int s = 0; s < SBP_COUNT(shapes); s++)
        for (int c = 0; c < SBP_COUNT(chunks); c++) {
            int64_t out = shapes[s][0], in = shapes[s][1];
            bench_product(b, "x W^T", chunks[c], out, in, false, true, false, dtype);
            bench_product(b, "dy W", chunks[c], in, out, false, false, false, dtype);
            bench_product(b, "dW += dy^T x", out, in, chunks[c], true, false, true, dtype);
        }
}

static void bench_head(bench *b) {
    static const int64_t chunks[] = {128, 256, 512};
    for (int c = 0; c < SBP_COUNT(chunks); c++) {
        bench_product(b, "head x W^T", chunks[c], 49152, 576, false, true, false, SBP_F32);
        bench_product(b, "head dy W", chunks[c], 576, 49152, false, false, false, SBP_F32);
        bench_product(b, "head dW += dy^T x", 49152, 576, chunks[c], true, false, true, SBP_F32);
    }
}

/* The whole sequence in chunks of C rows, as a step runs it. */
static void bench_attention(bench *b, int64_t total, int64_t chunk, sbp_dtype dtype) {
    enum { HEADS = 9, KV = 3, D = 64, COPIES = 4 };
    b->used = 0;
    sbp_command command = {.kind = SBP_CMD_ATTN_FWD, .flushes = -1};
    command.u.attention =
        (sbp_attention_attrs){.heads = HEADS, .kv_heads = KV, .d_qk = D, .d_v = D, .scale = 0.125};
    sbp_dtype sums = dtype == SBP_F64 ? SBP_F64 : SBP_F32;
    sbp_span q = matrix(b, dtype, total, HEADS * D), k = matrix(b, dtype, total, KV * D);
    sbp_span v = matrix(b, dtype, total, KV * D), o = matrix(b, dtype, total, HEADS * D);
    sbp_span lse = matrix(b, sums, total, HEADS), d_o = matrix(b, dtype, total, HEADS * D);
    sbp_span dq = matrix(b, dtype, total, HEADS * D), dk = matrix(b, sums, total, KV * D);
    sbp_span dv = matrix(b, sums, total, KV * D), first = matrix(b, SBP_I32, total, 1);
    sbp_span work = matrix(b, sums, chunk, COPIES * HEADS * D);
    double best[2] = {1e9, 1e9};
    for (int rep = 0; rep < (total <= 4096 ? 4 : 2); rep++)
        for (int backward = 0; backward < 2; backward++) {
            double begun = now();
            for (int64_t row = 0; row < total; row += chunk) {
                sbp_span part[13] = {dq, dk, dv, q, k, v, o, lse, d_o, first, first, first, work};
                if (!backward)
                    memcpy(part, (sbp_span[]){o, lse, q, k, v, first, first, first, absent},
                           9 * sizeof *part);
                int64_t rows = chunk < total - row ? chunk : total - row;
                for (int i = 0; i < 13; i++) {
                    bool keys = part[i].offset == k.offset || part[i].offset == v.offset ||
                                part[i].offset == dk.offset || part[i].offset == dv.offset;
                    part[i].rows = keys ? row + rows : rows;
                    if (!keys && part[i].offset != work.offset) {
                        part[i].first_row = row;
                        part[i].offset += row * part[i].stride * sbp_dtype_bytes(part[i].dtype);
                    }
                }
                command.kind = backward ? SBP_CMD_ATTN_BWD : SBP_CMD_ATTN_FWD;
                sbp_dispatch d = {.command = &command, .spans = part, .span_count = backward ? 13 : 9};
                check(b, sbp_cpu_device.submit(b->device, &d, b->diag));
            }
            double t = now() - begun;
            best[backward] = t < best[backward] ? t : best[backward];
        }
    double pairs = 0.5 * (double)total * (double)total * HEADS * D;
    printf(
        "{\"command\": \"attention\", \"dtype\": \"%s\", \"rows\": %lld, \"chunk\": %lld, \"threads\": %d, "
        "\"forward_ms\": %.1f, \"backward_ms\": %.1f, \"forward_gflops\": %.0f, \"backward_gflops\": %.0f}\n",
        sbp_dtype_name(dtype), (long long)total, (long long)chunk, b->threads, best[0] * 1e3, best[1] * 1e3,
        4e-9 * pairs / best[0], 10e-9 * pairs / best[1]);
    fflush(stdout);
}

/* ---- row kernels ---------------------------------------------------------------------------------- */

static const char *const row_texts[] = {
    "kernel @norm f32 heads 1 n 576 { in x : f32 [row elem] length 576 in w : f32 [elem] length 576 "
    "out y : f32 [row elem] length 576 %0 = load x %1 = load w %2 = mul %0, %0 %3 = sum[elem] %2 %4 = const "
    "576 "
    "%5 = div %3, %4 %6 = const 1e-05 %7 = add %5, %6 %8 = rsqrt %7 %9 = mul %0, %8 %10 = mul %9, %1 store "
    "y, %10 }",
    "kernel @norm_vjp f32 heads 1 n 576 { in x : f32 [row elem] length 576 in w : f32 [elem] length 576 "
    "in dy : f32 [row elem] length 576 in r : f32 [row elem] length 576 out dx : f32 [row elem] length 576 "
    "partial dw : f32 [elem] length 576 %0 = load x %1 = load w %2 = load dy %3 = load r %4 = mul %0, %0 "
    "%5 = sum[elem] %4 %6 = const 576 %7 = div %5, %6 %8 = const 1e-05 %9 = add %7, %8 %10 = rsqrt %9 "
    "%11 = mul %0, %10 %12 = mul %2, %11 %13 = mul %2, %1 %14 = mul %13, %11 %15 = sum[elem] %14 %16 = div "
    "%15, %6 "
    "%17 = mul %11, %16 %18 = sub %13, %17 %19 = mul %18, %10 %20 = add %19, %3 store dx, %20 accumulate dw, "
    "%12 }",
    "kernel @swiglu f32 heads 1 n 1536 { in g : f32 [row elem] length 1536 in u : f32 [row elem] length 1536 "
    "out s : f32 [row elem] length 1536 %0 = load g %1 = load u %2 = sigmoid %0 %3 = mul %0, %2 %4 = mul %3, "
    "%1 "
    "store s, %4 }",
    "kernel @swiglu_vjp f32 heads 1 n 1536 { in g : f32 [row elem] length 1536 in u : f32 [row elem] length "
    "1536 "
    "in ds : f32 [row elem] length 1536 out dg : f32 [row elem] length 1536 out du : f32 [row elem] length "
    "1536 "
    "%0 = load g %1 = load u %2 = load ds %3 = sigmoid %0 %4 = mul %0, %3 %5 = mul %2, %4 %6 = mul %2, %1 "
    "%7 = const 1 %8 = sub %7, %3 %9 = mul %0, %8 %10 = add %7, %9 %11 = mul %3, %10 %12 = mul %6, %11 "
    "store dg, %12 store du, %5 }",
    "kernel @rope f32 heads 9 n 32 { in x : f32 [row head elem] length 64 stride 64 in pos : i32 [row] "
    "out y : f32 [row head elem] length 64 stride 64 %0 = load x[0:32] %1 = load x[32:64] %2 = load pos "
    "%3 = index 0:32 %4 = const -0.28782313662425574 %5 = mul %3, %4 %6 = exp %5 %7 = mul %2, %6 %8 = cos %7 "
    "%9 = sin %7 %10 = mul %0, %8 %11 = mul %1, %9 %12 = sub %10, %11 %13 = mul %0, %9 %14 = mul %1, %8 "
    "%15 = add %13, %14 store y[0:32], %12 store y[32:64], %15 }",
    "kernel @residual f32 heads 1 n 576 { in x : f32 [row elem] length 576 in y : f32 [row elem] length 576 "
    "out z : f32 [row elem] length 576 %0 = load x %1 = load y %2 = add %0, %1 store z, %2 }",
    "kernel @cast f32 heads 1 n 576 { in x : bf16 [row elem] length 576 out y : f32 [row elem] length 576 "
    "%0 = load x store y, %0 }",
    "kernel @log_softmax f32 heads 1 n 49152 { in z : f32 [row elem] length 49152 in label : i32 [row] "
    "out p : f32 [row] out l : f32 [row] %0 = load z %1 = load label %2 = max[elem] %0 %3 = sub %0, %2 %4 = "
    "exp %3 "
    "%5 = sum[elem] %4 %6 = log %5 %7 = index 0:49152 %8 = eq %7, %1 %9 = const 0 %10 = select %8, %0, %9 "
    "%11 = sum[elem] %10 %12 = add %2, %6 %13 = sub %11, %12 store p, %13 store l, %12 }",
    "kernel @log_softmax_vjp f32 heads 1 n 49152 { in z : f32 [row elem] length 49152 in label : i32 [row] "
    "in l : f32 [row] in dp : f32 [row] out dz : f32 [row elem] length 49152 %0 = load z %1 = load label %2 "
    "= load l "
    "%3 = load dp %4 = sub %0, %2 %5 = exp %4 %6 = index 0:49152 %7 = eq %6, %1 %8 = sub %7, %5 %9 = mul %8, "
    "%3 "
    "store dz, %9 }",
    "kernel @adamw f32 heads 1 n 576 { in w : f32 [row elem] length 576 in m : f32 [row elem] length 576 "
    "in v : f32 [row elem] length 576 in g : f32 [row elem] length 576 out w1 : f32 [row elem] length 576 "
    "out m1 : f32 [row elem] length 576 out v1 : f32 [row elem] length 576 %0 = load w %1 = load m %2 = load "
    "v "
    "%3 = load g %4 = const 0.9 %5 = const 0.1 %6 = mul %1, %4 %7 = mul %3, %5 %8 = add %6, %7 %9 = const "
    "0.999 "
    "%10 = const 0.001 %11 = mul %2, %9 %12 = mul %3, %3 %13 = mul %12, %10 %14 = add %11, %13 %15 = sqrt "
    "%14 "
    "%16 = const 1e-08 %17 = add %15, %16 %18 = div %8, %17 %19 = const 1e-04 %20 = mul %18, %19 %21 = sub "
    "%0, %20 "
    "store w1, %21 store m1, %8 store v1, %14 }"};

static void add_row_kernels(bench *b) {
    for (int i = 0; i < SBP_COUNT(row_texts); i++) {
        sbp_lexer lexer;
        sbp_rowkernel *kernel;
        check(b, sbp_lexer_init(&lexer, b->arena, b->diag, "bench", row_texts[i], strlen(row_texts[i])));
        check(b, sbp_rowkernel_parse(&lexer, b->arena, &kernel));
        check(b, sbp_rowkernel_verify(kernel, b->diag));
        sbp_program_add_kernel(b->arena, b->program, kernel);
    }
}

static void bench_rows(bench *b, int32_t number) {
    const sbp_rowkernel *k = b->program->kernels[number];
    b->used = 0;
    int64_t rows = strcmp(k->name, "adamw") == 0 ? 49152 : k->n > 40000 ? 128 : 512, bytes = 0;
    sbp_span spans[SBP_ROWKERNEL_MAX_OPERANDS];
    for (int32_t i = 0; i < k->operand_count; i++) {
        const sbp_rk_operand *o = &k->operands[i];
        int64_t r = o->vary & SBP_VARY_ROW ? rows : o->mode == SBP_RK_PARTIAL ? rows / SBP_PARTIAL_ROWS : 1;
        spans[i] = matrix(b, o->dtype, r, o->vary & SBP_VARY_HEAD ? k->heads * o->head_stride : o->length);
        bytes += r * spans[i].cols * sbp_dtype_bytes(o->dtype);
    }
    sbp_command command = {.kind = SBP_CMD_ROW, .flushes = -1, .kernel = number};
    sbp_dispatch d = {
        .command = &command, .kernel = k, .rows = rows, .spans = spans, .span_count = k->operand_count};
    double seconds = run(b, &d, spans, -1, 1, 0.2);
    printf("{\"command\": \"row\", \"kernel\": \"%s\", \"rows\": %lld, \"threads\": %d, \"us\": %.1f, "
           "\"gbytes\": %.1f, "
           "\"ns_per_element\": %.3f}\n",
           k->name, (long long)rows, b->threads, seconds * 1e6, 1e-9 * (double)bytes / seconds,
           1e9 * seconds / (double)(rows * k->n * k->heads));
    fflush(stdout);
}

int main(int argc, char **argv) {
    bench b = {.arena = sbp_arena_create(), .diag = sbp_diag_create(), .threads = 2, .only = ""};
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--threads") == 0)
            b.threads = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--only") == 0)
            b.only = argv[i + 1];
        else if (strcmp(argv[i], "--clock") == 0 && strcmp(argv[i + 1], "cpu") == 0)
            the_clock = CLOCK_PROCESS_CPUTIME_ID;
    }
    b.program = sbp_program_create(b.arena, "bench");
    add_row_kernels(&b);
    open_device(&b);
    bool all = !b.only[0];
    if (all || strcmp(b.only, "gemm") == 0) {
        bench_gemm(&b, SBP_F32);
        bench_product(&b, "x W^T", 512, 1536, 576, false, true, false, SBP_BF16);
        bench_product(&b, "dy W", 512, 576, 1536, false, false, false, SBP_BF16);
        bench_product(&b, "dW += dy^T x", 1536, 576, 512, true, false, true, SBP_BF16);
        bench_product(&b, "x W^T", 512, 1536, 576, false, true, false, SBP_F64);
    }
    if (all || strcmp(b.only, "head") == 0)
        bench_head(&b);
    if (all || strcmp(b.only, "attention") == 0) {
        for (int64_t rows = 2048; rows <= 8192; rows *= 2)
            bench_attention(&b, rows, 512, SBP_F32);
        bench_attention(&b, 2048, 2048, SBP_F32);
        bench_attention(&b, 2048, 512, SBP_BF16);
    }
    if (all || strcmp(b.only, "row") == 0)
        for (int32_t i = 0; i < b.program->kernel_count; i++)
            bench_rows(&b, i);
    sbp_device_info info;
    sbp_cpu_device.info(b.device, &info);
    printf("{\"device\": \"%s\", \"threads\": %d}\n", info.name, info.threads);
    sbp_cpu_device.destroy(b.device);
    sbp_arena_destroy(b.arena);
    sbp_diag_destroy(b.diag);
    return 0;
}
