/* fence_trace.c: what a body executes, as steps: commands with the memory they touch, and gaps between them.
 */
#include "passes/fences/fence.h"

/* ---- what operands touch ----------------------------------------------------------------------------- */

static sbp_status fail_view(const sbp_fence_pass *pass, const sbp_command *command) {
    return sbp_fail(pass->diag, SBP_INTERNAL, "fence: an operand of a %s command leaves its buffer",
                    sbp_command_name(command->kind));
}

static bool names_lo(const sbp_view *view) {
    return view->start.column >= SBP_COLUMN_LO || view->length.column >= SBP_COLUMN_LO;
}

/* Rows of a view; with a lo column, the rows of any lo from 0 to row0. */
static bool resolve(const sbp_fence_pass *pass, const sbp_function *function, const sbp_view *view,
                    const sbp_position *position, int64_t *row, int64_t *row_end) {
    sbp_range range;
    if (!sbp_view_resolve(pass->program, function, view, position, &range))
        return false;
    *row = range.start;
    *row_end = range.start + range.rows;
    if (position->table < 0 || !names_lo(view))
        return true;
    sbp_position from_zero = *position;
    for (int c = SBP_COLUMN_LO; c < SBP_MAX_COLUMNS; c++)
        from_zero.columns[c] = 0;
    if (!sbp_view_resolve(pass->program, function, view, &from_zero, &range))
        return false;
    *row = range.start < *row ? range.start : *row;
    *row_end = range.start + range.rows > *row_end ? range.start + range.rows : *row_end;
    return true;
}

static sbp_position position_at(const sbp_fence_pass *pass, int64_t t) {
    int64_t s = pass->program->s_max < t ? pass->program->s_max : t;
    return (sbp_position){.sizes = sbp_program_sizes(pass->program, t, s), .table = -1};
}

/* Bytes of the rows `most` of a buffer element. */
static void find_bytes(const sbp_program *program, sbp_fence_access *a) {
    const sbp_buffer *b = &program->buffers[a->ref];
    int64_t unit = sbp_dtype_bytes(b->dtype), element = b->offset + a->slot * b->stride;
    a->space = b->space;
    a->low = element + (a->most * a->width + a->col) * unit;
    a->high = element + ((a->most_end - 1) * a->width + a->col_end) * unit;
}

/* The first and the last iteration at t_max tell how far views reach at any size: they grow with T, and are
 * affine in i. */
static sbp_status find_most(sbp_fence_pass *pass, const sbp_function *function, int32_t table,
                            const sbp_command *command, sbp_fence_access **out) {
    const sbp_program *program = pass->program;
    sbp_command_operand operands[SBP_MAX_COMMAND_OPERANDS];
    sbp_command_operands(program, command, operands);
    sbp_fence_access *most = SBP_NEW_ARRAY(pass->arena, sbp_fence_access, command->view_count);
    sbp_position position = position_at(pass, program->t_max);
    int64_t last = table >= 0 ? sbp_table_rows(program, table, &position.sizes) - 1 : 0;
    for (int32_t k = 0; k < command->view_count; k++) {
        const sbp_view *view = &command->views[k];
        most[k].ref = view->ref;
        if (view->ref == SBP_NO_VIEW)
            continue;
        sbp_extent rows;
        if (!sbp_view_shape(program, function, view, &rows, &most[k].width))
            return fail_view(pass, command);
        most[k].wide = view->width != 0;
        most[k].slot = view->slot;
        most[k].col = view->col;
        most[k].col_end = view->col + view->cols;
        most[k].writes = operands[k].access != SBP_READ;
        for (int64_t end = 0; end < 2; end++) {
            int64_t row, row_end;
            sbp_position_set(&position, program, table, end * last);
            if (!resolve(pass, function, view, &position, &row, &row_end))
                return fail_view(pass, command);
            most[k].most = end == 0 || row < most[k].most ? row : most[k].most;
            most[k].most_end = end == 0 || row_end > most[k].most_end ? row_end : most[k].most_end;
        }
        if (view->ref >= 0)
            find_bytes(program, &most[k]);
    }
    *out = most;
    return SBP_OK;
}

/* ---- regions ----------------------------------------------------------------------------------------- */

static void add_gaps(sbp_fence_pass *pass, int32_t count, int32_t depth) {
    for (int32_t g = 0; g < count; g++) {
        int32_t same = pass->gaps, capacity = pass->gap_capacity;
        SBP_PUSH(pass->arena, pass->fences, same, capacity, 0);
        SBP_PUSH(pass->arena, pass->depth, pass->gaps, pass->gap_capacity, depth);
    }
}

static void add_trip_scalar(sbp_fence_pass *pass, int32_t scalar) {
    for (int32_t s = 0; s < pass->trip_scalar_count; s++)
        if (pass->trip_scalars[s] == scalar)
            return;
    SBP_PUSH(pass->arena, pass->trip_scalars, pass->trip_scalar_count, pass->trip_scalar_capacity, scalar);
}

static sbp_status make_region(sbp_fence_pass *pass, sbp_body *body, const sbp_function *function,
                              int32_t table, int32_t depth, sbp_fence_region **out) {
    sbp_fence_region *region = SBP_NEW(pass->arena, sbp_fence_region);
    region->body = body;
    region->first_gap = pass->gaps;
    region->loops = SBP_NEW_ARRAY(pass->arena, sbp_fence_region *, body->count);
    region->most = SBP_NEW_ARRAY(pass->arena, sbp_fence_access *, body->count);
    add_gaps(pass, body->count + 1, depth);
    for (int32_t n = 0; n < body->count; n++) {
        const sbp_node *node = &body->nodes[n];
        if (node->kind == SBP_NODE_COMMAND) {
            pass->number_of[node->u.command->queue] = 0; /* its number comes later */
            SBP_TRY(find_most(pass, function, table, node->u.command, &region->most[n]));
        }
        if (node->kind == SBP_NODE_CALL)
            pass->called[node->u.call->function] = true;
        if (node->kind != SBP_NODE_LOOP)
            continue;
        sbp_loop *loop = node->u.loop;
        if (loop->table < 0)
            add_trip_scalar(pass, loop->scalar);
        SBP_TRY(make_region(pass, &loop->body, function, loop->table >= 0 ? loop->table : table, depth + 1,
                            &region->loops[n]));
    }
    *out = region;
    return SBP_OK;
}

sbp_status sbp_fence_region_make(sbp_fence_pass *pass, sbp_body *body, const sbp_function *function,
                                 sbp_fence_region **out) {
    return make_region(pass, body, function, -1, 0, out);
}

/* ---- steps ------------------------------------------------------------------------------------------- */

static void start(const sbp_fence_pass *pass, sbp_fence_trace *trace) {
    for (int q = 0; q < pass->queue_count; q++)
        trace->latest[q] = -1;
}

static void push_step(sbp_fence_pass *pass, sbp_fence_trace *trace, sbp_fence_step step) {
    for (int q = 0; q < pass->queue_count; q++) {
        step.before[q] = step.unseen[q] = trace->latest[q];
        step.conflict[q] = -1;
    }
    if (step.kind == SBP_FENCE_COMMAND)
        trace->latest[step.queue] = trace->count;
    SBP_PUSH(pass->arena, trace->steps, trace->count, trace->capacity, step);
}

static sbp_status push_command(sbp_fence_pass *pass, sbp_fence_trace *trace, const sbp_function *function,
                               const sbp_position *position, const sbp_command *command,
                               const sbp_fence_access *most) {
    sbp_fence_access *accesses = SBP_NEW_ARRAY(pass->arena, sbp_fence_access, command->view_count);
    int32_t count = 0;
    for (int32_t k = 0; k < command->view_count; k++) {
        if (command->views[k].ref == SBP_NO_VIEW)
            continue;
        sbp_fence_access *a = &accesses[count];
        *a = most[k];
        a->row = a->most; /* outside loops: at any size */
        a->row_end = a->most_end;
        if (position->table >= 0 &&
            !resolve(pass, function, &command->views[k], position, &a->row, &a->row_end))
            return fail_view(pass, command);
        count += a->row < a->row_end;
    }
    push_step(pass, trace,
              (sbp_fence_step){.kind = SBP_FENCE_COMMAND,
                               .queue = (uint8_t)pass->number_of[command->queue],
                               .accesses = accesses,
                               .access_count = count,
                               .far_count = count});
    return SBP_OK;
}

/* ---- calls ------------------------------------------------------------------------------------------- */

/* An access of a function, in terms of the buffers of a call. */
static sbp_status bind_access(const sbp_fence_pass *pass, const sbp_call *call, const sbp_position *position,
                              sbp_fence_access *a) {
    if (a->ref < 0) {
        const sbp_view *view = &call->views[~a->ref];
        int64_t row, row_end, most = 0, most_end, total, width;
        sbp_extent rows;
        sbp_position widest = position_at(pass, pass->program->t_max);
        if (!sbp_view_shape(pass->program, NULL, view, &rows, &width) ||
            !resolve(pass, NULL, view, position, &row, &row_end) ||
            (position->table < 0 && !resolve(pass, NULL, view, &widest, &most, &most_end)) ||
            !sbp_extent_eval(rows, &widest.sizes, &total))
            return sbp_fail(pass->diag, SBP_INTERNAL, "fence: an argument of a call leaves its buffer");
        int64_t col = view->col;
        if (a->wide) { /* the call passes whole rows from a fixed one (program_c28) */
            int64_t before = row * width;
            row = most = before / a->width;
            col = before % a->width;
        } else {
            a->width = width;
        }
        a->row += row;
        a->row_end += row;
        a->most += most;
        a->most_end = position->table < 0 || a->wide ? a->most_end + most : total; /* in a loop: anywhere */
        a->col += col;
        a->col_end += col;
        a->ref = view->ref;
        a->slot = view->slot;
        find_bytes(pass->program, a);
    }
    if (position->table < 0) { /* outside loops: at any size */
        a->row = a->most;
        a->row_end = a->most_end;
    }
    return SBP_OK;
}

static sbp_status push_call(sbp_fence_pass *pass, sbp_fence_trace *trace, const sbp_position *position,
                            const sbp_call *call) {
    const sbp_fence_summary *summary = &pass->summaries[call->function];
    for (int32_t s = 0; s < summary->count; s++) {
        sbp_fence_step step = summary->steps[s];
        int32_t count = step.access_count > step.far_count ? step.access_count : step.far_count;
        sbp_fence_access *accesses = SBP_NEW_ARRAY(pass->arena, sbp_fence_access, count);
        for (int32_t k = 0; k < count; k++) {
            accesses[k] = step.accesses[k];
            SBP_TRY(bind_access(pass, call, position, &accesses[k]));
        }
        step.accesses = accesses;
        push_step(pass, trace, step);
    }
    return SBP_OK;
}

/* ---- bodies ------------------------------------------------------------------------------------------ */

static sbp_status walk(sbp_fence_pass *pass, const sbp_fence_region *region, const sbp_function *function,
                       const sbp_position *position, sbp_fence_trace *trace);

/* Two iterations from either end: what holds between neighbours there holds between all of them. */
static sbp_status walk_table(sbp_fence_pass *pass, const sbp_fence_region *region,
                             const sbp_function *function, const sbp_loop *loop, sbp_position position,
                             sbp_fence_trace *trace) {
    enum { ENDS = 2 };
    int64_t trips = sbp_table_rows(pass->program, loop->table, &position.sizes);
    for (int64_t k = 0; k < trips; k++) {
        if (k == ENDS && trips > 2 * ENDS) {
            for (int32_t g = 0; g <= region->body->count; g++)
                push_step(pass, trace,
                          (sbp_fence_step){.kind = SBP_FENCE_PASSED, .gap = region->first_gap + g});
            k = trips - ENDS;
        }
        sbp_position_set(&position, pass->program, loop->table, loop->descending ? trips - 1 - k : k);
        SBP_TRY(walk(pass, region, function, &position, trace));
    }
    return SBP_OK;
}

static int32_t trips_of(const sbp_fence_pass *pass, int32_t scalar) {
    for (int32_t s = 0; s < pass->trip_scalar_count; s++)
        if (pass->trip_scalars[s] == scalar)
            return pass->trips[s];
    return 0;
}

static sbp_status walk(sbp_fence_pass *pass, const sbp_fence_region *region, const sbp_function *function,
                       const sbp_position *position, sbp_fence_trace *trace) {
    for (int32_t n = 0; n <= region->body->count; n++) {
        push_step(pass, trace, (sbp_fence_step){.kind = SBP_FENCE_GAP, .gap = region->first_gap + n});
        if (n == region->body->count)
            break;
        const sbp_node *node = &region->body->nodes[n];
        if (node->kind == SBP_NODE_COMMAND)
            SBP_TRY(push_command(pass, trace, function, position, node->u.command, region->most[n]));
        else if (node->kind == SBP_NODE_CALL)
            SBP_TRY(push_call(pass, trace, position, node->u.call));
        else if (node->u.loop->table >= 0)
            SBP_TRY(walk_table(pass, region->loops[n], function, node->u.loop, *position, trace));
        else
            for (int32_t k = trips_of(pass, node->u.loop->scalar); k > 0; k--)
                SBP_TRY(walk(pass, region->loops[n], function, position, trace));
    }
    return SBP_OK;
}

sbp_status sbp_fence_trace_body(sbp_fence_pass *pass, const sbp_fence_region *region,
                                const sbp_function *function, int64_t t, sbp_fence_trace *trace) {
    start(pass, trace);
    sbp_position position = position_at(pass, t);
    return walk(pass, region, function, &position, trace);
}

void sbp_fence_trace_append(sbp_fence_pass *pass, sbp_fence_trace *trace, const sbp_fence_trace *more) {
    if (trace->count == 0)
        start(pass, trace);
    for (int32_t s = 0; s < more->count; s++)
        push_step(pass, trace, more->steps[s]);
}

/* ---- summaries --------------------------------------------------------------------------------------- */

typedef struct access_list {
    sbp_fence_access *items;
    int32_t count, capacity;
} access_list;

/* Adds an access to those from `begin` on, which belong to one joined command. */
static void join_access(sbp_fence_pass *pass, access_list *list, int32_t begin, const sbp_fence_access *a) {
    for (int32_t k = begin; k < list->count; k++) {
        sbp_fence_access *b = &list->items[k];
        if (b->ref != a->ref || b->slot != a->slot || b->writes != a->writes || b->width != a->width ||
            b->wide != a->wide || b->col != a->col || b->col_end != a->col_end)
            continue;
        b->row = a->row < b->row ? a->row : b->row;
        b->row_end = a->row_end > b->row_end ? a->row_end : b->row_end;
        b->most = a->most < b->most ? a->most : b->most;
        b->most_end = a->most_end > b->most_end ? a->most_end : b->most_end;
        b->low = a->low < b->low ? a->low : b->low;
        b->high = a->high > b->high ? a->high : b->high;
        return;
    }
    SBP_PUSH(pass->arena, list->items, list->count, list->capacity, *a);
}

static void join_steps(sbp_fence_pass *pass, access_list *list, const sbp_fence_trace *trace, int32_t begin,
                       int32_t end) {
    int32_t first = list->count;
    for (int32_t s = begin; s < end; s++)
        for (int32_t k = 0; k < trace->steps[s].access_count; k++)
            join_access(pass, list, first, &trace->steps[s].accesses[k]);
}

/* Steps begin .. end - 1 as one command. The first of a call also has all else of the call, for other queues.
 */
static void push_joined(sbp_fence_pass *pass, sbp_fence_summary *summary, const sbp_fence_trace *trace,
                        int32_t begin, int32_t end, bool first) {
    access_list list = {0};
    sbp_fence_step step = {.kind = SBP_FENCE_COMMAND};
    join_steps(pass, &list, trace, begin, end);
    step.access_count = list.count;
    if (first && pass->queue_count > 1) {
        join_steps(pass, &list, trace, end, trace->count);
        step.far_count = list.count;
    }
    step.accesses = list.items;
    if (list.count > 0)
        SBP_PUSH(pass->arena, summary->steps, summary->count, summary->capacity, step);
}

static void push_fixed(sbp_fence_pass *pass, sbp_fence_summary *summary, uint64_t mask) {
    SBP_PUSH(pass->arena, summary->steps, summary->count, summary->capacity,
             (sbp_fence_step){.kind = SBP_FENCE_FIXED, .mask = mask});
}

/* Everything as it is: for functions that use more than queue 0. */
static void copy_steps(sbp_fence_pass *pass, sbp_fence_summary *summary, const sbp_fence_trace *trace) {
    for (int32_t s = 1; s < trace->count; s++) {
        if (trace->steps[s].kind == SBP_FENCE_COMMAND)
            SBP_PUSH(pass->arena, summary->steps, summary->count, summary->capacity, trace->steps[s]);
        else if (pass->fences[trace->steps[s].gap])
            push_fixed(pass, summary, pass->fences[trace->steps[s].gap]);
    }
}

sbp_status sbp_fence_summarize(sbp_fence_pass *pass, int32_t function, int64_t t) {
    sbp_fence_trace trace = {0};
    sbp_fence_summary *summary = &pass->summaries[function];
    summary->count = 0;
    SBP_PUSH(pass->arena, summary->steps, summary->count, summary->capacity,
             (sbp_fence_step){.kind = SBP_FENCE_PASSED, .gap = pass->functions[function]->first_gap});
    SBP_TRY(sbp_fence_trace_body(pass, pass->functions[function], &pass->program->functions[function], t,
                                 &trace));
    int32_t first = trace.count, last = trace.count;
    bool simple = true;
    for (int32_t s = 1; s < trace.count; s++) { /* behind the first gap */
        const sbp_fence_step *step = &trace.steps[s];
        if (step->kind == SBP_FENCE_COMMAND) {
            simple &= step->queue == 0;
            continue;
        }
        simple &= (pass->fences[step->gap] & ~sbp_fence_bit(0, 0)) == 0;
        if (pass->fences[step->gap] == 0)
            continue;
        first = first == trace.count ? s : first;
        last = s;
    }
    if (!simple) {
        copy_steps(pass, summary, &trace);
        return SBP_OK;
    }
    push_joined(pass, summary, &trace, 0, first, true);
    if (first == trace.count)
        return SBP_OK;
    push_fixed(pass, summary, sbp_fence_bit(0, 0));
    if (last > first) {
        if (pass->queue_count > 1) /* queue 0 has fences on both sides */
            push_joined(pass, summary, &trace, first, last, false);
        push_fixed(pass, summary, sbp_fence_bit(0, 0));
    }
    push_joined(pass, summary, &trace, last, trace.count, false);
    return SBP_OK;
}
