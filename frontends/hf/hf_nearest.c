/* hf_nearest.c: what a model of an unknown model_type is nearest to: the beginning of a family's file. */
#include <string.h>

#include "frontends/hf/hf_load.h"

enum { MOST = 16 }; /* names that are listed */

/* How far an architecture is from a config.json. */
typedef struct distance {
    const sbp_architecture *of; /* NULL: none */
    int32_t strange;            /* fields that it does not know */
    int32_t absent;             /* fields that it looks for in vain */
    sbp_text names;             /* of the former */
    const char *tensors;        /* which differ, a clause; "" */
    int32_t weight;
} distance;

/* The model that the architecture makes of the file; its status. */
static sbp_status try_architecture(sbp_loading *l, const sbp_json *config, const sbp_architecture *a,
                                   const sbp_weights *weights, sbp_model *model, sbp_hf *hf) {
    sbp_loading trial = *l;
    *model = *l->model;
    trial.model = model;
    trial.weights = NULL;
    trial.diag = NULL; /* what it says is not asked for */
    sbp_hf_begin(hf, &trial, config, a->model_type);
    hf->weights = weights;
    hf->names_only = true;
    hf->within_multimodal = true; /* whatever names begin with */
    a->build(hf);
    return hf->builder.status;
}

/* What an architecture does not know may be a computation of its own, and names tell families: how much of
 * theirs is the same, and what a's has besides. */
static int32_t weighed(const distance *d, const char *model_type) {
    const char *a = d->of->model_type;
    int32_t common = 0;
    while (a[common] && a[common] == model_type[common])
        common++;
    return 4 * d->strange + d->absent - 2 * common + (int32_t)strlen(a + common) / 2;
}

/* False: it cannot build from the file. */
static bool measure(sbp_loading *l, const sbp_json *config, const sbp_architecture *a, const char *model_type,
                    distance *out) {
    sbp_model model;
    sbp_hf hf;
    sbp_status status = try_architecture(l, config, a, NULL, &model, &hf);
    *out = (distance){.of = a, .absent = hf.read.count, .tensors = ""};
    sbp_text_init(&out->names, l->arena);
    for (int64_t i = 0; i < config->count; i++) {
        const char *name = config->items[i].key;
        out->absent -= sbp_map_get(&hf.read, name) >= 0;
        if (!sbp_hf_is_left_over(&hf, &config->items[i]))
            continue;
        if (out->strange++ < MOST)
            sbp_text_add(&out->names, "%s%s", out->strange > 1 ? ", " : "", name);
    }
    if (out->strange > MOST)
        sbp_text_add(&out->names, ", ...");
    out->weight = weighed(out, model_type);
    return status == SBP_OK;
}

/* ---- tensors ------------------------------------------------------------------------------------------ */

typedef struct listing {
    sbp_text names;
    sbp_map listed;
} listing;

/* A name with "*" for numbers of layers and experts, once. */
static void list_name(listing *out, sbp_arena *arena, const char *name) {
    sbp_text text;
    sbp_text_init(&text, arena);
    for (const char *at = name; *at;) {
        size_t n = strcspn(at, "."), digits = strspn(at, "0123456789");
        sbp_text_add(&text, "%s%.*s", at > name ? "." : "", n == digits ? 1 : (int)n, n == digits ? "*" : at);
        at += n + (at[n] == '.');
    }
    if (sbp_map_get(&out->listed, text.data) >= 0)
        return;
    sbp_map_set(&out->listed, text.data, 1);
    if (out->listed.count <= MOST)
        sbp_text_add(&out->names, "%s%s", out->listed.count > 1 ? ", " : "", text.data);
    else if (out->listed.count == MOST + 1)
        sbp_text_add(&out->names, ", ...");
}

/* Tensors of the weights that the architecture does not read, and those that it looks for in vain. */
static void compare_tensors(sbp_loading *l, const sbp_json *config, distance *d) {
    sbp_model model;
    sbp_hf hf;
    sbp_map used;
    listing strange, absent;
    if (!l->weights || try_architecture(l, config, d->of, l->weights, &model, &hf) != SBP_OK)
        return;
    sbp_map_init(&used, l->arena);
    for (listing *each = &strange; each; each = each == &strange ? &absent : NULL) {
        sbp_text_init(&each->names, l->arena);
        sbp_map_init(&each->listed, l->arena);
    }
    for (int32_t p = 0; p < model.module->param_count; p++) {
        const sbp_param *param = &model.module->params[p];
        const sbp_weight *w = sbp_loading_find(l->weights, param);
        if (w)
            sbp_weight_add_names(w, &used);
        else
            list_name(&absent, l->arena, sbp_loading_source_name(param));
    }
    for (int32_t i = 0; i < sbp_weights_count(l->weights); i++)
        if (sbp_map_get(&used, sbp_weights_at(l->weights, i)->name) < 0)
            list_name(&strange, l->arena, sbp_weights_at(l->weights, i)->name);
    sbp_text text;
    sbp_text_init(&text, l->arena);
    if (strange.listed.count > 0)
        sbp_text_add(&text, "; it does not read the tensors %s", strange.names.data);
    if (absent.listed.count > 0)
        sbp_text_add(&text, "%s %s", strange.listed.count > 0 ? ", and lacks" : "; it lacks the tensors",
                     absent.names.data);
    d->weight += 2 * (strange.listed.count + absent.listed.count);
    d->tensors = text.length > 0 ? text.data : "";
}

const char *sbp_hf_nearest(sbp_loading *l, const sbp_json *config, const char *model_type) {
    distance least = {.of = NULL};
    for (int32_t i = 0; sbp_architecture_at(i); i++) {
        distance d;
        if (!measure(l, config, sbp_architecture_at(i), model_type, &d))
            continue;
        compare_tensors(l, config, &d);
        least = least.of && least.weight <= d.weight ? least : d;
    }
    if (!least.of)
        return "";
    const char *name = least.of->model_type;
    if (least.strange > 0)
        return sbp_arena_printf(l->arena, "; '%s' is nearest, which does not know the fields %s%s", name,
                                least.names.data, least.tensors);
    if (*least.tensors)
        return sbp_arena_printf(l->arena, "; '%s' is nearest, which reads all fields%s", name, least.tensors);
    return sbp_arena_printf(
        l->arena, "; '%s' is nearest, which reads all fields: --set 'model_type=\"%s\"' takes it for that",
        name, name);
}
