/* gguf.c: opens a GGUF file and hands it to its architecture. */
#include "frontends/gguf/gguf.h"

#include <string.h>

static const sbp_gguf_architecture architectures[] = {
#define ARCHITECTURE(model_type, function)
#define GGUF(architecture, function) {architecture, function},
#include "frontends/registry.def"
#undef ARCHITECTURE
#undef GGUF
};

static sbp_status refuse(const sbp_gguf_source *s, const char *name) {
    sbp_text known;
    sbp_text_init(&known, s->loading->arena);
    for (int32_t i = 0; i < SBP_COUNT(architectures); i++)
        sbp_text_add(&known, "%s%s", i ? ", " : "", architectures[i].name);
    return sbp_fail(
        s->loading->diag, SBP_INPUT,
        "%s: key 'general.architecture': GGUF files of architecture '%s' are not built; supported: %s",
        s->loading->path, name, known.data);
}

sbp_status sbp_load_gguf(sbp_loading *l) {
    SBP_TRY(sbp_weights_open(l->arena, l->diag, l->path, &l->source));
    sbp_gguf_source s = {.loading = l, .keys = sbp_weights_gguf(l->source), .tensors = l->source};
    if (!s.keys)
        return sbp_fail(l->diag, SBP_INPUT, "'%s' is no GGUF file", l->path);
    l->model->tokenizer = l->path;
    if (!l->model->weights)
        l->model->weights = l->path;
    SBP_TRY(sbp_loading_open_weights(l));
    const char *name;
    SBP_TRY(sbp_gguf_get_string(l->diag, s.keys, "tokenizer.chat_template", SBP_JSON_OPTIONAL,
                                &l->model->chat_template));
    SBP_TRY(sbp_gguf_get_string(l->diag, s.keys, "general.architecture", SBP_JSON_REQUIRED, &name));
    for (int32_t i = 0; i < SBP_COUNT(architectures); i++)
        if (strcmp(architectures[i].name, name) == 0)
            return architectures[i].load(&s);
    return refuse(&s, name);
}
