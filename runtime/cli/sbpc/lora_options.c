/* lora_options.c: --lora and its keys, for sbp_model_load. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cli/sbpc/cli.h"

static const char *typed(const sbp_compilation *c, sbp_option_id key) {
    return sbp_option_typed(c->arena, sbp_option_at((int32_t)key));
}

/* "[q_proj, 'v_proj']", a list of YAML: no regular expression of a whole name is one class of letters. */
static bool is_yaml_list(const char *text) {
    size_t n = strlen(text);
    return n >= 2 && text[0] == '[' && text[n - 1] == ']' && !strpbrk(text + 1, "[*?(){}|\\^$") &&
           strchr(text, ']') == text + n - 1 && !strstr(text, "-");
}

/* Names joined by '+', also of an option that is repeated; one that is written like a regular expression is
 * one, where `patterns`, and stands alone. */
static sbp_status names(const sbp_compilation *c, sbp_option_id id, bool patterns, sbp_lora_names *out) {
    int32_t given, count = 0, capacity = 0;
    const char *const *texts = sbp_options_list(c->options, c->arena, id, &given);
    const char **list = NULL;
    *out = (sbp_lora_names){0};
    for (int32_t i = 0; i < given; i++) {
        bool list_of_yaml = is_yaml_list(texts[i]);
        if (patterns && !list_of_yaml && (strpbrk(texts[i], "*?[](){}|\\^$") || strstr(texts[i], ".+"))) {
            if (given > 1)
                return sbp_fail(c->diag, SBP_USAGE,
                                "%s '%s': a regular expression stands alone, for whole names", typed(c, id),
                                texts[i]);
            *out = (sbp_lora_names){.names = texts, .count = 1, .pattern = true};
            return SBP_OK;
        }
        for (const char *at = texts[i]; *at;) {
            size_t length = strcspn(at, list_of_yaml ? "[]\"', " : "+, ");
            if (length > 0)
                SBP_PUSH(c->arena, list, count, capacity, sbp_arena_strndup(c->arena, at, length));
            at += length + (at[length] != 0);
        }
    }
    *out = (sbp_lora_names){.names = list, .count = count};
    return SBP_OK;
}

static sbp_status layers(const sbp_compilation *c, sbp_lora_options *out) {
    sbp_lora_names list;
    SBP_TRY(names(c, SBP_OPT_LORA_LAYERS, false, &list));
    int64_t *numbers = SBP_NEW_ARRAY(c->arena, int64_t, list.count);
    for (int32_t i = 0; i < list.count; i++) {
        char *end;
        numbers[i] = strtoll(list.names[i], &end, 10);
        if (*end || numbers[i] < 0)
            return sbp_fail(c->diag, SBP_USAGE, "--lora layers '%s': expected numbers of layers, from 0",
                            list.names[i]);
    }
    out->layers = numbers;
    out->layer_count = list.count;
    return SBP_OK;
}

/* "REGEX=X" each. */
static sbp_status patterns(const sbp_compilation *c, sbp_option_id id, const sbp_lora_number **out,
                           int32_t *count) {
    const char *const *texts = sbp_options_list(c->options, c->arena, id, count);
    sbp_lora_number *numbers = SBP_NEW_ARRAY(c->arena, sbp_lora_number, *count);
    for (int32_t i = 0; i < *count; i++) {
        const char *equals = strrchr(texts[i], '=');
        char *end = NULL;
        if (equals)
            numbers[i].value = strtod(equals + 1, &end);
        if (!equals || !equals[1] || *end || !isfinite(numbers[i].value))
            return sbp_fail(c->diag, SBP_USAGE, "%s '%s': expected REGEX=NUMBER", typed(c, id), texts[i]);
        numbers[i].pattern = sbp_arena_strndup(c->arena, texts[i], (size_t)(equals - texts[i]));
    }
    *out = numbers;
    return SBP_OK;
}

/* Whether new adapters are asked for, by --lora or by a key. Of an adapter's own, a dropout is none. */
static bool is_wanted(const sbp_compilation *c, bool adapter) {
    const bool on = sbp_options_is(c->options, SBP_OPT_LORA, "on");
    bool given = false, chosen = false;
    for (int32_t i = 0; i < sbp_option_count(); i++) {
        const sbp_option_id id = sbp_option_at(i)->id;
        if (sbp_option_at(i)->bundle != SBP_OPT_LORA)
            continue;
        given |= sbp_options_given(c->options, id);
        chosen |= !(adapter && id == SBP_OPT_LORA_DROPOUT) && sbp_options_chosen(c->options, id);
    }
    if (on)
        return chosen || !(adapter && given && sbp_options_from_bundle(c->options, SBP_OPT_LORA));
    return chosen && !sbp_options_given(c->options, SBP_OPT_LORA);
}

sbp_status sbp_cli_read_lora(const sbp_compilation *c, bool adapter, const sbp_lora_options **out) {
    *out = NULL;
    if (!is_wanted(c, adapter))
        return SBP_OK;
    sbp_lora_options *o = SBP_NEW(c->arena, sbp_lora_options);
    o->rank = sbp_options_int(c->options, SBP_OPT_LORA_R);
    o->alpha = sbp_options_double(c->options, SBP_OPT_LORA_ALPHA);
    o->dropout = sbp_options_double(c->options, SBP_OPT_LORA_DROPOUT);
    o->rslora = sbp_options_on(c->options, SBP_OPT_LORA_RSLORA);
    SBP_TRY(names(c, SBP_OPT_LORA_TARGETS, true, &o->targets));
    SBP_TRY(names(c, SBP_OPT_LORA_TARGET_PARAMETERS, false, &o->parameters));
    SBP_TRY(names(c, SBP_OPT_LORA_EXCLUDE, true, &o->exclude));
    SBP_TRY(names(c, SBP_OPT_LORA_MODULES_TO_SAVE, false, &o->save));
    SBP_TRY(names(c, SBP_OPT_LORA_LAYERS_PATTERN, false, &o->layers_pattern));
    if (o->targets.count == 1 && strcmp(o->targets.names[0], "all-linear") == 0) {
        o->all_linear = true;
        o->targets = (sbp_lora_names){0};
    }
    SBP_TRY(layers(c, o));
    SBP_TRY(patterns(c, SBP_OPT_LORA_RANK_PATTERN, &o->ranks, &o->rank_count));
    SBP_TRY(patterns(c, SBP_OPT_LORA_ALPHA_PATTERN, &o->alphas, &o->alpha_count));
    *out = o;
    return SBP_OK;
}
