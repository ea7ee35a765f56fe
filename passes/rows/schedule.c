/* schedule: orders the instructions of every stage, gives values their places and writes the commands.
 *
 * requires  fuse
 * preserves values of all results
 * breaks    stages: from here on there is only the program. No buffer with rows of T is made here but vectors
 * of the objective, and no copy is inserted
 *
 * Order: an instruction runs when everything it reads is there; of those ready, one that frees more memory
 * than it takes goes first (weight gradients, so that their operands can be dropped), else the order of the
 * body stands.
 */
#include "passes/rows/schedule.h"

#include <string.h>

sbp_access sbp_schedule_access(const sbp_instr *instr, int32_t term) {
    if (instr->kind == SBP_CMD_ROW)
        return instr->kernel->operands[term].mode == SBP_RK_IN ? SBP_READ : SBP_WRITE;
    static const struct {
        sbp_command_kind kind;
        const char *modes;
    } table[] = {
#define COMMAND(id, text, operands) {SBP_CMD_##id, operands},
#include "ir/commands.def"
#undef COMMAND
    };
    const char *at = table[instr->kind].modes;
    for (int32_t i = 0; i < term; i++)
        at = strchr(at, ' ') + 1;
    char mode = strchr(at, ':')[1];
    return mode == 'r' ? SBP_READ : mode == 'w' ? SBP_WRITE : SBP_UPDATE;
}

/* ---- dependences ------------------------------------------------------------------------------------- */

typedef struct edges {
    int32_t *list; /* instructions that must run before */
    int32_t count, capacity;
} edges;

static void add_edge(sbp_arena *arena, edges *e, int32_t before, int32_t self) {
    if (before == self)
        return;
    for (int32_t i = 0; i < e->count; i++)
        if (e->list[i] == before)
            return;
    SBP_PUSH(arena, e->list, e->count, e->capacity, before);
}

typedef struct writers {
    int32_t *list;
    int32_t count, capacity;
} writers;

static edges *find_dependences(sbp_scheduler *s) {
    sbp_stage *stage = s->stage;
    sbp_arena *arena = s->p->arena;
    int32_t n = stage->instr_count, values = stage->body->value_count;
    edges *before = SBP_NEW_ARRAY(arena, edges, n + 1);
    writers *written = SBP_NEW_ARRAY(arena, writers, values + 1),
            *read = SBP_NEW_ARRAY(arena, writers, values + 1);
    writers *temp_written = SBP_NEW_ARRAY(arena, writers, stage->temp_count + 1);
    for (int32_t i = 0; i < n; i++) {
        const sbp_instr *instr = &stage->instrs[i];
        for (int32_t t = 0; t < instr->term_count; t++) {
            const sbp_term *term = &instr->terms[t];
            sbp_access access = sbp_schedule_access(instr, t);
            if (term->kind == SBP_TERM_VALUE && access != SBP_READ)
                SBP_PUSH(arena, written[term->value].list, written[term->value].count,
                         written[term->value].capacity, i);
            if (term->kind == SBP_TERM_VALUE && access != SBP_WRITE)
                SBP_PUSH(arena, read[term->value].list, read[term->value].count, read[term->value].capacity,
                         i);
            if (term->kind == SBP_TERM_TEMP && access != SBP_READ)
                SBP_PUSH(arena, temp_written[term->value].list, temp_written[term->value].count,
                         temp_written[term->value].capacity, i);
        }
        for (int d = 0; d < SBP_COUNT(instr->defines); d++)
            if (instr->defines[d] != SBP_NO_VALUE)
                SBP_PUSH(arena, written[instr->defines[d]].list, written[instr->defines[d]].count,
                         written[instr->defines[d]].capacity, i);
    }
    for (int32_t i = 0; i < n; i++) {
        const sbp_instr *instr = &stage->instrs[i];
        for (int32_t t = 0; t < instr->term_count; t++) {
            const sbp_term *term = &instr->terms[t];
            sbp_access access = sbp_schedule_access(instr, t);
            if (term->kind == SBP_TERM_TEMP && access == SBP_READ)
                for (int32_t w = 0; w < temp_written[term->value].count; w++)
                    add_edge(arena, &before[i], temp_written[term->value].list[w], i);
            if (term->kind != SBP_TERM_VALUE || access == SBP_WRITE)
                continue;
            sbp_value from = stage->defined_by[term->value];
            for (int32_t w = 0; w < written[from].count; w++) {
                int32_t writer = written[from].list[w];
                bool both_update = access == SBP_UPDATE && writer > i; /* updates keep their order */
                if (!both_update)
                    add_edge(arena, &before[i], writer, i);
            }
        }
        for (int a = 0; a < SBP_COUNT(instr->after); a++)
            if (instr->after[a] != SBP_NO_VALUE)
                for (int32_t w = 0; w < written[instr->after[a]].count; w++)
                    add_edge(arena, &before[i], written[instr->after[a]].list[w], i);
    }
    /* A result that takes the place of an argument waits for the argument's readers. */
    for (int32_t a = 0; a < stage->body->arg_count; a++) {
        sbp_value arg = stage->body->args[a];
        for (int32_t v = 0; v < values; v++)
            if (v != arg && written[v].count > 0 &&
                sbp_view_same_start(&stage->places[arg], &stage->places[v]))
                for (int32_t w = 0; w < written[v].count; w++)
                    for (int32_t r = 0; r < read[arg].count; r++)
                        add_edge(arena, &before[written[v].list[w]], read[arg].list[r], written[v].list[w]);
    }
    return before;
}

/* ---- order ------------------------------------------------------------------------------------------- */

static int64_t bytes_of(const sbp_scheduler *s, sbp_value v) {
    const sbp_value_info *info = &s->stage->body->values[v];
    if (info->role != SBP_VALUE_OP || s->stage->places[v].ref != SBP_NO_VIEW)
        return 0; /* memory that is there anyway */
    sbp_extent rows;
    int64_t cols, n = 0;
    sbp_lower_shape(&info->type, s->stage->rows, &rows, &cols);
    sbp_sizes sizes = sbp_program_sizes(s->p->program, s->p->program->t_max, s->p->program->s_max);
    if (!sbp_extent_eval(rows, &sizes, &n))
        return 0;
    return n * cols * sbp_dtype_bytes(info->type.dtype);
}

/* Memory an instruction takes minus what is free after it. */
static int64_t growth(const sbp_scheduler *s, const sbp_instr *instr, const int32_t *readers_left,
                      const bool *there) {
    int64_t bytes = 0;
    for (int32_t t = 0; t < instr->term_count; t++) {
        const sbp_term *term = &instr->terms[t];
        if (term->kind != SBP_TERM_VALUE)
            continue;
        bool repeated = false;
        for (int32_t u = 0; u < t; u++)
            repeated |= instr->terms[u].kind == SBP_TERM_VALUE && instr->terms[u].value == term->value;
        if (repeated)
            continue;
        if (!there[term->value])
            bytes += bytes_of(s, term->value);
        else if (readers_left[term->value] == 1)
            bytes -= bytes_of(s, term->value);
    }
    return bytes;
}

static bool reads(const sbp_instr *instr, sbp_value v) {
    for (int32_t t = 0; t < instr->term_count; t++)
        if (instr->terms[t].kind == SBP_TERM_VALUE && instr->terms[t].value == v)
            return true;
    return false;
}

static sbp_status choose_order(sbp_scheduler *s) {
    sbp_stage *stage = s->stage;
    sbp_arena *arena = s->p->arena;
    int32_t n = stage->instr_count;
    edges *before = find_dependences(s);
    int32_t *waiting = SBP_NEW_ARRAY(arena, int32_t, n + 1),
            *left = SBP_NEW_ARRAY(arena, int32_t, stage->body->value_count + 1);
    bool *done = SBP_NEW_ARRAY(arena, bool, n + 1),
         *there = SBP_NEW_ARRAY(arena, bool, stage->body->value_count + 1);
    for (int32_t i = 0; i < n; i++) {
        waiting[i] = before[i].count;
        for (int32_t v = 0; v < stage->body->value_count; v++)
            left[v] += reads(&stage->instrs[i], v);
    }
    s->order = SBP_NEW_ARRAY(arena, int32_t, n + 1);
    s->time = SBP_NEW_ARRAY(arena, int32_t, n + 1);
    for (int32_t t = 0; t < n; t++) {
        int32_t best = -1;
        int64_t best_growth = 0;
        for (int32_t i = 0; i < n; i++) {
            if (done[i] || waiting[i] > 0)
                continue;
            int64_t g = growth(s, &stage->instrs[i], left, there);
            bool better =
                best < 0 || (g < 0 && g < best_growth) ||
                (g >= 0 && best_growth >= 0 && stage->instrs[i].position < stage->instrs[best].position);
            if (better) {
                best = i;
                best_growth = g;
            }
        }
        if (best < 0)
            return sbp_fail(s->p->diag, SBP_INTERNAL, "schedule: the instructions of %s wait for each other",
                            stage->name);
        done[best] = true;
        s->order[t] = best;
        s->time[best] = t;
        for (int32_t k = 0; k < stage->instrs[best].term_count; k++) {
            const sbp_term *term = &stage->instrs[best].terms[k];
            if (term->kind != SBP_TERM_VALUE)
                continue;
            there[term->value] = true;
            left[term->value]--;
        }
        for (int32_t i = 0; i < n; i++)
            for (int32_t b = 0; b < before[i].count; b++)
                waiting[i] -= before[i].list[b] == best;
    }
    return SBP_OK;
}

/* ---- commands ---------------------------------------------------------------------------------------- */

static sbp_view scratch_view(sbp_scheduler *s, int32_t home) {
    sbp_home *h = &s->homes[home];
    if (h->buffer < 0) {
        const sbp_value_info *info = &s->stage->body->values[h->tenants[0]];
        sbp_extent rows;
        int64_t cols;
        sbp_lower_shape(&info->type, s->stage->rows, &rows, &cols);
        bool vector = rows.c[SBP_T] != 0 || rows.c[SBP_S] != 0;
        h->buffer = sbp_lower_buffer(
            s->p,
            sbp_arena_printf(s->p->arena, "%s.%s", s->p->program->functions[s->function].name, info->name),
            vector ? SBP_ROLE_VECTOR : SBP_ROLE_SCRATCH, SBP_DEVICE, info->type.dtype, 1, rows, cols,
            s->function);
    }
    return sbp_view_buffer(s->p->program, h->buffer, 0);
}

static sbp_view temp_view(sbp_scheduler *s, int32_t temp) {
    const sbp_temp *t = &s->stage->temps[temp];
    if (s->temp_buffers[temp] < 0) {
        int64_t chunk = s->stage->rows == SBP_H ? s->p->program->head_chunk : s->p->program->chunk;
        sbp_extent rows = t->blocks ? sbp_extent_const(sbp_ceil_div(chunk, SBP_PARTIAL_ROWS))
                                    : sbp_extent_symbol(s->stage->rows, 1);
        const char *name = sbp_arena_printf(s->p->arena, "%s.%s", s->p->program->functions[s->function].name,
                                            t->blocks ? "partial" : "work");
        s->temp_buffers[temp] =
            sbp_lower_buffer(s->p, name, t->blocks ? SBP_ROLE_SCRATCH : SBP_ROLE_WORKSPACE, SBP_DEVICE,
                             t->dtype, 1, rows, t->cols, s->function);
    }
    sbp_view whole = sbp_view_buffer(s->p->program, s->temp_buffers[temp], 0);
    return t->blocks ? sbp_view_blocks(whole) : whole;
}

static void emit_command(sbp_scheduler *s, sbp_body *body, const sbp_instr *instr) {
    sbp_command *command = sbp_lower_command(s->p, body, instr->kind);
    command->u = instr->attrs.u;
    command->view_count = instr->term_count;
    for (int32_t t = 0; t < instr->term_count; t++) {
        const sbp_term *term = &instr->terms[t];
        if (term->kind == SBP_TERM_VIEW)
            command->views[t] = term->view;
        else if (term->kind == SBP_TERM_TEMP)
            command->views[t] = temp_view(s, term->value);
        else if (term->kind == SBP_TERM_VALUE)
            command->views[t] = s->homes[s->home_of[term->value]].view.ref != SBP_NO_VIEW
                                    ? s->homes[s->home_of[term->value]].view
                                    : scratch_view(s, s->home_of[term->value]);
    }
    if (instr->kind != SBP_CMD_ROW)
        return;
    command->scalar_count = instr->kernel->scalar_count;
    command->scalars = SBP_NEW_ARRAY(s->p->arena, int32_t, command->scalar_count);
    for (int32_t i = 0; i < command->scalar_count; i++)
        command->scalars[i] = sbp_program_add_scalar(s->p->arena, s->p->program, instr->kernel->scalars[i]);
    command->kernel = sbp_program_add_kernel(s->p->arena, s->p->program, instr->kernel);
}

static sbp_status schedule_stage(sbp_pipeline *p, int32_t function, sbp_stage *stage, sbp_body *body) {
    sbp_scheduler s = {.p = p, .stage = stage, .function = function};
    SBP_TRY(choose_order(&s));
    SBP_TRY(sbp_place_values(&s));
    s.temp_buffers = SBP_NEW_ARRAY(p->arena, int32_t, stage->temp_count + 1);
    for (int32_t t = 0; t < stage->temp_count; t++)
        s.temp_buffers[t] = -1;
    sbp_body inner = {0};
    sbp_body *into = stage->table >= 0 ? &inner : body;
    for (int32_t t = 0; t < stage->instr_count; t++)
        emit_command(&s, into, &stage->instrs[s.order[t]]);
    if (stage->table >= 0 && inner.count > 0) {
        sbp_loop *loop = SBP_NEW(p->arena, sbp_loop);
        *loop =
            (sbp_loop){.table = stage->table, .scalar = -1, .descending = stage->descending, .body = inner};
        sbp_node node = {.kind = SBP_NODE_LOOP, .u.loop = loop};
        SBP_PUSH(p->arena, body->nodes, body->count, body->capacity, node);
    }
    return SBP_OK;
}

sbp_status sbp_pass_schedule(sbp_pipeline *p) {
    if (!p->program)
        return sbp_fail(
            p->diag, SBP_INTERNAL,
            "schedule: there is nothing to schedule: the streambp pass did not make loops and entries");
    for (int32_t i = 0; i < p->lowering->function_count; i++) {
        sbp_function_lowering *f = p->lowering->functions[i];
        sbp_body body = {0};
        for (int32_t j = 0; j < f->item_count; j++)
            if (f->items[j].stage)
                SBP_TRY(schedule_stage(p, f->function, f->items[j].stage, &body));
            else
                SBP_PUSH(p->arena, body.nodes, body.count, body.capacity, f->items[j].node);
        p->program->functions[f->function].body = body;
    }
    return SBP_OK;
}
