/* expand: replaces composites by primitives, with the expand rule of each op.
 *
 * requires  functions that verify
 * preserves values of all results, names of the results of expanded ops
 * breaks    nothing; after `autodiff` it runs once more for ops that keep a derivative of their own (late)
 */
#include "passes/lower/passes.h"

#include "ir/graph/op.h"
#include "passes/graph/rewrite.h"

static bool expands(sbp_opcode code, bool late) {
    sbp_op_class class = sbp_opcode_class(code);
    return class == SBP_CLASS_COMPOSITE || (late && class == SBP_CLASS_LATE);
}

sbp_status sbp_expand_func(sbp_module *module, const sbp_func *func, bool late, sbp_diag *diag,
                           sbp_func **out) {
    sbp_rewrite rewrite;
    sbp_rewrite_begin(&rewrite, module, func, diag);
    for (int32_t i = 0; i < func->op_count; i++) {
        const sbp_op *op = &func->ops[i];
        if (!expands(op->code, late)) {
            SBP_TRY(sbp_rewrite_copy(&rewrite, op));
            continue;
        }
        sbp_value operands[SBP_MAX_OPERANDS];
        sbp_expand expand = {.builder = &rewrite.builder, .op = *op, .in = operands};
        sbp_rewrite_operands(&rewrite, op, operands);
        rewrite.builder.node = op->node;
        SBP_TRY(sbp_opcode_rules(op->code)->expand(&expand));
        for (int32_t r = 0; r < op->result_count; r++)
            sbp_rewrite_replace(&rewrite, op->results[r], expand.out[r]);
    }
    *out = sbp_rewrite_end(&rewrite);
    return rewrite.builder.status;
}

sbp_status sbp_pass_expand(const sbp_pass_input *in, sbp_module *module) {
    for (int32_t i = 0; i < module->func_count; i++)
        SBP_TRY(sbp_expand_func(module, module->funcs[i], false, in->diag, &module->funcs[i]));
    return SBP_OK;
}
