/* gguf.c: opens a GGUF file and hands it to its architecture. */
#include "frontends/gguf/gguf.h"

#include <string.h>

static const sbp_gguf_architecture architectures[] = {
#define GGUF(architecture, function) {architecture, function},
#include "frontends/registry.def"
};

static sbp_status refuse(const sbp_gguf_source *s, const char *name) {
    sbp_text known;
    sbp_text_init(&known, s->loading->arena);
    for (int32_t i = 0; i < SBP_COUNT(architectures); i++)
        sbp_text_add(&known, "%s%s", i ? ", " : "", architectures[i].name);
    return sbp_fail(
        s->loading->diag, SBP_INPUT,
        "%s: key 'general.architecture': GGUF files of architecture '%s' are not supported; supported: %s",
        s->loading->path, name, known.data);
}

/* "https://huggingface.co/some/model" is some/model. */
static const char *hub_id(sbp_arena *arena, const char *url) {
    static const char host[] = "https://huggingface.co/";
    size_t n = sizeof host - 1;
    if (!url || strncmp(url, host, n) != 0)
        return NULL;
    size_t owner = strcspn(url + n, "/"), name = url[n + owner] ? strcspn(url + n + owner + 1, "/?#") : 0;
    return owner > 0 && name > 0 ? sbp_arena_strndup(arena, url + n, owner + 1 + name) : NULL;
}

/* general.source is what was converted; general.base_model what that was tuned from, or that itself. */
static sbp_status find_origin(sbp_loading *l, const sbp_gguf *keys) {
    static const char *const sources[] = {"general.source.huggingface.repository", "general.source.repo_url",
                                          "general.source.url"};
    const char *text = NULL;
    for (int i = 0; i < SBP_COUNT(sources) && !l->origin; i++) {
        text = NULL;
        SBP_TRY(sbp_gguf_get_string(l->diag, keys, sources[i], SBP_JSON_OPTIONAL, &text));
        l->origin = i == 0 && text && strchr(text, '/') ? text : hub_id(l->arena, text);
    }
    text = NULL;
    SBP_TRY(sbp_gguf_get_string(l->diag, keys, "general.base_model.0.repo_url", SBP_JSON_OPTIONAL, &text));
    l->parent = hub_id(l->arena, text);
    return SBP_OK;
}

sbp_status sbp_load_gguf(sbp_loading *l) {
    SBP_TRY(sbp_weights_open(l->arena, l->diag, l->path, &l->source));
    sbp_gguf_source s = {.loading = l, .keys = sbp_weights_gguf(l->source), .tensors = l->source};
    if (!s.keys)
        return sbp_fail(l->diag, SBP_INPUT, "'%s' is not a GGUF file", l->path);
    l->model->tokenizer = l->path;
    if (!l->model->weights)
        l->model->weights = l->path;
    SBP_TRY(sbp_loading_open_weights(l));
    const char *name;
    SBP_TRY(sbp_gguf_get_string(l->diag, s.keys, "tokenizer.chat_template", SBP_JSON_OPTIONAL,
                                &l->model->chat_template));
    SBP_TRY(find_origin(l, s.keys));
    SBP_TRY(sbp_gguf_get_string(l->diag, s.keys, "general.architecture", SBP_JSON_REQUIRED, &name));
    for (int32_t i = 0; i < SBP_COUNT(architectures); i++)
        if (strcmp(architectures[i].name, name) == 0)
            return architectures[i].load(&s);
    return refuse(&s, name);
}
