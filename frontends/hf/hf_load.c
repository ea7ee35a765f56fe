/* hf_load.c: from a config.json to a module: overrides, facts, the architecture's builder, and the check that
 * no field was left unread that could matter. */
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

/* ---- facts ---------------------------------------------------------------------------------------- */

/* Token ids: a number, or a list of which all are kept; null, absent and -1: none. */
static const int32_t *read_ids(sbp_hf *hf, const char *key, int32_t *count) {
    const sbp_json *field = sbp_hf_field(hf, key);
    *count = 0;
    if (!field || hf->builder.status != SBP_OK)
        return NULL;
    bool list = field->kind == SBP_JSON_ARRAY;
    int64_t n = list ? field->count : 1;
    int32_t *ids = SBP_NEW_ARRAY(hf->arena, int32_t, n);
    for (int64_t i = 0; i < n; i++) {
        int64_t id = -1;
        const sbp_json *item = list ? &field->items[i] : field;
        hf->builder.status = sbp_json_as_i64(hf->diag, item, &id);
        if (hf->builder.status != SBP_OK)
            return NULL;
        if (id < -1 || id > INT32_MAX)
            sbp_hf_fail(hf, item, "%lld is not a token id", (long long)id);
        if (id >= 0)
            ids[(*count)++] = (int32_t)id;
    }
    return ids;
}

static int32_t read_id(sbp_hf *hf, const char *key) {
    int32_t count;
    const int32_t *ids = read_ids(hf, key, &count);
    return count > 0 ? ids[0] : -1;
}

static sbp_dtype published_dtype(sbp_hf *hf) {
    static const struct {
        const char *name;
        sbp_dtype dtype;
    } known[] = {{"float32", SBP_F32}, {"bfloat16", SBP_BF16}, {"float16", SBP_F16}, {"float64", SBP_F64}};
    const char *name = sbp_hf_string(hf, "dtype", NULL), *old = sbp_hf_string(hf, "torch_dtype", NULL);
    name = name ? name : old;
    for (int32_t i = 0; name && i < SBP_COUNT(known); i++)
        if (strcmp(name, known[i].name) == 0)
            return known[i].dtype;
    return SBP_DTYPE_COUNT;
}

/* Reads what the model says of tokens and names. Where both the wrapper of a multimodal model and its
 * text_config have a field, text_config counts. */
static void read_facts(sbp_hf *hf, sbp_loading *l) {
    sbp_model *m = hf->model;
    int32_t bos = read_id(hf, "bos_token_id"), pad = read_id(hf, "pad_token_id"), eos_count;
    const int32_t *eos = read_ids(hf, "eos_token_id", &eos_count);
    m->bos_id = bos >= 0 || !hf->wrapper ? bos : m->bos_id;
    m->pad_id = pad >= 0 || !hf->wrapper ? pad : m->pad_id;
    if (eos_count > 0 || !hf->wrapper) {
        m->eos_ids = eos;
        m->eos_count = eos_count;
    }
    m->initializer_range = hf->initializer_range =
        sbp_hf_double(hf, "initializer_range", hf->wrapper ? m->initializer_range : 0.02);
    sbp_dtype published = published_dtype(hf);
    l->published = published != SBP_DTYPE_COUNT || !hf->wrapper ? published : l->published;
    hf->published = l->published != SBP_DTYPE_COUNT ? l->published : SBP_F32;
}

/* ---- fields left over ------------------------------------------------------------------------------ */

static bool is_off(const sbp_json *field) {
    switch (field->kind) {
    case SBP_JSON_NULL:
        return true;
    case SBP_JSON_BOOL:
        return !field->boolean;
    case SBP_JSON_INT:
        return field->integer == 0;
    case SBP_JSON_REAL:
        return field->real == 0;
    default:
        return field->count == 0;
    }
}

typedef enum rule { ANY, OFF, DROPOUT, VALUE } rule;

/* A line of hf_fields.def. */
typedef struct known_field {
    const char *types; /* of the models that it is about; NULL: all */
    const char *name;
    rule rule;
    const char *value; /* JSON, the only one that says nothing */
    bool of_wrapper;   /* at the top of a multimodal model's file */
} known_field;

/* One of the words of a list with blanks between them. */
static bool is_listed(const char *list, const char *word) {
    size_t n = strlen(word);
    for (const char *at = list; *at; at += strcspn(at, " "), at += *at == ' ')
        if (strncmp(at, word, n) == 0 && (at[n] == ' ' || !at[n]))
            return true;
    return false;
}

static const known_field *find_field(const sbp_hf *hf, const char *name) {
    static const known_field known[] = {
#define FIELD(name, rule) {NULL, name, rule, NULL, false},
#define TYPE_FIELD(types, name, rule) {types, name, rule, NULL, false},
#define TYPE_VALUE(types, name, value) {types, name, VALUE, value, false},
#define WRAPPER_FIELD(name) {NULL, name, ANY, NULL, true},
#include "frontends/hf/hf_fields.def"
    };
    const known_field *found = NULL; /* what is said of a type goes before what is said of all */
    for (int32_t i = 0; i < SBP_COUNT(known) && !(found && found->types); i++)
        if (strcmp(known[i].name, name) == 0 && (!known[i].of_wrapper || hf->wrapper == hf->config) &&
            (!known[i].types || is_listed(known[i].types, hf->text_type)))
            found = &known[i];
    return found;
}

static const char *print_value(const sbp_hf *hf, const sbp_json *field) {
    sbp_text value;
    sbp_text_init(&value, hf->arena);
    sbp_json_add_value(&value, field);
    return value.data;
}

static bool harmless(const sbp_hf *hf, const sbp_json *field) {
    if (field->kind == SBP_JSON_NULL || field->key[0] == '_')
        return true; /* _: transformers' own, of a class in memory; what a family reads is not left over */
    const known_field *known = find_field(hf, field->key);
    switch (known ? known->rule : VALUE) {
    case ANY:
        return true;
    case OFF:
        return is_off(field);
    case DROPOUT:
        return is_off(field) || field->kind == SBP_JSON_INT || field->kind == SBP_JSON_REAL;
    default:
        return known && strcmp(print_value(hf, field), known->value) == 0;
    }
}

bool sbp_hf_is_left_over(const sbp_hf *hf, const sbp_json *field) {
    return sbp_map_get(&hf->read, field->key) < 0 && !harmless(hf, field);
}

static void check_left_over(sbp_hf *hf) {
    for (int64_t i = 0; i < hf->config->count && hf->builder.status == SBP_OK; i++) {
        const sbp_json *field = &hf->config->items[i];
        if (!sbp_hf_is_left_over(hf, field))
            continue;
        const known_field *known = find_field(hf, field->key);
        const char *value = print_value(hf, field);
        if (known && known->rule == VALUE)
            sbp_hf_fail(hf, field, "%.100s: model_type %s is built with %s alone", value, hf->text_type,
                        known->value);
        else
            sbp_hf_fail(
                hf, field,
                "%.100s%s: model_type %s is built without this field, which may change what it computes; "
                "--set %s=null builds it all the same",
                value, strlen(value) > 100 ? "..." : "", hf->model->model_type, field->key);
    }
}

/* Dropout of the file is not done: said, where there is any. */
static void say_dropout(const sbp_hf *hf) {
    sbp_text said;
    sbp_text_init(&said, hf->arena);
    for (int64_t i = 0; i < hf->config->count; i++) {
        const sbp_json *field = &hf->config->items[i];
        const known_field *known = find_field(hf, field->key);
        if (known && known->rule == DROPOUT && sbp_map_get(&hf->read, field->key) < 0 && !is_off(field))
            sbp_text_add(&said, "%s%s %s", said.length > 0 ? ", " : "", field->key, print_value(hf, field));
    }
    if (said.length > 0)
        sbp_note(hf->diag, "config.json has %s: nothing is dropped, as if it were 0", said.data);
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
        check_left_over(hf);
        hf->config = text;
        sbp_map_init(&hf->read, hf->arena);
        hf->text_type = sbp_hf_string(hf, "model_type", first);
        read_facts(hf, l);
    }
    const sbp_architecture *found = find_architecture(l->options, hf->text_type);
    if (!is_listed(wrapper->text_types, hf->text_type))
        sbp_hf_fail(hf, sbp_hf_field(hf, "model_type"), "'%s' has a text model of model_type %s",
                    hf->model->model_type, wrapper->text_types);
    else if (!found)
        sbp_hf_fail(hf, sbp_hf_field(hf, "model_type"),
                    "'%s' with a text model of model_type %s is not supported", hf->model->model_type,
                    hf->text_type);
    return hf->builder.status == SBP_OK ? found : NULL;
}

/* ---- architectures --------------------------------------------------------------------------------- */

void sbp_hf_begin(sbp_hf *hf, sbp_loading *l, const sbp_json *config, const char *model_type) {
    l->model->model_type = model_type;
    l->model->module = sbp_module_create(l->arena, l->model->name);
    *hf = (sbp_hf){.arena = l->arena,
                   .diag = l->diag,
                   .config = config,
                   .compute = l->options->compute,
                   .residual = l->residual,
                   .model = l->model,
                   .head = l->options->head,
                   .balance = l->options->balance,
                   .pad_row = -1,
                   .text_type = model_type,
                   .root = "model",
                   .layers = "layers",
                   .head_module = "lm_head",
                   .weights = l->weights};
    sbp_map_init(&hf->read, l->arena);
    sbp_func *func = sbp_module_add_func(l->model->module, "model");
    hf->builder = sbp_builder_on(l->model->module, func, l->diag);
    read_facts(hf, l);
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

/* FP8 (DeepSeek-V3, Qwen3): the weights say where they have scales, whatever the rest of the field is.
 * Kimi-K2.5 and others come in packed INT4. */
static void read_quantized(sbp_hf *hf) {
    const sbp_json *field = sbp_json_member(hf->config, "quantization_config");
    const sbp_json *method = field ? sbp_json_member(field, "quant_method") : NULL;
    if (!method || method->kind != SBP_JSON_STRING)
        return;
    if (strcmp(method->string, "compressed-tensors") == 0) {
        const sbp_json *format = sbp_json_member(field, "format");
        sbp_hf_fail(hf, field,
                    "weights are in codes of compressed-tensors (%s), which nothing here reads: begin with a "
                    "checkpoint in bfloat16 or FP8",
                    format && format->kind == SBP_JSON_STRING ? format->string : "no format is given");
        return;
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
    if (hf->fp8)
        sbp_note(l->diag, "weights in FP8 are read as numbers, trained and written as such, without "
                          "quantization_config; those that are frozen keep their blocks while it runs");
}

/* Without a quantization_config that is null, or of weights that are written as numbers: transformers goes by
 * whether it is there. */
static const char *print_config(sbp_arena *arena, const sbp_json *config, bool numbers) {
    sbp_text text;
    sbp_text_init(&text, arena);
    sbp_json_writer w = sbp_json_writer_on(&text);
    w.compact = true;
    sbp_json_write_object(&w, NULL);
    for (int64_t i = 0; i < config->count; i++)
        if (strcmp(config->items[i].key, "quantization_config") != 0 ||
            !(numbers || config->items[i].kind == SBP_JSON_NULL))
            sbp_json_write_value(&w, config->items[i].key, &config->items[i]);
    sbp_json_write_end(&w);
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
    check_left_over(&hf);
    SBP_TRY(hf.builder.status);
    if (hf.untied)
        SBP_TRY(override_one(l, "tie_word_embeddings=false", &config));
    say_dropout(&hf);
    say_quantized(l, &hf);
    l->model->config = print_config(l->arena, config, hf.fp8);
    return SBP_OK;
}
