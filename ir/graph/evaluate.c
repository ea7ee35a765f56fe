/* evaluate.c: the double-precision evaluator. */
#include "ir/graph/evaluate.h"

#include <string.h>

#include "ir/graph/rules.h"

sbp_tensor *sbp_tensor_create(sbp_arena *arena, const sbp_type *type, const sbp_sizes *sizes) {
    sbp_tensor *tensor = SBP_NEW(arena, sbp_tensor);
    tensor->type = *type;
    tensor->elems = 1;
    for (int32_t d = 0; d < type->rank; d++) {
        tensor->dim[d] = type->dim[d].symbol == SBP_ONE ? type->dim[d].n : sizes->v[type->dim[d].symbol];
        tensor->elems *= tensor->dim[d];
    }
    tensor->data = SBP_NEW_ARRAY(arena, double, tensor->elems);
    return tensor;
}

sbp_status sbp_evaluate(const sbp_module *module, const sbp_func *func, const sbp_eval_env *env,
                        sbp_tensor **values) {
    for (int32_t i = 0; i < func->arg_count; i++) {
        sbp_value arg = func->args[i];
        const sbp_value_info *info = &func->values[arg];
        if (values[arg])
            continue;
        if (info->role != SBP_VALUE_CONST)
            return sbp_fail(env->diag, SBP_INTERNAL, "evaluate @%s: argument %%%s has no value", func->name,
                            info->name);
        values[arg] = sbp_tensor_create(env->arena, &info->type, &env->sizes);
        memcpy(values[arg]->data, module->consts[info->binding].data,
               (size_t)values[arg]->elems * sizeof(double));
    }
    for (int32_t i = 0; i < func->op_count; i++) {
        const sbp_op *op = &func->ops[i];
        sbp_eval eval = {.env = env, .op = op};
        for (int32_t k = 0; k < op->operand_count; k++)
            eval.in[k] = op->operands[k] == SBP_NO_VALUE ? NULL : values[op->operands[k]];
        for (int32_t r = 0; r < op->result_count; r++) {
            values[op->results[r]] =
                sbp_tensor_create(env->arena, &func->values[op->results[r]].type, &env->sizes);
            eval.out[r] = values[op->results[r]];
        }
        SBP_TRY(sbp_opcode_rules(op->code)->eval(&eval));
        for (int32_t r = 0; r < op->result_count; r++)
            for (int64_t j = 0; env->round && j < eval.out[r]->elems; j++)
                eval.out[r]->data[j] = sbp_rule_rounded(&eval, eval.out[r]->type.dtype, eval.out[r]->data[j]);
        for (int32_t r = 0; env->noise && r < op->result_count; r++)
            for (int64_t j = 0; sbp_dtype_is_float(eval.out[r]->type.dtype) && j < eval.out[r]->elems; j++)
                eval.out[r]->data[j] = env->noise(env->noise_state, eval.out[r]->data[j]);
    }
    return SBP_OK;
}
