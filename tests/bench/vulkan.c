/* vulkan.c: what a Vulkan device does per second. A program; CTest runs it with --quick.
 *
 *     bench_vulkan [--device N] [--quick] [--save FILE]
 *
 * - products of layers and squares, in every variant that the device can be made to run (abi.h);
 * - attention, forward and backward, without what the causal mask hides;
 * - what a small command costs: recorded (the host's part, before anything is handed to the driver),
 * submitted in batches and done, with a fence after each, and alone with a wait.
 *
 * Tables go to standard output, JSON to FILE or tests/bench/results/vulkan_<device>.json. --quick: tiny
 * sizes, which say nothing about speed, and no file but FILE. Exit status 3 without a driver, 0 and "skipped"
 * with --quick. */
#include "backends/vulkan/device/vulkan.h"
#include "backends/composite/composite.h"
#include "backends/vulkan/vulkan_device.h"
#include "ir/base/json.h"
#include "tests/bench/bench.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PRODUCTS = 160, MOST_ATTENTION = 16, SMALL_COMMANDS = 2, FIRST_COMMANDS = 16 };

static const vulkan_device *vulkan_of(sbp_device *device) {
    return (const vulkan_device *)composite_backend(device);
}

/* Variants of products that the device is asked for (SBP_VULKAN_GEMM); NULL: its own choice. */
static const char *const ways[] = {NULL, "tiled", "wide", "matrix"};

enum { WAYS = SBP_COUNT(ways) };

typedef struct small_command {
    const char *name;
    double record_us, command_us, fenced_us, round_trip_us;
} small_command;

typedef struct results {
    bench_matmul products[MOST_PRODUCTS];
    int product_count;
    char variants[WAYS][MOST_PRODUCTS][16];
    double seconds[WAYS][MOST_PRODUCTS]; /* 0: not run in this way */
    bench_attention attention[MOST_ATTENTION];
    int attention_count;
    double attention_seconds[MOST_ATTENTION][2], attention_gflops[MOST_ATTENTION][2];
    small_command small[SMALL_COMMANDS];
} results;

typedef struct options {
    int32_t device;
    bool quick;
    const char *save;
} options;

/* ---- what is measured -------------------------------------------------------------------------------- */

static void add_layer(results *r, int64_t rows, int64_t out, int64_t in, sbp_dtype dtype) {
    static const char *const names[] = {"x W^T", "dy W", "dW += dy^T x"};
    bench_layer(names, rows, out, in, dtype, &r->products[r->product_count]);
    r->product_count += 3;
}

static void add_square(results *r, int64_t n, sbp_dtype dtype) {
    r->products[r->product_count++] = (bench_matmul){"square", n, n, n, false, true, false, dtype};
}

static void add_attention(results *r, int64_t rows, int64_t chunk, int64_t heads, int64_t kv_heads, int64_t d,
                          sbp_dtype dtype) {
    r->attention[r->attention_count++] = (bench_attention){rows, chunk, heads, kv_heads, d, dtype};
}

/* Layers and head of SmolLM2-135M, squares; attention of SmolLM2-135M and of an 8B model. Sizes: a minute or
 * so. */
static void choose_cases(results *r, bool quick, bool software) {
    static const sbp_dtype dtypes[] = {SBP_F32, SBP_BF16, SBP_F16};
    static const int64_t layers[][2] = {{576, 576}, {192, 576}, {1536, 576}, {576, 1536}};
    for (int t = 0; t < SBP_COUNT(dtypes); t++) {
        if (quick) {
            add_layer(r, 70, 96, 64, dtypes[t]);
            add_square(r, 64, dtypes[t]);
            continue;
        }
        for (int i = 0; i < SBP_COUNT(layers); i++)
            add_layer(r, software ? 256 : 2048, layers[i][0], layers[i][1], dtypes[t]);
        for (int64_t n = software ? 512 : 1024; n <= (software ? 512 : 8192); n *= 2)
            add_square(r, n, dtypes[t]);
    }
    if (!quick)
        add_layer(r, software ? 32 : 512, 49152, 576, SBP_F32);
    for (int t = 0; t < 2; t++) {
        if (quick) {
            add_attention(r, 70, 32, 4, 2, 64, dtypes[t]);
            continue;
        }
        add_attention(r, 256, 256, 9, 3, 64, dtypes[t]);
        add_attention(r, 256, 64, 9, 3, 64, dtypes[t]);
        add_attention(r, 256, 256, 4, 1, 128, dtypes[t]);
        for (int64_t rows = 2048; !software && rows <= 8192; rows *= 4) {
            add_attention(r, rows, 2048, 9, 3, 64, dtypes[t]);
            add_attention(r, rows, 2048, 32, 8, 128, dtypes[t]);
        }
    }
}

/* The variant of products that the device runs: "direct", "tiled" .. */
static void find_variant(const bench *b, const sbp_dispatch *dispatch, char out[16]) {
    sbp_vulkan_step steps[SBP_VULKAN_STEPS];
    int64_t scratch_bytes;
    out[0] = 0;
    if (sbp_vulkan_steps(dispatch, &vulkan_of(b->device)->machine, steps, &scratch_bytes) > 0)
        snprintf(out, 16, "%.15s", sbp_vulkan_gemm_names[steps[0].key.variant]);
}

/* Whether an earlier way ran the same variant already. */
static bool is_known(const results *r, int with, int product) {
    for (int w = 0; w < with; w++)
        if (strcmp(r->variants[w][product], r->variants[with][product]) == 0)
            return true;
    return false;
}

static void run_products(bench *b, results *r, int with) {
    for (int i = 0; i < r->product_count; i++) {
        bench_command command;
        bench_matmul_make(b, &r->products[i], &command);
        if (b->device) {
            find_variant(b, &command.dispatch, r->variants[with][i]);
            if (is_known(r, with, i))
                continue;
        }
        double seconds = bench_time(b, &command);
        r->seconds[with][i] = b->device ? seconds : 0;
    }
}

static double per_command(bench *b, const bench_command *c, int count, bool fences) {
    double begun = bench_now(b);
    for (int i = 0; i < count; i++) {
        bench_submit(b, &c->dispatch);
        if (fences)
            bench_fence(b);
    }
    bench_wait(b);
    return 1e6 * (bench_now(b) - begun) / count;
}

static double least(double a, double b) {
    return a > 0 && a < b ? a : b;
}

static void time_small(bench *b, const bench_command *c, int count, small_command *out) {
    if (!b->device) {
        bench_submit(b, &c->dispatch);
        return;
    }
    per_command(b, c, count, true); /* warm */
    for (int i = 0; i < 20; i++) {
        double begun = bench_now(b);
        for (int k = 0; k < FIRST_COMMANDS; k++) /* the device hands none of so few on by itself (stream.c) */
            bench_submit(b, &c->dispatch);
        out->record_us = least(out->record_us, 1e6 * (bench_now(b) - begun) / FIRST_COMMANDS);
        bench_wait(b);
        out->round_trip_us = least(out->round_trip_us, per_command(b, c, 1, false));
    }
    for (int i = 0; i < 5; i++) {
        out->command_us = least(out->command_us, per_command(b, c, count, false));
        out->fenced_us = least(out->fenced_us, per_command(b, c, count, true));
    }
}

static void run_small(bench *b, results *r, int32_t kernel, int count) {
    bench_command row, copy = {.command = {.kind = SBP_CMD_COPY, .flushes = -1}, .cold = -1};
    int64_t bytes;
    bench_row_make(b, kernel, 1, &row, &bytes);
    r->small[0].name = "row kernel of 64 elements";
    time_small(b, &row, count, &r->small[0]);
    bench_begin(b);
    for (int i = 0; i < 2; i++)
        copy.spans[i] = bench_matrix(b, SBP_F32, 1, 64);
    copy.dispatch = (sbp_dispatch){.command = &copy.command, .spans = copy.spans, .span_count = 2};
    r->small[1].name = "copy of 256 bytes";
    time_small(b, &copy, count, &r->small[1]);
}

static void run_cases(bench *b, results *r, int with, int32_t kernel, bool quick) {
    run_products(b, r, with);
    for (int i = 0; with == 0 && i < r->attention_count; i++)
        bench_attention_run(b, &r->attention[i], r->attention_seconds[i], r->attention_gflops[i]);
    if (with == 0)
        run_small(b, r, kernel, quick ? 64 : 4096);
}

static const char residual[] =
    "kernel @residual f32 heads 1 n 64 { in x : f32 [row elem] length 64 in y : f32 [row elem] length 64 "
    "out z : f32 [row elem] length 64 %0 = load x %1 = load y %2 = add %0, %1 store z, %2 }";

/* One device per way: it chooses its variants when it is opened. `machine` and `physical` are those of the
 * last. */
static void measure(const options *o, results *r, sbp_vulkan_machine *machine, vulkan_physical *physical) {
    for (int with = 0; with < WAYS; with++) {
        bench b;
        if (ways[with])
            setenv("SBP_VULKAN_GEMM", ways[with], 1);
        bench_init(&b, &sbp_vulkan_device);
        b.burst_seconds = o->quick ? 0 : 0.02;
        b.about_seconds = o->quick ? 0 : 0.2;
        int32_t kernel = bench_add_kernel(&b, residual);
        run_cases(&b, r, with, kernel, o->quick);
        bench_open(&b, &(sbp_device_options){.index = o->device});
        run_cases(&b, r, with, kernel, o->quick);
        *machine = vulkan_of(b.device)->machine;
        *physical = vulkan_of(b.device)->physical;
        bench_close(&b);
        unsetenv("SBP_VULKAN_GEMM");
    }
}

/* ---- what is shown ----------------------------------------------------------------------------------- */

static void print_tables(const results *r, const vulkan_physical *p) {
    printf("%s, %s %s\n\nproduct       dtype      m      n      k   GFLOP/s\n", p->properties.deviceName,
           p->v12.driverName, p->v12.driverInfo);
    for (int i = 0; i < r->product_count; i++) {
        const bench_matmul *m = &r->products[i];
        printf("%-13s %-5s %6lld %6lld %6lld ", m->name, sbp_dtype_name(m->dtype), (long long)m->m,
               (long long)m->n, (long long)m->k);
        for (int w = 0; w < WAYS; w++)
            if (r->seconds[w][i] > 0)
                printf("  %s %.1f", r->variants[w][i], bench_matmul_gflops(m, r->seconds[w][i]));
        printf("\n");
    }
    printf("\nattention  dtype   rows  chunk  heads     d   forward  backward GFLOP/s\n");
    for (int i = 0; i < r->attention_count; i++) {
        const bench_attention *m = &r->attention[i];
        printf("           %-5s %6lld %6lld   %2lld/%-2lld %5lld %9.1f %9.1f\n", sbp_dtype_name(m->dtype),
               (long long)m->rows, (long long)m->chunk, (long long)m->heads, (long long)m->kv_heads,
               (long long)m->d, r->attention_gflops[i][0], r->attention_gflops[i][1]);
    }
    printf("\nmicroseconds per command        recorded   in a batch   with a fence   alone, with a wait\n");
    for (int i = 0; i < SMALL_COMMANDS; i++) {
        const small_command *s = &r->small[i];
        printf("%-29s %10.2f %12.2f %14.2f %20.2f\n", s->name, s->record_us, s->command_us, s->fenced_us,
               s->round_trip_us);
    }
}

/* Output of a command without its newline; "" when it has none. */
static const char *output_of(sbp_arena *arena, const char *command) {
    char line[128] = "";
    FILE *pipe = popen(command, "r");
    if (pipe) {
        if (!fgets(line, sizeof line, pipe))
            line[0] = 0;
        pclose(pipe);
    }
    return sbp_arena_strndup(arena, line, strcspn(line, "\n"));
}

static void write_member(sbp_text *t, const char *key, const char *value) {
    sbp_text_add(t, " \"%s\": ", key);
    sbp_text_add_quoted(t, value);
    sbp_text_add(t, ",\n");
}

static void write_results(sbp_text *t, const results *r) {
    const char *comma = "\n";
    sbp_text_add(t, " \"gemm\": [");
    for (int i = 0; i < r->product_count; i++)
        for (int w = 0; w < WAYS; w++) {
            const bench_matmul *m = &r->products[i];
            if (!(r->seconds[w][i] > 0))
                continue;
            sbp_text_add(
                t,
                "%s  {\"product\": \"%s\", \"dtype\": \"%s\", \"m\": %lld, \"n\": %lld, \"k\": %lld, "
                "\"variant\": \"%s\", \"ms\": %.4f, \"gflops\": %.2f}",
                comma, m->name, sbp_dtype_name(m->dtype), (long long)m->m, (long long)m->n, (long long)m->k,
                r->variants[w][i], 1e3 * r->seconds[w][i], bench_matmul_gflops(m, r->seconds[w][i]));
            comma = ",\n";
        }
    sbp_text_add(t, "],\n \"attention\": [");
    for (int i = 0; i < r->attention_count; i++) {
        const bench_attention *m = &r->attention[i];
        sbp_text_add(
            t,
            "%s  {\"dtype\": \"%s\", \"rows\": %lld, \"chunk\": %lld, \"heads\": %lld, \"kv_heads\": "
            "%lld, \"d\": %lld, \"forward_ms\": %.4f, \"backward_ms\": %.4f, \"forward_gflops\": "
            "%.2f, \"backward_gflops\": %.2f}",
            i > 0 ? ",\n" : "\n", sbp_dtype_name(m->dtype), (long long)m->rows, (long long)m->chunk,
            (long long)m->heads, (long long)m->kv_heads, (long long)m->d, 1e3 * r->attention_seconds[i][0],
            1e3 * r->attention_seconds[i][1], r->attention_gflops[i][0], r->attention_gflops[i][1]);
    }
    sbp_text_add(t, "],\n \"overhead\": [");
    for (int i = 0; i < SMALL_COMMANDS; i++) {
        const small_command *s = &r->small[i];
        sbp_text_add(t,
                     "%s  {\"command\": \"%s\", \"recorded_us\": %.3f, \"in_a_batch_us\": %.3f, "
                     "\"with_a_fence_us\": %.3f, \"alone_us\": %.3f}",
                     i > 0 ? ",\n" : "\n", s->name, s->record_us, s->command_us, s->fenced_us,
                     s->round_trip_us);
    }
    sbp_text_add(t, "]\n}\n");
}

static const char *json_of(bench *b, const options *o, const results *r, const sbp_vulkan_machine *machine,
                           const vulkan_physical *p) {
    sbp_text t;
    char date[16] = "";
    time_t now = time(NULL);
    struct tm parts;
    if (gmtime_r(&now, &parts))
        strftime(date, sizeof date, "%Y-%m-%d", &parts);
    sbp_text_init(&t, b->arena);
    sbp_text_add(&t, "{\n");
    write_member(&t, "device", p->properties.deviceName);
    write_member(&t, "driver", sbp_arena_printf(b->arena, "%s %s", p->v12.driverName, p->v12.driverInfo));
    write_member(&t, "vulkan",
                 sbp_arena_printf(b->arena, "%u.%u.%u", VK_API_VERSION_MAJOR(p->properties.apiVersion),
                                  VK_API_VERSION_MINOR(p->properties.apiVersion),
                                  VK_API_VERSION_PATCH(p->properties.apiVersion)));
    write_member(&t, "processor",
                 output_of(b->arena, "sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1"));
    write_member(&t, "date", date);
    write_member(&t, "commit",
                 output_of(b->arena, "git -C '" SBP_SOURCE "' describe --always --dirty 2>/dev/null"));
    double load = 0; /* rates are those of a quiet machine only when this is below one or so */
    if (getloadavg(&load, 1) == 1)
        sbp_text_add(&t, " \"load_average\": %.2f,\n", load);
    sbp_text_add(&t, " \"software\": %s, \"subgroup\": %u, \"shared_bytes\": %u, \"quick\": %s,\n",
                 machine->software ? "true" : "false", machine->subgroup_size, machine->shared_bytes,
                 o->quick ? "true" : "false");
    write_results(&t, r);
    return t.data;
}

/* "vulkan_nvidia_h200.json": of the device's name what comes before a parenthesis. */
static const char *default_path(bench *b, const vulkan_physical *p) {
    char name[VK_MAX_PHYSICAL_DEVICE_NAME_SIZE] = "";
    size_t n = 0;
    for (const char *c = p->properties.deviceName; *c && *c != '('; c++)
        if (isalnum((unsigned char)*c))
            name[n++] = (char)tolower((unsigned char)*c);
        else if (n > 0 && name[n - 1] != '_')
            name[n++] = '_';
    while (n > 0 && name[n - 1] == '_')
        n--;
    return sbp_arena_printf(b->arena, SBP_SOURCE "/tests/bench/results/vulkan_%.*s.json", (int)n, name);
}

static void save(bench *b, const char *path, const char *text) {
    const sbp_json *parsed;
    bench_check(b, sbp_json_parse(b->arena, b->diag, path, text, strlen(text), 0, &parsed));
    FILE *file = fopen(path, "we");
    bool good = file && fputs(text, file) >= 0;
    good = file && fclose(file) == 0 && good;
    if (!good)
        bench_check(b, sbp_fail(b->diag, SBP_IO, "cannot write %s", path));
    printf("\n%s\n", path);
}

/* Rates are rates; a bench that measures nothing must not pass. */
static void check_results(bench *b, const results *r) {
    bool good = r->product_count > 0 && r->attention_count > 0;
    for (int i = 0; i < r->product_count; i++)
        good = good && isfinite(r->seconds[0][i]) && r->seconds[0][i] > 0 && r->variants[0][i][0];
    for (int i = 0; i < r->attention_count; i++)
        for (int k = 0; k < 2; k++)
            good = good && isfinite(r->attention_gflops[i][k]) && r->attention_gflops[i][k] > 0;
    for (int i = 0; i < SMALL_COMMANDS; i++)
        good = good && r->small[i].record_us > 0 && r->small[i].command_us > 0 && r->small[i].fenced_us > 0 &&
               r->small[i].round_trip_us > 0;
    if (!good)
        bench_check(b, sbp_fail(b->diag, SBP_INTERNAL, "a figure is missing"));
}

static void read_options(int argc, char **argv, options *o) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0) {
            o->quick = true;
        } else if (strcmp(argv[i], "--device") == 0 && i + 1 < argc) {
            o->device = atoi(argv[++i]);
        } else if (strcmp(argv[i], "--save") == 0 && i + 1 < argc) {
            o->save = argv[++i];
        } else {
            fputs("usage: bench_vulkan [--device N] [--quick] [--save FILE]\n", stderr);
            exit(SBP_USAGE);
        }
    }
}

int main(int argc, char **argv) {
    static results r;
    options o = {0};
    bench b; /* for messages and text */
    sbp_vulkan_machine machine;
    vulkan_physical physical;
    sbp_device *device;
    read_options(argc, argv, &o);
    bench_init(&b, &sbp_vulkan_device);
    sbp_status status = sbp_vulkan_device.create(&(sbp_device_options){.index = o.device}, b.diag, &device);
    if (o.quick && status == SBP_MACHINE) {
        printf("skipped: bench_vulkan: %s", sbp_diag_text(b.diag, SBP_ERROR));
        return 0;
    }
    bench_check(&b, status);
    machine = vulkan_of(device)->machine;
    sbp_vulkan_device.destroy(device);
    choose_cases(&r, o.quick, machine.software);
    measure(&o, &r, &machine, &physical);
    check_results(&b, &r);
    print_tables(&r, &physical);
    const char *text = json_of(&b, &o, &r, &machine, &physical);
    if (o.save || !o.quick)
        save(&b, o.save ? o.save : default_path(&b, &physical), text);
    bench_close(&b);
    return 0;
}
