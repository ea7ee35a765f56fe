/* expert_linear.c: matmuls with the matrices of the experts that each row has chosen. Types as in linear.c.
 *
 *   expert_linear     x [T, in], or [T, k, in] where each of a row's k slots has its own; index i32 [T, k]:
 *                     the slot's expert; w [E, out, in] (layout out_in) or [E, in, out] (in_out);
 *                     bias [E, out] -> y [T, k, out]:  y[t, j] = w[index[t, j]] x[t, (j)] + bias[index[t, j]]
 *                     wide: y is fp32 even when x is narrower
 *   expert_linear_dw  dw[e] = sum over rows t, over slots j with index[t, j] = e, of dy[t, j]^T x[t, (j)], in
 *                     the layout of w, in the wide type; of an expert that nobody chose exactly 0
 *
 * Where the slots share x its cotangent is the sum of their answers, in their order. */
#include "ir/graph/rules.h"

enum { X, INDEX, W, BIAS };     /* expert_linear */
enum { DW_DY, DW_X, DW_INDEX }; /* expert_linear_dw */

static bool out_in(const sbp_op *op) {
    return sbp_op_symbol_is(op, "layout", "out_in");
}

static bool is_narrow(sbp_dtype dtype) {
    return sbp_rule_wide(dtype) != dtype;
}

/* ---- shape ------------------------------------------------------------------------------------------ */

/* Layout, index, and x: its elements per slot. */
static sbp_status check_slots(const sbp_shape *shape, int32_t x_operand, int32_t index_operand) {
    const sbp_type *x = &shape->in[x_operand], *index = &shape->in[index_operand];
    SBP_SHAPE_REQUIRE(shape, 1, out_in(shape->op) || sbp_op_symbol_is(shape->op, "layout", "in_out"),
                      "layout '%s'; out_in or in_out expected", sbp_op_attr(shape->op, "layout")->symbol);
    SBP_SHAPE_REQUIRE(shape, 2,
                      index->rank == 2 && index->dtype == SBP_I32 && sbp_type_rows(index) != SBP_ONE,
                      "index is %s; i32 [rows, slots] expected", sbp_shape_text(index));
    SBP_SHAPE_REQUIRE(shape, 3,
                      (x->rank == 2 || (x->rank == 3 && sbp_dim_equal(x->dim[1], index->dim[1]))) &&
                          sbp_dim_equal(x->dim[0], index->dim[0]) && sbp_dtype_is_float(x->dtype),
                      "x is %s beside index %s; [rows, n] or [rows, slots, n] of a float expected",
                      sbp_shape_text(x), sbp_shape_text(index));
    return SBP_OK;
}

sbp_status sbp_shape_expert_linear(sbp_shape *shape) {
    const sbp_type *x = &shape->in[X], *w = &shape->in[W], *bias = &shape->in[BIAS];
    SBP_TRY(check_slots(shape, X, INDEX));
    SBP_SHAPE_REQUIRE(shape, 4,
                      w->rank == 3 && sbp_type_rows(w) == SBP_ONE && w->dtype == x->dtype &&
                          sbp_dim_equal(w->dim[out_in(shape->op) ? 2 : 1], x->dim[x->rank - 1]),
                      "w is %s for x %s (%s)", sbp_shape_text(w), sbp_shape_text(x),
                      sbp_op_attr(shape->op, "layout")->symbol);
    sbp_dim out = w->dim[out_in(shape->op) ? 1 : 2];
    if (shape->present[BIAS])
        SBP_SHAPE_REQUIRE(shape, 5,
                          bias->rank == 2 && sbp_dim_equal(bias->dim[0], w->dim[0]) &&
                              sbp_dim_equal(bias->dim[1], out) && bias->dtype == x->dtype,
                          "bias is %s for w %s", sbp_shape_text(bias), sbp_shape_text(w));
    shape->out[0] = (sbp_type){.dtype = sbp_op_int(shape->op, "wide") ? sbp_rule_wide(x->dtype) : x->dtype,
                               .rank = 3,
                               .dim = {x->dim[0], shape->in[INDEX].dim[1], out}};
    return SBP_OK;
}

sbp_status sbp_shape_expert_linear_dw(sbp_shape *shape) {
    const sbp_type *dy = &shape->in[DW_DY], *x = &shape->in[DW_X];
    int64_t experts = sbp_op_int(shape->op, "experts");
    SBP_TRY(check_slots(shape, DW_X, DW_INDEX));
    SBP_SHAPE_REQUIRE(shape, 4,
                      dy->rank == 3 && dy->dtype == x->dtype &&
                          sbp_dim_equal(dy->dim[0], shape->in[DW_INDEX].dim[0]) &&
                          sbp_dim_equal(dy->dim[1], shape->in[DW_INDEX].dim[1]),
                      "dy is %s beside index %s", sbp_shape_text(dy), sbp_shape_text(&shape->in[DW_INDEX]));
    SBP_SHAPE_REQUIRE(shape, 5, experts >= 1, "%lld experts", (long long)experts);
    bool straight = out_in(shape->op);
    sbp_dim out = dy->dim[2], in = x->dim[x->rank - 1];
    shape->out[0] = (sbp_type){.dtype = sbp_rule_wide(x->dtype),
                               .rank = 3,
                               .dim = {sbp_dim_const(experts), straight ? out : in, straight ? in : out}};
    return SBP_OK;
}

SBP_RULE_SEQ_ROW(expert_linear)
SBP_RULE_SEQ_REDUCE(expert_linear_dw)

/* ---- vjp -------------------------------------------------------------------------------------------- */

static sbp_value build_dw(sbp_vjp *vjp, sbp_value dy, sbp_value x, const char *layout) {
    sbp_builder *b = vjp->builder;
    return sbp_build(b, SBP_OP_expert_linear_dw, NULL, (sbp_value[]){dy, x, vjp->in[INDEX]}, 3,
                     (sbp_attr[]){sbp_attr_int("experts", sbp_build_type(b, vjp->in[W])->dim[0].n),
                                  sbp_attr_symbol("layout", layout)},
                     2, NULL);
}

sbp_status sbp_vjp_expert_linear(sbp_vjp *vjp) {
    sbp_builder *b = vjp->builder;
    const sbp_type x = *sbp_build_type(b, vjp->in[X]);
    sbp_value dy = sbp_build_cast(b, vjp->dout[0], x.dtype);
    if (vjp->need[X]) {
        sbp_value dx = sbp_build(
            b, SBP_OP_expert_linear, NULL, (sbp_value[]){dy, vjp->in[INDEX], vjp->in[W], SBP_NO_VALUE}, 4,
            (sbp_attr[]){sbp_attr_symbol("layout", out_in(&vjp->op) ? "in_out" : "out_in"),
                         sbp_attr_bool("wide", is_narrow(x.dtype))},
            2, NULL);
        if (x.rank == 2) { /* the answers of the slots add up */
            dx = sbp_build(b, SBP_OP_row_sum, NULL, &dx, 1, (sbp_attr[]){sbp_attr_int("axis", -2)}, 1, NULL);
            dx = sbp_build_reshape(b, dx, (int64_t[]){x.dim[1].n}, 1);
        }
        vjp->din[X] = dx;
    }
    if (vjp->need[W])
        vjp->din[W] = build_dw(vjp, dy, vjp->in[X], sbp_op_attr(&vjp->op, "layout")->symbol);
    if (vjp->in[BIAS] != SBP_NO_VALUE && vjp->need[BIAS]) { /* as the weights of an input that is 1 */
        const sbp_type bias = *sbp_build_type(b, vjp->in[BIAS]);
        const sbp_type column = {.dtype = x.dtype, .rank = 2, .dim = {x.dim[0], sbp_dim_const(1)}};
        sbp_value ones = sbp_build_broadcast(b, sbp_build_const(b, x.dtype, 1), &column);
        vjp->din[BIAS] = sbp_build_reshape(b, build_dw(vjp, dy, ones, "out_in"),
                                           (int64_t[]){bias.dim[0].n, bias.dim[1].n}, 2);
    }
    return b->status;
}

/* ---- eval ------------------------------------------------------------------------------------------- */

/* Matrices of the experts, of `rows` rows and `cols` columns, and what slots read. */
typedef struct slots {
    const sbp_tensor *x, *index;
    int64_t k, in;
} slots;

static slots slots_of(const sbp_tensor *x, const sbp_tensor *index) {
    return (slots){.x = x, .index = index, .k = index->dim[1], .in = x->dim[x->type.rank - 1]};
}

static const double *slot_input(const slots *s, int64_t slot) {
    return s->x->data + (s->x->type.rank == 3 ? slot : slot / s->k) * s->in;
}

static sbp_status slot_expert(const sbp_eval *eval, const slots *s, int64_t slot, int64_t experts,
                              int64_t *out) {
    *out = (int64_t)s->index->data[slot];
    if (*out < 0 || *out >= experts)
        return sbp_fail(eval->env->diag, SBP_INPUT, "%s: expert %lld of %lld in row %lld",
                        sbp_opcode_name(eval->op->code), (long long)*out, (long long)experts,
                        (long long)(slot / s->k));
    return SBP_OK;
}

sbp_status sbp_eval_expert_linear(const sbp_eval *eval) {
    slots s = slots_of(eval->in[X], eval->in[INDEX]);
    const sbp_tensor *w = eval->in[W], *bias = eval->in[BIAS];
    int64_t out = eval->out[0]->dim[2];
    for (int64_t slot = 0; slot < s.index->elems; slot++) {
        int64_t e = 0;
        SBP_TRY(slot_expert(eval, &s, slot, w->dim[0], &e));
        const double *x = slot_input(&s, slot), *we = w->data + e * out * s.in;
        for (int64_t o = 0; o < out; o++) {
            double sum = bias ? bias->data[e * out + o] : 0;
            for (int64_t i = 0; i < s.in; i++)
                sum += x[i] * we[out_in(eval->op) ? o * s.in + i : i * out + o];
            eval->out[0]->data[slot * out + o] = sum;
        }
    }
    return SBP_OK;
}

sbp_status sbp_eval_expert_linear_dw(const sbp_eval *eval) {
    slots s = slots_of(eval->in[DW_X], eval->in[DW_INDEX]);
    int64_t out = eval->in[DW_DY]->dim[2];
    for (int64_t slot = 0; slot < s.index->elems; slot++) {
        int64_t e = 0;
        SBP_TRY(slot_expert(eval, &s, slot, eval->out[0]->dim[0], &e));
        const double *x = slot_input(&s, slot), *dy = eval->in[DW_DY]->data + slot * out;
        double *dw = eval->out[0]->data + e * out * s.in;
        for (int64_t o = 0; o < out; o++)
            for (int64_t i = 0; i < s.in; i++)
                dw[out_in(eval->op) ? o * s.in + i : i * out + o] += dy[o] * x[i];
    }
    return SBP_OK;
}

/* ---- examples --------------------------------------------------------------------------------------- */

bool sbp_examples_expert_linear(int32_t index, sbp_example *out) {
    bool straight = index % 2 == 0;
    out->in[X] = sbp_example_float(index < 2 ? "f64[T,4]" : "f64[T,2,4]", -1, 1);
    out->in[INDEX] = sbp_example_int("i32[T,2]", 0, 3);
    out->in[W] = sbp_example_float(straight ? "f64[3,5,4]" : "f64[3,4,5]", -1, 1);
    out->in[BIAS] = sbp_example_float("f64[3,5]", -1, 1);
    if (index == 0)
        out->in[BIAS].fill = SBP_FILL_ABSENT;
    out->in_count = 4;
    out->attrs[0] = sbp_attr_symbol("layout", straight ? "out_in" : "in_out");
    out->attrs[1] = sbp_attr_bool("wide", index == 3);
    out->attr_count = 2;
    return index < 4;
}

bool sbp_examples_expert_linear_dw(int32_t index, sbp_example *out) {
    out->in[DW_DY] = sbp_example_float("f64[T,2,5]", -1, 1);
    out->in[DW_X] = sbp_example_float(index == 0 ? "f64[T,4]" : "f64[T,2,4]", -1, 1);
    out->in[DW_INDEX] = sbp_example_int("i32[T,2]", 0, 3);
    out->in_count = 3;
    out->attrs[0] = sbp_attr_int("experts", 3);
    out->attrs[1] = sbp_attr_symbol("layout", index == 0 ? "out_in" : "in_out");
    out->attr_count = 2;
    return index < 2;
}
