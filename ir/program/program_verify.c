/* program_verify.c: the constraints on programs. Declarations (c1 to c11, c29) and loops (c12) are checked
 * here, calls (c13, c14, c28) in program_check_calls.c, commands (c15 to c28) in program_check.c.
 *
 *   c1   sizes are positive (s_max may be 0) and below 2^40
 *   c2   names are there, and unique among their kind; a function's own buffers differ from the
 *        program's
 *   c3   the scalars begin with T, S
 *   c4   a table steps by C or H and lists each window once
 *   c5   a buffer's fields are in range; its rows grow with T and S; its size fits in 62 bits; only a
 *        constant has data
 *   c6   no scratch or workspace buffer has a T axis, but for a few elements per row
 *   c7   after the memory pass: offset and stride are aligned to the dtype, on disk to
 *        SBP_DISK_ALIGNMENT; elements of an array do not overlap; all lie inside the arena
 *   c8   results are f64; an output names an element of one
 *   c9   a row input is a buffer of role rows, one number per row or group, an order i32 per row; it
 *        belongs to an integer column
 *   c10  kernels verify (rowkernel_c..)
 *   c11  formals' fields are in range
 *   c12  a loop is over a table or a scalar; at most 2 deep; not two tables
 *   c13  calls stand in entries; a view per formal, of its dtype, rows and columns; what the function
 *        writes is no row input; a buffer lies in a space that all queues reach in which the function
 *        uses the formal
 *   c14  what a call writes is not passed twice nor touched by the function itself
 *   c15  a command's kind, kernel, operands and scalars exist
 *   c16  a view's buffer is visible, its slot, columns and table column exist
 *   c17  a view stays inside its buffer
 *   c18  the rows of operands agree (program_rules.c)
 *   c19  the columns of operands agree
 *   c20  dtypes are legal for the command
 *   c21  formals are used as they are declared; row inputs are not written
 *   c22  a written operand shares no memory with another, except where the command allows it
 *   c23  operands lie where the command's queue reaches (program.h, "Spaces and queues"); queue disk
 *        copies between buffers of the host and of the disk, not formals
 *   c24  queues exist and run the command's kind: compute all, in, out and disk copy, host fill,
 *        copy, row, colsum and reduce; fences name queues
 *   c25  a flush stands in an entry, outside loops over tables, and reads the whole gradient of a
 *        parameter
 *   c26  attributes are in range
 *   c27  index, perm, segment, first, shared_end and own are row inputs, of the right column
 *   c28  a view's width fits: the rows of its buffer or formal are constant, their elements a multiple of it;
 *        of a formal that the function sees with a width, a call passes whole rows from a fixed one on
 *   c29  a part of a bucket is of the program and has constant rows; its space, type (unless the bucket is of
 *        bytes) and count are the bucket's, which is no part itself; it lies inside, aligned; after the
 *        memory pass it is where the bucket has it
 */
#include "ir/program/program_check.h"

#include <stdio.h>
#include <string.h>

#define SIZE_LIMIT (INT64_C(1) << 40)
#define BYTES_LIMIT (INT64_C(1) << 62)

enum {
    MAX_TABLES = 64,
    MAX_FORMALS = 4096,
    FEW_COLS = 8 /* of a T axis in scratch or workspace: a number per head would be a saved value */
};

static sbp_status SBP_PRINTF(3, 4)
    fail(const sbp_checker *c, const char *constraint, const char *format, ...) {
    char message[512];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return sbp_fail(c->diag, SBP_INPUT, "program_%s: %s", constraint, message);
}

/* ---- sizes, names, tables --------------------------------------------------------------------------- */

static sbp_status verify_sizes(const sbp_checker *c) {
    const sbp_program *p = c->program;
    if (p->t_max < 1 || p->t_max > SIZE_LIMIT || p->s_max < 0 || p->s_max > SIZE_LIMIT || p->chunk < 1 ||
        p->chunk > SIZE_LIMIT || p->head_chunk < 1 || p->head_chunk > SIZE_LIMIT)
        return fail(c, "c1", "t_max %lld, s_max %lld, chunk %lld, head_chunk %lld", (long long)p->t_max,
                    (long long)p->s_max, (long long)p->chunk, (long long)p->head_chunk);
    if (p->ranks < 1 || p->ranks > SBP_MAX_RANKS)
        return fail(c, "c1", "%lld ranks", (long long)p->ranks);
    if (p->group < 1 || p->ranks % p->group != 0)
        return fail(c, "c1", "groups of %lld of %lld ranks", (long long)p->group, (long long)p->ranks);
    if (p->context < 1 || p->context > SBP_MAX_CONTEXT || p->ranks % p->context != 0)
        return fail(c, "c1", "%lld ranks, %lld of which have a micro-batch together", (long long)p->ranks,
                    (long long)p->context);
    for (int space = 0; space < SBP_SPACE_COUNT; space++)
        if (p->arena_bytes[space] < 0 || p->arena_bytes[space] > BYTES_LIMIT)
            return fail(c, "c1", "an arena of %lld bytes", (long long)p->arena_bytes[space]);
    return SBP_OK;
}

static sbp_status add_name(const sbp_checker *c, sbp_map *map, const char *kind, const char *name,
                           int32_t index) {
    if (!name || !name[0])
        return fail(c, "c2", "%s %d has no name", kind, index);
    if (sbp_map_get(map, name) >= 0)
        return fail(c, "c2", "two %ss named '%.80s'", kind, name);
    sbp_map_set(map, name, index);
    return SBP_OK;
}

static sbp_status verify_buffer_names(const sbp_checker *c) {
    const sbp_program *p = c->program;
    sbp_map global, local;
    sbp_map_init(&global, c->arena);
    sbp_map_init(&local, c->arena);
    for (int32_t b = 0; b < p->buffer_count; b++) {
        if (p->buffers[b].function < -1 || p->buffers[b].function >= p->function_count)
            return fail(c, "c5", "buffer %d is of function %d, which does not exist", b,
                        p->buffers[b].function);
        if (p->buffers[b].function == -1)
            SBP_TRY(add_name(c, &global, "buffer", p->buffers[b].name, b));
    }
    for (int32_t b = 0; b < p->buffer_count; b++) {
        const sbp_buffer *buffer = &p->buffers[b];
        if (buffer->function == -1)
            continue;
        if (!buffer->name || !buffer->name[0])
            return fail(c, "c2", "buffer %d has no name", b);
        if (sbp_map_get(&global, buffer->name) >= 0)
            return fail(c, "c2", "two buffers named '%.80s'", buffer->name);
        SBP_TRY(add_name(c, &local, "buffer",
                         sbp_arena_printf(c->arena, "%d:%s", buffer->function, buffer->name), b));
    }
    return SBP_OK;
}

static sbp_status verify_names(const sbp_checker *c) {
    const sbp_program *p = c->program;
    if (!p->name || !p->target)
        return fail(c, "c2", "the program has no name or no target");
    sbp_map scalars, tables, kernels, functions, entries, outputs;
    sbp_map *const maps[] = {&scalars, &tables, &kernels, &functions, &entries, &outputs};
    for (int m = 0; m < SBP_COUNT(maps); m++)
        sbp_map_init(maps[m], c->arena);
    for (int32_t i = 0; i < p->scalar_count; i++)
        SBP_TRY(add_name(c, &scalars, "scalar", p->scalars[i], i));
    for (int32_t i = 0; i < p->table_count; i++)
        SBP_TRY(add_name(c, &tables, "table", p->tables[i].name, i));
    for (int32_t i = 0; i < p->kernel_count; i++)
        SBP_TRY(add_name(c, &kernels, "kernel", p->kernels[i]->name, i));
    for (int32_t i = 0; i < p->function_count; i++)
        SBP_TRY(add_name(c, &functions, "function", p->functions[i].name, i));
    for (int32_t i = 0; i < p->entry_count; i++)
        SBP_TRY(add_name(c, &entries, "entry", p->entries[i].name, i));
    for (int32_t i = 0; i < p->output_count; i++)
        SBP_TRY(add_name(c, &outputs, "output", p->outputs[i].name, i));
    if (p->scalar_count < 2 || strcmp(p->scalars[0], "T") != 0 || strcmp(p->scalars[1], "S") != 0)
        return fail(c, "c3", "the scalars do not begin with T, S");
    return verify_buffer_names(c);
}

static sbp_status verify_tables(const sbp_checker *c) {
    if (c->program->table_count > MAX_TABLES)
        return fail(c, "c4", "%d tables; at most %d", c->program->table_count, MAX_TABLES);
    for (int32_t t = 0; t < c->program->table_count; t++) {
        const sbp_chunk_table *table = &c->program->tables[t];
        if (table->step != SBP_C && table->step != SBP_H)
            return fail(c, "c4", "table '%.80s' steps neither by C nor by H", table->name);
        if (table->window_count < 0 || table->window_count > SBP_MAX_WINDOWS)
            return fail(c, "c4", "table '%.80s' has %d windows; at most %d", table->name, table->window_count,
                        SBP_MAX_WINDOWS);
        for (int32_t w = 0; w < table->window_count; w++) {
            bool again = false;
            for (int32_t earlier = 0; earlier < w; earlier++)
                again = again || table->windows[earlier] == table->windows[w];
            if (table->windows[w] < 0 || again)
                return fail(c, "c4", "table '%.80s': window %lld is negative or there twice", table->name,
                            (long long)table->windows[w]);
        }
    }
    return SBP_OK;
}

/* ---- buffers ---------------------------------------------------------------------------------------- */

/* Growing with T and S, and not negative at the smallest. */
static bool is_row_count(const sbp_program *p, sbp_extent rows) {
    for (int s = 1; s < SBP_SYMBOL_COUNT; s++)
        if (rows.c[s] < 0)
            return false;
    sbp_sizes least = sbp_program_sizes(p, 1, 0), most = sbp_program_sizes(p, p->t_max, p->s_max);
    int64_t n;
    return sbp_extent_eval(rows, &least, &n) && n >= 0 && sbp_extent_eval(rows, &most, &n) && n <= SIZE_LIMIT;
}

static sbp_status verify_buffer(const sbp_checker *c, const sbp_buffer *b, int64_t *bytes) {
    if ((unsigned)b->role >= SBP_ROLE_COUNT || (unsigned)b->space >= SBP_SPACE_COUNT ||
        (unsigned)b->dtype >= SBP_DTYPE_COUNT)
        return fail(c, "c5", "buffer '%.80s': no such role, space or dtype", b->name);
    if (b->count < 1 || b->cols < 1 || b->cols > SIZE_LIMIT || !is_row_count(c->program, b->rows))
        return fail(c, "c5", "buffer '%.80s': %d elements of %lld columns, or its rows are out of range",
                    b->name, b->count, (long long)b->cols);
    sbp_sizes most = sbp_program_sizes(c->program, c->program->t_max, c->program->s_max);
    if (!sbp_buffer_bytes(b, &most, bytes) || *bytes > BYTES_LIMIT)
        return fail(c, "c5", "buffer '%.80s': its size overflows", b->name);
    if (b->data &&
        (b->role != SBP_ROLE_CONST || b->function != -1 || b->count != 1 || sbp_extent_as_const(b->rows) < 1))
        return fail(c, "c5", "buffer '%.80s' has data, but is no constant of the program", b->name);
    if ((b->rows.c[SBP_T] != 0 || b->rows.c[SBP_W] != 0 || b->rows.c[SBP_N] != 0) && b->cols > FEW_COLS &&
        (b->role == SBP_ROLE_SCRATCH || b->role == SBP_ROLE_WORKSPACE))
        return fail(c, "c6", "%s buffer '%.80s' has %lld columns on the token axis; at most %d",
                    sbp_role_name(b->role), b->name, (long long)b->cols, FEW_COLS);
    if (b->role == SBP_ROLE_RESULT && b->dtype != SBP_F64)
        return fail(c, "c8", "result buffer '%.80s' is %s, not f64", b->name, sbp_dtype_name(b->dtype));
    return SBP_OK;
}

static sbp_status verify_placement(const sbp_checker *c, const sbp_buffer *b, int64_t bytes) {
    int64_t unit = b->space == SBP_DISK ? SBP_DISK_ALIGNMENT : sbp_dtype_bytes(b->dtype), end;
    if (!c->placed)
        return SBP_OK;
    if (b->offset == -1)
        return fail(c, "c7", "buffer '%.80s' has no offset, others have", b->name);
    if (b->offset < 0 || b->offset % unit != 0 || b->stride < 0 || b->stride % unit != 0)
        return fail(c, "c7", "buffer '%.80s': offset %lld, stride %lld; both must be multiples of %lld bytes",
                    b->name, (long long)b->offset, (long long)b->stride, (long long)unit);
    if (b->count > 1 && b->stride < bytes)
        return fail(c, "c7", "buffer '%.80s': stride %lld, but an element takes %lld bytes", b->name,
                    (long long)b->stride, (long long)bytes);
    if (!sbp_mul_i64(b->stride, b->count - 1, &end) || !sbp_add_i64(end, bytes, &end) ||
        !sbp_add_i64(end, b->offset, &end) || end > c->program->arena_bytes[b->space])
        return fail(c, "c7", "buffer '%.80s' does not end within the arena of %lld bytes", b->name,
                    (long long)c->program->arena_bytes[b->space]);
    return SBP_OK;
}

/* ---- buckets ---------------------------------------------------------------------------------------- */

static sbp_status verify_part(const sbp_checker *c, const sbp_buffer *b) {
    const sbp_program *p = c->program;
    if (b->part_of < 0 || b->part_of > p->buffer_count)
        return fail(c, "c29", "buffer '%.80s' is a part of no buffer", b->name);
    const sbp_buffer *bucket = &p->buffers[b->part_of - 1];
    if (bucket->part_of != 0 || bucket->function != -1 || b->function != -1 || bucket->space != b->space ||
        (bucket->dtype != b->dtype && bucket->dtype != SBP_I8) || bucket->count != b->count)
        return fail(c, "c29", "buffer '%.80s' cannot be a part of '%.80s'", b->name, bucket->name);
    bool sharded = bucket->sharding == SBP_SHARDED;
    int64_t rows = sbp_extent_as_const(b->rows), all = sbp_extent_as_const(bucket->rows), elems = 0, end = 0;
    if (all >= 0 && sharded && !sbp_mul_i64(all, p->group, &all))
        all = -1;
    if (rows < 0 || all < 0 || !sbp_mul_i64(rows, b->cols, &elems) || !sbp_mul_i64(all, bucket->cols, &all) ||
        (bucket->dtype != b->dtype && !sbp_mul_i64(elems, sbp_dtype_bytes(b->dtype), &elems)) ||
        b->place < 0 || (!sharded && b->place % SBP_BUCKET_ALIGNMENT != 0) ||
        !sbp_add_i64(b->place, elems, &end) || end > all)
        return fail(c, "c29", "buffer '%.80s': %lld elements at %lld of '%.80s', which has %lld", b->name,
                    (long long)elems, (long long)b->place, bucket->name, (long long)all);
    if (sharded && b->offset != -1)
        return fail(c, "c29", "buffer '%.80s' at offset %lld, as if its bucket were not sharded", b->name,
                    (long long)b->offset);
    if (c->placed && !sharded &&
        (b->offset != bucket->offset + b->place * sbp_dtype_bytes(bucket->dtype) ||
         (b->count > 1 && b->stride != bucket->stride)))
        return fail(c, "c29", "buffer '%.80s' at offset %lld is not where '%.80s' has it", b->name,
                    (long long)b->offset, bucket->name);
    return SBP_OK;
}

static sbp_status verify_buffers(sbp_checker *c) {
    for (int32_t b = 0; b < c->program->buffer_count; b++)
        c->placed = c->placed || c->program->buffers[b].offset != -1;
    for (int32_t b = 0; b < c->program->buffer_count; b++) {
        int64_t bytes = 0;
        SBP_TRY(verify_buffer(c, &c->program->buffers[b], &bytes));
        if (!sbp_buffer_in_shares(c->program, b))
            SBP_TRY(verify_placement(c, &c->program->buffers[b], bytes));
    }
    for (int32_t b = 0; b < c->program->buffer_count; b++)
        if ((unsigned)c->program->buffers[b].sharding >= SBP_SHARDING_COUNT ||
            (c->program->buffers[b].sharding != SBP_WHOLE && c->program->buffers[b].part_of != 0))
            return fail(c, "c29", "buffer '%.80s' cannot be sharded", c->program->buffers[b].name);
    for (int32_t b = 0; b < c->program->buffer_count; b++)
        if (c->program->buffers[b].part_of != 0)
            SBP_TRY(verify_part(c, &c->program->buffers[b]));
    return SBP_OK;
}

/* ---- what comes in and goes out --------------------------------------------------------------------- */

static bool is_whole_axis(sbp_extent rows, sbp_symbol symbol) {
    return sbp_extent_equal(rows, sbp_extent_symbol(symbol, 1));
}

/* A column may be there with the rows of a rank and, in two orders, with those of all. */
static const char *column_key(sbp_checker *c, const sbp_row_input *in) {
    if (!in->column[0] || !is_whole_axis(c->program->buffers[in->buffer].rows, SBP_W))
        return in->column;
    return sbp_arena_printf(c->arena, "%s of %s", in->column, in->by_rank ? "ranks" : "all");
}

static sbp_status verify_input(sbp_checker *c, int32_t index, const sbp_map *columns,
                               const sbp_map *counted_columns) {
    const sbp_program *p = c->program;
    const sbp_row_input *in = &p->row_inputs[index];
    if ((unsigned)in->kind > SBP_ROW_RANK || in->buffer < 0 || in->buffer >= p->buffer_count || !in->column ||
        !in->column[0])
        return fail(c, "c9", "row input %d: no such kind, buffer or column", index);
    const sbp_buffer *b = &p->buffers[in->buffer];
    if (c->input_of[in->buffer] >= 0)
        return fail(c, "c9", "buffer '%.80s' is two row inputs", b->name);
    c->input_of[in->buffer] = index;
    if (b->role != SBP_ROLE_ROWS || b->space != SBP_DEVICE || b->function != -1 || b->count != 1 ||
        b->cols != 1)
        return fail(c, "c9", "row input '%.80s' is not one column of role rows on the device", b->name);
    bool of_all = is_whole_axis(b->rows, SBP_W);
    if (!is_whole_axis(b->rows, SBP_T) && !of_all &&
        (in->kind != SBP_ROW_COLUMN || !is_whole_axis(b->rows, SBP_S)))
        return fail(c, "c9", "row input '%.80s' has neither T nor W rows nor, as a column, S", b->name);
    if (of_all ? in->counted && !in->by_rank : in->by_rank)
        return fail(c, "c9", "row input '%.80s' is in an order that its rows cannot have", b->name);
    if (in->kind == SBP_ROW_COLUMN)
        return SBP_OK;
    int32_t of = sbp_map_get(in->counted ? counted_columns : columns, column_key(c, in));
    if (b->dtype != SBP_I32 || p->t_max > SBP_MOST_ROWS / p->context)
        return fail(c, "c9", "scatter order '%.80s' is not i32, or t_max is too large for it", b->name);
    if (in->kind == SBP_ROW_PICK || in->kind == SBP_ROW_RANK) {
        const char *counted = sbp_program_counted(p);
        if (of < 0 || of_all || in->counted || in->chunk != SBP_T || !counted ||
            strcmp(in->column, counted) != 0)
            return fail(c, "c9", "'%.80s' is of '%.80s', which is no column that says which rows count",
                        b->name, in->column);
        return SBP_OK;
    }
    if (of < 0 || sbp_dtype_is_float(p->buffers[p->row_inputs[of].buffer].dtype) ||
        !is_whole_axis(p->buffers[p->row_inputs[of].buffer].rows, of_all ? SBP_W : SBP_T))
        return fail(c, "c9", "scatter order '%.80s' is of '%.80s', which is no integer column of T rows",
                    b->name, in->column);
    if (of_all ? in->chunk != SBP_W : in->chunk != SBP_T && in->chunk != SBP_C && in->chunk != SBP_H)
        return fail(c, "c9", "scatter order '%.80s' is sorted in chunks of neither T, C nor H", b->name);
    return SBP_OK;
}

static sbp_status verify_data(sbp_checker *c) {
    const sbp_program *p = c->program;
    sbp_map columns, counted;
    sbp_map_init(&columns, c->arena);
    sbp_map_init(&counted, c->arena);
    c->input_of = SBP_NEW_ARRAY(c->arena, int32_t, p->buffer_count);
    for (int32_t b = 0; b < p->buffer_count; b++)
        c->input_of[b] = -1;
    for (int32_t r = 0; r < p->row_input_count; r++)
        if (p->row_inputs[r].kind == SBP_ROW_COLUMN && p->row_inputs[r].column &&
            p->row_inputs[r].buffer >= 0 && p->row_inputs[r].buffer < p->buffer_count)
            SBP_TRY(add_name(c, p->row_inputs[r].counted ? &counted : &columns, "column",
                             column_key(c, &p->row_inputs[r]), r));
    for (int32_t r = 0; r < p->row_input_count; r++)
        SBP_TRY(verify_input(c, r, &columns, &counted));
    for (int32_t r = 0; r < p->row_input_count; r++) {
        c->has_shared_end |= strcmp(p->row_inputs[r].column, "shared_end") == 0;
        c->has_own |= strcmp(p->row_inputs[r].column, "own") == 0;
    }
    for (int32_t o = 0; o < p->output_count; o++) {
        const sbp_output *out = &p->outputs[o];
        if (out->buffer < 0 || out->buffer >= p->buffer_count)
            return fail(c, "c8", "output '%.80s' is of no buffer", out->name);
        const sbp_buffer *b = &p->buffers[out->buffer];
        int64_t rows = sbp_extent_as_const(b->rows);
        if (b->role != SBP_ROLE_RESULT || b->function != -1 || rows < 0 || out->index < 0 ||
            out->index / b->cols >= rows)
            return fail(c, "c8", "output '%.80s' is not an element of a result buffer", out->name);
    }
    return SBP_OK;
}

/* ---- positions -------------------------------------------------------------------------------------- */

static void add_value(int64_t *values, int *count, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most)
        return;
    for (int k = 0; k < *count; k++)
        if (values[k] == value)
            return;
    values[(*count)++] = value;
}

/* The position of iteration i with four patterns of lo: all rows, own rows only, and two between, so that
 * no two windows agree. */
static void add_positions(sbp_checker *c, sbp_position_list *list, sbp_position position, int32_t table,
                          int64_t i) {
    sbp_position_set(&position, c->program, table, i);
    int32_t windows = c->program->tables[table].window_count;
    int64_t row0 = position.columns[SBP_COLUMN_ROW0];
    for (int pattern = 0; pattern < (windows > 0 ? 4 : 1); pattern++) {
        for (int32_t w = 0; w < windows; w++) {
            int64_t part = row0 / (windows + 1);
            const int64_t lo[] = {0, row0, part * (w + 1), part * (windows - w)};
            position.columns[SBP_COLUMN_LO + w] = lo[pattern];
        }
        SBP_PUSH(c->arena, list->items, list->count, list->capacity, position);
    }
}

/* T: one row, around one, two and three chunks, and the most; S: the least and the most. */
static void make_positions(sbp_checker *c) {
    enum { MAX_SAMPLES = 24, MAX_ITERATIONS = 5 };
    const sbp_program *p = c->program;
    int64_t t[MAX_SAMPLES];
    int t_count = 0;
    add_value(t, &t_count, p->t_max, 1, p->t_max);
    add_value(t, &t_count, 1, 1, p->t_max);
    add_value(t, &t_count, p->t_max - 1, 1, p->t_max);
    const int64_t chunks[] = {p->chunk, p->head_chunk};
    for (int k = 0; k < 2; k++)
        for (int64_t n = 1; n <= 3; n++)
            for (int64_t d = -1; d <= 1; d++)
                add_value(t, &t_count, n * chunks[k] + d, 1, p->t_max);
    c->positions = SBP_NEW_ARRAY(c->arena, sbp_position_list, p->table_count + 1);
    for (int k = 0; k < t_count; k++) {
        sbp_position position = {.table = -1};
        /* the largest T with both, else in turn */
        for (int s = 0; s < 2; s++) {
            if (k > 0 && s != k % 2)
                continue;
            position.sizes = sbp_program_sizes(p, t[k], s == 0 ? p->s_max : p->s_max > 0 ? 1 : 0);
            SBP_PUSH(c->arena, c->positions[0].items, c->positions[0].count, c->positions[0].capacity,
                     position);
            for (int32_t table = 0; table < p->table_count; table++) {
                int64_t n = sbp_table_rows(p, table, &position.sizes), i[MAX_ITERATIONS];
                int i_count = 0;
                const int64_t wanted[MAX_ITERATIONS] = {0, 1, n / 2, n - 2, n - 1};
                for (int w = 0; w < MAX_ITERATIONS; w++)
                    add_value(i, &i_count, wanted[w], 0, n - 1);
                for (int w = 0; w < i_count; w++)
                    add_positions(c, &c->positions[table + 1], position, table, i[w]);
            }
        }
    }
}

/* ---- code ------------------------------------------------------------------------------------------- */

static sbp_status walk(sbp_checker *c, const sbp_body *body);

static sbp_status walk_loop(sbp_checker *c, const sbp_loop *loop) {
    const sbp_program *p = c->program;
    if (loop->table < -1 || loop->table >= p->table_count ||
        (loop->table == -1 && (loop->scalar < 0 || loop->scalar >= p->scalar_count)))
        return sbp_checker_fail(c, "c12", "loop", "over table %d or scalar %d, which do not exist",
                                loop->table, loop->scalar);
    if (c->depth == SBP_MAX_LOOP_DEPTH)
        return sbp_checker_fail(c, "c12", "loop", "loops nest more than %d deep", SBP_MAX_LOOP_DEPTH);
    if (loop->table >= 0 && c->table >= 0)
        return sbp_checker_fail(c, "c12", "loop", "a loop over a table inside another");
    int32_t outer = c->table;
    if (loop->table >= 0)
        c->table = loop->table;
    c->depth++;
    SBP_TRY(walk(c, &loop->body));
    c->depth--;
    c->table = outer;
    return SBP_OK;
}

static sbp_status walk(sbp_checker *c, const sbp_body *body) {
    for (int32_t n = 0; n < body->count; n++) {
        const sbp_node *node = &body->nodes[n];
        switch (node->kind) {
        case SBP_NODE_LOOP:
            SBP_TRY(walk_loop(c, node->u.loop));
            break;
        case SBP_NODE_CALL:
            SBP_TRY(sbp_check_call(c, node->u.call));
            c->command++;
            break;
        case SBP_NODE_COMMAND:
            SBP_TRY(sbp_check_command(c, node->u.command));
            c->command++;
            break;
        default:
            return sbp_checker_fail(c, "c15", "node", "neither command, loop nor call");
        }
    }
    return SBP_OK;
}

static sbp_status verify_function(sbp_checker *c, int32_t index) {
    const sbp_function *f = &c->program->functions[index];
    if (f->formal_count > MAX_FORMALS)
        return fail(c, "c11", "function '%.80s' has %d formals; at most %d", f->name, f->formal_count,
                    MAX_FORMALS);
    sbp_map names;
    sbp_map_init(&names, c->arena);
    for (int32_t k = 0; k < f->formal_count; k++) {
        const sbp_formal *formal = &f->formals[k];
        SBP_TRY(add_name(c, &names, "formal", formal->name, k));
        if ((unsigned)formal->access > SBP_UPDATE || (unsigned)formal->dtype >= SBP_DTYPE_COUNT ||
            formal->cols < 1 || formal->cols > SIZE_LIMIT || !is_row_count(c->program, formal->rows))
            return fail(c, "c11",
                        "formal '%.80s' of function '%.80s': no such access or dtype, or its "
                        "rows or columns are out of range",
                        formal->name, f->name);
    }
    c->facts[index].spaces = SBP_NEW_ARRAY(c->arena, uint8_t, f->formal_count + 1);
    c->facts[index].wide = SBP_NEW_ARRAY(c->arena, bool, f->formal_count + 1);
    memset(c->facts[index].spaces, (1 << SBP_SPACE_COUNT) - 1, (size_t)f->formal_count);
    c->function = f;
    c->function_index = index;
    c->place = f->name;
    c->command = 0;
    return walk(c, &f->body);
}

static sbp_status verify_body(void *user) {
    sbp_checker *c = user;
    const sbp_program *p = c->program;
    SBP_TRY(verify_sizes(c));
    SBP_TRY(verify_names(c));
    SBP_TRY(verify_tables(c));
    SBP_TRY(verify_buffers(c));
    SBP_TRY(verify_data(c));
    for (int32_t k = 0; k < p->kernel_count; k++)
        SBP_TRY(sbp_rowkernel_verify(p->kernels[k], c->diag));
    make_positions(c);
    c->may_alias = SBP_NEW_ARRAY(c->arena, uint8_t *, p->kernel_count);
    c->facts = SBP_NEW_ARRAY(c->arena, sbp_function_facts, p->function_count);
    for (int32_t f = 0; f < p->function_count; f++)
        SBP_TRY(verify_function(c, f));
    c->function = NULL;
    c->function_index = -1;
    for (int32_t e = 0; e < p->entry_count; e++) {
        c->place = p->entries[e].name;
        c->command = 0;
        SBP_TRY(walk(c, &p->entries[e].body));
    }
    return SBP_OK;
}

sbp_status sbp_program_verify(const sbp_program *program, sbp_diag *diag) {
    sbp_arena *arena = sbp_arena_create();
    if (!arena)
        return sbp_fail(diag, SBP_MACHINE, "out of memory while verifying a program");
    sbp_checker checker = {.program = program, .diag = diag, .arena = arena, .table = -1};
    sbp_status status = sbp_guard(arena, diag, verify_body, &checker);
    sbp_arena_destroy(arena);
    return status;
}
