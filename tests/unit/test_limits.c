/* test_limits.c: what kernels have no room for, by the numbers at which it begins: a command at the limit
 * runs, the next size is refused by the device and when the plan is made, in a message with the limit; what
 * no backend takes is no program. Conformance has the numbers of commands at their limits. */
#include "backends/cpu/cpu_device.h"
#include "backends/gpu/gpu.h"
#include "backends/target.h"
#include "tests/common/dispatch_add.h"
#include "tests/common/expect.h"
#include "tests/unit/place.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 3 };

typedef struct command {
    sbp_command command;
    sbp_span spans[SBP_MAX_COMMAND_OPERANDS];
    int64_t bytes;
} command;

/* The next operand. */
static void add(command *c, sbp_dtype dtype, int64_t rows, int64_t cols) {
    c->spans[c->command.view_count++] = (sbp_span){
        .space = SBP_DEVICE, .dtype = dtype, .offset = c->bytes, .rows = rows, .cols = cols, .stride = cols};
    c->bytes = sbp_round_up(c->bytes + rows * cols * sbp_dtype_bytes(dtype), 256);
}

static void add_none(command *c) {
    c->spans[c->command.view_count++] = (sbp_span){.space = SBP_SPACE_COUNT};
}

static void add_attention(command *c, int64_t heads, int64_t d_qk, int64_t d_v) {
    c->command.kind = SBP_CMD_ATTN_FWD;
    c->command.u.attention =
        (sbp_attention_attrs){.heads = heads, .kv_heads = 1, .d_qk = d_qk, .d_v = d_v, .scale = 1};
    add(c, SBP_F32, ROWS, heads * d_v);
    add(c, SBP_F32, ROWS, heads);
    add(c, SBP_F32, ROWS, heads * d_qk);
    add(c, SBP_F32, ROWS, d_qk);
    add(c, SBP_F32, ROWS, d_v);
    for (int k = 0; k < 3; k++)
        add(c, SBP_I32, ROWS, 1);
    add_none(c);
}

static void add_heads(command *c, int64_t n) {
    add_attention(c, n, 2, 2);
}

static void add_keys(command *c, int64_t n) {
    add_attention(c, 1, n, 2);
}

static void add_values(command *c, int64_t n) {
    add_attention(c, 1, 2, n);
}

/* Adds the operands of delta_rule. */
static void add_states(command *c, bool corrects, int64_t d_k, int64_t d_v) {
    c->command.kind = SBP_CMD_DELTA_RULE;
    c->command.u.delta =
        (sbp_delta_attrs){.heads = 1, .key_heads = 1, .d_k = d_k, .d_v = d_v, .corrects = corrects};
    add(c, SBP_F32, ROWS, d_v);
    add(c, SBP_F32, 1, d_k * d_v);
    add(c, SBP_F32, ROWS, d_k);
    add(c, SBP_F32, ROWS, d_k);
    add(c, SBP_F32, ROWS, d_v);
    add(c, SBP_F32, ROWS, 1);
    add(c, SBP_F32, ROWS, 1);
    add(c, SBP_I32, ROWS, 1);
    add(c, SBP_F32, 1, d_k * d_v);
    add_none(c);
}

static void add_delta_keys(command *c, int64_t n) {
    add_states(c, true, n, 2);
}

static void add_delta_values(command *c, int64_t n) {
    add_states(c, true, 2, n);
}

static void add_uncorrected(command *c, int64_t n) {
    add_states(c, false, n, n);
}

static void add_route(command *c, int64_t n) {
    c->command.kind = SBP_CMD_ROUTE;
    add(c, SBP_I32, ROWS, n);
    add(c, SBP_F32, ROWS, n + 9);
}

/* Runs it on zeros. */
static sbp_status run(const sbp_dispatch *dispatch, sbp_program *program, sbp_diag *diag) {
    sbp_device_options options = {.threads = 1};
    sbp_device *device;
    int64_t bytes = program->arena_bytes[SBP_DEVICE];
    void *zeros = calloc(1, (size_t)bytes);
    expect_ok(diag, sbp_cpu_device.create(&options, diag, &device));
    expect_ok(diag, sbp_cpu_device.load(device, program, diag));
    expect_ok(diag, sbp_cpu_device.write(device, SBP_DEVICE, 0, zeros, bytes, diag));
    sbp_status status = sbp_cpu_device.submit(device, dispatch, diag);
    if (status == SBP_OK)
        status = sbp_cpu_device.wait(device, diag);
    sbp_cpu_device.destroy(device);
    free(zeros);
    return status;
}

static void the_first_size_beyond_is_refused(void **state) {
    static const struct {
        void (*add)(command *c, int64_t n);
        int64_t limit;
        const char *message; /* of the device and of the target */
    } limits[] = {
        {add_keys, 512, "heads of 513 and 2 columns (head_dim): at most 512"},
        {add_values, 512, "heads of 2 and 513 columns (head_dim): at most 512"},
        {add_heads, 96,
         "97 query heads for each head of keys and values (num_attention_heads, num_key_value_heads): at "
         "most 96"},
        {add_delta_keys, 256, "delta_rule with states of 257 x 2 a head: at most 256 x 256"},
        {add_delta_values, 256, "delta_rule with states of 2 x 257 a head: at most 256 x 256"},
        {add_uncorrected, 256, "delta_rule with states of 257 x 257 a head: at most 256 x 256"},
        {add_route, 256, "257 experts for each row (num_experts_per_tok): at most 256"},
    };
    const sbp_target *target = sbp_target_find("cpu");
    (void)state;
    for (int i = 0; i < SBP_COUNT(limits); i++)
        for (int beyond = 0; beyond < 2; beyond++) {
            sbp_arena *arena = sbp_arena_create();
            sbp_diag *diag = sbp_diag_create();
            command c = {.command = {.flushes = -1}};
            const void *data;
            int64_t bytes;
            limits[i].add(&c, limits[i].limit + beyond);
            const sbp_dispatch dispatch = {
                .command = &c.command, .spans = c.spans, .span_count = c.command.view_count};
            sbp_program *program = sbp_program_create(arena, "limits");
            program->arena_bytes[SBP_DEVICE] = c.bytes;
            dispatch_add(arena, program, &dispatch);
            sbp_status status = run(&dispatch, program, diag);
            if (beyond) {
                assert_int_equal(status, SBP_MACHINE);
                expect_text(diag, limits[i].message);
            } else {
                expect_ok(diag, status);
            }
            status = target->compile(arena, diag, program, &data, &bytes);
            if (beyond) {
                assert_int_equal(status, SBP_INPUT);
                expect_text(diag, limits[i].message);
            } else {
                expect_ok(diag, status);
            }
            sbp_diag_destroy(diag);
            sbp_arena_destroy(arena);
        }
}

/* The text with `number` in place of each #, and one more in place of $. */
static const char *with_number(sbp_arena *arena, const char *text, int64_t number) {
    sbp_text out;
    sbp_text_init(&out, arena);
    for (const char *at = text; *at; at++)
        if (*at == '#' || *at == '$')
            sbp_text_add(&out, "%lld", (long long)number + (*at == '$'));
        else
            sbp_text_add_n(&out, at, 1);
    return out.data;
}

#define HEAD                                                                                                 \
    "program limits\ntarget cpu\nsizes t_max 3, s_max 0, chunk 3, head_chunk 3\narena device 0, host 0\n"    \
    "scalars T, S\nbuffer first rows device i32[T, 1]\n"
#define STATES                                                                                               \
    "buffer wide stream device f32[T, #]\nbuffer slim stream device f32[T, 1]\n"                             \
    "buffer other stream device f32[T, 1]\nbuffer o stream device f32[T, #]\n"                               \
    "buffer state workspace device f32[1, #]\nbuffer next workspace device f32[1, #]\n"
#define ENTRY "input first column first\nentry update {\n  "

/* What no backend takes is no program. */
static void programs_have_limits_of_their_own(void **state) {
    static const struct {
        int64_t limit;
        const char *text, *message;
    } limits[] = {
        {1 << 12,
         HEAD STATES ENTRY
         "delta_rule(o := other, next := next, q = wide, k = wide, v = slim, decay = slim, beta = slim, "
         "first = first, state = state) {heads = 1, key_heads = 1, d_k = #, d_v = 1, corrects}\n}\n",
         "heads 1, key_heads 1, d_k 4097, d_v 1"},
        {1 << 12,
         HEAD STATES ENTRY
         "delta_rule(o := o, next := next, q = slim, k = slim, v = wide, decay = other, beta = other, "
         "first = first, state = state) {heads = 1, key_heads = 1, d_k = 1, d_v = #}\n}\n",
         "heads 1, key_heads 1, d_k 1, d_v 4097"},
        {15,
         HEAD "buffer x stream device f32[T, 1]\nbuffer y stream device f32[T, 1]\n"
              "buffer w workspace device f32[1, $]\nbuffer state workspace device f32[1, #]\n" ENTRY
              "conv_rows(y := y, x = x, w = w, first = first, state = state)\n}\n",
         "a state of 16 columns for 1 channels; 1 to 15 rows of them fit"},
    };
    (void)state;
    for (int i = 0; i < SBP_COUNT(limits); i++)
        for (int beyond = 0; beyond < 2; beyond++) {
            sbp_arena *arena = sbp_arena_create();
            sbp_diag *diag = sbp_diag_create();
            sbp_program *program;
            const char *text = with_number(arena, limits[i].text, limits[i].limit + beyond);
            expect_ok(diag, sbp_program_parse(arena, diag, "limits", text, strlen(text), &program));
            place(program);
            sbp_status status = sbp_program_verify(program, diag);
            if (beyond) {
                assert_int_not_equal(status, SBP_OK);
                expect_text(diag, limits[i].message);
            } else {
                expect_ok(diag, status);
            }
            sbp_diag_destroy(diag);
            sbp_arena_destroy(arena);
        }
}

/* Kernels of GPUs count in 32 bits: nothing as large could be had in a test, but its sizes can. */
static void what_32_bits_do_not_count_is_refused(void **state) {
    const int64_t most = INT32_MAX - 4096;
    const sbp_command fill = {.kind = SBP_CMD_FILL, .view_count = 1};
    const sbp_span fits = {.space = SBP_DEVICE, .dtype = SBP_I8, .rows = 1, .cols = 1, .stride = 1};
    (void)state;
    for (int field = 0; field < 5; field++)
        for (int beyond = 0; beyond < 2; beyond++) {
            sbp_span span = fits;
            sbp_dispatch dispatch = {.command = &fill, .spans = &span, .span_count = 1};
            int64_t *const fields[] = {&span.rows, &span.cols, &span.first_row, &span.stride, &dispatch.rows};
            *fields[field] = (fields[field] == &span.stride ? INT32_MAX : most) + beyond;
            assert_int_equal(sbp_gpu_fits(&dispatch), !beyond);
            span.space = SBP_SPACE_COUNT; /* an operand that is absent may be anything */
            assert_int_equal(sbp_gpu_fits(&dispatch), field < 4 || !beyond);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_first_size_beyond_is_refused),
                                       cmocka_unit_test(programs_have_limits_of_their_own),
                                       cmocka_unit_test(what_32_bits_do_not_count_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
