/* context.c: what ranks that have a micro-batch together exchange (ir/context.h).
 *
 *   exchange   to heads: x [T, n, d], rows of this rank and all heads, becomes y [W, slots, d], rows of all
 *              ranks and this rank's heads; to rows: x [W, slots, d] becomes y [T, n, d], where several
 *              ranks have the same head their sum. n is kv_heads with `keys`, else heads. In a chunk function
 *              C and D rows. Each way is the transpose of the other.
 *
 * The evaluator is one process, so it exchanges among one rank only: y is x. */
#include "ir/context.h"

#include <string.h>

#include "ir/ops/rules.h"

static bool to_heads(const sbp_op *op) {
    return sbp_op_symbol_is(op, "to", "heads");
}

static sbp_context_heads heads_of(const sbp_op *op) {
    return (sbp_context_heads){sbp_op_int(op, "heads"), sbp_op_int(op, "kv_heads"), 1,
                               sbp_op_int(op, "keys") != 0};
}

sbp_status sbp_shape_exchange(sbp_shape *shape) {
    const sbp_type *x = &shape->in[0];
    const sbp_op *op = shape->op;
    const int64_t limit = INT64_C(1) << 24;
    sbp_context_heads heads = heads_of(op);
    int64_t ranks = sbp_op_int(op, "ranks");
    sbp_symbol rows = sbp_type_rows(x);
    SBP_SHAPE_REQUIRE(shape, 1, to_heads(op) || sbp_op_symbol_is(op, "to", "rows"),
                      "neither to heads nor to rows");
    SBP_SHAPE_REQUIRE(shape, 2,
                      ranks > 0 && ranks <= limit && heads.heads > 0 && heads.heads <= limit &&
                          heads.kv_heads > 0 && heads.heads % heads.kv_heads == 0,
                      "%lld heads, %lld key heads and %lld ranks", (long long)heads.heads,
                      (long long)heads.kv_heads, (long long)ranks);
    int64_t all = sbp_context_count(&heads), own = sbp_context_slots(&heads, ranks);
    SBP_SHAPE_REQUIRE(shape, 3,
                      x->rank == 3 && x->dim[1].n == (to_heads(op) ? all : own) &&
                          (to_heads(op) ? rows == SBP_T || rows == SBP_C : rows == SBP_W || rows == SBP_D) &&
                          sbp_dtype_is_float(x->dtype),
                      "x is %s, rows of %lld heads expected", sbp_shape_text(x),
                      (long long)(to_heads(op) ? all : own));
    sbp_symbol there = rows == SBP_T ? SBP_W : rows == SBP_C ? SBP_D : rows == SBP_W ? SBP_T : SBP_C;
    shape->out[0] = *x;
    shape->out[0].dim[0] = sbp_dim_symbol(there);
    shape->out[0].dim[1] = sbp_dim_const(to_heads(op) ? own : all);
    return SBP_OK;
}

SBP_RULE_SEQ_ROW(exchange)

sbp_status sbp_vjp_exchange(sbp_vjp *vjp) {
    sbp_builder *b = vjp->builder;
    const sbp_op *op = &vjp->op;
    if (vjp->need[0])
        vjp->din[0] = sbp_build(b, SBP_OP_exchange, NULL, &vjp->dout[0], 1,
                                (sbp_attr[]){sbp_attr_symbol("to", to_heads(op) ? "rows" : "heads"),
                                             sbp_attr_int("heads", sbp_op_int(op, "heads")),
                                             sbp_attr_int("kv_heads", sbp_op_int(op, "kv_heads")),
                                             sbp_attr_bool("keys", sbp_op_int(op, "keys") != 0),
                                             sbp_attr_int("ranks", sbp_op_int(op, "ranks"))},
                                5, NULL);
    return b->status;
}

sbp_status sbp_eval_exchange(const sbp_eval *eval) {
    if (sbp_op_int(eval->op, "ranks") != 1)
        return sbp_fail(eval->env->diag, SBP_INTERNAL, "exchange: the evaluator is one rank");
    memcpy(eval->out[0]->data, eval->in[0]->data, (size_t)eval->in[0]->elems * sizeof(double));
    return SBP_OK;
}

bool sbp_examples_exchange(int32_t index, sbp_example *out) {
    bool keys = index == 1 || index == 3, heads = index < 2;
    static const char *const types[] = {"f64[T,4,2]", "f64[T,2,3]", "f64[W,4,2]", "f64[W,2,3]"};
    if (index >= SBP_COUNT(types))
        return false;
    out->in[0] = sbp_example_float(types[index], -1, 1);
    out->in_count = 1;
    out->attrs[0] = sbp_attr_symbol("to", heads ? "heads" : "rows");
    out->attrs[1] = sbp_attr_int("heads", 4);
    out->attrs[2] = sbp_attr_int("kv_heads", 2);
    out->attrs[3] = sbp_attr_bool("keys", keys);
    out->attrs[4] = sbp_attr_int("ranks", 1);
    out->attr_count = 5;
    return true;
}
