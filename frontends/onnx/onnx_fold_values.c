/* onnx_fold_values.c: tensors of expressions, as nodes make them: broadcast, defined, compared. */
#include "frontends/onnx/onnx_fold.h"

#include <assert.h>
#include <math.h>

enum { MOST_CONSTANTS = 1 << 16 };

const sbp_number *sbp_fold_number(sbp_fold *f, double value) {
    return sbp_number_constant(f->n, value);
}

const sbp_number *sbp_fold_axis(sbp_fold *f, int32_t d) {
    return sbp_number_axis(f->n, d);
}

/* Output `index` of the node, in its simplest form. */
sbp_status sbp_fold_define(sbp_fold *f, int32_t index, sbp_onnx_type type, sbp_number_tensor *t) {
    sbp_onnx *o = f->o;
    sbp_onnx_value v = {.kind = SBP_ONNX_NUMBERS, .type = type, .rank = t->rank};
    int64_t elems = 1;
    bool constant = true;
    if (t->rank > SBP_MAX_RANK + 1)
        return sbp_onnx_fail(o, "a result has rank %d; at most %d is supported", t->rank, SBP_MAX_RANK + 1);
    for (int32_t d = 0; d < t->rank; d++) {
        double size;
        t->size[d] = sbp_number_refine(f->n, t, t->size[d]);
        bool known = sbp_number_is_constant(t->size[d], &size);
        if (known && (size < 0 || size != floor(size) || size > 1e15))
            return sbp_onnx_fail(o, "axis %d of a result has size %g", d, size);
        v.dim[d] = known                                   ? (int64_t)size
                   : t->size[d]->kind == SBP_NUMBER_TOKENS ? SBP_ONNX_ROWS
                                                           : SBP_ONNX_OTHER;
        constant = constant && known && elems * v.dim[d] <= MOST_CONSTANTS;
        elems *= constant ? v.dim[d] : 1;
        if (known && size == 1) { /* its only index */
            const sbp_number *with[SBP_NUMBERS_RANK] = {NULL};
            with[d] = sbp_fold_number(f, 0);
            t->element = sbp_number_substitute(f->n, t->element, with, SBP_NUMBERS_RANK);
        }
    }
    t->element = sbp_number_refine(f->n, t, t->element);
    if (f->n->full)
        return sbp_onnx_fail(o, "shapes and masks take too many steps to work out");
    v.numbers = *t;
    if (constant && !t->element->tokens) {
        double *data = SBP_NEW_ARRAY(o->arena, double, elems), at[SBP_NUMBERS_RANK] = {0};
        for (int64_t i = 0; i < elems; i++) {
            int64_t rest = i;
            for (int32_t d = t->rank - 1; d >= 0; d--) {
                assert(v.dim[d] > 0); /* as the elements that they make */
                at[d] = (double)(rest % v.dim[d]);
                rest /= v.dim[d];
            }
            data[i] = sbp_number_value(t->element, at, 1);
        }
        v.kind = SBP_ONNX_CONSTANT;
        v.data = data;
    }
    sbp_onnx_define(o, index, &v);
    return o->builder.status;
}

/* The element of t in a result of this rank, into which it is broadcast. */
static const sbp_number *broadcast_element(sbp_fold *f, const sbp_number_tensor *t, int32_t rank) {
    const sbp_number *with[SBP_NUMBERS_RANK] = {NULL};
    for (int32_t d = 0; d < t->rank; d++)
        with[d] =
            sbp_number_equals(t->size[d], 1) ? sbp_fold_number(f, 0) : sbp_fold_axis(f, d + rank - t->rank);
    return sbp_number_substitute(f->n, t->element, with, t->rank);
}

static sbp_status sizes_differ(sbp_fold *f, int32_t axis_number, const sbp_number *one,
                               const sbp_number *other) {
    sbp_text text;
    sbp_text_init(&text, f->o->arena);
    sbp_number_print(&text, one);
    sbp_text_add(&text, " and ");
    sbp_number_print(&text, other);
    return sbp_onnx_fail(f->o, "sizes %.200s of axis %d do not broadcast", text.data, axis_number);
}

sbp_status sbp_fold_broadcast(sbp_fold *f, int32_t count, sbp_number_tensor *out,
                              const sbp_number **elements) {
    *out = (sbp_number_tensor){0};
    for (int32_t i = 0; i < count; i++)
        out->rank = f->in[i].rank > out->rank ? f->in[i].rank : out->rank;
    for (int32_t d = 0; d < out->rank; d++)
        out->size[d] = sbp_fold_number(f, 1);
    for (int32_t i = 0; i < count; i++) {
        int32_t shift = out->rank - f->in[i].rank;
        for (int32_t d = shift; d < out->rank; d++) {
            const sbp_number *size = f->in[i].size[d - shift];
            if (sbp_number_equals(out->size[d], 1))
                out->size[d] = size;
            else if (size != out->size[d] && !sbp_number_equals(size, 1))
                return sizes_differ(f, d, out->size[d], size);
        }
    }
    for (int32_t i = 0; i < count; i++)
        elements[i] = broadcast_element(f, &f->in[i], out->rank);
    return SBP_OK;
}

const sbp_number *sbp_fold_smaller(sbp_fold *f, const sbp_number *a, const sbp_number *b) {
    const sbp_number_tensor none = {0};
    if (sbp_number_equals(sbp_number_refine(f->n, &none, sbp_number_less(f->n, b, a)), 0))
        return a;
    return sbp_number_choose(f->n, sbp_number_refine(f->n, &none, sbp_number_less(f->n, a, b)), a, b);
}

const sbp_number *sbp_fold_larger(sbp_fold *f, const sbp_number *a, const sbp_number *b) {
    const sbp_number *none = sbp_fold_number(f, 0);
    const sbp_number *less =
        sbp_fold_smaller(f, sbp_number_add(f->n, none, -1, a), sbp_number_add(f->n, none, -1, b));
    return sbp_number_add(f->n, none, -1, less);
}
