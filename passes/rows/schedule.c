/* schedule: orders the instructions of every stage, gives values their places and writes the commands.
 *
 * requires  fuse
 * gives     bodies of the program's functions
 * preserves values of all results
 * breaks    stages: from here on there is only the program. No buffer with rows of T is made here but vectors
 * of the objective, and no copy is inserted
 *
 * Order: an instruction runs when everything it reads is there; of those ready, one that frees more memory
 * than it takes goes first (weight gradients, so that their operands can be dropped), else the order of the
 * body stands.
 */
#include "passes/rows/schedule.h"

#include "passes/lower/memory.h"

#include <string.h>

/* ---- dependences ------------------------------------------------------------------------------------- */

typedef struct edges {
    int32_t *list; /* instructions that must run after it */
    int32_t count, capacity;
} edges;

/* `self` waits for `before`; it may do so several times. */
static void add_edge(sbp_arena *arena, edges *after, int32_t *waiting, int32_t before, int32_t self) {
    if (before == self)
        return;
    SBP_PUSH(arena, after[before].list, after[before].count, after[before].capacity, self);
    waiting[self]++;
}

typedef struct writers {
    int32_t *list;
    int32_t count, capacity;
} writers;

/* waiting: per instruction, how many edges lead to it. */
static edges *find_dependences(sbp_scheduler *s, int32_t *waiting) {
    sbp_stage *stage = s->stage;
    sbp_arena *arena = s->p->arena;
    int32_t n = stage->instr_count, values = stage->body->value_count;
    edges *after = SBP_NEW_ARRAY(arena, edges, n + 1);
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
                    add_edge(arena, after, waiting, temp_written[term->value].list[w], i);
            if (term->kind != SBP_TERM_VALUE || access == SBP_WRITE)
                continue;
            sbp_value from = stage->defined_by[term->value];
            for (int32_t w = 0; w < written[from].count; w++) {
                int32_t writer = written[from].list[w];
                bool both_update = access == SBP_UPDATE && writer > i; /* updates keep their order */
                if (!both_update)
                    add_edge(arena, after, waiting, writer, i);
            }
        }
        for (int a = 0; a < SBP_COUNT(instr->after); a++)
            if (instr->after[a] != SBP_NO_VALUE)
                for (int32_t w = 0; w < written[instr->after[a]].count; w++)
                    add_edge(arena, after, waiting, written[instr->after[a]].list[w], i);
    }
    for (int32_t i = 0; i < stage->order_count; i++)
        add_edge(arena, after, waiting, stage->orders[i].before, stage->orders[i].after);
    /* A result that takes the place of an argument waits for the argument's readers. */
    int32_t placed = 0;
    sbp_value *results = SBP_NEW_ARRAY(arena, sbp_value, values + 1);
    for (int32_t v = 0; v < values; v++)
        if (written[v].count > 0 && stage->places[v].ref != SBP_NO_VIEW)
            results[placed++] = v;
    for (int32_t a = 0; a < stage->body->arg_count; a++) {
        sbp_value arg = stage->body->args[a];
        for (int32_t p = 0; p < placed && read[arg].count > 0; p++)
            if (results[p] != arg && sbp_view_same_start(&stage->places[arg], &stage->places[results[p]]))
                for (int32_t w = 0; w < written[results[p]].count; w++)
                    for (int32_t r = 0; r < read[arg].count; r++)
                        add_edge(arena, after, waiting, read[arg].list[r], written[results[p]].list[w]);
    }
    return after;
}

/* ---- order ------------------------------------------------------------------------------------------- */

static int64_t bytes_of(const sbp_scheduler *s, const sbp_sizes *sizes, sbp_value v) {
    const sbp_value_info *info = &s->stage->body->values[v];
    if (info->role != SBP_VALUE_OP || s->stage->places[v].ref != SBP_NO_VIEW)
        return 0; /* memory that is there anyway */
    sbp_extent rows;
    int64_t cols, n = 0;
    sbp_lower_shape(&info->type, s->stage->rows, &rows, &cols);
    if (!sbp_extent_eval(rows, sizes, &n))
        return 0;
    return n * cols * sbp_dtype_bytes(info->type.dtype);
}

/* An instruction that could run next, as it was when it was put there. */
typedef struct ready {
    int64_t growth;
    int32_t position, instr;
} ready;

typedef struct ordering {
    sbp_scheduler *s;
    int64_t *bytes;   /* per value */
    int32_t *left;    /* per value: readers and writers to come */
    bool *there;      /* per value */
    edges *users;     /* per value: instructions that name it, each once */
    int32_t *waiting; /* per instruction: edges from instructions that did not run yet */
    int64_t *growth;  /* per instruction: as last put into the heap */
    bool *done;
    ready *heap; /* the first is the best; what changed was put there again */
    int32_t count, capacity;
} ordering;

/* Memory an instruction takes minus what is free after it. */
static int64_t growth(const ordering *o, const sbp_instr *instr) {
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
        if (!o->there[term->value])
            bytes += o->bytes[term->value];
        else if (o->left[term->value] == 1)
            bytes -= o->bytes[term->value];
    }
    return bytes;
}

/* What frees most goes first; where nothing is freed, the order of the body. */
static bool is_better(const ready *a, const ready *b) {
    int64_t x = a->growth < 0 ? a->growth : 0, y = b->growth < 0 ? b->growth : 0;
    if (x != y)
        return x < y;
    if (x == 0 && a->position != b->position)
        return a->position < b->position;
    return a->instr < b->instr;
}

static void put(ordering *o, int32_t instr) {
    o->growth[instr] = growth(o, &o->s->stage->instrs[instr]);
    ready r = {o->growth[instr], o->s->stage->instrs[instr].position, instr};
    SBP_PUSH(o->s->p->arena, o->heap, o->count, o->capacity, r);
    int32_t at = o->count - 1;
    for (; at > 0 && is_better(&r, &o->heap[(at - 1) / 2]); at = (at - 1) / 2)
        o->heap[at] = o->heap[(at - 1) / 2];
    o->heap[at] = r;
}

static ready take(ordering *o) {
    ready first = o->heap[0], last = o->heap[--o->count];
    int32_t at = 0;
    for (int32_t child = 1; child < o->count; child = 2 * at + 1) {
        if (child + 1 < o->count && is_better(&o->heap[child + 1], &o->heap[child]))
            child++;
        if (!is_better(&o->heap[child], &last))
            break;
        o->heap[at] = o->heap[child];
        at = child;
    }
    o->heap[at] = last;
    return first;
}

static bool is_ready(const ordering *o, int32_t instr) {
    return !o->done[instr] && o->waiting[instr] == 0;
}

/* The growth of those that use a value may have changed. */
static void look_again(ordering *o, sbp_value v) {
    for (int32_t u = 0; u < o->users[v].count; u++) {
        int32_t instr = o->users[v].list[u];
        if (is_ready(o, instr) && growth(o, &o->s->stage->instrs[instr]) != o->growth[instr])
            put(o, instr);
    }
}

static void run_instr(ordering *o, int32_t number, const edges *after) {
    const sbp_instr *instr = &o->s->stage->instrs[number];
    o->done[number] = true;
    for (int32_t k = 0; k < instr->term_count; k++) {
        const sbp_term *term = &instr->terms[k];
        if (term->kind != SBP_TERM_VALUE)
            continue;
        sbp_value v = term->value;
        bool changes = !o->there[v] || o->left[v] <= 2;
        o->there[v] = true;
        o->left[v]--;
        if (changes)
            look_again(o, v);
    }
    for (int32_t e = 0; e < after[number].count; e++)
        if (--o->waiting[after[number].list[e]] == 0)
            put(o, after[number].list[e]);
}

static void begin_order(ordering *o) {
    sbp_stage *stage = o->s->stage;
    sbp_arena *arena = o->s->p->arena;
    int32_t n = stage->instr_count, values = stage->body->value_count;
    sbp_sizes sizes = sbp_program_sizes(o->s->p->program, o->s->p->program->t_max, o->s->p->program->s_max);
    o->bytes = SBP_NEW_ARRAY(arena, int64_t, values + 1);
    o->left = SBP_NEW_ARRAY(arena, int32_t, values + 1);
    o->there = SBP_NEW_ARRAY(arena, bool, values + 1);
    o->users = SBP_NEW_ARRAY(arena, edges, values + 1);
    o->waiting = SBP_NEW_ARRAY(arena, int32_t, n + 1);
    o->growth = SBP_NEW_ARRAY(arena, int64_t, n + 1);
    o->done = SBP_NEW_ARRAY(arena, bool, n + 1);
    for (int32_t v = 0; v < values; v++)
        o->bytes[v] = bytes_of(o->s, &sizes, v);
    for (int32_t i = 0; i < n; i++)
        for (int32_t t = 0; t < stage->instrs[i].term_count; t++) {
            const sbp_term *term = &stage->instrs[i].terms[t];
            if (term->kind != SBP_TERM_VALUE)
                continue;
            edges *users = &o->users[term->value];
            if (users->count > 0 && users->list[users->count - 1] == i)
                continue; /* named twice */
            SBP_PUSH(arena, users->list, users->count, users->capacity, i);
            o->left[term->value]++;
        }
}

static sbp_status choose_order(sbp_scheduler *s) {
    sbp_stage *stage = s->stage;
    int32_t n = stage->instr_count;
    ordering o = {.s = s};
    begin_order(&o);
    const edges *after = find_dependences(s, o.waiting);
    s->order = SBP_NEW_ARRAY(s->p->arena, int32_t, n + 1);
    s->time = SBP_NEW_ARRAY(s->p->arena, int32_t, n + 1);
    for (int32_t i = 0; i < n; i++)
        if (o.waiting[i] == 0)
            put(&o, i);
    for (int32_t t = 0; t < n; t++) {
        ready best;
        do {
            if (o.count == 0)
                return sbp_fail(s->p->diag, SBP_INTERNAL,
                                "schedule: the instructions of %s wait for each other", stage->name);
            best = take(&o);
        } while (!is_ready(&o, best.instr) || best.growth != o.growth[best.instr]);
        s->order[t] = best.instr;
        s->time[best.instr] = t;
        run_instr(&o, best.instr, after);
    }
    return SBP_OK;
}

/* ---- commands ---------------------------------------------------------------------------------------- */

static sbp_view scratch_view(sbp_scheduler *s, int32_t location) {
    sbp_location *h = &s->locations[location];
    if (h->buffer < 0) {
        const sbp_value_info *info = &s->stage->body->values[h->values[0]];
        sbp_extent rows;
        int64_t cols;
        sbp_lower_shape(&info->type, s->stage->rows, &rows, &cols);
        bool vector = rows.c[SBP_T] != 0 || rows.c[SBP_S] != 0 || rows.c[SBP_W] != 0;
        h->buffer = sbp_lower_buffer(s->p, sbp_arena_printf(s->p->arena, "%s.%s", s->code->name, info->name),
                                     vector ? SBP_ROLE_VECTOR : SBP_ROLE_SCRATCH, SBP_DEVICE,
                                     info->type.dtype, 1, rows, cols, s->function);
    }
    return sbp_view_buffer(s->p->program, h->buffer, 0);
}

static sbp_view temp_view(sbp_scheduler *s, int32_t temp) {
    const sbp_temp *t = &s->stage->temps[temp];
    if (s->temp_buffers[temp] < 0) {
        const sbp_blocks blocks = {.per = t->blocks ? SBP_PARTIAL_ROWS : t->per,
                                   .more = t->more_rows,
                                   .of_head = s->stage->rows == SBP_H,
                                   .of_all = t->of_all};
        sbp_extent rows = blocks.per > 0 ? sbp_memory_block_rows(s->p->program, &blocks)
                          : t->rows > 0  ? sbp_extent_const(t->rows)
                          : t->single    ? sbp_extent_const(1)
                                         : sbp_extent_symbol(t->of_all ? SBP_D : s->stage->rows, 1);
        rows.c[SBP_ONE] += blocks.per > 0 ? 0 : t->more_rows;
        const char *name =
            sbp_arena_printf(s->p->arena, "%s.%s", s->code->name, t->blocks ? "partial" : "work");
        s->temp_buffers[temp] =
            sbp_lower_buffer(s->p, name, t->blocks ? SBP_ROLE_SCRATCH : SBP_ROLE_WORKSPACE, SBP_DEVICE,
                             t->dtype, 1, rows, t->cols, s->function);
        s->p->program->buffers[s->temp_buffers[temp]].blocks = blocks;
    }
    sbp_view whole = sbp_view_buffer(s->p->program, s->temp_buffers[temp], 0);
    return t->blocks ? sbp_view_blocks(whole, t->of_all) : whole;
}

/* What a term has of its view. */
static sbp_view narrowed(const sbp_scheduler *s, sbp_view view, const sbp_term_range *range) {
    if (range->rows > 0) {
        view.start.base = sbp_extent_const(range->row);
        view.length.base = sbp_extent_const(range->rows);
    }
    if (range->cols > 0) {
        view.col += range->col;
        view.cols = range->cols;
    }
    return range->width > 0 ? sbp_view_wide(s->p->program, s->code, &view, range->width) : view;
}

static void emit_command(sbp_scheduler *s, sbp_body *body, const sbp_instr *instr) {
    sbp_command *command = sbp_lower_command(s->p, body, instr->kind);
    command->u = instr->attrs.u;
    command->queue = instr->attrs.queue;
    command->view_count = instr->term_count;
    for (int32_t t = 0; t < instr->term_count; t++) {
        const sbp_term *term = &instr->terms[t];
        if (term->kind == SBP_TERM_VIEW)
            command->views[t] = term->view;
        else if (term->kind == SBP_TERM_TEMP)
            command->views[t] = temp_view(s, term->value);
        else if (term->kind == SBP_TERM_VALUE)
            command->views[t] = s->locations[s->location_of[term->value]].view.ref != SBP_NO_VIEW
                                    ? s->locations[s->location_of[term->value]].view
                                    : scratch_view(s, s->location_of[term->value]);
        command->views[t] = narrowed(s, command->views[t], &term->range);
    }
    if (!instr->kernel)
        return;
    command->scalar_count = instr->kernel->scalar_count;
    command->scalars = SBP_NEW_ARRAY(s->p->arena, int32_t, command->scalar_count);
    for (int32_t i = 0; i < command->scalar_count; i++) {
        const char *name = instr->kernel->scalars[i];
        bool literal = s->function < 0 && strcmp(name, SBP_RULE_STREAM) == 0; /* the rule's user knows it */
        if (literal)
            command->literals = SBP_NEW_ARRAY(s->p->arena, double, command->scalar_count);
        command->scalars[i] =
            literal ? SBP_LITERAL : sbp_program_add_scalar(s->p->arena, s->p->program, name);
    }
    command->kernel = sbp_program_add_kernel(s->p->arena, s->p->program, instr->kernel);
}

sbp_status sbp_schedule_stage(sbp_program_builder *p, const sbp_function *code, int32_t function,
                              sbp_stage *stage, sbp_body *body) {
    sbp_scheduler s = {.p = p, .stage = stage, .code = code, .function = function};
    SBP_TRY(choose_order(&s));
    SBP_TRY(sbp_place_values(&s));
    bool scratch = stage->temp_count > 0;
    for (int32_t h = 0; h < s.location_count; h++)
        scratch |= s.locations[h].view.ref == SBP_NO_VIEW;
    if (scratch && function < 0)
        return sbp_fail(p->diag, SBP_INTERNAL, "schedule: rule '%s' keeps values in memory", code->name);
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

sbp_status sbp_pass_schedule(sbp_program_builder *p, const sbp_stages *stages) {
    for (int32_t i = 0; i < stages->count; i++) {
        const sbp_function_lowering *f = stages->functions[i];
        sbp_body body = {0};
        for (int32_t j = 0; j < f->item_count; j++)
            if (f->items[j].stage)
                SBP_TRY(sbp_schedule_stage(p, &p->program->functions[f->function], f->function,
                                           f->items[j].stage, &body));
            else
                SBP_PUSH(p->arena, body.nodes, body.count, body.capacity, f->items[j].node);
        p->program->functions[f->function].body = body;
    }
    return SBP_OK;
}
