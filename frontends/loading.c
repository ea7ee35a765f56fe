/* loading.c: what the loaders of the source formats share. */
#include "frontends/loading.h"

#include "frontends/weights/recipe.h"

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
