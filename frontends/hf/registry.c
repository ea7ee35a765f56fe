/* registry.c: the built-in architectures. */
#include "frontends/hf/hf.h"

static const sbp_architecture architectures[] = {
#define ARCHITECTURE(model_type, function) {model_type, function, NULL},
#define MULTIMODAL(model_type, text_type, function) {model_type, function, text_type},
#include "frontends/hf/registry.def"
};

const sbp_architecture *sbp_architecture_at(int32_t index) {
    return index >= 0 && index < SBP_COUNT(architectures) ? &architectures[index] : NULL;
}
