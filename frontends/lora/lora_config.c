/* lora_config.c: adapter_config.json, as PEFT 0.21 writes LoraConfig. */
#include "frontends/lora/lora.h"

#include <math.h>
#include <string.h>
#include <strings.h>

#include "ir/base/file.h"
#include "ir/base/json_write.h"

static const char file_name[] = "adapter_config.json";

bool sbp_lora_is_adapter(sbp_arena *arena, const char *directory) {
    return sbp_file_exists(sbp_file_join(arena, directory, file_name));
}

/* ---- reading ------------------------------------------------------------------------------------------ */

typedef struct reader {
    sbp_arena *arena;
    sbp_diag *diag;
    const sbp_json *root;
} reader;

/* NULL: absent or null. */
static const sbp_json *field(const reader *r, const char *key) {
    const sbp_json *f = sbp_json_member(r->root, key);
    return f && f->kind != SBP_JSON_NULL ? f : NULL;
}

/* A string, which is a regular expression where `patterns`, or a list of strings. */
static sbp_status read_names(const reader *r, const char *key, bool patterns, sbp_lora_names *out) {
    const sbp_json *f = field(r, key);
    *out = (sbp_lora_names){0};
    if (!f)
        return SBP_OK;
    bool one = f->kind == SBP_JSON_STRING;
    if (!one)
        SBP_TRY(sbp_json_as_array(r->diag, f, &f));
    const char **names = SBP_NEW_ARRAY(r->arena, const char *, one ? 1 : f->count);
    for (int64_t i = 0; i < (one ? 1 : f->count); i++)
        SBP_TRY(sbp_json_as_string(r->diag, one ? f : &f->items[i], &names[i]));
    *out = (sbp_lora_names){.names = names, .count = one ? 1 : (int32_t)f->count, .pattern = one && patterns};
    return SBP_OK;
}

static sbp_status read_numbers(const reader *r, const char *key, const sbp_lora_number **out,
                               int32_t *count) {
    const sbp_json *f = field(r, key);
    *count = 0;
    if (!f)
        return SBP_OK;
    SBP_TRY(sbp_json_as_object(r->diag, f, &f));
    sbp_lora_number *numbers = SBP_NEW_ARRAY(r->arena, sbp_lora_number, f->count);
    for (int64_t i = 0; i < f->count; i++) {
        numbers[i].pattern = f->items[i].key;
        SBP_TRY(sbp_json_as_double(r->diag, &f->items[i], &numbers[i].value));
        if (!isfinite(numbers[i].value))
            return sbp_json_fail(r->diag, &f->items[i], "expected a number");
    }
    *out = numbers;
    *count = (int32_t)f->count;
    return SBP_OK;
}

static sbp_status read_layers(const reader *r, sbp_lora_options *out) {
    const sbp_json *f = field(r, "layers_to_transform");
    if (!f)
        return SBP_OK;
    bool one = f->kind == SBP_JSON_INT;
    if (!one)
        SBP_TRY(sbp_json_as_array(r->diag, f, &f));
    int64_t *layers = SBP_NEW_ARRAY(r->arena, int64_t, one ? 1 : f->count);
    for (int64_t i = 0; i < (one ? 1 : f->count); i++)
        SBP_TRY(sbp_json_as_i64(r->diag, one ? f : &f->items[i], &layers[i]));
    out->layers = layers;
    out->layer_count = one ? 1 : (int32_t)f->count;
    return SBP_OK;
}

/* Fields that say nothing about what is computed, or are read above; and those of which one value is built,
 * besides null, false, 0 and what is empty. */
static const char *const known[] = {
    "r",
    "lora_alpha",
    "lora_dropout",
    "use_rslora",
    "target_modules",
    "target_parameters",
    "rank_pattern",
    "alpha_pattern",
    "modules_to_save",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "base_model_name_or_path",
    "inference_mode",
    "peft_version",
    "auto_mapping",
    "task_type",
    "peft_type",
    "fan_in_fan_out",
    "ephemeral_gpu_offload",
    "runtime_config",
};
static const struct {
    const char *key, *value;
} defaults[] = {
    {"bias", "\"none\""},
    {"megatron_core", "\"megatron.core\""},
    {"qalora_group_size", "16"},
    {"revision", "\"main\""},
};

/* Ways to begin A and B that leave the weights of the model as they are, and both trained: what is saved says
 * all. The others (pissa, olora, corda, loftq, lora_ga) change the model's weights, and mica trains A alone.
 */
static const char *const inits[] = {"gaussian", "eva", "orthogonal"};

static bool begins_apart(const sbp_json *f) {
    if (f->kind == SBP_JSON_BOOL || f->kind == SBP_JSON_NULL)
        return true;
    for (int i = 0; f->kind == SBP_JSON_STRING && i < SBP_COUNT(inits); i++)
        if (strcasecmp(f->string, inits[i]) == 0)
            return true;
    return false;
}

/* Settings of one way to begin, which PEFT ignores where another is asked for; those of eva have served. */
static bool of_another_init(const sbp_json *f) {
    static const char *const settings[] = {"eva_config", "loftq_config", "corda_config", "lora_ga_config"};
    for (int i = 0; i < SBP_COUNT(settings); i++)
        if (strcmp(settings[i], f->key) == 0)
            return true;
    return false;
}

static bool is_off(const sbp_json *f) {
    switch (f->kind) {
    case SBP_JSON_NULL:
        return true;
    case SBP_JSON_BOOL:
        return !f->boolean;
    case SBP_JSON_INT:
        return f->integer == 0;
    case SBP_JSON_REAL:
        return f->real == 0;
    default:
        return f->count == 0;
    }
}

static sbp_status check_left_over(const reader *r) {
    for (int64_t i = 0; i < r->root->count; i++) {
        const sbp_json *f = &r->root->items[i];
        bool begins = strcmp(f->key, "init_lora_weights") == 0,
             fine = begins ? begins_apart(f) : is_off(f) || of_another_init(f);
        sbp_text value;
        sbp_text_init(&value, r->arena);
        sbp_json_add_value(&value, f);
        for (int k = 0; k < SBP_COUNT(known); k++)
            fine |= strcmp(known[k], f->key) == 0;
        for (int k = 0; k < SBP_COUNT(defaults); k++)
            fine |= strcmp(defaults[k].key, f->key) == 0 && strcmp(defaults[k].value, value.data) == 0;
        if (!fine && begins)
            return sbp_json_fail(r->diag, f,
                                 "%.100s: such an adapter belongs to other weights than the base model's, or "
                                 "trains a part of itself; supported: true, false, \"gaussian\", \"eva\", "
                                 "\"orthogonal\" (of pissa, olora and corda PEFT's save_pretrained with "
                                 "path_initial_model_for_weight_conversion makes a plain adapter)",
                                 value.data);
        if (!fine)
            return sbp_json_fail(r->diag, f, "%.100s is not supported; supported: its default", value.data);
    }
    return SBP_OK;
}

static sbp_status check_word(const reader *r, const char *key, const char *wanted, bool optional) {
    const sbp_json *f = field(r, key);
    const char *value = NULL;
    if (!f && optional)
        return SBP_OK;
    SBP_TRY(sbp_json_get_string(r->diag, r->root, key, SBP_JSON_REQUIRED, &value));
    return strcmp(value, wanted) == 0
               ? SBP_OK
               : sbp_json_fail(r->diag, f, "'%.60s' is not supported; supported: %s", value, wanted);
}

sbp_status sbp_lora_read(sbp_arena *arena, sbp_diag *diag, const char *directory, sbp_lora_options *out,
                         const char **base) {
    reader r = {.arena = arena, .diag = diag};
    const char *path = sbp_file_join(arena, directory, file_name);
    *out = (sbp_lora_options){.rank = 8, .alpha = 8};
    SBP_TRY(sbp_json_read(arena, diag, path, 0, &r.root));
    SBP_TRY(sbp_json_as_object(diag, r.root, &r.root));
    SBP_TRY(check_word(&r, "peft_type", "LORA", false));
    SBP_TRY(check_word(&r, "task_type", "CAUSAL_LM", true));
    SBP_TRY(check_left_over(&r));
    SBP_TRY(sbp_json_get_i64(diag, r.root, "r", SBP_JSON_NULLABLE, &out->rank));
    SBP_TRY(sbp_json_get_double(diag, r.root, "lora_alpha", SBP_JSON_NULLABLE, &out->alpha));
    SBP_TRY(sbp_json_get_double(diag, r.root, "lora_dropout", SBP_JSON_NULLABLE, &out->dropout));
    SBP_TRY(sbp_json_get_bool(diag, r.root, "use_rslora", SBP_JSON_NULLABLE, &out->rslora));
    SBP_TRY(sbp_json_get_string(diag, r.root, "base_model_name_or_path", SBP_JSON_NULLABLE, base));
    if (out->rank < 1 || out->rank > 1000000)
        return sbp_json_fail(diag, field(&r, "r"), "%lld is not a rank", (long long)out->rank);
    if (!(out->dropout >= 0 && out->dropout < 1))
        return sbp_json_fail(diag, field(&r, "lora_dropout"), "%g is not a share below 1", out->dropout);
    SBP_TRY(read_names(&r, "target_modules", true, &out->targets));
    SBP_TRY(read_names(&r, "target_parameters", false, &out->parameters));
    SBP_TRY(read_names(&r, "exclude_modules", true, &out->exclude));
    SBP_TRY(read_names(&r, "modules_to_save", false, &out->save));
    SBP_TRY(read_names(&r, "layers_pattern", false, &out->layers_pattern));
    out->all_linear = out->targets.pattern && strcmp(out->targets.names[0], "all-linear") == 0;
    SBP_TRY(read_layers(&r, out));
    SBP_TRY(read_numbers(&r, "rank_pattern", &out->ranks, &out->rank_count));
    return read_numbers(&r, "alpha_pattern", &out->alphas, &out->alpha_count);
}

/* ---- writing ------------------------------------------------------------------------------------------ */

static void write_names(sbp_json_writer *w, const char *key, const sbp_lora_names *names) {
    if (names->count == 0) {
        sbp_json_write_null(w, key);
        return;
    }
    if (names->pattern) {
        sbp_json_write_string(w, key, names->names[0]);
        return;
    }
    w->lines = 2;
    sbp_json_write_array(w, key);
    for (int32_t i = 0; i < names->count; i++)
        sbp_json_write_string(w, NULL, names->names[i]);
    sbp_json_write_end(w);
    w->lines = 1;
}

static void write_numbers(sbp_json_writer *w, const char *key, const sbp_lora_number *numbers,
                          int32_t count) {
    sbp_json_write_object(w, key);
    for (int32_t i = 0; i < count; i++)
        sbp_json_write_double(w, numbers[i].pattern, numbers[i].value);
    sbp_json_write_end(w);
}

static void write_layers(sbp_json_writer *w, const sbp_lora_options *o) {
    if (o->layer_count == 0) {
        sbp_json_write_null(w, "layers_to_transform");
        return;
    }
    sbp_json_write_array(w, "layers_to_transform");
    for (int32_t i = 0; i < o->layer_count; i++)
        sbp_json_write_int(w, NULL, o->layers[i]);
    sbp_json_write_end(w);
}

/* As a regular expression has a name. */
static void add_escaped(sbp_text *text, const char *name) {
    for (; *name; name++)
        sbp_text_add(text, "%s%c", strchr(".+*?()[]{}|^$\\", *name) ? "\\" : "", *name);
}

const char *sbp_lora_outside(sbp_arena *arena, const char *text_part) {
    sbp_text text;
    sbp_text_init(&text, arena);
    sbp_text_add(&text, "(?!");
    add_escaped(&text, text_part);
    sbp_text_add(&text, ").*");
    return text.data;
}

bool sbp_lora_is_outside(const sbp_model *model, const char *tensor) {
    static const char prefix[] = "base_model.model.";
    size_t n = sizeof prefix - 1;
    return model->text_part && strncmp(tensor, prefix, n) == 0 &&
           strncmp(tensor + n, model->text_part, strlen(model->text_part)) != 0;
}

/* What is excluded, and all that is outside of the text model. */
static sbp_lora_names exclude_outside(sbp_arena *arena, const sbp_lora_names *own, const char *text_part) {
    if (!text_part)
        return *own;
    const char *outside = sbp_lora_outside(arena, text_part), **name = SBP_NEW(arena, const char *);
    if (own->pattern && strncmp(own->names[0], outside, strlen(outside)) == 0)
        return *own; /* of an adapter that was written here */
    sbp_text text;
    sbp_text_init(&text, arena);
    sbp_text_add(&text, "%s", outside);
    if (own->pattern)
        sbp_text_add(&text, "|%s", own->names[0]);
    for (int32_t i = 0; !own->pattern && i < own->count; i++) {
        sbp_text_add(&text, "|(.*\\.)?");
        add_escaped(&text, own->names[i]);
    }
    *name = text.data;
    return (sbp_lora_names){name, 1, true};
}

const char *sbp_lora_config(sbp_arena *arena, const sbp_lora_options *o, const sbp_lora_names *targets,
                            const char *base, const char *text_part) {
    const sbp_lora_names exclude = exclude_outside(arena, &o->exclude, text_part);
    sbp_text text;
    sbp_text_init(&text, arena);
    sbp_json_writer w = sbp_json_writer_on(&text);
    w.lines = 1;
    sbp_json_write_object(&w, NULL);
    write_numbers(&w, "alpha_pattern", o->alphas, o->alpha_count);
    sbp_json_write_null(&w, "auto_mapping");
    sbp_json_write_string(&w, "base_model_name_or_path", base);
    sbp_json_write_string(&w, "bias", "none");
    write_names(&w, "exclude_modules", &exclude);
    sbp_json_write_bool(&w, "fan_in_fan_out", false);
    sbp_json_write_bool(&w, "inference_mode", true);
    sbp_json_write_bool(&w, "init_lora_weights", true);
    write_names(&w, "layers_pattern", &o->layers_pattern);
    write_layers(&w, o);
    sbp_json_write_double(&w, "lora_alpha", o->alpha);
    sbp_json_write_double(&w, "lora_dropout", o->dropout);
    write_names(&w, "modules_to_save", &o->save);
    sbp_json_write_string(&w, "peft_type", "LORA");
    sbp_json_write_double(&w, "r", (double)o->rank);
    write_numbers(&w, "rank_pattern", o->ranks, o->rank_count);
    sbp_json_write_null(&w, "revision");
    if (targets->count > 0 || o->parameters.count == 0) {
        write_names(&w, "target_modules", targets);
    } else { /* null would be what peft targets without being told */
        sbp_json_write_array(&w, "target_modules");
        sbp_json_write_end(&w);
    }
    if (o->parameters.count > 0)
        write_names(&w, "target_parameters", &o->parameters);
    sbp_json_write_string(&w, "task_type", "CAUSAL_LM");
    sbp_json_write_bool(&w, "use_dora", false);
    sbp_json_write_bool(&w, "use_rslora", o->rslora);
    sbp_json_write_end(&w);
    sbp_text_add(&text, "\n");
    return text.data;
}
