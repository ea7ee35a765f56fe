/* attention_sink.c: attention that may look at nothing: one more score per head, of no key.
 *
 *   attention_sink  operands and attributes of attention, and sink [heads]
 *                   -> o [T, heads, d_v], lse [T, heads]
 *
 * The sink stands beside a row's scores in the softmax, neither scaled nor masked nor capped, and has no
 * value: weights of the keys sum to less than 1. With o and lse of attention without it, s = sink:
 *
 *   lse' = log(exp(lse) + exp(s)) = lse - log_sigmoid(lse - s)
 *   o'   = o exp(lse - lse')      = o sigmoid(lse - s)
 *
 * which the expansion does behind `attention`: o is rounded to its type there, and o' once more.
 * With p = exp(score - lse') the weights of the keys, attention's derivative is that of o' and lse'
 * as they are; and
 *
 *   ds = - sum over rows of exp(s - lse') (do' . o')
 */
#include "ir/graph/rules.h"

#include <math.h>
#include <string.h>

enum { Q, K, V, FIRST, SHARED_END, OWN, SINK, OPERANDS };

static const sbp_op_rules *attention(void) {
    return sbp_opcode_rules(SBP_OP_attention);
}

sbp_status sbp_shape_attention_sink(sbp_shape *shape) {
    const sbp_type *q = &shape->in[Q], *sink = &shape->in[SINK];
    SBP_TRY(attention()->shape(shape));
    SBP_SHAPE_REQUIRE(shape, 8,
                      sink->rank == 1 && sbp_dim_equal(sink->dim[0], q->dim[1]) &&
                          sbp_dtype_is_float(sink->dtype),
                      "sink is %s for q %s", sbp_shape_text(sink), sbp_shape_text(q));
    return SBP_OK;
}

sbp_seq sbp_seq_attention_sink(const sbp_op *op, int32_t operand, int32_t result) {
    return attention()->seq(op, operand, result);
}

/* ---- vjp and expansion ------------------------------------------------------------------------------ */

/* [T, heads] -> [T, heads, 1] */
static sbp_value column(sbp_builder *b, sbp_value x) {
    return sbp_build_reshape(b, x, (int64_t[]){sbp_build_type(b, x)->dim[1].n, 1}, 2);
}

/* What attention says of its own operands, with results that are those of the sink. */
sbp_status sbp_vjp_attention_sink(sbp_vjp *vjp) {
    sbp_builder *b = vjp->builder;
    const sbp_type lse = *sbp_build_type(b, vjp->out[1]);
    SBP_TRY(attention()->vjp(vjp));
    vjp->din[SINK] = SBP_NO_VALUE;
    if (!vjp->need[SINK] || vjp->dout[0] == SBP_NO_VALUE)
        return b->status;
    sbp_value o = sbp_build_cast(b, vjp->out[0], lse.dtype), d = sbp_build_cast(b, vjp->dout[0], lse.dtype);
    sbp_value dot = sbp_build1(b, SBP_OP_row_sum, sbp_build2(b, SBP_OP_mul, d, o)); /* [T, heads, 1] */
    dot = sbp_build_reshape(b, dot, (int64_t[]){lse.dim[1].n}, 1);
    sbp_value sink = sbp_build_cast(b, vjp->in[SINK], lse.dtype);
    sbp_value share = sbp_build1(b, SBP_OP_exp, sbp_build2(b, SBP_OP_sub, sink, vjp->out[1]));
    sbp_value change = sbp_build1(b, SBP_OP_neg, sbp_build2(b, SBP_OP_mul, share, dot));
    vjp->din[SINK] = sbp_vjp_reduce_to(b, change, sbp_build_type(b, vjp->in[SINK]));
    return b->status;
}

sbp_status sbp_expand_attention_sink(sbp_expand *e) {
    sbp_builder *b = e->builder;
    sbp_attr_schema schema[SBP_MAX_ATTRS];
    sbp_value out[2];
    sbp_build(b, SBP_OP_attention, NULL, e->in, SINK, e->op.attrs, sbp_opcode_attrs(e->op.code, schema), out);
    if (b->status != SBP_OK)
        return b->status;
    const sbp_type o = *sbp_build_type(b, out[0]), lse = *sbp_build_type(b, out[1]);
    sbp_value sink = sbp_build_cast(b, e->in[SINK], lse.dtype);
    sbp_value above = sbp_build2(b, SBP_OP_sub, out[1], sink);
    sbp_value keys = column(b, sbp_build1(b, SBP_OP_sigmoid, above));
    sbp_value scaled = sbp_build2(b, SBP_OP_mul, sbp_build_cast(b, out[0], lse.dtype), keys);
    e->out[0] = sbp_build_cast(b, scaled, o.dtype);
    e->out[1] = sbp_build2(b, SBP_OP_sub, out[1], sbp_build1(b, SBP_OP_log_sigmoid, above));
    return b->status;
}

/* ---- eval ------------------------------------------------------------------------------------------- */

sbp_status sbp_eval_attention_sink(const sbp_eval *eval) {
    sbp_tensor *o = eval->out[0], *lse = eval->out[1];
    int64_t heads = lse->dim[1], d = o->dim[2];
    SBP_TRY(attention()->eval(eval));
    for (int64_t i = 0; i < lse->elems; i++) {
        double sink = eval->in[SINK]->data[i % heads], before = lse->data[i],
               top = fmax(before, sink); /* of the two, the larger is the size of the sum */
        lse->data[i] = top + log(exp(before - top) + exp(sink - top));
        for (int64_t j = 0; j < d; j++)
            o->data[i * d + j] *= exp(before - lse->data[i]);
    }
    return SBP_OK;
}

bool sbp_examples_attention_sink(int32_t index, sbp_example *out) {
    static const char *const sinks[] = {"f64[2]", "f64[4]", "f64[1]", "f64[2]"}; /* as attention's heads */
    if (index >= SBP_COUNT(sinks) || !attention()->examples(index, out))
        return false;
    out->in[SINK] = sbp_example_float(sinks[index], -2, 2);
    out->in_count = OPERANDS;
    return true;
}
