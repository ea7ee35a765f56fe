/* rules.c: broadcasting and index arithmetic for the rule files. */
#include "ir/graph/rules.h"

static bool dims_agree(sbp_dim a, sbp_dim b) {
    return sbp_dim_equal(a, b) || (a.symbol == SBP_ONE && a.n == 1) || (b.symbol == SBP_ONE && b.n == 1);
}

sbp_status sbp_rule_broadcast(const sbp_shape *shape, int32_t count, sbp_type *out) {
    int32_t rank = 0;
    sbp_symbol rows = SBP_ONE;
    for (int32_t i = 0; i < count; i++) {
        sbp_symbol r = sbp_type_rows(&shape->in[i]);
        SBP_SHAPE_REQUIRE(shape, 1, rows == SBP_ONE || r == SBP_ONE || rows == r,
                          "operands have row axes of different kinds: %s and %s", sbp_symbol_name(rows),
                          sbp_symbol_name(r));
        rows = r != SBP_ONE ? r : rows;
        rank = shape->in[i].rank > rank ? shape->in[i].rank : rank;
    }
    *out = (sbp_type){.dtype = shape->in[0].dtype, .rank = rank};
    for (int32_t d = 0; d < rank; d++)
        out->dim[d] = sbp_dim_const(1);
    for (int32_t i = 0; i < count; i++) {
        const sbp_type *in = &shape->in[i];
        int32_t shift = rank - in->rank;
        if (rows != SBP_ONE) {
            SBP_SHAPE_REQUIRE(
                shape, 2, sbp_type_rows(in) == SBP_ONE ? shift > 0 : shift == 0,
                "operand %d is %s: beside an operand with rows, one with rows needs the same rank (%d) "
                "and one without a lower rank",
                i, sbp_shape_text(in), rank);
        }
        for (int32_t d = 0; d < in->rank; d++) {
            sbp_dim *at = &out->dim[d + shift];
            SBP_SHAPE_REQUIRE(shape, 3, dims_agree(*at, in->dim[d]),
                              "dimension %d of operand %d differs: %s against %lld", d, i, sbp_shape_text(in),
                              (long long)at->n);
            if (at->symbol == SBP_ONE && at->n == 1)
                *at = in->dim[d];
        }
    }
    return SBP_OK;
}

sbp_status sbp_rule_with_state(sbp_shape *shape, sbp_symbol rows) {
    int32_t operand = sbp_opcode_state(shape->op->code);
    sbp_type *state = &shape->out[sbp_opcode_results(shape->op->code) - 1];
    bool given = shape->present[operand];
    SBP_TRY(sbp_opcode_rules(shape->op->code)->state(shape, state));
    SBP_SHAPE_REQUIRE(shape, 9,
                      given ? sbp_rule_of_chunk(rows) && sbp_type_equal(&shape->in[operand], state)
                            : sbp_rule_of_batch(rows),
                      "%s rows with %s %s; of a chunk there is a state %s", sbp_symbol_name(rows),
                      given ? "a state" : "no state", given ? sbp_shape_text(&shape->in[operand]) : "",
                      sbp_shape_text(state));
    return SBP_OK;
}

int64_t sbp_rule_broadcast_index(const sbp_tensor *in, const sbp_tensor *out, const int64_t *index) {
    int64_t flat = 0;
    int32_t shift = out->type.rank - in->type.rank;
    for (int32_t d = 0; d < in->type.rank; d++)
        flat = flat * in->dim[d] + (in->dim[d] == 1 ? 0 : index[d + shift]);
    return flat;
}

void sbp_rule_next_index(const sbp_tensor *tensor, int64_t *index) {
    for (int32_t d = tensor->type.rank - 1; d >= 0; d--) {
        if (++index[d] < tensor->dim[d])
            return;
        index[d] = 0;
    }
}

sbp_dtype sbp_rule_wide(sbp_dtype dtype) {
    return dtype == SBP_F64 ? SBP_F64 : SBP_F32;
}

sbp_dtype sbp_cotangent_dtype(const sbp_type *type) {
    return sbp_type_rows(type) == SBP_ONE ? sbp_rule_wide(type->dtype) : type->dtype;
}

double sbp_rule_rounded(const sbp_eval *eval, sbp_dtype dtype, double value) {
    bool wide = dtype == SBP_F32 || dtype == SBP_F64;
    return eval->env->round && !wide ? sbp_round_to(dtype, value) : value;
}

sbp_axis_split sbp_rule_split_axis(const sbp_tensor *tensor, int32_t axis) {
    sbp_axis_split split = {1, tensor->dim[axis], 1};
    for (int32_t d = 0; d < tensor->type.rank; d++)
        if (d < axis)
            split.outer *= tensor->dim[d];
        else if (d > axis)
            split.inner *= tensor->dim[d];
    return split;
}
