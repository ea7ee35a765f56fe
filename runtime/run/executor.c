/* executor.c: prepares a program once and runs its entries. */
#include "ir/program/traits.h"
#include "runtime/run/executor_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- preparing -------------------------------------------------------------------------------------- */

typedef struct builder {
    sbp_executor *x;
    const sbp_function *function; /* NULL in an entry */
    int32_t table;                /* of the innermost loop over one */
} builder;

static void prepare_view(builder *b, const sbp_view *view, sbp_prepared_view *out) {
    sbp_executor *x = b->x;
    const sbp_program *p = x->program;
    *out = (sbp_prepared_view){.formal = -1, .space = SBP_SPACE_COUNT};
    if (view->ref == SBP_NO_VIEW || (view->ref < 0 && !b->function)) /* entries have no formals (c16) */
        return;
    int64_t cols = 0;
    out->view = view;
    (void)sbp_view_shape(p, b->function, view, &out->rows, &cols); /* c28 */
    if (view->ref >= 0) {
        const sbp_buffer *buffer = &p->buffers[view->ref];
        out->space = buffer->space;
        out->dtype = buffer->dtype;
        out->stride = cols;
        out->offset = buffer->offset + view->slot * buffer->stride;
    } else {
        out->formal = ~view->ref;
        out->dtype = b->function->formals[~view->ref].dtype;
        out->stride = view->width;
    }
    out->offset += view->col * sbp_dtype_bytes(out->dtype);
    if (b->table >= 0) {
        out->chunk_symbol = p->tables[b->table].step;
        out->table = b->table;
        out->local = sbp_extent_local(p, out->rows, out->chunk_symbol);
    }
    SBP_PUSH(x->arena, x->views, x->view_count, x->view_capacity, out);
}

/* Finds the operand of a command that names rows of another, and that other: which rows a column may name. */
static void prepare_index(builder *b, sbp_prepared_command *out) {
    const sbp_program *p = b->x->program;
    out->index = out->indexed = -1;
    for (int32_t k = 0; k < out->rule_count; k++) {
        if (out->rules[k].relation != SBP_ROWS_NAMED)
            continue;
        out->indexed = out->rules[k].other;
        for (int32_t r = 0; r < p->row_input_count; r++)
            if (p->row_inputs[r].buffer == out->command->views[out->rules[k].operand].ref)
                out->index = r;
    }
}

static sbp_prepared_command *prepare_command(builder *b, const sbp_command *command) {
    sbp_arena *arena = b->x->arena;
    sbp_prepared_command *out = SBP_NEW(arena, sbp_prepared_command);
    out->command = command;
    out->views = SBP_NEW_ARRAY(arena, sbp_prepared_view, command->view_count);
    for (int32_t k = 0; k < command->view_count; k++)
        prepare_view(b, &command->views[k], &out->views[k]);
    sbp_row_rule rules[SBP_MAX_ROW_RULES];
    out->rule_count = sbp_command_row_rules(b->x->program, command, rules);
    out->rules = SBP_NEW_ARRAY(arena, sbp_row_rule, out->rule_count);
    memcpy(out->rules, rules, (size_t)out->rule_count * sizeof *rules);
    out->rows_operand =
        sbp_command_kernel(b->x->program, command) ? sbp_command_rows_operand(b->x->program, command) : -1;
    prepare_index(b, out);
    return out;
}

static sbp_prepared_body *prepare_body(builder *b, const sbp_body *body) {
    sbp_arena *arena = b->x->arena;
    sbp_prepared_body *out = SBP_NEW(arena, sbp_prepared_body);
    out->nodes = SBP_NEW_ARRAY(arena, sbp_prepared_node, body->count);
    out->count = body->count;
    for (int32_t n = 0; n < body->count; n++) {
        const sbp_node *node = &body->nodes[n];
        sbp_prepared_node *to = &out->nodes[n];
        to->kind = node->kind;
        if (node->kind == SBP_NODE_COMMAND) {
            to->command = prepare_command(b, node->u.command);
        } else if (node->kind == SBP_NODE_LOOP) {
            int32_t outer = b->table;
            to->loop = node->u.loop;
            if (to->loop->table >= 0)
                b->table = to->loop->table;
            to->body = prepare_body(b, &to->loop->body);
            b->table = outer;
        } else {
            const sbp_call *call = node->u.call;
            int32_t formals = b->x->program->functions[call->function].formal_count;
            to->call = SBP_NEW(arena, sbp_prepared_call);
            to->call->call = call;
            to->call->views = SBP_NEW_ARRAY(arena, sbp_prepared_view, formals);
            for (int32_t k = 0; k < formals; k++)
                prepare_view(b, &call->views[k], &to->call->views[k]);
        }
    }
    return out;
}

static void prepare_tables(sbp_executor *x) {
    const sbp_program *p = x->program;
    sbp_sizes most = sbp_program_sizes(p, p->t_max, p->s_max);
    x->lo = SBP_NEW_ARRAY(x->arena, int64_t *, p->table_count);
    for (int32_t t = 0; t < p->table_count; t++)
        x->lo[t] = sbp_arena_array(x->arena, (size_t)sbp_table_rows(p, t, &most),
                                   (size_t)p->tables[t].window_count * sizeof(int64_t));
}

static sbp_status check_inputs(sbp_executor *x) {
    const sbp_program *p = x->program;
    for (int32_t r = 0; r < p->row_input_count; r++) {
        bool found = p->row_inputs[r].kind != SBP_ROW_SEGMENT;
        for (int32_t k = 0; k < p->row_input_count && !found; k++)
            found = p->row_inputs[k].kind == SBP_ROW_ORDER &&
                    p->row_inputs[k].chunk == p->row_inputs[r].chunk &&
                    p->row_inputs[k].counted == p->row_inputs[r].counted &&
                    p->row_inputs[k].by_rank == p->row_inputs[r].by_rank &&
                    strcmp(p->row_inputs[k].column, p->row_inputs[r].column) == 0;
        if (!found)
            return sbp_fail(x->diag, SBP_INPUT, "row input '%.200s' has segments of no order",
                            p->buffers[p->row_inputs[r].buffer].name);
    }
    return SBP_OK;
}

static sbp_status prepare(void *user) {
    sbp_executor *x = user;
    const sbp_program *p = x->program;
    SBP_TRY(check_inputs(x));
    x->scalars = SBP_NEW_ARRAY(x->arena, double, p->scalar_count);
    x->scalar_set = SBP_NEW_ARRAY(x->arena, bool, p->scalar_count);
    x->ranges = SBP_NEW_ARRAY(x->arena, sbp_column_range, p->row_input_count);
    x->staging = sbp_arena_alloc(x->arena, SBP_STAGING_BYTES);
    for (int32_t r = 0; r < p->row_input_count; r++)
        if (p->row_inputs[r].kind == SBP_ROW_PICK && !x->pick)
            x->pick = sbp_arena_array(x->arena, (size_t)sbp_program_most_rows(p), sizeof *x->pick);
        else if (p->row_inputs[r].kind == SBP_ROW_ORDER && !x->order &&
                 !sbp_executor_map(x, p->row_inputs[r].buffer, 0))
            x->order = sbp_arena_array(x->arena, (size_t)sbp_program_most_rows(p), sizeof *x->order);
    x->counts = SBP_NEW_ARRAY(x->arena, int64_t, p->context);
    if (p->context > 1)
        x->row_order = sbp_arena_array(x->arena, (size_t)sbp_program_most_rows(p), sizeof *x->row_order);
    prepare_tables(x);
    builder b = {.x = x, .table = -1};
    x->functions = SBP_NEW_ARRAY(x->arena, sbp_prepared_body *, p->function_count);
    for (int32_t f = 0; f < p->function_count; f++) {
        b.function = &p->functions[f];
        x->functions[f] = prepare_body(&b, &p->functions[f].body);
        if (p->functions[f].formal_count > x->max_formals)
            x->max_formals = p->functions[f].formal_count;
    }
    b.function = NULL;
    x->entries = SBP_NEW_ARRAY(x->arena, sbp_prepared_body *, p->entry_count);
    for (int32_t e = 0; e < p->entry_count; e++)
        x->entries[e] = prepare_body(&b, &p->entries[e].body);
    x->frames = SBP_NEW_ARRAY(x->arena, sbp_frame, x->max_formals);
    return SBP_OK;
}

sbp_status sbp_executor_write_constants(sbp_executor *x, sbp_diag *diag) {
    /* what lies between the parts of buckets is updated with them, and counts in norms: as zeros */
    if (x->program->ranks > 1)
        SBP_TRY(sbp_executor_fill_role(x, SBP_ROLE_BUCKET, 0, diag));
    for (int32_t k = 0; k < x->program->buffer_count; k++)
        if (x->program->buffers[k].data)
            SBP_TRY(sbp_executor_write(x, k, 0, 0, sbp_executor_elems(x, k), SBP_F64,
                                       x->program->buffers[k].data, diag));
    return SBP_OK;
}

static sbp_status create_in(sbp_arena *arena, sbp_diag *diag, const sbp_device_class *class,
                            const sbp_device_options *options, const sbp_program *program, sbp_executor *x) {
    *x = (sbp_executor){.arena = arena, .program = program, .class = class, .diag = diag};
    x->ranks = options ? options->ranks : NULL;
    x->rank = sbp_executor_rank(x) % program->context;
    for (int32_t b = 0; b < program->buffer_count; b++)
        if (program->buffers[b].offset < 0 && !sbp_buffer_in_shares(program, b))
            return sbp_fail(diag, SBP_INTERNAL, "buffer '%.200s' has no offset", program->buffers[b].name);
    SBP_TRY(class->create(options, diag, &x->device));
    SBP_TRY(class->load(x->device, program, diag));
    SBP_TRY(sbp_guard(arena, diag, prepare, x));
    return sbp_executor_write_constants(x, diag);
}

sbp_status sbp_executor_create(sbp_diag *diag, const sbp_device_class *class,
                               const sbp_device_options *options, const sbp_program *program,
                               sbp_executor **out) {
    sbp_arena *arena = sbp_arena_create();
    sbp_executor *x = sbp_malloc(sizeof *x);
    if (!arena || !x) {
        sbp_arena_destroy(arena);
        free(x);
        return sbp_fail(diag, SBP_MACHINE, "out of memory while preparing a program");
    }
    sbp_status status = create_in(arena, diag, class, options, program, x);
    if (status != SBP_OK) {
        sbp_executor_destroy(x);
        return status;
    }
    *out = x;
    return SBP_OK;
}

sbp_status sbp_executor_rendezvous(sbp_executor *x, sbp_diag *diag) {
    bool own;
    return x->ranks && x->class->rendezvous ? x->class->rendezvous(x->device, &own, diag) : SBP_OK;
}

void sbp_executor_destroy(sbp_executor *x) {
    if (!x)
        return;
    if (x->device)
        x->class->destroy(x->device);
    sbp_arena_destroy(x->arena);
    free(x);
}

const sbp_program *sbp_executor_program(const sbp_executor *x) {
    return x->program;
}

sbp_device *sbp_executor_device(sbp_executor *x) {
    return x->device;
}

bool sbp_executor_set_scalar(sbp_executor *x, const char *name, double value) {
    int32_t scalar = sbp_program_find_scalar(x->program, name);
    if (scalar < 0)
        return false;
    x->scalars[scalar] = value;
    x->scalar_set[scalar] = true;
    return true;
}

bool sbp_executor_set(sbp_executor *x, sbp_scalar_id scalar, double value) {
    return sbp_executor_set_scalar(x, sbp_scalar_names[scalar], value);
}

void sbp_executor_set_flush_hook(sbp_executor *x, sbp_flush_hook hook, void *user) {
    x->hook = hook;
    x->hook_user = user;
}

void sbp_executor_set_profile(sbp_executor *x, sbp_profile *profile) {
    x->profile = profile;
}

void sbp_executor_set_oracle(sbp_executor *x, sbp_oracle *oracle) {
    x->oracle = oracle;
}

/* ---- resolving -------------------------------------------------------------------------------------- */

/* base + step * i + column; false on overflow. short_rows: rows the chunk has fewer than its nominal size. */
static inline bool index_value(int64_t base, int64_t step, int64_t base_chunk, int64_t step_chunk,
                               int64_t short_rows, int64_t i, int64_t column, int64_t *out) {
    int64_t shrink, scaled, sum;
    if (short_rows != 0) {
        if (__builtin_mul_overflow(base_chunk, short_rows, &shrink) ||
            __builtin_sub_overflow(base, shrink, &base) ||
            __builtin_mul_overflow(step_chunk, short_rows, &shrink) ||
            __builtin_sub_overflow(step, shrink, &step))
            return false;
    }
    if (__builtin_mul_overflow(step, i, &scaled) || __builtin_add_overflow(base, scaled, &sum) ||
        __builtin_add_overflow(sum, column, &sum))
        return false;
    *out = sum;
    return true;
}

/* As sbp_view_resolve, with what bind evaluated. */
static inline bool resolve_view(const sbp_executor *x, const sbp_prepared_view *v, sbp_span *span,
                                sbp_range *range) {
    if (!v->view) {
        *span = (sbp_span){.space = SBP_SPACE_COUNT};
        *range = (sbp_range){0, 0, 0};
        return true;
    }
    const sbp_position *at = &x->position;
    const sbp_view *view = v->view;
    int64_t short_rows =
        v->chunk_symbol != SBP_ONE ? at->sizes.v[v->chunk_symbol] - at->columns[SBP_COLUMN_ROWS] : 0;
    int64_t start, end, i = v->chunk_symbol != SBP_ONE ? at->i : 0;
    if (!index_value(v->start_base, v->start_step, 0, 0, 0, i,
                     view->start.column >= 0 ? at->columns[view->start.column] : 0, &start) ||
        !index_value(v->length_base, v->length_step, v->length_base_chunk, v->length_step_chunk, short_rows,
                     i, view->length.column >= 0 ? at->columns[view->length.column] : 0, &end) ||
        (!view->until && __builtin_add_overflow(start, end, &end)))
        return false;
    if (end > v->total)
        end = v->total;
    if (start < 0 || end < start)
        return false;
    int64_t offset = v->offset, stride = v->stride, first_row = start;
    sbp_space space = v->space;
    if (v->formal >= 0) {
        const sbp_frame *frame = &x->frames[v->formal];
        offset += frame->offset;
        space = frame->space;
        if (stride == 0) { /* with a width of its own, rows are none of the actual's */
            stride = frame->stride;
            first_row += frame->first_row;
        }
    }
    if (v->local)
        first_row += v->local * at->columns[SBP_COLUMN_ROW0];
    *span = (sbp_span){.space = space,
                       .dtype = v->dtype,
                       .offset = offset + start * stride * sbp_dtype_bytes(v->dtype),
                       .rows = end - start,
                       .cols = view->cols,
                       .stride = stride,
                       .first_row = first_row};
    *range = (sbp_range){start, end - start, first_row};
    return true;
}

/* ---- running ---------------------------------------------------------------------------------------- */

/* What the plan did wrong, in rare detail: the position, and the operand where one is known. */
static sbp_status fail_command(const sbp_executor *x, const sbp_command *command, int32_t operand,
                               const char *what) {
    sbp_command_operand operands[SBP_MAX_COMMAND_OPERANDS];
    int32_t count = sbp_command_operands(x->program, command, operands);
    const char *name = sbp_command_title(x->program, command);
    return sbp_fail(
        x->diag, SBP_INPUT,
        "the plan is damaged or of another version, compile it again: command %.80s, operand %.60s "
        "%s (T %lld, S %lld, i %lld)",
        name, operand < count ? operands[operand].name : "?", what, (long long)x->position.sizes.v[SBP_T],
        (long long)x->position.sizes.v[SBP_S], (long long)x->position.i);
}

/* A column must not name a row that the table does not have. */
static sbp_status check_index(const sbp_executor *x, const sbp_prepared_command *c, const sbp_range *ranges) {
    const sbp_column_range *range = &x->ranges[c->index];
    if (range->least >= 0 && range->most < ranges[c->indexed].rows)
        return SBP_OK;
    const char *column = x->program->row_inputs[c->index].column;
    if (range->most < 0 || range->most >= ranges[c->indexed].rows)
        return sbp_fail(
            x->diag, SBP_INPUT, "column '%.80s': %lld in row %lld is not below the %lld rows of its table",
            column, (long long)range->most, (long long)range->most_at, (long long)ranges[c->indexed].rows);
    return sbp_fail(x->diag, SBP_INPUT, "column '%.80s': %lld is negative", column, (long long)range->least);
}

static sbp_status read_scalar(const sbp_executor *x, int32_t scalar, double *out) {
    *out = x->scalars[scalar];
    if (x->scalar_set[scalar])
        return SBP_OK;
    return sbp_fail(x->diag, SBP_INPUT, "the plan's scalar '%.80s' is used but was never set",
                    x->program->scalars[scalar]);
}

static sbp_status call_hook(sbp_executor *x, const sbp_command *command, const sbp_span *spans, bool *skip) {
    sbp_gradient gradient = {x, command->flushes, -1, spans[command->gradient]};
    return x->hook(x->hook_user, &gradient, skip, x->diag);
}

/* Runs a command of a micro-batch without groups: nothing is added to groups, and what rows read
 * of them is 0. */
static sbp_status run_without_groups(sbp_executor *x, const sbp_command *command, const sbp_span *spans) {
    if (command->view_count < 1 || sbp_command_access(command, NULL, 0) != SBP_WRITE)
        return SBP_OK;
    const sbp_span *to = &spans[0];
    int64_t bytes = sbp_dtype_bytes(to->dtype);
    memset(x->staging, 0, SBP_STAGING_BYTES);
    for (int64_t r = 0; r < to->rows; r++)
        for (int64_t at = 0, all = to->cols * bytes, some; at < all; at += some) {
            some = all - at < SBP_STAGING_BYTES ? all - at : SBP_STAGING_BYTES;
            SBP_TRY(sbp_executor_put(x, to->space, to->offset + r * to->stride * bytes + at, x->staging, some,
                                     x->diag));
        }
    return SBP_OK;
}

static sbp_status run_command(sbp_executor *x, const sbp_prepared_command *c) {
    const sbp_command *command = c->command;
    sbp_span spans[SBP_MAX_COMMAND_OPERANDS];
    sbp_range ranges[SBP_MAX_COMMAND_OPERANDS];
    double scalars[SBP_ROWKERNEL_MAX_SCALARS];
    for (int32_t k = 0; k < command->view_count; k++)
        if (!resolve_view(x, &c->views[k], &spans[k], &ranges[k]))
            return fail_command(x, command, k, "leaves its buffer");
    for (int32_t k = 0; k < c->rule_count; k++)
        if (!sbp_row_rule_holds(x->program, &c->rules[k], ranges, &x->position))
            return fail_command(x, command, c->rules[k].operand, "has the wrong rows");
    if (c->index >= 0 && ranges[c->indexed].rows == 0 && x->position.sizes.v[SBP_S] == 0)
        return run_without_groups(x, command, spans);
    if (c->index >= 0)
        SBP_TRY(check_index(x, c, ranges));
    if (command->flushes >= 0 && x->hook && !x->tuning) {
        bool skip = false;
        SBP_TRY(call_hook(x, command, spans, &skip));
        if (skip)
            return SBP_OK;
    }
    const sbp_attention_operands *attention = sbp_command_attention(command->kind);
    if (attention && command->u.attention.by_rank) { /* this rank's queries over keys of all */
        const int64_t *columns = x->position.columns;
        spans[attention->q].first_row =
            columns[SBP_COLUMN_ROW0] * x->program->context + x->rank * columns[SBP_COLUMN_ROWS];
    }
    sbp_dispatch dispatch = {.command = command,
                             .spans = spans,
                             .span_count = command->view_count,
                             .kernel = sbp_command_kernel(x->program, command)};
    bool orders = sbp_command_attributes(command) == SBP_ATTRIBUTES_FENCE;
    if (x->tuning)
        return sbp_executor_tune_command(x, &dispatch);
    if (dispatch.kernel) {
        for (int32_t k = 0; k < command->scalar_count; k++)
            if (command->scalars[k] == SBP_LITERAL)
                scalars[k] = command->literals[k];
            else
                SBP_TRY(read_scalar(x, command->scalars[k], &scalars[k]));
        dispatch.scalars = scalars;
        dispatch.rows = c->rows_operand >= 0 ? ranges[c->rows_operand].rows : 1;
        dispatch.row0 = c->rows_operand >= 0 ? ranges[c->rows_operand].first_row : 0;
        if (command->u.share)
            dispatch.row0 += sbp_executor_rank(x) % x->program->group * dispatch.rows;
    }
    if (x->oracle && !orders)
        return sbp_oracle_run(x->oracle, x->class, x->device, &dispatch, x->diag);
    if (x->profile && !orders)
        return sbp_profile_run(x->profile, x->class, x->device, x->program, &dispatch, x->diag);
    return x->class->submit(x->device, &dispatch, x->diag);
}

static sbp_status run_body(sbp_executor *x, const sbp_prepared_body *body);

/* Rows that a table of counted rows has; one where none counts. */
static int64_t counted_rows(const sbp_executor *x) {
    int64_t rows = x->counts[x->rank];
    return rows > 1 ? rows : 1;
}

/* Iteration i of a loop over a table; -1: outside. */
static void enter_iteration(sbp_executor *x, int32_t table, int64_t i) {
    sbp_position_set(&x->position, x->program, table, i);
    if (table >= 0 && x->program->tables[table].counted)
        sbp_position_end(&x->position, counted_rows(x));
    int32_t windows = table >= 0 ? x->program->tables[table].window_count : 0;
    for (int32_t w = 0; w < windows; w++)
        x->position.columns[SBP_COLUMN_LO + w] = x->lo[table][i * windows + w];
}

static sbp_status run_call(sbp_executor *x, const sbp_prepared_call *c) {
    const sbp_function *callee = &x->program->functions[c->call->function];
    for (int32_t k = 0; k < callee->formal_count; k++) {
        sbp_span span;
        sbp_range range;
        int64_t rows;
        if (!resolve_view(x, &c->views[k], &span, &range) ||
            !sbp_extent_eval(callee->formals[k].rows, &x->position.sizes, &rows) || rows != range.rows)
            return sbp_fail(x->diag, SBP_INPUT,
                            "the plan is damaged or of another version, compile it again: formal '%.80s' of "
                            "a call of '%.80s' has the wrong rows",
                            callee->formals[k].name, callee->name);
        x->frames[k] = (sbp_frame){span.space, span.offset, span.stride, range.first_row};
    }
    int64_t i = x->position.i; /* the function has loops of its own */
    int32_t table = x->position.table;
    x->position.table = -1;
    SBP_TRY(run_body(x, x->functions[c->call->function]));
    enter_iteration(x, table, i);
    return SBP_OK;
}

/* How often a loop over a scalar runs. */
static sbp_status scalar_trips(const sbp_executor *x, int32_t scalar, int64_t *out) {
    double value;
    SBP_TRY(read_scalar(x, scalar, &value));
    if (!(value >= 0 && value <= 1e6 && value == floor(value)))
        return sbp_fail(x->diag, SBP_INPUT, "the plan's scalar '%.80s' is %g, but counts the trips of a loop",
                        x->program->scalars[scalar], value);
    *out = (int64_t)value;
    return SBP_OK;
}

static sbp_status run_loop(sbp_executor *x, const sbp_loop *loop, const sbp_prepared_body *body) {
    int64_t trips = 0;
    if (loop->table < 0) {
        if (x->tuning)
            return run_body(x, body);
        SBP_TRY(scalar_trips(x, loop->scalar, &trips));
        for (int64_t k = 0; k < trips; k++)
            SBP_TRY(run_body(x, body));
        return SBP_OK;
    }
    const sbp_chunk_table *table = &x->program->tables[loop->table];
    int64_t rows = table->counted ? counted_rows(x)
                                  : x->position.sizes.v[SBP_T] - sbp_position_begin(&x->position, table);
    trips = sbp_ceil_div(rows, x->position.sizes.v[table->step]);
    for (int64_t k = 0; k < trips; k++) {
        enter_iteration(x, loop->table, loop->descending ? trips - 1 - k : k);
        SBP_TRY(run_body(x, body));
    }
    x->position.table = -1;
    return SBP_OK;
}

static sbp_status run_body(sbp_executor *x, const sbp_prepared_body *body) {
    for (int32_t n = 0; n < body->count; n++) {
        const sbp_prepared_node *node = &body->nodes[n];
        if (node->kind == SBP_NODE_COMMAND)
            SBP_TRY(run_command(x, node->command));
        else if (node->kind == SBP_NODE_LOOP)
            SBP_TRY(run_loop(x, node->loop, node->body));
        else
            SBP_TRY(run_call(x, node->call));
    }
    return SBP_OK;
}

sbp_status sbp_executor_run(sbp_executor *x, const char *entry, sbp_diag *diag) {
    const sbp_entry *found = sbp_program_find_entry(x->program, entry);
    if (!found)
        return sbp_fail(diag, SBP_INPUT, "the plan has no entry '%.80s'", entry);
    if (!x->bound)
        return sbp_fail(diag, SBP_INTERNAL, "entry '%.80s' before a micro-batch is bound", entry);
    x->diag = diag;
    x->position.table = -1;
    return run_body(x, x->entries[found - x->program->entries]);
}

sbp_status sbp_executor_wait(sbp_executor *x, sbp_diag *diag) {
    return x->class->wait(x->device, diag);
}
