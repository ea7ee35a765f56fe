/* gguf_facts.c: which family a model is of, and its numbers, from config.json and from the keys of a file. */
#include "frontends/formats/weights/gguf_traits.h"

#include <stdio.h>
#include <string.h>

/* The most of heads, sizes, and layers: products of two of them and a row fit 64 bits. */
enum { MOST = 1 << 20, MOST_LAYERS = 10000 };

/* ---- families of one architecture or model_type ------------------------------------------------------ */

/* What a model has, of the traits by which they differ. */
typedef struct marks {
    bool experts, states, windows, tempered;
} marks;

/* How many of these traits a family has; below 0: one that the model does not have. */
static int fit(sbp_gguf_family_id id, const marks *m) {
    const struct {
        sbp_gguf_traits traits;
        bool there;
    } differ[] = {
        {EXPERTS, m->experts}, {MAMBA, m->states}, {TWO_ROPES, m->windows}, {TEMPERED, m->tempered}};
    int fits = 0;
    for (int i = 0; i < SBP_COUNT(differ); i++)
        if (sbp_gguf_has(id, differ[i].traits))
            fits += differ[i].there ? 1 : -SBP_COUNT(differ);
    return fits;
}

/* The one that fits better, the first of two that do alike. */
static sbp_gguf_family_id better(sbp_gguf_family_id a, sbp_gguf_family_id b, const marks *m) {
    return a == SBP_GGUF_FAMILIES || fit(b, m) > fit(a, m) ? b : a;
}

/* ---- config.json ------------------------------------------------------------------------------------- */

typedef struct config {
    sbp_diag *diag;
    const char *path;
    const sbp_json *fields;
    sbp_status status;
} config;

/* A field, `fallback` where it is absent or null. */
static int64_t number(config *c, const char *field, int64_t fallback) {
    int64_t value = fallback;
    if (c->status == SBP_OK)
        c->status = sbp_json_get_i64(c->diag, c->fields, field, SBP_JSON_NULLABLE, &value);
    if (c->status == SBP_OK && (value < 0 || value > MOST))
        c->status = sbp_fail(c->diag, SBP_INPUT, "%s: field '%s' is %lld; from 0 to %d is expected", c->path,
                             field, (long long)value, MOST);
    return value;
}

/* Whether no layer of a granitemoehybrid has a state. */
static bool all_attend(const sbp_json *fields) {
    const sbp_json *types = sbp_json_member(fields, "layer_types");
    types = types && types->kind == SBP_JSON_ARRAY ? types : sbp_json_member(fields, "layers_block_type");
    if (!types || types->kind != SBP_JSON_ARRAY || types->count == 0)
        return false;
    for (int64_t i = 0; i < types->count; i++) {
        const char *type = types->items[i].kind == SBP_JSON_STRING ? types->items[i].string : "";
        if (strcmp(type, "attention") != 0 && strcmp(type, "full_attention") != 0)
            return false;
    }
    return true;
}

/* Whether a layer of a Nemotron-H has experts: transformers writes their number for all. */
static bool has_expert_layer(const sbp_json *fields) {
    const sbp_json *pattern = sbp_json_member(fields, "hybrid_override_pattern"),
                   *kinds = sbp_json_member(fields, "layers_block_type");
    if (!sbp_json_member(fields, "num_experts_per_tok"))
        return false;
    if (pattern && pattern->kind == SBP_JSON_STRING)
        return strchr(pattern->string, 'E') != NULL;
    for (int64_t i = 0; kinds && kinds->kind == SBP_JSON_ARRAY && i < kinds->count; i++)
        if (kinds->items[i].kind == SBP_JSON_STRING && strcmp(kinds->items[i].string, "moe") == 0)
            return true;
    return false;
}

/* Multimodal models may have the fields of their text model beside their own. */
static bool is_type(const char *of_family, const char *model_type) {
    size_t n = strlen(model_type);
    return strncmp(of_family, model_type, n) == 0 && (!of_family[n] || strcmp(of_family + n, "_text") == 0);
}

static sbp_gguf_family_id family_of_type(config *c, const char *model_type) {
    sbp_gguf_family_id found = SBP_GGUF_FAMILIES;
    marks m = {.windows = true, .tempered = true};
    for (int k = 0; k < SBP_GGUF_FAMILIES; k++) {
        sbp_gguf_family_id id = (sbp_gguf_family_id)k;
        if (!is_type(sbp_gguf_family_of(id)->model_type, model_type))
            continue;
        if (found != SBP_GGUF_FAMILIES) {
            m.experts = sbp_gguf_has(id, MIXERS) ? has_expert_layer(c->fields)
                                                 : number(c, "num_local_experts", 8) > 0;
            m.states = !all_attend(c->fields);
        }
        found = better(found, id, &m);
    }
    return found;
}

/* Nemotron-H may say its layers one by one only. */
static int64_t layers_of(config *c) {
    const sbp_json *types = sbp_json_member(c->fields, "layers_block_type"),
                   *pattern = sbp_json_member(c->fields, "hybrid_override_pattern");
    int64_t fallback = types && types->kind == SBP_JSON_ARRAY        ? types->count
                       : pattern && pattern->kind == SBP_JSON_STRING ? (int64_t)strlen(pattern->string)
                                                                     : 0;
    return number(c, "num_hidden_layers", fallback);
}

sbp_status sbp_gguf_facts_of_config(sbp_diag *diag, const char *path, const sbp_json *fields,
                                    sbp_gguf_facts *out, bool *found) {
    config c = {.diag = diag, .path = path, .fields = fields, .status = SBP_OK};
    const char *model_type = "";
    SBP_TRY(sbp_json_get_string(diag, fields, "model_type", SBP_JSON_REQUIRED, &model_type));
    sbp_gguf_facts f = {.family = family_of_type(&c, model_type)};
    *found = f.family != SBP_GGUF_FAMILIES;
    if (!*found)
        return c.status;
    f.layers = layers_of(&c);
    double heads = sbp_gguf_default(f.family, "num_attention_heads");
    f.heads = number(&c, "num_attention_heads", heads >= 1 ? (int64_t)heads : 0);
    f.kv_heads = number(&c, "num_key_value_heads", number(&c, "num_attention_groups", f.heads));
    if (sbp_gguf_has(f.family, STREAMS))
        f.streams = number(&c, "altup_num_inputs", 4);
    if (sbp_gguf_has(f.family, SHARED_KV))
        f.shared = number(&c, "num_kv_shared_layers", 0);
    if (sbp_gguf_has(f.family, DELTA_RULE)) {
        f.key_heads = number(&c, "linear_num_key_heads", 16);
        f.value_heads = number(&c, "linear_num_value_heads", 32);
        f.key_size = number(&c, "linear_key_head_dim", 128);
        f.value_size = number(&c, "linear_value_head_dim", 128);
    }
    if (sbp_gguf_has(f.family, LATENT)) {
        f.fixed = number(&c, "qk_nope_head_dim", (int64_t)sbp_gguf_default(f.family, "qk_nope_head_dim"));
        f.value = number(&c, "v_head_dim", (int64_t)sbp_gguf_default(f.family, "v_head_dim"));
    }
    if (sbp_gguf_has(f.family, TURNED_EXPERTS)) {
        f.hidden = number(&c, "hidden_size", 0);
        f.expert_inner = number(&c, "moe_intermediate_size", 0);
    }
    if (sbp_gguf_has(f.family, MAMBA))
        f.groups = number(&c, sbp_gguf_find_key(f.family, "ssm.group_count")->field,
                          sbp_gguf_has(f.family, MIXERS) ? 8 : 1);
    SBP_TRY(c.status);
    if (f.layers > MOST_LAYERS)
        return sbp_fail(diag, SBP_INPUT, "%s: %lld layers; at most %d are expected", path,
                        (long long)f.layers, MOST_LAYERS);
    *out = f;
    return SBP_OK;
}

/* ---- keys -------------------------------------------------------------------------------------------- */

typedef struct file {
    sbp_diag *diag;
    const sbp_gguf *gguf;
    const char *architecture;
    sbp_status status;
} file;

static const sbp_gguf_value *find(const file *f, const char *key) {
    char name[200];
    int n = snprintf(name, sizeof name, "%s.%s", f->architecture, key);
    return n > 0 && n < (int)sizeof name ? sbp_gguf_find(f->gguf, name) : NULL;
}

/* A number; of an array with one for each layer the largest. 0 where there is none. */
static int64_t key_number(file *f, const char *key) {
    const sbp_gguf_value *v = find(f, key);
    int64_t value = 0;
    if (!v || f->status != SBP_OK)
        return 0;
    if (!sbp_gguf_is_integer(v->type))
        f->status = sbp_fail(f->diag, SBP_INPUT, "%s: key '%s': expected an integer, found %s",
                             sbp_gguf_path(f->gguf), v->key, sbp_gguf_type_name(v->type));
    for (int64_t i = 0; f->status == SBP_OK && i < v->count; i++) {
        int64_t item = sbp_gguf_i64_at(v, i);
        if (item < 0 || item > MOST)
            f->status = sbp_fail(f->diag, SBP_INPUT, "%s: key '%s' is %lld; from 0 to %d is expected",
                                 sbp_gguf_path(f->gguf), v->key, (long long)item, MOST);
        else if (item > value)
            value = item;
    }
    return value;
}

/* That of the first layer, where each has its own. */
static int64_t first_number(file *f, const char *key) {
    const sbp_gguf_value *v = find(f, key);
    int64_t most = key_number(f, key);
    return most > 0 && v->is_array ? sbp_gguf_i64_at(v, 0) : most;
}

static sbp_gguf_family_id family_of_keys(file *f) {
    sbp_gguf_family_id found = SBP_GGUF_FAMILIES;
    const marks m = {.experts = key_number(f, "expert_count") > 0,
                     .states = true, /* which no two of an architecture differ by */
                     .windows = find(f, "attention.sliding_window_pattern") != NULL,
                     .tempered = find(f, "attention.temperature_scale") != NULL};
    for (int k = 0; k < SBP_GGUF_FAMILIES; k++)
        if (strcmp(sbp_gguf_family_of((sbp_gguf_family_id)k)->architecture, f->architecture) == 0)
            found = better(found, (sbp_gguf_family_id)k, &m);
    return found;
}

sbp_status sbp_gguf_facts_of_keys(sbp_diag *diag, const sbp_gguf *gguf, sbp_gguf_facts *out, bool *found) {
    file k = {.diag = diag, .gguf = gguf, .architecture = "", .status = SBP_OK};
    SBP_TRY(sbp_gguf_get_string(diag, gguf, "general.architecture", SBP_JSON_OPTIONAL, &k.architecture));
    sbp_gguf_facts f = {.family = family_of_keys(&k)};
    *found = f.family != SBP_GGUF_FAMILIES;
    if (!*found)
        return SBP_OK;
    int64_t further = key_number(&k, "nextn_predict_layers"), blocks = key_number(&k, "block_count");
    f.layers = blocks > further ? blocks - further : 0;
    f.further = further;
    f.shared = sbp_gguf_has(f.family, SHARED_KV) ? key_number(&k, "attention.shared_kv_layers") : 0;
    f.streams = sbp_gguf_has(f.family, STREAMS) ? key_number(&k, "altup.num_inputs") : 0;
    f.heads = first_number(&k, "attention.head_count");
    f.kv_heads = sbp_gguf_has(f.family, NARROW_VALUES) ? first_number(&k, "attention.head_count_kv")
                                                       : key_number(&k, "attention.head_count_kv");
    f.kv_heads = f.kv_heads > 0 ? f.kv_heads : f.heads;
    int64_t ranks = key_number(&k, "ssm.time_step_rank"), inner = key_number(&k, "ssm.inner_size");
    if (sbp_gguf_has(f.family, MAMBA))
        f.groups = key_number(&k, "ssm.group_count");
    if (sbp_gguf_has(f.family, DELTA_RULE)) {
        f.key_heads = key_number(&k, "ssm.group_count");
        f.value_heads = ranks;
        f.key_size = key_number(&k, "ssm.state_size");
        f.value_size = ranks > 0 ? inner / ranks : 0;
    }
    if (sbp_gguf_has(f.family, LATENT)) {
        bool split = find(&k, "attention.key_length_mla") != NULL;
        int64_t turned = key_number(&k, "rope.dimension_count"),
                head = key_number(&k, split ? "attention.key_length_mla" : "attention.key_length");
        f.fixed = head > turned ? head - turned : 0;
        f.value = key_number(&k, split ? "attention.value_length_mla" : "attention.value_length");
    }
    SBP_TRY(k.status);
    if (f.layers > MOST_LAYERS)
        return sbp_fail(diag, SBP_INPUT, "%s: %lld layers (key '%s.block_count'); at most %d are expected",
                        sbp_gguf_path(gguf), (long long)f.layers, k.architecture, MOST_LAYERS);
    *out = f;
    return SBP_OK;
}
