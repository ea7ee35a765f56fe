/* measure.c: a program with a command of each kind, timed.
 *
 * Every case is one command over whole buffers, at sizes of a middling model: matmuls of [rows, 1024] by
 * [1024, 1024], attention of the second half of 2,048 rows, a row kernel over 32 MiB, which no cache
 * keeps, and others over chunks. Buffers of a case lie side by side; those of all cases in the same place. */
#include "backends/measure.h"

#include <string.h>
#include <time.h>

#include "ir/base/lex.h"
#include "ir/base/machine.h"
#include "ir/program/traits.h"

enum {
    MANY = 1024,
    FEW = 128,
    WIDTH = 1024,
    HEADS = 8,
    KV_HEADS = 4,
    HEAD = 64,
    FAR_ROWS = 4096,
    NEAR_ROWS = 512,
    ROW_COLS = 2048,
    COPY_ROWS = 8192, /* of WIDTH fp32 numbers: 32 MiB */
    DISK_ROWS = 16384,
    MAX_CASES = 64
};

typedef struct measure {
    sbp_arena *arena;
    sbp_diag *diag;
    const sbp_device_class *class;
    sbp_target_info info;
    sbp_program *program;
    sbp_device *device;
    int64_t used[SBP_SPACE_COUNT]; /* by the case that is made */
    sbp_command *cases[MAX_CASES];
    int32_t count;
    double seconds, processor_seconds; /* of matmuls */
} measure;

/* ---- cases ------------------------------------------------------------------------------------------- */

/* A buffer of the present case, as a view of all of it. */
static sbp_view matrix(measure *m, sbp_space space, sbp_dtype dtype, int64_t rows, int64_t cols) {
    sbp_program *p = m->program;
    int64_t bytes = rows * cols * sbp_dtype_bytes(dtype);
    sbp_buffer b = {.name = sbp_arena_printf(m->arena, "b%d", p->buffer_count),
                    .role = SBP_ROLE_SCRATCH,
                    .space = space,
                    .dtype = dtype,
                    .count = 1,
                    .rows = sbp_extent_const(rows),
                    .cols = cols,
                    .function = -1,
                    .offset = m->used[space],
                    .stride = bytes};
    m->used[space] = sbp_round_up(m->used[space] + bytes, SBP_DISK_ALIGNMENT);
    if (m->used[space] > p->arena_bytes[space])
        p->arena_bytes[space] = m->used[space];
    SBP_PUSH(m->arena, p->buffers, p->buffer_count, p->buffer_capacity, b);
    return sbp_view_buffer(p, p->buffer_count - 1, 0);
}

static void begin_case(measure *m) {
    memset(m->used, 0, sizeof m->used);
}

/* The number of the case. */
static int32_t add_case(measure *m, sbp_queue queue, sbp_command_kind kind, const sbp_view *views,
                        int32_t view_count) {
    sbp_command *c = sbp_command_create(m->arena, kind, view_count);
    c->queue = (int32_t)queue;
    c->view_count = view_count;
    memcpy(c->views, views, (size_t)view_count * sizeof *views);
    m->cases[m->count] = c;
    sbp_body *body = &m->program->entries[0].body;
    SBP_PUSH(m->arena, body->nodes, body->count, body->capacity,
             (sbp_node){.kind = SBP_NODE_COMMAND, .u.command = c});
    return m->count++;
}

/* Adds a case: a matmul of a linear layer of WIDTH by WIDTH; kind 0: x W^T, 1: dy W, 2: dW += dy^T x. */
static int32_t add_matmul(measure *m, sbp_dtype dtype, int64_t rows, int kind) {
    begin_case(m);
    sbp_dtype sum = dtype == SBP_F64 ? SBP_F64 : SBP_F32;
    sbp_view a = matrix(m, SBP_DEVICE, dtype, rows, WIDTH),
             b = matrix(m, SBP_DEVICE, dtype, kind == 2 ? rows : WIDTH, WIDTH),
             d = matrix(m, SBP_DEVICE, kind == 2 ? sum : dtype, kind == 2 ? WIDTH : rows, WIDTH);
    sbp_view views[SBP_GEMM_OPERANDS] = {
        [SBP_GEMM_D] = d,
        [SBP_GEMM_A] = a,
        [SBP_GEMM_B] = b,
        [SBP_GEMM_C] = kind == 2 ? d : sbp_view_none(),
        [SBP_GEMM_BIAS] = sbp_view_none(),
    };
    int32_t number = add_case(m, SBP_QUEUE_COMPUTE, SBP_CMD_GEMM, views, SBP_COUNT(views));
    m->cases[number]->u.gemm.alpha = 1;
    m->cases[number]->u.gemm.beta = kind == 2;
    m->cases[number]->u.gemm.ta = kind == 2;
    m->cases[number]->u.gemm.tb = kind == 0;
    return number;
}

/* Queries are the rows MANY .. 2 MANY of one document. */
static int32_t add_attention(measure *m, sbp_dtype dtype, bool backward) {
    begin_case(m);
    sbp_dtype sum = dtype == SBP_F64 ? SBP_F64 : SBP_F32;
    int64_t q_cols = HEADS * HEAD, k_cols = KV_HEADS * HEAD, keys = 2 * MANY;
    sbp_view q = matrix(m, SBP_DEVICE, dtype, MANY, q_cols), o = matrix(m, SBP_DEVICE, dtype, MANY, q_cols),
             lse = matrix(m, SBP_DEVICE, sum, MANY, HEADS), k = matrix(m, SBP_DEVICE, dtype, keys, k_cols),
             v = matrix(m, SBP_DEVICE, dtype, keys, k_cols), first = matrix(m, SBP_DEVICE, SBP_I32, MANY, 1);
    sbp_attention_attrs attrs = {
        .heads = HEADS, .kv_heads = KV_HEADS, .d_qk = HEAD, .d_v = HEAD, .scale = 0.125};
    int32_t number;
    if (backward) {
        sbp_view dq = matrix(m, SBP_DEVICE, dtype, MANY, q_cols),
                 dk = matrix(m, SBP_DEVICE, sum, keys, k_cols), dv = matrix(m, SBP_DEVICE, sum, keys, k_cols),
                 d_o = matrix(m, SBP_DEVICE, dtype, MANY, q_cols), work = sbp_view_none();
        int64_t work_cols = sbp_target_work_columns(&m->info, HEADS, HEAD);
        if (work_cols > 0)
            work = matrix(m, SBP_DEVICE, sum, MANY + m->info.attention_more_rows, work_cols);
        sbp_view views[SBP_ATTN_BWD_OPERANDS] = {
            [SBP_ATTN_BWD_DQ] = dq,
            [SBP_ATTN_BWD_DK] = dk,
            [SBP_ATTN_BWD_DV] = dv,
            [SBP_ATTN_BWD_Q] = q,
            [SBP_ATTN_BWD_K] = k,
            [SBP_ATTN_BWD_V] = v,
            [SBP_ATTN_BWD_O] = o,
            [SBP_ATTN_BWD_LSE] = lse,
            [SBP_ATTN_BWD_DO] = d_o,
            [SBP_ATTN_BWD_FIRST] = first,
            [SBP_ATTN_BWD_SHARED_END] = first,
            [SBP_ATTN_BWD_OWN] = first,
            [SBP_ATTN_BWD_WORK] = work,
        };
        number = add_case(m, SBP_QUEUE_COMPUTE, SBP_CMD_ATTN_BWD, views, SBP_COUNT(views));
    } else {
        sbp_view views[SBP_ATTN_FWD_OPERANDS] = {
            [SBP_ATTN_FWD_O] = o,
            [SBP_ATTN_FWD_LSE] = lse,
            [SBP_ATTN_FWD_Q] = q,
            [SBP_ATTN_FWD_K] = k,
            [SBP_ATTN_FWD_V] = v,
            [SBP_ATTN_FWD_FIRST] = first,
            [SBP_ATTN_FWD_SHARED_END] = first,
            [SBP_ATTN_FWD_OWN] = first,
            [SBP_ATTN_FWD_WORK] = sbp_view_none(),
        };
        number = add_case(m, SBP_QUEUE_COMPUTE, SBP_CMD_ATTN_FWD, views, SBP_COUNT(views));
    }
    m->cases[number]->u.attention = attrs;
    return number;
}

/* What row kernels of a step are like: one that moves, one that computes. */
static const char *const kernel_texts[] = {
    "kernel @add f32 heads 1 n 2048 { out z : f32 [row elem] length 2048 in x : f32 [row elem] length 2048 "
    "in y : f32 [row elem] length 2048 %0 = load x %1 = load y %2 = add %0, %1 store z, %2 }",
    "kernel @gate f32 heads 1 n 2048 { out du : f32 [row elem] length 2048 out dg : f32 [row elem] length "
    "2048 "
    "in g : f32 [row elem] length 2048 in u : f32 [row elem] length 2048 in ds : f32 [row elem] length 2048 "
    "%0 = load g %1 = load u %2 = load ds %3 = sigmoid %0 %4 = mul %0, %3 %5 = mul %2, %4 %6 = mul %2, %1 "
    "%7 = const 1 %8 = sub %7, %3 %9 = mul %0, %8 %10 = add %7, %9 %11 = mul %3, %10 %12 = mul %6, %11 "
    "store du, %5 store dg, %12 }",
    "kernel @norm f32 heads 1 n 2048 { out y : f32 [row elem] length 2048 in x : f32 [row elem] length 2048 "
    "%0 = load x %1 = mul %0, %0 %2 = sum[elem] %1 %3 = const 1e-05 %4 = add %2, %3 %5 = rsqrt %4 "
    "%6 = max[elem] %0 %7 = sub %0, %6 %8 = exp %7 %9 = sum[elem] %8 %10 = div %5, %9 %11 = mul %0, %10 "
    "store y, %11 }"};
enum { ADD, GATE, NORM, KERNELS };

static sbp_status add_kernels(measure *m) {
    for (int k = 0; k < KERNELS; k++) {
        sbp_lexer lexer;
        sbp_rowkernel *kernel;
        SBP_TRY(
            sbp_lexer_init(&lexer, m->arena, m->diag, "measure", kernel_texts[k], strlen(kernel_texts[k])));
        SBP_TRY(sbp_rowkernel_parse(&lexer, m->arena, &kernel));
        SBP_TRY(sbp_rowkernel_verify(kernel, m->diag));
        (void)sbp_program_add_kernel(m->arena, m->program, kernel);
    }
    return SBP_OK;
}

/* Results go where operands were, as updates and residuals do. */
static int32_t add_rows(measure *m, sbp_space space, int kernel) {
    begin_case(m);
    sbp_view views[5];
    int64_t rows = kernel == ADD ? FAR_ROWS : NEAR_ROWS;
    int32_t count = m->program->kernels[kernel]->operand_count, outs = kernel == GATE ? 2 : 1;
    for (int32_t i = outs; i < count; i++)
        views[i] = matrix(m, space, SBP_F32, rows, ROW_COLS);
    views[0] = kernel == ADD ? views[1] : matrix(m, space, SBP_F32, rows, ROW_COLS);
    if (kernel == GATE)
        views[1] = matrix(m, space, SBP_F32, rows, ROW_COLS);
    int32_t number =
        add_case(m, space == SBP_HOST ? SBP_QUEUE_HOST : SBP_QUEUE_COMPUTE, SBP_CMD_ROW, views, count);
    m->cases[number]->kernel = kernel;
    return number;
}

static int32_t add_copy(measure *m, sbp_space to, sbp_space from, int64_t rows) {
    begin_case(m);
    sbp_view views[SBP_COPY_OPERANDS] = {[SBP_COPY_DST] = matrix(m, to, SBP_F32, rows, WIDTH),
                                         [SBP_COPY_SRC] = matrix(m, from, SBP_F32, rows, WIDTH)};
    return add_case(m, sbp_queue_of_copy(to, from), SBP_CMD_COPY, views, SBP_COPY_OPERANDS);
}

/* ---- running ----------------------------------------------------------------------------------------- */

static sbp_span span_of(const measure *m, const sbp_view *view, sbp_command_kind kind) {
    if (view->ref == SBP_NO_VIEW)
        return (sbp_span){.space = SBP_SPACE_COUNT};
    const sbp_buffer *b = &m->program->buffers[view->ref];
    bool query =
        sbp_command_attention(kind) && sbp_extent_as_const(b->rows) == MANY; /* keys have twice as many */
    return (sbp_span){.space = b->space,
                      .dtype = b->dtype,
                      .offset = b->offset,
                      .rows = sbp_extent_as_const(b->rows),
                      .cols = b->cols,
                      .stride = b->cols,
                      .first_row = query ? MANY : 0};
}

static sbp_status submit(const measure *m, const sbp_command *c) {
    const sbp_rowkernel *kernel = sbp_command_kernel(m->program, c);
    sbp_span spans[SBP_MAX_COMMAND_OPERANDS];
    for (int32_t i = 0; i < c->view_count; i++)
        spans[i] = span_of(m, &c->views[i], c->kind);
    sbp_dispatch d = {.command = c,
                      .kernel = kernel,
                      .rows = kernel ? spans[0].rows : 0,
                      .spans = spans,
                      .span_count = c->view_count};
    return m->class->submit(m->device, &d, m->diag);
}

static double processor_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Seconds of n commands, one after the other. */
static sbp_status time_burst(measure *m, const sbp_command *c, int32_t n, double *out) {
    const sbp_command fence = {
        .kind = SBP_CMD_FENCE, .flushes = -1, .u.fence = {.from = c->queue, .to = c->queue}};
    double begun = sbp_seconds(), used = processor_seconds();
    for (int32_t i = 0; i < n; i++) {
        if (i > 0)
            SBP_TRY(m->class->submit(m->device, &(sbp_dispatch){.command = &fence}, m->diag));
        SBP_TRY(submit(m, c));
    }
    SBP_TRY(m->class->wait(m->device, m->diag));
    *out = sbp_seconds() - begun;
    if (c->kind == SBP_CMD_GEMM) {
        m->seconds += *out;
        m->processor_seconds += processor_seconds() - used;
    }
    return SBP_OK;
}

/* Small numbers in what a command touches; integers are 0. */
static sbp_status fill_operands(const measure *m, const sbp_command *c) {
    enum { PIECE = 1 << 20, PERIOD = 101 };
    char *data = sbp_arena_alloc(m->arena, PIECE);
    for (int32_t v = 0; v < c->view_count; v++) {
        const sbp_buffer *b = c->views[v].ref == SBP_NO_VIEW ? NULL : &m->program->buffers[c->views[v].ref];
        if (!b || b->space == SBP_DISK)
            continue;
        int64_t unit = sbp_dtype_bytes(b->dtype);
        for (int64_t i = 0; i < PIECE / unit; i++)
            sbp_element_set(data, b->dtype, i,
                            sbp_dtype_is_float(b->dtype) ? (double)(i * 37 % PERIOD) / PERIOD - 0.5 : 0);
        for (int64_t at = 0; at < b->stride; at += PIECE) {
            int64_t rest = b->stride - at;
            SBP_TRY(m->class->write(m->device, b->space, b->offset + at, data, rest < PIECE ? rest : PIECE,
                                    m->diag));
        }
    }
    return SBP_OK;
}

/* Seconds of one command: the fastest of bursts of some commands, so that the way to the device counts
 * little. */
static sbp_status time_case(measure *m, int32_t number, double *out) {
    const double burst = 0.3e-3, enough = 15e-3;
    const sbp_command *c = m->cases[number];
    double first, all = 0, seconds;
    SBP_TRY(fill_operands(m, c));
    SBP_TRY(time_burst(m, c, 1, &first)); /* wakes threads */
    SBP_TRY(time_burst(m, c, 1, &first));
    int32_t n = first < burst ? (int32_t)(burst / (first > 1e-7 ? first : 1e-7)) + 1 : 1;
    *out = first;
    for (int i = 0; i < 2 || (all < enough && i < 50); i++) {
        SBP_TRY(time_burst(m, c, n, &seconds));
        all += seconds;
        *out = seconds / n < *out ? seconds / n : *out;
    }
    return SBP_OK;
}

/* ---- throughput ---------------------------------------------------------------------------------------- */

/* Numbers of cases. */
typedef struct cases {
    int32_t many[SBP_DTYPE_COUNT][3], few[SBP_DTYPE_COUNT][2], attention[SBP_DTYPE_COUNT][2];
    int32_t rows[2][KERNELS]; /* on the device, on the host's cores */
    int32_t in, out, read, write, small;
} cases;

static void add_cases(measure *m, cases *c, bool disk) {
    for (int d = 0; d < SBP_DTYPE_COUNT; d++) {
        if (!m->info.supports[d])
            continue;
        for (int kind = 0; kind < 3; kind++)
            c->many[d][kind] = add_matmul(m, (sbp_dtype)d, MANY, kind);
        for (int kind = 0; kind < 2; kind++)
            c->few[d][kind] = add_matmul(m, (sbp_dtype)d, FEW, kind);
        for (int backward = 0; backward < 2; backward++)
            c->attention[d][backward] = add_attention(m, (sbp_dtype)d, backward == 1);
    }
    for (int k = 0; k < KERNELS; k++) {
        c->rows[0][k] = add_rows(m, SBP_DEVICE, k);
        c->rows[1][k] = add_rows(m, SBP_HOST, k);
    }
    c->in = add_copy(m, SBP_DEVICE, SBP_HOST, COPY_ROWS);
    c->out = add_copy(m, SBP_HOST, SBP_DEVICE, COPY_ROWS);
    if (disk) {
        c->write = add_copy(m, SBP_DISK, SBP_HOST, DISK_ROWS);
        c->read = add_copy(m, SBP_HOST, SBP_DISK, DISK_ROWS);
    }
    begin_case(m);
    sbp_view one = matrix(m, SBP_DEVICE, SBP_F32, 1, 1);
    c->small = add_case(m, SBP_QUEUE_COMPUTE, SBP_CMD_FILL, &one, SBP_FILL_OPERANDS);
}

/* From matmuls of many and few rows: seconds = flops / rate * (rows + half) / rows. */
static sbp_status matmul_throughput(measure *m, const cases *c, sbp_throughput *out) {
    double halves = 0;
    int types = 0;
    for (int d = 0; d < SBP_DTYPE_COUNT; d++) {
        double many = 0, few = 0, seconds, gradient;
        if (!m->info.supports[d])
            continue;
        for (int kind = 0; kind < 2; kind++) {
            SBP_TRY(time_case(m, c->many[d][kind], &seconds));
            many += seconds;
            SBP_TRY(time_case(m, c->few[d][kind], &seconds));
            few += seconds;
        }
        SBP_TRY(time_case(m, c->many[d][2], &gradient));
        double flops = 2.0 * WIDTH * WIDTH, slope = (many - few) / (MANY - FEW) / 2, /* seconds per row */
            fixed = few / 2 - slope * FEW;
        double half = slope > 0 && fixed > 0 ? fixed / slope : 0;
        halves += half;
        types++;
        out->matmul[d] = 3 * flops * MANY / (many + gradient) * (MANY + half) / MANY;
    }
    out->half_rows = types > 0 && halves > types ? halves / types : 1;
    return SBP_OK;
}

static sbp_status attention_throughput(measure *m, const cases *c, sbp_throughput *out) {
    double pairs = sbp_attention_pairs(MANY, MANY, 0), elems = HEADS * HEAD;
    for (int d = 0; d < SBP_DTYPE_COUNT; d++) {
        double forward, backward;
        if (!m->info.supports[d])
            continue;
        SBP_TRY(time_case(m, c->attention[d][0], &forward));
        SBP_TRY(time_case(m, c->attention[d][1], &backward));
        out->attention[d] = (sbp_attention_flops(pairs, elems, elems, false) +
                             sbp_attention_flops(pairs, elems, elems, true)) /
                            (forward + backward);
    }
    return SBP_OK;
}

/* A kernel takes as long as its bytes or its operations, whichever is longer: bytes from the kernel that
 * moves through memory, operations from those whose operands are near. */
static sbp_status row_throughput(measure *m, const int32_t numbers[KERNELS], double *memory,
                                 double *ops_rate) {
    double seconds, all = 0, ops = 0;
    SBP_TRY(time_case(m, numbers[ADD], &seconds));
    *memory = 3.0 * FAR_ROWS * ROW_COLS * 4 / seconds; /* two operands are read, one is written */
    for (int k = ADD + 1; k < KERNELS; k++) {
        SBP_TRY(time_case(m, numbers[k], &seconds));
        all += seconds;
        ops += sbp_rowkernel_ops(m->program->kernels[k]) * NEAR_ROWS;
    }
    *ops_rate = ops / all;
    return SBP_OK;
}

static sbp_status copy_rate(measure *m, int32_t number, int64_t rows, double *out) {
    double seconds;
    SBP_TRY(time_case(m, number, &seconds));
    *out = (double)rows * WIDTH * 4 / seconds;
    return SBP_OK;
}

static sbp_status measure_all(measure *m, const cases *c, bool disk, sbp_throughput *out) {
    SBP_TRY(matmul_throughput(m, c, out));
    SBP_TRY(attention_throughput(m, c, out));
    SBP_TRY(row_throughput(m, c->rows[0], &out->memory, &out->row_ops));
    SBP_TRY(row_throughput(m, c->rows[1], &out->host, &out->host_ops));
    SBP_TRY(copy_rate(m, c->in, COPY_ROWS, &out->in));
    SBP_TRY(copy_rate(m, c->out, COPY_ROWS, &out->out));
    if (disk) {
        SBP_TRY(copy_rate(m, c->write, DISK_ROWS, &out->disk_write));
        SBP_TRY(copy_rate(m, c->read, DISK_ROWS, &out->disk_read));
    }
    return time_case(m, c->small, &out->command_seconds);
}

sbp_status sbp_measure_throughput(sbp_arena *arena, sbp_diag *diag, const sbp_target *target,
                                  const sbp_device_class *class, const sbp_device_options *options,
                                  sbp_throughput *inout, double *share) {
    measure m = {.arena = arena, .diag = diag, .class = class};
    sbp_device_options all = *options;
    cases c = {0};
    bool disk = options->offload_dir != NULL;
    SBP_TRY(target->describe(NULL, diag, &m.info));
    m.program = sbp_program_create(arena, "measure");
    m.program->target = target->name;
    m.program->t_max = m.program->chunk = m.program->head_chunk = MANY;
    m.program->s_max = 1;
    SBP_PUSH(arena, m.program->entries, m.program->entry_count, m.program->entry_capacity,
             (sbp_entry){.name = "accumulate"});
    SBP_TRY(add_kernels(&m));
    add_cases(&m, &c, disk);
    if (target->compile)
        SBP_TRY(target->compile(arena, diag, m.program, &all.code, &all.code_bytes));
    SBP_TRY(class->create(&all, diag, &m.device));
    sbp_status status = class->load(m.device, m.program, diag);
    if (status == SBP_OK)
        status = measure_all(&m, &c, disk, inout);
    sbp_device_info info = {0};
    class->info(m.device, &info);
    *share = info.threads > 0 && m.seconds > 0 ? m.processor_seconds / m.seconds / info.threads : 1;
    class->destroy(m.device);
    return status;
}
