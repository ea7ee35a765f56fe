/* hf_load.c: from a config.json to a module: overrides, the text model within a multimodal one, the
 * architecture's builder; and what is refused. */
#include "frontends/hf/hf_load.h"

#include <string.h>

#include "ir/base/json_write.h"

/* ---- --set KEY=JSON ------------------------------------------------------------------------------- */

static void write_with(sbp_json_writer *w, const char *key, const sbp_json *object, const char *path,
                       const char *value);

/* A member: the value, or the object with member `rest` replaced. */
static void write_replaced(sbp_json_writer *w, const char *key, const sbp_json *item, const char *rest,
                           const char *value) {
    if (rest)
        write_with(w, key, item && item->kind == SBP_JSON_OBJECT ? item : NULL, rest, value);
    else
        sbp_json_write_raw(w, key, value);
}

/* The object (NULL: an empty one) with member `path` (dots between nested names) replaced by value. */
static void write_with(sbp_json_writer *w, const char *key, const sbp_json *object, const char *path,
                       const char *value) {
    size_t length = strcspn(path, ".");
    const char *rest = path[length] ? path + length + 1 : NULL;
    const char *name = sbp_arena_strndup(w->out->arena, path, length);
    bool found = false;
    sbp_json_write_object(w, key);
    for (int64_t i = 0; object && i < object->count; i++) {
        const sbp_json *item = &object->items[i];
        bool here = strcmp(item->key, name) == 0;
        found |= here;
        if (here)
            write_replaced(w, item->key, item, rest, value);
        else
            sbp_json_write_value(w, item->key, item);
    }
    if (!found)
        write_replaced(w, name, NULL, rest, value);
    sbp_json_write_end(w);
}

enum { MOST_NAMES = 16 }; /* joined by dots in --set */

static sbp_status override_one(sbp_loading *l, const char *setting, const sbp_json **config) {
    const char *equals = strchr(setting, '=');
    if (!equals || equals == setting)
        return sbp_fail(l->diag, SBP_USAGE, "--set %s: KEY=JSON expected", setting);
    const char *key = sbp_arena_strndup(l->arena, setting, (size_t)(equals - setting)), *value = equals + 1;
    const sbp_json *parsed;
    int32_t names = 1;
    for (const char *dot = strchr(key, '.'); dot; dot = strchr(dot + 1, '.'))
        names++;
    if (names > MOST_NAMES)
        return sbp_fail(l->diag, SBP_USAGE,
                        "--set %.60s..: %d names within each other, at most %d are expected", key, (int)names,
                        MOST_NAMES);
    if (sbp_json_parse(l->arena, NULL, key, value, strlen(value), 0, &parsed) != SBP_OK)
        return sbp_fail(l->diag, SBP_USAGE,
                        "--set %s: '%s' is not JSON (a string needs quotes: --set '%s=\"%s\"')", setting,
                        value, key, value);
    const char *file = (*config)->key ? (*config)->key : l->path;
    sbp_text text;
    sbp_text_init(&text, l->arena);
    sbp_json_writer w = sbp_json_writer_on(&text);
    w.compact = true;
    write_with(&w, NULL, *config, key, value);
    return sbp_json_parse(l->arena, l->diag, file, text.data, text.length, SBP_JSON_PYTHON, config);
}

/* config with every KEY=JSON of the options. */
static sbp_status override(sbp_loading *l, const sbp_json **config) {
    if ((*config)->kind != SBP_JSON_OBJECT)
        return sbp_json_fail(l->diag, *config, "expected an object, found %s",
                             sbp_json_kind_name((*config)->kind));
    for (int32_t i = 0; i < l->options->set_count; i++)
        SBP_TRY(override_one(l, l->options->set[i], config));
    return SBP_OK;
}

/* ---- multimodal models ------------------------------------------------------------------------------ */

static const sbp_wrapper *find_wrapper(const char *model_type) {
    for (int32_t i = 0; sbp_wrapper_at(i); i++)
        if (strcmp(sbp_wrapper_at(i)->model_type, model_type) == 0)
            return sbp_wrapper_at(i);
    return NULL;
}

static const sbp_architecture *find_architecture(const sbp_model_options *options, const char *model_type) {
    for (int32_t i = 0; i < options->extra_count; i++)
        if (strcmp(options->extra[i].model_type, model_type) == 0)
            return &options->extra[i];
    for (int32_t i = 0; sbp_architecture_at(i); i++)
        if (strcmp(sbp_architecture_at(i)->model_type, model_type) == 0)
            return sbp_architecture_at(i);
    return NULL;
}

/* What names in the weights begin with: as they are there, else as the files of such a model are published.
 */
static void set_names(sbp_hf *hf, const sbp_wrapper *wrapper) {
    static const struct {
        const char *root, *head;
    } spellings[SBP_WRAPPER_FILES] = {
        [SBP_WRAPPER_INSIDE] = {"model.language_model", "lm_head"},
        [SBP_WRAPPER_AROUND] = {"language_model.model", "language_model.lm_head"},
        [SBP_WRAPPER_BESIDE] = {"model", "lm_head"},
        [SBP_WRAPPER_APART] = {"language_model.model", "language_model.lm_head"}};
    int32_t kind = (int32_t)wrapper->files;
    for (int32_t k = -1; hf->weights && k < SBP_WRAPPER_FILES; k++) {
        int32_t tried = k < 0 ? (int32_t)wrapper->files : k;
        if (!sbp_weights_find(hf->weights, sbp_hf_path(hf, "%s.embed_tokens.weight", spellings[tried].root)))
            continue;
        kind = tried;
        break;
    }
    sbp_model *m = hf->model;
    int32_t n = 0;
    hf->root = spellings[kind].root;
    hf->head_module = spellings[kind].head;
    m->text_part = wrapper->files == SBP_WRAPPER_APART ? "model." : "model.language_model.";
    /* Kimi-K2.5 as transformers 5.24 writes it */
    if (hf->weights &&
        sbp_weights_find(hf->weights, sbp_hf_path(hf, "%s.blocks.0.input_layernorm.weight", hf->root))) {
        hf->layers = "blocks";
        m->prefix[n].file = sbp_hf_path(hf, "%s.blocks.", hf->root);
        m->prefix[n++].in_class = sbp_hf_path(hf, "%slayers.", m->text_part);
    }
    m->prefix[n].file = sbp_hf_path(hf, "%s.", hf->root);
    m->prefix[n++].in_class = m->text_part;
    m->prefix[n].file = hf->head_module;
    m->prefix[n].in_class = "lm_head";
}

/* Goes on with the text_config of a file whose other fields are about other parts, or with the file itself
 * where that has the fields of both. What builds the text model; NULL: nothing does. */
static const sbp_architecture *enter_text_config(sbp_hf *hf, sbp_loading *l, const sbp_wrapper *wrapper) {
    const sbp_json *text = sbp_hf_field(hf, "text_config");
    bool flat = !text && wrapper->files == SBP_WRAPPER_BESIDE;
    const char *first = sbp_arena_strndup(hf->arena, wrapper->text_types, strcspn(wrapper->text_types, " "));
    if (!flat && (!text || text->kind != SBP_JSON_OBJECT)) {
        sbp_hf_fail(hf, text,
                    "'%s' is a multimodal model: an object text_config of model_type %s is expected",
                    hf->model->model_type, first);
        return NULL;
    }
    hf->wrapper = hf->config;
    hf->text_type = first;
    hf->within_multimodal = true;
    hf->model->carries = true;
    set_names(hf, wrapper);
    if (!flat) {
        sbp_hf_check_left_over(hf);
        hf->config = text;
        sbp_map_init(&hf->read, hf->arena);
        hf->text_type = sbp_hf_string(hf, "model_type", first);
        sbp_hf_read_facts(hf, l);
    }
    const sbp_architecture *found = find_architecture(l->options, hf->text_type);
    if (!sbp_hf_is_listed(wrapper->text_types, hf->text_type))
        sbp_hf_fail(hf, sbp_hf_field(hf, "model_type"), "'%s' has a text model of model_type %s",
                    hf->model->model_type, wrapper->text_types);
    else if (!found)
        sbp_hf_fail(hf, sbp_hf_field(hf, "model_type"),
                    "'%s' with a text model of model_type %s is not supported", hf->model->model_type,
                    hf->text_type);
    return hf->builder.status == SBP_OK ? found : NULL;
}

/* ---- what is not supported ---------------------------------------------------------------------------- */

static sbp_status refuse(sbp_loading *l, const sbp_json *config, const char *model_type) {
    const sbp_json *inner = sbp_json_member(config, "text_config");
    char where[600];
    sbp_text supported;
    sbp_text_init(&supported, l->arena);
    for (int32_t i = 0; sbp_architecture_at(i); i++)
        sbp_text_add(&supported, "%s%s", i ? ", " : "", sbp_architecture_at(i)->model_type);
    for (int32_t i = 0; sbp_wrapper_at(i); i++)
        sbp_text_add(&supported, ", %s", sbp_wrapper_at(i)->model_type);
    for (int32_t i = 0; i < l->options->extra_count; i++)
        sbp_text_add(&supported, ", %s", l->options->extra[i].model_type);
    const char *inner_type = "";
    if (inner && inner->kind == SBP_JSON_OBJECT)
        SBP_TRY(sbp_json_get_string(l->diag, inner, "model_type", SBP_JSON_NULLABLE, &inner_type));
    sbp_json_where(sbp_json_member(config, "model_type"), where, sizeof where);
    if (inner_type && *inner_type && !find_architecture(l->options, inner_type))
        return sbp_fail(
            l->diag, SBP_INPUT,
            "%s: '%s' is a multimodal model, whose text model '%s' is not supported%s; supported: %s", where,
            model_type, inner_type, sbp_hf_nearest(l, inner, inner_type), supported.data);
    if (inner)
        return sbp_fail(
            l->diag, SBP_INPUT,
            "%s: '%s' is a multimodal model that is not supported; its text model alone is: use a directory "
            "whose config.json is its text_config, beside the same weights (what is written is a text model, "
            "too). Supported: %s",
            where, model_type, supported.data);
    return sbp_fail(
        l->diag, SBP_INPUT,
        "%s: model type '%s' is not supported (frontends/README.md says how one is added)%s; supported: %s",
        where, model_type, sbp_hf_nearest(l, config, model_type), supported.data);
}

/* ---- weights in codes -------------------------------------------------------------------------------- */

/* FP8 (DeepSeek-V3, Qwen3): the weights say where they have scales, whatever the rest of the field is. */
static void read_quantized(sbp_hf *hf) {
    const sbp_json *field = sbp_json_member(hf->config, "quantization_config");
    const sbp_json *method = field ? sbp_json_member(field, "quant_method") : NULL;
    if (!method || method->kind != SBP_JSON_STRING)
        return;
    if (strcmp(method->string, "compressed-tensors") == 0 && hf->builder.status == SBP_OK) {
        sbp_hf_read_packed(hf, field);
        hf->model->carries |= hf->packed;
    }
    if (strcmp(method->string, "fp8") != 0)
        return;
    (void)sbp_hf_field(hf, "quantization_config");
    hf->fp8 = true;
    if (hf->weights && hf->builder.status == SBP_OK)
        hf->builder.status = sbp_weights_check_block_size(hf->weights, field, hf->diag);
}

/* What becomes of them without adapters. */
static void say_quantized(const sbp_loading *l, const sbp_hf *hf) {
    bool frozen = false;
    for (int32_t p = 0; p < l->model->module->param_count; p++)
        frozen |= l->model->module->params[p].format != SBP_FORMAT_NONE;
    if (l->lora)
        return;
    if (frozen)
        sbp_note(l->diag, "weights that are kept in blocks (quantization_config) stay frozen; --set "
                          "quantization_config=null reads them as numbers and trains them");
    if (hf->fp8 || hf->packed)
        sbp_note(l->diag,
                 "weights in %s are read as numbers, trained and written as such, without "
                 "quantization_config; those that are frozen keep their blocks while it runs",
                 hf->fp8 ? "FP8" : "INT4 and INT8");
}

static void write_fields(sbp_json_writer *w, const char *key, const sbp_json *config, bool numbers) {
    sbp_json_write_object(w, key);
    for (int64_t i = 0; i < config->count; i++) {
        const sbp_json *field = &config->items[i];
        if (strcmp(field->key, "text_config") == 0 && field->kind == SBP_JSON_OBJECT)
            write_fields(w, field->key, field, numbers);
        else if (strcmp(field->key, "quantization_config") != 0 || !(numbers || field->kind == SBP_JSON_NULL))
            sbp_json_write_value(w, field->key, field);
    }
    sbp_json_write_end(w);
}

/* Without a quantization_config that is null, or of weights that are written as numbers: transformers goes by
 * whether it is there. */
static const char *print_config(sbp_arena *arena, const sbp_json *config, bool numbers) {
    sbp_text text;
    sbp_text_init(&text, arena);
    sbp_json_writer w = sbp_json_writer_on(&text);
    w.compact = true;
    write_fields(&w, NULL, config, numbers);
    return text.data;
}

sbp_status sbp_load_hf(sbp_loading *l, const sbp_json *config) {
    SBP_TRY(override(l, &config));
    const char *model_type;
    SBP_TRY(sbp_json_get_string(l->diag, config, "model_type", SBP_JSON_REQUIRED, &model_type));
    const sbp_architecture *architecture = find_architecture(l->options, model_type);
    const sbp_wrapper *wrapper = architecture ? NULL : find_wrapper(model_type);
    if (!architecture && !wrapper)
        return refuse(l, config, model_type);
    sbp_hf hf;
    sbp_hf_begin(&hf, l, config, model_type);
    const sbp_func *func = hf.builder.func;
    read_quantized(&hf);
    if (wrapper)
        architecture = enter_text_config(&hf, l, wrapper);
    read_quantized(&hf);
    if (architecture)
        architecture->build(&hf);
    if (hf.builder.status == SBP_OK && func->result_count == 0)
        return sbp_fail(l->diag, SBP_INTERNAL,
                        "the function that builds model_type %s does not end in sbp_hf_finish", model_type);
    sbp_hf_check_left_over(&hf);
    SBP_TRY(hf.builder.status);
    if (hf.untied)
        SBP_TRY(override_one(l, "tie_word_embeddings=false", &config));
    sbp_hf_say_dropout(&hf);
    say_quantized(l, &hf);
    if (hf.packed && !hf.weights)
        sbp_hf_plan_packed(&hf);
    SBP_TRY(hf.builder.status);
    l->model->config = print_config(l->arena, config, hf.fp8);
    l->numbers_config = hf.packed ? print_config(l->arena, config, true) : NULL;
    return SBP_OK;
}
