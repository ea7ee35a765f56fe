/* program.c: building blocks of the program IR: names, lookup, views, kernels without duplicates. */
#include "ir/program/program.h"
#include "ir/program/traits.h"

#include <string.h>

/* ---- tables ---------------------------------------------------------------------------------------- */

static const struct {
    const char *name, *category;
} roles[SBP_ROLE_COUNT] = {
#define ROLE(id, text, category) {text, category},
#include "ir/program/roles.def"
#undef ROLE
};

const char *sbp_role_name(sbp_role role) {
    return roles[role].name;
}

const char *sbp_role_category(sbp_role role) {
    return roles[role].category;
}

const char *const sbp_space_names[SBP_SPACE_COUNT] = {"device", "host", "disk"};
const char *const sbp_queue_names[SBP_QUEUE_COUNT] = {"compute", "in", "out", "host", "disk", "net"};

const sbp_collective_info sbp_collectives[SBP_COLLECTIVE_COUNT] = {
#define COLLECTIVE(id, text, kind, communicator, accumulate)                                                 \
    [SBP_##id] = {#text, SBP_KIND_##kind, SBP_AMONG_##communicator, SBP_DST_##accumulate},
#include "ir/program/collectives.def"
#undef COLLECTIVE
};

sbp_queue sbp_queue_of_copy(sbp_space to, sbp_space from) {
    static const sbp_queue queues[SBP_SPACE_COUNT][SBP_SPACE_COUNT] = {
        [SBP_DEVICE] = {SBP_QUEUE_COMPUTE, SBP_QUEUE_IN, SBP_QUEUE_COUNT},
        [SBP_HOST] = {SBP_QUEUE_OUT, SBP_QUEUE_HOST, SBP_QUEUE_DISK},
        [SBP_DISK] = {SBP_QUEUE_COUNT, SBP_QUEUE_DISK, SBP_QUEUE_COUNT},
    };
    return queues[to][from];
}

/* ---- programs --------------------------------------------------------------------------------------- */

sbp_program *sbp_program_create(sbp_arena *arena, const char *name) {
    sbp_program *program = SBP_NEW(arena, sbp_program);
    program->name = name;
    program->target = "";
    program->t_max = program->chunk = program->head_chunk = 1;
    program->ranks = program->group = program->context = 1;
    sbp_map_init(&program->kernel_texts, arena);
    sbp_program_add_scalar(arena, program, "T");
    sbp_program_add_scalar(arena, program, "S");
    return program;
}

bool sbp_program_entry_communicates(const sbp_program *program, sbp_entry_id id) {
    const sbp_entry *entry = sbp_program_entry(program, id);
    for (int32_t n = 0; entry && n < entry->body.count; n++)
        if (entry->body.nodes[n].kind == SBP_NODE_COMMAND &&
            entry->body.nodes[n].u.command->queue == SBP_QUEUE_NET)
            return true;
    return false;
}

bool sbp_buffer_in_shares(const sbp_program *program, int32_t buffer) {
    int32_t bucket = program->buffers[buffer].part_of - 1;
    return bucket >= 0 && bucket < program->buffer_count && program->buffers[bucket].sharding == SBP_SHARDED;
}

int32_t sbp_buffer_memory(const sbp_program *program, int32_t buffer) {
    int32_t bucket = program->buffers[buffer].part_of - 1;
    return bucket >= 0 ? bucket : buffer;
}

int32_t sbp_program_find_buffer(const sbp_program *program, const char *name) {
    int32_t found = -1;
    for (int32_t b = 0; b < program->buffer_count; b++)
        if (strcmp(program->buffers[b].name, name) == 0) {
            if (program->buffers[b].function < 0)
                return b;
            if (found < 0)
                found = b;
        }
    return found;
}

int32_t sbp_program_find_scalar(const sbp_program *program, const char *name) {
    for (int32_t s = 0; s < program->scalar_count; s++)
        if (strcmp(program->scalars[s], name) == 0)
            return s;
    return -1;
}

const sbp_entry *sbp_program_find_entry(const sbp_program *program, const char *name) {
    for (int32_t e = 0; e < program->entry_count; e++)
        if (strcmp(program->entries[e].name, name) == 0)
            return &program->entries[e];
    return NULL;
}

const sbp_entry *sbp_program_entry(const sbp_program *program, sbp_entry_id id) {
    return sbp_program_find_entry(program, sbp_entry_names[id]);
}

bool sbp_entry_is(const char *name, sbp_entry_id id) {
    return strcmp(name, sbp_entry_names[id]) == 0;
}

const sbp_entry *sbp_program_training_entry(const sbp_program *program) {
    static const sbp_entry_id ids[] = {SBP_ENTRY_STEP, SBP_ENTRY_ACCUMULATE, SBP_ENTRY_SCORE};
    const sbp_entry *entry = NULL;
    for (int i = 0; i < SBP_COUNT(ids) && !entry; i++)
        entry = sbp_program_entry(program, ids[i]);
    return entry;
}

int32_t sbp_program_add_scalar(sbp_arena *arena, sbp_program *program, const char *name) {
    int32_t found = sbp_program_find_scalar(program, name);
    if (found >= 0)
        return found;
    SBP_PUSH(arena, program->scalars, program->scalar_count, program->scalar_capacity, name);
    return program->scalar_count - 1;
}

static bool kernel_name_taken(const sbp_program *program, const char *name) {
    for (int32_t k = 0; k < program->kernel_count; k++)
        if (strcmp(program->kernels[k]->name, name) == 0)
            return true;
    return false;
}

int32_t sbp_program_add_kernel(sbp_arena *arena, sbp_program *program, sbp_rowkernel *kernel) {
    const char *name = kernel->name;
    sbp_text text;
    sbp_text_init(&text, arena);
    kernel->name = "k";
    sbp_rowkernel_print(&text, kernel);
    kernel->name = name;
    int32_t found = sbp_map_get(&program->kernel_texts, text.data);
    if (found >= 0)
        return found;
    for (int n = 2; kernel_name_taken(program, kernel->name); n++)
        kernel->name = sbp_arena_printf(arena, "%s.%d", name, n);
    SBP_PUSH(arena, program->kernels, program->kernel_count, program->kernel_capacity, kernel);
    sbp_map_set(&program->kernel_texts, text.data, program->kernel_count - 1);
    return program->kernel_count - 1;
}

static bool has_expert_pieces(const sbp_body *body) {
    for (int32_t n = 0; n < body->count; n++) {
        const sbp_node *node = &body->nodes[n];
        if (node->kind == SBP_NODE_LOOP
                ? has_expert_pieces(&node->u.loop->body)
                : node->kind == SBP_NODE_COMMAND &&
                      sbp_command_attributes(node->u.command) == SBP_ATTRIBUTES_EXPERTS &&
                      node->u.command->u.experts.of > 0)
            return true;
    }
    return false;
}

bool sbp_program_has_expert_pieces(const sbp_program *program) {
    for (int32_t f = 0; f < program->function_count; f++)
        if (has_expert_pieces(&program->functions[f].body))
            return true;
    return false;
}

int64_t sbp_program_most_rows(const sbp_program *program) {
    return program->t_max * program->context;
}

sbp_sizes sbp_program_sizes(const sbp_program *program, int64_t t, int64_t s) {
    sbp_sizes sizes = {{0}};
    sizes.v[SBP_ONE] = 1;
    sizes.v[SBP_T] = t;
    sizes.v[SBP_S] = s;
    sizes.v[SBP_C] = program->chunk;
    sizes.v[SBP_H] = program->head_chunk;
    sizes.v[SBP_W] = t * program->context;
    sizes.v[SBP_D] = program->chunk * program->context;
    sizes.v[SBP_N] = program->chunk > 0 ? sbp_ceil_div(t, program->chunk) : 0;
    return sizes;
}

bool sbp_buffer_bytes(const sbp_buffer *buffer, const sbp_sizes *sizes, int64_t *out) {
    int64_t rows, elems, bytes;
    if (!sbp_extent_eval(buffer->rows, sizes, &rows) || rows < 0 || buffer->cols < 0 ||
        !sbp_mul_i64(rows, buffer->cols, &elems) ||
        !sbp_mul_i64(elems, sbp_dtype_bytes(buffer->dtype), &bytes))
        return false;
    *out = bytes;
    return true;
}

/* ---- views ------------------------------------------------------------------------------------------ */

static sbp_view whole_view(int32_t ref, int32_t slot, sbp_extent rows, int64_t cols) {
    return (sbp_view){.ref = ref,
                      .slot = slot,
                      .start = {.column = -1},
                      .length = {.base = rows, .column = -1},
                      .cols = cols};
}

sbp_view sbp_view_buffer(const sbp_program *program, int32_t buffer, int32_t slot) {
    const sbp_buffer *b = &program->buffers[buffer];
    return whole_view(buffer, slot, b->rows, b->cols);
}

sbp_view sbp_view_formal(const sbp_function *function, int32_t formal) {
    const sbp_formal *f = &function->formals[formal];
    return whole_view(~formal, 0, f->rows, f->cols);
}

sbp_command *sbp_command_create(sbp_arena *arena, sbp_command_kind kind, int32_t view_capacity) {
    sbp_command *command = SBP_NEW(arena, sbp_command);
    command->kind = kind;
    command->kernel = command->flushes = command->gradient = -1;
    command->views = SBP_NEW_ARRAY(arena, sbp_view, view_capacity);
    for (int32_t k = 0; k < view_capacity; k++)
        command->views[k] = sbp_view_none();
    return command;
}

sbp_view sbp_view_none(void) {
    return (sbp_view){.ref = SBP_NO_VIEW, .start = {.column = -1}, .length = {.column = -1}};
}

bool sbp_view_shape(const sbp_program *program, const sbp_function *function, const sbp_view *view,
                    sbp_extent *rows, int64_t *cols) {
    if (view->ref >= 0) {
        *rows = program->buffers[view->ref].rows;
        *cols = program->buffers[view->ref].cols;
    } else {
        *rows = function->formals[~view->ref].rows;
        *cols = function->formals[~view->ref].cols;
    }
    if (view->width == 0)
        return true;
    int64_t count = sbp_extent_as_const(*rows), elems;
    if (view->width < 0 || count < 0 || !sbp_mul_i64(count, *cols, &elems) || elems % view->width != 0)
        return false;
    *rows = sbp_extent_const(elems / view->width);
    *cols = view->width;
    return true;
}

sbp_view sbp_view_wide(const sbp_program *program, const sbp_function *function, const sbp_view *view,
                       int64_t width) {
    sbp_extent rows;
    int64_t cols;
    sbp_view out = {.ref = view->ref, .slot = view->slot};
    (void)sbp_view_shape(program, function, &out, &rows, &cols);
    out.width = width == cols ? 0 : width;
    (void)sbp_view_shape(program, function, &out, &rows, &cols);
    width = out.width;
    out = whole_view(view->ref, view->slot, rows, cols);
    out.width = width;
    return out;
}

bool sbp_view_is_whole(const sbp_program *program, const sbp_function *function, const sbp_view *view) {
    sbp_extent rows;
    int64_t cols;
    if (!sbp_view_shape(program, function, view, &rows, &cols))
        return false;
    sbp_view whole = whole_view(view->ref, view->slot, rows, cols);
    whole.width = view->width;
    return sbp_view_equal(view, &whole);
}

sbp_view sbp_view_chunk(sbp_view whole, sbp_symbol step) {
    sbp_view view = whole;
    view.start = (sbp_index){.step = sbp_extent_symbol(step, 1), .column = -1};
    view.length = (sbp_index){.base = sbp_extent_symbol(step, 1), .column = -1};
    view.until = false;
    return view;
}

sbp_view sbp_view_blocks(sbp_view whole, bool of_all) {
    sbp_view view = whole;
    view.start = (sbp_index){.column = -1};
    view.length = (sbp_index){.column = of_all ? SBP_COLUMN_ALL_BLOCKS : SBP_COLUMN_BLOCKS};
    view.until = false;
    return view;
}

static bool index_equal(const sbp_index *a, const sbp_index *b) {
    return a->column == b->column && sbp_extent_equal(a->base, b->base) && sbp_extent_equal(a->step, b->step);
}

static bool same_start(const sbp_view *a, const sbp_view *b) {
    return a->ref == b->ref && a->slot == b->slot && a->col == b->col && a->width == b->width &&
           a->until == b->until && index_equal(&a->start, &b->start);
}

bool sbp_view_equal(const sbp_view *a, const sbp_view *b) {
    return same_start(a, b) && a->cols == b->cols && index_equal(&a->length, &b->length);
}

bool sbp_view_same_start(const sbp_view *a, const sbp_view *b) {
    return a->ref != SBP_NO_VIEW && same_start(a, b);
}

/* ---- positions and ranges --------------------------------------------------------------------------- */

const char *sbp_program_counted(const sbp_program *program) {
    for (int32_t r = 0; r < program->row_input_count; r++)
        if (program->row_inputs[r].kind == SBP_ROW_PICK)
            return program->row_inputs[r].column;
    return NULL;
}

int64_t sbp_table_rows(const sbp_program *program, int32_t table, const sbp_sizes *sizes) {
    return sbp_ceil_div(sizes->v[SBP_T], sizes->v[program->tables[table].step]);
}

/* Rows that count are in front, wherever they came from. */
int64_t sbp_position_begin(const sbp_position *position, const sbp_chunk_table *table) {
    return table->counted ? 0 : position->begin;
}

void sbp_position_set(sbp_position *position, const sbp_program *program, int32_t table, int64_t i) {
    position->table = table;
    position->i = i;
    if (table < 0)
        return;
    const sbp_chunk_table *t = &program->tables[table];
    int64_t step = position->sizes.v[t->step], row0 = sbp_position_begin(position, t) + i * step;
    int64_t rows = position->sizes.v[SBP_T] - row0;
    if (rows > step)
        rows = step;
    position->columns[SBP_COLUMN_ROW0] = row0;
    position->columns[SBP_COLUMN_ROWS] = rows;
    position->columns[SBP_COLUMN_HI] = row0 + rows;
    position->columns[SBP_COLUMN_ALL] = (row0 + rows) * program->context;
    position->columns[SBP_COLUMN_BLOCKS] = sbp_ceil_div(rows, SBP_PARTIAL_ROWS);
    position->columns[SBP_COLUMN_ALL_BLOCKS] = sbp_ceil_div(rows * program->context, SBP_PARTIAL_ROWS);
    for (int32_t w = 0; w < t->window_count && w < SBP_MAX_WINDOWS; w++)
        position->columns[SBP_COLUMN_LO + w] = row0 * program->context;
}

void sbp_position_end(sbp_position *position, int64_t end) {
    int64_t *column = position->columns, rows = end - column[SBP_COLUMN_ROW0];
    if (rows >= column[SBP_COLUMN_ROWS])
        return;
    column[SBP_COLUMN_ROWS] = rows;
    column[SBP_COLUMN_HI] = end;
    column[SBP_COLUMN_BLOCKS] = sbp_ceil_div(rows, SBP_PARTIAL_ROWS);
}

static bool eval_index(const sbp_index *index, const sbp_sizes *sizes, const sbp_position *position,
                       int64_t *out) {
    int64_t base, step;
    if (!sbp_extent_eval(index->base, sizes, &base) || !sbp_extent_eval(index->step, sizes, &step) ||
        !sbp_mul_i64(step, position->table >= 0 ? position->i : 0, &step) ||
        !sbp_add_i64(base, step, &base) ||
        (index->column >= 0 && !sbp_add_i64(base, position->columns[index->column], &base)))
        return false;
    *out = base;
    return true;
}

int64_t sbp_extent_local(const sbp_program *program, sbp_extent rows, sbp_symbol step) {
    if (rows.c[SBP_T] != 0 || rows.c[SBP_S] != 0 || rows.c[SBP_W] != 0 || rows.c[SBP_N] != 0)
        return 0;
    if (step == SBP_C && rows.c[SBP_D] != 0)
        return program->context;
    return rows.c[step] != 0;
}

sbp_dtype sbp_view_dtype(const sbp_program *program, const sbp_function *function, const sbp_view *view) {
    if (view->ref >= 0)
        return program->buffers[view->ref].dtype;
    return function ? function->formals[~view->ref].dtype : SBP_F32; /* formals only stand in functions */
}

bool sbp_view_resolve(const sbp_program *program, const sbp_function *function, const sbp_view *view,
                      const sbp_position *position, sbp_range *out) {
    sbp_extent extent;
    int64_t cols;
    sbp_sizes chunk_sizes = position->sizes;
    sbp_symbol step = SBP_ONE;
    if (position->table >= 0) {
        step = program->tables[position->table].step;
        chunk_sizes.v[step] = position->columns[SBP_COLUMN_ROWS];
        if (step == SBP_C)
            chunk_sizes.v[SBP_D] = position->columns[SBP_COLUMN_ROWS] * program->context;
    }
    int64_t total, start, end;
    if (!sbp_view_shape(program, function, view, &extent, &cols) ||
        !sbp_extent_eval(extent, &position->sizes, &total) ||
        !eval_index(&view->start, &position->sizes, position, &start) ||
        !eval_index(&view->length, &chunk_sizes, position, &end) ||
        (!view->until && !sbp_add_i64(start, end, &end)))
        return false;
    if (end > total)
        end = total;
    if (start < 0 || end < start)
        return false;
    int64_t ranks = step != SBP_ONE ? sbp_extent_local(program, extent, step) : 0;
    *out = (sbp_range){start, end - start, start + (ranks ? ranks * position->columns[SBP_COLUMN_ROW0] : 0)};
    return true;
}
