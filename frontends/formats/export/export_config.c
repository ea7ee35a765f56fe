/* export_config.c: numbers of config.json, with what the classes of transformers take where it
 * says nothing. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "frontends/formats/export/export_keys.h"

/* Other names of a field, which files have had. */
static const struct {
    const char *field, *other;
} spellings[] = {
    {"num_local_experts", "num_experts"},
    {"num_experts", "num_local_experts"},
    {"n_routed_experts", "num_local_experts"},
    {"partial_rotary_factor", "rotary_pct"},
    {"rope_theta", "rotary_emb_base"},
    {"layer_norm_epsilon", "rms_norm_eps"},
    {"moe_intermediate_size", "expert_intermediate_size"},
};

static double value_of(const sbp_json *node) {
    if (!node)
        return NAN;
    return node->kind == SBP_JSON_INT    ? (double)node->integer
           : node->kind == SBP_JSON_REAL ? node->real
           : node->kind == SBP_JSON_BOOL ? (double)node->boolean
                                         : NAN;
}

/* What layers with full attention have otherwise, where it is said of each of them alone
 * (per_layer_config). */
static double of_full_attention(const exp_model *m, const char *field) {
    const sbp_json *layers = sbp_json_member(m->config, "per_layer_config"),
                   *types = sbp_json_member(m->config, "layer_types");
    const char *own = strcmp(field, "global_head_dim") == 0              ? "head_dim"
                      : strcmp(field, "num_global_key_value_heads") == 0 ? "num_key_value_heads"
                                                                         : NULL;
    for (int64_t i = 0; own && layers && layers->kind == SBP_JSON_OBJECT && i < layers->count; i++) {
        int64_t layer = strtoll(layers->items[i].key, NULL, 10);
        bool full = types && types->kind == SBP_JSON_ARRAY && layer >= 0 && layer < types->count &&
                    types->items[layer].kind == SBP_JSON_STRING &&
                    strcmp(types->items[layer].string, "full_attention") == 0;
        if (full && sbp_json_member(&layers->items[i], own))
            return value_of(sbp_json_member(&layers->items[i], own));
    }
    return NAN;
}

double sbp_exp_number(const exp_model *m, const char *field) {
    double value = value_of(sbp_json_member(m->config, field));
    for (int i = 0; isnan(value) && i < SBP_COUNT(spellings); i++)
        if (strcmp(spellings[i].field, field) == 0)
            value = value_of(sbp_json_member(m->config, spellings[i].other));
    if (isnan(value))
        value = of_full_attention(m, field);
    return isnan(value) ? sbp_gguf_default(m->facts.family, field) : value;
}

/* ---- rotation ----------------------------------------------------------------------------------------- */

/* The object that has the parameters of layers of a kind, or NULL; a rope_scaling replaces rope_parameters
 * that are not by kinds of layers. */
static const sbp_json *rope_object(const exp_model *m, bool sliding) {
    const sbp_json *parameters = sbp_json_member(m->config, "rope_parameters"),
                   *scaling = sbp_json_member(m->config, "rope_scaling"),
                   *kind = sbp_json_member(parameters, sliding ? "sliding_attention" : "full_attention");
    if (kind && kind->kind == SBP_JSON_OBJECT)
        return kind;
    if (sliding)
        return NULL;
    if (scaling && scaling->kind == SBP_JSON_OBJECT && scaling->count > 0)
        return scaling;
    return parameters && parameters->kind == SBP_JSON_OBJECT ? parameters : NULL;
}

double sbp_exp_rope_number(const exp_model *m, bool sliding, const char *field) {
    double value = value_of(sbp_json_member(rope_object(m, sliding), field));
    if (isnan(value) && sliding && strcmp(field, "rope_theta") == 0)
        return value_of(sbp_json_member(m->config, "rope_local_base_freq"));
    if (isnan(value) && !sliding &&
        !isnan(value_of(sbp_json_member(sbp_json_member(m->config, "rope_parameters"), field))))
        value = value_of(sbp_json_member(sbp_json_member(m->config, "rope_parameters"), field));
    if (isnan(value) && !sliding &&
        (strcmp(field, "rope_theta") == 0 || strcmp(field, "partial_rotary_factor") == 0 ||
         strcmp(field, "original_max_position_embeddings") == 0))
        value = sbp_exp_number(m, field);
    return value;
}

const char *sbp_exp_rope_type(const exp_model *m) {
    const sbp_json *object = rope_object(m, false), *type = sbp_json_member(object, "rope_type");
    if (!type)
        type = sbp_json_member(object, "type");
    return type && type->kind == SBP_JSON_STRING ? type->string : "default";
}

const sbp_json *sbp_exp_rope_list(const exp_model *m, const char *field) {
    const sbp_json *list = sbp_json_member(rope_object(m, false), field);
    return list && list->kind == SBP_JSON_ARRAY ? list : NULL;
}

int64_t sbp_exp_head_dim(const exp_model *m) {
    double given = sbp_exp_number(m, "head_dim");
    if (given >= 1)
        return (int64_t)given;
    double hidden = sbp_exp_number(m, "hidden_size");
    return m->facts.heads > 0 && hidden >= 1 ? (int64_t)hidden / m->facts.heads : 1;
}
