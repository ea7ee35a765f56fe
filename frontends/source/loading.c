/* loading.c: what the loaders of the source formats share. */
#include "frontends/source/loading.h"

#include "frontends/formats/weights/recipe.h"
#include "ir/graph/op.h"

const char *sbp_loading_source_name(const sbp_param *param) {
    return param->recipe ? param->recipe->source : param->name;
}

sbp_status sbp_loading_open_weights(sbp_loading *l) {
    if (l->weights || !l->model->weights)
        return SBP_OK;
    return sbp_weights_open(l->arena, l->diag, l->model->weights, &l->weights);
}

const sbp_weight *sbp_loading_find(const sbp_weights *weights, const sbp_param *param) {
    const sbp_weight *w = sbp_weights_find(weights, sbp_loading_source_name(param));
    for (int32_t i = 0; !w && i < param->alias_count; i++)
        w = sbp_weights_find(weights, param->aliases[i]);
    return w;
}

bool *sbp_loading_find_routers(sbp_arena *arena, const sbp_func *f) {
    bool *routes = SBP_NEW_ARRAY(arena, bool, f->value_count + 1);
    for (int32_t i = f->op_count - 1; i >= 0; i--) {
        const sbp_op *op = &f->ops[i];
        sbp_op_class class = sbp_opcode_class(op->code);
        bool inside = class == SBP_CLASS_ROWWISE || class == SBP_CLASS_COMPOSITE;
        for (int32_t k = 0; k < op->operand_count; k++)
            if (op->operands[k] != SBP_NO_VALUE &&
                (class == SBP_CLASS_CHOICE || (inside && routes[op->results[0]])))
                routes[op->operands[k]] = true;
    }
    return routes;
}
