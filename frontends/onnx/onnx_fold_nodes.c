/* onnx_fold_nodes.c: operators that rearrange numbers, take parts of them or make them: shape arithmetic,
 * positions, masks. */
#include "frontends/onnx/onnx_fold.h"

#include <math.h>
#include <string.h>

/* Number i of a vector or number. */
static const sbp_number *item(sbp_fold *f, const sbp_number_tensor *t, int64_t i) {
    const sbp_number *with[SBP_NUMBERS_RANK] = {NULL};
    for (int32_t d = 0; d < t->rank; d++)
        with[d] = sbp_fold_number(f, d == t->rank - 1 ? (double)i : 0);
    return sbp_number_refine(f->n, t, sbp_number_substitute(f->n, t->element, with, t->rank));
}

/* Whole numbers of operand i, all known; count 1 of a number. */
static sbp_status whole_numbers(sbp_fold *f, int32_t i, const char *what, int64_t *out, int32_t *count) {
    double size = 1, value;
    if (f->in[i].rank > 1 || (f->in[i].rank == 1 && !sbp_number_is_constant(f->in[i].size[0], &size)) ||
        size > SBP_NUMBERS_RANK)
        return sbp_onnx_fail(f->o, "%s '%s' must be a constant list of at most %d numbers", what,
                             f->o->node->inputs[i], (int)SBP_NUMBERS_RANK);
    *count = (int32_t)size;
    for (int32_t k = 0; k < *count; k++) {
        if (!sbp_number_is_constant(item(f, &f->in[i], k), &value) || value != floor(value))
            return sbp_onnx_fail(f->o, "%s '%s' are not constant", what, f->o->node->inputs[i]);
        out[k] = value > 9e15 ? INT64_MAX : value < -9e15 ? INT64_MIN : (int64_t)value;
    }
    return SBP_OK;
}

static sbp_status one_axis(sbp_fold *f, int64_t given, int32_t rank, int32_t *out) {
    int64_t d = given < 0 ? given + rank : given;
    if (d < 0 || d >= rank)
        return sbp_onnx_fail(f->o, "axis %lld does not exist in a tensor of rank %d", (long long)given, rank);
    *out = (int32_t)d;
    return SBP_OK;
}

static bool is_float(sbp_onnx_type type) {
    sbp_dtype dtype;
    return sbp_onnx_type_float(type, &dtype);
}

/* ---- casts --------------------------------------------------------------------------------------------- */

static sbp_status cast_node(sbp_fold *f) {
    int64_t to = 0;
    SBP_TRY(sbp_onnx_attr_int(f->o, "to", &to));
    if (to <= 0 || to >= SBP_ONNX_TYPE_COUNT)
        return sbp_onnx_fail(f->o, "the cast to type %lld is not supported", (long long)to);
    sbp_number_tensor out = f->in[0];
    sbp_onnx_type type = (sbp_onnx_type)to;
    if (type == SBP_ONNX_BOOL && f->v[0]->type != SBP_ONNX_BOOL)
        out.element = sbp_number_not(f->n, sbp_number_zero(f->n, out.element));
    else if (is_float(f->v[0]->type) && !is_float(type))
        out.element = sbp_number_floor(f->n, out.element);
    return sbp_fold_define(f, 0, type, &out);
}

static sbp_status cast_like_node(sbp_fold *f) {
    sbp_number_tensor out = f->in[0];
    if (f->count != 2 || !f->v[1])
        return sbp_onnx_fail(f->o, "the node has %d inputs; 2 are expected", f->count);
    if (is_float(f->v[0]->type) && !is_float(f->v[1]->type))
        out.element = sbp_number_floor(f->n, out.element);
    return sbp_fold_define(f, 0, f->v[1]->type, &out);
}

/* ---- shapes ------------------------------------------------------------------------------------------- */

sbp_status sbp_onnx_fold_shape(sbp_onnx *o, const sbp_onnx_value *x) {
    sbp_fold fold = {.o = o, .n = &o->numbers}, *f = &fold;
    int64_t start = 0, end = x->rank;
    sbp_number_tensor out = {.rank = 1, .element = sbp_fold_number(f, 0)};
    SBP_TRY(sbp_onnx_attr_int(f->o, "start", &start));
    SBP_TRY(sbp_onnx_attr_int(f->o, "end", &end));
    start = start < 0 ? start + x->rank : start;
    end = end < 0 ? end + x->rank : end > x->rank ? x->rank : end;
    start = start < 0 ? 0 : start;
    int64_t length = end > start ? end - start : 0;
    out.size[0] = sbp_fold_number(f, (double)length);
    for (int64_t i = length - 1; i >= 0; i--) {
        int64_t d = start + i;
        const sbp_number *size =
            x->kind == SBP_ONNX_NUMBERS  ? x->numbers.size[d]
            : x->dim[d] == SBP_ONNX_ROWS ? sbp_number_tokens(f->n)
            : sbp_onnx_slots(x->dim[d]) > 0
                ? sbp_number_multiply(f->n, sbp_number_tokens(f->n),
                                      sbp_fold_number(f, (double)sbp_onnx_slots(x->dim[d])))
                : sbp_fold_number(f, (double)x->dim[d]);
        const sbp_number *here = sbp_number_zero(
            f->n, sbp_number_add(f->n, sbp_fold_axis(f, 0), -1, sbp_fold_number(f, (double)i)));
        out.element = sbp_number_choose(f->n, here, size, out.element);
    }
    return sbp_fold_define(f, 0, SBP_ONNX_INT64, &out);
}

/* Whole numbers of `by` in a. */
static const sbp_number *whole_part(sbp_fold *f, const sbp_number *a, double by) {
    return by == 1 ? a : sbp_number_floor(f->n, sbp_number_divide(f->n, a, sbp_fold_number(f, by)));
}

/* Axes of constant size that are joined and split, row-major; every other axis is one of `out`. */
static sbp_status regroup(sbp_fold *f, sbp_number_tensor *out) {
    const sbp_number_tensor *x = &f->in[0];
    const sbp_number *with[SBP_NUMBERS_RANK] = {NULL};
    int32_t i = 0, k = 0;
    while (i < x->rank || k < out->rank) {
        double a = 0, b = 0;
        if (i < x->rank && sbp_number_equals(x->size[i], 1)) {
            with[i++] = sbp_fold_number(f, 0);
            continue;
        }
        if (k < out->rank && sbp_number_equals(out->size[k], 1)) {
            k++;
            continue;
        }
        if (i == x->rank || k == out->rank)
            return SBP_USAGE;
        if (x->size[i] == out->size[k]) {
            with[i++] = sbp_fold_axis(f, k++);
            continue;
        }
        if (!sbp_number_is_constant(x->size[i], &a) || !sbp_number_is_constant(out->size[k], &b))
            return SBP_USAGE;
        const sbp_number *flat = sbp_fold_axis(f, k++);
        int32_t first = i++;
        while (a != b) {
            double next = 0;
            bool left = a < b;
            if (left ? i == x->rank : k == out->rank)
                return SBP_USAGE;
            if (!sbp_number_is_constant(left ? x->size[i] : out->size[k], &next))
                return SBP_USAGE;
            if (left) {
                a *= next;
                i++;
                continue;
            }
            flat = sbp_number_add(f->n, sbp_fold_axis(f, k), next, flat);
            b *= next;
            k++;
        }
        double stride = 1;
        for (int32_t d = i - 1; d >= first; d--) {
            double size = 0;
            (void)sbp_number_is_constant(x->size[d], &size);
            with[d] = whole_part(f, flat, stride);
            stride *= size;
            if (d > first)
                with[d] = sbp_number_add(f->n, with[d], -size, whole_part(f, flat, stride));
        }
    }
    out->element = sbp_number_substitute(f->n, x->element, with, x->rank);
    return SBP_OK;
}

/* x with other sizes of 1 in between: those of `out` that are not 1 are those of x, in order. */
static sbp_status squeeze_like(sbp_fold *f, sbp_number_tensor *out) {
    const sbp_number_tensor *x = &f->in[0];
    const sbp_number *with[SBP_NUMBERS_RANK] = {NULL};
    int32_t d = 0;
    out->element = x->element;
    if (x->element->axes == 0) /* the same number everywhere */
        return SBP_OK;
    for (int32_t i = 0; i < x->rank; i++) {
        if (sbp_number_equals(x->size[i], 1)) {
            with[i] = sbp_fold_number(f, 0);
            continue;
        }
        while (d < out->rank && sbp_number_equals(out->size[d], 1))
            d++;
        if (d == out->rank || out->size[d] != x->size[i])
            return SBP_USAGE;
        with[i] = sbp_fold_axis(f, d++);
    }
    for (; d < out->rank; d++)
        if (!sbp_number_equals(out->size[d], 1))
            return SBP_USAGE;
    out->element = sbp_number_substitute(f->n, x->element, with, x->rank);
    return SBP_OK;
}

static sbp_status reshape_node(sbp_fold *f) {
    const sbp_number_tensor *x = &f->in[0];
    sbp_number_tensor out = {0};
    double size = 0;
    int64_t allow_zero = 0;
    int32_t open = -1;
    SBP_TRY(sbp_onnx_attr_int(f->o, "allowzero", &allow_zero));
    if (f->count < 2 || f->in[1].rank != 1 || !sbp_number_is_constant(f->in[1].size[0], &size) ||
        size > SBP_NUMBERS_RANK)
        return sbp_onnx_fail(f->o, "the shape must be a constant list of at most %d numbers",
                             (int)SBP_NUMBERS_RANK);
    out.rank = (int32_t)size;
    const sbp_number *total = sbp_fold_number(f, 1), *known = sbp_fold_number(f, 1);
    for (int32_t d = 0; d < x->rank; d++)
        total = sbp_number_multiply(f->n, total, x->size[d]);
    for (int32_t d = 0; d < out.rank; d++) {
        out.size[d] = item(f, &f->in[1], d);
        if (sbp_number_equals(out.size[d], 0) && !allow_zero && d < x->rank)
            out.size[d] = x->size[d];
        if (sbp_number_equals(out.size[d], -1))
            open = d;
        else
            known = sbp_number_multiply(f->n, known, out.size[d]);
    }
    if (open >= 0)
        out.size[open] = known == total ? sbp_fold_number(f, 1) : sbp_number_divide(f->n, total, known);
    if (squeeze_like(f, &out) != SBP_OK && regroup(f, &out) != SBP_OK)
        return sbp_onnx_fail(f->o, "axes of '%s' are joined or split that depend on the number of tokens",
                             f->o->node->inputs[0]);
    return sbp_fold_define(f, 0, f->v[0]->type, &out);
}

static sbp_status flatten_node(sbp_fold *f) {
    const sbp_number_tensor *x = &f->in[0];
    sbp_number_tensor out = {.rank = 2};
    int64_t at = 1;
    SBP_TRY(sbp_onnx_attr_int(f->o, "axis", &at));
    at = at < 0 ? at + x->rank : at;
    for (int32_t half = 0; half < 2; half++)
        out.size[half] = sbp_fold_number(f, 1);
    for (int32_t d = 0; d < x->rank; d++)
        out.size[d >= at] = sbp_number_multiply(f->n, out.size[d >= at], x->size[d]);
    if (squeeze_like(f, &out) != SBP_OK && regroup(f, &out) != SBP_OK)
        return sbp_onnx_fail(
            f->o, "axes of '%s' are joined that depend on the number of tokens, which is not supported",
            f->o->node->inputs[0]);
    return sbp_fold_define(f, 0, f->v[0]->type, &out);
}

/* Squeeze, and Unsqueeze: axes of the larger tensor. */
static sbp_status squeeze_node(sbp_fold *f, bool insert) {
    const sbp_number_tensor *x = &f->in[0];
    sbp_number_tensor out = {0};
    int64_t axes[SBP_NUMBERS_RANK];
    int32_t count = 0, next = 0;
    bool on[SBP_NUMBERS_RANK] = {false};
    if (f->count > 1)
        SBP_TRY(whole_numbers(f, 1, "axes", axes, &count));
    int32_t rank = insert ? x->rank + count : x->rank;
    if (rank > SBP_NUMBERS_RANK)
        return sbp_onnx_fail(f->o, "a result has the unsupported rank %d", rank);
    for (int32_t i = 0; i < count; i++) {
        int32_t d = 0;
        SBP_TRY(one_axis(f, axes[i], rank, &d));
        on[d] = true;
    }
    for (int32_t d = 0; !insert && f->count < 2 && d < rank; d++)
        on[d] = sbp_number_equals(x->size[d], 1);
    for (int32_t d = 0; d < rank; d++) {
        if (insert)
            out.size[out.rank++] = on[d] ? sbp_fold_number(f, 1) : x->size[next++];
        else if (!on[d])
            out.size[out.rank++] = x->size[d];
        else if (!sbp_number_equals(x->size[d], 1))
            return sbp_onnx_fail(f->o, "axis %d of '%s' is not 1", d, f->o->node->inputs[0]);
    }
    if (squeeze_like(f, &out) != SBP_OK)
        return sbp_onnx_fail(f->o, "its axes do not fit");
    return sbp_fold_define(f, 0, f->v[0]->type, &out);
}

static sbp_status expand_node(sbp_fold *f) {
    double size = 0;
    sbp_number_tensor asked = {.element = sbp_fold_number(f, 0)}, out;
    const sbp_number *x[2];
    if (f->count < 2 || f->in[1].rank != 1 || !sbp_number_is_constant(f->in[1].size[0], &size) ||
        size > SBP_NUMBERS_RANK)
        return sbp_onnx_fail(f->o, "the shape must be a constant list of at most %d numbers",
                             (int)SBP_NUMBERS_RANK);
    asked.rank = (int32_t)size;
    for (int32_t d = 0; d < asked.rank; d++)
        asked.size[d] = item(f, &f->in[1], d);
    for (int32_t d = 0; d < asked.rank; d++) /* as exporters write "leave it" */
        if (sbp_number_equals(asked.size[d], -1))
            asked.size[d] = sbp_fold_number(f, 1);
    f->in[1] = asked;
    SBP_TRY(sbp_fold_broadcast(f, 2, &out, x));
    out.element = x[0];
    return sbp_fold_define(f, 0, f->v[0]->type, &out);
}

static sbp_status transpose_node(sbp_fold *f) {
    const sbp_number_tensor *x = &f->in[0];
    const sbp_onnx_attribute *perm = sbp_onnx_attr(f->o, "perm");
    sbp_number_tensor out = {.rank = x->rank};
    const sbp_number *with[SBP_NUMBERS_RANK] = {NULL};
    if (perm && (perm->kind != SBP_ONNX_ATTR_INTS || perm->count != x->rank))
        return sbp_onnx_fail(f->o, "perm has not one entry per axis");
    for (int32_t d = 0; d < x->rank; d++) {
        int64_t from = perm ? perm->ints[d] : x->rank - 1 - d;
        if (from < 0 || from >= x->rank || with[from])
            return sbp_onnx_fail(f->o, "perm is not a permutation");
        out.size[d] = x->size[from];
        with[from] = sbp_fold_axis(f, d);
    }
    out.element = sbp_number_substitute(f->n, x->element, with, x->rank);
    return sbp_fold_define(f, 0, f->v[0]->type, &out);
}

/* ---- parts -------------------------------------------------------------------------------------------- */

/* When the bound of a slice is T + c, and the axis has a fixed length, T is not above what fits. */
static sbp_status fits_in(sbp_fold *f, const sbp_number *bound, const sbp_number *size) {
    const sbp_number *rest = sbp_number_add(f->n, bound, -1, sbp_number_tokens(f->n));
    double most, c;
    if (!sbp_number_is_constant(size, &most) || !sbp_number_is_constant(rest, &c))
        return SBP_OK;
    return sbp_onnx_at_most(f->o, most - c);
}

/* A bound of a slice: from the end when negative, and inside. */
static const sbp_number *slice_bound(sbp_fold *f, const sbp_number *bound, const sbp_number *size) {
    const sbp_number_tensor none = {0};
    double c;
    if (sbp_number_is_constant(bound, &c) && c < 0)
        bound = sbp_number_add(f->n, bound, 1, size);
    if (sbp_number_is_constant(bound, &c) && c > 9e15)
        return size;
    bound = sbp_fold_larger(f, sbp_fold_smaller(f, bound, size), sbp_fold_number(f, 0));
    return sbp_number_refine(f->n, &none, bound);
}

static sbp_status slice_node(sbp_fold *f) {
    sbp_number_tensor out = f->in[0];
    int64_t axes[SBP_NUMBERS_RANK], steps[SBP_NUMBERS_RANK];
    int32_t count = 0, given;
    double size = 0;
    const sbp_number *with[SBP_NUMBERS_RANK] = {NULL};
    if (f->count < 3 || f->in[1].rank != 1 || !sbp_number_is_constant(f->in[1].size[0], &size) ||
        size > SBP_NUMBERS_RANK)
        return sbp_onnx_fail(f->o, "starts must be a constant list of at most %d numbers",
                             (int)SBP_NUMBERS_RANK);
    count = given = (int32_t)size;
    for (int32_t i = 0; i < count; i++) {
        axes[i] = i;
        steps[i] = 1;
    }
    if (f->count > 3 && f->v[3])
        SBP_TRY(whole_numbers(f, 3, "axes", axes, &given));
    if (given == count && f->count > 4 && f->v[4])
        SBP_TRY(whole_numbers(f, 4, "steps", steps, &given));
    if (given != count)
        return sbp_onnx_fail(f->o, "the node has %d axes or steps for %d starts", given, count);
    for (int32_t i = 0; i < count; i++) {
        int32_t d = 0;
        SBP_TRY(one_axis(f, axes[i], out.rank, &d));
        if (steps[i] < 1)
            return sbp_onnx_fail(f->o, "steps of %lld are not supported", (long long)steps[i]);
        SBP_TRY(fits_in(f, item(f, &f->in[2], i), f->in[0].size[d]));
        const sbp_number *start = slice_bound(f, item(f, &f->in[1], i), f->in[0].size[d]);
        const sbp_number *end = slice_bound(f, item(f, &f->in[2], i), f->in[0].size[d]);
        with[d] = sbp_number_add(f->n, start, (double)steps[i], sbp_fold_axis(f, d));
        end = sbp_number_add(f->n, end, 1, sbp_fold_number(f, (double)steps[i] - 1)); /* rounded up */
        out.size[d] = whole_part(f, sbp_number_add(f->n, end, -1, start), (double)steps[i]);
    }
    out.element = sbp_number_substitute(f->n, out.element, with, out.rank);
    return sbp_fold_define(f, 0, f->v[0]->type, &out);
}

/* An index that may count from the end. */
static const sbp_number *inside(sbp_fold *f, const sbp_number_tensor *t, const sbp_number *index,
                                const sbp_number *size) {
    const sbp_number *negative =
        sbp_number_refine(f->n, t, sbp_number_less(f->n, index, sbp_fold_number(f, 0)));
    return sbp_number_choose(f->n, negative, sbp_number_add(f->n, index, 1, size), index);
}

static sbp_status gather_node(sbp_fold *f) {
    const sbp_number_tensor *x = &f->in[0], *index = &f->in[1];
    sbp_number_tensor out = {0};
    const sbp_number *with[SBP_NUMBERS_RANK] = {NULL}, *moved[SBP_NUMBERS_RANK] = {NULL};
    int64_t given = 0;
    int32_t at = 0;
    SBP_TRY(sbp_onnx_attr_int(f->o, "axis", &given));
    SBP_TRY(one_axis(f, given, x->rank, &at));
    if (x->rank + index->rank - 1 > SBP_NUMBERS_RANK)
        return sbp_onnx_fail(f->o, "a result has the unsupported rank %d", x->rank + index->rank - 1);
    for (int32_t d = 0; d < at; d++) {
        out.size[out.rank] = x->size[d];
        with[d] = sbp_fold_axis(f, out.rank++);
    }
    for (int32_t d = 0; d < index->rank; d++) {
        out.size[out.rank] = index->size[d];
        moved[d] = sbp_fold_axis(f, out.rank++);
    }
    double rows;
    for (int32_t d = 0; d < index->rank; d++)
        if (index->element == sbp_fold_axis(f, d) && index->size[d] == sbp_number_tokens(f->n) &&
            sbp_number_is_constant(x->size[at], &rows))
            SBP_TRY(sbp_onnx_at_most(f->o, rows)); /* a row per position */
    with[at] = inside(f, index, index->element, x->size[at]);
    with[at] = sbp_number_substitute(f->n, with[at], moved, index->rank);
    for (int32_t d = at + 1; d < x->rank; d++) {
        out.size[out.rank] = x->size[d];
        with[d] = sbp_fold_axis(f, out.rank++);
    }
    out.element = sbp_number_substitute(f->n, x->element, with, x->rank);
    return sbp_fold_define(f, 0, f->v[0]->type, &out);
}

static sbp_status gather_nd_node(sbp_fold *f) {
    const sbp_number_tensor *x = &f->in[0], *index = &f->in[1];
    sbp_number_tensor out = {0};
    const sbp_number *with[SBP_NUMBERS_RANK] = {NULL};
    int64_t batch = 0;
    double depth;
    SBP_TRY(sbp_onnx_attr_int(f->o, "batch_dims", &batch));
    if (batch != 0 || index->rank < 1 || !sbp_number_is_constant(index->size[index->rank - 1], &depth) ||
        depth > x->rank)
        return sbp_onnx_fail(f->o, "batch_dims %lld, or indices of unknown depth, are not supported",
                             (long long)batch);
    for (int32_t d = 0; d < index->rank - 1; d++)
        out.size[out.rank++] = index->size[d];
    for (int32_t d = 0; d < x->rank; d++) {
        if (d < (int32_t)depth) {
            const sbp_number *last[SBP_NUMBERS_RANK] = {NULL};
            last[index->rank - 1] = sbp_fold_number(f, d);
            with[d] = sbp_number_refine(f->n, index,
                                        sbp_number_substitute(f->n, index->element, last, index->rank));
            with[d] = inside(f, index, with[d], x->size[d]);
            continue;
        }
        if (out.rank == SBP_NUMBERS_RANK)
            return sbp_onnx_fail(f->o, "a result has too high a rank");
        out.size[out.rank] = x->size[d];
        with[d] = sbp_fold_axis(f, out.rank++);
    }
    out.element = sbp_number_substitute(f->n, x->element, with, x->rank);
    return sbp_fold_define(f, 0, f->v[0]->type, &out);
}

static sbp_status concat_node(sbp_fold *f) {
    sbp_number_tensor out = f->in[0];
    int64_t given = 0;
    int32_t at = 0;
    SBP_TRY(sbp_onnx_attr_int(f->o, "axis", &given));
    SBP_TRY(one_axis(f, given, out.rank, &at));
    for (int32_t i = 1; i < f->count; i++) {
        const sbp_number_tensor *x = &f->in[i];
        const sbp_number *with[SBP_NUMBERS_RANK] = {NULL};
        bool same = x->rank == out.rank;
        for (int32_t d = 0; same && d < out.rank; d++)
            same = d == at || x->size[d] == out.size[d];
        if (!same)
            return sbp_onnx_fail(f->o, "shapes of '%s' and '%s' differ", f->o->node->inputs[0],
                                 f->o->node->inputs[i]);
        with[at] = sbp_number_add(f->n, sbp_fold_axis(f, at), -1, out.size[at]);
        const sbp_number *before = sbp_number_less(f->n, sbp_fold_axis(f, at), out.size[at]);
        out.element = sbp_number_choose(f->n, before, out.element,
                                        sbp_number_substitute(f->n, x->element, with, x->rank));
        out.size[at] = sbp_number_add(f->n, out.size[at], 1, x->size[at]);
    }
    return sbp_fold_define(f, 0, f->v[0]->type, &out);
}

/* Copies along an axis. */
static sbp_status tile_node(sbp_fold *f) {
    sbp_number_tensor out = f->in[0];
    const sbp_number *with[SBP_NUMBERS_RANK] = {NULL};
    double size = 0;
    if (f->count != 2 || f->in[1].rank != 1 || !sbp_number_is_constant(f->in[1].size[0], &size) ||
        size != out.rank)
        return sbp_onnx_fail(f->o, "there is not one number of copies per axis");
    for (int32_t d = 0; d < out.rank; d++) {
        const sbp_number *copies = item(f, &f->in[1], d);
        double length = 0;
        if (sbp_number_equals(copies, 1))
            continue;
        if (sbp_number_equals(out.size[d], 1)) {
            with[d] = sbp_fold_number(f, 0);
            out.size[d] = copies;
            continue;
        }
        if (!sbp_number_is_constant(out.size[d], &length))
            return sbp_onnx_fail(f->o, "axis %d, which depends on the number of tokens, is repeated", d);
        with[d] =
            sbp_number_add(f->n, sbp_fold_axis(f, d), -length, whole_part(f, sbp_fold_axis(f, d), length));
        out.size[d] = sbp_number_multiply(f->n, out.size[d], copies);
    }
    out.element = sbp_number_substitute(f->n, out.element, with, out.rank);
    return sbp_fold_define(f, 0, f->v[0]->type, &out);
}

/* How many tokens each one sees: a sum of a mask's truth values over keys, which must be 0 and 1. */
static sbp_status count_seen(sbp_fold *f) {
    const sbp_number_tensor *x = &f->in[0];
    sbp_onnx_value mask = *f->v[0];
    sbp_number_tensor out = *x;
    int64_t axes[SBP_NUMBERS_RANK] = {0}, keep = 1, window = 0;
    int32_t count = 0, r = x->rank;
    const sbp_number *tokens = sbp_number_tokens(f->n);
    SBP_TRY(sbp_onnx_attr_int(f->o, "keepdims", &keep));
    if (f->count > 1 && f->v[1])
        SBP_TRY(whole_numbers(f, 1, "axes", axes, &count));
    if (r < 2 || x->size[r - 1] != tokens || x->size[r - 2] != tokens || count != 1 ||
        (axes[0] != -1 && axes[0] != r - 1))
        return SBP_USAGE;
    mask.type = SBP_ONNX_BOOL;
    SBP_TRY(sbp_onnx_mask_window(f->o, &mask, &window));
    for (int64_t q = 0; q <= window + 8; q += q < 8 || q > window - 2 ? 1
                                              : window - 2 - q > 0    ? window - 2 - q
                                                                      : 1)
        for (int64_t k = 0; k <= q; k += q < 8 || k < 8 || k > q - 8 ? 1 : q - 15) {
            double at[SBP_NUMBERS_RANK] = {0};
            at[r - 2] = (double)q;
            at[r - 1] = (double)k;
            double value = sbp_number_value(x->element, at, (double)(q + 1));
            if (value != 0 && value != 1)
                return sbp_onnx_fail(f->o, "a mask of numbers other than 0 and 1 is summed");
        }
    const sbp_number *seen = sbp_number_add(f->n, sbp_fold_axis(f, r - 2), 1, sbp_fold_number(f, 1));
    out.element = window > 0 ? sbp_fold_smaller(f, seen, sbp_fold_number(f, (double)window)) : seen;
    out.size[r - 1] = sbp_fold_number(f, 1);
    out.rank = keep ? r : r - 1;
    return sbp_fold_define(f, 0, f->v[0]->type, &out);
}

/* Products (and sums, ..) of a short list, or of one number: what exporters count elements with. */
static sbp_status reduce_node(sbp_fold *f) {
    const char *op = f->o->node->op;
    sbp_number_tensor out = {0};
    double size = 1;
    int64_t keep = 1;
    SBP_TRY(sbp_onnx_attr_int(f->o, "keepdims", &keep));
    if (f->in[0].rank > 1 && strcmp(op, "ReduceSum") == 0)
        return count_seen(f);
    if (f->in[0].rank > 1 || (f->in[0].rank == 1 && !sbp_number_is_constant(f->in[0].size[0], &size)) ||
        size < 1 || size > 64)
        return SBP_USAGE;
    out.element = item(f, &f->in[0], 0);
    for (int32_t i = 1; i < (int32_t)size; i++) {
        const sbp_number *x = item(f, &f->in[0], i);
        out.element = strcmp(op, "ReduceProd") == 0  ? sbp_number_multiply(f->n, out.element, x)
                      : strcmp(op, "ReduceSum") == 0 ? sbp_number_add(f->n, out.element, 1, x)
                      : strcmp(op, "ReduceMax") == 0 ? sbp_fold_larger(f, out.element, x)
                                                     : sbp_fold_smaller(f, out.element, x);
    }
    if (keep && f->in[0].rank == 1)
        out.size[out.rank++] = sbp_fold_number(f, 1);
    return sbp_fold_define(f, 0, f->v[0]->type, &out);
}

/* The number of elements. */
static sbp_status size_node(sbp_fold *f) {
    sbp_number_tensor out = {.element = sbp_fold_number(f, 1)};
    for (int32_t d = 0; d < f->in[0].rank; d++)
        out.element = sbp_number_multiply(f->n, out.element, f->in[0].size[d]);
    return sbp_fold_define(f, 0, SBP_ONNX_INT64, &out);
}

/* Einsum "i,j->ij": every index of the result is one of an operand, in order, and none is summed over. */
static sbp_status einsum_node(sbp_fold *f) {
    const char *equation = "", *at;
    char index[2][SBP_NUMBERS_RANK + 1] = {{0}}, result[SBP_NUMBERS_RANK + 1] = {0}, *list = index[0];
    int32_t count = 0;
    SBP_TRY(sbp_onnx_attr_string(f->o, "equation", &equation));
    for (at = equation; *at; at++) {
        if (*at == ' ')
            continue;
        if (*at == ',' || *at == '-') {
            list = *at == ',' ? index[1] : result;
            at += *at == '-' && at[1] == '>';
            count = 0;
        } else if (count < SBP_NUMBERS_RANK) {
            list[count++] = *at;
        }
    }
    sbp_number_tensor out = {.rank = (int32_t)strlen(result), .element = sbp_fold_number(f, 1)};
    if (f->count != 2)
        return SBP_USAGE;
    for (int32_t i = 0; i < 2; i++) {
        const sbp_number *with[SBP_NUMBERS_RANK] = {NULL};
        if ((int32_t)strlen(index[i]) != f->in[i].rank)
            return SBP_USAGE;
        for (int32_t d = 0; d < f->in[i].rank; d++) {
            const char *place = strchr(result, index[i][d]);
            if (!place)
                return SBP_USAGE;
            with[d] = sbp_fold_axis(f, (int32_t)(place - result));
            out.size[place - result] = f->in[i].size[d];
        }
        out.element = sbp_number_multiply(f->n, out.element,
                                          sbp_number_substitute(f->n, f->in[i].element, with, f->in[i].rank));
    }
    for (int32_t d = 0; d < out.rank; d++)
        if (!out.size[d])
            return SBP_USAGE;
    return sbp_fold_define(f, 0, f->v[0]->type, &out);
}

static sbp_status split_node(sbp_fold *f) {
    int64_t given = 0, count = f->o->node->output_count, parts[SBP_NUMBERS_RANK];
    double length = 0, start = 0;
    int32_t at = 0, n = 0;
    SBP_TRY(sbp_onnx_attr_int(f->o, "axis", &given));
    SBP_TRY(one_axis(f, given, f->in[0].rank, &at));
    if (f->count > 1 && f->v[1])
        SBP_TRY(whole_numbers(f, 1, "the sizes of the parts", parts, &n));
    if (!sbp_number_is_constant(f->in[0].size[at], &length) || (n > 0 && n != count))
        return sbp_onnx_fail(f->o, "an axis of unknown length cannot be split into %lld parts",
                             (long long)count);
    for (int32_t i = 0; i < count; i++) {
        sbp_number_tensor out = f->in[0];
        const sbp_number *with[SBP_NUMBERS_RANK] = {NULL};
        double equal = ceil(length / (double)count),
               part = n > 0 ? (double)parts[i] : fmin(equal, length - start);
        with[at] = sbp_number_add(f->n, sbp_fold_axis(f, at), 1, sbp_fold_number(f, start));
        out.element = sbp_number_substitute(f->n, out.element, with, out.rank);
        out.size[at] = sbp_fold_number(f, part);
        start += part;
        if (start > length)
            return sbp_onnx_fail(f->o, "the parts have more than %g elements", length);
        if (f->o->node->outputs[i][0])
            SBP_TRY(sbp_fold_define(f, i, f->v[0]->type, &out));
    }
    return SBP_OK;
}

/* ---- made from numbers -------------------------------------------------------------------------------- */

static sbp_status range_node(sbp_fold *f) {
    double step = 0;
    if (f->count != 3 || !sbp_number_is_constant(item(f, &f->in[2], 0), &step) || step == 0)
        return sbp_onnx_fail(f->o, "the step is not constant, or 0");
    const sbp_number *start = item(f, &f->in[0], 0), *limit = item(f, &f->in[1], 0);
    sbp_number_tensor out = {.rank = 1};
    out.element = sbp_number_add(f->n, start, step, sbp_fold_axis(f, 0));
    const sbp_number *steps =
        sbp_number_divide(f->n, sbp_number_add(f->n, start, -1, limit), sbp_fold_number(f, step));
    out.size[0] =
        sbp_number_add(f->n, sbp_fold_number(f, 0), -1, sbp_number_floor(f->n, steps)); /* rounded up */
    return sbp_fold_define(f, 0, f->v[0]->type, &out);
}

static sbp_status constant_of_shape_node(sbp_fold *f) {
    const sbp_onnx_attribute *value = sbp_onnx_attr(f->o, "value");
    sbp_number_tensor out = {.element = sbp_fold_number(f, 0)};
    sbp_onnx_type type = SBP_ONNX_FLOAT;
    double size = 0;
    if (f->in[0].rank != 1 || !sbp_number_is_constant(f->in[0].size[0], &size) || size > SBP_NUMBERS_RANK)
        return sbp_onnx_fail(f->o, "the shape must be a constant list of at most %d numbers",
                             (int)SBP_NUMBERS_RANK);
    out.rank = (int32_t)size;
    for (int32_t d = 0; d < out.rank; d++)
        out.size[d] = item(f, &f->in[0], d);
    if (value) {
        sbp_onnx_tensor loaded = value->t;
        if (value->kind != SBP_ONNX_ATTR_TENSOR || value->t.elems != 1)
            return sbp_onnx_fail(f->o, "value is not a tensor of one number");
        SBP_TRY(sbp_onnx_tensor_load(f->o->arena, f->o->diag, f->o->model->path, &loaded));
        type = loaded.type;
        out.element = sbp_fold_number(f, sbp_onnx_tensor_at(&loaded, 0));
    }
    return sbp_fold_define(f, 0, type, &out);
}

/* Sums of what is the same number everywhere along the axis. */
static sbp_status cumsum_node(sbp_fold *f) {
    sbp_number_tensor out = f->in[0];
    int64_t exclusive = 0, reverse = 0, given[SBP_NUMBERS_RANK];
    int32_t count = 0, at = 0;
    SBP_TRY(sbp_onnx_attr_int(f->o, "exclusive", &exclusive));
    SBP_TRY(sbp_onnx_attr_int(f->o, "reverse", &reverse));
    SBP_TRY(whole_numbers(f, 1, "the axis", given, &count));
    SBP_TRY(one_axis(f, count == 1 ? given[0] : out.rank, out.rank, &at));
    if (reverse != 0 || (out.element->axes >> at & 1))
        return sbp_onnx_fail(f->o, "numbers that differ along the axis cannot be summed");
    const sbp_number *terms =
        sbp_number_add(f->n, sbp_fold_axis(f, at), 1, sbp_fold_number(f, exclusive ? 0 : 1));
    out.element = sbp_number_multiply(f->n, out.element, terms);
    return sbp_fold_define(f, 0, f->v[0]->type, &out);
}

/* The upper (or lower) triangle of the last two axes: those k indices above the diagonal and beyond. */
static sbp_status trilu_node(sbp_fold *f) {
    sbp_number_tensor out = f->in[0];
    int64_t upper = 1;
    SBP_TRY(sbp_onnx_attr_int(f->o, "upper", &upper));
    const sbp_number *k = f->count > 1 && f->v[1] ? item(f, &f->in[1], 0) : sbp_fold_number(f, 0);
    if (out.rank < 2)
        return sbp_onnx_fail(f->o, "'%s' has %d axes; at least 2 are expected", f->o->node->inputs[0],
                             out.rank);
    const sbp_number *d =
        sbp_number_add(f->n, sbp_fold_axis(f, out.rank - 1), -1, sbp_fold_axis(f, out.rank - 2));
    const sbp_number *keep =
        sbp_number_not(f->n, upper ? sbp_number_less(f->n, d, k) : sbp_number_less(f->n, k, d));
    out.element = sbp_number_choose(f->n, keep, out.element, sbp_fold_number(f, 0));
    return sbp_fold_define(f, 0, f->v[0]->type, &out);
}

/* Products of few terms: tables of angles are outer products. */
static sbp_status matmul_node(sbp_fold *f) {
    const sbp_number_tensor *a = &f->in[0], *b = &f->in[1];
    sbp_number_tensor out = {.rank = a->rank, .element = sbp_fold_number(f, 0)};
    double inner;
    if (a->rank < 2 || a->rank != b->rank || !sbp_number_is_constant(a->size[a->rank - 1], &inner) ||
        inner > 8 || b->size[b->rank - 2] != a->size[a->rank - 1])
        return SBP_USAGE;
    for (int32_t d = 0; d < a->rank; d++) {
        out.size[d] = d == a->rank - 1 || (d < a->rank - 2 && sbp_number_equals(a->size[d], 1)) ? b->size[d]
                                                                                                : a->size[d];
        if (d < a->rank - 2 && b->size[d] != out.size[d] && !sbp_number_equals(b->size[d], 1))
            return SBP_USAGE;
    }
    for (int32_t k = 0; k < (int32_t)inner; k++) {
        const sbp_number *with_a[SBP_NUMBERS_RANK] = {NULL}, *with_b[SBP_NUMBERS_RANK] = {NULL};
        for (int32_t d = 0; d < a->rank - 2; d++) {
            with_a[d] = sbp_number_equals(a->size[d], 1) ? sbp_fold_number(f, 0) : NULL;
            with_b[d] = sbp_number_equals(b->size[d], 1) ? sbp_fold_number(f, 0) : NULL;
        }
        with_a[a->rank - 1] = sbp_fold_number(f, k);
        with_b[b->rank - 2] = sbp_fold_number(f, k);
        const sbp_number *x = sbp_number_substitute(f->n, a->element, with_a, a->rank);
        const sbp_number *y = sbp_number_substitute(f->n, b->element, with_b, b->rank);
        out.element = sbp_number_add(f->n, out.element, 1, sbp_number_multiply(f->n, x, y));
    }
    return sbp_fold_define(f, 0, f->v[0]->type, &out);
}

/* ---- which rule ---------------------------------------------------------------------------------------- */

static sbp_status squeeze_rule(sbp_fold *f) {
    return squeeze_node(f, false);
}
static sbp_status unsqueeze_rule(sbp_fold *f) {
    return squeeze_node(f, true);
}

static const struct {
    const char *op;
    sbp_fold_rule *rule;
} node_rules[] = {{"Cast", cast_node},
                  {"Reshape", reshape_node},
                  {"Squeeze", squeeze_rule},
                  {"Flatten", flatten_node},
                  {"Unsqueeze", unsqueeze_rule},
                  {"Expand", expand_node},
                  {"Transpose", transpose_node},
                  {"Slice", slice_node},
                  {"Split", split_node},
                  {"CastLike", cast_like_node},
                  {"Tile", tile_node},
                  {"Einsum", einsum_node},
                  {"ReduceMax", reduce_node},
                  {"ReduceMin", reduce_node},
                  {"ReduceProd", reduce_node},
                  {"ReduceSum", reduce_node},
                  {"Size", size_node},
                  {"Gather", gather_node},
                  {"GatherND", gather_nd_node},
                  {"Concat", concat_node},
                  {"Range", range_node},
                  {"ConstantOfShape", constant_of_shape_node},
                  {"CumSum", cumsum_node},
                  {"Trilu", trilu_node},
                  {"MatMul", matmul_node},
                  {"ScatterND", sbp_fold_scatter_nd},
                  {"ScatterElements", sbp_fold_scatter_elements}};

sbp_fold_rule *sbp_fold_find_rule(const char *op) {
    for (int32_t i = 0; i < SBP_COUNT(node_rules); i++)
        if (strcmp(op, node_rules[i].op) == 0)
            return node_rules[i].rule;
    return NULL;
}
