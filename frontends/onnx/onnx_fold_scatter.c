/* onnx_fold_scatter.c: numbers that are written into others, as tables of angles are put together of several
 * positions of a token, which are the same for a text: what is written is what stood there. */
#include "frontends/onnx/onnx_fold.h"

#include <math.h>

enum { MOST_WRITTEN = 4096 };

/* The element of t with axis `axis` at this index, in its simplest form. */
static const sbp_number *at(sbp_fold *f, const sbp_number_tensor *t, int32_t axis, double index) {
    const sbp_number *with[SBP_NUMBERS_RANK] = {NULL};
    with[axis] = sbp_fold_number(f, index);
    return sbp_number_refine(f->n, t, sbp_number_substitute(f->n, t->element, with, SBP_NUMBERS_RANK));
}

/* Whether all axes but `axis` have the sizes of the data. */
static bool sizes_agree(const sbp_number_tensor *data, const sbp_number_tensor *written, int32_t axis) {
    bool same = data->rank == written->rank;
    for (int32_t d = 0; same && d < data->rank; d++)
        same = d == axis || data->size[d] == written->size[d];
    return same;
}

static bool whole_reduction(sbp_fold *f, sbp_status *status) {
    const char *reduction = "none";
    *status = sbp_onnx_attr_string(f->o, "reduction", &reduction);
    return *status == SBP_OK && reduction[0] == 'n';
}

/* Rows of axis 0. */
sbp_status sbp_fold_scatter_nd(sbp_fold *f) {
    sbp_status status;
    double count = 0, one = 0, index = 0, length = 0;
    bool fits = whole_reduction(f, &status) && f->count == 3 && f->in[1].rank == 2 && f->in[0].rank >= 1 &&
                sbp_number_is_constant(f->in[1].size[0], &count) && count <= MOST_WRITTEN &&
                sbp_number_is_constant(f->in[1].size[1], &one) && one == 1 &&
                sbp_number_is_constant(f->in[0].size[0], &length) && sizes_agree(&f->in[0], &f->in[2], 0) &&
                sbp_number_equals(f->in[2].size[0], count);
    SBP_TRY(status);
    for (int64_t i = 0; fits && i < (int64_t)count; i++) {
        const sbp_number *with[2] = {sbp_fold_number(f, (double)i), sbp_fold_number(f, 0)};
        fits = sbp_number_is_constant(sbp_number_substitute(f->n, f->in[1].element, with, 2), &index) &&
               index == floor(index) && index >= -length && index < length &&
               at(f, &f->in[0], 0, index < 0 ? index + length : index) == at(f, &f->in[2], 0, (double)i);
    }
    if (!fits)
        return sbp_onnx_fail(f->o, "numbers are written into '%s' that are not those which stand there",
                             f->o->node->inputs[0]);
    return sbp_fold_define(f, 0, f->v[0]->type, &f->in[0]);
}

/* One of an axis. */
sbp_status sbp_fold_scatter_elements(sbp_fold *f) {
    sbp_status status;
    int64_t given = 0;
    double index = 0, length = 0;
    bool fits = whole_reduction(f, &status) && f->count == 3;
    SBP_TRY(status);
    SBP_TRY(sbp_onnx_attr_int(f->o, "axis", &given));
    int32_t axis = (int32_t)(given < 0 ? given + f->in[0].rank : given);
    fits = fits && axis >= 0 && axis < f->in[0].rank && sizes_agree(&f->in[0], &f->in[2], axis) &&
           sizes_agree(&f->in[2], &f->in[1], -1) && sbp_number_equals(f->in[2].size[axis], 1) &&
           sbp_number_is_constant(f->in[0].size[axis], &length) &&
           sbp_number_is_constant(f->in[1].element, &index) && index == floor(index) && index >= -length &&
           index < length;
    if (!fits || at(f, &f->in[0], axis, index < 0 ? index + length : index) != at(f, &f->in[2], axis, 0))
        return sbp_onnx_fail(f->o, "numbers are written into '%s' that are not those which stand there",
                             f->o->node->inputs[0]);
    return sbp_fold_define(f, 0, f->v[0]->type, &f->in[0]);
}
