/* onnx_conv.c: short causal convolutions over the tokens, channel by channel, as layers with states have
 * them. A Conv that is padded on both sides has more rows than there are tokens, which a Slice cuts off:
 * LONGER until then. */
#include <string.h>

#include "frontends/onnx/onnx.h"
#include "ir/program/contract.h"
#include "ir/program/program.h"

static bool all_are(const sbp_onnx_attribute *a, int64_t value) {
    for (int64_t i = 0; a && i < a->count; i++)
        if (a->kind != SBP_ONNX_ATTR_INTS || a->ints[i] != value)
            return false;
    return true;
}

/* Rows before the first and behind the last that are padded with zeros. */
static sbp_status read_padding(sbp_onnx *o, int64_t *before, int64_t *behind) {
    static const char *const known[] = {"auto_pad", "dilations", "group", "kernel_shape",
                                        "pads",     "strides",   NULL};
    const sbp_onnx_attribute *pads = sbp_onnx_attr(o, "pads");
    const char *automatic = "NOTSET";
    SBP_TRY(sbp_onnx_attrs_known(o, known));
    SBP_TRY(sbp_onnx_attr_string(o, "auto_pad", &automatic));
    bool fits = strcmp(automatic, "NOTSET") == 0 && all_are(sbp_onnx_attr(o, "dilations"), 1) &&
                all_are(sbp_onnx_attr(o, "strides"), 1) &&
                (!pads || (pads->kind == SBP_ONNX_ATTR_INTS && pads->count == 2));
    *before = fits && pads ? pads->ints[0] : 0;
    *behind = fits && pads ? pads->ints[1] : 0;
    return fits ? SBP_OK
                : sbp_onnx_fail(
                      o, "auto_pad, dilations, strides, or pads of more than one axis: a convolution over "
                         "the tokens is expected, one step wide");
}

sbp_status sbp_onnx_conv(sbp_onnx *o) {
    const sbp_onnx_value *x, *w, *bias = sbp_onnx_input(o, 2);
    int64_t before, behind, group = 1;
    sbp_builder *b = &o->builder;
    SBP_TRY(sbp_onnx_required(o, 0, &x));
    SBP_TRY(sbp_onnx_required(o, 1, &w));
    SBP_TRY(sbp_onnx_attr_int(o, "group", &group));
    SBP_TRY(read_padding(o, &before, &behind));
    int64_t n = w->rank == 3 ? w->dim[0] : 0, taps = w->rank == 3 ? w->dim[2] : 0;
    bool fits = x->kind == SBP_ONNX_VALUE && x->rank == 3 && x->dim[0] == 1 && x->repeat < 2 &&
                sbp_onnx_rows_axis(x) == 2 && x->dim[1] == n && group == n && w->rank == 3 &&
                w->dim[1] == 1 && sbp_onnx_rows_axis(w) < 0 &&
                (!bias || (bias->rank == 1 && bias->dim[0] == n));
    if (!fits)
        return sbp_onnx_fail(
            o,
            "%lld groups of '%s' %s by '%s' %s: only convolutions over the tokens, each channel by "
            "itself, are supported",
            (long long)group, x->name, sbp_onnx_shape_text(o, x), w->name, sbp_onnx_shape_text(o, w));
    if (taps < 2 || taps > SBP_CONV_MOST_TAPS || before != taps - 1 || behind < 0)
        return sbp_onnx_fail(
            o,
            "%lld rows before the first for %lld taps (2 to %d): a token may see itself and what "
            "comes before it, no other",
            (long long)before, (long long)taps, SBP_CONV_MOST_TAPS);
    sbp_value operands[4] = {sbp_onnx_with_dims(o, x->value, &n, 1), SBP_NO_VALUE, SBP_NO_VALUE,
                             SBP_NO_VALUE},
              out[2];
    int64_t dim[3] = {1, n, SBP_ONNX_ROWS};
    sbp_onnx_type type = x->type;
    operands[0] = sbp_build_rounded(b, operands[0], o->compute);
    SBP_TRY(sbp_onnx_materialize(o, w, o->compute, &operands[1]));
    operands[1] = sbp_onnx_with_dims(o, operands[1], (int64_t[]){n, 1, taps}, 3);
    if (bias)
        SBP_TRY(sbp_onnx_materialize(o, bias, o->compute, &operands[2]));
    operands[3] = sbp_build_row(b, sbp_data_columns[SBP_DATA_FIRST].name, SBP_I32, SBP_T);
    sbp_build(b, SBP_OP_conv_rows, NULL, operands, 4, NULL, 0, out);
    sbp_onnx_value v = {.kind = behind > 0 ? SBP_ONNX_LONGER : SBP_ONNX_VALUE, .type = type, .rank = 3};
    SBP_TRY(sbp_onnx_as_shape(o, out[0], 3, dim, &v.value));
    memcpy(v.dim, dim, sizeof dim);
    if (behind > 0)
        sbp_onnx_define(o, 0, &v);
    else
        sbp_onnx_define_value(o, 0, v.value, type, 3, dim);
    return b->status;
}

/* The tokens of a LONGER. */
sbp_status sbp_onnx_cut_longer(sbp_onnx *o, const sbp_onnx_value *x) {
    const int64_t *starts, *ends, *axes, *steps;
    int64_t count[4];
    sbp_onnx_value whole = *x;
    SBP_TRY(sbp_onnx_ints(o, 1, "starts", &starts, &count[0]));
    SBP_TRY(sbp_onnx_ints(o, 2, "ends", &ends, &count[1]));
    bool fits = o->node->input_count >= 4 && count[0] == 1 && count[1] == 1;
    if (fits)
        SBP_TRY(sbp_onnx_ints(o, 3, "axes", &axes, &count[2]));
    fits = fits && count[2] == 1 && (axes[0] == 2 || axes[0] == -1) && starts[0] == 0 &&
           ends[0] == SBP_ONNX_TOKENS;
    if (fits && o->node->input_count > 4) {
        SBP_TRY(sbp_onnx_ints(o, 4, "steps", &steps, &count[3]));
        fits = count[3] == 1 && steps[0] == 1;
    }
    if (!fits)
        return sbp_onnx_fail(
            o,
            "of a convolution '%s', padded on both sides, other rows are taken than those of the "
            "tokens",
            x->name);
    whole.kind = SBP_ONNX_VALUE;
    sbp_onnx_define_value(o, 0, whole.value, whole.type, whole.rank, whole.dim);
    return o->builder.status;
}
