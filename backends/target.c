/* target.c: the backends that this build can compile for. */
#include "backends/target.h"

#include <string.h>

#include "backends/backends.h"

#define BACKEND(name, title, is, without) extern const sbp_target sbp_##name##_target;
#include "backends/backends.def"

static const sbp_target *const targets[] = {
#define BACKEND(name, title, is, without) SBP_BACKEND_BUILT(SBP_TARGET_##name, &sbp_##name##_target),
#include "backends/backends.def"
};

const sbp_target *sbp_target_find(const char *name) {
    for (int32_t i = 0; i < SBP_COUNT(targets); i++)
        if (targets[i] && strcmp(targets[i]->name, name) == 0)
            return targets[i];
    return NULL;
}
