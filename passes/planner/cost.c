/* cost.c: time and work of a program. Products run at the target's rate, less what short chunks lose;
 * attention is counted by the pairs of rows that see each other; everything else by the bytes it moves. */
#include "passes/planner/cost.h"

#include <string.h>

typedef struct meter {
    const sbp_program *program;
    const sbp_target_info *target;
    sbp_position position;
    const sbp_function *function;
    double seconds[2], flops;
    int64_t commands;
} meter;

static double view_elems(const meter *m, const sbp_view *view) {
    sbp_range range;
    if (view->ref == SBP_NO_VIEW || !sbp_view_resolve(m->program, m->function, view, &m->position, &range))
        return 0;
    return (double)range.rows * (double)view->cols;
}

static sbp_dtype view_dtype(const meter *m, const sbp_view *view) {
    if (view->ref >= 0)
        return m->program->buffers[view->ref].dtype;
    return m->function ? m->function->formals[~view->ref].dtype
                       : SBP_F32; /* formals only stand in functions */
}

static double view_bytes(const meter *m, const sbp_view *view) {
    return view->ref == SBP_NO_VIEW ? 0 : view_elems(m, view) * (double)sbp_dtype_bytes(view_dtype(m, view));
}

/* In one document; q: the rows of the chunk. */
static double attention_pairs(const meter *m, const sbp_view *q, int64_t window) {
    sbp_range range;
    if (!sbp_view_resolve(m->program, m->function, q, &m->position, &range))
        return 0;
    return sbp_attention_pairs(m->position.table >= 0 ? m->position.columns[SBP_COLUMN_ROW0] : 0, range.rows,
                               window);
}

static void measure_command(meter *m, const sbp_command *c, double times) {
    const sbp_target_info *t = m->target;
    double seconds = t->command_seconds, flops = 0, bytes = 0;
    for (int32_t i = 0; i < c->view_count; i++)
        bytes += view_bytes(m, &c->views[i]);
    if (c->kind == SBP_CMD_GEMM) {
        double d = view_elems(m, &c->views[0]), a = view_elems(m, &c->views[1]),
               b = view_elems(m, &c->views[2]);
        double depth = c->views[0].cols > 0
                           ? (c->u.gemm.tb ? (double)c->views[2].cols : b / (double)c->views[0].cols)
                           : 0;
        double rows = c->u.gemm.ta ? depth : c->views[1].cols > 0 ? a / (double)c->views[1].cols : 0;
        flops = 2 * d * depth;
        seconds += rows > 0 ? flops / t->gemm_flops * (rows + t->gemm_half_rows) / rows : 0;
    } else if (c->kind == SBP_CMD_ATTN_FWD || c->kind == SBP_CMD_ATTN_BWD) {
        const sbp_attention_attrs *a = &c->u.attention;
        bool backward = c->kind == SBP_CMD_ATTN_BWD;
        flops = sbp_attention_flops(attention_pairs(m, &c->views[backward ? 3 : 2], a->window),
                                    (double)(a->heads * a->d_qk), (double)(a->heads * a->d_v), backward);
        seconds += flops / t->attention_flops;
    } else if (c->kind == SBP_CMD_COPY && c->queue != SBP_QUEUE_COMPUTE) {
        seconds += bytes / 2 / t->host_link_bytes;
    } else if (c->kind != SBP_CMD_FENCE) {
        seconds += bytes / t->memory_bytes;
    }
    m->seconds[c->queue != SBP_QUEUE_COMPUTE] += seconds * times;
    m->flops += flops * times;
    m->commands += (int64_t)times;
}

static void measure_body(meter *m, const sbp_body *body, double times);

/* The first chunks are alike but for attention, which grows along the sequence: measure the loop at its
 * first and last full chunk and the short one, and take the mean (attention is linear in the position). */
static void measure_loop(meter *m, const sbp_loop *loop, double times) {
    if (loop->table < 0) {
        measure_body(m, &loop->body, times);
        return;
    }
    int64_t rows = sbp_table_rows(m->program, loop->table, &m->position.sizes);
    sbp_position outer = m->position;
    int64_t samples[2] = {0, rows > 1 ? rows - 2 : 0}, full = rows > 1 ? rows - 1 : 0;
    for (int i = 0; i < 2 && full > 0; i++) {
        sbp_position_set(&m->position, m->program, loop->table, samples[i]);
        measure_body(m, &loop->body, times * (double)full / 2);
    }
    if (rows > 0) {
        sbp_position_set(&m->position, m->program, loop->table, rows - 1);
        measure_body(m, &loop->body, times);
    }
    m->position = outer;
}

static void measure_body(meter *m, const sbp_body *body, double times) {
    for (int32_t i = 0; i < body->count; i++)
        if (body->nodes[i].kind == SBP_NODE_COMMAND)
            measure_command(m, body->nodes[i].u.command, times);
        else if (body->nodes[i].kind == SBP_NODE_LOOP)
            measure_loop(m, body->nodes[i].u.loop, times);
}

static bool ends_with(const char *name, const char *suffix) {
    size_t n = strlen(name), m = strlen(suffix);
    return n >= m && strcmp(name + n - m, suffix) == 0;
}

/* suffix NULL: everything, the entry's own commands included. */
static void measure_entry(sbp_arena *arena, const sbp_program *program, const char *name, const char *suffix,
                          int64_t t, const sbp_target_info *target, sbp_cost *out) {
    const sbp_entry *entry = sbp_program_find_entry(program, name);
    double *calls = SBP_NEW_ARRAY(arena, double, program->function_count + 1);
    meter m = {.program = program, .target = target};
    m.position.sizes = sbp_program_sizes(program, t, 1);
    m.position.table = -1;
    *out = (sbp_cost){0};
    if (!entry)
        return;
    if (!suffix)
        measure_body(&m, &entry->body, 1);
    for (int32_t i = 0; i < entry->body.count; i++)
        if (entry->body.nodes[i].kind == SBP_NODE_CALL)
            calls[entry->body.nodes[i].u.call->function]++;
    for (int32_t f = 0; f < program->function_count; f++) {
        m.function = &program->functions[f];
        if (calls[f] > 0 && (!suffix || ends_with(m.function->name, suffix)))
            measure_body(&m, &m.function->body, calls[f]);
    }
    out->seconds = m.seconds[0] > m.seconds[1] ? m.seconds[0] : m.seconds[1];
    out->flops = m.flops;
    out->commands = m.commands;
}

void sbp_cost_functions(sbp_arena *arena, const sbp_program *program, const char *entry, const char *suffix,
                        int64_t t, const sbp_target_info *target, sbp_cost *out) {
    measure_entry(arena, program, entry, suffix, t, target, out);
}

const char *sbp_cost_training_entry(const sbp_program *program) {
    static const char *const names[] = {"step", "accumulate"};
    for (int i = 0; i < SBP_COUNT(names); i++)
        if (sbp_program_find_entry(program, names[i]))
            return names[i];
    return "score";
}

void sbp_cost_step(sbp_arena *arena, const sbp_program *program, int64_t t, const sbp_target_info *target,
                   sbp_cost *out) {
    sbp_cost update;
    measure_entry(arena, program, sbp_cost_training_entry(program), NULL, t, target, out);
    measure_entry(arena, program, "update", NULL, t, target, &update);
    out->seconds += update.seconds;
    out->flops += update.flops;
    out->commands += update.commands;
}
