/* export_arch.c: <architecture>.* keys. Those that gguf_table.def has a field for are written by it; what is
 * left is what the converter computes: rotation, lists by layers, sizes of heads. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "frontends/formats/export/export_keys.h"
#include "frontends/formats/weights/gguf_traits.h"

typedef struct putter {
    const exp_model *m;
    sbp_gguf_keys *keys;
} putter;

static bool is(const putter *p, sbp_gguf_traits traits) {
    return sbp_gguf_has(p->m->facts.family, traits);
}

static const char *named(const putter *p, const char *key) {
    return sbp_arena_printf(p->m->arena, "%s.%s", p->m->architecture, key);
}

/* llama.cpp reads rope_freqs.weight. */
static bool scales_as_llama3(const exp_model *m) {
    return sbp_gguf_has(m->facts.family, LLAMA3_ROWS) ||
           (sbp_gguf_has(m->facts.family, INTERLEAVED) && !sbp_gguf_has(m->facts.family, MIXERS));
}

static void put_count(const putter *p, const char *key, int64_t value) {
    sbp_gguf_put_u32(p->keys, named(p, key), (uint32_t)value);
}

static void put_number(const putter *p, const char *key, double value) {
    sbp_gguf_put_f32(p->keys, named(p, key), (float)value);
}

static void put_bool(const putter *p, const char *key, bool value) {
    sbp_gguf_put_bool(p->keys, named(p, key), value);
}

/* Numbers of all layers, as the converter writes a list of Python. */
static sbp_text *put_list(const putter *p, const char *key, sbp_gguf_type type) {
    return sbp_gguf_put_array(p->keys, named(p, key), type, p->m->facts.layers);
}

static bool is_on(const putter *p, const char *field) {
    double value = sbp_exp_number(p->m, field);
    return !isnan(value) && value != 0;
}

/* ---- kinds of layers ---------------------------------------------------------------------------------- */

static bool has_suffix(const char *text, const char *suffix) {
    size_t a = strlen(text), b = strlen(suffix);
    return a >= b && strcmp(text + a - b, suffix) == 0;
}

/* What a layer is called in layer_types or layers_block_type; "" where neither is there. */
static const char *layer_type(const putter *p, int64_t layer) {
    static const char *const fields[] = {"layer_types", "layers_block_type"};
    for (int k = 0; k < 2; k++) {
        const sbp_json *types = sbp_json_member(p->m->config, fields[k]);
        if (types && types->kind == SBP_JSON_ARRAY && layer < types->count &&
            types->items[layer].kind == SBP_JSON_STRING)
            return types->items[layer].string;
    }
    return "";
}

/* Nemotron-H's letters: M a state, * attention, - an MLP, E experts. */
static char layer_letter(const putter *p, int64_t layer) {
    const sbp_json *pattern = sbp_json_member(p->m->config, "hybrid_override_pattern");
    const char *type = layer_type(p, layer);
    if (pattern && pattern->kind == SBP_JSON_STRING && layer < pattern->count)
        return pattern->string[layer];
    return strcmp(type, "mamba") == 0 || strcmp(type, "linear_attention") == 0 ? 'M'
           : has_suffix(type, "attention")                                     ? '*'
           : strcmp(type, "moe") == 0                                          ? 'E'
                                                                               : '-';
}

static bool is_word_of_layer(const putter *p, const char *field, int64_t layer, const char *word) {
    const sbp_json *list = sbp_json_member(p->m->config, field);
    return list && list->kind == SBP_JSON_ARRAY && layer < list->count &&
           list->items[layer].kind == SBP_JSON_STRING && strcmp(list->items[layer].string, word) == 0;
}

static bool is_in_list(const putter *p, const char *field, int64_t layer) {
    const sbp_json *list = sbp_json_member(p->m->config, field);
    for (int64_t i = 0; list && list->kind == SBP_JSON_ARRAY && i < list->count; i++)
        if (list->items[i].kind == SBP_JSON_INT && list->items[i].integer == layer)
            return true;
    return false;
}

static bool attends(const putter *p, int64_t layer) {
    const char *type = layer_type(p, layer);
    if (is(p, MIXERS))
        return layer_letter(p, layer) == '*';
    if (is(p, SHORT_CONVS))
        return *type ? strcmp(type, "conv") != 0 : is_in_list(p, "full_attn_idxs", layer);
    return strcmp(type, "attention") == 0 || strcmp(type, "full_attention") == 0;
}

static bool slides(const putter *p, int64_t layer) {
    const char *type = layer_type(p, layer);
    if (*type)
        return strcmp(type, "sliding_attention") == 0;
    double usual = sbp_gguf_default(p->m->facts.family, "sliding_window_pattern"), given = usual;
    if (p->m->facts.family == SBP_GGUF_GEMMA3 || is(p, LISTED_WINDOWS))
        given = sbp_exp_number(p->m, "sliding_window_pattern");
    if (p->m->facts.family == SBP_GGUF_GRANITE_SWA) /* the first of four has none */
        return layer % (int64_t)given != 0;
    if (is(p, TWO_SIZES) && layer + 1 == p->m->facts.layers)
        return false;
    return !isnan(usual) && (layer + 1) % (int64_t)(given >= 1 ? given : usual) != 0;
}

static void put_flags(const putter *p, const char *key, bool (*of)(const putter *, int64_t), bool reverse) {
    sbp_text *list = put_list(p, key, SBP_GGUF_BOOL);
    for (int64_t layer = 0; layer < p->m->facts.layers; layer++)
        sbp_gguf_add_bool(list, of(p, layer) != reverse);
}

/* A number of some layers, 0 of the others. */
static void put_of_layers(const putter *p, const char *key, double value,
                          bool (*of)(const putter *, int64_t)) {
    sbp_text *list = put_list(p, key, SBP_GGUF_I32);
    for (int64_t layer = 0; layer < p->m->facts.layers; layer++)
        sbp_gguf_add_i32(list, of(p, layer) ? (int32_t)value : 0);
}

/* null: it has none; a class that the field is absent for has its own. */
static bool has_windows(const putter *p) {
    const sbp_json *window = sbp_json_member(p->m->config, "sliding_window");
    return !window || window->kind != SBP_JSON_NULL;
}

static double number_of(const sbp_json *node) {
    return node->kind == SBP_JSON_INT    ? (double)node->integer
           : node->kind == SBP_JSON_REAL ? node->real
                                         : INFINITY;
}

/* ---- by the table ------------------------------------------------------------------------------------- */

/* Rotation, which several fields say, comes first; what a class leaves out is no key. */
static sbp_status put_row(const putter *p, const sbp_gguf_key *row) {
    double value = row->field ? sbp_exp_number(p->m, row->field) : NAN;
    if (is(p, LISTED_WINDOWS) && strcmp(row->key, "attention.sliding_window") == 0 && !has_windows(p))
        return SBP_OK;
    if (strcmp(row->key, "attention.head_count_kv") == 0 && isnan(value))
        value = (double)p->m->facts.kv_heads;
    if (isnan(value) && row->required && row->field)
        return sbp_fail(p->m->diag, SBP_INPUT,
                        "%s: the field '%s' is missing, which key %s.%s of a GGUF file says", p->m->path,
                        row->field, p->m->architecture, row->key);
    if (isnan(value))
        return SBP_OK;
    if (row->kind == SBP_GGUF_KEY_COUNT && (value < 0 || value > UINT32_MAX || value != floor(value)))
        return sbp_fail(p->m->diag, SBP_INPUT, "%s: the field '%s' is %g; a whole number is expected",
                        p->m->path, row->field, value);
    if (row->kind == SBP_GGUF_KEY_COUNT)
        put_count(p, row->key, (int64_t)value);
    else if (row->kind == SBP_GGUF_KEY_NUMBER)
        put_number(p, row->key, value);
    else if (row->kind == SBP_GGUF_KEY_BOOL)
        put_bool(p, row->key, value != 0);
    return SBP_OK;
}

static sbp_status put_rows(const putter *p) {
    const sbp_gguf_key *row = NULL;
    while ((row = sbp_gguf_next_key(p->m->facts.family, row)))
        if (row->kind <= SBP_GGUF_KEY_BOOL)
            SBP_TRY(put_row(p, row));
    return SBP_OK;
}

/* ---- rotation ----------------------------------------------------------------------------------------- */

/* A number of the object that says rotation, where it is there. */
static void put_rope_number(const putter *p, const char *field, const char *key) {
    double value = sbp_exp_rope_number(p->m, false, field);
    if (!isnan(value))
        put_number(p, key, value);
}

enum { ALPHA_LENGTH = 1 << 18 }; /* as the converter has it of all */

/* The base of the rotation is stretched by alpha, whatever the length. */
static bool is_alpha(const putter *p) {
    return is(p, TURNED_NORMS) && strcmp(sbp_exp_rope_type(p->m), "dynamic") == 0 &&
           sbp_exp_rope_number(p->m, false, "alpha") > 0;
}

static sbp_status put_scaling(const putter *p) {
    const char *type = sbp_exp_rope_type(p->m);
    double factor = sbp_exp_rope_number(p->m, false, "factor");
    type = strcmp(type, "mrope") == 0 && is(p, PICTURES) ? "default" : type; /* which axes turn what */
    bool linear = strcmp(type, "linear") == 0, yarn = strcmp(type, "yarn") == 0;
    if ((linear || yarn) && !isnan(factor)) {
        sbp_gguf_put_string(p->keys, named(p, "rope.scaling.type"), type);
        put_number(p, "rope.scaling.factor", factor);
    }
    if (yarn && !isnan(factor)) {
        double length = sbp_exp_rope_number(p->m, false, "original_max_position_embeddings");
        put_count(p, "rope.scaling.original_context_length",
                  (int64_t)(isnan(length) ? sbp_exp_number(p->m, "max_position_embeddings") : length));
        put_rope_number(p, "extrapolation_factor", "rope.scaling.yarn_ext_factor");
        const sbp_gguf_key *row = NULL;
        while ((row = sbp_gguf_next_key(p->m->facts.family, row)))
            if (row->kind == SBP_GGUF_KEY_YARN)
                put_rope_number(p, row->field, row->key);
    }
    double given = sbp_exp_rope_number(p->m, false, "attention_factor"), usual = 0.1 * log(factor) + 1;
    if (yarn && !isnan(given) && fabs(given - usual) > 1e-6) /* llama.cpp takes the usual one times this */
        put_number(p, "rope.scaling.attn_factor", given / usual);
    bool llama3 = strcmp(type, "llama3") == 0 && scales_as_llama3(p->m),
         part = strcmp(type, "proportional") == 0 && is(p, PROPORTIONAL);
    if (is_alpha(p)) {
        sbp_gguf_put_string(p->keys, named(p, "rope.scaling.type"), "none");
        put_number(p, "rope.scaling.factor", 1);
        put_count(p, "rope.scaling.original_context_length", ALPHA_LENGTH);
        put_count(p, "context_length", ALPHA_LENGTH);
        return SBP_OK;
    }
    if (!linear && !yarn && !llama3 && !part && strcmp(type, "default") != 0 && strcmp(type, "dynamic") != 0)
        return sbp_fail(p->m->diag, SBP_INPUT,
                        "%s: rope_type '%s' has no place in a GGUF file of architecture %s", p->m->path, type,
                        p->m->architecture);
    if (strcmp(type, "dynamic") == 0)
        sbp_warn(p->m->diag,
                 "%s: a GGUF file does not say rope_type 'dynamic': texts longer than "
                 "max_position_embeddings will "
                 "be rotated otherwise",
                 p->m->path);
    return SBP_OK;
}

/* By what longrope multiplies sines and cosines of long texts. */
static void put_long_factor(const putter *p, double length) {
    double scale = sbp_exp_number(p->m, "max_position_embeddings") / length;
    bool yarn = strcmp(sbp_exp_rope_type(p->m), "yarn") == 0;
    if (sbp_exp_rope_list(p->m, "long_factor"))
        put_number(p, "rope.scaling.attn_factor",
                   scale <= 1 ? 1
                   : yarn     ? 0.1 * log(scale) + 1
                              : sqrt(1 + log(scale) / log(length)));
}

static sbp_status check_longrope(const putter *p) {
    const char *type = sbp_exp_rope_type(p->m);
    bool lists = sbp_exp_rope_list(p->m, "long_factor") != NULL;
    if (strcmp(type, "default") == 0 || (lists && (strcmp(type, "longrope") == 0 || strcmp(type, "su") == 0)))
        return SBP_OK;
    return sbp_fail(p->m->diag, SBP_INPUT,
                    "%s: rope_type '%s' has no place in a GGUF file of architecture %s", p->m->path, type,
                    p->m->architecture);
}

/* What the class has where its rotation is not said is no key. */
static sbp_status put_tempered(const putter *p, double all) {
    double one = sbp_exp_rope_number(p->m, false, "mscale"),
           beta = sbp_exp_rope_number(p->m, false, "llama_4_scaling_beta");
    if (strcmp(sbp_exp_rope_type(p->m), "yarn") != 0 || isnan(all) || isnan(beta) || all == 0 || one != 1)
        return sbp_fail(p->m->diag, SBP_INPUT,
                        "%s: rotary frequencies of type yarn with mscale 1, mscale_all_dim and "
                        "llama_4_scaling_beta are expected, which architecture %s of a GGUF file has alone",
                        p->m->path, p->m->architecture);
    put_number(p, "rope.scaling.yarn_log_multiplier", all);
    put_number(p, "attention.temperature_scale", beta);
    return SBP_OK;
}

/* A base for each layer, 0 where it does not turn; a file has one for all that do. */
static sbp_status put_turns(const putter *p, double *theta) {
    const sbp_json *bases = sbp_json_member(p->m->config, "layer_rope_theta");
    double one = 0;
    bool all = true;
    if (!is(p, LISTED_TURNS) || !bases || bases->kind != SBP_JSON_ARRAY || bases->count != p->m->facts.layers)
        return SBP_OK;
    for (int64_t i = 0; i < bases->count; i++) {
        double base = number_of(&bases->items[i]);
        all = all && base != 0;
        if (base != 0 && one != 0 && base != one)
            return sbp_fail(
                p->m->diag, SBP_INPUT,
                "%s: the field 'layer_rope_theta' has %g and %g; llama.cpp's architecture %s has one "
                "for all layers and would compute something else",
                p->m->path, one, base, p->m->architecture);
        one = base != 0 ? base : one;
    }
    sbp_text *list = all ? NULL : put_list(p, "attention.rope_pattern", SBP_GGUF_BOOL);
    for (int64_t i = 0; !all && i < bases->count; i++)
        sbp_gguf_add_bool(list, number_of(&bases->items[i]) != 0);
    *theta = one != 0 ? one : *theta;
    return SBP_OK;
}

static sbp_status put_rotation(const putter *p) {
    double theta = sbp_exp_rope_number(p->m, false, "rope_theta"),
           local = sbp_exp_rope_number(p->m, true, "rope_theta"),
           part = sbp_exp_rope_number(p->m, false, "partial_rotary_factor");
    int64_t head = sbp_exp_head_dim(p->m);
    if (is_alpha(p))
        theta *= pow(sbp_exp_rope_number(p->m, false, "alpha"), (double)head / (double)(head - 2));
    SBP_TRY(put_turns(p, &theta));
    if (is(p, LONG_FACTORS))
        SBP_TRY(check_longrope(p));
    else
        SBP_TRY(put_scaling(p));
    if (!is(p, MIXERS) && (!is(p, NEOX) || theta != 10000)) /* which the converter leaves out */
        put_number(p, "rope.freq_base", theta);
    if (!isnan(local))
        put_number(p, "rope.freq_base_swa", local);
    if (is(p, INTERLEAVED))
        put_count(p, "rope.dimension_count",
                  is(p, MULTIPLIERS | MIXERS)
                      ? (int64_t)sbp_exp_number(p->m, "hidden_size") / p->m->facts.heads
                      : head);
    double turned = sbp_exp_number(p->m, "rotary_dim");
    if (is(p, PARTIAL))
        put_count(p, "rope.dimension_count",
                  isnan(part) && !isnan(turned) ? (int64_t)turned : (int64_t)((double)head * part));
    if (is(p, COHERE)) {
        put_count(p, "rope.dimension_count", head);
        sbp_gguf_put_string(p->keys, named(p, "rope.scaling.type"), "none");
    }
    if (is(p, LONG_FACTORS)) {
        double hidden = sbp_exp_number(p->m, "hidden_size") * (isnan(part) ? 1 : part);
        put_count(p, "rope.dimension_count", (int64_t)hidden / p->m->facts.heads);
        double length = sbp_exp_rope_number(p->m, false, "original_max_position_embeddings");
        put_count(p, "rope.scaling.original_context_length",
                  (int64_t)(isnan(length) ? sbp_exp_number(p->m, "max_position_embeddings") : length));
        put_long_factor(p, isnan(length) ? sbp_exp_number(p->m, "max_position_embeddings") : length);
    }
    if (is(p, LATENT))
        put_count(p, "rope.dimension_count", (int64_t)sbp_exp_number(p->m, "qk_rope_head_dim"));
    double all = sbp_exp_rope_number(p->m, false, "mscale_all_dim");
    if (is(p, TEMPERED))
        SBP_TRY(put_tempered(p, all));
    if (is(p, LATENT) && !isnan(all))
        put_number(p, "rope.scaling.yarn_log_multiplier", 0.1 * all);
    return SBP_OK;
}

/* ---- attention ---------------------------------------------------------------------------------------- */

static void put_head_sizes(const putter *p) {
    const sbp_json *given = sbp_json_member(p->m->config, "head_dim");
    bool said = is(p, SIZED) || (given && given->kind == SBP_JSON_INT);
    if (!said || is(p, UNSIZED | TWO_SIZES | LATENT))
        return;
    put_count(p, "attention.key_length", sbp_exp_head_dim(p->m));
    put_count(p, "attention.value_length", sbp_exp_head_dim(p->m));
}

static void put_latent(const putter *p) {
    double rank = sbp_exp_number(p->m, "kv_lora_rank"), rotated = sbp_exp_number(p->m, "qk_rope_head_dim");
    put_count(p, "attention.head_count_kv", 1);
    put_count(p, "attention.key_length", (int64_t)(rank + rotated));
    put_count(p, "attention.value_length", (int64_t)rank);
    put_count(p, "attention.key_length_mla", p->m->facts.fixed + (int64_t)rotated);
    put_count(p, "attention.value_length_mla", p->m->facts.value);
}

static void put_two_sizes(const putter *p) {
    double full = sbp_exp_number(p->m, "global_head_dim"), sliding = sbp_exp_number(p->m, "head_dim"),
           heads = sbp_exp_number(p->m, "num_key_value_heads"),
           wide = sbp_exp_number(p->m, "num_global_key_value_heads");
    int64_t shared =
                is_on(p, "num_kv_shared_layers") ? (int64_t)sbp_exp_number(p->m, "num_kv_shared_layers") : 0,
            inner = (int64_t)sbp_exp_number(p->m, "intermediate_size"), layers = p->m->facts.layers;
    put_count(p, "attention.key_length", (int64_t)full);
    put_count(p, "attention.value_length", (int64_t)full);
    put_count(p, "attention.key_length_swa", (int64_t)sliding);
    put_count(p, "attention.value_length_swa", (int64_t)sliding);
    put_count(p, "rope.dimension_count", (int64_t)full);
    put_count(p, "rope.dimension_count_swa", (int64_t)sliding);
    put_flags(p, "attention.sliding_window_pattern", slides, false);
    put_count(p, "attention.head_count_kv", (int64_t)heads);
    if (!isnan(wide)) {
        sbp_text *list = put_list(p, "attention.head_count_kv", SBP_GGUF_I32);
        for (int64_t layer = 0; layer < layers; layer++)
            sbp_gguf_add_i32(list, (int32_t)(slides(p, layer) ? heads : wide));
    }
    put_count(p, "feed_forward_length", inner);
    if (is_on(p, "use_double_wide_mlp")) {
        sbp_text *list = put_list(p, "feed_forward_length", SBP_GGUF_I32);
        for (int64_t layer = 0; layer < layers; layer++)
            sbp_gguf_add_i32(list, (int32_t)(layer < layers - shared ? inner : 2 * inner));
    }
}

/* ---- what has states ---------------------------------------------------------------------------------- */

static bool has_mlp(const putter *p, int64_t layer) {
    return layer_letter(p, layer) == (is(p, EXPERT_MIXERS) ? 'E' : '-');
}

/* Nothing is rotated. */
static void put_nemotron(const putter *p) {
    sbp_gguf_keys_remove(p->keys, named(p, "attention.layer_norm_rms_epsilon"));
    put_count(p, "context_length", 1 << 20);
    put_bool(p, "rope.scaling.finetuned", false);
    put_of_layers(p, "feed_forward_length",
                  sbp_exp_number(p->m, is(p, EXPERT_MIXERS) ? "moe_intermediate_size" : "intermediate_size"),
                  has_mlp);
    put_count(p, "ssm.inner_size",
              (int64_t)(sbp_exp_number(p->m, "mamba_num_heads") * sbp_exp_number(p->m, "mamba_head_dim")));
    double eps = sbp_exp_number(p->m, "layer_norm_epsilon");
    if (!isnan(eps))
        put_number(p, "attention.layer_norm_epsilon", eps);
}

static void put_granite(const putter *p) {
    bool states = is(p, HYBRID), experts = is(p, SHARED_BESIDE);
    const sbp_json *positions = sbp_json_member(p->m->config, "position_embedding_type");
    bool turns = positions && positions->kind == SBP_JSON_STRING && strcmp(positions->string, "rope") == 0;
    put_count(p, "feed_forward_length",
              (int64_t)sbp_exp_number(p->m, experts ? "intermediate_size" : "shared_intermediate_size"));
    if (states)
        put_count(p, "ssm.inner_size",
                  (int64_t)(sbp_exp_number(p->m, "mamba_n_heads") * sbp_exp_number(p->m, "mamba_d_head")));
    if (states)
        put_count(p, "context_length", 1 << 20);
    put_bool(p, "rope.scaling.finetuned", !states || turns);
}

static void put_delta(const putter *p) {
    double interval = sbp_exp_number(p->m, "full_attention_interval");
    put_count(p, "ssm.inner_size", p->m->facts.value_size * p->m->facts.value_heads);
    if (*layer_type(p, 0))
        put_flags(p, "attention.recurrent_layers", attends, true);
    put_count(p, "full_attention_interval", isnan(interval) ? 4 : (int64_t)interval);
}

/* Which part of a head goes by which axis of positions. */
static sbp_status put_sections(const putter *p) {
    const sbp_json *given = sbp_exp_rope_list(p->m, "mrope_section");
    static const int32_t usual[] = {11, 11, 10, 0};
    if (!given && is(p, PICTURES))
        return sbp_fail(p->m->diag, SBP_INPUT,
                        "%s: the field 'mrope_section' is missing, which key %s.rope.dimension_sections of a "
                        "GGUF file says",
                        p->m->path, p->m->architecture);
    if (!given && !is(p, SECTIONS))
        return SBP_OK;
    sbp_text *list = sbp_gguf_put_array(p->keys, named(p, "rope.dimension_sections"), SBP_GGUF_I32, 4);
    for (int64_t i = 0; i < 4; i++)
        sbp_gguf_add_i32(list, !given ? usual[i]
                               : i < given->count && given->items[i].kind == SBP_JSON_INT
                                   ? (int32_t)given->items[i].integer
                                   : 0);
    return SBP_OK;
}

/* Layers that images are added behind, of the whole model. */
static void put_image_layers(const putter *p) {
    const sbp_json *images = sbp_json_member(p->m->root, "vision_config"),
                   *layers = sbp_json_member(images, "deepstack_visual_indexes");
    if (!images)
        sbp_warn(
            p->m->diag,
            "%s: without a field 'vision_config' the GGUF file says n_deepstack_layers 0: it will not go "
            "with the file of images (mmproj)",
            p->m->path);
    put_count(p, "n_deepstack_layers", layers && layers->kind == SBP_JSON_ARRAY ? layers->count : 0);
}

/* ---- experts ------------------------------------------------------------------------------------------ */

enum { SOFTMAX = 1, SIGMOID = 2 };

static void put_experts(const putter *p) {
    const sbp_json *scoring = sbp_json_member(p->m->config, "scoring_func");
    bool sigmoid = scoring && scoring->kind == SBP_JSON_STRING && strcmp(scoring->string, "sigmoid") == 0;
    if (is(p, SHARED_EXPERTS | BY_SIGMOIDS) || sigmoid)
        put_count(p, "expert_gating_func", SIGMOID);
    if (is(p, ROUTED) && (is_on(p, "norm_topk_prob") || !is(p, LATENT)))
        put_bool(p, "expert_weights_norm", is_on(p, "norm_topk_prob"));
    if (p->m->facts.family == SBP_GGUF_GLM4_MOE_LITE &&
        isnan(sbp_exp_number(p->m, "first_k_dense_replace"))) {
        int64_t dense = 0; /* said layer by layer */
        while (dense < p->m->facts.layers && is_word_of_layer(p, "mlp_layer_types", dense, "dense"))
            dense++;
        put_count(p, "leading_dense_block_count", dense);
    }
    double drafts = sbp_exp_number(p->m, "num_nextn_predict_layers");
    if (p->m->facts.family == SBP_GGUF_GLM4_MOE && drafts == 0)
        put_count(p, "nextn_predict_layers", 0);
    if (is(p, GATES_IN_TURN) || (is(p, BLOCK_SPARSE) && is(p, BY_SIGMOIDS)))
        put_count(p, "expert_feed_forward_length", (int64_t)sbp_exp_number(p->m, "intermediate_size"));
    if (is(p, HUNYUAN_EXPERTS)) {
        put_count(p, "expert_shared_feed_forward_length",
                  (int64_t)(sbp_exp_number(p->m, "moe_intermediate_size") *
                            sbp_exp_number(p->m, "num_shared_experts")));
        put_bool(p, "expert_weights_norm", true);
    }
    if (is(p, ERNIE_EXPERTS) && is_on(p, "moe_num_shared_experts"))
        put_count(p, "expert_shared_feed_forward_length",
                  (int64_t)(sbp_exp_number(p->m, "moe_intermediate_size") *
                            sbp_exp_number(p->m, "moe_num_shared_experts")));
}

/* ---- what llama.cpp has no choice about ------------------------------------------------------------- */

static sbp_status refuse_field(const putter *p, const char *field, const char *given, const char *expected) {
    return sbp_fail(
        p->m->diag, SBP_INPUT,
        "%s: the field '%s' is %s; llama.cpp's architecture %s has only %s and would compute something else",
        p->m->path, field, given, p->m->architecture, expected);
}

static sbp_status check_activation(const putter *p) {
    static const char *const names[] = {"hidden_act", "hidden_activation", "mlp_hidden_act"};
    const char *only = sbp_gguf_activation(p->m->facts.family);
    for (int i = 0; i < SBP_COUNT(names); i++) {
        const sbp_json *given = sbp_json_member(p->m->config, names[i]);
        bool beside = i == 0 && sbp_json_member(p->m->config, is(p, GEMMA) ? names[1] : names[2]);
        if (given && given->kind == SBP_JSON_STRING && !beside && strcmp(given->string, only) != 0)
            return refuse_field(p, names[i], given->string, only);
    }
    return SBP_OK;
}

/* Time steps of Mamba that are kept within limits. */
static sbp_status check_steps(const putter *p) {
    const sbp_json *limits = sbp_json_member(p->m->config, "time_step_limit");
    double least = sbp_exp_number(p->m, "time_step_min");
    bool limited = is(p, MIXERS) && !isnan(least) && least > 0.001;
    if (limits && limits->kind == SBP_JSON_ARRAY && limits->count == 2)
        limited |= number_of(&limits->items[0]) > 0 || number_of(&limits->items[1]) < 1e30;
    if (limited && is(p, MAMBA))
        return refuse_field(p, limits ? "time_step_limit" : "time_step_min", "set", "none");
    return SBP_OK;
}

/* EXAONE 4's windows, which llama.cpp has in its largest model alone. */
static sbp_status check_windows(const putter *p) {
    const sbp_json *pattern = sbp_json_member(p->m->config, "sliding_window_pattern");
    if (p->m->facts.family != SBP_GGUF_EXAONE4 || !has_windows(p))
        return SBP_OK;
    if (!*layer_type(p, 0) && pattern && pattern->kind == SBP_JSON_STRING)
        return sbp_fail(p->m->diag, SBP_INPUT,
                        "%s: the field 'layer_types' is missing: windows by letters are not written",
                        p->m->path);
    if (p->m->facts.layers == 64)
        return SBP_OK;
    return sbp_fail(p->m->diag, SBP_INPUT,
                    "%s: a sliding window, of %lld layers; llama.cpp's architecture %s has windows in models "
                    "of 64 layers only and would compute something else",
                    p->m->path, (long long)p->m->facts.layers, p->m->architecture);
}

static sbp_status check_fixed(const putter *p) {
    if (p->m->facts.heads < 1 && !isnan(sbp_exp_number(p->m, "num_attention_heads")))
        return sbp_fail(p->m->diag, SBP_INPUT,
                        "%s: the field 'num_attention_heads' is %lld; at least one is expected", p->m->path,
                        (long long)p->m->facts.heads);
    SBP_TRY(check_activation(p));
    SBP_TRY(check_steps(p));
    SBP_TRY(check_windows(p));
    const sbp_gguf_constant *row = NULL;
    while ((row = sbp_gguf_next_constant(p->m->facts.family, row))) {
        double value = sbp_exp_number(p->m, row->field);
        char given[40], only[40];
        sbp_format_double(given, sizeof given, value);
        sbp_format_double(only, sizeof only, row->value);
        if (!isnan(value) && value != row->value)
            return refuse_field(p, row->field, given, only);
    }
    double last = sbp_exp_number(p->m, "moe_layer_end_index");
    if (is(p, ERNIE_EXPERTS) && last >= 0 && last < (double)(p->m->facts.layers - 1))
        return refuse_field(p, "moe_layer_end_index", "before the last layer", "that");
    double scale = sbp_exp_number(p->m, "query_pre_attn_scalar");
    int64_t usual = sbp_gguf_query_scalar(&p->m->facts, (int64_t)sbp_exp_number(p->m, "hidden_size"),
                                          sbp_exp_head_dim(p->m));
    char given[40], only[40];
    sbp_format_double(given, sizeof given, scale);
    sbp_format_double(only, sizeof only, (double)usual);
    if (usual >= 0 && !isnan(scale) && scale != (double)usual)
        return refuse_field(p, "query_pre_attn_scalar", given, only);
    return SBP_OK;
}

/* ---- all of it ---------------------------------------------------------------------------------------- */

/* Whether layers have windows as llama.cpp takes it where no key says so. */
static bool has_usual_windows(const putter *p) {
    double every = sbp_gguf_default(p->m->facts.family, "sliding_window_pattern");
    for (int64_t layer = 0; layer < p->m->facts.layers; layer++)
        if (slides(p, layer) != (every >= 1 && (layer + 1) % (int64_t)every != 0))
            return false;
    return true;
}

static void put_windows(const putter *p) {
    double window = sbp_exp_number(p->m, "sliding_window");
    bool used =
        isnan(sbp_gguf_default(p->m->facts.family, "use_sliding_window")) /* its class has no choice */
        || is_on(p, "use_sliding_window");
    if (is(p, LONG_FACTORS))
        put_count(p, "attention.sliding_window", isnan(window) ? 0 : (int64_t)window);
    bool listed = is(p, WINDOWS) && !is(p, TWO_SIZES) && !(is(p, LISTED_WINDOWS) && !has_windows(p));
    if (listed && !(is(p, PERIODIC) && has_usual_windows(p)))
        put_flags(p, "attention.sliding_window_pattern", slides, false);
    if (is(p, WINDOW_LOST) && used && !isnan(window) &&
        window < sbp_exp_number(p->m, "max_position_embeddings"))
        sbp_warn(p->m->diag,
                 "%s: a GGUF file of architecture %s does not say the sliding window of %g tokens; behind "
                 "that many "
                 "llama.cpp sees all of them",
                 p->m->path, p->m->architecture, window);
}

static void put_lengths(const putter *p) {
    put_count(p, "block_count", p->m->facts.layers);
    if (is(p, OR_GRANITE_4))
        put_count(p, "feed_forward_length", (int64_t)sbp_exp_number(p->m, "intermediate_size"));
    if (is(p, KINDS_OF_LAYERS))
        put_of_layers(p, "attention.head_count_kv", (double)p->m->facts.kv_heads, attends);
    double vocabulary = sbp_exp_number(p->m, "vocab_size");
    if (is(p, INTERLEAVED | LATENT | SHORT_CONVS | LISTED_WINDOWS) && !isnan(vocabulary))
        put_count(p, "vocab_size", (int64_t)vocabulary);
}

sbp_status sbp_exp_put_architecture(const exp_model *model, sbp_gguf_keys *keys) {
    putter p = {model, keys};
    SBP_TRY(check_fixed(&p));
    SBP_TRY(put_rows(&p));
    SBP_TRY(put_rotation(&p));
    put_head_sizes(&p);
    put_lengths(&p);
    put_windows(&p);
    SBP_TRY(put_sections(&p));
    put_experts(&p);
    if (is(&p, PICTURES) && model->facts.family != SBP_GGUF_QWEN2_5_VL)
        put_image_layers(&p);
    if (is(&p, LATENT))
        put_latent(&p);
    if (is(&p, TWO_SIZES))
        put_two_sizes(&p);
    if (is(&p, MIXERS))
        put_nemotron(&p);
    if (is(&p, GRANITE_4))
        put_granite(&p);
    if (is(&p, DELTA_RULE))
        put_delta(&p);
    return SBP_OK;
}

/* ---- tensors that are made ---------------------------------------------------------------------------- */

/* By what Llama 3 divides each frequency; in float32, as the converter. */
static float llama3_factor(float frequency, float factor, float low, float high, float length) {
    float wave = (float)(2 * 3.14159265358979323846) / frequency;
    if (wave < length / high)
        return 1;
    if (wave > length / low)
        return factor;
    float smooth = (length / wave - low) / (high - low);
    return 1 / ((1 - smooth) / factor + smooth);
}

static double or_else(double value, double fallback) {
    return isnan(value) ? fallback : value;
}

static exp_extra llama3(const exp_model *m) {
    int64_t head = sbp_exp_head_dim(m), n = head / 2;
    float *out = SBP_NEW_ARRAY(m->arena, float, n);
    float theta = (float)sbp_exp_rope_number(m, false, "rope_theta");
    float factor = (float)or_else(sbp_exp_rope_number(m, false, "factor"), 8),
          low = (float)or_else(sbp_exp_rope_number(m, false, "low_freq_factor"), 1),
          high = (float)or_else(sbp_exp_rope_number(m, false, "high_freq_factor"), 4),
          length = (float)or_else(sbp_exp_rope_number(m, false, "original_max_position_embeddings"), 8192);
    for (int64_t i = 0; i < n; i++)
        out[i] = llama3_factor(1 / powf(theta, (float)(2 * i) / (float)head), factor, low, high, length);
    return (exp_extra){"rope_freqs.weight", out, n};
}

/* Gemma 4's full attention turns a part of each head: the rest by a frequency of nothing. */
static exp_extra proportional(const exp_model *m) {
    int64_t head = (int64_t)sbp_exp_number(m, "global_head_dim"), n = head / 2;
    double part = or_else(sbp_exp_rope_number(m, false, "partial_rotary_factor"), 1);
    int64_t turning = (int64_t)((double)head * part / 2);
    float *out = SBP_NEW_ARRAY(m->arena, float, n);
    for (int64_t i = 0; i < n; i++)
        out[i] = i < turning ? 1 : 1e30F;
    return (exp_extra){"rope_freqs.weight", out, n};
}

static exp_extra factors(const exp_model *m, const char *name, const sbp_json *list) {
    float *out = SBP_NEW_ARRAY(m->arena, float, list->count);
    for (int64_t i = 0; i < list->count; i++)
        out[i] =
            list->items[i].kind == SBP_JSON_INT ? (float)list->items[i].integer : (float)list->items[i].real;
    return (exp_extra){name, out, list->count};
}

sbp_status sbp_exp_extra_tensors(const exp_model *m, exp_extra out[EXP_MOST_EXTRAS], int *count) {
    sbp_gguf_family_id family = m->facts.family;
    const sbp_json *longs = sbp_exp_rope_list(m, "long_factor"),
                   *shorts = sbp_exp_rope_list(m, "short_factor");
    *count = 0;
    if (scales_as_llama3(m) && strcmp(sbp_exp_rope_type(m), "llama3") == 0)
        out[(*count)++] = llama3(m);
    if (sbp_gguf_has(family, PROPORTIONAL))
        out[(*count)++] = proportional(m);
    if (sbp_gguf_has(family, LONG_FACTORS) && longs && shorts) {
        if (longs->count != shorts->count)
            return sbp_fail(m->diag, SBP_INPUT, "%s: long_factor has %lld numbers, short_factor %lld",
                            m->path, (long long)longs->count, (long long)shorts->count);
        out[(*count)++] = factors(m, "rope_factors_long.weight", longs);
        out[(*count)++] = factors(m, "rope_factors_short.weight", shorts);
    }
    return SBP_OK;
}
