#include "tests/bench/bench.h"

#include "backends/target.h"
#include "ir/base/lex.h"
#include "tests/common/dispatch_add.h"
#include "tests/rowkernel_random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void bench_init(bench *b, const sbp_device_class *class) {
    *b = (bench){.class = class,
                 .arena = sbp_arena_create(),
                 .diag = sbp_diag_create(),
                 .clock = CLOCK_MONOTONIC,
                 .about_seconds = 0.25};
    if (!b->arena || !b->diag)
        exit(SBP_MACHINE);
    b->program = sbp_program_create(b->arena, "bench");
}

bool bench_take_option(bench_settings *s, const char *option, const char *value) {
    if (strcmp(option, "--threads") == 0)
        s->device.threads = atoi(value);
    else if (strcmp(option, "--seconds") == 0)
        s->seconds = atof(value);
    else if (strcmp(option, "--clock") == 0)
        s->clock = strcmp(value, "cpu") == 0 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
    else
        return false;
    return true;
}

void bench_start(bench *b, const sbp_device_class *class, const bench_settings *s) {
    bench_init(b, class);
    b->clock = s->clock;
    b->about_seconds = s->seconds;
    b->burst_seconds = class->count ? 0.02 : 0; /* a GPU's driver takes 10 to 20 us to submit and wait */
}

void bench_check(bench *b, sbp_status status) {
    if (status == SBP_OK)
        return;
    fprintf(stderr, "%s\n", sbp_diag_text(b->diag, SBP_NOTE));
    exit((int)status);
}

double bench_now(const bench *b) {
    struct timespec t;
    clock_gettime(b->clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void bench_open(bench *b, const sbp_device_options *options) {
    const sbp_target *target = sbp_target_find(b->class->name);
    sbp_device_options all = *options;
    b->program->arena_bytes[SBP_DEVICE] = b->most_bytes;
    if (target && target->compile)
        bench_check(b, target->compile(b->arena, b->diag, b->program, &all.code, &all.code_bytes));
    if (b->compile_only)
        exit(SBP_OK);
    bench_check(b, b->class->create(&all, b->diag, &b->device));
    bench_check(b, b->class->load(b->device, b->program, b->diag));
}

void bench_close(bench *b) {
    if (b->device)
        b->class->destroy(b->device);
    sbp_arena_destroy(b->arena);
    sbp_diag_destroy(b->diag);
}

/* ---- operands ---------------------------------------------------------------------------------------- */

void bench_begin(bench *b) {
    b->used_bytes = 0;
}

/* Numbers that look like none of the others: what toggles few bits, as a short pattern does, lets a GPU run
 * at higher clocks. */
static void fill_with_numbers(bench *b, const sbp_span *span) {
    enum { PERIOD = 65521 };
    sbp_rng rng = {1};
    int64_t elems = span->rows * span->cols, unit = sbp_dtype_bytes(span->dtype);
    int64_t pattern = elems < PERIOD ? elems : PERIOD, whole = pattern * unit;
    int64_t piece = elems * unit;
    if (piece > (4 << 20)) /* of whole patterns */
        piece = (4 << 20) / whole * whole;
    char *data = malloc((size_t)piece);
    if (!data)
        exit(SBP_MACHINE);
    for (int64_t i = 0; i < pattern; i++)
        sbp_element_set(data, span->dtype, i, sbp_dtype_is_float(span->dtype) ? 0.5 * sbp_rng_unit(&rng) : 0);
    for (int64_t done = whole; done < piece;) {
        int64_t more = done < piece - done ? done : piece - done;
        memcpy(data + done, data, (size_t)more);
        done += more;
    }
    for (int64_t done = 0; done < elems * unit; done += piece) {
        int64_t rest = elems * unit - done;
        bench_check(b, b->class->write(b->device, SBP_DEVICE, span->offset + done, data,
                                       rest < piece ? rest : piece, b->diag));
    }
    free(data);
}

sbp_span bench_matrix(bench *b, sbp_dtype dtype, int64_t rows, int64_t cols) {
    sbp_span span = {.space = SBP_DEVICE,
                     .dtype = dtype,
                     .offset = b->used_bytes,
                     .rows = rows,
                     .cols = cols,
                     .stride = cols};
    b->used_bytes = sbp_round_up(b->used_bytes + rows * cols * sbp_dtype_bytes(dtype), 4096);
    b->most_bytes = b->used_bytes > b->most_bytes ? b->used_bytes : b->most_bytes;
    if (b->device)
        fill_with_numbers(b, &span);
    return span;
}

sbp_span bench_absent(void) {
    return (sbp_span){.space = SBP_SPACE_COUNT};
}

/* ---- running ----------------------------------------------------------------------------------------- */

void bench_submit(bench *b, const sbp_dispatch *dispatch) {
    if (b->device)
        bench_check(b, b->class->submit(b->device, dispatch, b->diag));
    else
        dispatch_add(b->arena, b->program, dispatch);
}

void bench_fence(bench *b) {
    static const sbp_command fence = {.kind = SBP_CMD_FENCE, .flushes = -1};
    if (b->device)
        bench_check(b, b->class->submit(b->device, &(sbp_dispatch){.command = &fence}, b->diag));
}

void bench_wait(bench *b) {
    if (b->device)
        bench_check(b, b->class->wait(b->device, b->diag));
}

/* Seconds of n commands, each after the one before; run counts them. */
static double time_burst(bench *b, bench_command *c, int64_t n, int64_t *run) {
    sbp_span *moving = c->cold >= 0 ? &c->spans[c->cold] : NULL;
    int64_t offset = moving ? moving->offset : 0;
    double begun = bench_now(b);
    for (int64_t i = 0; i < n; i++) {
        if (moving)
            moving->offset = offset + (*run)++ % c->copies * moving->rows * moving->stride *
                                          sbp_dtype_bytes(moving->dtype);
        bench_submit(b, &c->dispatch);
        if (n > 1)
            bench_fence(b);
    }
    bench_wait(b);
    if (moving)
        moving->offset = offset;
    return bench_now(b) - begun;
}

double bench_time(bench *b, bench_command *c) {
    int64_t run = 0, n = 1;
    double best = 1e9, first = time_burst(b, c, 1, &run), begun = bench_now(b);
    if (!b->device)
        return 1;
    if (first < b->burst_seconds)
        n = (int64_t)(b->burst_seconds / fmax(first, 1e-6));
    for (int i = 0; i < 2 || (bench_now(b) - begun < b->about_seconds && i < 1000); i++) {
        double seconds = time_burst(b, c, n, &run) / (double)n;
        best = seconds < best ? seconds : best;
    }
    return best;
}

/* ---- products ---------------------------------------------------------------------------------------- */

void bench_layer(const char *const names[3], int64_t rows, int64_t out, int64_t in, sbp_dtype dtype,
                 bench_matmul products[3]) {
    products[0] = (bench_matmul){names[0], rows, out, in, false, true, false, dtype};
    products[1] = (bench_matmul){names[1], rows, in, out, false, false, false, dtype};
    products[2] = (bench_matmul){names[2], out, in, rows, true, false, true, dtype};
}

void bench_matmul_make(bench *b, const bench_matmul *p, bench_command *out) {
    int64_t copies = 1 + (INT64_C(64) << 20) / (p->n * p->k * sbp_dtype_bytes(p->dtype));
    *out = (bench_command){
        .command = {.kind = SBP_CMD_GEMM, .flushes = -1}, .cold = 2, .copies = copies < 40 ? copies : 40};
    out->command.u.gemm.alpha = 1;
    out->command.u.gemm.beta = p->add;
    out->command.u.gemm.ta = p->ta;
    out->command.u.gemm.tb = p->tb;
    bench_begin(b);
    out->spans[0] = bench_matrix(b, p->add ? SBP_F32 : p->dtype, p->m, p->n);
    out->spans[1] = bench_matrix(b, p->dtype, p->ta ? p->k : p->m, p->ta ? p->m : p->k);
    out->spans[2] = bench_matrix(b, p->dtype, (p->tb ? p->n : p->k) * out->copies, p->tb ? p->k : p->n);
    out->spans[2].rows /= out->copies;
    out->spans[3] = p->add ? out->spans[0] : bench_absent();
    out->spans[4] = bench_absent();
    out->dispatch = (sbp_dispatch){.command = &out->command, .spans = out->spans, .span_count = 5};
}

double bench_matmul_gflops(const bench_matmul *p, double seconds) {
    return 2e-9 * (double)p->m * (double)p->n * (double)p->k / seconds;
}

/* ---- attention --------------------------------------------------------------------------------------- */

typedef struct attention_operands {
    sbp_span q, k, v, o, lse, d_o, dq, dk, dv, first, work;
} attention_operands;

static attention_operands make_attention(bench *b, const bench_attention *at) {
    const sbp_target *target = sbp_target_find(b->class->name);
    sbp_target_info info = {0};
    if (target)
        bench_check(b, target->describe(NULL, b->diag, &info));
    sbp_dtype sums = at->dtype == SBP_F64 ? SBP_F64 : SBP_F32;
    int64_t queries = at->heads * at->d, keys = at->kv_heads * at->d;
    int64_t work_cols = sbp_target_work_columns(&info, at->heads, at->d);
    bench_begin(b);
    return (attention_operands){
        .q = bench_matrix(b, at->dtype, at->rows, queries),
        .k = bench_matrix(b, at->dtype, at->rows, keys),
        .v = bench_matrix(b, at->dtype, at->rows, keys),
        .o = bench_matrix(b, at->dtype, at->rows, queries),
        .lse = bench_matrix(b, sums, at->rows, at->heads),
        .d_o = bench_matrix(b, at->dtype, at->rows, queries),
        .dq = bench_matrix(b, at->dtype, at->rows, queries),
        .dk = bench_matrix(b, sums, at->rows, keys),
        .dv = bench_matrix(b, sums, at->rows, keys),
        .first = bench_matrix(b, SBP_I32, at->rows, 1),
        .work = work_cols > 0 ? bench_matrix(b, sums, at->chunk + info.attention_more_rows, work_cols)
                              : bench_absent()};
}

/* Rows from .. from + rows of an operand that has a row per query. */
static sbp_span rows_of(sbp_span span, int64_t from, int64_t rows) {
    span.first_row = from;
    span.rows = rows;
    span.offset += from * span.stride * sbp_dtype_bytes(span.dtype);
    return span;
}

/* The keys that the rows up to `end` see. */
static sbp_span until(sbp_span span, int64_t end) {
    span.rows = end;
    return span;
}

static void submit_attention(bench *b, const sbp_command *command, const attention_operands *m, int64_t row,
                             int64_t rows) {
    sbp_span first = rows_of(m->first, row, rows), q = rows_of(m->q, row, rows), o = rows_of(m->o, row, rows);
    sbp_span lse = rows_of(m->lse, row, rows), k = until(m->k, row + rows), v = until(m->v, row + rows);
    if (command->kind == SBP_CMD_ATTN_FWD) {
        sbp_span spans[] = {o, lse, q, k, v, first, first, first, bench_absent()};
        bench_submit(b, &(sbp_dispatch){.command = command, .spans = spans, .span_count = 9});
    } else {
        sbp_span spans[] = {rows_of(m->dq, row, rows),
                            until(m->dk, row + rows),
                            until(m->dv, row + rows),
                            q,
                            k,
                            v,
                            o,
                            lse,
                            rows_of(m->d_o, row, rows),
                            first,
                            first,
                            first,
                            m->work};
        bench_submit(b, &(sbp_dispatch){.command = command, .spans = spans, .span_count = 13});
    }
    bench_fence(b);
}

void bench_attention_run(bench *b, const bench_attention *at, double seconds[2], double gflops[2]) {
    attention_operands operands = make_attention(b, at);
    sbp_command command = {.flushes = -1};
    command.u.attention = (sbp_attention_attrs){
        .heads = at->heads, .kv_heads = at->kv_heads, .d_qk = at->d, .d_v = at->d, .scale = 0.125};
    seconds[0] = seconds[1] = 1e9;
    double started = bench_now(b);
    int64_t n[2] = {1, 1}; /* times before the clock is looked at again */
    for (int i = 0; i < 3 || (b->device && bench_now(b) - started < 2 * b->about_seconds && i < 1000); i++)
        for (int backward = 0; backward < 2; backward++) {
            double begun = bench_now(b);
            command.kind = backward ? SBP_CMD_ATTN_BWD : SBP_CMD_ATTN_FWD;
            for (int64_t k = 0; k < n[backward]; k++)
                for (int64_t row = 0; row < at->rows; row += at->chunk)
                    submit_attention(b, &command, &operands, row,
                                     at->chunk < at->rows - row ? at->chunk : at->rows - row);
            bench_wait(b);
            double t = b->device ? (bench_now(b) - begun) / (double)n[backward] : 1;
            seconds[backward] = t < seconds[backward] ? t : seconds[backward];
            if (i == 0 && t < b->burst_seconds)
                n[backward] = (int64_t)(b->burst_seconds / fmax(t, 1e-6));
        }
    double pairs = 0.5e-9 * (double)at->rows * (double)at->rows * (double)(at->heads * at->d);
    gflops[0] = 4 * pairs / seconds[0];
    gflops[1] = 10 * pairs / seconds[1];
}

/* ---- row kernels ------------------------------------------------------------------------------------- */

int32_t bench_add_kernel(bench *b, const char *text) {
    sbp_lexer lexer;
    sbp_rowkernel *kernel;
    bench_check(b, sbp_lexer_init(&lexer, b->arena, b->diag, "bench", text, strlen(text)));
    bench_check(b, sbp_rowkernel_parse(&lexer, b->arena, &kernel));
    bench_check(b, sbp_rowkernel_verify(kernel, b->diag));
    return sbp_program_add_kernel(b->arena, b->program, kernel);
}

void bench_row_make(bench *b, int32_t number, int64_t rows, bench_command *out, int64_t *bytes) {
    const sbp_rowkernel *k = b->program->kernels[number];
    *out = (bench_command){.command = {.kind = SBP_CMD_ROW, .flushes = -1, .kernel = number}, .cold = -1};
    *bytes = 0;
    bench_begin(b);
    for (int32_t i = 0; i < k->operand_count; i++) {
        const sbp_rk_operand *o = &k->operands[i];
        int64_t r = o->vary & SBP_VARY_ROW ? rows : o->mode == SBP_RK_PARTIAL ? rows / SBP_PARTIAL_ROWS : 1;
        out->spans[i] =
            bench_matrix(b, o->dtype, r, o->vary & SBP_VARY_HEAD ? k->heads * o->head_stride : o->length);
        *bytes += r * out->spans[i].cols * sbp_dtype_bytes(o->dtype);
    }
    out->dispatch = (sbp_dispatch){.command = &out->command,
                                   .kernel = k,
                                   .rows = rows,
                                   .spans = out->spans,
                                   .span_count = k->operand_count,
                                   .scalars = out->scalars};
    for (int32_t i = 0; i < k->scalar_count; i++)
        out->scalars[i] = i + 1;
}
