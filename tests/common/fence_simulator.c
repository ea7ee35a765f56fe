#include "tests/common/fence_simulator.h"

#include <stdlib.h>
#include <string.h>

enum { QUEUES = SBP_QUEUE_COUNT, NOBODY = -1 };

/* Bytes [begin, end) of a space, as cells: pieces between the ends of all intervals of the stream. */
typedef struct touch {
    sbp_space space;
    int64_t begin, end;
    int32_t cell, cell_end;
    int32_t element; /* buffer element that it belongs to, see element_of */
    bool reads, writes;
} touch;

typedef enum event_kind { EVENT_COMMAND, EVENT_FENCE, EVENT_ENTRY, EVENT_CALL } event_kind;

typedef struct event {
    event_kind kind;
    const sbp_command *command; /* or the fence */
    int32_t function;           /* of a call; where a command stands, -1 in an entry */
    int64_t i;                  /* iteration, for messages */
    touch *touches;
    int32_t touch_count, touch_capacity;
} event;

struct fence_stream {
    const sbp_program *program;
    event *events;
    int32_t count, capacity;
    int32_t cells[SBP_SPACE_COUNT];
    int32_t *first_element; /* per buffer */
    int32_t *buffer_of;     /* per element */
    int32_t elements;
    int64_t t;
};

typedef struct recorder {
    sbp_arena *arena;
    sbp_diag *diag;
    const sbp_program *program;
    const fence_batch *batch;
    fence_stream *stream;
    sbp_position position;
    int32_t function;       /* -1: in an entry */
    const sbp_call *call;   /* inside a function */
    sbp_position call_site; /* where the call stands */
} recorder;

/* ---- recording --------------------------------------------------------------------------------------- */

static event *add_event(recorder *r, event_kind kind) {
    fence_stream *s = r->stream;
    SBP_PUSH(
        r->arena, s->events, s->count, s->capacity,
        (event){.kind = kind, .function = r->function, .i = r->position.table >= 0 ? r->position.i : -1});
    return &s->events[s->count - 1];
}

static void add_touch(recorder *r, event *e, sbp_space space, int64_t begin, int64_t end, int32_t element,
                      sbp_access access) {
    if (begin < end)
        SBP_PUSH(r->arena, e->touches, e->touch_count, e->touch_capacity,
                 (touch){.space = space,
                         .begin = begin,
                         .end = end,
                         .element = element,
                         .reads = access != SBP_WRITE,
                         .writes = access != SBP_READ});
}

static sbp_status record_operand(recorder *r, event *e, const sbp_view *view, sbp_access access) {
    const sbp_function *function = r->function >= 0 ? &r->program->functions[r->function] : NULL;
    sbp_range range;
    if (!sbp_view_resolve(r->program, function, view, &r->position, &range))
        return sbp_fail(r->diag, SBP_INTERNAL, "a view leaves its buffer");
    int32_t ref = view->ref, slot = view->slot;
    int64_t first = view->col, stride = view->width; /* elements: of the first; from row to row */
    if (ref < 0) { /* a formal: some rows and columns of what the call passes */
        const sbp_view *actual = &r->call->views[~ref];
        sbp_range outer;
        if (!sbp_view_resolve(r->program, NULL, actual, &r->call_site, &outer))
            return sbp_fail(r->diag, SBP_INTERNAL, "an argument leaves its buffer");
        int64_t passed = actual->width ? actual->width : r->program->buffers[actual->ref].cols;
        first += outer.start * passed + actual->col;
        stride = stride ? stride : passed;
        ref = actual->ref;
        slot = actual->slot;
    }
    const sbp_buffer *b = &r->program->buffers[ref];
    stride = stride ? stride : b->cols;
    first += range.start * stride;
    int64_t unit = sbp_dtype_bytes(b->dtype), base = b->offset + slot * b->stride;
    int32_t element = r->stream->first_element[ref] + slot;
    if (view->cols == stride) {
        add_touch(r, e, b->space, base + first * unit, base + (first + range.rows * stride) * unit, element,
                  access);
        return SBP_OK;
    }
    for (int64_t k = 0; k < range.rows; k++)
        add_touch(r, e, b->space, base + (first + k * stride) * unit,
                  base + (first + k * stride + view->cols) * unit, element, access);
    return SBP_OK;
}

static sbp_status record_command(recorder *r, const sbp_command *command) {
    event *e = add_event(r, command->kind == SBP_CMD_FENCE ? EVENT_FENCE : EVENT_COMMAND);
    e->command = command;
    sbp_command_operand operands[SBP_MAX_COMMAND_OPERANDS];
    int32_t count = sbp_command_operands(r->program, command, operands);
    for (int32_t k = 0; k < count; k++)
        if (command->views[k].ref != SBP_NO_VIEW)
            SBP_TRY(record_operand(r, e, &command->views[k], operands[k].access));
    return SBP_OK;
}

/* The first row that attention of rows row0 .. row0 + rows - 1 reads. */
static int64_t lowest_row(const fence_batch *b, int64_t row0, int64_t rows, int64_t window) {
    int64_t lo = row0;
    for (int64_t r = row0; r < row0 + rows; r++) {
        bool shared = b->own[r] > b->first[r]; /* a window in the shared part is not narrowed down here */
        int64_t back = window > 0 && r - window + 1 > b->first[r] ? r - window + 1 : b->first[r];
        int64_t least = shared ? b->first[r] : back;
        lo = least < lo ? least : lo;
    }
    return lo;
}

/* Where rows end that count: one does in any case. */
static int64_t last_counted(const recorder *r) {
    return r->batch->uncounted < r->batch->t ? r->batch->t - r->batch->uncounted : 1;
}

static void set_iteration(recorder *r, int32_t table, int64_t i) {
    const sbp_chunk_table *t = &r->program->tables[table];
    sbp_position_set(&r->position, r->program, table, i);
    if (t->counted)
        sbp_position_end(&r->position, last_counted(r));
    for (int32_t w = 0; w < t->window_count; w++)
        r->position.columns[SBP_COLUMN_LO + w] =
            lowest_row(r->batch, r->position.columns[SBP_COLUMN_ROW0], r->position.columns[SBP_COLUMN_ROWS],
                       t->windows[w]);
}

static sbp_status record_body(recorder *r, const sbp_body *body);

static int64_t loop_trips(const recorder *r, int32_t table) {
    const sbp_chunk_table *t = &r->program->tables[table];
    return t->counted ? sbp_ceil_div(last_counted(r), r->position.sizes.v[t->step])
                      : sbp_table_rows(r->program, table, &r->position.sizes);
}

static sbp_status record_loop(recorder *r, const sbp_loop *loop) {
    int64_t trips = 1;
    if (loop->table >= 0)
        trips = loop_trips(r, loop->table);
    else if (r->batch->trips)
        trips = r->batch->trips[loop->scalar];
    sbp_position outside = r->position;
    for (int64_t k = 0; k < trips; k++) {
        if (loop->table >= 0)
            set_iteration(r, loop->table, loop->descending ? trips - 1 - k : k);
        SBP_TRY(record_body(r, &loop->body));
    }
    r->position = outside;
    return SBP_OK;
}

static sbp_status record_call(recorder *r, const sbp_call *call) {
    recorder inner = *r;
    inner.function = call->function;
    inner.call = call;
    inner.call_site = r->position;
    inner.position.table = -1;
    add_event(&inner, EVENT_CALL);
    return record_body(&inner, &r->program->functions[call->function].body);
}

static sbp_status record_body(recorder *r, const sbp_body *body) {
    for (int32_t n = 0; n < body->count; n++) {
        const sbp_node *node = &body->nodes[n];
        if (node->kind == SBP_NODE_COMMAND)
            SBP_TRY(record_command(r, node->u.command));
        else if (node->kind == SBP_NODE_LOOP)
            SBP_TRY(record_loop(r, node->u.loop));
        else
            SBP_TRY(record_call(r, node->u.call));
    }
    return SBP_OK;
}

static int by_value(const void *x, const void *y) {
    int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;
    return a < b ? -1 : a > b;
}

static int32_t cell_at(const int64_t *ends, int32_t count, int64_t value) {
    int32_t low = 0, high = count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (ends[middle] < value)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void find_cells(recorder *r, sbp_space space) {
    fence_stream *s = r->stream;
    int64_t *ends = NULL;
    int32_t count = 0, capacity = 0, unique = 0;
    for (int32_t e = 0; e < s->count; e++)
        for (int32_t k = 0; k < s->events[e].touch_count; k++)
            if (s->events[e].touches[k].space == space) {
                SBP_PUSH(r->arena, ends, count, capacity, s->events[e].touches[k].begin);
                SBP_PUSH(r->arena, ends, count, capacity, s->events[e].touches[k].end);
            }
    if (count > 0)
        qsort(ends, (size_t)count, sizeof *ends, by_value);
    for (int32_t k = 0; k < count; k++)
        if (unique == 0 || ends[unique - 1] != ends[k])
            ends[unique++] = ends[k];
    s->cells[space] = unique;
    for (int32_t e = 0; e < s->count; e++)
        for (int32_t k = 0; k < s->events[e].touch_count; k++) {
            touch *t = &s->events[e].touches[k];
            if (t->space != space)
                continue;
            t->cell = cell_at(ends, unique, t->begin);
            t->cell_end = cell_at(ends, unique, t->end);
        }
}

sbp_status fence_stream_record(sbp_arena *arena, sbp_diag *diag, const sbp_program *program,
                               const fence_batch *batch, const int32_t *sequence, int32_t count,
                               fence_stream **out) {
    fence_stream *s = SBP_NEW(arena, fence_stream);
    recorder r = {.arena = arena, .diag = diag, .program = program, .batch = batch, .stream = s};
    s->program = program;
    s->t = batch->t;
    s->first_element = SBP_NEW_ARRAY(arena, int32_t, program->buffer_count + 1);
    for (int32_t b = 0; b < program->buffer_count; b++) {
        s->first_element[b] = s->elements;
        s->elements += program->buffers[b].count;
    }
    for (int32_t b = 0; b < program->buffer_count; b++) /* a part's content is its bucket's */
        s->first_element[b] = s->first_element[sbp_buffer_memory(program, b)];
    s->buffer_of = SBP_NEW_ARRAY(arena, int32_t, s->elements + 1);
    for (int32_t b = 0; b < program->buffer_count; b++)
        for (int32_t k = 0; k < program->buffers[b].count && program->buffers[b].part_of == 0; k++)
            s->buffer_of[s->first_element[b] + k] = b;
    for (int32_t n = 0; n < count; n++) {
        r.position = (sbp_position){.sizes = sbp_program_sizes(program, batch->t, batch->s), .table = -1};
        r.function = -1;
        add_event(&r, EVENT_ENTRY);
        SBP_TRY(record_body(&r, &program->entries[sequence[n]].body));
    }
    for (int space = 0; space < SBP_SPACE_COUNT; space++)
        find_cells(&r, (sbp_space)space);
    *out = s;
    return SBP_OK;
}

static int64_t count_events(const fence_stream *s, event_kind kind) {
    int64_t count = 0;
    for (int32_t e = 0; e < s->count; e++)
        count += s->events[e].kind == kind;
    return count;
}

int64_t fence_stream_commands(const fence_stream *stream) {
    return count_events(stream, EVENT_COMMAND);
}

int64_t fence_stream_fences(const fence_stream *stream) {
    return count_events(stream, EVENT_FENCE);
}

/* ---- messages ---------------------------------------------------------------------------------------- */

static const char *describe(sbp_arena *arena, const fence_stream *s, const event *e, const touch *t) {
    const sbp_program *p = s->program;
    const sbp_buffer *b = &p->buffers[s->buffer_of[t->element]];
    return sbp_arena_printf(
        arena, "%s%s%s of %s (queue %s, iteration %lld) %s %s@%d, bytes %lld to %lld",
        sbp_command_name(e->command->kind), e->command->kind == SBP_CMD_ROW ? " @" : "",
        e->command->kind == SBP_CMD_ROW ? p->kernels[e->command->kernel]->name : "",
        e->function >= 0 ? p->functions[e->function].name : "an entry", sbp_queue_names[e->command->queue],
        (long long)e->i, t->writes ? "writes" : "reads", b->name,
        t->element - s->first_element[s->buffer_of[t->element]], (long long)t->begin, (long long)t->end);
}

/* The touch of an event through which it met a cell. */
static const touch *touch_at(const event *e, sbp_space space, int32_t cell, bool writes) {
    for (int32_t k = 0; k < e->touch_count; k++) {
        const touch *t = &e->touches[k];
        if (t->space == space && t->cell <= cell && cell < t->cell_end && (t->writes || !writes))
            return t;
    }
    return &e->touches[0];
}

/* ---- order ------------------------------------------------------------------------------------------- */

/* A command of the stream: the number-th of its queue. It starts when, of each queue, the first `after`
 * commands are done. */
typedef struct started {
    int32_t event, queue, number;
    int32_t after[QUEUES];
} started;

/* Who touched a cell: the last writer, and per queue the last reader since. Earlier readers of the queue are
 * done whenever the last one is waited for: fences wait for all commands of a queue before them. */
typedef struct cell_users {
    int32_t writer, readers[QUEUES]; /* commands, -1 */
} cell_users;

typedef struct order_check {
    const fence_stream *stream;
    started *commands;
    int32_t *of_queue[QUEUES]; /* commands of a queue, by number */
    int32_t counts[QUEUES];
    int32_t fences[QUEUES][QUEUES]; /* [to][from]: commands of `from` before the last such fence */
    cell_users *cells[SBP_SPACE_COUNT];
} order_check;

/* What a new command comes after: what fences say, and what those commands came after. */
static void find_after(order_check *c, started *x) {
    bool grows = true;
    memcpy(x->after, c->fences[x->queue], sizeof x->after);
    while (grows) {
        grows = false;
        for (int q = 0; q < QUEUES; q++) {
            if (x->after[q] == 0)
                continue;
            const started *y = &c->commands[c->of_queue[q][x->after[q] - 1]];
            for (int g = 0; g < QUEUES; g++)
                if (y->after[g] > x->after[g]) {
                    x->after[g] = y->after[g];
                    grows = true;
                }
        }
    }
}

static bool comes_after(const order_check *c, const started *x, int32_t other) {
    return other < 0 || x->after[c->commands[other].queue] > c->commands[other].number;
}

/* The command that x should come after and does not, at a cell; -1: none. */
static int32_t unordered(const order_check *c, const started *x, const cell_users *users, bool writes) {
    if (!comes_after(c, x, users->writer))
        return users->writer;
    for (int q = 0; writes && q < QUEUES; q++)
        if (!comes_after(c, x, users->readers[q]))
            return users->readers[q];
    return -1;
}

static cell_users written_by(int32_t number) {
    cell_users users = {.writer = number};
    for (int q = 0; q < QUEUES; q++)
        users.readers[q] = NOBODY;
    return users;
}

static const char *check_command(sbp_arena *arena, order_check *c, int32_t number) {
    const fence_stream *s = c->stream;
    const started *x = &c->commands[number];
    const event *e = &s->events[x->event];
    for (int32_t k = 0; k < e->touch_count; k++) {
        const touch *t = &e->touches[k];
        for (int32_t cell = t->cell; cell < t->cell_end; cell++) {
            int32_t other = unordered(c, x, &c->cells[t->space][cell], t->writes);
            if (other < 0)
                continue;
            const event *before = &s->events[c->commands[other].event];
            return sbp_arena_printf(arena, "T %lld: %s, unordered after %s", (long long)s->t,
                                    describe(arena, s, e, t),
                                    describe(arena, s, before, touch_at(before, t->space, cell, !t->writes)));
        }
    }
    for (int32_t k = 0; k < e->touch_count; k++)
        for (int32_t cell = e->touches[k].cell; cell < e->touches[k].cell_end; cell++) {
            cell_users *users = &c->cells[e->touches[k].space][cell];
            if (e->touches[k].writes)
                *users = written_by(number);
            else if (users->writer != number)
                users->readers[x->queue] = number;
        }
    return NULL;
}

const char *fence_stream_check_order(sbp_arena *arena, const fence_stream *s, const sbp_command *changed,
                                     bool earlier) {
    sbp_arena *own = sbp_arena_create();
    order_check c = {.stream = s};
    const char *message = NULL;
    int32_t total = 0;
    c.commands = SBP_NEW_ARRAY(own, started, s->count + 1);
    for (int q = 0; q < QUEUES; q++)
        c.of_queue[q] = SBP_NEW_ARRAY(own, int32_t, s->count + 1);
    for (int space = 0; space < SBP_SPACE_COUNT; space++) {
        c.cells[space] = SBP_NEW_ARRAY(own, cell_users, s->cells[space] + 1);
        for (int32_t k = 0; k < s->cells[space]; k++)
            c.cells[space][k] = written_by(NOBODY);
    }
    for (int32_t e = 0; e < s->count && !message; e++) {
        const sbp_command *command = s->events[e].command;
        if (s->events[e].kind == EVENT_FENCE && (command != changed || earlier)) {
            int32_t from = command->u.fence.from, to = command->u.fence.to;
            int32_t waits = c.counts[from] - (command == changed);
            c.fences[to][from] = waits > c.fences[to][from] ? waits : c.fences[to][from];
        } else if (s->events[e].kind == EVENT_COMMAND) {
            int32_t q = command->queue;
            started *x = &c.commands[total];
            *x = (started){.event = e, .queue = q, .number = c.counts[q]};
            find_after(&c, x);
            message = check_command(arena, &c, total);
            c.of_queue[q][c.counts[q]++] = total++;
        }
    }
    sbp_arena_destroy(own);
    return message;
}

/* ---- data -------------------------------------------------------------------------------------------- */

enum { UNDEFINED = -2 };

/* Written by the host before anything runs, and kept from entry to entry. */
static bool is_kept(const sbp_buffer *b) {
    switch (b->role) {
    case SBP_ROLE_PARAM:
    case SBP_ROLE_CONST:
    case SBP_ROLE_GRAD:
    case SBP_ROLE_STATE:
    case SBP_ROLE_MASTER:
    case SBP_ROLE_BUCKET:
    case SBP_ROLE_ROWS:
    case SBP_ROLE_RESULT:
        return b->function < 0;
    default:
        return false;
    }
}

static const char *fill_kept(sbp_arena *arena, const fence_stream *s, int32_t **owner) {
    for (int32_t e = 0; e < s->count; e++)
        for (int32_t k = 0; k < s->events[e].touch_count; k++) {
            const touch *t = &s->events[e].touches[k];
            for (int32_t cell = t->cell;
                 cell < t->cell_end && is_kept(&s->program->buffers[s->buffer_of[t->element]]); cell++) {
                if (owner[t->space][cell] != UNDEFINED && owner[t->space][cell] != t->element)
                    return sbp_arena_printf(arena, "%s and %s share memory",
                                            s->program->buffers[s->buffer_of[t->element]].name,
                                            s->program->buffers[s->buffer_of[owner[t->space][cell]]].name);
                owner[t->space][cell] = t->element;
            }
        }
    return NULL;
}

/* What is gone: buffers of a function when it is called, all that is not kept when an entry begins. */
static void forget(const fence_stream *s, int32_t **owner, int32_t function) {
    for (int space = 0; space < SBP_SPACE_COUNT; space++)
        for (int32_t cell = 0; cell < s->cells[space]; cell++) {
            int32_t element = owner[space][cell];
            if (element == UNDEFINED)
                continue;
            const sbp_buffer *b = &s->program->buffers[s->buffer_of[element]];
            if (function >= 0 ? b->function == function : !is_kept(b))
                owner[space][cell] = UNDEFINED;
        }
}

static const char *check_data_of(sbp_arena *arena, const fence_stream *s, const event *e, int32_t **owner) {
    for (int32_t k = 0; k < e->touch_count; k++) {
        const touch *t = &e->touches[k];
        for (int32_t cell = t->cell; cell < t->cell_end; cell++) {
            int32_t was = owner[t->space][cell];
            const sbp_buffer *old = was == UNDEFINED ? NULL : &s->program->buffers[s->buffer_of[was]];
            if (t->reads && was != t->element)
                return sbp_arena_printf(arena, "T %lld: %s, which %s%s wrote last", (long long)s->t,
                                        describe(arena, s, e, t), old ? old->name : "nobody",
                                        old ? "" : " in this entry or call");
            if (t->writes && old && was != t->element && is_kept(old))
                return sbp_arena_printf(arena, "T %lld: %s, which belongs to %s", (long long)s->t,
                                        describe(arena, s, e, t), old->name);
        }
    }
    for (int32_t k = 0; k < e->touch_count; k++)
        for (int32_t cell = e->touches[k].cell; cell < e->touches[k].cell_end; cell++)
            if (e->touches[k].writes)
                owner[e->touches[k].space][cell] = e->touches[k].element;
    for (int32_t k = 0; k < e->touch_count; k++)
        for (int32_t cell = e->touches[k].cell; cell < e->touches[k].cell_end; cell++) {
            int32_t now = owner[e->touches[k].space][cell];
            if (now != e->touches[k].element)
                return sbp_arena_printf(arena, "T %lld: %s, where it writes %s itself", (long long)s->t,
                                        describe(arena, s, e, &e->touches[k]),
                                        s->program->buffers[s->buffer_of[now]].name);
        }
    return NULL;
}

const char *fence_stream_check_data(sbp_arena *arena, const fence_stream *s) {
    sbp_arena *own = sbp_arena_create();
    int32_t *owner[SBP_SPACE_COUNT];
    for (int space = 0; space < SBP_SPACE_COUNT; space++) {
        owner[space] = SBP_NEW_ARRAY(own, int32_t, s->cells[space] + 1);
        for (int32_t k = 0; k < s->cells[space]; k++)
            owner[space][k] = UNDEFINED;
    }
    const char *message = fill_kept(arena, s, owner);
    for (int32_t e = 0; e < s->count && !message; e++) {
        const event *at = &s->events[e];
        if (at->kind == EVENT_ENTRY)
            forget(s, owner, -1);
        else if (at->kind == EVENT_CALL)
            forget(s, owner, at->function);
        else if (at->kind == EVENT_COMMAND)
            message = check_data_of(arena, s, at, owner);
    }
    sbp_arena_destroy(own);
    return message;
}

/* ---- fences and sequences ---------------------------------------------------------------------------- */

static void list_fences(sbp_arena *arena, const sbp_body *body, fence_list *list) {
    for (int32_t n = 0; n < body->count; n++) {
        const sbp_node *node = &body->nodes[n];
        if (node->kind == SBP_NODE_LOOP)
            list_fences(arena, &node->u.loop->body, list);
        else if (node->kind == SBP_NODE_COMMAND && node->u.command->kind == SBP_CMD_FENCE)
            SBP_PUSH(arena, list->items, list->count, list->capacity, node->u.command);
    }
}

fence_list fence_list_make(sbp_arena *arena, const sbp_program *program) {
    fence_list list = {0};
    for (int32_t f = 0; f < program->function_count; f++)
        list_fences(arena, &program->functions[f].body, &list);
    for (int32_t e = 0; e < program->entry_count; e++)
        list_fences(arena, &program->entries[e].body, &list);
    return list;
}

int32_t fence_sequence_of_pairs(sbp_arena *arena, const sbp_program *program, int32_t **out) {
    int32_t n = program->entry_count, count = 0;
    int32_t *list = SBP_NEW_ARRAY(arena, int32_t, n * n + 1);
    for (int32_t a = 0; a < n; a++)
        for (int32_t b = a; b < n; b++) {
            list[count++] = a;
            if (b > a)
                list[count++] = b;
        }
    if (n > 0)
        list[count++] = 0;
    *out = list;
    return count;
}
