/* random.c: numbers that look random.
 *
 *   random   uniform in [0, 1), 24 bits: a function of the key, the stream and where an element stands
 *            (SBP_RK_RANDOM of rowkernel.h), f32 of the shape that the attributes give
 *
 * stream: one number, an integer; the same key gives every stream numbers of its own. key: a scalar of the
 * step. row and head: numbers per row, integers, that stand for where it is: numbers that are a document's,
 * wherever it is packed, are of its position and number. Equal operands give equal numbers: whoever wants
 * others takes another key or stream. */
#include "ir/graph/rules.h"

sbp_status sbp_shape_random(sbp_shape *shape) {
    const sbp_type *stream = &shape->in[0], *key = &shape->in[1];
    sbp_symbol rows = sbp_rule_rows_attr(shape->op);
    shape->out[0].dtype = SBP_F32;
    SBP_TRY(sbp_rule_with_dims(shape, rows, &shape->out[0]));
    SBP_SHAPE_REQUIRE(shape, 3, rows != SBP_ONE, "no rows");
    SBP_SHAPE_REQUIRE(shape, 4,
                      stream->dtype == SBP_F32 && sbp_type_rows(stream) == SBP_ONE &&
                          sbp_type_row_elems(stream) == 1,
                      "the stream is %s, not one f32", sbp_shape_text(stream));
    SBP_SHAPE_REQUIRE(shape, 5, key->dtype == SBP_F64 && key->rank == 0, "the key is %s, not f64[]",
                      sbp_shape_text(key));
    SBP_SHAPE_REQUIRE(shape, 6, shape->present[2] == shape->present[3], "row and head come together");
    for (int32_t k = 2; k < 4 && shape->present[k]; k++)
        SBP_SHAPE_REQUIRE(shape, 7,
                          shape->in[k].dtype == SBP_F32 && shape->in[k].rank == 1 &&
                              sbp_type_rows(&shape->in[k]) == rows && shape->out[0].rank <= 2,
                          "%s is %s, not one f32 per row of rows without heads", k == 2 ? "row" : "head",
                          sbp_shape_text(&shape->in[k]));
    return SBP_OK;
}

SBP_RULE_SEQ_ROW(random)

sbp_status sbp_vjp_random(sbp_vjp *vjp) {
    (void)vjp;
    return SBP_OK;
}

/* Rows of a chunk are counted from the first row of the sequence; the other axes but the last are the heads.
 */
sbp_status sbp_eval_random(const sbp_eval *eval) {
    sbp_tensor *out = eval->out[0];
    sbp_symbol rows = sbp_type_rows(&out->type);
    int64_t row0 = rows == SBP_C || rows == SBP_H ? eval->env->row0 : 0;
    int64_t row_elems = sbp_type_row_elems(&out->type);
    int64_t n = out->type.rank > 1 ? out->dim[out->type.rank - 1] : 1;
    for (int64_t i = 0; i < out->elems; i++) {
        int64_t r = i / row_elems, row = row0 + r, head = i % row_elems / n;
        if (eval->in[2]) {
            row = sbp_random_word(eval->in[2]->data[r]);
            head = sbp_random_word(eval->in[3]->data[r]);
        }
        out->data[i] = sbp_random_at(eval->in[1]->data[0], eval->in[0]->data[0], row, head, i % n);
    }
    return SBP_OK;
}

bool sbp_examples_random(int32_t index, sbp_example *out) {
    static const int64_t dims[] = {3, 5};
    if (index >= 4)
        return false;
    out->in[0] = sbp_example_int(index == 1 ? "f32[1]" : "f32[]", 0, 9);
    out->in[1] = sbp_example_int("f64[]", 0, 99);
    out->in_count = index == 3 ? 4 : 2;
    out->in[2] = sbp_example_int("f32[T]", 0, 9);
    out->in[3] = sbp_example_int("f32[T]", 0, 9);
    out->attrs[0] = sbp_attr_list("dims", dims + index % 2, index == 3 ? 1 : 2 - index);
    out->attrs[1] = sbp_attr_symbol("rows", "T");
    out->attr_count = 2;
    return true;
}
