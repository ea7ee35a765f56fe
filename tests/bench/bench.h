/* bench.h: what the benches of devices share: a device with one arena, operands full of small numbers,
 * commands that are timed, shapes.
 *
 * A device takes one program in its life, with code that was compiled for its commands (backends/target.h).
 * So a bench runs its cases twice: first without a device, when memory and commands are only noted and every
 * time is 1; then bench_open() has code made and opens the device, and the same calls in the same order
 * measure.
 *
 * Whatever fails ends the program. One thread. */
#ifndef SBP_TESTS_BENCH_H
#define SBP_TESTS_BENCH_H

#include "backends/device.h"

#include <time.h>

typedef struct bench {
    const sbp_device_class *class;
    sbp_arena *arena;
    sbp_diag *diag;
    sbp_program *program;
    sbp_device *device;             /* NULL: commands are noted */
    int64_t used_bytes, most_bytes; /* of the device arena: by the current case, by the largest */
    clockid_t clock;
    double burst_seconds; /* of commands between two looks at the clock; 0: one command */
    double about_seconds; /* per time; at least two bursts */
    bool compile_only;    /* bench_open() ends the program when code is made: kernels are kept for the next */
} bench;

/* A command ready to run, its operands in the arena. Filled in place; must not be moved. */
typedef struct bench_command {
    sbp_command command;
    sbp_span spans[SBP_MAX_COMMAND_OPERANDS];
    sbp_dispatch dispatch;
    int cold; /* operand that moves from run to run through `copies` of it, so that no cache holds it; -1 */
    int64_t copies;
    double scalars[SBP_ROWKERNEL_MAX_SCALARS]; /* row commands: 1, 2, .. */
} bench_command;

/* A product of a layer: d[m, n] = op(a) op(b), or += in fp32 when `add`. All in dtype but a sum. */
typedef struct bench_matmul {
    const char *name;
    int64_t m, n, k;
    bool ta, tb, add;
    sbp_dtype dtype;
} bench_matmul;

/* Causal attention of one document, in chunks of rows as a step runs it. */
typedef struct bench_attention {
    int64_t rows, chunk, heads, kv_heads, d;
    sbp_dtype dtype;
} bench_attention;

/* What options of several benches say: --threads N, --seconds S, --clock wall|cpu. */
typedef struct bench_settings {
    sbp_device_options device;
    double seconds; /* per time */
    clockid_t clock;
} bench_settings;

/* Takes an option that is one of these; false: it is none. */
bool bench_take_option(bench_settings *settings, const char *option, const char *value);
/* bench_init as the settings say, in bursts where the driver of a device takes time to submit and wait. */
void bench_start(bench *b, const sbp_device_class *class, const bench_settings *settings);

void bench_init(bench *b, const sbp_device_class *class);
/* Stops the program with the message unless the status is SBP_OK. */
void bench_check(bench *b, sbp_status status);
double bench_now(const bench *b);

/* Ends the first pass. The device is closed, and the arena freed, by bench_close. */
void bench_open(bench *b, const sbp_device_options *options);
void bench_close(bench *b);

/* Begins a case: what lay in the arena is forgotten. */
void bench_begin(bench *b);
/* A matrix of small numbers (integers: 0). */
sbp_span bench_matrix(bench *b, sbp_dtype dtype, int64_t rows, int64_t cols);
sbp_span bench_absent(void);
void bench_submit(bench *b, const sbp_dispatch *dispatch);
/* What was submitted before on queue 0 comes before what follows. */
void bench_fence(bench *b);
void bench_wait(bench *b);

/* Seconds per command, the fastest burst. */
double bench_time(bench *b, bench_command *command);
/* The three products of a linear layer of out x in weights with `rows` rows: forward, input and weight
 * gradient. */
void bench_layer(const char *const names[3], int64_t rows, int64_t out, int64_t in, sbp_dtype dtype,
                 bench_matmul products[3]);
void bench_matmul_make(bench *b, const bench_matmul *product, bench_command *out);
/* 1e9 operations per second. */
double bench_matmul_gflops(const bench_matmul *product, double seconds);
/* seconds: forward and backward of all rows; gflops: rates, without what the causal mask hides. */
void bench_attention_run(bench *b, const bench_attention *shape, double seconds[2], double gflops[2]);
/* A row kernel of the program by number, over `rows` rows; *bytes: what it reads and writes. */
void bench_row_make(bench *b, int32_t kernel, int64_t rows, bench_command *out, int64_t *bytes);
/* Adds the row kernel with this text to the program. */
int32_t bench_add_kernel(bench *b, const char *text);

#endif
