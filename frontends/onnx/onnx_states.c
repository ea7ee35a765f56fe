/* onnx_states.c: operators of domain streambp, layers with states that are one op of the graph IR. ONNX
 * has none for them; examples/export_model_json.py writes these in place of the chunks that
 * transformers computes.
 *
 *   DeltaRule(q, k [1,T,K,dk], v [1,T,V,dv], decay, beta [1,T,V]) -> [1,T,V,dv]     ir/graph/ops/delta.c
 *   Ssd(c, b [1,T,G,n], x [1,T,H,p], decay, dt [1,T,H]) -> [1,T,H,p]                without corrections */
#include "frontends/onnx/onnx.h"
#include "ir/program/contract.h"

#include <string.h>

/* Input `index`, [1,T,heads,n], or [1,T,heads] when n is NULL, of the type. */
static sbp_status heads_operand(sbp_onnx *o, int32_t index, sbp_dtype dtype, int64_t *heads, int64_t *n,
                                sbp_value *out) {
    const sbp_onnx_value *x;
    int32_t rank = n ? 4 : 3;
    SBP_TRY(sbp_onnx_required(o, index, &x));
    if (x->kind != SBP_ONNX_VALUE || x->rank != rank || sbp_onnx_rows_axis(x) != 1 || x->dim[0] != 1)
        return sbp_onnx_fail(o, "'%s' is %s; %s is expected", x->name, sbp_onnx_shape_text(o, x),
                             n ? "[1,T,heads,n]" : "[1,T,heads]");
    *heads = x->dim[2];
    if (n)
        *n = x->dim[3];
    int64_t dims[2] = {x->dim[2], x->dim[rank - 1]};
    SBP_TRY(sbp_onnx_materialize(o, x, o->wide, out));
    *out = sbp_onnx_with_dims(o, *out, dims, n ? 2 : 1);
    *out = sbp_build_rounded(&o->builder, *out, dtype);
    return o->builder.status;
}

sbp_status sbp_onnx_recurrence(sbp_onnx *o) {
    static const char *const known[] = {NULL};
    bool delta = strcmp(o->node->op, "DeltaRule") == 0;
    int64_t heads[5], n[3];
    sbp_value operands[6], out[2];
    SBP_TRY(sbp_onnx_attrs_known(o, known));
    if (o->node->input_count != 5)
        return sbp_onnx_fail(o, "the node has %d inputs; 5 are expected", o->node->input_count);
    for (int32_t i = 0; i < 5; i++)
        SBP_TRY(
            heads_operand(o, i, i < 3 ? o->compute : o->wide, &heads[i], i < 3 ? &n[i] : NULL, &operands[i]));
    if (heads[0] != heads[1] || n[0] != n[1] || heads[2] % heads[0] != 0 || heads[3] != heads[2] ||
        heads[4] != heads[2])
        return sbp_onnx_fail(
            o,
            "heads of %lld, %lld, %lld, %lld and %lld, %lld and %lld wide: the first two are "
            "expected to be alike, the others as many or a multiple",
            (long long)heads[0], (long long)heads[1], (long long)heads[2], (long long)heads[3],
            (long long)heads[4], (long long)n[0], (long long)n[1]);
    const sbp_onnx_value *x = sbp_onnx_input(o, 2);
    sbp_onnx_type type = x->type;
    const int64_t dim[4] = {1, SBP_ONNX_ROWS, heads[2], n[2]};
    operands[5] = sbp_build_row(&o->builder, sbp_data_columns[SBP_DATA_FIRST].name, SBP_I32, SBP_T);
    const sbp_attr corrects = sbp_attr_bool("corrects", delta);
    sbp_build(&o->builder, SBP_OP_delta_rule, delta ? "delta_out" : "ssd_out", operands, 6, &corrects, 1,
              out);
    SBP_TRY(sbp_onnx_as_shape(o, out[0], 4, dim, &out[0]));
    sbp_onnx_define_value(o, 0, out[0], type, 4, dim);
    return o->builder.status;
}
