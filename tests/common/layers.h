/* layers.h: random functions that look like transformer layers: attention with windows, grouped heads and
 * softcap, keys and values that are read twice, shared between layers or arguments themselves, norms, rope,
 * gated and plain MLPs, weights used twice, frozen weights. */
#ifndef SBP_TESTS_COMMON_LAYERS_H
#define SBP_TESTS_COMMON_LAYERS_H

#include "tests/common/graphs.h"

typedef struct layers_features {
    bool window, softcap, grouped, shared_keys, key_argument, tied, frozen, stopped, head, convolution, delta,
        uncorrected, experts;
} layers_features;

/* A module with function @f: streams x and maybe memory, row inputs pos, first, shared_end, own, label. The
 * first result has the type of x. */
sbp_module *layers_random(testing *t, layers_features *features);

/* Inputs for all rows, by argument. */
sbp_tensor **layers_inputs(testing *t, const sbp_module *module, const sbp_func *func, const documents *rows,
                           const sbp_eval_env *env);

#endif
