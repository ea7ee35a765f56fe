/* rowop.c: the rules of every scalar function of rowops.def at once. */
#include "ir/graph/rules.h"

#include <stdlib.h>
#include <string.h>

sbp_status sbp_shape_rowop(sbp_shape *shape) {
    sbp_rowop op = sbp_opcode_rowop(shape->op->code);
    int arity = sbp_rowop_arity(op);
    SBP_TRY(sbp_rule_broadcast(shape, arity, &shape->out[0]));
    bool logical = op == SBP_ROWOP_and || op == SBP_ROWOP_or || op == SBP_ROWOP_not;
    bool compares = op == SBP_ROWOP_eq || op == SBP_ROWOP_lt || op == SBP_ROWOP_le;
    int first = op == SBP_ROWOP_select ? 1 : 0; /* operand 0 of select is a truth value */
    sbp_dtype dtype = shape->in[first].dtype;
    for (int i = first; i < arity; i++)
        SBP_SHAPE_REQUIRE(shape, 4, shape->in[i].dtype == dtype, "operands differ in type: %s and %s",
                          sbp_shape_text(&shape->in[first]), sbp_shape_text(&shape->in[i]));
    if (op == SBP_ROWOP_select)
        SBP_SHAPE_REQUIRE(shape, 5, shape->in[0].dtype == SBP_BOOL, "the condition is %s, not bool",
                          sbp_shape_text(&shape->in[0]));
    else
        SBP_SHAPE_REQUIRE(shape, 6, logical ? dtype == SBP_BOOL : sbp_dtype_is_float(dtype),
                          "operand is %s, %s expected", sbp_shape_text(&shape->in[0]),
                          logical ? "bool" : "a float type");
    shape->out[0].dtype = logical || compares ? SBP_BOOL : dtype;
    return SBP_OK;
}

SBP_RULE_SEQ_ROW(rowop)

sbp_status sbp_eval_rowop(const sbp_eval *eval) {
    sbp_rowop op = sbp_opcode_rowop(eval->op->code);
    sbp_tensor *out = eval->out[0];
    int64_t index[SBP_MAX_RANK] = {0};
    for (int64_t i = 0; i < out->elems; i++) {
        double v[3] = {0};
        for (int k = 0; k < sbp_rowop_arity(op); k++)
            v[k] = eval->in[k]->data[sbp_rule_broadcast_index(eval->in[k], out, index)];
        out->data[i] = sbp_rowop_eval(op, v[0], v[1], v[2]);
        sbp_rule_next_index(out, index);
    }
    return SBP_OK;
}

/* ---- derivatives: the expressions of rowops.def --------------------------------------------------- */

typedef struct expression {
    sbp_vjp *vjp;
    const char *at;
    sbp_dtype dtype;
} expression;

/* name(args) | a | b | c | y | dy | number. The text is ours: malformed text is our bug. */
static sbp_value build_expression(expression *e) {
    sbp_builder *b = e->vjp->builder;
    size_t length = strspn(e->at, "abcdefghijklmnopqrstuvwxyz_");
    if (length == 0) {
        char *end;
        double number = strtod(e->at, &end);
        e->at = end;
        return sbp_build_const(b, e->dtype, number);
    }
    const char *word = e->at;
    e->at += length;
    if (*e->at != '(') {
        sbp_value v = length == 2 ? e->vjp->dout[0] : *word == 'y' ? e->vjp->out[0] : e->vjp->in[*word - 'a'];
        return sbp_build_type(b, v)->dtype == SBP_BOOL ? v : sbp_build_cast(b, v, e->dtype);
    }
    char name[32] = {0};
    memcpy(name, word, length < sizeof name ? length : sizeof name - 1);
    sbp_value args[3];
    int32_t count = 0;
    do {
        e->at++;
        args[count++] = build_expression(e);
    } while (*e->at == ',');
    e->at++; /* ) */
    return sbp_build(b, sbp_opcode_from_name(name), NULL, args, count, NULL, 0, NULL);
}

/* In the wide type, so that only the cotangent itself is rounded. */
sbp_status sbp_vjp_rowop(sbp_vjp *vjp) {
    sbp_rowop op = sbp_opcode_rowop(vjp->op.code);
    sbp_builder *b = vjp->builder;
    const char *text = sbp_rowop_vjp(op);
    for (int k = 0; k < sbp_rowop_arity(op); k++) {
        size_t length = strcspn(text, ";");
        if (vjp->need[k] && !(length == 1 && *text == '0')) {
            sbp_dtype wide = sbp_rule_wide(sbp_build_type(b, vjp->out[0])->dtype);
            expression e = {.vjp = vjp, .at = text, .dtype = wide};
            sbp_value d = build_expression(&e);
            /* an expression such as "dy" has the type of the result; one of constants and a may be smaller */
            sbp_type in = *sbp_build_type(b, vjp->in[k]);
            d = sbp_build_broadcast(b, d, sbp_build_type(b, vjp->out[0]));
            vjp->din[k] = sbp_vjp_reduce_to(b, d, &in);
        }
        text += length + (text[length] == ';');
    }
    return b->status;
}

sbp_value sbp_vjp_reduce_to(sbp_builder *b, sbp_value g, const sbp_type *type) {
    if (b->status != SBP_OK)
        return SBP_NO_VALUE;
    if (sbp_type_rows(sbp_build_type(b, g)) != SBP_ONE && sbp_type_rows(type) == SBP_ONE) {
        sbp_dtype wide = sbp_rule_wide(sbp_build_type(b, g)->dtype);
        g = sbp_build(b, SBP_OP_sum_rows, NULL, &g, 1, (sbp_attr[]){sbp_attr_int("rank", type->rank)}, 1,
                      NULL);
        g = sbp_build_cast(b, g, wide); /* a single number is summed in fp64 */
    }
    while (b->status == SBP_OK &&
           sbp_build_type(b, g)->rank > type->rank) { /* without rows: drop leading axes */
        sbp_type t = *sbp_build_type(b, g);
        g = sbp_build(b, SBP_OP_row_sum, NULL, &g, 1, (sbp_attr[]){sbp_attr_int("axis", -t.rank)}, 1, NULL);
        int64_t dims[SBP_MAX_RANK];
        for (int32_t d = 1; d < t.rank; d++)
            dims[d - 1] = t.dim[d].n;
        g = sbp_build_reshape(b, g, dims, t.rank - 1);
    }
    for (int32_t d = 0; d < type->rank && b->status == SBP_OK; d++)
        if (!sbp_dim_equal(sbp_build_type(b, g)->dim[d], type->dim[d]))
            g = sbp_build(b, SBP_OP_row_sum, NULL, &g, 1, (sbp_attr[]){sbp_attr_int("axis", d - type->rank)},
                          1, NULL);
    return g;
}

bool sbp_examples_rowop(sbp_opcode code, int32_t index, sbp_example *out) {
    sbp_rowop op = sbp_opcode_rowop(code);
    bool logical = op == SBP_ROWOP_and || op == SBP_ROWOP_or || op == SBP_ROWOP_not;
    bool positive =
        op == SBP_ROWOP_log || op == SBP_ROWOP_sqrt || op == SBP_ROWOP_rsqrt || op == SBP_ROWOP_div;
    double lo = positive ? 0.5 : -2, hi = 2;
    static const char *const shapes[][3] = {
        {"f64[T,6]", "f64[T,6]", "f64[T,6]"},   {"f64[T,3,4]", "f64[T,1,4]", "f64[4]"},
        {"f64[T,1]", "f64[T,5]", "f64[]"},      {"f64[3,4]", "f64[4]", "f64[3,1]"},
        {"f64[5]", "f64[T,2,5]", "f64[T,1,1]"}, {"f64[T]", "f64[]", "f64[T]"},
    };
    if (index >= SBP_COUNT(shapes))
        return false;
    out->in_count = sbp_rowop_arity(op);
    for (int k = 0; k < out->in_count; k++) {
        bool truth = logical || (op == SBP_ROWOP_select && k == 0);
        out->in[k] =
            truth ? sbp_example_int(shapes[index][k], 0, 2) : sbp_example_float(shapes[index][k], lo, hi);
        if (truth)
            out->in[k].type.dtype = SBP_BOOL;
    }
    return true;
}
