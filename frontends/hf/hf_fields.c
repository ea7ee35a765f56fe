/* hf_fields.c: what is read of every config.json: facts about tokens and types; and the check that no field
 * was left unread that could matter. */
#include <string.h>

#include "frontends/hf/hf_load.h"

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

void sbp_hf_read_facts(sbp_hf *hf, sbp_loading *l) {
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

bool sbp_hf_is_listed(const char *list, const char *word) {
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
            (!known[i].types || sbp_hf_is_listed(known[i].types, hf->text_type)))
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

void sbp_hf_check_left_over(sbp_hf *hf) {
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

void sbp_hf_say_dropout(const sbp_hf *hf) {
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

/* ---- the beginning ----------------------------------------------------------------------------------- */

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
                   .routed_experts = l->options->routed_experts,
                   .pad_row = -1,
                   .text_type = model_type,
                   .root = "model",
                   .layers = "layers",
                   .head_module = "lm_head",
                   .weights = l->weights};
    sbp_map_init(&hf->read, l->arena);
    sbp_func *func = sbp_module_add_func(l->model->module, "model");
    hf->builder = sbp_builder_on(l->model->module, func, l->diag);
    sbp_hf_read_facts(hf, l);
}
