/* oracle.c: which commands are compared, reading their operands, and what is kept of it. */
#include "runtime/run/oracle_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS = 3, RUNS_OF_KERNEL = 6, PIECE_BYTES = 4 << 20, MANY_ROWS = 4096 };
static const double MOST_WORK = 1e9; /* of a command's loops, after which it is not compared again */

/* A command of the program, by its address. */
typedef struct known {
    const sbp_command *command;
    int32_t group, runs;
    double work; /* of loops so far */
    bool alone;  /* of an entry, where many do the same to other parameters */
} known;

struct sbp_oracle {
    sbp_arena *arena;
    const sbp_program *program;
    bool tf32;
    known *commands;
    int32_t count, capacity;
    sbp_oracle_group *groups;
    int32_t group_count;
    int32_t *kernel_runs; /* [kernel_count] of commands of entries */
};

/* ---- making it --------------------------------------------------------------------------------------- */

static void add_body(sbp_oracle *o, const sbp_body *body, int32_t group, bool alone) {
    for (int32_t n = 0; n < body->count; n++) {
        const sbp_node *node = &body->nodes[n];
        if (node->kind == SBP_NODE_LOOP)
            add_body(o, &node->u.loop->body, group, alone);
        else if (node->kind == SBP_NODE_COMMAND)
            SBP_PUSH(o->arena, o->commands, o->count, o->capacity,
                     (known){.command = node->u.command, .group = group, .alone = alone});
    }
}

static int by_address(const void *a, const void *b) {
    uintptr_t x = (uintptr_t)((const known *)a)->command, y = (uintptr_t)((const known *)b)->command;
    return x < y ? -1 : x > y;
}

static sbp_status prepare(void *user) {
    sbp_oracle *o = user;
    const sbp_program *p = o->program;
    o->groups = SBP_NEW_ARRAY(o->arena, sbp_oracle_group, p->function_count + p->entry_count + 1);
    o->kernel_runs = SBP_NEW_ARRAY(o->arena, int32_t, p->kernel_count + 1);
    for (int32_t f = 0; f < p->function_count; f++) {
        o->groups[o->group_count].name = p->functions[f].name;
        add_body(o, &p->functions[f].body, o->group_count++, false);
    }
    for (int32_t e = 0; e < p->entry_count; e++) {
        o->groups[o->group_count].name = p->entries[e].name;
        add_body(o, &p->entries[e].body, o->group_count++, true);
    }
    qsort(o->commands, (size_t)o->count, sizeof *o->commands, by_address);
    return SBP_OK;
}

sbp_status sbp_oracle_create(sbp_diag *diag, const sbp_program *program, bool tf32, sbp_oracle **out) {
    sbp_arena *arena = sbp_arena_create();
    sbp_oracle *o = sbp_malloc(sizeof *o);
    if (!arena || !o) {
        sbp_arena_destroy(arena);
        free(o);
        return sbp_fail(diag, SBP_MACHINE, "out of memory for comparisons");
    }
    *o = (sbp_oracle){.arena = arena, .program = program, .tf32 = tf32};
    sbp_status status = sbp_guard(arena, diag, prepare, o);
    if (status != SBP_OK)
        sbp_oracle_destroy(o);
    else
        *out = o;
    return status;
}

void sbp_oracle_destroy(sbp_oracle *o) {
    if (!o)
        return;
    sbp_arena_destroy(o->arena);
    free(o);
}

const sbp_oracle_group *sbp_oracle_group_at(const sbp_oracle *o, int32_t index) {
    for (int32_t g = 0; g < o->group_count; g++)
        if (o->groups[g].commands > 0 && index-- == 0)
            return &o->groups[g];
    return NULL;
}

/* ---- operands ---------------------------------------------------------------------------------------- */

sbp_status sbp_oracle_fetch_raw(oracle_job *job, int32_t operand, int64_t row, int64_t rows, int64_t col,
                                int64_t cols, void *out) {
    const sbp_span *s = &job->dispatch->spans[operand];
    int64_t unit = sbp_dtype_bytes(s->dtype), offset = s->offset + (row * s->stride + col) * unit;
    unsigned char *to = out, *piece = NULL;
    bool mapped = job->class->map && job->class->map(job->device, s->space, s->offset);
    if (rows <= 1 || cols == s->stride)
        return job->class->read(job->device, s->space, offset, out, rows * cols * unit, job->diag);
    int64_t each = mapped || rows <= MANY_ROWS ? 1 : PIECE_BYTES / (s->stride * unit);
    if (each > 1 && job->piece_bytes < each * s->stride * unit) {
        job->piece_bytes = each * s->stride * unit;
        job->piece = sbp_arena_array(job->arena, (size_t)each, (size_t)(s->stride * unit));
    }
    if (each > 1)
        piece = job->piece;
    for (int64_t r = 0; r<rows; r += each> 1 ? each : 1) {
        int64_t n = each > 1 ? (rows - r < each ? rows - r : each) : 1;
        int64_t at = offset + r * s->stride * unit;
        if (!piece) {
            SBP_TRY(job->class->read(job->device, s->space, at, to, cols * unit, job->diag));
            to += cols * unit;
            continue;
        }
        SBP_TRY(job->class->read(job->device, s->space, at, piece, ((n - 1) * s->stride + cols) * unit,
                                 job->diag));
        for (int64_t k = 0; k < n; k++, to += cols * unit)
            memcpy(to, piece + k * s->stride * unit, (size_t)(cols * unit));
    }
    return SBP_OK;
}

sbp_status sbp_oracle_fetch(oracle_job *job, int32_t operand, int64_t row, int64_t rows, int64_t col,
                            int64_t cols, double **out) {
    sbp_dtype dtype = job->dispatch->spans[operand].dtype;
    int64_t count = rows * cols;
    void *raw = sbp_arena_array(job->arena, (size_t)(count + 1), (size_t)sbp_dtype_bytes(dtype));
    *out = sbp_arena_array(job->arena, (size_t)(count + 1), sizeof(double));
    if (count > 0)
        SBP_TRY(sbp_oracle_fetch_raw(job, operand, row, rows, col, cols, raw));
    for (int64_t i = 0; i < count; i++)
        (*out)[i] = sbp_element_get(raw, dtype, i);
    return SBP_OK;
}

sbp_status sbp_oracle_submit(oracle_job *job) {
    job->ran = true;
    SBP_TRY(job->class->submit(job->device, job->dispatch, job->diag));
    return job->class->wait(job->device, job->diag);
}

/* ---- samples, sums ----------------------------------------------------------------------------------- */

oracle_runs sbp_oracle_choose(int64_t count, int64_t each, int64_t align) {
    oracle_runs runs = {0};
    if (count <= 3 * each) {
        runs.count[0] = count;
        runs.runs = count > 0;
        return runs;
    }
    const int64_t firsts[] = {0, count / 2, count - each};
    for (int32_t i = 0; i < 3; i++) {
        runs.first[i] = i == 2 ? sbp_ceil_div(count - each, align) * align : firsts[i] / align * align;
        runs.count[i] = count - runs.first[i] < each ? count - runs.first[i] : each;
        runs.runs++;
    }
    return runs;
}

double sbp_oracle_unit(sbp_dtype dtype) {
    return dtype == SBP_F64    ? 0x1p-53
           : dtype == SBP_F32  ? 0x1p-24
           : dtype == SBP_F16  ? 0x1p-11
           : dtype == SBP_BF16 ? 0x1p-9
                               : 0;
}

double sbp_oracle_draw(uint64_t x) {
    x = x * 0x9e3779b97f4a7c15u + 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (double)((x ^ (x >> 31)) >> 11) * 0x1p-52 - 1;
}

void sbp_oracle_note(oracle_sum *sum, double truth, double rounded, double got, sbp_dtype dtype) {
    if (!isfinite(truth) && (truth == got || (isnan(truth) && isnan(got))))
        return;
    double off = got - truth, rounding = rounded - truth, own = sbp_round_to(dtype, truth) - truth;
    double unit = sbp_oracle_unit(dtype) * truth; /* the result's own, at least */
    sum->found += isfinite(got) && isfinite(truth) ? off * off : INFINITY;
    sum->rounding += rounding * rounding + own * own + unit * unit / 3;
    sum->size += truth * truth;
}

void sbp_oracle_judge(const oracle_job *job, const oracle_sum *sum, const char *operand) {
    sbp_oracle_group *g = job->group;
    const sbp_command *c = job->dispatch->command;
    /* numbers below the least normal one are 0 on some devices */
    double found = sqrt(sum->found), rounding = sqrt(sum->rounding) + 0x1p-120, size = sqrt(sum->size);
    double over = found / rounding;
    if (isnan(over))
        over = INFINITY;
    if (g->what && over <= g->over)
        return;
    g->over = over;
    g->found = size > 0 ? found / size : found;
    g->rounding = size > 0 ? rounding / size : rounding;
    g->what = sbp_arena_printf(job->oracle->arena, "%s of %s%s%s", operand, sbp_command_name(c->kind),
                               c->kind == SBP_CMD_ROW ? " " : "",
                               c->kind == SBP_CMD_ROW ? job->dispatch->kernel->name : "");
}

oracle_expected *sbp_oracle_expect(oracle_job *job, int32_t operand, int64_t row, int64_t rows, int64_t col,
                                   int64_t cols) {
    if (job->dispatch->spans[operand].space == SBP_SPACE_COUNT)
        return NULL;
    oracle_expected *e = SBP_NEW(job->arena, oracle_expected);
    *e = (oracle_expected){.operand = operand, .row = row, .rows = rows, .col = col, .cols = cols};
    e->exact = SBP_NEW_ARRAY(job->arena, double, rows *cols + 1);
    e->rounded = SBP_NEW_ARRAY(job->arena, double, rows *cols + 1);
    SBP_PUSH(job->arena, job->expected, job->expected_count, job->expected_capacity, e);
    return e;
}

sbp_status sbp_oracle_settle(oracle_job *job) {
    sbp_command_operand operands[SBP_MAX_COMMAND_OPERANDS];
    oracle_sum sums[SBP_MAX_COMMAND_OPERANDS] = {{0}};
    bool noted[SBP_MAX_COMMAND_OPERANDS] = {false};
    int32_t count = sbp_command_operands(job->oracle->program, job->dispatch->command, operands);
    SBP_TRY(sbp_oracle_submit(job));
    for (int32_t i = 0; i < job->expected_count; i++) {
        const oracle_expected *e = job->expected[i];
        sbp_dtype dtype = job->dispatch->spans[e->operand].dtype;
        double *got;
        SBP_TRY(sbp_oracle_fetch(job, e->operand, e->row, e->rows, e->col, e->cols, &got));
        for (int64_t k = 0; k < e->rows * e->cols; k++)
            sbp_oracle_note(&sums[e->operand], e->exact[k], e->rounded[k], got[k], dtype);
        noted[e->operand] = true;
    }
    for (int32_t k = 0; k < count; k++)
        if (noted[k])
            sbp_oracle_judge(job, &sums[k], operands[k].name);
    return SBP_OK;
}

/* ---- running ----------------------------------------------------------------------------------------- */

typedef sbp_status (*loops)(oracle_job *job);

static loops loops_of(sbp_command_kind kind) {
    switch (kind) {
    case SBP_CMD_GEMM:
        return sbp_oracle_gemm;
    case SBP_CMD_ROW:
        return sbp_oracle_row;
    case SBP_CMD_ATTN_FWD:
    case SBP_CMD_ATTN_BWD:
        return sbp_oracle_attention;
    case SBP_CMD_EXPERT_GEMM:
    case SBP_CMD_EXPERT_GEMM_DW:
        return sbp_oracle_experts;
    case SBP_CMD_DELTA_RULE:
    case SBP_CMD_DELTA_RULE_BWD:
    case SBP_CMD_SSD:
    case SBP_CMD_SSD_BWD:
        return sbp_oracle_rule;
    case SBP_CMD_CONV_ROWS:
    case SBP_CMD_CONV_ROWS_BWD:
        return sbp_oracle_convolution;
    case SBP_CMD_ROUTE:
    case SBP_CMD_EXPERT_ORDER:
        return sbp_oracle_choices;
    case SBP_CMD_FILL:
    case SBP_CMD_COPY:
    case SBP_CMD_GATHER:
    case SBP_CMD_SCATTER_ADD:
    case SBP_CMD_COLSUM:
    case SBP_CMD_REDUCE:
        return sbp_oracle_simple;
    case SBP_CMD_COLLECTIVE: /* of several ranks, which are not compared */
    case SBP_CMD_FENCE:
    case SBP_CMD_COUNT:
        break;
    }
    return NULL;
}

static sbp_status run_loops(void *user) {
    oracle_job *job = user;
    return loops_of(job->dispatch->command->kind)(job);
}

static sbp_status compare(oracle_job *job) {
    job->arena = sbp_arena_create();
    if (!job->arena)
        return sbp_fail(job->diag, SBP_MACHINE, "out of memory for comparisons");
    sbp_status status = sbp_guard(job->arena, job->diag, run_loops, job);
    sbp_arena_destroy(job->arena);
    return status;
}

sbp_status sbp_oracle_run(sbp_oracle *o, const sbp_device_class *class, sbp_device *device,
                          const sbp_dispatch *dispatch, sbp_diag *diag) {
    const known key = {.command = dispatch->command};
    known *k = bsearch(&key, o->commands, (size_t)o->count, sizeof *o->commands, by_address);
    if (!k)
        return class->submit(device, dispatch, diag);
    sbp_oracle_group *g = &o->groups[k->group];
    bool known_kind = loops_of(dispatch->command->kind) != NULL,
         turn = k->runs++ < RUNS && k->work < MOST_WORK;
    if (turn && k->alone && dispatch->command->kind == SBP_CMD_ROW)
        turn = o->kernel_runs[dispatch->command->kernel]++ < RUNS_OF_KERNEL;
    g->commands += k->runs == 1;
    if (k->runs == 1 && !known_kind && g->unknown++ == 0)
        g->unknown_kind = sbp_command_name(dispatch->command->kind);
    oracle_job job = {.oracle = o,
                      .group = g,
                      .class = class,
                      .device = device,
                      .dispatch = dispatch,
                      .diag = diag,
                      .tf32 = o->tf32};
    if (turn && known_kind) {
        SBP_TRY(compare(&job));
        k->work += job.work;
        g->compared += !job.passed_over;
    }
    return job.ran ? SBP_OK : class->submit(device, dispatch, diag);
}
