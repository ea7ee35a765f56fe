/* cpu_kernels.c: rates of the CPU device's commands at the shapes of SmolLM2-135M. A program, not a test:
 *
 *     bench_cpu_kernels [--threads N] [--only gemm|attention|row|head] [--clock wall|cpu]    JSON lines on
 * stdout
 *
 * --clock cpu with --threads 1 counts processor time, which other programs on the machine disturb less.
 *
 * Each figure is the best of several runs; weights change from run to run, so that they are cold as in a
 * step. Useful operations count: attention without what the causal mask hides. */
#include "backends/cpu/cpu_device.h"
#include "tests/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int threads = 2;
static const sbp_dtype types[] = {SBP_F32, SBP_BF16};

static void bench_gemm(bench *b, const bench_product *p) {
    bench_command command;
    bench_product_make(b, p, &command);
    double seconds = bench_time(b, &command);
    if (!b->device)
        return;
    printf("{\"command\": \"gemm\", \"product\": \"%s\", \"dtype\": \"%s\", \"m\": %lld, \"n\": %lld, \"k\": "
           "%lld, \"threads\": %d, \"ms\": %.3f, \"gflops\": %.1f}\n",
           p->name, sbp_dtype_name(p->dtype), (long long)p->m, (long long)p->n, (long long)p->k, threads,
           seconds * 1e3, bench_product_gflops(p, seconds));
    fflush(stdout);
}

static void bench_layers(bench *b) {
    static const char *const names[] = {"x W^T", "dy W", "dW += dy^T x"};
    static const int64_t chunks[] = {128, 512, 2048},
                         shapes[][2] = {{576, 576}, {192, 576}, {1536, 576}, {576, 1536}};
    bench_product products[3];
    for (int t = 0; t < SBP_COUNT(types); t++)
        for (int s = 0; s < SBP_COUNT(shapes); s++)
            for (int c = 0; c < SBP_COUNT(chunks); c++) {
                bench_layer(names, chunks[c], shapes[s][0], shapes[s][1], types[t], products);
                for (int i = 0; i < 3; i++)
                    bench_gemm(b, &products[i]);
            }
    bench_layer(names, 512, 1536, 576, SBP_F64, products);
    bench_gemm(b, &products[0]);
}

static void bench_head(bench *b) {
    static const char *const names[] = {"head x W^T", "head dy W", "head dW += dy^T x"};
    static const int64_t chunks[] = {128, 256, 512};
    bench_product products[3];
    for (int t = 0; t < SBP_COUNT(types); t++)
        for (int c = 0; c < SBP_COUNT(chunks); c++) {
            bench_layer(names, chunks[c], 49152, 576, types[t], products);
            for (int i = 0; i < 3; i++)
                bench_gemm(b, &products[i]);
        }
}

static void bench_attn(bench *b, int64_t rows, int64_t chunk, sbp_dtype dtype) {
    bench_attention shape = {rows, chunk, 9, 3, 64, dtype};
    double seconds[2], gflops[2];
    bench_attention_run(b, &shape, seconds, gflops);
    if (!b->device)
        return;
    printf(
        "{\"command\": \"attention\", \"dtype\": \"%s\", \"rows\": %lld, \"chunk\": %lld, \"threads\": %d, "
        "\"forward_ms\": %.1f, \"backward_ms\": %.1f, \"forward_gflops\": %.0f, \"backward_gflops\": %.0f}\n",
        sbp_dtype_name(dtype), (long long)rows, (long long)chunk, threads, seconds[0] * 1e3, seconds[1] * 1e3,
        gflops[0], gflops[1]);
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
    "store w1, %21 store m1, %8 store v1, %14 }",
    /* the same on bf16 with its low half, on bf16 rounded at random like its states, and with states of 8
       bits */
    "kernel @adamw_master f32 heads 1 n 576 { in w : bf16 [row elem] length 576 in l : i16 [row elem] length "
    "576 "
    "in m : f32 [row elem] length 576 in v : f32 [row elem] length 576 in g : f32 [row elem] length 576 "
    "out w1 : bf16 [row elem] length 576 out l1 : i16 [row elem] length 576 out m1 : f32 [row elem] length "
    "576 "
    "out v1 : f32 [row elem] length 576 %0 = load w %1 = load l %2 = load m %3 = load v %4 = load g "
    "%5 = bf16_join %0, %1 %6 = const 0.9 %7 = const 0.1 %8 = mul %2, %6 %9 = mul %4, %7 %10 = add %8, %9 "
    "%11 = const 0.999 %12 = const 0.001 %13 = mul %3, %11 %14 = mul %4, %4 %15 = mul %14, %12 "
    "%16 = add %13, %15 %17 = sqrt %16 %18 = const 1e-08 %19 = add %17, %18 %20 = div %10, %19 "
    "%21 = const 1e-04 %22 = mul %20, %21 %23 = sub %5, %22 %24 = bf16_high %23 %25 = bf16_low %23 "
    "store w1, %24 store l1, %25 store m1, %10 store v1, %16 }",
    "kernel @adamw_random f32 heads 1 n 576 { in w : bf16 [row elem] length 576 in m : bf16 [row elem] "
    "length 576 "
    "in v : bf16 [row elem] length 576 in g : f32 [row elem] length 576 in s : f32 [] "
    "out w1 : bf16 [row elem] length 576 out m1 : bf16 [row elem] length 576 "
    "out v1 : bf16 [row elem] length 576 scalar key1 scalar key2 scalar key3 "
    "%0 = load w %1 = load m %2 = load v "
    "%3 = load g %4 = const 0.9 %5 = const 0.1 %6 = mul %1, %4 %7 = mul %3, %5 %8 = add %6, %7 %9 = const "
    "0.999 %10 = const 0.001 %11 = mul %2, %9 %12 = mul %3, %3 %13 = mul %12, %10 %14 = add %11, %13 %15 = "
    "sqrt "
    "%14 %16 = const 1e-08 %17 = add %15, %16 %18 = div %8, %17 %19 = const 1e-04 %20 = mul %18, %19 %21 = "
    "sub "
    "%0, %20 %22 = load s %23 = random key1 [row elem] 0:576, %22 %24 = random key2 [row elem] 0:576, %22 "
    "%25 = random key3 [row elem] 0:576, %22 %26 = bf16_random %21, %23 %27 = bf16_random %8, %24 "
    "%28 = bf16_random %14, %25 store w1, %26 store m1, %27 store v1, %28 }",
    "kernel @adamw_8bit f32 heads 2 n 256 { in w : f32 [row head elem] length 256 stride 256 "
    "in m : d8 [row head elem] length 256 stride 256 in v : ud8 [row head elem] length 256 stride 256 "
    "in a : f32 [row head] stride 1 in b : f32 [row head] stride 1 "
    "in g : f32 [row head elem] length 256 stride 256 out w1 : f32 [row head elem] length 256 stride 256 "
    "out m1 : d8 [row head elem] length 256 stride 256 out v1 : ud8 [row head elem] length 256 stride 256 "
    "out a1 : f32 [row head] stride 1 out b1 : f32 [row head] stride 1 "
    "%0 = load w %1 = load m %2 = load v %3 = load a %4 = load b %5 = load g %6 = mul %1, %3 %7 = mul %2, %4 "
    "%8 = const 0.9 %9 = const 0.1 %10 = mul %6, %8 %11 = mul %5, %9 %12 = add %10, %11 %13 = const 0.999 "
    "%14 = const 0.001 %15 = mul %7, %13 %16 = mul %5, %5 %17 = mul %16, %14 %18 = add %15, %17 %19 = sqrt "
    "%18 "
    "%20 = const 1e-08 %21 = add %19, %20 %22 = div %12, %21 %23 = const 1e-04 %24 = mul %22, %23 "
    "%25 = sub %0, %24 %26 = abs %12 %27 = max[elem] %26 %28 = max[elem] %18 %29 = div %12, %27 "
    "%30 = div %18, %28 store w1, %25 store m1, %29 store v1, %30 store a1, %27 store b1, %28 }"};

static void bench_rows(bench *b, int32_t number) {
    const sbp_rowkernel *k = b->program->kernels[number];
    int64_t rows = strncmp(k->name, "adamw", 5) == 0 ? 49152 : k->n > 40000 ? 128 : 512, bytes;
    bench_command command;
    bench_row_make(b, number, rows, &command, &bytes);
    double seconds = bench_time(b, &command);
    if (!b->device)
        return;
    printf("{\"command\": \"row\", \"kernel\": \"%s\", \"rows\": %lld, \"threads\": %d, \"us\": %.1f, "
           "\"gbytes\": %.1f, \"ns_per_element\": %.3f}\n",
           k->name, (long long)rows, threads, seconds * 1e6, 1e-9 * (double)bytes / seconds,
           1e9 * seconds / (double)(rows * k->n * k->heads));
    fflush(stdout);
}

static void run_cases(bench *b, const char *only) {
    if (!only || strcmp(only, "gemm") == 0)
        bench_layers(b);
    if (!only || strcmp(only, "head") == 0)
        bench_head(b);
    if (!only || strcmp(only, "attention") == 0) {
        for (int t = 0; t < SBP_COUNT(types); t++) {
            for (int64_t rows = 2048; rows <= 8192; rows *= 2)
                bench_attn(b, rows, 512, types[t]);
            bench_attn(b, 2048, 2048, types[t]);
        }
    }
    for (int32_t i = 0; (!only || strcmp(only, "row") == 0) && i < b->program->kernel_count; i++)
        bench_rows(b, i);
}

int main(int argc, char **argv) {
    bench b;
    const char *only = NULL;
    bench_init(&b, &sbp_cpu_device);
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--threads") == 0)
            threads = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--only") == 0)
            only = argv[i + 1];
        else if (strcmp(argv[i], "--clock") == 0 && strcmp(argv[i + 1], "cpu") == 0)
            b.clock = CLOCK_PROCESS_CPUTIME_ID;
    }
    for (int i = 0; i < SBP_COUNT(row_texts); i++)
        bench_add_kernel(&b, row_texts[i]);
    run_cases(&b, only); /* takes note of memory */
    bench_open(&b, &(sbp_device_options){.threads = threads});
    run_cases(&b, only);
    sbp_device_info info;
    sbp_cpu_device.info(b.device, &info);
    printf("{\"device\": \"%s\", \"threads\": %d}\n", info.name, info.threads);
    bench_close(&b);
    return 0;
}
