/* executor_bind.c: a micro-batch: row inputs, chunk tables, scatter orders, and views evaluated at T and S.
 */
#include "ir/base/census.h"
#include "runtime/run/executor_internal.h"

#include <math.h>
#include <string.h>

typedef struct binder {
    sbp_executor *x;
    const sbp_column *columns;
    int32_t column_count;
    const sbp_column *first, *shared_end, *own;
    int64_t rows; /* of the data, the first of which is x->position.begin; there may be more, of all ranks */
    sbp_diag *diag;
} binder;

static const sbp_column *find_column(const binder *b, const char *name) {
    for (int32_t k = 0; k < b->column_count; k++)
        if (strcmp(b->columns[k].name, name) == 0)
            return &b->columns[k];
    return NULL;
}

/* shared_end and own are first where the packer has none. */
static const sbp_column *find_column_or_default(const binder *b, const char *name) {
    const sbp_column *found = find_column(b, name);
    if (!found && (strcmp(name, "shared_end") == 0 || strcmp(name, "own") == 0))
        found = find_column(b, "first");
    return found;
}

/* An integer of a column; the least int64 stands for what is none. */
static int64_t integer_at(const sbp_column *column, int64_t row) {
    switch (column->dtype) {
    case SBP_I32:
        return ((const int32_t *)column->data)[row];
    case SBP_I64:
        return ((const int64_t *)column->data)[row];
    default: {
        double value = sbp_element_get(column->data, column->dtype, row);
        return fabs(value) < 0x1p53 && value == floor(value) ? (int64_t)value : INT64_MIN;
    }
    }
}

/* ---- columns ---------------------------------------------------------------------------------------- */

/* Range of an integer column; every number must fit in `dtype`. */
static sbp_status scan_integers(const binder *b, const sbp_column *column, sbp_dtype dtype,
                                sbp_column_range *range) {
    int64_t least = dtype == SBP_I32 ? INT32_MIN : dtype == SBP_I8 ? INT8_MIN : INT64_MIN + 1;
    int64_t most = dtype == SBP_I32 ? INT32_MAX : dtype == SBP_I8 ? INT8_MAX : INT64_MAX;
    *range = (sbp_column_range){.least = INT64_MAX, .most = INT64_MIN};
    for (int64_t r = 0; r < column->count; r++) {
        int64_t value = integer_at(column, r);
        if (value < least || value > most)
            return sbp_fail(b->diag, SBP_INTERNAL, "column '%.80s': the number in row %lld is no %s",
                            column->name, (long long)r, sbp_dtype_name(dtype));
        if (value < range->least)
            range->least = value;
        if (value > range->most) {
            range->most = value;
            range->most_at = r;
        }
    }
    if (b->x->position.sizes.v[SBP_W] > b->x->position.begin + b->rows && range->least > 0)
        range->least = 0; /* rows behind the data */
    return SBP_OK;
}

/* ---- rows of ranks ---------------------------------------------------------------------------------- */

/* The number of a column in a row of the batch; rows behind the data are documents of their own in which
 * nothing counts. */
static double number_at(const sbp_column *column, int64_t row) {
    if (row >= column->count)
        return sbp_column_names_rows(column->name) ? (double)row : 0;
    return sbp_element_get(column->data, column->dtype, row);
}

static int64_t whole_number_at(const sbp_column *column, int64_t row) {
    if (row >= column->count)
        return sbp_column_names_rows(column->name) ? row : 0;
    return integer_at(column, row);
}

/* Row of the batch of a rank's row. */
static int64_t batch_row(const sbp_executor *x, int64_t rank, int64_t row) {
    int64_t ranks = x->program->context;
    return ranks > 1 ? sbp_context_row(row, x->position.sizes.v[SBP_T], x->program->chunk, rank, ranks) : row;
}

static const int32_t *pick_of(const sbp_executor *x, int64_t rank) {
    return x->pick + rank * x->program->t_max;
}

/* Which rows count, of every rank by itself. */
static sbp_status find_counted(const binder *b) {
    sbp_executor *x = b->x;
    const char *name = sbp_program_counted(x->program);
    const sbp_column *column = name ? find_column(b, name) : NULL;
    if (!name)
        return SBP_OK;
    if (!column || column->count != b->rows)
        return sbp_fail(b->diag, SBP_INTERNAL, "column '%.80s' needs %lld numbers", name, (long long)b->rows);
    for (int64_t rank = 0; rank < x->program->context; rank++) {
        int32_t *pick = x->pick + rank * x->program->t_max;
        x->counts[rank] = 0;
        for (int64_t r = b->x->position.begin; r < x->position.sizes.v[SBP_T]; r++)
            if (number_at(column, batch_row(x, rank, r) - b->x->position.begin) != 0)
                pick[x->counts[rank]++] = (int32_t)r;
    }
    return SBP_OK;
}

/* A rank's row whose number comes as the i-th of a counted column; -1: 0 comes. */
static int64_t counted_row(const sbp_executor *x, int64_t rank, int64_t i, bool is_float) {
    int64_t count = x->counts[rank];
    if (i < count)
        return pick_of(x, rank)[i];
    return is_float ? -1 : count > 0 ? pick_of(x, rank)[count - 1] : (int32_t)x->position.begin;
}

/* Row of the batch that row i of an input is; -1: 0 comes. */
static int64_t input_row(const sbp_executor *x, const sbp_row_input *in, int64_t i, bool is_float) {
    int64_t rank = x->rank, t = x->position.sizes.v[SBP_T];
    if (x->program->buffers[in->buffer].rows.c[SBP_W] != 0) {
        if (!in->by_rank)
            return i;
        rank = i / t;
        i %= t;
    }
    if (in->counted)
        i = counted_row(x, rank, i, is_float);
    return i < 0 ? i : batch_row(x, rank, i);
}

/* A column whose numbers come in another order. */
static sbp_status bind_ordered(const binder *b, const sbp_row_input *input, const sbp_column *column,
                               int64_t count) {
    sbp_executor *x = b->x;
    const sbp_buffer *buffer = &x->program->buffers[input->buffer];
    bool is_float = sbp_dtype_is_float(buffer->dtype);
    double piece[512];
    int64_t bytes = sbp_dtype_bytes(buffer->dtype);
    for (int64_t i = 0, filled = 0; i < count; i++) {
        int64_t row = input_row(x, input, i, is_float);
        piece[filled++] = row < 0 ? 0 : number_at(column, row - b->x->position.begin);
        if (filled < SBP_COUNT(piece) && i + 1 < count)
            continue;
        SBP_TRY(sbp_executor_convert_in(x, buffer->space, buffer->offset + (i + 1 - filled) * bytes,
                                        buffer->dtype, filled, SBP_F64, piece, b->diag));
        filled = 0;
    }
    return SBP_OK;
}

/* Rows in the order of those that count: behind the cache no more than these are read. */
static int64_t rows_in_order(const binder *b, int64_t all) {
    return b->x->position.begin > 0 ? sbp_max_i64(b->x->counts[b->x->rank], 1) : all;
}

/* pick and rank. */
static sbp_status bind_ranks(const binder *b, int32_t index) {
    sbp_executor *x = b->x;
    const sbp_row_input *input = &x->program->row_inputs[index];
    const sbp_buffer *buffer = &x->program->buffers[input->buffer];
    int64_t rows = rows_in_order(b, x->position.sizes.v[SBP_T]), rank = 0;
    const int32_t *pick = pick_of(x, x->rank);
    int64_t counted = x->counts[x->rank];
    int32_t piece[512];
    x->ranges[index] = (sbp_column_range){.least = 0, .most = x->position.sizes.v[SBP_T] - 1};
    for (int64_t r = 0, filled = 0; r < rows; r++) {
        bool counts = rank < counted && pick[rank] == r;
        if (input->kind == SBP_ROW_PICK)
            piece[filled++] = r < counted ? pick[r] : (int32_t)r;
        else
            piece[filled++] = (int32_t)(counts ? rank : r);
        rank += counts;
        if (filled < SBP_COUNT(piece) && r + 1 < rows)
            continue;
        SBP_TRY(sbp_executor_put(x, buffer->space, buffer->offset + (r + 1 - filled) * 4, piece, filled * 4,
                                 b->diag));
        filled = 0;
    }
    return SBP_OK;
}

static sbp_status bind_column(const binder *b, int32_t index) {
    sbp_executor *x = b->x;
    const sbp_row_input *input = &x->program->row_inputs[index];
    const sbp_buffer *buffer = &x->program->buffers[input->buffer];
    bool of_rows = buffer->rows.c[SBP_S] == 0;
    int64_t count = of_rows ? b->rows : x->position.sizes.v[SBP_S];
    const sbp_column *column = find_column_or_default(b, input->column);
    if (!column || column->count != count)
        return sbp_fail(b->diag, SBP_INTERNAL, "column '%.80s': %lld numbers, the program takes %lld",
                        input->column, column ? (long long)column->count : 0, (long long)count);
    if (!sbp_dtype_is_float(buffer->dtype))
        SBP_TRY(scan_integers(b, column, buffer->dtype, &x->ranges[index]));
    if (of_rows && (input->counted || x->program->context > 1))
        return bind_ordered(
            b, input, column,
            rows_in_order(b, x->position.sizes.v[buffer->rows.c[SBP_W] != 0 ? SBP_W : SBP_T]));
    int64_t before = of_rows ? b->x->position.begin * sbp_dtype_bytes(buffer->dtype) : 0;
    return sbp_executor_convert_in(x, buffer->space, buffer->offset + before, buffer->dtype, count,
                                   column->dtype, column->data, b->diag);
}

/* Numbers of a rank's counted rows, in front, to its rows. */
static void spread(const sbp_executor *x, int64_t rank, double *rows) {
    int64_t left = x->counts[rank];
    const int32_t *pick = pick_of(x, rank);
    for (int64_t r = x->position.sizes.v[SBP_T] - 1; r >= 0; r--) {
        bool counts = left > 0 && pick[left - 1] == r;
        rows[r] = counts ? rows[--left] : 0;
    }
}

sbp_status sbp_executor_read_rows(sbp_executor *x, int32_t buffer, int64_t count, double *out,
                                  sbp_diag *diag) {
    int64_t ranks = x->program->context, t = x->position.sizes.v[SBP_T];
    double *rows = ranks > 1 ? x->row_order : out;
    SBP_TRY(sbp_executor_read(x, buffer, 0, 0, ranks > 1 ? ranks * t : count, SBP_F64, rows, diag));
    for (int64_t rank = 0; sbp_program_counted(x->program) && rank < ranks; rank++)
        spread(x, rank, rows + rank * t);
    for (int64_t i = 0; ranks > 1 && i < ranks * t; i++) {
        int64_t row = batch_row(x, i / t, i % t);
        if (row < count)
            out[row] = rows[i];
    }
    return SBP_OK;
}

/* ---- chunk tables ----------------------------------------------------------------------------------- */

/* The first row that row r sees (ir/program/program.h, attn_fwd). */
static int64_t first_seen(int64_t r, int64_t first, int64_t shared_end, int64_t own, int64_t window) {
    if (window == 0)
        return first < shared_end ? first : own;
    int64_t in_own = sbp_max_i64(own, r - window + 1);
    int64_t in_shared = sbp_max_i64(first, shared_end + r - own - window + 1);
    return in_shared < shared_end ? in_shared : in_own; /* shared_end <= own */
}

static sbp_status check_document(const binder *b, int64_t r, int64_t first, int64_t shared_end, int64_t own) {
    bool elsewhere = own == r + 1 && first < shared_end; /* its keys are among the shared ones */
    if (first >= 0 && first <= shared_end && shared_end <= own && (own <= r || elsewhere))
        return SBP_OK;
    return sbp_fail(b->diag, SBP_INTERNAL, "row %lld: first %lld, shared_end %lld, own %lld", (long long)r,
                    (long long)first, (long long)shared_end, (long long)own);
}

static sbp_status fill_table(const binder *b, int32_t table) {
    sbp_executor *x = b->x;
    const sbp_chunk_table *t = &x->program->tables[table];
    int64_t rows = x->position.sizes.v[SBP_W], step = x->position.sizes.v[t->step] * x->program->context;
    SBP_CROSS_EITHER(rows > step, run_chunks, run_chunk);
    SBP_CROSS_IF(rows > step && rows % step != 0, run_chunk_short);
    for (int64_t row0 = b->x->position.begin, chunk = 0; row0 < rows; row0 += step, chunk++) {
        int64_t *lo = &x->lo[table][chunk * t->window_count];
        for (int32_t w = 0; w < t->window_count; w++)
            lo[w] = row0;
        for (int64_t r = row0; r < row0 + step && r < rows; r++) {
            int64_t at = r - b->x->position.begin, first = whole_number_at(b->first, at);
            int64_t shared_end = whole_number_at(b->shared_end, at), own = whole_number_at(b->own, at);
            SBP_TRY(check_document(b, r, first, shared_end, own));
            for (int32_t w = 0; w < t->window_count; w++) {
                int64_t seen = first_seen(r, first, shared_end, own, t->windows[w]);
                if (seen < lo[w])
                    lo[w] = seen;
            }
        }
    }
    return SBP_OK;
}

static sbp_status fill_tables(binder *b) {
    b->first = find_column(b, "first");
    b->shared_end = find_column_or_default(b, "shared_end");
    b->own = find_column_or_default(b, "own");
    int64_t rows = b->rows;
    for (int32_t t = 0; t < b->x->program->table_count; t++) {
        if (b->x->program->tables[t].window_count == 0)
            continue;
        if (!b->first || b->first->count != rows || b->shared_end->count != rows || b->own->count != rows)
            return sbp_fail(b->diag, SBP_INTERNAL, "columns first, shared_end and own need %lld numbers each",
                            (long long)rows);
        SBP_TRY(fill_table(b, t));
    }
    return SBP_OK;
}

/* ---- scatter orders --------------------------------------------------------------------------------- */

/* Sorts rows by their number in a column; equal numbers keep the order of rows in the batch, so that sums
 * have the bits of one rank whoever has the rows. */
typedef struct sorter {
    const sbp_executor *x;
    const sbp_column *column;
    const sbp_row_input *order; /* which numbers come, and in which order */
    int64_t row0;
    int32_t *rows; /* relative to row0 */
} sorter;

static int64_t sorted_value(const sorter *s, int64_t row) {
    return whole_number_at(s->column, input_row(s->x, s->order, row, false));
}

static bool before(const sorter *s, int32_t a, int32_t b) {
    int64_t row_a = input_row(s->x, s->order, s->row0 + a, false);
    int64_t row_b = input_row(s->x, s->order, s->row0 + b, false);
    int64_t x = whole_number_at(s->column, row_a), y = whole_number_at(s->column, row_b);
    return x != y ? x < y : row_a != row_b ? row_a < row_b : a < b;
}

static void sift_down(sorter *s, int64_t at, int64_t count) {
    int32_t moved = s->rows[at];
    for (int64_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && before(s, s->rows[child], s->rows[child + 1]))
            child++;
        if (!before(s, moved, s->rows[child]))
            break;
        s->rows[at] = s->rows[child];
    }
    s->rows[at] = moved;
}

/* Heap sort: in place, and no input makes it slow. */
static void sort_rows(sorter *s, int64_t count) {
    for (int64_t k = 0; k < count; k++)
        s->rows[k] = (int32_t)k;
    for (int64_t k = count / 2 - 1; k >= 0; k--)
        sift_down(s, k, count);
    for (int64_t k = count - 1; k > 0; k--) {
        int32_t last = s->rows[k];
        s->rows[k] = s->rows[0];
        s->rows[0] = last;
        sift_down(s, 0, k);
    }
}

/* Run lengths of a sorted chunk, written piece by piece to the arena at `offset`. */
static sbp_status write_segments(const binder *b, const sorter *s, int64_t count, const sbp_buffer *to,
                                 int64_t offset) {
    int32_t *piece = (int32_t *)(void *)b->x->staging;
    const int64_t limit = SBP_STAGING_BYTES / 4;
    int64_t filled = 0, run = 0; /* run: rows left of the segment at hand */
    for (int64_t k = 0; k < count; k++) {
        piece[filled] = 0;
        if (run == 0) {
            int64_t value = sorted_value(s, s->row0 + s->rows[k]);
            while (k + run < count && sorted_value(s, s->row0 + s->rows[k + run]) == value)
                run++;
            piece[filled] = (int32_t)run;
        }
        run--;
        filled++;
        SBP_CROSS_IF(filled == limit, run_segments_pieces);
        if (filled == limit || k == count - 1) {
            SBP_TRY(sbp_executor_put(b->x, to->space, offset, piece, filled * 4, b->diag));
            offset += filled * 4;
            filled = 0;
        }
    }
    return SBP_OK;
}

/* The row input that holds the segments of an order; NULL when the program wants none. */
static const sbp_row_input *segments_of(const sbp_program *program, const sbp_row_input *order) {
    for (int32_t r = 0; r < program->row_input_count; r++) {
        const sbp_row_input *input = &program->row_inputs[r];
        if (input->kind == SBP_ROW_SEGMENT && input->chunk == order->chunk &&
            input->counted == order->counted && input->by_rank == order->by_rank &&
            strcmp(input->column, order->column) == 0)
            return input;
    }
    return NULL;
}

static sbp_status bind_order(const binder *b, const sbp_row_input *order) {
    sbp_executor *x = b->x;
    const sbp_buffer *to = &x->program->buffers[order->buffer];
    const sbp_row_input *segments = segments_of(x->program, order);
    const sbp_column *column = find_column_or_default(b, order->column);
    int64_t rows = x->position.sizes.v[to->rows.c[SBP_W] != 0 ? SBP_W : SBP_T];
    int64_t step = x->position.sizes.v[order->chunk];
    if (!column || column->count != b->rows)
        return sbp_fail(b->diag, SBP_INTERNAL, "column '%.80s' needs %lld numbers", order->column,
                        (long long)b->rows);
    int32_t *direct = sbp_executor_map(x, order->buffer, 0);
    if (!direct && !x->order) { /* it was mapped when the executor was made: the device has failed since */
        SBP_TRY(x->class->wait(x->device, b->diag));
        return sbp_fail(b->diag, SBP_INTERNAL, "the device no longer maps its memory");
    }
    bool ends = order->counted && order->chunk != SBP_T &&
                order->chunk != SBP_W; /* with the rows that count, as the loop does */
    int64_t end = ends ? sbp_max_i64(x->counts[x->rank], 1) : rows;
    for (int64_t row0 = 0; row0 < end; row0 += step) {
        int64_t count = end - row0 < step ? end - row0 : step;
        sorter s = {x, column, order, row0, direct ? direct + row0 : x->order};
        sort_rows(&s, count);
        if (!direct)
            SBP_TRY(sbp_executor_put(x, to->space, to->offset + row0 * 4, s.rows, count * 4, b->diag));
        if (segments) {
            const sbp_buffer *lengths = &x->program->buffers[segments->buffer];
            SBP_TRY(write_segments(b, &s, count, lengths, lengths->offset + row0 * 4));
        }
    }
    return SBP_OK;
}

/* ---- views ------------------------------------------------------------------------------------------ */

/* What an extent loses per row that the chunk has fewer than its nominal size. */
static int64_t of_chunk(const sbp_executor *x, sbp_extent extent, sbp_symbol chunk) {
    if (chunk == SBP_ONE)
        return 0;
    return extent.c[chunk] + (chunk == SBP_C ? extent.c[SBP_D] * x->program->context : 0);
}

static bool eval_view(const sbp_executor *x, sbp_prepared_view *v) {
    const sbp_sizes *sizes = &x->position.sizes;
    const sbp_view *view = v->view;
    v->length_base_chunk = of_chunk(x, view->length.base, v->chunk_symbol);
    v->length_step_chunk = of_chunk(x, view->length.step, v->chunk_symbol);
    const sbp_chunk_table *table = v->chunk_symbol != SBP_ONE ? &x->program->tables[v->table] : NULL;
    int64_t before = table ? view->start.step.c[table->step] * sbp_position_begin(&x->position, table) : 0;
    return sbp_extent_eval(view->start.base, sizes, &v->start_base) &&
           sbp_add_i64(v->start_base, before, &v->start_base) &&
           sbp_extent_eval(view->start.step, sizes, &v->start_step) &&
           sbp_extent_eval(view->length.base, sizes, &v->length_base) &&
           sbp_extent_eval(view->length.step, sizes, &v->length_step) &&
           sbp_extent_eval(v->rows, sizes, &v->total);
}

sbp_status sbp_executor_bind(sbp_executor *x, int64_t t, int64_t s, const sbp_column *columns,
                             int32_t column_count, sbp_diag *diag) {
    return sbp_executor_bind_behind(x, 0, t, s, columns, column_count, diag);
}

sbp_status sbp_executor_bind_behind(sbp_executor *x, int64_t begin, int64_t t, int64_t s,
                                    const sbp_column *columns, int32_t column_count, sbp_diag *diag) {
    const sbp_program *program = x->program;
    x->bound = false;
    int64_t rows = t, most = sbp_program_most_rows(program);
    if (t < 1 || t > most || s < 0 || s > program->s_max || begin < 0 || begin >= t ||
        (begin > 0 && program->context > 1))
        return sbp_fail(diag, SBP_INTERNAL, "%lld rows and %lld groups; the plan takes %lld and %lld",
                        (long long)t, (long long)s, (long long)most, (long long)program->s_max);
    t = sbp_ceil_div(t, program->context);
    SBP_TRY(x->class->wait(x->device, diag));
    x->position = (sbp_position){.sizes = sbp_program_sizes(program, t, s), .table = -1, .begin = begin};
    x->scalars[0] = (double)t;
    x->scalars[1] = (double)s;
    x->scalar_set[0] = x->scalar_set[1] = true;
    for (int32_t k = 0; k < x->view_count; k++)
        if (!eval_view(x, x->views[k]))
            return sbp_fail(diag, SBP_INPUT, "a view of the program overflows for T %lld, S %lld",
                            (long long)t, (long long)s);
    binder b = {.x = x, .columns = columns, .column_count = column_count, .rows = rows - begin, .diag = diag};
    SBP_TRY(find_counted(&b));
    for (int32_t r = 0; r < program->row_input_count; r++)
        if (program->row_inputs[r].kind == SBP_ROW_COLUMN)
            SBP_TRY(bind_column(&b, r));
        else if (program->row_inputs[r].kind == SBP_ROW_PICK || program->row_inputs[r].kind == SBP_ROW_RANK)
            SBP_TRY(bind_ranks(&b, r));
    SBP_TRY(fill_tables(&b));
    for (int32_t r = 0; r < program->row_input_count; r++)
        if (program->row_inputs[r].kind == SBP_ROW_ORDER)
            SBP_TRY(bind_order(&b, &program->row_inputs[r]));
    x->bound = true;
    return SBP_OK;
}
