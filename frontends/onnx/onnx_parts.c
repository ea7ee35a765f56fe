/* onnx_parts.c: operators that take parts of a value or put them together, along any axis but the tokens'. In
 * the graph IR only the last axis has parts: an axis and those after it become one. */
#include "frontends/onnx/onnx.h"
#include "ir/program/contract.h"

#include <string.h>

/* An axis of an activation: elements of the graph IR before it (its last dimension is not counted), its
 * length and what is after each of its elements. */
typedef struct axis_view {
    int64_t dims[SBP_MAX_RANK]; /* before it */
    int32_t count;
    int64_t length, inner;
} axis_view;

static sbp_status view_axis(sbp_onnx *o, const sbp_onnx_value *x, int32_t axis, axis_view *out) {
    int32_t rows = sbp_onnx_rows_axis(x);
    *out = (axis_view){.length = x->dim[axis], .inner = 1};
    bool slots = sbp_onnx_slots(x->dim[0]) > 0;
    if (x->kind != SBP_ONNX_VALUE || axis == rows || x->repeat > 1 || x->shared || (slots && axis == 0))
        return sbp_onnx_fail(o, "parts of axis %d of '%s' %s are not supported", axis, x->name,
                             sbp_onnx_shape_text(o, x));
    for (int32_t d = rows > 0 && x->dim[0] == 1 ? 1 : 0; d < x->rank; d++) {
        if (d == rows || d == axis)
            continue;
        if (d < axis)
            out->dims[out->count++] = d == 0 && slots ? sbp_onnx_slots(x->dim[0]) : x->dim[d];
        else
            out->inner *= x->dim[d];
    }
    return SBP_OK;
}

static sbp_status normal_axis(sbp_onnx *o, const sbp_onnx_value *x, int64_t given, int32_t *out) {
    int64_t axis = given < 0 ? given + x->rank : given;
    if (axis < 0 || axis >= x->rank)
        return sbp_onnx_fail(o, "axis %lld of '%s' %s", (long long)given, x->name, sbp_onnx_shape_text(o, x));
    *out = (int32_t)axis;
    return SBP_OK;
}

/* x, the axis and all after it as one. */
static sbp_value joined(sbp_onnx *o, const sbp_onnx_value *x, const axis_view *view) {
    int64_t dims[SBP_MAX_RANK];
    memcpy(dims, view->dims, sizeof dims);
    dims[view->count] = view->length * view->inner;
    return sbp_onnx_with_dims(o, x->value, dims, view->count + 1);
}

/* Output `index`: elements start .. start + length - 1 of the axis; the axis goes when `drop`. */
static sbp_status define_part(sbp_onnx *o, int32_t index, const sbp_onnx_value *x, int32_t axis,
                              int64_t start, int64_t length, bool drop) {
    axis_view view;
    sbp_onnx_value out = {.rank = x->rank};
    SBP_TRY(view_axis(o, x, axis, &view));
    memcpy(out.dim, x->dim, sizeof out.dim);
    out.dim[axis] = length;
    sbp_value y = x->value;
    if (length != view.length)
        y = sbp_build_slice(&o->builder, joined(o, x, &view), start * view.inner, length * view.inner);
    if (drop) {
        out.rank--;
        for (int32_t d = axis; d < out.rank; d++)
            out.dim[d] = out.dim[d + 1];
    }
    SBP_TRY(sbp_onnx_as_shape(o, y, out.rank, out.dim, &y));
    sbp_onnx_define_value(o, index, y, x->type, out.rank, out.dim);
    return o->builder.status;
}

/* ---- split ----------------------------------------------------------------------------------------------
 */

sbp_status sbp_onnx_split(sbp_onnx *o) {
    static const char *const known[] = {"axis", "num_outputs", NULL};
    const sbp_onnx_value *x;
    int64_t given_axis = 0, count = o->node->output_count, given, start = 0;
    const int64_t *parts = NULL;
    int32_t axis = 0;
    SBP_TRY(sbp_onnx_attrs_known(o, known));
    SBP_TRY(sbp_onnx_required(o, 0, &x));
    SBP_TRY(sbp_onnx_attr_int(o, "axis", &given_axis));
    SBP_TRY(sbp_onnx_attr_int(o, "num_outputs", &count));
    SBP_TRY(normal_axis(o, x, given_axis, &axis));
    sbp_onnx_value whole = *x;
    int64_t n = whole.dim[axis], equal = count > 0 ? sbp_ceil_div(n, count) : 0;
    if (n < 1)
        return sbp_onnx_fail(o, "the tokens' axis %d of '%s' %s is split", axis, x->name,
                             sbp_onnx_shape_text(o, x));
    if (sbp_onnx_input(o, 1))
        SBP_TRY(sbp_onnx_ints(o, 1, "the sizes of the parts", &parts, &given));
    if (count != o->node->output_count || (parts && given != count))
        return sbp_onnx_fail(o, "the node has %d outputs for %lld parts", o->node->output_count,
                             (long long)(parts ? given : count));
    for (int64_t i = 0; i < count; i++) {
        int64_t length = parts ? parts[i] : (n - start < equal ? n - start : equal);
        if (length < 1 || length > n - start)
            return sbp_onnx_fail(o, "part %lld has %lld of %lld elements", (long long)i, (long long)length,
                                 (long long)n);
        if (o->node->outputs[i][0])
            SBP_TRY(define_part(o, (int32_t)i, &whole, axis, start, length, false));
        start += length;
    }
    if (start != n)
        return sbp_onnx_fail(o, "the parts have %lld of %lld elements", (long long)start, (long long)n);
    return o->builder.status;
}

/* ---- slice ----------------------------------------------------------------------------------------------
 */

/* Integers of an optional input, as many as there are starts; `fallback` (its index when NULL) where it is
 * absent. */
static sbp_status slice_input(sbp_onnx *o, int32_t input, const char *what, int64_t count,
                              const int64_t *fallback, const int64_t **out) {
    int64_t given = count;
    if (sbp_onnx_input(o, input)) {
        SBP_TRY(sbp_onnx_ints(o, input, what, out, &given));
    } else {
        int64_t *own = SBP_NEW_ARRAY(o->arena, int64_t, count);
        for (int64_t i = 0; i < count; i++)
            own[i] = fallback ? *fallback : i;
        *out = own;
    }
    return given == count ? SBP_OK
                          : sbp_onnx_fail(o, "the node has %lld %s for %lld starts", (long long)given, what,
                                          (long long)count);
}

/* Rows 0 .. T - 1 of a trained table, as learned positions that are sliced: gathered by position. */
static sbp_status slice_rows(sbp_onnx *o, const sbp_onnx_value *table, int32_t axis) {
    int32_t number;
    int64_t dim[SBP_ONNX_MAX_RANK];
    SBP_TRY(sbp_onnx_at_most(o, (double)table->dim[axis]));
    SBP_TRY(sbp_onnx_param(o, table, &number));
    SBP_TRY(sbp_onnx_squeeze_param(o, number));
    if (sbp_type_row_elems(&o->builder.module->params[number].type) <= 0)
        return sbp_onnx_fail(o, "'%s' %s has no rows", table->name, sbp_onnx_shape_text(o, table));
    sbp_value w = sbp_build_param(&o->builder, number);
    sbp_value y = sbp_build2(&o->builder, SBP_OP_gather, w,
                             sbp_build_row(&o->builder, sbp_data_columns[SBP_DATA_POS].name, SBP_I32, SBP_T));
    y = sbp_build_cast(&o->builder, y, o->residual);
    memcpy(dim, table->dim, sizeof dim);
    dim[axis] = SBP_ONNX_ROWS;
    SBP_TRY(sbp_onnx_as_shape(o, y, table->rank, dim, &y));
    sbp_onnx_define_value(o, 0, y, table->type, table->rank, dim);
    return o->builder.status;
}

/* One axis of output 0, which holds what is left so far. */
static sbp_status slice_axis(sbp_onnx *o, const sbp_onnx_value *x, int32_t axis, int64_t start, int64_t end,
                             int64_t step, sbp_onnx_value *out) {
    int64_t n = x->dim[axis];
    axis_view view;
    *out = *x;
    if (n == SBP_ONNX_ROWS) {
        if (start == 0 && step == 1 && (end == SBP_ONNX_TOKENS || end >= INT32_MAX))
            return SBP_OK;
        return sbp_onnx_fail(
            o,
            "tokens %lld to %lld by steps of %lld of '%s' %s are taken; all are needed, as of a model "
            "that returns the logits of every token",
            (long long)start, (long long)end, (long long)step, x->name, sbp_onnx_shape_text(o, x));
    }
    if (n < 0)
        return sbp_onnx_fail(o, "elements of axis 0 of '%s' %s are taken; those of all tokens are needed",
                             x->name, sbp_onnx_shape_text(o, x));
    start = start < 0 ? start + n : start;
    end = end < 0 ? end + n : end > n ? n : end;
    if (start == 0 && end == n && step == 1)
        return SBP_OK;
    if (step < 1 || start < 0 || end <= start)
        return sbp_onnx_fail(o, "elements %lld to %lld of %lld by steps of %lld", (long long)start,
                             (long long)end, (long long)n, (long long)step);
    SBP_TRY(view_axis(o, x, axis, &view));
    sbp_value y = joined(o, x, &view);
    int64_t length = sbp_ceil_div(end - start, step);
    if (step == 1) {
        y = sbp_build_slice(&o->builder, y, start * view.inner, length * view.inner);
    } else { /* columns of [n / step, step] */
        int64_t dims[SBP_MAX_RANK];
        memcpy(dims, view.dims, sizeof dims);
        if (n % step != 0 || start >= step || length != n / step || view.inner != 1 ||
            view.count + 2 >= SBP_MAX_RANK)
            return sbp_onnx_fail(o,
                                 "elements %lld to %lld of %lld by steps of %lld: only every part of whole "
                                 "steps, of the last axis, is supported",
                                 (long long)start, (long long)end, (long long)n, (long long)step);
        dims[view.count] = n / step;
        dims[view.count + 1] = step;
        y = sbp_build_reshape(&o->builder, y, dims, view.count + 2);
        y = sbp_build_slice(&o->builder, y, start, 1);
    }
    out->dim[axis] = length;
    SBP_TRY(sbp_onnx_as_shape(o, y, out->rank, out->dim, &out->value));
    return o->builder.status;
}

sbp_status sbp_onnx_slice(sbp_onnx *o) {
    static const char *const none[] = {NULL};
    static const int64_t one = 1;
    const sbp_onnx_value *x;
    const int64_t *starts, *ends, *axes, *steps;
    int64_t count, given;
    SBP_TRY(sbp_onnx_attrs_known(o, none));
    SBP_TRY(sbp_onnx_required(o, 0, &x));
    if (x->kind == SBP_ONNX_LONGER)
        return sbp_onnx_cut_longer(o, x);
    SBP_TRY(sbp_onnx_ints(o, 1, "starts", &starts, &count));
    SBP_TRY(sbp_onnx_ints(o, 2, "ends", &ends, &given));
    if (given != count)
        return sbp_onnx_fail(o, "the node has %lld ends for %lld starts", (long long)given, (long long)count);
    SBP_TRY(slice_input(o, 3, "axes", count, NULL, &axes));
    SBP_TRY(slice_input(o, 4, "steps", count, &one, &steps));
    sbp_onnx_value whole = *x, part;
    for (int64_t i = 0; i < count; i++) {
        int32_t axis = 0;
        SBP_TRY(normal_axis(o, &whole, axes[i], &axis));
        if (whole.kind == SBP_ONNX_PARAMETER && count == 1 && starts[i] == 0 && ends[i] == SBP_ONNX_TOKENS &&
            steps[i] == 1)
            return slice_rows(o, x, axis);
        if (whole.kind == SBP_ONNX_PARAMETER) {
            SBP_TRY(sbp_onnx_materialize(o, x, o->compute, &whole.value));
            whole.kind = SBP_ONNX_VALUE;
        }
        SBP_TRY(slice_axis(o, &whole, axis, starts[i], ends[i], steps[i], &part));
        whole = part;
    }
    sbp_onnx_define(o, 0, &whole);
    return o->builder.status;
}

/* ---- concat ---------------------------------------------------------------------------------------------
 */

sbp_status sbp_onnx_concat(sbp_onnx *o) {
    static const char *const known[] = {"axis", NULL};
    int64_t given = 0;
    int32_t axis = 0;
    sbp_value all = SBP_NO_VALUE;
    sbp_onnx_value out = {0};
    SBP_TRY(sbp_onnx_attrs_known(o, known));
    SBP_TRY(sbp_onnx_attr_int(o, "axis", &given));
    const sbp_onnx_value *only = NULL;
    int32_t present = 0;
    for (int32_t i = 0; i < o->node->input_count; i++) {
        const sbp_onnx_value *in;
        SBP_TRY(sbp_onnx_required(o, i, &in));
        SBP_TRY(normal_axis(o, in, given, &axis));
        present += in->dim[axis] != 0;
        only = in->dim[axis] != 0 ? in : only;
    }
    if (present == 1) {
        sbp_onnx_define(o, 0, only);
        return o->builder.status;
    }
    for (int32_t i = 0; i < o->node->input_count; i++) {
        const sbp_onnx_value *in;
        axis_view view;
        SBP_TRY(sbp_onnx_required(o, i, &in));
        SBP_TRY(normal_axis(o, in, given, &axis));
        if (in->dim[axis] == 0)
            continue; /* nothing, as of a cache */
        sbp_onnx_value x = *in;
        if (in->kind == SBP_ONNX_NUMBERS)
            SBP_TRY(sbp_onnx_numbers_value(o, in, &x));
        SBP_TRY(view_axis(o, &x, axis, &view));
        x.value = sbp_build_cast(&o->builder, x.value, o->wide);
        bool same = all == SBP_NO_VALUE || x.rank == out.rank;
        for (int32_t d = 0; same && all != SBP_NO_VALUE && d < x.rank; d++)
            same = d == axis || x.dim[d] == out.dim[d];
        if (!same)
            return sbp_onnx_fail(o, "'%s' has shape %s, the parts before it %s: only axis %d may differ",
                                 x.name, sbp_onnx_shape_text(o, &x), sbp_onnx_shape_text(o, &out), (int)axis);
        sbp_value flat = joined(o, &x, &view);
        int64_t before = all == SBP_NO_VALUE ? 0 : out.dim[axis];
        all = all == SBP_NO_VALUE ? flat : sbp_build2(&o->builder, SBP_OP_concat, all, flat);
        out = x;
        out.dim[axis] += before;
    }
    if (all == SBP_NO_VALUE)
        return sbp_onnx_fail(o, "the node has no inputs");
    SBP_TRY(sbp_onnx_as_shape(o, all, out.rank, out.dim, &all));
    sbp_onnx_define_value(o, 0, all, out.type, out.rank, out.dim);
    return o->builder.status;
}

/* Elements start .. start + length - 1 of the last axis of the IR value x; of two joined, one of them. */
static sbp_value columns(sbp_onnx *o, sbp_value x, int64_t start, int64_t length) {
    const sbp_func *f = o->builder.func;
    int32_t made = o->builder.status == SBP_OK ? f->values[x].op : -1;
    const sbp_op *op = made >= 0 && f->ops[made].code == SBP_OP_concat ? &f->ops[made] : NULL;
    for (int32_t i = 0; op && i < 2; i++) {
        const sbp_type *part = &f->values[op->operands[i]].type;
        if (start == (i == 0 ? 0 : f->values[x].type.dim[part->rank - 1].n - length) &&
            part->dim[part->rank - 1].n == length)
            return op->operands[i];
    }
    return sbp_build_slice(&o->builder, x, start, length);
}

/* x, with y in place of some neighbours of its last axis. */
sbp_status sbp_onnx_put(sbp_onnx *o) {
    const sbp_onnx_value *x, *y, *list;
    int64_t dims[SBP_MAX_RANK], dim[SBP_ONNX_MAX_RANK];
    int32_t count, last;
    double start = 0, number;
    sbp_number_tensor at;
    sbp_builder *b = &o->builder;
    sbp_value whole = SBP_NO_VALUE, part;
    SBP_TRY(sbp_onnx_required(o, 0, &x));
    SBP_TRY(sbp_onnx_required(o, 1, &y));
    SBP_TRY(sbp_onnx_required(o, 2, &list));
    last = x->rank - 1;
    bool fits = y->kind == SBP_ONNX_VALUE && y->rank == x->rank && last > 0 && y->dim[last] >= 1 &&
                sbp_onnx_rows_axis(y) >= 0 && memcmp(x->dim, y->dim, (size_t)last * sizeof *x->dim) == 0 &&
                (list->kind == SBP_ONNX_CONSTANT || list->kind == SBP_ONNX_NUMBERS) && list->rank == 2 &&
                list->dim[0] == y->dim[last] && list->dim[1] == 1;
    if (fits)
        sbp_onnx_tensor_of(o, list, &at);
    for (int64_t i = 0; fits && i < y->dim[last]; i++) {
        const sbp_number *with[2] = {sbp_number_constant(&o->numbers, (double)i),
                                     sbp_number_constant(&o->numbers, 0)};
        fits = sbp_number_is_constant(sbp_number_substitute(&o->numbers, at.element, with, 2), &number) &&
               (i == 0 || number == start + (double)i);
        start = i == 0 ? number : start;
    }
    fits = fits && start >= 0 && start + (double)y->dim[last] <= (double)x->dim[last];
    if (!fits)
        return sbp_onnx_fail(o, "'%s' %s is written into '%s' %s in a way that is not supported", y->name,
                             sbp_onnx_shape_text(o, y), x->name, sbp_onnx_shape_text(o, x));
    memcpy(dim, x->dim, sizeof dim);
    int64_t first = (int64_t)start, end = first + y->dim[last], n = dim[last];
    int32_t rank = x->rank;
    sbp_onnx_type type = y->type;
    SBP_TRY(sbp_onnx_ir_dims(o, rank, dim, dims, &count));
    SBP_TRY(sbp_onnx_materialize(o, y, o->wide, &part));
    if (x->kind == SBP_ONNX_VALUE)
        SBP_TRY(sbp_onnx_materialize(o, x, o->wide, &whole));
    if (x->kind != SBP_ONNX_VALUE) { /* one number everywhere */
        sbp_number_tensor all;
        sbp_onnx_value numbers = *x;
        if (x->kind == SBP_ONNX_NUMBERS || x->kind == SBP_ONNX_CONSTANT)
            sbp_onnx_tensor_of(o, &numbers, &all);
        if ((x->kind != SBP_ONNX_NUMBERS && x->kind != SBP_ONNX_CONSTANT) ||
            !sbp_number_is_constant(all.element, &number))
            return sbp_onnx_fail(o, "'%s' %s is not one number, into which others are written", x->name,
                                 sbp_onnx_shape_text(o, x));
        sbp_type wide = *sbp_build_type(b, part);
        wide.dim[wide.rank - 1] = sbp_dim_const(n);
        whole = sbp_build_broadcast(b, sbp_build_const(b, o->wide, number), &wide);
    }
    if (first > 0)
        part = sbp_build2(b, SBP_OP_concat, columns(o, whole, 0, first), part);
    if (end < n)
        part = sbp_build2(b, SBP_OP_concat, part, columns(o, whole, end, n - end));
    SBP_TRY(sbp_onnx_as_shape(o, part, rank, dim, &part));
    sbp_onnx_define_value(o, 0, part, type, rank, dim);
    return b->status;
}

/* Rows picked by number: the last one alone, in models that only generate. */
sbp_status sbp_onnx_gather_nd(sbp_onnx *o) {
    const sbp_onnx_value *x;
    SBP_TRY(sbp_onnx_required(o, 0, &x));
    if (sbp_onnx_rows_axis(x) >= 0)
        return sbp_onnx_fail(
            o,
            "tokens of '%s' %s are picked by '%s'; all are needed, as of a model that returns the logits "
            "of every token",
            x->name, sbp_onnx_shape_text(o, x), o->node->inputs[o->node->input_count - 1]);
    return sbp_onnx_fail(o, "'%s' %s is gathered by more than one index", x->name, sbp_onnx_shape_text(o, x));
}

/* ---- one of an axis -------------------------------------------------------------------------------------
 */

sbp_status sbp_onnx_gather_part(sbp_onnx *o, const sbp_onnx_value *x, const sbp_onnx_value *index,
                                int64_t given) {
    int32_t axis = 0;
    const int64_t *at;
    int64_t count;
    SBP_TRY(normal_axis(o, x, given, &axis));
    if (sbp_onnx_rows_axis(x) == axis)
        return sbp_onnx_fail(
            o,
            "tokens of '%s' %s are picked by '%s'; all are needed, as of a model that returns the "
            "logits of every token",
            x->name, sbp_onnx_shape_text(o, x), index->name);
    SBP_TRY(sbp_onnx_ints(o, 1, "the index", &at, &count));
    for (int64_t i = 1; i < count; i++)
        if (at[i] != at[0] + i)
            return sbp_onnx_fail(o, "elements %lld and %lld of axis %d: only neighbours are supported",
                                 (long long)at[0], (long long)at[i], axis);
    int64_t start = at[0] < 0 ? at[0] + x->dim[axis] : at[0];
    if (count < 1 || start < 0 || start + count > x->dim[axis])
        return sbp_onnx_fail(o, "elements %lld to %lld of axis %d of '%s' %s", (long long)start,
                             (long long)(start + count), axis, x->name, sbp_onnx_shape_text(o, x));
    return define_part(o, 0, x, axis, start, count, index->rank == 0);
}
