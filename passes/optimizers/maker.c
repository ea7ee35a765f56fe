/* maker.c: operands of an update, and how its values are rounded. */
#include "passes/optimizers/maker.h"

sbp_value sbp_maker_operand(sbp_update_maker *m, sbp_update_operand operand) {
    static const char *const names[] = {
        [SBP_UPDATE_GRAD] = "grad", [SBP_UPDATE_CLIP] = "clip", [SBP_UPDATE_PARAM] = "param"};
    sbp_update *u = m->update;
    if (u->operand_count >= SBP_MAX_UPDATE_OPERANDS) {
        m->rule.builder.status =
            sbp_fail(m->rule.p->diag, SBP_INTERNAL, "the rule '%s' has too many operands", m->rule.code.name);
        return SBP_NO_VALUE;
    }
    u->operands[u->operand_count++] = operand;
    const char *name = operand.suffix ? operand.suffix : names[operand.kind];
    return operand.kind == SBP_UPDATE_CLIP
               ? sbp_rule_number(&m->rule, name, operand.dtype)
               : sbp_rule_blocks(&m->rule, name, operand.access, operand.dtype, operand.rows, operand.cols,
                                 operand.cols > 1 ? m->block : 0);
}

sbp_value sbp_maker_like_param(sbp_update_maker *m, sbp_update_operand_kind kind, const char *suffix,
                               sbp_dtype dtype, sbp_access access) {
    return sbp_maker_operand(m, (sbp_update_operand){.kind = kind,
                                                     .suffix = suffix,
                                                     .dtype = dtype,
                                                     .rows = m->rows,
                                                     .cols = m->cols,
                                                     .access = access});
}

sbp_value sbp_maker_round(sbp_rule *r, sbp_value value, const char *name) {
    sbp_builder *b = &r->builder;
    sbp_value stream = sbp_build_cast(b, sbp_build_scalar(b, SBP_RULE_STREAM), SBP_F32),
              key = sbp_build_scalar(b, sbp_arena_printf(r->p->arena, SBP_RANDOM_PREFIX "%s", name));
    const sbp_type like = *sbp_build_type(b, value);
    return sbp_build2(b, SBP_OP_bf16_random, value, sbp_build_random(b, &like, stream, key));
}
