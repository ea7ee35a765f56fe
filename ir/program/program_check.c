/* program_check.c: the verifier's constraints on any command (c15 to c18, c21 to c25, c28; the list is in
 * program_verify.c), and what the check rules of commands (commands/<name>.c: c19, c20, c26, c27) are made
 * of.
 */
#include "ir/program/command.h"
#include "ir/program/traits.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

sbp_status sbp_checker_fail(const sbp_checker *c, const char *constraint, const char *what,
                            const char *format, ...) {
    char message[512];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return sbp_fail(c->diag, SBP_INPUT, "program_%s: %s '%.80s', command %d (%.60s): %s", constraint,
                    c->function ? "function" : "entry", c->place, c->command, what, message);
}

bool sbp_subject_has(const sbp_subject *s, int32_t k) {
    return s->command->views[k].ref != SBP_NO_VIEW;
}

sbp_dtype sbp_subject_dtype(const sbp_subject *s, int32_t k) {
    return sbp_view_dtype(s->c->program, s->c->function, &s->command->views[k]);
}

int64_t sbp_subject_cols(const sbp_subject *s, int32_t k) {
    return s->command->views[k].cols;
}

/* ---- views (c16, c17, c28) --------------------------------------------------------------------------------
 */

sbp_status sbp_check_view(const sbp_checker *c, const char *what, const char *name, const sbp_view *view) {
    const sbp_program *p = c->program;
    sbp_extent rows;
    int64_t cols;
    int32_t count = 1;
    if (view->ref >= 0) {
        if (view->ref >= p->buffer_count)
            return sbp_checker_fail(c, "c16", what, "%.60s: no buffer %d", name, view->ref);
        const sbp_buffer *b = &p->buffers[view->ref];
        if (b->function != -1 && b->function != c->function_index)
            return sbp_checker_fail(c, "c16", what, "%.60s: buffer '%.80s' is of another function", name,
                                    b->name);
        count = b->count;
    } else {
        if (!c->function || ~view->ref >= c->function->formal_count)
            return sbp_checker_fail(c, "c16", what, "%.60s: no formal %d", name, ~view->ref);
    }
    if (!sbp_view_shape(p, c->function, view, &rows, &cols))
        return sbp_checker_fail(c, "c28", what,
                                "%.60s: no width of %lld: its rows are not constant, or their "
                                "elements no multiple",
                                name, (long long)view->width);
    if (view->slot < 0 || view->slot >= count)
        return sbp_checker_fail(c, "c16", what, "%.60s: element %d of %d", name, view->slot, count);
    if (view->cols < 1 || view->col < 0 || view->cols > cols || view->col > cols - view->cols)
        return sbp_checker_fail(c, "c16", what, "%.60s: %lld columns from %lld on, of %lld", name,
                                (long long)view->cols, (long long)view->col, (long long)cols);
    int32_t columns = c->table < 0 ? 0 : SBP_COLUMN_LO + p->tables[c->table].window_count;
    const sbp_index *const indices[] = {&view->start, &view->length};
    for (int k = 0; k < 2; k++) {
        if (indices[k]->column < -1 || indices[k]->column >= columns)
            return sbp_checker_fail(c, "c16", what, "%.60s: no table column %d here", name,
                                    indices[k]->column);
        if (c->table < 0 && !sbp_extent_equal(indices[k]->step, sbp_extent_const(0)))
            return sbp_checker_fail(c, "c16", what, "%.60s: uses i outside a loop over a table", name);
    }
    return SBP_OK;
}

int64_t sbp_check_width(const sbp_checker *c, const sbp_view *view) {
    sbp_extent rows;
    int64_t cols = 0;
    (void)sbp_view_shape(c->program, c->function, view, &rows, &cols);
    return cols;
}

/* ---- structure (c15), access (c21), space (c23) ------------------------------------------------------- */

static sbp_status check_structure(sbp_subject *s) {
    const sbp_program *p = s->c->program;
    const sbp_command *command = s->command;
    if ((unsigned)command->kind >= SBP_CMD_COUNT) {
        s->what = "?";
        return SBP_SUBJECT_FAIL(s, "c15", "no command %d", (int)command->kind);
    }
    s->what = sbp_command_name(command->kind);
    int32_t scalars = 0;
    if (sbp_command_attributes(command) == SBP_ATTRIBUTES_ROW) {
        if (command->kernel < 0 || command->kernel >= p->kernel_count)
            return SBP_SUBJECT_FAIL(s, "c15", "no kernel %d", command->kernel);
        s->what = p->kernels[command->kernel]->name;
        scalars = p->kernels[command->kernel]->scalar_count;
    }
    s->count = sbp_command_operands(p, command, s->operands);
    if (command->view_count != s->count)
        return SBP_SUBJECT_FAIL(s, "c15", "%d operands; it takes %d", command->view_count, s->count);
    for (int32_t k = 0; k < s->count; k++)
        if (!sbp_subject_has(s, k) && !s->operands[k].optional)
            return SBP_SUBJECT_FAIL(s, "c15", "no operand %s", s->operands[k].name);
    if (command->scalar_count != scalars)
        return SBP_SUBJECT_FAIL(s, "c15", "%d scalars; it takes %d", command->scalar_count, scalars);
    for (int32_t k = 0; k < scalars; k++)
        if (command->scalars[k] == SBP_LITERAL
                ? !command->literals || !(command->literals[k] >= 0) || isinf(command->literals[k])
                : (uint32_t)command->scalars[k] >= (uint32_t)p->scalar_count)
            return SBP_SUBJECT_FAIL(s, "c15", "no scalar %d", command->scalars[k]);
    return SBP_OK;
}

static uint64_t touch_key(const sbp_checker *c, int32_t function, int32_t buffer) {
    return (uint64_t)function * (uint64_t)c->program->buffer_count + (uint64_t)buffer + 1;
}

static int32_t touch_slot(const sbp_touch_set *set, uint64_t key) {
    uint32_t mask = (uint32_t)set->capacity - 1;
    uint32_t at = (uint32_t)sbp_hash_bytes(&key, sizeof key, 0) & mask;
    while (set->keys[at] && set->keys[at] != key)
        at = (at + 1) & mask;
    return (int32_t)at;
}

/* Notes that the function at hand reads (1) or writes (2) the buffer itself. */
static void touch(sbp_checker *c, int32_t buffer, uint8_t access) {
    sbp_touch_set *set = &c->touched;
    if (set->count * 2 >= set->capacity) {
        sbp_touch_set larger = {.capacity = set->capacity ? set->capacity * 2 : 64, .count = set->count};
        larger.keys = SBP_NEW_ARRAY(c->arena, uint64_t, larger.capacity);
        larger.access = SBP_NEW_ARRAY(c->arena, uint8_t, larger.capacity);
        for (int32_t k = 0; k < set->capacity; k++)
            if (set->keys[k]) {
                int32_t at = touch_slot(&larger, set->keys[k]);
                larger.keys[at] = set->keys[k];
                larger.access[at] = set->access[k];
            }
        *set = larger;
    }
    uint64_t key = touch_key(c, c->function_index, buffer);
    int32_t at = touch_slot(set, key);
    set->count += set->keys[at] == 0;
    set->keys[at] = key;
    set->access[at] |= access;
}

uint8_t sbp_checker_touched(const sbp_checker *c, int32_t function, int32_t buffer) {
    if (c->touched.capacity == 0)
        return 0;
    uint64_t key = touch_key(c, function, buffer);
    int32_t at = touch_slot(&c->touched, key);
    return c->touched.keys[at] ? c->touched.access[at] : 0;
}

/* A bit per space in which operand k may be (see "Spaces and queues" in program.h). */
static uint8_t spaces_of(const sbp_subject *s, int32_t k) {
    enum { DEVICE = 1 << SBP_DEVICE, HOST = 1 << SBP_HOST, DISK = 1 << SBP_DISK };
    static const uint8_t spaces[SBP_QUEUE_COUNT][2] = {/* what it writes, what it reads */
                                                       [SBP_QUEUE_COMPUTE] = {DEVICE, DEVICE},
                                                       [SBP_QUEUE_IN] = {DEVICE, HOST},
                                                       [SBP_QUEUE_OUT] = {HOST, DEVICE},
                                                       [SBP_QUEUE_HOST] = {HOST, HOST},
                                                       [SBP_QUEUE_DISK] = {HOST | DISK, HOST | DISK},
                                                       [SBP_QUEUE_NET] = {DEVICE | HOST, DEVICE | HOST}};
    return spaces[s->command->queue][s->operands[k].access == SBP_READ];
}

static sbp_status check_operand(sbp_subject *s, int32_t k) {
    sbp_checker *c = s->c;
    const sbp_view *view = &s->command->views[k];
    const char *name = s->operands[k].name;
    bool writes = s->operands[k].access != SBP_READ;
    SBP_TRY(sbp_check_view(c, s->what, name, view));
    if (view->ref < 0) {
        const sbp_formal *formal = &c->function->formals[~view->ref];
        if (writes && formal->access == SBP_READ)
            return SBP_SUBJECT_FAIL(s, "c21", "%.60s writes formal '%.80s', which is only read", name,
                                    formal->name);
        c->facts[c->function_index].spaces[~view->ref] &= spaces_of(s, k);
        c->facts[c->function_index].wide[~view->ref] |= view->width != 0;
        if (s->command->queue == SBP_QUEUE_DISK)
            return SBP_SUBJECT_FAIL(s, "c23", "%.60s: formal '%.80s' in queue disk", name, formal->name);
        return SBP_OK;
    }
    const sbp_buffer *b = &c->program->buffers[view->ref];
    if (b->part_of > 0 && c->program->buffers[b->part_of - 1].sharding == SBP_SHARDED)
        return SBP_SUBJECT_FAIL(s, "c29", "%.60s: '%.80s' is a part of a sharded bucket", name, b->name);
    if (writes && c->input_of[view->ref] >= 0)
        return SBP_SUBJECT_FAIL(s, "c21", "%.60s writes row input '%.80s'", name, b->name);
    if (!(spaces_of(s, k) >> b->space & 1))
        return SBP_SUBJECT_FAIL(s, "c23",
                                "%.60s: buffer '%.80s' is on the %s, where queue %s may not use it so", name,
                                b->name, sbp_space_names[b->space], sbp_queue_names[s->command->queue]);
    if (c->function)
        touch(c, view->ref, writes ? 2 : 1);
    return SBP_OK;
}

/* ---- columns (c19) and dtypes (c20) -------------------------------------------------------------------- */

sbp_status sbp_check_same_cols(const sbp_subject *s, int32_t a, int32_t b) {
    if (!sbp_subject_has(s, a) || !sbp_subject_has(s, b) || sbp_subject_cols(s, a) == sbp_subject_cols(s, b))
        return SBP_OK;
    return SBP_SUBJECT_FAIL(s, "c19", "%s has %lld columns, %s has %lld", s->operands[a].name,
                            (long long)sbp_subject_cols(s, a), s->operands[b].name,
                            (long long)sbp_subject_cols(s, b));
}

sbp_status sbp_check_exact_cols(const sbp_subject *s, int32_t k, int64_t cols) {
    if (!sbp_subject_has(s, k) || sbp_subject_cols(s, k) == cols)
        return SBP_OK;
    return SBP_SUBJECT_FAIL(s, "c19", "%s has %lld columns, not %lld", s->operands[k].name,
                            (long long)sbp_subject_cols(s, k), (long long)cols);
}

sbp_status sbp_check_same_dtype(const sbp_subject *s, int32_t a, int32_t b) {
    if (!sbp_subject_has(s, a) || !sbp_subject_has(s, b) ||
        sbp_subject_dtype(s, a) == sbp_subject_dtype(s, b))
        return SBP_OK;
    return SBP_SUBJECT_FAIL(s, "c20", "%s is %s, %s is %s", s->operands[a].name,
                            sbp_dtype_name(sbp_subject_dtype(s, a)), s->operands[b].name,
                            sbp_dtype_name(sbp_subject_dtype(s, b)));
}

sbp_status sbp_check_float(const sbp_subject *s, int32_t k) {
    if (!sbp_subject_has(s, k) || sbp_dtype_is_float(sbp_subject_dtype(s, k)))
        return SBP_OK;
    return SBP_SUBJECT_FAIL(s, "c20", "%s is %s, not a float", s->operands[k].name,
                            sbp_dtype_name(sbp_subject_dtype(s, k)));
}

sbp_status sbp_check_wide(const sbp_subject *s, int32_t k, int32_t like) {
    sbp_dtype wide = sbp_subject_dtype(s, like) == SBP_F64 ? SBP_F64 : SBP_F32;
    if (!sbp_subject_has(s, k) || sbp_subject_dtype(s, k) == wide)
        return SBP_OK;
    return SBP_SUBJECT_FAIL(s, "c20", "%s is %s beside %s of %s, not %s", s->operands[k].name,
                            sbp_dtype_name(sbp_subject_dtype(s, k)), s->operands[like].name,
                            sbp_dtype_name(sbp_subject_dtype(s, like)), sbp_dtype_name(wide));
}

sbp_status sbp_check_index(const sbp_subject *s, int32_t k) {
    if (sbp_subject_dtype(s, k) != SBP_I32 && sbp_subject_dtype(s, k) != SBP_I64)
        return SBP_SUBJECT_FAIL(s, "c20", "%s is %s, not i32 or i64", s->operands[k].name,
                                sbp_dtype_name(sbp_subject_dtype(s, k)));
    return sbp_check_exact_cols(s, k, 1);
}

/* ---- queues (c24), flushes (c25), row inputs (c27) ---------------------------------------------------- */

static sbp_status check_queue(const sbp_subject *s) {
    const sbp_command *command = s->command;
    if (command->queue < 0 || command->queue >= SBP_QUEUE_COUNT)
        return SBP_SUBJECT_FAIL(s, "c24", "no queue %d", command->queue);
    if (!(sbp_command_queues(command->kind) >> command->queue & 1))
        return SBP_SUBJECT_FAIL(s, "c24", "may not run in queue %s", sbp_queue_names[command->queue]);
    return SBP_OK;
}

static sbp_status check_flush(const sbp_subject *s) {
    const sbp_program *p = s->c->program;
    const sbp_command *command = s->command;
    if (command->flushes < 0)
        return SBP_OK;
    if (s->c->function || s->c->table >= 0)
        return SBP_SUBJECT_FAIL(s, "c25", "a flush in a function or in a loop over a table");
    if (command->flushes >= p->buffer_count || p->buffers[command->flushes].role != SBP_ROLE_PARAM ||
        p->buffers[command->flushes].function != -1 || p->buffers[command->flushes].count != 1)
        return SBP_SUBJECT_FAIL(s, "c25", "flushes buffer %d, which is no parameter", command->flushes);
    const sbp_buffer *parameter = &p->buffers[command->flushes];
    int32_t k = command->gradient;
    if (k < 0 || k >= s->count || !sbp_subject_has(s, k) || s->operands[k].access == SBP_WRITE)
        return SBP_SUBJECT_FAIL(s, "c25", "its gradient is operand %d, which it does not read", k);
    if (!sbp_dtype_is_float(sbp_subject_dtype(s, k)))
        return SBP_SUBJECT_FAIL(s, "c25", "the gradient is %s", sbp_dtype_name(sbp_subject_dtype(s, k)));
    const sbp_position *position = &s->c->positions[0].items[0];
    sbp_range range;
    int64_t rows;
    bool wide = command->views[k].width != 0; /* then as many elements, one after the other */
    if (!sbp_view_resolve(p, NULL, &command->views[k], position, &range) ||
        !sbp_extent_eval(parameter->rows, &position->sizes, &rows) ||
        (wide ? sbp_subject_cols(s, k) != command->views[k].width ||
                    range.rows * sbp_subject_cols(s, k) != rows * parameter->cols
              : range.rows != rows || sbp_subject_cols(s, k) != parameter->cols))
        return SBP_SUBJECT_FAIL(s, "c25", "gradient %.60s is not of the shape of parameter '%.80s'",
                                s->operands[k].name, parameter->name);
    return SBP_OK;
}

const sbp_row_input *sbp_subject_input(const sbp_subject *s, int32_t k) {
    int32_t ref = s->command->views[k].ref;
    int32_t input = ref >= 0 ? s->c->input_of[ref] : -1;
    return input >= 0 ? &s->c->program->row_inputs[input] : NULL;
}

sbp_status sbp_check_input(const sbp_subject *s, int32_t k, sbp_row_input_kind kind, const char *column) {
    static const char *const kinds[] = {"column", "order", "segment", "pick", "rank"};
    const sbp_row_input *input = sbp_subject_input(s, k);
    if (input && input->kind == kind && (!column || strcmp(input->column, column) == 0))
        return SBP_OK;
    return SBP_SUBJECT_FAIL(s, "c27", "%s is not a row input: %s%s%.60s", s->operands[k].name, kinds[kind],
                            column ? " " : "", column ? column : "");
}

/* ---- rows (c17, c18) and overlap (c22) ------------------------------------------------------------------
 */

sbp_status sbp_check_resolve(const sbp_checker *c, const char *what, const char *name, const sbp_view *view,
                             const sbp_position *position, sbp_range *out) {
    if (sbp_view_resolve(c->program, c->function, view, position, out))
        return SBP_OK;
    return sbp_checker_fail(c, "c17", what, "%.60s leaves its buffer for T %lld, S %lld, i %lld", name,
                            (long long)position->sizes.v[SBP_T], (long long)position->sizes.v[SBP_S],
                            (long long)position->i);
}

static sbp_status fail_rule(const sbp_subject *s, const sbp_row_rule *rule, const sbp_range *ranges,
                            const sbp_position *position) {
    static const char *const texts[] = {
        [SBP_ROWS_SAME] = "must have the rows of",
        [SBP_ROWS_NO_LESS] = "must have no fewer rows than",
        [SBP_ROWS_ALIGNED] = "must be the same rows of the sequence as",
        [SBP_ROWS_EXACT] = "must have exactly",
        [SBP_ROWS_SHARE] = "must have as many rows for each rank as",
        [SBP_ROWS_AT_LEAST] = "must have at least",
        [SBP_ROWS_BLOCKS] = "must have a row per block of rows of",
        [SBP_ROWS_PER] = "must have a row for every",
        [SBP_ROWS_COVER] = "must hold all that is seen from",
        [SBP_ROWS_COVER_ALL] = "must hold all that is seen, by any rank, from",
        [SBP_ROWS_ORDER] = "must be a whole chunk of its scatter order",
        [SBP_ROWS_NAMED] = "must name rows of",
    };
    char per[32] = "", other[128] = "";
    if (rule->relation == SBP_ROWS_PER)
        snprintf(per, sizeof per, " %lld rows of", (long long)rule->n);
    if (rule->other >= 0)
        snprintf(other, sizeof other, "%s %.60s (%lld from %lld)", per, s->operands[rule->other].name,
                 (long long)ranges[rule->other].rows, (long long)ranges[rule->other].first_row);
    else if (rule->relation != SBP_ROWS_ORDER)
        snprintf(other, sizeof other, " %lld", (long long)rule->n);
    const sbp_range *range = &ranges[rule->operand];
    return SBP_SUBJECT_FAIL(s, "c18", "%.60s (%lld rows from %lld) %s%s, for T %lld, S %lld, i %lld",
                            s->operands[rule->operand].name, (long long)range->rows,
                            (long long)range->first_row, texts[rule->relation], other,
                            (long long)position->sizes.v[SBP_T], (long long)position->sizes.v[SBP_S],
                            (long long)position->i);
}

static bool kernel_may_alias(sbp_checker *c, int32_t kernel, int32_t out, int32_t in) {
    enum { N = SBP_MAX_COMMAND_OPERANDS };
    if (!c->may_alias[kernel])
        c->may_alias[kernel] = SBP_NEW_ARRAY(c->arena, uint8_t, N * N);
    uint8_t *answer = &c->may_alias[kernel][out * N + in];
    if (*answer == 0)
        *answer = sbp_rowkernel_may_alias(c->program->kernels[kernel], out, in) ? 2 : 1;
    return *answer == 2;
}

/* Whether the command lets written operand a and operand b be the same rows and columns. */
static bool may_be_same(sbp_subject *s, int32_t a, int32_t b) {
    return sbp_command_attributes(s->command) == SBP_ATTRIBUTES_ROW
               ? kernel_may_alias(s->c, s->command->kernel, a, b)
               : sbp_command_may_alias(s->command->kind, NULL, a, b);
}

static bool cols_overlap(const sbp_view *a, const sbp_view *b) {
    return a->col < b->col + b->cols && b->col < a->col + a->cols;
}

static bool rows_overlap(const sbp_range *a, const sbp_range *b) {
    return a->start < b->start + b->rows && b->start < a->start + a->rows;
}

static bool same_region(const sbp_view *a, const sbp_view *b, const sbp_range *ra, const sbp_range *rb) {
    return a->col == b->col && a->cols == b->cols && ra->start == rb->start && ra->rows == rb->rows;
}

/* The same for views of different widths, of which the elements from the first to the last count. */
static bool elems_overlap(const sbp_view *a, const sbp_view *b, const sbp_range *ra, const sbp_range *rb,
                          int64_t a_width, int64_t b_width) {
    if (ra->rows == 0 || rb->rows == 0)
        return false;
    int64_t a_begin = ra->start * a_width + a->col, b_begin = rb->start * b_width + b->col;
    return a_begin < b_begin + (rb->rows - 1) * b_width + b->cols &&
           b_begin < a_begin + (ra->rows - 1) * a_width + a->cols;
}

/* Whether two different buffers, as placed by the memory pass, share bytes in these elements. */
static bool placed_together(const sbp_checker *c, const sbp_view *a, const sbp_view *b) {
    if (!c->placed || a->ref < 0 || b->ref < 0)
        return false;
    const sbp_buffer *x = &c->program->buffers[a->ref], *y = &c->program->buffers[b->ref];
    if (x->space != y->space)
        return false;
    sbp_sizes most = sbp_program_sizes(c->program, c->program->t_max, c->program->s_max);
    int64_t x_bytes = 0, y_bytes = 0;
    if (!sbp_buffer_bytes(x, &most, &x_bytes) || !sbp_buffer_bytes(y, &most, &y_bytes))
        return true;
    int64_t x0 = x->offset + a->slot * x->stride, y0 = y->offset + b->slot * y->stride;
    return x0 < y0 + y_bytes && y0 < x0 + x_bytes;
}

/* Pairs of a written operand and another that share a buffer element and columns: rows decide. */
typedef struct overlap_pair {
    int32_t written, other;
} overlap_pair;

static sbp_status find_pairs(sbp_subject *s, overlap_pair *pairs, int32_t *count) {
    *count = 0;
    for (int32_t a = 0; a < s->count; a++) {
        if (!sbp_subject_has(s, a) || s->operands[a].access == SBP_READ)
            continue;
        for (int32_t b = 0; b < s->count; b++) {
            bool both_written = s->operands[b].access != SBP_READ;
            if (b == a || !sbp_subject_has(s, b) || (both_written && b < a))
                continue;
            const sbp_view *x = &s->command->views[a], *y = &s->command->views[b];
            if (x->ref == y->ref && x->slot == y->slot) {
                if (sbp_check_width(s->c, x) != sbp_check_width(s->c, y) || cols_overlap(x, y))
                    pairs[(*count)++] = (overlap_pair){a, b};
            } else if (x->ref != y->ref && placed_together(s->c, x, y)) {
                return SBP_SUBJECT_FAIL(s, "c22", "%.60s and %.60s are different buffers at the same memory",
                                        s->operands[a].name, s->operands[b].name);
            }
        }
    }
    return SBP_OK;
}

/* Whether the rows of an operand are named by an index: another that may be the same memory may then be
 * some of them. */
static bool is_named(const sbp_row_rule *rules, int32_t count, int32_t operand) {
    for (int32_t k = 0; k < count; k++)
        if (rules[k].relation == SBP_ROWS_NAMED && rules[k].other == operand)
            return true;
    return false;
}

static sbp_status check_rows(sbp_subject *s) {
    const sbp_command *command = s->command;
    sbp_row_rule rules[SBP_MAX_ROW_RULES];
    overlap_pair pairs[SBP_MAX_COMMAND_OPERANDS * SBP_MAX_COMMAND_OPERANDS];
    int32_t rule_count = sbp_command_row_rules(s->c->program, command, rules), pair_count;
    SBP_TRY(find_pairs(s, pairs, &pair_count));
    const sbp_position_list *positions = &s->c->positions[s->c->table + 1];
    for (int32_t n = 0; n < positions->count; n++) {
        const sbp_position *position = &positions->items[n];
        sbp_range ranges[SBP_MAX_COMMAND_OPERANDS] = {{0}};
        for (int32_t k = 0; k < s->count; k++)
            if (sbp_subject_has(s, k))
                SBP_TRY(sbp_check_resolve(s->c, s->what, s->operands[k].name, &command->views[k], position,
                                          &ranges[k]));
        for (int32_t k = 0; k < rule_count; k++)
            if (!sbp_row_rule_holds(s->c->program, &rules[k], ranges, position))
                return fail_rule(s, &rules[k], ranges, position);
        for (int32_t k = 0; k < pair_count; k++) {
            int32_t a = pairs[k].written, b = pairs[k].other;
            const sbp_view *x = &command->views[a], *y = &command->views[b];
            int64_t x_width = sbp_check_width(s->c, x), y_width = sbp_check_width(s->c, y);
            bool overlap = x_width == y_width ? rows_overlap(&ranges[a], &ranges[b])
                                              : elems_overlap(x, y, &ranges[a], &ranges[b], x_width, y_width);
            bool same = same_region(x, y, &ranges[a], &ranges[b]) ||
                        (x->col == y->col && x->cols == y->cols && is_named(rules, rule_count, a));
            if (overlap && !(x_width == y_width && same && may_be_same(s, a, b)))
                return SBP_SUBJECT_FAIL(s, "c22", "%.60s overlaps %.60s for T %lld, i %lld",
                                        s->operands[a].name, s->operands[b].name,
                                        (long long)position->sizes.v[SBP_T], (long long)position->i);
        }
    }
    return SBP_OK;
}

sbp_status sbp_check_command(sbp_checker *c, const sbp_command *command) {
    sbp_subject s = {.c = c, .command = command};
    SBP_TRY(check_structure(&s));
    SBP_TRY(check_queue(&s));
    for (int32_t k = 0; k < s.count; k++)
        if (sbp_subject_has(&s, k))
            SBP_TRY(check_operand(&s, k));
    SBP_TRY(sbp_command_rules_of(command->kind)->check(&s));
    SBP_TRY(check_rows(&s));
    return check_flush(&s);
}
