/* passes_structure_program.c: entries, instructions and the program: calls .. fence. */
#include <stdlib.h>

#include "passes/offload/offload.h"
#include "tests/property/passes_structure.h"

/* ---- entries ------------------------------------------------------------------------------------------- */

typedef struct ledger {
    bench *b;
    const sbp_program *program;
    const char *entry;
    int32_t *first;  /* per buffer: number of its element 0 */
    int32_t *source; /* per element: the parameter whose values it holds, itself or a converted copy; -1 */
    int32_t *owner;  /* per accumulator: the parameter that adds up in it, -1 */
    bool *cleared;   /* per accumulator: zero */
    int32_t *target; /* per parameter buffer: where it adds up, -1 */
    int32_t *flushed, *normed, *filled; /* per parameter buffer */
} ledger;

static ledger open_ledger(bench *b, const char *entry) {
    const sbp_program *p = b->p.program;
    ledger l = {.b = b, .program = p, .entry = entry};
    int32_t elements = 0;
    l.first = SBP_NEW_ARRAY(b->t.arena, int32_t, p->buffer_count + 1);
    for (int32_t i = 0; i < p->buffer_count; i++) {
        l.first[i] = elements;
        elements += p->buffers[i].count;
    }
    l.source = SBP_NEW_ARRAY(b->t.arena, int32_t, elements + 1);
    for (int32_t i = 0; i < elements; i++)
        l.source[i] = -1;
    int32_t **lists[] = {&l.owner, &l.target, &l.flushed, &l.normed, &l.filled};
    for (int i = 0; i < SBP_COUNT(lists); i++)
        *lists[i] = SBP_NEW_ARRAY(b->t.arena, int32_t, p->buffer_count + 1);
    l.cleared = SBP_NEW_ARRAY(b->t.arena, bool, p->buffer_count + 1);
    for (int32_t i = 0; i < p->buffer_count; i++) {
        if (p->buffers[i].role == SBP_ROLE_PARAM)
            l.source[l.first[i]] = i;
        l.owner[i] = l.target[i] = -1;
    }
    return l;
}

/* The parameter that a view is of. */
static int32_t *source_of(const ledger *l, const sbp_view *view) {
    return &l->source[l->first[view->ref] + view->slot];
}

/* The parameter whose gradient buffer this is. */
static int32_t param_of_gradient(const ledger *l, int32_t buffer) {
    const char *name = l->program->buffers[buffer].name;
    return sbp_program_find_buffer(l->program, sbp_arena_strndup(l->b->t.arena, name, strlen(name) - 5));
}

/* What added up for this parameter is taken out of the accumulator. */
static void take(ledger *l, int32_t accum, int32_t param) {
    ensure(l->b, accum >= 0 && param >= 0 && l->owner[accum] == param, "@%s takes a gradient from elsewhere",
           l->entry);
    if (l->b->broken[0])
        return;
    l->owner[accum] = -1;
    l->cleared[accum] = false;
}

static void note_command(ledger *l, const sbp_command *command) {
    bench *b = l->b;
    const sbp_program *p = l->program;
    int32_t to = command->view_count > 0 ? command->views[0].ref : -1;
    if (command->kind == SBP_CMD_FILL && p->buffers[to].role == SBP_ROLE_ACCUM) {
        ensure(b, command->u.fill == 0 && l->owner[to] < 0, "@%s clears %s too early", l->entry,
               p->buffers[to].name);
        l->cleared[to] = true;
    } else if (command->kind == SBP_CMD_FILL && p->buffers[to].role == SBP_ROLE_GRAD) {
        int32_t param = param_of_gradient(l, to);
        ensure(b, strcmp(l->entry, "update") == 0 && l->flushed[param] == 1 && command->u.fill == 0,
               "@%s clears %s", l->entry, p->buffers[to].name);
        l->filled[param]++;
    } else if (command->kind == SBP_CMD_REDUCE && command->u.reduce.op == SBP_REDUCE_SUMSQ) {
        int32_t from = command->views[1].ref,
                param = p->buffers[from].role == SBP_ROLE_GRAD ? param_of_gradient(l, from) : l->owner[from];
        ensure(b, param >= 0, "@%s: a norm of nothing", l->entry);
        l->normed[param >= 0 ? param : 0]++;
    } else if (command->kind == SBP_CMD_ROW && command->flushes >= 0) {
        int32_t from = command->views[command->gradient].ref;
        if (p->buffers[from].role == SBP_ROLE_GRAD)
            ensure(b, param_of_gradient(l, from) == command->flushes, "@%s: gradient of %s is another one's",
                   l->entry, p->buffers[command->flushes].name);
        else
            take(l, from, command->flushes);
        l->flushed[command->flushes]++;
    } else if (command->kind == SBP_CMD_ROW) {
        sbp_command_operand operands[SBP_MAX_COMMAND_OPERANDS];
        int32_t param = -1, accum = -1, grad = -1, count = sbp_command_operands(p, command, operands);
        for (int32_t i = 0; i < count; i++) {
            int32_t ref = command->views[i].ref;
            if (operands[i].access == SBP_READ && *source_of(l, &command->views[i]) >= 0)
                param = *source_of(l, &command->views[i]);
            if (operands[i].access == SBP_READ && p->buffers[ref].role == SBP_ROLE_ACCUM)
                accum = ref;
            if (operands[i].access == SBP_READ && p->buffers[ref].role == SBP_ROLE_GRAD)
                grad = ref;
        }
        for (int32_t i = 0; i < count; i++) {
            int32_t ref = command->views[i].ref;
            if (operands[i].access == SBP_READ)
                continue;
            if (p->buffers[ref].role == SBP_ROLE_STAGING) /* converted */
                *source_of(l, &command->views[i]) = param;
            if (p->buffers[ref].role == SBP_ROLE_GRAD) { /* rounded, once */
                ensure(b, accum >= 0 && grad == ref, "@%s: %s does not add up", l->entry,
                       p->buffers[ref].name);
                take(l, accum, param_of_gradient(l, ref));
                l->flushed[param_of_gradient(l, ref)]++;
            }
        }
    }
}

/* The function of the module whose segment this is a function of; -1: of none. */
static int32_t segment_of(const bench *b, int32_t function) {
    const sbp_segment_kind *kinds = b->p.results->segments.kinds;
    const sbp_module *m = b->p.module;
    const sbp_head_lowering *h = &b->p.results->head;
    for (int32_t f = 0; f < m->func_count; f++)
        if (function == kinds[f].forward || function == kinds[f].recompute || function == kinds[f].backward)
            return f;
    return function == h->score || function == h->first || function == h->backward
               ? m->calls[m->call_count - 1].func
               : -1;
}

/* The call of the model whose parameters a call reads: p3 is the fourth. Those that it does not read have no
 * formal. -1: of no segment. */
static int32_t call_of_model(ledger *l, const sbp_call *call) {
    const sbp_function *f = &l->program->functions[call->function];
    const sbp_module *m = l->b->p.module;
    int32_t segment = segment_of(l->b, call->function);
    for (int32_t c = 0; c < m->call_count && segment >= 0; c++) {
        bool found = m->calls[c].func == segment;
        for (int32_t i = 0; i < f->formal_count && found; i++) {
            if (f->formals[i].name[0] != 'p')
                continue;
            int32_t param = *source_of(l, &call->views[i]), number = atoi(f->formals[i].name + 1);
            found = param >= 0 && number < m->calls[c].param_count &&
                    strcmp(m->params[m->calls[c].params[number]].name, l->program->buffers[param].name) == 0;
        }
        if (found)
            return c;
    }
    ensure(l->b, segment < 0, "@%s: a call of @%s reads parameters of several", l->entry, f->name);
    return -1;
}

static void note_call(ledger *l, const sbp_call *call) {
    bench *b = l->b;
    const sbp_function *f = &l->program->functions[call->function];
    const sbp_module *m = b->p.module;
    int32_t c = call_of_model(l, call);
    for (int32_t i = 0; i < f->formal_count; i++) {
        if (f->formals[i].name[0] != 'A')
            continue;
        int32_t number = atoi(f->formals[i].name + 1), to = call->views[i].ref, param = -1;
        if (c >= 0 && number < m->calls[c].param_count)
            param = sbp_program_find_buffer(l->program, m->params[m->calls[c].params[number]].name);
        ensure(b, param >= 0, "@%s: %s of @%s adds up for nobody", l->entry, f->formals[i].name, f->name);
        if (param < 0)
            return;
        const char *name = l->program->buffers[param].name;
        ensure(b, l->target[param] < 0 || l->target[param] == to, "@%s: %s adds up in two places", l->entry,
               name);
        l->target[param] = to;
        if (l->program->buffers[to].role == SBP_ROLE_GRAD) {
            ensure(b, param_of_gradient(l, to) == param, "@%s: %s adds up in another's gradient", l->entry,
                   name);
        } else {
            ensure(b, l->program->buffers[to].role == SBP_ROLE_ACCUM, "@%s: %s adds up in %s", l->entry, name,
                   l->program->buffers[to].name);
            ensure(b, l->owner[to] == param || (l->owner[to] < 0 && l->cleared[to]),
                   "@%s: %s adds to what is there already", l->entry, name);
            l->owner[to] = param;
        }
    }
}

static void examine_entry(bench *b, const sbp_entry *entry) {
    ledger l = open_ledger(b, entry->name);
    for (int32_t i = 0; i < entry->body.count; i++) {
        const sbp_node *node = &entry->body.nodes[i];
        if (node->kind == SBP_NODE_COMMAND)
            note_command(&l, node->u.command);
        else if (node->kind == SBP_NODE_CALL)
            note_call(&l, node->u.call);
    }
    bool update = strcmp(entry->name, "update") == 0, step = strcmp(entry->name, "step") == 0,
         score = strcmp(entry->name, "score") == 0;
    for (int32_t i = 0; i < b->p.program->buffer_count; i++)
        ensure(b, l.owner[i] < 0, "@%s: nobody takes what is in %s", l.entry, b->p.program->buffers[i].name);
    for (int32_t i = 0; i < b->p.module->param_count; i++) {
        const sbp_param *param = &b->p.module->params[i];
        int32_t w = sbp_program_find_buffer(b->p.program, param->name), to = l.target[w];
        bool in_place = to >= 0 && b->p.program->buffers[to].role == SBP_ROLE_GRAD;
        bool trains = param->trainable && !score;
        ensure(b, (to >= 0) == (trains && !update), "@%s: gradient of %s", l.entry, param->name);
        ensure(b, l.flushed[w] == (trains && !in_place), "@%s: %s is flushed %d times", l.entry, param->name,
               l.flushed[w]);
        ensure(b, l.normed[w] == (trains && (update || step)), "@%s: %s is in the norm %d times", l.entry,
               param->name, l.normed[w]);
        ensure(b, l.filled[w] == (trains && update), "@%s: gradient of %s is cleared %d times", l.entry,
               param->name, l.filled[w]);
    }
}

/* There are lists of tasks; nothing is emitted, nothing is copied, and no act names a staging buffer. */
void after_calls(bench *b) {
    const sbp_call_schedule *r = b->p.results->call_schedule;
    ensure(b, r != NULL, "there are no call lists");
    if (!r)
        return;
    ensure(b, b->p.program->entry_count == 0, "calls makes %d entries", b->p.program->entry_count);
    for (int32_t l = 0; l < r->list_count; l++)
        for (int32_t a = 0; a < r->lists[l].task_count; a++)
            for (int32_t i = 0; i < r->lists[l].tasks[a].operand_count; i++) {
                const sbp_operand *o = &r->lists[l].tasks[a].operands[i];
                ensure(b, o->tensor < r->tensor_count && (o->tensor >= 0) != (o->buffer >= 0),
                       "@%s: task %d, operand %d", r->lists[l].entry, a, i);
            }
}

void after_offload(bench *b) {
    const sbp_program *p = b->p.program;
    bool optimizer = b->p.options.optimizer != SBP_OPTIMIZER_NONE, step = b->p.options.step;
    ensure(b, (sbp_program_find_entry(p, "step") != NULL) == step, "entry step");
    ensure(b, (sbp_program_find_entry(p, "accumulate") != NULL) == !step, "entry accumulate");
    ensure(b, (sbp_program_find_entry(p, "update") != NULL) == (optimizer && !step), "entry update");
    ensure(b, sbp_program_find_entry(p, "score") != NULL, "entry score");
    for (int32_t i = 0; i < p->entry_count; i++)
        examine_entry(b, &p->entries[i]);
    for (int32_t i = 0; i < p->buffer_count; i++)
        if (step)
            ensure(b, p->buffers[i].role != SBP_ROLE_GRAD, "step keeps gradient %s", p->buffers[i].name);
}

/* ---- the program --------------------------------------------------------------------------------------- */

void after_fuse(bench *b) {
    const sbp_stages *l = &b->p.results->stages;
    for (int32_t n = 0; n < l->count; n++)
        for (int32_t i = 0; i < l->functions[n]->item_count; i++) {
            const sbp_stage *stage = l->functions[n]->items[i].stage;
            if (!stage)
                continue;
            ensure(b, stage->instr_count > 0, "stage %s became nothing", stage->name);
            for (int32_t k = 0; k < stage->instr_count; k++)
                if (stage->instrs[k].kind == SBP_CMD_ROW)
                    testing_check(&b->t, sbp_rowkernel_verify(stage->instrs[k].kernel, b->t.diag));
        }
}

/* Without offsets, and without fences. */
static const char *program_text(bench *b) {
    sbp_program program = *b->p.program;
    program.buffers = SBP_NEW_ARRAY(b->t.arena, sbp_buffer, program.buffer_count);
    for (int32_t i = 0; i < program.buffer_count; i++) {
        program.buffers[i] = b->p.program->buffers[i];
        program.buffers[i].offset = -1;
        program.buffers[i].stride = 0;
    }
    memset(program.arena_bytes, 0, sizeof program.arena_bytes);
    sbp_text out;
    sbp_text_init(&out, b->t.arena);
    sbp_program_print(&out, &program);
    char *to = out.data;
    for (const char *line = out.data; *line;) {
        size_t length = strcspn(line, "\n") + 1;
        if (strncmp(line + strspn(line, " "), "fence ", 6) != 0) {
            memmove(to, line, length);
            to += length;
        }
        line += length;
    }
    *to = 0;
    return out.data;
}

static int32_t count_copies(const sbp_body *body) {
    int32_t count = 0;
    for (int32_t i = 0; i < body->count; i++)
        if (body->nodes[i].kind == SBP_NODE_LOOP)
            count += count_copies(&body->nodes[i].u.loop->body);
        else
            count +=
                body->nodes[i].kind == SBP_NODE_COMMAND && body->nodes[i].u.command->kind == SBP_CMD_COPY;
    return count;
}

void before_schedule(bench *b) {
    const sbp_stages *l = &b->p.results->stages;
    b->buffers = b->p.program->buffer_count;
    b->copies = 0;
    for (int32_t n = 0; n < l->count; n++)
        for (int32_t i = 0; i < l->functions[n]->item_count; i++) {
            const sbp_stage *stage = l->functions[n]->items[i].stage;
            for (int32_t k = 0; stage && k < stage->instr_count; k++)
                b->copies += stage->instrs[k].kind == SBP_CMD_COPY;
        }
}

static void accumulators_add_up(bench *b, const sbp_function *f, const sbp_body *body, int32_t formal,
                                int32_t *writers) {
    for (int32_t n = 0; n < body->count; n++) {
        const sbp_node *node = &body->nodes[n];
        if (node->kind == SBP_NODE_LOOP)
            accumulators_add_up(b, f, &node->u.loop->body, formal, writers);
        if (node->kind != SBP_NODE_COMMAND)
            continue;
        const sbp_command *command = node->u.command;
        sbp_command_operand operands[SBP_MAX_COMMAND_OPERANDS];
        sbp_command_operands(b->p.program, command, operands);
        for (int32_t i = 0; i < command->view_count; i++) {
            if (command->views[i].ref != ~formal || operands[i].access == SBP_READ)
                continue;
            bool adds = command->kind == SBP_CMD_SCATTER_ADD;
            if (command->kind == SBP_CMD_GEMM)
                adds = command->u.gemm.beta == 1 && same_view(&command->views[0], &command->views[3]);
            if (command->kind == SBP_CMD_COLSUM)
                adds = command->u.reduce.beta == 1;
            for (int32_t k = 0; command->kind == SBP_CMD_ROW && k < command->view_count; k++)
                adds |= operands[k].access == SBP_READ && same_view(&command->views[k], &command->views[i]);
            ensure(b, adds, "@%s: %s of %s is overwritten", f->name, sbp_command_name(command->kind),
                   f->formals[formal].name);
            ++*writers;
        }
    }
}

static bool reads_formal(const sbp_body *body, int32_t formal) {
    for (int32_t n = 0; n < body->count; n++) {
        const sbp_node *node = &body->nodes[n];
        if (node->kind == SBP_NODE_LOOP && reads_formal(&node->u.loop->body, formal))
            return true;
        for (int32_t i = 0; node->kind == SBP_NODE_COMMAND && i < node->u.command->view_count; i++)
            if (node->u.command->views[i].ref == ~formal)
                return true;
    }
    return false;
}

/* No copies and no long buffers but vectors come into being; weight gradients add up, all of them; no
 * parameter is brought to a function that does not read it. */
void after_schedule(bench *b) {
    const sbp_program *p = b->p.program;
    int32_t copies = 0;
    for (int32_t n = 0; n < p->function_count; n++) {
        const sbp_function *f = &p->functions[n];
        copies += count_copies(&f->body);
        for (int32_t i = 0; i < f->formal_count; i++) {
            int32_t writers = 0;
            ensure(b, f->formals[i].name[0] != 'p' || reads_formal(&f->body, i), "@%s: nothing reads %s",
                   f->name, f->formals[i].name);
            if (f->formals[i].name[0] != 'A')
                continue;
            accumulators_add_up(b, f, &f->body, i, &writers);
            ensure(b, writers > 0, "@%s: nothing adds to %s", f->name, f->formals[i].name);
        }
    }
    ensure(b, copies == b->copies, "%d copies in functions, there were %d", copies, b->copies);
    for (int32_t i = 0; i < p->buffer_count; i++) {
        const sbp_buffer *buffer = &p->buffers[i];
        if (buffer->rows.c[SBP_T] == 0)
            continue;
        ensure(b, i < b->buffers || buffer->cols == 1, "buffer %s with T rows", buffer->name);
        ensure(b, buffer->cols < b->vocabulary, "buffer %s is T by V", buffer->name);
    }
}

void before_memory(bench *b) {
    b->before = program_text(b);
}

void after_memory(bench *b) {
    same_text(b, program_text(b));
    const sbp_program *p = b->p.program;
    const sbp_sizes sizes = sbp_program_sizes(p, p->t_max, p->s_max);
    for (int32_t i = 0; i < p->buffer_count; i++) {
        const sbp_buffer *buffer = &p->buffers[i];
        int64_t bytes, end;
        ensure(b, sbp_buffer_bytes(buffer, &sizes, &bytes), "%s is too large", buffer->name);
        end = buffer->offset + (buffer->count - 1) * buffer->stride + bytes;
        ensure(b, buffer->offset >= 0 && end <= p->arena_bytes[buffer->space], "%s lies outside of its arena",
               buffer->name);
        ensure(b, buffer->offset % b->p.target.alignment_bytes == 0, "%s is not aligned", buffer->name);
        ensure(b, buffer->count == 1 || buffer->stride >= bytes, "elements of %s overlap", buffer->name);
    }
}

void before_fence(bench *b) {
    before_memory(b);
}

void after_fence(bench *b) {
    same_text(b, program_text(b));
    testing_check(&b->t, sbp_program_verify(b->p.program, b->t.diag));
}
