/* gather.c: rows of a table by number.
 *
 *   gather       y[r] = table[index[r]]; table [V, d], index i32 [T], y [T, d]
 *   scatter_add  dtable[v] = sum of dy[r] over rows with index[r] = v; dtable [rows, d] in the wide type
 */
#include "ir/graph/rules.h"

static sbp_status check_index(const sbp_shape *shape) {
    SBP_SHAPE_REQUIRE(shape, 1,
                      shape->in[1].rank == 1 && shape->in[1].dtype == SBP_I32 &&
                          sbp_type_rows(&shape->in[1]) != SBP_ONE,
                      "index is %s; one i32 per row expected", sbp_shape_text(&shape->in[1]));
    return SBP_OK;
}

sbp_status sbp_shape_gather(sbp_shape *shape) {
    const sbp_type *table = &shape->in[0];
    SBP_TRY(check_index(shape));
    SBP_SHAPE_REQUIRE(shape, 2,
                      table->rank == 2 && sbp_type_rows(table) == SBP_ONE && sbp_dtype_is_float(table->dtype),
                      "table is %s; a matrix expected", sbp_shape_text(table));
    shape->out[0] = (sbp_type){.dtype = table->dtype, .rank = 2, .dim = {shape->in[1].dim[0], table->dim[1]}};
    return SBP_OK;
}

SBP_RULE_SEQ_ROW(gather)

sbp_status sbp_vjp_gather(sbp_vjp *vjp) {
    sbp_builder *b = vjp->builder;
    if (vjp->need[0])
        vjp->din[0] =
            sbp_build(b, SBP_OP_scatter_add, NULL, (sbp_value[]){vjp->dout[0], vjp->in[1]}, 2,
                      (sbp_attr[]){sbp_attr_int("rows", sbp_build_type(b, vjp->in[0])->dim[0].n)}, 1, NULL);
    return b->status;
}

static sbp_status table_row(const sbp_eval *eval, int64_t row, int64_t rows, int64_t *out) {
    *out = (int64_t)eval->in[1]->data[row];
    if (*out < 0 || *out >= rows)
        return sbp_fail(eval->env->diag, SBP_INPUT, "%s: index %lld of %lld in row %lld",
                        sbp_opcode_name(eval->op->code), (long long)*out, (long long)rows, (long long)row);
    return SBP_OK;
}

sbp_status sbp_eval_gather(const sbp_eval *eval) {
    const sbp_tensor *table = eval->in[0];
    int64_t d = table->dim[1];
    for (int64_t r = 0; r < eval->out[0]->dim[0]; r++) {
        int64_t v = 0;
        SBP_TRY(table_row(eval, r, table->dim[0], &v));
        for (int64_t j = 0; j < d; j++)
            eval->out[0]->data[r * d + j] = table->data[v * d + j];
    }
    return SBP_OK;
}

bool sbp_examples_gather(int32_t index, sbp_example *out) {
    out->in[0] = sbp_example_float("f64[6,3]", -1, 1);
    out->in[1] = sbp_example_int("i32[T]", 0, 6);
    out->in_count = 2;
    return index == 0;
}

sbp_status sbp_shape_scatter_add(sbp_shape *shape) {
    const sbp_type *dy = &shape->in[0];
    SBP_TRY(check_index(shape));
    int64_t rows = sbp_op_int(shape->op, "rows");
    SBP_SHAPE_REQUIRE(shape, 2,
                      dy->rank == 2 && sbp_dim_equal(dy->dim[0], shape->in[1].dim[0]) &&
                          sbp_dtype_is_float(dy->dtype),
                      "dy is %s beside index %s", sbp_shape_text(dy), sbp_shape_text(&shape->in[1]));
    SBP_SHAPE_REQUIRE(shape, 3, rows >= 0, "%lld rows", (long long)rows);
    shape->out[0] =
        (sbp_type){.dtype = sbp_rule_wide(dy->dtype), .rank = 2, .dim = {sbp_dim_const(rows), dy->dim[1]}};
    return SBP_OK;
}

SBP_RULE_SEQ_REDUCE(scatter_add)

sbp_status sbp_vjp_scatter_add(sbp_vjp *vjp) {
    if (vjp->need[0])
        vjp->din[0] = sbp_build2(vjp->builder, SBP_OP_gather, vjp->dout[0], vjp->in[1]);
    return vjp->builder->status;
}

sbp_status sbp_eval_scatter_add(const sbp_eval *eval) {
    const sbp_tensor *dy = eval->in[0];
    int64_t d = dy->dim[1];
    for (int64_t r = 0; r < dy->dim[0]; r++) {
        int64_t v = 0;
        SBP_TRY(table_row(eval, r, eval->out[0]->dim[0], &v));
        for (int64_t j = 0; j < d; j++)
            eval->out[0]->data[v * d + j] += dy->data[r * d + j];
    }
    return SBP_OK;
}

bool sbp_examples_scatter_add(int32_t index, sbp_example *out) {
    out->in[0] = sbp_example_float("f64[T,3]", -1, 1);
    out->in[1] = sbp_example_int("i32[T]", 0, 6);
    out->in_count = 2;
    out->attrs[0] = sbp_attr_int("rows", 6);
    out->attr_count = 1;
    return index == 0;
}
