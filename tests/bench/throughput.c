/* throughput.c: how fast the commands of a device are at the shapes of a model. A program, not a test:
 *
 *     bench_throughput [cpu|vulkan|cuda] [--index N] [--model 135m|8b|tiny] [--only gemm|head|attention|row]
 *                 [--dtype bf16|fp32] [--seconds S] [--threads N] [--clock wall|cpu] [--peak TFLOPS]
 *                 [--bandwidth GBPS] [--head-dim D] [--heads H] [--kv-heads K] [--compile only]
 *
 * prints JSON lines. --peak: of products in bf16, --bandwidth: of the device's memory; with them each figure
 * comes in percent too ("of_peak"). --head-dim, --heads, --kv-heads: attention of another model. --clock cpu
 * with --threads 1 counts processor time, which other programs on the machine disturb less.
 *
 * Each figure is the best of several bursts of commands, each 20 ms long on a GPU, so that what it costs to
 * submit a command and to wait for it is not in it; bf16 comes before fp32. --seconds: about as long for each
 * figure (0.25). --compile only: no device is opened, but all kernels are kept for the next time. Weights
 * change from run to run, so that they are cold as in a step. Useful operations count: attention without what
 * the causal mask hides. */
#include "backends/devices.h"
#include "tests/bench/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CHUNKS = 4, MOST_LENGTHS = 4 };

/* The shapes of a model's layers, in what a step runs: chunks of rows, of the head; attention over lengths.
 */
typedef struct model {
    const char *name;
    int64_t d, ffn, heads, kv_heads, head_dim, vocab;
    int64_t chunks[MOST_CHUNKS], head_chunks[MOST_CHUNKS], lengths[MOST_LENGTHS], attention_chunk;
    int64_t rows, head_rows; /* of row kernels */
} model;

static const model models[] = {{"135m",
                                576,
                                1536,
                                9,
                                3,
                                64,
                                49152,
                                {128, 512, 2048},
                                {128, 256, 512},
                                {2048, 4096, 8192},
                                512,
                                512,
                                128},
                               {"8b",
                                4096,
                                12288,
                                32,
                                8,
                                128,
                                151936,
                                {1024, 4096, 8192},
                                {512, 2048},
                                {4096, 16384, 32768},
                                8192,
                                8192,
                                1024},
                               {"tiny", 64, 96, 4, 2, 64, 160, {32}, {16}, {64}, 32, 64, 64}};

typedef struct rates {
    bench b;
    const model *m;
    const char *only, *dtype; /* NULL: all */
    double peak, bandwidth;   /* per second: operations, bytes; 0: not given */
} rates;

static const sbp_dtype types[] = {SBP_BF16, SBP_F32};

static bool wanted_type(const rates *r, sbp_dtype dtype) {
    return !r->dtype || strcmp(r->dtype, dtype == SBP_BF16 ? "bf16" : "fp32") == 0;
}

/* ---- figures ----------------------------------------------------------------------------------------- */

/* The end of a line. */
static void print_share(const char *key, double rate, double of) {
    if (of > 0)
        printf(", \"%s\": %.1f", key, 100 * rate / of);
}

static void bench_gemm(rates *r, const bench_matmul *p) {
    bench_command command;
    bench_matmul_make(&r->b, p, &command);
    double seconds = bench_time(&r->b, &command);
    if (!r->b.device)
        return;
    double gflops = bench_matmul_gflops(p, seconds);
    printf("{\"command\": \"gemm\", \"product\": \"%s\", \"dtype\": \"%s\", \"m\": %lld, \"n\": %lld, \"k\": "
           "%lld, \"ms\": %.3f, \"gflops\": %.1f",
           p->name, sbp_dtype_name(p->dtype), (long long)p->m, (long long)p->n, (long long)p->k,
           seconds * 1e3, gflops);
    print_share("percent_of_peak", gflops * 1e9, p->dtype == SBP_BF16 ? r->peak : 0);
    puts("}");
    fflush(stdout);
}

static void bench_layers(rates *r) {
    static const char *const names[] = {"x W^T", "dy W", "dW += dy^T x"};
    const model *m = r->m;
    const int64_t q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
    const int64_t shapes[][2] = {{q, m->d}, {kv, m->d}, {m->ffn, m->d}, {m->d, m->ffn}};
    bench_matmul products[3];
    for (int t = 0; t < SBP_COUNT(types); t++)
        for (int s = 0; wanted_type(r, types[t]) && s < SBP_COUNT(shapes); s++)
            for (int c = 0; c < MOST_CHUNKS && m->chunks[c] > 0; c++) {
                bench_layer(names, m->chunks[c], shapes[s][0], shapes[s][1], types[t], products);
                for (int i = 0; i < 3; i++)
                    bench_gemm(r, &products[i]);
            }
}

static void bench_head(rates *r) {
    static const char *const names[] = {"head x W^T", "head dy W", "head dW += dy^T x"};
    const model *m = r->m;
    bench_matmul products[3];
    for (int t = 0; t < SBP_COUNT(types); t++)
        for (int c = 0; wanted_type(r, types[t]) && c < MOST_CHUNKS && m->head_chunks[c] > 0; c++) {
            bench_layer(names, m->head_chunks[c], m->vocab, m->d, types[t], products);
            for (int i = 0; i < 3; i++)
                bench_gemm(r, &products[i]);
        }
}

static void bench_attn(rates *r, int64_t rows, int64_t chunk, sbp_dtype dtype) {
    bench_attention shape = {rows, chunk, r->m->heads, r->m->kv_heads, r->m->head_dim, dtype};
    double seconds[2], gflops[2];
    bench_attention_run(&r->b, &shape, seconds, gflops);
    if (!r->b.device)
        return;
    printf("{\"command\": \"attention\", \"head_dim\": %lld, \"dtype\": \"%s\", \"rows\": %lld, \"chunk\": "
           "%lld, "
           "\"forward_ms\": %.1f, \"backward_ms\": %.1f, \"forward_gflops\": %.0f, \"backward_gflops\": %.0f",
           (long long)r->m->head_dim, sbp_dtype_name(dtype), (long long)rows, (long long)chunk,
           seconds[0] * 1e3, seconds[1] * 1e3, gflops[0], gflops[1]);
    print_share("forward_percent_of_peak", gflops[0] * 1e9, dtype == SBP_BF16 ? r->peak : 0);
    print_share("backward_percent_of_peak", gflops[1] * 1e9, dtype == SBP_BF16 ? r->peak : 0);
    puts("}");
    fflush(stdout);
}

/* ---- row kernels ---------------------------------------------------------------------------------- */

/* D: columns of the model, F: of the inner layer, V: the vocabulary, H heads of S = 2 R elements. */
static const char *const row_texts[] = {
    "kernel @norm f32 heads 1 n {D} { in x : f32 [row elem] length {D} in w : f32 [elem] length {D} "
    "out y : f32 [row elem] length {D} %0 = load x %1 = load w %2 = mul %0, %0 %3 = sum[elem] %2 %4 = const "
    "{D}"
    " "
    "%5 = div %3, %4 %6 = const 1e-05 %7 = add %5, %6 %8 = rsqrt %7 %9 = mul %0, %8 %10 = mul %9, %1 store "
    "y, %10 }",
    "kernel @norm_vjp f32 heads 1 n {D} { in x : f32 [row elem] length {D} in w : f32 [elem] length {D} "
    "in dy : f32 [row elem] length {D} in r : f32 [row elem] length {D} out dx : f32 [row elem] length {D} "
    "partial dw : f32 [elem] length {D} %0 = load x %1 = load w %2 = load dy %3 = load r %4 = mul %0, %0 "
    "%5 = sum[elem] %4 %6 = const {D} %7 = div %5, %6 %8 = const 1e-05 %9 = add %7, %8 %10 = rsqrt %9 "
    "%11 = mul %0, %10 %12 = mul %2, %11 %13 = mul %2, %1 %14 = mul %13, %11 %15 = sum[elem] %14 %16 = div "
    "%15, %6 "
    "%17 = mul %11, %16 %18 = sub %13, %17 %19 = mul %18, %10 %20 = add %19, %3 store dx, %20 accumulate dw, "
    "%12 }",
    "kernel @swiglu f32 heads 1 n {F} { in g : f32 [row elem] length {F} in u : f32 [row elem] length {F} "
    "out s : f32 [row elem] length {F} %0 = load g %1 = load u %2 = sigmoid %0 %3 = mul %0, %2 %4 = mul %3, "
    "%1 "
    "store s, %4 }",
    "kernel @swiglu_vjp f32 heads 1 n {F} { in g : f32 [row elem] length {F} in u : f32 [row elem] length "
    "{F} "
    "in ds : f32 [row elem] length {F} out dg : f32 [row elem] length {F} out du : f32 [row elem] length "
    "{F} "
    "%0 = load g %1 = load u %2 = load ds %3 = sigmoid %0 %4 = mul %0, %3 %5 = mul %2, %4 %6 = mul %2, %1 "
    "%7 = const 1 %8 = sub %7, %3 %9 = mul %0, %8 %10 = add %7, %9 %11 = mul %3, %10 %12 = mul %6, %11 "
    "store dg, %12 store du, %5 }",
    "kernel @rope f32 heads {H} n {R} { in x : f32 [row head elem] length {S} stride {S} in pos : i32 [row] "
    "out y : f32 [row head elem] length {S} stride {S} %0 = load x[0:{R}] %1 = load x[{R}:{S}] %2 = load pos "
    "%3 = index 0:{R} %4 = const -0.28782313662425574 %5 = mul %3, %4 %6 = exp %5 %7 = mul %2, %6 %8 = cos "
    "%7 "
    "%9 = sin %7 %10 = mul %0, %8 %11 = mul %1, %9 %12 = sub %10, %11 %13 = mul %0, %9 %14 = mul %1, %8 "
    "%15 = add %13, %14 store y[0:{R}], %12 store y[{R}:{S}], %15 }",
    "kernel @residual f32 heads 1 n {D} { in x : f32 [row elem] length {D} in y : f32 [row elem] length {D} "
    "out z : f32 [row elem] length {D} %0 = load x %1 = load y %2 = add %0, %1 store z, %2 }",
    "kernel @cast f32 heads 1 n {D} { in x : bf16 [row elem] length {D} out y : f32 [row elem] length {D} "
    "%0 = load x store y, %0 }",
    "kernel @log_softmax f32 heads 1 n {V} { in z : f32 [row elem] length {V} in label : i32 [row] "
    "out p : f32 [row] out l : f32 [row] %0 = load z %1 = load label %2 = max[elem] %0 %3 = sub %0, %2 %4 = "
    "exp %3 "
    "%5 = sum[elem] %4 %6 = log %5 %7 = index 0:{V} %8 = eq %7, %1 %9 = const 0 %10 = select %8, %0, %9 "
    "%11 = sum[elem] %10 %12 = add %2, %6 %13 = sub %11, %12 store p, %13 store l, %12 }",
    "kernel @log_softmax_vjp f32 heads 1 n {V} { in z : f32 [row elem] length {V} in label : i32 [row] "
    "in l : f32 [row] in dp : f32 [row] out dz : f32 [row elem] length {V} %0 = load z %1 = load label %2 "
    "= load l "
    "%3 = load dp %4 = sub %0, %2 %5 = exp %4 %6 = index 0:{V} %7 = eq %6, %1 %8 = sub %7, %5 %9 = mul %8, "
    "%3 "
    "store dz, %9 }",
    "kernel @adamw f32 heads 1 n {D} { in w : f32 [row elem] length {D} in m : f32 [row elem] length {D} "
    "in v : f32 [row elem] length {D} in g : f32 [row elem] length {D} out w1 : f32 [row elem] length {D} "
    "out m1 : f32 [row elem] length {D} out v1 : f32 [row elem] length {D} %0 = load w %1 = load m %2 = load "
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
    "kernel @adamw_master f32 heads 1 n {D} { in w : bf16 [row elem] length {D} in l : i16 [row elem] length "
    "{D} "
    "in m : f32 [row elem] length {D} in v : f32 [row elem] length {D} in g : f32 [row elem] length {D} "
    "out w1 : bf16 [row elem] length {D} out l1 : i16 [row elem] length {D} out m1 : f32 [row elem] length "
    "{D} "
    "out v1 : f32 [row elem] length {D} %0 = load w %1 = load l %2 = load m %3 = load v %4 = load g "
    "%5 = bf16_join %0, %1 %6 = const 0.9 %7 = const 0.1 %8 = mul %2, %6 %9 = mul %4, %7 %10 = add %8, %9 "
    "%11 = const 0.999 %12 = const 0.001 %13 = mul %3, %11 %14 = mul %4, %4 %15 = mul %14, %12 "
    "%16 = add %13, %15 %17 = sqrt %16 %18 = const 1e-08 %19 = add %17, %18 %20 = div %10, %19 "
    "%21 = const 1e-04 %22 = mul %20, %21 %23 = sub %5, %22 %24 = bf16_high %23 %25 = bf16_low %23 "
    "store w1, %24 store l1, %25 store m1, %10 store v1, %16 }",
    "kernel @adamw_random f32 heads 1 n {D} { in w : bf16 [row elem] length {D} in m : bf16 [row elem] "
    "length {D} "
    "in v : bf16 [row elem] length {D} in g : f32 [row elem] length {D} in s : f32 [] "
    "out w1 : bf16 [row elem] length {D} out m1 : bf16 [row elem] length {D} "
    "out v1 : bf16 [row elem] length {D} scalar key1 scalar key2 scalar key3 "
    "%0 = load w %1 = load m %2 = load v "
    "%3 = load g %4 = const 0.9 %5 = const 0.1 %6 = mul %1, %4 %7 = mul %3, %5 %8 = add %6, %7 %9 = const "
    "0.999 %10 = const 0.001 %11 = mul %2, %9 %12 = mul %3, %3 %13 = mul %12, %10 %14 = add %11, %13 %15 = "
    "sqrt "
    "%14 %16 = const 1e-08 %17 = add %15, %16 %18 = div %8, %17 %19 = const 1e-04 %20 = mul %18, %19 %21 = "
    "sub "
    "%0, %20 %22 = load s %23 = random key1 [row elem] 0:{D}, %22 %24 = random key2 [row elem] 0:{D}, %22 "
    "%25 = random key3 [row elem] 0:{D}, %22 %26 = bf16_random %21, %23 %27 = bf16_random %8, %24 "
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

static void add_kernels(rates *r) {
    const model *m = r->m;
    for (int i = 0; i < SBP_COUNT(row_texts); i++) {
        sbp_text text;
        sbp_text_init(&text, r->b.arena);
        for (const char *at = row_texts[i]; *at; at++) {
            int64_t size = 0;
            if (at[0] == '{' && at[1] && at[2] == '}') {
                const char names[] = "DFVHSR";
                const int64_t sizes[] = {m->d, m->ffn, m->vocab, m->heads, m->head_dim, m->head_dim / 2};
                const char *name = strchr(names, at[1]);
                size = name ? sizes[name - names] : 0;
            }
            if (size > 0)
                sbp_text_add(&text, "%lld", (long long)size);
            else
                sbp_text_add_n(&text, at, 1);
            at += size > 0 ? 2 : 0;
        }
        bench_add_kernel(&r->b, text.data);
    }
}

static void bench_rows(rates *r, int32_t number) {
    const sbp_rowkernel *k = r->b.program->kernels[number];
    bool update = strncmp(k->name, "adamw", 5) == 0; /* over a parameter */
    int64_t rows = update ? 4 * r->m->ffn : k->n == r->m->vocab ? r->m->head_rows : r->m->rows, bytes;
    bench_command command;
    bench_row_make(&r->b, number, rows, &command, &bytes);
    double seconds = bench_time(&r->b, &command);
    if (!r->b.device)
        return;
    printf("{\"command\": \"row\", \"kernel\": \"%s\", \"rows\": %lld, \"us\": %.1f, \"gbytes\": %.1f, "
           "\"ns_per_element\": %.3f",
           k->name, (long long)rows, seconds * 1e6, 1e-9 * (double)bytes / seconds,
           1e9 * seconds / (double)(rows * k->n * k->heads));
    print_share("percent_of_bandwidth", (double)bytes / seconds, r->bandwidth);
    puts("}");
    fflush(stdout);
}

static bool wanted(const rates *r, const char *part) {
    return !r->only || strcmp(r->only, part) == 0;
}

static void run_cases(rates *r) {
    const model *m = r->m;
    if (wanted(r, "gemm"))
        bench_layers(r);
    if (wanted(r, "head"))
        bench_head(r);
    for (int t = 0; wanted(r, "attention") && t < SBP_COUNT(types); t++) {
        if (!wanted_type(r, types[t]))
            continue;
        for (int i = 0; i < MOST_LENGTHS && m->lengths[i] > 0; i++)
            bench_attn(r, m->lengths[i], m->attention_chunk, types[t]);
        bench_attn(r, m->lengths[0], m->lengths[0], types[t]);
    }
    for (int32_t i = 0; wanted(r, "row") && i < r->b.program->kernel_count; i++)
        bench_rows(r, i);
}

/* ---- the program ------------------------------------------------------------------------------------- */

static int usage(void) {
    fputs("usage: bench_throughput [cpu|vulkan|cuda] [--index N] [--model 135m|8b|tiny]\n"
          "                   [--only gemm|head|attention|row] [--dtype bf16|fp32] [--seconds S]\n"
          "                   [--threads N] [--clock wall|cpu] [--peak TFLOPS] [--bandwidth GBPS]\n"
          "                   [--head-dim D] [--heads H] [--kv-heads K] [--compile only]\n",
          stderr);
    return SBP_USAGE;
}

static const model *find_model(const char *name) {
    for (int i = 0; i < SBP_COUNT(models); i++)
        if (strcmp(models[i].name, name) == 0)
            return &models[i];
    return NULL;
}

int main(int argc, char **argv) {
    static rates r;
    static model own;
    int64_t head_dim = 0, heads = 0, kv_heads = 0;
    const char *device = "cpu";
    bool compile_only = false;
    bench_settings settings = {{.threads = 2}, 0.25, CLOCK_MONOTONIC};
    int at = 1;
    if (argc > 1 && argv[1][0] != '-')
        device = argv[at++];
    r.m = &models[0];
    for (; at < argc; at += 2) {
        const char *value = at + 1 < argc ? argv[at + 1] : NULL;
        if (!value)
            return usage();
        if (strcmp(argv[at], "--index") == 0)
            settings.device.index = atoi(value);
        else if (strcmp(argv[at], "--only") == 0)
            r.only = value;
        else if (strcmp(argv[at], "--compile") == 0)
            compile_only = strcmp(value, "only") == 0;
        else if (strcmp(argv[at], "--dtype") == 0)
            r.dtype = value;
        else if (strcmp(argv[at], "--model") == 0)
            r.m = find_model(value);
        else if (strcmp(argv[at], "--head-dim") == 0)
            head_dim = atoll(value);
        else if (strcmp(argv[at], "--heads") == 0)
            heads = atoll(value);
        else if (strcmp(argv[at], "--kv-heads") == 0)
            kv_heads = atoll(value);
        else if (strcmp(argv[at], "--peak") == 0)
            r.peak = atof(value) * 1e12;
        else if (strcmp(argv[at], "--bandwidth") == 0)
            r.bandwidth = atof(value) * 1e9;
        else if (!bench_take_option(&settings, argv[at], value))
            return usage();
    }
    const sbp_device_class *class = sbp_device_find(device);
    if (r.m) {
        own = *r.m;
        own.head_dim = head_dim > 0 ? head_dim : own.head_dim;
        own.heads = heads > 0 ? heads : own.heads;
        own.kv_heads = kv_heads > 0 ? kv_heads : own.kv_heads;
        r.m = &own;
    }
    if (!r.m || !class || r.m->heads % r.m->kv_heads != 0 ||
        (r.dtype && strcmp(r.dtype, "bf16") != 0 && strcmp(r.dtype, "fp32") != 0))
        return usage();
    bench_start(&r.b, class, &settings);
    r.b.compile_only = compile_only;
    if (r.m->d < 512)
        r.b.about_seconds = r.b.burst_seconds = 0; /* nothing that anyone would read */
    add_kernels(&r);
    run_cases(&r); /* takes note of memory */
    bench_open(&r.b, &settings.device);
    run_cases(&r);
    sbp_device_info info;
    class->info(r.b.device, &info);
    printf("{\"device\": \"%s\", \"threads\": %d}\n", info.name, info.threads);
    bench_close(&r.b);
    return 0;
}
