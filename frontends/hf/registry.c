/* registry.c: the built-in architectures, and the multimodal models that hold them. */
#include "frontends/hf/hf.h"

static const sbp_architecture architectures[] = {
#define ARCHITECTURE(model_type, function) {model_type, function},
#include "frontends/hf/registry.def"
};

static const sbp_wrapper wrappers[] = {
#define WRAPPER(model_type, text_types, files) {model_type, text_types, SBP_WRAPPER_##files},
#include "frontends/hf/registry.def"
};

const sbp_architecture *sbp_architecture_at(int32_t index) {
    return index >= 0 && index < SBP_COUNT(architectures) ? &architectures[index] : NULL;
}

const sbp_wrapper *sbp_wrapper_at(int32_t index) {
    return index >= 0 && index < SBP_COUNT(wrappers) ? &wrappers[index] : NULL;
}
