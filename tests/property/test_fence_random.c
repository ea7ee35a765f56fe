/* test_fence_random.c: fences of random programs. No compiler would write such programs: copies in all
 * queues inside functions and loops, buffers placed over each other at random, conditionals. The fences must
 * order all conflicts at every size (tests/common/fence_simulator.h). That no fence is too many is promised
 * only for programs that the passes make; here most must be needed. */
#include "passes/lower/passes.h"
#include "tests/common/fence_simulator.h"
#include "tests/common/sweep.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    T_MAX_MOST = 13,
    WINDOW = 3,
    COLS = 3,
    TRIPS_MOST = 3,
    ELEMS = 12 /* of a buffer that is seen with widths */
};

static uint64_t state;

static int pick(int n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)n);
}

static bool chance(int percent) {
    return pick(100) < percent;
}

/* ---- random programs --------------------------------------------------------------------------------- */

typedef struct maker {
    sbp_arena *arena;
    sbp_program *p;
    int32_t function; /* -1: in an entry */
    int32_t table;    /* of the loop around, -1 */
    bool copies;      /* not all is on the device and in queue compute */
    bool wide;        /* all rows are constant, and seen with any width */
} maker;

static int32_t add_buffer(maker *m, sbp_role role, sbp_space space, sbp_extent rows, int32_t count,
                          int64_t cols) {
    sbp_program *p = m->p;
    SBP_PUSH(m->arena, p->buffers, p->buffer_count, p->buffer_capacity,
             (sbp_buffer){.name = sbp_arena_printf(m->arena, "b%d", p->buffer_count),
                          .role = role,
                          .space = space,
                          .dtype = SBP_F32,
                          .count = count,
                          .rows = rows,
                          .cols = cols,
                          .function = m->function,
                          .offset = -1});
    return p->buffer_count - 1;
}

static bool has_rows(const maker *m, int32_t ref, sbp_symbol symbol) {
    sbp_extent rows = ref >= 0 ? m->p->buffers[ref].rows : m->p->functions[m->function].formals[~ref].rows;
    return sbp_extent_equal(rows, sbp_extent_symbol(symbol, 1));
}

/* A buffer or formal that may be named here. */
static int32_t pick_ref(const maker *m) {
    int32_t formals = m->function >= 0 ? m->p->functions[m->function].formal_count : 0;
    for (;;) {
        int32_t k = pick(m->p->buffer_count + (m->wide ? 6 : 2) * formals);
        if (k >= m->p->buffer_count)
            return ~((k - m->p->buffer_count) % formals);
        if (m->p->buffers[k].function == -1 || m->p->buffers[k].function == m->function)
            return k;
    }
}

typedef enum shape { WHOLE, CHUNK, SEEN, LOCAL, WIDE, CONSTANT } shape;

static bool is_constant(const maker *m, int32_t ref) {
    sbp_extent rows = ref >= 0 ? m->p->buffers[ref].rows : m->p->functions[m->function].formals[~ref].rows;
    return sbp_extent_as_const(rows) > 0;
}

/* Some rows of a buffer or formal of constant rows, maybe seen with another width. */
static void wide_view(maker *m, sbp_view *view) {
    static const int64_t widths[] = {1, 2, 3, 4, 6, 12};
    const sbp_function *f = m->function >= 0 ? &m->p->functions[m->function] : NULL;
    sbp_view wide = *view;
    sbp_extent rows;
    wide.width = widths[pick(SBP_COUNT(widths))];
    if (chance(view->ref < 0 ? 90 : 70) && sbp_view_shape(m->p, f, &wide, &rows, &wide.cols))
        *view = sbp_view_wide(m->p, f, view, wide.width);
    if (chance(50)) {
        int64_t count = sbp_extent_as_const(view->length.base), start = pick((int)count);
        view->start.base = sbp_extent_const(start);
        view->length.base = sbp_extent_const(1 + pick((int)(count - start)));
    }
}

/* A view of that shape, if the buffer allows it. */
static bool make_view(maker *m, int32_t ref, shape kind, sbp_view *out) {
    sbp_view view = ref >= 0 ? sbp_view_buffer(m->p, ref, pick(m->p->buffers[ref].count))
                             : sbp_view_formal(&m->p->functions[m->function], ~ref);
    sbp_symbol step = m->table >= 0 ? m->p->tables[m->table].step : SBP_ONE;
    switch (kind) {
    case WHOLE:
        if (!has_rows(m, ref, SBP_T))
            return false;
        break;
    case CHUNK:
        if (m->table < 0 || !has_rows(m, ref, SBP_T))
            return false;
        view = sbp_view_chunk(view, step);
        break;
    case SEEN:
        if (m->table != 0 || !has_rows(m, ref, SBP_T))
            return false;
        view.start = (sbp_index){.column = SBP_COLUMN_LO + pick(2)};
        view.length = (sbp_index){.column = SBP_COLUMN_HI};
        view.until = true;
        break;
    case LOCAL:
        if (m->table < 0 || !has_rows(m, ref, step))
            return false;
        break;
    case CONSTANT:
        if (ref < 0 || sbp_extent_as_const(m->p->buffers[ref].rows) != 1)
            return false;
        break;
    case WIDE:
        if (!is_constant(m, ref))
            return false;
        wide_view(m, &view);
        break;
    }
    if (chance(30)) { /* some of the columns */
        view.col = pick((int)view.cols);
        view.cols = 1 + pick((int)(view.cols - view.col));
    }
    *out = view;
    return true;
}

static sbp_view any_view(maker *m, shape kind) {
    sbp_view view;
    for (int tries = 0; tries < 200; tries++)
        if (make_view(m, pick_ref(m), kind, &view))
            return view;
    return sbp_view_none();
}

static bool is_writable(const maker *m, const sbp_view *view) {
    return view->ref >= 0 || m->p->functions[m->function].formals[~view->ref].access != SBP_READ;
}

static sbp_command *add_command(maker *m, sbp_body *body, sbp_command_kind kind) {
    sbp_command *command = sbp_command_create(m->arena, kind, SBP_MAX_COMMAND_OPERANDS);
    sbp_node node = {.kind = SBP_NODE_COMMAND, .u.command = command};
    SBP_PUSH(m->arena, body->nodes, body->count, body->capacity, node);
    return command;
}

/* The space of a buffer; for a formal any: what the verifier does not like is taken out later. */
static sbp_space space_of(const maker *m, const sbp_view *view) {
    return view->ref >= 0 ? m->p->buffers[view->ref].space : m->copies && chance(50) ? SBP_HOST : SBP_DEVICE;
}

static int32_t queue_of(const maker *m, const sbp_view *view) {
    return space_of(m, view) == SBP_HOST ? SBP_QUEUE_HOST : SBP_QUEUE_COMPUTE;
}

/* fill, copy, or colsum (which updates). */
static void make_command(maker *m, sbp_body *body) {
    shape from = m->wide ? WIDE : (shape)pick(CONSTANT);
    sbp_view src = any_view(m, from),
             dst = any_view(m, chance(50) || from == SEEN || from == WIDE ? from : CHUNK);
    int kind = pick(10);
    if (src.ref == SBP_NO_VIEW || dst.ref == SBP_NO_VIEW || !is_writable(m, &dst))
        return;
    if (from == WIDE && kind >= 3 && kind < 8) {
        int64_t a = sbp_extent_as_const(src.length.base), b = sbp_extent_as_const(dst.length.base);
        src.length.base = dst.length.base = sbp_extent_const(a < b ? a : b);
    }
    if (kind < 3) {
        sbp_command *fill = add_command(m, body, SBP_CMD_FILL);
        fill->views[0] = dst;
        fill->view_count = 1;
        fill->queue = queue_of(m, &dst);
    } else if (kind < 8) {
        src.cols = dst.cols = src.cols < dst.cols ? src.cols : dst.cols;
        sbp_command *copy = add_command(m, body, SBP_CMD_COPY);
        copy->views[0] = dst;
        copy->views[1] = src;
        copy->view_count = 2;
        copy->queue = (int32_t)sbp_queue_of_copy(space_of(m, &dst), space_of(m, &src));
    } else {
        dst = any_view(m, CONSTANT);
        src.cols = dst.cols = src.cols < dst.cols ? src.cols : dst.cols;
        sbp_command *sum = add_command(m, body, SBP_CMD_COLSUM);
        sum->views[0] = dst;
        sum->views[1] = src;
        sum->view_count = 2;
        sum->u.reduce.beta = 1;
        sum->queue = queue_of(m, &dst);
    }
}

static void make_body(maker *m, sbp_body *body, int length, int depth);

static void make_loop(maker *m, sbp_body *body, int depth) {
    sbp_loop *loop = SBP_NEW(m->arena, sbp_loop);
    bool over_table = m->function >= 0 && m->table < 0 && chance(80);
    int32_t outer = m->table;
    *loop = (sbp_loop){.table = over_table ? pick(4) == 3 : -1,
                       .scalar = over_table ? -1 : 2 + pick(2),
                       .descending = over_table && chance(50)};
    if (over_table)
        m->table = loop->table;
    make_body(m, &loop->body, 1 + pick(6), depth + 1);
    m->table = outer;
    sbp_node node = {.kind = SBP_NODE_LOOP, .u.loop = loop};
    SBP_PUSH(m->arena, body->nodes, body->count, body->capacity, node);
}

/* A view for a formal of constant rows. */
static bool pass_wide(maker *m, const sbp_formal *formal, int32_t ref, sbp_view *view) {
    if (ref < 0 || !is_constant(m, ref))
        return false;
    *view = sbp_view_buffer(m->p, ref, pick(m->p->buffers[ref].count));
    int64_t elems = sbp_extent_as_const(m->p->buffers[ref].rows) * view->cols;
    if (chance(60) && elems % formal->cols == 0) { /* whole rows, as a formal seen with a width wants them */
        *view = sbp_view_wide(m->p, NULL, view, formal->cols);
        view->start.base = sbp_extent_const(pick((int)sbp_extent_as_const(view->length.base)));
        view->length.base.c[SBP_ONE] -= view->start.base.c[SBP_ONE];
    } else {
        wide_view(m, view);
    }
    int64_t start = sbp_extent_as_const(view->start.base), rows = sbp_extent_as_const(formal->rows);
    if (start < 0 || sbp_extent_as_const(view->length.base) < rows || view->cols < formal->cols)
        return false;
    view->length.base = formal->rows;
    view->col = pick((int)(view->cols - formal->cols) + 1);
    view->cols = formal->cols;
    return true;
}

static void make_call(maker *m, sbp_body *body) {
    sbp_call *call = SBP_NEW(m->arena, sbp_call);
    call->function = pick(m->p->function_count);
    const sbp_function *f = &m->p->functions[call->function];
    call->views = SBP_NEW_ARRAY(m->arena, sbp_view, f->formal_count);
    for (int32_t k = 0; k < f->formal_count; k++)
        for (int tries = 0; tries < 50; tries++) {
            int32_t ref = pick_ref(m);
            if (sbp_extent_as_const(f->formals[k].rows) > 0) {
                if (pass_wide(m, &f->formals[k], ref, &call->views[k]))
                    break;
                continue;
            }
            if (ref < 0 || !has_rows(m, ref, SBP_T) || m->p->buffers[ref].cols < f->formals[k].cols)
                continue;
            call->views[k] = sbp_view_buffer(m->p, ref, pick(m->p->buffers[ref].count));
            call->views[k].cols = f->formals[k].cols;
            call->views[k].col = pick((int)(m->p->buffers[ref].cols - f->formals[k].cols) + 1);
            break;
        }
    sbp_node node = {.kind = SBP_NODE_CALL, .u.call = call};
    SBP_PUSH(m->arena, body->nodes, body->count, body->capacity, node);
}

static void make_body(maker *m, sbp_body *body, int length, int depth) {
    for (int k = 0; k < length; k++) {
        if (m->function < 0 && chance(50))
            make_call(m, body);
        else if (depth < 2 && chance(m->function < 0 ? 20 : m->wide ? 10 : 40))
            make_loop(m, body, depth);
        else
            make_command(m, body);
    }
}

static void add_table(maker *m, const char *name, sbp_symbol step, bool windows) {
    sbp_chunk_table table = {.name = name, .step = step};
    for (int64_t w = 0; windows && w < 2; w++)
        SBP_PUSH(m->arena, table.windows, table.window_count, table.window_capacity, w * WINDOW);
    SBP_PUSH(m->arena, m->p->tables, m->p->table_count, m->p->table_capacity, table);
}

static void make_function(maker *m) {
    sbp_function f = {.name = sbp_arena_printf(m->arena, "f%d", m->p->function_count)};
    int formals = m->wide ? 1 + pick(2) : pick(4);
    for (int k = 0; k < formals; k++) {
        bool constant = m->wide || chance(40);
        SBP_PUSH(m->arena, f.formals, f.formal_count, f.formal_capacity,
                 (sbp_formal){.name = sbp_arena_printf(m->arena, "x%d", k),
                              .access = m->wide ? SBP_UPDATE : (sbp_access)pick(3),
                              .dtype = SBP_F32,
                              .rows = constant ? sbp_extent_const(1 + pick(6)) : sbp_extent_symbol(SBP_T, 1),
                              .cols = 1 + pick(COLS)});
    }
    SBP_PUSH(m->arena, m->p->functions, m->p->function_count, m->p->function_capacity, f);
    m->function = m->p->function_count - 1;
    for (int k = 1 + pick(4); k > 0; k--) {
        sbp_symbol symbol = (const sbp_symbol[]){SBP_T, SBP_C, SBP_C, SBP_H}[pick(4)];
        add_buffer(m, symbol == SBP_T ? SBP_ROLE_CARRY : SBP_ROLE_SCRATCH, SBP_DEVICE,
                   sbp_extent_symbol(symbol, 1), 1, 1 + pick(COLS));
    }
    sbp_body body = {0};
    make_body(m, &body, 1 + pick(7), 0);
    m->p->functions[m->function].body = body;
    m->function = -1;
}

static bool is_named(const sbp_body *body, int32_t buffer) {
    for (int32_t n = 0; n < body->count; n++) {
        if (body->nodes[n].kind == SBP_NODE_LOOP && is_named(&body->nodes[n].u.loop->body, buffer))
            return true;
        for (int32_t k = 0;
             body->nodes[n].kind == SBP_NODE_COMMAND && k < body->nodes[n].u.command->view_count; k++)
            if (body->nodes[n].u.command->views[k].ref == buffer)
                return true;
    }
    return false;
}

/* Buffers of the program that functions name themselves have memory of their own. */
static bool may_share(const sbp_program *p, int32_t buffer) {
    for (int32_t f = 0; f < p->function_count; f++)
        if (p->buffers[buffer].function < 0 && is_named(&p->functions[f].body, buffer))
            return false;
    return true;
}

/* Buffers of the program lie in the first part of an arena, those of functions behind it; within their part
 * they may share memory. */
static void place(maker *m) {
    sbp_program *p = m->p;
    bool dense = chance(50);
    sbp_sizes most = sbp_program_sizes(p, p->t_max, p->s_max);
    int64_t begin[3][SBP_SPACE_COUNT] = {{0}};
    for (int part = 0; part < 3; part++) /* those that do not share, of the program, of functions */
        for (int32_t b = 0; b < p->buffer_count; b++) {
            sbp_buffer *buffer = &p->buffers[b];
            if (part != (buffer->function >= 0 ? 2 : may_share(p, b) ? 1 : 0))
                continue;
            if (!sbp_buffer_bytes(buffer, &most, &buffer->stride))
                abort();
            int64_t unit = buffer->space == SBP_DISK ? SBP_DISK_ALIGNMENT : 4;
            buffer->stride = sbp_round_up(buffer->stride, unit);
            int64_t *end = &p->arena_bytes[buffer->space], base = begin[part][buffer->space];
            int64_t back = part > 0 && dense && chance(50) && *end > base
                               ? unit * pick((int)((*end - base) / unit))
                               : *end - base;
            buffer->offset = base + back;
            int64_t last = buffer->offset + buffer->stride * buffer->count;
            *end = last > *end ? last : *end;
            for (int later = part + 1; later < 3; later++)
                begin[later][buffer->space] = *end;
        }
}

static sbp_program *make_program(sbp_arena *arena) {
    maker m = {.arena = arena, .p = sbp_program_create(arena, "random"), .function = -1, .table = -1};
    m.wide = chance(30);
    m.copies = chance(m.wide ? 20 : 60);
    m.p->t_max = 1 + pick(T_MAX_MOST);
    m.p->s_max = 1;
    m.p->chunk = 1 + pick(6);
    m.p->head_chunk = 1 + pick(6);
    sbp_program_add_scalar(arena, m.p, "often");
    sbp_program_add_scalar(arena, m.p, "perhaps");
    add_table(&m, "chunk", SBP_C, true);
    add_table(&m, "piece", SBP_H, false);
    for (int k = m.wide ? 0 : 2 + pick(5); k > 0; k--)
        add_buffer(&m, SBP_ROLE_STREAM, SBP_DEVICE, sbp_extent_symbol(SBP_T, 1), 1 + pick(2), 1 + pick(COLS));
    for (int k = 1 + pick(2); k > 0; k--)
        add_buffer(&m, SBP_ROLE_ACCUM, SBP_DEVICE, sbp_extent_const(1), 1, 1 + pick(COLS));
    for (int k = 2 * m.wide + pick(4); k > 0; k--) {
        int64_t cols = 1 + pick(COLS + 1);
        add_buffer(&m, SBP_ROLE_ACCUM, m.copies && chance(30) ? SBP_HOST : SBP_DEVICE,
                   sbp_extent_const(ELEMS / cols), 1 + pick(2), cols);
    }
    if (m.copies) {
        for (int k = 1 + pick(3); k > 0; k--)
            add_buffer(&m, SBP_ROLE_STREAM, SBP_HOST, sbp_extent_symbol(SBP_T, 1), 1 + pick(2), COLS);
        add_buffer(&m, SBP_ROLE_ACCUM, SBP_HOST, sbp_extent_const(1), 1, 1 + pick(COLS));
        add_buffer(&m, SBP_ROLE_STREAM, SBP_DISK, sbp_extent_symbol(SBP_T, 1), 1 + pick(2), COLS);
    }
    for (int k = 1 + pick(3); k > 0; k--)
        make_function(&m);
    for (int k = 1 + pick(3); k > 0; k--) {
        sbp_body body = {0};
        make_body(&m, &body, 1 + pick(6), 0);
        SBP_PUSH(arena, m.p->entries, m.p->entry_count, m.p->entry_capacity,
                 (sbp_entry){.name = sbp_arena_printf(arena, "e%d", k), .body = body});
    }
    place(&m);
    return m.p;
}

/* Takes out of a program what the verifier objects to: whole nodes, one after the other. */
static bool verifies(const sbp_program *p, sbp_diag *diag) {
    bool good = sbp_program_verify(p, diag) == SBP_OK;
    sbp_diag_clear(diag);
    return good;
}

static void prune(const sbp_program *p, sbp_diag *diag, sbp_body *body) {
    int32_t count = body->count;
    sbp_node *all = body->nodes;
    body->count = 0;
    for (int32_t n = 0; n < count; n++) {
        all[body->count++] = all[n];
        if (all[n].kind == SBP_NODE_LOOP)
            prune(p, diag, &all[n].u.loop->body);
        if (!verifies(p, diag))
            body->count--;
    }
}

/* Bodies grow node by node, keeping what verifies. */
static void make_valid(sbp_program *p, sbp_diag *diag) {
    int32_t functions = p->function_count, entries = p->entry_count;
    int32_t *counts = calloc((size_t)(functions + entries), sizeof *counts);
    for (int32_t e = 0; e < entries; e++) {
        counts[functions + e] = p->entries[e].body.count;
        p->entries[e].body.count = 0;
    }
    for (int32_t f = 0; f < functions; f++) {
        counts[f] = p->functions[f].body.count;
        p->functions[f].body.count = 0;
    }
    for (int32_t k = 0; k < functions + entries; k++) {
        sbp_body *body = k < functions ? &p->functions[k].body : &p->entries[k - functions].body;
        body->count = counts[k];
        prune(p, diag, body);
    }
    free(counts);
}

/* ---- the test ---------------------------------------------------------------------------------------- */

typedef struct work {
    sbp_arena *arena;
    sbp_diag *diag;
    uint64_t seed;
    int64_t fences, needed, commands, wide, formals; /* wide: views with a width; formals: those of formals */
} work;

static void count_wide(work *w, const sbp_body *body) {
    for (int32_t n = 0; n < body->count; n++) {
        const sbp_node *node = &body->nodes[n];
        if (node->kind == SBP_NODE_LOOP)
            count_wide(w, &node->u.loop->body);
        for (int32_t k = 0; node->kind == SBP_NODE_COMMAND && k < node->u.command->view_count; k++) {
            bool wide = node->u.command->views[k].width != 0;
            w->wide += wide;
            w->formals += wide && node->u.command->views[k].ref < 0;
        }
    }
}

static fence_stream *record(work *w, const sbp_program *p, int64_t t, int layout) {
    int64_t first[T_MAX_MOST], shared_end[T_MAX_MOST], own[T_MAX_MOST], trips[4];
    int32_t *sequence, count = fence_sequence_of_pairs(w->arena, p, &sequence);
    for (int64_t k = 0; k < t; k++) {
        bool begins = layout == 1 ? k % 4 == 0 : layout == 2 && chance(50);
        first[k] = shared_end[k] = own[k] = k == 0 || begins ? k : first[k - 1];
    }
    for (int k = 0; k < 4; k++)
        trips[k] = pick(TRIPS_MOST + 1);
    fence_batch batch = {
        .t = t, .s = 1, .first = first, .shared_end = shared_end, .own = own, .trips = trips};
    fence_stream *stream;
    if (fence_stream_record(w->arena, w->diag, p, &batch, sequence, count, &stream) != SBP_OK)
        fail_msg("seed %llu: %s", (unsigned long long)w->seed, sbp_diag_text(w->diag, SBP_ERROR));
    return stream;
}

static void print_program(work *w, const sbp_program *p) {
    sbp_text text;
    sbp_text_init(&text, w->arena);
    sbp_program_print(&text, p);
    fputs(text.data, stderr);
}

static sbp_status examine(void *user) {
    enum { LAYOUTS = 3, REPEATS = 4, MAX_STREAMS = T_MAX_MOST * LAYOUTS * REPEATS };
    work *w = user;
    state = w->seed;
    sbp_program *p = make_program(w->arena);
    make_valid(p, w->diag);
    const sbp_pass_input in = {.arena = w->arena, .diag = w->diag};
    sbp_status status = sbp_pass_fence(&in, p);
    if (status != SBP_OK)
        print_program(w, p);
    SBP_TRY(status);
    SBP_TRY(sbp_program_verify(p, w->diag));
    fence_stream *streams[MAX_STREAMS];
    int count = 0;
    for (int64_t t = 1; t <= p->t_max; t++)
        for (int layout = 0; layout < LAYOUTS; layout++)
            for (int k = 0; k < REPEATS; k++) {
                streams[count] = record(w, p, t, layout);
                const char *message = fence_stream_check_order(w->arena, streams[count], NULL, false);
                if (message) {
                    print_program(w, p);
                    fail_msg("seed %llu: %s", (unsigned long long)w->seed, message);
                }
                w->commands += fence_stream_commands(streams[count++]);
            }
    for (int32_t f = 0; f < p->function_count; f++)
        count_wide(w, &p->functions[f].body);
    for (int32_t e = 0; e < p->entry_count; e++)
        count_wide(w, &p->entries[e].body);
    fence_list fences = fence_list_make(w->arena, p);
    for (int32_t f = 0; f < fences.count; f++) {
        bool needed = false;
        for (int k = 0; k < count && !needed; k++)
            needed = fence_stream_check_order(w->arena, streams[k], fences.items[f], false) != NULL;
        w->needed += needed;
        if (!needed && getenv("SBP_TEST_VERBOSE")) {
            print_program(w, p);
            print_message("seed %llu: fence %d is not needed\n", (unsigned long long)w->seed, (int)f);
        }
    }
    w->fences += fences.count;
    return SBP_OK;
}

static void random_programs(void **unused) {
    (void)unused;
    const char *from = getenv("SBP_TEST_SEED");
    uint64_t first = from ? strtoull(from, NULL, 10) : 1,
             seeds = from ? 1 : (uint64_t)testing_sweep(150, 20000);
    work total = {0};
    for (uint64_t seed = first; seed < first + seeds; seed++) {
        work w = {.arena = sbp_arena_create(), .diag = sbp_diag_create(), .seed = seed};
        if (sbp_guard(w.arena, w.diag, examine, &w) != SBP_OK)
            fail_msg("seed %llu: %s", (unsigned long long)seed, sbp_diag_text(w.diag, SBP_ERROR));
        total.fences += w.fences;
        total.needed += w.needed;
        total.wide += w.wide;
        total.formals += w.formals;
        total.commands += w.commands;
        sbp_diag_destroy(w.diag);
        sbp_arena_destroy(w.arena);
    }
    print_message("%lld commands in order; %lld fences, %lld of them needed; %lld views with a width, %lld "
                  "of them of formals\n",
                  (long long)total.commands, (long long)total.fences, (long long)total.needed,
                  (long long)total.wide, (long long)total.formals);
    if (!from)
        assert_true(total.wide > 100 && total.formals > 20 && total.fences > 300 &&
                    total.needed > total.fences * 9 / 10);
}

/* A call fills some elements of a buffer, through a formal that both sides see with drawn widths; a command
 * behind it fills others. There is a fence if and only if they share one. */
typedef struct pair_work {
    sbp_arena *arena;
    sbp_diag *diag;
    char text[1200];
    int fences;
} pair_work;

static sbp_status fence_pair(void *user) {
    pair_work *w = user;
    sbp_program *p;
    SBP_TRY(sbp_program_parse(w->arena, w->diag, "pair", w->text, strlen(w->text), &p));
    SBP_TRY(sbp_program_verify(p, w->diag));
    SBP_TRY(sbp_pass_fence(&(sbp_pass_input){.arena = w->arena, .diag = w->diag}, p));
    w->fences = fence_list_make(w->arena, p).count;
    return SBP_OK;
}

static void formals_with_widths(void **unused) {
    (void)unused;
    static const int widths[] = {1, 2, 3, 4, 6, 12};
    int found[2] = {0};
    for (state = 1; found[0] + found[1] < 400;) {
        int own = widths[pick(6)], passed = widths[pick(6)], seen = widths[pick(6)], other = widths[pick(6)];
        int start = pick(ELEMS / passed), rows = 1 + pick(ELEMS / passed - start);
        if (rows * passed % seen != 0)
            continue;
        int inner = pick(rows * passed / seen), inner_rows = 1 + pick(rows * passed / seen - inner);
        int after = pick(ELEMS / other), after_rows = 1 + pick(ELEMS / other - after);
        int begin = start * passed + inner * seen, end = begin + inner_rows * seen;
        bool shared = begin < (after + after_rows) * other && after * other < end;
        pair_work w = {.arena = sbp_arena_create(), .diag = sbp_diag_create()};
        snprintf(
            w.text, sizeof w.text,
            "program pair\ntarget cpu\nsizes t_max 1, s_max 1, chunk 1, head_chunk 1\n"
            "arena device 64, host 0\nscalars T, S\n"
            "buffer B accum device f32[%d, %d] offset 0 stride 64\nfunction @f(inout e f32[%d, %d]) {\n"
            "  fill(dst := %%e/%d[%d for %d]) {value = 0}\n}\n"
            "entry e {\n  call @f(e += B/%d[%d for %d])\n  fill(dst := B/%d[%d for %d]) {value = 0}\n}\n",
            ELEMS / own, own, rows, passed, seen, inner, inner_rows, passed, start, rows, other, after,
            after_rows);
        if (sbp_guard(w.arena, w.diag, fence_pair, &w) != SBP_OK)
            fail_msg("%s\n%s", sbp_diag_text(w.diag, SBP_ERROR), w.text);
        int at_end = 1; /* entries follow each other: the last fill before the next call, and before itself */
        if (w.fences != at_end + shared)
            fail_msg("%d fences\n%s", w.fences, w.text);
        found[shared]++;
        sbp_diag_destroy(w.diag);
        sbp_arena_destroy(w.arena);
    }
    assert_true(found[0] > 50 && found[1] > 50);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_programs),
                                       cmocka_unit_test(formals_with_widths)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
