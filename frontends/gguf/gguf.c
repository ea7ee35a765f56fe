/* gguf.c: opens a GGUF file, and builds the model that it describes. */
#include "frontends/gguf/gguf.h"

#include "frontends/formats/weights/recipe.h"

#include <stdio.h>
#include <string.h>

static sbp_status refuse(const sbp_gguf_source *s) {
    sbp_text known;
    const char *name = "", *last = "";
    SBP_TRY(sbp_gguf_get_string(s->loading->diag, s->keys, "general.architecture", SBP_JSON_REQUIRED, &name));
    sbp_text_init(&known, s->loading->arena);
    for (int32_t i = 0; i < SBP_GGUF_FAMILIES; i++) {
        const char *architecture = sbp_gguf_family_of((sbp_gguf_family_id)i)->architecture;
        if (strcmp(architecture, last) != 0) /* families of one stand together */
            sbp_text_add(&known, "%s%s", i ? ", " : "", architecture);
        last = architecture;
    }
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

/* Tensors that say what config.json says, too; layers that predict further tokens, which nothing here reads;
 * and keys and values of layers that read those of others. */
static bool is_no_parameter(const sbp_gguf_facts *facts, const char *name) {
    static const char *const made[] = {"rope_freqs.weight", "rope_factors_long.weight",
                                       "rope_factors_short.weight"};
    long long layer;
    int used = 0;
    for (int i = 0; i < SBP_COUNT(made); i++)
        if (strcmp(name, made[i]) == 0)
            return true;
    if (sscanf(name, "blk.%lld.%n", &layer, &used) != 1 || used == 0)
        return false;
    if (layer >= facts->layers - facts->shared && layer < facts->layers)
        return strncmp(name + used, "attn_k", 6) == 0 || strncmp(name + used, "attn_v", 6) == 0;
    return layer >= facts->layers && layer < facts->layers + facts->further;
}

/* The tensors of the file that a parameter is made of. */
static bool add_sources(sbp_map *used, const sbp_weights *tensors, const char *name) {
    const sbp_weight *w = sbp_weights_find(tensors, name);
    for (int64_t i = 0; w && i < w->source_count; i++)
        sbp_map_set(used, w->sources[i]->name, 1);
    return w != NULL;
}

/* The file must have the tensors that the model has, and no other: a bias, or a norm, that is not built is
 * another model. */
static sbp_status check_tensors(const sbp_gguf_source *s, const sbp_gguf_facts *facts) {
    const sbp_module *m = s->loading->model->module;
    sbp_map used;
    sbp_map_init(&used, s->loading->arena);
    for (int32_t p = 0; p < m->param_count; p++) {
        const sbp_param *param = &m->params[p];
        bool found = add_sources(&used, s->tensors, sbp_loading_source_name(param));
        for (int32_t a = 0; a < param->alias_count; a++)
            found |= add_sources(&used, s->tensors, param->aliases[a]);
        if (param->stored)
            found |= add_sources(&used, s->tensors, param->stored->source);
        if (!found && !param->fresh)
            return sbp_fail(
                s->loading->diag, SBP_INPUT,
                "%s: nothing that '%s' of a model of type %s is made of; this variant is not supported",
                s->loading->path, sbp_loading_source_name(param), s->loading->model->model_type);
    }
    for (int32_t i = 0; i < sbp_weights_count(s->tensors); i++) {
        const char *name = sbp_weights_at(s->tensors, i)->name;
        if (sbp_map_get(&used, name) < 0 && !is_no_parameter(facts, name))
            return sbp_fail(s->loading->diag, SBP_INPUT,
                            "%s: tensor '%s' has no place in a model of type %s of %lld layers; this variant "
                            "is not supported",
                            s->loading->path, name, s->loading->model->model_type, (long long)facts->layers);
    }
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
    SBP_TRY(sbp_gguf_get_string(l->diag, s.keys, "tokenizer.chat_template", SBP_JSON_OPTIONAL,
                                &l->model->chat_template));
    SBP_TRY(find_origin(l, s.keys));
    sbp_gguf_facts facts;
    bool found = false;
    const char *text;
    const sbp_json *config;
    SBP_TRY(sbp_gguf_facts_of_keys(l->diag, s.keys, &facts, &found));
    if (!found)
        return refuse(&s);
    SBP_TRY(sbp_gguf_describe(&s, &facts, &text));
    SBP_TRY(sbp_json_parse(l->arena, l->diag, l->path, text, strlen(text), 0, &config));
    SBP_TRY(sbp_load_hf(l, config));
    return check_tensors(&s, &facts);
}
