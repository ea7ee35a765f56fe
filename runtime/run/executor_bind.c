/* executor_bind.c: a micro-batch: row inputs, chunk tables, scatter orders, and views evaluated at T and S.
 */
#include "runtime/run/executor_internal.h"

#include <math.h>
#include <string.h>

typedef struct binder {
    sbp_executor *x;
    const sbp_column *columns;
    int32_t column_count;
    const sbp_column *first, *shared_end, *own;
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
    return SBP_OK;
}

/* Which rows count. */
static sbp_status find_counted(const binder *b) {
    sbp_executor *x = b->x;
    const char *name = sbp_program_counted(x->program);
    int64_t rows = x->position.sizes.v[SBP_T];
    const sbp_column *column = name ? find_column(b, name) : NULL;
    if (!name)
        return SBP_OK;
    if (!column || column->count != rows)
        return sbp_fail(b->diag, SBP_INTERNAL, "column '%.80s' needs %lld numbers", name, (long long)rows);
    x->counted = 0;
    for (int64_t r = 0; r < rows; r++)
        if (sbp_element_get(column->data, column->dtype, r) != 0)
            x->pick[x->counted++] = (int32_t)r;
    return SBP_OK;
}

/* Row of the batch whose number comes as the i-th of a counted column; -1: 0 comes. */
static int64_t counted_row(const sbp_executor *x, int64_t i, bool is_float) {
    if (i < x->counted)
        return x->pick[i];
    return is_float ? -1 : x->counted > 0 ? x->pick[x->counted - 1] : 0;
}

static sbp_status bind_counted(const binder *b, const sbp_row_input *input, const sbp_column *column) {
    sbp_executor *x = b->x;
    const sbp_buffer *buffer = &x->program->buffers[input->buffer];
    bool is_float = sbp_dtype_is_float(buffer->dtype);
    double piece[512];
    int64_t bytes = sbp_dtype_bytes(buffer->dtype);
    for (int64_t i = 0, filled = 0; i < column->count; i++) {
        int64_t row = counted_row(x, i, is_float);
        piece[filled++] = row < 0 ? 0 : sbp_element_get(column->data, column->dtype, row);
        if (filled < SBP_COUNT(piece) && i + 1 < column->count)
            continue;
        SBP_TRY(sbp_executor_convert_in(x, buffer->space, buffer->offset + (i + 1 - filled) * bytes,
                                        buffer->dtype, filled, SBP_F64, piece, b->diag));
        filled = 0;
    }
    return SBP_OK;
}

/* pick and rank. */
static sbp_status bind_ranks(const binder *b, int32_t index) {
    sbp_executor *x = b->x;
    const sbp_row_input *input = &x->program->row_inputs[index];
    const sbp_buffer *buffer = &x->program->buffers[input->buffer];
    int64_t rows = x->position.sizes.v[SBP_T], rank = 0;
    int32_t piece[512];
    x->ranges[index] = (sbp_column_range){.least = 0, .most = rows - 1};
    for (int64_t r = 0, filled = 0; r < rows; r++) {
        bool counts = rank < x->counted && x->pick[rank] == r;
        if (input->kind == SBP_ROW_PICK)
            piece[filled++] = r < x->counted ? x->pick[r] : (int32_t)r;
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
    int64_t count = x->position.sizes.v[buffer->rows.c[SBP_T] ? SBP_T : SBP_S];
    const sbp_column *column = find_column_or_default(b, input->column);
    if (!column || column->count != count)
        return sbp_fail(b->diag, SBP_INTERNAL, "column '%.80s': %lld numbers, the program takes %lld",
                        input->column, column ? (long long)column->count : 0, (long long)count);
    if (!sbp_dtype_is_float(buffer->dtype))
        SBP_TRY(scan_integers(b, column, buffer->dtype, &x->ranges[index]));
    if (input->counted)
        return bind_counted(b, input, column);
    return sbp_executor_convert_in(x, buffer->space, buffer->offset, buffer->dtype, count, column->dtype,
                                   column->data, b->diag);
}

void sbp_executor_spread(const sbp_executor *x, double *rows) {
    int64_t rank = x->counted;
    if (!sbp_program_counted(x->program))
        return;
    for (int64_t r = x->position.sizes.v[SBP_T] - 1; r >= 0; r--) {
        bool counts = rank > 0 && x->pick[rank - 1] == r;
        rows[r] = counts ? rows[--rank] : 0;
    }
}

/* ---- chunk tables ----------------------------------------------------------------------------------- */

static int64_t max_i64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* The first row that row r sees (ir/program.h, attn_fwd). */
static int64_t first_seen(int64_t r, int64_t first, int64_t shared_end, int64_t own, int64_t window) {
    if (window == 0)
        return first < shared_end ? first : own;
    int64_t in_own = max_i64(own, r - window + 1);
    int64_t in_shared = max_i64(first, shared_end + r - own - window + 1);
    return in_shared < shared_end ? in_shared : in_own; /* shared_end <= own */
}

static sbp_status check_document(const binder *b, int64_t r, int64_t first, int64_t shared_end, int64_t own) {
    if (first >= 0 && first <= shared_end && shared_end <= own && own <= r)
        return SBP_OK;
    return sbp_fail(b->diag, SBP_INTERNAL, "row %lld: first %lld, shared_end %lld, own %lld", (long long)r,
                    (long long)first, (long long)shared_end, (long long)own);
}

static sbp_status fill_table(const binder *b, int32_t table) {
    sbp_executor *x = b->x;
    const sbp_chunk_table *t = &x->program->tables[table];
    int64_t rows = x->position.sizes.v[SBP_T], step = x->position.sizes.v[t->step];
    for (int64_t row0 = 0, chunk = 0; row0 < rows; row0 += step, chunk++) {
        int64_t *lo = &x->lo[table][chunk * t->window_count];
        for (int32_t w = 0; w < t->window_count; w++)
            lo[w] = row0;
        for (int64_t r = row0; r < row0 + step && r < rows; r++) {
            int64_t first = integer_at(b->first, r), shared_end = integer_at(b->shared_end, r);
            int64_t own = integer_at(b->own, r);
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
    int64_t rows = b->x->position.sizes.v[SBP_T];
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

/* Sorts rows by their number in a column; equal numbers keep the order of rows. */
typedef struct sorter {
    const sbp_column *column;
    const sbp_executor *counted; /* the column comes in the order of counted rows; NULL: in its own */
    int64_t row0;
    int32_t *rows; /* relative to row0 */
} sorter;

static int64_t sorted_value(const sorter *s, int64_t row) {
    return integer_at(s->column, s->counted ? counted_row(s->counted, row, false) : row);
}

static bool before(const sorter *s, int32_t a, int32_t b) {
    int64_t x = sorted_value(s, s->row0 + a), y = sorted_value(s, s->row0 + b);
    return x != y ? x < y : a < b;
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
            input->counted == order->counted && strcmp(input->column, order->column) == 0)
            return input;
    }
    return NULL;
}

static sbp_status bind_order(const binder *b, const sbp_row_input *order) {
    sbp_executor *x = b->x;
    const sbp_buffer *to = &x->program->buffers[order->buffer];
    const sbp_row_input *segments = segments_of(x->program, order);
    const sbp_column *column = find_column_or_default(b, order->column);
    int64_t rows = x->position.sizes.v[SBP_T], step = x->position.sizes.v[order->chunk];
    if (!column || column->count != rows)
        return sbp_fail(b->diag, SBP_INTERNAL, "column '%.80s' needs %lld numbers", order->column,
                        (long long)rows);
    int32_t *direct = sbp_executor_map(x, order->buffer, 0);
    if (!direct && !x->order) { /* it was mapped when the executor was made: the device has failed since */
        SBP_TRY(x->class->wait(x->device, b->diag));
        return sbp_fail(b->diag, SBP_INTERNAL, "the device no longer maps its memory");
    }
    bool ends = order->counted && order->chunk != SBP_T; /* with the rows that count, as the loop does */
    int64_t end = ends ? max_i64(x->counted, 1) : rows;
    for (int64_t row0 = 0; row0 < end; row0 += step) {
        int64_t count = end - row0 < step ? end - row0 : step;
        sorter s = {column, order->counted ? x : NULL, row0, direct ? direct + row0 : x->order};
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
static bool eval_view(const sbp_executor *x, sbp_prepared_view *v) {
    const sbp_sizes *sizes = &x->position.sizes;
    const sbp_view *view = v->view;
    v->length_base_chunk = v->chunk_symbol != SBP_ONE ? view->length.base.c[v->chunk_symbol] : 0;
    v->length_step_chunk = v->chunk_symbol != SBP_ONE ? view->length.step.c[v->chunk_symbol] : 0;
    return sbp_extent_eval(view->start.base, sizes, &v->start_base) &&
           sbp_extent_eval(view->start.step, sizes, &v->start_step) &&
           sbp_extent_eval(view->length.base, sizes, &v->length_base) &&
           sbp_extent_eval(view->length.step, sizes, &v->length_step) &&
           sbp_extent_eval(v->rows, sizes, &v->total);
}

sbp_status sbp_executor_bind(sbp_executor *x, int64_t t, int64_t s, const sbp_column *columns,
                             int32_t column_count, sbp_diag *diag) {
    const sbp_program *program = x->program;
    x->bound = false;
    if (t < 1 || t > program->t_max || s < 0 || s > program->s_max)
        return sbp_fail(diag, SBP_INTERNAL, "%lld rows and %lld groups; the plan takes %lld and %lld",
                        (long long)t, (long long)s, (long long)program->t_max, (long long)program->s_max);
    SBP_TRY(x->class->wait(x->device, diag));
    x->position = (sbp_position){.sizes = sbp_program_sizes(program, t, s), .table = -1};
    x->scalars[0] = (double)t;
    x->scalars[1] = (double)s;
    x->scalar_set[0] = x->scalar_set[1] = true;
    for (int32_t k = 0; k < x->view_count; k++)
        if (!eval_view(x, x->views[k]))
            return sbp_fail(diag, SBP_INPUT, "a view of the program overflows for T %lld, S %lld",
                            (long long)t, (long long)s);
    binder b = {.x = x, .columns = columns, .column_count = column_count, .diag = diag};
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
