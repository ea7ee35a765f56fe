/* program_check_calls.c: the verifier's constraints on one call (c13, c14). Time is n log n in the formals.
 */
#include "ir/program/program_check.h"

#include <stdlib.h>
#include <string.h>

/* ---- one actual (c13, c28) --------------------------------------------------------------------------------
 */

static sbp_status check_actual(const sbp_checker *c, const sbp_call *call, int32_t k) {
    const sbp_function *callee = &c->program->functions[call->function];
    const sbp_formal *formal = &callee->formals[k];
    const sbp_view *view = &call->views[k];
    if (view->ref == SBP_NO_VIEW || view->ref < 0)
        return sbp_checker_fail(c, "c13", callee->name, "no buffer for formal '%.80s'", formal->name);
    SBP_TRY(sbp_check_view(c, callee->name, formal->name, view));
    const sbp_buffer *b = &c->program->buffers[view->ref];
    if (b->dtype != formal->dtype || view->cols != formal->cols)
        return sbp_checker_fail(c, "c13", callee->name,
                                "formal '%.80s' is %s of %lld columns, got %s of %lld", formal->name,
                                sbp_dtype_name(formal->dtype), (long long)formal->cols,
                                sbp_dtype_name(b->dtype), (long long)view->cols);
    if (formal->access != SBP_READ && c->input_of[view->ref] >= 0)
        return sbp_checker_fail(c, "c13", callee->name, "formal '%.80s' is written; '%.80s' is a row input",
                                formal->name, b->name);
    if (!(c->facts[call->function].spaces[k] >> b->space & 1))
        return sbp_checker_fail(c, "c13", callee->name,
                                "'%.80s' is on the %s, where the queues that use formal '%.80s' do not reach",
                                b->name, sbp_space_names[b->space], formal->name);
    if (c->facts[call->function].wide[k] &&
        (view->col != 0 || view->cols != sbp_check_width(c, view) || view->start.column >= 0 ||
         !sbp_extent_equal(view->start.step, sbp_extent_const(0)) ||
         sbp_extent_as_const(view->start.base) < 0))
        return sbp_checker_fail(
            c, "c28", callee->name,
            "formal '%.80s' is seen with a width, but gets no whole rows from a fixed one", formal->name);
    uint8_t touched = sbp_checker_touched(c, call->function, view->ref);
    if ((touched & 2) || (touched && formal->access != SBP_READ))
        return sbp_checker_fail(c, "c14", callee->name,
                                "'%.80s' goes to formal '%.80s', but the function "
                                "uses it itself",
                                b->name, formal->name);
    const sbp_position_list *positions = &c->positions[c->table + 1];
    for (int32_t n = 0; n < positions->count; n++) {
        sbp_range range;
        int64_t rows;
        SBP_TRY(sbp_check_resolve(c, callee->name, formal->name, view, &positions->items[n], &range));
        if (!sbp_extent_eval(formal->rows, &positions->items[n].sizes, &rows) || rows != range.rows)
            return sbp_checker_fail(
                c, "c13", callee->name, "formal '%.80s' has %lld rows, got %lld, for T %lld", formal->name,
                (long long)rows, (long long)range.rows, (long long)positions->items[n].sizes.v[SBP_T]);
    }
    return SBP_OK;
}

/* ---- what is written is not passed twice (c14) ------------------------------------------------------- */

/* An actual; where it is in memory, when that is known. */
typedef struct actual {
    int32_t formal;
    bool writes;
    sbp_view view;
    sbp_space space;
    int64_t begin, end; /* bytes */
} actual;

static sbp_status fail_shared(const sbp_checker *c, const sbp_call *call, const actual *a, const actual *b) {
    const sbp_function *callee = &c->program->functions[call->function];
    const actual *writer = a->writes ? a : b, *other = a->writes ? b : a;
    return sbp_checker_fail(c, "c14", callee->name, "formals '%.80s' and '%.80s' share memory",
                            callee->formals[writer->formal].name, callee->formals[other->formal].name);
}

static int by_element(const void *x, const void *y) {
    const actual *a = x, *b = y;
    if (a->view.ref != b->view.ref)
        return a->view.ref < b->view.ref ? -1 : 1;
    if (a->view.slot != b->view.slot)
        return a->view.slot < b->view.slot ? -1 : 1;
    return a->formal - b->formal;
}

static int by_address(const void *x, const void *y) {
    const actual *a = x, *b = y;
    if (a->space != b->space)
        return a->space < b->space ? -1 : 1;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    return a->formal - b->formal;
}

/* Different elements at the same memory, of which one is written. */
static sbp_status check_addresses(const sbp_checker *c, const sbp_call *call, actual *list, int32_t count) {
    qsort(list, (size_t)count, sizeof *list, by_address);
    const actual *last = NULL, *last_written = NULL; /* those that end last, of those before */
    for (int32_t i = 0; i < count; i++) {
        const actual *a = &list[i];
        if (i > 0 && a->space != list[i - 1].space)
            last = last_written = NULL;
        const actual *before = a->writes ? last : last_written;
        if (before && before->end > a->begin)
            return fail_shared(c, call, before, a);
        if (!last || a->end > last->end)
            last = a;
        if (a->writes && (!last_written || a->end > last_written->end))
            last_written = a;
    }
    return SBP_OK;
}

/* Counts of numbers below others, as they come and go (Fenwick 1994). */
typedef struct counter {
    int32_t *sums;
    int32_t size;
} counter;

static void counter_add(counter *c, int32_t at, int32_t change) {
    for (at++; at <= c->size; at += at & -at)
        c->sums[at] += change;
}

/* How many numbers from 0 to `at` have been added. */
static int32_t counter_up_to(const counter *c, int32_t at) {
    int32_t sum = 0;
    for (at++; at > 0; at -= at & -at)
        sum += c->sums[at];
    return sum;
}

/* Actuals of one element: rows that begin or end at a position. */
typedef struct edge {
    int64_t row;
    bool begins;
    int32_t actual;
} edge;

static int by_row(const void *x, const void *y) {
    const edge *a = x, *b = y;
    if (a->row != b->row)
        return a->row < b->row ? -1 : 1;
    if (a->begins != b->begins)
        return a->begins ? 1 : -1; /* what ends here shares nothing with what begins */
    return a->actual - b->actual;
}

static int by_number(const void *x, const void *y) {
    int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;
    return (a > b) - (a < b);
}

static int32_t place_of(const int64_t *sorted, int32_t count, int64_t number) {
    int32_t low = 0, high = count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (sorted[middle] < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* A sweep over the rows of one element. first, last: of an actual's columns among all column edges. */
typedef struct sweep {
    const actual *list;
    int32_t count, *first, *last;
    bool flat; /* of different widths: rows are elements, of which those from the first to the last count */
    int32_t edge_count;
    edge *edges;
    counter firsts[2], lasts[2]; /* of the actuals at this row: read, written */
} sweep;

/* How many of those at this row share columns with an actual. */
static int32_t count_shared(const sweep *s, int32_t number, bool written) {
    return counter_up_to(&s->firsts[written], s->last[number] - 1) -
           counter_up_to(&s->lasts[written], s->first[number]);
}

static bool is_shared(const sweep *s, int32_t number) {
    return count_shared(s, number, true) > 0 ||
           (s->list[number].writes && count_shared(s, number, false) > 0);
}

static void change(sweep *s, int32_t number, int32_t by) {
    bool written = s->list[number].writes;
    counter_add(&s->firsts[written], s->first[number], by);
    counter_add(&s->lasts[written], s->last[number], by);
}

static void begin_sweep(const sbp_checker *c, sweep *s, const actual *list, int32_t count) {
    *s = (sweep){.list = list, .count = count};
    for (int32_t i = 1; i < count; i++)
        s->flat |= sbp_check_width(c, &list[i].view) != sbp_check_width(c, &list[0].view);
    int64_t *columns = SBP_NEW_ARRAY(c->arena, int64_t, 2 * count);
    s->first = SBP_NEW_ARRAY(c->arena, int32_t, count);
    s->last = SBP_NEW_ARRAY(c->arena, int32_t, count);
    s->edges = SBP_NEW_ARRAY(c->arena, edge, 2 * count);
    for (int32_t i = 0; i < count; i++) {
        columns[2 * i] = s->flat ? 0 : list[i].view.col;
        columns[2 * i + 1] = s->flat ? 1 : list[i].view.col + list[i].view.cols;
    }
    qsort(columns, (size_t)(2 * count), sizeof *columns, by_number);
    for (int32_t i = 0; i < count; i++) {
        s->first[i] = place_of(columns, 2 * count, s->flat ? 0 : list[i].view.col);
        s->last[i] = place_of(columns, 2 * count, s->flat ? 1 : list[i].view.col + list[i].view.cols);
    }
    for (int k = 0; k < 2; k++) {
        s->firsts[k] = s->lasts[k] = (counter){.size = 2 * count};
        s->firsts[k].sums = SBP_NEW_ARRAY(c->arena, int32_t, 2 * count + 1);
        s->lasts[k].sums = SBP_NEW_ARRAY(c->arena, int32_t, 2 * count + 1);
    }
}

static void add_edges(const sbp_checker *c, sweep *s, const sbp_position *position) {
    s->edge_count = 0;
    for (int32_t i = 0; i < s->count; i++) {
        sbp_range range;
        if (!sbp_view_resolve(c->program, NULL, &s->list[i].view, position, &range) || range.rows < 1)
            continue;
        int64_t begin = range.start, end = range.start + range.rows;
        if (s->flat) {
            int64_t width = sbp_check_width(c, &s->list[i].view);
            begin = begin * width + s->list[i].view.col;
            end = (end - 1) * width + s->list[i].view.col + s->list[i].view.cols;
        }
        s->edges[s->edge_count++] = (edge){begin, true, i};
        s->edges[s->edge_count++] = (edge){end, false, i};
    }
    qsort(s->edges, (size_t)s->edge_count, sizeof *s->edges, by_row);
}

/* The message for an actual that shares rows and columns with one before it in the sweep. */
static sbp_status fail_region(const sbp_checker *c, const sbp_call *call, const sweep *s, int32_t edges,
                              int32_t late) {
    bool *here = SBP_NEW_ARRAY(c->arena, bool, s->count);
    for (int32_t i = 0; i < edges; i++)
        here[s->edges[i].actual] = s->edges[i].begins;
    int32_t early = late;
    for (int32_t i = 0; i < s->count && early == late; i++)
        if (here[i] && (s->list[i].writes || s->list[late].writes) && s->first[i] < s->last[late] &&
            s->first[late] < s->last[i])
            early = i;
    return fail_shared(c, call, &s->list[early], &s->list[late]);
}

/* Actuals of one element that share rows and columns at some position, of which one is written. */
static sbp_status check_regions(const sbp_checker *c, const sbp_call *call, const actual *list,
                                int32_t count) {
    sweep s;
    const sbp_position_list *positions = &c->positions[c->table + 1];
    begin_sweep(c, &s, list, count);
    for (int32_t n = 0; n < positions->count; n++) {
        add_edges(c, &s, &positions->items[n]);
        for (int32_t i = 0; i < s.edge_count; i++) {
            int32_t at = s.edges[i].actual;
            if (s.edges[i].begins && is_shared(&s, at))
                return fail_region(c, call, &s, i, at);
            change(&s, at, s.edges[i].begins ? 1 : -1);
        }
    }
    return SBP_OK;
}

static sbp_status check_sharing(const sbp_checker *c, const sbp_call *call) {
    const sbp_program *p = c->program;
    const sbp_function *callee = &p->functions[call->function];
    sbp_sizes most = sbp_program_sizes(p, p->t_max, p->s_max);
    actual *list = SBP_NEW_ARRAY(c->arena, actual, callee->formal_count + 1),
           *elements = SBP_NEW_ARRAY(c->arena, actual, callee->formal_count + 1);
    int32_t element_count = 0;
    for (int32_t k = 0; k < callee->formal_count; k++)
        list[k] =
            (actual){.formal = k, .writes = callee->formals[k].access != SBP_READ, .view = call->views[k]};
    qsort(list, (size_t)callee->formal_count, sizeof *list, by_element);
    for (int32_t begin = 0, end; begin < callee->formal_count; begin = end) {
        actual element = list[begin];
        for (end = begin + 1; end < callee->formal_count && list[end].view.ref == element.view.ref &&
                              list[end].view.slot == element.view.slot;
             end++)
            if (list[end].writes && !element.writes)
                element = list[end];
        if (end - begin > 1 && element.writes)
            SBP_TRY(check_regions(c, call, list + begin, end - begin));
        const sbp_buffer *b = &p->buffers[element.view.ref];
        int64_t bytes = 0;
        if (!sbp_buffer_bytes(b, &most, &bytes) || bytes == 0)
            continue; /* c5 */
        element.space = b->space;
        element.begin = b->offset + element.view.slot * b->stride;
        element.end = element.begin + bytes;
        elements[element_count++] = element;
    }
    return c->placed ? check_addresses(c, call, elements, element_count) : SBP_OK;
}

sbp_status sbp_check_call(sbp_checker *c, const sbp_call *call) {
    const sbp_program *p = c->program;
    if (c->function)
        return sbp_checker_fail(c, "c13", "call", "a call inside a function");
    if (call->function < 0 || call->function >= p->function_count)
        return sbp_checker_fail(c, "c13", "call", "no function %d", call->function);
    for (int32_t k = 0; k < p->functions[call->function].formal_count; k++)
        SBP_TRY(check_actual(c, call, k));
    return check_sharing(c, call);
}
