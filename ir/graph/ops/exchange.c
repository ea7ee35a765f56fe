/* exchange.c: what ranks that have a micro-batch together exchange (ir/base/context.h).
 *
 *   exchange   to heads: x [T, n, d], rows of this rank and all heads, becomes y [W, slots, d], rows of all
 *              ranks and this rank's heads; to rows: x [W, slots, d] becomes y [T, n, d], where several
 *              ranks have the same head their sum. n is kv_heads with `keys`, else heads. In a chunk function
 *              C and D rows. Each way is the transpose of the other.
 *              to all: x [T, n, d], rows of this rank, becomes y [W, n, d], those of all ranks; to own: the
 *              sum of all ranks' x [W, n, d], of which y [T, n, d] are this rank's rows. A rank
 *              without a head has 0.
 *
 * The evaluator is one process, so it exchanges among one rank only: y is x. */
#include "ir/base/context.h"

#include <string.h>

#include "ir/graph/rules.h"

static bool to_heads(const sbp_op *op) {
    return sbp_op_symbol_is(op, "to", "heads");
}

/* Rows of all heads: nothing of them changes. */
static bool of_rows(const sbp_op *op) {
    return sbp_op_symbol_is(op, "to", "all") || sbp_op_symbol_is(op, "to", "own");
}

/* From rows of this rank to those of all. */
static bool outward(const sbp_op *op) {
    return to_heads(op) || sbp_op_symbol_is(op, "to", "all");
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
    SBP_SHAPE_REQUIRE(shape, 1, to_heads(op) || sbp_op_symbol_is(op, "to", "rows") || of_rows(op),
                      "neither to heads nor to rows, to all or to own");
    SBP_SHAPE_REQUIRE(shape, 2,
                      ranks > 0 && ranks <= limit &&
                          (of_rows(op) ? heads.heads == 0 && heads.kv_heads == 0 && !heads.keys
                                       : heads.heads > 0 && heads.heads <= limit && heads.kv_heads > 0 &&
                                             heads.heads % heads.kv_heads == 0),
                      "%lld heads, %lld key heads and %lld ranks", (long long)heads.heads,
                      (long long)heads.kv_heads, (long long)ranks);
    int64_t all = of_rows(op) ? x->dim[1].n : sbp_context_count(&heads);
    int64_t own = of_rows(op) ? x->dim[1].n : sbp_context_slots(&heads, ranks);
    SBP_SHAPE_REQUIRE(shape, 3,
                      x->rank == 3 && x->dim[1].n == (outward(op) ? all : own) &&
                          (outward(op) ? rows == SBP_T || rows == SBP_C : rows == SBP_W || rows == SBP_D) &&
                          sbp_dtype_is_float(x->dtype),
                      "x is %s, rows of %lld heads expected", sbp_shape_text(x),
                      (long long)(outward(op) ? all : own));
    sbp_symbol there = rows == SBP_T ? SBP_W : rows == SBP_C ? SBP_D : rows == SBP_W ? SBP_T : SBP_C;
    shape->out[0] = *x;
    shape->out[0].dim[0] = sbp_dim_symbol(there);
    shape->out[0].dim[1] = sbp_dim_const(outward(op) ? own : all);
    return SBP_OK;
}

SBP_RULE_SEQ_ROW(exchange)

static const char *back_of(const sbp_op *op) {
    if (of_rows(op))
        return outward(op) ? "own" : "all";
    return outward(op) ? "rows" : "heads";
}

sbp_status sbp_vjp_exchange(sbp_vjp *vjp) {
    sbp_builder *b = vjp->builder;
    const sbp_op *op = &vjp->op;
    if (vjp->need[0])
        vjp->din[0] = sbp_build(b, SBP_OP_exchange, NULL, &vjp->dout[0], 1,
                                (sbp_attr[]){sbp_attr_symbol("to", back_of(op)),
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
    bool keys = index == 1 || index == 3, rows = index > 3;
    static const char *const ways[] = {"heads", "heads", "rows", "rows", "all", "own"};
    static const char *const types[] = {"f64[T,4,2]", "f64[T,2,3]", "f64[W,4,2]",
                                        "f64[W,2,3]", "f64[T,3,2]", "f64[W,1,4]"};
    if (index >= SBP_COUNT(types))
        return false;
    out->in[0] = sbp_example_float(types[index], -1, 1);
    out->in_count = 1;
    out->attrs[0] = sbp_attr_symbol("to", ways[index]);
    out->attrs[1] = sbp_attr_int("heads", rows ? 0 : 4);
    out->attrs[2] = sbp_attr_int("kv_heads", rows ? 0 : 2);
    out->attrs[3] = sbp_attr_bool("keys", keys);
    out->attrs[4] = sbp_attr_int("ranks", 1);
    out->attr_count = 5;
    return true;
}
