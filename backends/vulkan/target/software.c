/* software.c: what a software driver would silently leave unfinished, refused when a plan is made for one. */
#include "backends/vulkan/target/software.h"

#include "backends/vulkan/abi.h"

#include <stdio.h>

/* lavapipe's. */
static const sbp_vulkan_machine machine = {.software = true, .max_local_size = 1024, .shared_bytes = 1 << 15};

/* Through all commands, where they have most rows. */
typedef struct walk {
    const sbp_program *program;
    const sbp_function *function; /* NULL in an entry */
    sbp_position position;
    const sbp_command *worst; /* of those that are too long; NULL: none is */
    int64_t iterations;
} walk;

static sbp_span span_of(const walk *w, const sbp_view *view) {
    sbp_range range;
    if (view->ref == SBP_NO_VIEW)
        return (sbp_span){.space = SBP_SPACE_COUNT};
    if (!sbp_view_resolve(w->program, w->function, view, &w->position, &range))
        range = (sbp_range){0}; /* at sizes that the plan is not for */
    return (sbp_span){.space = SBP_DEVICE,
                      .dtype = sbp_view_dtype(w->program, w->function, view),
                      .rows = range.rows,
                      .cols = view->cols,
                      .stride = view->cols};
}

static void visit(walk *w, const sbp_command *command) {
    sbp_span spans[SBP_MAX_COMMAND_OPERANDS];
    if (command->queue != SBP_QUEUE_COMPUTE)
        return;
    for (int32_t k = 0; k < command->view_count; k++)
        spans[k] = span_of(w, &command->views[k]);
    const sbp_dispatch dispatch = {.command = command,
                                   .kernel = sbp_command_kernel(w->program, command),
                                   .spans = spans,
                                   .span_count = command->view_count};
    if (!sbp_vulkan_too_long(&dispatch, &machine))
        return;
    int64_t iterations = sbp_vulkan_iterations(&dispatch, &machine);
    if (iterations > w->iterations) {
        w->worst = command;
        w->iterations = iterations;
    }
}

/* A chunk whose rows are of one document, and see all that they may. */
static void enter_chunk(walk *w, int32_t table, int64_t i) {
    const sbp_chunk_table *t = &w->program->tables[table];
    sbp_position_set(&w->position, w->program, table, i);
    int64_t *columns = w->position.columns, row0 = columns[SBP_COLUMN_ROW0] * w->program->context;
    for (int32_t k = 0; k < t->window_count; k++) {
        int64_t lo = t->windows[k] > 0 ? row0 + 1 - t->windows[k] : 0;
        columns[SBP_COLUMN_LO + k] = lo > 0 ? lo : 0;
    }
}

static void walk_body(walk *w, const sbp_body *body);

/* Its first chunk, its last, and the last that is whole. */
static void walk_loop(walk *w, const sbp_loop *loop) {
    if (loop->table < 0) {
        walk_body(w, &loop->body);
        return;
    }
    const sbp_position outer = w->position;
    int64_t chunks = sbp_table_rows(w->program, loop->table, &w->position.sizes);
    const int64_t at[] = {0, chunks - 2, chunks - 1};
    for (int k = 0; k < SBP_COUNT(at); k++)
        if (at[k] > 0 || k == 0) {
            enter_chunk(w, loop->table, at[k]);
            walk_body(w, &loop->body);
        }
    w->position = outer;
}

static void walk_body(walk *w, const sbp_body *body) {
    for (int32_t i = 0; i < body->count; i++)
        if (body->nodes[i].kind == SBP_NODE_LOOP)
            walk_loop(w, body->nodes[i].u.loop);
        else if (body->nodes[i].kind == SBP_NODE_COMMAND)
            visit(w, body->nodes[i].u.command);
}

static walk walk_program(const sbp_program *program) {
    walk w = {.program = program};
    w.position.table = -1;
    w.position.sizes = sbp_program_sizes(program, program->t_max, program->s_max);
    for (int32_t f = 0; f < program->function_count; f++) {
        w.function = &program->functions[f];
        walk_body(&w, &program->functions[f].body);
    }
    w.function = NULL;
    for (int32_t e = 0; e < program->entry_count; e++)
        walk_body(&w, &program->entries[e].body);
    return w;
}

/* The most up to `*size` with which nothing of the program is too long; 0: none. It stays there. */
static int64_t shorten(const sbp_program *program, int64_t *size) {
    int64_t fits = 0, most = *size;
    while (fits < most) {
        *size = fits + (most - fits + 1) / 2;
        if (walk_program(program).worst)
            most = *size - 1;
        else
            fits = *size;
    }
    return *size = fits;
}

static sbp_status refuse(const sbp_program *program, const walk *found, sbp_diag *diag) {
    sbp_program p = *program; /* with other sizes */
    char advice[128] = "";
    int length = 0;
    p.chunk = p.head_chunk = 1;
    if (shorten(&p, &p.t_max) > 0) {
        p.chunk = program->chunk;
        shorten(&p, &p.chunk);
        p.head_chunk = program->head_chunk;
        shorten(&p, &p.head_chunk);
        const struct {
            const char *option;
            int64_t size, was;
        } sizes[] = {{"seq-len", p.t_max * p.context, program->t_max * p.context},
                     {"chunk", p.chunk, program->chunk},
                     {"head-chunk", p.head_chunk, program->head_chunk}};
        for (int i = 0; i < SBP_COUNT(sizes); i++)
            if (sizes[i].size < sizes[i].was)
                length += snprintf(advice + length, sizeof advice - (size_t)length, " --%s %lld",
                                   sizes[i].option, (long long)sizes[i].size);
    }
    return sbp_fail(diag, SBP_INPUT,
                    "--arch software: %s would run up to %lld loop iterations in one invocation, and "
                    "software drivers silently stop after %d:%s%s%s use --backend cpu",
                    sbp_command_name(found->worst->kind), (long long)found->iterations,
                    SBP_VULKAN_SOFTWARE_ITERATIONS, length > 0 ? " set" : "", advice,
                    length > 0 ? ", or" : "");
}

sbp_status sbp_vulkan_check_software(const sbp_program *program, sbp_diag *diag) {
    walk found = walk_program(program);
    return found.worst ? refuse(program, &found, diag) : SBP_OK;
}
