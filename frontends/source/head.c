/* head.c: the end of @model. */
#include "frontends/source/head.h"
#include "ir/program/contract.h"

static sbp_value at_temperature(sbp_builder *b, sbp_value logits) {
    sbp_dtype wide = sbp_build_type(b, logits)->dtype;
    sbp_value t = sbp_build_cast(b, sbp_build_scalar(b, sbp_scalar_names[SBP_SCALAR_TEMPERATURE]), wide);
    sbp_value out = sbp_build2(b, SBP_OP_div, logits, t);
    sbp_build_name(b, out, "tempered_logits");
    return out;
}

/* ---- the value head ----------------------------------------------------------------------------------- */

/* The product that logits are made of; -1: none. What comes behind it is by element: a scale, a softcap. */
static int32_t find_product(const sbp_func *f, sbp_value logits) {
    for (int32_t i = f->values[logits].op; i >= 0; i = f->values[f->ops[i].operands[0]].op)
        if (f->ops[i].code == SBP_OP_linear)
            return i;
    return -1;
}

/* deviation: of a random start; 0: it begins as zeros. */
static sbp_value add_param(sbp_builder *b, const char *name, sbp_dtype dtype, int32_t rank,
                           const int64_t *dims, double deviation) {
    sbp_param param = {.name = name,
                       .type = {.dtype = dtype, .rank = rank},
                       .storage = dtype,
                       .trainable = true,
                       .decay = deviation > 0,
                       .init = deviation > 0 ? SBP_INIT_NORMAL : SBP_INIT_ZEROS,
                       .init_std = deviation,
                       .pad_row = -1,
                       .fresh = true};
    for (int32_t d = 0; d < rank; d++)
        param.type.dim[d] = sbp_dim_const(dims[d]);
    return sbp_build_param(b, sbp_module_add_param(b->module, &param));
}

/* [T] */
static sbp_value build_value(sbp_builder *b, sbp_value logits) {
    int32_t product = find_product(b->func, logits);
    if (product < 0) {
        b->status =
            sbp_fail(b->diag, SBP_INPUT, "the objective needs a value head, but the logits are not a matmul");
        return SBP_NO_VALUE;
    }
    const char *node = b->node;
    sbp_value hidden = b->func->ops[product].operands[0];
    sbp_type type = *sbp_build_type(b, hidden);
    b->node = "v_head";
    sbp_value w = add_param(b, "v_head.summary.weight", type.dtype, 2,
                            (const int64_t[]){1, type.dim[type.rank - 1].n}, 0.02);
    sbp_value bias = add_param(b, "v_head.summary.bias", type.dtype, 1, (const int64_t[]){1}, 0);
    sbp_value v = sbp_build(b, SBP_OP_linear, "v_head", (sbp_value[]){hidden, w}, 2,
                            (sbp_attr[]){sbp_attr_bool("wide", true)}, 1, NULL);
    sbp_dtype wide = type.dtype == SBP_F64 ? SBP_F64 : SBP_F32;
    v = sbp_build2(b, SBP_OP_add, v, sbp_build_cast(b, bias, wide));
    v = sbp_build_reshape(b, v, NULL, 0);
    b->node = node;
    return v;
}

/* ------------------------------------------------------------------------------------------------------- */

static void add_result(sbp_builder *b, sbp_value value, const char *name) {
    if (b->status != SBP_OK)
        return;
    sbp_build_name(b, value, name);
    sbp_func_add_result(b->func, value, SBP_RESULT_VALUE, SBP_NO_VALUE, name);
}

void sbp_head_finish(sbp_builder *b, sbp_head_options options, sbp_value logits) {
    static const char *const names[] = {"logp", "entropy", "hit"};
    sbp_value out[4], value = SBP_NO_VALUE;
    if (b->status == SBP_OK && options.value)
        value = build_value(b, logits);
    if (b->status == SBP_OK && options.temperature)
        logits = at_temperature(b, logits);
    if (b->status != SBP_OK)
        return;
    sbp_value label = sbp_build_row(b, sbp_data_columns[SBP_DATA_LABEL].name, SBP_I32, SBP_T);
    sbp_build(b, SBP_OP_log_prob, "logp", (sbp_value[]){logits, label}, 2, NULL, 0, out);
    for (int32_t i = 0; i < SBP_COUNT(names) && b->status == SBP_OK; i++) {
        if (i > 0)
            sbp_build_name(b, out[i], names[i]);
        sbp_func_add_result(b->func, out[i], SBP_RESULT_VALUE, SBP_NO_VALUE, names[i]);
    }
    if (options.value)
        add_result(b, value, "value");
}
