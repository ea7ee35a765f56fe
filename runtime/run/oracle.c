/* oracle.c: which commands are compared, and by which loops. */
#include "ir/program/traits.h"
#include "runtime/run/oracle_internal.h"

#include <stdlib.h>

enum { RUNS = 3, RUNS_OF_KERNEL = 6 };
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

/* ---- running ----------------------------------------------------------------------------------------- */

typedef sbp_status (*loops)(oracle_job *job);

/* The loops of each command; a new one does not compile before it has a line here. NULL: not compared. */
#define LOOPS_fill sbp_oracle_simple
#define LOOPS_copy sbp_oracle_simple
#define LOOPS_gemm sbp_oracle_gemm
#define LOOPS_row sbp_oracle_row
#define LOOPS_colsum sbp_oracle_simple
#define LOOPS_gather sbp_oracle_simple
#define LOOPS_scatter sbp_oracle_simple
#define LOOPS_scatter_add sbp_oracle_simple
#define LOOPS_attn_fwd sbp_oracle_attention
#define LOOPS_attn_bwd sbp_oracle_attention
#define LOOPS_conv_rows sbp_oracle_convolution
#define LOOPS_conv_rows_bwd sbp_oracle_convolution
#define LOOPS_delta_rule sbp_oracle_rule
#define LOOPS_delta_rule_bwd sbp_oracle_rule
#define LOOPS_route sbp_oracle_choices
#define LOOPS_expert_order sbp_oracle_choices
#define LOOPS_expert_gemm sbp_oracle_experts
#define LOOPS_expert_gemm_dw sbp_oracle_experts
#define LOOPS_reduce sbp_oracle_simple
#define LOOPS_collective NULL /* of several ranks */
#define LOOPS_fence NULL
static const loops loops_of[SBP_CMD_COUNT] = {
#define COMMAND(id, text, queues, operands, traits, synopsis) LOOPS_##text,
#include "ir/program/commands.def"
#undef COMMAND
};

static sbp_status run_loops(void *user) {
    oracle_job *job = user;
    return loops_of[job->dispatch->command->kind](job);
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
    bool known_kind = loops_of[dispatch->command->kind] != NULL,
         turn = k->runs++ < RUNS && k->work < MOST_WORK;
    if (turn && k->alone && sbp_command_attributes(dispatch->command) == SBP_ATTRIBUTES_ROW)
        turn = o->kernel_runs[dispatch->command->kernel]++ < RUNS_OF_KERNEL;
    g->commands += k->runs == 1;
    if (k->runs == 1 && !known_kind && g->unknown++ == 0)
        g->unknown_kind = sbp_command_name(dispatch->command->kind);
    oracle_job job = {.program = o->program,
                      .names = o->arena,
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
