/* test_executor.c: what the executor hands to a device: spans, rows, order, scalars; chunk tables and scatter
 * orders; errors of plan and caller. The device here only records. */
#include "runtime/run/executor.h"
#include "tests/common/expect.h"
#include "tests/unit/mutate.h"
#include "tests/unit/place.h"
#include "tests/unit/program_texts.h"
#include "tests/unit/recorder.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* ---- a loaded program ------------------------------------------------------------------------------- */

typedef struct bench {
    sbp_arena *arena;
    sbp_diag *diag;
    const char *text;
    sbp_program *program;
    sbp_executor *executor;
    recorder *device;
} bench;

static sbp_status parse(void *user) {
    bench *b = user;
    return sbp_program_parse(b->arena, b->diag, "test", b->text, strlen(b->text), &b->program);
}

static bench open_bench(const char *text, bool map) {
    bench b = {.arena = sbp_arena_create(), .diag = sbp_diag_create(), .text = text};
    if (sbp_guard(b.arena, b.diag, parse, &b) != SBP_OK)
        fail_msg("%s", sbp_diag_text(b.diag, SBP_ERROR));
    place(b.program);
    if (sbp_program_verify(b.program, b.diag) != SBP_OK)
        fail_msg("%s", sbp_diag_text(b.diag, SBP_ERROR));
    sbp_device_options options = {0};
    if (sbp_executor_create(b.diag, recorder_class(map), &options, b.program, &b.executor) != SBP_OK)
        fail_msg("%s", sbp_diag_text(b.diag, SBP_ERROR));
    b.device = (recorder *)(void *)sbp_executor_device(b.executor);
    return b;
}

static void close_bench(bench *b) {
    sbp_executor_destroy(b->executor);
    sbp_diag_destroy(b->diag);
    sbp_arena_destroy(b->arena);
}

/* ---- row data --------------------------------------------------------------------------------------- */

enum { MAX_T = 64 };

typedef struct batch {
    int32_t tok[MAX_T];
    int64_t first[MAX_T], shared_end[MAX_T], own[MAX_T];
    double gain[MAX_T];
    sbp_column columns[6];
    int32_t count;
} batch;

static uint64_t seed = 7;

static int64_t pick(int64_t below) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((seed >> 33) % (uint64_t)below);
}

/* Documents of random lengths, some of them with a second completion that shares the prompt. */
static void make_batch(batch *b, int64_t t, int64_t s, bool shared) {
    for (int64_t r = 0; r < t;) {
        int64_t first = r, prompt = 1 + pick(6), completions = shared ? 1 + pick(3) : 1;
        for (int64_t k = 0; k < prompt && r < t; k++, r++)
            b->first[r] = b->shared_end[r] = b->own[r] = first;
        int64_t shared_end = r;
        for (int64_t c = 0; c < completions; c++) {
            int64_t own = r;
            for (int64_t k = 1 + pick(7); k > 0 && r < t; k--, r++) {
                b->first[r] = first;
                b->shared_end[r] = shared ? shared_end : first;
                b->own[r] = shared ? own : first;
            }
        }
    }
    for (int64_t r = 0; r < t; r++)
        b->tok[r] = (int32_t)pick(10);
    for (int64_t r = 0; r < s; r++)
        b->gain[r] = (double)r + 0.5;
    b->count = 0;
    b->columns[b->count++] = (sbp_column){"tok", SBP_I32, b->tok, t};
    b->columns[b->count++] = (sbp_column){"first", SBP_I64, b->first, t};
    b->columns[b->count++] = (sbp_column){"gain", SBP_F64, b->gain, s};
    b->columns[b->count++] = (sbp_column){"unused", SBP_F64, NULL, 0};
    if (shared) {
        b->columns[b->count++] = (sbp_column){"shared_end", SBP_I64, b->shared_end, t};
        b->columns[b->count++] = (sbp_column){"own", SBP_I64, b->own, t};
    }
}

/* lo by the definition: try every row. */
static int64_t slow_lo(const batch *b, int64_t row0, int64_t rows, int64_t window) {
    int64_t lo = row0;
    for (int64_t r = row0; r < row0 + rows; r++)
        for (int64_t c = 0; c <= r; c++) {
            bool in_shared = c >= b->first[r] && c < b->shared_end[r], in_own = c >= b->own[r];
            int64_t distance = in_own ? r - c : b->shared_end[r] + r - b->own[r] - c;
            if ((in_shared || in_own) && (window == 0 || distance < window) && c < lo)
                lo = c;
        }
    return lo;
}

/* ---- a second, slow walk of the program ---------------------------------------------------------------- */

typedef struct walk {
    bench *b;
    const batch *data;
    const sbp_function *function;
    sbp_span actuals[16];
    sbp_position position;
    int32_t at; /* next record */
} walk;

static sbp_span slow_span(walk *w, const sbp_view *view) {
    sbp_program *p = w->b->program;
    sbp_span span = {.space = SBP_SPACE_COUNT};
    if (view->ref == SBP_NO_VIEW)
        return span;
    sbp_range range;
    assert_true(sbp_view_resolve(p, w->function, view, &w->position, &range));
    span.rows = range.rows;
    span.cols = view->cols;
    span.first_row = range.first_row;
    if (view->ref >= 0) {
        const sbp_buffer *buffer = &p->buffers[view->ref];
        span.space = buffer->space;
        span.dtype = buffer->dtype;
        span.stride = view->width ? view->width : buffer->cols;
        span.offset = buffer->offset + view->slot * buffer->stride;
    } else {
        const sbp_span *actual = &w->actuals[~view->ref];
        span.space = actual->space;
        span.dtype = actual->dtype;
        span.stride = view->width ? view->width : actual->stride;
        span.offset = actual->offset;
        span.first_row += view->width ? 0 : actual->first_row;
    }
    span.offset += (range.start * span.stride + view->col) * sbp_dtype_bytes(span.dtype);
    return span;
}

static void slow_command(walk *w, const sbp_command *command) {
    assert_true(w->at < w->b->device->count);
    const record *r = &w->b->device->records[w->at++];
    assert_ptr_equal(r->command, command);
    for (int32_t k = 0; k < command->view_count; k++) {
        sbp_span want = slow_span(w, &command->views[k]), got = r->spans[k];
        assert_int_equal(got.space, want.space);
        if (want.space == SBP_SPACE_COUNT)
            continue;
        assert_int_equal(got.dtype, want.dtype);
        assert_int_equal(got.offset, want.offset);
        assert_int_equal(got.rows, want.rows);
        assert_int_equal(got.cols, want.cols);
        assert_int_equal(got.stride, want.stride);
        assert_int_equal(got.first_row, want.first_row);
    }
    if (command->kind == SBP_CMD_ROW) {
        assert_int_equal(r->rows, r->spans[0].rows);
        assert_int_equal(r->row0, r->spans[0].first_row);
    }
}

static void slow_body(walk *w, const sbp_body *body);

static void slow_loop(walk *w, const sbp_loop *loop) {
    sbp_program *p = w->b->program;
    if (loop->table < 0) {
        slow_body(w, &loop->body); /* `last` is 1 in these tests */
        return;
    }
    int64_t n = sbp_table_rows(p, loop->table, &w->position.sizes);
    for (int64_t k = 0; k < n; k++) {
        sbp_position_set(&w->position, p, loop->table, loop->descending ? n - 1 - k : k);
        const sbp_chunk_table *table = &p->tables[loop->table];
        for (int32_t j = 0; j < table->window_count; j++)
            w->position.columns[SBP_COLUMN_LO + j] =
                slow_lo(w->data, w->position.columns[SBP_COLUMN_ROW0], w->position.columns[SBP_COLUMN_ROWS],
                        table->windows[j]);
        slow_body(w, &loop->body);
    }
    w->position.table = -1;
}

static void slow_body(walk *w, const sbp_body *body) {
    for (int32_t n = 0; n < body->count; n++) {
        const sbp_node *node = &body->nodes[n];
        if (node->kind == SBP_NODE_COMMAND) {
            slow_command(w, node->u.command);
        } else if (node->kind == SBP_NODE_LOOP) {
            slow_loop(w, node->u.loop);
        } else {
            const sbp_function *callee = &w->b->program->functions[node->u.call->function];
            for (int32_t k = 0; k < callee->formal_count; k++)
                w->actuals[k] = slow_span(w, &node->u.call->views[k]);
            w->function = callee;
            slow_body(w, &callee->body);
            w->function = NULL;
        }
    }
}

static void spans_are_those_of_the_views(void **state) {
    (void)state;
    for (int map = 0; map < 2; map++) {
        bench b = open_bench(small_program, map);
        assert_true(sbp_executor_set_scalar(b.executor, "last", 1));
        assert_true(sbp_executor_set_scalar(b.executor, "lr", 0.25));
        assert_false(sbp_executor_set_scalar(b.executor, "nothing", 1));
        for (int64_t t = 1; t <= 40; t++) {
            batch data;
            int64_t s = t % 6;
            make_batch(&data, t, s, false);
            expect_ok(b.diag, sbp_executor_bind(b.executor, t, s, data.columns, data.count, b.diag));
            b.device->count = 0;
            expect_ok(b.diag, sbp_executor_run(b.executor, "accumulate", b.diag));
            walk w = {.b = &b, .data = &data};
            w.position = (sbp_position){.sizes = sbp_program_sizes(b.program, t, s), .table = -1};
            slow_body(&w, &b.program->entries[0].body);
            assert_int_equal(w.at, b.device->count);
            assert_int_equal(b.device->count, 11 + (t + 3) / 4 + (t + 7) / 8 * (7 + 5));
            expect_ok(b.diag, sbp_executor_run(b.executor, "update", b.diag));
            slow_body(&w, &b.program->entries[1].body);
            assert_int_equal(w.at, b.device->count);
            for (int32_t k = 0; k < b.device->count; k++)
                if (b.device->records[k].command->scalar_count > 0)
                    assert_true(b.device->records[k].scalars[0] == 0.25);
        }
        close_bench(&b);
    }
}

/* ---- what bind writes --------------------------------------------------------------------------------- */

static void columns_are_converted_and_written(void **state) {
    (void)state;
    for (int map = 0; map < 2; map++) {
        bench b = open_bench(small_program, map);
        batch data;
        make_batch(&data, 21, 3, false);
        expect_ok(b.diag, sbp_executor_bind(b.executor, 21, 3, data.columns, data.count, b.diag));
        int32_t first[21], tok[21];
        double gain[3], numbers[4];
        expect_ok(b.diag, sbp_executor_read(b.executor, sbp_program_find_buffer(b.program, "tok"), 0, 0, 21,
                                            SBP_I32, tok, b.diag));
        expect_ok(b.diag, sbp_executor_read(b.executor, sbp_program_find_buffer(b.program, "first"), 0, 0, 21,
                                            SBP_I32, first, b.diag));
        expect_ok(b.diag, sbp_executor_read(b.executor, sbp_program_find_buffer(b.program, "gain"), 0, 0, 3,
                                            SBP_F64, gain, b.diag));
        expect_ok(b.diag, sbp_executor_read(b.executor, sbp_program_find_buffer(b.program, "table"), 0, 0, 4,
                                            SBP_F64, numbers, b.diag));
        for (int r = 0; r < 21; r++) {
            assert_int_equal(tok[r], data.tok[r]);
            assert_int_equal(first[r], data.first[r]);
        }
        for (int r = 0; r < 3; r++)
            assert_true(gain[r] == data.gain[r]);
        assert_true(numbers[0] == 1 && numbers[1] == -0.5 && numbers[2] == (double)1e-30f);
        close_bench(&b);
    }
}

static void scatter_orders_are_sorted_and_stable(void **state) {
    (void)state;
    static const char *const chunks[] = {"T", "C", "H"};
    const int64_t sizes[] = {40, 8, 4};
    for (int k = 0; k < 3; k++)
        for (int map = 0; map < 2; map++) {
            char text[sizeof small_program + 8];
            strcpy(text, small_program);
            for (char *at = text; (at = strstr(at, "tok chunk T")); at++)
                at[10] = chunks[k][0];
            if (k > 0) { /* the whole order no longer fits the scatter of all rows */
                char *scatter = strstr(text, "  scatter_add");
                memmove(scatter, strchr(scatter, '\n') + 1, strlen(strchr(scatter, '\n') + 1) + 1);
            }
            bench b = open_bench(text, map);
            for (int64_t t = 1; t <= 40; t += 3) {
                batch data;
                make_batch(&data, t, 0, false);
                expect_ok(b.diag, sbp_executor_bind(b.executor, t, 0, data.columns, data.count, b.diag));
                int32_t order[40], segment[40];
                expect_ok(b.diag, sbp_executor_read(b.executor, sbp_program_find_buffer(b.program, "order"),
                                                    0, 0, t, SBP_I32, order, b.diag));
                expect_ok(b.diag, sbp_executor_read(b.executor, sbp_program_find_buffer(b.program, "segment"),
                                                    0, 0, t, SBP_I32, segment, b.diag));
                for (int64_t row0 = 0; row0 < t; row0 += sizes[k]) {
                    int64_t n = t - row0 < sizes[k] ? t - row0 : sizes[k], next = 0;
                    bool seen[40] = {false};
                    for (int64_t j = 0; j < n; j++) {
                        int32_t row = order[row0 + j];
                        assert_true(row >= 0 && row < n && !seen[row]);
                        seen[row] = true;
                        int32_t value = data.tok[row0 + row];
                        if (j > 0) {
                            int32_t before = order[row0 + j - 1], last = data.tok[row0 + before];
                            assert_true(last < value || (last == value && before < row));
                        }
                        if (j == next) {
                            int64_t run = 1;
                            while (j + run < n && data.tok[row0 + order[row0 + j + run]] == value)
                                run++;
                            assert_int_equal(segment[row0 + j], run);
                            next = j + run;
                        } else {
                            assert_int_equal(segment[row0 + j], 0);
                        }
                    }
                }
            }
            close_bench(&b);
        }
}

/* K and V views of attention show the lo columns. */
static void lo_is_the_first_row_that_is_seen(void **state) {
    (void)state;
    char text[sizeof small_program + 256];
    const char *inputs = strstr(small_program, "input gain");
    snprintf(text, sizeof text, "%.*sinput shared column shared_end\ninput own column own\n%s",
             (int)(inputs - small_program), small_program, inputs);
    char *buffers = strstr(text, "buffer gain");
    const char *more = "buffer shared rows device i32[T, 1]\nbuffer own rows device i32[T, 1]\n";
    memmove(buffers + strlen(more), buffers, strlen(buffers) + 1);
    memcpy(buffers, more, strlen(more));
    for (char *at = text; (at = strstr(at, "shared_end = first"));)
        memcpy(at, "shared_end =shared", 18);
    for (char *at = text; (at = strstr(at, "own = first"));)
        memcpy(at, "own =   own", 11);
    bench b = open_bench(text, true);
    sbp_executor_set_scalar(b.executor, "last", 1);
    sbp_executor_set_scalar(b.executor, "lr", 1);
    for (int round = 0; round < 200; round++) {
        int64_t t = 1 + pick(40);
        batch data;
        make_batch(&data, t, 0, round % 4 != 0);
        expect_ok(b.diag, sbp_executor_bind(b.executor, t, 0, data.columns, data.count, b.diag));
        b.device->count = 0;
        expect_ok(b.diag, sbp_executor_run(b.executor, "accumulate", b.diag));
        walk w = {.b = &b, .data = &data};
        w.position = (sbp_position){.sizes = sbp_program_sizes(b.program, t, 0), .table = -1};
        slow_body(&w, &b.program->entries[0].body);
        assert_int_equal(w.at, b.device->count);
    }
    close_bench(&b);
}

/* ---- misuse and bad data ------------------------------------------------------------------------------ */

static void errors_say_what_is_wrong(void **state) {
    (void)state;
    bench b = open_bench(small_program, true);
    batch data;
    assert_int_equal(sbp_executor_run(b.executor, "accumulate", b.diag), SBP_INTERNAL);
    expect_text(b.diag, "before a micro-batch is bound");
    make_batch(&data, 20, 2, false);
    assert_int_equal(sbp_executor_bind(b.executor, 41, 2, data.columns, data.count, b.diag), SBP_INTERNAL);
    expect_text(b.diag, "41 rows and 2 groups; the plan takes 40 and 5");
    assert_int_equal(sbp_executor_bind(b.executor, 19, 2, data.columns, data.count, b.diag), SBP_INTERNAL);
    expect_text(b.diag, "column 'tok': 20 numbers, the program takes 19");
    assert_int_equal(sbp_executor_bind(b.executor, 20, 2, data.columns, 1, b.diag), SBP_INTERNAL);
    expect_text(b.diag, "column 'first'");
    data.first[7] = 8;
    assert_int_equal(sbp_executor_bind(b.executor, 20, 2, data.columns, data.count, b.diag), SBP_INTERNAL);
    expect_text(b.diag, "row 7: first 8");
    data.first[7] = INT64_C(1) << 40;
    assert_int_equal(sbp_executor_bind(b.executor, 20, 2, data.columns, data.count, b.diag), SBP_INTERNAL);
    expect_text(b.diag, "column 'first': the number in row 7 is no i32");
    make_batch(&data, 20, 2, false);
    data.columns[0] = (sbp_column){"tok", SBP_F64, (double[20]){0, 1.5}, 20};
    assert_int_equal(sbp_executor_bind(b.executor, 20, 2, data.columns, data.count, b.diag), SBP_INTERNAL);
    expect_text(b.diag, "column 'tok': the number in row 1 is no i32");
    make_batch(&data, 20, 2, false);
    data.tok[11] = 10;
    expect_ok(b.diag, sbp_executor_bind(b.executor, 20, 2, data.columns, data.count, b.diag));
    assert_int_equal(sbp_executor_run(b.executor, "accumulate", b.diag), SBP_INPUT);
    expect_text(b.diag, "column 'tok': 10 in row 11 is not below the 10 rows of its table");
    data.tok[11] = -1;
    expect_ok(b.diag, sbp_executor_bind(b.executor, 20, 2, data.columns, data.count, b.diag));
    assert_int_equal(sbp_executor_run(b.executor, "accumulate", b.diag), SBP_INPUT);
    expect_text(b.diag, "column 'tok': -1 is negative");
    data.tok[11] = 9;
    expect_ok(b.diag, sbp_executor_bind(b.executor, 20, 2, data.columns, data.count, b.diag));
    assert_int_equal(sbp_executor_run(b.executor, "accumulate", b.diag), SBP_INPUT);
    expect_text(b.diag, "scalar 'lr' is used but was never set");
    sbp_executor_set_scalar(b.executor, "lr", 1);
    assert_int_equal(sbp_executor_run(b.executor, "accumulate", b.diag), SBP_INPUT);
    expect_text(b.diag, "scalar 'last' is used but was never set");
    sbp_executor_set_scalar(b.executor, "last", 0.5);
    assert_int_equal(sbp_executor_run(b.executor, "accumulate", b.diag), SBP_INPUT);
    expect_text(b.diag, "scalar 'last' is 0.5");
    sbp_executor_set_scalar(b.executor, "last", 0);
    expect_ok(b.diag, sbp_executor_run(b.executor, "accumulate", b.diag));
    assert_int_equal(sbp_executor_run(b.executor, "score", b.diag), SBP_INPUT);
    expect_text(b.diag, "no entry 'score'");
    double out;
    assert_int_equal(sbp_executor_output(b.executor, "nothing", &out, b.diag), SBP_INPUT);
    assert_int_equal(sbp_executor_read(b.executor, 0, 3, 0, 1, SBP_F64, &out, b.diag), SBP_INTERNAL);
    assert_int_equal(sbp_executor_read(b.executor, 0, 0, 160, 1, SBP_F64, &out, b.diag), SBP_INTERNAL);
    assert_int_equal(sbp_executor_read(b.executor, 99, 0, 0, 1, SBP_F64, &out, b.diag), SBP_INTERNAL);
    close_bench(&b);
}

/* A program that lies only at sizes that the verifier does not try is still stopped. */
static void the_plan_cannot_leave_its_buffers_at_run_time(void **state) {
    (void)state;
    bench b = open_bench(small_program, true);
    batch data;
    make_batch(&data, 30, 2, false);
    sbp_command *gather = b.program->entries[0].body.nodes[2].u.command;
    gather->views[0].start.base = sbp_extent_const(1);
    expect_ok(b.diag, sbp_executor_bind(b.executor, 30, 2, data.columns, data.count, b.diag));
    assert_int_equal(sbp_executor_run(b.executor, "accumulate", b.diag), SBP_INPUT);
    expect_text(b.diag,
                "the plan is damaged or of another version, compile it again: command gather, operand "
                "dst has the wrong rows (T 30, S 2");
    gather->views[0].start.base = sbp_extent_const(-1);
    expect_ok(b.diag, sbp_executor_bind(b.executor, 30, 2, data.columns, data.count, b.diag));
    assert_int_equal(sbp_executor_run(b.executor, "accumulate", b.diag), SBP_INPUT);
    expect_text(b.diag, "gather, operand dst leaves its buffer");
    gather->views[0].start.base = sbp_extent_const(INT64_MAX);
    expect_ok(b.diag, sbp_executor_bind(b.executor, 30, 2, data.columns, data.count, b.diag));
    assert_int_equal(sbp_executor_run(b.executor, "accumulate", b.diag), SBP_INPUT);
    gather->views[0].start.base = sbp_extent_symbol(SBP_T, INT64_MAX);
    assert_int_equal(sbp_executor_bind(b.executor, 30, 2, data.columns, data.count, b.diag), SBP_INPUT);
    close_bench(&b);
}

/* ---- hook and buffers --------------------------------------------------------------------------------- */

typedef struct hook_state {
    int calls;
    bool skip;
    int32_t parameter;
    double gradient[16];
    double cut[3];
} hook_state;

static sbp_status on_flush(void *user, const sbp_gradient *gradient, bool *skip, sbp_diag *diag) {
    hook_state *h = user;
    h->calls++;
    h->parameter = gradient->parameter;
    *skip = h->skip;
    SBP_TRY(sbp_gradient_read(gradient, 5, 3, SBP_F64, h->cut, diag));
    return sbp_gradient_read(gradient, 0, 16, SBP_F64, h->gradient, diag);
}

/* The gradient comes in its order, however the command that flushes sees it. */
static void flushes_call_the_hook(void **state) {
    (void)state;
    enum { OTHERS = 3 /* commands of the entry */ };
    for (int map = 0; map < 4; map++) {
        static const char own[] = "w = W, g = dW, v := W)", wide[] = "w = W/8, g = dW/8, v := W/8)";
        char text[sizeof small_program + sizeof wide];
        const char *at = strstr(small_program, own), *end = at + sizeof own - 1;
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - small_program), small_program,
                 map < 2 ? own : wide, end);
        bench b = open_bench(text, map % 2);
        batch data;
        make_batch(&data, 3, 0, false);
        expect_ok(b.diag, sbp_executor_bind(b.executor, 3, 0, data.columns, data.count, b.diag));
        float numbers[16];
        for (int k = 0; k < 16; k++)
            numbers[k] = (float)k;
        expect_ok(b.diag, sbp_executor_write(b.executor, sbp_program_find_buffer(b.program, "dW"), 0, 0, 16,
                                             SBP_F32, numbers, b.diag));
        hook_state h = {0};
        sbp_executor_set_scalar(b.executor, "lr", 1);
        sbp_executor_set_flush_hook(b.executor, on_flush, &h);
        b.device->count = 0;
        expect_ok(b.diag, sbp_executor_run(b.executor, "update", b.diag));
        assert_int_equal(b.device->count, 1 + OTHERS);
        h.skip = true;
        expect_ok(b.diag, sbp_executor_run(b.executor, "update", b.diag));
        assert_int_equal(b.device->count, 1 + 2 * OTHERS);
        assert_int_equal(h.calls, 2);
        assert_int_equal(h.parameter, sbp_program_find_buffer(b.program, "W"));
        for (int k = 0; k < 16; k++)
            assert_true(h.gradient[k] == k);
        assert_true(h.cut[0] == 5 && h.cut[2] == 7);
        close_bench(&b);
    }
}

static void buffers_are_read_written_and_filled(void **state) {
    (void)state;
    for (int map = 0; map < 2; map++) {
        bench b = open_bench(small_program, map);
        int32_t x = sbp_program_find_buffer(b.program, "X"),
                away = sbp_program_find_buffer(b.program, "away");
        assert_int_equal(sbp_executor_elems(b.executor, x), 160);
        assert_true((sbp_executor_map(b.executor, x, 1) != NULL) == (map != 0));
        double in[160], out[160];
        for (int k = 0; k < 160; k++)
            in[k] = k * 0.125;
        expect_ok(b.diag, sbp_executor_write(b.executor, x, 2, 0, 160, SBP_F64, in, b.diag));
        expect_ok(b.diag, sbp_executor_write(b.executor, away, 0, 1, 159, SBP_F64, in, b.diag));
        expect_ok(b.diag, sbp_executor_read(b.executor, x, 2, 10, 150, SBP_F64, out, b.diag));
        assert_memory_equal(out, in + 10, 150 * sizeof *out);
        expect_ok(b.diag, sbp_executor_read(b.executor, away, 0, 1, 159, SBP_F64, out, b.diag));
        assert_memory_equal(out, in, 159 * sizeof *out);
        expect_ok(b.diag, sbp_executor_fill_role(b.executor, SBP_ROLE_STREAM, 1.5, b.diag));
        for (int32_t slot = 0; slot < 3; slot++) {
            expect_ok(b.diag, sbp_executor_read(b.executor, x, slot, 0, 160, SBP_F64, out, b.diag));
            for (int k = 0; k < 160; k++)
                assert_true(out[k] == 1.5);
        }
        double result[2] = {3, 4}, loss = 0;
        expect_ok(b.diag, sbp_executor_write(b.executor, sbp_program_find_buffer(b.program, "result"), 0, 0,
                                             2, SBP_F64, result, b.diag));
        expect_ok(b.diag, sbp_executor_output(b.executor, "loss", &loss, b.diag));
        assert_true(loss == 3);
        close_bench(&b);
    }
}

/* Programs that verify, however odd, keep every operand inside its buffer at every T. */
static void mutants_that_verify_stay_inside(void **state) {
    (void)state;
    size_t length = strlen(small_program);
    char *text = malloc(length + 1);
    int verified = 0, finished = 0, rounds = mutate_rounds(1500);
    for (int k = 0; k < rounds; k++) {
        memcpy(text, small_program, length + 1);
        for (uint32_t edits = 1 + mutate_pick(3); edits > 0; edits--)
            mutate_meaning(text, length);
        bench b = {.arena = sbp_arena_create(), .diag = sbp_diag_create(), .text = text};
        sbp_device_options options = {0};
        bool good = sbp_guard(b.arena, b.diag, parse, &b) == SBP_OK &&
                    sbp_program_verify(b.program, b.diag) == SBP_OK;
        if (good) {
            place(b.program);
            good = sbp_program_verify(b.program, b.diag) == SBP_OK &&
                   sbp_executor_create(b.diag, recorder_class(k % 2), &options, b.program, &b.executor) ==
                       SBP_OK;
        }
        for (int64_t t = 1; good && t <= b.program->t_max && t <= MAX_T; t += 1 + pick(5)) {
            batch data;
            int64_t s = pick(b.program->s_max + 1);
            make_batch(&data, t, s < MAX_T ? s : 1, t % 3 == 0);
            sbp_executor_set_scalar(b.executor, "last", (double)pick(2));
            sbp_executor_set_scalar(b.executor, "lr", 1);
            if (sbp_executor_bind(b.executor, t, s < MAX_T ? s : 1, data.columns, data.count, b.diag) ==
                SBP_OK)
                for (int32_t e = 0; e < b.program->entry_count; e++)
                    finished += sbp_executor_run(b.executor, b.program->entries[e].name, b.diag) == SBP_OK;
        }
        verified += good;
        sbp_executor_destroy(b.executor);
        sbp_diag_destroy(b.diag);
        sbp_arena_destroy(b.arena);
    }
    free(text);
    print_message("%d mutants: %d verified, %d runs\n", rounds, verified, finished);
    assert_true(verified > rounds / 20 && finished > verified);
}

/* ---- failures of the machine ----------------------------------------------------------------------------
 */

static void running_out_of_memory_is_reported(void **state) {
    (void)state;
    bench b = open_bench(small_program, true);
    sbp_device_options options = {0};
    bool done = false;
    for (int64_t n = 1; !done; n++) {
        sbp_executor *x = NULL;
        sbp_test_fail_allocation(n);
        sbp_status status = sbp_executor_create(b.diag, recorder_class(true), &options, b.program, &x);
        sbp_test_fail_allocation(0);
        assert_true(status == SBP_OK || status == SBP_MACHINE);
        done = status == SBP_OK;
        if (done)
            sbp_executor_destroy(x);
    }
    close_bench(&b);
}

/* Not a test of speed, only a number to look at: nanoseconds per command. */
static void overhead(void **state) {
    (void)state;
    bench b = open_bench(small_program, true);
    batch data;
    make_batch(&data, 40, 2, false);
    sbp_executor_set_scalar(b.executor, "last", 1);
    sbp_executor_set_scalar(b.executor, "lr", 1);
    expect_ok(b.diag, sbp_executor_bind(b.executor, 40, 2, data.columns, data.count, b.diag));
    b.device->keep = false;
    b.device->count = 0;
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (int k = 0; k < 2000; k++)
        expect_ok(b.diag, sbp_executor_run(b.executor, "accumulate", b.diag));
    clock_gettime(CLOCK_MONOTONIC, &to);
    double ns = (double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec);
    print_message("%.0f ns per command\n", ns / b.device->count);
    close_bench(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spans_are_those_of_the_views),
        cmocka_unit_test(columns_are_converted_and_written),
        cmocka_unit_test(scatter_orders_are_sorted_and_stable),
        cmocka_unit_test(lo_is_the_first_row_that_is_seen),
        cmocka_unit_test(errors_say_what_is_wrong),
        cmocka_unit_test(the_plan_cannot_leave_its_buffers_at_run_time),
        cmocka_unit_test(flushes_call_the_hook),
        cmocka_unit_test(buffers_are_read_written_and_filled),
        cmocka_unit_test(mutants_that_verify_stay_inside),
        cmocka_unit_test(running_out_of_memory_is_reported),
        cmocka_unit_test(overhead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
